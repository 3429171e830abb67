"""Small data files in the formats of other programs, and the specifications with which sarlite reads them."""

import gzip
import pickle
import zipfile

import numpy as np
import scipy.sparse

TOY = "train=1,val=0"
EMPTY = {"allow_empty": ("val", "test")}
NO_LABELS = {"allow_empty": ("train", "val", "test")}
RELATIONS = """
target = "user"
[nodes.user]
file = "n.csv"
id = "user"
features = ["age"]
labels = "segment"
split = "part"
[nodes.shop]
[[edges]]
relation = ["user", "follows", "user"]
file = "e.csv"
src = "source"
dst = "target"
weight = "amount"
[[edges]]
relation = ["user", "buys_at", "shop"]
file = "b.csv"
header = true
reverse = false
"""
"""What `tables:` reads: tables n.csv, e.csv and b.csv of two node types."""


def toy_npz(**changes):
    adjacency = scipy.sparse.csr_matrix(([1, 1, 1.0], ([0, 0, 3], [1, 2, 0])), shape=(4, 4))
    attributes = scipy.sparse.csr_matrix(np.arange(8, dtype=np.float32).reshape(4, 2))
    content = {"labels": np.array([0, 1, 0, 1])}
    for name, matrix in (("adj", adjacency), ("attr", attributes)):
        content.update({f"{name}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr", "shape")})
    content.update(changes)
    return {name: value for name, value in content.items() if value is not None}


def write_gz(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        for row in rows:
            file.write(",".join(map(str, np.atleast_1d(row).tolist())) + "\n")


def write_ogb(folder, split="time"):
    rng = np.random.default_rng(0)
    graph = {
        "edges": rng.integers(0, 6, (9, 2)),
        "features": rng.standard_normal((6, 3)).astype(np.float32),
        "labels": np.array([0, 2, 1, 0, 2, 1]),
    }
    write_gz(folder / "raw/edge.csv.gz", graph["edges"])
    write_gz(folder / "raw/node-feat.csv.gz", graph["features"])
    write_gz(folder / "raw/node-label.csv.gz", graph["labels"])
    write_gz(folder / "raw/num-node-list.csv.gz", [6])
    write_gz(folder / "raw/num-edge-list.csv.gz", [9])
    write_split(folder, split)
    return graph


def write_split(folder, split):
    for name, ids in (("train", [0, 1, 5]), ("valid", [2]), ("test", [4, 3])):
        write_gz(folder / f"split/{split}/{name}.csv.gz", ids)


def write_proteins(folder, **changed_files):
    """Write 5 nodes and 4 edges in the file layout of ogbn-proteins; return the specification. `changed_files` replace files' texts."""
    files = {"raw/num-node-list": "5\n", "raw/num-edge-list": "4\n", "raw/edge": "0,1\n1,2\n0,3\n0,1\n",
             "raw/edge-feat": "0.5,1\n1,0\n0,0\n0.25,1\n", "raw/node_species": "9606\n3702\n9606\n9606\n3702\n",
             "raw/node-label": "0,1,1\n1,1,0\n0,0,0\n1,0,1\n1,1,1\n", "split/species/train": "0\n1\n", "split/species/valid": "2\n",
             "split/species/test": "3\n4\n"}  # fmt: skip
    for name, text in {**files, **changed_files}.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    return f"ogb:{folder}"


def write_saved(path, value, zipped):
    """Write `value`, a dict of arrays, to `path` as `torch.save` does: in its zip format if `zipped`, else in its older format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if zipped:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("train/data.pkl", pickle.dumps(value, 2))
            archive.writestr("train/version", "3\n")
    else:
        info = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
        path.write_bytes(b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, info, value, [])))

"""Small valid inputs, one for each file format, each with the reader that a user calls on it; `fuzz.py` damages the inputs."""

import gzip
import json
import pickle
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse

from sarlite.cli import config
from sarlite.data import format, load
from sarlite.data.divide import divide
from sarlite.data.readers import pigo
from sarlite.data.summary import summary, summary_lines
from sarlite.data.textfile import read_parts
from sarlite.train import checkpoint
from tests.helpers.fuzz import fuzz_runs, fuzz_tables

ALL = ("train", "val", "test")


class Format(NamedTuple):
    files: dict  # name: content
    read: object  # called with the folder and a random.Random


def formats(names=None):
    """Return {name: Format}, a small valid input and its reader for each format in `names` (None: all formats)."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        by_name = {}
        for make in (_planetoid, _npz, _ogb, _ogb_npz, _edges_text, _edges_npy, _native, _divided, _parts, _toml, _checkpoint, _options,
                     _pigo, _mggcn, _roc, _reddit, *fuzz_runs.FORMATS, *fuzz_tables.FORMATS):
            name = make.__name__.removeprefix("_")
            if names and name not in names:
                continue
            (folder / name).mkdir()
            read = make(folder / name, rng)
            paths = [path for path in sorted((folder / name).rglob("*")) if path.is_file()]
            by_name[name] = Format({str(path.relative_to(folder / name)): path.read_bytes() for path in paths}, read)
    return by_name


def read_data(spec, **options):
    dataset = load(spec, allow_empty=ALL, **options)
    dataset.check(allow_empty=ALL)
    "\n".join(summary_lines(summary(dataset)))
    return dataset


def _planetoid(folder, rng):
    features, one_hot = rng.random((504, 4), np.float32) * (rng.random((504, 4)) < 0.5), np.eye(3, dtype=np.int32)
    parts = {"x": features[:4], "allx": features, "tx": features[:3],
             "y": one_hot[[0, 1, 2, 0]], "ally": one_hot[np.arange(504) % 3], "ty": one_hot}
    for name, value in parts.items():
        value = scipy.sparse.csr_matrix(value) if "x" in name else value
        (folder / f"ind.toy.{name}").write_bytes(pickle.dumps(value, 2 if name != "x" else 4))
    graph = defaultdict(list, {node: [(node + 1) % 507, (node * 7) % 507] for node in range(0, 507, 9)})
    (folder / "ind.toy.graph").write_bytes(pickle.dumps(graph, 2))
    np.savetxt(folder / "ind.toy.test.index", [505, 504, 506], fmt="%d")
    return lambda folder, _: read_data(f"planetoid:{folder}/toy")


def _csr(rng, rows, columns):
    matrix = scipy.sparse.random(rows, columns, 0.3, "csr", np.float32, rng)
    return {part: getattr(matrix, part) for part in ("data", "indices", "indptr")} | {"shape": np.array(matrix.shape)}


def _npz(folder, rng):
    content = {f"{name}_{part}": a for name, columns in (("adj", 12), ("attr", 5)) for part, a in _csr(rng, 12, columns).items()}
    np.savez(folder / "a.npz", **content, labels=np.arange(12) % 3)
    return lambda folder, dice: read_data(f"npz:{folder}/a.npz,train=1,val=1" + dice.choice(["", ",undirected,normalize", ",classes=3"]))


def _write_gz(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(",".join(map(str, np.atleast_1d(row).tolist())) + "\n" for row in rows).encode(), mtime=0))


def _ogb_split(folder):
    for name, ids in (("train", [0, 1, 5]), ("valid", [2]), ("test", [4, 3])):
        _write_gz(folder / f"split/time/{name}.csv.gz", ids)


def _ogb(folder, rng):
    tables = {"edge": rng.integers(0, 6, (9, 2)), "node-feat": rng.random((6, 3), np.float32), "node-label": [0, 1, 2, 0, 1, 2]}
    for name, rows in (tables | {"num-node-list": [6], "num-edge-list": [9]}).items():
        _write_gz(folder / f"raw/{name}.csv.gz", rows)
    _ogb_split(folder)
    return lambda folder, _: read_data(f"ogb:{folder}")


def _ogb_npz(folder, rng):
    (folder / "raw").mkdir()
    np.savez(folder / "raw/data.npz", edge_index=rng.integers(0, 6, (2, 9)), node_feat=rng.random((6, 3), np.float32), num_nodes_list=[6])
    np.savez_compressed(folder / "raw/node-label.npz", node_label=np.array([[0], [1], [2], [np.nan], [1], [0]], np.float32))
    _ogb_split(folder)
    (folder / "split/time/test.csv.gz").write_bytes(gzip.compress(b"4\n"))
    return lambda folder, _: read_data(f"ogb:{folder}")


def _edges_text(folder, rng):
    np.savetxt(folder / "e.csv", rng.integers(0, 8, (15, 2)), "%d", ",", header="source,target", comments="")
    np.savetxt(folder / "x.txt", rng.random((8, 3)))
    (folder / "y.txt").write_text("# labels\n" + "".join(f"{n % 3}\n" for n in range(7)) + "-1\n")
    (folder / "s.txt").write_text("train\nval\ntest\ntest\nnone\ntrain\nval\nnone\n")
    (folder / "t.txt").write_text("0\n3\n")
    return _edges_reader("e.csv", "x.txt", "y.txt", "s.txt", "t.txt")


def _edges_npy(folder, rng):
    names = np.array(["train", "val", "test", "none"])
    for name, array in {"e": rng.integers(0, 8, (2, 15)), "x": rng.random((8, 3)), "y": np.arange(8) % 3, "s": names[np.arange(8) % 4],
                        "t": np.arange(8) < 3}.items():  # fmt: skip
        np.save(folder / f"{name}.npy", array)
    return _edges_reader("e.npy", "x.npy", "y.npy", "s.npy", "t.npy")


def _edges_reader(e, x, y, s, t):
    def read(folder, dice):
        choices = (f"features=DIR/{x}", f"labels=DIR/{y}", f"features=DIR/{x},labels=DIR/{y},split=DIR/{s}",
                   f"labels=DIR/{y},train_ids=DIR/{t}", "undirected,self_loops", f"nodes=8,features=DIR/{x},normalize")  # fmt: skip
        return read_data(f"edges:DIR/{e},{dice.choice(choices)}".replace("DIR", str(folder)))

    return read


def _native(folder, rng):
    dataset = load("sbm:nodes=20,degree=4,features=3,classes=3")
    dataset.edge_weight = rng.random(dataset.n_edges, np.float32)
    format.write(folder / "d", dataset)
    return _native_reader


def _divided(folder, rng):
    dataset = load("sbm:nodes=20,degree=4,features=3,classes=3")
    with format.GraphWriter(folder / "d") as out:
        divide(dataset, np.arange(20) % 3, 3, out, division={"parts": 3, "partition": "random", "order": "none", "seed": 0})
    return _native_reader


def _native_reader(folder, dice):
    options = dice.choice(["", "", ",drop_edge_values,undirected", ",normalize"])
    return read_data(f"{folder}/d{options}", verify=dice.random() < 0.5)


def _parts(folder, rng):
    np.savetxt(folder / "p.txt", np.arange(20) % 4, "%d")
    np.save(folder / "p.npy", np.arange(20) % 4)
    return lambda folder, dice: read_parts(folder / dice.choice(["p.txt", "p.npy"]), 20, 4)


def _toml(folder, rng):
    options = {"data": "sbm:nodes=60", "epochs": 3, "lr": 0.01, "hidden": 8, "dropout": 0.5, "model": "gat", "json": True, "mode": "sar"}
    (folder / "c.toml").write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items()))
    return lambda folder, _: config.to_toml(config.parse(["--config", str(folder / "c.toml")]))


def _checkpoint(folder, rng):
    tensors = {"model.w": rng.random((3, 4), np.float32), "optimizer.m": rng.random(12), "ids.e": np.arange(3)}
    checkpoint.save(folder / "c.safetensors", tensors, {"epoch": 3, "step": 3, "rows": {"model.w": "e"}, "config": {"lr": 0.1}})
    return lambda folder, _: checkpoint.load(folder / "c.safetensors")


def _pigo(folder, rng):
    dataset = load("sbm:nodes=20,degree=4,features=3,classes=3")
    pigo.write(folder / "g.bin", dataset)
    dataset.edge_weight = rng.random(dataset.n_edges, np.float32)
    pigo.write(folder / "w.bin", dataset)
    (folder / "y.txt").write_text("".join(f"{n % 3}\n" for n in range(20)))
    return lambda folder, dice: read_data(f"pigo:{folder}/{dice.choice('gw')}.bin,labels={folder}/y.txt")


def _mggcn(folder, rng):
    pigo.write_directory(folder, load("sbm:nodes=20,degree=4,features=3,classes=3"))
    return lambda folder, dice: read_data(f"mggcn:{folder}" + dice.choice(["", ",classes=5"]))


def _roc(folder, rng):
    ends = np.array([2, 2, 5, 6], "<u8")
    lux = np.array(4, "<u4").tobytes() + np.array(6, "<u8").tobytes() + ends.tobytes() + rng.integers(0, 4, 6).astype("<u4").tobytes()
    (folder / "g.add_self_edge.lux").write_bytes(lux)
    (folder / "h.add_self_edge.lux").write_bytes(lux)
    np.savetxt(folder / "g.feats.csv", rng.random((4, 3)), "%g", ",")
    (folder / "h.feats.bin").write_bytes(rng.random((4, 3)).astype("<f4").tobytes())
    for name in "gh":
        (folder / f"{name}.label").write_text("1\n0\n1\n2\n")
        (folder / f"{name}.mask").write_text("Train\nNone\nTest\nVal\n")
    return lambda folder, dice: read_data(f"roc:{folder}/{dice.choice('gh')}")


def _reddit(folder, rng):
    row, col = rng.integers(0, 8, (2, 15))
    np.savez(folder / "reddit_data.npz", feature=rng.random((8, 3), np.float32), node_types=np.arange(8) % 4, label=np.arange(8) % 3)
    np.savez(folder / "reddit_graph.npz", row=row, col=col, data=np.ones(15), shape=np.array([8, 8]))
    return lambda folder, _: read_data(f"reddit:{folder}")


def _options(folder, rng):
    specs = ["sbm:nodes=40,classes=3,degree=4.5,features=3,homophily=0.6,noise=1.0,exponent=3.0,train=0.1,val=2,seed=1",
             "rmat:nodes=40,edges=100,a=0.57,b=0.19,c=0.19,features=3,classes=4,train=0.1,seed=1",
             "rmat:scale=5,d=0.05,undirected,self_loops",
             "bter:nodes=40,degree=4.5,max_degree=12,beta=2.0,cmax=0.9,xi=0.05,features=3,classes=4,train=0.1,seed=1"]  # fmt: skip
    (folder / "specs").write_text("\n".join(specs))
    return lambda folder, dice: read_data(dice.choice((folder / "specs").read_bytes().decode("utf-8", "surrogateescape").split("\n")))

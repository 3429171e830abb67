"""The Planetoid reader, on Cora's own files where they exist and on small files written here."""

import os
import pickle
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from sarlite.data import load
from sarlite.errors import DataError
from sarlite.structure.edges import is_symmetric

REAL = Path(os.environ.get("SARLITE_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))


def real(name, *others):
    for path in (REAL / name, *(REAL / other for other in others)):
        if not path.exists():
            pytest.skip(f"{path} is missing; SARLITE_DATA names the folder of real graphs")
    return REAL / name


def sizes(dataset):
    return [int(getattr(dataset, name).sum()) for name in ("train", "val", "test")]


def test_planetoid_reads_cora():
    real("planetoid/ind.cora.x")
    cora = load(f"planetoid:{REAL}/planetoid/cora")
    assert (cora.n_nodes, cora.n_features, cora.n_classes) == (2708, 1433, 7)
    assert sizes(cora) == [140, 500, 1000]
    assert cora.train[:140].all() and cora.val[140:640].all() and cora.test[1708:].all()
    assert cora.n_edges == 10556 and is_symmetric(cora.indptr, cora.indices)
    assert np.bincount(cora.labels).tolist() == [351, 217, 418, 818, 426, 298, 180]
    assert np.bincount(cora.labels[cora.train]).tolist() == [20] * 7
    assert set(np.unique(cora.features).tolist()) == {0.0, 1.0}


def test_planetoid_cora_is_the_cora_of_the_npz_file():
    """Both have the same graph in another node order: degrees and labels agree as multisets."""
    real("npz/cora.npz", "planetoid/ind.cora.x")
    one, two = load(f"planetoid:{REAL}/planetoid/cora"), load(f"npz:{REAL}/npz/cora.npz,undirected")
    assert one.n_edges == two.n_edges
    assert sorted(np.diff(one.indptr).tolist()) == sorted(np.diff(two.indptr).tolist())
    assert sorted(np.bincount(one.labels).tolist()) == sorted(np.bincount(two.labels).tolist())
    assert sorted(one.features.sum(axis=1).tolist()) == sorted(two.features.sum(axis=1).tolist())


def test_normalize_makes_rows_sum_to_one():
    real("planetoid/ind.cora.x")
    for option in ("normalize", "features=normalize"):
        cora = load(f"planetoid:{REAL}/planetoid/cora,{option}")
        assert np.allclose(cora.features.sum(axis=1), 1, atol=1e-6)


def write_planetoid(folder, protocol=2, test_ids=(6, 4, 8)):
    """Write a graph of 4 + 505 nodes with features; the test ids leave gaps, as in Citeseer."""
    n_known = 510
    features = np.arange(n_known * 3, dtype=np.float32).reshape(n_known, 3)
    test_ids = np.array(test_ids) + n_known - 4
    test = -np.arange(test_ids.size * 3, dtype=np.float32).reshape(-1, 3)
    one_hot = np.eye(2, dtype=np.int32)
    n_nodes = int(test_ids.max()) + 1
    parts = {
        "x": scipy.sparse.csr_matrix(features[:4]), "y": one_hot[[0, 1, 0, 1]],
        "allx": scipy.sparse.csr_matrix(features), "ally": one_hot[np.arange(n_known) % 2],
        "tx": scipy.sparse.csr_matrix(test), "ty": one_hot[np.arange(test_ids.size) % 2],
        "graph": defaultdict(list, {node: [(node + 1) % n_nodes] for node in range(n_nodes)}),
    }  # fmt: skip
    for name, value in parts.items():
        (folder / f"ind.toy.{name}").write_bytes(pickle.dumps(value, protocol))
    np.savetxt(folder / "ind.toy.test.index", test_ids, fmt="%d")
    return features, test, test_ids


@pytest.mark.parametrize("protocol", [2, 3])
def test_planetoid_with_missing_test_nodes(tmp_path, protocol):
    features, test, test_ids = write_planetoid(tmp_path, protocol)
    toy = load(f"planetoid:{tmp_path}/toy")
    assert toy.n_nodes == 515
    assert np.array_equal(toy.features[:510], features) and np.array_equal(toy.features[test_ids], test)
    assert toy.labels[test_ids].tolist() == [0, 1, 0]
    missing = [511, 513]
    assert (toy.features[missing] == 0).all() and (toy.labels[missing] == -1).all() and not toy.test[missing].any()
    assert sizes(toy) == [4, 500, 3]
    assert toy.n_edges == 2 * 515


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/sarlite-was-here",)


@pytest.mark.parametrize("file", ["x", "y", "graph"])
def test_planetoid_never_runs_a_pickle(tmp_path, file):
    write_planetoid(tmp_path)
    mark = Path("/tmp/sarlite-was-here")
    mark.unlink(missing_ok=True)
    for value in (Evil(), [Evil()], {"a": Evil()}):
        (tmp_path / f"ind.toy.{file}").write_bytes(pickle.dumps(value, 2))
        with pytest.raises(DataError, match=rf"ind.toy.{file}: pickle: .* it asks for (posix|nt|os).system"):
            load(f"planetoid:{tmp_path}/toy")
    assert not mark.exists()


def test_planetoid_admits_no_function_of_numpy(tmp_path):
    write_planetoid(tmp_path)
    (tmp_path / "ind.toy.x").write_bytes(b"cnumpy\nload\n(S'/etc/passwd'\ntR.")
    with pytest.raises(DataError, match="it asks for numpy.load"):
        load(f"planetoid:{tmp_path}/toy")


@pytest.mark.parametrize("file", ["x", "y", "tx", "ty", "allx", "ally", "graph", "test.index"])
@pytest.mark.parametrize("damage", ["cut", "delete", "garbage"])
def test_planetoid_damage_names_the_file(tmp_path, file, damage):
    write_planetoid(tmp_path)
    path = tmp_path / f"ind.toy.{file}"
    content = path.read_bytes()
    path.write_bytes({"cut": content[: len(content) // 2], "garbage": b"\x80\x02garbage"}.get(damage, content))
    if damage == "delete":
        path.unlink()
    with pytest.raises(DataError, match=f"{path}: |{path.with_name('ind.toy')}"):
        load(f"planetoid:{tmp_path}/toy")


@pytest.mark.parametrize(
    "file, value, message",
    [
        ("y", np.array([[None, 1]]), "ind.toy.y: pickle: .*it has an array of dtype 'O8'; numbers alone"),
        ("y", np.eye(2)[:1], "ind.toy.y: labels: 1 rows, .*ind.toy.x has 4 of features"),
        ("graph", {0: [600]}, "ind.toy.graph: graph: node id 600 is outside"),
        ("graph", [1], "ind.toy.graph: graph: expected a dict"),
        ("graph", {0: ["x"]}, "ind.toy.graph: graph: node id 'x' is outside"),
        ("x", [1], "ind.toy.x: features: expected a matrix, found list"),
        ("tx", np.zeros((3, 2)), "ind.toy.tx: 2 columns, but .*ind.toy.allx has 3"),
    ],
)
def test_planetoid_content_that_does_not_fit(tmp_path, file, value, message):
    write_planetoid(tmp_path)
    (tmp_path / f"ind.toy.{file}").write_bytes(pickle.dumps(value, 2))
    with pytest.raises(DataError, match=message):
        load(f"planetoid:{tmp_path}/toy")


def test_planetoid_matrix_with_wild_indices(tmp_path):
    write_planetoid(tmp_path)
    matrix = scipy.sparse.csr_matrix(np.eye(4, 3, dtype=np.float32))
    matrix.indices[1] = 10**6
    (tmp_path / "ind.toy.x").write_bytes(pickle.dumps(matrix, 2))
    with pytest.raises(DataError, match="ind.toy.x: features_indices: entry 1 .*1000000, .*< 3"):
        load(f"planetoid:{tmp_path}/toy")

"""Other programs' formats: PIGO, MG-GCN, ROC, DGL's Reddit; written data are read again, and bad fields are refused."""

import re

import numpy as np
import pytest
import scipy.sparse

from sarlite.cli.data_command import main
from sarlite.data import Dataset, format, load
from sarlite.data.divide import divide
from sarlite.data.readers import pigo
from sarlite.errors import ConfigError, DataError
from sarlite.structure.edges import csr_by_dst, destinations

SRC, DST = np.array([0, 0, 0, 1, 4, 4, 2]), np.array([1, 1, 2, 3, 0, 3, 2])  # two equal edges, a loop, a node alone
EMPTY = {"allow_empty": ("train", "val", "test")}


def dataset(weighted=False, dtype=np.float32):
    """Return six nodes, one of them without a label and one in no split."""
    indptr, indices, origin = csr_by_dst(SRC, DST, 6, edge_index=True)
    x = np.random.default_rng(0).standard_normal((6, 3), np.float32)
    weight = (np.arange(7) / 4).astype(dtype)[origin] if weighted else None
    return Dataset(indptr, indices, x, np.array([0, 1, 2, -1, 0, 1]), *np.eye(6, dtype=bool)[[0, 1, 4]], 3, edge_weight=weight)


def edges(data):
    return sorted(zip(data.indices.tolist(), destinations(data.indptr).tolist()))


@pytest.mark.parametrize("weighted", [False, True])
def test_mggcn_is_read_as_it_was_written(tmp_path, weighted):
    written = dataset(weighted)
    pigo.write_directory(tmp_path / "d", written)
    again = load(f"mggcn:{tmp_path}/d")
    assert again.equals(written) and again.n_nodes == 6 and not again.train[3]
    pigo.write_directory(tmp_path / "e", again)
    assert all((tmp_path / "d" / name).read_bytes() == (tmp_path / "e" / name).read_bytes()
               for name in (pigo.GRAPH, pigo.FEATURES, pigo.LABELS, pigo.SETS))
    if not weighted:
        assert load(f"mggcn:{tmp_path}/d,classes=9").n_classes == 9
        with pytest.raises(ConfigError, match="d/graph.bin: exists already"):
            pigo.write_directory(tmp_path / "d", written)


def test_mggcn_writes_the_bytes_of_its_toy_example(tmp_path):
    """The bytes are from MG-GCN's toy example: rows are sources, and weights of one follow the node ids."""
    ends = np.array([1, 3, 0, 2, 1, 3, 0, 2])
    indptr, indices = csr_by_dst(np.repeat(np.arange(4), 2), ends, 4)
    written = Dataset(indptr, indices, np.array([[0, 1], [1, 0], [0, 1], [1, 0]], np.float32), np.array([0, 1, 0, 1]),
                      np.array([1, 1, 0, 0], bool), np.array([0, 0, 1, 0], bool), np.array([0, 0, 0, 1], bool), 2)
    pigo.write_directory(tmp_path, written)
    words = [4, 8, 4, 4, *range(0, 9, 2), *ends]
    assert (tmp_path / "graph.bin").read_bytes() == b"PIGO-CSR-v2\4\4" + np.array(words, "<u4").tobytes() + np.ones(8, "<f4").tobytes()
    assert (tmp_path / "sets.bin").read_bytes() == np.array([4, 1, 0, 0, 1, 2], "<u4").tobytes()
    assert (tmp_path / "labels.bin").read_bytes() == np.array([4, 1, 0, 1, 0, 1], "<i4").tobytes()
    assert (tmp_path / "features.bin").read_bytes() == np.array([4, 2], "<u4").tobytes() + written.features.tobytes()


@pytest.mark.parametrize("weighted, dtype", [(False, None), (True, np.float32), (True, np.float64)])
def test_pigo_is_read_as_it_was_written(tmp_path, weighted, dtype):
    written = dataset(weighted, dtype)
    pigo.write(tmp_path / "graph.bin", written)
    again = load(f"pigo:{tmp_path}/graph.bin", check=False)
    assert np.array_equal(again.indptr, written.indptr) and np.array_equal(again.indices, written.indices)
    assert (again.edge_weight is None) == (not weighted)
    assert not weighted or (again.edge_weight.dtype == dtype and np.array_equal(again.edge_weight, written.edge_weight))
    np.savetxt(tmp_path / "y.txt", [0, 1, 0, 1, 0], fmt="%d")
    with pytest.raises(DataError, match="y.txt: labels: 5 rows, .*graph.bin: n: 6"):
        load(f"pigo:{tmp_path}/graph.bin,labels={tmp_path}/y.txt,train=1,val=1")


def test_what_stands_by_part_is_written_by_original_id(tmp_path, capsys):
    written = dataset(weighted=True)
    with format.GraphWriter(tmp_path / "d") as out:
        divide(written, np.array([1, 0, 1, 0, 1, 0]), 2, out)
    assert main(["export", str(tmp_path / "d"), str(tmp_path / "e"), "--format", "mggcn"]) == 0
    assert "6 nodes, 7 edges" in capsys.readouterr().out
    assert load(f"mggcn:{tmp_path}/e").equals(written)
    assert main(["export", str(tmp_path / "d"), str(tmp_path / "e"), "--format", "mggcn"]) == 2
    assert main(["export", str(tmp_path / "d"), str(tmp_path / "e"), "--format", "mggcn", "--overwrite"]) == 0


def test_what_a_format_cannot_hold_is_refused(tmp_path):
    written = dataset()
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file/d: cannot be written: Not a directory"):
        pigo.write_directory(tmp_path / "file" / "d", written)
    with pytest.raises(DataError, match="file/g.bin: cannot be written: Not a directory"):
        pigo.write(tmp_path / "file" / "g.bin", written)
    written.features = np.full((6, 1), 1e300)
    with pytest.raises(DataError, match="features.bin: row 0 .*float32"):
        pigo.write_directory(tmp_path / "d", written)
    assert not (tmp_path / "d/graph.bin").exists() and not (tmp_path / "d/features.bin").exists()
    written.edge_features = np.ones((7, 1))
    with pytest.raises(ConfigError, match="edge_features: the format has no place"):
        pigo.write(tmp_path / "graph.bin", written)
    written.edge_features, written.task = None, "regress"
    with pytest.raises(ConfigError, match="labels: their task is regress"):
        pigo.write_directory(tmp_path / "d", written)


def graph_bin(label="<u4", ordinal="<u4", magic=b"PIGO-CSR-v2", sizes=None, head=(3, 2, 3, 3), offsets=(0, 1, 1, 2), ids=(1, 2), more=b""):
    n, m, rows, columns = head
    sizes = sizes or bytes((np.dtype(label).itemsize, np.dtype(ordinal).itemsize))
    counts = b"".join(np.array(value, dtype).tobytes() for value, dtype in ((n, label), (m, ordinal), (rows, label), (columns, label)))
    return magic + sizes + counts + np.array(offsets, ordinal).tobytes() + np.array(ids, label).tobytes() + more


@pytest.mark.parametrize("label, ordinal", [("<u4", "<u8"), ("<u8", "<u4"), ("<u8", "<u8")])
def test_pigo_is_read_with_labels_of_any_width(tmp_path, label, ordinal):
    (tmp_path / "g").write_bytes(graph_bin(label, ordinal))
    assert edges(load(f"pigo:{tmp_path}/g", check=False)) == [(0, 1), (2, 2)]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"magic": b"PIGO-COO-v2"}, "magic: b'PIGO-COO-v2', expected b'PIGO-CSR-v2'"),
        ({"sizes": b"\2\4"}, "L: 2 bytes, expected 4 or 8"),
        ({"sizes": b"\4\5"}, "O: 5 bytes, expected 4 or 8"),
        ({"head": (2**32 - 1, 2, 3, 3)}, "n: 4294967295 nodes, expected 0 to"),
        ({"head": (4, 2, 3, 3)}, "node ids: 53 bytes, but its header needs 57: the file was cut"),
        ({"head": (3, 3, 3, 3)}, "node ids: 53 bytes, but its header needs 57: the file was cut"),
        ({"head": (3, 2**32 - 1, 3, 3)}, "node ids: 53 bytes, but its header needs 17179869225: the file was cut"),
        ({"head": (3, 2, 4, 3)}, "rows: 4, expected at most n, 3"),
        ({"head": (3, 2, 3, 4)}, "columns: 4, expected at most n, 3"),
        ({"offsets": (0, 2, 1, 2)}, "offsets: entry 2 is 1, less than the entry before"),
        ({"offsets": (0, 1, 1, 3)}, "offsets: runs from 0 to 3, expected 0 to 2"),
        ({"ids": (1, 3)}, "row 1, column 'destination': node 3 is outside 0 <= node < 3"),
        ({"more": b"x"}, "weights: 1 bytes .*expected none, 8 or 16 for 2 edges"),
        ({"more": np.array([1, np.inf], "<f4").tobytes()}, "weights: entry 1 is inf, expected a finite number"),
    ],
)
def test_pigo_fields_that_cannot_be(tmp_path, changes, message):
    (tmp_path / "g").write_bytes(graph_bin(**changes))
    with pytest.raises(DataError, match=f"/g: {message}"):
        load(f"pigo:{tmp_path}/g")


@pytest.mark.parametrize("name, ends", [
    ("graph.bin", {"magic": 11, "L": 12, "O": 13, "n": 17, "m": 21, "rows": 25, "columns": 29, "offsets": 57, "node ids": 85,
                   "weights": 113}),
    ("features.bin", {"rows": 4, "columns": 8, "features": 80}),
    ("labels.bin", {"rows": 4, "columns": 8, "labels": 32}),
    ("sets.bin", {"rows": 4, "columns": 8, "sets": 32}),
])  # fmt: skip
def test_mggcn_truncated_in_every_field(tmp_path, name, ends):
    pigo.write_directory(tmp_path, dataset())
    whole = (tmp_path / name).read_bytes()
    for field, end in ends.items():
        (tmp_path / name).write_bytes(whole[: end - 1])
        with pytest.raises(DataError, match=f"{re.escape(name)}: {field}: "):
            load(f"mggcn:{tmp_path}")
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=f"{re.escape(name)}: .*no such file"):
        load(f"mggcn:{tmp_path}")


@pytest.mark.parametrize("name, at, value, message", [
    ("features.bin", 0, 5, "rows: 5, expected 6"),
    ("labels.bin", 4, 2, "columns: 2, expected 1"),
    ("labels.bin", 8, 2**31 - 1, "labels: the largest is 2147483647"),
    ("sets.bin", 12, 4, r"sets: node 1 is in set 4, expected 0 \(train\), 1 \(val\), 2 \(test\) or 3 \(none\)"),
])  # fmt: skip
def test_mggcn_fields_that_cannot_be(tmp_path, name, at, value, message):
    pigo.write_directory(tmp_path, dataset())
    content = bytearray((tmp_path / name).read_bytes())
    content[at : at + 4] = value.to_bytes(4, "little")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: {message}"):
        load(f"mggcn:{tmp_path}", **EMPTY)


def write_roc(folder, packed=False):
    """Write three nodes, each with a loop, and the edge 0 -> 1.

    ROC stores the ends of each node's in-edges.
    """
    ends, sources = np.array([1, 3, 4], "<u8"), np.array([0, 1, 0, 2], "<u4")
    counts = np.array(3, "<u4").tobytes() + np.array(4, "<u8").tobytes()
    (folder / "g.add_self_edge.lux").write_bytes(counts + ends.tobytes() + sources.tobytes())
    x = np.array([[0.5, 1], [2, 3], [4, 5]], np.float32)
    if packed:
        (folder / "g.feats.bin").write_bytes(x.tobytes())
    else:
        np.savetxt(folder / "g.feats.csv", x, "%g", ",")
    (folder / "g.label").write_text("1\n0\n1\n")
    (folder / "g.mask").write_text("Train\nNone\nTest\n")
    return x


@pytest.mark.parametrize("packed", [False, True])
def test_roc_is_read(tmp_path, packed):
    x = write_roc(tmp_path, packed)
    data = load(f"roc:{tmp_path}/g", allow_empty=("val",))
    assert edges(data) == [(0, 0), (0, 1), (1, 1), (2, 2)] and data.name == "g"
    assert np.array_equal(data.features, x) and data.labels.tolist() == [1, 0, 1] and data.n_classes == 2
    assert (data.train.tolist(), data.val.any(), data.test.tolist()) == ([True, False, False], False, [False, False, True])


@pytest.mark.parametrize("name, change, message", [
    *((".add_self_edge.lux", lambda data, end=end: data[: end - 1], f"{field}: ")
      for field, end in (("nodes", 4), ("edges", 12), ("ends", 36), ("sources", 52))),
    (".add_self_edge.lux", lambda data: b"\4" + data[1:], "sources: 52 bytes, but its header needs 60: the file was cut"),
    (".add_self_edge.lux", lambda data: data[:12] + b"\4" + data[13:], "ends: entry 2 is 3, less than the entry before"),
    (".add_self_edge.lux", lambda data: data[:28] + b"\3" + data[29:], "ends: runs from 0 to 3, expected 0 to 4"),
    (".add_self_edge.lux", lambda data: data[:-4] + b"\3" + data[-3:], "edges: src: node id 3 at position 3"),
    (".feats.bin", lambda data: data[:-4], "features: 20 bytes, expected a multiple of 12"),
    (".feats.csv", lambda _: b"1,2,3\n", "features: 24 bytes, expected 36 for 3 nodes as wide as .*csv's"),
    (".label", lambda data: data + b"0\n", "labels: 4 lines, but .* has 3 nodes"),
    (".label", lambda data: data.replace(b"0", b"x"), "labels: "),
    (".mask", lambda data: data.lower(), "mask: entry 0 is 'train', expected one of None, Train, Val, Test"),
])  # fmt: skip
def test_roc_files_that_do_not_fit(tmp_path, name, change, message):
    write_roc(tmp_path, packed=True)
    path = tmp_path / f"g{name}"
    path.write_bytes(change(path.read_bytes() if path.exists() else b""))
    with pytest.raises(DataError, match=f"g{name if 'csv' not in name else '.feats.bin'}: {message}"):
        load(f"roc:{tmp_path}/g", **EMPTY)


def write_reddit(folder, name="reddit_graph.npz", **changes):
    matrix = scipy.sparse.coo_matrix((np.ones(4), ([0, 1, 1, 2], [1, 0, 2, 1])), shape=(3, 3))
    data = {"feature": np.arange(6, dtype=np.float32).reshape(3, 2), "node_types": np.array([1, 2, 3]), "label": np.array([0, 1, 1]),
            "node_ids": np.array([7, 8, 9])}  # fmt: skip
    graph = {**{key: getattr(matrix, key) for key in ("row", "col", "data", "shape")}, "format": b"coo"}
    np.savez_compressed(folder / "reddit_data.npz", **{key: value for key, value in {**data, **changes}.items() if key in data})
    np.savez_compressed(folder / name, **{key: value for key, value in {**graph, **changes}.items() if key in graph})


def test_reddit_is_read(tmp_path):
    write_reddit(tmp_path, "reddit_self_loop_graph.npz", row=np.arange(3), col=np.arange(3), data=np.ones(3))
    assert edges(load(f"reddit:{tmp_path}")) == [(0, 0), (1, 1), (2, 2)]
    write_reddit(tmp_path)
    data = load(f"reddit:{tmp_path}")
    assert edges(data) == [(0, 1), (1, 0), (1, 2), (2, 1)] and data.edge_weight is None
    assert [mask.tolist().index(True) for mask in (data.train, data.val, data.test)] == [0, 1, 2]
    assert np.array_equal(data.features, np.arange(6).reshape(3, 2)) and data.labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize("changes, message", [
    ({"feature": np.ones(3)}, r"reddit_data.npz: feature: .*matrix.*shape \(3,\)"),
    ({"node_types": np.array([1, 4, 0])}, "reddit_data.npz: node_types: node 1 has 4, expected 1"),
    ({"node_types": np.array([1.0, 2, 3])}, "reddit_data.npz: node_types: expected one whole number"),
    ({"label": np.array([0, 1])}, r"reddit_data.npz: label: shape \(2,\), .*feature has 3 rows"),
    ({"node_ids": np.array(3)}, r"reddit_data.npz: node_ids: shape \(\), .*feature has 3 rows"),
    ({"shape": np.array([3, 4])}, r"reddit_graph.npz: shape: \[3, 4\], .*number of nodes"),
    ({"shape": np.array([4, 4])}, "reddit_graph.npz: shape: 4 nodes, .*reddit_data.npz has 3"),
    ({"row": np.array([0, 1, 1])}, r"reddit_graph.npz: col: shape \(4,\), .*row has \(3,\)"),
    ({"col": np.array([1, 0, 3, 1])}, "reddit_graph.npz: edges: dst: node id 3 at position 2"),
    ({"data": np.array([1, 1, 1])}, "reddit_graph.npz: data: expected 4 numbers"),
])  # fmt: skip
def test_reddit_content_that_does_not_fit(tmp_path, changes, message):
    write_reddit(tmp_path, **changes)
    with pytest.raises(DataError, match=message):
        load(f"reddit:{tmp_path}")

"""Values that would give a wrong data set are refused by name: numbers of nodes and classes, ids, labels, splits, sizes."""

import gzip
import json
import zipfile

import numpy as np
import pytest

from sarlite.data import format, load
from sarlite.data.raw import count_classes, masks, whole_labels
from sarlite.data.writer import meta_hash
from sarlite.errors import ConfigError, DataError, SarliteError
from sarlite.profile import free_memory
from sarlite.structure import generate
from sarlite.structure.order import check_order
from sarlite.structure.partition import check_parts
from tests.helpers.train.data_files import EMPTY, NO_LABELS, TOY, toy_npz, write_gz, write_ogb


@pytest.fixture
def folder(tmp_path):
    """Write five nodes in files that agree with each other."""
    (tmp_path / "e.csv").write_text("0,1\n1,2\n3,4\n")
    np.save(tmp_path / "x.npy", np.ones((5, 2)))
    (tmp_path / "y.txt").write_text("0\n1\n1\n0\n-1\n")
    (tmp_path / "s.txt").write_text("train\nval\ntest\ntest\nnone\n")
    return tmp_path


def edges(folder, options="", file="e.csv"):
    return load(f"edges:{folder}/{file}" + (f",{options}" if options else "").replace("DIR", str(folder)), **NO_LABELS)


# Numbers of nodes


@pytest.mark.parametrize("nodes", [10**12, -5, 2**63, 10**30])
def test_impossible_numbers_of_nodes(folder, nodes):
    with pytest.raises(DataError, match=f"e.csv: {nodes} nodes, expected 0 to 3000000000"):
        edges(folder, f"nodes={nodes}")


def test_more_nodes_than_memory_holds(folder, monkeypatch):
    monkeypatch.setattr("sarlite.data.raw.free_memory", lambda: 10**9)
    with pytest.raises(DataError, match="e.csv: 2000000000 nodes: .*46000000000 bytes, .*1000000000"):
        edges(folder, "nodes=2000000000")


def test_a_huge_id_is_no_number_of_nodes(folder):
    (folder / "e.csv").write_text("0,1\n1,2000000000\n")
    with pytest.raises(DataError, match="e.csv: edges: .*2000000000 .*names=edges .*nodes=2000000001"):
        edges(folder)
    (folder / "e.csv").write_text(f"0,1\n1,{2**63 - 1}\n")
    with pytest.raises(DataError, match="e.csv: edges: .*9223372036854775807 .*names=edges"):
        edges(folder)


@pytest.mark.parametrize("dtype", [np.uint64, np.uint8, np.int8])
def test_ids_of_every_integer_dtype(folder, dtype):
    np.save(folder / "e.npy", np.array([[0, 1], [1, 2], [3, 4]], dtype))
    assert edges(folder, file="e.npy").n_nodes == 5
    if dtype is np.uint64:
        np.save(folder / "e.npy", np.array([[0, 1], [1, 2], [3, 2**64 - 1]], dtype))
        with pytest.raises(DataError, match="e.npy: row 2, column 'destination': node 18446744073709551615 is outside|names=edges"):
            edges(folder, file="e.npy")


def test_two_edges_of_npy_are_refused(folder):
    """[[0, 5], [1, 6]] could mean 0 -> 5 and 1 -> 6, or 0 -> 1 and 5 -> 6."""
    np.save(folder / "e.npy", np.array([[0, 5], [1, 6]]))
    with pytest.raises(DataError, match=r"e.npy: edges: shape \(2, 2\) .*by rows or by columns"):
        edges(folder, file="e.npy")
    np.savetxt(folder / "e.txt", [[0, 5], [1, 6]], "%d")
    assert edges(folder, "nodes=7", file="e.txt").indptr.tolist() == [0, 0, 0, 0, 0, 0, 1, 2]


@pytest.mark.parametrize(
    "options, message",
    [
        ("features=DIR/x.npy,labels=DIR/y.txt", "{0}/x.npy: features: 4 rows, but {0}/y.txt: labels: 5; both need one per node"),
        ("features=DIR/x.npy,nodes=5", "{0}/x.npy: features: 4 rows, but nodes: option: 5; both need one per node"),
        ("features=DIR/x.npy", "{0}/x.npy: features: 4 rows, but {0}/e.csv has node id 4"),
        ("labels=DIR/y.txt,split=DIR/short.txt", "{0}/short.txt: split: 1 rows, but {0}/y.txt: labels: 5; both need one per node"),
    ],
)
def test_files_that_disagree_are_both_named(folder, options, message):
    np.save(folder / "x.npy", np.ones((4, 2)))
    (folder / "short.txt").write_text("train\n")
    with pytest.raises(DataError) as caught:
        edges(folder, options)
    assert str(caught.value) == message.format(folder)


# Labels and classes


def test_labels_are_values_unless_their_number_is_said(folder):
    (folder / "y.txt").write_text("1000000\n1000001\n1000004\n1000002\n-1\n")
    codes = edges(folder, "labels=DIR/y.txt")
    assert codes.class_names == ["-1", "1000000", "1000001", "1000002", "1000004"] and codes.labels.tolist() == [1, 2, 4, 3, 0]
    assert edges(folder, "labels=DIR/y.txt,classes=1000005").n_classes == 1_000_005
    with pytest.raises(ConfigError,
                       match="classes is 5, .*1000005 to 16777216: .*1000000 to 1000004"):
        edges(folder, "labels=DIR/y.txt,classes=5")
    with pytest.raises(ConfigError, match="classes is 1000000000000, but must be"):
        edges(folder, "labels=DIR/y.txt,classes=1000000000000")


def test_how_large_a_gap_may_be():
    assert count_classes(np.array([100, 201, -1]), "f") == 202
    for labels in ([101], [0, 102], [0, 50, 151 + 50]):
        with pytest.raises(DataError, match="f: labels: no node .*from"):
            count_classes(np.array(labels), "f")
    assert count_classes(np.array([-1]), "f") == 0 and count_classes(np.array([0, 2]), "f", 7) == 7


def test_npz_and_ogb_know_classes_too(tmp_path):
    np.savez(tmp_path / "toy.npz", **toy_npz(labels=np.array([0, 500, 0, 500])))
    assert load(f"npz:{tmp_path}/toy.npz,{TOY}", **EMPTY).class_names == ["0", "500"]
    assert load(f"npz:{tmp_path}/toy.npz,{TOY},classes=501", **EMPTY).n_classes == 501
    write_ogb(tmp_path)
    write_gz(tmp_path / "raw/node-label.csv.gz", [0, 2, 500, 0, 2, 1])
    with pytest.raises(DataError, match="node-label.csv.gz: labels: .*from 3 to 499"):
        load(f"ogb:{tmp_path}")
    assert load(f"ogb:{tmp_path},classes=600").n_classes == 600


@pytest.mark.parametrize("label", ["46116860184273879041", "1e300", "0.5"])
def test_labels_that_are_none(folder, label):
    (folder / "y.txt").write_text(f"0\n1\n{label}\n0\n0\n")
    with pytest.raises(DataError, match="y.txt: row 2, column '0': .*whole number"):
        edges(folder, "labels=DIR/y.txt")


@pytest.mark.parametrize("value, dtype", [(2**62, np.int64), (2**64 - 1, np.uint64), (-7, np.int8)])
def test_labels_of_npy_that_are_none(value, dtype):
    with pytest.raises(DataError, match=f"f: labels: node 1 has label {value}, expected a whole number"):
        whole_labels(np.array([0, value], dtype), "f")


def test_a_native_data_set_of_many_classes(tmp_path):
    format.write(tmp_path / "d", load("sbm:nodes=20,degree=3,classes=3"))
    path = tmp_path / "d/meta.json"
    for classes in (10**12, -1):
        meta = json.loads(path.read_text())
        meta["nodes"]["node"]["classes"] = classes
        del meta["sha256"]
        path.write_text(json.dumps({**meta, "sha256": meta_hash(meta)}))
        with pytest.raises(DataError, match=f"{tmp_path}/d: classes: {classes}, expected 0 to 16777216"):
            load(f"{tmp_path}/d", **NO_LABELS)


# Splits


def test_split_codes_are_refused(folder):
    np.save(folder / "s.npy", np.array([0, 1, 2, 2, 3]))
    with pytest.raises(DataError, match="s.npy: row 0, column '0': 0 is not one of train"):
        edges(folder, "labels=DIR/y.txt,split=DIR/s.npy")
    (folder / "s.txt").write_text("0\n1\n2\n2\n3\n")
    with pytest.raises(DataError, match="s.txt: row 0, column '0': '0' is not one of train"):
        edges(folder, "labels=DIR/y.txt,split=DIR/s.txt")


def test_splits_by_ids_and_by_masks(folder):
    named = edges(folder, "labels=DIR/y.txt,split=DIR/s.txt")
    for name, ids in (("train", [0]), ("val", [1]), ("test", [3, 2])):
        np.save(folder / f"{name}.npy", ids)
        np.save(folder / f"{name}-mask.npy", np.isin(np.arange(5), ids))
        np.savetxt(folder / f"{name}.txt", ids, "%d")
    for ending in (".npy", "-mask.npy", ".txt"):
        options = ",".join(f"{name}_ids=DIR/{name}{ending}" for name in ("train", "val", "test"))
        assert named.equals(edges(folder, f"labels=DIR/y.txt,{options}"))
    only = edges(folder, "labels=DIR/y.txt,train_ids=DIR/test.npy")
    assert only.train.tolist() == [False, False, True, True, False] and not only.val.any() and not only.test.any()


@pytest.mark.parametrize(
    "array, message",
    [
        (np.array([0, 1, 1, 0, 0]), "t.npy: train split: node id 0"),  # a mask of numbers
        (np.array([5]), "t.npy: train split: node id 5 .*0 <= id < 5"),
        (np.array([0.5]), "t.npy: train split: .*integer dtype.*float64"),
        (np.ones(4, bool), r"t.npy: train split: a mask of shape \(4, 1\), expected \(5,\)"),
        (np.ones((2, 2), int), "t.npy: train split: .*one node id per line, found 2 columns"),
        (np.array([0, 1, 2, 0, 0], np.uint8), "t.npy: train split: node id 0"),
    ],
)
def test_ids_that_are_none(folder, array, message):
    np.save(folder / "t.npy", array)
    with pytest.raises(DataError, match=message):
        edges(folder, "labels=DIR/y.txt,train_ids=DIR/t.npy")


def test_splits_given_twice_or_without_labels(folder):
    with pytest.raises(ConfigError, match="split and train_ids"):
        edges(folder, "labels=DIR/y.txt,split=DIR/s.txt,train_ids=DIR/s.txt")
    with pytest.raises(ConfigError, match="test_ids: needs labels=FILE"):
        edges(folder, "test_ids=DIR/s.txt")


def test_a_mask_whose_bytes_are_no_truth_values(tmp_path):
    """2 & 1 is 0, so such a mask overlaps no other mask, and its inverse is true as well."""
    data = load("sbm:nodes=20,degree=3,classes=3")
    data.train = np.where(data.train, 2, 0).astype(np.uint8).view(bool)
    with pytest.raises(DataError, match=r"train: entry \d+"):
        data.check()
    assert masks(3, {}, train=np.array([2, 0]))[0].tolist() == [True, False, True]


# Archives


def test_npz_with_unsigned_indices(tmp_path):
    plain, content = toy_npz(), toy_npz()
    for name in content:
        if name.endswith(("indices", "indptr", "shape", "labels")):
            content[name] = np.asarray(content[name]).astype(np.uint64)
    np.savez(tmp_path / "toy.npz", **plain)
    np.savez(tmp_path / "unsigned.npz", **content)
    one, two = (load(f"npz:{tmp_path}/{name}.npz,{TOY}", **EMPTY) for name in ("toy", "unsigned"))
    assert one.equals(two)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED])
def test_archives_with_damaged_members(tmp_path, method):
    """The decompressors raise their own errors: LZMAError, zlib.error, OSError."""
    np.savez(tmp_path / "toy.npz", **toy_npz())
    with zipfile.ZipFile(tmp_path / "toy.npz") as source, zipfile.ZipFile(tmp_path / "a.npz", "w", method) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    content = (tmp_path / "a.npz").read_bytes()
    assert load(f"npz:{tmp_path}/a.npz,{TOY}", **EMPTY).n_nodes == 4
    for at in range(30, 400, 7):
        damaged = bytearray(content)
        damaged[at] ^= 255
        (tmp_path / "b.npz").write_bytes(damaged)
        try:
            load(f"npz:{tmp_path}/b.npz,{TOY}", **EMPTY)
        except DataError as error:
            assert "b.npz" in str(error) and "\n" not in str(error)


def test_counts_of_ogb_that_cancel(tmp_path):
    write_ogb(tmp_path)
    write_gz(tmp_path / "raw/num-node-list.csv.gz", [7, -1])
    with pytest.raises(DataError, match="num-node-list.csv.gz: count: -1 is negative"):
        load(f"ogb:{tmp_path}")
    (tmp_path / "raw/num-node-list.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf6\n"))  # a byte order mark
    assert load(f"ogb:{tmp_path}").n_nodes == 6


# Arrays and options


@pytest.mark.parametrize("check, name", [(check_parts, "parts"), (check_order, "order")])
def test_parts_and_orders_of_other_things(check, name):
    arguments = {"parts": (3, 2, "here"), "order": (3, "here")}[name]
    values = [[0], [1, 2]], [0.5, 0, 1], ["a", "b", "c"], [10**30, 0, 1], [True, False, True], None, [0, 1]
    for value in (*values, np.array([0, 2**64 - 1, 1], np.uint64)):
        with pytest.raises(DataError, match=f"^here: {name}: "):
            check(value, *arguments)


@pytest.mark.parametrize(
    "spec",
    ["sbm:nodes=1000000000000", "sbm:nodes=100,features=1000000000000", "sbm:nodes=100,degree=1e300", "sbm:nodes=100,degree=1e18",
     "sbm:nodes=100,seed=-1", "sbm:nodes=100,noise=1e300", "sbm:nodes=1" + "0" * 400, "sbm:nodes=" + "9" * 5000,
     "sbm:nodes=100,classes=101", "sbm:nodes=100,train=nan", "sbm:nodes=100,val=-1", "rmat:nodes=100,edges=1000000000000",
     "rmat:scale=31,features=1000", "rmat:nodes=100,classes=1000000000000", "rmat:nodes=100,a=nan", "rmat:nodes=100,a=inf",
     "\0", "a" * 10_000, "/" + "a" * 10_000, "sbm:" + "x" * 10_000 + "=1"],
)  # fmt: skip
def test_options_that_cannot_work(spec):
    with pytest.raises(SarliteError) as caught:
        load(spec)
    assert len(str(caught.value)) < 1200 and str(caught.value).isprintable()


def test_a_count_larger_than_a_class_takes_the_class():
    masks = generate.random_split(np.array([0, 0, 1]), 10**30, 5, 0)
    assert [mask.sum() for mask in masks] == [3, 0, 0]


def test_free_memory_knows_the_limit_on_addresses(monkeypatch):
    import resource

    assert 0 < free_memory() < 1 << 60
    with open("/proc/self/status") as file:
        size = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmSize"))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (size + (64 << 20), resource.RLIM_INFINITY))
    assert 0 <= free_memory() <= 64 << 20

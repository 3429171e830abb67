"""The native format: round trips, damage of every kind, and writers that fail half-way."""

import io
import json
import os
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from sarlite.comm import threads
from sarlite.data import Dataset, format, load, npyfile
from sarlite.data.writer import meta_hash
from sarlite.errors import ConfigError, DataError

NODES, EDGES = "nodes/node", "edges/node.edge.node"
FILES = (*(f"{NODES}/{name}.npy" for name in ("features", "labels", "train", "val", "test")),
         *(f"{EDGES}/{name}.npy" for name in ("indptr", "indices", "weight", "features")), "meta.json")  # fmt: skip


@pytest.fixture
def dataset():
    data = load("sbm:nodes=60,degree=4,features=5,classes=3,seed=1")
    data.edge_weight = np.arange(data.n_edges, dtype=np.float32)
    data.edge_features = np.arange(2.0 * data.n_edges).reshape(-1, 2)
    return data


@pytest.fixture
def stored(dataset, tmp_path):
    format.write(tmp_path / "d", dataset)
    return tmp_path / "d"


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_round_trip_is_bit_equal(dataset, stored):
    opened = format.open(stored, verify=True)
    assert dataset.equals(opened) and opened.check() is opened
    assert opened.name == dataset.name and opened.provenance == json.loads(json.dumps(dataset.provenance))
    assert isinstance(opened.features, np.memmap) and not opened.features.flags.writeable
    assert opened.n_nodes == 60 and opened.n_features == 5 and opened.n_classes == 3
    assert os.listdir(stored.parent) == ["d"]  # no temporary left


def test_round_trip_without_edges_or_edge_values(tmp_path):
    none = np.empty(0, np.int32)
    mask = np.array([True, False, False])
    written = Dataset(np.zeros(4, np.int64), none, np.ones((3, 2)), np.array([1, -1, 0]), mask, mask[::-1].copy(), np.zeros(3, bool), 2)
    format.write(tmp_path / "d", written)
    assert written.equals(format.open(tmp_path / "d", verify=True).check(allow_empty=("test",)))


def test_arrays_in_other_orders_are_written_in_c_order(dataset, tmp_path):
    dataset.features = np.asfortranarray(dataset.features).astype(">f4")
    format.write(tmp_path / "d", dataset)
    opened = format.open(tmp_path / "d", verify=True)
    assert opened.features.flags.c_contiguous and np.array_equal(opened.features, dataset.features)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["first", "last", "cut", "grow", "delete", "empty"])
def test_damage_is_found_and_the_file_named(stored, file, damage):
    path = stored / file
    content = bytearray(path.read_bytes())
    if damage in ("first", "last"):
        at = 8 if damage == "first" else len(content) - 2  # positions in meta.json inside an indent and before the last newline
        content[at] ^= 1
    content = {"cut": content[:-1] if file != "meta.json" else content[:-3], "grow": content + b"x", "empty": b""}.get(damage, content)
    path.write_bytes(content)
    if damage == "delete":
        path.unlink()
    with pytest.raises(DataError, match=str(path)):
        format.open(stored, verify=True)


@pytest.mark.parametrize("damage", ["cut", "grow", "delete"])
def test_sizes_are_checked_without_hashing(stored, damage):
    path = stored / NODES / "features.npy"
    content = path.read_bytes()
    path.write_bytes({"cut": content[:-1], "grow": content + b"x", "delete": content}[damage])
    if damage == "delete":
        path.unlink()
    with pytest.raises(DataError, match="features.npy: features: "):
        format.open(stored)


def test_every_byte_of_meta_counts(stored):
    path = stored / "meta.json"
    content = path.read_bytes()
    meta = json.loads(content)
    for at in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[at] ^= 2
        path.write_bytes(damaged)
        try:
            assert json.loads(damaged) == meta  # only white space changed
        except (ValueError, AssertionError):
            with pytest.raises(DataError, match="meta.json"):
                format.open(stored)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda m: m.update(schema=3), "meta.json: schema: 3, expected 2$"),
        (lambda m: m.update(schema=1), "schema: 1, expected 2; .*python -m sarlite.data convert sbm:nodes=60.* /.*/d --overwrite$"),
        (lambda m: m["nodes"]["node"].update(count=61, offsets=[0, 61]), "features.npy: features: expected 61 rows, found 60"),
        (lambda m: m["edges"]["node.edge.node"].update(count=9), "meta.json: edges: node.edge.node: 9 edges, .*the arrays have 240"),
        (lambda m: m["nodes"]["node"].update(classes="3"), "meta.json: classes: expected int, found '3'"),
        (lambda m: m["edges"]["node.edge.node"].update(arrays={}), "edges: node.edge.node: no record of indptr"),
        (lambda m: m["nodes"]["node"]["arrays"]["labels"].pop("sha256"), "node: labels: expected a record"),
        (lambda m: m.update(provenance=None), "meta.json: provenance: expected dict, found None"),
        (lambda m: m["nodes"].update(paper={}), "meta.json: nodes: node, paper; a graph of one kind, .* has only node"),
        (lambda m: m.update(edges={}), "meta.json: edges: nothing; a graph of one kind, .* has only node.edge.node"),
        (lambda m: m.update(division=""), "meta.json: division: expected null, or partition and order by name, found ''"),
        (lambda m: m.update(division={"partition": "metis"}), "meta.json: division: expected null"),
        (lambda m: m["nodes"]["node"].update(count=10**30, offsets=[0, 10**30]), "cannot be read: OverflowError"),
        (lambda m: m["nodes"]["node"].update(classes=True), "meta.json: classes: expected int, found True"),
        (lambda m: m.update(division=["metis"]), "meta.json: division: expected null, or partition and order"),
        (lambda m: m["nodes"]["node"].update(offsets=[0, 40, 30, 60]), r"meta.json: offsets: \[0, 40, 30, 60\]: expected whole"),
        (lambda m: m["nodes"]["node"].update(offsets=[0, 59]), "meta.json: offsets"),
        (lambda m: m["nodes"]["node"].update(offsets=[0, 1.5, 60]), "meta.json: offsets"),
        (lambda m: m["nodes"]["node"].update(feature_names=["a"]), "nodes: node: feature_names: expected . different names, one a column"),
        (lambda m: m["edges"]["node.edge.node"].update(feature_names=[1]), "edges: node.edge.node: feature_names: expected . different"),
    ],
)
def test_meta_that_does_not_fit_is_refused(stored, change, message):
    path = stored / "meta.json"
    meta = json.loads(path.read_text())
    del meta["sha256"]
    change(meta)
    path.write_text(json.dumps({**meta, "sha256": meta_hash(meta)}))
    with pytest.raises(DataError, match=message):
        format.open(stored)


def test_objects_are_never_read(stored):
    np.save(stored / NODES / "labels.npy", np.array([{}] * 60), allow_pickle=True)
    with pytest.raises(DataError, match="labels.npy: labels: .*Python objects"):
        format.open(stored)


def test_a_header_that_lies_takes_no_memory(stored):
    with (stored / NODES / "features.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 5)})
    with pytest.raises(DataError, match="features.npy: features: 128 bytes, .*20000000000128"):
        format.open(stored)


def test_headers_are_parsed_by_one_thread_at_a_time(monkeypatch):
    """Python counts the depth of the parsed code for all threads together, so two parsers at once may raise a SystemError."""
    file, inside, most, parse = io.BytesIO(), [], [], np.lib.format.read_array_header_1_0
    np.save(file, np.zeros((3, 2)))

    def slow(head):
        inside.append(0)
        time.sleep(0.01)
        most.append(len(inside))
        try:
            return parse(head)
        finally:
            inside.pop()

    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", slow)
    headers = threads.run(3, lambda comm: (comm.barrier(), npyfile.header(file.getvalue()))[1])
    assert max(most) == 1 and headers == [(np.dtype(float), (3, 2), False, 128)] * 3


def test_existing_paths_are_not_replaced_unless_told(dataset, stored, tmp_path):
    with pytest.raises(ConfigError, match="exists already"):
        format.write(stored, dataset)
    other = tmp_path / "precious"
    other.mkdir()
    (other / "file").write_text("kept")
    with pytest.raises(ConfigError, match="not a data set"):
        format.write(other, dataset, overwrite=True)
    assert (other / "file").read_text() == "kept"
    (tmp_path / "empty").mkdir()
    format.write(tmp_path / "empty", dataset)
    dataset.labels = dataset.labels[::-1].copy()
    format.write(stored, dataset, overwrite=True)
    assert dataset.equals(format.open(stored, verify=True))
    assert sorted(os.listdir(tmp_path)) == ["d", "empty", "precious"]


@pytest.mark.parametrize("step", range(18))
def test_a_write_that_fails_leaves_the_old_or_nothing(dataset, stored, tmp_path, monkeypatch, step):
    """Every fsync and rename fails in turn; the last step is the rename to the final name."""
    before = contents(stored)
    calls = []

    def failing(function):
        def call(*arguments):
            calls.append(function.__name__)
            if len(calls) - 1 == step:
                raise OSError(28, "No space left on device")
            return function(*arguments)

        return call

    dataset.features = dataset.features + 1
    with monkeypatch.context() as patch:
        for name in ("fsync", "rename"):
            patch.setattr(os, name, failing(getattr(os, name)))
        with pytest.raises(DataError, match="No space left"):
            format.write(stored, dataset, overwrite=True)
    assert (step == 17) == (calls[-2:] == ["rename", "rename"])
    assert contents(stored) == before
    assert os.listdir(tmp_path) == ["d"]


def run_limited(code, *arguments, blocks):
    """Run Python code in a process that may write files of at most `blocks` KiB and ignores every signal."""
    script = f'ulimit -f {blocks}; trap \'\' XFSZ; exec {sys.executable} -c "$0" "$@"'
    call = ["bash", "-c", script, textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, timeout=60, check=False)


def test_a_full_disk_leaves_the_old_directory(stored, tmp_path):
    before = contents(stored)
    code = """
        import sys
        from sarlite.cli.data_command import main
        sys.exit(main(["convert", "sbm:nodes=3000,features=64", sys.argv[1], "--overwrite"]))
    """
    done = run_limited(code, stored, blocks=300)
    assert done.returncode == 2 and "features.npy: cannot be written: File too large" in done.stderr, done.stderr
    assert contents(stored) == before
    assert os.listdir(tmp_path) == ["d"]


def test_a_killed_write_leaves_nothing_that_opens(tmp_path):
    code = """
        import os, sys
        from sarlite.data import format, load
        from sarlite.data import npyfile
        real = npyfile.Stream.write
        def write(self, rows):
            if rows.dtype == "int64":
                os.kill(os.getpid(), 9)
            return real(self, rows)
        npyfile.Stream.write = write
        format.write(sys.argv[1], load("sbm:nodes=50,degree=3"))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "d")], capture_output=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr
    (left,) = tmp_path.iterdir()  # the temporary directory alone
    assert left.name.startswith(".sarlite-")
    for path in (tmp_path / "d", left):
        with pytest.raises(DataError, match="meta.json"):
            format.open(path)


def test_sources_that_do_not_ascend_are_sorted_and_remembered(dataset, tmp_path):
    """Equal edges keep their order, and edge values stay with their edges."""
    shuffle = np.concatenate([np.random.default_rng(row).permutation(np.arange(*ends)) for row, ends in enumerate(
        zip(dataset.indptr, dataset.indptr[1:]))])
    plain = np.array(dataset.indices)
    for field in ("indices", "edge_weight", "edge_features"):
        setattr(dataset, field, getattr(dataset, field)[shuffle])
    format.write(tmp_path / "d", dataset)
    opened = format.open(tmp_path / "d", verify=True).check()
    assert np.array_equal(opened.indices, plain) and np.array_equal(opened.edge_weight, np.arange(240))
    assert np.array_equal(opened.edge_ids, np.argsort(shuffle)) and np.array_equal(opened.edge_features[:, 0], 2 * np.arange(240))


def test_sources_that_do_not_ascend_on_disk_are_refused(stored, dataset):
    dataset.indices = dataset.indices.copy()
    low, high = next((low, high) for low, high in zip(dataset.indptr, dataset.indptr[1:]) if high > low + 1)
    dataset.indices[low:high] = dataset.indices[low:high][::-1]
    with format.GraphWriter(stored, overwrite=True) as out:  # unsorted, while `write` sorts them
        for table in dataset.tables:
            for field, array in table.arrays().items():
                out.array(table, field, array.shape, array.dtype).write(array)
        out.finish(dataset, {"node": dataset.offsets}, None)
    with pytest.raises(DataError, match="indices.npy: indices: .*ascend"):
        format.open(stored).check()


def test_a_link_is_followed(dataset, stored, tmp_path):
    (tmp_path / "link").symlink_to(stored)
    dataset.labels = dataset.labels[::-1].copy()
    format.write(tmp_path / "link", dataset, overwrite=True)
    assert (tmp_path / "link").is_symlink() and dataset.equals(format.open(stored, verify=True))
    assert sorted(os.listdir(tmp_path)) == ["d", "link"]


def test_pieces_of_a_file_must_fit(tmp_path):
    stream = npyfile.Stream(tmp_path / "x.npy", (3, 2), np.float32)
    stream.write(np.ones((1, 2)))
    for rows in (np.ones((3, 2)), np.ones((1, 3)), np.ones(2)):
        with pytest.raises(ValueError, match="rows of shape"):
            stream.write(rows)
    with pytest.raises(ValueError, match="2 rows of"):
        stream.close()
    stream.write(np.zeros((2, 2)))
    stream.close()
    assert np.load(tmp_path / "x.npy").tolist() == [[1, 1], [0, 0], [0, 0]]
    assert stream.record["sha256"] == npyfile.sha256(tmp_path / "x.npy")

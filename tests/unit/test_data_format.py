"""The native format: round trips, damage of every kind, and writers that fail half-way."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from sarlite.data import Dataset, format, load
from sarlite.errors import ConfigError, DataError

FILES = ("indptr.npy", "indices.npy", "features.npy", "labels.npy", "train.npy", "val.npy", "test.npy", "meta.json")


@pytest.fixture
def dataset():
    made = load("sbm:nodes=60,degree=4,features=5,classes=3,seed=1")
    made.edge_weight = np.arange(made.n_edges, dtype=np.float32)
    made.edge_features = np.arange(2.0 * made.n_edges).reshape(-1, 2)
    return made


@pytest.fixture
def stored(dataset, tmp_path):
    format.write(tmp_path / "d", dataset)
    return tmp_path / "d"


def test_round_trip(dataset, stored):
    opened = format.open(stored, verify=True)
    assert dataset.equals(opened) and opened.check() is opened
    assert opened.name == dataset.name and opened.provenance == json.loads(json.dumps(dataset.provenance))
    assert isinstance(opened.features, np.memmap) and not opened.features.flags.writeable
    assert opened.n_nodes == 60 and opened.n_features == 5 and opened.n_classes == 3
    assert os.listdir(stored.parent) == ["d"]  # no temporary left


def test_round_trip_without_edges_or_edge_values(tmp_path):
    none = np.empty(0, np.int32)
    mask = np.array([True, False, False])
    made = Dataset(np.zeros(4, np.int64), none, np.ones((3, 2)), np.array([1, -1, 0]), mask, mask[::-1].copy(), np.zeros(3, bool), 2)
    format.write(tmp_path / "d", made)
    assert made.equals(format.open(tmp_path / "d", verify=True).check(allow_empty=("test",)))


def test_arrays_in_other_orders_are_written_in_c_order(dataset, tmp_path):
    dataset.features = np.asfortranarray(dataset.features).astype(">f4")
    format.write(tmp_path / "d", dataset)
    opened = format.open(tmp_path / "d", verify=True)
    assert opened.features.flags.c_contiguous and np.array_equal(opened.features, dataset.features)


@pytest.mark.parametrize("file", [*FILES, "edge_weight.npy", "edge_features.npy"])
@pytest.mark.parametrize("damage", ["first", "last", "cut", "grow", "delete", "empty"])
def test_damage_is_found_and_the_file_named(stored, file, damage):
    path = stored / file
    content = bytearray(path.read_bytes())
    if damage in ("first", "last"):
        at = 8 if damage == "first" else len(content) - 2  # in meta.json inside an indent and before the last newline
        content[at] ^= 1
    content = {"cut": content[:-1] if file != "meta.json" else content[:-3], "grow": content + b"x", "empty": b""}.get(damage, content)
    path.write_bytes(content)
    if damage == "delete":
        path.unlink()
    with pytest.raises(DataError, match=str(path)):
        format.open(stored, verify=True)


@pytest.mark.parametrize("damage", ["cut", "grow", "delete"])
def test_sizes_are_checked_without_hashing(stored, damage):
    path = stored / "features.npy"
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
    "changes, message",
    [
        ({"schema": 2}, "meta.json: schema: 2, expected 1"),
        ({"n_nodes": 61}, "meta.json: n_nodes: 61, but the arrays have 60"),
        ({"n_classes": "3"}, "meta.json: n_classes: expected int, found '3'"),
        ({"arrays": {}}, "meta.json: arrays: no record of indptr"),
        ({"provenance": None}, "meta.json: provenance: expected dict, found None"),
    ],
)
def test_meta_that_does_not_fit_is_refused(stored, changes, message):
    path = stored / "meta.json"
    meta = json.loads(path.read_text())
    del meta["sha256"]
    meta.update(changes)
    path.write_text(json.dumps({**meta, "sha256": format._meta_hash(meta)}))
    with pytest.raises(DataError, match=message):
        format.open(stored)


def test_objects_are_never_read(stored):
    np.save(stored / "labels.npy", np.array([{}] * 60), allow_pickle=True)
    with pytest.raises(DataError, match="labels.npy: labels: not a .npy file that can be read: it holds Python objects"):
        format.open(stored)


def test_a_header_that_lies_takes_no_memory(stored):
    with (stored / "features.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 5)})
    with pytest.raises(DataError, match="features.npy: features: shape"):
        format.open(stored)


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


@pytest.mark.parametrize("step", range(13))
def test_a_write_that_fails_leaves_the_old_or_nothing(dataset, stored, tmp_path, monkeypatch, step):
    """Every fsync and rename fails in turn; the last step is the rename to the final name."""
    before = {name: (stored / name).read_bytes() for name in os.listdir(stored)}
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
        with pytest.raises(DataError, match="cannot be written: No space left on device"):
            format.write(stored, dataset, overwrite=True)
    assert (step == 12) == (calls[-2:] == ["rename", "rename"])
    assert {name: (stored / name).read_bytes() for name in os.listdir(stored)} == before
    assert os.listdir(tmp_path) == ["d"]


def run_limited(code, *arguments, blocks):
    """Run Python code in a process that may write files of at most `blocks` KiB; every signal of it is ignored."""
    script = f'ulimit -f {blocks}; trap \'\' XFSZ; exec {sys.executable} -c "$0" "$@"'
    call = ["bash", "-c", script, textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, timeout=60, check=False)


def test_a_full_disk_leaves_the_old_directory(stored, tmp_path):
    before = {name: (stored / name).read_bytes() for name in os.listdir(stored)}
    code = """
        import sys
        from sarlite.data.__main__ import main
        sys.exit(main(["convert", "sbm:nodes=3000,features=64", sys.argv[1], "--overwrite"]))
    """
    done = run_limited(code, stored, blocks=300)
    assert done.returncode == 2 and "features.npy: cannot be written: File too large" in done.stderr, done.stderr
    assert {name: (stored / name).read_bytes() for name in os.listdir(stored)} == before
    assert os.listdir(tmp_path) == ["d"]


def test_a_killed_write_leaves_nothing_that_opens(tmp_path):
    code = """
        import os, sys
        from sarlite.data import format, load
        from sarlite.data import npyfile
        real = npyfile.write
        def write(path, array):
            if path.name == "labels.npy":
                os.kill(os.getpid(), 9)
            return real(path, array)
        npyfile.write = write
        format.write(sys.argv[1], load("sbm:nodes=50,degree=3"))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "d")], capture_output=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr
    (left,) = tmp_path.iterdir()  # the temporary directory alone
    assert left.name.startswith(".d.tmp-")
    for path in (tmp_path / "d", left):
        with pytest.raises(DataError, match="meta.json"):
            format.open(path)


def test_parts(stored):
    parts = np.arange(60) % 3
    format.write_parts(stored, parts, 3, method="mine")
    opened = format.open_parts(stored, 3)
    assert opened.dtype == np.int32 and np.array_equal(opened, parts)
    format.write_parts(stored, parts[::-1], 3, method="mine")
    assert np.array_equal(format.open_parts(stored, 3), parts[::-1])
    assert format.open(stored, verify=True).n_nodes == 60
    with pytest.raises(DataError, match=r"no partition into 4 \(stored: 3\)"):
        format.open_parts(stored, 4)
    with pytest.raises(DataError, match="parts-2.npy: parts: node 2 has part 2"):
        format.write_parts(stored, parts, 2, method="mine")
    with pytest.raises(DataError, match=r"parts-3.npy: parts: expected shape \(60,\)"):
        format.write_parts(stored, parts[:5], 3, method="mine")


@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_damaged_parts_are_named(stored, damage):
    format.write_parts(stored, np.arange(60) % 3, 3, method="mine")
    path = stored / "parts-3.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content if damage == "flip" else content[:-1])
    if damage == "delete":
        path.unlink()
    with pytest.raises(DataError, match="parts-3.npy: parts: "):
        format.open_parts(stored, 3)


def test_interrupted_write_of_parts_never_lies(stored, monkeypatch):
    """Whichever rename fails, what is stored opens, or is said not to be there."""
    old, new = np.arange(60) % 3, np.arange(60)[::-1] % 3
    for step in range(3):
        format.write_parts(stored, old, 3, method="mine")
        calls, replace = [], os.replace

        def failing(*arguments, step=step, calls=calls, replace=replace):
            calls.append(arguments)
            if len(calls) - 1 == step:
                raise OSError(28, "No space left on device")
            replace(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", failing)
            with pytest.raises(DataError, match="parts-3.npy: cannot be written"):
                format.write_parts(stored, new, 3, method="mine")
        assert format.open(stored, verify=True).n_nodes == 60
        assert not [name for name in os.listdir(stored) if ".tmp-" in name]
        if step == 0:
            assert np.array_equal(format.open_parts(stored, 3), old)
        else:
            with pytest.raises(DataError, match="no partition into 3"):
                format.open_parts(stored, 3)


def test_order(stored):
    assert format.open_order(stored) is None
    order = np.random.default_rng(0).permutation(60)
    format.write_order(stored, order, method="mine", seed=3)
    assert np.array_equal(format.open_order(stored), order)
    format.write_order(stored, order[::-1], method="mine")
    assert np.array_equal(format.open_order(stored), order[::-1])
    assert format.read_meta(stored)["order"]["method"] == "mine" and format.open(stored, verify=True).n_nodes == 60
    with pytest.raises(DataError, match="order.npy: order: node 59 has no place"):
        format.write_order(stored, np.arange(60) % 59, method="mine")
    assert np.array_equal(format.open_order(stored), order[::-1])


@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_a_damaged_order_is_named(stored, damage):
    format.write_order(stored, np.arange(60), method="mine")
    path = stored / "order.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content if damage == "flip" else content[:-1])
    if damage == "delete":
        path.unlink()
    with pytest.raises(DataError, match="order.npy: order: "):
        format.open_order(stored)


def test_an_order_that_is_no_permutation_is_named_though_its_hash_is_right(stored, monkeypatch):
    monkeypatch.setattr(format, "check_order", lambda order, *_: order)
    format.write_order(stored, np.arange(60) // 2, method="mine")
    monkeypatch.undo()
    with pytest.raises(DataError, match="order.npy: order: node 30 has no place"):
        format.open_order(stored)
    assert len(format.open_order(stored, verify=False)) == 60


def test_a_record_of_an_order_that_says_nothing_is_refused(stored):
    meta = format.read_meta(stored)
    format._write_meta(stored, {**meta, "order": {"dtype": "<i4"}})
    with pytest.raises(DataError, match="meta.json: order: expected a record"):
        format.open(stored)

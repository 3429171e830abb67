"""Features stored as bfloat16: half the bytes, opened by every reader, and never read as another type."""

import json

import numpy as np
import pytest

from sarlite import kernels
from sarlite.cli.data_command import main
from sarlite.data import format, load
from sarlite.data.mapped import BFLOAT16
from sarlite.data.part import Part
from sarlite.errors import DataError
from tests.helpers.graph import relational_runs
from tests.helpers.train.training_runs import assert_same_curve, train_here

SPEC = "sbm:nodes=60,degree=4,features=5,classes=3,seed=1"
FILE = "nodes/node/features.npy"


@pytest.fixture
def rounded():
    """Return the features as float32, rounded to bfloat16."""
    return kernels.widen(kernels.narrow(load(SPEC).features))


@pytest.fixture
def stored(tmp_path):
    assert main(["convert", SPEC, str(tmp_path / "d"), "--features-dtype", "bfloat16"]) == 0
    return tmp_path / "d"


def test_a_round_trip_keeps_the_rounded_features(stored, rounded, tmp_path):
    opened = format.open(stored, verify=True).check()
    assert opened.features.dtype == BFLOAT16 and opened.features.nbytes == rounded.nbytes // 2
    assert format.read_meta(stored)["nodes"]["node"]["arrays"]["features"]["dtype"] == "bfloat16"
    assert np.load(stored / FILE).dtype.names == ("bfloat16",)
    for dtype in (None, np.float32, np.float64):
        x = Part(opened, 0, 1).rows(dtype).features
        np.testing.assert_array_equal(x, rounded)
        assert x.dtype == np.dtype(dtype or "float32") and Part(opened, 0, 1).rows(dtype, False).features.dtype == x.dtype
    format.write(tmp_path / "again", opened)
    assert format.open(tmp_path / "again").equals(opened)
    format.write(tmp_path / "same", opened, bfloat16=True)
    assert format.open(tmp_path / "same").equals(opened)


def test_they_are_no_numbers_by_mistake(stored):
    with pytest.raises(TypeError):
        load(str(stored)).features + 1


@pytest.mark.parametrize("options", [(), ("--memory", "4GiB")], ids=["in-memory", "streamed"])
def test_parts_have_the_rounded_features(stored, rounded, options):
    assert main(["partition", str(stored), "--parts", "2", "--method", "random", *options]) == 0
    opened = format.open(stored, verify=True)
    for rank in range(2):
        part = Part(opened, rank, 2)
        np.testing.assert_array_equal(part.rows().features, rounded[part.node_ids()])


def test_written_within_so_much_memory(tmp_path, rounded):
    np.savetxt(tmp_path / "edges.txt", np.argwhere(np.ones((60, 3)))[:, ::-1], "%d")
    np.save(tmp_path / "x.npy", rounded + np.float32(1e-4))
    np.savetxt(tmp_path / "y.txt", np.arange(60) % 3, "%d")
    spec = f"edges:{tmp_path}/edges.txt,features={tmp_path}/x.npy,labels={tmp_path}/y.txt,nodes=60"
    flags = ("--features-dtype", "bfloat16")
    assert main(["convert", spec, str(tmp_path / "a"), *flags]) == 0
    assert main(["convert", spec, str(tmp_path / "b"), "--memory", "4GiB", *flags]) == 0
    assert format.open(tmp_path / "a").equals(format.open(tmp_path / "b"))


def test_other_programs_and_changes_get_float32(stored, rounded, tmp_path, capsys):
    np.testing.assert_array_equal(load(f"{stored},undirected").features, rounded)
    np.testing.assert_allclose(load(f"{stored},normalize").features.sum(1), 1, rtol=1e-4)
    assert main(["export", str(stored), str(tmp_path / "m"), "--format", "mggcn"]) == 0
    np.testing.assert_array_equal(load(f"mggcn:{tmp_path}/m").features, rounded)
    capsys.readouterr()
    assert main(["info", str(stored), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["feature_dtype"] == "bfloat16"


def test_what_would_become_infinite_is_refused(tmp_path):
    dataset = load(SPEC)
    dataset.features[7, 3] = 3.4e38
    with pytest.raises(DataError, match=r"features: row 7, column 3 .*3.4e\+38, .*bfloat16"):
        format.write(tmp_path / "d", dataset, bfloat16=True)
    assert not (tmp_path / "d").exists()


def test_what_is_not_finite_is_found(stored):
    dataset = load(str(stored))
    dataset.features = np.array(dataset.features)
    dataset.features.view(np.uint16)[5, 2] = 0x7F80
    with pytest.raises(DataError, match="row 5, column 2 .*inf, .*finite"):
        dataset.check()


@pytest.mark.parametrize("old, new, words", [
    (b"bfloat16", b"bfloat17", "its dtype is"), (b"'<u2'", b"'<f2'", "its dtype is"), (b"(60, 5)", b"(50, 6)", "shape"),
    (b"(60, 5)", b"(61, 5)", "bytes, but its header needs")])  # fmt: skip
def test_a_damaged_header_is_refused(stored, old, new, words):
    data = (stored / FILE).read_bytes()
    assert data.count(old) == 1
    (stored / FILE).write_bytes(data.replace(old, new))
    with pytest.raises(DataError, match=f"features.npy: features: .*{words}"):
        format.open(stored)


def test_a_type_without_features(tmp_path):
    assert main(["convert", relational_runs.SPEC, str(tmp_path / "d"), "--features-dtype", "bfloat16"]) == 0
    wide, stored = load(relational_runs.SPEC, relational=True), format.open(tmp_path / "d", verify=True)
    for name, rows in Part(stored, 0, 1).typed_rows().features.items():
        np.testing.assert_array_equal(rows, kernels.widen(kernels.narrow(wide.nodes[name].features)))


@pytest.mark.parametrize("rows", ["float32", "bfloat16"])
def test_training_on_narrow_features_is_training_on_rounded_ones(stored, rounded, tmp_path, rows):
    """float32 widens the features once, exactly; if edges gather narrow rows too, they are read as they are stored."""
    dataset = load(SPEC)
    dataset.features = rounded
    format.write(tmp_path / "wide", dataset)
    one, two = (train_here(tmp_path / name, "--data", data, "--rows", rows, "--epochs", 2)
                for name, data in (("one", stored), ("two", tmp_path / "wide")))
    assert_same_curve(one, two, rtol=0)

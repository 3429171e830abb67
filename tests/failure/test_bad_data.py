"""Bad data and bad options of a run on two ranks, threads of this process: both ranks refuse them before training.

test_train_failures.py checks that two ranks of MPI tell a refusal once.
"""

import numpy as np
import pytest

from sarlite.cli import config, run
from sarlite.comm import threads
from sarlite.data import format, load
from sarlite.errors import SarliteError

DATA = "sbm:nodes=120,classes=3,features=8,degree=6"
REFUSED = ["--model", "gcn", "--hidden", "4", "--epochs", "2"]


def _nan(d):
    d.features[17, 3] = np.nan
    return "nodes/node/features.npy: features: row 17, column 3 is nan"


def _label(d):
    d.labels[np.flatnonzero(d.train)[0]] = 3
    return f"nodes/node/labels.npy: labels: node {np.flatnonzero(d.train)[0]} has label 3"


def _index(d):
    d.indices[5] = 120
    return "edges/node.edge.node/indices.npy: indices: edge 5 comes from node 120"


def _overlap(d):
    d.val[np.flatnonzero(d.train)[0]] = True
    return f"nodes/node/train.npy: train: node {np.flatnonzero(d.train)[0]} is in train and in val"


def _empty(d):
    d.train[:] = False
    return "nodes/node/train.npy: train: the train split is empty"


def _empty_val(d):
    d.val[:] = False
    return "nodes/node/val.npy: val: the val split is empty"


@pytest.fixture
def refuse(tmp_path):
    """Return a function that trains on two ranks, threads of this process, and checks that both refuse before training."""

    def refused(comm, flags):
        with pytest.raises(SarliteError) as error:
            run.train(comm, config.parse(flags))
        return str(error.value)

    def start(word, *flags):
        messages = threads.run(2, refused, [*REFUSED, "--run-dir", str(tmp_path / "run"), "--ranks", "2", *map(str, flags)])
        assert all(word in text for text in messages), messages
        assert not (tmp_path / "run" / "metrics.jsonl").exists()

    return start


@pytest.mark.parametrize("damage", [_nan, _label, _index, _overlap, _empty, _empty_val])
def test_bad_data_are_refused_by_both_ranks(refuse, damage, tmp_path):
    dataset = load(DATA)
    word = damage(dataset)
    with format.GraphWriter(tmp_path / "data") as out:  # not by `write`, which would refuse such edges
        format.copy(dataset, out)
    refuse(f"{tmp_path / 'data'}/{word}", "--data", tmp_path / "data")


def test_an_indptr_that_falls(refuse, tmp_path):
    format.write(tmp_path / "data", load(DATA))
    path = tmp_path / "data" / "edges" / "node.edge.node" / "indptr.npy"
    indptr = np.load(path)
    indptr[40] = indptr[39] - 1
    np.save(path, indptr)
    refuse(f"{path}: indptr: entry 40", "--data", tmp_path / "data", "--no-verify")


def test_a_file_that_was_changed(refuse, tmp_path):
    format.write(tmp_path / "data", load(DATA))
    path = tmp_path / "data" / "nodes" / "node" / "features.npy"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    refuse(f"{path}: features: ", "--data", tmp_path / "data")


def test_a_file_that_is_missing(refuse, tmp_path):
    format.write(tmp_path / "data", load(DATA))
    (tmp_path / "data" / "nodes" / "node" / "labels.npy").unlink()
    refuse(f"{tmp_path / 'data'}/nodes/node/labels.npy", "--data", tmp_path / "data")


@pytest.mark.parametrize("flags, word", [
    (["--data", "sbm:knots=3"], "knots"), (["--data", "/no/such/data"], "/no/such/data"), (["--partition", "halves"], "halves"),
    (["--model", "/no/file.py:Model"], "/no/file.py"), (["--heads", 2], "takes no heads"),
    (["--resume", "/no/checkpoint"], "/no/checkpoint"),
])  # fmt: skip
def test_other_bad_input(refuse, flags, word):
    refuse(word, *([] if flags[0] == "--data" else ["--data", DATA]), *flags)


def test_parts_outside_the_ranks(refuse, tmp_path):
    np.savetxt(tmp_path / "parts.txt", np.arange(120) % 3, fmt="%d")
    refuse(f"{tmp_path / 'parts.txt'}: parts: node 2 has part 2", "--data", DATA, "--partition", tmp_path / "parts.txt")

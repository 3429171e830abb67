"""Test the predict command: outputs of all nodes, of some nodes and of a layer, on any number of ranks, and failed writes."""

import errno
import os
import resource
import subprocess
import sys

import numpy as np
import pyarrow.parquet
import pytest

from sarlite import Graph, Tensor, nn
from sarlite.cli import config, predict_command, report_command
from sarlite.cli import run as training
from sarlite.cli.data_command import main as convert
from sarlite.cli.option import options_of
from sarlite.comm import Solo, threads
from sarlite.data import format, from_tables, load, node_rows
from sarlite.data.spec import load_relational
from sarlite.errors import CheckpointError, ConfigError, SarliteError
from sarlite.models import SAGE
from sarlite.schedule import schedule
from sarlite.tasks.metric_table import METRICS, find_metric
from sarlite.train import checkpoint
from tests.helpers.graph.relational_runs import SPEC, relational_run
from tests.helpers.train.owned_rows import make
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.task_data import dataset, stored
from tests.helpers.train.training_runs import DATA, MODEL, ROOT, SMALL, train_here

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train SAGE with two layers."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train_here(folder, "--dtype", "float64", "--epochs", 8, "--lr", "0.05")
    return folder


@pytest.fixture
def run(here, trained):
    return trained


RUNS = {
    "sage": ["--batch-norm"], "label inputs": ["--model", "gcn", "--label-inputs", "0.5"],
    "sgc": ["--model", "sgc"], "batches": ["--model", "gat", "--heads", "2", "--batch-size", "40", "--fanouts", "3,3", "--remote", "hec"],
    "multilabel": [], "regress": [],
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", RUNS)
def test_what_it_says_has_the_runs_score_on_any_number_of_ranks(case, here, tmp_path):
    task = case if case in METRICS else "classify"
    folder, data = stored(tmp_path, task), dataset(task)
    flags = ["--data", folder, "--dtype", "float64", "--epochs", 4, *RUNS[case]]
    if case == "sgc":
        words = [word for word in SMALL if word not in ("--hidden", "8", "--layers", "2")]
        training.train(Solo(), config.parse([*words, "--run-dir", str(tmp_path / "run"), *map(str, flags)]))
    else:
        here(tmp_path / "run", *flags)
    best = checkpoint.load_metadata(tmp_path / "run" / "checkpoint.safetensors")["best"]["scores"]
    one, labels = predict_here(tmp_path / "run", tmp_path / "one.npy")
    name = next(iter(METRICS[task]))
    metric = find_metric(task, name).make()
    test = np.flatnonzero(data.test)
    metric.add(one[test], data.labels[test])
    assert abs(metric.value(metric.counts(), Solo()) - best[f"test_{name.replace('-', '_')}"]) < 1e-12
    assert one.dtype == np.float64 and one.shape == (300, data.n_classes)
    if task == "classify":
        assert abs(one.sum(1) - 1).max() < 1e-12 and np.array_equal(labels, one.argmax(1)) and labels.dtype == np.int64
    elif task == "multilabel":
        assert np.array_equal(labels, one > 0.5) and labels.dtype == np.uint8
    else:
        assert labels is None
    for ranks, mode in ((2, "oneshot"), (3, "sar"), (4, "sa")) if case == "sage" else ((3, "sar"),):
        out = tmp_path / f"{ranks}.npy"
        predicted, same = predict_here(tmp_path / "run", out, "--ranks", ranks, "--mode", mode, "--partition", "random")
        np.testing.assert_allclose(predicted, one, rtol=1e-9, atol=1e-12)
        assert np.array_equal(same, labels) if labels is not None else same is None
    if case == "sage":  # the same number of ranks gives the same bits
        again, _ = predict_here(tmp_path / "run", tmp_path / "again.npy", "--ranks", ranks, "--mode", mode, "--partition", "random")
        assert again.tobytes() == predicted.tobytes()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_layers_rows(run, tmp_path):
    """Softmax of the last layer's rows gives the probabilities; the first layer's rows are the second layer's input."""
    whole, _ = predict_here(run, tmp_path / "p.npy")
    last, none = predict_here(run, tmp_path / "last.npy", "--embeddings", 2, "--ranks", 3)
    assert none is None and last.shape == (300, 4)
    odds = np.exp(last - last.max(1, keepdims=True))
    np.testing.assert_allclose(odds / odds.sum(1, keepdims=True), whole, rtol=1e-9, atol=1e-12)
    first, _ = predict_here(run, tmp_path / "first.npy", "--embeddings", 1, "--ranks", 2)
    model, data = SAGE(16, 4, layers=2, hidden=8, rng=nn.Random(0), dtype=np.float64), load(DATA)
    tensors, _ = checkpoint.load(run / "checkpoint.safetensors")
    model.load_state_dict({name[5:]: array for name, array in tensors.items() if name.startswith("best.")})
    graph = Graph.from_csr(data.indptr, data.indices)
    np.testing.assert_allclose(model.eval().convs[1](graph, Tensor(first)).data, last, rtol=1e-9, atol=1e-12)


def test_of_the_last_epoch_or_the_best(run, tmp_path):
    best, last = (predict_here(run, tmp_path / f"{name}.npy", "--weights", name)[0] for name in ("best", "last"))
    tensors, about = checkpoint.load(run / "checkpoint.safetensors")
    assert about["best"]["epoch"] != about["epoch"] and abs(best - last).max() > 1e-3


def test_some_nodes_in_their_order(run, tmp_path):
    """Requested ids are sent 64 at a time, and ranks hold their nodes in another order."""
    whole, labels = predict_here(run, tmp_path / "p.npy")
    nodes = np.random.default_rng(0).integers(0, 300, 500)
    (tmp_path / "n.txt").write_text("".join(f"{node}\n" for node in nodes))
    np.save(tmp_path / "n.npy", nodes.astype(np.uint16))
    for ranks, name in ((1, "n.txt"), (3, "n.npy")):
        flags = ["--nodes", tmp_path / name, "--ranks", ranks, "--order", "metis"]
        some, theirs = predict_here(run, tmp_path / "s.npy", *flags, at_once=64)
        np.testing.assert_allclose(some, whole[nodes], rtol=1e-9, atol=1e-12)
        assert np.array_equal(theirs, labels[nodes])


def test_no_plan_is_made_for_a_backward_pass(run, tmp_path, monkeypatch):
    whole, _ = predict_here(run, tmp_path / "p.npy")
    monkeypatch.setattr(schedule, "_reversed", None)
    predicted, _ = predict_here(run, tmp_path / "q.npy", "--ranks", 2, "--mode", "broadcast")
    np.testing.assert_allclose(predicted, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("numbers", [False, True])
def test_some_nodes_by_their_names(run, tmp_path, numbers, monkeypatch):
    """Node names that are numbers differ from ids; names stay with nodes when data are divided and copied."""
    data = load(DATA)
    node_names = [str(7 * node % 300) if numbers else f"ü/{node}" for node in range(300)]
    (tmp_path / "known.txt").write_text("\n".join(node_names))
    ends = zip(data.indices, np.repeat(np.arange(300), np.diff(data.indptr)))
    (tmp_path / "e.txt").write_text("".join(f"{node_names[u]} {node_names[v]}\n" for u, v in ends))
    np.save(tmp_path / "x.npy", data.features)
    spec = f"edges:{tmp_path}/e.txt,names={tmp_path}/known.txt,features={tmp_path}/x.npy,header=false"
    empty = [word for name in ("train", "val", "test") for word in ("--allow-empty", name)]
    assert convert(["convert", spec, str(tmp_path / "one"), "--memory", "4GiB", *empty]) == 0
    assert convert(["convert", str(tmp_path / "one"), str(tmp_path / "two"), *empty]) == 0
    assert convert(["partition", str(tmp_path / "two"), "--parts", "3", "--method", "random"]) == 0
    whole, _ = predict_here(run, tmp_path / "p.npy")
    nodes = np.random.default_rng(0).integers(0, 300, 90)
    (tmp_path / "n.txt").write_text("\n" + "".join(f"{node_names[node]}\n" for node in nodes))
    np.save(tmp_path / "n.npy", nodes)
    for where, file, ranks in (("one", "n.txt", 1), ("two", "n.txt", 3), ("two,drop_edge_values", "n.txt", 1), ("one", "n.npy", 2)):
        some, _ = predict_here(run, tmp_path / "s.npy", "--data", tmp_path / where, "--nodes", tmp_path / file, "--ranks", ranks)
        np.testing.assert_allclose(some, whole[nodes], rtol=1e-9, atol=1e-12)
    (tmp_path / "n.txt").write_text("\n" + 60 * f"{node_names[3]}\n" + "other\n")
    with pytest.raises(SarliteError, match="n.txt: nodes: line 62: .*'other'"):
        predict_here(run, tmp_path / "none.npy", "--data", tmp_path / "one", "--nodes", tmp_path / "n.txt", "--ranks", 2)
    pyarrow.parquet.write_table(pyarrow.table({"name": [node_names[5], "other"]}), tmp_path / "n.parquet")
    with pytest.raises(SarliteError, match="n.parquet: nodes: row 1: .*'other'"):
        predict_here(run, tmp_path / "none.npy", "--data", tmp_path / "one", "--nodes", tmp_path / "n.parquet")
    assert not (tmp_path / "none.npy").exists()


def test_some_nodes_of_a_type_by_their_names(here, tmp_path, monkeypatch):
    """Names of nodes of another type are refused."""
    data = load_relational(SPEC)
    counts = {name: data.nodes[name].n_nodes for name in ("paper", "author")}
    words = {name: [f"{name} {7 * node % n}" for node in range(n)] for name, n in counts.items()}
    for name, node_name in words.items():
        edges = {"file": {"src": node_name[:1], "dst": node_name[:1]}, "relation": [name, "to", name]}
        data.nodes[name].names = from_tables({"nodes": {name: {"file": {"id": node_name}}}, "edges": [edges]}).target_nodes.names
    format.write(tmp_path / "data", data)
    assert convert(["partition", str(tmp_path / "data"), "--parts", "3", "--method", "random"]) == 0
    relational_run(tmp_path / "run", "--model", "rgcn", "--hidden", 6)
    whole, _ = predict_here(tmp_path / "run", tmp_path / "p.npy")
    nodes = np.random.default_rng(0).integers(0, len(whole), 50)
    for ranks in (1, 3):
        (tmp_path / "n.txt").write_text("".join(f"{words['paper'][node]}\n" for node in nodes))
        flags = ["--data", tmp_path / "data", "--nodes", tmp_path / "n.txt", "--ranks", ranks]
        some, _ = predict_here(tmp_path / "run", tmp_path / "s.npy", *flags)
        np.testing.assert_allclose(some, whole[nodes], rtol=1e-9, atol=1e-12)
        (tmp_path / "n.txt").write_text("author 0\n")
        with pytest.raises(SarliteError, match="n.txt: nodes: line 1: .*'author 0'"):
            predict_here(tmp_path / "run", tmp_path / "none.npy", *flags)


def test_a_runs_folder_is_its_checkpoint(run, tmp_path):
    expected, _ = predict_here(run, tmp_path / "one.npy")
    words = ["--checkpoint", str(run), "--out", str(tmp_path / "two.npy"), "--threads", "1", "--progress", "none"]
    predict_command.predict(Solo(), *predict_command.parse(words))
    np.testing.assert_array_equal(np.load(tmp_path / "two.npy"), expected)
    assert checkpoint.load_metadata(run) == checkpoint.load_metadata(run / "checkpoint.safetensors")
    with pytest.raises(CheckpointError, match=f"checkpoint {tmp_path}/checkpoint.safetensors: no such file"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("changed", ["features", "labels", "edges"])
def test_other_data_of_the_name_that_the_checkpoint_has(changed, here, tmp_path, monkeypatch, capsys):
    """A relative path in the checkpoint that leads to other data is refused; --data selects other data."""
    data = load(DATA)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        format.write(tmp_path / folder / "d", data)
        if changed == "edges":
            data = load(f"{DATA},seed=7")
        else:
            setattr(data, changed, getattr(data, changed)[::-1].copy())
    monkeypatch.chdir(tmp_path / "one")
    here(tmp_path / "run", "--data", "d", "--epochs", 1)
    capsys.readouterr()
    predict_here(tmp_path / "run", tmp_path / "x.npy")
    assert capsys.readouterr().err == "data d, from the checkpoint\n"
    monkeypatch.chdir(tmp_path / "two")
    (tmp_path / "x.npy").unlink()
    with pytest.raises(CheckpointError, match="path d differ .*--data"):
        predict_here(tmp_path / "run", tmp_path / "x.npy", "--ranks", 2)
    assert not (tmp_path / "x.npy").exists()
    predict_here(tmp_path / "run", tmp_path / "x.npy", "--data", "d")
    assert "from the checkpoint" not in capsys.readouterr().err


def test_what_is_read_is_not_written_over(run, tmp_path, capsys):
    (tmp_path / "ids.csv").write_text("3\n5\n")
    (tmp_path / "link.csv").symlink_to("ids.csv")
    for out in ("ids.csv", "link.csv"):
        with pytest.raises(ConfigError, match=f"--out {tmp_path / out}: .*--nodes"):
            predict_here(run, tmp_path / out, "--nodes", tmp_path / "ids.csv")
    assert (tmp_path / "ids.csv").read_text() == "3\n5\n"
    for name in ("metrics.jsonl", "checkpoint.safetensors"):
        before = (run / name).read_bytes()
        assert report_command.main([str(run), "--out", str(run / name)]) == 2 and (run / name).read_bytes() == before
        assert f"--out {run / name}: this is also the input file of {run / name}" in capsys.readouterr().err


def test_a_graph_without_labels(run, tmp_path):
    """Data for prediction need only features; the classes come from the model."""
    data = load(DATA)
    edges = np.stack([data.indices, np.repeat(np.arange(300), np.diff(data.indptr))], 1)
    np.save(tmp_path / "edges.npy", edges)
    np.save(tmp_path / "x.npy", data.features)
    whole, _ = predict_here(run, tmp_path / "p.npy")
    for ranks in (1, 2):
        spec = f"edges:{tmp_path}/edges.npy,features={tmp_path}/x.npy"
        predicted, _ = predict_here(run, tmp_path / "q.npy", "--data", spec, "--ranks", ranks)
        np.testing.assert_allclose(predicted, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("ranks", [1, 2])
def test_labels_that_are_inputs_are_asked_for(ranks, here, tmp_path):
    here(tmp_path / "run", "--model", "gcn", "--label-inputs", "0.5", "--epochs", 1)
    assert checkpoint.load_metadata(tmp_path / "run" / "checkpoint.safetensors")["used"]["label_inputs"] is True
    data = load(DATA)
    np.save(tmp_path / "edges.npy", np.stack([data.indices, np.repeat(np.arange(300), np.diff(data.indptr))], 1))
    for name in ("features", "labels"):
        np.save(tmp_path / f"{name}.npy", getattr(data, name))
    np.save(tmp_path / "val.npy", np.flatnonzero(data.val))
    spec = f"edges:{tmp_path}/edges.npy,features={tmp_path}/features.npy"
    for more, lacking in (("", "labels"), (f",labels={tmp_path}/labels.npy,val_ids={tmp_path}/val.npy", "training nodes")):
        with pytest.raises(CheckpointError, match=f"labels as inputs.*--data .* {lacking}"):
            predict_here(tmp_path / "run", tmp_path / "p.npy", "--data", spec + more, "--ranks", ranks)
    assert not (tmp_path / "p.npy").exists()


def test_rows_of_learned_embeddings_go_to_their_owners(tmp_path):
    def work(comm, load):
        trainer = make(comm, seed=4 if load else 3)
        if load:
            checkpoint.restore_model(comm, trainer.model, *checkpoint.read(comm, tmp_path / "c", ("best.", "model.")))
        else:
            checkpoint.write(tmp_path / "c", trainer, {})
        return trainer.graph.node_ids, trainer.predict()

    (ids, expected), = threads.run(1, work, False)
    for n in (1, 3, 4):
        for rows, predicted in threads.run(n, work, True):
            np.testing.assert_allclose(predicted, expected[rows], rtol=1e-6, atol=1e-6)


REFUSED = {
    "its model is for 4 classes, but --data FIVE have 5 classes": ["--data", "FIVE"],
    "data sbm:nodes=40,classes=4: features: 64 columns, but the model takes 16; the model's columns have no names":
        ["--data", "sbm:nodes=40,classes=4"],
    "their task is multilabel, not classify": ["--data", "MULTILABEL"],
    "--model gcn: the model of RUN/checkpoint.safetensors is sage": ["--model", "gcn"],
    "--embeddings 3: the model sage has 2 layers": ["--embeddings", "3"],
    "--embeddings 0: layers count from 1": ["--embeddings", "0"],
    "--out HERE/x.txt: must end in .npy": ["--out", "HERE/x.txt"],
    "--out HERE/folder.npy: cannot be written: Is a directory": ["--out", "HERE/folder.npy"],
    "--out HERE/no/x.npy: cannot be written: No such file or directory": ["--out", "HERE/no/x.npy"],
    "--out HERE/file/x.npy: cannot be written: Not a directory": ["--out", "HERE/file/x.npy"],
    "HERE/out.txt: nodes: entry 1 is 300, outside 0 <= node < 300": ["--nodes", "HERE/out.txt"],
    "HERE/minus.npy: nodes: entry 0 is -1, outside": ["--nodes", "HERE/minus.npy"],
    "HERE/half.txt: nodes: ": ["--nodes", "HERE/half.txt"],
    "HERE/float.npy: nodes: expected one whole number per line, found 1 columns of float64": ["--nodes", "HERE/float.npy"],
    "HERE/mask.npy: nodes: expected one whole number per line, found 1 columns of bool": ["--nodes", "HERE/mask.npy"],
    "HERE/two.txt: nodes: expected one whole number per line, found 2 columns of int64": ["--nodes", "HERE/two.txt"],
    "HERE/none.txt: nodes: no such file": ["--nodes", "HERE/none.txt"],
    "checkpoint HERE/cut: cannot be read": ["--checkpoint", "HERE/cut"],
    "checkpoint HERE/other is not from a run: it has no best": ["--checkpoint", "HERE/other"],
    "checkpoint HERE/gone: no such file": ["--checkpoint", "HERE/gone"],
    "unknown option --node; did you mean --nodes": ["--node", "1"],
}


def test_what_cannot_be_is_refused_and_nothing_is_written(run, tmp_path):
    (tmp_path / "folder.npy").mkdir(), (tmp_path / "file").write_text("")
    for name, text in (("out", "0\n300\n"), ("half", "1.5\n"), ("two", "1 2\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    for name, array in (("minus", np.array([-1])), ("float", np.ones(2)), ("mask", np.ones(300, bool))):
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "cut").write_bytes((run / "checkpoint.safetensors").read_bytes()[:-100])
    checkpoint.save(tmp_path / "other", {"model.x": np.ones(2)}, {"epoch": 1})
    places = {"HERE": str(tmp_path), "RUN": str(run), "MULTILABEL": str(stored(tmp_path, "multilabel")),
              "FIVE": "sbm:nodes=40,classes=5,features=16"}
    before = sorted(tmp_path.rglob("*"))
    for message, flags in REFUSED.items():
        for word, place in places.items():
            message, flags = message.replace(word, place), [flag.replace(word, place) for flag in flags]
        with pytest.raises(SarliteError) as refusal:
            predict_here(run, tmp_path / "x.npy", *flags, "--ranks", 2)
        assert message in str(refusal.value)
    assert sorted(tmp_path.rglob("*")) == before
    for words in ([], ["--checkpoint", "c"]):
        with pytest.raises(SarliteError, match="is missing: predict needs --checkpoint and --out"):
            predict_command.parse(words)


def test_another_model_of_the_same_options_is_refused(here, run, tmp_path):
    """The model's file has another definition of the class than in training."""
    flags = [flag for flag in SMALL if flag not in ("--layers", "2")]
    path = tmp_path / "mine.py"
    path.write_text(MODEL)
    training.train(Solo(), config.parse([*flags, "--model", f"{path}:Mine", "--epochs", "1", "--run-dir", str(tmp_path / "mine")]))
    moved = tmp_path / "elsewhere" / "mine.py"
    moved.parent.mkdir()
    path.rename(moved)
    predict_here(tmp_path / "mine", tmp_path / "x.npy", "--model", f"{moved}:Mine", "--ranks", 2)
    moved.write_text(MODEL.replace("self.two = ", "self.second = ").replace("self.two(", "self.second("))
    with pytest.raises(CheckpointError, match="mine/checkpoint.safetensors: 'second.bias' is missing"):
        predict_here(tmp_path / "mine", tmp_path / "y.npy", "--model", f"{moved}:Mine", "--ranks", 2)


# ---- disks


def test_a_disk_that_is_full_for_one_rank(run, tmp_path, monkeypatch):
    """If the probabilities cannot be written, all ranks raise an error, old files stay, and no other file is left."""
    out, pwrite = tmp_path / "out" / "x.npy", os.pwrite
    out.parent.mkdir()
    out.write_bytes(b"what stood there")

    def full(handle, data, offset):
        if offset + len(data) > 5000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(handle, data, offset)

    monkeypatch.setattr(node_rows.os, "pwrite", full)
    for ranks in (1, 3):
        with pytest.raises(SarliteError, match="x.npy: .*No space left"):
            predict_here(run, out, "--ranks", ranks, "--partition", "contiguous")
        (tmp_path / "out" / "x.labels.npy").unlink()
        assert [(path.name, path.read_bytes()) for path in out.parent.iterdir()] == [("x.npy", b"what stood there")]


def test_the_command_and_a_file_that_may_not_grow(run, tmp_path):
    """With a limit of 4 KiB per file, the file of labels cannot be written."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # noqa: E731
    words = [sys.executable, "-m", "sarlite.predict", "--checkpoint", run / "checkpoint.safetensors", "--out", tmp_path / "x.npy",
             "--threads", "1", "--ranks", "2", "--partition", "contiguous", "--progress", "none"]  # fmt: skip
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(list(map(str, words)), env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == (f"{tmp_path}/x.labels.npy: 300 rows of 1, int64\n"
                                                    f"{tmp_path}/x.npy: 300 rows of 4, float64\n"), done.stderr
    (tmp_path / "n.txt").write_text("5\n" * 2000)
    before = (tmp_path / "x.npy").read_bytes()
    more = ["--data", stored(tmp_path, "classify"), "--nodes", tmp_path / "n.txt", "--partition", "stored", "--ranks", "1"]
    done = subprocess.run(list(map(str, [*words, *more])), env=environ, capture_output=True, text=True, timeout=60, preexec_fn=limit)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"\nerror: {tmp_path}/x.labels.npy: cannot be written: File too large\n")
    assert (tmp_path / "x.npy").read_bytes() == before and not [n for n in os.listdir(tmp_path) if n.startswith(".")]


def test_every_flag_is_on_the_page():
    page = (ROOT / "docs" / "training.md").read_text()
    for name in options_of(predict_command.PredictOptions):
        assert f"`--{name}" in page, name


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_of_ids_classes_and_probabilities(tmp_path, suffix):
    """Predictions of converted data and of the same tables agree on one rank and on two ranks."""
    words = ["gold", "iron", "tin"]
    with (tmp_path / "n.csv").open("w") as file:
        file.write("who,x,kind\n" + "".join(f"n{node},{node % 3},{words[node % 3]}\n" for node in range(60)))
    (tmp_path / "e.csv").write_text("source,target\n" + "".join(f"n{node},n{(node + 3) % 60}\n" for node in range(60)))
    spec = f"edges:{tmp_path}/e.csv,nodes={tmp_path}/n.csv,labels=kind"
    assert convert(["convert", spec, str(tmp_path / "d")]) == 0
    run, outputs = tmp_path / "run", []
    train_here(run, "--data", tmp_path / "d", "--epochs", 3)
    for data, ranks in ((tmp_path / "d", 1), (tmp_path / "d", 2), (spec, 2)):
        out = tmp_path / f"p{suffix}"
        words_ = ["--checkpoint", run / "checkpoint.safetensors", "--out", out, "--data", data, "--ranks", ranks, "--threads", 1]
        options, predict_options = predict_command.parse([str(word) for word in words_])
        arguments = predict_command.predict, options, predict_options
        threads.run(ranks, *arguments) if ranks > 1 else predict_command.predict(Solo(), *arguments[1:])
        if suffix == ".csv":
            head, *rows = [line.split(",") for line in out.read_text().splitlines()]
        else:
            table = pyarrow.parquet.read_table(out)
            head, rows = table.column_names, [list(row.values()) for row in table.to_pylist()]
        assert head == ["id", "class", "p_gold", "p_iron", "p_tin"] and [row[0] for row in rows] == [f"n{node}" for node in range(60)]
        p = np.array([row[2:] for row in rows], float)
        np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
        assert [row[1] for row in rows] == [words[at] for at in p.argmax(1)]
        outputs.append(p)
    np.testing.assert_allclose(outputs[1:], np.stack(outputs[:1] * 2), rtol=1e-4, atol=1e-6)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("module", ["predict", "explain"])
def test_help_says_which_options_are_taken_from_the_run(module):
    done = subprocess.run([sys.executable, "-m", f"sarlite.{module}", "--help"], capture_output=True, text=True, check=True)
    words = " ".join(done.stdout.split())
    for flag, following in (("--data SPEC", "--model"), ("--model MODEL", "--edge-weights")):
        assert words.partition(f" {flag} ")[2].partition(f" {following}")[0].endswith("[as the run]")

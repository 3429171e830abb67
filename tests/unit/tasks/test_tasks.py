"""Tasks: labels of each in data sets and readers, and training with their losses and metrics on any number of ranks."""

import json

import numpy as np
import pytest

from sarlite import Graph, Tensor, Trainer, nn, optim
from sarlite.cli.data_command import main as data_command
from sarlite.comm import Solo, threads
from sarlite.data import format, load
from sarlite.data.writer import META, write_meta
from sarlite.errors import ConfigError, DataError, SarliteError, ShapeError
from sarlite.models import GCN
from sarlite.tape import ops
from sarlite.tasks.node_task import NodeTask
from tests.helpers.train.data_files import write_proteins
from tests.helpers.train.task_data import dataset, stored

TOLERANCE = {"rtol": 1e-9, "atol": 1e-12}


# ---- labels


@pytest.mark.parametrize("task, columns", [("multilabel", 3), ("regress", 1), ("regress", 2)])
def test_labels_are_kept_through_disk_and_division(task, columns, tmp_path, capsys):
    data_made = dataset(task, columns)
    folder = stored(tmp_path, task, columns)
    opened = format.open(folder, verify=True)
    assert (opened.task, opened.n_classes, opened.labels.dtype) == (task, columns, data_made.labels.dtype)
    assert np.array_equal(opened.labels, data_made.labels, equal_nan=task == "regress")
    assert data_command(["partition", str(folder), "--parts", "2", "--progress", "none"]) == 0
    again = load(folder)
    assert again.task == task and np.array_equal(again.labels, data_made.labels[again.ids], equal_nan=task == "regress")
    capsys.readouterr()
    assert data_command(["info", str(folder), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["task"], printed["unlabelled"], printed["class_nodes"]) == (task, 20, None)
    assert data_command(["info", str(folder)]) == 0 and f"none: {columns} " in capsys.readouterr().out


WRONG = {
    "labels: expected uint8 (n_nodes, n_labels), as the task is multilabel, found int64 (300,)": ("classify", {"task": "multilabel"}),
    "labels: expected int64 (n_nodes,), as the task is classify, found float32 (300,)": ("regress1", {"task": "classify"}),
    "task 'rank' is not one of classify, multilabel, regress": ("classify", {"task": "rank"}),
    "classes: 4, but the labels have 3 columns": ("multilabel", {"n_classes": 4}),
    "node 0 has label 7 in column 1, neither 0 nor 1": ("multilabel", 7),
    "node 0 is in a split but has no label in column 1 (255)": ("multilabel", 255),
    "node 0 is in a split but has no label in column 1 (nan)": ("regress", np.nan),
    "node 0 has label inf in column 1, not a finite number": ("regress", np.inf),
}


@pytest.mark.parametrize("message", WRONG)
def test_labels_that_are_not_the_tasks_are_refused(message):
    task, change = WRONG[message]
    data_made = dataset(task.rstrip("1"), 1 if task.endswith("1") else 3)
    if isinstance(change, dict):
        for name, value in change.items():
            setattr(data_made, name, value)
    else:
        data_made.train[0], data_made.val[0], data_made.test[0] = True, False, False
        data_made.labels[0] = 0
        data_made.labels[0, 1] = change
    with pytest.raises(DataError) as caught:
        data_made.check()
    assert message in str(caught.value)


def test_a_directory_without_a_task_has_classes(tmp_path):
    folder = stored(tmp_path, "classify")
    meta = json.loads((folder / META).read_text())
    del meta["sha256"], meta["nodes"]["node"]["task"]
    write_meta(folder, meta)
    assert load(folder).task == "classify"
    meta["nodes"]["node"]["task"] = ["regress"]
    write_meta(folder, meta)
    with pytest.raises(DataError, match=r"meta.json: task: .*classify, multilabel, regress, .*\['regress'\]"):
        load(folder)


def test_readers_take_what_they_are_told_and_guess_nothing(tmp_path):
    (tmp_path / "e.txt").write_text("".join(f"{i} {(i + 1) % 20}\n" for i in range(20)))
    numbers = np.random.default_rng(0).integers(0, 2, (20, 3)) * 1.0
    numbers[7] = np.nan
    np.save(tmp_path / "y.npy", numbers)
    np.save(tmp_path / "one.npy", numbers[:, 0] / 2)
    csr = {"adj_indptr": np.arange(21), "adj_indices": (np.arange(20) + 1) % 20, "adj_shape": np.array([20, 20]),
           "attr_matrix": np.ones((20, 2)), "labels": numbers.astype(np.float32)}
    np.savez(tmp_path / "g.npz", **csr)
    specs = [f"edges:{tmp_path}/e.txt,labels={tmp_path}/y.npy", f"npz:{tmp_path}/g.npz,train=0.5,val=0.2"]
    for spec in specs:
        many, values = load(f"{spec},task=multilabel"), load(spec, task="regress")
        assert (many.task, many.labels.dtype, many.n_classes) == ("multilabel", np.uint8, 3) and many.labels[7].tolist() == [255] * 3
        assert np.array_equal(many.labels[:7], numbers[:7]) and not (many.train | many.val | many.test)[7]
        assert (values.task, values.n_classes) == ("regress", 3) and np.array_equal(values.labels, numbers, equal_nan=True)
        assert (many.train.sum(), many.val.sum()) in ((10, 4), (11, 4)) and (many.train | many.val | many.test).sum() == 19
        with pytest.raises(DataError, match="expected one label .*task=multilabel or task=regress"):
            load(spec)
        with pytest.raises(ConfigError, match="task: 'rank' is not one of"):
            load(f"{spec},task=rank")
        with pytest.raises(ConfigError, match="their task is multilabel, not regress"):
            load(f"{spec},task=multilabel", task="regress")
        with pytest.raises(ConfigError, match="classes: 4 .*task=regress"):
            load(f"{spec},task=regress,classes=4")
    one = f"edges:{tmp_path}/e.txt,labels={tmp_path}/one.npy"
    assert load(f"{one},task=regress").labels.shape == (20,)
    with pytest.raises(DataError, match="label 0.5, expected a whole number"):
        load(one)
    with pytest.raises(DataError, match="0.5 in column 0, .*0, 1, or NaN"):
        load(f"{one},task=multilabel")
    with pytest.raises(ConfigError, match="task: needs labels=FILE"):
        load(f"edges:{tmp_path}/e.txt,task=regress")


def test_the_layout_of_ogbn_proteins(tmp_path):
    result = load(write_proteins(tmp_path))
    assert (result.task, result.n_classes, result.labels.tolist()[0]) == ("multilabel", 3, [0, 1, 1])
    pairs = sorted(zip(result.indices.tolist(), np.repeat(np.arange(5), np.diff(result.indptr)).tolist(), result.edge_features.tolist()))
    one_way = [(0, 1, [0.5, 1]), (0, 1, [0.25, 1]), (1, 2, [1, 0]), (0, 3, [0, 0])]
    assert pairs == sorted([*one_way, *((dst, src, values) for src, dst, values in one_way)])
    means = [[0.25, 2 / 3], [1.75 / 3, 2 / 3], [1, 0], [0, 0], [0, 0]]
    np.testing.assert_allclose(result.features, means, rtol=1e-6)
    species = [[0, 1], [1, 0], [0, 1], [0, 1], [1, 0]]
    assert load(f"ogb:{tmp_path},features=species,drop_edge_values").features.tolist() == species
    both = load(f"ogb:{tmp_path},features=both,drop_edge_values")
    assert both.edge_features is None and both.features.shape == (5, 4) and both.features[:, 2:].tolist() == species
    for change, error, message in (({"raw/edge": "0,1\n1,2\n0,5\n0,1\n"}, DataError, "edge.csv.gz: edges: row 2 has node 5, outside"),
                                   ({"raw/edge-feat": "0.5,1\n"}, DataError, "edge-feat.csv.gz: edge features: 1 rows, expected 4"),
                                   ({"raw/node-label": "0,1,2\n" * 5}, DataError, "node 0 has 2.0 in column 2, expected 0, 1, or NaN")):
        with pytest.raises(error, match=message):
            load(write_proteins(tmp_path / "bad", **change))
    with pytest.raises(ConfigError, match="features: 'none' .*edges, species, both"):
        load(f"ogb:{tmp_path},features=none")


# ---- training


FLAGS = {
    "multilabel": [], "multilabel f1": ["--metric", "macro-f1", "--clip-norm", "0.5"], "regress": ["--clip-norm", "0.5"],
    "regress absolute": ["--loss", "absolute", "--metric", "mae"],
    "multilabel batches": ["--batch-size", "40", "--fanouts", "5,all", "--eval-fanouts", "all,all"],
}  # fmt: skip
KEYS = {"multilabel": "roc_auc", "multilabel f1": "macro_f1", "regress": "rmse", "regress absolute": "mae",
        "multilabel batches": "roc_auc"}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", FLAGS)
def test_a_task_trains_alike_on_any_number_of_ranks(case, here, tmp_path, capsys):
    """And goes on to the same numbers."""
    task, key = case.split()[0], KEYS[case]
    folder = stored(tmp_path, task, 1 if case == "regress" else 3)
    flags = ["--data", folder, "--dtype", "float64", "--epochs", 4, *FLAGS[case]]
    one = here(tmp_path / "one", *flags)
    shown = capsys.readouterr().out.splitlines()
    assert any(line.split()[0] == key.replace("_", "-") for line in shown) and f"test_{key}" in json.loads(shown[-1])
    here(tmp_path / "cut", *flags, "--epochs", 2)
    three = here(tmp_path / "three", *flags, "--ranks", 3, "--partition", "random")
    rest = here(tmp_path / "rest", *flags, "--resume", tmp_path / "cut" / "checkpoint.safetensors")
    for name in ("loss", "val_loss", f"train_{key}", f"val_{key}", f"test_{key}"):
        result = [[m[name] for m in epochs] for epochs in (one, three, one[:2] + rest)]
        np.testing.assert_allclose(result[1], result[0], err_msg=name, **TOLERANCE)
        assert result[2] == result[0], name
    assert one[-1]["loss"] < one[0]["loss"]


@pytest.mark.parametrize("task, columns", [("multilabel", 3), ("regress", 1)])
def test_a_resumed_run_has_the_same_labels(task, columns, here, tmp_path):
    """Told from others by every rank's, however they are divided."""
    flags = ["--data", stored(tmp_path, task, columns), "--resume", tmp_path / "run" / "checkpoint.safetensors"]
    here(tmp_path / "run", *flags[:2], "--epochs", 1)
    here(tmp_path / "more", *flags, "--epochs", 2, "--ranks", 3)
    other = dataset(task, columns)
    row = np.flatnonzero(other.test)[0]
    other.labels[row] = 1 - other.labels[row]
    format.write(flags[1], other, overwrite=True)
    for ranks in (1, 2):
        with pytest.raises(SarliteError, match="of the same size, but other values"):
            here(tmp_path / "no", *flags, "--epochs", 2, "--ranks", ranks)


def test_the_best_epoch_is_by_the_metric(here, tmp_path):
    """The lowest error decides, and the checkpoint has the number of this epoch."""
    from sarlite.train import checkpoint

    folder = stored(tmp_path, "regress", 3)
    metrics = here(tmp_path / "run", "--data", folder, "--epochs", 12, "--lr", "0.3")
    best = min(metrics, key=lambda m: m["val_rmse"])
    about = checkpoint.load_metadata(tmp_path / "run" / "checkpoint.safetensors")
    assert about["best"]["epoch"] == best["epoch"] != 12 and about["best"]["scores"]["val_rmse"] == best["val_rmse"]
    assert about["task"] == "regress"


REFUSED = {
    "their task is multilabel, not classify": ["--task", "classify"],
    "--metric of task multilabel: 'rmse' is not one of roc-auc, accuracy, micro-f1, macro-f1": ["--metric", "rmse"],
    "--loss of task multilabel: 'squared' is not one of bce": ["--loss", "squared"],
    "--metric roc-auc needs several labels or 2 classes, but there are 4 classes": ["--data", "sbm:nodes=300", "--metric", "roc-auc"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_of_the_task_is_refused(message, here, tmp_path):
    flags = ["--data", stored(tmp_path, "multilabel"), *REFUSED[message]]
    flags = [flag if flag != "sbm:nodes=300" else "sbm:nodes=300,classes=4" for flag in flags]
    with pytest.raises(SarliteError) as caught:
        here(tmp_path / "run", *flags, "--epochs", 1, "--ranks", 2)
    assert message in str(caught.value) and not (tmp_path / "run").exists()


def test_a_trainer_of_a_task():
    """Labels are looked at in the splits alone; ranks without rows take part."""
    src, dst = np.arange(6), (np.arange(6) + 1) % 6
    x = np.random.default_rng(0).standard_normal((6, 3))
    labels = np.array([[0.5, 1], [2, 3], [1, 1], [0, 0], [np.nan, 1], [1, 2]])

    def work(comm, labels, task="regress", **options):
        graph = Graph.from_edges(src, dst, 6)
        graph = graph if comm.size == 1 else graph.shard(comm, np.array([0, 0, 1, 1, 0, 1]))
        rng, ids = nn.Random(0), graph.node_ids
        trainer = Trainer(graph, GCN(3, 2, dropout=0.0, rng=rng, dtype=np.float64), x[ids], labels[ids], ids < 3, ids == 3,
                          optimizer=lambda flat: optim.SGD(flat, 0.1), rng=rng, task=NodeTask(task, **options))
        before = trainer.predict()
        return [trainer.step() for _ in range(3)], trainer.evaluate(), before

    losses, scores, before = work(Solo(), labels)
    np.testing.assert_allclose(losses[0], np.square(before - labels)[:3].mean(), **TOLERANCE)
    assert losses[0] > losses[-1] and scores["test_rmse"] is None and scores["train_rmse"] > 0
    for of_rank, reported, _ in threads.run(3, work, labels):
        np.testing.assert_allclose(of_rank, losses, **TOLERANCE)
        assert reported.keys() == scores.keys()
    unknown = np.where(np.arange(6)[:, None] == 1, np.nan, labels)
    for wrong, error, message in ((unknown, DataError, r"labels\[1\], of the train split, is in a split but has no label in column 0"),
                                  (labels[:, :1], ShapeError, r"the model's output is \(6, 2\), but the labels are \(6, 1\)"),
                                  (labels.astype(str), ShapeError, "for task regress they must be numbers")):
        with pytest.raises(error, match=message):
            work(Solo(), wrong)
    with pytest.raises(DataError, match=r"labels\[0\], .*train split, .*0.5 in column 0"):
        work(Solo(), labels, "multilabel")


def test_the_absolute_error_and_its_gradient_are_exact():
    x = Tensor(np.array([[1.0, -2.0], [3.0, 4.0]]), requires_grad=True)
    loss = ops.mae(x, np.array([[1.0, 1.0], [0.0, 8.0]]))
    loss.backward()
    assert loss.item() == (0 + 3 + 3 + 4) / 4 and x.grad.tolist() == [[0, -0.25], [0.25, -0.25]]

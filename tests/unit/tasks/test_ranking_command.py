"""Links and metrics of ranks by the command: the defaults and their line, options that stand, and popularity."""

import json

import numpy as np
import pytest

from sarlite.data import load
from sarlite.errors import ConfigError
from sarlite.tasks.link_splits import variates
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import DATA, train_here

LINK = ["--task", "link", "--model", "gcn", "--dtype", "float64", "--link-width", 8, "--link-test", 0.2, "--epochs", 2]
SAID = {
    "loss": "loss cross-entropy", "negatives": "10 negatives of each link", "negative_sampler": "drawn per-source",
    "eval_negatives": "links to validate and to test on are ranked among all destinations"}  # fmt: skip


def summary(folder):
    return json.loads((folder / "summary.json").read_text())["counted"]


@pytest.mark.parametrize("flags, said", [
    ([], [*SAID]),
    (["--loss", "bpr", "--negatives", 3], ["negative_sampler", "eval_negatives"]),
    (["--negative-sampler", "in-batch", "--eval-negatives", 20], ["loss", "negatives"]),
    (["--loss", "bce", "--negatives", 1, "--negative-sampler", "uniform", "--eval-negatives", "all"], []),
])  # fmt: skip
def test_the_first_line_says_which_defaults_follow_from_the_metric(tmp_path, capsys, flags, said):
    curve = train_here(tmp_path / "run", *LINK, "--metric", "mrr", *flags)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("metric mrr is about ranks")]
    assert lines == ([f"metric mrr is about ranks, so by default: {', '.join(SAID[name] for name in said)}"] if said else [])
    assert (curve[-1]["train_mrr"] is None) is ("--eval-negatives" not in flags or "all" in flags)
    ranked = summary(tmp_path / "run")["compared"].keys() - {"mrr"}
    assert ranked == ({"hits@10", "recall@10", "ndcg@10", "coverage@10"} if curve[-1]["train_mrr"] is None else set())


def test_what_follows_by_default_is_what_the_options_give(tmp_path):
    options_given = ["--loss", "cross-entropy", "--negatives", 10, "--negative-sampler", "per-source", "--eval-negatives", "all"]
    curves = [train_here(tmp_path / name, *LINK, "--metric", "ndcg@5", *flags) for name, flags in (("a", []), ("b", options_given))]
    assert [m["loss"] for m in curves[0]] == [m["loss"] for m in curves[1]]
    assert summary(tmp_path / "a")["compared"] == summary(tmp_path / "b")["compared"]
    other = train_here(tmp_path / "c", *LINK, "--metric", "ndcg@5", "--loss", "bpr", "--negatives", 2)
    assert other[0]["loss"] != curves[0][0]["loss"]


def test_exact_runs_have_the_same_rankings_on_any_number_of_ranks(tmp_path):
    flags = [*LINK, "--metric", "recall@5", "--numerics", "exact", "--epochs", 3]
    one = train_here(tmp_path / "1", *flags)
    for n in (2, 3):
        other = train_here(tmp_path / str(n), *flags, "--ranks", n)
        for name in ("loss", "val_loss", "val_recall@5", "test_recall@5"):
            assert [m[name] for m in other] == [m[name] for m in one], name
        assert summary(tmp_path / str(n))["compared"] == summary(tmp_path / "1")["compared"]


def test_a_model_that_does_not_beat_popularity_is_told(tmp_path, capsys):
    train_here(tmp_path / "run", *LINK, "--metric", "mrr", "--lr", 1e-9)
    out, err = capsys.readouterr()
    assert "warning: the best model does not beat popularity in mrr of validation" in err
    compared = summary(tmp_path / "run")["compared"]
    assert f"popularity   validation {100 * compared['mrr']['popularity']['val']:.2f} %, test" in out
    assert compared["mrr"]["model"]["val"] <= compared["mrr"]["popularity"]["val"]
    train_here(tmp_path / "none", *LINK, "--metric", "mrr", "--lr", 1e-9, "--no-baseline")
    assert "popularity" not in "".join(capsys.readouterr()) and "compared" not in summary(tmp_path / "none")


def test_popularity_of_a_metric_of_negatives(tmp_path, capsys):
    train_here(tmp_path / "run", *LINK)
    compared = summary(tmp_path / "run")["compared"]
    assert [*compared] == ["roc-auc"] and 0 < compared["roc-auc"]["popularity"]["val"] < 1
    assert "is about ranks" not in capsys.readouterr().out


def test_ranks_of_the_run_are_those_of_the_prediction(tmp_path, capsys):
    """The test's filter is all links, as `predict --rank` has it."""
    flags = [flag for flag in LINK if flag not in ("--link-test", 0.2)]
    curve = train_here(tmp_path / "run", *flags, "--metric", "mrr", "--link-split", split_table(tmp_path))
    best = json.loads((tmp_path / "run" / "summary.json").read_text())["best"]
    capsys.readouterr()
    predict_here(tmp_path / "run", tmp_path / "ranks.npy", "--links", tmp_path / "test.csv", "--rank")
    assert f"mrr {best['scores']['test_mrr']:.4f}," in capsys.readouterr().out and len(curve) == 2


def split_table(folder):
    """Write a table of the graph's edges, one for each pair, and a file of the test pairs."""
    data = load(DATA)
    pairs = np.stack([data.indices, np.repeat(np.arange(300), np.diff(data.indptr))], 1)
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], 1), axis=0)
    words = np.array(["train", "val", "test", "train", "train"])[np.arange(len(pairs)) % 5]
    lines = ["a,b,split", *(f"{a},{b},{word}" for (a, b), word in zip(pairs.tolist(), words))]
    (folder / "split.csv").write_text("\n".join(lines) + "\n")
    backward = variates(*pairs.T, 5) & np.uint64(1) == 0  # the direction in which a link of both is ranked
    pairs[backward] = pairs[backward, ::-1]
    np.savetxt(folder / "test.csv", pairs[words == "test"], "%d", ",", header="source,destination", comments="")
    return f"{folder / 'split.csv'},split=split"


@pytest.mark.parametrize("flags, message", [
    (["--metric", "mrr", "--eval-negatives", 0], "--eval-negatives 0 is less than 1"),
    (["--metric", "recall@5", "--eval-negatives", 20], "--metric recall@5: ranks all destinations"),
    (["--metric", "mrr", "--class-weights", "balanced"], "--class-weights balanced: applies to classes and labels, .*the task is link"),
    (["--metric", "mrr", "--threshold", "best-f1"], "--threshold best-f1: applies to classes and labels, .*the task is link"),
])  # fmt: skip
def test_what_cannot_be_is_refused(tmp_path, flags, message):
    with pytest.raises(ConfigError, match=message):
        train_here(tmp_path / "run", *LINK, *flags)

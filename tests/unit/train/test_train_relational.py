"""The command on relational graphs: N ranks from disk are one rank, runs that are resumed, predictions, and arguments that raise errors."""

import gzip
import json
import re
from functools import cache
from itertools import count

import numpy as np
import pytest

from sarlite import HeteroGraph
from sarlite.cli.data_command import main
from sarlite.cli.help import defaults_of_models
from sarlite.cli.options import OPTIONS
from sarlite.comm import threads
from sarlite.data import format
from sarlite.data.part import OwnedRows
from sarlite.data.spec import load_relational
from sarlite.errors import SarliteError
from sarlite.train import checkpoint, identity
from tests.helpers.graph.relational_runs import SPEC, relational_run
from tests.helpers.train.predicting import predict_here

pytestmark = pytest.mark.timeout(120)
MODELS = {"rgcn": ["--model", "rgcn", "--hidden", "6"], "bases": ["--model", "rgcn", "--n-bases", "2", "--embedding", "3"],
          "rgat": ["--model", "rgat", "--hidden", "3", "--heads", "2", "--attention-dropout", "0.2"]}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Four parts on disk."""
    folder = tmp_path_factory.mktemp("stored") / "d"
    format.write(folder, load_relational(SPEC))
    assert main(["partition", str(folder), "--parts", "4", "--order", "metis"]) == 0
    return folder


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    """Return the curve of a model on one rank, on the generated data."""
    folder = tmp_path_factory.mktemp("one")
    return cache(lambda name: relational_run(folder / name, *MODELS[name]))


ADAM = ["--optimizer", "adam", "--layers", "1"]
"""Adam's first steps divide by what may be rounding alone."""


def assert_same(actual, expected, rtol=1e-12):
    assert [m["epoch"] for m in actual] == [m["epoch"] for m in expected]
    for name in ("loss", "val_loss", "train_accuracy", "val_accuracy", "test_accuracy"):
        np.testing.assert_allclose([m[name] for m in actual], [m[name] for m in expected], rtol=rtol, err_msg=name)


CASES = [("rgcn", "sar", 3, "stored"), ("bases", "oneshot", 2, "drawn"), ("rgat", "sa", 2, "stored")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model, mode, n_ranks, where", CASES)
def test_ranks_are_one_rank(model, mode, n_ranks, where, stored, one_rank, tmp_path):
    data = stored if where == "stored" else SPEC
    assert_same(relational_run(tmp_path / "run", *MODELS[model], "--data", data, "--mode", mode, "--ranks", n_ranks), one_rank(model))


@pytest.mark.parametrize("model, n_ranks, flags", [
    ("rgcn", 2, ["--backward", "fetch"]), ("bases", 4, ["--backward", "fetch"]),
    ("rgat", 3, ["--backward", "fetch", "--mode", "broadcast"])])  # fmt: skip
def test_ranks_whose_relations_are_apart_are_one_rank(model, n_ranks, flags, stored, one_rank, tmp_path):
    result = relational_run(tmp_path / "run", *MODELS[model], "--data", stored, "--ranks", n_ranks, *flags)
    assert_same(result, one_rank(model))


def test_a_run_goes_on_elsewhere(stored, tmp_path):
    """Learned rows and Adam's state of them go from 3 ranks to 2, and the options come along."""
    whole = relational_run(tmp_path / "whole", *MODELS["bases"], *ADAM, "--epochs", "2")
    first = relational_run(tmp_path / "a", *MODELS["bases"], *ADAM, "--epochs", "1", "--ranks", 3)
    rest = relational_run(tmp_path / "b", "--resume", tmp_path / "a" / "checkpoint.safetensors", "--epochs", "2", "--ranks", 2,
                          "--data", stored, without_defaults=True)
    assert_same(first + rest, whole, rtol=1e-8)
    where = str(tmp_path / "a" / "checkpoint.safetensors")
    for flags, words in ((["--n-bases", "3"], "--n-bases 3: cannot change"), (["--embedding", "4"], "--embedding 4: cannot change"),
                         (["--data", SPEC.replace("seed=1", "seed=2")], "of the same size, but other values"),
                         (["--data", SPEC.replace("features=4", "features=5")], "type paper: features: 5 columns, but the model takes 4"),
                         (["--data", "sbm:nodes=100"], "takes relational graphs, but --data sbm:nodes=100 has one kind of nodes")):
        with pytest.raises(SarliteError, match=re.escape(words)):
            relational_run(tmp_path / "c", "--resume", where, "--epochs", "2", *flags, without_defaults=True)


def test_predictions_have_the_runs_score(stored, tmp_path, capsys):
    relational_run(tmp_path / "run", *MODELS["bases"], *ADAM)
    papers = load_relational(SPEC).nodes["paper"]
    best = checkpoint.load_metadata(tmp_path / "run" / "checkpoint.safetensors")["best"]["scores"]
    one, labels = predict_here(tmp_path / "run", tmp_path / "one.npy")
    assert one.shape == (papers.n_nodes, 3) and abs(one.sum(1) - 1).max() < 1e-12 and np.array_equal(labels, one.argmax(1))
    assert best["test_accuracy"] == np.mean((labels == papers.labels)[papers.test])
    three, _ = predict_here(tmp_path / "run", tmp_path / "three.npy", "--ranks", 3, "--data", stored)
    np.testing.assert_allclose(three, one, rtol=1e-12)
    (tmp_path / "nodes").write_text("5\n0\n5\n")
    some, _ = predict_here(tmp_path / "run", tmp_path / "some.npy", "--nodes", tmp_path / "nodes")
    np.testing.assert_allclose(some, one[[5, 0, 5]], rtol=1e-12)
    for flags, words in ((["--data", SPEC.replace("features=4", "features=5")], "type paper: features: 5 columns, but the model takes 4"),
                         (["--data", "sbm:nodes=90"], "takes relational graphs"),
                         (["--embeddings", "1", "--type", "book"], "--type book: the node types are paper, "),
                         (["--data", SPEC.replace("nodes=300", "nodes=310")],
                          "rows in the checkpoint, and the checkpoint has no node names to match them by")):
        with pytest.raises(SarliteError, match=re.escape(words)):
            predict_here(tmp_path / "run", tmp_path / "no.npy", *flags)
    assert not (tmp_path / "no.npy").exists()


def test_the_identity_of_data():
    """It is the same on any number of ranks, and another with other edges, features, labels or order of relations; nothing is kept."""
    def work(comm, edges, x, labels):
        graph = HeteroGraph.from_edges(edges, {"a": 6, "b": 4}, comm=comm, parts="random" if comm.size > 1 else "metis")
        ids, split = graph.node_ids, np.zeros(6, bool)
        by_rank = identity.identity(graph.of("a"), OwnedRows({"b": x[ids["b"]]}, labels[ids["a"]], *[split[ids["a"]]] * 3), 3)
        assert not graph.exchanges
        return by_rank

    src, dst = np.array([0, 1, 2, 3, 3]), np.array([5, 1, 4, 4, 0])
    edges = {("b", "to", "a"): (src, dst), ("b", "by", "a"): (np.array([1, 2]), np.array([5, 3]))}
    arguments = edges, np.arange(8.0).reshape(4, 2), np.arange(6) % 3
    (one,) = threads.run(1, work, *arguments)
    assert one["nodes"] == "a 6, b 4" and one["edges"] == "b.to.a 5, b.by.a 2" and one["features"] == "b 2" and one["classes"] == 3
    assert all(by_rank == one for by_rank in threads.run(3, work, *arguments))
    moved = {**edges, ("b", "to", "a"): (src, np.roll(dst, 1))}
    swapped = {("b", "to", "a"): (np.array([1, 1, 2, 3, 3]), dst), ("b", "by", "a"): (np.array([0, 2]), np.array([5, 3]))}  # b to 5
    others = [(moved, *arguments[1:]), (swapped, *arguments[1:]), (edges, arguments[1] + 1, arguments[2]),
              (*arguments[:2], np.zeros(6, int)),
              (dict(reversed(edges.items())), *arguments[1:])]
    by_rank = [threads.run(1, work, *other)[0] for other in others]
    assert len({one["digest"], *(other["digest"] for other in by_rank[:4])}) == 5 and by_rank[4]["edges"] == "b.by.a 2, b.to.a 5"


REFUSED = {
    "one kind's model": (["--model", "sage"], "--model sage: takes graphs with one kind of nodes and edges, but --data relational:"),
    "one kind's data": (["--data", "sbm:nodes=100"], "--model rgcn: takes relational graphs, but --data sbm:nodes=100 has one kind"),
    "rgat's bases": (["--model", "rgat", "--n-bases", "2"], "--n-bases: the model rgat takes no n_bases"),
    "heads": (["--heads", "2"], "--heads: the model rgcn takes no heads"),
    "a cache": (["--batch-size", "8", "--fanouts", "2,2", "--remote", "hec"], "--remote hec: relational graphs, such as --data"),
    "label inputs": (["--label-inputs", "0.5"], "--label-inputs: does not go"),
    "smoothing": (["--correct-and-smooth"], "--correct-and-smooth: does not go"),
    "propagated": (["--propagated", "x"], "--propagated: does not go"),
    "loops": (["--self-loops"], "--self-loops: does not go"),
    "normalized": (["--normalize-features"], "--normalize-features: does not go"),
    "task": (["--task", "regress"], "their task is classify, not regress"),
    "bases": (["--n-bases", "0"], "--n-bases 0 is less than 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_is_refused(name, tmp_path):
    flags, words = REFUSED[name]
    with pytest.raises(SarliteError, match=re.escape(words)):
        relational_run(tmp_path / "run", *MODELS["rgcn"], *flags, "--ranks", 1 + name.startswith("one kind"))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_first_layer_alone_decays(tmp_path):
    """Learned rows of the first layer decay, too, but only the rows with a gradient."""
    flags = [*MODELS["rgcn"], "--lr", "1e-9", "--weight-decay", "5e8", "--epochs", 1]  # a step halves what decays
    relational_run(tmp_path / "none", *flags, "--weight-decay", "0")
    relational_run(tmp_path / "first", *flags, "--weight-decay-on", "first")
    none, first = (checkpoint.load(tmp_path / name / "checkpoint.safetensors")[0] for name in ("none", "first"))
    for name in (name for name in none if name.startswith("model.") and "bias" not in name):  # which were 0
        shares = set(np.round(first[name] / none[name], 5).ravel().tolist())
        if name.startswith("model.inputs."):  # rows without a gradient stay
            assert 0.5 in shares and shares <= {0.5, 1.0}, name
        else:
            assert shares == ({0.5} if ".0." in name else {1.0}), name


def test_edge_values_are_used_or_left_out_as_told(tmp_path):
    """Weights of one relation change a run, and the data's identity; equal weights change no mean. On 2 ranks as on 1."""
    data = load_relational(SPEC)
    table, flags = data.edges["paper", "cites", "paper"], [*MODELS["rgcn"], "--epochs", "2"]
    for name, weight in (("even", np.full(table.n_edges, 2.0)), ("uneven", np.arange(table.n_edges) % 7 + 1.0)):
        table.edge_weight = weight.astype(np.float32)
        format.write(tmp_path / name, data)
    with pytest.raises(SarliteError, match="edge_weight: .*--edge-weights.*leaves them out"):
        relational_run(tmp_path / "run", *flags, "--data", tmp_path / "even")
    folders = (tmp_path / f"run{k}" for k in count())
    run = lambda *flags: relational_run(next(folders), *flags)  # noqa: E731
    plain = run(*flags, "--data", f"{tmp_path / 'even'},drop_edge_values")
    assert_same(run(*flags, "--data", tmp_path / "even", "--edge-weights"), plain)
    result = run(*flags, "--data", tmp_path / "uneven", "--edge-weights")
    assert [epoch["loss"] for epoch in result] != [epoch["loss"] for epoch in plain]
    for more in (["--ranks", 2], ["--ranks", 2, "--partition", "random", "--mode", "oneshot"]):
        assert_same(run(*flags, "--data", tmp_path / "uneven", "--edge-weights", *more), result)
    with pytest.raises(SarliteError, match="other values"):
        run(*flags, "--resume", tmp_path / "run3" / "checkpoint.safetensors", "--data", tmp_path / "even", "--edge-weights")
    table.edge_weight[4] = -1
    format.write(tmp_path / "negative", data)
    with pytest.raises(SarliteError, match=r"edge_weight of edge \d+ of \('paper', 'cites', 'paper'\) .*-1.0, .*finite"):
        run(*flags, "--data", tmp_path / "negative", "--edge-weights")


def test_a_target_without_features_has_learned_rows(tmp_path, capsys):
    data = load_relational(SPEC)
    data.nodes["paper"].features = None
    format.write(tmp_path / "d", data)
    flags = ["--model", "rgcn", "--hidden", "4", "--layers", "1", "--data", tmp_path / "d"]
    assert_same(relational_run(tmp_path / "two", *flags, "--ranks", 2), relational_run(tmp_path / "one", *flags))
    assert "no features, 3 classes" in capsys.readouterr().out


MODEL = """
from sarlite import fn, nn

class Mine(nn.Module):
    relational = True

    def __init__(self, n_in, n_out, nodes, *, hidden=4, rng, dtype):
        assert hidden == 6 and nodes.node_type == "paper"
        self.one = nn.Linear(n_in["paper"], n_out, rng=rng, dtype=dtype)

    def __call__(self, nodes, x):
        return nodes.graph.aggregate({("paper", "cites", "paper"): fn.copy_src(self.one(x["paper"]))}, "mean")["paper"]
"""


def test_a_model_of_your_own(tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    flags = ["--model", f"{tmp_path / 'mine.py'}:Mine", "--hidden", "6"]
    result = [relational_run(tmp_path / str(n), *flags, "--ranks", n) for n in (1, 2)]
    assert_same(*result)


def write_mag(folder, data):
    """Write a drawn data set as ogbn-mag's raw folder."""
    def put(name, rows):
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(",".join(map(str, row)) + "\n" for row in rows).encode(), 1))

    papers, stored = data.nodes["paper"], [relation for relation in data.edges if not relation[1].startswith("rev_")]
    put("raw/num-node-dict", [data.nodes.keys(), data.n_nodes_by_type.values()])
    put("raw/triplet-type-list", stored)
    put("raw/nodetype-has-label", [data.nodes.keys(), [name == "paper" for name in data.nodes]])
    for relation in stored:
        table, where = data.edges[relation], "raw/relations/" + "___".join(relation)
        destinations = np.repeat(np.arange(table.n_destinations), np.diff(table.indptr))
        rows = np.column_stack([table.indices, destinations])[np.argsort(table.edge_ids)]
        put(f"{where}/edge", rows.tolist())
        put(f"{where}/num-edge-list", [[len(rows)]])
    put("raw/node-feat/paper/node-feat", [map(repr, row) for row in papers.features.tolist()])
    put("raw/node-label/paper/node-label", papers.labels[:, None].tolist())
    for name, file in (("train", "train"), ("val", "valid"), ("test", "test")):
        put(f"split/time/paper/{file}", np.flatnonzero(getattr(papers, name))[:, None].tolist())


def test_ogbn_mags_folder_from_raw_files_to_a_trained_model(tmp_path, capsys):
    data = load_relational(SPEC)
    write_mag(tmp_path / "mag", data)
    assert main(["convert", f"mag:{tmp_path / 'mag'}", str(tmp_path / "d")]) == 0
    assert format.open(tmp_path / "d").equals(data)
    assert main(["partition", str(tmp_path / "d"), "--parts", "2"]) == 0
    flags = [*MODELS["rgcn"], *ADAM, "--epochs", "6", "--patience", "1", "--lr", "0.2", "--json"]
    one = relational_run(tmp_path / "one", *flags, "--data", f"mag:{tmp_path / 'mag'}")
    capsys.readouterr()
    two = relational_run(tmp_path / "two", *flags, "--data", tmp_path / "d", "--ranks", 2, "--trace", tmp_path / "t.json")
    assert_same(two, one, rtol=1e-8)
    assert len(one) < 6 and len(one) == 2 + max(range(len(one)), key=lambda k: (one[k]["val_accuracy"], -one[k]["val_loss"]))
    *table, line = capsys.readouterr().out.splitlines()
    said = json.loads(line)
    assert {result["name"] for result in said["relations"]} <= {"inside", "first"} and len(said["relations"]) == 4
    rows = [row for row in table if row.startswith("relation ")]
    assert len(rows) == 4 and any("author.writes.paper, 4 to 3: weight" in row for row in rows)
    assert re.search(r"302 nodes, 2,000 edges, paper 4 features, 3 classes", "\n".join(table))
    assert any(event["name"] == "fetch" for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"])


def test_the_weights_evaluation_is_chosen(one_rank, tmp_path, capsys):
    single = one_rank("rgcn")  # which prints where no test has asked for it before
    capsys.readouterr()
    result = relational_run(tmp_path / "run", *MODELS["rgcn"], "--relation-weights", "inside", "--ranks", 2)
    assert_same(result, single)
    assert capsys.readouterr().out.count(": weight inside (") == 11


def test_options_differ_by_what_the_model_takes():
    shown = defaults_of_models(OPTIONS["n_bases"]), defaults_of_models(OPTIONS["heads"])
    assert "rgcn" in shown[0] and "rgat" not in shown[0] and "rgat 4" in shown[1]

"""Labels of edges: what a table tells, training on any number of ranks against NumPy, the command and its predictions."""

import csv

import numpy as np
import pytest

from sarlite import Graph, Trainer, nn, optim
from sarlite.cli.data_command import main as data_command
from sarlite.comm import Solo, threads
from sarlite.errors import CheckpointError, ConfigError, DataError
from sarlite.models import SAGE
from sarlite.nn.decoders import DECODERS
from sarlite.tape import Tensor
from sarlite.tape.gradcheck import gradcheck
from sarlite.tasks import edge_labels
from sarlite.tasks.edge_task import EdgeTask
from sarlite.tasks.link_data import labelled_links
from sarlite.tasks.link_edges import Ends
from sarlite.tasks.link_loader import LinkLoader
from sarlite.tasks.link_splits import TEST, TRAIN, VAL
from tests.helpers.train.linked import FEATURES, N, part
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import assert_same_curve, train_here

DRAW = np.random.default_rng(3)
PAIRS = DRAW.integers(0, N, (120, 2))
PAIRS[7], PAIRS[9] = PAIRS[8], PAIRS[8, ::-1]
LABELS = {"classify": DRAW.integers(0, 3, 120), "multilabel": DRAW.integers(0, 2, (120, 3)), "regress": DRAW.standard_normal((120, 3))}
SPLIT = DRAW.integers(0, 3, 120)


def made(comm, task="classify", mode="sar", decoder="mlp", batches=False, every=slice(None), layers=2):
    """Return a trainer on this rank's share of the pairs, and its links."""
    graph, local_slice = part(comm, mode), slice(comm.rank, None, comm.size)
    links = labelled_links(graph, PAIRS[every][local_slice], LABELS[task][every][local_slice], split=SPLIT[every][local_slice])
    rng, x = nn.Random(1), FEATURES[graph.dst_ids]
    encoder = SAGE(6, 8, hidden=8, layers=layers, rng=rng, dtype=np.float64)
    predictor = nn.LinkPredictor(encoder, DECODERS[decoder](8, 3, rng=rng, dtype=np.float64))
    source = {"batches": LinkLoader(links.graph, x, links.labels, links.train, fanouts=(-1,) * layers, batch_size=16)} if batches else {}
    return Trainer(links.graph, predictor, x, links.labels, links.train, links.val, links.test, rng=rng, task=EdgeTask(task), **source,
                   optimizer=lambda flat: optim.SGD(flat, 0.05)), links


def trained(comm, **options):
    trainer, links = made(comm, **options)
    losses = [trainer.epoch(epoch) for epoch in range(3)]
    rows = np.column_stack([links.heads, links.tails, trainer.predict()])
    every = np.concatenate(comm.allgather(rows))
    return losses, trainer.evaluate(), trainer.flat.grad.copy(), every[np.lexsort(every.T[::-1])], trainer.counts


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", [
    {}, {"task": "multilabel", "mode": "oneshot", "decoder": "distmult"}, {"task": "regress", "mode": "broadcast", "decoder": "complex"},
    {"decoder": "transe", "mode": "sa"}, {"decoder": "rotate", "batches": True}, {"task": "regress", "batches": True},
])  # fmt: skip
def test_training_is_the_same_on_any_number_of_ranks(options):
    losses, scores, gradients, rows, counts = trained(Solo(), **options)
    assert len(set(losses)) == 3 and counts == {name: int((SPLIT == at).sum()) for at, name in enumerate(("train", "val", "test"))}
    for n in (2, 3):
        for other in threads.run(n, trained, **options):
            np.testing.assert_allclose(other[0], losses, rtol=1e-12)
            np.testing.assert_allclose([*other[1].values()], [*scores.values()], rtol=1e-12)
            np.testing.assert_allclose(other[2], gradients, rtol=0, atol=1e-12 * np.abs(gradients).max())
            np.testing.assert_allclose(other[3], rows, rtol=0, atol=1e-12 * np.abs(rows).max())
            assert other[4] == counts


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_a_step_in_plain_numpy(n, batches):
    """GraphSAGE of one layer and the MLP; messages pass along all edges, even edges between the step's own pairs."""
    def work(comm):
        trainer, links = made(comm, batches=batches, layers=1)
        model, (_, classes) = trainer.model, (None, None)
        graph = links.graph.nodes
        edges = np.stack([graph.edge_src_ids, np.repeat(graph.dst_ids, graph.in_degrees)[np.argsort(_places(graph))]], 1)
        edges = np.concatenate(comm.allgather(edges))
        of = trainer.batches.links(0) if batches else links.train
        local = np.column_stack([links.heads[of], links.tails[of], links.labels[of]])
        heads, tails, classes = np.concatenate(comm.allgather(local)).T
        a = np.zeros((N, N))
        np.add.at(a, (edges[:, 1], edges[:, 0]), 1.0)
        conv, decoder = model.encoder.convs[0], model.decoder
        h = FEATURES @ conv.root.weight.data + conv.root.bias.data
        h = h + a / np.maximum(a.sum(1, keepdims=True), 1) @ FEATURES @ conv.neighbour.weight.data
        hidden = np.maximum(h[heads] @ decoder.head.weight.data + decoder.head.bias.data + h[tails] @ decoder.tail.weight.data, 0)
        out = hidden @ decoder.out.weight.data + decoder.out.bias.data
        expected = np.mean(np.log(np.exp(out).sum(1)) - out[np.arange(len(out)), classes])
        return trainer.step(0), expected, len(heads)

    for actual, expected, count in threads.run(n, work):
        np.testing.assert_allclose(actual, expected, rtol=1e-10)
        assert count == (16 if batches else int((SPLIT == TRAIN).sum()))


def _places(graph):
    numbers = graph.in_edges().numbers
    return np.arange(graph.n_edges) if numbers is None else numbers


@pytest.mark.parametrize("decoder", sorted(DECODERS.keys() - {"dot"}))
def test_gradients_of_decoders_with_outputs(decoder):
    rng = nn.Random(0)
    decoder_made = DECODERS[decoder](6, 4, rng=rng, dtype=np.float64)
    head, tail = (Tensor(DRAW.standard_normal((5, 1, 6)), requires_grad=True) for _ in range(2))
    assert decoder_made(head, tail).shape == (5, 4) and decoder_made(head[:0], tail[:0]).shape == (0, 4)
    gradcheck(lambda *_: decoder_made(head, tail), (head, tail, *decoder_made.parameters()))


def test_splits_are_of_pairs_in_either_direction():
    graph = part(Solo())
    links = labelled_links(graph, np.concatenate([PAIRS, PAIRS[:, ::-1]]), np.zeros(240, np.int64), 0.2, 0.3, seed=4)
    ends = np.stack([links.heads, links.tails], 1)
    splits = [{*map(tuple, ends[rows].tolist())} for rows in (links.train, links.val, links.test)]
    assert all(splits) and [{pair[::-1] for pair in pairs} for pairs in splits] == splits and len(set.union(*splits)) > 200
    assert sorted([*links.train, *links.val, *links.test]) == [*range(240)]
    assert links.graph.nodes is graph


def test_equal_pairs_are_in_one_order_whichever_rank_passes_them():
    """Rank 0 passes the pairs in order, and the last rank all of them backwards."""
    pairs, labels = np.repeat(PAIRS[:20], 3, 0), np.arange(60) * 7 % 11
    labels = {"classes": labels, "numbers": np.stack([labels % 2 * 1.0, labels], 1)}

    def work(comm, passer, kind):
        chosen = np.arange(60)[:: 1 - 2 * passer] if comm.rank == passer else np.arange(0)
        links = labelled_links(part(comm), pairs[chosen], labels[kind][chosen], split=np.zeros(60, np.int64)[chosen])
        rows = np.column_stack([links.heads, links.tails, links.labels])
        loader = LinkLoader(links.graph, FEATURES[links.graph.nodes.dst_ids], links.labels, links.train, fanouts=(2,), batch_size=4)
        return rows.tolist(), [rows[loader.links(step)].tolist() for step in range(len(loader))]

    for kind in labels:
        assert threads.run(2, work, 0, kind) == threads.run(2, work, 1, kind)


def test_links_of_the_first_two_nodes_alone_are_no_mask():
    """With as many links as nodes, all from nodes 0 and 1, the row numbers of heads are not taken for a mask of integers."""
    pairs = np.array([[0, 2], [1, 3], [0, 3], [1, 2]])
    links = labelled_links(Graph.from_edges(*pairs.T, 4), pairs, np.array([0, 1, 1, 0]), split=np.zeros(4, np.int64))
    loader = LinkLoader(links.graph, FEATURES[:4], links.labels, links.train, fanouts=(2,), batch_size=4)
    (batch,) = loader
    assert sorted(batch.labels.tolist()) == [0, 0, 1, 1]


def test_bad_arguments_are_refused():
    graph = part(Solo())
    for words, arguments in (
        ("labels: 3 for 120 pairs", (PAIRS, np.zeros(3, np.int64))),
            ("split is int64 \\(2,\\), but .* each of 120 pairs", (PAIRS, LABELS["classify"], 0.1, 0.1, [0, 1])),
        ("labels are <U1", (PAIRS, np.full(120, "a"))), ("must be 0 train", (PAIRS, LABELS["classify"], 0.1, 0.1, np.full(120, 3))),
        ("val 0.5 and test 0.5", (PAIRS, LABELS["classify"], 0.5, 0.5)), ("pairs: pair 0 has node 40", ([[0, N]], [1])),
        ("pairs is int64 \\(2,\\)", ([0, 1], [1, 1])),
    ):
        with pytest.raises((ConfigError, DataError), match=words):
            labelled_links(graph, *arguments[:4], **({"split": arguments[4]} if len(arguments) > 4 else {}))
    with pytest.raises(ConfigError, match="bipartite graphs are not supported"):
        labelled_links(Graph.from_edges([0], [0], n_src=1, n_dst=2), [[0, 0]], [1])
    with pytest.raises(ConfigError, match="decoder dot .*one score .*3"):
        DECODERS["dot"](8, 3)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Nodes and edges with names; an edge's kind follows from its ends, and some have none."""
    folder, draw = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    kinds, n = draw.integers(0, 3, 60), 60
    with (folder / "nodes.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", *"abc"])
        rows.writerows([f"n{node}", *(np.eye(3)[kind] + 0.1 * draw.standard_normal(3))] for node, kind in enumerate(kinds))
    with (folder / "edges.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["source", "target", "kind", "amount", "part", "when", "x", "y"])
        for at, (one, other) in enumerate(draw.integers(0, n, (500, 2))):
            kind = ["red", "green", "blue"][kinds[one]] if at % 10 else ""
            split = ["train", "val", "test"][at % 7 % 3]
            rows.writerow([f"n{one}", f"n{other}", kind, kinds[other] + 0.5, split, at, at % 2, kinds[one] // 2])
    missing = [f"--allow-empty={split}" for split in ("train", "val", "test")]
    spec = f"edges:{folder}/edges.csv,src=source,dst=target,nodes={folder}/nodes.csv"
    assert not data_command(["convert", spec, str(folder / "data"), *missing])
    return folder


def test_what_a_table_tells(tables, monkeypatch):
    monkeypatch.chdir(tables)
    names = type("Names", (), {"find": staticmethod(lambda names: np.array([int(name[1:]) for name in names]))})
    result = edge_labels.read("edges.csv,labels=kind,split=part", None, 0.1, 0.2, 0, [Ends(0, 60, names=names)] * 2)
    rows = [row for row in csv.DictReader(open("edges.csv")) if row["kind"]]
    assert result.class_names == ["blue", "green", "red"] and result.n_outputs == 3 and len(rows) == 450 == len(result.labels)
    assert [result.class_names[label] for label in result.labels] == [row["kind"] for row in rows]
    assert [["train", "val", "test"][split] for split in result.split] == [row["part"] for row in rows]
    assert [f"n{one},n{other}" for one, other in result.pairs] == [f"{row['source']},{row['target']}" for row in rows]
    ends = [Ends(0, 60, names=names)] * 2
    result = edge_labels.read("edges.csv,labels=amount,time=when,src=target,dst=source", "regress", 0.1, 0.2, 0, ends)
    np.testing.assert_array_equal(result.split, np.repeat([TRAIN, VAL, TEST], [350, 50, 100]))
    assert result.labels.dtype == np.float64 and set(result.labels.tolist()) == {0.5, 1.5, 2.5} and result.class_names is None
    result = edge_labels.read("edges.csv,labels=x+y", "multilabel", 0.1, 0.2, 0, [Ends(0, 60, names=names)] * 2)
    assert result.labels.shape == (500, 2) and result.n_outputs == 2 and len(set(result.split.tolist())) == 3
    for kind, words, spec, task in (
        (ConfigError, "expected FILE,labels=COLUMN", "edges.csv", None),
        (ConfigError, "'label' is not expected", "edges.csv,label=kind", None),
        (ConfigError, "several columns are labels of task", "edges.csv,labels=x+y", None),
        (ConfigError, "expected FILE,labels", "edges.csv,labels=x,split=part,time=when", None),
        (DataError, "row 0, column 'amount': label '0.5', expected|row 0 has label [12].5", "edges.csv,labels=amount", None),
        (DataError, "no column 'none'", "edges.csv,labels=none", None), (DataError, "none.csv: no such file", "none.csv,labels=x", None),
        (DataError, "row 0, column 'part': 'train' is not a number", "edges.csv,labels=part", "regress"),
        (DataError, "'x': '0' is not one of train", "edges.csv,labels=kind,split=x", None),
        (ConfigError, "'src' is not expected", "edges.csv,labels=kind,src=", None),
    ):
        with pytest.raises(kind, match=words):
            edge_labels.read(spec, task, 0.1, 0.2, 0, [Ends(0, 60, names=names)] * 2)
    with pytest.raises(ConfigError, match="leave no labels to train on"):
        edge_labels.read("edges.csv,labels=kind", None, 0.5, 0.5, 0, [Ends(0, 60, names=names)] * 2)


def test_the_command_trains_resumes_and_predicts_by_name(tables, tmp_path):
    text = (tables / "edges.csv").read_text()
    (tmp_path / "edges.csv").write_text(text)
    flags = ["--data", tables / "data", "--edge-labels", f"{tmp_path}/edges.csv,labels=kind", "--dtype", "float64", "--link-width", 8]
    one = train_here(tmp_path / "1", *flags, "--epochs", 12, "--lr", 0.05)
    assert one[-1]["test_accuracy"] > 0.95
    other = train_here(tmp_path / "2", *flags, "--epochs", 6, "--lr", 0.05, "--ranks", 2, "--partition", "random")
    other += train_here(tmp_path / "2", *flags, "--lr", 0.05, "--resume", tmp_path / "2" / "checkpoint.safetensors", "--epochs", 12)[6:]
    assert_same_curve(other, one, rtol=1e-9)
    rows = [row for row in csv.DictReader(open(tables / "edges.csv"))][:40]
    with (tmp_path / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["source", "target"], *([row["source"], row["target"]] for row in rows)])
    with pytest.raises(ValueError):  # a table is no .npy file
        predict_here(tmp_path / "1", tmp_path / "kinds.csv", "--links", tmp_path / "pairs.csv", "--ranks", 2)
    with (tmp_path / "kinds.csv").open() as file:
        predicted_rows = [*csv.DictReader(file)]
    assert [*predicted_rows[0]] == ["source", "destination", "class", "p_blue", "p_green", "p_red"]
    assert [row["source"] for row in predicted_rows] == [row["source"] for row in rows]
    labelled_pairs = [(prediction["class"], row["kind"]) for prediction, row in zip(predicted_rows, rows) if row["kind"]]
    assert np.mean([one == other for one, other in labelled_pairs]) > 0.9
    np.testing.assert_allclose([sum(float(row[f"p_{name}"]) for name in ("blue", "green", "red")) for row in predicted_rows], 1, rtol=1e-12)
    (tmp_path / "odd.csv").write_text("source,target,kind\nn1,n2,red\nn1,n99,red\n")
    with pytest.raises(DataError, match="odd.csv: row 1, column 'target': .*'n99'"):
        train_here(tmp_path / "3", *flags[:2], "--edge-labels", f"{tmp_path}/odd.csv,labels=kind")
    with pytest.raises(ConfigError, match="--links or --embeddings: .*--edge-labels"):
        predict_here(tmp_path / "1", tmp_path / "x.npy")
    for wrong in (["--top", 3], ["--links", tmp_path / "pairs.csv", "--rank"]):
        with pytest.raises(ConfigError, match="classify, .*must be link"):
            predict_here(tmp_path / "1", tmp_path / "x.npy", *wrong)
    (tmp_path / "edges.csv").write_text(text.replace("red", "blue", 1))
    with pytest.raises(CheckpointError, match="edge labels .*other labels"):
        train_here(tmp_path / "2", *flags, "--resume", tmp_path / "2" / "checkpoint.safetensors", "--epochs", 13)


@pytest.mark.parametrize("flags", [["--task", "regress", "--decoder", "distmult"], ["--batch-size", 64, "--fanouts", "all,all"]])
def test_other_tasks_and_batches_by_the_command(tables, tmp_path, flags):
    labels = "amount" if "regress" in flags else "kind"
    flags = ["--data", tables / "data", "--edge-labels", f"{tables}/edges.csv,labels={labels},split=part", *flags, "--epochs", 3]
    one = train_here(tmp_path / "1", *flags, "--dtype", "float64")
    two = train_here(tmp_path / "2", *flags, "--dtype", "float64", "--ranks", 2)
    key = "test_rmse" if labels == "amount" else "test_accuracy"
    np.testing.assert_allclose([m["loss"] for m in two], [m["loss"] for m in one], rtol=1e-10)
    np.testing.assert_allclose([m[key] for m in two], [m[key] for m in one], rtol=1e-10)
    train_here(tmp_path / "32", *flags)  # of float32


@pytest.mark.parametrize(("words", "flags"), [
    ("labels of edges are predicted, but --task link", ["--task", "link"]), ("--negatives has no effect", ["--negatives", 2]),
    ("so --link-val and --link-test must be shares", ["--link-val", "x.csv"]),
    ("not supported for links yet", ["--mfg"]),
    ("--link-val and --link-test have no effect", ["--link-val", 0.1, "--edge-labels", "x.csv,labels=x,split=y"]),
    ("labels of edges are predicted|trains on features that were propagated", ["--model", "sgc"]),
])  # fmt: skip
def test_what_does_not_go_with_labels_of_edges(tmp_path, words, flags):
    with pytest.raises(ConfigError, match=words):
        train_here(tmp_path / "run", "--edge-labels", "x.csv,labels=x", *flags)
    assert not (tmp_path / "run").exists()

"""Links: their splits leak nothing, negatives are none, and training on them is the same on any number of ranks."""

import warnings

import numpy as np
import pytest

from sarlite import Graph, Tensor, Trainer, nn, no_grad, optim
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, DataError
from sarlite.graph.link_graph import LinkGraph
from sarlite.models import GAT, GCN, SAGE, SGC
from sarlite.nn.decoders import DECODERS
from sarlite.tape.gradcheck import gradcheck
from sarlite.tasks.edge_task import EdgeTask
from sarlite.tasks.link_data import TEST, TRAIN, VAL, split_links, without_links
from sarlite.tasks.link_edges import linked
from sarlite.tasks.link_task import LinkTask
from sarlite.tasks.loss_table import LOSSES
from tests.helpers.train.linked import DRAW, FEATURES, PAIRS, PARTS, N, part, trainer, whole

EDGES = {tuple(pair) for pair in PAIRS.tolist() if pair[0] != pair[1]}
RUNS = [
    {}, {"model": GAT, "mode": "oneshot", "sampler": "per-source", "loss": "cross-entropy", "metric": "mrr", "eval_negatives": 4},
    {"mode": "broadcast", "decoder": "distmult", "loss": "bpr", "metric": "ap", "negatives": 3, "directed": True},
    {"mode": "sa", "decoder": "complex", "loss": "margin", "metric": "hits@3", "eval_negatives": 5, "disjoint": 0.4},
    {"mode": "oneshot", "sampler": "in-batch", "negatives": 2, "loss": "bpr"},
    {"decoder": "transe", "weights": True, "lr": 0.01}, {"decoder": "rotate", "weights": True, "disjoint": 0.3, "lr": 0.01},
]  # fmt: skip


def ids_of(graph):
    """Return the edges of a rank's part as ids, (n, 2)."""
    return np.stack([graph.edge_src_ids, np.repeat(graph.dst_ids, graph.in_degrees)[np.argsort(_places(graph))]], 1)


def _places(graph):
    numbers = graph.in_edges().numbers
    return np.arange(graph.n_edges) if numbers is None else numbers


def split_of(comm, directed=False, **options):
    """By split the links, and the edges of messages in evaluation and in training, of all ranks."""
    links = split_links(part(comm, directed=directed), 0.15, 0.2, seed=3, **options)
    ends = np.stack([links.heads, links.tails], 1)
    training = links.graph.draw(0, links.train).nodes
    local = [ends[links.train], ends[links.val], ends[links.test], ids_of(links.graph.nodes), ids_of(training)]
    return [{tuple(pair) for rank in ranks for pair in rank.tolist()} for ranks in zip(*comm.allgather(local))], links.undirected


@pytest.mark.parametrize("directed", [False, True])
def test_a_split_leaks_nothing_and_is_the_same_on_any_number_of_ranks(directed):
    result, undirected = split_of(Solo(), directed)
    train, val, test, messages, training = result
    assert undirected is not directed and messages == training
    assert {tuple(sorted(pair)) for pair in train | val | test} == EDGES and len(train) + len(val) + len(test) == len(EDGES)
    assert len(val) > 5 and len(test) > 10
    for u, v in val | test:
        assert (u, v) not in messages and (v, u) not in messages
    others = train if directed else train | {(v, u) for u, v in train}
    assert {(u, v) for u, v in messages if u != v} == others
    assert {(u, v) for u, v in messages if u == v} >= {tuple(pair) for pair in PAIRS.tolist() if pair[0] == pair[1]}
    for n in (2, 3):
        assert threads.run(n, split_of, directed) == [(result, undirected)] * n


def test_opposite_edges_of_a_directed_graph_are_of_one_split():
    draw = np.random.default_rng(1)
    graph = Graph.from_edges(*draw.integers(0, N, (2, 400)), N)
    links = split_links(graph, 0.2, 0.3)
    split = dict(zip(zip(links.heads.tolist(), links.tails.tolist()), np.select(
        [np.isin(np.arange(len(links.heads)), rows) for rows in (links.train, links.val, links.test)], [TRAIN, VAL, TEST])))
    both = [pair for pair in split if pair[::-1] in split]
    assert not links.undirected and len(both) > 30 and all(split[pair] == split[pair[::-1]] for pair in both)


def test_disjoint_links_bring_no_messages_in_training():
    (train, val, test, messages, training), _ = split_of(Solo(), disjoint=0.4)
    assert 10 < len(train) < len(EDGES) - len(val) - len(test)
    assert {(u, v) for pair in train for u, v in (pair, pair[::-1])} == messages - training
    assert threads.run(2, split_of, disjoint=0.4)[0][0] == [train, val, test, messages, training]


HARD = np.stack([np.repeat(np.arange(N // 2), 4), DRAW.integers(0, N, 2 * N)], 1)
"""Tails of half of the heads; some are links."""


def negatives_of(comm, sampler, **options):
    """Return the candidates of each link in evaluation and in two steps. Each rank passes some of the hard pairs."""
    sampler = HARD[comm.rank :: comm.size] if sampler == "hard" else sampler
    links, collected = split_links(part(comm), 0.15, 0.2, negatives=2, eval_negatives=6, sampler=sampler, seed=3, **options), []
    ids = np.concatenate(comm.allgather(links.graph.nodes.dst_ids))
    for graph in (links.graph, links.graph.draw(0, links.train), links.graph.draw(1, links.train)):
        pairs = np.stack(np.broadcast_arrays(ids[graph.heads], ids[graph.tails]), 2)
        collected.append({tuple(map(tuple, row.tolist())) for rank in comm.allgather(pairs) for row in rank})
    return collected


@pytest.mark.parametrize("sampler", ["uniform", "per-source", "in-batch", "hard"])
def test_negatives_are_no_links_and_the_same_on_any_number_of_ranks(sampler):
    scored, *steps = result = negatives_of(Solo(), sampler)
    (train, val, test, *_), _ = split_of(Solo())
    assert {row[0] for row in scored} == train | val | test and {row[0] for row in steps[0]} == train
    for row in scored:
        assert len(row) == 7 and all(tuple(sorted(pair)) not in EDGES and pair[0] != pair[1] for pair in row[1:])
    link_pairs = {tuple(sorted(pair)) for pair in train}
    assert all(tuple(sorted(pair)) not in link_pairs and pair[0] != pair[1] for step in steps for row in step for pair in row[1:])
    assert any(tuple(sorted(pair)) in EDGES for step in steps for row in step for pair in row[1:])  # training knows no others
    assert steps[0] != steps[1]
    if sampler != "uniform":
        assert all(pair[0] == row[0][0] for row in scored for pair in row)
    if sampler == "in-batch":
        seen = {pair[1] for pair in train}
        assert seen != {*range(N)}
        assert np.mean([pair[1] in seen for row in steps[0] for pair in row[1:]]) > 0.95
    if sampler == "hard":
        hard = {(u, v) for u, v in HARD.tolist() if (min(u, v), max(u, v)) not in EDGES and u != v}
        for (u, _), *others in scored:
            each_part = {pair for pair in hard if pair[0] == u}
            assert each_part <= {*others} if len(each_part) <= 6 else {*others} <= each_part
            assert not each_part or {*others} <= each_part
    for n in (2, 3):
        assert threads.run(n, negatives_of, sampler) == [result] * n


def dense(comm):
    """Each node has links to all but a few others; some nodes, such as 3, to all, and each node to node 5."""
    a = np.random.default_rng(5).random((N, N)) < 0.95
    a[3], a[:, 5] = True, True
    np.fill_diagonal(a, False)
    graph = Graph.from_edges(*np.nonzero(a), N)
    return a, graph if comm.size == 1 else graph.shard(comm, PARTS[comm.size])


@pytest.mark.filterwarnings("ignore:links")
@pytest.mark.parametrize("sampler", ["uniform", "per-source", "in-batch"])
def test_negatives_are_never_links_however_many_there_are(sampler):
    """If nearly all pairs are links, negatives are drawn evenly from the other pairs, the same on any number of ranks."""
    def work(comm):
        a, graph = dense(comm)
        links = split_links(graph, 0.15, 0.2, negatives=3, eval_negatives=3, sampler=sampler, seed=3)
        ids, result = np.concatenate(comm.allgather(graph.dst_ids)), []
        trained = np.zeros((N, N), bool)
        for rows in comm.allgather(np.stack([links.heads, links.tails])[:, links.train]):
            trained[tuple(rows)] = True
        trained[3] |= sampler != "uniform"
        for link_graph, link_pairs in ((links.graph, a), (links.graph.draw(0, links.train), trained),
                                       (links.graph.draw(1, links.train), trained)):
            pairs = np.stack(np.broadcast_arrays(ids[link_graph.heads], ids[link_graph.tails]), 2)
            heads, tails = pairs[:, 1:].reshape(-1, 2).T
            assert not link_pairs[heads, tails].any() and (heads != tails).all()
            result.append(sorted(map(str, np.concatenate(comm.allgather(pairs)).tolist())))
        free, drawn = ~a & ~np.eye(N, dtype=bool), np.zeros((2, N, N))
        for heads, tails in zip(links.graph.heads, links.graph.tails):  # of one rank, whose rows are ids
            np.add.at(drawn[0], (heads[1:] if sampler == "uniform" else heads.repeat(3), tails[1:]), 1)
            drawn[1] += 3 * (free / free.sum() if sampler == "uniform" else
                             free * (np.arange(N) == heads[0])[:, None] / max(free[heads[0]].sum(), 1))
        return result, *drawn[:, free]

    result, drawn, expected = work(Solo())
    assert drawn.sum() == 3 * len(result[0]) and (np.abs(drawn - expected) < 4.5 * np.sqrt(expected)).all()
    for n in (2, 3):
        assert [other for other, *_ in threads.run(n, work)] == [result] * n


def test_links_of_a_source_that_is_linked_to_all_are_left_out_and_it_is_said():
    a, graph = dense(Solo())
    full = np.flatnonzero(a.sum(1) == N - 1)
    with pytest.warns(RuntimeWarning, match=f"links: {39 * len(full)} of 1,4.. links are left out"):
        links = split_links(graph, 0.15, 0.2, sampler="per-source")
    assert 3 in full and not np.isin(full, links.heads).any() and 5 in links.tails and 3 in links.graph.nodes.edge_src_ids
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert 3 in split_links(graph, 0.15, 0.2).heads  # "uniform" draws other sources
    every = Graph.from_edges(*np.nonzero(~np.eye(4, dtype=bool)), 4)
    with pytest.raises(DataError, match="all pairs are links"):
        split_links(every, 0.15, 0.2)


def test_evaluations_negatives_may_be_links_or_of_another_sampler():
    """Benchmarks without a filter have such negatives."""
    reported, *_ = negatives_of(Solo(), "per-source", filtered=False)
    assert any(tuple(sorted(pair)) in EDGES for row in reported for pair in row[1:])
    one, *steps = negatives_of(Solo(), "in-batch", eval_sampler="uniform")
    other, *uniform = negatives_of(Solo(), "uniform")
    assert one == other and steps[0] != uniform[0]
    assert threads.run(2, negatives_of, "in-batch", eval_sampler="uniform", filtered=False)[1][0] == negatives_of(
        Solo(), "uniform", filtered=False)[0]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", RUNS, ids=lambda options: options.get("decoder", "dot") + options.get("mode", ""))
def test_training_is_the_same_on_any_number_of_ranks(options):
    def work(comm):
        made_trainer, _ = trainer(comm, **options)
        return [made_trainer.step() for _ in range(3)], made_trainer.evaluate(), made_trainer.flat.grad.copy()

    losses, scores, gradients = work(Solo())
    assert len(set(losses)) == 3 and np.abs(gradients).max() > 1e-3
    for n in (2, 3):
        for other, their_scores, theirs in threads.run(n, work):
            np.testing.assert_allclose(other, losses, rtol=1e-12)
            np.testing.assert_allclose([*their_scores.values()], [*scores.values()], rtol=1e-12)
            np.testing.assert_allclose(theirs, gradients, rtol=0, atol=1e-12 * np.abs(gradients).max())


def test_a_step_and_an_evaluation_in_plain_numpy():
    """GCN of one layer, dot, binary cross entropy, ROC-AUC; messages pass along training links and self loops."""
    links, rng = split_links(whole(), 0.15, 0.2, negatives=2, sampler="per-source", seed=3), nn.Random(1)
    predictor = nn.LinkPredictor(GCN(6, 8, layers=1, dropout=0, rng=rng, dtype=np.float64), nn.Dot())
    made_trainer = Trainer(links.graph, predictor, FEATURES, links.labels, links.train, links.val, links.test, task=LinkTask(), rng=rng,
                   optimizer=lambda flat: optim.SGD(flat, 1e-30))  # fmt: skip
    a = np.eye(N)
    for u, v in zip(links.heads[links.train], links.tails[links.train]):
        a[u, v] = a[v, u] = 1
    degree = a.sum(1)
    h = a / np.sqrt(np.outer(degree, degree)) @ FEATURES @ predictor.encoder.convs[0].linear.weight.data

    def scores(graph):
        return np.array([[h[u] @ h[v] for v in row] for (u,), row in zip(graph.heads, graph.tails)])

    step = scores(links.graph.draw(0, links.train))
    truth = np.arange(3) == np.zeros((len(step), 1))
    p = 1 / (1 + np.exp(-step))
    np.testing.assert_allclose(made_trainer.step(), -np.where(truth, np.log(p), np.log(1 - p)).mean(), rtol=1e-12)
    tested = scores(links.graph)[links.test]
    pairs = tested[:, :1] - tested[:, 1:].reshape(1, -1)
    np.testing.assert_allclose(made_trainer.evaluate()["test_roc_auc"], ((pairs > 0) + (pairs == 0) / 2).mean(), rtol=1e-12)
    np.testing.assert_allclose(made_trainer.predict(), scores(links.graph), rtol=1e-12)


@pytest.mark.parametrize("loss", ["bpr", "margin", "cross-entropy"])
def test_losses_are_their_formulas(loss):
    scores = np.random.default_rng(2).standard_normal((5, 4))
    rows, d = np.array([0, 3]), scores[[0, 3], 1:] - scores[[0, 3], :1]
    expected = {"bpr": np.log1p(np.exp(d)).sum() / 3, "margin": np.maximum(0, 1 + d).sum() / 3,
                "cross-entropy": np.log1p(np.exp(d).sum(1)).sum()}[loss]  # fmt: skip
    result = LinkTask(loss).loss(Tensor(scores), np.zeros(5, int), rows, 7)
    np.testing.assert_allclose(result.item(), expected / 7, rtol=1e-12)


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_are_their_formulas(name):
    draw, decoder = np.random.default_rng(3), DECODERS[name](6, rng=nn.Random(0), dtype=np.float64)
    h, t = draw.standard_normal((2, 1, 6)), draw.standard_normal((2, 3, 6))
    r = draw.standard_normal(6)
    if name not in ("dot", "mlp"):
        decoder.relation.data[:] = r
    hidden = [getattr(decoder, end).weight.data for end in ("head", "tail", "out")] if name == "mlp" else np.zeros((3, 6, 6))
    ch, ct, cr = (x[..., :3] + 1j * x[..., 3:] for x in (h, t, r))
    expected = {"dot": (h * t).sum(-1), "distmult": (h * r * t).sum(-1), "complex": (ch * cr * ct.conj()).sum(-1).real,
                "transe": 12 - abs(h + r - t).sum(-1), "rotate": 12 - abs(ch * cr / abs(cr) - ct).sum(-1),
                "mlp": (np.maximum(h @ hidden[0] + t @ hidden[1], 0) @ hidden[2])[..., 0]}[name]  # fmt: skip
    np.testing.assert_allclose(decoder(Tensor(h), Tensor(t)).data, expected, rtol=1e-9)
    gradcheck(lambda a, b, *_: decoder(a, b), [Tensor(h), Tensor(t), *decoder.parameters()])


@pytest.mark.parametrize("loss", LOSSES["link"])
@pytest.mark.parametrize("name", sorted(DECODERS.keys() - {"dot"}))
def test_no_parameter_of_a_decoder_has_rounding_errors_for_a_gradient(name, loss):
    """Adam divides a gradient by its size, so a parameter that no score depends on would follow the number of ranks."""
    made_trainer, _ = trainer(Solo(), decoder=name, loss=loss, negatives=3)
    made_trainer.step()
    assert all(np.abs(p.grad).max() > 1e-6 for p in made_trainer.model.decoder.parameters())


def test_of_several_relations_mlp_learns_no_constant():
    decoder, draw = DECODERS["mlp"](6, 4, rng=nn.Random(0)), np.random.default_rng(0)
    heads, tails = (Tensor(draw.standard_normal((5, n, 6)).astype(np.float32)) for n in (1, 3))
    scores = decoder(heads, tails, np.array([0, 1, 2, 3, 0]))
    LinkTask("bpr").loss(scores, np.zeros(5, int), np.arange(5), 5).backward()
    assert decoder.out.bias.grad is None or not decoder.out.bias.grad.any()


@pytest.mark.parametrize("loss", ["bpr", "cross-entropy"])
def test_scores_of_mlp_after_adam_are_one_ranks_in_float32(loss):
    def work(comm):
        graph, rng = part(comm), nn.Random(1)
        links = split_links(graph, 0.15, 0.2, seed=3, negatives=3)
        predictor = nn.LinkPredictor(GCN(6, 8, layers=1, dropout=0, rng=rng), DECODERS["mlp"](8, rng=rng))
        made_trainer = Trainer(links.graph, predictor, FEATURES[graph.dst_ids].astype(np.float32), links.labels, links.train, links.val,
                       links.test, rng=rng, task=LinkTask(loss), optimizer=lambda flat: optim.Adam(flat, 0.01))
        for _ in range(10):
            made_trainer.step()
        rows = np.concatenate(comm.allgather(np.column_stack([links.heads, links.tails, made_trainer.predict()])))
        return rows[np.lexsort((rows[:, 1], rows[:, 0]))]

    expected = work(Solo())
    for n in (2, 3):
        for of_rank in threads.run(n, work):
            np.testing.assert_allclose(of_rank, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("metric", ["roc-auc", "ap", "mrr", "hits@3"])
def test_ties_up_to_rounding_count_alike_in_exact_numerics(metric):
    """All nodes have the same features, so means of neighbours are equal up to the order of sums."""
    x = np.random.default_rng(4).standard_normal((1, 6)).astype(np.float32).repeat(N, 0)

    def work(comm, numerics):
        graph, rng = part(comm), nn.Random(1)
        links = split_links(graph, 0.15, 0.2, seed=3, eval_negatives=5, sampler="per-source")
        predictor = nn.LinkPredictor(SAGE(6, 8, hidden=8, dropout=0, rng=rng), nn.Dot())
        made_trainer = Trainer(links.graph, predictor, x[graph.dst_ids], links.labels, links.train, links.val, links.test, rng=rng,
                       task=LinkTask(metric=metric), optimizer=lambda flat: optim.Adam(flat, 0.01), numerics=numerics)
        made_trainer.step()
        return [value for name, value in made_trainer.evaluate().items() if name != "val_loss"]

    expected = work(Solo(), "exact")
    for n in (2, 3):
        assert threads.run(n, work, "exact") == [expected] * n


def test_weights_stay_with_their_edges():
    def work(comm):
        graph = without_links(linked(part(comm, weights=True), None), 0.15, 0.2, 3)
        np.testing.assert_array_equal(graph.edge_weight, 1.0 + graph.edge_src_ids)
        return graph.n_edges

    assert work(Solo()) == sum(threads.run(3, work)) < whole().n_edges


def test_what_cannot_be_is_refused():
    graph, links = whole(), split_links(whole(), 0.15, 0.2)
    for words, call in {
        "val 0.6 and test 0.4 leave no links": lambda: split_links(graph, 0.6, 0.4),
        "disjoint is 1, but": lambda: split_links(graph, disjoint=1),
        "negatives is 0, but": lambda: split_links(graph, negatives=0),
        "sampler 'hard' is not one of uniform, per-source": lambda: split_links(graph, sampler="hard"),
        "sampler is int64 .3,., but must be pairs of ids": lambda: split_links(graph, sampler=np.arange(3)),
        "filtered is 1, but must be True or False": lambda: split_links(graph, filtered=1),
        "graph is a LinkGraph, but must be a Graph or a HeteroGraph": lambda: split_links(links.graph),
        "links: ids must be 0 .. 1, but a node has id 9": lambda: split_links(
            Graph.from_part(Solo(), [0, 1, 2], [1, 0], node_ids=[0, 9])),
        "hits@10: needs 10 negatives of each link, but in evaluation there are 1": lambda: trainer(Solo(), metric="hits@10"),
        "SGC trains on features that were propagated": lambda: nn.LinkPredictor(SGC(6, 8, rng=nn.Random(0)), nn.Dot()),
        "takes complex numbers, so an even width": lambda: nn.ComplEx(5, rng=nn.Random(0)),
        "but graph is a Graph": lambda: nn.LinkPredictor(GCN(6, 8, rng=nn.Random(0)), nn.Dot())(graph, Tensor(FEATURES)),
    }.items():  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            call()
    rng, arguments = nn.Random(0), (FEATURES, links.labels, links.train)
    predictor = nn.LinkPredictor(GCN(6, 8, rng=rng, dtype=np.float64), nn.Dot())
    common = {"optimizer": lambda flat: optim.SGD(flat, 0.1), "rng": rng}
    for words, built, options in (
        ("needs a Graph or NodeType, but graph is a LinkGraph", predictor, {}),
        ("the task must be LinkTask", predictor, {"task": EdgeTask()}),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            Trainer(links.graph, built, *arguments, **common, **options)
    with pytest.raises(ConfigError, match="LinkTask .*LinkGraph, .*is a Graph"):
        Trainer(graph, predictor, FEATURES, np.zeros(N, int), slice(9), task=LinkTask(), **common)
    with pytest.raises(DataError, match="for links .*zeros"):
        Trainer(links.graph, predictor, FEATURES, links.labels + 1, links.train, task=LinkTask(), **common)
    one_rank = Trainer(links.graph, GCN(6, 8, rng=rng, dtype=np.float64), *arguments, task=LinkTask(), **common)
    with pytest.raises(ConfigError, match="give the model of nodes a decoder"):
        one_rank.step()


def test_narrow_rows_round_what_edges_gather_and_not_what_decoders_take():
    """Bits of a row alone are rounded: N changes what float32 does, and the ends' rows come as they are."""
    def work(comm, rows):
        w = whole()
        edges = w.in_edges()
        graph = Graph.from_part(comm, edges.indptr, edges.indices, row_dtype=rows) if comm.size == 1 else \
            w.shard(comm, PARTS[comm.size], mode="oneshot", row_dtype=rows)
        links, rng = split_links(graph, 0.15, 0.2, seed=3, negatives=2, disjoint=0.3), nn.Random(1)
        predictor = nn.LinkPredictor(GCN(6, 8, hidden=8, rng=rng), nn.DistMult(8))
        made_trainer = Trainer(links.graph, predictor, FEATURES[graph.dst_ids].astype(np.float32), links.labels, links.train, links.val,
                       links.test, task=LinkTask(), optimizer=lambda flat: optim.Adam(flat, 0.02), rng=rng)
        losses = [made_trainer.epoch(epoch) for epoch in range(4)]
        ends = [graph.schedule.row_format.name for graph in links.graph._slots]
        return losses, links.graph.nodes.schedule.row_format.name, links.graph.draw(0, links.train).nodes.schedule.row_format.name, ends

    narrow, wide = work(Solo(), "bfloat16"), work(Solo(), "float32")
    assert narrow[1:] == ("bfloat16", "bfloat16", ["float32", "float32"]) and wide[1] == "float32"
    assert 1e-6 < np.abs(np.array(narrow[0]) - wide[0]).max() < 0.01
    for n in (2, 3):
        for of_rank in threads.run(n, work, "bfloat16"):
            np.testing.assert_allclose(of_rank[0], narrow[0], rtol=1e-5)
            assert of_rank[1:] == narrow[1:]


@pytest.mark.parametrize("per_head", [False, True])
def test_scores_in_pieces_are_those_of_all_at_once(per_head):
    """Ranks have other numbers of rows, one has none; with a gradient all are scored at once."""
    def work(comm):
        graph = part(comm)
        draw = np.random.default_rng(comm.rank)
        n = 0 if comm.size == 3 and comm.rank == 1 else 5 + 9 * comm.rank
        heads, tails = draw.integers(0, N, (n, 3)), draw.integers(0, N, (n, 3))
        heads = heads[:, :1] if per_head else heads
        h = Tensor(DRAW.standard_normal((len(graph.dst_ids), 4)), requires_grad=True)
        whole, pieces = LinkGraph(graph, heads, tails), LinkGraph(graph, heads, tails, at_once=7)
        with no_grad():
            graphs = [link_graph.score(nn.Dot(), h).data for link_graph in (whole, pieces, pieces)]
        counts, held = pieces._n_pieces, pieces._slots
        gradients = []
        for link_graph in (whole, pieces):
            (link_graph.score(nn.Dot(), h) ** 2).sum().backward()
            gradients.append(h.grad.copy())
            h.grad = None
        return graphs, gradients, counts, held is None, n

    for size in (1, 2, 3):
        for graphs, gradients, counts, lazy, n in threads.run(size, work):
            assert graphs[0].shape == (n, 3) and lazy and counts == -(-(5 + 9 * (size - 1)) // 2)
            assert graphs[1].tobytes() == graphs[0].tobytes() == graphs[2].tobytes()
            assert gradients[1].tobytes() == gradients[0].tobytes()

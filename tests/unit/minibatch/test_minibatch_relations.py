"""Batches of relational graphs: all in-edges are the whole graph, picks are one rank's on any number of ranks (threads as ranks)."""

from functools import cache, partial

import numpy as np
import pytest

from sarlite import HeteroGraph, Tensor, Trainer, fn, nn, optim
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.minibatch import HEC, NeighborLoader
from tests.helpers.comm.exchanges import in_parts
from tests.helpers.graph.relational_graphs import (
    ABOUT,
    CITES,
    EDGES,
    LABELS,
    MODELS,
    N_IN,
    N_NODES,
    TRAIN,
    WRITES,
    WRITTEN,
    X,
    check_batches,
    close,
    gradients,
    make,
)
from tests.helpers.graph.strategies import values

pytestmark = pytest.mark.timeout(120)
POINTS = [(1, "metis", "sar", 0), (2, "metis", "sar", 1), (2, "random", "oneshot", 0), (3, "uneven", "sar", 1),
          (4, "contiguous", "sa", 1), (4, "uneven", "broadcast", 0)]
FANOUTS = {"uniform": (2, 3), "replace": (2, 2), "labor": (3, 2), "full": (-1, -1)}


def passes(graph, case, how="uniform", node_type="paper", **options):
    """Return the result of `gradients` for each batch of an epoch, with logits by id, on this rank's part of a graph."""
    rng, nodes = nn.Random(5), graph.of(node_type)
    model, collected, ids = MODELS[case](nodes, rng), [], nodes.dst_ids
    x = {"paper": X["paper"][graph.node_ids["paper"]]}
    labels, train = (LABELS[ids], TRAIN[ids]) if node_type == "paper" else (ids % 4, ids >= 0)
    loader = NeighborLoader(nodes, x, labels, train, fanouts=FANOUTS[how], batch_size=5, sampler=how, seed=3, **options)
    for batch in loader:
        rng.step = batch.step
        *sums, logits = gradients(model, batch, batch.x, batch.labels, batch.rows, batch.n_global)
        collected.append((*sums, dict(zip(batch.dst_ids.tolist(), logits))))
    return collected


@cache
def one_rank(case, how, node_type="paper"):
    return passes(make(), case, how, node_type)


def assert_one_ranks(by_rank, expected):
    assert {len(part) for part in by_rank} == {len(expected)}
    for each, (loss, grad, owned, logits) in zip(zip(*by_rank), expected):
        np.testing.assert_allclose(sum(part[0] for part in each), loss, rtol=1e-12)
        close(sum(part[1] for part in each), grad, "gradient")
        for name, rows in owned.items():
            together = {node: row for part in each for node, row in part[2][name].items()}
            assert together.keys() == rows.keys()
            close(np.array([together[node] for node in rows]), np.array([*rows.values()]), f"gradient of {name}")
        together = {node: row for part in each for node, row in part[3].items()}
        assert together.keys() == logits.keys()
        close(np.array([together[node] for node in logits]), np.array([*logits.values()]), "logits")


@pytest.mark.sampled(10)
@pytest.mark.parametrize("n_ranks, parts, mode, prefetch", POINTS[1:])
@pytest.mark.parametrize("how", FANOUTS)
@pytest.mark.parametrize("case", MODELS)
def test_n_ranks_make_one_ranks_batches(case, how, n_ranks, parts, mode, prefetch):
    """Losses, gradients, of learned rows too, and logits, with dropout."""
    def work(comm):
        return passes(make(comm, parts, mode=in_parts(mode), prefetch=prefetch), case, how)

    assert_one_ranks(threads.run(n_ranks, work), one_rank(case, how))


@pytest.mark.parametrize("node_type", ["author", "place", "field"])
def test_seeds_of_any_type(node_type):
    """Also of a type that no relation reaches, and of one whose rows some ranks have none of."""
    def work(comm):
        return passes(make(comm, "uneven"), "rgcn", "uniform", node_type)

    assert_one_ranks(threads.run(3, work), one_rank("rgcn", "uniform", node_type))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("n_ranks, parts, mode, prefetch", POINTS)
@pytest.mark.parametrize("case", MODELS)
def test_all_in_edges_are_the_whole_graph(case, n_ranks, parts, mode, prefetch):
    threads.run(n_ranks, check_batches, case, parts, mode=mode, prefetch=prefetch)


def test_picks_are_so_many_of_each_relation_and_go_by_ids():
    """Whatever the number of ranks: by layer, relation and destination the edges, by their numbers in the whole graph."""
    def picks(comm=None):
        graph, collected = make(comm, "random"), set()
        nodes, x = graph.of("paper"), {"paper": X["paper"][graph.node_ids["paper"]]}
        for batch in NeighborLoader(nodes, x, None, slice(None), fanouts=(2, 3), batch_size=7, sample_ahead=0):
            for k, layer in enumerate(batch.layers(2)):
                for part in (part for graphs in layer.by_source(layer.relations) for part in graphs.values()):
                    ends = np.cumsum(part.in_degrees)[:-1]
                    for node, numbers in zip(part.dst_ids.tolist(), np.split(part.edge_ids, ends)):
                        src, dst = EDGES[part.relation]
                        assert (np.asarray(dst, int)[numbers] == node).all() and len({*numbers.tolist()}) == len(numbers)
                        assert len(numbers) == min((2, 3)[k], np.count_nonzero(np.asarray(dst) == node))
                        collected.add((batch.step, k, part.relation, node, *sorted(numbers.tolist())))
        return collected

    expected = picks()
    for n_ranks in (2, 3):
        assert set().union(*threads.run(n_ranks, picks)) == expected
    assert len({(relation, *numbers) for _, _, relation, _, *numbers in expected if relation in (WRITES, CITES)}) > 50


def test_labor_shares_sources_over_relations():
    """A source has one variate for all relations out of its type: like edges of two relations have the same picks."""
    src, dst = (ids.ravel() for ids in np.indices((30, 8)))
    graph = HeteroGraph.from_edges({("a", "likes", "b"): (src, dst), ("a", "knows", "b"): (src, dst)}, {"a": 30, "b": 8})

    def n_sources(how):
        (batch,) = NeighborLoader(graph.of("b"), {}, None, slice(None), fanouts=(3,), batch_size=8, sampler=how)
        (graphs,) = batch.layers(1)[0].by_source(graph.relations)
        first, second = (np.split(part.src_ids[part.picked.columns], 8) for part in graphs.values())
        return len({*batch.part_rows["a"]}), all(np.array_equal(a, b) for a, b in zip(first, second))

    assert n_sources("labor") == (3, True)
    assert n_sources("uniform")[0] > 15 and not n_sources("uniform")[1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("reducer, edges", [("mean", "all"), ("sum", "all"), ("sym", "all"), ("sum", "some"), ("max", "all")])
def test_sums_over_picks_estimate_the_whole_graphs(reducer, edges):
    """All picks: the whole graph's sums, "sym" with degrees in the relation. Some: on average over many draws."""
    def work(comm):
        graph = make(comm, "random")
        nodes, of_all = graph.of("paper"), {name: values(k, n, 3) for k, (name, n) in enumerate(N_NODES.items())}
        part = {name: of_all[name][ids] for name, ids in graph.node_ids.items()}
        relations = (WRITES, CITES)
        expected = graph.aggregate({r: fn.copy_src(Tensor(part[r[0]])) for r in relations}, reducer)["paper"].data
        rows, n_draws = nodes.n_dst, 1 if edges == "all" else 300
        loader = NeighborLoader(nodes, part, None, slice(None), fanouts=(-1 if edges == "all" else 2,), batch_size=23, sample_ahead=0)
        total = np.zeros((rows, 3))
        for _ in range(n_draws):
            (batch,) = loader
            g, h = batch.layers(1)[0].enter(batch.x)
            total[batch.outputs] += g.aggregate({r: fn.copy_src(h[r[0]]) for r in relations}, reducer)["paper"].data
        return np.abs(total / n_draws - expected).max(initial=0) / np.abs(expected).max(initial=1)

    assert max(threads.run(2, work)) < (1e-13 if edges == "all" else 0.2)


WEIGHTS = {r: np.random.default_rng(k).uniform(0.5, 2, len(EDGES[r][0])) for k, r in enumerate((WRITES, CITES))}


@pytest.mark.parametrize("reducer", ["sum", "mean", "sym"])
@pytest.mark.parametrize("evaluation", ["inside", "first"])
def test_weighted_sums_of_relations_are_the_dense_ones(reducer, evaluation):
    """On 1 and 3 ranks, over the whole graph and a batch of all in-edges; a relation without weights counts its edges."""
    relations, n_dst = (WRITES, CITES, ABOUT), N_NODES["paper"]
    x, w = {name: values(k, n, 4) for k, (name, n) in enumerate(N_NODES.items())}, values(5, 4, 3)
    expected = np.zeros((n_dst, 3))
    for r in relations:
        a = np.zeros((n_dst, N_NODES[r[0]]))
        np.add.at(a, tuple(reversed([np.asarray(ids) for ids in EDGES[r]])), WEIGHTS.get(r, 1.0))
        into, out_of = (np.where(a.sum(axis) == 0, 1, a.sum(axis)) for axis in (1, 0))
        a = {"sum": a, "mean": a / into[:, None], "sym": a / np.sqrt(into[:, None] * out_of)}[reducer]
        expected += a @ x[r[0]] @ w

    def work(comm=None):
        graph = make(comm, "random")
        graph = graph.with_edge_values({r: weight[graph.edge_ids[r]] for r, weight in WEIGHTS.items()})
        part = {name: rows[graph.node_ids[name]] for name, rows in x.items()}
        weight = Tensor(w, requires_grad=True)

        def sums(g, h):
            out = g.aggregate({r: fn.linear(h[r[0]], weight) for r in relations}, reducer, evaluation=evaluation)["paper"]
            out.sum().backward()
            return out.data

        close(sums(graph, {name: Tensor(rows) for name, rows in part.items()}), expected[graph.node_ids["paper"]], "whole")
        (batch,) = NeighborLoader(graph.of("paper"), part, None, slice(None), fanouts=(-1,), batch_size=n_dst)
        close(sums(*batch.layers(1)[0].enter(batch.x)), expected[batch.dst_ids], "batch")

    work()
    threads.run(3, work)


def test_edge_values_of_relations_are_checked():
    graph = make()
    with pytest.raises(ConfigError, match=r"edge values: relation \('paper', 'cites', 'author'\)"):
        graph.with_edge_values({("paper", "cites", "author"): [1.0]})
    with pytest.raises(ShapeError, match=r"edge_weight of \('paper', 'cites', 'paper'\): .*\(3,\)"):
        graph.with_edge_values({CITES: np.ones(3)})
    with pytest.raises(DataError, match=r"edge_features of \('paper', 'cites', 'paper'\).*is nan"):
        graph.with_edge_values(features={CITES: np.full((80, 2), np.nan)})
    weighted = graph.with_edge_values({CITES: -np.ones(80)})
    with pytest.raises(DataError, match="weights .*degrees .*0 or more"):
        weighted.aggregate({CITES: fn.copy_src(Tensor(X["paper"]))}, "mean")
    saved = weighted.subgraph({CITES: np.arange(80) % 2 == 0})
    assert len(saved.edge_values[CITES].weight) == 40 and saved.edge_values[CITES].features is None


def test_local_is_the_graph_without_its_cut_edges():
    parts = {name: np.arange(n) % 2 for name, n in N_NODES.items()}
    inner = {r: [np.asarray(ids)[[parts[r[0]][j] == parts[r[2]][i] for j, i in zip(*pair)]] for ids in pair] if len(pair[0]) else pair
             for r, pair in EDGES.items()}

    def sums(graph, **options):
        nodes, part = graph.of("paper"), {name: values(k, n, 3)[graph.node_ids[name]] for k, (name, n) in enumerate(N_NODES.items())}
        (batch,) = NeighborLoader(nodes, part, None, slice(None), fanouts=(-1,), batch_size=23, **options)
        g, h = batch.layers(1)[0].enter(batch.x)
        messages = {r: fn.linear(h[r[0]], Tensor(values(9, 3, 2))) for r in g.relations if r[2] == "paper"}
        out = g.aggregate(messages, "sym", self_terms={"paper": (g.dst(h)["paper"], Tensor(values(8, 3, 2)))})["paper"]
        return dict(zip(batch.dst_ids.tolist(), out.data))

    expected = sums(HeteroGraph.from_edges(inner, N_NODES))
    collected = {}
    for part in threads.run(2, lambda comm: sums(HeteroGraph.from_edges(EDGES, N_NODES, comm=comm, parts=parts), remote="local")):
        collected |= part
    assert collected.keys() == expected.keys()
    close(np.array([collected[node] for node in expected]), np.array([*expected.values()]), "sums")


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_trainer_takes_steps_and_evaluates_over_batches(n_ranks):
    """Losses and metrics of three epochs are one rank's; evaluation by batches of all in-edges equals evaluation of the whole graph."""
    def work(comm, sampled):
        graph = make(comm, "random")
        nodes, rng = graph.of("paper"), nn.Random(5)
        ids, x = nodes.dst_ids, {"paper": X["paper"][graph.node_ids["paper"]]}
        options = {"fanouts": (2, 2), "batch_size": 6}
        scoring = NeighborLoader(nodes, x, LABELS[ids], slice(None), fanouts=(-1, -1), batch_size=8) if sampled else None
        trainer = Trainer(nodes, MODELS["rgcn"](nodes, rng), x, LABELS[ids], TRAIN[ids], ~TRAIN[ids], rng=rng,
                          batches=NeighborLoader(nodes, x, LABELS[ids], TRAIN[ids], **options), scoring=scoring,
                          optimizer=lambda flat: optim.Adam(flat, 0.05))
        losses = [trainer.epoch(epoch) for epoch in range(3)]
        return [*losses, *trainer.evaluate().values()]

    by_rank = [threads.run(n_ranks, work, sampled)[0] for sampled in (False, True)]
    expected = work(None, False)
    for part in by_rank:
        np.testing.assert_allclose([v for v in part if v is not None], [v for v in expected if v is not None], rtol=1e-10)
    assert len({*expected[:3]}) == 3


def test_what_is_refused():
    graph = make()
    nodes, x = graph.of("paper"), {"paper": X["paper"]}
    make_loader = partial(NeighborLoader, labels=None, train=[0], fanouts=(2, 2), batch_size=2)
    with pytest.raises(ConfigError, match="minibatches: graph is a HeteroGraph, .*must be a Graph"):
        make_loader(graph, x)
    with pytest.raises(ConfigError, match="caches of several node types"):
        make_loader(nodes, x, remote=HEC())
    with pytest.raises(ConfigError, match="x is a ndarray, .*dict"):
        make_loader(nodes, X["paper"])
    with pytest.raises(ConfigError, match="node type 'thing' is not one of"):
        make_loader(nodes, {"thing": X["paper"]})
    with pytest.raises(ShapeError, match=r"x\['paper'\] .*\(22, 5\), .*23 rows"):
        make_loader(nodes, {"paper": X["paper"][1:]})
    (batch,) = make_loader(nodes, x)
    with pytest.raises(ConfigError, match="fanouts .*2 entries, .*3 layers"):
        batch.layers(3)
    with pytest.raises(ConfigError, match="batch has 2 layers"):
        batch.aggregate({CITES: fn.copy_src(Tensor(X["paper"]))}, "sum")
    g, h = batch.layers(2)[0].enter(batch.x)
    with pytest.raises(ConfigError, match="relation .* is not a relation of this graph"):
        g.aggregate({("paper", "cites", "author"): fn.copy_src(h["paper"])}, "sum")
    assert h["paper"].shape == (len(batch.part_rows["paper"]), N_IN) and WRITTEN in g.relations

"""Relations: N ranks give the dense loop's result, with one fetch for each source type; bad graphs are refused.

Ranks are threads.
"""

import tracemalloc

import numpy as np
import pytest

from sarlite import HeteroGraph, Tensor, fn, nn
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.minibatch import NeighborLoader
from sarlite.models import RGAT, RGCN
from sarlite.operators.evaluation import EVALUATIONS, Sizes, costs
from tests.helpers.comm.exchanges import MODES, in_parts
from tests.helpers.graph.relational_graphs import (
    ABOUT,
    CITES,
    EDGES,
    LAYERS,
    MODELS,
    N_IN,
    N_NODES,
    REVIEWS,
    TOPIC,
    WRITES,
    WRITTEN,
    X,
    check_layer,
    check_model,
    make,
)
from tests.helpers.graph.strategies import tied_values, values

pytestmark = pytest.mark.timeout(120)
POINTS = [(1, "metis", "sar", 0), (2, "metis", "sar", 1), (2, "random", "oneshot", 0), (3, "uneven", "sar", 1), (4, "contiguous", "sa", 1),
          (4, "uneven", "sar", 0)]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("n_ranks, parts, mode, prefetch", POINTS)
@pytest.mark.parametrize("case", LAYERS)
def test_a_layer_is_the_dense_loop(case, n_ranks, parts, mode, prefetch):
    graph, *_ = threads.run(n_ranks, check_layer, case, parts, mode=in_parts(mode), prefetch=prefetch)
    assert case == "rgat" or {evaluation.name for evaluation in graph.evaluations} == {case.split(", ")[1]}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("n_ranks, parts, mode, prefetch", POINTS[1:4])
@pytest.mark.parametrize("case", MODELS)
def test_a_model_is_one_ranks(case, n_ranks, parts, mode, prefetch):
    threads.run(n_ranks, check_model, case, parts, mode=mode, prefetch=prefetch)


APART = [(2, "metis", {"backward": "fetch"}), (3, "uneven", {"backward": "fetch", "mode": "oneshot"}),
         (4, "contiguous", {"backward": "fetch", "mode": "broadcast", "prefetch": 1})]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("n_ranks, parts, options", APART)
@pytest.mark.parametrize("case", LAYERS)
def test_a_layer_whose_relations_are_apart_is_the_dense_loop(case, n_ranks, parts, options):
    """If gradients are fetched, each relation has schedules of its own."""
    graph, *_ = threads.run(n_ranks, check_layer, case, parts, **options)
    assert len(graph.exchanges) == len(graph.relations)


@pytest.mark.parametrize("n_ranks, parts, options", APART[:1] + APART[-1:])
@pytest.mark.parametrize("case", MODELS)
def test_a_model_whose_relations_are_apart_is_one_ranks(case, n_ranks, parts, options):
    threads.run(n_ranks, check_model, case, parts, **options)


def test_gradients_of_sums_of_relations_are_fetched_and_none_is_pushed():
    def work(comm):
        graph = make(comm, "random", backward="fetch")
        h = {name: Tensor(X[name][ids], requires_grad=True) for name, ids in graph.node_ids.items()}
        out = graph.aggregate({CITES: fn.copy_src(h["paper"]), TOPIC: fn.copy_src(h["paper"])}, "mean")
        sum(rows.sum() for rows in out.values()).backward()
        return graph.profile.sent_bytes

    for sent in threads.run(2, work):
        assert sorted(phase for phase, n in sent.items() if n and phase != "setup") == ["backward_fetch", "forward_fetch"]


def test_batches_of_relations_that_are_apart_are_refused():
    def work(comm):
        nodes = make(comm, backward="fetch").of("paper")
        with pytest.raises(ConfigError, match="backward='fetch'"):
            NeighborLoader(nodes, {}, None, slice(None), fanouts=(2,), batch_size=4)

    threads.run(2, work)


def test_edges_that_stay_keep_their_weights():
    """A negative weight is no longer refused once its edge is dropped; other relations' values stay."""
    weights, (src, dst) = np.arange(1.0, 81), EDGES[CITES]
    weights[7] = -1
    is_kept, sums, degrees = np.arange(80) != 7, np.zeros((23, N_IN)), np.zeros(23)
    np.add.at(sums, dst[is_kept], weights[is_kept, None] * X["paper"][src[is_kept]])
    np.add.at(degrees, dst[is_kept], weights[is_kept])

    def work(comm):
        graph = make(comm, "random")
        graph = graph.with_edge_values({CITES: weights[graph.edge_ids[CITES]]}, {TOPIC: np.ones((len(graph.edge_ids[TOPIC]), 2))})
        numbers = graph.in_edges(CITES).numbers
        ids = graph.edge_ids[CITES] if numbers is None else graph.edge_ids[CITES][numbers]
        graph = graph.subgraph({CITES: ids != 7})
        papers = graph.node_ids["paper"]
        out = graph.aggregate({CITES: fn.copy_src(X["paper"][papers])}, "mean")["paper"]
        np.testing.assert_allclose(out.data, (sums / np.where(degrees, degrees, 1)[:, None])[papers], rtol=1e-12)
        assert graph.edge_values[TOPIC].features.shape == (len(graph.edge_ids[TOPIC]), 2)

    threads.run(2, work)


@pytest.mark.parametrize("node_type, layers", [("place", 1), ("field", 1), ("author", 2)])
def test_labels_of_a_type_that_nothing_or_one_relation_reaches(node_type, layers):
    nodes = make().of(node_type)
    for model in (RGCN({"paper": N_IN}, 4, nodes, layers=layers, hidden=6, n_bases=2, rng=nn.Random(1), dtype=np.float64),
                  RGAT({"paper": N_IN}, 4, nodes, layers=layers, hidden=3, rng=nn.Random(1), dtype=np.float64)):
        out = model(nodes, {"paper": Tensor(X["paper"], constant=True)})
        out.sum().backward()
        assert out.shape == (N_NODES[node_type], 4) and all(p.grad is not None for p in model.parameters())


def test_more_ranks_than_nodes():
    def work(comm):
        graph = HeteroGraph.from_edges({("a", "to", "b"): ([0, 1, 1], [0, 0, 0])}, {"a": 2, "b": 1}, comm=comm)
        x = Tensor(np.array([[1.0], [5.0]])[graph.node_ids["a"]], requires_grad=True)
        out = graph.aggregate({("a", "to", "b"): fn.copy_src(x)}, "mean")["b"]
        out.sum().backward()
        assert graph.n_nodes == {"a": 2, "b": 1}
        return out.data.ravel().tolist(), dict(zip(graph.node_ids["a"].tolist(), x.grad.ravel()))

    ranks = threads.run(5, work)
    assert sum((out for out, _ in ranks), []) == [11 / 3]
    assert {k: v for _, part in ranks for k, v in part.items()} == {0: 1 / 3, 1: 2 / 3}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("evaluation, again", [("inside", 1), ("first", 0)])
def test_one_fetch_serves_all_relations_out_of_a_type(mode, evaluation, again):
    chosen, width = (WRITTEN, CITES, TOPIC), 4

    def work(comm):
        graph = make(comm, "random", mode=mode)
        x = Tensor(X["paper"][graph.node_ids["paper"]], requires_grad=True)
        weights = [Tensor(values(k, N_IN, width), requires_grad=True) for k in range(3)]
        out = graph.aggregate({r: fn.linear(x, w) for r, w in zip(chosen, weights)}, "mean", evaluation=evaluation)
        sum(o.sum() for o in out.values()).backward()
        needs = set()
        for relation in chosen:
            src, dst = EDGES[relation]
            needs |= set(src[np.isin(dst, graph.node_ids[relation[2]])]) - set(graph.node_ids["paper"])
        received = graph.profile.received_bytes
        assert received["forward_fetch"] == 8 * N_IN * len(needs) > 0
        assert received["backward_fetch"] == 8 * N_IN * len(needs) * (again if mode == "sar" else 0)
        assert [chosen.name for chosen in graph.evaluations] == [evaluation] * 3
        return len(needs), graph.profile.sent_bytes["backward_push"]

    ranks = threads.run(3, work)
    assert sum(n for _, n in ranks) == 8 * N_IN * sum(n for n, _ in ranks)


def test_features_that_never_change_are_fetched_once():
    def work(comm):
        graph = make(comm, "random")
        x, weight = Tensor(X["paper"][graph.node_ids["paper"]], constant=True), Tensor(values(1, N_IN, 9), requires_grad=True)
        for _ in range(3):
            out = graph.aggregate({CITES: fn.linear(x, weight), WRITTEN: fn.linear(x, weight)}, "mean")
            sum(o.sum() for o in out.values()).backward()
            yield graph.profile.received_bytes["forward_fetch"], out["paper"].data

    def collect(comm):
        return list(work(comm))

    for steps in threads.run(2, collect):
        assert steps[0][0] == steps[2][0] > 0
        np.testing.assert_array_equal(steps[0][1], steps[2][1])


@pytest.mark.parametrize("reducer", ["max", "min", "sum"])
def test_extrema_of_relations_add_up_and_ties_go_to_the_lowest_id(reducer):
    x = tied_values(3, 23, 4)

    def work(comm):
        graph = make(comm, "random", mode="sar")
        rows = Tensor(x[graph.node_ids["paper"]], requires_grad=True)
        out = graph.aggregate({CITES: fn.copy_src(rows), TOPIC: fn.copy_src(rows)}, reducer)
        sum(o.sum() for o in out.values()).backward()
        whole, d_whole = np.zeros((20 + 10, 4)), np.zeros((23, 4))
        whole = {name: comm.allreduce(_spread(N_NODES[name], graph.node_ids[name], out[name].data)) for name in out}
        d_whole = comm.allreduce(_spread(23, graph.node_ids["paper"], rows.grad))
        return whole, d_whole

    one, four = threads.run(1, work)[0], threads.run(4, work)[0]
    np.testing.assert_array_equal(four[1], one[1])
    for (_, _, to), (src, dst) in ((relation, EDGES[relation]) for relation in (CITES, TOPIC)):
        np.testing.assert_array_equal(four[0][to], one[0][to])
        reduce = {"max": np.max, "min": np.min, "sum": np.sum}[reducer]
        expected = [reduce(x[src[dst == i]], 0) if (dst == i).any() else np.zeros(4) for i in range(N_NODES[to])]
        np.testing.assert_allclose(one[0][to], expected, atol=1e-14)
    if reducer != "sum":
        d_expected = np.zeros((23, 4))
        for relation in (CITES, TOPIC):
            src, dst = EDGES[relation]
            for i in np.unique(dst):
                into = np.sort(src[dst == i])
                best = (np.argmax if reducer == "max" else np.argmin)(x[into], 0)  # the first one
                d_expected[into[best], range(4)] += 1
        np.testing.assert_array_equal(one[1], d_expected)


def _spread(n, ids, rows):
    out = np.zeros((n, rows.shape[1]))
    out[ids] = rows
    return out


def test_attention_inside_the_message_is_attention_over_transformed_rows():
    """Each rank's edges are the ones that `edge_ids` names."""
    chosen = (CITES, WRITES, REVIEWS)

    def work(comm, inside):
        graph = make(comm, "random")
        for relation, (_, dst) in EDGES.items():
            ends = np.repeat(graph.node_ids[relation[2]], graph.in_degrees[relation])
            np.testing.assert_array_equal(np.sort(np.asarray(dst, int)[graph.edge_ids[relation]]), np.sort(ends))
        h = {name: Tensor(X[name][ids], requires_grad=True) for name, ids in graph.node_ids.items()}
        messages = {}
        for k, (source, name, to) in enumerate(chosen):
            weight, scores, dst = Tensor(values(k, N_IN, 4)), Tensor(values(10 + k, N_IN, 2)), h[to] @ values(20 + k, N_IN, 2)
            attend = (0.2, 0.3, 77 + k)  # slope, dropout, key
            messages[source, name, to] = fn.attend_linear(h[source], weight, scores, dst, *attend) if inside else fn.attend(
                (h[source] @ weight).reshape(-1, 2, 2), h[source] @ scores, dst, *attend)
        out = graph.aggregate(messages, "sum")["paper"]
        (out * out).sum().backward()
        return graph.node_ids, out.data, {name: h[name].grad for name in ("paper", "author")}

    ((_, expected, d_h),) = threads.run(1, work, False)
    for inside in (False, True):
        for ids, out, d_own in threads.run(3, work, inside):
            np.testing.assert_allclose(out, expected[ids["paper"]], rtol=1e-12, atol=1e-12)
            for name, d in d_own.items():
                np.testing.assert_allclose(d, d_h[name][ids[name]], rtol=1e-12, atol=1e-12)


def test_sums_over_several_source_types_are_one_array():
    """A layer holds its output and one product, and no further sums for each source type."""
    n, width, types = 4000, 64, ("a", "b", "c")
    rng = np.random.default_rng(0)
    edges = {(source, "to", to): (rng.integers(0, n, 9000), rng.integers(0, n, 9000)) for source in types for to in types}
    graph = HeteroGraph.from_edges(edges, dict.fromkeys(types, n))
    x = {name: Tensor(values(k, n, width), requires_grad=True) for k, name in enumerate(types)}
    weights = {key: Tensor(values(9, width, width), requires_grad=True) for key in (*edges, *types)}

    self_terms = {name: (x[name], weights[name]) for name in types}
    messages = {r: fn.linear(x[r[0]], weights[r]) for r in edges}
    tracemalloc.start()
    try:
        out = graph.aggregate(messages, "mean", evaluation="inside", self_terms=self_terms)
        most = tracemalloc.get_traced_memory()[1] / (8 * n * width)
    finally:
        tracemalloc.stop()
    assert len(out) == 3 and most < 3 + 1.5


def test_sums_that_cannot_be_one_array():
    """Sums of two dtypes, of no float dtype and of two widths are refused, with one fetch or two; so are such self terms."""
    graph = make()
    x = {WRITES: Tensor(X["author"]), TOPIC: Tensor(X["paper"].astype(np.float32))}
    messages = {r: fn.linear(rows, Tensor(values(k, N_IN, 2).astype(rows.dtype))) for k, (r, rows) in enumerate(x.items())}
    for evaluation in ("inside", "first"):
        with pytest.raises(ShapeError, match="float32 into .*, float64 into .*: .*dtype"):
            graph.aggregate(messages, "sum", evaluation=evaluation)
    with pytest.raises(ShapeError, match="dtype float32 or float64; .*int64"):
        graph.aggregate({WRITES: fn.copy_src(np.arange(len(X["author"])))}, "sum")
    single = Tensor(X["paper"].astype(np.float32)), Tensor(values(1, N_IN, 2).astype(np.float32))
    with pytest.raises(ShapeError, match="float32 into paper, float64 into paper: .*dtype"):
        graph.aggregate({WRITES: messages[WRITES]}, "sum", self_terms={"paper": single})
    for wrong in ((X["paper"], values(1, N_IN + 1, 2)), (X["paper"][1:], values(1, N_IN, 2)), (X["paper"], values(1, N_IN))):
        with pytest.raises(ShapeError, match=r"self_terms\['paper'\]: x \(.*\) and weight \(.*\) .*\(23, n_in\) and \(n_in, n_out\)"):
            graph.aggregate({WRITES: messages[WRITES]}, "sum", self_terms={"paper": tuple(map(Tensor, wrong))})
    wide = Tensor(values(1, N_IN, 3))
    for first in (CITES, WRITES):
        x, y = (Tensor(X[r[0]]) for r in (first, ABOUT if first == CITES else REVIEWS))
        with pytest.raises(ShapeError, match="make rows of"):
            graph.aggregate({first: fn.linear(x, Tensor(values(1, N_IN, 2))), (ABOUT if first == CITES else REVIEWS): fn.linear(y, wide)},
                            "sum", evaluation="inside")


def test_different_widths_of_two_destination_types():
    graph = make()
    x, weights = Tensor(X["paper"], requires_grad=True), [values(k, N_IN, n) for k, n in enumerate((2, 7))]
    out = graph.aggregate({CITES: fn.linear(x, Tensor(weights[0])), TOPIC: fn.linear(x, Tensor(weights[1]))}, "sum", evaluation="inside")
    assert out["paper"].shape == (23, 2) and out["field"].shape == (7, 7)
    (out["paper"].sum() + out["field"].sum()).backward()
    expected = np.zeros((23, N_IN))
    for relation, weight in zip((CITES, TOPIC), weights):
        np.add.at(expected, EDGES[relation][0], weight.sum(1))
    np.testing.assert_allclose(x.grad, expected, rtol=1e-12)


def test_what_is_chosen_costs_fewer_bytes():
    """The cheaper evaluation depends on the widths and the numbers of rows.

    Narrow inputs are aggregated first, wide inputs inside; few sources are multiplied inside; sums of constant rows are kept.
    """
    sizes = Sizes(n_src=400, n_dst=300, n_edges=5000, n_halo=100, n_kept=300)
    wide, narrow = (costs(sizes, *widths, needs_x=True, needs_weight=True) for widths in ((8, 64), (64, 8)))
    constant_costs = costs(sizes, 64, 8, needs_x=False, needs_weight=True, constant=True)
    few = sizes._replace(n_src=3, n_dst=9000, n_edges=10, n_kept=9000)
    few = costs(few, 64, 64, needs_x=False, needs_weight=True, constant=True)
    chosen = [min(EVALUATIONS, key=costs_of.__getitem__) for costs_of in (wide, narrow, constant_costs, few)]
    assert chosen == ["first", "inside", "first", "inside"]
    assert wide["first"] == 16 * (300 * 8 + (100 + 2 * 5000) * 8) + 3 * 300 * 8 * 64
    assert wide["inside"] == 16 * (2 * 100 * 8 + 2 * 5000 * 64) + 3 * 500 * 8 * 64
    assert constant_costs["first"] == 16 * 300 * 64 + 2 * 300 * 8 * 64


def test_what_is_chosen_is_noted_with_what_either_way_costs():
    graph = HeteroGraph.from_edges(EDGES, N_NODES)
    x, weight = Tensor(X["paper"], requires_grad=True), Tensor(values(1, N_IN, 4), requires_grad=True)
    for forced in (None, "first", "inside"):
        graph.aggregate({CITES: fn.linear(x, weight)}, "sum", evaluation=forced)
    sizes = Sizes(23, 23, len(EDGES[CITES][0]), 0, 23)
    ways = costs(sizes, N_IN, 4, needs_x=True, needs_weight=True)
    bytes_of = {way: ways[way] * 8 // 16 for way in EVALUATIONS}
    assert [chosen.name for chosen in graph.evaluations] == ["inside", "first"]  # the second "inside" is the first again
    for chosen in graph.evaluations:
        assert chosen[:4] == (CITES, N_IN, 4, False) and chosen[5:] == (bytes_of["inside"], bytes_of["first"])


@pytest.mark.parametrize("edges, n_nodes, error, text", [
    ({("a", "r", "b"): ([0], [0])}, {"a": 1}, DataError, r"relation \('a', 'r', 'b'\): node type 'b' is not in n_nodes, which has a"),
    ({("a", "r", "a"): ([0, 3], [0, 0])}, {"a": 2}, DataError, r"relation \('a', 'r', 'a'\): src: node id 3 at position 1"),
    ({("a", "r", "a"): ([0], [0, 0])}, {"a": 2}, DataError, "lengths disagree, 1 and 2"),
    ({("a", "r", "a"): [0]}, {"a": 2}, DataError, r"relation \('a', 'r', 'a'\)"),
    ({"r": ([0], [0])}, {"a": 2}, ConfigError, "'r' is not a triple"),
    ({}, {"a": -1}, DataError, r"n_nodes\['a'\]: -1"),
])  # fmt: skip
def test_bad_graphs_are_refused(edges, n_nodes, error, text):
    with pytest.raises(error, match=text):
        HeteroGraph.from_edges(edges, n_nodes)


def test_bad_messages_are_refused():
    graph, x = make(), Tensor(X["paper"])
    for messages, reducer, error, text in (
            ({("a", "b", "c"): fn.copy_src(x)}, "sum", ConfigError, "not a relation of this graph"),
            ({CITES: fn.copy_src(x)}, "softmax", ConfigError, "CopySrc does not go with reducer 'softmax'"),
            ({WRITES: fn.copy_src(x)}, "sum", ShapeError, "needs 17 rows"),
            ({CITES: fn.linear(x, Tensor(X["field"]))}, "sum", ShapeError, "fn.linear"),
            ({CITES: fn.attend_linear(x, Tensor(values(1, 5, 3)), Tensor(values(1, 5, 2)), Tensor(values(1, 23, 2)))}, "sum", ShapeError,
             "fn.attend_linear")):
        with pytest.raises(error, match=text):
            graph.aggregate(messages, reducer)
    with pytest.raises(ConfigError, match="evaluation 'last'"):
        graph.aggregate({CITES: fn.copy_src(x)}, "sum", evaluation="last")
    with pytest.raises(ConfigError, match="node type 'venue'"):
        graph.of("venue")


def test_divisions_are_checked():
    def work(comm, parts):
        return HeteroGraph.from_edges(EDGES, N_NODES, comm=comm, parts=parts)

    for parts, text in (({"paper": "random"}, "a division for each of paper"), (dict.fromkeys(N_NODES, "metis"), "all types together"),
                        (dict.fromkeys(N_NODES, "fennel"), "fennel divides the nodes of all types together, or none"),
                        ({**dict.fromkeys(N_NODES, "random"), "place": np.array([0, 5, 1])}, "'place': parts")):
        with pytest.raises((ConfigError, DataError), match=text):
            threads.run(2, work, parts)
    for graph in threads.run(2, work, "fennel"):
        for name, ids in graph.node_ids.items():
            assert len(ids) <= np.ceil(1.03 * N_NODES[name] / 2)
    with pytest.raises(DataError, match="parts is not the same"):
        threads.run(2, lambda comm: work(comm, ["random", "metis"][comm.rank]))
    with pytest.raises(DataError, match="edges and n_nodes is not the same"):
        threads.run(2, lambda comm: HeteroGraph.from_edges({("a", "r", "a"): ([0], [comm.rank])}, {"a": 2}, comm=comm))

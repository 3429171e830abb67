"""N ranks give the result of one: logits and every gradient, by mode, partition and prefetch depth (threads as ranks)."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarlite import Graph, fn
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError
from sarlite.structure.partition import partition
from sarlite.tape import Tensor, ops
from tests.helpers.graph import references
from tests.helpers.graph.piece_cases import in_small_pieces
from tests.helpers.graph.references import CASES, EDGES, TRAIN, Step, check_equality
from tests.helpers.graph.strategies import SETTINGS, edges, parts, tied_values, values, widths

pytestmark = pytest.mark.timeout(120)

MODES = ("sar", "sa", "oneshot", "broadcast")
CSR = Graph.from_edges(*EDGES).in_edges()[:2]


def owners(method, n_ranks):
    return partition(*CSR, n_ranks, method)


@pytest.mark.sampled(19)
@pytest.mark.parametrize("n_ranks, mode", [(1, "sar"), *itertools.product((2, 3, 4), MODES)])
@pytest.mark.parametrize("case", CASES)
def test_models_give_one_ranks_values_and_gradients(case, n_ranks, mode):
    points = [(np.float64, 0, "metis"), (np.float64, 1, "random"), (np.float64, 2, "contiguous"),
              (np.float32, 1, "random")]  # benchmarks/equality.py runs all of them
    for dtype, prefetch, method in points:
        threads.run(n_ranks, check_equality, case, dtype, owners(method, n_ranks), mode=mode, prefetch=prefetch)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_the_order_within_parts_changes_nothing(case, n_ranks, mode):
    for seed, (method, prefetch) in enumerate([("random", 0), ("metis", 1), ("contiguous", 2)]):
        order = np.random.default_rng(seed).permutation(EDGES.n_nodes)
        threads.run(n_ranks, check_equality, case, np.float64, owners(method, n_ranks), order=order, mode=mode, prefetch=prefetch)


@pytest.mark.parametrize("case", ["sage", "gat", "edges", "softmax"])
def test_the_partitioner_by_name_and_more_prefetch_than_peers(case):
    for method in ("metis", "random", "contiguous"):
        threads.run(3, check_equality, case, np.float64, method, mode="sar", prefetch=5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", ["edges", "edges mean", "softmax"])
def test_messages_in_pieces(case, mode):
    references.one_rank(case, np.float64)  # whole
    threads.run(3, check_equality, case, np.float64, owners("random", 3), change_part=in_small_pieces, mode=mode)
    graph = in_small_pieces(Graph.from_edges(*EDGES))
    assert len(graph.plan.local.pieces) > 3
    assert sum(piece.n_edges for piece in graph.plan.local.pieces) == EDGES.n_edges


def _all_on_last(n_nodes, n_ranks):
    return np.full(n_nodes, n_ranks - 1)


def _no_training_nodes_on_first(n_nodes, n_ranks):
    return np.where(TRAIN, 1 + np.arange(n_nodes) % (n_ranks - 1), 0)


def _no_edges_on_first(n_nodes, n_ranks):
    has_edges = np.bincount(EDGES.dst, minlength=n_nodes) > 0
    return np.where(has_edges, 1 + np.arange(n_nodes) % (n_ranks - 1), 0)


def _one_node_on_first(n_nodes, n_ranks):
    return np.where(np.arange(n_nodes) == 17, 0, 1 + np.arange(n_nodes) % (n_ranks - 1))


def _a_rank_between_is_empty(n_nodes, n_ranks):
    return np.where(np.arange(n_nodes) % 3 == 0, 0, n_ranks - 1)


PARTITIONS = [_all_on_last, _no_training_nodes_on_first, _no_edges_on_first, _one_node_on_first, _a_rank_between_is_empty]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", PARTITIONS)
def test_uneven_partitions_change_nothing(layout, mode):
    array = layout(EDGES.n_nodes, 3)
    for k, case in enumerate(CASES):
        prefetch = (k + PARTITIONS.index(layout)) % 2  # each case with both
        threads.run(3, check_equality, case, np.float64, array, mode=mode, prefetch=prefetch)


def test_the_uneven_partitions_are_what_their_names_say():
    def facts(comm, array):
        graph = Graph.from_edges(*EDGES).shard(comm, array)
        return graph.n_dst, graph.n_edges, int(TRAIN[graph.node_ids].sum())

    facts_of = {layout.__name__: threads.run(3, facts, layout(EDGES.n_nodes, 3)) for layout in PARTITIONS}
    assert facts_of["_all_on_last"][:2] == [(0, 0, 0)] * 2
    assert facts_of["_no_training_nodes_on_first"][0][2] == 0 < facts_of["_no_training_nodes_on_first"][0][1]
    assert facts_of["_no_edges_on_first"][0][1] == 0 < facts_of["_no_edges_on_first"][0][0]
    assert facts_of["_one_node_on_first"][0][0] == 1
    assert facts_of["_a_rank_between_is_empty"][1][0] == 0


@pytest.mark.parametrize("mode", MODES)
def test_more_ranks_than_nodes(mode):
    small = references.EDGES._replace(src=np.array([0, 1, 1, 2]), dst=np.array([1, 0, 2, 2]), n_nodes=3)
    assert TRAIN[:3].any()
    for case, method in zip(("gcn", "sage", "edges", "softmax", "weighted"), ("metis", "random", "contiguous", "metis", "random")):
        expected = Step(Graph.from_edges(*small), case, np.float64)
        steps = threads.run(5, lambda comm: Step(Graph.from_edges(*small).shard(comm, method, mode=mode), case, np.float64))  # noqa: B023
        for step in steps:
            for name, rows in step.rows.items():
                np.testing.assert_allclose(rows, expected.rows[name][step.ids], rtol=1e-12, atol=1e-14, err_msg=f"{case}: {name}")
            for name, array in step.whole.items():
                np.testing.assert_allclose(array, expected.whole[name], rtol=1e-12, atol=1e-14, err_msg=f"{case}: {name}")


@pytest.mark.parametrize("mode", MODES)
def test_a_graph_without_nodes(mode):
    def work(comm):
        graph = Graph.from_edges(*[np.zeros(0, np.int64)] * 2, 0).shard(comm, "contiguous", mode=mode)
        x = Tensor(np.zeros((0, 3)), requires_grad=True)
        for reducer in ("sum", "mean", "max", "min"):
            out = graph.aggregate(fn.copy_src(x), reducer)
            out.backward(np.zeros((0, 3)))
            assert out.shape == x.grad.shape == (0, 3)

    threads.run(2, work)


# ---- splitting any graph into blocks changes nothing


def _aggregations(graph, x, q, weight, ids):
    """Return one output for each way to aggregate; float64 leaves x (n, 2, d), q (n, 2), weight (n_edges, 2)."""
    score, flat = (x * q[:, :, None]).sum(-1), x.reshape(len(x), int(np.prod(x.shape[1:])))
    message = lambda src, dst, edge: (src["x"] + dst["q"][:, :, None]).tanh() * edge["w"][:, :, None]  # noqa: E731
    linear = lambda src, dst, edge: src["x"] * 2.0 + dst["q"][:, :, None]  # noqa: E731
    yield from (graph.aggregate(fn.copy_src(flat), reducer).reshape(-1, *x.shape[1:]) for reducer in ("sum", "mean", "sym", "max", "min"))
    yield from (graph.aggregate(fn.linear(flat, values(5, flat.shape[1], n)), reducer) for reducer in ("sum", "sym") for n in (1, 9))
    yield from (graph.aggregate(fn.mul_edge(x, weight), reducer) for reducer in ("sum", "mean", "max", "min"))
    yield graph.aggregate(fn.attend(x, score, q, 0.2, 0.4, 11), "sum")
    for custom in (message, linear):
        yield from (graph.aggregate(custom, reducer, src={"x": x}, dst={"q": q}, edge={"w": weight}) for reducer in ("sum", "max"))
    yield graph.aggregate(lambda s, d, e: (s["s"] + d["q"], s["x"]), "softmax", src={"s": score, "x": x}, dst={"q": q})


def _run(graph, x, q, weight):
    leaves = [Tensor(x[graph.node_ids], True), Tensor(q[graph.node_ids], True), Tensor(weight[graph.edge_ids], True)]
    outputs = list(_aggregations(graph, *leaves, graph.node_ids))
    total = ops.sum(sum((i + 1) * (out * out).sum() for i, out in enumerate(outputs)))
    total.backward()
    return graph.node_ids, graph.edge_ids, [out.data for out in outputs], [leaf.grad for leaf in leaves]


@SETTINGS
@given(graph=edges(), width=widths, mode=st.sampled_from(MODES), prefetch=st.integers(0, 2), tied=st.booleans(), data=st.data())
def test_splitting_edges_into_blocks_changes_nothing(graph, width, mode, prefetch, tied, data):
    n_ranks, owner = data.draw(parts(graph.n_nodes))
    order = data.draw(st.none() | st.permutations(range(graph.n_nodes)).map(np.array))
    x = (tied_values if tied else values)(1, graph.n_nodes, 2, width)
    q, weight = values(2, graph.n_nodes, 2), values(3, graph.n_edges, 2)
    _, _, outputs, grads = _run(Graph.from_edges(*graph), x, q, weight)
    options = {"order": order, "mode": mode, "prefetch": prefetch}
    ranks = threads.run(n_ranks, lambda comm: _run(Graph.from_edges(*graph).shard(comm, owner, **options), x, q, weight))
    for node_ids, edge_ids, local, (d_x, d_q, d_weight) in ranks:
        for k, (out, expected) in enumerate(zip(local, outputs)):
            np.testing.assert_allclose(out, expected[node_ids], rtol=1e-11, atol=1e-12, err_msg=f"output {k}")
        np.testing.assert_allclose(d_x, grads[0][node_ids], rtol=1e-10, atol=1e-11)
        np.testing.assert_allclose(d_q, grads[1][node_ids], rtol=1e-10, atol=1e-11)
        np.testing.assert_allclose(d_weight, grads[2][edge_ids], rtol=1e-10, atol=1e-11)


# ---- inputs that only a sharded graph could treat differently


def _gathered(n_ranks, aggregate, **options):
    """Return the rows of every rank, in node order."""
    out = np.full((EDGES.n_nodes, 3), np.nan)

    def work(comm):
        graph = Graph.from_edges(*EDGES).shard(comm, "random", **options)
        out[graph.node_ids] = aggregate(graph).data

    threads.run(n_ranks, work)
    return out


TABLE = values(4, 5, 3)
ODD_INPUTS = {
    "source rows of integers": lambda g: g.aggregate(
        lambda s, d, e: ops.take(Tensor(TABLE, True), s["kind"]), "sum", src={"kind": (np.arange(EDGES.n_nodes) % 5)[g.node_ids]}),
    "source rows of bools": lambda g: g.aggregate(
        lambda s, d, e: ops.where(s["on"], e["x"], 0.0), "sum",
        src={"on": (np.arange(EDGES.n_nodes * 3) % 2 > 0).reshape(-1, 3)[g.node_ids]}, edge={"x": values(5, EDGES.n_edges, 3)[g.edge_ids]}),
    "columns of a tensor": lambda g: g.aggregate(fn.copy_src(Tensor(values(6, EDGES.n_nodes, 8), True)[:, 2:5][g.node_ids]), "sum"),
    "a view of columns": lambda g: g.aggregate(fn.copy_src(Tensor(values(6, EDGES.n_nodes, 8)[g.node_ids], True)[:, 2:5]), "mean"),
    "a view of columns, max": lambda g: g.aggregate(fn.copy_src(Tensor(values(6, EDGES.n_nodes, 8)[g.node_ids], True)[:, 2:5]), "max"),
    "a view of columns in a message": lambda g: g.aggregate(
        lambda s, d, e: s["x"] * 2.0, "sum", src={"x": Tensor(values(6, EDGES.n_nodes, 8)[g.node_ids], True)[:, 2:5]}),
    "a column of weights": lambda g: g.aggregate(
        fn.mul_edge(values(6, EDGES.n_nodes, 3)[g.node_ids], Tensor(values(9, EDGES.n_edges, 2)[g.edge_ids], True)[:, 0]), "sum"),
    "a transpose": lambda g: g.aggregate(
        fn.copy_src(Tensor(np.ascontiguousarray(values(6, EDGES.n_nodes, 3)[g.node_ids].T), True).T), "sum"),
    "no source rows": lambda g: g.aggregate(lambda s, d, e: d["x"] * 2.0, "mean", dst={"x": values(7, EDGES.n_nodes, 3)[g.node_ids]}),
    "edge rows alone": lambda g: g.aggregate(lambda s, d, e: e["x"].tanh(), "max", edge={"x": values(8, EDGES.n_edges, 3)[g.edge_ids]}),
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ODD_INPUTS)
def test_odd_inputs_change_nothing(name, mode):
    expected = ODD_INPUTS[name](Graph.from_edges(*EDGES)).data
    np.testing.assert_allclose(_gathered(3, ODD_INPUTS[name], mode=mode), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("mode", MODES)
def test_rows_of_width_zero(mode):
    def work(comm):
        graph = Graph.from_edges(*EDGES).shard(comm, "random", mode=mode)
        x = Tensor(np.zeros((graph.n_src, 0)), requires_grad=True)
        out = graph.aggregate(fn.copy_src(x), "sum")
        out.backward(np.zeros_like(out.data))
        return out.shape == (graph.n_dst, 0)

    assert all(threads.run(3, work))


# ---- what cannot work is refused on all ranks


@pytest.mark.parametrize("parts, word", [
    (np.zeros(5, int), "shape"),
    (np.full(EDGES.n_nodes, 2), "node 0 has part 2"),
    (np.where(np.arange(EDGES.n_nodes) == 9, -1, 0), "node 9 has part -1"),
])  # fmt: skip
def test_parts_that_do_not_fit_are_refused(parts, word):
    with pytest.raises(DataError, match=word):
        threads.run(2, lambda comm: Graph.from_edges(*EDGES).shard(comm, parts))


@pytest.mark.parametrize("options, word", [({"mode": "both"}, "mode 'both'"), ({"prefetch": -1}, "-1"), ({"prefetch": 0.5}, "0.5")])
def test_unknown_options_are_refused(options, word):
    with pytest.raises(ConfigError, match=word):
        threads.run(2, lambda comm: Graph.from_edges(*EDGES).shard(comm, "random", **options))


def test_a_bad_part_on_one_rank_is_refused_on_all():
    refused = []

    def work(comm):
        indices = np.array([0, 7 if comm.rank == 1 else 1])
        with pytest.raises(DataError, match="source 7"):
            Graph.from_part(comm, np.array([0, 2]), indices)
        refused.append(comm.rank)

    threads.run(2, work)
    assert sorted(refused) == [0, 1]

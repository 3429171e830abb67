"""Aggregation by columns on a grid of ranks: equality, sums bit for bit, bytes by formula, failures (threads as ranks)."""

import math

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError
from sarlite.sar import columns
from tests.helpers import references
from tests.helpers.exchanges import EDGES, X, shard
from tests.helpers.references import CASES, check_equality
from tests.helpers.strategies import Edges, random_edges, values

pytestmark = pytest.mark.timeout(60)

GRIDS = [(1, 2), (1, 3), (2, 2), (3, 2)]
N = references.EDGES.n_nodes
PARTS = {  # of n ranks
    "random": lambda n: np.random.default_rng(3).integers(0, n, N),
    "one rank has all": lambda n: np.full(N, n - 1),
    "the first has none": lambda n: 1 + np.arange(N) % (n - 1),
}


@pytest.mark.sampled(11)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("case", [case for case in CASES if case not in ("edges mean", "softmax")])  # which go by rows
def test_equality(case, grid, mode, parts):
    n = math.prod(grid)
    for dtype, prefetch in ((np.float64, 1), (np.float32, 0)):
        threads.run(n, check_equality, case, dtype, PARTS[parts](n), mode=mode, prefetch=prefetch, columns=grid[1])


# ---- one group: sums are one rank's, bit for bit

_random = random_edges(300, 1200, seed=1)
HUBS = Edges(np.concatenate([_random.src, np.arange(300)]), np.concatenate([_random.dst, np.full(300, 7)]), 300)
"""A node has more edges than a kernel sums at once."""
HEADS = {"whole heads": (4, 0.0), "a head in parts": (1, 0.0), "dropped": (4, 0.4)}


def _sums(graph, how, dtype, width):
    """The output, and the gradients of what has a row a node."""
    ids = graph.node_ids
    x = Tensor(values(1, 300, width).astype(dtype)[ids], requires_grad=True)
    if how == "1-D":
        out = graph.aggregate(fn.copy_src(x.sum(1)), "sum")
    elif how == "weights":
        w = Tensor(values(2, HUBS.n_edges).astype(dtype)[graph.edge_ids], requires_grad=True)
        out = graph.aggregate(fn.mul_edge(x, w), "mean")
    elif how == "weights of heads":
        w = values(2, HUBS.n_edges, 3).astype(dtype)[graph.edge_ids]
        out = graph.aggregate(fn.mul_edge(x.reshape(-1, 1, width) * np.ones((3, 1), dtype), w), "sum")
    else:
        out = graph.aggregate(fn.copy_src(x), how)
    out.backward(np.cos(out.data))
    return out.data, x.grad


@pytest.mark.sampled(24)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 3, 17, 33, 130])
@pytest.mark.parametrize("n_columns", [2, 3])
@pytest.mark.parametrize("how", ["sum", "mean", "sym", "max", "min", "weights", "weights of heads", "1-D"])
def test_sums_are_one_ranks_bit_for_bit(how, n_columns, width, dtype):
    """Also of widths that are no multiple of the columns, or fewer."""
    whole = Graph.from_edges(*HUBS)
    parts = np.sort(np.random.default_rng(4).integers(0, n_columns, 300))  # rows stand in one rank's order
    found = threads.run(n_columns, lambda comm: _sums(whole.shard(comm, parts, columns=n_columns), how, dtype, width))
    for array, expected in zip(zip(*found), _sums(whole, how, dtype, width)):
        assert np.array_equal(np.concatenate(array), expected)


@pytest.mark.parametrize("form", HEADS)
def test_attention(form):
    """Heads are divided, and where they do not suffice the features of each: then the scores' gradients are added up."""
    n_heads, p = HEADS[form]
    whole = Graph.from_edges(*HUBS)

    def run(graph):
        leaves = [Tensor(values(k, 300, *shape)[graph.node_ids], requires_grad=True)
                  for k, shape in enumerate([(n_heads, 6), (n_heads,), (n_heads,)])]
        out = graph.aggregate(fn.attend(*leaves, dropout=p, key=11), "sum")
        out.backward(np.cos(out.data))
        return out.data, *(leaf.grad for leaf in leaves)

    expected = run(whole)
    for ids, found in threads.run(4, lambda comm: ((part := whole.shard(comm, "random", columns=4)).node_ids, run(part))):
        for a, b in zip(found, expected):
            np.testing.assert_allclose(a, b[ids], rtol=1e-11, atol=1e-12)


def test_pieces_are_even():
    """H heads of D features: gcd(C, H) ranks have other heads, the others other features of them."""
    shape = lambda piece: tuple(part.stop - part.start for part in piece)  # noqa: E731
    for n_ranks, heads, feat, whole, expected in [(4, 8, 5, False, {(2, 5)}), (4, 1, 8, False, {(1, 2)}), (4, 6, 4, False, {(3, 2)}),
                                                  (4, 8, 8, True, {(8, 2)}), (3, 4, 7, False, {(4, 2), (4, 3)}),
                                                  (4, 1, 2, False, {(1, 0), (1, 1)})]:
        pieces = columns._pieces(n_ranks, heads, feat, whole)
        assert {shape(piece) for piece in pieces} == expected
        covered = np.zeros((heads, feat), int)
        for piece in pieces:
            covered[piece] += 1
        assert (covered == 1).all()


# ---- what travels

WEIGHTS = values(2, EDGES.n_edges, 2)
N_IN = 6
WAYS = {  # (graph, x (n, 6)) -> aggregation; then by head and feature the width, and what else turns: (place, width for each piece)
    "sum": (lambda g, x: g.aggregate(fn.copy_src(x), "sum"), (1, 6), []),
    "max": (lambda g, x: g.aggregate(fn.copy_src(x), "max"), (1, 6), []),
    "narrow": (lambda g, x: g.aggregate(fn.copy_src(x.sum(1)), "mean"), (1, 1), []),
    "heads": (lambda g, x: _attend(g, x, 2), (2, 3), [("src", 2), ("dst", 2)]),
    "one head": (lambda g, x: _attend(g, x, 1), (1, 6), [("src", 1), ("dst", 1)]),
    "edge weights": (lambda g, x: _weigh(g, x, WEIGHTS[:, 0]), (1, 6), [("edge", None)]),
    "of heads": (lambda g, x: _weigh(g, x.reshape(-1, 2, 3), WEIGHTS), (2, 3), [("edge", 2)]),
}


def _weigh(graph, x, weights):
    return graph.aggregate(fn.mul_edge(x, Tensor(weights[graph.edge_ids], True)), "sum")


def _attend(graph, x, heads):
    z = x.reshape(-1, heads, N_IN // heads)
    return graph.aggregate(fn.attend(z, z.sum(-1), z.sum(-1)), "sum")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("grid", [(1, 2), (2, 2), (1, 4)])
@pytest.mark.parametrize("how", WAYS)
def test_bytes(how, grid):
    """Each way 2 (C - 1) / C of a rank's rows, what has no features to each rank that needs it; the rest is the inner graph's."""
    aggregate, (heads, feat), others = WAYS[how]
    n_columns = grid[1]
    by_head = math.gcd(n_columns, heads)
    by_feature = n_columns // by_head

    def work(comm):
        graph = shard(comm, columns=n_columns)
        x = Tensor(values(1, 50, N_IN)[graph.node_ids], requires_grad=True)
        out = aggregate(graph, x)
        forward = graph.profile.received_bytes.copy()
        out.backward(np.ones_like(out.data))
        own = {"src": graph.n_src, "dst": graph.n_dst, "edge": graph.n_edges}
        inner = graph.grid.graph
        return own, {"src": inner.n_src, "dst": inner.n_dst, "edge": inner.n_edges}, inner.plan, forward, graph.profile

    found = threads.run(math.prod(grid), work)
    for rank, (own, group, plan, forward, profile) in enumerate(found):
        k = rank % n_columns
        w = heads // by_head * (feat * (k % by_feature + 1) // by_feature - feat * (k % by_feature) // by_feature)
        turned = [(group["src"] - own["src"]) * w + own["dst"] * (heads * feat - w)]  # in forward: to columns, and back
        again = [own["src"] * (heads * feat - w) + (group["dst"] - own["dst"]) * w]  # in backward: the reverse
        for place, width in others:
            piece = 1 if width is None else width // by_head
            turned.append((group[place] - own[place]) * piece)
            again.append(own[place] * piece * (n_columns - 1))
        assert forward["forward_turn"] == 8 * sum(turned) == profile.received_bytes["forward_turn"]
        assert profile.received_bytes["backward_turn"] == 8 * sum(again)
        if how == "sum":
            assert profile.received_bytes["forward_fetch"] == 8 * w * plan.n_halo
            assert profile.received_bytes["backward_push"] == 8 * w * sum(arrival.n_send for arrival in plan.exchanges)
    for phase in ("forward_turn", "backward_turn"):
        assert sum(p.sent_bytes[phase] for *_, p in found) == sum(p.received_bytes[phase] for *_, p in found) > 0
    if how == "sum" and grid[0] == 1:
        assert found[0][-1].sent_bytes.keys() == {"forward_turn", "backward_turn"}
        assert sum(p.sent_bytes["forward_turn"] for *_, p in found) <= 8 * 2 * 50 * 6 * (n_columns - 1) // n_columns + 8 * 50


def test_a_layout_tells_its_sizes():
    """What it sends and receives is known without data."""

    def work(comm):
        graph = shard(comm, columns=4)
        grid = graph.grid
        pieces = columns._pieces(4, 2, 3, False)
        layout = columns.ColumnLayout(grid.transport, grid.counts.src, pieces, (2, 3))
        sent, received = (counter["forward_turn"] for counter in (graph.profile.sent_bytes, graph.profile.received_bytes))
        y = layout.to_columns(values(1, graph.n_src, 2, 3), "forward")
        assert (graph.profile.sent_bytes["forward_turn"] - sent, graph.profile.received_bytes["forward_turn"] - received) == tuple(
            8 * n for n in layout.sizes())
        layout.to_rows(y, "backward")
        back = graph.profile.received_bytes["backward_turn"], graph.profile.sent_bytes["backward_turn"]
        assert back == tuple(8 * n for n in layout.sizes())

    threads.run(4, work)


def test_constants_travel_once():
    """The sum of a constant is kept by rows, and constant edge weights by group; what is no constant travels again."""

    def work(comm):
        graph = shard(comm, columns=2)
        x = Tensor(X[graph.node_ids].copy(), constant=True)
        w = Tensor(WEIGHTS[graph.edge_ids, 0].copy(), constant=True)
        moved = []
        for k in range(3):
            before = sum(graph.profile.received_bytes.values())
            leaf = Tensor(values(k, 4, 3), requires_grad=True)
            out = graph.aggregate(fn.linear(x, leaf), "mean")
            out.backward(np.ones_like(out.data))
            one = sum(graph.profile.received_bytes.values())
            graph.aggregate(fn.mul_edge(X[graph.node_ids], w), "sum")
            moved.append((one - before, sum(graph.profile.received_bytes.values()) - one))
        changing = Tensor(w.data.copy())
        once, changing.data = graph.aggregate(fn.mul_edge(x, changing), "sum").data, 2 * w.data
        assert np.array_equal(graph.aggregate(fn.mul_edge(x, changing), "sum").data, 2 * once)
        return graph, moved, comm.allreduce(leaf.grad)

    whole = Graph.from_edges(*EDGES)
    expected = whole.aggregate(fn.copy_src(X), "mean").data.sum(0)[:, None] * np.ones(3)
    for graph, moved, gradient in threads.run(4, work):
        assert moved[0][0] > 0 == moved[1][0] == moved[2][0]
        assert moved[0][1] - moved[1][1] == 8 * (graph.grid.graph.n_edges - graph.n_edges) and moved[1] == moved[2]
        np.testing.assert_allclose(gradient, expected, rtol=1e-12)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["edge_src_ids", "column_ids", "weighted_degrees"])
def test_values_of_edges_make_the_plan_together(name):
    """The plan of rows is made at its first use, by all ranks: ranks as threads must not wait for each other's lock."""
    def work(comm):
        graph = shard(comm, columns=2)
        graph = graph.with_edge_values(np.ones(graph.n_edges))
        found = getattr(graph, name)
        return None if found is None else len(found)

    assert len(threads.run(2, work)) == 2


def test_custom_messages_go_by_rows():
    """Their plan is made at their first use; before, nothing knows of it."""

    def work(comm):
        graph = shard(comm, columns=2)
        repr(graph)
        graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum")
        assert callable(graph._schedule) and graph.grid.structure_bytes > 4 * graph.grid.graph.n_edges
        found = graph.aggregate(lambda src, dst, edge: src["x"].tanh(), "max", src={"x": X[graph.node_ids]}).data
        assert graph.plan.n_halo > 0
        return graph.node_ids, found

    expected = Graph.from_edges(*EDGES).aggregate(lambda src, dst, edge: src["x"].tanh(), "max", src={"x": X}).data
    for ids, found in threads.run(4, work):
        np.testing.assert_allclose(found, expected[ids], rtol=1e-12)


# ---- what is passed in: orders, added loops, two sides, few nodes


def test_rows_in_any_order_with_loops_and_edge_values():
    """A part's rows as a caller has them: edges out of order, with ids of their own or none, some loops added."""
    n, owner = 30, np.random.default_rng(5).integers(0, 4, 30)
    edges, loops = random_edges(n, 200, seed=6), np.arange(n) % 3 == 0
    src, dst = np.concatenate([edges.src, np.flatnonzero(loops)]), np.concatenate([edges.dst, np.flatnonzero(loops)])
    weights, x = values(3, len(src)), values(4, n, 5)
    by_row = np.argsort(owner, kind="stable")
    number = np.argsort(by_row)
    expected = np.zeros((n, 5))
    np.add.at(expected, dst, weights[:, None] * x[src])

    def work(comm, named):
        own = by_row[owner[by_row] == comm.rank]
        picked = np.concatenate([np.flatnonzero(dst == node) for node in own])
        indptr = np.concatenate([[0], np.cumsum([np.count_nonzero(dst == node) for node in own])])
        names = {"edge_ids": picked, "node_ids": own} if named else {}
        graph = Graph.from_part(comm, indptr, number[src[picked]], columns=2, added_loops=loops[own], **names)
        leaf = Tensor(weights[graph.edge_ids if named else picked].copy(), requires_grad=True)
        out = graph.aggregate(fn.mul_edge(x[own], leaf), "sum")
        np.testing.assert_allclose(out.data, expected[own], rtol=1e-12)
        out.backward(np.ones_like(out.data))
        np.testing.assert_allclose(leaf.grad, x[src[graph.edge_ids if named else picked]].sum(1), rtol=1e-12)
        assert not named or graph.plan.local.numbers is None  # ids stand in the order of the edges
        assert np.array_equal(graph.added_loops, loops[own]) and graph.grid.graph.added_loops.sum() >= loops[own].sum()

    for named in (True, False):
        threads.run(4, work, named)


def test_a_bipartite_graph():
    rng = np.random.default_rng(7)
    whole = Graph.from_edges(rng.integers(0, 20, 90), rng.integers(0, 11, 90), n_src=20, n_dst=11)
    x, d = values(1, 20, 4), values(2, 11, 2)

    def run(graph):
        leaf, scores = Tensor(x[graph.src_ids], requires_grad=True), Tensor(d[graph.dst_ids], requires_grad=True)
        z = leaf.reshape(-1, 2, 2)
        out = graph.aggregate(fn.attend(z, z.sum(-1), scores), "sum").reshape(-1, 4) + graph.aggregate(fn.copy_src(leaf), "sym")
        out.backward(np.cos(out.data))
        return out.data, leaf.grad, scores.grad

    expected = run(whole)
    for graph, found in threads.run(4, lambda comm: ((part := whole.shard(comm, "random", columns=2)), run(part))):
        for a, b, ids in zip(found, expected, (graph.dst_ids, graph.src_ids, graph.dst_ids)):
            np.testing.assert_allclose(a, b[ids], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n_nodes", [0, 3])
def test_fewer_nodes_than_ranks(n_nodes):
    edges = [np.arange(n_nodes), np.arange(n_nodes)[::-1].copy()]
    x = values(1, n_nodes, 3)

    def work(comm):
        graph = Graph.from_edges(*edges, n_nodes).shard(comm, "contiguous", columns=2)
        for reducer in ("sum", "mean", "sym", "max", "min"):
            leaf = Tensor(x[graph.node_ids], requires_grad=True)
            out = graph.aggregate(fn.copy_src(leaf), reducer)
            out.backward(np.ones_like(out.data))
            assert np.array_equal(out.data, x[::-1][graph.node_ids]) and (leaf.grad == 1).all()

    threads.run(6, work)


@pytest.mark.parametrize("n_columns, told", [(3, "columns 3 does not divide 4"), (0, "columns 0 is not a number"), (True, "columns True"),
                                             (None, "columns None")])
def test_what_cannot_be_is_refused_on_every_rank(n_columns, told):
    def work(comm):
        with pytest.raises(ConfigError, match=told):
            shard(comm, columns=n_columns)
        with pytest.raises(ConfigError, match="disagree.*columns"):
            shard(comm, columns=2 if comm.rank else 4)
        with pytest.raises(DataError, match="source 99"):
            Graph.from_part(comm, [0, 1], [99 if comm.rank == 2 else 0], columns=2)
        with pytest.raises(DataError, match="indptr does not ascend"):
            Graph.from_part(comm, [0, 5 if comm.rank == 2 else 2], [1, 0], columns=2)

    threads.run(4, work)

"""Bipartite graphs, whose sources and destinations are different nodes: plain NumPy on one rank, N ranks against one."""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse

from sarlite import Graph, Tensor, fn, gradcheck, nn
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.models import GAT, GATConv, GCNConv, SAGEConv
from sarlite.tape import ops
from tests.helpers.graph import references
from tests.helpers.graph.references import at_nodes, reduce_gradient, reduce_messages
from tests.helpers.graph.strategies import Edges, tied_values, values

pytestmark = pytest.mark.timeout(60)

REDUCERS, MODES = ("sum", "mean", "max", "min"), ("sar", "sa", "oneshot", "broadcast")
WIDTH, SLOPE = 5, 0.2


class Bipartite(NamedTuple):
    """Edge e goes from source src[e] to destination dst[e]."""

    src: np.ndarray
    dst: np.ndarray
    n_src: int
    n_dst: int

    @property
    def n_edges(self):
        return len(self.src)

    @property
    def joined(self):
        """Return the same edges over one set of nodes, the destinations after the sources, for the references."""
        return Edges(self.src, self.n_src + self.dst, self.n_src + self.n_dst)

    @property
    def dense(self):
        a = np.zeros((self.n_dst, self.n_src))
        np.add.at(a, (self.dst, self.src), 1)
        return a

    def graph(self):
        return Graph.from_edges(self.src, self.dst, n_src=self.n_src, n_dst=self.n_dst)


def random(n_src, n_dst, n_edges, seed=0, used_src=None, used_dst=None):
    """Return edges from the first `used_src` sources to the first `used_dst` destinations; other nodes are isolated."""
    rng = np.random.default_rng(seed)
    return Bipartite(rng.integers(0, used_src or n_src, n_edges), rng.integers(0, used_dst or n_dst, n_edges), n_src, n_dst)


KINDS = {
    "more sources": random(23, 9, 70),
    "more destinations": random(7, 19, 60, seed=1),
    "as many": random(11, 11, 40, seed=2),
    "isolated sources": random(20, 9, 40, seed=3, used_src=6),
    "isolated destinations": random(9, 21, 40, seed=4, used_dst=7),
    "isolated both": random(17, 15, 30, seed=5, used_src=8, used_dst=6),
    "one source": random(1, 6, 9, seed=6),
    "one destination": random(8, 1, 12, seed=7),
    "no edges": random(4, 3, 0, seed=8),
    "no destinations": random(5, 0, 0, seed=9, used_dst=1),
    "no sources": random(0, 5, 0, seed=9, used_src=1),
}
EDGES = random(31, 22, 150, seed=10, used_src=28, used_dst=19)
kinds = pytest.mark.parametrize("kind", KINDS)


def run(edges, aggregate, inputs, g):
    """Return the output, and the gradient of sum(out * g) for each input."""
    leaves = [Tensor(x, requires_grad=True) for x in inputs]
    out = aggregate(edges.graph(), *leaves)
    out.backward(g)
    return [out.data, *(leaf.grad for leaf in leaves)]


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for k, (one, other) in enumerate(zip(actual, expected)):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12, err_msg="output" if k == 0 else f"gradient {k - 1}")


def reference(edges, messages, reducer, g):
    """Return the reduction of messages and their gradient."""
    wide = np.concatenate([np.zeros((edges.n_src, *g.shape[1:])), g])
    return reduce_messages(edges.joined, messages, reducer)[0][edges.n_src :], reduce_gradient(edges.joined, messages, reducer, wide)


# ---- one rank against NumPy


@pytest.mark.sampled(14)
@pytest.mark.parametrize("reducer", REDUCERS)
@kinds
def test_copy_src_is_the_reference(kind, reducer):
    edges = KINDS[kind]
    for make in (values, tied_values):
        x, g = make(1, edges.n_src, WIDTH), values(2, edges.n_dst, WIDTH)
        out, d_messages = reference(edges, x[edges.src], reducer, g)
        expected = [out, at_nodes(edges.src, d_messages, edges.n_src)]
        assert_same(run(edges, lambda graph, x: graph.aggregate(fn.copy_src(x), reducer), [x], g), expected)
        assert_same(run(edges, lambda graph, x: graph.aggregate(lambda s, d, e: s["x"] * 1.0, reducer, src={"x": x}), [x], g), expected)


@pytest.mark.sampled(14)
@pytest.mark.parametrize("reducer", REDUCERS)
@kinds
def test_mul_edge_is_the_reference(kind, reducer):
    edges = KINDS[kind]
    x, w, g = values(1, edges.n_src, WIDTH), values(2, edges.n_edges), values(3, edges.n_dst, WIDTH)
    out, d_messages = reference(edges, x[edges.src] * w[:, None], reducer, g)
    expected = [out, at_nodes(edges.src, d_messages * w[:, None], edges.n_src), (d_messages * x[edges.src]).sum(1)]
    assert_same(run(edges, lambda graph, x, w: graph.aggregate(fn.mul_edge(x, w), reducer), [x, w], g), expected)


@pytest.mark.sampled(14)
@pytest.mark.parametrize("reducer", REDUCERS)
@kinds
def test_a_message_of_both_sides(kind, reducer):
    edges = KINDS[kind]
    x, q, w, g = values(1, edges.n_src, WIDTH), values(2, edges.n_dst, WIDTH), values(3, edges.n_edges, 1), values(4, edges.n_dst, WIDTH)
    inner = np.tanh(x[edges.src] + q[edges.dst])
    out, d_messages = reference(edges, inner * w, reducer, g)
    d_inner = d_messages * w * (1 - inner**2)
    expected = [out, at_nodes(edges.src, d_inner, edges.n_src), at_nodes(edges.dst, d_inner, edges.n_dst),
                (d_messages * inner).sum(1, keepdims=True)]

    def aggregate(graph, x, q, w):
        return graph.aggregate(lambda s, d, e: (s["x"] + d["q"]).tanh() * e["w"], reducer, src={"x": x}, dst={"q": q}, edge={"w": w})

    assert_same(run(edges, aggregate, [x, q, w], g), expected)


@kinds
def test_attend_is_the_reference(kind):
    edges = KINDS[kind]
    z, src, dst, g = values(1, edges.n_src, 2, 3), values(2, edges.n_src, 2), values(3, edges.n_dst, 2), values(4, edges.n_dst, 2, 3)
    n, m = edges.n_src, edges.n_dst
    all_z, all_src = np.concatenate([z, np.zeros((m, 2, 3))]), np.concatenate([src, np.zeros((m, 2))])
    all_dst, all_g = np.concatenate([np.zeros((n, 2)), dst]), np.concatenate([np.zeros((n, 2, 3)), g])
    d_z, d_src, d_dst = references.attend_gradient(edges.joined, all_z, all_src, all_dst, SLOPE, all_g)
    expected = [references.attend(edges.joined, all_z, all_src, all_dst, SLOPE)[n:], d_z[:n], d_src[:n], d_dst[n:]]
    assert_same(run(edges, lambda graph, *t: graph.aggregate(fn.attend(*t, SLOPE), "sum"), [z, src, dst], g), expected)

    def written(graph, z, src, dst):
        return graph.aggregate(lambda s, d, e: ((s["a"] + d["a"]).leaky_relu(SLOPE), s["z"]), "softmax",
                               src={"z": z, "a": src}, dst={"a": dst})

    assert_same(run(edges, written, [z, src, dst], g), expected)


def normalised(edges, reducer):
    """Return the matrix of reducer "sum", "mean" or "sym"."""
    a = edges.dense
    rows, columns = (np.maximum(a.sum(axis), 1) for axis in (1, 0))
    return {"sum": a, "mean": a / rows[:, None], "sym": a / np.sqrt(rows[:, None] * columns)}[reducer]


@pytest.mark.sampled(18)
@pytest.mark.parametrize("n_out", [2, 9])
@pytest.mark.parametrize("reducer", ["sum", "mean", "sym"])
@kinds
def test_linear_and_sym(kind, reducer, n_out):
    """Both orders are tested, A (X W) and (A X) W; "sym" divides by the sources' out-degrees."""
    edges = KINDS[kind]
    a, x, w, g = normalised(edges, reducer), values(1, edges.n_src, WIDTH), values(2, WIDTH, n_out), values(3, edges.n_dst, n_out)
    actual = run(edges, lambda graph, x, w: graph.aggregate(fn.linear(x, w), reducer), [x, w], g)
    assert_same(actual, [a @ x @ w, a.T @ g @ w.T, (a @ x).T @ g])
    g = values(4, edges.n_dst, WIDTH)
    assert_same(run(edges, lambda graph, x: graph.aggregate(fn.copy_src(x), reducer), [x], g), [a @ x, a.T @ g])


def test_ids_inside_a_message():
    seen = []

    def message(src, dst, edge):
        assert (src["n"].data[:, 0] == src.ids).all() and (dst["n"].data[:, 0] == dst.ids).all()
        assert len(np.unique(edge.ids)) == len(np.unique(src.ids + 1000 * dst.ids))
        seen.append(len(edge.ids))
        return src["n"] * 1.0

    graph = EDGES.graph()
    graph.aggregate(message, "sum", src={"n": np.arange(31.0)[:, None]}, dst={"n": np.arange(22.0)[:, None]})
    assert seen == [1, 1, EDGES.n_edges]  # the probe's two runs, and each edge


# ---- layers


def parameters(module):
    """Return the parameters by name, with random values: biases start at 0, which would hide them."""
    for k, p in enumerate(module.parameters()):
        p.data[...] = values(20 + k, *p.shape)
    return {name: p.data for name, p in module.named_parameters()}


def convs():
    return {
        "gcn": GCNConv(5, 3, rng=nn.Random(0), dtype=np.float64),
        "sage": SAGEConv(5, 3, rng=nn.Random(0), dtype=np.float64),
        "sage, max-pool": SAGEConv(5, 3, aggregator="max-pool", rng=nn.Random(0), dtype=np.float64),
        "gat": GATConv(5, 3, 2, residual=True, rng=nn.Random(0), dtype=np.float64),
    }


def expected_layer(name, edges, p, x, q):
    """Return a layer's output by the papers' equations, on dense matrices."""
    if name == "gcn":
        return normalised(edges, "sym") @ x @ p["linear.weight"] + p["bias"]
    if name == "gat":
        n, z = edges.n_src, (np.concatenate([x, q]) @ p["linear.weight"]).reshape(-1, 2, 3)
        out = references.attend(edges.joined, z, (z * p["attn_src"]).sum(2), (z * p["attn_dst"]).sum(2), 0.2)[n:]
        return out.reshape(-1, 6) + p["bias"] + q @ p["root.weight"]
    root = q @ p["root.weight"] + p["root.bias"]
    if name == "sage":
        return root + normalised(edges, "mean") @ x @ p["neighbour.weight"]
    pooled, a = np.maximum(x @ p["pool.weight"] + p["pool.bias"], 0), edges.dense
    return root + np.array([pooled[row > 0].max(0) if row.any() else np.zeros(5) for row in a]) @ p["neighbour.weight"]


@pytest.mark.parametrize("name", convs())
def test_layers_of_a_pair(name):
    conv = convs()[name]
    p, x, q = parameters(conv), values(1, EDGES.n_src, 5), values(2, EDGES.n_dst, 5)
    graph = EDGES.graph()
    np.testing.assert_allclose(conv(graph, (Tensor(x), Tensor(q))).data, expected_layer(name, EDGES, p, x, q), rtol=1e-11, atol=1e-12)
    leaves = Tensor(x, True), Tensor(q, True)
    gradcheck(lambda *_: conv(graph, leaves), [*leaves[: 1 if name == "gcn" else 2], *conv.parameters()], rtol=1e-5, atol=1e-6, entries=0)


# ---- N ranks against one


def outputs(graph, x, q, w):
    """Yield one output for each way to aggregate; float64 leaves x (n_src, 5), q (n_dst, 5), w (n_edges,)."""
    yield from (graph.aggregate(fn.copy_src(x), reducer) for reducer in ("sum", "mean", "sym", "max", "min"))
    yield from (graph.aggregate(fn.linear(x, values(5, 5, n)), reducer) for reducer in ("sum", "sym") for n in (2, 9))
    yield from (graph.aggregate(fn.mul_edge(x, w), reducer) for reducer in REDUCERS)
    z = x[:, :4].reshape(-1, 2, 2)
    yield graph.aggregate(fn.attend(z, z.sum(-1), q[:, :2], 0.2, 0.4, 11), "sum").reshape(-1, 4)
    inputs = dict(src={"x": x}, dst={"q": q}, edge={"w": w.reshape(-1, 1)})
    for message in (lambda s, d, e: (s["x"] + d["q"]).tanh() * e["w"], lambda s, d, e: ops.dropout(s["x"], e.ids, 3, 0.5) + d["q"]):
        yield from (graph.aggregate(message, reducer, **inputs) for reducer in ("mean", "max"))
    yield graph.aggregate(lambda s, d, e: ((s["x"] * d["q"]).sum(-1), s["x"]), "softmax", **inputs)
    yield from (conv(graph, (x, q)) for conv in convs().values())


def everything(graph, make=values):
    x, q, w = make(1, EDGES.n_src, 5), values(2, EDGES.n_dst, 5), values(3, EDGES.n_edges)
    leaves = [Tensor(a[ids], True) for a, ids in ((x, graph.src_ids), (q, graph.dst_ids), (w, graph.edge_ids))]
    outs = list(outputs(graph, *leaves))
    sum((k + 1) * (out * out).sum() for k, out in enumerate(outs)).backward()
    return graph, [out.data for out in outs], [leaf.grad for leaf in leaves]


@cache
def one_rank(make):
    return everything(EDGES.graph(), make)


def check_sharded(n_ranks, make, **options):
    _, expected, grads = one_rank(make)
    ranks = threads.run(n_ranks, lambda comm: everything(EDGES.graph().shard(comm, **options), make))
    for graph, outs, local in ranks:
        for k, (out, whole) in enumerate(zip(outs, expected)):
            np.testing.assert_allclose(out, whole[graph.dst_ids], rtol=1e-12, atol=1e-12, err_msg=f"output {k}")
        for name, d, whole, ids in zip("xqw", local, grads, (graph.src_ids, graph.dst_ids, graph.edge_ids)):
            error = np.linalg.norm(d - whole[ids]) / np.linalg.norm(whole)
            assert error < 1e-12, f"gradient of {name} is off by {error:.3g}"
    for ids, n in (("src_ids", EDGES.n_src), ("dst_ids", EDGES.n_dst), ("edge_ids", EDGES.n_edges)):
        assert np.sort(np.concatenate([getattr(graph, ids) for graph, *_ in ranks])).tolist() == list(range(n))
    assert all(graph.bipartite and graph.n_nodes == EDGES.n_dst for graph, *_ in ranks)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
def test_several_ranks_equal_one_rank(n_ranks, mode, prefetch):
    rng = np.random.default_rng(n_ranks)
    parts, src_parts = rng.integers(0, n_ranks, EDGES.n_dst), rng.integers(0, n_ranks, EDGES.n_src)
    check_sharded(n_ranks, tied_values if prefetch else values, parts=parts, src_parts=src_parts, mode=mode, prefetch=prefetch)


@pytest.mark.parametrize("parts, src_parts", [("metis", None), ("random", None), ("contiguous", "random"), ("metis", "metis")])
def test_divisions_by_name(parts, src_parts):
    check_sharded(3, values, parts=parts, src_parts=src_parts)


def test_a_rank_without_sources_and_one_without_destinations():
    """All messages go in one direction."""
    check_sharded(2, values, parts=np.ones(EDGES.n_dst, int), src_parts=np.zeros(EDGES.n_src, int))
    check_sharded(3, values, parts=np.zeros(EDGES.n_dst, int), src_parts=1 + np.arange(EDGES.n_src) % 2)


# ---- where they come from


@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.coo_array, scipy.sparse.csc_matrix])
def test_from_a_rectangular_scipy_array(kind):
    a = (EDGES.dense > 0).astype(float)
    graph, x = Graph.from_csr(kind(a)), values(1, EDGES.n_src, 3)
    assert graph.bipartite and (graph.n_src, graph.n_dst) == (EDGES.n_src, EDGES.n_dst)
    np.testing.assert_allclose(graph.aggregate(fn.copy_src(x), "sum").data, a @ x, rtol=1e-12)


def test_from_csr_with_n_src():
    """The graph may be square; indices go up to n_src, and not beyond."""
    indptr, indices = EDGES.graph().in_edges()[:2]
    graph, x = Graph.from_csr(indptr, indices, n_src=EDGES.n_src), values(1, EDGES.n_src, 3)
    np.testing.assert_allclose(graph.aggregate(fn.copy_src(x), "sum").data, EDGES.dense @ x, rtol=1e-12)
    assert Graph.from_csr(scipy.sparse.csr_array(np.eye(3)), n_src=3).bipartite
    assert not Graph.from_csr(scipy.sparse.csr_array(np.eye(3))).bipartite
    with pytest.raises(DataError, match="source"):
        Graph.from_csr(indptr, indices, n_src=int(indices.max()))


def test_deduplicated_edges_count_once():
    graph = Graph.from_edges(*EDGES[:2], n_src=EDGES.n_src, n_dst=EDGES.n_dst, deduplicate=True)
    x = values(1, EDGES.n_src, 3)
    np.testing.assert_allclose(graph.aggregate(fn.copy_src(x), "sum").data, (EDGES.dense > 0) @ x, rtol=1e-12)


def test_one_layer_of_a_model_and_no_more():
    graph, x, q = EDGES.graph(), values(1, EDGES.n_src, 5), values(2, EDGES.n_dst, 5)
    assert graph.layers(1) == [graph]
    with pytest.raises(ConfigError, match="2 layers over a bipartite graph"):
        GAT(5, 3, layers=2, input_dropout=0.0, rng=nn.Random(0), dtype=np.float64)(graph, (Tensor(x), Tensor(q)))


REFUSED = {
    "two layers": (lambda g: g.layers(2), ConfigError, "2 layers"),
    "undirected": (lambda g: Graph.from_edges([0], [0], n_src=1, n_dst=2, undirected=True), ConfigError, "bipartite"),
    "self loops": (lambda g: Graph.from_edges([0], [0], n_src=1, n_dst=2, self_loops=True), ConfigError, "bipartite"),
    "n_src alone": (lambda g: Graph.from_edges([0], [0], n_src=1), ConfigError, "n_dst"),
    "n_dst alone": (lambda g: Graph.from_edges([0], [0], n_dst=1), ConfigError, "n_src"),
    "n_nodes too": (lambda g: Graph.from_edges([0], [0], 1, n_src=1, n_dst=1), ConfigError, "n_nodes"),
    "source out of range": (lambda g: Graph.from_edges([0, 3], [0, 4], n_src=3, n_dst=5), DataError, "src: node id 3 at position 1"),
    "destination out of range": (lambda g: Graph.from_edges([0, 4], [0, 3], n_src=5, n_dst=3), DataError, "dst: node id 3 at position 1"),
    "no pair": (lambda g: SAGEConv(5, 3, rng=nn.Random(0))(g, Tensor(np.zeros((31, 5), np.float32))), ShapeError, "pair"),
    "the pair turned": (lambda g: GCNConv(5, 3, rng=nn.Random(0))(g, (np.zeros((22, 5), np.float32), np.zeros((31, 5), np.float32))),
                        ShapeError, "31 rows"),
    "destinations as sources": (lambda g: g.aggregate(fn.copy_src(np.zeros((22, 2))), "sum"), ShapeError, "31 rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_inputs_are_refused(name):
    make, error, word = REFUSED[name]
    with pytest.raises(error, match=word):
        make(EDGES.graph())


@pytest.mark.parametrize("options, error, word", [
    (dict(parts="random", order="metis"), ConfigError, "order"),
    (dict(parts="random", order=np.arange(22)), ConfigError, "order"),
    (dict(parts=np.arange(22) % 2), ConfigError, "src_parts"),
    (dict(parts=np.arange(22) % 2, src_parts="metis"), ConfigError, "both sides"),
    (dict(parts=np.arange(22) % 2, src_parts=np.arange(22) % 2), DataError, "31"),
    (dict(parts=np.arange(31) % 2, src_parts=np.arange(31) % 2), DataError, "22"),
])  # fmt: skip
def test_divisions_that_do_not_fit_are_refused_on_every_rank(options, error, word):
    refused = []

    def work(comm):
        with pytest.raises(error, match=word):
            EDGES.graph().shard(comm, **options)
        refused.append(comm.rank)

    threads.run(2, work)
    assert sorted(refused) == [0, 1]


def test_sources_of_their_own_are_for_bipartite_graphs():
    def work(comm):
        with pytest.raises(ConfigError, match="src_parts"):
            Graph.from_edges([0, 1], [1, 0]).shard(comm, "random", src_parts="random")

    threads.run(2, work)

"""Aggregation on one rank: built-in messages against plain NumPy, and against the same formulas as user-defined messages."""


import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarlite import Graph, Tensor, fn, gradcheck, nn
from sarlite.comm import threads
from sarlite.tape import ops
from tests.helpers.graph import references
from tests.helpers.graph.references import at_nodes, reduce_gradient, reduce_messages
from tests.helpers.graph.strategies import KINDS, SETTINGS, edges, random_edges, tied_values, values, widths

pytestmark = pytest.mark.timeout(60)

REDUCERS = ("sum", "mean", "max", "min")
HEADS, FEAT, SLOPE, KEY, P = 2, 5, 0.2, 77, 0.4
TOLERANCE = {"float64": dict(rtol=1e-12, atol=1e-12), "float32": dict(rtol=2e-5, atol=2e-5)}
kinds, dtypes = pytest.mark.parametrize("kind", KINDS), pytest.mark.parametrize("dtype", ["float64", "float32"])


def run(edges, aggregate, inputs, g, dtype):
    """Return the output, and the gradient of sum(out * g) for each input."""
    leaves = [Tensor(x.astype(dtype), requires_grad=True) for x in inputs]
    out = aggregate(Graph.from_edges(*edges), *leaves)
    out.backward(g.astype(dtype))
    assert out.dtype == dtype and all(leaf.grad.dtype == dtype for leaf in leaves)
    return [out.data, *(leaf.grad for leaf in leaves)]


def assert_same(actual, expected, dtype="float64"):
    assert len(actual) == len(expected)
    for k, (one, other) in enumerate(zip(actual, expected)):
        np.testing.assert_allclose(one, other, **TOLERANCE[dtype], err_msg="output" if k == 0 else f"gradient {k - 1}")


# ---- fused, written as a message, and in plain NumPy


@pytest.mark.sampled(21)
@dtypes
@pytest.mark.parametrize("reducer", REDUCERS)
@kinds
def test_copy_src_is_the_reference(kind, reducer, dtype):
    edges = KINDS[kind]
    for make in (values, tied_values):
        x, g = make(1, edges.n_nodes, FEAT), values(2, edges.n_nodes, FEAT)
        x = x.astype(np.float32).astype(np.float64)  # float32 sees the same order
        fused = run(edges, lambda graph, x: graph.aggregate(fn.copy_src(x), reducer), [x], g, dtype)
        written = run(edges, lambda graph, x: graph.aggregate(lambda s, d, e: s["x"] * 1.0, reducer, src={"x": x}), [x], g, dtype)
        d_messages = reduce_gradient(edges, x[edges.src], reducer, g)
        expected = [reduce_messages(edges, x[edges.src], reducer)[0], at_nodes(edges.src, d_messages, edges.n_nodes)]
        assert_same(fused, expected, dtype)
        assert_same(written, expected, dtype)


WEIGHT_SHAPES = {"an edge": ((FEAT,), ()), "an edge, of heads": ((HEADS, FEAT), ()), "a head": ((HEADS, FEAT), (HEADS,))}


@pytest.mark.sampled(42)
@dtypes
@pytest.mark.parametrize("one", WEIGHT_SHAPES)
@pytest.mark.parametrize("reducer", REDUCERS)
@kinds
def test_mul_edge_is_the_reference(kind, reducer, one, dtype):
    edges, (row, weight_row) = KINDS[kind], WEIGHT_SHAPES[one]
    x, w, g = values(1, edges.n_nodes, *row), values(2, edges.n_edges, *weight_row), values(3, edges.n_nodes, *row)
    wide = lambda w: w.reshape(*w.shape, *[1] * (x.ndim - w.ndim))  # noqa: E731

    def message(src, dst, edge):
        return src["x"] * wide(edge["w"])

    fused = run(edges, lambda graph, x, w: graph.aggregate(fn.mul_edge(x, w), reducer), [x, w], g, dtype)
    written = run(edges, lambda graph, x, w: graph.aggregate(message, reducer, src={"x": x}, edge={"w": w}), [x, w], g, dtype)
    messages = x[edges.src] * wide(w)
    d_messages = reduce_gradient(edges, messages, reducer, g)
    d_w = (d_messages * x[edges.src]).sum(axis=tuple(range(w.ndim, x.ndim)))
    expected = [reduce_messages(edges, messages, reducer)[0], at_nodes(edges.src, d_messages * wide(w), edges.n_nodes), d_w]
    assert_same(fused, expected, dtype)
    assert_same(written, expected, dtype)
    fixed = run(edges, lambda graph, x: graph.aggregate(fn.mul_edge(x, w.astype(dtype)), reducer), [x], g, dtype)
    assert_same(fixed, expected[:2], dtype)


def attend_by_hand(p):
    """Attention as a message: scores and values, with the kernel's dropout mask on the values."""

    def aggregate(graph, z, src, dst):
        def message(s, d, e):
            ones = Tensor(np.ones((len(s["z"]), HEADS), z.dtype))
            mask = ops.dropout(ones, e.ids, KEY, p) if p else ones
            return (s["src"] + d["dst"]).leaky_relu(SLOPE), s["z"] * mask.reshape(-1, HEADS, 1)

        return graph.aggregate(message, "softmax", src={"z": z, "src": src}, dst={"dst": dst})

    return aggregate


def coins(edges, p):
    """Return the dropout mask of every coefficient, from the operation that keys it by the edge's number."""
    if not p:
        return 1.0
    return ops.dropout(Tensor(np.ones((edges.n_edges, HEADS))), edges.src * edges.n_nodes + edges.dst, KEY, p).data


@dtypes
@pytest.mark.parametrize("p", [0.0, P])
@kinds
def test_attend_is_the_reference(kind, p, dtype):
    edges = KINDS[kind]
    z, src, dst = values(1, edges.n_nodes, HEADS, FEAT), values(2, edges.n_nodes, HEADS), values(3, edges.n_nodes, HEADS)
    g = values(4, edges.n_nodes, HEADS, FEAT)
    fused = run(edges, lambda graph, *t: graph.aggregate(fn.attend(*t, SLOPE, p, KEY), "sum"), [z, src, dst], g, dtype)
    written = run(edges, attend_by_hand(p), [z, src, dst], g, dtype)
    mask = coins(edges, p)
    expected = [references.attend(edges, z, src, dst, SLOPE, mask), *references.attend_gradient(edges, z, src, dst, SLOPE, g, mask)]
    assert_same(fused, expected, dtype)
    assert_same(written, expected, dtype)


def test_the_reference_drops_some_coefficients_and_not_others():
    mask = coins(KINDS["random"], P)
    assert 0.2 < (mask == 0).mean() < 0.6
    np.testing.assert_allclose(mask[mask > 0], 1 / (1 - P))


@pytest.mark.parametrize("shift", [-700.0, 700.0])
def test_shifting_scores_changes_no_softmax(shift):
    edges = KINDS["random"]
    z, src, dst = values(1, edges.n_nodes, HEADS, FEAT), values(2, edges.n_nodes, HEADS), values(3, edges.n_nodes, HEADS)

    def custom(shift):
        scores = lambda s, d, e: (s["src"] + d["dst"] + shift, s["z"])  # noqa: E731
        g = values(4, *z.shape)
        aggregate = lambda graph, *t: graph.aggregate(scores, "softmax", src={"z": t[0], "src": t[1]}, dst={"dst": t[2]})  # noqa: E731
        return run(edges, aggregate, [z, src, dst], g, "float64")

    for one, other in zip(custom(0.0), custom(shift)):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
    fused = lambda d: run(edges, lambda graph, *t: graph.aggregate(fn.attend(*t, 1.0), "sum"), [z, src, dst + d], values(4, *z.shape), "float64")  # noqa: E731, E501
    for one, other in zip(fused(0.0), fused(shift)):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


# ---- gradients against finite differences

GRADCHECKED = ["random", "empty rows", "self loops", "duplicate edges", "star in", "one node, no edges"]


@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize("kind", GRADCHECKED)
def test_gradcheck_of_built_ins(kind, reducer):
    edges = KINDS[kind]
    graph, x, w = Graph.from_edges(*edges), values(1, edges.n_nodes, 3), values(2, edges.n_edges)
    gradcheck(lambda x: graph.aggregate(fn.copy_src(x), reducer), [x])
    gradcheck(lambda x, w: graph.aggregate(fn.mul_edge(x, w), reducer), [x, w])


@pytest.mark.sampled(7)
@pytest.mark.parametrize("p", [0.0, P])
@pytest.mark.parametrize("kind", GRADCHECKED)
def test_gradcheck_of_attend(kind, p):
    edges = KINDS[kind]
    n = edges.n_nodes
    graph, inputs = Graph.from_edges(*edges), [values(1, n, 2, 3), values(2, n, 2), values(3, n, 2)]
    gradcheck(lambda *t: graph.aggregate(fn.attend(*t, SLOPE, p, KEY), "sum"), inputs)
    gradcheck(lambda *t: attend_by_hand(p)(graph, *t), inputs)


def _captured(graph, reducer, w, b, scale, x, q, weight):
    def message(src, dst, edge):
        return ((src["x"] + dst["q"]).tanh() @ w + b) * edge["weight"] * scale.exp()

    return graph.aggregate(message, reducer, src={"x": x}, dst={"q": q}, edge={"weight": weight})


@pytest.mark.sampled(10)
@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize("kind", GRADCHECKED)
def test_gradcheck_of_captured_values(kind, reducer):
    edges = KINDS[kind]
    n, graph = edges.n_nodes, Graph.from_edges(*edges)
    inputs = [values(k, *shape) for k, shape in enumerate([(3, 2), (2,), (2,), (n, 3), (n, 3), (edges.n_edges, 1)])]
    gradcheck(lambda *t: _captured(graph, reducer, *t), inputs)


def test_gradcheck_where_captured_values_are_computed_first():
    graph, (x, w) = Graph.from_edges(*KINDS["random"]), (values(1, 13, 3), values(2, 3, 2))

    def f(x, w):
        square = w * w  # recorded before the message: its gradient goes on to w
        mean = graph.aggregate(fn.copy_src(x), "mean")
        return graph.aggregate(lambda s, d, e: (s["x"] * d["m"]) @ square + square[0], "max", src={"x": x}, dst={"m": mean})

    gradcheck(f, [x, w])


def test_a_captured_value_used_twice_and_outside():
    graph, x, w = Graph.from_edges(*KINDS["random"]), values(1, 13, 3), Tensor(values(2, 3, 3), requires_grad=True)

    def f(x, w):
        h = graph.aggregate(lambda s, d, e: (s["x"] @ w).tanh() @ w, "sum", src={"x": x})
        return graph.aggregate(lambda s, d, e: s["h"] @ w, "mean", src={"h": h}) @ w

    gradcheck(f, [Tensor(x, True), w])


def test_learnable_values_in_a_module_get_their_gradient():
    model = nn.Linear(3, 2, rng=nn.Random(0), dtype=np.float64)
    graph = Graph.from_edges(*KINDS["random"])
    inputs = [values(1, 13, 3), *model.parameters()]
    gradcheck(lambda x, *_: graph.aggregate(lambda s, d, e: model(s["x"]).relu(), "mean", src={"x": x}), inputs)


# ---- properties


def outputs(graph, x, weight, order=slice(None)):
    """Return one output and gradient of x for each way to aggregate."""
    score = lambda x: x.sum(-1).reshape(-1, 1)  # noqa: E731
    ways = {
        **{f"copy_src {r}": lambda x, r=r: graph.aggregate(fn.copy_src(x), r) for r in REDUCERS},
        **{f"mul_edge {r}": lambda x, r=r: graph.aggregate(fn.mul_edge(x, weight), r) for r in REDUCERS},
        **{f"message {r}": lambda x, r=r: graph.aggregate(lambda s, d, e: (s["x"] + d["x"]).tanh(), r, src={"x": x}, dst={"x": x})
           for r in REDUCERS},
        "attend": lambda x: graph.aggregate(fn.attend(x.reshape(-1, 1, x.shape[1]), score(x), score(x)), "sum"),
        "softmax": lambda x: graph.aggregate(lambda s, d, e: (s["x"].sum(-1), s["x"]), "softmax", src={"x": x}),
    }
    for name, way in ways.items():
        leaf = Tensor(x, requires_grad=True)
        out = way(leaf)
        out.backward(values(9, *out.shape)[order])
        yield name, out.data.reshape(x.shape), leaf.grad


@SETTINGS
@given(graph=edges(), width=widths, tied=st.booleans())
def test_isolated_nodes_aggregate_to_zero(graph, width, tied):
    x, weight = (tied_values if tied else values)(1, graph.n_nodes, width), values(2, graph.n_edges)
    x -= 3.0  # a node without neighbours must not get another node's maximum
    isolated = np.setdiff1d(np.arange(graph.n_nodes), graph.dst)
    unused = np.setdiff1d(np.arange(graph.n_nodes), np.concatenate([graph.src, graph.dst]))
    for name, out, dx in outputs(Graph.from_edges(*graph), x, weight):
        assert np.isfinite(out).all() and np.isfinite(dx).all(), name
        assert (out[isolated] == 0).all(), name
        assert (dx[unused] == 0).all(), name


def test_what_arrives_only_at_isolated_nodes_goes_nowhere():
    edges = KINDS["empty rows"]
    isolated = np.bincount(edges.dst, minlength=edges.n_nodes) == 0
    graph = Graph.from_edges(*edges)
    for reducer in REDUCERS:
        for message in (fn.copy_src, lambda x: fn.mul_edge(x, np.ones(edges.n_edges))):
            x = Tensor(values(1, edges.n_nodes, 3), requires_grad=True)
            graph.aggregate(message(x), reducer).backward(np.where(isolated[:, None], 1.0, np.zeros((1, 3))))
            assert (x.grad == 0).all()
    z, src, dst = (Tensor(values(k, edges.n_nodes, *shape), True) for k, shape in enumerate([(1, 3), (1,), (1,)]))
    graph.aggregate(fn.attend(z, src, dst), "sum").backward(np.where(isolated[:, None, None], 1.0, 0.0) * np.ones((1, 1, 3)))
    assert all((t.grad == 0).all() for t in (z, src, dst))


@SETTINGS
@given(graph=edges(), width=widths, data=st.data())
def test_relabelling_the_nodes_permutes_the_output(graph, width, data):
    order = np.array(data.draw(st.permutations(range(graph.n_nodes))))  # node i becomes order[i]
    x, weight, back = values(1, graph.n_nodes, width), values(2, graph.n_edges), np.argsort(order)
    whole = outputs(Graph.from_edges(*graph), x, weight)
    renamed = outputs(Graph.from_edges(*graph.relabelled(order)), x[back], weight, back)
    for (name, out, dx), (_, other, other_dx) in zip(whole, renamed):
        np.testing.assert_allclose(other[order], out, rtol=1e-12, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(other_dx[order], dx, rtol=1e-11, atol=1e-12, err_msg=name)


@SETTINGS
@given(graph=edges(), width=widths)
def test_sums_have_their_adjoint(graph, width):
    """<A x, y> = <x, A' y>."""
    weight, y = values(2, graph.n_edges), values(3, graph.n_nodes, width)
    for message in (fn.copy_src, lambda x: fn.mul_edge(x, weight)):
        for reducer in ("sum", "mean"):
            x = Tensor(values(1, graph.n_nodes, width), requires_grad=True)
            out = Graph.from_edges(*graph).aggregate(message(x), reducer)
            out.backward(y)
            np.testing.assert_allclose((out.data * y).sum(), (x.data * x.grad).sum(), rtol=1e-10, atol=1e-10)


# ---- ties

TIED = random_edges(17, 120, seed=3, n_dst=14)


def tie_gradient(sign, comm=None, written=False, **options):
    graph = Graph.from_edges(*TIED)
    if comm is not None:
        graph = graph.shard(comm, "random", **options)
    x = Tensor(tied_values(8, TIED.n_nodes, 6)[graph.node_ids], requires_grad=True)
    message = fn.message(lambda s, d, e: s["x"] * 1.0, {"x": x}) if written else fn.copy_src(x)
    out = graph.aggregate(message, "max" if sign > 0 else "min")
    out.backward(values(5, TIED.n_nodes, 6)[graph.node_ids])
    return graph.node_ids, out.data, x.grad


@pytest.mark.sampled(14)
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 6])
def test_ties_go_once_to_the_lowest_node(n_ranks, mode, written):
    x, g = tied_values(8, TIED.n_nodes, 6), values(5, TIED.n_nodes, 6)
    for sign in (1, -1):
        best, expected = np.zeros_like(x), np.zeros_like(x)
        for i in range(TIED.n_nodes):
            sources = np.unique(TIED.src[TIED.dst == i])
            for f in range(6 if len(sources) else 0):
                first = sources[np.argmax(sign * x[sources, f])]  # the first of equal edges
                best[i, f] = x[first, f]
                expected[first, f] += g[i, f]
        for order in (None, np.random.default_rng(2).permutation(TIED.n_nodes)):
            for ids, out, grad in threads.run(n_ranks, lambda comm: tie_gradient(sign, comm, written, mode=mode, order=order)):  # noqa: B023
                np.testing.assert_array_equal(out, best[ids])
                np.testing.assert_allclose(grad, expected[ids], rtol=1e-12, atol=1e-12)

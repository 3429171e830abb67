"""Python messages: masked softmax, the case that the probe detects, and what a message may do with the probe's rows."""

import threading

import numpy as np
import pytest

from sarlite import Graph, Tensor, nn
from sarlite.comm import threads
from sarlite.errors import ConfigError, ShapeError
from sarlite.kernels import Buffers
from sarlite.tape import no_grad
from tests.helpers.graph.piece_cases import in_small_pieces

pytestmark = pytest.mark.timeout(60)

N = 9
RNG = np.random.default_rng(3)
SRC = np.array([0, 1, 2, 3, 8, 0, 1, 3, 6, 7, 8, 8, 4, 4])
DST = np.array([4, 4, 4, 4, 4, 5, 5, 6, 6, 6, 6, 7, 0, 2])  # 3 and 8 have no in-edges
X, Q, SCORE = RNG.standard_normal((N, 3)), RNG.standard_normal((N, 3)), RNG.standard_normal((N, 2))
LAYOUTS = [("sar", 1, 0), ("sar", 2, 0), ("sar", 3, 1), ("sa", 1, 0), ("sa", 3, 0), ("oneshot", 1, 0), ("oneshot", 3, 0)]
G = RNG.standard_normal((N, 2, 3))


def run(layout, aggregate, *inputs, g=G):
    """Return the output and the gradients of the inputs for the whole graph; each rank has N / n_ranks consecutive nodes."""
    mode, n_ranks, prefetch = layout

    def work(comm):
        graph = Graph.from_edges(SRC, DST, N).shard(comm, np.arange(N) * n_ranks // N, mode=mode, prefetch=prefetch)
        ids = graph.node_ids
        leaves = [Tensor(x[ids].copy(), requires_grad=True) for x in inputs]
        with np.errstate(all="raise", under="ignore"):
            out = aggregate(graph, *leaves)
            out.backward(g[ids].reshape(out.shape).copy())
        return [ids, out.data, *(np.zeros(leaf.shape) if leaf.grad is None else leaf.grad for leaf in leaves)]

    ids, *arrays_of_ranks = (np.concatenate(arrays) for arrays in zip(*threads.run(n_ranks, work)))
    return [array[np.argsort(ids)] for array in arrays_of_ranks]


def test_a_message_that_picks_rows_of_an_owned_table_in_a_flat_array():
    """The message runs in pieces, and another step uses the table, too; the gradient equals a loop over the edges."""
    picks, table = np.array([2, 0, 2]), nn.Embedding(np.arange(4), 3, rng=nn.Random(0), dtype=np.float64)
    flat = nn.flatten(table)
    flat.zero_grad()
    graph, x = in_small_pieces(Graph.from_edges(SRC, DST, N)), Tensor(X, requires_grad=True)
    out = graph.aggregate(lambda src, dst, edge: src["x"] * table.weight[picks].sum(0), "sum", src={"x": x})
    (out.sum() + table.weight[np.array([1, 1])].sum()).backward()
    rows = table.weight.data
    d_rows, d_x = np.zeros((4, 3)), np.zeros((N, 3))
    for source in SRC:
        np.add.at(d_rows, picks, X[source])
        d_x[source] += rows[picks].sum(0)
    d_rows[1] += 2
    np.testing.assert_allclose(flat.owned[0].grad, d_rows, rtol=1e-12)
    np.testing.assert_allclose(x.grad, d_x, rtol=1e-12)


# ---- masked edges


def softmax(score, value):
    """Return each node's softmax over its edges, and its gradients, edge by edge.

    A node whose scores are all -inf has 0.
    """
    out, d_score, d_value = np.zeros((N, 2, 3)), np.zeros_like(score), np.zeros_like(value)
    for i in range(N):
        edges = np.flatnonzero(DST == i)
        for h in range(2):
            seen = edges[np.isfinite(score[SRC[edges], h])]
            if len(seen):
                a = np.exp(score[SRC[seen], h] - score[SRC[seen], h].max())
                a /= a.sum()
                out[i, h] = a @ value[SRC[seen], h]
                for e, share in zip(seen, a):
                    d_value[SRC[e], h] += share * G[i, h]
                    d_score[SRC[e], h] += share * ((value[SRC[e], h] - out[i, h]) @ G[i, h])
    return out, d_score, d_value


MASKED = {"the first block": [0, 1, 2], "all of node 5's": [0, 1], "the last": [8], "but one": [0, 1, 2, 3, 4, 6, 7], "all": range(N),
    "none": []}


@pytest.mark.parametrize("masked", MASKED)
def test_a_masked_softmax_ignores_masked_edges(masked):
    score, value = SCORE.copy(), RNG.standard_normal((N, 2, 3))
    score[list(MASKED[masked])] = -np.inf
    expected = softmax(score, value)
    attend = lambda graph, s, v: graph.aggregate(lambda src, dst, edge: (src["s"], src["v"]), "softmax", src={"s": s, "v": v})  # noqa: E731
    for layout in LAYOUTS:
        for actual, want in zip(run(layout, attend, score, value), expected):
            np.testing.assert_allclose(actual, want, rtol=1e-12, atol=1e-13, err_msg=str(layout))


def test_softmax_masked_by_an_edge():
    """The mask belongs to an edge and the score is finite: nothing flows to a masked edge, and a head without edges is 0."""
    mask = np.zeros((len(SRC), 2))
    mask[DST == 5] = mask[DST == 4, 0] = -np.inf
    mask[[0, 8]] = -np.inf
    value = RNG.standard_normal((N, 2, 3))

    def attend(graph, s, v):
        message = lambda src, dst, edge: (src["s"] + edge["mask"], src["v"])  # noqa: E731
        return graph.aggregate(message, "softmax", src={"s": s, "v": v}, edge={"mask": mask[graph.edge_ids]})

    whole = run(LAYOUTS[0], attend, SCORE, value)
    assert (whole[0][[3, 5, 8]] == 0).all() and (whole[0][4, 0] == 0).all() and (whole[0][4, 1] != 0).all()
    for layout in LAYOUTS:
        for actual, want in zip(run(layout, attend, SCORE, value), whole):
            assert np.isfinite(actual).all()
            np.testing.assert_allclose(actual, want, rtol=1e-12, atol=1e-13, err_msg=str(layout))


@pytest.mark.parametrize(("reducer", "end"), [("max", -np.inf), ("min", np.inf)])
def test_extrema_of_masked_messages(reducer, end):
    """A masked message is infinite: a node with only masked messages has infinity, a node without edges has 0."""
    x = X.copy()
    x[[0, 1, 2]] = end
    reduce = lambda graph, x: graph.aggregate(lambda s, d, e: s["x"] * 1.0, reducer, src={"x": x})  # noqa: E731
    best = getattr(np, reducer)
    expected, d_x, g = np.zeros((N, 3)), np.zeros((N, 3)), G[:, 0]
    for i in range(N):
        sources = np.unique(SRC[DST == i])
        if len(sources):
            expected[i] = best(x[sources], axis=0)
            first = sources[np.argmax(x[sources] == expected[i], axis=0)]
            for f in range(3):
                d_x[first[f], f] += g[i, f]
    assert (expected[5] == end).all() and (expected[3] == 0).all()
    for layout in LAYOUTS:
        out, dx = run(layout, reduce, x, g=g)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_allclose(dx, d_x, rtol=1e-13)


def test_infinite_gradients_go_to_the_winner_alone():
    g = np.full((N, 3), np.inf)
    for layout in LAYOUTS:
        _, dx = run(layout, lambda graph, x: graph.aggregate(lambda s, d, e: s["x"] * 1.0, "max", src={"x": x}), X, g=g)
        assert set(np.unique(dx)) == {0, np.inf}


# ---- values outside of the tape are case 2


def elsewhere(f):
    """Call f in another thread, whose reads the probe does not see."""
    results = []
    thread = threading.Thread(target=lambda: results.append(f()))
    thread.start()
    thread.join()
    return results[0]


def positive(x):
    return 1.0 if x.size == 0 or x.sum().item() > 0 else 2.0


OUTSIDE = {
    "data": (lambda s, d, e: s["x"] * (s["x"].data > 0), lambda x, q: x * (x > 0)),
    "numpy": (lambda s, d, e: d["q"] * s["x"].numpy(), lambda x, q: q * x),
    "asarray": (lambda s, d, e: d["q"] * np.asarray(s["x"]), lambda x, q: q * x),
    "ufunc": (lambda s, d, e: d["q"] * np.isfinite(s["x"]) * np.exp(s["x"]).data, lambda x, q: q * np.exp(x)),
    "dlpack": (lambda s, d, e: d["q"] * np.from_dlpack(s["x"]), lambda x, q: q * x),
    "items": (lambda s, d, e: d["q"] * np.array([float(v) for row in s["x"] for v in row]).reshape(s["x"].shape), lambda x, q: q * x),
    "bool": (lambda s, d, e: d["q"] * (2.0 if bool((s["x"] > -np.inf).sum() >= 0) else 1.0), lambda x, q: q * 2.0),
    "comparison": (lambda s, d, e: d["q"] * (s["x"] > 0).astype(np.float64), lambda x, q: q * (x > 0)),
    "detached": (lambda s, d, e: d["q"] * s["x"].detach(), lambda x, q: q * x),
    "an array inside": (lambda s, d, e: d["q"] * s["x"]._data, lambda x, q: q * x),
    "another thread": (lambda s, d, e: d["q"] * elsewhere(lambda: s["x"].numpy().copy()), lambda x, q: q * x),
    "a threshold elsewhere": (lambda s, d, e: d["q"] * elsewhere(lambda: s["x"].numpy() > 0.1), lambda x, q: q * (x > 0.1)),
    "a number in a parameter": (lambda s, d, e: d["q"].clip(float(-abs(s["x"]._data).sum(initial=9))), lambda x, q: q),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_values_outside_of_the_tape_are_seen(name):
    message, plain = OUTSIDE[name]
    per_edge = plain(X[SRC], Q[DST])
    out = np.zeros((N, 3))
    np.add.at(out, DST, per_edge)
    d_q = np.zeros((N, 3))  # all of them are linear in q
    np.add.at(d_q, DST, (plain(X[SRC], Q[DST] + 1) - per_edge) * G[DST, 0])
    aggregate = lambda graph, x, q: graph.aggregate(message, "sum", src={"x": x}, dst={"q": q})  # noqa: E731
    for layout in LAYOUTS:
        out_rows, dx, dq = run(layout, aggregate, X, Q, g=G[:, 0])
        np.testing.assert_allclose(out_rows, out, rtol=1e-12, atol=1e-13, err_msg=str(layout))
        np.testing.assert_allclose(dq, d_q, rtol=1e-9, atol=1e-9, err_msg=str(layout))
        if name == "data":
            expected = np.zeros((N, 3))
            np.add.at(expected, SRC, (X[SRC] > 0) * G[DST, 0])
            np.testing.assert_allclose(dx, expected, rtol=1e-12, atol=1e-13)


def case2(message, **src):
    graph = Graph.from_edges(SRC, DST, N)
    src = {name: Tensor(value, requires_grad=value.dtype.kind == "f") for name, value in src.items()}
    out = graph.aggregate(message, "sum", src=src, dst={"q": Tensor(Q, requires_grad=True)})
    return out.node.params["operator"].case2


def test_the_backstop_leaves_case_1_alone():
    w = Tensor(RNG.standard_normal((3, 3)), requires_grad=True)
    kinds, flags = np.arange(N, dtype=np.uint8), np.arange(N) % 2 == 0
    for message in (
        lambda s, d, e: s["x"] * 2 + d["q"],
        lambda s, d, e: s["x"] @ w.detach() + d["q"] @ w,
        lambda s, d, e: s["x"][:, ::-1] + d["q"].relu() * np.ones((len(d["q"]), 3)),
        lambda s, d, e: s["x"].detach().log() + d["q"],
    ):
        with np.errstate(all="ignore"):
            assert not case2(message, x=X, kind=kinds, flag=flags)


def test_a_message_that_fails_on_other_rows_is_case_2():
    def message(s, d, e):
        if (s["x"]._data > 1).any() and len(s["x"]) == 1:
            raise ValueError("no such row")
        return s["x"] + d["q"] * 2

    assert case2(message, x=np.minimum(X, 1))


@pytest.mark.parametrize("message", [
    lambda s, d, e: d["q"] / s["x"], lambda s, d, e: d["q"] + (s["x"] * s["x"]).log(), lambda s, d, e: (s["x"] * s["x"]) ** -0.5 * d["q"],
    lambda s, d, e: d["q"] + (s["x"] * s["x"]).detach().log(), lambda s, d, e: s["x"] + d["q"] / (s["x"] * s["x"]).detach().sqrt(),
    lambda s, d, e: s["x"] + 1 / (d["q"] * d["q"]), lambda s, d, e: s["x"] / (s["x"] * s["x"]).sum(1, keepdims=True).sqrt() + d["q"],
])  # fmt: skip
def test_rows_of_zeros_do_not_warn(message):
    """The probe and the replay of case 1 run on rows that no input has, and must not warn.

    `run` raises on each floating point error.
    """
    aggregate = lambda graph, x, q: graph.aggregate(message, "sum", src={"x": x}, dst={"q": q})  # noqa: E731
    whole = run(("sa", 1, 0), aggregate, X, Q, g=G[:, 0])
    for layout in LAYOUTS:
        for actual, want in zip(run(layout, aggregate, X, Q, g=G[:, 0]), whole):
            np.testing.assert_allclose(actual, want, rtol=1e-11, atol=1e-11)


def test_a_piece_of_edges_is_let_go_of_before_the_next_ones_rows_are_gathered():

    def n_bytes(n_edges):
        graph = in_small_pieces(Graph.from_edges(np.arange(n_edges) % 511, np.arange(n_edges) % 512, 512), 2048)
        x, buffers = Tensor(np.ones((512, 64), np.float32)), Buffers()
        with buffers, no_grad():
            graph.aggregate(lambda src, dst, edge: src["x"].relu(), "sum", src={"x": x})
        return buffers.n_bytes

    one = n_bytes(2048)  # rows of 512 KiB, and the messages
    assert 1 << 20 <= one == n_bytes(4 * 2048)


@pytest.mark.parametrize("reducer", ["sum", "mean", "max", "min"])
def test_a_pair_for_a_reducer_of_one_tensor_is_refused(reducer):
    graph, x = Graph.from_edges(SRC, DST, N), Tensor(X)
    with pytest.raises(ShapeError, match="message returned 2 tensors, .*'softmax'"):
        graph.aggregate(lambda src, dst, edge: (src["x"], src["x"]), reducer, src={"x": x})


TRIANGLE, EDGE_WEIGHTS = Graph.from_edges([0, 1, 2], [1, 2, 0], 3), np.arange(1.0, 4.0)


@pytest.mark.parametrize("message, width, text", [
    (lambda src, dst, edge: src["x"] - src["x"].mean(0), 3, "depends on other edges"),
    (lambda src, dst, edge: src["x"] * edge["w"], 1, "depends on other edges"),
    (lambda src, dst, edge: src["x"] * edge["w"], 3, "not two at once"),
])
def test_a_row_that_depends_on_other_edges_is_refused(message, width, text):
    """With three edges, a weight of shape (n_edges,) would multiply the three columns of each row."""
    with pytest.raises(ShapeError, match=text):
        TRIANGLE.aggregate(message, "sum", src={"x": np.ones((3, width))}, edge={"w": EDGE_WEIGHTS})
    out = TRIANGLE.aggregate(lambda src, dst, edge: src["x"] * edge["w"].reshape(-1, 1), "sum", src={"x": np.ones((3, width))},
                             edge={"w": EDGE_WEIGHTS})  # fmt: skip
    assert out.data.tolist() == [[3.0] * width, [1.0] * width, [2.0] * width]


@pytest.mark.parametrize("argument", ["src", "dst", "edge"])
def test_inputs_that_are_no_dict_are_refused(argument):
    with pytest.raises(ConfigError, match=f"{argument} is a Tensor, but must be a dict of arrays by name"):
        TRIANGLE.aggregate(lambda src, dst, edge: src["x"], "sum", **{"src": {"x": np.ones((3, 2))}, argument: Tensor(np.ones((3, 2)))})

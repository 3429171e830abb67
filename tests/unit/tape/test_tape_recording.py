"""Seeds, tapes used twice, leaves that change, observers, and reads of values that the tape cannot follow."""

import threading

import numpy as np
import pytest

from sarlite import Graph, fn, nn
from sarlite.errors import ShapeError
from sarlite.tape import Tensor, apply, no_grad, ops, primitives, recording


def leaf(*shape, dtype=np.float64):
    return Tensor(np.arange(1.0, 1 + np.prod(shape), dtype=dtype).reshape(shape), requires_grad=True)


# ---- seeds, and tapes used twice


@pytest.mark.parametrize("g", [
    np.ones(2), np.ones((3, 1)), np.ones(3, np.float32), np.ones(3, int), 1.0, np.float64(1), [1.0], Tensor(np.ones(1)),
])  # fmt: skip
def test_a_seed_must_fit(g):
    out = leaf(3) * 2
    with pytest.raises(ShapeError, match=r"g is .*float64 \(3,\)"):
        out.backward(g)
    out.backward(np.ones(3))  # nothing was used up


def test_seeds_that_fit():
    x = leaf(3)
    for g in ([1.0, 2.0, 3.0], Tensor(np.array([1.0, 2.0, 3.0])), np.array([1.0, 2.0, 3.0])):
        (x * 2).backward(g)
    assert x.grad.tolist() == [6, 12, 18]
    y = leaf(dtype=np.float32)
    (y * y).backward(0.5)
    assert y.grad == 1 and y.grad.dtype == np.float32
    with pytest.raises(ShapeError, match=r"g is float64 \(\), .*float32 \(\)"):
        (y * y).backward(np.array(1.0))


def test_a_retained_graph_goes_back_again():
    x = leaf(3)
    out = ((x * x).exp() @ x).log()
    out.backward(retain_graph=True)
    once = x.grad.copy()
    out.backward(retain_graph=True)
    out.backward()
    np.testing.assert_allclose(x.grad, 3 * once, rtol=1e-15)
    with pytest.raises(RuntimeError, match="already used .*retain_graph=True"):
        out.backward()
    np.testing.assert_allclose(x.grad, 3 * once, rtol=1e-15)


def test_a_vjp_knows_whether_it_runs_again():
    seen = []
    primitives.primitive("spy of test_tape_recording", lambda needs, x: (x * 1, ()),
                     lambda g, needs, residuals: (seen.append(recording.retained()) or g,))  # fmt: skip
    try:
        out = apply("spy of test_tape_recording", leaf(3)).sum()
        out.backward(retain_graph=True)
        out.backward()
        assert seen == [True, False] and not recording.retained()
    finally:
        del primitives.PRIMITIVES["spy of test_tape_recording"]


# ---- leaves that change


def assign(t):
    t.data = t.data + 1


def assign_in_place(t):
    t.data += 1


def tell(t):
    t.numpy()[...] = 2
    t.changed()


CHANGES = pytest.mark.parametrize("change", [assign, assign_in_place, tell])


@CHANGES
@pytest.mark.parametrize("f", [
    lambda x, w: x @ w, lambda x, w: x * w, lambda x, w: (x * 2).sum() / w, lambda x, w: ops.where(w > 1, w, w * w),
    lambda x, w: w.exp() * w, lambda x, w: ops.einsum("ij,jk->ik", x, w), lambda x, w: ops.cross_entropy(w, [0, 1, 1]),
    lambda x, w: ops.mse(w, x), lambda x, w: ops.layer_norm(x, w[0], w[1]) * w,
])  # fmt: skip
def test_a_leaf_that_is_needed_must_not_change(f, change):
    x, w = leaf(3, 3), leaf(3, 3)
    out = f(x, w).sum()
    assert w.version == 0
    change(w)
    assert w.version == 1
    with pytest.raises(RuntimeError, match=r"changed since: .*\(3, 3\) .*version 0, .*1"):
        out.backward()
    assert w.grad is None and x.grad is None
    f(x, w).sum().backward()


@CHANGES
def test_a_leaf_that_is_not_needed_may_change(change):
    x, w = leaf(3, 3), leaf(3, 3)
    out = (x + w + w.sum(0) + w.T + w[:2].reshape(6)[0] + (w.detach() * 2) + w.relu()).sum()
    change(w)
    out.backward()
    assert (w.grad >= 0).all()
    used = (w * w).sum()
    used.backward()
    change(w)  # after it


def test_what_was_detached_changes_too():
    w, x = leaf(3), leaf(3)
    out = (x * w.detach()).sum()
    w.changed()
    with pytest.raises(RuntimeError, match="'mul' needs values"):
        out.backward()


VIEWS = {
    "slice": lambda w: w[:2], "reversed": lambda w: w[::-1], "row": lambda w: w[0], "T": lambda w: w.T, "reshape": lambda w: w.reshape(9),
    "of a view": lambda w: w[1:].reshape(6)[::-1], "detached": lambda w: w[1:].detach() * w[1:],
    "squeeze": lambda w: ops.expand_dims(w, 0).squeeze(),
    "iterated": lambda w: ops.stack([a * a for a in w]),
}  # fmt: skip


@CHANGES
@pytest.mark.parametrize("view", VIEWS)
def test_a_leaf_that_is_needed_in_a_view_must_not_change(view, change):
    """The view has the leaf's memory, which changes with the leaf."""
    w = leaf(3, 3)
    seen = VIEWS[view](w)
    out = (seen * seen).sum()
    change(w)
    with pytest.raises(RuntimeError, match=r"'mul' .*changed since: .*\(3, 3\) .*version 0"):
        out.backward()
    assert w.grad is None
    out = (w[[0, 1]] * w[[0, 1]]).sum()  # copies
    change(w)
    out.backward()


@CHANGES
def test_a_captured_view_of_a_leaf_must_not_change(change):
    graph, w, x = Graph.from_edges([0, 1, 2, 2], [1, 2, 0, 1], 3), leaf(2, 2), leaf(3, 2)
    turned = w.T
    out = graph.aggregate(lambda s, d, e: (s["x"] @ turned).relu(), "sum", src={"x": x}).sum()
    change(w)
    with pytest.raises(RuntimeError, match="'aggregate' needs values"):
        out.backward()


def test_the_primitive_is_named():
    w = leaf(2, 2)
    out = (leaf(3, 2) @ w).sum()
    w.changed()
    with pytest.raises(RuntimeError, match="'matmul' needs values"):
        out.backward()


def test_a_leaf_in_an_aggregation_must_not_change():
    graph = Graph.from_edges([0, 1, 2, 2], [1, 2, 0, 1], 3)
    w, x = leaf(2, 2), leaf(3, 2)
    for out in (
        graph.aggregate(fn.mul_edge(x, Tensor(np.ones(4))), "sum").sum() + (x * 0).sum(),
        graph.aggregate(lambda s, d, e: (s["x"] @ w).tanh(), "sum", src={"x": x}).sum(),
    ):
        for t in (w, x):
            t.changed()
        with pytest.raises(RuntimeError, match="'aggregate' needs values"):
            out.backward()


def test_flatten_is_a_change():
    layer = nn.Linear(2, 2, rng=nn.Random(0))
    out = layer(Tensor(np.ones((3, 2), np.float32), requires_grad=True)).sum()
    nn.flatten(layer)
    with pytest.raises(RuntimeError, match="'matmul' needs values"):
        out.backward()


def test_new_data_must_fit():
    t = leaf(3)
    for data in (np.ones(2), np.ones(3, np.float32)):
        with pytest.raises(ShapeError, match=r"do not fit the tensor's float64 \(3,\)"):
            t.data = data
    with pytest.raises(ValueError, match="constant"):
        Tensor(np.ones(3), constant=True).data = np.ones(3)
    free = Tensor(np.ones(3))
    free.data = np.ones(2, np.float32)
    assert free.shape == (2,) and free.version == 1


# ---- observers


class Log(recording.Observer):
    def __init__(self):
        self.lines = []

    def forward(self, name, params):
        return Span(self.lines, name)

    def backward(self, name, params):
        return Span(self.lines, f"{name} backward")

    def applied(self, application):
        self.lines.append((application.name, [np.shape(x) for x in application.inputs], application.wants_grad, application.result.shape))


class Span:
    def __init__(self, lines, name):
        self.lines, self.name = lines, name

    def __enter__(self):
        self.lines.append(f"begin {self.name}")

    def __exit__(self, *error):
        self.lines.append(f"end {self.name}")


def test_observers_see_each_primitive():
    x, outer, inner = leaf(3), Log(), Log()
    with recording.observed(outer):
        with recording.observed(inner):
            out = x * 2.0
        out.sum().backward()
        with no_grad():
            x.exp()
    before = list(outer.lines)
    x.exp().sum().backward()
    assert outer.lines == before
    assert inner.lines == ["begin mul", "end mul", ("mul", [(3,), ()], (True, False), (3,))]
    assert outer.lines == [
        *inner.lines, "begin sum", "end sum", ("sum", [(3,)], (True,), ()),
        "begin sum backward", "end sum backward", "begin mul backward", "end mul backward",
        "begin exp", "end exp", ("exp", [(3,)], (False,), (3,)),
    ]  # fmt: skip


def test_spans_end_where_a_primitive_fails():
    log = Log()
    with recording.observed(log), pytest.raises(ValueError):
        leaf(3) + np.ones(2)
    assert log.lines == ["begin add", "end add"]


def test_observers_are_of_one_thread():
    log = Log()
    with recording.observed(log):
        thread = threading.Thread(target=lambda: leaf(3).exp())
        thread.start()
        thread.join()
    assert log.lines == []


# ---- reads


def volatile(*shape):
    x = leaf(*shape)
    x.volatile = True
    return x


@pytest.mark.parametrize("read", [
    lambda x: x.data, lambda x: (x * 2).data, lambda x: x.detach().numpy(), lambda x: x.sum().item(), lambda x: bool(x.sum() > 0),
    lambda x: float(x[0, 0]), lambda x: int(x[0, 0]), lambda x: np.asarray(x), lambda x: np.from_dlpack(x), lambda x: x.tolist(),
    lambda x: np.array([x]), lambda x: x[(x > 1)[:, 0]], lambda x: Tensor(x), lambda x: x * np.where(x.numpy() > 2, 1.0, 0.0),
    lambda x: range((x > 0).sum().astype(int)), lambda x: ops.cross_entropy(leaf(3, 2), (x[:, 0] > 9).astype(int)),
])  # fmt: skip
def test_reading_volatile_values_is_noticed(read):
    x = volatile(3, 3)
    with recording.watch_reads() as outer, recording.watch_reads() as reads:
        assert not reads.seen
        read(x)
    assert reads.seen and outer.seen
    with recording.watch_reads() as reads:
        read(leaf(3, 3))
    assert not reads.seen


@pytest.mark.parametrize("f", [
    lambda x: x * 2, lambda x: x @ np.ones((3, 2)), lambda x: ops.where(x > 0, x, 0), lambda x: x.mean(0).max(), lambda x: x[:2].T,
    lambda x: ops.take(x, np.array([0, 1])), lambda x: ops.take(leaf(99, 2), x[0].astype(np.int64)), lambda x: x[[0, -1]],
    lambda x: (x.shape, x.dtype, x.size, len(x), x.ndim, repr(x)), lambda x: ops.layer_norm(x, leaf(3), leaf(3)), lambda x: x.detach(),
    lambda x: ops.dropout(x, np.arange(3), 1, 0.5), lambda x: ops.concat([x, x]), lambda x: ops.stack(list(x)), lambda x: x.logsumexp(),
    lambda x: x.var() + x.std(0), lambda x: ops.scatter_add(x, np.array([0, 1, 1]), 2), lambda x: ops.einsum("ij->", x), lambda x: x == x,
    lambda x: x.sum().backward(), lambda x: ops.mse(x, x * 2), lambda x: (x.relu() ** 2).clip(0, 1).squeeze(),
])  # fmt: skip
def test_operations_do_not_count_as_reads(f):
    x = volatile(3, 3)
    with recording.watch_reads() as reads:
        f(x)
    assert not reads.seen


def test_reads_are_of_one_thread():
    x = volatile(3)
    with recording.watch_reads() as reads:
        thread = threading.Thread(target=lambda: x.data)
        thread.start()
        thread.join()
    assert not reads.seen


def test_nested_residuals_of_volatile_values_are_found():
    x, w = volatile(3, 3), leaf(3, 3)
    assert ops.einsum("ij,jk->ik", x, w).node.volatile
    assert not ops.einsum("ij,jk->ik", x, w.detach()).node.volatile

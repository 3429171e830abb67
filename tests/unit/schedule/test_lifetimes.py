"""Lifetimes of arrays: the most that a training step holds, who may write over an array, and when it is freed."""

import weakref
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from sarlite import Graph, Solo, Tensor, Trainer, fn, kernels, nn, optim
from sarlite.errors import ShapeError
from sarlite.models import GCN
from sarlite.nn import Activation
from sarlite.tape import apply, ops, recording
from sarlite.tape.primitives import PRIMITIVES

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def one_thread():
    """Set one thread, as a product takes some hundred KiB for each thread, which is much beside these arrays."""
    before = kernels.threads()
    kernels.set_threads(1)
    yield
    kernels.set_threads(before)


@pytest.fixture
def buffers(monkeypatch):
    """Import the benchmark `live_arrays`."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import live_arrays

    return live_arrays


# ---- what a step holds


@pytest.mark.parametrize("model, layers, n_ranks, place, most", [
    ("gcn", 4, 1, "sar:0", "L + 2"),
    ("gcn", 2, 2, "broadcast:1", "L + 3"),  # the only peer's rows
    ("gcn", 4, 4, "broadcast:1", "L + 4"),
    ("gcn", 2, 4, "sar:1", "L + 5"),
    ("gcn", 4, 3, "sar:0", "L + 4"),
    ("gcn batch norm", 3, 3, "broadcast:1", "L + 6"),
    ("gcn residual", 4, 3, "broadcast:1", "L + 5"),
    ("sage", 3, 3, "broadcast:0", "L + 4"),
])  # fmt: skip
def test_a_step_takes_what_the_docs_say(buffers, model, layers, n_ranks, place, most):
    """The unit is an array of rows x width, all of one width; A X is one of the arrays."""
    mode, prefetch = place.split(":")
    taken, _, fetched, remote = buffers.run(n_ranks, False, model, [64] * (layers + 1), mode, int(prefetch), 1024, 1)
    promised = buffers.promised(model, [64] * (layers + 1), remote) / 64
    assert promised == eval(most, {"L": layers})
    assert 0.8 * promised < taken / (1024 * 64 * 4) < 1.1 * promised and fetched <= 1 + int(prefetch)


@pytest.mark.parametrize("widths", [[256, 128, 64, 16], [64, 128, 256, 32], [32, 256, 32]])
def test_a_step_of_unequal_widths_holds_what_the_docs_say(buffers, widths):
    _, held, _, remote = buffers.run(1, False, "gcn", widths, "sar", 0, 2048, 1)
    assert 0.8 < held / (2048 * 4 * buffers.promised("gcn", widths, remote)) < 1.1


class Alive(recording.Observer):
    """Counts, as each vjp begins, the matrices of the forward pass that are still alive."""

    def __init__(self):
        self.made, self.counts = {}, []

    def applied(self, application):
        array = application.result._data
        if array.ndim == 2:
            self.made[id(array)] = weakref.ref(array)

    def backward(self, name, params):
        self.counts.append((name, sum(ref() is not None for ref in self.made.values())))
        return nullcontext()


def test_nothing_lives_longer_than_backward_needs_it(buffers):
    """A X lives on; an output lives until the vjp of its activation has read it, and the logits until cross entropy has."""
    rng, values = nn.Random(0), np.random.default_rng(0)
    graph = Graph.from_edges(*buffers.edges(1, 50, 3))
    trainer = Trainer(graph, GCN(6, 4, layers=3, hidden=5, dropout=0.5, input_dropout=0.0, rng=rng),
                      values.standard_normal((50, 6), np.float32), values.integers(0, 4, 50), slice(None),
                      optimizer=lambda flat: optim.Adam(flat, 0.01), rng=rng)
    alive = Alive()
    with recording.observed(alive):
        trainer.step()
    assert alive.counts == [("cross_entropy", 4), ("add", 3), ("aggregate", 3), ("matmul", 3), ("activate", 3), ("aggregate", 2),
                            ("matmul", 2), ("activate", 2), ("matmul", 1)]  # fmt: skip


# ---- who owns a gradient


def test_the_last_that_takes_a_shared_gradient_owns_it(monkeypatch):
    """The first operand of a sum to go back sees g as read-only, the last may write to it; so do operands through a view."""
    seen = []

    def vjp(g, needs, residuals):
        seen.append((g.flags.writeable, g[0, 0]))
        return (g * 2,) if not g.flags.writeable else (np.multiply(g, 2, out=g),)

    monkeypatch.setitem(PRIMITIVES, "neg", PRIMITIVES["neg"]._replace(vjp=vjp))
    a, b, c = (Tensor(np.ones((2, 3)), requires_grad=True) for _ in range(3))
    out = -a + ops.reshape(-ops.reshape(b, 3, 2), 2, 3) + c
    (out * 1.0).backward(np.full((2, 3), 5.0))
    assert seen == [(False, 5.0), (False, 5.0)]  # c holds the same gradient
    assert [t.grad[0, 0] for t in (a, b, c)] == [10, 10, 5] and not np.shares_memory(b.grad, c.grad)
    seen.clear()
    a.grad = b.grad = None
    out = -a + ops.reshape(-ops.reshape(b, 3, 2), 2, 3)
    (out * 1.0).backward(np.full((2, 3), 5.0), retain_graph=True)
    assert seen == [(False, 5.0), (True, 5.0)] and a.grad.tolist() == b.grad.tolist() == [[10] * 3] * 2
    seen.clear()
    first, second = -ops.reshape(b, 3, 2), -a
    ((second + ops.reshape(first, 2, 3)) * 1.0).backward(np.full((2, 3), 5.0))
    assert seen == [(False, 5.0), (True, 5.0)] and (a.grad == 20).all() and (b.grad == 20).all()  # the last one has a view


def test_one_gradient_at_one_sink_twice_is_added_up():
    x = Tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
    y = x * 1.0
    ((y + y) * 1.0 + (y - 3.0 * y)).backward(np.ones((2, 3)))
    assert (x.grad == 0).all()


# ---- cross entropy by parts


@pytest.mark.parametrize("rows", [None, np.arange(0, 40, 3), np.array([5, 5, 2, 31])])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_parts_of_cross_entropy_are_bit_equal_to_the_whole(rows, reduction):
    rng = np.random.default_rng(0)
    x, labels, weight = rng.standard_normal((40, 7), np.float32) * 5, rng.integers(0, 7, 40), rng.random(7).astype(np.float32)

    weights = weight[labels if rows is None else labels[rows]]
    divisor = None if reduction == "none" else float(weights.astype(np.float64).sum())

    def in_parts(values):
        return lambda logits: apply("cross_entropy", logits, labels, rows, weights, divisor=divisor, part_values=values)

    def bits_of(loss_of):
        logits = Tensor(x, requires_grad=True)
        loss = loss_of(logits)
        loss.backward(np.ones_like(loss.data))
        return loss.data.tobytes(), logits.grad.tobytes()

    whole = bits_of(lambda logits: ops.cross_entropy(logits, labels, rows, weight=weight, reduction=reduction))
    assert bits_of(in_parts(1)) == bits_of(in_parts(30)) == bits_of(in_parts(1 << 20)) == whole
    logits = Tensor(np.where(np.arange(7) == labels[:, None], 0, -200).astype(np.float32), requires_grad=True)  # gradients of 0
    ops.cross_entropy(logits, labels, rows).backward(np.float32(-1))
    assert rows is None or not np.signbit(logits.grad).any()


# ---- written over the input


@pytest.mark.parametrize("kind, batch_norm, over", [("relu", False, True), ("identity", False, True), ("elu", False, False),
                                                    ("relu", True, False)])
def test_overwrite_is_bit_equal_and_only_where_nothing_keeps_the_input(kind, batch_norm, over):
    rng = np.random.default_rng(0)
    graph, x = Graph.from_edges([0], [1], 37), rng.standard_normal((37, 19), np.float32)
    mine = Activation(19, kind, batch_norm=batch_norm, dropout=0.4, rng=nn.Random(1))

    def bits_of(overwrite):
        leaf = Tensor(x, requires_grad=True)
        y = leaf * 1.0
        out = mine(y, graph, overwrite=overwrite)
        assert np.shares_memory(out.data, y._data) == (overwrite and over)
        out.backward(x)
        return out.data.tobytes(), leaf.grad.tobytes()

    assert bits_of(True) == bits_of(False)
    constant = Tensor(x, constant=True)
    assert not np.shares_memory(mine(constant, graph, overwrite=True).data, x)
    x.flags.writeable = False
    assert not np.shares_memory(mine(Tensor(x), graph, overwrite=True).data, x)


@pytest.mark.parametrize("kind", kernels.ACTIVATIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kernels_write_over_their_input(kind, dtype):
    """The test runs every instruction set, with every part of the work, at any width."""
    rng, before = np.random.default_rng(0), kernels.instruction_set()
    try:
        for isa in kernels.instruction_sets():
            kernels.set_instruction_set(isa)
            for width in (1, 7, 16, 33, 130):
                x, beta = rng.standard_normal((50, width)).astype(dtype), rng.standard_normal(width).astype(dtype)
                normal = kernels.Normal(rng.standard_normal(width), rng.random(width), beta[::-1].copy())
                mask = kernels.Mask(np.arange(50), 3, 0.4)
                for options in ({}, {"beta": beta, "mask": mask}, {"beta": beta, "normal": normal}):
                    out, over = np.empty_like(x), x.copy()
                    kernels.activate(x, out, kind=kind, **options)
                    kernels.activate(over, over, kind=kind, **options)
                    assert out.tobytes() == over.tobytes(), (isa, width, options)
    finally:
        kernels.set_instruction_set(before)


@pytest.mark.parametrize("make, other", [(ops.exp, 0.0), (lambda leaf: leaf + 1.0, 1.0)], ids=["its own result", "another's input"])
def test_what_was_written_over_is_refused_where_backward_needs_it(make, other):
    graph, activation = Graph.from_edges([0, 1], [1, 0], 2), Activation(3, bias=False, rng=nn.Random(0))
    x = make(Tensor(np.ones((2, 3)), requires_grad=True))
    square = x * x * other if other else 0.0
    out = activation(x, graph, overwrite=True) + square
    with pytest.raises(RuntimeError, match="needs values that have changed"):
        out.backward(np.ones((2, 3)))


@pytest.mark.parametrize("grad", [True, False])
def test_what_was_written_over_is_refused_where_forward_reads_it(grad):
    graph, activation = Graph.from_edges([0, 1], [1, 0], 2), Activation(3, bias=False, rng=nn.Random(0))
    with recording.set_grad(grad):
        for over in (lambda h: activation(h, graph, overwrite=True), lambda h: ops.matmul(np.ones((2, 2)), np.ones((2, 3)), h)):
            h = Tensor(np.ones((2, 3)), requires_grad=True) + 1.0
            view, detached, early = h[1:], h.detach(), h * 2.0
            out = over(h)
            for reads in (lambda: h + 1, lambda: view.sum(), lambda: detached * 2, lambda: h.numpy(), lambda: np.asarray(view),  # noqa: B023
                          lambda: graph.aggregate(fn.copy_src(h), "sum")):  # noqa: B023
                with pytest.raises(RuntimeError, match="values of a tensor .*gone: .*add_to= and overwrite="):
                    reads()
            assert (early + out).shape == (2, 3)
            version, h.data = h.version, np.zeros((2, 3))  # h has memory of its own again
            assert (h + 1).data.all() and h.version == version + 1


def test_an_operator_says_whether_it_keeps_its_result():
    graph, z = Graph.from_edges([0, 1], [1, 0], 2), Tensor(np.ones((2, 1, 3)), requires_grad=True)
    summed = graph.aggregate(fn.copy_src(z), "sum")
    summed.changed()
    summed.backward(np.ones((2, 1, 3)))
    attended = graph.aggregate(fn.attend(z, np.ones((2, 1)), np.ones((2, 1))), "sum")
    attended.changed()
    with pytest.raises(RuntimeError, match="needs values that have changed"):
        attended.backward(np.ones((2, 1, 3)))


@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
@pytest.mark.parametrize("message", ["copy", "weighted", "attend"])
def test_sums_start_from_nothing(message, mode, monkeypatch):
    """On one rank no array is zeroed before sums are written to it: any old content is overwritten, also in isolated rows."""
    graph = Graph.from_edges(np.array([0, 0, 4, 5, 5]), np.array([1, 1, 1, 5, 2]), n_nodes=7).shard(Solo(), mode=mode)

    def run():
        rng = np.random.default_rng(0)
        x, score, weight = (Tensor(rng.standard_normal(shape), requires_grad=True) for shape in ((7, 2, 3), (7, 2), (5,)))
        message_form = {"copy": fn.copy_src(x), "weighted": fn.mul_edge(x, weight), "attend": fn.attend(x, score, score * 2)}[message]
        out = graph.aggregate(message_form, "sum")
        (out * rng.standard_normal(out.shape)).sum().backward()
        return [out.data, *(t.grad for t in (x, score, weight) if t.grad is not None)]

    wanted, empty = run(), np.empty
    monkeypatch.setattr(np, "empty", lambda shape, dtype=float, *more: np.full(shape, np.nan, dtype) if np.dtype(dtype).kind == "f"
                        else empty(shape, dtype, *more))
    monkeypatch.setattr(np, "empty_like", lambda a: np.empty(a.shape, a.dtype))
    for a, b in zip(run(), wanted, strict=True):
        np.testing.assert_array_equal(a, b)


# ---- products that are added to what is there


def test_a_product_is_added_to_what_is_there():
    rng = np.random.default_rng(0)
    a, b, c = (Tensor(rng.standard_normal(shape), requires_grad=True) for shape in ((5, 3), (3, 4), (5, 4)))
    g, start = rng.standard_normal((5, 4)), c.data.copy()
    wanted = [start + a.data @ b.data, g @ b.data.T, a.data.T @ g, g]
    out = ops.matmul(a, b, c)
    out.backward(g)
    assert out.data is c._data
    for actual, other in zip((out.data, a.grad, b.grad, c.grad), wanted, strict=True):
        np.testing.assert_allclose(actual, other, rtol=1e-12)
    shared = Tensor(start[:], constant=True)  # read-only
    np.testing.assert_allclose(ops.matmul(a, b, shared).data, wanted[0], rtol=1e-12)
    assert shared.data is not start and np.array_equal(shared.data, start)
    for other in (Tensor(start[1:]), Tensor(start.astype(np.float32))):
        with pytest.raises(ShapeError, match="cannot add to"):
            ops.matmul(a, b, other)


def test_what_a_product_was_added_to_is_not_read_again():
    a, b = Tensor(np.ones((2, 2)), requires_grad=True), Tensor(np.eye(2))
    c = a.exp()  # its vjp reads the value
    out = ops.matmul(a, b, c)
    with pytest.raises(RuntimeError, match="changed"):
        out.sum().backward()


@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3)])
def test_a_product_is_added_to_values_of_any_layout(shape):
    """For 3-D values that are not contiguous the sum once went to a copy, and was lost."""
    a, w = np.ones((*shape[:-1], 5)), Tensor(np.ones((5, 3)), requires_grad=True)
    for c in (np.zeros(shape), np.zeros(shape[::-1]).T, np.asfortranarray(np.zeros(shape)), np.zeros((*shape[:-1], 6))[..., ::2]):
        out = ops.matmul(a, w, add_to=Tensor(c) + 1.0)
        np.testing.assert_array_equal(out.data, np.full(shape, 6.0))

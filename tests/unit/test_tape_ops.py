"""Each dense operation: values against NumPy, gradients against finite differences, float32 against float64."""

import numpy as np
import pytest

from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.tape import Tensor, gradcheck, ops

RNG = np.random.default_rng(7)


def draw(*shape, away_from=0.0, low=-2.0, high=2.0):
    """Values that keep clear of the kink at 0."""
    x = RNG.uniform(low, high, shape)
    return np.where(np.abs(x) < away_from, x + 2 * away_from, x)


def positive(*shape):
    return draw(*shape, low=0.5, high=2.0)


A, B, ROW, COLUMN, CUBE = draw(3, 4), draw(3, 4), draw(4), draw(3, 1), draw(2, 3, 4)
NO_ROWS = np.zeros((0, 4))
MASK = np.array([[True, False, True, True]] * 3)
LABELS = np.array([1, 0, 3, 2, 1])
REPEATED = np.array([2, 0, 2, 2, 1, 0])

# name: (f of tensors, the same in NumPy or None, inputs)
CASES = {
    "add": (lambda a, b: a + b, np.add, [A, B]),
    "add_row": (lambda a, b: a + b, np.add, [A, ROW]),
    "add_cube_column": (lambda a, b: a + b, np.add, [CUBE, COLUMN]),
    "add_scalar": (lambda a: 2 + a, lambda a: 2 + a, [A]),
    "add_empty": (lambda a, b: a + b, np.add, [NO_ROWS, ROW]),
    "sub": (lambda a, b: a - b, np.subtract, [A, COLUMN]),
    "rsub": (lambda a: 1 - a, lambda a: 1 - a, [A]),
    "mul": (lambda a, b: a * b, np.multiply, [A, B]),
    "mul_outer": (lambda a, b: a * b, np.multiply, [ROW, COLUMN]),
    "mul_array": (lambda a: ROW * a, lambda a: ROW * a, [A]),
    "mul_itself": (lambda a: a * a, np.square, [A]),
    "div": (lambda a, b: a / b, np.divide, [A, positive(4)]),
    "rdiv": (lambda a: 1 / a, lambda a: 1 / a, [positive(3, 4)]),
    "neg": (lambda a: -a, np.negative, [A]),
    "abs": (abs, np.abs, [draw(3, 4, away_from=0.01)]),
    "square": (lambda a: a**2, np.square, [A]),
    "power": (lambda a: a**-1.5, lambda a: a**-1.5, [positive(3, 4)]),
    "power_0": (lambda a: a**0, lambda a: a**0, [np.zeros(3)]),
    "sqrt": (ops.sqrt, np.sqrt, [positive(3, 4)]),
    "maximum": (ops.maximum, np.maximum, [A, B]),
    "minimum": (ops.minimum, np.minimum, [A, ROW]),
    "where": (lambda a, b: ops.where(MASK, a, b), lambda a, b: np.where(MASK, a, b), [A, ROW]),
    "where_scalar": (lambda a: ops.where(MASK, a, 0), lambda a: np.where(MASK, a, 0), [A]),
    "matmul": (lambda a, b: a @ b, np.matmul, [A, draw(4, 5)]),
    "matmul_empty": (lambda a, b: a @ b, np.matmul, [NO_ROWS, draw(4, 5)]),
    "matmul_no_width": (lambda a, b: a @ b, np.matmul, [draw(3, 0), draw(0, 5)]),
    "matmul_vector": (lambda a, b: a @ b, np.matmul, [A, ROW]),
    "vector_matmul": (lambda a, b: a @ b, np.matmul, [ROW, draw(4, 5)]),
    "vector_vector": (lambda a, b: a @ b, np.matmul, [ROW, draw(4)]),
    "cube_matmul": (lambda a, b: a @ b, np.matmul, [CUBE, draw(4, 5)]),
    "cube_matmul_empty": (lambda a, b: a @ b, np.matmul, [np.zeros((0, 3, 4)), draw(4, 5)]),
    "matmul_cube": (lambda a, b: a @ b, np.matmul, [draw(5, 3), CUBE]),
    "batched": (lambda a, b: a @ b, np.matmul, [CUBE, draw(2, 4, 5)]),
    "batched_broadcast": (lambda a, b: a @ b, np.matmul, [draw(1, 3, 4), draw(2, 4, 5)]),
    "matmul_of_sums": (lambda a, b: (a @ b).sum(), lambda a, b: (a @ b).sum(), [A, draw(4, 5)]),
    "rmatmul": (lambda a: A @ a, lambda a: A @ a, [draw(4, 2)]),
    "sum": (lambda a: a.sum(), np.sum, [A]),
    "sum_rows": (lambda a: a.sum(0), lambda a: a.sum(0), [CUBE]),
    "sum_axes": (lambda a: a.sum((0, -1)), lambda a: a.sum((0, -1)), [CUBE]),
    "sum_keep": (lambda a: a.sum(-1, keepdims=True), lambda a: a.sum(-1, keepdims=True), [CUBE]),
    "sum_empty": (lambda a: a.sum(0), lambda a: a.sum(0), [NO_ROWS]),
    "mean": (lambda a: a.mean(), np.mean, [A]),
    "mean_axis": (lambda a: a.mean(1), lambda a: a.mean(1), [CUBE]),
    "mean_empty_rows": (lambda a: a.mean(-1), lambda a: np.zeros(0), [NO_ROWS]),
    "max": (lambda a: a.max(), np.max, [A]),
    "max_keep": (lambda a: a.max(keepdims=True), lambda a: a.max(keepdims=True), [A]),
    "max_axis": (lambda a: a.max(1), lambda a: a.max(1), [CUBE]),
    "max_empty_rows": (lambda a: a.max(-1), lambda a: np.zeros(0), [NO_ROWS]),
    "min_axis_keep": (lambda a: a.min(-1, keepdims=True), lambda a: a.min(-1, keepdims=True), [CUBE]),
    "reshape": (lambda a: a.reshape(4, -1) * ROW[:, None], lambda a: a.reshape(4, -1) * ROW[:, None], [A]),
    "flatten": (lambda a: a.flatten(), lambda a: a.reshape(2, 12), [CUBE]),
    "flatten_empty": (lambda a: a.flatten(), lambda a: a.reshape(0, 12), [np.zeros((0, 3, 4))]),
    "transpose": (lambda a: a.transpose(2, 0, -2), lambda a: a.transpose(2, 0, 1), [CUBE]),
    "T": (lambda a: a.T, lambda a: a.T, [CUBE]),
    "slice": (lambda a: a[1:, ::2], lambda a: a[1:, ::2], [A]),
    "index": (lambda a: a[-1], lambda a: a[-1], [CUBE]),
    "index_none": (lambda a: a[..., None, 2], lambda a: a[..., None, 2], [CUBE]),
    "slice_all": (lambda a: a[:3], lambda a: a, [A]),
    "slice_none_left": (lambda a: a[3:], lambda a: a[3:], [A]),
    "take": (lambda a: ops.take(a, REPEATED), lambda a: a[REPEATED], [A]),
    "take_cube": (lambda a: a[REPEATED[:3] - 1], lambda a: a[REPEATED[:3] - 1], [CUBE]),
    "take_vector": (lambda a: a[REPEATED], lambda a: a[REPEATED], [ROW]),
    "take_table": (lambda a: a[REPEATED.reshape(2, 3)], lambda a: a[REPEATED.reshape(2, 3)], [A]),
    "take_bool": (lambda a: a[np.array([True, False, True])], lambda a: a[[0, 2]], [A]),
    "take_none": (lambda a: a[[]], lambda a: a[:0], [A]),
    "take_int32": (lambda a: ops.take(a, REPEATED.astype(np.int32)), lambda a: a[REPEATED], [A]),
    "concat": (lambda a, b, c: ops.concat([a, b, c]), lambda *x: np.concatenate(x), [A, NO_ROWS, B]),
    "concat_axis": (lambda a, b: ops.concat([a, b], -1), lambda *x: np.concatenate(x, -1), [A, COLUMN]),
    "stack": (lambda a, b: ops.stack([a, b], 1), lambda *x: np.stack(x, 1), [A, B]),
    "stack_last": (lambda a, b: ops.stack([a, b], -1), lambda *x: np.stack(x, -1), [A, B]),
    "relu": (ops.relu, lambda a: np.maximum(a, 0), [draw(3, 4, away_from=0.01)]),
    "leaky_relu": (lambda a: a.leaky_relu(0.2), lambda a: np.where(a > 0, a, 0.2 * a), [draw(3, 4, away_from=0.01)]),
    "elu": (lambda a: a.elu(0.7), lambda a: np.where(a > 0, a, 0.7 * (np.exp(a) - 1)), [draw(3, 4, away_from=0.01)]),
    "sigmoid": (ops.sigmoid, lambda a: 1 / (1 + np.exp(-a)), [A]),
    "tanh": (ops.tanh, np.tanh, [A]),
    "exp": (ops.exp, np.exp, [A]),
    "log": (ops.log, np.log, [positive(3, 4)]),
    "log_softmax": (ops.log_softmax, lambda a: a - np.log(np.exp(a).sum(-1, keepdims=True)), [CUBE]),
    "log_softmax_0": (lambda a: a.log_softmax(0), lambda a: a - np.log(np.exp(a).sum(0)), [A]),
    "log_softmax_empty": (ops.log_softmax, lambda a: a, [NO_ROWS]),
    "softmax": (lambda a: a.softmax(1), lambda a: np.exp(a) / np.exp(a).sum(1, keepdims=True), [CUBE]),
    "cross_entropy": (lambda a: ops.cross_entropy(a, LABELS), None, [draw(5, 4)]),
    "cross_entropy_rows": (lambda a: 3 * ops.cross_entropy(a, LABELS, np.array([3, 0]), count=7), None, [draw(5, 4)]),
    "cross_entropy_repeated": (lambda a: ops.cross_entropy(a, LABELS, np.array([3, 0, 3])), None, [draw(5, 4)]),
    "layer_norm": (ops.layer_norm, None, [CUBE, draw(4), draw(4)]),
    "layer_norm_empty": (ops.layer_norm, None, [NO_ROWS, draw(4), draw(4)]),
    "dropout": (lambda a: ops.dropout(a, np.arange(3), 99, 0.4), None, [A]),
    "dropout_cube": (lambda a: ops.dropout(a, np.arange(2), 99, 0.4), None, [CUBE]),
    "dropout_empty": (lambda a: ops.dropout(a, np.arange(0), 99, 0.4), None, [NO_ROWS]),
    "diamond": (lambda a: (a * a).sum(0) * a + a, None, [A]),
    "broadcast_gradient": (lambda a: ops.dropout(a, np.arange(3), 99, 0.4).sum(), None, [A]),
}


@pytest.mark.parametrize("name", CASES)
def test_value(name):
    f, reference, inputs = CASES[name]
    if reference is not None:
        out = f(*map(Tensor, inputs)).data
        expected = reference(*inputs)
        assert out.shape == expected.shape
        np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_gradient(name):
    f, _, inputs = CASES[name]
    gradcheck(f, inputs)


@pytest.mark.parametrize("name", CASES)
def test_float32(name):
    """Nothing is widened, neither values nor gradients, and both agree with float64."""
    f, _, inputs = CASES[name]
    if any(word in name for word in ("array", "rmatmul", "reshape")):
        pytest.skip("its constants are float64")
    results = []
    for dtype in (np.float32, np.float64):
        tensors = [Tensor(x.astype(dtype), requires_grad=True) for x in inputs]
        out = f(*tensors)
        assert out.dtype == dtype
        out.backward(np.cos(np.arange(out.data.size)).reshape(out.shape).astype(dtype))
        assert all(t.grad.dtype == dtype and t.grad.shape == t.shape for t in tensors)
        results.append([out.data, *(t.grad for t in tensors)])
    for low, high in zip(*results):
        np.testing.assert_allclose(low, high, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_vjp_leaves_its_gradient_alone(name):
    f, _, inputs = CASES[name]
    out = f(*(Tensor(x, requires_grad=True) for x in inputs))
    g = np.ones(out.shape)
    before = g.copy()
    g.flags.writeable = False
    out.backward(g)
    np.testing.assert_array_equal(g, before)


def test_operands_never_widen():
    x = Tensor(np.ones((3, 2), np.float32), requires_grad=True)
    for other in (2, 2.0, np.float64(2), np.array(2.0), True, np.arange(2), np.array([True, False]), [1.0, 2.0]):
        if not isinstance(other, list):
            assert (x * other).dtype == (other + x).dtype == np.float32
    for other in (np.ones(2), Tensor(np.ones(2)), [1.0, 2.0]):
        with pytest.raises(ShapeError, match="float32.*float64"):
            x * other
    with pytest.raises(ShapeError, match="float32.*float64"):
        x @ np.ones((2, 2))
    with pytest.raises(ShapeError, match="join"):
        ops.concat([x, np.ones((1, 2))])
    assert x.astype(np.float32) is x
    (x.astype(np.float64) * np.ones(2)).sum().backward()
    assert x.grad.dtype == np.float32


def test_float32_sums_of_rows_are_accurate():
    x = Tensor(np.full((2**20, 2), 0.1, np.float32))  # two columns: one alone NumPy would sum in pairs
    exact = float(np.float32(0.1)) * 2**20
    assert abs(x.sum(0).data - exact).max() <= 2e-7 * exact
    weight = Tensor(np.zeros(2, np.float32), requires_grad=True)
    (weight + np.zeros((2**20, 2), np.float32)).backward(x.data)
    assert abs(weight.grad - exact).max() <= 2e-7 * exact


def test_first_of_equal_extrema_gets_the_gradient():
    for f in (ops.max, ops.min):
        x = Tensor(np.zeros((2, 3)), requires_grad=True)
        f(x, 1).backward(np.array([5.0, 7.0]))
        np.testing.assert_array_equal(x.grad, [[5, 0, 0], [7, 0, 0]])
    a, b = (Tensor(np.zeros(2), requires_grad=True) for _ in range(2))
    ops.maximum(a, b).backward(np.ones(2))
    assert a.grad.tolist() == [1, 1] and b.grad.tolist() == [0, 0]


def test_large_values_do_not_overflow():
    x = Tensor(np.array([-1000.0, -30.0, 0.0, 1000.0]), requires_grad=True)
    with np.errstate(all="raise", under="ignore"):
        for f in (ops.sigmoid, ops.tanh, ops.log_softmax, ops.softmax, ops.elu):
            out = f(x)
            out.backward(np.ones(4))
            assert np.isfinite(out.data).all() and np.isfinite(x.grad).all()
    np.testing.assert_allclose(ops.sigmoid(x).data[1], np.exp(-30), rtol=1e-12)


def test_full_slices_are_the_tensor_itself():
    x = Tensor(np.ones((3, 4)), requires_grad=True)
    for same in (x[:], x[:3], x[0:9, :], x[:, :]):
        assert same is x
    for other in (x[:2], x[::2], x[::-1], x[None], x[1], x[:, None], x[:, :2]):
        assert other is not x
    with pytest.raises(TypeError, match="take"):
        x[:, np.array([1])]


def test_take_refuses_bad_rows():
    x = Tensor(np.ones((3, 4)))
    with pytest.raises(IndexError, match=r"-1\.\.1.*3 rows"):
        ops.take(x, np.array([1, -1]))
    with pytest.raises(IndexError, match=r"3\.\.3"):
        x[np.array([3])]
    with pytest.raises(IndexError, match=r"-1"):
        x[np.array([-4])]
    with pytest.raises(ShapeError, match="integers"):
        ops.take(x, np.array([0.0]))
    with pytest.raises(ShapeError, match="3 rows"):
        x[np.array([True])]
    assert ops.take(Tensor(np.arange(3)), np.array([2])).data.tolist() == [2]


def test_take_adds_up_many_repeats():
    index = RNG.integers(0, 50, 20000)
    g = RNG.standard_normal((20000, 3))
    x = Tensor(np.zeros((50, 3)), requires_grad=True)
    ops.take(x, index).backward(g)
    expected = np.zeros((50, 3))
    np.add.at(expected, index, g)
    np.testing.assert_allclose(x.grad, expected, rtol=1e-12, atol=1e-12)


def test_comparisons_give_constants():
    x = Tensor(np.array([-1.0, 0.0, 2.0]), requires_grad=True)
    assert (x > 0).data.tolist() == [False, False, True] and (x >= 0).data.tolist() == [False, True, True]
    assert (x < 0).data.tolist() == [True, False, False] and (np.zeros(3) >= x).data.tolist() == [True, True, False]
    assert not (x > 0).requires_grad
    ops.where(x > 0, x, 0).sum().backward()
    assert x.grad.tolist() == [0, 0, 1]


def test_cross_entropy_over_parts_adds_up():
    logits, labels = draw(9, 4), RNG.integers(0, 4, 9)
    chosen = np.array([0, 1, 4, 5, 8])
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    whole = Tensor(logits, requires_grad=True)
    loss = ops.cross_entropy(whole, labels, chosen)
    np.testing.assert_allclose(loss.data, -log_p[chosen, labels[chosen]].mean(), rtol=1e-13)
    loss.backward()
    shares, grads = [], []
    for part in (slice(0, 2), slice(2, 4), slice(4, 4), slice(4, 9)):
        x, mask = Tensor(logits[part], requires_grad=True), np.isin(np.arange(9), chosen)[part]
        share = ops.cross_entropy(x, labels[part], mask, count=5)
        share.backward()
        shares.append(share.item())
        grads.append(x.grad)
    assert shares[1] == shares[2] == 0 and not grads[1].any()  # no selected rows, no rows at all
    np.testing.assert_allclose(sum(shares), loss.item(), rtol=1e-13)
    np.testing.assert_allclose(np.concatenate(grads), whole.grad, rtol=1e-13, atol=1e-16)


def test_cross_entropy_of_no_rows():
    for rows, count in (([], None), (np.zeros(3, bool), 0), (np.zeros(0, np.int64), 5)):
        x = Tensor(draw(3, 4), requires_grad=True)
        loss = ops.cross_entropy(x, np.full(3, -1), rows, count)
        loss.backward()
        assert loss.item() == 0 and x.grad.shape == (3, 4) and not x.grad.any()


def test_cross_entropy_refuses_bad_labels():
    logits = Tensor(np.zeros((3, 2)))
    labels = np.array([0, -1, 2])
    assert ops.cross_entropy(logits, labels, np.array([0])).item() == pytest.approx(np.log(2))
    with pytest.raises(DataError, match=r"labels\[1\] = -1"):
        ops.cross_entropy(logits, labels, np.array([0, 1]))
    with pytest.raises(DataError, match=r"labels\[2\] = 2"):
        ops.cross_entropy(logits, labels, np.array([False, False, True]))
    with pytest.raises(DataError, match="float64"):
        ops.cross_entropy(logits, np.zeros(3))
    with pytest.raises(ShapeError):
        ops.cross_entropy(logits, labels[:2])
    with pytest.raises(IndexError, match="3 rows"):
        ops.cross_entropy(logits, labels, np.array([3]))


def test_layer_norm_value():
    x, gamma, beta = draw(5, 4) + 1e3, draw(4), draw(4)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * gamma + beta
    np.testing.assert_allclose(ops.layer_norm(Tensor(x), gamma, beta).data, expected, rtol=1e-9)
    with pytest.raises(ShapeError, match="gamma"):
        ops.layer_norm(Tensor(x), gamma[:3], beta)


def test_dropout_replays_its_mask():
    x = Tensor(np.ones((200, 30)), requires_grad=True)
    out = ops.dropout(x, np.arange(200), key=2**63 + 5, p=0.3)
    out.backward(np.ones((200, 30)))
    np.testing.assert_array_equal(out.data, x.grad)
    assert set(np.unique(out.data)) == {0, 1 / 0.7}
    assert abs((out.data != 0).mean() - 0.7) < 5 * np.sqrt(0.21 / 6000)
    assert abs(out.data.mean(0) - 1).max() < 6 * np.sqrt(0.3 / 0.7 / 200)


def test_dropout_follows_the_ids():
    ids = RNG.permutation(10**12 + np.arange(40))
    x = draw(40, 3, 2)

    def masked(rows, key=11):
        return ops.dropout(Tensor(x[rows]), ids[rows], key, 0.5).data

    whole, order = masked(slice(None)), RNG.permutation(40)
    np.testing.assert_array_equal(masked(order), whole[order])
    np.testing.assert_array_equal(masked(slice(7, 20)), whole[7:20])
    assert (masked(slice(None), key=12) != whole).any()
    low = ops.dropout(Tensor(x.astype(np.float32)), ids, 11, 0.5).data
    np.testing.assert_array_equal(low != 0, whole != 0)


def test_bad_options_are_refused():
    x = Tensor(np.ones((2, 2)))
    for call in (
        lambda: ops.dropout(x, np.arange(2), 1, 1.0),
        lambda: ops.dropout(x, np.arange(2), 1, -0.1),
        lambda: ops.leaky_relu(x, -1),
        lambda: ops.elu(x, -1),
    ):
        with pytest.raises(ConfigError, match="must"):
            call()
    for ids in (np.arange(3), np.arange(2, dtype=np.int32)):
        with pytest.raises(ShapeError, match="ids"):
            ops.dropout(x, ids, 1, 0.5)
    with pytest.raises(ShapeError, match="multiply"):
        x @ np.ones((3, 2))
    with pytest.raises(TypeError, match="exponent"):
        x ** np.ones(2)
    assert ops.dropout(x, np.arange(2), 1, 0) is x

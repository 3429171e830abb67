"""Each dense operation: values against NumPy, gradients against finite differences, float32 against float64."""

import ast
from pathlib import Path

import numpy as np
import pytest

from sarlite import kernels
from sarlite.errors import ConfigError, ShapeError
from sarlite.tape import PRIMITIVES, Tensor, gradcheck, ops, ownership, recording, tensor
from tests.helpers.tape.tape_cases import CASES, RNG, draw


@pytest.mark.parametrize("name", CASES)
def test_values_are_numpys(name):
    f, reference, inputs = CASES[name]
    if reference is not None:
        out = f(*map(Tensor, inputs)).data
        expected = reference(*inputs)
        assert out.shape == expected.shape
        np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_gradients_agree_with_finite_differences(name):
    f, _, inputs = CASES[name]
    gradcheck(f, inputs)


@pytest.mark.parametrize("name", CASES)
def test_float32_stays_float32_and_agrees_with_float64(name):
    """Values and gradients stay float32, and both agree with float64."""
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


class Names(recording.Observer):
    def __init__(self):
        self.found = set()

    def applied(self, application):
        self.found.add(application.name)


def test_every_primitive_has_a_case():
    tape_primitives = {name for name, entry in PRIMITIVES.items() if entry.vjp and entry.forward.__module__.startswith("sarlite.tape")}
    names = Names()
    with recording.observed(names):
        for f, _, inputs in CASES.values():
            f(*map(Tensor, inputs))
    assert tape_primitives - names.found == set()
    assert "aggregate" not in tape_primitives and "einsum" in tape_primitives


@pytest.mark.parametrize("name", CASES)
def test_a_backward_pass_writes_to_nothing_that_is_read_again(name):
    """The same tape gives the same bits again, and leaves inputs and the given gradient as they are."""
    f, _, inputs = CASES[name]
    tensors = [Tensor(x.copy(), requires_grad=True) for x in inputs]
    out = f(*tensors) * 1.0  # so that the primitives of f get a g that they may write to
    out = out + f(*tensors)  # so that gradients are added up
    g = RNG.standard_normal(out.shape)
    before, first = g.copy(), None
    for _ in range(3):
        for t in tensors:
            t.grad = None
        out.backward(g, retain_graph=True)
        grads = [t.grad.tobytes() for t in tensors if t.grad is not None]
        assert first is None or grads == first
        first = grads
        for t, x in zip(tensors, inputs):
            np.testing.assert_array_equal(t.data, x)
        np.testing.assert_array_equal(g, before)


@pytest.mark.parametrize("make, sole", [
    (lambda: ([np.zeros(3)], None), True),
    (lambda: ([np.zeros(6).reshape(2, 3).T], None), True),
    (lambda: ([(a := np.zeros(3))], a), False),
    (lambda: ([(a := np.zeros(3))[1:]], a), False),
    (lambda: ([(a := np.zeros(3))], a[1:]), False),
    (lambda: ([(a := np.zeros(4)[1:])[:2]], a[2:]), False),
    (lambda: ([np.broadcast_to(np.zeros(3), (2, 3))], None), False),
    (lambda: ([np.frombuffer(bytearray(8))], None), False),
    (lambda: ([np.float64(1)], None), False),
])
def test_memory_with_one_owner_may_be_written(make, sole):
    cell, other = make()
    assert ownership.is_sole(cell) is sole
    del other
    assert (ownership.writable(cell) is not None) is sole or len(cell[0]) < 4


SUMS = ("sum", "mean", "var", "std", "dot", "matmul", "einsum", "tensordot", "reduce", "accumulate", "average", "inner", "vdot", "at")


def test_only_one_module_adds_up():
    """Functions of `numerics` compute every sum of the tape, so another way of summing has one place for each sum."""
    calls = []
    for path in sorted(Path(tensor.__file__).parent.glob("*.py")):
        if path.name in ("gradcheck.py",):  # compares, and is no part of a model
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            adds_up = name in SUMS and ast.unparse(node.func.value) != "reductions"
            if adds_up or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)):
                calls.append(f"{path.name}:{node.lineno} {ast.unparse(node)}")
    assert not calls


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
    x = Tensor(np.full((2**20, 2), 0.1, np.float32))  # two columns, as NumPy sums a single column in pairs
    exact = float(np.float32(0.1)) * 2**20
    assert abs(x.sum(0).data - exact).max() <= 2e-7 * exact
    assert abs(x.cumsum(0).data[-1] - exact).max() <= 2e-7 * exact and x.cumsum(0).dtype == np.float32
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


def test_infinite_gradients_pass_relu():
    x = Tensor(np.array([-1.0, 2.0, 0.0, -0.0]), requires_grad=True)
    with np.errstate(all="raise"):
        ops.relu(x).backward(np.array([np.inf, np.inf, -np.inf, np.inf]))
    assert x.grad.tolist() == [0, np.inf, 0, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_relu_is_the_kernels(dtype):
    x = np.array([[-0.0, 0.0, -1.0, 3.0, np.nan, np.inf, -np.inf]] * 3, dtype)
    expected = np.empty_like(x)
    kernels.activate(x, expected, kind="relu")
    for out in (ops.relu(Tensor(x)), ops.relu(Tensor(x[0])), ops.relu(Tensor(np.asfortranarray(x)))):
        assert out.dtype == dtype and out.data.tobytes() == expected[: len(out) if out.ndim == 2 else 1].tobytes()
    assert ops.relu(Tensor(np.array(-2, np.int32))).data == 0 and ops.relu(Tensor(np.array([-2, 2]))).tolist() == [0, 2]
    assert str(ops.relu(Tensor(np.array(-0.0, dtype))).data) == "0.0"


def test_gradient_of_a_quotient_of_tiny_numbers():
    a, b = (Tensor(np.array([value], np.float32), requires_grad=True) for value in (3e-23, 1e-23))
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        (a / b).backward(np.array([1e-5], np.float32))
    np.testing.assert_allclose([a.grad[0], b.grad[0]], [1e18, -3e18], rtol=1e-6)


def test_power_0_is_1_everywhere():
    x = Tensor(np.array([np.inf, -np.inf, np.nan, 0.0]), requires_grad=True)
    out = x**0
    out.backward(np.ones(4))
    assert out.tolist() == [1, 1, 1, 1] and x.grad.tolist() == [0, 0, 0, 0]


def test_a_root_at_0_has_an_infinite_gradient_and_a_deviation_of_0_has_none():
    x = Tensor(np.zeros(2), requires_grad=True)
    with np.errstate(divide="ignore"):
        ops.sqrt(x).backward(np.array([1.0, -1.0]))
    assert x.grad.tolist() == [np.inf, -np.inf]
    y = Tensor(np.full((2, 3), 0.1), requires_grad=True)
    y.std(0).backward(np.ones(3))
    assert y.grad.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_large_and_infinite_values():
    x = Tensor(np.array([[-np.inf, -np.inf], [-np.inf, 5.0], [1000.0, 1000.0]]), requires_grad=True)
    with np.errstate(all="raise"):
        out = x.logsumexp(1)
        out.backward(np.ones(3))
    assert out.tolist() == [-np.inf, 5.0, 1000 + np.log(2)] and x.grad.tolist() == [[0, 0], [0, 1], [0.5, 0.5]]
    y = Tensor(np.array([-800.0, 800.0]), requires_grad=True)
    with np.errstate(all="raise", under="ignore"):
        for f in (ops.softplus, ops.silu, ops.gelu, lambda a: ops.gelu(a, True), lambda a: ops.bce_with_logits(a, [0, 1])):
            out = f(y)
            out.backward(np.ones(out.shape))
    assert ops.softplus(y).tolist() == [0, 800] and np.isfinite(y.grad).all()
    np.testing.assert_allclose(ops.bce_with_logits(Tensor(np.array(40.0)), 1).item(), np.exp(-40), rtol=1e-12)


def test_arguments_of_the_new_operations():
    x = Tensor(np.ones((2, 1, 3)))
    for call, error, words in (
        (lambda: x.squeeze(0), ShapeError, "length is not 1"),
        (lambda: ops.expand_dims(x, 7), ShapeError, "axis 7"),
        (lambda: x.max((0, -3)), ShapeError, "twice"),
        (lambda: x.clip(2, 1), ConfigError, "above"),
        (lambda: x.clip(np.ones(3)), TypeError, "scalar"),
        (lambda: ops.scatter_add(x, [0, 5], 3), IndexError, r"0\.\.5.*3 rows"),
        (lambda: ops.scatter_add(x, [0], 3), ShapeError, "index of shape"),
        (lambda: ops.scatter_add(np.arange(2), [0, 1], 3), ShapeError, "float"),
        (lambda: ops.einsum("iij->j", x), ConfigError, "'i' occurs twice in 'iij'"),
        (lambda: ops.einsum("ijk->ii", x), ConfigError, "'i' occurs twice in 'ii'"),
        (lambda: ops.einsum("i...->i", x), ConfigError, "'...' is not supported"),
        (lambda: ops.einsum("ijk->l", x), ConfigError, "'l' of the output"),
        (lambda: ops.einsum("ij,ij", x, x), ShapeError, "shapes"),
        (lambda: ops.einsum("ijk,ijk", x, np.ones((2, 3, 3))), ShapeError, "'j' is 1 and 3"),
        (lambda: x @ 2, ShapeError, "matrices"),
    ):
        with pytest.raises(error, match=words):
            call()


def test_comparisons_give_constants():
    x = Tensor(np.array([-1.0, 0.0, 2.0]), requires_grad=True)
    assert (x > 0).data.tolist() == [False, False, True] and (x >= 0).data.tolist() == [False, True, True]
    assert (x < 0).data.tolist() == [True, False, False] and (np.zeros(3) >= x).data.tolist() == [True, True, False]
    assert not (x > 0).requires_grad
    ops.where(x > 0, x, 0).sum().backward()
    assert x.grad.tolist() == [0, 0, 1]


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scalar", [2, 2.0, np.float64(2), np.array(2.0)])
def test_einsum_keeps_the_dtype_of_its_arrays_beside_a_number(scalar, dtype):
    x = Tensor(np.arange(6, dtype=dtype).reshape(2, 3), requires_grad=True)
    out = ops.einsum("ij,->j", x, scalar)
    out.sum().backward()
    assert out.dtype == x.grad.dtype == dtype
    np.testing.assert_array_equal(out.data, [6, 10, 14])
    np.testing.assert_array_equal(x.grad, np.full((2, 3), 2))

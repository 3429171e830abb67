"""NumPy's functions of tensors, and conversions to values: no gradient is lost silently."""

import numpy as np
import pytest
from scipy import special

from sarlite.errors import DataError, ShapeError
from sarlite.tape import Tensor, gradcheck, ops, recording

X = np.array([[0.5, -1.0, 2.0], [3.0, 0.25, -0.75]])
COLUMN = np.array([[2.0], [0.5]])
MASK = X > 0

# NumPy's function, called with an array and with a tensor
SAME = {
    "exp": np.exp, "expm1": np.expm1, "log": lambda x: np.log(x * x), "log1p": lambda x: np.log1p(x * x), "tanh": np.tanh, "abs": np.abs,
    "sqrt": lambda x: np.sqrt(np.absolute(x)), "negative": np.negative, "power": lambda x: np.power(x, 2),
    "power_of_scalar": lambda x: np.power(2.0, x), "scalar_power": lambda x: np.float64(2) ** x,
    "scalar_times": lambda x: np.float64(2) * x,
    "add": lambda x: np.add(COLUMN, x), "subtract": lambda x: COLUMN - x, "multiply": lambda x: COLUMN * x, "divide": lambda x: COLUMN / x,
    "matmul": lambda x: COLUMN.T @ x, "np.matmul": lambda x: np.matmul(x, X.T), "maximum": lambda x: np.maximum(x, 0),
    "minimum": lambda x: np.minimum(0.3, x), "where": lambda x: np.where(MASK, x, 0), "where_not": lambda x: np.where(MASK, 0, x),
    "where_of_itself": lambda x: np.where(x > 0, x, 2 * x), "concatenate": lambda x: np.concatenate([x, X]),
    "concatenate_axis": lambda x: np.concatenate((x, COLUMN), axis=1), "concatenate_1": lambda x: np.concatenate([x], -1),
    "stack": lambda x: np.stack([X, x], axis=1), "reshape": lambda x: np.reshape(x, (3, 2)), "transpose": lambda x: np.transpose(x),
    "squeeze": lambda x: np.squeeze(x[:, :1], axis=1), "expand_dims": lambda x: np.expand_dims(x, 1),
    "take": lambda x: np.take(x[:, 0], [1, 0, 1]), "take_flat": lambda x: np.take(x, [4, -1, 4, 0]),
    "take_table": lambda x: np.take(x, [[0, 5], [-6, 2]]), "take_rows": lambda x: np.take(x, [1, 1, 0], axis=0),
    "take_columns": lambda x: np.take(x, np.array([[2, 0], [-1, 1]]), 1), "take_bools": lambda x: np.take(x, [True, False, True]),
    "take_one": lambda x: np.take(x, 2, axis=-1), "take_one_value": lambda x: np.take(x, 4) * np.take(x[:, 0], [0, 1]),
    "take_from_a_cube": lambda x: np.take(np.stack([x, X], 2), [[1], [0]], axis=1), "clip": lambda x: np.clip(x, -0.9, 1.0), "sum": np.sum,
    "sum_axis": lambda x: np.sum(x, 1),
    "mean": lambda x: np.mean(x, axis=0, keepdims=True), "max": lambda x: np.max(x, 1), "min": lambda x: np.min(x),
    "var": lambda x: np.var(x, 0, ddof=1), "std": lambda x: np.std(x, axis=1), "cumsum": lambda x: np.cumsum(x, axis=1),
    "einsum": lambda x: np.einsum("ij,kj->ik", X, x),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_numpys_functions_are_the_tapes(name):
    f = SAME[name]
    out = f(Tensor(X, requires_grad=True))
    assert isinstance(out, Tensor) and out.requires_grad
    np.testing.assert_allclose(out.data, f(X), rtol=1e-14)
    gradcheck(f, [X])


def test_a_matrix_is_an_array_and_a_mask_is_refused():
    matrix, t = np.matrix(X[:, :2]), Tensor(X[:, :2])
    assert type(Tensor(matrix).data) is np.ndarray
    np.testing.assert_array_equal((Tensor(matrix) ** 2).data, X[:, :2] ** 2)
    np.testing.assert_array_equal((t @ matrix).data, X[:, :2] @ X[:, :2])
    np.testing.assert_array_equal((t + matrix).data, 2 * X[:, :2])
    for product in (lambda: t * matrix, lambda: matrix * t):
        with pytest.raises(TypeError, match="np.matrix"):
            product()
    masked = np.ma.masked_array(X, MASK)
    for use in (lambda: Tensor(masked), lambda: Tensor(X) + masked):
        with pytest.raises(DataError, match="masked array"):
            use()
    assert type(Tensor(np.ma.masked_array(X)).data) is np.ndarray


REFUSED = {
    "sin": np.sin, "floor_divide": lambda x: X // x, "arctan2": lambda x: np.arctan2(x, X), "add.reduce": np.add.reduce,
    "dot": lambda x: np.dot(X, x.T),
    "prod": np.prod, "sort": np.sort, "ravel": np.ravel, "add.at": lambda x: np.add.at(X, [0], x), "vstack": lambda x: np.vstack([x, x]),
    "add of a Tensor into an array": lambda x: np.add(X, X, out=x.data) if False else np.add(X, x, out=X.copy()),
    "exp with where": lambda x: np.exp(x, where=MASK), "sum with dtype": lambda x: np.sum(x, dtype=np.float64),
    "mean": lambda x: np.mean(x, 0, None),
    "concatenate with dtype": lambda x: np.concatenate([x], dtype=np.float32), "copyto": lambda x: np.copyto(X.copy(), x),
    "norm": np.linalg.norm,
    "erf": special.erf, "nan_to_num": np.nan_to_num, "average": np.average, "pad": lambda x: np.pad(x, 1), "tile": lambda x: np.tile(x, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_lose_the_gradient_is_refused_by_name(name):
    with pytest.raises(TypeError, match=rf"{name}.*would lose the gradient.*np.asarray\(tensor\)"):
        REFUSED[name](Tensor(X, requires_grad=True))


def test_an_array_is_not_added_to_in_place():
    a = X.copy()
    before = a
    for change in (lambda a, x: a.__iadd__(x), lambda a, x: a.__imul__(x), lambda a, x: a.__isub__(x)):
        with pytest.raises(TypeError, match="a = a [+] tensor keeps it"):
            change(a, Tensor(X, requires_grad=True))
    a = a + Tensor(X, requires_grad=True)
    assert a.requires_grad and (before == X).all()
    for f in (lambda x: X**x, lambda x: x**x):
        with pytest.raises(TypeError, match="must be a scalar"):
            f(Tensor(X, requires_grad=True))


def test_what_has_no_gradient_gives_arrays():
    x = Tensor(X, requires_grad=True)
    assert np.shape(x) == (2, 3) and np.ndim(x) == 2 and np.size(x) == 6 and np.result_type(x, np.float32) == np.float64
    assert np.zeros_like(x).tolist() == [[0] * 3] * 2 and np.allclose(x, X) and np.array_equal(X, x) and np.argmax(x,
        axis=1).tolist() == [2, 0]
    assert np.isfinite(x).all() and not np.isnan(x).any() and np.logical_and(x, MASK).tolist() == MASK.tolist() and np.any(x)
    assert np.any(x, axis=(0, 1)) and np.all([[x, x], [X, x]])
    assert isinstance(np.isnan(x), np.ndarray) and np.shares_memory(x, X)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_allclose([x, x], [X, X])


def test_shapes_are_no_reads_and_values_are():
    x = Tensor(X, requires_grad=True)
    x.volatile = True
    for f, seen in ((np.shape, False), (np.zeros_like, False), (lambda x: np.where(x > 0, x, 0), False), (np.exp, False),
                    (np.isnan, True), (np.argmax, True), (lambda x: np.allclose([x], [X]), True)):  # fmt: skip
        with recording.watch_reads() as reads:
            f(x)
        assert reads.seen == seen


# ---- the ways out


def test_ways_out_are_explicit():
    x, one = Tensor(X, requires_grad=True), Tensor(np.array(1.5), requires_grad=True)
    for values in (np.asarray(x), np.array(x), np.ascontiguousarray(x), x.numpy(), np.from_dlpack(x)):
        assert type(values) is np.ndarray and (values == X).all()
    assert np.array([x, x]).shape == (2, 2, 3) and np.array([one, 2.0]).tolist() == [1.5, 2] and float(one) == 1.5
    a = np.zeros(2)
    a[...] = x[:, 0]
    assert a.tolist() == [0.5, 3]


def test_dlpack_of_all_layouts():
    x = Tensor(X, requires_grad=True)
    for t, shares in ((x, True), (x.T, True), (x[::2], True), (x[:, ::-1], False), (x * 2, True), (x[:0], True), (x > 0, True),
        (x.sum(), True)):
        values = np.from_dlpack(t)
        np.testing.assert_array_equal(values, t.data)
        assert values.dtype == t.dtype and np.shares_memory(values, t.data) == (shares and t.size > 0)
        assert t.__dlpack_device__() == (1, 0)
    for t, step in ((x, 1), (x[:, ::-1], -1)):
        values = np.from_dlpack(t, copy=True)
        assert not np.shares_memory(values, X) and (values == X[:, ::step]).all()
    with pytest.raises(BufferError, match="negative strides"):
        x[:, ::-1].__dlpack__(copy=False)


def test_dlpack_of_what_may_not_be_written():
    fixed = X.copy()
    fixed.flags.writeable = False
    for t in (Tensor(fixed), Tensor(X.copy(), constant=True)):
        values = np.from_dlpack(t)
        assert not values.flags.writeable and np.shares_memory(values, t.data)
        with pytest.raises(BufferError):
            t.__dlpack__()  # a consumer that does not know the mark
        assert np.from_dlpack(t, copy=True).flags.writeable


def test_dlpack_with_torch():
    torch = pytest.importorskip("torch")
    x = Tensor(X.copy(), requires_grad=True)
    for t in (x, x * 2, x.T, x[::-1], x[:, ::-2], x[:0], x > 0, x.sum(), x.astype(np.float32), Tensor(X, constant=True),
        Tensor(np.arange(3))):
        values = torch.from_dlpack(t)
        assert values.shape == t.shape and (values.numpy() == t.data).all() and not values.requires_grad
    torch.from_dlpack(x)[0, 0] = 7
    assert x.data[0, 0] == 7
    product = x * torch.ones(3, dtype=torch.float64)
    assert isinstance(product, Tensor) and product.requires_grad
    assert Tensor(torch.ones(3)).dtype == np.float32


# ---- indexing


def test_what_an_index_cannot_be():
    x = Tensor(X, requires_grad=True)
    for index, error, words in (
        (MASK, ShapeError, r"bool index of shape \(2, 3\)"), ((np.array([0]), 0), TypeError, "take"),
        ((slice(None), [0, 1]), TypeError, "take"),
        (1.0, TypeError, "float"), ("a", TypeError, "str"), ([2], IndexError, "2 rows"), ([-3], IndexError, "-1"),
        (2, IndexError, "out of bounds"),
        ([0.5], ShapeError, "integers"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            x[index]
    with pytest.raises(TypeError, match="assignment"):
        x[0] = 1.0


@pytest.mark.parametrize("change", [lambda w: setattr(w, "data", w.data + 1), lambda w: w.changed()])
@pytest.mark.parametrize("f", [lambda w: w[[1, 0, 1]] * w[:1], lambda w: w[::-1] * w, lambda w: w[MASK[:, 0]].exp() * w,
    lambda w: ops.where(MASK, w * w, w)])
def test_a_leaf_that_changed_between_is_refused(f, change):
    w = Tensor(X.copy(), requires_grad=True)
    out = f(w).sum()
    change(w)
    with pytest.raises(RuntimeError, match="changed since"):
        out.backward()
    assert w.grad is None

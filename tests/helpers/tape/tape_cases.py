"""A test case for each dense operation of the tape, for the tests of values, gradients, dtypes and ownership."""

import math

import numpy as np

from sarlite.tape import ops

RNG = np.random.default_rng(7)


def draw(*shape, away_from=0.0, low=-2.0, high=2.0):
    """Return uniform random numbers in [low, high], of the given shape; numbers within `away_from` of 0, a kink, are moved away."""
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
    "matmul_by_head": (ops.matmul_by_head, lambda x, w: np.einsum("ihf,hfd->ihd", x, w), [draw(7, 3, 5), draw(3, 5, 2)]),
    "matmul_by_head_empty": (ops.matmul_by_head, lambda x, w: np.einsum("ihf,hfd->ihd", x, w), [np.zeros((0, 3, 5)), draw(3, 5, 2)]),
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
    "reversed": (lambda a: a[::-1] * a[:1], lambda a: a[::-1] * a[:1], [A]),
    "reversed_columns": (lambda a: a[:, ::-2], lambda a: a[:, ::-2], [A]),
    "slice_far": (lambda a: a[-99:99:2, 3:0:-1], lambda a: a[-99:99:2, 3:0:-1], [A]),
    "index_numbers": (lambda a: a[np.int64(-1), 1], lambda a: a[-1, 1], [CUBE]),
    "take": (lambda a: ops.take(a, REPEATED), lambda a: a[REPEATED], [A]),
    "take_cube": (lambda a: a[REPEATED[:3] - 1], lambda a: a[REPEATED[:3] - 1], [CUBE]),
    "take_vector": (lambda a: a[REPEATED], lambda a: a[REPEATED], [ROW]),
    "take_table": (lambda a: a[REPEATED.reshape(2, 3)], lambda a: a[REPEATED.reshape(2, 3)], [A]),
    "take_bool": (lambda a: a[np.array([True, False, True])], lambda a: a[[0, 2]], [A]),
    "take_bool_list": (lambda a: a[[True, False, True]], lambda a: a[[0, 2]], [A]),
    "take_bool_tensor": (lambda a: a[a[:, 0].detach() > 9], lambda a: a[:0], [A]),
    "take_bool_none": (lambda a: a[np.zeros(0, bool)], lambda a: a, [NO_ROWS]),
    "take_negative": (lambda a: a[[-1, 0, -1, 2]], lambda a: a[[-1, 0, -1, 2]], [A]),
    "take_twice": (lambda a: a[REPEATED][REPEATED] * a[:1], lambda a: a[REPEATED][REPEATED] * a[:1], [A]),
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

erf = np.vectorize(math.erf, otypes=[float])


def softplus(a):
    return np.log1p(np.exp(a))


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def cdf(a):
    return (1 + erf(a / np.sqrt(2))) / 2


# name: (operation, the same in NumPy, values that keep clear of kinks); run on a table, a number, no rows and a stretched row
UNARY = {
    "neg": (lambda a: -a, np.negative, draw),
    "abs": (abs, np.abs, positive),
    "sqrt": (ops.sqrt, np.sqrt, positive),
    "exp": (ops.exp, np.exp, draw),
    "expm1": (ops.expm1, np.expm1, draw),
    "log": (ops.log, np.log, positive),
    "log1p": (ops.log1p, np.log1p, positive),
    "tanh": (ops.tanh, np.tanh, draw),
    "sigmoid": (ops.sigmoid, sigmoid, draw),
    "softplus": (ops.softplus, softplus, draw),
    "silu": (ops.silu, lambda a: a * sigmoid(a), draw),
    "gelu": (ops.gelu, lambda a: a * cdf(a), draw),
    "gelu_tanh": (lambda a: ops.gelu(a, True), lambda a: a / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3))), draw),
    "relu": (ops.relu, lambda a: np.maximum(a, 0), positive),
    "relu_below": (lambda a: ops.relu(-a), np.zeros_like, positive),
    "leaky_relu": (lambda a: ops.leaky_relu(-a, 0.3), lambda a: -0.3 * a, positive),
    "elu": (ops.elu, lambda a: a, positive),
    "elu_below": (lambda a: ops.elu(-a, 0.7), lambda a: 0.7 * np.expm1(-a), positive),
    "power": (lambda a: a**2.5, lambda a: a**2.5, positive),
    "power_1": (lambda a: a**1, lambda a: a, draw),
    "power_0": (lambda a: a**0, np.ones_like, draw),
    "rpow": (lambda a: 3**a, lambda a: 3**a, draw),
    "rpow_0": (lambda a: ops.rpow(a, 0), np.zeros_like, positive),
    "clip": (lambda a: a.clip(0.3, 1.2), lambda a: np.clip(a, 0.3, 1.2), positive),
    "clip_low": (lambda a: ops.clip(a, low=1.1), lambda a: np.maximum(a, 1.1), positive),
    "clip_high": (lambda a: ops.clip(a, high=1.1), lambda a: np.minimum(a, 1.1), positive),
    "square_twice": (lambda a: a * a * (a * a), lambda a: a**4, draw),
    "mixed": (lambda a: a * 0.3 + (1 - a) * a, lambda a: a * 0.3 + (1 - a) * a, draw),
    "standardised": (lambda a: (a - 0.5) / a, lambda a: (a - 0.5) / a, positive),
    "astype": (lambda a: a.astype(np.longdouble).astype(a.dtype) * 2, lambda a: 2 * a, draw),
    "sum_of": (lambda a: a.sum(), np.sum, draw),
    "where_of": (lambda a: ops.where(True, a, -a), lambda a: a, draw),
}
BINARY = {
    "add": (lambda a, b: a + b, np.add),
    "sub": (lambda a, b: a - b, np.subtract),
    "mul": (lambda a, b: a * b, np.multiply),
    "div": (lambda a, b: a / b, np.divide),
    "maximum": (ops.maximum, np.maximum),
    "minimum": (ops.minimum, np.minimum),
    "where": (lambda a, b: ops.where(a > b, a, b), np.maximum),
    "mixture": (lambda a, b: a * b + (1 - a) * b, lambda a, b: b + 0 * a),
}
PLACES = {"": (3, 4), "_0d": (), "_empty": (0, 4), "_no_width": (3, 0), "_1": (1,)}
PAIRS = {"": ((3, 4), (3, 4)), "_0d": ((), ()), "_with_0d": ((3, 4), ()), "_row": ((4,), (3, 4)), "_stretched": ((3, 1, 4), (2, 1)),
         "_empty": ((0, 4), (1, 4))}  # fmt: skip
for _name, (_f, _reference, _values) in UNARY.items():
    CASES |= {f"{_name}{place}": (_f, _reference, [_values(*shape)]) for place, shape in PLACES.items() if _name + place not in CASES}
for _name, (_f, _reference) in BINARY.items():
    CASES |= {f"{_name}_of{place}": (_f, _reference, [positive(*a), positive(*b)]) for place, (a, b) in PAIRS.items()}

STRETCH = draw(3, 1)
TARGETS = np.array([[1, 0, 1, 1], [0, 0, 1, 0], [1, 1, 0, 0]])
CASES |= {
    "var": (lambda a: a.var(), np.var, [A]),
    "var_axes": (lambda a: a.var((0, 2), ddof=1), lambda a: a.var((0, 2), ddof=1), [CUBE]),
    "var_keep": (lambda a: a.var(-1, keepdims=True), lambda a: a.var(-1, keepdims=True), [CUBE]),
    "var_rows": (lambda a: a.var(0), lambda a: a.var(0), [A]),
    "var_empty_rows": (lambda a: a.var(-1), lambda a: np.zeros(0), [NO_ROWS]),
    "var_0d": (lambda a: a.var(), np.var, [np.array(0.7)]),
    "std": (lambda a: a.std(1, ddof=1), lambda a: a.std(1, ddof=1), [A]),
    "std_keep": (lambda a: a.std((0, 1), keepdims=True), lambda a: a.std((0, 1), keepdims=True), [CUBE]),
    "std_all": (ops.std, np.std, [CUBE]),
    "std_empty_rows": (lambda a: a.std(-1), lambda a: np.zeros(0), [NO_ROWS]),
    "logsumexp": (lambda a: a.logsumexp(), lambda a: np.log(np.exp(a).sum()), [A]),
    "logsumexp_axes": (lambda a: a.logsumexp((0, -1)), lambda a: np.log(np.exp(a).sum((0, -1))), [CUBE]),
    "logsumexp_keep": (lambda a: a.logsumexp(1, keepdims=True), lambda a: np.log(np.exp(a).sum(1, keepdims=True)), [CUBE]),
    "logsumexp_0d": (ops.logsumexp, lambda a: a, [np.array(0.7)]),
    "logsumexp_empty_rows": (lambda a: a.logsumexp(-1), lambda a: np.zeros(0), [NO_ROWS]),
    "mean_0d": (ops.mean, lambda a: a, [np.array(0.7)]),
    "mean_axes": (lambda a: a.mean((0, 2), keepdims=True), lambda a: a.mean((0, 2), keepdims=True), [CUBE]),
    "max_0d": (ops.max, lambda a: a, [np.array(0.7)]),
    "max_axes": (lambda a: a.max((0, 2)), lambda a: a.max((0, 2)), [CUBE]),
    "max_first_axes": (lambda a: a.max((1, 0), keepdims=True), lambda a: a.max((1, 0), keepdims=True), [CUBE]),
    "min_last_axes": (lambda a: a.min((1, 2)), lambda a: a.min((1, 2)), [CUBE]),
    "min_all": (ops.min, np.min, [CUBE]),
    "cumsum": (lambda a: a.cumsum(), np.cumsum, [A]),
    "cumsum_rows": (lambda a: a.cumsum(0), lambda a: a.cumsum(0), [CUBE]),
    "cumsum_last": (lambda a: a.cumsum(-1), lambda a: a.cumsum(-1), [CUBE]),
    "cumsum_empty": (lambda a: a.cumsum(0), lambda a: a.cumsum(0), [NO_ROWS]),
    "cumsum_0d": (ops.cumsum, np.cumsum, [np.array(0.7)]),
    "squeeze": (lambda a: a.squeeze() * 2, lambda a: 2 * a.squeeze(), [draw(1, 3, 1)]),
    "squeeze_axis": (lambda a: ops.squeeze(a, -1), lambda a: a.squeeze(-1), [draw(1, 3, 1)]),
    "squeeze_to_0d": (ops.squeeze, np.squeeze, [draw(1, 1)]),
    "expand_dims": (lambda a: ops.expand_dims(a, 1), lambda a: np.expand_dims(a, 1), [A]),
    "expand_dims_several": (lambda a: ops.expand_dims(a, (0, -1)), lambda a: np.expand_dims(a, (0, -1)), [A]),
    "expand_dims_0d": (lambda a: ops.expand_dims(a, 0), lambda a: np.expand_dims(a, 0), [np.array(0.7)]),
    "scatter_add": (lambda a: ops.scatter_add(a, REPEATED, 4), lambda a: _scattered(a, REPEATED, 4), [draw(6, 3)]),
    "scatter_add_table": (lambda a: ops.scatter_add(a, REPEATED.reshape(2, 3), 4),
                          lambda a: _scattered(a.reshape(6, 2), REPEATED, 4), [draw(2, 3, 2)]),
    "scatter_add_vector": (lambda a: ops.scatter_add(a, REPEATED, 3), lambda a: _scattered(a, REPEATED, 3), [draw(6)]),
    "scatter_add_none": (lambda a: ops.scatter_add(a, np.zeros(0, int), 3), lambda a: np.zeros((3, 4)), [NO_ROWS]),
    "einsum": (lambda a, b: ops.einsum("ij,jk->ik", a, b), lambda a, b: a @ b, [A, draw(4, 5)]),
    "einsum_implicit": (lambda a, b: ops.einsum("ij, jk", a, b), lambda a, b: a @ b, [A, draw(4, 5)]),
    "einsum_heads": (lambda a, b: ops.einsum("nhd,hd->nh", a, b), lambda a, b: (a * b).sum(-1), [CUBE, draw(3, 4)]),
    "einsum_summed_alone": (lambda a, b: ops.einsum("ij,k->i", a, b), lambda a, b: a.sum(1) * b.sum(), [A, draw(5)]),
    "einsum_one": (lambda a: ops.einsum("ij->ji", a) * 2, lambda a: 2 * a.T, [A]),
    "einsum_total": (lambda a: ops.einsum("ij->", a), np.sum, [A]),
    "einsum_three": (lambda a, b, c: ops.einsum("ij,jk,kl->il", a, b, c), lambda a, b, c: a @ b @ c, [A, draw(4, 5), draw(5, 2)]),
    "einsum_itself": (lambda a: ops.einsum("ij,ij->i", a, a), lambda a: (a * a).sum(1), [A]),
    "einsum_0d": (lambda a, b: ops.einsum(",->", a, b), np.multiply, [np.array(0.7), np.array(0.3)]),
    "einsum_empty": (lambda a, b: ops.einsum("ij,jk->ik", a, b), lambda a, b: a @ b, [NO_ROWS, draw(4, 5)]),
    "iterated": (lambda a: sum(row * (i + 1) for i, row in enumerate(a)), lambda a: a[0] + 2 * a[1] + 3 * a[2], [A]),
    "stack_0d": (lambda a, b: ops.stack([a, b]), lambda *x: np.stack(x), [np.array(0.7), np.array(0.3)]),
    "layer_norm_vector": (ops.layer_norm, None, [draw(4), draw(4), draw(4)]),
    "cross_entropy_sum": (lambda a: ops.cross_entropy(a, LABELS, reduction="sum"), None, [draw(5, 4)]),
    "cross_entropy_none": (lambda a: ops.cross_entropy(a, LABELS, [3, 0, 3], reduction="none"), None, [draw(5, 4)]),
    "cross_entropy_weights": (lambda a: ops.cross_entropy(a, LABELS, weight=[1, 2, 3, 0.5], row_weight=np.arange(5)), None, [draw(5, 4)]),
    "cross_entropy_all_options": (
        lambda a: ops.cross_entropy(a, LABELS, [3, 0, 3], 9, weight=[1, 2, 3, 0.5], row_weight=np.arange(5)), None, [draw(5, 4)]),
    "nll": (lambda a: ops.nll(a, LABELS), None, [draw(5, 4)]),
    "nll_rows": (lambda a: ops.nll(a, LABELS, [3, 0, 3], weight=[1, 2, 3, 0.5]), None, [draw(5, 4)]),
    "nll_none": (lambda a: ops.nll(a, LABELS, [3, 0, 3], reduction="none", row_weight=np.arange(5)), None, [draw(5, 4)]),
    "bce_with_logits": (lambda a: ops.bce_with_logits(a, TARGETS), None, [draw(3, 4)]),
    "bce_with_logits_rows": (
        lambda a: ops.bce_with_logits(a, TARGETS, [2, 0, 2], 5, weight=[[1], [2], [3]]), None, [draw(3, 4)]),
    "bce_with_logits_none": (lambda a: ops.bce_with_logits(a, TARGETS, reduction="none", weight=[1, 2, 3, 4]), None, [draw(3, 4)]),
    "bce_with_logits_0d": (lambda a: ops.bce_with_logits(a, True), None, [np.array(0.7)]),
    "focal": (lambda a: ops.focal(a * a, 2.0), lambda a: (1 - np.exp(-a * a)) ** 2 * a * a, [draw(3, 4)]),
    "focal_half": (lambda a: ops.focal(ops.softplus(a), 0.5), None, [draw(3, 4)]),
    "focal_of_rows": (
        lambda a: ops.mean_share(ops.focal(ops.cross_entropy(a, LABELS, [3, 0, 3], reduction="none"), 1.5), 7), None, [draw(5, 4)]),
    "mse": (lambda a, b: ops.mse(a, b), lambda a, b: np.square(a - b).mean(), [A, B]),
    "mse_rows": (lambda a, b: ops.mse(a, b, [True, False, True], weight=STRETCH), None, [A, B]),
    "mse_sum": (lambda a: ops.mse(a, TARGETS, reduction="sum"), lambda a: np.square(a - TARGETS).sum(), [A]),
    "mse_0d": (lambda a: ops.mse(a, 1), lambda a: (a - 1) ** 2, [np.array(0.7)]),
    "mae": (lambda a, b: ops.mae(a, b), lambda a, b: np.abs(a - b).mean(), [A, B]),
    "mae_rows": (lambda a, b: ops.mae(a, b, [True, False, True], weight=STRETCH), None, [A, B]),
    "mse_empty": (lambda a: ops.mse(a, NO_ROWS), lambda a: np.zeros(()), [NO_ROWS]),
}  # fmt: skip


def _scattered(a, index, n):
    out = np.zeros((n, *a.shape[1:]))
    np.add.at(out, index, a)
    return out

"""Losses: values, shares of ranks, weights, reductions and refusals. test_tape_ops checks the gradients."""

import numpy as np
import pytest

from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.tape import Tensor, ops

RNG = np.random.default_rng(7)


def draw(*shape):
    return RNG.uniform(-2, 2, shape)


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
    assert shares[1] == shares[2] == 0 and not grads[1].any()  # no selected rows; no rows
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
    with pytest.raises(DataError, match=r"rows\[0\] is 3, .*0 .. 2"):
        ops.cross_entropy(logits, labels, np.array([3]))


LOGITS, LABELS, ROWS = draw(9, 4), RNG.integers(0, 4, 9), np.array([1, 2, 5, 5, 8])
BY_CLASS, BY_ROW = np.array([1, 2, 0, 0.5]), RNG.uniform(0, 2, 9)
LOG_P = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))
LOSSES = -LOG_P[ROWS, LABELS[ROWS]]
W = BY_CLASS[LABELS[ROWS]] * BY_ROW[ROWS]
BOTH = pytest.mark.parametrize("f", [
    lambda *args, **options: ops.cross_entropy(Tensor(LOGITS), *args, **options),
    lambda *args, **options: ops.nll(Tensor(LOG_P), *args, **options),
])  # fmt: skip


@BOTH
def test_reductions_and_weights(f):
    close = np.testing.assert_allclose
    close(f(LABELS, ROWS, reduction="none").data, LOSSES, rtol=1e-13)
    close(f(LABELS, ROWS, reduction="sum").data, LOSSES.sum(), rtol=1e-13)
    close(f(LABELS, ROWS).data, LOSSES.mean(), rtol=1e-13)
    close(f(LABELS, ROWS, 11).data, LOSSES.sum() / 11, rtol=1e-13)
    close(f(LABELS).data, -LOG_P[np.arange(9), LABELS].mean(), rtol=1e-13)
    weights = {"weight": BY_CLASS, "row_weight": BY_ROW}
    close(f(LABELS, ROWS, reduction="none", **weights).data, W * LOSSES, rtol=1e-13)
    close(f(LABELS, ROWS, reduction="sum", **weights).data, (W * LOSSES).sum(), rtol=1e-13)
    close(f(LABELS, ROWS, **weights).data, (W * LOSSES).sum() / W.sum(), rtol=1e-13)
    close(f(LABELS, ROWS, 2.5, weight=BY_CLASS).data, (BY_CLASS[LABELS[ROWS]] * LOSSES).sum() / 2.5, rtol=1e-13)
    assert f(LABELS, ROWS, row_weight=np.zeros(9)).item() == 0


@BOTH
def test_what_classes_refuse(f):
    for call, error, words in (
        (lambda: f(LABELS, reduction="average"), ConfigError, "'average' is not one of mean, sum, none"),
        (lambda: f(LABELS, count=3, reduction="sum"), ConfigError, "count is the divisor of a mean"),
        (lambda: f(LABELS, weight=np.ones(3)), ShapeError, r"weight has shape \(3,\), not \(4,\)"),
        (lambda: f(LABELS, row_weight=np.ones(3)), ShapeError, r"row_weight has shape \(3,\), not \(9,\)"),
        (lambda: f(LABELS + 9, np.array([4])), DataError, r"labels\[4\]"),
        (lambda: f(LABELS, count=np.nan), ConfigError, "count is nan"),
        (lambda: f(LABELS, count=-2), ConfigError, "count is -2"),
        (lambda: f(LABELS, weight=np.array([1, 1, np.nan, 1])), DataError, r"weight\[2\] is nan"),
        (lambda: f(LABELS, ROWS, row_weight=1 - np.arange(9)), DataError, r"row_weight\[2\] is -1"),
        (lambda: f(LABELS, row_weight=np.full(9, np.inf)), DataError, r"row_weight\[0\] is inf"),
        (lambda: f(LABELS, weight=Tensor(np.ones(4), requires_grad=True)), ConfigError, "weight requires a gradient"),
    ):
        with pytest.raises(error, match=words):
            call()
    weights_of_rows = np.where(np.isin(np.arange(9), ROWS), 1, np.nan)
    assert f(LABELS, ROWS, row_weight=weights_of_rows).item() == pytest.approx(LOSSES.mean())  # others are not read


def test_losses_of_values():
    x, t, w = draw(6, 3), RNG.integers(0, 2, (6, 3)), RNG.uniform(0, 2, (6, 3))
    rows = np.array([0, 4, 4])
    p = 1 / (1 + np.exp(-x))
    for f, all_of in ((ops.bce_with_logits, -(t * np.log(p) + (1 - t) * np.log(1 - p))), (ops.mse, (x - t) ** 2)):
        of = lambda *args, f=f, **options: f(Tensor(x), t, *args, **options).data  # noqa: E731
        np.testing.assert_allclose(of(), all_of.mean(), rtol=1e-12)
        np.testing.assert_allclose(of(rows), all_of[rows].mean(), rtol=1e-12)
        np.testing.assert_allclose(of(rows, 20), all_of[rows].sum() / 20, rtol=1e-12)
        np.testing.assert_allclose(of(rows, weight=w), (w * all_of)[rows].mean(), rtol=1e-12)
        np.testing.assert_allclose(of(weight=w[0]), (w[0] * all_of).mean(), rtol=1e-12)
        np.testing.assert_allclose(of(weight=w[:, :1], reduction="sum"), (w[:, :1] * all_of).sum(), rtol=1e-12)
        np.testing.assert_allclose(of(rows, reduction="none"), all_of[rows], rtol=1e-12)
        none = Tensor(x, requires_grad=True)
        loss = f(none, t, np.zeros(6, bool))
        loss.backward()
        assert loss.item() == 0 and not none.grad.any()


def test_shares_of_values_add_up():
    x, t = draw(6, 3), RNG.uniform(0, 1, (6, 3))
    for f in (ops.bce_with_logits, ops.mse):
        shares = [f(Tensor(x[part]), t[part], count=18).item() for part in (slice(0, 1), slice(1, 1), slice(1, 6))]
        np.testing.assert_allclose(sum(shares), f(Tensor(x), t).item(), rtol=1e-13)


def test_what_values_refuse():
    x = Tensor(draw(6, 3))
    for call, error, words in (
        (lambda: ops.bce_with_logits(x, np.full((6, 3), 1.5)), DataError, r"targets: 1\.5 is not in \[0, 1\]"),
        (lambda: ops.bce_with_logits(x, np.full((6, 3), np.nan)), DataError, "nan"),
        (lambda: ops.mse(x, np.ones(6)), ShapeError, r"\(6,\) do not have the shape \(6, 3\)"),
        (lambda: ops.mse(x, np.ones((6, 3)), np.array([6])), DataError, r"rows\[0\] is 6, but rows are 0 .. 5"),
        (lambda: ops.mse(x, np.ones((6, 3)), count=2, reduction="none"), ConfigError, "count"),
        (lambda: ops.mae(x, np.ones((6, 3)), count=-1), ConfigError, "count is -1"),
        (lambda: ops.mse(x, np.ones((6, 3)), weight=np.array([1, -1, 1])), DataError, r"weight\[0, 1\] is -1"),
        (lambda: ops.mae(x, np.ones((6, 3)), [4, 2], weight=np.full((6, 1), np.nan)), DataError, r"weight\[4, 0\] is nan"),
        (lambda: ops.mse(x, np.ones((6, 3)), weight=np.ones(6)), ShapeError, r"weight of shape \(6,\) does not broadcast"),
        (lambda: ops.mse(x, np.ones((6, 3)), weight=Tensor(np.ones(3), requires_grad=True)), ConfigError, "requires a gradient"),
    ):
        with pytest.raises(error, match=words):
            call()


def test_targets_take_the_dtype_of_the_values():
    x = Tensor(np.ones((2, 3), np.float32), requires_grad=True)
    for targets in (np.zeros((2, 3)), np.zeros((2, 3), bool), [[0, 1, 0]] * 2):
        loss = ops.bce_with_logits(x, targets, weight=np.ones(3)) + ops.mse(x, targets) + ops.cross_entropy(x, [0, 1], weight=np.ones(3))
        loss.backward()
        assert loss.dtype == x.grad.dtype == np.float32


@pytest.mark.parametrize("dtype, rtol", [(np.float64, 1e-13), (np.float32, 5e-5)])
@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 3.7])
def test_focal_is_its_definition_and_has_its_slope_everywhere(gamma, dtype, rtol):
    losses = np.array([1e-30, 1e-8, 0.1, 1.0, 5.0, 80.0], dtype)
    x = Tensor(losses, requires_grad=True)
    loss = ops.focal(x, gamma)
    loss.sum().backward()
    wide = losses.astype(np.float64)
    missed = -np.expm1(-wide)
    np.testing.assert_allclose(loss.data, missed**gamma * wide, rtol=rtol, atol=1e-37)
    np.testing.assert_allclose(x.grad, missed**gamma + gamma * missed ** (gamma - 1) * np.exp(-wide) * wide, rtol=rtol, atol=1e-37)
    assert loss.dtype == dtype


def test_focal_of_a_row_that_is_surely_right():
    x = Tensor(np.zeros(3), requires_grad=True)
    loss = ops.focal(x, 0.5)
    loss.sum().backward()
    assert not loss.data.any() and not x.grad.any()
    with pytest.raises(ConfigError, match="focal's gamma is 0"):
        ops.focal(x, 0)


def test_shares_of_a_mean_add_up():
    losses = draw(10)
    shares = [ops.mean_share(Tensor(losses[part]), 10).item() for part in (slice(0, 3), slice(3, 3), slice(3, 10))]
    assert shares[1] == 0
    np.testing.assert_allclose([sum(shares), ops.mean_share(Tensor(losses)).item()], losses.mean(), rtol=1e-13)

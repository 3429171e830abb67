"""Common mistakes of kernels as formulas: a mean over another degree, a softmax without its maximum, another variance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from sarlite.oracle.difference import Difference
from sarlite.oracle.finding import Edges
from sarlite.oracle.formats import format_of
from sarlite.oracle.plain import BoundedArray, all_masked, column
from sarlite.types import Array


class Guess(NamedTuple):
    """A probable cause of a wrong result: its text, a function that predicts the wrong result, and the edges that the text names."""

    cause: str
    number: Callable[[], BoundedArray]
    edges: Edges = ()


def mistakes(difference: Difference) -> Iterator[Guess]:
    """Yield a Guess for each common mistake that a kernel for the operation of `difference` may have made."""
    case = difference.case
    if case.attributes.get("reduce") == "mean" and case.op in ("spmm", "scatter"):
        yield from _means(difference)
    if difference.output == "dx" and difference.cotangents is not None and case.op == "spmm":
        for row, text in ((0, "the first source"), (-1, "the last source")):
            yield Guess(f"gradients of rows without edges go to {text}", partial(_stray, difference, row))
    if difference.cotangents is None and case.op == "softmax":
        yield Guess("a row whose scores are all -Inf gives 0 / 0", partial(_masked_rows, difference))
    if difference.cotangents is None and case.op in ("softmax", "attention") and case.attributes.get("kind", "gat") == "gat":
        for text, empty in (("", np.nan), (", and 0 / 0 is taken for 0", 0.0)):
            yield Guess(f"softmax subtracts no maximum: exp overflows or vanishes{text}",
                        partial(_without_maximum, case, difference.output, empty))
    if difference.cotangents is None and case.op == "batch_norm":
        yield Guess("the variance is divided by n - 1", partial(_unbiased, case))
        yield Guess("the variance may be E[x^2] - E[x]^2: errors are as large as its cancellation",
                    partial(_cancelled, difference))


# ---- means


def _means(difference):
    case = difference.case
    e, total = case.edges, replace(case, attributes={**case.attributes, "reduce": "sum"})
    pairs = np.unique(np.stack([e.dst, e.src]), axis=1)[0]
    divisors = {"the in-degree and one": e.in_degrees + 1,
                "the number of sources that differ": np.bincount(pairs, minlength=e.n_dst),
                "the largest in-degree": np.full(e.n_dst, e.in_degrees.max(initial=1))}
    if e.n_src == e.n_dst:
        divisors = {"the out-degree of the destination": e.out_degrees, **divisors}
    for text, degrees in divisors.items():
        yield Guess(f"a mean is divided by {text}", partial(_divided, difference, total, np.maximum(degrees, 1)))
    if "x" in case.arrays:
        yield Guess("a mean is divided by the out-degree of each source", partial(_divided_at_source, difference, total))


def _divided(difference, total, degrees):
    if difference.cotangents is None:
        return _divide_rows(difference.predicted(total), degrees)
    return _divide_rows(difference.predicted(total, {name: g / column(degrees, g.ndim) for name, g in difference.cotangents.items()}), 1)


def _divided_at_source(difference, total):
    degrees = np.maximum(difference.case.edges.out_degrees, 1)
    if difference.output == "dx":
        return _divide_rows(difference.predicted(total), degrees)
    return difference.predicted(replace(total, arrays={**total.arrays, "x": total.arrays["x"] / degrees[:, None]}))


def _divide_rows(number: BoundedArray, degrees: Array | int) -> BoundedArray:
    """Return `number` with each row divided by its degree. The error bounds of the result allow for one more rounding."""
    value, error = (np.asarray(part) / column(degrees, number.value.ndim) for part in (number.value, number.error))
    return BoundedArray(value, 2 * error + 2.0**-22 * np.abs(value))


def _stray(difference, row):
    """Return the expected dx of `difference` with a certain mistake: the output gradients of rows without edges are added to row
    `row` of dx.
    """
    value = np.array(difference.expected.value, np.float64)
    value[row] += difference.cotangents["out"][difference.case.edges.in_degrees == 0].sum(0, dtype=np.float64)
    return BoundedArray(value, np.broadcast_to(difference.expected.error, value.shape) + 2.0**-20 * np.abs(value))


# ---- softmax and variance


def _masked_rows(difference):
    """Return the expected array of `difference` with NaN in the rows whose scores are all -Inf."""
    masked = all_masked(difference.case.arrays["scores"], difference.case.edges.by_dst)
    return BoundedArray(np.where(masked, np.nan, difference.expected.value), np.where(masked, 0.0, difference.expected.error))


def _without_maximum(case, output, empty):
    a, e = case.arrays, case.edges
    if case.op == "softmax":
        scores = a["scores"]
    else:
        raw = a["el"][e.src] + a["er"][e.dst]
        scores = np.where(raw > 0, raw, raw.dtype.type(case.attributes["slope"]) * raw)
    if not (np.isfinite(scores) & (np.abs(scores) > 80)).any():
        raise ValueError("no exp overflows or vanishes")
    weights = np.exp(scores)
    total = np.zeros((e.n_dst, *weights.shape[1:]), weights.dtype)
    np.add.at(total, e.dst, weights)
    p = np.where(total[e.dst] == 0, empty, weights / total[e.dst]).astype(np.float64)
    if case.op == "softmax" or output == "coefficients":
        value = p
    else:
        value = np.zeros((e.n_dst, *a["z"].shape[1:]))
        np.add.at(value, e.dst, (p * a.get("mask", 1.0))[..., None] * a["z"][e.src])
    return BoundedArray(value, 2.0**-16 * np.where(np.isfinite(value), np.abs(value).max(0, initial=0, where=np.isfinite(value)), 0))


def _normalised(case, variance):
    x = np.asarray(case.arrays["x"], np.float64)
    gamma, beta = (np.asarray(case.state[name], np.float64) for name in ("gamma", "beta"))
    return (x - x.mean(0)) / np.sqrt(variance + case.attributes["eps"]) * gamma + beta


def _unbiased(case):
    value = _normalised(case, np.var(case.arrays["x"], 0, dtype=np.float64, ddof=1))
    return BoundedArray(value, 2.0**-16 * (1 + np.abs(value)))


def _cancelled(difference: Difference) -> BoundedArray:
    """Return the expected array of `difference` with larger error bounds, as for a variance computed by E[x^2] - E[x]^2. Raise
    ValueError if columns of a small mean are wrong, too, because cancellation does not explain these.
    """
    case, x = difference.case, np.asarray(difference.case.arrays["x"], np.float64)
    squares, variance = (x * x).mean(0), x.var(0)
    change = 4 * (len(x) + 2) * format_of(case.accumulate).unit * squares / (variance + case.attributes["eps"])
    if (difference.above() & (squares < 64 * variance)).any():
        raise ValueError("columns whose mean is small are wrong, too")
    size = np.abs(difference.expected.value - np.asarray(case.state["beta"], np.float64))
    return BoundedArray(difference.expected.value, difference.expected.error + np.where(change < 0.5, size * change, np.inf))

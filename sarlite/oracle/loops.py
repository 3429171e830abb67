"""A second implementation of the operations in plain loops, with hand-written gradients, to check the oracle itself.

`selfcheck` compares both implementations.

The module shares nothing with expression.py, plain.py or operations.py. Rational operations are computed in fractions,
without rounding; operations with roots and exponentials in longdouble. It is meant for small graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from sarlite.oracle.case import Case
from sarlite.oracle.formats import format_of, rounded
from sarlite.types import Array

REAL = np.longdouble
EPSILON = {"pyg": 1e-16}
LEAST = {"float64": -1074, "float32": -149, "float16": -24, "bfloat16": -133}  # exponent of the smallest denormal number


def outputs(case: Case, once: bool = False) -> dict[str, Array]:
    """Return {name: array} of the outputs of the case's operation, computed in fractions or longdouble. Arrays are longdouble, or
    with `once` rounded a single time to the case's dtype.
    """
    with np.errstate(all="ignore"):
        return _made(OPERATIONS[case.op](case, _numbers(case), None)[0], case, once)


def gradients(case: Case, cotangents: Mapping[str, Array], once: bool = False) -> dict[str, Array]:
    """Return {name: gradient} of the case's input arrays, for `cotangents`, the gradients of the outputs; computed in fractions
    or longdouble. Arrays are longdouble, or with `once` rounded a single time to the case's dtype.
    """
    number = _number_of(case)
    g = {name: _each(number, value) for name, value in cotangents.items()}
    with np.errstate(all="ignore"):
        return _made(OPERATIONS[case.op](case, _numbers(case), g)[1], case, once)


def _made(results, case, round_once):
    return {name: nearest(value, case.format) if round_once else _as_real(value) for name, value in results.items()}


def nearest(values: Array, dtype: str) -> Array:
    """Round `values`, an array of int, Fraction or float objects, to the nearest numbers of a dtype, ties to even."""
    form = format_of(dtype)
    bits, least = round(-np.log2(form.unit)), LEAST[dtype]

    def one(value):
        if not isinstance(value, (int, Fraction)) or not value:
            return value
        over = abs(value.numerator).bit_length() - value.denominator.bit_length()
        exponent = over - (abs(value) < Fraction(2) ** over)  # 2^exponent <= |value| < 2^(exponent + 1)
        spacing = Fraction(2) ** max(exponent - bits + 1, least)
        return REAL(round(value / spacing)) * REAL(2) ** max(exponent - bits + 1, least)

    wide = np.array([one(value) for value in np.ravel(values)], REAL).reshape(np.shape(values))
    return rounded(wide, dtype)


def _number_of(case: Case) -> Callable[[Any], Any]:
    """Return the function that converts a number of the case's inputs for the computation: to a Fraction if the operation is
    rational and all inputs are finite, else to a longdouble.
    """
    finite = all(np.isfinite(value).all() for value in case.arrays.values())
    rational = case.op in ("scatter", "gather", "sddmm") or case.op == "spmm" and case.attributes["reduce"] != "sym"
    return (lambda v: Fraction(float(v))) if rational and finite else REAL


def _numbers(case):
    return {name: _each(_number_of(case), value) for name, value in case.arrays.items()}


def _each(number, value):
    out = np.empty(np.shape(value), object)
    for place in np.ndindex(out.shape):
        out[place] = number(value[place])
    return out


def _zeros(shape):
    out = np.empty(shape, object)
    out.fill(0)
    return out


def _as_real(value):
    out = np.zeros(value.shape, REAL)
    for place in np.ndindex(out.shape):
        v = value[place]
        out[place] = REAL(v.numerator) / REAL(v.denominator) if isinstance(v, Fraction) else v
    return out


# ---- sums: out_i = sum over e of c_e w_e x_j


def _sums(terms: Sequence[tuple[int, int, int, Any]], x: Array, weight: Array | None, n_dst: int,
          g: Array | None) -> tuple[Array, dict[str, Array]]:
    """Return (out, {"x": dx, "weight": dw}) for out_i = sum of c w_e x_j over `terms`, tuples (edge e, source j, destination i,
    factor c). `weight` has w_e by edge (None: all 1); edges beyond its end, such as added self loops, have weight 1. `g` is the
    gradient of out; if None, the dict is empty.
    """
    def w(e):
        return 1 if weight is None or e >= len(weight) else weight[e]

    out, width = _zeros((n_dst, x.shape[1])), range(x.shape[1])
    for e, j, i, c in terms:
        for f in width:
            out[i, f] = out[i, f] + c * w(e) * x[j, f]
    if g is None:
        return out, {}
    dx, dw = _zeros(x.shape), _zeros(0 if weight is None else len(weight))
    for e, j, i, c in terms:
        for f in width:
            dx[j, f] = dx[j, f] + c * w(e) * g[i, f]
            if e < len(dw):
                dw[e] = dw[e] + c * g[i, f] * x[j, f]
    return out, {"x": dx, **({} if weight is None else {"weight": dw})}


def _into(terms, n_dst):
    into = [[] for _ in range(n_dst)]
    for term in terms:
        into[term[2]].append(term)
    return into


def _extremum(terms: Sequence[tuple], messages: Array, n_dst: int, reduce: str, ties: str,
              g: Array | None) -> tuple[Array, Array]:
    """Return (out, dm): the maximum or minimum (`reduce`) of each destination's messages, 0 without edges, and the gradient of
    each message. `terms` are tuples (edge, source, destination, ...). Among equal messages, `ties` gives `g`, the gradient of
    out, to the "lowest" source, the "first" edge, or "all" in equal shares; without `g`, dm is 0.
    """
    out, dm = _zeros((n_dst, messages.shape[1])), _zeros(messages.shape)
    for i, line in enumerate(_into(terms, n_dst)):
        for f in range(messages.shape[1]):
            if not line:
                continue
            values = [messages[e, f] for e, *_ in line]
            out[i, f] = max(values) if reduce == "max" else min(values)
            if any(v != v for v in values):
                out[i, f] = REAL(np.nan)
            if g is None:
                continue
            tied = [term for term, v in zip(line, values) if v == out[i, f] or v != v]
            if ties != "all":
                tied = [min(tied, key=lambda term: (term[1], term[0]) if ties == "lowest" else term[0])]
            for e, *_ in tied:
                dm[e, f] = g[i, f] / len(tied)
    return out, dm


def _terms(case, loops=False):
    terms = [(e, int(j), int(i)) for e, (j, i) in enumerate(zip(case.edges.src, case.edges.dst))]
    return terms + [(case.n_edges + i, i, i) for i in range(case.n_dst)] if loops else terms


def _scales(terms: Sequence[tuple[int, int, int]], case: Case, reduce: str) -> list[tuple[int, int, int, Any]]:
    """Return `terms`, tuples (edge, source j, destination i), with a factor appended: 1 / d_i if `reduce` is "mean", 1 / sqrt(d_j
    d_i) if "sym", else 1. d_j and d_i are the degrees of source and destination, counted in `terms`.
    """
    d_in, d_out = [0] * case.n_dst, [0] * case.n_src
    for _, j, i in terms:
        d_in[i] += 1
        d_out[j] += 1
    if reduce == "mean":
        return [(e, j, i, Fraction(1, d_in[i])) for e, j, i in terms]
    if reduce == "sym":
        of_src = d_in if case.attributes["degrees"] == "in" else d_out
        return [(e, j, i, 1 / np.sqrt(REAL(max(of_src[j], 1) * d_in[i]))) for e, j, i in terms]
    return [(e, j, i, 1) for e, j, i in terms]


def _spmm(case, v, g):
    g = None if g is None else g["out"]
    x, weight, reduce = v["x"], v.get("weight"), case.attributes["reduce"]
    terms = _scales(_terms(case, case.attributes["loops"]), case, reduce)
    if reduce not in ("max", "min"):
        if any(isinstance(value, np.floating) for value in x.flat):
            terms = [(e, j, i, REAL(c.numerator) / REAL(c.denominator) if isinstance(c, Fraction) else c)
                     for e, j, i, c in terms]
        out, d = _sums(terms, x, weight, case.n_dst, g)
        return {"out": out}, d
    w = [1] * len(terms) if weight is None else [*weight, *[1] * (len(terms) - len(weight))]
    messages = _zeros((len(terms), x.shape[1]))
    for e, j, _, _ in terms:
        for f in range(x.shape[1]):
            messages[e, f] = w[e] * x[j, f]
    out, dm = _extremum(terms, messages, case.n_dst, reduce, case.attributes["ties"], g)
    dx, dw = _zeros(x.shape), _zeros(len(w))
    for e, j, _, _ in terms:
        for f in range(x.shape[1]):
            if dm[e, f] != 0:
                dx[j, f] = dx[j, f] + w[e] * dm[e, f]
                dw[e] = dw[e] + x[j, f] * dm[e, f]
    return {"out": out}, {"x": dx, **({} if weight is None else {"weight": dw[: len(weight)]})}


def _scatter(case, v, g):
    g = None if g is None else g["out"]
    messages, reduce = v["messages"], case.attributes["reduce"]
    terms = _scales(_terms(case), case, reduce)
    if reduce in ("max", "min"):
        out, d = _extremum(terms, messages, case.n_dst, reduce, case.attributes["ties"], g)
        return {"out": out}, {"messages": d}
    out, d = _sums([(e, e, i, c) for e, _, i, c in terms], messages, None, case.n_dst, g)
    return {"out": out}, {"messages": d.get("x")}


def _gather(case, v, g):
    x = v["x"]
    out, d = _zeros((case.n_edges, x.shape[1])), _zeros(x.shape)
    for e, j, _ in _terms(case):
        for f in range(x.shape[1]):
            out[e, f] = x[j, f]
            if g is not None:
                d[j, f] = d[j, f] + g["out"][e, f]
    return {"out": out}, {"x": d}


def _sddmm(case, v, g):
    x, y, op = v["x"], v["y"], case.attributes["op"]
    dot = op == "dot"
    out, dx, dy = _zeros(case.n_edges if dot else (case.n_edges, x.shape[1])), _zeros(x.shape), _zeros(y.shape)
    for e, j, i in _terms(case):
        for f in range(x.shape[1]):
            a, b = x[j, f], y[i, f]
            if dot:
                out[e] = out[e] + a * b
            else:
                out[e, f] = {"add": a + b, "sub": a - b, "mul": a * b}[op]
            if g is not None:
                h = g["out"][e] if dot else g["out"][e, f]
                dx[j, f] = dx[j, f] + (h if op in ("add", "sub") else h * b)
                dy[i, f] = dy[i, f] + (h if op == "add" else -h if op == "sub" else h * a)
    return {"out": out}, {"x": dx, "y": dy}


# ---- softmax and attention


def _softmax_of(case: Case, scores: Array) -> Array:
    """Return the softmax p_e of `scores` over the in-edges of each destination, shape (n_edges, heads)."""
    p = _zeros(scores.shape)
    for line in _into(_terms(case), case.n_dst):
        for h in range(scores.shape[1]):
            values = [scores[e, h] for e, *_ in line]
            if not line or all(s == -np.inf for s in values):
                continue
            top = max(values)
            total = sum((np.exp(s - top) for s in values), REAL(0)) + REAL(EPSILON.get(case.attributes["dialect"], 0.0))
            for (e, *_), s in zip(line, values):
                p[e, h] = np.exp(s - top) / total
    return p


def _softmax_gradient(case: Case, p: Array, dp: Array) -> Array:
    """Return the gradient of the scores, ds_e = p_e (dp_e - sum of p_f dp_f over the edges f into the destination of e). The
    softmax p, its gradient dp and the result have shape (n_edges, heads).
    """
    ds = _zeros(p.shape)
    for line in _into(_terms(case), case.n_dst):
        for h in range(p.shape[1]):
            for e, *_ in line:
                for f, *_ in line:
                    ds[e, h] = ds[e, h] + dp[f, h] * p[f, h] * ((e == f) - p[e, h])
    return ds


def _softmax(case, v, g):
    p = _softmax_of(case, v["scores"])
    return {"out": p}, {} if g is None else {"scores": _softmax_gradient(case, p, g["out"])}


def _leaky(value, slope):
    return (value, 1) if value > 0 else (REAL(slope) * value, REAL(slope))


def _score(case: Case, v: Mapping[str, Array], e: int, j: int, i: int, h: int, ds: Any = None,
           d: Mapping[str, Array] | None = None) -> Any:
    """Return the attention score of edge e (j -> i) in head h; v has the inputs by name. If `d`, the gradients of the inputs by
    name, is set, add `ds`, the gradient of the score, times the score's derivatives to the arrays in `d`.
    """
    slope = case.attributes["slope"]
    if case.attributes["kind"] == "gat":
        score, rate = _leaky(v["el"][j, h] + v["er"][i, h], slope)
        if d is not None:
            d["el"][j, h] += rate * ds
            d["er"][i, h] += rate * ds
        return score
    score, features = REAL(0), range(v["k" if case.attributes["kind"] == "dot" else "z_src"].shape[2])
    for f in features:
        if case.attributes["kind"] == "gatv2":
            a = v["attn"][h, f]
            hidden, rate = _leaky(v["z_src"][j, h, f] + v["z_dst"][i, h, f], slope)
            score += a * hidden
            if d is not None:
                d["z_src"][j, h, f] += ds * a * rate
                d["z_dst"][i, h, f] += ds * a * rate
                d["attn"][h, f] += ds * hidden
        else:
            root = np.sqrt(REAL(len(features)))
            score += v["q"][i, h, f] * v["k"][j, h, f] / root
            if d is not None:
                d["q"][i, h, f] += ds * v["k"][j, h, f] / root
                d["k"][j, h, f] += ds * v["q"][i, h, f] / root
    return score


def _attention(case, v, g):
    name = {"gat": "z", "gatv2": "z_src", "dot": "v"}[case.attributes["kind"]]
    z, terms = v[name], _terms(case)
    heads, features = range(z.shape[1]), range(z.shape[2])
    scores = _zeros((case.n_edges, z.shape[1]))
    for e, j, i in terms:
        for h in heads:
            scores[e, h] = _score(case, v, e, j, i, h)
    p = _softmax_of(case, scores)
    mask = v["mask"] if case.attributes["masked"] else _zeros(p.shape) + 1
    out = _zeros((case.n_dst, *z.shape[1:]))
    for e, j, i in terms:
        for h in heads:
            for f in features:
                out[i, h, f] = out[i, h, f] + mask[e, h] * p[e, h] * z[j, h, f]
    results = {"out": out, **({"coefficients": mask * p} if case.attributes["coefficients"] else {})}
    if g is None:
        return results, {}
    d = {key: _zeros(value.shape) for key, value in v.items() if key != "mask"}
    dp = g["coefficients"] * mask if "coefficients" in g else _zeros(p.shape)
    for e, j, i in terms:
        for h in heads:
            for f in features:
                dp[e, h] = dp[e, h] + mask[e, h] * g["out"][i, h, f] * z[j, h, f]
                d[name][j, h, f] += mask[e, h] * p[e, h] * g["out"][i, h, f]
    ds = _softmax_gradient(case, p, dp)
    for e, j, i in terms:
        for h in heads:
            _score(case, v, e, j, i, h, ds[e, h], d)
    return results, d


OPERATIONS = {"spmm": _spmm, "scatter": _scatter, "gather": _gather, "sddmm": _sddmm, "softmax": _softmax,
              "attention": _attention}

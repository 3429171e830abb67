"""Gradients of expressions as expressions: reverse-mode differentiation with a table of vector-Jacobian products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sarlite.errors import ConfigError
from sarlite.oracle.expression import (
    Expr,
    concat,
    constant,
    edge_dot,
    gather,
    propagate,
    scatter_sum,
    topological,
    undecided_if_masked,
    where,
)

Product = Expr | Callable[[], Expr] | None  # gradient of one argument, or a function that builds the gradient


def gradient(outputs: Mapping[str, Expr], cotangents: Mapping[str, Expr], inputs: Mapping[str, Expr]
             ) -> dict[str, Expr]:
    """Return the gradients of the sum of output * cotangent, over all elements and outputs, with respect to each of `inputs`,
    as expressions by name. `cotangents` has the gradient of each output.

    Parameters
    ----------
    outputs : dict of str to Expr
    cotangents : dict of str to Expr
        Gradient of each output.
    inputs : dict of str to Expr
        Expressions to differentiate by.

    Returns
    -------
    dict of str to Expr
        By the names of `inputs`; 0 for an input that no output depends on.
    """
    order = topological(outputs.values())
    wanted = {id(x) for x in inputs.values()}
    for expr in order:
        if any(id(arg) in wanted for arg in expr.args) and expr.op not in ("stop_gradient",):
            wanted.add(id(expr))
    sums: dict[int, Expr] = {}
    for name, output in outputs.items():
        _accumulate(sums, output, cotangents[name])
    for expr in reversed(order):
        g = sums.get(id(expr))
        if g is None or not expr.args or id(expr) not in wanted:
            continue
        for arg, product in zip(expr.args, _vjp(expr, g)):
            if id(arg) in wanted and product is not None:
                _accumulate(sums, arg, product() if callable(product) else product)
    return {name: sums[id(x)] if id(x) in sums else constant(np.zeros(x.shape)) for name, x in inputs.items()}


def _accumulate(sums, expr, product):
    if product.shape != expr.shape:
        product = _unbroadcast(product, expr.shape)
    sums[id(expr)] = sums[id(expr)] + product if id(expr) in sums else product


def _unbroadcast(g: Expr, shape: tuple[int, ...]) -> Expr:
    """Sum the gradient `g` over the axes along which a value of shape `shape` was broadcast, and return the sum in this shape."""
    extra = len(g.shape) - len(shape)
    axes = tuple(range(extra)) + tuple(extra + a for a, n in enumerate(shape) if n == 1 and g.shape[extra + a] != 1)
    return (g.sum(axes, keepdims=True) if axes else g).reshape(*shape)


def _vjp(expr: Expr, g: Expr) -> Sequence[Product]:
    """Return the gradients of the arguments of `expr`, one item for each argument, given `g`, the gradient of `expr`. An item is an
    expression, a function that builds the expression, or None for an argument without a gradient.
    """
    if expr.op not in VJPS:
        raise ConfigError(f"the primitive {expr.op} has no gradient")
    return VJPS[expr.op](expr, g, *expr.args, **expr.options)


def _softmax_vjp(out, g, s, index, epsilon):
    mean = gather(scatter_sum(out * g, index), index)
    return (out * (g - mean),)


def _propagate_vjp(out, g, x, weight=None, *, source, target):
    heads = 0 if weight is None else len(weight.shape) - 1
    return (lambda: propagate(g, target, source, weight)), (lambda: edge_dot(g, x, target, source, heads))


def _concat_vjp(out, g, *parts, axis):
    ends = np.cumsum([part.shape[axis] for part in parts])
    return [g.slice(end - part.shape[axis], end, axis) for part, end in zip(parts, ends)]


def _slice_vjp(out, g, x, start, stop, axis):
    def zeros(n):
        return constant(np.zeros([n if a == axis else m for a, m in enumerate(x.shape)]))

    return (concat([zeros(start), g, zeros(x.shape[axis] - stop)], axis),)


# Vector-Jacobian products by primitive: (expression, cotangent, *arguments, **options) -> one Product for each argument.
VJPS: dict[str, Callable[..., Sequence[Product]]] = {
    "add": lambda out, g, *terms: [g] * len(terms),
    "negative": lambda out, g, x: (-g,),
    "multiply": lambda out, g, a, b: ((lambda: g * b), (lambda: g * a)),
    "divide": lambda out, g, a, b: ((lambda: g / b), (lambda: -(g * out / b))),
    "exp": lambda out, g, x: (g * out,),
    "log": lambda out, g, x: (g / x,),
    "sqrt": lambda out, g, x: (g / (out * 2.0),),
    "tanh": lambda out, g, x: (g * (1.0 - out * out),),
    "leaky": lambda out, g, x, slope: (Expr("leaky_gradient", (g, x), g.shape, slope=slope),),
    "where": lambda out, g, x, mask: (where(mask, g),),
    "barrier": lambda out, g, x: (g,),
    "matmul": lambda out, g, a, b: ((lambda: g @ b.T), (lambda: a.T @ g)),
    "transpose": lambda out, g, x: (g.T,),
    "reshape": lambda out, g, x: (g.reshape(*x.shape),),
    "sum": lambda out, g, x, axes: (Expr("broadcast", (g,), x.shape),),
    "concat": _concat_vjp,
    "slice": _slice_vjp,
    "gather": lambda out, g, x, index: (scatter_sum(g, index),),
    "scatter_sum": lambda out, g, x, index: (gather(g, index),),
    # the entry that is the maximum gets the gradient; the others get exactly 0
    "scatter_max": lambda out, g, x, **how: (Expr("select", (g, x), x.shape, **how),),
    "softmax": _softmax_vjp,
    "undecided_if_masked": lambda out, g, x, scores, index: (undecided_if_masked(g, scores, index), None),
    "propagate": _propagate_vjp,
    "edge_dot": lambda out, g, a, b, index_a, index_b, heads: (
        (lambda: propagate(b, index_b, index_a, g)), (lambda: propagate(a, index_a, index_b, g))),
    "broadcast": lambda out, g, x: (g,),
}

"""Formulas as expressions over named inputs, and their gradients as expressions of the same kind.

An `Expr` says which primitive is applied to which expressions; an arithmetic (arithmetic.py, bounds.py) says what a primitive computes. So one
text of a formula gives exact values, bounds of error, and both of its gradients. A primitive is a method of the arithmetics, and here its shape
and its vector-Jacobian product, in `VJPS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, ShapeError
from sarlite.oracle.edges import Index
from sarlite.types import Array

Shape = tuple[int, ...]


class Expr:
    """A primitive applied to expressions.

    Attributes
    ----------
    op : str
        The primitive: "input", "constant", or a method of the arithmetics.
    args : tuple of Expr
    options : dict
        What else the primitive needs, never differentiated: an Index, an axis, a shape.
    shape : tuple of int
    """

    __array_ufunc__ = None  # array * Expr is an Expr

    def __init__(self, op: str, args: Iterable[Expr], shape: Sequence[int], **options: Any) -> None:
        self.op, self.args, self.shape, self.options = op, tuple(args), tuple(int(n) for n in shape), options

    def __add__(self, other: Any) -> Expr:
        terms = [term for side in (self, lift(other)) for term in (side.args if side.op == "add" else (side,))]
        return Expr("add", terms, _broadcast(terms))

    def __mul__(self, other: Any) -> Expr:
        return _elementwise("multiply", self, lift(other))

    def __truediv__(self, other: Any) -> Expr:
        return _elementwise("divide", self, lift(other))

    def __neg__(self) -> Expr:
        return _elementwise("negative", self)

    def __sub__(self, other: Any) -> Expr:
        return self + -lift(other)

    def __rsub__(self, other: Any) -> Expr:
        return lift(other) + -self

    def __rtruediv__(self, other: Any) -> Expr:
        return lift(other) / self

    def __matmul__(self, other: Expr) -> Expr:
        if len(self.shape) != 2 or len(other.shape) != 2 or self.shape[1] != other.shape[0]:
            raise ShapeError(f"matmul of {self.shape} and {other.shape}")
        return Expr("matmul", (self, other), (self.shape[0], other.shape[1]))

    __radd__, __rmul__ = __add__, __mul__

    @property
    def T(self) -> Expr:
        return Expr("transpose", (self,), self.shape[::-1])

    def sum(self, axis: int | tuple[int, ...], keepdims: bool = False) -> Expr:
        axes = tuple(a % len(self.shape) for a in ((axis,) if isinstance(axis, int) else axis))
        kept = Expr("sum", (self,), [1 if a in axes else n for a, n in enumerate(self.shape)], axes=axes)
        return kept if keepdims else kept.reshape(*(n for a, n in enumerate(self.shape) if a not in axes))

    def mean(self, axis: int, keepdims: bool = False) -> Expr:
        return self.sum(axis, keepdims) / max(self.shape[axis], 1)

    def reshape(self, *shape: int) -> Expr:
        rest = int(np.prod([n for n in shape if n >= 0]))
        return Expr("reshape", (self,), [n if n >= 0 else int(np.prod(self.shape)) // max(rest, 1) for n in shape])

    def slice(self, start: int, stop: int, axis: int = 0) -> Expr:
        """Rows start to stop - 1 of an axis."""
        shape = list(self.shape)
        shape[axis] = stop - start
        return Expr("slice", (self,), shape, start=start, stop=stop, axis=axis)


# ---- what formulas are written with


def variable(name: str, shape: Sequence[int]) -> Expr:
    return Expr("input", (), shape, name=name)


def constant(value: Any) -> Expr:
    """Numbers that the formula gives, taken to be exact."""
    value = np.asarray(value)
    return Expr("constant", (), value.shape, value=value)


def lift(value: Any) -> Expr:
    return value if isinstance(value, Expr) else constant(value)


def exp(x: Expr) -> Expr:
    return _elementwise("exp", x)


def log(x: Expr) -> Expr:
    return _elementwise("log", x)


def sqrt(x: Expr) -> Expr:
    return _elementwise("sqrt", x)


def tanh(x: Expr) -> Expr:
    return _elementwise("tanh", x)


def leaky(x: Expr, slope: float) -> Expr:
    """x where it is above 0, else slope * x; at 0 the derivative is the slope."""
    return _elementwise("leaky", x, slope=slope)


def relu(x: Expr) -> Expr:
    return leaky(x, 0.0)


def elu(x: Expr) -> Expr:
    return relu(x) + exp(-relu(-x)) - 1.0


def where(mask: Any, x: Expr) -> Expr:
    """x where the constant mask is true, else 0, also where x is Inf or NaN."""
    return _elementwise("where", x, mask=np.broadcast_to(mask, x.shape))


def settled(x: Expr) -> Expr:
    """x, evaluated as it stands: no association across this point (what a bound may take for granted)."""
    return _elementwise("settled", x)


def fixed(x: Expr) -> Expr:
    """x, as a constant of which no gradient is taken."""
    return _elementwise("fixed", x)


def concat(parts: Sequence[Expr], axis: int = 0) -> Expr:
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    return Expr("concat", parts, shape, axis=axis)


def gather(x: Expr, index: Index) -> Expr:
    """x[index.rows]."""
    return Expr("gather", (x,), (len(index.rows), *x.shape[1:]), index=index)


def scatter_sum(x: Expr, index: Index) -> Expr:
    """out[i] = sum of x[e] over the entries e of row i."""
    return Expr("scatter_sum", (x,), (index.n, *x.shape[1:]), index=index)


def scatter_max(x: Expr, index: Index, ties: str = "first", rank: Array | None = None) -> Expr:
    """out[i] = max of x[e] over the entries e of row i; 0 where there is none.

    Parameters
    ----------
    ties : "first" or "all"
        Who gets the gradient where several entries are the greatest: the first of them, or all in equal shares.
    rank : (k,) integer, optional
        By what "first" goes: the lowest rank, then the place among the entries.
    """
    return Expr("scatter_max", (x,), (index.n, *x.shape[1:]), index=index, ties=ties, rank=rank)


def scatter_min(x: Expr, index: Index, ties: str = "first", rank: Array | None = None) -> Expr:
    return -scatter_max(-x, index, ties, rank)


def softmax(scores: Expr, index: Index, epsilon: float = 0.0) -> Expr:
    """exp(s_e - m_i) / (epsilon + the sum of them) over the entries e of row i, m_i their maximum; 0 where all are -Inf."""
    return Expr("softmax", (scores,), scores.shape, index=index, epsilon=epsilon)


def propagate(x: Expr, source: Index, target: Index, weight: Expr | None = None) -> Expr:
    """out[i] = sum of weight[e] * x[source of e] over the entries e of target row i: a sparse product.

    Parameters
    ----------
    x : (n, *heads, *features)
    weight : (k, *heads), optional
        Its further axes are the first ones of x.
    """
    if weight is not None and (weight.shape[1:] != x.shape[1 : len(weight.shape)]):
        raise ShapeError(f"weight of shape {weight.shape} for rows of {x.shape}")
    args = (x,) if weight is None else (x, weight)
    return Expr("propagate", args, (target.n, *x.shape[1:]), source=source, target=target)


def edge_dot(a: Expr, b: Expr, of_a: Index, of_b: Index, heads: int = 0) -> Expr:
    """out[e] = sum of a[row of e] * b[row of e] over the features, (k, *heads), where `heads` is the number of axes that stay."""
    return Expr("edge_dot", (a, b), (len(of_a.rows), *a.shape[1 : 1 + heads]), of_a=of_a, of_b=of_b, heads=heads)


# ---- gradients


def gradient(outputs: Mapping[str, Expr], cotangents: Mapping[str, Expr], inputs: Mapping[str, Expr]) -> dict[str, Expr]:
    """The gradients of the sum of <output, cotangent> with respect to each input: reverse mode, an expression for each."""
    order = topological(outputs.values())
    wanted = {id(x) for x in inputs.values()}
    for expr in order:
        if any(id(arg) in wanted for arg in expr.args) and expr.op not in ("fixed",):
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


def topological(exprs: Iterable[Expr]) -> list[Expr]:
    """All expressions below, arguments before what uses them."""
    order: list[Expr] = []
    seen: set[int] = set()
    stack = [(expr, False) for expr in exprs]
    while stack:
        expr, done = stack.pop()
        if done:
            order.append(expr)
        elif id(expr) not in seen:
            seen.add(id(expr))
            stack.append((expr, True))
            stack.extend((arg, False) for arg in expr.args)
    return order


def evaluate(exprs: Mapping[str, Expr], inputs: Mapping[str, Array], arithmetic: Any) -> dict[str, Any]:
    """The numbers of expressions in an arithmetic; what is no longer needed is freed on the way."""
    order = topological(exprs.values())
    users: dict[int, int] = {}
    for expr in [*(arg for e in order for arg in e.args), *exprs.values()]:
        users[id(expr)] = users.get(id(expr), 0) + 1
    numbers: dict[int, Any] = {}
    for expr in order:
        if expr.op == "input":
            numbers[id(expr)] = arithmetic.given(inputs[expr.options["name"]])
        elif expr.op == "constant":
            numbers[id(expr)] = arithmetic.given(expr.options["value"])
        else:
            numbers[id(expr)] = getattr(arithmetic, expr.op)(*(numbers[id(arg)] for arg in expr.args), **_options(expr))
        for arg in expr.args:
            users[id(arg)] -= 1
            if not users[id(arg)]:
                numbers.pop(id(arg), None)
    return {name: arithmetic.result(numbers[id(expr)]) for name, expr in exprs.items()}


def _options(expr):
    return {"shape": expr.shape} if expr.op in ("reshape", "broadcast") else expr.options


def _accumulate(sums, expr, product):
    if product.shape != expr.shape:
        product = _unbroadcast(product, expr.shape)
    sums[id(expr)] = sums[id(expr)] + product if id(expr) in sums else product


def _unbroadcast(g, shape):
    """Sum a gradient over the axes along which its value was repeated."""
    extra = len(g.shape) - len(shape)
    axes = tuple(range(extra)) + tuple(extra + a for a, n in enumerate(shape) if n == 1 and g.shape[extra + a] != 1)
    return (g.sum(axes, keepdims=True) if axes else g).reshape(*shape)


def _broadcast(args):
    return np.broadcast_shapes(*(arg.shape for arg in args))


def _elementwise(op, *args, **options):
    return Expr(op, args, _broadcast(args), **options)


def _vjp(expr: Expr, g: Expr) -> Sequence[Any]:
    """One product for each argument, or a function that makes it, or None."""
    if expr.op not in VJPS:
        raise ConfigError(f"the primitive {expr.op} has no gradient")
    return VJPS[expr.op](expr, g, *expr.args, **expr.options)


def _select(g, x, index, ties, rank):
    """The gradient of a row's maximum, at the entries that are it; exactly 0 elsewhere."""
    return Expr("select", (g, x), x.shape, index=index, ties=ties, rank=rank)


def _softmax_vjp(out, g, s, index, epsilon):
    mean = gather(scatter_sum(out * g, index), index)
    return (out * (g - mean),)


def _propagate_vjp(out, g, x, weight=None, *, source, target):
    heads = 0 if weight is None else len(weight.shape) - 1
    return (lambda: propagate(g, target, source, weight)), (lambda: edge_dot(g, x, target, source, heads))


def _edge_dot_vjp(out, g, a, b, of_a, of_b, heads):
    return (lambda: propagate(b, of_b, of_a, g)), (lambda: propagate(a, of_a, of_b, g))


def _concat_vjp(out, g, *parts, axis):
    ends = np.cumsum([part.shape[axis] for part in parts])
    return [g.slice(end - part.shape[axis], end, axis) for part, end in zip(parts, ends)]


def _slice_vjp(out, g, x, start, stop, axis):
    def zeros(n):
        return constant(np.zeros([n if a == axis else m for a, m in enumerate(x.shape)]))

    return (concat([zeros(start), g, zeros(x.shape[axis] - stop)], axis),)


# Of each primitive: (its own expression, the cotangent, its arguments, its options) -> a product an argument, or a function that makes it.
VJPS: dict[str, Callable[..., Sequence[Any]]] = {
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
    "settled": lambda out, g, x: (g,),
    "matmul": lambda out, g, a, b: ((lambda: g @ b.T), (lambda: a.T @ g)),
    "transpose": lambda out, g, x: (g.T,),
    "reshape": lambda out, g, x: (g.reshape(*x.shape),),
    "sum": lambda out, g, x, axes: (Expr("broadcast", (g,), x.shape),),
    "concat": _concat_vjp,
    "slice": _slice_vjp,
    "gather": lambda out, g, x, index: (scatter_sum(g, index),),
    "scatter_sum": lambda out, g, x, index: (gather(g, index),),
    "scatter_max": lambda out, g, x, index, ties, rank: (_select(g, x, index, ties, rank),),
    "softmax": _softmax_vjp,
    "propagate": _propagate_vjp,
    "edge_dot": _edge_dot_vjp,
    "broadcast": lambda out, g, x: (g,),
}

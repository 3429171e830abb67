"""Formulas as expressions over named inputs, which several arithmetics evaluate.

An `Expr` says which primitive is applied to which expressions; an arithmetic (arithmetic.py) what a primitive computes,
and gradient.py its vector-Jacobian product. So one text of a formula gives exact values and bounds of error, of its
results and of its gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sarlite.errors import ShapeError
from sarlite.oracle.edge_structure import Index
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
    """x where it is above 0, else exp(x) - 1; its derivative at 0 is 1."""
    low = -relu(-x)  # min(x, 0), with the derivative 0 at 0
    return settled(x - low) + exp(low) - 1.0


def where(mask: Any, x: Expr) -> Expr:
    """x where the constant mask is true, else 0, also where x is Inf or NaN."""
    return _elementwise("where", x, mask=np.broadcast_to(mask, x.shape))


def settled(x: Expr) -> Expr:
    """x, evaluated as it stands: no association across this point (what a bound may take for granted)."""
    return _elementwise("settled", x)


def fixed(x: Expr) -> Expr:
    """x, as a constant: no gradient is taken of it."""
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
    """exp(s_e - m_i) / (epsilon + the sum of them) over the entries e of row i, m_i their maximum; 0 where all are
    -Inf.
    """
    return Expr("softmax", (scores,), scores.shape, index=index, epsilon=epsilon)


def promised(x: Expr, scores: Expr, index: Index) -> Expr:
    """x (k, ...); where all scores of an entry's row are -Inf nothing is promised: no arithmetic decides these entries.
    """
    return Expr("promised", (x, scores), x.shape, index=index)


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
    """out[e] = sum of a[row of e] * b[row of e] over the features, (k, *heads): `heads` axes stay."""
    return Expr("edge_dot", (a, b), (len(of_a.rows), *a.shape[1 : 1 + heads]), of_a=of_a, of_b=of_b, heads=heads)


# ---- evaluation


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


# Of primitives over edges: which arguments are rows that edges gather. A maximum of rounded messages is that of rows.
ROWS = {"propagate": (0,), "edge_dot": (0, 1), "scatter_max": (0,), "select": (1,)}


def evaluate(exprs: Mapping[str, Expr], inputs: Mapping[str, Array], arithmetic: Any,
             rounds: Mapping[str, int] | None = None, narrow: str | None = None) -> dict[str, Any]:
    """The numbers of expressions in an arithmetic.

    `rounds` more roundings are allowed for an expression by its name. Rows that edges gather are rounded to the dtype
    `narrow`.
    """
    order = topological(exprs.values())
    users: dict[int, int] = {}
    for expr in [*(arg for e in order for arg in e.args), *exprs.values()]:
        users[id(expr)] = users.get(id(expr), 0) + 1
    numbers: dict[int, Any] = {}
    with np.errstate(all="ignore"):  # what is no number, or none of the dtype, is told by the number itself
        for expr in order:
            if expr.op == "input":
                numbers[id(expr)] = arithmetic.given(inputs[expr.options["name"]])
            elif expr.op == "constant":
                numbers[id(expr)] = arithmetic.constant(expr.options["value"])
            elif expr.op == "fixed":
                numbers[id(expr)] = numbers[id(expr.args[0])]
            else:
                args = [numbers[id(arg)] for arg in expr.args]
                for k in ROWS.get(expr.op, ()) if narrow else ():
                    args[k] = arithmetic.rounded(args[k], narrow)
                numbers[id(expr)] = getattr(arithmetic, expr.op)(*args, **_options(expr))
            for arg in expr.args:
                users[id(arg)] -= 1
                if not users[id(arg)]:
                    numbers.pop(id(arg), None)
        return {name: arithmetic.result(numbers[id(expr)], (rounds or {}).get(name, 0)) for name, expr in exprs.items()}


def _options(expr):
    return {"shape": expr.shape} if expr.op in ("reshape", "broadcast") else expr.options


def _broadcast(args):
    return np.broadcast_shapes(*(arg.shape for arg in args))


def _elementwise(op, *args, **options):
    return Expr(op, args, _broadcast(args), **options)

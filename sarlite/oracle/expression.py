"""`Expr`: a formula as a graph of primitives over named inputs, to evaluate in floats, with error bounds, or exactly.

An `Expr` is a node of an expression graph: a primitive and its arguments. An arithmetic (`arithmetic.py`) computes the
primitives, and `gradient.py` has their vector-Jacobian products. One formula therefore gives exact values and error
bounds, of its results and of its gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, Union

import numpy as np
import numpy.typing as npt

from sarlite.errors import ShapeError
from sarlite.oracle.edge_structure import Index
from sarlite.oracle.plain import Arithmetic, BoundedArray
from sarlite.oracle.renamed import renamed
from sarlite.types import Array

Operand = Union["Expr", npt.ArrayLike]  # an array or a number is a constant
T = TypeVar("T")


class Expr:
    """Node of a formula: a primitive, applied to other expressions.

    Attributes
    ----------
    op : str
        Name of the primitive: "input", "constant", "stop_gradient", or a method of the arithmetics.
    args : tuple of Expr
    options : dict
        Arguments that are not differentiated, such as an `Index`, an axis or a shape.
    shape : tuple of int
        Shape of the result.
    """

    __array_ufunc__ = None  # array * Expr is an Expr

    def __init__(self, op: str, args: Iterable[Expr], shape: Sequence[int], **options: Any) -> None:
        self.op, self.args, self.shape, self.options = op, tuple(args), tuple(int(n) for n in shape), options

    def __add__(self, other: Operand) -> Expr:
        terms = [term for side in (self, lift(other)) for term in (side.args if side.op == "add" else (side,))]
        return Expr("add", terms, _broadcast(terms))

    def __mul__(self, other: Operand) -> Expr:
        return _elementwise("multiply", self, lift(other))

    def __truediv__(self, other: Operand) -> Expr:
        return _elementwise("divide", self, lift(other))

    def __neg__(self) -> Expr:
        return _elementwise("negative", self)

    def __sub__(self, other: Operand) -> Expr:
        return self + -lift(other)

    def __rsub__(self, other: Operand) -> Expr:
        return lift(other) + -self

    def __rtruediv__(self, other: Operand) -> Expr:
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
        total = Expr("sum", (self,), [1 if a in axes else n for a, n in enumerate(self.shape)], axes=axes)
        return total if keepdims else total.reshape(*(n for a, n in enumerate(self.shape) if a not in axes))

    def mean(self, axis: int, keepdims: bool = False) -> Expr:
        return self.sum(axis, keepdims) / max(self.shape[axis], 1)

    def reshape(self, *shape: int) -> Expr:
        rest = int(np.prod([n for n in shape if n >= 0]))
        return Expr("reshape", (self,), [n if n >= 0 else int(np.prod(self.shape)) // max(rest, 1) for n in shape])

    def slice(self, start: int, stop: int, axis: int = 0) -> Expr:
        """Return the entries from `start` up to, not including, `stop` along an axis."""
        shape = list(self.shape)
        shape[axis] = stop - start
        return Expr("slice", (self,), shape, start=start, stop=stop, axis=axis)


# ---- primitives


def variable(name: str, shape: Sequence[int]) -> Expr:
    """Return an expression that stands for the input `name` of a formula."""
    return Expr("input", (), shape, name=name)


def constant(value: npt.ArrayLike) -> Expr:
    """Return `value` as an expression: numbers that are part of the formula, and count as exact."""
    value = np.asarray(value)
    return Expr("constant", (), value.shape, value=value)


def lift(value: Operand) -> Expr:
    """Return `value` unchanged if it is an Expr, else as a constant expression."""
    return value if isinstance(value, Expr) else constant(value)


def exp(x: Expr) -> Expr:
    """Return the exponential of each element of x."""
    return _elementwise("exp", x)


def log(x: Expr) -> Expr:
    """Return the natural logarithm of each element of x."""
    return _elementwise("log", x)


def sqrt(x: Expr) -> Expr:
    """Return the square root of each element of x."""
    return _elementwise("sqrt", x)


def tanh(x: Expr) -> Expr:
    """Return the hyperbolic tangent of each element of x."""
    return _elementwise("tanh", x)


def leaky(x: Expr, slope: float) -> Expr:
    """Return x where x > 0, else slope * x (leaky ReLU); the derivative at 0 is the slope."""
    return _elementwise("leaky", x, slope=slope)


def relu(x: Expr) -> Expr:
    """Return x where x > 0, else 0; the derivative at 0 is 0."""
    return leaky(x, 0.0)


def elu(x: Expr) -> Expr:
    """Return x where x > 0, else exp(x) - 1; the derivative at 0 is 1."""
    low = -relu(-x)  # min(x, 0), with the derivative 0 at 0
    return barrier(x - low) + exp(low) - 1.0


def where(mask: Array, x: Expr) -> Expr:
    """Return x where the constant mask is True, else 0. An Inf or NaN outside the mask becomes 0, too."""
    return _elementwise("where", x, mask=np.broadcast_to(mask, x.shape))


def barrier(x: Expr) -> Expr:
    """Return x unchanged, as an optimization barrier: error bounds assume that a kernel reassociates no sum across it."""
    return _elementwise("barrier", x)


def stop_gradient(x: Expr) -> Expr:
    """Return x unchanged, as a constant for the gradient."""
    return _elementwise("stop_gradient", x)


def concat(parts: Sequence[Expr], axis: int = 0) -> Expr:
    """Return the expressions `parts` joined along an axis; their other axes have equal sizes."""
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    return Expr("concat", parts, shape, axis=axis)


def gather(x: Expr, index: Index) -> Expr:
    """Return the row x[index.rows[e]] for each entry e of `index`, shape (k, ...)."""
    return Expr("gather", (x,), (len(index.rows), *x.shape[1:]), index=index)


def scatter_sum(x: Expr, index: Index) -> Expr:
    """Return for each row i the sum of x[e] over the entries e with index.rows[e] == i, shape (n, ...)."""
    return Expr("scatter_sum", (x,), (index.n, *x.shape[1:]), index=index)


def scatter_max(x: Expr, index: Index, ties: str = "first", rank: Array | None = None) -> Expr:
    """Return each row's maximum over the entries of x that `index` assigns to the row, (n, ...); 0 for a row without entries. If
    entries tie, `ties` "first" passes the gradient to the entry of lowest `rank` (None: of lowest number), and "all" to all tied
    entries in equal shares.

    Parameters
    ----------
    x : Expr of shape (k, ...)
    index : Index
        Row of each entry.
    ties : "first" or "all"
        Receiver of the gradient if several entries are the maximum: the first of them, or all of them in equal shares.
    rank : (k,) integer, optional
        Key that orders entries for `ties` "first". Entries of equal rank are ordered by entry number.
    """
    return Expr("scatter_max", (x,), (index.n, *x.shape[1:]), index=index, ties=ties, rank=rank)


def scatter_min(x: Expr, index: Index, ties: str = "first", rank: Array | None = None) -> Expr:
    """Return each row's minimum over the entries of x that `index` assigns to the row, (n, ...); 0 for a row without entries. If
    entries tie, `ties` "first" passes the gradient to the entry of lowest `rank` (None: of lowest number), and "all" to all tied
    entries in equal shares.
    """
    return -scatter_max(-x, index, ties, rank)


def softmax(scores: Expr, index: Index, epsilon: float = 0.0) -> Expr:
    """Return the softmax of `scores` within each row: exp(s_e - m) / (epsilon + sum_f exp(s_f - m)) for entry e, where f runs over
    the entries of e's row, and m is their maximum. `index` has the row of each entry.

    The softmax of a row whose scores are all -Inf is 0.
    """
    return Expr("softmax", (scores,), scores.shape, index=index, epsilon=epsilon)


def undecided_if_masked(x: Expr, scores: Expr, index: Index) -> Expr:
    """Return x, shape (k, ...), unchanged, but declare the entries of rows whose `scores` are all -Inf undecided: a check then
    accepts any value in them. `index` has the row of each entry.
    """
    return Expr("undecided_if_masked", (x, scores), x.shape, index=index)


def propagate(x: Expr, source: Index, target: Index, weight: Expr | None = None) -> Expr:
    """Return for each row i of `target` the sum of weight[e] * x[source.rows[e]] over the entries e with target.rows[e] == i: a
    sparse matrix product. Without `weight`, all weights are 1.

    Parameters
    ----------
    x : Expr of shape (n, *heads, *features)
    source, target : Index
        Source row and target row of each of the k entries.
    weight : Expr of shape (k, *heads), optional
        Weight of each entry; 1 if omitted.
    """
    if weight is not None and (weight.shape[1:] != x.shape[1 : len(weight.shape)]):
        raise ShapeError(f"weight of shape {weight.shape} for rows of {x.shape}")
    args = (x,) if weight is None else (x, weight)
    return Expr("propagate", args, (target.n, *x.shape[1:]), source=source, target=target)


def edge_dot(a: Expr, b: Expr, index_a: Index, index_b: Index, heads: int = 0) -> Expr:
    """Return for each entry e the dot product of row index_a.rows[e] of a and row index_b.rows[e] of b, (k, *heads). With `heads` =
    h, the first h axes of a row are kept, and the products are summed over the other axes.

    Parameters
    ----------
    a, b : Expr of shape (n, *heads, *features)
    index_a, index_b : Index
        Row of a, and row of b, of each entry.
    heads : int
        Number of axes behind the first that are kept; the product is summed over the axes behind them.
    """
    return Expr("edge_dot", (a, b), (len(index_a.rows), *a.shape[1 : 1 + heads]), index_a=index_a, index_b=index_b, heads=heads)


# ---- evaluation


def topological(exprs: Iterable[Expr]) -> list[Expr]:
    """Return `exprs` and all expressions that they depend on, each once; an expression comes after its arguments."""
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


# Positions of the arguments whose rows edges gather, by primitive. The maximum of rounded messages is a rounded row.
GATHERED = {"propagate": (0,), "edge_dot": (0, 1), "scatter_max": (0,), "select": (1,)}


def evaluate(exprs: Mapping[str, Expr], inputs: Mapping[str, Array], arithmetic: Arithmetic[T],
             rounds: Mapping[str, int] | None = None, narrow: str | None = None) -> dict[str, BoundedArray]:
    """Evaluate the expressions `exprs`, {name: Expr}, in `arithmetic` for the arrays `inputs`; return {name: BoundedArray}, the values with
    error bounds. rounds[name] (default 0) is the number of extra roundings of this result that its bounds allow for. If `narrow` names a
    floating type, source rows are rounded to this type before edges read them.

    Parameters
    ----------
    exprs : dict of str to Expr
    inputs : dict of str to array
        Values of the variables.
    arithmetic : Arithmetic
    rounds : dict of str to int, optional
        Number of additional roundings that the result of each expression may have.
    narrow : str, optional
        Floating type that rows are rounded to before edges gather them.
    """
    order = topological(exprs.values())
    users: dict[int, int] = {}
    for expr in [*(arg for e in order for arg in e.args), *exprs.values()]:
        users[id(expr)] = users.get(id(expr), 0) + 1
    numbers: dict[int, T] = {}
    with np.errstate(all="ignore"):  # an overflow or an invalid operation shows as Inf or NaN in the result
        for expr in order:
            if expr.op == "input":
                numbers[id(expr)] = arithmetic.from_array(inputs[expr.options["name"]])
            elif expr.op == "constant":
                numbers[id(expr)] = arithmetic.constant(expr.options["value"])
            elif expr.op == "stop_gradient":
                numbers[id(expr)] = numbers[id(expr.args[0])]
            else:
                args = [numbers[id(arg)] for arg in expr.args]
                if narrow is not None:
                    for k in GATHERED.get(expr.op, ()):
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


def __getattr__(name: str) -> object:
    new_names = {"fixed": "stop_gradient", "promised": "undecided_if_masked", "settled": "barrier"}
    return renamed(__name__, name, {old: f"{__name__}.{new}" for old, new in new_names.items()})

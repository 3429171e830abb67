"""A run of a model on shapes alone: the widths, the bytes kept for backward and the flops of every primitive, at any
size.

    records = shapes.measure(lambda: model(graph, x))            # one run
    line = shapes.linear(make, [(4, 8), (6, 8), (4, 12)])        # runs of make(rows, edges)
    line.at(111_000_000, 1_600_000_000).kept_bytes

A GNN computes row by row and edge by edge. So each length, each number of bytes and each number of flops is
a + b rows + c edges with whole a, b and c. Runs on tiny graphs tell a, b and c exactly, and no array of the size in
question is made.
"""

import gc
import math
import weakref
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from sarlite.errors import ConfigError
from sarlite.tape.engine import Node, Observer, Tensor, observed


class Record(NamedTuple):
    """One application of a primitive.

    `kept_bytes` counts the buffers that the application's node holds for backward. A buffer counts once in a run, at
    the first node that holds it, and not at all where it was there before the run. `flops` are those of forward;
    `backward_flops` those of the gradients that are wanted. """

    name: str
    inputs: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    kept_bytes: int
    flops: int
    backward_flops: int


class Records(tuple[Record, ...]):
    """The records of one run, in order."""

    @property
    def kept_bytes(self) -> int:
        """Bytes that live from the end of forward until backward has used them."""
        return sum(record.kept_bytes for record in self)

    @property
    def flops(self) -> int:
        return sum(record.flops for record in self)

    @property
    def backward_flops(self) -> int:
        return sum(record.backward_flops for record in self)

    @property
    def width(self) -> int:
        """The most values that a row of a result has: the product of all its axes but the first."""
        return max((math.prod(record.shape[1:]) for record in self), default=0)


def measure(function: Callable[[], Any]) -> Records:
    """Run `function` and return its `Records`.

    Parameters
    ----------
    function : callable
        Takes nothing and returns its result, such as the logits. As long as the result lives, the tape behind it does.

    Notes
    -----
    Calls `function` twice and holds both tapes: buffers that are behind both were there before (parameters, features, a
    graph's plan and what it keeps of constants). So effects of `function`, on running statistics for instance, come
    twice. Collective where `function` is.
    """
    runs = [_Run(), _Run()]
    for run in runs:
        with observed(run):
            run.result = function()
    gc.collect()
    buffers = [run.buffers() for run in runs]
    there = set().union(*buffers[0]) & set().union(*buffers[1])
    return runs[0].records(buffers[0], there)


class _Run(Observer):
    """What a run applied: the shapes, and the nodes as long as something else holds them."""

    def __init__(self):
        self.applied_here, self.nodes, self.result = [], [], None

    def applied(self, application):
        name, inputs, params, needs, result = application
        shapes = tuple(np.shape(x) for x in inputs)
        flops = flops_of(name, shapes, result.shape, params)
        backward = flops * passes_of(needs[: len(shapes)], params)
        record = Record(name, shapes, result.shape, result.dtype, 0, flops, backward)
        self.applied_here.append(record)
        self.nodes.append(None if result.node is None else weakref.ref(result.node))

    def buffers(self):
        """For each application a dict address -> bytes of the buffers that its node holds."""
        found = []
        for reference in self.nodes:
            node = reference and reference()
            found.append({} if node is None else dict(_buffers_behind(node)))
        return found

    def records(self, buffers, counted):
        """The records with their bytes; `counted` are addresses to leave out."""
        counted, filled = set(counted), []
        for record, held in zip(self.applied_here, buffers):
            new = {key: n for key, n in held.items() if key not in counted}
            counted |= new.keys()
            filled.append(record._replace(kept_bytes=sum(new.values())))
        return Records(filled)


def _buffers_behind(node):
    """Yield (address, bytes) of each buffer among a node's residuals and parameters.

    Containers, and objects such as operators, are looked into.
    """
    todo, seen = [(node.residuals, True), (list(node.params.values()) if node.params else (), False)], set()
    while todo:
        value, opens = todo.pop()
        if isinstance(value, Tensor):
            value = value._data
        if isinstance(value, np.ndarray):
            owner = _owner(value)
            if owner.nbytes:
                yield owner.__array_interface__["data"][0], owner.nbytes
        elif id(value) in seen or isinstance(value, Node):  # a node has a record of its own
            continue
        elif isinstance(value, (tuple, list)):
            todo.extend((item, opens) for item in value)
        elif isinstance(value, dict):
            todo.extend((item, opens) for item in value.values())
        elif opens and hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
            todo.append((vars(value), True))
        else:
            continue
        seen.add(id(value))


def _owner(array):
    """The array whose memory this one is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


# ---- flops


VIEWS = ("reshape", "transpose", "piece")
"""Primitives that read no value."""
FLOPS = {
    **dict.fromkeys(("matmul", "matmul_by_head"), lambda inputs, out: 2 * math.prod(out) * inputs[0][-1]),
    "sum": lambda inputs, out: math.prod(inputs[0]),
    "max": lambda inputs, out: math.prod(inputs[0]),
    "min": lambda inputs, out: math.prod(inputs[0]),
    "var": lambda inputs, out: 4 * math.prod(inputs[0]),
    "std": lambda inputs, out: 4 * math.prod(inputs[0]),
    "logsumexp": lambda inputs, out: 3 * math.prod(inputs[0]),
    "log_softmax": lambda inputs, out: 4 * math.prod(out),
    "softmax": lambda inputs, out: 4 * math.prod(out),
    "cross_entropy": lambda inputs, out: 4 * math.prod(inputs[0]),
    "layer_norm": lambda inputs, out: 8 * math.prod(out),
    "scatter_add": lambda inputs, out: math.prod(inputs[0]),
} | dict.fromkeys((*VIEWS, "getitem", "concat", "take", "astype", "to_columns", "to_rows"),
                  lambda inputs, out: 0)


def flops_of(name: str, inputs: Any, out: Any, params: dict[str, Any]) -> int:
    """Count the flops of one application from shapes.

    An operator's own `flops(inputs, out, **params)` counts them, or the table; without either a value of the result is
    one. A formula counts what the algorithm does, an exponential or a comparison as one. """
    operator: Any = params.get("operator")
    if hasattr(operator, "flops"):
        return int(operator.flops(inputs, out, **params))
    if name == "einsum":
        sizes = {letter: n for term, shape in zip(params["terms"], inputs) for letter, n in zip(term, shape)}
        return len(inputs) * math.prod(sizes.values())
    return int(FLOPS[name](inputs, out)) if name in FLOPS else math.prod(out)


def passes_of(needs: Any, params: dict[str, Any]) -> int:
    """Count how often backward does what `flops_of` counts.

    That is once for each input that wants a gradient, or as an operator's `passes` says. Where `factors` is given, as
    of a product, the first so many inputs count: to the others the gradient is passed on. """
    operator: Any = params.get("operator")
    return int(operator.passes(needs)) if hasattr(operator, "passes") else sum(needs[: params.get("factors")])


# ---- any size


class Linear:
    """A run at any size, made by `linear`: every number in its records is a + b rows + ....

    Attributes
    ----------
    coefficients : list of list of int
        For each number in the records, in their order: the constant, and one factor for each size.
    """

    def __init__(self, coefficients: Any, template: Any) -> None:
        self.coefficients, self._template = coefficients, template

    def at(self, *sizes: int) -> Records:
        """Return the `Records` of a run at these sizes, as `measure` would at that size."""
        numbers = (sum(c * n for c, n in zip(row, (1, *sizes))) for row in self.coefficients)
        return Records(_filled(record, numbers) for record in self._template)


def linear(make: Callable[..., Callable[[], Any]], at: Sequence[Any]) -> Linear:
    """Measure a function at a few small sizes and return the `Linear` on which all of these runs lie.

    Parameters
    ----------
    make : callable of sizes -> function to `measure`
        What it makes before it returns, such as a graph and features, is there before the run.
    at : sequence of tuples of int, at least one more than there are sizes
        Not all in one plane. Further ones are checks.

    Raises
    ------
    ConfigError
        If the runs differ in their primitives, or their numbers are not linear in the sizes with whole factors.
    """
    at = [tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,) for sizes in at]
    runs = [measure(make(*sizes)) for sizes in at]
    names = [[(r.name, len(r.shape), [len(shape) for shape in r.inputs]) for r in records] for records in runs]
    if any(other != names[0] for other in names):
        raise ConfigError(f"the runs at {at} apply different primitives: the function is not linear in its sizes")
    values = [[n for record in records for n in _numbers(record)] for records in runs]
    inverse = _inverse([(1, *sizes) for sizes in at[: len(at[0]) + 1]])
    coefficients = []
    for column in zip(*values):
        row = [sum(a * n for a, n in zip(weights, column)) for weights in inverse]
        fits = all(sum(c * n for c, n in zip(row, (1, *sizes))) == value for sizes, value in zip(at, column))
        if not fits or any(c.denominator != 1 for c in row):
            raise ConfigError(f"a length, bytes or flops of {list(column)} at the sizes {at} are not linear in them")
        coefficients.append([int(c) for c in row])
    return Linear(coefficients, runs[0])


def _numbers(record):
    """All the numbers of a record, in the order in which `_filled` takes them."""
    return [*(n for shape in (*record.inputs, record.shape) for n in shape), *record[4:]]


def _filled(record, numbers):
    shapes = [tuple(next(numbers) for _ in shape) for shape in (*record.inputs, record.shape)]
    return Record(record.name, tuple(shapes[:-1]), shapes[-1], record.dtype, *(next(numbers) for _ in range(3)))


def _inverse(matrix):
    """Invert a small matrix exactly (Gauss and Jordan)."""
    n = len(matrix[0])
    rows = [[Fraction(v) for v in row] + [Fraction(i == j) for j in range(n)] for i, row in enumerate(matrix)]
    for k in range(n):
        pivot = next((row for row in rows[k:] if row[k]), None)
        if len(rows) < n or pivot is None:
            raise ConfigError(f"sizes {[row[1:] for row in matrix]} do not tell {n} coefficients; take others")
        rows.remove(pivot)
        rows = [[a - b * row[k] / pivot[k] for a, b in zip(row, pivot)] for row in rows]
        rows.insert(k, [a / pivot[k] for a in pivot])
    return [row[n:] for row in rows]

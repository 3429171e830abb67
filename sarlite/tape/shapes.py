"""The shapes and the flops of every primitive that a function applies: `shapes.measure(lambda: model(graph, x))`."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sarlite.tape.recording import Application, Observer, observed


class Record(NamedTuple):
    """One application of a primitive.

    `flops` are those of forward, `backward_flops` those of the gradients that are wanted; `touched_bytes` are those of
    arrays that both read and write: of an aggregation a value for each operation, of a view none.
    """

    name: str
    inputs: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    flops: int
    backward_flops: int
    touched_bytes: int


def measure(function: Callable[[], Any]) -> list[Record]:
    """Call `function` once and return the `Record` of each primitive that it applies, in order.

    Collective where `function` is.
    """
    run = _Run()
    with observed(run):
        function()
    return run.records


class _Run(Observer):
    def __init__(self):
        self.records = []

    def applied(self, application):
        self.records.append(record(application))


def record(application: Application) -> Record:
    """Return the `Record` of an application, for an observer."""
    name, inputs, params, needs, result = application
    shapes = tuple(np.shape(x) for x in inputs)
    flops, passes = flops_of(name, shapes, result.shape, params), passes_of(needs[: len(shapes)], params)
    if "schedule" in params:
        n_values = flops + math.prod(result.shape)
    else:
        n_values = 0 if name in VIEWS else sum(map(math.prod, (*shapes, result.shape)))
    return Record(name, shapes, result.shape, result.dtype, flops, flops * passes,
                  n_values * result.dtype.itemsize * (1 + passes))


VIEWS = ("reshape", "transpose", "piece")
"""Primitives that read no value."""
MOVES = (*VIEWS, "getitem", "concat", "take", "astype")
"""Primitives that compute nothing."""
OF_INPUT = {"sum": 1, "max": 1, "min": 1, "scatter_add": 1, "var": 4, "std": 4, "cross_entropy": 4, "logsumexp": 3}
"""Flops for each value of the first input."""
OF_OUTPUT = {**dict.fromkeys(MOVES, 0), "log_softmax": 4, "softmax": 4, "layer_norm": 8}
"""Flops for each value of the result, where they are not 1."""


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
    if name in ("matmul", "matmul_by_head"):
        return 2 * math.prod(out) * inputs[0][-1]
    return OF_INPUT[name] * math.prod(inputs[0]) if name in OF_INPUT else OF_OUTPUT.get(name, 1) * math.prod(out)


def passes_of(needs: Any, params: dict[str, Any]) -> int:
    """Count how often backward does what `flops_of` counts.

    That is once for each input that wants a gradient, or as an operator's `passes` says. Where `factors` is given, as
    of a product, the first so many inputs count: to the others the gradient is passed on. """
    operator: Any = params.get("operator")
    return int(operator.passes(needs)) if hasattr(operator, "passes") else sum(needs[: params.get("factors")])

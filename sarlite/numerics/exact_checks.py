"""Checks that exact numerics supports an operation of the tape; other operations are refused.

A sum over rows is a sum over the rows of all ranks. So exact numerics must know whether a value is rows or replicated
(`placement`), and rows must stay on axis 0.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sarlite.errors import ConfigError
from sarlite.numerics.placement import REPLICATED, ROWS, UNKNOWN, Placement
from sarlite.numerics.reductions import axes_of

PAIRS = frozenset(("absolute_error", "add", "bce_with_logits", "div", "maximum", "minimum", "mul", "squared_error",
                   "sub", "where"))  # fmt: skip
"""Primitives with several inputs, which are broadcast against each other."""
OVER_AXES = frozenset(("log_softmax", "logsumexp", "max", "min", "softmax", "std", "sum", "var"))
"""Primitives that reduce over the axes `axis`."""
LOSSES = frozenset(("cross_entropy", "nll", "share"))
"""Primitives that return this rank's share of a sum over all rows."""
SUPPORTED = PAIRS | OVER_AXES | LOSSES | {
    "abs", "activate", "aggregate", "astype", "bitwise_and", "bitwise_or", "clip", "concat", "dropout", "elu", "equal",
    "exp", "focal", "getitem", "greater", "greater_equal", "invert", "layer_norm", "leaky_relu", "less", "less_equal", "log",
    "matmul", "matmul_by_head", "neg", "not_equal", "piece", "relations", "relu", "reshape", "sigmoid", "silu", "softplus",
    "sqrt", "take", "transpose",
}  # fmt: skip
"""Primitives whose results have the same bits for any number of ranks."""
WEIGHTS = {"activate": (1, 2), "layer_norm": (1, 2), "matmul": (1,), "matmul_by_head": (1,)}
"""Positions of the inputs that are weights, by primitive. The gradient of a weight is a sum over rows."""


def check_supported(name: str) -> None:
    """Raise a ConfigError if exact numerics does not support the primitive `name`."""
    if name not in SUPPORTED:
        raise ConfigError(f"numerics exact: the operation {name!r} is not exact yet")


def check_rows(name: str, inputs: Sequence[object], placements: Sequence[Placement | None], wants_grad: Sequence[bool],
               result: Placement, params: dict[str, object]) -> None:
    """Raise a ConfigError if the result or a gradient of the primitive `name` depends on how rows are divided among ranks.

    Parameters
    ----------
    name : str
        Name of the primitive.
    inputs : sequence of Tensor, array, number or None
    placements : sequence of Placement or None
        Placement of each input; None for a number.
    wants_grad : sequence of bool
        True for each input whose gradient is wanted, and then for each further sink.
    result : Placement
        Placement of the result.
    params : dict
        Keyword arguments of the primitive.
    """
    if result == REPLICATED and name not in LOSSES:
        return
    problem = (_sums_rows(name, inputs, placements, params) or _moves_rows(name, inputs[0], params)
               or _unknown_placement(name, inputs, placements, wants_grad, result)
               or _gradient_not_summed(name, inputs, placements, wants_grad))
    if problem:
        raise ConfigError(f"numerics exact: {name} {problem}")


def _unknown_placement(name: str, inputs: Sequence[Any], placements: Sequence[Placement | None], wants_grad: Sequence[bool],
                       result: Placement) -> str | None:
    """Return an error message if a gradient of the primitive `name` depends on an input of unknown placement, which may be rows of
    this rank or the same values on every rank; None otherwise. `wants_grad` says for each input if its gradient is wanted.
    """
    if name == "take" or not any(wants_grad):  # the placement of row numbers does not matter to `take`
        return None
    for x, placement, wants in zip(inputs, placements, wants_grad):
        if placement == UNKNOWN and (wants or result == UNKNOWN):
            kind = "a tensor" if hasattr(x, "placement") else "an array"
            return (f"takes {kind} of shape {x.shape} that may be rows of this rank or the same on every rank, and the "
                    "gradient depends on it: give Tensor(array, placement='rows') or Tensor(array, "
                    "placement='replicated')")
    return None


def _sums_rows(name: str, inputs: Sequence[Any], placements: Sequence[Placement | None], params: dict[str, Any]) -> str | None:
    """Return an error message if the primitive `name` sums over rows, or if it takes rows of this rank where it needs weights that
    are equal on all ranks; None otherwise.
    """
    ndim = getattr(inputs[0], "ndim", 0)
    if name in OVER_AXES and 0 in axes_of(params["axis"], ndim) or name == "layer_norm" and ndim == 1:
        return "over axis 0 is of one rank's rows, so it depends on how rows are divided"
    for k in WEIGHTS.get(name, ()):
        if placements[k] == ROWS:
            return (f"takes rows of shape {inputs[k].shape} where all ranks need the same values, so it depends on how "
                    "rows are divided")
    return None


def _moves_rows(name: str, x: Any, params: dict[str, Any]) -> str | None:
    """Return an error message if the primitive `name` with the parameters `params` moves the rows of `x` off axis 0; None otherwise."""
    keeps = (name == "transpose" and params["axes"][:1] in ((), (0,))
             or name == "reshape" and _reshape_keeps_rows(x.shape, params["shape"])
             or name == "getitem" and _index_keeps_rows(x.ndim, params["index"]))
    if name in ("transpose", "reshape", "getitem") and not keeps:
        return (f"moves or merges the rows of a tensor of shape {x.shape}: rows must stay on axis 0, as sums over rows "
                "are sums over all ranks")
    return None


def _reshape_keeps_rows(shape: tuple[int, ...], new_shape: tuple[int, ...]) -> bool:
    """Return True if a reshape from `shape` to `new_shape` keeps each row as one row, or splits it into several consecutive rows."""
    if not shape:
        return True
    if not new_shape or -1 in new_shape[1:]:
        return new_shape[:1] == shape[:1]
    values, others = math.prod(shape[1:]), math.prod(new_shape[1:])
    return new_shape[0] == shape[0] if others == 0 else values % others == 0


def _index_keeps_rows(ndim: int, index: Any) -> bool:
    """Return True if x[index], for x with `ndim` axes, takes a slice of the rows of x (axis 0), and these are the rows (axis 0) of
    the result.
    """
    parts = index if isinstance(index, tuple) else (index,)
    first = parts[0] if parts else Ellipsis
    if first is Ellipsis:
        return sum(part is not None for part in parts[1:]) < ndim
    return isinstance(first, slice)


def _gradient_not_summed(name: str, inputs: Sequence[Any], placements: Sequence[Placement | None],
                         wants_grad: Sequence[bool]) -> str | None:
    """Return an error message if the gradient of a replicated input of primitive `name` would not be summed over ranks; None
    otherwise. The gradient of a replicated input is summed over ranks if the input has fewer axes than the rows, or is one of
    `WEIGHTS`.
    """
    ndims = [np.ndim(x) if placement else 0 for x, placement in zip(inputs, placements)]
    most = max(ndims) if name in PAIRS else 0
    for k, (placement, ndim, wants) in enumerate(zip(placements, ndims, wants_grad)):
        if name in PAIRS and placement == ROWS and ndim < most:
            return f"of rows of {ndim} axes and values of {most} axes: rows must stay on axis 0"
        if placement == REPLICATED and wants and not (ndim < most or k in WEIGHTS.get(name, ())):
            shape = inputs[k].shape
            if name in PAIRS:
                return f"of rows and a replicated tensor {shape} of as many axes: its first axis must go"
            return (f"of a replicated tensor {shape}, whose gradient is not summed over ranks here; a table that has a "
                    "row for each node is given ids, as by nn.Embedding, so that each rank owns its rows")
    return None

"""The forward pass: run a primitive, and record a node on the tape."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sarlite.kernels import Rows
from sarlite.numerics import current
from sarlite.numerics.placement import UNKNOWN, Placement, joined
from sarlite.tape.ownership import is_sole
from sarlite.tape.primitives import PRIMITIVES, Changes, Node, Sink, watched
from sarlite.tape.recording import Application, state
from sarlite.tape.tensor import Tensor


def apply(name: str, *inputs: object, sinks: Sequence[Sink] = (), placement: Placement | None = None,
          **params: object) -> Tensor:
    """Return the result of primitive `name` on the arrays of `inputs`, with the keyword arguments `params`. The tape records the
    call if an input, or one of `sinks` (further receivers of gradients), wants a gradient. `placement` says how ranks hold the
    result (None: derived from the inputs).

    Parameters
    ----------
    name : str
        Name of the primitive in the table `PRIMITIVES`.
    inputs : Tensor, ndarray, kernels.Rows, number or None
        Inputs of the primitive. The primitive receives the arrays of tensors.
    sinks : sequence of Node or Tensor
        Values that the primitive uses without receiving them as inputs, such as the parameters inside a message. The
        vjp returns their gradients after the gradients of `inputs`.
    placement : Placement, optional
        Placement of the result, if the caller knows it; by default it is derived from the inputs' placements
        (`placement.joined`).
    params : object
        Keyword arguments of the primitive's functions.

    Returns
    -------
    Tensor

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import Tensor, apply
    >>> apply("sum", Tensor(np.ones((2, 3))), axis=0, keepdims=False).data.tolist()
    [2.0, 2.0, 2.0]
    """
    tensors = [x if isinstance(x, Tensor) else None for x in inputs]
    for t in tensors:
        if t is not None and t._changes.lost:
            t._changes.check()
    arrays = [x if t is None else t._data for x, t in zip(inputs, tensors)]
    receivers: list[Sink | None] = [t.sink if isinstance(t, Tensor) else t for t in (*tensors, *sinks)]
    if not state.grad:
        receivers = [None] * len(receivers)
    wants_grad = tuple(receiver is not None for receiver in receivers)
    input_tensors = [t for t in tensors if t is not None]
    placements = [_placement(x) for x in inputs]
    result_placement = placement or joined([p for p in placements if p is not None])
    if (numerics := current()) is not None:
        numerics.check_supported(name)
        if placement is None:
            numerics.check_rows(name, inputs, placements, wants_grad, result_placement, params)
    with watched("forward", name, params):
        results: list[Any] = list(PRIMITIVES[name].forward(wants_grad, *arrays, **params))
    out_is_sole, (out, residuals) = is_sole(results), results
    del results
    result = Tensor(out, placement=result_placement)
    result.volatile = any(t.volatile for t in input_tensors)
    for t in input_tensors if result._data.base is not None else ():
        if isinstance(t._data, np.ndarray) and np.may_share_memory(result._data, t._data):
            result._changes = t._changes  # a view changes with the array that it is a view of
    if any(wants_grad):
        result.requires_grad = True
        result.node = Node(name, receivers, wants_grad, residuals, params, changes=result._changes,
                           placement=result_placement,
                           volatile=result.volatile and _keeps_volatile(tensors, arrays, residuals),
                           read=_change_counts(tensors, sinks, residuals, result, out_is_sole))
    for observer in state.observers:
        observer.applied(Application(name, inputs, params, wants_grad, result))
    return result


def _placement(x: object) -> Placement | None:
    """Return how ranks hold x, an input of a primitive: "rows" (each rank has its own rows), "replicated" (equal values on every
    rank) or "unknown"; None for a number, which all ranks share.
    """
    if isinstance(x, Tensor):
        return x.placement
    return UNKNOWN if isinstance(x, (np.ndarray, Rows)) else None


def written_over(x: Tensor, result: Tensor) -> Tensor:
    """Mark the values of `x` as lost, because a primitive wrote `result` into x's memory; return `result`.

    Afterwards any read of x's values raises a RuntimeError. So does the backward pass of an operation that needs x's
    values, except the operation that computed `result`. Without results that are written over inputs, full-batch
    GraphSAGE takes 11 % more memory.
    """
    if result.node is not None:
        result.node.read = tuple(item for item in result.node.read if item[0] is not x._changes)
    x.changed()
    x._changes.lost = True
    return result


def _keeps_volatile(input_tensors: Sequence[Tensor | None], input_arrays: Sequence[object], residuals: Sequence[object]) -> bool:
    """Return True if one of `residuals` (values kept for the vjp) may depend on a volatile tensor of `input_tensors`: one computed
    from remote rows that are soon freed. `input_arrays` holds the values of the inputs in the same order.
    """
    steady = {id(a) for t, a in zip(input_tensors, input_arrays) if t is None or not t.volatile}
    residual_arrays, complete = _arrays(residuals)
    return not complete or any(id(a) not in steady for a in residual_arrays)


def _change_counts(input_tensors: Sequence[Tensor | None], sinks: Sequence[Sink], residuals: Sequence[object], result: Tensor,
                   result_is_unshared: bool) -> tuple[tuple[Changes, int], ...]:
    """Return pairs (counter of in-place changes, its value now) of the tensors whose values the vjp may read. These are among the
    inputs, the `result` and the gradient receivers `sinks`.

    If all residuals are arrays, the vjp reads the tensors whose arrays are among the residuals. An object among the
    residuals may hold any input, and the result unless `result_is_unshared`. The vjp may read the values of all sinks.
    """
    arrays, complete = _arrays(residuals)
    read = [t for t in input_tensors if t is not None and not t.constant and isinstance(t._data, np.ndarray)
            and (not complete or _holds(arrays, t._data))]
    if _holds(arrays, result._data) or not (complete or result_is_unshared):
        read.append(result)
    changes = [t._changes for t in read] + [s.changes if isinstance(s, Node) else s._changes for s in sinks]
    return tuple((c, c.count) for c in changes)


def _holds(arrays: Sequence[Any], data: object) -> bool:
    """Return True if `data`, or an array that shares its memory, is among `arrays`."""
    return any(a is data or (a.base is not None and np.may_share_memory(a, data)) for a in arrays)


_ARRAYS = (np.ndarray, np.generic)
_PLAIN = (type(None), int, float, str, type, np.dtype, Rows)


def _arrays(residuals: Sequence[object]) -> tuple[list[Any], bool]:
    """Return (list of all arrays in the nested sequences `residuals`, complete). `complete` is False if some other entry may hold
    an array that is not in the list; None, numbers, texts and types cannot.
    """
    arrays, complete = [], True
    for value in residuals:
        if isinstance(value, _ARRAYS):
            arrays.append(value)
        elif isinstance(value, (tuple, list)):
            inner, inner_complete = _arrays(value)
            arrays, complete = arrays + inner, complete and inner_complete
        elif not isinstance(value, _PLAIN):
            complete = False
    return arrays, complete

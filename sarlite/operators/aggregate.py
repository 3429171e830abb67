"""Distributed aggregation of messages over the edges of a graph, as one tape primitive (SAR algorithms 1 and 2).

The schedule brings rows and gives them to the operator, one block of edges at a time. The schedule knows no operator,
and operators know no schedule.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from sarlite import tape
from sarlite.kernels import Rows
from sarlite.numerics.edge_sums import FAST, EdgeSums
from sarlite.operators import over_reversed
from sarlite.operators.contract import Context, Operator
from sarlite.schedule.schedule import Schedule
from sarlite.tape import Tensor
from sarlite.tape.recording import retained
from sarlite.types import Array


class Saved(NamedTuple):
    """Values that the forward pass of an aggregation saves for the backward pass: residuals, context and source rows.

    Attributes
    ----------
    residuals : list of one item
        The operator's residuals. Unless the tape is retained, the backward pass pops the item, so that each residual
        array is freed as soon as the operator has used it.
    context : Context
    rows : tuple of (n_src, ...) array, or None
        The local rows in case 2, which the backward pass sends to peers again; None if the rows are not needed.
    block_rows : list of tuple of array, or None
        The rows of each block, if the mode keeps them (`sa`, `oneshot`); else None.
    """

    residuals: list[object]
    context: Context
    rows: tuple[Array, ...] | None
    block_rows: list[tuple[Array, ...]] | None


def aggregate(schedule: Schedule, operator: Operator, inputs: list[Tensor], sums: EdgeSums = FAST) -> Tensor:
    """Return the output of `operator` for `inputs` over all edges of `schedule`'s graph, as one node on the tape. `sums` creates the
    accumulators: plain sums in fast numerics, exact sums in exact numerics.

    Collective, forward and backward.

    Parameters
    ----------
    schedule : Schedule
        Schedule of the graph.
    operator : Operator
    inputs : list of Tensor
        Inputs of the operator, the fetched inputs first.
    sums : EdgeSums
        Factory of the accumulators of the numerics in use.

    Returns
    -------
    Tensor (n_dst, ...)
    """
    return tape.apply("aggregate", *inputs, sinks=operator.captured, placement="rows", operator=operator,
                      schedule=schedule, sums=sums)


def forward(wants_grad: Sequence[bool], *arrays: Array, operator: Operator, schedule: Schedule, sums: EdgeSums = FAST,
            out: Array | None = None) -> tuple[Array, Saved]:
    """Return (output of `operator` for the inputs `arrays` over all edges of `schedule`'s graph, state for `vjp`). `sums` creates the
    accumulators; the output is added to `out` unless that is None.

    Collective.

    Parameters
    ----------
    wants_grad : sequence of bool
        See `Context`.
    arrays : arrays or kernels.Rows
        Inputs of the operator.
    operator, schedule, sums
        See `aggregate`.
    out : array, optional
        Array that the output is added to.

    Returns
    -------
    output : (n_dst, ...) array
    saved : Saved
        State for `vjp`.
    """
    arrays = tuple(a if isinstance(a, Rows) else np.ascontiguousarray(a) for a in arrays)
    n = len(operator.fetched)
    rows = schedule.row_format.rows(arrays[:n], operator.fetched)
    context = Context(wants_grad, sums, schedule.row_format, schedule.plan.single_block, out=out)
    case2 = any(wants_grad) and operator.needs_rows(context)
    keeps_rows = case2 and schedule.mode.keeps_rows and not over_reversed.applies(schedule, operator)
    context = context._replace(keeps_rows=keeps_rows)
    forward_pass = operator.forward((*rows, *arrays[n:]), context)
    for sweep_rows in forward_pass.sweeps(rows):
        block_rows = schedule.run(sweep_rows, forward_pass.add, keeps_rows, array_kinds=operator.fetched)
    output, residuals = forward_pass.finish()
    saved = Saved([residuals], context._replace(out=None), rows if case2 and not keeps_rows else None, block_rows)
    return output, saved


def vjp(g: Array, wants_grad: Sequence[bool], saved: Saved, operator: Any, schedule: Schedule, sums: EdgeSums = FAST,
        earlier: Sequence[Array | None] = ()) -> list[Any]:
    """Return the gradient of each input of `forward` from `g`, the gradient of its output, and `saved`, its state; None where
    `wants_grad` is False. A gradient is added in place to the input's array in `earlier`, unless that is None. Collective.

    Parameters
    ----------
    g : (n_dst, ...) array
        Gradient of the output.
    wants_grad : sequence of bool
        See `Context`.
    saved : Saved
        State of the forward pass.
    operator, schedule, sums
        See `aggregate`.
    earlier : sequence of (n_src, ...) array or None
        Sum of earlier gradients of each fetched input, which the new gradient is added to in place.

    Returns
    -------
    list of array or None
        One gradient for each input, then one for each captured value; None if the gradient is not wanted.
    """
    residuals = saved.residuals[0] if retained() else saved.residuals.pop()
    context = saved.context
    if over_reversed.applies(schedule, operator):
        return over_reversed.gradients(schedule, operator, residuals, g, context, saved.rows)
    backward_pass = operator.backward(residuals, g, context)
    del residuals
    accumulators = [accumulator.start(schedule.plan.n_src, array) if wants and accumulator is not None else None
                    for accumulator, wants, array in zip(backward_pass.accumulators, wants_grad, earlier or repeat(None))]

    def add(block, rows, arrays):
        over_arrays = [accumulator and accumulator.over(array) for accumulator, array in zip(accumulators, arrays)]
        backward_pass.add(block, rows, over_arrays)

    d_arrays = [accumulator and accumulator.array for accumulator in accumulators]
    schedule.run_backward(saved.rows, saved.block_rows, add, d_arrays, array_kinds=operator.fetched)
    return [*(accumulator and accumulator.rounded() for accumulator in accumulators), *backward_pass.finish()]


tape.primitive("aggregate", forward, vjp)

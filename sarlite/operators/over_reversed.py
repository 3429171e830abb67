"""Backward pass over reversed edges: the MPI rank that owns source rows fetches the gradients of their destinations.

In the ordinary backward pass the owner of a destination computes the gradients of its sources and pushes them to their
owners. Here the owner of a source computes the source's gradient. The columns of the reversed edges' blocks are
destinations, and the gradients of the destinations' outputs are fetched as rows are fetched in forward (MG-GCN Eq. 9).
Only the gradients of attention's destination scores are pushed.
"""

import numpy as np

from sarlite.operators.attend import AttendBackward, Attention
from sarlite.operators.contract import ROWS, SCORES, Context, Operator
from sarlite.operators.sums import Sum, SumBackward
from sarlite.schedule.schedule import Schedule
from sarlite.types import Array


def applies(schedule: Schedule, operator: Operator) -> bool:
    """Return True if the gradients of `operator` can be computed over the reversed edges that `schedule` has. The operator must be a
    `Sum` without edge weights, or an `Attention`.
    """
    if schedule.reverse is None:
        return False
    if isinstance(operator, Attention):
        return schedule.reverses_attention
    return isinstance(operator, Sum) and not operator.weighted


def gradients(schedule: Schedule, operator: Sum | Attention, residuals: object, g: Array, context: Context,
              rows: tuple[Array, ...] | None) -> list[Array | None]:
    """Return the gradient of each input of a `Sum` or `Attention`, computed over the reversed edges, from the output's gradient `g` and
    the saved `residuals`. `rows` are the local source rows; None for a `Sum`, which does not read them. Collective.

    Parameters
    ----------
    schedule : Schedule
        Schedule of the graph, whose `reverse` is not None.
    operator : Sum or Attention
    residuals : object
        Residuals of the operator's forward pass.
    g : (n_dst, ...) array
        Gradient of the output.
    context : Context
    rows : tuple of (n_src, ...) array, or None
        The local source rows in case 2; None in case 1.
    """
    backward = operator.backward(residuals, g, context)
    if isinstance(operator, Sum):
        return [_sum_gradient(schedule, operator, backward, context)]
    return _attention_gradients(schedule, operator, backward, rows)


def _sum_gradient(schedule: Schedule, operator: Sum, backward: SumBackward, context: Context) -> Array:
    """Return the gradient of the source rows of a `Sum`, t A^T (s g): `backward` holds the output's gradient g, and s and t are the
    factors of destinations and of sources. Collective.
    """
    assert schedule.reverse is not None
    g, n_src = backward.g, schedule.plan.n_src
    if backward.g_scale is not None:
        out = g if g.flags.writeable else None  # nothing else reads a writable gradient
        g = np.multiply(g, backward.g_scale.reshape(-1, *[1] * (g.ndim - 1)), out=out)
    t = None if operator.src_scale is None else operator.src_scale[:n_src]
    row_sum = context.sums.row_sum_like(backward.accumulators[0], n_src, t, False)
    for x in row_sum.sweeps(g):
        schedule.reverse.run((x,), lambda block, rows: row_sum.add(block, rows[0]), phase="backward", array_kinds=(ROWS,))
    return row_sum.finish()


def _attention_gradients(schedule: Schedule, operator: Attention, backward: AttendBackward,
                         rows: tuple[Array, ...] | None) -> list[Array | None]:
    """Return the gradients of the inputs of an `Attention` (z, source scores, destination scores), where `backward` holds the output's
    gradient. `rows` are the local source rows. Collective.

    This rank fetches `g` and `ends` of remote destinations, and pushes the gradients of the destinations' scores to
    the destinations' owners. The kernel is that of the ordinary backward pass, which also walks the edges by source.
    """
    assert schedule.reverse is not None
    n_src = schedule.plan.n_src
    accumulators = [accumulator.start(n_src) for accumulator in backward.accumulators]
    d_dst = backward.sum.dst_sums()

    def add(block, columns, arrays):
        block = block.anew()  # a new object, so that its CSR of some columns is freed with the rows
        mask = operator.dropout_mask(operator.src_ids, block.src_ids) if operator.dropout else None
        csr = block.whole_indptr, block.indices
        g, ends = columns
        backward.sum.add_by_source(csr, *rows, ends, g, accumulators, arrays[0], operator.slope, mask)

    schedule.reverse.run_backward((backward.g, backward.ends), None, add, [d_dst], array_kinds=(ROWS, SCORES))
    return [*(accumulator.rounded() for accumulator in accumulators), backward.sum.dst_gradient(d_dst),
            *[None] * backward.n_constant_inputs]

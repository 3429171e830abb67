"""Gradients over the reversed edges: the owner of the source rows computes them from the destinations' rows.

The columns of the reversed edges' blocks are destinations, whose rows are fetched. Only the gradients of attention's
destination scores are pushed. MG-GCN Eq. 9 aggregates a gradient in the same way as x.
"""

from typing import Any

import numpy as np

from sarlite.operators.attend import Attend
from sarlite.operators.contract import Context, Operator
from sarlite.operators.sums import Sum
from sarlite.schedule.schedule import Schedule
from sarlite.types import Array


def applies(schedule: Schedule, operator: Operator, context: Context) -> bool:
    """Return True if the gradients of an operator's source rows are computed over the reversed edges."""
    if schedule.reverse is None:
        return False
    if isinstance(operator, Attend):
        return schedule.reverses_attention
    return isinstance(operator, Sum) and not operator.weighted


def gradients(schedule: Schedule, operator: Sum | Attend, residuals: Any, g: Array, context: Context,
              rows: tuple[Array, ...] | None) -> list[Array | None]:
    """Return the gradients of all inputs of a `Sum` or `Attend`. Collective.

    Parameters
    ----------
    rows : tuple of (n_src, ...) array, or None
        The local source rows in case 2.
    """
    backward = operator.backward(residuals, g, context)
    if isinstance(operator, Sum):
        return [_of_sum(schedule, operator, backward, context)]
    return _of_attention(schedule, operator, backward, rows)


def _of_sum(schedule, operator, backward, context):
    """Return the gradient of x, t A^T (s g)."""
    g, n_src = backward.g, schedule.plan.n_src
    if backward.g_scale is not None:
        over = g if g.flags.writeable else None  # nobody else reads a gradient that may be written to
        g = np.multiply(g, backward.g_scale.reshape(-1, *[1] * (g.ndim - 1)), out=over)
    t = None if operator.src_scale is None else operator.src_scale[:n_src]
    row_sum = context.sums.row_sum_like(backward.sinks[0], n_src, t, False)
    for x in row_sum.sweeps(g):
        schedule.reverse.run((x,), lambda block, rows: row_sum.add(block, rows[0]), phase="backward")
    return row_sum.finish()


def _of_attention(schedule, operator, backward, rows):
    """Return the gradients of z, of the source scores and of the destination scores.

    The destinations' g and `ends` are fetched, and the gradients of the destinations' scores are pushed to their
    owners. The kernel is the same as in the ordinary backward pass, which also walks the edges by source.
    """
    n_src = schedule.plan.n_src
    sinks, d_dst = [sink.start(n_src) for sink in backward.sinks], backward.sum.dst_sums()

    def add(block, columns, arrays):
        block = block.anew()  # a CSR of some columns is made here, and freed with the rows
        mask = operator.dropout_mask(operator.src_ids, block.src_ids) if operator.dropout else None
        csr = block.whole_indptr, block.indices
        g, ends = columns
        backward.sum.add_by_source(csr, *rows, ends, g, sinks, arrays[0], operator.slope, mask)

    schedule.reverse.run_backward((backward.g, backward.ends), None, add, [d_dst])
    return [*(sink.rounded() for sink in sinks), backward.sum.dst_gradient(d_dst), *[None] * backward.n_further]

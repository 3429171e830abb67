"""Distributed aggregation as one tape primitive (SAR algorithms 1 and 2).

An operator object (`operators`, `custom`) computes one block at a time; `schedule` brings the rows. Neither knows the other.
"""

import numpy as np

from sarlite import tape
from sarlite.sar.messages import templates_of


class Operator:
    """What `aggregate` asks of an operator. One object serves one call, forward and backward; it is the residual.

    Attributes
    ----------
    n_fetched : int
        How many of the inputs are rows of source nodes, which peers fetch; they come first.
    needs_rows : bool
        Case 2: backward needs the source rows (valid after `begin`).
    keeps_result : bool
        Whether backward needs what `end` returned, which nothing may then be written over.
    flops_per_value : int
        What `tape.shapes` counts for each value of a message.
    """

    n_fetched = 1
    needs_rows = False
    keeps_result = True
    flops_per_value = 1

    def begin(self, needs, arrays, keep):
        """Take the local arrays and prepare the output; `keep` says whether what `forward` returns is kept."""

    def forward(self, block, rows):
        """Add one block's messages; return what `backward` wants as `kept`."""

    def end(self):
        """Return the output; drop what backward does not need."""

    def begin_backward(self, g):
        """Take the gradient of the output."""

    def backward(self, block, rows, kept, d_rows):
        """Add one block's gradients to `d_rows`, the gradients of the block's columns; an item is None where nobody needs it.

        Parameters
        ----------
        block : Edges
            Where rows are fetched again it may be some rows or columns of a block that `forward` saw.
        rows : tuple of ndarray, or None
            The columns' rows where they are fetched again; None in case 1, and where `kept` is there.
        kept : object, or None
            What `forward` returned for this block, where it was kept.
        """

    def turned(self, n_src, d_rows):
        """Return (operator, rows) of which the aggregation over the reversed edges adds the gradient of the source rows to `d_rows`.

        None where it is no such aggregation. After `begin_backward`, and in place of `backward`.

        Parameters
        ----------
        n_src : int
        d_rows : (n_src, ...) array
        """

    def end_backward(self):
        """Return the gradients of the inputs that are not fetched, then of the sinks; None where not needed."""
        return []

    def flops(self, inputs, out, schedule, **_):
        """Count one forward pass: `flops_per_value` for each value of each edge's message."""
        return sum(block.n_edges for block in schedule.plan.blocks) * int(np.prod(out[1:])) * self.flops_per_value


def aggregate(schedule, operator, inputs, sinks=()):
    """Apply `operator` over all blocks. Collective, forward and backward."""
    return tape.apply("aggregate", *inputs, sinks=sinks, operator=operator, schedule=schedule)


def _forward(needs, *arrays, operator, schedule):
    arrays = tuple(np.ascontiguousarray(a) for a in arrays)
    keep = any(needs) and schedule.mode.keeps
    operator.begin(needs, arrays, keep)
    rows = arrays[: operator.n_fetched]
    kept = schedule.run(rows, operator.forward, keep)
    local = rows if operator.needs_rows and not keep else None
    return operator.end(), (operator, local, kept, templates_of(rows))


def _vjp(g, needs, residuals, into, operator, schedule):
    operator, local, kept, templates = residuals
    operator.begin_backward(g)
    n_src = schedule.plan.n_src
    d_rows = [(np.zeros((n_src, *shape), dtype) if at is None or not at.flags.c_contiguous else at) if need else None
              for need, (shape, dtype), at in zip(needs, templates, into)]
    turned = operator.turned(n_src, d_rows[0]) if schedule.reverse is not None and d_rows[0] is not None else None
    if turned is None:
        schedule.run_backward(local, kept, operator.backward, d_rows)
    else:
        over_reversed, rows = turned
        over_reversed.begin([False], rows, False)
        schedule.reverse.run(rows, over_reversed.forward, phase="backward")
    return [*d_rows, *operator.end_backward()]


tape.primitive("aggregate", _forward, _vjp, owned=tape.Owned.YES, adds=True)

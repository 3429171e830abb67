"""Distributed aggregation as one tape primitive (SAR algorithms 1 and 2).

An operator object (`operators`, `custom`) computes one block at a time; `schedule` brings the rows. Neither knows the other.
"""

import numpy as np

from sarlite import tape
from sarlite.sar import schedule as sched


class Operator:
    """What `aggregate` asks of an operator. One object serves one call, forward and backward; it is the residual.

    Attributes
    ----------
    n_fetched : int
        How many of the inputs are rows of source nodes, which peers fetch; they come first.
    needs_rows : bool
        Case 2: backward needs the source rows (valid after `begin`).
    """

    n_fetched = 1
    needs_rows = False

    def begin(self, needs, arrays, keep):
        """Take the local arrays and prepare the output; `keep` says whether what `forward` returns is kept."""

    def forward(self, block, rows):
        """Add one block's messages; return what `backward` wants in place of `rows` where it is kept."""

    def end(self):
        """Return the output; drop what backward does not need."""

    def begin_backward(self, g):
        """Take the gradient of the output."""

    def backward(self, block, rows, d_rows):
        """Add one block's gradients. `rows` are fetched again, or what `forward` returned, or None in case 1.

        Where rows are fetched again the block may be some rows of a block that `forward` saw: `block.place` says which.
        """

    def end_backward(self):
        """Return the gradients of the inputs that are not fetched, then of the sinks; None where not needed."""
        return []


def aggregate(schedule, operator, inputs, sinks=()):
    """Apply `operator` over all blocks. Collective, forward and backward."""
    return tape.apply("aggregate", *inputs, sinks=sinks, operator=operator, schedule=schedule)


def _forward(needs, *arrays, operator, schedule):
    arrays = tuple(np.ascontiguousarray(a) for a in arrays)
    keep = any(needs) and schedule.mode != "sar"
    operator.begin(needs, arrays, keep)
    rows = arrays[: operator.n_fetched]
    kept = sched.run(schedule, rows, operator.forward, keep)
    local = rows if operator.needs_rows and not keep else None
    return operator.end(), (operator, local, kept, sched.templates_of(rows))


def _vjp(g, needs, residuals, into, operator, schedule):
    operator, local, kept, templates = residuals
    operator.begin_backward(g)
    d_rows = [(sched.zeros(schedule, t) if at is None or not at.flags.c_contiguous else at) if need else None
              for need, t, at in zip(needs, templates, into)]
    sched.run_backward(schedule, local, kept, operator.backward, d_rows)
    return [*d_rows, *operator.end_backward()]


tape.primitive("aggregate", _forward, _vjp, owned=tape.Owned.YES, adds=True)

"""Distributed aggregation as one tape primitive (SAR algorithms 1 and 2).

An operator object (`operators`, `custom`) computes one block at a time; `schedule` brings the rows. Neither knows the
other.
"""

import numpy as np

from sarlite import kernels, tape
from sarlite.errors import ConfigError
from sarlite.kernels import Rows
from sarlite.sar.schedule.messages import templates_of
from sarlite.tape.table_rows import TableRows


class Operator:
    """What `aggregate` asks of an operator. One object serves one call, forward and backward; it is the residual.

    Attributes
    ----------
    n_fetched : int
        How many of the inputs are rows of source nodes, which peers fetch; they come first.
    needs_rows : bool
        Case 2: backward needs the source rows (valid after `begin`).
    reverses : bool
        Whether backward can go over the reversed edges, as `reversed_operator` tells.
    keeps_result : bool
        Whether backward needs what `end` returned, which nothing may then be written over.
    overwrites : bool
        Whether `backward` may be given d_rows that are not set, which it then overwrites: where it sees all edges at
        once. In case 1 the reversed operator, too.
    adds_to_given : bool
        Whether gradients may be added to an array that is there.
    alone : bool
        Whether `forward` sees all edges in one block. Set before `begin`.
    accumulate : bool
        Whether `backward` adds to d_rows in this pass; else it overwrites them.
    takes_rows : bool
        Whether `begin`, `forward` and `backward` may be given `kernels.Rows` of the local sources; what peers send are
        arrays.
    may_narrow : bool
        Whether `forward` and `backward` may be given the first input's rows as bfloat16.
    narrow : bool
        Whether they are: what the graph's `rows` say. Set before `begin`.
    into : array or None
        What the output is wanted in; set before `begin`. An operator may add to it and return it from `end`, letting go
        of it; or return an array of its own, which the caller adds.
    """

    n_fetched = 1
    needs_rows = False
    reverses = overwrites = takes_rows = may_narrow = narrow = alone = False
    accumulate = adds_to_given = True
    keeps_result = True
    into = None

    def output(self, arrays):
        """Return the shape and the dtype of the output of these inputs. Before `begin`."""

    def begin(self, needs, arrays, keep):
        """Take the local arrays and prepare the output; `keep` says whether what `forward` returns is kept."""

    def look_ahead(self, schedule, rows):
        """Do what needs a pass over all blocks before `forward`. After `begin`; collective."""

    def run(self, schedule, rows, keep=False, phase="forward"):
        """Show `forward` all blocks; return what it returned where `keep`. After `look_ahead`; collective."""
        return schedule.run(rows, self.forward, keep, phase)

    def forward(self, block, rows):
        """Add one block's messages; return what `backward` wants as `kept`."""

    def end(self):
        """Return the output; drop what backward does not need."""

    def gathered(self, rows, scale=None, over=False):
        """Return rows that edges gather, or with a scale the rows times the scale.

        This is the one place where rows are narrowed. With `over` they are written over the rows, whose memory nobody
        else reads.

        These are the first input's rows, and backward the rows of the output's gradient. What edges or ranks add up is
        float32, so a rounding depends on the row alone.
        """
        return kernels.narrow(rows, scale, over)

    def narrowed(self, rows):
        """Return the fetched inputs, where the graph's rows are narrow the first one's `gathered`."""
        return (self.gathered(rows[0]), *rows[1:]) if self.narrow else rows

    def widened(self, rows):
        """Return a block's rows as float32 where they are narrow; as they are where the operator is not."""
        return kernels.widen(rows) if self.narrow and rows.dtype != np.float32 else rows

    def begin_backward(self, g):
        """Take the gradient of the output."""

    def accumulator(self, n_rows, shape, dtype, at):
        """Return what gradients of rows of this shape and dtype are added up in.

        That is `at`, where it is an array to add to.
        """
        if at is not None and at.flags.c_contiguous:
            return at
        return (np.zeros if self.accumulate else np.empty)((n_rows, *shape), dtype)

    def join(self, place, others):
        """Let the gradients of the fetched input `place` be added up with those of other operators.

        `others` are (operator, place) each. After `begin_backward` of all of them, on the operator whose `accumulator`
        and `finished` then serve.
        """

    def finished(self, sums, dtype):
        """Return the gradients that an `accumulator` has summed up."""
        return sums

    def backward(self, block, rows, kept, d_rows):
        """Add one block's gradients to `d_rows`, the gradients of the block's columns.

        An item is None where nobody needs it.

        Parameters
        ----------
        block : Edges
            Where rows are fetched again it may be some rows or columns of a block that `forward` saw.
        rows : tuple of ndarray, or None
            The columns' rows where they are fetched again; None in case 1, and where `kept` is there.
        kept : object, or None
            What `forward` returned for this block, where it was kept.
        """

    def reversed_operator(self, rows, d_rows):
        """Return (operator, rows, d_ends): how the owner of the source rows finds their gradients.

        It finds them over the reversed edges, after `begin_backward`, and in place of `backward`. The columns of the
        reversed edges' blocks are destinations, whose `rows` are fetched. Where there are no `d_ends` the operator's
        `forward` aggregates them; else its `backward` adds, and gives the gradients of the columns, which are brought
        to the destinations' owners and added to `d_ends`.

        Parameters
        ----------
        rows : tuple of (n_src, ...) array, or None
            The local source rows in case 2.
        d_rows : list of (n_src, ...) array or None
            What is added to.
        """

    def end_backward(self):
        """Return the gradients of the inputs that are not fetched, then of the sinks; None where not needed."""
        return []


def aggregate(schedule, operator, inputs, sinks=()):
    """Apply `operator` over all blocks. Collective, forward and backward."""
    if schedule.rows != "float32":
        narrow(schedule.rows, operator, inputs[0].dtype)
    gather(operator, inputs)
    return tape.apply("aggregate", *inputs, sinks=sinks, operator=operator, schedule=schedule)


def gather(operator, inputs):
    """Gather inputs that are rows of a table, where the operator does not read them in the table."""
    if operator.narrow or not operator.takes_rows:
        for x in inputs:
            if isinstance(x, TableRows):
                x.gathered()


def narrow(rows, operator, dtype):
    """Let an operator's rows be narrow; a ConfigError tells that they cannot."""
    if not operator.may_narrow:
        raise ConfigError(f"rows {rows}: messages that are evaluated as {type(operator).__name__} "
                          "have no narrow rows yet")
    if dtype != np.float32:
        raise ConfigError(f"rows {rows}: stand for rows of float32, but these are {dtype}")
    operator.narrow = True


def forward(needs, *arrays, operator, schedule):
    arrays = tuple(a if isinstance(a, Rows) else np.ascontiguousarray(a) for a in arrays)
    keep = any(needs) and schedule.mode.keeps and not _reverses(schedule, operator)
    operator.alone = schedule.plan.alone
    operator.begin(needs, arrays, keep)
    rows = arrays[: operator.n_fetched]
    templates = templates_of(rows)
    rows = operator.narrowed(rows)
    operator.look_ahead(schedule, rows)
    kept = operator.run(schedule, rows, keep)
    local = rows if operator.needs_rows and not keep else None
    return operator.end(), (operator, local, kept, templates)


def vjp(g, needs, residuals, into, operator, schedule):
    operator, local, kept, templates = residuals
    reverses, n_src = _reverses(schedule, operator), schedule.plan.n_src
    into = into[: operator.n_fetched] if operator.adds_to_given else [None] * operator.n_fetched
    at_once = operator.alone or (reverses and not operator.needs_rows)
    operator.accumulate = not (at_once and operator.overwrites and all(at is None for at in into))
    operator.begin_backward(g)
    d_rows = [operator.accumulator(n_src, shape, dtype, at) if need else None
              for need, (shape, dtype), at in zip(needs, templates, into)]
    if reverses:
        _over_reversed(schedule.reverse, *operator.reversed_operator(local, d_rows))
    else:
        schedule.run_backward(local, kept, operator.backward, d_rows)
    d_rows = [None if d is None else operator.finished(d, dtype) for d, (_, dtype) in zip(d_rows, templates)]
    return [*d_rows, *operator.end_backward()]


def _reverses(schedule, operator):
    if schedule.reverse is None or not operator.reverses:
        return False
    return schedule.reverses_attention or not operator.needs_rows


def _over_reversed(reverse, operator, rows, d_ends):
    if d_ends:
        reverse.run_backward(rows, None, operator.backward, d_ends)
    else:
        operator.begin([False], rows, False)
        operator.run(reverse, rows, phase="backward")
        operator.end()


tape.primitive("aggregate", forward, vjp, owned=tape.Owned.YES, adds=True, takes_rows=True)

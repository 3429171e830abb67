"""The schedule of one graph: its plan, how rows travel, and the mode that brings them together. It knows no operator."""

from typing import Any, NamedTuple

from sarlite.errors import ConfigError, raise_together
from sarlite.sar.modes import MODES
from sarlite.sar.plan import Plan
from sarlite.sar.transport import Transport


class Schedule(NamedTuple):
    """How the blocks of one graph are computed with.

    Attributes
    ----------
    plan : Plan
    transport : Transport
    mode : object of `modes.MODES`
    """

    plan: Plan
    transport: Transport
    mode: Any

    def run(self, arrays, on_block, keep=False):
        """Call `on_block(block, rows)` for each block and return the list of what it returned where `keep`. Collective.

        Parameters
        ----------
        arrays : tuple of (n_src, ...) ndarray
            The local rows, which peers fetch too.
        on_block : callable
            Given a block and the arrays of its columns, which are freed after the call.
        keep : bool
        """
        def visit(block, rows):
            with self._span(block, "forward"):
                result = on_block(block, rows)
            return result if keep else None

        found = self.mode.run(self, arrays, visit)
        return found if keep else None

    def run_backward(self, arrays, kept, on_block, d_arrays):
        """Call `on_block(block, rows, kept, d_rows)` for each block and bring each d_rows to the rows' owner. Collective.

        Parameters
        ----------
        arrays : tuple of (n_src, ...) ndarray, or None
            Local rows; given, the peers' are fetched again (case 2). Else rows are None.
        kept : list, or None
            What `run` returned, an item a block. Where None, blocks may be some rows or columns of those that `run` showed.
        on_block : callable
        d_arrays : list of (n_src, ...) ndarray or None
            Gradients of the local rows, added to in place; None where nobody needs one.
        """
        def visit(block, rows, value, d_rows):
            with self._span(block, "backward"):
                on_block(block, rows, value, d_rows)

        self.mode.run_backward(self, arrays, kept, visit, d_arrays)

    def _span(self, block, phase):
        return self.transport.profile.span("block", source=block.source, edges=block.n_edges, phase=phase)


def check_mode(comm, mode, prefetch):
    """Raise a ConfigError on every rank unless there is such a mode and prefetch is a number. Collective."""
    error = None
    if mode not in MODES:
        error = ConfigError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    elif isinstance(prefetch, bool) or not hasattr(prefetch, "__index__") or prefetch < 0:
        error = ConfigError(f"prefetch {prefetch!r} is not a number >= 0")
    raise_together(comm, error)


def make(comm, exchange, mode, prefetch, profile):
    """Return a Schedule of the edges that `plan.build` has found. Collective."""
    return Schedule(MODES[mode].prepare(exchange), Transport(comm, prefetch, profile), MODES[mode])

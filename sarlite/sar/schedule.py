"""The schedule of one graph: its plan, how rows travel, and the mode that brings them together. It knows no operator."""

from typing import Any, NamedTuple

from sarlite.errors import ConfigError, raise_together
from sarlite.sar.modes import MODES
from sarlite.sar.plan import Plan, build
from sarlite.sar.reverse import is_symmetric, out_edges
from sarlite.sar.transport import Transport


class Schedule(NamedTuple):
    """How the blocks of one graph are computed with.

    Attributes
    ----------
    plan : Plan
    transport : Transport
    mode : object of `modes.MODES`
    reverse : Schedule, or None
        Of the reversed edges, from destination to source rows, where the mode takes linear messages' gradients so.
    """

    plan: Plan
    transport: Transport
    mode: Any
    reverse: Any = None

    def run(self, arrays, on_block, keep=False, phase="forward"):
        """Call `on_block(block, rows)` for each block and return the list of what it returned where `keep`. Collective.

        Parameters
        ----------
        arrays : tuple of (n_src, ...) ndarray
            The local rows, which peers fetch too.
        on_block : callable
            Given a block and the arrays of its columns, which are freed after the call.
        keep : bool
        phase : str
            What the bytes are counted under.
        """
        def visit(block, rows):
            with self._span(block, phase):
                result = on_block(block, rows)
            return result if keep else None

        found = self.mode.run(self, arrays, visit, phase)
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


def check_mode(comm, mode, prefetch, columns=1):
    """Raise a ConfigError on every rank unless there is such a mode, prefetch is a number and columns divides the ranks. Collective."""
    error = None
    if mode not in MODES:
        error = ConfigError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    elif isinstance(prefetch, bool) or not hasattr(prefetch, "__index__") or prefetch < 0:
        error = ConfigError(f"prefetch {prefetch!r} is not a number >= 0")
    elif isinstance(columns, bool) or not hasattr(columns, "__index__") or columns < 1:
        error = ConfigError(f"columns {columns!r} is not a number >= 1")
    elif comm.size % columns:
        error = ConfigError(f"columns {columns} does not divide {comm.size}, the number of ranks, which stand in rows of so many")
    raise_together(comm, error)


def make(comm, exchange, mode, prefetch, profile, line=None):
    """Return a Schedule of the edges that `plan.build` has found. Collective."""
    mode, transport = MODES[mode], Transport(comm, prefetch, profile, line)
    made = Schedule(mode.prepare(exchange), transport, mode)
    if not mode.turns or comm.size == 1 or len(exchange.cuts) > 1:
        return made
    (cut,), n_src = exchange.cuts, made.plan.n_src
    if is_symmetric(comm, cut.edges, n_src):
        return made._replace(reverse=made)
    turned = build(comm, [out_edges(comm, cut.edges, n_src)], None, cut.edges.n_dst)
    return made._replace(reverse=Schedule(mode.prepare(turned), transport, mode))

"""The schedule of one graph: its plan, how rows travel, and the mode that brings them together. It knows no operator."""

from typing import Any, NamedTuple

import numpy as np

from sarlite.errors import ConfigError, raise_together
from sarlite.sar.modes import MODES
from sarlite.sar.plan import Plan, build
from sarlite.sar.reverse import is_symmetric, out_edges
from sarlite.sar.transport import Transport

BACKWARD = "push", "fetch"


class Options(NamedTuple):
    """How a graph is computed with on several ranks; `Graph.from_part` tells what each means."""

    mode: str = "sar"
    prefetch: int = 1
    backward: str | None = None
    columns: int = 1

    def check(self, comm):
        """Raise a ConfigError on every rank where one cannot be. Collective."""
        raise_together(comm, self._error(comm.size))

    def _error(self, size):
        if self.mode not in MODES:
            return ConfigError(f"mode {self.mode!r} is not one of {', '.join(MODES)}")
        if self.backward not in (None, *BACKWARD):
            return ConfigError(f"backward {self.backward!r} is not one of {', '.join(BACKWARD)}")
        for name, least in (("prefetch", 0), ("columns", 1)):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
                return ConfigError(f"{name} {value!r} is not a number >= {least}")
        if size % self.columns:
            return ConfigError(f"columns {self.columns} does not divide {size}, the number of ranks, which stand in rows of so many")
        return None


class Schedule(NamedTuple):
    """How the blocks of one graph are computed with.

    Attributes
    ----------
    plan : Plan
    transport : Transport
    mode : object of `modes.MODES`
    reverse : Schedule, or None
        Of the reversed edges, from destination to source rows, where the gradients of linear messages are found by these.
    fetches : bool
        Whether those of attention are, too.
    """

    plan: Plan
    transport: Transport
    mode: Any
    reverse: Any = None
    fetches: bool = False

    @property
    def n_edges(self):
        """How many edges this rank computes with."""
        return sum(block.n_edges for block in self.plan.blocks)

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

    def run_backward(self, arrays, kept, on_block, d_arrays, phase="backward"):
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
        phase : str
            "forward" where what is brought to the rows' owners are partial sums.
        """
        def visit(block, rows, value, d_rows):
            with self._span(block, phase):
                on_block(block, rows, value, d_rows)

        self.mode.run_backward(self, arrays, kept, visit, d_arrays, phase)

    def _span(self, block, phase):
        return self.transport.profile.span("block", source=block.source, edges=block.n_edges, phase=phase)


def make(comm, exchange, options, profile, dst_ids=None, line=None):
    """Return a Schedule of the edges that `plan.build` has found. Collective.

    Parameters
    ----------
    comm : Communicator
    exchange : Exchange
        Of one set of edges, or of several, of relations, whose gradients are always pushed.
    options : Options
    profile : Profile
    dst_ids : (n_dst,) int64
        Global ids of this rank's destination rows; None of relations.
    line : Line, optional
        See `Transport`.
    """
    mode, transport = MODES[options.mode], Transport(comm, options.prefetch, profile, line)
    made = Schedule(mode.prepare(exchange, transport.prefetch), transport, mode)
    if comm.size == 1 or dst_ids is None:
        return made
    reverse = _reversed(comm, exchange, dst_ids, made) if turns(mode, options.backward) else None
    return made._replace(reverse=reverse, fetches=options.backward == "fetch")


def turns(mode, backward):
    """Whether linear messages' gradients go over the reversed edges on several ranks."""
    return mode.turns if backward is None else backward == "fetch"


def _reversed(comm, exchange, dst_ids, made):
    """A Schedule of the reversed edges: the same, where they are the same edges between the same ids."""
    (cut,), n_src = exchange.cuts, made.plan.n_src
    same_ids = all(comm.allgather(np.array_equal(dst_ids, exchange.src_ids[comm.rank])))
    if same_ids and is_symmetric(comm, cut.edges, n_src):
        return made
    turned = build(comm, [out_edges(comm, cut.edges, n_src)], dst_ids, cut.edges.n_dst)
    return made._replace(plan=made.mode.prepare(turned, made.transport.prefetch))


"""The schedule of one graph: its plan, how rows travel, and the two loops over the plan's pieces.

It knows no operator.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sarlite.errors import ConfigError, raise_together
from sarlite.schedule import needs
from sarlite.schedule.modes import MODES, Mode
from sarlite.schedule.pieces import Plan
from sarlite.schedule.reverse import is_symmetric, out_edges
from sarlite.schedule.row_format import FLOAT32, ROW_FORMATS, RowFormat
from sarlite.schedule.transport import Fetch, NoFetch, Push, Transport


class Schedule(NamedTuple):
    """How the blocks of one graph are computed with.

    Attributes
    ----------
    plan : Plan
    transport : Transport
    mode : Mode
    reverse : Schedule, or None
        Of the reversed edges, from destination to source rows, where the gradients of linear messages are found by the
        reversed edges.
    reverses_attention : bool
        Whether the gradients of attention are found by the reversed edges, too.
    row_format : RowFormat
        How rows that edges gather are stored and sent.
    """

    plan: Plan
    transport: Transport
    mode: Mode
    reverse: Any = None
    reverses_attention: bool = False
    row_format: RowFormat = FLOAT32

    @property
    def n_edges(self):
        """How many edges this rank computes with."""
        return sum(block.n_edges for block in self.plan.blocks)

    def run(self, arrays, on_block, keeps_rows=False, phase="forward"):
        """Call `on_block(block, rows)` for each block (SAR algorithm 1). Collective.

        Parameters
        ----------
        arrays : tuple of (n_src, ...) ndarray
            The local rows, which peers fetch too.
        on_block : callable
            Given a block and the arrays of its columns, which are freed after the call.
        keeps_rows : bool
        phase : str
            What the bytes are counted under.

        Returns
        -------
        list of tuple of ndarray, or None
            If `keeps_rows`, the rows of each block, in the order of `plan.blocks`.
        """
        kept = []
        with self.mode.fetch(self.transport, self.plan.forward, arrays, phase) as fetched:
            for piece in self.plan.forward:
                rows = fetched.take(piece)
                if piece.block is not None:
                    with self._span(piece.block, phase):
                        on_block(piece.block, rows)
                    if keeps_rows:
                        kept.append((piece.block.offset, rows))
                del rows
                fetched.release(piece)
        return [rows for _, rows in sorted(kept, key=lambda each: each[0])] if keeps_rows else None

    def run_backward(self, arrays, block_rows, on_block, d_arrays, phase="backward"):
        """Call `on_block(block, rows, d_rows)` for each block. Collective.

        Each d_rows is brought to the rows' owner (SAR algorithm 2).

        Parameters
        ----------
        arrays : tuple of (n_src, ...) ndarray, or None
            Local rows; given, the peers' rows are fetched again (case 2). Else rows are None.
        block_rows : list of tuple of ndarray, or None
            What `run` returned: the rows of each block, in place of fetched rows.
        on_block : callable
            Without `block_rows`, blocks may be some rows or columns of the blocks that `run` showed.
        d_arrays : list of (n_src, ...) ndarray or None
            Gradients of the local rows, added to in place; None where nobody needs one.
        phase : str
            What the bytes are counted under.
        """
        pieces = self._backward_pieces(arrays is not None)
        kept = [*block_rows[1:], block_rows[0]] if block_rows else [None] * len(pieces)
        fetching = NoFetch() if arrays is None else Fetch(self.transport, pieces, arrays, phase)
        with Push(self.transport, d_arrays, self._depth, phase) as push, fetching as fetched:
            for piece, rows in zip(pieces, kept, strict=True):
                buffer, d_rows = push.gradients(piece)
                with self._span(piece.block, phase):
                    on_block(piece.block, fetched.take(piece) if rows is None else rows, d_rows)
                fetched.release(piece)
                push.start(piece, buffer, d_rows)
                del buffer, d_rows

    def _backward_pieces(self, fetches):
        """The pieces of a backward pass.

        The own tile comes last, so that the last gradients travel meanwhile. Where a thread fetches rows again, one
        half of the own tile's rows comes first, so that the first rows travel meanwhile, too.
        """
        *peers, own = self.plan.backward
        if not (fetches and self.transport.prefetch and peers):
            return self.plan.backward
        first, last = own.block.halves
        return own._replace(block=first), *peers, own._replace(block=last)

    @property
    def _depth(self):
        """How many messages of gradients travel at once.

        As many as one piece has, or with prefetch those of one peer.
        """
        first = self.plan.backward[0]
        if len(first.arrivals) > 1:
            return len(first.arrivals)
        return first.share.denominator if self.transport.prefetch and first.arrivals else 0

    def _span(self, block, phase):
        return self.transport.profile.span("block", source=block.source, edges=block.n_edges, phase=phase)


BACKWARD = "push", "fetch"


class Options(NamedTuple):
    """How a graph is computed with on several ranks.

    Attributes
    ----------
    mode : {"sar", "sa", "oneshot", "broadcast"}, or a Mode
        The order in which a layer's remote rows are fetched and used; see `sar.schedule.modes`.
    prefetch : int
        Number of peers whose rows a thread fetches ahead; with 0 rows are fetched when they are used.
    backward : {"push", "fetch"}, optional
        How gradients of source rows reach their owners. With "push" the owner of the destinations computes them and
        sends them. With "fetch" the owner of the sources fetches the destinations' gradients over the reversed edges
        (4 bytes an edge, none if the structure is symmetric). "fetch" works for sums of `copy_src` and `linear` and
        for `attend`; other gradients are pushed. By default those of `copy_src` and `linear` are fetched in mode
        "broadcast", and all others are pushed; with bfloat16 rows all are fetched that can be.
    row_dtype : {"float32", "bfloat16"}
        Type in which rows that edges gather are stored and sent: the float32 source rows of `copy_src`, `linear`,
        `mul_edge` and `attend` (its z), and the gradients of their outputs. "bfloat16" rounds each value once, to
        nearest, ties to even. Sums and pushed gradients stay float32. Other messages are refused.
    peers_at_once : int, optional
        Number of peers whose rows are fetched and used at once, 1 .. N - 1; by default 1, and all in mode "oneshot".
        A rank holds the rows of (1 + prefetch) times as many peers. More peers at once wait less at many ranks. Not
        for mode "broadcast".
    """

    mode: str | Mode = "sar"
    prefetch: int = 1
    backward: str | None = None
    row_dtype: str = "float32"
    peers_at_once: int | None = None

    def check(self, comm):
        """Raise a ConfigError on every rank where one cannot be. Collective."""
        raise_together(comm, self._error())

    def _error(self):
        if not hasattr(self.mode, "plan") and self.mode not in MODES:
            return ConfigError(f"mode {self.mode!r} is not one of {', '.join(MODES)}")
        if self.backward not in (None, *BACKWARD):
            return ConfigError(f"backward {self.backward!r} is not one of {', '.join(BACKWARD)}")
        if self.row_dtype not in ROW_FORMATS:
            return ConfigError(f"row_dtype {self.row_dtype!r} is not one of {', '.join(ROW_FORMATS)}")
        for name, least in (("prefetch", 0), ("peers_at_once", 1)):
            value: Any = getattr(self, name)
            if name == "peers_at_once" and value is None:
                continue
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
                return ConfigError(f"{name} {value!r} is not a number >= {least}")
        if self.peers_at_once is not None and not hasattr(MODES.get(self.mode, self.mode), "peers_at_once"):
            return ConfigError(f"peers_at_once: mode {self.mode} brings one rank's rows at a time")
        return None

    @property
    def reverses(self):
        """Whether linear messages' gradients go over the reversed edges on several ranks.

        By default those of narrow rows do: a row of a gradient is rounded, whichever rank sums it up, but of the sums
        that are pushed nothing may be rounded, as which edges they are over depends on the division.
        """
        return self.reverses_attention or (self.mode_value.reverses if self.backward is None else False)

    @property
    def reverses_attention(self):
        """Whether those of attention do."""
        return self.row_dtype != "float32" if self.backward is None else self.backward == "fetch"

    @property
    def separate(self):
        """True if each relation of several has a fetch of its own, though relations have sources in common."""
        return self.backward == "fetch"

    @property
    def mode_value(self) -> Mode:
        """The mode as a value."""
        mode: Any = MODES[self.mode] if isinstance(self.mode, str) else self.mode
        return mode if self.peers_at_once is None else replace(mode, peers_at_once=self.peers_at_once)


def make(comm, found, options, profile, dst_ids=None):
    """Return a Schedule of the edges that `needs.find` has found. Collective.

    Parameters
    ----------
    comm : Communicator
    found : Needs
        Of one set of edges, or of several, of relations, whose gradients are then pushed.
    options : Options
    profile : Profile
    dst_ids : (n_dst,) int64
        Global ids of this rank's destination rows; None of relations.
    """
    mode, transport = options.mode_value, Transport(comm, options.prefetch, profile)
    made = Schedule(mode.plan(found, transport.prefetch), transport, mode, row_format=ROW_FORMATS[options.row_dtype])
    if comm.size == 1 or dst_ids is None or not options.reverses:
        return made
    return made._replace(reverse=_reversed(comm, found, dst_ids, made), reverses_attention=options.reverses_attention)


def _reversed(comm, found, dst_ids, made):
    """A Schedule of the reversed edges: the same, where they are the same edges between the same ids."""
    (cut,), n_src = found.cuts, made.plan.n_src
    same_ids = all(comm.allgather(np.array_equal(dst_ids, found.src_ids[comm.rank])))
    if same_ids and is_symmetric(comm, cut.edges, n_src):
        return made
    reversed_needs = needs.find(comm, [out_edges(comm, cut.edges, n_src)], dst_ids, cut.edges.n_dst)
    return made._replace(plan=made.mode.plan(reversed_needs, made.transport.prefetch))

"""The schedule of one graph: its plan, its transport, and the two loops over the plan's pieces.

The schedule knows no operator.
"""

from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np

from sarlite.errors import ConfigError, raise_together
from sarlite.schedule import needs
from sarlite.schedule.modes import MODES, Mode
from sarlite.schedule.modes.sequential import Sequential
from sarlite.schedule.pieces import Plan
from sarlite.schedule.plan_check import OWN, plan_of
from sarlite.schedule.reverse import is_symmetric, out_edges
from sarlite.schedule.row_format import FLOAT32, ROW_FORMATS, RowFormat
from sarlite.schedule.transport import Fetch, NoFetch, Push, Transport


class Schedule(NamedTuple):
    """Plan and transport of one graph, and the loops that aggregations run over its blocks.

    Attributes
    ----------
    plan : Plan
    transport : Transport
    mode : Mode
    reverse : Schedule, or None
        Schedule of the reversed edges, from destination to source rows, if gradients of linear messages are computed
        over them.
    reverses_attention : bool
        True if the gradients of attention are also computed over the reversed edges.
    row_format : RowFormat
        Format in which rows that edges gather are stored and sent.
    """

    plan: Plan
    transport: Transport
    mode: Mode
    reverse: "Schedule | None" = None
    reverses_attention: bool = False
    row_format: RowFormat = FLOAT32

    @property
    def n_edges(self):
        """Number of edges whose destinations this rank owns."""
        return sum(block.n_edges for block in self.plan.blocks)

    def run(self, arrays, on_block, keeps_rows=False, phase="forward"):
        """Call `on_block(block, rows)` for each block (SAR algorithm 1). Collective.

        Parameters
        ----------
        arrays : tuple of (n_src, ...) ndarray
            Local rows, which peers fetch too.
        on_block : callable
            Called with a block and the rows of its columns, which are freed after the call.
        keeps_rows : bool
            True if the rows of each block are kept and returned.
        phase : str
            Phase that the transferred bytes are counted under.

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
        """Call `on_block(block, rows, d_rows)` for each block, and push each d_rows to its owner (SAR algorithm 2).

        Collective.

        Parameters
        ----------
        arrays : tuple of (n_src, ...) ndarray, or None
            Local rows in case 2, where the peers' rows are fetched again. With None and no `block_rows`, rows are None.
        block_rows : list of tuple of ndarray, or None
            Rows of each block that `run` returned, used instead of fetched rows.
        on_block : callable
            Called with a block, its rows and the gradients to add to. Without `block_rows` a block may hold a part of
            the rows or columns of a block of `run`.
        d_arrays : list of (n_src, ...) ndarray or None
            Gradients of the local rows, added to in place; None for a gradient that is not wanted.
        phase : str
            Phase that the transferred bytes are counted under.
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
        """Return the pieces of a backward pass.

        The own tile comes last, so that it is computed while the last gradients travel. If a thread fetches rows again,
        half of the own tile's rows come first, to be computed while the first rows travel.
        """
        *peers, own = self.plan.backward
        if not (fetches and self.transport.prefetch and peers):
            return self.plan.backward
        first, last = own.block.halves
        return own._replace(block=first), *peers, own._replace(block=last)

    @property
    def _depth(self):
        """Number of gradient messages that travel at the same time.

        It is the number of messages of one piece; with prefetch, the number of messages of one peer.
        """
        first = self.plan.backward[0]
        if len(first.arrivals) > 1:
            return len(first.arrivals)
        return first.share.denominator if self.transport.prefetch and first.arrivals else 0

    def _span(self, block, phase):
        return self.transport.profile.span("block", source=block.source, edges=block.n_edges, phase=phase)


BACKWARD = "push", "fetch"


class Options(NamedTuple):
    """Options of the computation on several ranks.

    Attributes
    ----------
    mode : {"sar", "sa", "oneshot", "broadcast"}, or a Mode
        The order in which a layer's remote rows are fetched and used; see `schedule.modes`.
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
        """Raise a ConfigError on every rank if an option is not valid. Collective."""
        raise_together(comm, self._error())

    def _error(self):
        if not hasattr(self.mode, "plan") and self.mode not in MODES:
            return ConfigError(f"mode {self.mode!r} is not one of {', '.join(MODES)}")
        if self.backward not in (None, *BACKWARD):
            return ConfigError(f"backward {self.backward!r} is not one of {', '.join(BACKWARD)}")
        if self.row_dtype not in ROW_FORMATS:
            return ConfigError(f"row_dtype {self.row_dtype!r} is not one of {', '.join(ROW_FORMATS)}")
        for name, least in (("prefetch", 0), ("peers_at_once", 1)):
            value: object = getattr(self, name)
            if name == "peers_at_once" and value is None:
                continue
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
                return ConfigError(f"{name} {value!r} is not a number >= {least}")
        if self.peers_at_once is not None and not hasattr(MODES.get(self.mode, self.mode), "peers_at_once"):
            return ConfigError(f"peers_at_once: mode {self.mode} brings one rank's rows at a time")
        return None

    @property
    def reverses(self):
        """True if the gradients of linear messages are computed over the reversed edges on several ranks.

        By default they are with bfloat16 rows. A gradient row is rounded in the same way by every rank that uses it.
        Pushed sums must not be rounded, because the edges in each sum depend on the division of the graph.
        """
        return self.reverses_attention or (self.mode_value.reverses if self.backward is None else False)

    @property
    def reverses_attention(self):
        """True if the gradients of attention are computed over the reversed edges."""
        return self.row_dtype != "float32" if self.backward is None else self.backward == "fetch"

    @property
    def compared(self) -> "Options":
        """These options as ranks compare them: in place of a mode of the user's the name of its class."""
        own = isinstance(self.mode, (str, *OWN))
        return self if own else self._replace(mode=type(self.mode).__qualname__)

    @property
    def separate(self):
        """True if each relation has its own fetch, even if several relations have the same source rows."""
        return self.backward == "fetch"

    @property
    def mode_value(self) -> Mode:
        """The mode as a `Mode` object, with the option `peers_at_once` applied."""
        mode = MODES[self.mode] if isinstance(self.mode, str) else self.mode
        return mode if self.peers_at_once is None else replace(cast(Sequential, mode), peers_at_once=self.peers_at_once)


def make(comm, found, options, profile, dst_ids=None):
    """Return the Schedule for the needs that `needs.find` returned. Collective.

    Parameters
    ----------
    comm : Communicator
    found : Needs
        Needs of one set of edges, or of several relations, whose gradients are then always pushed.
    options : Options
    profile : Profile
    dst_ids : (n_dst,) int64, optional
        Global ids of this rank's destination rows; None for relations.
    """
    mode, transport = options.mode_value, Transport(comm, options.prefetch, profile)
    plan = plan_of(comm, mode, found, transport.prefetch)
    made = Schedule(plan, transport, mode, row_format=ROW_FORMATS[options.row_dtype])
    if comm.size == 1 or dst_ids is None or not options.reverses:
        return made
    return made._replace(reverse=_reversed(comm, found, dst_ids, made), reverses_attention=options.reverses_attention)


def _reversed(comm, found, dst_ids, made):
    """Return a Schedule of the reversed edges; it is `made` itself if the structure is symmetric with equal ids."""
    (cut,), n_src = found.cuts, made.plan.n_src
    same_ids = all(comm.allgather(np.array_equal(dst_ids, found.src_ids[comm.rank])))
    if same_ids and is_symmetric(comm, cut.edges, n_src):
        return made
    reversed_needs = needs.find(comm, [out_edges(comm, cut.edges, n_src)], dst_ids, cut.edges.n_dst)
    return made._replace(plan=plan_of(comm, made.mode, reversed_needs, made.transport.prefetch))

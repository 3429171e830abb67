"""The schedule of one graph: its plan, its transport, and the two loops over the plan's pieces (SAR algorithms 1, 2).

The schedule knows no operator.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from sarlite import kernels
from sarlite.comm import Communicator
from sarlite.comm.launch import default_prefetch
from sarlite.errors import ConfigError, raise_together
from sarlite.profile import Profile
from sarlite.schedule import needs
from sarlite.schedule.modes import MODES, Mode
from sarlite.schedule.modes.sequential import Sequential
from sarlite.schedule.pieces import Piece, Plan
from sarlite.schedule.plan_check import LIBRARY_MODES, plan_of
from sarlite.schedule.reverse import is_symmetric, out_edges
from sarlite.schedule.row_format import FLOAT32, ROW_FORMATS, RowFormat
from sarlite.schedule.transport import Fetch, NoFetch, Push, Transport
from sarlite.types import Array


class Schedule(NamedTuple):
    """Exchange of rows for one graph: fetches the source rows that other ranks own, one block of edges after another, and calls an
    aggregation's function for each block; also sends the gradients of these rows back to their owners.

    Attributes
    ----------
    plan : Plan
    transport : Transport
    mode : Mode
    reverse : Schedule, or None
        Schedule of the reversed edges, from destination rows to source rows, if gradients of linear messages are
        computed over the reversed edges.
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

    def run(self, arrays: tuple[Array, ...], on_block: Callable[[Any, tuple[Array, ...]], object], keeps_rows: bool = False,
            phase: str = "forward", array_kinds: tuple[str, ...] = ()) -> list[tuple[Array, ...]] | None:
        """Call `on_block(block, rows)` for each block of edges with the rows of its sources: `arrays`, this rank's own rows, or
        rows fetched from peers. Return a list of the rows of each block if `keeps_rows`, else None. `array_kinds` has for each
        array "rows", which are sent in the row format, or "scores"; the profile counts bytes under the name `phase`. Collective.

        This is SAR algorithm 1.

        Parameters
        ----------
        arrays : tuple of (n_src, ...) ndarray
            Local rows, which this rank also sends to its peers.
        on_block : callable (block, rows) -> None
            `rows` is a tuple with the (n_columns, ...) rows of the block's columns for each array. Rows of peers are
            freed after the call unless `keeps_rows`.
        keeps_rows : bool
            True to keep the rows of each block and return them.
        phase : {"forward", "backward"}
            Phase under which the profile counts the transferred bytes.
        array_kinds : tuple of {"rows", "scores"}
            Kind of each array. Without kinds no array has the row format.

        Returns
        -------
        list of tuple of ndarray, or None
            If `keeps_rows`, the rows of each block as they arrived, in the order of `plan.blocks`.
        """
        block_rows = []
        with self.mode.fetch(self.transport, self.plan.forward, self.row_format.encode(arrays, array_kinds), phase) as fetched:
            for piece in self.plan.forward:
                rows = fetched.take(piece)
                if piece.block is not None:
                    with self._span(piece.block, phase):
                        on_block(piece.block, self._rows(piece, rows, arrays, array_kinds))
                    if keeps_rows:
                        block_rows.append((piece.block.offset, arrays if piece.own else rows))
                del rows
                fetched.release(piece)
        return [rows for _, rows in sorted(block_rows, key=lambda each: each[0])] if keeps_rows else None

    def run_backward(self, arrays: tuple[Array, ...] | None, block_rows: list[tuple[Array, ...]] | None,
                     on_block: Callable[[Any, Any, Any], object], d_arrays: Sequence[Array | None], phase: str = "backward",
                     array_kinds: tuple[str, ...] = ()) -> None:
        """Call `on_block(block, rows, d_rows)`, which adds the gradients of the block's source rows to `d_rows`, for each block of
        edges. Each gradient is sent to its row's owner and added to `d_arrays` there. `rows` come from `block_rows`, the result of
        `run`. If `block_rows` is None, rows are fetched again, or are None if `arrays` is None too; `phase` and `array_kinds` are
        as in `run`.

        This is SAR algorithm 2. Collective.

        Parameters
        ----------
        arrays : tuple of (n_src, ...) ndarray, or None
            Local rows in case 2, where rows of peers are fetched again; None in case 1 and with `block_rows`.
        block_rows : list of tuple of ndarray, or None
            Rows of each block, as `run` returned them, to use instead of fetched rows.
        on_block : callable (block, rows, d_rows) -> None
            Adds the gradients of the block's columns to `d_rows`, arrays of (n_columns, ...). `rows` are the rows of
            the columns, or None in case 1. Without `block_rows`, a block may be some rows or columns of a block of
            `run`.
        d_arrays : list of (n_src, ...) ndarray or None
            Gradients of the local rows, added to in place; None for a gradient that is not wanted.
        phase : str
            Phase under which the profile counts the transferred bytes.
        array_kinds : tuple of {"rows", "scores"}
            Kind of each array, as in `run`.
        """
        pieces, local = self._backward_pieces(arrays is not None), block_rows[0] if block_rows else arrays
        rows_of_pieces = [*block_rows[1:], block_rows[0]] if block_rows else [None] * len(pieces)
        fetching = NoFetch() if arrays is None else Fetch(
            self.transport, pieces, self.row_format.encode(arrays, array_kinds), phase)
        with Push(self.transport, d_arrays, self._depth, phase) as push, fetching as fetched:
            for piece, rows in zip(pieces, rows_of_pieces, strict=True):
                buffer, d_rows = push.gradients(piece)
                with self._span(piece.block, phase):
                    arrived = fetched.take(piece) if rows is None else rows
                    on_block(piece.block, self._rows(piece, arrived, local, array_kinds), d_rows)
                del arrived
                fetched.release(piece)
                push.start(piece, buffer, d_rows)
                del buffer, d_rows

    def _rows(self, piece: Piece, rows: Any, local: Any, array_kinds: tuple[str, ...]) -> Any:
        """Return the source rows of `piece` as operators read them: `local`, this rank's own rows, or the rows received from peers,
        `rows`, decoded from the format of messages. `array_kinds` has the kind of each array, "rows" or "scores".
        """
        return local if piece.own or rows is None else self.row_format.decode(rows, local, array_kinds)

    def _backward_pieces(self, fetches: bool) -> tuple[Piece, ...]:
        """Return the pieces of a backward pass in order. The piece of this rank's own rows comes last, computed while the last
        gradients travel. If a thread fetches peers' rows again (`fetches`), the own piece is halved, and its first half comes
        first, computed while the first rows travel.
        """
        *peer_tiles, own_tile = self.plan.backward
        if not (fetches and self.transport.prefetch and peer_tiles):
            return self.plan.backward
        block: Any = own_tile.block
        first, last = block.halves
        return own_tile._replace(block=first), *peer_tiles, own_tile._replace(block=last)

    @property
    def _depth(self):
        """Number of gradient messages that may be in transit while the next block is computed. If a piece has rows of several
        peers, this is the number of its peers. If not, this is the number of pieces that have rows of the same peer, or 0 without
        prefetch.
        """
        first = self.plan.backward[0]
        if len(first.arrivals) > 1:
            return len(first.arrivals)
        return first.share.denominator if self.transport.prefetch and first.arrivals else 0

    def _span(self, block, phase):
        return self.transport.profile.span("block", source=block.source, edges=block.n_edges, phase=phase)


BACKWARD = "push", "fetch"
"""Values of the option `backward`."""


class Options(NamedTuple):
    """Options of a graph's exchange of rows between ranks: mode, prefetch depth, kind of backward pass, dtype of rows, and number
    of peers at once.

    Attributes
    ----------
    mode : {"sar", "sa", "oneshot", "broadcast"}, or a Mode
        Order in which a layer's remote rows are fetched and used; see `schedule.modes`.
    prefetch : int, optional
        Number of peers whose rows a thread fetches ahead. With 0 rows are fetched when they are used. By default 1 if
        fetching ahead can hide transfers, else 0; see `comm.launch.default_prefetch`.
    backward : {"push", "fetch"}, optional
        How gradients of source rows reach their owners. With "push" the owner of the destinations computes the
        gradients and sends them. With "fetch" the owner of the sources fetches the gradients of the destinations and
        computes the gradients over the reversed edges, which take 4 bytes per edge, or none if the structure is
        symmetric. "fetch" applies to sums of `copy_src` and `linear` and to `attend`; gradients of other messages are
        pushed. By default gradients are pushed, except that mode "broadcast" fetches for sums of `copy_src` and
        `linear`, and narrow rows fetch for every message that supports it.
    row_dtype : {"float32", "bfloat16", "int8"}
        Dtype in which rows that edges gather are stored and sent. Those are the float32 source rows of `copy_src`,
        `linear`, `mul_edge` and `attend` (its z), and the gradients of their outputs. The narrow types round each value
        once, to nearest, ties to even; "int8" rounds to multiples of a power of two that each row has. Ranks send int8
        rows as integers, and kernels read them as float32. Sums and pushed gradients stay float32. Other messages are
        refused.
    peers_at_once : int, optional
        Number of peers whose rows are fetched and used at once, 1 .. N - 1; by default 1, and N - 1 in mode "oneshot".
        A rank holds the rows of (1 + prefetch) * peers_at_once peers. With many ranks, more peers at once wait less.
        Not for mode "broadcast".

    Examples
    --------
    >>> from sarlite import Graph
    >>> from sarlite.comm import threads
    >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0])
    >>> threads.run(2, lambda comm: graph.shard(comm, "contiguous", mode="oneshot", prefetch=0).n_halo)
    [1, 1]
    """

    mode: str | Mode = "sar"
    prefetch: int | None = None
    backward: str | None = None
    row_dtype: str = "float32"
    peers_at_once: int | None = None

    def check(self, comm: Communicator) -> None:
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
            if value is None:
                continue
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
                return ConfigError(f"{name} is {value!r}, but must be a whole number, {least} or more")
        if self.peers_at_once is not None and not hasattr(MODES.get(self.mode, self.mode), "peers_at_once"):
            return ConfigError(f"peers_at_once is {self.peers_at_once}, but mode {self.mode} fetches the rows of one rank at a time")
        return None

    def resolved(self, comm: Communicator, n_threads: int) -> "Options":
        """Return the options with a number for `prefetch`; None is replaced by a choice for kernels of `n_threads` threads.

        Collective if `prefetch` is None.
        """
        return self if self.prefetch is not None else self._replace(prefetch=default_prefetch(comm, n_threads))

    @property
    def reverses(self):
        """True if several ranks compute the gradients of linear messages over the reversed edges.

        This is the default with narrow rows. Every rank that fetches a row of a gradient gets the same rounded row.
        A pushed sum must not be rounded, because the edges that the sum adds up depend on the division of the graph.
        """
        return self.reverses_attention or (self.mode_value.reverses if self.backward is None else False)

    @property
    def reverses_attention(self):
        """True if the gradients of attention are computed over the reversed edges."""
        return self.row_dtype != "float32" if self.backward is None else self.backward == "fetch"

    @property
    def compared(self) -> "Options":
        """Copy of the options that ranks can compare for equality: a user's mode is replaced by its class's name.

        The objects of a mode that a user wrote differ between ranks.
        """
        is_library_mode = isinstance(self.mode, (str, *LIBRARY_MODES))
        return self if is_library_mode else self._replace(mode=type(self.mode).__qualname__)

    @property
    def separate(self):
        """True if each relation fetches its source rows itself, even if several relations have the same source rows."""
        return self.backward == "fetch"

    @property
    def mode_value(self) -> Mode:
        """The option `mode` as a `Mode` object; if the option `peers_at_once` is set, the mode takes that number of peers at once."""
        mode = MODES[self.mode] if isinstance(self.mode, str) else self.mode
        return mode if self.peers_at_once is None else replace(cast(Sequential, mode), peers_at_once=self.peers_at_once)


def make(comm: Communicator, halo_needs: needs.Needs, options: Options, profile: Profile, dst_ids: Array | None = None) -> Schedule:
    """Return the Schedule of a graph for its halo rows `halo_needs`, by `options`. `dst_ids` are the global ids of this rank's
    destination rows; None for several relations, which have no reversed edges. Collective.

    Parameters
    ----------
    comm : Communicator
    halo_needs : Needs
        Result of `needs.find` for one set of edges, or for several relations, whose gradients are then always pushed.
    options : Options
    profile : Profile
    dst_ids : (n_dst,) int64, optional
        Global ids of this rank's destination rows; None for relations.

    Returns
    -------
    Schedule
    """
    mode, transport = options.mode_value, Transport(comm, options.resolved(comm, kernels.threads()).prefetch, profile)
    plan = plan_of(comm, mode, halo_needs, transport.prefetch)
    schedule = Schedule(plan, transport, mode, row_format=ROW_FORMATS[options.row_dtype])
    if comm.size == 1 or dst_ids is None or not options.reverses:
        return schedule
    reverse = _reversed(comm, halo_needs, dst_ids, schedule)
    return schedule._replace(reverse=reverse, reverses_attention=options.reverses_attention)


def _reversed(comm: Communicator, halo_needs: needs.Needs, dst_ids: Array, schedule: Schedule) -> Schedule:
    """Return the schedule of the reversed edges, with the same mode and transport as `schedule`. If the edges are symmetric and
    source and destination rows have the same ids, return `schedule`, which serves both directions. `dst_ids` are the ids of this
    rank's destination rows. Collective.
    """
    (cut,), n_src = halo_needs.cuts, schedule.plan.n_src
    same_ids = all(comm.allgather(np.array_equal(dst_ids, halo_needs.src_ids[comm.rank])))
    if same_ids and is_symmetric(comm, cut.edges, n_src):
        return schedule
    reversed_needs = needs.find(comm, [out_edges(comm, cut.edges, n_src)], dst_ids, cut.edges.n_dst)
    return schedule._replace(plan=plan_of(comm, schedule.mode, reversed_needs, schedule.transport.prefetch))

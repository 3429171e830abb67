"""Check of a schedule mode's plan: each edge is in one forward and one backward piece, and each piece's source rows have arrived.

Without the check, a plan that leaves out a peer would train on fewer edges and raise no error. The library's own modes
are checked by its tests, and a user's mode is checked for each graph.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from sarlite.comm import Communicator
from sarlite.errors import ConfigError, raise_together
from sarlite.schedule.modes import MODES, Mode
from sarlite.schedule.needs import Needs
from sarlite.schedule.pieces import Arrival, Piece, Plan
from sarlite.structure.block import Bundle
from sarlite.types import Array

LIBRARY_MODES = tuple(type(mode) for mode in MODES.values())
"""Classes of the library's modes, whose plans are not checked for each graph."""


def plan_of(comm: Communicator, mode: Mode, needs: Needs, prefetch: int) -> Plan:
    """Return the plan of the schedule mode `mode` for the exchange of the rows `needs`, with `prefetch` peers fetched ahead. Check the
    plan if the mode is a user's own class. Collective.
    """
    plan = mode.plan(needs, prefetch)
    if not isinstance(mode, LIBRARY_MODES):
        check(comm, plan, needs, mode)
    return plan


def check(comm: Communicator, plan: Plan, needs: Needs, mode: Mode) -> None:
    """Raise a ConfigError on every rank unless the plans of all ranks fit together, and each rank's `plan` computes every edge of
    `needs` once. The error names `mode`, the plan's author. Collective.

    Requirements:

    - The pieces of each direction take each in-edge of this rank exactly once.
    - For each arrival, the rows that the peer sends are the columns of the block, in the same order.
    - The last backward piece, and no other, has this rank's own rows.
    - If the mode keeps rows, the backward blocks are the forward blocks.

    Notes
    -----
    Memory: 64 bytes for each edge. Communication: 8 bytes for each halo row.
    """
    problem = next(_problems(plan, needs, mode), None)
    raise_together(comm, None if problem is None else _error(mode, needs, problem))
    for direction, pieces in (("forward", plan.forward), ("backward", plan.backward)):
        problem = _exchange_problem(comm, pieces, needs)
        raise_together(comm, None if problem is None else _error(mode, needs, f"{direction}: {problem}"))


def _error(mode, needs, problem):
    return ConfigError(f"mode {mode}: the plan of rank {needs.rank} of {needs.size} is wrong: {problem}", "mode")


def _problems(plan: Plan, needs: Needs, mode: Mode) -> Iterator[str]:
    """Yield a text for each error in this rank's `plan` by `mode` that can be found without communication; `needs` has the edges and
    rows that the plan must cover.
    """
    for direction, pieces in (("forward", plan.forward), ("backward", plan.backward)):
        yield from (f"{direction}: {text}" for text in _edge_problems(pieces, needs))
        yield from (f"{direction}: {text}" for text in _column_problems(pieces, needs))
    if any(arrival.target is None for piece in plan.backward for arrival in piece.arrivals):
        yield "backward: a piece is a broadcast, but backward pieces exchange rows between two peers"
    if not plan.backward[-1].own or any(piece.own for piece in plan.backward[:-1]):
        yield "backward: the piece of the rank's own rows is not the last one, and the only one"
    first, *others = sorted((piece.block for piece in plan.forward if piece.block is not None), key=lambda b: b.offset)
    if mode.keeps_rows and [*map(id, (*others, first))] != [id(piece.block) for piece in plan.backward]:
        yield "the mode keeps rows, but its backward blocks are not the forward blocks with the own one last"


def _edge_problems(pieces: Iterable[Piece], needs: Needs) -> Iterator[str]:
    """Yield an error text for each set of edges (a relation, or the whole graph) of `needs` with an edge that is not in exactly one of
    `pieces`.
    """
    blocks = [piece.block for piece in pieces if piece.block is not None]
    for k, cut in enumerate(needs.cuts):
        dst = np.repeat(np.arange(cut.edges.n_dst), np.diff(cut.edges.indptr))
        expected = [(dst[where], ids[columns]) for where, ids, columns in zip(cut.where, needs.src_ids, cut.columns)]
        edge_sets = [block[k] if isinstance(block, Bundle) else block for block in blocks]
        taken = [(edges.dst, edges.src_ids[edges.indices]) for edges in edge_sets]
        edges, counts = _difference(expected, taken)
        if len(edges):
            n_missing, n_more = int(counts[counts > 0].sum()), -int(counts[counts < 0].sum())
            yield (f"{n_missing:,} of {len(dst):,} edges are in no piece, and {n_more:,} are taken once too often; the "
                   f"first is from node {edges[0, 1]} to row {edges[0, 0]}")


def _difference(expected, taken):
    """Compare two lists of edges, `expected` and `taken`, whose items are (destination rows, source ids). Return (edges, counts):
    the edges (row, id) that do not occur equally often in both, (k, 2), and how much more often each is in `expected`, (k,) int64.
    """
    n = sum(len(dst) for dst, _ in expected)
    pairs = np.concatenate([np.empty((0, 2), np.int64), *(np.stack(each, 1).astype(np.int64)
                                                          for each in (*expected, *taken))])
    edges, which = np.unique(pairs, axis=0, return_inverse=True)
    counts = np.bincount(which.reshape(-1), np.where(np.arange(len(pairs)) < n, 1, -1), len(edges)).astype(np.int64)
    return edges[counts != 0], counts[counts != 0]


def _column_problems(pieces: Iterable[Piece], needs: Needs) -> Iterator[str]:
    """Yield an error text for each piece that uses both this rank's and peers' rows, and for each piece with more or fewer rows
    than its block has columns. `needs` has the number of this rank's rows.
    """
    for k, piece in enumerate(pieces):
        if piece.own and any(arrival.n_columns for arrival in piece.arrivals):
            yield f"piece {k}: columns are the rank's own rows and rows of peers: they are two pieces"
        n = (needs.n_src if piece.own and piece.block is not None else 0) + sum(a.n_columns for a in piece.arrivals)
        if piece.block is not None and piece.block.n_src != n:
            yield f"piece {k}: the block has {piece.block.n_src:,} columns, but {n:,} rows are there for it"


def _exchange_problem(comm: Communicator, pieces: Iterable[Piece], needs: Needs) -> str | None:
    """Return the text of the first error in the rows that ranks send each other for `pieces`: rows whose global ids are not the ids
    of the blocks' columns. Return None without an error. `needs` has the rows that ranks need. Collective.
    """
    pieces = list(pieces)
    arrivals = [arrival for piece in pieces for arrival in piece.arrivals]
    order = [(arrival.source, arrival.n_rows or arrival.n_send) for arrival in arrivals if arrival.target is None]
    if len(set(map(tuple, comm.allgather(order)))) > 1:
        return "ranks broadcast in different orders, or other numbers of rows"
    local_ids = needs.src_ids[needs.rank]
    to_peers: list[list[Array]] = [[np.empty(0, np.int64)] for _ in range(needs.size)]
    for arrival in arrivals:
        if arrival.target is not None:
            to_peers[arrival.target].append(np.concatenate([[arrival.n_send], local_ids[arrival.send_rows]]))
    received = comm.alltoall([np.concatenate(each).astype(np.int64) for each in to_peers])
    problem = None
    for piece in pieces:
        start = needs.n_src if piece.own else 0
        for arrival in piece.arrivals:
            ids = _broadcast(comm, arrival, local_ids) if arrival.target is None else _next(received, arrival.source)
            wanted = None if piece.block is None else piece.block.src_ids[start : start + arrival.n_columns]
            problem = problem or _arrival_problem(arrival, needs.rank, ids, wanted)
            start += arrival.n_columns
    if problem is None and any(len(rest) for rest in received):
        return "a peer sends rows that no piece takes"
    return problem


def _broadcast(comm: Communicator, arrival: Arrival, local_ids: Array) -> Array:
    """Broadcast and return the global ids, (n,) int64, of the rows that `arrival` (a broadcast of one rank's rows) sends. The
    sender takes the ids from `local_ids`, the ids of its rows. Collective.
    """
    sends = arrival.source == comm.rank
    ids = local_ids[arrival.send_rows].astype(np.int64) if sends else np.empty(arrival.n_rows, np.int64)
    return comm.broadcast(ids, arrival.source)


def _next(received: list[Array], source: int) -> Array | None:
    """Remove the next message of rank `source` from received[source] and return its global ids; None if no message is left."""
    if not len(received[source]):
        return None
    n = int(received[source][0])
    message, received[source] = received[source][1 : 1 + n], received[source][1 + n :]
    return message


def _arrival_problem(arrival: Arrival, rank: int, ids: Array | None, wanted: Array | None) -> str | None:
    """Return an error text unless the rows that `arrival` brings to this `rank`, with global ids `ids` (None: nothing was sent),
    are the rows of its block's columns, `wanted`, in the same order. `wanted` is None if the rows belong to no block. Return None
    if all is right.

    Parameters
    ----------
    arrival : Arrival
    rank : int
        This rank.
    ids : (n_rows,) int64, or None
        Global ids of the rows that the peer sends; None if the peer sends nothing.
    wanted : (n_columns,) int64, or None
        Global ids of the block's columns; None without a block.
    """
    if arrival.source == rank:
        return None
    if ids is None or len(ids) != arrival.n_rows:
        n = "nothing" if ids is None else f"{len(ids):,} rows"
        return f"rank {arrival.source} sends {n} where {arrival.n_rows:,} rows are to arrive"
    used = ids if arrival.needed is None else ids[arrival.needed]
    if wanted is not None and not np.array_equal(used, wanted):
        return f"the rows that arrive from rank {arrival.source} are not the block's columns, or in another order"
    return None

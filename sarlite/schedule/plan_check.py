"""A check of a mode's plan: each edge once in each direction, and the rows that arrive are those that a block takes.

A plan that leaves out a peer would train, and on fewer edges. The library's own modes are checked in its tests, and a
mode of the user's at each graph.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, raise_together
from sarlite.schedule.modes import MODES, Mode
from sarlite.schedule.needs import Needs
from sarlite.schedule.pieces import Arrival, Piece, Plan
from sarlite.structure.block import Bundle
from sarlite.types import Array

OWN = tuple(type(mode) for mode in MODES.values())
"""Classes of the library's modes, which are not checked at each graph."""


def plan_of(comm: Any, mode: Mode, needs: Needs, prefetch: int) -> Plan:
    """Return the plan that a mode makes, once it is checked if the mode is not one of the library's. Collective."""
    plan = mode.plan(needs, prefetch)
    if not isinstance(mode, OWN):
        check(comm, plan, needs, mode)
    return plan


def check(comm: Any, plan: Plan, needs: Needs, mode: Mode) -> None:
    """Raise a ConfigError on every rank unless the plan takes each edge once in each direction. Collective.

    Also required: the rows that a rank sends for a piece are the columns of the block that the peer takes them for, in
    the same order on both sides; a piece of the rank's own rows comes last in backward; and if the mode keeps rows, the
    backward blocks are the forward blocks.

    Notes
    -----
    Memory: 64 bytes an edge. Sends 8 bytes a row that peers need.
    """
    problem = next(_problems(plan, needs, mode), None)
    raise_together(comm, None if problem is None else _error(mode, needs, problem))
    for direction, pieces in (("forward", plan.forward), ("backward", plan.backward)):
        problem = _exchange_problem(comm, pieces, needs)
        raise_together(comm, None if problem is None else _error(mode, needs, f"{direction}: {problem}"))


def _error(mode, needs, problem):
    return ConfigError(f"mode {mode}: the plan of rank {needs.rank} of {needs.size} is wrong: {problem}", "mode")


def _problems(plan: Plan, needs: Needs, mode: Mode) -> Iterator[str]:
    """Yield what this rank alone can find."""
    for direction, pieces in (("forward", plan.forward), ("backward", plan.backward)):
        yield from (f"{direction}: {text}" for text in _of_edges(pieces, needs))
        yield from (f"{direction}: {text}" for text in _of_columns(pieces, needs))
    if any(arrival.target is None for piece in plan.backward for arrival in piece.arrivals):
        yield "backward: a piece is a broadcast, but backward pieces exchange rows between two peers"
    if not plan.backward[-1].own or any(piece.own for piece in plan.backward[:-1]):
        yield "backward: the piece of the rank's own rows is not the last one, and the only one"
    first, *others = sorted((piece.block for piece in plan.forward if piece.block is not None), key=lambda b: b.offset)
    if mode.keeps_rows and [*map(id, (*others, first))] != [id(piece.block) for piece in plan.backward]:
        yield "the mode keeps rows, but its backward blocks are not the forward blocks with the own one last"


def _of_edges(pieces: Iterable[Piece], needs: Needs) -> Iterator[str]:
    """Yield a text for each set of edges that the pieces do not take exactly once."""
    blocks = [piece.block for piece in pieces if piece.block is not None]
    for k, cut in enumerate(needs.cuts):
        dst = np.repeat(np.arange(cut.edges.n_dst), np.diff(cut.edges.indptr))
        expected = [(dst[where], ids[columns]) for where, ids, columns in zip(cut.where, needs.src_ids, cut.columns)]
        own = [block[k] if isinstance(block, Bundle) else block for block in blocks]
        found = [(block.dst, block.src_ids[block.indices]) for block in own]
        edges, counts = _difference(expected, found)
        if len(edges):
            n_missing, n_more = int(counts[counts > 0].sum()), -int(counts[counts < 0].sum())
            yield (f"{n_missing:,} of {len(dst):,} edges are in no piece, and {n_more:,} are taken once too often; the "
                   f"first is from node {edges[0, 1]} to row {edges[0, 0]}")


def _difference(expected, found):
    """Return the edges (row, id) that occur another number of times, and how many times more they are expected."""
    n = sum(len(dst) for dst, _ in expected)
    every = np.concatenate([np.empty((0, 2), np.int64), *(np.stack(each, 1).astype(np.int64)
                                                          for each in (*expected, *found))])
    edges, which = np.unique(every, axis=0, return_inverse=True)
    counts = np.bincount(which.reshape(-1), np.where(np.arange(len(every)) < n, 1, -1), len(edges)).astype(np.int64)
    return edges[counts != 0], counts[counts != 0]


def _of_columns(pieces: Iterable[Piece], needs: Needs) -> Iterator[str]:
    """Yield a text for each block that has other columns than the rows of its piece."""
    for at, piece in enumerate(pieces):
        n = (needs.n_src if piece.own and piece.block is not None else 0) + sum(a.n_columns for a in piece.arrivals)
        if piece.block is not None and piece.block.n_src != n:
            yield f"piece {at}: the block has {piece.block.n_src:,} columns, but {n:,} rows are there for it"


def _exchange_problem(comm: Any, pieces: Iterable[Piece], needs: Needs) -> str | None:
    """Return the first error in the rows that ranks send each other; None if there is none. Collective."""
    pieces = list(pieces)
    arrivals = [arrival for piece in pieces for arrival in piece.arrivals]
    order = [(arrival.source, arrival.n_rows or arrival.n_send) for arrival in arrivals if arrival.target is None]
    if len(set(map(tuple, comm.allgather(order)))) > 1:
        return "ranks broadcast in different orders, or other numbers of rows"
    own = needs.src_ids[needs.rank]
    to_peers: list[list[Array]] = [[np.empty(0, np.int64)] for _ in range(needs.size)]
    for arrival in arrivals:
        if arrival.target is not None:
            to_peers[arrival.target].append(np.concatenate([[arrival.n_send], own[arrival.send_rows]]))
    received = comm.alltoall([np.concatenate(each).astype(np.int64) for each in to_peers])
    problem = None
    for piece in pieces:
        at = needs.n_src if piece.own else 0
        for arrival in piece.arrivals:
            rows = _broadcast(comm, arrival, own) if arrival.target is None else _next(received, arrival.source)
            wanted = None if piece.block is None else piece.block.src_ids[at : at + arrival.n_columns]
            problem = problem or _arrival_problem(arrival, needs.rank, rows, wanted)
            at += arrival.n_columns
    if problem is None and any(len(rest) for rest in received):
        return "a peer sends rows that no piece takes"
    return problem


def _broadcast(comm: Any, arrival: Arrival, own: Array) -> Array:
    """Return the ids of the rows of a broadcast. Collective."""
    here = arrival.source == comm.rank
    ids = own[arrival.send_rows].astype(np.int64) if here else np.empty(arrival.n_rows, np.int64)
    found: Array = comm.broadcast(ids, arrival.source)
    return found


def _next(received: list[Array], source: int) -> Array | None:
    """Return the ids of the next message from a peer, and take them out; None if there is none."""
    if not len(received[source]):
        return None
    n = int(received[source][0])
    message, received[source] = received[source][1 : 1 + n], received[source][1 + n :]
    return message


def _arrival_problem(arrival: Arrival, rank: int, rows: Array | None, wanted: Array | None) -> str | None:
    """Return the error in one arrival whose peer sends the rows of ids `rows`; None if there is none."""
    if arrival.source == rank:
        return None
    if rows is None or len(rows) != arrival.n_rows:
        n = "nothing" if rows is None else f"{len(rows):,} rows"
        return f"rank {arrival.source} sends {n} where {arrival.n_rows:,} rows are to arrive"
    used = rows if arrival.needed is None else rows[arrival.needed]
    if wanted is not None and not np.array_equal(used, wanted):
        return f"the rows that arrive from rank {arrival.source} are not the block's columns, or in another order"
    return None

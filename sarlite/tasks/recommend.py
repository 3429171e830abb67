"""The likeliest destinations of nodes, and the ranks of links among all nodes."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sarlite.comm.routing import ask
from sarlite.errors import DataError, raise_together
from sarlite.structure.part_edges_csr import among, owners
from sarlite.tape import Tensor
from sarlite.tasks.link_edges import Ends
from sarlite.types import Array

NOBODY = -1
"""Id in place of a destination if a node has fewer than the wanted number. The score in that place is -inf."""


def top(graph: Any, decoder: Callable[[Tensor, Tensor], Tensor], h: Array, rows: Array, destinations: Ends,
        known: Array, k: int, n_bytes: int = 1 << 25) -> tuple[Array, Array]:
    """Return the k likeliest destinations of some of this rank's nodes, likeliest first. Collective.

    Destinations with equal scores are ordered by id.

    Parameters
    ----------
    graph : Graph or NodeType
    decoder : callable
        (heads (n, 1, width), tails (1, c, width)) -> scores (n, c), called while the tape does not record.
    h : (n_dst, width) array
        Encoder rows of this rank's nodes.
    rows : (q,) int64
        Local rows of the nodes whose destinations are wanted.
    destinations : Ends
        The nodes that links may lead to.
    known : (m,) int64
        local row * n_nodes + id of the pairs to leave out, ascending. A node is never its own destination.
    k : int
    n_bytes : int
        Approximate memory beyond the result, which holds scores and a piece of another rank's rows.

    Returns
    -------
    ids, scores : (q, k) int64, (q, k) array of h's dtype
        Ids are counted among `destinations`.

    Notes
    -----
    Each rank's rows are broadcast once, in pieces. Work: q x n_nodes scores.
    """
    found = np.full((len(rows), k), NOBODY, np.int64), np.full((len(rows), k), -np.inf, h.dtype)
    for ids, some, scores in _scored(graph, decoder, h, rows, destinations, n_bytes):
        scores[_left_out(graph, rows[some, None], ids, known)] = -np.inf
        found[0][some], found[1][some] = _best(found[0][some], found[1][some], ids, scores)
    return np.where(found[0] == NOBODY, NOBODY, found[0] - destinations.first), found[1]


def ranks(graph: Any, decoder: Callable[[Tensor, Tensor], Tensor], h: Array, heads: Array, tails: Array,
          destinations: Ends, known: Array, n_bytes: int = 1 << 25) -> Array:
    """Return the scores of links and the ranks of their destinations among all nodes, (n, 2) float64. Collective.

    The rank counts all nodes but the link's source and the known destinations. A tie counts half.

    Parameters
    ----------
    graph, decoder, h, n_bytes
        As for `top`.
    heads, tails : (n,) int64
        Row numbers, counted through the nodes of all ranks. The heads are this rank's nodes.
    destinations : Ends
        As for `top`.
    known : (m,) int64
        As for `top`: pairs that do not count, except the links themselves.

    Raises
    ------
    DataError
        On every rank: a tail is none of the destinations.

    Notes
    -----
    Each rank's rows are broadcast twice, in pieces. Work: 2 x n x n_nodes scores.
    """
    comm, ids = graph.comm, np.asarray(graph.dst_ids)
    starts = np.concatenate([[0], np.cumsum(comm.allgather(len(h)))])
    heads = heads - starts[comm.rank]
    to = ask(comm, owners(tails, starts), tails, lambda asked: ids[asked - starts[comm.rank]])[:, None]
    wrong = to[(to < destinations.first) | (to >= destinations.first + destinations.n)]
    raise_together(comm, DataError(f"links: node {wrong[0]} is none of the nodes {destinations.first} .. "
                                   f"{destinations.first + destinations.n - 1} that links may lead to")
                   if len(wrong) else None)
    own, higher = np.empty((len(heads), 1), h.dtype), np.zeros(len(heads))
    # as the others are, so that equal rows tie
    for of_nodes, some, scores in _scored(graph, decoder, h, heads, destinations, n_bytes):
        rows, columns = np.nonzero(to[some] == of_nodes)
        own[some][rows, 0] = scores[rows, columns]
    for of_nodes, some, scores in _scored(graph, decoder, h, heads, destinations, n_bytes):
        counts = ~(_left_out(graph, heads[some, None], of_nodes, known) | (to[some] == of_nodes))
        higher[some] += np.sum(counts & ~(scores <= own[some]), 1) + 0.5 * np.sum(counts & (scores == own[some]), 1)
    return np.concatenate([own.astype(np.float64), 1 + higher[:, None]], 1)


def _scored(graph, decoder, h, rows, of, n_bytes):
    """Yield the ids of some destinations, a slice of `rows`, and the scores of both, piece by piece. Collective."""
    for ids, tails in _pieces(graph, h, of, max(n_bytes // 8 // max(h.shape[1] * h.itemsize, 1), 1)):
        at_once = max(n_bytes // max(tails.size * h.itemsize, 1), 1)
        for at in range(0, len(rows), at_once):
            some = slice(at, at + at_once)
            scores = np.array(decoder(Tensor(h[rows[some], None], constant=True),
                                      Tensor(tails[None], constant=True)).data)
            yield ids, some, scores


def _left_out(graph, own, ids, known):
    """Return True for the pairs of local rows (q, 1) and ids (c,) that are known, or one node, (q, c) bools."""
    return among(known, own * graph.n_nodes + ids) | (graph.dst_ids[own] == ids)


def _pieces(graph: Any, h: Array, of: Ends, n: int) -> Iterator[tuple[Array, Array]]:
    """Yield ids and encoder rows of all ranks' nodes in `of`, at most n at a time. Collective."""
    comm, ids = graph.comm, np.asarray(graph.dst_ids, np.int64)
    here = np.flatnonzero((ids >= of.first) & (ids < of.first + of.n))
    for rank, size in enumerate(comm.allgather(len(here))):
        for at in range(0, size, n):
            own, shape = here[at : at + n] if rank == comm.rank else None, min(n, size - at)
            some = np.empty(shape, np.int64) if own is None else ids[own]
            tails = np.empty((shape, h.shape[1]), h.dtype) if own is None else h[own]
            yield comm.broadcast(some, rank), comm.broadcast(tails, rank)


def _best(ids, scores, more_ids, more_scores):
    """Return the k best ids and scores of each row, of two lists of candidates."""
    k = ids.shape[1]
    more_ids = np.where(more_scores == -np.inf, NOBODY, more_ids)
    ids, scores = np.concatenate([ids, more_ids], 1), np.concatenate([scores, more_scores], 1)
    order = np.lexsort((ids, -scores))[:, :k]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)

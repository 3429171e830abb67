"""The likeliest destinations of nodes, and the ranks of links among all destinations."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sarlite.comm.routing import ask
from sarlite.errors import DataError, raise_together
from sarlite.numerics.placement import REPLICATED
from sarlite.structure.part_edges_csr import owners
from sarlite.tape import Tensor
from sarlite.tasks.link_edges import Ends
from sarlite.types import Array

NOBODY = -1
"""Id in place of a destination if a node has fewer than the wanted number. The score in that place is -inf."""
N_BYTES = 1 << 25
"""Memory that a block of scores, or a piece of another rank's rows, takes at most."""
Decoder = Callable[[Tensor, Tensor], Tensor]


def top(graph: Any, decoder: Decoder, h: Array, rows: Array, destinations: Ends, known: Array, k: int,
        n_bytes: int = N_BYTES) -> tuple[Array, Array]:
    """Return the k likeliest destinations of some of this rank's nodes, likeliest first. Collective.

    Destinations with equal scores are ordered by id.

    Parameters
    ----------
    graph : Graph or NodeType
    decoder : callable
        (heads (n, 1, width), tails (1, c, width)) -> scores (n, c), called while the tape does not record. A method
        `cross`, (heads (n, width), tails (c, width)) -> scores (n, c), is called in its place if there is one.
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
        scores[_left_out(graph, rows[some], _Columns(ids), destinations, known)] = -np.inf
        found[0][some], found[1][some] = _best(found[0][some], found[1][some], ids, scores)
    return np.where(found[0] == NOBODY, NOBODY, found[0] - destinations.first), found[1]


def ranks(graph: Any, decoder: Decoder, h: Array, heads: Array, tails: Array, destinations: Ends, known: Array,
          n_bytes: int = N_BYTES) -> Array:
    """Return the scores of links and the ranks of their destinations, (n, 2) float64, as `rank_links`. Collective.

    Parameters
    ----------
    graph, decoder, h, destinations, known, n_bytes
        As for `rank_links`.
    heads, tails : (n,) int64
        Row numbers, counted through the nodes of all ranks. The heads are this rank's nodes.

    Raises
    ------
    DataError
        On every rank: a tail is none of the destinations.
    """
    comm, ids = graph.comm, np.asarray(graph.dst_ids)
    starts = np.concatenate([[0], np.cumsum(comm.allgather(len(h)))])
    to = ask(comm, owners(tails, starts), tails, lambda asked: ids[asked - starts[comm.rank]])
    wrong = to[(to < destinations.first) | (to >= destinations.first + destinations.n)]
    raise_together(comm, DataError(f"links: node {wrong[0]} is none of the nodes {destinations.first} .. "
                                   f"{destinations.first + destinations.n - 1} that links may lead to")
                   if len(wrong) else None)
    return rank_links(graph, decoder, h, heads - starts[comm.rank], to, destinations, known, n_bytes=n_bytes)


def rank_links(graph: Any, decoder: Decoder, h: Array, heads: Array, tails: Array, destinations: Ends, known: Array,
               levels: tuple[Array, Array] | None = None, n_bytes: int = N_BYTES) -> Array:
    """Return the scores of links and the ranks of their destinations, (n, 2) float64. Collective.

    A rank is 1 and the number of destinations with a higher score, where a tie counts half. The link's source and the
    known destinations do not count. A score that is NaN counts as higher.

    Parameters
    ----------
    graph, decoder, h, destinations, n_bytes
        As for `top`.
    heads, tails : (n,) int64
        Local rows of the sources, and ids of the destinations.
    known : (m,) int64
        As for `top`: pairs that do not count, except the link itself.
    levels : ((n,) integers, (m,) integers), optional
        Levels of the links and of the known pairs. A pair is left out for links of its level or a higher one; by
        default all pairs are left out.

    Notes
    -----
    Each rank's rows are broadcast twice, in pieces. Work: 2 x n_sources x n_destinations scores, and n x n_destinations
    comparisons.
    """
    of_links, of_known = levels or (np.zeros(len(heads), np.int64), np.zeros(len(known), np.int64))
    order = np.argsort(heads, kind="stable")
    sources, starts = np.unique(heads[order], return_index=True)
    starts = np.append(starts, len(order))
    link_scores, higher = np.empty(len(heads), h.dtype), np.zeros(len(heads))
    # scored as the others are, so that equal rows tie
    for ids, some, scores in _scored(graph, decoder, h, sources, destinations, n_bytes):
        links, rows = _of_sources(order, starts, some)
        columns, here = _Columns(ids)(tails[links])
        link_scores[links[here]] = scores[rows[here], columns[here]]
    for ids, some, scores in _scored(graph, decoder, h, sources, destinations, n_bytes):
        links, rows = _of_sources(order, starts, some)
        at_once = max(n_bytes // max(scores.shape[1] * 8, 1), 1)
        for level in np.unique(of_links[links]).tolist():
            counted, column_of = scores.copy(), _Columns(ids)
            counted[_left_out(graph, sources[some], column_of, destinations, known[of_known <= level])] = -np.inf
            of_level = np.flatnonzero(of_links[links] == level)
            for at in range(0, len(of_level), at_once):
                part = of_level[at : at + at_once]
                higher[links[part]] += _n_higher(counted, rows[part], link_scores[links[part]],
                                                 *column_of(tails[links[part]]))
    return np.stack([link_scores.astype(np.float64), 1 + higher], 1)


def _n_higher(scores, rows, link_scores, columns, here):
    """Return how many scores of the rows are higher than the links', (n,); ties count half, a link's own column nothing."""
    others, limit = scores[rows], link_scores[:, None]
    higher = np.sum(~(others <= limit), 1) + 0.5 * np.sum(others == limit, 1)
    itself = np.where(here, others[np.arange(len(rows)), columns], -np.inf)[:, None]
    return higher - (~(itself <= limit) + 0.5 * (itself == limit))[:, 0]


def _of_sources(order, starts, some):
    """Return the links of the sources `some`, a slice, and the place of each link's source in the slice."""
    counts = np.diff(starts)[some]
    first = starts[min(some.start, len(starts) - 1)]
    return order[first : first + counts.sum()], np.repeat(np.arange(len(counts)), counts)


class _Columns:
    """Columns of a block of scores by the id of the destination."""

    def __init__(self, ids: Array) -> None:
        self._order = np.argsort(ids)
        self._ids = ids[self._order]

    def __call__(self, ids: Array) -> tuple[Array, Array]:
        """Return the column of each id, and True for the ids that have one."""
        places = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return self._order[places], self._ids[places] == ids


def _scored(graph, decoder, h, rows, of, n_bytes):
    """Yield the ids of some destinations, a slice of `rows`, and the scores of both, piece by piece. Collective."""
    cross = getattr(decoder, "cross", None)
    for ids, tails in _pieces(graph, h, of, max(n_bytes // 8 // max(h.shape[1] * h.itemsize, 1), 1)):
        at_once = max(n_bytes // max((len(tails) if cross else tails.size) * h.itemsize, 1), 1)
        for at in range(0, len(rows), at_once):
            some = slice(at, at + at_once)
            if cross:
                scores = cross(Tensor(h[rows[some]], constant=True), Tensor(tails, constant=True, placement=REPLICATED))
            else:
                scores = decoder(Tensor(h[rows[some], None], constant=True), Tensor(tails[None], constant=True))
            yield ids, some, np.array(scores.data)


def _left_out(graph, rows, columns, destinations, known):
    """Return the places in a block of scores of known pairs and of pairs of one node, two arrays of integers."""
    first = rows * graph.n_nodes + destinations.first
    starts, stops = (np.searchsorted(known, bound) for bound in (first, first + destinations.n))
    counts = stops - starts
    places = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
    at = np.concatenate([np.repeat(np.arange(len(rows)), counts), np.arange(len(rows))])
    column, here = columns(np.concatenate([known[places] % graph.n_nodes, graph.dst_ids[rows]]))
    return at[here], column[here]


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
    least = np.full((len(ids), 1), -np.inf) if more_scores.shape[1] <= k else \
        -np.partition(-more_scores, k - 1, axis=1)[:, k - 1 : k]
    old_rows, old = np.nonzero(ids != NOBODY)
    new_rows, new = np.nonzero((more_scores >= least) & (more_scores > -np.inf))
    rows = np.concatenate([old_rows, new_rows])
    some_ids = np.concatenate([ids[old_rows, old], more_ids[new]])
    some_scores = np.concatenate([scores[old_rows, old], more_scores[new_rows, new]])
    order = np.lexsort((some_ids, -some_scores, rows))
    rows = rows[order]
    places = np.arange(len(rows)) - np.searchsorted(rows, rows)
    rows, order, places = rows[places < k], order[places < k], places[places < k]
    best_ids, best_scores = np.full_like(ids, NOBODY), np.full_like(scores, -np.inf)
    best_ids[rows, places], best_scores[rows, places] = some_ids[order], some_scores[order]
    return best_ids, best_scores

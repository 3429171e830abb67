"""The best destinations of nodes by score, such as items for a user, and the positions of links among all destinations."""

from collections.abc import Callable, Iterator

import numpy as np

from sarlite.comm.routing import ask
from sarlite.errors import DataError, raise_together
from sarlite.graph.link_graph import NodeRows
from sarlite.numerics.placement import REPLICATED
from sarlite.structure.part_edges_csr import owners
from sarlite.tape import Tensor
from sarlite.tasks.link_edges import Ends
from sarlite.types import Array

NOBODY = -1
"""Id that fills a top list if a node has fewer than k destinations. The score beside it is -inf."""
N_BYTES = 1 << 25
"""Upper bound in bytes of a block of scores, and of a piece of another rank's rows."""
Decoder = Callable[[Tensor, Tensor], Tensor]
"""Function (rows of heads, rows of tails) -> scores; see `top`."""


def top(graph: NodeRows, decoder: Decoder, h: Array, rows: Array, destinations: Ends, excluded: Array, k: int,
        n_bytes: int = N_BYTES) -> tuple[Array, Array]:
    """Return the k nodes of the type `destinations` with the highest scores for each of the local nodes `rows`: (ids, scores), (q, k) each.
    `decoder` computes scores from the encoder's output rows `h` of all ranks. Pairs whose keys, (local row) * n_nodes + id, are in
    `excluded` are left out; `n_bytes` limits the memory. Collective.

    Destinations with equal scores are ordered by id.

    Parameters
    ----------
    graph : Graph or NodeType
    decoder : callable
        Function (heads (n, 1, width), tails (1, c, width)) -> scores (n, c), called while the tape does not record. If
        the decoder has a method `cross`, cross(heads (n, width), tails (c, width)) -> scores (n, c) is called instead.
    h : (n_dst, width) array
        Encoder rows of this rank's nodes.
    rows : (q,) int64
        Local rows of the nodes to find destinations for.
    destinations : Ends
        The nodes that links may lead to.
    excluded : (m,) int64
        Keys of the pairs to leave out, (local row of the node) * n_nodes + (id of the destination), ascending. A node is
        never its own destination.
    k : int
        Number of destinations for each node.
    n_bytes : int
        Approximate memory in bytes beside the result, for scores and a piece of another rank's rows.

    Returns
    -------
    ids : (q, k) int64
        Ids within `destinations`, or NOBODY.
    scores : (q, k) array of h's dtype

    Notes
    -----
    Each rank broadcasts its rows once, in pieces. Work: q x n_nodes scores.

    Examples
    --------
    >>> from sarlite import Graph
    >>> graph, h = Graph.from_edges([0, 1], [1, 2], 4), np.array([[1.0], [2.0], [3.0], [4.0]])
    >>> ids, scores = top(graph, lambda head, tail: (head * tail).sum(-1), h, np.array([0]), Ends(0, 4), np.array([3]), 2)
    >>> ids.tolist(), scores.tolist()
    ([[2, 1]], [[3.0, 2.0]])
    """
    best = np.full((len(rows), k), NOBODY, np.int64), np.full((len(rows), k), -np.inf, h.dtype)
    for ids, some, scores in _scored(graph, decoder, h, rows, destinations, n_bytes):
        scores[_excluded_entries(graph, rows[some], _Columns(ids), destinations, excluded)] = -np.inf
        best[0][some], best[1][some] = _merge_best(best[0][some], best[1][some], ids, scores)
    return np.where(best[0] == NOBODY, NOBODY, best[0] - destinations.first), best[1]


def ranks(graph: NodeRows, decoder: Decoder, h: Array, heads: Array, tails: Array, destinations: Ends, excluded: Array,
          n_bytes: int = N_BYTES) -> Array:
    """Return (score, rank) of each link from heads[i] to tails[i], (n, 2): its rank is its position by score among the links from heads[i]
    to all `destinations`. `heads` and `tails` count through the nodes of all MPI ranks, and `decoder` computes scores from the encoder's
    output rows `h`. Pairs in `excluded`, (head's local row) * n_nodes + (tail's id), do not count; `n_bytes` limits the memory. Collective.

    Parameters
    ----------
    graph, decoder, h, destinations, excluded, n_bytes
        See `rank_links`.
    heads, tails : (n,) int64
        Row numbers that count through the nodes of all ranks. The heads are nodes of this rank.

    Raises
    ------
    DataError
        On every rank: a tail is not among the destinations.
    """
    comm, ids = graph.comm, np.asarray(graph.dst_ids)
    starts = np.concatenate([[0], np.cumsum(comm.allgather(len(h)))])
    to = ask(comm, owners(tails, starts), tails, lambda asked: ids[asked - starts[comm.rank]])
    wrong = to[(to < destinations.first) | (to >= destinations.first + destinations.n)]
    raise_together(comm, DataError(f"links: node {wrong[0]} is not among the destinations {destinations.first} .. "
                                   f"{destinations.first + destinations.n - 1}")
                   if len(wrong) else None)
    return rank_links(graph, decoder, h, heads - starts[comm.rank], to, destinations, excluded, n_bytes=n_bytes)


def rank_links(graph: NodeRows, decoder: Decoder, h: Array, heads: Array, tails: Array, destinations: Ends, excluded: Array,
               levels: tuple[Array, Array] | None = None, n_bytes: int = N_BYTES) -> Array:
    """Return (score, rank by score among all `destinations`) of the links from local row heads[i] to id tails[i], (n, 2). `decoder`
    computes scores from the encoder's output rows `h`. Pairs with keys (local row) * n_nodes + id in `excluded` do not count. `levels` (an
    integer for each link, an integer for each pair) limits this: a pair is excluded only for links with at least the pair's integer.

    Collective. A position is 1 plus the number of destinations with a higher score; a tie adds a half. The source
    itself does not count. A NaN counts as a higher score.

    Parameters
    ----------
    graph, decoder, h, destinations, n_bytes
        See `top`.
    heads, tails : (n,) int64
        Local rows of the sources, and ids of the destinations.
    excluded : (m,) int64
        Keys of pairs that do not count, as for `top`. The link itself is never excluded.
    levels : ((n,) integers, (m,) integers), optional
        Levels of the links and of the excluded pairs. A pair is excluded for links of the same or a higher level; by
        default for all links.

    Notes
    -----
    Each rank broadcasts its rows twice, in pieces. Work: 2 x n_sources x n_destinations scores, and n x n_destinations
    comparisons.

    Examples
    --------
    >>> from sarlite import Graph
    >>> graph, h = Graph.from_edges([0, 1], [1, 2], 4), np.array([[1.0], [2.0], [3.0], [4.0]])
    >>> product = lambda head, tail: (head * tail).sum(-1)
    >>> rank_links(graph, product, h, np.array([0]), np.array([1]), Ends(0, 4), np.array([3])).tolist()
    [[2.0, 2.0]]
    """
    of_links, of_known = levels or (np.zeros(len(heads), np.int64), np.zeros(len(excluded), np.int64))
    order = np.argsort(heads, kind="stable")
    sources, starts = np.unique(heads[order], return_index=True)
    starts = np.append(starts, len(order))
    link_scores, higher = np.empty(len(heads), h.dtype), np.zeros(len(heads))
    # scored in the same blocks as all destinations, so that equal rows have the same bits and tie
    for ids, some, scores in _scored(graph, decoder, h, sources, destinations, n_bytes):
        links, rows = _links_of_sources(order, starts, some)
        columns, here = _Columns(ids)(tails[links])
        link_scores[links[here]] = scores[rows[here], columns[here]]
    for ids, some, scores in _scored(graph, decoder, h, sources, destinations, n_bytes):
        links, rows = _links_of_sources(order, starts, some)
        at_once = max(n_bytes // max(scores.shape[1] * 8, 1), 1)
        for level in np.unique(of_links[links]).tolist():
            counts, column_of = np.ones(scores.shape, bool), _Columns(ids)
            counts[_excluded_entries(graph, sources[some], column_of, destinations, excluded[of_known <= level])] = False
            of_level = np.flatnonzero(of_links[links] == level)
            for at in range(0, len(of_level), at_once):
                part = of_level[at : at + at_once]
                higher[links[part]] += _n_higher(scores, counts, rows[part], link_scores[links[part]],
                                                 *column_of(tails[links[part]]))
    return np.stack([link_scores.astype(np.float64), 1 + higher], 1)


def _n_higher(scores: Array, counts: Array, rows: Array, link_scores: Array, columns: Array, has_column: Array) -> Array:
    """Return for each link i how many of the scores in row rows[i] are above link_scores[i]; an equal score counts half. Only the entries
    of the mask `counts` count. If has_column[i], column columns[i] has the link's own score and does not count.
    """
    others, counts, limit = scores[rows], counts[rows], link_scores[:, None]
    counts[has_column, columns[has_column]] = False
    return np.sum(counts & ~(others <= limit), 1) + 0.5 * np.sum(counts & (others == limit), 1)


def _links_of_sources(links_by_source: Array, starts: Array, source_slice: slice) -> tuple[Array, Array]:
    """Return (indices of the links of the sources in `source_slice`, position of each link's source in the slice). The array
    `links_by_source` has all link indices, sorted by source; source s has the entries starts[s] .. starts[s + 1] - 1.
    """
    counts = np.diff(starts)[source_slice]
    first = starts[min(source_slice.start, len(starts) - 1)]
    return links_by_source[first : first + counts.sum()], np.repeat(np.arange(len(counts)), counts)


class _Columns:
    """Map from ids of destinations to columns of a block of scores, which has a column for each of some destinations."""

    def __init__(self, ids: Array) -> None:
        self._order = np.argsort(ids)
        self._ids = ids[self._order]

    def __call__(self, ids: Array) -> tuple[Array, Array]:
        """Return (column of each destination id in the block of scores, mask of the ids that have a column), both shaped like `ids`."""
        places = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return self._order[places], self._ids[places] == ids


def _scored(graph: NodeRows, decoder: Decoder, h: Array, rows: Array, destinations: Ends,
            n_bytes: int) -> Iterator[tuple[Array, slice, Array]]:
    """Score each local node of `rows` with all `destinations` of all ranks, in blocks of about `n_bytes` bytes. Yield (destination ids,
    slice of `rows`, scores with a row for each node and a column for each destination). `decoder` computes scores from the encoder's output
    rows, of which `h` has this rank's. Collective.
    """
    cross = getattr(decoder, "cross", None)
    for ids, tails in _pieces(graph, h, destinations, max(n_bytes // 8 // max(h.shape[1] * h.itemsize, 1), 1)):
        at_once = max(n_bytes // max((len(tails) if cross else tails.size) * h.itemsize, 1), 1)
        for at in range(0, len(rows), at_once):
            some = slice(at, at + at_once)
            if cross:
                scores = cross(Tensor(h[rows[some]], constant=True), Tensor(tails, constant=True, placement=REPLICATED))
            else:
                scores = decoder(Tensor(h[rows[some], None], constant=True), Tensor(tails[None], constant=True))
            yield ids, some, np.array(scores.data)


def _excluded_entries(graph: NodeRows, rows: Array, column_of: _Columns, destinations: Ends,
                      excluded: Array) -> tuple[Array, Array]:
    """Return (row indices, column indices) of the entries of a block of scores that must not count: pairs with keys in `excluded`, and each
    node with itself. Row i belongs to local node rows[i], and `column_of` maps ids of `destinations` to columns.
    """
    first = rows * graph.n_nodes + destinations.first
    starts, stops = (np.searchsorted(excluded, bound) for bound in (first, first + destinations.n))
    counts = stops - starts
    places = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
    at = np.concatenate([np.repeat(np.arange(len(rows)), counts), np.arange(len(rows))])
    column, here = column_of(np.concatenate([excluded[places] % graph.n_nodes, graph.dst_ids[rows]]))
    return at[here], column[here]


def _pieces(graph: NodeRows, h: Array, destinations: Ends, n: int) -> Iterator[tuple[Array, Array]]:
    """Yield (ids, encoder rows) of the nodes `destinations` of all ranks, at most n nodes at a time and the same on every rank. `h` has the
    encoder rows of this rank's nodes. Collective.
    """
    comm, ids = graph.comm, np.asarray(graph.dst_ids, np.int64)
    here = np.flatnonzero((ids >= destinations.first) & (ids < destinations.first + destinations.n))
    for rank, size in enumerate(comm.allgather(len(here))):
        for at in range(0, size, n):
            sent_rows, shape = here[at : at + n] if rank == comm.rank else None, min(n, size - at)
            some = np.empty(shape, np.int64) if sent_rows is None else ids[sent_rows]
            tails = np.empty((shape, h.shape[1]), h.dtype) if sent_rows is None else h[sent_rows]
            yield comm.broadcast(some, rank), comm.broadcast(tails, rank)


def _merge_best(ids: Array, scores: Array, more_ids: Array, more_scores: Array) -> tuple[Array, Array]:
    """Return the k candidates with the highest scores of each row as (ids, scores), (q, k), best first and ties by ascending id. The
    candidates are the best so far, `ids` and `scores`, (q, k), and the new `more_ids`, (c,), with scores `more_scores`, (q, c).
    """
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

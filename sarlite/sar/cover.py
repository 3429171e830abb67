"""Vertex cover of the cut: each edge between two parts by a fetched source row or by a received partial sum, fewest rows in all."""

import numpy as np

from sarlite.graph.part import InEdges


def divide(cut, rank):
    """Return (by rows, by sums): a part's edges from rows that are local or fetched, and those that peers sum up.

    Parameters
    ----------
    cut : Cut
        Of all in-edges of the part.
    rank : int
        The part.

    Returns
    -------
    InEdges, InEdges
        Without numbers, in the same order. Of each other part, the sources of the first and the destinations of the second are
        together a minimum vertex cover of the edges from there; of several the one with the most sources.

    Notes
    -----
    Hopcroft and Karp's matching, O(edges sqrt(rows)) time for each other part at worst. Memory: about 40 bytes an edge of one part while
    it runs, and 9 an edge of all.
    """
    edges, by_rows = cut.edges, np.ones(len(cut.edges.indices), bool)
    for q, (where, columns) in enumerate(zip(cut.where, cut.columns)):
        if q != rank and len(columns):
            rows = np.searchsorted(edges.indptr, where, side="right")
            by_rows[where] = cover(columns, np.cumsum(np.diff(rows, prepend=rows[0]) > 0))[columns]
    return _some(edges, by_rows), _some(edges, ~by_rows)


def cover(sources, destinations):
    """Return (n_sources,) bool: which sources stand in the minimum vertex cover of a bipartite graph that has the most of them.

    Parameters
    ----------
    sources, destinations : (n_edges,) int
        The ends of each edge, counted from 0, each at least once.

    Notes
    -----
    König's theorem: the destinations of the cover are those that alternating paths reach from unmatched sources, its sources those that
    they do not reach.
    """
    from scipy.sparse import (
        csr_array,  # here, as they take longer to import than sarlite
    )
    from scipy.sparse.csgraph import breadth_first_order, maximum_bipartite_matching

    n_src, n_dst = int(sources.max()) + 1, int(destinations.max()) + 1
    by_src = csr_array((np.ones(len(sources), bool), (sources, destinations)), (n_src, n_dst))
    match = maximum_bipartite_matching(by_src, perm_type="row")  # of each destination
    unmatched = np.setdiff1d(np.arange(n_src), match)
    if len(unmatched) == 0:
        return np.ones(n_src, bool)
    indices = match[by_src.indices]  # a path goes on from a destination to its match; none comes to one that has none
    indices = np.concatenate([np.maximum(indices, 0), unmatched])
    indptr = np.append(by_src.indptr, len(indices))  # the last row: where paths begin
    paths = csr_array((np.ones(len(indices), bool), indices, indptr), (n_src + 1, n_src + 1))
    found = np.ones(n_src + 1, bool)
    found[breadth_first_order(paths, n_src, return_predecessors=False)] = False
    return found[:n_src]


def _some(edges, chosen):
    ends = np.concatenate([[0], np.cumsum(chosen)])
    return InEdges(ends[edges.indptr].astype(np.int64), edges.indices[chosen])

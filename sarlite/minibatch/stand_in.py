"""Picks in place of halo rows that a cache has not: of the same destinations, from sources that are there."""

from collections.abc import Callable

import numpy as np

from sarlite.keys import splitmix64
from sarlite.minibatch.columns import Columns
from sarlite.minibatch.sampler import Layer
from sarlite.types import Array


def next_picks(columns: Columns, layer: Layer, rows: Array, missing: Array, has: Callable[[Array], Array], key: int) -> tuple[Array, Array]:
    """Return for each edge that a miss took away another in-edge of its destination, where there is one.

    Parameters
    ----------
    columns : Columns
    layer : Layer
    rows : (n_src,) int
        The part's row of each local row of the layer.
    missing : (n_picks,) bool
        The picks that cannot be used.
    has : callable
        Columns of halo rows (k,) -> (k,) bool, whether the cache has them.
    key : int
        What the order of a row's further edges goes by, with the destination's global id and the edge's place in its row.

    Returns
    -------
    dst : (n,) int64
        Rows of the layer.
    positions : (n,) int64
        Edges of the part whose source is among `rows` or in the cache, each not picked already, in that order.

    Notes
    -----
    O(edges of the destinations with a miss).
    """
    edges, wanted = columns.edges, np.bincount(np.repeat(np.arange(layer.n_dst), np.diff(layer.indptr))[missing], minlength=layer.n_dst)
    dst = np.flatnonzero(wanted)
    first, degree = edges.indptr[rows[dst]], np.diff(edges.indptr)[rows[dst]]
    ends = np.cumsum(degree)
    place = np.arange(degree.sum()) - np.repeat(ends - degree, degree)
    positions, dst = np.repeat(first, degree) + place, np.repeat(dst, degree)
    source = edges.indices[positions]
    free = ~_among(positions, np.sort(layer.positions))
    local = source < columns.n_local
    free[local] &= _among(source[local], np.sort(rows))
    free[~local] &= has(source[~local])
    positions, dst, place = positions[free], dst[free], place[free]
    variates = splitmix64(splitmix64(columns.ids[rows[dst]].astype(np.uint64) ^ np.uint64(key)) ^ place.astype(np.uint64))
    order = np.lexsort((variates, dst))
    positions, dst = positions[order], dst[order]
    counts = np.bincount(dst, minlength=layer.n_dst)
    number = np.arange(len(dst)) - np.repeat(np.cumsum(counts) - counts, counts)  # of each among its row's
    taken = number < wanted[dst]
    return dst[taken], positions[taken]


def _among(values, ascending):
    places = np.searchsorted(ascending, values)
    found = np.zeros(len(values), bool)
    inside = places < len(ascending)
    found[inside] = ascending[places[inside]] == values[inside]
    return found

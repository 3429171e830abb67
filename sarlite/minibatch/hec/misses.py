"""Handling of cache misses: picked edges whose source rows are not cached are dropped or replaced by other in-edges."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sarlite.keys import splitmix64
from sarlite.minibatch.part_edges import PartEdges
from sarlite.minibatch.sampler import Layer
from sarlite.structure.part_edges_csr import among
from sarlite.types import Array


class Substitutes(NamedTuple):
    """Rule for replacing sampled edges whose source rows are not in the cache by other in-edges of the destination.

    Attributes
    ----------
    has : callable
        Maps columns of halo rows, (k,), to (k,) bool: True if the cache has the row.
    key : int
        Key of the random order of a destination's other in-edges. The order also depends on the destination's global id
        and on the edge's position in its row.
    """

    has: Callable[[Array], Array]
    key: int


def without(part: PartEdges, layer: Layer, rows: Array, missing: Array,
            substitutes: Substitutes | None = None) -> Layer:
    """Return a copy of the sampled `layer` without the edges in the mask `missing`. `substitutes`, if not None, replaces each by
    another in-edge of its destination. `rows` are the layer's local sources, as row numbers of `part`.

    Parameters
    ----------
    part : PartEdges
        Part with one set of edges.
    layer : Layer
    rows : (n_src,) int
        The part's row of each local source row.
    missing : (n_picks,) bool
        True for each pick that cannot be used.
    substitutes : Substitutes, optional
        Rule for replacements. Each missing pick is replaced by another in-edge of its destination, if there is one. Its
        source is one of the layer's rows or in the cache, and not yet picked. By default nothing replaces a missing
        pick.

    Notes
    -----
    O(picks) time, and with substitutes O(edges of the destinations with a miss).
    """
    dst = np.repeat(np.arange(layer.n_dst), np.diff(layer.picked.indptr))
    n_wanted = np.bincount(dst[missing], minlength=layer.n_dst)
    dst, positions = dst[~missing], layer.picked.positions[~missing]
    if substitutes is not None:
        more_dst, more = _next_picks(part, layer, rows, n_wanted, substitutes)
        dst, positions = np.concatenate([dst, more_dst]), np.concatenate([positions, more])
        order = np.lexsort((positions, dst))
        dst, positions = dst[order], positions[order]
    return _with_edges(part, layer, rows, dst, positions)


def _next_picks(part: PartEdges, layer: Layer, rows: Array, n_wanted: Array, substitutes: Substitutes) -> tuple[Array, Array]:
    """Pick at random up to n_wanted[i] further in-edges of each destination i of `layer`; return (destinations, positions): the
    number i of each edge's destination, and the edge's position in `part`. Only edges are picked whose source is among the layer's
    local sources `rows` or in the cache of `substitutes`.

    The edges are drawn at random from the in-edges that were not sampled and whose source row is in the batch or in the cache.
    """
    edges, dst = part.edges.edges, np.flatnonzero(n_wanted)
    first, degree = edges.indptr[rows[dst]], np.diff(edges.indptr)[rows[dst]]
    ends = np.cumsum(degree)
    place = np.arange(degree.sum()) - np.repeat(ends - degree, degree)
    positions, dst = np.repeat(first, degree) + place, np.repeat(dst, degree)
    source = edges.indices[positions]
    free = ~among(np.sort(layer.picked.positions), positions)
    local = source < part.n_local
    free[local] &= among(np.sort(rows), source[local])
    free[~local] &= substitutes.has(source[~local])
    positions, dst, place = positions[free], dst[free], place[free]
    ids = part.ids[rows[dst]].astype(np.uint64)
    variates = splitmix64(splitmix64(ids ^ np.uint64(substitutes.key)) ^ place.astype(np.uint64))
    order = np.lexsort((variates, dst))
    positions, dst = positions[order], dst[order]
    counts = np.bincount(dst, minlength=layer.n_dst)
    number = np.arange(len(dst)) - np.repeat(np.cumsum(counts) - counts, counts)  # of each among its row's
    taken = number < n_wanted[dst]
    return dst[taken], positions[taken]


def _with_edges(part: PartEdges, layer: Layer, rows: Array, dst: Array, positions: Array) -> Layer:
    """Return a copy of `layer` with the edges of `part` at `positions`, which lead to the layer's destinations `dst`, ascending.
    `rows`, (n_src,), are the layer's local sources, as row numbers of `part`.
    """
    source, picked = part.edges.edges.indices[positions], layer.picked
    local = source < part.n_local
    halo, numbers = np.unique(source[~local], return_inverse=True)
    by_row = np.argsort(rows, kind="stable")
    columns = np.empty(len(source), picked.columns.dtype)
    columns[local] = by_row[np.searchsorted(rows[by_row], source[local])]
    columns[~local] = layer.n_src + numbers
    picked = picked._replace(indptr=np.searchsorted(dst, np.arange(layer.n_dst + 1)).astype(np.int64), columns=columns,
                             positions=positions.astype(picked.positions.dtype))
    return layer._replace(sets=[picked], halo=halo)

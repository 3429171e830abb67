"""A graph's rows in another order: its edges piece by piece, with the numbers that they then have."""

import numpy as np

from sarlite.structure.edges import ascending, chunk_edges, index_dtype, row_chunks


def sequence(parts, n_parts, order=None):
    """Sort the nodes by the part that owns them.

    Parameters
    ----------
    parts : (n_nodes,) int
        The part of each node.
    n_parts : int
    order : (n_nodes,) int, optional
        A permutation of the nodes: the order of the rows of each part; by default ids ascend.

    Returns
    -------
    nodes : (n_nodes,) int32, or int64 where an id needs it
        Part after part.
    offsets : (n_parts + 1,) int64
        Part p's nodes are nodes[offsets[p] : offsets[p + 1]].
    """
    dtype = index_dtype(parts.size)
    if order is None:
        nodes = np.argsort(parts, kind="stable").astype(dtype)
    else:
        nodes = np.asarray(order)[np.argsort(parts[order], kind="stable")].astype(dtype)
    return nodes, np.concatenate(([0], np.cumsum(np.bincount(parts, minlength=n_parts)))).astype(np.int64)


def inverse(permutation):
    """Return the place of each number in a permutation."""
    place = np.empty(permutation.size, index_dtype(permutation.size))
    place[permutation] = np.arange(permutation.size, dtype=place.dtype)
    return place


def edges_in_order(indptr, indices, rows, cuts=(), *, sort=False, read=None, place=None):
    """Yield a graph's edges as they are when its rows stand in another order.

    Parameters
    ----------
    indptr, indices : (n_nodes + 1,) and (n_edges,) int, borrowed
        Row i holds the row numbers of the sources of i's in-edges.
    rows : (n_nodes,) int
        A permutation: row i of the result is row rows[i] of the graph.
    cuts : int array
        Rows of the result that a piece must not cross.
    sort : bool
        Let the sources of each row ascend; equal ones keep their order.
    read : callable, optional
        read(indices, positions) returns the `indices` at these positions; NumPy's indexing by default.
    place : (n_src,) int, optional
        The new row number of each source, where sources are no rows of this graph; by default the one that `rows`
        gives.

    Yields
    ------
    first, last : int
        Rows of the result.
    positions : (n,) int64
        Where their edges stand in `indices`.
    sources : (n,)
        The sources' row numbers in the result.

    Notes
    -----
    Memory: 12 to 20 bytes a node, and a piece of about a million edges (all edges of a node with more).
    """
    place = inverse(rows) if place is None else place
    lengths = np.diff(indptr)[rows]
    ends = np.concatenate(([0], np.cumsum(lengths)))
    for first, last in row_chunks(ends, chunk_edges(place.size), cuts):
        counts = lengths[first:last]
        shift = np.asarray(indptr)[rows[first:last]] - ends[first:last]
        positions = np.arange(ends[first], ends[last]) + np.repeat(shift, counts)
        sources = place[indices[positions] if read is None else read(indices, positions)]
        if sort:
            chosen = ascending(counts, sources, place.size)
            positions, sources = positions[chosen], sources[chosen]
        yield first, last, positions, sources

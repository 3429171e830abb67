"""Renumbering of rows: nodes sorted by part, and the edges of a graph whose rows are in another order."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sarlite.structure.edges import ascending, chunk_edges, index_dtype, row_chunks
from sarlite.types import Array, ArrayLike


def sequence(parts: Array, n_parts: int, order: Array | None = None) -> tuple[Array, Array]:
    """Return (nodes, offsets): the nodes part after part, where part p has nodes[offsets[p] : offsets[p + 1]]. Within a part the
    nodes stand as in the permutation `order` (None: by id).

    Parameters
    ----------
    parts : (n_nodes,) int
        The part of each node.
    n_parts : int
    order : (n_nodes,) int, optional
        Permutation of the nodes that orders the nodes of each part; by default ids ascend.

    Returns
    -------
    nodes : (n_nodes,) int32, or int64 if int32 is too small for the ids
        Nodes, part after part.
    offsets : (n_parts + 1,) int64
        The nodes of part p are nodes[offsets[p] : offsets[p + 1]].
    """
    dtype = index_dtype(parts.size)
    if order is None:
        nodes = np.argsort(parts, kind="stable").astype(dtype)
    else:
        nodes = np.asarray(order)[np.argsort(parts[order], kind="stable")].astype(dtype)
    return nodes, np.concatenate(([0], np.cumsum(np.bincount(parts, minlength=n_parts)))).astype(np.int64)


def inverse(permutation: Array) -> Array:
    """Return the inverse of a permutation: entry i is the position of i in `permutation`."""
    new_row = np.empty(permutation.size, index_dtype(permutation.size))
    new_row[permutation] = np.arange(permutation.size, dtype=new_row.dtype)
    return new_row


def edges_in_order(indptr: Array, indices: Any, rows: Array, cuts: ArrayLike = (), *, sort: bool = False,
                   read: Callable[[Any, Array], Array] | None = None,
                   new_row: Array | None = None) -> Iterator[tuple[int, int, Array, Array]]:
    """Yield the in-edges of a graph (CSR `indptr`, `indices`) in chunks, with its rows permuted: new row i is old row rows[i]. A
    chunk is (first new row, new row after the last, positions of the edges in `indices`, new row numbers of the sources). A chunk
    also starts at each new row in `cuts`; `sort` sorts the sources of each new row. `read(indices, positions)` reads sources from a
    file (None: indexing); `new_row` has the new number of each source (None: the inverse of `rows`).

    Parameters
    ----------
    indptr, indices : (n_nodes + 1,) and (n_edges,) int
        CSR of the in-edges: row i has the row numbers of its sources.
    rows : (n_nodes,) int
        Permutation: new row i is row rows[i] of the graph.
    cuts : int array
        New rows at which a piece must start.
    sort : bool
        True to sort the sources of each new row in ascending order; equal sources keep their order.
    read : callable, optional
        Function (indices, positions) that returns the `indices` at these positions, for files; by default NumPy's
        indexing.
    new_row : (n_src,) int, optional
        New row number of each source, if sources are not rows of this graph; by default the inverse of `rows`.

    Yields
    ------
    first, last : int
        The piece has new rows first .. last - 1.
    positions : (n,) int64
        Position of each edge of the piece in `indices`.
    sources : (n,) int
        New row number of each edge's source.

    Notes
    -----
    Memory: 12 to 20 bytes for each node, and a piece of about a million edges, or of the edges of one node.
    """
    new_row = inverse(rows) if new_row is None else new_row
    lengths = np.diff(indptr)[rows]
    ends = np.concatenate(([0], np.cumsum(lengths)))
    for first, last in row_chunks(ends, chunk_edges(new_row.size), cuts):
        counts = lengths[first:last]
        shift = np.asarray(indptr)[rows[first:last]] - ends[first:last]
        positions = np.arange(ends[first], ends[last]) + np.repeat(shift, counts)
        sources = new_row[indices[positions] if read is None else read(indices, positions)]
        if sort:
            chosen = ascending(counts, sources, new_row.size)
            positions, sources = positions[chosen], sources[chosen]
        yield first, last, positions, sources

"""Reversed edges: the out-edges of a part's source rows, and a test for a symmetric structure."""

import numpy as np

from sarlite.comm import Communicator
from sarlite.keys import splitmix64
from sarlite.structure.part_edges_csr import InEdges, owners


def out_edges(comm: Communicator, edges: InEdges, n_src: int) -> InEdges:
    """Return the edges that leave this rank's `n_src` source rows, gathered from all ranks' in-edges `edges`. They are InEdges with a
    row for each source and the destinations as indices. Collective.

    Parameters
    ----------
    comm : Communicator
    edges : InEdges
        In-edges of this rank's destination rows.
    n_src : int
        Number of source rows of this rank.

    Returns
    -------
    InEdges
        The reversed edges: a row for each source, whose indices are the row numbers of the source's destinations in the
        whole graph, ascending in each row.

    Notes
    -----
    Memory while the function runs: 40 bytes for each in-edge and for each out-edge.

    Examples
    --------
    >>> from sarlite import Solo
    >>> reversed_edges = out_edges(Solo(), InEdges(np.array([0, 0, 1, 3]), np.array([0, 0, 1])), 3)
    >>> reversed_edges.indptr.tolist(), reversed_edges.indices.tolist()
    ([0, 2, 3, 3], [1, 2, 2])
    """
    first = np.concatenate([[0], np.cumsum(comm.allgather(n_src))])
    before = sum(comm.allgather(edges.n_dst)[: comm.rank])
    sources = edges.indices.astype(np.int64)
    pairs = np.stack([sources, before + np.repeat(np.arange(edges.n_dst), np.diff(edges.indptr))], axis=1)
    owner = owners(sources, first)
    pairs = pairs[np.argsort(owner, kind="stable")]
    ends = np.cumsum(np.bincount(owner, minlength=comm.size))[:-1]
    pairs = np.concatenate(comm.alltoall(np.split(pairs, ends)))
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    rows = np.arange(first[comm.rank], first[comm.rank] + n_src + 1)
    return InEdges(np.searchsorted(pairs[:, 0], rows).astype(np.int64), pairs[:, 1].copy())


def is_symmetric(comm: Communicator, edges: InEdges, n_src: int) -> bool:
    """Return True if on all ranks each of the in-edges `edges` occurs as often as its reverse, and each rank has as many sources,
    `n_src`, as destinations. Collective.

    Collective. The test compares a 64-bit hash of all edges with a hash of all reversed edges, so an asymmetric
    structure passes with a probability of about 2^-64. Memory while the function runs: 24 bytes for each edge.
    """
    before = sum(comm.allgather(edges.n_dst)[: comm.rank])
    src = edges.indices.astype(np.uint64)
    dst = np.uint64(before) + np.repeat(np.arange(edges.n_dst, dtype=np.uint64), np.diff(edges.indptr))
    with np.errstate(over="ignore"):
        hashes = int(splitmix64(splitmix64(src) + dst).sum()), int(splitmix64(splitmix64(dst) + src).sum())
    ranks = comm.allgather((edges.n_dst == n_src, *hashes))
    same, forward, backward = zip(*ranks)
    return all(same) and (sum(forward) - sum(backward)) % 2**64 == 0

"""Edges ordered by their sources: the out-edges of a part, and a test for a symmetric structure."""

import numpy as np

from sarlite.keys import splitmix64
from sarlite.structure.part_edges_csr import InEdges, owners


def out_edges(comm, edges, n_src):
    """Return the edges that leave this rank's source rows, ordered by source. Collective.

    Parameters
    ----------
    comm : Communicator
    edges : InEdges
        Of this rank's destination rows.
    n_src : int
        Source rows of this rank.

    Returns
    -------
    InEdges
        Its rows are the sources, its indices row numbers of destinations in the whole graph, ascending in each row.

    Notes
    -----
    Memory: 40 bytes an in-edge and an out-edge while it runs.
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


def is_symmetric(comm, edges, n_src):
    """Return True if the structure is symmetric and each rank has as many sources as destinations. Collective.

    An edge must occur as often as its reverse. The test compares a 64-bit hash of the edges with a hash of the reversed
    edges, so different structures pass with a probability of about 2^-64. Memory: 24 bytes per edge while it runs.
    """
    before = sum(comm.allgather(edges.n_dst)[: comm.rank])
    src = edges.indices.astype(np.uint64)
    dst = np.uint64(before) + np.repeat(np.arange(edges.n_dst, dtype=np.uint64), np.diff(edges.indptr))
    with np.errstate(over="ignore"):
        own = int(splitmix64(splitmix64(src) + dst).sum()), int(splitmix64(splitmix64(dst) + src).sum())
    ranks = comm.allgather((edges.n_dst == n_src, *own))
    same, forward, backward = zip(*ranks)
    return all(same) and (sum(forward) - sum(backward)) % 2**64 == 0

"""The plan: which rows go to and come from each peer. Built once per graph."""

from typing import NamedTuple

import numpy as np

from sarlite.errors import DataError, raise_together
from sarlite.graph.block import Block


class Step(NamedTuple):
    """One round of the schedule: `block`'s rows come from `source`, while `send_rows` go to `target`."""

    source: int
    target: int
    block: Block
    send_rows: np.ndarray


class Plan(NamedTuple):
    """The blocks of one part and the exchanges that feed them.

    Attributes
    ----------
    n_local : int
        Rows that this rank owns.
    local : Block
        The edges within the part; in mode `oneshot` all edges, the columns being the local rows, then each step's.
    steps : tuple of Step
        One a peer: at step s, rank p fetches from p + s and sends to p - s, so every rank has one partner each way.
    """

    n_local: int
    local: Block
    steps: tuple

    @property
    def blocks(self):
        return (self.local, *(step.block for step in self.steps))

    @property
    def n_halo(self):
        return sum(step.block.n_src for step in self.steps)


def build(comm, node_ids, indptr, indices, parts, merge=False):
    """Build this rank's plan. Collective.

    Parameters
    ----------
    comm : Communicator
    node_ids : (n_local,) int64
        Global ids of this rank's nodes, ascending.
    indptr, indices : (n_local + 1,) int64, (n_edges,) int
        In-edges of the local nodes; indices are global source ids. Edge values follow this order.
    parts : (n_nodes,) int
        The rank that owns each node.
    merge : bool
        One block for all edges (mode `oneshot`).

    Raises
    ------
    DataError
        On every rank together: an index or a part out of range, indptr not ascending, or node_ids that are not the part's.

    Notes
    -----
    Takes O(n_nodes) integers beside `parts` while it runs.
    """
    raise_together(comm, _find_error(comm, node_ids, indptr, indices, parts))
    peers = [(comm.rank + s) % comm.size for s in range(comm.size)]
    columns, halos = _split_columns(indices, parts, node_ids, peers)
    send_rows = _swap_needs(comm, node_ids, halos)
    offsets = np.cumsum([0] + [len(h) for h in halos])
    itype = np.int32 if max(offsets[-1], len(indices)) < 2**31 else np.int64
    if merge:
        local = Block(indptr, _merged_columns(columns, offsets, len(indices), itype), np.concatenate(halos))
        empty = np.zeros(len(indptr), np.int64)
        blocks = [local] + [Block(empty, np.zeros(0, itype), h) for h in halos[1:]]
    else:
        blocks = [_block(indptr, where, cols.astype(itype), halo, offset, itype, len(peers) == 1)
                  for (where, cols), halo, offset in zip(columns, halos, offsets)]
    steps = tuple(Step(q, (comm.rank - s) % comm.size, blocks[s], send_rows[(comm.rank - s) % comm.size])
                  for s, q in enumerate(peers) if s)
    return Plan(len(node_ids), blocks[0], steps)


def _find_error(comm, node_ids, indptr, indices, parts):
    n = len(parts)
    if n and not (0 <= parts.min() and parts.max() < comm.size):
        where = int(np.flatnonzero((parts < 0) | (parts >= comm.size))[0])
        return DataError(f"parts[{where}] = {parts[where]} is not a rank in 0..{comm.size - 1}")
    if not np.array_equal(node_ids, np.flatnonzero(parts == comm.rank)):
        return DataError(f"node_ids are not, ascending, the nodes that parts gives to rank {comm.rank}")
    if len(indptr) != len(node_ids) + 1 or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        return DataError(f"indptr does not ascend from 0 to {len(indices)} in {len(node_ids) + 1} entries")
    if len(indices) and not (0 <= indices.min() and indices.max() < n):
        where = int(np.flatnonzero((indices < 0) | (indices >= n))[0])
        return DataError(f"edge {where}: source {indices[where]} is not in 0..{n - 1}")
    return None


def _split_columns(indices, parts, node_ids, peers):
    """For each peer: (positions of its edges, their columns), and the ascending global ids of its columns."""
    owner = parts[indices]
    scratch = np.empty(len(parts), np.int64)
    columns, halos = [], []
    for q in peers:
        where = np.flatnonzero(owner == q) if len(peers) > 1 else slice(None)
        ids = indices[where]
        if q == peers[0]:
            halo = np.asarray(node_ids, np.int64)
        else:
            needed = np.zeros(len(parts), bool)
            needed[ids] = True
            halo = np.flatnonzero(needed)
        scratch[halo] = np.arange(len(halo))
        columns.append((where, scratch[ids]))
        halos.append(halo)
    return columns, halos


def _block(indptr, where, columns, halo, offset, itype, whole):
    if whole:
        return Block(indptr, columns, halo)
    # the number of chosen positions before a row's start is the block's indptr
    return Block(np.searchsorted(where, indptr).astype(np.int64), columns, halo, where.astype(itype), int(offset))


def _merged_columns(columns, offsets, n_edges, itype):
    merged = np.empty(n_edges, itype)
    for (where, cols), offset in zip(columns, offsets):
        merged[where] = cols + offset
    return merged


def _swap_needs(comm, node_ids, halos):
    """Tell each peer which of its rows this rank needs; return the local rows that each peer needs."""
    wants = comm.allgather([len(h) for h in halos])
    requests, asked = [], {}
    for s in range(1, comm.size):
        source, target = (comm.rank + s) % comm.size, (comm.rank - s) % comm.size
        asked[target] = np.empty(wants[target][s], np.int64)
        requests += [comm.start_recv(asked[target], target), comm.start_send(halos[s], source)]
    for request in requests:
        request.wait()
    itype = np.int32 if len(node_ids) < 2**31 else np.int64
    return {peer: np.searchsorted(node_ids, ids).astype(itype) for peer, ids in asked.items()}

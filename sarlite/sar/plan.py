"""The plan: which rows go to and come from each peer. Built once per graph."""

from typing import NamedTuple

import numpy as np

from sarlite.errors import DataError, raise_together
from sarlite.graph.block import Block, Columns

BACKWARD_STEPS = 9
"""With few peers a rank takes at least about so many steps backward, each for a part of a peer's rows. Forward that would cost time, as
each block's pass touches all rows of the output; backward a block's rows are the peer's, and any part of them costs the same."""

STEP_ROWS = 4096
"""But no steps for fewer rows, were all of a peer's needed."""


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
    backward_steps : tuple of Step
        The same, each in as many parts (`Columns`), so that what backward holds of a peer is small: rows fetched again, and gradients
        out and in.
    """

    n_local: int
    local: Block
    steps: tuple
    backward_steps: tuple

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
        Global ids of this rank's nodes, in any order: that of its rows.
    indptr, indices : (n_local + 1,) int64, (n_edges,) int
        In-edges of the local nodes; indices are global source ids. Edge values follow this order.
    parts : (n_nodes,) int
        The rank that owns each node.
    merge : bool
        One block for all edges (mode `oneshot`).

    Raises
    ------
    DataError
        On every rank together: an index or a part out of range, indptr not ascending, or node_ids that are not the part's, each once.

    Notes
    -----
    Takes O(n_nodes) integers beside `parts` while it runs.
    """
    raise_together(comm, _find_error(comm, node_ids, indptr, indices, parts))
    node_ids = np.asarray(node_ids, np.int64)
    edges, needs = _split_edges(indices, parts, comm)
    position = np.empty(len(parts), np.int64)
    position[node_ids] = np.arange(len(node_ids))
    halos, send_rows = _swap_needs(comm, node_ids, position, needs)
    columns = _columns(indices, edges, halos, position)
    offsets = np.cumsum([0] + [len(h) for h in halos])
    itype = np.int32 if max(offsets[-1], len(indices)) < 2**31 else np.int64
    if merge:
        local = Block(indptr, _merged_columns(edges, columns, offsets, len(indices), itype), np.concatenate(halos))
        empty = np.zeros(len(indptr), np.int64)
        blocks = [local] + [Block(empty, np.zeros(0, itype), h) for h in halos[1:]]
    else:
        finders = [None] if comm.size == 1 else _edge_finders(edges, len(indices), itype)
        blocks = [Block(_block_indptr(indptr, where), cols.astype(itype), halo, eid, int(offset))
                  for where, cols, halo, eid, offset in zip(edges, columns, halos, finders, offsets)]
    steps = tuple(Step((comm.rank + s) % comm.size, (comm.rank - s) % comm.size, blocks[s], send_rows[s]) for s in range(1, comm.size))
    n_parts = 1 if merge else _n_parts(comm.size, len(parts))
    return Plan(len(node_ids), blocks[0], steps, tuple(part for step in steps for part in _cut(step, n_parts)))


def _n_parts(n_ranks, n_nodes):
    """In how many parts a step is taken backward; every rank decides alike."""
    return max(1, min(-(-BACKWARD_STEPS // max(n_ranks - 1, 1)), n_nodes // n_ranks // STEP_ROWS))


def _cut(step, n):
    """Divide a step into `n`: like parts of the rows that come and of those that go."""
    if n == 1:
        return [step]
    columns, rows = (np.arange(n + 1) * m // n for m in (step.block.n_src, len(step.send_rows)))
    return [Step(step.source, step.target, Columns(step.block, int(columns[k]), int(columns[k + 1])), step.send_rows[rows[k] : rows[k + 1]])
            for k in range(n)]


def _find_error(comm, node_ids, indptr, indices, parts):
    n = len(parts)
    if n and not (0 <= parts.min() and parts.max() < comm.size):
        where = int(np.flatnonzero((parts < 0) | (parts >= comm.size))[0])
        return DataError(f"parts[{where}] = {parts[where]} is not a rank in 0..{comm.size - 1}")
    if not np.array_equal(np.sort(node_ids), np.flatnonzero(parts == comm.rank)):
        return DataError(f"node_ids are not the nodes that parts gives to rank {comm.rank}, each once")
    if len(indptr) != len(node_ids) + 1 or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        return DataError(f"indptr does not ascend from 0 to {len(indices)} in {len(node_ids) + 1} entries")
    if len(indices) and not (0 <= indices.min() and indices.max() < n):
        where = int(np.flatnonzero((indices < 0) | (indices >= n))[0])
        return DataError(f"edge {where}: source {indices[where]} is not in 0..{n - 1}")
    return None


def _split_edges(indices, parts, comm):
    """For each step, 0 being this rank itself: the positions of its edges, and the distinct ids of their remote sources."""
    if comm.size == 1:
        return [slice(None)], [np.empty(0, np.int64)]
    owner = parts[indices]
    edges = [np.flatnonzero(owner == (comm.rank + s) % comm.size) for s in range(comm.size)]
    needs = [np.empty(0, np.int64)]
    for where in edges[1:]:
        needed = np.zeros(len(parts), bool)
        needed[indices[where]] = True
        needs.append(np.flatnonzero(needed))
    return edges, needs


def _columns(indices, edges, halos, scratch):
    """For each step the column of each of its edges; `scratch`, one integer a node, is overwritten."""
    columns = []
    for where, halo in zip(edges, halos):
        scratch[halo] = np.arange(len(halo))
        columns.append(scratch[indices[where]])
    return columns


def _block_indptr(indptr, where):
    """The number of the block's positions before each row's start; a slice is the whole."""
    return indptr if isinstance(where, slice) else np.searchsorted(where, indptr).astype(np.int64)


def _edge_finders(edges, n_edges, itype):
    """For each block a function that returns its edges' positions; kept is a small integer an edge, the number of its block."""
    number = np.empty(n_edges, np.min_scalar_type(len(edges) - 1))
    for k, where in enumerate(edges):
        number[where] = k
    return [lambda k=k: np.flatnonzero(number == k).astype(itype) for k in range(len(edges))]


def _merged_columns(edges, columns, offsets, n_edges, itype):
    merged = np.empty(n_edges, itype)
    for where, cols, offset in zip(edges, columns, offsets):
        merged[where] = cols + offset
    return merged


def _swap_needs(comm, node_ids, position, needs):
    """Tell each peer which of its rows this rank needs; by step return their ids, and the local rows that the target needs.

    Both stand in the owner's order, so that its gathers and the blocks' columns are as local as its rows: only it knows that
    order, so it answers each request with the same ids, put in order.
    """
    wants = comm.allgather([len(ids) for ids in needs])
    asked = [np.empty(wants[(comm.rank - s) % comm.size][s], np.int64) for s in range(comm.size)]
    _exchange(comm, needs, asked, 1)
    rows = [np.sort(position[ids]) for ids in asked]
    halos = [node_ids, *map(np.empty_like, needs[1:])]
    _exchange(comm, [node_ids[r] for r in rows], halos, -1)
    itype = np.int32 if len(node_ids) < 2**31 else np.int64
    return halos, [r.astype(itype) for r in rows]


def _exchange(comm, outgoing, incoming, way):
    """At each step s send outgoing[s] to the rank s places on, backwards where `way` is -1, and receive incoming[s]."""
    requests = []
    for s in range(1, comm.size):
        source, target = (comm.rank - way * s) % comm.size, (comm.rank + way * s) % comm.size
        requests += [comm.start_recv(incoming[s], source), comm.start_send(outgoing[s], target)]
    for request in requests:
        request.wait()

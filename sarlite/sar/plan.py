"""The plan: which rows go to and come from each peer, and the blocks that they are for. Built once per graph."""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from sarlite.errors import raise_together
from sarlite.graph import part
from sarlite.graph.block import Bundle

BACKWARD_STEPS = 9
"""With few peers a rank takes at least about so many steps backward, each for a part of a peer's rows. Forward that would cost time, as
each block's pass touches all rows of the output; backward a block's rows are the peer's, and any part of them costs the same."""

STEP_ROWS = 4096
"""But no steps for fewer rows, were all of a peer's needed."""

MOST_PIECES = 8
"""In mode `broadcast` with prefetch a rank's rows come in at most so many pieces. What is computed with the last one alone follows the last
transfer: an eighth of a tile."""

PIECE_EDGES = 32
"""But in no more than leave so many edges a row of the output and piece on average, as each piece takes a pass over the output. With 239
edges a row and tile sums of 512 columns took 0.82 of the time in 7 pieces, whose rows stay in the cache, 0.88 in 4 and 0.98 in 2."""

PIECE_ROWS = 1024
"""And so many rows a piece, so that a message is no mere latency."""


class Step(NamedTuple):
    """One round of the schedule: rows come from `source` for `block`, while `send_rows` go to `target`.

    Attributes
    ----------
    source, target : int
    block : Edges, or Bundle of several sets of edges
        Whose columns are the rows that come; None in a plan whose blocks are merged.
    n_rows : int
        How many come.
    contiguous : bool
        Whether they follow each other at their owner.
    send_rows : slice or (n_send,) int
        Local rows, of a graph ascending; a slice where they follow each other: what is sent then is the array itself.
    share : Fraction
        What part of the peer's rows these are.
    """

    source: Any
    target: Any
    block: Any
    n_rows: int
    contiguous: bool
    send_rows: Any
    share: Fraction = Fraction(1)

    @property
    def n_send(self):
        rows = self.send_rows
        return rows.stop - rows.start if isinstance(rows, slice) else len(rows)

    def cut(self, n):
        """Divide the step into `n`: like parts of the rows that come and of those that go."""
        if n == 1:
            return [self]
        share = self.share / n
        columns, rows = ((np.arange(n + 1) * m // n).tolist() for m in (self.n_rows, self.n_send))
        blocks = [None if self.block is None else self.block.columns(a, b) for a, b in zip(columns, columns[1:])]
        return [self._replace(block=blocks[k], n_rows=columns[k + 1] - columns[k], send_rows=_cut_rows(self.send_rows, *rows[k : k + 2]),
                              share=share) for k in range(n)]


class Plan(NamedTuple):
    """The blocks of one part and the exchanges that feed them.

    Attributes
    ----------
    n_src : int
        Source rows that this rank owns.
    local : Edges
        The edges within the part; merged, all edges, the columns being the local rows, then each step's.
    steps : tuple of Step
        One a peer: at step s, rank p fetches from p + s and sends to p - s, so every rank has one partner each way. Where rows come in
        pieces (`Exchange.separate`) one a piece, a peer's in their order.
    backward_steps : tuple of Step
        The same, each in as many parts, so that what backward holds of a peer is small: rows fetched again, and gradients out and in.
    stages : tuple of Stage
        Of mode `broadcast`: one a rank, or a piece of its rows, this one's too, in their order.
    degree : float
        As of `Exchange`.
    """

    n_src: int
    local: Any
    steps: tuple
    backward_steps: tuple
    stages: tuple = ()
    degree: float = 0.0

    @property
    def blocks(self):
        """The local block and the steps', in their order; the merged block alone."""
        return (self.local, *(step.block for step in self.steps if step.block is not None))

    @property
    def n_halo(self):
        return sum(step.n_rows for step in self.steps)

    def needed(self, size):
        """Return by rank how many of its rows come here."""
        found = [0] * size
        for step in self.steps:
            found[step.source] += step.n_rows
        return found

    def asked(self, size):
        """Return by rank the local rows that go there, (n,) int64 in the order in which they go."""
        found = [[np.empty(0, np.int64)] for _ in range(size)]
        for step in self.steps:
            rows = step.send_rows
            found[step.target].append(np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.astype(np.int64))
        return [np.concatenate(rows) for rows in found]


class Exchange(NamedTuple):
    """What `build` found, for a mode to lay out: its cuts, and by rank what is needed of it and what it needs.

    Attributes
    ----------
    offsets : (size + 1,) int64
        The first source row of each rank.
    cuts : list of Cut
        One a set of edges.
    needs : list of (n,) int64
        By rank, its rows that come here, counted from its first, in the order of their columns.
    asked : list of (n,) int64
        By rank, the local rows that go there.
    src_ids : list of (n,) int64
        By rank, the global ids of its rows that come here; for this rank those of all local rows.
    degree : float
        Mean number of edges of a destination row, over all sets and ranks. 0 of a batch, whose rows come whole: they do not ascend.
    """

    rank: int
    offsets: np.ndarray
    cuts: list
    needs: list
    asked: list
    src_ids: list
    degree: float = 0.0

    @property
    def size(self):
        return len(self.offsets) - 1

    @property
    def order(self):
        """The ranks in the order of the steps, this one first."""
        return [(self.rank + s) % self.size for s in range(self.size)]

    def column_offsets(self):
        """By rank, the number of columns before its columns, in the order of the steps; and the number of all."""
        offsets, end = [0] * self.size, 0
        for q in self.order:
            offsets[q], end = end, end + len(self.src_ids[q])
        return offsets, end

    @property
    def n_pieces(self):
        """In how many pieces a rank's rows come in mode `broadcast` with prefetch; every rank decides alike."""
        return n_pieces(self.offsets, self.degree)

    def ranges(self, q, n):
        """The `n` ranges of rank q's rows, slices counted from its first, and of each the rows that come here, counted from the range's.

        These are a slice where they follow each other, else integers.
        """
        ends = range_ends(self.offsets, q, n)
        ranges = [slice(a, b) for a, b in zip([0, *ends], ends)]
        return [(rows, _as_range(need - rows.start)) for rows, need in zip(ranges, self._divided(self.needs[q], q, n))]

    def _divided(self, rows, q, n):
        """Divide ascending rows of rank q by its ranges."""
        return [rows] if n == 1 else np.split(rows, np.searchsorted(rows, range_ends(self.offsets, q, n)[:-1]))

    def dtype(self, n_columns):
        """The dtype of blocks' indices."""
        most = max([n_columns, *(len(cut.edges.indices) for cut in self.cuts)])
        return np.dtype(np.int32 if most < 2**31 else np.int64)

    def separate(self, n=1):
        """Return a Plan with a block for each part, or for each of the `n` ranges of a peer's rows, cut at the same places on all ranks."""
        offsets, n_columns = self.column_offsets()
        ends = [np.cumsum([len(rows) for rows in self._divided(self.needs[q], q, n)]).tolist() if q != self.rank else [len(self.src_ids[q])]
                for q in range(self.size)]
        src_ids = [ids for own, at in zip(self.src_ids, ends) for ids in np.split(own, at[:-1])]
        starts = [first + a for first, at in zip(offsets, ends) for a in (0, *at[:-1])]
        sets = [cut.blocks(self.rank, ends, src_ids, starts, self.dtype(n_columns)) for cut in self.cuts]
        found = iter(sets[0] if len(sets) == 1 else [Bundle(blocks) for blocks in zip(*sets)])
        blocks = [[next(found) for _ in at] for at in ends]
        steps = self._steps(blocks, n)
        parts = tuple(small for step in steps for small in step.cut(-(-self.n_parts // n)))
        return Plan(len(self.src_ids[self.rank]), blocks[self.rank][0], steps, parts, degree=self.degree)

    @property
    def n_parts(self):
        """In how many parts a step is taken backward; every rank decides alike."""
        return max(1, min(-(-BACKWARD_STEPS // max(self.size - 1, 1)), int(self.offsets[-1]) // self.size // STEP_ROWS))

    def merged(self):
        """Return a Plan with one block of all edges."""
        offsets, n_columns = self.column_offsets()
        src_ids = np.concatenate([self.src_ids[q] for q in self.order])
        blocks = [cut.merged(src_ids, offsets, self.dtype(n_columns)) for cut in self.cuts]
        return Plan(len(self.src_ids[self.rank]), blocks[0] if len(blocks) == 1 else Bundle(blocks), self._steps(None), (),
                    degree=self.degree)

    def _steps(self, blocks, n=1):
        steps = []
        for s in range(1, self.size):
            source, target = (self.rank + s) % self.size, (self.rank - s) % self.size
            pieces = [None] if blocks is None else blocks[source]
            needs, asked = self._divided(self.needs[source], source, n), self._divided(self.asked[target], self.rank, n)
            steps += [Step(source, target, block, len(need), isinstance(_as_range(need), slice), _as_range(rows), Fraction(1, n))
                      for block, need, rows in zip(pieces, needs, asked)]
        return tuple(steps)


def build(comm, sets, src_ids, n_local_src):
    """Find what this rank must exchange with its peers. Collective.

    Parameters
    ----------
    comm : Communicator
    sets : list of InEdges
        Sets of edges from the same source rows, which one fetch serves: one, or one a relation.
    src_ids : (n_local_src,) int64, or None
        Global ids of this rank's source rows; None: their row numbers. On all ranks alike.
    n_local_src : int

    Returns
    -------
    Exchange

    Raises
    ------
    DataError
        On every rank together: an index out of range or indptr not ascending.

    Notes
    -----
    Takes O(local edges) and O(rows of one part) bytes; nothing is O(n_nodes).
    """
    n_src, n_dst, n_edges = zip(*comm.allgather((int(n_local_src), sum(edges.n_dst for edges in sets),
                                                 sum(len(edges.indices) for edges in sets))))
    offsets = np.concatenate([[0], np.cumsum(n_src)])
    first = int(offsets[comm.rank])
    error = next(filter(None, (part.find_error(edges, int(offsets[-1])) for edges in sets)), None)
    raise_together(comm, error)
    sets = [edges.sorted() for edges in sets]
    where, needs = part.needed_rows(sets, offsets, comm.rank)
    asked = comm.alltoall(needs)
    own = np.arange(first, first + n_local_src) if src_ids is None else np.asarray(src_ids, np.int64)
    if src_ids is None:
        halo_ids = [need + start for need, start in zip(needs, offsets)]
    else:
        halo_ids = comm.alltoall([own[rows] for rows in asked])
    halo_ids[comm.rank] = own
    return Exchange(comm.rank, offsets, part.cut(sets, where, needs, offsets, comm.rank), needs, asked, halo_ids,
                    sum(n_edges) / max(sum(n_dst), 1))


def n_pieces(offsets, degree):
    """In how many pieces ranks' rows come, of graphs of these `offsets` and mean number of edges of a row."""
    size = len(offsets) - 1
    return int(max(1, min(MOST_PIECES, degree / size // PIECE_EDGES, offsets[-1] / size // PIECE_ROWS)))


def range_ends(offsets, q, n):
    """Where the `n` ranges of rank q's rows end, counted from its first row."""
    return (np.arange(1, n + 1) * (offsets[q + 1] - offsets[q]) // n).tolist()


def _as_range(rows):
    """Rows as a slice where each follows the one before, else as small integers."""
    if len(rows) == 0:
        return slice(0, 0)
    if rows[-1] - rows[0] + 1 == len(rows) and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows.astype(np.int32 if rows.max() < 2**31 else np.int64)


def _cut_rows(rows, a, b):
    return slice(rows.start + a, rows.start + b) if isinstance(rows, slice) else rows[a:b]

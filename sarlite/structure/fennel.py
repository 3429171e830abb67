"""Fennel: a graph partitioner that reads the in-edges several times in order, with one number per node in memory."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from sarlite.structure import balance as balancing
from sarlite.structure.edges import row_chunks
from sarlite.types import Array

PASSES = 12
"""Largest number of passes over the edges. A pass that moves less than a thousandth of the nodes is the last pass."""
BLOCK_BYTES = 96 << 20
"""Largest memory of a block of nodes and their edges in bytes, unless a single node has more edges."""
SLACK = {"nodes": 1.03, "edges": 1.1, "train": balancing.TRAIN_SLACK}
"""Size of a full part by each count, as a multiple of the mean over parts, rounded up.

A node that fits into no part makes a part larger than this.
"""
BLOCK_EDGES = 1 << 20
"""Largest number of edges that are read at a time; all edges of a node are read together."""
_BLOCK_NODES = 4096
_BLOCKS = 64  # least number of blocks in a pass, so that a node's part is chosen when most other nodes have theirs
_LOCAL = 0.9  # ranges of ids are the start if they cut less than this share of the edges that a random partition cuts
_STILL = 1e-3


class ReadableEdges(Protocol):
    """In-edges of all nodes, which can be read in pieces: arrays in memory (`EdgesInMemory`), or files."""

    n_nodes: int
    n_edges: int

    def indptr(self, first: int, last: int) -> Array:
        """Return the CSR row pointers of nodes first .. last - 1, (last - first + 1,) int. They may count from any number, so only
        differences have a meaning.
        """

    def sources(self, first: int, last: int) -> Array:
        """Return the sources of the edges into nodes first .. last - 1, node after node."""


class EdgesInMemory:
    """In-edges of all nodes as a CSR in memory, for functions that take `ReadableEdges`."""

    def __init__(self, indptr: Array, indices: Array) -> None:
        self._indptr, self._indices = indptr, indices
        self.n_nodes, self.n_edges = indptr.size - 1, indices.size

    def indptr(self, first: int, last: int) -> Array:
        return self._indptr[first : last + 1]

    def sources(self, first: int, last: int) -> Array:
        return self._indices[self._indptr[first] : self._indptr[last]]


def fennel(edges: ReadableEdges, n_parts: int, *, train: Array | None = None, balance: str | Sequence[str] | None = None,
           types: Sequence[int] | Array | None = None, seed: int = 0, tell: Callable[[str], object] = lambda text: None,
           block_edges: int = BLOCK_EDGES) -> Array:
    """Return each node's part, (n_nodes,) int32, by Fennel, which streams the in-edges in passes, `block_edges` at a time, and
    calls tell(text) before each. `balance` names the counts to balance (None: by the in-degrees); `train` is the mask of training
    nodes, types[k] the first node of type k.

    Node v goes to the part p with the largest |N(v) in p| - alpha gamma size_p^(gamma - 1), where gamma = 1.5 and
    alpha = sqrt(n_parts) (n_edges / 2) / n_nodes^1.5. size_p is the number of nodes of the part, or the mean of its
    sizes by each balanced count. The first pass starts from ranges of ids, or from a random partition if ranges of ids
    cut about as many edges. Each further pass starts from the partition of the pass before.

    Parameters
    ----------
    edges : ReadableEdges
    n_parts : int
        At least 1.
    train : (n_nodes,) bool, optional
        True for training nodes.
    balance : str or sequence of str, optional
        Counts to balance; see `partition.partition`.
    types : (n_types + 1,) int, optional
        Nodes types[k] .. types[k + 1] - 1 are of one type. If nodes are balanced, each type is balanced.
    seed : int
        Seed of the random partition at the start.
    tell : callable
        Function of a text, called at the start of each pass.
    block_edges : int
        Largest number of edges that are read at a time; all edges of a node are read together.

    Returns
    -------
    (n_nodes,) int32
        Part of each node.

    Notes
    -----
    Nodes are processed in blocks of some thousand. All nodes of a block are scored against the parts after the block
    before. If more nodes want a part than fit into it, the nodes that lose least elsewhere go elsewhere. Only in-edges
    count, also in a graph that is not symmetric. Memory: 4 bytes for each node, and `BLOCK_BYTES`. Time of a pass:
    about the time to read the edges.

    References
    ----------
    Tsourakakis, Gkantsidis, Radunovic and Vojnovic 2014, "FENNEL: streaming graph partitioning for massive scale
    graphs"; Nishimura and Ugander 2013, "Restreaming graph partitioning".
    """
    types = (0, edges.n_nodes) if types is None else types
    state = _Parts(edges, n_parts, train, balance, types, seed, block_edges)
    for number in range(PASSES):
        tell(f"stream {number + 1}")
        moved = sum(state.place(*block) for block in blocks(edges, n_parts, block_edges))
        if moved <= _STILL * edges.n_nodes:
            break
    return balancing.fill_empty(state.parts, n_parts) if edges.n_nodes >= n_parts else state.parts


class _Parts:
    """State of a partition in progress: each node's part, and `loads`, (n_counts, n_parts), the amount in each part of each count
    that is balanced. "nodes" is one count for each node type; "edges" and "train" are one count each.
    """

    def __init__(self, edges, n_parts, train, balance, types, seed, block_edges):
        self.n_parts, self.train, self.types = n_parts, train, list(zip(types, types[1:]))
        counts = _counts(edges, balance, block_edges)
        self.names = [name for name in counts if name != "train" or (train is not None and np.any(train))] or ["nodes"]
        sizes = [len(self.types) if name == "nodes" else 1 for name in self.names]
        self.rows = [slice(end - n, end) for n, end in zip(sizes, np.cumsum(sizes))]
        self.parts = np.empty(edges.n_nodes, np.int32)
        for first, last in self.types:
            _ranges(self.parts[first:last], n_parts)
        if _cut(edges, self.parts, block_edges) > _LOCAL * (1 - 1 / n_parts) * edges.n_edges:
            for first, last in self.types:
                _shuffle(self.parts[first:last], seed)
        self.loads = np.zeros((sum(sizes), n_parts))
        for first, last, ends in _row_pieces(edges, block_edges):
            for load, weights in zip(self.loads, self._weights(first, last, np.diff(ends))):
                load += np.bincount(self.parts[first:last], weights, n_parts)
        self.share = self.loads.sum(axis=1, keepdims=True) / n_parts
        slack = np.repeat([SLACK[name] for name in self.names], sizes)
        self.most = np.ceil(self.share * slack[:, None])
        price = 1.5 * n_parts**0.5 * edges.n_edges / 2 / max(edges.n_nodes, 1) ** 1.5
        self.price = price * (edges.n_nodes / n_parts) ** 0.5

    def place(self, first: int, last: int, degrees: Array, sources: Array) -> int:
        """Assign nodes first .. last - 1 to parts again, and return how many moved. `degrees` are the nodes' in-degrees, and
        `sources` the sources of their in-edges, node after node.
        """
        old, weights, n = self.parts[first:last].copy(), self._weights(first, last, degrees), last - first
        near = np.repeat(np.arange(n) * self.n_parts, degrees) + self.parts[sources]
        for load, weight in zip(self.loads, weights):
            load -= np.bincount(old, weight, self.n_parts)
        loads = np.array([self.loads[rows].sum(axis=0) / max(self.share[rows].sum(), 1e-300) for rows in self.rows])
        n_near = np.bincount(near, minlength=n * self.n_parts).reshape(n, self.n_parts)
        score = n_near - self.price * loads.mean(axis=0) ** 0.5
        new = _assign_within_limits(score, np.array(weights), self.loads, self.most)
        self.parts[first:last] = new
        return int(np.count_nonzero(new != old))

    def _weights(self, first: int, last: int, degrees: Array) -> list[Array]:
        """Return a list with an array (last - first,) for each row of `loads`: how much each of the nodes first .. last - 1 adds to
        the count, for example 1 to "nodes" and its in-degree (`degrees`) to "edges".
        """
        nodes = np.arange(first, last)
        rows = {"nodes": lambda: [((nodes >= a) & (nodes < b)).astype(float) for a, b in self.types],
                "edges": lambda: [degrees.astype(float)], "train": lambda: [np.asarray(self.train[first:last], float)]}
        return [weights for name in self.names for weights in rows[name]()]


def _assign_within_limits(score: Array, weights: Array, loads: Array, most: Array) -> Array:
    """Assign each of n nodes to the part of highest `score`, (n, n_parts), that has room for the node, or to the least full part if
    none has; return each node's part. Node i adds weights[:, i] to the counts of its part, such as its numbers of nodes and of
    edges. `loads`, the counts so far, are updated; `most` are their limits, both (n_counts, n_parts).

    Parameters
    ----------
    score : (n, n_parts) float
        Score of each part for each node; overwritten.
    weights : (n_counts, n) float
        Amount that each node adds to each count.
    loads, most : (n_counts, n_parts) float
        Current and largest size of each part by each count.
    """
    chosen, left = np.empty(len(score), np.int64), np.arange(len(score))
    while left.size:
        for weight, full in zip(weights[:, left], loads >= most):
            score[np.ix_(weight > 0, full)] = -np.inf
        best = score.argmax(axis=1)
        if not np.isfinite(score[np.arange(left.size), best]).all():
            return _assign_one_by_one(score, weights, loads, most, chosen, left)
        order, fits = _first_that_fit(score, best, weights[:, left], most - loads)
        placed, rest = order[fits], order[~fits]
        chosen[left[placed]] = best[placed]
        for load, weight in zip(loads, weights):
            load += np.bincount(best[placed], weight[left[placed]], load.size)
        score[rest, best[rest]] = -np.inf
        rest.sort()
        score, left = score[rest], left[rest]
    return chosen


def _first_that_fit(score: Array, best: Array, weights: Array, room: Array) -> tuple[Array, Array]:
    """Decide which nodes may enter the part that each prefers, `best`. Return (nodes, admitted): first the nodes sorted by this
    part; then a mask of the sorted nodes that may enter. Nodes enter a part as long as the sums of their `weights`, (n_counts, n),
    fit into its `room`, (n_counts, n_parts). The nodes whose `score` drops most in any other part come first.
    """
    top = score[np.arange(best.size), best]
    others = score.copy()
    others[np.arange(best.size), best] = -np.inf
    order = np.lexsort((others.max(axis=1) - top, best))
    part, fits = best[order], np.ones(best.size, bool)
    begin = np.searchsorted(part, part)
    for weight, free in zip(weights[:, order], room):
        total = np.cumsum(weight)
        fits &= (total - total[begin] + weight[begin] <= free[part]) | (weight == 0)
    return order, fits


def _assign_one_by_one(score: Array, weights: Array, loads: Array, most: Array, chosen: Array, left: Array) -> Array:
    """Assign each of the nodes `left` to the part of highest `score` whose `loads` plus the node's `weights` stay within `most`, or
    to the least full part if there is none. score[k] belongs to left[k]. Write the parts to the array `chosen`, which is returned,
    and add the weights to `loads`.
    """
    for row, node in enumerate(left):
        weight = weights[:, node, None]
        fullness = np.where(weight > 0, (loads + weight) / np.maximum(most, 1), 0).max(axis=0)
        open_parts = np.where(fullness <= 1, score[row], -np.inf)
        part = int(open_parts.argmax()) if np.isfinite(open_parts).any() else int(fullness.argmin())
        chosen[node] = part
        loads[:, part] += weights[:, node]
    return chosen


def _counts(edges: ReadableEdges, balance: str | Sequence[str] | None, block_edges: int) -> tuple[str, ...]:
    """Return the names of the counts to balance, some of "nodes", "edges" and "train": the option `balance`, or if it is None or
    "auto", a choice by the in-degrees, which are read for `block_edges` nodes at a time.
    """
    counts = balancing.check(balance)
    if counts is not None:
        return counts
    squares = sum(float((np.diff(ends).astype(float) ** 2).sum()) for *_, ends in _row_pieces(edges, block_edges))
    mean = edges.n_edges / max(edges.n_nodes, 1)
    return balancing.by_degrees(mean, max(squares / max(edges.n_nodes, 1) - mean**2, 0) ** 0.5)


def _ranges(parts: Array, n_parts: int) -> None:
    """Fill the array `parts` in place with equal ranges of part numbers: 0 for the first 1 / n_parts of its entries, and so on."""
    for first in range(0, parts.size, BLOCK_EDGES):
        last = min(first + BLOCK_EDGES, parts.size)
        parts[first:last] = np.arange(first, last) * n_parts // parts.size


def _shuffle(parts, seed):
    np.random.Generator(np.random.PCG64(seed)).shuffle(parts)


def _cut(edges: ReadableEdges, parts: Array, block_edges: int) -> int:
    """Return the number of edges between different parts, where parts[i] is node i's part; `block_edges` edges are read at a time."""
    return sum(int(np.count_nonzero(np.repeat(parts[first:last], degrees) != parts[sources]))
               for first, last, degrees, sources in blocks(edges, 1, block_edges))


def _row_pieces(edges: ReadableEdges, most: int) -> Iterator[tuple[int, int, Array]]:
    """Yield (first node, node after the last, CSR row pointers of these nodes) for consecutive ranges of at most `most` nodes."""
    for first in range(0, edges.n_nodes, most):
        last = min(first + most, edges.n_nodes)
        yield first, last, edges.indptr(first, last)


def blocks(edges: ReadableEdges, n_parts: int, most_edges: int = BLOCK_EDGES) -> Iterator[tuple[int, int, Array, Array]]:
    """Yield (first node, node after the last, in-degrees, sources of the in-edges) for consecutive ranges of nodes. A range has at
    most `most_edges` edges, unless it is a single node, and so few nodes that an array of a number for each node and each of
    `n_parts` parts fits into `BLOCK_BYTES`.
    """
    most_nodes = max(1, min(_BLOCK_NODES, max(16, edges.n_nodes // _BLOCKS), (BLOCK_BYTES >> 5) // n_parts))
    for first, _, ends in _row_pieces(edges, most_edges):
        for low, high in row_chunks(ends, most_edges):
            begin = ends[low]
            sources = edges.sources(first + low, first + high)
            for at in range(low, high, most_nodes):
                stop = min(at + most_nodes, high)
                here = sources[ends[at] - begin : ends[stop] - begin]
                yield first + at, first + stop, np.diff(ends[at : stop + 1]), here

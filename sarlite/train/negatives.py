"""Negatives: pairs of nodes that are no links, drawn by counter, so that they are the same on any number of ranks."""

from copy import copy

import numpy as np

from sarlite.comm import Communicator
from sarlite.graph.part import owners
from sarlite.keys import GAMMA, key, splitmix64
from sarlite.minibatch.part_edges import share
from sarlite.sar.graph.graph import Graph
from sarlite.sar.graph.link_graph import LinkGraph
from sarlite.types import Array

TRIES = 32
"""How often a negative that is a link is drawn again."""


class RowNumbers:
    """The row numbers of nodes by id, of which each rank knows a range. Construction and calls are collective.

    Parameters
    ----------
    comm : Communicator
    ids : (n_local,) int64
        Of this rank's rows; those of all ranks are 0 .. n - 1.

    Attributes
    ----------
    n : int
        How many nodes there are.

    Notes
    -----
    Memory: 8 bytes a local row. A call sends 16 bytes an id.
    """

    def __init__(self, comm: Communicator, ids: Array) -> None:
        counts = comm.allgather(len(ids))
        self.comm, self.n, self.range = comm, sum(counts), max(-(-sum(counts) // comm.size), 1)
        rows = sum(counts[: comm.rank]) + np.arange(len(ids))
        order, starts = self._by_rank(ids)
        pairs = np.stack([np.asarray(ids, np.int64), rows], 1)[order]
        found = np.concatenate(comm.alltoall(share(pairs, starts)))
        self._rows = np.empty(len(found), np.int64)
        self._rows[found[:, 0] - comm.rank * self.range] = found[:, 1]

    def on(self, comm: Communicator) -> "RowNumbers":
        """Return the same, whose calls communicate by another channel."""
        other = copy(self)
        other.comm = comm
        return other

    def __call__(self, ids: Array) -> Array:
        """Return the row number of each id, of `ids`' shape. Collective."""
        order, starts = self._by_rank(ids.reshape(-1))
        asked = self.comm.alltoall(share(ids.reshape(-1)[order], starts))
        told = [self._rows[part - self.comm.rank * self.range] for part in asked]
        found = np.empty(ids.size, np.int64)
        found[order] = np.concatenate(self.comm.alltoall(told))
        return found.reshape(ids.shape)

    def _by_rank(self, ids):
        """In which order ids go to the ranks that know them, and where each rank's begin."""
        rank = ids // self.range
        order = np.argsort(rank, kind="stable")
        return order, np.searchsorted(rank[order], np.arange(self.comm.size + 1))


SAMPLERS = ("uniform", "per-source")


class Negatives:
    """Draws pairs of nodes that are no links, nor a node with itself.

    Parameters
    ----------
    numbers : RowNumbers
    ids : (n_local,) int64
        Of this rank's rows.
    known : (m,) int64
        head's local row * n_nodes + tail's id of each link, ascending.
    sampler : {"uniform", "per-source"}
        Both ends are drawn uniformly of all nodes; or the tail, and the head is the link's.
    seed : int
    purpose : str
        Of the key: other purposes draw other negatives.

    Notes
    -----
    A negative depends on the seed, the step, the ids of its link and its column. After `TRIES` draws that were links
    the last one stays: that of a node linked to nearly all others.
    """

    def __init__(self, numbers: RowNumbers, ids: Array, known: Array, sampler: str, seed: int, purpose: str) -> None:
        self.numbers, self.ids, self.known, self.seed, self.purpose = numbers, ids, known, seed, purpose
        self.comm, self.of_pairs = numbers.comm, sampler == "uniform"
        self.offsets = np.concatenate([[0], np.cumsum(self.comm.allgather(len(ids)))])

    def on(self, comm: Communicator) -> "Negatives":
        """Return the same, whose calls communicate by another channel."""
        other = copy(self)
        other.comm, other.numbers = comm, self.numbers.on(comm)
        return other

    def __call__(self, heads: Array, tails: Array, n: int, step: int) -> tuple[Array, Array]:
        """Return the row numbers of the ends of n negatives for each link, heads and tails, (k, n) int64. Collective.

        Parameters
        ----------
        heads, tails : (k,) int64
            The links': local rows, and ids.
        """
        own = splitmix64(self.ids[heads].astype(np.uint64) ^ np.uint64(key(self.seed, self.purpose, "", step, 0)))
        own = splitmix64(own ^ tails.astype(np.uint64))
        wrong = np.arange(len(heads) * n)
        found = np.stack([np.repeat(heads + self.offsets[self.comm.rank], n), np.zeros(len(heads) * n, np.int64)])
        for number in range(TRIES):
            row, column = np.divmod(wrong, n)
            places = (column * TRIES + number) * 2
            ends = [self._node(own[row], places + end) for end in (0, 1)]
            found[1, wrong] = self.numbers(ends[1])
            if self.of_pairs:
                found[0, wrong] = self.numbers(ends[0])
            wrong = wrong[self._are_links(found[0, wrong], ends[1])]
            if not self.comm.allreduce(np.array([len(wrong)]))[0]:
                break
        return found[0].reshape(-1, n), found[1].reshape(-1, n)

    def _node(self, own, places):
        """A uniform node for each of these random bits and counters."""
        bits = splitmix64(own + places.astype(np.uint64) * np.uint64(GAMMA)) >> np.uint64(11)
        n = self.numbers.n
        return np.minimum((bits * 2.0**-53 * n).astype(np.int64), n - 1)

    def _are_links(self, heads, tails):
        """Which pairs of a row number and an id are links, or one node; the head's owner says it. Collective."""
        if not self.of_pairs:
            return self._are_own(heads - self.offsets[self.comm.rank], tails)
        owner = owners(heads, self.offsets)
        order = np.argsort(owner, kind="stable")
        starts = np.searchsorted(owner[order], np.arange(self.comm.size + 1))
        asked = self.comm.alltoall(share(np.stack([heads - self.offsets[owner], tails], 1)[order], starts))
        found = np.empty(len(heads), bool)
        found[order] = np.concatenate(self.comm.alltoall([self._are_own(*part.T) for part in asked]))
        return found

    def _are_own(self, heads, tails):
        wanted = heads * self.numbers.n + tails
        places = np.minimum(np.searchsorted(self.known, wanted), max(len(self.known) - 1, 0))
        there = self.known[places] == wanted if len(self.known) else np.zeros(len(wanted), bool)
        return there | (self.ids[heads] == tails)


class Candidates:
    """A rank's links, and the negatives that they are compared with. A call makes the `LinkGraph` of a step; collective.

    Parameters
    ----------
    nodes : Graph
        The edges along which messages pass.
    heads, tails, rows : (n_links,) int64
        The links': local rows of the heads; ids of the tails, and their row numbers.
    negatives : Negatives
    n : int
        Negatives of each link.
    """

    def __init__(self, nodes: Graph, heads: Array, tails: Array, rows: Array, negatives: Negatives, n: int) -> None:
        self.nodes, self.heads, self.tails, self.rows, self.negatives, self.n = nodes, heads, tails, rows, negatives, n

    def on(self, comm: Communicator) -> "Candidates":
        """Return the same, whose negatives are drawn by another channel."""
        return Candidates(self.nodes, self.heads, self.tails, self.rows, self.negatives.on(comm), self.n)

    def pairs(self, step: int, of: Array) -> tuple[Array, Array]:
        """Return both ends of the candidates of some links, as `LinkGraph` takes them. Collective."""
        drawn = self.negatives(self.heads[of], self.tails[of], self.n, step)
        heads, first = self.heads[of], self.negatives.offsets[self.negatives.comm.rank]
        if self.negatives.of_pairs:
            heads = np.concatenate([heads[:, None] + first, drawn[0]], 1)
        return heads, np.concatenate([self.rows[of, None], drawn[1]], 1)

    def __call__(self, step: int, of: Array) -> LinkGraph:
        return LinkGraph(self.nodes, *self.pairs(step, of))

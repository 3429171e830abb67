"""Negatives: random pairs of nodes that are not links, the same on any number of ranks.

The random numbers depend on the seed, the step and ids alone.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np

from sarlite.comm import Communicator
from sarlite.comm.routing import ask, send
from sarlite.errors import DataError, raise_together
from sarlite.graph.hetero import Relation
from sarlite.graph.link_graph import LinkGraph, NodeRows
from sarlite.keys import GAMMA, key, splitmix64
from sarlite.structure.part_edges_csr import among, owners
from sarlite.tasks.link_edges import Ends
from sarlite.types import Array

AT_ONCE = 1 << 18
"""Number of candidates that are scored at a time in evaluation."""
TRIES = 32
"""Number of draws of a negative. If all draws are links, a last draw is from the pairs that are not links."""


class RowNumbers:
    """Map from node ids to row numbers. Row numbers count the rows of all ranks, rank 0's first. Each rank stores the map for a range of
    ids. Calls are collective.

    Construction is collective, too.

    Parameters
    ----------
    comm : Communicator
    ids : (n_local,) int64
        Ids of this rank's rows. The ids of all ranks are 0 .. n - 1.

    Attributes
    ----------
    n : int
        Number of nodes.

    Notes
    -----
    Memory: 8 bytes for each local row. Bytes sent by a call: 16 for each id.

    Examples
    --------
    >>> from sarlite.comm import threads
    >>> def work(comm):
    ...     return RowNumbers(comm, np.array([3, 0] if comm.rank == 0 else [2, 1]))(np.array([0, 1, 2, 3])).tolist()
    >>> threads.run(2, work)
    [[1, 3, 2, 0], [1, 3, 2, 0]]
    """

    def __init__(self, comm: Communicator, ids: Array) -> None:
        counts = comm.allgather(len(ids))
        self.comm, self.n, self.range = comm, sum(counts), max(-(-sum(counts) // comm.size), 1)
        rows = sum(counts[: comm.rank]) + np.arange(len(ids))
        received = send(comm, ids // self.range, np.stack([np.asarray(ids, np.int64), rows], 1))
        self._rows = np.empty(len(received), np.int64)
        self._rows[received[:, 0] - comm.rank * self.range] = received[:, 1]

    def on(self, comm: Communicator) -> "RowNumbers":
        """Return a copy whose calls use the communicator `comm`, which has the same ranks."""
        other = copy(self)
        other.comm = comm
        return other

    def __call__(self, ids: Array) -> Array:
        """Return the row number of each node id, an int64 array with the shape of `ids`. Collective."""
        flat, first = ids.reshape(-1), self.comm.rank * self.range
        return ask(self.comm, flat // self.range, flat, lambda asked: self._rows[asked - first]).reshape(ids.shape)


SAMPLERS = ("uniform", "per-source", "in-batch")
"""Names of the samplers, see `Negatives`."""


class ListedTails(NamedTuple):
    """Candidate tails of negatives that the user lists for each head, in CSR form.

    Attributes
    ----------
    starts : (n_local + 1,) int64
        The tails of local row i are at positions starts[i] to starts[i + 1] - 1.
    tails, rows : (n_tails,) int64
        Ids and row numbers of the tails.
    """

    starts: Array
    tails: Array
    rows: Array


class Negatives:
    """Function that draws negatives: pairs of two different nodes that are not links. Calls are collective.

    Parameters
    ----------
    numbers : RowNumbers
        Row numbers of the nodes.
    ids : (n_local,) int64
        Ids of this rank's rows.
    heads, tails : Ends
        Nodes that heads and tails are drawn from.
    link_keys : (m,) int64
        Key (local row of the head) * n_nodes + (id of the tail) of each link, ascending.
    sampler : {"uniform", "per-source", "in-batch"}, or (k, 2) int64
        "uniform" draws both ends from all nodes. The other samplers keep the head of the link: "per-source" draws the
        tail from all nodes, "in-batch" from the tails of the step's links on all ranks. An array lists hard negatives, and
        each rank passes some of the pairs. The tails listed for a head are used in turn. A head without listed tails
        draws from all nodes.
    seed : int
        Seed of the draws.
    purpose : str
        Part of the random key: different purposes draw different negatives.

    Notes
    -----
    A negative depends on the seed, the step, the ids of its link and its column, and for "in-batch" on the step's links.
    "in-batch" draws from all nodes after half of the `TRIES`, because a batch may have only tails of links. After `TRIES`
    draws that are links, the tail is drawn from the nodes that are not linked to the head. For "uniform" the pair is
    then drawn from all pairs that are not links, and 16 bytes for each head are sent to all ranks. Listed pairs that are
    links are ignored.

    Examples
    --------
    >>> from sarlite.comm import Solo
    >>> ids, ends = np.arange(4), Ends(0, 4)
    >>> negatives = Negatives(RowNumbers(Solo(), ids), ids, ends, ends, np.array([1, 2]), "per-source", 0, "an example")
    >>> heads, tails = negatives(np.array([0]), np.array([1]), n=3, step=0)  # node 0 is linked to nodes 1 and 2
    >>> heads.tolist(), tails.tolist()
    ([[0, 0, 0]], [[3, 3, 3]])
    """

    def __init__(self, numbers: RowNumbers, ids: Array, heads: Ends, tails: Ends, link_keys: Array, sampler: str | Array, seed: int,
                 purpose: str) -> None:
        self.numbers, self.ids, self.link_keys, self.seed, self.purpose = numbers, ids, link_keys, seed, purpose
        self.heads, self.tails = heads, tails
        is_listed = isinstance(sampler, np.ndarray)
        self.comm = numbers.comm
        self.of_pairs, self.in_batch = (not is_listed and sampler == one for one in ("uniform", "in-batch"))
        self.offsets = np.concatenate([[0], np.cumsum(self.comm.allgather(len(ids)))])
        self.listed = self._list_tails(sampler) if is_listed else None
        self._taken: Array | None = None  # ascending keys of the links, and of each node with itself

    def on(self, comm: Communicator) -> "Negatives":
        """Return a copy whose calls use the communicator `comm`, which has the same ranks."""
        other = copy(self)
        other.comm, other.numbers = comm, self.numbers.on(comm)
        return other

    def __call__(self, heads: Array, tails: Array, n: int, step: int) -> tuple[Array, Array]:
        """Draw n negatives (node pairs that are no links) for each link, whose head has local row heads[i] and whose tail has id tails[i].
        Return row numbers (heads, tails) over all ranks, both (k, n). The global `step` makes the draws of each step different. Collective.

        Parameters
        ----------
        heads, tails : (k,) int64
            Local rows of the links' heads, and ids of their tails.
        n : int
            Number of negatives of each link.
        step : int
            The global step, part of the random key.

        Returns
        -------
        heads, tails : (k, n) int64
            Row numbers over all ranks.

        Raises
        ------
        DataError
            On every rank: all pairs of a head, or for "uniform" all pairs, are links. See `n_left`.
        """
        link_bits = splitmix64(self.ids[heads].astype(np.uint64) ^ np.uint64(key(self.seed, self.purpose, "", step, 0)))
        link_bits = splitmix64(link_bits ^ tails.astype(np.uint64))
        drawn = np.stack([np.repeat(heads + self.offsets[self.comm.rank], n), np.zeros(len(heads) * n, np.int64)])
        wrong = np.arange(len(heads) * n) if self.listed is None else self._fill_listed(drawn[1], link_bits, heads, n)
        of_batch = self._batch_sampler(tails) if self.in_batch else None
        for number in range(TRIES):
            row, column = np.divmod(wrong, n)
            bits, places = link_bits[row], (column * TRIES + number) * 2
            if of_batch and number < TRIES // 2:
                end = of_batch(bits, places + 1)
            else:
                end = _draw_node(self.tails, bits, places + 1)
            drawn[1, wrong] = self.numbers(end)
            if self.of_pairs:
                drawn[0, wrong] = self.numbers(_draw_node(self.heads, bits, places))
            wrong = wrong[self._are_links(drawn[0, wrong], end)]
            if not self.comm.allreduce(np.array([len(wrong)]))[0]:
                break
        else:
            row, column = np.divmod(wrong, n)
            drawn[:, wrong] = self._draw_from_rest(heads[row], splitmix64(link_bits[row]), column)
        return drawn[0].reshape(-1, n), drawn[1].reshape(-1, n)

    def n_left(self, heads: Array) -> Array:
        """Return, for each local row in `heads`, how many nodes can be the tail of a negative with this head, (k,) int64."""
        starts, stops = self._key_range(self.link_keys, heads)
        return self.tails.n - (stops - starts) - self._is_tail(self.ids[heads])

    def _draw_from_rest(self, heads: Array, random_bits: Array, counters: Array) -> Array:
        """Draw one negative for each i without rejection, from the list of all pairs that are no links; random_bits[i] and counters[i]
        choose the pair. Its head is local row heads[i] or, with the sampler "uniform", is drawn as well. Return row numbers [heads, tails]
        over all ranks, (2, k). Collective.
        """
        if self.of_pairs:
            rows = np.flatnonzero((self.ids >= self.heads.first) & (self.ids < self.heads.first + self.heads.n))
            every = np.concatenate(self.comm.allgather(np.stack([self.ids[rows], self.n_left(rows)], 1)))
            ids, ends = every[np.argsort(every[:, 0])].T
            ends = np.cumsum(ends)
            self._check_left(len(random_bits) and (not len(ends) or not ends[-1]))
            at = _draw_below(ends[-1] if len(ends) else 0, random_bits, counters)
            which = np.searchsorted(ends, at, "right")
            rows, at = self.numbers(ids[which]), at - np.concatenate([[0], ends])[which]
            owner = owners(rows, self.offsets)
            asked = np.stack([rows - self.offsets[owner], at], 1)
            tails = ask(self.comm, owner, asked, lambda part: self._free_tails(*part.T))
        else:
            n_left, rows = self.n_left(heads), heads + self.offsets[self.comm.rank]
            self._check_left(not n_left.all())
            tails = self._free_tails(heads, _draw_below(n_left, random_bits, counters))
        return np.stack([rows, self.numbers(tails)])

    def _check_left(self, all_linked: bool | int) -> None:
        """Raise a DataError on every rank if `all_linked` is True on any rank: all pairs that negatives may be drawn from are links.
        Collective.
        """
        raise_together(self.comm, DataError("negatives: all pairs are links, so there are no negatives") if all_linked
                       else None)

    def _free_tails(self, heads: Array, index: Array) -> Array:
        """Return a tail that is not linked to the head, for each local row heads[i] of a head, as an id, (k,) int64. All nodes not linked
        to the head, sorted by id, are counted from 0, and index[i] selects one.
        """
        if self._taken is None:
            local_tails = np.flatnonzero(self._is_tail(self.ids))
            self._taken = np.union1d(self.link_keys, local_tails * self.numbers.n + self.ids[local_tails])
        starts, stops = self._key_range(self._taken, heads)
        first, low, high = heads * self.numbers.n + self.tails.first, starts, stops
        while (open_ := low < high).any():  # bisection for the number of the head's tails before the wanted node
            middle = np.where(open_, (low + high) // 2, 0)
            before = open_ & (self._taken[middle] - first - (middle - starts) <= index)
            low, high = np.where(before, middle + 1, low), np.where(open_ & ~before, middle, high)
        return self.tails.first + index + low - starts

    def _key_range(self, keys: Array, heads: Array) -> tuple[Array, Array]:
        """Return (starts, stops) such that keys[starts[i] : stops[i]] are the keys of the links whose head is local row heads[i]. `keys`
        are ascending, and a key is (local row of the head) * n_nodes + (id of the tail).
        """
        first = heads * self.numbers.n + self.tails.first
        return np.searchsorted(keys, first), np.searchsorted(keys, first + self.tails.n)

    def _is_tail(self, ids):
        return (ids >= self.tails.first) & (ids < self.tails.first + self.tails.n)

    def _batch_sampler(self, tails: Array) -> Callable[[Array, Array], Array]:
        """Return a function (random bits, counters) -> node ids, drawn from all ranks' `tails`, the tail ids of this step's links. A tail
        of several links is drawn more often. Making and calling the function are collective.
        """
        comm = self.comm
        owned_tails = np.sort(send(comm, tails // self.numbers.range, tails))
        starts = np.concatenate([[0], np.cumsum(comm.allgather(len(owned_tails)))])

        def draw(random_bits, counters):
            at = _draw_below(starts[-1], random_bits, counters)
            return ask(comm, owners(at, starts), at, lambda asked: owned_tails[asked - starts[comm.rank]])

        return draw

    def _list_tails(self, pairs):
        """Return a `ListedTails`: the candidate tails of each head that this rank owns, from the (head id, tail id) `pairs` that all ranks
        gave. A head's tails are in a random order, and tails that are linked to it are left out. Collective.
        """
        rows = self.numbers(pairs[:, 0])
        owner = owners(rows, self.offsets)
        listed = np.unique(send(self.comm, owner, np.stack([rows - self.offsets[owner], pairs[:, 1]], 1)), axis=0)
        listed = listed[~self._are_local_links(*listed.T)]
        shuffled = splitmix64(listed[:, 1].astype(np.uint64) ^ np.uint64(key(self.seed, self.purpose, "told", 0, 0)))
        heads, tails = listed[np.lexsort((shuffled, listed[:, 0]))].T
        return ListedTails(np.searchsorted(heads, np.arange(len(self.ids) + 1)), tails, self.numbers(tails))

    def _fill_listed(self, out, link_bits, heads, n):
        """Write n listed tails for each of the k local head rows `heads` into `out`, (k * n,), as row numbers. link_bits[i], random bits,
        choose where in the list of head i to begin. Return the positions in `out` whose head has no listed tails.
        """
        starts, counts = self.listed.starts[heads], np.diff(self.listed.starts)[heads]
        first, has_tails = _draw_below(np.maximum(counts, 1), link_bits, np.uint64(0)), np.repeat(counts > 0, n)
        places = (starts + np.zeros((n, 1), np.int64) + (first + np.arange(n)[:, None]) % np.maximum(counts, 1)).T
        out[has_tails] = self.listed.rows[places.reshape(-1)[has_tails]]
        return np.flatnonzero(~has_tails)

    def _are_links(self, heads: Array, tails: Array) -> Array:
        """Return a mask of the pairs that may not be negatives: pairs (row number heads[i] over all ranks, node id tails[i]) that are a
        link or a node with itself. Collective for the sampler "uniform".
        """
        if not self.of_pairs:
            return self._are_local_links(heads - self.offsets[self.comm.rank], tails)
        owner = owners(heads, self.offsets)
        asked = np.stack([heads - self.offsets[owner], tails], 1)
        return ask(self.comm, owner, asked, lambda part: self._are_local_links(*part.T))

    def _are_local_links(self, heads: Array, tails: Array) -> Array:
        """Return a mask of the pairs that may not be negatives: pairs (local row heads[i], node id tails[i]) that are a link or a node with
        itself.
        """
        return among(self.link_keys, heads * self.numbers.n + tails) | (self.ids[heads] == tails)


def _draw_node(ends: Ends, random_bits: Array, counters: Array) -> Array:
    """Return for each i the id of a random node of the type `ends`, uniformly distributed. random_bits[i] and counters[i], the number of
    the draw, determine the node.
    """
    return ends.first + _draw_below(ends.n, random_bits, counters)


def _draw_below(n: int | Array, random_bits: Array, counters: Array) -> Array:
    """Return for each i a random integer in 0 .. n - 1, uniformly distributed. random_bits[i] and counters[i], the number of the draw,
    determine the integer.
    """
    variates = splitmix64(random_bits + counters.astype(np.uint64) * np.uint64(GAMMA)) >> np.uint64(11)
    return np.minimum((variates * 2.0**-53 * n).astype(np.int64), n - 1)


class Candidates:
    """Links of this rank, with samplers of their negatives. A call (step, link row numbers) draws negatives and returns the step's
    `LinkGraph`, a graph with a list of links and negatives. Calls are collective.

    Construction is collective, too.

    Parameters
    ----------
    nodes : Graph or NodeType
        Graph of the nodes, with the edges along which messages pass.
    heads, tails, rows : (n_links,) int64
        Local rows of the heads, ids of the tails, and row numbers of the tails.
    negatives : list of Negatives, optional
        One sampler for each relation. None for links with labels, along which messages pass even in their own steps.
    n : int
        Number of negatives of each link.
    relations : (n_links,) int64, optional
        Index of each link's relation, if there are several relations.
    predicted : list of Relation, or [None]
        Relations whose edges are the links; [None] for a `Graph`.
    undirected : bool
        True if a link stands for both directions.
    """

    def __init__(self, nodes: NodeRows, heads: Array, tails: Array, rows: Array, negatives: list[Negatives] | None = None,
                 n: int = 0, relations: Array | None = None, predicted: Sequence[Relation | None] = (None,),
                 undirected: bool = False) -> None:
        self.nodes, self.heads, self.tails, self.rows, self.negatives, self.n = nodes, heads, tails, rows, negatives, n
        self.relations, self.predicted, self.undirected = relations, predicted, undirected
        self.first = sum(nodes.comm.allgather(nodes.n_dst)[: nodes.comm.rank])

    def on(self, comm: Communicator) -> "Candidates":
        """Return a copy that draws negatives by use of the communicator `comm`, which has the same ranks."""
        other = copy(self)
        other.negatives = self.negatives and [negatives.on(comm) for negatives in self.negatives]
        return other

    def pairs(self, step: int, link_rows: Array) -> tuple[Array, Array]:
        """Draw negatives of the links with row numbers `link_rows` for the global step `step`. Return (heads, tails) as row numbers over
        all ranks, a row for each link; column 0 has the link, the other columns its negatives. Collective.

        Parameters
        ----------
        step : int
            The global step.
        link_rows : (k,) int64
            Row numbers of the links.

        Returns
        -------
        heads : (k, 1) or (k, 1 + n) int64
        tails : (k, 1 + n) int64
            Row numbers over all ranks; column 0 is the link.
        """
        heads, rows = self.first + self.heads[link_rows, None], self.rows[link_rows, None]
        if self.negatives is None:
            return heads, rows
        drawn = np.empty((2, len(link_rows), self.n), np.int64)
        for number, negatives in enumerate(self.negatives):
            of_relation = slice(None) if self.relations is None else self.relations[link_rows] == number
            drawn[:, of_relation] = negatives(self.heads[link_rows][of_relation], self.tails[link_rows][of_relation], self.n, step)
        if self.negatives[0].of_pairs:
            heads = np.concatenate([heads, drawn[0]], 1)
        return heads, np.concatenate([rows, drawn[1]], 1)

    def __call__(self, step: int, link_rows: Array) -> LinkGraph:
        return LinkGraph(self.nodes, *self.pairs(step, link_rows), relations=self.relations_of(link_rows))

    def relations_of(self, link_rows: Array) -> Array | None:
        """Return the index of the relation of each of the links with row numbers `link_rows`, (k,) int64; None if all links are of one
        relation.
        """
        return None if self.relations is None else self.relations[link_rows]

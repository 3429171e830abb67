"""Rankings of all destinations by score: positions of validation and test links, and the share of destinations in top lists."""

from collections.abc import Callable, Sequence

import numpy as np

from sarlite.comm.routing import send
from sarlite.graph.link_graph import NodeRows
from sarlite.tape import Tensor
from sarlite.tasks.link_edges import Ends
from sarlite.tasks.link_splits import TEST, TRAIN, VAL
from sarlite.tasks.recommend import NOBODY, rank_links, top
from sarlite.types import Array

SOURCE, SCORE, RANK = range(3)
"""Columns of ranked links: number of the source and relation, score of the link, and rank from 1.

Links of the same source and relation have the same number. The rank of a training link, which is not ranked, is 0.
"""


class Ranking:
    """Function that finds the positions of this rank's validation and test links among all destinations of their sources, sorted by score.
    Calls are collective.

    Destinations that are already linked to the source do not count. For a validation link these are the destinations of
    training and validation links, for a test link the destinations of all links. Training links are not ranked.

    Parameters
    ----------
    nodes : Graph or NodeType
        Graph that the encoder computes on.
    heads, tails : (n,) int64
        Local rows of the links' sources, and ids of their destinations.
    split : (n,) int64
        `TRAIN`, `VAL` or `TEST` for each link.
    relations : (n,) int64
        Index of each link's relation.
    link_keys : list of ((m,) int64, (m,) int64)
        For each relation, a key of every link, ascending, and the splits of the links. The key of a link is (local row
        of the head) * n_nodes + (id of the tail).
    destinations : list of Ends
        For each relation, the nodes that can be destinations.
    several : bool
        True if the decoder is called with the index of the relation.
    filtered : bool
        False if destinations that are already linked to the source count, too.
    """

    def __init__(self, nodes: NodeRows, heads: Array, tails: Array, split: Array, relations: Array,
                 link_keys: Sequence[tuple[Array, Array]], destinations: Sequence[Ends], several: bool,
                 filtered: bool = True) -> None:
        self._nodes, self._heads, self._tails = nodes, heads, tails
        self._split, self._relations, self._several = split, relations, several
        self.destinations = destinations
        self._link_keys = link_keys if filtered else [(keys[:0], levels[:0]) for keys, levels in link_keys]

    def __call__(self, decoder: Callable[..., Tensor], h: Array) -> Array:
        """Return a row (source number, score, rank from 1 among all destinations) for each link of this rank, (n, 3) float64; training
        links have zeros as score and rank. `decoder` computes scores from the encoder's output rows, of which `h` has this rank's.
        Collective.

        The columns are SOURCE, SCORE and RANK.

        Parameters
        ----------
        decoder : callable
            Argument of `LinkGraph.score`.
        h : (n_local, width) array
            Encoder rows of this rank's nodes.

        Notes
        -----
        A tie counts half. Bytes: each rank receives the rows of all destinations twice, in pieces. Work: for each source
        with ranked links the scores of all destinations, twice, and one comparison for each ranked link and destination.
        Memory: 64 MiB.
        """
        ranked = np.zeros((len(self._heads), 3))
        ranked[:, SOURCE] = self._heads * len(self.destinations) + self._relations
        for number, (ends, (keys, levels)) in enumerate(zip(self.destinations, self._link_keys)):
            of = np.flatnonzero((self._relations == number) & (self._split != TRAIN))
            ranked[of, SCORE:] = rank_links(self._nodes, self._of_relation(decoder, number), h, self._heads[of],
                                           self._tails[of], ends, keys, (self._split[of], levels))
        return ranked

    def coverage(self, decoder: Callable[..., Tensor], h: Array, k: int) -> dict[str, float | None]:
        """Return {split: share of the destinations that are among the k best of at least one source}; None for a split without links.
        `decoder` computes scores from the encoder's output rows, of which `h` has this rank's. Collective.

        The sources are those with links in the split. Destinations of training links are left out of a source's top k,
        and for "test" destinations of validation links, too.

        Parameters
        ----------
        decoder, h
            Arguments of a call.
        k : int
            Length of the top lists.

        Returns
        -------
        dict of str to (float or None)
            Coverage of "val" and "test", None without sources.
        """
        return {name: self._covered(decoder, h, k, split) for name, split in (("val", VAL), ("test", TEST))}

    def _covered(self, decoder, h, k, split):
        comm, n_listed, n_sources = self._nodes.comm, 0, 0
        for number, (ends, (keys, levels)) in enumerate(zip(self.destinations, self._link_keys)):
            sources = np.unique(self._heads[(self._relations == number) & (self._split == split)])
            ids, _ = top(self._nodes, self._of_relation(decoder, number), h, sources, ends, keys[levels < split], k)
            listed = np.unique(ids[ids != NOBODY])
            owner = listed // max(-(-ends.n // comm.size), 1)  # one rank counts each destination once
            n_listed += len(np.unique(send(comm, owner, listed)))
            n_sources += len(sources)
        listed, n_sources = comm.allreduce(np.array([n_listed, n_sources], np.float64)).tolist()
        return listed / sum(ends.n for ends in self.destinations) if n_sources else None

    def _of_relation(self, decoder, number):
        return one_relation(decoder, number) if self._several else decoder


def ranked_among_negatives(output: Array) -> Array:
    """Return a row (index, score, rank from 1) for each link, (n, 3), with its rank among its own negatives. A row of `output` has the
    score of a link in column 0, and the scores of its negatives in the other columns.

    The columns are SOURCE, SCORE and RANK.

    Parameters
    ----------
    output : (n, 1 + n_negatives) array
        Scores of a link and its negatives in each row. A tie counts half. The rank is NaN if a score is NaN.

    Examples
    --------
    >>> ranked_among_negatives(np.array([[0.5, 0.9, 0.5]])).tolist()
    [[0.0, 0.5, 2.5]]
    """
    link, others = output[:, :1], output[:, 1:]
    ranks = 1 + (others > link).sum(1) + 0.5 * (others == link).sum(1)
    ranks[np.isnan(output).any(1)] = np.nan
    return np.stack([np.arange(len(output)), link[:, 0], ranks], 1)


def one_relation(decoder: Callable[..., Tensor], number: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function (head, tail) -> scores of the relation with index `number`, made of `decoder`, a function (head, tail, relation
    index of each row) -> scores.
    """
    return lambda head, tail: decoder(head, tail, np.full(len(head), number))

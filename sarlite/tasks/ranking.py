"""Rankings of all destinations: the ranks of links to validate and to test on, and the destinations in top lists."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sarlite.comm.routing import send
from sarlite.tape import Tensor
from sarlite.tasks.link_edges import Ends
from sarlite.tasks.link_splits import TEST, TRAIN, VAL
from sarlite.tasks.recommend import NOBODY, rank_links, top
from sarlite.types import Array

SOURCE, SCORE, RANK = range(3)
"""Columns of ranked links. The source is a number that links of the same source and relation have in common. The rank
of a link that was not ranked is 0."""


class Ranking:
    """Ranks this rank's links to validate and to test on among all destinations. Calls are collective.

    A destination that is known to be linked to the source does not count. For a link to validate on, known are the
    links to train on and to validate on; for a link to test on, all links. Links to train on are not ranked.

    Parameters
    ----------
    nodes : Graph or NodeType
        What the encoder computes on.
    heads, tails : (n,) int64
        Local rows of the links' sources, and ids of their destinations.
    split : (n,) int64
        Of `TRAIN`, `VAL` and `TEST`.
    relations : (n,) int64
        Index of each link's relation.
    known : list of ((m,) int64, (m,) int64)
        For each relation head's local row * n_nodes + tail's id of all links, ascending, and their splits.
    destinations : list of Ends
        For each relation the nodes that links may lead to.
    several : bool
        True if decoders are called with the index of the relation.
    filtered : bool
        False if known destinations count, too.
    """

    def __init__(self, nodes: Any, heads: Array, tails: Array, split: Array, relations: Array,
                 known: Sequence[tuple[Array, Array]], destinations: Sequence[Ends], several: bool,
                 filtered: bool = True) -> None:
        self._nodes, self._heads, self._tails = nodes, heads, tails
        self._split, self._relations, self._several = split, relations, several
        self.destinations = destinations
        self._known = known if filtered else [(keys[:0], levels[:0]) for keys, levels in known]

    def __call__(self, decoder: Callable[..., Tensor], h: Array) -> Array:
        """Return the columns SOURCE, SCORE and RANK of the links, (n, 3) float64.

        Parameters
        ----------
        decoder : callable
            As `LinkGraph.score` takes it.
        h : (n_local, width) array
            Encoder rows of this rank's nodes.

        Notes
        -----
        A tie counts half. Sends the rows of all destinations to all ranks, twice, in pieces. Work: twice the scores of
        each source that has links to rank with all destinations, and a comparison for each such link and destination.
        Memory: 64 MiB.
        """
        ranked = np.zeros((len(self._heads), 3))
        ranked[:, SOURCE] = self._heads * len(self.destinations) + self._relations
        for number, (ends, (keys, levels)) in enumerate(zip(self.destinations, self._known)):
            of = np.flatnonzero((self._relations == number) & (self._split != TRAIN))
            ranked[of, SCORE:] = rank_links(self._nodes, self._of_relation(decoder, number), h, self._heads[of],
                                           self._tails[of], ends, keys, (self._split[of], levels))
        return ranked

    def coverage(self, decoder: Callable[..., Tensor], h: Array, k: int) -> dict[str, float | None]:
        """Return the catalogue coverage by split: the share of destinations in the top k of some source.

        The sources are those with links of the split. The links to train on are left out of the lists, and of test the
        links to validate on, too. None without such sources. Parameters as for a call.
        """
        return {name: self._covered(decoder, h, k, split) for name, split in (("val", VAL), ("test", TEST))}

    def _covered(self, decoder, h, k, split):
        comm, n_listed, n_sources = self._nodes.comm, 0, 0
        for number, (ends, (keys, levels)) in enumerate(zip(self.destinations, self._known)):
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
    """Return the columns SOURCE, SCORE and RANK of links among their own negatives, (n, 3) float64. A tie counts half.

    Parameters
    ----------
    output : (n, 1 + n_negatives) array
        Scores of a link and its negatives in each row. With NaN among them the rank is NaN.
    """
    link, others = output[:, :1], output[:, 1:]
    ranks = 1 + (others > link).sum(1) + 0.5 * (others == link).sum(1)
    ranks[np.isnan(output).any(1)] = np.nan
    return np.stack([np.arange(len(output)), link[:, 0], ranks], 1)


def one_relation(decoder: Callable[..., Tensor], number: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a decoder of one relation, made of a decoder that is called with the index of each row's relation."""
    return lambda head, tail: decoder(head, tail, np.full(len(head), number))

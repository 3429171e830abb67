"""Popularity, the baseline of recommendations: a link is scored by the number of training links to its destination."""

from typing import Any

import numpy as np

from sarlite.comm.routing import send
from sarlite.graph.link_graph import LinkGraph
from sarlite.structure.part_edges_csr import owners
from sarlite.tape import Tensor
from sarlite.types import Array


class Popularity:
    """Link predictor without parameters: the score of a link is the number of training links to its destination.

    If links stand for both directions, training links from the destination count, too. With several relations only links
    of the same relation count. Construction is collective.

    Parameters
    ----------
    graph : LinkGraph
        Graph of the links, made by `link_data.split_links`.
    train : (k,) int64
        This rank's row numbers of the training links.

    Examples
    --------
    >>> from sarlite import Graph
    >>> from sarlite.tasks.link_data import split_links
    >>> links = split_links(Graph.from_edges([0, 1, 2, 0], [3, 3, 3, 2], 4), val=0.0, test=0.0)
    >>> popularity = Popularity(links.graph, links.train)
    >>> popularity.encoder(None, None).data.tolist()
    [[0.0], [0.0], [1.0], [3.0]]
    """

    def __init__(self, graph: LinkGraph, train: Array) -> None:
        draw: Any = graph.draw
        comm, n = graph.comm, graph.nodes.n_dst
        offsets = np.concatenate([[0], np.cumsum(comm.allgather(n))])
        relations = draw.relations_of(train)
        relations = np.zeros(len(train), np.int64) if relations is None else relations
        owner = owners(draw.rows[train], offsets)
        ends = [send(comm, owner, np.stack([draw.rows[train] - offsets[owner], relations], 1))]
        if draw.undirected:
            ends.append(np.stack([draw.heads[train], relations], 1))
        self._n_relations = len(draw.predicted)
        counts = np.zeros((n, self._n_relations), np.float32)
        np.add.at(counts, tuple(np.concatenate(ends).T), 1)
        self._counts = Tensor(counts, constant=True)

    def __call__(self, graph: LinkGraph, x: object) -> Tensor:
        """Return the scores of the links of `graph` and of their negatives, (graph.n_dst, graph.n_candidates); the link is in column 0. The
        features `x` are ignored. Collective.
        """
        return graph.score(self.decoder, self._counts)

    def encoder(self, nodes: object, x: object) -> Tensor:
        """Return the number of training links to each local node, with a column for each relation, (n_local, n_relations). Both arguments
        are ignored.
        """
        return self._counts

    def decoder(self, head: Tensor, tail: Tensor, relation: Array | None = None) -> Tensor:
        """Score each of n x c node pairs by the popularity of its tail, the number of training links to the tail; return (n, c). `tail` has
        these numbers for each relation, (n, c, n_relations); the score of pair (i, j) is tail[i, j, relation[i]], or tail[i, j, 0] if
        `relation` is None. Only the shape of `head` is used.
        """
        chosen = np.zeros(1, np.int64) if relation is None else relation
        return ((head * 0 + tail) * np.eye(self._n_relations, dtype=np.float32)[chosen][:, None]).sum(-1)

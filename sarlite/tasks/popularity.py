"""Popularity: links scored by the number of training links to their destinations, the baseline of recommendations."""

from typing import Any

import numpy as np

from sarlite.comm.routing import send
from sarlite.graph.link_graph import LinkGraph
from sarlite.structure.part_edges_csr import owners
from sarlite.tape import Tensor
from sarlite.types import Array


class Popularity:
    """A link predictor without parameters: a link's score is the number of training links to its destination.

    If a link stands for both directions, links from the destination count, too. Of several relations only links of the
    scored link's relation count. Construction is collective.

    Parameters
    ----------
    graph : LinkGraph
        As `link_data.split_links` makes it.
    train : (k,) int64
        This rank's rows of the training links.
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

    def __call__(self, graph: LinkGraph, x: Any) -> Tensor:
        """Return the candidates' scores, (graph.n_dst, graph.n_candidates). Collective."""
        return graph.score(self.decoder, self._counts)

    def encoder(self, nodes: Any, x: Any) -> Tensor:
        """Return the number of training links to each node, by relation, (n_local, n_relations)."""
        return self._counts

    def decoder(self, head: Tensor, tail: Tensor, relation: Array | None = None) -> Tensor:
        """Return the scores (n, c) of tails, (n, c, n_relations); heads only widen the result."""
        chosen = np.zeros(1, np.int64) if relation is None else relation
        return ((head * 0 + tail) * np.eye(self._n_relations, dtype=np.float32)[chosen][:, None]).sum(-1)

"""Batches of links: minibatches whose seeds are links, and full batches with the negatives of a step."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from sarlite.comm import together
from sarlite.comm.routing import send
from sarlite.errors import ConfigError, ShapeError
from sarlite.graph.part import owners
from sarlite.minibatch import NeighborLoader
from sarlite.minibatch.batch import FixedBatch, FullBatch
from sarlite.minibatch.part_edges import share
from sarlite.sar.graph.link_graph import LinkGraph
from sarlite.tape import Tensor
from sarlite.tape.rows import row_numbers
from sarlite.tasks.negatives import Candidates
from sarlite.types import Array


class LinkBatch:
    """Some links, their negatives, and the batch of the nodes at the ends of both.

    Attributes
    ----------
    graph : LinkGraph
        What an `nn.LinkPredictor` is called with; `graph.nodes` is the `Batch` of the ends.
    x : Tensor
        The input rows of the ends' batch.
    labels, rows : (n_links, ...) array, (n_links,) int64
        The links', which are zeros of links to predict; all rows.
    step, n_global : int
        The global step; links of all ranks.
    """

    lasting: ClassVar[bool] = False
    outputs: ClassVar[None] = None

    def __init__(self, graph: LinkGraph, labels: Array, step: int, n_global: int) -> None:
        self.graph, self.labels, self.step, self.n_global = graph, labels, step, n_global
        self.rows = np.arange(graph.n_dst)

    @property
    def x(self) -> Tensor:
        return self.graph.nodes.x

    @property
    def graphs(self) -> list[Any]:
        return self.graph.nodes.graphs


class LinkLoader(NeighborLoader):
    """Makes the batches of a training on links; iterating over it is an epoch. Construction and epochs are collective.

        loader = LinkLoader(links.graph, x, links.labels, links.train, fanouts=(10, 10), batch_size=1000)
        trainer = Trainer(links.graph, model, x, links.labels, links.train, ..., batches=loader)

    A step's seeds are links. Their negatives are drawn by step, and the batch has the ends of both. No message passes
    along a seed in its own step, in either direction, also where it is several edges; but where labels of links are
    predicted all edges bring messages.

    Parameters
    ----------
    graph : LinkGraph
        Of `links.split_links` or `links.labelled_links`, of a graph or of relations.
    x : (n_src, ...) array, or of relations a dict of such by node type
        Features of this rank's nodes.
    labels : (n_links, ...) array
        The links'.
    train : (n_links,) bools, slice, or (k,) row numbers
        This rank's links of an epoch.
    fanouts, batch_size, others
        As of `NeighborLoader`, of which `remote` is "exact": a step is the same on any number of ranks.

    Raises
    ------
    ConfigError, DataError, ShapeError
        On every rank: the graph was not made by these, another `remote`, or as `NeighborLoader`.

    Notes
    -----
    What picks count is as if seeds were no edges, but degrees of "sym" are those of all training edges. Beyond what
    `NeighborLoader` sends: 8 bytes for each end that another rank owns and 8 back, 16 a link, and what drawing
    negatives sends.
    """

    graph_types: ClassVar[tuple[type, ...]] = (LinkGraph,)

    def __init__(self, graph: LinkGraph, x: Any, labels: Any, train: Any, *, fanouts: Sequence[int], batch_size: int,
                 remote: Any = "exact", **options: Any) -> None:
        self._links, self._labels = together(graph.comm, lambda: _checked(graph, labels, train, remote))
        draw: Any = graph.draw
        self._ids = draw.nodes.dst_ids[draw.heads[self._links]], draw.tails[self._links]
        super().__init__(draw.nodes, x, None, draw.heads[self._links], fanouts=fanouts, batch_size=batch_size,
                         **options)
        self._candidates = draw.on(self._sampling)
        self._offsets = np.concatenate([[0], np.cumsum(graph.comm.allgather(graph.n_src))])

    def _seed_ids(self):
        return self._ids[0] * self.graph.n_nodes + self._ids[1]

    def links(self, step: int) -> Array:
        """Return this rank's rows of the `LinkGraph` that are a step's seeds. Collective, and not while an epoch goes
        on."""
        return self._links[self._seeds(step)]

    def _make(self, step):
        with self._buffers[0], self.graph.profile.span("sample", "sample", step=step):
            of = self.links(step)
            heads, tails = self._candidates.pairs(step, of)
            nodes, heads, tails = self._nodes(step, heads, tails, self._edges(of))
            self._transposes.make(nodes.graphs)
            graph = LinkGraph(nodes, heads, tails, over=self.graph, comm=self._sampling,
                              relations=self._candidates.relations_of(of))
            return LinkBatch(graph, self._labels[of], step, self._seeds.count(step))

    def _nodes(self, step, heads, tails, without):
        """The batch of the ends, which are row numbers of the whole graph, and both ends by their numbers in the
        batch."""
        comm, offsets = self._sampling, self._offsets
        ends = np.concatenate([heads.reshape(-1), tails.reshape(-1)])
        rows, places = np.unique(ends, return_inverse=True)
        asked = comm.alltoall([own - at for own, at in zip(share(rows, np.searchsorted(rows, offsets)), offsets)])
        sampled = self.sampler(np.concatenate(asked), step, without)
        batch = self._batch(sampled, step, 0, pushes=False)
        told = comm.alltoall(share(batch.rows, np.cumsum([0, *map(len, asked)])))
        starts = np.concatenate([[0], np.cumsum(comm.allgather(batch.n_dst))])
        ends = np.concatenate([own + at for own, at in zip(told, starts)])[places.reshape(-1)]
        return batch, ends[: heads.size].reshape(heads.shape), ends[heads.size :].reshape(tails.shape)

    def _edges(self, of):
        """By set of edges, where the edges between the ends of a step's links stand; None where links have labels.

        In the links' relation they go from head to tail; within one type, and in other relations between the same
        types, from tail to head too. All ranks' links tell of this rank's rows.
        """
        if self._candidates.negatives is None:
            return None
        comm, draw, offsets = self._sampling, self._candidates, self._offsets
        heads, tails, rows = draw.heads[of], draw.tails[of], draw.rows[of]
        numbers = draw.relations_of(of)
        numbers = np.zeros(len(of), np.int64) if numbers is None else numbers
        owner = owners(rows, offsets)
        ids = draw.nodes.dst_ids[heads]
        into_tails = send(comm, owner, np.stack([rows - offsets[owner], ids, numbers], 1)).T
        found = [np.empty(0, np.int64)] * len(self._part.sets)
        for number, relation in enumerate(draw.predicted):
            for place, edges in enumerate(self._part.sets):
                for into in _directions(relation, edges.graph.relation, into_tails, (heads, tails, numbers)):
                    own = into[2] == number
                    found[place] = np.union1d(found[place], self._find(edges, into[0][own], into[1][own]))
        return found

    def _find(self, edges, rows, ids):
        """Where a set's edges stand into these rows of `graph` from sources of these ids of `graph`."""
        part, graph = self._part, self.graph
        if part.targets is not None:
            rows = part.targets[rows]
        relation = edges.graph.relation
        return edges.find(rows - edges.first, ids if relation is None else ids - graph.first[relation[0]])


class ResampledLinks(FixedBatch):
    """A source of full batches of a `LinkGraph`, which has the rows that count, with the negatives of the step."""

    batch: FullBatch

    def __iter__(self) -> Iterator[Any]:
        full, step = self.batch, self.step
        self.step += 1
        graph = full.graph.draw(step, full.rows)
        yield replace(full, graph=graph, labels=full.labels[full.rows], rows=np.arange(graph.n_dst))


def resampled(full: FullBatch) -> FixedBatch:
    """Return `ResampledLinks` of a graph that draws negatives, or else a `FixedBatch`."""
    return (FixedBatch if getattr(full.graph, "draw", None) is None else ResampledLinks)(full)


def _directions(relation, other, forward, backward):
    """Those of two ways to go along a link of a relation that edges of the other one go."""
    if relation == other:
        return [forward, backward] if relation is None or relation[0] == relation[2] else [forward]
    return [backward] if (other[2], other[0]) == (relation[0], relation[2]) else []


def _checked(graph, labels, train, remote):
    if not isinstance(graph, LinkGraph) or not isinstance(graph.draw, Candidates):
        raise ConfigError("minibatches of links are of a LinkGraph as split_links and labelled_links make it, but "
                          f"graph is {graph!r}")
    if remote != "exact":
        raise ConfigError(f"remote {remote!r}: minibatches of links are exact: a link's ends may be of any two ranks")
    if np.shape(labels)[:1] != (graph.n_dst,):
        raise ShapeError(f"labels of shape {np.shape(labels)} have not the graph's {graph.n_dst} rows")
    return row_numbers("train", train, graph.n_dst), np.asarray(labels)

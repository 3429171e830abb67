"""Batches of links: minibatches whose seeds are links, and full batches with the negatives of a step."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from sarlite.comm import together
from sarlite.comm.routing import send
from sarlite.errors import ConfigError, ShapeError
from sarlite.graph.link_graph import LinkGraph
from sarlite.minibatch import NeighborLoader
from sarlite.minibatch.batch import Batch, FixedBatch, FullBatch, Hidden
from sarlite.minibatch.part_edges import share
from sarlite.structure.part_edges_csr import owners
from sarlite.tape.row_index import selected_rows
from sarlite.tasks.negatives import Candidates
from sarlite.types import Array


class LinkBatch:
    """Links of a step, their negatives, and the batch of the nodes at the ends of both.

    Attributes
    ----------
    graph : LinkGraph
        What an `nn.LinkPredictor` is called with; `graph.nodes` is the `Batch` of the ends.
    x : Tensor
        Input rows of the batch of nodes.
    labels : (n_links, ...) array
        Labels of the links; zeros for links to predict.
    rows : (n_links,) int64
        All rows: each link counts in the loss.
    step : int
        The global step.
    n_global : int
        Number of links of all ranks.
    outputs : (n_links,) int64, or None
        Row of each link in the `LinkGraph` of all links, if the links are scored.
    """

    lasting: ClassVar[bool] = False

    def __init__(self, graph: LinkGraph, nodes: Batch, labels: Array, step: int, n_global: int, outputs: Array | None) -> None:
        self.outputs = outputs
        self.graph, self._nodes, self.labels, self.step, self.n_global = graph, nodes, labels, step, n_global
        self.rows = np.arange(graph.n_dst)

    @property
    def x(self) -> Hidden:
        return self._nodes.x

    @property
    def graphs(self) -> list[Any]:
        return self._nodes.graphs


class LinkLoader(NeighborLoader):
    """Loader of minibatches whose seeds are links. Construction and epochs are collective.

        loader = LinkLoader(links.graph, x, links.labels, links.train, fanouts=(10, 10), batch_size=1000)
        trainer = Trainer(links.graph, model, x, links.labels, links.train, ..., batches=loader)

    The negatives of a step's links are drawn anew in each step. No message passes along a seed in its own step, in
    either direction, also if several edges connect its ends. If labels of links are predicted, all edges bring
    messages.

    Parameters
    ----------
    graph : LinkGraph
        As `link_data.split_links` or `link_data.labelled_links` makes it.
    x : (n_src, ...) array, or dict of such arrays by node type
        Features of this rank's nodes.
    labels : (n_links, ...) array
        Labels of the links.
    train : (n_links,) bools, slice, or (k,) row numbers
        This rank's links of an epoch.
    fanouts, batch_size, others
        As for `NeighborLoader`. `remote` must be "exact": a step is the same on any number of ranks. With `temporal`,
        `seeds` has the time of each link, (n_links,): both ends of the link, and of its negatives, see the graph at
        this time.

    Raises
    ------
    ConfigError, DataError, ShapeError
        On every rank: the graph was made otherwise, `remote` is not "exact", or as for `NeighborLoader`.

    Notes
    -----
    A row that would pick a seed picks again among its other edges, so picks are drawn and weighted as if seeds were no
    edges. Degrees of "sym" count all training edges. A step sends, beyond `NeighborLoader`, 16 bytes for each end that
    another rank owns, 16 bytes a link, and what drawing negatives sends.
    """

    graph_types: ClassVar[tuple[type, ...]] = (LinkGraph,)

    def __init__(self, graph: LinkGraph, x: Any, labels: Any, train: Any, *, fanouts: Sequence[int], batch_size: int,
                 remote: Any = "exact", **options: Any) -> None:
        self._links, self._labels = together(graph.comm, lambda: _checked(graph, labels, train, remote))
        together(graph.comm, lambda: _check_seed_times(options.get("temporal")))
        draw: Any = graph.draw
        self._of, self._ids = graph, (draw.nodes.dst_ids[draw.heads[self._links]], draw.tails[self._links])
        super().__init__(self._messages(graph), x, None, draw.heads[self._links], fanouts=fanouts, batch_size=batch_size,
                         **options)
        self._candidates = draw.on(self._sampling)
        self._offsets = np.concatenate([[0], np.cumsum(graph.comm.allgather(graph.n_src))])

    @staticmethod
    def _messages(graph):
        """Return the nodes and the edges along which messages pass."""
        return graph.draw.nodes

    def _pairs(self, step, of):
        """Return the heads and tails of the candidates of the links `of`. Collective."""
        return self._candidates.pairs(step, of)

    def _outputs(self, of):
        """Return the rows that the outputs of the links `of` have in the `LinkGraph` of all links, if they are scored."""
        return None

    def _n_times(self):
        return self._of.n_dst

    def _train_rows(self, train):
        return train  # the links' heads, which are rows that the LinkGraph was made with

    def _seed_ids(self):
        return self._ids[0] * self.graph.n_nodes + self._ids[1]

    def links(self, step: int) -> Array:
        """Return this rank's rows of the `LinkGraph` that are a step's seeds. Collective; not during an epoch."""
        return self._links[self._seeds(step)]

    def _make(self, step):
        with self._buffers[0], self.graph.profile.span("sample", "sample", step=step):
            of = self.links(step)
            heads, tails = self._pairs(step, of)
            times = None if self.temporal is None else self.temporal.seeds[of]
            nodes, heads, tails = self._nodes(step, heads, tails, self._edges(of), times)
            self._transposes.make(nodes.graphs)
            graph = LinkGraph(nodes, heads, tails, over=self.graph, comm=self._sampling,
                              relations=self._candidates.relations_of(of))
            return LinkBatch(graph, nodes, self._labels[of], step, self._seeds.count(step), self._outputs(of))

    def _nodes(self, step, heads, tails, without, times):
        """Return the batch of the nodes at both ends, and the ends as row numbers of the batch. Collective.

        With `times`, (n_links,), an end of links with different times is as many rows of the batch.
        """
        comm, offsets, more = self._sampling, self._offsets, {}
        ends = np.concatenate([heads.reshape(-1), tails.reshape(-1)])
        if times is None:
            rows, places = np.unique(ends, return_inverse=True)
            starts = np.searchsorted(rows, offsets)
        else:
            of_ends = np.concatenate([np.repeat(times, pairs.shape[1]) for pairs in (heads, tails)])
            (rows, distinct), places = np.unique(np.stack([ends, of_ends]), axis=1, return_inverse=True)
            starts = np.searchsorted(rows, offsets)
            more["times"] = np.concatenate(comm.alltoall(share(distinct, starts)))
        asked = comm.alltoall([own - at for own, at in zip(share(rows, starts), offsets)])
        sampled = self.sampler(np.concatenate(asked), step, without, **more)
        batch = self._batch(sampled, step, 0, pushes=False)
        batch_rows = comm.alltoall(share(batch.rows, np.cumsum([0, *map(len, asked)])))
        starts = np.concatenate([[0], np.cumsum(comm.allgather(batch.n_dst))])
        ends = np.concatenate([own + at for own, at in zip(batch_rows, starts)])[places.reshape(-1)]
        return batch, ends[: heads.size].reshape(heads.shape), ends[heads.size :].reshape(tails.shape)

    def _edges(self, of):
        """Return, by set of edges, the positions of this rank's edges to leave out; None if links have labels.

        The edges connect the ends of the step's links of all ranks. In the links' relation they lead from head to
        tail. Within one type, and in other relations between the same types, they also lead from tail to head.
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
        positions = [np.empty(0, np.int64)] * len(self._part.sets)
        for number, relation in enumerate(draw.predicted):
            for place, edges in enumerate(self._part.sets):
                for into in _directions(relation, edges.graph.relation, into_tails, (heads, tails, numbers)):
                    of_relation = into[2] == number
                    positions[place] = np.union1d(positions[place], self._find(edges, into[0][of_relation], into[1][of_relation]))
        return positions

    def _find(self, edges, rows, ids):
        """Return the positions of a set's edges from sources with the given ids into the given rows of `graph`."""
        part, graph = self._part, self.graph
        if part.targets is not None:
            rows = part.targets[rows]
        relation = edges.graph.relation
        return edges.find(rows - edges.first, ids if relation is None else ids - graph.first[relation[0]])


class ScoredLinks(LinkLoader):
    """Loader for an evaluation of links in minibatches, with evaluation's negatives and all its messages.

    An epoch has each of the given links once. A link to train on brings messages in an evaluation.
    """

    @staticmethod
    def _messages(graph):
        return graph.nodes

    def _pairs(self, step, of):
        return self._of.heads[of], self._of.tails[of]

    def _outputs(self, of):
        return of

    def _edges(self, of):
        return None


class ResampledLinks(FixedBatch):
    """A source of full batches of a `LinkGraph`: the rows that count, with negatives drawn anew in each step."""

    batch: FullBatch

    def __iter__(self) -> Iterator[Any]:
        full, step = self.batch, self.step
        self.step += 1
        graph = full.graph.draw(step, full.rows)
        yield replace(full, graph=graph, labels=full.labels[full.rows], rows=np.arange(graph.n_dst))


def resampled(full: FullBatch) -> FixedBatch:
    """Return `ResampledLinks` of a graph that draws negatives, or else a `FixedBatch`."""
    return (FixedBatch if getattr(full.graph, "draw", None) is None else ResampledLinks)(full)


def _check_seed_times(temporal):
    if temporal is not None and temporal.seeds is None:
        raise ConfigError("temporal: no times of the links: time=COLUMN of their edges, or of a table of labels, says when "
                          "each is predicted", "temporal")


def _directions(relation, other, forward, backward):
    """Return the directions, `forward` or `backward`, of edges of `other` that connect a link's two ends."""
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
    return selected_rows("train", train, graph.n_dst), np.asarray(labels)

"""Loaders of links: minibatches whose seeds are links, and full batches with new negatives in each step."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from sarlite.comm import together
from sarlite.comm.routing import send
from sarlite.errors import ConfigError, ShapeError
from sarlite.graph.link_graph import LinkGraph
from sarlite.minibatch import HEC, NeighborLoader
from sarlite.minibatch.batch import Batch, Features, FixedBatch, FullBatch, Hidden
from sarlite.minibatch.part_edges import split_by_rank
from sarlite.structure.part_edges_csr import owners
from sarlite.tape.row_index import selected_rows
from sarlite.tasks.negatives import Candidates
from sarlite.types import Array, ArrayLike


class LinkBatch:
    """Batch of links: the links of a step, their negatives, and the batch of the nodes at their ends.

    Attributes
    ----------
    graph : LinkGraph
        First argument of an `nn.LinkPredictor`. `graph.nodes` is the `Batch` of the nodes at the ends.
    x : Tensor
        Input rows of the batch of nodes.
    labels : (n_links, ...) array
        Labels of the links; zeros for link prediction.
    rows : (n_links,) int64
        All rows, because each link counts in the loss.
    step : int
        The global step.
    n_global : int
        Number of links over all ranks.
    outputs : (n_links,) int64, or None
        Row of each link in the `LinkGraph` of all links, for an evaluation; None in training.
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
    """Loader of minibatches of training links: links, negatives, and the sampled neighbourhoods of their ends. Construction and iteration
    are collective.

        loader = LinkLoader(links.graph, x, links.labels, links.train, fanouts=(10, 10), batch_size=1000)
        trainer = Trainer(links.graph, model, x, links.labels, links.train, ..., batches=loader)

    The negatives are drawn anew in each step. No message passes along a seed in its own step, in either direction, even
    if several edges connect its ends. If labels of links are predicted, messages pass along all edges.

    Parameters
    ----------
    graph : LinkGraph
        Graph of `link_data.split_links` or `link_data.labelled_links`.
    x : (n_src, ...) array, or dict of such arrays by node type
        Features of this rank's nodes.
    labels : (n_links, ...) array
        Labels of the links.
    train : (n_links,) bools, slice, or (k,) row numbers
        This rank's links of an epoch.
    fanouts, batch_size
        See `NeighborLoader`.
    remote : {"exact"}
        See `NeighborLoader`; no other value is accepted.
    **options
        Further arguments of `NeighborLoader`. With `temporal`, its `seeds` are the times of the links,
        (n_links,), and the ends of a link and of its negatives see the graph at the time of the link.

    Raises
    ------
    ConfigError, DataError, ShapeError
        On every rank: the graph does not come from these functions, `remote` is not "exact", or an error of
        `NeighborLoader`.

    Notes
    -----
    Neighbours are sampled and weighted as if the seeds of a step were not edges. The degrees of "sym" count all training
    edges. Bytes sent in a step, beside those of `NeighborLoader`: 16 for each end that another rank owns, 16 for each
    link, and the messages of drawing negatives. A step is the same for any number of ranks.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph
    >>> from sarlite.tasks.link_data import split_links
    >>> from sarlite.tasks.link_loader import LinkLoader
    >>> graph = Graph.from_edges(np.arange(20), (np.arange(20) + 1) % 20, 20)
    >>> links = split_links(graph, val=0.1, test=0.1, negatives=3)
    >>> loader = LinkLoader(links.graph, np.eye(20, dtype=np.float32), links.labels, links.train, fanouts=(2,), batch_size=8)
    >>> batch = next(iter(loader))
    >>> batch.graph.n_dst, batch.graph.n_candidates
    (8, 4)
    """

    graph_types: ClassVar[tuple[type, ...]] = (LinkGraph,)

    def __init__(self, graph: LinkGraph, x: Features, labels: ArrayLike, train: ArrayLike | slice, *, fanouts: Sequence[int],
                 batch_size: int, remote: "str | HEC" = "exact", **options: Any) -> None:
        self._links, self._labels = together(graph.comm, lambda: _checked(graph, labels, train, remote))
        together(graph.comm, lambda: _check_seed_times(options.get("temporal")))
        draw: Any = graph.draw
        self._of, self._ids = graph, (draw.nodes.dst_ids[draw.heads[self._links]], draw.tails[self._links])
        super().__init__(self._messages(graph), x, None, draw.heads[self._links], fanouts=fanouts, batch_size=batch_size,
                         **options)
        self._candidates = draw.on(self._sampling)
        self._offsets = np.concatenate([[0], np.cumsum(graph.comm.allgather(graph.n_src))])

    @staticmethod
    def _messages(graph: Any) -> Any:
        """Return the node graph that messages pass on. If `graph` is a `LinkGraph`, a graph with a list of links, it has one node graph for
        training, returned here, and one for scoring.
        """
        return graph.draw.nodes

    def _pairs(self, step: int, link_rows: Array) -> tuple[Array, Array]:
        """Return (heads, tails), row numbers over all ranks, of the links with numbers `link_rows` and of their negatives. Row i has a link
        in column 0 and its negatives, drawn for the global step `step`, in the other columns. Collective.
        """
        return self._candidates.pairs(step, link_rows)

    def _outputs(self, link_rows: Array) -> Array | None:
        """Return None, because training keeps no scores. Loaders for evaluation return `link_rows`, the rows of the array where they store
        the links' scores.
        """
        return None

    def _n_times(self):
        return self._of.n_dst

    def _train_rows(self, train):
        return train  # row numbers of the links' heads, checked when the LinkGraph was made

    def _seed_ids(self):
        return self._ids[0] * self.graph.n_nodes + self._ids[1]

    def links(self, step: int) -> Array:
        """Return the row numbers, in the `LinkGraph`, of this rank's links in global step `step`. Collective; not to be called while an
        epoch runs.
        """
        return self._links[self._seeds(step)]

    def _make(self, step):
        with self._buffers[0], self.graph.profile.span("sample", "sample", step=step):
            link_rows = self.links(step)
            heads, tails = self._pairs(step, link_rows)
            times = None if self.temporal is None else self.temporal.seeds[link_rows]
            nodes, heads, tails = self._nodes(step, heads, tails, self._edges_to_omit(link_rows), times)
            self._transposes.make(nodes.graphs)
            graph = LinkGraph(nodes, heads, tails, graph=self.graph, comm=self._sampling,
                              relations=self._candidates.relations_of(link_rows))
            return LinkBatch(graph, nodes, self._labels[link_rows], step, self._seeds.count(step), self._outputs(link_rows))

    def _nodes(self, step: int, heads: Array, tails: Array, left_out: list[Array] | None,
               times: Array | None) -> tuple[Batch, Array, Array]:
        """Sample the neighbourhoods of the nodes with row numbers `heads` and `tails`, except the edges `left_out`. Return (batch of nodes,
        row of each head in the batch, row of each tail in the batch). If the links have `times`, a node is sampled once for each time of
        its links, without later edges. Collective.
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
            more["times"] = np.concatenate(comm.alltoall(split_by_rank(distinct, starts)))
        asked = comm.alltoall([part - at for part, at in zip(split_by_rank(rows, starts), offsets)])
        sampled = self.sampler(np.concatenate(asked), step, left_out, **more)
        batch = self._batch(sampled, step, 0, pushes=False)
        batch_rows = comm.alltoall(split_by_rank(batch.rows, np.cumsum([0, *map(len, asked)])))
        starts = np.concatenate([[0], np.cumsum(comm.allgather(batch.n_dst))])
        ends = np.concatenate([part + at for part, at in zip(batch_rows, starts)])[places.reshape(-1)]
        return batch, ends[: heads.size].reshape(heads.shape), ends[heads.size :].reshape(tails.shape)

    def _edges_to_omit(self, link_rows: Array) -> list[Array] | None:
        """Return the positions of the edges that must not be sampled, because they join the ends of a link to predict in this step: an
        array for each set of edges. `link_rows` are this rank's links of the step, but the links of all ranks count. None if the links have
        labels, which edges do not reveal. Collective.

        The positions are those among this rank's edges. The edges lead from head to tail in the links' relation. Edges
        from tail to head are left out in relations of the opposite direction, and within one node type.
        """
        if self._candidates.negatives is None:
            return None
        comm, draw, offsets = self._sampling, self._candidates, self._offsets
        heads, tails, rows = draw.heads[link_rows], draw.tails[link_rows], draw.rows[link_rows]
        numbers = draw.relations_of(link_rows)
        numbers = np.zeros(len(link_rows), np.int64) if numbers is None else numbers
        owner = owners(rows, offsets)
        ids = draw.nodes.dst_ids[heads]
        into_tails = send(comm, owner, np.stack([rows - offsets[owner], ids, numbers], 1)).T
        positions = [np.empty(0, np.int64)] * len(self._part.sets)
        for number, relation in enumerate(draw.predicted):
            for place, edges in enumerate(self._part.sets):
                for into in _directions(relation, edges.graph.relation, into_tails, (heads, tails, numbers)):
                    of_relation = into[2] == number
                    matches = self._find(edges, into[0][of_relation], into[1][of_relation])
                    positions[place] = np.union1d(positions[place], matches)
        return positions

    def _find(self, edges: Any, rows: Array, ids: Array) -> Array:
        """Return the positions in `edges`, a set of edges, of all edges from node id ids[i] to local row rows[i], for every i."""
        part, graph = self._part, self.graph
        if part.targets is not None:
            rows = part.targets[rows]
        relation = edges.graph.relation
        return edges.find(rows - edges.first, ids if relation is None else ids - graph.first[relation[0]])


class ScoredLinks(LinkLoader):
    """Loader of minibatches of links for evaluation, with the parameters of `LinkLoader`.

    An epoch has each link once, with the negatives of evaluation. Messages pass along all training links.
    """

    @staticmethod
    def _messages(graph):
        return graph.nodes

    def _pairs(self, step: int, link_rows: Array) -> tuple[Array, Array]:
        return self._of.heads[link_rows], self._of.tails[link_rows]

    def _outputs(self, link_rows: Array) -> Array | None:
        return link_rows

    def _edges_to_omit(self, link_rows: Array) -> list[Array] | None:
        return None


class ResampledLinks(FixedBatch):
    """Source of full batches of a `LinkGraph` (graph with a list of links): each step has all training links, with new negatives."""

    batch: FullBatch

    def __iter__(self) -> Iterator[FullBatch]:
        full, step = self.batch, self.step
        self.step += 1
        graph = full.graph.draw(step, full.rows)
        yield replace(full, graph=graph, labels=full.labels[full.rows], rows=np.arange(graph.n_dst))


def resampled(full: FullBatch) -> FixedBatch:
    """Return a source of batches for `full`, the full batch of a graph: with new negatives in each step (`ResampledLinks`) if the graph
    draws negatives, otherwise the same batch each time (`FixedBatch`).
    """
    return (FixedBatch if getattr(full.graph, "draw", None) is None else ResampledLinks)(full)


def _check_seed_times(temporal):
    """Raise a ConfigError if `temporal`, the options for sampling edges in time, is not None but has no times of the links."""
    if temporal is not None and temporal.seeds is None:
        raise ConfigError("temporal: the links have no times: name the column time=COLUMN of their edges, or of the table of "
                          "labels", "temporal")


def _directions(relation, other, forward, backward):
    """Return the (heads, tails) arrays of links of `relation` that may be edges of relation `other`: `forward` if `other` is the same
    relation, `backward` (the links reversed) if it leads from tails to heads. The result is a list of none, one or both.
    """
    if relation == other:
        return [forward, backward] if relation is None or relation[0] == relation[2] else [forward]
    return [backward] if (other[2], other[0]) == (relation[0], relation[2]) else []


def _checked(graph, labels, train, remote):
    """Check arguments of `LinkLoader`, which have the same names; return (row numbers of the training links, labels of all links as an
    array).
    """
    if not isinstance(graph, LinkGraph) or not isinstance(graph.draw, Candidates):
        raise ConfigError("minibatches of links need a LinkGraph of split_links or labelled_links, but "
                          f"graph is {graph!r}")
    if remote != "exact":
        raise ConfigError(f"remote {remote!r}: minibatches of links must be exact, because any two ranks may own the ends of a link")
    if np.shape(labels)[:1] != (graph.n_dst,):
        raise ShapeError(f"labels have shape {np.shape(labels)}, but the graph has {graph.n_dst} rows")
    return selected_rows("train", train, graph.n_dst), np.asarray(labels)

"""Batches of training data: the graph of each layer, input rows, targets, and the rows that the loss counts.

`Batch` is a sampled batch or a message-flow batch; `FullBatch` is a rank's whole part.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import NodeType
from sarlite.tape import Tensor, ops
from sarlite.tape.table_rows import TableRows
from sarlite.types import Array

Features = Array | Mapping[str, Array]
"""Features of all rows of a part, (n, ...), or by node type."""

Hidden = Tensor | dict[str, Tensor]
"""Rows of a layer, (n, ...), or by node type."""


class TrainingBatch(Protocol):
    """Data of one training step: graph, input rows, targets, and the rows that the loss counts.

        loss = ops.cross_entropy(model(batch.graph, batch.x), batch.labels, batch.rows, batch.n_global)

    Attributes
    ----------
    graph : Graph, or another graph
        First argument of the model, which provides the layers. The output has its `n_dst` destination rows.
    x : Tensor, or dict of Tensor by node type
        Input rows.
    labels : (n_dst, ...) array
        Targets.
    rows : (n_dst,) bools, slice, or (k,) row numbers
        This rank's rows of the output that count in the loss.
    n_global : int
        Number of rows that count, over all ranks.
    """

    @property
    def graph(self) -> Any: ...
    @property
    def x(self) -> Hidden: ...
    @property
    def labels(self) -> Array: ...
    @property
    def rows(self) -> Array | slice: ...
    @property
    def n_global(self) -> int: ...


class Batch:
    """Data for computing the outputs of some rows of a graph, the seeds: the graph of each layer, and the input rows.

        loss = ops.cross_entropy(model(batch, batch.x), batch.labels, batch.rows, batch.n_global)

    Parameters
    ----------
    graph : Graph or NodeType
        The part that the batch was sampled from.
    graphs : list of PickedGraph, CachedLayer or PickedRelations
        The layers' graphs; empty for a batch of rows alone, for models that need no neighbours.
    part_rows, outputs, rows, step, n_global
        Values of the attributes of these names.
    x : (n, ...) array, or for a node type a dict of arrays by type
        Features of all rows of the part.
    labels : (n, ...) array, or None
        Targets of all rows of `graph`.
    buffers : kernels.Buffers
        Source of the memory for gathered input rows.
    lasting : bool
        Value of the attribute of this name.

    Attributes
    ----------
    n_src, n_dst, n_edges : int
        Number of rows that the first layer reads, of distinct seeds (the outputs), and of edges in all layers.
    src_ids, dst_ids : (n_src,), (n_dst,) int64
        Global ids of the rows that the first layer reads and of the seeds. Without types the seeds come first.
    step : int
        The global step.
    x : Tensor (n_src, ...), or dict of such by node type
        Input rows. Products and sums read the rows of float matrices in the loader's x, which must therefore not change
        before the backward pass has ended. Other operations read a copy, which is gathered at the first use. In mode
        "broadcast", which sends all rows, and without edges the rows are always copied.
    graph_types : tuple of types
        Types of graphs that a batch can be sampled from.
    labels : (n_dst, ...) array, or None
    rows : (n_seeds,) int64
        Row of the model's output for each requested seed; a seed that is requested twice has two entries.
    n_global : int
        Number of requested seeds of all ranks, the divisor of the loss.
    lasting : bool
        True if the batch is used in several steps; x is then a constant tensor.
    part_rows : (n_src,) int, or dict of such by node type
        Rows of the part that the first layer reads.
    outputs : (n_dst,) int
        Rows of `graph` that the model's output has.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, nn
    >>> from sarlite.minibatch import NeighborLoader
    >>> from sarlite.models import SAGE
    >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0])
    >>> x, labels = np.ones((4, 8), np.float32), np.zeros(4, int)
    >>> loader = NeighborLoader(graph, x, labels, [0, 2], fanouts=(-1, -1), batch_size=2, sampler="full")
    >>> model = SAGE(8, 3, layers=2, rng=nn.Random(0)).eval()
    >>> [(batch.x.shape, model(batch, batch.x).shape, batch.labels.shape) for batch in loader]
    [((4, 8), (2, 3), (2,))]
    """

    graph_types: ClassVar[tuple[type, ...]] = (Graph, NodeType)

    def __init__(self, graph: Graph | NodeType, graphs: Sequence[Any], part_rows: Any, outputs: Array, rows: Array, *, step: int,
                 n_global: int, x: Features, labels: Array | None, buffers: kernels.Buffers,
                 lasting: bool = False) -> None:
        self.comm, self.profile, self.n_nodes, self.graphs = graph.comm, graph.profile, graph.n_nodes, list(graphs)
        self.part_rows, self.rows, self.step, self.n_global, self.lasting = part_rows, rows, step, n_global, lasting
        self.outputs, self.node_types = outputs, getattr(graph, "node_types", ())
        self.n_src, self.n_dst = sum(map(len, part_rows.values())) if self.node_types else len(part_rows), len(outputs)
        self.n_edges = sum(g.n_edges for g in graphs)
        self.labels = None if labels is None else labels[outputs]
        self._ids, self._x, self.buffers = graph.dst_ids, x, buffers
        self._copies = lasting or not graphs or (graph.comm.size > 1 and graph.mode.in_step)

    def __repr__(self) -> str:
        rows, edges = [*(g.n_src for g in self.graphs), self.n_dst], [g.n_edges for g in self.graphs]
        return f"Batch({self.n_global} seeds, rows {rows}, edges {edges})"

    @property
    def graph(self) -> "Batch":
        """The batch itself, which a model takes in place of a graph: `layers` returns the layers' graphs."""
        return self

    @property
    def src_ids(self) -> Array:
        return self.graphs[0].src_ids if self.graphs else self._ids[self.part_rows]

    @property
    def dst_ids(self) -> Array:
        return self._ids[self.outputs]

    @cached_property
    def x(self) -> Hidden:
        if isinstance(self._x, Mapping):
            return {name: self._input(x, self.part_rows[name]) for name, x in self._x.items()}
        return self._input(self._x, self.part_rows)

    def _input(self, x, rows):
        make = partial(_take, x, rows, self.buffers)  # of no batch: that would hold itself
        if not self._copies and x.ndim == 2 and x.dtype in (np.float32, np.float64):
            return TableRows(kernels.Rows(x, rows), make)
        return Tensor(make(), constant=self.lasting, placement="rows")

    def take(self, x: Array) -> Array:
        """Return the rows of `x` that the first layer reads, (n_src, ...), as a new array; x has a row for each row of this rank's part."""
        return _take(x, self.part_rows, nullcontext())

    def with_input(self, x: Tensor, rows: Array, n_global: int) -> "Batch":
        """Return a copy of this batch with input `x`; `rows` are the rows that the loss counts, `n_global` their number on all ranks."""
        other = copy(self)
        vars(other).update(x=x, rows=rows, n_global=n_global)
        return other

    def layers(self, n: int) -> list[Any]:
        """Return a list of the graphs of the batch's `n` layers; raise a ConfigError if the batch has another number of layers.

        Raises
        ------
        ConfigError
            The batch was sampled for another number of layers, or has rows alone.
        """
        if not self.graphs:
            raise ConfigError("a batch of rows alone has no edges: the model has powers, so it trains on features that "
                              "were propagated before")
        if n != len(self.graphs):
            raise ConfigError(f"fanouts has {len(self.graphs)} entries, but the model {n} layers")
        return list(self.graphs)

    def select(self, h: Mapping[str, Tensor]) -> Tensor:
        """Return the seeds' rows, (n_dst, ...), one node type after the other, from h = {node type: (n, ...) rows of the type}."""
        rows = [h[name] for name in self.node_types]
        return rows[0] if len(rows) == 1 else ops.concat(rows)

    def aggregate(self, *args: Any, **options: Any) -> Tensor:
        """Return the aggregation of messages over a batch of a single layer. The arguments, a message and a reducer, are as for
        `Graph.aggregate`.
        """
        n = len(self.graphs)
        if n > 1:
            raise ConfigError(f"aggregate: the batch has {n} layers: aggregate over the graphs that batch.layers({n}) returns")
        return self.layers(1)[0].aggregate(*args, **options)


def _take(x: Array, rows: Array, buffers: AbstractContextManager[object]) -> Array:
    """Return x[rows] as a new array, allocated from the memory pool `buffers`."""
    with buffers:
        return kernels.Rows(x, rows).array()


@dataclass(frozen=True)
class FullBatch:
    """A rank's whole part of a graph as one batch, for full-batch training, with the rows that the loss counts.

    Parameters
    ----------
    graph : Graph, or NodeType
        First argument of the model.
    x : Tensor (n_src, ...), or for a node type a dict of Tensor by type
        Input rows.
    labels : (n_dst, ...) array
        Targets of all rows of `graph`.
    rows : (n,) int64
        Rows of the output that count in the loss.
    n_global : int
        Number of rows that count, over all ranks.

    Examples
    --------
    Each of two ranks has three of six nodes; the loss runs over two nodes of all ranks:

    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.comm import threads
    >>> from sarlite.minibatch.batch import FullBatch
    >>> from sarlite.models import SAGE
    >>> ring = np.arange(6)
    >>> def outputs(comm):
    ...     graph = Graph.from_edges(ring, (ring + 1) % 6).shard(comm, parts="contiguous")
    ...     x, labels = Tensor(np.ones((graph.n_src, 8), np.float32)), np.zeros(graph.n_dst, int)
    ...     batch = FullBatch(graph, x, labels, rows=np.array([0]), n_global=2)
    ...     return SAGE(8, 4, rng=nn.Random(0))(batch.graph, batch.x).shape, len(batch.rows)
    >>> threads.run(2, outputs)
    [((3, 4), 1), ((3, 4), 1)]
    """

    graph: Any
    x: Hidden
    labels: Array
    rows: Array
    n_global: int
    lasting: ClassVar[bool] = True
    outputs: ClassVar[None] = None  # the output's rows are the part's

    def take(self, x: Array) -> Array:
        """Return x itself, because the first layer of a full batch reads all rows."""
        return x

    def with_input(self, x: Hidden, rows: Array, n_global: int) -> "FullBatch":
        """Return a copy of this batch with input `x`; `rows` are the rows that the loss counts, `n_global` their number on all ranks."""
        return replace(self, x=x, rows=rows, n_global=n_global)


class FixedBatch:
    """A source of batches, like a loader, whose epochs have one step each, always with the same batch.

    Attributes
    ----------
    batch : Batch or FullBatch
    step : int
        The global step of the next epoch.
    sampled, fresh
        See `Loader`.
    """

    sampled, fresh = False, True

    def __init__(self, batch: Batch | FullBatch) -> None:
        self.batch, self.step = batch, 0

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Batch | FullBatch]:
        self.step += 1
        yield self.batch

    def counted(self, graph: Graph | NodeType) -> dict[str, object]:
        """Return statistics of the batch by name: {"message_flow": numbers of rows and edges} if it is a message-flow batch of
        `graph`, {} if it is the whole part. Collective.

        A message-flow batch has "message_flow": the "rows", "edges" and "halo_rows" of each layer and of the graph,
        summed over all ranks. The keys are those in the output of `--json`.
        """
        if self.batch.graph is graph:
            return {}
        sizes = [(g.n_dst, g.n_edges, g.n_halo) for g in (*self.batch.graphs, graph)]  # type: ignore[union-attr]
        *layers, full = graph.comm.allreduce(np.array(sizes, np.int64)).tolist()
        names = ("rows", "edges", "halo_rows")
        counts = {"layers": [dict(zip(names, layer)) for layer in layers], "graph": dict(zip(names, full))}
        return {"message_flow": counts}

    def contents(self) -> dict[str, object]:
        """Return {}, because a fixed batch has no caches whose contents a checkpoint would store."""
        return {}

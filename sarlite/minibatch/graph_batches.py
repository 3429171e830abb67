"""Batches of whole graphs, for models that predict a class or a value of each graph."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sarlite.comm import agree
from sarlite.errors import ConfigError
from sarlite.graph.graph_set import GraphSet
from sarlite.minibatch.loader import Loader, depends_on
from sarlite.minibatch.seeds import divide
from sarlite.tape import Tensor
from sarlite.types import Array, ArrayLike


@dataclass(frozen=True)
class GraphBatch:
    """Batch of some graphs of a set, with all their nodes and edges.

    Parameters
    ----------
    graph : GraphSet
        First argument of the model: the graphs of the batch.
    x : Tensor (n_src, ...)
        Features, one row for each node.
    labels : (n_dst, ...) array, or None
        Targets, one row for each distinct graph.
    rows : (n_seeds,) int64
        Row of the model's output for each seed; a graph that is twice in `train` has two entries.
    n_global : int
        Number of seeds of all ranks, the divisor of the loss.
    step : int
        Global step.
    outputs : (n_dst,) int64
        Row of each graph of the batch in the whole set.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, GraphSet
    >>> from sarlite.minibatch import GraphLoader
    >>> graphs = GraphSet.of(Graph.from_edges([0, 1, 3], [1, 2, 4]), [0, 0, 0, 1, 1])
    >>> batch, = GraphLoader(graphs, np.ones((5, 8)), np.array([0, 1]), slice(None), batch_size=2)
    >>> batch.graph, batch.x.shape, batch.labels.shape
    (GraphSet(2 of 2 graphs, Graph(n_src=5, n_dst=5, n_edges=3)), (5, 8), (2,))
    """

    graph: GraphSet
    x: Tensor
    labels: Array | None
    rows: Array
    n_global: int
    step: int
    outputs: Array
    lasting: ClassVar[bool] = False


class GraphLoader(Loader):
    """Loader of batches of whole graphs; each iteration over the loader is one epoch. Construction is collective.

    An epoch is collective too.

    Parameters
    ----------
    graph : GraphSet
        Set whose graphs are not split among ranks.
    x : (n_src, ...) array
        Features, one row for each node of this rank.
    labels : (n_dst, ...) array, or None
        Targets, one row for each graph of this rank.
    train : (n_dst,) bools, slice, or (k,) row numbers
        This rank's training graphs; may be empty.
    batch_size : int
        Number of graphs of a step, over all ranks. The last step of an epoch has the remaining graphs.
    seed : int
        Seed of the order.
    batches : {"global", "balanced"}
        See `NeighborLoader`.

    Raises
    ------
    ConfigError, DataError, ShapeError
        On every rank: `graph` is no GraphSet, a graph is split among ranks, or an error of `RowLoader`.

    Notes
    -----
    A batch has all nodes and edges of its graphs, and no rows are sent. A step sends a few numbers of each rank, and
    gradients.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, GraphSet
    >>> from sarlite.minibatch import GraphLoader
    >>> graphs = GraphSet.of(Graph.from_edges([0, 1, 3], [1, 2, 4]), [0, 0, 0, 1, 1])
    >>> loader = GraphLoader(graphs, np.ones((5, 8)), np.array([0, 1]), slice(None), batch_size=1)
    >>> sorted(batch.x.shape for batch in loader)
    [(2, 8), (3, 8)]
    """

    graph_types: ClassVar[tuple[type, ...]] = (GraphSet,)

    def __init__(self, graph: GraphSet, x: Array, labels: ArrayLike | None, train: ArrayLike | slice, *, batch_size: int, seed: int = 0,
                 batches: str = "global") -> None:
        if not isinstance(graph, GraphSet):
            raise ConfigError(f"batches of graphs are of a GraphSet, but graph is a {type(graph).__name__}")
        super().__init__(graph, x, labels, train, batch_size)
        graph.check_whole()
        agree(graph.comm, (batch_size, seed, batches), "batch_size, seed or batches")
        self._seeds = divide(batches, graph.comm, graph.dst_ids[self.train], batch_size, seed)
        self.divided = depends_on(batches)

    def _batches(self, start: int, end: int) -> Generator[GraphBatch, None, None]:  # type: ignore[override]
        for step in range(start, end):
            outputs, rows = np.unique(self.seeds(step), return_inverse=True)
            graph, nodes = self.graph.take(outputs)
            labels = None if self.labels is None else self.labels[outputs]
            x = Tensor(self.x[nodes], placement="rows")
            yield GraphBatch(graph, x, labels, rows, self._seeds.count(step), step, outputs)

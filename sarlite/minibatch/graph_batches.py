"""Batches of whole graphs."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

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
    """Some graphs of a set, with all their nodes and edges.

    Attributes
    ----------
    graph : GraphSet
        What the model is called with.
    x : Tensor
        A row each node.
    labels : (n_dst, ...) array, or None
    rows : (n_seeds,) int64
        The row of the model's output of each graph as asked.
    n_global : int
        Graphs of all ranks, as asked.
    step : int
        The global step.
    outputs : (n_dst,) int64
        Which rows of the whole set the model's output has.
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
    """Makes batches of graphs; each iteration over the loader is one epoch.

    Construction is collective, and so is an epoch.

    Parameters
    ----------
    graph : GraphSet
        Each rank's graphs are whole.
    x : (n_src, ...) array
        A row each node.
    labels : (n_dst, ...) array, or None
    train : (n_dst,) bools, slice, or (k,) row numbers
        This rank's graphs of an epoch, maybe none.
    batch_size : int
        Graphs a step, of all ranks. The last step of an epoch has what is left.
    seed : int
        Of the order.
    batches : {"global", "balanced"}
        As of `NeighborLoader`.

    Raises
    ------
    ConfigError, DataError, ShapeError
        On every rank: graph is no GraphSet, or a graph is cut; what `RowLoader` refuses.

    Notes
    -----
    Nothing is sampled: a batch's graphs have all of their edges, and no rows travel. A step sends a few numbers of each
    rank, and gradients.
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

    def _batches(self, start: int, end: int) -> Generator[Any, None, None]:
        for step in range(start, end):
            outputs, rows = np.unique(self.seeds(step), return_inverse=True)
            graph, nodes = self.graph.take(outputs)
            labels = None if self.labels is None else self.labels[outputs]
            x = Tensor(self.x[nodes], placement="rows")
            yield GraphBatch(graph, x, labels, rows, self._seeds.count(step), step, outputs)

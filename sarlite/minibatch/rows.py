"""Minibatches of rows alone, for models that need no neighbours: their features were propagated before."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from sarlite import kernels
from sarlite.comm import agree, together
from sarlite.errors import ConfigError, ShapeError, whole
from sarlite.minibatch.seeds import divide
from sarlite.sar.graph.graph import Graph
from sarlite.tape import Tensor
from sarlite.tape.engine import as_array
from sarlite.tape.rows import row_numbers
from sarlite.types import Array


class RowBatch:
    """Some of this rank's rows in place of a graph: what a model without messages asks of one, and what goes with the rows.

    Attributes
    ----------
    n_src, n_dst : int
    src_ids, dst_ids : (n_dst,) int64
        The rows' global ids, the same array.
    comm, profile, step, labels, rows, n_global
        As of `Batch`; each seed has a row of its own.
    """

    bipartite = False
    edge_weight = edge_features = None

    def __init__(self, graph: Graph, seeds: Array, *, step: int, n_global: int, x: Array, labels: Array | None,
                 buffers: kernels.Buffers) -> None:
        self.comm, self.profile, self.n_nodes, self.step, self.n_global = graph.comm, graph.profile, graph.n_nodes, step, n_global
        self.n_src = self.n_dst = len(seeds)
        self.src_ids = self.dst_ids = graph.dst_ids[seeds]
        self.labels, self.rows = None if labels is None else labels[seeds], np.arange(len(seeds))
        self._x, self._seeds, self.buffers = x, seeds, buffers

    def __repr__(self) -> str:
        return f"RowBatch({self.n_global} seeds)"

    @cached_property
    def x(self) -> Tensor:
        """(n_src, ...): the input rows, gathered at the first use."""
        with self.buffers:
            return Tensor(np.take(self._x, self._seeds, axis=0))

    def aggregate(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigError("a batch of rows alone has no edges: the model has powers, so it trains on features that were propagated before")

    layers = aggregate


class RowLoader:
    """Makes batches of rows; iterating over it is an epoch. Construction is collective; an epoch sends what dividing its seeds does.

    Parameters
    ----------
    graph : Graph
        This rank's part, for the rows' ids.
    x, labels, train, batch_size, seed
        As of `NeighborLoader`.
    batches : {"global", "balanced"}
        "global": a step's seeds are the same for any number of ranks, and so, to rounding, is the training.

    Raises
    ------
    ConfigError, DataError, ShapeError
        On every rank: a batch_size that is not above 0; x or labels have not the graph's rows; train is none, or empty on all ranks.

    Notes
    -----
    Nothing is sampled: each rank reads its own seeds' rows of x, and steps only exchange gradients. Memory: one batch's rows.
    """

    def __init__(self, graph: Graph, x: Any, labels: Any, train: Any, *, batch_size: int, seed: int = 0, batches: str = "global") -> None:
        self.graph, self.step, self._counts, self._buffers = graph, 0, {"steps": 0, "seeds": 0}, kernels.Buffers()
        self.x, self.labels = as_array(x), None if labels is None else as_array(labels)
        self.train = together(graph.comm, lambda: self._checked(train, batch_size))
        agree(graph.comm, (batch_size, seed, batches), "batch_size, seed or batches")
        self._seeds = divide(batches, graph.comm, graph.dst_ids[self.train], batch_size, seed)

    def _checked(self, train, batch_size):
        whole("batch_size", batch_size, 1)
        for name, array in (("x", self.x), ("labels", self.labels)):
            if array is not None and array.shape[:1] != (self.graph.n_dst,):
                raise ShapeError(f"{name} of shape {array.shape} has not the graph's {self.graph.n_dst} rows")
        return row_numbers("train", train, self.graph.n_dst)

    def __len__(self) -> int:
        """Steps an epoch, the same on every rank."""
        return self._seeds.n_steps

    @property
    def counts(self) -> dict[str, Any]:
        return dict(self._counts)

    def __iter__(self) -> Iterator[RowBatch]:
        """Yield the batches of the epoch that `step` is in, from that step on. Collective."""
        for step in range(self.step, (self.step // len(self) + 1) * len(self)):
            seeds = self.train[self._seeds(step)]
            self._counts["steps"] += 1
            self._counts["seeds"] += len(seeds)
            self.step = step + 1
            yield RowBatch(self.graph, seeds, step=step, n_global=self._seeds.count(step), x=self.x, labels=self.labels,
                           buffers=self._buffers)

    def state(self) -> dict[str, Array]:
        """Return nothing: there is no cache."""
        return {}

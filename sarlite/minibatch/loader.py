"""The loader: which seeds each step has, and the batches of an epoch."""

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.keys import key, splitmix64
from sarlite.minibatch.ahead import ahead
from sarlite.minibatch.batch import Batch, Degrees
from sarlite.minibatch.sampler import Sampler
from sarlite.sar.graph import Graph
from sarlite.tape.engine import as_array
from sarlite.tape.rows import row_numbers
from sarlite.types import Array


class NeighborLoader:
    """Makes the batches of a training run; iterating over it is an epoch, and the next time the next one.

        loader = NeighborLoader(graph, x, labels, train, fanouts=(5, 10, 15), batch_size=1000)
        for batch in loader:
            loss = ops.cross_entropy(model(batch, batch.x), batch.labels, batch.rows, batch.n_global)

    Parameters
    ----------
    graph : Graph
        On one rank; not bipartite.
    x : (n_src, ...) array
        Features. Borrowed.
    labels : (n_dst, ...) array, or None
    train : (n_dst,) bools, slice, or (k,) row numbers
        The seeds of an epoch; a row number may be there more than once, and counts as often.
    fanouts : sequence of int
        In-edges picked a row, one entry a layer, the first layer's first; -1 takes all.
    batch_size : int
        Seeds a step, of all ranks. The last step of an epoch has what is left.
    seed : int
        Of the order and of the picks.
    sampler : {"uniform", "replace", "full", "labor"}
        See `Sampler`.
    sample_ahead : int
        Batches that a thread samples ahead of the one in use; 0 samples when they are asked for.
    one_variate : bool
        See `Sampler`.

    Attributes
    ----------
    step : int
        The global step of the next batch. Set it to go on from there; within an epoch, with what is left of it.

    Raises
    ------
    ConfigError, DataError, ShapeError
        A sharded or bipartite graph; what `Sampler` refuses; a batch_size that is not above 0, a sample_ahead below 0; x or labels
        have not the graph's rows; train is none of the above, or empty.

    Notes
    -----
    An epoch's seeds stand in the order of a variate of (seed, epoch, global id), cut every `batch_size`; so a step's seeds and picks depend
    neither on threads nor on `sample_ahead`. Memory: that of the sampler, and of 1 + sample_ahead batches.
    """

    def __init__(self, graph: Graph, x: Any, labels: Any, train: Any, *, fanouts: Sequence[int], batch_size: int, seed: int = 0,
                 sampler: str = "uniform", sample_ahead: int = 1, one_variate: bool = False) -> None:
        if graph.comm.size > 1:
            raise ConfigError(f"minibatches on {graph.comm.size} ranks: remote neighbours are not there yet; load the whole graph on one")
        if graph.bipartite:
            raise ConfigError("minibatches of a bipartite graph: what one layer makes are no sources of the next")
        self.graph, self.x, self.labels = graph, np.ascontiguousarray(as_array(x)), None if labels is None else as_array(labels)
        for name, array in (("x", self.x), ("labels", self.labels)):
            if array is not None and array.shape[:1] != (graph.n_dst,):
                raise ShapeError(f"{name} of shape {array.shape} has not the graph's {graph.n_dst} rows")
        self.batch_size, self.sample_ahead = _whole("batch_size", batch_size, 1), _whole("sample_ahead", sample_ahead, 0)
        self.train, self.seed, self.step = row_numbers("train", train, graph.n_dst), operator.index(seed), 0
        if not len(self.train):
            raise DataError("train: the training split is empty")
        ids = graph.dst_ids
        self.sampler = Sampler(graph.in_edges(), fanouts, sampler, seed, dst_ids=ids, src_ids=ids, one_variate=one_variate)
        self._degrees, self._buffers, self._order = Degrees(graph), (kernels.Buffers(), kernels.Buffers()), (-1, self.train)

    def __len__(self) -> int:
        """Steps an epoch."""
        return -(-len(self.train) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of the epoch that `step` is in, from that step on."""
        steps = range(self.step, (self.step // len(self) + 1) * len(self))
        for batch in ahead(self._make, steps, self.sample_ahead):
            self.step = batch.step + 1
            yield batch

    def seeds(self, step: int) -> Array:
        """Return the training rows of a step, (k,) int64."""
        epoch, place = divmod(step, len(self))
        if self._order[0] != epoch:
            ids = self.graph.dst_ids[self.train].astype(np.uint64)
            variates = splitmix64(ids ^ np.uint64(key(self.seed, "batches", "", epoch, 0)))
            self._order = epoch, self.train[np.argsort(variates, kind="stable")]
        return self._order[1][place * self.batch_size : (place + 1) * self.batch_size]

    def batch(self, seeds: Any, step: int = 0) -> Batch:
        """Return a batch of any rows, such as for a prediction.

        Parameters
        ----------
        seeds : (k,) int array
            Rows of the graph; `Batch.rows` has a place for each, also where one is there twice.
        step : int
            The global step, which the picks go by.

        Raises
        ------
        ShapeError, DataError
            Seeds that are no row numbers.
        """
        return self._batch(self.sampler(seeds, step), step)

    def _make(self, step):
        with self._buffers[0]:
            batch = self._batch(self.sampler(self.seeds(step), step), step)
            for graph in batch.layers(len(self.sampler.fanouts))[1:]:  # where gradients flow back; features mostly need none
                graph.plan.local.transpose  # noqa: B018 (cached at its first use)
        return batch

    def _batch(self, sampled, step):
        return Batch(self.graph, sampled, self._degrees, step=step, x=self.x, labels=self.labels, buffers=self._buffers[1])


def _whole(name, value, least):
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__") or operator.index(value) < least:
        raise ConfigError(f"{name} {value!r} is not a whole number >= {least}")
    return operator.index(value)

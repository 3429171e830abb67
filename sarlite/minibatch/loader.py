"""Loaders, which yield the batches of an epoch."""

import operator
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, ClassVar

import numpy as np

from sarlite import kernels
from sarlite.comm import agree, together
from sarlite.errors import ConfigError, ShapeError, check_int
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import NodeType
from sarlite.graph.weights import check_range, check_times
from sarlite.minibatch.batch import Batch, Features
from sarlite.minibatch.batch_layers import batch_rows, layer_graph
from sarlite.minibatch.cooperative import Cooperative
from sarlite.minibatch.hec.halo_cache import HEC, CachedLayer, Caches
from sarlite.minibatch.hec.row_table import Ordered
from sarlite.minibatch.part_edges import PartEdges, check_graph, input_rows
from sarlite.minibatch.sampler import Sampler, check_fanouts
from sarlite.minibatch.samplers import make_sampler
from sarlite.minibatch.seeds import Seeds, divide
from sarlite.minibatch.temporal import Temporal, check_unit, time_ranges, timed_edges
from sarlite.minibatch.transposes import Transposes
from sarlite.schedule.ahead import ahead
from sarlite.tape.row_index import selected_rows
from sarlite.tape.tensor import as_array
from sarlite.types import Array, ArrayLike


class Loader(ABC):
    """Base class of loaders, which divide the training rows of an epoch (seeds) into steps and yield a batch for each step.

    Attributes
    ----------
    graph : Graph, NodeType or GraphSet
    x : (n_src, ...) array, or for a node type a dict of arrays by type
        Features of all source rows of the graph.
    labels : (n_dst, ...) array, or None
        Targets of all destination rows of the graph.
    step : int
        Global step of the next batch.
    sampled : bool
        True if each step has its own batch.
    fresh : bool
        True if all rows of a batch are computed in its step, and none comes from a cache or was computed before.
    divided : str
        Argument by which steps depend on how rows are divided among ranks; "" if they do not. See `depends_on`.
    graph_types : tuple of types
        Types of graphs that the loader accepts.
    """

    sampled, fresh, divided = True, True, ""
    graph_types: ClassVar[tuple[type, ...]] = (Graph, NodeType)
    _seeds: Seeds

    graph: Any

    def __init__(self, graph: Any, x: Features, labels: ArrayLike | None, train: ArrayLike | slice, batch_size: int,
                 check: Callable[[], object] = lambda: None) -> None:
        self.graph, self._step, self._counts = graph, 0, {"steps": 0, "seeds": 0}
        checked = together(graph.comm, lambda: (*self._checked(x, labels, train, batch_size), check()))
        self.train, self.batch_size, _ = checked

    def _checked(self, x, labels, train, batch_size):
        self.x, self.labels = input_rows(self.graph, x), None if labels is None else as_array(labels)
        if self.labels is not None and self.labels.shape[:1] != (self.graph.n_dst,):
            raise ShapeError(f"labels have shape {self.labels.shape}, but the graph has {self.graph.n_dst} rows")
        return self._train_rows(train), check_int("batch_size", batch_size, 1)

    def _train_rows(self, train: ArrayLike | slice) -> Array:
        """Return the row numbers, (k,) int64, of an epoch's seeds from `train`: a mask, a slice or row numbers."""
        return selected_rows("train", train, self.graph.n_dst)

    @abstractmethod
    def _batches(self, start: int, end: int) -> Generator[Batch, None, None]:
        """Yield the batches of the global steps start .. end - 1."""

    def __len__(self) -> int:
        """Return the number of steps per epoch, the same on every rank."""
        return self._seeds.n_steps

    def __iter__(self) -> Iterator[Batch]:
        """Yield the remaining batches of the current epoch, from `step` on. Collective."""
        with closing(self._batches(self._step, (self._step // len(self) + 1) * len(self))) as batches:
            for batch in batches:
                self._counts["steps"] += 1
                self._counts["seeds"] += len(batch.rows)
                self._step = batch.step + 1
                yield batch
                del batch

    @property
    def step(self) -> int:
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        self._step = check_int("step", value, 0)

    @property
    def counts(self) -> dict[str, object]:
        return dict(self._counts)

    def seeds(self, step: int) -> Array:
        """Return this rank's training rows of a step, (k,) int64. Collective; not to be called during an epoch."""
        return self.train[self._seeds(step)]

    def counted(self, graph: Graph) -> dict[str, object]:
        """Return statistics of the batches by name, as in the output of `--json`; `graph` is the graph trained on. Collective."""
        return {}

    def state(self) -> dict[str, Array]:
        """Return {name: copy of the array} of this rank's caches; {} without caches.

        A resumed run restores the loader from this state and `step`.
        """
        return {name: array.read() for name, array in self.contents().items()}

    def contents(self) -> dict[str, Ordered]:
        """Return {name: array} of this rank's caches, without copies; the arrays are valid until the next batch."""
        return {}


class RowLoader(Loader):
    """Loader of batches of rows without edges, for models such as SGC whose features were propagated over the graph before training.

    Each iteration over the loader is one epoch. Construction is collective; an epoch communicates only to divide its
    seeds.

    Parameters
    ----------
    graph : Graph
        This rank's part, used for the rows' ids.
    x, labels, train, batch_size, seed
        See `NeighborLoader`.
    batches : {"global", "balanced"}
        "global": a step's seeds are the same for any number of ranks, and so is the training up to rounding.

    Raises
    ------
    ConfigError, DataError, ShapeError
        On every rank: batch_size is below 1, x or labels do not have the graph's rows, or train is not valid or is
        empty on all ranks.

    Notes
    -----
    Nothing is sampled: each rank reads its own seeds' rows of x, and steps only exchange gradients. Memory: the rows of
    one batch.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph
    >>> from sarlite.minibatch.loader import RowLoader
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> loader = RowLoader(graph, np.ones((3, 8)), np.zeros(3, int), slice(None), batch_size=2)
    >>> [batch.x.shape for batch in loader]
    [(2, 8), (1, 8)]
    """

    fresh = False

    def __init__(self, graph: Graph, x: Array, labels: ArrayLike | None, train: ArrayLike | slice, *, batch_size: int, seed: int = 0,
                 batches: str = "global") -> None:
        super().__init__(graph, x, labels, train, batch_size)
        agree(graph.comm, (batch_size, seed, batches), "batch_size, seed or batches")
        self._seeds = divide(batches, graph.comm, graph.dst_ids[self.train], batch_size, seed)
        self.divided = depends_on(batches)
        self._buffers = kernels.Buffers()

    def _batches(self, start: int, end: int) -> Generator[Batch, None, None]:
        for step in range(start, end):
            rows = self.seeds(step)
            yield Batch(self.graph, [], rows, rows, np.arange(len(rows)), step=step, n_global=self._seeds.count(step),
                        x=self.x, labels=self.labels, buffers=self._buffers)


class NeighborLoader(Loader):
    """Loader of batches with sampled neighbours; each iteration over the loader is one epoch.

    Each batch is the argument of the model and has the labels of its seeds::

        loader = NeighborLoader(graph, x, labels, train, fanouts=(5, 10, 15), batch_size=1000)
        for batch in loader:
            loss = ops.cross_entropy(model(batch, batch.x), batch.labels, batch.rows, batch.n_global)

    Construction and epochs are collective: every rank takes part in every step, even without seeds.

    Parameters
    ----------
    graph : Graph or NodeType
        Whole graph or this rank's part, not bipartite; for a `HeteroGraph` the node type of the seeds,
        `graph.of(type)`.
    x : (n_src, ...) array, or for a node type a dict of arrays by type
        Features of this rank's rows. Borrowed; copied only if an `HEC` keeps the features of halo rows.
    labels : (n_dst, ...) array, or None
    train : (n_dst,) bools, slice, or (k,) row numbers
        This rank's seeds of an epoch, maybe none. A repeated row number counts as often as it occurs.
    fanouts : sequence of int
        Number of in-edges picked per row, for a node type per row and relation; one entry per layer, the first layer
        first. -1 takes all.
    batch_size : int
        Number of seeds per step, over all ranks. The last step of an epoch has the rest.
    seed : int
        Seed of the order and of the picks.
    sampler : {"uniform", "replace", "full", "labor"}
        See `Sampler`.
    remote : {"exact", "local"} or HEC
        Treatment of neighbours that other ranks own. "exact": the owners sample and compute them, so that the batch
        equals the batch of one rank for the seeds of all ranks (`Cooperative`). "local": edges between parts are left
        out. `HEC`: their rows come from a cache.
    batches : {"global", "balanced"}, optional
        "global", the default on one rank and with "exact": the seeds of all ranks in one order, cut every `batch_size`.
        "balanced", the default otherwise: each rank's seeds, cut into parts whose sizes differ by at most one.
    sample_ahead : int
        Number of batches that a thread samples ahead of the batch in use; with 0 batches are sampled when requested.
    one_variate : bool
        See `Sampler`.
    temporal : Temporal, optional
        Times by which a seed sees only edges and nodes that are not later than the seed. `remote` is then "exact" or
        "local".

    Attributes
    ----------
    x : (n_src, ...) array
        Features that batches read: the argument `x`, or its copy, so that a program may free its own array.
    step : int
        Global step of the next batch. Setting it continues from there, within an epoch with the rest of the epoch.
        Setting it back empties the caches of an `HEC` and is collective then.
    caches : Caches or None
        Caches of an `HEC` on several ranks.
    counts : dict
        Counts of this rank since the start: "steps", "seeds"; with an `HEC` also "lookups", "hits" and "rows_pushed" by
        layer, and "bytes_pushed".

    Raises
    ------
    ConfigError, DataError, ShapeError
        On every rank: the graph is bipartite or fetches gradients; a node type with an `HEC`, which has no cache by
        type; an error of `Sampler` or `HEC`; batch_size is below 1 or sample_ahead below 0; x or labels do not have the
        graph's rows; train is not valid or is empty on all ranks.

    Notes
    -----
    An epoch's seeds are ordered by a hash of (seed, epoch, global id). With "global" a step's seeds are the same for
    any number of ranks. A step's seeds and picks never depend on threads or `sample_ahead`. Memory: that of
    `PartEdges`, of the sampler, of 1 + sample_ahead batches, and of the `HEC`. Without MPI_THREAD_MULTIPLE batches that
    need peers are sampled when requested. Several loaders of one communicator may be in use at once.

    Examples
    --------
    Two ranks as threads, each with two of four nodes on a ring; a batch has the seeds of both ranks:

    >>> import numpy as np
    >>> from sarlite import Graph
    >>> from sarlite.comm import threads
    >>> from sarlite.minibatch import NeighborLoader
    >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0])
    >>> def seeds(comm):
    ...     part = graph.shard(comm, "contiguous")
    ...     x, labels = np.ones((2, 8), np.float32), np.zeros(2, int)
    ...     loader = NeighborLoader(part, x, labels, slice(None), fanouts=(2, 2), batch_size=4, sample_ahead=0)
    ...     return [(batch.n_dst, batch.n_global) for batch in loader]
    >>> threads.run(2, seeds)
    [[(2, 4)], [(2, 4)]]
    """

    def __init__(self, graph: Graph | NodeType, x: Features, labels: ArrayLike | None, train: ArrayLike | slice, *, fanouts: Sequence[int],
                 batch_size: int, seed: int = 0, sampler: str = "uniform", remote: "str | HEC" = "exact",
                 batches: str | None = None, sample_ahead: int = 1, one_variate: bool = False,
                 temporal: Temporal | None = None) -> None:
        check_graph(graph, "minibatches")
        comm = graph.comm
        super().__init__(graph, x, labels, train, batch_size,
                         lambda: _check(graph, self.x, seed, sample_ahead, fanouts, sampler, remote, temporal))
        self.seed = operator.index(seed)
        self.temporal = together(comm, lambda: temporal and temporal.checked(graph, sampler, self._n_times()))
        said = (tuple(fanouts), self.batch_size, sample_ahead, self.seed, sampler, remote, batches, one_variate,
                self.temporal and (self.temporal.pick, self.temporal.recency, _timed_types(self.temporal)))
        agree(comm, repr(said), "fanouts, batch_size, sample_ahead, seed, sampler, remote, batches, one_variate or temporal")
        number = comm.numbered("loader", self)  # several may be in use at once, each with threads that communicate
        channels = lambda name: comm.channel(f"{name} {number}" if number else name)  # noqa: E731
        exact = remote == "exact" or comm.size == 1
        batches = batches or ("global" if exact else "balanced")
        self.divided = depends_on(batches, remote)
        self._sampling = channels("sample")  # of the thread ahead alone
        self._seeds = divide(batches, self._sampling, self._seed_ids(), self.batch_size, self.seed)
        self._part, self._table = PartEdges(graph, local=remote == "local"), self.x
        timed = timed_edges(self._part, self.temporal) if self.temporal else ()
        self._time_ranges = time_ranges(self._part, self.temporal) if self.temporal else {}
        seed_times = np.asarray(self.temporal.seeds if self.temporal else ())
        together(comm, lambda: check_unit(seed_times, self._time_ranges))
        self._sampler_on: Callable[[str], Sampler] = lambda channel: make_sampler(
            self._part, fanouts, sampler, seed, comm=channels(channel) if exact else None, one_variate=one_variate,
            temporal=self.temporal, timed=timed, dtype=getattr(self.x, "dtype", None))
        self.sampler = self._sampler_on("sample")
        self._predicting: Sampler | None = None
        self.caches: Caches | None = None
        self._window = 0  # batches whose needs are told ahead
        if isinstance(remote, HEC) and comm.size > 1:
            self.caches = Caches(self._part, self.x, len(self.sampler.fanouts), self.seed, remote, channels)
            self._window = remote.delay if remote.push == "demand" else 0
            if self.caches.kept_features is not None:
                self._table = self.caches.kept_features
                self.x = self._table[: len(self.x)]
        self._left = deque[Batch]()  # of the next epoch, whose needs were told in this one
        self.sample_ahead = max(sample_ahead, self._window)
        if self.sample_ahead and not comm.threaded and (self._window or exact) and comm.size > 1:
            self.sample_ahead = 0
            if comm.rank == 0:
                warnings.warn("MPI has no MPI_THREAD_MULTIPLE, so sample_ahead falls back to 0", RuntimeWarning,
                              stacklevel=2)
        self._transposes, self._buffers = Transposes(), (kernels.Buffers(), kernels.Buffers())

    @property
    def fresh(self) -> bool:  # type: ignore[override]
        return self.caches is None

    @property
    def step(self) -> int:
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        value = check_int("step", value, 0)
        if value < self._step and self.caches:
            self.caches.clear()
        self._step = value

    @property
    def counts(self) -> dict[str, object]:
        if self.caches is None:
            return dict(self._counts)
        by_layer = {name: list(getattr(self.caches, name)) for name in ("lookups", "hits", "rows_pushed")}
        return {**self._counts, **by_layer, "bytes_pushed": self.caches.bytes_pushed}

    def counted(self, graph: Graph) -> dict[str, object]:
        """Return {name: statistics of the caches}, such as hit rates, over all ranks and steps; {} without caches. `graph` is unused.

        The keys are "hit_rate" and "rows_pushed", lists by layer, and "bytes_pushed". Collective.
        """
        if self.caches is None:
            return {}
        ranks = self.graph.comm.allgather(self.counts)
        hits, lookups, rows, n_bytes = (np.sum([counts[name] for counts in ranks], 0)
                                        for name in ("hits", "lookups", "rows_pushed", "bytes_pushed"))
        rates = [int(k) / int(n) if n else None for k, n in zip(hits, lookups)]
        return {"hit_rate": rates, "rows_pushed": rows.tolist(), "bytes_pushed": int(n_bytes)}

    def _batches(self, start: int, end: int) -> Generator[Batch, None, None]:
        window = self._left if self._left and self._left[0].step == start else deque()
        self._left = deque()
        with closing(ahead(self._make, range(start + len(window), end + self._window), self.sample_ahead)) as sampled:
            for step in range(start, end):
                while len(window) <= self._window:
                    window.append(next(sampled))
                batch = window.popleft()
                yield batch
                self._transposes.learn(batch.graphs)
                if self.caches:
                    self.caches.done(step)
                del batch
            self._left = window
            self.drain()

    def drain(self) -> None:
        """Receive the pushed rows that are in transit. Collective; an epoch calls it at its end.

        A program that leaves an epoch early must call it on all ranks before it ends; until then peers wait for each
        other's rows.
        """
        if self.caches:
            self.caches.drain()

    def batch(self, seeds: ArrayLike, step: int = 0, times: ArrayLike | None = None) -> Batch:
        """Return the batch whose outputs are the rows `seeds`, sampled with the random numbers of step `step`. `times` are the seeds'
        times for sampling in time; None takes the stored times. Collective.

        It reads the caches but pushes no rows.

        Parameters
        ----------
        seeds : (k,) int array
            This rank's rows of the graph. `Batch.rows` has an entry for each, also for a row that is given twice.
        step : int
            Global step, which determines the picks and the ages of cached rows.
        times : (k,) int or datetime64 array, optional
            For a `Temporal` loader: time of each seed, by default as `Temporal.seeds` has them.

        Raises
        ------
        ConfigError, ShapeError, DataError
            Seeds are not valid row numbers. Or `times` are not one whole number or date for each seed, or the loader does
            not sample in time.
        """
        if self._predicting is None:  # apart from the thread ahead, which may have come less far on other ranks
            self._predicting = self._sampler_on("predict") if isinstance(self.sampler, Cooperative) else self.sampler
        sample, checked = self._predicting, together(self.graph.comm, lambda: self._checked_times(seeds, times))
        more = dict[str, Any]() if checked is None else {"times": checked}
        sampled = together(self.graph.comm, lambda: sample(seeds, step, **more))
        return self._batch(sampled, step, sum(self.graph.comm.allgather(len(sampled.numbers))), pushes=False)

    def _checked_times(self, seeds: ArrayLike, times: ArrayLike | None) -> Array | None:
        """Return the `times` of `seeds` as int64, (k,); None stays None."""
        if times is not None and self.temporal is None:
            raise ConfigError("times: the loader does not sample in time, as it was made without temporal")
        checked = check_times("times", times, as_array(seeds).size)
        if checked is not None:
            check_unit(checked, self._time_ranges)
        return checked

    def contents(self) -> dict[str, Ordered]:
        return self.caches.contents() if self.caches else {}

    def load_state(self, state: dict[str, Array]) -> None:
        """Restore the caches from arrays that `state` returned on the same rank of the same division of the graph."""
        if self.caches:
            self.caches.load_state(state)

    def _n_times(self) -> int:
        """Return the required length of the array `Temporal.seeds`, the seeds' times: one for each local row of the graph."""
        return self.graph.n_dst

    def _seed_ids(self) -> Array:
        """Return the ids whose hash orders the seeds of an epoch, (n_train,) int64."""
        return self.graph.dst_ids[self.train]

    def _make(self, step: int) -> Batch:
        """Sample the batch of `step` and ask peers for the cached rows that it needs; the sampling thread calls this ahead of training."""
        with self._buffers[0], self.graph.profile.span("sample", "sample", step=step):
            sampled = self.sampler(self.seeds(step), step)
            batch = self._batch(sampled, step, self._seeds.count(step), pushes=True)
            self._transposes.make(batch.graphs)
            if self.caches:
                self.caches.ask(sampled, step)
            return batch

    def _batch(self, sampled, step, n_global, pushes):
        graphs = [self._graph(layer, sampled.rows[: layer.n_src], step, pushes) for layer in sampled.layers]
        return Batch(self.graph, graphs, *batch_rows(self._part, sampled), step=step, n_global=n_global, x=self._table,
                     labels=self.labels, buffers=self._buffers[1])

    def _graph(self, layer, rows, step, pushes):
        if self.caches:
            return CachedLayer(self._part, layer, rows, self.caches, step, pushes)
        return layer_graph(self._part, layer, rows)


def depends_on(batches: str, remote: "str | HEC" = "exact") -> str:
    """Return the text of the argument of a `NeighborLoader`, such as "batches='balanced'", that makes its batches depend on how the
    graph is divided among ranks. Return "" if `batches` and `remote` have values for which batches do not depend on the division.
    """
    return f"remote={remote!r}" if remote != "exact" else f"batches={batches!r}" if batches != "global" else ""


def _timed_types(temporal: Temporal) -> list[str] | bool:
    """Return the list of node types that have times in `temporal`; for a graph of one type, True if its nodes have times."""
    return [*temporal.nodes] if isinstance(temporal.nodes, dict) else temporal.nodes is not None


def _check(graph, x, seed, sample_ahead, fanouts, sampler, remote, temporal):
    operator.index(seed)
    if temporal is not None and not isinstance(temporal, Temporal):
        raise ConfigError(f"temporal is a {type(temporal).__name__}, but must be a Temporal", "temporal")
    if temporal is not None and isinstance(remote, HEC):
        raise ConfigError(f"remote {remote!r} does not go with temporal: a cache keeps rows that were computed at other "
                          "times, maybe later ones: take remote exact or local", "temporal")
    if isinstance(graph, NodeType):
        if isinstance(remote, HEC):
            raise ConfigError(f"remote {remote!r}: caches of several node types are not supported: take remote exact or "
                              "local")
    else:
        check_range(graph.edge_weight, x.dtype)  # a batch of edges within a part is one rank's alone
    check_int("sample_ahead", sample_ahead, 0)
    check_fanouts(fanouts, sampler)
    if remote not in ("exact", "local") and not isinstance(remote, HEC):
        raise ConfigError(f"remote {remote!r} is not one of exact, local, HEC(...)")

"""Loaders: which seeds each step has, and the batches of an epoch."""

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
from sarlite.errors import ConfigError, ShapeError, whole
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import NodeType
from sarlite.graph.weights import check_range
from sarlite.minibatch.batch import Batch
from sarlite.minibatch.batch_layers import batch_rows, layer_graph
from sarlite.minibatch.cooperative import Cooperative, make_sampler
from sarlite.minibatch.hec.halo_cache import HEC, CachedLayer, Caches
from sarlite.minibatch.hec.row_table import Ordered
from sarlite.minibatch.part_edges import PartEdges, check_graph, input_rows
from sarlite.minibatch.sampler import Sampler, check_fanouts
from sarlite.minibatch.seeds import Seeds, divide
from sarlite.minibatch.transposes import Transposes
from sarlite.schedule.ahead import ahead
from sarlite.tape.row_index import row_numbers
from sarlite.tape.tensor import as_array
from sarlite.types import Array


class Loader(ABC):
    """What loaders share: the rows of a graph, an epoch's seeds, and an iteration over an epoch's batches.

    Attributes
    ----------
    graph : Graph, NodeType or GraphSet
    x : array with a row each source row of the graph, or of a node type a dict of such by type
    labels : array with a row each destination row of the graph, or None
    step : int
        The global step of the next batch.
    sampled : bool
        Whether each step has a batch of its own.
    fresh : bool
        Whether all rows of a batch are made in its step: none was made before, or comes from a cache.
    divided : str
        What makes steps depend on how rows are divided among ranks, as arguments; empty where nothing does.
    graph_types : tuple of types
        Graphs whose rows have the labels.
    """

    sampled, fresh, divided = True, True, ""
    graph_types: ClassVar[tuple[type, ...]] = (Graph, NodeType)
    _seeds: Seeds

    graph: Any

    def __init__(self, graph: Any, x: Any, labels: Any, train: Any, batch_size: int,
                 check: Callable[[], Any] = lambda: None) -> None:
        self.graph, self._step, self._counts = graph, 0, {"steps": 0, "seeds": 0}
        checked = together(graph.comm, lambda: (*self._checked(x, labels, train, batch_size), check()))
        self.train, self.batch_size, _ = checked

    def _checked(self, x, labels, train, batch_size):
        self.x, self.labels = input_rows(self.graph, x), None if labels is None else as_array(labels)
        if self.labels is not None and self.labels.shape[:1] != (self.graph.n_dst,):
            raise ShapeError(f"labels of shape {self.labels.shape} has not the graph's {self.graph.n_dst} rows")
        return row_numbers("train", train, self.graph.n_dst), whole("batch_size", batch_size, 1)

    @abstractmethod
    def _batches(self, start: int, end: int) -> Generator[Batch, None, None]:
        """Yield the batches of the global steps from `start` to `end`."""

    def __len__(self) -> int:
        """Steps an epoch, the same on every rank."""
        return self._seeds.n_steps

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of the epoch that `step` is in, from that step on. Collective."""
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
        self._step = whole("step", value, 0)

    @property
    def counts(self) -> dict[str, Any]:
        return dict(self._counts)

    def seeds(self, step: int) -> Array:
        """Return this rank's training rows of a step, (k,) int64. Collective, and not while an epoch goes on."""
        return self.train[self._seeds(step)]

    def counted(self, graph: Graph) -> dict[str, Any]:
        """Return what a run tells of its batches, by the name that `--json` gives it. Collective."""
        return {}

    def state(self) -> dict[str, Array]:
        """Return what this rank's caches hold, as arrays by name, copied; empty without caches.

        With `step` it is what a run goes on from.
        """
        return {name: array.whole() for name, array in self.contents().items()}

    def contents(self) -> dict[str, Ordered]:
        """Return what `state` copies, in place, until the next batch."""
        return {}


class RowLoader(Loader):
    """Makes batches of rows alone, for models that need no neighbours: their features were propagated before.

    Iterating over it is an epoch. Construction is collective; an epoch sends what dividing its seeds does.

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
        On every rank: a batch_size that is not above 0; x or labels have not the graph's rows; train is none, or empty
        on all ranks.

    Notes
    -----
    Nothing is sampled: each rank reads its own seeds' rows of x, and steps only exchange gradients. Memory: one batch's
    rows.
    """

    fresh = False

    def __init__(self, graph: Graph, x: Any, labels: Any, train: Any, *, batch_size: int, seed: int = 0,
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
    """Makes the batches of a training run; iterating over it is an epoch, and the next time the next one::

        loader = NeighborLoader(graph, x, labels, train, fanouts=(5, 10, 15), batch_size=1000)
        for batch in loader:
            loss = ops.cross_entropy(model(batch, batch.x), batch.labels, batch.rows, batch.n_global)

    Construction is collective, and so is an epoch: every rank takes part in every step, also where it has no seeds.

    Parameters
    ----------
    graph : Graph or NodeType
        Whole, or this rank's part; not bipartite. Of a `HeteroGraph` the node type of the seeds, `graph.of(type)`.
    x : (n_src, ...) array, or of a node type a dict of such by type
        Features of this rank's rows. Borrowed, but for an `HEC` that keeps those of halo rows: then they are copied.
    labels : (n_dst, ...) array, or None
    train : (n_dst,) bools, slice, or (k,) row numbers
        This rank's seeds of an epoch, maybe none; a row number may be there more than once, and counts as often.
    fanouts : sequence of int
        In-edges picked a row, and of a node type a row and relation, one entry a layer, the first layer's first; -1
        takes all.
    batch_size : int
        Seeds a step, of all ranks. The last step of an epoch has what is left.
    seed : int
        Of the order and of the picks.
    sampler : {"uniform", "replace", "full", "labor"}
        See `Sampler`.
    remote : {"exact", "local"} or HEC
        What becomes of neighbours that other ranks own. "exact": the owners expand and compute them, so that the batch
        is that of one rank on the seeds of all (`exact.Cooperative`). "local": edges that cross parts are left out.
        `HEC`: a cache has them, or not.
    batches : {"global", "balanced"}, optional
        "global", the default on one rank and with "exact": all ranks' seeds in one order, cut every `batch_size`.
        "balanced", the default else: each rank's seeds, cut into parts that differ by at most one; so do the steps.
    sample_ahead : int
        Batches that a thread samples ahead of the one in use; 0 samples when they are asked for.
    one_variate : bool
        See `Sampler`.

    Attributes
    ----------
    x : (n_src, ...) array
        The features that batches read: `x` as given or, where it was copied, the copy, so that a program may let go of
        its own.
    step : int
        The global step of the next batch. Set it to go on from there; within an epoch, with what is left of it. Set
        back it empties the caches of an `HEC`, whose rows would be of steps that come again, and is collective.
    caches : Caches or None
        With an `HEC` on several ranks.
    counts : dict
        Of this rank, since the start: "steps", "seeds"; with an `HEC` also "lookups", "hits" and "rows_pushed" by
        layer, "bytes_pushed".

    Raises
    ------
    ConfigError, DataError, ShapeError
        On every rank: a graph that is bipartite, or fetches gradients; a node type with an `HEC`,
        which has no cache by type; what `Sampler` and `HEC` refuse; a batch_size that is not above 0, a sample_ahead
        below 0; x or labels have not the graph's rows; train is none of the above, or empty on all ranks.

    Notes
    -----
    An epoch's seeds stand in the order of a variate of (seed, epoch, global id); with "global" a step's seeds are the
    same for any N, and a step's seeds and picks never depend on threads or `sample_ahead`. Memory: that of `PartEdges`,
    the sampler, of 1 + sample_ahead batches, and of the `HEC`. Without MPI_THREAD_MULTIPLE what needs peers is sampled
    when it is asked for. Several loaders of one communicator may be in use at once.
    """

    def __init__(self, graph: Graph | NodeType, x: Any, labels: Any, train: Any, *, fanouts: Sequence[int],
                 batch_size: int, seed: int = 0, sampler: str = "uniform", remote: Any = "exact",
                 batches: str | None = None, sample_ahead: int = 1, one_variate: bool = False) -> None:
        check_graph(graph, "minibatches")
        comm = graph.comm
        super().__init__(graph, x, labels, train, batch_size,
                         lambda: _check(graph, self.x, seed, sample_ahead, fanouts, sampler, remote))
        self.seed = operator.index(seed)
        said = (tuple(fanouts), self.batch_size, sample_ahead, self.seed, sampler, remote, batches, one_variate)
        agree(comm, repr(said), "fanouts, batch_size, sample_ahead, seed, sampler, remote, batches or one_variate")
        number = comm.numbered("loader", self)  # several may be in use at once, each with threads that communicate
        channels = lambda name: comm.channel(f"{name} {number}" if number else name)  # noqa: E731
        exact = remote == "exact" or comm.size == 1
        batches = batches or ("global" if exact else "balanced")
        self.divided = depends_on(batches, remote)
        self._sampling = channels("sample")  # of the thread ahead alone
        self._seeds = divide(batches, self._sampling, self._seed_ids(), self.batch_size, self.seed)
        self._part, self._table = PartEdges(graph, local=remote == "local"), self.x
        self._sampler_on: Callable[[str], Sampler] = lambda channel: make_sampler(
            self._part, fanouts, sampler, seed, comm=channels(channel) if exact else None, one_variate=one_variate)
        self.sampler = self._sampler_on("sample")
        self._predicting: Sampler | None = None
        self.caches: Caches | None = None
        if isinstance(remote, HEC) and comm.size > 1:
            self.caches = Caches(self._part, self.x, len(self.sampler.fanouts), self.seed, remote, channels)
            if self.caches.kept is not None:
                self._table = self.caches.kept
                self.x = self._table[: len(self.x)]
        demand = self.caches is not None and remote.push == "demand"
        self._window = remote.delay if demand else 0  # batches whose needs are told ahead
        self._left = deque[Batch]()  # of the next epoch, whose needs were told in this one
        self.sample_ahead = max(sample_ahead, self._window)
        if self.sample_ahead and not comm.threaded and (self._window or exact) and comm.size > 1:
            self.sample_ahead = 0
            if comm.rank == 0:
                warnings.warn("MPI without MPI_THREAD_MULTIPLE: sample_ahead falls back to 0", RuntimeWarning,
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
        value = whole("step", value, 0)
        if value < self._step and self.caches:
            self.caches.clear()
        self._step = value

    @property
    def counts(self) -> dict[str, Any]:
        if self.caches is None:
            return dict(self._counts)
        by_layer = {name: list(getattr(self.caches, name)) for name in ("lookups", "hits", "rows_pushed")}
        return {**self._counts, **by_layer, "bytes_pushed": self.caches.bytes_pushed}

    def counted(self, graph: Graph) -> dict[str, Any]:
        """Return with caches "hit_rate" and "rows_pushed" by layer and "bytes_pushed", of all ranks and steps.

        Collective.
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
        with closing(ahead(self._make, range(start + len(window), end + self._window), self.sample_ahead)) as made:
            for step in range(start, end):
                while len(window) <= self._window:
                    window.append(next(made))
                batch = window.popleft()
                yield batch
                self._transposes.learn(batch.graphs)
                if self.caches:
                    self.caches.done(step)
                del batch
            self._left = window
            self.drain()

    def drain(self) -> None:
        """Take rows that peers have pushed and that are under way. Collective; done at the end of an epoch.

        A program that leaves an epoch early, and its ranks, call it before they end: until then peers wait for rows of
        each other.
        """
        if self.caches:
            self.caches.drain()

    def batch(self, seeds: Any, step: int = 0) -> Batch:
        """Return a batch of any rows, such as for a prediction. Collective. From a cache it reads, and pushes nothing.

        Parameters
        ----------
        seeds : (k,) int array
            This rank's rows of the graph; `Batch.rows` has a place for each, also where one is there twice.
        step : int
            The global step, which the picks and the ages of cached rows go by.

        Raises
        ------
        ShapeError, DataError
            Seeds that are no row numbers.
        """
        if self._predicting is None:  # apart from the thread ahead, which may have come less far on other ranks
            self._predicting = self._sampler_on("predict") if isinstance(self.sampler, Cooperative) else self.sampler
        sample = self._predicting
        sampled = together(self.graph.comm, lambda: sample(seeds, step))
        return self._batch(sampled, step, sum(self.graph.comm.allgather(len(sampled.numbers))), pushes=False)

    def contents(self) -> dict[str, Ordered]:
        return self.caches.contents() if self.caches else {}

    def load_state(self, state: dict[str, Array]) -> None:
        """Take over what `state` returned on the same rank of the same division."""
        if self.caches:
            self.caches.load_state(state)

    def _seed_ids(self):
        """What a seed's place in an epoch goes by, (n_train,) int64."""
        return self.graph.dst_ids[self.train]

    def _make(self, step):
        """What the thread ahead does: make a step's batch, and tell peers what it will need of them."""
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


def depends_on(batches: str, remote: Any = "exact") -> str:
    """Return what makes steps depend on how rows are divided among ranks, as arguments."""
    return f"remote={remote!r}" if remote != "exact" else f"batches={batches!r}" if batches != "global" else ""


def _check(graph, x, seed, sample_ahead, fanouts, sampler, remote):
    operator.index(seed)
    if isinstance(graph, NodeType):
        if isinstance(remote, HEC):
            raise ConfigError(f"remote {remote!r}: a node type has no cache of each type's rows: remote is exact or "
                              "local")
    else:
        check_range(graph.edge_weight, x.dtype)  # a batch of edges within a part is one rank's alone
    whole("sample_ahead", sample_ahead, 0)
    check_fanouts(fanouts, sampler)
    if remote not in ("exact", "local") and not isinstance(remote, HEC):
        raise ConfigError(f"remote {remote!r} is not one of exact, local, HEC(...)")

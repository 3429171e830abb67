"""Halo rows (rows of other ranks' nodes) from a historical embedding cache, which peers fill by asynchronous pushes (DistGNN-MB paper,
section 3.2, algorithms 1 and 2).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sarlite import kernels
from sarlite.comm import Communicator
from sarlite.errors import ConfigError, check_int
from sarlite.graph.graph import Graph
from sarlite.keys import key
from sarlite.minibatch.hec.misses import Substitutes, without
from sarlite.minibatch.hec.push import Pusher
from sarlite.minibatch.hec.row_table import Ordered, RowTable
from sarlite.minibatch.hec.sending import WEIGHTS, DemandPush, PaperPush, SendLists
from sarlite.minibatch.part_edges import PartEdges
from sarlite.minibatch.picked import PickedGraph, Picks
from sarlite.minibatch.sampler import Layer, Sampled
from sarlite.tape import Tensor, ops
from sarlite.tape.table_rows import TableRows
from sarlite.types import Array, DType

CHOICES = {"on_miss": ("drop", "zero", "local"), "push": ("paper", "demand"), "push_by": WEIGHTS,
           "features": ("auto", "keep", "cache")}


@dataclass(frozen=True)
class HEC:
    """Settings of a historical embedding cache of remote neighbours' rows, for `NeighborLoader(..., remote=HEC(...))`.

    Each layer's input has one cache. Halo rows get no gradient, and their owners do not sample their in-edges.

    Parameters
    ----------
    lines : int
        Largest number of rows in a cache (the paper's cs); no memory is taken beyond the number of halo rows.
    life : int
        Life span of a row in steps beyond the delay (ls). A row is a hit while its age, counted from the step that
        computed it, is at most delay + life.
    limit : int
        Largest number of rows pushed per step, layer and peer (nc).
    delay : int
        Number of steps after which pushed rows are received (d), during which they travel; 0 exchanges them within the
        step.
    on_miss : {"drop", "zero", "local"}
        Treatment of a missing row. "drop" removes its edges from the batch. "zero" uses a row of zeros, which counts.
        "local" replaces its edges by other in-edges of the destination, from local rows of the layer or cached rows.
    push : {"paper", "demand"}
        Rows to push. "paper": rows of this step that a peer has as halo. "demand": rows that peers will need `delay`
        steps later, each in its newest version. The sampler runs ahead by as many steps and asks for them.
    push_by : {"degree", "cut-degree", "uniform"}
        Weight of a row when more than `limit` rows could be pushed: its in-degree, the number of peers that have it as
        halo, or 1.
    features : {"auto", "keep", "cache"}
        Storage of layer 0, whose rows never change: keep all halo rows, or push and cache them too. "auto" keeps up to
        `lines` rows.

    Raises
    ------
    ConfigError
        A parameter has no valid value; the message names it.

    Notes
    -----
    Memory of a layer: lines * (4 width + 24) bytes in float32, lines * (2 width + 24) with bfloat16 rows, and 4 bytes
    for each halo row.

    References
    ----------
    DistGNN-MB, section 3.2.

    Examples
    --------
    Two ranks as threads, each with two of four nodes on a ring. The cache appends the other rank's row to a layer's
    input.

    >>> import numpy as np
    >>> from sarlite import Graph
    >>> from sarlite.comm import threads
    >>> from sarlite.minibatch import HEC, NeighborLoader
    >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0])
    >>> def sizes(comm):
    ...     part = graph.shard(comm, "contiguous")
    ...     x, labels = np.ones((2, 8), np.float32), np.zeros(2, int)
    ...     loader = NeighborLoader(part, x, labels, slice(None), fanouts=(2,), batch_size=4, remote=HEC(delay=0))
    ...     return [batch.graphs[0].enter(batch.x)[1].shape for batch in loader]
    >>> threads.run(2, sizes)
    [[(3, 8)], [(3, 8)]]
    """

    lines: int = 1_000_000
    life: int = 2
    limit: int = 2000
    delay: int = 1
    on_miss: str = "drop"
    push: str = "paper"
    push_by: str = "degree"
    features: str = "auto"

    def __post_init__(self) -> None:
        for name, least in (("lines", 1), ("life", 0), ("limit", 1), ("delay", 0)):
            check_int(f"HEC: {name}", getattr(self, name), least)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"HEC: {name} {getattr(self, name)!r} is not one of {', '.join(choices)}")
        if self.lines < self.limit:
            raise ConfigError(f"HEC: lines {self.lines} are fewer than limit {self.limit}: one push would evict "
                              "its own rows")
        if self.push == "demand" and not self.delay:
            raise ConfigError("HEC: delay is 0, but push 'demand' asks for rows `delay` steps ahead and needs a delay of 1 or more")


class Caches:
    """Caches of halo rows (remote neighbours' rows), one for the input of each layer, and the unfinished pushes: messages with newly
    computed rows for the caches of other ranks. Construction is collective.

    Parameters
    ----------
    part : PartEdges
    x : (n_local, ...) array
        Features of the local rows.
    n_layers, seed : int
    settings : HEC
    channels : callable, name -> Communicator
        Returns the loader's channels "sample" and "embeddings".

    Attributes
    ----------
    lookups, hits, rows_pushed : list of int
        Counts for each layer.
    bytes_pushed : int
    kept_features : (n_local + n_halo, ...) array, or None
        Features of all columns, if the features of halo rows are kept.
    tables : list of RowTable
        Cached halo rows of each layer, by halo number.
    dated : bool
        True if each pushed row travels with the step that computed it.
    """

    def __init__(self, part: PartEdges, x: Array, n_layers: int, seed: int, settings: HEC,
                 channels: Callable[[str], Communicator]) -> None:
        self.part, self.settings, self._seed, self._n_layers = part, settings, seed, n_layers
        self._profile = part.graph.profile
        self._roomy = max(part.graph.comm.allgather(part.n_halo)) <= settings.lines  # no cache ever drives out a row
        keeps = settings.features == "keep" or (settings.features == "auto" and self._roomy)
        self.kept_features = part.of_columns(x) if keeps else None
        assert isinstance(part.graph, Graph)  # a loader refuses a cache for node types
        row_format = part.graph.schedule.row_format
        if row_format.is_integer:
            raise ConfigError(f"remote=HEC(...): rows {row_format.name} cannot be cached: make the graph with row_dtype "
                              "float32 or bfloat16")
        self._narrow = row_format.is_narrow
        self._x, self.dated = x, settings.push == "demand"
        self._lists, self._asking = SendLists(part.asked), channels("sample")
        self._pusher, self._pending = Pusher(channels("embeddings"), self._profile), set[tuple[int, int]]()
        self._empty()
        self.lookups, self.hits, self.rows_pushed, self.bytes_pushed = [0] * n_layers, [0] * n_layers, [0] * n_layers, 0

    def _empty(self):
        settings, layers = self.settings, range(self._n_layers)
        life = settings.delay + settings.life
        self.tables = [RowTable(settings.lines, self.part.n_halo, life if layer else None) for layer in layers]
        make = self._demand_push if self.dated else self._paper_push
        self._senders = [make(layer) for layer in layers]
        self._asked: dict[int, list[list[Array] | None]] = {}  # by step what its batch asks of this rank

    def _paper_push(self, layer):
        return PaperPush(self._lists, self.part, self.settings.limit, self.settings.push_by, self._seed, layer)

    def _demand_push(self, layer):
        if self.keeps(layer):
            return None
        if layer:
            return DemandPush(self._lists, self.settings.life, once=self._roomy)
        return DemandPush(self._lists, once=self._roomy, features=self._stored(self._x))

    def stored_dtype(self, dtype: DType) -> np.dtype[np.generic]:
        """Return the dtype for storing and pushing rows of `dtype`: uint16 for bfloat16 rows, else `dtype`."""
        dtype = np.dtype(dtype)
        return np.dtype(np.uint16) if self._narrow and dtype == np.float32 else dtype

    def _stored(self, h):
        return h if self.stored_dtype(h.dtype) == h.dtype else kernels.narrow(h)

    def keeps(self, layer: int) -> bool:
        """Return True if this rank stores the input rows of all halo nodes for `layer`, so that no row can be missing.

        Only the input features, layer 0, can be kept.
        """
        return layer == 0 and self.kept_features is not None

    def ask(self, sampled: Sampled, step: int) -> None:
        """Ask the owners of the halo rows of `sampled`, the batch of `step`, for these rows, if pushes are on demand; else do nothing.
        Collective.

        This rank stores the requests of its peers. Owners send the rows `delay` steps before the step.
        """
        if self.dated:
            self._asked[step] = [
                None if self.keeps(layer.number)
                else self._asking.alltoall(self.part.slots(layer.halo - self.part.n_local))
                for layer in sampled.layers]

    def done(self, step: int) -> None:
        """Free the stored requests of peers that this rank has answered in the training step `step`."""
        self._asked.pop(step + self.settings.delay, None)

    def enter(self, layer: int, step: int, rows: Array, h: Array, halo: Array, pushes: bool) -> tuple[Array, Array]:
        """Look up the halo rows `halo` in the cache of `layer` at `step`; return (mask, values): first which of the rows are
        cached; then the values of these. If `pushes`, first send `h`, the values of this rank's `rows`, to peers, and store the
        rows that have arrived.

        Rows that peers pushed `delay` steps ago are received. Collective if `pushes`. Not for a layer that `keeps` its halo
        rows.

        Parameters
        ----------
        layer, step : int
        rows : (n,) int
            This rank's rows of the batch.
        h : (n, ...) array
            Values of `rows`.
        halo : (k,) int
            Halo rows that the layer needs.
        pushes : bool
            True if the step is a training step.

        Returns
        -------
        found : (k,) bool
            True for each halo row in the cache.
        values : (n_hits, ...) array
            Values of the rows that were found.
        """
        if pushes:
            self._push(layer, step, rows, self._stored(h))
            due = step - self.settings.delay, layer
            if due in self._pending:
                self._pending.remove(due)
                self._store(layer, self._pusher.take(*due))
        hit = self.has(layer, step, halo)
        self.count(layer, len(hit), int(np.count_nonzero(hit)))
        return hit, self.values(layer, step, halo[hit], h)

    def _push(self, layer, step, rows, h):
        with self._profile.span("push", layer=layer):
            asked = self._asked.get(step + self.settings.delay)
            messages = self._senders[layer].messages(step, rows, h, asked and asked[layer])
            self.rows_pushed[layer] += sum(len(slots) for slots, _, _ in messages)
            self.bytes_pushed += self._pusher.submit(step, layer, messages)
            self._pending.add((step, layer))

    def has(self, layer: int, step: int, halo: Array) -> Array:
        """Return a mask, (k,), of the halo rows with the numbers `halo` that the cache of `layer` has and that have not expired at
        `step`.
        """
        with self._profile.span("lookup", "lookup", layer=layer):
            return self.tables[layer].find(halo.astype(np.int32), step) >= 0

    def values(self, layer: int, step: int, halo: Array, like: Array) -> Array:
        """Return the values of the halo rows with the numbers `halo`, (k, ...), in the cache of `layer` at `step`. The array `like`
        shows their dtype and row shape.
        """
        with self._profile.span("lookup", "lookup", layer=layer):
            values, table = np.empty((len(halo), *like.shape[1:]), self.stored_dtype(like.dtype)), self.tables[layer]
            if len(halo):
                table.take(table.find(halo.astype(np.int32), step), values)
            return values if values.dtype == like.dtype else kernels.widen(values)

    def substitutes(self, layer: int, step: int) -> Substitutes:
        """Return the rule (`Substitutes`) for replacing sampled edges of `layer` at `step` if the rows of their sources are not in the
        cache.
        """
        variates_key = key(self._seed, "stand-ins", "", step, layer)
        return Substitutes(lambda columns: self.has(layer, step, columns - self.part.n_local), variates_key)

    def count(self, layer: int, lookups: int, hits: int) -> None:
        """Add to the statistics of `layer`: `lookups` halo rows were looked up, and `hits` of these were in the cache."""
        self.lookups[layer] += lookups
        self.hits[layer] += hits

    def _store(self, layer, received):
        for start, (slots, steps, rows) in zip(self.part.halo_starts, received):
            if len(slots):
                self.tables[layer].put((slots + start).astype(np.int32), steps, rows)

    def drain(self) -> None:
        """Wait for all pushes in progress and store their rows in the tables. Collective."""
        for _, layer, received in self._pusher.drain():
            self._store(layer, received)
        self._pending.clear()

    def clear(self) -> None:
        """Remove all rows from the caches, after pushes in progress have ended. Collective."""
        self.drain()
        self._empty()

    def contents(self) -> dict[str, Ordered]:
        """Return {name: array} of all caches, to be saved; names are "cache.LAYER.NAME", with push "demand" also "newest.LAYER.NAME"."""
        return {f"{prefix}{name}": array for prefix, table in self._tables_and_senders()
                for name, array in table.contents().items()}

    def load_state(self, state: dict[str, Array]) -> None:
        """Restore the tables from `state`, a copy of `contents` of the same part of the same graph."""
        for prefix, table in self._tables_and_senders():
            table.load({name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)})

    def _tables_and_senders(self) -> list[tuple[str, RowTable | DemandPush]]:
        """Return a list of (prefix, object) for all layers: the prefix of array names, and the table of cached rows. With push
        "demand" there is a further pair for each layer, whose object sends the layer's rows.
        """
        senders = self._senders if self.dated else []
        return [(f"{kind}.{layer}.", table) for kind, tables in (("cache", self.tables), ("newest", senders))
                for layer, table in enumerate(tables) if table is not None]


class CachedLayer(Picks):
    """A layer of a batch whose halo rows come from the cache; `enter` returns its graph.

    Parameters
    ----------
    part : PartEdges
    layer : Layer
    rows : (n_src,) int
        The part's row of each local source row.
    caches : Caches
    step : int
        The global step.
    pushes : bool
        True in a training step, in which rows are pushed to peers.
    """

    def __init__(self, part: PartEdges, layer: Layer, rows: Array, caches: Caches, step: int, pushes: bool) -> None:
        super().__init__(part.edges, layer.picked, rows, rows[: layer.n_dst])
        self.part, self.layer = part, layer
        self._caches, self._layer_index, self._step, self._pushes = caches, layer.number, step, pushes
        self._graph: PickedGraph | None = None  # once it was entered
        self._values: Array | None = None  # of the halo rows that were found

    def enter(self, h: Tensor) -> tuple[PickedGraph, Tensor]:
        """Return (the layer's graph, `h` followed by the cached values of halo rows), for values `h` of the local source rows. Collective.

        A repeated call, as in a second forward pass, appends the same rows and pushes nothing.
        """
        if self._caches.keeps(self._layer_index):
            return self._with_kept(h)
        if self._graph is None:
            self._join(np.ascontiguousarray(h._data if isinstance(h, Tensor) else h))
        assert self._graph is not None
        return self._graph, h if self._values is None else ops.concat([h, Tensor(self._values, placement="rows")])

    def aggregate(self, *args: object, **options: object) -> Tensor:
        """Raise a ConfigError, because `enter` must be called first: it fetches the halo rows."""
        raise ConfigError("a batch's layer whose halo rows come from a cache is entered first: g, h = g.enter(h)")

    def _with_kept(self, h):
        """Return (graph with halo rows as further sources, `h` followed by the stored features of the halo rows)."""
        halo, caches = self.layer.halo, self._caches
        if self._graph is None:
            caches.count(self._layer_index, len(halo), len(halo))
            self._graph = self._of_all(self.layer)
        if not len(halo):
            return self._graph, h
        if isinstance(h, TableRows) and h.rows is not None and h.rows.table is caches.kept_features:
            return self._graph, h.and_more(halo)
        return self._graph, ops.concat([h, Tensor(caches.kept_features[halo], placement="rows")])

    def _join(self, h: Array) -> None:
        """Look up the halo rows, drop or replace missing ones, and store the graph and the rows' values; push `h` in a training step."""
        layer, caches, n_local = self.layer, self._caches, self.part.n_local
        hit, values = caches.enter(self._layer_index, self._step, self.rows, h, layer.halo - n_local, self._pushes)
        if not hit.all():
            missing = np.concatenate([np.zeros(layer.n_src, bool), ~hit])[layer.picked.columns]
            how = caches.settings.on_miss
            if how == "zero":
                values, hit_values = np.zeros((len(hit), *values.shape[1:]), values.dtype), values
                values[hit] = hit_values
            elif how == "drop":
                layer = without(self.part, layer, self.rows, missing)
            else:
                layer = without(self.part, layer, self.rows, missing, caches.substitutes(self._layer_index, self._step))
                values = caches.values(self._layer_index, self._step, layer.halo - n_local, values)
        self._graph, self._values = self._of_all(layer), values if len(values) else None

    def _of_all(self, layer: Layer) -> PickedGraph:
        """Return the graph of a sampled `layer` with all its source rows: the batch's local rows, followed by the halo rows that the layer
        sampled.
        """
        rows = np.concatenate([self.rows, layer.halo])
        return PickedGraph(self.edges, layer.picked, rows, rows[: layer.n_dst])

"""Halo rows from a historical embedding cache, which peers fill by asynchronous pushes (DistGNN-MB 3.2, algorithms 1 and 2)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, whole
from sarlite.keys import key
from sarlite.minibatch.batch import LayerGraph
from sarlite.minibatch.borders import Borders, choose
from sarlite.minibatch.cache import Cache
from sarlite.minibatch.columns import Columns, share
from sarlite.minibatch.newest import Newest
from sarlite.minibatch.push import Pusher
from sarlite.minibatch.sampler import Layer, Sampled
from sarlite.minibatch.stand_in import next_picks
from sarlite.sar.graph.graph import Graph
from sarlite.tape import Tensor, ops
from sarlite.tape.taken import Taken
from sarlite.types import Array

MAX_AGE = 2**62
"""Of rows that never go stale."""
CHOICES = {"on_miss": ("drop", "zero", "local"), "push": ("paper", "demand"), "push_by": ("degree", "cut-degree", "uniform"),
           "features": ("auto", "keep", "cache")}


@dataclass(frozen=True)
class HEC:
    """How a minibatch meets remote neighbours by a historical embedding cache: `NeighborLoader(..., remote=HEC(...))`.

    One cache for the input of each layer. Halo rows get no gradient, and their owners do not expand them.

    Parameters
    ----------
    lines : int
        Rows that a cache holds (the paper's cs); it never takes more than there are halo rows.
    life : int
        Steps that a row lives beyond the delay (ls): it is a hit while its age, from the step that made it, is at most delay + life.
    limit : int
        Rows pushed a step, layer and peer (nc).
    delay : int
        Steps after which pushed rows are taken (d), while they travel; 0 exchanges them within the step.
    on_miss : {"drop", "zero", "local"}
        A missing row's edges leave the batch; or it is a row of zeros that counts; or the destination's next picks among the layer's local
        rows and those in the cache stand in for it.
    push : {"paper", "demand"}
        What is pushed: this step's rows that a peer has as halo; or those that peers will need `delay` steps on, each the newest that its
        owner has, which the sampler, as many steps ahead, asks for.
    push_by : {"degree", "cut-degree", "uniform"}
        How likely a row is chosen above the limit: by its in-degree, by the number of peers that have it as halo, all alike.
    features : {"auto", "keep", "cache"}
        Layer 0, whose rows never go stale: keep those of all halo rows, or push and cache them too. "auto" keeps up to `lines` rows.

    Raises
    ------
    ConfigError
        Naming the parameter.

    Notes
    -----
    Memory: lines x (4 width + 24) bytes a layer in float32, and 4 a halo row.
    Source: DistGNN-MB 3.2.
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
            whole(f"HEC: {name}", getattr(self, name), least)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"HEC: {name} {getattr(self, name)!r} is not one of {', '.join(choices)}")
        if self.lines < self.limit:
            raise ConfigError(f"HEC: lines {self.lines} are fewer than limit {self.limit}: one push would drive out its own rows")
        if self.push == "demand" and not self.delay:
            raise ConfigError("HEC: push 'demand' asks for rows `delay` steps ahead, so delay is at least 1")


class Historical:
    """What a loader with an `HEC` has: the caches, and the pushes under way. Construction is collective.

    Parameters
    ----------
    graph : Graph
    columns : Columns
    x : (n_local, ...) array
        Features.
    n_layers, seed : int
    settings : HEC
    channels : callable, name -> Communicator
        The loader's own channels: what it samples on, "sample", and "embeddings".

    Attributes
    ----------
    lookups, hits, rows_pushed : list of int, one a layer
    kept : (n_local + n_halo, ...) array, or None
        The features of all columns, where those of halo rows are kept.
    caches : list of Cache, one a layer
    pushed : dict of int to list by rank of int
        How many rows this rank pushed last, by layer.
    """

    def __init__(self, graph: Graph, columns: Columns, x: Array, n_layers: int, seed: int, settings: HEC,
                 channels: Callable[[str], Any]) -> None:
        self._graph, self._columns, self._seed, self.settings = graph, columns, seed, settings
        self._roomy = max(graph.comm.allgather(columns.n_halo)) <= settings.lines  # no cache ever drives out a row
        keeps = settings.features == "keep" or (settings.features == "auto" and self._roomy)
        self.kept = columns.of_columns(x) if keeps else None
        self._n_layers, self._features = n_layers, x if self.kept is None else self.kept[: columns.n_local]
        self._borders, self._asks = Borders(columns.asked), channels("sample")
        self._pusher, self._pending = Pusher(channels("embeddings"), graph.profile), set[tuple[int, int]]()
        self.pushed: dict[int, list[int]] = {}
        self._empty()
        self.lookups, self.hits, self.rows_pushed, self.bytes_pushed = [0] * n_layers, [0] * n_layers, [0] * n_layers, 0

    def _empty(self):
        settings, n_layers = self.settings, self._n_layers
        life = settings.delay + settings.life
        self.caches = [Cache(settings.lines, self._columns.n_halo, None if layer == 0 else life) for layer in range(n_layers)]
        self._newest = [Newest(self._borders, once=self._roomy) for _ in range(n_layers)] if settings.push == "demand" else []
        if self._newest and self.kept is None:
            self._newest[0].update(self._borders.rows, 0, self._features[self._borders.rows])

    def keeps(self, layer: int) -> bool:
        """Tell whether a layer's halo rows are all here."""
        return layer == 0 and self.kept is not None

    @property
    def dated(self) -> bool:
        """Whether the steps in which rows were made go with them."""
        return bool(self._newest)

    @property
    def n_newest(self) -> list[int]:
        """Rows of which the newest is kept for peers, by layer."""
        return [len(newest.made) * (not self.keeps(layer)) for layer, newest in enumerate(self._newest)] or [0] * self._n_layers

    @property
    def n_kept(self) -> int:
        """Halo rows whose features are kept."""
        return 0 if self.kept is None else len(self.kept) - self._columns.n_local

    def asks(self, sampled: Sampled) -> list[list[Array] | None] | None:
        """With "demand", tell owners which rows a batch needs; return by layer and rank the slots asked of this rank. Collective.

        Of a layer whose halo rows are here None.
        """
        if not self._newest:
            return None
        return [None if self.keeps(place) else
                self._asks.alltoall([part.astype(np.int32) for part in self._slots(layer.halo - self._columns.n_local)])
                for place, layer in enumerate(sampled.layers)]

    def _slots(self, halo):
        starts = self._columns.halo_starts
        return [part - start for part, start in zip(share(halo, self._columns.owners(halo)), starts)]

    def enter(self, layer: int, step: int, rows: Array, h: Array, halo: Array, asked: list[Array] | None,
              pushes: bool) -> tuple[Array, Array]:
        """Push this layer's rows, take what was made `delay` steps ago, and look up. Collective where it pushes.

        Not of a layer that `keeps`.

        Parameters
        ----------
        layer, step : int
        rows : (n,) int
            This rank's rows of the batch.
        h : (n, ...) array
            Their values.
        halo : (k,) int
            Halo rows that are needed.
        asked : list by rank of (n,) int32
            With "demand", the slots that the batch `delay` steps on needs of this rank.
        pushes : bool
            Whether the step is one of training.

        Returns
        -------
        found : (k,) bool
        values : (hits, ...) array
        """
        if pushes:
            with self._graph.profile.span("push", layer=layer):
                messages = self._messages(layer, step, rows, h, asked)
                self.pushed[layer] = [len(slots) for slots, _, _ in messages]
                self.rows_pushed[layer] += sum(self.pushed[layer])
                self.bytes_pushed += self._pusher.submit(step, layer, messages)
                self._pending.add((step, layer))
            due = step - self.settings.delay, layer
            if due in self._pending:
                self._pending.remove(due)
                self._store(layer, self._pusher.take(*due))
        found = self.has(layer, step, halo)
        self.count(layer, len(found), int(np.count_nonzero(found)))
        return found, self.values(layer, step, halo[found], h)

    def has(self, layer: int, step: int, halo: Array) -> Array:
        """Return which halo rows are there, (k,) bool."""
        with self._graph.profile.span("lookup", "lookup", layer=layer):
            return self.caches[layer].lookup(halo.astype(np.int32), step) >= 0

    def values(self, layer: int, step: int, halo: Array, like: Array) -> Array:
        """Return halo rows that are there, (k, ...), of the dtype and row shape of `like`."""
        with self._graph.profile.span("lookup", "lookup", layer=layer):
            values, cache = np.empty((len(halo), *like.shape[1:]), like.dtype), self.caches[layer]
            if len(halo):
                cache.gather(cache.lookup(halo.astype(np.int32), step), values)
            return values

    def key(self, layer: int, step: int) -> int:
        """What stand-ins go by."""
        return key(self._seed, "stand-ins", "", step, layer)

    def count(self, layer: int, lookups: int, hits: int) -> None:
        """Note how many halo rows were looked up, and how many were there."""
        self.lookups[layer] += lookups
        self.hits[layer] += hits

    def _messages(self, layer, step, rows, h, asked):
        """By rank (slots, steps in which they were made or None, rows)."""
        if self._newest:
            newest = self._newest[layer]
            if layer:  # features are there from the start
                newest.update(rows, step, h)
            nothing = [np.empty(0, np.int32)] * len(self._columns.asked)
            return newest.answers(asked or nothing, step, self.settings.life if layer else MAX_AGE)
        columns, settings, messages = self._columns, self.settings, []
        for peer, (places, slots) in enumerate(self._borders.of(rows)):
            mine = rows[places]
            weights = self._borders.weights(settings.push_by, mine, columns.degrees)
            own = key(self._seed, "push", str(peer), step, layer)
            places, slots = choose(places, slots, settings.limit, weights, own, columns.ids[mine])
            messages.append((slots, None, h[places]))
        return messages

    def _store(self, layer, received):
        for start, (slots, made, rows) in zip(self._columns.halo_starts, received):
            if len(slots):
                self.caches[layer].store((slots + start).astype(np.int32), made, rows)

    def drain(self) -> None:
        """Take what is under way into the caches. Collective."""
        for _, layer, received in self._pusher.drain():
            self._store(layer, received)
        self._pending.clear()

    def clear(self) -> None:
        """Forget all rows, as at the start. Collective."""
        self.drain()
        self._empty()

    def state(self) -> dict[str, Array]:
        """Return this rank's caches, and its newest rows, as arrays by name."""
        found = {}
        for kind, things in (("cache", self.caches), ("newest", self._newest)):
            for layer, thing in enumerate(things):
                found.update({f"{kind}.{layer}.{name}": array for name, array in thing.state().items()})
        return found

    def load_state(self, state: dict[str, Array]) -> None:
        """Take over what `state` returned on the same part of the same graph."""
        for kind, things in (("cache", self.caches), ("newest", self._newest)):
            for layer, thing in enumerate(things):
                own = f"{kind}.{layer}."
                thing.load({name.removeprefix(own): array for name, array in state.items() if name.startswith(own)})


class CachedLayer(LayerGraph):
    """A layer whose halo rows are joined by `enter`, as far as the cache has them."""

    asked: list[Array] | None = None
    """By rank what it will need `delay` steps on, where owners are asked."""

    def __init__(self, graph: Graph, columns: Columns, layer: Layer, rows: Array, remote: Historical, place: int, step: int,
                 pushes: bool) -> None:
        super().__init__(graph, columns, layer, rows)
        self._remote, self._place, self._step, self._pushes = remote, place, step, pushes
        self._joined: tuple[LayerGraph, Array | None] | None = None

    def enter(self, h: Any) -> tuple[Graph, Any]:
        """Return the graph of the rows that are there and their values: h, and behind it the halo rows that were found. Collective.

        Entering again, as for a second pass, joins the same rows and pushes nothing.
        """
        if self._remote.keeps(self._place):
            return self._with_kept(h)
        if self._joined is None:
            array = np.ascontiguousarray(h._data if isinstance(h, Tensor) else h)
            halo = self._layer.halo - self._columns.n_local
            self._joined = self._join(*self._remote.enter(self._place, self._step, self._rows, array, halo, self.asked, self._pushes))
        graph, values = self._joined
        return graph, h if values is None else ops.concat([h, Tensor(values)])

    def _with_kept(self, h):
        """The graph of all rows; and h, behind it the halo rows' features, by number where h is rows of the same table."""
        layer, remote, graph = self._layer, self._remote, self._joined and self._joined[0]
        if graph is None:
            remote.count(self._place, len(layer.halo), len(layer.halo))
            graph = self._of_all(layer)
            self._joined = graph, None
        if not len(layer.halo):
            return graph, h
        if isinstance(h, Taken) and h.rows is not None and h.rows.table is remote.kept:
            return graph, h.and_more(layer.halo)
        return graph, ops.concat([h, Tensor(remote.kept[layer.halo])])

    def _of_all(self, layer):
        """The graph of a layer whose halo rows are sources as the others."""
        rows = np.concatenate([self._rows, layer.halo])
        return LayerGraph(self._graph, self._columns, layer._replace(n_src=len(rows), halo=layer.halo[:0]), rows)

    def _join(self, found, values):
        """Return the graph with the halo rows that were found, and their values."""
        layer, on_miss, n_local = self._layer, self._remote.settings.on_miss, self._columns.n_local
        if on_miss == "zero" and not found.all():
            whole = np.zeros((len(found), *values.shape[1:]), values.dtype)
            whole[found] = values
            found, values = np.ones(len(found), bool), whole
        if not found.all():
            missing = np.concatenate([np.zeros(layer.n_src, bool), ~found])[layer.columns]
            dst, positions = np.repeat(np.arange(layer.n_dst), np.diff(layer.indptr))[~missing], layer.positions[~missing]
            if on_miss == "local":
                more_dst, more = next_picks(self._columns, layer, self._rows, missing, self._has, self._remote.key(self._place, self._step))
                dst, positions = np.concatenate([dst, more_dst]), np.concatenate([positions, more])
                order = np.lexsort((positions, dst))
                dst, positions = dst[order], positions[order]
            layer = self._relaid(dst, positions)
            if on_miss == "local":
                values = self._remote.values(self._place, self._step, layer.halo - n_local, values)
        return self._of_all(layer), (values if len(values) else None)

    def _has(self, columns):
        return self._remote.has(self._place, self._step, columns - self._columns.n_local)

    def _relaid(self, dst, positions):
        """The layer with these edges: by destination, and the place among the part's edges of each."""
        layer, n_local = self._layer, self._columns.n_local
        source = self._columns.edges.indices[positions]
        local = source < n_local
        halo, numbers = np.unique(source[~local], return_inverse=True)
        by_row = np.argsort(self._rows, kind="stable")
        columns = np.empty(len(source), layer.columns.dtype)
        columns[local] = by_row[np.searchsorted(self._rows[by_row], source[local])]
        columns[~local] = layer.n_src + numbers
        return layer._replace(indptr=np.searchsorted(dst, np.arange(layer.n_dst + 1)).astype(np.int64), columns=columns,
                              positions=positions.astype(layer.positions.dtype), halo=halo)

    def aggregate(self, *args: Any, **options: Any) -> Tensor:
        raise ConfigError("a batch's layer whose halo rows come from a cache is entered first: g, h = g.enter(h)")

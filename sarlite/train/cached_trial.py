"""Caches of embeddings in tiny steps, for `batch_trial`; and what caches of a run push and hold."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator
from sarlite.minibatch.hec import Historical
from sarlite.minibatch.push import PHASE, message_bytes
from sarlite.sar.listening import Aggregation
from sarlite.sar.schedule.messages import row_bytes, templates_of
from sarlite.types import Array

LINE_BYTES = 24


class Pushed(NamedTuple):
    """What a rank pushes of a layer's rows in a step, and gets; in place of a `PartCounts`.

    Attributes
    ----------
    rank, n_src : int
        The rank, and how many local rows the layer has.
    sent, received : list by rank of int
        Rows.
    dated : bool
        Whether the steps in which they were made go with them.
    """

    rank: int
    n_src: int
    sent: list[int]
    received: list[int]
    dated: bool

    def n_bytes(self, shape: tuple[int, ...], dtype: Any) -> tuple[int, int]:
        """Return the bytes that go, and that come, of rows of this shape and dtype."""
        own = [[message_bytes(n, self.dated, dtype, shape) for q, n in enumerate(rows) if q != self.rank]
               for rows in (self.sent, self.received)]
        return sum(own[0]), sum(own[1])

    def schedule(self, transport: Any) -> Any:
        """Return what counts a push where a mode would run."""
        def run(_, arrays, visit, phase):
            sent, received = self.n_bytes(arrays[0].shape[1:], arrays[0].dtype)
            transport.profile.count(phase, sent, received)
            transport.comm.n_messages += 2 * (len(self.sent) - 1)  # heads, and the rest

        return SimpleNamespace(plan=SimpleNamespace(n_src=self.n_src), mode=SimpleNamespace(run=run))


class Held(NamedTuple):
    """What a rank's caches hold beside rows that travel.

    Attributes
    ----------
    delay : int
        Steps for which arrived rows wait.
    lines : list by layer of int
        Of the cache that rows fill in the whole run, at most.
    newest : list by layer of int
        Rows of which the newest is kept for peers.
    keeps : bool
        Whether halo rows' features are kept, and of how many.
    n_kept : int
    """

    delay: int
    lines: list[int]
    newest: list[int]
    keeps: bool
    n_kept: int

    def n_bytes(self, program: Any, found: Any) -> int:
        """Return the bytes of caches, newest rows and rows that travel, at most.

        The layers' widths are those of the pushes that a `Program` has; and `found` tells what a step sends and receives.
        """
        marks = {op[1].over[1]: op[1].templates[0] for segment in program.segments for op in segment.ops
                 if op[0] == "aggregate" and op[1].over[0] == "pushed"}
        caches = sum(self.lines[layer] * (row_bytes(row) + LINE_BYTES) + self.newest[layer] * (row_bytes(row) + 8)
                     for layer, row in marks.items())
        sent, received = (moved["step"].get(PHASE, 0) for moved in (found.sent, found.received))
        return caches + round(sent + self.delay * received)


def pushed(comm: Communicator, historical: Historical, sizes: list[int]) -> dict[tuple[str, int], Pushed]:
    """Return by ("pushed", layer) the last push of each layer, of which this rank had `sizes` rows. Collective."""
    ranks = comm.allgather(historical.pushed)
    return {("pushed", layer): Pushed(comm.rank, sizes[layer], sent, [own[layer][comm.rank] for own in ranks], historical.dated)
            for layer, sent in historical.pushed.items()}


def held(historical: Historical, received: list[float], n_steps: int, n_all: int) -> Held:
    """Return what caches hold at the end of a run of `n_all` steps, of which `n_steps` were taken that brought `received` rows by layer."""
    lines = [min(cache.n_lines, round(len(cache) + n / n_steps * (n_all - n_steps))) for cache, n in zip(historical.caches, received)]
    return Held(historical.settings.delay, lines, historical.n_newest, historical.kept is not None, historical.n_kept)


class Caches:
    """Stands in for `Historical` in a tiny step: all halo rows are there, and what is pushed is noted, not sent."""

    settings = SimpleNamespace(on_miss="drop")

    def __init__(self, recorder: Any, kept: Array | None) -> None:
        self.recorder, self.kept = recorder, kept

    def keeps(self, layer: int) -> bool:
        """As of `Historical`."""
        return layer == 0 and self.kept is not None

    def enter(self, layer: int, step: int, rows: Array, h: Array, halo: Array, asked: Any, pushes: bool) -> tuple[Array, Array]:
        """As of `Historical`."""
        events = self.recorder.events
        events.append(("begin",))
        events.append(("end", Aggregation("push", templates_of((h,)), None, PHASE, None, len(events), None, ("pushed", layer), "", ())))
        return np.ones(len(halo), bool), np.zeros((len(halo), *h.shape[1:]), h.dtype)

    def count(self, layer: int, lookups: int, hits: int) -> None:
        """As of `Historical`, but nothing is counted."""

    def asks(self, sampled: Any) -> None:
        """As of `Historical`: nobody is asked."""

    drain = clear = lambda self: None


class WithHalo:
    """A sampler whose layers have so many halo rows each, which no edge comes from."""

    def __init__(self, sampler: Any, n_halo: list[int]) -> None:
        self.sampler, self.n_halo, self.fanouts = sampler, n_halo, sampler.fanouts

    def __call__(self, seeds: Array, step: int) -> Any:
        found = self.sampler(seeds, step)
        return found._replace(layers=[layer._replace(halo=np.zeros(n, layer.halo.dtype)) for layer, n in zip(found.layers, self.n_halo)])

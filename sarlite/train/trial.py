"""A run in small: the run's own trainer on a tiny part with the run's proportions, whose peers are mirror images of it.

What the run does is what the trial does: which aggregations and collectives a step has, what is held of peers, what it
computes. Memory and flops grow with the sizes.
"""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Solo
from sarlite.comm.interrupt import SIGNALS
from sarlite.comm.requests import Staged
from sarlite.errors import ConfigError
from sarlite.kernels import LARGE, Buffers, watched_buffers
from sarlite.sar.columns import ColumnLayout
from sarlite.sar.cost import Aggregation, moved
from sarlite.sar.schedule.messages import templates_of
from sarlite.tape.engine import Observer, observed
from sarlite.tape.shapes import VIEWS, flops_of, passes_of
from sarlite.train.smoothing import smoothed

SEGMENTS = "start", "first step", "first evaluation", "step", "evaluation", "smoothing"
"""Parts of a run; the last one of a run with Correct and Smooth alone."""
WAYS = "sent", "received"


class Trial(NamedTuple):
    """What two epochs of a run in small did.

    Attributes
    ----------
    segments : dict of str to Segment
    remote_buffers : number
        Peers whose rows were held at most.
    parameter_bytes : int
        Of parameters that all ranks hold: values, gradients, what the optimizer keeps, and the best model's copy.
    widths : dict of int to (row shape, dtype)
        With caches of embeddings, by layer the rows that it is entered with.
    """

    segments: dict[str, "Segment"]
    remote_buffers: Any
    parameter_bytes: int
    widths: dict[int, Any]


class Segment(NamedTuple):
    """A part of a run, of `SEGMENTS`.

    Attributes
    ----------
    aggregations : list of Aggregation
    turns : list of Turn
    counted : Counter of (phase, "sent" or "received") to int
        Bytes beside the aggregations and the turns.
    flops, touched_bytes : int
        Forward and backward: operations, and bytes of arrays that are read and written.
    n_messages : int
    rows : dict
        By `Aggregation.over`, the source rows of its plan.
    grown_bytes : int
        By how much the steps' `kernels.Buffers` grew.
    other_bytes : int
        What other large arrays took at most, but for the graph's and those of parameters that all ranks hold.
    """

    aggregations: list[Aggregation]
    turns: list["Turn"]
    counted: Counter[tuple[str, str]]
    flops: int
    touched_bytes: int
    n_messages: int
    rows: dict[Any, int]
    grown_bytes: int = 0
    other_bytes: int = 0


class Turn(NamedTuple):
    """Rows of a group of ranks that turn into columns, or back.

    Attributes
    ----------
    layout : ColumnLayout
    place : {"rows", "edges"}
        What there is a row of.
    back : bool
        Whether columns turn into rows.
    phase : str
    itemsize : int
        Bytes of a value that is sent.
    """

    layout: ColumnLayout
    place: str
    back: bool
    phase: str
    itemsize: int

    def moved(self, own: int, whole: int) -> tuple[int, int]:
        """Return the bytes sent and received where this rank has `own` rows, and the group `whole`."""
        rank, size = self.layout.transport.comm.rank, len(self.layout.counts)
        counts = [0] * size
        counts[rank - 1] = whole - own  # whose they are changes nothing
        counts[rank] = own
        sent, received = (self.itemsize * n for n in self.layout._replace(counts=tuple(counts)).sizes())
        return (received, sent) if self.back else (sent, received)


def run(comm: "Mirror", graph: Any, make_trainer: Callable[[], Any], layer_sizes: Any, smooth: Any = None,
        large: int = LARGE) -> Trial:
    """Make a trainer and take two epochs, each with an evaluation, then smooth; return what was done.

    Parameters
    ----------
    comm : Mirror
    graph : Graph, or NodeType
        Whose structure is not counted as memory.
    make_trainer : callable -> Trainer
        Makes the rows, too.
    layer_sizes : dict of (kind, layer) to (n_src, n_dst, n_edges)
        Of the run's message-flow graphs, or of one of its batches: by these an order of products is chosen.
    smooth : CorrectAndSmooth, optional
    large : int
        Bytes above which an array is large: so many times fewer as the trial is smaller than the run.
    """
    segments: dict[str, Segment] = {}
    notes, others = _Notes(comm, graph), Buffers()
    others.set_large(large)

    @contextmanager
    def segment(name: str) -> Iterator[None]:
        others.trim()
        before, idle = sum(own.n_bytes for own in buffers), others.n_idle  # which a run gives back, as it is malloc's
        notes.begin("scored" if "evaluation" in name else "batch")
        with observed(notes):
            yield
        found = sum(own.n_bytes for own in buffers) - before, others.n_bytes - idle
        segments[name] = notes.end()._replace(grown_bytes=found[0], other_bytes=found[1])

    graph.profile.reset()
    with watched_buffers(others) as buffers:
        with segment("start"):
            trainer = make_trainer()
        for own in buffers:
            own.set_large(large)
        widths = _prepare(trainer, layer_sizes)
        notes.knows(trainer)
        for epoch in range(2):
            with segment(SEGMENTS[2 * epoch + 1]):
                trainer.epoch(epoch)
            with segment(SEGMENTS[2 * epoch + 2]):
                trainer.evaluate()
        if smooth is not None:
            with graph.profile.phase("setup"):  # an evaluation as those before
                logits = trainer.predict()
            with segment(SEGMENTS[5]):
                smoothed(trainer, smooth, logits)
    fixed = trainer.flat.data.nbytes * (2 + len(trainer.optimizer.keeps))
    learned = sum(group.data.nbytes for group in trainer.flat.owned)  # the best model's copy of learned rows
    less = {name: found._replace(other_bytes=found.other_bytes - fixed + learned) for name, found in segments.items()}
    return Trial(less, graph.profile.peak_remote_buffers, fixed + trainer.flat.data.nbytes, widths)


class _Notes(Observer):
    """What is done while it observes."""

    def __init__(self, comm, graph):
        self.comm, self.graph, self.profile = comm, graph, graph.profile
        self.profile.on_aggregation = self._aggregates
        self._itemsizes, self._n_layers, self._names = {}, 0, []
        if hasattr(graph, "node_type"):
            self._names = [(plan, chosen) for chosen, (plan, _) in graph.graph.exchanges.items()]
        else:
            schedule = (graph if graph.grid is None else graph.grid.graph).schedule
            self._names = [(schedule.plan, "edges")]
            self._names += [(schedule.reverse.plan, "reverse")] if schedule.reverse else []

    def knows(self, trainer):
        """Name the plans of message-flow batches, which stay, and count the layers of others."""
        self._names += [(layer.plan, (name, k)) for name, k, layer in flow_layers(trainer)]
        self._n_layers = len(getattr(getattr(trainer.batches, "sampler", None), "fanouts", ()))

    def begin(self, kind):
        self._kind, self._layers, self._before = kind, [], (self._counted(), self.comm.sent["messages"])
        self.found = Segment([], [], Counter(), 0, 0, 0, {})

    def end(self):
        counted, n_messages = self._counted(), self.comm.sent["messages"]
        counted.subtract(self._before[0] + self.found.counted)
        return self.found._replace(counted=+counted, n_messages=n_messages - self._before[1])

    def _counted(self):
        return Counter({(phase, way): n for way in WAYS for phase, n in getattr(self.profile, f"{way}_bytes").items()})

    def _aggregates(self, plan, arrays, d_arrays, phase, within):
        if within == "setup":
            return
        templates = [None if rows is None else templates_of(rows) for rows in (arrays, d_arrays)]
        made = Aggregation(plan, self._over(plan), phase, within, *templates)
        self.found.aggregations.append(made)
        self.found.rows[made.over] = plan.n_src
        for way, n_bytes in zip(WAYS, moved(plan, self.comm.size // self.comm.columns, made)):
            self.found.counted.update({(phase, way): n for phase, n in n_bytes.items()})

    def _over(self, plan):
        """Which edges a plan is of; of a sampled batch's layers in the order of their first aggregations."""
        for known, name in self._names:
            if known is plan:
                return name
        if not self._n_layers:
            raise ConfigError("--columns: costs are not counted for a model whose messages are computed by rows")
        if not any(known is plan for known in self._layers):
            self._layers.append(plan)
        place = next(k for k, known in enumerate(self._layers) if known is plan)
        return self._kind, place % self._n_layers

    def applied(self, application):
        name, inputs, params, needs, result = application
        passes = passes_of(needs[: len(inputs)], params)
        flops = flops_of(name, tuple(np.shape(x) for x in inputs), result.shape, params)
        touched = _touched(name, inputs, params, result, flops)
        self.found = self.found._replace(flops=self.found.flops + flops * (1 + passes),
                                         touched_bytes=self.found.touched_bytes + touched * (1 + passes))
        if name in ("to_columns", "to_rows"):
            self._itemsizes[id(params["layout"])] = result.dtype.itemsize
            self._turn(name == "to_rows", params["layout"], "forward")

    def backward(self, name, params):
        if name in ("to_columns", "to_rows"):
            self._turn(name == "to_columns", params["layout"], "backward")
        return nullcontext()

    def _turn(self, back, layout, phase):
        place = "edges" if layout.counts is self.graph.grid._counts.edge else "rows"
        itemsize = self._itemsizes[id(layout)] // (2 if layout.narrow and phase == "forward" else 1)
        turn = Turn(layout, place, back, self.profile._phase or f"{phase}_turn", itemsize)
        self.found.turns.append(turn)
        own = layout.counts[layout.transport.comm.rank]
        for way, n in zip(WAYS, turn.moved(own, sum(layout.counts))):
            self.found.counted[turn.phase, way] += n


def _touched(name, inputs, params, result, flops):
    """The bytes that an application reads and writes: an aggregation a value for each operation, a view nothing."""
    if "schedule" in params:
        n = flops + math.prod(result.shape)
    else:
        n = 0 if name in VIEWS else sum(math.prod(np.shape(x)) for x in (*inputs, result))
    return n * result.dtype.itemsize


def flow_layers(trainer: Any) -> Iterator[tuple[str, int, Any]]:
    """Yield (name, place, graph) of the layers of a trainer's message-flow batches."""
    for name, source in (("training", trainer.batches), ("scoring", trainer.scoring)):
        for k, layer in enumerate(getattr(getattr(source, "batch", None), "graphs", ())):
            yield name, k, layer


# ---- what a trial is told, so that it does as the run


def _prepare(trainer, layer_sizes):
    """Tell layers the run's sizes, and let votes travel with the loss; return the rows that caches are entered with."""
    for name, kind in (("batches", "batch"), ("scoring", "scored")):
        source = getattr(trainer, name)
        if hasattr(source, "sampler"):
            own = [size for (of, _), size in layer_sizes.items() if of == kind]
            setattr(trainer, name, _Telling(source, own))
    for name, k, layer in flow_layers(trainer):
        layer._all_sizes = layer_sizes[name, k]
    trainer.riders.own = lambda: (0.0,) * (len(SIGNALS) + 2)
    widths, caches = {}, getattr(trainer.batches, "caches", None)
    if caches is not None:
        enter = caches.enter

        def entered(layer, step, rows, h, *others):
            widths[layer] = h.shape[1:], caches.stored_dtype(h.dtype)
            return enter(layer, step, rows, h, *others)

        caches.enter = entered
    return widths


class _Telling:
    """A loader whose layers are told to have the run's sizes."""

    def __init__(self, loader, sizes):
        vars(self).update(_loader=loader, _sizes=sizes)

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def __setattr__(self, name, value):
        setattr(self._loader, name, value)

    def __len__(self):
        return len(self._loader)

    def __iter__(self):
        for batch in self._loader:
            for layer, sizes in zip(batch.layers(len(self._sizes)), self._sizes):
                _tell(layer, sizes)
                del layer
            yield batch
            del batch


def _tell(layer, sizes):
    """Let a layer, and what it becomes where rows of a cache join it, have these sizes."""
    layer._all_sizes, enter = sizes, type(layer).enter
    if "enter" in vars(type(layer)):
        itself = weakref.ref(layer)

        def entered(h):
            found = enter(itself(), h)
            found[0]._all_sizes = sizes
            return found

        layer.enter = entered


# ---- the peers


class Mirror(Solo):
    """A communicator of ranks that all do as this one: of what goes to a peer the like comes from it, of rows zeros.

    Parameters
    ----------
    rank, size : int
    columns : int
        Ranks of a group, on a grid of ranks.
    sent : Counter, optional
        Counts "messages" that are sent, a broadcast once.
    """

    def __init__(self, rank: int, size: int, columns: int = 1, sent: Any = None) -> None:
        self.rank, self.size, self.columns, self.sent = rank, size, columns, Counter[str]() if sent is None else sent
        self._echoes: Any = None

    def start_send(self, array: Any, peer: int, tag: int = 0) -> Any:
        self.sent["messages"] += 1
        if self._echoes is not None:
            self._echoes.setdefault((peer, tag), []).append(array.copy())
        return Staged(iter(()))

    def start_recv(self, array: Any, peer: int, tag: int = 0) -> Any:
        if self._echoes is not None:
            return _Echo(self._echoes.setdefault((peer, tag), []), array)
        array[...] = 0
        return Staged(iter(()))

    def start_broadcast(self, array: Any, root: int) -> Any:
        self.sent["messages"] += 1
        if root != self.rank:
            array[...] = 0
        return Staged(iter(()))

    def broadcast(self, array: Any, root: int) -> Any:
        return array

    def alltoall(self, arrays: list[Any]) -> list[Any]:
        return [array.copy() for array in arrays]

    def allgather(self, value: Any) -> list[Any]:
        return [value] * self.size

    def allreduce(self, array: Any, op: str = "sum") -> Any:
        if op == "sum":
            array *= self.size
        return array

    def start_allreduce(self, array: Any, op: str = "sum") -> Any:
        self.allreduce(array, op)
        return Staged(iter(()))

    def channel(self, name: str) -> Any:
        """Return a channel. What is pushed on "embeddings" names itself in its messages, so it comes back as sent."""
        kept = self.__dict__.setdefault("_channels", {})
        if name not in kept:
            kept[name] = Mirror(self.rank, self.size, self.columns, self.sent)
            kept[name]._echoes = {} if name.startswith("embeddings") else None
        return kept[name]

    def group(self, name: str, colour: int) -> "Mirror":
        n, inside = self.columns, name.startswith("row")
        return Mirror(*((self.rank % n, n) if inside else (self.rank // n, self.size // n)), sent=self.sent)


class _Echo:
    """The request of a receive: done once the like was sent."""

    def __init__(self, sent, array):
        self._sent, self._array = sent, array

    def test(self):
        if self._array is not None and self._sent:
            self._array[...] = self._sent.pop(0)
            self._array = None
        return self._array is None

    wait = test

"""A run in small: the run's own trainer on a tiny part with the run's proportions, whose peers are mirror images of it.

What the run does is what the trial does: which aggregations and collectives a step has, what is held of peers, what it computes. Memory
and flops grow with the sizes.
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
from sarlite.sar.cost import Aggregation, moved
from sarlite.sar.schedule.messages import templates_of
from sarlite.tape.engine import Observer, observed
from sarlite.tape.shapes import VIEWS, flops_of, passes_of
from sarlite.train.smoothing import smoothed

SEGMENTS = "start", "first step", "first evaluation", "step", "evaluation", "smoothing"
"""Parts of a run; the last one of a run with Correct and Smooth alone."""


class Turned(NamedTuple):
    """Rows, or edges' values, of a group of ranks that turn into columns, or back.

    Attributes
    ----------
    place : {"rows", "edges"}
        What there is a row of.
    back : bool
        Whether columns turn into rows.
    phase : str
    sent_bytes, received_bytes : int
        A row of this rank, to the others of the group; and a row of theirs, of this rank's columns.
    """

    place: str
    back: bool
    phase: str
    sent_bytes: int
    received_bytes: int

    def moved(self, own: int, whole: int) -> tuple[int, int]:
        """Return the bytes sent and received of `own` rows here and `whole` in the group."""
        found = own * self.sent_bytes, (whole - own) * self.received_bytes
        return found[::-1] if self.back else found


class Segment(NamedTuple):
    """A part of a run, of `SEGMENTS`.

    Attributes
    ----------
    aggregations : list of Aggregation
    turns : list of Turned
        While a trial runs each with the counts that it turns.
    counted : Counter of (phase, "sent" or "received") to int
        Bytes beside the aggregations and the turns.
    flops, touched_bytes : (int, int)
        Forward and backward: operations, and bytes of arrays that are read and written.
    n_messages : int
    grown_bytes : int
        By how much the steps' `kernels.Buffers` grew.
    other_bytes : int
        What other large arrays took at most, but for the graph's and those of parameters that all ranks hold.
    rows : dict
        By name of a plan, its source rows.
    """

    aggregations: list[Aggregation]
    turns: list[Any]
    counted: Counter[tuple[str, str]]
    flops: tuple[int, int]
    touched_bytes: tuple[int, int]
    n_messages: int
    grown_bytes: int
    other_bytes: int
    rows: Any = None


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
        """Return a channel. What is pushed on "embeddings" names itself in its messages, so it comes back as it was sent."""
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


# ---- what a trial does


class _Notes(Observer):
    """What is done while it observes."""

    def __init__(self, profile, sent):
        self.profile, self._sent, self._dtypes = profile, sent, {}
        profile.on_aggregation = self._aggregates
        self.begin()

    def begin(self):
        self.flops, self.touched = [0, 0], [0, 0]
        self.aggregations, self.turns, self._before = [], [], (self._counted(), self._sent["messages"])

    def end(self, *n_bytes):
        counted, messages = self._counted(), self._sent["messages"]
        counted.subtract(self._before[0])
        return Segment(self.aggregations, self.turns, counted, tuple(self.flops), tuple(self.touched),
                       messages - self._before[1], *n_bytes)

    def _counted(self):
        return Counter({(phase, way): n for way in ("sent", "received") for phase, n in getattr(self.profile, f"{way}_bytes").items()})

    def _aggregates(self, plan, arrays, d_arrays, phase, within):
        if within == "setup":
            return
        templates = [None if rows is None else templates_of(rows) for rows in (arrays, d_arrays)]
        self.aggregations.append(Aggregation(plan, None, phase, within, *templates))

    def applied(self, application):
        name, inputs, params, needs, result = application
        passes = passes_of(needs[: len(inputs)], params)
        flops = flops_of(name, tuple(np.shape(x) for x in inputs), result.shape, params)
        for counted, n in ((self.flops, flops), (self.touched, _touched(name, inputs, params, result, flops))):
            counted[0] += n
            counted[1] += n * passes
        if name in ("to_columns", "to_rows"):
            self._dtypes[id(params["layout"])] = result.dtype.itemsize
            self._turn(name == "to_rows", params["layout"], "forward")

    def backward(self, name, params):
        if name in ("to_columns", "to_rows"):
            self._turn(name == "to_columns", params["layout"], "backward")
        return nullcontext()

    def _turn(self, back, turn, phase):
        own, itemsize = turn.transport.comm.rank, self._dtypes[id(turn)]
        others = sum(turn.n_values(q) for q in range(len(turn.counts)) if q != own)
        itemsize //= 2 if turn.narrow and phase == "forward" else 1
        phase = self.profile._phase or f"{phase}_turn"
        self.turns.append((turn.counts, Turned("", back, phase, others * itemsize, turn.n_values(own) * itemsize)))


def _touched(name, inputs, params, result, flops):
    """The bytes that an application reads and writes: an aggregation a value for each operation, a view nothing."""
    if "schedule" in params:
        n = flops + math.prod(result.shape)
    else:
        n = 0 if name in VIEWS else sum(math.prod(np.shape(x)) for x in (*inputs, result))
    return n * result.dtype.itemsize


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

    segments: dict[str, Segment]
    remote_buffers: Any
    parameter_bytes: int
    widths: dict[int, Any]


def run(comm: Mirror, graph: Any, make_trainer: Callable[[], Any], layer_sizes: Any, smooth: Any = None,
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
        Bytes above which an array is large for `kernels.Buffers`: so many times fewer as the trial is smaller than the run.
    """
    profile = graph.profile
    segments: dict[str, Segment] = {}
    widths: dict[int, Any] = {}
    notes, others = _Notes(profile, comm.sent), Buffers()
    others.set_large(large)

    @contextmanager
    def segment(name: str) -> Iterator[None]:
        others.trim()
        before, idle = sum(own.n_bytes for own in buffers), others.n_idle  # idle bytes of others' arrays are given back in a run
        notes.begin()
        with observed(notes):
            yield
        segments[name] = notes.end(sum(own.n_bytes for own in buffers) - before, others.n_bytes - idle)

    profile.reset()
    with watched_buffers(others) as buffers:
        with segment("start"):
            trainer = make_trainer()
        for own in buffers:
            own.set_large(large)
        _prepare(trainer, widths, layer_sizes)
        for epoch in range(2):
            with segment(SEGMENTS[2 * epoch + 1]):
                trainer.epoch(epoch)
            with segment(SEGMENTS[2 * epoch + 2]):
                trainer.evaluate()
        if smooth is not None:
            with profile.phase("setup"):  # an evaluation as those before
                logits = trainer.predict()
            with segment(SEGMENTS[5]):
                smoothed(trainer, smooth, logits)
    names, fixed = _names(trainer), trainer.flat.data.nbytes * (2 + len(trainer.optimizer.keeps))
    learned = sum(group.data.nbytes for group in trainer.flat.owned)  # the best model's copy of learned rows
    for name, found in segments.items():
        beside = _beside(found, comm.size // comm.columns)
        layers = _Layers(names, name, getattr(trainer.batches, "sampler", None))
        aggregations = [made._replace(over=layers.name(made.plan)) for made in found.aggregations]
        turns = [turn._replace(place=_place(trainer.graph, counts)) for counts, turn in found.turns]
        segments[name] = found._replace(aggregations=aggregations, turns=turns, counted=beside, rows=layers.rows,
                                        other_bytes=found.other_bytes - fixed + learned)
    return Trial(segments, profile.peak_remote_buffers, fixed + trainer.flat.data.nbytes, widths)


class _Sampling:
    """A loader whose sampling is counted as such, also in an evaluation, and whose layers are told to have the run's sizes."""

    def __init__(self, loader, profile, sizes):
        vars(self).update(_loader=loader, _profile=profile, _sizes=sizes)

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def __setattr__(self, name, value):
        setattr(self._loader, name, value)

    def __len__(self):
        return len(self._loader)

    def __iter__(self):
        batches = iter(self._loader)
        while True:
            with self._profile.phase("alltoall"):
                batch = next(batches, None)
            if batch is None:
                return
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


def _prepare(trainer, widths, layer_sizes):
    """As in a run: of learned rows all but one have a gradient, votes travel with the loss. Note the rows that caches are entered with."""
    for name, kind in (("batches", "batch"), ("scoring", "scored")):
        source = getattr(trainer, name)
        if hasattr(source, "sampler"):
            own = [size for (of, _), size in layer_sizes.items() if of == kind]
            setattr(trainer, name, _Sampling(source, trainer.graph.profile, own))
    for name, source in (("training", trainer.batches), ("scoring", trainer.scoring)):
        for k, layer in enumerate(getattr(getattr(source, "batch", None), "graphs", ())):
            layer._all_sizes = layer_sizes[name, k]
    trainer.riders.own = lambda: (0.0,) * (len(SIGNALS) + 2)
    caches = getattr(trainer.batches, "caches", None)
    if caches is not None:
        enter = caches.enter

        def entered(layer, step, rows, h, *others):
            widths[layer] = h.shape[1:], caches.stored_dtype(h.dtype)
            return enter(layer, step, rows, h, *others)

        caches.enter = entered


def _names(trainer):
    """By the id of a plan what `Aggregation.over` says of it."""
    graph = trainer.graph
    if hasattr(graph, "node_type"):
        return {id(plan): chosen for chosen, (plan, _) in graph.graph.exchanges.items()}
    schedule = (graph if graph.grid is None else graph.grid.graph).schedule
    names = {} if schedule.reverse is None else {id(schedule.reverse.plan): "reverse"}
    names[id(schedule.plan)] = "edges"
    for name, source in (("training", trainer.batches), ("scoring", trainer.scoring)):
        layers = getattr(getattr(source, "batch", None), "graphs", ())  # of a message-flow batch, which stays
        names |= {id(layer.plan): (name, k) for k, layer in enumerate(layers)}
    return names


class _Layers:
    """Names the plans of a segment; those of a batch's layers, which are gone, by the order of their first aggregations."""

    def __init__(self, names, segment, sampler):
        self._names, self._kind, self.rows = names, "scored" if "evaluation" in segment else "batch", {}
        self._batch, self._n_layers = {}, len(sampler.fanouts) if sampler else 0

    def name(self, plan):
        if id(plan) in self._names:
            found = self._names[id(plan)]
        elif self._n_layers:
            found = self._batch.setdefault(id(plan), (self._kind, len(self._batch) % self._n_layers))
        else:
            raise ConfigError("--columns: costs are not counted for a model whose messages are computed by rows")
        self.rows[found] = plan.n_src
        return found


def _beside(found, size):
    """The bytes that were counted beside the aggregations and the turns of a segment."""
    counted = found.counted.copy()
    for made in found.aggregations:
        for way, n_bytes in zip(("sent", "received"), moved(made.plan, size, made)):
            counted.subtract({(phase, way): n for phase, n in n_bytes.items()})
    for counts, turn in found.turns:
        own = counts[0]
        for way, n in zip(("sent", "received"), turn.moved(own, len(counts) * own)):
            counted[turn.phase, way] -= n
    return +counted


def _place(graph, counts):
    return "edges" if counts is graph.grid._counts.edge else "rows"

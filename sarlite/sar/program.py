"""A training step as a program: what it allocates, frees and aggregates, in order, with sizes that are linear in rows and edges.

    program = record(run, sizes)          # run(recorder, **sizes) takes real steps on tiny graphs; a few of them tell all sizes
    found = program.replay(counts, mode, prefetch, {"rows": 10**8, ...})

The program is recorded on one part: the rest is the mode's own code over counts (`cost`), with what each visit of a block allocates. So
nothing says how much a model, an operator or a mode takes: they are run.
"""

import gc
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from sarlite.errors import ConfigError
from sarlite.graph.block import PIECE_EDGES
from sarlite.kernels import Places, Recorder
from sarlite.profile import resident, trim
from sarlite.sar.cost import PartCounts, schedule_of, schedules_of
from sarlite.sar.messages import row_bytes
from sarlite.sar.relations import sets_of
from sarlite.sar.stand_ins import Rows
from sarlite.tape.engine import Observer, observed
from sarlite.tape.shapes import flops_of, passes_of

START = "start"  # the segment whose arrays are made outside of a step's buffers
_ONE_AT_A_TIME = threading.Lock()  # ranks may be threads of one process
_NOTHING = 4096  # bytes of a fixed size that are not looked at
Counts = PartCounts | Mapping[Any, PartCounts]


class _Flops(Observer):
    def __init__(self):
        self.counted = [0, 0]

    def applied(self, application):
        name, inputs, params, needs, result = application
        n = flops_of(name, tuple(np.shape(x) for x in inputs), result.shape, params)
        self.counted[0] += n
        self.counted[1] += n * passes_of(needs[: len(inputs)], params)


class Segment(NamedTuple):
    """A part of a program, such as "step": its operations and flops, each number with a factor for each size.

    `collectives` has by phase the bytes that are sent and received beside the aggregations, with factors; `n_messages` counts the messages
    of a grid's turns.
    """

    name: str
    ops: list
    flops: Any
    collectives: dict[str, Any]
    n_messages: int


class Tape:
    """What `record`'s function is given: a recorder of arrays, and `segment`."""

    def __init__(self, profile: Any) -> None:
        self.recorder, self.profile = Recorder(), profile
        self.segments: list[Any] = []
        self.transport: Any = None  # what counts messages beside the aggregations, where there are some

    @contextmanager
    def segment(self, name: str) -> Any:
        """Note what is done inside as one part of the program."""
        start, flops, before, messages = len(self.recorder.events), _Flops(), self._bytes(), self._messages()
        with observed(flops):
            yield
        moved = {phase: np.subtract(n, before.get(phase, 0)) for phase, n in self._bytes().items() if n != before.get(phase)}
        self.segments.append((name, self.recorder.events[start:], tuple(flops.counted), moved, self._messages() - messages))

    def _bytes(self):
        return {phase: (n, self.profile.received_bytes[phase]) for phase, n in self.profile.sent_bytes.items()}

    def _messages(self):
        return 0 if self.transport is None else self.transport.n_messages


def record(run: Callable[..., Tape], sizes: Sequence[Mapping[str, int]]) -> "Program":
    """Run at several sizes and return the `Program` that they are all of.

    Parameters
    ----------
    run : callable of sizes by name -> Tape
    sizes : sequence of dict of str to int
        One more than there are names, not all in one plane, and one more as a check. "rows" and "edges" are those of the part, of a
        grid the edges of the group and "group" its rows; of a relational graph "rows TYPE" and "edges RELATION".

    Raises
    ------
    ConfigError
        The runs allocate, or aggregate, otherwise at other sizes.
    """
    (names, segments), grown = growth(lambda: _recorded(run, sizes))
    return Program(names, segments, grown)


def _recorded(run, sizes):
    run(**sizes[0])  # which loads what a first step loads
    gc.collect()

    def recorded(each):
        found = run(**each).segments
        gc.collect(0)  # a run's arrays that stand in cycles, as no collection has seen them: else each run's would stay beside the next's
        return found

    gc.disable()  # what is freed is freed where it is let go of
    try:
        first = recorded(sizes[0])
        runs = [_numbers(first, first), *(_numbers(recorded(each), first) for each in sizes[1:])]
    finally:
        gc.enable()
    names = list(sizes[0])
    at = np.array([[1, *(each[name] for name in names)] for each in sizes], float)
    rows = [1 + k for k, name in enumerate(names) if name.startswith("rows")]
    segments = []
    for (name, events, *_), each in zip(first, zip(*runs)):
        n_bytes, flops, moved, messages = zip(*each)
        collectives = {phase: _line([found.get(phase, (0, 0)) for found in moved], at, rows) for phase in moved[0]}
        segments.append(Segment(name, _fitted(events, _line(n_bytes, at, rows)), _line(flops, at, rows), collectives, messages[0]))
    return names, segments


def growth(action: Callable[[], Any]) -> tuple[Any, int]:
    """Return what an action returns, and by how many bytes it makes the process larger: pages of libraries, modules, and what stays of it.
    """
    with _ONE_AT_A_TIME:
        gc.collect()
        trim()  # what others have freed is not to count as given back by the run
        before = resident()
        found = action()
        gc.collect()
        trim()
        return found, max(0, resident() - before)


def _numbers(segments, first):
    """What a run's segments have in numbers, where it did as the first: of its notes these alone are kept, so one run's at a time."""
    found = []
    for (name, events, *others), (_, kinds, *_) in zip(segments, first):
        if len(events) != len(kinds) or any(event[:2] != kind[:2] for event, kind in zip(events, kinds)):
            raise ConfigError(f"{name}: other arrays are made at other sizes, so that its memory cannot be told")
        found.append((np.array([event[2] for event in events if event[0] == "new"], float), *others))
    return found


def _fitted(events, factors):
    """Operations with factors in place of bytes, nested; what is always small is left out."""
    factors = dict(zip((k for k, event in enumerate(events) if event[0] == "new"), factors))
    stack, left_out = [[]], set()
    for k, event in enumerate(events):
        if event[0] == "new":
            if factors[k][1:].any() or factors[k][0] > _NOTHING:
                stack[-1].append(("new", event[1], factors[k], *event[3:]))
            else:
                left_out.add(event[1])
        elif event[0] == "free":
            if event[1] not in left_out:
                stack[-1].append(event)
        elif event[0] == "begin":
            stack.append([])
        else:
            body = stack.pop()
            stack[-1].append(("aggregate", event[1], body))
    return stack[0]


def _line(values, at, rows):
    """(k, 1 + sizes) factors of k numbers, given at each size; of one that is not linear an upper bound by the sizes `rows`."""
    values = np.asarray(values, float)
    found, *_ = np.linalg.lstsq(at, values, rcond=None)
    found = np.round(found, 3)
    wrong = ~np.isclose(at @ found, values, rtol=1e-6, atol=0.5).all(0)
    found[:, wrong] = 0
    found[np.ix_(rows, wrong)] = (values[:, wrong] / at[:, rows].sum(1, keepdims=True)).max(0)
    return found.T


class Found(NamedTuple):
    """What a program takes on one rank.

    Attributes
    ----------
    sent, received : dict of str to dict of str to int
        Bytes by segment and phase.
    n_messages, packed_bytes : dict of str to int
        By segment.
    flops : dict of str to (int, int)
        Forward and backward, by segment.
    peak_bytes, in_use_bytes : int
        The most that a step's arrays and messages take, with and without the places between them that stay free.
    range_bytes : int
        Of the first those in `Buffers`' ranges.
    start_bytes, start_peak_bytes : int
        What the segment "start" makes that stays, and the most that it takes.
    remote_buffers : number
        Peers whose rows are held at most.
    """

    sent: dict
    received: dict
    n_messages: dict
    packed_bytes: dict
    flops: dict
    peak_bytes: int
    in_use_bytes: int
    range_bytes: int
    start_bytes: int
    start_peak_bytes: int
    remote_buffers: Any


class Program:
    """What `record` made. `warm_bytes` is by how much that has made the process larger for good."""

    def __init__(self, names: Sequence[str], segments: Sequence[Segment], warm_bytes: int = 0) -> None:
        self.names, self.segments, self.warm_bytes = list(names), list(segments), warm_bytes

    @property
    def transposed(self) -> dict[Any, set[tuple[int, str]]]:
        """By `Aggregation.over` what is transposed."""
        found: dict[Any, set[tuple[int, str]]] = {}
        for segment in self.segments:
            for op in segment.ops:
                if op[0] == "aggregate":
                    found.setdefault(op[1].over, set()).update(op[1].transposed)
        return found

    def row_bytes(self, name: str) -> int:
        """Return the bytes of the rows that a segment's sums take, one of each: what they read of an edge."""
        marks = [op[1] for segment in self.segments if segment.name == name for op in segment.ops if op[0] == "aggregate"]
        rows = [template for mark in marks if mark.way == "run" for template in mark.templates or () if template]
        return sum(row_bytes(template) for template in rows)

    def replay(self, counts: Counts, mode: str, prefetch: int, sizes: Mapping[str, int],
               plays: Mapping[str, tuple[Any, float]] | None = None, until: str | None = None) -> Found:
        """Go through all segments at these sizes, with a part's exchanges in a mode; of a relational graph those of each fetch.

        Parameters
        ----------
        counts, mode, prefetch, sizes
        plays : dict of str to (list of (dict of PartCounts, dict of str to int), float), optional
            Of segments that are gone through several times, each with other exchanges and sizes beside these; and how many of the mean of
            them the segment is. What travels beside aggregations does so once. In place of `PartCounts` is what makes a schedule itself.
        until : str, optional
            Memory is that of the segments before this one.
        """
        return _Replay(self, counts, mode, prefetch, sizes).found(plays or {}, until)


class _Replay:
    def __init__(self, program, counts, mode, prefetch, sizes):
        self.program, self.places, self.outside, self.beside = program, Places(), Places(), Places()
        self.transport, self.over = schedules_of(counts, mode, prefetch, self.places)
        self.options, self.sizes = (mode, prefetch), sizes
        self.at = self.sized(sizes)
        self.index = {name: 1 + k for k, name in enumerate(program.names)}
        self.instances, self.kept, self.count = {}, {}, 0
        self.wanted = {op[1].kept for segment in program.segments for op in segment.ops if op[0] == "aggregate"} - {None}

    def sized(self, sizes):
        return np.array([1, *(sizes.get(name, 0) for name in self.program.names)], float)

    def found(self, plays, until):
        transport, found, memory = self.transport, Found({}, {}, {}, {}, {}, 0, 0, 0, 0, 0, 0), None
        for segment in self.program.segments:
            if segment.name == until:
                memory = self.memory()
            transport.places = self.now = self.outside if segment.name == START else self.places
            if segment.name not in plays:
                self.segment(segment, found)
                continue
            several, times = plays[segment.name]
            each = [Found({}, {}, {}, {}, {}, 0, 0, 0, 0, 0, 0) for _ in several]
            whole = self.over, self.at
            for (counts, sizes), own in zip(several, each):
                others = {over: schedule_of(part, *self.options, transport=transport) for over, part in counts.items()}
                self.over, self.at = {**whole[0], **others}, self.sized({**self.sizes, **sizes})
                self.leave(segment.ops)
                self.segment(segment, own)
            _times(times, segment.name, each, found, self.collectives(segment))
            self.over, self.at = whole
        self.kept.clear()
        return found._replace(**(memory or self.memory()), remote_buffers=transport.profile.peak_remote_buffers)

    def memory(self):
        """What `Found` says of memory, as far as the program was gone through."""
        steps, start, beside = self.places, self.outside, self.beside
        return {"peak_bytes": steps.peak + beside.peak, "in_use_bytes": steps.peak_in_use + steps.peak_small,
                "range_bytes": steps.top + beside.top, "start_bytes": start.in_use + start.small,
                "start_peak_bytes": start.peak_in_use + start.peak_small}

    def segment(self, segment, found):
        """Go through a segment, and note what it took."""
        transport = self.transport
        n_messages, packed = transport.n_messages, transport.packed_bytes
        transport.profile.sent_bytes.clear()
        transport.profile.received_bytes.clear()
        self.play(segment.ops, self.at)
        name, sent, received = segment.name, dict(transport.profile.sent_bytes), dict(transport.profile.received_bytes)
        for counted, once in zip((sent, received), self.collectives(segment)):
            for phase, n in once.items():
                counted[phase] = counted.get(phase, 0) + n
        found.sent[name], found.received[name] = sent, received
        found.n_messages[name], found.packed_bytes[name] = transport.n_messages - n_messages, transport.packed_bytes - packed
        found.n_messages[name] += segment.n_messages
        found.flops[name] = tuple(round(float(line @ self.at)) for line in segment.flops)

    def collectives(self, segment):
        """By phase what a segment sends, and what it receives, beside its aggregations."""
        return [{phase: round(float(lines[k] @ self.at)) for phase, lines in segment.collectives.items()} for k in range(2)]

    def leave(self, ops):
        """Free what an earlier time through these operations has made and left."""
        for op in ops:
            if op[0] == "new":
                for places, key in self.instances.pop(op[1], ()):
                    places.free(key)

    def play(self, ops, at, inner=None):
        """Go through operations; `inner` are the sizes of arrays that are freed in them, where these differ."""
        freed = {op[1] for op in ops if op[0] == "free"} if inner is not None else ()
        for op in ops:
            if op[0] == "new":
                self.count += 1
                places = self.beside if op[3:] else self.now
                places.new(self.count, max(0.0, float(op[2] @ (inner if op[1] in freed else at))))
                self.instances.setdefault(op[1], []).append((places, self.count))
            elif op[0] == "free":
                for places, key in self.instances.pop(op[1], ()):
                    places.free(key)
            else:
                self.aggregate(op[1], op[2])

    def aggregate(self, mark, body):
        schedule, profile = self.over[mark.over], self.transport.profile
        rows = [None if templates is None else tuple(t and Rows((schedule.plan.n_src, *t[0]), t[1]) for t in templates)
                for templates in (mark.templates, mark.d_templates)]
        with profile.phase(mark.within) if mark.within else nullcontext():
            if mark.way != "run_backward":
                found = schedule.mode.run(schedule, rows[0], lambda block, r: self.visit(mark, body, block, r), mark.phase)
                if mark.number in self.wanted:
                    self.kept[mark.number] = found
            else:
                schedule.mode.run_backward(schedule, rows[0], self.kept.pop(mark.kept, None),
                                           lambda block, *others: self.visit(mark, body, block), list(rows[1]), mark.phase)

    def visit(self, mark, body, block, rows=None):
        """What a block's visit takes: its columns and edges stand for the part's rows and edges."""
        if body:
            at = self.at.copy()
            at[self.index[mark.rows]] = block.n_src
            inner = at.copy()
            for name, edges in zip(mark.edges, sets_of(block)):
                k = self.index[name]
                at[k], inner[k] = edges.n_edges, min(edges.n_edges, max(PIECE_EDGES, block.n_src))  # a message's edges come in pieces
            self.play(body, at, inner)
        return rows if mark.holds else None


def _times(times, name, each, found, collectives):
    """Put what a segment took on the average, so many times, into `found`; its collectives are in it once."""
    n = times / len(each)
    for own, total, once in (("sent", found.sent, collectives[0]), ("received", found.received, collectives[1])):
        phases = {phase for one in each for phase in getattr(one, own)[name]}
        total[name] = {phase: n * sum(getattr(one, own)[name].get(phase, 0) for one in each) - (times - 1) * once.get(phase, 0)
                       for phase in phases}
    for own, total in (("n_messages", found.n_messages), ("packed_bytes", found.packed_bytes)):
        total[name] = round(n * sum(getattr(one, own)[name] for one in each))
    found.flops[name] = tuple(round(n * sum(one.flops[name][k] for one in each)) for k in range(2))

"""A mode that runs alone and tells what it was asked to aggregate: of steps that are recorded (`program`)."""

from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from sarlite.graph.block import TRANSPOSES
from sarlite.kernels import Recorder, unbuffered
from sarlite.sar.cost import expected, schedule_of
from sarlite.sar.operators.relations import sets_of
from sarlite.sar.schedule.messages import templates_of
from sarlite.sar.stand_ins import Rows


class Aggregation(NamedTuple):
    """A call of a mode: `way` is "run" or "run_backward"; or what is no sum of rows but travels in a way of its own, "push".

    Attributes
    ----------
    templates : tuple of (row shape, dtype), or None
        Of the rows that are fetched.
    d_templates : tuple of (row shape, dtype) or None
        Of the gradients, backward.
    phase, within : str, str or None
        What bytes are counted under; a phase of the profile that stands in for it.
    number, kept : int, int or None
        Of the run; of the run whose kept list backward takes.
    over : str, or tuple of relations
        Which of a graph's edges: "edges", all; or of `Schedule` "reverse", "cover" or "summed"; or of which relations out of one type;
        or of which message-flow graph and layer.
    rows, edges : str, tuple of str
        The sizes that a visit's columns, and its edges of each set, stand for.
    holds : bool
        Whether what is kept of a block holds the rows that came.
    transposed : frozenset of (int, str)
        What of which set of edges was transposed (`graph.block.TRANSPOSES`).
    """

    way: str
    templates: Any
    d_templates: Any
    phase: str
    within: str | None
    number: int
    kept: int | None
    over: Any
    rows: str
    edges: tuple[str, ...]
    holds: bool = False
    transposed: frozenset[tuple[int, str]] = frozenset()


class Listening:
    """A mode that runs on one part of `size`, and tells a recorder.

    `named` has by a plan's id what an `Aggregation` over it says as (over, rows, edges), where graphs of several plans share a mode.
    """

    def __init__(self, mode: Any, recorder: Recorder, size: int, over: Any = "edges", rows: str = "rows",
                 edges: tuple[str, ...] = ("edges",)) -> None:
        self.mode, self.recorder, self.facts = mode, recorder, (over, rows, edges)
        self.named: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}  # of runs, by the list of what they keep
        self.copies = copies(mode, size)  # then what is kept holds those, which `replay` places

    def over(self, edges: str) -> "Listening":
        """Return the same, of other edges."""
        other = object.__new__(Listening)
        vars(other).update(vars(self), facts=(edges, *self.facts[1:]))
        return other

    def __getattr__(self, name):
        return getattr(self.mode, name)

    def run(self, schedule, arrays, visit, phase="forward"):
        if self.copies:
            arrays = unbuffered(lambda: tuple(array[:].copy() for array in arrays))
        with self._marked(schedule, "run", arrays, None, phase, None) as (number, facts):
            found = [visit(schedule.plan.local, arrays)]
            facts["holds"] = _holds(found, arrays)
        self.numbers[id(found)] = number
        return found

    def run_backward(self, schedule, arrays, kept, visit, d_arrays, phase="backward"):
        with self._marked(schedule, "run_backward", arrays, d_arrays, phase, kept):
            visit(schedule.plan.local, arrays, kept and kept[0], d_arrays)

    @contextmanager
    def _marked(self, schedule, way, arrays, d_arrays, phase, kept):
        own, sets, found = len(self.recorder.events), [vars(edges) for edges in sets_of(schedule.plan.local)], {}
        self.recorder.events.append(("begin",))
        templates, d_templates = (None if rows is None else templates_of(rows) for rows in (arrays, d_arrays))
        number = None if kept is None else self.numbers[id(kept)]
        names = self.named.get(id(schedule.plan), self.facts)
        facts = way, templates, d_templates, phase, schedule.transport.profile._phase, own, number, *names
        for made in sets:
            for name in TRANSPOSES:
                made.pop(name, None)
        yield own, found
        found["transposed"] = frozenset((k, name) for k, made in enumerate(sets) for name in TRANSPOSES if name in made)
        self.recorder.events.append(("end", Aggregation(*facts, **found)))


def _holds(value, arrays):
    """Whether one of the arrays is among what was kept of a visit."""
    if isinstance(value, (tuple, list)):
        return any(_holds(part, arrays) for part in value)
    return any(value is array for array in arrays)


def copies(mode: Any, size: int) -> bool:
    """Tell whether a visit is given the local rows with others' in one array."""
    return size > 1 and not _shows_local_rows(mode, size)


def _shows_local_rows(mode, size):
    """Whether a visit is given the local rows themselves, not with others' in one array."""
    schedule, rows, seen = schedule_of(expected(8 * size, 8 * size, size), mode.name, 0), Rows((8, 1), np.float32), []
    mode.run(schedule, (rows,), lambda block, found: seen.append(found[0] is rows))
    return any(seen)

"""One run of a Python message over some edges, recorded by the tape, and the comparison of two runs."""

import zlib
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from sarlite.errors import ShapeError
from sarlite.tape import Tensor, backward, primitives, recording
from sarlite.tape.backward import carry


class EdgeRows(dict):
    """Tensors with one row per edge, by name.

    Attributes
    ----------
    ids : (n_edges,) int64
        Global id of each row: a node id, or source id * n_nodes + destination id for an edge. Dropout is keyed by it.
    """

    def __init__(self, ids, values):
        super().__init__(values)
        self.ids = ids


class Recording:
    """One run of the message over some edges: its outputs, and the leaf tensors that hold the edges' inputs.

    Parameters
    ----------
    message : callable (src, dst, edge) -> Tensor or tuple of Tensor
    names : three tuples of str
        Names of the inputs of sources, of destinations and of edges.
    arrays : list of (n_edges, ...) array
        Values of each input, in the order of `names`.
    needs : list of bool
        True for each input whose gradient is wanted.
    ids : three (n_edges,) int64
        Global ids of the sources, of the destinations and of the edges.
    program : Program, optional
        Object that records the operations of the message.
    """

    def __init__(self, message, names, arrays, needs, ids, program=None):
        n_src = len(names[0])
        self.leaves = [Tensor(a, need, placement="rows") for a, need in zip(arrays, needs)]
        for leaf in self.leaves[:n_src]:
            leaf.volatile = True
        self.since = recording.now()
        views, start = [], 0
        for place, place_ids in zip(names, ids):
            views.append(EdgeRows(place_ids, zip(place, self.leaves[start : start + len(place)])))
            start += len(place)
        with recording.watch_reads() as reads:
            result = message(*views) if program is None else program.run(message, views, self.leaves, self.since)
        self.reads_src = reads.seen
        self.program, self.outputs = program, result if isinstance(result, tuple) else (result,)
        for out in self.outputs:
            if not isinstance(out, Tensor) or out.shape[:1] != (len(place_ids),):
                found = getattr(out, "shape", type(out))
                raise ShapeError(f"a message must return tensors of one row an edge, not {found}")

    def nodes(self):
        return backward.reachable([out.sink for out in self.outputs], self.since)

    def captured(self):
        """Return the tape values older than the run that the message uses and that take gradients, oldest first."""
        leaves = {id(leaf) for leaf in self.leaves}
        ends = [out.sink for out in self.outputs] + [sink for node in self.nodes() for sink in node.sinks]
        found = {id(end): end for end in ends
                 if end is not None and end.time <= self.since and id(end) not in leaves}
        return sorted(found.values(), key=lambda sink: sink.time)

    def depends_on_src(self):
        """Return True in case 2: a residual depends on source rows (SAR 3.2), or the message read their values."""
        return self.reads_src or any(node.volatile for node in self.nodes())

    def same_tape(self, other):
        """Return True if another recording has the same primitives with the same parameters and residuals."""
        ours, theirs = self.nodes(), other.nodes()
        return len(ours) == len(theirs) and all(
            a.name == b.name and _same((a.wants_grad, a.params, a.residuals), (b.wants_grad, b.params, b.residuals))
            for a, b in zip(ours, theirs)
        )

    def pull(self, gradients, sinks):
        """Return the gradients of the leaves and the captured values, keyed by `id` of the leaf or sink.

        Raises
        ------
        RuntimeError
            If a captured value outside `sinks` receives a gradient, which would be lost.

        Raises
        ------
        RuntimeError
            If a gradient arrives at another captured sink than `sinks`: the gradient would be lost.
        """
        arrivals = carry(list(zip(self.outputs, gradients)), self.since)
        arrays = arrivals.arrays()
        known = {id(end) for end in (*self.leaves, *sinks)}
        for key, end in arrivals.ends.items():
            if key not in known and end.time <= self.since:
                shape = arrays[key].shape
                raise RuntimeError(f"the message uses a learnable value of shape {shape} for some rows alone, whose "
                                   "gradient would be lost: a message must not branch on values")
        return arrays


def _same(a, b):
    """Return True if two residuals are known to hold equal values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a is b or bool(a == b) or (isinstance(a, float) and a != a and b != b)


# ---- what a message does


class Own(NamedTuple):
    """Number of a tensor that the message received or created, counted in order of appearance."""

    number: int


class Captured(NamedTuple):
    """Tensor from before the run, compared by identity. The tape notices when its values change."""

    tensor: Tensor


class Value(NamedTuple):
    """Array, number or untracked tensor that a step takes, compared by value."""

    value: Any
    checksum: int | None


class Step(NamedTuple):
    """One primitive that the message ran."""

    name: str
    params: dict[str, Any]
    inputs: tuple[Any, ...]


MOST_BYTES = 1 << 20
"""Size of the largest array that is checked for changes in place."""


class Program(recording.Observer):
    """Record of a message's operations: its primitives in order, with every input that is not one of its own tensors.

    Two runs over the same rows have equal programs, unless something that the message closes over or reads has changed.
    """

    def __init__(self):
        self.steps, self.tensors = [], {}

    def run(self, message, views, leaves, since):
        self._since, self._numbers = since, {}
        self._own = []  # so that no other tensor gets their ids
        for leaf in leaves:
            self._add(leaf)
        with recording.observed(self):
            result = message(*views)
        outputs = result if isinstance(result, tuple) else (result,)
        self.steps.append(Step("its result", {}, tuple(map(self._known, outputs))))
        del self._own, self._numbers
        return result

    def applied(self, application):
        inputs = tuple(map(self._known, application.inputs))
        self.steps.append(Step(application.name, application.params, inputs))
        self._add(application.result)

    def _add(self, tensor):
        self._numbers[id(tensor)] = len(self._own)
        self._own.append(tensor)

    def _known(self, x):
        if id(x) in self._numbers:
            return Own(self._numbers[id(x)])
        if isinstance(x, Tensor):
            self.tensors.setdefault(id(x._changes), x)
            if x.time <= self._since:
                return Captured(x)
            x = x._data
        return Value(x, _checksum(x))

    def reads(self, sinks):
        """Return the tensors whose values the message uses but which get no gradient through it, except `sinks`."""
        changes = {id(sink.changes if isinstance(sink, primitives.Node) else sink._changes) for sink in sinks}
        found = [tensor for key, tensor in self.tensors.items() if key not in changes]
        return [tensor.detach() if tensor.requires_grad else tensor for tensor in found]

    def changed_array(self):
        """Return a description of an array that was changed in place since the run, or None."""
        for step in self.steps:
            for x in step.inputs:
                if isinstance(x, Value) and x.checksum != _checksum(x.value):
                    return f"an array of shape {x.value.shape}, for {step.name}, was changed in place"
        return None

    def difference(self, later):
        """Return a description of the first operation that differs in a later run over the same rows, or None."""
        for k, (a, b) in enumerate(zip_longest(self.steps, later.steps, fillvalue=Step("nothing", {}, ())), 1):
            where = f"operation {k} ({b.name})"
            if a.name != b.name or len(a.inputs) != len(b.inputs):
                return f"operation {k} was {a.name} and is {b.name}"
            for name in a.params.keys() | b.params.keys():
                if not _same(a.params.get(name), b.params.get(name)):
                    return f"{name} of {where} was {a.params.get(name)} and is {b.params.get(name)}"
            for i, (x, y) in enumerate(zip(a.inputs, b.inputs), 1):
                if not _alike(x, y):
                    return f"input {i} of {where} was {_told(x)} and is {_told(y)}"
        return None


def _checksum(x):
    """Return the CRC-32 of a numeric array of at most `MOST_BYTES` bytes, else None."""
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "biufc" or x.nbytes > MOST_BYTES:
        return None
    return zlib.crc32(np.ascontiguousarray(x))


def _alike(a, b):
    """Return True if two recorded inputs of a step are the same."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Own):
        return a == b
    if isinstance(a, Captured):
        return a.tensor is b.tensor
    if a.checksum is not None and b.checksum is not None:
        return a.checksum == b.checksum and a.value.dtype == b.value.dtype and a.value.shape == b.value.shape
    return a.value is b.value or _same(a.value, b.value)


def _told(x):
    if isinstance(x, Own):
        return "a tensor of the message's own"
    value = x.tensor if isinstance(x, Captured) else x.value
    if not isinstance(value, (Tensor, np.ndarray)):
        return repr(value)
    kind = "tensor" if isinstance(x, Captured) else "array"
    values = "" if value.size > 4 else f", {np.asarray(value).tolist()}"
    return f"{'a' if kind == 'tensor' else 'an'} {kind} of shape {value.shape}{values}"

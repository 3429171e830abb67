"""Recordings of calls of a message function over some edges, and comparisons of two recordings."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from sarlite.errors import ShapeError
from sarlite.tape import Tensor, backward, primitives, recording
from sarlite.tape.backward import carry
from sarlite.types import Array


class EdgeRows(dict):
    """Argument src, dst or edge of a message function: a dict from input names to tensors with one row for each edge.

    Attributes
    ----------
    ids : (n_edges,) int64
        Global id for each row, by which dropout is keyed: the source's id, the destination's id, or for edge inputs
        source id * n_nodes + destination id.
    """

    def __init__(self, ids, values):
        super().__init__(values)
        self.ids = ids


class Recording:
    """One call of a message function over some edges, with its outputs and tape nodes.

    Parameters
    ----------
    message : callable (src, dst, edge) -> Tensor or tuple of Tensor
    names : Names
    arrays : list of (n_edges, ...) array
        Values of each input, in the order of `names`.
    wants_grad : list of bool
        True for each input whose gradient is wanted.
    ids : (source ids, destination ids, edge ids), (n_edges,) int64 each
        Global ids; see `EdgeRows`.
    program : Program, optional
        Object that records the operations of the message.

    Attributes
    ----------
    leaves : list of Tensor
        Tensor of each input.
    outputs : tuple of Tensor
        Result of the message.
    since : int
        Time of the call; nodes of the call are younger.
    reads_src : bool
        True if the message read values of source rows outside of the tape, as by `numpy()`.
    """

    def __init__(self, message, names, arrays, wants_grad, ids, program=None):
        n_src = len(names[0])
        self.leaves = [Tensor(a, wanted, placement="rows") for a, wanted in zip(arrays, wants_grad)]
        for leaf in self.leaves[:n_src]:
            leaf.volatile = True
        self.since = recording.now()
        views, start = [], 0
        for group, group_ids in zip(names, ids):
            views.append(EdgeRows(group_ids, zip(group, self.leaves[start : start + len(group)])))
            start += len(group)
        with recording.watch_reads() as reads:
            result = message(*views) if program is None else program.run(message, views, self.leaves, self.since)
        self.reads_src = reads.seen
        self.program, self.outputs = program, result if isinstance(result, tuple) else (result,)
        for out in self.outputs:
            if not isinstance(out, Tensor) or out.shape[:1] != (len(group_ids),):
                problem = getattr(out, "shape", type(out))
                raise ShapeError(f"a message must return tensors of one row an edge, not {problem}")

    def nodes(self):
        """Return the tape nodes of the call that the outputs depend on, newest first."""
        return backward.reachable([out.sink for out in self.outputs], self.since)

    def captured(self):
        """Return the captured values, oldest first: tensors or tape nodes from outside the message function that receive gradients."""
        leaves = {id(leaf) for leaf in self.leaves}
        ends = [out.sink for out in self.outputs] + [sink for node in self.nodes() for sink in node.sinks]
        captured = {id(end): end for end in ends
                    if end is not None and end.time <= self.since and id(end) not in leaves}
        return sorted(captured.values(), key=lambda sink: sink.time)

    def depends_on_src(self):
        """Return True if the backward pass needs the source rows again, because the tape or the message function read their values. The
        SAR paper, section 3.2, calls this case 2.
        """
        return self.reads_src or any(node.volatile for node in self.nodes())

    def same_tape(self, other: "Recording") -> bool:
        """Return True if the recording `other` ran the same primitives, with equal parameters and residuals."""
        ours, theirs = self.nodes(), other.nodes()
        return len(ours) == len(theirs) and all(
            a.name == b.name and _same((a.wants_grad, a.params, a.residuals), (b.wants_grad, b.params, b.residuals))
            for a, b in zip(ours, theirs)
        )

    def pull(self, gradients: Sequence[Array], sinks: Sequence[primitives.Node | Tensor]) -> dict[int, Any]:
        """Return {id(tensor): gradient} for the inputs of the message function and for `sinks`, the tensors from outside that it
        captured; `gradients` are the gradients of its outputs.

        Parameters
        ----------
        gradients : list of (n_edges, ...) array
            Gradient of each output.
        sinks : sequence of Node or Tensor
            Captured values that were found when the operator was created.

        Returns
        -------
        dict of int to array
            Gradients of the leaves and of `sinks`, keyed by `id(leaf)` or `id(sink)`.

        Raises
        ------
        RuntimeError
            A captured value outside `sinks` receives a gradient, which would be lost.
        """
        arrivals = carry(list(zip(self.outputs, gradients)), self.since)
        arrays = arrivals.arrays()
        expected = {id(end) for end in (*self.leaves, *sinks)}
        for key, end in arrivals.ends.items():
            if key not in expected and end.time <= self.since:
                shape = arrays[key].shape
                raise RuntimeError(f"the message uses a learnable value of shape {shape} for some rows only, whose "
                                   "gradient would be lost: a message must not branch on values")
        return arrays


def _same(a: Any, b: Any) -> bool:
    """Return True if two values are equal; arrays are compared bit by bit, tuples, lists and dicts item by item."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a is b or bool(a == b) or (isinstance(a, float) and a != a and b != b)


# ---- the operations of a message


class Numbered(NamedTuple):
    """Input of a recorded primitive: a tensor that the message function received or created, by its number in order of appearance."""

    number: int


class Captured(NamedTuple):
    """Input of a recorded primitive: a tensor from outside the message function, compared by identity. The tape detects changes of
    its values.
    """

    tensor: Tensor


class Value(NamedTuple):
    """Input of a recorded primitive: an array or number from outside the message function, compared by value."""

    value: Any
    checksum: int | None


class ReplayStep(NamedTuple):
    """One primitive that a message function ran, with its inputs. The last step of a `Program` has the function's results as inputs."""

    name: str
    params: Mapping[str, object]
    inputs: tuple[Numbered | Captured | Value, ...]


MOST_BYTES = 1 << 20
"""Size in bytes of the largest array that is checked for changes in place."""


class Program(recording.Observer):
    """Record of the operations of a message function: the primitives in order, with their parameters and inputs.

    Two calls over the same rows have equal programs, unless a value that the message closes over or reads has changed.

    Attributes
    ----------
    steps : list of ReplayStep
    tensors : dict of int to Tensor
        Tensors from outside that the message reads, one for each group of tensors that share values.
    """

    def __init__(self):
        self.steps, self.tensors = [], {}

    def run(self, message: Callable[..., Any], views: Sequence[EdgeRows], leaves: Sequence[Tensor], since: int) -> Any:
        """Return message(*views) and record its operations in `steps`. `views` are the arguments src, dst and edge of the message
        function, and `leaves` their tensors. A tensor that the tape created after time `since` counts as the function's own, not as
        one from outside.
        """
        self._since = since
        self._numbers: dict[int, int] = {}
        self._numbered: list[Tensor] = []  # keeps the tensors alive, so that no other tensor gets their ids
        for leaf in leaves:
            self._add(leaf)
        with recording.observed(self):
            result = message(*views)
        outputs = result if isinstance(result, tuple) else (result,)
        self.steps.append(ReplayStep("its result", {}, tuple(map(self._input, outputs))))
        del self._numbered, self._numbers
        return result

    def applied(self, application):
        inputs = tuple(map(self._input, application.inputs))
        self.steps.append(ReplayStep(application.name, application.params, inputs))
        self._add(application.result)

    def _add(self, tensor):
        self._numbers[id(tensor)] = len(self._numbered)
        self._numbered.append(tensor)

    def _input(self, x: Any) -> Numbered | Captured | Value:
        """Return `x`, an input of a primitive, in the form that is recorded: a `Numbered` if the message function received or
        created it, a `Captured` tensor from outside, else a `Value`.
        """
        if id(x) in self._numbers:
            return Numbered(self._numbers[id(x)])
        if isinstance(x, Tensor):
            self.tensors.setdefault(id(x._changes), x)
            if x.time <= self._since:
                return Captured(x)
            x = x._data
        return Value(x, _checksum(x))

    def reads(self, sinks: Sequence[primitives.Node | Tensor]) -> list[Tensor]:
        """Return the tensors from outside that the message function reads, as tensors without gradient. Tensors that share memory with
        one of `sinks`, which receive gradients, are left out.
        """
        changes = {id(sink.changes if isinstance(sink, primitives.Node) else sink._changes) for sink in sinks}
        tensors = [tensor for key, tensor in self.tensors.items() if key not in changes]
        return [tensor.detach() if tensor.requires_grad else tensor for tensor in tensors]

    def changed_array(self) -> str | None:
        """Return text about the first recorded array whose values were changed in place since the call; None if there is none."""
        for step in self.steps:
            for x in step.inputs:
                if isinstance(x, Value) and x.checksum != _checksum(x.value):
                    return f"an array of shape {x.value.shape}, for {step.name}, was changed in place"
        return None

    def difference(self, later: "Program") -> str | None:
        """Return text about the first operation that differs in `later`, the program of a later call; None if both are equal."""
        for k, (a, b) in enumerate(zip_longest(self.steps, later.steps, fillvalue=ReplayStep("nothing", {}, ())), 1):
            where = f"operation {k} ({b.name})"
            if a.name != b.name or len(a.inputs) != len(b.inputs):
                return f"operation {k} was {a.name} and is {b.name}"
            for name in a.params.keys() | b.params.keys():
                if not _same(a.params.get(name), b.params.get(name)):
                    return f"{name} of {where} was {a.params.get(name)} and is {b.params.get(name)}"
            for i, (x, y) in enumerate(zip(a.inputs, b.inputs), 1):
                if not _alike(x, y):
                    return f"input {i} of {where} was {_describe(x)} and is {_describe(y)}"
        return None


def _checksum(x):
    """Return the CRC-32 of a numeric array of at most `MOST_BYTES` bytes, else None."""
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "biufc" or x.nbytes > MOST_BYTES:
        return None
    return zlib.crc32(np.ascontiguousarray(x))


def _alike(a: Any, b: Any) -> bool:
    """Return True if two inputs of recorded primitives, each a `Numbered`, `Captured` or `Value`, stand for the same tensor or value."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Numbered):
        return a == b
    if isinstance(a, Captured):
        return a.tensor is b.tensor
    if a.checksum is not None and b.checksum is not None:
        return a.checksum == b.checksum and a.value.dtype == b.value.dtype and a.value.shape == b.value.shape
    return a.value is b.value or _same(a.value, b.value)


def _describe(x: Numbered | Captured | Value) -> str:
    """Return text about an input of a recorded primitive, a `Numbered`, `Captured` or `Value`, for error messages."""
    if isinstance(x, Numbered):
        return "a tensor of the message's own"
    value = x.tensor if isinstance(x, Captured) else x.value
    if not isinstance(value, (Tensor, np.ndarray)):
        return repr(value)
    kind = "tensor" if isinstance(x, Captured) else "array"
    values = "" if value.size > 4 else f", {np.asarray(value).tolist()}"
    return f"{'a' if kind == 'tensor' else 'an'} {kind} of shape {value.shape}{values}"

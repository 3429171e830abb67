"""Aggregation over several relations in one tape primitive; relations with one source type share a fetch.

All fetches add to one array, so the sums over relations and their gradients exist only once.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sarlite import tape
from sarlite.errors import ConfigError, ShapeError
from sarlite.numerics import reductions
from sarlite.numerics.edge_sums import EdgeSums
from sarlite.operators import aggregate
from sarlite.operators.contract import ROWS, SCORES, Operator
from sarlite.operators.layer_contract import LayerContract
from sarlite.operators.operator_table import Call
from sarlite.schedule.schedule import Schedule
from sarlite.structure.block import Bundle, Edges
from sarlite.tape import Tensor
from sarlite.tape.primitives import Node
from sarlite.tape.recording import retained
from sarlite.tape.summands import SliceGradient
from sarlite.tape.table_rows import in_table
from sarlite.types import Array, T

Key = Hashable
"""Key of an output: a destination type, or a relation."""

Summand = tuple[LayerContract, Key, Call]
Product = tuple[Key, Tensor, Tensor]


class Member(NamedTuple):
    """One relation's share of a fetch that several relations use.

    Attributes
    ----------
    relation_index : int
        Index of the relation's edges in a bundle.
    key : hashable
        Key of the output that the member adds to.
    operator : Operator
    inputs : list of int
        Numbers of the operator's inputs and captured values among those of all members.
    sums : EdgeSums
        Accumulators of the relation.
    """

    relation_index: int
    key: Key
    operator: Operator
    inputs: list[int]
    sums: EdgeSums

    def own(self, values: Sequence[T]) -> list[T]:
        """Return the items of `values` at this member's input numbers; numbers past the end are skipped."""
        return [values[i] for i in self.inputs if i < len(values)]


class Layout(NamedTuple):
    """Position of each output in one flat array.

    Attributes
    ----------
    places : dict of key to (slice, shape)
    size : int
    dtype : dtype
    """

    places: dict[Key, tuple[slice, tuple[int, ...]]]
    size: int
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, outputs: list[tuple[Key, tuple[int, ...], np.dtype[Any]]]) -> "Layout":
        """Lay out outputs, (key, shape, dtype) each; raise a ShapeError if shapes of a key or dtypes differ."""
        if len({dtype for *_, dtype in outputs}) > 1 or outputs[0][2].kind != "f":
            listed = ", ".join(sorted({f"{dtype} into {key}" for key, _, dtype in outputs}))
            raise ShapeError(f"relations that are added up: {listed}: one float dtype is needed, as by astype")
        places, size = {}, 0
        for key, shape, _ in outputs:
            if key not in places:
                places[key] = slice(size, size + int(np.prod(shape))), shape
                size = places[key][0].stop
            elif places[key][1] != shape:
                rows = f"rows of {places[key][1][1:]} and of {shape[1:]}"
                raise ShapeError(f"relations into {key!r}: their messages make {rows}")
        return cls(places, size, outputs[0][2])

    def view(self, flat: Array, key: Key) -> Array:
        """Return the part of a flat array that holds the output of `key`, or its gradient, as a view."""
        place, shape = self.places[key]
        return flat[place].reshape(shape)


@dataclass(frozen=True, eq=False)
class Fetched:
    """Operator over bundles that combines the members of one fetch. Its output is the flat array `Context.out`.

    Attributes
    ----------
    members : list of Member
    fetched : tuple of {"rows", "scores"}
    captured : tuple
        Captured values of all members.
    layout : Layout
    """

    members: list[Member]
    fetched: tuple[str, ...]
    captured: tuple[Node | Tensor, ...]
    layout: Layout

    def output(self, arrays):
        return (self.layout.size,), self.layout.dtype

    def needs_rows(self, context):
        members = [(member.operator, self.member_context(member, context)) for member in self.members]
        return any(operator.needs_rows(own) for operator, own in members if any(own.wants_grad))

    def member_context(self, member, context):
        """Return the context of one member, whose blocks arrive one after the other."""
        out = None if context.out is None else self.layout.view(context.out, member.key)
        return context._replace(wants_grad=member.own(context.wants_grad), sums=member.sums, single_block=False,
                                keeps_rows=True, out=out)

    def forward(self, inputs, context):
        return _FetchedForward(self, inputs, context)

    def backward(self, residuals, g, context):
        return _FetchedBackward(self, residuals, g, context)


class _FetchedForward:
    def __init__(self, operator, inputs, context):
        self.operator, contexts = operator, [operator.member_context(each, context) for each in operator.members]
        self.passes = [each.operator.forward(each.own(inputs), own) for each, own in zip(operator.members, contexts)]
        self.out, self.views = context.out, [own.out for own in contexts]

    def sweeps(self, rows):
        yield rows

    def add(self, block, rows):
        for member, each in zip(self.operator.members, self.passes):
            each.add(sets_of(block)[member.relation_index], member.own(rows))

    def finish(self):
        residuals = []
        for each, view in zip(self.passes, self.views):
            out, own = each.finish()
            if out is not view:
                view += out
            residuals.append(own)
        return self.out, residuals


class _FetchedBackward:
    """Backward passes of the members for which a gradient is wanted."""

    def __init__(self, operator, residuals, g, context):
        self.operator, self.passes = operator, []
        for k, member in enumerate(operator.members):
            own_context = operator.member_context(member, context)
            saved, residuals[k] = residuals[k], residuals[k] if retained() else None
            if any(own_context.wants_grad):
                own = operator.layout.view(g, member.key)
                own.flags.writeable = False  # other members and products read it too
                self.passes.append((member, member.operator.backward(saved, own, own_context)))
        self.sinks = [self._joined(number) for number in range(len(operator.fetched))]

    def _joined(self, number):
        """Return the accumulator that all members add their gradients of one fetched input to."""
        sinks = [each.sinks[member.inputs.index(number)] for member, each in self.passes if number in member.inputs]
        first, *others = [sink for sink in sinks if sink is not None] or [None]
        return first and first.join(others)

    def add(self, block, rows, sinks):
        for member, each in self.passes:
            each.add(sets_of(block)[member.relation_index], None if rows is None else member.own(rows),
                     member.own(sinks))

    def finish(self):
        n_fetched = len(self.operator.fetched)
        found = {number: None for member in self.operator.members for number in member.inputs if number >= n_fetched}
        for member, each in self.passes:
            found |= dict(zip([i for i in member.inputs if i >= n_fetched], each.finish(), strict=True))
        return [found[number] for number in sorted(found)]


def sets_of(block: Edges | Bundle) -> tuple[Edges, ...]:
    """Return the sets of edges of a block. A block of one relation is a single set and not a bundle."""
    return block if isinstance(block, Bundle) else (block,)


class Fetch(NamedTuple):
    """One fetch: an operator over the bundles of a schedule, and the numbers of its inputs and captured values."""

    operator: Fetched
    schedule: Schedule
    numbers: list[int]


class Sums(NamedTuple):
    """Summands of the outputs: the members of several fetches, and products of rows with weights.

    Attributes
    ----------
    fetches : list of Fetch
    products : list of (key, number of x, number of the weight)
        The product x W, (n, n_in) by (n_in, n_out), is a summand of the output `key`.
    layout : Layout
    """

    fetches: list[Fetch]
    products: list[tuple[Key, int, int]]
    layout: Layout


def _forward(wants_grad, *arrays, operator):
    flat, saved = np.zeros(operator.layout.size, operator.layout.dtype), []
    for key, x, weight in operator.products:
        reductions.product(arrays[x], arrays[weight], into=operator.layout.view(flat, key))
    for fetch in operator.fetches:
        own = [arrays[i] for i in fetch.numbers if i < len(arrays)]
        saved.append(aggregate.forward([wants_grad[i] for i in fetch.numbers], *own, operator=fetch.operator,
                                       schedule=fetch.schedule, out=flat)[1])
    pairs = [(arrays[x] if wants_grad[weight] else None, arrays[weight] if wants_grad[x] else None)
             for _, x, weight in operator.products]
    return flat, (saved, pairs)


def _vjp(g, wants_grad, residuals, operator):
    g, (saved, pairs), found = np.ascontiguousarray(g), residuals, [None] * len(wants_grad)

    def multiply(numbers):
        """Add the gradients of these rows' products, each as large as the rows, after the rows' other gradients."""
        for (key, x, weight), (rows, matrix) in zip(operator.products, pairs):
            if x in numbers and wants_grad[weight]:
                found[weight] = reductions.product_over_rows(rows, operator.layout.view(g, key))
            if x in numbers and wants_grad[x]:
                there = found[x] if found[x] is not None and found[x].flags.c_contiguous else None
                found[x] = reductions.product(operator.layout.view(g, key), matrix, trans_b=True, into=there)

    left = {x for _, x, _ in operator.products}
    for k, fetch in reversed([*enumerate(operator.fetches)]):
        rows = fetch.numbers[: len(fetch.operator.fetched)]
        multiply(left & {*rows})
        left -= {*rows}
        own = [wants_grad[i] for i in fetch.numbers]
        gradients = aggregate.vjp(g, own, saved[k], operator=fetch.operator, schedule=fetch.schedule,
                                  earlier=[found[i] for i in rows])
        for i, d in zip(fetch.numbers, gradients):
            if d is not None and found[i] is not None and d is not found[i]:
                d = np.add(found[i], d, out=found[i])
            found[i] = d
    multiply(left)
    return found


tape.primitive("relations", _forward, _vjp)


def _piece(wants_grad, flat, place, shape):
    return flat[place].reshape(shape), (flat.shape,)


def _piece_vjp(g, wants_grad, residuals, place, shape):
    return (SliceGradient(place, g.reshape(-1), residuals[0]),)


tape.primitive("piece", _piece, _piece_vjp)


def add_up(fetches: list[list[Summand]], products: list[Product]) -> dict[Key, Tensor]:
    """Return {key: sum}, which adds up the aggregations of calls and products. Collective, forward and backward.

    Parameters
    ----------
    fetches : list of list of (LayerGraph, key, Call)
        One list per fetch, whose graphs are relations of one schedule. Rows that several calls share travel once.
    products : list of (key, x, weight)
        The product x W, (n, n_in) by (n_in, n_out), is added to the sum of `key`.

    Raises
    ------
    ShapeError
        Two summands of a key differ in shape, or the summands have no common float dtype.
    """
    if [*map(len, fetches)] == [1] and not products:
        ((graph, key, call),), = fetches
        if graph.has_own_exchange or not isinstance(graph.schedule.plan.local, Bundle):
            return {key: aggregate.aggregate(graph.schedule, call.operator, call.inputs, graph.edge_sums())}
    numbering, drafts = _Numbering(), [_Draft() for _ in fetches]
    for draft, calls in zip(drafts, fetches):
        draft.number_inputs(numbering, calls)
    products = [(key, in_table(x) if x.dtype == weight.dtype and x.ndim == 2 else x, weight)
                for key, x, weight in products]
    pairs = [(key, numbering.shared(x), numbering.separate(weight)) for key, x, weight in products]
    outputs: list[tuple[Key, tuple[int, ...], np.dtype[Any]]] = [
        (key, (x.shape[0], weight.shape[1]), x.dtype) for key, x, weight in products]
    outputs += [(key, *call.operator.output(call.inputs)) for calls in fetches for _, key, call in calls]
    layout, captured = Layout.of(outputs), list[Node | Tensor]()
    made = [draft.finish(len(numbering.tensors), captured, layout) for draft in drafts]
    flat = tape.apply("relations", *numbering.tensors, sinks=captured, placement="rows",
                      operator=Sums(made, pairs, layout))
    if len(layout.places) == 1:
        return {key: tape.apply("reshape", flat, placement="rows", shape=shape)
                for key, (_, shape) in layout.places.items()}
    return {key: tape.apply("piece", flat, placement="rows", place=place, shape=shape)
            for key, (place, shape) in layout.places.items()}


class _Numbering:
    """Numbers of the inputs of a primitive. Rows that several calls take are one input with one gradient."""

    def __init__(self):
        self.tensors, self._numbers = [], {}

    def shared(self, x):
        if id(x) not in self._numbers:
            self._numbers[id(x)] = self.separate(x)
        return self._numbers[id(x)]

    def separate(self, x):
        self.tensors.append(x)
        return len(self.tensors) - 1


class _Draft:
    """A fetch whose inputs are being numbered: first the inputs of all fetches, then the captured values."""

    def number_inputs(self, numbering, calls):
        """Number the calls' inputs, the fetched rows first."""
        self.calls, self.schedule = calls, calls[0][0].schedule
        rows = {id(x): x for _, _, call in calls for x in call.inputs[: len(call.operator.fetched)]}
        self.numbers, self.own = [numbering.shared(x) for x in rows.values()], []
        self.fetched, position = self._kinds(rows), {key: k for k, key in enumerate(rows)}
        for _, _, call in calls:
            n = len(call.operator.fetched)
            others = [numbering.separate(x) for x in call.inputs[n:]]
            start = len(self.numbers)
            self.own.append([*(position[id(x)] for x in call.inputs[:n]), *range(start, start + len(others))])
            self.numbers += others

    def _kinds(self, rows):
        """Return the kind of each fetched tensor; raise a ConfigError if bfloat16 rows are also used as scores."""
        kinds = {}
        for _, _, call in self.calls:
            for x, kind in zip(call.inputs, call.operator.fetched):
                kinds.setdefault(id(x), set()).add(kind)
        if self.schedule.row_format.is_narrow and {ROWS, SCORES} in kinds.values():
            raise ConfigError(f"rows {self.schedule.row_format.name}: a tensor is given both as rows that are gathered "
                              "and as scores: give a copy of it")
        return tuple(ROWS if ROWS in kinds[key] else SCORES for key in rows)

    def finish(self, n_inputs, captured, layout):
        """Return the Fetch, and append its captured values to `captured`, the list for all fetches."""
        members, first = [], len(captured)
        for (graph, key, call), own in zip(self.calls, self.own):
            start = len(self.numbers)
            self.numbers += range(n_inputs + len(captured), n_inputs + len(captured) + len(call.operator.captured))
            captured += call.operator.captured
            numbers = [*own, *range(start, len(self.numbers))]
            members.append(Member(graph.relation_index, key, call.operator, numbers, graph.edge_sums()))
        operator = Fetched(members, self.fetched, tuple(captured[first:]), layout)
        return Fetch(operator, self.schedule, self.numbers)

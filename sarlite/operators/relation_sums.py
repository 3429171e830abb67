"""Sum of the aggregations over several relations, as one tape primitive ("relations").

A layer of a `HeteroGraph` adds up, for each destination type, the aggregations over all relations into that type.
`add_up` computes the sums of all destination types together:

- Relations with the same source type share a *fetch*: one pass of a schedule over blocks, which brings each source row
  once. A block is a `Bundle`, with one set of edges for each relation. Each relation's share of a fetch is a `Member`.
- All members add to views of one flat array, which is the output of the primitive. So a sum over relations, and its
  gradient, is in memory only once. A `Layout` holds the position of each destination type's sum in the flat array.
- A summand may also be a product x W of rows and a weight, such as that of a self loop.

The tensors that the primitive takes are numbered. Members and products name their inputs by these numbers.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sarlite import tape
from sarlite.errors import ConfigError, ShapeError
from sarlite.numerics import reductions
from sarlite.numerics.edge_sums import EdgeSums, FloatSum
from sarlite.operators import aggregate
from sarlite.operators.contract import ROWS, SCORES, Context, Operator
from sarlite.operators.layer_contract import LayerContract
from sarlite.operators.operator_table import Call
from sarlite.schedule.schedule import Schedule
from sarlite.structure.block import Bundle, Edges
from sarlite.tape import Tensor
from sarlite.tape.primitives import Node
from sarlite.tape.recording import retained
from sarlite.tape.summands import SliceGradient
from sarlite.tape.table_rows import in_table
from sarlite.types import Array, ArrayDType, T

Key = Hashable
"""Key of an output: a destination type, or a relation."""

Summand = tuple[LayerContract, Key, Call]
"""(relation, key of the output that the call's result is added to, call)"""

Product = tuple[Key, Tensor, Tensor]
"""(key of the output that x W is added to, rows x, weight W)"""


class Member(NamedTuple):
    """Operator of one relation among the relations that share a fetch (an exchange of source rows), with the positions of its
    inputs among the inputs of the fetch.

    Attributes
    ----------
    relation_index : int
        Index of the relation's set of edges in a `Bundle`.
    key : hashable
        Key of the output that the member adds to.
    operator : Operator
    inputs : list of int
        Indices of the operator's inputs, and then of its captured values, in the inputs and captured values of the
        fetch.
    sums : EdgeSums
        Factory of the relation's accumulators.
    """

    relation_index: int
    key: Key
    operator: Operator
    inputs: list[int]
    sums: EdgeSums

    def select(self, values: Sequence[T]) -> list[T]:
        """Return the items of `values` that belong to the inputs of this relation's operator. `values` has an item for each input of
        the fetch, an exchange of source rows that several relations share.

        `values` may hold a prefix of the inputs, such as the fetched rows alone; then indices past the end are skipped.
        """
        return [values[i] for i in self.inputs if i < len(values)]


class Layout(NamedTuple):
    """Place of each output in one flat array, so that one tape primitive can return all of them. An output is the sum over all
    relations into one node type.

    Attributes
    ----------
    positions : dict of key to (slice, shape)
        For each output, its slice of the flat array and its shape.
    size : int
        Length of the flat array.
    dtype : dtype
        Dtype of the flat array.
    """

    positions: dict[Key, tuple[slice, tuple[int, ...]]]
    size: int
    dtype: ArrayDType

    @classmethod
    def of(cls, outputs: list[tuple[Key, tuple[int, ...], ArrayDType]]) -> "Layout":
        """Return the Layout (place of each output in one flat array) of `outputs`, a list of (key, shape, dtype) with an item for
        each relation. Outputs with the same key are added, so they share a place.

        Raises
        ------
        ShapeError
            The dtypes differ or are not float, or the shapes of one key differ.
        """
        if len({dtype for *_, dtype in outputs}) > 1 or outputs[0][2].kind != "f":
            listed = ", ".join(sorted({f"{dtype} into {key}" for key, _, dtype in outputs}))
            raise ShapeError(f"relations that are added up: {listed}: one float dtype is needed, as by astype")
        positions: dict[Key, tuple[slice, tuple[int, ...]]] = {}
        size = 0
        for key, shape, _ in outputs:
            if key not in positions:
                positions[key] = slice(size, size + int(np.prod(shape))), shape
                size = positions[key][0].stop
            elif positions[key][1] != shape:
                rows = f"rows of {positions[key][1][1:]} and of {shape[1:]}"
                raise ShapeError(f"relations into {key!r}: their messages make {rows}")
        return cls(positions, size, outputs[0][2])

    def view(self, flat: Array, key: Key) -> Array:
        """Return the view of the array `flat` that holds the output `key`, in the output's shape."""
        position, shape = self.positions[key]
        return flat[position].reshape(shape)


@dataclass(frozen=True, eq=False)
class Fetched:
    """Operator for all relations that share an exchange of source rows: for each block of edges it runs the operator of every
    relation (a `Member`).

    The members add to views of the flat `Context.out`.

    Attributes
    ----------
    members : list of Member
    fetched : tuple of {"rows", "scores"}
        Kind of each fetched input; see `Operator`.
    captured : tuple of Node or Tensor
        Captured values of all members.
    layout : Layout
        Positions of the outputs in the flat array.
    """

    members: list[Member]
    fetched: tuple[str, ...]
    captured: tuple[Node | Tensor, ...]
    layout: Layout

    def output(self, arrays):
        return (self.layout.size,), self.layout.dtype

    def needs_rows(self, context):
        members = [(member.operator, self.member_context(member, context)) for member in self.members]
        return any(operator.needs_rows(of_member) for operator, of_member in members if any(of_member.wants_grad))

    def member_context(self, member: Member, context: Context) -> Context:
        """Return the settings (`Context`) for `member`, the operator of one relation: `context` with the gradient flags of the
        operator's inputs, its accumulators, and the view of the output that it adds to.
        """
        out = None if context.out is None else self.layout.view(context.out, member.key)
        return context._replace(wants_grad=member.select(context.wants_grad), sums=member.sums, single_block=False,
                                keeps_rows=True, out=out)

    def forward(self, inputs, context):
        return _FetchedForward(self, inputs, context)

    def backward(self, residuals, g, context):
        return _FetchedBackward(self, residuals, g, context)


class _FetchedForward:
    def __init__(self, operator, inputs, context):
        self.operator, contexts = operator, [operator.member_context(each, context) for each in operator.members]
        self.passes = [member.operator.forward(member.select(inputs), of_member)
                       for member, of_member in zip(operator.members, contexts)]
        self.out, self.views = context.out, [of_member.out for of_member in contexts]

    def sweeps(self, rows):
        yield rows

    def add(self, block, rows):
        for member, member_pass in zip(self.operator.members, self.passes):
            member_pass.add(sets_of(block)[member.relation_index], member.select(rows))

    def finish(self):
        residuals = []
        for member_pass, view in zip(self.passes, self.views):
            out, member_residuals = member_pass.finish()
            if out is not view:
                view += out
            residuals.append(member_residuals)
        return self.out, residuals


class _FetchedBackward:
    """Backward pass of `Fetched`: it runs the backward passes of the relations' operators that have a wanted gradient."""

    def __init__(self, operator, residuals, g, context):
        self.operator, self.passes = operator, []
        for k, member in enumerate(operator.members):
            member_context = operator.member_context(member, context)
            saved, residuals[k] = residuals[k], residuals[k] if retained() else None
            if any(member_context.wants_grad):
                member_g = operator.layout.view(g, member.key)
                member_g.flags.writeable = False  # other members and products read the same gradient
                self.passes.append((member, member.operator.backward(saved, member_g, member_context)))
        self.accumulators = [self._joined(i) for i in range(len(operator.fetched))]

    def _joined(self, i: int) -> FloatSum | None:
        """Return one accumulator for the gradient of input number `i` of the fetch, joined from the accumulators of all relations
        that use this input; None if its gradient is not wanted.
        """
        accumulators = [member_pass.accumulators[member.inputs.index(i)]
                        for member, member_pass in self.passes if i in member.inputs]
        first, *others = [accumulator for accumulator in accumulators if accumulator is not None] or [None]
        return first and first.join(others)

    def add(self, block, rows, accumulators):
        for member, member_pass in self.passes:
            member_pass.add(sets_of(block)[member.relation_index], None if rows is None else member.select(rows),
                            member.select(accumulators))

    def finish(self):
        n_fetched = len(self.operator.fetched)
        gradients = {i: None for member in self.operator.members for i in member.inputs if i >= n_fetched}
        for member, member_pass in self.passes:
            gradients |= dict(zip([i for i in member.inputs if i >= n_fetched], member_pass.finish(), strict=True))
        return [gradients[i] for i in sorted(gradients)]


def sets_of(block: Edges | Bundle) -> tuple[Edges, ...]:
    """Return the edges of a block, one `Edges` for each relation: the items of a `Bundle`, or a tuple of the block itself."""
    return block if isinstance(block, Bundle) else (block,)


class SharedFetch(NamedTuple):
    """Operator and schedule of one exchange of source rows between ranks (a fetch) that several relations share.

    Attributes
    ----------
    operator : Fetched
    schedule : Schedule
        Schedule whose blocks are bundles with a set of edges for each relation.
    numbers : list of int
        Number of each input and captured value of `operator` among the tensors of the primitive "relations".
    """

    operator: Fetched
    schedule: Schedule
    numbers: list[int]


class Sums(NamedTuple):
    """The terms that the primitive "relations" adds: sums over fetched rows, and products of local rows with weights.

    Attributes
    ----------
    fetches : list of SharedFetch
    products : list of (key, number of x, number of W)
        The product x W, (n, n_in) by (n_in, n_out), is added to the output `key`.
    layout : Layout
        Positions of the outputs in the flat array.
    """

    fetches: list[SharedFetch]
    products: list[tuple[Key, int, int]]
    layout: Layout


def _forward(wants_grad, *arrays, operator):
    flat, saved = np.zeros(operator.layout.size, operator.layout.dtype), []
    for key, x, weight in operator.products:
        reductions.product(arrays[x], arrays[weight], into=operator.layout.view(flat, key))
    for fetch in operator.fetches:
        inputs = [arrays[i] for i in fetch.numbers if i < len(arrays)]
        saved.append(aggregate.forward([wants_grad[i] for i in fetch.numbers], *inputs, operator=fetch.operator,
                                       schedule=fetch.schedule, out=flat)[1])
    pairs = [(arrays[x] if wants_grad[weight] else None, arrays[weight] if wants_grad[x] else None)
             for _, x, weight in operator.products]
    return flat, (saved, pairs)


def _vjp(g, wants_grad, residuals, operator):
    g, (saved, pairs), gradients = np.ascontiguousarray(g), residuals, [None] * len(wants_grad)

    def pull_products(numbers: set[int]) -> None:
        """Compute the gradients of x and W of each product x W whose x is an input with a number in `numbers`, and store them in
        the list `gradients`. The gradient of x is added to earlier gradients of x in place.
        """
        for (key, x, weight), (rows, matrix) in zip(operator.products, pairs):
            if x in numbers and wants_grad[weight]:
                gradients[weight] = reductions.product_over_rows(rows, operator.layout.view(g, key))
            if x in numbers and wants_grad[x]:
                earlier = gradients[x] if gradients[x] is not None and gradients[x].flags.c_contiguous else None
                gradients[x] = reductions.product(operator.layout.view(g, key), matrix, trans_b=True, into=earlier)

    remaining = {x for _, x, _ in operator.products}
    for k, fetch in reversed([*enumerate(operator.fetches)]):
        rows = fetch.numbers[: len(fetch.operator.fetched)]
        pull_products(remaining & {*rows})  # just before the fetch, whose gradients of the rows are added in place
        remaining -= {*rows}
        fetch_wants_grad = [wants_grad[i] for i in fetch.numbers]
        pulled = aggregate.vjp(g, fetch_wants_grad, saved[k], operator=fetch.operator, schedule=fetch.schedule,
                               earlier=[gradients[i] for i in rows])
        for i, d in zip(fetch.numbers, pulled):
            if d is not None and gradients[i] is not None and d is not gradients[i]:
                d = np.add(gradients[i], d, out=gradients[i])
            gradients[i] = d
    pull_products(remaining)
    return gradients


tape.primitive("relations", _forward, _vjp)


def _piece(wants_grad, flat, position, shape):
    return flat[position].reshape(shape), (flat.shape,)


def _piece_vjp(g, wants_grad, residuals, position, shape):
    return (SliceGradient(position, g.reshape(-1), residuals[0]),)


tape.primitive("piece", _piece, _piece_vjp)


def add_up(fetches: list[list[Summand]], products: list[Product]) -> dict[Key, Tensor]:
    """Return {key: sum} of all aggregations and products with this key, such as a node type. `fetches` has a list of (relation,
    key, Call) for each exchange of source rows; `products` lists (key, x, W), whose term is x W. Collective, forward and backward.

    Parameters
    ----------
    fetches : list of list of (relation, key, Call)
        One list for each fetch. The relations of a list have the same schedule, and so the same source rows. A tensor
        that several calls of a list take is fetched once.
    products : list of (key, x, weight)
        The product x W, (n, n_in) by (n_in, n_out), is added to the sum of `key`.

    Returns
    -------
    dict of key to Tensor (n_dst, ...)

    Raises
    ------
    ShapeError
        Two summands of a key differ in shape, or the summands have no common float dtype.
    ConfigError
        With narrow rows, a tensor is used as rows by one call and as scores by another call of a fetch.
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
    outputs: list[tuple[Key, tuple[int, ...], ArrayDType]] = [
        (key, (x.shape[0], weight.shape[1]), x.dtype) for key, x, weight in products]
    outputs += [(key, *call.operator.output(call.inputs)) for calls in fetches for _, key, call in calls]
    layout, captured = Layout.of(outputs), list[Node | Tensor]()
    finished = [draft.finish(len(numbering.tensors), captured, layout) for draft in drafts]
    flat = tape.apply("relations", *numbering.tensors, sinks=captured, placement="rows",
                      operator=Sums(finished, pairs, layout))
    if len(layout.positions) == 1:
        return {key: tape.apply("reshape", flat, placement="rows", shape=shape)
                for key, (_, shape) in layout.positions.items()}
    return {key: tape.apply("piece", flat, placement="rows", position=position, shape=shape)
            for key, (position, shape) in layout.positions.items()}


class _Numbering:
    """List of the input tensors of the primitive "relations". Its methods append a tensor and return its position."""

    def __init__(self):
        self.tensors, self._numbers = [], {}

    def shared(self, x: Tensor) -> int:
        """Return the position of `x` among the inputs, appended at its first use, so that all uses add to one gradient."""
        if id(x) not in self._numbers:
            self._numbers[id(x)] = self.separate(x)
        return self._numbers[id(x)]

    def separate(self, x: Tensor) -> int:
        """Append `x` to the inputs, even if it is among them already, and return its new position, so that this use gets a gradient of
        its own.
        """
        self.tensors.append(x)
        return len(self.tensors) - 1


class _Draft:
    """Builder of a `SharedFetch`, the operator of relations that share an exchange of source rows. All builders run `number_inputs`
    before the first runs `finish`, because the numbers of captured values follow the numbers of all inputs.

    Attributes
    ----------
    numbers : list of int
        Numbers of the inputs and, after `finish`, of the captured values.
    member_inputs : list of list of int
        For each call, the positions of its inputs in `numbers`.
    """

    def number_inputs(self, numbering: _Numbering, calls: list[Summand]) -> None:
        """Append the input tensors of `calls`, (relation, output key, Call) each, to the list `numbering`; store their positions in
        `numbers` and `member_inputs`. Inputs that ranks fetch from each other come first.
        """
        self.calls, self.schedule = calls, calls[0][0].schedule
        rows = {id(x): x for _, _, call in calls for x in call.inputs[: len(call.operator.fetched)]}
        self.numbers, self.member_inputs = [numbering.shared(x) for x in rows.values()], []
        self.fetched, position = self._kinds(rows), {key: k for k, key in enumerate(rows)}
        for _, _, call in calls:
            n = len(call.operator.fetched)
            others = [numbering.separate(x) for x in call.inputs[n:]]
            start = len(self.numbers)
            self.member_inputs.append(
                [*(position[id(x)] for x in call.inputs[:n]), *range(start, start + len(others))])
            self.numbers += others

    def _kinds(self, rows: dict[int, Tensor]) -> tuple[str, ...]:
        """Return the kind, "rows" or "scores", of each of the fetched tensors `rows`, {id: tensor}. A tensor that is used as both
        has the kind "rows". If the row format rounds rows, raise a ConfigError for it instead, because scores must not be rounded.
        """
        kinds: dict[int, set[str]] = {}
        for _, _, call in self.calls:
            for x, kind in zip(call.inputs, call.operator.fetched):
                kinds.setdefault(id(x), set()).add(kind)
        if self.schedule.row_format.is_narrow and {ROWS, SCORES} in kinds.values():
            raise ConfigError(f"rows {self.schedule.row_format.name}: a tensor is given both as rows that are gathered "
                              "and as scores: give a copy of it")
        return tuple(ROWS if ROWS in kinds[key] else SCORES for key in rows)

    def finish(self, n_inputs: int, captured: list[Node | Tensor], layout: Layout) -> SharedFetch:
        """Finish building, after `number_inputs` ran for all exchanges: return the `SharedFetch`, the operator that fetches source
        rows once for all its relations. `layout` says where in one flat array each output is. Append to `captured` the tensors that
        the operators use besides the primitive's `n_inputs` inputs; captured[i] becomes input number n_inputs + i.
        """
        members, first = [], len(captured)
        for (graph, key, call), inputs in zip(self.calls, self.member_inputs):
            start = len(self.numbers)
            self.numbers += range(n_inputs + len(captured), n_inputs + len(captured) + len(call.operator.captured))
            captured += call.operator.captured
            inputs = [*inputs, *range(start, len(self.numbers))]
            members.append(Member(graph.relation_index, key, call.operator, inputs, graph.edge_sums()))
        operator = Fetched(members, self.fetched, tuple(captured[first:]), layout)
        return SharedFetch(operator, self.schedule, self.numbers)

"""Aggregation over several relations, in one tape primitive: relations out of one node type are fed by one fetch.

All fetches add to one array, so that the sums over relations, and their gradients, are there once.
"""

from typing import Any, NamedTuple

import numpy as np

from sarlite import tape
from sarlite.errors import ConfigError, ShapeError
from sarlite.graph.block import Bundle
from sarlite.sar import aggregate
from sarlite.sar.aggregate import Operator
from sarlite.sar.operators.table import Call
from sarlite.tape import Tensor, reduce
from sarlite.tape.recording import retained
from sarlite.tape.table_rows import TableRows


class Member(NamedTuple):
    """One relation's part in what is fetched at once.

    Attributes
    ----------
    place : int
        In the bundle.
    key : hashable
        Of the output that the member adds to.
    operator : Operator
    inputs : list of int
        Numbers of the operator's inputs and sinks among those of all members.
    """

    place: int
    key: Any
    operator: Operator
    inputs: list[int]


class Fetched(Operator):
    """The members of one fetch, as one operator over bundles. Inputs below `n_fetched` are rows of sources.

    Outputs are in one flat array, which is given: `add_to`.
    """

    def __init__(self, members, n_fetched):
        self.members, self.n_fetched = members, n_fetched

    def outputs(self, arrays):
        """Return (key, shape, dtype) of the output of each member."""
        return [(member.key, *member.operator.output(self._own(arrays, member, len(arrays))))
                for member in self.members]

    def add_to(self, flat, places):
        """Take the array that outputs are added to; `places` has each key's slice and shape there. Before `begin`."""
        self.places = places
        for member in self.members:
            member.operator.into = self.view(flat, member)

    def view(self, flat, member):
        place, shape = self.places[member.key]
        return flat[place].reshape(shape)

    def narrowed(self, rows):
        """A tensor that several members gather is narrowed once."""
        gathered = {member.inputs[0] for member in self.members if member.operator.narrow}
        return tuple(self.gathered(x) if i in gathered else x for i, x in enumerate(rows))

    def begin(self, needs, arrays, keep):
        for member in self.members:
            member.operator.begin([needs[i] for i in member.inputs], self._own(arrays, member, len(arrays)), keep)
        self.needs_rows = any(member.operator.needs_rows for member in self.members)

    def look_ahead(self, schedule, rows):
        for member in self.members:
            member.operator.look_ahead(OfMember(schedule, member.place), self._rows(rows, member))

    def forward(self, block, rows):
        return [member.operator.forward(edges, self._rows(rows, member)) for member, edges in self._each(block)]

    def end(self):
        """Return nothing: the array that was given has it."""
        for member in self.members:
            into, out = member.operator.into, member.operator.end()
            if out is not into:
                into += out
            member.operator.into = None

    def begin_backward(self, g):
        for member in self.members:
            own = self.view(g, member)
            own.flags.writeable = False  # other members and products read it too
            member.operator.begin_backward(own)
        for x in range(self.n_fetched):
            takes = [member for member in self.members if x in member.inputs]
            (operator, place), *others = [(member.operator, member.inputs.index(x)) for member in takes]
            operator.join(place, others)

    def accumulator(self, *about):
        return self.members[0].operator.accumulator(*about)

    def finished(self, sums, dtype):
        return self.members[0].operator.finished(sums, dtype)

    def backward(self, block, rows, kept, d_rows):
        for k, (member, edges) in enumerate(self._each(block)):
            member.operator.backward(edges, self._rows(rows, member), kept and kept[k], self._rows(d_rows, member))

    def end_backward(self):
        """Gradients by their inputs' and sinks' numbers."""
        found = {}
        for member in self.members:
            numbers = [i for i in member.inputs if i >= self.n_fetched]
            found |= dict(zip(numbers, member.operator.end_backward(), strict=True))
        return [found[number] for number in sorted(found)]

    def flops(self, inputs, out, schedule, **_):
        """Count each member's flops for each value of each edge's message, and its products with weights."""
        blocks, total = schedule.plan.blocks, 0
        for member in self.members:
            n_edges = sum(sets_of(block)[member.place].n_edges for block in blocks)
            _, shape = self.places[member.key]
            total += n_edges * int(np.prod(shape[1:])) * member.operator.flops_per_value
            total += 2 * sum(block.n_src for block in blocks) * getattr(member.operator, "n_weights", 0)
        return total

    def _each(self, block):
        sets = sets_of(block)
        return [(member, sets[member.place]) for member in self.members]

    def _rows(self, arrays, member):
        return None if arrays is None else tuple(self._own(arrays, member, self.n_fetched))

    def _own(self, arrays, member, n):
        """A member's items of the first n."""
        return [arrays[i] for i in member.inputs if i < n]


class OfMember(NamedTuple):
    """A schedule as a member's operator sees it: each block is the member's set of edges."""

    schedule: Any
    place: int

    def run(self, arrays, on_block):
        return self.schedule.run(arrays, lambda block, rows: on_block(sets_of(block)[self.place], rows))


def sets_of(block):
    """The sets of edges of a block: of one relation it is no bundle."""
    return block if isinstance(block, Bundle) else (block,)


class Sums:
    """What is added up, by key: the members of several fetches, and products of rows with weights.

    Parameters
    ----------
    fetches : list of (Fetched, Schedule, numbers of its inputs and sinks)
    products : list of (key, number of x, number of the weight)
        Of key x W is a summand, (n, n_in) by (n_in, n_out).
    """

    def __init__(self, fetches, products):
        self.fetches, self.products = fetches, products

    def lay_out(self, arrays):
        """Find `places`, the slice and the shape of each key in one array, and return that array, zeros."""
        outputs = [(key, (arrays[x].shape[0], arrays[weight].shape[1]), arrays[x].dtype)
                   for key, x, weight in self.products]
        for fetched, _, numbers in self.fetches:
            outputs += fetched.outputs([arrays[i] for i in numbers if i < len(arrays)])
        self._check(outputs)
        self.places, size = {}, 0
        for key, shape, _ in outputs:
            if key not in self.places:
                self.places[key] = slice(size, size + int(np.prod(shape))), shape
                size = self.places[key][0].stop
        return np.zeros(size, outputs[0][2])

    def _check(self, outputs):
        if len({dtype for *_, dtype in outputs}) > 1 or outputs[0][2].kind != "f":
            listed = ", ".join(sorted({f"{dtype} into {key}" for key, _, dtype in outputs}))
            raise ShapeError(f"relations that are added up: {listed}: one float dtype is needed, as by astype")
        shapes = {}
        for key, shape, _ in outputs:
            if shapes.setdefault(key, shape) != shape:
                rows = f"rows of {shapes[key][1:]} and of {shape[1:]}"
                raise ShapeError(f"relations into {key!r}: their messages make {rows}")

    def view(self, flat, key):
        """The output of a key, or its gradient, in an array as `lay_out` makes it."""
        place, shape = self.places[key]
        return flat[place].reshape(shape)

    def passes(self, needs):
        fetched_rows = [numbers[: fetched.n_fetched] for fetched, _, numbers in self.fetches]
        rows = {x for _, x, _ in self.products}.union(*fetched_rows)
        return any(needs[i] for i in rows) + any(need for i, need in enumerate(needs) if i not in rows)

    def flops(self, inputs, out, **_):
        """Count one forward pass: the members' and the products'."""
        products = sum(2 * int(np.prod(inputs[x])) * inputs[weight][1] for _, x, weight in self.products)
        return products + sum(fetched.flops(inputs, out, schedule) for fetched, schedule, _ in self.fetches)


def _forward(needs, *arrays, operator):
    flat, kept = operator.lay_out(arrays), []
    for key, x, weight in operator.products:
        reduce.product(arrays[x], arrays[weight], into=operator.view(flat, key))
    for fetched, schedule, numbers in operator.fetches:
        fetched.add_to(flat, operator.places)
        own = [arrays[i] for i in numbers if i < len(arrays)]
        kept.append(aggregate.forward([needs[i] for i in numbers], *own, operator=fetched, schedule=schedule)[1])
    pairs = [(arrays[x] if needs[weight] else None, arrays[weight] if needs[x] else None)
             for _, x, weight in operator.products]
    return flat, (kept, pairs)


def _vjp(g, needs, residuals, into, operator):
    g, found, (kept, pairs) = np.ascontiguousarray(g), [d if need else None for need, d in zip(needs, into)], residuals

    def multiply(numbers):
        """The gradients of these rows' products: no sooner than the rows' others, as each is as large as the rows."""
        for (key, x, weight), (rows, matrix) in zip(operator.products, pairs):
            if x in numbers and needs[weight]:
                found[weight] = reduce.product_over_rows(rows, operator.view(g, key))
            if x in numbers and needs[x]:
                there = found[x] if found[x] is not None and found[x].flags.c_contiguous else None
                found[x] = reduce.product(operator.view(g, key), matrix, trans_b=True, into=there)

    left = {x for _, x, _ in operator.products}
    for k, (fetched, schedule, numbers) in reversed([*enumerate(operator.fetches)]):
        multiply(left & {*numbers[: fetched.n_fetched]})
        left -= {*numbers[: fetched.n_fetched]}
        own, kept[k] = kept[k], kept[k] if retained() else None
        own_needs, own_into = ([values[i] for i in numbers] for values in (needs, found))
        d_own = aggregate.vjp(g, own_needs, own, own_into, operator=fetched, schedule=schedule)
        del own, own_into
        if not retained():
            fetched.members = []  # what the operators hold is not needed while the other fetches' gradients are found
        for i, d in zip(numbers, d_own):
            # an operator need not add to what is there
            if d is not None and found[i] is not None and found[i] is not d:
                d = np.add(found[i], d, out=found[i])
            found[i] = d
    multiply(left)
    return found


tape.primitive("relations", _forward, _vjp, owned=tape.Owned.YES, adds=True, takes_rows=True)


def _piece(needs, flat, place, shape):
    return flat[place].reshape(shape), (flat.shape,)


def _piece_vjp(g, needs, residuals, into, place, shape):
    d = np.zeros(residuals[0], g.dtype) if into[0] is None else into[0]
    d[place] += g.reshape(-1)
    return (d,)


tape.primitive("piece", _piece, _piece_vjp, owned=tape.Owned.YES, adds=True)


def add_up(fetches: list[list[tuple[Any, Any, Call]]], products: list[tuple[Any, Tensor, Tensor]]) -> dict[Any, Tensor]:
    """Return {key: sum} of what calls aggregate and of products. Collective, forward and backward.

    Parameters
    ----------
    fetches : list of list of (LayerGraph, key, Call)
        A list a fetch, whose graphs are relations of one schedule. A tensor that several calls have as rows travels
        once.
    products : list of (key, x, weight)
        x W is added, (n, n_in) by (n_in, n_out).

    Raises
    ------
    ShapeError
        What is added up has other shapes, or not all of it has one float dtype.
    """
    if [*map(len, fetches)] == [1] and not products:
        ((graph, key, call),), = fetches
        if graph.apart or not isinstance(graph.plan.local, Bundle):
            return {key: graph.apply(call)}
    numbered, made = _Inputs(), []
    for calls in fetches:
        rows = list({id(x): x for _, _, call in calls for x in call.inputs[: call.n_fetched]}.values())
        numbers, members = [numbered.shared(x) for x in rows], []
        at = {id(x): k for k, x in enumerate(rows)}
        for graph, key, call in calls:
            others = [numbered.alone(x) for x in call.inputs[call.n_fetched :]]
            own = [at[id(x)] for x in call.inputs[: call.n_fetched]]
            own += range(len(numbers), len(numbers) + len(others))
            numbers += others
            members.append((graph, key, call, own))
        made.append((members, len(rows), calls[0][0].schedule, numbers))
    for _, x, weight in products:
        if isinstance(x, TableRows) and x.dtype != weight.dtype:
            x.gathered()
    pairs = [(key, numbered.shared(x), numbered.alone(weight)) for key, x, weight in products]
    operator = Sums([], pairs)
    sinks: list[Any] = []
    for members, n_fetched, schedule, numbers in made:
        found = []
        for graph, key, call, own in members:
            own += range(len(numbers), len(numbers) + len(call.sinks))
            numbers += range(len(numbered.tensors) + len(sinks), len(numbered.tensors) + len(sinks) + len(call.sinks))
            sinks += call.sinks
            found.append(Member(graph.place, key, call.make(), own))
            if schedule.rows != "float32":
                aggregate.narrow(schedule.rows, found[-1].operator, call.inputs[0].dtype)
        for (_, _, call, _), member in zip(members, found):
            aggregate.gather(member.operator, call.inputs)
        _check_narrow(found, n_fetched, schedule.rows)
        operator.fetches.append((Fetched(found, n_fetched), schedule, numbers))
    flat = tape.apply("relations", *numbered.tensors, sinks=sinks, operator=operator)
    if len(operator.places) == 1:
        return {key: flat.reshape(*shape) for key, (_, shape) in operator.places.items()}
    return {key: tape.apply("piece", flat, place=place, shape=shape) for key, (place, shape) in operator.places.items()}


def _check_narrow(members, n_fetched, rows):
    """Raise a ConfigError where members take one tensor both as rows that edges gather, narrow, and as others."""
    gathered = {member.inputs[0] for member in members if member.operator.narrow}
    if any(i in gathered for member in members for i in member.inputs[1:] if i < n_fetched):
        raise ConfigError(f"rows {rows}: a tensor is given both as rows that are gathered and as scores: "
                          "give a copy of it")


class _Inputs:
    """The inputs of a primitive by number. Rows that several take are one input, so that they have one gradient."""

    def __init__(self):
        self.tensors, self._numbers = [], {}

    def shared(self, x):
        if id(x) not in self._numbers:
            self._numbers[id(x)] = self.alone(x)
        return self._numbers[id(x)]

    def alone(self, x):
        self.tensors.append(x)
        return len(self.tensors) - 1

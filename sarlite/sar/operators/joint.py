"""Sums over relations out of several node types, in one array and one tape primitive: each type's fetch after the other adds to it."""

import numpy as np

from sarlite import tape
from sarlite.errors import ShapeError
from sarlite.sar import aggregate
from sarlite.sar.operators import relations
from sarlite.tape import reduce
from sarlite.tape.engine import retained


class Joint:
    """What is added up, by key: the members of several fetches, and products of rows with weights.

    So the sums and their gradients are there once. Apart, each fetch's would be arrays of their own, beside those that add them up.

    Parameters
    ----------
    parts : list of (Relations, Schedule, numbers of its inputs)
        Each member has a `shape`.
    products : list of (key, number of x, number of the weight)
    """

    def __init__(self, parts, products):
        self.parts, self.products = parts, products

    def lay_out(self, arrays):
        """Find `places`, the slice and the shape of each key in one array, and return that array, zeros."""
        shapes = [(key, (len(arrays[x]), arrays[weight].shape[1])) for key, x, weight in self.products]
        shapes += [found for part, _, numbers in self.parts for found in part.shapes([arrays[i] for i in numbers])]
        self.places, size = {}, 0
        for key, shape in shapes:
            if key not in self.places:
                self.places[key] = slice(size, size + int(np.prod(shape))), shape
                size = self.places[key][0].stop
            elif shape != self.places[key][1]:
                raise ShapeError(f"relations into {key!r}: their messages make rows of {self.places[key][1][1:]} and of {shape[1:]}")
        return np.zeros(size, arrays[0].dtype)

    def view(self, flat, key):
        """The output of a key, or its gradient, in an array as `lay_out` makes it."""
        place, shape = self.places[key]
        return flat[place].reshape(shape)

    def passes(self, needs):
        rows = {x for _, x, _ in self.products}.union(*(numbers[: part.n_fetched] for part, _, numbers in self.parts))
        return any(needs[i] for i in rows) + any(need for i, need in enumerate(needs) if i not in rows)

    def flops(self, inputs, out, **_):
        """Count one forward pass: the members' and the products'."""
        products = sum(2 * int(np.prod(inputs[x])) * inputs[weight][1] for _, x, weight in self.products)
        return products + sum(part.flops([inputs[i] for i in numbers], out, schedule) for part, schedule, numbers in self.parts)


def _forward(needs, *arrays, operator):
    flat, kept = operator.lay_out(arrays), []
    for key, x, weight in operator.products:
        reduce.product(arrays[x], arrays[weight], into=operator.view(flat, key))
    for part, schedule, numbers in operator.parts:
        part.add_to(flat, operator.places)
        own = [arrays[i] for i in numbers]
        kept.append(aggregate.forward([needs[i] for i in numbers], *own, operator=part, schedule=schedule)[1])
    pairs = [(arrays[x] if needs[weight] else None, arrays[weight] if needs[x] else None) for _, x, weight in operator.products]
    return flat, (kept, pairs)


def _vjp(g, needs, residuals, into, operator):
    g, found, (kept, pairs) = np.ascontiguousarray(g), [d if need else None for need, d in zip(needs, into)], residuals

    def multiply(numbers):
        """The gradients of the products of these rows: no sooner than the rows' others, since each is as large as the rows."""
        for (key, x, weight), (rows, matrix) in zip(operator.products, pairs):
            if x in numbers and needs[weight]:
                found[weight] = reduce.product_over_rows(rows, operator.view(g, key))
            if x in numbers and needs[x]:
                there = found[x] if found[x] is not None and found[x].flags.c_contiguous else None
                found[x] = reduce.product(operator.view(g, key), matrix, trans_b=True, into=there)

    left = {x for _, x, _ in operator.products}
    for k, (part, schedule, numbers) in reversed([*enumerate(operator.parts)]):
        multiply(left & {*numbers[: part.n_fetched]})
        left -= {*numbers[: part.n_fetched]}
        own, kept[k] = kept[k], kept[k] if retained() else None
        d_own = aggregate.vjp(g, [needs[i] for i in numbers], own, [found[i] for i in numbers], operator=part, schedule=schedule)
        del own
        for i, d in zip(numbers, d_own):
            found[i] = d
    multiply(left)
    return found


tape.primitive("joint", _forward, _vjp, owned=tape.Owned.YES, adds=True)


def add_up(parts, pairs):
    """Return {key: Tensor}. Collective, forward and backward.

    Parameters
    ----------
    parts : list of (Schedule, [(place in the bundle, key, Member)])
        Each member has a `shape`.
    pairs : list of (key, x, weight)
        x W is added, (n, n_in) by (n_in, n_out).

    Raises
    ------
    ShapeError
        What is added up has other shapes, or not all inputs have one float dtype.
    """
    inputs, rows, made, products = [], {}, [], []

    def taken(x, shared):
        """The number of an input; rows that several take are one, so that their gradient is."""
        if not shared or id(x) not in rows:
            inputs.append(x)
            if shared:
                rows[id(x)] = len(inputs) - 1
        return rows[id(x)] if shared else len(inputs) - 1

    for schedule, found in parts:
        part, own, _ = relations.gathered(found)
        made.append((part, schedule, [taken(x, k < part.n_fetched) for k, x in enumerate(own)]))
    for key, x, weight in pairs:
        products.append((key, taken(x, True), taken(weight, False)))
    if len({x.dtype for x in inputs}) > 1 or not reduce.is_float(inputs[0]):
        found = [(key, x) for _, members in parts for _, key, member in members for x in (*member.fetched, *member.others)]
        found += [(key, x) for key, *pair in pairs for x in pair]
        listed = ", ".join(sorted({f"{x.dtype} into {key}" for key, x in found}))
        raise ShapeError(f"relations that are added up: {listed}: one float dtype is needed, as by astype")
    operator = Joint(made, products)
    flat = tape.apply("joint", *inputs, operator=operator)
    return relations.pieces(flat, operator.places)

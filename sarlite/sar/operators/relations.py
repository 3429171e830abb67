"""Aggregation over several relations out of one node type: one operator a relation, all of them fed by one fetch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sarlite import tape
from sarlite.errors import ShapeError
from sarlite.graph.block import Bundle
from sarlite.sar.aggregate import Operator, aggregate
from sarlite.sar.operators import fn
from sarlite.sar.operators.attention import Attend, AttendLinear
from sarlite.sar.operators.custom import Custom, weighted
from sarlite.sar.operators.extremum import Extremum
from sarlite.sar.operators.reducers import REDUCERS
from sarlite.sar.operators.sums import Sum, Transformed
from sarlite.sar.operators.table import SUMS, one_dtype
from sarlite.tape import Tensor
from sarlite.tape.engine import grad_enabled

# ---- what a message of one relation becomes


class Member(NamedTuple):
    """One relation's part in a bundle.

    Attributes
    ----------
    operator : Operator
    fetched : list of Tensor
        Rows of the source type; a tensor that several members have travels once.
    others : list of Tensor
        What the operator takes beside them.
    sinks : sequence
        Learnable values that a function uses, which `end_backward` returns gradients of after those of `others`.
    """

    operator: Operator
    fetched: list[Tensor]
    others: list[Tensor]
    sinks: Any = ()

    @property
    def shape(self) -> tuple[int, ...] | None:
        """As of `Operator`."""
        return self.operator.shape((*self.fetched, *self.others))


def _sum(view, message, reducer):
    (x,) = view.check("fn.copy_src", {"x": message.x})
    return Member(Sum(view.n_dst, False, *view.scales(reducer)), [x], [])


def _extremum(view, message, reducer):
    (x,) = view.check("fn.copy_src", {"x": message.x})
    return Member(Extremum(view.n_dst, 1 if reducer == "max" else -1, view.column_ids, view.itype), [x], [])


def _linear(view, message, reducer):
    x, weight = linear_inputs(view, message)
    return Member(Transformed(view.n_dst, *view.scales(reducer)), [x], [weight])


def linear_inputs(view, message):
    """Return x and the weight of a `fn.linear`, once they fit."""
    (x,), weight = view.check("fn.linear", {"x": message.x}), message.weight
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != len(weight):
        raise ShapeError(f"fn.linear: x {x.shape} and weight {weight.shape} are not (n_src, n_in) and (n_in, n_out)")
    one_dtype("fn.linear", x=x, weight=weight)
    return x, weight


def _attend(view, message, reducer):
    z, src, dst = view.check("fn.attend", {"z": message.z, "src": message.src}, {"dst": message.dst})
    if z.ndim != 3 or src.shape[1:] != z.shape[1:2] or dst.shape[1:] != z.shape[1:2]:
        shapes = f"z {z.shape}, src {src.shape} and dst {dst.shape}"
        raise ShapeError(f"fn.attend: {shapes} are not (n_src, n_heads, n_feat), (n_src, n_heads) and (n_dst, n_heads)")
    one_dtype("fn.attend", z=z, src=src, dst=dst)
    return Member(Attend(message.slope, message.dropout, message.key, view.dst_ids, view.n_nodes), [z, src], [dst])


def _attend_linear(view, message, reducer):
    x, dst = view.check("fn.attend_linear", {"x": message.x}, {"dst": message.dst})
    weight, src_weight = message.weight, message.src_weight
    fits = x.ndim == weight.ndim == src_weight.ndim == dst.ndim == 2 and x.shape[1] == len(weight) == len(src_weight)
    if not fits or dst.shape[1] != src_weight.shape[1] or not dst.shape[1] or weight.shape[1] % dst.shape[1]:
        shapes = f"x {x.shape}, weight {weight.shape}, src_weight {src_weight.shape} and dst {dst.shape}"
        needed = "(n_src, n_in), (n_in, n_heads * n_feat), (n_in, n_heads) and (n_dst, n_heads)"
        raise ShapeError(f"fn.attend_linear: {shapes} are not {needed}")
    one_dtype("fn.attend_linear", x=x, weight=weight, src_weight=src_weight, dst=dst)
    operator = AttendLinear(message.slope, message.dropout, message.key, view.dst_ids, view.n_nodes)
    return Member(operator, [x], [weight, src_weight, dst])


def _mul_edge(view, message, reducer):
    x, weight = view.check("fn.mul_edge", {"x": message.x}, edge={"weight": message.weight})
    one_dtype("fn.mul_edge", x=x, weight=weight)
    return Member(Sum(view.n_dst, True, *view.scales(reducer)), [x], [weight])


def _extremum_of_products(view, message, reducer):
    return _function(view, weighted(message), reducer)


def _function(view, message, reducer):
    names = tuple(message.src), tuple(message.dst), tuple(message.edge)
    operator = Custom(message.function, names, REDUCERS[reducer](view), view.dst_ids, view.n_nodes)
    inputs = view.check(getattr(message.function, "__name__", "message"), message.src, message.dst, message.edge)
    operator.probe(inputs)
    n_src = operator.n_fetched
    return Member(operator, inputs[:n_src], inputs[n_src:], operator.sinks if grad_enabled() else ())


MEMBERS: dict[tuple[type, str], Callable[..., Member]] = {
    **{(fn.CopySrc, reducer): _sum for reducer in SUMS},
    **{(fn.CopySrc, reducer): _extremum for reducer in ("max", "min")},
    **{(fn.Linear, reducer): _linear for reducer in SUMS},
    **{(fn.MulEdge, reducer): _mul_edge for reducer in ("sum", "mean")},
    **{(fn.MulEdge, reducer): _extremum_of_products for reducer in ("max", "min")},
    **{(fn.Message, reducer): _function for reducer in REDUCERS},
    (fn.Attend, "sum"): _attend,
    (fn.AttendLinear, "sum"): _attend_linear,
}


# ---- several of them, of one fetch


class Relations(Operator):
    """The members of one fetch; outputs with the same key add up. The result is one flat array, an output after the other.

    Parameters
    ----------
    members : list of (place in the bundle, key, Operator, numbers of its inputs and of its sinks)
        Inputs below `n_fetched` are rows of sources.
    n_fetched : int
    """

    def __init__(self, members, n_fetched):
        self.members, self.n_fetched, self.adds = members, n_fetched, False

    def shapes(self, arrays):
        """Return (key, `Operator.shape`) of each member."""
        return [(key, operator.shape([arrays[i] for i in inputs if i < len(arrays)])) for _, key, operator, inputs in self.members]

    def add_to(self, flat, places):
        """Let members add to an array that is there, in which `places` has each key's slice and shape. Before `begin`."""
        self.adds, self.places = True, places
        for _, key, operator, _ in self.members:
            place, shape = places[key]
            operator.into = flat[place].reshape(shape)

    def begin(self, needs, arrays, keep):
        for _, _, operator, inputs in self.members:
            operator.begin([needs[i] for i in inputs], [arrays[i] for i in inputs if i < len(arrays)], keep)
        self.needs_rows = any(operator.needs_rows for _, _, operator, _ in self.members)

    def _rows(self, arrays, inputs):
        return None if arrays is None else tuple(arrays[i] for i in inputs if i < self.n_fetched)

    def forward(self, block, rows):
        sets = sets_of(block)
        return [operator.forward(sets[place], self._rows(rows, inputs)) for place, _, operator, inputs in self.members]

    def end(self):
        if self.adds:
            for _, _, operator, _ in self.members:
                operator.end()
            return None
        outputs, added = {}, set()
        for _, key, operator, _ in self.members:
            out = operator.end()
            if key not in outputs:
                outputs[key] = out
            elif out.shape != outputs[key].shape:
                raise ShapeError(f"relations into {key!r}: their messages make rows of {outputs[key].shape[1:]} and of {out.shape[1:]}")
            else:  # an operator may keep what it returned
                outputs[key] = np.add(outputs[key], out, out=outputs[key] if key in added else None)
                added.add(key)
        ends = np.cumsum([0] + [out.size for out in outputs.values()]).tolist()
        self.places = {key: (slice(a, b), out.shape) for (key, out), a, b in zip(outputs.items(), ends, ends[1:])}
        flat = [out.reshape(-1) for out in outputs.values()]
        return flat[0] if len(flat) == 1 else np.concatenate(flat)

    def begin_backward(self, g):
        for _, key, operator, _ in self.members:
            place, shape = self.places[key]
            operator.begin_backward(g[place].reshape(shape))

    def backward(self, block, rows, kept, d_rows):
        for k, (edges, inputs, operator) in enumerate(self._each(block)):
            operator.backward(edges, self._rows(rows, inputs), kept and kept[k], self._rows(d_rows, inputs))

    def _each(self, block):
        sets = sets_of(block)
        return [(sets[place], inputs, operator) for place, _, operator, inputs in self.members]

    def end_backward(self):
        """Gradients by their inputs' and sinks' numbers."""
        found = {}
        for _, _, operator, inputs in self.members:
            found |= dict(zip((i for i in inputs if i >= self.n_fetched), operator.end_backward(), strict=True))
        return [found[number] for number in sorted(found)]

    def passes(self, needs):
        return any(needs[: self.n_fetched]) + any(needs[self.n_fetched :])

    def flops(self, inputs, out, schedule, **_):
        """Count each member's: `flops_per_value` for each value of each edge's message, and the products of columns with weights."""
        edges = sum(sets_of(block)[place].n_edges * int(np.prod(self.places[key][1][1:])) * operator.flops_per_value
                    for place, key, operator, _ in self.members for block in schedule.plan.blocks)
        columns = sum(block.n_src for block in schedule.plan.blocks)
        return edges + 2 * columns * sum(getattr(operator, "n_weights", 0) for _, _, operator, _ in self.members)


def sets_of(block):
    """The sets of edges of a block: of one relation it is no bundle."""
    return block if isinstance(block, Bundle) else (block,)


def aggregate_members(schedule, members):
    """Return {key: Tensor} of [(place in the bundle, key, Member)]. Collective, forward and backward."""
    operator, inputs, sinks = gathered(members)
    return pieces(aggregate(schedule, operator, inputs, sinks), operator.places)


def gathered(members):
    """Return the `Relations` of members, its inputs, and its sinks."""
    fetched, others, sinks, found = [], [], [], []
    numbers: dict[int, int] = {}
    for _, _, member in members:
        for x in member.fetched:
            if id(x) not in numbers:
                numbers[id(x)] = len(fetched)
                fetched.append(x)
    n_inputs = len(fetched) + sum(len(member.others) for _, _, member in members)
    for place, key, member in members:
        own = range(len(fetched) + len(others), len(fetched) + len(others) + len(member.others))
        captured = range(n_inputs + len(sinks), n_inputs + len(sinks) + len(member.sinks))
        others += member.others
        sinks += member.sinks
        found.append((place, key, member.operator, [*(numbers[id(x)] for x in member.fetched), *own, *captured]))
    return Relations(found, len(fetched)), [*fetched, *others], sinks


def pieces(flat, places):
    """Return the outputs in one flat array, by key."""
    if len(places) == 1:
        return {key: flat.reshape(*shape) for key, (_, shape) in places.items()}
    return {key: tape.apply("piece", flat, place=place, shape=shape) for key, (place, shape) in places.items()}


def _piece(needs, flat, place, shape):
    return flat[place].reshape(shape), (flat.shape,)


def _piece_vjp(g, needs, residuals, into, place, shape):
    d = np.zeros(residuals[0], g.dtype) if into[0] is None else into[0]
    d[place] += g.reshape(-1)
    return (d,)


tape.primitive("piece", _piece, _piece_vjp, owned=tape.Owned.YES, adds=True)

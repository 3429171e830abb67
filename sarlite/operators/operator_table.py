"""The table that maps (class of message, reducer) to a function that returns an operator with its inputs, a `Call`."""

from collections.abc import Callable, MutableMapping
from typing import NamedTuple

import numpy as np

from sarlite import numerics
from sarlite.errors import ConfigError, ShapeError
from sarlite.operators import evaluation, fn
from sarlite.operators.as_message import attended, counted, multiplied
from sarlite.operators.attend import Attention
from sarlite.operators.contract import Operator
from sarlite.operators.custom import Custom, InputNames
from sarlite.operators.extremum import Extremum
from sarlite.operators.layer_contract import LayerContract
from sarlite.operators.reducers import REDUCERS
from sarlite.operators.sums import Sum
from sarlite.operators.transformed import Transformed
from sarlite.tape import Tensor, ops
from sarlite.tape.table_rows import in_table

SUMS = ("sum", "mean", "sym")
KNOWN = tuple(dict.fromkeys([*SUMS, *REDUCERS]))
"""Names of all reducers."""


class KeptSums(NamedTuple):
    """Cache of the aggregations of one constant tensor over a graph, {reducer: output}, together with the reducer of the call that
    uses it.

    Attributes
    ----------
    sums : dict of str to Tensor
        The cached aggregations by reducer.
    reducer : str
        Reducer of the call.
    """

    sums: MutableMapping[str, Tensor]
    reducer: str


class Call(NamedTuple):
    """One aggregation over a graph: an operator with its inputs, and a weight matrix that multiplies the output.

    Attributes
    ----------
    operator : Operator
    inputs : list of Tensor
        Inputs of the operator. The inputs that peers fetch, which have one row for each source, come first.
    kept_sums : KeptSums, or None
        Cache for the output if the source rows are constant; else None.
    weight : Tensor (n_in, n_out) or (n_heads, n_in, n_feat), or None
        Matrix to multiply the operator's output with, or one matrix for each head.
    """

    operator: Operator
    inputs: list[Tensor]
    kept_sums: KeptSums | None = None
    weight: Tensor | None = None

    @property
    def kept_output(self) -> Tensor | None:
        """Cached output of an earlier call with the same constant rows and reducer, or None."""
        return None if self.kept_sums is None else self.kept_sums.sums.get(self.kept_sums.reducer)

    def weighted(self, out: Tensor) -> Tensor:
        """Return the operator's output `out` times the weight; return `out` itself if there is no weight."""
        if self.weight is None:
            return out
        return ops.matmul(out, self.weight) if self.weight.ndim == 2 else out.matmul_by_head(self.weight)

    def keep(self, out: Tensor) -> Tensor:
        """Store the operator's output in the cache and return a constant tensor of it; without a cache return `out`."""
        if self.kept_sums is None:
            return out
        self.kept_sums.sums[self.kept_sums.reducer] = constant = Tensor(out.data, constant=True, placement="rows")
        return constant


def call(graph: LayerContract, message: fn.BuiltIn | fn.MessageFunction, reducer: str) -> Call:
    """Return the Call, an operator with its inputs, that aggregates `message` over the edges of `graph` by `reducer`.

    Parameters
    ----------
    graph : LayerContract
        A graph or a relation.
    message : value of `operators.fn`, or callable (src, dst, edge) -> Tensor
    reducer : str
        One of `KNOWN`.

    Returns
    -------
    Call

    Raises
    ------
    ConfigError
        The reducer is unknown, or does not support the message.
    ShapeError
        An input does not fit the graph or the other inputs.
    """
    entry = find(message, reducer)
    return entry(graph, fn.message(message) if callable(message) else message, reducer)


def find(message: object, reducer: str) -> Callable[..., Call]:
    """Return the function (graph, message, reducer) -> Call that `TABLE` has for a message and a reducer.

    Raises
    ------
    ConfigError
        The reducer is unknown, or does not support the message.
    """
    if reducer not in KNOWN:
        raise ConfigError(f"reducer {reducer!r} is not one of {', '.join(KNOWN)}")
    if isinstance(message, (Tensor, np.ndarray)):
        raise ConfigError(f"message is a {type(message).__name__}, but must say what travels along an edge: "
                          "fn.copy_src(x) sends each source's row of x")
    entry = TABLE.get((fn.Message if callable(message) else type(message), reducer))
    if entry is None:
        raise ConfigError(f"message {type(message).__name__} does not go with reducer {reducer!r}")
    return entry


# ---- the entries: functions (graph, message, reducer) -> Call


def _sum(graph: LayerContract, message: fn.CopySrc, reducer: str) -> Call:
    (x,) = graph.check("fn.copy_src", {"x": message.x})
    return _sum_of(graph, x, reducer)


def _sum_of(graph: LayerContract, x: Tensor, reducer: str) -> Call:
    """Return the Call that computes A x: A is the adjacency matrix, for "mean" divided by in-degrees, for "sym" scaled
    symmetrically. The call has a cache if x is constant. The cache lives as long as x and the graph.
    """
    cache, factors = KeptSums(graph.kept_sums(x), reducer) if x.constant else None, graph.edge_factors(reducer, x.dtype)
    rows = x if reducer == "sym" else _in_place(graph, x)
    if factors is None:
        return Call(Sum(graph.n_dst, False, *graph.scales(reducer)), [rows], cache)
    return Call(Sum(graph.n_dst, True), [rows, factors], cache)


def _linear(graph: LayerContract, message: fn.Linear, reducer: str) -> Call:
    (x,), weight = graph.check("fn.linear", {"x": message.x}), message.weight
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != len(weight):
        raise ShapeError(f"fn.linear: x {x.shape} and weight {weight.shape} are not (n_src, n_in) and (n_in, n_out)")
    one_dtype("fn.linear", x=x, weight=weight)
    order = evaluation.order(graph, x, weight, message.evaluation)
    if order == "inside":
        return _inside(graph, x, weight, reducer)
    if order == "first":
        return _sum_of(graph, x, reducer)._replace(weight=weight)
    return _sum_of(graph, ops.matmul(x, weight), reducer)


def _inside(graph: LayerContract, x: Tensor, weight: Tensor, reducer: str) -> Call:
    _refuse_exact("Transformed")
    sums = _sum_of(graph, x, reducer)
    return Call(Transformed(sums.operator, [weight.shape[1:]]), [x, weight, *sums.inputs[1:]])


def _refuse_exact(name: str) -> None:
    if numerics.name() == "exact":
        raise ConfigError(f"numerics exact: messages that are evaluated as {name} are not exact yet")


def _extremum(graph: LayerContract, message: fn.CopySrc, reducer: str) -> Call:
    sign, inputs = 1 if reducer == "max" else -1, graph.check("fn.copy_src", {"x": message.x})
    return Call(Extremum(graph.n_dst, sign, graph.column_ids, graph.itype), inputs)


def _weighted_sum(graph: LayerContract, message: fn.MulEdge, reducer: str) -> Call:
    x, weight = inputs = graph.check("fn.mul_edge", {"x": message.x}, edge={"weight": message.weight})
    one_dtype("fn.mul_edge", x=x, weight=weight)
    if weight.ndim > 1 and weight.shape[1:] != x.shape[1:2]:
        needed = "one number for each edge, or for each edge and head of x"
        raise ShapeError(f"fn.mul_edge: weight {weight.shape} does not go with x {x.shape}: {needed}")
    factors = graph.pick_factors(reducer)
    if factors is not None:
        inputs = [x, weight * factors.astype(x.dtype).reshape(-1, *[1] * (weight.ndim - 1))]
    inputs = [_in_place(graph, inputs[0]), inputs[1]]
    return Call(Sum(graph.n_dst, True, *graph.scales(reducer)), inputs)


def _in_place(graph: LayerContract, x: Tensor) -> Tensor:
    """Return x or, for a `TableRows` x in fast numerics with float32 rows, a tensor whose rows kernels read directly from x's
    table. The data of such a tensor are `kernels.Rows`. With rounded rows (bfloat16, int8), x itself is returned.
    """
    return x if numerics.name() == "exact" or graph.schedule.row_format.is_narrow else in_table(x)


def _extremum_of_products(graph: LayerContract, message: fn.MulEdge, reducer: str) -> Call:
    return _function(graph, multiplied(message), reducer)


def _attend(graph: LayerContract, message: fn.Attend, reducer: str) -> Call:
    z, src, dst = inputs = graph.check("fn.attend", {"z": message.z, "src": message.src}, {"dst": message.dst})
    if z.ndim != 3 or src.ndim != 2 or src.shape[1:] != dst.shape[1:] or z.shape[1] not in (1, src.shape[1]):
        shapes = f"z {z.shape}, src {src.shape} and dst {dst.shape}"
        needed = "(n_src, n_heads or 1, n_feat), (n_src, n_heads) and (n_dst, n_heads)"
        raise ShapeError(f"fn.attend: {shapes} are not {needed}")
    one_dtype("fn.attend", z=z, src=src, dst=dst)
    if message.edge is not None or graph.edge_weight is not None:
        if z.shape[1] < src.shape[1]:
            z = z * np.ones((1, src.shape[1], 1), z.dtype)
        return _function(graph, attended(graph, message._replace(z=z, src=src, dst=dst)), "softmax")
    if numerics.name() == "exact" and not _is_alone(graph):
        inputs = [*inputs, _largest_scores(graph, src)]
    return Call(_attention(graph, message), inputs)


def _is_alone(graph: LayerContract) -> bool:
    """Return True if the graph has one MPI rank and one relation, so that attention's kernel sees all edges of a row at once."""
    schedule = graph.schedule
    return graph.relation is None and schedule.plan.single_block and schedule.transport.comm.size == 1


def _largest_scores(graph: LayerContract, src: Tensor) -> Tensor:
    """Return the largest of the source scores `src` among each destination's in-neighbours, (n_dst, n_heads). Collective."""
    rows = np.ascontiguousarray(src.data)
    forward_pass = Extremum(graph.n_dst, 1, graph.column_ids, graph.itype).forward([rows], None)
    graph.schedule.run((rows,), lambda block, rows: forward_pass.add(graph.edges_of(block), rows))
    return Tensor(forward_pass.finish()[0], placement="rows")


def _attend_linear(graph: LayerContract, message: fn.AttendLinear, reducer: str) -> Call:
    x, dst = graph.check("fn.attend_linear", {"x": message.x}, {"dst": message.dst})
    weight, src_weight, dst_weight = message.weight, message.src_weight, message.dst_weight
    arrays = {"x": x, "weight": weight, "src_weight": src_weight, "dst": dst}
    by_head = dst
    if dst_weight is not None:
        arrays["dst_weight"] = by_head = dst_weight
    fits = all(array.ndim == 2 for array in arrays.values()) and x.shape[1] == len(weight) == len(src_weight)
    fits = fits and (by_head is dst or dst.shape[1] == len(by_head)) and by_head.shape[1] == src_weight.shape[1]
    if not fits or not by_head.shape[1] or weight.shape[1] % by_head.shape[1]:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        needed = "(n_src, n_in), (n_in, n_heads * n_feat), (n_in, n_heads) and (n_dst, n_heads)"
        raise ShapeError(f"fn.attend_linear: {shapes} are not {needed}, or (n_dst, n_dst_in) and (n_dst_in, n_heads)")
    one_dtype("fn.attend_linear", **arrays)
    n_heads, n_feat = by_head.shape[1], weight.shape[1] // by_head.shape[1]
    options = message.slope, message.dropout, message.key

    # recorded after z: the order in which gradients of x are added decides the bits of exact numerics
    def scores() -> tuple[Tensor, Tensor]:
        return ops.matmul(x, src_weight), dst if dst_weight is None else ops.matmul(dst, dst_weight)

    if graph.relation is None and graph.edge_weight is None and not evaluation.attends_products(
            graph, x, n_heads, n_feat):
        shared = fn.Attend(*(x.reshape(len(x), 1, x.shape[1]), *scores()), *options)
        heads = weight.reshape(len(weight), n_heads, n_feat).transpose(1, 0, 2)
        return _attend(graph, shared, reducer)._replace(weight=heads)
    if graph.relation is None or graph.edge_weight is not None or not evaluation.choices("inside"):
        z = ops.matmul(x, weight).reshape(len(x), n_heads, n_feat)
        return _attend(graph, fn.Attend(*(z, *scores()), *options), reducer)
    dst_scores = dst if dst_weight is None else ops.matmul(dst, dst_weight)
    row_shapes = [(n_heads, n_feat), (n_heads,)]
    return Call(Transformed(_attention(graph, message), row_shapes), [x, weight, src_weight, dst_scores])


def _attention(graph: LayerContract, message: fn.Attend | fn.AttendLinear) -> Attention:
    return Attention(message.slope, message.dropout, message.key, graph.dst_ids, graph.n_nodes, graph.src_ids)


def _function(graph: LayerContract, message: fn.Message, reducer: str) -> Call:
    if graph.schedule.row_format.is_narrow:
        raise ConfigError(f"rows {graph.schedule.row_format.name}: messages that are evaluated as Custom have no "
                          "narrow rows yet")
    name = getattr(message.function, "__name__", "message")
    factors = graph.pick_factors(reducer) if reducer in SUMS else None
    if factors is not None:
        message = counted(message, factors)
    names = InputNames(tuple(message.src), tuple(message.dst), tuple(message.edge))
    inputs = graph.check(name, message.src, message.dst, message.edge)
    return Call(Custom(message.function, names, REDUCERS[reducer](graph), graph.dst_ids, graph.n_nodes, inputs), inputs)


def one_dtype(message: str, **inputs: Tensor) -> None:
    """Raise a ShapeError that starts with `message`, the name of a message function, if the float inputs differ in dtype."""
    dtypes = {name: x.dtype for name, x in inputs.items() if x.dtype.kind == "f"}
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{name} is {dtype}" for name, dtype in dtypes.items())
        raise ShapeError(f"{message}: {listed}: one dtype is needed, as by astype")


TABLE: dict[tuple[type, str], Callable[..., Call]] = {
    **{(fn.CopySrc, reducer): _sum for reducer in SUMS},
    **{(fn.CopySrc, reducer): _extremum for reducer in ("max", "min")},
    **{(fn.Linear, reducer): _linear for reducer in SUMS},
    **{(fn.MulEdge, reducer): _weighted_sum for reducer in ("sum", "mean")},
    **{(fn.MulEdge, reducer): _extremum_of_products for reducer in ("max", "min")},
    **{(fn.Message, reducer): _function for reducer in REDUCERS},
    (fn.Attend, "sum"): _attend,
    (fn.AttendLinear, "sum"): _attend_linear,
}

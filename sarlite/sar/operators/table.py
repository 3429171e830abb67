"""The table (message, reducer) -> how it is aggregated."""

from collections.abc import Callable

import numpy as np

from sarlite.errors import ShapeError
from sarlite.sar.operators import fn
from sarlite.sar.operators.attention import Attend
from sarlite.sar.operators.custom import attended, multiplied
from sarlite.sar.operators.extremum import Extremum
from sarlite.sar.operators.sums import Sum
from sarlite.tape import Tensor, ops
from sarlite.tape.engine import grad_enabled


def _sum(graph, message, reducer):
    (x,) = graph.check("fn.copy_src", {"x": message.x})
    return _sum_of(graph, x, reducer)


def _sum_of(graph, x, reducer):
    """A X, A with the edges' weights. Of a constant x it is kept as long as x and the graph are there, and is a constant itself."""
    kept = graph.kept_of(x) if x.constant else {}
    if reducer not in kept:
        if graph.edge_weight is None:
            out = graph.apply(lambda g: Sum(g.n_dst, False, *g.scales(reducer)), [x])
        else:
            out = graph.apply(lambda g: Sum(g.n_dst, True), [x, graph.normalised(reducer, x.dtype)], ("src", "edge"))
        kept[reducer] = Tensor(out.data, constant=True) if x.constant else out
    return kept[reducer]


def one_dtype(message, **inputs):
    """Raise where float inputs differ in dtype."""
    dtypes = {name: x.dtype for name, x in inputs.items() if x.dtype.kind == "f"}
    if len(set(dtypes.values())) > 1:
        found = ", ".join(f"{name} is {dtype}" for name, dtype in dtypes.items())
        raise ShapeError(f"{message}: {found}: one dtype is needed, as by astype")


def _linear(graph, message, reducer):
    """A (X W) or (A X) W, whichever `product_first` finds cheaper."""
    (x,), weight = graph.check("fn.linear", {"x": message.x}), message.weight
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != len(weight):
        raise ShapeError(f"fn.linear: x {x.shape} and weight {weight.shape} are not (n_src, n_in) and (n_in, n_out)")
    one_dtype("fn.linear", x=x, weight=weight)
    if product_first(graph, x, weight):
        return _sum_of(graph, ops.matmul(x, weight), reducer)
    return ops.matmul(_sum_of(graph, x, reducer), weight)


EDGE_VALUE = 16
"""What adding one value of a message costs, in multiply-adds of a product: a sum over edges waits for memory."""


def attends_products(graph, n_in, n_heads, n_feat, needs_x=True):
    """Whether attention over z = X W, by head A_h (X W_h), is cheaper than (A_h X) W_h, forward and backward together. Every rank decides
    alike, as in `product_first`; where sources and destinations are the same rows, or heads are taken apart, it is.

    Backward the second makes the gradient of A_h X even where X needs none, as the scores' gradients want it.
    """
    n_src, n_dst, n_edges = graph.sizes
    if n_src == n_dst or graph.grid is not None or graph.edge_weight is not None:
        return True
    product = n_in * n_heads * n_feat
    before = n_src * product * (2 + needs_x) + 2 * n_edges * n_heads * n_feat * EDGE_VALUE
    after = 3 * n_dst * product + 2 * n_edges * n_heads * n_in * EDGE_VALUE
    return before <= after


def product_first(graph, x, weight):
    """Whether A (X W) is cheaper than (A X) W, forward and backward together (MG-GCN 4.4). Every rank decides alike.

    The products cost rows times widths, of the sources or of the destinations, and the sums edges times a width. Where sources and
    destinations are the same rows, the widths alone decide.
    """
    if x.constant or x.dtype.kind != "f":
        return x.dtype.kind != "f"
    needs = [grad_enabled() and isinstance(t, Tensor) and t.requires_grad for t in (x, weight)]
    (n_in, n_out), passes = weight.shape, 1 + sum(needs)
    before, after = n_in * (1 + needs[0]), n_out * (1 + any(needs))
    n_src, n_dst, n_edges = graph.sizes
    if n_src != n_dst:
        before = n_edges * before * EDGE_VALUE + n_dst * n_in * n_out * passes
        after = n_edges * after * EDGE_VALUE + n_src * n_in * n_out * passes
    return after <= before


def _extremum(graph, message, reducer):
    sign, inputs = 1 if reducer == "max" else -1, graph.check("fn.copy_src", {"x": message.x})
    return graph.apply(lambda g: Extremum(g.n_dst, sign, g.column_ids, g.itype), inputs)


def _weighted_sum(graph, message, reducer):
    inputs = graph.check("fn.mul_edge", {"x": message.x}, edge={"weight": message.weight})
    one_dtype("fn.mul_edge", **dict(zip(("x", "weight"), inputs)))
    return graph.apply(lambda g: Sum(g.n_dst, True, *g.scales(reducer)), inputs, ("src", "edge"))


def _attend(graph, message, reducer):
    z, src, dst = inputs = graph.check("fn.attend", {"z": message.z, "src": message.src}, {"dst": message.dst})
    if z.ndim != 3 or src.ndim != 2 or src.shape[1:] != dst.shape[1:] or z.shape[1] not in (1, src.shape[1]):
        shapes = f"z {z.shape}, src {src.shape} and dst {dst.shape}"
        raise ShapeError(f"fn.attend: {shapes} are not (n_src, n_heads or 1, n_feat), (n_src, n_heads) and (n_dst, n_heads)")
    one_dtype("fn.attend", z=z, src=src, dst=dst)
    if z.shape[1] < src.shape[1] and (graph.grid is not None or message.edge is not None or graph.edge_weight is not None):
        z = inputs[0] = z * np.ones((1, src.shape[1], 1), z.dtype)  # these take heads apart
    if message.edge is not None or graph.edge_weight is not None:
        return attended(graph, message._replace(z=z, src=src, dst=dst))
    options = message.slope, message.dropout, message.key
    return graph.apply(lambda g: Attend(*options, g.dst_ids, g.n_nodes, g.src_ids), inputs, ("src", "src", "dst"),
                       whole_heads=message.dropout > 0)  # a coefficient's coin goes by the number of its head


SUMS = ("sum", "mean", "sym")
TABLE: dict[tuple[type, str], Callable] = {
    **{(fn.CopySrc, reducer): _sum for reducer in SUMS},
    **{(fn.Linear, reducer): _linear for reducer in SUMS},
    **{(fn.CopySrc, reducer): _extremum for reducer in ("max", "min")},
    **{(fn.MulEdge, reducer): _weighted_sum for reducer in ("sum", "mean")},
    **{(fn.MulEdge, reducer): multiplied for reducer in ("max", "min")},
    (fn.Attend, "sum"): _attend,
}

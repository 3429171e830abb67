"""Operators with fused kernels: sum and mean, max and min, attention. And the table (message, reducer) -> how it is aggregated."""

from collections.abc import Callable

import numpy as np

from sarlite import kernels
from sarlite.errors import ShapeError
from sarlite.sar import fn
from sarlite.sar.aggregate import Operator
from sarlite.sar.by_source import AttendBySource
from sarlite.sar.custom import attended
from sarlite.sar.weights import normalised
from sarlite.tape import Tensor, ops
from sarlite.tape.engine import grad_enabled, retained


class Sum(Operator):
    """out_i = s_i sum_j w_ij t_j x_j: s = 1, or 1 / degree (mean, SAR Eq. 2), or with t 1 / sqrt(degree) (sym).

    Parameters
    ----------
    n_dst : int
    weighted : bool
        Whether there is a w, the second input.
    dst_scale : (n_dst,) float64, optional
        s.
    src_scale : (n_columns,) float64, optional
        t by column, unique over all blocks.
    into : (n_dst, ...) array, optional
        What the sums are added to; by default a new array.
    """

    keeps_result = False
    overwrites = True

    def __init__(self, n_dst, weighted=False, dst_scale=None, src_scale=None, into=None):
        self.n_dst, self.weighted, self.dst_scale, self.src_scale, self.into = n_dst, weighted, dst_scale, src_scale, into
        self.flops_per_value = 2 if weighted else 1
        self.turns = not weighted
        self.by_number = src_scale is None  # which is by column

    def shape(self, arrays):
        return self.n_dst, *arrays[0].shape[1:]

    def begin(self, needs, arrays, keep):
        self.needs_rows = self.weighted and needs[1]
        self.weight = arrays[1] if self.weighted else None
        self.scale = None if self.dst_scale is None else self.dst_scale.astype(arrays[0].dtype)
        self.out, self.begun = self.into, self.into is not None
        if self.into is None:
            self.out = np.empty((self.n_dst, *arrays[0].shape[1:]), arrays[0].dtype)

    def forward(self, block, rows):
        if not self.begun and block.rows is not None:
            self.out[...] = 0
            self.begun = True
        src_scale = columns_of(block, self.src_scale, rows[0].dtype)
        kernels.spmm(block.indptr, *_columns(block, rows[0]), self.out, rows=block.rows, src_scale=src_scale, dst_scale=self.scale,
                     accumulate=self.begun, **self.weights(block, "eid"))
        self.begun = True
        return rows if self.needs_rows else None

    def end(self):
        out, self.out, self.into = self.out, None, None
        return out

    def begin_backward(self, g):
        self.g = np.ascontiguousarray(g)
        self.d_weight = np.zeros_like(self.weight) if self.needs_rows else None

    def backward(self, block, rows, kept, d_rows):
        if d_rows[0] is not None:
            kernels.spmm(*block.transpose, self.g, d_rows[0], src_scale=self.scale,
                         dst_scale=columns_of(block, self.src_scale, self.g.dtype), accumulate=not self.fresh,
                         **self.weights(block, "transpose_eid"))
        if self.needs_rows:
            (x,) = rows or kept
            indices, x = _columns(block, x)
            kernels.edge_dot(block.indptr, indices, self.g, x, self.d_weight, rows=block.rows, eid=block.eid, dst_scale=self.scale)

    def turned(self, rows, d_rows):
        """The gradient of x is t A^T (s g), which MG-GCN Eq. 9 aggregates as it does x."""
        d_x, g = d_rows[0], self.g
        if self.scale is not None:  # over g, where that is this pass's own
            g = np.multiply(g, self.scale.reshape(-1, *[1] * (g.ndim - 1)), out=g if g.flags.writeable else None)
        return Sum(len(d_x), dst_scale=self._local_scale(d_x), into=d_x), (g,), []

    def _local_scale(self, rows):
        """t of the local source rows, in their dtype."""
        return None if self.src_scale is None else self.src_scale[: len(rows)].astype(rows.dtype)

    def end_backward(self):
        return [self.d_weight] if self.weighted else []

    def weights(self, block, order):
        """The weights and where each edge's stands; `order` names the block's attribute that says so."""
        return {"weight": self.weight, "eid": getattr(block, order)} if self.weighted else {}


def _columns(block, x):
    """(indices, array): a block's columns in x; where x is rows of a table, in that."""
    if not isinstance(x, kernels.Rows):
        return block.indices, x
    return x.numbers_at(block.indices), x.table


def columns_of(block, scale, dtype):
    """A scale's part of the columns of a block."""
    return None if scale is None else scale[block.offset : block.offset + block.n_src].astype(dtype)


class Extremum(Operator):
    """out_i = max_j x_j (sign = 1) or min_j x_j (sign = -1), per column; 0 where i has no edges.

    `argument` is the column, unique over all blocks, that won; ties go to the lowest global node id.
    """

    def __init__(self, n_dst, sign, column_ids, itype):
        self.n_dst, self.sign, self.column_ids, self.itype = n_dst, sign, column_ids, itype

    def begin(self, needs, arrays, keep):
        self.shape = (self.n_dst, *arrays[0].shape[1:])
        flat = (self.n_dst, int(np.prod(self.shape[1:])))
        self.out = np.full(flat, -self.sign * np.inf, arrays[0].dtype)
        self.argument = np.full(flat, -1, self.itype)

    def forward(self, block, rows):
        x = rows[0].reshape(len(rows[0]), self.out.shape[1])
        kernels.extremum(block.indptr, block.indices, x, self.out, self.argument, rows=block.rows,
                         sign=self.sign, offset=block.offset, order=self.column_ids)

    def end(self):
        out, self.out = self.out, None
        out[self.argument < 0] = 0
        return out.reshape(self.shape)

    def begin_backward(self, g):
        self.g = np.ascontiguousarray(g).reshape(self.argument.shape)

    def backward(self, block, rows, kept, d_rows):
        if d_rows[0] is not None:
            d_x = d_rows[0].reshape(len(d_rows[0]), self.g.shape[1])
            kernels.extremum_backward(self.g, self.argument, d_x, block.offset)


class Attend(Operator):
    """out_i = sum_j a_ij z_j, a_ij = softmax_j(leaky_relu(src_j + dst_i)) (SAR Eq. 3, 3.3, 3.4). Heads may share a z of one."""

    n_fetched = 2
    needs_rows = turns = overwrites = True
    flops_per_value = 2  # the exponential and the maximum, one a head, are not counted

    def __init__(self, slope, dropout=0.0, key=0, dst_ids=None, n_nodes=0, src_ids=None):
        self.slope, self.p, self.key, self.dst_ids, self.n_nodes, self.src_ids = slope, dropout, key, dst_ids, n_nodes, src_ids

    def begin(self, needs, arrays, keep):
        z, _, self.dst = arrays
        self.needs = needs
        self.m, self.l = np.empty_like(self.dst), np.empty_like(self.dst)
        self.out, self.begun = np.empty((*self.dst.shape, z.shape[2]), z.dtype), False

    def forward(self, block, rows):
        if not self.begun and block.rows is not None:
            self.m[...], self.l[...], self.out[...], self.begun = -np.inf, 0, 0, True
        kernels.attend(block.indptr, block.indices, *rows, self.dst, self.m, self.l, self.out, rows=block.rows,
                       slope=self.slope, dropout=self.coins(block), accumulate=self.begun)
        self.begun = True
        return rows

    def end(self):
        kernels.attend_finish(self.m, self.l, self.out)  # l is 1 / l from here on
        return self.out

    def begin_backward(self, g):
        self.g = np.ascontiguousarray(g)
        self.ends = kernels.attend_ends(self.dst, self.m, self.l, self.g, self.out)
        if not retained():
            self.out = self.m = self.l = None
        self.sums, self.d_dst = None, np.zeros_like(self.dst)

    def backward(self, block, rows, kept, d_rows):
        if self.sums is None:
            self.sums = np.zeros((kernels.threads(), *self.dst.shape))
        z, src = rows or kept
        dz, d_src = (np.zeros_like(x) if d is None else d for x, d in zip((z, src), d_rows))
        kernels.attend_backward(*block.transpose, z, src, self.ends, self.g, dz, d_src, None, sums=self.sums,
                                slope=self.slope, dropout=self.coins(block), accumulate=not self.fresh)

    def turned(self, rows, d_rows):
        """Of a destination g and `ends` say all that its sources' owners need of it."""
        coins = (self.key, self.p, self.src_ids, self.n_nodes)
        return AttendBySource(rows, d_rows, self.slope, coins), (self.g, self.ends), [self.d_dst if self.needs[2] else None]

    def end_backward(self):
        if self.sums is not None:
            kernels.attend_backward_finish(self.sums, self.d_dst)
        return [self.d_dst]

    def coins(self, block):
        return kernels.Dropout(self.key, self.p, block.src_ids, self.dst_ids, self.n_nodes) if self.p else None


# ---- the table: (type of the message, reducer) -> function (graph, message, reducer) -> Tensor


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
            out = graph.apply(lambda g: Sum(g.n_dst, True), [x, normalised(graph, reducer, x.dtype)], ("src", "edge"))
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
    (fn.Attend, "sum"): _attend,
}

"""The operator for any Python message function, recorded by the tape and replayed in backward."""

from contextlib import nullcontext

import numpy as np

from sarlite import kernels
from sarlite.errors import ShapeError
from sarlite.sar.aggregate import Operator
from sarlite.sar.operators import fn
from sarlite.tape import Tensor, engine, ops


class EdgeRows(dict):
    """Tensors of one row an edge, by name.

    Attributes
    ----------
    ids : (n_edges,) int64
        Global id of each row: the node's, or source id * n_nodes + destination id for an edge. Keys for dropout.
    """

    def __init__(self, ids, values):
        super().__init__(values)
        self.ids = ids


class Recording:
    """One run of the message over some edges: its outputs, and the leaves that stand for the edges' inputs."""

    def __init__(self, message, names, arrays, needs, ids):
        n_src = len(names[0])
        self.leaves = [Tensor(a, need) for a, need in zip(arrays, needs)]
        for leaf in self.leaves[:n_src]:
            leaf.volatile = True
        self.since = engine.now()
        views, start = [], 0
        for place, place_ids in zip(names, ids):
            views.append(EdgeRows(place_ids, zip(place, self.leaves[start : start + len(place)])))
            start += len(place)
        with engine.watch_reads() as reads:
            result = message(*views)
        self.reads_src = reads.seen
        self.outputs = result if isinstance(result, tuple) else (result,)
        for out in self.outputs:
            if not isinstance(out, Tensor) or out.shape[:1] != (len(place_ids),):
                found = getattr(out, "shape", type(out))
                raise ShapeError(f"a message must return tensors of one row an edge, not {found}")

    def nodes(self):
        return engine.reachable([out.sink for out in self.outputs], self.since)

    def captured(self):
        """Sinks outside the recording, oldest first: learnable values that the message uses."""
        inner = {id(node) for node in self.nodes()} | {id(leaf) for leaf in self.leaves}
        ends = {id(out.sink): out.sink for out in self.outputs if out.sink is not None}
        ends |= {id(sink): sink for node in self.nodes() for sink in node.sinks if sink is not None}
        return sorted((sink for key, sink in ends.items() if key not in inner), key=lambda sink: sink.time)

    def depends_on_src(self):
        """Case 2: a residual holds a value made from source rows (SAR 3.2), or the message read one off the tape."""
        return self.reads_src or any(node.volatile for node in self.nodes())

    def same_tape(self, other):
        """Whether another recording left the same behind: the same primitives with the same residuals."""
        ours, theirs = self.nodes(), other.nodes()
        return len(ours) == len(theirs) and all(
            a.name == b.name and _same((a.needs, a.params, a.residuals), (b.needs, b.params, b.residuals))
            for a, b in zip(ours, theirs)
        )

    def pull(self, gradients):
        """Return gradients by id of leaf or captured sink."""
        return engine.pull(list(zip(self.outputs, gradients)), self.since)


def _same(a, b):
    """Whether two residuals hold equal values; what is not known to be equal is not."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a is b or bool(a == b)


OTHER_VALUES = (3, -0.001, -100, 0.5)  # of a second recording's source rows: both signs, large and small


class Custom(Operator):
    """out_i = reduce_j message(src_j, dst_i, edge_ij) for any message of tape operations.

    Parameters
    ----------
    message : callable (src, dst, edge) -> Tensor, or (score, value) for reducer "softmax"
    names : three tuples of str
        Names of the src, dst and edge inputs.
    reducer : object of `reducers`
    n_nodes : int
        Of the whole graph, to number edges.
    """

    def __init__(self, message, names, reducer, dst_ids, n_nodes):
        self.message, self.names, self.reducer, self.sinks = message, names, reducer, []
        self.dst_ids, self.n_nodes = dst_ids, n_nodes
        self.n_fetched = len(names[0])

    def probe(self, tensors):
        """Record the message on one row of zeros: find the shape of its outputs, `sinks` and the case."""
        zeros = [np.zeros((1, *t.shape[1:]), t.dtype) for t in tensors]
        recording = self.record(zeros, [t.requires_grad for t in tensors])
        self.templates = [(out.shape[1:], out.dtype) for out in recording.outputs]
        self.src_templates = [(z.shape[1:], z.dtype) for z in zeros[: self.n_fetched]]
        self.case2 = self.reducer.needs_messages or recording.depends_on_src() or self.differs(recording, zeros)
        self.sinks = recording.captured()

    def record(self, arrays, needs):
        with np.errstate(all="ignore"):  # these rows are no input of the user's
            return Recording(self.message, self.names, arrays, needs, [np.zeros(1, np.int64)] * 3)

    def differs(self, recording, zeros):
        """Whether other source rows leave another tape behind, though no read of them was seen.

        Then the message has a way of its own to the values.
        """
        if not recording.nodes():
            return False
        needs = [leaf.requires_grad for leaf in recording.leaves]
        try:
            with np.errstate(all="ignore"):
                rows = [np.resize(OTHER_VALUES, z.shape).astype(z.dtype) for z in zeros[: self.n_fetched]]
            return not recording.same_tape(self.record([*rows, *zeros[self.n_fetched :]], needs))
        except Exception:  # a message need not understand these rows
            return True

    def output(self, arrays):
        return (len(self.dst_ids), *self.templates[-1][0]), self.templates[0][1]

    def begin(self, needs, arrays, keep):
        self.needs, self.arrays, self.keep = needs, arrays, keep
        self.needs_rows = any(needs) and self.case2
        self.reducer.begin(len(self.dst_ids), self.templates)

    def forward(self, block, rows):
        recordings = []
        for piece in block.pieces:
            recording = self.replay(piece, rows, grad=self.keep)
            self.reducer.forward(piece, [out._data for out in recording.outputs])
            if self.keep:
                recordings.append(recording)
            del recording  # before the next piece's rows are gathered
        return recordings

    def end(self):
        self.arrays = (None,) * self.n_fetched + tuple(self.arrays[self.n_fetched :])
        return self.reducer.end()

    def begin_backward(self, g):
        self.reducer.begin_backward(np.ascontiguousarray(g))
        self.d_local = [np.zeros_like(a) if need else None
                        for a, need in zip(self.arrays[self.n_fetched :], self.needs[self.n_fetched :])]
        self.d_sinks = [None] * len(self.sinks)

    def backward(self, block, rows, kept, d_rows):
        block = block.anew()  # a CSR of some columns is made here, and freed with the rows
        for piece, recording in zip(block.pieces, kept or [None] * len(block.pieces)):
            self.backward_piece(piece, recording or self.replay(piece, rows, grad=True), d_rows)

    def backward_piece(self, block, recording, d_rows):
        found = recording.pull(self.reducer.backward(block, [out._data for out in recording.outputs]))
        self.scatter(block, [found.get(id(leaf)) for leaf in recording.leaves], d_rows)
        for k, sink in enumerate(self.sinks):
            g = found.get(id(sink))
            if g is not None:  # which two sinks may share
                self.d_sinks[k] = np.array(g) if self.d_sinks[k] is None else self.d_sinks[k] + g

    def end_backward(self):
        return [*self.d_local, *self.d_sinks]

    def replay(self, block, rows, grad):
        """Run the message over a block's edges; without `rows` on zeros, which case 1 never looks at."""
        n_src, n_dst = len(self.names[0]), len(self.names[1])
        if rows is None:
            arrays = [np.zeros((block.n_edges, *shape), dtype) for shape, dtype in self.src_templates]
        else:
            arrays = [block.at_src(r) for r in rows]
        arrays += [block.at_dst(a) for a in self.arrays[n_src : n_src + n_dst]]
        arrays += [block.at_edge(a) for a in self.arrays[n_src + n_dst :]]
        src_ids, dst_ids = block.src_ids[block.indices], self.dst_ids[block.dst]
        edge_ids = src_ids * self.n_nodes
        edge_ids += dst_ids
        ids = (src_ids, dst_ids, edge_ids)
        with engine.set_grad(grad), nullcontext() if rows is not None else np.errstate(all="ignore"):
            return Recording(self.message, self.names, arrays, self.needs, ids)

    def scatter(self, block, d_edges, d_rows):
        """Add gradients of one row an edge to the rows that they were gathered from."""
        n_src, n_dst = len(self.names[0]), len(self.names[1])
        t_indptr, position = block.edges_by_column
        for d_row, d_edge in zip(d_rows, d_edges):
            if d_row is not None and d_edge is not None:
                kernels.spmm(t_indptr, position, np.ascontiguousarray(d_edge), d_row)
        for k, (d, d_edge) in enumerate(zip(self.d_local, d_edges[n_src:])):
            if d is None or d_edge is None:
                continue
            if k < n_dst:
                block.sum_to_dst(d_edge, d)
            else:
                kernels.scatter_add_rows(np.ascontiguousarray(d_edge), block.labels, d)


_COUNT = "sarlite.count"


def counted(message, counts):
    """Return a function's message times what each edge counts, (n_edges,)."""

    def times(src, dst, edge):
        out = message.function(src, dst, edge)
        return out * edge[_COUNT].reshape(-1, *[1] * (out.ndim - 1)).astype(out.dtype)

    return message._replace(function=times, edge={**message.edge, _COUNT: counts})


def multiplied(message):
    """Return a `fn.mul_edge` as a function's message."""
    function = lambda s, d, e: s["x"] * e["weight"]  # noqa: E731
    return fn.message(function, {"x": message.x}, {}, {"weight": _per_row(message.weight, message.x)})


def _per_row(weight, x):
    """Give weights one axis for each of x's that they lack."""
    missing = engine.as_array(x).ndim - engine.as_array(weight).ndim
    return weight.reshape(*weight.shape, *[1] * missing) if missing > 0 else weight


def attended(graph, message):
    """Return a `fn.attend` with values on the edges as a function's message.

    They are features that the scores see, and the graph's weights.
    """
    values, features = {}, message.edge
    if features is not None:
        graph.check("fn.attend", edge={"edge": features})
        if message.attn_edge is None or message.attn_edge.shape != (features.shape[1], message.src.shape[1]):
            found = None if message.attn_edge is None else message.attn_edge.shape
            needed = f"({features.shape[1]}, {message.src.shape[1]})"
            raise ShapeError(f"fn.attend: attn_edge {found} is not {needed}, a row each edge feature")
        if not isinstance(features, Tensor):
            features = engine.as_array(features).astype(message.z.dtype, copy=False)
        values["features"] = features
    if graph.edge_weight is not None:
        values["weight"] = graph.weight_as(message.z.dtype).reshape(-1, 1, 1)

    def weigh(src, dst, edge):
        score, value = src["src"] + dst["dst"], src["z"]
        if "features" in edge:
            score = score + edge["features"] @ message.attn_edge
        if "weight" in edge:
            value = value * edge["weight"]
        if message.dropout:
            coins = ops.dropout(Tensor(np.ones(score.shape, score.dtype)), edge.ids, message.key, message.dropout)
            value = value * coins.reshape(*score.shape, 1)
        return score.leaky_relu(message.slope), value

    return fn.message(weigh, {"z": message.z, "src": message.src}, {"dst": message.dst}, values)

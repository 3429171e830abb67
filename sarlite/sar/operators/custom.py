"""The operator for any Python message function, recorded by the tape and replayed in backward."""

import functools
from contextlib import nullcontext

import numpy as np

from sarlite import kernels
from sarlite.errors import ShapeError
from sarlite.sar.aggregate import Operator
from sarlite.sar.operators import fn
from sarlite.sar.operators.replay import Program, Recording
from sarlite.tape import Tensor, ops, tensor
from sarlite.tape.recording import grad_enabled, set_grad

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

    case2 = False

    def __init__(self, message, names, reducer, dst_ids, n_nodes):
        self.message, self.names, self.reducer, self.sinks, self.reads = message, names, reducer, [], []
        self.dst_ids, self.n_nodes = dst_ids, n_nodes
        self.n_fetched = len(names[0])

    def probe(self, tensors):
        """Record the message on one row: find the shape of its outputs, `sinks`, `reads`, its program and the case.

        The row is zeros; where there may be a backward pass, a row of other sources comes after it. What the message
        keeps from its first call is there at its second.
        """
        self.zeros = [np.zeros((1, *t.shape[1:]), t.dtype) for t in tensors]
        self.probe_needs = [t.requires_grad for t in tensors]
        recording = self.record(self.zeros)
        if grad_enabled():
            other = self.record_others()
            if other is None or recording.program.difference(other.program):
                recording = self.record(self.zeros)
            self.case2 = (self.reducer.needs_messages or recording.depends_on_src() or other is None
                          or not recording.same_tape(other))
            found = {id(sink): sink for run in (recording, other) if run is not None for sink in run.captured()}
            self.sinks = sorted(found.values(), key=lambda sink: sink.time)
            self.reads = recording.program.reads(self.sinks)
            self.program = recording.program
        self.templates = [(out.shape[1:], out.dtype) for out in recording.outputs]
        self.src_templates = [(z.shape[1:], z.dtype) for z in self.zeros[: self.n_fetched]]

    def record(self, arrays):
        with np.errstate(all="ignore"):  # these rows are no input of the user's
            return Recording(self.message, self.names, arrays, self.probe_needs, [np.zeros(1, np.int64)] * 3, Program())

    def record_others(self):
        """Record other source rows. None where the message fails, as it need not understand these rows."""
        try:
            with np.errstate(all="ignore"):
                rows = [np.resize(OTHER_VALUES, z.shape).astype(z.dtype) for z in self.zeros[: self.n_fetched]]
            return self.record([*rows, *self.zeros[self.n_fetched :]])
        except Exception:
            return None

    def check_unchanged(self):
        """Raise a RuntimeError where backward would not compute with what forward saw.

        An array was changed; or the message, which is called again where its recordings were not kept, does something
        else than it did.
        """
        found = self.program.changed_array()
        if not found and not self.keep:
            with set_grad(True):
                found = self.program.difference(self.record(self.zeros).program)
        if found:
            name = getattr(self.message, "__name__", type(self.message).__name__)
            raise RuntimeError(f"message {name} does something else in backward, which calls it again, than it did in "
                               f"forward: {found}. What the message closes over must stay until backward has ended; "
                               "a loop's variable is bound by a default, as in lambda src, dst, edge, w=w: ...")

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
        self.check_unchanged()
        self.reducer.begin_backward(np.ascontiguousarray(g))
        self.d_local = [np.zeros_like(a) if need else None
                        for a, need in zip(self.arrays[self.n_fetched :], self.needs[self.n_fetched :])]
        self.d_sinks = [None] * len(self.sinks)

    def backward(self, block, rows, kept, d_rows):
        block = block.anew()  # a CSR of some columns is made here, and freed with the rows
        for piece, recording in zip(block.pieces, kept or [None] * len(block.pieces)):
            self.backward_piece(piece, recording or self.replay(piece, rows, grad=True), d_rows)

    def backward_piece(self, block, recording, d_rows):
        found = recording.pull(self.reducer.backward(block, [out._data for out in recording.outputs]), self.sinks)
        self.scatter(block, [found.get(id(leaf)) for leaf in recording.leaves], d_rows)
        for k, sink in enumerate(self.sinks):
            g = found.get(id(sink))
            if g is not None:  # which two sinks may share
                self.d_sinks[k] = np.array(g) if self.d_sinks[k] is None else self.d_sinks[k] + g

    def end_backward(self):
        return [*self.d_local, *self.d_sinks, *(None for _ in self.reads)]

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
        with set_grad(grad), nullcontext() if rows is not None else np.errstate(all="ignore"):
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

    @functools.wraps(message.function)
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
    missing = tensor.as_array(x).ndim - tensor.as_array(weight).ndim
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
            features = tensor.as_array(features).astype(message.z.dtype, copy=False)
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

"""The operator for message functions in Python, which the tape records, and which the backward pass calls again."""

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.errors import ShapeError
from sarlite.numerics.edge_sums import FloatSum
from sarlite.operators.contract import ROWS
from sarlite.operators.fn import MessageFunction
from sarlite.operators.message_replay import Program, Recording
from sarlite.operators.reducers import Reducer
from sarlite.structure.block import Edges
from sarlite.tape import Tensor
from sarlite.tape.recording import grad_enabled, retained, set_grad
from sarlite.types import Array

OTHER_VALUES = (3, -0.001, -100, 0.5)
"""Values of the source rows in the second of two recordings: both signs, large and small."""


class InputNames(NamedTuple):
    """Names of a message function's inputs, separately for source rows, destination rows and edge rows."""

    src: tuple[str, ...]
    dst: tuple[str, ...]
    edge: tuple[str, ...]


class Custom:
    """Operator out_i = reduce_j message(src_j, dst_i, edge_ij) whose message function is Python code with tape operations.

    The constructor calls the message function on one row of zeros, and on one row of other source values, and records
    both calls. The recordings show the shapes of the outputs, the learnable values that the function captures, and whether
    the backward pass needs the source rows.

    Parameters
    ----------
    message : callable (src, dst, edge) -> Tensor, or (score, value) for reducer "softmax"
    names : InputNames
    reducer : Reducer
    dst_ids : (n_dst,) int64
        Global ids of the local destination rows.
    n_nodes : int
        Number of nodes of the whole graph, from which global edge ids are computed.
    inputs : list of Tensor
        Inputs in the order of `names`: source inputs, destination inputs, edge inputs.

    Attributes
    ----------
    case2 : bool
        True if the backward pass needs the source rows.
    captured : tuple of Node or Tensor
        First `n_captured` learnable values that receive gradients, then tensors whose values alone are read.
    """

    def __init__(self, message: MessageFunction, names: InputNames, reducer: Reducer, dst_ids: Array, n_nodes: int,
                 inputs: list[Tensor]) -> None:
        self.message, self.names, self.reducer = message, names, reducer
        self.dst_ids, self.n_nodes, self.fetched = dst_ids, n_nodes, (ROWS,) * len(names.src)
        self._zeros = [np.zeros((1, *t.shape[1:]), t.dtype) for t in inputs]
        self._learns = [t.requires_grad for t in inputs]
        recording, self.case2, captured, read = self._record(self._zeros), False, [], []
        if grad_enabled():
            other = self._record_others()
            if other is None or recording.program.difference(other.program):
                recording = self._record(self._zeros)  # by now the message has filled any cache of its own
            if other is not None:
                self._check_edges_are_separate(recording, other)
            self.case2 = (reducer.needs_messages or recording.depends_on_src() or other is None
                          or not recording.same_tape(other))
            sinks = {id(sink): sink for run in (recording, other) if run is not None for sink in run.captured()}
            captured = sorted(sinks.values(), key=lambda sink: sink.time)
            read = recording.program.reads(captured)
            self._program = recording.program
        self.n_captured, self.captured = len(captured), (*captured, *read)
        self.templates = [(out.shape[1:], out.dtype) for out in recording.outputs]
        self._src_templates = [(z.shape[1:], z.dtype) for z in self._zeros[: len(names.src)]]

    def output(self, arrays):
        return (len(self.dst_ids), *self.templates[-1][0]), self.templates[0][1]

    def needs_rows(self, context):
        return any(context.wants_grad) and self.case2 and not context.sums.over_all_edges

    def forward(self, inputs, context):
        if context.sums.over_all_edges:
            return AllEdgesForward(self, inputs, context)
        return _CustomForward(self, inputs, context)

    def backward(self, residuals, g, context):
        if context.sums.over_all_edges:
            return _AllEdgesBackward(self, residuals, g, context)
        return _CustomBackward(self, residuals, g, context)

    def new_reducer(self) -> Reducer:
        """Return a copy of the reducer, whose state serves one forward and backward pass."""
        return copy.copy(self.reducer)

    def replay(self, block: Edges, rows: tuple[Array, ...] | None, others: Sequence[Array], wants_grad: Sequence[bool],
               record: bool) -> Recording:
        """Call the message function on a block's edges and return the `Recording`. `rows` are the source inputs (None: zeros, as their
        values do not matter), `others` the other inputs; the tape records the call if `record`.

        Parameters
        ----------
        block : Edges
        rows : tuple of (n_columns, ...) array, or None
            Source rows of the block's columns. With None (case 1) the message runs on zeros in their place.
        others : sequence of array
            Destination inputs, (n_dst, ...), followed by edge inputs, (n_edges of the part, ...).
        wants_grad : sequence of bool
            True for each input whose gradient is wanted.
        record : bool
            True if the tape records the run.
        """
        n_dst = len(self.names.dst)
        if rows is None:
            arrays = [np.zeros((block.n_edges, *shape), dtype) for shape, dtype in self._src_templates]
        else:
            arrays = [block.at_src(r) for r in rows]
        arrays += [block.at_dst(a) for a in others[:n_dst]]
        arrays += [block.at_edge(a) for a in others[n_dst:]]
        ids = self.ids(block.src_ids[block.indices], self.dst_ids[block.dst])
        with set_grad(record), nullcontext() if rows is not None else np.errstate(all="ignore"):
            return Recording(self.message, self.names, arrays, wants_grad, ids)

    def ids(self, src_ids: Array, dst_ids: Array) -> tuple[Array, Array, Array]:
        """Return (source ids, destination ids, edge ids) of edges, (n_edges,) int64 each, from the global ids of their ends.

        The id of an edge is source id * n_nodes + destination id.
        """
        edge_ids = src_ids * self.n_nodes
        edge_ids += dst_ids
        return src_ids, dst_ids, edge_ids

    def check_unchanged(self, again: bool) -> None:
        """Raise a RuntimeError if an array from outside that the message function reads has changed since the forward pass. With
        `again` also call the function once more, and raise the error if it runs other operations than in the forward pass.

        Parameters
        ----------
        again : bool
            True if the backward pass calls the message again, so that the message's operations are compared too.
        """
        difference = self._program.changed_array()
        if not difference and again:
            with set_grad(True):
                difference = self._program.difference(self._record(self._zeros).program)
        if difference:
            name = getattr(self.message, "__name__", type(self.message).__name__)
            raise RuntimeError(f"message {name} does something else in backward, which calls it again, than it did in "
                               f"forward: {difference}. Values that the message closes over must not change until "
                               "backward has ended; bind a loop's variable by a default, as in "
                               "lambda src, dst, edge, w=w: ...")

    def _record(self, arrays):
        with np.errstate(all="ignore"):  # a warning about made-up rows would mislead the user
            return Recording(self.message, self.names, arrays, self._learns, [np.zeros(1, np.int64)] * 3, Program())

    def _check_edges_are_separate(self, alone, other):
        """Raise a ShapeError if the message function, called on two edges at once, returns another row for the first edge than it does
        for this edge alone. `alone` and `other` are the recordings of the two edges, each alone.

        Blocks have any number of edges, so the result of such a function would depend on the division into parts.
        """
        name = getattr(self.message, "__name__", type(self.message).__name__)
        arrays = [np.concatenate([a._data, b._data]) for a, b in zip(alone.leaves, other.leaves)]
        try:
            with set_grad(False), np.errstate(all="ignore"):
                outputs = Recording(self.message, self.names, arrays, self._learns, [np.zeros(2, np.int64)] * 3).outputs
        except (ShapeError, ValueError) as error:
            raise ShapeError(f"message {name}: one edge can be computed, but not two at once: {error}") from error
        for one, both in zip(alone.outputs, outputs):
            first = both._data[:1]
            if first.shape != one.shape or not np.allclose(first, one._data, rtol=1e-3, atol=1e-5, equal_nan=True):
                raise ShapeError(f"message {name}: the row of an edge depends on other edges of the same call, as after a "
                                 "mean over axis 0, or after a product with one number an edge, shape (n_edges,), which "
                                 "counts as a row: a message computes each row from the edge's own rows")

    def _record_others(self):
        """Call the message function on a single edge and return the recording; None if the call raises an exception. The source
        rows are filled with `OTHER_VALUES`, unlike in the first recording, whose rows are zeros.
        """
        try:
            with np.errstate(all="ignore"):
                rows = [np.resize(OTHER_VALUES, z.shape).astype(z.dtype) for z in self._zeros[: len(self.names.src)]]
            return self._record([*rows, *self._zeros[len(self.names.src) :]])
        except Exception:
            return None


class _CustomForward:
    def __init__(self, operator, inputs, context):
        self.operator, self.wants_grad = operator, context.wants_grad
        self.others = inputs[len(operator.fetched) :]
        self.reducer = operator.new_reducer()
        self.reducer.begin(len(operator.dst_ids), operator.templates)

    def sweeps(self, rows):
        yield rows

    def add(self, block, rows):
        for piece in block.pieces:
            recording = self.operator.replay(piece, rows, self.others, self.wants_grad, record=False)
            self.reducer.forward(piece, [out._data for out in recording.outputs])
            del recording  # before the next piece's rows are gathered

    def finish(self):
        return self.reducer.end(), (self.reducer, self.others)


class _CustomBackward:
    def __init__(self, operator, residuals, g, context):
        operator.check_unchanged(again=True)
        self.operator, self.wants_grad = operator, context.wants_grad
        (self.reducer, self.others), n = residuals, len(operator.fetched)
        self.reducer.begin_backward(np.ascontiguousarray(g))
        self.d_others = [np.zeros_like(a) if wants else None for a, wants in zip(self.others, self.wants_grad[n:])]
        self.d_captured = [None] * operator.n_captured
        self.accumulators = context.sums.message_gradients(
            [np.empty((0, *shape), dtype) if wants else None
             for (shape, dtype), wants in zip(operator._src_templates, self.wants_grad)])

    def add(self, block, rows, accumulators):
        block = block.anew()  # a new object, so that its CSR of some columns is freed with the rows
        captured = self.operator.captured[: self.operator.n_captured]
        for piece in block.pieces:
            recording = self.operator.replay(piece, rows, self.others, self.wants_grad, record=True)
            g = self.reducer.backward(piece, [out._data for out in recording.outputs])
            gradients = recording.pull(g, captured)
            self._scatter(piece, [gradients.get(id(leaf)) for leaf in recording.leaves], accumulators)
            for k, sink in enumerate(captured):
                d = gradients.get(id(sink))
                if d is not None:  # copied, because two captured values may share one gradient array
                    self.d_captured[k] = np.array(d) if self.d_captured[k] is None else self.d_captured[k] + d

    def _scatter(self, block: Edges, d_edges: list[Array | None], accumulators: Sequence[FloatSum | None]) -> None:
        """Add the gradient of each input on each edge of `block`, the list `d_edges`, to the gradient of the row that the edge
        read. For source inputs this is an item of `accumulators`, for destination and edge inputs an array of `d_others`.

        Parameters
        ----------
        block : Edges
        d_edges : list of (n_edges, ...) array or None
            Gradient of each input of the message.
        accumulators : list of FloatSum or None
            Accumulators of the source rows' gradients.
        """
        n_src, n_dst = len(self.operator.names.src), len(self.operator.names.dst)
        csr = block.edges_by_column
        for accumulator, d_edge in zip(accumulators, d_edges):
            if accumulator is not None and d_edge is not None:
                accumulator.add_rows(csr, np.ascontiguousarray(d_edge))
        for k, (d, d_edge) in enumerate(zip(self.d_others, d_edges[n_src:])):
            if d is None or d_edge is None:
                continue
            if k < n_dst:
                block.sum_to_dst(d_edge, d)
            else:
                kernels.scatter_add_rows(np.ascontiguousarray(d_edge), block.edge_index_array, d)

    def finish(self):
        operator = self.operator
        return [*self.d_others, *self.d_captured, *[None] * (len(operator.captured) - operator.n_captured)]


class AllEdgesForward:
    """Forward pass of exact numerics, which gathers the source rows of every edge and calls the message function once.

    The gradients of the message's parameters are sums over edges. With one call for all edges, these sums are sums of
    the tape, which exact numerics can make exact. The recording is kept for the backward pass, which fetches no rows.

    Notes
    -----
    Memory: all values that the tape records for the message, for all in-edges of this rank at once.
    """

    def __init__(self, operator, inputs, context):
        self.operator, self.context, self.others = operator, context, inputs[len(operator.fetched) :]
        self.reducer, self.gathered = operator.new_reducer(), []
        self.reducer.begin(len(operator.dst_ids), operator.templates)

    def sweeps(self, rows):
        yield rows

    def add(self, block, rows):
        ids = block.src_ids[block.indices]
        self.gathered.append((block.dst, block.edge_index_array, ids, *(block.at_src(x) for x in rows)))

    def finish(self):
        operator, n_dst = self.operator, len(self.operator.names.dst)
        dst, edge_index, src_ids, *rows = (np.concatenate(parts) for parts in zip(*self.gathered))
        order = np.argsort(dst, kind="stable")
        edges = self.context.sums.all_edges(len(operator.dst_ids), dst[order], edge_index[order])
        del self.gathered
        arrays = [x[order] for x in rows]
        arrays += [edges.at_dst(a) for a in self.others[:n_dst]]
        arrays += [np.asarray(a)[edges.edge_index_array] for a in self.others[n_dst:]]
        keeps = any(self.context.wants_grad)
        with set_grad(keeps):
            ids = operator.ids(src_ids[order], operator.dst_ids[edges.dst])
            recording = Recording(operator.message, operator.names, arrays, self.context.wants_grad, ids)
        self.reducer.forward(edges, [out._data for out in recording.outputs])
        return self.reducer.end(), [self.reducer, edges, recording if keeps else None]


class _AllEdgesBackward:
    def __init__(self, operator, residuals, g, context):
        operator.check_unchanged(again=False)
        reducer, self.edges, recording = residuals
        if not retained():
            residuals.clear()
        n_src, n_dst, wants = len(operator.names.src), len(operator.names.dst), context.wants_grad
        reducer.begin_backward(np.ascontiguousarray(g))
        captured = operator.captured[: operator.n_captured]
        d_outputs = reducer.backward(self.edges, [out._data for out in recording.outputs])
        gradients = recording.pull(d_outputs, captured)
        d_edges = [np.ascontiguousarray(gradients.get(id(leaf), np.zeros_like(leaf._data))) if wanted else None
                   for leaf, wanted in zip(recording.leaves, wants)]
        self.d_src = d_edges[:n_src]
        self.accumulators = context.sums.message_gradients(self.d_src)
        self.d_others = [None if d is None else self.edges.sum_to_dst(d) for d in d_edges[n_src : n_src + n_dst]]
        self.d_others += [None if d is None else self.edges.in_order(d) for d in d_edges[n_src + n_dst :]]
        self.d_captured = [gradients.get(id(sink)) for sink in captured]
        self.d_captured += [None] * (len(operator.captured) - operator.n_captured)

    def add(self, block, rows, accumulators):
        block = block.anew()  # a new object, so that its CSR of some columns is freed with the rows
        gradient_rows = self.edges.position[block.edge_index_array]
        t_indptr, position = block.edges_by_column
        for d, accumulator in zip(self.d_src, accumulators):
            if d is not None and accumulator is not None:
                accumulator.add_rows((t_indptr, gradient_rows[position].astype(position.dtype)), d)

    def finish(self):
        return [*self.d_others, *self.d_captured]

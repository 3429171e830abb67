"""Reducers for message functions in Python: sum, mean, max, min and softmax over the edges of each destination."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from sarlite import kernels, numerics
from sarlite.errors import ShapeError
from sarlite.operators.layer_contract import LayerContract
from sarlite.structure.block import Edges
from sarlite.types import Array, ArrayDType


class Reducer(Protocol):
    """State of one reduction over edges, which receives the messages of one block after the other.

    A forward pass calls `begin`, `forward` for each block, and `end`. A backward pass calls `begin_backward`, and then
    `backward` for each block.

    Attributes
    ----------
    needs_messages : bool
        True if the backward pass needs the messages of the forward pass.
    """

    @property
    def needs_messages(self) -> bool: ...

    def begin(self, n_dst: int, templates: list[tuple[tuple[int, ...], ArrayDType]]) -> None:
        """Start a forward pass. `templates` holds (shape of one edge's row, dtype) for each tensor that the message function returns."""

    def forward(self, block: Edges, messages: list[Array]) -> None:
        """Add a block's messages to the output: `messages` has an (n_edges, ...) array per tensor that the message function returns."""

    def end(self) -> Array:
        """Return the reduced messages, (n_dst, ...)."""

    def begin_backward(self, g: Array) -> None:
        """Start a backward pass from `g`, the (n_dst, ...) gradient of the output."""

    def backward(self, block: Edges, messages: list[Array]) -> list[Array]:
        """Return the gradients of a block's messages, with the shapes of `messages`."""


def _only(templates: list[tuple[tuple[int, ...], ArrayDType]]) -> tuple[tuple[int, ...], ArrayDType]:
    """Return the only item of `templates`, the (row shape, dtype) of each tensor that a message function returns; raise a ShapeError if
    there are several.
    """
    if len(templates) != 1:
        raise ShapeError(f"the message returned {len(templates)} tensors, but only reducer 'softmax' takes a pair (score, value); "
                         "other reducers take one tensor")
    return templates[0]


class SumReducer:
    """Reducers sum and mean: out_i = s_i sum_e m_e, where s_i is 1 for a sum and 1 / degree for a mean."""

    needs_messages = False

    def __init__(self, dst_scale=None):
        self.dst_scale = dst_scale

    def begin(self, n_dst, templates):
        shape, dtype = _only(templates)
        self.scale = None if self.dst_scale is None else self.dst_scale.astype(dtype)
        self.out = np.zeros((n_dst, *shape), dtype)

    def forward(self, block, messages):
        block.sum_to_dst(messages[0], self.out, dst_scale=self.scale)

    def end(self):
        out, self.out = self.out, None
        return out

    def begin_backward(self, g):
        self.g = g if self.scale is None else g * self.scale.reshape(-1, *[1] * (g.ndim - 1))

    def backward(self, block, messages):
        return [block.at_dst(self.g)]


class ExtremumReducer:
    """Reducers max and min: the largest or smallest message of each destination, for each feature column.

    A tie goes to the source with the lowest global id, and among edges of one source to the first edge.
    """

    needs_messages = False

    def __init__(self, sign, edge_src_ids):
        self.sign, self.edge_src_ids = sign, edge_src_ids

    def begin(self, n_dst, templates):
        self.shape, dtype = _only(templates)
        flat = (n_dst, int(np.prod(self.shape)))
        self.out, self.argument = np.full(flat, -self.sign * np.inf, dtype), None

    def forward(self, block, messages):
        if self.argument is None:
            self.argument = np.full(self.out.shape, -1, block.indices.dtype)
        m = np.ascontiguousarray(messages[0]).reshape(block.n_edges, self.out.shape[1])
        kernels.extremum(block.indptr, None, m, self.out, self.argument, rows=block.rows,
                         sign=self.sign, label=block.edge_index_array, order=self.edge_src_ids)

    def end(self):
        out, self.out = self.out, None
        out[self.argument < 0] = 0
        return out.reshape(len(out), *self.shape)

    def begin_backward(self, g):
        self.g = g.reshape(self.argument.shape)

    def backward(self, block, messages):
        won = block.at_dst(self.argument) == block.edge_index_array[:, None]
        return [np.where(won, block.at_dst(self.g), 0).reshape(block.n_edges, *self.shape)]


class SoftmaxReducer:
    """Reducer softmax: out_i = sum_e softmax_e(score_e) value_e, with a running maximum over blocks (SAR paper, section 3.4).

    The message is a pair: score (n_edges, ...heads) and value (n_edges, ...heads, ...). A score of -inf masks its edge.
    If all edges of a node are masked, the node's output row is 0, and all gradients of its edges are 0.
    """

    needs_messages = True

    def begin(self, n_dst, templates):
        if len(templates) != 2 or templates[1][0][: len(templates[0][0])] != templates[0][0]:
            needed = "(score (n_edges, ...heads), value (n_edges, ...heads, ...))"
            shapes = [shape for shape, _ in templates]
            raise ShapeError(f"reducer 'softmax' needs a message {needed}, got rows of {shapes}")
        (heads, dtype), (self.shape, _) = templates
        n_heads = int(np.prod(heads))
        self.m = np.full((n_dst, n_heads), -np.inf, dtype)
        self.total = np.zeros((n_dst, n_heads), dtype)
        self.out = np.zeros((n_dst, n_heads, int(np.prod(self.shape[len(heads) :]))), dtype)

    def by_head(self, block, messages):
        score, value = (np.ascontiguousarray(m) for m in messages)
        return score.reshape(block.n_edges, self.m.shape[1]), value.reshape(block.n_edges, *self.out.shape[1:])

    def forward(self, block, messages):
        score, value = self.by_head(block, messages)
        rows = slice(None) if block.rows is None else block.rows
        top = self.m.copy()
        kernels.extremum(block.indptr, None, score, top, np.zeros(top.shape, block.indices.dtype), rows=block.rows,
                         sign=1, label=block.edge_index_array)
        shift = np.where(np.isneginf(top), 0, top)  # -inf - -inf would be NaN; with a finite shift the weights are 0
        shrink = np.exp(self.m[rows] - shift[rows])
        self.total[rows] *= shrink
        self.out[rows] *= shrink[:, :, None]
        p = self.weights(block, score, shift)
        block.sum_to_dst(p, self.total)
        block.sum_to_dst(value, self.out, weight=p)
        self.m = top

    def end(self):
        kernels.attend_finish(self.m, self.total, self.out)  # replaces `total` by 1 / total
        return self.out.reshape(len(self.out), *self.shape)

    def begin_backward(self, g):
        self.g = g.reshape(self.out.shape)
        self.delta = np.empty_like(self.m)
        kernels.row_dot(self.g, self.out, self.delta)

    def backward(self, block, messages):
        score, value = self.by_head(block, messages)
        a, g, d_score = self.weights(block, score, self.m), block.at_dst(self.g), np.empty_like(score)
        a *= block.at_dst(self.total)
        kernels.row_dot(g, value, d_score)
        d_score -= block.at_dst(self.delta)
        d_score *= a
        g *= a[:, :, None]
        return [d_score.reshape(messages[0].shape), g.reshape(messages[1].shape)]

    def weights(self, block: Edges, score: Array, top: Array) -> Array:
        """Return exp(score_e - top_i) for each edge e of a block, (n_edges, n_heads), where `top` has each destination's largest score."""
        out = block.at_dst(top)
        np.subtract(score, out, out=out)
        return numerics.exp(out, out=out)


REDUCERS: dict[str, Callable[[LayerContract], Reducer]] = {
    "sum": lambda graph: SumReducer(graph.scales("sum")[0]),
    "mean": lambda graph: SumReducer(graph.scales("mean")[0]),
    "max": lambda graph: ExtremumReducer(1, graph.edge_src_ids),
    "min": lambda graph: ExtremumReducer(-1, graph.edge_src_ids),
    "softmax": lambda graph: SoftmaxReducer(),
}

"""The operator that multiplies fetched rows by weights before it aggregates them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sarlite import kernels
from sarlite.numerics import reductions
from sarlite.numerics.edge_sums import FloatSum
from sarlite.operators.contract import ROWS, Context, Operator
from sarlite.schedule.row_format import FLOAT32
from sarlite.types import Array


@dataclass(frozen=True, eq=False)
class Transformed:
    """Operator that applies the operator `inner` to the products z_k = x W_k of a block's source rows x and weights W_k, computed block
    by block (SAR paper, equation 4).

    The inputs are x, (n_src, n_in), the weights W_k, and the inner operator's inputs other than the z_k. The weights
    are inside the message, so ranks exchange rows of x. Case 2 if a gradient of a weight is wanted or the inner
    operator is case 2. Nothing is kept for each edge. Only x may be rounded; the z_k are float32.

    Attributes
    ----------
    inner : Operator
        Operator whose first inputs are the z_k.
    shapes : list of tuple of int
        Shape of a row of each z_k. W_k has the shape (n_in, product of that shape).
    """

    inner: Operator
    shapes: list[tuple[int, ...]]

    fetched = (ROWS,)
    captured = ()

    def output(self, arrays):
        return self.inner.output(self.inner_inputs(arrays))

    def needs_rows(self, context):
        learns = context.wants_grad[1 : 1 + len(self.shapes)]
        return any(learns) or self.inner.needs_rows(self.inner_context(context))

    def forward(self, inputs, context):
        return _TransformedForward(self, inputs, context)

    def backward(self, residuals, g, context):
        return _TransformedBackward(self, residuals, g, context)

    def inner_inputs(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the inputs of the operator `inner` from the inputs `arrays` of this operator. An empty array, with the row shape and
        the dtype of the product, stands for each product z_k, which is computed block by block later.
        """
        dtype = kernels.wide(arrays[0].dtype)
        return [*(np.empty((0, *shape), dtype) for shape in self.shapes), *arrays[1 + len(self.shapes) :]]

    def inner_context(self, context: Context) -> Context:
        """Return the settings for the operator `inner`: `context` with gradient flags for the products z_k = x W_k, which want a
        gradient if x or W_k wants one.
        """
        n, wants = 1 + len(self.shapes), context.wants_grad
        inner_wants = [*(wants[0] or learns for learns in wants[1:n]), *wants[n:]]
        return context._replace(wants_grad=inner_wants, row_format=FLOAT32, single_block=False)

    def products(self, x: Array, weights: Sequence[Array]) -> list[Array]:
        """Return the list of z_k = x W_k, (n, ...) each, for rows x, (n, n_in)."""
        x = kernels.widen(x)
        return [reductions.product(x, weight).reshape(len(x), *shape) for weight, shape in zip(weights, self.shapes)]


class _TransformedForward:
    def __init__(self, operator, inputs, context):
        self.operator, self.weights = operator, inputs[1 : 1 + len(operator.shapes)]
        self.inner = operator.inner.forward(operator.inner_inputs(inputs), operator.inner_context(context))

    def sweeps(self, rows):
        yield rows

    def add(self, block, rows):
        self.inner.add(block, self.operator.products(rows[0], self.weights))

    def finish(self):
        out, residuals = self.inner.finish()
        return out, (self.weights, residuals)


class _TransformedBackward:
    def __init__(self, operator, residuals, g, context):
        self.operator, (self.weights, inner) = operator, residuals
        self.inner = operator.inner.backward(inner, g, operator.inner_context(context))
        self.d_weights = [np.zeros_like(weight) if learns else None
                          for weight, learns in zip(self.weights, context.wants_grad[1:])]
        self.needs_z = operator.inner.needs_rows(operator.inner_context(context))
        self.accumulators = [FloatSum((len(self.weights[0]),), self.weights[0].dtype)]

    def add(self, block, rows, accumulators):
        operator = self.operator
        x = kernels.widen(rows[0]) if rows is not None else None
        z = operator.products(x, self.weights) if self.needs_z else None
        d_z = [accumulator.start(block.n_src) for accumulator in self.inner.accumulators]
        self.inner.add(block, z, d_z)
        for weight, d_weight, accumulator in zip(self.weights, self.d_weights, d_z):
            d = accumulator.rounded().reshape(block.n_src, weight.shape[1])
            if d_weight is not None:
                d_weight += reductions.product_over_rows(x, d)
            if accumulators[0] is not None:
                reductions.product(d, weight, trans_b=True, into=accumulators[0].array)

    def finish(self):
        return [*self.d_weights, *self.inner.finish()]

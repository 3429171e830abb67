"""The operator over products of rows with weights that are made where they are used."""

import numpy as np

from sarlite.sar.aggregate import Operator
from sarlite.tape import reduce


class Transformed(Operator):
    """An operator over z_k = x W_k, each made of a block's x when the block is computed (SAR Eq. 4).

    The weights are inside the message: what travels is x. Case 2 where a weight learns, or where the operator is.
    Nothing an edge is kept. Of narrow rows x is narrow where it travels and is kept; the z_k and their gradients are
    float32.

    Parameters
    ----------
    inner : Operator
        Its first inputs are the z_k; those that follow are taken after x and the weights.
    shapes : list of tuple of int
        Of a row of each z_k, W_k being (n_in, their product).
    """

    may_narrow = True

    def __init__(self, inner, shapes):
        self.inner, self.shapes = inner, shapes

    def output(self, arrays):
        return self.inner.output(self._inputs(arrays))

    def begin(self, needs, arrays, keep):
        n = 1 + len(self.shapes)
        self.weights, self.learns = arrays[1:n], needs[1:n]
        of_z = [needs[0] or learns for learns in self.learns]
        self.inner.into = self.into
        self.inner.begin([*of_z, *needs[n:]], self._inputs(arrays), keep)
        self.needs_rows = any(self.learns) or self.inner.needs_rows

    def _inputs(self, arrays):
        """The operator's inputs where there is no row."""
        x, *others = arrays
        return [*(np.empty((0, *shape), x.dtype) for shape in self.shapes), *others[len(self.shapes) :]]

    def products(self, x):
        """Return the z_k of some rows."""
        x = self.widened(x)
        return [reduce.product(x, weight).reshape(len(x), *shape) for weight, shape in zip(self.weights, self.shapes)]

    def forward(self, block, rows):
        self.inner.forward(block, self.products(rows[0]))
        return rows if self.needs_rows else None

    def end(self):
        out = self.inner.end()
        self.into = self.inner.into = None  # which must not outlive its owner
        return out

    def begin_backward(self, g):
        self.inner.begin_backward(g)
        self.d_weights = [np.zeros_like(weight) if learns else None
                          for weight, learns in zip(self.weights, self.learns)]

    def backward(self, block, rows, kept, d_rows):
        x = self.widened((rows or kept)[0]) if self.needs_rows else None
        z = self.products(x) if self.inner.needs_rows else None
        d_z = [np.zeros((block.n_src, *shape), self.weights[0].dtype) for shape in self.shapes]
        self.inner.backward(block, z, None, d_z)
        for weight, d_weight, d in zip(self.weights, self.d_weights, d_z):
            d = d.reshape(len(d), weight.shape[1])
            if d_weight is not None:
                d_weight += reduce.product_over_rows(x, d)
            if d_rows[0] is not None:
                reduce.product(d, weight, trans_b=True, into=d_rows[0])

    def end_backward(self):
        return [*self.d_weights, *self.inner.end_backward()]

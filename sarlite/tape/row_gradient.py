"""RowGradient: the gradient of picked rows, which need not become an array of all rows."""

from typing import Any

import numpy as np

from sarlite.numerics.reductions import scatter_rows
from sarlite.types import Array


class RowGradient:
    """What a vjp may return of an array some of whose rows were picked: g[i] is to be added to row index[i].

    A leaf may take a RowGradient as it is (`Parameter.takes_row_gradients`); anywhere else it becomes an array.

    Parameters
    ----------
    index : (k,) int
    g : (k, ...) array
    n_rows : int
        Of the whole array.
    """

    def __init__(self, index: Array, g: Array, n_rows: int) -> None:
        self.index, self.g, self.n_rows = index, g, n_rows

    def whole(self) -> Array:
        """Return the gradient of all rows, (n_rows, ...)."""
        return scatter_rows(self.g, self.index, self.n_rows)

    def by_row(self) -> "RowGradient":
        """Return the same with each row once, ascending, in new arrays: once a vjp is over its g may be changed."""
        order = np.argsort(self.index, kind="stable")
        ascending = self.index[order]
        new = np.ones(len(order), bool)
        np.not_equal(ascending[1:], ascending[:-1], out=new[1:])
        if new.all():
            return RowGradient(ascending, self.g[order], self.n_rows)
        place = np.empty(len(order), np.int64)
        place[order] = np.cumsum(new) - 1
        return RowGradient(ascending[new], scatter_rows(self.g, place, np.count_nonzero(new)), self.n_rows)


def as_whole(g: Any) -> Any:
    """Return a gradient as an array."""
    return g.whole() if isinstance(g, RowGradient) else g

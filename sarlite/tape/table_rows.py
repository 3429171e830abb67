"""Rows of a table by number, which operations may read where they stand."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sarlite.kernels import Rows
from sarlite.tape.engine import Tensor
from sarlite.tape.primitives import Changes
from sarlite.tape.recording import now
from sarlite.types import Array


class TableRows(Tensor):
    """The tensor table[numbers]. A primitive that takes rows by number reads them in the table; any other gets a copy, and all do where
    somebody makes it a leaf, which requires a gradient.

    Parameters
    ----------
    rows : Rows
        Borrowed: neither the table nor the numbers change as long as a tape may read them.
    make : callable
        Returns the copy, a new array. It is made at most once, when first asked for; from then on it is what every operation reads.
    """

    __slots__ = ("_rows", "_made", "_make", "_whole")

    def __init__(self, rows: Rows, make: Callable[[], Array]) -> None:
        self._rows, self._make = rows, make
        self._made: Array | None = None
        self._whole: TableRows | None = None  # whose first rows these are
        self.constant = self.volatile = self.requires_grad = False
        self._changes, self.grad, self.node, self.time = Changes(rows.shape), None, None, now()

    @property
    def rows(self) -> Rows | None:  # type: ignore[override]
        copied = self._made is not None or (self._whole is not None and self._whole.rows is None)
        return None if copied or self.requires_grad else self._rows

    def first(self, n: int) -> "TableRows":
        """Return the first n rows: of the table or, once there is one, of the copy."""
        part = TableRows(self._rows.first(n), lambda: self.gathered()[:n])
        part._whole, part._changes = self, self._changes
        return part

    def and_more(self, numbers: Array) -> "TableRows":
        """Return these rows of the table, and behind them further ones."""
        rows = self._rows.and_more(numbers)
        return TableRows(rows, rows.array)

    def gathered(self) -> Array:
        """Return the copy."""
        if self._made is None:
            self._made = self._make()
        return self._made

    @property
    def _data(self) -> Array:
        return self.gathered()

    @_data.setter
    def _data(self, value: Array) -> None:
        self._made = value

    @property
    def shape(self) -> tuple[int, ...]:
        return self._rows.shape if self._made is None else self._made.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._rows.dtype if self._made is None else self._made.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def __len__(self) -> int:
        return self.shape[0]

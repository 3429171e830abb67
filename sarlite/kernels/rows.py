"""Kernels that gather, scatter and add rows, and dropout."""

from dataclasses import dataclass

import numpy as np

from sarlite.kernels.native import (
    BFLOAT16,
    FLOATS,
    INDEXES,
    ROWS,
    call,
    check,
    check_apart,
    check_range,
    check_rows,
    key64,
    probability,
    row_width,
)
from sarlite.types import Array, RowIndex


@dataclass(frozen=True, eq=False)
class Rows:
    """The array table[numbers], represented without a copy by the array `table` and the row numbers `numbers`.

    Attributes
    ----------
    table : (n_rows, ...) array
    numbers : (n,) int32 or int64
        Row numbers in [0, n_rows).

    Examples
    --------
    >>> rows = Rows(np.array([[1.0], [2.0], [4.0]]), np.array([2, 0]))
    >>> rows.shape, rows.array().tolist()
    ((2, 1), [[4.0], [1.0]])
    """

    table: np.ndarray
    numbers: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.numbers), *self.table.shape[1:]

    @property
    def ndim(self) -> int:
        return self.table.ndim

    @property
    def dtype(self) -> np.dtype:
        return self.table.dtype

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return a slice of the rows as a new array."""
        return Rows(self.table, self.numbers[rows]).array()

    def first(self, n: int) -> "Rows":
        """Return the first n rows, without a copy."""
        return Rows(self.table, self.numbers[:n])

    def numbers_at(self, index: np.ndarray) -> np.ndarray:
        """Map positions among these rows to row numbers of the table: return numbers[index] in index's dtype.

        The result can be the argument `indices` of `spmm`, together with the table.

        `index` is (k,) int32 or int64 in [0, n), which is not checked.
        """
        if index.dtype != self.numbers.dtype:
            return self.numbers[index].astype(index.dtype)
        out = index.copy()
        call(f"sar_number_columns_{INDEXES[index.dtype]}", out, np.ascontiguousarray(self.numbers), len(out))
        return out

    def and_more(self, numbers: np.ndarray) -> "Rows":
        """Return these rows followed by the table's rows with the given numbers, without a copy."""
        return Rows(self.table, np.concatenate([self.numbers, numbers]))

    def array(self) -> np.ndarray:
        """Return the rows as a new array, (n, ...)."""
        out = np.empty(self.shape, self.dtype)
        copy_rows(self, slice(None), out)
        return out


def copy_rows(x: Array | Rows, rows: RowIndex, out: Array) -> None:
    """Copy rows: overwrite ``out = x[rows]``, where x may be an array or a `Rows`, and `rows` a slice or row numbers.

    Parameters
    ----------
    x : (n, ...) array of numbers, or Rows
    rows : (k,) int32 or int64, or slice
    out : (k, ...), x's dtype and trailing shape
    """
    if isinstance(x, Rows):
        rows, x = x.numbers[rows], x.table
    if isinstance(rows, slice):
        out[...] = x[rows]
    elif x.dtype in ROWS:
        gather_rows(x, rows, out)
    else:
        np.take(x, rows, 0, out)


def gather_rows(x: Array, index: Array, out: Array) -> None:
    """Gather rows: overwrite ``out[k] = x[index[k]]``.

    Parameters
    ----------
    x : (n, ...) float32, float64, or uint16 as bfloat16
    index : (k,) int32 or int64
    out : (k, ...), x's dtype and trailing shape

    Raises
    ------
    ShapeError
        An argument is wrong, or a row number is not in [0, n).

    Notes
    -----
    O(k * F) time.

    Examples
    --------
    >>> out = np.empty((2, 1))
    >>> gather_rows(np.array([[1.0], [2.0], [4.0]]), np.array([2, 0]), out)
    >>> out.tolist()
    [[4.0], [1.0]]
    """
    check_rows("x", x, dtype=ROWS)
    check("index", index, dtype=INDEXES, shape=(None,))
    check("out", out, dtype=x.dtype, shape=(len(index), *x.shape[1:]), out=True)
    check_apart(out, x=x)
    n, width = len(x), row_width(x)
    if x.dtype == BFLOAT16 and width % 2:  # the kernel copies pairs of bfloat16 as float32
        check_range("index", index, n)
        np.take(x, index, 0, out, "clip")
        return
    if x.dtype == BFLOAT16:
        x, out, width = x.reshape(-1).view(np.float32), out.reshape(-1).view(np.float32), width // 2
    call(f"sar_gather_rows_forward_{FLOATS[x.dtype]}_{INDEXES[index.dtype]}", out, x, index, n, len(index), width)


def scatter_add_rows(rows: Array, index: Array, out: Array) -> None:
    """Add rows: ``out[index[k]] += rows[k]``. The row numbers must be distinct, because rows are added in parallel.

    Parameters
    ----------
    rows : (k, ...) float32 or float64
    index : (k,) int32 or int64
    out : (n, ...), rows' dtype and trailing shape
        Accumulates.

    Raises
    ------
    ShapeError
        An argument is wrong, or a row number is not in [0, n).

    Notes
    -----
    O(k * F) time. It is the gradient of `gather_rows`.
    """
    check_rows("rows", rows)
    check("index", index, dtype=INDEXES, shape=(len(rows),))
    check("out", out, dtype=rows.dtype, shape=(None, *rows.shape[1:]), out=True)
    check_apart(out, rows=rows)
    kernel = f"sar_gather_rows_backward_{FLOATS[rows.dtype]}_{INDEXES[index.dtype]}"
    call(kernel, out, rows, index, len(out), len(index), row_width(rows))


def add(a: Array, b: Array, out: Array) -> None:
    """Add two arrays on all threads: overwrite ``out = a + b``.

    Parameters
    ----------
    a, b : (...) float32 or float64, of one shape and dtype
    out : shape and dtype of a
        It may be `a` or `b` itself.

    Notes
    -----
    O(n) time, on all threads.
    """
    check("a", a, dtype=FLOATS)
    check("b", b, dtype=a.dtype, shape=a.shape)
    check("out", out, dtype=a.dtype, shape=a.shape, out=True)
    call(f"sar_add_forward_{FLOATS[a.dtype]}", out, a, b, a.size)


def dropout(x: Array, ids: Array, key: int, p: float, out: Array) -> None:
    """Overwrite ``out[r,c] = x[r,c] * factor``; the factor, 0 or 1 / (1 - p), is a random function of `key`, ids[r] and c.

    Parameters
    ----------
    x : (n, ...) float32 or float64
        c is the position of a value in its row, counted over all trailing axes.
    ids : (n,) int64
        Global ids of the rows.
    key : int
        Key of the random numbers, taken modulo 2^64.
    p : float
        Probability of dropping a value, in [0, 1).
    out : x's shape and dtype

    Notes
    -----
    O(n * F) time. Value c is dropped if word c % 4 of Philox4x32-10, with counter (id_low, id_high, c // 4, 0) and key
    (key_low, key_high), is below floor(p * 2^32). The gradient is the same call with the gradient in place of x.

    References
    ----------
    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
    """
    check_rows("x", x)
    check("ids", ids, dtype=np.int64, shape=(len(x),))
    check("out", out, dtype=x.dtype, shape=x.shape, out=True)
    check_apart(out, x=x)
    drop = {"ids": ids, "key": key64(key), "p": probability(p)}
    call(f"sar_dropout_forward_{FLOATS[x.dtype]}", out, x, drop, len(x), row_width(x))

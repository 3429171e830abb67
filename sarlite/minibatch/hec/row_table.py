"""Table of rows, addressed by row number. Each row has the step that computed it.

It stores the historical cache, and the rows that peers may request.
"""

import math
import operator
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.errors import CheckpointError, check_int
from sarlite.types import Array, ArrayDType


class Ordered(NamedTuple):
    """Rows of an array in a given order, gathered from the array when they are read.

    Attributes
    ----------
    array : (n, ...) array
    order : (k,) int array
        Row numbers of `array`.
    """

    array: Array
    order: Array

    @property
    def dtype(self) -> ArrayDType:
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.order), *self.array.shape[1:])

    def pieces(self, n_bytes: int = 1 << 21) -> Iterator[Array]:
        """Yield the rows in the given order as arrays of about `n_bytes` bytes each."""
        step = max(1, n_bytes // max(1, self.dtype.itemsize * math.prod(self.shape[1:])))
        for begin in range(0, len(self.order), step):
            yield np.ascontiguousarray(self.array[self.order[begin : begin + step]])

    def read(self) -> Array:
        """Return all rows in the given order as a new array."""
        return np.ascontiguousarray(self.array[self.order])


class RowTable:
    """Table of rows, addressed by row number. Each row has the training step that computed it.

        table = RowTable(n_lines, n_rows, life=3)
        table.put(numbers, steps, rows)
        lines = table.find(wanted, step)
        hits = lines >= 0
        table.take(lines[hits], x[: hits.sum()])

    Parameters
    ----------
    n_lines : int
        Largest number of rows in the table, at least 1; the table never allocates more than n_rows lines.
    n_rows : int
        Number of different rows; row numbers are 0 .. n_rows - 1.
    life : int, optional
        Largest age of a hit, in steps since the row was computed; by default rows never expire.

    Raises
    ------
    ConfigError
        A size is not a whole number or is too small.
    ShapeError
        A size is 2^31 or more.

    Notes
    -----
    All methods are local to the rank, and one thread at a time may call them. The number of kernel threads does not
    change results. Memory: n_lines * (24 + bytes of a row) + 4 n_rows bytes. The rows' memory is allocated with the
    first row, outside a step's buffers. Source: DistGNN-MB 3.2 (HECSearch, HECLoad, HECStore). In the paper an age
    counts from the receipt of the row, and a hash finds a line.
    """

    def __init__(self, n_lines: int, n_rows: int, life: int | None = None) -> None:
        self.n_lines = min(check_int("n_lines", n_lines, 1), check_int("n_rows", n_rows, 0))
        self.n_rows, self.life = operator.index(n_rows), None if life is None else check_int("life", life, 0)
        self._lines: kernels.Lines = self._empty()
        self._rows: Array | None = None

    def __len__(self) -> int:
        """Return the number of rows in the table, including expired rows."""
        return len(self._lines.order())

    @property
    def nbytes(self) -> int:
        """Number of bytes of the table's arrays; the array of rows is allocated, and counts, once a row is stored."""
        return self._lines.nbytes + (0 if self._rows is None else self._rows.nbytes)

    def put(self, numbers: Array, steps: int | Array, rows: Array) -> None:
        """Store `rows` under the row numbers `numbers`; `steps` are the training steps that computed the rows.

        A row replaces a stored row with the same number, even a newer row. A new number takes an empty line, or if
        there is none the line of the row with the smallest step; of several such rows the row that was stored first.

        Parameters
        ----------
        numbers : (n,) int32
            Row numbers; n may exceed the number of lines, and a number may repeat.
        steps : int or (n,) int64
            Training step that computed the rows, at least 0.
        rows : (n, ...) float32, float64, or uint16 as bfloat16
            Rows, copied. All calls must use the same dtype and row shape.

        Raises
        ------
        ShapeError
            An argument does not fit; the message names it. The table is unchanged then.

        Notes
        -----
        O(n) time, and for each row a visit to each newer step that the table has rows of. Copies use all threads.
        """
        steps = steps if isinstance(steps, np.ndarray) else np.full(len(numbers), operator.index(steps))
        room = self._room(rows) if self._rows is None else self._rows
        self._lines.store(numbers, steps, rows, room)
        if len(rows):
            self._rows = room

    def find(self, numbers: Array, now: int) -> Array:
        """Return, for each row number, the row's position in the table's memory; -1 if it is missing or expired at step `now`.

        Parameters
        ----------
        numbers : (n,) int32
        now : int
            The step of the search.

        Returns
        -------
        (n,) int32
            Line of each row, which `take` and `made` accept until the next `put`; -1 for a miss. A row is a miss if it
            is not in the table, or if its age, `now` minus the step that computed the row, is above `life`.

        Raises
        ------
        ShapeError
            An argument does not fit; the message names it.

        Notes
        -----
        O(n) time, on all threads.
        """
        return self._lines.lookup(numbers, now, self.life)

    def take(self, lines: Array, out: Array) -> None:
        """Copy the rows at the positions `lines` of the table's memory, as `find` returns them, to the array `out`.

        Parameters
        ----------
        lines : (n,) int32
            Hits of `find`.
        out : (n, ...) array
            Overwritten. It has the dtype and the row shape of the table's rows.

        Raises
        ------
        ShapeError
            An argument does not fit, or a line is -1. The message names the argument; `lines` are named `index`.

        Notes
        -----
        O(n) time, on all threads.
        """
        kernels.gather_rows(out[:0] if self._rows is None else self._rows, lines, out)

    def made(self, lines: Array) -> Array:
        """Return the training step that computed each of the rows at the positions `lines` that `find` returned, (n,) int64."""
        return np.ascontiguousarray(self._lines.lines["made"][lines])

    def contents(self) -> dict[str, Ordered]:
        """Return {"halo": row numbers, "made": training steps, "rows": rows}, oldest first, without a copy; valid until the next `put`.

        Returns
        -------
        dict
            "halo", the row numbers, (n,) int32; "made", the training steps that computed the rows, (n,) int64; and
            "rows", (n, ...). Expired rows are included. `load` accepts a copy.
        """
        order, lines = self._lines.order(), self._lines.lines
        rows = np.zeros(0, np.float32) if self._rows is None else self._rows
        return {name: Ordered(array, order) for name, array in (("halo", lines["halo"]), ("made", lines["made"]),
                                                                ("rows", rows))}

    def state(self) -> dict[str, Array]:
        """Return copies of the table's arrays, {"halo": row numbers, "made": training steps, "rows": rows}, which `load` accepts."""
        return {name: array.read() for name, array in self.contents().items()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Replace all rows by the rows of another table's `state`. Both tables then behave alike.

        Parameters
        ----------
        state : mapping
            Result of `state`. Further entries are not read.

        Raises
        ------
        CheckpointError, ShapeError
            An array is missing, or has another shape or dtype; there are more rows than lines; a number occurs twice;
            or the rows are not in order of age. The table is unchanged then.
        """
        for name in ("halo", "made", "rows"):
            if name not in state:
                raise CheckpointError(f"cache: {name!r} is missing")
        numbers, rows, lines, room = state["halo"], state["rows"], self._empty(), self._room(state["rows"])
        lines.store(numbers, state["made"], rows, room)
        if len(numbers) > self.n_lines:
            raise CheckpointError(f"cache: {len(numbers)} rows, but {self.n_lines} lines")
        if not np.array_equal(lines.lines["halo"][lines.order()], numbers):
            raise CheckpointError("cache: rows are not in order of age, or a number is there twice")
        self._lines, self._rows = lines, room if len(rows) else None

    def _empty(self):
        return kernels.outside_buffers(kernels.Lines, self.n_lines, self.n_rows)

    def _room(self, rows: Array) -> Array:
        """Return uninitialized memory for the `n_lines` rows that this table has room for, with the dtype and row shape of `rows`."""
        shape = self.n_lines, *np.shape(rows)[1:]
        return kernels.outside_buffers(np.empty, shape, getattr(rows, "dtype", np.float32))

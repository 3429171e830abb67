"""Rows by number, each with the step in which it was made: the historical cache, and rows that peers may ask for."""

import math
import operator
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.errors import CheckpointError, whole
from sarlite.types import Array


class Ordered(NamedTuple):
    """Rows of an array in some order. They are gathered when they are asked for, so they are those that are there then.

    Attributes
    ----------
    array : (n, ...) array
    order : (k,) int array
    """

    array: Array
    order: Array

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.order), *self.array.shape[1:])

    def pieces(self, n_bytes: int = 1 << 21) -> Iterator[Array]:
        """Yield the rows in order, about `n_bytes` at a time."""
        step = max(1, n_bytes // max(1, self.dtype.itemsize * math.prod(self.shape[1:])))
        for begin in range(0, len(self.order), step):
            yield np.ascontiguousarray(self.array[self.order[begin : begin + step]])

    def whole(self) -> Array:
        """Return all rows, a new array."""
        return np.ascontiguousarray(self.array[self.order])


class Table:
    """Rows as they were when they were made, each with the step of that: put in, found and taken by number.

        table = Table(n_lines, n_rows, life=3)
        table.put(numbers, made, rows)
        lines = table.find(wanted, step)
        hits = lines >= 0
        table.take(lines[hits], x[: hits.sum()])

    Parameters
    ----------
    n_lines : int
        Rows that it can hold, at least 1; no more than n_rows are taken.
    n_rows : int
        Rows that there are; they are known by their number, 0 .. n_rows.
    life : int, optional
        The largest age of a hit, in steps from when the row was made; without it rows never expire.

    Raises
    ------
    ConfigError
        A value that is no whole number or too small.
    ShapeError
        2^31 rows or more.

    Notes
    -----
    Every method is of this rank alone, and for one thread at a time. The number of threads changes nothing but the
    time.
    Memory: n_lines (24 + the bytes of a row) + 4 n_rows. That of the rows is taken with the first one, outside of a
    step's buffers.
    Source: DistGNN-MB 3.2 (HECSearch, HECLoad, HECStore). There an age counts from the row's receipt, and hashing finds
    a line.
    """

    def __init__(self, n_lines: int, n_rows: int, life: int | None = None) -> None:
        self.n_lines = min(whole("n_lines", n_lines, 1), whole("n_rows", n_rows, 0))
        self.n_rows, self.life = operator.index(n_rows), None if life is None else whole("life", life, 0)
        self._lines: kernels.Lines = self._empty()
        self._rows: Array | None = None

    def __len__(self) -> int:
        """How many lines have a row, expired ones too."""
        return len(self._lines.order())

    @property
    def nbytes(self) -> int:
        """Bytes that it holds, those of the rows once there is one."""
        return self._lines.nbytes + (0 if self._rows is None else self._rows.nbytes)

    def put(self, numbers: Array, made: int | Array, rows: Array) -> None:
        """Take rows in, one after another.

        A row whose number is there replaces that one, even a newer one. Any other takes an empty line, else that of the
        oldest row: by `made`, and of equal `made` the first to come.

        Parameters
        ----------
        numbers : (n,) int32
            n may exceed the lines, and a number may be there more than once.
        made : int or (n,) int64
            The step in which the rows were made, at least 0.
        rows : (n, ...) float32, float64, or uint16 as bfloat16
            Copied. Of the dtype and trailing shape of the first ones.

        Raises
        ------
        ShapeError
            Naming the argument. Nothing has changed then.

        Notes
        -----
        O(n) time, and for each row a look at each newer step that rows are there of. Copies on all threads.
        """
        steps = made if isinstance(made, np.ndarray) else np.full(len(numbers), operator.index(made))
        room = self._room(rows) if self._rows is None else self._rows
        self._lines.store(numbers, steps, rows, room)
        if len(rows):
            self._rows = room

    def find(self, numbers: Array, now: int) -> Array:
        """Find rows by their numbers.

        Parameters
        ----------
        numbers : (n,) int32
        now : int
            The step of the search.

        Returns
        -------
        (n,) int32
            The line of each, for `take` and `made` and until the next `put`; -1 for a miss: it is not there, or now -
            made > life.

        Raises
        ------
        ShapeError
            Naming the argument.

        Notes
        -----
        O(n) time, on all threads.
        """
        return self._lines.lookup(numbers, now, self.life)

    def take(self, lines: Array, out: Array) -> None:
        """Copy the rows of some lines.

        Parameters
        ----------
        lines : (n,) int32
            Hits of `find`.
        out : (n, ...), rows' dtype and trailing shape
            Overwritten.

        Raises
        ------
        ShapeError
            Naming the argument (`lines` are an index there); also for a miss among the lines.

        Notes
        -----
        O(n) time, on all threads.
        """
        kernels.gather_rows(out[:0] if self._rows is None else self._rows, lines, out)

    def made(self, lines: Array) -> Array:
        """Return the steps in which the rows of some lines were made, (n,) int64."""
        return np.ascontiguousarray(self._lines.lines["made"][lines])

    def contents(self) -> dict[str, Ordered]:
        """Return what is in the table, in place, until the next `put`; `load` takes it copied.

        Returns
        -------
        dict
            "halo", the numbers, (n,) int32, "made" (n,) int64 and "rows" (n, ...), oldest first, expired rows too.
        """
        order, lines = self._lines.order(), self._lines.lines
        rows = np.zeros(0, np.float32) if self._rows is None else self._rows
        return {name: Ordered(array, order) for name, array in (("halo", lines["halo"]), ("made", lines["made"]),
                                                                ("rows", rows))}

    def state(self) -> dict[str, Array]:
        """Return copies of `contents`, to `load` them again; as many bytes again."""
        return {name: array.whole() for name, array in self.contents().items()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Forget all and take in what `state` of a table gave. From here on the two do the same.

        Parameters
        ----------
        state : mapping
            As `state` returns it. Further entries are not read.

        Raises
        ------
        CheckpointError, ShapeError
            An array is missing, or has another shape or dtype; more rows than lines; a number twice, or rows not in
            order of age.
            Nothing has changed then.
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

    def _room(self, rows):
        """Memory for as many rows as there are lines; the system gives it when they are written."""
        shape = self.n_lines, *np.shape(rows)[1:]
        return kernels.outside_buffers(np.empty, shape, getattr(rows, "dtype", np.float32))

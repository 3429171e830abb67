"""`Lines`, the directory of a cache of rows: which row is in each line, and how old the row is."""

import numpy as np

from sarlite.errors import ShapeError
from sarlite.kernels.native import LINE, ROWS, call, check, check_apart, check_range, check_rows, row_width
from sarlite.types import Array

MOST = 2**31 - 1
"""Largest number of lines and of halo rows, whose numbers are int32."""
_EVER = 2**63 - 1  # an age that no row reaches


class Lines:
    """Directory of a cache: for each line, the halo row in the line and the step that computed the row.

    The lines are ordered by these steps, and are empty at first. The caller holds the array with the rows themselves.

    Parameters
    ----------
    n_lines : int
        Number of lines, at least 0 and below 2^31. At most n_halo lines are used.
    n_halo : int
        Number of halo rows, below 2^31. Rows are given by their number in [0, n_halo).

    Raises
    ------
    ShapeError
        A size is out of bounds.

    Notes
    -----
    Memory: 24 (n_lines + 1) + 4 n_halo bytes. An array maps each halo row to its line, and a linked ring orders the
    lines. Only one thread may call methods at a time.

    Examples
    --------
    >>> lines, cache = Lines(2, 5), np.zeros((2, 1))
    >>> numbers, steps = np.array([4, 0], np.int32), np.array([7, 8])
    >>> lines.store(numbers, steps, np.array([[40.0], [0.5]]), cache)
    >>> hits = lines.lookup(np.array([0, 3], np.int32), now=9)
    >>> int(hits[1]), cache[hits[0]].tolist()
    (-1, [0.5])
    """

    def __init__(self, n_lines, n_halo):
        for name, n in (("n_lines", n_lines), ("n_halo", n_halo)):
            if not 0 <= n <= MOST:
                raise ShapeError(f"{name} must be in 0 .. 2^31 - 1, got {n}")
        self.n_lines, self.n_halo = int(n_lines), int(n_halo)
        self.lines, self.place = np.empty(self.n_lines + 1, LINE), np.empty(self.n_halo, np.int32)
        call("sar_cache_clear", self.lines, self.place, self.n_lines, self.n_halo)

    @property
    def nbytes(self):
        return self.lines.nbytes + self.place.nbytes

    def store(self, halo: Array, made: Array, rows: Array, out: Array) -> None:
        """Cache `rows`, the halo rows (rows of other ranks) with numbers `halo`, computed in the training steps `made`. Each row is
        copied to out[line], where the line is an empty one or the line of the oldest row.

        A row replaces an older version of itself in the same line. Otherwise it takes an empty line, or the line of the
        oldest row, which is evicted. Among rows of the same step, the row stored last counts as the newest.

        Parameters
        ----------
        halo : (n,) int32
            Numbers of the rows. n may exceed n_lines, and numbers may repeat.
        made : (n,) int64
            Step that computed each row, at least 0.
        rows : (n, ...) float32, float64, or uint16 as bfloat16
            The rows.
        out : (n_lines, ...), rows' dtype and shape of a row
            The cached row of each line; updated.

        Raises
        ------
        ShapeError
            An argument is wrong. Then nothing has changed.

        Notes
        -----
        O(n) time, plus for each row a visit to each newer step that lines have rows of. All threads copy rows; one
        thread does the rest.
        """
        self._check(halo)
        check("made", made, dtype=np.int64, shape=(len(halo),))
        if len(made) and made.min() < 0:
            raise ShapeError(f"made must be at least 0, got {made.min()}")
        check_rows("rows", rows, len(halo), dtype=ROWS)
        check("out", out, dtype=rows.dtype, shape=(self.n_lines, *rows.shape[1:]), out=True)
        check_apart(out, rows=rows)
        if len(halo) and not self.n_lines:
            raise ShapeError(f"halo must be empty where there are no lines; got {len(halo)} rows")
        taken = np.empty(len(halo), np.int32)
        call("sar_cache_store", taken, self.lines, self.place, halo, made, self.n_lines, len(halo))
        call("sar_cache_write", _bytes(out), _bytes(rows), taken, len(rows), row_width(rows) * rows.itemsize)

    def lookup(self, halo: Array, now: int, life: int | None = None) -> Array:
        """Return the cache line of each halo row number in `halo`; -1 if the row is not cached, or was computed more than `life` steps
        before step `now` (None: no limit).

        Parameters
        ----------
        halo : (n,) int32
            Numbers of the rows.
        now : int
            Step of the lookup, at least 0.
        life : int, optional
            Largest age of a hit: now - made <= life. By default there is no limit.

        Returns
        -------
        (n,) int32

        Notes
        -----
        O(n) time, on all threads.
        """
        self._check(halo)
        if not 0 <= now <= _EVER:
            raise ShapeError(f"now must be a step, at least 0, got {now}")
        hits = np.empty(len(halo), np.int32)
        life = _EVER if life is None else int(life)
        call("sar_cache_lookup", hits, self.lines, self.place, halo, int(now), life, len(halo))
        return hits

    def order(self) -> Array:
        """Return the indices of the cache lines that are not empty, oldest row first, (n,) int32, in O(n_lines) time."""
        order, n = np.empty(self.n_lines, np.int32), np.zeros(1, np.int64)
        call("sar_cache_order", order, n, self.lines, self.n_lines)
        return order[: int(n[0])].copy()

    def _check(self, halo):
        check("halo", halo, dtype=np.int32, shape=(None,))
        check_range("halo", halo, self.n_halo)


def _bytes(a):
    return a.reshape(-1).view(np.uint8)

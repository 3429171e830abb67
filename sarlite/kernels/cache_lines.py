"""`Lines`: which rows the lines of a cache have, and how old they are."""

import numpy as np

from sarlite.errors import ShapeError
from sarlite.kernels.native import LINE, ROWS, call, check, check_apart, check_range, check_rows, row_width

MOST = 2**31 - 1
"""Lines, and rows of the halo, at most: their numbers are int32."""
_EVER = 2**63 - 1  # no row is that old


class Lines:
    """Lines of a cache: the row in each line, the step that computed it, and the order by age. Initially empty.

        lines = Lines(n_lines, n_halo)
        lines.store(halo, made, rows, out)              # out (n_lines, ...) is the caller's
        found = lines.lookup(wanted, now, life)         # out[found] are the wanted rows

    Parameters
    ----------
    n_lines : int
        At least 0. No more than n_halo of them are ever used.
    n_halo : int
        Rows of the halo, which are known by their number. Below 2^31, as is n_lines.

    Raises
    ------
    ShapeError
        Sizes out of these bounds.

    Notes
    -----
    Memory: 24 (n_lines + 1) + 4 n_halo bytes. A direct index finds a row's line, a ring orders the lines. Only one
    thread may be in a call at a time.
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

    def store(self, halo, made, rows, out):
        """Assign lines to rows, one after another, and copy the rows there.

        A row keeps the line that its number has. Else it takes an empty line, or the oldest line, whose row is
        forgotten. Among the lines with the same `made` it is then the newest.

        Parameters
        ----------
        halo : (n,) int32
            Numbers of the rows. n may exceed n_lines, and a number may be there more than once.
        made : (n,) int64
            The step in which each row was made, at least 0.
        rows : (n, ...) float32, float64, or uint16 as bfloat16
        out : (n_lines, ...), rows' dtype and trailing shape
            The rows of the lines. Overwritten where one of `rows` has a line now.

        Raises
        ------
        ShapeError
            Naming the argument. Nothing has changed then.

        Notes
        -----
        O(n) time, and for each row a look at each newer step of which lines have rows. All threads make the copies; one
        does the rest.
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

    def lookup(self, halo, now, life=None):
        """Return the lines of rows.

        Parameters
        ----------
        halo : (n,) int32
        now : int
            The step of the lookup, at least 0.
        life : int, optional
            The largest age of a hit: now - made <= life. By default any age is.

        Returns
        -------
        (n,) int32
            Each row's line, or -1.

        Notes
        -----
        O(n) time, on all threads.
        """
        self._check(halo)
        if not 0 <= now <= _EVER:
            raise ShapeError(f"now must be a step, at least 0, got {now}")
        found = np.empty(len(halo), np.int32)
        life = _EVER if life is None else int(life)
        call("sar_cache_lookup", found, self.lines, self.place, halo, int(now), life, len(halo))
        return found

    def order(self):
        """Return the lines that are not empty, oldest first, (n,) int32. O(n_lines) time."""
        order, n = np.empty(self.n_lines, np.int32), np.zeros(1, np.int64)
        call("sar_cache_order", order, n, self.lines, self.n_lines)
        return order[: int(n[0])].copy()

    def _check(self, halo):
        check("halo", halo, dtype=np.int32, shape=(None,))
        check_range("halo", halo, self.n_halo)


def _bytes(a):
    return a.reshape(-1).view(np.uint8)

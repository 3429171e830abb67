"""Arrays of a length that is not known before, written to files of scratch."""

import numpy as np

from sarlite.data.external import write_all
from sarlite.errors import writing


class Spool:
    """Rows appended to a file, then mapped."""

    def __init__(self, path, dtype=None):
        self._path, self._dtype, self._shape, self.n_rows = path, dtype, (), 0
        with writing(path):
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115, closed by `array`

    def write(self, rows):
        """Append rows, of the dtype and the width of the first ones."""
        rows = np.asarray(rows, self._dtype)
        self._dtype, self._shape, self.n_rows = rows.dtype, rows.shape[1:], self.n_rows + len(rows)
        with writing(self._path):
            write_all(self._file, rows)

    def array(self):
        """Close the file and return its rows: a map, or an empty array."""
        self._file.close()
        shape = (self.n_rows, *self._shape)
        return np.memmap(self._path, self._dtype, "r", 0, shape) if np.prod(shape) else np.empty(shape, self._dtype)

    @classmethod
    def of(cls, path, pieces):
        """Return an array of the pieces."""
        spool = cls(path)
        for piece in pieces:
            spool.write(piece)
        return spool.array()

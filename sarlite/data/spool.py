"""Arrays whose length is not known in advance, in memory or in a temporary file."""

import numpy as np

from sarlite.errors import writing


class Spool:
    """Array that grows by `write`. Rows are held in memory, or in a file, `path`, that is memory-mapped at the end."""

    def __init__(self, path, dtype=None):
        self._path, self._dtype, self._shape, self.n_rows = path, dtype, (), 0
        self._kept, self._file = [], None
        if path is not None:
            with writing(path):
                self._file = open(path, "wb", buffering=0)  # noqa: SIM115, closed by `array`

    def write(self, rows):
        """Append rows; all rows must have the dtype and width of the first rows.

        Without a file the spool holds references to the rows, not copies.
        """
        rows = np.asarray(rows, self._dtype)
        self._dtype, self._shape, self.n_rows = rows.dtype, rows.shape[1:], self.n_rows + len(rows)
        if self._file is None:
            self._kept.append(rows)
            return
        with writing(self._path):
            data = memoryview(np.ascontiguousarray(rows).view(np.uint8)).cast("B") if rows.size else b""
            while len(data):
                data = data[self._file.write(data) :]

    def array(self):
        """Close the spool and return all rows as one array, memory-mapped or in memory."""
        shape = (self.n_rows, *self._shape)
        if self._file is not None:
            self._file.close()
            return np.memmap(self._path, self._dtype, "r", 0, shape) if np.prod(shape) else np.empty(shape, self._dtype)
        pieces, self._kept = self._kept, []
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty((0, *self._shape), self._dtype), *pieces])

"""The rows and edges that one rank owns, read from a data set without touching the rest of it."""

from typing import NamedTuple

import numpy as np

from sarlite.data.dataset import Dataset
from sarlite.data.mapped import copied
from sarlite.errors import ConfigError
from sarlite.types import Array, DType


class Rows(NamedTuple):
    """The node data of one rank, row i for its i-th node."""

    features: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


class Part:
    """One of the parts of a data set: a slice of each of its arrays, read when asked for and not kept.

    Parameters
    ----------
    dataset : Dataset
    rank, size : int
        The part and the number of parts: that of the data set, or a divisor of it; neighbouring parts are then one.

    Attributes
    ----------
    offsets : (size + 1,) int64
        Part p has the rows offsets[p] .. offsets[p + 1].
    first_row, n_rows : int
        This part's rows: `first_row` .. `first_row` + `n_rows`.

    Raises
    ------
    ConfigError
        The data set's parts cannot be put together to `size`.

    Notes
    -----
    Memory: what is returned, and one piece of 32 MiB; nothing is O(n_nodes). Of a data set in memory views are returned where
    they will do.
    """

    def __init__(self, dataset: Dataset, rank: int, size: int) -> None:
        if dataset.n_parts % size and size > 1:
            raise ConfigError(f"{dataset.source}: {dataset.n_parts} parts cannot be put together to {size}")
        self.dataset, self.offsets = dataset, np.asarray(dataset.offsets)[:: dataset.n_parts // size]
        self.first_row, self._last_row = int(self.offsets[rank]), int(self.offsets[rank + 1])
        self.n_rows = self._last_row - self.first_row
        self._edges = slice(*(int(dataset.indptr[row]) for row in (self.first_row, self._last_row)))

    def rows(self, dtype: DType | None = None, features: bool = True) -> Rows:
        """Return the `Rows`: C-contiguous arrays, the features of `dtype`, by default the data set's own.

        Without `features` none is read: zeros of their shape stand there that take no memory.
        """
        found = self.of_nodes("features", dtype) if features else self.nothing(dtype)
        return Rows(found, *(self.of_nodes(name) for name in ("labels", "train", "val", "test")))

    def nothing(self, dtype: DType | None = None) -> Array:
        """Return zeros of the features' shape that take no memory."""
        x = self.dataset.features
        return np.broadcast_to(np.zeros((), dtype or x.dtype), (self.n_rows, x.shape[1]))

    def edges(self) -> tuple[Array, Array]:
        """Return the incoming edges as CSR: indptr (n_rows + 1,) int64, and the row numbers of their sources, ascending in a row."""
        indptr = copied(self.dataset.indptr, self.first_row, self._last_row + 1)
        return indptr - indptr[0], copied(self.dataset.indices, self._edges.start, self._edges.stop)

    def node_ids(self) -> Array:
        """Return the original ids of the rows, (n_rows,) int64."""
        if self.dataset.ids is None:
            return np.arange(self.first_row, self._last_row)
        return self.of_nodes("ids", np.int64)

    def edge_ids(self) -> Array:
        """Return the original positions of the edges, (n_edges,) int64."""
        if self.dataset.edge_ids is None:
            return np.arange(self._edges.start, self._edges.stop)
        return copied(self.dataset.edge_ids, self._edges.start, self._edges.stop, np.int64)

    def edge_values(self, name: str, dtype: DType | None = None) -> Array | None:
        """Return "edge_weight" or "edge_features" of the edges, as they stand in `edges()`; None where the data set has none."""
        array = getattr(self.dataset, name)
        return None if array is None else copied(array, self._edges.start, self._edges.stop, dtype)

    def of_nodes(self, name: str, dtype: DType | None = None) -> Array:
        """Return one array's rows, (n_rows, ...), C-contiguous and of `dtype`, by default its own."""
        return copied(getattr(self.dataset, name), self.first_row, self._last_row, dtype)

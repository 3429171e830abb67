"""The rows and edges that one MPI rank owns, read from a data set without reading the rest of the data set."""

from typing import Any, NamedTuple

import numpy as np

from sarlite.data.dataset import Dataset
from sarlite.data.graph_tables import SPLITS, EdgeTable, NodeTable, Relation
from sarlite.data.mapped import BFLOAT16, copied
from sarlite.errors import ConfigError
from sarlite.types import Array, DType

_PIECE = 1 << 20


class OwnedRows(NamedTuple):
    """Features, labels and splits of one MPI rank. Row i belongs to the rank's i-th node of the target type, which has the labels.

    Attributes
    ----------
    features : (n_rows, n_features) array, or dict of str to array
        With several node types, the arrays of each type that has features.
    labels : (n_rows, ...) array
    train, val, test : (n_rows,) bool
    """

    features: Any  # an array, or arrays by type: each caller knows which
    labels: Array
    train: Array
    val: Array
    test: Array


class Part:
    """One part of a data set: one MPI rank's rows and their in-edges, read from the data set's arrays at each call.

    Parameters
    ----------
    dataset : Dataset
    rank : int
        Number of the part, 0 .. size - 1.
    size : int
        Number of parts: the number of the data set's parts, or a divisor of that number. With a divisor, neighbouring
        parts of the data set become one part.

    Attributes
    ----------
    nodes : dict of str to NodePart
    relations : dict of (source type, name, destination type) to EdgePart
    offsets, first_row, n_rows
        Values of the target's `NodePart`.

    Raises
    ------
    ConfigError
        The data set's number of parts is no multiple of `size`.

    Notes
    -----
    Methods without a type or a relation read the target and the only relation. Memory: the result, and one piece of
    32 MiB; no array of n_nodes values. For a data set in memory, results may be views of the data set's arrays.

    Examples
    --------
    Each of two ranks makes its part of a graph, and reads its rows:

    >>> from sarlite import Graph, data
    >>> from sarlite.comm import threads
    >>> def rows_of_rank(comm):
    ...     with data.divided(comm, "sbm:nodes=100,features=8,seed=1", partition="contiguous") as dataset:
    ...         part = data.Part(dataset, comm.rank, comm.size)
    ...         graph = Graph.from_part(comm, *part.edges(), node_ids=part.node_ids())
    ...         return graph.n_nodes, graph.n_dst, part.rows().features.shape
    >>> threads.run(2, rows_of_rank)
    [(100, 50, (50, 8)), (100, 50, (50, 8))]
    """

    def __init__(self, dataset: Dataset, rank: int, size: int) -> None:
        if dataset.n_parts % size and size > 1:
            raise ConfigError(f"{dataset.source}: {dataset.n_parts} parts cannot be joined into {size}")
        self.dataset = dataset
        self.nodes = {name: NodePart(table, rank, size) for name, table in dataset.nodes.items()}
        self.relations: dict[Relation, EdgePart] = {
            relation: EdgePart(table, self.nodes[relation[2]]) for relation, table in dataset.edges.items()}
        self._target = self.nodes[dataset.target]
        self.offsets, self.first_row, self.n_rows = self._target.offsets, self._target.first_row, self._target.n_rows

    def rows(self, dtype: DType | None = None, features: bool = True) -> OwnedRows:
        """Return the features, labels and splits of this part's rows of the target, the node type with labels. Features have
        `dtype` (None: the stored one), and are zeros if `features` is False.

        Parameters
        ----------
        dtype : dtype, optional
            Dtype of the features; by default the stored dtype, or float32 for bfloat16.
        features : bool
            If False, the features are zeros that take no memory.
        """
        target = self._target
        return OwnedRows(target.features(dtype, features), *(target.read(name) for name in ("labels", *SPLITS)))

    def typed_rows(self, dtype: DType | None = None, features: bool = True) -> OwnedRows:
        """Return an OwnedRows with the labels and splits of this part's rows of the target, the node type with labels, and with {node type:
        features} of all types. Features have `dtype` (None: the stored one), and are zeros if `features` is False.

        The parameters are those of `rows`.
        """
        target = self._target
        features_by_type = {name: part.features(dtype, features) for name, part in self.nodes.items() if part.table.features is not None}
        return OwnedRows(features_by_type, *(target.read(name) for name in ("labels", *SPLITS)))

    def node_ids(self) -> Array:
        """Return the original ids of the part's rows of the target type, (n_rows,) int64."""
        return self._target.ids()

    def edges(self) -> tuple[Array, Array]:
        """Return the in-edges of this part's rows in the data set's only relation as a CSR, (indptr, indices)."""
        return self._edges.csr()

    def edge_ids(self) -> Array:
        """Return the original positions of the part's edges in the only relation, (n_edges,) int64."""
        return self._edges.ids()

    def edge_values(self, name: str, dtype: DType | None = None) -> Array | None:
        """Return the values `name`, such as "edge_weight", of this part's edges in the only relation, in `dtype` (None: the stored
        one); None if the data set has no such values.
        """
        return self._edges.values(name, dtype)

    def n_cut(self, relation: Relation, indices: Array) -> int:
        """Return how many entries of `indices`, the sources of this part's edges in `relation`, are rows of another part.

        Parameters
        ----------
        relation : (source type, name, destination type)
        indices : (n_edges,) int
            Row numbers of the source type, as `EdgePart.csr` returns them.
        """
        owned = self.nodes[relation[0]]
        low, high = owned.first_row, owned.first_row + owned.n_rows
        chunks = (indices[at : at + _PIECE] for at in range(0, indices.size, _PIECE))
        return sum(int(np.count_nonzero((piece < low) | (piece >= high))) for piece in chunks)

    @property
    def _edges(self):
        return self.relations[self.dataset.one_relation.relation]


class NodePart:
    """One MPI rank's rows of one node type.

    Attributes
    ----------
    table : NodeTable
    offsets : (size + 1,) int64
        Part p has the rows offsets[p] .. offsets[p + 1] of the table.
    first_row, n_rows : int
        This part has the rows first_row .. first_row + n_rows.
    """

    def __init__(self, table: NodeTable, rank: int, size: int) -> None:
        self.table, self.offsets = table, np.asarray(table.offsets)[:: (len(table.offsets) - 1) // size]
        self.first_row, self._end = int(self.offsets[rank]), int(self.offsets[rank + 1])
        self.n_rows = self._end - self.first_row

    def read(self, name: str, dtype: DType | None = None) -> Array:
        """Return this part's rows of the array `name`, (n_rows, ...), C-contiguous, in `dtype` (None: the stored dtype)."""
        return copied(getattr(self.table, name), self.first_row, self._end, dtype)

    def features(self, dtype: DType | None = None, read: bool = True) -> Array:
        """Return this part's features, (n_rows, n_features), in `dtype` (None: the stored one, or float32 for bfloat16). If `read` is
        False, return zeros that take no memory.
        """
        x = self.table.features
        assert x is not None
        dtype = dtype or (np.float32 if x.dtype == BFLOAT16 else x.dtype)
        return self.read("features", dtype) if read else np.broadcast_to(np.zeros((), dtype), (self.n_rows, x.shape[1]))

    def ids(self) -> Array:
        """Return the original ids of this part's rows, (n_rows,) int64."""
        return np.arange(self.first_row, self._end) if self.table.ids is None else self.read("ids", np.int64)


class EdgePart:
    """One MPI rank's edges of one relation: the edges into its rows of the destination type.

    Attributes
    ----------
    table : EdgeTable
    """

    def __init__(self, table: EdgeTable, rows: NodePart) -> None:
        self.table, self._rows = table, (rows.first_row, rows.first_row + rows.n_rows)
        self._first, self._end = (int(table.indptr[row]) for row in self._rows)

    def csr(self) -> tuple[Array, Array]:
        """Return (indptr, indices) of this part's in-edges. Row i is the part's i-th row of the destination type; `indices` are
        source rows, numbered over all parts.

        Returns
        -------
        indptr : (n_rows + 1,) int64
        indices : (n_edges,) int32 or int64
            Row numbers of the source type, counted over all parts, ascending within a row.
        """
        indptr = copied(self.table.indptr, self._rows[0], self._rows[1] + 1)
        return indptr - indptr[0], copied(self.table.indices, self._first, self._end)

    def ids(self) -> Array:
        """Return the original positions of this part's edges, (n_edges,) int64."""
        if self.table.edge_ids is None:
            return np.arange(self._first, self._end)
        return copied(self.table.edge_ids, self._first, self._end, np.int64)

    def values(self, name: str, dtype: DType | None = None) -> Array | None:
        """Return the values `name`, such as "edge_weight", of this part's edges, in the order of `csr` and in `dtype` (None: the
        stored dtype). None if the relation has no such values.

        Parameters
        ----------
        name : {"edge_weight", "edge_features", "edge_time"}
        dtype : dtype, optional
            By default the stored dtype.
        """
        array = getattr(self.table, name)
        return None if array is None else copied(array, self._first, self._end, dtype)

"""The rows and edges of all types and relations that one rank owns."""

from typing import NamedTuple

import numpy as np

from sarlite.data.part import Part
from sarlite.data.relational.dataset import Relation, RelationalDataset
from sarlite.types import Array, DType

_PIECE = 1 << 20


class RelationalRows(NamedTuple):
    """The node data of one rank: features by type, and the target's labels and splits."""

    features: dict[str, np.ndarray]
    labels: np.ndarray
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


class RelationalPart:
    """One of the parts of a relational data set: a `Part` of each table, read when asked for and not kept.

    Parameters
    ----------
    dataset : RelationalDataset
    rank, size : int
        As of `Part`.

    Raises
    ------
    ConfigError
        The data set's parts cannot be put together to `size`.

    Notes
    -----
    Memory: what is returned, and one piece of 32 MiB; nothing is O(n_nodes).
    """

    def __init__(self, dataset: RelationalDataset, rank: int, size: int) -> None:
        self.dataset = dataset
        self._nodes = {name: Part(table, rank, size) for name, table in dataset.nodes.items()}
        self._edges = {relation: Part(table, rank, size) for relation, table in dataset.edges.items()}

    def rows(self, dtype: DType | None = None, features: bool = True) -> RelationalRows:
        """Return the `RelationalRows`, features of `dtype`, by default the data set's own; types without features are left out.

        `features` is as of `Part.rows`.
        """
        target = self._nodes[self.dataset.target]
        found = {name: part.of_nodes("features", dtype) if features else part.nothing(dtype)
                 for name, part in self._nodes.items() if part.dataset.features is not None}
        return RelationalRows(found, *(target.of_nodes(name) for name in ("labels", "train", "val", "test")))

    def edges(self) -> dict[Relation, tuple[Array, Array]]:
        """Return by relation the incoming edges as CSR, as `Part.edges`: row numbers of the source type."""
        return {relation: part.edges() for relation, part in self._edges.items()}

    def node_ids(self) -> dict[str, Array]:
        """Return by type the original ids of the rows, (n_rows,) int64."""
        return {name: part.node_ids() for name, part in self._nodes.items()}

    @property
    def n_rows(self) -> int:
        """Of all types."""
        return sum(part.n_rows for part in self._nodes.values())

    def n_cut(self, relation: Relation, indices: Array) -> int:
        """Count the sources of a relation, as `edges` has them, that another part owns."""
        part = self._nodes[relation[0]]
        low, high = part.first_row, part.first_row + part.n_rows
        found = (indices[at : at + _PIECE] for at in range(0, indices.size, _PIECE))
        return sum(int(np.count_nonzero((piece < low) | (piece >= high))) for piece in found)

    def edge_ids(self) -> dict[Relation, Array]:
        """Return by relation the original positions of the edges, (n_edges,) int64."""
        return {relation: part.edge_ids() for relation, part in self._edges.items()}

    def edge_values(self, name: str, dtype: DType | None = None) -> dict[Relation, Array]:
        """Return "edge_weight" or "edge_features" of the relations that have them, as `Part.edge_values`."""
        found = {relation: part.edge_values(name, dtype) for relation, part in self._edges.items()}
        return {relation: values for relation, values in found.items() if values is not None}

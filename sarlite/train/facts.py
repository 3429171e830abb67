"""What a data set says of a model's shapes: all that a model's tiny steps must know of it."""

from typing import Any, NamedTuple

import numpy as np

from sarlite.types import Array


class Relations(NamedTuple):
    """A relational graph, as its relations' weights are evaluated by.

    Attributes
    ----------
    target : str
        The node type that has labels.
    n_nodes : dict of str to int
        Nodes of each type, of all ranks.
    n_edges : dict of relation to int
        Edges of each relation, of all ranks.
    n_halo : dict of relations to int
        Rows that all ranks fetch, for the relations out of a type that one fetch serves.
    """

    target: str
    n_nodes: dict[str, int]
    n_edges: dict[tuple[str, str, str], int]
    n_halo: dict[Any, int] = {}


class Facts(NamedTuple):
    """What a data set says of a model's shapes.

    Attributes
    ----------
    n_features : int, or dict of str to int
        Of a relational graph by node type, where there are features.
    n_classes : int
    task : str
    labels : (0, ...) array
        No row of them, for their dtype and what stands behind the rows.
    loops : bool
        Whether self loops were added.
    edge_values : two of (0, ...) array, or None
        No row of the edges' weights and features; None where there are none.
    relations : Relations, or None
        Of a relational graph.
    flows : dict of (str, int) to (int, int, int), or None
        Of message-flow training n_src, n_dst and edges of all ranks, by "training" or "scoring" and layer.
    batch : dict of (str, int) to (int, int, int), or None
        Of minibatches the same, of one, by "batch" and layer.
    scored : dict, or None
        Likewise of a sampled evaluation.
    kept : bool, or None
        With caches of embeddings whether halo rows' features are kept; None without.
    """

    n_features: Any
    n_classes: int
    task: str = "classify"
    labels: Array = np.empty(0, np.int64)
    loops: bool = False
    edge_values: tuple[Array | None, ...] = (None, None)
    relations: Relations | None = None
    flows: dict[tuple[str, int], tuple[int, int, int]] | None = None
    batch: dict[tuple[str, int], tuple[int, int, int]] | None = None
    scored: dict[tuple[str, int], tuple[int, int, int]] | None = None
    kept: bool | None = None

    @property
    def edge_bytes(self) -> int:
        """What the values of one edge take."""
        return sum(a.itemsize * int(np.prod(a.shape[1:])) for a in self.edge_values if a is not None)

    def targets(self, rows: int, train: int, val: int, test: int) -> tuple[Array, ...]:
        """Return labels of so many rows, and the three splits."""
        splits = [np.zeros(rows, bool) for _ in range(3)]
        for split, (a, n) in zip(splits, ((0, train), (train, val), (train + val, test))):
            split[a : a + n] = True
        labels = np.resize(np.arange(max(self.n_classes, 1) if self.task == "classify" else 2), (rows, *self.labels.shape[1:]))
        return labels.astype(self.labels.dtype), *splits

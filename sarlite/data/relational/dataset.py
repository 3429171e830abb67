"""A data set of several node types and relations, in memory or memory-mapped."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sarlite.data.dataset import EDGE_ARRAYS, NODE_ARRAYS, SPLITS, Dataset
from sarlite.data.relational.names import check_relation, key
from sarlite.errors import DataError
from sarlite.graph.edges import csr_by_dst, index_dtype
from sarlite.graph.relational import Relational

Relation = tuple[str, str, str]
"""(source type, name, destination type)"""


class Nodes(Dataset):
    """The rows of one node type: a `Dataset` without edges, of which any array but those of the target may be missing."""

    names = NODE_ARRAYS

    def __init__(self, node_type, n, *, n_classes=0, **arrays):
        rows = {name: arrays.pop(name, None) for name in ("features", "labels", *SPLITS)}
        super().__init__(np.broadcast_to(np.int64(0), n + 1), np.empty(0, np.int32), **rows, n_classes=n_classes, **arrays)
        self.node_type, self.folder, self.what = node_type, f"nodes/{key(node_type)}", f"type {node_type}"

    def arrays(self):
        return {name: array for name, array in super().arrays().items() if name in NODE_ARRAYS}

    def where(self, name):
        return f"{self.source}: {self.what}: {name}" if self.directory is None else \
            f"{self.directory}/{self.folder}/{self.names[name]}.npy: {name}"

    def check_rows(self, allow_empty=()):
        """Raise as `Dataset.check` for the rows of one type; labels and splits where there are any."""
        self.check_shapes()
        self._check_ids()
        if self.features is not None:
            self._check_finite("features")
        if self.labels is not None:
            self._check_splits(allow_empty)
            self._check_labels()


class Edges(Dataset):
    """The edges of one relation: a `Dataset` without node data, whose sources are rows of a type of their own."""

    names = EDGE_ARRAYS
    where = Nodes.where

    def __init__(self, relation, n_sources, indptr, indices, **arrays):
        super().__init__(indptr, indices, *(None,) * 5, n_classes=0, **arrays)
        self.relation, self._n_sources = relation, n_sources
        self.folder, self.what = f"edges/{key(*relation)}", f"relation {'.'.join(relation)}"

    @property
    def n_sources(self):
        return self._n_sources

    def without_values(self):
        return Edges(self.relation, self.n_sources, self.indptr, self.indices, edge_ids=self.edge_ids, offsets=self.offsets,
                     source=self.source, directory=self.directory)

    def check_values(self):
        """Raise as `Dataset.check` for edges."""
        self.check_shapes()
        self.check_edges()
        if self.directory is not None and not self.sources_ascend():
            raise DataError(f"{self.where('indices')}: the sources of a row do not ascend")
        self._check_ids()
        for name in ("edge_weight", "edge_features"):
            if getattr(self, name) is not None:
                self._check_finite(name)


@dataclass
class RelationalDataset:
    """Nodes of several types, relations between them, and one type that has labels and splits.

    Attributes
    ----------
    nodes : dict of str to Nodes
        A type's rows: `features` or None, `ids`, `offsets`; of the target `labels`, `train`, `val`, `test` too.
    edges : dict of (source type, name, destination type) to Edges
        `indptr`, `indices` (row numbers of the source type), and as of a `Dataset` `edge_ids`, `edge_weight`, `edge_features`.
    target : str
        The type that has labels.
    name, source, provenance, directory, division
        As of `Dataset`. A part holds rows of each type; `offsets` of all types have the same length.

    Raises
    ------
    DataError
        A relation names a type that is not there, or numbers of rows or of parts disagree.
    """

    nodes: Mapping[str, Nodes]
    edges: Mapping[Relation, Edges]
    target: str
    name: str = "graph"
    source: str = "dataset"
    provenance: dict[str, Any] = field(default_factory=dict)
    directory: str | None = None
    division: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.target not in self.nodes:
            raise DataError(f"{self.source}: target: {self.target!r} is none of the node types {', '.join(self.nodes)}")
        for name, table in self.nodes.items():
            if len(table.offsets) != self.n_parts + 1:
                raise DataError(f"{self.source}: type {name}: {len(table.offsets) - 1} parts, but {self.target} has {self.n_parts}")
        for relation, edges in self.edges.items():
            source, _, to = check_relation(relation, self.nodes, self.source)
            for name, said, n in ((to, "destinations", edges.n_nodes), (source, "sources", edges.n_sources)):
                if n != self.nodes[name].n_nodes:
                    raise DataError(f"{self.source}: {edges.what}: {n} {said}, but {name} has {self.nodes[name].n_nodes} nodes")
            edges.offsets = self.nodes[to].offsets

    @classmethod
    def of(cls, made: Relational, **about: Any) -> "RelationalDataset":
        """Return what a reader or a generator gave, each relation as CSR; `about` are name, source and provenance.

        Memory: 28 bytes an edge of the largest relation, and 12 an edge of all.
        """
        rows = {name: getattr(made, name) for name in ("labels", *SPLITS, "n_classes")}
        source = about.get("source", "dataset")
        nodes = {name: Nodes(name, n, features=made.features.get(name), source=source, **(rows if name == made.target else {}))
                 for name, n in made.n_nodes.items()}
        edges = {relation: _csr(relation, src, dst, made.n_nodes, source) for relation, (src, dst) in made.edges.items()}
        return cls(nodes, edges, made.target, **about)

    @property
    def n_parts(self) -> int:
        return len(self.nodes[self.target].offsets) - 1

    @property
    def n_nodes(self) -> dict[str, int]:
        return {name: table.n_nodes for name, table in self.nodes.items()}

    @property
    def n_edges(self) -> dict[Relation, int]:
        return {relation: edges.n_edges for relation, edges in self.edges.items()}

    @property
    def n_features(self) -> dict[str, int]:
        """Of the types that have features."""
        return {name: table.n_features for name, table in self.nodes.items() if table.features is not None}

    @property
    def n_classes(self) -> int:
        return self.nodes[self.target].n_classes

    @property
    def task(self) -> str:
        return self.nodes[self.target].task

    @property
    def tables(self) -> list[Dataset]:
        return [*self.nodes.values(), *self.edges.values()]

    @property
    def n_bytes(self) -> int:
        """Of all arrays."""
        return sum(table.n_bytes for table in self.tables)

    def equals(self, other: "RelationalDataset") -> bool:
        """Tell whether another data set has the same types, relations in the same order, and arrays, in values and dtypes."""
        same = (self.target, list(self.nodes), list(self.edges)) == (other.target, list(other.nodes), list(other.edges))
        return same and all(one.equals(two) for one, two in zip(self.tables, other.tables))

    def check(self, allow_empty: Collection[str] = ()) -> "RelationalDataset":
        """Raise a DataError for the first thing that would make training wrong, as `Dataset.check`, table by table; return itself."""
        for rows in self.nodes.values():
            rows.check_rows(allow_empty)
        for edges in self.edges.values():
            edges.check_values()
        return self

    def without_edge_values(self) -> "RelationalDataset":
        """Return it without edge weights and edge features."""
        return replace(self, edges={relation: edges.without_values() for relation, edges in self.edges.items()})

    def check_edges(self) -> None:
        """Raise a DataError where shapes or dtypes disagree or an edge has an end that is no node."""
        for table in self.tables:
            table.check_shapes()
            table.check_edges()


def _csr(relation, src, dst, n_nodes, source):
    n_src, n_dst = n_nodes[relation[0]], n_nodes[relation[2]]
    indptr, indices, order = csr_by_dst(src, dst, max(n_src, n_dst, 1), edge_index=True)
    ids = None if (order == np.arange(order.size)).all() else order.astype(index_dtype(order.size))
    return Edges(relation, n_src, indptr[: n_dst + 1], indices.astype(index_dtype(n_src), copy=False), edge_ids=ids, source=source)

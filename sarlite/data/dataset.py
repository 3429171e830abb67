"""A data set: a table of each node type and of each relation, in memory or memory-mapped."""

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from sarlite.data.folders import check_relation
from sarlite.data.graph_tables import MEMBERS, NODE, RELATION, SPLITS, EdgeTable, NodeTable, Relation
from sarlite.errors import DataError
from sarlite.structure.edges import csr_by_dst, index_dtype
from sarlite.structure.relational_generator import Relational
from sarlite.types import Array


def _field_of(table: str, name: str) -> Any:
    """A property of a data set that stands for a field of one of its tables."""

    def get(self: "Dataset") -> Any:
        return getattr(getattr(self, table), name)

    def put(self: "Dataset", value: Any) -> None:
        setattr(getattr(self, table), name, value)

    return property(get, put)


class Dataset:
    """Nodes of one type or several, relations between them, and one type, the target, that has labels and splits.

    The constructor takes a graph of one node type and one relation; `of_tables` takes several of each.

    Parameters
    ----------
    indptr : (n_nodes + 1,) int64
        The sources of node i's in-edges are `indices[indptr[i] : indptr[i + 1]]`.
    indices : (n_edges,) int32 or int64
        Source of each edge.
    features : (n_nodes, n_features) float32 or float64, or None
    labels : (n_nodes,) int64, or the form that the task has
        Classes from 0; -1 for a node without a label. For other tasks see `NodeTable`.
    train, val, test : (n_nodes,) bool
        Disjoint masks of the splits.
    n_classes : int
        Number of classes, or of the labels' columns.
    name : str
        Name of the data set, for reports.
    source : str
        Name of the data in error messages: a spec or, for the native format, the directory.
    provenance : dict, optional
        JSON-able record of the data's origin and of the options of reading.
    edge_weight : (n_edges,) float32 or float64, optional
    edge_features : (n_edges, n_edge_features) float32 or float64, optional
    directory : str, optional
        Directory of the native format that holds the arrays.
    ids : (n_nodes,) int32 or int64, optional
        Original id of each row; by default the row's number.
    edge_ids : (n_edges,) int32 or int64, optional
        Original position of each edge; by default its position in `indices`.
    offsets : (n_parts + 1,) int64, optional
        Part p has the rows offsets[p] .. offsets[p + 1]; by default all rows are one part.
    division : dict, optional
        {"parts", "partition", "order", "seed"}, and "balance" if it was chosen: the way in which the rows were divided
        and ordered.
    task : {"classify", "multilabel", "regress"}
        Form of the labels.

    Attributes
    ----------
    nodes : dict of str to NodeTable
    edges : dict of (source type, name, destination type) to EdgeTable
    target : str
        Node type that has the labels.
    features, labels, train, val, test, ids, node_ids, offsets, n_features, n_classes, task, class_names
        Values of the target's `NodeTable`.
    indptr, indices, edge_ids, edge_weight, edge_features, edge_time
        Values of the only relation's `EdgeTable`; reading one of them raises a DataError if there are several relations.
    name, source, provenance, directory, division
        Values of the arguments of these names.

    Notes
    -----
    Part p has rows of every node type: the `offsets` of all types have the same length.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph
    >>> from sarlite.data import Dataset
    >>> masks = np.eye(3, dtype=bool)
    >>> dataset = Dataset(np.array([0, 1, 2, 2]), np.array([1, 0]), np.ones((3, 4), np.float32), np.array([0, 1, 0]),
    ...                   *masks, n_classes=2)
    >>> dataset.features.shape, dataset.n_nodes, list(dataset.edges)
    ((3, 4), 3, [('node', 'edge', 'node')])
    >>> Graph.from_csr(dataset.indptr, dataset.indices)
    Graph(n_src=3, n_dst=3, n_edges=2)
    """

    nodes: dict[str, NodeTable]
    edges: dict[Relation, EdgeTable]

    def __init__(self, indptr: Array, indices: Array, features: Array | None, labels: Array, train: Array, val: Array,
                 test: Array, n_classes: int, name: str = "graph", source: str = "dataset",
                 provenance: dict[str, Any] | None = None, edge_weight: Array | None = None,
                 edge_features: Array | None = None, directory: str | None = None, ids: Array | None = None,
                 edge_ids: Array | None = None, offsets: Array | None = None, division: dict[str, Any] | None = None,
                 task: str = "classify") -> None:
        n = max(int(indptr.shape[0]) - 1, 0)
        nodes = NodeTable(NODE, n, features, labels, train, val, test, ids, offsets, n_classes, task, source, directory)
        edges = EdgeTable(RELATION, n, indptr, indices, edge_ids, edge_weight, edge_features, source, directory)
        self._hold([nodes], [edges], NODE, name, source, provenance, directory, division)

    @classmethod
    def of_tables(cls, nodes: Iterable[NodeTable], edges: Iterable[EdgeTable], target: str = NODE, name: str = "graph",
                  source: str = "dataset", provenance: dict[str, Any] | None = None, directory: str | None = None,
                  division: dict[str, Any] | None = None) -> "Dataset":
        """Return a data set of tables, which it keeps.

        Raises
        ------
        DataError
            A relation names a type that is not there, or numbers of rows or of parts disagree.
        """
        made = cls.__new__(cls)
        made._hold(nodes, edges, target, name, source, provenance, directory, division)
        if target not in made.nodes:
            raise DataError(f"{source}: target: {target!r} is none of the node types {', '.join(made.nodes)}")
        made._check_together()
        return made

    @classmethod
    def of_edge_lists(cls, made: Relational, **about: Any) -> "Dataset":
        """Return what a reader or a generator gave, each relation as CSR; `about` are name, source and provenance.

        Memory: 28 bytes an edge of the largest relation, and 12 an edge of all.
        """
        source = about.get("source", "dataset")
        rows = {name: getattr(made, name) for name in ("labels", *SPLITS, "n_classes", "task", "class_names")}
        nodes = [NodeTable(name, n, made.features.get(name), **(rows if name == made.target else {}), source=source)
                 for name, n in made.n_nodes.items()]
        edges = [_csr(relation, src, dst, made, source) for relation, (src, dst) in made.edges.items()]
        return cls.of_tables(nodes, edges, made.target, **about)

    def _hold(self, nodes, edges, target, name, source, provenance, directory, division):
        self.nodes = {table.node_type: table for table in nodes}
        self.edges = {table.relation: table for table in edges}
        self.target, self.name, self.source = target, name, source
        self.provenance, self.directory, self.division = provenance or {}, directory, division

    features = _field_of("target_nodes", "features")
    n_features = _field_of("target_nodes", "n_features")
    labels = _field_of("target_nodes", "labels")
    train = _field_of("target_nodes", "train")
    val = _field_of("target_nodes", "val")
    test = _field_of("target_nodes", "test")
    n_classes = _field_of("target_nodes", "n_classes")
    task = _field_of("target_nodes", "task")
    class_names = _field_of("target_nodes", "class_names")
    ids = _field_of("target_nodes", "ids")
    node_ids = _field_of("target_nodes", "node_ids")
    offsets = _field_of("target_nodes", "offsets")
    indptr = _field_of("one_relation", "indptr")
    indices = _field_of("one_relation", "indices")
    edge_ids = _field_of("one_relation", "edge_ids")
    edge_weight = _field_of("one_relation", "edge_weight")
    edge_features = _field_of("one_relation", "edge_features")
    edge_time = _field_of("one_relation", "edge_time")

    @property
    def target_nodes(self) -> NodeTable:
        """The table of the type that has labels."""
        return self.nodes[self.target]

    @property
    def one_relation(self) -> EdgeTable:
        """The only relation, in a set of graphs the relation between nodes; a DataError where there are several."""
        if self.of_graphs:
            return self.edges[RELATION]
        if len(self.edges) != 1:
            raise DataError(f"{self.source}: a relational graph, of {len(self.edges)} relations, but one "
                            "relation is needed")
        return next(iter(self.edges.values()))

    @property
    def relational(self) -> bool:
        """True if types and relations have names of their own."""
        return [*self.nodes] != [NODE] or [*self.edges] != [RELATION]

    @property
    def of_graphs(self) -> bool:
        """True for a set of graphs: nodes, edges between nodes, and an edge from each node to its graph, the target."""
        return self.target == MEMBERS[2] and set(self.edges) == {RELATION, MEMBERS} and len(self.nodes) == 2

    @property
    def tables(self) -> list[NodeTable | EdgeTable]:
        return [*self.nodes.values(), *self.edges.values()]

    @property
    def n_parts(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(table.n_nodes for table in self.nodes.values())

    @property
    def n_nodes_by_type(self) -> dict[str, int]:
        return {name: table.n_nodes for name, table in self.nodes.items()}

    @property
    def n_edges(self) -> int:
        """Number of edges of all relations."""
        return sum(table.n_edges for table in self.edges.values())

    @property
    def n_bytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(table.n_bytes for table in self.tables)

    def by_type(self, values: Array) -> dict[str, Array]:
        """Cut an array of a value a node, a type after the other, into one for each type."""
        ends = np.cumsum([table.n_nodes for table in self.nodes.values()])
        return dict(zip(self.nodes, np.split(values, ends[:-1])))

    def where(self, name: str) -> str:
        """Say where an array of the target or of the only relation comes from, for messages."""
        return (self.target_nodes if name in NodeTable.FILES else self.one_relation).where(name)

    def equals(self, other: "Dataset") -> bool:
        """Tell whether another data set has the same types, relations in the same order, classes and arrays."""
        same = (self.target, [*self.nodes], [*self.edges]) == (other.target, [*other.nodes], [*other.edges])
        return same and all(one.equals(two) for one, two in zip(self.tables, other.tables))

    def drop_edge_values(self) -> None:
        """Forget edge weights and edge features."""
        for table in self.edges.values():
            table.drop_values()

    def check(self, allow_empty: Collection[str] = (), ids_at_once: int = 1 << 24) -> "Dataset":
        """Raise for the first thing that would make training wrong.

        Parameters
        ----------
        allow_empty : collection of {"train", "val", "test"}
            Splits that may be empty.
        ids_at_once : int
            Nodes whose ids are looked for in one pass over the ids.

        Returns
        -------
        Dataset
            Itself.

        Raises
        ------
        DataError
            Dimensions, dtypes or lengths disagree; `indptr` does not rise from 0 to the number of edges; a source is
            not a node; ids are no permutation; a feature, an edge weight or an edge feature is NaN or infinite; a label
            in a split is not a class; there are more classes than `MAX_CLASSES`; splits overlap or are empty. The
            message names the file or source, the field and the value.

        Notes
        -----
        Reads everything once, a chunk at a time (the ids once for each 16 million); memory: a few chunks of 32 MiB.
        """
        self.check_shapes()
        for nodes in self.nodes.values():
            nodes.check(allow_empty, ids_at_once)
        for edges in self.edges.values():
            edges.check()
        return self

    def check_shapes(self) -> None:
        """Raise a DataError where dimensions, dtypes or lengths disagree. Reads no array."""
        for table in self.tables:
            table.check_shapes()
        self._check_together()

    def check_edges(self) -> None:
        """Raise a DataError where shapes or dtypes disagree or an edge has an end that is no node."""
        self.check_shapes()
        for table in self.edges.values():
            table.check_edges()

    @property
    def time_kind(self) -> str | None:
        """Kind of all times, "dates" or "integers"; None without times."""
        return next((table.time_kind for table in self.tables if table.time_kind), None)

    def _check_together(self):
        kinds = {table.time_kind: table for table in self.tables if table.time_kind}
        if len(kinds) > 1:
            told = [f"{table.where(table.TIME)} has {kind}" for kind, table in kinds.items()]
            raise DataError(f"{', but '.join(told)}: the times of a data set are of one kind; a query converts one of "
                            "the columns")
        for table in self.nodes.values():
            if len(table.offsets) != self.n_parts + 1:
                parts = f"{len(table.offsets) - 1} parts, but {self.target} has {self.n_parts}"
                raise DataError(f"{self.source}: {table.label}{parts}")
        for relation, edges in self.edges.items():
            check_relation(relation, self.nodes, self.source)
            ends = ((relation[2], "destinations", edges.n_destinations), (relation[0], "sources", edges.n_sources))
            for name, what, n in ends:
                if n != self.nodes[name].n_nodes:
                    there = f"{n} {what}, but {name} has {self.nodes[name].n_nodes} nodes"
                    raise DataError(f"{self.source}: {edges.label}{there}")


def _csr(relation, src, dst, made, source):
    n_src, n_dst, values = made.n_nodes[relation[0]], made.n_nodes[relation[2]], made.edge_features.get(relation)
    indptr, indices, order = csr_by_dst(src, dst, max(n_src, n_dst, 1), edge_index=True)
    ids = None if (order == np.arange(order.size)).all() else order.astype(index_dtype(order.size))
    indices = indices.astype(index_dtype(n_src), copy=False)
    return EdgeTable(relation, n_src, indptr[: n_dst + 1], indices, ids, source=source,
                     edge_features=None if values is None else values[order])

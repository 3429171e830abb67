"""A data set: one table per node type and one table per relation (edge type), in memory or memory-mapped."""

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from sarlite.data.folders import check_relation
from sarlite.data.graph_tables import MEMBERS, NODE, RELATION, SPLITS, EdgeTable, NodeTable, Relation
from sarlite.errors import DataError
from sarlite.structure.edges import csr_by_dst, index_dtype
from sarlite.structure.relational_generator import Relational
from sarlite.types import Array, JsonDict


def _field_of(table: str, name: str) -> Any:
    """Return a property of Dataset for the field `name` of one of its tables, which the attribute `table` holds. With it,
    `dataset.features` reads and writes `dataset.target_nodes.features`.
    """

    def get(self: "Dataset") -> object:
        return getattr(getattr(self, table), name)

    def put(self: "Dataset", value: object) -> None:
        setattr(getattr(self, table), name, value)

    return property(get, put)


class Dataset:
    """Nodes of one or several types, relations (edge types) between them, and labels and splits for one node type, the target.

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
                 provenance: JsonDict | None = None, edge_weight: Array | None = None,
                 edge_features: Array | None = None, directory: str | None = None, ids: Array | None = None,
                 edge_ids: Array | None = None, offsets: Array | None = None, division: JsonDict | None = None,
                 task: str = "classify") -> None:
        n = max(int(indptr.shape[0]) - 1, 0)
        nodes = NodeTable(NODE, n, features, labels, train, val, test, ids, offsets, n_classes, task, source, directory)
        edges = EdgeTable(RELATION, n, indptr, indices, edge_ids, edge_weight, edge_features, source, directory)
        self._hold([nodes], [edges], NODE, name, source, provenance, directory, division)

    @classmethod
    def of_tables(cls, nodes: Iterable[NodeTable], edges: Iterable[EdgeTable], target: str = NODE, name: str = "graph",
                  source: str = "dataset", provenance: JsonDict | None = None, directory: str | None = None,
                  division: JsonDict | None = None) -> "Dataset":
        """Return a data set of node tables and edge tables. `target` is the node type with labels, `name` and `source` call the data in
        reports and in errors, and `directory` holds the arrays' files (None: no files). `division` describes how nodes were divided into
        parts (None: one part).

        Parameters
        ----------
        nodes : iterable of NodeTable
            The tables are kept, not copied.
        edges : iterable of EdgeTable
        target : str
            The node type that has labels.
        name, source, provenance, directory, division
            As for `Dataset`.

        Raises
        ------
        DataError
            If a relation or the target names an unknown node type, or numbers of rows or of parts disagree.
        """
        dataset = cls.__new__(cls)
        dataset._hold(nodes, edges, target, name, source, provenance, directory, division)
        if target not in dataset.nodes:
            raise DataError(f"{source}: target: {target!r} is not one of the node types {', '.join(dataset.nodes)}")
        dataset._check_together()
        return dataset

    @classmethod
    def of_edge_lists(cls, lists: Relational, name: str = "graph", source: str = "dataset",
                      provenance: JsonDict | None = None) -> "Dataset":
        """Return a data set of edge lists, as a reader or a generator returns them; the edges of each relation are sorted into CSR.
        Messages call the data set `source`.

        Parameters
        ----------
        lists : Relational
        name, source, provenance
            As for `Dataset`.

        Notes
        -----
        Memory: 28 bytes per edge of the largest relation, and 12 bytes per edge of all relations.
        """
        rows = {name: getattr(lists, name) for name in ("labels", *SPLITS, "n_classes", "task", "class_names")}
        nodes = [NodeTable(name, n, lists.features.get(name), **(rows if name == lists.target else {}), source=source)
                 for name, n in lists.n_nodes.items()]
        edges = [_csr(relation, src, dst, lists, source) for relation, (src, dst) in lists.edges.items()]
        return cls.of_tables(nodes, edges, lists.target, name, source, provenance)

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
        """The table of the target, the node type that has labels."""
        return self.nodes[self.target]

    @property
    def one_relation(self) -> EdgeTable:
        """The table of the graph's only relation or, in a set of graphs, of the edges between nodes. A DataError is raised if there
        are several relations.
        """
        if self.of_graphs:
            return self.edges[RELATION]
        if len(self.edges) != 1:
            raise DataError(f"{self.source}: a relational graph, of {len(self.edges)} relations, but one relation is needed")
        return next(iter(self.edges.values()))

    @property
    def relational(self) -> bool:
        """True if the graph is heterogeneous: its node types and relations have names other than the defaults `node` and `edge`."""
        return [*self.nodes] != [NODE] or [*self.edges] != [RELATION]

    @property
    def of_graphs(self) -> bool:
        """True for a set of graphs: nodes, edges between nodes, and an edge from each node to its graph, the target type."""
        return self.target == MEMBERS[2] and set(self.edges) == {RELATION, MEMBERS} and len(self.nodes) == 2

    @property
    def tables(self) -> list[NodeTable | EdgeTable]:
        return [*self.nodes.values(), *self.edges.values()]

    @property
    def n_parts(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_nodes(self) -> int:
        """Number of nodes over all types."""
        return sum(table.n_nodes for table in self.nodes.values())

    @property
    def n_nodes_by_type(self) -> dict[str, int]:
        return {name: table.n_nodes for name, table in self.nodes.items()}

    @property
    def n_edges(self) -> int:
        """Number of edges over all relations."""
        return sum(table.n_edges for table in self.edges.values())

    @property
    def n_bytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(table.n_bytes for table in self.tables)

    def by_type(self, values: Array) -> dict[str, Array]:
        """Return {node type: part of `values` for its nodes}. `values` has one entry per node, one type after the other."""
        ends = np.cumsum([table.n_nodes for table in self.nodes.values()])
        return dict(zip(self.nodes, np.split(values, ends[:-1])))

    def where(self, name: str) -> str:
        """Return the location of the array `name` for error messages, such as "DIRECTORY/nodes/node/features.npy: features".

        `name` is a field of the target type's table or of the only relation's table.
        """
        return (self.target_nodes if name in NodeTable.FILES else self.one_relation).where(name)

    def equals(self, other: "Dataset") -> bool:
        """Return True if `other` has the same node types, classes and arrays, and the same relations in the same order."""
        same = (self.target, [*self.nodes], [*self.edges]) == (other.target, [*other.nodes], [*other.edges])
        return same and all(one.equals(two) for one, two in zip(self.tables, other.tables))

    def drop_edge_values(self) -> None:
        """Remove the edge weights and edge features of all relations; edge times are kept."""
        for table in self.edges.values():
            table.drop_values()

    def check(self, allow_empty: Collection[str] = (), ids_at_once: int = 1 << 24) -> "Dataset":
        """Return the data set after checking ids, edges, labels and numbers; raise a DataError for an invalid one, or for an empty
        split that `allow_empty` does not name. `ids_at_once` ids are checked per pass.

        Parameters
        ----------
        allow_empty : collection of {"train", "val", "test"}
            Splits that may be empty.
        ids_at_once : int
            Number of nodes whose ids are checked in one pass over the ids.

        Returns
        -------
        Dataset
            The data set itself.

        Raises
        ------
        DataError
            If dimensions, dtypes or lengths disagree; `indptr` does not rise from 0 to the number of edges; a source is not a
            node; ids are not a permutation; a feature, an edge weight or an edge feature is NaN or infinite; a label in a split
            is not a class; there are more than `MAX_CLASSES` classes; or splits overlap or are empty. The message names the
            file or source, the field and the value.

        Notes
        -----
        Every array is read once in chunks, the ids once per 16 million nodes. Memory: a few chunks of 32 MiB.
        """
        self.check_shapes()
        for nodes in self.nodes.values():
            nodes.check(allow_empty, ids_at_once)
        for edges in self.edges.values():
            edges.check()
        return self

    def check_shapes(self) -> None:
        """Raise a DataError if dimensions, dtypes or lengths of the arrays disagree. The entries of the arrays are not read."""
        for table in self.tables:
            table.check_shapes()
        self._check_together()

    def check_edges(self) -> None:
        """Raise a DataError if shapes or dtypes disagree, or if a source or destination of an edge is not a node."""
        self.check_shapes()
        for table in self.edges.values():
            table.check_edges()

    @property
    def time_kind(self) -> str | None:
        """Unit of all node times and edge times, "dates" or "integers"; None if there are no times."""
        return next((table.time_kind for table in self.tables if table.time_kind), None)

    def _check_together(self):
        """Raise a DataError unless all tables have the same time unit and number of parts, and each relation has as many sources
        and destinations as their types have nodes.
        """
        kinds = {table.time_kind: table for table in self.tables if table.time_kind}
        if len(kinds) > 1:
            kinds_by_array = [f"{table.where(table.TIME)} has {kind}" for kind, table in kinds.items()]
            raise DataError(f"{', but '.join(kinds_by_array)}: the times of a data set are of one kind; a query converts one of "
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
                    count = f"{n} {what}, but {name} has {self.nodes[name].n_nodes} nodes"
                    raise DataError(f"{self.source}: {edges.label}{count}")


def _csr(relation, src, dst, lists, source):
    """Return the `EdgeTable` of `relation` with the edges `src` -> `dst`, sorted by destination, then source. `lists` is the data set as a
    reader returned it; the numbers of nodes and the edge features are taken from it. Error messages call the data `source`.
    """
    n_src, n_dst, values = lists.n_nodes[relation[0]], lists.n_nodes[relation[2]], lists.edge_features.get(relation)
    indptr, indices, order = csr_by_dst(src, dst, max(n_src, n_dst, 1), edge_index=True)
    ids = None if (order == np.arange(order.size)).all() else order.astype(index_dtype(order.size))
    indices = indices.astype(index_dtype(n_src), copy=False)
    return EdgeTable(relation, n_src, indptr[: n_dst + 1], indices, ids, source=source,
                     edge_features=None if values is None else values[order])

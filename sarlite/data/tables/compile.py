"""Data sets and edge lists from a description of tables: DuckDB checks the cells, numbers the nodes and sorts the edges."""

import contextlib
from collections.abc import Callable
from functools import partial

import numpy as np

from sarlite.data import budget
from sarlite.data.dataset import Dataset
from sarlite.data.graph_tables import NODE, RELATION, EdgeTable, NodeTable
from sarlite.data.raw import as_features, check_nodes
from sarlite.data.tables import account as accounts
from sarlite.data.tables import sources
from sarlite.data.tables.checks import CellCheck, check_cells, node_number
from sarlite.data.tables.description import Description
from sarlite.data.tables.edge_columns import Counters, EdgeColumns, NumberedEdges
from sarlite.data.tables.node_columns import NodeColumns
from sarlite.data.tables.numbering import IdColumn, NodeNumbering, alike, count_distinct, ids_in_order, largest, mapping, number_nodes
from sarlite.data.tables.time_columns import check_units
from sarlite.data.workspace import Workspace
from sarlite.errors import ConfigError, DataError, SarliteError, collecting, import_optional, raise_all
from sarlite.structure.relational_generator import reverse
from sarlite.structure.validation import MOST_NODES
from sarlite.types import Array, JsonDict


def build(description: Description, workspace: Workspace, tell: Callable[[str], None], about: JsonDict, *,
          undirected: bool | None = None, self_loops: bool = False, deduplicate: bool = False, normalize: bool = False,
          drop_edge_values: bool = False) -> Dataset:
    """Return the Dataset that `description` states: its tables are read, checked, numbered and sorted. `about` holds source and provenance
    of the Dataset, `tell(text)` receives progress, and `workspace` holds large arrays. The options add, merge or change edges and features.

    Parameters
    ----------
    description : Description
    workspace : Workspace
        Place of the arrays, and DuckDB's memory limit.
    tell : callable
        tell(text) is called as each step begins.
    about : dict
        Source and provenance of the data set. The account of all columns and rows is added to the provenance.
    undirected : bool, optional
        If True, add the reverse of each edge with the edge's values, and merge equal edges.
    self_loops : bool
        If True, add the missing self loops.
    deduplicate : bool
        If True, merge equal edges.
    normalize : bool
        If True, divide each node's features by their sum.
    drop_edge_values : bool
        If True, leave out weights and features of edges.

    Raises
    ------
    ConfigError, DataError
        If a source cannot be read or a cell is doubtful; the message names source, row, column, value and remedy.
    """
    changes = {"undirected": bool(undirected), "self_loops": self_loops, "deduplicate": deduplicate}
    odd = next((name for name, value in {**changes, "normalize": normalize}.items() if value), None)
    if description.relational and odd:
        raise ConfigError(f"{about['source']}: {odd} is for graphs of one kind, but this graph is relational")
    folder = None if workspace.folder is None else workspace.within("duckdb").folder
    with sources.connect(folder, workspace.n_bytes) as connection:
        compiler = _Compiler(connection, description, workspace, tell, about["source"], partial(as_features, normalize=normalize),
                             drop_edge_values)
        nodes, edges = compiler.run(partial(compiler.tables, changes))
    about = {**about, "provenance": {**about["provenance"], "tables": compiler.account}}
    return Dataset.of_tables(nodes, edges, description.target if description.relational else NODE, description.name, **about)


def edge_lists(description: Description, undirected: bool = False) -> tuple[list[dict[str, Array]], dict[str, Array]]:
    """Return (list with {"src", "dst", edge values} of each relation, {node type: ids of its nodes}) from the tables in
    `description`, in the order of the tables' rows. `undirected` True adds the reverse of each edge.

    Parameters
    ----------
    description : Description
        All ids are names of nodes.
    undirected : bool
        As for `build`. The added edges stand behind the edges of the table.

    Returns
    -------
    edges : list of dict of str to array
        For each relation the fields src and dst, int64, and the edge values as in an `EdgeTable`.
    ids : dict of str to array
        By node type, in the order of the row numbers.
    """
    with sources.connect() as connection:
        compiler = _Compiler(connection, description, Workspace(), lambda text: None, "tables")
        changes = {"undirected": undirected, "deduplicate": False, "self_loops": False}
        lists, ids = compiler.run(partial(compiler.lists, changes))
        return lists, ids


class _Compiler:
    """One run of `build` or `edge_lists`: reads a description's tables into DuckDB and makes node tables and edge tables of them.

    Attributes
    ----------
    account : dict
        Account of columns and rows so far, by node type and relation.
    """

    def __init__(self, connection, description, workspace, tell, source, finish=None, drop_edge_values=False):
        self._connection, self._description, self._workspace = connection, description, workspace
        self._tell, self._source = tell, source
        self._finish, self._drop_edge_values = finish, drop_edge_values
        self.account: JsonDict = {"nodes": {}, "edges": {}}
        self._nodes, self._edges = dict[str, NodeColumns](), list[EdgeColumns]()
        self._numberings: dict[str, NodeNumbering] = {}
        self._ends_alone: dict[str, tuple[str, list[IdColumn]]] = {}  # of types whose nodes are counted by edges alone

    def run(self, make_result):
        """Read all tables, number the nodes, and return the result of `make_result()`, a function that calls `tables` or `lists`. Raise one
        error about all faults in all columns of all tables.
        """
        errors: list[SarliteError] = []
        for name, nodes in self._description.nodes.items():
            self._tell(f"read {name}")
            with collecting(errors):
                self._nodes[name] = NodeColumns(self._connection, nodes, self._finish)
        for edges in self._description.edges:
            self._tell(f"read {'.'.join(edges.relation)}")
            with collecting(errors):
                self._edges.append(EdgeColumns(self._connection, edges, self._drop_edge_values))
                self._edges[-1].prepare()
        if not errors:
            with collecting(errors):
                self._tell("number the nodes")
                self._numberings = {name: self._numbering(name, columns) for name, columns in self._nodes.items()}
                return make_result()
        with contextlib.suppress(import_optional("duckdb", "tables").Error):  # then the errors so far are told
            self._add_errors(errors)
        raise_all(errors)
        return None

    def _add_errors(self, errors):
        """Check, one by one, the columns of the tables that could be read; append the exceptions to the list `errors`."""
        numberings: dict[str, NodeNumbering] = {}
        for name, nodes in self._nodes.items():
            with collecting(errors):
                nodes.check()
            if len(self._edges) == len(self._description.edges):
                with collecting(errors):
                    numberings[name] = self._numbering(name, nodes)
        for at, one in enumerate(self._edges):
            with collecting(errors):
                one.check()
            if {*one.source.relation[::2]} <= {*numberings}:
                with collecting(errors):
                    NumberedEdges(self._connection, f"temp.main.checked{at}", one, numberings, {}, False).check_ends()

    def tables(self, edge_changes):
        """Return (list of NodeTable, list of EdgeTable). `edge_changes` is a dict of bools: "undirected", "self_loops" and
        "deduplicate" say which edges are added or merged.
        """
        touched = {name: np.zeros(numbering.n_nodes, bool) for name, numbering in self._numberings.items()}
        if edge_changes["self_loops"]:  # the loops touch all nodes
            self._check_unused({name: self._numberings[name].n_nodes - count_distinct(ends)
                                for name, (_, ends) in self._ends_alone.items()})
        edge_tables = [list(self._edge_tables(at, touched, edge_changes)) for at in range(len(self._edges))]
        self._check_unused({name: np.count_nonzero(~nodes) for name, nodes in touched.items()})
        self._tell("read the nodes")
        node_tables = [self._node_table(name, touched[name]) for name in self._nodes]
        timed = [(one.listing and one.listing.table, one.source.time, self.account["nodes"][of]) for of, one in self._nodes.items()]
        timed += [(one.table, one.source.time, self.account["edges"][".".join(one.source.relation)]) for one in self._edges]
        check_units([(table, name, entry["times"]) for table, name, entry in timed if "first" in entry.get("times", {})])
        outside = [line for one in (*self._nodes.values(), *self._edges) for line in one.outside]
        self.account |= {"outside": outside} if outside else {}
        return node_tables, [table[0] for table in edge_tables] + [table[1] for table in edge_tables if len(table) > 1]

    def lists(self, edge_changes):
        """Return (list with {"src", "dst", edge values} of each relation, {node type: ids of its nodes}). `edge_changes` is a dict
        of bools, such as "undirected", that say which edges are added or merged.
        """
        lists = [self._numbered(at, edge_changes, read_again=True)[0].in_order() for at in range(len(self._edges))]
        return lists, {name: ids_in_order(self._connection, numbering) for name, numbering in self._numberings.items()}

    def _numbered(self, relation_index, edge_changes, read_again):
        """Return (edges, counts) of relation number `relation_index`: first `NumberedEdges`, the edges with row numbers as ends; then the
        number of edges that each of `edge_changes`, {name: bool}, has added or merged. `read_again` is True if the caller reads the edges
        more than once.
        """
        columns = self._edges[relation_index]
        edges = NumberedEdges(self._connection, f"temp.main.e{relation_index}", columns, self._numberings, edge_changes, read_again)
        return edges, edges.change(self._numberings[columns.source.relation[0]].n_nodes)

    def _numbering(self, node_type, node_columns):
        """Return the NodeNumbering of `node_type`, which maps ids to row numbers, from its `node_columns` and the edges' columns of its
        ids. Raise an error if the files with a row per node differ in their numbers of rows.
        """
        ends = [end for one in self._edges for end, of in zip(one.ends, one.source.relation[::2]) if of == node_type]
        source = node_columns.source
        numbering = number_nodes(node_type, node_columns.listing, ends, source.names, source.count)
        counts = node_columns.counts()
        if numbering is not None and numbering.id_type is not None:
            if numbering.listed_in is None and counts:
                where = next(iter(counts.values()))[0]
                raise ConfigError(f"{where}: rows of this file belong to no node, as only the edges name nodes; list "
                                  "the names in a file, names=FILE, or give a table, nodes=FILE")
            return numbering._replace(n_nodes=common_row_count({"names": (numbering.listed_in, numbering.n_nodes), **counts}
                                                               if numbering.listed_in else {"": ("", numbering.n_nodes)}))
        top, where = largest(ends)
        by_edges = source.count is None and not counts
        n = top + 1 if by_edges else _count(source, top, where, counts)
        if by_edges and ends:
            self._ends_alone[node_type] = where, ends
            if n > sum(table.n_rows for table, _ in ends):  # too many to occur, and perhaps too many for an array
                self._check_unused({node_type: n - count_distinct(ends)})
        check_nodes(n, None if self._workspace.folder else 1, where or self._source)
        of_type = f" of type {node_type!r}" if self._description.relational else ""
        for table, column in ends:
            too_large = f"{node_number(table, column)} >= {n}"
            check_cells(table, [CellCheck(column, too_large, f"node VALUE{of_type} is outside 0 <= node < {n}")])
        return NodeNumbering(n)

    def _check_unused(self, unused_ids):
        """Raise a DataError if a node type that no table lists has unused ids: numbers from 0 to its largest id that occur in no edge.
        `unused_ids` has their number by node type.
        """
        for name, n in unused_ids.items():
            if n and name in self._ends_alone:
                (where, ends), notation = self._ends_alone[name], self._nodes[name].source.reading.notation
                top = largest(ends)[0]
                remedies = [("names", "edges", "makes nodes of the ids that occur"),
                            ("nodes", top + 1, f"makes nodes of all ids from 0 to {top}")]
                raise DataError(f"{where}: edges: {n:,} of the node ids 0 to {top} occur in no edge: "
                                + notation.remedy(*remedies[: 1 if top >= MOST_NODES else 2]))

    def _node_table(self, node_type, has_edges):
        """Return the NodeTable of `node_type`, and record the use of its columns in `account`. `has_edges`, (n_nodes,) bool, marks the
        nodes that have edges, as the account states how many have none.
        """
        columns, numbering = self._nodes[node_type], self._numberings[node_type]
        workspace, target = self._space(f"nodes.{node_type}"), node_type == self._description.target
        rows, entries = columns.rows(numbering.n_nodes, workspace, target, not self._description.relational)
        names, titles = None, columns.titles
        if titles is not None:
            numbering = number_nodes(node_type, titles, (), True, None)._replace(n_nodes=numbering.n_nodes)
        if numbering.id_type is not None:
            budget.check(40 * numbering.n_nodes, workspace.n_bytes, f"the names of {numbering.n_nodes:,} nodes")
            names = mapping(self._connection, numbering, workspace)
            similar = alike(self._connection, numbering)
            entries |= {"alike": similar} if similar else {}
            entries["ids"] = "word" if numbering.id_type == "VARCHAR" else "number"
        self.account["nodes"][node_type] = {"nodes": numbering.n_nodes, **entries, "isolated": int(np.count_nonzero(~has_edges))}
        shown = node_type if self._description.relational else NODE
        return NodeTable(shown, numbering.n_nodes, **rows, source=self._source, names=names)

    def _edge_tables(self, relation_index, has_edges, edge_changes):
        """Yield the EdgeTable of relation number `relation_index` and, if the user wants it, of its reverse; record the use of columns in
        `account`. The masks `has_edges`, {node type: bool array}, become True at nodes with edges. `edge_changes`, {name: bool}, add or
        merge edges.
        """
        columns, numberings = self._edges[relation_index], self._numberings
        relation = columns.source.relation
        self._tell(f"number {'.'.join(relation)}")
        relational = self._description.relational
        directions = [(relation if relational else RELATION, False)]
        if relational and columns.source.reverse:
            directions.append((reverse(relation), True))
        edges, notes = self._numbered(relation_index, edge_changes, read_again=len(directions) > 1)
        for name, back in directions:
            self._tell(f"sort {'.'.join(name)}")
            sizes = [numberings[end].n_nodes for end in (relation[::-2] if back else relation[::2])]
            counters = Counters(has_edges[relation[0]], has_edges[relation[2]], relation[0] == relation[2])
            arrays = edges.sorted(*sizes, back, relational, self._space(f"edges.{relation_index}.{int(back)}"), None if back else counters)
            if not back:
                self.account["edges"][".".join(relation)] = {
                    "source": columns.account(), "edges": len(arrays["indices"]), "self_edges": counters.self_edges,
                    "duplicates": counters.duplicates, "negative_weights": counters.negative_weights, "changes": notes}
                if "edge_time" in arrays:
                    self.account["edges"][".".join(relation)]["times"] = accounts.times_shown(arrays["edge_time"], columns.time_kind)
            yield EdgeTable(name, sizes[0], **arrays, source=self._source, time_kind=columns.time_kind, **columns.feature_fields)
        edges.drop()

    def _space(self, name):
        return self._workspace.within(name)


def common_row_count(rows_of_files: dict[str, tuple[object, int]]) -> int:
    """Return the number of rows that all files with a row per node have; raise a DataError if two files differ. `rows_of_files` maps a
    name, such as "labels", to (file, its number of rows).
    """
    fewest, *_, most = sorted(2 * [(n, f"{file}: {name}") for name, (file, n) in rows_of_files.items()])
    if fewest[0] != most[0]:
        raise DataError(f"{fewest[1]}: {fewest[0]} rows, but {most[1]}: {most[0]}; both need one per node")
    return fewest[0]


def _count(node_source, largest_id, edge_file, rows_of_files):
    """Return the number of nodes of a type: the user's number in `node_source` or, without it, the number of rows in `rows_of_files`,
    {name: (file, number of rows)}. Raise a DataError unless it exceeds `largest_id`, the largest id in `edge_file`.
    """
    where_counted, field = node_source.counted_in
    n = common_row_count({**({} if node_source.count is None else {field: (where_counted, node_source.count)}), **rows_of_files})
    if n <= largest_id and node_source.count is None:
        field, (file, _) = next(iter(rows_of_files.items()))
        raise DataError(f"{file}: {field}: {n} rows, but {edge_file} has node id {largest_id}")
    return n

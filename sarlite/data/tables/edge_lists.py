"""Edge lists of node numbers from tables, for `Graph.from_pandas` and `HeteroGraph.from_pandas`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sarlite.data.graph_tables import NODE, RELATION, Relation
from sarlite.data.tables import sources
from sarlite.data.tables.description import EdgeSource
from sarlite.data.tables.edge_columns import EdgeColumns, NumberedEdges
from sarlite.data.tables.numbering import IdColumn, NodeNumbering, ids_in_order, number_nodes
from sarlite.data.tables.sql_connection import Connection
from sarlite.data.tables.text_form import Reading
from sarlite.errors import ConfigError
from sarlite.graph.array_checks import check_relation
from sarlite.types import Array


class TableEdges(NamedTuple):
    """Edges read from a table, in the order of its rows.

    Attributes
    ----------
    names : (n_nodes,) array
        Ids of the nodes in the table.
    src, dst : (n_edges,) int64
        Numbers of the nodes.
    weight : (n_edges,) float64, or None
    features : (n_edges, n_edge_features) float32, or None
    """

    names: Array
    src: Array
    dst: Array
    weight: Array | None
    features: Array | None


def read_edges(edges: object, src: str, dst: str, weight: str | None, features: Iterable[str], nodes: object, id: str,
               undirected: bool, fill: object, on_unknown: str) -> TableEdges:
    """Return the edges of a table; see `Graph.from_pandas`."""
    src, dst, id, features = str(src), str(dst), str(id), [str(name) for name in features]  # names of pandas columns may be numbers
    weight = None if weight is None else str(weight)
    table = _some(edges, [src, dst, weight, *features])
    source = EdgeSource(RELATION, table, "edges", src, dst, weight, dict.fromkeys(features, "number"), fill,
                        on_unknown=on_unknown)
    with sources.connect() as connection:
        columns = EdgeColumns(connection, source)
        numbering = _number(connection, NODE, columns.ends, nodes, id, "nodes")
        changes = {"undirected": undirected, "deduplicate": False, "self_loops": False}
        numbered = NumberedEdges(connection, "temp.main.e0", columns, {NODE: numbering}, changes, read_again=True)
        numbered.change(numbering.n_nodes)
        arrays = numbered.in_order()
        return TableEdges(ids_in_order(connection, numbering), arrays["src"], arrays["dst"], arrays.get("edge_weight"),
                          arrays.get("edge_features"))


def read_relations(edges: Mapping[Relation, object], src: str, dst: str, nodes: Mapping[str, object], id: str,
                   on_unknown: str) -> tuple[dict[Relation, tuple[Array, Array]], dict[str, Array]]:
    """Return edge lists by relation and ids by node type from tables of edges; see `HeteroGraph.from_pandas`."""
    src, dst, id = str(src), str(dst), str(id)
    if not all(isinstance(tables, Mapping) for tables in (edges, nodes)):
        raise ConfigError("edges and nodes are dicts of tables, by (source type, relation, destination type) "
                          "and by type")
    for relation in edges:
        check_relation(relation)
    described = [EdgeSource(relation, _some(table, [src, dst]), f"edges[{relation!r}]", src, dst, on_unknown=on_unknown)
                 for relation, table in edges.items()]
    with sources.connect() as connection:
        columns = [EdgeColumns(connection, source) for source in described]
        ends: dict[str, list[IdColumn]] = {name: [] for name in nodes}
        for one in columns:
            for end, node_type in zip(one.ends, one.source.relation[::2]):
                ends.setdefault(node_type, []).append(end)
        numberings = {name: _number(connection, name, of_type, nodes.get(name), id, f"nodes[{name!r}]")
                      for name, of_type in ends.items()}
        lists = dict[Relation, tuple[Array, Array]]()
        for at, one in enumerate(columns):
            numbered = NumberedEdges(connection, f"temp.main.e{at}", one, numberings, {}, read_again=True)
            arrays = numbered.in_order()
            lists[one.source.relation] = arrays["src"], arrays["dst"]
        return lists, {name: ids_in_order(connection, numbering) for name, numbering in numberings.items()}


def _some(table: Any, names: Iterable[str | None]) -> Any:
    """Return the named columns of a dict or a pandas table, so that other columns are not read.

    Any other table, and a table that has a named column not exactly once, is returned unchanged.
    """
    names = [name for name in names if name is not None]
    in_memory = isinstance(table, Mapping) or hasattr(table, "iloc")
    columns = list(getattr(table, "columns", table)) if in_memory else []
    return {name: table[name] for name in names} if in_memory and all(columns.count(name) == 1 for name in names) else table


def _number(connection: Connection, node_type: str, ends: Sequence[IdColumn], nodes: object, id: str, where: str) -> NodeNumbering:
    """Assign row numbers to the nodes of one type; ids are treated as names, even if they are whole numbers."""
    listing = None if nodes is None else IdColumn(sources.read(connection, _some(nodes, [id]), Reading(), [id], where), id)
    return number_nodes(node_type, listing, ends, True, None)  # type: ignore[return-value]  # None is for node numbers


"""Edge lists of node numbers from tables, for `Graph.from_pandas` and `HeteroGraph.from_pandas`."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sarlite.data.graph_tables import NODE, RELATION, Relation
from sarlite.data.tables import compile as compiler
from sarlite.data.tables.description import Description, EdgeSource, NodeSource
from sarlite.data.tables.notations import HETERO_PANDAS, PANDAS
from sarlite.data.tables.text_form import Reading
from sarlite.errors import ConfigError
from sarlite.graph.array_checks import check_relation
from sarlite.types import Array


class TableEdges(NamedTuple):
    """Edges read from a table in the order of its rows: node numbers of both ends, weights and features, and the nodes' ids.

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


def read_edges(edges: object, src_column: str, dst_column: str, weight_column: str | None, feature_columns: Iterable[str], nodes: object,
               id_column: str, undirected: bool, fill: object, on_unknown: str) -> TableEdges:
    """Return the edges in the table `edges`, with both ends as node numbers. `nodes` is a table whose column `id_column` lists the nodes;
    None takes the nodes from the edges. `undirected` adds reverse edges, `fill` ("0" or "mean") replaces missing values, and `on_unknown`
    is "refuse" or "drop", for edges with an unlisted node.
    """
    weight_column = None if weight_column is None else str(weight_column)  # names of pandas columns may be numbers
    source = EdgeSource(RELATION, edges, "edges", str(src_column), str(dst_column), weight_column,
                        dict.fromkeys(map(str, feature_columns), "number"), fill, on_unknown=on_unknown, reading=Reading(notation=PANDAS))
    described = Description({NODE: _node_source(nodes, "nodes", id_column, PANDAS)}, [source], NODE, "table")
    (lists,), ids = compiler.edge_lists(described, undirected)
    return TableEdges(ids[NODE], lists["src"], lists["dst"], lists.get("edge_weight"), lists.get("edge_features"))


def read_relations(edges: Mapping[Relation, object], src_column: str, dst_column: str, nodes: Mapping[str, object], id_column: str,
                   on_unknown: str) -> tuple[dict[Relation, tuple[Array, Array]], dict[str, Array]]:
    """Return ({relation: (source rows, destination rows)}, {node type: ids of its nodes}) from `edges`, a table for each relation, and
    `nodes`, a table for each node type whose column `id_column` lists the nodes. `on_unknown`, "refuse" or "drop", says what becomes of
    edges with an unlisted node.
    """
    if not all(isinstance(tables, Mapping) for tables in (edges, nodes)):
        raise ConfigError("edges and nodes are dicts of tables, by (source type, relation, destination type) and by type")
    for relation in edges:
        check_relation(relation)
    described = Description(
        {name: _node_source(nodes.get(name), f"nodes[{name!r}]", id_column, HETERO_PANDAS) for name in dict.fromkeys(
            [*nodes, *(end for relation in edges for end in relation[::2])])},
        [EdgeSource(relation, table, f"edges[{relation!r}]", str(src_column), str(dst_column), on_unknown=on_unknown,
                    reading=Reading(notation=HETERO_PANDAS))
         for relation, table in edges.items()], "", "tables", relational=True)
    lists, ids = compiler.edge_lists(described)
    return {relation: (arrays["src"], arrays["dst"]) for relation, arrays in zip(edges, lists)}, ids


def _node_source(table, table_name, id_column, option_notation):
    """Return the NodeSource of a node type whose ids are in the column `id_column` of `table`; None for `table` takes the ids that occur in
    edges. Messages call the table `table_name`, and show options in `option_notation`.
    """
    return NodeSource(table, table_name, str(id_column), {}, names=True, reading=Reading(notation=option_notation))

"""Graphs of tables of other libraries, whose nodes are known by ids of any kind, and back.

No library is imported for a table that comes in: `table[name]` is a column.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sarlite.comm import Solo, together, wrap
from sarlite.errors import ConfigError, DataError
from sarlite.graph import validation
from sarlite.graph.edges import destinations
from sarlite.sar.graph.construct import check_triple
from sarlite.sar.graph.whole import from_edges

if TYPE_CHECKING:
    from sarlite.sar.graph.graph import Graph
    from sarlite.sar.graph.hetero import HeteroGraph


def from_pandas(cls: Any, edges: Any, src: str = "src", dst: str = "dst", *, weight: str | None = None,
                features: Iterable[str] = (), nodes: Any = None, id: str = "id",
                undirected: bool = False) -> "Graph":
    """Make a whole graph from a table of edges, whose nodes are known by words or by numbers of any size.

    Parameters
    ----------
    edges : table
        A DataFrame of pandas or polars, a pyarrow table, or a dict of arrays: anything whose columns `edges[name]`
        gives. A row is an edge; equal rows are parallel edges.
    src, dst : str
        The columns with the ids of an edge's source and destination: whole numbers or words, none missing.
    weight : str, optional
        The column with the edges' weights, which become `edge_weight`.
    features : iterable of str
        The columns of numbers that become `edge_features`.
    nodes : table, optional
        A node a row, in the graph's order: nodes without edges too. By default the nodes are the ids of the edges, in
        ascending order.
    id : str
        The column of `nodes` with their ids, each once.
    undirected : bool
        Each edge goes both ways, a self loop once, with the same values; those backward follow the given edges.

    Returns
    -------
    Graph
        Its `ids` are the nodes' ids, and stay with its parts.

    Raises
    ------
    DataError
        No such column, an id that is missing or no whole number and no word, an id of an edge that is not in `nodes`,
        an id twice in `nodes`; values that are no finite numbers.
    """
    ids, (sources, to) = _numbered([_ids("edges", edges, name) for name in (src, dst)], nodes, id)
    order = np.arange(len(to))
    if undirected:
        back = np.flatnonzero(sources != to)
        order, sources, to = np.append(order, back), np.append(sources, to[back]), np.append(to, sources[back])
    made = from_edges(cls, sources, to, len(ids))
    made.names = ids
    columns = [validation.weights(f"edges: column {name!r}", _column("edges", edges, name), len(edges[name]))[order]
               for name in (*([] if weight is None else [weight]), *features)]
    if not columns:
        return made
    of_weight = None if weight is None else columns.pop(0)
    return made.with_edge_values(of_weight, np.stack(columns, 1) if columns else None)


def from_tables(cls: Any, edges: Mapping[Any, Any], src: str = "src", dst: str = "dst", *,
                nodes: Mapping[str, Any] | None = None, id: str = "id", **division: Any) -> "HeteroGraph":
    """Make a graph from a table of edges by relation. Collective.

    The nodes are known by words or by numbers of any size.

    Parameters
    ----------
    edges : dict of (source type, name, destination type) to table
        As `Graph.from_pandas` has them. Edge values are not read: `edge_ids` index the rows of a relation's table.
    src, dst : str
        The columns with the ids of an edge's source and destination.
    nodes : dict of str to table, optional
        The nodes of some types, in their order; of the others the nodes are the ids of their edges, ascending.
    id : str
        The column of these tables with the nodes' ids.
    **division
        `comm`, `parts`, `mode`, `prefetch` and `seed`, as `HeteroGraph.from_edges` has them.

    Returns
    -------
    HeteroGraph
        Its `ids` are the nodes' ids, by type.

    Raises
    ------
    ConfigError, DataError
        What `HeteroGraph.from_edges` and `Graph.from_pandas` refuse.
    """
    comm = Solo() if division.get("comm") is None else wrap(division["comm"])
    found, names = together(comm, lambda: _typed_edges(edges, src, dst, nodes or {}, id))
    made = cls.from_edges(found, {name: len(ids) for name, ids in names.items()}, **division)
    made.names = names
    return made


def _typed_edges(edges, src, dst, nodes, id):
    """Return edge lists by relation, and the ids of each type's nodes, of tables of edges by relation."""
    if not all(isinstance(given, Mapping) for given in (edges, nodes)):
        raise ConfigError("edges and nodes are dicts of tables, by (source type, relation, destination type) "
                          "and by type")
    for relation in edges:
        check_triple(relation)
    found = {relation: [_ids(f"edges[{relation!r}]", table, name) for name in (src, dst)]
             for relation, table in edges.items()}
    ends = [(relation, end) for relation in found for end in (0, 1)]
    numbers, ids = {}, {}
    for of_type in dict.fromkeys([*nodes, *(relation[2 * end] for relation, end in ends)]):
        mine = [(relation, end) for relation, end in ends if relation[2 * end] == of_type]
        ids[of_type], of_ends = _numbered([found[relation][end] for relation, end in mine], nodes.get(of_type), id)
        numbers.update(zip(mine, of_ends))
    return {relation: (numbers[relation, 0], numbers[relation, 1]) for relation in found}, ids


def _column(where, table, name, remedy=""):
    """A column of a table, as an array."""
    names = list(getattr(table, "column_names", None) or getattr(table, "columns", table))
    if name not in names:
        raise DataError(f"{where}: no column {name!r}: there are {', '.join(map(str, names))}{remedy}")
    return np.asarray(table[name])


def _ids(where, table, name, remedy=""):
    """A column of ids: integers, or an array of words."""
    found, where = _column(where, table, name, remedy), f"{where}: column {name!r}"
    if found.dtype.kind in "iuU" and found.ndim == 1:
        return found
    if found.dtype.kind not in "OT" or found.ndim != 1:
        if not found.size:
            return np.zeros(0, np.int64)
        raise DataError(f"{where}: {found.dtype} of shape {found.shape}, expected ids: whole numbers or words")
    cells = found.tolist()
    for kind in (str, (int, np.integer)):
        if all(isinstance(cell, kind) and not isinstance(cell, bool) for cell in cells):
            return np.array(cells)
    at = next((at for at, cell in enumerate(cells) if not isinstance(cell, str | int | np.integer)), None)
    raise DataError(f"{where}: some ids are numbers and some are words" if at is None
                    else f"{where}: row {at} is {cells[at]!r}, expected an id: a whole number or a word")


def _numbered(ends, nodes, id):
    """Return the ids of all nodes, and the number of each end's."""
    if nodes is None:
        kinds = {end.dtype.kind == "U" for end in ends if len(end)}
        if len(kinds) > 1:
            raise DataError("edges: some ids are numbers and some are words")
        ids, numbers = np.unique(np.concatenate([end for end in ends if len(end)] or ends), return_inverse=True)
        return ids, np.split(numbers, np.cumsum([len(end) for end in ends])[:-1])
    ids = _ids("nodes", nodes, id, "; id= names the column of ids")
    order = np.argsort(ids, kind="stable")
    in_order = ids[order]
    if (twice := in_order[1:][in_order[1:] == in_order[:-1]]).size:
        raise DataError(f"nodes: column {id!r}: {twice[0]!s} stands there twice")
    return ids, [_found(end, in_order, order) for end in ends]


def _found(end, in_order, order):
    """The number of each id, which the nodes must have."""
    if len(end) and (end.dtype.kind == "U") != (in_order.dtype.kind == "U"):
        raise DataError(f"edges: ids are {end.dtype}, and those of the nodes {in_order.dtype}")
    places = np.minimum(np.searchsorted(in_order, end), max(len(order) - 1, 0))
    if len(end) and (missing := in_order[places] != end if len(order) else np.ones(len(end), bool)).any():
        raise DataError(f"edges: {end[np.argmax(missing)]!s}, of edge {np.argmax(missing)}, is not among the nodes")
    return order[places] if len(order) else np.zeros(0, np.int64)


# ---- back


def to_scipy(graph: "Graph") -> Any:
    """Return the edges as a sparse matrix, of which a[i, j] is the edge from j to i. Collective.

    Returns
    -------
    scipy.sparse.csr_array
        (n_dst, sources of the whole graph) of the edges' weights, or of float32 ones; entries stored twice are two
        edges. Of a part its own rows; columns are row numbers of the whole graph.
    """
    from scipy import sparse

    n_columns = sum(graph.comm.allgather(graph.n_src))
    edges = graph.in_edges()
    return sparse.csr_array((_in_place(graph, edges), edges.indices, edges.indptr), shape=(graph.n_dst, n_columns))


def to_pandas(graph: "Graph", src: str = "src", dst: str = "dst", weight: str = "weight") -> Any:
    """Return the edges of a whole graph as a DataFrame of pandas, in the order of edge values.

    Returns
    -------
    pandas.DataFrame
        The ids of each edge's source and destination; its weight, where edges have weights; columns "edge_0", "edge_1",
        ... of its features, where they have any.

    Raises
    ------
    ConfigError
        The graph is a part of one, or bipartite.
    """
    import pandas

    found = dict(zip((src, dst), _ends(graph, "to_pandas")))
    found |= {} if graph.edge_weight is None else {weight: graph.edge_weight}
    of_edges = () if graph.edge_features is None else graph.edge_features.T
    return pandas.DataFrame(found | {f"edge_{at}": column for at, column in enumerate(of_edges)})


def to_networkx(graph: "Graph") -> Any:
    """Return a whole graph as a networkx.MultiDiGraph, whose nodes are `ids`; weights are the attribute "weight".

    Raises
    ------
    ConfigError
        The graph is a part of one, or bipartite.
    """
    import networkx

    src, dst = (found.tolist() for found in _ends(graph, "to_networkx"))
    made = networkx.MultiDiGraph()
    made.add_nodes_from(graph.ids.tolist())
    if graph.edge_weight is None:
        made.add_edges_from(zip(src, dst))
    else:
        made.add_weighted_edges_from(zip(src, dst, graph.edge_weight.tolist()))
    return made


def _in_place(graph, edges):
    """The weights in the order of the CSR."""
    if graph.edge_weight is None:
        return np.ones(len(edges.indices), np.float32)
    return graph.edge_weight if edges.numbers is None else graph.edge_weight[edges.numbers]


def _ends(graph, name):
    """The ids of each edge's source and destination, in the order of edge values."""
    if graph.comm.size > 1 or graph.bipartite:
        raise ConfigError(f"{name}: only of a whole graph of one kind of nodes; `in_edges` gives a part's edges")
    edges = graph.in_edges()
    found = edges.indices, destinations(edges.indptr)
    if edges.numbers is not None:
        order = np.argsort(edges.numbers)
        found = found[0][order], found[1][order]
    return graph.ids[found[0]], graph.ids[found[1]]

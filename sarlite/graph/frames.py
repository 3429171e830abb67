"""Edges read from tables of pandas, polars and pyarrow, and edges written for pandas and networkx.

No library is imported to read a table: `table[name]` is a column.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

import numpy as np

from sarlite.errors import ConfigError, DataError
from sarlite.graph.array_checks import Relation, check_relation
from sarlite.structure import validation
from sarlite.types import Array


class ColumnTable(Protocol):
    """Table whose columns are read by name: a DataFrame, a pyarrow table or a dict of arrays."""

    def __getitem__(self, name: str, /) -> object: ...


class TableEdges(NamedTuple):
    """Edges read from a table.

    Attributes
    ----------
    names : (n_nodes,) array
        Ids of the nodes in the table; node k has the id names[k].
    src, dst : (n_edges,) int64
        Source and destination of each edge, as indices into `names`.
    weight : (n_edges,) float array, or None
    features : (n_edges, n_edge_features) float array, or None
    """

    names: Array
    src: Array
    dst: Array
    weight: Array | None
    features: Array | None


def read_edges(edges: ColumnTable, src: str, dst: str, weight: str | None, features: Iterable[str],
               nodes: ColumnTable | None, id: str, undirected: bool) -> TableEdges:
    """Return the edges of a table; see `Graph.from_pandas`."""
    features = list(features)
    _check_lengths("edges", edges, [src, dst, *([] if weight is None else [weight]), *features])
    names, (sources, to) = _number([_read_ids("edges", edges, name) for name in (src, dst)], nodes, id)
    values = {name: _read_values("edges", edges, name) for name in [*([] if weight is None else [weight]), *features]}
    if undirected:
        order = _undirected(sources, to, values)
        sources, to = np.append(sources, to)[order], np.append(to, sources)[order]
        values = {name: column[order % len(column)] for name, column in values.items()}
    columns = [values[name] for name in features]
    return TableEdges(names, sources, to, None if weight is None else values[weight],
                      np.stack(columns, 1) if columns else None)


def _undirected(sources: Array, to: Array, values: Mapping[str, Array]) -> Array:
    """Return the edges to keep of an undirected graph: one of equal edges, from the edges and then their reverses.

    Returns
    -------
    (k,) int64
        Ascending indices into the concatenation of the n edges and their n reverses.

    Raises
    ------
    DataError
        Equal edges have different values.
    """
    n = len(to)
    keys = np.stack([np.append(sources, to), np.append(to, sources)], 1)
    _, first, same = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    first_of = first[same.reshape(-1)]
    for name, column in values.items():
        odd = np.flatnonzero(np.append(column, column) != np.append(column, column)[first_of])
        if len(odd):
            raise DataError(f"edges: column {name!r}: rows {first_of[odd[0]] % n} and {odd[0] % n} are one undirected "
                            "edge with different values; make them equal, or leave the column out")
    return np.sort(first)


def read_relations(edges: Mapping[Relation, ColumnTable], src: str, dst: str, nodes: Mapping[str, ColumnTable],
                   id: str) -> tuple[dict[Relation, tuple[Array, Array]], dict[str, Array]]:
    """Return edge lists by relation and ids by node type, from tables of edges; see `HeteroGraph.from_pandas`."""
    if not all(isinstance(tables, Mapping) for tables in (edges, nodes)):
        raise ConfigError("edges and nodes are dicts of tables, by (source type, relation, destination type) "
                          "and by type")
    for relation in edges:
        check_relation(relation)
    for relation, table in edges.items():
        _check_lengths(f"edges[{relation!r}]", table, [src, dst])
    columns = {(relation, end): _read_ids(f"edges[{relation!r}]", table, name)
               for relation, table in edges.items() for end, name in ((0, src), (2, dst))}
    numbers, names = dict[tuple[Relation, int], Array](), dict[str, Array]()
    for node_type in dict.fromkeys([*nodes, *(relation[end] for relation, end in columns)]):
        ends = [(relation, end) for relation, end in columns if relation[end] == node_type]
        names[node_type], of_ends = _number([columns[end] for end in ends], nodes.get(node_type), id)
        numbers.update(zip(ends, of_ends))
    return {relation: (numbers[relation, 0], numbers[relation, 2]) for relation in edges}, names


def _column(where: str, table: ColumnTable, name: str, remedy: str = "") -> Array:
    """Return a column of a table as an array; errors begin with `where` and end with `remedy`."""
    columns = [*cast(Iterable[str], getattr(table, "column_names", None) or getattr(table, "columns", table))]
    if name not in columns:
        raise DataError(f"{where}: no column {name!r}: there are {', '.join(map(str, columns))}{remedy}")
    column = table[name]
    mask = np.ma.getmaskarray(column) if isinstance(column, np.ma.MaskedArray) else np.zeros(0, bool)
    if mask.any():
        raise DataError(f"{where}: column {name!r}: row {int(np.argmax(mask))} is masked, so it has no value")
    return np.asarray(column)


def _check_lengths(where: str, table: ColumnTable, names: Sequence[str]) -> None:
    lengths = {name: len(_column(where, table, name)) for name in names}
    if len({*lengths.values()}) > 1:
        raise DataError(f"{where}: columns of different lengths: {lengths}")


def _read_values(where: str, table: ColumnTable, name: str) -> Array:
    """Return a column of finite numbers; raise a DataError that begins with `where` if a value is missing."""
    column = _column(where, table, name)
    if column.dtype.kind == "O" and column.ndim == 1:
        bad = next((at for at, cell in enumerate(column.tolist()) if not isinstance(cell, int | float)), None)
        if bad is not None:
            raise DataError(f"{where}: column {name!r}: row {bad} is {column[bad]!r}, expected a number")
        column = column.astype(np.float64)
    return validation.weights(f"{where}: column {name!r}", column, len(column))


def _read_ids(where: str, table: ColumnTable, name: str, remedy: str = "") -> Array:
    """Return a column of ids as an array of integers or of strings."""
    column, where = _column(where, table, name, remedy), f"{where}: column {name!r}"
    if column.dtype.kind in "iuU" and column.ndim == 1:
        return column
    if column.dtype.kind not in "OT" or column.ndim != 1:
        if not column.size:
            return np.zeros(0, np.int64)
        raise DataError(f"{where}: {column.dtype} of shape {column.shape}, expected ids: whole numbers or words")
    cells = column.tolist()
    for kind in (str, (int, np.integer)):
        if all(isinstance(cell, kind) and not isinstance(cell, bool) for cell in cells):
            return np.array(cells)
    at = next((at for at, cell in enumerate(cells) if not isinstance(cell, str | int | np.integer)), None)
    raise DataError(f"{where}: some ids are numbers and some are words" if at is None
                    else f"{where}: row {at} is {cells[at]!r}, expected an id: a whole number or a word")


def _number(ends: Sequence[Array], nodes: ColumnTable | None, id: str) -> tuple[Array, Sequence[Array]]:
    """Return the ids of all nodes, and for each column of edge ends the indices of its nodes among these ids."""
    if nodes is None:
        kinds = {end.dtype.kind == "U" for end in ends if len(end)}
        if len(kinds) > 1:
            raise DataError("edges: some ids are numbers and some are words")
        ids, numbers = np.unique(np.concatenate([end for end in ends if len(end)] or ends), return_inverse=True)
        return ids, np.split(numbers, np.cumsum([len(end) for end in ends])[:-1])
    ids = _read_ids("nodes", nodes, id, "; id= names the column of ids")
    order = np.argsort(ids, kind="stable")
    in_order = ids[order]
    if (equal := in_order[1:][in_order[1:] == in_order[:-1]]).size:
        raise DataError(f"nodes: column {id!r}: {equal[0]!s} stands there twice")
    return ids, [_look_up(end, in_order, order) for end in ends]


def _look_up(end: Array, in_order: Array, order: Array) -> Array:
    """Return the row in `nodes` of each id of `end`; raise a DataError if `nodes` has no such id.

    Parameters
    ----------
    end : (n_edges,) array of ids
    in_order : (n_nodes,) array
        Ids of the nodes, ascending.
    order : (n_nodes,) int64
        Row of each ascending id.
    """
    if len(end) and (end.dtype.kind == "U") != (in_order.dtype.kind == "U"):
        raise DataError(f"edges: ids are {end.dtype}, and those of the nodes {in_order.dtype}")
    places = np.minimum(np.searchsorted(in_order, end), max(len(order) - 1, 0))
    if len(end) and (missing := in_order[places] != end if len(order) else np.ones(len(end), bool)).any():
        raise DataError(f"edges: {end[np.argmax(missing)]!s}, of edge {np.argmax(missing)}, is not among the nodes")
    return order[places] if len(order) else np.zeros(0, np.int64)


# ---- edges for other libraries


def make_frame(columns: Mapping[str, Array], features: Array | None) -> object:
    """Return a pandas.DataFrame of `columns`, and of columns "edge_0", "edge_1", ... for the columns of `features`."""
    import pandas

    of_edges = () if features is None else features.T
    return pandas.DataFrame({**columns} | {f"edge_{at}": column for at, column in enumerate(of_edges)})


def make_networkx(ids: Array, src: Array, dst: Array, weight: Array | None) -> object:
    """Return a networkx.MultiDiGraph of the nodes `ids` and of the edges from src[e] to dst[e]."""
    import networkx

    graph = networkx.MultiDiGraph()
    graph.add_nodes_from(ids.tolist())
    if weight is None:
        graph.add_edges_from(zip(src.tolist(), dst.tolist()))
    else:
        graph.add_weighted_edges_from(zip(src.tolist(), dst.tolist(), weight.tolist()))
    return graph

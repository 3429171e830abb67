"""Match a data set by name with the data that a model was trained on, whose names are a schema.

A schema is a dict that JSON can hold:

- target: the node type that has labels.
- nodes: [[node type, columns, transforms], ...], in the order of the data set.
- edges: [[[source type, name, destination type], columns, transforms], ...], likewise.

`columns` are the names of the features' columns, or their number where they have no names, or None without features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sarlite.data.dataset import Dataset
from sarlite.data.graph_tables import EdgeTable, NodeTable
from sarlite.data.mapped import copied
from sarlite.errors import DataError
from sarlite.types import Array

Schema = Mapping[str, Any]
Columns = list[str] | int | None


class Matched(NamedTuple):
    """Data in the order that a model takes.

    Attributes
    ----------
    dataset : Dataset
    left_out : list of str
        What the model does not take, a line each.
    by_position : list of str
        What has no names on one side, a line each.
    """

    dataset: Dataset
    left_out: list[str]
    by_position: list[str]


def schema_of(dataset: Dataset, edge_features: bool = True) -> dict[str, Any]:
    """Return the schema of a data set; without `edge_features` of a model that does not take them."""
    def of(table: NodeTable | EdgeTable) -> list[Any]:
        taken = edge_features or isinstance(table, NodeTable)
        return [_columns(table), table.transforms] if taken else [None, None]

    return {"target": dataset.target, "nodes": [[name, *of(table)] for name, table in dataset.nodes.items()],
            "edges": [[list(relation), *of(table)] for relation, table in dataset.edges.items()]}


def transforms_of(schema: Schema) -> dict[str, Any]:
    """Return the transforms in a schema, by node type and by the words of a relation joined by "."."""
    named = {name: transforms for name, _, transforms in schema["nodes"]}
    named |= {".".join(relation): transforms for relation, _, transforms in schema["edges"]}
    return {name: transforms for name, transforms in named.items() if transforms}


def is_schema(found: Any) -> bool:
    """Return True if a value of JSON is a schema."""
    if not isinstance(found, dict) or not isinstance(found.get("target"), str):
        return False
    nodes, edges = found.get("nodes"), found.get("edges")
    if not isinstance(nodes, list) or not isinstance(edges, list):
        return False
    return (all(isinstance(entry, list) and len(entry) == 3 for entry in nodes + edges)
            and all(isinstance(name, str) for name, *_ in nodes)
            and all(_are_words(relation) and len(relation) == 3 for relation, *_ in edges)
            and all((columns is None or type(columns) is int or _are_words(columns))
                    and (transforms is None or isinstance(transforms, dict)) for _, columns, transforms in nodes + edges))


def matched(dataset: Dataset, schema: Schema, name: str) -> Matched:
    """Return a data set with the node types, relations and columns of a schema, in the order of the schema.

    Types, relations and columns that the schema lacks are left out. Columns without names on either side stay as they
    are. Messages call the data `name`.

    Raises
    ------
    DataError
        The data lack a type, a relation or a column, naming it; a schema without names has another number of columns;
        or another type has the labels.

    Notes
    -----
    Reads no rows. Columns are taken out of the rows when the rows are read.
    """
    if dataset.target != schema["target"]:
        raise DataError(f"data {name}: target: {dataset.target!r}, but the model is for nodes of type "
                        f"{schema['target']!r}: target = \"{schema['target']}\" in tables:FILE.toml says it")
    out = _Notes(f"data {name}", [], [])
    nodes = {name: there for name, *there in schema["nodes"]}
    edges = {tuple(relation): there for relation, *there in schema["edges"]}
    _check_names(out, "node types", {name: name for name in nodes}, {name: name for name in dataset.nodes})
    _check_names(out, "relations", *({relation: ".".join(relation) for relation in own}
                                     for own in (edges, dataset.edges)))
    tables: list[Any] = [_with_columns(out, dataset.nodes[name], *there) for name, there in nodes.items()]
    relations: list[Any] = [_with_columns(out, dataset.edges[name], *there) for name, there in edges.items()]
    made = Dataset.of_tables(tables, relations, dataset.target, dataset.name, dataset.source, dataset.provenance,
                             dataset.directory, dataset.division)
    return Matched(made, out.left_out, out.by_position)


class _Notes(NamedTuple):
    data: str
    left_out: list[str]
    by_position: list[str]


def _check_names(out: _Notes, what: str, there: Mapping[Any, str], here: Mapping[Any, str]) -> None:
    """Raise a DataError for a name that the data lack; note the names that the model does not take."""
    for name, told in there.items():
        if name not in here:
            raise DataError(f"{out.data}: {what}: no {told}, which the model takes; the data have "
                            f"{', '.join(here.values()) or 'none'}")
    more = [told for name, told in here.items() if name not in there]
    if more:
        out.left_out.append(f"{out.data}: {what} left out, as the model does not take them: "
                            f"{', '.join(more)}")


def _with_columns(out: _Notes, table: NodeTable | EdgeTable, there: Columns, transforms: Any) -> NodeTable | EdgeTable:
    """Return a table with the columns of features that the model takes, in the order of the model."""
    here, where = _columns(table), f"{table.label}{table.FEATURES.replace('_', ' ')}"
    if there is None or here is None:
        if there is not None:
            raise DataError(f"{out.data}: {where}: none, but the model takes {_told(there)}")
        return table if here is None else _without(out, table, where)
    if table.transforms != transforms:
        raise DataError(f"{out.data}: {where}: made with other transforms than the model's: {_other(transforms, table)}")
    if isinstance(there, int) or isinstance(here, int):
        return _by_position(out, table, where, there, here)
    _check_names(out, f"{where}: columns", {name: repr(name) for name in there}, {name: repr(name) for name in here})
    if there == here:
        return table
    index = np.array([here.index(name) for name in there], np.int64)
    changes: dict[str, Any] = {table.FEATURES: SomeColumns(getattr(table, table.FEATURES), index)}
    return replace(table, feature_names=list(there), **changes)


def _without(out: _Notes, table: NodeTable | EdgeTable, where: str) -> NodeTable | EdgeTable:
    if isinstance(table, EdgeTable):
        return table  # options of the run say what becomes of values on edges
    out.left_out.append(f"{out.data}: {where} left out, as the model has learned rows for this type")
    return replace(table, features=None, feature_names=None, transforms=None)


def _by_position(out: _Notes, table: NodeTable | EdgeTable, where: str, there: Any, here: Any) -> Any:
    n_there, n_here = (own if isinstance(own, int) else len(own) for own in (there, here))
    unnamed = "the model's" if isinstance(there, int) else "the data's"
    if n_there != n_here:
        raise DataError(f"{out.data}: {where}: {n_here} columns, but the model takes {n_there}; {unnamed} "
                        "columns have no names to match them by")
    if n_there > 1:
        out.by_position.append(f"{out.data}: {where} are matched by position, as {unnamed} "
                               "columns have no names")
    return table


def _other(there: Any, table: NodeTable | EdgeTable) -> str:
    """Return words on the first column whose transforms differ."""
    columns = [(transforms or {}).get("columns", {}) for transforms in (there, table.transforms)]
    name = next((name for name in {**columns[0], **columns[1]} if columns[0].get(name) != columns[1].get(name)), None)
    if name is None:
        return "in another order, or fitted on other rows"
    told = [str(own.get(name, "none"))[:200] for own in columns]
    return f"column {name!r} has {told[1]}, but the model {told[0]}"


class SomeColumns:
    """Columns of an array of two dimensions, in an order of their own, taken when rows are read.

    Parameters
    ----------
    array : (n, any) array
    index : (k,) int
        Columns of the array.
    """

    ndim = 2

    def __init__(self, array: Any, index: Array) -> None:
        self._array, self._index, self.dtype = array, index, array.dtype
        self.shape = (array.shape[0], len(index))
        self.nbytes = array.shape[0] * len(index) * array.dtype.itemsize

    def __getitem__(self, rows: slice) -> Array:
        return copied(self._array, rows.start, rows.stop)[:, self._index]


def _columns(table: NodeTable | EdgeTable) -> Columns:
    array = getattr(table, table.FEATURES)
    if array is None or table.feature_names is not None:
        return None if array is None else list(table.feature_names or ())
    return int(array.shape[1])


def _told(columns: Columns) -> str:
    return f"{columns} columns" if isinstance(columns, int) else ", ".join(map(repr, columns or ()))


def _are_words(found: Any) -> bool:
    return isinstance(found, Sequence) and not isinstance(found, str) and all(isinstance(word, str) for word in found)


__all__ = ["Matched", "Schema", "SomeColumns", "is_schema", "matched", "schema_of"]

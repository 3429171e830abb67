"""Matching of a data set with a schema: node types, relations and feature columns of the data that a model was trained on.

A schema is a dict that JSON can hold:

- target: the node type that has labels.
- nodes: [[node type, columns, transforms], ...], in the order of the data set.
- edges: [[[source type, name, destination type], columns, transforms], ...], likewise.

`columns` are the names of the feature columns, or the number of columns if they have no names, or None without features.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sarlite.data.dataset import Dataset
from sarlite.data.graph_tables import EdgeTable, NodeTable
from sarlite.data.mapped import copied
from sarlite.errors import DataError
from sarlite.types import Array, JsonDict

Schema = Mapping[str, Any]
Columns = list[str] | int | None
AnyTable = TypeVar("AnyTable", NodeTable, EdgeTable)
Name = TypeVar("Name", bound=Hashable)


class Matched(NamedTuple):
    """A data set with its tables and columns in the order that a model expects.

    Attributes
    ----------
    dataset : Dataset
    left_out : list of str
        Messages about node types, relations and columns that the model does not use, and about values outside the range
        of the table that the model was trained on.
    by_position : list of str
        Messages about features that were matched by position, as one side has no column names.
    """

    dataset: Dataset
    left_out: list[str]
    by_position: list[str]


def schema_of(dataset: Dataset, edge_features: bool = True) -> JsonDict:
    """Return a schema, a dict, of `dataset`: its target type, node types, relations and feature columns. Without `edge_features`,
    no feature columns of relations are listed, for models that ignore them.

    Parameters
    ----------
    dataset : Dataset
    edge_features : bool
        If False, leave out the edge features, for a model that does not use them.

    Examples
    --------
    >>> from sarlite.data import load
    >>> schema_of(load("sbm:nodes=100,classes=2,features=4"))
    {'target': 'node', 'nodes': [['node', 4, None]], 'edges': [[['node', 'edge', 'node'], None, None]]}
    """
    def of(table: NodeTable | EdgeTable) -> list[object]:
        taken = edge_features or isinstance(table, NodeTable)
        return [_columns(table), table.transforms] if taken else [None, None]

    return {"target": dataset.target, "nodes": [[name, *of(table)] for name, table in dataset.nodes.items()],
            "edges": [[list(relation), *of(table)] for relation, table in dataset.edges.items()]}


def transforms_of(schema: Schema) -> JsonDict:
    """Return {node type, or relation joined by ".": fitted transforms of its feature columns} from `schema`; types without
    transforms are left out.
    """
    named = {name: transforms for name, _, transforms in schema["nodes"]}
    named |= {".".join(relation): transforms for relation, _, transforms in schema["edges"]}
    return {name: transforms for name, transforms in named.items() if transforms}


def is_schema(value: object) -> bool:
    """Return True if `value`, read from JSON, has the form of a schema: target, node types, relations, and the columns and
    transforms of each.
    """
    if not isinstance(value, dict) or not isinstance(value.get("target"), str):
        return False
    nodes, edges = value.get("nodes"), value.get("edges")
    if not isinstance(nodes, list) or not isinstance(edges, list):
        return False
    return (all(isinstance(entry, list) and len(entry) == 3 for entry in nodes + edges)
            and all(isinstance(name, str) for name, *_ in nodes)
            and all(_are_words(relation) and len(relation) == 3 for relation, *_ in edges)
            and all((columns is None or type(columns) is int or _are_words(columns))
                    and (transforms is None or isinstance(transforms, dict)) for _, columns, transforms in nodes + edges))


def matched(dataset: Dataset, schema: Schema, name: str) -> Matched:
    """Return a `Matched`: `dataset` with only the types, relations and feature columns that `schema` lists, in the schema's order, and
    notes about the rest. A schema describes the data that a model was trained on. Messages call the data `name`.

    Columns without names in the data or in the schema are matched by position.

    Parameters
    ----------
    dataset : Dataset
    schema : dict
    name : str
        Name of the data in messages.

    Returns
    -------
    Matched

    Raises
    ------
    DataError
        If the data lack a type, a relation or a column of the schema, the numbers of unnamed columns differ, or the labels
        belong to another node type.

    Notes
    -----
    No rows are read here. Columns are selected when rows are read.
    """
    if dataset.target != schema["target"]:
        raise DataError(f"data {name}: target: {dataset.target!r}, but the model is for nodes of type "
                        f"{schema['target']!r}: write target = \"{schema['target']}\" in tables:FILE.toml")
    out = _Notes(f"data {name}", [*dataset.provenance.get("tables", {}).get("outside", ())], [])
    nodes = {name: entry for name, *entry in schema["nodes"]}
    edges = {tuple(relation): entry for relation, *entry in schema["edges"]}
    _check_names(out, "node types", {name: name for name in nodes}, {name: name for name in dataset.nodes})
    _check_names(out, "relations", *({relation: ".".join(relation) for relation in relations} for relations in (edges, dataset.edges)))
    node_tables = [_with_columns(out, dataset.nodes[name], *entry) for name, entry in nodes.items()]
    edge_tables = [_with_columns(out, dataset.edges[name], *entry) for name, entry in edges.items()]
    selected = Dataset.of_tables(node_tables, edge_tables, dataset.target, dataset.name, dataset.source, dataset.provenance,
                             dataset.directory, dataset.division)
    return Matched(selected, out.left_out, out.by_position)


class _Notes(NamedTuple):
    data: str
    left_out: list[str]
    by_position: list[str]


def _check_names(out: _Notes, name_kind: str, expected: Mapping[Name, str], available: Mapping[Name, str]) -> None:
    """Raise a DataError if a name that the model needs (`expected`) is not `available` in the data, and note other available names in
    `out.left_out`. Both dicts map a name to its text in messages, and `name_kind` is a word such as "relation".
    """
    for name, text in expected.items():
        if name not in available:
            raise DataError(f"{out.data}: {name_kind}: no {text}, which the model takes; the data have "
                            f"{', '.join(available.values()) or 'none'}")
    unused = [text for name, text in available.items() if name not in expected]
    if unused:
        out.left_out.append(f"{out.data}: {name_kind} left out, as the model does not take them: {', '.join(unused)}")


def _with_columns(out: _Notes, table: AnyTable, expected: Columns, transforms: JsonDict | None) -> AnyTable:
    """Return `table` with the feature columns that a model needs, `expected`, in this order. Raise a DataError if a column is missing, or
    was computed by other transforms than the model's `transforms`. Notes about columns left out or matched by position are added to `out`.
    """
    available, where = _columns(table), f"{table.label}{table.FEATURES.replace('_', ' ')}"
    if expected is None or available is None:
        if expected is not None:
            raise DataError(f"{out.data}: {where}: none, but the model takes {_column_text(expected)}")
        return table if available is None else _without(out, table, where)
    if table.transforms != transforms:
        raise DataError(f"{out.data}: {where}: made with other transforms than the model's: {_transform_difference(transforms, table)}")
    if isinstance(expected, int) or isinstance(available, int):
        return _by_position(out, table, where, expected, available)
    _check_names(out, f"{where}: columns", {name: repr(name) for name in expected}, {name: repr(name) for name in available})
    if expected == available:
        return table
    index = np.array([available.index(name) for name in expected], np.int64)
    changes: dict[str, Any] = {table.FEATURES: SomeColumns(getattr(table, table.FEATURES), index)}
    return replace(table, feature_names=list(expected), **changes)


def _without(out: _Notes, table: AnyTable, feature_label: str) -> AnyTable:
    """Return a node `table` without its features, as the model has learned rows for these nodes instead, or an edge table unchanged. A note
    that the features are not used, which calls them `feature_label`, is added to `out.left_out`.
    """
    if isinstance(table, EdgeTable):
        return table  # the run's own options decide whether values of edges are used
    out.left_out.append(f"{out.data}: {feature_label} left out, as the model has learned rows for this type")
    return replace(table, features=None, feature_names=None, transforms=None)


def _by_position(out: _Notes, table: AnyTable, feature_label: str, expected: list[str] | int, available: list[str] | int) -> AnyTable:
    """Return `table` if it has as many feature columns (`available`: names or a number) as the model needs (`expected`); else raise a
    DataError. A note that columns were matched by position is added to `out`; messages call them `feature_label`.
    """
    n_expected, n_available = (columns if isinstance(columns, int) else len(columns) for columns in (expected, available))
    unnamed = "the model's" if isinstance(expected, int) else "the data's"
    if n_expected != n_available:
        raise DataError(f"{out.data}: {feature_label}: {n_available} columns, but the model takes {n_expected}; {unnamed} "
                        "columns have no names to match them by")
    if n_expected > 1:
        out.by_position.append(f"{out.data}: {feature_label} are matched by position, as {unnamed} columns have no names")
    return table


def _transform_difference(expected: JsonDict | None, table: NodeTable | EdgeTable) -> str:
    """Return the part of an error message about the first column of `table` whose transform differs from the model's transform in
    `expected`.
    """
    columns = [(transforms or {}).get("columns", {}) for transforms in (expected, table.transforms)]
    name = next((name for name in {**columns[0], **columns[1]} if columns[0].get(name) != columns[1].get(name)), None)
    if name is None:
        return "in another order, or fitted on other rows"
    texts = [", ".join(f"{name}:{entry['transform']}" for name, entry in one.items()) or "plain numbers" for one in columns]
    return (f"column {name!r} has {columns[1][name]!s:.200} instead of {columns[0][name]!s:.200}" if texts[0] == texts[1] else
            f"{texts[1]} instead of {texts[0]}")


class SomeColumns:
    """View of selected columns of a two-dimensional array; columns are selected when rows are read.

    Parameters
    ----------
    array : (n, n_columns) array
    index : (k,) int
        Selected columns of the array, in the order of the view.
    """

    ndim = 2

    def __init__(self, array: Array, index: Array) -> None:
        self._array, self._index, self.dtype = array, index, array.dtype
        self.shape = (array.shape[0], len(index))
        self.nbytes = array.shape[0] * len(index) * array.dtype.itemsize

    def __getitem__(self, rows: slice) -> Array:
        return copied(self._array, rows.start, rows.stop)[:, self._index]


def _columns(table: NodeTable | EdgeTable) -> Columns:
    """Return the names of the feature columns of `table`, or their number if they have no names; None without features."""
    array = getattr(table, table.FEATURES)
    if array is None or table.feature_names is not None:
        return None if array is None else list(table.feature_names or ())
    return int(array.shape[1])


def _column_text(columns: Columns) -> str:
    return f"{columns} columns" if isinstance(columns, int) else ", ".join(map(repr, columns or ()))


def _are_words(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(word, str) for word in value)


__all__ = ["Matched", "Schema", "SomeColumns", "is_schema", "matched", "schema_of"]

"""The nodes of one type, read from the columns of a table with ids, or from files with row i for node i."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sarlite.data import budget, npyfile
from sarlite.data.graph_tables import SPLITS
from sarlite.data.mapped import copied
from sarlite.data.mapped import pieces as mapped_pieces
from sarlite.data.raw import strata
from sarlite.data.tables import account as accounts
from sarlite.data.tables import sources
from sarlite.data.tables.checks import cell, check_cells, id_checks, node_number, number_checks, numeric_columns, split_code, truth
from sarlite.data.tables.description import NodeSource
from sarlite.data.tables.feature_columns import check_features, features_wanted, make_features
from sarlite.data.tables.labels import check_labels, other_tasks, read_labels
from sarlite.data.tables.number_columns import column_names, matrix, numbers
from sarlite.data.tables.numbering import IdColumn
from sarlite.data.tables.remedies import replacement
from sarlite.data.tables.sources import Table, unnamed
from sarlite.data.tables.sql_connection import Connection, to_array
from sarlite.data.tables.text_form import Reading, quote
from sarlite.data.tables.time_columns import time_column
from sarlite.data.targets import labelled
from sarlite.data.workspace import Workspace
from sarlite.errors import ConfigError, DataError, SarliteError, collecting, raise_all
from sarlite.structure.generate import random_split
from sarlite.types import Array, JsonDict

_DRAWN_BYTES = 64  # memory per node while a split is drawn


class FeatureRows(NamedTuple):
    """Node features that arrive as pieces of rows from an iterable, with their total number of rows.

    Attributes
    ----------
    where : str or path
        Name of the source in messages.
    n_rows : int
    pieces : iterable of (n, n_features) array
    """

    where: object
    n_rows: int
    pieces: Iterable[Array]


class NodeColumns:
    """Sources of one node type's data, and the use of each of their columns: id, feature, label, split or time.

    Parameters
    ----------
    connection : Connection
    source : NodeSource
    finish : callable
        finish(rows) converts each piece of the features.

    Attributes
    ----------
    source : NodeSource
    listing : IdColumn or None
        The column with the nodes' ids in the order of the nodes.
    titles : IdColumn or None
        The column with other names of the nodes, by which edges do not refer to them.
    outside : list of str
        Lines about features with values outside the range of the table that a model was trained on.
    """

    def __init__(self, connection: Connection, source: NodeSource, finish: Callable[[Array], Array]) -> None:
        self.source, self._finish = source, finish
        _check_uses(source)
        features_wanted(source.features, source.fill, f"{source.where}: features")  # raises for an unknown transform
        self._left: dict[str, str] = {}
        self.outside: list[str] = []
        self._transform_words: dict[str, str] = {}
        self._features = [*(source.features or ())]
        self._rows = dict(source.rows)
        table = None
        if source.source is not None:
            asked = [source.id, *self._features, *source.labels, source.split, *source.masks.values(), source.time]
            table = sources.read(connection, source.source, source.reading, [name for name in asked if name],
                                 source.where, self._chosen_columns)
        self._table = table
        self.listing = IdColumn(table, self._id) if table else None
        for field in ("labels", "split", "names", "titles"):
            if field in self._rows:
                reading_options = source.reading if field == "labels" else Reading(header=False)
                self._rows[field] = sources.read(connection, self._rows[field], reading_options, (), field, _named_columns)
        self.titles = IdColumn(self._rows["titles"], self._rows["titles"].columns[0]) if "titles" in self._rows else None
        if "names" in self._rows:
            self.listing = IdColumn(self._rows["names"], self._rows["names"].columns[0])
        features = self._rows.get("features")
        if features is not None and not isinstance(features, FeatureRows):
            self._rows["features"] = _feature_rows(connection, features, source.reading)
        for field in ("features", "labels"):
            _refuse_ids(self._rows.get(field), field)
        if table is not None and source.features is None:
            taken = {self._id, *source.labels, source.split, *source.masks.values(), source.time}
            others = [name for name in table.types if name not in taken]
            unknown = [name for name in others if source.transforms and name not in source.transforms["columns"]]  # of new tables
            self._features, self._left = numeric_columns(table, [name for name in others if name not in unknown])
            self._left |= dict.fromkeys(unknown, "no feature of the model")

    def _chosen_columns(self, all_columns):
        """Return which of `all_columns`, the names of the table's columns, to read into DuckDB: those with a use such as id or label, and
        all others unless the user lists the features.
        """
        shown = _named_columns(all_columns)
        self._id = self.source.id or (shown[0] if shown else "")
        source = self.source
        asked = [self._id, *self._features, *source.labels, source.split, *source.masks.values(), source.time]
        return [*dict.fromkeys([name for name in asked if name] + (shown if self.source.features is None else []))]

    def check(self) -> None:
        """Check the table's columns of ids, features, labels, times and splits; raise one error about all invalid cells."""
        source, table, errors = self.source, self._table, list[SarliteError]()
        labels, columns = self._labels()
        if labels is not None:
            with collecting(errors):
                check_labels(labels, columns, source.task, source.classes, labels is not table)
        for check in (self._check_features, lambda: source.time and time_column(table, source.time),
                      lambda: check_cells(table, id_checks(table, self._id)), self._check_splits) if table is not None else ():
            with collecting(errors):
                check()
        raise_all(errors)

    def _check_features(self):
        wanted = self._features_wanted(self._features)
        if wanted is None:
            check_cells(self._table, number_checks(self._table, self._features))
        else:
            check_features(self._table, wanted, self.source.transforms)

    def _features_wanted(self, columns):
        source = self.source
        return features_wanted(source.features or dict.fromkeys(columns, "number"), source.fill, f"{source.where}: features")

    def _check_splits(self):
        columns = [split_code(self._table, self.source.split)] if self.source.split else []
        columns += [truth(self._table, column) for column in self.source.masks.values()]
        check_cells(self._table, [check for _, check in columns])

    def counts(self) -> dict[str, tuple[object, int]]:
        """Return {field: (name of the source, number of rows)} of the sources with one row per node."""
        tables = {name: self._rows[name] for name in ("names", "titles", "features", "labels", "split") if name in self._rows}
        return {name: (one.where, one.n_rows) for name, one in tables.items()}

    def rows(self, n_nodes: int, workspace: Workspace, target: bool, ones: bool) -> tuple[JsonDict, JsonDict]:
        """Return (dict of fields for `NodeTable`, dict on the use of columns) for `n_nodes` nodes. `target` True adds labels and splits,
        `ones` True adds one feature that is 1 if there are no features, and `workspace` holds the arrays.

        Parameters
        ----------
        n_nodes : int
        workspace : Workspace
        target : bool
            True for the node type that has labels and splits; without a source of labels, all labels are unknown.
        ones : bool
            True if nodes without features get a column of ones.
        """
        table, columns = self._labels()
        if table is None:
            fields, entries = unlabelled(n_nodes, workspace) if target else {}, JsonDict()
        else:
            fields, entries = self._labelled(table, columns, workspace)
        training = np.asarray(fields["train"]) if table is not None else None
        if training is not None and not training.any():
            training = None
        features = self._feature_fields(workspace, training)
        if not features and ones:
            pieces = (self._finish(piece) for piece in _ones(n_nodes, workspace.at_once()))
            features = {"features": workspace.array("ones", pieces)}
        times = self._times(workspace)
        if times:
            entries["times"] = accounts.times_shown(times["time"], times["time_kind"])
        return {**features, **fields, **times}, {"sources": self._accounts(), **entries}

    def _times(self, workspace):
        """Return {"time": array, "time_kind": "dates" or "integers"} of the nodes, or {} without a column of times."""
        if self.source.time is None:
            return {}
        times, spool = time_column(self._table, self.source.time), workspace.spool("time", np.int64)
        for (cells,) in self._table.batches(times.expression):
            spool.write(to_array(cells))
        return {"time": spool.array(), "time_kind": times.kind}

    def _labelled(self, table, columns, workspace):
        """Return (fields of labels and splits for `NodeTable`, counts of labelled nodes by class and split), read from the label `columns`
        of `table`.
        """
        source = self.source
        labels = read_labels(table, columns, workspace, source.task, source.classes, minus_one_missing=table is not self._table)
        fields = {"labels": labels.labels, "n_classes": int(labels.n_outputs), "task": source.task or "classify",
                 "class_names": labels.class_names}
        splits, split_from = self._splits(labels.labels, workspace, table.where)
        in_split = np.logical_or.reduce([*splits.values()]) & ~np.asarray(labelled(labels.labels, fields["task"]))
        if table is self._table and source.split and in_split.any():
            column, label, at = quote(source.split), quote(columns[0]), int(np.argmax(in_split))
            none = replacement(table, source.split, f"CASE WHEN {label} IS NOT NULL THEN {column} END", "leaves such nodes in no split")
            raise DataError(f"{cell(table, at, columns[0])}: no label, but column {source.split!r} has a split; {none}")
        entries = {"classes": labels.counts, "split_from": split_from,
                "labelled": int(np.count_nonzero(labelled(labels.labels, fields["task"]))),
                "split": {name: int(np.count_nonzero(mask)) for name, mask in splits.items()}}
        return fields | splits, entries

    def _labels(self):
        """Return (table that has the labels, list of its label columns); (None, ()) without labels."""
        if "labels" in self._rows:
            table = self._rows["labels"]
            columns = _named_columns(table.columns)
            if self.source.task in (None, "classify") and len(columns) > 1:
                raise DataError(f"{table.where}: labels: expected one label per node, found {len(columns)} columns"
                                + other_tasks(table, "node"))
            return table, columns
        return (self._table, self.source.labels) if self.source.labels else (None, ())

    def _feature_fields(self, workspace, training):
        """Return {field of `NodeTable`: value} of the features: their rows, column names and transforms. Transforms are fitted on the nodes
        in the mask `training` (None: all nodes).
        """
        table, source = self._rows.get("features", self._table), self.source
        if isinstance(table, FeatureRows):
            return {"features": workspace.array("features", map(self._finish, table.pieces))}
        columns = self._features if table is self._table else _named_columns(table.columns)
        if not columns:
            return {}
        wanted = self._features_wanted(columns)
        if wanted is None:
            rows, transforms = _matrices(table, numbers(table, columns)), None
            names = column_names(table, columns) if table is self._table else []
        else:
            features = make_features(table, wanted, training, source.transforms)
            self._transform_words, self.outside = features.fitted.descriptions(), features.outside
            rows, names = _matrices(features.table, [*features.expressions.values()]), features.fitted.names
            transforms = features.fitted.to_json()
        array = workspace.array("features", map(self._finish, rows))
        named = {"feature_names": names} if len(names) == array.shape[1] else {}
        return {"features": array, **named, "transforms": transforms}

    def _splits(self, labels, workspace, table_name):
        """Return ({split: mask}, text that tells where the splits come from). They are read from columns or files, or drawn at random among
        the nodes with `labels`; messages call the table of the labels `table_name`.
        """
        source, table = self.source, self._rows.get("split", self._table)
        n = len(labels)
        budget.check(4 * n, workspace.n_bytes, f"a split of {n:,} nodes")
        if "masks" in self._rows:
            return self._rows["masks"](n), "ids of nodes"
        if source.split or "split" in self._rows:
            column = source.split or table.columns[0]
            code, check = split_code(table, column)
            check_cells(table, [check])
            codes = np.concatenate([np.empty(0, np.int8), *(to_array(one) for (one,) in table.batches(code))])
            return {name: codes == at for at, name in enumerate(SPLITS, 1)}, f"column {column!r} of {table.where}"
        if source.masks:
            return self._masks(table), ", ".join(f"column {column!r}" for column in source.masks.values())
        needed = _DRAWN_BYTES * n
        if workspace.n_bytes is not None and needed > workspace.n_bytes:
            raise ConfigError(f"{table_name}: a split drawn of {n:,} nodes takes {needed:,} bytes of --memory, of which "
                              f"{workspace.n_bytes:,} are left: give more, or the split in a file")
        drawn = random_split(strata(copied(labels, 0, n), source.task), source.train, source.val, source.seed)
        return dict(zip(SPLITS, drawn)), f"drawn, seed {source.seed}"

    def _masks(self, table):
        """Return {split: mask} from the table's columns of true and false."""
        masks = {name: np.zeros(table.n_rows, bool) for name in SPLITS}
        for name, column in self.source.masks.items():
            value, check = truth(table, column)
            check_cells(table, [check])
            masks[name] = np.concatenate([np.empty(0, bool), *(to_array(one) for (one,) in table.batches(value))])
        return masks

    def _accounts(self):
        """Return a list with a dict for each table or file that has data of the nodes: "source" is its name, "rows" its number of rows, and
        "columns" the use of each column.
        """
        source, accounts_of_sources = self.source, []
        if self._table is not None:
            uses = [(self._id, "id"), (source.time, "time"), (source.split, "split"), *((name, "label") for name in source.labels),
                    *((name, f"feature ({self._transform_words.get(name, 'number')})") for name in self._features),
                    *((column, f"{name} mask") for name, column in source.masks.items())]
            accounts_of_sources.append(accounts.columns_used(self._table, [(name, use) for name, use in uses if name], self._left))
        for field, word in (("names", "id"), ("labels", "label"), ("split", "split")):
            if field in self._rows:
                table = self._rows[field]
                used = _named_columns(table.columns) if field == "labels" else table.columns[:1]
                accounts_of_sources.append(accounts.columns_used(table, [(name, word) for name in used]))
        if "features" in self._rows:
            rows = self._rows["features"]
            accounts_of_sources.append({"source": str(rows.where), "rows": rows.n_rows, "columns": {"all": "feature (number)"}})
        return accounts_of_sources


def unlabelled(n: int, workspace: Workspace) -> dict[str, object]:
    """Return {field: array} of the labels (-1) and empty splits of n nodes without labels."""
    steps = [min(workspace.at_once(), n - at) for at in range(0, n, workspace.at_once())] or [0]
    fill = {"labels": np.int64(-1), **dict.fromkeys(SPLITS, np.bool_(False))}
    return {"n_classes": 0, **{name: workspace.array(name, (np.full(rows, value) for rows in steps)) for name, value in fill.items()}}


def _named_columns(names):
    """Return the column names without the names that pandas gives to an index without a name."""
    return [name for name in names if not unnamed(name)]


def _ones(n, at_once):
    for at in range(0, max(n, 1), at_once):
        yield np.ones((min(at_once, n - at), 1), np.float32)


def _matrices(table: Table, expressions: list[str]) -> Iterator[Array]:
    """Yield the values of SQL expressions of numbers as (n, n_columns) float32 arrays, at least one."""
    n = 0
    for columns in table.batches(*expressions):
        n += len(columns[0])
        yield matrix(columns, np.float32)
    if not n:
        yield np.empty((0, len(expressions)), np.float32)


def _feature_rows(connection, source, reading_options):
    """Return the features in `source`, a file or an array with row i for node i: as `FeatureRows` for a .npy file, else as a `Table`."""
    if isinstance(source, str | Path) and Path(source).suffix == ".npy":
        array = npyfile.load(source, "features")
        if array.ndim not in (1, 2):
            raise DataError(f"{source}: features: expected one or two dimensions, found shape {array.shape}")
        width = 1 if array.ndim == 1 else array.shape[1]
        return FeatureRows(source, len(array), [piece.reshape(-1, width) for _, piece in mapped_pieces(array)]
                    if len(array) * width < 1 << 20 else _lazily(array, width))
    return sources.read(connection, source, reading_options, (), "features", _named_columns)


def _refuse_ids(table, field):
    """Raise a DataError if the first column of `table` looks like node ids, since row i is taken for node i and such ids would be ignored.
    The message calls the table `field`.
    """
    columns = _named_columns(table.columns) if isinstance(table, Table) else []
    if len(columns) < 2 or table.columns[0] == "0" or table.n_rows < 3 or table.types[columns[0]] not in ("whole", "word"):
        return
    number = node_number(table, columns[0])
    low, high, n = table.one(f"min({number})", f"max({number})", f"count({number})")
    if (low, high, n) != (0, table.n_rows - 1, table.n_rows) or table.one(f"count(DISTINCT {number})")[0] < n:
        return
    remedy = f"nodes={table.where},id={columns[0]} reads ids, and without the column the rows are read in their order"
    raise DataError(f"{table.where}: {field}: column {columns[0]!r} has each number from 0 to {high} once, so it may be the nodes' ids, "
                    f"but row i of this file is of node i: {remedy}")


def _lazily(array, width):
    yield from (piece.reshape(-1, width) for _, piece in mapped_pieces(array))


def _check_uses(source):
    """Raise a ConfigError if options in `source` exclude each other, such as a split column and masks."""
    masks = {name: column for name, column in source.masks.items() if column}
    has_labels = bool(source.labels) or "labels" in source.rows
    if source.split and masks:
        raise ConfigError(f"{source.where}: split and {next(iter(masks))}_mask exclude each other: pass one of the two")
    needs_labels = source.split or masks or source.task or "split" in source.rows
    if needs_labels and not has_labels:
        raise ConfigError(f"{source.where}: a split, masks and a task need labels=COLUMN")
    if (source.task or "classify") == "classify" and len(source.labels) > 1:
        raise ConfigError(f"{source.where}: labels: {', '.join(source.labels)}: several columns are read with "
                          "task=multilabel or task=regress")

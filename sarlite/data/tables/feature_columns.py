"""Feature columns that transforms compute from a table's columns."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from sarlite.data.tables.checks import CellCheck, check_cells, check_fill, is_missing, number, number_checks
from sarlite.data.tables.description import Transform
from sarlite.data.tables.remedies import vector_remedy
from sarlite.data.tables.sources import Table, new_name
from sarlite.data.tables.text_form import quote
from sarlite.data.tables.time_columns import date_check
from sarlite.data.tables.transform_kinds import as_double
from sarlite.data.tables.transforms import Feature, Fitted, fit
from sarlite.errors import ConfigError, SarliteError, collecting, raise_all
from sarlite.types import Array, JsonDict

VALUE = "sarlite "
"""Start of the names of a view's columns with other values of the rows."""


class FeatureColumns(NamedTuple):
    """Feature columns of a table: SQL expressions that compute them, the DuckDB view that the expressions read, and the fitted transforms.

    Attributes
    ----------
    table : Table
        View of the table in which columns of numbers are numbers; its `rowid` counts the table's rows.
    expressions : dict of str to str
        SQL expression of each feature column, FLOAT and never null, by name.
    fitted : Fitted
        The transforms with their statistics.
    outside : list of str
        Lines about columns with values outside the range of the table that a model was trained on.
    """

    table: Table
    expressions: dict[str, str]
    fitted: Fitted
    outside: list[str]


def features_wanted(columns: Mapping[str, Transform] | None, fill: object, where: str) -> dict[str, Feature] | None:
    """Return {column: Feature}, the transform of each column, parsed from `columns`, {column: transform as text or dict}; None if all
    columns are plain numbers without `fill`. `fill` replaces missing values where a transform has no option for them (None: they are
    refused); messages begin with `where`.

    Parameters
    ----------
    columns : dict of str to (str or dict), optional
        Transform of each column, as in a description.
    fill : {None, "0", "mean"}
        Replacement of missing numbers for transforms that do not state one.
    where : str
        Name of the columns in messages.
    """
    if check_fill(fill, where) is None and all(transform == "number" for transform in (columns or {}).values()):
        return None
    wanted = {name: Feature.parse(transform, f"{where}: {name}") for name, transform in (columns or {}).items()}
    missing = () if fill is None else (str(fill),)
    return {name: feature if feature.missing or feature.transform in ("vector", "onehot", "hash", "date", "text")
            else dataclasses.replace(feature, missing=missing) for name, feature in wanted.items()}


def make_features(table: Table, wanted: Mapping[str, Feature], training: Array | None,
                  stored: JsonDict | None = None, values: Mapping[str, str] = MappingProxyType({})) -> FeatureColumns:
    """Transform columns of `table` into features, and return them as `FeatureColumns`. `wanted`, {column: Feature}, has the transforms.
    Statistics such as means are fitted on the rows in the mask `training` (None: all rows), or taken from `stored`, the result of an
    earlier fit. `values`, {name: SQL expression}, become further columns of the DuckDB view that holds the columns read.

    Parameters
    ----------
    table : Table
    wanted : dict of str to Feature
        Transform of each column.
    training : (n_rows,) bool array, or None
        True for training rows, from which the statistics are computed; None for all rows.
    stored : dict, optional
        Transforms with statistics, as `Fitted.to_json` returns them, to be applied instead of fitting.
    values : dict of str to str
        SQL expressions over the table that the view of the result has as columns; their names begin with `VALUE`.

    Raises
    ------
    ConfigError, DataError
        As `transforms.fit`; also if `stored` has other columns or transforms than `wanted`.
    """
    wanted = {name: Feature("vector") if table.types[name] == "vector" and feature.transform == "number" else feature
              for name, feature in wanted.items()}
    numeric = [name for name, feature in wanted.items() if feature.transform in ("number", "standard", "minmax", "log", "quantile")]
    view, notation = _typed_view(table, wanted, numeric, values), table.reading.notation
    if stored is not None:
        fitted = Fitted.from_json(stored, table.where)
        odd = [name for name, feature in wanted.items() if fitted.features.get(name) != feature]
        if odd:
            asked, model = ({name: str(feature) for name, feature in features.items()} for features in (wanted, fitted.features))
            raise ConfigError(f"{table.where}: column {odd[0]!r}: the transform is {asked[odd[0]]}, but the model's features are "
                              + ", ".join(f"{name}:{text}" for name, text in model.items()))
        notation = notation._replace(options=frozenset(), missing="")  # the model decides what becomes of a missing value
    else:
        fitted = fit(table.connection, view.name, wanted, _condition(table, training), table.where, numeric, notation)
    expressions = fitted.expressions(table.connection, view.name, table.where, numeric, notation)
    outside = [] if stored is None else fitted.outside(table.connection, view.name, table.where)
    return FeatureColumns(view, expressions, fitted, outside)


def check_features(table: Table, wanted: Mapping[str, Feature], stored: JsonDict | None) -> None:
    """Raise one error about all columns of `table` with cells that cannot be transformed: by the transforms `wanted` or, if `stored` is not
    None, by these stored transforms of a model.
    """
    errors: list[SarliteError] = []
    for features in [{name: feature} for name, feature in wanted.items()] if stored is None else [wanted]:
        with collecting(errors):
            make_features(table, features, None, stored)
    raise_all(errors)


def filled_number(table: Table, column: str, fill: str | None) -> str:
    """Return the SQL expression of a column of numbers with missing values replaced by `fill`: "0", "mean" or None (kept).

    With `fill` the cells are checked. Without it the caller must check them.
    """
    value = number(table, column)
    if fill is None:
        return value
    check_cells(table, number_checks(table, [column], missing=True, use="weight"))
    if fill == "0":
        return f"coalesce({value}, 0)"
    rows = f"(SELECT {value} AS {quote(column)} FROM {table.name})"
    fitted = fit(table.connection, rows, {column: Feature(missing=(fill,))}, None, table.where, [column])
    return f"coalesce({value}, {as_double(fitted.statistics[column]['fill'])})"


def _typed_view(table: Table, wanted: Mapping[str, Feature], numeric: Sequence[str], values: Mapping[str, str]) -> Table:
    """Create a view of `table` in DuckDB, and return it as a Table. Columns in `numeric` are numbers; in the columns of the transforms
    `wanted`, words that mean a missing value are NULL. `values`, {name: SQL expression}, become further columns.
    """
    dates = [name for name, feature in wanted.items() if feature.transform == "date" and table.types[name] == "word"]
    lists = [name for name, feature in wanted.items() if feature.transform == "vector" and table.types[name] == "word"]
    check_cells(table, [*number_checks(table, numeric, missing=True), *(date_check(table, name) for name in dates), *(
        CellCheck(name, f"NOT {is_missing(table, name)} AND TRY_CAST({quote(name)} AS DOUBLE[]) IS NULL", "VALUE is not a list of numbers",
                  partial(vector_remedy, table, name)) for name in lists)])
    columns = [f"{expression} AS {quote(f'{VALUE}{name}')}" for name, expression in values.items()]
    for name in table.types:
        expression = quote(name)
        if name in numeric:
            expression = number(table, name)
        elif name in wanted and table.types[name] == "word":
            expression = f"CASE WHEN {is_missing(table, name)} THEN NULL ELSE {expression} END"
        columns.append(f"{expression} AS {quote(name)}")
    view = new_name("features")
    table.connection.execute(f"CREATE TEMP VIEW {view.rpartition('.')[2]} AS SELECT rowid, {', '.join(columns)} FROM {table.name}")
    return dataclasses.replace(table, name=view, types={**table.types, **dict.fromkeys(numeric, "float")})


def _condition(table: Table, training: Array | None) -> str | None:
    """Return an SQL condition that is true for the rows in the mask `training`, (n_rows,) bool; None if `training` is None. The numbers of
    the training rows are stored in a temporary table.
    """
    if training is None:
        return None
    import pyarrow

    name = new_name("training").rpartition(".")[2]
    rows = pyarrow.table({"row": np.flatnonzero(training)})
    table.connection.register(f"{name}_rows", rows)
    table.connection.execute(f"CREATE TEMP TABLE {name} AS SELECT row FROM {name}_rows")
    table.connection.unregister(f"{name}_rows")
    return f"rowid IN (SELECT row FROM temp.main.{name})"

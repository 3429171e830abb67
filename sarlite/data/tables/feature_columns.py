"""Columns of features that transforms make of a table's columns."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sarlite.data.tables.checks import is_missing, number, number_doubts, refuse
from sarlite.data.tables.sources import Table
from sarlite.data.tables.text_form import quote
from sarlite.data.tables.transforms import Feature, Fitted, fit
from sarlite.errors import ConfigError
from sarlite.types import Array

_VIEWS = itertools.count()


class MadeFeatures(NamedTuple):
    """Columns of features of a table.

    Attributes
    ----------
    table : Table
        View of the table whose columns of features have their kinds; its `rowid` counts the table's rows.
    expressions : dict of str to str
        SQL expression of each column of features, FLOAT and never null, by name.
    fitted : Fitted
    """

    table: Table
    expressions: dict[str, str]
    fitted: Fitted


def features_wanted(columns: Mapping[str, Any] | None, fill: Any, where: str) -> dict[str, Feature] | None:
    """Return the transform of each column; None if all columns are numbers that stay as they are.

    `fill`, "0" or "mean", is what a missing number becomes where the transform itself does not say.
    """
    if not columns or all(transform == "number" for transform in columns.values()):
        return None
    wanted = {name: Feature.parse(transform, f"{where}: {name}") for name, transform in columns.items()}
    missing = () if fill is None else (str(fill),)
    return {name: feature if feature.missing or feature.transform in ("vector", "onehot", "hash", "date", "text")
            else dataclasses.replace(feature, missing=missing) for name, feature in wanted.items()}


def make_features(table: Table, wanted: Mapping[str, Feature], training: Array | None,
                  kept: Mapping[str, Any] | None = None) -> MadeFeatures:
    """Return the columns of features of a table.

    Parameters
    ----------
    table : Table
    wanted : dict of str to Feature
        Transform of each column.
    training : (n_rows,) bool array, or None
        True for the training rows, of which the statistics are; None for all rows.
    kept : dict, optional
        Transforms with their statistics, as `Fitted.to_json` gives them, that are applied in place of fitting.

    Raises
    ------
    ConfigError, DataError
        As `transforms.fit`; `kept` has other columns or transforms than `wanted`.
    """
    view = _typed_view(table, wanted)
    if kept is not None:
        fitted = Fitted.from_json(kept, table.where)
        for name, feature in wanted.items():
            if fitted.features.get(name) != feature:
                raise ConfigError(f"{table.where}: column {name!r}: {feature} is asked for, but the model's is "
                                  f"{fitted.features.get(name, 'none')}")
    else:
        fitted = fit(table.connection, view.name, wanted, _condition(table, training), table.where)
    return MadeFeatures(view, fitted.expressions(table.connection, view.name, table.where), fitted)


def _typed_view(table: Table, wanted: Mapping[str, Feature]) -> Table:
    """Return a view of a table whose columns of numbers are numbers and whose missing words are null."""
    numeric = [name for name, feature in wanted.items()
               if feature.transform in ("number", "standard", "minmax", "log", "quantile") and table.types[name] != "list"]
    refuse(table, number_doubts(table, numeric, missing=True))
    columns = []
    for name in table.types:
        own = quote(name)
        if name in numeric:
            own = number(table, name)
        elif name in wanted and table.types[name] == "word":
            own = f"CASE WHEN {is_missing(table, name)} THEN NULL ELSE {own} END"
        columns.append(f"{own} AS {quote(name)}")
    view = f"temp.main.features_{next(_VIEWS)}"
    table.connection.execute(f"CREATE TEMP VIEW {view.rpartition('.')[2]} AS SELECT rowid, {', '.join(columns)} "
                             f"FROM {table.name}")
    return dataclasses.replace(table, name=view)


def _condition(table: Table, training: Array | None) -> str | None:
    """Return the SQL condition of training rows, held in a table of their numbers."""
    if training is None:
        return None
    import pyarrow

    name = f"training_{next(_VIEWS)}"
    rows = pyarrow.table({"row": np.flatnonzero(training)})
    table.connection.register(f"{name}_rows", rows)
    table.connection.execute(f"CREATE TEMP TABLE {name} AS SELECT row FROM {name}_rows")
    table.connection.unregister(f"{name}_rows")
    return f"rowid IN (SELECT row FROM temp.main.{name})"

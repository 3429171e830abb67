"""Transforms of table columns into feature columns, written in SQL, fitted once and stored with the data.

`fit` computes statistics from the training rows of a relation of DuckDB. The `Fitted` transforms then compute the same
features for any relation that has the columns: for the training data and for the data of a prediction. `KINDS` lists
the transforms, each a `Kind` of `transform_kinds`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sarlite.command import suggestion
from sarlite.data.tables.notations import MAPPING, OptionNotation
from sarlite.data.tables.sql_connection import Connection
from sarlite.data.tables.text_form import literal, quote
from sarlite.data.tables.transform_kinds import KINDS, Column, Kind, Statistics, as_double
from sarlite.errors import ConfigError, DataError
from sarlite.types import JsonDict

_FILLS = ("0", "mean", "median", "indicator")
_ARGUMENTS = {"onehot": "at_least", "hash": "n", "text": "n"}
"""The argument of each transform that takes one."""
_NEEDED = ("hash",)
_MOST = 1 << 16


@dataclass(frozen=True)
class Feature:
    """Transform of one table column into feature columns, and its treatment of missing values.

    Attributes
    ----------
    transform : str
        A name in `KINDS`.
    missing : tuple of str
        Treatment of missing values. "0", "mean" or "median" (at most one) replaces the value before the transform.
        "indicator" adds a column that is 1 where the value is missing; without a replacement the other columns are 0
        there. If the tuple is empty, a missing value is refused.
    argument : int, optional
        For "onehot" the least number of training rows of a value with its own column; for "hash" and "text" the number of
        columns.
    """

    transform: str = "number"
    missing: tuple[str, ...] = ()
    argument: int | None = None

    def __str__(self) -> str:
        argument = "" if self.argument is None else f" {_ARGUMENTS[self.transform]}={self.argument}"
        return f"{self.transform}{argument}{f'; missing: {chr(43).join(self.missing)}' if self.missing else ''}"

    @classmethod
    def parse(cls, value: object, where: str) -> "Feature":
        """Return the Feature that `value` from a description states: a name such as "standard" or "hash:32", or a dict such as
        {"transform": "hash", "n": 32}. Messages begin with `where`.

        Parameters
        ----------
        value : str or dict
            For example "standard", "hash:32", or {"transform": "onehot", "at_least": 20, "missing": "indicator"}.
        where : str
            File or option, and column, for messages.

        Raises
        ------
        ConfigError
            If the transform or a key is unknown, or a value is impossible.

        Examples
        --------
        >>> Feature.parse({"transform": "quantile", "missing": "median+indicator"}, "graph.toml: income")
        Feature(transform='quantile', missing=('median', 'indicator'), argument=None)
        >>> Feature.parse("hash:32", "graph.toml: city").argument
        32
        """
        options = {"transform": value} if isinstance(value, str) else value
        if not isinstance(options, dict):
            raise ConfigError(f"{where}: transform {value!r} is neither a name nor a table such as "
                              '{ transform = "standard", missing = "mean" }')
        name, _, number = str(options.get("transform", "number")).partition(":")
        if name not in KINDS:
            raise ConfigError(f"{where}: transform {name!r} is not one of {', '.join(KINDS)}{suggestion(name, KINDS)}; a TOML file takes "
                              "columns with a colon in their names")
        keys = ["transform", "missing", *([_ARGUMENTS[name]] if name in _ARGUMENTS else [])]
        odd = next((key for key in options if key not in keys), None)
        if odd is not None:
            raise ConfigError(f"{where}: {odd!r}: unknown for {name}; known are {', '.join(keys)}{suggestion(odd, keys)}")
        argument = options.get(_ARGUMENTS.get(name, ""), number or None)
        return cls(name, _fills(options.get("missing"), KINDS[name], name, where), _argument(name, argument, where))


def _fills(value: object, kind: Kind, transform: str, name_in_errors: str) -> tuple[str, ...]:
    """Return the words in `value`, the option `missing`: "mean+indicator" replaces missing values by the mean, and adds a column that marks
    them. Raise an error if the transform, of class `kind`, does not allow a word.
    """
    words = () if value is None else tuple(str(value).split("+"))
    values = [word for word in words if word != "indicator"]
    for word in words:
        if word not in _FILLS or len(values) > 1 or len({*words}) < len(words):
            raise ConfigError(f"{name_in_errors}: missing = {value!r} is not one of {', '.join(_FILLS)}; indicator may stand "
                              "beside one of the others, as in mean+indicator")
        if word in ("mean", "median") and not kind.numeric:
            raise ConfigError(f"{name_in_errors}: missing = {value!r}: {transform} reads no numbers, so only 0 and indicator are possible")
    return words


def _argument(transform: str, value: Any, name_in_errors: str) -> int | None:
    """Return `value`, the number that `transform` takes, such as 32 in "hash:32", after a check; None if it takes none."""
    if value is None and transform not in _NEEDED:
        return None
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if transform not in _ARGUMENTS or type(number) is not int or not 1 <= number <= _MOST:
        example = f", as in {transform}:32" if transform in ("hash", "text") else ""
        raise ConfigError(f"{name_in_errors}: transform {transform}: {value!r} is not a number from 1 to {_MOST}{example}"
                          if transform in _ARGUMENTS else
                          f"{name_in_errors}: transform {transform} takes no number, but {value!r} is given")
    return number


class Fitted:
    """Transforms of a table's columns with the statistics, such as means, that they were fitted with. Immutable.

    Attributes
    ----------
    features : dict of str to Feature
        The transform of each column, in the order of the features.
    statistics : dict of str to dict
        The statistics of each column, as its `Kind` fits them.
    on_training_rows : bool
        False if the statistics were computed from all rows.

    Notes
    -----
    Memory: a few numbers per column; for "onehot" its values, for "quantile" 101 numbers.
    """

    def __init__(self, features: Mapping[str, Feature], statistics: Mapping[str, Statistics], on_training_rows: bool) -> None:
        self.features, self.statistics = dict(features), {name: dict(values) for name, values in statistics.items()}
        self.on_training_rows = on_training_rows

    @property
    def names(self) -> list[str]:
        """Names of the feature columns in their order, such as "age", "country=FR", "signup.month_sin"."""
        return list(self._expressions({}))

    @property
    def origins(self) -> dict[str, str]:
        """Table column that each feature column comes from, {feature name: column}, such as "country" for "country=FR"."""
        return {output: name for name, feature in self.features.items()
                for output in _outputs(name, feature, self.statistics[name], "NULL")}

    def expressions(self, connection: Connection, relation: str, name_in_errors: str | None = None, numeric: Collection[str] = (),
                    option_notation: OptionNotation = MAPPING) -> dict[str, str]:
        """Return {feature name: SQL expression} of the transforms over `relation`, an SQL table or view. Cells are checked, except in the
        columns `numeric`, which hold only finite numbers or null. Messages call the table `name_in_errors`, and show options in
        `option_notation`, as the user writes them.

        The expressions are FLOAT and never null.

        Parameters
        ----------
        connection : Connection
        relation : str
            SQL name of a table or view that has the columns; other columns are ignored.
        name_in_errors : str, optional
            Name of the relation in messages; by default `relation`.
        numeric : collection of str
            Columns that are known to hold finite numbers or null, so that only missing values are looked for.
        option_notation : OptionNotation
            How the user states the transforms, for messages.

        Raises
        ------
        DataError
            If a column is missing, a value is infinite or of another kind, or a value is missing and `missing` is empty. The
            message names the column, the row from 0 on, and the value.

        Notes
        -----
        Time: one pass over each column. Memory: DuckDB's.
        """
        columns = _columns(connection, relation, self.features, name_in_errors or relation, option_notation=option_notation)
        for name, column in columns.items():
            feature = self.features[name]
            column.check(KINDS[feature.transform], feature.missing, name in numeric)
            KINDS[feature.transform].check(column, self.statistics[name])
        return self._expressions(columns)

    def outside(self, connection: Connection, relation: str, name_in_errors: str) -> list[str]:
        """Return a line for each column of numbers or dates with values outside the range of the table that the transforms were fitted on.

        A column of categories gets a line if it has values that no training row had. Statistics that earlier versions stored have
        no range, and give no line.
        """
        lines = []
        for name, column in _columns(connection, relation, self.features, name_in_errors).items():
            statistics = self.statistics[name]
            if "range" in statistics:
                (low, high), value = statistics["range"], column.orderable
                odd = f"{value} < {as_double(low)} OR {value} > {as_double(high)}"
                why = f"lie outside {column.shown(low)} to {column.shown(high)}, the range of the table that the model was trained on"
            elif "values" in statistics:
                value, odd = column.value, f"{column.value} NOT IN ({', '.join(map(literal, ['', *statistics['values']]))})"
                why = "are no categories of its training rows"
            else:
                continue
            shown, n, total = connection.execute(f"SELECT min({value}) FILTER (WHERE {odd}), count(*) FILTER (WHERE {odd}), count({value}) "
                                                 f"FROM {relation}").fetchone()
            if n:
                example = f", such as {shown[:80]!r}," if "values" in statistics else ""
                lines.append(f"{name_in_errors}: column {name!r}: {n:,} of {total:,} values{example} {why}")
        return lines

    def select(self, connection: Connection, relation: str, name_in_errors: str | None = None) -> str:
        """Return the feature columns of `relation`, an SQL table or view, as the text of an SQL select list."""
        expressions = self.expressions(connection, relation, name_in_errors)
        return ", ".join(f"{expression} AS {quote(name)}" for name, expression in expressions.items())

    def _expressions(self, columns: Mapping[str, Column]) -> dict[str, str]:
        expressions: dict[str, str] = {}
        for name, feature in self.features.items():
            value = columns[name].value if name in columns else "NULL"
            for output, expression in _outputs(name, feature, self.statistics[name], value).items():
                if output in expressions:
                    raise DataError(f"features: two columns are named {output!r}: rename one of the table")
                expressions[output] = f"CAST({expression} AS FLOAT)"
        return expressions

    def descriptions(self) -> dict[str, str]:
        """Return {column: text} that describes each column's transform, statistics and treatment of missing values."""
        rows = "training rows" if self.on_training_rows else "all rows, as no training rows are known"
        return {name: _description(feature, self.statistics[name], rows) for name, feature in self.features.items()}

    def to_json(self) -> JsonDict:
        """Return the transforms as a dict that JSON can hold, for `from_json`."""
        columns = {name: {"transform": feature.transform, "missing": list(feature.missing), "argument": feature.argument,
                          "statistics": self.statistics[name]} for name, feature in self.features.items()}
        return {"columns": columns, "on_training_rows": self.on_training_rows}

    @classmethod
    def from_json(cls, content: Any, where: str = "transforms") -> "Fitted":
        """Return the transforms that `to_json` stored; raise a DataError that names `where` for any other content."""
        try:
            features, statistics = {}, {}
            for name, entry in content["columns"].items():
                kind = KINDS[entry["transform"]]
                missing = _fills("+".join(entry["missing"]) or None, kind, entry["transform"], where)
                features[name] = Feature(entry["transform"], missing, _argument(entry["transform"], entry["argument"], where))
                statistics[name] = entry["statistics"]
                _check_statistics(kind, features[name], statistics[name])
            if not isinstance(content["on_training_rows"], bool):
                raise ValueError("on_training_rows is not true or false")
            return cls(features, statistics, content["on_training_rows"])
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise DataError(f"{where}: no transforms of columns: {type(error).__name__}: {error}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fitted) and self.to_json() == other.to_json() and [*self.features] == [*other.features]

    __hash__ = None  # type: ignore[assignment]


def fit(connection: Connection, relation: str, columns: Mapping[str, Feature], training: str | None, name_in_errors: str | None = None,
        numeric: Collection[str] = (), option_notation: OptionNotation = MAPPING) -> Fitted:
    """Return the transforms `columns`, {column: Feature}, fitted on `relation`, an SQL table or view. Statistics are computed on the rows
    that meet the SQL condition `training` (None: all rows). The columns `numeric` hold finite numbers or null, so they are not checked.
    Messages call the table `name_in_errors`, and show options in `option_notation`.

    Parameters
    ----------
    connection : Connection
        A connection to DuckDB.
    relation : str
        SQL name of a table or view with the columns as they were read. Columns of words may hold numbers, dates and lists.
        The empty word and NaN are missing values.
    columns : dict of str to Feature
        The transform of each column, in the order of the features.
    training : str or None
        SQL condition of training rows; None takes all rows.
    name_in_errors : str, optional
        Name of the relation in messages; by default `relation`.
    numeric, option_notation
        As for `Fitted.expressions`.

    Returns
    -------
    Fitted

    Raises
    ------
    DataError
        As `Fitted.expressions`; also if no training row has a value for a statistic, a column has too many values for
        "onehot", or two feature columns have one name.

    Notes
    -----
    Statistics are summed by one thread in the order of the rows, so equal rows give equal bits.

    Examples
    --------
    >>> import duckdb
    >>> connection = duckdb.connect()
    >>> _ = connection.execute("CREATE TABLE users AS SELECT * FROM (VALUES (30, 'FR'), (50, 'DE'), (90, 'IT')) t(age, country)")
    >>> fitted = fit(connection, "users", {"age": Feature("standard"), "country": Feature("onehot")}, "age < 80")
    >>> fitted.names
    ['age', 'country=DE', 'country=FR']
    >>> connection.execute(f"SELECT {fitted.select(connection, 'users')} FROM users").fetchall()
    [(-1.0, 0.0, 1.0), (1.0, 1.0, 0.0), (5.0, 0.0, 0.0)]
    """
    threads = connection.execute("SELECT current_setting('threads')").fetchone()[0]
    connection.execute("SET threads = 1")
    try:
        statistics = {}
        for name, column in _columns(connection, relation, columns, name_in_errors or relation, training, option_notation).items():
            feature = columns[name]
            kind = KINDS[feature.transform]
            column.check(kind, feature.missing, name in numeric)
            fitted_values = kind.fit(column, feature.argument)
            fill = next((word for word in feature.missing if word in ("mean", "median")), None)
            sql = f"SELECT min({column.orderable}), max({column.orderable}) FROM {relation}" if column.orderable else "SELECT NULL, NULL"
            low, high = connection.execute(sql).fetchone()  # of all rows, as the range only serves warnings
            fitted_values = fitted_values if low is None else {**fitted_values, "range": [float(low), float(high)]}
            statistics[name] = {**fitted_values, **({"fill": column.statistic(fill)} if fill else {})}
    finally:
        connection.execute(f"SET threads = {threads}")
    fitted = Fitted(columns, statistics, training is not None)
    fitted._expressions({})  # raises for two feature columns of one name
    return fitted


def _columns(connection: Connection, relation: str, wanted: Mapping[str, Feature], name_in_errors: str, training: str | None = None,
             option_notation: OptionNotation = MAPPING) -> dict[str, Column]:
    """Return {name: Column} of the columns of `relation`, an SQL table or view, that the transforms `wanted`, {name: Feature}, read.
    `training` is the SQL condition of the rows for statistics; None takes all rows. Messages call the table `name_in_errors`, and show
    options in `option_notation`.
    """
    types = {row[0]: row[1] for row in connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()}
    for name in wanted:
        if name not in types:
            names = [other for other in types if other != "rowid"]  # a column of DuckDB's own
            raise DataError(f"{name_in_errors}: no column {name!r}, of which features are made; there are "
                            f"{', '.join(map(repr, names))}{suggestion(name, names)}")
    return {name: Column(connection, relation, name, types[name], KINDS[feature.transform].reads, training, name_in_errors, option_notation)
            for name, feature in wanted.items()}


def _outputs(name: str, feature: Feature, statistics: Statistics, value: str) -> dict[str, str]:
    """Return {name of a feature column: SQL expression, never NULL} of the transform `feature` of the table column `name`. `statistics` are
    the fitted ones, and `value` is the SQL expression of the column's value.
    """
    kind = KINDS[feature.transform]
    fill = statistics.get("fill", 0.0 if "0" in feature.missing else None)
    filled = f"coalesce({value}, {as_double(fill)})" if kind.numeric and fill is not None else value
    outputs = kind.outputs(name, filled, statistics)
    if filled is value:
        outputs = {output: f"coalesce({expression}, 0)" for output, expression in outputs.items()}
    if "indicator" in feature.missing:
        outputs[f"{name}.missing"] = f"({value}) IS NULL"
    return outputs


def _description(feature: Feature, statistics: Statistics, rows: str) -> str:
    shown = KINDS[feature.transform].description(statistics)
    transform, semicolon, missing = str(feature).partition(";")
    return f"{transform}{f' of {rows}: {shown}' if shown else ''}{semicolon}{missing}"


def _check_statistics(kind: Kind, feature: Feature, statistics: Any) -> None:
    """Raise an exception unless `statistics`, read from JSON, can be statistics of `feature`, a transform of class `kind`."""
    for name in ("n", "width"):
        if name in statistics and not (type(statistics[name]) is int and 0 <= statistics[name] <= _MOST):
            raise ValueError(f"{name} is {statistics[name]!r}")
    low, high = statistics.get("range", (0, 0))
    as_double(low), as_double(high)
    _outputs("x", feature, statistics, "NULL")
    kind.description(statistics)


__all__: Sequence[str] = ["Feature", "Fitted", "fit"]

"""Transforms of columns of tables into columns of features, written in SQL: fitted once, and kept with the data.

`fit` takes statistics from the training rows of a relation of DuckDB. The `Fitted` transforms then make the same
features of any relation that has the columns, in any order: of the data themselves, and of the data of a prediction.
`KINDS` lists the transforms; each is a `Kind` of `transform_kinds`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sarlite.command import suggestion
from sarlite.data.tables.text_form import quote
from sarlite.data.tables.transform_kinds import KINDS, Column, Kind, as_double
from sarlite.errors import ConfigError, DataError

_FILLS = ("0", "mean", "median", "indicator")
_ARGUMENTS = {"onehot": "at_least", "hash": "n", "text": "n"}
"""The argument of each transform that takes one."""
_NEEDED = ("hash",)
_MOST = 1 << 16


@dataclass(frozen=True)
class Feature:
    """How a column becomes columns of features.

    Attributes
    ----------
    transform : str
        A name in `KINDS`.
    missing : tuple of str
        What a missing value becomes: at most one of "0", "mean" and "median", which replace the value before the
        transform; "indicator" adds a column that is 1 where the value is missing, and alone makes the other columns 0
        there. Without any, a missing value is refused.
    argument : int, optional
        For "onehot" the fewest training rows of a value that gets a column; for "hash" and "text" the number of
        columns.
    """

    transform: str = "number"
    missing: tuple[str, ...] = ()
    argument: int | None = None

    @classmethod
    def parse(cls, value: Any, where: str) -> "Feature":
        """Return the feature that a value in a TOML file, or the word after a colon in `features=`, describes.

        Parameters
        ----------
        value : str or dict
            Such as "standard", "hash:32", or {"transform": "onehot", "at_least": 20, "missing": "indicator"}.
        where : str
            Name in messages: the file or option, and the column.

        Raises
        ------
        ConfigError
            The transform or a key is unknown, or a value cannot be.

        Examples
        --------
        >>> Feature.parse({"transform": "quantile", "missing": "median+indicator"}, "graph.toml: income")
        Feature(transform='quantile', missing=('median', 'indicator'), argument=None)
        >>> Feature.parse("hash:32", "graph.toml: city").argument
        32
        """
        given = {"transform": value} if isinstance(value, str) else value
        if not isinstance(given, dict):
            raise ConfigError(f"{where}: transform {value!r} is no name and no table such as "
                              '{ transform = "standard", missing = "mean" }')
        name, _, number = str(given.get("transform", "number")).partition(":")
        if name not in KINDS:
            raise ConfigError(f"{where}: transform {name!r} is none of {', '.join(KINDS)}{suggestion(name, KINDS)}")
        known = ["transform", "missing", *([_ARGUMENTS[name]] if name in _ARGUMENTS else [])]
        odd = next((key for key in given if key not in known), None)
        if odd is not None:
            raise ConfigError(f"{where}: {odd!r}: unknown for {name}; known are {', '.join(known)}"
                              f"{suggestion(odd, known)}")
        argument = given.get(_ARGUMENTS.get(name, ""), number or None)
        return cls(name, _fills(given.get("missing"), KINDS[name], name, where), _argument(name, argument, where))


def _fills(given: Any, kind: Kind, name: str, where: str) -> tuple[str, ...]:
    words = () if given is None else tuple(str(given).split("+"))
    values = [word for word in words if word != "indicator"]
    for word in words:
        if word not in _FILLS or len(values) > 1 or len({*words}) < len(words):
            raise ConfigError(f"{where}: missing = {given!r} is none of {', '.join(_FILLS)}; indicator may stand "
                              "beside one of the others, as in mean+indicator")
        if word in ("mean", "median") and not kind.numeric:
            raise ConfigError(f"{where}: missing = {given!r}: {name} is of no numbers, so only 0 and indicator can be")
    return words


def _argument(name: str, given: Any, where: str) -> int | None:
    if given is None and name not in _NEEDED:
        return None
    number = int(given) if isinstance(given, str) and given.isdecimal() else given
    if name not in _ARGUMENTS or type(number) is not int or not 1 <= number <= _MOST:
        example = f", as in {name}:32" if name in ("hash", "text") else ""
        raise ConfigError(f"{where}: transform {name}: {given!r} is no number from 1 to {_MOST}{example}"
                          if name in _ARGUMENTS else f"{where}: transform {name} takes no number, but {given!r} is given")
    return number


class Fitted:
    """Transforms of the columns of a relation with their statistics. Immutable.

    Attributes
    ----------
    features : dict of str to Feature
        By column, in the order of the features.
    statistics : dict of str to dict
        By column; what each `Kind` keeps.
    on_training_rows : bool
        False if the statistics are of all rows.

    Notes
    -----
    Memory: a few numbers a column; for "onehot" its values, for "quantile" 101 numbers.
    """

    def __init__(self, features: Mapping[str, Feature], statistics: Mapping[str, Mapping[str, Any]],
                 on_training_rows: bool) -> None:
        self.features, self.statistics = dict(features), {name: dict(own) for name, own in statistics.items()}
        self.on_training_rows = on_training_rows

    @property
    def names(self) -> list[str]:
        """Names of the columns of features, in their order, such as "age", "country=FR", "signup.month_sin"."""
        return list(self._expressions({}))

    @property
    def origins(self) -> dict[str, str]:
        """Column of the table that each column of features is made of, by name, such as "country" of "country=FR"."""
        return {output: name for name, feature in self.features.items()
                for output in _outputs(name, feature, self.statistics[name], "NULL")}

    def expressions(self, connection: Any, relation: str, where: str | None = None) -> dict[str, str]:
        """Return the SQL expression of each column of features, FLOAT and never null, by name in their order.

        Parameters
        ----------
        connection : duckdb.DuckDBPyConnection
        relation : str
            A table or view, as SQL writes its name, that has the columns; other columns do not matter.
        where : str, optional
            Name of the relation in messages; by default `relation`.

        Raises
        ------
        DataError
            A column is missing, a value is of another kind or infinite, or a value is missing without `missing`,
            naming the column, the row from 0 on, and the value.

        Notes
        -----
        Time: one pass over each column. Memory: as DuckDB's.
        """
        columns = _columns(connection, relation, self.features, where or relation)
        for name, column in columns.items():
            feature = self.features[name]
            column.check(KINDS[feature.transform], feature.missing)
            KINDS[feature.transform].check(column, self.statistics[name])
        return self._expressions(columns)

    def select(self, connection: Any, relation: str, where: str | None = None) -> str:
        """Return the SQL select list of `expressions`, each with its name."""
        found = self.expressions(connection, relation, where)
        return ", ".join(f"{expression} AS {quote(name)}" for name, expression in found.items())

    def _expressions(self, columns: Mapping[str, Column]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, feature in self.features.items():
            value = columns[name].value if name in columns else "NULL"
            for output, expression in _outputs(name, feature, self.statistics[name], value).items():
                if output in found:
                    raise DataError(f"features: two columns are named {output!r}: rename one of the table")
                found[output] = f"CAST({expression} AS FLOAT)"
        return found

    def told(self) -> dict[str, str]:
        """Return words for people on each column: the transform, its statistics, and what missing values become."""
        rows = "training rows" if self.on_training_rows else "all rows, as no training rows are known"
        return {name: _told(feature, self.statistics[name], rows) for name, feature in self.features.items()}

    def to_json(self) -> dict[str, Any]:
        """Return what JSON can hold, from which `from_json` makes equal transforms."""
        columns = {name: {"transform": own.transform, "missing": list(own.missing), "argument": own.argument,
                          "statistics": self.statistics[name]} for name, own in self.features.items()}
        return {"columns": columns, "on_training_rows": self.on_training_rows}

    @classmethod
    def from_json(cls, found: Any, where: str = "transforms") -> "Fitted":
        """Return the transforms that `to_json` gave; raise a DataError for anything else, naming `where`."""
        try:
            features, statistics = {}, {}
            for name, own in found["columns"].items():
                kind = KINDS[own["transform"]]
                missing = _fills("+".join(own["missing"]) or None, kind, own["transform"], where)
                features[name] = Feature(own["transform"], missing, _argument(own["transform"], own["argument"], where))
                statistics[name] = own["statistics"]
                _check_statistics(kind, features[name], statistics[name])
            if not isinstance(found["on_training_rows"], bool):
                raise ValueError("on_training_rows is not true or false")
            return cls(features, statistics, found["on_training_rows"])
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise DataError(f"{where}: no transforms of columns: {type(error).__name__}: {error}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fitted) and self.to_json() == other.to_json() and [*self.features] == [*other.features]

    __hash__ = None  # type: ignore[assignment]


def fit(connection: Any, relation: str, columns: Mapping[str, Feature], training: str | None,
        where: str | None = None) -> Fitted:
    """Fit the transforms of columns on the training rows of a relation.

    Parameters
    ----------
    connection : duckdb.DuckDBPyConnection
    relation : str
        A table or view with the columns as they were read, as SQL writes its name. Columns of words may hold numbers,
        dates and lists; an empty word is a missing value, and so is NaN.
    columns : dict of str to Feature
        By column, in the order of the features.
    training : str or None
        SQL condition that holds for training rows; None takes all rows.
    where : str, optional
        Name of the relation in messages; by default `relation`.

    Returns
    -------
    Fitted

    Raises
    ------
    DataError
        As `Fitted.expressions`; no training row has a value that a statistic needs; a column has too many values for
        "onehot"; or two columns of features have one name.

    Notes
    -----
    Statistics are summed up by one thread, in the order of the rows, so equal rows give equal bits.

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
        for name, column in _columns(connection, relation, columns, where or relation, training).items():
            feature = columns[name]
            kind = KINDS[feature.transform]
            column.check(kind, feature.missing)
            found = kind.fit(column, feature.argument)
            fill = next((word for word in feature.missing if word in ("mean", "median")), None)
            statistics[name] = {**found, **({"fill": column.statistic(fill)} if fill else {})}
    finally:
        connection.execute(f"SET threads = {threads}")
    made = Fitted(columns, statistics, training is not None)
    made._expressions({})  # which refuses two columns of one name
    return made


def _columns(connection: Any, relation: str, wanted: Mapping[str, Feature], where: str,
             training: str | None = None) -> dict[str, Column]:
    """Return the columns of a relation, by name; raise a DataError for a column that is not there."""
    types = {row[0]: row[1] for row in connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()}
    for name in wanted:
        if name not in types:
            names = [other for other in types if other != "rowid"]  # a column of DuckDB's own
            raise DataError(f"{where}: no column {name!r}, of which features are made; there are "
                            f"{', '.join(map(repr, names))}{suggestion(name, names)}")
    return {name: Column(connection, relation, name, types[name], KINDS[feature.transform].reads, training, where)
            for name, feature in wanted.items()}


def _outputs(name: str, feature: Feature, statistics: Mapping[str, Any], value: str) -> dict[str, str]:
    """Return the expressions of a column's features, without a null, by name."""
    kind = KINDS[feature.transform]
    fill = statistics.get("fill", 0.0 if "0" in feature.missing else None)
    filled = f"coalesce({value}, {as_double(fill)})" if kind.numeric and fill is not None else value
    found = kind.outputs(name, filled, statistics)
    if filled is value:
        found = {output: f"coalesce({expression}, 0)" for output, expression in found.items()}
    if "indicator" in feature.missing:
        found[f"{name}.missing"] = f"({value}) IS NULL"
    return found


def _told(feature: Feature, statistics: Mapping[str, Any], rows: str) -> str:
    kind = KINDS[feature.transform]
    own = kind.told(statistics)
    argument = "" if feature.argument is None else f" {_ARGUMENTS[feature.transform]}={feature.argument}"
    missing = f"; missing: {'+'.join(feature.missing)}" if feature.missing else ""
    return f"{feature.transform}{argument}{f' of {rows}: {own}' if own else ''}{missing}"


def _check_statistics(kind: Kind, feature: Feature, statistics: Any) -> None:
    """Raise what `Fitted.from_json` catches unless the statistics are what the kind keeps."""
    for name in ("n", "width"):
        if name in statistics and not (type(statistics[name]) is int and 0 <= statistics[name] <= _MOST):
            raise ValueError(f"{name} is {statistics[name]!r}")
    _outputs("x", feature, statistics, "NULL")
    kind.told(statistics)


__all__: Sequence[str] = ["Feature", "Fitted", "fit"]

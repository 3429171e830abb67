"""Transforms of table columns into features, one class each: the values to read, the statistics to fit, and the SQL."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from sarlite.data.tables.notations import MAPPING, OptionNotation
from sarlite.data.tables.sources import kind_of
from sarlite.data.tables.sql_connection import Connection
from sarlite.data.tables.text_form import literal, quote
from sarlite.data.tables.time_columns import date_of_word
from sarlite.data.times import show_time
from sarlite.errors import DataError

Statistics: TypeAlias = Mapping[str, Any]  # numbers, words and lists of these, by name

_QUANTILES = 100
_MOST_VALUES = 10_000
_TEXT_COLUMNS = 64
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN")
_DATES = ("DATE", "TIMESTAMP")
_READS = {
    # kind of values: (accepted types, type that words are cast to, word for a value in messages)
    "number": (_NUMBERS + tuple("U" + name for name in _NUMBERS), "DOUBLE", "number"),
    "date": (_DATES, "TIMESTAMP", "date or time of 1678 to 2261, such as 2026-03-01 or 2026-03-01 14:30:00"),
    "list": ((), "DOUBLE[]", "list of numbers"),
    "word": ((), "VARCHAR", "word"),
}

_TYPE_WORDS = {"list": "lists", "vector": "lists", "date": "dates", "other": "neither numbers nor words", "bool": "true and false",
               "whole": "numbers", "float": "numbers", "word": "words"}


def as_double(value: float) -> str:
    """Return a finite number as an SQL literal of type DOUBLE; raise a ValueError or TypeError for any other value."""
    if isinstance(value, (bool, str)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return f"CAST({float(value)!r} AS DOUBLE)"


@dataclass(frozen=True)
class Column:
    """Column of an SQL table or view from which a transform reads values.

    Attributes
    ----------
    connection, relation, training, where, notation
        As for `transforms.fit`.
    name, type : str
        Name of the column, and its type in DuckDB.
    reads : str
        Kind of the values, a key of `_READS`.
    """

    connection: Connection
    relation: str
    name: str
    type: str
    reads: str
    training: str | None
    where: str
    notation: OptionNotation = MAPPING

    @property
    def value(self) -> str:
        """SQL expression of the column's value as DOUBLE, TIMESTAMP, DOUBLE[] or VARCHAR; NULL if it is missing."""
        column, to = quote(self.name), _READS[self.reads][1]
        if self.type == "VARCHAR":
            column = f"nullif({column}, '')"
        if self.reads == "date":
            column = date_of_word(column) if self.type == "VARCHAR" else column
            if self.type == "TIMESTAMP WITH TIME ZONE":
                column = f"make_timestamp(epoch_us({column}))"  # UTC regardless of the session's time zone
        cast = f"TRY_CAST({column} AS {to})"
        return f"nullif({cast}, CAST('NaN' AS DOUBLE))" if self.reads == "number" else cast

    @property
    def orderable(self) -> str:
        """SQL expression of a number, or of a date as seconds since 1970, as a DOUBLE; empty text for other values."""
        return {"number": self.value, "date": f"epoch({self.value})"}.get(self.reads, "")

    def shown(self, value: float) -> str:
        """Return the number `value` as text; for a column of dates, the date that is `value` seconds after 1970-01-01."""
        date = self.reads == "date"
        return show_time(int(value * 1e6) * 1000, "dates") if date else f"{value:.6g}"

    def check(self, kind: "Kind", missing: tuple[str, ...], only_missing: bool = False) -> None:
        """Raise a DataError for a missing value, unless `missing` has words that say how to treat it. Unless `only_missing`, raise it also
        for a value that the transform `kind` cannot read.
        """
        if not only_missing:
            self._check_values()
        if not missing:
            self.refuse(f"{self.value} IS NULL", f"is missing; {self._missing_remedy(kind)}")

    def _missing_remedy(self, kind):
        """Return the part of a message that tells how the user can replace or mark missing values for transform `kind`."""
        name = next(name for name, one in KINDS.items() if one is kind)
        options = [self.notation.remedy(("fill", ("0", "mean"), "replaces missing numbers"), otherwise="")] if kind.numeric else []
        words = ["mean", "median", "indicator"] if kind.numeric else ["0", "indicator"]
        keys = self.notation.missing.format(column=self.name, transform=name, value=words[-1])
        options += [f"{keys} marks missing values, and {' or '.join(words[:-1])} replaces them"] if keys else []
        return "; ".join(filter(None, options)) or "the model was trained on a value in each row; fill it in, or leave the row out"

    def _check_values(self):
        column = quote(self.name)
        has_value = f"nullif({column}, '') IS NOT NULL" if self.type == "VARCHAR" else f"{column} IS NOT NULL"
        types, _, value_word = _READS[self.reads]
        scalar = self.type.partition("(")[0].partition(" ")[0].partition("_")[0]
        listed = self.type.endswith("]")
        if self.type != "VARCHAR" and (not listed if self.reads == "list" else types and (listed or scalar not in types)):
            raise DataError(f"{self.where}: column {self.name!r} is of {_TYPE_WORDS[kind_of(self.type)]}, but its transform needs a "
                            f"{value_word} in each row")
        if self.reads == "list":
            self.refuse(f"{has_value} AND ({self.value} IS NULL OR len({self.value}) <> len(list_filter({self.value}, "
                         "lambda x: isfinite(x))))", f"is not a {value_word}, each finite")
        elif self.reads == "date":
            self.refuse(f"{has_value} AND ({self.value} IS NULL OR NOT isfinite({self.value}) OR "
                        f"year({self.value}) NOT BETWEEN 1678 AND 2261)", f"is not a {value_word}")
        elif types:
            cast = f"TRY_CAST({column} AS DOUBLE)"
            self.refuse(f"{has_value} AND {cast} IS NULL", f"is not a {value_word}")
            self.refuse(f"isinf({cast})", "is infinite")

    def refuse(self, condition: str, why: str) -> None:
        """Raise a DataError if the SQL `condition` holds for a row. The message names the first such row and its value, and ends with
        `why`, such as "is infinite".
        """
        odd = f"SELECT 1 FROM {self.relation} WHERE {condition} LIMIT 1"
        if self.connection.execute(odd).fetchone() is None:
            return
        rows = (f"SELECT row_number() OVER () - 1 AS row, CAST({quote(self.name)} AS VARCHAR) AS value, "
                f"({condition}) AS odd FROM {self.relation}")
        row, value = self.connection.execute(f"SELECT row, value FROM ({rows}) WHERE odd ORDER BY row LIMIT 1").fetchone()
        shown = repr(value[:80]) if value else "a value"
        raise DataError(f"{self.where}: row {row}, column {self.name!r}: {shown} {why}")

    def over(self, *aggregates: str) -> tuple[Any, ...]:
        """Return the values of SQL aggregates, such as "count(x)", over the training rows' values `x`."""
        return tuple(self.connection.execute(f"SELECT {', '.join(aggregates)} FROM ({self.values})").fetchone())

    @property
    def values(self) -> str:
        """SQL query of the training rows' values, as column `x`, without missing values."""
        rows = f"SELECT {self.value} AS x FROM {self.relation} WHERE {self.training or 'true'}"
        return f"SELECT x FROM ({rows}) WHERE x IS NOT NULL"

    def statistic(self, name: str) -> float:
        """Return the "mean", "median", "min" or "max" of the training rows' values; raise a DataError if there are none."""
        sql = {"mean": "fsum(x) / count(x)", "median": "median(x)", "min": "min(x)", "max": "max(x)"}[name]
        result = self.over(sql)[0]
        if result is None:
            raise DataError(f"{self.where}: column {self.name!r}: no training row has a value, so there is no {name}")
        if not math.isfinite(result):
            raise DataError(f"{self.where}: column {self.name!r}: the {name} of its values is {result}")
        return float(result)


class Kind:
    """Base class of the transforms, such as "standard" or "onehot". A transform computes feature columns, as SQL expressions, from a table
    column and statistics of its training rows.

    Attributes
    ----------
    reads : str
        Kind of the values that are read from the column, a key of `_READS`.
    numeric : bool
        True if a missing value can be replaced by a number before the transform.
    """

    reads: ClassVar[str] = "number"

    @property
    def numeric(self) -> bool:
        """True if a missing value can be replaced by a number before the transform."""
        return self.reads == "number"

    def fit(self, column: Column, argument: int | None) -> Statistics:
        """Return {name: value} of a column's statistics on training rows; `argument` is the transform's number, as in "hash:32"."""
        return {}

    def check(self, column: Column, statistics: Statistics) -> None:
        """Raise a DataError if `statistics`, fitted on other data, cannot be applied to `column`."""

    def outputs(self, name: str, value: str, statistics: Statistics) -> dict[str, str]:
        """Return {feature name: SQL expression} of the feature columns that the transform computes from a column, with `statistics` of its
        training rows. `value` is the SQL expression of the column's value, and `name` the column's name.

        Parameters
        ----------
        name : str
            Name of the column.
        value : str
            SQL expression of the column's value.
        statistics : dict
        """
        raise NotImplementedError

    def description(self, statistics: Statistics) -> str:
        """Return a few words about a column's statistics for the user; empty if there are none."""
        return ""


class Number(Kind):
    """The transform "number": the value unchanged."""

    def outputs(self, name, value, statistics):
        return {name: value}


class Log(Kind):
    """The transform "log": sign(x) log(1 + |x|)."""

    def outputs(self, name, value, statistics):
        return {name: f"sign({value}) * ln(1 + abs({value}))"}


class Standard(Kind):
    """The transform "standard": (x - mean) / deviation, with the population's standard deviation.

    A constant column becomes x - mean.
    """

    def fit(self, column, argument):
        return _moments(column, column.statistic("mean"), "x")

    def outputs(self, name, value, statistics):
        return {name: _standardized(value, statistics)}

    def description(self, statistics):
        return f"mean {statistics['mean']:.6g}, deviation {statistics['deviation']:.6g}"


def _moments(column, mean, x):
    """Return {"mean": mean, "deviation": standard deviation} of the SQL expression `x` over the training rows of the table column `column`.
    `mean` is the mean of the expression, which the caller has computed; only the deviation is computed here.
    """
    squares = f"fsum(({x} - {as_double(mean)}) * ({x} - {as_double(mean)})) / count(x)"
    return {"mean": mean, "deviation": math.sqrt(column.over(squares)[0])}


def _standardized(value, statistics):
    """Return the SQL of (value - mean) / deviation; of value - mean if the deviation is 0."""
    return f"({value} - {as_double(statistics['mean'])}) / {as_double(statistics['deviation'] or 1.0)}"


class MinMax(Kind):
    """The transform "minmax": (x - min) / (max - min), which is 0 to 1 on training rows.

    A constant column becomes x - min.
    """

    def fit(self, column, argument):
        return {"min": column.statistic("min"), "max": column.statistic("max")}

    def outputs(self, name, value, statistics):
        low, high = statistics["min"], statistics["max"]
        return {name: f"({value} - {as_double(low)}) / {as_double((high - low) or 1.0)}"}

    def description(self, statistics):
        return f"from {statistics['min']:.6g} to {statistics['max']:.6g}"


class Quantile(Kind):
    """The transform "quantile": the share of training rows with a smaller value, from 0 to 1.

    Rows with the same value count half. The share is interpolated linearly between 101 quantiles of the training rows. It is
    0 below the smallest quantile and 1 above the largest.
    """

    def fit(self, column, argument):
        n = column.over("count(x)")[0]
        if not n:
            column.statistic("median")  # raises for a column without values
        places = [divmod(at * (n - 1), _QUANTILES) for at in range(_QUANTILES + 1)]
        wanted = sorted({place for low, _ in places for place in (low, min(low + 1, n - 1))})
        ranked = f"SELECT x, row_number() OVER (ORDER BY x) - 1 AS place FROM ({column.values})"
        sql = f"SELECT place, x FROM ({ranked}) WHERE place IN ({', '.join(map(str, wanted))})"
        value_at = dict(column.connection.execute(sql).fetchall())
        return {"quantiles": [value_at[low] + (value_at[min(low + 1, n - 1)] - value_at[low]) * (rest / _QUANTILES)
                              for low, rest in places]}

    def outputs(self, name, value, statistics):
        knots = _distinct_quantiles(statistics["quantiles"])
        gaps = [(end - at, high - low) for (at, _, low), (end, high, _) in zip(knots, knots[1:])] + [(1.0, 0.0)]
        values, halves, shares, widths, rises = (f"[{', '.join(map(as_double, column))}]" for column in zip(
            *((at, (low + high) / 2, high, *gap) for (at, low, high), gap in zip(knots, gaps))))
        place = f"len(list_filter({values}, lambda knot: knot <= ({value})))"
        between = f"{shares}[{place}] + (({value}) - {values}[{place}]) / {widths}[{place}] * {rises}[{place}]"
        return {name: f"CASE WHEN ({value}) IS NULL THEN NULL WHEN {place} = 0 THEN 0 "
                      f"WHEN {values}[{place}] = ({value}) THEN {halves}[{place}] ELSE {between} END"}

    def description(self, statistics):
        quantiles = statistics["quantiles"]
        return f"quartiles {', '.join(f'{quantiles[at]:.6g}' for at in (25, 50, 75))}"


def _distinct_quantiles(quantiles):
    """Return a list of triples (value, low, high), one for each distinct value in `quantiles`. The entries of `quantiles` stand at evenly
    spaced positions from 0 to 1; low and high are the first and the last position of the value, which differ if several quantiles are
    equal.
    """
    knots: list[tuple[float, float, float]] = []
    for at, value in enumerate(quantiles):
        share = at / (len(quantiles) - 1)
        if knots and knots[-1][0] == value:
            knots[-1] = (value, knots[-1][1], share)
        else:
            knots.append((value, share, share))
    return knots


class OneHot(Kind):
    """The transform "onehot": 1 in the column of the value and 0 in the other columns.

    A value that no training row has gives 0 in all columns. With `at_least`, values of fewer training rows share a further
    column, (other), which also stands for values that no training row has.
    """

    reads = "word"

    def fit(self, column, argument):
        sql = (f"SELECT x FROM ({column.values}) GROUP BY x HAVING count(*) >= {argument or 1} ORDER BY x LIMIT {_MOST_VALUES + 1}")
        values = [row[0] for row in column.connection.execute(sql).fetchall()]
        if len(values) > _MOST_VALUES:
            raise DataError(f"{column.where}: column {column.name!r}: more than {_MOST_VALUES:,} values for onehot: "
                            "at_least = N joins values of fewer than N training rows, and hash:N takes any values")
        return {"values": sorted(values), "other": int(argument is not None)}

    def outputs(self, name, value, statistics):
        values = statistics["values"]
        expressions = {f"{name}={text}": f"(({value}) = {literal(text)})::INT" for text in values}
        if statistics["other"]:
            is_other = f"({value}) NOT IN ({', '.join(map(literal, values))})" if values else f"({value}) IS NOT NULL"
            expressions[f"{name}=(other)"] = f"({is_other})::INT"
        return expressions

    def description(self, statistics):
        return f"{len(statistics['values']):,} values" + (" and (other)" if statistics["other"] else "")


class Hashed(Kind):
    """The transform "hash": 1 in one of n columns, chosen by the MD5 of the value, and 0 in the other columns."""

    reads = "word"

    def fit(self, column, argument):
        return {"n": argument}

    def outputs(self, name, value, statistics):
        bucket = _bucket(value, statistics["n"])
        return {f"{name}.hash{at}": f"({bucket} = {at})::INT" for at in range(int(statistics["n"]))}


def _bucket(value, n):
    """Return the SQL of a hash bucket from 0 to n - 1: the last 8 bytes of the value's MD5, little-endian, modulo n."""
    return f"md5_number_lower({value}) % {int(n)}"


class Text(Kind):
    """The transform "text": counts of words and of pairs of neighbouring words in n columns, chosen by MD5.

    Words are runs of letters and digits, in small letters. Counts are divided by the square root of the number of words and
    pairs.
    """

    reads = "word"

    def fit(self, column, argument):
        return {"n": argument or _TEXT_COLUMNS}

    def outputs(self, name, value, statistics):
        n = int(statistics["n"])
        words = rf"regexp_extract_all(lower({value}), '[\p{{L}}\p{{N}}]+')"
        pairs = f"list_transform(list_zip({words}, {words}[2:], true), lambda pair: pair[1] || ' ' || pair[2])"
        buckets = f"list_transform(list_concat({words}, {pairs}), lambda word: {_bucket('word', n)})"
        scale = f"sqrt(greatest(len({buckets}), 1))"
        return {f"{name}.text{at}": f"len(list_filter({buckets}, lambda bucket: bucket = {at})) / {scale}" for at in range(n)}


class Date(Kind):
    """The transform "date": the standardised year, and sine and cosine of month, weekday and hour, 7 columns in all."""

    reads = "date"

    def fit(self, column, argument):
        mean = column.over("fsum(year(x)) / count(x)")[0]
        if mean is None:
            raise DataError(f"{column.where}: column {column.name!r}: no training row has a value, so there is no mean year")
        return _moments(column, mean, "year(x)")

    def outputs(self, name, value, statistics):
        expressions = {f"{name}.year": _standardized(f"year({value})", statistics)}
        for part, of, first, period in (("month", "month", 1, 12), ("weekday", "isodow", 1, 7), ("hour", "hour", 0, 24)):
            angle = f"({of}({value}) - {first}) * {as_double(2 * math.pi / period)}"
            expressions |= {f"{name}.{part}_sin": f"sin({angle})", f"{name}.{part}_cos": f"cos({angle})"}
        return expressions

    def description(self, statistics):
        return f"mean year {statistics['mean']:.6g}, deviation {statistics['deviation']:.6g}"


class Vector(Kind):
    """The transform "vector": a list of numbers, unchanged, with a column per number."""

    reads = "list"

    def fit(self, column, argument):
        widths = column.over("min(len(x))", "max(len(x))")
        if widths[0] is None:
            raise DataError(f"{column.where}: column {column.name!r}: no training row has a list")
        self.check(column, {"width": int(widths[0])})
        return {"width": int(widths[0])}

    def check(self, column, statistics):
        width = int(statistics["width"])
        column.refuse(f"len({column.value}) <> {width}", f"is not a list of {width} numbers, as the training rows have")

    def outputs(self, name, value, statistics):
        return {f"{name}.{at}": f"({value})[{at + 1}]" for at in range(int(statistics["width"]))}

    def description(self, statistics):
        return f"{statistics['width']} numbers"


KINDS: dict[str, Kind] = {
    "number": Number(), "standard": Standard(), "minmax": MinMax(), "log": Log(), "quantile": Quantile(),
    "onehot": OneHot(), "hash": Hashed(), "date": Date(), "vector": Vector(), "text": Text(),
}  # fmt: skip

"""Columns of times: SQL expressions that read their cells as int64, and checks of the cells."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from sarlite.data.tables.checks import CellCheck, check_cells, is_missing, number
from sarlite.data.tables.remedies import date_remedy, left_out, query_remedy, replacement
from sarlite.data.tables.sources import Table
from sarlite.data.tables.sql_connection import to_array
from sarlite.data.tables.text_form import literal, quote
from sarlite.data.times import show_time
from sarlite.errors import DataError

_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
"""Units of Unix times, and their number in a second."""
_FIRST, _LAST = 315_532_800, 4_102_444_800
"""The years 1980 and 2100 as Unix times in seconds."""


class Times(NamedTuple):
    """SQL expression that reads a column's cells as times, int64, and the kind of the times: "dates" (nanoseconds since 1970) or
    "integers".

    Attributes
    ----------
    expression : str
        SQL expression of a cell as a BIGINT.
    kind : {"dates", "integers"}
        "dates" are nanoseconds since 1970 UTC.
    """

    expression: str
    kind: str


def time_column(table: Table, column: str) -> Times:
    """Return the SQL expression that reads a column as times, and the kind of the times, "dates" or "integers", as `Times`. The column has
    dates, timestamps, ISO 8601 text or whole numbers; all cells are checked.

    Raises
    ------
    DataError
        If a cell is no time or has no value; the message names the row. Also if the times may mix units, or are over 100 years
        apart, unless the option `null` settles the doubt.
    """
    kind = table.types[column]
    if kind == "word":
        times = _times_in_words(table, column)
        _refuse_doubtful(table, column, times)
        return times
    if kind not in ("date", "whole"):
        scaled = replacement(table, column, f"CAST({quote(column)} * 1000 AS BIGINT)", "keeps the precision")
        fractions = f"; {scaled}" if kind == "float" else ""
        raise DataError(f"{table.where}: column {column!r} has no times, which are dates, timestamps or whole numbers{fractions}")
    name = quote(column)
    if kind == "whole":
        times, most = Times(f"TRY_CAST({name} AS BIGINT)", "integers"), "64 bits"
    else:
        times, most = Times(_nanoseconds(name), "dates"), "nanoseconds since 1970 in 64 bits: 1678 to 2261"
    check_cells(table, [_no_time(table, column, f"{name} IS NULL"),
                   CellCheck(column, f"{times.expression} IS NULL AND {name} IS NOT NULL", f"VALUE does not fit {most}")])
    _refuse_doubtful(table, column, times)
    return times


def _refuse_doubtful(table, column, times):
    """Raise a DataError if the numbers in a column seem to count two units of time, or its dates are over 100 years apart, unless the user
    has passed the option `null`. `times` has the SQL expression and the kind of the times.
    """
    notation, value = table.reading.notation, times.expression
    if table.reading.null is not None or not notation.option("null", "nan"):
        return
    if times.kind == "dates":
        low, middle, high = table.one(f"min({value})", f"quantile_disc({value}, 0.5)", f"max({value})")
        if low is None or high - low <= 100 * 365.25 * 86_400 * 10**9:
            return
        first, last = show_time(low, "dates"), show_time(high, "dates")
        shown, effect = f"the first time, {first}, and the last, {last}, are more than 100 years apart", "are times"
        odd = ("<", last) if high - middle > middle - low else (">", first)
        query = query_remedy(table, "SELECT *", f"WHERE {quote(column)} {odd[0]} {literal(odd[1])}", f"leaves {odd[1]} out")
    else:
        ranges = {unit: (_FIRST * n, _LAST * n) for unit, n in _UNITS.items()}
        *counts, low, high, n_late = table.one(
            *(f"count(*) FILTER (WHERE {value} BETWEEN {first} AND {last})" for first, last in ranges.values()),
            f"min({value}) FILTER (WHERE {value} >= {_FIRST})", f"max({value})", f"count(*) FILTER (WHERE {value} >= {_FIRST})")
        units = [unit for unit, n in zip(_UNITS, counts) if n]
        if len(units) < 2 or sum(counts) < n_late:  # other numbers are no Unix times
            return
        shown = f"{low} is {_shown(low, units[0])} and {high} is {_shown(high, units[-1])}"
        number, effect = f"CAST({quote(column)} AS BIGINT)", "have one unit"
        cases = " ".join(f"WHEN {number} >= {ranges[unit][0]} THEN {number} // {_UNITS[unit] // _UNITS[units[0]]}" for unit in units[:0:-1])
        query = replacement(table, column, f"CASE {cases} ELSE {number} END", f"brings all to {units[0]}")
    settled = notation.remedy(("null", "nan", f"says that all {effect}"))
    raise DataError(f"{table.where}: column {column!r}: {shown}: {settled}; {query}")


def check_units(columns: Sequence[tuple[Table, str, Mapping[str, str]]]) -> None:
    """Raise a DataError if two of `columns` seem to hold Unix times in different units, such as seconds and milliseconds. A column is
    (table, column name, dict with the first and the last time as text). Nothing is refused if a table has the option `null`, which says
    that the times are right.
    """
    units = {unit: (table, column, int(times["first"])) for table, column, times in columns if times["kind"] == "integers"
             for unit, n in _UNITS.items() if _FIRST * n <= int(times["first"]) and int(times["last"]) <= _LAST * n}
    if len(units) > 1 and all(table.reading.null is None for table, *_ in columns):
        (small, (one, name, time)), (large, (other, other_name, other_time)) = (
            (unit, units[unit]) for unit in [unit for unit in _UNITS if unit in units][:2])
        query = replacement(other, other_name, f"CAST({quote(other_name)} AS BIGINT) // {_UNITS[large] // _UNITS[small]}",
                            f"brings all to {small}")
        settled = other.reading.notation.remedy(("null", "nan", "says that all have one unit"))
        raise DataError(f"{other.where}: column {other_name!r}: {other_time} is {_shown(other_time, large)}, but {one.where}: column "
                        f"{name!r}: {time} is {_shown(time, small)}: {query}; {settled}")


def _shown(time, unit):
    """Return text about `time`, a Unix time in `unit`, such as "2026-01-01 in seconds"."""
    return f"{show_time(time * 10**9 // _UNITS[unit], 'dates')} in {unit}"


def _nanoseconds(column):
    """Return the SQL expression of a date or timestamp in nanoseconds since 1970; NULL outside the years 1678 to 2261."""
    most = 9_223_372_000_000_000  # microseconds
    inside = f"isfinite(CAST({column} AS TIMESTAMP)) AND epoch_us({column}) BETWEEN -{most} AND {most}"
    return f"(CASE WHEN {inside} THEN epoch_ns({column}) END)"


def date_of_word(word_sql: str) -> str:
    """Return the SQL expression that reads the text `word_sql`, also an SQL expression, as a TIMESTAMP_NS of ISO 8601 in UTC; NULL for any
    other text.

    DuckDB needs the seconds before a time zone, and takes words such as epoch for a timestamp, which begins with a digit or
    a sign here.
    """
    seconds = f"regexp_replace({word_sql}, '([T ][0-9]{{2}}:[0-9]{{2}})(Z|[+-][0-9:]+)$', '\\1:00\\2')"
    return (f"(CASE WHEN regexp_matches({word_sql}, '^[+-]?[0-9]') THEN coalesce(TRY_CAST({word_sql} AS TIMESTAMP_NS), "
            f"TRY_CAST({seconds} AS TIMESTAMP_NS)) END)")


def date_check(table: Table, column: str) -> CellCheck:
    """Return the check that refuses a word in a column unless it is an ISO 8601 date of 1678 to 2261 or a missing value."""
    date = date_of_word(quote(column))
    return CellCheck(column, f"NOT {is_missing(table, column)} AND ({date} IS NULL OR NOT isfinite({date}) OR year({date}) NOT BETWEEN "
                         "1678 AND 2261)", "VALUE is not a date or time of 1678 to 2261, such as 2026-03-01 or 2026-03-01 14:30:00",
                 partial(date_remedy, table, column))


def _times_in_words(table, column):
    """Return the SQL expression that reads a column of text as times, and the kind of the times, as `Times`, after a check of all cells.
    The kind is "dates" if more cells are dates than whole numbers, else "integers".
    """
    name, missing = quote(column), is_missing(table, column)
    dates = date_of_word(name)
    digits = f"(CASE WHEN regexp_full_match(trim({name}), '[+-]?[0-9]+') THEN TRY_CAST({name} AS BIGINT) END)"
    n_whole, n_dates = table.one(f"count({digits})", f"count({dates})")
    times = Times(f"epoch_ns({dates})", "dates") if n_dates > n_whole else Times(digits, "integers")
    other = {"dates": "not a date or timestamp of ISO 8601, such as 2026-03-01 or 2026-03-01T14:30:00Z, from 1678 to 2261",
             "integers": "not a whole number of 64 bits"}
    if max(n_whole, n_dates):
        expected = f"{other[times.kind]}, as are the other rows' times of {column}"
    else:
        expected = f"{other['dates']}, and {other['integers']}"
    check_cells(table, [_no_time(table, column, missing),
                   CellCheck(column, f"{times.expression} IS NULL AND NOT {missing}", f"VALUE is {expected}",
                         partial(date_remedy, table, column))])
    return times


def _no_time(table, column, condition):
    return CellCheck(column, condition, "no time; each row needs one", partial(left_out, table, column))


def times(table: Table, column: str) -> np.ndarray:
    """Return the times in a column, (n,) int64: nanoseconds since 1970 for dates, else the column's whole numbers.

    Numbers with fractions are returned as float64.

    Raises
    ------
    DataError
        If a cell is no time or has no value. The message names the row.
    """
    value = number(table, column)
    words = table.types[column] == "word" and table.one(f"count({date_of_word(quote(column))})") == (0,)
    if table.types[column] == "float" or (words and table.one(f"bool_or({value} <> floor({value}))")[0]):
        check_cells(table, [CellCheck(column, f"{value} IS NULL OR NOT isfinite({value})",
                             "VALUE is no time, which is a date or a finite number")])
        return _column(table, value, np.float64)
    return _column(table, time_column(table, column).expression, np.int64)


def _column(table, expression, dtype):
    pieces = [to_array(columns[0]) for columns in table.batches(expression)]
    return np.concatenate([np.empty(0, dtype), *pieces]).astype(dtype, copy=False)

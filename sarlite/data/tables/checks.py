"""Cells of a column as numbers, words, ids and times. A doubtful cell is refused by its row and value."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite.data.tables.sources import Table
from sarlite.data.tables.text_form import literal, quote
from sarlite.errors import ConfigError, DataError

MISSING = ("", "nan", "null")
"""Words that are no value, in small letters or capitals."""
DOUBTFUL = ("na", "n/a", "none", "<na>", "?")
"""Words that mean no value in many tables: classes of these names are asked about."""
_WORD_REMEDY = ("words become numbers as columns of 0 and 1, as by pandas.get_dummies; decimal=, reads decimal commas; "
                "null=WORD+WORD names the words that are no value")


class Doubt(NamedTuple):
    """A condition under which a row is refused.

    Attributes
    ----------
    column : str
    condition : str
        SQL, true of the rows that are refused.
    why : str
        Reason in the message, in which VALUE stands for the value.
    """

    column: str
    condition: str
    why: str


def refuse(table: Table, doubts: Sequence[Doubt]) -> None:
    """Raise a DataError for the first doubt that holds in some row: it names source, row, column, value and remedy."""
    for at in range(0, len(doubts), 256):
        some = doubts[at : at + 256]
        rows = table.one(*(f"min(rowid) FILTER (WHERE {doubt.condition})" for doubt in some))
        first = next(((row, doubt) for row, doubt in zip(rows, some) if row is not None), None)
        if first is not None:
            row, doubt = first
            shown = table.value(quote(doubt.column), row)
            raise DataError(f"{cell(table, row, doubt.column)}: {doubt.why.replace('VALUE', repr(shown))}")


def cell(table: Table, row: int, column: str) -> str:
    """Return how messages name a cell; rows count from 0 below the header."""
    return f"{table.where}: row {row}, column {column!r}"


def is_missing(table: Table, column: str) -> str:
    """Return the SQL condition that a cell has no value."""
    name, kind = quote(column), table.types[column]
    if kind == "float":
        return f"({name} IS NULL OR isnan({name}))" if _is_binary(table, column) else f"({name} IS NULL)"
    if kind != "word":
        return f"({name} IS NULL)"
    words = ", ".join(map(literal, MISSING))
    own = table.reading.null or ()
    further = f" OR {name} IN ({', '.join(map(literal, own))})" if own else ""
    return f"({name} IS NULL OR lower(trim({name})) IN ({words}){further})"


def _is_binary(table, column):
    (found,) = table.one(f"any_value(typeof({quote(column)}))")
    return found in ("FLOAT", "DOUBLE")


def number(table: Table, column: str) -> str:
    """Return the SQL expression of a cell as a DOUBLE: NULL where it is missing, or no number."""
    name, kind = quote(column), table.types[column]
    if kind in ("whole", "bool", "float"):
        return f"(CASE WHEN {is_missing(table, column)} THEN NULL ELSE CAST({name} AS DOUBLE) END)"
    if kind != "word":
        return "CAST(NULL AS DOUBLE)"
    # most cells are plain numbers, so this is asked first: the order is one of speed alone
    point = table.reading.decimal == "."
    plain = name if point else f"replace({name}, ',', '.')"
    value = f"TRY_CAST({plain} AS DOUBLE)"
    odd = f"contains({name}, '_')" if point else f"contains({name}, '_') OR contains({name}, '.')"
    own = "" if table.reading.null is None else f"WHEN {is_missing(table, column)} THEN NULL "
    return (f"(CASE {own}WHEN isfinite({value}) AND NOT ({odd}) THEN {value} WHEN {is_missing(table, column)} THEN NULL "
            f"WHEN lower(trim({name})) = 'true' THEN 1 WHEN lower(trim({name})) = 'false' THEN 0 "
            f"WHEN {odd} THEN NULL ELSE {value} END)")


def number_doubts(table: Table, columns: Sequence[str], missing: bool = False) -> list[Doubt]:
    """Return the doubts of columns that must be numbers; with `missing` a cell may have no value."""
    found = []
    for column in columns:
        kind = table.types[column]
        if kind in ("date", "other"):
            what = "dates" if kind == "date" else "neither numbers nor words"
            raise DataError(f"{table.where}: column {column!r} is of {what}; convert the column first")
        there = f"NOT {is_missing(table, column)}"
        if kind == "list":
            continue
        expression = number(table, column)
        remedy = f"VALUE is no number; {_WORD_REMEDY}"
        found.append(Doubt(column, f"{expression} IS NULL AND {there}", remedy))
        found.append(Doubt(column, f"NOT isfinite({expression})", "VALUE is not a finite number"))
        if not missing:
            found.append(Doubt(column, is_missing(table, column), "no value; fill=0 or fill=mean says what it shall be"))
    return found


def numeric_columns(table: Table, columns: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the columns of numbers, and why each other column is none.

    Raises
    ------
    DataError
        At least half of a column's words are numbers, but some are not: the first of these is named.
    """
    chosen, left = [], {}
    words = [name for name in columns if table.types[name] == "word" and not table.typed]
    counts: dict[str, tuple[int, int]] = {}
    for at in range(0, len(words), 256):
        some = words[at : at + 256]
        found = table.one(*(text for name in some for text in (
            f"count(*) FILTER (WHERE NOT {is_missing(table, name)})", f"count({number(table, name)})")))
        counts |= dict(zip(some, zip(found[::2], found[1::2])))
    doubts = []
    for name in columns:
        kind = table.types[name]
        there, numbers = counts.get(name, (0, 0))
        if kind in ("whole", "float", "bool") or (kind == "list" and _is_vector(table, name)):
            chosen.append(name)
        elif name in counts and there and 2 * numbers >= there:
            chosen.append(name)
            doubts += number_doubts(table, [name], missing=True)
        else:
            words_ = "words" if there or table.typed else "no row has a value"
            left[name] = {"date": "dates", "list": "lists that are no numbers", "other": "of an unknown type"}.get(
                kind, words_)
    refuse(table, doubts)
    return chosen, left


def _is_vector(table, column):
    (found,) = table.one(f"any_value(typeof({quote(column)}))")
    return found is not None and re.match(r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE)\[", found) is not None


def word(table: Table, column: str) -> str:
    """Return the SQL expression of a cell as a word: NULL where it is missing. Whole numbers are their digits."""
    return f"(CASE WHEN {is_missing(table, column)} THEN NULL ELSE CAST({quote(column)} AS VARCHAR) END)"


def vectors(table: Table, column: str) -> int:
    """Return the length of a column of lists; a DataError names the first row of another length, or with a null."""
    name = quote(column)
    (first,) = table.one(f"any_value(len({name}))")
    width = first or 0
    refuse(table, [Doubt(column, f"{name} IS NULL OR len({name}) <> {width} OR list_contains(list_transform({name}, "
                                 "lambda x: x IS NULL), true)",
                         f"lists of one length, {width}, without nulls are needed in every row")])
    return int(width)


# ---- ids


def id_doubts(table: Table, column: str) -> list[Doubt]:
    """Return the doubts of a column of ids; a DataError says that the column cannot have ids."""
    kind = table.types[column]
    if kind not in ("whole", "word"):
        (there,) = table.one(f"count({quote(column)})")
        if table.n_rows and not (kind == "float" and not there):
            more = {"float": "numbers with some missing or with fractions; Int64 of pandas keeps whole numbers whole",
                    "date": "dates", "bool": "true and false", "list": "lists"}.get(kind, "of an unknown type")
            raise DataError(f"{table.where}: column {column!r}: {more}: these are no ids of nodes, which are whole "
                            "numbers or words")
    name = quote(column)
    empty = f"{name} IS NULL OR {name} = ''" if kind == "word" else f"{name} IS NULL"
    return [Doubt(column, empty, "no id")]


def whole(column: str, table: Table) -> str:
    """Return the SQL expression of a cell as a node number, NULL where it is none: no sign, no zeros in front."""
    name = quote(column)
    if table.types[column] == "whole":
        return f"CASE WHEN {name} >= 0 THEN {name} END"
    if table.types[column] != "word":
        return "CAST(NULL AS UBIGINT)"
    digits = f"{name} >= '0' AND {name} < ':'"  # which most words fail at once
    return f"CASE WHEN {digits} AND regexp_full_match({name}, '0|[1-9][0-9]{{0,18}}') THEN CAST({name} AS UBIGINT) END"


# ---- times and splits


class Times(NamedTuple):
    """A column of times.

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
    """Return a column of times: dates, timestamps, words of ISO 8601, or whole numbers.

    Raises
    ------
    DataError
        A cell is no time, or has no value. The error names the row.
    """
    kind = table.types[column]
    if kind == "word":
        return _times_in_words(table, column)
    if kind not in ("date", "whole"):
        fractions = "; whole numbers keep their precision, as by CAST(t * 1000 AS BIGINT) in a query" if kind == "float" else ""
        raise DataError(f"{table.where}: column {column!r} has no times, which are dates, timestamps or whole "
                        f"numbers{fractions}")
    name = quote(column)
    if kind == "whole":
        found, most = Times(f"TRY_CAST({name} AS BIGINT)", "integers"), "64 bits"
    else:
        found, most = Times(_nanoseconds(name), "dates"), "nanoseconds since 1970 in 64 bits: 1678 to 2261"
    refuse(table, [_no_time(column, f"{name} IS NULL"),
                   Doubt(column, f"{found.expression} IS NULL", f"VALUE does not fit {most}")])
    return found


def _nanoseconds(name):
    most = 9_223_372_000_000_000  # microseconds
    inside = f"isfinite(CAST({name} AS TIMESTAMP)) AND epoch_us({name}) BETWEEN -{most} AND {most}"
    return f"(CASE WHEN {inside} THEN epoch_ns({name}) END)"


def _times_in_words(table, column):
    name, missing = quote(column), is_missing(table, column)
    whole_ = f"TRY_CAST({name} AS BIGINT)"
    dates = f"(CASE WHEN regexp_matches({name}, '^[+-]?[0-9]') THEN TRY_CAST({name} AS TIMESTAMP_NS) END)"  # else epoch is 0
    digits = f"(CASE WHEN regexp_full_match(trim({name}), '[+-]?[0-9]+') THEN {whole_} END)"
    n_whole, n_dates = table.one(f"count({digits})", f"count({dates})")
    found = Times(f"epoch_ns({dates})", "dates") if n_dates > n_whole else Times(digits, "integers")
    other = {"dates": "no date or timestamp of ISO 8601, such as 2026-03-01 or 2026-03-01T14:30:00Z, from 1678 to 2261",
             "integers": "no whole number of 64 bits"}
    if max(n_whole, n_dates):
        expected = f"{other[found.kind]}, as are the other rows' times of {column}"
    else:
        expected = f"{other['dates']}, and {other['integers']}"
    refuse(table, [_no_time(column, missing), Doubt(column, f"{found.expression} IS NULL", f"VALUE is {expected}")])
    return found


def _no_time(column, condition):
    return Doubt(column, condition, "no time; each row needs one: a query that fills it in or leaves the row out, as "
                                    f"WHERE {column} IS NOT NULL, says what is meant")


def times(table: Table, column: str) -> np.ndarray:
    """Return the times in a column, (n,) int64, as `time_column` has them.

    Numbers with fractions are (n,) float64.

    Raises
    ------
    DataError
        A cell is no time, or has no value. The error names the row.
    """
    value = number(table, column)
    words = table.types[column] == "word" and table.one(f"count(TRY_CAST({quote(column)} AS TIMESTAMP_NS))") == (0,)
    if table.types[column] == "float" or (words and table.one(f"bool_or({value} <> floor({value}))")[0]):
        refuse(table, [Doubt(column, f"{value} IS NULL OR NOT isfinite({value})",
                             "VALUE is no time, which is a date or a finite number")])
        return _column(table, value, np.float64)
    return _column(table, time_column(table, column).expression, np.int64)


def _column(table, expression, dtype):
    found = [columns[0].to_numpy(zero_copy_only=False) for columns in table.batches(expression)]
    return np.concatenate([np.empty(0, dtype), *found]).astype(dtype, copy=False)


SPLIT_WORDS = {"none": 0, "train": 1, "val": 2, "valid": 2, "validation": 2, "test": 3}


def split_code(table: Table, column: str) -> tuple[str, Doubt]:
    """Return the SQL expression of a split's number, 0 for none, and the doubt about another word."""
    found = word(table, column)
    cases = " ".join(f"WHEN {literal(name)} THEN {code}" for name, code in SPLIT_WORDS.items())
    code = f"(CASE lower(trim({found})) {cases} END)"
    return (f"CAST(coalesce({code}, 0) AS TINYINT)",
            Doubt(column, f"{found} IS NOT NULL AND {code} IS NULL", "VALUE is none of train, val, test, none"))


def truth(table: Table, column: str) -> tuple[str, Doubt]:
    """Return the SQL expression of a cell of true and false, and the doubt about another value."""
    value = number(table, column)
    return (f"({value} = 1)", Doubt(column, f"{value} IS NULL OR {value} NOT IN (0, 1)", "VALUE is neither true nor false"))


def check_fill(fill: Any) -> str | None:
    """Return "0", "mean" or None; a ConfigError refuses another word."""
    text = None if fill is None else str(fill)
    if text not in (None, "0", "mean"):
        raise ConfigError(f"fill: {text!r} is not one of 0, mean")
    return text

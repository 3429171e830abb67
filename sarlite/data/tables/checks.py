"""SQL expressions that read cells as numbers, words, ids and times, and errors that name the row and value of a bad cell."""

import glob
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sarlite.data.tables.sources import Table
from sarlite.data.tables.text_form import is_number, literal, quote
from sarlite.errors import ConfigError, DataError, SarliteError, raise_all

MISSING = ("", "nan", "null")
"""Words that mean a missing value, in small letters or capitals."""
DOUBTFUL_WORDS = ("na", "n/a", "#n/a", "<na>", "nat", "none", "nil", "?", "-", "--", ".", "unknown", "unk", "missing",
            "undefined", "not available", "unlabelled", "unlabeled")
"""Words that may mean a missing value: labels with these words are refused unless `null` settles their meaning."""
FLOAT32_LIMIT = 3.4028235677973366e38
"""Smallest number that float32, in which features are kept, rounds to infinity."""
_MOST_SHOWN = 80  # letters of a value in a message
_MOST_BAD = 41


class CellCheck(NamedTuple):
    """Check of a column's cells: the SQL condition that is true for a bad cell, and the error message for the cell.

    Attributes
    ----------
    column : str
    condition : str
        SQL condition of a refused row.
    why : str
        Reason in the message; VALUE stands for the cell's value.
    """

    column: str
    condition: str
    why: str


def check_cells(table: Table, checks: Sequence[CellCheck]) -> None:
    """Run the checks of cells, and raise one error about all checks that find a bad cell.

    For each of them the message names the source, the first row, the column and the value.
    """
    errors: list[SarliteError] = []
    for at in range(0, len(checks), 256):
        some = checks[at : at + 256]
        rows = table.one(*(f"min(rowid) FILTER (WHERE {check.condition})" for check in some))
        for row, check in zip(rows, some):
            if row is not None and len(errors) < _MOST_BAD:
                name, is_date = quote(check.column), table.types[check.column] in ("date", "other")
                shown = shorten(table.value(f"CAST({name} AS VARCHAR)" if is_date else name, row))  # Python's dates need more packages
                errors.append(DataError(f"{cell(table, row, check.column)}: {check.why.replace('VALUE', shown)}"))
    raise_all(errors)


def shorten(value: object) -> str:
    """Return the text of a cell's value for a message: a number in digits, a date by its text, words in quotes."""
    text = repr(value) if isinstance(value, str | int | float | list | None) else repr(str(value))
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def cell(table: Table, row: int, column: str) -> str:
    """Name a cell for error messages by source, row and column; rows are counted from 0 below the header."""
    return f"{table.where}: row {row}, column {column!r}"


def is_missing(table: Table, column: str) -> str:
    """Return the SQL condition that is true for a cell without a value."""
    name, kind = quote(column), table.types[column]
    null_words = table.reading.null or ()
    if kind in ("whole", "float"):
        nan = f" OR isnan({name})" if kind == "float" and _is_binary(table, column) else ""
        shown = [word.replace(",", ".") for word in null_words if is_number(word)]
        numbers = ", ".join(word for word in shown if math.isfinite(float(word)))
        return f"({name} IS NULL{nan}{f' OR {name} IN ({numbers})' if numbers else ''})"
    if kind != "word":
        return f"({name} IS NULL)"
    words = ", ".join(map(literal, MISSING))
    further = f" OR {name} IN ({', '.join(map(literal, null_words))})" if null_words else ""
    return f"({name} IS NULL OR lower(trim({name})) IN ({words}){further})"


def _is_binary(table, column):
    """Return True if a column's type is FLOAT or DOUBLE, whose values can be NaN."""
    (type_name,) = table.one(f"any_value(typeof({quote(column)}))")
    return type_name in ("FLOAT", "DOUBLE")


def number(table: Table, column: str) -> str:
    """Return the SQL expression of a cell as a DOUBLE; NULL if the cell is missing or not a number."""
    name, kind = quote(column), table.types[column]
    if kind in ("whole", "bool", "float"):
        return f"(CASE WHEN {is_missing(table, column)} THEN NULL ELSE CAST({name} AS DOUBLE) END)"
    if kind != "word":
        return "CAST(NULL AS DOUBLE)"
    point = table.reading.decimal == "."
    odd = f"contains({name}, '_')" if point else f"contains({name}, '_') OR contains({name}, '.')"
    replaced = f"replace({name}, ',', '.')"
    plain = f"TRY_CAST({name if point else replaced} AS DOUBLE)"
    truth_value = f"CASE lower(trim({name})) WHEN 'true' THEN 1 WHEN 'false' THEN 0 END"
    value = f"coalesce(nullif(CASE WHEN {odd} THEN NULL ELSE {plain} END, CAST('nan' AS DOUBLE)), {truth_value})"
    return value if table.reading.null is None else f"(CASE WHEN {is_missing(table, column)} THEN NULL ELSE {value} END)"


def number_checks(table: Table, columns: Sequence[str], missing: bool = False, limit: float = FLOAT32_LIMIT) -> list[CellCheck]:
    """Return checks of columns of numbers: a cell that is no finite number below `limit` is refused.

    A cell without a value is refused unless `missing` is True. A column whose type can hold no numbers raises a DataError at
    once.
    """
    checks, errors, door = [], list[SarliteError](), table.reading.door
    words = door.remedy(("null", "WORD+WORD", "names the words that are no value"), ("decimal", ",", "reads decimal commas"),
                        otherwise="convert the column first")
    category = f"; {door.feature('COLUMN', 'onehot')} makes numbers of a category" if math.isfinite(limit) and door.transforms else ""
    bound = f"CAST('{limit!r}' AS DOUBLE)"
    finite = "a finite number" + (" that fits into float32, at most 3.4e38" if math.isfinite(limit) else "")
    fill = door.remedy(("fill", ("0", "mean"), "replaces missing values"), otherwise="fill it in, or leave the row out")
    for column in columns:
        kind, name = table.types[column], quote(column)
        if kind in ("date", "other") or (kind == "list" and table.n_rows and not is_vector(table, column)):
            what = {"date": "dates", "list": "lists that are no numbers"}.get(kind, "neither numbers nor words")
            errors.append(DataError(f"{table.where}: column {column!r} is of {what}; convert the column first"))
            continue
        if kind == "list":
            odd = "isinf(x)" if math.isinf(limit) else f"NOT abs(x) < {bound}"  # NaN is a missing value among labels
            checks.append(CellCheck(column, f"len(list_filter(CAST({name} AS DOUBLE[]), lambda x: {odd})) > 0",
                                f"VALUE has an entry that is not {finite}"))
            continue
        has_value, expression = f"NOT {is_missing(table, column)}", number(table, column)
        checks.append(CellCheck(column, f"{expression} IS NULL AND {has_value}",
                            f"VALUE is no number; {words}{category.replace('COLUMN', column)}"))
        checks.append(CellCheck(column, f"NOT abs({expression}) < {bound}", f"VALUE is not {finite}"))
        if not missing:
            checks.append(CellCheck(column, is_missing(table, column), f"no value; {fill}"))
    raise_all(errors)
    return checks


def numeric_columns(table: Table, columns: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Find the columns of numbers; return their names, and a dict from each other column to the reason against it.

    A column of words is taken for numbers if at least half of the words are numbers; `number_checks` refuses the other words.
    """
    chosen, left = [], {}
    words = [name for name in columns if table.types[name] == "word" and not table.typed]
    counts: dict[str, tuple[int, int]] = {}
    for at in range(0, len(words), 256):
        some = words[at : at + 256]
        counted = table.one(*(text for name in some for text in (
            f"count(*) FILTER (WHERE NOT {is_missing(table, name)})", f"count({number(table, name)})")))
        counts |= dict(zip(some, zip(counted[::2], counted[1::2])))
    for name in columns:
        kind = table.types[name]
        n_values, numbers = counts.get(name, (0, 0))
        if kind in ("whole", "float", "bool") or (kind == "list" and is_vector(table, name)) or (
                n_values and 2 * numbers >= n_values):
            chosen.append(name)
        else:
            words_ = "words" if n_values or table.typed else "no row has a value"
            left[name] = {"date": "dates", "list": "lists that are no numbers", "other": "of an unknown type"}.get(
                kind, words_)
    return chosen, left


def is_vector(table, column):
    """Return True if a column's type is a list of numbers."""
    (type_name,) = table.one(f"any_value(typeof({quote(column)}))")
    return type_name is not None and re.fullmatch(r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE)\[\d*\]", type_name) is not None


def word(table: Table, column: str) -> str:
    """Return the SQL expression of a cell as a word; NULL if the cell is missing. Whole numbers become their digits."""
    return f"(CASE WHEN {is_missing(table, column)} THEN NULL ELSE CAST({quote(column)} AS VARCHAR) END)"


def vectors(table: Table, column: str) -> int:
    """Return the common length of the lists in a column; raise a DataError for a row with another length or a null."""
    name = quote(column)
    (first,) = table.one(f"any_value(len({name}))")
    width = first or 0
    check_cells(table, [CellCheck(column, f"{name} IS NULL OR len({name}) <> {width} OR list_contains(list_transform({name}, "
                                 "lambda x: x IS NULL), true)",
                         f"lists of one length, {width}, without nulls are needed in every row")])
    return int(width)


# ---- ids


def id_checks(table: Table, column: str) -> list[CellCheck]:
    """Return checks of the cells of a column of ids; raise a DataError for a column whose type cannot be ids."""
    kind = table.types[column]
    if kind not in ("whole", "word"):
        (n_values,) = table.one(f"count({quote(column)})")
        if table.n_rows and not (kind == "float" and not n_values):
            more = {"float": "numbers with some missing or with fractions; Int64 of pandas keeps whole numbers whole",
                    "date": "dates", "bool": "true and false", "list": "lists"}.get(kind, "of an unknown type")
            raise DataError(f"{table.where}: column {column!r}: {more}: these are no ids of nodes, which are whole "
                            "numbers or words")
    name = quote(column)
    empty = f"{name} IS NULL OR {name} = ''" if kind == "word" else f"{name} IS NULL"
    return [CellCheck(column, empty, "no id")]


def node_number(table: Table, column: str) -> str:
    """Return the SQL expression that reads a cell as a node number: digits without a sign or leading zeros.

    For any other cell the expression is NULL.
    """
    name = quote(column)
    if table.types[column] == "whole":
        return f"CASE WHEN {name} >= 0 THEN {name} END"
    if table.types[column] != "word":
        return "CAST(NULL AS UBIGINT)"
    digits = f"{name} >= '0' AND {name} < ':'"  # a cheap test that most words fail
    return f"CASE WHEN {digits} AND regexp_full_match({name}, '0|[1-9][0-9]{{0,18}}') THEN CAST({name} AS UBIGINT) END"


# ---- times and splits


class Times(NamedTuple):
    """SQL expression that reads the cells of a column as times, and the kind of the times.

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
    """Return the expression that reads a column as times: dates, timestamps, words of ISO 8601, or whole numbers.

    Raises
    ------
    DataError
        If a cell is no time or has no value. The message names the row.
    """
    kind = table.types[column]
    if kind == "word":
        return _times_in_words(table, column)
    if kind not in ("date", "whole"):
        scaled = f"SELECT * REPLACE (CAST({quote(column)} * 1000 AS BIGINT) AS {quote(column)})"
        fractions = f"; {query_remedy(table, scaled, '', 'keeps the precision')}" if kind == "float" else ""
        raise DataError(f"{table.where}: column {column!r} has no times, which are dates, timestamps or whole "
                        f"numbers{fractions}")
    name = quote(column)
    if kind == "whole":
        times, most = Times(f"TRY_CAST({name} AS BIGINT)", "integers"), "64 bits"
    else:
        times, most = Times(_nanoseconds(name), "dates"), "nanoseconds since 1970 in 64 bits: 1678 to 2261"
    check_cells(table, [_no_time(table, column, f"{name} IS NULL"),
                   CellCheck(column, f"{times.expression} IS NULL AND {name} IS NOT NULL", f"VALUE does not fit {most}")])
    return times


def _nanoseconds(name):
    """Return the SQL expression of a date or timestamp in nanoseconds; NULL outside 1678 to 2261."""
    most = 9_223_372_000_000_000  # microseconds
    inside = f"isfinite(CAST({name} AS TIMESTAMP)) AND epoch_us({name}) BETWEEN -{most} AND {most}"
    return f"(CASE WHEN {inside} THEN epoch_ns({name}) END)"


def date_of_word(name: str) -> str:
    """Return the SQL expression that reads a word as a TIMESTAMP_NS of ISO 8601 in UTC; NULL for other words.

    DuckDB needs the seconds before a time zone, and takes words such as epoch for a timestamp, which begins with a digit or
    a sign here.
    """
    seconds = f"regexp_replace({name}, '([T ][0-9]{{2}}:[0-9]{{2}})(Z|[+-][0-9:]+)$', '\\1:00\\2')"
    return (f"(CASE WHEN regexp_matches({name}, '^[+-]?[0-9]') THEN coalesce(TRY_CAST({name} AS TIMESTAMP_NS), "
            f"TRY_CAST({seconds} AS TIMESTAMP_NS)) END)")


def _times_in_words(table, column):
    """Return the expression that reads a column of words as times.

    The times are dates if more words are dates than whole numbers; otherwise they are integers.
    """
    name, missing = quote(column), is_missing(table, column)
    dates = date_of_word(name)
    digits = f"(CASE WHEN regexp_full_match(trim({name}), '[+-]?[0-9]+') THEN TRY_CAST({name} AS BIGINT) END)"
    n_whole, n_dates = table.one(f"count({digits})", f"count({dates})")
    times = Times(f"epoch_ns({dates})", "dates") if n_dates > n_whole else Times(digits, "integers")
    other = {"dates": "no date or timestamp of ISO 8601, such as 2026-03-01 or 2026-03-01T14:30:00Z, from 1678 to 2261",
             "integers": "no whole number of 64 bits"}
    if max(n_whole, n_dates):
        expected = f"{other[times.kind]}, as are the other rows' times of {column}"
    else:
        expected = f"{other['dates']}, and {other['integers']}"
    why = f"VALUE is {expected}{date_remedy(table, column)}"
    check_cells(table, [_no_time(table, column, missing), CellCheck(column, f"{times.expression} IS NULL AND NOT {missing}", why)])
    return times


_DATE_FORMS = {r"\d{1,2}\.\d{1,2}\.\d{4}": "%d.%m.%Y", r"\d{1,2}\.\d{1,2}\.\d{2}": "%d.%m.%y", r"\d{1,2}/\d{1,2}/\d{4}": "%m/%d/%Y",
               r"\d{1,2}/\d{1,2}/\d{2}": "%m/%d/%y", r"\d{8}": "%Y%m%d", r"\d{1,2}-\d{1,2}-\d{4}": "%d-%m-%Y"}
"""Forms of dates that are not ISO 8601, as regular expressions, and strptime's form of each."""


def date_remedy(table: Table, column: str) -> str:
    """Return the end of a message about a date that is not ISO 8601: a query that reads it; empty for unknown forms."""
    name = quote(column)
    for pattern, form in _DATE_FORMS.items():
        if table.one(f"bool_or(regexp_full_match(trim(CAST({name} AS VARCHAR)), {literal(pattern)}))")[0]:
            rows = f"SELECT * REPLACE (strptime({name}, {literal(form)}) AS {name})"
            order = " if the month comes first, or with %d/%m if the day does" if "/" in form else ""
            return f"; {query_remedy(table, rows, '', f'reads it{order}')}"
    return ""


def query_remedy(table: Table, rows: str, condition: str, effect: str) -> str:
    """Return a remedy that is a query over the table's file, for a TOML file; for other sources, a change of the table.

    Parameters
    ----------
    table : Table
    rows : str
        The query up to FROM.
    condition : str
        The query from WHERE on.
    effect : str
        Effect of the query.
    """
    if not glob.glob(glob.escape(table.where)) and not glob.glob(table.where):
        return f"in the query or the table, {rows} FROM ... {condition}".rstrip() + f" {effect}"
    file = literal(table.where) if table.typed else f"read_csv({literal(table.where)}, all_varchar = true)"
    return f"query = '''{f'{rows} FROM {file} {condition}'.rstrip()}''' in a TOML file, in place of file, {effect}"


def _no_time(table, column, condition):
    remedy = query_remedy(table, "SELECT *", f"WHERE {quote(column)} IS NOT NULL", "leaves such rows out")
    return CellCheck(column, condition, f"no time; each row needs one: {remedy}")


def times(table: Table, column: str) -> np.ndarray:
    """Return the times in a column, (n,) int64, in the unit of `time_column`.

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
    pieces = [columns[0].to_numpy(zero_copy_only=False) for columns in table.batches(expression)]
    return np.concatenate([np.empty(0, dtype), *pieces]).astype(dtype, copy=False)


SPLIT_WORDS = {"none": 0, "train": 1, "val": 2, "valid": 2, "validation": 2, "test": 3}


def split_code(table: Table, column: str) -> tuple[str, CellCheck]:
    """Return an SQL expression that replaces "train", "val", "test" and "none" by numbers, and a check of other words.

    The numbers are those in `SPLIT_WORDS`.
    """
    name = word(table, column)
    cases = " ".join(f"WHEN {literal(name)} THEN {code}" for name, code in SPLIT_WORDS.items())
    code = f"(CASE lower(trim({name})) {cases} END)"
    return (f"CAST(coalesce({code}, 0) AS TINYINT)",
            CellCheck(column, f"{name} IS NOT NULL AND {code} IS NULL", "VALUE is none of train, val, test, none"))


def truth(table: Table, column: str) -> tuple[str, CellCheck]:
    """Return an SQL expression that reads a cell as true or false, and a check that refuses other cells.

    The accepted cells are true, false, 1 and 0.
    """
    value = number(table, column)
    return (f"({value} = 1)", CellCheck(column, f"{value} IS NULL OR {value} NOT IN (0, 1)", "VALUE is neither true nor false"))


def check_fill(fill: object) -> str | None:
    """Return `fill` as "0", "mean" or None; raise a ConfigError for another word."""
    text = None if fill is None else str(fill)
    if text not in (None, "0", "mean"):
        raise ConfigError(f"fill: {text!r} is not one of 0, mean")
    return text

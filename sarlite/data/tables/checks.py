"""SQL expressions that read cells as numbers, words, ids and times, and errors that name the row and value of a bad cell."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from sarlite.data.tables.remedies import AMOUNT, amount_remedy, query_remedy, replacement, vector_remedy
from sarlite.data.tables.sources import Table
from sarlite.data.tables.text_form import is_number, literal, quote
from sarlite.errors import ConfigError, DataError, SarliteError, raise_all

MISSING = ("", "nan", "null")
"""Words that mean a missing value, in small letters or capitals."""
DOUBTFUL_WORDS = ("na", "n/a", "#n/a", "<na>", "nat", "none", "nil", "?", "-", "--", ".", "unknown", "unk", "missing",
                  "undefined", "not available", "unlabelled", "unlabeled", "\\n", "n.a.", "(null)", "(blank)", "#ref!", "#value!",
                  "#div/0!", "#name?", "#num!", "#null!")
"""Words that may mean a missing value: labels with these words are refused unless `null` settles their meaning."""
FLOAT32_LIMIT = 3.4028235677973366e38
"""Smallest number that float32, in which features are kept, rounds to infinity."""
_MOST_SHOWN = 80  # letters of a value in a message
_MOST_BAD = 41


class CellCheck(NamedTuple):
    """Check of a table column: an SQL condition that is true for a bad cell, and the error message about the cell.

    Attributes
    ----------
    column : str
    condition : str
        SQL condition of a refused row.
    why : str
        Reason in the message; VALUE stands for the cell's value.
    remedy : callable, optional
        remedy(value) returns the remedy for a cell's value, or an empty text.
    """

    column: str
    condition: str
    why: str
    remedy: Callable[[object], str] = lambda value: ""


def check_cells(table: Table, checks: Sequence[CellCheck]) -> None:
    """Run all `checks` over the cells of `table` in one scan. Raise one error that names, for each failed check, the first bad cell:
    source, row, column and value.

    For each of them the message names the source, the first row, the column and the value.
    """
    errors: list[SarliteError] = []
    for at in range(0, len(checks), 256):
        some = checks[at : at + 256]
        rows = table.one(*(f"min(rowid) FILTER (WHERE {check.condition})" for check in some))
        for row, check in zip(rows, some):
            if row is not None and len(errors) < _MOST_BAD:
                name, is_date = quote(check.column), table.types[check.column] in ("date", "other")
                value = table.value(f"CAST({name} AS VARCHAR)" if is_date else name, row)  # Python's dates need more packages
                parts = filter(None, [check.why.replace("VALUE", shorten(value)), check.remedy(value)])
                errors.append(DataError(f"{cell(table, row, check.column)}: {'; '.join(parts)}"))
    raise_all(errors)


def shorten(value: object) -> str:
    """Return `value`, a cell's value, as text for a message: numbers as digits, dates and text in quotes. Long text is cut."""
    text = repr(value) if isinstance(value, str | int | float | list | None) else repr(str(value))
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def cell(table: Table, row: int, column: str) -> str:
    """Return the name of a cell for error messages: source, row (counted from 0 below the header) and column."""
    return f"{table.where}: row {row}, column {column!r}"


def is_missing(table: Table, column: str) -> str:
    """Return the SQL condition that is true for a cell without a value: NULL, NaN, an empty text, or a word that the user's option `null`
    lists.
    """
    name, kind = quote(column), table.types[column]
    null_words = table.reading.null or ()
    if kind in ("whole", "float"):
        nan = f" OR isnan(CAST({name} AS DOUBLE))" if kind == "float" else ""  # decimals have no NaN of their own
        shown = [word.replace(",", ".") for word in null_words if is_number(word)]
        numbers = ", ".join(word for word in shown if math.isfinite(float(word)))
        return f"({name} IS NULL{nan}{f' OR {name} IN ({numbers})' if numbers else ''})"
    if kind != "word":
        return f"({name} IS NULL)"
    words = ", ".join(map(literal, MISSING))
    further = f" OR {name} IN ({', '.join(map(literal, null_words))})" if null_words else ""
    return f"({name} IS NULL OR lower(trim({name})) IN ({words}){further})"


def number(table: Table, column: str) -> str:
    """Return the SQL expression that reads a column's cells as DOUBLE; NULL if a cell is missing or not a number."""
    name, kind = quote(column), table.types[column]
    if kind in ("whole", "bool", "float"):
        return f"(CASE WHEN {is_missing(table, column)} THEN NULL ELSE CAST({name} AS DOUBLE) END)"
    if kind != "word":
        return "CAST(NULL AS DOUBLE)"
    point = table.reading.decimal == "."
    odd = f"contains({name}, '_')" if point else f"contains({name}, '_') OR contains({name}, '.')"
    replaced = f"replace({name}, ',', '.')"
    plain = f"TRY_CAST({name if point else replaced} AS DOUBLE)"
    truth_value = (f"CASE WHEN regexp_full_match({name}, ' *[Tt][Rr][Uu][Ee] *') THEN 1 "  # evaluated only where no number is
                   f"WHEN regexp_full_match({name}, ' *[Ff][Aa][Ll][Ss][Ee] *') THEN 0 END")
    value = f"coalesce(nullif(CASE WHEN {odd} THEN NULL ELSE {plain} END, CAST('nan' AS DOUBLE)), {truth_value})"
    return value if table.reading.null is None else f"(CASE WHEN {is_missing(table, column)} THEN NULL ELSE {value} END)"


def number_checks(table: Table, columns: Sequence[str], missing: bool = False, use: str = "feature") -> list[CellCheck]:
    """Return checks that refuse cells of `columns` that are not finite numbers, and missing values unless `missing` is True. `use` is
    "feature", "weight" or "label": numbers of features and weights must fit into float32, and the advice in messages depends on it.

    Features and weights must fit into float32. A cell without a value is refused unless `missing` is True. A column whose type
    can hold no numbers raises a DataError at once.
    """
    checks, errors, notation = [], list[SarliteError](), table.reading.notation
    limit = math.inf if use == "label" else FLOAT32_LIMIT
    bound = f"CAST('{limit!r}' AS DOUBLE)"
    finite = "a finite number" + (" that fits into float32, at most 3.4e38" if math.isfinite(limit) else "")
    fill = notation.remedy(("fill", ("0", "mean"), "replaces missing values"), otherwise="fill it in, or leave the row out")
    for column in columns:
        kind, name = table.types[column], quote(column)
        if kind in ("date", "other", "list"):
            what = {"date": "dates", "list": "lists that are no numbers"}.get(kind, "neither numbers nor words")
            errors.append(DataError(f"{table.where}: column {column!r} is of {what}; convert the column first"))
            continue
        if kind == "vector":
            odd = "isinf(x)" if math.isinf(limit) else f"NOT abs(x) < {bound}"  # NaN is a missing value among labels
            checks.append(CellCheck(column, f"len(list_filter(CAST({name} AS DOUBLE[]), lambda x: {odd})) > 0",
                                f"VALUE has an entry that is not {finite}"))
            continue
        has_value, expression = f"NOT {is_missing(table, column)}", number(table, column)
        checks.append(CellCheck(column, f"{expression} IS NULL AND {has_value}", "VALUE is not a number",
                            partial(_number_remedy, table, column, use)))
        checks.append(CellCheck(column, f"NOT abs({expression}) < {bound}", f"VALUE is not {finite}"))
        if not missing:
            checks.append(CellCheck(column, is_missing(table, column), f"no value; {fill}"))
    raise_all(errors)
    return checks


def _number_remedy(table, column, use, value):
    """Return advice for the message about `value`, a word in a column of numbers: options or queries that read it and, if `use` is
    "feature", transforms that take words.
    """
    notation = table.reading.notation
    words = notation.remedy(("null", "WORD+WORD", "names the words that are no value"), ("decimal", ",", "reads decimal commas"),
                        otherwise="convert the column first")
    kind = ("vector", "reads a list") if str(value).startswith("[") else ("onehot", "makes numbers of a category")
    transform = f"{notation.feature(column, kind[0])} {kind[1]}" if use == "feature" and notation.transforms else ""
    query = amount_remedy(table, column, value) or vector_remedy(table, column, value)
    return "; ".join(filter(None, [query, words, transform]))


def numeric_columns(table: Table, columns: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return (list of those `columns` of `table` that hold numbers, {name of any other column: reason why it does not hold numbers}).

    A column of words is taken for numbers if at least half of the words are numbers; `number_checks` refuses the other words.
    A DataError is raised for a column of which most words are numbers with signs, such as "12%" or "1,234".
    """
    chosen, left, errors = [], {}, list[SarliteError]()
    words = [name for name in columns if table.types[name] == "word"]
    counts: dict[str, tuple[int, int, int]] = {}
    for at in range(0, len(words), 256):
        some = words[at : at + 256]
        counted = table.one(*(text for name in some for text in (
            f"count(*) FILTER (WHERE NOT {is_missing(table, name)})", f"count({number(table, name)})",
            f"count(*) FILTER (WHERE {number(table, name)} IS NULL AND {_is_amount(name)})")))
        counts |= dict(zip(some, zip(counted[::3], counted[1::3], counted[2::3])))
    for name in columns:
        kind, (n_values, numbers, amounts) = table.types[name], counts.get(name, (0, 0, 0))
        are_numbers = n_values > 0 and 2 * numbers >= n_values
        if kind in ("whole", "float", "bool", "vector") or (are_numbers and not table.typed):
            chosen.append(name)
        elif 2 * (numbers + amounts) > n_values and amounts:
            errors.append(_amounts(table, name, amounts, n_values))
        else:
            words_ = "words" if n_values or table.typed else "no row has a value"
            left[name] = {"date": "dates", "list": "lists that are no numbers", "other": "of an unknown type"}.get(
                kind, f"{words_}, although numbers; features names them" if are_numbers else words_)
    raise_all(errors)
    return chosen, left


def _is_amount(column):
    """Return the SQL condition that is true for a cell like "12%", "$5" or "1,234": a number with a currency or percent sign, or
    with separators of thousands.
    """
    return f"regexp_full_match(trim({quote(column)}), {literal(AMOUNT)})"


def _amounts(table, column, n_amounts, n_values):
    """Return the DataError about a column of words. `n_amounts` of its `n_values` cells are numbers like "12%" or "1,234", which
    are not read as numbers.
    """
    notation, condition = table.reading.notation, f"{_is_amount(column)} AND {number(table, column)} IS NULL"
    row = table.one("min(rowid)", condition=condition)[0]
    value = table.value(quote(column), row)
    has_commas = "," in value and table.reading.decimal == "."
    commas = notation.remedy(("decimal", ",", "reads decimal commas"), otherwise="") if has_commas else ""
    remedy = "; ".join(filter(None, [amount_remedy(table, column, value), commas])) or "write all of them in one form"
    return DataError(f"{cell(table, row, column)}: {shorten(value)} and {n_amounts - 1:,} more of {n_values:,} values are numbers but for "
                     f"signs and separators: {remedy}; features without the column leaves it out")


def word(table: Table, column: str) -> str:
    """Return the SQL expression that reads a column's cells as text, whole numbers as digits; NULL if a cell is missing."""
    return f"(CASE WHEN {is_missing(table, column)} THEN NULL ELSE CAST({quote(column)} AS VARCHAR) END)"


def list_length(table: Table, column: str) -> int:
    """Return the length of the lists of numbers in the cells of a column. Raise a DataError if the lengths differ or an entry is null."""
    name = quote(column)
    first, most = table.one(f"any_value(len({name}))", f"max(len({name}))")
    width = first or 0
    if first == 0:
        raise DataError(f"{table.where}: column {column!r}: its lists are empty")
    check_cells(table, [CellCheck(column, f"{name} IS NULL OR len({name}) <> {width} OR list_contains(list_transform({name}, "
                                 "lambda x: x IS NULL), true)",
                         f"lists of one length, {width}, without nulls are needed in every row", lambda value: replacement(
                             table, column, f"list_transform(list_resize(coalesce({name}, []), {most}), lambda x: coalesce(x, 0))",
                             f"fills all lists up to {most} numbers with 0"))])
    return int(width)


# ---- ids


def id_checks(table: Table, column: str) -> list[CellCheck]:
    """Return checks that refuse empty node ids in a column, and rows that repeat the header. Raise a DataError if the column has a
    type, such as float, that cannot be ids.
    """
    kind = table.types[column]
    if kind not in ("whole", "word"):
        (n_values,) = table.one(f"count({quote(column)})")
        if table.n_rows and not (kind == "float" and not n_values):
            more = {"float": "numbers with a point; Int64 of pandas keeps whole numbers whole, also beside missing values",
                    "date": "dates", "bool": "true and false", "list": "lists", "vector": "lists"}.get(kind, "of an unknown type")
            raise DataError(f"{table.where}: column {column!r}: {more}: these are not ids of nodes, which are whole numbers or words")
    name = quote(column)
    checks = [CellCheck(column, f"{name} IS NULL OR {name} = ''" if kind == "word" else f"{name} IS NULL", "no id")]
    if table.has_header and column == next(iter(table.types)) and len(table.types) > 1:
        again = " AND ".join(f"{quote(other)} = {literal(other)}" for other in [*table.types][:_MOST_BAD])
        remedy = query_remedy(table, "SELECT *", f"WHERE {name} <> {literal(column)}", "leaves it out")
        checks.append(CellCheck(column, again, f"VALUE: the row repeats the header; {remedy}"))
    return checks


def node_number(table: Table, column: str) -> str:
    """Return the SQL expression that reads a column's cells as node numbers: digits without a sign or leading zeros. It is NULL for
    other cells.
    """
    name = quote(column)
    if table.types[column] == "whole":
        return f"CASE WHEN {name} >= 0 THEN {name} END"
    if table.types[column] != "word":
        return "CAST(NULL AS UBIGINT)"
    digits = f"{name} >= '0' AND {name} < ':'"  # a cheap test that most words fail
    return f"CASE WHEN {digits} AND regexp_full_match({name}, '0|[1-9][0-9]{{0,18}}') THEN CAST({name} AS UBIGINT) END"


# ---- splits


SPLIT_WORDS = {"none": 0, "unlabelled": 0, "unlabeled": 0, "train": 1, "training": 1, "val": 2, "valid": 2, "validation": 2, "dev": 2,
               "test": 3, "testing": 3}


def split_code(table: Table, column: str) -> tuple[str, CellCheck]:
    """Return (SQL expression that maps the words none, train, val and test to 0, 1, 2 and 3, CellCheck that refuses other words).

    The numbers are those in `SPLIT_WORDS`.
    """
    name = word(table, column)
    cases = " ".join(f"WHEN {literal(name)} THEN {code}" for name, code in SPLIT_WORDS.items())
    code = f"(CASE lower(trim({name})) {cases} END)"

    def remedy(value):
        train = f"CASE {quote(column)} WHEN {literal(str(value))} THEN 'train' ELSE {quote(column)} END"
        return replacement(table, column, train, "makes it train")

    odd = CellCheck(column, f"{name} IS NOT NULL AND {code} IS NULL", "VALUE is not one of train, val, test, none", remedy)
    return f"CAST(coalesce({code}, 0) AS TINYINT)", odd


def truth(table: Table, column: str) -> tuple[str, CellCheck]:
    """Return (SQL expression that reads true, 1, false and 0 as a truth value, CellCheck that refuses other cells of the column).

    The accepted cells are true, false, 1 and 0.
    """
    value = number(table, column)

    def remedy(cell_value):
        word = literal("true" if cell_value is None else str(cell_value))
        return replacement(table, column, f"coalesce(CAST({quote(column)} AS VARCHAR) = {word}, false)", f"is true for {word} alone")

    return (f"({value} = 1)", CellCheck(column, f"{value} IS NULL OR {value} NOT IN (0, 1)", "VALUE is neither true nor false", remedy))


def check_fill(fill: object, where: str) -> str | None:
    """Return `fill`, the replacement of missing numbers, as "0", "mean" or None; raise a ConfigError, which names the table `where`, for
    another value.
    """
    text = None if fill is None else str(fill)
    if text not in (None, "0", "mean"):
        raise ConfigError(f"{where}: fill: {text!r} is not one of 0, mean; [nodes.TYPE.features] names missing = \"median\" by column")
    return text

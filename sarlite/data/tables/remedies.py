"""Advice that error messages give about cells: SQL queries, for a TOML file, that change a column's cells."""

import glob
import re

from sarlite.data.tables.sources import Table
from sarlite.data.tables.text_form import literal, quote

_AMOUNT = "[-+−]?[$€£¥]? ?[-+−]?(?:[0-9]+|[0-9]{{1,3}}(?:[{group} '\u00a0\u202f][0-9]{{3}})+)(?:{point}[0-9]+)? ?[%$€£¥]?"
_WITH_POINT, _WITH_COMMA = _AMOUNT.format(group=",", point="[.]"), _AMOUNT.format(group=".", point=",")
AMOUNT = f"{_WITH_POINT}|{_WITH_COMMA}"
"""Regular expression of a number that may have a sign of percent or of a currency, or separators of thousands."""
_DATE_FORMS = {
    r"\d{1,2}\.\d{1,2}\.\d{4}": "%d.%m.%Y", r"\d{1,2}\.\d{1,2}\.\d{2}": "%d.%m.%y", r"\d{1,2}/\d{1,2}/\d{4}": "%m/%d/%Y",
    r"\d{1,2}/\d{1,2}/\d{2}": "%m/%d/%y", r"\d{8}": "%Y%m%d", r"\d{1,2}-\d{1,2}-\d{4}": "%d-%m-%Y", r"\d{4}-\d{1,2}": "%Y-%m",
    r"\d{8}T\d{6}": "%Y%m%dT%H%M%S", r"\d{1,2}\.\d{1,2}\.\d{4} \d{1,2}:\d\d": "%d.%m.%Y %H:%M",
    r"\d{1,2}/\d{1,2}/\d{4} \d{1,2}:\d\d": "%m/%d/%Y %H:%M", r"\d{1,2}/\d{1,2}/\d{4} \d{1,2}:\d\d:\d\d": "%m/%d/%Y %H:%M:%S",
    r"[A-Z][a-z]{2} \d{1,2}, \d{4}": "%b %d, %Y", r"[A-Z][a-z]{3,8} \d{1,2}, \d{4}": "%B %d, %Y",
    r"[A-Z][a-z]{2} [A-Z][a-z]{2} \d{1,2} [\d:]{8} \d{4}": "%a %b %d %H:%M:%S %Y",
    r"[A-Z][a-z]{2} [A-Z][a-z]{2} \d{1,2} [\d:]{8} [+-]\d{4} \d{4}": "%a %b %d %H:%M:%S %z %Y"}
"""Forms of dates that are not ISO 8601, as regular expressions, and strptime's form of each."""


def query_remedy(table: Table, rows: str, condition: str, effect: str) -> str:
    """Return advice for a message: an SQL query such as "SELECT * FROM t.csv WHERE x > 0" and its `effect`. `rows` is its SELECT
    part, and `condition` the part after the file.

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


def replacement(table: Table, column: str, expression: str, effect: str) -> str:
    """Return advice for a message: an SQL query that reads `expression` in place of the column `column`, and its `effect` in words."""
    return query_remedy(table, f"SELECT * REPLACE ({expression} AS {quote(column)})", "", effect)


def amount_remedy(table: Table, column: str, value: object) -> str:
    """Return advice for a message about a cell `value` like "12%" or "1,234": an SQL query that reads the numbers of its column.

    The result is empty for any other value, for a plain number with a decimal comma, and if the column has both decimal points and
    decimal commas.
    """
    word = value.strip() if isinstance(value, str) else ""
    if not re.fullmatch(AMOUNT, word):
        return ""
    matches = [f"regexp_full_match(trim({quote(column)}), {literal(form)})" for form in (_WITH_POINT, _WITH_COMMA)]
    points, comma = table.one(f"bool_or({matches[0]} AND NOT {matches[1]})", f"bool_or({matches[1]} AND NOT {matches[0]})")
    if comma and (points or re.fullmatch(r"[-+]?\d+,\d+", word)):
        return ""
    mark, name = "," if comma else ".", f"replace({quote(column)}, '−', '-')"
    digits = f"regexp_replace({name}, '[^0-9{mark}-]', '', 'g')"
    number = f"CAST({f'''replace({digits}, ',', '.')''' if comma else digits} AS DOUBLE)"
    return replacement(table, column, number, "reads the number without signs and separators")


def lists_remedy(table: Table, column: str, value: object = None) -> str:
    """Return advice for a message about a column with several labels in a cell: an SQL query that makes a list of labels of each cell."""
    name, marks = quote(column), "|;,["
    counts = table.one(*(f"count(*) FILTER (WHERE contains(CAST({name} AS VARCHAR), '{mark}'))" for mark in marks))
    _, mark = max(zip(counts, marks))
    if mark == "[" and any(counts):
        return replacement(table, column, f"CAST({name} AS VARCHAR[])", "reads lists of labels")
    return replacement(table, column, f"string_split_regex({name}, ' *[{mark}] *')", f"reads labels between which there is {mark!r}")


def date_remedy(table: Table, column: str, value: object) -> str:
    """Return advice for a message about a cell `value` that is no ISO 8601 date: an SQL query that parses the dates of its column.

    The result is empty if no cell has a known form and `value`, a refused cell, has no digits or looks like ISO 8601.
    """
    name = quote(column)
    for pattern, form in _DATE_FORMS.items():
        if table.one(f"bool_or(regexp_full_match(trim(CAST({name} AS VARCHAR)), {literal(pattern)}))")[0]:
            order = " if the month comes first, or with %d/%m if the day does" if "/" in form else ""
            return replacement(table, column, f"strptime({name}, {literal(form)})", f"reads dates of the form {form}{order}")
    if table.one(f"bool_or(regexp_full_match(trim(CAST({name} AS VARCHAR)), '[0-9]+[.][0-9]*(e[+]?[0-9]+)?'))")[0]:
        whole = f"CAST(CAST({name} AS DECIMAL(38, 6)) * 1000000 AS BIGINT)"
        return replacement(table, column, whole, "gives whole numbers, in millionths")
    if not re.search(r"\d\D", str(value)) or re.match(r"\d{4}-\d\d-\d\d", str(value)):
        return ""
    return replacement(table, column, f"strptime({name}, 'FORM')", "reads dates of another FORM, such as %d.%m.%Y %H:%M")

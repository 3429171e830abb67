"""Advice that error messages give about cells: SQL queries, for a TOML file, that change a column's cells."""

import glob
import os
import re

from sarlite.data.tables.sources import Table
from sarlite.data.tables.text_form import literal, quote

_AMOUNT = "[-+−]?[$€£¥]? ?[-+−]?(?:[0-9]+|[0-9]{{1,3}}(?:[{group} '\u00a0\u202f][0-9]{{3}})+)(?:{point}[0-9]+)? ?[%$€£¥]?"
_WITH_POINT, _WITH_COMMA = _AMOUNT.format(group=",", point="[.]"), _AMOUNT.format(group=".", point=",")
AMOUNT = f"{_WITH_POINT}|{_WITH_COMMA}"
"""Regular expression of a number that may have a sign of percent or of a currency, or separators of thousands."""
_DATE_FORMS = {
    r"\d{8}": "%Y%m%d", r"\d{4}-\d{1,2}": "%Y-%m", r"\d{8}T\d{6}": "%Y%m%dT%H%M%S",
    r"\d{1,2}-[A-Za-z]{3}-\d{4}": "%d-%b-%Y", r"\d{1,2}-[A-Za-z]{3}-\d\d": "%d-%b-%y",
    r"[A-Z][a-z]{2} \d{1,2}, \d{4}": "%b %d, %Y", r"[A-Z][a-z]{3,8} \d{1,2}, \d{4}": "%B %d, %Y",
    r"[A-Z][a-z]{2} [A-Z][a-z]{2} \d{1,2} [\d:]{8} \d{4}": "%a %b %d %H:%M:%S %Y",
    r"[A-Z][a-z]{2} [A-Z][a-z]{2} \d{1,2} [\d:]{8} [+-]\d{4} \d{4}": "%a %b %d %H:%M:%S %z %Y",
    r"\d{4}-\d\d-\d\d [\d:]{8} [+-]\d{4} UTC": "%Y-%m-%d %H:%M:%S %z UTC", r"\d{4}-\d\d-\d\d [\d:]{5} [AP]M": "%Y-%m-%d %I:%M %p"}
_CLOCKS = {"": "", r" \d{1,2}:\d\d": " %H:%M", r" \d{1,2}:\d\d:\d\d": " %H:%M:%S", r" \d{1,2}:\d\d [AP]M": " %I:%M %p"}
_DATE_FORMS |= {rf"\d{{1,2}}[{mark}]\d{{1,2}}[{mark}]{year}{clock}": f"{day}{mark}{last}{time}" for day, mark in
                (("%d.%m", "."), ("%m/%d", "/"), ("%d-%m", "-")) for year, last in ((r"\d{4}", "%Y"), (r"\d\d", "%y"))
                for clock, time in _CLOCKS.items()}
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
    file = literal(glob.escape(table.where) if os.path.exists(table.where) else table.where)
    if not table.typed:
        names = "" if table.has_header else f", header = false, names = [{', '.join(map(literal, table.columns))}]"
        file = f"read_csv({file}, all_varchar = true{names})"
    query = f"{rows} FROM {file} {condition}".rstrip()
    return f"query = '''{query}{' ' * query.endswith(chr(39))}''' in a TOML file, in place of file, {effect}"


def left_out(table: Table, column: str, value: object) -> str:
    """Return advice for a message: an SQL query that leaves out the rows whose cell in `column` is `value`."""
    condition = f"WHERE {quote(column)} " + ("IS NOT NULL" if value is None else f"<> {literal(str(value))}")
    return query_remedy(table, "SELECT *", condition, "leaves such rows out")


def trimmed(table: Table, column: str) -> str:
    """Return advice for a message: an SQL query that removes the blanks around the words of `column`."""
    return replacement(table, column, f"trim({quote(column)})", "removes the blanks")


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


def vector_remedy(table: Table, column: str, value: object) -> str:
    """Return advice for a message about a cell such as "0.1, 0.2": an SQL query that makes lists of numbers; empty for another value."""
    number = r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
    if not re.fullmatch(rf"{number}(?:(?:[,;] *| +){number})+", str(value).strip()) or re.fullmatch(r"[-+]?\d+,\d+", str(value).strip()):
        return ""
    return replacement(table, column, f"CAST(string_split_regex(trim({quote(column)}), '[,; ]+') AS DOUBLE[])", "reads lists of numbers")


def date_remedy(table: Table, column: str, value: object) -> str:
    """Return advice for a message about a cell `value` that is no ISO 8601 date: an SQL query that parses the dates of its column, or
    that leaves out the rows with this cell. The result is empty if the column has no dates of a known form.
    """
    word = f"trim(CAST({quote(column)} AS VARCHAR))"
    for pattern, form in _DATE_FORMS.items():
        matches = f"regexp_full_match({word}, {literal(pattern)})"
        if table.one(f"bool_or({matches})")[0]:
            order = ""
            if form[1:2] + form[4:5] in ("dm", "md"):
                numbers = (f"CAST(regexp_extract({word}, '^([0-9]+)[^0-9]([0-9]+)', {at}) AS INTEGER)" for at in (1, 2))
                first, second = table.one(*(f"max({number}) FILTER (WHERE {matches})" for number in numbers))
                months, days = f"%m{form[2]}%d", f"%d{form[2]}%m"
                order = "" if max(first, second) > 12 else f" if {form[:2].replace('%m', 'the month').replace('%d', 'the day')} comes first"
                form = (days if first > 12 else months if second > 12 else form[:5]) + form[5:]
                order += f", else with {days if form[1] == 'm' else months}" if order else ""
            return replacement(table, column, f"strptime({quote(column)}, {literal(form)})", f"reads dates of the form {form}{order}")
    if table.one(f"bool_or(regexp_full_match({word}, '[0-9]+[.][0-9]*([eE][+]?[0-9]+)?'))")[0]:
        whole = f"CAST(CAST({quote(column)} AS DECIMAL(38, 6)) * 1000000 AS BIGINT)"
        return replacement(table, column, whole, "gives whole numbers, in millionths")
    if table.one(f"count(TRY_CAST({word} AS TIMESTAMP))")[0]:
        return left_out(table, column, value)
    if not re.search(r"\d\D", str(value)) or re.match(r"\d{4}-\d\d-\d\d", str(value)):
        return ""
    return replacement(table, column, f"strptime({quote(column)}, 'FORM')", "reads dates of another FORM, such as %d.%m.%Y %H:%M")

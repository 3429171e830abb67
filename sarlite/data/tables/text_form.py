"""Layout of a text file with a table: delimiter, header, encoding and comments, found from options and first lines."""

import csv
import glob
import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sarlite.data.tables.notations import SPEC, OptionNotation
from sarlite.data.tables.sql_connection import Connection
from sarlite.errors import ConfigError, DataError, reading

ENDS = frozenset(("src", "dst", "source", "target", "destination", "from", "to", "start_id", "end_id"))
"""Common names of the columns with an edge's ends, without leading signs; a first line with two of them is a header."""
LINE_BYTES = 1 << 24
_CONTENTS = {
    b"\x1f\x8b": "compressed by gzip: its name must end in .gz", b"\x28\xb5\x2f\xfd": "compressed by zstd: its name must end in .zst",
    b"PAR1\x15": "a table of Parquet: its name must end in .parquet", b"ARROW1\0": "a table of Arrow: its name must end in .arrow",
    b"PK\x03\x04": "an archive, or a table of Excel, which pandas reads and to_parquet writes as a table",
    b"SQLite format 3": "a database of SQLite; in a TOML file database= and table= name the rows",
    **dict.fromkeys((b"<!doctype", b"<html", b"<?xml"), "HTML or XML, not a table"),
    b"version https://git-lfs": "a pointer of Git LFS: git lfs pull fetches the file"}
"""First bytes of files that are no text with a table, and what such a file is."""
_SEPARATOR = re.compile("sep=.")
_LINES = "delim='\\0', quote='', escape='', header=false, strict_mode=false, columns={'line': 'VARCHAR'}"


@dataclass(frozen=True)
class Reading:
    """A user's options for reading a table: header, words for missing values, decimal sign, and comments.

    Attributes
    ----------
    header : bool, optional
        True if the first line of text names the columns. By default the first lines decide; a doubtful case is refused.
    null : tuple of str, optional
        Words that mean a missing value, beside the empty word, nan and null. If not None, doubtful words are not refused.
    decimal : str
        "." or ",".
    comment : str, optional
        Lines of text that begin with this character are skipped.
    notation : OptionNotation
        How the user states these options, for messages.
    """

    header: bool | None = None
    null: tuple[str, ...] | None = None
    decimal: str = "."
    comment: str | None = None
    notation: OptionNotation = SPEC

    def __post_init__(self) -> None:
        if self.decimal not in (".", ","):
            raise ConfigError(f"decimal: {self.decimal!r} is neither . nor ,")
        if self.comment is not None and len(self.comment) != 1:
            raise ConfigError(f"comment: {self.comment!r} is not one character, such as #")


@dataclass(frozen=True)
class TextForm:
    """Layout of a text file, such as its delimiter and header; its methods write the SQL that reads the file.

    Attributes
    ----------
    delimiter : str or None
        None for blanks; consecutive blanks count as one.
    header : bool
        True if the first line names the columns.
    names : list of str
        Names of the columns.
    encoding : str
    comment : str or None
    """

    delimiter: str | None
    header: bool
    names: list[str]
    encoding: str
    comment: str | None

    @property
    def description(self) -> str:
        """Text about the layout for error messages: columns, delimiter and encoding."""
        parted = "parted by blanks" if self.delimiter is None else f"parted by {self.delimiter!r}"
        return f"{len(self.names)} columns, {', '.join(self.names)}, {parted}, in {self.encoding.upper()}"

    def relation(self, files: Sequence[str], kind: str = "VARCHAR") -> str:
        """Return the SQL text, for use after FROM, that reads `files` of this layout as one table. Words are read as the SQL type
        `kind`.
        """
        common = f"auto_detect=false, encoding='{self.encoding}', max_line_size={LINE_BYTES}, buffer_size={LINE_BYTES}"
        if self.delimiter is None or self.comment is not None:
            return self._split_lines(listing(files), common, kind)
        columns = ", ".join(f"{literal(name)}: '{kind}'" for name in self.names)
        skip = f"header={str(self.header).lower()}"
        return (f"read_csv({listing(files)}, {common}, delim={literal(self.delimiter)}, {skip}, quote='\"', escape='\"', "
                f"strict_mode=true, columns={{{columns}}})")

    def _split_lines(self, file_list, csv_options, sql_type):
        """Return SQL text, for use after FROM, that reads the files in `file_list`, an SQL list, with lines split at blanks or with
        comments skipped, as read_csv cannot do. Words become `sql_type`. DuckDB's own comments are not used, as they would cut a line at
        any comment character.
        """
        trimmed, n = "trim(line, e' \\t\\r')", len(self.names)
        words = f"regexp_split_to_array({trimmed}, '[ \\t]+')" if self.delimiter is None else \
            f"string_split(rtrim(line, e'\\r'), {literal(self.delimiter)})"
        condition = f"{trimmed} <> ''" + ("" if self.comment is None else f" AND NOT starts_with(line, {literal(self.comment)})")
        lines = (f"(SELECT line, {words} AS words FROM read_csv({file_list}, {csv_options}, {_LINES}) WHERE {condition}"
                 f"{' OFFSET 1' if self.header else ''})")
        quoted = "" if self.delimiter is None else (
            "WHEN contains(line, '\"') THEN error('sarlite: a quote in a file with comments, which is not read: ' || line) ")
        checked = (f"CASE {quoted}WHEN len(words) <> {n} THEN error('sarlite: ' || len(words) || ' words, expected {n}: ' || "
                   f"line) ELSE CAST(nullif(words[{{}}], '') AS {sql_type}) END AS {{}}")
        shown = ", ".join(checked.format(at, quote(name)) for at, name in enumerate(self.names, 1))
        return f"(SELECT {shown} FROM {lines})"


def text_form(connection: Connection, path: str, reading_: Reading, asked: Sequence[str], n_bytes: int) -> TextForm:
    """Return the layout of the text file `path`, of `n_bytes` bytes, from the user's options in `reading_` and the file's first
    lines. The columns `asked` must be in its header.

    Parameters
    ----------
    connection : Connection
    path : str
    reading_ : Reading
    asked : sequence of str
        Names of columns that will be read. A first line that contains one of them is a header.
    n_bytes : int
        Size of the file's text in bytes.

    Raises
    ------
    DataError
        If the lines do not show whether the first line is a header, a row or a comment.
    """
    encoding = _encoding(path)
    lines = _first_lines(connection, path, encoding)
    if any(len(line) >= LINE_BYTES for line in lines) or not lines and n_bytes >= LINE_BYTES:
        raise DataError(f"{path}: a line of {LINE_BYTES:,} characters or more")
    if reading_.comment is not None:
        lines = [line for line in lines if not line.startswith(reading_.comment)]
    if lines and _SEPARATOR.fullmatch(lines[0].strip()):
        raise DataError(f"{path}: the first line, {lines[0]!r}, tells Excel the separator and is not part of the table; delete the line")
    if reading_.header is not False:
        _refuse_preamble(path, lines, asked)
    delimiter = _delimiter(path, lines[0] if lines else "")
    rows = _rows(lines, delimiter)
    first, second = (rows[at] if at < len(rows) else [] for at in range(2))
    if reading_.header is None and reading_.comment is None and lines and lines[0].startswith(("#", "%")) and not (
            {*asked} & {*first}):
        _ask_about_comment(path, lines[0], reading_.notation)
    header = _is_header(first, second, asked) if reading_.header is None else reading_.header
    if header is None:
        remedy = reading_.notation.remedy(("header", (True, False), "says which"))
        raise DataError(f"{path}: the first line, {lines[0][:200]!r}, may be a header or a row: {remedy}")
    if header and second and all(re.fullmatch(" *:?-{2,}:? *", word) for word in second):
        raise DataError(f"{path}: the line below the header is a rule of dashes, not a row; delete the line")
    names = [word.strip() or f"Unnamed: {at}" for at, word in enumerate(first)] if header else [str(at) for at in range(len(first))]
    return TextForm(delimiter, header, names if lines else [*asked] or ["0"], encoding, reading_.comment)


def is_number(word: str) -> bool:
    """Return True if a word is a number, including nan and inf."""
    try:
        return "_" not in word and float(word.strip().replace(",", ".")) is not None
    except ValueError:
        return False


def line_end_change(path: str) -> str | None:
    """Return text about the first line of the text file `path` that ends in another way than the lines above it; None if all lines
    end alike.
    """
    if path.endswith(".zst"):
        return None
    opened = gzip.open if path.endswith(".gz") else open
    before, quoted = "", False
    with opened(path, "rt", encoding=_encoding(path), errors="replace", newline="") as file:
        for number, line in enumerate(file, 1):
            end = line[len(line.rstrip("\r\n")):]
            quoted ^= line.count('"') % 2 == 1
            if quoted or not end:
                continue
            if before and end != before:
                return f"line {number} ends in {_shown(end)}, but the lines above end in {_shown(before)}"
            before = end
    return None


def _shown(end):
    return end.replace("\r", "\\r").replace("\n", "\\n")


def _encoding(path):
    """Return the encoding of the text file `path`, "utf-8" or "utf-16". Raise a DataError if the first bytes show another encoding, or a
    file of another format.
    """
    if path.endswith(".zst"):
        return "utf-8"
    with reading(path), (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        head = file.read(64)
    for content in (what for start, what in _CONTENTS.items() if head.lower().startswith(start.lower())):
        raise DataError(f"{path}: {content}")
    if head.startswith(b"\xff\xfe") and head[2:4] != b"\0\0":
        return "utf-16"
    if 0 in head[:2] or head.startswith((b"\xff\xfe", b"\xfe\xff")):
        name = "UTF-32" if head[2:4] == b"\0\0" or head[:2] == b"\0\0" else "UTF-16BE" if head[0] in (0, 0xFE) else "UTF-16LE"
        raise DataError(f"{path}: text in {name}; iconv -f {name} -t UTF-8 converts it to UTF-8, which is read")
    return "utf-8"


def _first_lines(connection, path, encoding, n=64):
    """Return the first n lines of a text file that are not empty, without their ends."""
    rows = connection.execute(
        f"SELECT line FROM read_csv({listing([path])}, auto_detect=false, encoding='{encoding}', "
        f"max_line_size={LINE_BYTES}, buffer_size={LINE_BYTES}, {_LINES}) WHERE trim(line) <> '' LIMIT {n}").fetchall()
    return [line.rstrip("\r") for (line,) in rows]


def _delimiter(path, line):
    if ".tsv" in Path(path).suffixes or "\t" in line:
        return "\t"
    mark = next((mark for mark in ",;" if mark in line), None)
    return mark or (None if len(line.split()) > 1 else "|" if "|" in line else ",")


def _rows(lines, delimiter):
    """Return the first two rows of a text file as lists of words, split at `delimiter`, or at blanks if None; quotes may span lines."""
    if delimiter is None:
        return [line.split() for line in lines[:2]]
    rows = csv.reader((line + "\n" for line in lines), delimiter=delimiter)
    limit = csv.field_size_limit(LINE_BYTES)  # the limit is global to the process
    try:
        return [row for row, _ in zip(rows, range(2))]
    finally:
        csv.field_size_limit(limit)


def _is_header(first_row, second_row, expected_names):
    """Return True if `first_row`, the first words of a file, holds names of columns, False if it holds data, and None if that is in
    doubt. `second_row` and the `expected_names` help to decide.
    """
    words = [word.strip() for word in first_row]
    named, numbers = {*expected_names} & {*words}, [is_number(word) for word in words]
    if not all(map(is_number, named)):
        return True
    if named and named == {*expected_names}:  # numbers are the names of columns without a header, too
        return None
    if all(numbers):
        return False
    below = [is_number(word.strip()) for word in second_row]
    if not any(numbers):
        return True if any(below) or len({word.lstrip("_:#").lower() for word in words} & ENDS) > 1 else None
    return None if any(under and not number for number, under in zip(numbers, below)) else False


def _refuse_preamble(path, lines, asked):
    """Raise a DataError if the column names `asked` are not in the first of `lines`, the first lines of the file `path`, but in a later
    line.
    """
    wanted = {name for name in asked if not is_number(name)}
    for at, line in enumerate(lines if wanted else ()):
        if wanted <= {word.strip().strip('"') for word in line.split(_delimiter(path, line))}:
            if at:
                raise DataError(f"{path}: the columns are named in the line {line[:80]!r}, but the first line is {lines[0][:80]!r}; delete "
                                "the lines above the names")
            return
        if line.count('"') % 2:  # a quoted name goes on in the next line
            return


def _ask_about_comment(path, line, option_notation):
    """Raise a DataError because `line`, the first line of the file `path`, may be a comment or a header. The error message lists the
    options with which the user decides, written as `option_notation` writes options, such as in TOML or as function arguments.
    """
    if line.startswith("%%MatrixMarket"):
        raise DataError(f"{path}: the file is a MatrixMarket matrix, not a table; scipy.io.mmread reads it, and Graph.from_scipy takes "
                        "the result")
    remedy = option_notation.remedy(("comment", line[0], f"skips lines that begin with {line[0]}"),
                                    ("header", True, "reads it as a header"), ("header", False, "reads it as a row"))
    raise DataError(f"{path}: the first line, {line[:80]!r}, may be a comment: {remedy}")


def quote(name: str) -> str:
    """Return a name as an SQL identifier in quotes."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def listing(files: Sequence[str]) -> str:
    """Return file names as an SQL list of string literals. The characters *, ? and [ of a name stand for themselves."""
    return f"[{', '.join(literal(glob.escape(file)) for file in files)}]"

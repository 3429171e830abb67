"""Translation of DuckDB's error messages into messages with line, value and remedy."""

import contextlib
import csv
import re
from collections.abc import Iterator, Sequence

from sarlite.data.tables.text_form import LINE_BYTES, line_end_change
from sarlite.errors import DataError, DataErrors, import_optional, reading


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """Return a context that turns errors of DuckDB into DataErrors with plain messages that begin with `where`, the name of the source."""
    duckdb = import_optional("duckdb", where)
    try:
        with reading(where):
            yield
    except DataErrors:
        raise
    except DataError as error:
        cause = error.__cause__
        if isinstance(cause, duckdb.OutOfMemoryException):
            raise cause from None
        if isinstance(cause, duckdb.Error):
            raise DataError(f"{where}: {plain_message(str(cause))}") from cause
        raise


@contextlib.contextmanager
def line_ends_explained(files: Sequence[str]) -> Iterator[None]:
    """Return a context that turns errors of DuckDB that come from mixed line ends in one of `files` into DataErrors that name the line.

    The message names the first line where the line ends change.
    """
    try:
        yield
    except DataError as error:
        if isinstance(error.__cause__, csv.Error | import_optional("duckdb", "tables").InvalidInputException):
            for file in files:
                change = line_end_change(file)
                if change is not None:
                    raise DataError(f"{file}: {change}") from error
        raise


_COUNT = re.compile(r"Error on Line: (\d+)\s+Original Line: (.*?)\n.*?Expected Number of Columns: (\d+) Found: (\d+)", re.DOTALL)
_NOT_UTF8 = "cannot be read: it is not UTF-8; text is read in UTF-8 or UTF-16; iconv -f WINDOWS-1252 -t UTF-8 converts text of Excel"
_QUOTE = "a quote is not closed, or letters follow a closing quote; inside quotes, a quote is written twice"
_JSON = re.compile(r"JSON.*? in file .*? in (?:line|record/value) (\d+): (.*)")
_LINE = re.compile(r"Error on Line: (\d+)\s+Original Line: (.*?)\n(.*?)\n", re.DOTALL)


def plain_message(text):
    """Return a plain message, with line, value and remedy, for `text`, the message of a DuckDB error."""
    if "sarlite: " in text:
        return text.partition("sarlite: ")[2].partition("\n")[0]
    match = _COUNT.search(text)
    if match:
        line, shown, expected, n = match.groups()
        comment = "; comment=# skips lines that begin with #" if shown.startswith("#") else ""
        return f"line {line}: {n} words, expected {expected}: {shown[:200]}{comment}"
    match = _LINE.search(text)
    if match:
        line, shown, why = match.groups()
        word = re.search(r'Could not convert string "(.*?)" to', text, re.DOTALL)
        if word:
            return f"line {line}: {word[1]!r} is not a number"
        if "utf-8" in why:
            return f"line {line}: {_NOT_UTF8}"
        if "quote" in why or "unterminated quote" in text:
            return f"line {line}: {_QUOTE}: {shown[:200]}"
        return f"line {line}: {why.strip().rstrip('.')}: {shown[:200]}"
    match = _JSON.search(text)  # if the JSON is malformed, DuckDB counts one record too many
    if match:
        return f"record {int(match[1]) - ('Malformed' in text)}: no JSON that can be read: {match[2].strip().rstrip('.')}"
    if "utf-8" in text.lower() or "unicode" in text.lower():
        return _NOT_UTF8
    if "Parallel CSV Reader" in text or "line size" in text.lower():
        return f"a line of {LINE_BYTES:,} characters or more"
    if "Arrow Type" in text:
        return "a column has a type that cannot be read; convert it to numbers, words or dates first"
    if "state machine" in text:
        return "its lines end in more than one way: in \\n, \\r\\n or \\r"
    first = text.partition("\n")[0]
    return re.sub(r"^[A-Z][\w ]* Error: ", "", first).strip()

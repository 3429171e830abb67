"""Tables of named columns, read in pieces: text, Parquet, Arrow, and tables of other libraries that are in memory.

A piece of a column is its *cells*, as `cells` has them.
"""

import csv
import io
from collections.abc import Mapping
from itertools import chain, islice
from pathlib import Path

import numpy as np

from sarlite.command import suggestion
from sarlite.data import textfile
from sarlite.data.cells import TRUTHS, are_numbers, is_number
from sarlite.errors import ConfigError, DataError, needs, reading, regular

ROWS = 1 << 16
_ARROW = (".parquet", ".arrow", ".feather", ".ipc")
ENDS = frozenset(("src", "dst", "source", "target", "destination", "from", "to"))


class Table:
    """A table of named columns.

    Attributes
    ----------
    where : str
        What messages name.
    names : list of str
        The columns', in their order.
    typed : bool
        Whether the table itself says which columns are numbers. Of text the words do.
    """

    typed = True

    def __init__(self, where, names):
        self.where, self.names = str(where), [str(name) for name in names]
        twice = next((name for at, name in enumerate(self.names) if name in self.names[:at]), None)
        if twice is not None:
            raise DataError(f"{where}: two columns are named {twice!r}")

    def pieces(self, columns):
        """Yield the cells of some columns, a list of them for some ten thousand rows, at least once."""
        for column in columns:
            if column not in self.names:
                raise DataError(f"{self.where}: no column {column!r}: there are {', '.join(self.names)}"
                                f"{suggestion(column, self.names)}")
        found = False
        with reading(self.where):
            for cells in self._pieces([self.names.index(column) for column in columns], ROWS):
                found = True
                yield cells
        if not found:
            yield [np.empty(0) if self.typed else [] for _ in columns]

    def first(self, columns):
        """Return the first cells of some columns."""
        pieces = self.pieces(columns)
        try:
            return next(pieces)
        finally:
            pieces.close()

    def numeric(self, columns):
        """Return the columns, among some, whose first cells are numbers, or true and false."""
        if not columns:
            return []
        cells = map(self._first_or_words, columns) if self.typed else self.first(columns)
        return [name for name, found in zip(columns, cells) if are_numbers(found, TRUTHS)]

    def _first_or_words(self, column):
        try:
            return self.first([column])[0]
        except DataError:  # dates, say
            return ["?"]


def table(source, header=None, asked=(), where="table"):
    """Return the `Table` of a file, or of a table in memory.

    Parameters
    ----------
    source : path, or table
        A file: .parquet, .arrow, .feather, .ipc (which pyarrow reads), else text in UTF-8, ending in .gz where it is
        compressed, parted by tabs, commas, semicolons or blanks. Or a dict of arrays, a table of pandas, polars or
        pyarrow, or any other with `__arrow_c_stream__` or `__dataframe__` (by pyarrow).
    header : bool, optional
        Whether the first line of text names the columns; without a header columns are named 0, 1, ... By default the
        line itself decides: it is a header if it has a column that is asked for; or if all its words begin with a
        letter, and numbers stand below or two of the words are such as source and target.
    asked : sequence of str
        Columns that will be asked for.
    where : str
        For messages, of a table in memory.

    Raises
    ------
    DataError
        No such file; whether the first line is a header cannot be told.
    """
    if not isinstance(source, str | Path):
        return _Frame.of(source, where)
    if not Path(source).exists():
        raise DataError(f"{source}: no such file")
    with reading(source):
        return _Arrow(source) if Path(source).suffix in _ARROW else _Text(source, header, asked)


class _Text(Table):
    typed = False

    def __init__(self, path, header, asked):
        self._path = Path(path)
        with textfile.opened(self._path) as file:
            rows = self._rows(self._from_first(file))
            first, second = ([word.strip() for word in next(rows, [])] for _ in range(2))
        self._header = _is_header(path, first, second, asked) if header is None else header
        super().__init__(path, first if self._header else range(len(first)))

    def _pieces(self, columns, n_rows):
        held = [[] for _ in columns]
        for found in self._parsed(columns):
            for cells, more in zip(held, found):
                cells += more
            whole = len(held[0]) // n_rows * n_rows
            yield from ([cells[at : at + n_rows] for cells in held] for at in range(0, whole, n_rows))
            held = [cells[whole:] for cells in held]
        if held[0]:
            yield held

    def _parsed(self, columns):
        """Yield some columns of lines that stand together: split at once where all look alike."""
        width, at = len(self.names), 0
        with textfile.opened(self._path) as file:
            lines = self._from_first(file)
            first = "" if self._header else next(lines)
            if self._header:
                next(self._rows(lines), None)
            for block in textfile.blocks(file, first):
                words = _split(block, self._delimiter, width) if self._delimiter and width > 1 else None
                if words is not None:
                    at += len(words) // width
                    yield [words[column::width] for column in columns]
                    continue
                further = textfile.lines(file) if '"' in block else ()  # a word in quotes may go on in the next block
                rows = self._rows(chain(io.StringIO(block), further), width)
                while found := list(islice(rows, ROWS)):
                    self._check(found, width, at)
                    at += len(found)
                    cells = list(zip(*found))
                    yield [cells[column] for column in columns]

    def _check(self, rows, width, at):
        if any(map(width.__ne__, map(len, rows))):
            row, odd = next((row, odd) for row, odd in enumerate(rows, at) if len(odd) != width)
            raise DataError(f"{self.where}: row {row}: {len(odd)} words, expected {width}: {', '.join(odd[:9])}")

    def _from_first(self, file):
        """Return the lines from the first that is neither empty nor begins with #; this line shows the delimiter."""
        lines = textfile.lines(file)
        first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
        tab = self._path.suffixes[:1] == [".tsv"] or "\t" in first
        self._delimiter = "\t" if tab else next((mark for mark in ",;" if mark in first), None)
        return chain([first], lines)

    def _rows(self, lines, width=None):
        """Yield the words of each line that is not empty and, where blanks part the words, does not begin with #."""
        if self._delimiter:
            rows = csv.reader(lines, delimiter=self._delimiter, strict=True)
            yield from (row for row in rows if row and (len(row) > 1 or row[0] or width == 1))
        else:
            yield from (line.split() for line in lines if line.strip() and not line.startswith("#"))


def _split(block, delimiter, width):
    """The words of whole lines, line after line; None unless all lines have as many delimiters, and quotes around the
    same whole words.
    """
    block = block if block.endswith("\n") else block + "\n"
    characters = np.frombuffer(block.encode(), np.uint8)
    quote, end = ord('"'), ord("\n")
    at = np.flatnonzero((characters == ord(delimiter)) | (characters == end) | (characters == quote))
    marks = characters[at]
    line = marks[: int(np.argmax(marks == end)) + 1]
    alike = marks.size % line.size == 0 and (marks.reshape(-1, line.size) == line).all()
    if not alike or np.count_nonzero(line != quote) != width:
        return None
    quotes = np.flatnonzero(marks == quote)
    if quotes.size:  # in pairs, each between two marks that are no quotes
        before, marked = np.concatenate(([-1], at)), np.concatenate(([end], marks))
        first, last = quotes[::2], quotes[1::2]
        if (first.size != last.size or (last != first + 1).any() or (marked[first] == quote).any()
                or (before[first] + 1 != at[first]).any() or (at[last] + 1 != at[last + 1]).any()):
            return None
    return block[:-1].replace('"', "").replace("\n", delimiter).split(delimiter)


def _is_header(path, first, second, asked):
    if set(asked) & set(first):
        return True
    names = len(first) > 1 and all(word[:1].isalpha() and not is_number(word) for word in first)
    if not names or any(map(is_number, second)) or len({word.lower() for word in first} & ENDS) > 1:
        return names
    raise DataError(f"{path}: the first line, {','.join(first)!r}, may be a header or a row: header=true or "
                    "header=false says which")


class _Arrow(Table):
    """A Parquet file, or one of Arrow's own format, as `batches(columns, n_rows)` gives pyarrow's record batches."""

    def __init__(self, path):
        self._path = regular(path)
        with self._path.open("rb") as file:
            super().__init__(path, self._schema(file).names)

    def _schema(self, file):
        if self._path.suffix == ".parquet":
            return needs("pyarrow.parquet", str(self._path)).read_schema(file)
        return _ipc(file, self._path).schema

    def _pieces(self, columns, n_rows):
        names = [self.names[column] for column in columns]
        with self._path.open("rb") as file:
            if self._path.suffix == ".parquet":
                archive = needs("pyarrow.parquet", self.where).ParquetFile(file)
                batches = archive.iter_batches(batch_size=n_rows, columns=list(dict.fromkeys(names)))
            else:
                batches = _batches(_ipc(file, self._path))
            for batch in batches:
                yield [_of_arrow(self.where, name, batch.column(name)) for name in names]


def _ipc(file, path):
    """A reader of Arrow's file format (also of Feather), or of its streams."""
    ipc, magic = needs("pyarrow.ipc", str(path)), file.read(6)
    file.seek(0)
    return ipc.open_file(file) if magic == b"ARROW1" else ipc.open_stream(file)


def _batches(reader):
    if hasattr(reader, "num_record_batches"):
        return (reader.get_batch(at) for at in range(reader.num_record_batches))
    return iter(reader)


def _of_arrow(where, name, column):
    """The cells of a pyarrow array."""
    kind, size = str(column.type), getattr(column.type, "list_size", None)
    if kind.startswith(("dictionary", "string", "large_string", "string_view")):
        return column.to_pylist()
    if size or kind.startswith(("list<", "large_list<")):
        lengths = {len(row) for row in column.to_pylist() if row is not None} if not size else {size}
        if column.null_count or len(lengths) > 1:
            raise DataError(f"{where}: column {name!r}: lists of one length are needed in every row, found "
                            f"{'a null' if column.null_count else sorted(lengths)[:3]}")
        return _of_arrow(where, name, column.flatten()).reshape(len(column), *lengths or {1})
    if not kind.startswith(("int", "uint", "float", "double", "half", "bool", "null")):
        return _other(where, name, kind)
    return _cells(where, name, np.asarray(column.to_numpy(zero_copy_only=False)))


class _Frame(Table):
    """Columns in memory."""

    def __init__(self, where, columns):
        super().__init__(where, columns)
        self._columns, self._made = list(columns.values()), {}
        lengths = {name: len(column) for name, column in columns.items()}
        if len({*lengths.values()}) > 1:
            raise DataError(f"{where}: columns of different lengths: {lengths}")

    @classmethod
    def of(cls, found, where):
        """Return the table of what `table` takes in memory."""
        with reading(where):
            if isinstance(found, Mapping):
                columns = {name: _array(column) for name, column in found.items()}
            elif hasattr(found, "columns") and hasattr(found, "__getitem__") and not hasattr(found, "to_batches"):
                columns = {name: found[name].to_numpy() for name in found.columns}
            else:
                arrow = _arrow_table(found, where)
                columns = dict(zip(arrow.column_names, (column.combine_chunks() for column in arrow.columns)))
        return cls(where, {str(name): column for name, column in columns.items()})

    def _pieces(self, columns, n_rows):
        for at in range(0, len(self._columns[0]) if self._columns else 0, n_rows):
            yield [self._whole(column)[at : at + n_rows] for column in columns]

    def _whole(self, column):
        """The cells of a whole column, made once: a piece alone may not show the kind of the cells."""
        if column not in self._made:
            found = self._columns[column]
            cells = _cells if isinstance(found, np.ndarray) else _of_arrow
            self._made[column] = cells(self.where, self.names[column], found)
        return self._made[column]


def _array(column):
    """A column of a dict: of words None is kept, which NumPy would make the word None."""
    if hasattr(column, "__array__"):
        return np.asarray(column)
    column = list(column)
    return np.array(column, object) if any(isinstance(value, str) for value in column) else np.asarray(column)


def _arrow_table(found, where):
    if hasattr(found, "to_batches"):
        return found
    if hasattr(found, "__arrow_c_stream__"):
        return needs("pyarrow", where).table(found)
    if hasattr(found, "__dataframe__"):
        return needs("pyarrow.interchange", where).from_dataframe(found)
    raise ConfigError(f"{where}: {type(found).__name__} is no table: a dict of arrays, a table of pandas, polars or "
                      "pyarrow, or what has __arrow_c_stream__ or __dataframe__")


def _cells(where, name, values):
    """The cells of a NumPy array."""
    if values.dtype.kind in "biuf" and values.ndim in (1, 2):
        return values
    if values.ndim != 1 or values.dtype.kind not in "OUT":
        return _other(where, name, values.dtype)
    values = [None if _none(value) else value for value in values.tolist()]
    if any(isinstance(value, str) for value in values):
        if all(value is None or isinstance(value, str | int) for value in values):
            return [None if value is None else str(value) for value in values]
    elif all(value is None or isinstance(value, int | float) for value in values):
        whole = all(isinstance(value, int) for value in values)
        return np.array([np.nan if value is None else value for value in values], None if whole else np.float64)
    elif all(isinstance(value, list | tuple | np.ndarray) for value in values):
        return _cells(where, name, np.array([np.asarray(value) for value in values]))
    return _other(where, name, "several kinds")


def _none(value):
    nan = isinstance(value, float) and value != value
    return nan or value is None or type(value).__name__ in ("NAType", "NaTType")


def _other(where, name, kind):
    raise DataError(f"{where}: column {name!r} is of {kind}, neither numbers nor words; convert "
                    "the column first")

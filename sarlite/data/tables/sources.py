"""Sources of tables (files, objects in memory, SQL queries and databases), each read into a table of DuckDB.

DuckDB's own detection of types and formats is not used: text is read as words, in the form that the options or the first
lines give.
"""

import contextlib
import glob
import gzip
import importlib
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from sarlite.command import suggestion
from sarlite.data.tables.duckdb_errors import explained, line_ends_explained, plain_message
from sarlite.data.tables.memory_tables import Named, Pieces, arrow_reader, check_parquet, columns_of, npy_columns, parquet_reader
from sarlite.data.tables.sql_connection import Cells, Connection
from sarlite.data.tables.text_form import Reading, listing, literal, quote, text_form
from sarlite.errors import ConfigError, DataError, import_optional, raise_all, reading, regular
from sarlite.types import Path as AnyPath

ARROW = (".arrow", ".feather", ".ipc")
JSON = (".json", ".jsonl", ".ndjson")
SQLITE = (".sqlite", ".sqlite3", ".db")
_PACKED = "text may be compressed as .gz or .zst; unpack the file first"
_OTHERS = {**dict.fromkeys((".bz2", ".xz", ".zip", ".7z", ".tar", ".tgz"), _PACKED),
           **dict.fromkeys((".xlsx", ".xls", ".pkl", ".pickle", ".h5", ".hdf5", ".sas7bdat", ".dta"),
                           "no table that is read; pandas reads the file, and to_parquet writes a table"),
           **dict.fromkeys((".graphml", ".gexf", ".gml", ".net"),
                           "a graph, not a table; networkx reads the file, and to_pandas_edgelist makes a table of edges")}
_VECTOR = re.compile(r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|BOOLEAN)\[\d*\]$")
_UNNAMED = re.compile(r"Unnamed: \d+|__index_level_\d+__")
_NUMBERS = itertools.count()
_ROWS = 1 << 16
_CELLS = 1 << 22  # most cells that are read at a time
_LEAST = 96 << 20  # smallest memory limit in bytes that DuckDB works with
_LIBRARIES = 144 << 20  # bytes that DuckDB and pyarrow take beside DuckDB's limit
_OVERSHOOT = 1.3  # largest measured ratio of DuckDB's resident memory to its limit, while 10^7 words are numbered
_PER_THREAD = 256 << 20
_WORDS_OF_JSON = ("DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "UUID")
_WHOLE = frozenset(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"))


class Query(NamedTuple):
    """Source of a table: the result of an SQL query, run by DuckDB or in the user's SQLite or PostgreSQL database.

    Attributes
    ----------
    sql : str
        A single SELECT statement.
    database : str, optional
        A file of SQLite or the URL of a PostgreSQL server; by default DuckDB reads the files that the query names.
    folder : path, optional
        Folder that relative paths in the query start from.
    """

    sql: str
    database: str | None = None
    folder: AnyPath | None = None


@dataclass
class Table:
    """Columns of a source, held in the DuckDB table `name`; its `rowid` is the row number in the source, from 0.

    Attributes
    ----------
    connection : Connection
    name : str
    where : str
        Name of the source in messages.
    types : dict of str to str
        Kind of each column that is held: "whole", "float", "bool", "word", "date", "vector" (a list of
        numbers), "list" or "other".
    typed : bool
        True if the source has types of columns. Text has none: all its columns are words.
    columns : list of str
        All columns of the source, including columns that are not held.
    reading : Reading
        The user's options for reading words.
    n_rows : int
    """

    connection: Connection
    name: str
    where: str
    types: dict[str, str]
    typed: bool
    columns: list[str]
    reading: Reading = field(default_factory=Reading)
    n_rows: int = 0

    @property
    def has_header(self) -> bool:
        """True if the source is text whose first line names the columns."""
        return not self.typed and self.columns != [str(at) for at in range(len(self.columns))]

    def value(self, expression: str, row: int) -> Any:
        """Return the value of an SQL expression over the columns in the row with number `row`."""
        return self.connection.execute(f"SELECT {expression} FROM {self.name} WHERE rowid = {row}").fetchone()[0]

    def one(self, *expressions: str, condition: str = "true") -> tuple[Any, ...]:
        """Return the values of SQL aggregates, such as "count(*)", over the rows that meet the SQL `condition`, as a tuple."""
        sql = f"SELECT {', '.join(expressions)} FROM {self.name} WHERE {condition}"
        return tuple(self.connection.execute(sql).fetchone())

    def batches(self, *expressions: str) -> Iterator[list[Cells]]:
        """Yield the values of SQL expressions as lists of pyarrow arrays, in row order, at most 65,536 rows at a time."""
        sql = f"SELECT {', '.join(f'{text} AS c{at}' for at, text in enumerate(expressions))} FROM {self.name}"
        yield from batches(self.connection, sql, len(expressions))


def batches(connection: Connection, sql: str, n_columns: int = 1) -> Iterator[list[Cells]]:
    """Yield lists of pyarrow arrays, one array per column, with the rows of the result of the query `sql` in order: at most 65,536
    at a time, fewer if `n_columns` is large.
    """
    for batch in connection.execute(sql).to_arrow_reader(max(2048, min(_ROWS, _CELLS // n_columns))):
        yield batch.columns


@contextlib.contextmanager
def connect(folder: AnyPath | None = None, n_bytes: int | None = None) -> Iterator[Connection]:
    """Yield a private connection to DuckDB, which is closed at the end of the context. Data beyond `n_bytes` of memory (None: four
    fifths of the machine's) go to files in `folder`; None for `folder` writes no files.

    Parameters
    ----------
    folder : path, optional
        Private folder for data that do not fit into memory. Without it nothing is written.
    n_bytes : int, optional
        Memory limit of DuckDB in bytes; by default four fifths of the machine's memory.
    """
    duckdb = import_optional("duckdb", "tables")
    import_optional("pyarrow", "tables")
    options = {"autoinstall_known_extensions": "false", "temp_directory": "" if folder is None else str(folder),
               "default_order": "asc", "preserve_insertion_order": "true"}
    threads = len(os.sched_getaffinity(0))
    if n_bytes is not None:
        options["memory_limit"] = f"{max(int((n_bytes - _LIBRARIES) / _OVERSHOOT), _LEAST) >> 10}KiB"
        threads = max(1, min(threads, n_bytes // _PER_THREAD))
    connection = duckdb.connect(":memory:", config={**options, "threads": str(threads)})
    try:
        with contextlib.suppress(duckdb.InvalidInputException):  # in a notebook without ipywidgets there is no bar to set
            connection.execute("SET enable_progress_bar = false")
        yield connection
    except duckdb.OutOfMemoryException as error:
        raise ConfigError("--memory: too little for these tables; give more, or leave the option out") from error
    finally:
        connection.close()


def read(connection: Connection, source: object, reading_: Reading, required: Sequence[str | None], where: str,
         choose_columns: Callable[[list[str]], list[str]] | None = None) -> Table:
    """Read columns of `source`, such as a file or a query, into DuckDB and return them as a Table. `reading_` has options for text files,
    such as header. The columns in `required` must exist; they are read unless `choose_columns(all names)` selects others. Messages name the
    source's file, or `where` for a source without a file.

    Parameters
    ----------
    connection : Connection
    source : path, Query, Pieces or table
        A file or a glob, whose ending gives the format: Parquet, Arrow, JSON lines, .npy, or else text, compressed if it
        ends in .gz or .zst. A table in memory is a dict of arrays, a table of pandas, polars or pyarrow, or an object with
        `__arrow_c_stream__`.
    reading_ : Reading
    required : sequence of str or None
        Columns that the user names; None is ignored.
    where : str
        Name of a source that is no file, in messages.
    choose_columns : callable, optional
        hold(names) returns the columns to hold; by default the columns of `required`.

    Raises
    ------
    DataError
        If the source cannot be read, two columns have one name, or a column is missing.
    """
    where = str(source) if isinstance(source, str | Path) else source.where if isinstance(source, Pieces | Named) else where
    needed = list(dict.fromkeys(name for name in required if name is not None))

    def choose(names):
        _check_names(where, names)
        index = getattr(getattr(source, "index", None), "name", None)  # of pandas
        raise_all([DataError(f"{where}: no column {name!r}: there are {', '.join(names) or 'none'}{suggestion(name, names)}"
                             + ("; the index has this name, and reset_index() makes a column of it" if name == index else ""))
                   for name in needed if name not in names])
        wanted = needed if choose_columns is None else choose_columns(names)
        reserved = next((name for name in wanted if name.lower() == "rowid"), None)
        if reserved is not None:
            raise DataError(f"{where}: column {reserved!r} has a reserved name; rename it")
        return wanted

    with contextlib.ExitStack() as exit_stack, explained(where):
        if (columns := columns_of(source)) is not None:  # columns without a use may hold anything, so they are not converted
            names, wanted = [name for name, _ in columns], choose([name for name, _ in columns])
            chosen = {name: column for name, column in columns if name in wanted or not wanted}
            relation, _, typed = _registered(connection, arrow_reader(chosen, where), exit_stack)
        else:
            relation, names, typed = _relation(connection, source, reading_, needed, where, exit_stack)
            wanted = choose(names)
        table = new_name("t")
        shown = ", ".join(map(quote, wanted)) or "1 AS nothing"
        connection.execute(f"CREATE TEMP TABLE {table} AS SELECT {shown} FROM {relation}")
        types = {name: str(type_) for name, type_, *_ in connection.execute(f"DESCRIBE {table}").fetchall()}
        mixed = [name for name, type_ in types.items() if type_ == "JSON"]
        counted = ["count(*)", *(f"count({quote(name)})" for name in mixed)]
        n_rows, *counts = connection.execute(f"SELECT {', '.join(counted)} FROM {table}").fetchone()
        raise_all([DataError(f"{where}: column {name!r}: values of several kinds; query = '''SELECT * REPLACE ({quote(name)} ->> '$' AS "
                             f"{quote(name)}) FROM {literal(where)} ''' in a TOML file, in place of file, reads them as words")
                   for name, n in zip(mixed, counts) if n])
        for name in (name for name, type_ in types.items() if type_ in ("UUID", "JSON")):
            connection.execute(f"ALTER TABLE {table} ALTER {quote(name)} TYPE VARCHAR")
        kinds = {name: kind_of(type_) for name, type_ in types.items()}
    return Table(connection, table, where, kinds, typed, names, reading_, n_rows)


def new_name(start: str) -> str:
    """Return a name of a temporary DuckDB table or view that begins with `start` and that no other table has."""
    return f"temp.main.{start}{next(_NUMBERS)}"


def kind_of(type_: object) -> str:
    """Return the kind of values of `type_`, a DuckDB type: "whole", "float", "bool", "word", "date", "vector", "list" or "other"."""
    name = str(type_)
    if name.endswith("]"):
        return "vector" if _VECTOR.match(name) else "list"
    if name in _WHOLE:
        return "whole"
    if name in ("FLOAT", "DOUBLE") or name.startswith("DECIMAL"):
        return "float"
    if name.startswith(("DATE", "TIMESTAMP")):
        return "date"
    return {"BOOLEAN": "bool", "VARCHAR": "word", "UUID": "word", '"NULL"': "float"}.get(
        name, "word" if name.startswith("ENUM") else "other")


def unnamed(name: str) -> bool:
    """Return True if a column has the name that pandas writes for an index without a name, such as "Unnamed: 0"."""
    return _UNNAMED.fullmatch(name) is not None


def _check_names(source_name, names):
    """Raise a DataError if two columns have the same name, or names that differ only in capitals."""
    folded: dict[str, str] = {}
    for at, name in enumerate(names):
        other = folded.setdefault(name.lower(), name)
        if len(folded) <= at:
            raise DataError(f"{source_name}: two columns are named {name!r}" if other == name else
                            f"{source_name}: columns {other!r} and {name!r} differ only in capitals; rename one of them")


def _relation(connection, source, reading_options, required_columns, source_name, exit_stack):
    """Make `source`, a file, query or table in memory, readable by DuckDB until `exit_stack` closes. Return (SQL text for use after FROM,
    names of all columns, False if all columns are words as in text files, else True).
    """
    if isinstance(source, Query):
        exit_stack.callback(connection.execute, "USE memory")
        return _of_query(connection, source, source_name)
    if not isinstance(source, str | Path):
        return _registered(connection, arrow_reader(source, source_name), exit_stack)
    path = str(source)
    files = [_utf8_path(name, exit_stack) for name in _files(path)]
    suffix, inner = Path(files[0]).suffix.lower(), Path(files[0]).with_suffix("").suffix.lower()
    sizes = [text_bytes(name) for name in files]  # raises for a damaged compressed file
    suffix = inner if suffix in (".gz", ".zst") and inner in JSON else suffix
    if suffix == ".npy":
        return _registered(connection, arrow_reader(npy_columns(path), source_name), exit_stack)
    if suffix in ARROW:
        return _registered(connection, exit_stack.enter_context(_ipc(path)), exit_stack)
    if suffix in SQLITE:
        raise ConfigError(f"{path}: a database; in a TOML file database={path!r} and table= or query= name the rows")
    listed = listing(files)
    if suffix == ".parquet":
        check_parquet(files)
        converted = parquet_reader(files)
        if converted is not None:
            return _registered(connection, converted, exit_stack)
        return _described(connection, f"read_parquet({listed}, union_by_name = true)")
    if suffix in JSON:
        return _json(connection, path, listed, required_columns)
    if suffix in _OTHERS:
        raise DataError(f"{path}: {_OTHERS[suffix]}")
    exit_stack.enter_context(line_ends_explained(files))
    form = text_form(connection, files[0], reading_options, required_columns, sizes[0])
    for file, size in zip(files[1:], sizes[1:]):
        other = text_form(connection, file, replace(reading_options, header=form.header), required_columns, size)
        if size and other != form:
            joined = f"SELECT * FROM read_csv({literal(path)}, all_varchar = true, union_by_name = true)"
            raise DataError(f"{file}: {other.description}, but {files[0]}: {form.description}; the files of a glob have one form; query = "
                            f"'''{joined}''' in a TOML file, in place of file, joins columns of one name")
    return form.relation(files), form.names, False


def _json(connection, path, file_list, required_columns):
    """Return (SQL text for use after FROM, names of all columns, True) for JSON files, whose names are in `file_list`, an SQL list; True
    says that the columns have types. Dates and UUIDs are read as words. Raise a DataError if `required_columns` are inside a nested list.
    """
    rows = connection.execute(f"DESCRIBE SELECT * FROM read_json({file_list}, format='auto', sample_size=-1)").fetchall()
    types = {name: "VARCHAR" if type_ in _WORDS_OF_JSON else type_ for name, type_, *_ in rows}
    lists = [name for name, type_ in types.items() if type_.startswith("STRUCT") and type_.endswith("[]")]
    if lists and not {*required_columns} <= {*types}:
        nested = next((one for one in lists if all(f"{name} " in types[one].replace('"', "") for name in required_columns)), lists[0])
        rows = f"SELECT unnest({quote(nested)}, recursive := true) FROM {literal(path)}"
        raise DataError(f"{path}: the rows are a list in {nested!r}; query = '''{rows} ''' in a TOML file, in place of file, reads them")
    if [*types] == ["json"]:
        raise DataError(f"{path}: no objects with keys, which are the names of columns")
    columns = ", ".join(f"{literal(name)}: {literal(type_)}" for name, type_ in types.items())
    return f"read_json({file_list}, format='auto', columns={{{columns}}})", [*types], True


def _files(path):
    """Return the files that a path or a glob pattern matches; raise a DataError if there are none."""
    if os.path.isdir(path):
        raise DataError(f"{path}: a folder; a glob such as {_glob_of(path)} names its files")
    paths = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
    if not paths:
        raise DataError(f"{path}: no such file")
    return [str(regular(name)) for name in paths]


def _glob_of(folder):
    """Return a glob, for a message, that matches the tables in a folder or its subfolders, as Spark writes them."""
    patterns = [os.path.join(folder, below, f"*{suffix}") for below in ("", "**") for suffix in (".parquet", *ARROW, *JSON, ".csv", ".tsv")]
    return next((pattern for pattern in patterns if glob.glob(pattern, recursive=True)), patterns[0])


def _utf8_path(path, exit_stack):
    """Return a path that DuckDB accepts: `path`, or a link in a temporary folder if `path` is not UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        link = Path(exit_stack.enter_context(tempfile.TemporaryDirectory()), f"table{''.join(Path(path).suffixes)}")
        link.symlink_to(os.path.abspath(path))
        return str(link)
    return path


def text_bytes(path: str) -> int:
    """Return the size of a file's text in bytes, decompressed; raise a DataError for a damaged compressed file."""
    suffix, size = Path(path).suffix, 0
    if suffix not in (".gz", ".zst"):
        return os.path.getsize(path)
    with reading(path), contextlib.ExitStack() as held:
        if suffix == ".gz":
            file = held.enter_context(gzip.open(path))
        else:
            arrow = import_optional("pyarrow", path)
            file = held.enter_context(arrow.CompressedInputStream(held.enter_context(arrow.OSFile(path)), "zstd"))
        while data := file.read(1 << 20):
            size += len(data)
    return size


def _described(connection, relation):
    """Return (`relation`, names of its columns, True), where True says that the columns have types. `relation` is SQL text for use after
    FROM.
    """
    rows = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    return relation, [name for name, *_ in rows], True


def _registered(connection, reader, exit_stack):
    """Make `reader`, of record batches, readable by SQL until `exit_stack` closes. Return (name of the reader in SQL, names of the columns,
    True), where True says that the columns have types.
    """
    names = list(reader.schema.names)
    name = f"given_{id(reader)}"
    if len({word.lower() for word in names}) == len(names) > 0:  # equal names are refused later; DuckDB would rename them here
        connection.register(name, reader)
        exit_stack.callback(connection.unregister, name)
    return name, names, True


def _of_query(connection, query, source_name):
    """Return (SQL text for use after FROM, names of all columns, True) for `query`, a Query; True says that the columns have types. Raise a
    ConfigError unless the query is a single SELECT statement.
    """
    statements = connection.extract_statements(query.sql)
    if len(statements) != 1 or not str(statements[0].type).endswith("SELECT"):
        raise ConfigError(f"{source_name}: query: expected one SELECT statement")
    if query.folder is not None:
        connection.execute(f"SET file_search_path = {literal(str(query.folder))}")
    if query.database:
        _attach(connection, query, source_name)
    return _described(connection, f"({query.sql.rstrip().rstrip(';')}\n)")  # the last line may end in a comment


def _attach(connection, query, source_name):
    """Attach the SQLite or PostgreSQL database of `query` to DuckDB, so that the query can read its tables."""
    postgres = query.database.startswith(("postgres://", "postgresql://"))
    kind = "postgres" if postgres else "sqlite"
    if not postgres and not os.path.exists(query.database):
        raise DataError(f"{query.database}: no such file")
    module = import_optional(f"duckdb_extension_{kind}_scanner", f"{source_name}: a database of {kind}")
    version = f"v{importlib.import_module('duckdb').__version__}"
    file = Path(module.__file__).parent / "extensions" / version / f"{kind}_scanner.duckdb_extension"
    if not file.exists():
        raise ConfigError(f"{source_name}: the package duckdb-extension-{kind}-scanner is not for DuckDB {version}; "
                          "pip install 'sarlite[databases]' installs matching versions")
    connection.execute(f"LOAD {literal(str(file))}")
    name = f"base_{abs(hash(query.database))}"
    try:
        connection.execute(f"ATTACH IF NOT EXISTS {literal(query.database)} AS {name} (TYPE {kind}, READ_ONLY)")
    except Exception as error:
        shown = re.sub(r"//[^@/]*@", "//", query.database)  # without a password
        raise DataError(f"{source_name}: database {shown}: {plain_message(str(error))}") from None
    connection.execute(f"USE {name}")


@contextlib.contextmanager
def _ipc(path):
    """Yield a record batch reader over an Arrow file (also called Feather) or an Arrow stream."""
    arrow, ipc = import_optional("pyarrow", path), import_optional("pyarrow.ipc", path)
    with reading(path), arrow.memory_map(path) as file:
        magic = file.read(6)
        file.seek(0)
        if magic != b"ARROW1":
            yield ipc.open_stream(file)
            return
        content = ipc.open_file(file)
        yield arrow.RecordBatchReader.from_batches(content.schema, (content.get_batch(at) for at in range(content.num_record_batches)))

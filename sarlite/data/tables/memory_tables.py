"""Conversion of tables in memory to pyarrow: dicts of arrays, tables of pandas, polars and pyarrow, and .npy files."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sarlite.data import npyfile
from sarlite.errors import ConfigError, DataError, import_optional, reading
from sarlite.types import Array

Column: TypeAlias = Array | Sequence[object]


class Pieces(NamedTuple):
    """Table that arrives in pieces: an iterable of dicts {column: array}, each with the next rows of the table.

    Attributes
    ----------
    where : str
        Name of the source in messages.
    pieces : iterable of dict of str to array
        At least one piece. All pieces have the same columns and dtypes.
    """

    where: str
    pieces: Iterable[Mapping[str, Column]]


class Named(dict[str, Column]):
    """Dict of columns that were read from a file; the attribute `where` names the file."""

    def __init__(self, where: str, columns: Mapping[str, Column]) -> None:
        super().__init__(columns)
        self.where = where


def columns_of(source: Any) -> list[tuple[str, Column]] | None:
    """Return a list of (name, column) of `source`, a dict of arrays or a pandas table; None for any other source."""
    if isinstance(source, Mapping):
        named = [*source.items()]
    elif hasattr(source, "iloc") and hasattr(source, "columns"):
        named = [(name, source.iloc[:, at]) for at, name in enumerate(source.columns)]
    else:
        return None
    return [(str(name) or f"Unnamed: {at}", column) for at, (name, column) in enumerate(named)]


def arrow_reader(source: Any, where: str) -> Any:
    """Return a pyarrow reader of record batches over `source`, a table in memory. Types that DuckDB reads wrongly are cast;
    messages call the table `where`.

    Nulls, masked values and missing values become nulls.

    Parameters
    ----------
    source : Pieces, dict of arrays, or table
        A table of pandas, polars or pyarrow, or an object with `__arrow_c_stream__` or `__dataframe__`.
    where : str
        Name of the source in messages.

    Raises
    ------
    ConfigError
        If the source is no table.
    DataError
        If columns differ in length, or a column has values of several kinds.
    """
    return _full_width(import_optional("pyarrow", where), _reader(source, where))


def _reader(source, source_name):
    """Return a pyarrow record batch reader over `source`, a table in memory, without the conversion of types that `arrow_reader` adds."""
    arrow = import_optional("pyarrow", source_name)
    if isinstance(source, Pieces):
        pieces = iter(source.pieces)
        first = _arrow_columns(next(pieces).items(), source_name)
        rest = (_arrow_columns(piece.items(), source_name).cast(first.schema).to_batches() for piece in pieces)
        return arrow.RecordBatchReader.from_batches(first.schema, (batch for batches in (first.to_batches(), *rest) for batch in batches))
    if isinstance(source, Mapping):
        return _arrow_columns(source.items(), source_name).to_reader()
    if hasattr(source, "to_batches") and hasattr(source, "schema"):
        return source.to_reader() if hasattr(source, "to_reader") else source
    with reading(source_name):
        if hasattr(source, "__arrow_c_stream__"):
            return _stream(arrow, source, source_name)
        if hasattr(source, "__dataframe__"):
            return import_optional("pyarrow.interchange", source_name).from_dataframe(source).to_reader()
    more = "; collect() makes a table of it" if hasattr(source, "collect") else ""
    raise ConfigError(f"{source_name}: {type(source).__name__} is not a table{more}; a table is a dict of arrays, a table of pandas, "
                      "polars or pyarrow, or an object with __arrow_c_stream__ or __dataframe__")


def _arrow_columns(columns, table_name):
    """Return a pyarrow table of (name, column) pairs in memory."""
    arrow = import_optional("pyarrow", table_name)
    columns = [(str(name), column) for name, column in columns]
    arrays = [_arrow_array(arrow, column, f"{table_name}: column {name!r}") for name, column in columns]
    lengths = {name: len(array) for (name, _), array in zip(columns, arrays)}
    if len({*lengths.values()}) > 1:
        raise DataError(f"{table_name}: columns of different lengths: {lengths}")
    return arrow.Table.from_arrays(arrays, [name or f"Unnamed: {at}" for at, (name, _) in enumerate(columns)])


def _stream(arrow, source, source_name):
    """Return a reader of record batches over `source`, an object with `__arrow_c_stream__`; `arrow` is the module pyarrow."""
    try:
        return arrow.RecordBatchReader.from_stream(source)
    except arrow.ArrowInvalid as error:
        raise ConfigError(f"{source_name}: {type(source).__name__} is not a table with columns that pyarrow reads: {error}") from error


def check_parquet(files: Sequence[str]) -> None:
    """Raise a DataError if Parquet files of one table differ in their columns or in the kind of a column.

    DuckDB would read numbers with a fraction as whole numbers if the first file has whole numbers.
    """
    parquet = import_optional("pyarrow.parquet", files[0])
    first = parquet.read_schema(files[0])
    for file in files[1:]:
        schema = parquet.read_schema(file)
        if {*schema.names} != {*first.names}:
            raise DataError(f"{file}: columns {', '.join(schema.names)}, but {files[0]}: {', '.join(first.names)}; the files of a glob "
                            "have the same columns")
        for name in schema.names:
            kinds = [_kind_of_type(one.field(name).type) for one in (schema, first)]
            if kinds[0] != kinds[1] and "null" not in kinds:
                raise DataError(f"{file}: column {name!r} is of {kinds[0]}, but of {kinds[1]} in {files[0]}")


def _kind_of_type(type_):
    """Return a word for a pyarrow type, such as "numbers"; types with the same word may stand in one column."""
    type_ = getattr(type_, "value_type", type_) if str(type_).startswith("dictionary") else type_
    name = str(type_).partition("[")[0].partition("(")[0].lstrip("u").rstrip("0123456789").removeprefix("large_")
    return {"int": "numbers", "float": "numbers", "double": "numbers", "halffloat": "numbers", "decimal": "numbers",
            "string": "words", "string_view": "words", "date": "dates", "timestamp": "dates"}.get(name, name)


def parquet_reader(files: Sequence[str]) -> Any:
    """Return a reader of record batches over Parquet `files` with types that DuckDB reads wrongly; None if there are none."""
    arrow, parquet = import_optional("pyarrow", files[0]), import_optional("pyarrow.parquet", files[0])
    schema = parquet.read_schema(files[0])
    if not any(is_zoned_nanoseconds(type_) or arrow.types.is_decimal256(type_) for type_ in schema.types):
        return None
    pieces = (piece.select(schema.names).cast(schema) for file in files for piece in parquet.ParquetFile(file).iter_batches())
    return _full_width(arrow, arrow.RecordBatchReader.from_batches(schema, pieces))


def is_zoned_nanoseconds(type_: Any) -> bool:
    """Return True if a type of pyarrow is a timestamp in nanoseconds with a time zone."""
    return str(type_).startswith("timestamp[ns, tz=")


def _full_width(arrow, reader):
    """Return `reader`, a reader of record batches, with the types that DuckDB reads wrongly cast to others: 16-bit floats, 256-bit
    decimals, and nanoseconds with a time zone. `arrow` is the module pyarrow.
    """
    schema = reader.schema
    for at, field in enumerate(schema):
        if arrow.types.is_float16(field.type):
            schema = schema.set(at, field.with_type(arrow.float32()))
        if arrow.types.is_decimal256(field.type):
            schema = schema.set(at, field.with_type(arrow.float64()))
        if is_zoned_nanoseconds(field.type):
            schema = schema.set(at, field.with_type(arrow.timestamp("ns")))  # of UTC
    return reader if schema is reader.schema else reader.cast(schema)


def _arrow_array(arrow, column, column_name):
    """Return `column` as a pyarrow array. Raise a DataError about `column_name` if it holds objects of several kinds, such as words
    and numbers.
    """
    values, mask = column, None
    if isinstance(column, np.ma.MaskedArray):
        values, mask = column.data, np.ma.getmaskarray(column)
    elif hasattr(column, "__arrow_array__"):
        return column.__arrow_array__()
    if getattr(values, "ndim", 1) == 0 or not hasattr(values, "__iter__") or isinstance(values, str | bytes):
        raise DataError(f"{column_name}: {values!r} is not an array")
    name = str(getattr(values, "dtype", ""))
    if name.startswith("period"):
        values = values.astype(str).where(values.notna(), None)  # pyarrow would return the ordinal numbers of the periods
    elif name.startswith("Sparse"):
        values = np.asarray(values)
    if hasattr(values, "ndim") and values.ndim == 2:
        flat = np.asarray(values)
        if mask is not None and mask.any():
            raise DataError(f"{column_name}: a masked value in a column of lists")
        if not flat.shape[1]:
            raise DataError(f"{column_name}: its lists are empty")
        return arrow.FixedSizeListArray.from_arrays(arrow.array(flat.ravel()), flat.shape[1])
    kind = getattr(getattr(values, "dtype", None), "kind", "O")
    if kind in "TUS":
        values = np.asarray(values).astype(object)
    elif isinstance(values, np.ndarray):
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
    try:
        array = arrow.array(values, from_pandas=True, mask=mask)
        if arrow.types.is_date(array.type) and kind == "O" and any(_kind(cell) not in (None, "date") for cell in values):
            raise arrow.ArrowInvalid  # pyarrow cuts the clock of a timestamp that stands below a date
        return array.combine_chunks() if isinstance(array, arrow.ChunkedArray) else array
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, arrow.ArrowNotImplementedError, OverflowError, UnicodeEncodeError):
        cells = list(values)
        kinds = [_kind(cell) for cell in cells]
        first = next((kind for kind in kinds if kind), None)
        at = next((at for at, kind in enumerate(kinds) if kind not in (None, first)), None)
        if at is None and first == "int":  # beyond int64
            with contextlib.suppress(OverflowError, arrow.ArrowInvalid):
                return arrow.array(cells, arrow.uint64(), from_pandas=True)
            low = min(cell for cell, kind in zip(cells, kinds) if kind)
            limit = 1 << (64 if low >= 0 else 63)
            at = next(at for at, number in enumerate(cells) if kinds[at] and not -(1 << 63) <= number < limit)
            raise DataError(f"{column_name}: row {at}: {cells[at]} does not fit into 64 bits"
                            f"{', as other rows are below 0' if low < 0 else ''}") from None
        if at is None and first == "str":
            at = next(at for at, text in enumerate(cells) if kinds[at] and any("\ud800" <= letter <= "\udfff" for letter in text))
            raise DataError(f"{column_name}: row {at}: {cells[at]!r} has half of a surrogate pair, which UTF-8 cannot encode") from None
        if at is None:
            raise DataError(f"{column_name}: values of {type(cells[0]).__name__} are neither numbers nor words; convert the "
                            "column first") from None
        raise DataError(f"{column_name}: row {at}: {cells[at]!r} is of {kinds[at]}, but values before are of {first}; "
                        "convert the column to one kind first") from None


def _kind(cell):
    """Return the name of a cell's Python class; None if the cell is a missing value."""
    missing = cell is None or (isinstance(cell, float) and cell != cell) or type(cell).__name__ in ("NAType", "NaTType")
    return None if missing else type(cell).__name__


def npy_columns(path):
    """Return {"0": column, "1": ...} of a memory-mapped .npy file with an array of 1 or 2 dimensions."""
    array = npyfile.load(path, "table", "biufUS")
    if array.ndim not in (1, 2):
        raise DataError(f"{path}: expected one or two dimensions, found shape {array.shape}")
    return {"0": array} if array.ndim == 1 else {str(at): np.ascontiguousarray(column) for at, column in enumerate(array.T)}

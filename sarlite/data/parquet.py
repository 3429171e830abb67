"""Parquet files as tables of numbers, read a row group at a time by pyarrow."""

import numpy as np

from sarlite.errors import DataError, needs, reading, regular

_ROWS = 1 << 16


def stream(path, field):
    """Yield a file's rows as (n, n_columns) arrays of one dtype, some ten thousand at a time, at least one array.

    A column of lists of one fixed length gives as many columns.

    Raises
    ------
    DataError
        The file cannot be read, a column is no column of numbers, or a value is missing.
    ConfigError
        pyarrow is not there.
    """
    parquet = needs("pyarrow.parquet", f"{path}: {field}")
    with reading(path, field), regular(path).open("rb") as file, parquet.ParquetFile(file) as archive:
        found = None
        for batch in archive.iter_batches(batch_size=_ROWS):
            found = _table(path, field, batch)
            yield found
        if found is None:
            yield np.empty((0, max(1, len(archive.schema_arrow.names))))


def _table(path, field, batch):
    columns = []
    for name, column in zip(batch.schema.names, batch.columns):
        if column.null_count:
            raise DataError(f"{path}: {field}: column {name!r}: a value is missing")
        length = getattr(column.type, "list_size", None)
        values = np.asarray((column.flatten() if length else column).to_numpy(zero_copy_only=False))
        if values.dtype.kind not in "biuf":
            raise DataError(f"{path}: {field}: column {name!r} is of {column.type}, not of numbers")
        columns.append(values.reshape(-1, length or 1))
    return np.concatenate(columns, axis=1)

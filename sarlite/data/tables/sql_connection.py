"""Protocols of DuckDB's connections and results, with only the methods that this package calls."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

Cells: TypeAlias = Any  # a pyarrow.Array or pyarrow.ChunkedArray; pyarrow has no types and is loaded on demand


def to_array(cells: Cells) -> np.ndarray:
    """Return a pyarrow array of numbers or truth values as a NumPy array. A null becomes NaN; numbers without nulls are not copied."""
    plain = cells.null_count == 0 and str(cells.type).startswith(("int", "uint", "float", "double"))
    return np.from_dlpack(cells) if plain else np.asarray(cells.to_numpy(zero_copy_only=False))  # to_numpy imports pandas, in 0.5 to 1 s


class RecordBatch(Protocol):
    """Some rows of a query's result, as columns."""

    @property
    def columns(self) -> list[Cells]:
        """Columns of the rows, one pyarrow array per column."""


class QueryResult(Protocol):
    """Result of an SQL statement. A row is a tuple with a Python value per column."""

    def fetchone(self) -> Any:
        """Return the next row, or None if no row is left."""

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the remaining rows as a list of tuples."""

    def fetchnumpy(self) -> dict[str, np.ndarray]:
        """Return the remaining rows as {column name: array}."""

    def to_arrow_reader(self, batch_size: int, /) -> Iterable[RecordBatch]:
        """Return the remaining rows as a reader of record batches of at most `batch_size` rows."""


class Statement(Protocol):
    """Parsed SQL statement; `type` is DuckDB's enumeration of statements."""

    type: object


class Connection(Protocol):
    """Connection to DuckDB, with the methods of `duckdb.DuckDBPyConnection` that this package calls."""

    def execute(self, sql: str, /) -> QueryResult:
        """Run an SQL statement and return its result."""

    def register(self, name: str, table: object, /) -> object:
        """Make a pyarrow table or reader visible to SQL under a name."""

    def unregister(self, name: str, /) -> object:
        """Remove a name that `register` made visible to SQL."""

    def extract_statements(self, sql: str, /) -> Sequence[Statement]:
        """Return the parsed statements of an SQL text."""

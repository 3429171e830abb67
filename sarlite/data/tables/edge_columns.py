"""Edges of one relation from a table in DuckDB: ids become row numbers, edges are added or merged, then sorted by destination."""

from collections.abc import Iterator

import numpy as np

from sarlite.data.divide import counts_up
from sarlite.data.external_sort import csr
from sarlite.data.raw import CARRY_VALUES
from sarlite.data.tables import account as accounts
from sarlite.data.tables import sources
from sarlite.data.tables.checks import FLOAT32_LIMIT, CellCheck, cell, check_cells, check_fill, id_checks, node_number, number_checks
from sarlite.data.tables.description import EdgeSource
from sarlite.data.tables.feature_columns import VALUE, features_wanted, filled_number, make_features
from sarlite.data.tables.number_columns import column_names, matrix, number_expressions
from sarlite.data.tables.numbering import FOLDED, IdColumn, NodeNumbering
from sarlite.data.tables.remedies import query_remedy, trimmed
from sarlite.data.tables.sources import unnamed
from sarlite.data.tables.sql_connection import Connection, to_array
from sarlite.data.tables.text_form import ENDS, literal, quote
from sarlite.data.tables.time_columns import time_column
from sarlite.data.workspace import Workspace
from sarlite.errors import ConfigError, DataError, SarliteError, collecting, raise_all
from sarlite.structure.edges import index_dtype
from sarlite.types import Array, DType, JsonDict

_LOW = np.uint64(2**32 - 1)
_PLAIN = f"regexp_replace(regexp_replace({FOLDED}, '^0+([0-9])', '\\1'), '[.]0+$', '')"  # also without outer zeros


class EdgeColumns:
    """Table of a relation's edges, with the use of each column: source, destination, weight, feature or time.

    Attributes
    ----------
    source : EdgeSource
    table : Table
    ends : (IdColumn, IdColumn)
        Columns of the sources and of the destinations.
    weight : str or None
        Column of weights.
    features : list of str
        Columns of features.
    feature_fields : dict
        Fields of an `EdgeTable`: the names of the feature columns, and their transforms; empty without features.
    values : dict of str to str
        SQL expressions of the weight, the time and the features: "weight", "time", "f0", "f1", ...
    time_kind : str or None
    width : int
        Number of feature columns.
    outside : list of str
        Lines about features with values outside the range of the table that a model was trained on.
    """

    def __init__(self, connection: Connection, source: EdgeSource, drop_values: bool = False) -> None:
        self.source = source
        self.weight, self.features = (None, []) if drop_values else (source.weight, [*source.features])
        wanted = features_wanted(source.features, source.fill, f"{source.where}: features") if self.features else None
        asked = [source.src, source.dst, source.weight, *source.features, source.time]
        self.table = sources.read(connection, source.source, source.reading, asked, source.where, self._chosen_columns)
        if source.n_rows not in (None, self.table.n_rows):
            raise DataError(f"{self.table.where}: edges: {self.table.n_rows} rows, expected {source.n_rows}")
        src, dst = self._names
        self.ends = IdColumn(self.table, src), IdColumn(self.table, dst)
        self._wanted, self._fill = wanted, check_fill(source.fill, source.where)
        self.feature_fields: JsonDict = {}
        self.outside: list[str] = []
        self.values, self.width = dict[str, str](), 0
        self.time_kind: str | None = None
        self._checks, self._numbers, self._transform_words = list[CellCheck](), list[str](), dict[str, str]()

    def prepare(self) -> None:
        """Set `values`, the SQL expressions of the edges' weight, time and features. Raise one error about all columns that cannot
        be read.
        """
        errors, features = list[SarliteError](), list[str]()
        numbers = [] if self._wanted else self.features
        with collecting(errors):
            if self.weight:
                self._checks += number_checks(self.table, [self.weight], self._fill is not None, "weight")
                self.values["weight"] = filled_number(self.table, self.weight, self._fill)
        with collecting(errors):
            if self.source.time:
                times = time_column(self.table, self.source.time)
                self.values["time"], self.time_kind = times.expression, times.kind
        with collecting(errors):
            features = self._transformed() if self._wanted else number_expressions(self.table, numbers)
            if numbers:
                self.feature_fields = {"feature_names": column_names(self.table, numbers)}
        with collecting(errors):
            self._checks += number_checks(self.table, numbers)
        self.values |= {f"f{at}": expression for at, expression in enumerate(features)}
        self.width = len(self.feature_fields.get("feature_names", ()))
        self._numbers = ["weight"] if self.weight else []
        self._numbers += [f"f{at}" for at, name in enumerate(numbers) if self.table.types[name] != "vector"]
        raise_all(errors)

    def _transformed(self):
        """Compute the edge features by the user's transforms, and return their SQL expressions, a list. Store the names and descriptions of
        the features in this object.
        """
        features = make_features(self.table, self._wanted, None, self.source.transforms, self.values)
        self.values = {name: quote(f"{VALUE}{name}") for name in self.values}
        self.table, self._transform_words, self.outside = features.table, features.fitted.descriptions(), features.outside
        self.feature_fields = {"feature_names": features.fitted.names, "transforms": features.fitted.to_json()}
        return [*features.expressions.values()]

    def _chosen_columns(self, all_columns):
        """Return which of `all_columns`, the names of the table's columns, to read into DuckDB. Set `_names` to the names of the source and
        the destination column.
        """
        src, dst, shown = self.source.src, self.source.dst, [name for name in all_columns if not unnamed(name)]
        if None in (src, dst):
            if len(shown) != 2 or src or dst:
                where = self.source.source if isinstance(self.source.source, str) else self.source.where
                likely = [name for name in shown if name.lstrip("_:#").lower() in ENDS]
                first, second = (likely if len(likely) == 2 else [*shown, "COLUMN", "COLUMN"])[:2]
                raise DataError(f"{where}: edges: name the columns of the ends among {', '.join(all_columns)}: "
                                f"src={first},dst={second} (and weight=, edge_features= as needed)")
            src, dst = shown
        self._names = src, dst
        return [*dict.fromkeys([src, dst, *filter(None, (self.weight, self.source.time)), *self.features])]

    def refuse_bad_cells(self, connection: Connection, name: str) -> None:
        """Raise a DataError if the weight or a feature of an edge is missing or not finite. `name` is the DuckDB table of the edges."""
        odd = " OR ".join(f"{value} IS NULL OR NOT abs({value}) < {FLOAT32_LIMIT!r}" for value in self._numbers)
        if odd and connection.execute(f"SELECT count(*) FROM {name} WHERE {odd}").fetchone()[0]:
            check_cells(self.table, self._checks)

    def check(self) -> None:
        """Raise one error about all invalid edge values and ids of sources and destinations."""
        errors: list[SarliteError] = []
        with collecting(errors):
            check_cells(self.table, self._checks)
        for table, column in self.ends:
            with collecting(errors):
                check_cells(table, id_checks(table, column))
        raise_all(errors)

    def account(self) -> JsonDict:
        """Return a dict about the table: its source, its number of rows, and {column: use}, with uses such as "source" or "weight"."""
        uses = [(self.ends[0].column, "source"), (self.ends[1].column, "destination"), (self.weight, "weight"),
                (self.source.time, "time"),
                *((name, f"feature ({self._transform_words.get(name, 'number')})") for name in self.features)]
        return accounts.columns_used(self.table, [(name, use) for name, use in uses if name is not None])


class NumberedEdges:
    """DuckDB table or view of edges whose ends are row numbers, with the columns row, src, dst and the edge values.

    Parameters
    ----------
    connection : Connection
    name : str
        Name of the table or view to create.
    columns : EdgeColumns
    numberings : dict of str to NodeNumbering
        Numbering of each node type.
    changes : dict of str to bool
        The changes that `change` will make.
    read_again : bool
        True if the edges are read more than once.

    Notes
    -----
    Edges that are neither changed nor read twice are a view, so that DuckDB joins, checks and sorts them in one pass.
    """

    def __init__(self, connection: Connection, name: str, columns: EdgeColumns, numberings: dict[str, NodeNumbering],
                 changes: dict[str, bool], read_again: bool) -> None:
        self._connection, self._name, self._columns, self._numberings = connection, name, columns, numberings
        self._changes, self._n_unknown = changes, 0
        self._kind = "TABLE" if any(changes.values()) or read_again or columns.source.on_unknown == "drop" else "VIEW"
        relation, table = columns.source.relation, columns.table
        self._values = [*columns.values]
        self._ends = ["src", "dst", *(["time"] if "time" in columns.values else [])]  # edges with different times are different edges
        ends, joins, shown = [], [], []
        for alias, (_, column), node_type in zip("ab", columns.ends, relation[::2]):
            numbering = numberings[node_type]
            if numbering.id_type is None:
                ends.append(f"{node_number(table, column)} AS {alias}")
                shown.append(f"CAST(t.{alias} AS UINTEGER)")
            else:
                ends.append(f"{numbering.key(quote(column))} AS {alias}")
                joins.append(f"LEFT JOIN {numbering.table} {alias} ON {numbering.key(f'{alias}.id')} = t.{alias}")
                shown.append(f"{alias}.n")
        values = [f"{expression} AS {value}" for value, expression in columns.values.items()]
        inner = ", ".join(["rowid AS row", *ends, *values])
        outer = ", ".join(["t.row", f"{shown[0]} AS src", f"{shown[1]} AS dst", *(f"t.{name}" for name in self._values)])
        self._run(f"CREATE TEMP {self._kind} {name} AS SELECT {outer} FROM (SELECT {inner} FROM {table.name}) t {' '.join(joins)}")
        if self._kind == "TABLE":
            self._check()

    def _check(self):
        """Raise a DataError for an invalid edge value. Refuse or drop edges whose source or destination is no node, as the user's option
        `on_unknown` says.
        """
        self._columns.refuse_bad_cells(self._connection, self._name)
        self.check_ends()
        if self._columns.source.on_unknown == "refuse":
            return
        before = self._n()
        if before and not self._run(f"SELECT count(*) FROM {self._name} WHERE src IS NOT NULL AND dst IS NOT NULL").fetchone()[0]:
            raise_all(self._unknown_ends(("src", "dst"), "so no edge is left"))
        self._replace(f"SELECT row_number() OVER (ORDER BY row) - 1 AS row, * EXCLUDE (row) FROM {self._name} WHERE "
                      "src IS NOT NULL AND dst IS NOT NULL")
        self._n_unknown = before - self._n()

    def check_ends(self) -> None:
        """Raise a DataError for the first edge whose source or destination is no node, unless such edges are left out."""
        if self._columns.source.on_unknown == "refuse":
            remedy = self._columns.source.reading.notation.remedy(("on_unknown", "drop", "leaves such edges out"))
            raise_all(self._unknown_ends(("src", "dst"), remedy))

    def _unknown_ends(self, end_fields, remedy):
        """Return DataErrors about edges with an id that is no node: one for each of `end_fields`, "src" or "dst", with such an id. Each
        message ends with `remedy`.
        """
        source, table, errors = self._columns.source, self._columns.table, []
        for at, end in enumerate(end_fields):
            row, n = self._run(f"SELECT min(row), count(*) FROM {self._name} WHERE {end} IS NULL").fetchone()
            if row is not None:
                column, numbering = self._columns.ends[at].column, self._numberings[source.relation[::2][at]]
                value = table.value(quote(column), row)
                similar = self._run(f"SELECT id FROM {numbering.table} WHERE {_PLAIN.format('CAST(id AS VARCHAR)')} = "
                                    f"{_PLAIN.format(literal(str(value)))} LIMIT 1").fetchone()
                but = f", but {similar[0]!a} is" if similar else ""
                blanks = ", with its blanks," if isinstance(value, str) and value != value.strip() else ""
                more = f" ({n:,} such rows)" if n > 1 else ""
                trim = f"{trimmed(table, column)}; " if similar and blanks else ""
                shown = ascii(value) if similar else repr(value)
                errors.append(DataError(f"{cell(table, row, column)}: {shown}{blanks} is not in {numbering.listed_in}{but}{more}; "
                                        f"{trim}{remedy}"))
        return errors

    def change(self, n_nodes: int) -> dict[str, int]:
        """Add reverse edges and self loops (one for each of `n_nodes` nodes without a loop), and merge equal edges, as the user
        asked. Return {words for the change: number of edges}.

        Returns
        -------
        dict of str to int
            Number of edges that each change affected, by words about the change.
        """
        notes = {"left out, as an end is not a node": self._n_unknown} if self._n_unknown else {}
        changes = self._changes
        n_stored, where = self._n(), self._columns.table.where
        if changes["undirected"]:
            swapped = ", ".join(self._values)
            self._run(f"INSERT INTO {self._name} SELECT row + {n_stored} AS row, dst AS src, src AS dst"
                      f"{', ' + swapped if swapped else ''} FROM {self._name} WHERE src <> dst")
            notes["reverses added"] = self._n() - n_stored
        if changes["undirected"] or changes["deduplicate"]:
            before = self._n()
            self._refuse_different(n_stored)
            values = "".join(f", any_value({name}) AS {name}" for name in self._values if name not in self._ends)
            ends = ", ".join(self._ends)
            self._replace(f"SELECT min(row) AS row, {ends}{values} FROM {self._name} GROUP BY {ends}")
            notes["joined with an equal edge"] = before - self._n()
        if changes["self_loops"]:
            if self._values:
                raise ConfigError(f"{where}: {self._values[0]}: {CARRY_VALUES}")
            before = self._n()
            self._run(f"INSERT INTO {self._name} SELECT {2 * n_stored} + range AS row, range AS src, range AS dst FROM "
                      f"range({n_nodes}) WHERE range NOT IN (SELECT src FROM {self._name} WHERE src = dst)")
            notes["self loops added"] = self._n() - before
        return notes

    def _refuse_different(self, n_table_rows):
        """Raise a ConfigError if equal edges have different values, as they cannot be merged. The table has `n_table_rows` rows;
        row `n_table_rows` + i is the added reverse of row i.
        """
        values = [name for name in self._values if name not in self._ends]
        if not values:
            return
        rows = self._run(f"SELECT min(row), max(row) FROM {self._name} GROUP BY {', '.join(self._ends)} HAVING "
                          f"count(DISTINCT row({', '.join(values)})) > 1 ORDER BY 1 LIMIT 1").fetchone()
        if rows:
            first, second = (row % n_table_rows for row in rows)
            source, notation = self._columns.source, self._columns.source.reading.notation
            remedy = ""
            if values == ["weight"]:
                src, dst, weight = (quote(name) for name in (*(end.column for end in self._columns.ends), source.weight))
                ends = f"least({src}, {dst}) AS {src}, greatest({src}, {dst}) AS {dst}" if self._changes["undirected"] else f"{src}, {dst}"
                remedy = query_remedy(self._columns.table, f"SELECT {ends}, sum(CAST({weight} AS DOUBLE)) AS {weight}", "GROUP BY ALL",
                                      "adds the weights; or ")
            remedy += "leave them out (drop_edge_values)" if notation.options is None else "name no weight and no features"
            raise ConfigError(f"{self._columns.table.where}: rows {first} and {second} are one edge with different "
                              f"values, so the edges cannot be joined; make the values equal: {remedy}")

    def sorted(self, n_sources: int, n_destinations: int, reverse_edges: bool, keep_positions: bool, workspace: Workspace,
               counters: "Counters | None") -> dict[str, Array]:
        """Return {field: array} for an `EdgeTable`, with the edges sorted by destination, then source. `reverse_edges` first swaps sources
        and destinations, `keep_positions` adds the field `edge_ids`, the edges' original positions, and `counters` (None: no counts) counts
        the edges.

        Parameters
        ----------
        n_sources, n_destinations : int
            Number of nodes of the source and of the destination type.
        reverse_edges : bool
            If True, reverse the edges.
        keep_positions : bool
            If True, keep the original positions of the edges.
        workspace : Workspace
        counters : Counters or None
        """
        forms: dict[str, tuple[DType, tuple[int, ...]]] = {"edge_ids": (index_dtype(self._n()), ())} if keep_positions else {}
        if "weight" in self._values:
            forms["edge_weight"] = self._columns.source.weight_dtype, ()
        if "time" in self._values:
            forms["edge_time"] = np.int64, ()
        if self._columns.width:
            forms["edge_features"] = np.float32, (self._columns.width,)
        stream = _Stream(self._connection, self._name, self._values, forms, reverse_edges, counters, self._check)
        dtypes = {"indptr": np.int64, "indices": index_dtype(n_sources), **{name: dtype for name, (dtype, _) in stream.columns.items()}}
        outs = {name: workspace.spool(name, dtype) for name, dtype in dtypes.items()}
        for ends, _, src, columns in csr(stream, n_destinations, n_sources):
            for name, rows in {"indptr": ends, "indices": src, **columns}.items():
                outs[name].write(rows)
        arrays = {name: out.array() for name, out in outs.items()}
        if "edge_ids" in arrays and counts_up(arrays["edge_ids"]):
            del arrays["edge_ids"]
        return arrays

    def in_order(self) -> dict[str, Array]:
        """Return {field: array} of src, dst, edge_weight and edge_features in the order of the table's rows."""
        sql = f"SELECT {', '.join(['src', 'dst', *self._values])} FROM {self._name} ORDER BY row"
        kinds = {"src": np.int64, "dst": np.int64, **({"edge_weight": self._columns.source.weight_dtype}
                                                      if "weight" in self._values else {})}
        pieces = {name: [np.empty(0, dtype)] for name, dtype in kinds.items()}
        if self._columns.width:
            pieces["edge_features"] = [np.empty((0, self._columns.width), np.float32)]
        for columns in sources.batches(self._connection, sql, 2 + len(self._values)):
            for name, dtype in kinds.items():
                pieces[name].append(to_array(columns.pop(0)).astype(dtype, copy=False))
            if columns:
                pieces["edge_features"].append(matrix(columns, np.float32))
        return {name: np.concatenate(rows) for name, rows in pieces.items()}

    def drop(self) -> None:
        """Drop the table or view from DuckDB."""
        self._run(f"DROP {self._kind} {self._name}")

    def _n(self):
        """Return the number of edges that are in the table or view."""
        rows = self._name if self._kind == "TABLE" else self._columns.table.name
        return self._run(f"SELECT count(*) FROM {rows}").fetchone()[0]

    def _replace(self, sql):
        """Replace the DuckDB table of edges by the result of the query `sql`."""
        self._run(f"CREATE TEMP TABLE {self._name}_new AS {sql}")
        self._run(f"DROP TABLE {self._name}")
        self._run(f"ALTER TABLE {self._name}_new RENAME TO {self._name.rpartition('.')[2]}")

    def _run(self, sql):
        return self._connection.execute(sql)


class Counters:
    """Counts over the sorted edges of a relation: nodes with edges, self loops, repeated edges, negative weights."""

    def __init__(self, sources, destinations, one_type):
        self._sources, self._destinations, self._one_type = sources, destinations, one_type
        self.self_edges = self.duplicates = self.negative_weights = 0
        self._before = None

    def add(self, keys, weights=()):
        if not keys.size:
            return
        self.negative_weights += int(np.count_nonzero(np.asarray(weights) < 0))
        src, dst = keys & _LOW, keys >> np.uint64(32)
        self._sources[src] = True
        self._destinations[dst] = True
        self.self_edges += int(np.count_nonzero(src == dst)) if self._one_type else 0
        self.duplicates += int(np.count_nonzero(keys[1:] == keys[:-1])) + int(keys[0] == self._before)
        self._before = keys[-1]


class _Stream:
    """Sorted edges of an SQL query, with the interface of an `external_sort.Sorter` for `external_sort.csr`.

    Attributes
    ----------
    columns : dict of str to (dtype, shape)
        Values that an edge has beside its key, by field of an `EdgeTable`.
    """

    def __init__(self, connection, name, values, columns, back, counters, check):
        self._connection, self._counters, self._check = connection, counters, check
        self.columns = {field: (np.dtype(dtype), shape) for field, (dtype, shape) in columns.items()}
        high, low = ("src", "dst") if back else ("dst", "src")
        key = f"CAST({high} AS UBIGINT) * 4294967296 + {low} AS key"
        shown = ", ".join(["key", *(["row"] if "edge_ids" in columns else []), *values])
        order = "key, row" if columns else "key"
        self._sql = f"SELECT {shown} FROM (SELECT {key}, * FROM {name}) ORDER BY {order}"
        self._n = 2 + len(values)

    def pieces(self) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Yield (keys, {field such as "edge_weight": array}) of the edges, in batches. A key is destination * 2^32 + source,
        uint64; keys ascend.
        """
        for keys, *columns in sources.batches(self._connection, self._sql, self._n):
            if keys.null_count:
                self._check()
            keys, values = to_array(keys), {}
            for field in ("edge_ids", "edge_weight", "edge_time"):
                if field in self.columns:
                    values[field] = to_array(columns.pop(0)).astype(self.columns[field][0], copy=False)
            if columns:
                values["edge_features"] = matrix(columns, np.float32)
            if self._counters is not None:
                self._counters.add(keys, values.get("edge_weight", ()))
            with np.errstate(over="ignore"):  # a weight may not fit into float32
                if not all(np.isfinite(values[field].astype(np.float32, copy=False)).all() for field in values if field != "edge_ids"):
                    self._check()
            yield keys, values

"""The same data from every kind of source give one directory, bit for bit; also the public oddities of CSV."""

import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from sarlite.data import format, from_tables, load
from sarlite.data.tables import description
from sarlite.data.tables.compile import build
from sarlite.data.tables.sources import connect, read
from sarlite.data.tables.text_form import Reading, quote
from sarlite.data.workspace import Workspace
from sarlite.errors import ConfigError, DataError

ALL = ("train", "val", "test")
USERS = {"user": [f"ü{at}" if at % 3 else f"a,{at}" for at in range(40)], "age": [at / 7 for at in range(40)],
         "size": [2**at % 1000003 for at in range(40)], "team": [("red", "blue", "green")[at % 3] for at in range(40)],
         "part": [("train", "val", "test", "none")[at % 4] for at in range(40)]}
DRAW = np.random.default_rng(0).integers(0, 40, (200, 2))
ORDERS = {"who": [USERS["user"][a] for a, _ in DRAW], "whom": [USERS["user"][b] for _, b in DRAW], "w": [at / 3 for at in range(200)]}
NODES = {"id": "user", "labels": "team", "split": "part", "features": ["age", "size"]}
EDGES = {"relation": ["user", "orders", "user"], "src": "who", "dst": "whom", "weight": "w"}


def described(users, orders):
    """Return the description of a graph with two sources: {key: value}."""
    return {"nodes": {"user": {**NODES, **users}}, "edges": [{**EDGES, **orders}]}


def write_csv(folder, **how):
    import pandas

    for name, table in (("users", USERS), ("orders", ORDERS)):
        pandas.DataFrame(table).to_csv(folder / f"{name}.csv", index=False, **how)


def arrays_of(folder, description):
    """Return the entries of all arrays in meta.json, with their hashes."""
    format.write(folder, from_tables(description).check())
    meta = format.read_meta(folder)
    return {name: meta[name] for name in ("nodes", "edges", "names")}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return arrays_of(tmp_path_factory.mktemp("dict") / "d", described({"file": USERS}, {"file": ORDERS}))


@pytest.mark.parametrize("kind", ["csv", "tsv.gz", "csv.zst", "parquet", "glob", "jsonl", "arrow", "pandas", "polars", "pyarrow", "query"])
def test_a_source_of_any_kind_gives_the_same_directory(tmp_path, expected, kind):
    import pandas

    frames = {"users": pandas.DataFrame(USERS), "orders": pandas.DataFrame(ORDERS)}
    sources = {name: {"file": str(tmp_path / f"{name}.{kind}")} for name in frames}
    for name, frame in frames.items():
        path = tmp_path / f"{name}.{kind}"
        if kind in ("csv", "tsv.gz", "csv.zst"):
            frame.to_csv(tmp_path / f"{name}.x", index=False, sep="\t" if "tsv" in kind else ",")
            data = (tmp_path / f"{name}.x").read_bytes()
            if kind == "csv.zst":
                import pyarrow

                with pyarrow.CompressedOutputStream(str(path), "zstd") as file:
                    file.write(data)
            else:
                path.write_bytes(gzip.compress(data) if kind.endswith("gz") else data)
        elif kind == "parquet":
            frame.to_parquet(path)
        elif kind in ("glob", "query"):
            frame[:11].to_parquet(tmp_path / f"{name}.1.parquet")
            frame[11:].to_parquet(tmp_path / f"{name}.2.parquet")
            pattern = str(tmp_path / f"{name}.*.parquet")
            sources[name] = {"file": pattern} if kind == "glob" else {
                "query": f"SELECT * FROM read_parquet('{pattern}', filename=true) WHERE 1 = 1 ORDER BY filename, file_row_number"}
        elif kind == "jsonl":
            path.write_text("".join(f"{json.dumps(row)}\n" for row in frame.to_dict("records")))
        elif kind == "arrow":
            frame.to_feather(path)
        elif kind == "pandas":
            sources[name] = {"file": frame}
        else:
            module = pytest.importorskip(kind, reason=f"tables of {kind} need {kind}")
            sources[name] = {"file": module.DataFrame(frame.to_dict("list")) if kind == "polars" else module.Table.from_pandas(frame)}
    assert arrays_of(tmp_path / "d", described(sources["users"], sources["orders"])) == expected


def test_tables_of_sqlite_are_read(tmp_path, expected):
    pytest.importorskip("duckdb_extension_sqlite_scanner", reason="reading SQLite needs sarlite[databases]")
    with sqlite3.connect(tmp_path / "shop.db") as base:
        for name, table in (("users", USERS), ("orders", ORDERS)):
            kinds = ", ".join(f"{column} {'TEXT' if isinstance(cells[0], str) else 'REAL' if isinstance(cells[0], float) else 'INTEGER'}"
                              for column, cells in table.items())
            base.execute(f"CREATE TABLE {name} ({kinds})")
            base.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(table))})", list(zip(*table.values())))
    base.close()
    users = {"database": str(tmp_path / "shop.db"), "table": "users"}
    orders = {"database": str(tmp_path / "shop.db"), "query": "SELECT who, whom, w FROM orders WHERE w >= 0"}
    assert arrays_of(tmp_path / "d", described(users, orders)) == expected
    with pytest.raises(DataError, match="gone"):
        from_tables(described({**users, "table": "gone"}, orders))
    with pytest.raises(DataError, match="no.db: no such file"):
        from_tables(described({**users, "database": str(tmp_path / "no.db")}, orders))
    with pytest.raises(ConfigError, match="shop.db: a database; in a TOML file database="):
        load(f"edges:{tmp_path}/shop.db")


@pytest.fixture
def server():
    """Start a PostgreSQL server on a socket in its own folder; return its URL, and a function that runs SQL."""
    programs = [*sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")), *filter(None, [shutil.which("initdb")])]
    if not programs:
        pytest.skip("no PostgreSQL server is installed: neither initdb on the PATH nor /usr/lib/postgresql")
    where, as_root = Path(programs[-1]).resolve().parent, os.getuid() == 0
    with tempfile.TemporaryDirectory(prefix="pg-") as home:
        if as_root:  # PostgreSQL refuses to run as root
            shutil.chown(home, "postgres")

        def run(program, *words):
            user = ["runuser", "-u", "postgres", "--"] if as_root else []
            subprocess.run([*user, where / program, *words], check=True, stdout=subprocess.DEVNULL, timeout=60, cwd="/")

        run("initdb", "-D", f"{home}/data", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C")
        run("pg_ctl", "-D", f"{home}/data", "-w", "-l", f"{home}/log", "-o", f"-c listen_addresses='' -k {home} -F", "start")
        try:
            yield (f"postgresql:///postgres?host={home}&user=postgres",
                   lambda sql: run("psql", "-q", "-h", home, "-U", "postgres", "-c", sql))
        finally:
            run("pg_ctl", "-D", f"{home}/data", "-m", "immediate", "stop")


def test_tables_of_postgresql_are_read(tmp_path, expected, server):
    pytest.importorskip("duckdb_extension_postgres_scanner", reason="reading PostgreSQL needs sarlite[databases]")
    url, run = server
    for name, table in (("users", USERS), ("orders", ORDERS)):
        kinds = ", ".join(f"\"{column}\" {'text' if isinstance(cells[0], str) else 'float8' if isinstance(cells[0], float) else 'int8'}"
                          for column, cells in table.items())
        rows = ", ".join("(" + ", ".join(repr(cell) for cell in row) + ")" for row in zip(*table.values()))
        run(f"CREATE TABLE {name} ({kinds}); INSERT INTO {name} VALUES {rows}")
    users = {"database": url, "table": "users"}
    assert arrays_of(tmp_path / "d", described(users, {"database": url, "query": "SELECT * FROM orders"})) == expected
    with pytest.raises(DataError, match="database postgresql:///none") as caught:
        from_tables(described({**users, "database": url.replace("/postgres?", "/none?")}, {"file": ORDERS}))
    assert "duckdb" not in str(caught.value).lower()


@pytest.mark.parametrize("sql", ["COPY (SELECT 1) TO 'x.csv'", "SELECT 1; SELECT 2", "CREATE TABLE a AS SELECT 1", "INSTALL httpfs"])
def test_a_query_only_selects(tmp_path, sql, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="query: expected one SELECT statement"):
        from_tables(described({"query": sql}, {"file": ORDERS}))
    assert os.listdir(tmp_path) == []


def words_of(path, how=None):
    with connect() as connection:
        table = read(connection, path, how or Reading(), (), "table", list)
        return {name: [cell for (some,) in table.batches(quote(name)) for cell in some.to_pylist()] for name in table.columns}


@pytest.mark.parametrize("data, expected", [
    (b"\xef\xbb\xbfa,b\n1,2\n", {"a": ["1"], "b": ["2"]}),  # a byte order mark
    ("a,b\né,2\n".encode("utf-16"), {"a": ["é"], "b": ["2"]}),
    (b"a,b\r\n1,2\r\n3,4\r\n", {"a": ["1", "3"], "b": ["2", "4"]}),
    (b'a,b\n"x\ny","q""z"\n1,2', {"a": ["x\ny", "1"], "b": ['q"z', "2"]}),
    (b"a,b\n1,2\n\n3,4\n\n\n", {"a": ["1", "3"], "b": ["2", "4"]}),
    (b'"a b","c,d"\n1,\n,2\n', {"a b": ["1", None], "c,d": [None, "2"]}),
    (b"a;b\n1,5;2\n", {"a": ["1,5"], "b": ["2"]}),
    (b"a\tb\n1 2\t3\n", {"a": ["1 2"], "b": ["3"]}),
    (b"a  b\n1 \t 2  \n", {"a": ["1"], "b": ["2"]}),
    (b"a,b\n 1 ,2\n", {"a": [" 1 "], "b": ["2"]}),
])  # fmt: skip
def test_oddities_of_csv(tmp_path, data, expected):
    (tmp_path / "t.csv").write_bytes(data)
    assert words_of(tmp_path / "t.csv", Reading(header=True)) == expected


def test_a_table_of_many_columns_is_read(tmp_path):
    n = 100_000
    names = [f"c{at}" for at in range(n)]
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n" + ",".join("7" * n) + "\n")
    with connect() as connection:
        table = read(connection, tmp_path / "wide.csv", Reading(), ["c0", "c99999"], "wide")
        assert table.one('"c0"', '"c99999"') == ("7", "7") and len(table.columns) == n


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_compressed_text_that_was_cut_is_refused(tmp_path, suffix):
    import pyarrow

    text, path = b"src,dst\n" + b"".join(b"%d,%d\n" % (at, at + 1) for at in range(5000)), tmp_path / f"e.csv.{suffix}"
    with pyarrow.CompressedOutputStream(str(path), {"gz": "gzip", "zst": "zstd"}[suffix]) as file:
        file.write(text)
    assert load(f"edges:{path}", allow_empty=ALL).n_edges == 5000
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    with pytest.raises(DataError, match=f"e.csv.{suffix}: .*"):
        load(f"edges:{path}", allow_empty=ALL)
    if suffix == "gz":
        path.write_bytes(data[:-6] + bytes([data[-6] ^ 1]) + data[-5:])
        with pytest.raises(DataError, match="e.csv.gz: cannot be read: .*CRC"):
            load(f"edges:{path}", allow_empty=ALL)


def test_columns_in_memory_without_a_use_may_hold_anything():
    import pandas

    users = {**USERS, "odd": [object()] * 39 + [1], "short": [1]}
    dataset = from_tables(described({"file": users}, {"file": ORDERS}))
    assert dataset.provenance["tables"]["nodes"]["user"]["sources"][0]["columns"]["odd"] == "left out: no option names it"
    frame = pandas.DataFrame({**USERS, "odd": [object()] * 40})
    assert dataset.equals(from_tables(described({"file": frame}, {"file": ORDERS})))
    with pytest.raises(DataError, match=r"nodes.user: column 'odd': row 39: 1 is of int"):
        from_tables(described({"file": users, "features": ["age", "odd"]}, {"file": ORDERS}))


@pytest.mark.parametrize("nodes", [{"features": ["age"]}, {}])
def test_missing_features_get_the_mean_of_the_training_rows_and_the_mean_stays_with_the_data(nodes):
    users = {"id": ["a", "b", "c", "d"], "age": [1.0, 3.0, 9.0, None], "y": [0, 1, 1, 0], "part": ["train", "train", "val", "test"],
             "bio": [[1.0, 2.0]] * 4}
    edges = {"file": {"s": ["a"], "t": ["b"]}, "relation": ["u", "e", "u"], "src": "s", "dst": "t", "reverse": False}
    described = {"file": users, "id": "id", "labels": "y", "split": "part", "fill": "mean", **nodes}
    dataset = from_tables({"nodes": {"u": described}, "edges": [edges]})
    assert dataset.features[:, 0].tolist() == [1, 3, 9, 2] and dataset.target_nodes.feature_names[0] == "age"
    new = {**users, "age": [None, 5.0, None, 7.0], "more": [1, 2, 3, 4]}
    described = description.of_dict({"nodes": {"u": {**described, "file": new}}, "edges": [edges]}, "new")
    described = described.with_transforms({"node": dataset.target_nodes.transforms})
    again = build(described, Workspace(), lambda text: None, {"source": "new", "provenance": {}})
    assert again.features[:, 0].tolist() == [2, 5, 2, 7] and again.features.shape == dataset.features.shape

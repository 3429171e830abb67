"""Measure the conversion of tables whose nodes have words as ids: processor time, and peak memory compared with the limit.

The table has a row for each source: text and Parquet, with a table of the nodes and without. Each conversion is a process
of its own, by default on one processor. Beside each stands the same work in bare SQL of DuckDB: read, number the words, join
both ends to numbers, sort by destination, and stream to files, without any check.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import harness
import numpy as np


def write(folder, n_nodes, n_edges):
    """Write random edges with string ids and a weight as edges.csv and edges.parquet, and their nodes as nodes.parquet, to `folder`."""
    import pyarrow
    from pyarrow import csv, parquet

    draw = np.random.default_rng(0)
    ids = pyarrow.array([f"user-{node:08d}" for node in draw.permutation(n_nodes)])
    parquet.write_table(pyarrow.table({"id": ids, "age": draw.random(n_nodes)}), folder / "nodes.parquet")
    writer, text = None, None
    for first in range(0, n_edges, 1 << 22):  # the edges are written in pieces, to save memory
        n = min(1 << 22, n_edges - first)
        ends = {name: ids.take(pyarrow.array(draw.integers(0, n_nodes, n))) for name in ("src", "dst")}
        table = pyarrow.table({**ends, "w": np.round(draw.random(n), 4)})
        writer = writer or parquet.ParquetWriter(folder / "edges.parquet", table.schema)
        text = text or csv.CSVWriter(str(folder / "edges.csv"), table.schema)
        writer.write_table(table)
        text.write_table(table)
    writer.close()
    text.close()


SQL = """
import sys
from pathlib import Path
import duckdb
edges, nodes, folder, memory, threads = sys.argv[1:]
connection = duckdb.connect(config={"memory_limit": memory, "threads": threads, "temp_directory": f"{folder}/sql"})
connection.execute(f"CREATE TABLE e AS SELECT src, dst, CAST(w AS DOUBLE) AS w FROM {edges}")
named = nodes or "(SELECT row_number() OVER (ORDER BY id) - 1 AS n, id FROM (SELECT src AS id FROM e UNION SELECT dst FROM e))"
connection.execute(f"CREATE TABLE ids AS SELECT n, id FROM {named}")
sql = "SELECT b.n, a.n, w FROM e JOIN ids a ON a.id = e.src JOIN ids b ON b.id = e.dst ORDER BY b.n, a.n"
files = [Path(folder, name).open("wb") for name in ("dst", "src", "w")]
for batch in connection.execute(sql).to_arrow_reader(1 << 16):
    for file, column in zip(files, batch.columns):
        file.write(column.to_numpy())
"""
"""The same work in SQL; its arguments are the SQL of the edges and of the nodes (or nothing), a folder, a limit and threads."""


def convert(folder, spec, memory_limit, n_processors):
    """Convert the data set `spec` on `n_processors` processors; return (processor seconds, seconds, peak memory in MiB)."""
    return run(["-m", "sarlite.data", "convert", spec, str(folder / "out"), "--memory", memory_limit, "--overwrite", "--allow-empty", "all",
                "--progress", "none"], n_processors)


def in_sql(folder, edges_file, nodes_file, memory_limit, n_processors):
    """Do the work of `convert` in SQL on a file of edges and one of nodes ("": none); return (processor seconds, seconds, peak MiB)."""
    source = f"read_csv('{edges_file}', header=true, columns={{'src': 'VARCHAR', 'dst': 'VARCHAR', 'w': 'DOUBLE'}})" \
        if edges_file.suffix == ".csv" else f"'{edges_file}'"
    listed = f"(SELECT row_number() OVER () - 1 AS n, id FROM '{nodes_file}')" if nodes_file else ""
    return run(["-c", SQL, source, listed, str(folder), memory_limit, str(n_processors)], n_processors)


def run(words, n_processors):
    """Run Python with the arguments `words` on `n_processors` processors; return (processor seconds, seconds, peak memory in MiB)."""
    code = (f"import os, resource, subprocess, sys, time; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{n_processors}]); "
            "begin = time.time(); subprocess.run([sys.executable, *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL); "
            "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
            "print(used.ru_utime + used.ru_stime, time.time() - begin, used.ru_maxrss / 1024)")
    done = subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True, text=True)
    return tuple(map(float, done.stdout.split()))


def main(arguments=None):
    """Convert text and Parquet edges, with or without a table of nodes; print a result row for each."""
    options = harness.parser(__doc__)
    options.add_argument("--nodes", type=int, default=1_000_000)
    options.add_argument("--edges", type=int, default=10_000_000)
    options.add_argument("--memory", default="1GiB")
    options.add_argument("--processors", type=int, default=1)
    options = options.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        write(folder, options.nodes, options.edges)
        ends = "src=src,dst=dst,weight=w"
        for name, file, nodes in (("text", "edges.csv", ""), ("parquet", "edges.parquet", ""),
                                  ("text, nodes in a table", "edges.csv", folder / "nodes.parquet")):
            spec = f"edges:{folder / file},{ends}" + (f",nodes={nodes},id=id" if nodes else "")
            cpu, seconds, mib = convert(folder, spec, options.memory, options.processors)
            sql_cpu, *_ = in_sql(folder, folder / file, nodes, options.memory, options.processors)
            rows.append({"source": name, "edges": options.edges, "cpu_s": round(cpu, 2), "s": round(seconds, 2), "peak_mib": round(mib),
                         "sql_cpu_s": round(sql_cpu, 2), "ratio": round(cpu / sql_cpu, 2)})
    harness.report(f"convert --memory {options.memory}, {options.processors} processors, processor time and time", rows,
                   harness.named("source", "edges", "cpu_s", "s", "peak_mib", "sql_cpu_s", "ratio"), options.json)


if __name__ == "__main__":
    sys.exit(main())

"""Measure converting and dividing a graph that is larger than memory, and the edge cut of Fennel's parts compared with METIS's.

Part `large` draws a power-law graph with communities, with ids at random, as an edge list, in chunks. It then measures
these commands:

    python -m sarlite.data convert edges:EDGES.npy,features=X.npy,nodes=N DIR --undirected --memory SIZE
    python -m sarlite.data partition DIR --parts P --method fennel --memory SIZE
    python -m sarlite.data report DIR --memory SIZE

Each command has a row: the wall time, the processor time, and two numbers of memory. Both are read ten times a second.
The first is the kernel's high-water mark of the process's resident memory, mapped pages included. The second is the
largest sum of the proportional sets (PSS) of the process and its children.

Part `relational` does the same with a folder like ogbn-mag's, of random edges between nodes of its four types:

    python -m sarlite.data convert mag:FOLDER DIR --memory SIZE
    python -m sarlite.data partition DIR --parts P --method random --memory SIZE

Part `cuts` divides graphs of `seeded_graphs.py` by both methods in this process; M is products-like, with 400,000 nodes of
mean degree 50.
"""

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import harness
import numpy as np
import seeded_graphs

from sarlite.structure.partition import partition, report
from sarlite.structure.relational_generator import RELATIONS, TARGET, TYPES

CHUNK = 1 << 22
RATIO = 2.5


def draw(folder, n_nodes, n_pairs, n_features, seed=0, inside=0.7):
    """Write random edges as edges.npy, (n_pairs, 2), and features.npy; a share `inside` of the edges stays within a community.

    Memory: 40 bytes per node, and a chunk.
    """
    rng = np.random.default_rng(seed)
    weights = np.minimum((1 - rng.random(n_nodes)) ** (-1 / 1.5), 60 * 3)
    sums = np.concatenate(([0.0], np.cumsum(weights)))
    sizes = np.exp(rng.uniform(np.log(200), np.log(4000), n_nodes // 200)).astype(np.int64)
    ends = np.cumsum(sizes)
    bounds = np.concatenate(([0], ends[ends < n_nodes], [n_nodes]))
    ids = rng.permutation(n_nodes).astype(np.int32)
    with npy(folder / "edges.npy", (n_pairs, 2), np.int32) as edges:
        for at in range(0, n_pairs, CHUNK):
            u = locate(sums, rng.random(min(CHUNK, n_pairs - at)) * sums[-1])
            community = np.searchsorted(bounds, u, side="right") - 1
            near = rng.random(u.size) < inside
            low = np.where(near, sums[bounds[community]], 0)
            high = np.where(near, sums[bounds[community + 1]], sums[-1])
            edges.write(np.stack([ids[u], ids[locate(sums, low + rng.random(u.size) * (high - low))]], axis=1))
    with npy(folder / "features.npy", (n_nodes, n_features), np.float32) as rows:
        for at in range(0, n_nodes, 1 << 18):
            rows.write(rng.standard_normal((min(1 << 18, n_nodes - at), n_features), np.float32))


def draw_mag(folder, n_nodes, n_edges, n_features, seed=0):
    """Write random data in the file layout of ogbn-mag's folder "raw". Memory: one chunk, and 8 bytes for each paper."""
    rng, counts = np.random.default_rng(seed), {name: max(8, round(share * n_nodes)) for name, share in TYPES.items()}
    raw, split, n = folder / "raw", folder / "split" / "time" / TARGET, counts[TARGET]
    text(raw / "num-node-dict.csv.gz", [",".join(counts), "\n", ",".join(map(str, counts.values())), "\n"])
    text(raw / "triplet-type-list.csv.gz", [",".join(relation) + "\n" for relation in RELATIONS])
    text(raw / "nodetype-has-label.csv.gz",
         [",".join(counts), "\n", ",".join(str(name == TARGET) for name in counts), "\n"])
    row_texts = np.array([",".join(map("{:.4f}".format, row)) + "\n" for row in rng.standard_normal((1000, n_features))],
                         object)
    text(raw / "node-feat" / TARGET / "node-feat.csv.gz",
         ("".join(row_texts[rng.integers(0, 1000, size)]) for size in sizes(n, 1 << 14)))
    text(raw / "node-label" / TARGET / "node-label.csv.gz",
         (csv_lines(rng.integers(0, 40, (size, 1))) for size in sizes(n, CHUNK)))
    for k, name in enumerate(("train", "valid", "test")):
        text(split / f"{name}.csv.gz", [csv_lines(np.arange(k, n, 3)[:, None])])
    for relation, share in RELATIONS.items():
        to, total = raw / "relations" / "___".join(relation), round(share * n_edges)
        text(to / "num-edge-list.csv.gz", [f"{total}\n"])
        text(to / "edge.csv.gz", (csv_lines(np.stack([rng.integers(0, counts[end], size) for end in relation[::2]], 1))
                                  for size in sizes(total, 1 << 20)))  # fmt: skip


def text(path, pieces):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", compresslevel=1) as file:
        for piece in pieces:
            file.write(piece)


def csv_lines(rows):
    """Return the text of a csv file with the integers `rows`, (n, k)."""
    return (",".join(["%d"] * rows.shape[1]) + "\n") * len(rows) % tuple(rows.ravel().tolist())


def sizes(n, most):
    return [min(most, n - at) for at in range(0, n, most)]


def locate(sums, points):
    return np.minimum(np.searchsorted(sums, points, side="right"), sums.size - 1) - 1


class npy:
    """Context manager that writes a .npy file array after array, so that the whole is never in memory."""

    def __init__(self, path, shape, dtype):
        self._file = open(path, "wb")  # noqa: SIM115, closed by `__exit__`
        np.lib.format.write_array_header_1_0(self._file,
                                             {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape})

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def write(self, rows):
        np.ascontiguousarray(rows).tofile(self._file)


class Sampler(threading.Thread):
    """Thread that watches the memory of the process `pid` and its descendants until `over` is set, and keeps the largest values.

    It records the largest sum of the PSS of the process and its descendants, and the kernel's high-water mark of the process.
    """

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.pss, self.rss, self.over = pid, 0, 0, threading.Event()

    def run(self):
        while not self.over.wait(0.1):
            self.pss = max(self.pss, sum(kib(pid, "smaps_rollup", "Pss:") for pid in family(self.pid)) * 1024)
            self.rss = max(self.rss, kib(self.pid, "status", "VmHWM:") * 1024)


def family(pid):
    pids = [pid]
    for one in pids:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{one}/task"):
                pids += map(int, Path(f"/proc/{one}/task/{task}/children").read_text().split())
    return pids


def kib(pid, name, field):
    with suppress(OSError, StopIteration):
        return next(int(line.split()[1]) for line in Path(f"/proc/{pid}/{name}").read_text().splitlines()
                    if line.startswith(field))
    return 0


def measured(step, *words):
    """Run `python -m sarlite.data WORDS`; return the result row of `step` with its seconds, CPU seconds and peak bytes."""
    command = [sys.executable, "-m", "sarlite.data", *map(str, words)]
    harness.note(" ".join(command[1:]))
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        sampler = Sampler(child.pid)
        sampler.start()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        sampler.over.set()
        said.seek(0)
        text = said.read()
    if child.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with status {child.returncode}:\n{text[-3000:]}")
    print(text)
    return {"step": step, "seconds": time.perf_counter() - begin, "cpu_s": used.ru_utime + used.ru_stime,
            "peak_rss": sampler.rss, "peak_pss": sampler.pss}  # fmt: skip


def large(args):
    with tempfile.TemporaryDirectory(prefix="sarlite-large-", dir=args.scratch) as scratch:
        folder, memory = Path(scratch), ("--memory", args.memory, "--progress", "none")
        harness.note(f"drawing {args.pairs:,} pairs of {args.nodes:,} nodes")
        draw(folder, args.nodes, args.pairs, args.features)
        spec = f"edges:{folder}/edges.npy,features={folder}/features.npy,nodes={args.nodes}"
        empty = [word for split in ("train", "val", "test") for word in ("--allow-empty", split)]
        rows = [measured("convert", "convert", spec, folder / "data", "--undirected", *empty, *memory),
                measured("partition", "partition", folder / "data", "--parts", args.parts, "--method", "fennel",
                         *memory),
                measured("report", "report", folder / "data", *memory)]  # fmt: skip
    harness.report(f"{args.pairs:,} pairs, {args.nodes:,} nodes, {args.features} features, {args.parts} parts, "
                   f"--memory {args.memory}",
                   rows, LARGE, args.json)  # fmt: skip


def relational(args):
    with tempfile.TemporaryDirectory(prefix="sarlite-large-", dir=args.scratch) as scratch:
        folder, memory = Path(scratch), ("--memory", args.memory, "--progress", "none")
        harness.note(f"writing a folder of {args.nodes:,} nodes and {args.pairs:,} edges")
        draw_mag(folder / "mag", args.nodes, args.pairs, args.features)
        rows = [measured("convert", "convert", f"mag:{folder}/mag", folder / "data", *memory)]
        stored = sum(path.stat().st_size for path in (folder / "data").rglob("*.npy"))
        rows.append(measured("partition", "partition", folder / "data", "--parts", args.parts, "--method", "random",
                             *memory))
    harness.report(f"Relational: {args.pairs:,} edges and their reverses, {args.nodes:,} nodes, {args.features} "
                   "features, "
                   f"{harness.mib(stored)} MiB in all, {args.parts} parts, --memory {args.memory}",
                   rows, LARGE, args.json and args.json.with_name(f"relational-{args.json.name}"))  # fmt: skip


def cuts(args):
    rows = []
    for name in args.graphs_of:
        graph = seeded_graphs.arrays_of(seeded_graphs.path(args.graphs, name))
        for n_parts in args.parts_of:
            row = {"graph": name, "parts": n_parts}
            for method in ("metis", "fennel"):
                begin = time.perf_counter()
                parts = partition(*graph, n_parts, method, balance="nodes")
                row[f"{method}_s"] = time.perf_counter() - begin
                quality = report(*graph, parts, n_parts)
                row |= {method: quality["cut_share"], f"{method}_nodes": quality["imbalance"]["nodes"]}
            harness.note(f"{name}, {n_parts} parts: {row['fennel'] / row['metis']:.2f} times METIS's cut")
            rows.append({**row, "ratio": row["fennel"] / row["metis"]})
    harness.report(f"Edges cut; at most {RATIO} times METIS's", rows, CUTS, args.json
                   and args.json.with_name(f"cuts-{args.json.name}"))


LARGE = {
    "step": lambda r: r["step"],
    "s": lambda r: r["seconds"],
    "CPU s": lambda r: r["cpu_s"],
    "peak RSS MiB": lambda r: harness.mib(r["peak_rss"]),
    "peak PSS MiB": lambda r: harness.mib(r["peak_pss"]),
}
CUTS = {
    "graph": lambda r: r["graph"],
    "parts": lambda r: r["parts"],
    "METIS": lambda r: r["metis"],
    "Fennel": lambda r: r["fennel"],
    "ratio": lambda r: r["ratio"],
    "nodes, max / mean": lambda r: r["fennel_nodes"],
    "METIS s": lambda r: r["metis_s"],
    "Fennel s": lambda r: r["fennel_s"],
}


def main(argv=None):
    args = arguments().parse_args(argv)
    for part in args.only:
        {"large": large, "relational": relational, "cuts": cuts}[part](args)


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--only", type=harness.words, default=["large", "relational", "cuts"],
                        help="large, relational, cuts [all]")
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--pairs", type=int, default=50_000_000, help="each becomes an edge either way")
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--scratch", metavar="DIR",
                        help="where the data are written (default: the system's temporary folder)")
    parser.add_argument("--graphs-of", type=harness.words, default=["S", "S-shuffled", "M", "M-shuffled"],
                        help="graphs that are cut")
    parser.add_argument("--parts-of", type=harness.numbers, default=[4, 16])
    parser.add_argument("--graphs", type=Path, default=harness.GRAPHS, metavar="DIR", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

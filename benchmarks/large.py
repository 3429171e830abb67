"""A graph larger than memory: converted and divided with --memory, and what Fennel cuts beside METIS.

Part `large` draws a power-law graph with communities, ids at random, into an edge list, in chunks; then measures the commands

    python -m sarlite.data convert edges:EDGES.npy,features=X.npy,nodes=N DIR --undirected --memory SIZE
    python -m sarlite.data partition DIR --parts P --method fennel --memory SIZE
    python -m sarlite.data report DIR --memory SIZE

each by its wall and processor time, the kernel's high-water mark of the process's resident memory (mapped pages included), read ten
times a second, and the largest sum of the proportional sets (PSS) of the process and its children. Part `cuts` divides graphs of
`graphs.py` (M is products-like: 400,000 nodes of mean degree 50) by both methods in this process.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import graphs
import harness
import numpy as np

from sarlite.graph.partition import partition, report

CHUNK = 1 << 22
RATIO = 2.5


def draw(folder, n_nodes, n_pairs, n_features, seed=0, inside=0.7):
    """Write `n_pairs` random pairs of nodes, edges.npy (n_pairs, 2), and features.npy; memory: 40 bytes a node, and a chunk."""
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


def locate(sums, points):
    return np.minimum(np.searchsorted(sums, points, side="right"), sums.size - 1) - 1


class npy:
    """A .npy file, written in pieces."""

    def __init__(self, path, shape, dtype):
        self._file = open(path, "wb")  # noqa: SIM115, closed by `__exit__`
        np.lib.format.write_array_header_1_0(self._file, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape})

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def write(self, rows):
        np.ascontiguousarray(rows).tofile(self._file)


class Sampler(threading.Thread):
    """The largest sum of the PSS of a process and its descendants, and the kernel's high-water mark of the process."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.pss, self.rss, self.over = pid, 0, 0, threading.Event()

    def run(self):
        while not self.over.wait(0.1):
            self.pss = max(self.pss, sum(kib(pid, "smaps_rollup", "Pss:") for pid in family(self.pid)) * 1024)
            self.rss = max(self.rss, kib(self.pid, "status", "VmHWM:") * 1024)


def family(pid):
    found = [pid]
    for one in found:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{one}/task"):
                found += map(int, Path(f"/proc/{one}/task/{task}/children").read_text().split())
    return found


def kib(pid, name, field):
    with suppress(OSError, StopIteration):
        return next(int(line.split()[1]) for line in Path(f"/proc/{pid}/{name}").read_text().splitlines() if line.startswith(field))
    return 0


def measured(step, *words):
    """Run `python -m sarlite.data` with these words; return a row."""
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
                measured("partition", "partition", folder / "data", "--parts", args.parts, "--method", "fennel", *memory),
                measured("report", "report", folder / "data", *memory)]  # fmt: skip
    harness.report(f"{args.pairs:,} pairs, {args.nodes:,} nodes, {args.features} features, {args.parts} parts, --memory {args.memory}",
                   rows, LARGE, args.json)  # fmt: skip


def cuts(args):
    rows = []
    for name in args.graphs_of:
        with np.load(graphs.path(args.graphs, name)) as arrays:
            graph = arrays["indptr"], arrays["indices"]
        for n_parts in args.parts_of:
            row = {"graph": name, "parts": n_parts}
            for method in ("metis", "fennel"):
                begin = time.perf_counter()
                parts = partition(*graph, n_parts, method, balance="nodes")
                row[f"{method}_s"] = time.perf_counter() - begin
                found = report(*graph, parts, n_parts)
                row |= {method: found["cut_share"], f"{method}_nodes": found["imbalance"]["nodes"]}
            harness.note(f"{name}, {n_parts} parts: {row['fennel'] / row['metis']:.2f} times METIS's cut")
            rows.append({**row, "ratio": row["fennel"] / row["metis"]})
    harness.report(f"Edges cut; at most {RATIO} times METIS's", rows, CUTS, args.json and args.json.with_name(f"cuts-{args.json.name}"))


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
        {"large": large, "cuts": cuts}[part](args)


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--only", type=harness.words, default=["large", "cuts"], help="large, cuts [both]")
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--pairs", type=int, default=50_000_000, help="each becomes an edge either way")
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--scratch", metavar="DIR", help="where the data are written (default: the system's temporary folder)")
    parser.add_argument("--graphs-of", type=harness.words, default=["S", "S-shuffled", "M", "M-shuffled"], help="graphs that are cut")
    parser.add_argument("--parts-of", type=harness.numbers, default=[4, 16])
    parser.add_argument("--graphs", type=Path, default=harness.GRAPHS, metavar="DIR", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

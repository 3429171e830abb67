"""Measure the conversion of a CSV of edges whose ids are words: CPU seconds and peak memory.

The command runs once with a limit of memory and once without.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np


def write(path, n_edges, n_nodes, seed=0, at_once=1 << 18):
    """Write a CSV file of random weighted edges between nodes with names such as n0000007, `at_once` edges at a time."""
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        file.write("source,target,amount\n")
        for at in range(0, n_edges, at_once):
            ends = rng.integers(0, n_nodes, (2, min(at_once, n_edges - at))).tolist()
            file.write("".join(f"n{u:07},n{v:07},{u % 100 / 100}\n" for u, v in zip(*ends)))


def measure(spec, folder, *flags):
    """Convert the data set `spec` in a process of its own; return its CPU seconds and its peak memory in MiB as a dict."""
    words = [sys.executable, "-m", "sarlite.data", "convert", spec, str(folder), *flags, "--overwrite", "--progress", "none"]
    words += [word for name in ("train", "val", "test") for word in ("--allow-empty", name)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"convert failed: {status}")
    return {"cpu_seconds": round(used.ru_utime + used.ru_stime, 1), "peak_mib": used.ru_maxrss >> 10}


def main(n_edges=10_000_000, n_nodes=1_000_000):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "e.csv")
        write(path, n_edges, n_nodes)
        spec = f"edges:{path},src=source,dst=target,weight=amount"
        for flags in (("--memory", "1GiB"), ()):
            measured = measure(spec, Path(folder, "d"), *flags)
            print(json.dumps({"edges": n_edges, "nodes": n_nodes, "memory": flags[-1] if flags else None, **measured}), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

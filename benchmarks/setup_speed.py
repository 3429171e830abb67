"""Measure the memory of a rank after setup and at its peak, and the time of setup, for several numbers of ranks N.

The question is whether both fall as 1 / N. The cases are a ring in contiguous parts, and an R-MAT graph in random parts
(METIS's parts are uneven on it, which is another question), stored by parts for each number of ranks. Ranks are processes
of mpiexec. The growth of resident memory over `load_part` is measured at its end and at its highest. So are the bytes of
the arrays that graph and rows hold, with the halo's bytes (which rows come from and go to peers) by themselves.

`fixed` is what remains for a ring of 1,000 nodes: pages of libraries and of MPI. `held` is without `fixed`. `x N` is the
largest rank's own bytes times N, over that of the fewest ranks: 1 is proportional to 1 / N.

`partition` runs with METIS replaced by parts drawn from the ids, so it is the time of all but METIS. `first epoch` is the
time from the start of mpiexec to the start of the first epoch. With `--before DIR`, a checkout of another version with
its compiled module, both take turns, each on data that it wrote itself.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import harness

HERE = Path(__file__).parents[1]


class Tree:
    """Checkout of sarlite whose setup is measured, at `path`, with a folder for the data sets that this checkout writes."""

    def __init__(self, name, path, scratch):
        self.name, self.path, self.scratch = name, Path(path).resolve(), Path(scratch, name)
        self.scratch.mkdir(parents=True, exist_ok=True)
        # False: the parts are a file beside the data
        self.by_parts = not (self.path / "sarlite" / "data" / "shard.py").exists()

    def python(self, *arguments, n_ranks=None):
        launcher = [harness.find_mpiexec(), "-n", str(n_ranks)] if n_ranks else []
        environ = {**os.environ, "PYTHONPATH": str(self.path), "OMP_NUM_THREADS": "1"}
        return harness.python(*arguments, launcher=launcher, timeout=None, env=environ, cwd=self.scratch)

    def inside(self, function, *arguments, n_ranks=None):
        return self.python(Path(__file__).with_name("setup_inside.py"), function, json.dumps(arguments),
                           n_ranks=n_ranks)

    def write(self, case, args):
        """Write the undivided data set of a case, "ring", "rmat" or "tiny", unless it exists."""
        if not (self.scratch / case).exists():
            if case != "rmat":
                self.inside("ring", str(self.scratch / case), args.ring if case == "ring" else 1000, args.features)
            else:
                self.python("-m", "sarlite.data", "convert", f"rmat:{args.rmat},features={args.features}",
                            self.scratch / case)

    def divide(self, case, n_parts):
        """Divide the data set of a case into `n_parts` parts; return the directory of the divided data set."""
        method, plain = METHODS[case], self.scratch / case
        where = self.scratch / f"{case}-{n_parts}" if self.by_parts else plain
        words = ["--output", where, "--overwrite"] if self.by_parts else []
        self.python("-m", "sarlite.data", "partition", plain, "--parts", n_parts, "--method", method, *words)
        return where

    def hold(self, case, n_ranks, directory):
        with tempfile.TemporaryDirectory() as run_dir:
            options = {"data": str(directory), "partition": METHODS[case], "verify": False, "run_dir": run_dir,
                       "prefetch": 1}
            return harness.last_json(self.inside("hold", options, n_ranks=n_ranks))

    def first_epoch(self, case, n_ranks, directory):
        with tempfile.TemporaryDirectory() as folder:
            start, run = time.time(), Path(folder, "run")
            self.python("-m", "sarlite.train", "--data", directory, "--partition", METHODS[case], "--epochs", 1,
                        "--hidden", 8,
                        # fmt: skip
                        "--layers", 1, "--threads", 1, "--run-dir", run, "--progress", "none", n_ranks=n_ranks)
            line = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
            return (run / "metrics.jsonl").stat().st_mtime - start - line["seconds"]

    def partition(self, case, n_parts):
        words = ["--output", str(self.scratch / "partitioned"), "--overwrite"] if self.by_parts else []
        return harness.last_json(self.inside("partition", [str(self.scratch / case), "--parts", str(n_parts), *words]))


METHODS = {"ring": "contiguous", "rmat": "random", "tiny": "contiguous"}


def fixed_bytes(tree, n_ranks, args):
    tree.write("tiny", args)
    return max(tree.hold("tiny", n_ranks, tree.divide("tiny", n_ranks))["held"])


def measure_ranks(tree, case, n_ranks, args):
    directory = tree.divide(case, n_ranks)
    measured, fixed = tree.hold(case, n_ranks, directory), fixed_bytes(tree, n_ranks, args)
    seconds = [tree.first_epoch(case, n_ranks, directory) for _ in range(args.rounds)] if args.times else []
    harness.note(f"{tree.name}, {case}, {n_ranks} ranks: {harness.mib(max(measured['held']))} MiB held")
    return {"tree": tree.name, "case": case, "ranks": n_ranks, **{name: max(values) for name, values in measured.items()},
            # fmt: skip
            "held": max(measured["held"]) - fixed, "fixed": fixed, "first_epoch_s": min(seconds, default=None)}


def main(argv=None):
    args = arguments().parse_args(argv)
    rows, partitions = [], []
    with tempfile.TemporaryDirectory(prefix="sarlite-setup-", dir=args.scratch) as scratch:
        trees = [Tree("after", HERE, scratch)] + ([Tree("before", args.before, scratch)] if args.before else [])
        for case in args.cases:
            for tree in trees:
                tree.write(case, args)
            for n_ranks in args.ranks:
                rows += [measure_ranks(tree, case, n_ranks, args) for tree in trees]
            rows_of = {tree.name: [] for tree in trees}
            for _ in range(args.rounds if args.times else 0):
                for tree in trees:
                    rows_of[tree.name].append(tree.partition(case, args.parts))
            partitions += [{"case": case, "tree": name, **{key: min(one[key] for one in every) for key in every[0]}}
                           for name, every in rows_of.items() if every]  # fmt: skip
    for row in rows:
        first = next(one for one in rows if (one["tree"], one["case"]) == (row["tree"], row["case"]))
        row["proportional"] = row["own"] * row["ranks"] / (first["own"] * first["ranks"])
        held, first_held = ((one["held"] - one["halo_ids"]) * one["ranks"] for one in (row, first))
        row["held_proportional"] = held / max(1, first_held)
    harness.report(f"Setup: ring of {args.ring:,} nodes, rmat:{args.rmat}, {args.features} features; largest rank, "
                   "MiB", rows, COLUMNS,
                   args.json)  # fmt: skip
    if partitions:
        path = args.json and args.json.with_name(f"partition-{args.json.name}")
        harness.report(f"partition into {args.parts} without METIS, least of {args.rounds}", partitions, PARTITION,
                       path)


COLUMNS = {
    "case": lambda r: r["case"],
    "tree": lambda r: r["tree"],
    "ranks": lambda r: r["ranks"],
    "fixed": lambda r: harness.mib(r["fixed"]),
    "held": lambda r: harness.mib(r["held"]),
    "peak": lambda r: harness.mib(r["peak"]),
    "own arrays": lambda r: harness.mib(r["own"]),
    "x N": lambda r: f"{r['proportional']:.3f}",
    "held less halo, x N": lambda r: f"{r['held_proportional']:.3f}",
    "halo ids": lambda r: harness.mib(r["halo_ids"]),
    "halo rows": lambda r: harness.mib(r["halo_rows"]),
    "first epoch s": lambda r: r["first_epoch_s"],
}
PARTITION = {
    "case": lambda r: r["case"],
    "tree": lambda r: r["tree"],
    "CPU s": lambda r: r["cpu"],
    "s": lambda r: r["seconds"],
    "peak MiB": lambda r: harness.mib(r["peak"]),
}


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--cases", type=harness.words, default=["ring", "rmat"])
    parser.add_argument("--ranks", type=harness.numbers, default=[2, 4, 8])
    parser.add_argument("--ring", type=int, default=400_000, help="nodes")
    parser.add_argument("--rmat", default="nodes=2000000,edges=40000000", help="options of rmat:")
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--parts", type=int, default=8, help="of the partition that is timed")
    parser.add_argument("--rounds", type=int, default=2, help="timed runs of each tree, in alternation")
    parser.add_argument("--times", action=argparse.BooleanOptionalAction, default=True,
                        help="measure times too, not memory alone")
    parser.add_argument("--before", metavar="DIR", help="a checkout to compare with, its compiled module beside it")
    parser.add_argument("--scratch", metavar="DIR",
                        help="where the data are written (default: the system's temporary folder)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

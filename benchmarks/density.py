"""Measure how the speedup of two ranks over one rank, of one thread each, grows with the mean degree (MG-GCN 6.5, Figure 9).

The graphs are BTER graphs of as many nodes as ogbn-arxiv, 169,343. Their degrees are a discrete log-normal of mean 7 x 1,
2, 4, ... (the paper's Table 1 has mean degree 7), and their clustering by degree is 0.35 exp(-0.04 (d - 1)). Features are
512 random numbers; there are 40 classes. The model is the paper's: GCN with one hidden layer of 512, float32, Adam. Two
ranks have random parts.

    epoch      a training step. sarlite keeps the first layer's A X, so it aggregates 40 columns twice; the paper's
               aggregates 512 too
    sum        one sum over neighbours of 512 columns, forward, which is what most of the paper's epoch is
    speedup    of the medians of a round; shown is the median of the rounds, with minimum and maximum

Jobs of one rank and of two ranks take turns, `--rounds` times. In a job of two ranks the modes take turns, step by step.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import broadcast_speed
import harness
import numpy as np
import seeded_graphs

from sarlite import Graph, Tensor, fn, kernels, no_grad
from sarlite.structure import bter
from sarlite.structure.partition import METHODS

CLASSES, TRAIN_SHARE = 40, 0.54
CMAX, XI = 0.35, 0.04
CASES = ("epoch", "sum")


def path(args, scale):
    """Return the file of the BTER random graph with `scale` times the mean degree; generate the graph if the file does not exist."""
    file = Path(args.graphs, f"bter-{args.nodes}-{args.degree:g}x{scale}.npz").resolve()
    if not file.exists():
        harness.note(f"drawing a BTER graph of {args.nodes:,} nodes and mean degree {args.degree * scale:g}")
        counts = bter.log_normal(args.nodes, args.degree * scale)
        graph = bter.bter(counts, bter.decaying(len(counts) - 1, CMAX, XI), features=1, seed=scale)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}.npz")
        np.savez(unfinished, indptr=graph.indptr, indices=graph.indices)
        unfinished.replace(file)  # the file is renamed at the end, so it is either complete or missing
    return file


def work(comm, args):
    """Time epochs and neighbour sums on this rank; return {"epoch MODE" or "sum MODE": [ms of each call]}. Collective."""
    whole = Graph.from_csr(*seeded_graphs.arrays_of(args.worker))
    parts = {mode: whole.shard(comm, args.partition, mode=mode, prefetch=1)
             for mode in (args.modes if comm.size > 1 else ["sar"])}
    trainers = {mode: broadcast_speed.make_trainer(graph, 2, args.features, CLASSES, args.hidden, TRAIN_SHARE)
                for mode, graph in parts.items()}
    times = broadcast_speed.time_in_turn(comm, {f"epoch {mode}": trainer.step for mode, trainer in trainers.items()}, args.repeats)
    with kernels.Buffers(), no_grad():
        x = {mode: Tensor(trainer.x.data) for mode, trainer in trainers.items()}  # not constant: a kept sum would be reused
        sums = {f"sum {mode}": lambda mode=mode: parts[mode].aggregate(fn.copy_src(x[mode]), "sum") for mode in parts}
        times.update(broadcast_speed.time_in_turn(comm, sums, args.repeats))
    return times


def measure(args, scale):
    """Measure the BTER graph with `scale` times the mean degree on one rank, and on two in each mode; return the result rows."""
    file, rounds = path(args, scale), []
    words = [__file__, "--worker", file, "--repeats", args.repeats, "--modes", ",".join(args.modes), "--partition",
             args.partition,
             "--features", args.features, "--hidden", args.hidden]
    for number in range(args.rounds):
        harness.note(f"x{scale}: round {number + 1} of {args.rounds}")
        rounds.append({n_ranks: harness.last_json(harness.mpiexec(n_ranks, *words)) for n_ranks in (1, 2)})
    indptr, indices = seeded_graphs.arrays_of(file)
    degree = indices.size / (indptr.size - 1)
    return [row(args, case, scale, degree, rounds, n_ranks, mode) for case in CASES
            for n_ranks, mode in ((1, "sar"), *((2, mode) for mode in args.modes))]


def row(args, case, scale, degree, rounds, n_ranks, mode):
    one, several = ([times[n][name] for times in rounds] for n, name in ((1, f"{case} sar"), (n_ranks, f"{case} {mode}")))
    speedups = [statistics.median(a) / statistics.median(b) for a, b in zip(one, several)] if n_ranks > 1 else None
    return {"case": case, "graph": f"bter-{args.nodes}-{args.degree:g}x{scale}", "scale": scale, "degree": degree,
            "ranks": n_ranks,
            "threads": 1, "mode": mode if n_ranks > 1 else None,
            **harness.summary([ms for times in several for ms in times]), "peak_mib": None,
            "limit_fraction": None, "speedup": speedups}  # fmt: skip


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return harness.as_rank(work, args)
    harness.note(NOTE)
    begin = time.monotonic()
    rows = [case_row for scale in args.scales for case_row in measure(args, scale)]
    title = f"GCN 2 x {args.hidden} on BTER graphs of {args.nodes:,} nodes: one rank and two ranks of one thread"
    harness.report(title, rows, COLUMNS, args.json)
    print(f"\n{(time.monotonic() - begin) / 60:.1f} minutes")
    return None


NOTE = "a full run takes about 30 minutes on two free cores"
COLUMNS = {
    "case": lambda r: r["case"],
    "scale": lambda r: f"x{r['scale']}",
    "mean degree": lambda r: f"{r['degree']:.1f}",
    "ranks": lambda r: r["ranks"],
    "mode": lambda r: r["mode"],
    "ms": harness.times(),
    "speedup": lambda r: r["speedup"] and harness.spread(r["speedup"]),
}


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--scales", type=harness.numbers, default=[1, 2, 4, 8, 16], metavar="LIST",
                        help="of the mean degree")
    parser.add_argument("--nodes", type=int, default=169_343)
    parser.add_argument("--degree", type=float, default=7.0, help="mean degree of x1")
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--modes", type=harness.words, default=["broadcast", "sar"], help="of two ranks")
    parser.add_argument("--partition", default="random", choices=METHODS)
    harness.graphs_option(parser)
    parser.add_argument("--repeats", type=int, default=5, help="measured calls in a job, after one that warms up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

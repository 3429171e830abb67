"""Measure how much of the time of pushing embeddings to peers is hidden by computing, with a delay of 1 on a 1 Gbit/s link.

The share is relative to the smaller of transfer and computing.

GraphSAGE (2 layers of 256, 128 features) trains on minibatches with historical embedding caches. A rank of one thread
runs on each of several hosts, which are network namespaces of this machine (`hosts.py`). They need Linux, root and
iproute2; elsewhere the only row says why nothing was measured. Every row that a peer has as halo is pushed, features
too. The measured time is that of a step, from one barrier to the next.

T0 is the time of a step with delay 0, which exchanges rows within the step and overlaps nothing; T1 is the time with
delay 1. `comm` is the time of an alltoall of as many bytes, and `compute` is T0 - comm. The hidden share is (T0 - T1) /
min(comm, compute), of medians. T0, T1 and `comm` alternate. The sum of the gradients over ranks is in both T0 and T1; it
is not hidden and counts as computing.
"""

import argparse
import sys
import time

import harness
import hosts
import numpy as np

from sarlite import Graph, nn, optim
from sarlite.minibatch import HEC, NeighborLoader
from sarlite.models import SAGE
from sarlite.structure.generate import power_law
from sarlite.train.step import TrainingStep

N_IN, N_OUT, HIDDEN = 128, 32, 256


class Run:
    """Minibatch training where pushed embeddings arrive `delay` steps later. Each call trains one step and returns its milliseconds."""

    def __init__(self, comm, graph, args, delay):
        n, rng, draw = graph.n_src, nn.Random(0), np.random.default_rng(comm.rank)
        model = SAGE(N_IN, N_OUT, layers=2, hidden=HIDDEN, batch_norm=False, rng=rng)
        self.comm, self.step = comm, TrainingStep(model, optim.Adam(nn.flatten(model), 0.001), rng, comm)
        remote = HEC(limit=1_000_000, delay=delay, features="cache")
        self.loader = NeighborLoader(graph, draw.standard_normal((n, N_IN), dtype=np.float32),
                                     draw.integers(0, N_OUT, n), slice(None),
                                     fanouts=args.fanouts, batch_size=args.batch, remote=remote, sample_ahead=1)
        self.batches = iter(())

    def __call__(self):
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        self.comm.barrier()
        begin = time.perf_counter()
        self.step(batch)
        self.comm.barrier()
        return 1e3 * (time.perf_counter() - begin)

    def push_alone(self, bytes_of_step):
        """Return the milliseconds of an alltoall that sends `bytes_of_step` bytes from each rank. Collective."""
        each = bytes_of_step // (self.comm.size - 1)
        message = [np.zeros(0 if peer == self.comm.rank else each, np.uint8) for peer in range(self.comm.size)]
        self.comm.barrier()
        begin = time.perf_counter()
        self.comm.alltoall(message)
        self.comm.barrier()
        return 1e3 * (time.perf_counter() - begin)


def work(comm, args):
    """Return {"T0", "T1" (delay 0, 1) or "comm" (push alone): [ms of each step], "bytes": most bytes a rank pushed}. Collective."""
    src = power_law(args.nodes, args.edges, inside=args.inside)
    graph = Graph.from_csr(*src).shard(comm, "contiguous")
    runs = {f"T{delay}": Run(comm, graph, args, delay) for delay in (0, 1)}
    times_of, sent = {way: [] for way in (*runs, "comm")}, 0
    for _ in range(args.repeats + 3):  # the first ones warm up
        for way, run in runs.items():
            before = run.loader.counts["bytes_pushed"]
            times_of[way].append(run())
            if way == "T0":
                sent = max(comm.allgather(run.loader.counts["bytes_pushed"] - before))
        times_of["comm"].append(runs["T0"].push_alone(sent))
    return {"bytes": sent, **{way: times[3:] for way, times in times_of.items()}}


def row_of(args, measured):
    """Return the result row of the share of pushing that is hidden, from `measured`, the result of `work`."""
    return {"case": "push", "graph": f"{args.nodes}:{args.edges}", "inside": args.inside, "ranks": args.ranks,
            **hosts.hidden(measured["T0"], measured["T1"], measured["comm"]), "mib": measured["bytes"] / 2**20}


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return harness.as_rank(work, args)
    reason = hosts.missing()
    if reason:
        return hosts.report_skipped("push", reason, args.json)
    words = [__file__, "--worker",
             *(f"--{name}={getattr(args, name)}" for name in ("nodes", "edges", "inside", "batch", "repeats")),
             "--fanouts", ",".join(map(str, args.fanouts))]
    with hosts.Hosts(args.ranks, args.rate) as network:
        measured = harness.last_json(harness.python(*words, launcher=network.launcher(harness.find_mpiexec())))
    title = f"{args.ranks} hosts of one thread, links of {args.rate}, {args.batch:,} seeds a step: median (min..max) ms"
    harness.report(title, [row_of(args, measured)], COLUMNS, args.json)
    return None


COLUMNS = {**hosts.COLUMNS, "MiB": lambda r: f"{r['mib']:.1f}"}


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc reads it")
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=2_000_000)
    parser.add_argument("--inside", type=float, default=0.9, help="share of the edges inside a community")
    parser.add_argument("--batch", type=int, default=8000, help="seeds a step, of all ranks")
    parser.add_argument("--fanouts", type=lambda text: tuple(map(int, text.split(","))), default=(5, 10),
                        metavar="LIST")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

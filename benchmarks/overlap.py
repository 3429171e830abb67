"""Measure the share of a fetch's transfer that computing hides with prefetch 1, on a link of 1 Gbit/s.

The share is relative to the smaller of transfer and computing.

One rank of one thread runs on each of several hosts, which are network namespaces of this machine (`hosts.py`). They need
Linux, root and iproute2; elsewhere the only row says why nothing was measured. The measured call is one distributed
aggregation in mode sar, or in another one by `--mode`, forward and backward. Memory is reused, as in a training step.

`copy_src` with reducer mean and 256 features is case 1. Its backward pass pushes gradients and fetches nothing; in mode
broadcast it broadcasts the gradients of the destinations. `attend` with 4 heads x 32 is case 2: its backward pass fetches
the rows again.

The graph is one of `seeded_graphs.py`, or drawn by `power_law`; its parts are contiguous, or `--partition random`. The
drawn graph has so many edges that computing takes about as long as the transfer. A share `--inside` of them lies in
communities, and about 11 % join two parts. With one peer, the share of computing of these edges waits for the last row,
or the first gradient waits for it. Where the transfer takes longer than the local edges, that share is not hidden.

T0 is the time with prefetch 0, which overlaps nothing, and T1 the time with prefetch 1. `comm` is the time with prefetch 0
of an operator that fetches and pushes the same rows and computes nothing; `compute` is T0 - comm. To check it, `one host`
is T0 where rows travel through shared memory. The hidden share is (T0 - T1) / min(comm, compute), and the share of the
limit is (T0 - min(comm, compute)) / T1, both of medians. T0, T1 and `comm` alternate. Where cores are busy or fewer than
ranks, nothing can be hidden.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import harness
import hosts
import numpy as np
import seeded_graphs

from sarlite import Graph, Tensor, fn, kernels
from sarlite.numerics.edge_sums import FloatSum
from sarlite.operators.aggregate import aggregate
from sarlite.structure.generate import power_law

WAYS = {"both": slice(0, 2), "forward": slice(0, 1), "backward": slice(1, 2)}


class Case(NamedTuple):
    """Aggregation to measure: its function, the row shapes of its inputs, and how many of these inputs are fetched from peers.

    `shapes` are the row shapes of its inputs, of which the first `n_fetched` are fetched from peers. `call` runs the
    aggregation. `needs_rows` is True if the backward pass fetches the rows again.
    """

    shapes: tuple
    call: callable
    n_fetched: int
    needs_rows: bool


CASES = {
    "copy_src": Case(((256,),), lambda graph, x: graph.aggregate(fn.copy_src(x), "mean"), 1, False),
    "attend": Case(((4, 32), (4,), (4,)), lambda graph, *x: graph.aggregate(fn.attend(*x), "sum"), 2, True),
}


class Nothing:
    """Operator of an aggregation that fetches the rows of the Case `case` but computes nothing, to time the transfer by itself."""

    captured = ()

    def __init__(self, case):
        self.case, self.fetched = case, ("rows", "scores")[: case.n_fetched]

    def needs_rows(self, context):
        return self.case.needs_rows

    def forward(self, inputs, context):
        return NothingPass(len(inputs[0]), self.case.shapes[: self.case.n_fetched])

    def backward(self, residuals, g, context):
        return NothingPass(len(g), self.case.shapes[: self.case.n_fetched], backward=True)


class NothingPass:
    """Forward or backward pass of the operator `Nothing`: it ignores the fetched rows of every block, and its results are zeros."""

    def __init__(self, n_dst, shapes, backward=False):
        self.n_dst, self.is_backward = n_dst, backward
        self.accumulators = [FloatSum(shape, np.dtype(np.float32)) for shape in shapes]

    def sweeps(self, rows):
        yield rows

    def add(self, *blocks_and_rows):
        pass

    def finish(self):
        return [] if self.is_backward else (np.zeros((self.n_dst, 1), np.float32), None)


def once(comm, call, inputs):
    """Run `call(*inputs)` and its backward pass between barriers; return (forward milliseconds, backward milliseconds). Collective."""
    comm.barrier()
    begin = time.perf_counter()
    out = call(*inputs)
    comm.barrier()
    middle = time.perf_counter()
    g = np.ones_like(out.data)
    comm.barrier()
    start = time.perf_counter()
    out.backward(g)
    comm.barrier()
    return 1e3 * (middle - begin), 1e3 * (time.perf_counter() - start)


def measure(comm, graphs_by_prefetch: dict[int, Graph], case: Case, repeats: int):
    """Time a case; return {"T0" or "T1" (prefetch 0, 1) or "comm" (transfer alone): [(forward ms, backward ms), ...]}. Collective."""
    draw = np.random.default_rng(comm.rank)
    inputs = [Tensor(draw.standard_normal((graphs_by_prefetch[0].n_src, *shape), dtype=np.float32), requires_grad=True)
              for shape in case.shapes]
    ways = {f"T{prefetch}": lambda *x, graph=graph: case.call(graph, *x) for prefetch, graph in graphs_by_prefetch.items()}
    ways["comm"] = lambda *x: aggregate(graphs_by_prefetch[0].schedule, Nothing(case), x[: case.n_fetched])
    times_of = {way: [] for way in ways}
    for k in range(repeats + 1):  # the first one warms up
        for way, call in ways.items():
            times = once(comm, call, inputs)
            times_of[way] += [times] if k else []
    return times_of


def work(comm, args):
    """Return {case: result of `measure`} for the cases that `args` names. Collective."""
    whole = Graph.from_csr(*seeded_graphs.arrays_of(args.worker))
    graphs = {prefetch: whole.shard(comm, args.partition, mode=args.mode, prefetch=prefetch) for prefetch in (0, 1)}
    del whole
    cases = {**CASES, "copy_src": CASES["copy_src"]._replace(shapes=((args.features,),))}
    with kernels.Buffers():  # a training step reuses memory, too
        return {name: measure(comm, graphs, cases[name], args.repeats) for name in args.cases}


def rows_of(name, args, times_on_hosts: dict, times_on_one_host: dict):
    """Return the result rows of case `name` (forward, backward, both) from two results of `measure`: on several hosts and on one host."""
    table = []
    for way, share in WAYS.items():
        t0, t1, comm, memory = ([sum(times[share]) for times in samples]
                                for samples in (times_on_hosts["T0"], times_on_hosts["T1"], times_on_hosts["comm"],
                                                times_on_one_host["T0"]))
        row = {"case": name, "way": way, "graph": args.graph or f"{args.nodes}:{args.edges}", "mode": args.mode,
               "inside": args.inside, "ranks": args.ranks, **hosts.hidden(t0, t1, comm),
               "one_host_ms": harness.summary(memory)["ms"]}
        least = min(row["compute_ms"], row["comm_ms"])
        table.append({**row, "limit_fraction": (row["t0_ms"] - least) / row["ms"]})
    return table


def run(args):
    """Measure all cases on several hosts and on one host; return the rows of the table."""
    with tempfile.TemporaryDirectory(prefix="sarlite-benchmark-") as folder, hosts.Hosts(args.ranks, args.rate) as network:
        if args.graph:
            file = seeded_graphs.path(args.graphs, args.graph)
        else:
            file = Path(folder, "graph.npz")
            np.savez(file, **dict(zip(("indptr", "indices"), power_law(args.nodes, args.edges, inside=args.inside))))
        words = [__file__, "--worker", file, "--repeats", args.repeats, "--cases", ",".join(args.cases), "--mode",
                 args.mode,
                 "--partition", args.partition, "--features", args.features]
        several = harness.last_json(harness.python(*words, launcher=network.launcher(harness.find_mpiexec())))
        one = harness.last_json(harness.mpiexec(args.ranks, *words))
    return [row for name in args.cases for row in rows_of(name, args, several[name], one[name])]


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return harness.as_rank(work, args)
    reason = hosts.missing()
    if reason:
        hosts.report_skipped("overlap", reason, args.json)
    else:
        graph = args.graph or f"{args.nodes:,} nodes, {args.edges:,} edges"
        title = f"{args.ranks} hosts of one thread, links of {args.rate}, {graph}, mode {args.mode}: median ms"
        harness.report(title, run(args), COLUMNS, args.json)
    return None


COLUMNS = {
    "case": lambda r: r["case"],
    "way": lambda r: r["way"],
    **hosts.COLUMNS,
    "one host": lambda r: f"{r['one_host_ms']:.0f}",
    "of the limit": lambda r: f"{r['limit_fraction']:.2f}",
}


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc reads it")
    parser.add_argument("--mode", choices=("sar", "broadcast"), default="sar")
    parser.add_argument("--features", type=int, default=256, help="of copy_src")
    parser.add_argument("--graph", help="of seeded_graphs.py (default: one of --nodes and --edges)")
    harness.graphs_option(parser)
    parser.add_argument("--partition", choices=("random", "contiguous"), default="contiguous")
    parser.add_argument("--nodes", type=int, default=25_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--inside", type=float, default=0.9, help="share of the edges inside a community")
    parser.add_argument("--cases", type=harness.words, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

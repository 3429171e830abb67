"""What does an aggregation by columns receive, and how long does it take, beside modes sar and broadcast on the same
ranks?

One layer's aggregation under mpiexec, forward and backward: a sum of rows of 512 values, and attention of 4 heads x 128
and 1 x 512, float32, on random parts, which broadcast wants. `RxC` is a grid of R groups of C ranks in mode sar: `1xN`
exchanges nothing but columns. The ways take turns in the same processes, `--repeats` times after one that warms up.

`ms` is the slowest rank's time of a forward and a backward pass; `wait_ms` what of it rank 0 waits for messages;
`received_mib` what a rank receives, the mean over ranks, and `predicted_mib` that by formula: (n - n_p) w of a
broadcast, the halo's rows of sar, and 2 (C - 1) / C n_p w of columns beside the halo of its group, w the bytes of a
row, for each pass; of sar's backward, and of attention's scores, what the mode sends. `balance` is the largest rank's
edges times columns over the mean.
"""

import argparse
import json
import statistics
import sys
import time

import graphs
import harness
import numpy as np

from sarlite import Tensor, fn, kernels
from sarlite.comm.launch import connect
from sarlite.profile import Trace

WIDTH, ITEM = 512, 4
CASES = {"sum": 0, "gat4": 4, "gat1": 1}  # heads; 0: a sum
WAITS = ("turn", "wait", "alltoall")


def ways(n_ranks):
    """Return {name: options of `shard`}: the modes, and each grid with more than one column."""
    grids = {f"{n_ranks // c}x{c}": {"mode": "sar", "columns": c} for c in range(2, n_ranks + 1) if n_ranks % c == 0}
    return {"sar": {"mode": "sar"}, "broadcast": {"mode": "broadcast"}, **grids}


def worker(args):
    """Measure as one rank of mpiexec; rank 0 prints the rows."""
    comm = connect()
    kernels.set_threads(args.threads)
    whole = graphs.load(args.graphs, args.graph)
    parts = np.random.default_rng(0).permutation(np.arange(whole.n_dst) % comm.size)
    made = {way: whole.shard(comm, parts, prefetch=args.prefetch, **options)
            for way, options in ways(comm.size).items()}
    rows = []
    for case in args.cases:
        found = {way: [] for way in made}
        for _ in range(args.repeats + 1):
            for way, graph in made.items():
                found[way].append(measure(comm, graph, CASES[case]))
        rows += [row(comm, args, case, way, made[way], measured[1:]) for way, measured in found.items()]
    if comm.rank == 0:
        print(json.dumps(rows))


def measure(comm, graph, heads):
    """Return (milliseconds, milliseconds of waiting, bytes received) of this rank's passes."""
    draw = np.random.default_rng(comm.rank)
    x = Tensor(draw.standard_normal((graph.n_src, WIDTH), np.float32), requires_grad=True)
    z = x.reshape(graph.n_src, max(heads, 1), -1)
    scores = Tensor(draw.standard_normal((graph.n_src, max(heads, 1)), np.float32), requires_grad=True)
    message = fn.attend(z, scores, scores) if heads else fn.copy_src(x)
    graph.profile.reset()
    graph.profile.trace = Trace()
    comm.barrier()
    begin = time.perf_counter()
    out = graph.aggregate(message, "sum")
    out.backward(np.ones_like(out.data))
    comm.barrier()
    seconds, graph_spans = time.perf_counter() - begin, graph.profile.trace.spans
    waited = sum(end - start for name, track, start, end, _ in graph_spans if track == "compute" and name in WAITS)
    received = sum(graph.profile.received_bytes.values())
    graph.profile.trace = None
    return 1e3 * seconds, waited / 1e6, received


def row(comm, args, case, way, graph, measured):
    """Return the row of a case and a way, on rank 0. Collective."""
    milliseconds, waited, received = zip(*measured)
    heads, grid = CASES[case], graph.grid
    inner = graph if grid is None else grid.graph
    work = inner.n_edges / (1 if grid is None else grid.n_columns)  # times a row's values: pieces are even
    ranks = comm.allgather((milliseconds, received[0], work, predicted(graph, way) if not heads else None))
    slowest = [max(times) for times in zip(*(rank[0] for rank in ranks))]
    mean = lambda at: sum(rank[at] for rank in ranks) / comm.size / 2**20  # noqa: E731
    return {"case": case, "graph": args.graph, "ranks": comm.size, "threads": args.threads, "way": way,
            **harness.summary(slowest),
            "wait_ms": statistics.median(waited), "received_mib": mean(1), "predicted_mib": None if heads else mean(3),
            "structure_mib": None if grid is None else grid.structure_bytes / 2**20,
            "balance": max(rank[2] for rank in ranks) * comm.size / sum(rank[2] for rank in ranks),
            "peak_mib": None, "limit_fraction": None}


def predicted(graph, way):
    """The bytes that this rank receives in both passes of a sum, by formula."""
    row_bytes = ITEM * WIDTH
    if way == "broadcast":
        return 2 * (graph.n_nodes - graph.n_dst) * row_bytes
    inner = graph if graph.grid is None else graph.grid.graph
    n_columns = 1 if graph.grid is None else graph.grid.n_columns
    halo = inner.plan.n_halo + sum(arrival.n_send for arrival in inner.plan.exchanges)  # of rows forward, of gradients backward
    others = inner.n_dst - graph.n_dst + graph.n_dst * (n_columns - 1)  # to columns, and back
    return (2 * others + halo) * row_bytes // n_columns


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return worker(args)
    graphs.path(args.graphs, args.graph)
    rows = []
    for n_ranks in args.ranks:
        flags = [word for name in ("graph", "graphs", "threads", "prefetch", "repeats")
                 for word in (f"--{name}", getattr(args, name))]
        rows += harness.last_json(harness.mpiexec(n_ranks, __file__, "--worker", *flags, "--cases",
                                                  ",".join(args.cases)))
    columns = {**harness.named("case", "ranks", "way"), "ms": harness.times()}
    columns["waiting ms"] = lambda r: f"{r['wait_ms']:,.0f}"
    for name in ("received", "predicted", "structure"):
        columns[f"{name} MiB"] = lambda r, name=name: None if r[f"{name}_mib"] is None else f"{r[f'{name}_mib']:,.2f}"
    columns["balance"] = lambda r: f"{r['balance']:.3f}"
    harness.report(f"One aggregation on {args.graph}, forward and backward", rows, columns, args.json)
    return None


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--graph", default="R", help="of graphs.py")
    harness.graphs_option(parser)
    parser.add_argument("--cases", type=harness.words, default=list(CASES))
    parser.add_argument("--ranks", type=harness.numbers, default=[2])
    parser.add_argument("--threads", type=int, default=1, help="of a rank")
    parser.add_argument("--prefetch", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

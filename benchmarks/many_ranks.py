"""Count a rank's communication rounds, messages and bytes on 2 to 64 ranks, and predict transfer times on up to 2,048 ranks.

Mode `sar` fetches the rows of K peers in a round (`--peers-at-once K`). The model of a transfer is

    seconds = rounds * latency + messages * overhead + bytes / rate

The rounds are (N - 1) / K, rounded up. A rank receives one message from each peer that has rows for the rank.

| part | result |
|---|---|
| `counts` | rounds, messages and bytes of the rank that has most, in a forward and a backward pass of one sum; ranks are threads |
| `hosts` | milliseconds of a fetch on hosts that are network namespaces (`hosts.py`), measured and by the model; nothing is computed |
| `predict` | the model's milliseconds of a fetch of 256 columns for graphs of public sizes and three networks; random parts |

In part `hosts` the ranks take turns on the cores of this machine, so latency and overhead count times the ranks a core.
Latency, overhead and rate are fitted to the times of `--fit-on` hosts; the other numbers of hosts test the model. Part
`predict` takes `--overhead` from there, and latency and rate of the network. Each rank needs
(n - n / N) (1 - exp(-d / N)) rows of its peers, where n is the number of nodes and d the mean degree.
"""

import argparse
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

import harness
import hosts
import numpy as np
import overlap
import seeded_graphs

from sarlite import Graph, Tensor, fn
from sarlite.comm import threads
from sarlite.kernels import set_threads
from sarlite.operators.aggregate import aggregate
from sarlite.profile import Trace

PARTS = "counts", "hosts", "predict"
ENOUGH = 0.05
"""Share of a fetch's time that may be lost by waiting for more rounds than one."""


class Shape(NamedTuple):
    """Size of a graph: number of nodes, and mean number of in-edges of a node."""

    nodes: float
    degree: float


class Network(NamedTuple):
    """Network between hosts: `latency`, seconds until a round's first byte arrives, and `rate`, bytes per second of a link."""

    latency: float
    rate: float


SHAPES = {"Reddit": Shape(232_965, 492), "ogbn-products": Shape(2_449_029, 51), "ogbn-papers100M": Shape(111_059_956, 29)}
NETWORKS = {"1 Gbit/s": Network(100e-6, 0.117e9), "25 Gbit/s": Network(30e-6, 2.9e9), "200 Gbit/s": Network(3e-6, 24e9)}


def peers_at_once(n_ranks):
    """Return the numbers of peers whose rows are fetched together (`peers_at_once`) that are tried on N ranks."""
    return sorted({k for k in (1, 4, 16, n_ranks - 1) if k < n_ranks})


# ---- counts


def counted(comm, args, whole, partition_method, n_peers_at_once):
    """Return a dict of this rank's rounds, messages and MiB in a neighbour sum on `whole`, with `n_peers_at_once` peers per fetch."""
    set_threads(1)
    graph = whole.shard(comm, partition_method, prefetch=0, peers_at_once=n_peers_at_once)
    x = Tensor(np.ones((graph.n_src, args.width), np.float32), requires_grad=True)
    graph.profile.reset()
    graph.profile.trace = Trace()
    graph.aggregate(fn.copy_src(x), "mean").backward(np.ones((graph.n_dst, args.width), np.float32))
    received, spans = graph.profile.received_bytes, graph.profile.trace.spans
    messages = {kind: sum(track == kind and span["bytes"] > 0 for _, track, _, _, span in spans)
                for kind in ("fetch", "push")}
    return {"rounds": sum(bool(piece.arrivals) for piece in graph.plan.forward), "fetches": messages["fetch"],
            "fetched_mib": received["forward_fetch"] / 2**20, "pushes": messages["push"],
            "pushed_mib": received["backward_push"] / 2**20, "peers_held": float(graph.profile.peak_remote_buffers)}


def counts(args):
    """Return the rows of table "counts": the largest counts of any rank, by partition method, number of ranks, and peers per fetch."""
    whole = seeded_graphs.whole(args.graphs, args.graph)
    rows = []
    for method in args.partitions:
        for n_ranks in args.ranks:
            for k in peers_at_once(n_ranks):
                by_rank = threads.run(n_ranks, counted, args, whole, method, k)
                most = {name: max(rank[name] for rank in by_rank) for name in by_rank[0]}
                rows.append({"part": "counts", "graph": args.graph, "partition": method, "width": args.width,
                             "ranks": n_ranks, "peers_at_once": k, **most})
    return rows


# ---- the model, on hosts


def fetches(comm, args):
    """Time fetches of halo rows on this rank; return result rows by row width and number of peers fetched together. Collective."""
    whole = Graph.from_csr(*seeded_graphs.arrays_of(args.worker))
    rows = []
    for k in peers_at_once(comm.size):
        graph = whole.shard(comm, "random", prefetch=0, peers_at_once=k)
        coming = [arrival.n_rows for piece in graph.plan.forward for arrival in piece.arrivals]
        rounds, messages, n_rows = (max(comm.allgather(n)) for n in (
            sum(bool(piece.arrivals) for piece in graph.plan.forward), sum(n > 0 for n in coming), sum(coming)))
        for width in args.widths:
            fetch_only = overlap.Nothing(overlap.Case(((width,),), None, 1, False))
            x = Tensor(np.ones((graph.n_src, width), np.float32))
            ms = statistics.median([fetch_ms(comm, args, graph, fetch_only, x) for _ in range(args.repeats + 1)][1:])
            rows.append({"part": "hosts", "ranks": comm.size, "peers_at_once": k, "width": width, "rounds": rounds,
                         "messages": messages, "bytes": 4 * width * n_rows, "ms": ms})
    return rows


def fetch_ms(comm, args, graph, fetch_only, x):
    """Return the mean milliseconds of `args.calls` fetches of peers' rows of `x` by the operator `fetch_only`. Collective."""
    comm.barrier()
    begin = time.perf_counter()
    for _ in range(args.calls):
        aggregate(graph.schedule, fetch_only, [x])
    comm.barrier()
    return 1e3 * (time.perf_counter() - begin) / args.calls


def terms(row, n_cores):
    """Return the factors (of latency, of overhead per message, of seconds per byte) in the modelled time of fetch `row` on `n_cores`."""
    turns = max(1, row["ranks"] / n_cores)
    return row["rounds"] * turns, row["messages"] * turns, row["bytes"]


def fit(rows, n_cores):
    """Fit the time model to measured `rows` on `n_cores`; return (seconds of latency, seconds per message, bytes per second)."""
    factors = np.array([terms(row, n_cores) for row in rows], float)
    ms = np.array([row["ms"] for row in rows])
    best, least = None, math.inf
    for kept in ((0, 1, 2), (0, 2), (1, 2)):  # the best fit without a negative coefficient
        solution, *_ = np.linalg.lstsq(factors[:, kept] / ms[:, None], np.full(len(ms), 1e-3), rcond=None)
        error = np.linalg.norm(factors[:, kept] @ solution / ms - 1e-3)
        if (solution > 0).all() and error < least:
            best, least = np.zeros(3), error
            best[list(kept)] = solution
    if best is None:
        raise SystemExit("the measured times do not grow with rounds, messages and bytes")
    return best[0], best[1], 1 / best[2]


def on_hosts(args):
    """Return the rows of the table "hosts": fetches measured between virtual hosts, and the fitted model's milliseconds."""
    if reason := hosts.missing():
        return [{"part": "hosts", "skipped": reason}]
    words = [__file__, "--worker", seeded_graphs.path(args.graphs, args.graph), "--repeats", args.repeats,
             "--calls", args.calls, "--widths", ",".join(map(str, args.widths))]
    rows = []
    for n_hosts in args.hosts:
        with hosts.Hosts(n_hosts, args.rate) as network:
            rows += harness.last_json(harness.python(*words, launcher=network.launcher(harness.find_mpiexec())))
    n_cores = len(os.sched_getaffinity(0))
    fitted = [row for row in rows if row["ranks"] == args.fit_on]
    latency, overhead, rate = fit(fitted, n_cores)
    for row in rows:
        ms = 1e3 * float(np.dot(terms(row, n_cores), (latency, overhead, 1 / rate)))
        row |= {"model_ms": ms, "ratio": ms / row["ms"], "fitted": row in fitted, "latency_us": 1e6 * latency,
                "overhead_us": 1e6 * overhead, "rate_mb": rate / 1e6}
    return rows


# ---- predictions


def fetch_of(graph_size: Shape, n_ranks, row_width: int):
    """Return (messages, bytes, bytes per peer) of a rank's fetch of float32 rows, if a graph of `graph_size` is divided at random."""
    halo = (graph_size.nodes - graph_size.nodes / n_ranks) * -math.expm1(-graph_size.degree / n_ranks)
    return min(n_ranks - 1, halo), 4 * row_width * halo, 4 * row_width * halo / (n_ranks - 1)


def predict(args):
    """Return the rows of table "predict": the modelled time of a fetch for each graph, network and number of ranks.

    `lost` is the part of the time of one peer at a time that all peers at once save. `peers_at_once` is the smallest
    power of two with which at most `ENOUGH` is lost.
    """
    rows = []
    for name, shape in SHAPES.items():
        for network, (latency, rate) in NETWORKS.items():
            for n_ranks in args.predicted:
                messages, n_bytes, peer_bytes = fetch_of(shape, n_ranks, 256)
                rest = messages * args.overhead + n_bytes / rate
                ks = [2**i for i in range(12) if 2**i < n_ranks]
                seconds = {k: math.ceil((n_ranks - 1) / k) * latency + rest for k in (*ks, n_ranks - 1)}
                lost = {k: 1 - seconds[n_ranks - 1] / seconds[k] for k in seconds}
                k = min(k for k in lost if lost[k] <= ENOUGH)
                rows.append({"part": "predict", "graph": name, "network": network, "ranks": n_ranks,
                             "mib": n_bytes / 2**20, "message_kib": peer_bytes / 2**10, "ms": 1e3 * seconds[1],
                             "lost": lost[1], "overhead_share": messages * args.overhead / seconds[1],
                             "peers_at_once": k, "held_mib": k * peer_bytes / 2**20,
                             "broadcast_mib": 1024 * (shape.nodes - shape.nodes / n_ranks) / 2**20})
    return rows


COLUMNS = {
    "counts": harness.named("partition", "ranks", "peers_at_once", "rounds", "fetches", "fetched_mib", "pushes",
                            "pushed_mib", "peers_held"),
    "hosts": harness.named("ranks", "peers_at_once", "width", "rounds", "messages", "bytes", "ms", "model_ms", "ratio",
                           "fitted", "latency_us", "overhead_us", "rate_mb", "skipped"),
    "predict": harness.named("graph", "network", "ranks", "mib", "broadcast_mib", "message_kib", "ms", "lost",
                             "overhead_share", "peers_at_once", "held_mib"),
}


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return harness.as_rank(fetches, args)
    if "hosts" in args.parts and args.fit_on not in args.hosts:
        raise SystemExit(f"--fit-on {args.fit_on}: not one of --hosts {args.hosts}")
    parts = {"counts": counts, "hosts": on_hosts, "predict": predict}
    rows = []
    for part in args.parts:
        rows += (of_part := parts[part](args))
        harness.report(f"many ranks: {part}", of_part, COLUMNS[part])
    if args.json is not None:
        harness.write_rows(args.json, rows)
    return None


def arguments():
    parser = harness.parser(__doc__)
    harness.graphs_option(parser)
    parser.add_argument("--parts", type=harness.words, default=list(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--graph", default="S/10", help="of seeded_graphs.py, for counts and hosts [%(default)s]")
    parser.add_argument("--ranks", type=harness.numbers, default=[2, 4, 8, 16, 32, 64], help="for counts")
    parser.add_argument("--partitions", type=harness.words, default=["contiguous", "random"], help="for counts")
    parser.add_argument("--width", type=int, default=16, help="of rows in counts")
    parser.add_argument("--hosts", type=harness.numbers, default=[2, 4, 8])
    parser.add_argument("--fit-on", type=int, default=4, metavar="HOSTS", help="fit the model to so many [%(default)s]")
    parser.add_argument("--rate", default="1gbit", help="of each host's link, as tc reads it")
    parser.add_argument("--widths", type=harness.numbers, default=[1, 64, 512], help="of rows on hosts")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--calls", type=int, default=8, help="fetches of one measured repeat")
    parser.add_argument("--predicted", type=harness.numbers, default=[8, 32, 128, 512, 2048], help="ranks, for predict")
    parser.add_argument("--overhead", type=float, default=75e-6, help="seconds of a message, for predict [%(default)s]")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Count the rounds of a sum, and the peers whose rows are held, by the number of peers that a piece takes at once.

Ranks are threads of this process. The graph is random with `--nodes` nodes and `--edges` edges, float64, divided at
random, prefetch 1. `rounds` are the pieces with arrivals of a forward pass. `peers held` is the most peers whose rows
were live on a rank. `difference` is the largest relative difference of output and gradient from one rank's. `ms` is the
time of a forward and a backward pass of one sum of `--width` columns: the slowest rank's, in the fastest of `--repeats`.
"""

import sys
import time

import harness
import numpy as np

from sarlite import Graph, Tensor, fn
from sarlite.comm import threads
from sarlite.kernels import set_threads


def aggregate(graph, x, g):
    """Return the output of one sum, and the gradient of x."""
    x = Tensor(x[graph.src_ids], requires_grad=True)
    out = graph.aggregate(fn.copy_src(x), "mean")
    out.backward(g[graph.dst_ids])
    return out.data, x.grad


def rank(comm, args, whole, x, g, peers_at_once):
    """Time aggregations on this rank, with pieces that take the rows of `peers_at_once` peers.

    Return (rounds of fetches, most peers' rows held, seconds, ids of this rank's rows, output, gradient of x).
    """
    set_threads(1)
    graph = whole.shard(comm, "random", prefetch=1, peers_at_once=peers_at_once)
    graph.profile.reset()
    times = []
    for _ in range(args.repeats):
        comm.barrier()
        begin = time.perf_counter()
        out, d_x = aggregate(graph, x, g)
        times.append(time.perf_counter() - begin)
    rounds = sum(bool(piece.arrivals) for piece in graph.plan.forward)
    return rounds, graph.profile.peak_remote_buffers, min(times), graph.dst_ids, out, d_x


def measure(args, whole, x, g, expected, n_ranks, peers_at_once):
    """Measure one number of ranks and of peers at once; return the table's row, with the largest error of the results."""
    by_rank = threads.run(n_ranks, rank, args, whole, x, g, peers_at_once)
    difference = 0.0
    for *_, ids, out, d_x in by_rank:
        for array, right in ((out, expected[0]), (d_x, expected[1])):
            difference = max(difference, float(np.abs(array - right[ids]).max(initial=0) / np.abs(right).max()))
    return {"ranks": n_ranks, "peers_at_once": peers_at_once, "rounds": max(rounds for rounds, *_ in by_rank),
            "peers_held": float(max(held for _, held, *_ in by_rank)), "difference": difference,
            "ms": 1e3 * max(seconds for _, _, seconds, *_ in by_rank)}


COLUMNS = {
    "ranks": lambda r: str(r["ranks"]), "peers at once": lambda r: str(r["peers_at_once"]),
    "rounds": lambda r: str(r["rounds"]), "peers held": lambda r: f"{r['peers_held']:g}",
    "difference": lambda r: f"{r['difference']:.1e}", "ms": lambda r: f"{r['ms']:.1f}",
}


def main(argv=None):
    parser = harness.parser(__doc__)
    parser.add_argument("--ranks", type=harness.numbers, default=[2, 4, 8, 16, 32, 64], metavar="LIST")
    parser.add_argument("--nodes", type=int, default=8192)
    parser.add_argument("--edges", type=int, default=200_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    whole = Graph.from_edges(*rng.integers(0, args.nodes, (2, args.edges)), args.nodes)
    x, g = rng.standard_normal((2, args.nodes, args.width))
    expected = aggregate(whole, x, g)
    rows = [measure(args, whole, x, g, expected, n_ranks, k) for n_ranks in args.ranks
            for k in sorted({1, 2, 4, 16, n_ranks - 1}) if k < n_ranks]
    harness.report("a sum by peers at once", rows, COLUMNS, args.json)


if __name__ == "__main__":
    sys.exit(main())

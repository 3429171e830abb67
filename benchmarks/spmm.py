"""Measure a sum over neighbours compared with other libraries and with the limits of the memory.

The call is `graph.aggregate(fn.copy_src(x), "sum")` without gradients, float32. Peers do the same sum with their fastest
public call; scipy has one thread. `of the limit` is a bound that nothing passes: each array is moved once, and an addition
counts for each edge and column:

    limit_fraction = (bytes of x, out, indptr and indices / stream bandwidth  +  n_edges * width / sgemm flops a second)
    / time

`of random rows` is an estimate and no limit: one row of x is read at random for each edge. A graph with locality finds
rows in the cache, while the probe's random rows are too many for the cache; the number is then above 1.

    gather_fraction = n_edges * row_bytes / (gather bandwidth of that row_bytes) / time

`--arrays buffers` measures inside `Buffers`, as a training step does: arrays start at a cache line and reuse memory.
`--arrays plain` measures NumPy's own arrays, as a program has them that embeds sarlite and enters no `Buffers`: they start
16 bytes after a cache line, and each output takes new memory. Peers are measured once.
"""

import contextlib
import sys

import harness
import limits
import numpy as np
import peers
import seeded_graphs

from sarlite import Tensor, fn, no_grad
from sarlite.kernels import Buffers
from sarlite.profile import Memory
from sarlite.train.loop import set_threads

ABLE = ("dgl", "pyg", "pyg-compiled", "torch", "scipy", "mkl")


def worker(args):
    """Time sums over neighbours on one graph with one width in this process; print the times as JSON."""
    set_threads(args.threads)
    graph = seeded_graphs.load(args.graphs, args.graphs_list[0])
    with Buffers() if args.arrays == ["buffers"] else contextlib.nullcontext(), no_grad():
        x = Tensor(np.random.default_rng(0).standard_normal((graph.n_nodes, args.widths[0]), dtype=np.float32))
        memory = Memory()
        times = harness.timed(lambda: graph.aggregate(fn.copy_src(x), "sum"), args.repeats)
    harness.print_measurement(times, memory)


def measure(args, name, width, array_kind, machine_rates: limits.Limits, peer_commands: dict):
    """Return result rows, one per library, of sums of rows of `width` on graph `name`; `array_kind`: "buffers" (reused) or "plain"."""
    file, (n_nodes, n_edges) = seeded_graphs.path(args.graphs, name), seeded_graphs.size(args.graphs, name)
    command = [__file__, "--worker", "--graphs", args.graphs, "--graphs-list", name, "--widths", width,
               "--arrays", array_kind]
    row = {"case": "spmm", "graph": name, "width": width, "arrays": array_kind}
    least = machine_rates.least_ms(8 * n_nodes * width + 8 * n_nodes + 4 * n_edges, n_edges * width)
    allowed = limits.Allowed(least, machine_rates.gather_ms(n_edges, 4 * width))
    return peers.compare(args, row, command, ["spmm", file, "--width", width], peer_commands, allowed)


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return worker(args)
    others, limit = peers.find(args.peers, ABLE), limits.measure(args.threads, args.gib)
    rows = [row for name in args.graphs_list for width in args.widths for arrays in args.arrays
            for row in measure(args, name, width, arrays, limit, others if arrays == args.arrays[0] else {})]
    harness.report(f"Sum over neighbours, float32, {args.threads} threads", rows,
                   harness.suite_columns("width", "arrays"), args.json)
    return None


def arguments():
    parser = harness.suite_parser(__doc__)
    parser.add_argument("--graphs-list", type=harness.words, default=["S", "S-shuffled", "M", "M-shuffled"],
                        metavar="LIST")
    parser.add_argument("--widths", type=harness.numbers, default=[64, 128, 256], metavar="LIST", help="features")
    parser.add_argument("--arrays", type=harness.words, default=["buffers", "plain"], metavar="LIST",
                        help="buffers, plain, or both")
    return parser


if __name__ == "__main__":
    sys.exit(main())

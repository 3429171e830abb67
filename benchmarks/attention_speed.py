"""Measure the time and the memory of attention, forward and backward, compared with other libraries.

The layer is that of SAR's Figure 2: `graph.aggregate(fn.attend(z, src, dst), "sum")` with the scores of the nodes
src = (z * a_src).sum(-1) and dst = (z * a_dst).sum(-1). The backward pass computes the gradients of z and of both
vectors a. A head has 100 features; everything is float32. Peers run their GATConv with the linear part replaced by
the identity. `ms` is the time of forward and backward together.

`peak_mib` counts from the moment when graph and inputs exist. `net_peak_mib` leaves out the three arrays of z's size
that every library needs: the output, its gradient (ones, allocated before the backward pass) and z's gradient.

    limit_fraction = (bytes / stream bandwidth  +  flops / sgemm flops a second) / time

The bytes are those of z, of the output, of both gradients, and twice those of the indices. The flops are 6 for each
edge and column: a product and a sum forward, two of each backward. `limit_fraction` is a bound. The next number is an
estimate for rows at random: forward reads a row of z for each edge, backward a row of the output's gradient.

    gather_fraction = 2 * n_edges * row_bytes / (gather bandwidth of that row_bytes) / time
"""

import sys
import time

import harness
import limits
import numpy as np
import peers
import seeded_graphs

from sarlite import Tensor, fn
from sarlite.kernels import Buffers
from sarlite.profile import Memory
from sarlite.tape import ops
from sarlite.train.loop import set_threads

ABLE = ("dgl",)


def attend(graph, z, scores):
    """Return attention over the rows z, (n_nodes, heads * dim); `scores`, (2, heads, dim), are the attention vectors.

    One matrix product gives the scores of all nodes as sources and as destinations.
    """
    _, heads, dim = scores.shape
    diagonal = np.eye(heads, dtype=np.float32)[:, None]
    src, dst = ((scores[k].reshape(heads, dim, 1) * diagonal).reshape(heads * dim, heads) for k in (0, 1))
    both = z @ ops.concat([src, dst], 1)
    return graph.aggregate(fn.attend(z.reshape(-1, heads, dim), both[:, :heads], both[:, heads:]), "sum")


def worker(args):
    """Print the times and peak memory of attention with one number of heads, measured in this process."""
    set_threads(args.threads)
    graph = seeded_graphs.load(args.graphs, args.graphs_list[0])
    with Buffers():  # as in a training step: arrays start at a cache line and reuse memory
        draw, width = np.random.default_rng(0), args.heads[0] * args.dim
        z = Tensor(draw.standard_normal((graph.n_nodes, width), dtype=np.float32), requires_grad=True)
        scores = Tensor(draw.standard_normal((2, args.heads[0], args.dim), dtype=np.float32), requires_grad=True)
        memory, forward, backward = Memory(), [], []
        for _ in range(args.repeats + 1):
            begin = time.perf_counter()
            out = attend(graph, z, scores)
            middle = time.perf_counter()
            out.backward(np.ones_like(out.data))
            end = time.perf_counter()
            z.grad = scores.grad = out = None
            forward.append(1e3 * (middle - begin))
            backward.append(1e3 * (end - middle))
    both = [a + b for a, b in zip(forward[1:], backward[1:])]
    ways = {name: harness.summary(times[1:])["ms"]
            for name, times in (("forward_ms", forward), ("backward_ms", backward))}
    harness.print_measurement(both, memory, **ways)


def measure(args, name, heads, machine_rates: limits.Limits, peer_commands: dict):
    """Return result rows, one per library, of attention on graph `name` with `heads` heads, measured in alternation with the peers.

    `machine_rates` holds the machine's rates.
    """
    file, (n_nodes, n_edges) = seeded_graphs.path(args.graphs, name), seeded_graphs.size(args.graphs, name)
    command = [__file__, "--worker", "--graphs", args.graphs, "--graphs-list", name, "--heads", heads, "--dim", args.dim]
    peer = ["attention", file, "--heads", heads, "--dim", args.dim]
    row, row_bytes = {"case": "attention", "graph": name, "heads": heads, "dim": args.dim}, 4 * heads * args.dim
    least = machine_rates.least_ms(4 * n_nodes * row_bytes + 8 * n_edges, 6 * n_edges * heads * args.dim)
    rows = peers.compare(args, row, command, peer, peer_commands, limits.Allowed(least, machine_rates.gather_ms(2 * n_edges, row_bytes)))
    everybodys = 3 * n_nodes * row_bytes / 2**20
    return [{**row, "net_peak_mib": row["peak_mib"] - everybodys,
             "peer_net_peak_mib": row["peer_peak_mib"] - everybodys if row["peer_peak_mib"] else None} for row in rows]


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return worker(args)
    others, limit = peers.find(args.peers, ABLE), limits.measure(args.threads, args.gib)
    rows = [row for name in args.graphs_list for heads in args.heads
            for row in measure(args, name, heads, limit, others)]
    columns = {
        **harness.suite_columns("heads"),
        "forward": lambda r: r["forward_ms"],
        "backward": lambda r: r["backward_ms"],
        "its forward": lambda r: r.get("peer_forward_ms"),
        "its backward": lambda r: r.get("peer_backward_ms"),
        "net MiB": lambda r: harness.mib(2**20 * r["net_peak_mib"]),
        "its net MiB": lambda r: r["peer_net_peak_mib"] and harness.mib(2**20 * r["peer_net_peak_mib"]),
    }
    harness.report(f"Attention, forward and backward, heads of {args.dim}, {args.threads} threads", rows, columns,
                   args.json)
    return None


def arguments():
    parser = harness.suite_parser(__doc__)
    parser.add_argument("--graphs-list", type=harness.words, default=["S"], metavar="LIST")
    parser.add_argument("--heads", type=harness.numbers, default=[2, 4, 8], metavar="LIST")
    parser.add_argument("--dim", type=int, default=100, help="features of a head")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""How many rows enter a host, and what does mode host hold of them?

Ranks are threads of this process, said to be on `--hosts` hosts, as many consecutive ones on each. Of a sum of rows of `--width` float32
numbers, forward and backward: `needed`, rows that ranks need of other hosts' parts; `distinct`, those that hosts need, from the structure
alone; `entered` and `left`, rows received from other hosts forward and gradients sent to them, by the counters. Mode sar's are `needed`,
mode host's must be `distinct`. `buffers MiB`: remote rows of one host at most: what its ranks fetch and push, or its windows.
"""

import sys
from pathlib import Path

import graphs
import harness
import numpy as np

from sarlite import Graph, Tensor, fn
from sarlite.comm import threads
from sarlite.graph.edges import destinations
from sarlite.graph.partition import partition
from sarlite.kernels import set_threads


def rank(comm, args, whole, parts, mode):
    """Return how many rows this rank received from other hosts and sent to them backward, and the bytes that it has for remote rows."""
    set_threads(1)
    hosts = comm.hosts()
    graph = whole.shard(comm, parts, mode=mode, prefetch=args.prefetch)
    x = Tensor(np.random.default_rng(comm.rank).standard_normal((graph.n_dst, args.width), dtype=np.float32), requires_grad=True)
    out = graph.aggregate(fn.copy_src(x), "sum")
    out.backward(np.ones_like(out.data))
    row, profile, near = 4 * args.width, graph.profile, [q for q, host in enumerate(hosts) if host == hosts[comm.rank]]
    if mode == "host":
        windows = sum(len(window.array) for window in graph.plan.host.windows.values())
        return profile.received_bytes["forward_fetch"] / row, profile.sent_bytes["backward_push"] / row, windows / len(near)
    steps = graph.plan.steps
    inside = sum(step.n_rows for step in steps if step.source in near)
    most = max(step.n_rows for step in steps)
    held = min(1 + args.prefetch, len(steps)) * most + 2 * max(max(s.n_rows, s.n_send) for s in graph.plan.backward_steps)
    return profile.received_bytes["forward_fetch"] / row - inside, profile.sent_bytes["backward_push"] / row - inside, held * row


def rows(args, name, whole, method, n_ranks, n_hosts):
    indptr, indices = whole.in_edges()[:2]
    parts, hosts = partition(indptr, indices, n_ranks, method), [p * n_hosts // n_ranks for p in range(n_ranks)]
    src, dst = indices, destinations(indptr)
    far = np.asarray(hosts)[parts[src]] != np.asarray(hosts)[parts[dst]]
    n = len(indptr) - 1
    needed, distinct = (len(np.unique(np.asarray(of)[parts[dst[far]]].astype(np.int64) * n + src[far])) for of in (range(n_ranks), hosts))
    for mode in ("sar", "host"):
        found = threads.run(n_ranks, rank, args, whole, parts, mode, hosts=hosts)
        entered, left = (int(sum(ranks[k] for ranks in found)) for k in (0, 1))
        harness.note(f"{name}, {method}, {n_ranks} ranks on {n_hosts} hosts, {mode}")
        on_host = [sum(held for (*_, held), h in zip(found, hosts) if h == host) for host in range(n_hosts)]
        yield {"graph": name, "partition": method, "ranks": n_ranks, "hosts": n_hosts, "mode": mode, "needed": needed, "distinct": distinct,
               "entered": entered, "left": left, "as_predicted": (entered, left) == 2 * ((distinct if mode == "host" else needed),),
               "buffer_bytes": max(on_host)}


def main(argv=None):
    args = arguments().parse_args(argv)
    found = []
    for name in args.names:
        with np.load(graphs.path(args.graphs, name)) as arrays:
            whole = Graph.from_csr(arrays["indptr"], arrays["indices"])
        for method in args.partitions:
            for n_ranks, n_hosts in zip(args.ranks, args.hosts):
                found += rows(args, name, whole, method, n_ranks, n_hosts)
    harness.report(f"Rows that enter hosts, of {args.width} numbers", found, COLUMNS, args.json)


NAMES = ("graph", "partition", "ranks", "hosts", "mode", "needed", "distinct", "entered", "left")
COLUMNS = {
    **{name: (lambda r, name=name: r[name]) for name in NAMES},
    "as predicted": lambda r: "yes" if r["as_predicted"] else "NO",
    "buffers MiB": lambda r: harness.mib(r["buffer_bytes"]),
}


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--names", type=harness.words, default=["S"], help="graphs of graphs.py")
    parser.add_argument("--graphs", type=Path, default=harness.GRAPHS, metavar="DIR", help="where graphs are kept")
    parser.add_argument("--partitions", type=harness.words, default=["metis", "random"])
    parser.add_argument("--ranks", type=harness.numbers, default=[4, 8, 8])
    parser.add_argument("--hosts", type=harness.numbers, default=[2, 2, 4], help="as many as --ranks")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--prefetch", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main())

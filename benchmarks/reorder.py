"""Compare epoch times of one graph with its nodes shuffled, shuffled and then reordered, and in community order.

GraphSAGE as in `epoch.py` runs on a graph with its ids in community order; on the same graph, relabelled at random; and
on the relabelled graph with its rows in each of `--orders`. Each measurement is a process of its own, and they take
turns. `order_seconds` is the time to compute the order, once. `near` is the share of edges whose ends are less than
1,000 rows apart. `times_community` is the epoch over the epoch in community order.

`metis` is sarlite's order. Two cheap orders are there to compare with: `rcm`, SciPy's reverse Cuthill-McKee, and
`degree`, nodes with most edges first.
"""

import sys
import time
from pathlib import Path

import epoch
import harness
import limits
import numpy as np
import peers
import seeded_graphs

from sarlite import Graph
from sarlite.comm import Solo
from sarlite.profile import Memory
from sarlite.structure import order as orders
from sarlite.train.loop import set_threads

CASE = epoch.CASES["sage"]


def rcm(indptr, indices):
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    n_nodes = len(indptr) - 1
    return reverse_cuthill_mckee(csr_array((np.ones(len(indices), np.int8), indices, indptr),
                                           shape=(n_nodes, n_nodes)), True)


ORDERS = {
    "metis": orders.order,
    "rcm": rcm,
    "degree": lambda indptr, indices: np.argsort(-np.diff(indptr), kind="stable"),
}


def read(args, name):
    return seeded_graphs.arrays_of(seeded_graphs.path(args.graphs, name))


def described(args, folder):
    """Write the node orders `args.orders` of the shuffled graph to `folder`; return the result rows, without times of epochs yet."""
    shuffled = args.graph + "-shuffled"
    rows = [{"case": "sage", "graph": name, "order": None, "order_seconds": None,
             "near": orders.near_share(*read(args, name))}
            for name in (args.graph, shuffled)]
    graph = read(args, shuffled)
    for name in args.orders:
        begin = time.perf_counter()
        order = ORDERS[name](*graph)
        seconds = time.perf_counter() - begin
        np.save(folder / f"{name}.npy", order)
        rows.append({"case": "sage", "graph": shuffled, "order": name, "order_seconds": seconds,
                     "near": orders.near_share(*graph, order)})
    return rows


def worker(args):
    """Time epochs on one graph in one node order in this process; print the times as JSON."""
    set_threads(args.threads)
    graph = Graph.from_csr(*read(args, args.graph))
    if args.order:
        graph = graph.shard(Solo(), "contiguous", order=np.load(args.order))
    trainer, epochs = epoch.make_trainer(CASE, graph), iter(range(args.repeats + 1))
    memory = Memory()
    harness.print_measurement(harness.timed(lambda: trainer.step(next(epochs)), args.repeats), memory)


def measure(args, rows, folder):
    """Time epochs with each row's node order, read from `folder`; return `rows` with these times.

    Each run is a process, and all rows are measured once in each round.
    """
    results_of = [[] for _ in rows]
    for _ in range(args.rounds):
        for row, results in zip(rows, results_of):
            flags = ["--order", folder / f"{row['order']}.npy"] if row["order"] else []
            flags += ["--graphs", args.graphs, "--graph", row["graph"], "--threads", args.threads, "--repeats",
                      args.repeats]
            results.append(harness.last_json(harness.python(__file__, "--worker", *flags)))
            harness.note(f"{row['graph']}, order {row['order']}: {results[-1]['ms']:.1f} ms")
    allowed = epoch.allowed(CASE, *seeded_graphs.size(args.graphs, args.graph), limits.measure(args.threads, args.gib))
    full = [r for row, results in zip(rows, results_of)
            for r in peers.beside(row, args.threads, peers.pool(results), {}, allowed)]
    return [{**row, "times_community": row["ms"] / full[0]["ms"],
             "times_community_min": row["ms_min"] / full[0]["ms_min"]} for row in full]


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return worker(args)
    with harness.Scratch() as scratch:
        rows = measure(args, described(args, scratch.path), scratch.path)
    columns = harness.suite_columns("order")
    columns = {name: columns[name] for name in ("graph", "order", "ms", "peak MiB", "of the limit")}
    columns["to community order"] = lambda r: f"{r['times_community']:.2f} (of minima {r['times_community_min']:.2f})"
    columns["near %"] = lambda r: f"{100 * r['near']:.1f}"
    columns["order s"] = lambda r: r["order_seconds"]
    harness.report(f"An epoch of GraphSAGE, {args.threads} threads", rows, columns, args.json)
    return None


def arguments():
    parser = harness.suite_parser(__doc__)
    parser.add_argument("--graph", default="M", help="its name with ids in community order (default: M)")
    parser.add_argument("--orders", type=harness.words, default=["metis"], metavar="LIST",
                        help=f"of {', '.join(ORDERS)} (default: metis)")
    parser.add_argument("--order", type=Path, metavar="FILE", help="for --worker: the order of the nodes")
    return parser


if __name__ == "__main__":
    sys.exit(main())

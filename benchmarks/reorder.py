"""Does reordering the nodes give a shuffled graph the epoch of the same graph in community order?

A power-law graph with communities (400,000 nodes, 20 million directed edges): as drawn, its ids in community order (`M`); relabelled at
random (`M-shuffled`); and that with the rows in each order of `--orders`. An epoch is one training step of GraphSAGE (100 -> 256 -> 256
-> 47, mean, batch norm, dropout 0.5, Adam, float32) on one rank. Each measurement is a process of its own, and they take turns.
`order_seconds` is what making the order took, once; `near` the share of edges whose ends are less than 1,000 rows apart.

`rcm` is SciPy's reverse Cuthill-McKee, `degree` puts the nodes with most edges first: the two that cost least, to compare with.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import harness
import numpy as np

from sarlite import Graph, Trainer, models, nn, optim
from sarlite.comm import Solo
from sarlite.graph import order as orders
from sarlite.graph.edges import csr_by_dst, destinations
from sarlite.graph.generate import power_law
from sarlite.profile import Memory
from sarlite.train.loop import set_threads

N_FEATURES, N_CLASSES = 100, 47


def rcm(indptr, indices):
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    n_nodes = len(indptr) - 1
    return reverse_cuthill_mckee(csr_array((np.ones(len(indices), np.int8), indices, indptr), shape=(n_nodes, n_nodes)), True)


ORDERS = {
    "metis": orders.order,
    "rcm": rcm,
    "degree": lambda indptr, indices: np.argsort(-np.diff(indptr), kind="stable"),
}


def shuffle(indptr, indices):
    """Relabel the nodes at random; the columns of a row ascend again."""
    label = np.random.default_rng(1).permutation(len(indptr) - 1).astype(indices.dtype)
    return csr_by_dst(label[indices], label[destinations(indptr, indices.dtype)], len(indptr) - 1)


def prepare(args, folder):
    """Draw the graphs and make the orders; return the rows to measure, without their times."""
    community = power_law(args.nodes, args.edges)
    shuffled = shuffle(*community)
    rows = [row("none", "M", folder, *community), row("none", "M-shuffled", folder, *shuffled)]
    for name in args.orders:
        harness.note(f"order {name}")
        begin = time.perf_counter()
        order = ORDERS[name](*shuffled)
        rows.append(row(name, "M-shuffled", folder, *shuffled, order=order, seconds=time.perf_counter() - begin))
    return [{**r, "ranks": 1, "threads": args.threads} for r in rows]


def row(name, graph, folder, indptr, indices, order=None, seconds=None):
    given = {} if order is None else {"order": order}
    np.savez(folder / f"{name}-{graph}.npz", indptr=indptr, indices=indices, **given)
    return {"case": name, "graph": graph, "order_seconds": seconds, "near": orders.near_share(indptr, indices, order)}


def worker(args):
    """Measure the epochs of one graph in one order, in this process."""
    set_threads(args.threads)
    with np.load(args.worker) as arrays:
        graph = Graph.from_csr(arrays["indptr"], arrays["indices"])
        graph = graph.shard(Solo(), "contiguous", order=arrays["order"]) if "order" in arrays else graph
    trainer = make_trainer(graph)
    memory, times = Memory(), []
    for epoch in range(args.epochs + 1):
        begin = time.perf_counter()
        trainer.step(epoch)
        times.append(1e3 * (time.perf_counter() - begin))
    print(json.dumps({"times": times[1:], "peak_mib": memory.peak() / 2**20}))


def make_trainer(graph):
    """Return a Trainer on random features and labels, the same for every order of the nodes; a tenth of them train."""
    draw, rng = np.random.default_rng(1), nn.Random(0)
    x = draw.standard_normal((graph.n_nodes, N_FEATURES), dtype=np.float32)[graph.node_ids]
    labels = draw.integers(0, N_CLASSES, graph.n_nodes)[graph.node_ids]
    model = models.SAGE(N_FEATURES, N_CLASSES, layers=3, hidden=256, rng=rng)
    train = np.flatnonzero(graph.node_ids % 10 == 0)
    return Trainer(graph, model, x, labels, train, optimizer=lambda flat: optim.Adam(flat, 0.01), rng=rng)


def measure(args, rows, folder):
    """Fill in the rows: each in a process of its own, all of them once a round."""
    found = [[] for _ in rows]
    for number in range(args.rounds):
        for r, results in zip(rows, found):
            harness.note(f"round {number + 1}: {r['graph']}, order {r['case']}")
            flags = ["--threads", args.threads, "--epochs", args.epochs, "--worker", folder / f"{r['case']}-{r['graph']}.npz"]
            results.append(harness.last_json(harness.python(__file__, *flags)))
    for r, results in zip(rows, found):
        times = [t for result in results for t in result["times"]]
        r.update(ms=statistics.median(times), ms_min=min(times), ms_max=max(times), peak_mib=max(result["peak_mib"] for result in results))
        r.update(to_community=r["ms"] / rows[0]["ms"], to_community_min=r["ms_min"] / rows[0]["ms_min"])


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return worker(args)
    with harness.Scratch() as scratch:
        rows = prepare(args, scratch.path)
        measure(args, rows, scratch.path)
    columns = {
        "graph": lambda r: r["graph"],
        "order": lambda r: r["case"],
        "near %": lambda r: f"{100 * r['near']:.1f}",
        "order s": lambda r: None if r["order_seconds"] is None else f"{r['order_seconds']:.1f}",
        "epoch ms": lambda r: f"{r['ms']:,.0f} ({r['ms_min']:,.0f}..{r['ms_max']:,.0f})",
        "to community order": lambda r: f"{r['to_community']:.2f} (of minima {r['to_community_min']:.2f})",
        "peak MiB": lambda r: f"{r['peak_mib']:,.0f}",
    }
    harness.report(f"GraphSAGE 3 x 256, {args.threads} threads: median (min..max) of an epoch", rows, columns, args.json)
    return None


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--nodes", type=int, default=400_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--orders", type=harness.words, default=["metis"], metavar="LIST", help=f"of {', '.join(ORDERS)} (default: metis)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3, help="of a process, after one that warms up")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each row, in turns")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Measure how fast batches are sampled, compared with DGL.

The seeds are a tenth of the nodes, 1,000 a batch; the fan-outs are 5, 10, 15; there are no features and no model. sarlite
builds the blocks of a batch and their transposes, which its backward pass walks, in the computing thread
(`sample_ahead=0`). DGL builds its blocks by `NeighborSampler` and `DataLoader`, and their further formats only in a
backward pass. A run is a pass over the seeds. Each measurement is a process, and the two libraries take turns.
"""

import sys

import harness
import numpy as np
import peers
import seeded_graphs

from sarlite.minibatch import NeighborLoader
from sarlite.profile import Memory
from sarlite.train.loop import set_threads

ABLE = ("dgl",)
FANOUTS, BATCH = (5, 10, 15), 1000
TIMES = ("ms", "ms_min", "ms_max", "peak_mib")


def worker(args):
    """Time the sampling of batches from one graph by one kind of sampler in this process; print the times as JSON."""
    threads, name, kind = args.threads_list[0], args.graphs_list[0], args.kinds[0]
    set_threads(threads)
    graph = seeded_graphs.whole(args.graphs, name)
    n = graph.n_dst
    seeds = np.random.default_rng(0).permutation(n)[: max(n // 10 // BATCH, 1) * BATCH]
    x, sizes = np.empty((n, 0), np.float32), []
    loader = NeighborLoader(graph, x, None, seeds, fanouts=FANOUTS, batch_size=BATCH, sampler=kind, sample_ahead=0)

    def run():
        for batch in loader:
            for g in batch.layers(len(FANOUTS)):
                g.plan.local.transpose  # noqa: B018 (cached at its first use)
            sizes.append((batch.n_src, batch.n_edges))

    memory = Memory()
    times = harness.timed(run, args.repeats)
    rows, edges = np.mean(sizes, axis=0)
    harness.print_measurement(times, memory, batches=len(loader), input_rows=round(float(rows)),
                              edges=round(float(edges)))


def measure(args, name, sampler_kind: str, threads: int, peer_commands: dict):
    """Return the result row of sampling graph `name` on `threads` threads, by sarlite and other libraries in alternation."""
    counts = ["--repeats", args.repeats]
    command = [__file__, "--worker", "--graphs", args.graphs, "--graphs-list", name, "--kinds", sampler_kind, "--threads-list",
               threads, *counts]
    peer = ["sample", seeded_graphs.path(args.graphs, name), "--threads", threads, *counts]
    return beside({"case": "sampling", "graph": name, "kind": sampler_kind, "threads": threads}, args.rounds, command, peer, peer_commands)


def beside(row: dict, rounds: int, worker_command: list, peer_arguments: list, peer_commands: dict):
    """Run `worker_command` and the peers in turn, `rounds` times; return `row` with the milliseconds per batch of each library."""
    mine, theirs = [], []
    for _ in range(rounds):
        mine.append(harness.last_json(harness.python(*worker_command)))
        theirs += [peers.run(command, peer_arguments) for command in peer_commands.values()]
    sizes = {key: mine[0][key] for key in mine[0] if key not in TIMES}
    row = {**row, **per_batch(mine, sizes["batches"]), **sizes, "ranks": 1, "peer": next(iter(peer_commands), None)}
    peer_means = per_batch(theirs, theirs[0].get("batches", sizes["batches"])) if theirs else {"ms": None, "peak_mib": None}
    row.update({f"peer_{key}": value for key, value in peer_means.items()})
    row["ratio"] = peer_means["ms"] / row["ms"] if peer_means["ms"] else None
    harness.note(f"{row['graph']} {row['case']} {row['kind']}, {row['threads']} threads: {row['ms']:.1f} ms a batch, "
                 f"dgl {peer_means['ms']}")
    return row


def per_batch(results, batches):
    """Return one measurement that combines several processes' `results`, with times divided by `batches`, the number of batches."""
    pooled = peers.pool([{key: result[key] for key in (*TIMES, "error") if key in result} for result in results])
    return {key: value / batches if key.startswith("ms") and value else value for key, value in pooled.items()}


def columns(*more):
    return {**harness.named("graph", "kind", "threads", *more), "ms a batch": harness.times(digits=1),
            "dgl's": harness.times("peer_", 1), "ratio": lambda r: f"{r['ratio']:.2f}" if r["ratio"] else None}


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return worker(args)
    others = peers.find(args.peers, ABLE)
    rows = [measure(args, name, kind, threads, others) for name in args.graphs_list for kind in args.kinds
            for threads in args.threads_list]
    title = "Sampling, 1,000 seeds a batch, fan-outs 5, 10, 15; blocks with transposes"
    harness.report(title, rows, columns("input_rows", "edges"), args.json)
    return None


def arguments(text=__doc__):
    parser = harness.suite_parser(text)
    parser.add_argument("--graphs-list", type=harness.words, default=["S", "M"], metavar="LIST")
    parser.add_argument("--kinds", type=harness.words, default=["uniform"], metavar="LIST",
                        help="of uniform, replace, labor")
    parser.add_argument("--threads-list", type=harness.numbers, default=[1, 2], metavar="LIST")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""How long is an epoch, and how much memory does a rank take, on N ranks of t threads, in modes sar and oneshot?

An epoch is one training step of the training command under mpiexec: GraphSAGE (100 -> 256 -> 256 -> 47, mean, batch
norm, ReLU, dropout 0.5) and GAT (4 heads x 32, 4 x 32, 1 x 47, batch norm, ReLU, dropout 0.5 between layers), Adam,
float32, on METIS parts; features and labels are random, and a tenth of the nodes trains. Mode sar prefetches one peer's
rows, or none. The configurations take turns, `--rounds` times; the first epoch of each run, which also keeps A X, is
left out.

`ms` is over all epochs of all rounds; `peak_mib` the largest rank's resident memory above its state before it read
data, the median of the rounds; `sent_mib` what all ranks send in an epoch; `to_one` the time as a multiple of one
rank's; `to_oneshot` and `memory_to_oneshot` mode sar's time and memory as multiples of mode oneshot's on the same
ranks.
"""

import statistics
import sys

import graphs
import harness
import numpy as np

N_FEATURES, N_CLASSES = 100, 47
SHARED = dict(layers=3, batch_norm=True, dropout=0.5, activation="relu", partition="metis", verify=False)
CASES = {
    "sage": dict(model="sage", hidden=256),
    "gat": dict(model="gat", hidden=32, heads=4, out_heads=1, input_dropout=0.0, attention_dropout=0.0),
}


def places(args):
    """Return (ranks, threads, mode, prefetch) of each configuration, one rank first.

    It has no peers, so mode does not matter there.
    """
    ways = [(mode, prefetch) for mode in args.modes for prefetch in (args.prefetch if mode == "sar" else [0])]
    return [(n, threads, *way) for n, threads in sorted(zip(args.ranks, args.threads))
            for way in (ways if n > 1 else [("sar", 0)])]


def write_data(scratch, args, method="metis"):
    """Write the data set in the native format and divide it for each number of ranks, once."""
    indptr, indices = graphs.arrays_of(graphs.path(args.graphs, args.graph))
    draw, n_nodes = np.random.default_rng(1), len(indptr) - 1
    x, labels = draw.standard_normal((n_nodes, N_FEATURES), dtype=np.float32), draw.integers(0, N_CLASSES, n_nodes)
    data = scratch.write("scaling", indptr, indices, x, labels, N_CLASSES)
    for n_ranks in {n for n in args.ranks if n > 1}:
        harness.note(f"dividing {args.graph} into {n_ranks} parts")
        harness.python("-m", "sarlite.data", "partition", data, "--parts", n_ranks, "--method", method)
    return data


def measure(args, data):
    """Return {(case, place): [JSON line of the command, ...]}: each configuration once a round."""
    found = {(name, place): [] for name in args.cases for place in places(args)}
    for number in range(args.rounds):
        for (name, (n_ranks, threads, mode, prefetch)), lines in found.items():
            harness.note(f"round {number + 1}: {name}, {n_ranks} ranks x {threads} threads, {mode}, prefetch "
                         f"{prefetch}")
            lines.append(harness.train(n_ranks, data=data, mode=mode, prefetch=prefetch, threads=threads,
                                       epochs=args.epochs + 1,
                                       eval_every=args.epochs + 1, **SHARED, **CASES[name]))
    return found


def row(args, name, place, lines):
    """Return the row of one configuration."""
    n_ranks, threads, mode, prefetch = place
    sent = [sum(n for phase, n in line["sent_bytes"].items() if phase != "evaluation") for line in lines]
    return {"case": name, "graph": args.graph, "ranks": n_ranks, "threads": threads, "mode": mode,
            "prefetch": prefetch,
            **harness.summary([1e3 * seconds for line in lines for seconds in line["seconds"][1:]]),
            "peak_mib": statistics.median(max(line["peak_bytes"]) for line in lines) / 2**20, "limit_fraction": None,
            "sent_mib": sent[0] / (args.epochs + 1) / 2**20, "sent_bytes": lines[0]["sent_bytes"]}


def compare(rows):
    """Fill in the ratios; None where what to compare with was not measured."""
    by_place = {(r["case"], r["ranks"], r["threads"], r["mode"]): r for r in rows}
    one = {r["case"]: r for r in rows if r["ranks"] == 1}
    for r in rows:
        other = by_place.get((r["case"], r["ranks"], r["threads"], "oneshot")) if r["mode"] == "sar" else None
        r["to_one"] = r["ms"] / one[r["case"]]["ms"] if r["case"] in one else None
        r["to_oneshot"] = other and r["ms"] / other["ms"]
        r["memory_to_oneshot"] = other and r["peak_mib"] / other["peak_mib"]
    return rows


def main(argv=None):
    args = arguments().parse_args(argv)
    if len(args.ranks) != len(args.threads):
        raise SystemExit(f"--ranks {args.ranks} and --threads {args.threads} must go together")
    with harness.Scratch() as scratch:
        found = measure(args, write_data(scratch, args))
    rows = compare([row(args, name, place, lines) for (name, place), lines in found.items()])
    harness.report(f"An epoch of training on {args.graph}, by ranks x threads", rows, COLUMNS, args.json)


def _ratio(name):
    return lambda r: r[name] and f"{r[name]:.2f}"


COLUMNS = {
    "case": lambda r: r["case"],
    "ranks": lambda r: r["ranks"],
    "threads": lambda r: r["threads"],
    "mode": lambda r: r["mode"] if r["ranks"] > 1 else None,
    "prefetch": lambda r: r["prefetch"] if r["ranks"] > 1 and r["mode"] == "sar" else None,
    "ms": harness.times(),
    "to one rank": _ratio("to_one"),
    "to oneshot": _ratio("to_oneshot"),
    "peak MiB": lambda r: f"{r['peak_mib']:,.0f}",
    "to oneshot's": _ratio("memory_to_oneshot"),
    "MiB sent": lambda r: f"{r['sent_mib']:,.0f}",
}


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--graph", default="S", help="of graphs.py")
    harness.graphs_option(parser)
    parser.add_argument("--cases", type=harness.words, default=list(CASES))
    parser.add_argument("--ranks", type=harness.numbers, default=[1, 2, 4])
    parser.add_argument("--threads", type=harness.numbers, default=[2, 1, 1],
                        help="of a rank, one number for each of --ranks")
    parser.add_argument("--modes", type=harness.words, default=["sar", "oneshot"])
    parser.add_argument("--prefetch", type=harness.numbers, default=[1, 0], help="in mode sar")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Measure the epoch and the memory of a rank on N ranks of t threads, in modes sar and oneshot.

An epoch is one training step of the training command under mpiexec. One model is GraphSAGE: 100 -> 256 -> 256 -> 47,
mean, batch norm, ReLU, dropout 0.5. The other one is GAT: 4 heads x 32, 4 x 32, 1 x 47, batch norm, ReLU, dropout 0.5
between layers. They train with Adam, float32, on METIS parts. Features and labels are random, and a tenth of the
nodes trains. Mode sar prefetches one peer's rows, or none. The configurations take turns, `--rounds` times. The first
epoch of each run, which also computes the kept A X, is left out.

`ms` is over all epochs of all rounds. `peak_mib` is the largest rank's resident memory above its state before it read
data, the median of the rounds. `sent_mib` is what all ranks send in an epoch. `to_one` is the time as a multiple of one
rank's. `to_oneshot` and `memory_to_oneshot` are mode sar's time and memory as multiples of mode oneshot's on the same
ranks.

The cases `sage-exact` and `sage-hec` are GraphSAGE in minibatches of 1,000 seeds, fan-outs 5, 10, 15. For them give
`--modes sar --prefetch 1`, as neither option changes a minibatch.

`--account` says where each rank's time goes, from the command's `--trace`: for the configuration's fastest epoch, each
span's time without the spans inside it. `own` and `peers` are the kernels over the edges from a rank's own rows and from
its peers'. `aggregate` is the rest of an aggregation: packing rows, adding gradients, buffers. `wait` is waiting for rows
or gradients. `collective` is what all ranks do together: gradients, batch norm. `rest` are the other primitives, and
`between` is the time in no span, such as waiting for a batch. With `--cpu` the times are processor time of the rank's
main thread, without sleep: use one thread a rank, on one rank too.
"""

import json
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import harness
import numpy as np
import seeded_graphs

N_FEATURES, N_CLASSES = 100, 47
SHARED = dict(layers=3, batch_norm=True, dropout=0.5, activation="relu", partition="metis", verify=False)
CASES = {
    "sage": dict(model="sage", hidden=256),
    "gat": dict(model="gat", hidden=32, heads=4, out_heads=1, input_dropout=0.0, attention_dropout=0.0),
    **{f"sage-{remote}": dict(model="sage", hidden=256, batch_size=1000, fanouts="5,10,15", remote=remote)
       for remote in ("exact", "hec")},
}
COLLECTIVES = "allreduce", "allgather", "alltoall", "gather", "broadcast"
ACCOUNT = "own", "peers", "aggregate", "wait", "collective", "product", "optimizer", "rest", "between"


def configurations(args):
    """Return [(ranks, threads, mode, prefetch), ...], the configurations that `args` asks to measure, one rank's first.

    One rank has no peers, so it runs in one mode only.
    """
    ways = [(mode, prefetch) for mode in args.modes for prefetch in (args.prefetch if mode == "sar" else [0])]
    return [(n, threads, *way) for n, threads in sorted(zip(args.ranks, args.threads))
            for way in (ways if n > 1 else [("sar", 0)])]


def write_data(scratch: harness.Scratch, args, method="metis"):
    """Write the data set into `scratch` and divide it by `method` for each number of ranks; return its directory."""
    indptr, indices = seeded_graphs.arrays_of(seeded_graphs.path(args.graphs, args.graph))
    draw, n_nodes = np.random.default_rng(1), len(indptr) - 1
    x, labels = draw.standard_normal((n_nodes, N_FEATURES), dtype=np.float32), draw.integers(0, N_CLASSES, n_nodes)
    data = scratch.write("scaling", indptr, indices, x, labels, N_CLASSES)
    for n_ranks in {n for n in args.ranks if n > 1}:
        harness.note(f"dividing {args.graph} into {n_ranks} parts")
        harness.python("-m", "sarlite.data", "partition", data, "--parts", n_ranks, "--method", method)
    return data


def measure(args, data):
    """Train each of `args.cases` in each configuration, once per round; return {(case, configuration): [JSON line of each run]}."""
    lines_of = {(name, configuration): [] for name in args.cases
                for configuration in configurations(args)}
    for number in range(args.rounds):
        for (name, (n_ranks, threads, mode, prefetch)), lines in lines_of.items():
            harness.note(f"round {number + 1}: {name}, {n_ranks} ranks x {threads} threads, {mode}, prefetch "
                         f"{prefetch}")
            lines.append(train(args, n_ranks, data=data, mode=mode, prefetch=prefetch, threads=threads,
                               epochs=args.epochs + 1,
                               eval_every=args.epochs + 1, **SHARED, **CASES[name]))
    return lines_of


def train(args, n_ranks, **options):
    """Train on N ranks and return the command's JSON line; with `--account`, also the time of each rank and epoch by category.

    With `--account` the line has "account": the milliseconds of each epoch and rank, by category.
    """
    if not args.account:
        return harness.train(n_ranks, **options)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        line = harness.train(n_ranks, **options, trace=trace, trace_epochs=options["epochs"])
        spans = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    return {**line, "account": list(zip(*(account(rank, spans, args.cpu) for rank in range(n_ranks))))}


def account(rank, spans, use_cpu_time=False):
    """Divide the time of each epoch of `rank` among categories, such as "wait", by a profile's `spans`; return [{category: ms}, ...].

    The categories are the entries of `ACCOUNT`. Evaluations are left out. With `use_cpu_time` processor time is
    counted.
    """
    computing = [span for span in spans if span["pid"] == 1 + rank and span["tid"] == 1000]
    epochs, around = [], []
    for span in sorted(computing, key=lambda span: (span["ts"], -span["dur"])):
        around = [(other, purpose) for other, purpose in around if other["ts"] + other["dur"] > span["ts"]]
        if span["name"].startswith("epoch "):
            epochs.append(defaultdict(float))
        if not epochs:
            continue
        purpose = "evaluation" if any(purpose == "evaluation" for _, purpose in around) else purpose_of(span)
        length = span["args"]["processor_ms"] if use_cpu_time else span["dur"] / 1e3
        epochs[-1][purpose] += length
        if around:
            epochs[-1][around[-1][1]] -= length
        around.append((span, purpose))
    return [by_owner(epoch, rank) for epoch in epochs]


def purpose_of(span):
    """Return the category, such as "product" or "wait", of a profile's span. `account` counts a span's time without its inner spans.

    For a block the category is the rank whose rows the block reads; `by_owner` adds these up.
    """
    name = span["name"].split(" ")[0]
    if name == "block":
        return span["args"]["source"]
    if name in ("epoch", "step"):
        return "between"
    if name in COLLECTIVES:
        return "collective"
    return {"matmul": "product"}.get(name, name if name in (*ACCOUNT, "evaluation") else "rest")


def by_owner(epoch, rank):
    """Merge an epoch's {category: ms}: times by source rank become "own", for rows of this rank, and "peers"; return the new dict.

    If all blocks read the rows of one rank, as in a cache's batch, they count as `own`.
    """
    sources = [source for source in epoch if source == "all" or isinstance(source, int)]
    own_source = rank if rank in sources and len(sources) > 1 else (sources or [rank])[0]
    shares = {purpose: epoch[purpose] for purpose in ACCOUNT}
    return {**shares, "own": epoch[own_source], "peers": sum(epoch[source] for source in sources if source != own_source)}


def fastest(run_lines):
    """Return each rank's {category: ms} in the fastest epoch of all runs, by its slowest rank; `run_lines` are the runs' JSON lines.

    The first epoch of each run does not count.
    """
    epochs = [epoch for line in run_lines for epoch in line.get("account", ())[1:]]
    return min(epochs, key=lambda ranks: max(sum(rank.values()) for rank in ranks), default=())


def row(args, name, configuration, lines):
    """Return the result row of case `name` in one configuration, (ranks, threads, mode, prefetch), from its runs' JSON `lines`."""
    n_ranks, threads, mode, prefetch = configuration
    sent = [sum(n for phase, n in line["sent_bytes"].items() if phase != "evaluation") for line in lines]
    return {"case": name, "graph": args.graph, "ranks": n_ranks, "threads": threads, "mode": mode,
            "prefetch": prefetch,
            **harness.summary([1e3 * seconds for line in lines for seconds in line["seconds"][1:]]),
            "peak_mib": statistics.median(max(line["peak_bytes"]) for line in lines) / 2**20, "limit_fraction": None,
            "sent_mib": sent[0] / (args.epochs + 1) / 2**20, "sent_bytes": lines[0]["sent_bytes"],
            "account": fastest(lines)}


def compare(rows):
    """Add to each row its time relative to one rank, and its time and memory relative to mode oneshot; None if not measured."""
    by_configuration = {(r["case"], r["ranks"], r["threads"], r["mode"]): r for r in rows}
    one = {r["case"]: r for r in rows if r["ranks"] == 1}
    for r in rows:
        other = by_configuration.get((r["case"], r["ranks"], r["threads"], "oneshot")) if r["mode"] == "sar" else None
        r["to_one"] = r["ms"] / one[r["case"]]["ms"] if r["case"] in one else None
        r["to_oneshot"] = other and r["ms"] / other["ms"]
        r["memory_to_oneshot"] = other and r["peak_mib"] / other["peak_mib"]
    return rows


def main(argv=None):
    args = arguments().parse_args(argv)
    if len(args.ranks) != len(args.threads):
        raise SystemExit(f"--ranks {args.ranks} and --threads {args.threads} must go together")
    with harness.Scratch() as scratch:
        lines_of = measure(args, write_data(scratch, args))
    rows = compare([row(args, name, configuration, lines) for (name, configuration), lines in lines_of.items()])
    harness.report(f"An epoch of training on {args.graph}, by ranks x threads", rows, COLUMNS, args.json)
    if args.account:
        each = [{**r, "rank": rank, **spent, "sum": sum(spent.values())}
                for r in rows for rank, spent in enumerate(r["account"])]
        harness.report("Where the fastest epoch goes, ms of each rank", each, ACCOUNT_COLUMNS)


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
ACCOUNT_COLUMNS = {
    **{name: COLUMNS[name] for name in ("case", "ranks", "threads", "mode", "prefetch")},
    **harness.named("rank"),
    **{name: lambda r, name=name: f"{r[name]:.0f}" for name in (*ACCOUNT, "sum")},
}


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--graph", default="S", help="of seeded_graphs.py")
    harness.graphs_option(parser)
    parser.add_argument("--cases", type=harness.words, default=["sage", "gat"], help=f"of {','.join(CASES)}")
    parser.add_argument("--ranks", type=harness.numbers, default=[1, 2, 4])
    parser.add_argument("--threads", type=harness.numbers, default=[2, 1, 1],
                        help="of a rank, one number for each of --ranks")
    parser.add_argument("--modes", type=harness.words, default=["sar", "oneshot"])
    parser.add_argument("--prefetch", type=harness.numbers, default=[1, 0], help="in mode sar")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--account", action="store_true", help="say where each rank's time goes")
    parser.add_argument("--cpu", action="store_true", help="of --account: processor time, where other work runs beside")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Is the mode that `--mode auto` takes within 5 % of the fastest one's time?

An epoch of the training command under mpiexec, as `scaling.py` measures it, of GCN (2 x 512), GraphSAGE and GAT on
ranks of one thread, random parts, in each mode, with all columns on each rank and with `--mode auto`, in turn,
`--rounds` times; the first epoch of a run is left out. `chosen` is what auto took in each round, `to_best` its time as
a multiple of the fastest mode's, the median of the rounds, with minimum and maximum: a mode that auto has chosen
differs from itself by what two runs differ.

With `--network RATE` ranks are on hosts of `--per-host` ranks each, which are network namespaces of this machine on
links of that rate (`hosts.py`: needs Linux, root and iproute2).
"""

import statistics
import sys
from contextlib import nullcontext

import harness
import hosts
import scaling

MODES = ["sar", "sa", "oneshot", "broadcast", "columns"]
CASES = {"gcn": dict(model="gcn", hidden=512, layers=2, input_dropout=0.0),
         **{name: dict(scaling.SHARED, **case) for name, case in scaling.CASES.items()}}


def measure(args, data, name, n_ranks, launcher=None):
    """Return the row of one model."""
    ways, chosen, ratios = {mode: [] for mode in [*args.modes, "auto"]}, [], []
    for number in range(args.rounds):
        for mode, times in ways.items():
            harness.note(f"round {number + 1}: {name}, {n_ranks} ranks, {mode}")
            options = {**CASES[name], "partition": args.partition, "verify": False}
            options |= {"mode": "sar", "columns": n_ranks} if mode == "columns" else {"mode": mode}
            options |= {"data": data, "threads": 1, "epochs": args.epochs + 1, "eval_every": args.epochs + 1}
            line = harness.train(n_ranks, launcher, **options)
            times.append(1e3 * statistics.median(line["seconds"][1:]))
        chosen.append("columns" if "grid" in line else line["mode"])
        ratios.append(ways["auto"][-1] / min(ways[mode][-1] for mode in args.modes))
    middle = {mode: statistics.median(times) for mode, times in ways.items()}
    return {"case": name, "graph": args.graph, "ranks": n_ranks, "network": args.network, "modes_ms": middle,
            "chosen": chosen,
            "ratios": ratios, "threads": 1, "peak_mib": None, "limit_fraction": None,
            "to_best": statistics.median(ratios), **harness.summary(ways["auto"])}


COLUMNS = {
    "case": lambda r: r["case"],
    "graph": lambda r: r["graph"],
    "ranks": lambda r: r["ranks"],
    **{mode: lambda r, mode=mode: f"{r['modes_ms'][mode]:.0f}" if mode in r["modes_ms"] else None
       for mode in [*MODES, "auto"]},
    "chosen": lambda r: ", ".join(sorted(set(r["chosen"]))),
    "to the best": lambda r: f"{r['to_best']:.2f} ({min(r['ratios']):.2f}..{max(r['ratios']):.2f})",
}


def main(argv=None):
    args = arguments().parse_args(argv)
    with harness.Scratch() as scratch:
        data = scaling.write_data(scratch, args, args.partition)
        rows = []
        for n_ranks in args.ranks:
            with hosts.Hosts(n_ranks // args.per_host, args.network) if args.network else nullcontext() as made:
                launcher = made and made.launcher(harness.find_mpiexec(), args.per_host)
                rows += [measure(args, data, name, n_ranks, launcher) for name in args.cases]
    where = f", {args.per_host} ranks a host, {args.network}" if args.network else ""
    harness.report(f"What --mode auto chooses on {args.graph}, {args.partition} parts{where}: ms an epoch", rows,
                   COLUMNS, args.json)


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--graph", default="S", help="of graphs.py")
    harness.graphs_option(parser)
    parser.add_argument("--cases", type=harness.words, default=[*CASES], metavar="LIST")
    parser.add_argument("--ranks", type=harness.numbers, default=[2], metavar="LIST")
    parser.add_argument("--modes", type=harness.words, default=MODES, metavar="LIST", help="beside auto")
    parser.add_argument("--network", metavar="RATE", help="of links between hosts, as 1gbit (default: one host)")
    parser.add_argument("--per-host", type=int, default=1, metavar="RANKS")
    parser.add_argument("--partition", choices=("metis", "fennel", "random", "contiguous"), default="random")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    return parser


if __name__ == "__main__":
    sys.exit(main())

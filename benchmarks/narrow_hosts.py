"""Measure an epoch on several hosts by the format of the rows that travel: float32, bfloat16 or int8.

Each host is a network namespace with one rank of one thread (`hosts.py`), and a link of `--rate`. An epoch is one step
of the training command: GraphSAGE of three layers as in `scaling.py`, 256 hidden features, mode sar, random parts. The
formats take turns, `--rounds` times; each run's first epoch is left out. `mib` are rows and gradients
that a rank sends in an epoch: the mean over ranks and over all epochs, of which only the first fetches the features.
`to_float32` and `bytes_to_float32` are ratios to float32 rows with the same prefetch.
"""

import statistics
import sys

import harness
import hosts
import scaling

from sarlite.schedule.row_format import ROW_FORMATS


def measure(args, data, network):
    """Train on the data set `data` on simulated hosts; return {(row dtype, prefetch): [JSON line of each run]}, measured in turn."""
    lines_of = {(rows, prefetch): [] for prefetch in args.prefetch for rows in args.rows}
    launcher = network.launcher(harness.find_mpiexec())
    for _ in range(args.rounds):
        for (rows, prefetch), lines in lines_of.items():
            harness.note(f"{rows}, prefetch {prefetch}")
            options = {**scaling.SHARED, **scaling.CASES["sage"], "partition": "random", "rows": rows,
                       "prefetch": prefetch}
            lines.append(harness.train(args.hosts, launcher, data=data, threads=1, epochs=args.epochs + 1,
                                       eval_every=args.epochs + 1, **options))
    return lines_of


def row_of(args, row_dtype, prefetch, lines):
    """Return the result row of one row dtype and prefetch; `lines` are the JSON lines of its training runs."""
    sent = [sum(n for phase, n in line["sent_bytes"].items() if phase.endswith(("fetch", "push"))) for line in lines]
    return {"graph": args.graph, "hosts": args.hosts, "rate": args.rate, "rows": row_dtype, "prefetch": prefetch,
            **harness.summary([1e3 * seconds for line in lines for seconds in line["seconds"][1:]]),
            "mib": statistics.median(sent) / (args.epochs + 1) / args.hosts / 2**20}


def main(argv=None):
    args = arguments().parse_args(argv)
    if reason := hosts.missing():
        return hosts.report_skipped("narrow_hosts", reason, args.json)
    args.ranks = [args.hosts]
    with harness.Scratch() as scratch, hosts.Hosts(args.hosts, args.rate) as network:
        lines_of = measure(args, scaling.write_data(scratch, args, "random"), network)
    table = [row_of(args, *way, lines) for way, lines in lines_of.items()]
    whole = {row["prefetch"]: row for row in table if row["rows"] == "float32"}
    for row in table:
        other = whole.get(row["prefetch"])
        row["to_float32"], row["bytes_to_float32"] = (other and row[name] / other[name] for name in ("ms", "mib"))
    columns = {**harness.named("rows", "prefetch"), "ms": harness.times(),
               **harness.named("to_float32", "mib", "bytes_to_float32")}
    return harness.report(f"An epoch of GraphSAGE on {args.graph}, {args.hosts} hosts, {args.rate}", table, columns,
                          args.json)


def arguments():
    parser = harness.parser(__doc__)
    harness.graphs_option(parser)
    parser.add_argument("--graph", default="R", help="of seeded_graphs.py [%(default)s]")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit", help="of each host's link, as tc reads it")
    parser.add_argument("--rows", type=harness.words, default=list(ROW_FORMATS), help=f"of {','.join(ROW_FORMATS)}")
    parser.add_argument("--prefetch", type=harness.numbers, default=[1])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    return parser


if __name__ == "__main__":
    sys.exit(main())

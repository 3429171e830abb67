"""Question: does what `--dry-run` says come true, for each model and mode on N ranks: bytes sent, peak memory, remote
buffers?

A generated graph of communities, of R-GCN and R-GAT one of several node types, mapped by real processes of mpiexec. One
dry run a model and N tells all modes; then each mode trains some epochs. Bytes are compared over the whole run, by
phase, but for those of setting up; memory is the largest rank's peak above its state before it reads its rows, as the
command reports it.
"""

import sys

import harness
import numpy as np

from sarlite.data import format, load

MODELS = {
    "gcn": dict(model="gcn", layers=3, hidden=128, dropout=0.5, input_dropout=0.0),
    "sage": dict(model="sage", layers=3, hidden=128),
    "sage pool": dict(model="sage", layers=2, hidden=128, aggregator="max-pool"),
    "gat": dict(model="gat", layers=3, hidden=32, heads=4, attention_dropout=0.0),
    "appnp": dict(model="appnp", layers=2, hidden=128, hops=4),
    "sgc": dict(model="sgc"),
}
RELATIONAL = {
    "rgcn": dict(model="rgcn", layers=2, hidden=128),
    "rgcn bases": dict(model="rgcn", layers=2, hidden=128, n_bases=4, embedding=64),
    "rgat": dict(model="rgat", layers=2, hidden=32, heads=4),
}
SETTINGS = ["sar", "sa", "oneshot", "broadcast", "sar --backward fetch"]


def options(name, data, args, n_ranks):
    values = {**({"edge_weights": True} if args.edge_weights else {}),
              **({"edge_features": True} if args.edge_features else {})}
    layers = MODELS.get(name, {}).get("layers", 2)
    batches = dict(batch_size=args.batch_size, fanouts=",".join(["10"] * layers),
                   remote=args.remote) if args.batch_size else {}
    return dict(data=data, epochs=args.epochs, partition=args.partition, verify=False, threads=max(1, 2 // n_ranks),
                prefetch=args.prefetch,
                progress="none", mfg=args.mfg, **batches, **values,
                **{**MODELS, **RELATIONAL}[name])


def changed(spec, path, args):
    """Write a data set with fewer labels, weights and features on its edges, as asked, and return where."""
    dataset, rng = load(spec), np.random.default_rng(0)
    if args.labelled < 1:
        kept = rng.random(dataset.n_nodes) < args.labelled
        dataset.train, dataset.val, dataset.test = (split & kept
                                                    for split in (dataset.train, dataset.val, dataset.test))
    if args.edge_weights:
        dataset.edge_weight = rng.random(dataset.n_edges, np.float32) + np.float32(0.5)
    if args.edge_features:
        dataset.edge_features = rng.random((dataset.n_edges, args.edge_features), np.float32)
    format.write(path, dataset)
    return path


def dry(n_ranks, **chosen):
    """Run `--dry-run` and return its settings by name."""
    words = harness.flags({**chosen, "dry_run": True, "json": True})
    line = harness.last_json(harness.mpiexec(n_ranks, "-m", "sarlite.train", *words))
    return {row["setting"]: row for row in line["settings"]}


def measure(name, n_ranks, mode, data, args, said):
    """Return a row."""
    found = harness.train(n_ranks, **{**options(name, data, args, n_ranks), **said["options"], "mode": said["mode"]})
    sent = {phase: n for phase, n in found["sent_bytes"].items() if phase != "setup"}
    told = {phase: n for phase, n in said["run_sent_bytes"].items() if phase != "setup" and n}
    peak, predicted = max(found["peak_bytes"]), max(said["peak_bytes"])
    row = {"case": name, "ranks": n_ranks, "mode": mode, "sent_bytes": sum(sent.values()),
           "predicted_sent_bytes": sum(told.values()),
           "phases_equal": sent == told, "peak_bytes": peak, "predicted_peak_bytes": predicted,
           "error": predicted / peak - 1,
           "all_peaks": found["peak_bytes"], "predicted_peaks": said["peak_bytes"],
           "buffers": found["live_remote_buffers"], "predicted_buffers": said["remote_buffers"]}
    harness.note(f"{name}, {n_ranks} ranks, {mode}: {harness.mib(peak)} MiB, predicted {harness.mib(predicted)}, bytes "
                 f"{'equal' if sent == told else f'{sent} and not {told}'}")
    return row


def main(argv=None):
    args = arguments().parse_args(argv)
    rows = []
    with harness.Scratch() as scratch:
        spec = f"sbm:nodes={args.nodes},degree={args.degree},features={args.features},classes=16"
        there = args.edge_weights or args.edge_features or args.labelled < 1
        data = changed(spec, scratch.path / "graph", args) if there else scratch.convert(spec, "graph")
        typed = f"relational:nodes={args.nodes},edges={args.nodes * args.degree},features={args.features},classes=16"
        relational = scratch.convert(typed, "relational") if set(args.models) & set(RELATIONAL) else None
        for name in args.models:
            own = relational if name in RELATIONAL else data
            for n_ranks in args.ranks:
                said = dry(n_ranks, **options(name, own, args, n_ranks))
                modes = [mode for mode in args.modes if mode in said]
                rows += [measure(name, n_ranks, mode, own, args, said[mode])
                         for mode in (modes if n_ranks > 1 else modes[:1])]
    harness.report(f"Predicted and measured: {args.nodes:,} nodes, degree {args.degree}, {args.features} features, "
                   "partition "
                   f"{args.partition}, prefetch {args.prefetch}", rows, COLUMNS, args.json)
    worst = max(rows, key=lambda row: abs(row["error"]))
    print(f"\nbytes equal in {sum(row['phases_equal'] for row in rows)} of {len(rows)} runs; memory within "
          f"{100 * abs(worst['error']):.1f} % ({worst['case']}, {worst['ranks']} ranks, {worst['mode']})")


COLUMNS = {
    "case": lambda r: r["case"],
    "ranks": lambda r: r["ranks"],
    "mode": lambda r: r["mode"],
    "sent MiB": lambda r: harness.mib(r["sent_bytes"]),
    "bytes equal": lambda r: "yes" if r["phases_equal"] else "no",
    "peak MiB": lambda r: harness.mib(r["peak_bytes"]),
    "predicted MiB": lambda r: harness.mib(r["predicted_peak_bytes"]),
    "error %": lambda r: f"{100 * r['error']:+.1f}",
    "buffers": lambda r: r["buffers"],
    "predicted": lambda r: f"{r['predicted_buffers']:.3g}",
}


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--models", type=harness.words, default=[*MODELS, *RELATIONAL])
    parser.add_argument("--modes", type=harness.words, default=SETTINGS,
                        help="modes, or settings as the dry run names them")
    parser.add_argument("--ranks", type=harness.numbers, default=[1, 2, 4, 8])
    parser.add_argument("--nodes", type=int, default=40_000)
    parser.add_argument("--degree", type=int, default=20)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--mfg", action="store_true", help="message-flow graphs")
    parser.add_argument("--batch-size", type=int, default=0, help="minibatches of 10 picks a row and layer")
    parser.add_argument("--remote", default="exact")
    parser.add_argument("--labelled", type=float, default=1.0, metavar="SHARE",
                        help="of the nodes that are in a split otherwise")
    parser.add_argument("--edge-weights", action="store_true")
    parser.add_argument("--edge-features", type=int, default=0, metavar="N", help="features an edge, for gat")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--prefetch", type=int, default=1)
    parser.add_argument("--partition", default="contiguous")
    return parser


if __name__ == "__main__":
    sys.exit(main())

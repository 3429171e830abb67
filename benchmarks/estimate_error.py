"""Compare the memory that `sarlite-estimate` predicts with the memory that a run takes.

A stored graph of communities, contiguous parts, ranks of mpiexec, mode sar without prefetch. `--dry-run` measures the
largest rank's peak above its state before it reads its rows. `python -m sarlite.estimate` predicts the peak from the
numbers of nodes and edges and the widths alone.
"""

import sys

import harness

MODELS = {
    "gcn": {"layers": 3, "hidden": 64},
    "sage": {"layers": 3, "hidden": 96},
    "gat": {"layers": 3, "hidden": 16, "heads": 4},
    "gatv2": {"layers": 2, "hidden": 16, "heads": 4},
    "gin": {"layers": 3, "hidden": 64},
    "gcnii": {"layers": 6, "hidden": 64},
    "pna": {"layers": 2, "hidden": 64},
    "appnp": {"layers": 2, "hidden": 128, "hops": 5},
    "sgc": {},
    "sign": {"layers": 2, "hidden": 64},
}


def measure(name, n_ranks, data, modes):
    """Return result rows, one per schedule mode, with the predicted and the measured memory of model `name` on N ranks."""
    settings = {"data": data, "model": name, "prefetch": 0, "threads": 1, "json": True, **MODELS[name]}
    words = harness.flags({**settings, "ranks": n_ranks})
    predicted = {row["mode"]: row for row in harness.last_json(harness.python("-m", "sarlite.estimate", *words))}
    rows = []
    for mode in modes if n_ranks > 1 else modes[:1]:
        words = harness.flags({**settings, "mode": mode, "partition": "contiguous", "verify": False, "progress": "none",
                               "dry_run": True})
        report = harness.last_json(harness.mpiexec(n_ranks, "-m", "sarlite.train", *words))
        peak, estimate = max(report["peak_bytes"]), predicted[mode if n_ranks > 1 else "sar"]
        sent = sum(n for phase, n in report["sent_bytes"]["step"].items() if "fetch" in phase or "push" in phase)
        rows.append({"case": name, "ranks": n_ranks, "mode": mode, "peak_bytes": peak,
                     "predicted_peak_bytes": estimate["peak_bytes"], "error": estimate["peak_bytes"] / peak - 1,
                     "step_bytes": sent / n_ranks, "predicted_step_bytes": estimate["step_received_bytes"],
                     "step_seconds": report["seconds"]["step"], "predicted_step_seconds": estimate["step_seconds"]})
        harness.note(f"{name}, {n_ranks} ranks, {mode}: {harness.mib(peak)} MiB, predicted "
                     f"{harness.mib(estimate['peak_bytes'])}")
    return rows


COLUMNS = {
    "model": lambda r: r["case"],
    "ranks": lambda r: r["ranks"],
    "mode": lambda r: r["mode"],
    "peak MiB": lambda r: harness.mib(r["peak_bytes"]),
    "predicted MiB": lambda r: harness.mib(r["predicted_peak_bytes"]),
    "error %": lambda r: f"{100 * r['error']:+.1f}",
    "a step's MiB": lambda r: harness.mib(r["step_bytes"]),
    "predicted": lambda r: harness.mib(r["predicted_step_bytes"]),
}


def main(argv=None):
    parser = harness.parser(__doc__)
    parser.add_argument("--models", type=harness.words, default=[*MODELS])
    parser.add_argument("--modes", type=harness.words, default=["sar"])
    parser.add_argument("--ranks", type=harness.numbers, default=[1, 2, 4])
    parser.add_argument("--nodes", type=int, default=30_000)
    parser.add_argument("--degree", type=int, default=14)
    parser.add_argument("--features", type=int, default=100)
    args = parser.parse_args(argv)
    with harness.Scratch() as scratch:
        spec = f"sbm:nodes={args.nodes},degree={args.degree},features={args.features},classes=24"
        data = scratch.convert(spec, "graph")
        rows = [row for name in args.models for n_ranks in args.ranks
                for row in measure(name, n_ranks, data, args.modes)]
    harness.report(f"Predicted and measured: {args.nodes:,} nodes, degree {args.degree}, {args.features} features",
                   rows, COLUMNS, args.json)
    worst = max(rows, key=lambda row: abs(row["error"]))
    print(f"\nmemory within {100 * abs(worst['error']):.1f} % ({worst['case']}, {worst['ranks']} ranks)")


if __name__ == "__main__":
    sys.exit(main())

"""Check that a rank's memory falls as (2 + prefetch) / N, and that at most 1 + prefetch buffers of peers' rows are alive.

The graph is random and so dense that every part needs nearly all rows; mode
`oneshot` then gains least from more ranks. Ranks are processes of mpiexec, which map one native data directory. The
measured number is the largest rank's peak of resident memory above its state before it reads its rows. The promise is
(2 + prefetch) / N of one rank's peak (SAR 3.4).

A rank also holds memory that has nothing to do with rows: pages of libraries, pages of MPI's shared memory that it first
touches in training, and its edges. The column `fixed` measures it: the peak of the same run with rows of one feature.
`net` is the share of one rank's peak with `fixed` subtracted from both. Replicated parameters and their copies are still
in it.
"""

import argparse
import sys

import harness
import numpy as np

MODELS = {
    "sage": dict(model="sage", layers=3, batch_norm=True, dropout=0.5),
    "gat": dict(model="gat", layers=3, heads=4, out_heads=1, batch_norm=True, dropout=0.5, attention_dropout=0.0),
}
PLACES = ["sar:0", "sar:1", "oneshot:0"]
N_CLASSES = 16


def random_graph(n_nodes, degree, seed=0):
    """Return (indptr, indices) of a graph whose nodes have `degree` random sources each."""
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, n_nodes, n_nodes * degree, dtype=np.int32)
    return np.arange(n_nodes + 1, dtype=np.int64) * degree, indices


def write_data(scratch, args, n_features):
    indptr, indices = random_graph(args.nodes, args.degree)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((args.nodes, n_features), dtype=np.float32)
    return scratch.write(f"dense-{n_features}", indptr, indices, x, rng.integers(0, N_CLASSES, args.nodes), N_CLASSES)


def run(name, n_ranks, mode, prefetch, data, hidden, args):
    """Train model `name` on N ranks and the data set `data` by `sarlite.train --json`; return the printed JSON object."""
    width = hidden // MODELS[name].get("heads", 1)
    return harness.train(n_ranks, data=data, mode=mode, prefetch=prefetch, hidden=max(width, 1), epochs=args.epochs,
                         eval_every=args.epochs, partition="contiguous", verify=False, baseline=False, threads=threads(n_ranks),
                         **MODELS[name])


def threads(n_ranks):
    return max(1, 2 // n_ranks)


def measure(name, n_ranks, mode_and_prefetch: tuple, data, data_of_one_feature, args, one_rank_row):
    """Return the result row of the peak memory of model `name` on N ranks, also relative to `one_rank_row`, one rank's result row.

    `data` is the data set of interest. `data_of_one_feature`, with one feature, shows the memory that does not depend on
    the width. `one_rank_row` is None for the run on one rank.
    """
    mode, prefetch = mode_and_prefetch
    peak = max((result := run(name, n_ranks, mode, prefetch, data, args.hidden, args))["peak_bytes"])
    fixed = max(run(name, n_ranks, mode, prefetch, data_of_one_feature, 1, args)["peak_bytes"]) if data_of_one_feature else None
    bound = 1 + prefetch if mode == "sar" else None
    shown = one_rank_row or {"peak_bytes": peak, "fixed_bytes": fixed}
    net = (peak - fixed) / (shown["peak_bytes"] - shown["fixed_bytes"]) if data_of_one_feature else None
    promised = min(2 + prefetch, n_ranks) / n_ranks * shown["peak_bytes"] if mode == "sar" else None
    harness.note(f"{name}, {n_ranks} ranks, {mode}, prefetch {prefetch}: {harness.mib(peak)} MiB")
    return {"case": name, "graph": f"{args.nodes}x{args.degree}", "ranks": n_ranks, "threads": threads(n_ranks),
            "mode": mode,
            "prefetch": prefetch, **harness.summary([1e3 * seconds for seconds in result["seconds"]]),
            "peak_mib": peak / 2**20,
            "limit_fraction": None, "peak_bytes": peak, "all_peaks": result["peak_bytes"], "promised_bytes": promised,
            "share": peak / shown["peak_bytes"], "net_share": net, "fixed_bytes": fixed,
            "buffers": result["live_remote_buffers"],
            "buffer_bound": bound}


def main(argv=None):
    args = arguments().parse_args(argv)
    rows = []
    with harness.Scratch() as scratch:
        wide = write_data(scratch, args, args.features)
        narrow = write_data(scratch, args, 1) if args.fixed else None
        for name in args.models:
            first = measure(name, 1, ("sar", 0), wide, narrow, args, None)
            rows.append(first)
            for place in args.places:
                mode, prefetch = place.split(":")
                rows += [measure(name, n, (mode, int(prefetch)), wide, narrow, args, first) for n in args.ranks
                         if n > 1]
    size = f"{args.nodes:,} nodes of {args.degree} in-edges, {args.features} features, {args.hidden} hidden"
    harness.report(f"Peak memory of the largest rank: {size}", rows, COLUMNS, args.json)


COLUMNS = {
    "case": lambda r: r["case"],
    "ranks": lambda r: r["ranks"],
    "mode": lambda r: r["mode"],
    "prefetch": lambda r: r["prefetch"] if r["mode"] == "sar" else None,
    "peak MiB": lambda r: harness.mib(r["peak_bytes"]),
    "of one rank": lambda r: f"{r['share']:.3f}",
    "promised": lambda r: r["promised_bytes"] and f"{min(2 + r['prefetch'], r['ranks']) / r['ranks']:.3f}",
    "MiB promised": lambda r: r["promised_bytes"] and harness.mib(r["promised_bytes"]),
    "measured/promised": lambda r: r["promised_bytes"] and f"{r['peak_bytes'] / r['promised_bytes']:.2f}",
    "net": lambda r: r["net_share"] and f"{r['net_share']:.3f}",
    "fixed MiB": lambda r: r["fixed_bytes"] and harness.mib(r["fixed_bytes"]),
    "buffers": lambda r: r["buffers"],
    "at most": lambda r: r["buffer_bound"],
    "s an epoch": lambda r: r["ms"] / 1e3,
}


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--models", type=harness.words, default=list(MODELS))
    parser.add_argument("--ranks", type=harness.numbers, default=[1, 2, 4, 8, 16], help="one rank is always measured")
    parser.add_argument("--places", type=harness.words, default=PLACES, metavar="LIST", help="MODE:PREFETCH, ...")
    parser.add_argument("--nodes", type=int, default=40_000)
    parser.add_argument("--degree", type=int, default=100)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=256, help="hidden features, those of all heads together")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--fixed", action=argparse.BooleanOptionalAction, default=True,
                        help="measure `fixed` too, a second run a row")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Check that sarlite reaches the published test accuracy on Cora, on one rank and on three, in each mode.

Cora's public split, the settings of the two papers, ten seeds. The test accuracy of a run is the one at its best
validation accuracy. The files PATH/ind.cora.* come from --data, or from planetoid/ in the folder that SARLITE_DATA
names.
"""

import os
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import harness

TARGETS = {"gcn": 81.0, "gat": 82.3}
SETTINGS = {
    "gcn": dict(  # Kipf & Welling 2017, section 5.2
        model="gcn", layers=2, hidden=16, dropout=0.5, lr=0.01, weight_decay=5e-4, weight_decay_on="first", epochs=200),
    "gat": dict(  # Velickovic et al. 2018, section 3.3
        model="gat", layers=2, hidden=8, heads=8, out_heads=1, dropout=0.6, attention_dropout=0.6, lr=0.005,
        weight_decay=5e-4,
        epochs=600),
}
PLACES = [(1, "sar"), (3, "sar"), (3, "sa"), (3, "oneshot")]


def main():
    args = arguments().parse_args()
    if not (args.data / "ind.cora.x").exists():
        print(f"no Cora in {args.data}: nothing measured. Name the folder of ind.cora.* by --data, or its parent by "
              "SARLITE_DATA.")
        return
    rows = []
    with harness.Scratch() as scratch:
        cora = scratch.convert(f"planetoid:{args.data}/cora", "cora", "--normalize-features")
        for name in args.models:
            for n_ranks, mode in PLACES:
                if n_ranks in args.ranks and mode in args.modes:
                    rows.append(measure(name, n_ranks, mode, cora, args))
    columns = {
        "model": lambda r: r["model"],
        "ranks": lambda r: r["ranks"],
        "mode": lambda r: r["mode"],
        "seeds": lambda r: len(r["test"]),
        "test %": lambda r: f"{r['mean']:.2f} +- {r['std']:.2f}",
        "min..max": lambda r: f"{min(r['test']):.1f}..{max(r['test']):.1f}",
        "target": lambda r: f"{r['target']:.1f}",
        "": lambda r: "reached" if r["mean"] >= r["target"] else "missed",
        "epoch ms": lambda r: harness.spread(r["epoch_seconds"], 1e3, 1),
    }
    harness.report("Cora, public split: test accuracy at the best validation accuracy", rows, columns, args.json)


def arguments():
    default = Path(os.environ.get("SARLITE_DATA", "../shared/data")) / "planetoid"
    parser = harness.parser(__doc__)
    parser.add_argument("--data", type=Path, default=default, help="folder of ind.cora.* [%(default)s]")
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds, from 0 [%(default)s]")
    parser.add_argument("--models", type=harness.words, default=list(SETTINGS), help="of gcn,gat")
    parser.add_argument("--ranks", type=harness.numbers, default=[1, 3], help="of 1,3")
    parser.add_argument("--modes", type=harness.words, default=["sar", "sa", "oneshot"],
                        help="of sar,sa,oneshot; one rank is sar")
    parser.add_argument("--epochs", type=int, help="instead of the setting's number")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, of one thread a rank [%(default)s]")
    return parser


def measure(name, n_ranks, mode, data, args):
    """Train `name`, "gcn" or "gat", on Cora once for each seed in `mode`; return a result row with the test accuracies."""
    settings = {**SETTINGS[name], **({"epochs": args.epochs} if args.epochs else {})}

    def run(seed):
        result = harness.train(n_ranks, data=data, mode=mode, seed=seed, threads=1, metric="accuracy", **settings)
        harness.note(f"{name}, {n_ranks} ranks, {mode}, seed {seed}: {100 * result['test_accuracy']:.1f} %")
        return result

    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(run, range(args.seeds)))
    test = [100 * result["test_accuracy"] for result in results]
    return {"model": name, "ranks": n_ranks, "mode": mode, "epochs": settings["epochs"], "target": TARGETS[name],
            "test": test,
            "mean": statistics.mean(test), "std": statistics.pstdev(test),
            "epoch_seconds": [result["epoch_seconds"] for result in results]}


if __name__ == "__main__":
    sys.exit(main())

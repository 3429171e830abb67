"""Measure seconds, sent bytes and memory until a target validation accuracy for several ways of training one model.

GraphSAGE is trained by the command in each of `WAYS`, from the same seeds. A seed's target is 99 % of the best validation
accuracy that any way reached with that seed. A way's result is the first epoch that reaches the target: the seconds of
training until then, without evaluation; the bytes that all ranks sent in training; and the largest rank's peak memory
above the start. The parts of a division are made before the clock starts. "Never" is a way whose epochs all stay below
the target. The test accuracy is that of the epoch with the best validation accuracy, a mean over seeds.

All ways use both cores: one rank of two threads, or two ranks of one thread. Each kind of training has its own number
of epochs and learning rate in `TASKS`; `--rates` measures the full batch and the minibatches of one rank with other
rates, by which those were chosen. Loading is not counted.

Bytes until an epoch are its share of the run's bytes. Runs of several calls are combined by `--stored FILE,FILE`, which
measures nothing. Only times need a machine without other work: `--clock FILE,FILE` names rows of the same ways from such
a machine. Each epoch then takes the median epoch of these rows, the lowest of several runs, and the first epoch
likewise. The memory is the peak of these rows. For the other values `--as-threads` makes the ranks threads of one
process, which waits more cheaply where other programs run.
"""

import json
import os
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

import harness

SHARE = 0.99
"""The target as a share of the best validation accuracy."""


class Way(NamedTuple):
    """Configuration of a training: number of ranks, full batch or minibatches, and further options of the training command."""

    name: str
    ranks: int
    minibatches: bool
    options: dict


WAYS = [
    Way("full batch", 1, False, {}),
    Way("message flow", 1, False, {"mfg": True}),
    Way("minibatches", 1, True, {}),
    Way("full batch on 2 ranks", 2, False, {}),
    Way("bfloat16 rows", 2, False, {"rows": "bfloat16"}),
    Way("int8 rows", 2, False, {"rows": "int8"}),
    Way("exact minibatches", 2, True, {"remote": "exact"}),
    Way("hec minibatches", 2, True, {"remote": "hec"}),
]


class Task(NamedTuple):
    """Data set and its training options: `model` for all trainings, `full` for full batches, `batches` for minibatches."""

    spec: str
    flags: tuple
    model: dict
    full: dict
    batches: dict


TASKS = {
    "cora": Task("planetoid:{data}/planetoid/cora", ("--normalize-features",), {"layers": 2, "hidden": 64},
                 {"epochs": 50, "lr": 0.1}, {"epochs": 20, "lr": 0.1, "batch_size": 35, "fanouts": "10,10"}),
    "pages": Task("npz:{data}/npz/facebook_pages.npz,train=0.6,val=0.2", (), {"layers": 2, "hidden": 16},
                  {"epochs": 25, "lr": 0.03}, {"epochs": 3, "lr": 0.01, "batch_size": 1000, "fanouts": "10,10"}),
    "sbm": Task("sbm:nodes=50000,degree=20,classes=16,homophily=0.6,noise=2,train=0.3", (),
                {"layers": 2, "hidden": 64},
                {"epochs": 40, "lr": 0.03}, {"epochs": 10, "lr": 0.01, "batch_size": 500, "fanouts": "15,15"}),
}


def run(task: Task, way: Way, data, seed, ranks_are_threads=False, **changed_options):
    """Train `task` in the configuration `way` on the data directory `data`; return a result row with each epoch's accuracy and time."""
    place = {"launcher": (), "ranks": way.ranks, "threads": 1} if ranks_are_threads else {"threads": 2 // way.ranks}
    settings = (task.batches if way.minibatches else task.full) | way.options | changed_options
    line = harness.train(way.ranks, data=data, model="sage", **task.model, **settings, seed=seed,
                         metric="accuracy", baseline=False, verify=False, **place)
    sent = {phase: n for phase, n in line["sent_bytes"].items() if phase not in ("setup", "evaluation")}
    return {"way": way.name, "ranks": way.ranks, "seed": seed, "lr": settings["lr"], "seconds": line["seconds"],
            "curve": [epoch["val_accuracy"] for epoch in line["epochs"]], "test": 100 * line["test_accuracy"],
            "sent_bytes": sum(sent.values()), "row_bytes": sum(n for phase, n in sent.items() if phase != "allreduce"),
            "peak_bytes": max(line["peak_bytes"])}


def measure(args):
    """Train every task with every seed in every configuration; return the result rows of all runs."""
    rows = []
    with harness.Scratch(args.converted) as scratch:
        for name in args.tasks:
            task = TASKS[name]
            data = scratch.convert(task.spec.format(data=args.data), name, *task.flags)
            for seed in range(args.first_seed, args.first_seed + args.seeds):
                for way, changed in configurations(args):
                    changed |= {"epochs": args.epochs, "eval_every": args.epochs} if args.epochs else {}
                    rows.append({"task": name, **run(task, way, data, seed, args.as_threads, **changed)})
                    harness.note(f"{name}, seed {seed}, {way.name}, rate {rows[-1]['lr']}: best {best(rows[-1]):.4f}, "
                                 f"{sum(rows[-1]['seconds']):.2f} s")
                    if args.json:
                        harness.write_rows(args.json, rows)
    return rows


def configurations(args):
    """Return [(way, {option: changed value}), ...] of the runs: the chosen ways, or two ways with each rate of `--rates`."""
    if not args.rates:
        return [(way, {}) for way in WAYS if args.ways is None or way.name in args.ways]
    return [(way, {"lr": rate}) for way in WAYS if way.name in ("full batch", "minibatches") for rate in args.rates]


def best(row):
    """Return the best validation accuracy in the curve of a result row, where epochs without evaluation have None."""
    return max(accuracy for accuracy in row["curve"] if accuracy is not None)


def reached(row, target):
    """Return {"epochs", "seconds", "sent_mib", "row_mib"} until a run's validation accuracy reached `target`; None if it never did."""
    epoch = next((i + 1 for i, accuracy in enumerate(row["curve"]) if accuracy is not None and accuracy >= target), None)
    if epoch is None:
        return None
    share = epoch / len(row["curve"])
    return {"epochs": epoch, "seconds": sum(row["seconds"][:epoch]), "sent_mib": share * row["sent_bytes"] / 2**20,
            "row_mib": share * row["row_bytes"] / 2**20}


def summary(rows):
    """Return a row for each task, way and learning rate: accuracies of all seeds, and costs until the target accuracy was reached."""
    lines = {}
    for row in rows:
        rivals = [r for r in rows if (r["task"], r["seed"]) == (row["task"], row["seed"])]
        target = SHARE * max(map(best, rivals))
        line = lines.setdefault((row["task"], row["way"], row["lr"]),
                                {"task": row["task"], "way": row["way"], "lr": row["lr"], "best": [], "test": [], "results": [],
                                 "peak_mib": []})
        line["best"].append(100 * best(row))
        line["test"].append(row["test"])
        line["peak_mib"].append(row["peak_bytes"] / 2**20)
        line["results"].append(reached(row, target))
    return list(lines.values())


def over_seeds(key, digits):
    """Return a function that shows a row of `summary`: "median (min..max)" of the cost `key` over seeds that reached the target."""
    def show(line):
        values = [result[key] for result in line["results"] if result is not None]
        return harness.spread(values, digits=digits) if values else "never"

    return show


COLUMNS = {
    "data": lambda r: r["task"],
    "way": lambda r: r["way"],
    "rate": lambda r: r["lr"],
    "best validation, %": lambda r: f"{statistics.median(r['best']):.1f}",
    "test, %": lambda r: f"{statistics.mean(r['test']):.2f}",
    "reached": lambda r: f"{sum(x is not None for x in r['results'])} of {len(r['results'])}",
    "epochs": over_seeds("epochs", 0),
    "seconds": over_seeds("seconds", 2),
    "sent MiB": over_seeds("sent_mib", 1),
    "rows' MiB": over_seeds("row_mib", 1),
    "peak MiB": lambda r: harness.spread(r["peak_mib"], digits=0),
}


def stored(files):
    """Return the rows of JSON files that earlier calls wrote."""
    return [row for file in files for row in json.loads(Path(file).read_text())]


def by_clock(rows, timed_rows):
    """Return `rows` with the times and peak memory of `timed_rows`, which are rows of the same ways and tasks on an idle machine."""
    result = []
    for row in rows:
        same = [short for short in timed_rows if (short["task"], short["way"]) == (row["task"], row["way"])]
        first = min(short["seconds"][0] for short in same)
        epoch = min(statistics.median(short["seconds"]) for short in same)
        result.append({**row, "seconds": [first] + [epoch] * (len(row["curve"]) - 1),
                       "peak_bytes": max(short["peak_bytes"] for short in same)})
    return result


def main(argv=None):
    args = arguments().parse_args(argv)
    rows = stored(args.stored) if args.stored else measure(args)
    rows = by_clock(rows, stored(args.clock)) if args.clock else rows
    title = f"GraphSAGE until {SHARE:.0%} of a seed's best validation accuracy: median (minimum..maximum)"
    harness.report(title, summary(rows), COLUMNS)
    if args.json:
        harness.write_rows(args.json, rows)


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SARLITE_DATA", "../shared/data")).resolve(),
                        help="folder with planetoid/ind.cora.* and npz/facebook_pages.npz [%(default)s]")
    parser.add_argument("--converted", type=Path, metavar="DIR", help="keep the converted data sets there")
    parser.add_argument("--tasks", type=harness.words, default=list(TASKS), metavar="LIST", help=f"of {','.join(TASKS)}")
    parser.add_argument("--ways", type=harness.words, metavar="LIST", help="names of ways, those of the table (default: all)")
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rates", type=lambda text: [float(rate) for rate in text.split(",")], metavar="LIST",
                        help="learning rates to try with the full batch and the minibatches of one rank")
    parser.add_argument("--epochs", type=int, metavar="N", help="of every way, with one evaluation, to measure times alone")
    parser.add_argument("--as-threads", action="store_true", help="make the ranks threads of one process")
    parser.add_argument("--clock", type=harness.words, metavar="LIST", help="JSON files of runs whose epochs give the times")
    parser.add_argument("--stored", type=harness.words, metavar="LIST", help="JSON files of earlier calls, to combine")
    return parser


if __name__ == "__main__":
    sys.exit(main())

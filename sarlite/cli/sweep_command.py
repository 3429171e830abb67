"""`sarlite-sweep`: train with many values of some options, and rank the runs."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from sarlite.cli import report_command
from sarlite.cli.config import read_toml, resolve, to_toml
from sarlite.cli.folder import CHECKPOINT, CONFIG, SUMMARY
from sarlite.cli.options import OPTIONS
from sarlite.command import Parser, aligned, returns_status, run_command, show, suggestion
from sarlite.errors import ConfigError, needs, writing
from sarlite.files import write_whole

METHODS = ("grid", "random", "tpe", "halving")
RANKING, REPORT = "ranking.json", "report.html"
NOT_SEARCHED = ("run_dir", "resume", "config", "dry_run", "progress", "json", "trace", "stop_after")
"""Options that the sweep sets itself, or that make no run to compare."""


class Search(NamedTuple):
    """Contents of a sweep's file.

    Attributes
    ----------
    path : str
    run : dict
        Options that all runs share.
    values : dict of str to list or dict
        For each searched option its values, or its range: {"from": low, "to": high}, with "log": true for a range
        whose logarithm is drawn uniformly.
    """

    path: str
    run: dict[str, Any]
    values: dict[str, Any]


class Result(NamedTuple):
    """Outcome of one run of a sweep.

    Attributes
    ----------
    folder : Path
    options : dict
        Values of the searched options.
    epochs : int
        Number of epochs that the run may take.
    score : float, or None
        Best validation metric, or validation loss if the task has no metric; None if the run failed.
    metric : str
        Name of the metric.
    lower : bool
        True if a lower score is better.
    test : float, or None
        Metric of the test split at the best validation metric.
    error : str
        Last line that a failed run printed; "" for a run that ended well.
    """

    folder: Path
    options: dict[str, Any]
    epochs: int
    score: float | None = None
    metric: str = ""
    lower: bool = False
    test: float | None = None
    error: str = ""

    @property
    def loss(self) -> float:
        """The score as a number to minimize; infinite for a run without a score."""
        return math.inf if self.score is None else self.score if self.lower else -self.score


# ---- the file


def read_search(path: str) -> Search:
    """Return the contents of a sweep's TOML file, with tables [run] and [search].

    Raises
    ------
    ConfigError
        Another table, an unknown option, a value that the option cannot have, or an option in both tables; the message
        names the file and the option.
    """
    tables = read_toml(path)
    unknown = [name for name in tables if name not in ("run", "search")]
    if unknown or not isinstance(tables.get("search"), dict) or not tables["search"]:
        what = f"unknown {unknown[0]!r}{suggestion(unknown[0], ('run', 'search'))}" if unknown else "no table [search]"
        raise ConfigError(f"{path}: {what}; a sweep's file has [search], and [run] for options that all runs share")
    run, values = ({name.replace("-", "_"): value for name, value in tables.get(table, {}).items()}
                   for table in ("run", "search"))
    for name in (*run, *values):
        if name not in OPTIONS or name in NOT_SEARCHED:
            raise ConfigError(f"{path}: unknown option {name!r}{suggestion(name, OPTIONS)}" if name not in OPTIONS else
                              f"{path}: {name}: the sweep sets this option itself")
    if "epochs" in values:
        raise ConfigError(f"{path}: [search] epochs: all runs of a sweep have the same number of epochs: set it in [run]")
    both = [name for name in values if name in run]
    if both:
        raise ConfigError(f"{path}: {both[0]} stands in [run] and in [search]")
    for name, value in values.items():
        _check_values(f"{path}: [search] {name}", name, value)
    return Search(path, run, values)


def _check_values(where: str, name: str, value: Any) -> None:
    """Raise a ConfigError unless `value` is a list of values or a range of the option `name`."""
    option = OPTIONS[name]
    if isinstance(value, list) and value:
        for item in value:
            option.check(f"{where} = {item!r}", option.typed(item, f"{where}: "))
        return
    if not isinstance(value, dict) or not {"from", "to"} <= value.keys() <= {"from", "to", "log"}:
        raise ConfigError(f"{where} = {value!r}: expected a list of values, or a range such as "
                          "{ from = 1e-4, to = 1e-1, log = true }")
    if option.kind not in (int, float) or option.read:
        raise ConfigError(f"{where}: a range is of numbers, but {name} is none: give a list of values")
    low, high = (option.typed(value[end], f"{where}: {end}: ") for end in ("from", "to"))
    for end in (low, high):
        option.check(f"{where}: {end}", end)
    if not low < high or (value.get("log", False) and low <= 0):
        raise ConfigError(f"{where}: from {low} to {high} is no range{' of a logarithm' if value.get('log') else ''}")
    if not isinstance(value.get("log", False), bool):
        raise ConfigError(f"{where}: log = {value['log']!r} is not true or false")


# ---- which runs


def waves(search: Search, method: str, trials: int, jobs: int, seed: int) -> Iterator[tuple[list[Any], Any]]:
    """Yield (trials, study): the Optuna trials that run side by side, `jobs` at a time.

    The caller tells the study the result of each trial before it takes the next wave. The values depend on the seed,
    the number of jobs and the results alone, so a sweep that is started again takes the same values again.
    """
    optuna = needs("optuna", "sarlite-sweep")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {name: _distribution(optuna.distributions, OPTIONS[name].kind, value)
             for name, value in search.values.items()}
    make_sampler = optuna.samplers.TPESampler if method == "tpe" else optuna.samplers.RandomSampler
    study = optuna.create_study(sampler=make_sampler(seed=seed))
    if method == "grid":
        combinations = list(itertools.product(*(map(json.dumps, value) for value in search.values.values())))
        trials = len(combinations)
        for combination in combinations:
            study.enqueue_trial(dict(zip(search.values, combination)))
    for start in range(0, trials, jobs):
        yield [study.ask(space) for _ in range(min(jobs, trials - start))], study


def _distribution(distributions: Any, kind: type, value: Any) -> Any:
    if isinstance(value, list):  # as JSON, because Optuna's choices are text and numbers, and some options are lists
        return distributions.CategoricalDistribution([json.dumps(item) for item in value])
    ends = value["from"], value["to"]
    make = distributions.IntDistribution if kind is int else distributions.FloatDistribution
    return make(*map(kind, ends), log=value.get("log", False))


def chosen(search: Search, trial: Any) -> dict[str, Any]:
    """Return the values of the searched options in a trial."""
    return {name: json.loads(trial.params[name]) if isinstance(value, list) else trial.params[name]
            for name, value in search.values.items()}


# ---- runs


class Runner:
    """Starts runs of `sarlite.train` as processes and reads their results.

    A run whose folder has a summary of as many epochs is not started again; a run that left a checkpoint goes on.

    Parameters
    ----------
    search : Search
    folder : Path
        Folder of the sweep; each run has a folder in it.
    threads : int
        Threads of a run, unless the search has this option.
    """

    def __init__(self, search: Search, folder: Path, threads: int) -> None:
        self.search, self.folder, self.threads = search, folder, threads
        self._running: set[subprocess.Popen[str]] = set()
        self._lock, self._stopped = Lock(), False

    def run(self, number: int, options: Mapping[str, Any], epochs: int) -> Result:
        """Train run `number` up to `epochs` epochs, and return its result."""
        result = Result(self.folder / f"run-{number:03}", dict(options), epochs)
        earlier = self._read(result)
        if earlier is not None:
            return earlier
        try:
            config = self._write_config(number, {"threads": self.threads, **self.search.run, **options, "epochs": epochs})
        except ConfigError as error:
            return result._replace(error=str(error))
        command = [sys.executable, "-m", "sarlite.train", "--run-dir", str(result.folder), "--progress", "none"]
        if (result.folder / CHECKPOINT).exists():
            command += ["--resume", str(result.folder / CHECKPOINT)]
        with self._lock:
            if self._stopped:
                return result._replace(error="stopped before it began")
            process = subprocess.Popen([*command, "--config", str(config)], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True, errors="replace",
                                       start_new_session=True)  # a Ctrl-C of the terminal reaches the sweep alone
            self._running.add(process)
        _, errors = process.communicate()
        with self._lock:
            self._running.discard(process)
        lines = [line for line in errors.splitlines() if line.strip()]
        if process.returncode:
            return result._replace(error=lines[-1] if lines else f"exit status {process.returncode}")
        return self._read(result) or result._replace(error=f"{result.folder}: the run left no {SUMMARY}")

    def stop(self) -> None:
        """Ask the running runs to end; each writes a checkpoint first."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.send_signal(signal.SIGTERM)

    def _write_config(self, number: int, options: Mapping[str, Any]) -> Path:
        path = self.folder / f"run-{number:03}.toml"
        with writing(path):
            write_whole(path, to_toml(resolve({}, options)).encode(errors="surrogateescape"))
        return path

    def _read(self, result: Result) -> Result | None:
        """Return the result with its scores if the folder has a run of as many epochs, else None.

        A run that went on for more epochs has the score of its first epochs, so that halving takes the same runs again.
        """
        if not (result.folder / SUMMARY).exists():
            return None
        run = report_command.read(str(result.folder))
        for name, value in {**self.search.run, **result.options}.items():
            stored = run.options.get(name, OPTIONS[name].default)
            if name not in ("epochs", "threads") and stored != value:
                raise ConfigError(f"{result.folder / CONFIG}: {name} = {stored!r}, but this sweep has {value!r} there: "
                                  "give another --folder")
        if run.epochs[-1]["epoch"] < result.epochs and not run.summary["seconds"]["early"]:
            return None
        key, lower = run.summary["key"], run.summary["lower"]
        evaluated = [epoch for epoch in run.epochs if epoch["epoch"] <= result.epochs and "val_loss" in epoch]
        scored = [epoch for epoch in evaluated if epoch.get(f"val_{key}") is not None]
        if not scored:
            losses = [epoch["val_loss"] for epoch in evaluated if epoch["val_loss"] is not None]
            return result._replace(score=min(losses, default=None), metric="loss", lower=True)
        best = min(scored, key=lambda epoch: epoch[f"val_{key}"] * (1 if lower else -1))
        return result._replace(score=best[f"val_{key}"], metric=run.summary["metric"], lower=lower,
                               test=best.get(f"test_{key}"))


def sweep(search: Search, folder: Path, *, method: str, trials: int, jobs: int, seed: int) -> list[Result]:
    """Train the runs of a sweep, `jobs` at a time, and return their results, the best first.

    Method "halving" trains all runs for few epochs and the best third three times as long, until the best runs have
    had all epochs (successive halving; Jamieson and Talwalkar 2016).
    """
    runner, results = Runner(search, folder, max(len(os.sched_getaffinity(0)) // jobs, 1)), dict[int, Result]()
    epochs = int(search.run.get("epochs", OPTIONS["epochs"].default))
    rungs = [epochs]
    while method == "halving" and rungs[0] >= 6 and trials // 3 ** len(rungs) >= 1:
        rungs.insert(0, rungs[0] // 3)
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for wave, study in waves(search, method, trials, jobs, seed):
                each = pool.map(lambda trial: runner.run(trial.number, chosen(search, trial), rungs[0]), wave)
                for trial, result in zip(wave, each):
                    results[trial.number] = result
                    study.tell(trial, *((result.loss,) if math.isfinite(result.loss) else (None, _failed())))
                    _show(result)
            alive = list(results)
            for rung in rungs[1:]:
                alive = sorted(alive, key=lambda number: results[number].loss)[: max(len(alive) // 3, 1)]
                train_on = partial(_train_on, runner, results, rung)
                for number, result in zip(alive, pool.map(train_on, alive)):
                    results[number] = result
                    _show(result)
        except BaseException as error:
            runner.stop()
            if isinstance(error, KeyboardInterrupt):
                show("the running runs end after their epoch; the same command goes on", sys.stderr)
            raise
    return sorted(results.values(), key=lambda result: (-result.epochs, result.loss))


def _train_on(runner: Runner, results: Mapping[int, Result], epochs: int, number: int) -> Result:
    """Let a run go on up to `epochs` epochs; return a failed run as it is."""
    result = results[number]
    return result if result.error else runner.run(number, result.options, epochs)


def _failed() -> Any:
    return needs("optuna", "sarlite-sweep").trial.TrialState.FAIL


def _show(result: Result) -> None:
    """Print the result of a run that has ended."""
    options = ", ".join(f"{name} {value}" for name, value in result.options.items())
    outcome = result.error or f"{result.metric} {_number(result.score)} after at most {result.epochs} epochs"
    show(f"{result.folder.name}: {options}: {outcome}", sys.stderr)


def table(results: Sequence[Result]) -> str:
    """Return the ranking as text: a line for each run, the best first, with the options that were searched."""
    names = list(results[0].options)
    heads = ["run", *(name.replace("_", "-") for name in names), "epochs", results[0].metric or "score", "test"]
    lines = [[result.folder.name, *(str(result.options[name]) for name in names), str(result.epochs),
              "failed" if result.error else _number(result.score), _number(result.test)] for result in results]
    return aligned([heads, *lines])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


# ---- the command


@returns_status
def main(argv: Sequence[str] | None = None) -> int:
    """Run a sweep as the command line says; return the exit status."""
    return run_command(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    options = _parser().parse_args(argv)
    search = read_search(options.file)
    ranges = [name for name, value in search.values.items() if not isinstance(value, list)]
    method = options.method or ("random" if ranges else "grid")
    if method == "grid" and ranges:
        raise ConfigError(f"--method grid: {options.file}: [search] {ranges[0]} is a range: give a list of values")
    for name in ("trials", "jobs"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name} {getattr(options, name)} is less than 1")
    _check_first(search)
    folder = Path(options.folder or Path("sweeps") / Path(options.file).stem)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    results = sweep(search, folder, method=method, trials=options.trials, jobs=options.jobs, seed=options.seed)
    _write(folder, results)
    show(table(results))
    return 1 if all(result.error for result in results) else 0


def _parser() -> Parser:
    parser = Parser(prog="sarlite-sweep", description="Train with many values of some options and rank the runs. "
                    "The same command goes on with a sweep that was stopped.")
    parser.add_argument("file", metavar="FILE.toml", help="[search] has options with lists of values or ranges; [run] "
                        "has options that all runs share")
    parser.add_argument("--folder", metavar="DIR", help="folder of the runs; by default sweeps/ and the file's name")
    parser.add_argument("--method", choices=METHODS, help="grid: all combinations; random: values drawn at random; tpe: "
                        "Optuna's tree-structured Parzen estimator; halving: random, and only the best third trains "
                        "three times as long (grid if all values are lists, else random)")
    parser.add_argument("--trials", type=int, default=20, metavar="N", help="runs of all methods but grid (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs side by side (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn values (%(default)s)")
    return parser


def _check_first(search: Search) -> None:
    """Raise a ConfigError if the options of a first run contradict each other, before any run starts."""
    first = {name: value[0] if isinstance(value, list) else value["from"] for name, value in search.values.items()}
    resolve({"config": search.path}, {**search.run, **first})


def _write(folder: Path, results: Sequence[Result]) -> None:
    """Write the ranking as JSON, and the report of the runs that have one."""
    ranking = [{**result._asdict(), "folder": result.folder.name} for result in results]
    with writing(folder / RANKING):
        write_whole(folder / RANKING, json.dumps(ranking, indent=1).encode())
    runs = [report_command.read(str(result.folder)) for result in results if not result.error]
    if runs:
        with writing(folder / REPORT):
            write_whole(folder / REPORT, report_command.page(runs, None).encode(errors="surrogateescape"))


if __name__ == "__main__":
    sys.exit(main())

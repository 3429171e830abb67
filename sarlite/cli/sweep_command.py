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
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from sarlite.cli import report_command
from sarlite.cli.config import read_toml, resolve, to_toml
from sarlite.cli.folder import CHECKPOINT, CONFIG, SUMMARY
from sarlite.cli.options import OPTIONS
from sarlite.cli.training_process import start_training, wait_for_error
from sarlite.command import Parser, aligned, run_command, show, suggestion
from sarlite.errors import ConfigError, import_optional, writing
from sarlite.files import atomic_write

METHODS = ("grid", "random", "tpe", "halving")
RANKING, REPORT = "ranking.json", "report.html"
NOT_SEARCHED = ("run_dir", "resume", "config", "dry_run", "progress", "json", "trace", "stop_after")
"""Options that the sweep sets itself, or with which runs cannot be compared."""


OptionValue = bool | int | float | str | list[int] | list[str]
Range = dict[str, float]
"""Range of a searched number: {"from": low, "to": high}. With "log": true, the number's logarithm is drawn uniformly."""


class Search(NamedTuple):
    """Contents of a sweep's TOML file: the options that all runs share, and the values to try of each searched option.

    Attributes
    ----------
    path : str
        Path of the file.
    run : dict
        Options that all runs share.
    values : dict of str to list or Range
        For each searched option, its list of values or its range.
    """

    path: str
    run: dict[str, OptionValue]
    values: dict[str, list[OptionValue] | Range]


class OptunaTrial(Protocol):
    """Protocol of an Optuna trial, which is one drawn set of values: its number, and the value of each searched option."""

    number: int
    params: dict[str, Any]


class Study(Protocol):
    """Protocol of an Optuna study, which draws the values of trials: the methods that a sweep calls."""

    def tell(self, trial: OptunaTrial, values: float | None = None, state: object = None) -> object:
        """Record the result of `trial`: the number `values`, which the study minimises, or the `state` "failed" without a number."""



class Result(NamedTuple):
    """Outcome of one run of a sweep.

    Attributes
    ----------
    folder : Path
        Folder of the run.
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
    options: dict[str, OptionValue]
    epochs: int
    score: float | None = None
    metric: str = ""
    lower: bool = False
    test: float | None = None
    error: str = ""

    @property
    def loss(self) -> float:
        """The score, negated if a higher score is better, so that the least value is best; infinite for a run without a score."""
        return math.inf if self.score is None else self.score if self.lower else -self.score


# ---- the file


def read_search(path: str) -> Search:
    """Return the contents of `path`, a sweep's TOML file: the options of all runs in its table [run], and the values to try in its
    table [search].

    Parameters
    ----------
    path : str

    Raises
    ------
    ConfigError
        The file has another table, an unknown option, an invalid value of an option, or one option in both tables. The
        message names the file and the option.
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
        raise ConfigError(f"{path}: {both[0]} occurs in [run] and in [search]")
    for name, value in values.items():
        _check_values(f"{path}: [search] {name}", name, value)
    return Search(path, run, values)


def _check_values(where: str, name: str, value: object) -> None:
    """Raise a ConfigError unless `value` is a list of valid values of the option `name`, or a range such as {from = 1, to = 9}. The
    message begins with `where`.
    """
    option = OPTIONS[name]
    if isinstance(value, list) and value:
        for item in value:
            option.check(f"{where} = {item!r}", option.typed(item, f"{where}: "))
        return
    if not isinstance(value, dict) or not {"from", "to"} <= value.keys() <= {"from", "to", "log"}:
        raise ConfigError(f"{where} = {value!r}: expected a list of values, or a range such as "
                          "{ from = 1e-4, to = 1e-1, log = true }")
    if option.kind not in (int, float) or option.read:
        raise ConfigError(f"{where}: only numbers have a range, and {name} is not a number: give a list of values")
    low, high = (option.typed(value[end], f"{where}: {end}: ") for end in ("from", "to"))
    for end in (low, high):
        option.check(f"{where}: {end}", end)
    if not low < high or (value.get("log", False) and low <= 0):
        raise ConfigError(f"{where}: from {low} to {high} is not a range{' of a logarithm' if value.get('log') else ''}")
    if not isinstance(value.get("log", False), bool):
        raise ConfigError(f"{where}: log = {value['log']!r} is not true or false")


# ---- which runs


def waves(search: Search, method: str, trials: int, jobs: int, seed: int) -> Iterator[tuple[list[OptunaTrial], Study]]:
    """Draw values of the options in `search` for `trials` runs, with an Optuna sampler of the kind `method` and the seed `seed`. Yield
    (list of Optuna trials, study) for each wave (up to `jobs` runs that train at the same time); the `study` takes the results.

    The caller must tell the study the result of each trial before it takes the next wave.

    Parameters
    ----------
    search : Search
    method : str
        One of `METHODS`.
    trials : int
        Number of all trials; "grid" ignores it and takes every combination of values.
    jobs : int
        Largest number of trials in a wave.
    seed : int
        Seed of Optuna's sampler.

    Notes
    -----
    The values of a trial depend only on the seed, on `jobs` and on the earlier results. A sweep that is started again
    therefore draws the same values.
    """
    optuna = import_optional("optuna", "sarlite-sweep")
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


def _distribution(distributions: ModuleType, kind: object, value: list[OptionValue] | Range) -> object:
    if isinstance(value, list):  # as JSON, because Optuna's choices cannot be lists, and values of some options are lists
        return distributions.CategoricalDistribution([json.dumps(item) for item in value])
    ends = value["from"], value["to"]
    number, make = (int, distributions.IntDistribution) if kind is int else (float, distributions.FloatDistribution)
    return make(*map(number, ends), log=value.get("log", False))


def chosen(search: Search, trial: OptunaTrial) -> dict[str, OptionValue]:
    """Return {option: value} for the searched options in `search`, taken from `trial`, one drawn set of values."""
    return {name: json.loads(trial.params[name]) if isinstance(value, list) else trial.params[name]
            for name, value in search.values.items()}


# ---- runs


class Runner:
    """Trainer of a sweep's runs: starts the training command as a process for each run, and reads the run's result.

    A run that has completed as many epochs is not started again. A run that left a checkpoint is resumed.

    Parameters
    ----------
    search : Search
    folder : Path
        Folder of the sweep. Run 7 has the folder run-007 in it.
    threads : int
        Number of threads of each run, unless the sweep's file sets this option.
    """

    def __init__(self, search: Search, folder: Path, threads: int) -> None:
        self.search, self.folder, self.threads = search, folder, threads
        self._running: set[subprocess.Popen[str]] = set()
        self._lock, self._stopped = Lock(), False

    def run(self, number: int, options: Mapping[str, OptionValue], epochs: int) -> Result:
        """Train run `number` with the values `options` of the searched options up to and including epoch `epochs`, and return its
        result.
        """
        result = Result(self.folder / f"run-{number:03}", dict(options), epochs)
        earlier = self._read(result)
        if earlier is not None:
            return earlier
        try:
            config = self._write_config(number, {"threads": self.threads, **self.search.run, **options, "epochs": epochs})
        except ConfigError as error:
            return result._replace(error=str(error))
        flags = ["--run-dir", str(result.folder), "--config", str(config)]
        if (result.folder / CHECKPOINT).exists():
            flags += ["--resume", str(result.folder / CHECKPOINT)]
        with self._lock:
            if self._stopped:
                return result._replace(error="stopped before it began")
            process = start_training(flags)
            self._running.add(process)
        failure = wait_for_error(process)
        with self._lock:
            self._running.discard(process)
        if failure:
            return result._replace(error=failure)
        return self._read(result) or result._replace(error=f"{result.folder}: the run left no {SUMMARY}")

    def stop(self) -> None:
        """Send SIGTERM to every running process, which then writes a checkpoint and ends; start no more runs."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.send_signal(signal.SIGTERM)

    def _write_config(self, number: int, options: Mapping[str, OptionValue]) -> Path:
        path = self.folder / f"run-{number:03}.toml"
        with writing(path):
            atomic_write(path, to_toml(resolve({}, options)).encode(errors="surrogateescape"))
        return path

    def _read(self, result: Result) -> Result | None:
        """Return `result`, the outcome of a run, with the best scores in the first `result.epochs` epochs of the run, read from the run's
        folder; None if the run has completed fewer. Later epochs do not count, so that a sweep started again selects the same runs.
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
    """Train `trials` runs with values of the options in `search` that `method` draws with the seed `seed`, `jobs` runs at a time, in
    subfolders of `folder`. Return the results, the best first.

    Parameters
    ----------
    search : Search
    folder : Path
        Folder of the sweep.
    method : str
        One of `METHODS`. "halving" trains all runs for few epochs, then the best third of the runs for three times as
        many epochs, and so on up to the full number of epochs.
    trials : int
        Number of runs; "grid" ignores it.
    jobs : int
        Number of runs that train at the same time.
    seed : int
        Seed of the drawn values.

    References
    ----------
    K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", 2016
    (successive halving).
    """
    runner, results = Runner(search, folder, max(len(os.sched_getaffinity(0)) // jobs, 1)), dict[int, Result]()
    epochs = OPTIONS["epochs"].default if "epochs" not in search.run else int(str(search.run["epochs"]))
    rungs = [epochs]
    while method == "halving" and rungs[0] >= 6 and trials // 3 ** len(rungs) >= 1:
        rungs.insert(0, rungs[0] // 3)
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for wave, study in waves(search, method, trials, jobs, seed):
                outcomes = pool.map(lambda trial: runner.run(trial.number, chosen(search, trial), rungs[0]), wave)
                for trial, result in zip(wave, outcomes):
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
                show("the running runs end after their epoch; the same command continues the sweep", sys.stderr)
            raise
    return sorted(results.values(), key=lambda result: (-result.epochs, result.loss))


def _train_on(runner: Runner, results: Mapping[int, Result], epochs: int, number: int) -> Result:
    """Continue run `number` up to epoch `epochs` with `runner`, and return its new result. A run that has failed, by its earlier result
    results[number], is not continued; that result is returned.
    """
    result = results[number]
    return result if result.error else runner.run(number, result.options, epochs)


def _failed() -> object:
    return import_optional("optuna", "sarlite-sweep").trial.TrialState.FAIL


def _show(result: Result) -> None:
    """Print `result`, the outcome of a run that has ended, as a line."""
    options = ", ".join(f"{name} {value}" for name, value in result.options.items())
    outcome = result.error or f"{result.metric} {_number(result.score)} after at most {result.epochs} epochs"
    show(f"{result.folder.name}: {options}: {outcome}", sys.stderr)


def table(results: Sequence[Result]) -> str:
    """Return `results` as a text table, with a line for each run, in the same order, and a column for each searched option."""
    names = list(results[0].options)
    heads = ["run", *(name.replace("_", "-") for name in names), "epochs", results[0].metric or "score", "test"]
    lines = [[result.folder.name, *(str(result.options[name]) for name in names), str(result.epochs),
              "failed" if result.error else _number(result.score), _number(result.test)] for result in results]
    return aligned([heads, *lines])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


# ---- the command


def main(argv: Sequence[str] | None = None) -> int:
    """Run `sarlite-sweep` and return its exit status: 1 if every run failed, 2 after an error, else 0.

    Parameters
    ----------
    argv : sequence of str, optional
        Command line arguments; by default the arguments of the process.
    """
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
                    "The same command continues a sweep that was stopped.")
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
    """Raise a ConfigError if the first values of the searched options do not go together with the options that all runs share."""
    first = {name: value[0] if isinstance(value, list) else value["from"] for name, value in search.values.items()}
    resolve({"config": search.path}, {**search.run, **first})


def _write(folder: Path, results: Sequence[Result]) -> None:
    """Write `results`, the best first, as JSON into `folder`, and an HTML report of the runs that did not fail."""
    ranking = [{**result._asdict(), "folder": result.folder.name} for result in results]
    with writing(folder / RANKING):
        atomic_write(folder / RANKING, json.dumps(ranking, indent=1).encode())
    runs = [report_command.read(str(result.folder)) for result in results if not result.error]
    if runs:
        with writing(folder / REPORT):
            atomic_write(folder / REPORT, report_command.page(runs, None).encode(errors="surrogateescape"))


if __name__ == "__main__":
    sys.exit(main())

"""Shared parts of the benchmarks: options, timing, tables, JSON, commands under mpiexec, and data directories."""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from sarlite.data import Dataset, format
from sarlite.errors import install

BUILD = Path(__file__).parents[1] / "build"
GRAPHS = BUILD / "graphs"


def parser(description):
    """Return an argument parser with the option `--json FILE`, for a benchmark with this description."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--json", type=Path, metavar="FILE", help="write the rows of the table as a JSON list")
    return result


def suite_parser(description):
    """Return a parser with this description and the options of benchmarks that compare sarlite with other libraries."""
    result = parser(description)
    graphs_option(result)
    result.add_argument("--threads", type=int, default=2)
    result.add_argument("--repeats", type=int, default=5, help="measured runs of a process, after one that warms up")
    result.add_argument("--rounds", type=int, default=3, help="processes of each library, in alternation")
    result.add_argument("--peers", type=words, metavar="LIST",
                        help="of dgl, pyg, pyg-compiled, torch, scipy, mkl, or none (default: those in SARLITE_PEERS)")
    result.add_argument("--gib", type=float, default=1.0, help="memory that the machine's limits are measured on")
    result.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return result


def graphs_option(parser):
    """Add the option `--graphs`, the folder of stored graphs, to a parser."""
    parser.add_argument("--graphs", type=Path, default=GRAPHS, metavar="DIR",
                        help="where graphs are kept once drawn (default: build/graphs)")


def timed(function, repeats):
    """Call `function` once to warm up, then `repeats` times; return the milliseconds of each of these calls."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        function()
        times.append(1e3 * (time.perf_counter() - begin))
    return times[1:]


def summary(times):
    """Return {"ms": median, "ms_min": minimum, "ms_max": maximum} of times in milliseconds."""
    return {"ms": statistics.median(times), "ms_min": min(times), "ms_max": max(times)}


def print_measurement(times, memory, **more):
    """Print `times` in ms, the peak MiB of a profile.Memory `memory`, and the values `more` as one line of JSON, as peer.py does."""
    print(json.dumps({**summary(times), "peak_mib": memory.peak() / 2**20, **more}))


def numbers(text):
    """Return a list of int from a text such as "1,2,3"."""
    return [int(item) for item in text.split(",")]


def words(text):
    """Return a list of str from a text such as "sar,sa"."""
    return text.split(",")


def report(title, rows, columns, path=None):
    """Print rows as a table under `title`, with `columns` as {heading: function of a row}, and write the rows as JSON to `path`.

    Parameters
    ----------
    rows : list of dict
    columns : dict of heading to function of a row
        The function returns the value of a cell; a float is shown in four digits.
    path : path, optional
    """
    lines = cells(rows, columns)
    widths = [max(map(len, column)) for column in zip(*lines)]
    print(f"\n{title}\n")
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)).rstrip())
    if path is not None:
        write_rows(path, rows)
    sys.stdout.flush()


def cells(rows, columns):
    """Return the lines of a table, headings first, as lists of str; `columns` is {heading: function of a row}."""
    return [list(columns), *([_text(show(row)) for show in columns.values()] for row in rows)]


def write_rows(path, rows):
    """Write rows, a list of dicts, as JSON to `path`."""
    Path(path).write_text(json.dumps(rows, indent=1) + "\n")


def _text(value):
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def mib(n_bytes):
    """Return a number of bytes as text in MiB with one decimal."""
    return f"{n_bytes / 2**20:,.1f}"


def spread(values, scale=1.0, digits=2):
    """Return "median (min..max)" of the numbers `values`, each multiplied by `scale`, with `digits` decimals."""
    middle, low, high = (scale * f(values) for f in (statistics.median, min, max))
    return f"{middle:.{digits}f} ({low:.{digits}f}..{high:.{digits}f})"


def suite_columns(*names):
    """Return the columns, {heading: function of a row}, of a table that compares sarlite with peers; `names` are further keys to show."""
    return {
        **named("case", "graph", *names),
        "ms": times(digits=1),
        "peak MiB": lambda r: mib(2**20 * r["peak_mib"]),
        "of the limit": lambda r: f"{r['limit_fraction']:.2f}",
        "of random rows": lambda r: f"{r['gather_fraction']:.2f}",
        "peer": lambda r: r["peer"],
        "its ms": lambda r: times("peer_", 1)(r) or ("failed" if r["peer"] else None),
        "its MiB": lambda r: mib(2**20 * r["peer_peak_mib"]) if r["peer_ms"] else None,
        "ratio": lambda r: f"{r['ratio']:.2f}" if r["ratio"] else None,
    }


def named(*names):
    """Return columns of a table, {key: function of a row}, that show a row's values of the keys `names`; None if a value is missing."""
    return {name: (lambda row, name=name: row.get(name)) for name in names}


def times(key_prefix="", digits=0):
    """Return a function that shows a row's keys "ms", "ms_min", "ms_max", after `key_prefix`, as "median (min..max)"."""
    def show(row):
        middle, low, high = (row.get(key_prefix + key) for key in ("ms", "ms_min", "ms_max"))
        return None if middle is None else f"{middle:,.{digits}f} ({low:,.{digits}f}..{high:,.{digits}f})"

    return show


def note(text):
    """Print `text`, a line of progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def find_mpiexec():
    """Return the path of mpiexec: the one beside this Python, or else the one on PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    path = str(beside) if beside.exists() else shutil.which("mpiexec")
    if path is None:
        raise SystemExit(f"no mpiexec: {install('mpich')} brings one")
    return path


def mpiexec(n_ranks, *arguments, timeout=1800, **python_options):
    """Run `mpiexec -n N python ARGUMENTS` and return its standard output; `python_options` go to the function `python`.

    Raises
    ------
    SystemExit
        With the command's last lines, if the command fails.
    """
    return python(*arguments, launcher=(find_mpiexec(), "-n", str(n_ranks)), timeout=timeout, **python_options)


def python(*arguments, launcher=(), interpreter=sys.executable, timeout=1800, **run_options):
    """Run LAUNCHER INTERPRETER ARGUMENTS in a process of its own and return its output; `run_options` go to `subprocess.run`.

    Parameters
    ----------
    *arguments
        Words of the command after `interpreter`; `launcher` are words before it.
    timeout : float
        Seconds.
    **more
        Options of `subprocess.run`: `env`, `cwd`.

    Raises
    ------
    SystemExit
        With the command's last lines, if the command fails.
    """
    command = [*launcher, str(interpreter), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **run_options)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def as_rank(work, args, threads=1):
    """Run `work(comm, args)` on `threads` threads as one rank of mpiexec; rank 0 prints the result as a line of JSON."""
    from sarlite.comm.launch import connect
    from sarlite.train.loop import set_threads

    set_threads(threads)
    comm = connect()
    result = work(comm, args)
    if comm.rank == 0:
        print(json.dumps(result))


def flags(options):
    """Return command line flags: {"hidden": 64, "json": True} gives ["--hidden", 64, "--json"]."""
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        words += [flag] if value is True else ["--no-" + flag[2:]] if value is False else [flag, value]
    return words


def last_json(text):
    """Return the value of the last line of `text`, which is JSON."""
    return json.loads(text.strip().splitlines()[-1])


def train(n_ranks, launcher=None, env=None, **options):
    """Run `python -m sarlite.train` with `options` as flags, on N ranks or by `launcher`; return its JSON line and epochs' metrics.

    Parameters
    ----------
    launcher : sequence of str, optional
        Words in place of `mpiexec -n N`; without a word `options` must hold the ranks, as threads of one process.
    env : dict, optional
        Environment variables.

    Returns
    -------
    dict
        The command's JSON line, with "epochs", the lines of metrics.jsonl, and "seconds" of each epoch.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        words = ("-m", "sarlite.train", *flags(options), "--run-dir", run, "--json")
        line = last_json(python(*words, launcher=launcher, env=env) if launcher is not None else mpiexec(n_ranks, *words, env=env))
        epochs = [json.loads(epoch) for epoch in (run / "metrics.jsonl").read_text().splitlines()]
    return {**line, "epochs": epochs, "seconds": [epoch["seconds"] for epoch in epochs]}


class Scratch:
    """Context manager of a folder of data sets, each of which is converted once.

    Parameters
    ----------
    kept : path, optional
        Folder that outlives the benchmark. By default the folder is temporary.
    """

    def __init__(self, kept=None):
        self._kept = kept

    def __enter__(self):
        self._temporary = tempfile.TemporaryDirectory(prefix="sarlite-benchmark-")
        self.path = Path(self._kept or self._temporary.name)
        self.path.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *error):
        self._temporary.cleanup()

    def convert(self, spec, name, *flags):
        """Run `sarlite.data convert SPEC FLAGS` into the folder `name` unless the folder exists; return the data set's directory."""
        if not (self.path / name).exists():
            python("-m", "sarlite.data", "convert", spec, self.path / name, *flags)
        return self.path / name

    def write(self, name, indptr, indices, features, labels, n_classes, masks=None):
        """Write the arrays of a graph as a data set `name`; return its directory. `masks`: training, validation and test nodes.

        By default a tenth of the nodes is for training, a tenth for validation, and the others for testing.

        `masks` are the training, validation and test nodes; by default a tenth, a tenth and the others.
        """
        place = np.arange(len(labels)) % 10
        dataset = Dataset(indptr, indices, features, labels, *(masks or (place == 0, place == 1, place > 1)),
                          n_classes, name=name)
        format.write(self.path / name, dataset)
        return self.path / name

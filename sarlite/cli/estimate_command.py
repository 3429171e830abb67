"""`python -m sarlite.estimate`: memory, bytes and seconds of full-batch training, from a formula (docs/cost.md)."""

import argparse
import json
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from sarlite.cli import config
from sarlite.cli.combinations import Run, refuse
from sarlite.cli.option import option, options_of
from sarlite.cli.options import ModelOptions, RunOptions
from sarlite.cli.run_report import duration
from sarlite.cli.settings import settings
from sarlite.comm import Solo
from sarlite.comm.launch import default_threads, openmp_threads
from sarlite.command import aligned, byte_size, count, readable, returns_status, run_command, show
from sarlite.data import load
from sarlite.errors import ConfigError, needs
from sarlite.graph.graph import Graph
from sarlite.kernels import most_threads
from sarlite.operators import fn
from sarlite.schedule.modes import MODES
from sarlite.tape import Tensor
from sarlite.train.cost import ARRAYS, Shape, evaluation_bytes, peak_bytes, step_bytes, step_work
from sarlite.train.load import kind
from sarlite.train.loop import set_threads

_RANKS = [16, 64, 256, 1024]
_MOST_RANKS = 4096  # that are tried for --memory


def _numbers(text):
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers of ranks, such as 16,64,1024")
    return found


def _rate(text):
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


@dataclass(frozen=True)
class EstimateOptions:
    """The sizes that an estimate is for, and the speeds of a machine."""

    ranks: list[int] | None = option(None, "numbers of ranks, such as 16,64,1024", metavar="N,N,..", read=_numbers,
                                     otherwise="16,64,256,1024, as far as there are nodes")
    nodes: int | None = option(None, "number of nodes, for a graph given by numbers in place of --data", metavar="N",
                               read=count)
    edges: int | None = option(
        None, "number of edges, without added self loops; an undirected edge counts twice", metavar="N", read=count)
    features: int | None = option(None, "number of features", metavar="N", read=count)
    classes: int | None = option(None, "number of classes", metavar="N", read=count)
    halo: float | None = option(None, "share of the other parts' nodes that a part needs", metavar="SHARE",
                                otherwise="random parts: 1 - (1 - 1/ranks)^degree")
    memory: int | None = option(
        None, "memory of each rank, such as 64GB: say which modes fit, and on how few ranks one does", metavar="SIZE",
        read=byte_size)
    gflops: float | None = option(None, "speed of a rank's products, 10^9 operations a second", metavar="X",
                                  read=_rate, otherwise="measured here")
    gb_per_s: float | None = option(None, "speed at which a rank reads edges' rows, 10^9 bytes a second", metavar="X",
                                    read=_rate, otherwise="measured here")
    network_gbit: float | None = option(None, "speed of the network to a rank, 10^9 bits a second", metavar="X",
                                        read=_rate, otherwise="a copy in memory, here")
    plot: str | None = option(None, "write the table as a picture", metavar="FILE")


TAKEN = ("data", "self_loops", *options_of(ModelOptions), "task", "label_inputs", "prefetch", "threads", "json")
"""Options of `sarlite.train` that this command has too."""


def parse(argv: Sequence[str] | None) -> tuple[EstimateOptions, RunOptions]:
    """Return the options of this command, and the options of the run that it estimates."""
    own, given = config.parse_further(
        argv, EstimateOptions, (), TAKEN, prog="python -m sarlite.estimate", usage="%(prog)s [options]",
        description="Memory of a rank, bytes and seconds by mode, on any number of ranks, from a formula; nothing is "
                    "loaded but the sizes of the data.")
    if own.nodes is not None and "data" in given:
        raise ConfigError("--nodes and --data: give one of the two")
    if own.halo is not None and not 0 <= own.halo <= 1:
        raise ConfigError(f"--halo {own.halo} is not in [0, 1]")
    if own.plot:
        needs("matplotlib", "--plot")
    return own, config.resolve({"prefetch": 1, **given})


def estimate(own: EstimateOptions, options: RunOptions) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row of `COLUMNS` for each number of ranks and mode, and lines that say what fits in --memory.

    Parameters
    ----------
    own : EstimateOptions
    options : RunOptions

    Raises
    ------
    ConfigError
        The model has no formula, a size is missing, or an option is refused as in training.
    DataError
        The data set cannot be read.
    """
    run = settings(options)
    model, data_kind = run.model.spec, "plain" if own.nodes is not None else kind(Solo(), run.source.spec)
    refuse(Run.of(options.values, run.model.cls, data_kind))
    if model not in ARRAYS or data_kind != "plain":
        raise ConfigError(f"--model {model} on {data_kind} data has no formula, which {', '.join(ARRAYS)} have "
                          "on a graph of one relation: python -m sarlite.train --dry-run measures any run")
    n_nodes, n_edges, n_in, n_out = _sizes(own, run)
    degree, n_edges = n_edges / n_nodes, n_edges + (n_nodes if run.source.self_loops else 0)
    n_in += n_out if run.training.label_inputs else 0
    sizes = own.ranks or [size for size in _RANKS if size <= n_nodes] or [n_nodes]
    for size in sizes:
        if size > n_nodes:
            raise ConfigError(f"--ranks {size}: more than the {n_nodes} nodes")
    measured = cache(_rates)

    @cache
    def rows_on(size):
        n_rows, rates = -(-n_nodes // size), measured(options.machine.threads or openmp_threads() or _threads(size))
        share = own.halo if own.halo is not None or size == 1 else -np.expm1(degree * np.log1p(-1 / size))
        rows = []
        for mode in MODES if size > 1 else [next(iter(MODES))]:
            needed = 0 if size == 1 else 1 if mode == "broadcast" else share
            shape = Shape.of_model(run.model, n_in, n_out, n_rows=n_rows, n_edges=-(-n_edges // size),
                                   n_halo=round(needed * (n_nodes - n_rows)), size=size, mode=mode,
                                   prefetch=run.graph.prefetch, itemsize=8 if run.model.dtype == "float64" else 4)
            rows.append(_row(shape, rates, own))
        return rows

    rows = [row for size in sizes for row in rows_on(size)]
    return rows, _fits(rows, own.memory, min(n_nodes, _MOST_RANKS), rows_on) if own.memory else []


def _sizes(own, run):
    """Return the numbers of nodes, edges, features and classes."""
    if own.nodes is None:
        dataset = load(run.source.spec, task=run.source.task)
        return dataset.n_nodes, dataset.n_edges, dataset.n_features, dataset.n_classes
    for name in ("nodes", "edges", "features", "classes"):
        value = getattr(own, name)
        if value is None or value < 1:
            raise ConfigError(f"--{name}: a graph given by numbers needs --nodes, --edges, --features and --classes, "
                              "each 1 or more")
    return own.nodes, own.edges, own.features, own.classes


def _row(shape, rates, own):
    phases, work = step_bytes(shape), step_work(shape)
    given = {"flops": own.gflops, "edge_bytes": own.gb_per_s, "received": own.network_gbit and own.network_gbit / 8}
    rates = rates | {name: 1e9 * value for name, value in given.items() if value}
    received = sum(phases.values())
    seconds = sum(work[name] / rates[name] for name in work) + received / rates["received"]
    evaluation = evaluation_bytes(shape)
    return {"ranks": shape.size, "mode": shape.mode, "peak_bytes": peak_bytes(shape), "step_received_bytes": received,
            "received_bytes": phases, "evaluation_received_bytes": evaluation, "flops": work["flops"],
            "step_seconds": seconds, "evaluation_seconds": sum(work[name] / rates[name] for name in work) / 3
                                                           + evaluation / rates["received"]}


def _threads(size):
    """Return how many threads each of `size` ranks on this machine would use."""
    return min(max(1, default_threads(Solo()) // size), most_threads())


def _rates(n_threads):
    """Return this machine's products, sums over edges and copies with `n_threads` threads, each a second."""
    set_threads(n_threads)
    draw = np.random.default_rng(0)
    n_rows, width = 20_000, 128
    graph = Graph.from_edges(*draw.integers(0, n_rows, (2, 10 * n_rows)), n_rows)
    x, weight = (Tensor(draw.random(shape, np.float32)) for shape in ((n_rows, width), (width, width)))
    work = {"flops": (2 * n_rows * width * width, lambda: x @ weight),
            "edge_bytes": (4 * width * graph.n_edges, lambda: graph.aggregate(fn.copy_src(x), "sum")),
            "received": (x.data.nbytes, x.data.copy)}
    found = {name: n / min(_seconds(function) for _ in range(5)) for name, (n, function) in work.items()}
    set_threads(1)
    return found


def _seconds(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def _fits(rows, memory, most, rows_on):
    """Return lines that say which rows fit the memory, and the fewest ranks on which a mode does."""
    lines = []
    for row in rows:
        spare = memory - row["peak_bytes"]
        words = f"fits {_bytes(memory)}, {_bytes(spare)} to spare"
        words = words if spare >= 0 else f"does not fit {_bytes(memory)}, {_bytes(-spare)} too much"
        lines.append(f"{row['ranks']:,} ranks, {row['mode']}: {words}")

    def fitting(size):
        return [row for row in rows_on(size) if row["peak_bytes"] <= memory]

    few, many = 0, 1  # on the first none fits, on the second one may
    while not fitting(many) and many < most:
        few, many = many, min(2 * many, most)
    if not fitting(many):
        return [*lines, f"no mode fits {_bytes(memory)} on up to {most:,} ranks"]
    many = few + 1 + bisect_left(range(few + 1, many), True, key=lambda size: bool(fitting(size)))
    row = min(fitting(many), key=lambda row: (row["step_received_bytes"], row["peak_bytes"]))
    return [*lines, f"fewest ranks: {many:,}, {row['mode']}, {_bytes(row['peak_bytes'])} a rank"]


_bytes = partial(readable, base=1000)
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    # by heading, a row's key and how the value is shown
    "ranks": ("ranks", "{:,}".format),
    "mode": ("mode", str),
    "memory a rank": ("peak_bytes", _bytes),
    "received a step": ("step_received_bytes", _bytes),
    "received an evaluation": ("evaluation_received_bytes", _bytes),
    "Gflop": ("flops", lambda n: f"{n / 1e9:,.4g}"),
    "an epoch": ("step_seconds", duration),
    "an evaluation": ("evaluation_seconds", duration),
    "by phase": ("received_bytes", lambda phases: ", ".join(f"{name} {_bytes(n)}" for name, n in phases.items())),
}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as text; bytes in powers of 1000."""
    return aligned([list(COLUMNS), *([show(row[key]) for key, show in COLUMNS.values()] for row in rows)], ">")


def plot(rows: Sequence[dict[str, Any]], path: str) -> None:
    """Draw bytes received and memory by number of ranks, a line a mode."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    shown = {"step_received_bytes": "GB received a rank and step", "peak_bytes": "GB of memory a rank"}
    for axis, (name, title) in zip(axes, shown.items()):
        for mode in dict.fromkeys(row["mode"] for row in rows):
            own = [row for row in rows if row["mode"] == mode]
            axis.plot([row["ranks"] for row in own], [row[name] / 1e9 for row in own], marker="o", label=mode)
        axis.set(xscale="log", yscale="log", xlabel="ranks", title=title)
        axis.legend()
    figure.savefig(path)
    pyplot.close(figure)


@returns_status
def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, as the command line says; return the exit status."""
    return run_command(lambda: _main(argv))


def _main(argv):
    own, options = parse(argv)
    rows, lines = estimate(own, options)
    show("\n".join([table(rows), *lines]))
    if own.plot:
        plot(rows, own.plot)
    if options.output.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    sys.exit(main())

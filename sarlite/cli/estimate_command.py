"""`python -m sarlite.estimate`: estimate memory, sent bytes and time of full-batch training from formulas (docs/cost.md)."""

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
from sarlite.command import aligned, byte_size, count, readable, run_command, show
from sarlite.data import load
from sarlite.errors import ConfigError, import_optional
from sarlite.graph.graph import Graph
from sarlite.kernels import most_threads
from sarlite.operators import fn
from sarlite.schedule.modes import MODES
from sarlite.tape import Tensor
from sarlite.train.cost import ARRAYS, Shape, evaluation_bytes, peak_bytes, step_bytes, step_work
from sarlite.train.load import kind
from sarlite.train.loop import set_threads
from sarlite.types import JsonDict

Row = JsonDict
"""Estimate for one number of ranks and one mode, by the keys in `COLUMNS`."""
_RANKS = [16, 64, 256, 1024]
_MOST_RANKS = 4096
"""Largest number of ranks that is tried for --memory."""


def _rank_counts(text):
    try:
        counts = [int(word) for word in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers of ranks, such as 16,64,1024")
    return counts


def _rate(text):
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


@dataclass(frozen=True)
class EstimateOptions:
    """Options of the estimating command: sizes of the graph, numbers of ranks, and speeds of the machine."""

    ranks: list[int] | None = option(None, "numbers of ranks, such as 16,64,1024", metavar="N,N,..", read=_rank_counts,
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
    """Return (options of the estimating command, options of the estimated run) from the command line.

    Raises
    ------
    ConfigError
        A flag is unknown, a value is invalid, or two flags do not go together.
    """
    sizes, values = config.parse_further(
        argv, EstimateOptions, (), TAKEN, prog="python -m sarlite.estimate", usage="%(prog)s [options]",
        description="Memory of a rank, bytes and seconds by mode, on any number of ranks, from a formula; nothing is "
                    "loaded but the sizes of the data.")
    if sizes.nodes is not None and "data" in values:
        raise ConfigError("--nodes and --data: give one of the two")
    if sizes.halo is not None and not 0 <= sizes.halo <= 1:
        raise ConfigError(f"--halo {sizes.halo} is not in [0, 1]")
    if sizes.plot:
        import_optional("matplotlib", "--plot")
    return sizes, config.resolve({"prefetch": 1, **values})


def estimate(sizes: EstimateOptions, options: RunOptions) -> tuple[list[Row], list[str]]:
    """Return (estimates, lines): first the memory, received bytes and seconds for each number of ranks and mode; then lines of text that
    compare the estimates with --memory. `sizes` has the command's own options, and `options` has the options of the estimated run.

    Parameters
    ----------
    sizes : EstimateOptions
        Options of the command.
    options : RunOptions
        Options of the estimated run.

    Returns
    -------
    rows : list of dict
        Estimates; `COLUMNS` names the entries. Bytes and seconds are those of one rank.
    lines : list of str
        Lines that compare the estimates with --memory; [] without --memory.

    Raises
    ------
    ConfigError
        The model has no formula, a size is missing, or the training command would refuse the options.
    DataError
        The data set cannot be read.
    """
    run = settings(options)
    model, data_kind = run.model.spec, "plain" if sizes.nodes is not None else kind(Solo(), run.source.spec)
    refuse(Run.of(options.values, run.model.cls, data_kind))
    if model not in ARRAYS or data_kind != "plain":
        raise ConfigError(f"--model {model} on {data_kind} data has no formula; {', '.join(ARRAYS)} have one "
                          "on a graph with one relation: python -m sarlite.train --dry-run measures any run")
    n_nodes, n_edges, n_in, n_out = _sizes(sizes, run)
    degree, n_edges = n_edges / n_nodes, n_edges + (n_nodes if run.source.self_loops else 0)
    n_in += n_out if run.training.label_inputs else 0
    rank_counts = sizes.ranks or [size for size in _RANKS if size <= n_nodes] or [n_nodes]
    for size in rank_counts:
        if size > n_nodes:
            raise ConfigError(f"--ranks {size}: more than the {n_nodes} nodes")
    measured = cache(_rates)

    @cache
    def rows_on(size):
        n_rows, rates = -(-n_nodes // size), measured(options.machine.threads or openmp_threads() or _threads(size))
        share = sizes.halo if sizes.halo is not None or size == 1 else -np.expm1(degree * np.log1p(-1 / size))
        rows = []
        for mode in MODES if size > 1 else [next(iter(MODES))]:
            needed = 0 if size == 1 else 1 if mode == "broadcast" else share
            shape = Shape.of_model(run.model, n_in, n_out, n_rows=n_rows, n_edges=-(-n_edges // size),
                                   n_halo=round(needed * (n_nodes - n_rows)), size=size, mode=mode,
                                   prefetch=run.graph.prefetch, itemsize=8 if run.model.dtype == "float64" else 4)
            rows.append(_row(shape, rates, sizes))
        return rows

    rows = [row for size in rank_counts for row in rows_on(size)]
    return rows, _fits(rows, sizes.memory, min(n_nodes, _MOST_RANKS), rows_on) if sizes.memory else []


def _sizes(sizes, run):
    """Return (number of nodes, of edges, of features, of classes) of the graph: from the flags in `sizes` or, without --nodes, from
    the data set of `run`.
    """
    if sizes.nodes is None:
        dataset = load(run.source.spec, task=run.source.task)
        return dataset.n_nodes, dataset.n_edges, dataset.n_features, dataset.n_classes
    for name in ("nodes", "edges", "features", "classes"):
        value = getattr(sizes, name)
        if value is None or value < 1:
            raise ConfigError(f"--{name}: a graph given by numbers needs --nodes, --edges, --features and --classes, "
                              "each 1 or more")
    return sizes.nodes, sizes.edges, sizes.features, sizes.classes


def _row(shape: Shape, rates: dict[str, float], sizes: EstimateOptions) -> Row:
    """Return the estimated memory, received bytes and seconds of a run with the sizes `shape` (rows, edges, widths, ranks). `rates` are
    measured speeds of this machine by name; flags in `sizes` replace them.
    """
    phases, work = step_bytes(shape), step_work(shape)
    speeds = {"flops": sizes.gflops, "edge_bytes": sizes.gb_per_s, "received": sizes.network_gbit and sizes.network_gbit / 8}
    rates = rates | {name: 1e9 * value for name, value in speeds.items() if value}
    received = sum(phases.values())
    seconds = sum(work[name] / rates[name] for name in work) + received / rates["received"]
    evaluation = evaluation_bytes(shape)
    return {"ranks": shape.size, "mode": shape.mode, "peak_bytes": peak_bytes(shape), "step_received_bytes": received,
            "received_bytes": phases, "evaluation_received_bytes": evaluation, "flops": work["flops"],
            "step_seconds": seconds, "evaluation_seconds": sum(work[name] / rates[name] for name in work) / 3
                                                           + evaluation / rates["received"]}


def _threads(size: int) -> int:
    """Return the number of threads of each rank if `size` ranks share this machine."""
    return min(max(1, default_threads(Solo()) // size), most_threads())


def _rates(n_threads):
    """Return speeds of this machine, measured with `n_threads` threads: operations of matrix products, bytes of aggregated rows and
    bytes copied in memory, each per second.

    Returns
    -------
    dict
        "flops": operations of matrix products; "edge_bytes": bytes of rows that sums over edges read; "received": bytes
        of a copy in memory.
    """
    set_threads(n_threads)
    draw = np.random.default_rng(0)
    n_rows, width = 20_000, 128
    graph = Graph.from_edges(*draw.integers(0, n_rows, (2, 10 * n_rows)), n_rows)
    x, weight = (Tensor(draw.random(shape, np.float32)) for shape in ((n_rows, width), (width, width)))
    work = {"flops": (2 * n_rows * width * width, lambda: x @ weight),
            "edge_bytes": (4 * width * graph.n_edges, lambda: graph.aggregate(fn.copy_src(x), "sum")),
            "received": (x.data.nbytes, x.data.copy)}
    rates = {name: n / min(_seconds(function) for _ in range(5)) for name, (n, function) in work.items()}
    set_threads(1)
    return rates


def _seconds(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def _fits(rows: Sequence[Row], memory: int, most_ranks: int, rows_on: Callable[[int], list[Row]]) -> list[str]:
    """Return lines of text that say for each estimate in `rows` if it fits into `memory` bytes, and a line with the fewest ranks that fit,
    at most `most_ranks`. `rows_on(n_ranks)` computes the estimates for a number of ranks.

    Parameters
    ----------
    rows : list of Row
    memory : int
        Memory of a rank in bytes.
    most_ranks : int
        Largest number of ranks to try.
    rows_on : callable
        rows_on(n_ranks) -> rows for each mode.
    """
    lines = []
    for row in rows:
        spare = memory - row["peak_bytes"]
        words = f"fits {_bytes(memory)}, {_bytes(spare)} to spare"
        words = words if spare >= 0 else f"does not fit {_bytes(memory)}, {_bytes(-spare)} too much"
        lines.append(f"{row['ranks']:,} ranks, {row['mode']}: {words}")

    def fitting(size):
        return [row for row in rows_on(size) if row["peak_bytes"] <= memory]

    few, many = 0, 1  # no mode fits on `few` ranks; one may fit on `many` ranks
    while not fitting(many) and many < most_ranks:
        few, many = many, min(2 * many, most_ranks)
    if not fitting(many):
        return [*lines, f"no mode fits {_bytes(memory)} on up to {most_ranks:,} ranks"]
    many = few + 1 + bisect_left(range(few + 1, many), True, key=lambda size: bool(fitting(size)))
    row = min(fitting(many), key=lambda row: (row["step_received_bytes"], row["peak_bytes"]))
    return [*lines, f"fewest ranks: {many:,}, {row['mode']}, {_bytes(row['peak_bytes'])} a rank"]


_bytes = partial(readable, base=1000)
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    # heading: (key of a `Row`, function that formats the value)
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


def table(rows: Sequence[Row]) -> str:
    """Return `rows`, estimates for each number of ranks and mode, as a text table with bytes in kB, MB or GB."""
    return aligned([list(COLUMNS), *([show(row[key]) for key, show in COLUMNS.values()] for row in rows)], ">")


def plot(rows: Sequence[Row], path: str) -> None:
    """Draw the estimates `rows` into the image file `path`: received bytes and memory by number of ranks, with a line for each mode."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    shown = {"step_received_bytes": "GB received a rank and step", "peak_bytes": "GB of memory a rank"}
    for axis, (name, title) in zip(axes, shown.items()):
        for mode in dict.fromkeys(row["mode"] for row in rows):
            of_mode = [row for row in rows if row["mode"] == mode]
            axis.plot([row["ranks"] for row in of_mode], [row[name] / 1e9 for row in of_mode], marker="o", label=mode)
        axis.set(xscale="log", yscale="log", xlabel="ranks", title=title)
        axis.legend()
    figure.savefig(path)
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m sarlite.estimate` and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Command line arguments; by default the arguments of the process.
    """
    return run_command(lambda: _main(argv))


def _main(argv):
    sizes, options = parse(argv)
    rows, lines = estimate(sizes, options)
    show("\n".join([table(rows), *lines]))
    if sizes.plot:
        plot(rows, sizes.plot)
    if options.output.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    sys.exit(main())

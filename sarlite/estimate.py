"""`python -m sarlite.estimate`: what training will take on any number of ranks, of a data set or of a graph told by
counts alone.
"""

import argparse
import json
import os
import sys
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from sarlite.comm import Solo, threads
from sarlite.comm.launch import default_threads
from sarlite.command import aligned, byte_size, count, readable
from sarlite.data import load
from sarlite.data.part import Rows
from sarlite.data.tables import SPLITS
from sarlite.errors import ConfigError, SarliteError, needs
from sarlite.profile import Memory
from sarlite.progress import SILENT, Progress
from sarlite.sar.cost import expected
from sarlite.sar.graph.graph import Graph
from sarlite.sar.schedule.modes import MODES
from sarlite.train import config as options
from sarlite.train import edge_values
from sarlite.train.combinations import Run, refuse, uncounted
from sarlite.train.costs import Setting, settings_compared
from sarlite.train.load import Shard, kind
from sarlite.train.load import load as load_part
from sarlite.train.loop import set_threads
from sarlite.train.part_sizes import sizes_of
from sarlite.train.rates import rates_of, seconds_of
from sarlite.train.report import duration
from sarlite.train.run import trainer_of
from sarlite.train.settings import settings
from sarlite.train.small import Sizes
from sarlite.train.trial import cost

MOST_EXACT = 16
"""Up to so many ranks a data set is divided as a run would divide it; beyond, random parts are expected."""
_LOADED = 2 << 20  # what loading leaves in a process beside the data, but for MPI
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


OWN = {
    "ranks": (None, _numbers, "numbers of ranks, such as 16,64,1024 [16,64,256,1024]"),
    "nodes": (None, count, "number of nodes, for a graph given by numbers in place of --data"),
    "edges": (None, count, "number of edges, without added self loops; an undirected edge counts twice"),
    "features": (None, count, "number of features"),
    "classes": (None, count, "number of classes"),
    "train": (0.1, float, "share of training nodes; validation and test have the same share each"),
    "halo": (None, float, "share of the other parts' nodes that a part needs [random parts: 1 - (1 - 1/ranks)^degree]"),
    "memory": (None, byte_size, "memory of each rank, such as 64GB: say which modes fit, and on how few ranks one "
                                "does"),
    "gflops": (None, _rate, "speed of a rank's products, 10^9 operations a second [measured here]"),
    "gb-per-s": (None, _rate, "speed at which a rank reads edges' rows, 10^9 bytes a second [measured here]"),
    "network-gbit": (None, _rate,
                     "speed of the network to a rank, 10^9 bits a second [measured here between two threads]"),
    "plot": (None, str, "write the table as a picture"),
}
METAVARS = {"ranks": "N,N,..", "train": "SHARE", "halo": "SHARE", "memory": "SIZE", "plot": "FILE",
            **dict.fromkeys(("nodes", "edges", "features", "classes"), "N"),
            **dict.fromkeys(("gflops", "gb-per-s", "network-gbit"), "X")}
TAKEN = ("data", "model", "self-loops", *options.GROUPS["model"], "task", "optimizer", "eval-every", "label-inputs",
         "clip-norm", "prefetch", "threads", "partition", "balance", "edge-weights", "edge-features", "seed", "json")


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, argparse.Namespace]:
    """Return the options of `OWN`, by names with underscores, and those of `train.config.OPTIONS`."""
    found, given = options.parse_further(
        argv, OWN, METAVARS, (), TAKEN, prog="python -m sarlite.estimate", usage="%(prog)s [options]",
        description="Bytes a rank and epoch, memory a rank and flops by mode, on any number of ranks; nothing is "
                    "trained.")
    own = argparse.Namespace(**{name.replace("-", "_"): value for name, value in found.items()})
    own.ranks = own.ranks or [16, 64, 256, 1024]
    if own.nodes is not None and "data" in given:
        raise ConfigError("--nodes and --data: give one of the two")
    config = options.resolve({"prefetch": 1, **given})
    if own.nodes is not None and (config.edge_weights or config.edge_features):
        raise ConfigError("--nodes gives a graph without edge values: --edge-weights and --edge-features need --data")
    if own.plot:
        needs("matplotlib", "--plot")
    return own, config


def estimate(own: argparse.Namespace, config: argparse.Namespace,
             progress: Progress = SILENT) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row of `COLUMNS` for each number of ranks and mode, and lines that say what is left out and why, and
    what fits in --memory. Bytes, flops and seconds are of the rank that has most.

    Parameters
    ----------
    own : Namespace of `OWN`
    config : Namespace of `train.config.OPTIONS`

    Raises
    ------
    SarliteError
        What is asked for cannot be told: counts are missing, or the model, the data or an option is refused as in
        training.
    """
    run = settings(config)
    by_counts = own.nodes is not None
    known = Run.of(vars(config), run.model.cls, "plain" if by_counts else kind(Solo(), run.source.spec))
    refuse(known)
    if why := uncounted(known):
        raise ConfigError(why)
    sizes = _of_counts(own, run) if by_counts else _of_data(own, run, known.relational)
    measured = cache(_measured)

    @cache
    def rows_on(size):
        with progress.step(f"{size:,} ranks"):
            parts, exact = sizes(size)
        rates = measured(config.threads or max(1, default_threads(Solo()) // size))
        network = own.network_gbit and own.network_gbit / 8
        given = {"flop": own.gflops, "summing": own.gb_per_s, "sending": network}
        rates, rows = rates._replace(**{name: 1e-9 / value for name, value in given.items() if value}), []
        for mode in MODES if size > 1 else [next(iter(MODES))]:
            with progress.step(f"{size:,} ranks, mode {mode}"):
                costs = [cost(part, Setting(mode)) for part in parts]
            rows.append(_row(size, mode, costs, exact, rates))
        return rows

    rows = [row for size in own.ranks for row in rows_on(size)]
    told = "its costs are not counted of a relational graph" if known.relational else "--dry-run tells it"
    left_out = [f"{setting} is left out: {told}" for setting in settings_compared() if setting.options]
    return rows, left_out + (_fits(rows, own, rows_on) if own.memory else [])


def _measured(n_threads):
    """The rates of a rank of so many threads on this machine."""
    set_threads(n_threads)
    of_messages, own = threads.run(2, rates_of)[0], rates_of(Solo())
    set_threads(1)
    return own._replace(**{name: getattr(of_messages, name) for name in ("packing", "sending", "message")})


def _fits(rows, own, rows_on):
    """Lines that say which of the rows fit the memory, and on how few ranks one does: its mode sends least of those
    that fit.
    """
    lines, memory = [], _bytes(own.memory)
    for row in rows:
        spare = own.memory - row["peak_bytes"]
        words = f"fits {memory}, {_bytes(spare)} to spare"
        words = words if spare >= 0 else f"does not fit {memory}, {_bytes(-spare)} too much"
        lines.append(f"{row['ranks']:,} ranks, {row['mode']}: {words}")

    def fitting(size):
        return [row for row in rows_on(size) if row["peak_bytes"] <= own.memory]

    most = min(own.nodes or _MOST_RANKS, _MOST_RANKS)
    few, many = 0, 1  # on the first none fits, on the second one may
    while not fitting(many) and many < most:
        few, many = many, min(2 * many, most)
    if not fitting(many):
        return [*lines, f"no mode fits {memory} on up to {most:,} ranks"]
    many = few + 1 + bisect_left(range(few + 1, many), True, key=lambda size: bool(fitting(size)))
    row = min(fitting(many), key=lambda row: (row["step_sent_bytes"], row["peak_bytes"]))
    return [*lines, f"fewest ranks: {many:,}, {row['mode']}, {_bytes(row['peak_bytes'])} a rank"]


def _row(size, mode, costs, exact, rates):
    def most(number):
        return max(map(number, costs))

    def most_bytes(way, segment):
        return round(most(lambda each: getattr(each.segments[segment], way).total()))

    seconds = {f"{of}_seconds": most(lambda each, of=of: seconds_of(each.segments[of], rates))
               for of in ("step", "evaluation")}
    return {"ranks": size, "mode": mode, "peak_bytes": most(lambda each: each.peak_bytes),
            "step_received_bytes": most_bytes("received", "step"), "step_sent_bytes": most_bytes("sent", "step"),
            "evaluation_sent_bytes": most_bytes("sent", "evaluation"),
            "sent_bytes": dict(sum((each.step.sent for each in costs), Counter[str]())),
            "messages": most(lambda each: each.step.n_messages), "flops": most(lambda each: each.step.flops),
            "exact": exact, **seconds}


# ---- of which parts


def _of_counts(own, run):
    """Return the function that tells of a number of ranks its (sizes of parts, exact), of a graph told by counts."""
    for name in ("nodes", "edges", "features", "classes"):
        value = getattr(own, name)
        if value is None or value < 1:
            raise ConfigError(f"--{name}: a graph given by numbers needs --nodes, --edges, --features and --classes, "
                              "each 1 or more")
    for name in ("halo", "train"):
        value = getattr(own, name)
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"--{name} {value} is not in [0, 1]")
    part = _rowless(run, own.features, own.classes, run.training.task or "classify", np.empty(0, np.int64))

    def sizes(size):
        if size > own.nodes:
            raise ConfigError(f"--ranks {size}: more than --nodes {own.nodes}")
        return _expected(run, part, size, own, own.nodes, own.edges, [own.train] * len(SPLITS))

    return sizes


def _of_data(own, run, relational):
    """As `_of_counts`, of a data set: divided as a run would, or for many ranks into random parts that are expected of
    its degrees.
    """
    source = run.source

    @cache
    def whole():
        dataset = load(source.spec, task=source.task)
        names = edge_values.used(Solo(), dataset, source.edge_values, source.spec)
        values = [np.empty((0, *getattr(dataset, name).shape[1:]), source.dtype) if name in names else None
                  for name in edge_values.ARRAYS]
        labels = np.asarray(dataset.labels[:0])
        part = _rowless(run, dataset.n_features, dataset.n_classes, dataset.task, labels, values)
        degrees = np.unique(np.diff(np.asarray(dataset.indptr)), return_counts=True)
        shares = [np.count_nonzero(getattr(dataset, name)) / dataset.n_nodes for name in SPLITS]
        return part, dataset.n_nodes, dataset.n_edges, shares, degrees

    def divided(comm, folder):
        part = load_part(comm, source._replace(features=False), run.graph, folder)
        return _with_memory(sizes_of(comm, run, part, trainer_of))

    def sizes(size):
        if size <= MOST_EXACT:
            with tempfile.TemporaryDirectory(prefix="sarlite-estimate-") as folder:
                return threads.run(size, divided, folder), True
        if relational:
            raise ConfigError(f"--ranks {size}: relational data, as --data {source.spec}, are estimated as divided, "
                              f"on at most {MOST_EXACT} ranks")
        part, *counts = whole()
        return _expected(run, part, size, own, *counts)

    return sizes


def _rowless(run, n_features, n_classes, task, labels, values=(None, None)):
    """A part without rows, which says what the data are."""
    loops = np.empty(0, bool) if run.source.self_loops else None
    graph = Graph.from_part(Solo(), np.zeros(1, np.int64), np.empty(0, np.int64), added_loops=loops)
    rows = Rows(np.empty((0, n_features), run.model.dtype), labels, *[np.empty(0, bool)] * len(SPLITS))
    return Shard(graph.with_edge_values(*values), rows, n_classes, {}, Memory(), {}, task)


def _expected(run, part, size, own, n_nodes, n_edges, shares, degrees=None):
    found = expected(n_nodes, n_edges, size, halo=own.halo, degrees=degrees, loops=part.graph.added_loops is not None)
    splits: Any = tuple(round(found.n_src * share) for share in shares)
    return [_with_memory(Sizes(run, trainer_of, part, 0, size, found.n_src, splits, {"edges": found}))], False


def _with_memory(sizes):
    """The sizes with the memory of a part that no process has loaded: of its labels, splits, ids, blocks and edge
    values; features are counted with a trial's. A relational graph has its edges and ids by relation beside, which
    blocks are cut from.
    """
    graph, edge_bytes, own_edges = sizes.part.graph, 4, 0
    if sizes.relational:
        own_edges = sum(24 * int(degrees.sum()) + 16 * len(degrees) for degrees in graph.graph.in_degrees.values())
    else:
        values = [a for a in (graph.edge_weight, graph.edge_features) if a is not None]
        edge_bytes += sum(a.itemsize * int(np.prod(a.shape[1:])) for a in values)
    blocks = sum(found.n_src * (8 + len(SPLITS) + 48) + 16 * found.n_halo + sum(map(sum, found.n_edges)) * edge_bytes
                 for found in sizes.exchanged.values())
    return sizes._replace(there_bytes=blocks + own_edges + _LOADED)


# ---- what is shown


_bytes = partial(readable, base=1000)
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    # by heading, a row's number and how it is shown
    "ranks": ("ranks", "{:,}".format),
    "mode": ("mode", str),
    "memory a rank": ("peak_bytes", _bytes),
    "received a step": ("step_received_bytes", _bytes),
    "sent a step": ("step_sent_bytes", _bytes),
    "sent an evaluation": ("evaluation_sent_bytes", _bytes),
    "messages": ("messages", "{:,}".format),
    "Gflop": ("flops", lambda n: f"{n / 1e9:,.4g}"),
    "an epoch": ("step_seconds", duration),
    "an evaluation": ("evaluation_seconds", duration),
    "parts": ("exact", lambda exact: "as divided" if exact else "expected"),
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


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, as the command line says; return the exit status."""
    try:
        own, config = parse(argv)
        set_threads(1)
        ranks = ",".join(map(str, own.ranks))
        print(f"sarlite.estimate: {config.model} on {ranks} ranks; a small trial of each mode is run", file=sys.stderr,
              flush=True)
        rows, left_out = estimate(own, config, Progress())
        print("\n".join([table(rows), *left_out]))
        if own.plot:
            plot(rows, own.plot)
        if config.json:
            print(json.dumps(rows))
    except SarliteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

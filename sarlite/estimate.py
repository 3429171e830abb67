"""`python -m sarlite.estimate`: what training will take on any number of ranks, of a data set or of a graph told by
counts alone.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Solo, threads
from sarlite.comm.launch import default_threads
from sarlite.command import Parser, aligned, byte_size, count
from sarlite.data import load
from sarlite.data.tables import SPLITS
from sarlite.errors import ConfigError, SarliteError, needs
from sarlite.progress import SILENT, Progress
from sarlite.sar.cost import expected
from sarlite.sar.schedule.modes import MODES
from sarlite.train import config as options
from sarlite.train import edge_values
from sarlite.train.combinations import Run, refuse, uncounted
from sarlite.train.costs import SETTINGS, Cost, Setting, cost
from sarlite.train.load import kind
from sarlite.train.load import load as load_part
from sarlite.train.loop import set_threads
from sarlite.train.part_sizes import sizes_of
from sarlite.train.rates import Rates, rates_of, segment_seconds
from sarlite.train.report import duration
from sarlite.train.run import trainer_of
from sarlite.train.settings import settings
from sarlite.train.small import Facts, Sizes

MOST_EXACT = 16
"""Up to so many ranks a data set is divided as a run would divide it; beyond, random parts are expected."""
_LOADED = 2 << 20  # what loading leaves in a process beside the data, but for MPI
_MOST_RANKS = 4096  # that are tried for --memory
OWN = {
    "ranks": ([16, 64, 256, 1024], "numbers of ranks, such as 16,64,1024", "N,N,.."),
    "nodes": (None, "number of nodes, for a graph given by numbers in place of --data", "N"),
    "edges": (None, "number of edges, without added self loops; an undirected edge counts twice", "N"),
    "features": (None, "number of features", "N"),
    "classes": (None, "number of classes", "N"),
    "train": (0.1, "share of training nodes; validation and test have the same share each", "SHARE"),
    "halo": (None, "share of the other parts' nodes that a part needs [random parts: 1 - (1 - 1/ranks)^degree]",
             "SHARE"),
    "memory": (None, "memory of each rank, such as 64GB: say which modes fit, and on how few ranks a mode fits",
               "SIZE"),
    "gflops": (None, "speed of a rank's products, 10^9 operations a second [measured here]", "X"),
    "gb_per_s": (None, "speed at which a rank reads edges' rows, 10^9 bytes a second [measured here]", "X"),
    "network_gbit": (None, "speed of the network to a rank, 10^9 bits a second [measured here between two threads]",
                     "X"),
    "plot": (None, "write the table as a picture", "FILE"),
}  # fmt: skip
TAKEN = ("data", "model", "self-loops", *options.GROUPS["model"], "task", "optimizer", "eval-every", "label-inputs",
         "clip-norm", "prefetch", "threads", "partition", "balance", "edge-weights", "edge-features", "seed", "json")


class Row(NamedTuple):
    """One number of ranks and one mode; bytes, flops and seconds of the rank that has most."""

    ranks: int
    mode: str
    peak_bytes: int
    step_received_bytes: int
    step_sent_bytes: int
    evaluation_sent_bytes: int
    sent_bytes: dict[str, float]
    messages: int
    flops: int
    exact: bool
    step_seconds: float
    evaluation_seconds: float


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    p = Parser(prog="python -m sarlite.estimate", usage="%(prog)s [options]", argument_default=argparse.SUPPRESS,
               description="Bytes a rank and epoch, memory a rank and flops by mode, on any number of ranks; nothing "
                           "is trained.")
    group = p.add_argument_group("what")
    for name, (default, text, metavar) in OWN.items():
        kind: Any = _KINDS.get(name, count)
        shown = "" if default is None else f" [{','.join(map(str, default)) if isinstance(default, list) else default}]"
        group.add_argument("--" + name.replace("_", "-"), type=kind, metavar=metavar, help=text + shown)
    taken = {name: options.OPTIONS[name.replace("-", "_")] for name in TAKEN}
    options.add_options(p.add_argument_group("of the run"), taken)
    return p


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


_KINDS = {"ranks": _numbers, "halo": float, "train": float, "plot": str, "memory": byte_size,
          **dict.fromkeys(("gflops", "gb_per_s", "network_gbit"), _rate)}  # fmt: skip


def estimate(own: argparse.Namespace, config: argparse.Namespace,
             progress: Progress = SILENT) -> tuple[list[Row], list[str]]:
    """Return a `Row` for each number of ranks and mode, and lines that say what is left out and why, and what fits in
    --memory.

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
    left_out = [f"{setting} is left out: --dry-run tells it" for setting in SETTINGS if setting.options]
    sizes = _of_counts(own, run) if by_counts else _of_data(own, run, known.relational)
    each = _Each(own, run, config.threads, sizes, progress)
    rows = [row for size in own.ranks for row in each.rows(size)]
    return rows, left_out + (_fits(rows, own, lambda size: [*each.rows(size)]) if own.memory else [])


class _Each:
    """Tells the rows of one number of ranks after another."""

    def __init__(self, own, run, threads, sizes, progress):
        self.own, self.run, self.threads, self.sizes, self.progress = own, run, threads, sizes, progress
        self.measured = {}

    def rows(self, size):
        with self.progress.step(f"{size:,} ranks"):
            sizes, exact = self.sizes(size)
        rates = self._rates(size)
        for mode in MODES if size > 1 else [next(iter(MODES))]:
            with self.progress.step(f"{size:,} ranks, mode {mode}"):
                costs = [cost(self.run, trainer_of, each, Setting(mode)) for each in sizes]
            yield _row(size, mode, costs, exact, rates)

    def _rates(self, size):
        """The rates of a rank with as many threads as one of so many of this machine, but for those that are given."""
        n_threads = self.threads or max(1, default_threads(Solo()) // size)
        if n_threads not in self.measured:
            set_threads(n_threads)
            of_messages, own = threads.run(2, rates_of)[0], rates_of(Solo())
            set_threads(1)
            messages = {name: getattr(of_messages, name) for name in ("packing", "sending", "message")}
            self.measured[n_threads] = own._replace(**messages)
        network = self.own.network_gbit and self.own.network_gbit / 8
        given = {"flop": self.own.gflops, "summing": self.own.gb_per_s, "sending": network}
        return self.measured[n_threads]._replace(**{name: 1e-9 / value for name, value in given.items() if value})


def _fits(rows, own, rows_on):
    """Lines that say which of the rows fit the memory, and on how few ranks one does: its mode sends least of those
    that fit.
    """
    lines, memory = [], _bytes(own.memory)
    for row in rows:
        spare = own.memory - row.peak_bytes
        words = f"fits {memory}, {_bytes(spare)} to spare"
        words = words if spare >= 0 else f"does not fit {memory}, {_bytes(-spare)} too much"
        lines.append(f"{row.ranks:,} ranks, {row.mode}: {words}")
    fitting = {}

    def fits(size):
        if size not in fitting:
            found = [row for row in rows_on(size) if row.peak_bytes <= own.memory]
            fitting[size] = min(found, key=lambda row: (row.step_sent_bytes, row.peak_bytes), default=None)
        return fitting[size] is not None

    most = min(own.nodes or _MOST_RANKS, _MOST_RANKS)
    few, many = 0, 1  # on the first none fits, on the second one may
    while not fits(many) and many < most:
        few, many = many, min(2 * many, most)
    if not fits(many):
        return [*lines, f"no mode fits {_bytes(own.memory)} on up to {most:,} ranks"]
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if fits(middle) else (middle, many)
    row = fitting[many]
    return [*lines, f"fewest ranks: {many:,}, {row.mode}, {_bytes(row.peak_bytes)} a rank"]


def _row(size: int, mode: str, costs: Sequence[Cost], exact: bool, rates: Rates) -> Row:
    def most(number):
        return max(map(number, costs))

    def most_bytes(way, segment):
        return round(most(lambda each: sum(getattr(each, way)[segment].values())))

    phases = Counter[str]()
    for each in costs:
        phases.update(each.sent["step"])
    return Row(size, mode, most(lambda each: each.peak_bytes), most_bytes("received", "step"),
               most_bytes("sent", "step"), most_bytes("sent", "evaluation"), dict(phases),
               most(lambda each: each.n_messages), most(lambda each: each.flops), exact,
               *(most(lambda each, of=of: segment_seconds(each, rates, of)) for of in ("step", "evaluation")))


def _with_memory(sizes):
    """The sizes with the memory of a part that no process has loaded: of its labels, splits, ids, blocks and edge
    values; features are counted with a trial's. A relational graph has its edges and ids by relation beside, which
    blocks are cut from.
    """
    own, values = sizes.facts.relations, [a for a in sizes.facts.edge_values if a is not None]
    edge_bytes = 4 + sum(a.itemsize * int(np.prod(a.shape[1:])) for a in values)
    blocks = sum(found.n_src * (8 + len(SPLITS) + 48) + 16 * found.n_halo + sum(map(sum, found.n_edges)) * edge_bytes
                 for found in sizes.exchanged.values())
    edges = sum(24 * n + 16 * own.own_nodes[relation[2]] for relation, n in own.own_edges.items()) if own else 0
    return sizes._replace(there_bytes=blocks + edges + _LOADED)


def _expected(size, own, n_nodes, n_edges, degrees, shares, facts):
    found = expected(n_nodes, n_edges, size, halo=own.halo, degrees=degrees, loops=facts.loops)
    splits: Any = tuple(round(found.n_src * share) for share in shares)
    return [_with_memory(Sizes(facts, 0, size, found.n_src, splits, {"edges": found}))], False


def _of_counts(own, run):
    """Return the function that tells of a number of ranks its (sizes, exact), of a graph that is told by counts."""
    for name in ("nodes", "edges", "features", "classes"):
        value = getattr(own, name)
        if value is None or value < 1:
            raise ConfigError(f"--{name}: a graph given by numbers needs --nodes, --edges, --features and --classes, "
                              "each 1 or more")
    for name in ("halo", "train"):
        value = getattr(own, name)
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"--{name} {value} is not in [0, 1]")
    facts = Facts(own.features, own.classes, run.training.task or "classify", loops=run.source.self_loops)

    def sizes(size):
        if size > own.nodes:
            raise ConfigError(f"--ranks {size}: more than --nodes {own.nodes}")
        return _expected(size, own, own.nodes, own.edges, None, [own.train] * len(SPLITS), facts)

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
        values = tuple(np.empty((0, *getattr(dataset, name).shape[1:]), source.dtype) if name in names else None
                       for name in edge_values.ARRAYS)
        facts = Facts(dataset.n_features, dataset.n_classes, dataset.task, np.asarray(dataset.labels[:0]),
                      source.self_loops, values)
        degrees = np.unique(np.diff(np.asarray(dataset.indptr)), return_counts=True)
        shares = [np.count_nonzero(getattr(dataset, name)) / dataset.n_nodes for name in SPLITS]
        return dataset.n_nodes, dataset.n_edges, degrees, shares, facts

    def divided(comm, folder):
        part = load_part(comm, source._replace(features=False), run.graph, folder)
        sizes = sizes_of(comm, run, part, trainer_of)
        facts = sizes.facts  # no rows of arrays that are files, which go
        values = tuple(None if a is None else a.copy() for a in facts.edge_values)
        return _with_memory(sizes._replace(facts=facts._replace(labels=facts.labels.copy(), edge_values=values)))

    def sizes(size):
        if size <= MOST_EXACT:
            with tempfile.TemporaryDirectory(prefix="sarlite-estimate-") as folder:
                return threads.run(size, divided, folder), True
        if relational:
            raise ConfigError(f"--ranks {size}: relational data, as --data {source.spec}, are estimated as divided, "
                              f"on at most {MOST_EXACT} ranks")
        return _expected(size, own, *whole())

    return sizes


COLUMNS = {
    "ranks": lambda r: f"{r.ranks:,}",
    "mode": lambda r: r.mode,
    "memory a rank": lambda r: _bytes(r.peak_bytes),
    "received a step": lambda r: _bytes(r.step_received_bytes),
    "sent a step": lambda r: _bytes(r.step_sent_bytes),
    "sent an evaluation": lambda r: _bytes(r.evaluation_sent_bytes),
    "messages": lambda r: f"{r.messages:,}",
    "Gflop": lambda r: f"{r.flops / 1e9:,.4g}",
    "an epoch": lambda r: duration(r.step_seconds),
    "an evaluation": lambda r: duration(r.evaluation_seconds),
    "parts": lambda r: "as divided" if r.exact else "expected",
}  # fmt: skip


def _bytes(n):
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000 or unit == "TB":
            return f"{n:.4g} {unit}"
        n /= 1000


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text, of the rank that has most; bytes in powers of 1000."""
    return aligned([list(COLUMNS), *([show(row) for show in COLUMNS.values()] for row in rows)], ">")


def plot(rows: Sequence[Row], path: str) -> None:
    """Draw bytes received and memory by number of ranks, a line a mode."""
    needs("matplotlib", "--plot")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    shown = {"step_received_bytes": "GB received a rank and step", "peak_bytes": "GB of memory a rank"}
    for axis, (name, title) in zip(axes, shown.items()):
        for mode in dict.fromkeys(row.mode for row in rows):
            own = [row for row in rows if row.mode == mode]
            axis.plot([row.ranks for row in own], [getattr(row, name) / 1e9 for row in own], marker="o", label=mode)
        axis.set(xscale="log", yscale="log", xlabel="ranks", title=title)
        axis.legend()
    figure.savefig(path)
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, as the command line says; return the exit status."""
    try:
        flags = vars(parser().parse_args(argv))
        own = argparse.Namespace(**{name: flags.pop(name, default) for name, (default, _, _) in
                                    ((name.replace("-", "_"), each) for name, each in OWN.items())})
        if own.nodes is not None and "data" in flags:
            raise ConfigError("--nodes and --data: give one of the two")
        config = options.resolve({"prefetch": 1, **flags})
        if own.nodes is not None and (config.edge_weights or config.edge_features):
            raise ConfigError("--nodes gives a graph without edge values: --edge-weights and --edge-features need "
                              "--data")
        if own.plot:
            needs("matplotlib", "--plot")
        set_threads(1)
        sizes = ",".join(map(str, own.ranks))
        text = f"sarlite.estimate: {config.model} on {sizes} ranks; a small trial of each mode is run"
        print(text, file=sys.stderr, flush=True)
        rows, left_out = estimate(own, config, Progress())
        print("\n".join([table(rows), *left_out]))
        if own.plot:
            plot(rows, own.plot)
        if config.json:
            print(json.dumps([row._asdict() for row in rows]))
    except SarliteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m sarlite.smooth`: Correct and Smooth on saved predictions."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sarlite.cli import config
from sarlite.cli.combinations import Run, refuse
from sarlite.cli.config import naming_flags
from sarlite.cli.option import option, options_of
from sarlite.cli.options import OPTIONS, RunOptions, SmoothingOptions
from sarlite.cli.settings import graph_of, source_of
from sarlite.cli.train_command import main_on_ranks
from sarlite.comm import together
from sarlite.command import show
from sarlite.data import node_rows, npyfile
from sarlite.errors import ConfigError
from sarlite.graph.correct_and_smooth import check_probabilities
from sarlite.numerics import using
from sarlite.numerics.exact_sum import named
from sarlite.train.edge_values import EdgeValueUse
from sarlite.train.load import kind, load, prefetched
from sarlite.user_code import errors_of


@dataclass(frozen=True)
class SmoothOptions:
    """The files of Correct and Smooth."""

    predictions: str = option(
        None, "(n_nodes, n_classes) probabilities in the data's original node order, .npy", metavar="FILE.npy")
    out: str = option(
        None, "file for the smoothed scores, in the order of the predictions; an old file is replaced",
        metavar="FILE.npy")


TAKEN = ("data", "self_loops", "mode", "prefetch", "partition", "balance", "numerics", "threads", "ranks", "seed",
         "stall_timeout", "progress", "verify",
         *(name for name in options_of(SmoothingOptions) if name != "correct_and_smooth"))
"""Options of `sarlite.train` that this command has too."""


def parse(argv: Sequence[str] | None) -> tuple[RunOptions, SmoothOptions]:
    """Return the options of a run, and of this command.

    Raises
    ------
    ConfigError
        An unknown flag, a bad value, or a file that is not named.
    """
    changed = {"self_loops": replace(OPTIONS["self_loops"], help="add the self loops that are missing, of weight 1",
                                     default=False),
               "data": replace(OPTIONS["data"], default=None)}
    own, given = config.parse_further(
        argv, SmoothOptions, ("data", "predictions", "out"), TAKEN, changed, prog="python -m sarlite.smooth",
        usage="%(prog)s --data SPEC --predictions FILE.npy --out FILE.npy [options]", description=__doc__)
    return config.resolve({**given, "correct_and_smooth": True}), own


@naming_flags
def smooth(comm, options, files, tick=lambda: None, interrupts=None):
    """Read this rank's probabilities, correct and smooth them, and write its rows. Collective.

    Edge weights of the data are used, with weighted degrees; an added self loop weighs 1. No features are read.

    Raises
    ------
    SarliteError
        On every rank together, naming the file, and the row and its sum where a row is none of probabilities.
    """
    corrected = together(comm, lambda: options.smoothing.smoother())
    together(comm, lambda: _look(files))
    what = kind(comm, options.data.data)
    together(comm, lambda: refuse(Run.of({"data": options.data.data, "correct_and_smooth": True}, None, what)))
    graph = prefetched(comm, graph_of(options), options.schedule.prefetch, options.machine.threads)
    graph = graph._replace(backward="push")  # there is no backward, so no plan of the reversed edges is made
    values = EdgeValueUse(edge_weight="there", edge_features=False)
    source = source_of(options)._replace(dtype=None, features=False, edge_values=values)
    with errors_of(options.schedule.mode, "mode"):
        part = load(comm, source, graph, Path(files.out).absolute().parent, tick)
    probabilities = together(comm, lambda: _probabilities(files, part.graph, part.n_classes))
    with using(named(options.training.numerics, comm)):
        scores = corrected(part.graph, probabilities, part.rows.labels, part.rows.train)
    node_rows.write(comm, files.out, part.graph.dst_ids, scores, part.graph.n_nodes)
    if comm.rank == 0:
        show(f"{files.out}: {part.graph.n_nodes:,} nodes, {part.n_classes} classes")


def _look(files):
    """Check the arguments before the graph is loaded."""
    if not Path(files.out).absolute().parent.is_dir():
        raise ConfigError(f"--out {files.out}: cannot be written: no such folder")
    npyfile.load(files.predictions, "predictions")


def _probabilities(files, graph, n_classes):
    """Return this rank's rows of the predictions."""
    path = files.predictions
    z = node_rows.read(path, "predictions", graph.dst_ids, graph.n_nodes, n_classes)
    check_probabilities(z, graph.dst_ids, f"{path}: predictions")
    return z


def main(argv=None):
    """Smooth as the command line says; return the exit status."""
    return main_on_ranks(argv, parse, lambda: smooth)


if __name__ == "__main__":
    sys.exit(main())

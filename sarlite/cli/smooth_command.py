"""`python -m sarlite.smooth`: apply Correct and Smooth to saved predictions."""

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
from sarlite.comm.launch import rank_threads
from sarlite.command import show
from sarlite.data import node_rows, npyfile
from sarlite.errors import ConfigError
from sarlite.graph.correct_and_smooth import check_probabilities
from sarlite.numerics import using
from sarlite.numerics.exact_sum import named
from sarlite.train.edge_values import EdgeValueUse
from sarlite.train.load import kind, load
from sarlite.user_code import errors_of


@dataclass(frozen=True)
class SmoothOptions:
    """Input file and output file of the smoothing command."""

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
    """Return (options of a run, the command's own options), both from the command line `argv`; None stands for the arguments of the
    process.

    Raises
    ------
    ConfigError
        A flag is unknown, a value is invalid, or a needed flag is missing.
    """
    changed = {"self_loops": replace(OPTIONS["self_loops"], help="add the self loops that are missing, of weight 1",
                                     default=False),
               "data": replace(OPTIONS["data"], default=None)}
    files, values = config.parse_further(
        argv, SmoothOptions, ("data", "predictions", "out"), TAKEN, changed, prog="python -m sarlite.smooth",
        usage="%(prog)s --data SPEC --predictions FILE.npy --out FILE.npy [options]",
        description="Apply Correct and Smooth to saved predictions.")
    return config.resolve({**values, "correct_and_smooth": True}), files


@naming_flags
def smooth(comm, options, files, tick=lambda: None, interrupts=None):
    """Apply Correct and Smooth to the probabilities in the file `files.predictions`, and write the scores to `files.out`. `options`
    has the data set and the method's options. Collective.

    Edge weights in the data are used, with weighted degrees; an added self loop has weight 1. No features are read.

    Parameters
    ----------
    comm : Communicator
    options : RunOptions
    files : SmoothOptions
    tick : callable
        tick() is called whenever this rank makes progress.
    interrupts : Interrupts, optional
        Not used.

    Raises
    ------
    SarliteError
        On every rank together: a file cannot be read or written, or the rows of the predictions are not probabilities.
    """
    corrected = together(comm, lambda: options.smoothing.smoother())
    together(comm, lambda: _check_files(files))
    data_kind = kind(comm, options.data.data)
    together(comm, lambda: refuse(Run.of({"data": options.data.data, "correct_and_smooth": True}, None, data_kind)))
    graph = graph_of(options).resolved(comm, rank_threads(comm, options.machine.threads))
    graph = graph._replace(backward="push")  # without a backward pass, no plan of reversed edges is needed
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


def _check_files(files: SmoothOptions) -> None:
    """Raise an error if the folder of the output file in `files` does not exist, or if the predictions cannot be read."""
    if not Path(files.out).absolute().parent.is_dir():
        raise ConfigError(f"--out {files.out}: cannot be written: no such folder")
    npyfile.load(files.predictions, "predictions")


def _probabilities(files, graph, n_classes):
    """Return this rank's rows of the probabilities in the file `files.predictions`, shape (n_local, n_classes). `graph` has the ids
    of this rank's nodes.
    """
    path = files.predictions
    z = node_rows.read(path, "predictions", graph.dst_ids, graph.n_nodes, n_classes)
    check_probabilities(z, graph.dst_ids, f"{path}: predictions")
    return z


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m sarlite.smooth` and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Command line arguments; by default the arguments of the process.
    """
    return main_on_ranks(argv, parse, lambda: smooth)


if __name__ == "__main__":
    sys.exit(main())

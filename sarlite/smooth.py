"""`python -m sarlite.smooth`: Correct and Smooth on saved predictions."""

import argparse
import sys
from pathlib import Path
from typing import Any

from sarlite.comm import together
from sarlite.data import node_rows, npyfile
from sarlite.errors import ConfigError
from sarlite.numerics import using
from sarlite.numerics.exact_sum import named
from sarlite.propagation.smoothing import check_probabilities
from sarlite.train import __main__ as command
from sarlite.train import config as training
from sarlite.train.combinations import Run, refuse
from sarlite.train.config import naming_flags
from sarlite.train.edge_values import Wanted
from sarlite.train.load import kind, load, prefetched
from sarlite.train.options import GROUPS
from sarlite.train.settings import graph_of, smoothing_of, source_of

OWN: dict[str, tuple[Any, Any, str]] = {
    "predictions": (None, str, "(n_nodes, n_classes) probabilities in the data's original node order, .npy"),
    "out": (None, str, "file for the smoothed scores, in the order of the predictions; an old file is replaced"),
}
TAKEN = ("data", "self-loops", "mode", "prefetch", "partition", "balance", "numerics", "threads", "ranks", "seed",
         "stall-timeout", "progress", "verify",
         *(name for name in GROUPS["correct and smooth"] if name != "correct-and-smooth"))
"""Options of `sarlite.train` that this command has too."""


def parse(argv=None):
    """Return the options as a Namespace: all of `sarlite.train`'s, and `OWN`.

    Raises
    ------
    ConfigError
        An unknown flag, a bad value, or a file that is not named.
    """
    others = {"self-loops": (False, bool, "add the self loops that are missing, of weight 1"),
              "data": (None, *training.OPTIONS["data"][1:])}
    own, given = training.parse_further(
        argv, OWN, dict.fromkeys(OWN, "FILE.npy"), ("data", *OWN), TAKEN, others, prog="python -m sarlite.smooth",
        usage="%(prog)s --data SPEC --predictions FILE.npy --out FILE.npy [options]", description=__doc__)
    return argparse.Namespace(**vars(training.resolve({**given, "correct_and_smooth": True})), **own)


@naming_flags
def smooth(comm, config, tick=lambda: None, interrupts=None):
    """Read this rank's probabilities, correct and smooth them, and write its rows. Collective.

    Edge weights of the data are used, with weighted degrees; an added self loop weighs 1. No features are read.

    Raises
    ------
    SarliteError
        On every rank together, naming the file, and the row and its sum where a row is none of probabilities.
    """
    corrected = together(comm, lambda: smoothing_of(config))
    together(comm, lambda: _look(config))
    what = kind(comm, config.data)
    together(comm, lambda: refuse(Run.of({"data": config.data, "correct_and_smooth": True}, None, what)))
    graph = prefetched(comm, graph_of(config), config)
    graph = graph._replace(backward="push")  # there is no backward, so no plan of the reversed edges is made
    values = Wanted(edge_weight="there", edge_features=False)
    source = source_of(config, None, dtype=None, features=False, edge_values=values)
    part = load(comm, source, graph, Path(config.out).absolute().parent, tick)
    probabilities = together(comm, lambda: _probabilities(config, part.graph, part.n_classes))
    with using(named(config.numerics, comm)):
        scores = corrected(part.graph, probabilities, part.rows.labels, part.rows.train)
    node_rows.write(comm, config.out, part.graph.dst_ids, scores, part.graph.n_nodes)
    if comm.rank == 0:
        print(f"{config.out}: {part.graph.n_nodes:,} nodes, {part.n_classes} classes", flush=True)


def _look(config):
    """Refuse now what would be refused after the graph is loaded."""
    if not Path(config.out).absolute().parent.is_dir():
        raise ConfigError(f"--out {config.out}: cannot be written: no such folder")
    npyfile.load(config.predictions, "predictions")


def _probabilities(config, graph, n_classes):
    """This rank's rows of the predictions."""
    path = config.predictions
    z = node_rows.read(path, "predictions", graph.dst_ids, graph.n_nodes, n_classes)
    check_probabilities(z, graph.dst_ids, f"{path}: predictions")
    return z


def main(argv=None):
    """Smooth as the command line says; return the exit status, or exit with it."""
    return command.main(argv, parse, lambda: smooth)


if __name__ == "__main__":
    sys.exit(main())

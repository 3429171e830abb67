"""`python -m sarlite.smooth`: Correct and Smooth on saved predictions."""

import argparse
import sys
from pathlib import Path
from typing import Any

from sarlite.comm import together
from sarlite.comm.launch import default_prefetch, default_threads
from sarlite.comm.working import working
from sarlite.command import Parser, parse_own
from sarlite.data import node_rows, npyfile
from sarlite.data.mapped import copied
from sarlite.data.part import Part
from sarlite.data.ranks import divided
from sarlite.errors import ConfigError
from sarlite.graph.edges import add_self_loops, with_added_loops
from sarlite.progress import Progress
from sarlite.propagation.smoothing import check_probabilities
from sarlite.sar.graph.graph import Graph
from sarlite.train import __main__ as command
from sarlite.train import config as training
from sarlite.train import smoothing
from sarlite.train.loop import set_threads

OWN: dict[str, tuple[Any, Any, str]] = {
    "predictions": (None, str, "(n_nodes, n_classes) probabilities in the data's original node order, .npy"),
    "out": (None, str, "file for the smoothed scores, as the predictions stand; replaced if it is there"),
}
TAKEN = ("data", "self-loops", "mode", "prefetch", "partition", "balance", "threads", "ranks", "seed", "stall-timeout", "progress",
         "verify", *(name for name in smoothing.OPTIONS if name != "correct-and-smooth"))
"""Options of `sarlite.train` that this command has too."""


def parse(argv=None):
    """Return the options as a Namespace: all of `sarlite.train`'s, and `OWN`.

    Raises
    ------
    ConfigError
        An unknown flag, a bad value, or a file that is not named.
    """
    parser = Parser(prog="python -m sarlite.smooth", usage="%(prog)s --data SPEC --predictions FILE.npy --out FILE.npy [options]",
                    argument_default=argparse.SUPPRESS, description=__doc__)
    loops = (False, bool, "add the self loops that are missing, of weight 1")
    data = (None, *training.OPTIONS["data"][1:])
    own, given = parse_own(argv, parser, OWN, dict.fromkeys(OWN, "FILE.npy"), ("data", *OWN),
                           lambda parser: training.add_taken(parser, TAKEN, {"self-loops": loops, "data": data}))
    return argparse.Namespace(**vars(training.resolve({**given, "correct_and_smooth": True})), **own)


def smooth(comm, config, tick=lambda: None, interrupts=None):
    """Read this rank's probabilities, correct and smooth them, and write its rows. Collective.

    Edge weights of the data are used, with weighted degrees; an added self loop weighs 1. No features are read.

    Raises
    ------
    SarliteError
        On every rank together, naming the file, and the row and its sum where a row is none of probabilities.
    """
    threads = config.threads or default_threads(comm)
    set_threads(threads)
    prefetch = default_prefetch(comm, threads) if config.prefetch is None else config.prefetch
    together(comm, lambda: _look(config))
    with working(tick):
        graph, labels, train, weights, n_classes = _load(comm, config, prefetch)
    graph.profile.on_progress = tick
    probabilities = together(comm, lambda: _probabilities(config, graph, n_classes))
    scores = smoothing.made(config)(graph, probabilities, labels, train, weights)
    node_rows.write(comm, config.out, graph.dst_ids, scores, graph.n_nodes)
    if comm.rank == 0:
        print(f"{config.out}: {graph.n_nodes:,} nodes, {n_classes} classes", flush=True)


def _look(config):
    """Refuse now what would be refused after the graph is loaded."""
    if not Path(config.out).absolute().parent.is_dir():
        raise ConfigError(f"--out {config.out}: cannot be written: no such folder")
    npyfile.load(config.predictions, "predictions")


def _load(comm, config, prefetch):
    options = {name: getattr(config, name) for name in ("partition", "order", "balance", "seed", "verify")}
    options["scratch"] = Path(config.out).absolute().parent  # which every rank sees
    with divided(comm, config.data, progress=Progress(config.progress), **options) as dataset:
        part = Part(dataset, comm.rank, comm.size)
        rows = part.first_row, part.first_row + part.n_rows
        (indptr, indices), weights, added = part.edges(), part.edge_values("edge_weight"), None
        labels, train = copied(dataset.labels, *rows), copied(dataset.train, *rows)
        ids, n_classes = part.node_ids(), dataset.n_classes
    if config.self_loops:
        indptr, indices, added = add_self_loops(indptr, indices, part.first_row)
        weights = None if weights is None else with_added_loops(weights, indptr, indices, added, part.first_row, 1)
    graph = Graph.from_part(comm, indptr, indices, node_ids=ids, added_loops=added, mode=config.mode, prefetch=prefetch,
                            backward="push")  # there is none, so no plan of the reversed edges is made
    return graph, labels, train, weights, n_classes


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

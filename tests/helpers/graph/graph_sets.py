"""Sets of small labelled graphs, and trainers that learn the labels, for ranks on any communicator."""

import numpy as np

from sarlite import Graph, GraphSet, Trainer, nn, optim
from sarlite.minibatch import GraphLoader
from sarlite.models import GIN
from sarlite.tasks.graph_task import GraphTask

SIZES = np.array([5, 1, 7, 0, 3, 6, 4, 8, 2, 5, 6, 3])
"""Nodes of each graph; one has none."""
N = int(SIZES.sum())
DRAW = np.random.default_rng(0)
GRAPH_OF = DRAW.permutation(np.repeat(np.arange(len(SIZES)), SIZES))
"""The nodes of a graph do not stand together."""
PAIRS = DRAW.integers(0, N, (900, 2))
PAIRS = PAIRS[GRAPH_OF[PAIRS[:, 0]] == GRAPH_OF[PAIRS[:, 1]]]
FEATURES = DRAW.standard_normal((N, 4))
LABELS = np.arange(len(SIZES)) % 3
VALUES = DRAW.standard_normal((len(PAIRS), 2))
PARTS = {2: "metis", 3: np.arange(len(SIZES)) * 7 % 3 % 2 * 2}
"""Of 3, rank 1 has no graphs."""


def whole(values=False):
    graph = Graph.from_edges(*PAIRS.T, N)
    return graph.with_edge_values(np.abs(VALUES[:, 0]), VALUES) if values else graph


def graphs(comm, mode="sar", values=False):
    return GraphSet.of(whole(values), GRAPH_OF, len(SIZES), comm=comm, parts=PARTS.get(comm.size, "metis"), mode=mode)


def trainer(comm, mode="sar", readout="sum", model=GIN, batch: int | None = None, task="classify", values: bool = False, lr=0.02,
            dtype=np.float64, numerics="fast", **options):
    """Return a Trainer of a GraphPredictor with encoder `model` in minibatches of `batch` graphs (None: all); `values`: edges have some.

    Labels are classes, or numbers if `task` is "regress". `batch` is the number of graphs in a minibatch, None for
    the full set.
    """
    graph_set, rng = graphs(comm, mode, values), nn.Random(1)
    encoder = model(4, 6, rng=rng, dtype=dtype, hidden=6, layers=2, **options)
    model = nn.GraphPredictor(encoder, 6, 3 if task == "classify" else 1, readout, rng=rng, dtype=dtype)
    x, graph_ids = FEATURES[graph_set.src_ids].astype(dtype), graph_set.dst_ids
    labels = LABELS[graph_ids] if task == "classify" else SIZES[graph_ids].astype(float)
    train, val, test = (graph_ids % 4 < 2, graph_ids % 4 == 2, graph_ids % 4 == 3)
    batches = None if batch is None else GraphLoader(graph_set, x, labels, train, batch_size=batch, seed=3)
    return Trainer(graph_set, model, x, labels, train, val, test, rng=rng, task=GraphTask(task), batches=batches, numerics=numerics,
                   optimizer=lambda flat: optim.SGD(flat, lr))


def write_tu(folder, edge_labels=False, name="SMALL"):
    """Write the test graphs in TU Dortmund's file layout under `name`, with labels -1, 0 and 1; edges have labels if `edge_labels`."""
    folder.mkdir()
    graph_numbers = np.unique(GRAPH_OF, return_inverse=True)[1]  # TU's ids skip graphs without nodes
    files = {"A": PAIRS + 1, "graph_indicator": graph_numbers + 1, "graph_labels": LABELS[SIZES > 0] - 1,
             "node_labels": 5 * (np.arange(N) % 3), "node_attributes": FEATURES,
             "graph_attributes": SIZES[SIZES > 0] / 2}  # fmt: skip
    if edge_labels:
        files["edge_labels"] = np.arange(len(PAIRS)) % 2
    for word, rows in files.items():
        np.savetxt(folder / f"{name}_{word}.txt", rows, "%.17g", ", ")
    return folder

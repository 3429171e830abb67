"""Graphs whose edges are links to predict, and trainers of link prediction, on any communicator."""

import numpy as np

from sarlite import Graph, Trainer, nn, optim
from sarlite.models import GAT, GCN
from sarlite.nn.decoders import DECODERS
from sarlite.tasks.link_data import split_links
from sarlite.tasks.link_task import LinkTask

N = 40
DRAW = np.random.default_rng(0)
PAIRS = np.unique(np.sort(DRAW.integers(0, N, (150, 2)), 1), axis=0)
"""(source, destination), some of them self loops, each pair once."""
FEATURES = DRAW.standard_normal((N, 6))
PARTS = {2: np.arange(N) // 20, 3: np.arange(N) * 7 % 3 % 2 * 2}
"""Of 3, rank 1 has no nodes."""


def whole(directed=False, weights=False):
    """Return the undivided graph of PAIRS, both ways unless `directed`; with `weights`, an edge's weight is 1 + its source's id."""
    loops = PAIRS[:, 0] == PAIRS[:, 1]
    one = PAIRS if directed else np.concatenate([PAIRS, PAIRS[~loops, ::-1]])
    graph = Graph.from_edges(*one.T, N, self_loops=not directed)
    return graph.with_edge_values(1.0 + graph.edge_src_ids) if weights else graph


def part(comm, mode="sar", **options):
    graph = whole(**options)
    return graph if comm.size == 1 else graph.shard(comm, PARTS[comm.size], mode=mode)


def trainer(comm, mode="sar", decoder="dot", loss: str | None = None, metric: str | None = None, directed: bool = False,
            weights: bool = False, model=GCN, lr=0.05, **options):
    """Return (Trainer of link prediction with the encoder class `model` and the `decoder` of this name, the `Links` to learn)."""
    graph = part(comm, mode, directed=directed, weights=weights)
    links, rng = split_links(graph, 0.15, 0.2, seed=3, **options), nn.Random(1)
    encoder = model(6, 8, rng=rng, dtype=np.float64, **({"hidden": 4, "heads": 2} if model is GAT else {"hidden": 8}))
    predictor = nn.LinkPredictor(encoder, DECODERS[decoder](8, rng=rng, dtype=np.float64))
    return Trainer(links.graph, predictor, FEATURES[graph.dst_ids], links.labels, links.train, links.val, links.test, rng=rng,
                   task=LinkTask(loss, metric), optimizer=lambda flat: optim.SGD(flat, lr)), links

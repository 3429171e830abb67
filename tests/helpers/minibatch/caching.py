"""A small graph on ranks that take peers' rows from historical embedding caches, and models, for the tests of these caches."""

import numpy as np

from sarlite import Graph, nn, optim
from sarlite.minibatch import HEC, NeighborLoader
from sarlite.models import GAT, GCN, SAGE
from sarlite.train.step import TrainingStep
from tests.helpers.graph.strategies import random_edges, values

N, N_IN, N_OUT = 90, 5, 3
EDGES = random_edges(N, 700, seed=3)
X, LABELS = values(1, N, N_IN), np.random.default_rng(2).integers(0, N_OUT, N)
FULL = (-1, -1, -1)


class Plain(nn.Module):
    """Model of three layers with a user-defined message function that reads edge values."""

    def __init__(self, rng):
        self.linears = [nn.Linear(a, b, rng=rng, dtype=np.float64) for a, b in ((N_IN, 6), (6, 6), (6, N_OUT))]
        self.edge = values(8, 2000)

    def __call__(self, graph, h):
        for g, linear in zip(graph.layers(3), self.linears):
            g, h = g.enter(h)
            z = linear(h)
            h = g.aggregate(lambda s, d, e: (s["z"] + d["z"]).tanh() * e["w"], "mean", {"z": z}, {"z": g.dst(z)},
                            {"w": self.edge[g.edge_ids][:, None]}) + g.dst(z)
        return h


def make(name, **options):
    rng = nn.Random(5)
    if name == "function":
        return Plain(rng), rng
    more = {"gat": {"heads": 2, "input_dropout": 0.0, "attention_dropout": 0.0}, "pool": {"aggregator": "max-pool"}}.get(name, {})
    cls = {"gat": GAT, "gcn": GCN}.get(name, SAGE)
    options = {"dropout": 0.0, "batch_norm": False, **more, **options}
    return cls(N_IN, N_OUT, layers=3, hidden=6, rng=rng, dtype=np.float64, **options), rng


MODELS = ["sage", "pool", "gcn", "gat", "function"]


def whole(loops=False):
    return Graph.from_edges(*EDGES, self_loops=loops)


def random_parts(size, seed=0):
    return np.random.default_rng(seed).integers(0, size, N)


def loader_of(graph, train=slice(None), **options):
    options = {"fanouts": FULL, "batch_size": N, "seed": 3, **options}
    return NeighborLoader(graph, X[graph.src_ids], LABELS[graph.dst_ids], train, **options)


def unlimited(**options):
    return HEC(**{"lines": 10**6, "limit": 10**6, "life": 10**6, **options})


def trained(comm, remote, steps=40):
    graph = whole().shard(comm, random_parts(comm.size))
    model, rng = make("sage", dropout=0.3)
    loader = loader_of(graph, fanouts=(3, 3, 3), batch_size=20, remote=remote)
    step = TrainingStep(model, optim.Adam(nn.flatten(model), 0.01), rng, comm)
    losses = []
    while len(losses) < steps:
        losses += [step(b) for b in loader]
    return losses, nn.flatten(model).data.copy(), loader

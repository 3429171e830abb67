"""Minibatches of a small graph on any communicator, for tests on ranks as threads and on MPI ranks."""

import hashlib

import numpy as np

from sarlite import Graph, Trainer, fn, nn, optim
from sarlite.minibatch import HEC, NeighborLoader
from sarlite.models import GAT, SAGE
from sarlite.tape import Tensor, no_grad
from sarlite.train.step import TrainingStep
from tests.helpers.graph.strategies import random_edges, values

N, N_IN, N_OUT = 90, 5, 3
EDGES = random_edges(N, 700, seed=3)
X, LABELS = values(1, N, N_IN), np.random.default_rng(2).integers(0, N_OUT, N)
SEEDS = np.arange(1, N, 2)


def whole(loops=False):
    """Return the undivided test graph; with `loops`, each node without a self loop gets one, which has edge values of its own."""
    graph = Graph.from_edges(*EDGES, self_loops=loops)
    if not loops:
        return graph
    edges, had = graph.in_edges(), np.zeros(N, bool)
    had[EDGES.src[EDGES.src == EDGES.dst]] = True
    return Graph.from_part(graph.comm, edges.indptr, edges.indices, added_loops=~had)


def parts(n_ranks, kind="random"):
    """Return the rank of each node, (N,), by `kind`: "random", "few" (rank 1 owns all nodes), or any other text for ranges of ids."""
    if kind == "few":
        return np.full(N, min(1, n_ranks - 1))
    return np.random.default_rng(n_ranks).integers(0, n_ranks, N) if kind == "random" else np.arange(N) * n_ranks // N


def loader_of(graph, **options):
    """Return a NeighborLoader over this rank's seeds on the test data; `options` are further options of the loader."""
    options = {"fanouts": (3, 4), "batch_size": 10, "seed": 3, **options}
    train = options.pop("train", np.isin(graph.dst_ids, SEEDS))
    return NeighborLoader(graph, X[graph.src_ids], LABELS[graph.dst_ids], train, **options)


class Weighted(nn.Module):
    """Model whose message function reads edge values and learned weights."""

    def __init__(self, rng, layers=3):
        widths = [N_IN, *[6] * (layers - 1), N_OUT]
        self.linears = [nn.Linear(a, b, rng=rng, dtype=np.float64) for a, b in zip(widths, widths[1:])]
        self.edge = values(8, 2000)

    def __call__(self, graph, h):
        for g, linear in zip(graph.layers(len(self.linears)), self.linears):
            g, h = g.enter(h)
            z, weight = linear(h), self.edge[g.edge_ids]
            h = g.aggregate(lambda s, d, e: s["z"] * e["w"] + (s["z"] * d["q"]).tanh(), "mean", src={"z": z}, dst={"q": g.dst(z)},
                            edge={"w": weight[:, None]}) + g.aggregate(fn.mul_edge(z, weight), "sum")
        return h


def trained(graph, name="sage", epochs=3, **options):
    """Train the model `name` on minibatches for some epochs; return (losses of all steps, flat parameters, loader)."""
    rng = nn.Random(0)
    common = {"layers": 2, "hidden": 8, "dropout": 0.3, "rng": rng, "dtype": np.float64}
    model = {"sage": lambda: SAGE(N_IN, N_OUT, **common), "gat": lambda: GAT(N_IN, N_OUT, heads=2, **common),
             "function": lambda: Weighted(rng, 2)}[name]()
    loader = loader_of(graph, **options)
    step = TrainingStep(model, optim.Adam(nn.flatten(model), 0.03), rng, graph.comm)
    losses = [step(b) for _ in range(epochs) for b in loader]
    return losses, nn.flatten(model).data.copy(), loader


def check_evaluation(graph, **options):
    """Train and evaluate on minibatches; check batch norm's averages and `predict`; return (scores, averages). Collective.

    The averages must be the moments of all nodes' rows, and `predict` must give the evaluated rows.
    """
    rng = nn.Random(0)
    model = SAGE(N_IN, N_OUT, layers=3, hidden=8, dropout=0.3, rng=rng, dtype=np.float64)
    loader = loader_of(graph, fanouts=(2, 2, 2), **options)
    train = np.isin(graph.dst_ids, SEEDS)
    trainer = Trainer(graph, model, X[graph.src_ids], LABELS[graph.dst_ids], train, ~train, rng=rng, batches=loader,
                      optimizer=lambda flat: optim.Adam(flat, 0.03))
    losses, averages = [], []
    for epoch in range(2):
        losses.append(trainer.epoch(epoch))
        scores = trainer.evaluate()
    h = Tensor(X[graph.src_ids])
    with no_grad():
        for conv, activation in zip(model.convs, model.activations):
            h, norm = conv(graph, h), activation.norm
            rows = np.concatenate(graph.comm.allgather(h.data))
            averages += [norm.running_mean, norm.running_var]
            np.testing.assert_allclose(averages[-2:], [rows.mean(0), rows.var(0, ddof=1)], rtol=1e-10, atol=1e-12)
            h = activation(h, graph)
    state, output = model.state_dict(), trainer.predict()
    assert all((array == state[name]).all() for name, array in model.state_dict().items())
    val = np.flatnonzero(~train)
    chosen = output[val] - output[val].max(1, keepdims=True)
    row_losses = np.log(np.exp(chosen).sum(1)) - chosen[np.arange(len(val)), LABELS[graph.dst_ids][val]]
    total = float(graph.comm.allreduce(np.array([row_losses.sum()]))[0])
    np.testing.assert_allclose(total / (N - len(SEEDS)), scores["val_loss"], rtol=1e-10)
    return [*losses, scores["val_accuracy"], scores["val_loss"]], averages


def picks(graph, **options):
    """Return a hash of the seeds and of the sampled edges of all ranks in two epochs of a `loader_of(graph, **options)`. Collective."""
    picked, loader = [], loader_of(graph, **options)
    for batch in (batch for _ in range(2) for batch in loader):
        picked += [(batch.step, -1, node) for node in batch.dst_ids[batch.rows].tolist()]
        for place, g in enumerate(batch.layers(len(loader.sampler.fanouts))):
            ends = np.cumsum(g.in_degrees)[:-1]
            picked += [(batch.step, place, node, *sorted(edge_ids.tolist()))
                       for node, edge_ids in zip(g.dst_ids.tolist(), np.split(g.edge_ids, ends))]
    everything = sorted(item for rank_picks in graph.comm.allgather(picked) for item in rank_picks)
    return hashlib.blake2b(repr(everything).encode()).hexdigest()


REMOTES = {"hec": HEC(limit=3), "demand": HEC(push="demand", delay=2, features="cache"), "at once": HEC(delay=0), "local": "local",
           "stand-ins": HEC(on_miss="local", features="cache")}
"""Ways to meet a remote neighbour that are other answers than one rank's."""

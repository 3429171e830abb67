"""Short trainings with exact numerics, and the hash of all that comes out, which nothing about how it was run may change.

    python -m tests.helpers.exact_runs sage float32        prints the hash of one rank, as of SARLITE_ISA
"""

import hashlib
import sys
from functools import cache

import numpy as np

from sarlite import Graph, Trainer, kernels, nn, optim
from sarlite.comm import Solo, threads
from sarlite.models import APPNP, GAT, GCN, SAGE

N_NODES, N_FEAT, N_CLASSES, HUB = 330, 10, 4, 300
MODELS = {
    "gcn": lambda **given: GCN(N_FEAT, N_CLASSES, layers=2, hidden=9, dropout=0.3, **given),
    "sage": lambda **given: SAGE(N_FEAT, N_CLASSES, layers=3, hidden=17, dropout=0.4, batch_norm=True, **given),
    "sage elu": lambda **given: SAGE(N_FEAT, N_CLASSES, layers=2, hidden=8, batch_norm=False, activation="elu", **given),
    "sage pool": lambda **given: SAGE(N_FEAT, N_CLASSES, layers=2, hidden=6, aggregator="max-pool", **given),
    "gat": lambda **given: GAT(N_FEAT, N_CLASSES, layers=2, hidden=3, heads=3, dropout=0.2, attention_dropout=0.4,
                               residual=True, batch_norm=True, **given),
    "gat paper": lambda **given: GAT(N_FEAT, N_CLASSES, form="paper", layers=2, hidden=4, heads=2, dropout=0.1,
                                     attention_dropout=0.1, **given),
    "appnp": lambda **given: APPNP(N_FEAT, N_CLASSES, hops=3, hidden=8, **given),
}  # fmt: skip


@cache
def data(dtype):
    """Edges with a hub, equal edges and isolated nodes; features of mixed scales; labels; training rows."""
    rng = np.random.default_rng(4)
    src, dst = (rng.zipf(1.5, 3000) % (N_NODES - 20) for _ in range(2))
    hub = rng.integers(0, N_NODES - 20, 2 * HUB)
    src, dst = np.concatenate([src, hub, np.full(HUB, 7)]), np.concatenate([dst, np.full(2 * HUB, 3), hub[:HUB]])
    x = rng.standard_normal((N_NODES, N_FEAT)) * 10.0 ** rng.integers(-3, 3, (N_NODES, 1))
    x[:, 1] *= 1e-20
    x[5] = 0
    labels = rng.integers(0, N_CLASSES, N_NODES)
    train = rng.random(N_NODES) < 0.3
    return (src, dst), x.astype(dtype), labels, train


def division(name, n_ranks):
    """Parts of the nodes: by a method, or by hand with a part of 1, one of 7 and one of no node."""
    if name != "by hand":
        return name
    parts = np.full(N_NODES, n_ranks - 1)
    sizes = [7, 1, 0][: n_ranks - 1]
    for rank, (end, n) in enumerate(zip(np.cumsum(sizes), sizes)):
        parts[end - n : end] = rank
    return np.random.default_rng(1).permutation(parts)


def work(comm, case, dtype, parts="random", order=None, epochs=2, n_threads=1, numerics="exact", **options):
    """Train on one rank; return (ids, what each rank has of its rows, what all ranks have alike)."""
    kernels.set_threads(n_threads)
    edges, x, labels, train = data(dtype)
    graph = Graph.from_edges(*edges, N_NODES, self_loops=case != "sage")
    if comm.size > 1:
        graph = graph.shard(comm, division(parts, comm.size), order=order, **options)
    ids, rng = graph.node_ids, nn.Random(3)
    model = MODELS[case](rng=rng, dtype=dtype)
    trainer = Trainer(graph, model, x[ids], labels[ids], train[ids], ~train[ids], optimizer=lambda flat: optim.Adam(flat, 0.01), rng=rng,
                      clip_norm=0.01 if case == "gcn" else None,
                      numerics=numerics if isinstance(numerics, str) else numerics(comm))
    losses = [trainer.step() for _ in range(epochs)]
    scores = trainer.evaluate()
    alike = [trainer.flat.data, trainer.flat.grad, np.array(losses), np.array([scores["val_loss"], scores["val_accuracy"]])]
    alike += [array for _, array in sorted(model.state_dict().items())]
    return ids, trainer.predict(), [a.copy() for a in alike]


def digest(n_ranks, case, dtype=np.float32, **options):
    """Return the hash of a training on n ranks, after a look at whether all ranks have the same."""
    found = [work(Solo(), case, dtype, **options)] if n_ranks == 1 else threads.run(n_ranks, work, case, dtype, **options)
    output = np.concatenate([rows for _, rows, _ in found])[np.argsort(np.concatenate([ids for ids, _, _ in found]))]
    hashes = {_hash([output, *alike]) for _, _, alike in found}
    assert len(hashes) == 1, "ranks differ"
    assert np.isfinite(output).all()
    return hashes.pop()


def _hash(arrays):
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


if __name__ == "__main__":
    for dtype in (np.float32, np.float64):
        for case in sys.argv[1:]:
            print(digest(1, case, dtype))

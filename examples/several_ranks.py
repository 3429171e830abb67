"""One step of a GAT on three ranks equals the step on one: a distributed run checked in a few lines.

Run it with `python examples/several_ranks.py` on three ranks as threads, or with `mpiexec -n 3 python
examples/several_ranks.py` on three ranks of MPI.
"""

import numpy as np

from sarlite import Graph, Tensor, nn
from sarlite.comm import launch, threads
from sarlite.models import GAT
from sarlite.tape import ops

N_NODES, N_FEATURES, N_CLASSES = 200, 8, 3


def problem():
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, N_NODES, (2, 2000))
    return Graph.from_edges(src, dst, N_NODES), rng.standard_normal((N_NODES, N_FEATURES)), rng.integers(0, N_CLASSES, N_NODES)


def gradients(graph, x, labels):
    """Return the gradient of the mean loss over all nodes, as one flat array; `graph`, `x` and `labels` may be one rank's part."""
    rng = nn.Random(seed=0)
    model = GAT(N_FEATURES, N_CLASSES, rng=rng, dtype=np.float64)
    flat = nn.flatten(model)
    loss = ops.cross_entropy(model(graph, Tensor(x)), labels, count=N_NODES)
    loss.backward()
    return graph.comm.allreduce(flat.grad)


def on_rank(comm):
    whole, x, labels = problem()
    expected = gradients(whole, x, labels)
    part = whole.shard(comm, "metis", mode="sar", prefetch=1)
    actual = gradients(part, x[part.node_ids], labels[part.node_ids])
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected), part.profile.peak_remote_buffers


def main():
    comm = launch.connect()
    error, buffers = on_rank(comm) if comm.size > 1 else threads.run(3, on_rank)[0]
    if comm.rank == 0:
        print(f"relative difference {error:.1e}, remote buffers held at most {buffers}")
    assert error < 1e-12 and buffers <= 2


if __name__ == "__main__":
    main()

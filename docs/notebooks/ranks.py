# %% [markdown]
# # A model and a message of your own, on several ranks
#
# A rank holds a part of the nodes, their features and their in-edges. Here ranks are threads of this notebook;
# the same function runs under `mpiexec`. The model has a message of its own: how much a neighbour says depends on
# the neighbour's row, the node's row and a value of the edge.

# %%
import numpy as np

from sarlite import Graph, Trainer, nn, optim
from sarlite.comm import threads

draw = np.random.default_rng(0)
n = 300
labels = draw.integers(0, 3, n)
src, dst = draw.integers(0, n, (2, 4500))
x = np.eye(3)[labels] + 1.5 * draw.standard_normal((n, 3))
trust = np.where(labels[src] == labels[dst], 0.9, 0.1) + 0.1 * draw.random(4500)  # a value an edge
graph = Graph.from_edges(src, dst, n)


# %% [markdown]
# A message is a function of tensors: a row an edge comes in, a row an edge goes out. The tape finds the parameters in it.

# %%
class TrustConv(nn.Module):
    """Layer whose message is tanh(source row + destination row), weighted by the trust of the edge."""

    def __init__(self, n_in, n_out, *, rng):
        self.own = nn.Linear(n_in, n_out, rng=rng, dtype=np.float64)
        self.theirs = nn.Linear(n_in, n_out, bias=False, rng=rng, dtype=np.float64)

    def __call__(self, graph, h):
        def message(src, dst, edge):
            return (src["z"] + dst["q"]).tanh() * edge["trust"]

        z, q = self.theirs(graph.src(h)), self.own(graph.dst(h))
        return q + graph.aggregate(message, "mean", src={"z": z}, dst={"q": q}, edge={"trust": trust[graph.edge_ids, None]})


class Net(nn.Module):
    """Two trust layers with a ReLU between them."""

    def __init__(self, *, rng):
        self.first, self.second = TrustConv(3, 16, rng=rng), TrustConv(16, 3, rng=rng)

    def __call__(self, graph, h):
        return self.second(graph, self.first(graph, h).relu())


# %% [markdown]
# Each rank takes its part of the graph, and its own rows of features, labels and splits.

# %%
def on_rank(comm):
    """Train on this rank's part; return losses, accuracy, number of edges and peak of remote buffers."""
    part, rng = graph.shard(comm, "contiguous"), nn.Random(seed=0)
    node_ids = part.node_ids
    trainer = Trainer(part, Net(rng=rng), x[node_ids], labels[node_ids], train=node_ids < 150, val=node_ids >= 150, rng=rng,
                      optimizer=lambda flat: optim.Adam(flat, 0.03))
    losses = [trainer.step() for epoch in range(30)]
    return losses, trainer.evaluate()["val_accuracy"], part.n_edges, part.profile.peak_remote_buffers


results = {ranks: threads.run(ranks, on_rank) for ranks in (1, 3)}
for ranks, by_rank in results.items():
    losses, accuracy, _, buffers = by_rank[0]
    print(f"{ranks} ranks: loss {losses[-1]:.12f}, accuracy {accuracy:.3f}, edges a rank {[edges for _, _, edges, _ in by_rank]}, "
          f"parts of peers held at once {buffers}")

# %% [markdown]
# The losses agree to rounding for every number of ranks, and a rank never holds more than two peers' parts at once:
# the part in use, and one that is fetched ahead.

# %%
one = np.array(results[1][0][0])
print(f"largest relative difference of 30 losses: {max(abs(np.array(by_rank[0][0]) / one - 1).max() for by_rank in results.values()):.1e}")
assert all(np.allclose(by_rank[0][0], one, rtol=1e-12) for by_rank in results.values())

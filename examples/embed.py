"""Train a model of your own on arrays of your own: no files, no command line, no MPI.

Run it with `python examples/embed.py`.
"""

import numpy as np

from sarlite import Graph, Trainer, fn, nn, optim


class SAGEConv(nn.Module):
    """GraphSAGE layer: h'_i = W_root h_i + mean_j W h_j."""

    def __init__(self, n_in, n_out, rng):
        self.root = nn.Linear(n_in, n_out, rng=rng)
        self.neighbour = nn.Linear(n_in, n_out, bias=False, rng=rng)

    def __call__(self, graph, h):
        return self.root(graph.dst(h)) + graph.aggregate(fn.linear(h, self.neighbour.weight), "mean")


class Model(nn.Module):
    """Model of two GraphSAGE layers with a ReLU and dropout between them."""

    def __init__(self, n_in, n_out, rng):
        self.first, self.second = SAGEConv(n_in, 16, rng), SAGEConv(16, n_out, rng)
        self.activate = nn.Activation(16, "relu", bias=False, dropout=0.5, rng=rng)

    def __call__(self, graph, h):
        return self.second(graph, self.activate(self.first(graph, h), graph))


def data(n=1000, n_classes=4):
    """Return (src, dst, x, labels) of n nodes in n_classes classes, with edges mostly within a class; the features are almost noise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_classes, n)
    src, dst = rng.integers(0, n, 40 * n), rng.integers(0, n, 40 * n)
    keep = (labels[src] == labels[dst]) | (rng.random(40 * n) < 0.1)
    x = np.eye(n_classes, dtype=np.float32)[labels] + 1.5 * rng.standard_normal((n, n_classes), dtype=np.float32)
    return src[keep], dst[keep], x, labels


def main():
    src, dst, x, labels = data()
    n = len(x)
    graph = Graph.from_edges(src, dst, n, undirected=True)
    rng = nn.Random(seed=0)
    trainer = Trainer(graph, Model(x.shape[1], 4, rng), x, labels, train=np.arange(0, n, 10), test=np.arange(5, n, 10),
                      optimizer=lambda flat: optim.Adam(flat, lr=0.01), rng=rng)
    for epoch in range(50):
        loss = trainer.step(epoch)
    accuracy = trainer.evaluate()["test_accuracy"]
    print(f"loss {loss:.4f}, test accuracy {accuracy:.3f}")
    assert accuracy > 0.9


if __name__ == "__main__":
    main()

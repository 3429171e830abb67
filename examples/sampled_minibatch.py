"""Train by sampled minibatches, with a loop of your own over the loader.

Run it with `python examples/sampled_minibatch.py`.
"""

import numpy as np

from sarlite import Graph, Tensor, nn, no_grad, optim
from sarlite.minibatch import NeighborLoader
from sarlite.models import SAGE
from sarlite.train.step import TrainingStep


def data(n=2000, n_classes=4):
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
    model = SAGE(x.shape[1], 4, layers=2, hidden=16, dropout=0.2, rng=rng)
    step = TrainingStep(model, optim.Adam(nn.flatten(model), lr=0.03), rng, graph.comm)
    loader = NeighborLoader(graph, x, labels, slice(0, n, 4), fanouts=(5, 10), batch_size=100)
    for epoch in range(15):
        losses = [step(batch) for batch in loader]
        print(f"epoch {epoch + 1}: {len(losses)} steps, mean loss {np.mean(losses):.4f}")
    model.eval()
    with no_grad():
        logits = model(graph, Tensor(x)).data  # evaluation is exact: on the whole graph
    accuracy = float((logits.argmax(1) == labels)[1::4].mean())
    print(f"test accuracy {accuracy:.3f}")
    assert accuracy > 0.9


if __name__ == "__main__":
    main()

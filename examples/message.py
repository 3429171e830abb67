"""Message functions of your own, built from tape operations: one with edge features and a learnable matrix, and an attention.

Run it with `python examples/message.py`.
"""

import numpy as np

from sarlite import Graph, Tensor, gradcheck, nn


def main():
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 20, (2, 60))
    graph = Graph.from_edges(src, dst, 20)
    z, q = (Tensor(rng.standard_normal((20, 4)), requires_grad=True) for _ in range(2))
    edge_weight = Tensor(rng.random((60, 1)), requires_grad=True)
    w = nn.Parameter(rng.standard_normal((4, 3)))

    def message(src, dst, edge):  # any tape expression, one row an edge
        return ((src["z"] + dst["q"]) @ w).tanh() * edge["weight"]

    def attention(src, dst, edge):  # (score, value), for the softmax over each node's in-edges
        return (src["z"] * dst["q"]).sum(-1), src["z"]

    def layer(z, q, edge_weight, w):
        strongest = graph.aggregate(message, "max", src={"z": z}, dst={"q": q}, edge={"weight": edge_weight})
        return strongest.sum() + graph.aggregate(attention, "softmax", src={"z": z}, dst={"q": q}).sum()

    gradcheck(layer, [z, q, edge_weight, w])
    print("gradients of z, q, the edge weights and w agree with finite differences")


if __name__ == "__main__":
    main()

"""Graph convolutional network (Kipf & Welling, 2017)."""

import numpy as np

from sarlite import fn, nn
from sarlite.nn import Dropout, Linear, Parameter


class GCNConv(nn.Module):
    """H' = D^-1/2 A D^-1/2 H W + b, with D the in-degrees; the graph's self loops make A the paper's A + I.

    Parameters
    ----------
    n_in, n_out : int
    rng : nn.Random
    """

    def __init__(self, n_in, n_out, *, bias=True, rng, dtype=np.float32):
        self.linear = Linear(n_in, n_out, bias=False, rng=rng, dtype=dtype)
        self.bias = Parameter(np.zeros(n_out, dtype)) if bias else None

    def __call__(self, graph, h):
        norm = (np.maximum(graph.in_degrees, 1) ** -0.5).astype(h.dtype)[:, None]
        h = graph.aggregate(fn.copy_src(self.linear(h) * norm), "sum") * norm[: graph.n_dst]
        return h if self.bias is None else h + self.bias


class GCN(nn.Module):
    """GCN layers with dropout on every layer's input and ReLU between.

    Parameters
    ----------
    n_in, n_out : int
        Features and classes.
    layers, hidden : int
    dropout : float
    batch_norm : bool
        Normalise before each ReLU; the layers below then have no bias, which it would take away.
    rng : nn.Random
    """

    self_loops = True

    def __init__(self, n_in, n_out, *, layers=2, hidden=16, dropout=0.5, batch_norm=False, rng, dtype=np.float32):
        widths = [n_in, *[hidden] * (layers - 1), n_out]
        last = layers - 1
        self.convs = [GCNConv(a, b, bias=not batch_norm or i == last, rng=rng, dtype=dtype)
                      for i, (a, b) in enumerate(zip(widths, widths[1:]))]
        self.norms = [nn.BatchNorm(hidden, dtype=dtype) for _ in range(last)] if batch_norm else []
        self.dropouts = [Dropout(dropout, rng) for _ in range(layers)]

    def __call__(self, graph, h):
        for i, (conv, dropout) in enumerate(zip(self.convs, self.dropouts)):
            h = conv(graph, dropout(h, graph.node_ids))
            if i < len(self.convs) - 1:
                h = (self.norms[i](h, graph.comm) if self.norms else h).relu()
        return h

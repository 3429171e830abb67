"""A model of your own for the training command: the file and its contract.

    python -m sarlite.train --model examples/own_model.py:Mixed --hidden 32 --ranks 2
    python examples/own_model.py                      the same, for a few epochs

The command calls Class(n_in, n_out, rng=..., dtype=..., and the flags of group "model" that are set). It then calls model(graph, h) with
h of shape (n_src, n_in) and expects logits of shape (n_dst, n_out). All ranks construct the same model, so random values come from `rng`.
"""

import sys
import tempfile

import numpy as np

from sarlite import fn, nn


class MixedConv(nn.Module):
    """Graph convolution h'_i = W_root h_i + W_mean mean_j h_j + W_max max_j h_j + b.

    The bias b is left out before a batch norm, which cancels it.
    """

    def __init__(self, n_in, n_out, *, bias, rng, dtype):
        self.root = nn.Linear(n_in, n_out, bias=bias, rng=rng, dtype=dtype)
        self.mean, self.max = (nn.Linear(n_in, n_out, bias=False, rng=rng, dtype=dtype) for _ in range(2))

    def __call__(self, graph, h):
        x = graph.src(h)  # the source rows; graph.dst(h) are the destinations' own
        return (self.root(graph.dst(h)) + graph.aggregate(fn.linear(x, self.mean.weight), "mean")
                + self.max(graph.aggregate(fn.copy_src(x), "max")))


class Mixed(nn.Module):
    """Model of two MixedConv layers with batch norm, ReLU and dropout between them."""

    self_loops = False  # optional: True adds missing self loops unless --self-loops is given

    def __init__(self, n_in, n_out, *, hidden=16, dropout=0.5, rng, dtype=np.float32):  # --hidden and --dropout set these
        self.convs = [MixedConv(n_in, hidden, bias=False, rng=rng, dtype=dtype),
                      MixedConv(hidden, n_out, bias=True, rng=rng, dtype=dtype)]
        self.activation = nn.Activation(hidden, "relu", batch_norm=True, dropout=dropout, rng=rng, dtype=dtype)

    def __call__(self, graph, h):
        for k, g in enumerate(graph.layers(len(self.convs))):  # the graph that each layer computes on
            g, h = g.enter(h)
            h = self.convs[k](g, h)
            h = h if k else self.activation(h, g)
        return h


def main():
    from sarlite.train.__main__ import main as train

    with tempfile.TemporaryDirectory() as folder:
        sys.exit(train(["--model", f"{__file__}:Mixed", "--data", "sbm:nodes=1000", "--hidden", "32", "--epochs", "20", "--ranks", "2",
                        "--progress", "lines", "--run-dir", f"{folder}/run"]))


if __name__ == "__main__":
    main()

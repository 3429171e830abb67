"""Layered: base class of models that are a sequence of graph layers; Conv: base class of one graph layer."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sarlite import Graph, LayerGraph, Tensor, nn
from sarlite.nn import Activation, Dropout


class Conv(nn.Module):
    """Base class of a graph layer: a function of a graph and the rows of the graph's sources."""

    def __call__(self, graph: LayerGraph, h: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Return the output rows of the graph's destinations, (n_dst, n_out), from the rows of its sources, (n_src, n_in). Collective.

        Parameters
        ----------
        graph : LayerGraph
            The whole graph, this rank's part, or one layer of a batch.
        h : Tensor (n_src, n_in), or pair of Tensors
            On a bipartite graph the pair (rows of the sources, rows of the destinations).
        """
        raise NotImplementedError


class Layered(nn.Module):
    """Base class of models that are a sequence of graph layers, with an activation after every layer but the last.

    Input dropout, layer, activation, layer, ..., activation, layer. An activation is batch norm or a bias, then the
    function, then dropout.

    Attributes
    ----------
    convs : list of Conv
        The layers.
    activations : list of Activation
        One for every layer but the last.
    input_dropout : Dropout, or None
        Dropout of the features.
    overwrites : bool
        True if an activation may overwrite the output of a layer in place, because no gradient reads that output.
    hidden_options : tuple of str
        Names of the parameters that have no effect on a model of one layer.
    """

    convs: Sequence[Conv]
    activations: Sequence[Activation]
    input_dropout: Dropout | None = None
    overwrites = True
    hidden_options: tuple[str, ...] = ("hidden", "batch_norm", "activation", "dropout")

    def make_convs(self, conv: Callable[..., Conv], n_in: int, n_out: int, layers: int, hidden: int) -> None:
        """Assign `self.convs`, `layers` layers that conv(n_in, n_out, bias=...) makes, with `hidden` columns between layers. Only the
        last has a bias, because the activation after every other layer adds one.

        Parameters
        ----------
        conv : callable
            Function (n_in, n_out, bias=bool) -> Conv.
        n_in, n_out, layers, hidden : int
            Width of the input; width of the output; number of layers; width between layers.
        """
        self.takes, layers, hidden = n_in, nn.check_int("layers", layers, 1), nn.check_int("hidden", hidden, 1)
        widths = [n_in, *[hidden] * (layers - 1), n_out]
        self.convs = [conv(a, b, bias=k == layers - 1) for k, (a, b) in enumerate(zip(widths, widths[1:]))]

    def make_activations(self, width: int, kind: str, *, batch_norm: bool = False, bias: bool = True, dropout: float = 0.0,
                         rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        """Assign `self.activations`, a list of an `nn.Activation` for each layer but the last. Each gets rows of `width` columns
        and has the activation function `kind`, such as "relu"; the other arguments are passed on to it.
        """
        self.activations = [Activation(width, kind, batch_norm=batch_norm, bias=bias, dropout=dropout, rng=rng, dtype=dtype)
                            for _ in self.convs[1:]]

    def first_layer(self) -> list[nn.Module]:
        """Return the modules of the model's first layer, which a row of features passes first: the graph layer and its activation."""
        return [self.convs[0], *self.activations[:1]]

    def __call__(self, graph: Graph, h: Tensor) -> Tensor:
        """Return the output rows, (n_dst, n_out), from the features of the nodes, (n_src, n_in). Collective."""
        for k, g in enumerate(graph.layers(len(self.convs))):
            g, h = g.enter(h)
            if k == 0 and self.input_dropout is not None:
                h = self.input_dropout(h, g.src_ids)
            h = self.convs[k](g, h)
            if k < len(self.activations):
                h = self.activations[k](h, g, overwrite=self.overwrites)
        return h

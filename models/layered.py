"""Models of consecutive layers, with normalisation, activation and dropout between them."""

from collections.abc import Callable, Sequence
from typing import Any

from sarlite import Graph, Tensor, nn
from sarlite.nn import Activation, Dropout


class Layered(nn.Module):
    """A model whose layers each take a graph: dropout of the input, a layer, what stands between, the next layer, ...

    Models have these parameters in common:

    Parameters
    ----------
    n_in, n_out : int
        Features and classes.
    layers, hidden : int
    dropout : float
        Of each layer's input, but the first one's.
    input_dropout : float, optional
        Of the first layer's input; as `dropout` without it. With 0 a constant input is aggregated only once.
    batch_norm : bool
        Normalise before each activation, in place of the bias of the layer below.
    activation : {"relu", "elu"}
    rng : nn.Random

    Attributes
    ----------
    convs : list of Module
        conv(graph, h) -> (n_dst, any).
    activations : list of Activation
        One less: what stands behind each layer but the last.
    input_dropout : Dropout, optional
        Of the first layer's input.
    overwrites : bool
        Whether an activation may be written over the layer's output, which no gradient then reads.
    hidden_options : tuple of str
        Parameters without effect on a model of one layer.
    """

    convs: Sequence[Any]
    activations: Sequence[Activation]
    input_dropout: Dropout | None = None
    overwrites = True
    hidden_options: tuple[str, ...] = ("hidden", "batch_norm", "activation", "dropout")

    def make_convs(self, conv: Callable[..., Any], n_in: int, n_out: int, layers: int, hidden: int) -> None:
        """Make the layers: conv(n_in, n_out, bias=...), of which the last alone has a bias."""
        self.takes, layers, hidden = n_in, nn.whole("layers", layers, 1), nn.whole("hidden", hidden, 1)
        widths = [n_in, *[hidden] * (layers - 1), n_out]
        self.convs = [conv(a, b, bias=k == layers - 1) for k, (a, b) in enumerate(zip(widths, widths[1:]))]

    def make_activations(self, width: int, kind: str, **options: Any) -> None:
        """Make the activation after each layer except the last; see `Activation` for the options."""
        self.activations = [Activation(width, kind, **options) for _ in self.convs[1:]]

    def first_layer(self) -> list[nn.Module]:
        """Return the modules that precede the second layer."""
        return [self.convs[0], *self.activations[:1]]

    def __call__(self, graph: Graph, h: Any) -> Tensor:
        for k, g in enumerate(graph.layers(len(self.convs))):
            g, h = g.enter(h)
            if k == 0 and self.input_dropout is not None:
                h = self.input_dropout(h, g.src_ids)
            h = self.convs[k](g, h)
            if k < len(self.activations):
                h = self.activations[k](h, g, overwrite=self.overwrites)
        return h

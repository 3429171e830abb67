"""Layers one behind another, and what stands between two of them."""

from collections.abc import Sequence
from typing import Any

from sarlite import Graph, Tensor, nn
from sarlite.nn import Activation, Dropout


class Layered(nn.Module):
    """A model whose layers each take a graph: dropout of the input, a layer, what stands between, the next layer, and so on.

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
    """

    convs: Sequence[Any]
    activations: Sequence[Activation]
    input_dropout: Dropout | None = None
    overwrites = True

    def first_layer(self) -> list[nn.Module]:
        """Return what stands before the second layer."""
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

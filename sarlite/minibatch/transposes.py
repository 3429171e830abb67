"""The transposes that backward asks for, learned from batches that were used and made ahead for later ones."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sarlite.minibatch.picked import PickedGraph, PickedRelations
from sarlite.structure.block import TRANSPOSES, Edges


class _Place(NamedTuple):
    """Of a transpose: the layer, the block, which of the block's halves or 0 for all of it, and what is made."""

    layer: int
    block: int
    part: int
    name: str


class Transposes:
    """Knows which transposes a model's backward pass asks for, which may differ by layer: that of constant features
    mostly asks for none.

    A transpose is the same whoever makes it, so this decides nothing but which thread does. A cached layer's graph is
    made as it is entered, so of those nothing is made ahead.
    """

    def __init__(self) -> None:
        self._used: frozenset[_Place] = frozenset()

    def learn(self, graphs: Sequence[Any]) -> None:
        """Note what there is of a batch that was used; what was made for nothing is made again for later ones."""
        blocks = ((layer, block, edges) for layer, graph in enumerate(graphs)
                  if isinstance(graph, (PickedGraph, PickedRelations))
                  for block, edges in enumerate(graph.all_blocks))
        self._used |= {_Place(layer, block, part, name) for layer, block, edges in blocks
                       for part, some in enumerate(_parts(edges)) for name in TRANSPOSES if name in vars(some)}

    def make(self, graphs: Sequence[Any]) -> None:
        """Make what was asked for of earlier batches."""
        for layer, block, part, name in sorted(self._used):
            edges = graphs[layer].all_blocks[block]
            getattr((edges, *edges.halves)[part] if part else edges, name)


def _parts(edges: Edges) -> tuple[Edges, ...]:
    """A block, and its halves where they were asked for."""
    return (edges, *vars(edges).get("halves", ()))

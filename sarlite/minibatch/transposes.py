"""Transposes of CSR blocks for the backward pass: the first batch records which layers need them, and for later batches they are
computed before the backward pass asks for them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sarlite.minibatch.picked import PickedGraph, PickedRelations
from sarlite.structure.block import TRANSPOSES, Bundle, Edges


class _Place(NamedTuple):
    """Key of a transposed block that a backward pass used: number of the layer, number of the block, half of the block, and name of
    the attribute that holds the transpose. The half is 0 for the whole block, else 1 or 2.
    """

    layer: int
    block: int
    part: int
    name: str


class Transposes:
    """Record of the layers whose backward pass needs transposed blocks of edges, so that a later batch computes them in advance.

    The set differs by layer: for constant features the backward pass usually needs no transposed block. The record only decides which
    thread computes a transpose, never its values. The graph of a cached layer is made when it is entered, so its
    transposes are never computed ahead.
    """

    def __init__(self) -> None:
        self._used: frozenset[_Place] = frozenset()

    def learn(self, graphs: Sequence[object]) -> None:
        """Record which transposes were computed in `graphs`, the layers' graphs of a batch after its backward pass, so that `make`
        computes them for later batches.
        """
        blocks = ((layer, block, edges) for layer, graph in enumerate(graphs)
                  if isinstance(graph, (PickedGraph, PickedRelations))
                  for block, edges in enumerate(graph.all_blocks))
        self._used |= {_Place(layer, block, part, name) for layer, block, edges in blocks
                       for part, some in enumerate(_parts(edges)) for name in TRANSPOSES if name in vars(some)}

    def make(self, graphs: Sequence[PickedGraph | PickedRelations]) -> None:
        """Compute the transposed CSR blocks that the backward pass of a new batch will need, and store them in `graphs`, the graphs of the
        batch's layers. `learn` has recorded from earlier batches which layers need them.
        """
        for layer, block, part, name in sorted(self._used):
            edges = graphs[layer].all_blocks[block]
            getattr((edges, *edges.halves)[part] if part else edges, name)


def _parts(block: Edges | Bundle) -> tuple[Edges | Bundle, ...]:
    """Return (block, its first half, its second half), or (block,) if no halves were made."""
    return (block, *vars(block).get("halves", ()))

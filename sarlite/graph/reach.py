"""Receptive field of a model: the number of hops that a node's output depends on, recorded while the model runs."""

from collections.abc import Sequence
from typing import Any

from sarlite.graph.gated_edges import StandIn
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import HeteroGraph, NodeType


class Reach:
    """Counts of the layers and aggregations that a model has asked of a graph, which bound its receptive field.

    Attributes
    ----------
    n_layers : int
        Layers that the model asked `graph.layers` for.
    n_aggregations : int
    of_source_degrees : bool
        True if messages were divided by the degrees of their sources.
    """

    def __init__(self) -> None:
        self.n_layers, self.n_aggregations, self.of_source_degrees = 0, 0, False

    @property
    def hops(self) -> int:
        """Receptive field of the model in hops: the output of a node depends on no node that is more edges away. This is the number
        of layers that the model asked for, or of its aggregations if it asked for no layers.
        """
        return self.n_layers or self.n_aggregations

    def of(self, graph: Graph | NodeType) -> Any:
        """Return a wrapper of `graph` to run a model on; this object counts the layers and aggregations that the model asks the
        wrapper for.
        """
        return _WatchedNodes(graph, self) if isinstance(graph, NodeType) else _Watched(graph, self)


class _Watched(StandIn):
    def __init__(self, graph: Graph | HeteroGraph, reach: Reach) -> None:
        super().__init__(graph)
        self._reach = reach

    def layers(self, n: int) -> Sequence[object]:
        self._reach.n_layers += n
        return [self] * n

    def aggregate(self, message: object, reducer: str, *inputs: object, **options: object) -> object:
        self._reach.n_aggregations += 1
        self._reach.of_source_degrees |= reducer == "sym"
        return self._graph.aggregate(message, reducer, *inputs, **options)


class _WatchedNodes(StandIn):
    def __init__(self, nodes: NodeType, reach: Reach) -> None:
        super().__init__(nodes)
        self._layer = _Watched(nodes.graph, reach)

    def layers(self, n: int) -> Sequence[object]:
        return self._layer.layers(n)

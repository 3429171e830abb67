"""Graphs that multiply each message by a learnable gate on its edge, to measure how much a model's output depends on the edge.

A gate of 1 leaves an edge as it is, and a gate of 0 makes its message 0. Degrees, and the sums that a softmax divides by,
stay those of all edges, so the output is a continuous function of the gates. Graphs are whole: no rows come from peers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sarlite.graph.array_checks import Relation
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import HeteroGraph, NodeType
from sarlite.graph.layer_graph import LayerGraph
from sarlite.graph.weights import in_edge_order
from sarlite.operators import fn
from sarlite.operators.as_message import attended, counted
from sarlite.operators.operator_table import SUMS
from sarlite.tape import Tensor
from sarlite.types import T

Gates = Mapping[Relation | None, Tensor]
"""A gate for each edge of each relation, (n_edges,), in the order of edge values; a plain graph's relation is None."""

AnyMessage = fn.BuiltIn | fn.MessageFunction
"""A built-in message of `fn`, or a message that the user wrote as a Python function."""


def gated(graph: Graph | NodeType, gates: Gates) -> Any:
    """Wrap a graph so that its aggregations multiply each message by a gate, a learnable number of the edge. `gates` maps a
    relation (None for a Graph) to its gates, a Tensor (n_edges,); relations without gates are computed as before.

    Parameters
    ----------
    graph : Graph or NodeType
    gates : dict of relation to Tensor (n_edges,)
        One gate an edge, in the order of edge values; of a `Graph` under the key None. The dtype is that of the rows.
        Relations without gates are computed as they are.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, fn
    >>> graph = Graph.from_edges([0, 1], [1, 1], 2)
    >>> gate = Tensor(np.array([1.0, 0.5]), requires_grad=True, placement="rows")
    >>> out = gated(graph, {None: gate}).aggregate(fn.copy_src(Tensor(np.array([[4.0], [8.0]]))), "mean")
    >>> out.data.tolist()
    [[0.0], [4.0]]
    """
    if isinstance(graph, NodeType):
        return _GatedNodes(graph, gates)
    return _GatedGraph(graph, gates[None]) if None in gates else graph


class StandIn:
    """Base class of wrappers of a graph: attributes that the wrapper does not define are taken from the graph."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_graph"], name)

    def layers(self, n: int) -> Sequence[object]:
        return [self] * n

    def enter(self, h: T) -> tuple["StandIn", T]:
        return self, h


class _GatedGraph(StandIn):
    def __init__(self, graph: LayerGraph, gate: Tensor) -> None:
        super().__init__(graph)
        self._gate = gate

    def aggregate(self, message: AnyMessage, reducer: str, src: fn.Inputs | None = None, dst: fn.Inputs | None = None,
                  edge: fn.Inputs | None = None) -> Tensor:
        message = fn.message(message, src, dst, edge) if callable(message) else message
        return self._graph.aggregate(*_gated(self._graph, message, reducer, self._gate))


class _GatedNodes(StandIn):
    def __init__(self, nodes: NodeType, gates: Gates) -> None:
        super().__init__(nodes)
        self._relations = _GatedRelations(nodes.graph, gates)

    def layers(self, n: int) -> Sequence[object]:
        return [self._relations] * n


class _GatedRelations(StandIn):
    def __init__(self, graph: HeteroGraph, gates: Gates) -> None:
        super().__init__(graph)
        self._gates = gates

    def aggregate(self, messages: Mapping[Relation, Any], reducer: str, **options: Any) -> dict[str, Tensor]:
        plain = {relation: message for relation, message in messages.items() if relation not in self._gates}
        sums = self._graph.aggregate(plain, reducer, **options)
        graphs = {relation: graph for fetch in self._graph.by_source(messages) for relation, graph in fetch.items()}
        for relation in messages.keys() - plain.keys():
            message = fn.message(messages[relation]) if callable(messages[relation]) else messages[relation]
            message, how = _gated(graphs[relation], message, reducer, self._gates[relation])
            for name, out in self._graph.aggregate({relation: message}, how).items():
                sums[name] = sums[name] + out if name in sums else out
        return sums


def _gated(graph: LayerGraph, message: fn.BuiltIn, reducer: str, gate: Tensor) -> tuple[fn.BuiltIn, str]:
    """Return a (message, reducer) for an aggregation over `graph` that multiplies each message by its edge's entry of `gate`,
    (n_edges,), and otherwise gives the result of `message` and `reducer`.
    """
    if isinstance(message, fn.Linear):
        message = fn.copy_src(message.x @ message.weight)
    if isinstance(message, fn.CopySrc) and reducer in SUMS:
        return _gated_sum(graph, message.x, reducer, gate)
    if isinstance(message, fn.CopySrc):
        message = fn.message(lambda src, dst, edge: src["x"], {"x": message.x})
    if isinstance(message, fn.MulEdge):
        by_edge = gate.reshape(-1, *[1] * (message.weight.ndim - 1)) * message.weight
        return message._replace(weight=by_edge), reducer
    if isinstance(message, fn.AttendLinear):
        message = _attend(message)
    if isinstance(message, fn.Attend):
        if message.z.shape[1] < message.src.shape[1]:
            message = message._replace(z=message.z * np.ones((1, message.src.shape[1], 1), message.z.dtype))
        message, reducer = attended(graph, message), "softmax"
    return counted(message, gate), reducer


def _gated_sum(graph: LayerGraph, x: Tensor, reducer: str, gate: Tensor) -> tuple[fn.MulEdge, str]:
    factors = graph.edge_factors(reducer, x.dtype)
    if factors is not None:
        return fn.mul_edge(x, gate * factors), "sum"
    if reducer != "sym":
        return fn.mul_edge(x, gate), reducer
    of_rows, of_columns = graph.scales("sym")
    assert of_rows is not None and of_columns is not None
    of_edges = in_edge_order(np.repeat(of_rows, graph.in_degrees), graph.edges_of(graph.plan.local).numbers)
    scaled = x * of_columns.reshape(-1, *[1] * (x.ndim - 1)).astype(x.dtype)
    return fn.mul_edge(scaled, gate * of_edges.astype(x.dtype)), "sum"


def _attend(message: fn.AttendLinear) -> fn.Attend:
    """Multiply the rows and scores of the attention message `message` by its weights, and return them as an `Attend`: the same attention of
    rows that are multiplied already.
    """
    n_heads, dst = message.src_weight.shape[1], message.dst
    z = (message.x @ message.weight).reshape(len(message.x), n_heads, message.weight.shape[1] // n_heads)
    dst = dst if message.dst_weight is None else dst @ message.dst_weight
    return fn.Attend(z, message.x @ message.src_weight, dst, message.slope, message.dropout, message.key)

"""Attribution of one output of a model to its inputs and edges, by occlusion and by integrated gradients.

Integrated gradients: Sundararajan, Taly & Yan (2017), Eq. 1. On a path from a baseline to the inputs the gradient is
integrated by Gauss-Legendre quadrature, which is exact where the score is a polynomial of the place on the path.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from sarlite.data.graph_tables import NODE, RELATION
from sarlite.graph.array_checks import Relation
from sarlite.graph.gated_edges import gated
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import NodeType
from sarlite.nn import Module
from sarlite.operators import fn
from sarlite.structure.part_edges_csr import InEdges
from sarlite.tape import Tensor, no_grad, ops
from sarlite.types import Array


class Inputs(NamedTuple):
    """Values that a model computes a prediction from, or an attribution to each of these values.

    Attributes
    ----------
    x : dict of str to (n, n_columns) array
        Input rows by node type; of a graph of one type under the key "node".
    learned : dict of str to (n, n_feat) array
        Learned rows, by the name of the model's parameter.
    """

    x: dict[str, Array]
    learned: dict[str, Array]

    def on_path(self, baseline: "Inputs", place: float) -> "Inputs":
        """Return the values at a place from 0, the baseline, to 1, these values."""
        return Inputs(*({name: (baseline_of[name] + place * (values[name] - baseline_of[name])).astype(values[name].dtype)
                         for name in values} for values, baseline_of in zip(self, baseline)))


class Scorer:
    """One number that a model computes for one node: a function of the input rows, the learned rows and the edges.

    Parameters
    ----------
    model : Module
        In evaluation mode. Its learned rows are changed, and its other parameters take no gradient from here on.
    graph : Graph or NodeType
        A whole graph.
    inputs : Inputs
        The learned rows are those of the parameters that are owned by rows.
    row : int
        Row of the node in the model's output.
    score : callable
        Maps the node's output, (1, n_outputs), to a Tensor of one number.
    """

    def __init__(self, model: Module, graph: Graph | NodeType, inputs: Inputs, row: int,
                 score: Callable[[Tensor], Tensor]) -> None:
        self.model: Any = model
        self.graph, self.inputs, self.row, self.score = graph, inputs, row, score
        self._learned = {name: p for name, p in model.named_parameters() if name in inputs.learned}
        for parameter in model.parameters():
            parameter.requires_grad = any(parameter is own for own in self._learned.values())

    def output(self, x: Mapping[str, Tensor], graph: Any = None) -> Tensor:
        """Return the model's output for the node, (1, n_outputs)."""
        graph = self.graph if graph is None else graph
        rows: Any = x if isinstance(self.graph, NodeType) else self._propagated(graph, x[NODE])
        return self.model(graph, rows)[self.row : self.row + 1]

    def value(self, inputs: Inputs | None = None, graph: Any = None) -> float:
        """Return the score of some inputs, by default the model's, on some edges, by default all."""
        with no_grad():
            x = self._tensors(self.inputs if inputs is None else inputs, False)
            return float(self.score(self.output(x, graph)).item())

    def plain_output(self) -> Array:
        """Return the model's output for the node, (n_outputs,)."""
        with no_grad():
            return self.output(self._tensors(self.inputs, False)).data[0]

    def gradients(self, inputs: Inputs) -> Inputs:
        """Return the gradients of the score with respect to the inputs."""
        x = self._tensors(inputs, True)
        self.score(self.output(x)).backward()
        return Inputs({name: _gradient(own) for name, own in x.items()},
                      {name: _gradient(own) for name, own in self._learned.items()})

    def gate_gradients(self, gates: Mapping[Relation, Array]) -> dict[Relation, Array]:
        """Return the gradients of the score with respect to a gate on each edge."""
        tensors, x = self._gates(gates, True), self._tensors(self.inputs, False)
        self.score(self.output(x, self._gated(tensors))).backward()
        return {relation: _gradient(gate) for relation, gate in tensors.items()}

    def gated_value(self, gates: Mapping[Relation, Array]) -> float:
        """Return the score with a gate on each edge."""
        return self.value(graph=self._gated(self._gates(gates, False)))

    def value_without(self, relation: Relation, edge: int) -> float:
        """Return the score on the graph without an edge, as if the data did not have the edge."""
        if isinstance(self.graph, NodeType):
            whole = self.graph.graph
            kept = _all_but(edge, whole.in_edges(relation))
            return self.value(graph=whole.subgraph({relation: kept}).of(*self.graph.node_types))
        return self.value(graph=self.graph.subgraph(_all_but(edge, self.graph.in_edges())))

    def _tensors(self, inputs, requires_grad):
        for name, parameter in self._learned.items():
            parameter.data[...] = inputs.learned[name]
            parameter.changed()
            parameter.requires_grad, parameter.grad = requires_grad, None
        return {name: Tensor(values, requires_grad and values.dtype.kind == "f", placement="rows")
                for name, values in inputs.x.items()}

    def _gates(self, gates, requires_grad):
        dtype = next(iter({**self.inputs.x, **self.inputs.learned}.values())).dtype
        return {relation: Tensor(values.astype(dtype), requires_grad, placement="rows")
                for relation, values in gates.items()}

    def _gated(self, gates):
        return gated(self.graph, gates if isinstance(self.graph, NodeType) else {None: gates[RELATION]})

    def _propagated(self, graph, x):
        """Return the input rows of a model that takes powers of S X side by side, or x itself for another model."""
        powers = getattr(self.model, "powers", None)
        if powers is None:
            return x
        rows = {0: x}
        for k in range(1, max(powers) + 1):
            rows[k] = graph.aggregate(fn.copy_src(rows[k - 1]), "sym")
        return ops.concat([rows[k] for k in powers], 1)


def _all_but(edge: int, edges: InEdges) -> Array:
    """Return True for each edge but one, which is given by its place in the order of edge values."""
    return (np.arange(len(edges.indices)) if edges.numbers is None else edges.numbers) != edge


def _gradient(tensor):
    return np.zeros(tensor.shape) if tensor.grad is None else tensor.grad.astype(np.float64)


def integrate_inputs(scorer: Scorer, baseline: Inputs, steps: int) -> Inputs:
    """Return the integrated gradients of the inputs on the path from a baseline; they add up to the change of the score."""
    total = [{name: np.zeros(values.shape) for name, values in own.items()} for own in scorer.inputs]
    for place, weight in quadrature(steps):
        found = scorer.gradients(scorer.inputs.on_path(baseline, place))
        for sums, gradients in zip(total, found):
            for name, gradient in gradients.items():
                sums[name] += weight * gradient
    return Inputs(*({name: gradient * (values[name].astype(np.float64) - start[name]) for name, gradient in sums.items()}
                    for sums, values, start in zip(total, scorer.inputs, baseline)))


def integrate_edges(scorer: Scorer, chosen: Mapping[Relation, Array], steps: int) -> dict[Relation, Array]:
    """Return the integrated gradients of gates on the chosen edges, from 0 to 1; the other gates are 1.

    Parameters
    ----------
    scorer : Scorer
    chosen : dict of relation to (n_edges,) bool
    steps : int
    """
    total = {relation: np.zeros(len(own)) for relation, own in chosen.items()}
    for place, weight in quadrature(steps):
        gates = {relation: np.where(own, place, 1.0) for relation, own in chosen.items()}
        for relation, gradient in scorer.gate_gradients(gates).items():
            total[relation] += weight * gradient
    return {relation: gradient * chosen[relation] for relation, gradient in total.items()}


def quadrature(steps: int) -> Iterator[tuple[float, float]]:
    """Yield the places and weights of Gauss-Legendre quadrature on [0, 1]."""
    places, weights = np.polynomial.legendre.leggauss(steps)
    yield from zip(((places + 1) / 2).tolist(), (weights / 2).tolist())


def occluded(inputs: Inputs, baseline: Inputs, node_type: str, columns: Any) -> Inputs:
    """Return the inputs with some columns of a node type at the baseline."""
    rows = inputs.x[node_type].copy()
    rows[:, columns] = np.broadcast_to(baseline.x[node_type], rows.shape)[:, columns]
    return inputs._replace(x={**inputs.x, node_type: rows})

"""Attribution of one output of a model to its inputs and edges, by occlusion and by integrated gradients.

Integrated gradients (Sundararajan, Taly & Yan 2017, Eq. 1) integrate the gradient on the straight path from a baseline
to the inputs. The integral is computed by Gauss-Legendre quadrature.
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
    """Input arrays of a model: features by node type, and learned rows by parameter. An instance may also hold other numbers of the same
    shapes, such as attributions.

    Attributes
    ----------
    x : dict of str to (n, n_columns) array
        Input rows by node type. The only type of a graph without types is "node".
    learned : dict of str to (n, n_feat) array
        Learned rows, by the name of the model's parameter.
    """

    x: dict[str, Array]
    learned: dict[str, Array]

    def on_path(self, baseline: "Inputs", fraction: float) -> "Inputs":
        """Return the point at `fraction` of the straight line from the inputs `baseline` (fraction 0) to these inputs (fraction 1).

        Examples
        --------
        >>> inputs, zeros = Inputs({"node": np.array([[2.0, 4.0]])}, {}), Inputs({"node": np.zeros((1, 2))}, {})
        >>> inputs.on_path(zeros, 0.5).x["node"].tolist()
        [[1.0, 2.0]]
        """
        return Inputs(*({name: (baseline_of[name] + fraction * (values[name] - baseline_of[name])).astype(values[name].dtype)
                         for name in values} for values, baseline_of in zip(self, baseline)))


class Scorer:
    """Function that computes the score of one node, a number that is derived from the model's output, for given input rows, learned rows
    and edges.

    Parameters
    ----------
    model : Module
        Model in evaluation mode. The scorer changes its learned rows, and turns off the gradients of other parameters.
    graph : Graph or NodeType
        A whole graph, not divided among ranks.
    inputs : Inputs
        Input rows, and the rows of each parameter that is owned by rows.
    row : int
        Row number of the node in the model's output.
    score : callable
        Function from the node's output, a Tensor (1, n_outputs), to a Tensor with one value.
    """

    def __init__(self, model: Module, graph: Graph | NodeType, inputs: Inputs, row: int,
                 score: Callable[[Tensor], Tensor]) -> None:
        self.model: Any = model
        self.graph, self.inputs, self.row, self.score = graph, inputs, row, score
        self._learned = {name: p for name, p in model.named_parameters() if name in inputs.learned}
        for parameter in model.parameters():
            parameter.requires_grad = any(parameter is learned for learned in self._learned.values())

    def output(self, x: Mapping[str, Tensor], graph: Graph | NodeType | None = None) -> Tensor:
        """Return the model's output for the scored node, (1, n_outputs), from the input rows `x` by node type. `graph` takes the place of
        the scorer's graph unless it is None.
        """
        graph = self.graph if graph is None else graph
        rows: Any = x if isinstance(self.graph, NodeType) else self._propagated(graph, x[NODE])
        return self.model(graph, rows)[self.row : self.row + 1]

    def value(self, inputs: Inputs | None = None, graph: Graph | NodeType | None = None) -> float:
        """Return the node's score. `inputs` and `graph` take the place of the scorer's own inputs and graph unless they are None."""
        with no_grad():
            x = self._tensors(self.inputs if inputs is None else inputs, False)
            return float(self.score(self.output(x, graph)).item())

    def plain_output(self) -> Array:
        """Return the model's output for the scored node, (n_outputs,), with the scorer's own inputs and graph."""
        with no_grad():
            return self.output(self._tensors(self.inputs, False)).data[0]

    def gradients(self, inputs: Inputs) -> Inputs:
        """Return the gradients of the explained score with respect to the input rows and the learned embedding rows, as `Inputs`, at the
        point `inputs`.
        """
        x = self._tensors(inputs, True)
        self.score(self.output(x)).backward()
        return Inputs({name: _gradient(tensor) for name, tensor in x.items()},
                      {name: _gradient(tensor) for name, tensor in self._learned.items()})

    def gate_gradients(self, gates: Mapping[Relation, Array]) -> dict[Relation, Array]:
        """Return the gradients of the score with respect to `gates`: factors, one for each edge, that multiply the messages of the edges.
        `gates` and the result have an array (n_edges,) for each relation.

        Parameters
        ----------
        gates : dict of relation to (n_edges,) array

        Returns
        -------
        dict of relation to (n_edges,) float64
        """
        tensors, x = self._gates(gates, True), self._tensors(self.inputs, False)
        self.score(self.output(x, self._gated(tensors))).backward()
        return {relation: _gradient(gate) for relation, gate in tensors.items()}

    def gated_value(self, gates: Mapping[Relation, Array]) -> float:
        """Return the score after the message of each edge is multiplied by the edge's factor in `gates`, which has an array (n_edges,) for
        each relation.
        """
        return self.value(graph=self._gated(self._gates(gates, False)))

    def value_without(self, relation: Relation, edge: int) -> float:
        """Return the score on a graph that lacks one edge of `relation`; `edge` is the index of the edge in the relation's arrays of edge
        values.
        """
        if isinstance(self.graph, NodeType):
            whole = self.graph.graph
            remaining = _all_but(edge, whole.in_edges(relation))
            return self.value(graph=whole.subgraph({relation: remaining}).of(*self.graph.node_types))
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

    def _propagated(self, graph: Any, x: Tensor) -> Tensor:
        """Return the model's input rows for the features x on `graph`. They are x, or S^k x side by side for each k in the model's
        attribute `powers`; S is the normalized adjacency matrix.
        """
        powers = getattr(self.model, "powers", None)
        if powers is None:
            return x
        rows = {0: x}
        for k in range(1, max(powers) + 1):
            rows[k] = graph.aggregate(fn.copy_src(rows[k - 1]), "sym")
        return ops.concat([rows[k] for k in powers], 1)


def _all_but(edge: int, edges: InEdges) -> Array:
    """Return a mask of `edges` that is False only for the edge whose index in the arrays of edge values is `edge`."""
    return (np.arange(len(edges.indices)) if edges.numbers is None else edges.numbers) != edge


def _gradient(tensor):
    return np.zeros(tensor.shape) if tensor.grad is None else tensor.grad.astype(np.float64)


def integrate_inputs(scorer: Scorer, baseline: Inputs, steps: int) -> Inputs:
    """Return the integrated gradients of the score with respect to the scorer's inputs, as `Inputs`. The path is the straight line from
    `baseline` to the inputs, and `steps` is the number of quadrature points.

    The sum of all attributions approximates the difference of the scores of the inputs and of the baseline.

    Parameters
    ----------
    scorer : Scorer
    baseline : Inputs
        Values of the same shapes as the scorer's inputs.
    steps : int
        Number of points of the quadrature, each a forward and a backward pass.
    """
    total = [{name: np.zeros(values.shape) for name, values in arrays.items()} for arrays in scorer.inputs]
    for fraction, weight in quadrature(steps):
        step_gradients = scorer.gradients(scorer.inputs.on_path(baseline, fraction))
        for sums, gradients in zip(total, step_gradients):
            for name, gradient in gradients.items():
                sums[name] += weight * gradient
    return Inputs(*({name: gradient * (values[name].astype(np.float64) - start[name]) for name, gradient in sums.items()}
                    for sums, values, start in zip(total, scorer.inputs, baseline)))


def integrate_edges(scorer: Scorer, chosen: Mapping[Relation, Array], steps: int) -> dict[Relation, Array]:
    """Attribute the score to edges by integrated gradients. Return for each relation an attribution for each edge in the mask
    chosen[relation]. The path scales the messages of these edges from 0 to 1, and the integral is computed at `steps` points.

    Each edge has a gate, a factor of its message. The gates of the chosen edges vary together from 0 to 1. The gates of
    other edges are 1.

    Parameters
    ----------
    scorer : Scorer
    chosen : dict of relation to (n_edges,) bool
        True for the edges whose gates vary.
    steps : int
        Number of points of the quadrature.

    Returns
    -------
    dict of relation to (n_edges,) float64
        Attribution to each chosen edge; 0 for other edges.
    """
    total = {relation: np.zeros(len(is_chosen)) for relation, is_chosen in chosen.items()}
    for fraction, weight in quadrature(steps):
        gates = {relation: np.where(is_chosen, fraction, 1.0) for relation, is_chosen in chosen.items()}
        for relation, gradient in scorer.gate_gradients(gates).items():
            total[relation] += weight * gradient
    return {relation: gradient * chosen[relation] for relation, gradient in total.items()}


def quadrature(steps: int) -> Iterator[tuple[float, float]]:
    """Yield (fraction, weight) for each of the `steps` points of Gauss-Legendre quadrature on [0, 1].

    Examples
    --------
    >>> [(round(fraction, 3), round(weight, 3)) for fraction, weight in quadrature(2)]
    [(0.211, 0.5), (0.789, 0.5)]
    """
    places, weights = np.polynomial.legendre.leggauss(steps)
    yield from zip(((places + 1) / 2).tolist(), (weights / 2).tolist())


def occluded(inputs: Inputs, baseline: Inputs, node_type: str, columns: list[int] | slice) -> Inputs:
    """Return a copy of `inputs` where the given `columns` of the features of nodes of type `node_type` have the values of `baseline`.

    Parameters
    ----------
    inputs, baseline : Inputs
    node_type : str
    columns : list of int, or slice
    """
    rows = inputs.x[node_type].copy()
    rows[:, columns] = np.broadcast_to(baseline.x[node_type], rows.shape)[:, columns]
    return inputs._replace(x={**inputs.x, node_type: rows})

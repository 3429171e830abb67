"""Relational graph convolutional network (Schlichtkrull et al., 2018), as SAR Eq. 4 and 5."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sarlite import HeteroGraph, NodeType, Tensor, fn, nn
from sarlite.errors import ConfigError
from sarlite.nn import Activation, Embedding, Linear, Parameter, glorot

Relation = tuple[str, str, str]


class RGCNConv(nn.Module):
    """h'_i = W_t h_i + b_t + sum_r mean_{j in N_r(i)} W_r h_j, t being i's type; W_r = sum_b a_rb V_b (SAR Eq. 4, 5).

    Parameters
    ----------
    n_in : dict of str to int
        Width by node type.
    n_out : int
    relations : sequence of (source type, name, destination type)
        Those that this layer sums over.
    types : sequence of str, optional
        The node types that it makes; by default those that the relations lead to.
    n_bases : int, optional
        How many V_b; without it each relation has a weight of its own. Then all source types need one width.
    evaluation : {"inside", "first"}, optional
        See `HeteroGraph.aggregate`.
    rng : nn.Random
    """

    def __init__(self, n_in: Mapping[str, int], n_out: int, relations: Any, types: Any = None, *,
                 n_bases: int | None = None, evaluation: str | None = None, bias: bool = True, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        self.relations, self.evaluation = tuple(relations), evaluation
        types = sorted({relation[2] for relation in self.relations}) if types is None else types
        self.roots = {name: glorot(rng, (n_in[name], n_out), n_in[name], n_out, dtype) for name in types}
        self.biases = {name: Parameter(np.zeros(n_out, dtype)) for name in types} if bias else {}
        self.weights = {}
        self.bases = self.coefficients = None
        if n_bases is None or not self.relations:
            self._names = _names(self.relations)
            self.weights = {name: glorot(rng, (n_in[source], n_out), n_in[source], n_out, dtype)
                            for (source, _, _), name in self._names.items()}
            return
        n_bases, widths = nn.whole("n_bases", n_bases, 1), sorted({n_in[relation[0]] for relation in self.relations})
        if len(widths) > 1:
            raise ConfigError(f"n_bases: all source types need one width, but they have {widths}")
        self.bases = glorot(rng, (n_bases, widths[0], n_out), widths[0], n_out, dtype)
        self.coefficients = glorot(rng, (len(self.relations), n_bases), len(self.relations), n_bases, dtype)

    def weight(self, relation: Relation) -> Tensor:
        """Return W_r."""
        if self.bases is None or self.coefficients is None:
            return self.weights[self._names[relation]]
        n_bases, n_in, n_out = self.bases.shape
        row = self.relations.index(relation)
        return (self.coefficients[row : row + 1] @ self.bases.reshape(n_bases, -1)).reshape(n_in, n_out)

    def __call__(self, graph: HeteroGraph, h: Mapping[str, Tensor]) -> dict[str, Tensor]:
        dst = graph.dst(h)
        sums = graph.aggregate({r: fn.linear(h[r[0]], self.weight(r)) for r in self.relations}, "mean",
                               self_terms={name: (dst[name], root) for name, root in self.roots.items()},
                               evaluation=self.evaluation)
        return {name: out + self.biases[name] if name in self.biases else out for name, out in sums.items()}


class RGCN(nn.Module):
    """R-GCN layers for one node type's labels, or for several types' rows; between layers activation and dropout.

    Types without features have learned rows, and other types may have some beside their features. A layer computes the
    types alone that the labels depend on.

    Parameters
    ----------
    n_in : dict of str to int
        Features by node type; a type that is not named has learned rows of `embedding` values, owned by the rank that
        owns the node.
    n_out : int
        Classes.
    nodes : NodeType
        `graph.of(type)` of the type that has labels, or of the types whose rows are wanted.
    layers, hidden : int
    embedding : int, optional
        By default the width of the features, or `hidden` without any.
    learned_rows : sequence of str
        Node types that have learned rows of `embedding` values beside their features; ("all",) for all types.
    dropout : float
    n_bases, evaluation
        See `RGCNConv`. With bases features of several widths are brought to `embedding` by a product a type.
    activation : {"relu", "elu"}
    rng : nn.Random
    """

    relational = True  # of a graph of several node types: the command gives it `nodes` too

    def __init__(self, n_in: Mapping[str, int], n_out: int, nodes: NodeType, *, layers: int = 2, hidden: int = 256,
                 embedding: int | None = None, learned_rows: Sequence[str] = (), dropout: float = 0.5,
                 n_bases: int | None = None, evaluation: str | None = None, activation: str = "relu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        if not isinstance(nodes, NodeType):
            raise ConfigError(f"nodes is a {type(nodes).__name__}, but must be a node type of a HeteroGraph: "
                              "graph.of(type)")
        graph, layers, hidden = nodes.graph, nn.whole("layers", layers, 1), nn.whole("hidden", hidden, 1)
        embedding = None if embedding is None else nn.whole("embedding", embedding, 1)
        self.takes, width = dict(n_in), hidden if embedding is None and not n_in else embedding
        of_input, *of_layers = needed(graph, nodes.node_types, layers)
        self.inputs = Inputs(n_in, graph, of_input, width, learned_rows, alike=n_bases is not None, rng=rng, dtype=dtype)
        self.convs, self.activations = [], []
        widths = self.inputs.widths
        for k, types in enumerate(of_layers):
            last = k == layers - 1
            self.convs.append(self._conv(widths, n_out if last else hidden, graph, types, last, n_bases=n_bases,
                                         evaluation=evaluation, rng=rng, dtype=dtype))
            widths = dict.fromkeys(types, hidden)
            if not last:
                self.activations.append({name: Activation(hidden, activation, dropout=dropout, rng=rng, dtype=dtype)
                                         for name in types})

    def _conv(self, widths, n_out, graph, types, last, **options):
        return RGCNConv(widths, n_out, graph.into(types), types, bias=last, **options)

    def first_layer(self) -> list[nn.Module]:
        """Return the modules that precede the second layer."""
        return [self.inputs, self.convs[0], *(self.activations[0].values() if self.activations else ())]

    def __call__(self, nodes: NodeType, x: Mapping[str, Tensor]) -> Tensor:
        h: Mapping[str, Tensor] = self.inputs(x, nodes.part_rows)
        for k, graph in enumerate(nodes.layers(len(self.convs))):
            graph, h = graph.enter(h)
            h = self.convs[k](graph, h)
            if k < len(self.activations):
                h = {name: activation(h[name], graph.of(name)) for name, activation in self.activations[k].items()}
        return nodes.select(h)


class Inputs(nn.Module):
    """Input rows of a relational model: features, learned rows, or both side by side.

    Attributes
    ----------
    widths : dict of str to int
    """

    def __init__(self, n_in: Mapping[str, int], graph: HeteroGraph, types: Any, embedding: int | None,
                 learned_rows: Sequence[str] = (), *, alike: bool, rng: nn.Random, dtype: npt.DTypeLike) -> None:
        unknown = sorted(set(n_in) - set(graph.node_types))
        if unknown:
            raise ConfigError(f"features of node type {unknown[0]!r}, which is not one of "
                              f"{', '.join(graph.node_types)}")
        odd = [name for name in learned_rows if name not in (*graph.node_types, "all")]
        if odd:
            raise ConfigError(f"learned_rows: {odd[0]!r} is no node type; these are {', '.join(graph.node_types)}",
                              "learned_rows")
        learned = graph.node_types if "all" in learned_rows else learned_rows
        width = embedding if embedding is not None else max(n_in.values())
        self.featured = frozenset(n_in)
        self.embeddings = {name: Embedding(graph.node_ids[name], width, rng=rng, node_type=name, dtype=dtype)
                           for name in types if name not in n_in or name in learned}
        self.widths = {name: n_in.get(name, 0) + (width if name in self.embeddings else 0) for name in types}
        self.projections = {}
        if alike and len(set(self.widths.values())) > 1:
            self.projections = {name: Linear(self.widths[name], width, bias=False, rng=rng, dtype=dtype)
                                for name in types if name in n_in}
            self.widths = dict.fromkeys(types, width)

    def __call__(self, x: Mapping[str, Tensor], rows: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
        """Return the input rows of each type, from features, learned rows or both.

        `rows` has, by type, the numbers of the learned rows to use, for a batch; None for all rows.
        """
        missing = [name for name in self.widths if name in self.featured and name not in x]
        if missing:
            raise ConfigError(f"x has no features of node type {missing[0]!r}, which the model takes")
        inputs: dict[str, Any] = {}
        for name in self.widths:
            parts = [x[name]] if name in self.featured else []
            parts += [self.embeddings[name](None if rows is None else rows[name])] if name in self.embeddings else []
            inputs[name] = parts[0] if len(parts) == 1 else np.concatenate(parts, 1)
        return {name: self.projections[name](h) if name in self.projections else h for name, h in inputs.items()}


def needed(graph: HeteroGraph, node_types: tuple[str, ...], layers: int) -> list[tuple[str, ...]]:
    """Return the node types that the rows of some depend on: of the first layer's input, then of each layer's output.
    """
    found: list[tuple[str, ...]] = [node_types]
    for _ in range(layers):
        wanted = {*found[0], *(relation[0] for relation in graph.into(found[0]))}
        found.insert(0, tuple(name for name in graph.node_types if name in wanted))
    return found


def _names(relations):
    """A name of each relation's weight: its words joined, or where these are another relation's too, its `repr`."""
    joined = ["__".join(relation) for relation in relations]
    return {relation: name if joined.count(name) == 1 else repr(relation)
            for relation, name in zip(relations, joined)}

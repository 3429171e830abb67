"""R-GCN: relational graph convolutional network (Schlichtkrull et al., 2018; SAR Eq. 4 and 5)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sarlite import HeteroGraph, NodeType, Tensor, fn, nn
from sarlite.errors import ConfigError
from sarlite.nn import Activation, Embedding, Linear, Parameter, glorot

Relation = tuple[str, str, str]


class RGCNConv(nn.Module):
    """Relational graph convolution: h'_i = W_t h_i + b_t + sum_r mean_{j in N_r(i)} W_r h_j, where t is the type of i.

    Each relation r has a weight W_r, or with `n_bases` W_r = sum_b a_rb V_b with learned a and V (SAR Eq. 4, 5).

    Parameters
    ----------
    n_in : dict of str to int
        Width of the input rows by node type.
    n_out : int
        Width of the output rows.
    relations : sequence of (source type, name, destination type)
        Relations that the layer sums over.
    types : sequence of str, optional
        Node types of the output; by default the destination types of the relations.
    n_bases : int, optional
        Number of matrices V_b, for which all source types need the same width; by default each relation has a separate
        weight.
    evaluation : {"inside", "first"}, optional
        See `HeteroGraph.aggregate`.
    bias : bool
        True for the biases b_t.
    rng : nn.Random
        Source of the initial values.
    dtype : float32 or float64
        Dtype of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import HeteroGraph, Tensor, nn
    >>> from sarlite.models import RGCNConv
    >>> writes = ("author", "writes", "paper")
    >>> graph = HeteroGraph.from_edges({writes: ([0, 1], [0, 0])}, {"author": 2, "paper": 3})
    >>> layer = RGCNConv({"author": 8, "paper": 6}, 4, [writes], rng=nn.Random(0))
    >>> h = {"author": Tensor(np.ones((2, 8), np.float32)), "paper": Tensor(np.ones((3, 6), np.float32))}
    >>> {name: rows.shape for name, rows in layer(graph, h).items()}
    {'paper': (3, 4)}
    """

    def __init__(self, n_in: Mapping[str, int], n_out: int, relations: Iterable[Relation], types: Collection[str] | None = None, *,
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
        n_bases, widths = nn.check_int("n_bases", n_bases, 1), sorted({n_in[relation[0]] for relation in self.relations})
        if len(widths) > 1:
            raise ConfigError(f"n_bases: all source types need one width, but they have {widths}")
        self.bases = glorot(rng, (n_bases, widths[0], n_out), widths[0], n_out, dtype)
        self.coefficients = glorot(rng, (len(self.relations), n_bases), len(self.relations), n_bases, dtype)

    def weight(self, relation: Relation) -> Tensor:
        """Return the weight W_r of a relation, (n_in, n_out)."""
        if self.bases is None or self.coefficients is None:
            return self.weights[self._names[relation]]
        n_bases, n_in, n_out = self.bases.shape
        row = self.relations.index(relation)
        return (self.coefficients[row : row + 1] @ self.bases.reshape(n_bases, -1)).reshape(n_in, n_out)

    def __call__(self, graph: HeteroGraph, h: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return {node type: output rows, (n_dst, n_out)} from h = {node type: input rows, (n_src, n_in)}. Collective."""
        dst = graph.dst(h)
        sums = graph.aggregate({r: fn.linear(h[r[0]], self.weight(r)) for r in self.relations}, "mean",
                               self_terms={name: (dst[name], root) for name, root in self.roots.items()},
                               evaluation=self.evaluation)
        return {name: out + self.biases[name] if name in self.biases else out for name, out in sums.items()}


class RGCN(nn.Module):
    """Relational graph convolutional network: a sequence of `RGCNConv` layers with activations between them.

    The output are the rows of one node type or of several. A layer computes only the node types that this output
    depends on. Nodes without features have learned input rows.

    Parameters
    ----------
    n_in : dict of str to int
        Number of features by node type. A type without an entry has learned input rows of `embedding` values, which are
        owned by the rank that owns the node.
    n_out : int
        Width of the output rows, such as the number of classes.
    nodes : NodeType
        Node types of the output, from `graph.of(...)`.
    layers : int
        Number of layers.
    hidden : int
        Width of the rows between layers.
    embedding : int, optional
        Width of the learned rows; by default the largest number of features, or `hidden` if no type has features.
    learned_rows : sequence of str
        Node types that have learned rows of `embedding` values beside their features; ("all",) for all types.
    dropout : float in [0, 1)
        Dropout probability of the input of every layer but the first.
    n_bases : int, optional
        Number of bases of each layer's weights; see `RGCNConv`. With bases, input rows of different widths are first
        multiplied by a learned matrix for each type, which makes them `embedding` wide.
    evaluation : {"inside", "first"}, optional
        See `HeteroGraph.aggregate`.
    activation : {"relu", "elu"}
    rng : nn.Random
        Source of the initial values and of the dropout masks.
    dtype : float32 or float64
        Dtype of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import HeteroGraph, Tensor, nn
    >>> from sarlite.models import RGCN
    >>> writes = ("author", "writes", "paper")
    >>> graph = HeteroGraph.from_edges({writes: ([0, 1], [0, 0])}, {"author": 2, "paper": 3})
    >>> model = RGCN({"paper": 6}, 4, graph.of("paper"), hidden=16, rng=nn.Random(0))
    >>> model(graph.of("paper"), {"paper": Tensor(np.ones((3, 6), np.float32))}).shape
    (3, 4)
    """

    relational = True  # the command line passes `nodes` to relational models

    def __init__(self, n_in: Mapping[str, int], n_out: int, nodes: NodeType, *, layers: int = 2, hidden: int = 256,
                 embedding: int | None = None, learned_rows: Sequence[str] = (), dropout: float = 0.5,
                 n_bases: int | None = None, evaluation: str | None = None, activation: str = "relu", rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        if not isinstance(nodes, NodeType):
            raise ConfigError(f"nodes is a {type(nodes).__name__}, but must be a node type of a HeteroGraph: "
                              "graph.of(type)")
        graph, layers, hidden = nodes.graph, nn.check_int("layers", layers, 1), nn.check_int("hidden", hidden, 1)
        embedding = None if embedding is None else nn.check_int("embedding", embedding, 1)
        self.takes, width = dict(n_in), hidden if embedding is None and not n_in else embedding
        input_types, *output_types = types_by_layer(graph, nodes.node_types, layers)
        self.inputs = RelationalInput(n_in, graph, input_types, width, learned_rows, one_width=n_bases is not None, rng=rng,
                                dtype=dtype)
        self.convs, self.activations = [], []
        widths = self.inputs.widths
        for k, types in enumerate(output_types):
            last = k == layers - 1
            self.convs.append(self._conv(widths, n_out if last else hidden, graph, types, last, n_bases=n_bases,
                                         evaluation=evaluation, rng=rng, dtype=dtype))
            widths = dict.fromkeys(types, hidden)
            if not last:
                self.activations.append({name: Activation(hidden, activation, dropout=dropout, rng=rng, dtype=dtype)
                                         for name in types})

    def _conv(self, n_in: Mapping[str, int], n_out: int, graph: HeteroGraph, types: Sequence[str], is_last: bool, **options: Any) -> Any:
        """Return a graph layer over the relations of `graph` into the node types `types`, with further keyword arguments `options`.
        Its input rows have n_in[type] columns, its output rows `n_out`; the layer has a bias only if `is_last`.
        """
        return RGCNConv(n_in, n_out, graph.into(types), types, bias=is_last, **options)

    def first_layer(self) -> list[nn.Module]:
        """Return the modules of the model's first layer, which a row of features passes before the second graph layer."""
        return [self.inputs, self.convs[0], *(self.activations[0].values() if self.activations else ())]

    def __call__(self, nodes: NodeType, x: Mapping[str, Tensor]) -> Tensor:
        """Return the output rows of the node types in `nodes`, (n_dst, n_out), from x = {node type: features}. Collective."""
        h: Mapping[str, Tensor] = self.inputs(x, nodes.part_rows)
        for k, graph in enumerate(nodes.layers(len(self.convs))):
            graph, h = graph.enter(h)
            h = self.convs[k](graph, h)
            if k < len(self.activations):
                h = {name: activation(h[name], graph.of(name)) for name, activation in self.activations[k].items()}
        return nodes.select(h)


class RelationalInput(nn.Module):
    """Input rows of a relational model: features, learned rows, or both side by side.

    Parameters
    ----------
    n_in : dict of str to int
        Number of features, of the node types that have any.
    graph : HeteroGraph
    types : sequence of str
        Node types whose rows the first layer reads.
    embedding : int, optional
        Width of the learned rows; by default the largest number of features.
    learned_rows : sequence of str
        Node types with features that have learned rows too; ("all",) for all types.
    one_width : bool
        True to multiply input rows of different widths by a learned matrix for each type, so that all are `embedding`
        wide.
    rng : nn.Random
        Source of the initial values.
    dtype : float32 or float64
        Dtype of the parameters.

    Attributes
    ----------
    widths : dict of str to int
        Width of the input rows by node type.
    """

    def __init__(self, n_in: Mapping[str, int], graph: HeteroGraph, types: Sequence[str], embedding: int | None,
                 learned_rows: Sequence[str] = (), *, one_width: bool, rng: nn.Random, dtype: npt.DTypeLike) -> None:
        unknown = sorted(set(n_in) - set(graph.node_types))
        if unknown:
            raise ConfigError(f"features of node type {unknown[0]!r}, which is not one of "
                              f"{', '.join(graph.node_types)}")
        odd = [name for name in learned_rows if name not in (*graph.node_types, "all")]
        if odd:
            raise ConfigError(f"learned_rows: {odd[0]!r} is not a node type; the node types are {', '.join(graph.node_types)}",
                              "learned_rows")
        learned = graph.node_types if "all" in learned_rows else learned_rows
        width = embedding if embedding is not None else max(n_in.values())
        self.featured = frozenset(n_in)
        self.embeddings = {name: Embedding(graph.node_ids[name], width, rng=rng, node_type=name, dtype=dtype)
                           for name in types if name not in n_in or name in learned}
        self.widths = {name: n_in.get(name, 0) + (width if name in self.embeddings else 0) for name in types}
        self.projections = {}
        if one_width and len(set(self.widths.values())) > 1:
            self.projections = {name: Linear(self.widths[name], width, bias=False, rng=rng, dtype=dtype)
                                for name in types if name in n_in}
            self.widths = dict.fromkeys(types, width)

    def __call__(self, x: Mapping[str, Tensor], rows: Mapping[str, npt.NDArray[np.int64]] | None = None) -> dict[str, Tensor]:
        """Return {node type: input rows of the first layer, (n, width)} from the features `x`. `rows` are the row numbers of a batch by
        node type; None for all rows of the part.

        Parameters
        ----------
        x : dict of str to Tensor (n, n_features)
            Features by node type.
        rows : dict of str to (n,) int64, optional
            Row number on this rank of each node of a batch, by node type; by default all rows.
        """
        missing = [name for name in self.widths if name in self.featured and name not in x]
        if missing:
            raise ConfigError(f"x has no features of node type {missing[0]!r}, which the model takes")
        inputs: dict[str, Tensor] = {}
        for name in self.widths:
            parts = [x[name]] if name in self.featured else []
            parts += [self.embeddings[name](None if rows is None else rows[name])] if name in self.embeddings else []
            inputs[name] = parts[0] if len(parts) == 1 else cast(Tensor, np.concatenate(parts, 1))
        return {name: self.projections[name](h) if name in self.projections else h for name, h in inputs.items()}


def types_by_layer(graph: HeteroGraph, node_types: tuple[str, ...], layers: int) -> list[tuple[str, ...]]:
    """Return the node types whose rows a model of `layers` layers needs in order to output rows of `node_types`, as a list of
    tuples: first the types of the input, then the types of each layer's output.

    Returns
    -------
    list of tuple of str
        Types of the first layer's input, and then types of the output of each of the layers.
    """
    types: list[tuple[str, ...]] = [node_types]
    for _ in range(layers):
        wanted = {*types[0], *(relation[0] for relation in graph.into(types[0]))}
        types.insert(0, tuple(name for name in graph.node_types if name in wanted))
    return types


def _names(relations: Sequence[Relation]) -> dict[Relation, str]:
    """Return {relation: distinct name}: its three words joined by "__", or its `repr` if another relation has that name."""
    joined = ["__".join(relation) for relation in relations]
    return {relation: name if joined.count(name) == 1 else repr(relation)
            for relation, name in zip(relations, joined)}

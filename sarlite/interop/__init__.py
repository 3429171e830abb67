"""Graphs and weights of PyTorch Geometric and DGL, converted to sarlite's, without importing either library.

`sarlite.interop.torch`, which imports PyTorch, has modules of sarlite as torch modules, and torch modules in sarlite.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, DataError
from sarlite.graph.array_checks import Relation, check_array
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import HeteroGraph
from sarlite.oracle.layer_state import load_state, state_of
from sarlite.types import Array

__all__ = ["from_dgl", "from_pyg", "load_state", "state_of"]


def from_pyg(data: Any) -> Graph | HeteroGraph:
    """Return a PyG `Data` as a Graph, or a `HeteroData` as a HeteroGraph, with its edge weights and edge features. The graph is
    not divided among ranks: the calling rank holds all of it.

    Parameters
    ----------
    data : Data, or HeteroData
        Any object with these attributes. Its weights `edge_weight` and features `edge_attr` become edge values of the
        graph.

    Returns
    -------
    Graph, or HeteroGraph
        Graph with the edges of `edge_index`, in their order, from edge_index[0] to edge_index[1]. A HeteroData becomes
        a HeteroGraph.

    Raises
    ------
    ConfigError, DataError, ShapeError
        The object has no `edge_index`, or it is not (2, n_edges) integers, or weights or features have not one row for
        each edge. The error names the field, and for a HeteroData the relation.

    Examples
    --------
    >>> import types
    >>> import numpy as np
    >>> from sarlite import interop
    >>> data = types.SimpleNamespace(edge_index=np.array([[0, 1], [1, 2]]), num_nodes=3, edge_weight=np.array([1.0, 2.0]))
    >>> graph = interop.from_pyg(data)
    >>> graph, graph.edge_weight.tolist()
    (Graph(n_src=3, n_dst=3, n_edges=2), [1.0, 2.0])
    """
    if not hasattr(data, "edge_types"):
        src, dst = _ends_of(data, "")
        graph = Graph.from_edges(src, dst, data.num_nodes)
        return graph.with_edge_values(*_values_of(data, "edge_weight", "edge_attr", ""))
    edges = {relation: _ends_of(data[relation], f" of {relation}") for relation in data.edge_types}
    values = {relation: _values_of(data[relation], "edge_weight", "edge_attr", f" of {relation}") for relation in edges}
    return _of_relations(edges, {name: data[name].num_nodes for name in data.node_types}, values)


def from_dgl(graph: Any, weight: str | None = None, features: str | None = None) -> Graph | HeteroGraph:
    """Return a DGL graph as a Graph, or as a HeteroGraph if it has several types. `weight` and `features` name the edge data
    that become edge weights and edge features; None reads none.

    Parameters
    ----------
    graph : dgl.DGLGraph
    weight, features : str, optional
        Names of the edge data, as in `graph.edata`, that become the weights and the features of the edges. A relation
        without edge data of the name gets none.

    Returns
    -------
    Graph, or HeteroGraph
        Graph with the edges in the order of DGL's edge ids.

    Warns
    -----
    RuntimeWarning
        The graph has edge data, but neither `weight` nor `features` is passed.

    Raises
    ------
    ConfigError, DataError, ShapeError
        The object is no DGL graph, or is a block, which DGL uses for a layer of a batch; no relation has edge data of
        this name; or weights or features have not one row for each edge.

    Examples
    --------
    >>> import dgl  # doctest: +SKIP
    >>> from_dgl(dgl.graph(([0, 1], [1, 2])))  # doctest: +SKIP
    Graph(n_src=3, n_dst=3, n_edges=2)
    """
    if not hasattr(graph, "canonical_etypes") or getattr(graph, "is_block", False):
        raise ConfigError(f"from_dgl: {type(graph).__name__} is not a DGL graph, or it is a block")
    edges, stored = dict[Relation, tuple[Array, Array]](), dict[Relation, Mapping[str, object]]()
    for relation in graph.canonical_etypes:
        columns = zip(("sources", "destinations", "edge ids"), graph.edges(form="all", order=None, etype=relation))
        src, dst, ids = (check_array(f"{name} of {relation}", column) for name, column in columns)
        order = np.argsort(ids)  # order="eid" of DGL fails for graphs that are stored as CSR or CSC alone
        edges[relation] = src[order], dst[order]
        stored[relation] = graph.edges[relation].data
    names = sorted({name for data in stored.values() for name in data if not name.startswith("_")})
    for argument, name in (("weight", weight), ("features", features)):
        if name is not None and name not in names:
            raise ConfigError(f"from_dgl: {argument} {name!r} is not in g.edata, which has {', '.join(names) or 'no entries'}")
    if names and weight is None and features is None:
        warnings.warn(f"from_dgl: the edge data {', '.join(names)} are not read: name them by weight= and features=",
                      RuntimeWarning, stacklevel=2)
    if len(graph.ntypes) == 1 == len(edges):
        ((relation, (src, dst)),) = edges.items()
        whole = Graph.from_edges(src, dst, graph.num_nodes())
        return whole.with_edge_values(*_values_of(stored[relation], weight, features, ""))
    values = {relation: _values_of(data, weight, features, f" of {relation}") for relation, data in stored.items()}
    return _of_relations(edges, {name: graph.num_nodes(name) for name in graph.ntypes}, values)


def _ends_of(store: Any, owner: str) -> tuple[Array, Array]:
    """Return (sources, destinations), the two rows of the `edge_index` of a PyG object `store`. Errors name edge_index,
    followed by the text `owner`: " of " and a relation, or nothing.
    """
    edge_index = getattr(store, "edge_index", None)
    if edge_index is None:
        remedy = ": Graph.from_scipy takes its adj_t as a CSR tensor of torch" if getattr(store, "adj_t", None) is not None else ""
        raise ConfigError(f"from_pyg: {type(store).__name__} has no edge_index{owner}{remedy}")
    index = check_array(f"edge_index{owner}", edge_index)
    if index.ndim != 2 or len(index) != 2 or (index.dtype.kind not in "iu" and index.size):
        raise DataError(f"from_pyg: edge_index{owner} is {index.dtype} {index.shape}, but must be integers of shape (2, "
                        "n_edges): the sources and the destinations")
    return index[0], index[1]


def _values_of(store: Any, weight: str | None, features: str | None, owner: str) -> list[Array | None]:
    """Return [edge weights (n_edges,), edge features (n_edges, k)]: the entries of `store` with the names `weight` and
    `features`, or None for a name that is None or that `store` lacks. Errors name the entry, followed by the text `owner`.
    """
    values = []
    for name in (weight, features):
        value = None if name is None else store.get(name) if isinstance(store, Mapping) else getattr(store, name, None)
        values.append(None if value is None else check_array(f"{name}{owner}", value))
    if values[1] is not None and values[1].ndim == 1:
        values[1] = values[1][:, None]
    return values


def _of_relations(edges: Any, n_nodes: Any, values: Any) -> HeteroGraph:
    """Return a HeteroGraph of `edges`, {relation: (sources, destinations)}, with `n_nodes`, {node type: number of nodes}. `values` is
    {relation: [edge weights or None, edge features or None]}.
    """
    graph = HeteroGraph.from_edges(edges, n_nodes)
    weights, features = ({relation: pair[k] for relation, pair in values.items() if pair[k] is not None} for k in (0, 1))
    return graph.with_edge_values(weights, features) if weights or features else graph

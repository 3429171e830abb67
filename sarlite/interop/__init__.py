"""Conversion of graphs and weights from PyTorch Geometric and DGL. Neither library is imported.

`sarlite.interop.torch` has modules of both libraries inside each other; it imports PyTorch.
"""

import warnings
from collections.abc import Mapping
from typing import Any

from sarlite.errors import ConfigError, DataError
from sarlite.graph.array_checks import Relation, check_array
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import HeteroGraph
from sarlite.oracle.layer_state import load_state, state_of
from sarlite.types import Array

__all__ = ["from_dgl", "from_pyg", "load_state", "state_of"]


def from_pyg(data: Any) -> Graph | HeteroGraph:
    """Make a whole graph from a `Data` or `HeteroData` of PyTorch Geometric.

    Parameters
    ----------
    data : Data, or HeteroData
        The weights `edge_weight` and the features `edge_attr` become the graph's edge values, of a HeteroData by
        relation.

    Returns
    -------
    Graph, or HeteroGraph
        The edges of `edge_index`, in their order: `graph.aggregate` sums from edge_index[0] to edge_index[1],
        as PyG does.

    Raises
    ------
    ConfigError, DataError, ShapeError
        The object has no edges by index; `edge_index` is not (2, n_edges) integers; weights or features do not have one
        row an edge. The error names the field, and of a HeteroData the relation.
    """
    if not hasattr(data, "edge_types"):
        src, dst = _ends_of(data, "")
        graph = Graph.from_edges(src, dst, data.num_nodes)
        return graph.with_edge_values(*_values_of(data, "edge_weight", "edge_attr", ""))
    edges = {relation: _ends_of(data[relation], f" of {relation}") for relation in data.edge_types}
    values = {relation: _values_of(data[relation], "edge_weight", "edge_attr", f" of {relation}") for relation in edges}
    return _of_relations(edges, {name: data[name].num_nodes for name in data.node_types}, values)


def from_dgl(graph: Any, weight: str | None = None, features: str | None = None) -> Graph | HeteroGraph:
    """Make a whole graph from a DGL graph: a Graph if of one kind, else a HeteroGraph.

    Parameters
    ----------
    graph : dgl.DGLGraph
    weight, features : str, optional
        Names of the edge data, as in `graph.edata`, that become the weights and the features of the edges. Of several
        relations those become so that have edge data of the name.

    Returns
    -------
    Graph, or HeteroGraph
        Edges in the order of DGL's edge ids.

    Warns
    -----
    RuntimeWarning
        The graph has edge data, and neither `weight` nor `features` names any.

    Raises
    ------
    ConfigError, DataError, ShapeError
        The object is no DGL graph, or a block, which stands for a layer; no relation has edge data of the given name;
        or weights or features do not have one row an edge.
    """
    if not hasattr(graph, "canonical_etypes") or getattr(graph, "is_block", False):
        raise ConfigError(f"from_dgl: {type(graph).__name__} is no DGL graph, or it is a block")
    edges, stored = dict[Relation, tuple[Array, Array]](), dict[Relation, Mapping[str, Any]]()
    for relation in graph.canonical_etypes:
        src, dst = graph.edges(etype=relation, order="eid")
        edges[relation] = check_array(f"sources of {relation}", src), check_array(f"destinations of {relation}", dst)
        stored[relation] = graph.edges[relation].data
    names = sorted({name for data in stored.values() for name in data if not name.startswith("_")})
    for argument, name in (("weight", weight), ("features", features)):
        if name is not None and name not in names:
            raise ConfigError(f"from_dgl: {argument} {name!r} is none of the edge data: {', '.join(names) or 'none'}")
    if names and weight is None and features is None:
        warnings.warn(f"from_dgl: the edge data {', '.join(names)} are not read: name them by weight= and features=",
                      RuntimeWarning, stacklevel=2)
    if len(graph.ntypes) == 1 == len(edges):
        ((relation, (src, dst)),) = edges.items()
        made = Graph.from_edges(src, dst, graph.num_nodes())
        return made.with_edge_values(*_values_of(stored[relation], weight, features, ""))
    values = {relation: _values_of(data, weight, features, f" of {relation}") for relation, data in stored.items()}
    return _of_relations(edges, {name: graph.num_nodes(name) for name in graph.ntypes}, values)


def _ends_of(store, owner):
    """Return the sources and destinations of `edge_index`; `owner` is added to the name of the field in errors."""
    given = getattr(store, "edge_index", None)
    if given is None:
        raise ConfigError(f"from_pyg: {type(store).__name__} has no edge_index{owner}")
    index = check_array(f"edge_index{owner}", given)
    if index.ndim != 2 or len(index) != 2 or (index.dtype.kind not in "iu" and index.size):
        raise DataError(f"from_pyg: edge_index{owner} is {index.dtype} {index.shape}, but must be integers of shape (2, "
                        "n_edges): the sources and the destinations")
    return index[0], index[1]


def _values_of(store, weight, features, owner):
    """Return the weights and the features, (n_edges, k), that a store or a mapping has under these names, or None."""
    found = []
    for name in (weight, features):
        given = None if name is None else store.get(name) if isinstance(store, Mapping) else getattr(store, name, None)
        found.append(None if given is None else check_array(f"{name}{owner}", given))
    if found[1] is not None and found[1].ndim == 1:
        found[1] = found[1][:, None]
    return found


def _of_relations(edges, n_nodes, values):
    """Return a HeteroGraph with the weights and features of `values` on its edges."""
    graph = HeteroGraph.from_edges(edges, n_nodes)
    weights, features = ({relation: own[k] for relation, own in values.items() if own[k] is not None} for k in (0, 1))
    return graph.with_edge_values(weights, features) if weights or features else graph

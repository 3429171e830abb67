"""Conversion of graphs and weights from PyTorch Geometric and DGL. Neither library is imported.

`sarlite.interop.torch` has modules of both libraries inside each other; it imports PyTorch.
"""

from typing import Any

import numpy as np

from sarlite.errors import ConfigError
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import HeteroGraph
from sarlite.oracle.layer_state import load_state, state_of

__all__ = ["from_dgl", "from_pyg", "load_state", "state_of"]


def from_pyg(data: Any) -> Graph | HeteroGraph:
    """Make a whole graph from a `Data` or `HeteroData` of PyTorch Geometric.

    Parameters
    ----------
    data : Data, or HeteroData
        Of a Data the weights `edge_weight` and the features `edge_attr` become the graph's edge values; of a HeteroData
        no edge value is read.

    Returns
    -------
    Graph, or HeteroGraph
        The edges of `edge_index`, in their order: `graph.aggregate` sums from edge_index[0] to edge_index[1],
        as PyG does.

    Raises
    ------
    ConfigError, DataError
        It is neither, or has no edges by index.
    """
    if hasattr(data, "edge_types"):
        edges = {relation: tuple(np.asarray(data[relation].edge_index)) for relation in data.edge_types}
        return HeteroGraph.from_edges(edges, {name: data[name].num_nodes for name in data.node_types})
    if getattr(data, "edge_index", None) is None:
        raise ConfigError(f"from_pyg: {type(data).__name__} has no edge_index")
    src, dst = np.asarray(data.edge_index)
    graph = Graph.from_edges(src, dst, data.num_nodes)
    weight, features = getattr(data, "edge_weight", None), getattr(data, "edge_attr", None)
    if weight is None and features is None:
        return graph
    if features is not None:
        features = np.asarray(features)
        features = features[:, None] if features.ndim == 1 else features
    return graph.with_edge_values(None if weight is None else np.asarray(weight), features)


def from_dgl(graph: Any) -> Graph | HeteroGraph:
    """Make a whole graph from a DGL graph: a Graph if of one kind, else a HeteroGraph. Edge data are not read.

    Parameters
    ----------
    graph : dgl.DGLGraph

    Returns
    -------
    Graph, or HeteroGraph
        Edges in the order of DGL's edge ids: `graph.with_edge_values(g.edata["w"])` has edge data.

    Raises
    ------
    ConfigError
        It is no DGL graph, or a block, which stands for a layer.
    """
    if not hasattr(graph, "canonical_etypes") or getattr(graph, "is_block", False):
        raise ConfigError(f"from_dgl: {type(graph).__name__} is no DGL graph, or it is a block")
    edges: dict[Any, tuple[Any, Any]] = {}
    for relation in graph.canonical_etypes:
        src, dst = graph.edges(etype=relation, order="eid")
        edges[relation] = np.asarray(src), np.asarray(dst)
    if len(graph.ntypes) == 1 == len(edges):
        ((src, dst),) = edges.values()
        return Graph.from_edges(src, dst, graph.num_nodes())
    return HeteroGraph.from_edges(edges, {name: graph.num_nodes(name) for name in graph.ntypes})

"""Import of the module that reads edges from tables, and conversion of graphs to pandas and networkx."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from sarlite.types import Array


def tables_reader() -> Any:
    """Import and return the module `sarlite.data.tables.edge_lists`, which reads edges from tables.

    The module belongs to `sarlite.data`, which builds on graphs, so graphs cannot import it with their own modules.
    """
    return import_module("sarlite.data.tables.edge_lists")


def make_frame(columns: Mapping[str, Array], features: Array | None) -> object:
    """Return a pandas.DataFrame of `columns`, {name: values}; the columns of `features`, if it is not None, are appended with the
    names "edge_0", "edge_1", ...
    """
    import pandas

    of_edges = () if features is None else features.T
    return pandas.DataFrame({**columns} | {f"edge_{at}": column for at, column in enumerate(of_edges)})


def make_networkx(ids: Array, src: Array, dst: Array, weight: Array | None) -> object:
    """Return a networkx.MultiDiGraph with the nodes `ids` and an edge from src[e] to dst[e] for each e; its attribute `weight` is
    weight[e], or missing if `weight` is None.
    """
    import networkx

    graph = networkx.MultiDiGraph()
    graph.add_nodes_from(ids.tolist())
    if weight is None:
        graph.add_edges_from(zip(src.tolist(), dst.tolist()))
    else:
        graph.add_weighted_edges_from(zip(src.tolist(), dst.tolist(), weight.tolist()))
    return graph

"""The operations on edges as formulas: spmm."""

from __future__ import annotations

import numpy as np

from sarlite.errors import ConfigError
from sarlite.oracle.definition import Definition, define
from sarlite.oracle.edges import EdgeList
from sarlite.oracle.expression import concat, constant, gather, propagate, scatter_max, sqrt


def _spmm(inputs, edges, attributes):
    x, weight, reduce = inputs["x"], inputs.get("weight"), attributes["reduce"]
    if reduce in ("max", "min"):
        messages = gather(x, edges.by_src)
        messages = messages if weight is None else messages * weight.reshape(-1, 1)
        policy = {"lowest": ("first", edges.src), "first": ("first", None), "all": ("all", None)}[attributes["ties"]]
        if reduce == "min":
            return {"out": -scatter_max(-messages, edges.by_dst, *policy)}
        return {"out": scatter_max(messages, edges.by_dst, *policy)}
    if reduce == "sym":
        return {"out": _sym(x, weight, edges, attributes)}
    total = propagate(x, edges.by_src, edges.by_dst, weight)
    if reduce == "mean":
        total = total / np.maximum(edges.in_degrees, 1)[:, None]
    return {"out": total}


def _sym(x, weight, edges, attributes):
    """D^-1/2 A D^-1/2 x; degrees count edges, those of a row without edges being 1."""
    if attributes["loops"]:
        edges = with_loops(edges)
        weight = None if weight is None else concat([weight, constant(np.ones(edges.n_dst))])
    out_degrees = edges.in_degrees if attributes["degrees"] == "in" else edges.out_degrees
    x = x / sqrt(constant(np.maximum(out_degrees, 1)[:, None]))
    return propagate(x, edges.by_src, edges.by_dst, weight) / sqrt(constant(np.maximum(edges.in_degrees, 1)[:, None]))


def with_loops(edges: EdgeList) -> EdgeList:
    """The same edges, and after them one from each row to itself."""
    if edges.n_src != edges.n_dst:
        raise ConfigError(f"loops: there are {edges.n_src} source rows, and {edges.n_dst} destination rows")
    own = np.arange(edges.n_dst)
    return EdgeList(np.concatenate([edges.src, own]), np.concatenate([edges.dst, own]), edges.n_src, edges.n_dst)


def _spmm_arrays(edges, width, attributes):
    weight = {"weight": (edges.n_edges,)} if attributes["weighted"] else {}
    return {"x": (edges.n_src, width), **weight}


define(Definition("spmm", _spmm, _spmm_arrays, {"reduce": ("sum", "mean", "max", "min", "sym"), "weighted": (False, True),
                                                "ties": ("lowest", "all", "first"), "loops": (False, True), "degrees": ("both", "in")}))

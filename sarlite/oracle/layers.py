"""Layers as formulas: GCN, SAGE, GAT, GATv2, R-GCN and batch norm, by the paper's names; dialects.py has other libraries' names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, DataError
from sarlite.oracle import dialects
from sarlite.oracle.definition import Attributes, Shapes, define
from sarlite.oracle.edges import EdgeList, Index
from sarlite.oracle.expression import Expr, concat, constant, gather, leaky, propagate, relu, scatter_max, scatter_sum, softmax, sqrt, where
from sarlite.oracle.layer import Layer, definition, rows_of

# ---- structure


def looped(edges: EdgeList, weight: Expr | None, self_loops: str) -> tuple[EdgeList, Expr | None]:
    """The edges with their self loops, and the edges' weights.

    Parameters
    ----------
    self_loops : {"none", "missing", "replace"}
        As given; one of weight 1 where a row has none; one for every row in place of those that are there, keeping the weight of the last.
    """
    if self_loops == "none":
        return edges, weight
    if edges.n_src != edges.n_dst:
        raise ConfigError(f"self_loops {self_loops!r}: there are {edges.n_src} source rows, but {edges.n_dst} destination rows")
    present = np.flatnonzero(edges.src == edges.dst)
    last = np.full(edges.n_dst, -1)
    last[edges.dst[present]] = present  # of several the last
    if self_loops == "missing":
        kept, own = np.arange(edges.n_edges), np.flatnonzero(last < 0)
    else:
        kept, own = np.flatnonzero(edges.src != edges.dst), np.arange(edges.n_dst)
    joined = EdgeList(np.concatenate([edges.src[kept], own]), np.concatenate([edges.dst[kept], own]), edges.n_src, edges.n_dst)
    if weight is None:
        return joined, None
    places = np.concatenate([kept, np.where(last[own] < 0, edges.n_edges, last[own])])
    return joined, gather(concat([weight, constant(np.ones(1))]), Index(places, edges.n_edges + 1))


def _inverse_root(degree: Expr, counts, isolated: str) -> Expr:
    """(n, 1): degree^-1/2; of a row without edges 1, or 0."""
    root = 1.0 / sqrt(degree + constant((counts == 0) * 1.0))
    return (root if isolated == "one" else where(counts > 0, root)).reshape(-1, 1)


def _normed(x: Expr, edges: EdgeList, weight: Expr | None, attributes: Attributes) -> Expr:
    """The weighted sum of the sources' rows, with the norm of GCN."""
    norm, isolated, by_src, by_dst = attributes["norm"], attributes["isolated"], edges.by_src, edges.by_dst

    def degree(index):
        unweighted = weight is None or norm != "in"  # DGL counts edges
        return constant(index.counts * 1.0) if unweighted else scatter_sum(weight, index)

    right = _inverse_root(degree(by_dst), by_dst.counts, isolated) if norm in ("in", "both") else None
    if norm == "in":
        x = x * right
    elif norm == "both":
        x = x * _inverse_root(degree(by_src), by_src.counts, isolated)
    elif norm == "left":
        x = x / np.maximum(by_src.counts, 1)[:, None]
    out = propagate(x, by_src, by_dst, weight)
    if norm == "right":
        return out / np.maximum(by_dst.counts, 1)[:, None]
    return out if right is None else out * right


def _own(inputs: Mapping[str, Any]) -> Expr:
    """The destinations' rows: x, or x_dst where the sources are other nodes."""
    return inputs.get("x_dst", inputs["x"])


def _plus(out: Expr, term: Expr | None) -> Expr:
    return out if term is None else out + term


def _present(shapes: Shapes, wanted: Mapping[str, bool]) -> Shapes:
    return {name: shape for name, shape in shapes.items() if wanted.get(name, True)}


# ---- the layers


def _gcn(inputs, edges, attributes):
    """D^-1/2 A D^-1/2 X W + b (Kipf and Welling 2017, eq. 2, 8)."""
    edges, weight = looped(edges, inputs.get("edge_weight"), attributes["self_loops"])
    return _plus(_normed(inputs["x"], edges, weight, attributes) @ inputs["linear.weight"], inputs.get("bias"))


def _gcn_shapes(n_in, attributes):
    n_out = attributes["n_out"]
    return _present({"linear.weight": (n_in, n_out), "bias": (n_out,)}, {"bias": attributes["bias"]})


def _gcn_told(shapes, attributes):
    n_in, n_out = shapes["linear.weight"]
    return {"n_in": n_in, "n_out": n_out, "bias": "bias" in shapes}


def _sage(inputs, edges, attributes):
    """W_root h_i + b + W (mean or max over j of h_j), max-pool: of relu(W_pool h_j + b_pool) (Hamilton, Ying and Leskovec 2017, eq. 3)."""
    x = inputs["x"]
    if attributes["aggregator"] == "mean":
        out = propagate(x, edges.by_src, edges.by_dst) / np.maximum(edges.in_degrees, 1)[:, None]
    else:
        pooled = relu(x @ inputs["pool.weight"] + inputs["pool.bias"]) if attributes["aggregator"] == "max-pool" else x
        ties, rank = {"lowest": ("first", edges.src)}.get(attributes["ties"], (attributes["ties"], None))
        out = scatter_max(gather(pooled, edges.by_src), edges.by_dst, ties, rank)
    out = out @ inputs["neighbour.weight"]
    if "root.weight" in inputs:
        out = _own(inputs) @ inputs["root.weight"] + out
    return _plus(out, inputs.get("root.bias"))


def _sage_shapes(n_in, attributes):
    n_out, pool = attributes["n_out"], attributes["aggregator"] == "max-pool"
    shapes = {"root.weight": (n_in, n_out), "root.bias": (n_out,), "neighbour.weight": (n_in, n_out), "pool.weight": (n_in, n_in),
              "pool.bias": (n_in,)}  # fmt: skip
    return _present(shapes, {"root.weight": attributes["root"], "root.bias": attributes["bias"], "pool.weight": pool, "pool.bias": pool})


def _sage_told(shapes, attributes):
    n_in, n_out = shapes["neighbour.weight"]
    pool = {"aggregator": "max-pool"} if "pool.weight" in shapes else {}
    return {"n_in": n_in, "n_out": n_out, "bias": "root.bias" in shapes, "root": "root.weight" in shapes, **pool}


def _heads(out: Expr, inputs: Mapping[str, Any], attributes: Attributes) -> Expr:
    """Heads side by side, their mean, or an axis of their own; the residual and the bias."""
    n_rows, n_heads, n_feat = out.shape
    mean = attributes["heads"] == "mean"
    out = out.mean(1) if mean else out.reshape(n_rows, n_heads * n_feat)
    if attributes["residual"]:
        own = _own(inputs)
        out = out + (own @ inputs["root.weight"] if "root.weight" in inputs else own)
    out = _plus(out, inputs.get("bias"))
    return out.reshape(n_rows, n_heads, n_feat) if attributes["heads"] == "axis" else out


def _attended(z: Expr, scores: Expr, edges: EdgeList, attributes: Attributes) -> Expr:
    return propagate(z, edges.by_src, edges.by_dst, softmax(scores, edges.by_dst, attributes["epsilon"]))


def _gat(inputs, edges, attributes):
    """sum_j a_ij z_j, a_ij = softmax_j(leaky(a_src . z_j + a_dst . z_i)), z = W h, by head (Velickovic et al. 2018, eq. 3, 4)."""
    edges, _ = looped(edges, None, attributes["self_loops"])
    n_heads, n_feat = inputs["attn_src"].shape

    def by_head(x):
        return (x @ inputs["linear.weight"]).reshape(x.shape[0], n_heads, n_feat)

    z = by_head(inputs["x"])
    z_dst = z if "x_dst" not in inputs else by_head(inputs["x_dst"])
    src, dst = (z * inputs["attn_src"]).sum(2), (z_dst * inputs["attn_dst"]).sum(2)
    scores = leaky(gather(src, edges.by_src) + gather(dst, edges.by_dst), attributes["slope"])
    return _heads(_attended(z, scores, edges, attributes), inputs, attributes)


def _gatv2(inputs, edges, attributes):
    """sum_j a_ij z_j, a_ij = softmax_j(a . leaky(z_j + q_i)), z = W_src h + b, q = W_dst h + b (Brody, Alon and Yahav 2022, eq. 7)."""
    edges, _ = looped(edges, None, attributes["self_loops"])
    n_heads, n_feat = inputs["attn"].shape
    to = "linear_src" if attributes["share_weights"] else "linear_dst"

    def by_head(x, name):
        return _plus(x @ inputs[f"{name}.weight"], inputs.get(f"{name}.bias")).reshape(x.shape[0], n_heads, n_feat)

    z, q = by_head(inputs["x"], "linear_src"), by_head(_own(inputs), to)
    sums = leaky(gather(z, edges.by_src) + gather(q, edges.by_dst), attributes["slope"])
    return _heads(_attended(z, (sums * inputs["attn"]).sum(2), edges, attributes), inputs, attributes)


def _out_width(attributes):
    n_feat, n_heads = attributes["n_feat"], attributes["n_heads"]
    return n_feat if attributes["heads"] == "mean" else n_heads * n_feat


def _projected(n_in, attributes):
    """Whether the residual has a matrix: PyG's always, others' where the widths differ."""
    return attributes["residual"] and (attributes["dialect"] == "pyg" or n_in != _out_width(attributes))


def _gat_shapes(n_in, attributes):
    heads = (attributes["n_heads"], attributes["n_feat"])
    width = heads[0] * heads[1]
    shapes = {"linear.weight": (n_in, width), "attn_src": heads, "attn_dst": heads, "bias": (_out_width(attributes),),
              "root.weight": (n_in, _out_width(attributes))}  # fmt: skip
    return _present(shapes, {"bias": attributes["bias"], "root.weight": _projected(n_in, attributes)})


def _gatv2_shapes(n_in, attributes):
    heads = (attributes["n_heads"], attributes["n_feat"])
    width, bias, apart = heads[0] * heads[1], attributes["bias"], not attributes["share_weights"]
    shapes = {"linear_src.weight": (n_in, width), "linear_src.bias": (width,), "linear_dst.weight": (n_in, width),
              "linear_dst.bias": (width,), "attn": heads, "bias": (_out_width(attributes),),
              "root.weight": (n_in, _out_width(attributes))}  # fmt: skip
    projected = _projected(n_in, attributes)
    last = bias and (attributes["dialect"] != "dgl" or projected)  # DGL's has one in its projected residual alone
    return _present(shapes, {"linear_src.bias": bias, "linear_dst.weight": apart, "linear_dst.bias": bias and apart, "bias": last,
                             "root.weight": projected})  # fmt: skip


def _heads_told(shapes, attributes, attn, weight, bias):
    n_heads, n_feat = shapes[attn]
    told = {"n_in": shapes[weight][0], "n_heads": n_heads, "n_feat": n_feat, "bias": bias in shapes}
    width = next((shapes[name][-1] for name in ("bias", "root.weight") if name in shapes), None)
    if n_heads > 1 and width == n_feat:
        told["heads"] = "mean"
    return {**told, "residual": True} if "root.weight" in shapes else told


def _gat_told(shapes, attributes):
    return _heads_told(shapes, attributes, "attn_src", "linear.weight", "bias")


def _gatv2_told(shapes, attributes):
    told = _heads_told(shapes, attributes, "attn", "linear_src.weight", "linear_src.bias")
    return told if "linear_dst.weight" in shapes else {**told, "share_weights": True}


def _rgcn(inputs, edges, attributes):
    """W_root h_i + b + sum_r (sum or mean over j in N_r(i)) W_r h_j, W_r = sum_b c_rb V_b (Schlichtkrull et al. 2018, eq. 2, 3)."""
    x, bases, relation = inputs["x"], inputs["bases"], np.asarray(inputs["relation"])
    n_bases, n_in, n_out = bases.shape
    weights = bases.reshape(n_bases, n_in * n_out)
    weights = weights if "coefficients" not in inputs else inputs["coefficients"] @ weights
    _within("relation", relation, weights.shape[0])
    out = constant(np.zeros((edges.n_dst, n_out)))
    for r in range(weights.shape[0]):
        part = edges.select(relation == r)
        rows = propagate(x, part.by_src, part.by_dst)
        rows = rows / np.maximum(part.in_degrees, 1)[:, None] if attributes["reduce"] == "mean" else rows
        out = out + rows @ weights.slice(r, r + 1).reshape(n_in, n_out)
    if "root.weight" in inputs:
        out = out + _own(inputs) @ inputs["root.weight"]
    return _plus(out, inputs.get("bias"))


def _within(name, index, n):
    if len(index) and (index.min() < 0 or index.max() >= n):
        raise DataError(f"{name}: numbers from 0 to {n - 1} are asked for, but there is {index.min() if index.min() < 0 else index.max()}")


def _rgcn_shapes(n_in, attributes):
    n_out, n_relations, n_bases = attributes["n_out"], attributes["n_relations"], attributes["n_bases"]
    shapes = {"bases": (n_bases or n_relations, n_in, n_out), "coefficients": (n_relations, n_bases), "root.weight": (n_in, n_out),
              "bias": (n_out,)}  # fmt: skip
    return _present(shapes, {"coefficients": n_bases > 0, "root.weight": attributes["root"], "bias": attributes["bias"]})


def _rgcn_told(shapes, attributes):
    n_bases, n_in, n_out = shapes["bases"]
    n_relations, n_bases = shapes.get("coefficients", (n_bases, 0))
    return {"n_in": n_in, "n_out": n_out, "n_relations": n_relations, "n_bases": n_bases, "root": "root.weight" in shapes,
            "bias": "bias" in shapes}  # fmt: skip


def moments(x: Expr) -> tuple[Expr, Expr]:
    """The mean and the biased variance of each column, (1, n_feat)."""
    mean = x.mean(0, keepdims=True)
    difference = x - mean
    return mean, (difference * difference).mean(0, keepdims=True)


def _batch_norm(inputs, edges, attributes):
    """(x - mean) / sqrt(var + eps) * gamma + beta, the moments of the rows or, out of training, the running ones (Ioffe and Szegedy 2015)."""
    x = inputs["x"]
    mean, var = moments(x) if attributes["training"] else (inputs["running_mean"], inputs["running_var"])
    out = (x - mean) / sqrt(var + attributes["eps"])
    return out if "gamma" not in inputs else out * inputs["gamma"] + inputs["beta"]


def running(inputs: Mapping[str, Any], attributes: Attributes) -> dict[str, Expr]:
    """The running moments after a step: of the mean, and of the variance over n - 1."""
    x, momentum = inputs["x"], attributes["momentum"]
    mean, var = moments(x)
    n, n_feat = x.shape
    new = {"running_mean": mean.reshape(n_feat), "running_var": var.reshape(n_feat) * n / max(n - 1, 1)}
    return {name: inputs[name] * (1.0 - momentum) + value * momentum for name, value in new.items() if name in inputs}


def _batch_norm_shapes(n_in, attributes):
    names = dialects.PAPER["batch_norm"]
    affine, tracked = attributes["affine"], attributes["tracked"]
    return _present(dict.fromkeys(names, (n_in,)), dict(zip(names, (affine, affine, tracked, tracked))))


def _batch_norm_told(shapes, attributes):
    return {"n_in": next(iter(shapes.values()))[0], "affine": "gamma" in shapes, "tracked": "running_mean" in shapes}


# ---- the table

_YES, _NO = (True, False), (False, True)
_LOOPS = ("none", "missing", "replace")
_HEADS: dict[str, Any] = dict(
    sizes={"n_heads": 2, "n_feat": 3}, numbers={"slope": 0.2, "epsilon": 0.0},
    options={"heads": ("concat", "mean", "axis"), "self_loops": _LOOPS, "residual": _NO, "bias": _YES, "allow_zero_in_degree": _YES},
)  # fmt: skip


def _gcn_arrays(edges, n_in, attributes):
    return {"x": (edges.n_src, n_in), **({"edge_weight": (edges.n_edges,)} if attributes["weighted"] else {})}


def _rgcn_arrays(edges, n_in, attributes):
    return {**rows_of(edges, n_in), "relation": (edges.n_edges,)}


def _norm_outputs(inputs, attributes):
    return running(inputs, attributes) if attributes["training"] and attributes["running"] else {}


LAYERS = {
    "gcn": Layer("gcn", _gcn, _gcn_shapes, _gcn_told, {"n_out": 4},
                 {"norm": ("in", "both", "left", "right", "none"), "self_loops": _LOOPS, "isolated": ("one", "zero"), "weighted": _NO,
                  "bias": _YES, "allow_zero_in_degree": _YES}, arrays=_gcn_arrays),
    "sage": Layer("sage", _sage, _sage_shapes, _sage_told, {"n_out": 4},
                  {"aggregator": ("mean", "max-pool", "max"), "ties": ("lowest", "first", "all"), "root": _YES, "bias": _YES}),
    "gat": Layer("gat", _gat, _gat_shapes, _gat_told, **_HEADS),
    "gatv2": Layer("gatv2", _gatv2, _gatv2_shapes, _gatv2_told, **{**_HEADS, "options": {**_HEADS["options"], "share_weights": _NO}}),
    "rgcn": Layer("rgcn", _rgcn, _rgcn_shapes, _rgcn_told, {"n_out": 4, "n_relations": 3, "n_bases": 2},
                  {"reduce": ("mean", "sum"), "root": _YES, "bias": _YES}, arrays=_rgcn_arrays),
    "batch_norm": Layer("batch_norm", _batch_norm, _batch_norm_shapes, _batch_norm_told, {},
                        {"training": _YES, "running": _NO, "affine": _YES, "tracked": _YES}, {"eps": 1e-5, "momentum": 0.1},
                        arrays=lambda edges, n_in, attributes: {"x": (edges.n_dst, n_in)}, more=_norm_outputs),
}  # fmt: skip
for _layer in LAYERS.values():
    define(definition(_layer))

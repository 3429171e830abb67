"""Layers such as GCN and GAT as formulas, with parameters by the paper's names, and `LAYERS`, the table of layers."""

from __future__ import annotations

import numpy as np

from sarlite.errors import ConfigError, DataError
from sarlite.oracle.case import AttributeDict, Attributes
from sarlite.oracle.definition import Inputs, Shapes, define
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.expression import Expr, barrier, constant, gather, leaky, propagate, relu, scatter_sum, sqrt, where
from sarlite.oracle.layer import LOOPS, NO, YES, LayerFormula, add_if_present, definition, destination_rows, rows_of, with_self_loops
from sarlite.oracle.operations import TIES, edge_softmax, extremum, mean
from sarlite.types import Array


def _inverse_root(degree: Expr, counts: Array, isolated: str) -> Expr:
    """Return degree^-1/2 of each row, shape (n, 1). A row without edges (its count in `counts` is 0) gets 1 if `isolated` is
    "one", else 0.
    """
    root = 1.0 / sqrt(degree + constant((counts == 0) * 1.0))
    return (root if isolated == "one" else where(counts > 0, root)).reshape(-1, 1)


def _normed(x: Expr, edges: EdgeList, weight: Expr | None, attributes: Attributes) -> Expr:
    """Return each destination's sum of the source rows in x, weighted by `weight` (None: all 1) and scaled as attributes["norm"]
    says. "both" multiplies sources by out-degree^-1/2 and destinations by in-degree^-1/2, "in" both by in-degree^-1/2. "left"
    divides sources by out-degrees, "right" destinations by in-degrees, and "none" does nothing.
    """
    norm, isolated, by_src, by_dst = attributes["norm"], attributes["isolated"], edges.by_src, edges.by_dst
    if norm == "in" and edges.n_src != edges.n_dst:
        raise ConfigError(f"norm 'in' takes one set of rows: there are {edges.n_src} source rows, "
                          f"and {edges.n_dst} destination rows")

    def degree(index):
        unweighted = weight is None or norm != "in"  # DGL counts edges
        return constant(index.counts * 1.0) if unweighted else scatter_sum(weight, index)

    right = _inverse_root(degree(by_dst), by_dst.counts, isolated) if norm in ("in", "both") else None
    if norm == "in" and right is not None:
        x = x * right
    elif norm == "both":
        x = x * _inverse_root(degree(by_src), by_src.counts, isolated)
    elif norm == "left":
        x = x / np.maximum(by_src.counts, 1)[:, None]
    out = propagate(x, by_src, by_dst, weight)
    if norm == "right":
        return out / np.maximum(by_dst.counts, 1)[:, None]
    return out if right is None else out * right


# ---- the layers


def _gcn(inputs: Inputs, edges: EdgeList, attributes: Attributes) -> Expr:
    """Return a GCN layer's output, D^-1/2 A D^-1/2 X W + b (Kipf and Welling 2017, eq. 2, 8)."""
    edges, weight = with_self_loops(edges, inputs.get("edge_weight"), attributes["self_loops"])
    return add_if_present(_normed(inputs["x"], edges, weight, attributes) @ inputs["linear.weight"], inputs.get("bias"))


def _sage(inputs: Inputs, edges: EdgeList, attributes: Attributes) -> Expr:
    """Return GraphSAGE's W_root h_i + b + W agg_j h_j; agg is the mean, the maximum, or the maximum of relu(W_pool h_j + b_pool).
    Source: Hamilton, Ying and Leskovec 2017, eq. 3.
    """
    x = inputs["x"]
    if attributes["aggregator"] == "mean":
        out = mean(propagate(x, edges.by_src, edges.by_dst), edges)
    else:
        pooled = relu(x @ inputs["pool.weight"] + inputs["pool.bias"]) if attributes["aggregator"] == "max-pool" else x
        out = extremum(gather(pooled, edges.by_src), edges, "max", attributes["ties"])
    out = out @ inputs["neighbour.weight"]
    if "root.weight" in inputs:
        out = destination_rows(inputs) @ inputs["root.weight"] + out
    return add_if_present(out, inputs.get("root.bias"))


def _rgcn(inputs: Inputs, edges: EdgeList, attributes: Attributes) -> Expr:
    """Return R-GCN's W_root h_i + b + sum_r (sum or mean over j in N_r(i)) W_r h_j, with W_r = sum_b c_rb V_b. Source:
    Schlichtkrull et al. 2018, eq. 2, 3.
    """
    x, bases, relation = inputs["x"], inputs["bases"], np.asarray(inputs["relation"])
    n_bases, n_in, n_out = bases.shape
    weights = bases.reshape(n_bases, n_in * n_out)
    weights = weights if "coefficients" not in inputs else inputs["coefficients"] @ weights
    _within("relation", relation, weights.shape[0])
    out = constant(np.zeros((edges.n_dst, n_out)))
    for r in range(weights.shape[0]):
        part = edges.select(relation == r)
        rows = propagate(x, part.by_src, part.by_dst)
        rows = mean(rows, part) if attributes["reduce"] == "mean" else rows
        out = out + rows @ weights.slice(r, r + 1).reshape(n_in, n_out)
    if "root.weight" in inputs:
        out = out + destination_rows(inputs) @ inputs["root.weight"]
    return add_if_present(out, inputs.get("bias"))


def _within(name, index, n):
    if len(index) and (index.min() < 0 or index.max() >= n):
        odd = index.min() if index.min() < 0 else index.max()
        raise DataError(f"{name}: expected numbers from 0 to {n - 1}, found {odd}")


def _rgcn_inferred(shapes: Shapes, inferred: Attributes) -> AttributeDict:
    """Return {"n_relations": number of matrices, "n_bases": 0} if `shapes`, of the parameters in an R-GCN state dict, have one
    weight matrix for each relation; {} if the matrices are combined from bases. `inferred` is unused.
    """
    return {} if "coefficients" in shapes or "bases" not in shapes else {
        "n_relations": shapes["bases"][0], "n_bases": 0}


def _heads(out: Expr, inputs: Inputs, attributes: Attributes) -> Expr:
    """Return `out`, shape (n, heads, features), plus residual and bias. attributes["heads"] says if heads are concatenated
    ("concat"), averaged ("mean") or kept as an axis ("axis").
    """
    n_rows, n_heads, n_feat = out.shape
    mean = attributes["heads"] == "mean"
    out = out.mean(1) if mean else out.reshape(n_rows, n_heads * n_feat)
    if attributes["residual"]:
        x_dst = destination_rows(inputs)
        out = out + (x_dst @ inputs["root.weight"] if "root.weight" in inputs else x_dst)
    out = add_if_present(out, inputs.get("bias"))
    return out.reshape(n_rows, n_heads, n_feat) if attributes["heads"] == "axis" else out


def _attended(z: Expr, scores: Expr, edges: EdgeList, attributes: Attributes) -> Expr:
    return propagate(z, edges.by_src, edges.by_dst,
                     edge_softmax(scores, edges, attributes["dialect"], attributes["epsilon"]))


def _gat(inputs: Inputs, edges: EdgeList, attributes: Attributes) -> Expr:
    """Return a GAT layer's sum_j a_ij z_j by head, with a_ij = softmax_j(leaky(a_src . z_j + a_dst . z_i)) and z = W h. Source:
    Velickovic et al. 2018, eq. 3, 4.
    """
    edges, _ = with_self_loops(edges, None, attributes["self_loops"])
    n_heads, n_feat = inputs["attn_src"].shape

    def by_head(x):
        return (x @ inputs["linear.weight"]).reshape(x.shape[0], n_heads, n_feat)

    z = by_head(inputs["x"])
    z_dst = z if "x_dst" not in inputs else by_head(inputs["x_dst"])
    src, dst = (z * inputs["attn_src"]).sum(2), (z_dst * inputs["attn_dst"]).sum(2)
    scores = leaky(gather(src, edges.by_src) + gather(dst, edges.by_dst), attributes["slope"])
    return _heads(_attended(z, scores, edges, attributes), inputs, attributes)


def _gatv2(inputs: Inputs, edges: EdgeList, attributes: Attributes) -> Expr:
    """Return GATv2's sum_j a_ij z_j, with a_ij = softmax_j(a . leaky(z_j + q_i)), z = W_src h + b and q = W_dst h + b. Source:
    Brody, Alon and Yahav 2022, eq. 7.
    """
    edges, _ = with_self_loops(edges, None, attributes["self_loops"])
    n_heads, n_feat = inputs["attn"].shape
    to = "linear_src" if attributes["share_weights"] else "linear_dst"

    def by_head(x, name):
        return add_if_present(x @ inputs[f"{name}.weight"], inputs.get(f"{name}.bias")).reshape(x.shape[0], n_heads, n_feat)

    z, q = by_head(inputs["x"], "linear_src"), by_head(destination_rows(inputs), to)
    sums = leaky(gather(z, edges.by_src) + gather(q, edges.by_dst), attributes["slope"])
    return _heads(_attended(z, (sums * inputs["attn"]).sum(2), edges, attributes), inputs, attributes)


def _out_width(attributes):
    n_feat, n_heads = attributes["n_feat"], attributes["n_heads"]
    return n_feat if attributes["heads"] == "mean" else n_heads * n_feat


def _derived(n_in: int, attributes: Attributes) -> AttributeDict:
    """Return by name the widths of a GAT layer with `n_in` input columns, such as "out_width", and flags that say which
    parameters the layer has. "projected" means that the residual is multiplied by a matrix: in PyG always, elsewhere if the input
    and output widths differ.
    """
    width, dialect, bias = _out_width(attributes), attributes["dialect"], attributes["bias"]
    projected = attributes["residual"] and (dialect == "pyg" or n_in != width)
    separate = not attributes.get("share_weights", False)
    return {"width": attributes["n_heads"] * attributes["n_feat"], "out_width": width, "projected": projected,
            "separate": separate, "separate_bias": bias and separate,
            "last_bias": bias and (dialect != "dgl" or projected)}  # in DGL only a projected residual has a bias


def _inferred(shapes, inferred):
    width = next((shapes[name][-1] for name in ("bias", "root.weight") if name in shapes), None)
    attributes: AttributeDict = {"residual": True} if "root.weight" in shapes else {}
    if inferred.get("n_heads", 1) > 1 and width == inferred["n_feat"]:
        attributes["heads"] = "mean"
    return attributes


def _gatv2_inferred(shapes, inferred):
    return {**_inferred(shapes, inferred), **({} if "linear_dst.weight" in shapes else {"share_weights": True})}


def moments(x: Expr) -> tuple[Expr, Expr]:
    """Return (mean, variance) of each column of x, shape (1, n_feat) each; the variance is divided by n."""
    centre = x.mean(0, keepdims=True)
    difference = barrier(x - centre)  # otherwise the bound would allow E[x^2] - E[x]^2, which cancels for large means
    return centre, (difference * difference).mean(0, keepdims=True)


def _batch_norm(inputs: Inputs, edges: EdgeList, attributes: Attributes) -> Expr:
    """Return batch norm's (x - mean) / sqrt(var + eps) * gamma + beta. If attributes["training"] is True, mean and variance of
    each column of x are used, else the running values in `inputs`. `edges` is unused.

    The formula is written as x scale + (beta - mean scale), as kernels may compute that, in which equal rows do not
    give exactly beta. Source: Ioffe and Szegedy 2015.
    """
    x = inputs["x"]
    centre, var = moments(x) if attributes["training"] else (inputs["running_mean"], inputs["running_var"])
    scale = 1.0 / sqrt(var + attributes["eps"])
    scale = scale * inputs["gamma"] if "gamma" in inputs else scale
    out = x * scale - centre * scale
    return out + inputs["beta"] if "gamma" in inputs else out


def running(inputs: Inputs, attributes: Attributes) -> dict[str, Expr]:
    """Return the running values of batch norm after a training step, {"running_mean": array, "running_var": array}; {} outside
    training or if attributes["running"] is False. The variance of the step is divided by n - 1.
    """
    if not (attributes["training"] and attributes["running"]):
        return {}
    x, momentum = inputs["x"], attributes["momentum"]
    centre, var = moments(x)
    n, n_feat = x.shape
    new = {"running_mean": centre.reshape(n_feat), "running_var": var.reshape(n_feat) * n / max(n - 1, 1)}
    return {name: inputs[name] * (1.0 - momentum) + value * momentum for name, value in new.items() if name in inputs}


# ---- the table


_SIZES = {"n_heads": 2, "n_feat": 3}
_NUMBERS = {"slope": 0.2, "epsilon": 0.0}
_OPTIONS: dict[str, tuple[object, ...]] = {
    "heads": ("concat", "mean", "axis"), "self_loops": LOOPS, "residual": NO, "bias": YES, "allow_zero_in_degree": YES,
}  # fmt: skip

_SQUARE = {"n_feat": 2}  # equal to n_heads

LAYERS = {
    "gcn": LayerFormula("gcn", _gcn, {"n_out": 4},
                 {"norm": ("in", "both", "left", "right", "none"), "self_loops": LOOPS, "isolated": ("one", "zero"),
                  "weighted": NO, "bias": YES, "allow_zero_in_degree": YES},
                 arrays=lambda edges, n_in, attributes: {
                     "x": (edges.n_src, n_in),
                     **({"edge_weight": (edges.n_edges,)} if attributes["weighted"] else {})}),
    "sage": LayerFormula("sage", _sage, {"n_out": 4},
                  {"aggregator": ("mean", "max-pool", "max"), "ties": TIES, "root": YES, "bias": YES},
                  derived=lambda n_in, attributes: {"pool": attributes["aggregator"] == "max-pool"},
                  infer_more=lambda shapes, inferred: {"aggregator": "max-pool"} if "pool.weight" in shapes else {}),
    "gat": LayerFormula("gat", _gat, _SIZES, _OPTIONS, _NUMBERS, _SQUARE, derived=_derived, infer_more=_inferred),
    "gatv2": LayerFormula("gatv2", _gatv2, _SIZES, {**_OPTIONS, "share_weights": NO}, _NUMBERS, _SQUARE, derived=_derived,
                   infer_more=_gatv2_inferred),
    "rgcn": LayerFormula("rgcn", _rgcn, {"n_out": 4, "n_relations": 3, "n_bases": 2},
                  {"reduce": ("mean", "sum"), "root": YES, "bias": YES}, square={"n_bases": 3},
                  arrays=lambda edges, n_in, attributes: {**rows_of(edges, n_in), "relation": (edges.n_edges,)},
                  derived=lambda n_in, attributes: {"n_matrices": attributes["n_bases"] or attributes["n_relations"]},
                  infer_more=_rgcn_inferred),
    "batch_norm": LayerFormula("batch_norm", _batch_norm, {}, {"training": YES, "running": NO, "affine": YES, "tracked": YES},
                        {"eps": 1e-5, "momentum": 0.1},
                        arrays=lambda edges, n_in, attributes: {"x": (edges.n_dst, n_in)}, extra_outputs=running),
}  # fmt: skip
for _layer in LAYERS.values():
    define(definition(_layer))

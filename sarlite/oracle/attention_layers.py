"""GAT and GATv2 as formulas, by the paper's names of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sarlite.oracle.definition import Attributes
from sarlite.oracle.edges import EdgeList
from sarlite.oracle.expression import Expr, gather, leaky, propagate
from sarlite.oracle.layer import LOOPS, NO, YES, Layer, looped, own_rows, plus
from sarlite.oracle.operations import edge_softmax


def _heads(out: Expr, inputs: Mapping[str, Any], attributes: Attributes) -> Expr:
    """Heads side by side, their mean, or an axis of their own; the residual and the bias."""
    n_rows, n_heads, n_feat = out.shape
    mean = attributes["heads"] == "mean"
    out = out.mean(1) if mean else out.reshape(n_rows, n_heads * n_feat)
    if attributes["residual"]:
        own = own_rows(inputs)
        out = out + (own @ inputs["root.weight"] if "root.weight" in inputs else own)
    out = plus(out, inputs.get("bias"))
    return out.reshape(n_rows, n_heads, n_feat) if attributes["heads"] == "axis" else out


def _attended(z: Expr, scores: Expr, edges: EdgeList, attributes: Attributes) -> Expr:
    return propagate(z, edges.by_src, edges.by_dst,
                     edge_softmax(scores, edges, attributes["dialect"], attributes["epsilon"]))


def _gat(inputs, edges, attributes):
    """sum_j a_ij z_j, a_ij = softmax_j(leaky(a_src . z_j + a_dst . z_i)), z = W h, by head.

    Source: Velickovic et al. 2018, eq. 3, 4.
    """
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
    """sum_j a_ij z_j, a_ij = softmax_j(a . leaky(z_j + q_i)), z = W_src h + b, q = W_dst h + b.

    Source: Brody, Alon and Yahav 2022, eq. 7.
    """
    edges, _ = looped(edges, None, attributes["self_loops"])
    n_heads, n_feat = inputs["attn"].shape
    to = "linear_src" if attributes["share_weights"] else "linear_dst"

    def by_head(x, name):
        return plus(x @ inputs[f"{name}.weight"], inputs.get(f"{name}.bias")).reshape(x.shape[0], n_heads, n_feat)

    z, q = by_head(inputs["x"], "linear_src"), by_head(own_rows(inputs), to)
    sums = leaky(gather(z, edges.by_src) + gather(q, edges.by_dst), attributes["slope"])
    return _heads(_attended(z, (sums * inputs["attn"]).sum(2), edges, attributes), inputs, attributes)


def _out_width(attributes):
    n_feat, n_heads = attributes["n_feat"], attributes["n_heads"]
    return n_feat if attributes["heads"] == "mean" else n_heads * n_feat


def _derived(n_in, attributes):
    """The residual has a matrix: PyG's always, others' where the widths differ."""
    width, dialect, bias = _out_width(attributes), attributes["dialect"], attributes["bias"]
    projected = attributes["residual"] and (dialect == "pyg" or n_in != width)
    apart = not attributes.get("share_weights", False)
    return {"width": attributes["n_heads"] * attributes["n_feat"], "out_width": width, "projected": projected,
            "apart": apart, "apart_bias": bias and apart,
            "last_bias": bias and (dialect != "dgl" or projected)}  # DGL's has one in its projected residual alone


def _told(shapes, told):
    width = next((shapes[name][-1] for name in ("bias", "root.weight") if name in shapes), None)
    found: dict[str, Any] = {"residual": True} if "root.weight" in shapes else {}
    if told.get("n_heads", 1) > 1 and width == told["n_feat"]:
        found["heads"] = "mean"
    return found


def _gatv2_told(shapes, told):
    return {**_told(shapes, told), **({} if "linear_dst.weight" in shapes else {"share_weights": True})}


_SIZES = {"n_heads": 2, "n_feat": 3}
_NUMBERS = {"slope": 0.2, "epsilon": 0.0}
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "heads": ("concat", "mean", "axis"), "self_loops": LOOPS, "residual": NO, "bias": YES, "allow_zero_in_degree": YES,
}  # fmt: skip

_SQUARE = {"n_feat": 2}  # as many as heads

GAT = Layer("gat", _gat, _SIZES, _OPTIONS, _NUMBERS, _SQUARE, derived=_derived, told=_told)
GATV2 = Layer("gatv2", _gatv2, _SIZES, {**_OPTIONS, "share_weights": NO}, _NUMBERS, _SQUARE, derived=_derived,
              told=_gatv2_told)

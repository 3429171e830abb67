"""The operations on edges as formulas: spmm, scatter, gather, sddmm, softmax, attention and sample.

Edge e goes from source j = src[e] to destination i = dst[e].
"""

from __future__ import annotations

import numpy as np

from sarlite.errors import ConfigError
from sarlite.oracle.case import Attributes
from sarlite.oracle.definition import Definition, Inputs, define
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.expression import (
    Expr,
    concat,
    constant,
    edge_dot,
    gather,
    leaky,
    propagate,
    scatter_max,
    scatter_min,
    scatter_sum,
    softmax,
    sqrt,
    undecided_if_masked,
)

# Receiver of a maximum's gradient among tied entries: the entry of the lowest source, the first edge, or all in equal
# shares, as in torch.scatter_reduce.
TIES = ("lowest", "first", "all")
EPSILON = {"pyg": 1e-16}  # added to the denominator of a softmax, by dialect
# These dialects give NaN for a row with scores of -Inf alone, but promise nothing; the paper's softmax is 0.
NAN_OF_MASKED = ("dgl", "pyg")


def extremum(messages: Expr, edges: EdgeList, reduce: str, ties: str) -> Expr:
    """Return the maximum or minimum of each destination's messages, 0 for a destination without edges; `reduce` is "max" or
    "min". `messages` has a row for each edge. Among equal messages, `ties` gives the gradient to the "lowest" source, the "first"
    edge, or "all" in equal shares.
    """
    how = (edges.by_dst, "all" if ties == "all" else "first", edges.src if ties == "lowest" else None)
    return scatter_max(messages, *how) if reduce == "max" else scatter_min(messages, *how)


def mean(total: Expr, edges: EdgeList) -> Expr:
    """Return `total`, shape (n_dst, ...), divided by each destination's in-degree; a degree of 0 counts as 1."""
    return total / np.maximum(edges.in_degrees, 1).reshape(-1, *[1] * (len(total.shape) - 1))


def edge_softmax(scores: Expr, edges: EdgeList, dialect: str, epsilon: float | None = None) -> Expr:
    """Return the softmax of `scores`, shape (n_edges, ...), over each destination's in-edges, as the library `dialect` computes
    it. `epsilon` is added to the denominator; None means the library's own value.
    """
    out = softmax(scores, edges.by_dst, EPSILON.get(dialect, 0.0) if epsilon is None else epsilon)
    return undecided_if_masked(out, scores, edges.by_dst) if dialect in NAN_OF_MASKED else out


def with_loops(edges: EdgeList) -> EdgeList:
    """Return `edges` followed by one self loop for each row; raise ConfigError unless sources and destinations are the same rows."""
    if edges.n_src != edges.n_dst:
        raise ConfigError(f"loops: there are {edges.n_src} source rows, and {edges.n_dst} destination rows")
    return edges.with_loops(np.arange(edges.n_dst))


def symmetric(x: Expr, edges: EdgeList, weight: Expr | None = None, degrees: str = "both") -> Expr:
    """Return D^-1/2 A D^-1/2 x for the adjacency matrix A of `edges` with the entries `weight` (None: all 1). A degree in D is at
    least 1; a source counts its out-edges, or its in-edges if `degrees` is "in".
    """
    source = edges.in_degrees if degrees == "in" else edges.out_degrees
    if len(source) != edges.n_src:
        raise ConfigError(f"degrees: 'in' takes one set of rows; there are {edges.n_src} source rows, "
                          f"and {edges.n_dst} destination rows")

    scale = gather(1.0 / sqrt(constant(np.maximum(source, 1))), edges.by_src)
    weight = scale if weight is None else weight * scale
    return propagate(x, edges.by_src, edges.by_dst, weight) / sqrt(constant(np.maximum(edges.in_degrees, 1)[:, None]))


# ---- spmm: out_i = reduce over e into i of weight_e * x_j


def _spmm(inputs, edges, attributes):
    x, weight, reduce = inputs["x"], inputs.get("weight"), attributes["reduce"]
    if attributes["loops"]:
        edges = with_loops(edges)
        weight = None if weight is None else concat([weight, constant(np.ones(edges.n_dst))])
    if reduce in ("max", "min"):
        messages = gather(x, edges.by_src)
        messages = messages if weight is None else messages * weight.reshape(-1, 1)
        return {"out": extremum(messages, edges, reduce, attributes["ties"])}
    if reduce == "sym":
        return {"out": symmetric(x, edges, weight, attributes["degrees"])}
    total = propagate(x, edges.by_src, edges.by_dst, weight)
    return {"out": mean(total, edges) if reduce == "mean" else total}


def _spmm_arrays(edges, width, attributes):
    return {"x": (edges.n_src, width), **({"weight": (edges.n_edges,)} if attributes["weighted"] else {})}


define(Definition("spmm", _spmm, _spmm_arrays,
                  {"reduce": ("sum", "mean", "max", "min", "sym"), "weighted": (False, True), "ties": TIES,
                                                "loops": (False, True), "degrees": ("both", "in")}))

# ---- scatter: out_i = reduce over e into i of messages_e; gather: out_e = x_j


def _scatter(inputs, edges, attributes):
    messages, reduce = inputs["messages"], attributes["reduce"]
    if reduce in ("max", "min"):
        return {"out": extremum(messages, edges, reduce, attributes["ties"])}
    total = scatter_sum(messages, edges.by_dst)
    return {"out": mean(total, edges) if reduce == "mean" else total}


define(Definition("scatter", _scatter, lambda edges, width, attributes: {"messages": (edges.n_edges, width)},
                  {"reduce": ("sum", "mean", "max", "min"), "ties": TIES}))

define(Definition("gather", lambda inputs, edges, attributes: {"out": gather(inputs["x"], edges.by_src)},
                  lambda edges, width, attributes: {"x": (edges.n_src, width)}, outputs_by={"out": "edge"}))

# ---- sddmm: out_e = x_j op y_i, (n_edges, width); of dot, (n_edges,)


def _sddmm(inputs, edges, attributes):
    x, y, op = inputs["x"], inputs["y"], attributes["op"]
    if op == "dot":
        return {"out": edge_dot(x, y, edges.by_src, edges.by_dst)}
    x, y = gather(x, edges.by_src), gather(y, edges.by_dst)
    return {"out": x + y if op == "add" else x - y if op == "sub" else x * y}


define(Definition("sddmm", _sddmm,
                  lambda edges, width, attributes: {"x": (edges.n_src, width), "y": (edges.n_dst, width)},
                  {"op": ("dot", "add", "sub", "mul")}, outputs_by={"out": "edge"}))

# ---- softmax: out_e = exp(scores_e) / sum over the edges into i of exp(scores), (n_edges, heads = width)

define(Definition("softmax", lambda inputs, edges, attributes: {"out": edge_softmax(inputs["scores"], edges,
                                                                                    attributes["dialect"])},
                  lambda edges, width, attributes: {"scores": (edges.n_edges, width)}, outputs_by={"out": "edge"}))

# ---- attention: out_i = sum over e into i of mask_e softmax(score)_e v_j, (n_dst, heads, width); coefficients: mask_e
# softmax(score)_e


def attention_scores(inputs: Inputs, edges: EdgeList, attributes: Attributes) -> tuple[Expr, Expr]:
    """Return (scores, values): the attention score of each edge and head, (n_edges, heads), and the source rows that attention
    averages. attributes["kind"] names the formula of the scores.

    gat    leaky(el_j + er_i), values z                 Velickovic et al. 2018; el, er: products of z and halves of a
    gatv2  a' leaky(z_src_j + z_dst_i), values z_src    Brody et al. 2022
    dot    q_i' k_j / sqrt(width), values v             Vaswani et al. 2017
    """
    j, i = edges.by_src, edges.by_dst
    if attributes["kind"] == "gat":
        return leaky(gather(inputs["el"], j) + gather(inputs["er"], i), attributes["slope"]), inputs["z"]
    if attributes["kind"] == "gatv2":
        hidden = leaky(gather(inputs["z_src"], j) + gather(inputs["z_dst"], i), attributes["slope"])
        return (hidden * inputs["attn"]).sum(2), inputs["z_src"]
    return edge_dot(inputs["q"], inputs["k"], i, j, heads=1) / sqrt(constant(inputs["q"].shape[2])), inputs["v"]


def _attention(inputs, edges, attributes):
    scores, values = attention_scores(inputs, edges, attributes)
    coefficients = edge_softmax(scores, edges, attributes["dialect"])
    if attributes["masked"]:
        coefficients = coefficients * inputs["mask"]
    out = {"out": propagate(values, edges.by_src, edges.by_dst, coefficients)}
    return {**out, "coefficients": coefficients} if attributes["coefficients"] else out


def _attention_arrays(edges, width, attributes):
    heads, of_src, of_dst = attributes["heads"], edges.n_src, edges.n_dst
    features = (heads, width)
    arrays = {"gat": {"z": (of_src, *features), "el": (of_src, heads), "er": (of_dst, heads)},
              "gatv2": {"z_src": (of_src, *features), "z_dst": (of_dst, *features), "attn": features},
              "dot": {"q": (of_dst, *features), "k": (of_src, *features), "v": (of_src, *features)}}[attributes["kind"]]
    return {**arrays, **({"mask": (edges.n_edges, heads)} if attributes["masked"] else {})}


define(Definition("attention", _attention, _attention_arrays,
                  {"kind": ("gat", "gatv2", "dot"), "heads": 2, "slope": 0.2, "masked": (False, True),
                   "coefficients": (False, True)},
                  outputs_by={"out": "dst", "coefficients": "edge"}, fixed=frozenset(["mask"]),
                  draw={"mask": lambda rng, shape, attributes: 2.0 * rng.integers(0, 2, shape)}))

# ---- sample: k of each row's in-edges, (n_picks,) edge numbers; a distribution, which sampler_checks.py tells


def _sample(inputs, edges, attributes):
    raise ConfigError("sample: many samples are correct, so a sample has no formula")


define(Definition("sample", _sample, lambda edges, width, attributes: {}, {"k": 2, "replace": (False, True), "seed": 0},
                  outputs_by={"out": "edge"}))

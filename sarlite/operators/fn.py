"""Built-in messages: values that name a fused kernel."""

from collections.abc import Callable
from typing import Any, NamedTuple

from sarlite.errors import ConfigError
from sarlite.operators.layer_contract import Inputs
from sarlite.tape import Tensor
from sarlite.types import Array


class CopySrc(NamedTuple):
    x: Tensor


class Linear(NamedTuple):
    x: Tensor
    weight: Tensor
    evaluation: str | None = None


class MulEdge(NamedTuple):
    x: Tensor
    weight: Tensor | Array


class Attend(NamedTuple):
    z: Tensor
    src: Tensor
    dst: Tensor
    slope: float
    dropout: float
    key: int
    edge: Array | None = None
    attn_edge: Tensor | None = None


class AttendLinear(NamedTuple):
    x: Tensor
    weight: Tensor
    src_weight: Tensor
    dst: Tensor
    slope: float
    dropout: float
    key: int
    dst_weight: Tensor | None


class Message(NamedTuple):
    function: Callable[..., Any]
    src: Inputs
    dst: Inputs
    edge: Inputs


BuiltIn = CopySrc | Linear | MulEdge | Attend | AttendLinear | Message


def copy_src(x: Tensor) -> CopySrc:
    """Message m_ij = x_j.

    Parameters
    ----------
    x : Tensor (n_src, ...)

    Notes
    -----
    Case 1 for every reducer. With a constant x and reducer sum, mean or sym the result is kept, as in `linear`.
    Source: SAR Eq. 2.
    """
    return CopySrc(x)


def linear(x: Tensor, weight: Tensor, evaluation: str | None = None) -> Linear:
    """Message m_ij = x_j W, with reducer sum, mean or sym.

    Parameters
    ----------
    x : Tensor (n_src, n_in)
    weight : Tensor (n_in, n_out)
    evaluation : {"product", "first", "inside"}, optional
        Order of evaluation: A (X W); (A X) W; or x_j W inside the message. The three are equal up to rounding. By
        default the cheaper one is taken: "product" or "first" on a graph, "first" or "inside" on a relation.

    Notes
    -----
    Case 1; case 2 if the weight is inside the message. On a graph, "product" is taken if n_out <= n_in, because it then
    aggregates and sends fewer values. If x needs no gradient, "first" aggregates nothing in backward, so "first" is
    taken if n_in < 2 n_out. In a batch, which has more sources than destinations, the rows of the products count too,
    and "first" is usually cheaper.

    With a constant x (`Tensor(x, constant=True)`) A X, (n_dst, n_in), is kept with the graph until x is freed. From the
    second call on nothing is aggregated or fetched, and the gradient of the weight is (A X)^T G. Source: MG-GCN 4.4.
    """
    return Linear(x, weight, evaluation)


def mul_edge(x: Tensor, weight: Tensor | Array) -> MulEdge:
    """Message m_ij = w_ij x_j.

    Parameters
    ----------
    x : Tensor (n_src, ...) or (n_src, n_heads, n_feat)
    weight : Tensor or ndarray (n_edges,), or (n_edges, n_heads) with an x of heads
        One value an edge of the graph, in the order of `graph.edge_ids`.

    Notes
    -----
    With reducer sum or mean: case 1 where the weights need no gradient, case 2 where they do.
    """
    return MulEdge(x, weight)


def attend(z: Tensor, src: Tensor, dst: Tensor, slope: float = 0.2, dropout: float = 0.0, key: int = 0, *,
           edge: Array | None = None, attn_edge: Tensor | None = None) -> Attend:
    """Message m_ij = a_ij z_j, with a_ij = softmax_j(leaky_relu(src_j + dst_i)).

    Parameters
    ----------
    z : Tensor (n_src, n_heads, n_feat), or (n_src, 1, n_feat)
        Rows to aggregate. With one head z is shared by all heads of the scores. If z_jh = x_j W_h, attention over x
        followed by a product with W_h gives the same result (`attend_linear` takes the cheaper way).
    src : Tensor (n_src, n_heads)
    dst : Tensor (n_dst, n_heads)
    slope : float
        Slope of the leaky ReLU below zero.
    dropout : float in [0, 1)
        Share of the coefficients a_ij that is dropped; the others grow by 1 / (1 - dropout).
    key : int
        Key of the dropout mask (`nn.Random.key`). A coefficient's random number depends on both nodes' global ids and
        on the head.
    edge : (n_edges, n_edge_features) array, optional
        Features of the local in-edges, such as `graph.edge_features`: the scores are then leaky_relu(src_j + dst_i +
        edge_ij attn_edge).
    attn_edge : Tensor (n_edge_features, n_heads)
        Weights of the edge features; needed with `edge`. In PyG's `GATConv`: the product of `lin_edge` and `att_edge`.

    Raises
    ------
    ConfigError
        Only one of `edge` and `attn_edge` is given; `edge` is None for a graph without edge features.

    Notes
    -----
    On a graph with edge weights m_ij = w_ij a_ij z_j. With edge weights or `edge` no fused kernel is used: the tape
    evaluates the message and holds the (n_edges, n_heads, n_feat) values of one block of edges at a time. Case 2. The
    coefficients are recomputed in backward and never stored: O(n_dst n_heads) bytes beside inputs and output. Source:
    SAR Eq. 3, fused as in SAR 3.3, softmax as in SAR 3.4.
    """
    if (edge is None) != (attn_edge is None):
        given, missing = ("attn_edge", "edge") if edge is None else ("edge", "attn_edge")
        raise ConfigError(f"fn.attend: {given} is given, but {missing} is None")
    return Attend(z, src, dst, slope, dropout, key, edge, attn_edge)


def attend_linear(x: Tensor, weight: Tensor, src_weight: Tensor, dst: Tensor, slope: float = 0.2, dropout: float = 0.0,
                  key: int = 0, dst_weight: Tensor | None = None) -> AttendLinear:
    """Message m_ij = a_ij x_j W, with a_ij = softmax_j(leaky_relu(x_j W_src + dst_i)), or dst_i W_dst for dst_i.

    Parameters
    ----------
    x : Tensor (n_src, n_in)
    weight : Tensor (n_in, n_heads * n_feat)
    src_weight : Tensor (n_in, n_heads)
    dst : Tensor (n_dst, n_heads), or (n_dst, n_own) with `dst_weight`
    slope, dropout, key
        See `attend`.
    dst_weight : Tensor (n_own, n_heads), optional

    Notes
    -----
    Equal to `attend` of z = x W. On relations x travels, once for all relations with its source type, and each rank
    computes the z of the rows that it fetched. On a graph either z travels, or x travels and its sums are multiplied
    by W, whichever is cheaper (`operators.evaluation`). Case 2.
    """
    return AttendLinear(x, weight, src_weight, dst, slope, dropout, key, dst_weight)


def message(function: Callable[..., Any], src: Inputs | None = None, dst: Inputs | None = None,
            edge: Inputs | None = None) -> Message:
    """Message m_ij = function(src_j, dst_i, edge_ij). `Graph.aggregate` also takes the function alone.

    Parameters
    ----------
    function : callable (src, dst, edge) -> Tensor, or a pair with reducer softmax
        See `Graph.aggregate`.
    src, dst, edge : dict of str to Tensor or ndarray
        Inputs of the function, by name: one row per source row, per destination row and per edge of this rank. Edges
        are in the order of `edge_ids`.

    Notes
    -----
    With reducer sum, mean, max, min or softmax. Case 2 if the backward pass of the function needs the values of source
    rows, else case 1.
    """
    return Message(function, src or {}, dst or {}, edge or {})

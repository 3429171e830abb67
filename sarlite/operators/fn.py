"""Built-in messages for `Graph.aggregate`: each is a value that names a fused kernel and holds the kernel's inputs."""

from collections.abc import Callable
from typing import NamedTuple

from sarlite.errors import ConfigError
from sarlite.operators.layer_contract import Inputs
from sarlite.tape import Tensor
from sarlite.types import Array

__all__ = ["attend", "attend_linear", "copy_src", "linear", "message", "mul_edge"]

MessageFunction = Callable[..., Tensor | tuple[Tensor, ...]]
"""A Python message: function(src, dst, edge) returns one row an edge, or a pair (score, value) for softmax."""


class CopySrc(NamedTuple):
    """Message of `copy_src`: every edge sends its source's row of `x`. The field is the argument of the call."""

    x: Tensor


class Linear(NamedTuple):
    """Message of `linear`: every edge sends its source's row of `x` times the matrix `weight`. The fields are the arguments of the call."""

    x: Tensor
    weight: Tensor
    evaluation: str | None = None


class MulEdge(NamedTuple):
    """Message of `mul_edge`: every edge sends its source's row of `x` times the edge's weight. The fields are the arguments of the call."""

    x: Tensor
    weight: Tensor | Array


class Attend(NamedTuple):
    """Message of `attend`: every edge sends its source's row of `z` times an attention coefficient. The fields are the arguments of
    the call.
    """

    z: Tensor
    src: Tensor
    dst: Tensor
    slope: float
    dropout: float
    key: int
    edge: Array | None = None
    attn_edge: Tensor | None = None


class AttendLinear(NamedTuple):
    """Message of `attend_linear`: every edge sends its source's row x_j W times an attention coefficient. The fields are the
    arguments of the call.
    """

    x: Tensor
    weight: Tensor
    src_weight: Tensor
    dst: Tensor
    slope: float
    dropout: float
    key: int
    dst_weight: Tensor | None


class Message(NamedTuple):
    """Message of `message`: every edge sends the result of a Python function. The fields are the arguments of the call."""

    function: MessageFunction
    src: Inputs
    dst: Inputs
    edge: Inputs


BuiltIn = CopySrc | Linear | MulEdge | Attend | AttendLinear | Message
"""Any value that a function of this module returns."""


def copy_src(x: Tensor) -> CopySrc:
    """Return the message m_ij = x_j: every edge sends its source's row of x.

    Parameters
    ----------
    x : Tensor (n_src, ...)
        Rows of the sources, float32 or float64.

    Returns
    -------
    CopySrc
        Message for the reducers sum, mean, sym, max and min of `Graph.aggregate`.

    Notes
    -----
    Case 1 for every reducer. With a constant x, `Tensor(x, constant=True)`, the graph keeps the result of sum, mean or
    sym until x is freed, so later calls fetch nothing.

    References
    ----------
    SAR, Eq. 2.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, fn
    >>> graph = Graph.from_edges([0, 0, 1], [1, 2, 2])
    >>> x = Tensor(np.array([[1.0], [2.0], [4.0]]), requires_grad=True)
    >>> out = graph.aggregate(fn.copy_src(x), "sum")
    >>> out.data.tolist()
    [[0.0], [1.0], [3.0]]
    >>> out.sum().backward()
    >>> x.grad.tolist()
    [[2.0], [1.0], [0.0]]
    """
    return CopySrc(x)


def linear(x: Tensor, weight: Tensor, evaluation: str | None = None) -> Linear:
    """Return the message m_ij = x_j W, with W = `weight`, for the reducers sum, mean and sym. `evaluation` "product" multiplies by
    W before the sum over edges, "first" after the sum, "inside" within each message; None takes the cheapest.

    Parameters
    ----------
    x : Tensor (n_src, n_in)
        Rows of the sources, float32 or float64.
    weight : Tensor (n_in, n_out)
        The matrix W, of x's dtype.
    evaluation : {"product", "first", "inside"}, optional
        Order of evaluation: "product" computes A (X W), "first" computes (A X) W, and "inside" computes x_j W inside
        the message. The results are equal up to rounding. By default the cheaper order is taken: "product" or "first"
        on a graph, "first" or "inside" on a relation.

    Returns
    -------
    Linear
        Message for `Graph.aggregate`.

    Notes
    -----
    "product" and "first" are case 1. "inside" is case 2 if a gradient of the weight is wanted. On a graph, "product" is
    taken if n_out <= n_in, because it then aggregates and sends fewer values. If x needs no gradient, "first"
    aggregates nothing in backward, so "first" is taken if n_in < 2 n_out. In a batch, which has more sources than
    destinations, the rows of the products count too, and "first" is usually cheaper.

    With a constant x, `Tensor(x, constant=True)`, the graph keeps A X, (n_dst, n_in), until x is freed. From the second
    call on nothing is aggregated or fetched, and the gradient of the weight is (A X)^T G.

    References
    ----------
    MG-GCN, section 4.4.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, fn
    >>> graph = Graph.from_edges([0, 0, 1], [1, 2, 2])
    >>> x, weight = Tensor(np.eye(3)), Tensor(np.array([[1.0], [2.0], [4.0]]))
    >>> graph.aggregate(fn.linear(x, weight), "mean").data.tolist()
    [[0.0], [1.0], [1.5]]
    """
    return Linear(x, weight, evaluation)


def mul_edge(x: Tensor, weight: Tensor | Array) -> MulEdge:
    """Return the message m_ij = w_ij x_j: every edge sends its source's row of x times the edge's weight.

    Parameters
    ----------
    x : Tensor (n_src, ...) or (n_src, n_heads, n_feat)
        Rows of the sources, float32 or float64.
    weight : Tensor or ndarray, (n_edges,) or (n_edges, n_heads)
        One weight for each in-edge of this rank, in the order of `graph.edge_ids`. With n_heads columns, the weight
        of head h multiplies x[j, h].

    Returns
    -------
    MulEdge
        Message for the reducers sum, mean, max and min of `Graph.aggregate`.

    Notes
    -----
    Reducers sum and mean: case 2 if a gradient of the weights is wanted, else case 1.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, fn
    >>> graph = Graph.from_edges([0, 0, 1], [1, 2, 2])
    >>> x, weight = Tensor(np.array([[1.0], [2.0], [4.0]])), np.array([10.0, 20.0, 30.0])
    >>> graph.aggregate(fn.mul_edge(x, weight[graph.edge_ids]), "sum").data.tolist()
    [[0.0], [10.0], [80.0]]
    """
    return MulEdge(x, weight)


def attend(z: Tensor, src: Tensor, dst: Tensor, slope: float = 0.2, dropout: float = 0.0, key: int = 0, *,
           edge: Array | None = None, attn_edge: Tensor | None = None) -> Attend:
    """Return the message a_ij z_j of graph attention, a_ij = softmax_j(leaky_relu(src_j + dst_i + edge_ij attn_edge, slope)). `src` and
    `dst` are scores; `edge`, if not None, has features of edges. `key` seeds the dropout of a_ij.

    The reducer is "sum".

    Parameters
    ----------
    z : Tensor (n_src, n_heads, n_feat), or (n_src, 1, n_feat)
        Rows to aggregate, float32 or float64. A z of one head is shared by all heads of the scores. If z_jh = x_j W_h,
        attention over x followed by a product with W_h gives the same result, and `attend_linear` takes the cheaper
        order.
    src : Tensor (n_src, n_heads)
        Scores of the sources.
    dst : Tensor (n_dst, n_heads)
        Scores of the destinations.
    slope : float
        Slope of the leaky ReLU below zero.
    dropout : float in [0, 1)
        Probability of dropping a coefficient a_ij. The remaining coefficients are multiplied by 1 / (1 - dropout).
    key : int
        Key of the dropout mask (`nn.Random.key`). A coefficient's random number depends on the key, on the global ids
        of both nodes and on the head.
    edge : (n_edges, n_edge_features) array, optional
        Features of the local in-edges, such as `graph.edge_features`: the scores are then leaky_relu(src_j + dst_i +
        edge_ij attn_edge).
    attn_edge : Tensor (n_edge_features, n_heads), optional
        Weights of the edge features; needed with `edge`. In PyG's `GATConv` this is the product of `lin_edge` and
        `att_edge`.

    Returns
    -------
    Attend
        Message for `Graph.aggregate`, whose output has the shape (n_dst, n_heads, n_feat).

    Raises
    ------
    ConfigError
        Only one of `edge` and `attn_edge` is not None, as for a graph without edge features.

    Notes
    -----
    Case 2. The coefficients are recomputed in backward and never stored, so attention keeps O(n_dst n_heads) values
    beside its inputs and its output. On a graph with edge weights, m_ij = w_ij a_ij z_j. With edge weights or `edge` no
    fused kernel is used: the tape evaluates the message, and holds the (n_edges, n_heads, n_feat) values of one block
    of edges at a time.

    References
    ----------
    SAR, Eq. 3; fused as in section 3.3, with the softmax of section 3.4.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, fn
    >>> graph = Graph.from_edges([0, 1, 2], [2, 2, 2])
    >>> z = Tensor(np.array([[[1.0]], [[2.0]], [[6.0]]]))
    >>> scores = Tensor(np.zeros((3, 1)))
    >>> graph.aggregate(fn.attend(z, scores, scores), "sum").data.round(6).tolist()
    [[[0.0]], [[0.0]], [[3.0]]]
    """
    if (edge is None) != (attn_edge is None):
        present, missing = ("attn_edge", "edge") if edge is None else ("edge", "attn_edge")
        raise ConfigError(f"fn.attend: {present} is given, but {missing} is None")
    return Attend(z, src, dst, slope, dropout, key, edge, attn_edge)


def attend_linear(x: Tensor, weight: Tensor, src_weight: Tensor, dst: Tensor, slope: float = 0.2, dropout: float = 0.0,
                  key: int = 0, dst_weight: Tensor | None = None) -> AttendLinear:
    """Return the message a_ij x_j W, a_ij = softmax_j(leaky_relu(x_j src_weight + dst_i dst_weight, slope)). If `dst_weight` is None,
    dst_i itself is the score of the destination. `key` seeds the dropout of a_ij.

    The reducer is "sum".

    Parameters
    ----------
    x : Tensor (n_src, n_in)
        Rows of the sources, float32 or float64.
    weight : Tensor (n_in, n_heads * n_feat)
        The matrix W, the columns of head 0 first.
    src_weight : Tensor (n_in, n_heads)
        The matrix W_src, whose products with x are the scores of the sources.
    dst : Tensor (n_dst, n_heads), or (n_dst, n_dst_in) with `dst_weight`
        Scores of the destinations, or rows of the destinations.
    slope, dropout, key
        See `attend`.
    dst_weight : Tensor (n_dst_in, n_heads), optional
        Matrix that turns the rows `dst` into scores: the scores are dst_i dst_weight.

    Returns
    -------
    AttendLinear
        Message for `Graph.aggregate`, whose output has the shape (n_dst, n_heads, n_feat).

    Notes
    -----
    Case 2. Equal to `attend` with z = x W up to rounding. On relations x travels, once for all relations with x's
    source type, and each rank computes the z of the rows that the rank fetched. On a graph the cheaper order is taken
    (`operators.evaluation`): either z travels, or x travels and the attention-weighted sums of x are multiplied by W.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, fn
    >>> graph = Graph.from_edges([0, 1, 2], [2, 2, 2])
    >>> x, weight = Tensor(np.array([[1.0], [2.0], [6.0]])), Tensor(np.array([[10.0]]))
    >>> zeros = Tensor(np.zeros((1, 1)))
    >>> graph.aggregate(fn.attend_linear(x, weight, zeros, x, dst_weight=zeros), "sum").data.round(6).tolist()
    [[[0.0]], [[0.0]], [[30.0]]]
    """
    return AttendLinear(x, weight, src_weight, dst, slope, dropout, key, dst_weight)


def message(function: MessageFunction, src: Inputs | None = None, dst: Inputs | None = None,
            edge: Inputs | None = None) -> Message:
    """Return the message m_ij = function(src_j, dst_i, edge_ij), where src, dst and edge are dicts of inputs by name.

    Parameters
    ----------
    function : callable (src, dst, edge) -> Tensor, or (score, value) for reducer softmax
        Gets three dicts of tensors with one row for each edge, and returns tensors with one row for each edge. A row
        must not depend on other edges. See `Graph.aggregate`.
    src, dst, edge : dict of str to Tensor or ndarray, optional
        Inputs of the function by name: arrays of n_src, n_dst and n_edges rows. Edges are in the order of
        `graph.edge_ids`.

    Returns
    -------
    Message
        Message for the reducers sum, mean, max, min and softmax of `Graph.aggregate`.

    Notes
    -----
    Case 2 if the backward pass of the function needs the values of source rows, else case 1.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, fn
    >>> graph = Graph.from_edges([0, 0, 1], [1, 2, 2])
    >>> x = Tensor(np.array([[1.0], [2.0], [4.0]]))
    >>> def difference(src, dst, edge):
    ...     return (src["x"] - dst["x"]).abs()
    >>> graph.aggregate(fn.message(difference, {"x": x}, {"x": x}), "max").data.tolist()
    [[0.0], [1.0], [3.0]]
    """
    return Message(function, *({} if inputs is None else inputs for inputs in (src, dst, edge)))

"""Choice between A (X W) and (A X) W for a sum over edges A, rows X and a weight matrix W, by the cost of each evaluation order."""

from typing import NamedTuple

from sarlite import numerics
from sarlite.errors import ConfigError
from sarlite.numerics import by_numerics
from sarlite.operators.layer_contract import Evaluation, LayerContract
from sarlite.tape import Tensor
from sarlite.tape.recording import grad_enabled

ORDERS = ("product", "first", "inside")
"""Evaluation orders: "product" is A (X W), "first" is (A X) W, and "inside" is x_j W inside the message.

With "inside", x travels once for all relations with x's source type.
"""

EVALUATIONS = ("inside", "first")
"""Evaluation orders for a relation of a `HeteroGraph`."""

EDGE_VALUE = 16
"""Cost of adding one value of a message, in multiply-adds of a product.

A value costs more in a sum over edges than in a product, because memory bandwidth limits sums over edges.
"""


class Sizes(NamedTuple):
    """Numbers of rows and edges of an aggregation, summed over all ranks that exchange rows.

    Attributes
    ----------
    n_src, n_dst, n_edges : int
        Numbers of source rows, destination rows and edges.
    n_halo : int
        Number of rows that ranks fetch; 0 if not counted.
    n_kept : int
        Number of rows of sums that are kept for backward; 0 if not counted.
    """

    n_src: int
    n_dst: int
    n_edges: int
    n_halo: int = 0
    n_kept: int = 0


def order(graph: LayerContract, x: Tensor, weight: Tensor, forced: str | None = None) -> str:
    """Return the cheapest evaluation order of A X W, for X = `x` and W = `weight`, that is possible on `graph`: "product" for A (X
    W), "first" for (A X) W, or "inside", which multiplies each message by W; or return `forced`, if it is not None. All ranks get
    the same result.

    For a relation, the order and the cost of both orders are added to the graph's evaluation log.

    Parameters
    ----------
    graph : LayerContract
    x : Tensor (n_src, n_in)
    weight : Tensor (n_in, n_out)
    forced : str, optional
        Order that the user asked for; by default the cheapest order is returned.

    Raises
    ------
    ConfigError
        `forced` is not one of `ORDERS`.
    """
    check(forced, ORDERS)
    needs_x, needs_weight = (grad_enabled() and isinstance(t, Tensor) and t.requires_grad for t in (x, weight))
    n_in, n_out = weight.shape
    cost = costs(Sizes(*graph.sizes), n_in, n_out, needs_x, needs_weight, x.constant)
    chosen = forced or min(choices(*_orders(graph, x)), key=cost.__getitem__)
    log, key = graph.evaluation_log, (graph.relation, n_in, n_out, x.constant, forced, numerics.name())
    if log is not None and graph.relation is not None and key not in log:
        inside, first = (cost[name] * x.dtype.itemsize // EDGE_VALUE for name in EVALUATIONS)
        log[key] = Evaluation(graph.relation, n_in, n_out, x.constant, chosen, inside, first)
    return chosen


def _orders(graph: LayerContract, x: Tensor) -> tuple[str, ...]:
    """Return the evaluation orders of A X W, with X = `x`, that are possible on `graph`, a graph or one relation: some of
    "product", "first" and "inside".

    With narrow rows a relation has a single order. The cheapest order depends on the number of ranks, and each order
    rounds different rows, so with a choice the results would depend on the number of ranks.
    """
    if graph.relation is None and x.dtype.kind != "f":
        return ("product",)  # a sum of integers may overflow
    if graph.relation is None:
        return ("first",) if x.constant else ("product", "first")  # the graph keeps the sums of constant rows
    return ("first", "inside") if not graph.schedule.row_format.is_narrow else ("first",)


def costs(sizes: Sizes, n_in: int, n_out: int, needs_x: bool, needs_weight: bool,
          constant: bool = False) -> dict[str, int]:
    """Return {evaluation order: multiply-adds on all ranks} of A X W and its gradients: of x if `needs_x`, of W if `needs_weight`.
    W has the shape (n_in, n_out). `constant` means that x never changes, so that A X is computed once for all steps.

    Parameters
    ----------
    sizes : Sizes
    n_in, n_out : int
        Shape of the weight.
    needs_x, needs_weight : bool
        True if the gradient of x, or of the weight, is wanted.
    constant : bool
        True if x never changes.

    Notes
    -----
    A product is computed once in forward, and once more for each gradient that is wanted (MG-GCN 4.4). Each edge reads
    a value once in forward, and once in backward if a gradient passes along the edge. A value that is fetched, read by
    an edge or kept counts as `EDGE_VALUE` multiply-adds. "inside" fetches its rows twice, or keeps the rows if the mode
    keeps rows, and also multiplies the fetched rows by the weight. Sums of constant rows are computed once for all
    steps. Pushed gradients cost the same in all orders and are left out.
    """
    product, passes = n_in * n_out * (1 + needs_x + needs_weight), 1 + (needs_x or needs_weight)
    n_src, n_dst, n_edges, n_halo, n_kept = sizes
    read = 0 if constant else n_halo + n_edges * (1 + needs_x)
    return {
        "product": EDGE_VALUE * n_out * (n_halo + n_edges * passes) + n_src * product,
        "first": EDGE_VALUE * n_in * (n_kept + read) + n_dst * product,
        "inside": EDGE_VALUE * (2 * n_halo * n_in + n_edges * passes * n_out) + (n_src + n_halo) * product,
    }


@by_numerics
def choices(*orders: str) -> tuple[str, ...]:
    """Select from the evaluation orders `orders`, such as "product" and "first", the ones that the current numerics ("fast" or
    "exact") supports.
    """
    return orders


def check(evaluation: str | None, orders: tuple[str, ...]) -> None:
    """Raise a ConfigError unless `evaluation`, an evaluation order, is None or one of `orders`."""
    if evaluation not in (None, *orders):
        raise ConfigError(f"evaluation {evaluation!r} is not one of {', '.join(orders)}")


def attends_products(graph: LayerContract, x: Tensor, n_heads: int, n_feat: int) -> bool:
    """Return True if A_h (X W_h) costs no more than (A_h X) W_h, for `n_heads` attention heads h with coefficients A_h, rows X =
    `x` and weights W_h, (n_in, `n_feat`).

    Parameters
    ----------
    graph : LayerContract
    x : Tensor (n_src, n_in)
        The rows X.
    n_heads, n_feat : int
        Each W_h has the shape (n_in, n_feat).

    Notes
    -----
    The costs are those of forward and backward together. With fewer destinations than sources, as in a batch,
    (A_h X) W_h has smaller products, but its sums over edges are n_heads * n_in wide. If the sources are the
    destinations, A_h (X W_h) is always cheaper. The backward pass of (A_h X) W_h computes the gradient of A_h X even if
    X needs no gradient, because the gradients of the scores depend on it.
    """
    sizes, n_in, needs_x = Sizes(*graph.sizes), x.shape[1], grad_enabled() and x.requires_grad
    product = n_in * n_heads * n_feat
    before = sizes.n_src * product * (2 + needs_x) + 2 * sizes.n_edges * n_heads * n_feat * EDGE_VALUE
    after = 3 * sizes.n_dst * product + 2 * sizes.n_edges * n_heads * n_in * EDGE_VALUE
    return sizes.n_src == sizes.n_dst or before <= after

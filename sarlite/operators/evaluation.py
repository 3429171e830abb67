"""Evaluation order of the weight of `fn.linear`: products first, sums first, or inside the message; and its cost."""

from typing import NamedTuple

from sarlite import numerics
from sarlite.errors import ConfigError
from sarlite.numerics import by_numerics
from sarlite.operators.layer_contract import Evaluation, LayerContract
from sarlite.tape import Tensor
from sarlite.tape.recording import grad_enabled

WAYS = ("product", "first", "inside")
"""A (X W); (A X) W; or x_j W inside the message, where x travels once for all relations with its source type."""

EVALUATIONS = ("inside", "first")
"""Ways that a relation of a `HeteroGraph` can take."""

EDGE_VALUE = 16
"""Cost of adding one value of a message, in multiply-adds of a product: sums over edges are bound by memory."""


class Sizes(NamedTuple):
    """Numbers of rows and edges of an aggregation, summed over all ranks that exchange rows.

    Attributes
    ----------
    n_src, n_dst, n_edges : int
    n_halo : int
        Rows that ranks fetch; 0 if not counted.
    n_kept : int
        Rows of sums that are kept for backward; 0 if not counted.
    """

    n_src: int
    n_dst: int
    n_edges: int
    n_halo: int = 0
    n_kept: int = 0


def way(graph: LayerContract, x: Tensor, weight: Tensor, forced: str | None = None) -> str:
    """Return how the weight of `fn.linear` over a `LayerGraph` is evaluated, one of `WAYS`.

    The result is `forced` if given, else the cheapest way, and is the same on every rank. For a relation, the choice
    and the cost of both ways are added to the graph's evaluation log.

    Raises
    ------
    ConfigError
        `forced` is not one of `WAYS`.
    """
    check(forced, WAYS)
    needs_x, needs_weight = (grad_enabled() and isinstance(t, Tensor) and t.requires_grad for t in (x, weight))
    n_in, n_out = weight.shape
    found = costs(Sizes(*graph.sizes), n_in, n_out, needs_x, needs_weight, x.constant)
    chosen = forced or min(choices(*_ways(graph, x)), key=found.__getitem__)
    log, key = graph.evaluation_log, (graph.relation, n_in, n_out, x.constant, forced, numerics.name())
    if log is not None and graph.relation is not None and key not in log:
        inside, first = (found[name] * x.dtype.itemsize // EDGE_VALUE for name in EVALUATIONS)
        log[key] = Evaluation(graph.relation, n_in, n_out, x.constant, chosen, inside, first)
    return chosen


def _ways(graph, x):
    """Return the ways that may be chosen for a graph or relation.

    With bfloat16 rows a relation has one way. The cheapest way depends on the number of ranks, and each way rounds
    different rows, so a choice would let the results depend on the number of ranks.
    """
    if graph.relation is None and x.dtype.kind != "f":
        return ("product",)  # a sum of whole numbers may overflow
    if graph.relation is None:
        return ("first",) if x.constant else ("product", "first")  # the sums of rows that never change are kept
    return ("first", "inside") if not graph.schedule.row_format.is_narrow else ("first",)


def costs(sizes: Sizes, n_in: int, n_out: int, needs_x: bool, needs_weight: bool,
          constant: bool = False) -> dict[str, int]:
    """Return the cost of each way, forward and backward together, in multiply-adds.

    Notes
    -----
    A product costs one pass forward and one for each gradient that is wanted (MG-GCN 4.4). Each edge reads a value once
    forward, and once backward if a gradient passes along the edge. A value that is fetched, read by an edge or kept
    counts as `EDGE_VALUE` multiply-adds. "inside" fetches its rows twice, or keeps them if the mode does, and also
    multiplies the fetched rows by the weight. Sums of constant rows are computed once for all steps. The pushed
    gradients cost the same in all ways and are left out.
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
def choices(*ways: str) -> tuple[str, ...]:
    """Return the entries of `ways` that the current numerics supports."""
    return ways


def check(evaluation: str | None, ways: tuple[str, ...]) -> None:
    """Raise a ConfigError unless `evaluation` is None or one of `ways`."""
    if evaluation not in (None, *ways):
        raise ConfigError(f"evaluation {evaluation!r} is not one of {', '.join(ways)}")


def attends_products(graph: LayerContract, x: Tensor, n_heads: int, n_feat: int) -> bool:
    """Return True if attention over z = X W, A_h (X W_h) by head, is cheaper than (A_h X) W_h, over both passes.

    With fewer destinations than sources, as in a batch, (A_h X) W_h has smaller products, but its sums over edges are
    n_heads * n_in wide. With the same rows as sources and destinations A_h (X W_h) is always cheaper. The backward pass
    of (A_h X) W_h computes the gradient of A_h X even if X needs no gradient, because the gradients of the scores need
    it.
    """
    sizes, n_in, needs_x = Sizes(*graph.sizes), x.shape[1], grad_enabled() and x.requires_grad
    product = n_in * n_heads * n_feat
    before = sizes.n_src * product * (2 + needs_x) + 2 * sizes.n_edges * n_heads * n_feat * EDGE_VALUE
    after = 3 * sizes.n_dst * product + 2 * sizes.n_edges * n_heads * n_in * EDGE_VALUE
    return sizes.n_src == sizes.n_dst or before <= after

"""How the weight of `fn.linear` is evaluated: products first, sums first or inside the message; what each way costs."""

from typing import Any, NamedTuple

from sarlite import numerics
from sarlite.errors import ConfigError
from sarlite.numerics import by_numerics
from sarlite.tape import Tensor
from sarlite.tape.recording import grad_enabled

WAYS = ("product", "first", "inside")
"""A (X W); (A X) W; or x_j W inside of the message, so that x travels, once for all relations out of its type."""

EVALUATIONS = ("inside", "first")
"""The ways of a relation of a `HeteroGraph`."""

EDGE_VALUE = 16
"""What adding one value of a message costs, in multiply-adds of a product: a sum over edges waits for memory."""


class Sizes(NamedTuple):
    """Of all ranks whose rows are exchanged.

    Attributes
    ----------
    n_src, n_dst, n_edges : int
    n_halo : int
        Rows that ranks fetch; 0 where nobody counts them.
    n_kept : int
        Rows of sums that are kept for backward; 0 where nobody counts them.
    """

    n_src: int
    n_dst: int
    n_edges: int
    n_halo: int = 0
    n_kept: int = 0


class Evaluation(NamedTuple):
    """How a relation's weight is evaluated, and what either way costs a training step, over all ranks.

    Attributes
    ----------
    relation : (str, str, str)
    n_in, n_out : int
    constant : bool
        Whether the sources' rows never change, so that what is aggregated first is kept.
    name : {"inside", "first"}
        The weight inside the message (case 2), or aggregated first and transformed after (case 1).
    inside_bytes, first_bytes : int
        Fetched, kept for backward, read by edges; and the products, as bytes of edges that take as long.
    """

    relation: tuple[str, str, str]
    n_in: int
    n_out: int
    constant: bool
    name: str
    inside_bytes: int
    first_bytes: int


EvaluationLog = dict[Any, Evaluation]
"""Chosen evaluations, keyed by relation, widths, constancy of the rows, the forced way and the numerics."""


def way(graph: Any, x: Tensor, weight: Tensor, forced: str | None = None) -> str:
    """Return how the weight of `fn.linear` over a `LayerGraph` is evaluated, one of `WAYS`.

    It is the cheapest, or the forced one, and the same on every rank. Of a relation it is logged, with what either way
    costs.

    Raises
    ------
    ConfigError
        The forced way is none.
    """
    check(forced, WAYS)
    needs_x, needs_weight = (grad_enabled() and isinstance(t, Tensor) and t.requires_grad for t in (x, weight))
    n_in, n_out = weight.shape
    found = costs(Sizes(*graph.sizes), n_in, n_out, needs_x, needs_weight, x.constant)
    chosen = forced or min(choices(*_ways(graph, x)), key=found.__getitem__)
    log, key = graph.evaluation_log, (graph.relation, n_in, n_out, x.constant, forced, numerics.name())
    if log is not None and key not in log:
        inside, first = (found[name] * x.dtype.itemsize // EDGE_VALUE for name in EVALUATIONS)
        log[key] = Evaluation(graph.relation, n_in, n_out, x.constant, chosen, inside, first)
    return chosen


def _ways(graph, x):
    """The ways that there are. With narrow rows a relation has one: what is cheaper depends on the ranks, and each way
    rounds other rows.
    """
    if graph.relation is None and x.dtype.kind != "f":
        return ("product",)  # a sum of whole numbers may overflow
    if graph.relation is None:
        return ("first",) if x.constant else ("product", "first")  # the sums of rows that never change are kept
    return ("first", "inside") if not graph.schedule.row_format.is_narrow else ("first",)


def costs(sizes: Sizes, n_in: int, n_out: int, needs_x: bool, needs_weight: bool,
          constant: bool = False) -> dict[str, int]:
    """Return what each way costs, forward and backward together, in multiply-adds.

    Notes
    -----
    A product takes a pass forward, and one for each gradient that is wanted (MG-GCN 4.4). Edges read a value forward,
    and one backward where a gradient goes over them. A value that is fetched, read by an edge or kept counts as
    `EDGE_VALUE` multiply-adds. "inside" fetches its rows twice, or keeps them, as the mode does, and multiplies what
    was fetched too. The sums of rows that never change are done once for all steps. What is pushed is the same in all
    ways.
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
    """Return those of some ways that there are."""
    return ways


def check(evaluation: str | None, ways: tuple[str, ...]) -> None:
    """Raise a ConfigError where an evaluation is given that is none of these."""
    if evaluation not in (None, *ways):
        raise ConfigError(f"evaluation {evaluation!r} is not one of {', '.join(ways)}")


def attends_products(graph: Any, x: Tensor, n_heads: int, n_feat: int) -> bool:
    """Tell whether attention over z = X W, by head A_h (X W_h), is cheaper than (A_h X) W_h, both passes together.

    Of fewer destinations than sources, as in a batch, the second's products are fewer, but its sums over edges are
    n_heads x n_in wide. Where sources and destinations are the same rows the first is cheaper. Backward the second
    makes the gradient of A_h X even where X needs none, as the scores' gradients want it.
    """
    sizes, n_in, needs_x = Sizes(*graph.sizes), x.shape[1], grad_enabled() and x.requires_grad
    product = n_in * n_heads * n_feat
    before = sizes.n_src * product * (2 + needs_x) + 2 * sizes.n_edges * n_heads * n_feat * EDGE_VALUE
    after = 3 * sizes.n_dst * product + 2 * sizes.n_edges * n_heads * n_in * EDGE_VALUE
    return sizes.n_src == sizes.n_dst or before <= after

"""Which evaluation of a relation's weight: inside the message, or aggregated first and transformed after; and what either costs."""

from typing import NamedTuple

from sarlite.sar.operators.table import EDGE_VALUE

EVALUATIONS = ("inside", "first")


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


class Sizes(NamedTuple):
    """Of a relation, all ranks together: rows of both types, edges, and its share of the rows that ranks fetch for all of the bundle."""

    n_src: int
    n_dst: int
    n_edges: int
    n_halo: int


def evaluate(relation, sizes, n_in, n_out, itemsize, *, constant, forced=None):
    """Return the `Evaluation` that costs fewer bytes, or the one that is forced.

    Notes
    -----
    Inside: halo rows of n_in are fetched, and fetched again or kept, as the mode does; edges read n_out values, forward and backward;
    source rows are multiplied. First: halo rows of n_in are fetched; edges read n_in values, forward and backward; n_in values a
    destination row are kept, and destination rows are multiplied. Of constant rows what is aggregated first is done once for all steps,
    and products have two passes, not three. What is pushed is the same. `EDGE_VALUE` multiply-adds count as one value.
    """
    n_src, n_dst, n_edges, n_halo = sizes
    product = (2 if constant else 3) * n_in * n_out / EDGE_VALUE
    inside = 2 * n_halo * n_in + 2 * n_edges * n_out + (n_src + n_halo) * product
    first = n_dst * n_in + (0 if constant else (n_halo + 2 * n_edges) * n_in) + n_dst * product
    name = forced or ("inside" if inside < first else "first")
    return Evaluation(relation, n_in, n_out, constant, name, int(inside * itemsize), int(first * itemsize))

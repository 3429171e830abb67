"""Find the edges that a wrong sum has lost, repeated or misrouted, from its expected and returned rows.

The difference of a wrong row is the value that an edge carries, and its code names the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sarlite.keys import splitmix64
from sarlite.oracle.case import Case
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.finding import Edges
from sarlite.types import Array

MOST_ROWS = 64  # single edges do not explain more wrong rows


def direction(width: int) -> Array:
    """Return a pseudo-random vector of integers from 1 to 2^20, shape (width,) float64. The dot product of a row with the vector
    is one number that identifies the row.
    """
    return (splitmix64(np.arange(width, dtype=np.uint64)) >> np.uint64(44)).astype(np.float64) + 1


class Codebook:
    """Index of an array's rows by their content, which finds equal rows in O(log n) time.

    Rows are projected on one random vector of integers in float64, which is exact for the integers of probes. Rows with
    the same projection are compared in full.
    """

    def __init__(self, rows: Array) -> None:
        self.rows = rows
        self.direction = direction(rows.shape[1])
        with np.errstate(invalid="ignore"):
            self.keys = rows @ self.direction
        self.order = np.argsort(self.keys, kind="stable")
        self.sorted = self.keys[self.order]

    def find_each(self, rows: Array) -> Array:
        """Return for each row in `rows` the row number of the equal row of the indexed array, or -1 if no row or several rows are
        equal, shape (k,).
        """
        keys = rows @ self.direction
        first, last = np.searchsorted(self.sorted, keys, "left"), np.searchsorted(self.sorted, keys, "right")
        hits = self.order[np.minimum(first, len(self.order) - 1)] if len(self.order) else np.zeros(len(keys), np.int64)
        good = last - first == 1
        good[good] = (self.rows[hits[good]] == rows[good]).all(1)
        return np.where(good, hits, -1)


@dataclass(frozen=True, eq=False)
class EdgeSum:
    """Operands of a sum over the in-edges of each row: edges, source rows, edge weights, and divisors of the sums.

    The sum is out[v] = (sum of weight[e] * rows[source of e] over the edges e into v) / degrees[v].

    Attributes
    ----------
    edges : EdgeList
        Edges in the direction in which values flow; reversed for a gradient.
    rows : (n_src, width) float64
        Rows that the sources send, with the columns of all cases of a probe group side by side.
    weight : (n_edges,) float64 or None
    degrees : (n_dst,) float64 or None
    backward : bool
        True for a gradient.
    """

    edges: EdgeList
    rows: Array
    weight: Array | None
    degrees: Array | None
    backward: bool = False


def edge_sum_of(case: Case, output: str, senders: Sequence[Array]) -> EdgeSum | None:
    """Return an EdgeSum, the operands of the sum over edges that computes `output`, "out" or "dx", of an spmm case. The summed rows
    are the rows of the arrays in `senders`, joined side by side. Return None for another operation or output, a maximum or minimum,
    or added self loops.

    `senders` holds the rows that are summed in each case of a probe group: x for "out", and the cotangents for "dx".
    """
    a = case.attributes
    sums = case.op == "spmm" and a.get("reduce") in ("sum", "mean", "sym") and not a.get("loops")
    if not sums or output not in ("out", "dx"):
        return None
    backward, edges = output == "dx", case.edges
    rows = np.concatenate([np.asarray(x, np.float64) for x in senders], 1)
    weight = None if "weight" not in case.arrays else np.asarray(case.arrays["weight"], np.float64)
    of_src = edges.in_degrees if a.get("degrees") == "in" else edges.out_degrees
    target_degrees, source_degrees = (np.maximum(d, 1)[:, None]
                   for d in ((of_src, edges.in_degrees) if backward else (edges.in_degrees, of_src)))
    divisor = None
    if a["reduce"] == "sym":
        rows, divisor = rows / np.sqrt(source_degrees), np.sqrt(target_degrees)[:, 0]
    elif a["reduce"] == "mean":
        rows, divisor = (rows / source_degrees, None) if backward else (rows, target_degrees[:, 0])
    return EdgeSum(edges.reversed() if backward else edges, rows, weight, divisor, backward)


@dataclass(frozen=True)
class Change:
    """One error in a row's sum: a term that the row has too often (factor > 0) or lacks (factor < 0).

    The term is `factor` times the row that `source` sends.

    Attributes
    ----------
    row, source : int
    factor : float
    edge : int
        Number of the edge that carries the term; -1 if the row has no such edge.
    times : float
        1 if the edge is counted twice, -1 if it is lost.
    """

    row: int
    source: int
    factor: float
    edge: int = -1
    times: float = 1.0


def find_changes(edge_sum: EdgeSum, expected: Array, got: Array, codebook: Codebook | None = None) -> list[Change] | None:
    """Return the Changes (terms lost or counted too often) that turn the sums `expected` into `got`. Return None if a wrong row has
    no explanation, or if no row or more than 64 rows are wrong. `edge_sum` has the operands of the sums, and `codebook` finds equal
    rows in `edge_sum.rows` (None: it is built here).
    """
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(((got != expected) & ~(np.isnan(got) & np.isnan(expected))).any(1))
    if len(bad) > MOST_ROWS or not len(bad) or not np.isfinite(got[bad]).all():
        return None
    codebook = Codebook(edge_sum.rows) if codebook is None else codebook
    changes_of_rows: list[Change] = []
    for v in bad:
        differences = list(_differences(edge_sum, int(v), expected[v], got[v]))
        explained = (how(edge_sum, codebook, int(v), difference) for how in (_one_change, _two_changes)
                     for difference in differences)
        changes = next((c for c in explained if c is not None), None)
        if changes is None:
            return None
        changes_of_rows += changes
    return changes_of_rows


def _differences(edge_sum: EdgeSum, v: int, expected: Array, got: Array) -> Iterator[Array]:
    """Yield the possible errors of row v's sum in `edge_sum`, each of shape (width,), from the row's `expected` and returned (`got`)
    values. If the sum is divided by a degree d, the error before the division is (got - expected) * d. If the kernel may have
    divided by d - 1 or d + 1, the errors under that assumption follow.
    """
    if edge_sum.degrees is None:
        yield got - expected
        return
    d = edge_sum.degrees[v]
    total = expected * d
    yield got * d - total
    if d == int(d):
        for wrong in (d - 1, d + 1):
            near = np.rint(got * wrong)
            whole = wrong > 0 and np.all(np.abs(got * wrong - near) <= 2.0**-22 * np.abs(near))
            if whole and (near != total).any():  # otherwise the number of edges is wrong, and every edge is right
                yield near - total


def _in_edges(edge_sum, v):
    return edge_sum.edges.eid[edge_sum.edges.indptr[v] : edge_sum.edges.indptr[v + 1]]


def _one_change(edge_sum: EdgeSum, codebook: Codebook, v: int, difference: Array) -> list[Change] | None:
    """Return [Change] if `difference`, the error of row v's sum, is the term of one source, lost or counted too often (a Change);
    else None. `edge_sum` has the operands of the sum; `codebook` finds the source whose row is the difference.
    """
    factors = [1.0] if edge_sum.weight is None else np.unique(np.abs(edge_sum.weight))
    signed = np.array([f * sign for f in factors for sign in (-1.0, 1.0)])
    for factor, u in zip(signed.tolist(), codebook.find_each(difference / signed[:, None]).tolist()):
        if u >= 0 and (change := _change(edge_sum, _in_edges(edge_sum, v), v, u, factor)) is not None:
            return [change]
    return None


def _two_changes(edge_sum: EdgeSum, codebook: Codebook, v: int, difference: Array) -> list[Change] | None:
    """Return the two Changes (terms lost or counted too often) that together explain `difference`, the error of row v's sum; None
    unless exactly one pair does. `edge_sum` has the operands of the sum; `codebook` finds sources by their rows.
    """
    in_edges, candidates = _in_edges(edge_sum, v), {}
    carried = edge_sum.rows[edge_sum.edges.src[in_edges]] * (1.0 if edge_sum.weight is None else edge_sum.weight[in_edges, None])
    factors = [1.0] if edge_sum.weight is None else np.unique(np.abs(edge_sum.weight))
    for sign, factor in ((s, f * t) for s in (1.0, -1.0) for f in factors for t in (1.0, -1.0)):
        other = codebook.find_each((difference + sign * carried) / factor)
        for k in np.flatnonzero(other >= 0):
            e, u = int(in_edges[k]), int(other[k])
            carried_weight = 1.0 if edge_sum.weight is None else float(edge_sum.weight[e])
            first = Change(v, int(edge_sum.edges.src[e]), -sign * carried_weight, e, -sign)
            rest = in_edges[in_edges != e]
            second = Change(v, u, carried_weight) if sign > 0 and factor == carried_weight else _change(edge_sum, rest, v, u, factor)
            if second is not None and (second.edge >= 0 or sign > 0 and factor == carried_weight):
                candidates[frozenset((c.row, c.source, c.factor) for c in (first, second))] = [first, second]
    return next(iter(candidates.values())) if len(candidates) == 1 else None


def _change(edge_sum: EdgeSum, in_edges: Array, v: int, u: int, factor: float) -> Change | None:
    """Return the Change (an error in a sum) for a row v whose sum has the row of source u `factor` times too often (if negative,
    too rarely). The Change names an edge from u of weight `factor` or -`factor` among `in_edges`, the numbers of the edges into v.
    Return None if a term is lacking, and no edge has this weight.
    """
    edges_from_u = in_edges[edge_sum.edges.src[in_edges] == u]
    for e in edges_from_u:
        times = factor / (1.0 if edge_sum.weight is None else edge_sum.weight[e])
        if times in (-1.0, 1.0):
            return Change(v, u, factor, int(e), times)
    return Change(v, u, factor) if factor > 0 or edge_sum.weight is not None else None


def describe(edge_sum: EdgeSum, changes: list[Change]) -> tuple[str, Edges]:
    """Return (text, edges). `text` describes in one line `changes`, the guessed mistakes in the sums `edge_sum`, such as "edge 3 (0 -> 2)
    is lost". `edges` lists the (source, destination) of each edge in the text.
    """
    texts, edges, pending = [], [], list(changes)
    while pending:
        change = pending.pop(0)
        partner = next((c for c in pending if _elsewhere(change, c)), None)
        swap = next((c for c in pending if c.row == change.row and c.edge < 0 <= change.edge and change.times < 0),
                    None)
        lost, gained = (change, partner) if partner is None or change.edge >= 0 else (partner, change)
        pair = _pair(edge_sum, lost.source, lost.row)
        name = f"edge {lost.edge} ({pair[0]} -> {pair[1]})"
        if gained is not None:
            texts.append(f"{name} is misrouted: counted for row {gained.row}")
        elif swap is not None:
            texts.append(f"{name} reads row {swap.source} in place of {change.source}")
        elif change.edge >= 0:
            texts.append(f"{name} is {'lost' if change.times < 0 else 'counted twice'}")
        else:
            texts.append(f"row {change.row} counts row {change.source}, from which it has no edge")
        pending = [c for c in pending if c is not (partner or swap)]
        edges.append(pair)
    text = "; ".join(texts[:3]) + (f"; and {len(texts) - 3} more" if len(texts) > 3 else "")
    return text + (", in the gradient" if edge_sum.backward else ""), tuple(edges)


def _elsewhere(a: Change, b: Change) -> bool:
    """Return True if two Changes (terms lost or counted too often) are one misrouted edge: the edge's row lacks its term, and
    another row has the term instead.
    """
    return a.source == b.source and a.row != b.row and a.factor == -b.factor and (a.edge < 0) != (b.edge < 0)


def _pair(edge_sum, source, row):
    return (int(row), int(source)) if edge_sum.backward else (int(source), int(row))


def is_extremum(case: Case) -> bool:
    """Return True if a case is an spmm by maximum or minimum, without added self loops."""
    a = case.attributes
    return case.op == "spmm" and a["reduce"] in ("max", "min") and not a["loops"]


def extremum(case: Case, expected: Array, got: Array) -> list[Change] | None:
    """Return a list with one Change, such as a lost edge, for each row where `got` differs from `expected`, the maximum or minimum
    of the case's messages. Return None if no single Change explains one of the rows.
    """
    largest = case.attributes["reduce"] == "max"
    edges, sign = case.edges, 1.0 if largest else -1.0
    x = sign * np.asarray(case.arrays["x"], np.float64)
    weight = np.asarray(case.arrays.get("weight", np.ones(edges.n_edges)), np.float64)[:, None]
    expected, got = sign * expected, sign * got
    bad = np.flatnonzero((got != expected).any(1))
    if len(bad) > MOST_ROWS or not np.isfinite(got[bad]).all():
        return None
    changes = []
    for v in bad:
        in_edges = edges.eid[edges.indptr[v] : edges.indptr[v + 1]]
        carried = x[edges.src[in_edges]] * weight[in_edges]
        change = _lost_extremum(edges, in_edges, carried, int(v), got[v]) or _gained_extremum(x, carried, int(v), got[v])
        if change is None:
            return None
        changes.append(change)
    return changes


def _lost_extremum(edges, in_edges, carried, v, got):
    for k in np.flatnonzero((carried > got).any(1)):
        rest = np.delete(carried, k, 0)
        if np.array_equal(rest.max(0) if len(rest) else np.zeros(len(got)), got):
            return Change(v, int(edges.src[in_edges[k]]), -1.0, int(in_edges[k]), -1.0)
    return None


def _gained_extremum(x, carried, v, got):
    best = carried.max(0) if len(carried) else np.full(len(got), -np.inf)
    more = got > best
    for u in np.flatnonzero((x[:, more] == got[more]).all(1)) if more.any() else ():
        if np.array_equal(np.maximum(best, x[u]), got):
            return Change(v, int(u), 1.0)
    return None

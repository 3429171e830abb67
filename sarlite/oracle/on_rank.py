"""`RankDifference`: one rank's result and the expected rows, with a search for causes that are typical of distributed runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sarlite.oracle import cut
from sarlite.oracle.assumptions import MOST_EDGES, Guess, single_edges, that_fit
from sarlite.oracle.case import Case
from sarlite.oracle.certified import arithmetic
from sarlite.oracle.diagnose import NOTHING, Cause, CauseSearch
from sarlite.oracle.difference import Difference
from sarlite.oracle.finding import SavedCase
from sarlite.oracle.parts import Division
from sarlite.oracle.plain import Arithmetic, BoundedArray, column
from sarlite.types import Array, T

MOST_ROWS = 400  # a rank's rows are compared pairwise up to so many rows


@dataclass(frozen=True, eq=False, kw_only=True)
class RankDifference(Difference):
    """One rank's rows of an output or a gradient in a run on several ranks: the expected and the returned rows.

    Guesses have the bounds of level `certified`.

    Attributes
    ----------
    division : Division
    before : Division or None
        Division of the previous call, with other values.
    rank : int
    kind : str
        Kind of the rows, as of `Reference.arrays_by`.
    layer : int or None
        Number of the convolution if the output is the result of one convolution of a model.
    whole : BoundedArray
        Expected result on the whole graph.
    arrays : sequence of array
        Result of each rank.
    """

    division: Division
    before: Division | None
    rank: int
    kind: str
    layer: int | None
    whole: BoundedArray
    arrays: Sequence[Array]

    @property
    def rows(self) -> Array:
        """Global row numbers of this rank's rows."""
        return self.division.rows(self.rank, self.kind)

    @property
    def searches(self) -> tuple[CauseSearch, ...]:
        """Functions that search for the cause of the difference, in the order of their calls."""
        return (_fitting_guesses, _same_elsewhere) if self.kind == "whole" else (_permuted, _fitting_guesses, _touched_rows)

    def evaluate(self, case: Case, by: Arithmetic[T], cotangents: Mapping[str, Array] | None = None) -> BoundedArray:
        if self.layer is not None:
            return self.reference.layers(case, by)[self.output]
        return super().evaluate(case, by, cotangents)

    def predicted(self, case: Case, cotangents: Mapping[str, Array] | None = None) -> BoundedArray:
        return self.division.part(self.evaluate(case, arithmetic(case), cotangents), self.rank, self.kind)

    @property
    def evidence(self) -> SavedCase:
        """SavedCase (a case with its expected and returned arrays) of the whole graph, with the rows that all ranks returned; for
        a parameter, with this rank's array.
        """
        whole = self.kind == "whole"
        got = self.got if whole else self.division.assemble(self.arrays, self.kind, self.whole.value.shape)
        return Difference(self.reference, self.case, self.output, self.whole, got, self.division.cotangents).evidence


# ---- guesses


def _fitting_guesses(difference):
    for text, edges in that_fit(difference, _guesses(difference)):
        yield Cause(text, edges, support=1)


def _guesses(difference: RankDifference) -> Iterator[Guess]:
    """Yield a Guess for each likely cause of `difference`, a rank's wrong output or gradient."""
    yield from _scales(difference)
    if difference.kind == "whole" and difference.division.size > 1:
        yield Guess("not reduced over ranks: the ranks' gradients add up to it", lambda: _unreduced(difference))
    if difference.cotangents is not None:
        yield from _of_gradients(difference)
    elif difference.kind != "whole":
        yield from _of_outputs(difference)
    yield Guess("all zeros", lambda: BoundedArray(np.zeros_like(difference.expected.value)))


def _scales(difference):
    """Yield guesses that the rank's array in `difference`, or each of its rows, is wrong by one factor, such as a sum in place of
    a mean.
    """
    value, got, size = np.asarray(difference.expected.value, np.float64), difference.got, difference.division.size
    at = np.isfinite(value) & (value != 0)
    if not at.any() or not np.isfinite(got).all():
        return
    place = np.unravel_index(np.argmax(np.where(at, np.abs(value), 0)), value.shape)
    factor = float(got[place]) / float(value[place])
    factors = [(size, f"summed {size} times"), (1 / size, f"a mean over {size} ranks where a sum is promised"),
               (-1.0, "the wrong sign"), (factor, f"every element is {factor:.6g} times what it should be")]
    if difference.kind in ("dst", "node"):
        degrees = column(np.maximum(difference.case.edges.in_degrees, 1)[difference.rows].astype(float), value.ndim)
        factors += [(degrees, "a sum over the edges where a mean is promised"),
                    (1 / degrees, "a mean over the edges where a sum is promised")]
    for factor_of_rows, text in factors:
        if np.any(factor_of_rows != 0) and not np.array_equal(factor_of_rows, 1):
            yield Guess(f"wrong scale: {text}", partial(_scaled, difference.expected, factor_of_rows))


def _unreduced(difference):
    """Return this rank's own gradient, before a reduction over ranks: the expected sum minus the gradients of the other ranks."""
    others = np.sum([array.astype(np.float64) for q, array in enumerate(difference.arrays) if q != difference.rank], 0)
    return BoundedArray(difference.expected.value - others, difference.division.size * difference.expected.error)


def _of_outputs(difference: RankDifference) -> Iterator[Guess]:
    """Yield guesses about wrong rows in a rank's output: edges from other ranks are lost, or rows from other ranks are stale or zeros."""
    edges, owner, rank = difference.case.edges, difference.division.owner, difference.rank
    target_rank, source_rank = owner[edges.dst], owner[edges.src]
    peers = [q for q in range(difference.division.size) if q != rank and np.any((source_rank == q) & (target_rank == rank))]
    if difference.kind != "edge":
        yield Guess(f"all edges from other ranks into rank {rank} are lost",
                    partial(_without_edges, difference, (target_rank == rank) & (source_rank != rank)))
        for q in peers:
            yield Guess(f"the edges from rank {q} into rank {rank} are lost",
                        partial(_without_edges, difference, (target_rank == rank) & (source_rank == q)))
        yield Guess("all edges between ranks are lost, on every rank", partial(_without_edges, difference, source_rank != target_rank))
    zeros = {name: np.zeros_like(value) for name, value in difference.case.arrays.items()}
    for text, other in (("stale buffer: rows from {} are those of the call before", difference.before and difference.before.case.arrays),
                        ("rows from {} are zeros", zeros)):
        if other is not None:
            yield Guess(text.format("other ranks"), partial(_with_rows, difference, owner != rank, other))
            yield from (Guess(text.format(f"rank {q}"), partial(_with_rows, difference, owner == q, other)) for q in peers)
    if difference.case.attributes.get("reduce") == "mean":
        others = [(target_rank == rank) & (source_rank != q) for q in range(difference.division.size)]
        yield Guess("the means over each rank's edges are added, where one mean over all is promised",
                    lambda: _summed([_without_edges(difference, which) for which in others]))
    if difference.kind != "edge":
        bad = np.asarray((np.nan_to_num(difference.ratio) > 1).reshape(len(difference.got), -1).any(1))
        some = np.flatnonzero(np.isin(edges.dst, difference.rows[bad]))[:MOST_EDGES]
        yield from single_edges(difference, some, lambda e: f", from rank {source_rank[e]},")


def _without_edges(difference: RankDifference, lost: Array) -> BoundedArray:
    """Return the rows that this rank would return if it left out the edges in the mask `lost`."""
    return difference.predicted(cut.on_edges(difference.reference, difference.case, np.flatnonzero(~lost)))


def _with_rows(difference, replaced, others):
    """Return the rows that explain `difference`, a wrong result of this rank, if the rank has used wrong input rows. The result is the
    expected output or gradient after the nodes in the mask `replaced` get the input rows of `others`, {name of an input: array}, in place
    of their own.
    """
    by, arrays = difference.reference.arrays_by, {name: np.array(value) for name, value in difference.case.arrays.items()}
    for name, value in arrays.items():
        if by.get(name) in ("src", "dst", "node"):
            value[replaced] = others[name][replaced]
    return difference.predicted(replace(difference.case, arrays=arrays))


def _of_gradients(difference: RankDifference) -> Iterator[Guess]:
    """Yield guesses about a rank's wrong gradient in `difference`: it is not reduced over ranks, or a buffer holds the previous
    call's gradient.
    """
    if difference.kind != "whole":
        rows = {name: difference.division.rows(difference.rank, kind) for name, kind in difference.reference.outputs_by.items()}
        rank_cotangents = {name: _only(value, rows[name]) for name, value in difference.division.cotangents.items()}
        yield Guess("not reduced: the gradients that other ranks have of this rank's rows are missing",
                    lambda: difference.predicted(difference.case, rank_cotangents))
    if difference.before is not None:
        yield Guess("stale buffer: the gradient of the call before is still in it",
                    lambda: _summed([difference.expected, _before(difference)]))
        yield Guess("stale buffer: it is the gradient of the call before", lambda: _before(difference))


def _only(value, rows):
    out = np.zeros_like(value)
    out[rows] = value[rows]
    return out


def _before(difference):
    """Return the rows that this rank should have returned in the previous call; a rank with stale buffers returns them again."""
    return difference.predicted(difference.before.case, difference.before.cotangents)


# ---- results that no guess explains


def _same_elsewhere(difference):
    """Yield a Cause (a line of text about a wrong result) for gradients of a parameter that no guess explains: if the other ranks
    returned the same gradient.
    """
    other = next((q for q, array in enumerate(difference.arrays) if array.tobytes() != difference.got.tobytes()), None)
    agreement = ", the same on every rank" if other is None else f": rank {other} has another one than rank {difference.rank}"
    yield Cause(f"{NOTHING}{agreement}")


def _permuted(difference):
    """Yield a Cause (a line of text about a wrong result) if the rank returned the expected rows of `difference` in another order."""
    if difference.got.ndim < 2 or not 2 <= len(difference.got) <= MOST_ROWS:
        return
    rows, value = (array.reshape(len(array), -1) for array in reversed(difference.as_float64))
    error = np.reshape(difference.expected.error, value.shape)
    with np.errstate(invalid="ignore"):
        fits = [np.flatnonzero((np.abs(row - value) <= error).all(1)) for row in rows]
    free, first = set(range(len(rows))), None
    for k, candidates in enumerate(fits):
        taken = k if k in candidates and k in free else next((int(c) for c in candidates if int(c) in free), None)
        if taken is None:
            return
        free.discard(taken)
        first = (k, taken) if first is None and taken != k else first
    if first is not None:
        node_ids = difference.division.rows(difference.rank, "dst")
        yield Cause(f"rows are permuted: that of node {node_ids[first[0]]} holds what is node {node_ids[first[1]]}'s", support=1)


def _touched_rows(difference):
    """Yield a Cause (a line of text about a wrong result) for results that no guess explains: the number of wrong elements, and if
    all are in rows with edges from other ranks.
    """
    bad, edges, owner = np.nan_to_num(difference.ratio) > 1, difference.case.edges, difference.division.owner
    text = f"{NOTHING}: {int(bad.sum())} of {bad.size} elements of rank {difference.rank} differ"
    if difference.kind not in ("dst", "node") or not bad.ndim:
        yield Cause(text)
        return
    rows = set(difference.rows[bad.reshape(len(bad), -1).any(1)])
    for q in range(difference.division.size):
        if q != difference.rank and rows <= set(edges.dst[owner[edges.src] == q]):
            yield Cause(f"{text}, all in rows with edges from rank {q}")
            return
    local_rows = rows - set(edges.dst[owner[edges.src] != difference.rank])
    where = "rows without edges from other ranks among them" if local_rows else "all in rows with edges from other ranks"
    yield Cause(f"{text}, {where}")


def _summed(numbers):
    value = sum(n.value for n in numbers)
    return BoundedArray(value, sum(np.asarray(n.error) for n in numbers) + 2.0**-22 * np.abs(value))


def _scaled(number, factor):
    return BoundedArray(number.value * factor, (np.asarray(number.error) + 2.0**-22 * np.abs(number.value)) * np.abs(factor))

"""What a wrong result of several ranks looks like: hypotheses, each computed by the reference; the first that explains every element."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sarlite.oracle.arithmetic import Number
from sarlite.oracle.case import Case
from sarlite.oracle.certified import arithmetic, ratios
from sarlite.oracle.edges import EdgeList
from sarlite.types import Array

MOST_ROWS = 400  # rows of a rank that are compared each with each
MOST_EDGES = 64  # edges into wrong rows that are taken to be lost or doubled, one by one


class Diagnosis:
    """Explains the rows of one rank.

    Parameters
    ----------
    reference : Reference
    case : Case
    cotangents : dict of str to array
    owner : (n_nodes,) int
    size : int
    kinds : dict of str to str
        Of each array, as `invariants.row_kinds`.
    before : (Case, cotangents), optional
        Of the run before on the same division.
    """

    def __init__(self, reference: Any, case: Case, cotangents: Mapping[str, Array], owner: Array, size: int, kinds: Mapping[str, str],
                 before: tuple[Case, Mapping[str, Array]] | None) -> None:
        self.reference, self.case, self.cotangents, self.owner, self.size = reference, case, cotangents, owner, size
        self.kinds, self.before = kinds, before
        self.edges: tuple = ()  # (src, dst) of the edge that the cause names

    def rows(self, rank: int, kind: str) -> Array:
        """The global numbers of a rank's rows: of its nodes, its edges, or all of a parameter."""
        if kind == "whole":
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.owner[self.case.edges.dst] == rank) if kind == "edge" else np.flatnonzero(self.owner == rank)

    def part(self, number: Number, rank: int, kind: str) -> Number:
        """The rows of a rank; everything of a parameter."""
        error = np.broadcast_to(number.error, number.value.shape)
        if kind == "whole":
            return Number(number.value, error)
        rows = self.rows(rank, kind)
        return Number(number.value[rows], error[rows])

    def cause(self, rank: int, name: str | int, gradient: bool, kind: str, number: Number, arrays: list[Array]) -> str:
        """Return the probable cause, one line."""
        got, wanted = arrays[rank], self.part(number, rank, kind)
        if kind == "whole":
            return self._of_parameter(rank, name if gradient else None, number, arrays)
        guesses = self._gradients(rank, str(name), kind) if gradient else self._outputs(rank, name, kind, got, wanted)
        found = self._permuted(got, wanted, rank) or self._scaled(got, wanted, kind, rank)
        found = found or next((text for text, guess in guesses if matches(got, guess)), None)
        return found or ("all zeros" if not got.any() else self._place(got, wanted, rank, kind))

    # ---- outputs

    def _outputs(self, rank: int, name: str | int, kind: str, got: Array, wanted: Number) -> Iterator[tuple[str, Number]]:
        """(cause, what the rank's rows would be)."""
        edges, owner = self.case.edges, self.owner
        peers = [q for q in range(self.size) if q != rank and np.any((owner[edges.src] == q) & (owner[edges.dst] == rank))]
        into = owner[edges.dst] == rank

        def lost(which):
            return self.part(self._evaluate(_without(self.case, which, self.kinds), name), rank, kind)

        def mixed(which, other):
            return self.part(self._evaluate(self._from(which, other), name), rank, kind)

        foreign = into & (owner[edges.src] != rank)
        if kind != "edge":
            yield f"all edges from other ranks into rank {rank} are lost", lost(foreign)
            for q in peers:
                yield f"the edges from rank {q} into rank {rank} are lost", lost(into & (owner[edges.src] == q))
            yield "all edges between ranks are lost, on every rank", lost(owner[edges.src] != owner[edges.dst])
        for text, other in (("stale buffer: rows from {} are those of the call before", self.before and self.before[0]),
                            ("rows from {} are zeros", _zeros(self.case, self.kinds))):
            if other is not None:
                yield text.format("other ranks"), mixed(owner != rank, other)
                for q in peers:
                    yield text.format(f"rank {q}"), mixed(owner == q, other)
        if self.case.attributes.get("reduce") == "mean":
            parts = [lost(into & (owner[edges.src] != q)) for q in range(self.size)]
            yield "the means over each rank's edges are added, where one mean over all is promised", _total(parts)
        bad = (np.nan_to_num(ratios(got, wanted)) > 1).reshape(len(got), -1).any(1)
        into_bad = np.flatnonzero(np.isin(edges.dst, self.rows(rank, kind)[bad])) if kind != "edge" else ()
        for e in into_bad[:MOST_EDGES]:
            text = f"edge {e} ({edges.src[e]} -> {edges.dst[e]}), from rank {owner[edges.src[e]]}, is"
            self.edges = ((int(edges.src[e]), int(edges.dst[e])),)
            yield f"{text} lost", lost(np.arange(edges.n_edges) == e)
            twice = _on(self.case, np.append(np.arange(edges.n_edges), e), self.kinds)
            yield f"{text} counted twice", self.part(self._evaluate(twice, name), rank, kind)
        self.edges = ()

    def _from(self, which, other):
        """The case with the node rows `which` of another case."""
        arrays = {}
        for name, value in self.case.arrays.items():
            value = np.array(value)
            if self.kinds.get(name) in ("src", "dst", "node"):
                value[which] = other.arrays[name][which]
            arrays[name] = value
        return replace(self.case, arrays=arrays)

    def _evaluate(self, case, name):
        """An output, or what a layer of a number gives."""
        if isinstance(name, int):
            return self.reference.layers(case, arithmetic(case))[name]
        return self.reference.outputs(case, arithmetic(case))[name]

    # ---- gradients

    def _gradients(self, rank: int, name: str, kind: str) -> Iterator[tuple[str, Number]]:
        """(cause, what the rank's rows of a gradient would be)."""
        own = {key: _only(value, self.rows(rank, self.reference.outputs_by[key])) for key, value in self.cotangents.items()}
        whole = self._gradient(self.case, self.cotangents)[name]
        yield "not reduced: the gradients that other ranks have of this rank's rows are missing", self.part(
            self._gradient(self.case, own)[name], rank, kind)
        if self.before is not None:
            earlier = self._gradient(*self.before)[name]
            yield "stale buffer: the gradient of the call before is still in it", self.part(_total([whole, earlier]), rank, kind)
            yield "stale buffer: it is the gradient of the call before", self.part(earlier, rank, kind)

    def _gradient(self, case, cotangents):
        return self.reference.gradients(case, cotangents, arithmetic(case))

    def _of_parameter(self, rank, name, number, arrays):
        """A parameter, or its gradient, is whole, and the same on every rank."""
        got, wanted = arrays[rank], self.part(number, rank, "whole")
        if scaled := self._scaled(got, wanted, "whole", rank):
            return scaled
        total = np.sum([array.astype(np.float64) for array in arrays], 0)
        if self.size > 1 and matches(total, Number(wanted.value, self.size * wanted.error)):
            return "not reduced over ranks: the ranks' gradients add up to it"
        if not got.any():
            return "all zeros"
        if self.before is not None and name is not None:
            earlier = self._gradient(*self.before)[name]
            if matches(got, _total([number, earlier])):
                return "stale buffer: the gradient of the call before is still in it"
        other = next((q for q, array in enumerate(arrays) if array.tobytes() != got.tobytes()), None)
        text = ", the same on every rank" if other is None else f": rank {other} has another one than rank {rank}"
        return f"no single cause found{text}"

    # ---- of both

    def _scaled(self, got, wanted, kind, rank):
        """One factor of all elements, or one a row."""
        value = np.asarray(wanted.value, np.float64)
        at = np.isfinite(value) & (value != 0)
        if not at.any() or not np.isfinite(got).all():
            return None
        place = np.unravel_index(np.argmax(np.where(at, np.abs(value), 0)), value.shape)
        factor = float(got[place]) / float(value[place])
        names = {self.size: f"summed {self.size} times", 1 / self.size: f"a mean over {self.size} ranks where a sum is promised",
                 -1.0: "the wrong sign"}
        for known, text in names.items():
            if known != 1 and matches(got, _times(wanted, known)):
                return f"wrong scale: {text}"
        if factor and matches(got, _times(wanted, factor)):
            return f"wrong scale: every element is {factor:.6g} times what it should be"
        if kind not in ("dst", "node"):
            return None
        degrees = np.maximum(self.case.edges.in_degrees, 1)[self.rows(rank, kind)].astype(float).reshape(-1, *[1] * (value.ndim - 1))
        if matches(got, _times(wanted, degrees)):
            return "wrong scale: a sum over the edges where a mean is promised"
        return "wrong scale: a mean over the edges where a sum is promised" if matches(got, _times(wanted, 1 / degrees)) else None

    def _permuted(self, got, wanted, rank):
        """The rank's own rows in another order."""
        if got.ndim < 2 or not 2 <= len(got) <= MOST_ROWS:
            return None
        rows, value = got.reshape(len(got), -1).astype(np.float64), np.asarray(wanted.value, np.float64).reshape(len(got), -1)
        error = np.reshape(wanted.error, value.shape)
        with np.errstate(invalid="ignore"):
            fits = [np.flatnonzero((np.abs(row - value) <= error).all(1)) for row in rows]
        free, first = set(range(len(rows))), None
        for k, candidates in enumerate(fits):
            taken = k if k in candidates and k in free else next((int(c) for c in candidates if int(c) in free), None)
            if taken is None:
                return None
            free.discard(taken)
            first = (k, taken) if first is None and taken != k else first
        own = self.rows(rank, "dst")
        return None if first is None else f"rows are permuted: that of node {own[first[0]]} holds what is node {own[first[1]]}'s"

    def _place(self, got, wanted, rank, kind):
        """Nothing explains it: which rows it touches."""
        bad = np.nan_to_num(ratios(got, wanted)) > 1
        text = f"no single cause found: {int(bad.sum())} of {bad.size} elements of rank {rank} differ"
        if kind not in ("dst", "node") or not bad.ndim:
            return text
        edges, rows = self.case.edges, self.rows(rank, kind)[bad.reshape(len(bad), -1).any(1)]
        for q in range(self.size):
            if q != rank and set(rows) <= set(edges.dst[self.owner[edges.src] == q]):
                return f"{text}, all in rows with edges from rank {q}"
        alone = set(rows) - set(edges.dst[self.owner[edges.src] != rank])
        return text + (", rows without edges from other ranks among them" if alone else ", all in rows with edges from other ranks")


def matches(got: Array, number: Number) -> bool:
    """Whether every element is within the bound of a hypothesis, and some of them are decided."""
    ratio = ratios(got, number)
    return bool(got.size) and not np.isnan(ratio).all() and not np.any(np.nan_to_num(ratio) > 1)


def _total(numbers):
    value = sum(n.value for n in numbers)
    return Number(value, sum(np.asarray(n.error) for n in numbers) + 2.0**-22 * np.abs(value))


def _times(number, factor):
    return Number(number.value * factor, (np.asarray(number.error) + 2.0**-22 * np.abs(number.value)) * np.abs(factor))


def _only(value, rows):
    out = np.zeros_like(value)
    out[rows] = value[rows]
    return out


def _without(case, lost, kinds):
    return _on(case, np.flatnonzero(~lost), kinds)


def _on(case, kept, kinds):
    """The case on the edges `kept`, with their rows."""
    edges: EdgeList = case.edges.select(kept)
    arrays = {name: value[kept] if kinds.get(name) == "edge" else value for name, value in case.arrays.items()}
    return replace(case, edges=edges, arrays=arrays)


def _zeros(case, kinds):
    return replace(case, arrays={name: np.zeros_like(value) if kinds.get(name) in ("src", "dst", "node") else value
                                 for name, value in case.arrays.items()})

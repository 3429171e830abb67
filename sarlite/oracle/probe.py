"""Level `probe`: inputs whose exact result every correct function gives, whatever its order of evaluation, so that `==` decides.

Rows of the inputs are codes of their own number: a one, the digits of the number, the digits' complements, mixed digits. What a result lacks or has too
much of is then a row's code, and names it (`decode`). Codes are as wide as 2^24 (2^11, 2^8, 2^53) partial sums allow, and `Exact` proves each case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from sarlite.errors import SarliteError
from sarlite.keys import GAMMA, splitmix64
from sarlite.oracle.case import Case
from sarlite.oracle.corpus import Entry
from sarlite.oracle.edges import EdgeList
from sarlite.oracle.exact import BITS, Exact
from sarlite.oracle.reference import Reference, rounded
from sarlite.types import Array

_MOST_BITS = 16  # of a digit
_LOUD, _LOWER = 1e4, -1e4  # scores of which the softmax is one-hot
_EQUAL = 0.5  # scores up to here have exp(s - s) = 1 even where it is made as exp2 of two rounded products

_exact_outputs: WeakKeyDictionary[Case, dict[str, Array]] = WeakKeyDictionary()
_exact_gradients: WeakKeyDictionary[Case, tuple[Any, dict[str, Array]]] = WeakKeyDictionary()


class NotExact(SarliteError):
    """No input of this kind has an exact result on this graph: the message says why."""


def cases(reference: Reference, graph: Entry | EdgeList, *, dtype: str = "float32", seed: int = 0, index_dtype: str = "int64",
          width: int = 17) -> list[Case]:
    """Return cases whose outputs are exact; where one has too few columns for a code, several that share it.

    Parameters
    ----------
    reference : Reference
    graph : Entry or EdgeList
        An entry of the corpus brings its width and what is special about its values.
    dtype : str
        "float64", "float32", "float16" or "bfloat16".
    width : int
        Columns, for an EdgeList.

    Raises
    ------
    NotExact
        Degrees, roots or sizes of sums leave no exact result.

    Notes
    -----
    Each attempt costs three evaluations of the reference; wider digits are tried first.
    """
    name, edges, values = "graph", graph, "codes"
    if isinstance(graph, Entry):
        name, edges, width, values = graph.name, graph.edges, graph.width, graph.values
    made = []
    for kind in _kinds(reference, edges, width):
        filling = _Filling(reference, edges, width, dtype, seed, kind, values, index_dtype, f"{name}/{kind}")
        made += _widest(filling)
    return made


def cotangents(reference: Reference, case: Case, seed: int = 0) -> dict[str, Array]:
    """Return codes of the rows of each output, for which all gradients of a case are exact. Raises NotExact."""
    shapes = {name: expr.shape for name, expr in reference.expressions(case)[1].items()}
    for bits in _ladder(min(_MOST_BITS, BITS[case.dtype] - 1)):
        g = {name: _typed(_codes(shape, bits, seed + 1), case.dtype) for name, shape in shapes.items()}
        with np.errstate(all="ignore"):
            found = reference.gradients(case, g, Exact(case.dtype))
        if all(np.all(number.error == 0) for number in found.values()):
            _exact_gradients[case] = g, {name: number.value for name, number in found.items()}
            return g
    bad = next(name for name, number in found.items() if np.any(number.error != 0))
    raise NotExact(f"{case.name}: the gradient of {bad} is exact for no cotangent of integers in {case.dtype}")


def expected(reference: Reference, case: Case) -> dict[str, Array]:
    """Return the exact outputs of a case, float64."""
    if case not in _exact_outputs:
        _exact_outputs[case] = _proved(reference.outputs(case, Exact(case.dtype)), case)
    return _exact_outputs[case]


def expected_gradients(reference: Reference, case: Case, g: Mapping[str, Array]) -> dict[str, Array]:
    """Return the exact gradients of a case by the name of the array, float64, for cotangents that `cotangents` gave."""
    if case not in _exact_gradients or _exact_gradients[case][0] is not g:
        _exact_gradients[case] = g, _proved(reference.gradients(case, g, Exact(case.dtype)), case)
    return _exact_gradients[case][1]


def special(reference: Reference, case: Case, values: str) -> Case:
    """Return a case with what `values` (corpus.VALUES) says about its inputs; itself where it says nothing about them.

    "negative": all are below 0, so that maxima are. "ties": what a ReLU leaves of few integers. "unreachable": NaN and Inf in rows that no edge leaves.
    "denormal": below the smallest normal number. "scores": +-1e4. "masked": -Inf at some edges, and at all edges of some rows.
    """
    return replace(case, arrays={name: _special(reference, case, name, array, values) for name, array in case.arrays.items()})


# ---- which inputs


class _Filling:
    """Makes the inputs of one kind on one graph, with digits of so many bits."""

    def __init__(self, reference, edges, width, dtype, seed, kind, values, index_dtype, name):
        self.reference, self.edges, self.width, self.dtype, self.seed = reference, edges, width, dtype, seed
        self.kind, self.values, self.index_dtype, self.name = kind, values, index_dtype, name
        self.blank = reference.case(edges, name=name, values="integers", seed=seed, dtype=dtype, width=width, index_dtype=index_dtype)

    def first_bits(self):
        """Digits that may fit: by the longest sum, and where gradients are products, by the sum of these over the columns."""
        bits, longest = BITS[self.dtype], int(max(self.edges.in_degrees.max(initial=1), 1))
        most = min(_MOST_BITS, bits - 1, bits - (longest - 1).bit_length())
        if len(self.reference.differentiable(self.blank)) > 1:
            most = min(most, (bits - (max(self.width, 1) - 1).bit_length()) // 2)
        return max(most, 1)

    def made(self, bits):
        """The cases that together carry the code."""
        shapes = {name: np.shape(array) for name, array in self.blank.arrays.items()}
        coded = [name for name in shapes if self._is_coded(name)]
        columns = max((_code_columns(shapes[name][0], bits) for name in coded), default=1)
        held = min((int(np.prod(shapes[name][1:])) for name in coded), default=1)
        for chunk in range(-(-columns // max(held, 1)) if held else 1):
            arrays = {name: _typed(self._array(name, shape, bits, chunk), self.dtype) for name, shape in shapes.items()}
            state = {name: _typed(self._parameter(np.shape(value), name), self.dtype) for name, value in self.blank.state.items()}
            state = self.blank.state if self.reference.state is not None else state
            case = replace(self.blank, name=f"{self.name}/{chunk}", arrays=arrays, state=state)
            yield special(self.reference, case, self.values)

    def _is_coded(self, name):
        return name not in self.reference.definition.fixed and name not in ("weight", *_score_names(self.reference))

    def _array(self, name, shape, bits, chunk):
        if name in self.reference.definition.fixed:
            return self.blank.arrays[name]
        if name in _score_names(self.reference):
            return _scores(self.edges, shape, self.kind, self.seed)
        if name == "weight":
            return _weights(self.edges, shape, bits, self.seed)
        return _codes(shape, bits, self.seed, chunk * int(np.prod(shape[1:])))

    def _parameter(self, shape, name):
        """-1, 0 and 1, so that sums stay short, and no two rows alike for long."""
        return (_mixed(np.arange(int(np.prod(shape))), self.seed + sum(name.encode())) % 3).reshape(shape) - 1.0


def _kinds(reference, edges, width):
    return ("equal", "saturated") if _score_names(reference) else ("codes",)


def _score_names(reference):
    return {"softmax": ("scores",), "attention": ("src", "dst")}.get(reference.name, ())


def _ladder(first: int) -> Iterator[int]:
    yield from range(first, 1, -3)
    yield 1


def _widest(filling):
    """The cases with the widest digits that are exact."""
    for bits in _ladder(filling.first_bits()):
        found = []
        for case in filling.made(bits):
            with np.errstate(all="ignore"):
                outputs = filling.reference.outputs(case, Exact(case.dtype))
            if any(np.any(number.error != 0) for number in outputs.values()):
                break
            _exact_outputs[case] = {name: number.value for name, number in outputs.items()}
            found.append(case)
        else:
            return found
    raise NotExact(f"{case.name}: {_reason(outputs, case)}")


def _proved(numbers, case):
    if any(np.any(number.error != 0) for number in numbers.values()):
        raise NotExact(f"{case.name}: {_reason(numbers, case)}")
    return {name: number.value for name, number in numbers.items()}


def _reason(numbers, case):
    name, error = next((name, np.asarray(number.error)) for name, number in numbers.items() if np.any(number.error != 0))
    row = int(np.flatnonzero(error.reshape(len(error), -1).any(1))[0]) if error.ndim else 0
    degree = f", which has {case.edges.in_degrees[row]} in-edges" if row < case.edges.n_dst else ""
    return f"{name} is exact in {case.dtype} for no integers that tell rows apart: row {row}{degree}"


# ---- what stands in them


def _typed(values, dtype):
    return rounded(np.asarray(values, np.float64), dtype)


def _mixed(numbers, seed):
    """(n,) of int64 from 0: 31 bits that look random."""
    with np.errstate(over="ignore"):
        key = np.uint64(splitmix64(seed % 2**64))
        return (splitmix64(np.asarray(numbers).astype(np.uint64) * np.uint64(GAMMA) ^ key) >> np.uint64(33)).astype(np.int64)


def _code_columns(n: int, bits: int) -> int:
    """Columns that a code needs: a one and the digits."""
    return 1 + max(1, -(-max(n - 1, 1).bit_length() // bits))


def _codes(shape: tuple[int, ...], bits: int, seed: int, start: int = 0) -> Array:
    """(n, ...): columns `start` on of the code of each row: 1, digits of 2^bits, their complements, then mixed digits."""
    n, width, ids = shape[0], int(np.prod(shape[1:])), np.arange(shape[0])
    digits, top = _code_columns(n, bits) - 1, (1 << bits) - 1
    out = np.empty((n, width))
    for c in range(width):
        k = c + start
        if k == 0:
            out[:, c] = 1
        elif k <= 2 * digits:
            digit = ids >> (bits * ((k - 1) % digits)) & top
            out[:, c] = digit if k <= digits else top - digit
        else:
            out[:, c] = _mixed(ids + n * k, seed) % (top + 1)
    return out.reshape(shape)


def places(edges: EdgeList) -> Array:
    """(n_edges,) the place of each edge among those of its row, in CSR by destination."""
    out = np.empty(edges.n_edges, np.int64)
    out[edges.eid] = np.arange(edges.n_edges) - edges.indptr[edges.dst[edges.eid]]
    return out


def _weights(edges, shape, bits, seed):
    """Small integers, of either sign, that tell the edges of a row apart for as long as they last."""
    place, top = places(edges).reshape(-1, *[1] * (len(shape) - 1)), min(7, 1 << bits // 2)
    shift = np.arange(int(np.prod(shape[1:]))).reshape(shape[1:])
    sign = 1 - 2 * (_mixed(np.arange(edges.n_edges), seed) % 2).reshape(place.shape)
    return (1 + (place + shift) % top) * sign * np.ones(shape)


def _scores(edges, shape, kind, seed):
    """By edge: those of a row equal, or one far above the others. By node: all equal, or far apart in a drawn order."""
    extra = [1] * (len(shape) - 1)
    if kind == "equal":
        if shape[0] != edges.n_edges:
            return np.full(shape, _EQUAL / 2)
        return np.choose(edges.dst % 3, (0.0, _EQUAL, -_EQUAL)).reshape(-1, *extra) * np.ones(shape)
    heads = np.arange(int(np.prod(shape[1:]))).reshape(shape[1:])
    if shape[0] != edges.n_edges:
        return -8192.0 * np.argsort(_mixed(np.arange(shape[0]), seed), kind="stable").reshape(-1, *extra) - 4 * heads
    winner = (_mixed(edges.dst, seed).reshape(-1, *extra) + heads) % edges.in_degrees[edges.dst].reshape(-1, *extra)
    return np.where(places(edges).reshape(-1, *extra) == winner, 0.0, _LOWER)


def _special(reference, case, name, array, values):
    scores = name in _score_names(reference)
    edges = case.edges
    if values == "scores" and scores:
        return _typed(np.where(np.asarray(array, np.float64) >= 0, _LOUD, _LOWER), case.dtype)
    if values == "masked" and scores and len(array) == edges.n_edges:
        hidden = edges.dst % 2 == 0
        return np.where(hidden.reshape(-1, *[1] * (array.ndim - 1)), -np.inf, array).astype(array.dtype)
    if scores or name in reference.definition.fixed or name == "weight":
        return array
    if values == "negative":
        return _typed(-1.0 - np.abs(array.astype(np.float64)), case.dtype)
    if values == "ties":
        return _typed(np.maximum(np.floor(np.abs(array.astype(np.float64))) % 4 - 1, 0), case.dtype)
    if values == "unreachable" and len(array) == edges.n_src and not case.state and not case.attributes.get("loops"):
        return np.where((edges.out_degrees == 0).reshape(-1, *[1] * (array.ndim - 1)), _spoilt(array), array).astype(array.dtype)
    return array


def _spoilt(array):
    rows = np.arange(len(array)).reshape(-1, *[1] * (array.ndim - 1)) % 3
    return np.choose(rows, (np.nan, np.inf, -np.inf))

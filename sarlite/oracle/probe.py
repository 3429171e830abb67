"""Level "probe" of a check: inputs for which every order of evaluation gives the same exact result.

A right function returns exactly this result.

Each row of an input is a code of its own row number: a one, the digits of the number, the digits' complements, and
hashed digits. The difference of a wrong result is then the code of a row, and names the row (`locate`). Digits are as
wide as the precision allows: partial sums may reach 2^24 in float32 (2^53, 2^11, 2^8 in float64, float16, bfloat16).
`ExactArithmetic` proves each case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from sarlite.errors import SarliteError
from sarlite.oracle.case import Case
from sarlite.oracle.corpus import Entry, custom_entry
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.exact_arithmetic import BITS, ExactArithmetic
from sarlite.oracle.formats import NARROW, default_accumulate, rounded
from sarlite.oracle.plain import BoundedArray
from sarlite.oracle.reference import Reference
from sarlite.oracle.values import ProbeScores, code_columns, codes, hashed, probe_kinds, special, weights
from sarlite.types import Array


def _most_bits(dtype: str) -> int:
    """Return the number of bits, at most 16, of integers that `dtype` stores exactly. This is the largest size of the digits with
    which probes (inputs with exact results) encode row numbers.
    """
    return min(16, BITS[NARROW.get(dtype, dtype)])


Gradients = tuple[Mapping[str, Array], dict[str, BoundedArray]]  # cotangents, and the gradients computed from them
_outputs: WeakKeyDictionary[Case, dict[str, BoundedArray]] = WeakKeyDictionary()
_gradients: WeakKeyDictionary[Case, Gradients] = WeakKeyDictionary()

LONG = 1024  # sums in a wider format than the inputs get "signed" probes on rows of more edges


class NotExact(SarliteError):
    """Exception for a kind of input that has no exact result on a graph; the message says why."""


def cases(reference: Reference, graph: Entry | EdgeList, *, dtype: str = "float32", seed: int = 0, width: int = 17,
          skipped: list[str] | None = None, **options: Any) -> list[Case]:
    """Return probes: cases on `graph`, with inputs of `width` columns, whose outputs are exact in every order of evaluation. The
    columns of a row encode the row's number; a code with more columns than `width` is divided among several cases. A line for each
    kind of input without an exact result is appended to `skipped`.

    Parameters
    ----------
    reference : Reference
    graph : Entry or EdgeList
        An entry of the corpus has its own width and kind of values.
    dtype : str
    seed : int
    width : int
        Number of columns if `graph` is an EdgeList.
    skipped : list, optional
        Receives a line for each kind of input without an exact result, if another kind has one.
    **options
        See `Reference.case`.

    Raises
    ------
    NotExact
        Degrees, square roots or sizes of sums leave no exact result.

    Notes
    -----
    Each attempt evaluates the reference three times; wide digits are tried first.
    """
    if not isinstance(graph, Entry):
        graph = custom_entry("graph", graph, width)
    values = graph.values
    exact_cases, refused = [], [] if skipped is None else skipped
    longest = int(graph.edges.in_degrees.max(initial=0))
    for kind in probe_kinds(reference, graph.width, values, wide_sums=longest > LONG and _wide(dtype, options)):
        builder = _ProbeBuilder(reference, graph, dtype, seed, kind, options)
        try:
            exact_cases += _widest(builder)
        except NotExact as error:
            refused.append(str(error))
    if not exact_cases:
        raise NotExact(refused.pop())
    return exact_cases


def cotangents(reference: Reference, case: Case, seed: int = 0) -> dict[str, Array]:
    """Return {output: gradient} of a case for which the gradients of the inputs are exact, as many of them as possible. Rows
    encode their row numbers in digits; `seed` sets the hashed digits.

    Raises
    ------
    NotExact
        No gradient is exact for any of the tried codes.
    """
    shapes = {name: expr.shape for name, expr in reference.expressions(case)[1].items()}
    best: tuple[dict[str, Array], dict[str, BoundedArray]] | None = None
    for bits in _bits_to_try(min(_most_bits(case.format), BITS[case.format] - 1)):
        g = {name: rounded(codes(shape, bits, seed + 1), case.format) for name, shape in shapes.items()}
        gradients = reference.gradients(case, g, ExactArithmetic(case.format, case.accumulate))
        exact = _exact_ones(gradients)
        if bits == 1 and best is not None and len(exact) <= len(best[1]):
            break
        if best is None or len(exact) > len(best[1]):
            best = g, exact
        if len(exact) == len(gradients) and bits > 1:
            break
    assert best is not None
    if not best[1]:
        raise NotExact(f"{case.name}: no gradient is exact in {case.format} for any cotangent of integers")
    _gradients[case] = best
    return best[0]


def numbers(reference: Reference, case: Case) -> dict[str, BoundedArray]:
    """Return {output: BoundedArray, values with error bounds} of a case. The error of an element is 0 if float arithmetic computes
    the element exactly in any order of operations, else Inf. Results are cached as long as the case lives.
    """
    if case not in _outputs:
        outputs = reference.outputs(case, ExactArithmetic(case.format, case.accumulate))
        _outputs[case] = {name: BoundedArray(n.value, n.error if np.any(n.error) else 0.0) for name, n in outputs.items()}
    return _outputs[case]


def gradient_numbers(reference: Reference, case: Case, g: Mapping[str, Array]) -> dict[str, BoundedArray]:
    """Return {input: BoundedArray, values with error bounds}, the exact gradients of a case's inputs for `g`, the gradients of the
    outputs; a gradient with an inexact element is left out. The last result of a case is cached.
    """
    if case not in _gradients or _gradients[case][0] is not g:
        _gradients[case] = g, _exact_ones(reference.gradients(case, g, ExactArithmetic(case.format, case.accumulate)))
    return _gradients[case][1]


def _exact_ones(numbers):
    return {name: BoundedArray(number.value) for name, number in numbers.items() if np.all(number.error == 0)}


# ---- inputs


class _ProbeBuilder:
    """Builder of the probes (inputs with exact results) of one kind on one graph: rows that encode their row numbers, in digits
    of a chosen size.

    The kind "signed" is for sums in a wider format than the inputs: the upper half of the rows holds the negative code
    of the lower half, so that sums are small while partial sums are large.
    """

    def __init__(self, reference, entry, dtype, seed, kind, options):
        self.reference, self.edges, self.width, self.dtype, self.seed = reference, entry.edges, entry.width, dtype, seed
        self.values, self.name = entry.values, f"{entry.label}/{kind}"
        self.scores, self.signed = ProbeScores(reference, entry.edges, kind, seed), kind == "signed"
        self.blank = reference.case(entry.edges, name=self.name, values="integers", seed=seed, dtype=dtype,
                                    width=entry.width, square=entry.square, **options)

    def first_bits(self) -> int:
        """Return the number of bits per digit of the encoded row numbers to try first: the most for which sums of coded rows stay
        exact. This covers the longest sum over edges, and gradients that sum over columns.
        """
        bits, longest = BITS[self.dtype], int(max(self.edges.in_degrees.max(initial=1), 1))
        sums = BITS[self.blank.accumulate] if self.signed else min(bits, BITS[self.blank.accumulate])
        most = min(_most_bits(self.dtype), bits - 1, sums - (longest - 1).bit_length())
        if len(self.reference.differentiable(self.blank)) > 1:
            most = min(most, (bits - (max(self.width, 1) - 1).bit_length()) // 2)
        return max(most, 1)

    def cases_of_bits(self, bits: int) -> Iterator[Case]:
        """Yield cases whose input rows encode their row numbers (`values.codes`) in digits of `bits` bits. If a code has more
        columns than an input, the first case has the first columns, the next case the next ones, and so on.
        """
        shapes = {name: np.shape(array) for name, array in self.blank.arrays.items()}
        coded = [name for name, shape in shapes.items() if len(shape) > 1 and self._carries_code(name)]
        columns = max((code_columns(shapes[name][0], bits) for name in coded), default=1)
        held = min((int(np.prod(shapes[name][1:])) for name in coded), default=1)
        for chunk in range(-(-columns // max(held, 1)) if held else 1):
            arrays = {name: self._array(name, shape, bits, chunk) for name, shape in shapes.items()}
            case = replace(self.blank, name=f"{self.name}/{chunk}", arrays=arrays, state=self._state())
            yield case if self.values in ("scores", "denormal") else special(self.reference, case, self.values)

    def _carries_code(self, name):
        return name not in (*self.reference.definition.fixed, *self.scores.names, "weight")

    def _array(self, name, shape, bits, chunk):
        if name in self.reference.definition.fixed:
            return self.blank.arrays[name]
        if name in self.scores.names:
            return rounded(self.scores.array(name, shape), self.dtype)
        if name == "weight":
            return rounded(weights(self.edges, shape, bits, self.seed), self.dtype)
        start = chunk * int(np.prod(shape[1:])) if len(shape) > 1 else 0
        code = codes(shape, bits, self.seed, start)
        if self.signed:
            code[(len(code) + 1) // 2 :] = -code[: len(code) // 2][::-1]
        return rounded(self.scores.coded(name, code), self.dtype)

    def _state(self) -> dict[str, Array]:
        """Return the parameters of the probes, with values -1, 0 and 1, so that sums need few bits. Attention vectors are 0, so
        that all scores are equal.
        """
        if self.reference.state is not None:
            return self.blank.state
        state = dict(self.blank.state)
        for name in state.keys() - self.reference.definition.fixed:
            shape, seed = np.shape(state[name]), self.seed + sum(name.encode())
            value = (hashed(np.arange(int(np.prod(shape))), seed) % 3).reshape(shape) - 1.0
            state[name] = rounded(0 * value if name.split(".")[-1].startswith("att") else value, self.dtype)
        return state


def _wide(dtype: str, options: Mapping[str, Any]) -> bool:
    """Return True if sums are accumulated, by options["accumulate"] or by default, in a format with more bits than `dtype`."""
    return BITS[options.get("accumulate") or default_accumulate(dtype)] > BITS[dtype]


def _bits_to_try(widest: int) -> Iterator[int]:
    """Yield the numbers of bits of a digit to try in turn: `widest`, 1, then `widest` - 3, `widest` - 6 and so on down to 2. Digits
    of 1 bit come second, as no wider digits are exact if 1-bit digits are not.
    """
    yield from dict.fromkeys((widest, 1, *range(widest - 3, 1, -3)))


def _widest(builder: _ProbeBuilder) -> list[Case]:
    """Return the cases of `builder` with the most bits per digit for which all outputs are exact; raise NotExact if there are none."""
    narrowest = []
    for bits in _bits_to_try(builder.first_bits()):
        try:
            exact_cases = _exact(builder, bits)
        except NotExact:
            if bits == 1:
                raise
            continue
        if bits > 1:
            return exact_cases
        narrowest = exact_cases
    return narrowest


def _exact(builder: _ProbeBuilder, bits: int) -> list[Case]:
    """Return the cases of `builder` whose digits have `bits` bits; raise NotExact if an output of a case is not exact."""
    exact_cases = []
    for case in builder.cases_of_bits(bits):
        outputs = numbers(builder.reference, case)
        if any(np.any(number.error != 0) for number in outputs.values()):
            raise NotExact(f"{case.name}: {_reason(outputs, case)}")
        exact_cases.append(case)
    return exact_cases


def _reason(numbers, case):
    name, error = next((name, np.asarray(number.error)) for name, number in numbers.items()
                       if np.any(number.error != 0))
    text = f"{name} is exact in {case.format} for no integers that tell rows apart"
    if not error.ndim:
        return text
    row = int(np.flatnonzero(error.reshape(len(error), -1).any(1))[0])
    degree = f", which has {case.edges.in_degrees[row]} in-edges" if len(error) == case.edges.n_dst else ""
    return f"{text}: row {row}{degree}"

"""Level `probe`: inputs whose exact result every correct function gives, whatever its order of evaluation, so that `==`
decides.

Rows of the inputs are codes of their own number: a one, the digits of the number, the digits' complements, mixed
digits. What a result lacks or has too much of is then a row's code, and names it (`locate`). Digits are as wide as the
precision allows, with partial sums up to 2^24 in float32 (2^53, 2^11, 2^8 in float64, float16, bfloat16), and `Exact`
proves each case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from sarlite.errors import SarliteError
from sarlite.oracle.case import Case
from sarlite.oracle.corpus import Entry, own
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.exact_arithmetic import BITS, Exact
from sarlite.oracle.formats import NARROW, rounded, summed
from sarlite.oracle.plain import Number
from sarlite.oracle.reference import Reference
from sarlite.oracle.values import Scores, code_columns, codes, kinds, mixed, special, weights
from sarlite.types import Array


def _most_bits(dtype):
    """Return the most bits of a digit, which rows that edges gather can hold."""
    return min(16, BITS[NARROW.get(dtype, dtype)])


_outputs: WeakKeyDictionary[Case, dict[str, Number]] = WeakKeyDictionary()
_gradients: WeakKeyDictionary[Case, tuple[Any, dict[str, Number]]] = WeakKeyDictionary()


LONG = 1024  # edges into a row above which sums in a wider format are probed


class NotExact(SarliteError):
    """No input of this kind has an exact result on this graph: the message says why."""


def cases(reference: Reference, graph: Entry | EdgeList, *, dtype: str = "float32", seed: int = 0, width: int = 17,
          skipped: list[str] | None = None, **options: Any) -> list[Case]:
    """Return cases whose outputs are exact; where one case has too few columns for a code, several share the code.

    Parameters
    ----------
    graph : Entry or EdgeList
        An entry of the corpus brings its width and what is special about its values.
    width : int
        Columns, for an EdgeList.
    skipped : list, optional
        Gets a line for each kind of input that has no exact result, where another has.
    **options
        As of `Reference.case`.

    Raises
    ------
    NotExact
        Degrees, roots or sizes of sums leave no exact result.

    Notes
    -----
    Each attempt costs three evaluations of the reference; wider digits are tried first.
    """
    if not isinstance(graph, Entry):
        graph = own("graph", graph, width)
    values = graph.values
    made, refused = [], [] if skipped is None else skipped
    longest = int(graph.edges.in_degrees.max(initial=0))
    for kind in kinds(reference, graph.width, values, wide_sums=longest > LONG and _wide(dtype, options)):
        filling = _Filling(reference, graph, dtype, seed, kind, options)
        try:
            made += _widest(filling)
        except NotExact as error:
            refused.append(str(error))
    if not made:
        raise NotExact(refused.pop())
    return made


def cotangents(reference: Reference, case: Case, seed: int = 0) -> dict[str, Array]:
    """Return codes of the rows of each output, for which gradients of a case are exact: as many of them as can be.

    Raises NotExact where none can be.
    """
    shapes = {name: expr.shape for name, expr in reference.expressions(case)[1].items()}
    best: tuple[Any, dict[str, Number]] | None = None
    for bits in _ladder(min(_most_bits(case.format), BITS[case.format] - 1)):
        g = {name: rounded(codes(shape, bits, seed + 1), case.format) for name, shape in shapes.items()}
        found = reference.gradients(case, g, Exact(case.format, case.accumulate))
        exact = _exact_ones(found)
        if bits == 1 and best is not None and len(exact) <= len(best[1]):
            break
        if best is None or len(exact) > len(best[1]):
            best = g, exact
        if len(exact) == len(found) and bits > 1:
            break
    assert best is not None
    if not best[1]:
        raise NotExact(f"{case.name}: no gradient is exact in {case.format} for any cotangent of integers")
    _gradients[case] = best
    return best[0]


def numbers(reference: Reference, case: Case) -> dict[str, Number]:
    """Return the outputs of a case: their error is 0 where they are exact, and Inf where nothing is proved."""
    if case not in _outputs:
        found = reference.outputs(case, Exact(case.format, case.accumulate))
        _outputs[case] = {name: Number(n.value, n.error if np.any(n.error) else 0.0) for name, n in found.items()}
    return _outputs[case]


def gradient_numbers(reference: Reference, case: Case, g: Mapping[str, Array]) -> dict[str, Number]:
    """Return the gradients of a case that are exact."""
    if case not in _gradients or _gradients[case][0] is not g:
        _gradients[case] = g, _exact_ones(reference.gradients(case, g, Exact(case.format, case.accumulate)))
    return _gradients[case][1]


def _exact_ones(numbers):
    return {name: Number(number.value) for name, number in numbers.items() if np.all(number.error == 0)}


# ---- which inputs


class _Filling:
    """Makes the inputs of one kind on one graph, with digits of some bits.

    The kind "signed" is of sums in a wider format than the inputs: the upper half of the rows holds the negative code
    of the lower half, so that sums are small and partial sums are not.
    """

    def __init__(self, reference, entry, dtype, seed, kind, options):
        self.reference, self.edges, self.width, self.dtype, self.seed = reference, entry.edges, entry.width, dtype, seed
        self.values, self.name = entry.values, f"{entry.label}/{kind}"
        self.scores, self.signed = Scores(reference, entry.edges, kind, seed), kind == "signed"
        self.blank = reference.case(entry.edges, name=self.name, values="integers", seed=seed, dtype=dtype,
                                    width=entry.width, square=entry.square, **options)

    def first_bits(self):
        """Return the bits of digits that fit the longest sum, and of gradients that are products, sums over columns."""
        bits, longest = BITS[self.dtype], int(max(self.edges.in_degrees.max(initial=1), 1))
        sums = BITS[self.blank.accumulate] if self.signed else min(bits, BITS[self.blank.accumulate])
        most = min(_most_bits(self.dtype), bits - 1, sums - (longest - 1).bit_length())
        if len(self.reference.differentiable(self.blank)) > 1:
            most = min(most, (bits - (max(self.width, 1) - 1).bit_length()) // 2)
        return max(most, 1)

    def made(self, bits):
        """The cases that together carry the code."""
        shapes = {name: np.shape(array) for name, array in self.blank.arrays.items()}
        coded = [name for name, shape in shapes.items() if len(shape) > 1 and self._is_coded(name)]
        columns = max((code_columns(shapes[name][0], bits) for name in coded), default=1)
        held = min((int(np.prod(shapes[name][1:])) for name in coded), default=1)
        for chunk in range(-(-columns // max(held, 1)) if held else 1):
            arrays = {name: self._array(name, shape, bits, chunk) for name, shape in shapes.items()}
            case = replace(self.blank, name=f"{self.name}/{chunk}", arrays=arrays, state=self._state())
            yield case if self.values in ("scores", "denormal") else special(self.reference, case, self.values)

    def _is_coded(self, name):
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

    def _state(self):
        """-1, 0 and 1: sums stay short, few rows are alike; vectors of attention are 0, so that scores are equal."""
        if self.reference.state is not None:
            return self.blank.state
        state = dict(self.blank.state)
        for name in state.keys() - self.reference.definition.fixed:
            shape, seed = np.shape(state[name]), self.seed + sum(name.encode())
            value = (mixed(np.arange(int(np.prod(shape))), seed) % 3).reshape(shape) - 1.0
            state[name] = rounded(0 * value if name.split(".")[-1].startswith("att") else value, self.dtype)
        return state


def _wide(dtype, options):
    """Return True if sums are promised in more bits than the dtype has."""
    return BITS[options.get("accumulate") or summed(dtype)] > BITS[dtype]


def _ladder(widest: int) -> Iterator[int]:
    """Digits from wide to narrow; the narrowest come second: where nothing is exact in them, nothing is."""
    yield from dict.fromkeys((widest, 1, *range(widest - 3, 1, -3)))


def _widest(filling):
    """The cases with the widest digits that are exact."""
    narrowest = []
    for bits in _ladder(filling.first_bits()):
        try:
            found = _exact(filling, bits)
        except NotExact:
            if bits == 1:
                raise
            continue
        if bits > 1:
            return found
        narrowest = found
    return narrowest


def _exact(filling, bits):
    """The cases of such digits; raises NotExact where one is not."""
    found = []
    for case in filling.made(bits):
        outputs = numbers(filling.reference, case)
        if any(np.any(number.error != 0) for number in outputs.values()):
            raise NotExact(f"{case.name}: {_reason(outputs, case)}")
        found.append(case)
    return found


def _reason(numbers, case):
    name, error = next((name, np.asarray(number.error)) for name, number in numbers.items()
                       if np.any(number.error != 0))
    text = f"{name} is exact in {case.format} for no integers that tell rows apart"
    if not error.ndim:
        return text
    row = int(np.flatnonzero(error.reshape(len(error), -1).any(1))[0])
    degree = f", which has {case.edges.in_degrees[row]} in-edges" if len(error) == case.edges.n_dst else ""
    return f"{text}: row {row}{degree}"

"""Level `probe`: what is exact in every order of evaluation is compared by ==."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sarlite.oracle import certified, decode, probe
from sarlite.oracle.case import Case
from sarlite.oracle.exact import Exact
from sarlite.oracle.finding import Verdict
from sarlite.oracle.plain import Number
from sarlite.oracle.trial import Trial
from sarlite.types import Array


def level(trial: Trial, case: Case) -> None:
    """Check outputs and gradients of one case, where these are exact."""
    reference, g = trial.reference, None
    if trial.vjp is not None and reference.differentiable(case):
        try:
            g = trial.cotangents or probe.cotangents(reference, case, trial.seed)
        except probe.NotExact as error:
            trial.report.skip("gradients without an exact probe", str(error))
    expected = proved(lambda: probe.expected(reference, case), lambda: reference.outputs(case, Exact(case.dtype)))
    got = trial.outputs(case, _shapes(expected))
    if got is not None:
        compare(trial, case, got, expected, "")
    if g is not None:
        expected = proved(lambda: probe.expected_gradients(reference, case, g), lambda: reference.gradients(case, g, Exact(case.dtype)))
        got = trial.gradients(case, g, _shapes(expected))
        if got is not None:
            compare(trial, case, got, expected, "d", g)


def proved(whole: Callable[[], Mapping[str, Array]], by_element: Callable[[], Mapping[str, Number]]) -> Mapping[str, Number]:
    """Return numbers whose error is 0: of `whole`, or, where that raises NotExact, of `by_element`, with Inf where nothing is proved."""
    try:
        return {name: Number(value, 0.0) for name, value in whole().items()}
    except probe.NotExact:
        return by_element()


def compare(trial: Trial, case: Case, got: Mapping[str, Array], expected: Mapping[str, Number], prefix: str,
            g: Mapping[str, Array] | None = None) -> None:
    """Add a finding for each array that differs where its error is 0; of gradients `prefix` is "d", and `g` the cotangents."""
    for name, array in got.items():
        trial.report.checked["probe"] += 1
        ratio = certified.ratios(array, expected[name])
        trial.report.skip("elements that no probe decides", f"{case.name}, {prefix}{name}", int(np.isnan(ratio).sum()))
        bad = np.nan_to_num(ratio) > 0
        if bad.any():
            value = expected[name].value
            cause = f"{int(bad.sum())} of {bad.size} elements differ"
            edges: Any = ()
            if trial.explanations > 0:
                trial.explanations -= 1
                siblings = () if prefix else _siblings(trial, case, name)
                cause, edges = decode.explain(trial.reference, case, prefix + name, value, array, cotangents=g, siblings=siblings)
            verdict = Verdict.WRONG
            if (not edges or certified.coarse(case, array[bad], value[bad])) and _imprecise(trial, case, name, g, array, bad):
                verdict, edges = Verdict.IMPRECISE, ()
                cause = f"{int(bad.sum())} of {bad.size} elements differ; sums in a lower precision would explain it"
            trial.found(verdict, "probe", case, prefix + name, cause, bad, array, value,
                        np.broadcast_to(expected[name].error, array.shape), cotangents=g, edges=tuple(edges))


def _imprecise(trial, case, name, g, array, bad):
    bounds = certified.arithmetic(case, lower=True)
    numbers = trial.reference.outputs(case, bounds) if g is None else trial.reference.gradients(case, g, bounds)
    return certified.imprecise(array, numbers[name], bad)


def _siblings(trial, case, name):
    """The other cases that share a code with this one, where one has too few columns for it: (case, expected, got)."""
    found = []
    for other in trial.together:
        if other is not case and len(trial.together) > 1:
            expected = probe.expected(trial.reference, other)
            got = trial.quietly(other, {key: value.shape for key, value in expected.items()})
            if got is None:
                return ()
            found.append((other, expected[name], got[name]))
    return tuple(found)


def _shapes(numbers):
    return {name: number.value.shape for name, number in numbers.items()}

"""Level `repeat`: the same input again, and with one thread: the same bits."""

import os

import numpy as np

from sarlite.oracle.case import Case
from sarlite.oracle.difference import Difference
from sarlite.oracle.finding import Verdict
from sarlite.oracle.plain import Number
from sarlite.oracle.trial import Trial
from sarlite.types import Array


def level(trial: Trial, case: Case, n_cores: int | None = None) -> None:
    """Call as it is once and `trial.repeats` times more, and, where there are more cores than one, with one thread."""
    n_cores = os.cpu_count() or 1 if n_cores is None else n_cores
    expected = trial.reference.expressions(case)[1]
    shapes = {name: expr.shape for name, expr in expected.items()}
    _compare(trial, case, n_cores, lambda threads: trial.outputs(case, shapes, threads=threads), "")
    if trial.vjp is not None and trial.reference.differentiable(case):
        cotangents = trial.cotangents or trial.reference.cotangents(case, "random", trial.seed)
        given = {name: np.shape(value) for name, value in {**case.arrays, **case.state}.items()}
        shapes = {name: given[name] for name in trial.reference.differentiable(case)}
        _compare(trial, case, n_cores, lambda threads: trial.gradients(case, cotangents, shapes, threads=threads), "d",
                 cotangents)


def _compare(trial, case, n_cores, call, prefix, cotangents=None):
    first = call(None)
    if first is None:
        return
    kinds: list[tuple[int | None, str]] = [(None, "the same call again")] * trial.repeats
    if n_cores > 1:
        kinds.append((1, "one thread in place of all"))
    else:
        trial.report.skip("other numbers of threads: this machine has one core", case.name)
    for threads, cause in kinds:
        again = call(threads)
        if again is None:
            return
        trial.report.checked["repeat"] += len(first)
        for name in first.keys() & again.keys():
            differ = other_bits(first[name], again[name])
            if differ.any():
                text = f"{cause}: {int(differ.sum())} of {differ.size} elements differ"
                before = Number(first[name], None)
                difference = Difference(trial.reference, case, prefix + name, before, again[name], cotangents)
                trial.found(Verdict.NONDETERMINISTIC, "repeat", difference, text, differ)
                return


def other_bits(a: Array, b: Array) -> Array:
    """Where two arrays of one shape and dtype differ in a bit; any NaN is as any other."""
    bits = f"u{a.dtype.itemsize}"
    return (np.ascontiguousarray(a).view(bits) != np.ascontiguousarray(b).view(bits)) & ~(np.isnan(a) & np.isnan(b))

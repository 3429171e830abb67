"""`check`: a function against a reference, on the corpus of hard graphs."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, whole
from sarlite.oracle import call, inputs, sampler_checks
from sarlite.oracle.case import Case
from sarlite.oracle.check_report import Report
from sarlite.oracle.choices import DTYPES, INDEX_DTYPES, LEVELS, SUMS, allowed
from sarlite.oracle.corpus import Entry, chosen
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.finding import Finding
from sarlite.oracle.formats import summed
from sarlite.oracle.levels import CERTIFIED, JUDGES, above_bound, other_bits, shapes
from sarlite.oracle.reference import Reference, described, given
from sarlite.oracle.scope import Scope
from sarlite.oracle.shrink import shrink as shrunk
from sarlite.oracle.trial import Stop, Trial, trying
from sarlite.types import Array

SHRINKING = 20.0  # seconds, at most, that the first case is made small
LARGE = 20_000  # rows or edges of graphs that are told before they are asked


def _print(text: str) -> None:
    print(f"sarlite.oracle: {text}", file=sys.stderr, flush=True)


def check(run: Callable[[Case], Any], reference: str | Reference, *,
          vjp: Callable[[Case, Any], Mapping[str, Any]] | None = None, level: str = "ci", dtype: str = "float32",
          accumulate: str | None = None, index_dtype: str = "int64", convert: Callable[[Array], Any] | None = None,
          seed: int = 0, time_limit: float = 60.0, expected_failures: Sequence[str] = (), allow: Sequence[str] = (),
          shrink: bool = True, graphs: str | Sequence[str] | Mapping[str, EdgeList] = "*",
          widths: Sequence[int] | None = None, repeats: int = 1, shown: Callable[[str], None] = _print,
          **attributes: Any) -> Report:
    """Check a function that computes an operation or a layer.

    Parameters
    ----------
    run : (case) -> array, or {output: array}
        Anything with `__array__` or `__dlpack__`, of the case's dtype; a dict where there are several outputs. It gets
        copies, which it must not write to. Its attributes `vjp` and `convert`, where it has them, stand for the
        arguments that are not given.
    reference : str or Reference
        "spmm", with attributes: check(f, "spmm", reduce="mean"). Or a Reference, that also has a layer's weights.
        "sample" checks a neighbour sampler: `run` returns the (n_picks,) numbers of picked edges (`sampling.level`).
    vjp : (case, g) -> {name: array}, optional
        Gradients of sum(output * g) by the names of `case.arrays` and `case.state`; g is a dict where there are several
        outputs. Without, gradients count as not covered; so does each that it leaves out.
    level : str
        "probe": integers whose results are exact, compared by ==. "certified": error bounds. "repeat": the same input
        again, and on one thread. "invariants". "ci": all four, on the smaller graphs of the corpus; "all": on all.
        "large": "probe" on more than 2^31 edges times columns; for functions that keep nothing by edge and column.
    dtype : "float64", "float32", "float16", "bfloat16" or "bfloat16-rows"
        Of inputs and outputs; values of bfloat16 come in float32 arrays. "bfloat16-rows": float32, but what edges
        gather of x or z, and backward of the output's gradient times the destination's scale, is rounded to bfloat16.
    accumulate : str, optional
        The dtype in which sums are promised; `dtype` where not given, and float32 of bfloat16-rows.
    index_dtype : "int64", "int32" or "int16"
        With int16, graphs that fit have more elements than int16 has numbers, as large graphs have with int32.
    convert : (array) -> anything, optional
        What makes the function's inputs of NumPy arrays, as torch.from_numpy.
    seed : int
        Of random values; the same seed gives the same cases.
    time_limit : float
        Seconds of one call. A call that takes longer is left running in its thread, and the check ends.
    expected_failures : sequence of str
        Patterns (fnmatch) of case names: findings there do not count, and are told.
    allow : sequence of str
        Verdicts whose findings do not count, and are told: "NONDETERMINISTIC", "THREADS", "LIMIT".
    shrink : bool
        True if the case of the first finding is made small, for at most 20 s.
    shown : (str) -> None
        Is told of each graph of more than LARGE rows or edges before the graph is asked, so that a process that is
        killed for its memory leaves the name. Without, standard error.
    graphs : str, sequence of str, or dict of str to EdgeList
        Patterns (fnmatch) of the names of the corpus's graphs that are taken; or graphs of one's own by name.
    widths : sequence of int, optional
        Further columns of the inputs: each graph is asked at its own width, and once more at the next of these.
    repeats : int
        Number of times that level "repeat" asks the same input again.

    Returns
    -------
    Report

    Raises
    ------
    ConfigError
        An unknown level, dtype, verdict, reference or attribute; a reference that has no narrow rows; a number of
        repeats below 1; graphs or widths that `corpus.chosen` refuses.

    Notes
    -----
    Not collective. A function that ends the process ends the check with it: `python -m sarlite.oracle check --command`
    keeps them apart.
    """
    for name, value, known in (("level", level, LEVELS), ("dtype", dtype, DTYPES),
                                 ("accumulate", accumulate or summed(dtype), SUMS),
                                 ("index_dtype", index_dtype, INDEX_DTYPES)):
        if value not in known:
            raise ConfigError(f"{name} is {value!r}, but must be one of {', '.join(known)}")
    entries = chosen(level if level in ("ci", "large") else "all", graphs, widths)
    vjp = getattr(run, "vjp", None) if vjp is None else vjp
    convert = getattr(run, "convert", None) if convert is None else convert
    reference, repeats = given(reference, attributes, dtype), whole("repeats", repeats, 1)
    report = Report(f"{described(reference)}, {dtype}, level {level}, seed {seed}")
    with trying(report, run, vjp, reference, time_limit, seed=seed, expected_failures=tuple(expected_failures),
                allow=allowed(allow), convert=convert, repeats=repeats) as trial:
        if reference.name == "sample":
            sampler_checks.level(trial, entries, 1024 if level == "all" else 64, index_dtype)
        else:
            _corpus(trial, entries, LEVELS[level], shown, dtype=dtype, index_dtype=index_dtype, accumulate=accumulate)
            trial.explain()
            if shrink:
                _shrink_first(trial)
    if vjp is None and reference.name != "sample":
        report.skip("gradients: no vjp was given")
    return report


# ---- cases


def _corpus(trial: Trial, entries: Sequence[Entry], levels: tuple[str, ...], shown: Callable[[str], None],
            **options: Any) -> None:
    n_layouts, scope = 0, Scope()
    for entry in sorted(entries, key=lambda each: each.most_numbers):
        if not entry.fits(options["index_dtype"]):
            trial.report.skip(f"graphs that are too large for {options['index_dtype']}", entry.name)
            continue
        if (size := max(entry.published[key] for key in ("n_src", "n_dst", "n_edges"))) > LARGE:
            shown(f"{described(trial.reference)}: {entry.label}, up to {size:,} rows or edges, {entry.width} columns")
        exact, random = inputs.cases(trial.reference, entry, levels, trial.report, seed=trial.seed, **options)
        trial.together = exact
        for level in levels:
            for case in exact if level == "probe" else random:
                JUDGES[level](trial, case)
        first = next(iter([*exact, *random]), None)
        scope.add(entry, [*exact, *random])
        vars(entry).pop("edges", None)  # the next graph may need the memory
        if n_layouts < 2 and first is not None and 8 <= first.n_edges <= 1000:
            n_layouts += 1
            _layouts(trial, first)
    trial.report.skip(scope.told(trial.reference, levels, trial.repeats, dtype=options["dtype"],
                                 index_dtype=options["index_dtype"]))


def _layouts(trial: Trial, case: Case) -> None:
    """Ask a case in other layouts: inputs that are read-only or not contiguous, a gradient of one number.

    A function may refuse a layout, which is told.
    """
    if trial.vjp is not None and trial.reference.differentiable(case):
        g = {name: np.ones_like(value) for name, value in trial.reference.cotangents(case).items()}
        CERTIFIED.ask_gradient(trial, case, CERTIFIED.gradients(trial.reference, case, g), g, call.BROADCAST)
    expected = CERTIFIED.outputs(trial.reference, case)
    plain = trial.quietly(case, shapes(expected))
    if plain is None:
        return
    for layout in call.LAYOUTS[1:]:
        one = replace(case, name=f"{case.name}/{layout}")
        got = trial.outputs(one, shapes(expected), layout)
        if got is not None and any(other_bits(got[name], plain[name]).any() for name in got):
            how = CERTIFIED._replace(name="call", found=partial(above_bound, level="call"))
            how.hold(trial, one, expected, got)


# ---- the smallest case


def _shrink_first(trial: Trial) -> None:
    """Replace the first finding by the like finding of the smallest case."""
    first = trial.report.first_bad
    if first is None or first.level not in (*JUDGES, "call") or first.level == "invariants":
        return
    judge = JUDGES.get(first.level, JUDGES["certified"])
    until = time.monotonic() + SHRINKING

    def found(case: Case) -> Finding | None:
        scratch = Trial(trial.run, trial.vjp, trial.reference, Report(""), trial.worker, trial.seed,
                        convert=trial.convert, every_layout=True)
        judge(scratch, case)
        return next((f for f in scratch.report.findings if f.verdict is first.verdict and f.output == first.output),
                    None)

    try:
        small = shrunk(trial.reference, first.case, lambda case: time.monotonic() < until and found(case) is not None)
        smaller = None if small is first.case else found(small)
    except Stop:
        return
    if smaller is not None:
        cause = f"in {first.case.name}: {first.cause}"
        trial.report.findings[trial.report.findings.index(first)] = replace(
            smaller, level=first.level, cause=cause, support=first.support, edges=smaller.edges or first.edges)

"""`check`: compares a function with a reference implementation on the corpus, the oracle's collection of hard graphs."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, check_int
from sarlite.oracle import call, inputs, sampler_checks
from sarlite.oracle.case import Case, Convert, Run, Vjp
from sarlite.oracle.check_report import Report
from sarlite.oracle.choices import DTYPES, INDEX_DTYPES, LEVELS, SUMS, allowed_verdicts
from sarlite.oracle.corpus import Entry, select_entries
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.finding import Finding
from sarlite.oracle.formats import default_accumulate
from sarlite.oracle.levels import CERTIFIED, LEVEL_CHECKS, above_bound, other_bits, shapes
from sarlite.oracle.reference import Reference, as_reference, reference_label
from sarlite.oracle.scope import Scope
from sarlite.oracle.shrink import shrink as shrunk
from sarlite.oracle.trial import CheckStopped, Trial, trying

SHRINKING = 20.0  # seconds that shrinking the first failing case may take
LARGE = 20_000  # graphs of more rows or edges are announced before they are checked


def _print(text: str) -> None:
    print(f"sarlite.oracle: {text}", file=sys.stderr, flush=True)


def check(run: Run, reference: str | Reference, *, vjp: Vjp | None = None, level: str = "ci", dtype: str = "float32",
          accumulate: str | None = None, index_dtype: str = "int64", convert: Convert | None = None,
          seed: int = 0, time_limit: float = 60.0, expected_failures: Sequence[str] = (), allow: Sequence[str] = (),
          shrink: bool = True, graphs: str | Sequence[str] | Mapping[str, EdgeList] = "*",
          widths: Sequence[int] | None = None, repeats: int = 1, shown: Callable[[str], None] = _print,
          **attributes: Any) -> Report:
    """Check the function `run`, and its gradients if it has a `vjp`, against a reference such as "spmm"; return a Report of the
    wrong results. The inputs are on the corpus of hard graphs, or on `graphs`, and follow from `level`, `dtype` and `seed`.
    `attributes` are attributes of the operation, such as reduce="mean".

    Parameters
    ----------
    run : (case) -> array, or {output: array}
        The function under test. It returns an array of the case's dtype, from any library with `__array__` or
        `__dlpack__`; a dict if the operation has several outputs. It gets copies, which it must not write to. If `run`
        has the attributes `vjp` or `convert`, they are the defaults of the arguments of these names.
    reference : str or Reference
        Name of the operation, with its attributes as further arguments: check(f, "spmm", reduce="mean"). Or a
        Reference, which also holds a layer's weights. "sample" checks a neighbour sampler: `run` returns the numbers of
        the picked edges, shape (n_picks,) (`sampler_checks.check_sampler`).
    vjp : (case, g) -> {name: array}, optional
        Gradients of sum(output * g) by the names of `case.arrays` and `case.state`. If there are several outputs, g is
        a
        dict. A gradient that is not returned counts as not covered.
    level : str
        - "probe": integer inputs with exact results, compared by ==;
        - "certified": random inputs, compared with error bounds;
        - "repeat": the same input again, and on one thread;
        - "invariants": properties of the operation, such as linearity, without a reference;
        - "ci": all four on the smaller graphs of the corpus;
        - "all": all four on all graphs;
        - "large": "probe" on a graph of more than 2^31 edges times columns, for functions that store no such array.
    dtype : "float64", "float32", "float16", "bfloat16" or "bfloat16-rows"
        Floating type of inputs and outputs; values of bfloat16 are stored in float32 arrays. "bfloat16-rows" is
        float32, with rows rounded to bfloat16 before edges gather them: rows of x or z, and in the backward pass rows
        of the output's gradient times the destination's scale.
    accumulate : str, optional
        Floating type in which sums are promised. The default is `dtype`, or float32 for bfloat16-rows.
    index_dtype : "int64", "int32" or "int16"
        Dtype of the edges' row numbers. With int16, rows times columns overflow on small graphs, as with int32 on large
        graphs.
    convert : (array) -> object, optional
        Applied to each NumPy array that the function gets, such as torch.from_numpy.
    seed : int
        Seed of random values; the same seed gives the same cases.
    time_limit : float
        Seconds that one call may take. A call that takes longer is abandoned in its thread, and the check ends.
    expected_failures : sequence of str
        Patterns (fnmatch) of case names whose findings are reported, but do not count in the verdict.
    allow : sequence of str
        Verdicts whose findings are reported, but do not count: "NONDETERMINISTIC", "THREADS", "LIMIT".
    shrink : bool
        True if the case of the first finding is made small, for at most 20 s.
    graphs : str, sequence of str, or dict of str to EdgeList
        Patterns (fnmatch) of the names of graphs of the corpus; or other graphs by name.
    widths : sequence of int, optional
        Further widths of the inputs. Each graph is checked with its own width, and again with the next of these.
    repeats : int
        Number of times that level "repeat" repeats an input.
    shown : (str) -> None
        Called with the name of each graph of more than LARGE rows or edges before the graph is checked. If the process
        is killed for its memory, the name remains. The default prints to standard error.
    **attributes
        Attributes of the operation.

    Returns
    -------
    Report

    Raises
    ------
    ConfigError
        An unknown level, dtype, verdict, reference or attribute; a dtype that the reference does not support; `repeats`
        below 1; graphs or widths that `corpus.select_entries` refuses.

    Notes
    -----
    Not collective. If the function ends the process, the check ends, too; `sarlite-oracle check --command` runs the
    function in a process of its own.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import oracle
    >>> def spmm(case):
    ...     out = np.zeros((case.n_dst, case.x.shape[1]), case.dtype)
    ...     np.add.at(out, case.dst, case.x[case.src])
    ...     return out
    >>> oracle.check(spmm, "spmm", level="probe", graphs=["in-star-??", "ring-17"]).verdict.name
    'PASS'

    A kernel that loses an edge:

    >>> def lossy(case):
    ...     out = np.zeros((case.n_dst, case.x.shape[1]), case.dtype)
    ...     np.add.at(out, case.dst[:-1], case.x[case.src[:-1]])
    ...     return out
    >>> report = oracle.check(lossy, "spmm", level="probe", graphs="ring-17", shrink=False)
    >>> report.verdict.name, report.first_bad.cause
    ('WRONG', 'edge 16 (16 -> 0) is lost')
    """
    for name, value, choices in (("level", level, LEVELS), ("dtype", dtype, DTYPES),
                                 ("accumulate", accumulate or default_accumulate(dtype), SUMS),
                                 ("index_dtype", index_dtype, INDEX_DTYPES)):
        if value not in choices:
            raise ConfigError(f"{name} is {value!r}, but must be one of {', '.join(choices)}")
    entries = select_entries(level if level in ("ci", "large") else "all", graphs, widths)
    vjp = getattr(run, "vjp", None) if vjp is None else vjp
    convert = getattr(run, "convert", None) if convert is None else convert
    reference, repeats = as_reference(reference, attributes, dtype), check_int("repeats", repeats, 1)
    report = Report(f"{reference_label(reference)}, {dtype}, level {level}, seed {seed}")
    with trying(report, run, vjp, reference, time_limit, seed=seed, expected_failures=tuple(expected_failures),
                allow=allowed_verdicts(allow), convert=convert, repeats=repeats) as trial:
        if reference.name == "sample":
            sampler_checks.check_sampler(trial, entries, 1024 if level == "all" else 64, index_dtype)
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
            shown(f"{reference_label(trial.reference)}: {entry.label}, up to {size:,} rows or edges, {entry.width} columns")
        exact, random = inputs.cases(trial.reference, entry, levels, trial.report, seed=trial.seed, **options)
        trial.probe_group = exact
        for level in levels:
            for case in exact if level == "probe" else random:
                LEVEL_CHECKS[level](trial, case)
        first = next(iter([*exact, *random]), None)
        scope.add(entry, [*exact, *random])
        vars(entry).pop("edges", None)  # frees the graph: the next one may need the memory
        if n_layouts < 2 and first is not None and 8 <= first.n_edges <= 1000:
            n_layouts += 1
            _layouts(trial, first)
    trial.report.skip(scope.gaps(trial.reference, levels, trial.repeats, dtype=options["dtype"],
                                 index_dtype=options["index_dtype"]))


def _layouts(trial: Trial, case: Case) -> None:
    """Check the function on `case` in further memory layouts: read-only inputs, strided inputs, and an output gradient that is
    one number, broadcast by strides of 0. A function may refuse a layout by an exception, which is reported.
    """
    if trial.vjp is not None and trial.reference.differentiable(case):
        g = {name: np.ones_like(value) for name, value in trial.reference.cotangents(case).items()}
        CERTIFIED.check_gradient(trial, case, CERTIFIED.gradients(trial.reference, case, g), g, call.BROADCAST)
    expected = CERTIFIED.outputs(trial.reference, case)
    plain = trial.rerun(case, shapes(expected))
    if plain is None:
        return
    for layout in call.LAYOUTS[1:]:
        one = replace(case, name=f"{case.name}/{layout}")
        got = trial.outputs(one, shapes(expected), layout)
        if got is not None and any(other_bits(got[name], plain[name]).any() for name in got):
            how = CERTIFIED._replace(name="call", add_finding=partial(above_bound, level="call"))
            how.judge(trial, one, expected, got)


# ---- the smallest case


def _shrink_first(trial: Trial) -> None:
    """Replace the first finding (wrong result) in the trial's report by the same finding on a smaller case, if a smaller case
    shows the finding too.
    """
    first = trial.report.first_bad
    if first is None or isinstance(first.case, str) or first.level not in (*LEVEL_CHECKS, "call"):
        return
    judge = LEVEL_CHECKS.get(first.level, LEVEL_CHECKS["certified"])
    until = time.monotonic() + SHRINKING

    def same_finding(case: Case) -> Finding | None:
        scratch = Trial(trial.run, trial.vjp, trial.reference, Report(""), trial.worker, trial.seed,
                        convert=trial.convert, every_layout=True)
        judge(scratch, case)
        return next((f for f in scratch.report.findings if f.verdict is first.verdict and f.output == first.output),
                    None)

    try:
        small = shrunk(trial.reference, first.case, lambda case: time.monotonic() < until and same_finding(case) is not None)
        smaller = None if small is first.case else same_finding(small)
    except CheckStopped:
        return
    if smaller is not None:
        cause = f"in {first.case.name}: {first.cause}"
        trial.report.findings[trial.report.findings.index(first)] = replace(
            smaller, level=first.level, cause=cause, support=first.support, edges=smaller.edges or first.edges)

"""The corpus as files with expected results and bounds, so that a program in any language can check itself; and its results read back."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from sarlite.errors import DataError, ShapeError, reading, regular
from sarlite.oracle import call, certified, equality, probe, sarcase
from sarlite.oracle.case import Case
from sarlite.oracle.corpus import Entry, corpus
from sarlite.oracle.exact import Exact
from sarlite.oracle.external import read_arrays
from sarlite.oracle.finding import Finding
from sarlite.oracle.plain import Number
from sarlite.oracle.reference import Reference
from sarlite.oracle.replay import reference_of
from sarlite.oracle.report import Report
from sarlite.oracle.trial import Trial
from sarlite.types import Array

LIST = "cases.txt"  # a path a line, from the folder
RESULTS = "results"
MOST_EDGES = 1000


def export(folder: Path, references: Sequence[Reference], *, level: str = "ci", dtype: str = "float32", index_dtype: str = "int64",
           seed: int = 0, most_edges: int = MOST_EDGES, graphs: str = "*", shown: Callable[[str], None] = lambda text: None) -> list[str]:
    """Write cases of the corpus with cotangents, expected results and bounds.

    Parameters
    ----------
    folder : Path
        New, or one that was written by `export`.
    references : sequence of Reference
    level : str
        "probe", "certified", or "ci" and "all": both, on the smaller half of the corpus and on all of it.
    most_edges : int
        Graphs of more are left out.
    graphs : str
        Pattern (fnmatch) of the names of graphs.
    shown : function
        Is told of each reference that is begun.

    Returns
    -------
    list of str
        The paths of the cases, as they stand in `cases.txt`.

    Raises
    ------
    DataError
        Something else stands in the folder.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / LIST).is_file():
        raise DataError(f"{folder}: something else stands there; cases are exported to a new directory")
    entries = [e for e in corpus("ci" if level == "ci" else "all") if e.published["n_edges"] <= most_edges and fnmatchcase(e.name, graphs)]
    paths = []
    for reference in references:
        label = _plain("-".join([reference.name, *(str(v) for v in reference.attributes.values() if isinstance(v, str))]))
        shown(label)
        for entry in entries:
            for saved in _cases(reference, entry, level, dtype, index_dtype, seed):
                paths.append(f"{label}/{_plain(saved.case.name)}.sarcase")
                sarcase.save(saved, folder / paths[-1])
    (folder / LIST).write_text("".join(f"{path}\n" for path in paths))
    return paths


def verify(folder: Path, results: Path | None = None) -> Report:
    """Hold the results that a program wrote against the cases that it read.

    Parameters
    ----------
    folder : Path
        Of `export`.
    results : Path, optional
        For the case PATH of `cases.txt` it has PATH/NAME.npy for each output, and PATH/dNAME.npy for each gradient; `folder`/results
        where not given.

    Raises
    ------
    DataError
        A case, or a file of results, cannot be read.
    """
    results = folder / RESULTS if results is None else results
    report = Report(f"results in {results}")
    with reading(folder / LIST):
        paths = regular(folder / LIST).read_text().splitlines()
    for path in paths:
        if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", path):
            raise DataError(f"{folder / LIST}: {path!r} is no path of a case")
        _verified(report, sarcase.load(folder / path), results / path)
    return report


def _cases(reference: Reference, entry: Entry, level: str, dtype: str, index_dtype: str, seed: int) -> Iterator[sarcase.Saved]:
    options: dict[str, Any] = {"dtype": dtype, "seed": seed, "index_dtype": index_dtype}
    try:
        if level != "certified":
            for case in probe.cases(reference, entry, **options):
                yield _exact(reference, case, seed)
    except probe.NotExact:
        pass
    if level != "probe":
        try:
            case = reference.case(entry.edges, name=f"{entry.name}/random", values="random", width=entry.width, **options)
        except ShapeError:
            return
        yield _bounded(reference, probe.special(reference, case, entry.values), seed)


def _exact(reference: Reference, case: Case, seed: int) -> sarcase.Saved:
    """A probe: bounds are 0, or infinite where nothing is proved."""
    g: Mapping[str, Array] = {}
    numbers = equality.proved(lambda: probe.expected(reference, case), lambda: reference.outputs(case, Exact(case.dtype)))
    try:
        if reference.differentiable(case):
            g = probe.cotangents(reference, case, seed)
            exact = probe.expected_gradients(reference, case, g)
            numbers = {**numbers, **{f"d{name}": Number(value, 0.0) for name, value in exact.items()}}
    except probe.NotExact:
        g = {}
    return _saved(case, g, numbers)


def _bounded(reference: Reference, case: Case, seed: int) -> sarcase.Saved:
    g = reference.cotangents(case, "random", seed) if reference.differentiable(case) else {}
    return _saved(case, g, _numbers(reference, case, g))


def _saved(case: Case, g: Mapping[str, Array], numbers: Mapping[str, Number]) -> sarcase.Saved:
    expected = {name: np.asarray(number.value, np.float64) for name, number in numbers.items()}
    bounds = {}
    for name, number in numbers.items():  # what a longdouble loses as float64 is within the bound
        with np.errstate(invalid="ignore"):
            lost = np.nan_to_num((number.value - expected[name]).astype(np.float64))
        bounds[name] = np.broadcast_to(number.error, expected[name].shape) + np.abs(lost)
    return sarcase.Saved(case, g, expected, bounds)


def _plain(text: str) -> str:
    """A name as one word of a path."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")


def _verified(report: Report, saved: sarcase.Saved, folder: Path) -> None:
    """Judge the results of one case: by == where all is exact, by its bounds otherwise."""
    case, reference = saved.case, reference_of(saved.case)
    got = read_arrays(folder) if folder.is_dir() else {}
    trial = Trial(lambda case: None, None, reference, report, call.Worker(0))
    exact = all(np.all((bound == 0) | np.isinf(bound)) for bound in saved.bounds.values())
    for name, expected in saved.expected.items():
        if name not in got:
            report.skip(f"{name} of {case.op}: there is no result", case.name)
            continue
        try:
            array = {name: call.checked(got[name], name, expected.shape, case.dtype)}
        except call.Failure as failure:
            trial.add(Finding(failure.verdict, "call", case, name, failure.cause))
            continue
        number = Number(expected, saved.bounds[name])
        if exact:
            prefix = "" if name in reference.outputs_by else "d"
            short = name.removeprefix(prefix)
            equality.compare(trial, case, {short: array[name]}, {short: number}, prefix, saved.cotangents if prefix else None)
        else:
            certified.judge(trial, case, array, {name: number}, "", lambda: _numbers(reference, case, saved.cotangents, lower=True),
                            cotangents=saved.cotangents)


def _numbers(reference: Reference, case: Case, g: Mapping[str, Array], lower: bool = False) -> dict[str, Number]:
    """Outputs, and gradients as d<name>, with their bounds."""
    arithmetic = certified.arithmetic(case, lower)
    gradients = reference.gradients(case, g, arithmetic) if g else {}
    return {**reference.outputs(case, arithmetic), **{f"d{name}": number for name, number in gradients.items()}}

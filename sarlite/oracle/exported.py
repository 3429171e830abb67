"""The corpus as files with expected results and bounds, for programs in any language; and their results read back."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sarlite.errors import DataError, reading, regular
from sarlite.oracle import call, inputs, npy, probe, sarcase
from sarlite.oracle.case import Case
from sarlite.oracle.check_report import Report
from sarlite.oracle.choices import LEVELS
from sarlite.oracle.corpus import Entry, corpus, named
from sarlite.oracle.finding import Saved
from sarlite.oracle.levels import CERTIFIED, PROBE, Asking
from sarlite.oracle.plain import Number
from sarlite.oracle.reference import Reference, described, reference_of
from sarlite.oracle.trial import Trial
from sarlite.types import Array

LIST = "cases.txt"  # a path a line, from the folder
RESULTS = "results"
MOST_EDGES = 1000


def export(folder: Path, references: Sequence[Reference], *, level: str = "ci", dtype: str = "float32",
           index_dtype: str = "int64", seed: int = 0, most_edges: int = MOST_EDGES, graphs: str = "*",
           shown: Callable[[str], None] = lambda text: None) -> list[str]:
    """Write cases of the corpus with cotangents, expected results and bounds; return their paths in `cases.txt`.

    Parameters
    ----------
    folder : Path
        New, or one that was written by `export`.
    level : str
        "probe", "certified", or "ci" and "all": both, on the smaller graphs of the corpus and on all of it.
    most_edges : int
        Graphs of more are left out.
    graphs : str
        Pattern (fnmatch) of the names of graphs.
    shown : function
        Is told of each reference that is begun.

    Raises
    ------
    DataError
        Something else stands in the folder.
    ConfigError
        A reference is not of the dtype.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / LIST).is_file():
        raise DataError(f"{folder}: something else stands there; cases are exported to a new directory")
    entries = [e for e in named(corpus("ci" if level == "ci" else "all"), graphs)
               if e.published["n_edges"] <= most_edges]
    paths, options = [], {"dtype": dtype, "seed": seed, "index_dtype": index_dtype}
    for reference in references:
        reference.check_dtype(dtype)
        label = _plain(described(reference))
        shown(label)
        for entry in entries:
            for how, case in _cases(reference, entry, level, options):
                paths.append(f"{label}/{_plain(case.name)}.sarcase")
                sarcase.save(_saved(how, reference, case, seed), folder / paths[-1], overwrite=True)
    (folder / LIST).write_text("".join(f"{path}\n" for path in paths))
    return paths


def verify(folder: Path, results: Path | None = None) -> Report:
    """Compare the results that a program wrote with the expected results of the cases that it read.

    Parameters
    ----------
    folder : Path
        Of `export`.
    results : Path, optional
        For the case PATH of `cases.txt` it has PATH/NAME.npy for each output, and PATH/dNAME.npy for each gradient;
        `folder`/results where not given.

    Raises
    ------
    DataError
        A case, or a file of results, cannot be read.
    """
    results = folder / RESULTS if results is None else results
    report = Report(f"results in {results}")
    with reading(folder / LIST):
        paths = regular(folder / LIST).read_text().splitlines()
    trials: dict[str, Trial] = {}
    for path in paths:
        if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", path):
            raise DataError(f"{folder / LIST}: {path!r} is no path of a case")
        saved = sarcase.load(folder / path)
        if lacking := sorted(saved.expected.keys() - saved.bounds.keys()):
            raise DataError(f"{folder / path}: bounds: none of {lacking[0]}")
        with reading(folder / path):
            reference = reference_of(saved.case)
            trial = trials.setdefault(described(reference), Trial(_no_function, None, reference, report, call.Worker(0)))
            _verified(trial, reference, saved, results / path)
    for trial in trials.values():
        trial.explain()
    return report


def _no_function(case):
    raise NotImplementedError("there are results of a function, but no function")


def _cases(reference: Reference, entry: Entry, level: str, options: Mapping[str, Any]) -> Iterator[tuple[Asking, Case]]:
    """Yield the cases of a graph, each with the level that judges its results."""
    exact, random = inputs.cases(reference, entry, LEVELS[level], Report(""), **options)
    yield from ((PROBE, case) for case in exact if not case.name.endswith("/integers"))  # these are not all exact
    yield from ((CERTIFIED, case) for case in random)


def _saved(how: Asking, reference: Reference, case: Case, seed: int) -> Saved:
    """Return a case with its expected results and bounds; a probe's bounds are 0, or Inf where nothing is proved."""
    g: Mapping[str, Array] = {}
    numbers = dict(how.outputs(reference, case))
    with suppress(probe.NotExact):
        if reference.differentiable(case):
            g = how.cotangents(reference, case, seed)
            numbers |= {f"d{name}": number for name, number in how.gradients(reference, case, g).items()}
    expected = {name: np.asarray(number.value, np.float64) for name, number in numbers.items()}
    bounds = {}
    for name, number in numbers.items():  # what a longdouble loses as float64 is within the bound
        with np.errstate(invalid="ignore"):
            lost = np.nan_to_num((number.value - expected[name]).astype(np.float64))
        bounds[name] = np.broadcast_to(number.error, expected[name].shape) + np.abs(lost)
    return Saved(case, g, expected, bounds)


def _plain(text: str) -> str:
    """Return a name as one word of a path."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")


def _verified(trial: Trial, reference: Reference, saved: Saved, folder: Path) -> None:
    """Judge the results of one case: by == if all bounds are 0 or Inf, by its bounds otherwise."""
    case, report = saved.case, trial.report
    got = npy.read_folder(folder) if folder.is_dir() else {}
    how = PROBE if all(np.all((bound == 0) | np.isinf(bound)) for bound in saved.bounds.values()) else CERTIFIED
    outputs = reference.expressions(case)[1]
    for name, expected in saved.expected.items():
        if name not in got:
            report.skip(f"{name} of {case.op}: there is no result", case.name)
            continue
        array = trial.noted(case, partial(call.checked, got[name], name, expected.shape))
        if array is None:
            continue
        number, is_output = Number(expected, saved.bounds[name]), name in outputs
        of = name if is_output else name.removeprefix("d")
        how.hold(trial, case, {of: number}, {of: array}, None if is_output else saved.cotangents)

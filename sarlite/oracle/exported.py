"""Export of test cases to files, with expected results and error bounds, for programs in any language; and comparison of
the programs' results. The cases are on the corpus, the oracle's collection of hard graphs.
"""

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
from sarlite.oracle.corpus import Entry, corpus, matching
from sarlite.oracle.finding import SavedCase
from sarlite.oracle.levels import CERTIFIED, PROBE, Level
from sarlite.oracle.plain import BoundedArray
from sarlite.oracle.reference import Reference, reference_label, reference_of
from sarlite.oracle.trial import Trial
from sarlite.types import Array

LIST = "cases.txt"  # one path relative to the folder on each line
RESULTS = "results"
MOST_EDGES = 1000


def export(folder: Path, references: Sequence[Reference], *, level: str = "ci", dtype: str = "float32",
           index_dtype: str = "int64", seed: int = 0, most_edges: int = MOST_EDGES, graphs: str = "*",
           shown: Callable[[str], None] = lambda text: None) -> list[str]:
    """Write the cases that a check at `level` makes for each operation in `references` to directories in `folder`, with expected
    results and error bounds; return the directories' paths in `folder`. Their graphs are the graphs of the corpus with at most
    `most_edges` edges and a name that matches `graphs`. `shown` is called with each operation's name.

    The file `cases.txt` in the folder lists the same paths.

    Parameters
    ----------
    folder : Path
        A new directory, or one that `export` has written.
    references : sequence of Reference
    level : str
        "probe" or "certified"; "ci" and "all" are both, on the smaller graphs of the corpus or on all of them.
    dtype, index_dtype, seed
        See `check`.
    most_edges : int
        Graphs of more edges are left out.
    graphs : str
        Pattern (fnmatch) of the names of graphs.
    shown : (str) -> None
        Called with each reference's name before its cases are written.

    Raises
    ------
    DataError
        The folder holds something else.
    ConfigError
        A reference does not support the dtype.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / LIST).is_file():
        raise DataError(f"{folder}: exists already; cases are exported to a new directory")
    entries = [e for e in matching(corpus("ci" if level == "ci" else "all"), graphs)
               if e.published["n_edges"] <= most_edges]
    paths, options = [], {"dtype": dtype, "seed": seed, "index_dtype": index_dtype}
    for reference in references:
        reference.check_dtype(dtype)
        label = _plain(reference_label(reference))
        shown(label)
        for entry in entries:
            for how, case in _cases(reference, entry, level, options):
                paths.append(f"{label}/{_plain(case.name)}.sarcase")
                sarcase.save(_saved(how, reference, case, seed), folder / paths[-1], overwrite=True)
    (folder / LIST).write_text("".join(f"{path}\n" for path in paths))
    return paths


def verify(folder: Path, results: Path | None = None) -> Report:
    """Compare the files that a program wrote to `results`, by default folder/results, with the expected results; return a Report.

    Parameters
    ----------
    folder : Path
        Folder that `export` has written.
    results : Path, optional
        For each case PATH of `cases.txt` it has PATH/NAME.npy for each output, and PATH/dNAME.npy for each gradient.
        The default is `folder`/results.

    Raises
    ------
    DataError
        A case or a file of results cannot be read.
    """
    results = folder / RESULTS if results is None else results
    report = Report(f"results in {results}")
    with reading(folder / LIST):
        paths = regular(folder / LIST).read_text().splitlines()
    trials: dict[str, Trial] = {}
    for path in paths:
        if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", path):
            raise DataError(f"{folder / LIST}: {path!r} is not the path of a case")
        saved = sarcase.load(folder / path)
        if lacking := sorted(saved.expected.keys() - saved.bounds.keys()):
            raise DataError(f"{folder / path}: bounds: {lacking[0]} has none")
        with reading(folder / path):
            reference = reference_of(saved.case)
            trial = trials.setdefault(reference_label(reference), Trial(_no_function, None, reference, report, call.Worker(0)))
            _verified(trial, reference, saved, results / path)
    for trial in trials.values():
        trial.explain()
    return report


def _no_function(case):
    raise NotImplementedError("there are results of a function, but no function")


def _cases(reference: Reference, entry: Entry, level: str, options: Mapping[str, Any]) -> Iterator[tuple[Level, Case]]:
    """Yield (Level, Case) for each case that a check at `level`, such as "probe", makes on the graph of `entry`. The Level can
    compute the case's expected results and error bounds. `options` are a dtype, an index dtype and a seed.
    """
    exact, random = inputs.cases(reference, entry, LEVELS[level], Report(""), **options)
    yield from ((PROBE, case) for case in exact if not case.name.endswith("/integers"))  # results for /integers are not all exact
    yield from ((CERTIFIED, case) for case in random)


def _saved(how: Level, reference: Reference, case: Case, seed: int) -> SavedCase:
    """Return a SavedCase of `case` with expected outputs, gradients and their error bounds, computed by `how`, the Level of the
    check. `seed` seeds the gradients of the outputs. In level "probe", bounds are 0, or Inf for undecided elements.
    """
    g: Mapping[str, Array] = {}
    numbers = dict(how.outputs(reference, case))
    with suppress(probe.NotExact):
        if reference.differentiable(case):
            g = how.cotangents(reference, case, seed)
            numbers |= {f"d{name}": number for name, number in how.gradients(reference, case, g).items()}
    expected = {name: np.asarray(number.value, np.float64) for name, number in numbers.items()}
    bounds = {}
    for name, number in numbers.items():  # the bound includes the rounding of longdouble to float64
        with np.errstate(invalid="ignore"):
            lost = np.nan_to_num((number.value - expected[name]).astype(np.float64))
        bounds[name] = number.bound + np.abs(lost)
    return SavedCase(case, g, expected, bounds)


def _plain(text: str) -> str:
    """Return a text with a hyphen in place of characters that are not safe in a file name."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")


def _verified(trial: Trial, reference: Reference, saved: SavedCase, folder: Path) -> None:
    """Compare the results that a program wrote to `folder` for the case `saved` with the expected results, and add findings to
    `trial` for wrong ones. Results must be equal if all bounds are 0 or Inf. Otherwise they must be within their bounds.
    """
    case, report = saved.case, trial.report
    got = npy.read_folder(folder) if folder.is_dir() else {}
    how = PROBE if all(np.all((bound == 0) | np.isinf(bound)) for bound in saved.bounds.values()) else CERTIFIED
    outputs = reference.expressions(case)[1]
    for name, expected in saved.expected.items():
        if name not in got:
            report.skip(f"{name} of {case.op}: there is no result", case.name)
            continue
        array = trial.attempt(case, partial(call.checked, got[name], name, expected.shape))
        if array is None:
            continue
        number, is_output = BoundedArray(expected, saved.bounds[name]), name in outputs
        of = name if is_output else name.removeprefix("d")
        how.judge(trial, case, {of: number}, {of: array}, None if is_output else saved.cotangents)

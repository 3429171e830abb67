"""`check_ranks`: compares a run on several ranks with the reference on the whole graph, whatever starts the ranks."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from functools import partial
from typing import Any, TypeVar

import numpy as np

from sarlite.errors import ConfigError, ShapeError, check_int
from sarlite.oracle import call, certified
from sarlite.oracle.check_report import Report
from sarlite.oracle.choices import allowed_verdicts
from sarlite.oracle.corpus import corpus, matching
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.finding import Finding, Verdict
from sarlite.oracle.formats import as_array
from sarlite.oracle.on_rank import RankDifference
from sarlite.oracle.parts import PARTS, Division, RankPart, owners
from sarlite.oracle.plain import BoundedArray
from sarlite.oracle.reference import Reference, as_reference, reference_label, valid_case
from sarlite.oracle.scope import spans
from sarlite.oracle.trial import Trial, count_text, trying
from sarlite.types import Array

N_GRAPHS = 8
MOST_EDGES = 2000
WIDTHS = (5, 4, 8, 1, 17, 3, 2, 16)  # widths of the inputs, which the graphs take in turn
Result = TypeVar("Result")


def each_rank(function: Callable[[int, RankPart, Array], Result]) -> Callable[[list[RankPart]], list[Result]]:
    """Return a function for `check_ranks` that calls `function(rank, part, node ids)` for each rank, in a thread of its own.

    `function` communicates by its own means. The first exception of a rank ends the run; the other threads are
    abandoned as daemons.

    Parameters
    ----------
    function : (rank, part, ids) -> result
        Returns the result of one rank, as `run` of `check_ranks`; `ids` is `part.ids`.

    Returns
    -------
    (list of RankPart) -> list of results

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import oracle
    >>> def gather_rows(rank, part, ids):
    ...     board[rank] = part.arrays["x"]
    ...     barrier.wait()
    ...     x = np.zeros((part.n_nodes, part.arrays["x"].shape[1]), np.float32)
    ...     for r in range(part.size):
    ...         x[part.owner == r] = board[r]
    ...     return x[part.src]
    >>> import threading
    >>> barrier, board = threading.Barrier(2), {}
    >>> report = oracle.check_ranks(oracle.each_rank(gather_rows), "gather", ranks=[2], graphs="ring-17", gradients=False)
    >>> report.verdict.name
    'PASS'
    """

    def run(parts: list[RankPart]) -> list[Result]:
        workers = [call.Worker(name=f"sarlite.oracle rank {part.rank}") for part in parts]
        answers = [worker.start(partial(function, part.rank, part, part.ids)) for worker, part in zip(workers, parts)]
        wait(answers, return_when=FIRST_EXCEPTION)
        for worker in workers:
            worker.close()
        for rank, answer in enumerate(answers):
            error = answer.exception() if answer.done() else None
            if isinstance(error, NotImplementedError):
                raise error
            if error is not None:
                raise RuntimeError(f"on rank {rank}: {call.raised_text(error)}") from error
        return [answer.result() for answer in answers]

    return run


def check_ranks(run: Callable[[list[RankPart]], Sequence[object]], reference: str | Reference, *,
                ranks: Sequence[int] = (1, 2, 3), parts: Sequence[str] = PARTS, dtype: str = "float32",
                accumulate: str | None = None, seed: int = 0, time_limit: float = 60.0, gradients: bool = True,
                expected_failures: Sequence[str] = (), allow: Sequence[str] = (), graphs: str | Sequence[str] = "*",
                **attributes: Any) -> Report:
    """Compare the results of `run`, a function of the list of all ranks' inputs, with the reference on the whole graph; return a
    Report. Test graphs are divided among each number of ranks in `ranks`, in each way in `parts`, such as "random". Gradients are
    compared, too, if `gradients` is True.

    Parameters
    ----------
    run : (list of RankPart) -> list of results, one for each rank
        A result is a dict. It holds this rank's rows of each output by name ("out"); rows by edge are in the order of
        the part's edges. "gradients" is a dict of the gradients of sum(output * cotangent) over all ranks: this rank's
        rows for arrays by node or edge, the whole gradient for a parameter. For a model, "layers" may hold each
        convolution's rows, before norm and activation. A result may also be the only output itself. `each_rank` makes
        such a run from a function of one rank. Under a launcher every process calls `check_ranks` with `ranks=[size]`
        and `lambda parts: comm.allgather(mine(parts[comm.rank]))`; every process makes the same cases.
    reference : str or Reference
        Its sources and destinations must be the same nodes.
    ranks : sequence of int
        Numbers of ranks.
    parts : sequence of str
        Ways to divide the nodes: "contiguous", "random", "skewed", "one empty".
    dtype, accumulate, seed, time_limit
        See `check`. The time limit is the limit of one run.
    gradients : bool
        True if results have gradients; otherwise gradients count as not covered.
    expected_failures, allow, graphs
        See `check`.
    **attributes
        Attributes of the operation.

    Returns
    -------
    Report
        Findings have the level "ranks", and name the layer, the rank and the global number of the first wrong row.

    Raises
    ------
    ConfigError
        An unknown way of dividing, a number of ranks below 1, an unknown reference or attribute, or no graph of this
        name.

    Notes
    -----
    Results are compared with the bounds of level `certified`. The run is called twice on each division, with different
    values, so that stale rows of the first call show in the second.

    Examples
    --------
    >>> from sarlite import oracle
    >>> def one_rank(parts):
    ...     part = parts[0]
    ...     return [part.arrays["x"][part.src]]
    >>> oracle.check_ranks(one_rank, "gather", ranks=[1], graphs="ring-*", gradients=False).verdict.name
    'PASS'
    """
    reference = as_reference(reference, attributes, dtype)
    if unknown := [kind for kind in parts if kind not in PARTS]:
        raise ConfigError(f"parts: {unknown[0]!r} is not one of {', '.join(PARTS)}")
    sizes, chosen = [check_int("ranks", n, 1) for n in ranks], division_graphs(graphs)
    report = Report(f"{reference_label(reference)} on {', '.join(map(str, sizes))} ranks, {dtype}, seed {seed}")
    with trying(report, run, None, reference, time_limit, seed=seed,
                expected_failures=tuple(expected_failures), allow=allowed_verdicts(allow)) as trial:
        for k, (name, edges) in enumerate(chosen):
            options = {"dtype": dtype, "accumulate": accumulate, "width": WIDTHS[k % len(WIDTHS)]}
            for size in sizes:
                for kind in parts if size > 1 else parts[:1]:
                    _check_divided(trial, name, edges, size, kind, gradients, options)
    beyond = f"widths other than {spans(WIDTHS[: len(chosen)])}; more than {max(e.n_edges for _, e in chosen):,} edges"
    report.skip(f"{beyond}; numbers of ranks other than {spans(sizes)}; numbers other than {dtype}; special values")
    if not gradients:
        report.skip("gradients: not asked for")
    return report


def division_graphs(pattern: str | Sequence[str] = "*") -> list[tuple[str, EdgeList]]:
    """Return up to eight small graphs of the corpus whose names match `pattern`, one or several, as a list of (name, graph).
    Their sources and destinations are the same nodes.
    """
    entries = [e for e in corpus("ci") if e.published["n_src"] == e.published["n_dst"]
               and 0 < e.published["n_edges"] <= MOST_EDGES]
    entries = matching(entries, pattern)
    if not entries:
        raise ConfigError(f"graphs: no graph that is cut among ranks has a name like {pattern!r}")
    entries.sort(key=lambda e: (e.published["n_edges"], e.name))
    telling = sorted(entries, key=lambda e: ("random" not in e.tags, abs(np.log(e.published["n_edges"] / 200)),
                                             e.name))[:2]
    places = np.linspace(0, len(entries) - 1, N_GRAPHS - 2).astype(int)
    return [(entry.name, entry.edges) for entry in dict.fromkeys([*telling, *(entries[k] for k in places)])]


def _check_divided(trial: Trial, name: str, edges: EdgeList, size: int, kind: str, gradients: bool,
                   options: Mapping[str, Any]) -> None:
    """Check the function under test on the graph `edges`, divided among `size` ranks in the way `kind`, such as "random". Compare
    the results of two calls, and gradients if `gradients`, with the reference on the whole graph. The calls have different
    values, so that stale rows of the first call show in the second.
    """
    owner, previous = owners(kind, edges.n_dst, size, trial.seed), None
    for k, values in enumerate(("integers", "random")):
        label = f"{name}/{size} ranks/{kind}/{values}"
        try:
            case = valid_case(trial.reference, edges, name=label, values=values, seed=trial.seed + k, **options)
        except (ConfigError, ShapeError) as error:
            trial.report.skip("graphs that do not suit", f"{name}: {error}")
            return
        cotangents = trial.reference.cotangents(case, values, trial.seed + k) if gradients else {}
        division = Division(trial.reference, case, cotangents, owner, size)
        _check_call(trial, division, previous)
        previous = division


def _check_call(trial: Trial, division: Division, previous: Division | None) -> None:
    """Compare the layers, outputs and gradients of one call on the case of `division` with the reference, and add findings to
    `trial`. After a wrong layer nothing more is checked, after a wrong output no gradients. `previous` is the call before, to
    recognize stale rows (None: this is the first call).
    """
    results = _results(trial, division)
    if results is None:
        return
    reference, case, skip = trial.reference, division.case, trial.report.skip
    bounds = certified.arithmetic(case)

    def wrong(name, number, layer=None):
        return _check_rows(trial, division, previous, name, number, [result[name] for result in results], layer)

    layers = reference.layers(case, bounds)
    if any({name for name in result if name.startswith("layers.")} != layers.keys() for result in results):
        skip("the layers' results, which a rank does not return", case.name)
    elif any(wrong(name, number, k) for k, (name, number) in enumerate(layers.items())):
        return  # later results of a wrong layer are wrong, too
    if any([wrong(name, number) for name, number in reference.outputs(case, bounds).items()]):
        return
    for name, number in reference.gradients(case, division.cotangents, bounds).items() if division.cotangents else ():
        if any(result.get(f"d{name}") is None for result in results):
            skip(f"the gradient of {name}, which a rank does not return", case.name)
        else:
            wrong(f"d{name}", number)


def _results(trial: Trial, division: Division) -> list[dict[str, Any]] | None:
    """Call the function under test on `division`, the inputs of all ranks, and return a dict of results by name for each rank. If
    the call fails or an output is missing, add a finding to `trial` and return None.
    """
    case, parts, wanted = division.case, division.parts(), trial.reference.expressions(division.case)[1]

    def job():
        return [_flat(result, wanted) for result in trial.run(parts)]

    results = trial.attempt(case, lambda converted: trial.worker.call(job))
    if results is None:
        return None
    if len(results) != len(parts):
        trial.record(Finding(Verdict.WRONG, "call", case, "", f"returned {len(results)} results of {len(parts)} ranks"))
        return None
    for rank, result in enumerate(results):
        if lost := [name for name in wanted if result.get(name) is None]:
            trial.record(Finding(Verdict.WRONG, "call", case, lost[0], f"rank {rank} returned no {lost[0]}", rank=rank))
            return None
    return results


def _flat(result: Any, wanted: Mapping[str, object]) -> dict[str, Any]:
    """Return a rank's result as a flat dict of arrays: outputs by the names of `wanted`, "layers.0" and so on, and gradients "d<name>"."""
    if not isinstance(result, Mapping):
        result = {next(iter(wanted)): result}
    layers, gradients = result.get("layers") or (), result.get("gradients") or {}
    flat = {**{name: value for name, value in result.items() if name not in ("layers", "gradients")},
            **{f"layers.{k}": value for k, value in enumerate(layers)},
            **{f"d{name}": value for name, value in gradients.items()}}
    return {name: as_array(value) for name, value in flat.items()}


def _check_rows(trial: Trial, division: Division, previous: Division | None, output: str, expected: BoundedArray,
                arrays: Sequence[Array], layer: int | None = None) -> bool:
    """Return True, after adding a finding to `trial`, if a rank's array in `arrays` differs from the rank's rows of `expected`;
    else False. `output` names the array, and `layer` is its number if it is the result of a convolution. `division` has the rows of
    each rank, and `previous` is the call before, if any, to recognize stale rows.
    """
    case, kind, reference = division.case, division.wanted[output][1], trial.reference
    g = division.cotangents if layer is None and output not in reference.expressions(case)[1] else None
    place: dict[str, Any] = {"division": division, "before": previous, "kind": kind, "layer": layer, "whole": expected, "arrays": arrays}
    asked = [RankDifference(reference, case, output, division.part(expected, rank, kind), array, g, rank=rank, **place)
             for rank, array in enumerate(arrays)]
    for one in asked:
        try:
            call.checked(one.got, output, one.expected.value.shape, case)
        except call.CallFailure as failure:
            trial.record(Finding(Verdict.WRONG, "call", case, output, f"rank {one.rank}: {failure.cause}", rank=one.rank))
            return True
    return trial.judge("ranks", asked, _found)


def _found(trial, one, bad):
    row = int(np.argwhere(bad)[0][0]) if bad.ndim else None
    node = row if one.kind == "whole" else int(one.rows[row])
    trial.add_finding(Verdict.WRONG, "ranks", one, count_text(bad, f" of rank {one.rank}"), bad, one.searches, rank=one.rank, node=node,
                layer=one.layer)

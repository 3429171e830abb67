"""Level "invariants": metamorphic tests, equations between a function's results that hold whatever its formula is.

Both sides of an invariant are linear in the function's results. Their error bounds, as of level `certified`, are combined
in the same way, and bound the difference of both sides. The reference serves for these bounds alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sarlite.oracle import cut
from sarlite.oracle.arithmetic import BoundedArray
from sarlite.oracle.case import Case
from sarlite.oracle.certified import arithmetic
from sarlite.oracle.difference import Difference
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.finding import Verdict
from sarlite.oracle.trial import Trial
from sarlite.types import Array

Side = Callable[[Sequence[Array], str], Array]  # (results of the cases, name of the output) -> one side of the equation


@dataclass(frozen=True)
class Invariant:
    """An equation that every correct function fulfils: `left` and `right` combine the function's results for `cases`, and must be equal."""

    name: str
    cases: tuple[Case, ...]
    left: Side
    right: Side


Kind = Callable[[Trial, Case, np.random.Generator], Invariant]


def relabelled(trial: Trial, case: Case, rng: np.random.Generator) -> Invariant:
    """Return the Invariant (an equation between results) that renumbering the rows and reordering the edges of `case` at random
    renumbers the rows of the result in the same way. `rng` draws both permutations; `trial` holds the reference.
    """
    edges = case.edges
    src, order = rng.permutation(edges.n_src), rng.permutation(edges.n_edges)
    dst = src if edges.n_src == edges.n_dst else rng.permutation(edges.n_dst)
    rows = {"src": np.argsort(src), "dst": np.argsort(dst), "node": np.argsort(src), "edge": order}
    moved = EdgeList(src[edges.src[order]], dst[edges.dst[order]], edges.n_src, edges.n_dst)
    other = _with(trial, case, moved, "relabelled", rows)
    by = trial.reference.outputs_by

    def left(y, name):
        return y[0][rows[by[name]]] if name in by else y[0]

    return Invariant("relabelling the rows and mixing the edges", (case, other), left, lambda y, name: y[1])


def split(trial: Trial, case: Case, rng: np.random.Generator) -> Invariant:
    """Return the Invariant (an equation between results) that the results for two random halves of the edges of `case` add up to
    the result for all edges. `rng` draws the halves; `trial` holds the reference.
    """
    side = rng.random(case.n_edges) < 0.5
    parts = np.flatnonzero(side), np.flatnonzero(~side)
    halves = [_with(trial, case, case.edges.select(part), "split", {"edge": part}) for part in parts]
    return Invariant("splitting the edges into two parts", (case, *halves), lambda y, name: y[0],
                    lambda y, name: y[1] + y[2])


def doubled(trial: Trial, case: Case, rng: np.random.Generator) -> Invariant:
    """Return the Invariant (an equation between results) that repeating every edge of `case` doubles a sum, and leaves any other
    reduction unchanged. `trial` holds the reference; `rng` is unused.
    """
    twice, factor = np.tile(np.arange(case.n_edges), 2), 2 if _sums(case) else 1
    other = _with(trial, case, case.edges.select(twice), "doubled", {"edge": twice})
    return Invariant("every edge twice", (case, other), lambda y, name: y[0] * factor, lambda y, name: y[1])


def isolated(trial: Trial, case: Case, rng: np.random.Generator) -> Invariant:
    """Return the Invariant (an equation between results) that one more source and one more destination without edges leave the
    other rows of the result for `case` unchanged. `trial` holds the reference; `rng` is unused.
    """
    edges = case.edges
    more = EdgeList(edges.src, edges.dst, edges.n_src + 1, edges.n_dst + 1)
    rows = {"src": np.append(np.arange(edges.n_src), 0), "dst": np.append(np.arange(edges.n_dst), 0)}
    rows["node"] = rows["src"]
    other = _with(trial, case, more, "isolated", rows if edges.n_src and edges.n_dst else {})
    return Invariant("an isolated node more", (case, other), lambda y, name: y[0], lambda y, name: y[1][: len(y[0])])


def linear(trial: Trial, case: Case, rng: np.random.Generator) -> Invariant:
    """Return the Invariant (an equation between results) f(x) + f(y) = f(x + y) of the function f under test on the graph of
    `case`. `rng` draws x and y, arrays of small integers; `trial` is unused.
    """
    x = [rng.integers(-8, 9, np.shape(case.x)).astype(case.x.dtype) for _ in range(2)]
    cases = [replace(case, name=f"{case.name}/linear", arrays={**case.arrays, "x": value})
             for value in (*x, x[0] + x[1])]
    return Invariant("the sum of two inputs", tuple(cases), lambda y, name: y[0] + y[1], lambda y, name: y[2])


def applicable(trial: Trial, case: Case) -> list[Kind]:
    """Return the functions, such as `relabelled`, that make the invariants which hold for the operation of `case`. For a layer, a
    model or an output by edge, only `relabelled` applies. `trial` holds the reference.
    """
    if case.state or "edge" in trial.reference.outputs_by.values() or case.op not in ("spmm", "attention"):
        return [relabelled]
    attributes = case.attributes
    plain = not attributes.get("loops") and attributes.get("reduce") != "sym"
    makers: list[Kind] = [relabelled]
    makers += [isolated] * bool(case.edges.n_src and case.edges.n_dst) + [doubled] * plain
    if case.op == "spmm" and attributes.get("reduce") in ("sum", "mean", "sym"):
        makers.append(linear)
    return makers + [split] * (_sums(case) and plain)


def check_case(trial: Trial, case: Case, kinds: Sequence[Kind] | None = None) -> None:
    """Check one invariant of the function under test on `case`, for example that relabelling the nodes permutes the output.
    Successive calls take turns through `kinds`, functions that make an Invariant; None means all that apply to the case. `trial`
    calls the function, and collects the findings.
    """
    rng = np.random.default_rng([trial.seed, case.n_edges, case.n_dst])
    kinds = applicable(trial, case) if kinds is None else kinds
    invariant = kinds[trial.report.checked["invariant"] % len(kinds)](trial, case, rng)
    answers, bounds = [], []
    for one in invariant.cases:
        expected = trial.reference.outputs(one, arithmetic(one))
        got = trial.outputs(one, {name: number.value.shape for name, number in expected.items()})
        if got is None:
            return
        answers.append({name: value.astype(np.float64) for name, value in got.items()})
        bounds.append({name: number.bound for name, number in expected.items()})
    trial.report.checked["invariant"] += 1
    for name in answers[0]:
        with np.errstate(invalid="ignore"):  # Inf - Inf
            left, right = (side([y[name] for y in answers], name) for side in (invariant.left, invariant.right))
        bound = np.add(*(side([e[name] for e in bounds], name) for side in (invariant.left, invariant.right)))
        difference = Difference(trial.reference, invariant.cases[-1], name, BoundedArray(left, bound), right)
        bad = np.nan_to_num(difference.ratio) > 1
        if bad.any():
            cause = f"{invariant.name} changes what must stay: {int(bad.sum())} of {bad.size} elements"
            trial.add_finding(Verdict.WRONG, "invariant", difference, cause, bad)


def _sums(case):
    return case.op == "spmm" and case.attributes.get("reduce", "sum") == "sum"


def _with(trial, case, edges, name, rows):
    return replace(cut.on_rows(trial.reference, case, edges, rows), name=f"{case.name}/{name}")

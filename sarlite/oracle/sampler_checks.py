"""Level `certified` of a neighbour sampler: each call's picks are possible, and over many calls every one is as likely
as it should be.

Each count that is looked at is binomial, so the chance that a right sampler is called wrong is at most FALSE_ALARM: the
sum over all counts of the exact probability of a count as far out (both tails; Bonferroni). Counted are, over rows of
one in-degree and over calls: picks by place in the row, picks by edge, sets of picks where there are few, and how often
two rows, and two calls, have the same set.

It cannot see a bias smaller than about 7 standard deviations of these counts, which is 25 % of a probability of 1/3
after 64 calls and 6 % after 1,024; nor a dependence of three rows.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations, combinations_with_replacement
from math import comb, factorial, prod
from typing import Any

import numpy as np
from numpy.random import Generator, Philox

from sarlite.oracle import call
from sarlite.oracle.case import Case
from sarlite.oracle.corpus import Entry
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.finding import Finding, Verdict
from sarlite.oracle.formats import as_array
from sarlite.oracle.trial import Trial
from sarlite.oracle.values import places
from sarlite.types import Array

FALSE_ALARM = 1e-10
DEGREES = (0, 1, 2, 3, 5, 8, 17)
ROWS, N_SRC = 24, 50
MOST_SETS, MOST_EDGES = 200, 1000


def graph(seed: int = 0) -> EdgeList:
    """ROWS rows of each in-degree of DEGREES, mixed; the sources of a row are distinct; edges in no order."""
    rng = Generator(Philox(seed))
    degrees = rng.permutation(np.repeat(DEGREES, ROWS))
    src = np.concatenate([rng.choice(N_SRC, d, replace=False) for d in degrees])
    order = rng.permutation(len(src))
    return EdgeList(src[order], np.repeat(np.arange(len(degrees)), degrees)[order], N_SRC, len(degrees))


def level(trial: Trial, entries: Iterable[Entry], n_calls: int, index_dtype: str = "int64") -> None:
    """Look at one call on each of the smaller graphs, then at an even number of calls on `graph`.

    `case.k` of each row's in-edges are to be picked, all of fewer; with `case.replace`, k of any row with edges.
    """
    def asked(edges, name, seed):
        return replace_seed(trial.reference.case(edges, name=name, index_dtype=index_dtype), seed)

    for entry in entries:
        if entry.published["n_edges"] <= MOST_EDGES:
            picks(trial, asked(entry.edges, f"{entry.name}/sample", trial.seed))
    edges = graph(trial.seed)
    drawn = []
    for k in range(n_calls):
        one = asked(edges, "sampled-degrees", trial.seed + k)
        rows = picks(trial, one)
        if rows is None:
            return
        drawn.append(rows)
    again = picks(trial, replace_seed(one, trial.seed))
    if again is not None and any(not np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(again, drawn[0])):
        trial.report.skip("whether the same seed gives the same picks: they depend on more than case.seed")
    _distribution(trial, one, drawn)


def replace_seed(one: Case, seed: int) -> Case:
    return replace(one, attributes={**one.attributes, "seed": seed})


def picks(trial: Trial, one: Case) -> list[Array] | None:
    """Return each row's picks of one call as places in the row; None, with a finding, where they cannot be picks."""
    found = trial.noted(one, lambda given: trial.worker.call(lambda: as_array(trial.run(call.Handed(given).case))))
    if found is None:
        return None
    if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype.kind not in "iu":
        trial.add(Finding(Verdict.WRONG, "call", one, "out", "is no (n_picks,) array of edge numbers"))
        return None
    trial.report.checked["sampling"] += 1
    problem = _impossible(one, found)
    if problem is not None:
        trial.add(Finding(Verdict.WRONG, "sampling", one, "out", **problem))
        return None
    edges = one.edges
    order = np.argsort(edges.dst[found], kind="stable")
    ends = np.cumsum(np.bincount(edges.dst[found], minlength=edges.n_dst))
    return np.split(places(edges)[found][order], ends[:-1])


def _impossible(one, found):
    """Return the fields of a finding for picks that no sampler may return; None if there are none."""
    edges, k = one.edges, one.k
    if len(found) and (found.min() < 0 or found.max() >= edges.n_edges):
        bad = found[(found < 0) | (found >= edges.n_edges)][0]
        return {"cause": f"{bad} is no edge: there are {edges.n_edges}", "got": float(bad)}
    if not one.replace and len(np.unique(found)) < len(found):
        values, counts = np.unique(found, return_counts=True)
        e = values[counts > 1][0]
        name = f"edge {e} ({edges.src[e]} -> {edges.dst[e]})"
        return {"cause": f"{name} is picked {counts.max()} times without replacement",
                "node": int(edges.dst[e]), "edges": ((int(edges.src[e]), int(edges.dst[e])),)}
    wanted = np.where(edges.in_degrees > 0, k, 0) if one.replace else np.minimum(edges.in_degrees, k)
    got = np.bincount(edges.dst[found], minlength=edges.n_dst)
    if not np.array_equal(wanted, got):
        row = int(np.flatnonzero(wanted != got)[0])
        return {"cause": f"picks of a row of {edges.in_degrees[row]} in-edges, k = {k}", "node": row,
                "expected": float(wanted[row]),
                "got": float(got[row])}
    return None


def _distribution(trial, one, drawn):
    """Hold every count against its binomial distribution; the worst is the finding."""
    from scipy.special import bdtr, bdtrc

    counts = list(_counts(one, drawn))
    observed, n, p = (np.array(column) for column in list(zip(*counts))[:3])
    tails = np.minimum(bdtr(observed, n, p), np.where(observed > 0, bdtrc(np.maximum(observed - 1, 0), n, p), 1.0))
    trial.report.checked["sampling"] += len(counts)
    worst = int(np.argmin(tails))
    limit = FALSE_ALARM / (2 * len(counts))
    if tails[worst] < limit:
        where, row, edge = counts[worst][3:]
        cause = f"{where}: a chance of {tails[worst]:.1e}, below {limit:.1e}"
        trial.add(Finding(Verdict.WRONG, "sampling", one, "out", cause, node=row, edges=edge,
                          expected=float(n[worst] * p[worst]), got=float(observed[worst])))


def _counts(one: Case, drawn: list[list[Array]]) -> Iterator[tuple[int, int, float, str, int | None, tuple]]:
    """Yield (count, n, p, description, row, edges) of every count that has a binomial distribution."""
    edges, k = one.edges, one.k
    for degree in DEGREES:
        rows = np.flatnonzero(edges.in_degrees == degree)
        if degree < 2 or (degree <= k and not one.replace):
            continue  # nothing is drawn
        places = np.array([[np.sort(picked[row]) for row in rows] for picked in drawn])  # (calls, rows, k)
        yield from _by_place(edges, degree, rows, places, one.replace)
        yield from _by_set(degree, places, one.replace)


def _by_place(edges, degree, rows, places, replaced):
    n_calls, n_rows, k = places.shape
    tries, p = (n_calls * k, 1 / degree) if replaced else (n_calls, k / degree)
    counts = np.zeros((n_rows, degree), np.int64)
    np.add.at(counts, (np.arange(n_rows)[None, :, None], places), 1)
    for place, count in enumerate(counts.sum(0).tolist()):
        yield count, tries * n_rows, p, f"picks of in-edge {place} of rows of {degree}", None, ()
    for row, of_row in zip(rows.tolist(), counts.tolist()):
        for place, count in enumerate(of_row):
            edge = int(edges.eid[edges.indptr[row] + place])
            yield count, tries, p, f"picks of edge {edge}", row, ((int(edges.src[edge]), row),)


def _by_set(degree, places, replaced):
    n_calls, n_rows, k = places.shape
    n_sets = comb(degree + k - 1, k) if replaced else comb(degree, k)
    if replaced and n_sets > MOST_SETS:
        return
    chances = _chances(degree, k, replaced) if n_sets <= MOST_SETS else {}
    seen = Counter(map(tuple, places.reshape(-1, k).tolist())) if chances else {}
    for chosen, p in chances.items():
        yield seen[chosen], n_calls * n_rows, p, f"picks of in-edges {chosen} together, of rows of {degree}", None, ()
    same = sum(p * p for p in chances.values()) if chances else 1 / n_sets
    for text, one, two in ((f"two rows of {degree} with the same picks", places[:, ::2], places[:, 1::2]),
                           (f"two calls with the same picks of a row of {degree}", places[::2], places[1::2])):
        equal = (one == two).all(2)
        yield int(equal.sum()), equal.size, same, text, None, ()


def _chances(degree: int, k: int, replaced: bool) -> dict[tuple[int, ...], Any]:
    """The probability of each set of picks; with replacement, of each multiset."""
    if not replaced:
        return dict.fromkeys(combinations(range(degree), k), 1 / comb(degree, k))
    return {chosen: factorial(k) / prod(factorial(n) for n in Counter(chosen).values()) / degree**k
            for chosen in combinations_with_replacement(range(degree), k)}

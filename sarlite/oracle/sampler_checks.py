"""Checks of a neighbour sampler at level "certified": each sample is possible, and over many calls all are equally likely.

Every count that is tested has a binomial distribution. A right sampler is called wrong with probability FALSE_ALARM at
most: the sum over all counts of the exact probability of a count as extreme (both tails; Bonferroni). The counts are,
over rows of one in-degree and over calls: picks by position in the row, picks by edge, sets of picks if there are few
of them, and pairs of rows, and of calls, with the same set.

A bias below about 7 standard deviations of these counts is not seen. That is 25 % of a probability of 1/3 after 64
calls, and 6 % after 1,024. Dependence between three or more rows is not seen either.
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
from sarlite.oracle.values import positions_in_row
from sarlite.types import Array

FALSE_ALARM = 1e-10
DEGREES = (0, 1, 2, 3, 5, 8, 17)
ROWS, N_SRC = 24, 50
MOST_SETS, MOST_EDGES = 200, 1000


def graph(seed: int = 0) -> EdgeList:
    """Return a random graph, seeded by `seed`, with 24 destination rows of each in-degree in DEGREES (0 to 17).

    The sources of a row differ, and edges are in random order.
    """
    rng = Generator(Philox(seed))
    degrees = rng.permutation(np.repeat(DEGREES, ROWS))
    src = np.concatenate([rng.choice(N_SRC, d, replace=False) for d in degrees])
    order = rng.permutation(len(src))
    return EdgeList(src[order], np.repeat(np.arange(len(degrees)), degrees)[order], N_SRC, len(degrees))


def check_sampler(trial: Trial, entries: Iterable[Entry], n_calls: int, index_dtype: str = "int64") -> None:
    """Check a neighbour sampler: by one call on each graph of `entries` with at most 1,000 edges, and by statistics over `n_calls`
    calls (an even number) on one random graph. `trial` holds the sampler, and collects the findings.

    The sampler picks `case.k` in-edges of each row, or all if the row has fewer. With `case.replace` it picks k of
    every row that has in-edges.
    """
    def asked(edges, name, seed):
        return with_seed(trial.reference.case(edges, name=name, index_dtype=index_dtype), seed)

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
    again = picks(trial, with_seed(one, trial.seed))
    if again is not None and any(not np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(again, drawn[0])):
        trial.report.skip("whether the same seed gives the same picks: they depend on more than case.seed")
    _distribution(trial, one, drawn)


def with_seed(case: Case, seed: int) -> Case:
    """Return a copy of the case with another seed for the sampler."""
    return replace(case, attributes={**case.attributes, "seed": seed})


def picks(trial: Trial, case: Case) -> list[Array] | None:
    """Call the sampler on a case, and return the picked in-edges of each row, as positions in the row. If no correct sampler
    could have returned the picks, add a finding and return None.
    """
    picked = trial.attempt(case, lambda converted: trial.worker.call(lambda: as_array(trial.run(call.GuardedCase(converted).case))))
    if picked is None:
        return None
    if not isinstance(picked, np.ndarray) or picked.ndim != 1 or picked.dtype.kind not in "iu":
        trial.record(Finding(Verdict.WRONG, "call", case, "out", "is not an (n_picks,) array of edge numbers"))
        return None
    trial.report.checked["sampling"] += 1
    problem = _impossible(case, picked)
    if problem is not None:
        trial.record(Finding(Verdict.WRONG, "sampling", case, "out", **problem))
        return None
    edges = case.edges
    order = np.argsort(edges.dst[picked], kind="stable")
    ends = np.cumsum(np.bincount(edges.dst[picked], minlength=edges.n_dst))
    return np.split(positions_in_row(edges)[picked][order], ends[:-1])


def _impossible(case: Case, picked: Array) -> dict[str, Any] | None:
    """Return the fields of a Finding, by name, if no correct sampler may return the edge numbers `picked` for `case`; None if the
    picks are possible.
    """
    edges, k = case.edges, case.k
    if len(picked) and (picked.min() < 0 or picked.max() >= edges.n_edges):
        bad = picked[(picked < 0) | (picked >= edges.n_edges)][0]
        return {"cause": f"{bad} is no edge: there are {edges.n_edges}", "got": float(bad)}
    if not case.replace and len(np.unique(picked)) < len(picked):
        values, counts = np.unique(picked, return_counts=True)
        e = values[counts > 1][0]
        name = f"edge {e} ({edges.src[e]} -> {edges.dst[e]})"
        return {"cause": f"{name} is picked {counts.max()} times without replacement",
                "node": int(edges.dst[e]), "edges": ((int(edges.src[e]), int(edges.dst[e])),)}
    wanted = np.where(edges.in_degrees > 0, k, 0) if case.replace else np.minimum(edges.in_degrees, k)
    got = np.bincount(edges.dst[picked], minlength=edges.n_dst)
    if not np.array_equal(wanted, got):
        row = int(np.flatnonzero(wanted != got)[0])
        return {"cause": f"picks of a row of {edges.in_degrees[row]} in-edges, k = {k}", "node": row,
                "expected": float(wanted[row]),
                "got": float(got[row])}
    return None


def _distribution(trial: Trial, case: Case, drawn: list[list[Array]]) -> None:
    """Test how often each edge was sampled against binomial distributions, and add a finding for the least likely count if its
    probability is too small. drawn[c][row] has the positions in the row of the edges that call c picked.
    """
    from scipy.special import bdtr, bdtrc

    counts = list(_counts(case, drawn))
    observed, n, p = (np.array(column) for column in list(zip(*counts))[:3])
    tails = np.minimum(bdtr(observed, n, p), np.where(observed > 0, bdtrc(np.maximum(observed - 1, 0), n, p), 1.0))
    trial.report.checked["sampling"] += len(counts)
    worst = int(np.argmin(tails))
    limit = FALSE_ALARM / (2 * len(counts))
    if tails[worst] < limit:
        where, row, edge = counts[worst][3:]
        cause = f"{where}: a chance of {tails[worst]:.1e}, below {limit:.1e}"
        trial.record(Finding(Verdict.WRONG, "sampling", case, "out", cause, node=row, edges=edge,
                          expected=float(n[worst] * p[worst]), got=float(observed[worst])))


def _counts(case: Case, drawn: list[list[Array]]) -> Iterator[tuple[int, int, float, str, int | None, tuple]]:
    """Yield statistics to test for chance, (count, n, p, text, row, edges): `count` of `n` trials succeeded, each with probability
    p. `text` describes the count; a finding names `row` and `edges`. drawn[c][row] has the positions in the row of the edges that
    call c picked.
    """
    edges, k = case.edges, case.k
    for degree in DEGREES:
        rows = np.flatnonzero(edges.in_degrees == degree)
        if degree < 2 or (degree <= k and not case.replace):
            continue  # all edges are picked: nothing is random
        positions = np.array([[np.sort(picked[row]) for row in rows] for picked in drawn])  # (calls, rows, k)
        yield from _by_place(edges, degree, rows, positions, case.replace)
        yield from _by_set(degree, positions, case.replace)


def _by_place(edges, degree, rows, positions, replaced):
    n_calls, n_rows, k = positions.shape
    tries, p = (n_calls * k, 1 / degree) if replaced else (n_calls, k / degree)
    counts = np.zeros((n_rows, degree), np.int64)
    np.add.at(counts, (np.arange(n_rows)[None, :, None], positions), 1)
    for place, count in enumerate(counts.sum(0).tolist()):
        yield count, tries * n_rows, p, f"picks of in-edge {place} of rows of {degree}", None, ()
    for row, of_row in zip(rows.tolist(), counts.tolist()):
        for place, count in enumerate(of_row):
            edge = int(edges.eid[edges.indptr[row] + place])
            yield count, tries, p, f"picks of edge {edge}", row, ((int(edges.src[edge]), row),)


def _by_set(degree, positions, replaced):
    n_calls, n_rows, k = positions.shape
    n_sets = comb(degree + k - 1, k) if replaced else comb(degree, k)
    if replaced and n_sets > MOST_SETS:
        return
    chances = _chances(degree, k, replaced) if n_sets <= MOST_SETS else {}
    seen = Counter(map(tuple, positions.reshape(-1, k).tolist())) if chances else {}
    for chosen, p in chances.items():
        yield seen[chosen], n_calls * n_rows, p, f"picks of in-edges {chosen} together, of rows of {degree}", None, ()
    same = sum(p * p for p in chances.values()) if chances else 1 / n_sets
    for text, one, two in ((f"two rows of {degree} with the same picks", positions[:, ::2], positions[:, 1::2]),
                           (f"two calls with the same picks of a row of {degree}", positions[::2], positions[1::2])):
        equal = (one == two).all(2)
        yield int(equal.sum()), equal.size, same, text, None, ()


def _chances(degree: int, k: int, replaced: bool) -> dict[tuple[int, ...], float]:
    """Return the probability of each set of k picks among `degree` edges, as {positions: p}; with `replaced`, of each multiset."""
    if not replaced:
        return dict.fromkeys(combinations(range(degree), k), 1 / comb(degree, k))
    return {chosen: factorial(k) / prod(factorial(n) for n in Counter(chosen).values()) / degree**k
            for chosen in combinations_with_replacement(range(degree), k)}

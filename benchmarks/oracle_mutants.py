"""Count the planted and the real bugs that the oracle catches at each level, and its false alarms.

Every mutant of tests/helpers/oracle/planted_mutants.py runs at level probe, at level certified and at its own. Every drawn
bug of tests/helpers/oracle/oracle_histories.py, and every reported one of reported_sums.py and reported_rows.py, runs at
level ci. Then right float32 results are checked in random orders of their sums.

`tests` must be on Python's path: `PYTHONPATH=. python benchmarks/oracle_mutants.py` at the repository's root.
"""

import tempfile
from pathlib import Path

import harness
import numpy as np

from sarlite import oracle
from sarlite.oracle import certified
from sarlite.oracle.corpus import corpus, entry
from tests.helpers.oracle import oracle_kernels as right
from tests.helpers.oracle import oracle_narrow as narrow
from tests.helpers.oracle import planted_mutants as planted
from tests.helpers.oracle import reported_rows, reported_sums
from tests.helpers.oracle.oracle_histories import HISTORIES

CORRECT = [(op, attributes, kernels.KERNELS[op], dtype)
           for kernels, dtype in ((right, "float32"), (narrow, "bfloat16-rows")) for op, attributes in kernels.CORRECT]
FOUND = {oracle.Verdict.WRONG, oracle.Verdict.IMPRECISE, oracle.Verdict.NONDETERMINISTIC, oracle.Verdict.THREADS}
REPORTED = [*reported_sums.REPORTED, *reported_rows.REPORTED]


def caught(mutant, level, graphs):
    """Return True if the check at `level` catches the planted bug `mutant`, False if not, None if the level does not apply."""
    if mutant.level in ("ranks", "sampling"):
        if level != mutant.level:
            return None
        if level == "sampling":
            report = oracle.check(mutant.run, mutant.op)
        else:
            report = oracle.check_ranks(mutant.run, mutant.op, ranks=(1, 3), **mutant.attributes)
    elif mutant.run is planted.cancelling:
        report = large_mean(mutant.run, level)
    else:
        report = oracle.check(mutant.run, mutant.op, vjp=mutant.vjp, level=level, shrink=False, graphs=graphs,
                              **mutant.attributes)
    return report.verdict in FOUND


def large_mean(run, level):
    """Check the batch norm `run` on rows with a large mean, which the oracle's own graphs lack; return the report at `level`."""
    reference = oracle.Reference("batch_norm")
    case = reference.case(entry("powers-16-2-32").edges, name="large-mean")
    case.arrays["x"][:] += np.float32(3000)
    with tempfile.TemporaryDirectory() as folder:
        report = oracle.replay(oracle.save(case, Path(folder) / "case"), run)
    report.findings[:] = [finding for finding in report.findings if finding.level == level]
    return report


def table(graphs):
    for mutant in planted.MUTANTS:
        levels = ("probe", "certified", mutant.level)
        caught_by = {level: caught(mutant, level, graphs) for level in dict.fromkeys(levels)}
        yield {"mutant": mutant.name, "op": mutant.op, "link": mutant.link,
               "upstream": mutant.upstream if mutant.link else None, "probe": caught_by["probe"],
               "certified": caught_by["certified"], "own level": mutant.level,
               "caught": caught_by[mutant.level]}


def uncaught(bugs, graphs):
    """Yield the names of those planted `bugs` that the oracle does not catch on the given graphs at level "ci"."""
    for bug in bugs:
        with np.errstate(all="ignore"):
            report = oracle.check(bug.run, bug.op, vjp=bug.vjp, shrink=False, graphs=graphs, **bug.attributes)
        if report.verdict not in FOUND:
            yield bug.name


def false_alarms(least_checks, seed):
    """Check at least `least_checks` correct results; return (number checked, number that the oracle rejects, largest error / bound)."""
    rng, count, alarms, most = np.random.default_rng(seed), 0, 0, 0.0
    entries = [e for e in corpus("ci") if 0 < e.published["n_edges"] <= 300]
    while count < least_checks:
        op, attributes, (run, vjp), dtype = CORRECT[rng.integers(len(CORRECT))]
        one, reference = entries[rng.integers(len(entries))], oracle.Reference(op, **attributes)
        case = reference.case(one.edges, seed=int(rng.integers(1 << 30)), width=min(one.width, 17), dtype=dtype)
        g = reference.cotangents(case, "random", int(rng.integers(1 << 30)))
        arithmetic = certified.arithmetic(case)
        expected = {**reference.outputs(case, arithmetic),
                    **{f"d{k}": v for k, v in reference.gradients(case, g, arithmetic).items()}}
        for _ in range(10):
            order = rng.permutation(case.n_edges)
            back = vjp(case, g["out"], order)
            for name, array in {"out": run(case, order), **{f"d{k}": v for k, v in back.items()}}.items():
                ratio = certified.ratios(array, expected[name])
                count, alarms = count + 1, alarms + bool((np.nan_to_num(ratio, posinf=np.inf) > 1).any())
                most = max(most, float(np.nan_to_num(ratio, posinf=np.inf).max(initial=0)))
    return count, alarms, most


def main():
    parser = harness.parser(__doc__)
    parser.add_argument("--graphs", default="*", help="pattern of the corpus's graphs")
    parser.add_argument("--results", type=int, default=10_000, help="right results")
    args = parser.parse_args()
    rows = list(table(args.graphs))

    def answer(name):
        return lambda row: {True: "caught", False: "no", None: None}[row[name]]

    columns = {"bug": lambda r: r["mutant"], "of": lambda r: r["op"], "probe": answer("probe"),
               "certified": answer("certified"),
               "at its level": lambda r: f"{r['own level']}: {'caught' if r['caught'] else 'no'}",
               "upstream's tests": lambda r: r["upstream"], "link": lambda r: r["link"]}
    harness.report("Planted bugs and real ones", rows, columns, args.json)
    local = [row for row in rows if row["own level"] not in ("ranks", "sampling", "repeat")]
    both = sum(row["probe"] or row["certified"] for row in local)
    real = [row for row in rows if row["link"]]
    print(f"\nprobe and certified together: {both} of {len(local)}")
    print(f"at their level: real bugs {sum(r['caught'] for r in real)} of {len(real)}, all "
          f"{sum(r['caught'] for r in rows)} of {len(rows)}")
    for text, bugs in (("drawn from kernels' histories", HISTORIES), ("reported", REPORTED)):
        missed = list(uncaught(bugs, args.graphs))
        print(f"{text}: {len(bugs) - len(missed)} of {len(bugs)} at ci; missed: {missed}")
    count, alarms, most = false_alarms(args.results, 0)
    print(f"false alarms: {alarms} of {count} right results in random orders; largest error / bound {most:.3g}")


if __name__ == "__main__":
    main()

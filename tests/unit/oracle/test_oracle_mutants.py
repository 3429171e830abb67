"""Every planted and every real bug is caught, and no right kernel is called wrong."""

import numpy as np
import pytest

from sarlite import oracle
from sarlite.oracle.corpus import entry
from tests.helpers.oracle import oracle_kernels as right
from tests.helpers.oracle import planted_mutants as planted

pytestmark = pytest.mark.timeout(120)
GRAPHS = ("in-star-8", "clique-4-loops", "doubled-5-8", "isolated-6-odd", "in-star-17-8", "in-star-16-16",
          "components-2-3", "powers-16-2-32", "isolated-12-odd-ties", "isolated-12-odd-negative",
          "isolated-12-odd-scores", "isolated-12-odd-masked", "empty-3-3-ties")


def report_of(mutant, tmp_path):
    attributes = dict(mutant.attributes)
    if mutant.level == "ranks":
        return oracle.check_ranks(mutant.run, mutant.op, ranks=(1, 3), **attributes)
    if mutant.run is planted.cancelling:  # rows of a large mean, which the corpus does not have
        case = oracle.Reference(mutant.op).case(entry("powers-16-2-32").edges, name="large-mean")
        case.arrays["x"][:] += np.float32(3000)
        return oracle.replay(oracle.save(case, tmp_path / "case"), mutant.run)
    level = {"sampling": "certified"}.get(mutant.level, mutant.level)
    return oracle.check(mutant.run, mutant.op, vjp=mutant.vjp, level=level, shrink=False, graphs=GRAPHS, **attributes)


@pytest.mark.sampled(14)
@pytest.mark.parametrize("mutant", planted.MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_mutants_are_caught(mutant, tmp_path):
    report = report_of(mutant, tmp_path)
    assert report.verdict not in (oracle.Verdict.PASS, oracle.Verdict.UNSUPPORTED), str(report)


def test_the_list_of_mutants_is_long():
    assert sum(not mutant.link for mutant in planted.MUTANTS) >= 40 and sum(bool(mutant.link) for mutant in planted.MUTANTS) >= 16
    assert len({mutant.name for mutant in planted.MUTANTS}) == len(planted.MUTANTS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("op, attributes", right.CORRECT, ids=[f"{op}-{'-'.join(map(str, a.values()))}" for op, a in right.CORRECT])
def test_right_kernels_are_not_called_wrong(op, attributes):
    """Edges are summed in a random order, at all levels; benchmarks/oracle_mutants.py repeats this 10,000 times."""
    run, vjp = right.KERNELS[op]
    rng, orders = np.random.default_rng(0), {}

    def order(case):
        return orders.setdefault(case.n_edges, rng.permutation(case.n_edges))  # the same twice, as repeat asks

    report = oracle.check(lambda case: run(case, order(case)), op, vjp=lambda case, g: vjp(case, g, order(case)), graphs=GRAPHS,
                          **attributes)
    assert report.verdict is oracle.Verdict.PASS, str(report)


def test_right_runs_on_ranks_are_not_called_wrong():
    assert oracle.check_ranks(planted.on_ranks, "gcn", ranks=(1, 3), **planted._GCN).verdict is oracle.Verdict.PASS

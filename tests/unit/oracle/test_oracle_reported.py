"""Bugs that were reported for kernels are seen at `ci`; for the others the report names the sizes that no case had."""

import numpy as np
import pytest

from sarlite import oracle
from sarlite.oracle import call
from tests.helpers.oracle import reported_rows, reported_sums

REPORTED = [*reported_sums.REPORTED, *reported_rows.REPORTED]
FOUND = {oracle.Verdict.WRONG, oracle.Verdict.IMPRECISE, oracle.Verdict.NONDETERMINISTIC, oracle.Verdict.THREADS}
TOO_LARGE = {"counts of a mean stop at 2^24": "rows of more than 65,536 edges in", "byte offsets of x in 32 bits": "more than 70,000 rows"}
ON_THREADS = {"rows are cut for more threads than there are", "rows that the threads do not divide are left out",
              "the row at the border of two threads counts twice"}
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::RuntimeWarning")]


def report_of(bug):
    with np.errstate(all="ignore"):
        return oracle.check(bug.run, bug.op, vjp=bug.vjp, shrink=False, shown=lambda text: None, time_limit=600, **bug.attributes)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("bug", [b for b in REPORTED if b.name not in TOO_LARGE], ids=lambda bug: bug.name.replace(" ", "-"))
def test_reported_bugs_are_seen_at_ci(bug):
    if bug.name in ON_THREADS and call.threads_of_pools() == 1:
        pytest.skip("the pools have one thread")
    report = report_of(bug)
    assert report.verdict in FOUND, str(report)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("bug", [b for b in REPORTED if b.name in TOO_LARGE], ids=lambda bug: bug.name.replace(" ", "-"))
def test_the_report_names_the_sizes_at_which_unseen_bugs_show(bug):
    report = report_of(bug).require()
    assert any(TOO_LARGE[bug.name] in reason for reason in report.uncovered)


def test_at_least_fifty_were_drawn_and_few_are_not_seen():
    assert len({bug.name for bug in REPORTED}) == len({bug.link for bug in REPORTED}) == len(REPORTED) >= 50
    assert {*TOO_LARGE, *ON_THREADS} <= {bug.name for bug in REPORTED} and len(TOO_LARGE) <= 0.05 * len(REPORTED)

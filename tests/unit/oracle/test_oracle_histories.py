"""Bugs from the histories of kernels are seen at `ci`; benchmarks/oracle_mutants.py runs all of them."""

import numpy as np
import pytest

from sarlite import oracle
from tests.helpers.oracle.oracle_histories import HISTORIES

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::RuntimeWarning")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("bug", HISTORIES, ids=lambda bug: bug.name.replace(" ", "-"))
def test_drawn_bugs_are_seen_at_ci(bug):
    with np.errstate(all="ignore"):
        report = oracle.check(bug.run, bug.op, vjp=bug.vjp, level="ci", shrink=False, **bug.attributes)
    assert report.verdict not in (oracle.Verdict.PASS, oracle.Verdict.UNSUPPORTED), str(report)


def test_the_list_of_drawn_bugs_is_long():
    assert len({bug.name for bug in HISTORIES}) == len(HISTORIES) >= 150
    assert sum(bool(bug.link) for bug in HISTORIES) >= 25

"""A few of the faults of `python -m tests.fault_campaign`, which tries any number."""

import pytest

from tests.fault_campaign import campaign


@pytest.mark.timeout(120)
def test_some_faults_end_on_every_rank():
    assert campaign(20, seed=0).total() == 20

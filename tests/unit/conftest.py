"""Fixtures that several files of unit tests use."""

import pytest


@pytest.fixture
def here():
    """Return `train_here`, which trains in this process."""
    from tests.helpers.train import training_runs

    return training_runs.train_here


@pytest.fixture(autouse=True)
def _ranks_make_the_same_collectives(monkeypatch):
    """Fail a test if one of its ranks as threads makes a collective call that another rank does not make."""
    from tests.helpers.comm.counting_communicator import count_collectives

    count_collectives(monkeypatch)

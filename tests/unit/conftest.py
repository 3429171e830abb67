"""What several files of unit tests share."""

import pytest


@pytest.fixture
def here():
    """Train in this process; the number of threads stays as it is."""
    from tests.helpers.train import training_runs

    return training_runs.train_here

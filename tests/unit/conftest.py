"""What several files of unit tests share."""

import pytest


@pytest.fixture
def here(monkeypatch):
    """Train in this process; the number of threads stays as it is."""
    from tests.helpers import training_runs

    monkeypatch.setattr(training_runs.run, "set_threads", lambda n: None)
    return training_runs.train_here

"""What several files of unit tests share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture
def here(monkeypatch):
    """Train in this process; the number of threads stays as it is."""
    import training_runs

    monkeypatch.setattr(training_runs.run, "set_threads", lambda n: None)
    return training_runs.train_here

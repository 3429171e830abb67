"""What several files of unit tests share."""

import pytest


@pytest.fixture
def here():
    """Train in this process; the number of threads stays as it is."""
    from tests.helpers import training_runs

    return training_runs.train_here


@pytest.fixture
def limited(monkeypatch):
    """Memory is compared with `costing.LIMIT`, as it is predicted, without what the test's process has, and to the page."""
    from sarlite.kernels import allocations
    from sarlite.profile import Memory
    from sarlite.train import batch_trial, costs, planning
    from tests.helpers.costing import LIMIT

    monkeypatch.setattr(batch_trial, "resident", lambda: 0)
    monkeypatch.setattr(allocations, "huge_page", lambda: 4096)
    for name in ("now", "peak"):
        monkeypatch.setattr(Memory, name, lambda self: 0)
    monkeypatch.setattr(planning, "limit_of", lambda comm, config, part: planning.Limit(
        LIMIT[0], True, ["here"] * comm.size, [0] * comm.size))
    monkeypatch.setattr(costs.Model, "fixed_bytes", property(lambda self: 0, lambda self, n: None), raising=False)
    programs, program = {}, costs.program
    monkeypatch.setattr(costs, "program", lambda *args: programs.setdefault(args[3], None) or programs.update(
        {args[3]: program(*args)}) or programs[args[3]])  # a mode's is recorded once

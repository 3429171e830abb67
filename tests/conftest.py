"""Settings of all tests, made before a module loads OpenMP."""

import gc
import hashlib
import os
from collections import defaultdict

import pytest

# The tests start tens of thousands of thread teams, often beside other processes, and a spinning thread would take their cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_addoption(parser):
    parser.addoption("--every-case", action="store_true", help="run every case of the tests that are marked `sampled`")


def pytest_sessionstart():
    """Refuse to run if the kernels come from another folder than SARLITE_TESTED names; `make sanitize` sets it."""
    if "SARLITE_TESTED" in os.environ:
        from sarlite import _native

        assert _native.__file__.startswith(os.environ["SARLITE_TESTED"]), f"{_native.__file__} is under test"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Keep n cases of a test marked `sampled(n)`, chosen by a hash of their names: the same cases each time."""
    by_test = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not config.getoption("--every-case"):
            by_test[item.nodeid.partition("[")[0]].append(item)
    left_out = set()
    for cases in by_test.values():
        cases.sort(key=lambda item: hashlib.blake2b(item.nodeid.partition("::")[2].encode()).digest())
        left_out.update(cases[cases[0].get_closest_marker("sampled").args[0] :])
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish(session):
    """Freeze the collected tests, so that garbage collections do not walk over ten thousand of them."""
    _freeze()


@pytest.fixture(scope="module", autouse=True)
def _others_stay():
    """Freeze objects that earlier modules left, so that garbage collections of later runs do not walk over them."""
    _freeze()


@pytest.fixture(autouse=True)
def _rows_are_fetched_ahead(monkeypatch):
    """Let graphs that are made without `prefetch` have 1 on every machine, where the default depends on free cores."""
    monkeypatch.setattr("sarlite.schedule.schedule.default_prefetch", lambda comm, n_threads: 1)


def _freeze():
    gc.collect()
    gc.freeze()

"""Signs of progress where there are no steps to count."""

import os
import subprocess
import sys
import threading
import time

import pytest

from sarlite.comm import working

pytestmark = pytest.mark.timeout(30)
SOON = 0.05


def _compute(enough):
    while not enough():
        sum(range(1000))


def test_computing_is_progress():
    ticked = threading.Event()
    with working.working(ticked.set, SOON):
        _compute(ticked.is_set)
    assert not any(thread.name == "sarlite-working" for thread in threading.enumerate())


PIPE = os.pipe()


@pytest.mark.parametrize("block", [lambda: time.sleep(0.5), lambda: threading.Event().wait(0.5), lambda: os.read(PIPE[0], 1)])
def test_being_blocked_is_none(block):
    """Work before the block may tick; a blocked process may not."""
    ticks, counts = [], []

    def count():
        counts.append(len(ticks))

    timers = [threading.Timer(0.2, count), threading.Timer(0.5, count), threading.Timer(0.5, os.write, (PIPE[1], b"x"))]
    with working.working(lambda: ticks.append(0), SOON):
        for timer in timers:
            timer.start()
        block()
        for timer in timers:
            timer.join()
    assert counts[0] == counts[1]


def test_a_child_that_computes_is_progress():
    ticked = threading.Event()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        with working.working(ticked.set, SOON):
            assert ticked.wait(20)
        child.kill()


@pytest.mark.parametrize("spin", ["while not over: pass", "while not event.is_set(): pass"])
def test_waiting_for_a_rank_is_none(spin):
    """Waiting is no progress even if it takes processor time, as MPI's wait does."""
    ticks, over, event = [], [], threading.Event()
    timer = threading.Timer(0.5, lambda: (over.append(0), event.set()))
    timer.start()
    wait = compile(spin, working._COMM + "mpi.py", "exec")
    with working.working(lambda: ticks.append(0), SOON):
        exec(wait, {"over": over, "event": event})
    timer.join()
    assert not ticks

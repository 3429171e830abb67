"""The counter of collective calls: ranks whose calls meet only by luck are detected after the step."""

import numpy as np
import pytest

from sarlite.comm import threads


def steps(comm, calls):
    """Run two steps with calls[rank][step] allreduces each."""
    for number, n in enumerate(calls[comm.rank]):
        for _ in range(n):
            comm.channel("exact").allreduce(np.ones(1))
        comm._world.tallies[comm.rank].compare(f"step {number}")


def test_equal_calls_agree():
    threads.run(3, steps, [(2, 0), (2, 0), (2, 0)])


def test_a_call_that_one_rank_makes_a_step_late_is_found():
    """Both ranks make one allreduce, and the two calls meet: without the counter nothing is wrong."""
    with pytest.raises(AssertionError, match=r"other collective calls by step [01]: .*start_allreduce.*\[1, 0\]"):
        threads.run(2, steps, [(1, 0), (0, 1)])


def test_other_kinds_of_calls_are_found():
    def work(comm):
        if comm.rank:
            comm._world.tallies[1].counts[(), "barrier"] += 1

    with pytest.raises(AssertionError, match=r"by the end: .*barrier.*\[0, 1\]"):
        threads.run(2, work)

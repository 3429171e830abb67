"""Minibatches over MPI: equal to one rank where that is promised, else equal to ranks as threads."""


import numpy as np
import pytest

from sarlite.comm import threads
from tests.helpers.minibatch.batching import REMOTES, check_evaluation, parts, picks, trained, whole

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60, method="thread")]  # a rank that hangs ends all


@pytest.fixture(scope="module")
def comm():
    from sarlite.comm import mpi

    world = mpi.world()
    if world.size > 3:
        pytest.skip("1 to 3 ranks show it, and 4 take long on two cores")
    return world


@pytest.mark.parametrize("name", ["sage", "gat", "function"])
def test_exact_is_one_rank(comm, name):
    losses, parameters, _ = trained(whole().shard(comm, parts(comm.size), prefetch=1), name, epochs=1)
    expected, right, _ = trained(whole(), name, epochs=1)
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    np.testing.assert_allclose(parameters, right, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("remote", ["hec", "demand", "local"])
def test_a_run_is_that_of_thread_ranks(comm, remote):
    def run(ranks):
        return trained(whole().shard(ranks, parts(ranks.size)), remote=REMOTES[remote], epochs=2)[:2]

    for actual, expected in zip(run(comm), threads.run(comm.size, run)[comm.rank]):
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)  # MPI sums over ranks in another order


@pytest.mark.parametrize("sampler", ["uniform", "replace", "labor"])
def test_picks_are_those_of_one_rank(comm, sampler):
    assert picks(whole(True).shard(comm, parts(comm.size)), sampler=sampler) == picks(whole(True), sampler=sampler)


@pytest.mark.parametrize("remote", ["exact", "hec", "local"])
def test_evaluation_makes_batch_norms_moments_exact(comm, remote):
    evaluated = check_evaluation(whole().shard(comm, parts(comm.size)), remote=REMOTES.get(remote, remote))
    if remote == "exact":
        for ours, right in zip(evaluated, check_evaluation(whole())):
            np.testing.assert_allclose(ours, right, rtol=1e-8)

"""What ranks may not differ in is compared before it is used."""

import numpy as np
import pytest

from sarlite import Graph, Trainer, nn, optim
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.nn.norm import batch_moments
from sarlite.profile import Counted, Profile

pytestmark = pytest.mark.timeout(30)
RING = Graph.from_edges(np.arange(8), (np.arange(8) + 1) % 8, 8)


class Model(nn.Module):
    def __init__(self, n_in, dtype, rng):
        self.linear = nn.Linear(n_in, 2, rng=rng, dtype=dtype)

    def __call__(self, graph, h):
        return self.linear(h)


def trainer(comm, seed=0, n_in=3, dtype=np.float32, x_dtype=np.float32):
    graph, rng = RING.shard(comm, "contiguous"), nn.Random(seed)
    x, labels = np.ones((graph.n_src, n_in), x_dtype), np.zeros(graph.n_dst, np.int64)
    return Trainer(graph, Model(n_in, dtype, rng), x, labels, slice(None), optimizer=lambda flat: optim.SGD(flat, 0.1), rng=rng)


def all_raise(kind, work, match):
    def watched(comm):
        with pytest.raises(kind, match=match):
            work(comm)

    threads.run(3, watched)


@pytest.mark.parametrize("differs, what", [
    ({"seed": 1}, "model: values of the replicated parameters"), ({"dtype": np.float64}, "model"), ({"n_in": 4}, "x: number of features"),
    ({"x_dtype": np.float64}, "x: number of features and dtype"),
])  # fmt: skip
def test_trainers_that_differ(differs, what):
    all_raise(DataError, lambda comm: trainer(comm, **(differs if comm.rank == 1 else {})), f"{what}.*rank 1 and rank 0 differ")


def test_trainers_that_agree():
    assert len(set(threads.run(3, lambda comm: trainer(comm).step()))) == 1


@pytest.mark.parametrize("differs", [{"mode": "sa"}, {"prefetch": 0}])
def test_graphs_that_differ(differs):
    all_raise(ConfigError, lambda comm: RING.shard(comm, "contiguous", **(differs if comm.rank else {})), "ranks disagree")


@pytest.mark.parametrize("differs", [{"parts": "halves"}, {"mode": "none"}, {"order": "none"}, {"order": np.arange(3)}])
def test_what_no_rank_can_do_is_refused_on_all(differs):
    for ranks in [(0, 1, 2), (2,)]:
        all_raise((ConfigError, DataError),
                  lambda comm, ranks=ranks: RING.shard(comm, **{"parts": "contiguous", **(differs if comm.rank in ranks else {})}), None)


def test_moments_travel_as_numbers():
    def work(comm):
        profile = Profile()
        x = np.arange(12.0).reshape(4, 3)[: 1 + comm.rank]
        found = batch_moments(x, Counted(comm, profile))
        assert profile.sent_bytes == {"allreduce": comm.size * 7 * 8}
        return found

    every = np.concatenate([np.arange(12.0).reshape(4, 3)[: 1 + rank] for rank in range(3)])
    for count, mean, m2 in threads.run(3, work):
        assert count == len(every)
        np.testing.assert_allclose(mean, every.mean(0), rtol=1e-14)
        np.testing.assert_allclose(m2, ((every - every.mean(0)) ** 2).sum(0), rtol=1e-14)


def test_moments_of_another_width_are_refused():
    all_raise(ShapeError, lambda comm: batch_moments(np.ones((2, 3 + (comm.rank == 1))), comm), "allreduce")

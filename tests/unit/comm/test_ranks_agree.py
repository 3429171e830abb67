"""Values that must be equal on all ranks are compared before they are used."""

import numpy as np
import pytest

from sarlite import Graph, Trainer, fn, nn, optim
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError, PeerError, SarliteError, ShapeError, raise_together
from sarlite.graph.propagation import Propagation
from sarlite.minibatch import HEC, NeighborLoader
from sarlite.nn.norm import batch_moments
from sarlite.profile import Counted, Profile
from tests.helpers.graph import relational_graphs

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
    all_raise(ConfigError, lambda comm: RING.shard(comm, "contiguous", **(differs if comm.rank else {})), "differ between ranks")


@pytest.mark.parametrize("differs", [{"parts": "halves"}, {"mode": "none"}, {"order": "none"}, {"order": np.arange(3)}])
def test_what_no_rank_can_do_is_refused_on_all(differs):
    for ranks in [(0, 1, 2), (2,)]:
        all_raise((ConfigError, DataError),
                  lambda comm, ranks=ranks: RING.shard(comm, **{"parts": "contiguous", **(differs if comm.rank in ranks else {})}), None)


def test_moments_travel_as_numbers():
    def work(comm):
        profile = Profile()
        x = np.arange(12.0).reshape(4, 3)[: 1 + comm.rank]
        moments = batch_moments(x, Counted(comm, profile))
        assert profile.sent_bytes == {"allreduce": comm.size * 7 * 8}
        return moments

    every = np.concatenate([np.arange(12.0).reshape(4, 3)[: 1 + rank] for rank in range(3)])
    for count, mean, m2 in threads.run(3, work):
        assert count == len(every)
        np.testing.assert_allclose(mean, every.mean(0), rtol=1e-14)
        np.testing.assert_allclose(m2, ((every - every.mean(0)) ** 2).sum(0), rtol=1e-14)


def test_moments_of_another_width_are_refused():
    all_raise(ShapeError, lambda comm: batch_moments(np.ones((2, 3 + (comm.rank == 1))), comm), "allreduce")


# ---- what is wrong on one rank alone


@pytest.mark.parametrize("reducer", ["sum", "sym"])
def test_weights_out_of_the_rows_range(reducer):
    """Only rank 2 has a weight above float32's range; reducer "sym" divides it by a source's small degree."""

    def work(comm):
        graph = RING.shard(comm, "contiguous")
        weight = np.ones(8)
        weight[6:] = (1e-100, 1e30) if reducer == "sym" else (1, 1e39)
        graph = graph.with_edge_values(weight[graph.edge_ids])
        graph.aggregate(fn.copy_src(np.ones((graph.n_src, 2), np.float32)), reducer)

    all_raise(DataError, work, "edge_weight: .* is not a finite float32, which the rows are")


@pytest.mark.parametrize("door", [
    lambda graph, x: Propagation(graph)(x),
    lambda graph, x: NeighborLoader(graph, x, None, slice(None), fanouts=(-1,), batch_size=2, remote="local"),
])  # fmt: skip
def test_weights_out_of_the_rows_range_at_other_doors(door):
    def work(comm):
        graph = RING.shard(comm, "contiguous")
        graph = graph.with_edge_values(np.where(np.arange(8) == 7, 1e39, 1.0)[graph.edge_ids])
        door(graph, np.ones((graph.n_src, 2), np.float32))

    all_raise(DataError, work, "edge_weight: 1e.39 is not a finite float32")


@pytest.mark.parametrize("remote", ["exact", "local", HEC(lines=4, limit=4)])
@pytest.mark.parametrize("wrong", ["seeds", "seed", "x"])
def test_loaders_refuse_together(remote, wrong):
    def work(comm):
        graph, bad = RING.shard(comm, "contiguous"), comm.rank == 1
        x = "a" if bad and wrong == "x" else np.ones((graph.n_src, 2))
        loader = NeighborLoader(graph, x, None, slice(None), fanouts=(-1,), batch_size=2, remote=remote, sample_ahead=0,
                                seed="a" if bad and wrong == "seed" else 0)
        loader.batch([99] if bad else [])

    def watched(comm):
        with pytest.raises((DataError, ShapeError, PeerError, TypeError)) as caught:
            work(comm)
        return str(caught.value).removeprefix("rank 1: ").removeprefix("TypeError: ")

    assert len(set(threads.run(3, watched))) == 1


WRONG = {"labels": [[1], [1, 2]]}, {"x": "a"}, {"optimizer": lambda flat: optim.SGD(flat, "a")}


@pytest.mark.parametrize("wrong", WRONG)
def test_trainers_refuse_together(wrong):
    def work(comm):
        graph, rng = RING.shard(comm, "contiguous"), nn.Random(0)
        arguments = {"x": np.ones((graph.n_src, 3)), "labels": np.zeros(graph.n_dst, int),
                     "optimizer": lambda flat: optim.SGD(flat, 0.1), **(wrong if comm.rank == 1 else {})}
        x, labels, optimizer = arguments.values()
        Trainer(graph, Model(3, np.float64, rng), x, labels, slice(None), optimizer=optimizer, rng=rng)

    def watched(comm):
        with pytest.raises((SarliteError, ValueError, TypeError)) as caught:
            work(comm)
        return comm.rank == 1 or "rank 1: " in str(caught.value)

    assert all(threads.run(3, watched))


def test_relations_that_differ():
    def work(comm):
        graph = relational_graphs.make(comm, "random")
        chosen = [relational_graphs.CITES, relational_graphs.TOPIC] if comm.rank else [relational_graphs.CITES]
        x = relational_graphs.X["paper"][graph.node_ids["paper"]]
        graph.aggregate({relation: fn.copy_src(x) for relation in chosen}, "sum")

    all_raise(DataError, work, "relations out of 'paper' that are aggregated together")


class Untold(Exception):
    def __str__(self):
        raise RuntimeError("no words")


ERRORS = MemoryError("no room"), KeyError("k"), Untold(), UnicodeDecodeError("ascii", b"a", 0, 1, "r")


@pytest.mark.parametrize("error", ERRORS)
def test_the_class_of_another_rank_s_error(error):
    """The error is the cause of the other ranks' errors; an error without a message is reported, too."""

    def work(comm):
        with pytest.raises(BaseException) as caught:  # noqa: B017, PT011
            raise_together(comm, error if comm.rank == 1 else None)
        return caught.value

    one, second, two = threads.run(3, work)
    assert second is error and isinstance(one, PeerError) and isinstance(two, PeerError)
    assert f"rank 1: {type(error).__name__}: " in str(one)
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    assert type(one.__cause__) is (type(None) if kind is UnicodeDecodeError else kind)

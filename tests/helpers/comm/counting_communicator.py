"""Communicators of ranks as threads that count collective calls by kind; all ranks must agree on the counts after each step.

Collectives of two ranks that do not belong together may meet without an error. For example, one rank skips an allreduce,
and later all ranks make another one of the same shape.
"""

import functools
import threading
from collections import Counter

from sarlite.comm import threads
from sarlite.train.step import TrainingStep

COLLECTIVES = ("alltoall", "start_broadcast", "start_allreduce", "allgather", "bcast", "barrier", "drain", "dup")


class Tally:
    """Counts of one rank's collective calls, by channel and by kind of call, such as "allgather".

    Calls of the rank's further threads are not counted, as their number at a given time is a matter of luck.
    """

    def __init__(self, world, rank):
        self.world, self.rank, self.counts, self.n_steps = world, rank, Counter(), 0
        self.thread = threading.get_ident()

    def add(self, channel, kind):
        if threading.get_ident() == self.thread:
            self.counts[channel, kind] += 1

    def compare(self, point):
        """Compare all ranks' counts at `point`, such as "step 3"; the last rank to arrive raises an AssertionError if they differ."""
        with self.world.lock:
            of_ranks = self.world.points.setdefault(point, {})
            of_ranks[self.rank] = Counter(self.counts)
            if len(of_ranks) < self.world.size:
                return
            del self.world.points[point]
        differing = {each: [of_ranks[rank][each] for rank in range(self.world.size)]
                     for each in set().union(*of_ranks.values()) if len({counts[each] for counts in of_ranks.values()}) > 1}
        assert not differing, f"ranks made other collective calls by {point}: {differing}"


class CountingWorld(threads._World):
    """State that ranks as threads share (see `threads.run`), with a `Tally` of collective calls for each rank."""

    finished = Counter()
    """Calls of all runs whose ranks agreed to the end, by kind, on rank 0."""

    def __init__(self, size):
        super().__init__(size)
        self.tallies, self.points = {}, {}

    def leave(self, rank):
        super().leave(rank)
        if rank not in self.tallies:  # a test has a communicator of its own
            return
        self.tallies[rank].compare("the end")
        if rank == 0:
            for (_, kind), n in self.tallies[rank].counts.items():
                self.finished[kind] += n


class CountingCommunicator(threads.ThreadCommunicator):
    """A `ThreadCommunicator` whose collective calls are counted in its rank's tally."""

    def __init__(self, world: CountingWorld, rank: int, context: tuple[int, ...] = ()) -> None:
        super().__init__(world, rank, context)
        if rank not in world.tallies:
            world.tallies[rank] = Tally(world, rank)
            _rank.tally = world.tallies[rank]


def _counted(kind):
    method = getattr(threads.ThreadCommunicator, kind)

    @functools.wraps(method)
    def call(self, *args, **options):
        self._world.tallies[self.rank].add(self._context, kind)
        return method(self, *args, **options)

    return call


for _kind in COLLECTIVES:
    setattr(CountingCommunicator, _kind, _counted(_kind))
_rank = threading.local()
_step = TrainingStep.__call__


@functools.wraps(_step)
def _compared_step(self, *args, **options):
    loss = _step(self, *args, **options)
    tally = getattr(_rank, "tally", None)
    if tally is not None and self.comm.size == tally.world.size:
        tally.n_steps += 1
        tally.compare(f"step {tally.n_steps}")
    return loss


def count_collectives(monkeypatch):
    """Let `threads.run` count collective calls, and compare them after each training step and at the end of a run."""
    monkeypatch.setattr(threads, "_World", CountingWorld)
    monkeypatch.setattr(threads, "ThreadCommunicator", CountingCommunicator)
    monkeypatch.setattr(TrainingStep, "__call__", _compared_step)

"""Checks that every communicator must pass; every rank calls a check with its communicator, for any number of ranks."""

import numpy as np
import pytest

from sarlite.comm import agree, together
from sarlite.errors import DataError, PeerError, SarliteError
from tests.helpers.comm import comm_collectives, comm_messages


def check_freed_duplicates(comm):
    for _ in range(3):
        other = comm.dup()
        other.channel("a").barrier()
        late = [one.start_recv(np.empty(1), (comm.rank + 1) % comm.size) for one in (other, other.channel("a")) if comm.size > 1]
        other.free()
        for request in late:
            with pytest.raises(PeerError, match="cancelled"):
                request.wait()
    comm.barrier()


def check_together(comm):
    assert together(comm, lambda: comm.rank) == comm.rank
    last = comm.size - 1
    for error in (DataError("edges"), ZeroDivisionError("edges"), _Own("edges", 3)):

        def fail(error=error):
            if comm.rank == last:
                raise error
            return comm.rank

        mine, kind = comm.rank == last, type(error) if isinstance(error, SarliteError) else PeerError
        with pytest.raises(type(error) if mine else DataError if kind is _Own else kind, match="edges") as caught:
            together(comm, fail)
        assert (caught.value is error) == mine and (mine or f"rank {last}" in str(caught.value))
    comm.barrier()


class _Own(DataError):
    """Error whose constructor takes two arguments, so that another rank cannot build it again from its message."""

    def __init__(self, text, number):
        super().__init__(text + str(number))


def check_agree(comm):
    def values(rank):
        other, array = rank == 1, np.arange(100).reshape(10, 10)
        arrays = [array + other, array.reshape(5, 20) if other else array, array.astype("i4") if other else array]
        return [*arrays, b"ac" if other else b"ab", ("sar", [1, other]), {"mode": "sa" if other else "sar"}, 1 + other]

    for same, mine in zip(values(0), values(comm.rank)):
        assert agree(comm, same, "thing") == agree(comm, same, "thing")
        if comm.size > 1:
            with pytest.raises(DataError, match="thing is not the same .*: rank 1 and rank 0"):
                agree(comm, mine, "thing")
    assert agree(comm, np.array([None]), "objects") != agree(comm, np.array([1], object), "objects")
    assert agree(comm, {"a": 1, "b": 2}, "dict") == agree(comm, {"b": 2, "a": 1}, "dict")
    assert agree(comm, (b"a", b"b"), "sequence") != agree(comm, (b"ab",), "sequence")


CHECKS = {name: value for module in (vars(comm_messages), vars(comm_collectives), globals())
          for name, value in [*module.items()] if name.startswith("check_")}
NEED_A_PEER = {  # these checks send to the next rank, and `Solo` has no other rank
    name
    for name in CHECKS
    if name
    not in {
        "check_gather",
        "check_gathers_that_cannot_be_are_refused_everywhere",
        "check_allreduce",
        "check_allreduce_is_the_same_everywhere",
        "check_allreduce_is_refused_together",
        "check_objects",
        "check_values_are_copies",
        "check_errors_are_raised_together",
        "check_thread_beside_collectives",
        "check_alltoall",
        "check_alltoall_of_much_and_nothing",
        "check_alltoall_is_refused_together",
        "check_broadcast",
        "check_broadcast_is_refused_together",
        "check_started_reduction",
        "check_started_reduction_is_the_same_everywhere",
        "check_started_reduction_is_refused_together",
        "check_thread_inside_broadcast",
        "check_a_reduction_is_not_cancelled",
        "check_freed_duplicates",
        "check_together",
        "check_agree",
    }
}

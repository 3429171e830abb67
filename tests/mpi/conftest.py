"""Collective calls of each rank under MPI are counted, and compared after each test."""

import threading
from collections import Counter

import pytest

from tests.helpers.comm.counting_communicator import COLLECTIVES


@pytest.fixture(autouse=True)
def _ranks_make_the_same_collectives(monkeypatch):
    """Fail a test if one rank makes a collective call that another rank does not make."""
    from mpi4py import MPI

    from sarlite.comm.mpi import MpiCommunicator

    counts, thread = Counter(), threading.get_ident()

    def counted(kind, method):
        def call(self, *args, **options):
            counts[kind] += threading.get_ident() == thread  # further threads may call at any time
            return method(self, *args, **options)

        return call

    for kind in COLLECTIVES:
        monkeypatch.setattr(MpiCommunicator, kind, counted(kind, getattr(MpiCommunicator, kind)))
    yield
    of_ranks = MPI.COMM_WORLD.allgather(counts)
    assert all(counts == of_ranks[0] for counts in of_ranks), f"ranks made other collective calls: {of_ranks}"

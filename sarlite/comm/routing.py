"""Rows that go to the ranks which they concern, and answers that come back."""

from collections.abc import Callable

import numpy as np

from sarlite.comm.protocol import Communicator
from sarlite.types import Array


def send(comm: Communicator, rank: Array, rows: Array) -> Array:
    """Return the rows that all ranks sent here, by sender: this rank's row i goes to rank[i]. Collective."""
    return np.concatenate(_sent(comm, rank, rows)[1])


def ask(comm: Communicator, rank: Array, questions: Array, answer: Callable[[Array], Array]) -> Array:
    """Return the answer of rank[i] to this rank's row i of questions. Collective.

    Parameters
    ----------
    rank : (n,) int
    questions : (n, ...) array
    answer : callable
        Of the questions of one rank: an array of as many rows, of one dtype and width on every rank.
    """
    order, asked = _sent(comm, rank, questions)
    told = np.concatenate(comm.alltoall([np.ascontiguousarray(answer(part)) for part in asked]))
    found = np.empty_like(told)
    found[order] = told
    return found


def _sent(comm, rank, rows):
    """Return the order for sending this rank's rows, and the rows received from each rank. Collective."""
    order = np.argsort(rank, kind="stable")
    ends = np.searchsorted(rank[order], np.arange(1, comm.size))
    return order, comm.alltoall([np.ascontiguousarray(own) for own in np.split(rows[order], ends)])

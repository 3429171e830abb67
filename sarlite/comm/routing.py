"""Functions that send each row of an array to the rank chosen for the row, and that return an answer for each row."""

from collections.abc import Callable

import numpy as np

from sarlite.comm.protocol import Communicator
from sarlite.types import Array


def send(comm: Communicator, rank: Array, rows: Array) -> Array:
    """Send rows[i] to rank rank[i], and return the rows that this rank received, ordered by sending rank. Collective.

    Parameters
    ----------
    rank : (n,) int
    rows : (n, ...) array

    Examples
    --------
    >>> from sarlite.comm import threads
    >>> threads.run(2, lambda comm: send(comm, np.array([1, 0]), np.array([10, 20]) + comm.rank).tolist())
    [[20, 21], [10, 11]]
    """
    return np.concatenate(_sent(comm, rank, rows)[1])


def ask(comm: Communicator, rank: Array, questions: Array, answer: Callable[[Array], Array]) -> Array:
    """Send questions[i] to rank rank[i], which calls `answer` on all questions from one rank. Return the answer to each question, in
    the order of `questions`. Collective.

    Parameters
    ----------
    rank : (n,) int
    questions : (n, ...) array
    answer : callable (questions) -> array
        Answers the questions that this rank received from one rank, with a row for each question. The dtype and the
        shape of a row are the same on every rank.

    Returns
    -------
    (n, ...) array
    """
    order, asked = _sent(comm, rank, questions)
    received = np.concatenate(comm.alltoall([np.ascontiguousarray(answer(part)) for part in asked]))
    answers = np.empty_like(received)
    answers[order] = received
    return answers


def _sent(comm, rank, rows):
    """Send rows[i] to rank rank[i]. Return (`order`, `received`): the rows were sent in the order rows[order], sorted by target rank, and
    received[q] has the rows that arrived from rank q. Collective.
    """
    order = np.argsort(rank, kind="stable")
    ends = np.searchsorted(rank[order], np.arange(1, comm.size))
    return order, comm.alltoall([np.ascontiguousarray(part) for part in np.split(rows[order], ends)])

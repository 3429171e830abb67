"""What operations, bytes and messages take on this machine: a few measurements, and the seconds that they make."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.comm import Communicator
from sarlite.numerics.reductions import product
from sarlite.sar.schedule.messages import pack
from sarlite.train.costs import Segment
from sarlite.types import Array

_MESSAGE, _COMPUTED, _REPEATS, _DEGREE = 1 << 20, 1 << 22, 3, 16


class Rates(NamedTuple):
    """Seconds to pack a byte, to send one, of a message, of an operation of a product, to sum up a byte of an edge's
    row.
    """

    packing: float
    sending: float
    message: float
    flop: float
    summing: float


def rates_of(comm: Communicator) -> Rates:
    """Measure the `Rates`; the slowest rank's, the same on all. Collective.

    Sends a few messages of up to 1 MiB to the next rank, multiplies 4 MiB of rows by a square matrix, and sums them
    over edges.
    """
    rows = np.ones((_COMPUTED // 256, 64), np.float32)
    index = np.random.default_rng(0).permutation(len(rows)).astype(np.int32)
    packing = _least(lambda: pack((rows,), index)) / rows.nbytes
    weight = np.ones((rows.shape[1], rows.shape[1]), rows.dtype)
    flop = _least(lambda: product(rows, weight)) / (2 * rows.size * len(weight))
    ends, sources, out = np.arange(len(rows) + 1) * _DEGREE, np.tile(index, _DEGREE), np.zeros_like(rows)
    summing = _least(lambda: kernels.spmm(ends, sources, rows, out)) / (_DEGREE * rows.nbytes)

    rows = rows[: _MESSAGE // 256]

    def exchange(array):
        got = np.empty_like(array)
        channel = comm.channel("rates")
        for request in (channel.start_recv(got, (comm.rank + 1) % comm.size, 1),
                        channel.start_send(array, (comm.rank - 1) % comm.size, 1)):
            request.wait()

    if comm.size == 1:
        return Rates(packing, 0.0, 0.0, flop, summing)
    comm.barrier()
    message = _least(lambda: exchange(rows[:1]))
    sending = max(_least(lambda: exchange(rows)) - message, 0.0) / rows.nbytes
    return Rates(*map(float, np.max(comm.allgather((packing, sending, message, flop, summing)), 0)))


def _least(action: Callable[[], Any]) -> float:
    times = []
    for _ in range(_REPEATS + 1):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def in_step(tiles: Array, prefetch: int, n_pieces: int = 1) -> float:
    """Return what an aggregation takes until the last rank is done, where rank p takes tiles[p, j] in stage j of mode
    `broadcast`.

    A stage begins when each rank has a buffer for its rows: without prefetch when all have done the one before, so that
    it takes the sum over stages of the largest tile; with prefetch k they have done the one k + 1 before, and each its
    own tile at first.
    Where stages come in `n_pieces`, alike, a piece begins when all have done the one k stages and a piece before.
    """
    work, ahead = tiles.copy(), prefetch * n_pieces
    done = [np.diag(tiles) if prefetch else np.zeros(len(tiles))]
    if prefetch:
        np.fill_diagonal(work, 0)
    for j, own in enumerate(np.repeat(work.T / n_pieces, n_pieces, axis=0)):
        begins = done[j - ahead].max() if j > ahead else 0.0
        done.append(np.maximum(done[-1], begins) + own)
    return float(done[-1].max())


def seconds_of(segment: Segment, rates: Rates, waited_edges: float = 0.0) -> float:
    """Return what a segment takes one rank: operations, bytes in memory, messages, one after the other; and the time
    that sums over other ranks' edges take, for which the rank waits.
    """
    return (rates.flop * segment.flops + rates.summing * (segment.touched_bytes + waited_edges * segment.row_bytes)
            + rates.packing * segment.packed_bytes + rates.sending * segment.received.total()
            + rates.message * segment.n_messages)

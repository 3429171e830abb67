"""Checks of `Pusher`, which pushes rows to peers, that every communicator must pass; every rank calls a check."""

import hashlib
import threading
import time

import numpy as np

from sarlite.errors import SarliteError
from sarlite.minibatch.hec.push import PIECE_BYTES, Pusher
from sarlite.minibatch.hec.sending import SendLists, choose
from sarlite.profile import Profile

EARLIER: list[threading.Thread] = []  # threads of earlier tests


def push_threads():
    return [thread for thread in threading.enumerate() if thread.name == "sarlite-push-rows" and thread not in EARLIER]


def message(rank, peer, step, layer, width=3, dtype=np.float32):
    """Return the test message of a step and layer from `rank` to `peer`: (positions in the peer's cache, steps of rows or None, rows).

    The number of rows depends on the step and on both ranks, and is often 0. In odd layers each row has a step of its own.
    """
    n = (3 * rank + 5 * peer + 2 * step + layer) % 5 * (rank != peer)
    slots = np.arange(n, dtype=np.int32) * 2 + rank
    row_steps = step - slots.astype(np.int64) if layer % 2 else None
    rows = 1000 * step + 100 * layer + 10 * rank + peer + np.arange(n * width).reshape(n, width) / 64
    return slots, row_steps, rows.astype(dtype)


def messages(comm, step, layer, **options):
    return [message(comm.rank, peer, step, layer, **options) for peer in range(comm.size)]


def check_result(comm, received, step, layer, **options):
    """Check that `received`, one entry per rank, equals the `message` of this step and layer from each rank to this rank, bit by bit."""
    assert len(received) == comm.size
    for peer, (slots, row_steps, rows) in enumerate(received):
        right = message(peer, comm.rank, step, layer, **options)
        assert slots.dtype == np.int32 and slots.tolist() == right[0].tolist()
        assert (row_steps == step) if right[1] is None else (row_steps.dtype == np.int64 and row_steps.tolist() == right[1].tolist())
        assert (rows.dtype, rows.shape, rows.tobytes()) == (right[2].dtype, right[2].shape, right[2].tobytes())
        assert rows.flags.aligned and slots.flags.aligned and rows.flags.c_contiguous


def pusher_of(comm):
    return Pusher(comm.channel("embeddings"), Profile())


def check_results_late(comm):
    """Check the results of pushes that are taken two steps after their submission."""
    pusher, layers = pusher_of(comm), range(3)
    for step in range(8):
        for layer in layers:
            assert pusher.submit(step, layer, messages(comm, step, layer)) >= 0
            if step >= 2:
                check_result(comm, pusher.take(step - 2, layer), step - 2, layer)
    left = pusher.drain()
    assert [(step, layer) for step, layer, _ in left] == [(step, layer) for step in (6, 7) for layer in layers]
    for step, layer, received in left:
        check_result(comm, received, step, layer)
    assert pusher.drain() == []
    pusher.close()


def check_results_within_the_step(comm):
    pusher = pusher_of(comm)
    for step in range(8):
        pusher.submit(step, 1, messages(comm, step, 1))
        check_result(comm, pusher.take(step, 1), step, 1)
    pusher.close()


def check_any_order_of_taking(comm):
    pusher, jobs = pusher_of(comm), [(step, layer) for step in range(5) for layer in range(2)]
    for job in jobs:
        pusher.submit(*job, messages(comm, *job))
    for job in np.random.default_rng(comm.rank).permutation(jobs).tolist()[:7]:
        check_result(comm, pusher.take(*job), *job)
    assert len(pusher.drain()) == 3
    pusher.close()


def check_rows_of_any_kind(comm):
    pusher, kinds = pusher_of(comm), [(1, np.float32), (7, np.float64), (0, np.float32), (3, np.float16), (5, np.uint8)]
    for step, (width, dtype) in enumerate(kinds):
        pusher.submit(step, 1, messages(comm, step, 1, width=width, dtype=dtype))
        check_result(comm, pusher.take(step, 1), step, 1, width=width, dtype=dtype)
    rows = np.arange(24.0).reshape(2, 3, 4)
    pusher.submit(99, 0, [(np.arange(2), None, rows[:, :, ::2])] * comm.size)  # more axes, not contiguous, slots of int64
    for slots, row_step, pushed in pusher.take(99, 0):
        assert slots.tolist() == [0, 1] and row_step == 99 and pushed.tolist() == rows[:, :, ::2].tolist()
    pusher.close()


def check_messages_of_many_pieces(comm):
    """Check messages that are sent in several pieces, a different number for each pair of ranks; the last piece may be short."""
    pusher = pusher_of(comm)
    counts = [(1 + (rank + peer) % 3) * PIECE_BYTES // 256 + peer - 5 for rank in range(comm.size) for peer in range(comm.size)]
    counts = np.array(counts).reshape(comm.size, comm.size)

    def of(rank, peer):
        n = counts[rank, peer]
        return np.arange(n), None, (np.arange(64 * n, dtype=np.float32) + rank).reshape(n, 64)

    pusher.submit(0, 0, [of(comm.rank, peer) for peer in range(comm.size)])
    for peer, (slots, row_steps, rows) in enumerate(pusher.take(0, 0)):
        assert slots.tolist() == of(peer, comm.rank)[0].tolist() and row_steps == 0 and (rows == of(peer, comm.rank)[2]).all()
    pusher.close()


def check_nothing_is_borrowed(comm):
    pusher = pusher_of(comm)
    submitted = messages(comm, 3, 1)
    pusher.submit(3, 1, submitted)
    for slots, row_steps, rows in submitted:
        slots[:], row_steps[:], rows[:] = -1, -1, np.nan
    check_result(comm, pusher.take(3, 1), 3, 1)
    pusher.close()


def check_close_works_off_what_was_submitted(comm):
    pusher = pusher_of(comm)
    for step in range(20):
        pusher.submit(step, 0, messages(comm, step, 0))
    pusher.close()
    for step, layer, received in pusher.drain():
        check_result(comm, received, step, layer)


def check_jobs_that_are_not_there(comm):
    """Check that taking a result that was not submitted, and submitting a push twice, raise errors."""
    pusher = pusher_of(comm)
    pusher.submit(0, 0, messages(comm, 0, 0))
    pusher.take(0, 0)
    pusher.submit(1, 0, messages(comm, 1, 0))
    for wrong in (lambda: pusher.take(0, 0), lambda: pusher.take(1, 1), lambda: pusher.submit(1, 0, messages(comm, 1, 0))):
        try:
            wrong()
        except SarliteError as error:
            assert "submitted" in str(error)
        else:
            raise AssertionError("not refused")
    check_result(comm, pusher.take(1, 0), 1, 0)
    pusher.close()


def check_slots_name_the_peer_s_halo(comm):
    """Check that the cache slots to which an owner sends rows (by `SendLists` and `choose`) belong to the rows that the peer needs."""
    rng, n_local = np.random.default_rng(50 + comm.rank), 40
    needs = [np.flatnonzero(rng.random(n_local) < 0.5 * (q != comm.rank)) for q in range(comm.size)]
    lists, pusher = SendLists(comm.alltoall(needs)), pusher_of(comm)
    batch = rng.permutation(n_local)[:30]
    h, pushed = (100.0 * comm.rank + batch)[:, None], []
    for peer, (places, slots) in enumerate(lists.of(batch)):
        places, slots = choose(places, slots, 6, np.ones(len(places)), 77 + peer, batch[places])
        pushed.append((slots, None, h[places]))
    pusher.submit(0, 0, pushed)
    for owner, (slots, _, rows) in enumerate(pusher.take(0, 0)):
        assert len(slots) <= 6 and rows[:, 0].tolist() == (100 * owner + needs[owner][slots]).tolist()
        assert len(slots) or owner == comm.rank
    pusher.close()


CHECKS = {name: check for name, check in sorted(globals().items()) if name.startswith("check_") and name != "check_result"}


class Delayed:
    """Communicator whose transfers start after a random delay. Its channels delay their transfers, too."""

    def __init__(self, comm, seed):
        self._comm, self._random, self._seed = comm, np.random.default_rng([seed, comm.rank]), seed

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def channel(self, name):
        return Delayed(self._comm.channel(name), self._seed)

    def _late(self):
        time.sleep(self._random.exponential(0.003) * (self._random.random() < 0.3))

    def start_recv(self, array, peer):
        self._late()
        return self._comm.start_recv(array, peer)

    def start_send(self, array, peer):
        self._late()
        return self._comm.start_send(array, peer)


def training(comm, delay, n_steps=12):
    """Push and update rows as training does, with rows that arrive `delay` steps later; return a hash of this rank's final rows."""
    pusher, h = pusher_of(comm), np.arange(12.0).reshape(4, 3) + comm.rank
    for step in range(n_steps):
        for layer in range(2):
            keep = np.flatnonzero((np.arange(4) + step + layer + comm.rank) % 3)
            pushed, nothing = (keep, None, h[keep]), (keep[:0], None, h[:0])
            pusher.submit(step, layer, [nothing if peer == comm.rank else pushed for peer in range(comm.size)])
            if step >= delay:
                for peer, (slots, row_step, rows) in enumerate(pusher.take(step - delay, layer)):
                    assert row_step == step - delay
                    h[slots] = np.tanh(h[slots] + rows / (1 + peer)) + 0.1 * layer
    for _, _, received in pusher.drain():
        for slots, _, rows in received:
            h[slots] -= rows
    pusher.close()
    return hashlib.sha256(h.tobytes()).hexdigest()

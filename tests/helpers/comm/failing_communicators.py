"""Communicators of ranks as threads that fail at any chosen message or collective call of a rank, and tell the other ranks."""

import pickle
import threading
import time

import numpy as np

from sarlite.comm.wire_arrays import REDUCTIONS
from sarlite.errors import PeerError

CHANNELS = ("fetch", "push", "broadcast")


class Fault(Exception):
    """Error that is injected into a communicator."""


class Faulty:
    """Communicator of ranks as threads that raises a Fault at one message or wait of one rank, whose number `arm` chooses.

    A point is the start of a message or a wait for one. A wait fails after the message has come, so that its sender
    may go on. Collectives consist of messages here. After a fault every rank fails where it would wait, as if the
    network had told it, until all ranks call `settle`.
    """

    def __init__(self, comm, alarm, parent=None):
        self._comm, self._alarm, self._root, self._kept = comm, alarm, parent or self, {}
        self.rank, self.size, self.threaded, self.max_tag = comm.rank, comm.size, comm.threaded, comm.max_tag
        self._calls = comm.channel("calls")
        self._n_calls = 0
        if parent is None:
            self._lock, self.points, self.fail_at, self._all = threading.Lock(), 0, None, []
            for name in CHANNELS:  # its constructor waits for all ranks
                self.channel(name)
        self._root._all.append(self)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._comm, name)

    # ---- faults

    def arm(self, fail_at=None):
        """Restart the count of messages and waits, and raise a Fault at number `fail_at`; None means never."""
        self.points, self.fail_at = 0, fail_at

    def settle(self):
        """Wait until all ranks have handled a fault, and reset the fault. Collective.

        If a point was armed, the fault must have happened.
        """
        assert self.fail_at is None or self.points >= self.fail_at, f"{self.points} points: the fault never struck"
        self.arm()
        self._comm.barrier()
        self._alarm.clear()
        for each in self._all:
            each._n_calls = 0
            each._calls.drain()
        self._comm.barrier()

    def _point(self):
        root = self._root
        with root._lock:
            root.points += 1
            fails = root.points == root.fail_at
        if fails:
            self._alarm.set()
            raise Fault(f"at point {root.fail_at}")

    # ---- messages

    def channel(self, name):
        if name not in self._kept:
            self._kept[name] = Faulty(self._comm.channel(name), self._alarm, self._root)
        return self._kept[name]

    def start_send(self, array, peer, tag=0):
        self._point()
        return Request(self, [self._comm.start_send(array, peer, tag)])

    def start_recv(self, array, peer, tag=0):
        self._point()
        return Request(self, [self._comm.start_recv(array, peer, tag)])

    # ---- collectives

    def start_broadcast(self, array, root):
        self._point()
        self._n_calls += 1
        others = [rank for rank in range(self.size) if rank != self.rank]
        if self.rank == root:
            return Request(self, [self._calls.start_send(array, rank, self._n_calls) for rank in others])
        return Request(self, [self._calls.start_recv(array, root, self._n_calls)])

    def allgather(self, value):
        objects = []
        for root in range(self.size):
            mine = np.frombuffer(pickle.dumps(value), np.uint8) if root == self.rank else None
            length = np.array([len(mine) if root == self.rank else 0])
            self.start_broadcast(length, root).wait()
            data = mine if root == self.rank else np.empty(length[0], np.uint8)
            self.start_broadcast(data, root).wait()
            objects.append(pickle.loads(data.tobytes()))
        return objects

    def alltoall(self, arrays):
        return [arrays_of_rank[self.rank] for arrays_of_rank in self.allgather(arrays)]

    def allreduce(self, array, op="sum"):
        gathered = self.allgather(array)
        array[...] = REDUCTIONS[op].reduce(np.stack(gathered), axis=0)
        return array

    def bcast(self, value, root=0):
        return self.allgather(value)[root]

    def barrier(self):
        self.allgather(None)

    def broadcast(self, array, root):
        self.start_broadcast(array, root).wait()
        return array


class Request:
    """Request of one or several transfers, whose `wait` may raise an injected fault, or a PeerError if another rank has failed."""

    def __init__(self, comm, requests):
        self._comm, self._requests = comm, requests

    def wait(self):
        while not self.test():
            time.sleep(2e-5)
        for request in self._requests:
            request.wait()
        self._comm._point()

    def test(self):
        done = all(request.test() for request in self._requests)
        if not done and self._comm._alarm.is_set():
            raise PeerError("the network tells of a failure")
        return done

    def cancel(self):
        for request in self._requests:
            request.cancel()

"""The peers of a trial: mirror images of its one rank."""

from collections import Counter
from typing import Any

from sarlite.comm import Solo
from sarlite.comm.requests import Staged


class Mirror(Solo):
    """A communicator of ranks that all do as this one: of what goes to a peer the like comes from it, of rows zeros.

    Parameters
    ----------
    rank, size : int
    sent : Counter, optional
        Counts "messages" that are sent, a broadcast once.
    """

    def __init__(self, rank: int, size: int, sent: Any = None) -> None:
        self.rank, self.size, self.sent = rank, size, Counter[str]() if sent is None else sent
        self._echoes: Any = None

    def start_send(self, array: Any, peer: int, tag: int = 0) -> Any:
        self.sent["messages"] += 1
        if self._echoes is not None:
            self._echoes.setdefault((peer, tag), []).append(array.copy())
        return Staged(iter(()))

    def start_recv(self, array: Any, peer: int, tag: int = 0) -> Any:
        if self._echoes is not None:
            return _Echo(self._echoes.setdefault((peer, tag), []), array)
        array[...] = 0
        return Staged(iter(()))

    def start_broadcast(self, array: Any, root: int) -> Any:
        self.sent["messages"] += 1
        if root != self.rank:
            array[...] = 0
        return Staged(iter(()))

    def broadcast(self, array: Any, root: int) -> Any:
        return array

    def alltoall(self, arrays: list[Any]) -> list[Any]:
        return [array.copy() for array in arrays]

    def allgather(self, value: Any) -> list[Any]:
        return [value] * self.size

    def allreduce(self, array: Any, op: str = "sum") -> Any:
        if op == "sum":
            array *= self.size
        return array

    def start_allreduce(self, array: Any, op: str = "sum") -> Any:
        self.allreduce(array, op)
        return Staged(iter(()))

    def channel(self, name: str) -> Any:
        """Return a channel. What is pushed on "embeddings" names itself in its messages, so it comes back as sent."""
        kept = self.__dict__.setdefault("_channels", {})
        if name not in kept:
            kept[name] = Mirror(self.rank, self.size, self.sent)
            kept[name]._echoes = {} if name.startswith("embeddings") else None
        return kept[name]


class _Echo:
    """The request of a receive: done once the like was sent."""

    def __init__(self, sent, array):
        self._sent, self._array = sent, array

    def test(self):
        if self._array is not None and self._sent:
            self._array[...] = self._sent.pop(0)
            self._array = None
        return self._array is None

    wait = test

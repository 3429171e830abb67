"""The base of every communicator: duplicates and groups that are kept by name, and `gather`."""

import weakref
from collections.abc import Callable
from typing import Any

from sarlite.errors import ShapeError
from sarlite.types import Array

MAX_TAG = 2**31 - 1
"""The largest tag of communicators whose tags are Python's numbers."""


class Channels:
    """Gives a communicator `channel` by its `dup`, `group` by its `split`, and `gather` by its `alltoall`."""

    dup: Callable[[], Any]
    split: Callable[[int], Any]
    alltoall: Callable[[list[Array]], list[Array]]
    allgather: Callable[[Any], list[Any]]
    rank: int
    size: int

    def gather(self, array: Array, root: int = 0) -> list[Array] | None:
        good = root in range(self.size) and bool(getattr(array, "ndim", False))
        calls = self.allgather(f"to rank {root}" if good else f"of no rows, or to rank {root}")
        if len(set(calls)) > 1 or not calls[0].startswith("to"):
            told = ", ".join(f"gather {call} on rank {rank}" for rank, call in enumerate(calls)
                             if call != calls[0] or not rank)
            raise ShapeError(f"{told}: one rank of {self.size} must be the root, and arrays have rows")
        found = self.alltoall([array if rank == root else array[:0] for rank in range(self.size)])
        return found if self.rank == root else None

    def channel(self, name: str) -> Any:
        kept = self.__dict__.setdefault("_channels", {})
        if name not in kept:
            kept[name] = self.dup()
        return kept[name]

    def group(self, name: str, colour: int) -> Any:
        kept = self.__dict__.setdefault("_channels", {})
        if ("group", name) not in kept:
            kept["group", name] = self.split(colour)
        return kept["group", name]

    def numbered(self, name: str, holder: Any) -> int:
        held = self.__dict__.setdefault("_holders", {}).setdefault(name, {})
        number = max(self.allgather(max((k + 1 for k, living in held.items() if living() is not None), default=0)))
        held[number] = weakref.ref(holder)
        return number

    def free_channels(self) -> None:
        """Free every channel and group. Collective."""
        for channel in self.__dict__.pop("_channels", {}).values():
            channel.free()

    def drain_channels(self) -> None:
        """Drain every channel and group, so that threads which wait for messages there come out of MPI. Collective."""
        for channel in self.__dict__.get("_channels", {}).values():
            channel.drain()
            if channel is not self:  # a `Solo` is its own channel
                channel.drain_channels()

"""The communicator of one rank alone."""

from typing import Any, NoReturn

from sarlite.comm.buffers import alltoall_call, broadcast_call, check_reduction
from sarlite.comm.channels import MAX_TAG, Channels
from sarlite.comm.protocol import Request
from sarlite.comm.requests import Staged
from sarlite.types import Array


class Solo(Channels):
    """The communicator of one rank alone."""

    rank, size, threaded, max_tag = 0, 1, True, MAX_TAG

    def start_send(self, array: Array, peer: int, tag: int = 0) -> Request:
        raise ValueError("one rank has no peer")

    start_recv = start_send

    def drain(self) -> None:
        pass

    def alltoall(self, arrays: list[Array]) -> list[Array]:
        alltoall_call(arrays, 1)
        return [arrays[0].copy()]

    def broadcast(self, array: Array, root: int) -> Array:
        broadcast_call(array, root, 0, 1)
        return array

    def start_broadcast(self, array: Array, root: int) -> Request:
        self.broadcast(array, root)
        return Staged(iter(()))

    def start_allreduce(self, array: Array, op: str = "sum") -> Request:
        check_reduction(array, op)
        return Staged(iter(()))

    def allreduce(self, array: Array, op: str = "sum") -> Array:
        return array

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def bcast(self, value: Any, root: int = 0) -> Any:
        return value

    def barrier(self) -> None:
        pass

    def dup(self) -> "Solo":
        return self

    def split(self, colour: int) -> "Solo":
        return self

    def free(self) -> None:
        pass

    def abort(self, reason: Any) -> NoReturn:
        raise SystemExit(reason)

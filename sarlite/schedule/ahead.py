"""A thread that makes items before they are needed and stays a bounded number of items ahead."""

import contextvars
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar, cast

from sarlite import kernels
from sarlite.types import T

S = TypeVar("S")


class Ahead(Generic[T]):
    """A thread that runs a generator a bounded number of items ahead of its consumer.

    Parameters
    ----------
    produce : callable (leave) -> iterator
        Generator function. It calls `leave()` before it makes each item, and ends if that returns False.
    room : int
        Number of items that may be made before the first `release`.
    name : str
        Name of the thread.

    Notes
    -----
    The thread may make `room` items and one more for each `release`, and makes them all even after `stop`. A collective
    generator therefore ends after the same item on all ranks. `stop(at_once=True)` takes back unused permissions. An
    exception of the generator is raised by `take` or by `finish`.
    """

    def __init__(self, produce: Callable[[Callable[..., bool]], Iterator[T]], room: int, name: str) -> None:
        self._ready: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._leaves: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._goes_on = self._wanted = True
        for _ in range(room):
            self._leaves.put(True)
        context = contextvars.copy_context()  # the consumer's buffers are the thread's
        self._thread = threading.Thread(target=context.run, args=(self._work, produce), name=name, daemon=True)
        self._thread.start()

    def _work(self, produce):
        try:
            kernels.set_threads(1)  # this thread's own; a second team would fight for the cores with the computing one
            for item in produce(self._leave):
                if self._wanted:
                    self._ready.put((item, None))
                del item
            self._ready.put((None, StopIteration()))
        except BaseException as error:  # handed to the consumer, which raises it
            self._ready.put((None, error))

    def _leave(self, wait=True):
        """Wait until one more item may be made. Return False if the thread must end.

        Without `wait` also return False if no item may be made yet.
        """
        if self._goes_on:
            try:
                self._goes_on = self._leaves.get(block=wait)
            except queue.Empty:
                return False
        return self._goes_on

    def take(self) -> T:
        """Return the next item. Raise the generator's exception, or StopIteration at its end."""
        item, error = self._ready.get()
        if error is not None:
            raise error
        return cast(T, item)

    def release(self) -> None:
        """Let the thread make one more item."""
        self._leaves.put(True)

    def stop(self, at_once: bool = False) -> None:
        """Ask the thread to end; the caller takes no further items."""
        if at_once:
            self._wanted = False
            with suppress(queue.Empty):
                while True:
                    self._leaves.get(block=False)
        self._leaves.put(False)

    def wait(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def finish(self) -> None:
        """Wait until the thread has ended, after the last item was taken.

        Raise any exception that the generator raised after that item.
        """
        self.wait()
        while not self._ready.empty():
            _, error = self._ready.get()
            if error is not None and not isinstance(error, StopIteration):
                raise error


def ahead(make: Callable[[S], T], items: Iterable[S], n: int) -> Generator[T, None, None]:
    """Yield make(item) for each item; a thread computes up to `n` items ahead.

    With n = 0 each value is computed when it is requested, without a thread. An exception of `make` is raised in place
    of its value. The thread has ended when the iterator is closed or exhausted.
    """
    if n == 0:
        yield from map(make, items)
        return

    def produce(leave):
        for item in items:
            if not leave():
                return
            yield make(item)

    thread = Ahead(produce, n, "sarlite-sample")
    try:
        while True:
            thread.release()
            try:
                value = thread.take()
            except StopIteration:
                return
            yield value
            del value
    finally:
        thread.stop()
        thread.wait()

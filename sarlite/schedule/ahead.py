"""A thread that runs a generator a bounded number of items ahead of its consumer."""

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
    produce : callable (may_continue) -> iterator
        Generator function. The generator calls `may_continue()` before each item, and ends if the result is False.
    room : int
        Number of items that the generator may produce before the first `release`.
    name : str
        Name of the thread.

    Notes
    -----
    The generator may produce `room` items, and one more for each `release`. It produces all of them, even after `stop`,
    so a generator with collective calls ends after the same item on all ranks. `stop(at_once=True)` withdraws the
    permission for items that are not produced yet. `take` or `finish` raises an exception of the generator.
    """

    def __init__(self, produce: Callable[[Callable[..., bool]], Iterator[T]], room: int, name: str) -> None:
        self._ready: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._permits: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._goes_on = self._wanted = True
        for _ in range(room):
            self._permits.put(True)
        context = contextvars.copy_context()  # the thread allocates from the consumer's buffer pool
        self._thread = threading.Thread(target=context.run, args=(self._work, produce), name=name, daemon=True)
        self._thread.start()

    def _work(self, produce):
        try:
            kernels.set_threads(1)  # for this thread only: a second team of threads would compete for the cores
            for item in produce(self._may_continue):
                if self._wanted:
                    self._ready.put((item, None))
                del item
            self._ready.put((None, StopIteration()))
        except BaseException as error:  # passed to the consumer, whose `take` or `finish` raises it
            self._ready.put((None, error))

    def _may_continue(self, wait=True):
        """Return True once the consumer has permitted the generator to produce one more item; False if the generator must end. With
        wait=False the call returns at once, with False if there is no permit yet.
        """
        if self._goes_on:
            try:
                self._goes_on = self._permits.get(block=wait)
            except queue.Empty:
                return False
        return self._goes_on

    def take(self) -> T:
        """Return the generator's next item, and wait for it if need be. Raise the generator's exception, or StopIteration at its end."""
        item, error = self._ready.get()
        if error is not None:
            raise error
        return cast(T, item)

    def release(self) -> None:
        """Permit the generator to produce one more item."""
        self._permits.put(True)

    def stop(self, at_once: bool = False) -> None:
        """Ask the thread to end after the items that the consumer has already permitted it to produce; with `at_once`, after the item in
        progress.

        The caller must not take further items after `at_once`.
        """
        if at_once:
            self._wanted = False
            with suppress(queue.Empty):
                while True:
                    self._permits.get(block=False)
        self._permits.put(False)

    def wait(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def finish(self) -> None:
        """Wait until the thread has ended; raise any exception that the generator raised after the last item taken."""
        self.wait()
        while not self._ready.empty():
            _, error = self._ready.get()
            if error is not None and not isinstance(error, StopIteration):
                raise error


def ahead(make: Callable[[S], T], items: Iterable[S], n: int) -> Generator[T, None, None]:
    """Yield make(item) for each of `items` in order, while a thread computes up to `n` values ahead of the consumer.

    Parameters
    ----------
    make : callable (item) -> value
        Called in the thread. An exception of `make` is raised to the consumer in place of the value.
    items : iterable
    n : int
        Number of values computed ahead. With 0 each value is computed when it is requested, without a thread.

    Notes
    -----
    The thread has ended once the iterator is closed or exhausted.

    Examples
    --------
    >>> list(ahead(lambda k: k * k, [1, 2, 3], 1))
    [1, 4, 9]
    """
    if n == 0:
        yield from map(make, items)
        return

    def produce(may_continue):
        for item in items:
            if not may_continue():
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

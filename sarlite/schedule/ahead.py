"""A thread that makes things before they are asked for, and stays a bounded number ahead."""

import contextvars
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any

from sarlite import kernels


class Ahead:
    """A thread that runs a generator, at most as far ahead as it has leave for.

    Parameters
    ----------
    produce : callable (leave) -> iterator
        A generator function. It calls `leave()` before it makes an item, and ends where that returns False.
    room : int
        Items that may be made before the first `release`.
    name : str
        Of the thread.

    Notes
    -----
    The thread makes the items that it was given leave for, `room` and one more for each `release`, also where it is
    stopped: so a generator that is collective ends where all ranks stop after the same item. `stop(at_once=True)` takes
    back leave that was not used. What the generator raises is raised by `take`, or by `finish`.
    """

    def __init__(self, produce: Callable[[Callable[..., bool]], Iterator[Any]], room: int, name: str) -> None:
        self._ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
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
        """Wait until one more item may be made; return whether it may.

        Without `wait` return False also where none may be made now.
        """
        if self._goes_on:
            try:
                self._goes_on = self._leaves.get(block=wait)
            except queue.Empty:
                return False
        return self._goes_on

    def take(self) -> Any:
        """Return the next item. Raises what the generator raised, or StopIteration at its end."""
        item, error = self._ready.get()
        if error is not None:
            raise error
        return item

    def release(self) -> None:
        """Let the thread make one more item."""
        self._leaves.put(True)

    def stop(self, at_once: bool = False) -> None:
        """Let the thread end; no further item is taken."""
        if at_once:
            self._wanted = False
            with suppress(queue.Empty):
                while True:
                    self._leaves.get(block=False)
        self._leaves.put(False)

    def wait(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    def finish(self) -> None:
        """Wait for the thread's end, after its last item was taken.

        Raises what the generator raised after that item.
        """
        self.wait()
        while not self._ready.empty():
            _, error = self._ready.get()
            if error is not None and not isinstance(error, StopIteration):
                raise error


def ahead(make: Callable[[Any], Any], items: Iterable[Any], n: int) -> Generator[Any, None, None]:
    """Yield make(item) for each item, made by a thread that is up to `n` items ahead.

    With an n of 0 each is made when it is asked for. What `make` raises is raised here, in its place. When the iterator
    is closed or at its end, the thread has ended.
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

"""A thread that makes things before they are asked for."""

import itertools
import queue
import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any

from sarlite import kernels


def ahead(make: Callable[[Any], Any], items: Iterable[Any], n: int) -> Generator[Any, None, None]:
    """Yield make(item) for each item, made by a thread that is up to `n` items ahead; 0 makes each when it is asked for.

    What `make` raises is raised here, in its place. When the iterator is closed or at its end, the thread has ended.

    Notes
    -----
    The thread makes what the consumer has given leave for, `n` + 1 items and one more for each that it took, also when the iterator is
    closed: so a `make` that is collective ends where all ranks close after the same item.
    """
    if n == 0:
        yield from map(make, items)
        return
    ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
    leave: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def work():
        try:
            kernels.set_threads(1)  # this thread's own; a second team would fight for the cores with the computing one
            for item in items:
                if not leave.get():
                    return
                ready.put((True, make(item)))
            ready.put((False, None))
        except BaseException as error:  # handed to the consumer, which raises it
            ready.put((False, error))

    for _ in itertools.repeat(None, n):
        leave.put(True)
    thread = threading.Thread(target=work, name="sarlite-sample", daemon=True)
    thread.start()
    try:
        while True:
            leave.put(True)
            made, value = ready.get()
            if not made:
                if value is not None:
                    raise value
                return
            yield value
            del value
    finally:
        leave.put(False)
        thread.join()

"""A thread that makes things before they are asked for."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sarlite import kernels


def ahead(make: Callable[[Any], Any], items: Iterable[Any], n: int) -> Iterator[Any]:
    """Yield make(item) for each item, made by a thread that is up to `n` items ahead; 0 makes each when it is asked for.

    What `make` raises is raised here, in its place. When the iterator is closed or at its end, the thread has ended.
    """
    if n == 0:
        yield from map(make, items)
        return
    ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
    free, stopped = threading.Semaphore(n), threading.Event()

    def work():
        try:
            kernels.set_threads(1)  # this thread's own; a second team would fight for the cores with the computing one
            for item in items:
                free.acquire()
                if stopped.is_set():
                    return
                ready.put((True, make(item)))
            ready.put((False, None))
        except BaseException as error:  # handed to the consumer, which raises it
            ready.put((False, error))

    thread = threading.Thread(target=work, name="sarlite-sample", daemon=True)
    thread.start()
    try:
        while True:
            made, value = ready.get()
            if not made:
                if value is not None:
                    raise value
                return
            free.release()
            yield value
            del value
    finally:
        stopped.set()
        free.release()
        thread.join()

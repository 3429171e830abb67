"""`Staged`, a non-blocking request that does several requests one after the other. All communicators use this class."""

import threading
from collections.abc import Iterator

from sarlite.comm.protocol import Request


class Staged(Request):
    """Request of work in several steps, such as a check and then a reduction; each step starts when the step before it is done.

    Parameters
    ----------
    steps : generator of requests
        Each item is the request of one step. The constructor starts the first step; `wait` and `test` start the others.
        `wait` raises an exception of the generator.
    """

    def __init__(self, steps: Iterator[Request]) -> None:
        self._steps, self._turn, self._error = steps, threading.Lock(), None
        self._advance()

    def wait(self) -> None:
        with self._turn:
            while self._request is not None:
                self._request.wait()
                self._advance()
        if self._error is not None:
            raise self._error

    def test(self) -> bool:
        if not self._turn.acquire(blocking=False):
            return False  # another thread advances the steps
        try:
            while self._request is not None and self._request.test():
                self._advance()
            return self._request is None
        finally:
            self._turn.release()

    def _advance(self):
        try:
            self._request = next(self._steps, None)
        except Exception as error:  # noqa: BLE001, because `wait` raises it
            self._request, self._error = None, error

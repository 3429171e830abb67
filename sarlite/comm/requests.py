"""Requests that all communicators share."""

import threading
from collections.abc import Iterator

from sarlite.comm.protocol import Request


class Staged(Request):
    """The request of work in several steps, each of which is started when the step before is done.

    Parameters
    ----------
    steps : generator of requests
        The first step is started here, the others by whoever waits or tests. `wait` raises what the generator raises.
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
            return False  # another thread is at it
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

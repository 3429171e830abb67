"""What is recorded and who watches: contexts, each of one thread."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

_clock = itertools.count()  # creation order is a topological order of the tape


class _State(threading.local):
    """What holds in this thread; changed by the contexts below alone."""

    grad = True
    retained = False
    observers: tuple["Observer", ...] = ()
    readers: tuple["Reads", ...] = ()


state = _State()


@contextmanager
def _set(name, value):
    before = getattr(state, name)
    setattr(state, name, value)
    try:
        yield
    finally:
        setattr(state, name, before)


def now() -> int:
    """Return a time after everything recorded so far and before everything recorded later."""
    return next(_clock)


def grad_enabled() -> bool:
    return state.grad


def set_grad(enabled: bool) -> AbstractContextManager[None]:
    """Return a context in which operations are recorded, or are not."""
    return _set("grad", enabled)


def no_grad() -> AbstractContextManager[None]:
    """Return a context in which nothing is recorded."""
    return set_grad(False)


def retained() -> bool:
    """Whether the backward pass that runs now may run again: what a vjp reads must stay as it is."""
    return state.retained


def retaining(again: bool) -> AbstractContextManager[None]:
    """Return a context for a backward pass that may, or may not, run again."""
    return _set("retained", again)


# ---- observers


class Application(NamedTuple):
    """One run of a primitive, as an observer gets it. `inputs` are tensors and arrays as given, `result` is the tensor."""

    name: str
    inputs: tuple
    params: dict
    needs: tuple
    result: object


class Observer:
    """What sees each primitive that this thread runs; a subclass overrides what it wants to see.

    A primitive may run others inside, as an aggregation with a Python message does: calls nest.
    """

    def forward(self, name: str, params: dict[str, Any]) -> AbstractContextManager[Any]:
        """Return a context to enter while the primitive computes."""
        return nullcontext()

    def backward(self, name: str, params: dict[str, Any]) -> AbstractContextManager[Any]:
        """Return a context to enter while its vjp computes."""
        return nullcontext()

    def applied(self, application: Application) -> None:
        """Take what was just recorded (or, under `no_grad`, only computed)."""


def observed(observer: "Observer") -> AbstractContextManager[None]:
    """Return a context in which `observer` sees what this thread computes, inside of the observers that are there."""
    return _set("observers", (*state.observers, observer))


# ---- reading values that come from remote rows


class Reads:
    """Whether the values of a volatile tensor were read outside of the tape."""

    def __init__(self) -> None:
        self.seen = False


@contextmanager
def watch_reads() -> Iterator[Reads]:
    """Yield a `Reads`, whose `seen` becomes True where this thread reads a volatile tensor's values: `.data`, `numpy()`, `item()`,
    `bool`, `float`, `np.asarray`, DLPack. The tape cannot follow such values, so what is computed with them counts as dependent on
    remote rows (case 2)."""
    reads = Reads()
    with _set("readers", (*state.readers, reads)):
        yield reads


def note_read() -> None:
    """Tell all that watch that a volatile tensor was read."""
    for reads in state.readers:
        reads.seen = True

"""Contexts that say what is recorded and who watches. Each holds for the thread that enters it."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

_clock = itertools.count()  # creation order is a topological order of the tape


class _State(threading.local):
    """What holds in this thread. The contexts below alone change it."""

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
    """Whether the backward pass that runs now may run again. Then what a vjp reads must stay as it is."""
    return state.retained


def retaining(again: bool) -> AbstractContextManager[None]:
    """Return a context for a backward pass that may, or may not, run again."""
    return _set("retained", again)


# ---- observers


class Application(NamedTuple):
    """One run of a primitive, for an observer: `inputs` are tensors and arrays as given, `result` is a tensor."""

    name: str
    inputs: tuple
    params: dict
    wants_grad: tuple
    result: Any


class Observer:
    """Sees each primitive that this thread runs. A subclass overrides the methods of what it wants to see.

    A primitive may run others inside, as an aggregation with a Python message does: calls nest.
    """

    def forward(self, name: str, params: dict[str, Any]) -> AbstractContextManager[Any]:
        """Return a context to enter while the primitive computes."""
        return nullcontext()

    def backward(self, name: str, params: dict[str, Any]) -> AbstractContextManager[Any]:
        """Return a context to enter while the primitive's vjp computes."""
        return nullcontext()

    def applied(self, application: Application) -> None:
        """Take an application that was just recorded, or under `no_grad` only computed."""


def observed(observer: "Observer") -> AbstractContextManager[None]:
    """Return a context in which `observer` sees what this thread computes.

    Observers that are there already stay outside.
    """
    return _set("observers", (*state.observers, observer))


# ---- reading values that come from remote rows


class Reads:
    """Whether the values of a volatile tensor were read outside of the tape."""

    def __init__(self) -> None:
        self.seen = False


@contextmanager
def watch_reads() -> Iterator[Reads]:
    """Yield a `Reads`, whose `seen` becomes True where this thread reads a volatile tensor's values.

    Values are read by `.data`, `numpy()`, `item()`, `bool`, `float`, `np.asarray` and DLPack. The tape cannot follow
    values that were read, so results that are computed with them count as dependent on remote rows (case 2). """
    reads = Reads()
    with _set("readers", (*state.readers, reads)):
        yield reads


def note_read() -> None:
    """Tell every watcher that a volatile tensor was read."""
    for reads in state.readers:
        reads.seen = True

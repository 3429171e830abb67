"""Contexts that control recording and observers. Each context affects only the thread that enters it."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

_clock = itertools.count()  # creation order is a topological order of the tape


class _State(threading.local):
    """Recording state of this thread. Only the contexts below change it."""

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
    """Return a context that turns the recording of operations on or off."""
    return _set("grad", enabled)


def no_grad() -> AbstractContextManager[None]:
    """Return a context that turns the recording of operations off."""
    return set_grad(False)


def retained() -> bool:
    """Return True if the current backward pass may run again. A vjp must then leave its residuals unchanged."""
    return state.retained


def retaining(again: bool) -> AbstractContextManager[None]:
    """Return a context for a backward pass; `again` is True if the pass may run again."""
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
    """Observer of the primitives that this thread runs. A subclass overrides the methods for the events it needs.

    Calls nest if a primitive runs other primitives, as an aggregation with a Python message does.
    """

    def forward(self, name: str, params: dict[str, Any]) -> AbstractContextManager[Any]:
        """Return a context to enter while the primitive computes."""
        return nullcontext()

    def backward(self, name: str, params: dict[str, Any]) -> AbstractContextManager[Any]:
        """Return a context to enter while the primitive's vjp computes."""
        return nullcontext()

    def applied(self, application: Application) -> None:
        """Receive an application that was just recorded, or only computed under `no_grad`."""


def observed(observer: "Observer") -> AbstractContextManager[None]:
    """Return a context that registers `observer` for the operations of this thread.

    The contexts of observers that are already registered enclose those of `observer`.
    """
    return _set("observers", (*state.observers, observer))


# ---- reading values that come from remote rows


class Reads:
    """Flag that becomes True when the values of a volatile tensor are read outside the tape."""

    def __init__(self) -> None:
        self.seen = False


@contextmanager
def watch_reads() -> Iterator[Reads]:
    """Yield a `Reads`; its `seen` becomes True when this thread reads the values of a volatile tensor.

    Values are read by `.data`, `numpy()`, `item()`, `bool`, `float`, `np.asarray` and DLPack. The tape cannot follow
    values that were read, so results that are computed with them count as dependent on remote rows (case 2).
    """
    reads = Reads()
    with _set("readers", (*state.readers, reads)):
        yield reads


def note_read() -> None:
    """Set `seen` of every active `Reads`: the values of a volatile tensor were read."""
    for reads in state.readers:
        reads.seen = True

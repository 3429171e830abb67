"""Contexts that turn recording on and off, and observers of operations. A context affects only its own thread."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

_clock = itertools.count()  # creation order is a topological order of the tape


class _State(threading.local):
    """Settings of this thread, which only the contexts of this module change. `grad` is True while operations are recorded,
    `retained` while the backward pass may run again; `observers` and `readers` are the active `Observer` and `Reads` objects.
    """

    grad = True
    retained = False
    observers: tuple["Observer", ...] = ()
    readers: tuple["Reads", ...] = ()


state = _State()


@contextmanager
def _set(name: str, value: object) -> Iterator[None]:
    """Return a context that sets `name`, one of this thread's settings in `state`, to `value`, and restores it at its end."""
    before = getattr(state, name)
    setattr(state, name, value)
    try:
        yield
    finally:
        setattr(state, name, before)


def now() -> int:
    """Return the next integer of a counter, used as a time: of two nodes or tensors, the newer one has the larger time."""
    return next(_clock)


def grad_enabled() -> bool:
    """Return True if this thread records operations on the tape."""
    return state.grad


def set_grad(enabled: bool) -> AbstractContextManager[None]:
    """Return a context with the recording of this thread's operations on if `enabled`, else off."""
    return _set("grad", enabled)


def no_grad() -> AbstractContextManager[None]:
    """Return a context without recording: results of operations have `requires_grad` False, and keep no residuals.

    Returns
    -------
    context manager
        Context for one use, which affects the calling thread only.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Tensor, no_grad
    >>> x = Tensor(np.ones(2), requires_grad=True)
    >>> with no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """
    return set_grad(False)


def retained() -> bool:
    """Return True during a backward pass after which the same tape may be passed again. A vjp must then leave the values kept for
    it (residuals) unchanged.
    """
    return state.retained


def retaining(again: bool) -> AbstractContextManager[None]:
    """Return a context, until whose end `retained()` returns `again`: True during a backward pass after which the same tape may be
    passed again.
    """
    return _set("retained", again)


# ---- observers


class Application(NamedTuple):
    """One call of a primitive, with its inputs and result: what an `Observer`, such as a profiler, receives.

    Attributes
    ----------
    name : str
        Name of the primitive.
    inputs : tuple of Tensor, array, number or None
    params : dict
        Keyword arguments of the primitive's functions.
    wants_grad : tuple of bool
        True for each input, and then for each further sink, that wants a gradient.
    result : Tensor
    """

    name: str
    inputs: tuple[object, ...]
    params: dict[str, object]
    wants_grad: tuple[bool, ...]
    result: object


class Observer:
    """Base class of objects that are told of each primitive that this thread runs, such as profilers. A subclass overrides the
    methods for the events that it needs.

    Calls nest if a primitive runs other primitives, as an aggregation with a Python message does.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import Tensor
    >>> class Printer(Observer):
    ...     def applied(self, application):
    ...         print(application.name)
    >>> with observed(Printer()):
    ...     _ = (Tensor(np.ones(2)) * 2).sum()
    mul
    sum
    """

    def forward(self, name: str, params: dict[str, object]) -> AbstractContextManager[object]:
        """Return a context that is active while the primitive `name` computes its result with the keyword arguments `params`."""
        return nullcontext()

    def backward(self, name: str, params: dict[str, object]) -> AbstractContextManager[object]:
        """Return a context that is active while the vjp of the primitive `name`, called with `params`, computes gradients."""
        return nullcontext()

    def applied(self, application: Application) -> None:
        """Receive a primitive's call with its inputs and result, after the result is computed, even if the tape does not record it."""


def observed(observer: "Observer") -> AbstractContextManager[None]:
    """Return a context; until its end the methods of `observer` are called for each primitive that this thread runs.

    If several observers are registered, the contexts that they return are nested, the first observer's outermost.
    """
    return _set("observers", (*state.observers, observer))


# ---- reading values that come from remote rows


class Reads:
    """Flag `seen`, False until code reads values of a volatile tensor (computed from remote rows) outside the tape, as `numpy()` does."""

    def __init__(self) -> None:
        self.seen = False


@contextmanager
def watch_reads() -> Iterator[Reads]:
    """Return a context that yields a `Reads`. Its flag `seen` becomes True when this thread reads, outside the tape, values that
    were computed from remote rows.

    The flag `seen` becomes True when values of a volatile tensor are read by `.data`, `numpy()`, `item()`, `bool`,
    `float`, `np.asarray` or DLPack. The tape cannot record computations with such values, so the message counts as
    dependent on remote rows (case 2).
    """
    reads = Reads()
    with _set("readers", (*state.readers, reads)):
        yield reads


def note_read() -> None:
    """Set the flag `seen` of every active `Reads` of this thread, because the values of a volatile tensor are read."""
    for reads in state.readers:
        reads.seen = True

"""The table of primitives, and the node that one application of a primitive leaves on the tape."""

import enum
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any, NamedTuple

from sarlite.numerics import current
from sarlite.tape.recording import now, state


class Owned(enum.Enum):
    """Whose the arrays are that a vjp returns; see `engine`."""

    NO = "they may be g, or share memory with each other or with what others hold"
    YES = "each is new, and no two share memory"
    AS_G = "each is new, g itself, or a view of g; views do not overlap, but g itself may come more than once"


class Primitive(NamedTuple):
    """A row of the table.

    `adds` tells that vjp takes `into`: for each sink None, or an array to which vjp adds and which it returns.
    `takes_rows` tells that forward may be given `kernels.Rows` in place of an array; forward does not write to their
    table. """

    forward: Callable[..., Any]
    vjp: Callable[..., Any] | None
    owned: Owned = Owned.NO
    adds: bool = False
    takes_rows: bool = False


PRIMITIVES: dict[str, Primitive] = {}


def primitive(name: str, forward: Callable[..., Any], vjp: Callable[..., Any] | None, *, owned: Owned = Owned.NO,
              adds: bool = False, takes_rows: bool = False) -> None:
    """Enter a primitive into the table."""
    if name in PRIMITIVES:
        raise ValueError(f"primitive {name!r} is defined twice")
    PRIMITIVES[name] = Primitive(forward, vjp, owned, adds, takes_rows)


class Changes:
    """How often the values of a tensor were changed. Its views, and what `detach` returns, share the count.

    `lost` tells whether the values are gone, as a primitive's result was written over them.
    """

    __slots__ = ("count", "shape", "lost")

    def __init__(self, shape: tuple[int, ...], count: int = 0) -> None:
        self.count, self.shape, self.lost = count, shape, False

    def check(self) -> None:
        """Raise RuntimeError where the values are gone."""
        if self.lost:
            raise RuntimeError(f"the values of a tensor of shape {self.shape} are gone: another operation's result was "
                               "written over them, as add_to= and overwrite= do. Use that result, or leave these out")


class Node:
    """One recorded application: what its vjp needs, and where its gradients go.

    Attributes
    ----------
    sinks : list of Node, Tensor (a leaf) or None
    volatile : bool
        A residual may depend on remote rows.
    changes : Changes
        The result's.
    read : tuple of (Changes, int)
        The changes of each tensor whose values the vjp will read, and their count when the node was recorded.
    replicated : bool
        As the result is.
    numerics : numerics, or None
        Those of the forward pass, which the vjp has too.
    """

    __slots__ = ("name", "sinks", "needs", "residuals", "params", "time", "volatile", "changes", "read", "replicated",
                 "numerics", "__weakref__")

    def __init__(self, name, sinks, needs, residuals, params, volatile, changes, read, replicated=False):
        self.name, self.sinks, self.needs, self.changes, self.read = name, sinks, needs, changes, read
        self.residuals, self.params, self.volatile = residuals, params, volatile
        self.replicated, self.numerics, self.time = replicated, current(), now()

    def pull(self, g, into):
        """Return a gradient for each sink; `into(sink)` is an array that may be added to, or None."""
        self.check()
        entry = PRIMITIVES[self.name]
        options = {"into": [into(sink) for sink in self.sinks]} if entry.adds else {}
        numerics = _UNSEEN if self.numerics is None else self.numerics.backward(self)
        with watched("backward", self.name, self.params), numerics:
            return entry.vjp(g, self.needs, self.residuals, **options, **self.params)

    def check(self):
        """Raise RuntimeError where the vjp would not find what forward left."""
        if self.residuals is None:
            raise RuntimeError(f"the tape of {self.name!r} was already used by backward(); "
                               "its first call takes retain_graph=True")
        for changes, count in self.read:
            if changes.count != count:
                raise RuntimeError(
                    f"{self.name!r} needs values that have changed since: a tensor of shape {changes.shape} was at "
                    f"version {count}, and is at {changes.count}. Call backward() before a step, a load or a new `data`"
                )

    def release(self):
        """Let go of all that may hold arrays. The node cannot be used again."""
        self.residuals = self.params = None
        self.read = ()


_UNSEEN = nullcontext()


def watched(way, name, params):
    """Return the contexts of all observers around one call; `way` is "forward" or "backward"."""
    if not state.observers:
        return _UNSEEN
    with ExitStack() as stack:
        for observer in state.observers:
            stack.enter_context(getattr(observer, way)(name, params))
        return stack.pop_all()

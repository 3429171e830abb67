"""The table of primitives, and the node that one application of a primitive leaves on the tape."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from sarlite.numerics import current
from sarlite.numerics.placement import Placement
from sarlite.tape.recording import now, state


class Primitive(NamedTuple):
    """A row of the table: a pair of functions over arrays.

    Attributes
    ----------
    forward : callable
        forward(wants_grad, *arrays, **params) returns (output, residuals). `wants_grad[i]` is True if input i wants a
        gradient, so that a primitive keeps only the residuals that it will use.
    vjp : callable or None
        vjp(g, wants_grad, residuals, **params) returns a gradient for each input: an array, a `Summand`, or None. A
        vjp may overwrite g if g is writable. None for a primitive without gradient.
    """

    forward: Callable[..., Any]
    vjp: Callable[..., Any] | None


PRIMITIVES: dict[str, Primitive] = {}
"""The table primitive -> vjp."""
OPERATIONS: dict[str, Callable[..., Any]] = {}
"""Dense operations by name: what the operators and methods of `Tensor` call."""


def primitive(name: str, forward: Callable[..., Any], vjp: Callable[..., Any] | None) -> None:
    """Register a primitive in the table.

    Parameters
    ----------
    name : str
    forward, vjp : callable
        See `Primitive`.

    Raises
    ------
    ValueError
        If the table has a primitive of this name.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import PRIMITIVES, Tensor, apply, primitive
    >>> def forward(wants_grad, x):
    ...     return x**3, (x,)
    >>> def vjp(g, wants_grad, residuals):
    ...     return (3 * g * residuals[0]**2,)
    >>> primitive("cube", forward, vjp)
    >>> x = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    >>> apply("cube", x).sum().backward()
    >>> x.grad
    array([ 3., 12.])
    >>> del PRIMITIVES["cube"]
    """
    if name in PRIMITIVES:
        raise ValueError(f"primitive {name!r} is defined twice")
    PRIMITIVES[name] = Primitive(forward, vjp)


class Changes:
    """Counter of changes to a tensor's values, shared with the tensor's views and with detached tensors.

    Attributes
    ----------
    count : int
    shape : tuple of int
        The shape of the tensor, for error messages.
    lost : bool
        True if a primitive's result was written over the values.
    """

    __slots__ = ("count", "shape", "lost")

    def __init__(self, shape: tuple[int, ...], count: int = 0) -> None:
        self.count, self.shape, self.lost = count, shape, False

    def check(self) -> None:
        """Raise RuntimeError if another result was written over the values."""
        if self.lost:
            raise RuntimeError(f"the values of a tensor of shape {self.shape} are gone: another operation's result was "
                               "written over them, as add_to= and overwrite= do. Use that result, or leave these out")


class Node:
    """One recorded application of a primitive: the residuals for its vjp, and the sinks of its gradients.

    Attributes
    ----------
    sinks : list of Node, Tensor (a leaf) or None
        Where the gradient of each input goes.
    wants_grad : tuple of bool
        True for each input that has a sink.
    volatile : bool
        True if a residual may depend on remote rows.
    changes : Changes
        The changes of the result.
    read : tuple of (Changes, int)
        The changes of each tensor whose values the vjp will read, and their count when the node was recorded.
    placement : Placement
        The placement of the result.
    numerics : Numerics or None
        The numerics of the forward pass, which the vjp uses too.
    time : int
        When the node was recorded; see `recording.now`.
    """

    __slots__ = ("name", "sinks", "wants_grad", "residuals", "params", "time", "volatile", "changes", "read",
                 "placement", "numerics", "__weakref__")

    def __init__(self, name: str, sinks: list[Any], wants_grad: tuple[bool, ...], residuals: Sequence[Any],
                 params: dict[str, Any], *, volatile: bool, changes: Changes, read: tuple[tuple[Changes, int], ...],
                 placement: Placement) -> None:
        self.name, self.sinks, self.wants_grad, self.changes, self.read = name, sinks, wants_grad, changes, read
        self.residuals: Sequence[Any] | None = residuals
        self.params: dict[str, Any] | None = params
        self.volatile, self.placement = volatile, placement
        self.numerics, self.time = current(), now()

    def vjp(self, cell: list[np.ndarray]) -> Sequence[Any]:
        """Return a gradient for each sink.

        The gradient of the result is removed from `cell`, so that only the vjp refers to it.
        """
        self.check()
        function = PRIMITIVES[self.name].vjp
        assert function is not None and self.params is not None
        return function(cell.pop(), self.wants_grad, self.residuals, **self.params)

    @contextmanager
    def backward_context(self) -> Iterator[None]:
        """Enter the numerics of the forward pass, where observers see the vjp."""
        numerics = nullcontext() if self.numerics is None else self.numerics.backward(self)
        with watched("backward", self.name, self.params), numerics:
            yield

    def check(self) -> None:
        """Raise RuntimeError if the residuals are freed or if values that the vjp reads have changed since."""
        if self.residuals is None:
            raise RuntimeError(f"the tape of {self.name!r} was already used by backward(); "
                               "its first call takes retain_graph=True")
        for changes, count in self.read:
            if changes.count != count:
                raise RuntimeError(
                    f"{self.name!r} needs values that have changed since: a tensor of shape {changes.shape} was at "
                    f"version {count}, and is at {changes.count}. Call backward() before a step, a load or a new `data`"
                )

    def release(self) -> None:
        """Free everything that may hold arrays. The node cannot be used again."""
        self.residuals = self.params = None
        self.read = ()


def watched(way: str, name: str, params: dict[str, Any] | None) -> AbstractContextManager[Any]:
    """Return the contexts of all observers around one call; `way` is "forward" or "backward"."""
    if not state.observers:
        return nullcontext()
    with ExitStack() as stack:
        for observer in state.observers:
            stack.enter_context(getattr(observer, way)(name, params))
        return stack.pop_all()

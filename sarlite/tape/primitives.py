"""The table of primitives, and the node that one application of a primitive leaves on the tape."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol, Union

from sarlite.numerics import current
from sarlite.numerics.placement import Placement
from sarlite.tape.recording import now, state
from sarlite.tape.summands import RowGradient, Summand
from sarlite.types import Array

Gradient = Array | Summand
"""A gradient as a vjp returns it: an array, or a compact form that can become an array."""


class Primitive(NamedTuple):
    """Entry of the table of primitives: a function `forward` over arrays, and `vjp`, which computes the gradients of its inputs
    from the gradient of its output (vector-Jacobian product).

    Attributes
    ----------
    forward : callable
        forward(wants_grad, *arrays, **params) returns (output, residuals). `wants_grad[i]` is True if input i wants a
        gradient, so that a primitive keeps only the residuals that its vjp will use.
    vjp : callable or None
        Vector-Jacobian product: vjp(g, wants_grad, residuals, **params) returns a gradient for each input, an array, a
        `Summand`, or None. A vjp may overwrite g if g is writable. None for a primitive without gradient.
    """

    forward: Callable[..., tuple[Array, Sequence[object]]]
    vjp: Callable[..., Sequence[Gradient | None]] | None


PRIMITIVES: dict[str, Primitive] = {}
"""The table of primitives by name."""
OPERATIONS: dict[str, Callable[..., Any]] = {}
"""Dense operations by name, which the operators and methods of `Tensor` call. `ops` fills the table."""


def primitive(name: str, forward: Callable[..., tuple[Array, Sequence[object]]],
              vjp: Callable[..., Sequence[Gradient | None]] | None) -> None:
    """Add the primitive `name` to the table `PRIMITIVES`: a function `forward` over arrays, and `vjp`, which computes the gradients
    of its inputs from the gradient of its output (None for no gradients).

    Parameters
    ----------
    name : str
    forward, vjp : callable
        See `Primitive`.

    Raises
    ------
    ValueError
        The table has a primitive with this name.

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
    """Counter of in-place changes to the values of a tensor. Tensors that share the values, such as views, share the counter.

    Attributes
    ----------
    count : int
        Number of changes so far.
    shape : tuple of int
        Shape of the tensor, for error messages.
    lost : bool
        True if a primitive's result was written over the values.
    """

    __slots__ = ("count", "shape", "lost")

    def __init__(self, shape: tuple[int, ...], count: int = 0) -> None:
        self.count, self.shape, self.lost = count, shape, False

    def check(self) -> None:
        """Raise a RuntimeError if another operation's result was written over the tensor's values."""
        if self.lost:
            raise RuntimeError(f"the values of a tensor of shape {self.shape} are gone: another operation's result was "
                               "written over them, as add_to= and overwrite= do. Use that result, or leave these out")


class Leaf(Protocol):
    """Interface of a tensor that wants a gradient and is not the result of a recorded operation; `Tensor` documents the members."""

    grad: Array | None
    time: int
    _changes: Changes

    def add_rows(self, gradient: RowGradient) -> None: ...


Sink = Union["Node", Leaf]
"""A receiver of gradients: the node that computed a tensor, or a leaf itself."""


class Node:
    """Record of one call of a primitive: the values kept for its vjp, and the receivers of its gradients, nodes or leaves.

    Attributes
    ----------
    name : str
        Name of the primitive.
    sinks : list of Node, Tensor or None
        Receiver of the gradient of each input: the node that computed the input, or the input itself if it is a leaf;
        None for an input that wants no gradient.
    wants_grad : tuple of bool
        True for each input that has a sink.
    residuals : sequence, or None
        Values that the forward pass kept for the vjp; None after `release`.
    params : dict, or None
        Keyword arguments of the primitive's functions; None after `release`.
    volatile : bool
        True if a residual may depend on remote rows.
    changes : Changes
        Counter of changes of the result.
    read : tuple of (Changes, int)
        Counter of each tensor whose values the vjp may read, with the count at the time of recording.
    placement : Placement
        Placement of the result.
    numerics : Numerics or None
        Numerics of the forward pass, which the vjp uses too.
    time : int
        Time of recording; see `recording.now`.
    """

    __slots__ = ("name", "sinks", "wants_grad", "residuals", "params", "time", "volatile", "changes", "read",
                 "placement", "numerics", "__weakref__")

    def __init__(self, name: str, sinks: list[Sink | None], wants_grad: tuple[bool, ...],
                 residuals: Sequence[object], params: dict[str, object], *, volatile: bool, changes: Changes,
                 read: tuple[tuple[Changes, int], ...], placement: Placement) -> None:
        self.name, self.sinks, self.wants_grad, self.changes, self.read = name, sinks, wants_grad, changes, read
        self.residuals: Sequence[object] | None = residuals
        self.params: dict[str, object] | None = params
        self.volatile, self.placement = volatile, placement
        self.numerics, self.time = current(), now()

    def vjp(self, cell: list[Gradient]) -> Sequence[Gradient | None]:
        """Return the gradient, or None, of each sink (gradient receiver). `cell` is a list whose only item is the gradient of the
        node's result.

        The gradient is removed from `cell`, so that only the vjp refers to the gradient and may overwrite it.
        """
        self.check()
        function = PRIMITIVES[self.name].vjp
        assert function is not None and self.params is not None
        return function(cell.pop(), self.wants_grad, self.residuals, **self.params)

    @contextmanager
    def backward_context(self) -> Iterator[None]:
        """Return the context for a run of the node's vjp: with the numerics (such as "exact") of the forward pass, and watched by
        this thread's observers.
        """
        numerics = nullcontext() if self.numerics is None else self.numerics.backward(self)
        with watched("backward", self.name, self.params), numerics:
            yield

    def check(self) -> None:
        """Raise a RuntimeError if the residuals are freed, or if values that the vjp reads changed after recording."""
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
        """Free the residuals and everything else that may hold arrays. The node cannot be used again."""
        self.residuals = self.params = None
        self.read = ()


def watched(direction: str, name: str, params: dict[str, object] | None) -> AbstractContextManager[object]:
    """Return a context manager for one call of primitive `name` with keyword arguments `params`, so that this thread's observers,
    such as profilers, see the call. It enters the context that each observer's method `direction`, "forward" or "backward",
    returns.
    """
    if not state.observers:
        return nullcontext()
    with ExitStack() as stack:
        for observer in state.observers:
            stack.enter_context(getattr(observer, direction)(name, params))
        return stack.pop_all()

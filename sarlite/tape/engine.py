"""The tape: tensors, the table of primitives, and the backward pass. It knows no operator.

A primitive is a pair of functions over ndarrays:

    forward(needs, *arrays, **params) -> (out, residuals)
    vjp(g, needs, residuals, **params) -> one gradient (or None) an input

`needs[i]` says whether input i wants a gradient, so that a primitive keeps only the residuals it will use. vjp may overwrite g where
it is writable: then it is nobody else's.
"""

import itertools
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from sarlite import kernels


class Primitive(NamedTuple):
    """A row of the table. `fresh` tells that the arrays which vjp returns are new and all different, so that the engine may add to
    them in place; None, that they are views of g, as new as g is. `adds` tells that vjp takes `into`: for each sink None or an array,
    to which it adds and which it returns."""

    forward: Callable
    vjp: Callable
    fresh: bool | None = False
    adds: bool = False


PRIMITIVES: dict[str, Primitive] = {}

_clock = itertools.count()  # creation order is a topological order of the tape
_mode = threading.local()


def primitive(name, forward, vjp, fresh=False, adds=False):
    """Enter a primitive into the table."""
    if name in PRIMITIVES:
        raise ValueError(f"primitive {name!r} is defined twice")
    PRIMITIVES[name] = Primitive(forward, vjp, fresh, adds)


class Node:
    """One recorded application: what its vjp needs, and where its gradients go."""

    __slots__ = ("name", "sinks", "needs", "residuals", "params", "time", "volatile")

    def __init__(self, name, sinks, needs, residuals, params, volatile):
        self.name, self.sinks, self.needs = name, sinks, needs
        self.residuals, self.params, self.volatile = residuals, params, volatile
        self.time = next(_clock)

    def pull(self, g, into):
        """Return a gradient for each sink; `into(sink)` is an array that may be added to, or None."""
        if self.residuals is None:
            raise RuntimeError(f"the tape of {self.name!r} was already used by backward()")
        entry = PRIMITIVES[self.name]
        options = {"into": [into(sink) for sink in self.sinks]} if entry.adds else {}
        return entry.vjp(g, self.needs, self.residuals, **options, **self.params)


class Tensor:
    """An ndarray whose history the tape keeps.

    Parameters
    ----------
    data : ndarray or anything with `__array__` or `__dlpack__`; float32 or float64 to take part in gradients
        Borrowed, not copied.
    requires_grad : bool
        Whether `backward` fills `grad`.
    constant : bool
        The caller promises that the values never change, so what is computed from them alone may be kept (`Graph.aggregate`).
        `data` is then a read-only view. What operations return is not constant.

    Attributes
    ----------
    grad : ndarray or None
        Accumulated; where it is already an array, it is added to in place.
    """

    __slots__ = ("data", "requires_grad", "grad", "node", "time", "volatile", "constant", "__weakref__")
    __array_priority__ = 1000
    __array_ufunc__ = None  # ndarray <op> Tensor goes to Tensor's reflected operator

    def __init__(self, data, requires_grad=False, *, constant=False):
        self.data = as_array(data)
        if constant:
            if requires_grad:
                raise ValueError("a constant tensor cannot require a gradient: its values never change")
            self.data = self.data.view()
            self.data.flags.writeable = False
        self.constant = bool(constant)
        if requires_grad and self.data.dtype.kind != "f":
            raise TypeError(f"only float tensors have gradients, not {self.data.dtype}")
        self.requires_grad, self.grad, self.node = requires_grad, None, None
        self.volatile = False
        self.time = next(_clock)

    @property
    def shape(self):
        return self.data.shape

    @property
    def dtype(self):
        return self.data.dtype

    @property
    def ndim(self):
        return self.data.ndim

    def __len__(self):
        return len(self.data)

    def __repr__(self):
        return f"Tensor({self.data!r}, requires_grad={self.requires_grad})"

    def numpy(self):
        """Return the ndarray, shared."""
        return self.data

    def item(self):
        return self.data.item()

    def detach(self):
        """Return a tensor of the same data without history."""
        result = Tensor(self.data)
        result.volatile = self.volatile  # the values still come from remote rows
        return result

    def backward(self, g=None):
        """Accumulate d self / d leaf into every leaf's `grad`, and release the tape.

        Parameters
        ----------
        g : ndarray, optional
            Gradient of the loss with respect to this tensor; 1 for a scalar.

        Notes
        -----
        Collective where the tape holds distributed aggregations or norms.
        """
        if g is None:
            if self.data.size != 1:
                raise ValueError(f"backward() of a tensor of shape {self.shape} needs its gradient g")
            g = np.ones_like(self.data)
        if self.requires_grad:
            pull([(self, g)], release=True)

    @property
    def sink(self):
        """Where this tensor's gradient goes: its node, or itself for a leaf; None for a constant."""
        return (self.node or self) if self.requires_grad else None


def as_array(data):
    """Return `data` as an ndarray, without a copy where NumPy or DLPack can share it."""
    if isinstance(data, Tensor):
        return data.data
    if isinstance(data, np.ndarray):
        return data
    if hasattr(data, "__dlpack__") and not hasattr(data, "__array__"):
        return np.from_dlpack(data)
    return np.asarray(data)


def grad_enabled():
    return getattr(_mode, "grad", True)


@contextmanager
def set_grad(enabled):
    before = grad_enabled()
    _mode.grad = enabled
    try:
        yield
    finally:
        _mode.grad = before


def no_grad():
    """Return a context in which nothing is recorded."""
    return set_grad(False)


def apply(name, *inputs, sinks=(), **params):
    """Run the primitive `name` and record it where a gradient can flow.

    Parameters
    ----------
    inputs : Tensor, ndarray or scalar
    sinks : sequence of Node or Tensor
        Further places that the vjp returns gradients for, after those of `inputs`; their values are not passed.
    """
    tensors = [x if isinstance(x, Tensor) else None for x in inputs]
    arrays = [x if t is None else t.data for x, t in zip(inputs, tensors)]
    places = [t.sink if t is not None else None for t in tensors] + list(sinks)
    if not grad_enabled():
        places = [None] * len(places)
    needs = tuple(place is not None for place in places)
    out, residuals = PRIMITIVES[name].forward(needs, *arrays, **params)
    result = Tensor(out)
    result.volatile = any(t is not None and t.volatile for t in tensors)
    if any(needs):
        result.requires_grad = True
        result.node = Node(name, places, needs, residuals, params, result.volatile and _keeps_volatile(tensors, arrays, residuals))
    return result


def _keeps_volatile(tensors, arrays, residuals):
    """Whether a residual may depend on a volatile input: every array but the steady inputs themselves."""
    steady = {id(a) for t, a in zip(tensors, arrays) if t is None or not t.volatile}
    return any(isinstance(r, np.ndarray) and id(r) not in steady for r in residuals)


def reachable(sinks, since=-1):
    """Return the nodes behind `sinks` that were recorded after time `since`, newest first."""
    found, todo = {}, [s for s in sinks if isinstance(s, Node)]
    while todo:
        node = todo.pop()
        if node.time > since and id(node) not in found:
            found[id(node)] = node
            todo.extend(s for s in node.sinks if isinstance(s, Node))
    return sorted(found.values(), key=lambda node: -node.time)


def pull(seeds, since=-1, release=False):
    """Carry gradients back from `seeds` and return what arrives at the ends.

    Parameters
    ----------
    seeds : list of (Tensor, ndarray)
    since : int
        Nodes recorded at or before this time are ends too.
    release : bool
        Free each node's residuals once used, and add what arrives at leaves to their `grad`.

    Returns
    -------
    dict
        Gradient by `id` of the sink, for every end reached.
    """
    grads, owned, ends = {}, set(), {}

    def arrive(sink, g, fresh=False):
        key = id(sink)
        if key in owned and g is grads.get(key):
            return  # vjp has added to it
        if key in grads:
            grads[key] = _sum(grads[key], g, key in owned)
            owned.add(key)
        else:
            grads[key] = g
            owned.discard(key)  # another sink's, which had this address
            if fresh:
                owned.add(key)
        if not isinstance(sink, Node) or sink.time <= since:
            ends[key] = sink

    for tensor, g in seeds:
        if tensor.sink is not None:
            arrive(tensor.sink, g)
    for node in reachable([t.sink for t, _ in seeds], since):
        if id(node) not in grads:
            continue
        fresh = PRIMITIVES[node.name].fresh
        if fresh is None:
            fresh = id(node) in owned
        g = grads.pop(id(node))
        results = node.pull(g if id(node) in owned else _read_only(g), lambda sink: grads.get(id(sink)) if id(sink) in owned else None)
        if release:
            node.residuals = node.params = None  # parameters may hold arrays too
        for sink, g in zip(node.sinks, results):
            if sink is not None and g is not None:
                arrive(sink, g, fresh)
        del results, g
    if release:
        for key, leaf in ends.items():
            _accumulate(leaf, grads[key], key in owned)
    return {key: grads[key] for key in ends}


def _read_only(g):
    g = np.asarray(g).view()
    g.flags.writeable = False
    return g


def same_layout(a, b):
    """Whether two arrays are sums for `kernels.add`: of one float dtype and shape, contiguous."""
    return (a.shape == getattr(b, "shape", None) and a.dtype == b.dtype and a.dtype in (np.float32, np.float64)
            and a.flags.c_contiguous and b.flags.c_contiguous)


def _sum(a, b, in_place):
    """a + b, written over a if `in_place`."""
    if not same_layout(a, b):
        return np.add(a, b, out=a) if in_place else a + b
    out = a if in_place else np.empty(a.shape, a.dtype)
    kernels.add(a, b, out)
    return out


def _accumulate(leaf, g, owned):
    if leaf.grad is None:
        leaf.grad = g if owned else np.array(g)
    else:
        leaf.grad += g


def now():
    """Return a time after everything recorded so far and before everything recorded later."""
    return next(_clock)

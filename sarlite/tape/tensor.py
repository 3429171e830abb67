"""The tape: tensors, the table of primitives, and the backward pass. It knows no operator.

A primitive is a pair of functions over ndarrays:

    forward(needs, *arrays, **params) -> (out, residuals)
    vjp(g, needs, residuals, **params) -> one gradient (or None) an input

`needs[i]` says whether input i wants a gradient, so that a primitive keeps only the residuals it will use.

Ownership. In the backward pass one sum of gradients stands at each sink. The sum is *owned* where the engine holds the
only reference to its memory: so is a sum that the engine made, and an array that a vjp says is new (`Owned`). A g that
is passed on to several sinks is owned by the last sink that takes it. The invariant: *an array is written to only where
it is owned.* Thus
- a vjp gets an owned g writable, and may overwrite it (nobody reads it again), and another g as a read-only view;
- a further gradient is added to an owned sum in place; with a sum that is not owned it makes a new array, which is
  owned;
- a primitive that `adds` gets the owned sums of its sinks in `into` (None where a sink has none), adds to the sums that
  it can, and returns the same arrays: their identity tells the engine that they hold the gradient already;
- a leaf's `grad` becomes the owned sum itself, and a copy of a sum that is not owned.
"""

from collections.abc import Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from sarlite.errors import DataError, ShapeError
from sarlite.kernels import Rows
from sarlite.numerics import current
from sarlite.tape.arraylike import ArrayLike
from sarlite.tape.backward import accumulate, carry
from sarlite.tape.primitives import PRIMITIVES, Changes, Node, watched
from sarlite.tape.recording import Application, note_read, now, retaining, state
from sarlite.types import Array


class Tensor(ArrayLike):
    """An ndarray whose history the tape keeps.

    Parameters
    ----------
    data : ndarray or anything with `__array__` or `__dlpack__`; float32 or float64 to take part in gradients
        Borrowed, not copied.
    requires_grad : bool
        Whether `backward` fills `grad`.
    constant : bool
        The caller promises that the values never change. So results that are computed from them alone may be kept
        (`Graph.aggregate`). `data` is then a read-only view. The result of an operation is not constant.

    Attributes
    ----------
    data : ndarray
        Assigning another one is a change (`changed`).
    grad : ndarray or None
        The sum over all backward passes. Where it is an array already, gradients are added to it in place.
    replicated : bool
        All ranks hold the same values, as of a learned tensor that is not owned by rows, and of what is computed from
        such alone. A numerics asks it.
    version : int
        How often the values were changed; see `changed`. A tensor, its views (`t[1:]`, `t.T`) and the tensors that
        `detach` returns have one count together.

    Notes
    -----
    `==` and the other comparisons are elementwise, as an ndarray's, and return bool tensors without gradient. `bool`,
    `float` and `int` take a tensor of one value. As a key, or in a set, a tensor is compared by identity.
    """

    __slots__ = ("_data", "requires_grad", "grad", "node", "time", "volatile", "constant", "replicated",
                 "_changes", "__weakref__")

    _data: Array
    requires_grad: bool
    grad: Array | None
    node: Node | None
    time: int
    volatile: bool
    constant: bool
    replicated: bool
    rows: Rows | None = None  # see `table_rows`

    def __init__(self, data: Any, requires_grad: bool = False, *, constant: bool = False) -> None:
        data = as_array(data)
        if constant:
            if requires_grad:
                raise ValueError("a constant tensor cannot require a gradient: its values never change")
            data = data.view()
            data.flags.writeable = False
        if requires_grad and data.dtype.kind != "f":
            raise TypeError(f"only float tensors have gradients, not {data.dtype}")
        self._data, self.constant, self.volatile, self.replicated = data, bool(constant), False, False
        self._changes = Changes(data.shape)
        self.requires_grad, self.grad, self.node = requires_grad, None, None
        self.time = now()

    @property
    def data(self) -> Array:
        if self.volatile:
            note_read()
        self._changes.check()
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        value = as_array(value)
        if self.constant:
            raise ValueError("a constant tensor's values never change")
        if self.requires_grad and (value.shape != self.shape or value.dtype != self.dtype):
            new, own = f"{value.dtype} {value.shape}", f"{self.dtype} {self.shape}"
            raise ShapeError(f"the new data {new} do not fit the tensor's {own}")
        self._data = value
        if self._changes.lost:  # of views they still are
            self._changes = Changes(value.shape, self._changes.count)
        self.changed()

    def changed(self) -> None:
        """Tell that the values were changed in place: a backward pass that needs the old values will raise."""
        self._changes.count += 1

    @property
    def version(self) -> int:
        return self._changes.count

    def __repr__(self) -> str:
        name = type(self).__name__
        values = np.array2string(self._data, separator=", ", threshold=20, edgeitems=2, prefix=f"{name}(")
        return f"{name}({values}, shape={self.shape}, dtype={self.dtype}, requires_grad={self.requires_grad})"

    def detach(self) -> "Tensor":
        """Return a tensor of the same data without history."""
        result = Tensor(self._data)
        result.volatile, result.replicated = self.volatile, self.replicated  # the values still come from remote rows
        result._changes = self._changes  # a change of this tensor's values is a change of the result's
        return result

    def backward(self, g: Any = None, *, retain_graph: bool = False) -> None:
        """Accumulate d self / d leaf into every leaf's `grad`.

        Parameters
        ----------
        g : ndarray or Tensor of this tensor's shape and dtype, or a number, optional
            Gradient of the loss with respect to this tensor; 1 for a scalar.
        retain_graph : bool
            Keep the tape for another call; else its residuals are freed on the way.

        Raises
        ------
        ShapeError
            If g has another shape or dtype.
        RuntimeError
            If the tape was used before; if a tensor was changed whose values the backward pass needs. No `grad` is
            touched then.

        Notes
        -----
        Collective where the tape holds distributed aggregations or norms.
        """
        g = self._seed(g)
        if self.requires_grad:
            with retaining(retain_graph):
                arrivals = carry([(self, g)], release=not retain_graph)
            for leaf, found, owned in arrivals.arrived():
                accumulate(leaf, found, owned)

    def _seed(self, g):
        if g is None:
            if self.size != 1:
                raise ValueError(f"backward() of a tensor of shape {self.shape} needs its gradient g")
            return np.ones_like(self._data)
        g = np.asarray(g, self.dtype) if isinstance(g, (int, float)) and not isinstance(g, np.generic) else as_array(g)
        if g.shape != self.shape or g.dtype != self.dtype:
            raise ShapeError(f"g is {g.dtype} {g.shape}, but the tensor is {self.dtype} {self.shape}")
        return g

    @property
    def sink(self) -> Union[Node, "Tensor", None]:
        """Where this tensor's gradient goes: its node, or itself for a leaf; None for a constant."""
        if not self.requires_grad:
            return None
        return self if self.node is None else self.node


Operand = Tensor | npt.ArrayLike  # what operations take


def as_array(data: Any) -> Array:
    """Return `data` as a plain ndarray, without a copy where NumPy or DLPack can share it.

    An `np.matrix` becomes an array, whose `*` and `**` are elementwise. A masked array without masked values does too;
    with such values it is a DataError.
    """
    if type(data) is np.ndarray:
        return data
    if isinstance(data, Tensor):
        return data.data
    if np.ma.is_masked(data):
        raise DataError("a masked array has values that must not count: fill them first, as by .filled(0)")
    if hasattr(data, "__dlpack__") and not hasattr(data, "__array__"):
        return np.from_dlpack(data)
    return np.asarray(data)


# ---- forward


def apply(name: str, *inputs: Any, sinks: Sequence[Any] = (), **params: Any) -> Tensor:
    """Run the primitive `name` and record it where a gradient can flow.

    Parameters
    ----------
    inputs : Tensor, ndarray or scalar
    sinks : sequence of Node or Tensor
        Further places for which the vjp returns gradients, after the gradients of `inputs`; of a Tensor without
        gradient None. Their values are not passed, but the vjp needs them.
    """
    tensors = [x if isinstance(x, Tensor) else None for x in inputs]
    for t in tensors:
        if t is not None and t._changes.lost:
            t._changes.check()
    takes_rows = PRIMITIVES[name].takes_rows
    arrays = [x if t is None else t.rows if takes_rows and t.rows is not None else t._data
              for x, t in zip(inputs, tensors)]
    places = [t.sink if isinstance(t, Tensor) else t for t in (*tensors, *sinks)]
    if not state.grad:
        places = [None] * len(places)
    needs = tuple(place is not None for place in places)
    there = [t for t in tensors if t is not None]
    replicated = bool(there) and all(t.replicated for t in there)
    if (numerics := current()) is not None:
        numerics.check(name, tensors, replicated, params)
    if state.observers:
        with watched("forward", name, params):
            out, residuals = PRIMITIVES[name].forward(needs, *arrays, **params)
    else:
        out, residuals = PRIMITIVES[name].forward(needs, *arrays, **params)
    result = Tensor(out)
    result.volatile, result.replicated = any(t.volatile for t in there), replicated
    for t in tensors if result._data.base is not None else ():
        if t is not None and t.rows is None and np.may_share_memory(result._data, t._data):
            result._changes = t._changes  # a view changes with what it is a view of
    if any(needs):
        result.requires_grad = True
        volatile = result.volatile and _keeps_volatile(tensors, arrays, residuals)
        read = _read(tensors, sinks, residuals, result)
        result.node = Node(name, places, needs, residuals, params, volatile, result._changes, read, replicated)
    for observer in state.observers:
        observer.applied(Application(name, inputs, params, needs, result))
    return result


def written_over(x: Tensor, result: Tensor) -> Tensor:
    """Return `result`, which its primitive has written over x.

    Whatever reads x's values from here on raises, and so does the backward pass of any other operation that needs them.
    """
    if result.node is not None:
        result.node.read = tuple(item for item in result.node.read if item[0] is not x._changes)
    x.changed()
    x._changes.lost = True
    return result


def _keeps_volatile(tensors, arrays, residuals):
    """Whether a residual may depend on a volatile input: every array may, but the inputs that are not volatile."""
    steady = {id(a) for t, a in zip(tensors, arrays) if t is None or not t.volatile}
    found, known = _arrays(residuals)
    return not known or any(id(a) not in steady for a in found)


def _read(tensors, sinks, residuals, result):
    """(changes, count) of each tensor whose values the residuals hold, and of each sink.

    Residuals hold values as an array, or in an object that only the primitive can read; such an object may say that it
    does not hold the result (`keeps_result`). The primitive reads the values of `sinks` in ways of its own. """
    arrays, known = _arrays(residuals)
    tensors = [t for t in tensors if t is not None and not t.constant and t.rows is None
               and (not known or _holds(arrays, t._data))]
    if _holds(arrays, result._data) or any(getattr(value, "keeps_result", False) for value in residuals):
        tensors.append(result)
    changes = [t._changes for t in tensors] + [s.changes if isinstance(s, Node) else s._changes for s in sinks]
    return tuple((c, c.count) for c in changes)


def _holds(arrays, data):
    """Whether `data` or a view of it is among arrays."""
    return any(a is data or (a.base is not None and np.may_share_memory(a, data)) for a in arrays)


_ARRAYS = (np.ndarray, np.generic)
_PLAIN = (type(None), int, float, str, type, np.dtype)


def _arrays(residuals):
    """Return (the arrays in nested tuples and lists, whether there was nothing else that could hold one)."""
    found, known = [], True
    for value in residuals:
        if isinstance(value, _ARRAYS):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            inner, inner_known = _arrays(value)
            found, known = found + inner, known and inner_known
        elif not isinstance(value, _PLAIN):
            known = False
    return found, known

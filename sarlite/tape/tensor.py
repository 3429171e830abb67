"""Tensor: an ndarray whose history the tape records.

The operators and methods of `Tensor` call dense operations by name (`primitives.OPERATIONS`), because the modules that
define the operations import this module.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Union, cast

import numpy as np
import numpy.typing as npt

from sarlite.errors import DataError, ShapeError
from sarlite.kernels import Rows
from sarlite.numerics.placement import PLACEMENTS, UNKNOWN, Placement
from sarlite.tape.backward import accumulate, carry
from sarlite.tape.primitives import OPERATIONS, Changes, Node
from sarlite.tape.recording import note_read, now, retaining
from sarlite.tape.summands import IndexPart, RowGradient
from sarlite.types import Array, ArrayDType, ArrayLike, Axis, DType


class Tensor:
    """An ndarray whose history the tape records, so that `backward` can compute gradients.

    Parameters
    ----------
    data : array_like
        An ndarray, or anything with `__array__` or `__dlpack__`; borrowed, not copied. Only float32 and float64 values
        can have gradients.
    requires_grad : bool
        True if `backward` adds the tensor's gradient to `grad`.
    constant : bool
        True if the caller promises that the values never change. Results that depend on constant values alone may be
        kept and reused (`Graph.aggregate`). `data` is then a read-only view. Results of operations are not constant.
    placement : {"unknown", "rows", "replicated"}
        "rows": axis 0 holds rows that this rank owns. "replicated": all ranks hold the same values. Exact numerics
        refuses gradients through values of unknown placement. The result of an operation is "rows" if one of the inputs
        is, and "replicated" if all inputs are; numbers are not counted.

    Attributes
    ----------
    data : ndarray
        The values. Assigning a new array counts as a change (`changed`).
    grad : ndarray or None
        Sum of the gradients of all backward passes; None before the first. Later gradients are added in place.
    node : Node or None
        Node that computed the tensor; None for a leaf.
    version : int
        Number of changes of the values; see `changed`. A tensor shares the count with its views (`t[1:]`, `t.T`) and
        with the tensors that `detach` returns.
    volatile : bool
        True if the values depend on the source rows of a message, which are not kept for backward.

    Notes
    -----
    Comparisons such as `==` are elementwise, as for an ndarray, and return bool tensors without gradient. `bool`,
    `float` and `int` accept a tensor with one value. As a dict key or in a set, a tensor is compared by identity.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Tensor
    >>> x = Tensor(np.array([1.0, -2.0]), requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    array([ 2., -4.])
    """

    __slots__ = ("_data", "requires_grad", "grad", "node", "time", "volatile", "constant", "placement",
                 "_changes", "__weakref__")

    _data: Array
    requires_grad: bool
    grad: Array | None
    node: Node | None
    time: int
    volatile: bool
    constant: bool
    placement: Placement

    def __init__(self, data: ArrayLike | Rows, requires_grad: bool = False, *, constant: bool = False,
                 placement: Placement = UNKNOWN) -> None:
        array = as_array(data)
        if placement not in PLACEMENTS:
            raise ValueError(f"placement {placement!r} is not one of {', '.join(PLACEMENTS)}")
        if constant:
            if requires_grad:
                raise ValueError("a constant tensor cannot require a gradient: its values never change")
            array = array.view()
            array.flags.writeable = False
        if requires_grad and array.dtype.kind != "f":
            raise TypeError(f"only float tensors have gradients, not {array.dtype}")
        self._data, self.constant, self.volatile, self.placement = array, bool(constant), False, placement
        self._changes = Changes(array.shape)
        self.requires_grad, self.grad, self.node = requires_grad, None, None
        self.time = now()

    @property
    def data(self) -> Array:
        """Values of the tensor, shared and not copied.

        If the tensor is volatile, reading `data` is reported to `recording.watch_reads`.
        """
        if self.volatile:
            note_read()
        self._changes.check()
        return self._data

    @data.setter
    def data(self, value: ArrayLike) -> None:
        array = as_array(value)
        if self.constant:
            raise ValueError("a constant tensor's values never change")
        if self.requires_grad and (array.shape != self.shape or array.dtype != self.dtype):
            new, old = f"{array.dtype} {array.shape}", f"{self.dtype} {self.shape}"
            raise ShapeError(f"the new data {new} do not fit the tensor's {old}")
        self._data = array
        if self._changes.lost:  # a separate counter, because the values of views of the old data stay lost
            self._changes = Changes(array.shape, self._changes.count)
        self.changed()

    def changed(self) -> None:
        """Report that the values were changed in place, so that a backward pass that needs the old values raises a RuntimeError."""
        self._changes.count += 1

    @property
    def version(self) -> int:
        """Number of in-place changes of the values so far, by any tensor that shares them."""
        return self._changes.count

    def __repr__(self) -> str:
        name = type(self).__name__
        values = np.array2string(self._data, separator=", ", threshold=20, edgeitems=2, prefix=f"{name}(")
        return f"{name}({values}, shape={self.shape}, dtype={self.dtype}, requires_grad={self.requires_grad})"

    def detach(self) -> "Tensor":
        """Return a tensor with the same data, without history and without gradient."""
        result = Tensor(self._data, placement=self.placement)
        result.volatile = self.volatile  # the values still come from remote rows
        result._changes = self._changes  # a change of this tensor's values is a change of the result's
        return result

    def backward(self, g: "Operand | None" = None, *, retain_graph: bool = False) -> None:
        """Add the gradients of the loss to the leaves' `grad`, given g, the loss's gradient with respect to this tensor (None: 1).
        The tape's stored values are freed, unless `retain_graph` allows a second pass.

        Parameters
        ----------
        g : ndarray or Tensor of this tensor's shape and dtype, or number, optional
            Gradient of the loss with respect to this tensor; by default 1, for a tensor with one value.
        retain_graph : bool
            True to keep the tape for another call; else residuals are freed during the pass.

        Raises
        ------
        ShapeError
            `g` has another shape or dtype.
        ValueError
            `g` is not given, and the tensor does not have exactly one value.
        RuntimeError
            The tape was used before, or values that the backward pass needs were changed. No `grad` changes then.

        Notes
        -----
        Collective if the tape holds distributed aggregations or norms.

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import Tensor
        >>> x = Tensor(np.array([1.0, 2.0]), requires_grad=True)
        >>> (3 * x).backward(np.array([1.0, 10.0]))
        >>> x.grad
        array([ 3., 30.])
        """
        seed = self._seed(g)
        if self.requires_grad:
            with retaining(retain_graph):
                arrivals = carry([(self, seed)], release=not retain_graph)
            for leaf, cell in arrivals.leaves():
                accumulate(leaf, cell)

    def add_rows(self, gradient: RowGradient) -> None:
        """Add `gradient`, which is 0 except in the rows that it lists, to `grad`. A subclass may override this method to work on
        the listed rows alone.
        """
        accumulate(self, [gradient.array()])

    def _seed(self, g: "Operand | None") -> Array:
        """Return the argument `g` of `backward`, the loss's gradient with respect to this tensor, as an array; None means 1."""
        if g is None:
            if self.size != 1:
                raise ValueError(f"backward() of a tensor of shape {self.shape} needs its gradient g")
            return np.ones_like(self._data)
        is_number = isinstance(g, (int, float)) and not isinstance(g, np.generic)
        array = np.asarray(g, self.dtype) if is_number else as_array(g)
        if array.shape != self.shape or array.dtype != self.dtype:
            raise ShapeError(f"g is {array.dtype} {array.shape}, but the tensor is {self.dtype} {self.shape}")
        return array

    @property
    def sink(self) -> Union[Node, "Tensor", None]:
        """Receiver of this tensor's gradient: the tape node that computed the tensor, or for a leaf the tensor itself; None if no
        gradient is wanted.
        """
        if not self.requires_grad:
            return None
        return self if self.node is None else self.node

    # ---- shape, values and conversions

    __hash__ = object.__hash__  # by identity, because `==` is elementwise

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return self._data.shape

    @property
    def dtype(self) -> ArrayDType:
        """Dtype of the values."""
        return self._data.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._data.ndim

    @property
    def size(self) -> int:
        """Number of values."""
        return self._data.size

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator["Tensor"]:
        """Iterate over the first axis, as an ndarray does."""
        if not self.ndim:
            raise TypeError("iteration over a 0-d tensor")
        return (self[i] for i in range(len(self)))

    def numpy(self) -> Array:
        """Return the values as an ndarray that shares the tensor's memory. After writing to it, call `changed`."""
        return self.data

    def item(self) -> float:
        """Return the value of a tensor with one value as a Python number."""
        return self.data.item()

    def tolist(self) -> Any:
        """Return the values as nested lists, or as a number for a 0-d tensor."""
        return self.data.tolist()

    def __array__(self, dtype: DType | None = None, copy: bool | None = None) -> Array:
        """Return the values for `np.asarray` and `np.array`, without gradient.

        The memory is shared if possible, as by `numpy()`.
        """
        return np.array(self.data, dtype=dtype, copy=copy)

    def __dlpack__(self, *, copy: bool | None = None, **options: Any) -> Any:
        """Return the values for `from_dlpack` of NumPy or another library, without gradient.

        The memory is shared if possible. An array with negative strides (`x[::-1]`) is copied, because torch aborts the
        process on such an array. A read-only array, such as a constant tensor's, is marked as read-only. A consumer
        that does not support the mark gets a BufferError. Torch ignores the mark and can write to the array.
        """
        array = self.data
        if min(array.strides, default=0) < 0:
            if copy is False:
                raise BufferError("an array with negative strides cannot be shared by DLPack; "
                                  "without copy=False it is copied")
            array, copy = array.copy(), None
        return array.__dlpack__(copy=copy, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._data.__dlpack_device__()

    def __bool__(self) -> bool:
        return bool(self._only("bool"))

    def __float__(self) -> float:
        return float(self._only("float"))

    def __int__(self) -> int:
        return int(self._only("int"))

    def __index__(self) -> int:
        if self.ndim:
            raise TypeError(f"a tensor of shape {self.shape} is not an index; only a 0-d tensor of integers is")
        return operator.index(self.data[()])

    def _only(self, conversion: str) -> float:
        """Return the value of a tensor that has exactly one value; else raise a ValueError that names the `conversion`, such as "float"."""
        if self.size != 1:
            raise ValueError(f"{conversion}() of a tensor of shape {self.shape}, which has not one value but {self.size}")
        return self.data.reshape(-1)[0]

    # ---- operators

    def __add__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["add"](self, other)

    def __radd__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["add"](other, self)

    def __sub__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["sub"](self, other)

    def __rsub__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["sub"](other, self)

    def __mul__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["mul"](self, other)

    def __rmul__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["mul"](other, self)

    def __truediv__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["div"](self, other)

    def __rtruediv__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["div"](other, self)

    def __matmul__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["matmul"](self, other)

    def __rmatmul__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["matmul"](other, self)

    def __and__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["bitwise_and"](self, other)

    def __rand__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["bitwise_and"](other, self)

    def __or__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["bitwise_or"](self, other)

    def __ror__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["bitwise_or"](other, self)

    def __pow__(self, exponent: float) -> "Tensor":
        return OPERATIONS["power"](self, exponent)

    def __rpow__(self, base: float) -> "Tensor":
        return OPERATIONS["rpow"](self, base)

    def __neg__(self) -> "Tensor":
        return OPERATIONS["neg"](self)

    def __abs__(self) -> "Tensor":
        return OPERATIONS["abs"](self)

    def __invert__(self) -> "Tensor":
        return OPERATIONS["invert"](self)

    def __getitem__(self, index: "Index") -> "Tensor":
        return OPERATIONS["getitem"](self, index)

    def __gt__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["greater"](self, other)

    def __ge__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["greater_equal"](self, other)

    def __lt__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["less"](self, other)

    def __le__(self, other: "Operand") -> "Tensor":
        return OPERATIONS["less_equal"](self, other)

    def __eq__(self, other: object) -> Any:
        return OPERATIONS["equal"](self, other) if _is_numeric(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return OPERATIONS["not_equal"](self, other) if _is_numeric(other) else NotImplemented

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> object:
        return OPERATIONS["array_ufunc"](ufunc, method, *inputs, **options)

    def __array_function__(self, function: Callable[..., object], types: Iterable[type], args: tuple[object, ...],
                           options: dict[str, object]) -> object:
        return OPERATIONS["array_function"](function, args, options)

    # ---- methods

    @property
    def T(self) -> "Tensor":
        """The tensor with its axes in reverse order."""
        return OPERATIONS["transpose"](self)

    def abs(self) -> "Tensor":
        """Return the absolute values."""
        return OPERATIONS["abs"](self)

    def astype(self, dtype: DType) -> "Tensor":
        """Return the values cast to `dtype`, with the gradient cast back."""
        return OPERATIONS["astype"](self, dtype)

    def clip(self, low: float | None = None, high: float | None = None) -> "Tensor":
        """Return the values limited to [low, high]; the gradient is 0 outside of this interval."""
        return OPERATIONS["clip"](self, low, high)

    def cumsum(self, axis: int | None = None) -> "Tensor":
        """Return the cumulative sums along `axis`, or of the flattened values if `axis` is None."""
        return OPERATIONS["cumsum"](self, axis)

    def elu(self, alpha: float = 1.0) -> "Tensor":
        """Return x where x > 0, else alpha * (exp(x) - 1)."""
        return OPERATIONS["elu"](self, alpha)

    def exp(self) -> "Tensor":
        """Return e**x."""
        return OPERATIONS["exp"](self)

    def flatten(self) -> "Tensor":
        """Return the values as (n, width): all axes but the first are merged into one."""
        return OPERATIONS["flatten"](self)

    def leaky_relu(self, slope: float = 0.01) -> "Tensor":
        """Return x where x > 0, else slope * x."""
        return OPERATIONS["leaky_relu"](self, slope)

    def log(self) -> "Tensor":
        """Return the natural logarithm."""
        return OPERATIONS["log"](self)

    def log_softmax(self, axis: int = -1) -> "Tensor":
        """Return log(softmax(x)) over an axis."""
        return OPERATIONS["log_softmax"](self, axis)

    def logsumexp(self, axis: Axis = None, keepdims: bool = False) -> "Tensor":
        """Return log(sum(exp(x))) over an axis, a tuple of axes, or all axes (None)."""
        return OPERATIONS["logsumexp"](self, axis, keepdims)

    def matmul_by_head(self, w: "Operand") -> "Tensor":
        """Return out[i,h] = x[i,h] @ w[h]: each head h is multiplied by a matrix of its own."""
        return OPERATIONS["matmul_by_head"](self, w)

    def max(self, axis: Axis = None, keepdims: bool = False) -> "Tensor":
        """Return the maximum over an axis, a tuple of axes, or all axes (None)."""
        return OPERATIONS["max"](self, axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> "Tensor":
        """Return the mean over an axis, a tuple of axes, or all axes (None)."""
        return OPERATIONS["mean"](self, axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> "Tensor":
        """Return the minimum over an axis, a tuple of axes, or all axes (None)."""
        return OPERATIONS["min"](self, axis, keepdims)

    def relu(self) -> "Tensor":
        """Return max(x, 0)."""
        return OPERATIONS["relu"](self)

    def reshape(self, *shape: int | tuple[int, ...]) -> "Tensor":
        """Return the values in another shape, given as one tuple or as several integers, of which one may be -1."""
        return OPERATIONS["reshape"](self, *shape)

    def sigmoid(self) -> "Tensor":
        """Return 1 / (1 + exp(-x))."""
        return OPERATIONS["sigmoid"](self)

    def softmax(self, axis: int = -1) -> "Tensor":
        """Return exp(x) / sum(exp(x)) over an axis."""
        return OPERATIONS["softmax"](self, axis)

    def sqrt(self) -> "Tensor":
        """Return the square root."""
        return OPERATIONS["sqrt"](self)

    def squeeze(self, axis: Axis = None) -> "Tensor":
        """Return the values without axes of length 1: without the axes `axis`, or by default without all axes of length 1."""
        return OPERATIONS["squeeze"](self, axis)

    def std(self, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> "Tensor":
        """Return the standard deviation over an axis, a tuple of axes, or all axes (None), with divisor n - `ddof`."""
        return OPERATIONS["std"](self, axis, ddof, keepdims)

    def sum(self, axis: Axis = None, keepdims: bool = False) -> "Tensor":
        """Return the sum over an axis, a tuple of axes, or all axes (None)."""
        return OPERATIONS["sum"](self, axis, keepdims)

    def take(self, index: "Operand") -> "Tensor":
        """Return the rows with the numbers `index`, as `ops.take` does: out[i] = x[index[i]]."""
        return OPERATIONS["take"](self, index)

    def tanh(self) -> "Tensor":
        """Return the hyperbolic tangent."""
        return OPERATIONS["tanh"](self)

    def transpose(self, *axes: int | tuple[int, ...]) -> "Tensor":
        """Return the values with permuted axes, given as one tuple or as several integers; by default in reverse order."""
        return OPERATIONS["transpose"](self, *axes)

    def var(self, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> "Tensor":
        """Return the variance over an axis, a tuple of axes, or all axes (None), with divisor n - `ddof`."""
        return OPERATIONS["var"](self, axis, ddof, keepdims)


Operand = Tensor | npt.ArrayLike
"""Input of an operation: a tensor, or anything that NumPy converts to an array."""

Index = IndexPart | tuple[IndexPart, ...] | Sequence[int] | Sequence[bool] | Array | Tensor
"""Index of a tensor: parts that select a view, or row numbers or a mask that select rows."""


def as_array(data: object) -> Array:
    """Return `data` as a plain ndarray in native byte order, without a copy if NumPy or DLPack can share the memory.

    Parameters
    ----------
    data : array_like, Tensor, kernels.Rows or object with `__dlpack__`
        `kernels.Rows` are returned unchanged. An `np.matrix` becomes an array, whose `*` and `**` are elementwise.

    Raises
    ------
    DataError
        A masked array has masked values.

    Examples
    --------
    >>> as_array([1, 2])
    array([1, 2])
    """
    if isinstance(data, Rows):
        return cast(Array, data)
    if isinstance(data, Tensor):
        return data.data
    if type(data) is np.ndarray:
        return _in_native_order(data)
    if np.ma.is_masked(data):
        raise DataError("a masked array has values that must not count: fill them first, as by .filled(0)")
    if hasattr(data, "__dlpack__") and not hasattr(data, "__array__"):
        return np.from_dlpack(data)
    return _in_native_order(np.asarray(data))


def _in_native_order(array: Array) -> Array:
    """Return an array with bytes in the processor's order, a copy if necessary, because kernels read no other order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _is_numeric(other: object) -> bool:
    """Return True if `other` is a number, a tensor or an array of numbers, which `==` compares elementwise."""
    return isinstance(other, (Tensor, bool, int, float)) or as_array(other).dtype.kind in "biuf"

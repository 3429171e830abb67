"""Tensor: an ndarray whose history the tape records.

Operators and methods call dense operations by name (`primitives.OPERATIONS`), because the modules of operations import
this one.
"""

import operator
from collections.abc import Callable, Iterator
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from sarlite.errors import DataError, ShapeError
from sarlite.kernels import Rows
from sarlite.numerics.placement import PLACEMENTS, UNKNOWN, Placement
from sarlite.tape.backward import accumulate, carry
from sarlite.tape.primitives import OPERATIONS, Changes, Node
from sarlite.tape.recording import note_read, now, retaining
from sarlite.tape.summands import RowGradient
from sarlite.types import Array, Axis, DType


class Tensor:
    """An ndarray whose history the tape records.

    Parameters
    ----------
    data : ndarray or anything with `__array__` or `__dlpack__`; float32 or float64 to take part in gradients
        Borrowed, not copied.
    requires_grad : bool
        True if `backward` fills `grad`.
    constant : bool
        The caller promises that the values never change. So results that are computed from them alone may be kept
        (`Graph.aggregate`). `data` is then a read-only view. The result of an operation is not constant.
    placement : {"unknown", "rows", "replicated"}
        "rows": axis 0 holds rows that this rank owns. "replicated": all ranks hold the same values. Exact numerics
        refuses gradients through values of unknown placement. An operation's result is rows if one of its inputs is
        rows, and replicated if all are; numbers do not count.

    Attributes
    ----------
    data : ndarray
        Assigning another one is a change (`changed`).
    grad : ndarray or None
        Sum of the gradients of all backward passes. Later gradients are added in place.
    version : int
        Number of changes of the values; see `changed`. A tensor, its views (`t[1:]`, `t.T`) and the tensors that
        `detach` returns have one count together.

    Notes
    -----
    `==` and the other comparisons are elementwise, as an ndarray's, and return bool tensors without gradient. `bool`,
    `float` and `int` take a tensor of one value. As a key, or in a set, a tensor is compared by identity.

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

    def __init__(self, data: Any, requires_grad: bool = False, *, constant: bool = False,
                 placement: Placement = UNKNOWN) -> None:
        data = as_array(data)
        if placement not in PLACEMENTS:
            raise ValueError(f"placement {placement!r} is not one of {', '.join(PLACEMENTS)}")
        if constant:
            if requires_grad:
                raise ValueError("a constant tensor cannot require a gradient: its values never change")
            data = data.view()
            data.flags.writeable = False
        if requires_grad and data.dtype.kind != "f":
            raise TypeError(f"only float tensors have gradients, not {data.dtype}")
        self._data, self.constant, self.volatile, self.placement = data, bool(constant), False, placement
        self._changes = Changes(data.shape)
        self.requires_grad, self.grad, self.node = requires_grad, None, None
        self.time = now()

    @property
    def data(self) -> Array:
        """Values of the tensor, shared and not copied.

        Reading values that come from remote rows is reported (`recording.note_read`).
        """
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
        """Report that the values were changed in place; a backward pass that needs the old values will raise."""
        self._changes.count += 1

    @property
    def version(self) -> int:
        """Number of changes of the values."""
        return self._changes.count

    def __repr__(self) -> str:
        name = type(self).__name__
        values = np.array2string(self._data, separator=", ", threshold=20, edgeitems=2, prefix=f"{name}(")
        return f"{name}({values}, shape={self.shape}, dtype={self.dtype}, requires_grad={self.requires_grad})"

    def detach(self) -> "Tensor":
        """Return a tensor of the same data without history."""
        result = Tensor(self._data, placement=self.placement)
        result.volatile = self.volatile  # the values still come from remote rows
        result._changes = self._changes  # a change of this tensor's values is a change of the result's
        return result

    def backward(self, g: "Operand | None" = None, *, retain_graph: bool = False) -> None:
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
            for leaf, cell in arrivals.leaves():
                accumulate(leaf, cell)

    def add_rows(self, gradient: RowGradient) -> None:
        """Add the gradient of some rows to `grad`. A subclass may leave the other rows untouched."""
        accumulate(self, [gradient.array()])

    def _seed(self, g: Any) -> Array:
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
        """The receiver of this tensor's gradient: its node, or the tensor itself if it is a leaf, or None."""
        if not self.requires_grad:
            return None
        return self if self.node is None else self.node

    # ---- shape, values and conversions

    __hash__ = object.__hash__  # `==` is elementwise: in dicts and sets a tensor is itself and nothing else

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return self._data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
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
        """Return the values as an ndarray, shared. After writing to the array, call `changed`."""
        return self.data

    def item(self) -> Any:
        """Return the only value as a Python number."""
        return self.data.item()

    def tolist(self) -> Any:
        """Return the values as nested lists, or a number if 0-d."""
        return self.data.tolist()

    def __array__(self, dtype: DType | None = None, copy: bool | None = None) -> Array:
        """Return the values for `np.asarray` and `np.array`, without gradient.

        The memory is shared if possible, as by `numpy()`.
        """
        return np.array(self.data, dtype=dtype, copy=copy)

    def __dlpack__(self, *, copy: bool | None = None, **options: Any) -> Any:
        """Return the values for `from_dlpack` of NumPy or another library, without gradient; shared if possible.

        An array with negative strides (`x[::-1]`) is copied, because torch aborts the process on such an array. A
        read-only array, such as a constant tensor's, is marked as read-only. A consumer that does not know the mark
        gets a BufferError. Torch ignores the mark and can write to the array.
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

    def _only(self, kind: str) -> Any:
        if self.size != 1:
            raise ValueError(f"{kind}() of a tensor of shape {self.shape}, which has not one value but {self.size}")
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

    def __getitem__(self, index: Any) -> "Tensor":
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

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return OPERATIONS["array_ufunc"](ufunc, method, *inputs, **options)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, options: Any) -> Any:
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
        """Cast the values; see `ops.astype`."""
        return OPERATIONS["astype"](self, dtype)

    def clip(self, low: float | None = None, high: float | None = None) -> "Tensor":
        """Return the values limited to [low, high]; see `ops.clip`."""
        return OPERATIONS["clip"](self, low, high)

    def cumsum(self, axis: int | None = None) -> "Tensor":
        """Return the cumulative sums; see `ops.cumsum`."""
        return OPERATIONS["cumsum"](self, axis)

    def elu(self, alpha: float = 1.0) -> "Tensor":
        """Return x where x > 0, else alpha * (exp(x) - 1)."""
        return OPERATIONS["elu"](self, alpha)

    def exp(self) -> "Tensor":
        """Return e**x."""
        return OPERATIONS["exp"](self)

    def flatten(self) -> "Tensor":
        """Merge all axes but the first."""
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
        """Return log(sum(exp(x))) over axes."""
        return OPERATIONS["logsumexp"](self, axis, keepdims)

    def matmul_by_head(self, w: "Operand") -> "Tensor":
        """Return x[i,h] @ w[h]; see `ops.matmul_by_head`."""
        return OPERATIONS["matmul_by_head"](self, w)

    def max(self, axis: Axis = None, keepdims: bool = False) -> "Tensor":
        """Return the maximum over axes."""
        return OPERATIONS["max"](self, axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> "Tensor":
        """Return the mean over axes."""
        return OPERATIONS["mean"](self, axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> "Tensor":
        """Return the minimum over axes."""
        return OPERATIONS["min"](self, axis, keepdims)

    def relu(self) -> "Tensor":
        """Return max(x, 0)."""
        return OPERATIONS["relu"](self)

    def reshape(self, *shape: int | tuple[int, ...]) -> "Tensor":
        """Return the values in another shape; see `ops.reshape`."""
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
        """Remove axes of length 1."""
        return OPERATIONS["squeeze"](self, axis)

    def std(self, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> "Tensor":
        """Return the standard deviation over axes."""
        return OPERATIONS["std"](self, axis, ddof, keepdims)

    def sum(self, axis: Axis = None, keepdims: bool = False) -> "Tensor":
        """Return the sum over axes."""
        return OPERATIONS["sum"](self, axis, keepdims)

    def take(self, index: "Operand") -> "Tensor":
        """Gather rows; see `ops.take`."""
        return OPERATIONS["take"](self, index)

    def tanh(self) -> "Tensor":
        """Return the hyperbolic tangent."""
        return OPERATIONS["tanh"](self)

    def transpose(self, *axes: int | tuple[int, ...]) -> "Tensor":
        """Permute the axes; see `ops.transpose`."""
        return OPERATIONS["transpose"](self, *axes)

    def var(self, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> "Tensor":
        """Return the variance over axes."""
        return OPERATIONS["var"](self, axis, ddof, keepdims)


Operand = Tensor | npt.ArrayLike  # what operations take


def as_array(data: Any) -> Any:
    """Return `data` as a plain ndarray, without a copy if NumPy or DLPack can share it.

    `kernels.Rows`, some rows of a table, are returned unchanged.

    An `np.matrix` becomes an array, whose `*` and `**` are elementwise. A masked array without masked values becomes an
    array too; masked values raise a DataError.
    """
    if type(data) in (np.ndarray, Rows):
        return data
    if isinstance(data, Tensor):
        return data.data
    if np.ma.is_masked(data):
        raise DataError("a masked array has values that must not count: fill them first, as by .filled(0)")
    if hasattr(data, "__dlpack__") and not hasattr(data, "__array__"):
        return np.from_dlpack(data)
    return np.asarray(data)


def _is_numeric(other: object) -> bool:
    """Return True for numbers and arrays of numbers; a tensor and any other object are compared by identity."""
    return isinstance(other, (Tensor, bool, int, float)) or as_array(other).dtype.kind in "biuf"

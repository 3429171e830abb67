"""What a tensor has in common with an ndarray besides operations: its shape, and ways to its values."""

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from sarlite.types import Array, DType

if TYPE_CHECKING:
    from sarlite.tape.ops import Methods
else:
    Methods = object  # at run time `ops` gives Tensor the methods, as operations are made of Tensor


class ArrayLike(Methods):
    """Shape, conversions and iteration over `_data`. Each way to values goes through `data`, which may be watched."""

    __slots__ = ()
    _data: Array
    data: Array
    __hash__ = object.__hash__  # `==` is elementwise: in dicts and sets a tensor is itself and nothing else

    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._data.dtype

    @property
    def ndim(self) -> int:
        return self._data.ndim

    @property
    def size(self) -> int:
        return self._data.size

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self: Any) -> Iterator[Any]:
        """Iterate over the first axis, as an ndarray does."""
        if not self.ndim:
            raise TypeError("iteration over a 0-d tensor")
        return (self[i] for i in range(len(self)))

    def numpy(self) -> Array:
        """Return the ndarray, shared. Writing to it is not seen by the tape: call `changed` after it."""
        return self.data

    def item(self) -> Any:
        """Return the only value as a Python number."""
        return self.data.item()

    def tolist(self) -> Any:
        """Return the values as nested lists, or a number if 0-d."""
        return self.data.tolist()

    def __array__(self, dtype: DType | None = None, copy: bool | None = None) -> Array:
        """Give the values to `np.asarray` and `np.array`, shared where they can be.

        As from `numpy()`, without gradient.
        """
        return np.array(self.data, dtype=dtype, copy=copy)

    def __dlpack__(self, *, copy: bool | None = None, **options: Any) -> Any:
        """Give the values to `from_dlpack` of NumPy or another library, shared where they can be, without gradient.

        An array with negative strides (`x[::-1]`) is copied: torch ends the process where it meets one. A read-only
        array, such as a constant tensor's, is marked as read-only, or refused (BufferError) to a consumer that does not
        know the mark; torch writes to such an array all the same.
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

    def _only(self, kind):
        if self.size != 1:
            raise ValueError(f"{kind}() of a tensor of shape {self.shape}, which has not one value but {self.size}")
        return self.data.reshape(-1)[0]

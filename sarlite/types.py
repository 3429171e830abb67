"""Names for what many annotations say."""

import os
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ArrayDType = np.dtype[Any]  # the dtype of an Array
Axis = int | tuple[int, ...] | None  # one axis, several, or all
DType = npt.DTypeLike
Path = str | os.PathLike[str]
RowIndex = slice | Array  # consecutive rows, or their numbers

T = TypeVar("T")


class SupportsDLPack(Protocol):
    """An array of another library that exports its memory by DLPack."""

    def __dlpack__(self) -> Any: ...


ArrayLike = npt.ArrayLike | SupportsDLPack  # what `tape.engine.as_array` takes

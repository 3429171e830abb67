"""Names of types that many annotations use."""

import os
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ArrayDType = np.dtype[Any]  # the dtype of an Array
Axis = int | tuple[int, ...] | None  # one axis, several axes, or all axes
DType = npt.DTypeLike
Path = str | os.PathLike[str]
JsonDict = dict[str, Any]  # object of JSON that is made or changed, such as provenance or transforms
JsonObject = Mapping[str, Any]  # as Python's json module reads it
RowIndex = slice | Array  # consecutive rows, or row numbers

T = TypeVar("T")


class SupportsDLPack(Protocol):
    """Array of another library that shares its memory by the DLPack protocol."""

    def __dlpack__(self) -> object: ...


ArrayLike = npt.ArrayLike | SupportsDLPack  # argument of `tape.tensor.as_array`

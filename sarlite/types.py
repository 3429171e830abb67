"""Names for what many annotations say."""

import os
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Axis = int | tuple[int, ...] | None  # one axis, several, or all
DType = npt.DTypeLike
Path = str | os.PathLike[str]

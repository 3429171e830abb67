"""The floating types of functions under test, rounding to them, and arrays of other libraries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sarlite.oracle.choices import among
from sarlite.types import Array


@dataclass(frozen=True)
class Format:
    """A floating type."""

    unit: float  # the largest relative error of a rounding
    # The largest absolute error near 0: the smallest normal number, as results below may be flushed to 0; of float16,
    # which is not flushed, the smallest number.
    tiny: float
    largest: float


FORMATS = {
    "float64": Format(2.0**-53, 2.0**-1022, float(np.finfo(np.float64).max)),
    "float32": Format(2.0**-24, 2.0**-126, float(np.finfo(np.float32).max)),
    "tensorfloat32": Format(2.0**-11, 2.0**-126, float(np.finfo(np.float32).max)),  # of sums alone: arrays are float32
    "float16": Format(2.0**-11, 2.0**-24, 65504.0),
    "bfloat16": Format(2.0**-8, 2.0**-126, (2 - 2.0**-7) * 2.0**127),
}
FORMATS["bfloat16-rows"] = FORMATS["float32"]
NARROW = {"bfloat16-rows": "bfloat16"}  # what the rows that edges gather are rounded to


def format_of(dtype: str) -> Format:
    among("dtype", dtype, FORMATS)
    return FORMATS[dtype]


def dtype_of(name: str) -> np.dtype:
    """The NumPy dtype of arrays of a floating type: of bfloat16 float32."""
    return np.dtype("float32" if name.startswith("bfloat16") else name)


def summed(dtype: str) -> str:
    """Return the dtype of sums that a dtype promises by default."""
    return "float32" if dtype in NARROW else dtype


def rounded(value: Array, dtype: str) -> Array:
    """The nearest numbers of a dtype; numbers of bfloat16 come in float32 arrays."""
    with np.errstate(over="ignore"):
        if dtype != "bfloat16":
            return np.asarray(value, dtype_of(dtype))
        single = np.asarray(value, np.float32)
    bits = single.view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(single), single, bits.view(np.float32))


def as_array(value: Any) -> Any:
    """Return a NumPy copy of a value with `__array__` or `__dlpack__`, detached from gradients; any other value as it is."""
    if hasattr(value, "detach"):
        value = value.detach()
    if "bfloat16" in str(getattr(value, "dtype", "")):
        value = value.float() if hasattr(value, "float") else value.astype("float32")
    if hasattr(value, "__array__"):
        return np.array(np.asarray(value))
    return np.array(np.from_dlpack(value)) if hasattr(value, "__dlpack__") else value

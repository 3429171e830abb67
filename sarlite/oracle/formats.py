"""Floating types of functions under test, rounding to them, and conversion of other libraries' arrays to NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sarlite.oracle.choices import check_choice
from sarlite.types import Array


@dataclass(frozen=True)
class FloatFormat:
    """Constants of a floating type: unit roundoff, error near 0, and largest number.

    Attributes
    ----------
    unit : float
        Unit roundoff: the largest relative error of one rounding.
    tiny : float
        Largest absolute error of a result near 0. This is the smallest normal number, as some machines flush denormal
        results to 0. It is the smallest denormal number for float16, which no machine flushes.
    largest : float
        Largest finite number.
    """

    unit: float
    tiny: float
    largest: float


FORMATS = {
    "float64": FloatFormat(2.0**-53, 2.0**-1022, float(np.finfo(np.float64).max)),
    "float32": FloatFormat(2.0**-24, 2.0**-126, float(np.finfo(np.float32).max)),
    "tensorfloat32": FloatFormat(2.0**-11, 2.0**-126, float(np.finfo(np.float32).max)),  # sums alone: arrays are float32
    "float16": FloatFormat(2.0**-11, 2.0**-24, 65504.0),
    "bfloat16": FloatFormat(2.0**-8, 2.0**-126, (2 - 2.0**-7) * 2.0**127),
}
FORMATS["bfloat16-rows"] = FORMATS["float32"]
NARROW = {"bfloat16-rows": "bfloat16"}  # format -> the type that rows are rounded to when edges gather them


def format_of(dtype: str) -> FloatFormat:
    """Return the constants of a floating type; raise ConfigError if the type is unknown."""
    check_choice("dtype", dtype, FORMATS)
    return FORMATS[dtype]


def dtype_of(name: str) -> np.dtype:
    """Return the NumPy dtype that holds numbers of a floating type: float32 for the bfloat16 formats."""
    return np.dtype("float32" if name.startswith("bfloat16") else name)


def default_accumulate(dtype: str) -> str:
    """Return the default floating type for sums of `dtype` numbers: float32 for the formats in `NARROW`, such as
    "bfloat16-rows", else `dtype` itself.
    """
    return "float32" if dtype in NARROW else dtype


def rounded(value: npt.ArrayLike, dtype: str) -> Array:
    """Round `value` to the floating type `dtype`, ties to even. Numbers of type bfloat16 are returned as float32."""
    with np.errstate(over="ignore"):
        if dtype != "bfloat16":
            return np.asarray(value, dtype_of(dtype))
        single = np.asarray(value, np.float32)
    bits = single.view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(single), single, bits.view(np.float32))


def as_array(value: object) -> object:
    """Return a NumPy copy of an array of any library; return anything else unchanged.

    Arrays are values with `__array__` or `__dlpack__`. A tensor is detached from its gradient first, and a bfloat16
    tensor becomes float32.
    """
    if hasattr(value, "detach"):
        value = value.detach()
    if "bfloat16" in str(getattr(value, "dtype", "")):
        if hasattr(value, "float"):
            value = value.float()
        elif hasattr(value, "astype"):
            value = value.astype("float32")
    if hasattr(value, "__array__"):
        return np.array(np.asarray(value))
    return np.array(np.from_dlpack(value)) if hasattr(value, "__dlpack__") else value

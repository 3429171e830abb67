"""Checks of the arguments of layers. Each error names the argument and its value."""

from typing import Any

import numpy as np

from sarlite.errors import ConfigError, ShapeError, number
from sarlite.nn.random import Random
from sarlite.types import DType


def share(name: str, value: object) -> float:
    """Return `value` if it is in [0, 1); else raise a ConfigError that names it."""
    return number(name, value, below=1)


def floating(dtype: DType) -> np.dtype[Any]:
    """Return float32 or float64 as a dtype; ConfigError names another one."""
    found = np.dtype(dtype)
    if found not in (np.float32, np.float64):
        raise ConfigError(f"dtype is {found}, but parameters are float32 or float64")
    return found


def source(rng: object) -> Random:
    """Return `rng`; raise a ConfigError if it is not a `Random`, for example a NumPy generator."""
    if not isinstance(rng, Random):
        raise ConfigError(f"rng is a {type(rng).__name__}, but must be an nn.Random, such as nn.Random(seed=0)")
    return rng


def rows_of(layer: str, x: object, n_feat: int, dtype: DType, ndim: int | None = 2) -> None:
    """Raise ShapeError, naming the layer, unless x is rows of `n_feat` values of the layer's dtype, or integers."""
    shape, found = getattr(x, "shape", ()), getattr(x, "dtype", None)
    if not shape or shape[-1] != n_feat or (ndim is not None and len(shape) != ndim):
        raise ShapeError(f"{layer}: x has shape {tuple(shape)}, but {'(n, ' if ndim else '(..., '}{n_feat}) is taken")
    if found is not None and found.kind == "f" and found != dtype:
        remedy = f"x.astype(np.{dtype}), or make the model with dtype=np.{found}"
        raise ShapeError(f"{layer}: x is {found}, but its parameters are {dtype}: {remedy}")

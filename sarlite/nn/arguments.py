"""Checks of the arguments of layers. Each error names the argument and its value."""

import numpy as np

from sarlite.errors import ConfigError, ShapeError, check_number
from sarlite.nn.random import Random
from sarlite.types import DType


def check_probability(name: str, value: object) -> float:
    """Return `value` if it is a number in [0, 1); else raise a ConfigError that starts with `name`."""
    return check_number(name, value, below=1)


def check_dtype(dtype: DType) -> np.dtype[np.generic]:
    """Return `dtype` as a NumPy dtype; raise a ConfigError unless it is float32 or float64."""
    checked = np.dtype(dtype)
    if checked not in (np.float32, np.float64):
        raise ConfigError(f"dtype is {checked}, but parameters are float32 or float64")
    return checked


def check_random(rng: object) -> Random:
    """Return `rng` if it is an `nn.Random`; raise a ConfigError for anything else, for example a NumPy generator."""
    if not isinstance(rng, Random):
        raise ConfigError(f"rng is a {type(rng).__name__}, but must be an nn.Random, such as nn.Random(seed=0)")
    return rng


def check_input(layer: str, x: object, n_feat: int, dtype: DType, ndim: int | None = 2) -> None:
    """Raise a ShapeError that names `layer` unless the last axis of x has `n_feat` values and x has `ndim` axes (None: any number).
    Floats must have the dtype `dtype`.

    Parameters
    ----------
    layer : str
        Name of the layer.
    x : Tensor or array
        Input: its last axis must have n_feat values, and floats must have the dtype of the parameters.
    n_feat : int
    dtype : dtype
        Dtype of the parameters.
    ndim : int, optional
        Number of axes that x must have; None for any number.
    """
    shape, x_dtype = getattr(x, "shape", ()), getattr(x, "dtype", None)
    if not shape or shape[-1] != n_feat or (ndim is not None and len(shape) != ndim):
        raise ShapeError(f"{layer}: x has shape {tuple(shape)}, but must have shape {'(n, ' if ndim else '(..., '}{n_feat})")
    if x_dtype is not None and x_dtype.kind == "f" and x_dtype != dtype:
        remedy = f"x.astype(np.{dtype}), or make the model with dtype=np.{x_dtype}"
        raise ShapeError(f"{layer}: x is {x_dtype}, but its parameters are {dtype}: {remedy}")

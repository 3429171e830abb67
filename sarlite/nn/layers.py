"""Linear and Dropout. Activations are functions and methods of Tensor: see `sarlite.tape.ops`."""

import math

import numpy as np

from sarlite.errors import ConfigError
from sarlite.nn.module import Module, Parameter
from sarlite.tape import ops


def glorot(rng, shape, n_in, n_out, dtype=np.float32):
    """Draw a Parameter uniformly from [-a, a], a = sqrt(6 / (n_in + n_out)) (Glorot and Bengio 2010, eq. 16).

    Parameters
    ----------
    rng : Random
        Its next generator is used. Values are drawn in float64, so float32 models start at the rounded float64 ones.
    shape : tuple of int
    n_in, n_out : int
        The widths that set the scale.
    """
    bound = math.sqrt(6 / max(n_in + n_out, 1))
    return Parameter(rng.generator().uniform(-bound, bound, shape).astype(dtype))


class Linear(Module):
    """Return x W + b.

    Parameters
    ----------
    n_in, n_out : int
        W is `weight`, (n_in, n_out), initialised by `glorot`; b is `bias`, (n_out,), from 0.
    bias : bool
    rng : Random
    dtype : float32 or float64
    """

    def __init__(self, n_in, n_out, bias=True, *, rng, dtype=np.float32):
        self.weight = glorot(rng, (n_in, n_out), n_in, n_out, dtype)
        self.bias = Parameter(np.zeros(n_out, dtype)) if bias else None

    def __call__(self, x):
        out = ops.matmul(x, self.weight)
        return out if self.bias is None else out + self.bias


class Dropout(Module):
    """In training, return x * mask / (1 - p), where each entry of mask is 0 with probability p; else x.

    Parameters
    ----------
    p : float in [0, 1)
    rng : Random
        Gives this layer its number when built, and its key in each epoch.
    """

    def __init__(self, p, rng):
        if not 0 <= p < 1:
            raise ConfigError(f"dropout's p is {p}, but must be in [0, 1)")
        self.p, self.rng, self.layer = p, rng, rng.layer()

    def __call__(self, x, ids):
        """Apply dropout.

        Parameters
        ----------
        x : Tensor, (n, ...)
        ids : (n,) int64
            Global numbers of the rows, as `graph.node_ids`: the mask of a row follows its number to any rank.
        """
        if not self.training or self.p == 0:
            return x
        return ops.dropout(x, ids, self.rng.key(self.layer), self.p)

    def coin(self):
        """Return (p, key) for a kernel that drops by itself, such as `fn.attend`'s; (0.0, 0) out of training."""
        return (self.p, self.rng.key(self.layer)) if self.training and self.p else (0.0, 0)

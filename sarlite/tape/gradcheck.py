"""A check of vjps against finite differences."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sarlite.tape.backward import pull
from sarlite.tape.recording import no_grad
from sarlite.tape.tensor import Tensor


def gradcheck(f: Callable[..., Tensor], inputs: Iterable[Any], *, eps: float = 1e-6, rtol: float = 1e-6,
              atol: float = 1e-7, directions: int = 3, entries: int = 200, seed: int = 0) -> None:
    """Check the gradient of L = sum(c * f(*inputs)), for a random c, against (L(x + eps v) - L(x - eps v)) / (2 eps).

    Parameters
    ----------
    f : callable
        Takes the inputs as Tensors and returns a Tensor of any shape. Called twice, it must return the same values.
    inputs : sequence of arrays or Tensors of float64
        Arrays are copied. The data of Tensors, such as a module's parameters, is changed in place and put back. Tensors
        without `requires_grad` are not checked.
    eps : float
        Step; away from kinks, central differences of order-one values are good to about 1e-9 at 1e-6.
    rtol, atol : float
        Allowed: |vjp - difference| <= atol + rtol * max(|vjp|, |difference|).
    directions : int
        Random directions v for each input.
    entries : int
        Inputs of at most this size are checked in each entry too.
    seed : int

    Raises
    ------
    AssertionError
        Naming the input, the entry or direction, and both values.
    TypeError
        If an input is not float64.

    Notes
    -----
    Calls `f` 2 * directions times for each input, and 2 more for each entry.
    Not meant for collective functions: the ranks' inputs would have to be moved together.
    """
    rng = np.random.default_rng(seed)
    tensors = [x if isinstance(x, Tensor) else Tensor(np.array(x), requires_grad=True) for x in inputs]
    for i, t in enumerate(tensors):
        if t.dtype != np.float64:
            raise TypeError(f"gradcheck needs float64, but input {i} is {t.dtype}")
    out = f(*tensors)
    weights = rng.uniform(0.5, 1.5, out.shape) * rng.choice([-1, 1], out.shape)
    grads = _gradients(out, weights, tensors)

    def slope(t, v):
        """Return the central difference of L along v for the input `t`."""
        return (_loss_at(f, tensors, t, eps * v, weights) - _loss_at(f, tensors, t, -eps * v, weights)) / (2 * eps)

    for i, t in enumerate(tensors):
        if t.requires_grad:
            for name, v in _probes(rng, t.shape, directions, entries):
                _compare(f"input {i}, {name}", float(np.sum(grads[i] * v)), slope(t, v), rtol, atol)


def _gradients(out, weights, tensors):
    """Return one gradient for each tensor, without changing any `grad`."""
    found = pull([(out, weights)])
    grads = []
    for i, t in enumerate(tensors):
        g = np.asarray(found.get(id(t.sink), np.zeros(t.shape)))
        assert g.shape == t.shape, f"input {i} has shape {t.shape}, but its gradient {g.shape}"
        assert g.dtype == t.dtype, f"input {i} has dtype {t.dtype}, but its gradient {g.dtype}"
        grads.append(g)
    return grads


def _loss_at(f, tensors, t, step, weights):
    before = t._data.copy()
    try:
        t._data[...] = before + step
        with no_grad():
            return float(np.sum(weights * f(*tensors)._data))
    finally:
        t._data[...] = before


def _probes(rng, shape, directions, entries):
    """Yield (name, v): random directions, then unit vectors if the input is small."""
    size = int(np.prod(shape))
    for k in range(directions if size else 0):
        yield f"direction {k}", rng.standard_normal(shape)
    for k in range(size if size <= entries else 0):
        v = np.zeros(shape)
        entry = tuple(int(i) for i in np.unravel_index(k, shape))
        v[entry] = 1
        yield f"entry {entry}", v


def _compare(where, analytic, numeric, rtol, atol):
    # written so that a NaN on either side fails
    if not abs(analytic - numeric) <= atol + rtol * max(abs(analytic), abs(numeric)):
        raise AssertionError(f"{where}: the vjp gives {analytic:.12g}, finite differences {numeric:.12g}")

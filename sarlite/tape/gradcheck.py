"""A check of gradients against finite differences."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from sarlite.tape.backward import pull
from sarlite.tape.recording import no_grad
from sarlite.tape.tensor import Operand, Tensor
from sarlite.types import Array


def gradcheck(f: Callable[..., Tensor], inputs: Iterable[Operand], *, eps: float = 1e-6, rtol: float = 1e-6,
              atol: float = 1e-7, directions: int = 3, entries: int = 200, seed: int = 0) -> None:
    """Raise an AssertionError if gradients of f(*inputs) differ from finite differences of step `eps` by more than `rtol` and
    `atol`. Each input is checked in `directions` random directions; an input with at most `entries` values is also checked in each
    single value.

    The loss is L = sum(c * f(*inputs)) for random c. For each input x and some directions v, the gradient along v is
    compared with (L(x + eps v) - L(x - eps v)) / (2 eps).

    Parameters
    ----------
    f : callable
        Takes the inputs as Tensors and returns a Tensor of any shape. Two calls must return the same values.
    inputs : iterable of float64 arrays or Tensors
        Arrays are copied. The data of Tensors, such as a module's parameters, are changed in place during the check and
        restored. Tensors without `requires_grad` are not checked.
    eps : float
        Step. With 1e-6, differences of values of order one are accurate to about 1e-9, except at kinks.
    rtol, atol : float
        Tolerances: |gradient - difference| <= atol + rtol * max(|gradient|, |difference|).
    directions : int
        Number of random directions v for each input.
    entries : int
        An input with at most this many values is also checked in each value alone.
    seed : int
        Seed of c and of the directions.

    Raises
    ------
    AssertionError
        A gradient is wrong. The message names the input, the value or direction, and both numbers.
    TypeError
        An input is not float64.

    Notes
    -----
    Calls `f` 2 * directions times for each input, and twice for each value that is checked alone. Not for collective
    functions, whose inputs would have to be moved on all ranks together.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import gradcheck
    >>> from sarlite.tape import ops
    >>> gradcheck(lambda x: ops.sigmoid(x * x), [np.array([0.5, -2.0])])
    """
    rng = np.random.default_rng(seed)
    tensors = [x if isinstance(x, Tensor) else Tensor(np.array(x), requires_grad=True) for x in inputs]
    for i, t in enumerate(tensors):
        if t.dtype != np.float64:
            raise TypeError(f"gradcheck needs float64, but input {i} is {t.dtype}")
    out = f(*tensors)
    weights = rng.uniform(0.5, 1.5, out.shape) * rng.choice([-1, 1], out.shape)
    grads = _gradients(out, weights, tensors)

    def slope(t: Tensor, v: Array) -> float:
        """Return the finite difference (L(t + eps v) - L(t - eps v)) / (2 eps) of the loss L in the direction `v`, where `t` is one
        of the inputs.
        """
        return (_loss_at(f, tensors, t, eps * v, weights) - _loss_at(f, tensors, t, -eps * v, weights)) / (2 * eps)

    for i, t in enumerate(tensors):
        if t.requires_grad:
            for name, v in _probes(rng, t.shape, directions, entries):
                _compare(f"input {i}, {name}", float(np.sum(grads[i] * v)), slope(t, v), rtol, atol)


def _gradients(out: Tensor, weights: Array, tensors: Sequence[Tensor]) -> list[Array]:
    """Return a list with the gradient of sum(weights * out) with respect to each of `tensors`; no tensor's `grad` is changed."""
    by_sink = pull([(out, weights)])
    grads = []
    for i, t in enumerate(tensors):
        g = np.asarray(by_sink.get(id(t.sink), np.zeros(t.shape)))
        assert g.shape == t.shape, f"input {i} has shape {t.shape}, but its gradient {g.shape}"
        assert g.dtype == t.dtype, f"input {i} has dtype {t.dtype}, but its gradient {g.dtype}"
        grads.append(g)
    return grads


def _loss_at(f: Callable[..., Tensor], tensors: Sequence[Tensor], t: Tensor, step: Array, weights: Array) -> float:
    """Return sum(weights * f(*tensors)), with `step` added to the values of `t`, one of `tensors`, during the call."""
    before = t._data.copy()
    try:
        t._data[...] = before + step
        with no_grad():
            return float(np.sum(weights * f(*tensors)._data))
    finally:
        t._data[...] = before


def _probes(rng: np.random.Generator, shape: tuple[int, ...], n_random: int, most_units: int) -> Iterator[tuple[str, Array]]:
    """Yield (name, direction of shape `shape`) for `n_random` random directions; then for each unit vector, if there are at most
    `most_units`.
    """
    size = int(np.prod(shape))
    for k in range(n_random if size else 0):
        yield f"direction {k}", rng.standard_normal(shape)
    for k in range(size if size <= most_units else 0):
        v = np.zeros(shape)
        entry = tuple(int(i) for i in np.unravel_index(k, shape))
        v[entry] = 1
        yield f"entry {entry}", v


def _compare(where, analytic, numeric, rtol, atol):
    # `not <=` instead of `>`, so that NaN fails
    if not abs(analytic - numeric) <= atol + rtol * max(abs(analytic), abs(numeric)):
        raise AssertionError(f"{where}: the vjp gives {analytic:.12g}, finite differences {numeric:.12g}")

"""Layer norm, and batch norm that is exact over all ranks."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from sarlite import kernels, numerics
from sarlite.comm import Communicator
from sarlite.errors import ConfigError, whole
from sarlite.nn.activate import Statistics, activate
from sarlite.nn.arguments import floating, rows_of
from sarlite.nn.module import Module, Parameter
from sarlite.numerics import by_numerics
from sarlite.tape import Tensor, ops
from sarlite.tape.pairwise import operands
from sarlite.tape.tensor import as_array
from sarlite.types import Array, DType

R = TypeVar("R")


class LayerNorm(Module):
    """Return (x - mean) / sqrt(var + eps) * gamma + beta, with the moments of each row. Local.

    Parameters
    ----------
    n_feat : int
        The last axis of x.
    eps : float
    dtype : float32 or float64
    """

    def __init__(self, n_feat: int, eps: float = 1e-5, dtype: DType = np.float32) -> None:
        n_feat, dtype = whole("n_feat", n_feat), floating(dtype)
        self.gamma, self.beta = Parameter(np.ones(n_feat, dtype)), Parameter(np.zeros(n_feat, dtype))
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        rows_of("LayerNorm", x, len(self.gamma), self.gamma.dtype, ndim=None)
        return ops.layer_norm(x, self.gamma, self.beta, self.eps)

    def describe(self) -> str:
        return f"{len(self.gamma)}"


def merge_moments(moments: Iterable[tuple[int, Array, Array]]) -> tuple[int, Array, Array]:
    """Merge (count, mean, M2) triples, M2 = sum (x - mean)^2, in the order given.

    Nothing cancels, as it does in E[x^2] - mean^2. Source: Chan, Golub and LeVeque 1983, eq. 2.1.
    """
    moments = list(moments)
    count, mean, m2 = 0, np.zeros_like(moments[0][1]), np.zeros_like(moments[0][2])
    for n, other_mean, other_m2 in moments:
        if n:
            delta, both = other_mean - mean, count + n
            mean = mean + delta * (n / both)
            m2 = m2 + other_m2 + delta * delta * (count * (n / both))
            count = both
    return count, mean, m2


@by_numerics
def batch_moments(x: Array, comm: Communicator) -> tuple[int, Array, Array]:
    """Return (count, mean, M2) of the columns of every rank's (n, n_feat) array x, in float64. Collective."""
    n_feat = x.shape[1]
    rows = np.zeros((comm.size, 1 + 2 * n_feat))  # every rank's count, mean and M2: its own and zeros add up to all
    own = rows[comm.rank]
    own[0] = len(x)
    if len(x):
        kernels.column_moments(np.ascontiguousarray(x), own[1 : 1 + n_feat], own[1 + n_feat :])
    return merge_moments((int(row[0]), row[1 : 1 + n_feat], row[1 + n_feat :]) for row in comm.allreduce(rows))


class BatchNorm(Module):
    """Return (x - mean) / sqrt(var + eps) * gamma + beta, with the moments of each column over all rows of all ranks.

    In training the variance is the biased variance, M2 / n. Running averages of the mean and of the unbiased variance,
    M2 / (n - 1), are kept as float64 buffers and used in `eval`. They are updated as new = (1 - momentum) * old +
    momentum * batch. A column whose values are equal up to rounding leaves its running variance as it is.

    Parameters
    ----------
    n_feat : int
    momentum, eps : float
    dtype : float32 or float64
        Dtype of gamma and beta; the moments are always float64.

    Notes
    -----
    In training a call is collective: one allreduce of n_ranks * (2 * n_feat + 1) float64. Its backward pass is
    collective if x needs a gradient: one allreduce of 2 * n_feat. In `eval` nothing is communicated. Ranks without rows
    take part. The gradients of gamma and beta are this rank's sums; their sum over ranks is the gradient. Kept for the
    backward pass: x itself, and the moments.
    """

    buffers = ("running_mean", "running_var")
    _seen: list[tuple[int, Array, Array]] | None = None  # within `exact_moments` the moments of each call so far

    def __init__(self, n_feat: int, momentum: float = 0.1, eps: float = 1e-5, dtype: DType = np.float32) -> None:
        n_feat, dtype = whole("n_feat", n_feat), floating(dtype)
        self.gamma, self.beta = Parameter(np.ones(n_feat, dtype)), Parameter(np.zeros(n_feat, dtype))
        self.running_mean, self.running_var = np.zeros(n_feat), np.ones(n_feat)
        self.momentum, self.eps = momentum, eps

    def __call__(self, x: Tensor, comm: Communicator) -> Tensor:
        """Return x normalised.

        Parameters
        ----------
        x : Tensor, (n, n_feat)
            This rank's rows.
        comm : Communicator
        """
        return self.then(x, comm)

    def then(self, x: Tensor, comm: Communicator, **activation: Any) -> Tensor:
        """Normalise, activate and apply dropout in one pass; `activation` are further arguments of `activate`."""
        rows_of("BatchNorm", x, len(self.running_mean), self.gamma.dtype)
        if (self.training or self._seen is not None) and not hasattr(comm, "allgather"):
            raise ConfigError(f"BatchNorm: comm is a {type(comm).__name__}, but must be a communicator, "
                              "such as graph.comm")
        x, gamma, beta = operands(x, self.gamma, self.beta)
        return activate(x, gamma=gamma, beta=beta, statistics=self._statistics(x, comm), **activation)

    def describe(self) -> str:
        return f"{len(self.gamma)}"

    def _statistics(self, x, comm):
        if self.training:
            count, mean, m2 = self._moments(x, comm)
            if count:
                variance = self._variance(count, mean, m2, x.dtype)
                self.running_mean += self.momentum * (mean - self.running_mean)
                self.running_var += self.momentum * (variance - self.running_var)
            return Statistics(mean, 1 / np.sqrt(m2 / max(count, 1) + self.eps), comm, max(count, 1))
        if self._seen is not None:
            self._seen.append(self._moments(x, comm))
            count, mean, m2 = merge_moments(self._seen)
            if count:
                self.running_mean[...], self.running_var[...] = mean, self._variance(count, mean, m2, x.dtype)
        return Statistics(self.running_mean.copy(), 1 / np.sqrt(self.running_var + self.eps))

    def _variance(self, count, mean, m2, dtype):
        """Return each column's unbiased variance, but the running variance of a column without variance.

        In training such a column becomes beta. With a running variance of 0 `eval` would multiply what the running mean
        lags behind by 1 / sqrt(eps).
        """
        variance = m2 / max(count - 1, 1)
        return np.where(variance <= (4 * np.finfo(dtype).eps * mean) ** 2, self.running_var, variance)

    def _moments(self, x, comm):
        """Return (count, mean, M2) of the rows of all ranks."""
        if getattr(x, "volatile", False):
            raise RuntimeError("BatchNorm inside a message would see the edges of one block only")
        if getattr(x, "placement", "") == "replicated" and numerics.name() == "exact":
            raise ConfigError("numerics exact: BatchNorm of a tensor that is the same on every rank would count its rows "
                              "once for each rank: nn.LayerNorm does not")
        return batch_moments(as_array(x), comm)


def exact_moments(model: Module, run: Callable[[], R]) -> R:
    """Return run(), a pass of the model in `eval`, with batch norms' moments of this pass's rows.

    These moments become the running averages. In training on minibatches the running averages came from rows of sampled
    neighbourhoods, and from the parameters of many steps. Afterwards a pass over the same rows, as `sarlite.predict`
    makes it of a checkpoint, has the same values.

    Parameters
    ----------
    model : Module
        Every `BatchNorm` in it gets exact moments.
    run : callable
        Calls the model, in `eval`. Where a pass calls a batch norm more than once, `run` is called once more: the
        moments of the norm's calls are merged, and are known only at the end of a pass.

    Notes
    -----
    Collective where the model has batch norms: each call of a norm is one allreduce of n_ranks * (2 * n_feat + 1)
    float64. A norm that gets no rows keeps its averages. Source: Wu and Johnson 2021, "Rethinking 'Batch' in
    BatchNorm", section 3 (precise batch norm), with one batch of all rows. """
    norms = [module for _, module in model.named_modules() if isinstance(module, BatchNorm)]
    for norm in norms:
        norm._seen = []
    try:
        found = run()
        again = any(len(norm._seen or ()) > 1 for norm in norms)
    finally:
        for norm in norms:
            norm._seen = None
    if again:
        del found
        found = run()
    return found

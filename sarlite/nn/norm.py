"""Layer norm, and batch norm that is exact over all ranks."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from sarlite import kernels, numerics
from sarlite.comm import Communicator
from sarlite.errors import ConfigError, check_int, check_number
from sarlite.nn.activate import Statistics, activate
from sarlite.nn.arguments import check_dtype, check_input
from sarlite.nn.module import Module, Parameter
from sarlite.numerics import by_numerics
from sarlite.tape import Tensor, ops
from sarlite.tape.pairwise import operands
from sarlite.tape.tensor import as_array
from sarlite.types import Array, DType

R = TypeVar("R")


class LayerNorm(Module):
    """Layer norm: (x - mean) / sqrt(var + eps) * gamma + beta, with the mean and the variance of each row. Not collective.

    Parameters
    ----------
    n_feat : int
        Length of the last axis of x.
    eps : float, not negative
    dtype : float32 or float64

    Attributes
    ----------
    gamma, beta : Parameter (n_feat,)
        Initialised with 1 and 0.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Tensor, nn
    >>> nn.LayerNorm(2)(Tensor(np.array([[1.0, 3.0]], np.float32))).data.round(3).tolist()
    [[-1.0, 1.0]]
    """

    def __init__(self, n_feat: int, eps: float = 1e-5, dtype: DType = np.float32) -> None:
        n_feat, dtype = check_int("n_feat", n_feat), check_dtype(dtype)
        self.gamma, self.beta = Parameter(np.ones(n_feat, dtype)), Parameter(np.zeros(n_feat, dtype))
        self.eps = check_number("eps", eps)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the normalised rows, of x's shape (..., n_feat)."""
        check_input("LayerNorm", x, len(self.gamma), self.gamma.dtype, ndim=None)
        return ops.layer_norm(x, self.gamma, self.beta, self.eps)

    def describe(self) -> str:
        return f"{len(self.gamma)}"


def merge_moments(moments: Iterable[tuple[int, Array, Array]]) -> tuple[int, Array, Array]:
    """Return (number of rows, mean, m2) of the union of disjoint sets of rows, where m2 = sum (x - mean)^2. `moments` has such a
    triple for each set.

    Parameters
    ----------
    moments : iterable of (int, (n_feat,) float64, (n_feat,) float64)
        (count, mean, M2) of each set; sets are merged in this order.

    Notes
    -----
    This does not suffer from cancellation, unlike E[x^2] - mean^2.

    References
    ----------
    Chan, Golub and LeVeque 1983, Eq. 2.1.
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
    """Return (number of rows, mean, sum (x - mean)^2) over the rows of all ranks, with the mean and the sum of each column in
    float64. x has this rank's rows. Collective.

    Parameters
    ----------
    x : (n, n_feat) array
        This rank's rows.
    comm : Communicator
    """
    n_feat = x.shape[1]
    rows = np.zeros((comm.size, 1 + 2 * n_feat))  # each rank fills its row, so the sum over ranks has all rows
    local = rows[comm.rank]
    local[0] = len(x)
    if len(x):
        kernels.column_moments(np.ascontiguousarray(x), local[1 : 1 + n_feat], local[1 + n_feat :])
    return merge_moments((int(row[0]), row[1 : 1 + n_feat], row[1 + n_feat :]) for row in comm.allreduce(rows))


class BatchNorm(Module):
    """Batch norm, (x - mean) / sqrt(var + eps) * gamma + beta, with the mean and the variance of each column of x over the rows of
    all ranks.

    In training the moments are those of the rows of all ranks, with the biased variance M2 / n. In evaluation they are
    running averages of the mean and of the unbiased variance M2 / (n - 1). Each training call updates the averages:
    new = (1 - momentum) * old + momentum * batch. A column whose values are equal up to rounding does not change its
    running variance.

    Parameters
    ----------
    n_feat : int
        Width of the rows.
    momentum : float in [0, 1]
        Weight of a batch in the running averages.
    eps : float, not negative
    dtype : float32 or float64
        Dtype of gamma and beta; the moments are always float64.

    Attributes
    ----------
    gamma, beta : Parameter (n_feat,)
        Initialised with 1 and 0.
    running_mean, running_var : (n_feat,) float64
        Running averages, initialised with 0 and 1.

    Notes
    -----
    In training a call is collective: one allreduce of n_ranks * (2 * n_feat + 1) float64. If x wants a gradient, the
    backward pass is collective too: one allreduce of 2 * n_feat float64. Ranks without rows take part. In evaluation
    nothing is communicated. The gradients of gamma and beta on a rank are the sums over the rank's rows, which the
    training step adds up over ranks. Residuals: x and the moments.

    Examples
    --------
    Two ranks as threads, of which each has one row; the moments are of both rows:

    >>> import numpy as np
    >>> from sarlite import Tensor, nn
    >>> from sarlite.comm import threads
    >>> def normalised(comm):
    ...     x = Tensor(np.array([[1.0 + 2.0 * comm.rank]], np.float32), placement="rows")
    ...     return nn.BatchNorm(1)(x, comm).data.round(3).tolist()
    >>> threads.run(2, normalised)
    [[[-1.0]], [[1.0]]]
    """

    buffers = ("running_mean", "running_var")
    _recorded_moments: list[tuple[int, Array, Array]] | None = None  # moments of each call inside `exact_moments`

    def __init__(self, n_feat: int, momentum: float = 0.1, eps: float = 1e-5, dtype: DType = np.float32) -> None:
        n_feat, dtype = check_int("n_feat", n_feat), check_dtype(dtype)
        self.gamma, self.beta = Parameter(np.ones(n_feat, dtype)), Parameter(np.zeros(n_feat, dtype))
        self.running_mean, self.running_var = np.zeros(n_feat), np.ones(n_feat)
        self.momentum, self.eps = check_number("momentum", momentum), check_number("eps", eps)
        if momentum > 1:
            raise ConfigError(f"momentum is {momentum}, but must be in [0, 1]: the weight of a batch in the running averages")

    def __call__(self, x: Tensor, comm: Communicator) -> Tensor:
        """Return x, this rank's rows, normalised with the mean and the variance of each column over the rows of all ranks of
        `comm`; in evaluation with running averages instead. Collective in training.

        Parameters
        ----------
        x : Tensor (n, n_feat)
            This rank's rows.
        comm : Communicator
            Ranks whose rows the moments are computed from, such as `graph.comm`.
        """
        return self.activated(x, comm)

    def activated(self, x: Tensor, comm: Communicator, *, kind: str = "identity", mask: kernels.Mask | None = None,
                  overwrite: bool = False) -> Tensor:
        """Return f(y) with dropout, where y is x after batch norm over the ranks of `comm`, and f is the function `kind`,
        "identity", "relu" or "elu". `mask` is the dropout mask (None: no dropout); `overwrite` writes the result over x.
        Collective.
        """
        check_input("BatchNorm", x, len(self.running_mean), self.gamma.dtype)
        if (self.training or self._recorded_moments is not None) and not hasattr(comm, "allgather"):
            raise ConfigError(f"BatchNorm: comm is a {type(comm).__name__}, but must be a communicator, "
                              "such as graph.comm")
        x, gamma, beta = operands(x, self.gamma, self.beta)
        return activate(x, gamma=gamma, beta=beta, statistics=self._statistics(x, comm), kind=kind, mask=mask,
                        overwrite=overwrite)

    def describe(self) -> str:
        return f"{len(self.gamma)}"

    def _statistics(self, x: Tensor, comm: Communicator) -> Statistics:
        """Return the mean and inverse standard deviation with which each column of x is normalised. In training they are computed
        from the rows of all ranks, and the running averages are updated; in evaluation the running averages are returned.
        """
        if self.training:
            count, mean, m2 = self._moments(x, comm)
            if count:
                variance = self._variance(count, mean, m2, x.dtype)
                self.running_mean += self.momentum * (mean - self.running_mean)
                self.running_var += self.momentum * (variance - self.running_var)
            return Statistics(mean, 1 / np.sqrt(m2 / max(count, 1) + self.eps), comm, max(count, 1))
        if self._recorded_moments is not None:
            self._recorded_moments.append(self._moments(x, comm))
            count, mean, m2 = merge_moments(self._recorded_moments)
            if count:
                self.running_mean[...], self.running_var[...] = mean, self._variance(count, mean, m2, x.dtype)
        return Statistics(self.running_mean.copy(), 1 / np.sqrt(self.running_var + self.eps))

    def _variance(self, count: int, mean: Array, m2: Array, dtype: DType) -> Array:
        """Return each column's unbiased variance, m2 / (count - 1), where m2 = sum (x - mean)^2. A column of (almost) equal values
        gets the running variance, because evaluation would divide by a variance of about 0.
        """
        variance = m2 / max(count - 1, 1)
        return np.where(variance <= (4 * np.finfo(dtype).eps * mean) ** 2, self.running_var, variance)

    def _moments(self, x: Tensor, comm: Communicator) -> tuple[int, Array, Array]:
        """Return (number of rows, mean, sum (x - mean)^2) over the rows of all ranks, for each column. Raise an error if x does not
        hold rows of this rank alone. Collective.
        """
        if getattr(x, "volatile", False):
            raise RuntimeError("BatchNorm inside a message would see only the edges of one block: normalize before or after aggregate")
        if getattr(x, "placement", "") == "replicated" and numerics.name() == "exact":
            raise ConfigError("numerics exact: BatchNorm of a tensor that is the same on every rank would count its rows "
                              "once for each rank: nn.LayerNorm does not")
        return batch_moments(as_array(x), comm)


def exact_moments(model: Module, run: Callable[[], R]) -> R:
    """Call run(), a function that evaluates `model`, and return its result. In this call, batch norms use the mean and variance of
    the evaluated rows, and store them in place of the running averages.

    The moments replace the running averages of the batch norms, so a later evaluation of the same rows, such as
    `sarlite.predict` of a checkpoint, has the same values. Running averages from training on minibatches are worse:
    they come from rows of sampled neighbourhoods and from the parameters of many steps.

    Parameters
    ----------
    model : Module
        Model whose `BatchNorm` modules get the moments.
    run : callable
        Function () that calls the model in evaluation. If it calls a batch norm more than once, `run` is called twice:
        the moments of the norm's calls are merged, which is possible only after the first pass.

    Returns
    -------
    object
        Result of the last call of `run`.

    Notes
    -----
    Collective if the model has batch norms: each call of a norm is one allreduce of n_ranks * (2 * n_feat + 1) float64.
    A norm that gets no rows keeps its averages.

    References
    ----------
    Wu and Johnson 2021, "Rethinking 'Batch' in BatchNorm", section 3 (precise batch norm), with one batch of all rows.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Tensor, nn
    >>> from sarlite.comm import Solo
    >>> norm, x = nn.BatchNorm(1).eval(), Tensor(np.array([[1.0], [3.0]], np.float32))
    >>> nn.exact_moments(norm, lambda: norm(x, Solo())).shape, norm.running_mean.tolist()
    ((2, 1), [2.0])
    """
    norms = [module for _, module in model.named_modules() if isinstance(module, BatchNorm)]
    for norm in norms:
        norm._recorded_moments = []
    try:
        result = run()
        again = any(len(norm._recorded_moments or ()) > 1 for norm in norms)
    finally:
        for norm in norms:
            norm._recorded_moments = None
    if again:
        del result
        result = run()
    return result

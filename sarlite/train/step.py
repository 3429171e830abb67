"""One training step: the loss of a batch, its gradients over all ranks, and a step of the optimizer."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sarlite import kernels, nn
from sarlite.comm import Communicator
from sarlite.errors import DataError, DivergenceError, number, raise_together
from sarlite.minibatch.batch import TrainingBatch
from sarlite.numerics import by_numerics
from sarlite.numerics.reductions import surely_finite
from sarlite.optim import Factor, Optimizer
from sarlite.profile import Profile
from sarlite.tape import Tensor, apply, ops
from sarlite.tape.row_index import row_numbers
from sarlite.tasks.task_losses import Loss
from sarlite.types import Array

_PIECE = 1 << 18


class PiggybackReduce:
    """Sums of a few numbers of each rank, computed by an allreduce that takes place anyway.

    So ranks agree, without another message, on events that one rank alone may notice, such as a signal.

    Attributes
    ----------
    own : callable
        () -> this rank's k numbers, with the same k on every rank. By default there are none.
    sums : (k,) float64
        Sums of the numbers in the last allreduce, the same on every rank. Empty before the first.
    """

    def __init__(self) -> None:
        self.own: Callable[[], Sequence[float]] = lambda: ()
        self.sums: Array = np.zeros(0)

    def allreduce(self, comm: Communicator, numbers: Sequence[float]) -> Array:
        """Return the sums of `numbers` over ranks, (n,) float64; `own` goes with them. Collective."""
        sums = comm.allreduce(np.array([*numbers, *self.own()], np.float64))
        self.sums = sums[len(numbers) :]
        return sums[: len(numbers)]


class TrainingStep:
    """One optimization step on a batch: loss over all ranks, gradients, parameter update. A call is collective.

    Parameters
    ----------
    model : callable Module, model(graph, x) -> output
    optimizer : Optimizer
        On the `Flat` of the model.
    rng : nn.Random
        The one that the model was made with; its `step` follows `n_steps`.
    comm : Communicator
        Its ranks all take every step, with or without rows.
    schedule : callable
        Factor of the learning rate by global step.
    profile : Profile, optional
        Where the span "optimizer" goes.
    clip_norm : float above 0, optional
        The largest norm of the gradients of all ranks' parameters together; larger ones are scaled down to it.

    Raises
    ------
    ConfigError
        A clip_norm that is not finite and above 0.

    Attributes
    ----------
    n_steps : int
        The global step: the number of steps taken. Set it to continue a training.
    riders : PiggybackReduce
        Numbers that travel with the loss.
    lr : float
        The learning rate of the last step.
    own_seconds : float
        Seconds of the last step until this rank had its gradients, before it waited for other ranks' gradients.
    buffers : kernels.Buffers
        Memory for the arrays of a step. After the first steps no large array is allocated.
    """

    def __init__(self, model: Any, optimizer: Optimizer, rng: nn.Random, comm: Communicator, *,
                 schedule: Factor = lambda step: 1.0, profile: Profile | None = None,
                 clip_norm: float | None = None) -> None:
        self.clip_norm = None if clip_norm is None else number("clip_norm", clip_norm, positive=True)
        self.model, self.optimizer, self.rng, self.comm, self.schedule = model, optimizer, rng, comm, schedule
        self.profile = profile or Profile()
        self.buffers, self.riders = kernels.Buffers(), PiggybackReduce()
        self.n_steps, self.lr, self.own_seconds = 0, 0.0, 0.0

    def __call__(self, batch: TrainingBatch, loss: Loss = ops.cross_entropy) -> float:
        """Take one step over a batch and return the loss over all ranks. Collective.

        Parameters
        ----------
        batch : TrainingBatch
            As a loader yields it, or a `FullBatch`. A rank may have no rows.
        loss : callable
            (output, targets, rows, count) -> this rank's share of the loss, a scalar Tensor. The share must depend on
            `output` also without rows. `rows` are row numbers. The sum over ranks is the loss. In exact numerics a
            loss of `ops` sums over all ranks, so a check that may fail on one rank comes before the call.

        Raises
        ------
        DataError
            On every rank together: the loss, or with `clip_norm` the gradients' norm, is not finite. It is a
            DivergenceError unless a feature is not finite. No parameter has changed then.
        Exception
            An error that `loss` raised on this rank, or an error of `batch.rows`. On the other ranks it is a
            SarliteError with the same text. No parameter has changed.

        Notes
        -----
        Sends what the model sends, and one allreduce of the replicated parameters' gradients, on the channel
        "gradients". Another allreduce adds the loss. Gradients of parameters owned by rows are not sent. With
        `clip_norm` one more number is sent.
        """
        x = batch.x  # gathered outside of this step's buffers
        flat, begin = self.optimizer.flat, time.perf_counter()
        self.rng.step = self.n_steps
        self.model.train()
        flat.zero_grad()
        with self.buffers:
            total, error = self._backward(batch, x, loss)
            gradients = flat.start_allreduce(self.comm.channel("gradients"))
            self.own_seconds = time.perf_counter() - begin
            total = float(self.riders.allreduce(self.comm, [total])[0])
            with self.profile.span("allreduce", bytes=flat.data.nbytes):
                gradients.wait()
            if not np.isfinite(total):  # the same on every rank
                raise_together(self.comm, error or not_finite(x, f", so the loss is {total}"))
                raise DivergenceError(f"the loss is {total} at step {self.n_steps + 1}: try a lower learning rate")
            if self.clip_norm is not None:
                self._clip(flat)
            with self.profile.span("optimizer"):
                factor = self.schedule(self.n_steps)
                self.optimizer.step(factor)
                self.lr = float(self.optimizer.lr * factor)
        self.n_steps += 1
        return total

    def _clip(self, flat):
        """Scale all gradients down to `clip_norm`."""
        norm = gradient_norm(self.comm, flat.grad, [group.gradient for group in flat.owned])
        if not np.isfinite(norm):
            raise DivergenceError(f"the norm of the gradients is {norm} at step {self.n_steps + 1}: try a lower "
                                  "learning rate")
        factor = self.clip_norm / max(norm, self.clip_norm)
        for group in flat.groups:  # also where nothing changes: what a step does depends on sizes alone
            gradient = group.gradient
            gradient *= factor

    def _backward(self, batch, x, loss):
        """Fill the gradients; return this rank's share of the loss, and the error of its rows or of its loss.

        With an error the share is NaN, so that all ranks learn of the error from the sum of the shares. The rank still
        takes part in the loss's sum over rows and in the backward pass of all layers, as other ranks wait for both. The
        tape alone holds the output, so that the backward pass can free it early.
        """
        graph, error = batch.graph, None
        output = self.model(graph, x)
        try:
            share = loss(output, batch.labels, row_numbers("rows", batch.rows, graph.n_dst), batch.n_global)
        except Exception as found:
            if not isinstance(output, Tensor) or not output.ndim:
                raise
            share, error = apply("share", output[:0]), found.with_traceback(None)
        del output
        share.backward()
        return (share.item() if error is None else np.nan), error


@by_numerics
def gradient_norm(comm: Communicator, replicated: Array, owned: list[Array]) -> float:
    """Return the norm of the replicated gradients and of all ranks' owned gradients together. Collective.

    Each rank adds the squares of its share of the replicated gradients, so all ranks get the same number.
    """
    share = replicated[replicated.size * comm.rank // comm.size : replicated.size * (comm.rank + 1) // comm.size]
    return float(comm.allreduce(np.array([sum(_squares(g) for g in (share, *owned))]))[0]) ** 0.5


def _squares(gradient):
    """Return the sum of squares, float64, computed piece by piece."""
    flat = gradient.reshape(-1)
    return float(sum(np.square(flat[at : at + _PIECE], dtype=np.float64).sum() for at in range(0, flat.size, _PIECE)))


def not_finite(x: Any, then: str = "", name: str = "x") -> DataError | None:
    """Return a DataError for the first value of x (array, pair or dict of arrays) that is not finite, or None."""
    if isinstance(x, dict):
        return next(filter(None, (not_finite(rows, then, f"{name}[{key!r}]") for key, rows in x.items())), None)
    for array in x if isinstance(x, tuple) else (x,):
        array = array._data if isinstance(array, Tensor) else np.asarray(array)
        if array.dtype.kind != "f" or surely_finite(array):
            continue
        wrong = np.argwhere(~np.isfinite(array))
        if len(wrong):
            where = ", ".join(map(str, wrong[0]))
            return DataError(f"{name}[{where}] is {array[tuple(wrong[0])]}{then}: features must be finite")
    return None

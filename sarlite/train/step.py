"""One training step: the loss of a batch, its gradients over all ranks, and a step of the optimizer."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sarlite import kernels, nn
from sarlite.comm import Communicator
from sarlite.errors import ConfigError, DataError, DivergenceError, check_number, raise_together
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
    """Allreduce of the loss that also sums a few other numbers over ranks, such as "a signal has come", without another message.

    The ranks thus agree, without another message, on events that only one rank may notice, such as a signal.

    Attributes
    ----------
    local : callable
        Function () -> this rank's k numbers, with the same k on every rank. By default k is 0.
    sums : (k,) float64
        Sums over ranks of the numbers in the last allreduce. Empty before the first allreduce.
    """

    def __init__(self) -> None:
        self.local: Callable[[], Sequence[float]] = lambda: ()
        self.sums: Array = np.zeros(0)

    def allreduce(self, comm: Communicator, numbers: Sequence[float]) -> Array:
        """Sum `numbers` over all ranks and return the sums, (n,). The same allreduce also sums the numbers that `local()` returns; their
        sums are stored in `self.sums`. Collective.
        """
        sums = comm.allreduce(np.array([*numbers, *self.local()], np.float64))
        self.sums = sums[len(numbers) :]
        return sums[: len(numbers)]


class TrainingStep:
    """Function that takes one optimizer step on a batch: loss, gradients summed over ranks, and update.

    Parameters
    ----------
    model : callable Module
        Function model(graph, x) -> output.
    optimizer : Optimizer
        Optimizer of the model's `nn.Flat`.
    rng : nn.Random
        The source of random numbers that the model was made with. Each step sets `rng.step` to `n_steps`, and likewise in
        every other source that a module of the model holds, such as those of a copied model.
    comm : Communicator
        All its ranks take every step, even without rows.
    schedule : callable
        Function global step -> factor of the learning rate, not negative.
    profile : Profile, optional
        Profile that records the spans "allreduce" and "optimizer".
    clip_norm : float above 0, optional
        Upper bound of the norm of all ranks' gradients together. Larger gradients are scaled down to this norm.

    Attributes
    ----------
    n_steps : int
        The global step: the number of steps so far. Set it to continue a training.
    riders : PiggybackReduce
        Numbers that travel with the loss.
    lr : float
        Learning rate of the last step.
    own_seconds : float
        Seconds of the last step until this rank had its gradients, without the wait for other ranks' gradients.
    buffers : kernels.Buffers
        Memory for the arrays of a step. After the first steps no large array is allocated.

    Raises
    ------
    ConfigError
        `clip_norm` is not finite and above 0, or the optimizer has a parameter of another model.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Solo, Tensor, nn, optim
    >>> from sarlite.minibatch.batch import FullBatch
    >>> from sarlite.models import SAGE
    >>> graph, rng = Graph.from_edges([0, 1, 2], [1, 2, 0], 3), nn.Random(0)
    >>> model = SAGE(3, 2, layers=1, rng=rng)
    >>> step = TrainingStep(model, optim.SGD(nn.flatten(model), 0.5), rng, Solo())
    >>> x = Tensor(np.eye(3, dtype=np.float32), constant=True, placement="rows")
    >>> batch = FullBatch(graph, x, labels=np.array([0, 1, 1]), rows=np.arange(3), n_global=3)
    >>> step(batch) > step(batch), step.n_steps
    (True, 2)
    """

    def __init__(self, model: Any, optimizer: Optimizer, rng: nn.Random, comm: Communicator, *,
                 schedule: Factor = lambda step: 1.0, profile: Profile | None = None,
                 clip_norm: float | None = None) -> None:
        self.clip_norm = None if clip_norm is None else check_number("clip_norm", clip_norm, positive=True)
        self.model, self.optimizer, self.rng, self.comm, self.schedule = model, optimizer, rng, comm, schedule
        parameters = {id(parameter) for parameter in model.parameters()}
        foreign = next((name for name, parameter in optimizer.flat.named if id(parameter) not in parameters), None)
        if foreign is not None:
            raise ConfigError(f"optimizer: its parameter {foreign!r} is not in the model {type(model).__name__}: make the optimizer "
                              "from nn.flatten(model)")
        self._random_sources = [rng, *(value for _, module in model.named_modules() for value in vars(module).values()
                                       if isinstance(value, nn.Random))]
        self.profile = profile or Profile()
        self.buffers, self.riders = kernels.Buffers(), PiggybackReduce()
        self.n_steps, self.lr, self.own_seconds = 0, 0.0, 0.0

    def __call__(self, batch: TrainingBatch, loss: Loss = ops.cross_entropy) -> float:
        """Take one optimizer step on a batch and return the batch's loss over the rows of all ranks. `loss` is a function that returns this
        rank's summand of the loss: the sum over ranks is the loss. Collective.

        Parameters
        ----------
        batch : TrainingBatch
            A batch of a loader, or a `FullBatch`. It may have no rows on this rank.
        loss : callable
            Function (output, targets, rows, count) -> this rank's share of the loss, a scalar Tensor. `rows` are row
            numbers of `output`, and `count` is the number of rows over all ranks. The sum of the shares over ranks is
            the loss. The share must depend on `output` even without rows. In exact numerics a loss of `ops` is
            collective, so a check that can fail on one rank must come before the call.

        Returns
        -------
        float
            The loss before the update, the same on every rank.

        Raises
        ------
        DivergenceError
            On every rank: the loss, or with `clip_norm` the norm of the gradients, is not finite.
        DataError
            On every rank: the loss is not finite because a feature is not finite.
        ConfigError
            The factor of the schedule is negative, not finite or no number.
        Exception
            On this rank: an error that `loss` raised, or an error in `batch.rows`. Other ranks raise a SarliteError
            with the same text. After any of these errors no parameter has changed.

        Notes
        -----
        Bytes sent: the messages of the model, one allreduce of the replicated parameters' gradients on the channel
        "gradients", and one small allreduce of the loss. Gradients of parameters that are owned by rows are not sent.
        With `clip_norm` one more number is sent.
        """
        x = batch.x  # gathered here, with memory of the batch's buffers
        flat, begin = self.optimizer.flat, time.perf_counter()
        factor = check_number(f"the factor of the schedule at step {self.n_steps + 1}", self.schedule(self.n_steps))
        for source in self._random_sources:
            source.step = self.n_steps
        self.model.train()
        flat.zero_grad()
        with self.buffers:
            total, error = self._forward_and_backward(batch, x, loss)
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
                self.optimizer.step(factor)
                self.lr = float(self.optimizer.lr * factor)
        self.n_steps += 1
        return total

    def _clip(self, flat):
        """Scale the gradients of all parameters, which `flat` holds, by one factor so that the norm of all together is at most `clip_norm`.
        Collective.
        """
        norm = gradient_norm(self.comm, flat.grad, [group.gradient for group in flat.owned])
        if not np.isfinite(norm):
            raise DivergenceError(f"the norm of the gradients is {norm} at step {self.n_steps + 1}: try a lower "
                                  "learning rate")
        factor = self.clip_norm / max(norm, self.clip_norm)
        for group in flat.groups:  # also if the factor is 1, so that all steps compute the same operations
            gradient = group.gradient
            gradient *= factor

    def _forward_and_backward(self, batch, x, loss):
        """Run the model on the input rows x of a batch, compute `loss` and all gradients. Return (this rank's summand of the loss over all
        ranks, None), or (NaN, error) if `loss` raised an error.

        After an error the share is NaN, so that all ranks learn of the error from the sum of the shares. The rank still
        takes part in the backward pass of all layers, because other ranks wait for its messages. Only the tape refers
        to the output, so that the backward pass can free it early.
        """
        graph, error = batch.graph, None
        output = self.model(graph, x)
        try:
            share = loss(output, batch.labels, row_numbers("rows", batch.rows, graph.n_dst), batch.n_global)
        except Exception as loss_error:
            if not isinstance(output, Tensor) or not output.ndim:
                raise
            share, error = apply("share", output[:0]), loss_error.with_traceback(None)
        del output
        share.backward()
        return (share.item() if error is None else np.nan), error


@by_numerics
def gradient_norm(comm: Communicator, replicated: Array, owned: list[Array]) -> float:
    """Return the Euclidean norm of all gradients as one vector: `replicated`, which are equal on all ranks and count once, and `owned`,
    which each rank has for its own rows. Collective.

    Each rank sums the squares of a part of the replicated gradients, and the allreduce adds the sums of all ranks.
    """
    share = replicated[replicated.size * comm.rank // comm.size : replicated.size * (comm.rank + 1) // comm.size]
    return float(comm.allreduce(np.array([sum(_squares(g) for g in (share, *owned))]))[0]) ** 0.5


def _squares(gradient: Array) -> float:
    """Return the sum of squares of a gradient in float64; the squares are computed in pieces to save memory."""
    flat = gradient.reshape(-1)
    return float(sum(np.square(flat[at : at + _PIECE], dtype=np.float64).sum() for at in range(0, flat.size, _PIECE)))


def not_finite(x: object, then: str = "", name: str = "x") -> DataError | None:
    """Return a DataError that names the first value of x that is NaN or infinite, None if all are finite. `name` is the name of x in the
    message, and `then` a text to add about the consequence.

    Parameters
    ----------
    x : array, Tensor, tuple of arrays, or dict of str to arrays
    then : str
        Consequence, which the message adds after the value.
    name : str
        Name of x in the message.

    Examples
    --------
    >>> not_finite(np.array([[0.0, np.inf]]))
    DataError('x[0, 1] is inf: features must be finite')
    """
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

"""SGD and Adam on the groups of a module's parameters, and learning-rate schedules."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sarlite.command import suggestion
from sarlite.errors import CheckpointError, ConfigError, number, whole
from sarlite.keys import MOST_STEPS
from sarlite.nn.flat import Flat, Group
from sarlite.nn.module import load_arrays
from sarlite.numerics import power
from sarlite.types import Array

Decay = float | Callable[[str], float]  # of all parameters, or by name
Factor = Callable[[int], float]  # of the learning rate, by step

class Optimizer:
    """The base of SGD and Adam: a step of each group of parameters, given its data and gradient.

    Parameters
    ----------
    flat : Flat
        From `sarlite.nn.flatten`. When `step` is called, it must hold the gradients of the loss over all ranks.
    lr : float above 0
    weight_decay : float or callable
        The decay of all parameters, or a function from a parameter's name to its decay, such as
        `lambda name: 5e-4 if name.startswith("layers.0.") else 0.0`.

    Attributes
    ----------
    kept : list of dict
        For each of `flat.groups` the arrays on which later steps depend, by name, each of the shape of the group's
        `data`.

    Raises
    ------
    ConfigError
        `flat` is none, or a number is not in its range, which the message tells.

    Notes
    -----
    In a parameter owned by rows, a step changes the values, decay and state of those rows alone whose gradient is not
    0: learned rows without edges stay as they are. """

    keeps: tuple[str, ...] = ()

    def __init__(self, flat: Flat, lr: float, weight_decay: Decay = 0.0) -> None:
        if not isinstance(flat, Flat):
            raise ConfigError(f"an optimizer takes what nn.flatten(model) returns, not a {type(flat).__name__}")
        self.flat, self.lr = flat, number("lr", lr, positive=True)
        self.decays = [_decay(group, weight_decay) for group in flat.groups]
        self.kept = [{name: np.zeros_like(group.data) for name in self.keeps} for group in flat.groups]

    def __repr__(self) -> str:
        decays = {float(d) for decay in self.decays for d in np.unique([0.0 if decay is None else decay])}
        decayed = f", weight_decay={' or '.join(f'{d:g}' for d in sorted(decays))}" if decays != {0.0} else ""
        return f"{type(self).__name__}(lr={self.lr:g}{self._words()}{decayed}; {self.flat!r})"

    def _words(self):
        return ""

    def step(self, factor: float = 1.0) -> None:
        """Change the parameters in place, with the learning rate lr * factor. Local."""
        with np.errstate(over="ignore", invalid="ignore"):  # the next loss tells of values that are not finite then
            for group, decay, kept in zip(self.flat.groups, self.decays, self.kept):
                self._step_rows(group, decay, self.lr * factor, kept)
        self.flat.changed()

    def _step_rows(self, group, decay, lr, kept):
        """Step a group. In a group owned by rows, step the rows that a gradient has touched."""
        data, grad = group.data, group.gradient
        touched = None if group.ids is None else self.touched(group) if grad.size else group.ids[:0]
        if touched is None or len(touched) == len(data):
            return self.update(data, grad, decay, lr, **kept)
        some = data[touched]
        some_kept = {name: array[touched] for name, array in kept.items()}
        self.update(some, grad[touched], decay, lr, **some_kept)
        data[touched] = some
        for name, array in some_kept.items():
            kept[name][touched] = array

    def touched(self, group: Group) -> Array:
        """Return the numbers of the rows that have a gradient, in a group owned by rows."""
        rows = group.touched
        grad = group.gradient if rows is None else group.gradient[rows]
        some = grad.reshape(len(grad), math.prod(grad.shape[1:])).any(1)
        return np.flatnonzero(some) if rows is None else rows[some]

    def update(self, data: Array, grad: Array, decay: Any, lr: float, **kept: Array) -> None:
        """Step one group in place; `grad` stays. `decay` is None, a number, or one for each entry of `data`."""
        raise NotImplementedError

    def state_arrays(self) -> dict[str, Array]:
        """Return the arrays on which later steps depend, by name.

        The arrays of a group owned by rows have this rank's rows; their names have the parameter, as
        "m.embedding.weight". """
        return {f"{name}.{group.names[0]}" if group.ids is not None else name: array
                for group, kept in zip(self.flat.groups, self.kept) for name, array in kept.items()}

    def rows_of(self) -> dict[str, str]:
        """Return the name of the parameter for the name of each array of the state that is owned by rows."""
        return {f"{name}.{group.names[0]}": group.names[0] for group in self.flat.owned for name in self.keeps}

    def state_dict(self) -> dict[str, Array]:
        """Return copies of `state_arrays`."""
        return {name: array.copy() for name, array in self.state_arrays().items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Copy arrays in place; CheckpointError names a field that does not fit."""
        load_arrays(self.state_arrays(), state, "the optimizer")


def _decay(group, weight_decay):
    """The decay of a group: None where it is 0 everywhere, a number where it is the same, else one for each value."""
    of = weight_decay if callable(weight_decay) else lambda name: weight_decay
    values = [number("weight_decay", of(name)) for name in group.names]
    if len(set(values)) <= 1:
        return values[0] if values and values[0] else None
    decays = np.zeros_like(group.data)
    for value, where in zip(values, group.slices):
        decays[where] = value
    return decays


def _decayed(grad, decay, data):
    """The gradient of loss + decay / 2 * |w|^2."""
    if decay is None:
        return grad
    found = decay * data
    found += grad
    return found


class SGD(Optimizer):
    """Stochastic gradient descent: v = momentum * v + g, w -= lr * v, where g includes weight_decay * w.

    Parameters
    ----------
    flat, lr, weight_decay
        See `Optimizer`.
    momentum : float in [0, 1)
    """

    def __init__(self, flat: Flat, lr: float, momentum: float = 0.0, weight_decay: Decay = 0.0) -> None:
        self.momentum = number("momentum", momentum, below=1)
        self.keeps = ("velocity",) if self.momentum else ()
        super().__init__(flat, lr, weight_decay)

    def _words(self):
        return f", momentum={self.momentum:g}"

    def update(  # type: ignore[override]
        self, data: Array, grad: Array, decay: Any, lr: float, velocity: Array | None = None
    ) -> None:
        """Step one group in place."""
        g = _decayed(grad, decay, data)
        if velocity is not None:
            velocity *= self.momentum
            velocity += g
            g = velocity
        data -= lr * g


class Adam(Optimizer):
    """Adam: w -= lr * m' / (sqrt(v') + eps), with m' and v' the bias-corrected means of g and g^2.

    Parameters
    ----------
    flat, lr, weight_decay
        See `Optimizer`.
    betas : pair of float in [0, 1)
    eps : float
    decoupled : bool
        Decay the weights by lr * weight_decay outside the means (AdamW), not through the gradient.

    Attributes
    ----------
    values_at_once : int
        Values that are stepped at a time. With their gradients, moments and what is made of them they stay in the
        cache.

    Notes
    -----
    Memory: two values a parameter. Sources: Kingma and Ba 2015, alg. 1; Loshchilov and Hutter 2019, alg. 2.
    """

    keeps = ("m", "v")
    values_at_once = 1 << 15

    def __init__(self, flat: Flat, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: Decay = 0.0, decoupled: bool = False) -> None:
        if len(betas) != 2:
            raise ConfigError(f"betas are {betas!r}, but must be two numbers in [0, 1)")
        self.betas = tuple(number("beta", b, below=1) for b in betas)
        self.eps, self.decoupled = number("eps", eps), decoupled
        self.n_steps = np.zeros((), np.int64)
        super().__init__(flat, lr, weight_decay)

    def _words(self):
        return f", betas={self.betas}, step {int(self.n_steps)}{', decoupled' if self.decoupled else ''}"

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        n_steps = np.asarray(state.get("n_steps", 0))
        if n_steps.dtype.kind in "iu" and not np.all((0 <= n_steps) & (n_steps <= MOST_STEPS)):
            raise CheckpointError(f"n_steps of the optimizer is {n_steps}, outside 0 <= n_steps <= {MOST_STEPS}")
        super().load_state_dict(state)

    def step(self, factor: float = 1.0) -> None:
        """Change the parameters in place, with the learning rate lr * factor. Local."""
        self.n_steps += 1
        super().step(factor)

    def update(  # type: ignore[override]
        self, data: Array, grad: Array, decay: Any, lr: float, m: Array, v: Array
    ) -> None:
        """Step one group in place, part by part."""
        some = max(self.values_at_once // max(data[:1].size, 1), 1)
        for part in (slice(start, start + some) for start in range(0, len(data), some)):
            of_part = decay[part] if isinstance(decay, np.ndarray) else decay
            self._update(data[part], grad[part], of_part, lr, m[part], v[part])

    def _update(self, data, grad, decay, lr, m, v):
        (beta1, beta2), g = self.betas, grad if self.decoupled else _decayed(grad, decay, data)
        if self.decoupled and decay is not None:
            data -= lr * decay * data
        change = g - m
        change *= 1 - beta1
        m += change
        np.multiply(g, g, out=change)
        change -= v
        change *= 1 - beta2
        v += change
        correction1, correction2 = (1 - power(beta, int(self.n_steps)) for beta in self.betas)
        root = np.sqrt(v)
        root /= math.sqrt(correction2)
        root += self.eps
        np.multiply(m, lr / correction1, out=change)
        change /= root
        data -= change

    def state_arrays(self) -> dict[str, Array]:
        return {**super().state_arrays(), "n_steps": self.n_steps}


# ---- schedules: functions epoch -> factor of the learning rate; full-batch, an epoch is a step


def constant() -> Factor:
    """Return 1 at every epoch."""
    return lambda epoch: 1.0


def cosine(epochs: int) -> Factor:
    """Return the half wave from 1 at epoch 0 to 0 at `epochs`."""
    epochs = whole("epochs of cosine", epochs)
    return lambda epoch: 0.5 * (1 + math.cos(math.pi * min(epoch / max(epochs, 1), 1.0)))


def steps(every: int, factor: float) -> Factor:
    """Return factor ** (epoch // every)."""
    every, factor = whole("every of steps", every, 1), number("factor of steps", factor, positive=True)
    return lambda epoch: factor ** (epoch // every)


def warmup(epochs: int, then: Factor) -> Factor:
    """Return a factor that rises from 1/epochs at epoch 0 to 1 at epoch epochs - 1; then follows `then`."""
    return Warmup(epochs, then)


class Warmup:
    """The schedule that `warmup` returns."""

    def __init__(self, epochs: int, then: Factor) -> None:
        self.epochs, self.then = whole("epochs of warmup", epochs, 1), then

    def __call__(self, epoch: int) -> float:
        return (epoch + 1) / self.epochs if epoch < self.epochs else self.then(epoch - self.epochs)


class Plateau:
    """A factor that falls whenever the best epoch was `patience` epochs ago: after k falls it is `factor` ** k.

    Parameters
    ----------
    factor : float in (0, 1)
    patience : int
        Epochs without a better one, counted from the best one or from the last fall.

    Attributes
    ----------
    falls, last : int
        How many falls there were, and after which epoch the last one was.
    """

    def __init__(self, factor: float = 0.1, patience: int = 10) -> None:
        if not 0 < factor < 1:
            raise ConfigError(f"the factor of a plateau is {factor}, but must be in (0, 1)")
        self.factor, self.patience = factor, whole("the patience of a plateau", patience, 1)
        self.falls = self.last = 0

    def __call__(self, epoch: int) -> float:
        return self.factor**self.falls

    def evaluated(self, epoch: int, best_epoch: int) -> None:
        """Take note that after `epoch` the best epoch is `best_epoch`."""
        if epoch - max(best_epoch, self.last) >= self.patience:
            self.falls, self.last = self.falls + 1, epoch

    def state(self) -> dict[str, int]:
        """Return the numbers on which later epochs depend."""
        return {"falls": self.falls, "last": self.last}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Restore what `state` returned; a CheckpointError for anything else."""
        if not all(type(state.get(name)) is int and state[name] >= 0 for name in ("falls", "last")):
            raise CheckpointError(f"the state of a plateau is {dict(state)}, but must be falls and last, whole numbers")
        self.falls, self.last = state["falls"], state["last"]


def plateau_of(schedule: Factor) -> Plateau | None:
    """Return the Plateau in a schedule, if there is one."""
    while isinstance(schedule, Warmup):
        schedule = schedule.then
    return schedule if isinstance(schedule, Plateau) else None


def schedule(spec: str, epochs: int) -> Factor:
    """Read a schedule from text and return it as a function epoch -> factor.

    Parameters
    ----------
    spec : str
        "constant", "cosine", "step:EVERY:FACTOR", "plateau:FACTOR:PATIENCE" or "warmup:EPOCHS:REST" with a schedule as
        REST, such as "step:30:0.1" or "warmup:10:cosine".
    epochs : int
        The length of training; cosine ends there.

    Raises
    ------
    ConfigError
        If `spec` is none of these.
    """
    name, *arguments = spec.split(":")
    try:
        if name == "constant" and not arguments:
            return constant()
        if name == "cosine" and not arguments:
            return cosine(epochs)
        if name == "step" and len(arguments) == 2:
            return steps(int(arguments[0]), float(arguments[1]))
        if name == "plateau" and len(arguments) == 2:
            return Plateau(float(arguments[0]), int(arguments[1]))
        if name == "warmup" and len(arguments) >= 2:
            length = whole("epochs of warmup", int(arguments[0]), 1)
            return warmup(length, schedule(":".join(arguments[1:]), max(epochs - length, 0)))
    except ValueError as error:  # a ConfigError too
        raise ConfigError(f"schedule {spec!r}: {error}") from None
    close = suggestion(name, ("constant", "cosine", "step", "plateau", "warmup"))
    known = "constant, cosine, step:EVERY:FACTOR, plateau:FACTOR:PATIENCE, warmup:EPOCHS:REST"
    raise ConfigError(f"schedule {spec!r} is none of {known}{close}")

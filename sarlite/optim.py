"""Optimizers SGD and Adam, and learning-rate schedules."""

import math
import warnings
from collections.abc import Callable, Mapping

import numpy as np

from sarlite.command import suggestion
from sarlite.errors import CheckpointError, ConfigError, check_int, check_number
from sarlite.keys import MOST_STEPS
from sarlite.nn.flat import Flat, Group
from sarlite.nn.module import load_arrays
from sarlite.numerics import power
from sarlite.types import Array

__all__ = ["SGD", "Adam", "Optimizer", "Plateau", "constant", "cosine", "schedule", "steps", "warmup"]

Decay = float | Callable[[str], float]
"""Weight decay of all parameters, or a function from a parameter's name to its weight decay."""
GroupDecay = float | Array | None
"""Weight decay of a group: None for 0, a number, or one number for each value of the group."""
Factor = Callable[[int], float]
"""Function epoch -> factor of the learning rate."""


class Optimizer:
    """Base class of optimizers, which change the parameters of a `Flat`, a module's flattened parameters, in place.

    A subclass implements `update`, and names the arrays of its state in `state_names`.

    Parameters
    ----------
    flat : Flat
        Parameters, from `sarlite.nn.flatten`. When `step` is called, its gradients must be sums over all ranks.
    lr : float above 0
        Learning rate.
    weight_decay : float or callable
        Weight decay of all parameters, or a function from a parameter's name to its weight decay, such as
        `lambda name: 5e-4 if name.startswith("layers.0.") else 0.0`.

    Attributes
    ----------
    state_names : tuple of str
        Names of the state's arrays, such as Adam's ("m", "v").
    states : list of dict of str to ndarray
        State of each group of `flat.groups`: arrays of the shape of the group's `data`, by name.

    Raises
    ------
    ConfigError
        `flat` is no Flat, or a number is out of its range.

    Notes
    -----
    In a parameter owned by rows, a step changes only the rows whose gradient is not 0: their values and their state.
    Weight decay too acts on these rows only.

    Examples
    --------
    >>> from sarlite import nn, optim
    >>> class SignDescent(optim.Optimizer):
    ...     def update(self, data, grad, decay, lr):
    ...         data -= lr * (grad > 0)
    >>> flat = nn.flatten(nn.LayerNorm(2))
    >>> flat.grad = [3.0, 0.5, 0.0, 0.0]
    >>> SignDescent(flat, lr=0.25).step()
    >>> flat.data.tolist()
    [0.75, 0.75, 0.0, 0.0]
    """

    state_names: tuple[str, ...] = ()

    def __init__(self, flat: Flat, lr: float, weight_decay: Decay = 0.0) -> None:
        if not isinstance(flat, Flat):
            raise ConfigError(f"flat is a {type(flat).__name__}, but must be what nn.flatten(model) returns")
        self.flat, self.lr = flat, check_number("lr", lr, positive=True)
        self.decays = [_decay(group, weight_decay) for group in flat.groups]
        self.states = [{name: np.zeros_like(group.data) for name in self.state_names} for group in flat.groups]

    @property
    def kept(self) -> list[dict[str, Array]]:
        """Deprecated name of `states`, the optimizer's state arrays by name, for each group of parameters."""
        warnings.warn("Optimizer.kept is now called states", DeprecationWarning, stacklevel=2)
        return self.states

    def __repr__(self) -> str:
        decays = {float(d) for decay in self.decays for d in np.unique([0.0 if decay is None else decay])}
        decayed = f", weight_decay={' or '.join(f'{d:g}' for d in sorted(decays))}" if decays != {0.0} else ""
        return f"{type(self).__name__}(lr={self.lr:g}{self._words()}{decayed}; {self.flat!r})"

    def _words(self):
        """Return the options of a subclass, such as momentum, as text that `repr` shows after the learning rate; empty by default."""
        return ""

    def step(self, factor: float = 1.0) -> None:
        """Change the parameters in place by one step, with the learning rate `factor` * lr. Not collective.

        Parameters whose `requires_grad` is False, and their state, stay as they are.
        """
        frozen = [array.reshape(-1)[where] for group, state in zip(self.flat.groups, self.states) for where in group.frozen()
                  for array in (group.data, *state.values())]
        values = [part.copy() for part in frozen]
        with np.errstate(over="ignore", invalid="ignore"):  # the next loss shows values that are not finite
            for group, decay, state in zip(self.flat.groups, self.decays, self.states):
                self._step_group(group, decay, self.lr * factor, state)
        for part, before in zip(frozen, values):
            part[...] = before
        self.flat.changed()

    def _step_group(self, group: Group, decay: GroupDecay, lr: float, state: dict[str, Array]) -> None:
        """Update the parameters of `group` and the optimizer's `state` of the group by one step, with weight decay `decay` and
        learning rate `lr`. If ranks own rows of the parameter, only rows with a gradient other than 0 change.
        """
        data, grad = group.data, group.gradient
        touched = None if group.ids is None else self.touched(group) if grad.size else group.ids[:0]
        if touched is None or len(touched) == len(data):
            return self.update(data, grad, decay, lr, **state)
        rows = data[touched]
        row_state = {name: array[touched] for name, array in state.items()}
        self.update(rows, grad[touched], decay, lr, **row_state)
        data[touched] = rows
        for name, array in row_state.items():
            state[name][touched] = array

    def touched(self, group: Group) -> Array:
        """Return the numbers of the rows of `group`, ascending, whose gradient is not all 0. The group is a parameter whose rows
        are divided among the ranks.
        """
        rows = group.touched
        grad = group.gradient if rows is None else group.gradient[rows]
        some = grad.reshape(len(grad), math.prod(grad.shape[1:])).any(1)
        return np.flatnonzero(some) if rows is None else rows[some]

    def update(self, data: Array, grad: Array, decay: GroupDecay, lr: float, **state: Array) -> None:
        """Change `data`, the values of a group of parameters, and the optimizer's arrays `state` in place by one step with the
        gradient `grad`, weight decay `decay` and learning rate `lr`. A subclass implements this method.

        Parameters
        ----------
        data, grad : ndarray
            Values and gradients of the group.
        decay : float or ndarray, or None
            Weight decay of all values, or of each value; None for 0.
        lr : float
            Learning rate of this step.
        **state : ndarray
            Arrays of the group's state, by the names in `state_names`.
        """
        raise NotImplementedError

    def state_arrays(self) -> dict[str, Array]:
        """Return {name: array of the optimizer's state, such as momentum}, without copies, for checkpoints.

        An array of a parameter owned by rows has this rank's rows, and a name such as "m.embedding.weight".
        """
        return {f"{name}.{group.names[0]}" if group.ids is not None else name: array
                for group, state in zip(self.flat.groups, self.states) for name, array in state.items()}

    def rows_of(self) -> dict[str, str]:
        """Return {name of a state array: name of its parameter}, for the parameters whose rows are divided among the ranks."""
        return {f"{name}.{group.names[0]}": group.names[0] for group in self.flat.owned for name in self.state_names}

    def state_dict(self) -> dict[str, Array]:
        """Return {name: copy of an array of the optimizer's state, such as momentum}."""
        return {name: array.copy() for name, array in self.state_arrays().items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Copy the arrays of `state` into the optimizer; raise a CheckpointError if a name, a shape or a dtype differs."""
        load_arrays(self.state_arrays(), state, "the optimizer")


def _decay(group: Group, weight_decay: Decay) -> GroupDecay:
    """Return the weight decay of the parameters in `group`: None if all have 0, a float if all have the same, else an array with a
    number for each value. `weight_decay` is a number, or a function of a parameter's name.
    """
    decay_of = weight_decay if callable(weight_decay) else lambda name: weight_decay
    values = [check_number("weight_decay", decay_of(name)) for name in group.names]
    if len(set(values)) <= 1:
        return values[0] if values and values[0] else None
    decays = np.zeros_like(group.data)
    for value, where in zip(values, group.slices):
        decays[where] = value
    return decays


def _decayed(grad: Array, decay: GroupDecay, data: Array) -> Array:
    """Return the gradient with weight decay, `grad` + `decay` * `data`, of parameters with the values `data` and the gradient
    `grad` of the loss. `decay` None stands for 0.
    """
    if decay is None:
        return grad
    total = decay * data
    total += grad
    return total


class SGD(Optimizer):
    """Stochastic gradient descent: v = momentum * v + g and w -= lr * v, where g includes weight_decay * w.

    Parameters
    ----------
    flat : Flat
        Parameters, from `sarlite.nn.flatten`.
    lr : float above 0
        Learning rate.
    momentum : float in [0, 1)
    weight_decay : float or callable
        Weight decay of all parameters, or a function from a parameter's name to its weight decay.

    Notes
    -----
    Memory: one value for each learned value if the momentum is not 0, else none.

    Examples
    --------
    >>> from sarlite import nn, optim
    >>> flat = nn.flatten(nn.LayerNorm(2))
    >>> optimizer = optim.SGD(flat, lr=0.5)
    >>> flat.data.tolist()
    [1.0, 1.0, 0.0, 0.0]
    >>> flat.grad[:] = 1.0
    >>> optimizer.step()
    >>> flat.data.tolist()
    [0.5, 0.5, -0.5, -0.5]
    """

    def __init__(self, flat: Flat, lr: float, momentum: float = 0.0, weight_decay: Decay = 0.0) -> None:
        self.momentum = check_number("momentum", momentum, below=1)
        self.state_names = ("velocity",) if self.momentum else ()
        super().__init__(flat, lr, weight_decay)

    def _words(self):
        return f", momentum={self.momentum:g}"

    def update(  # type: ignore[override]
        self, data: Array, grad: Array, decay: GroupDecay, lr: float, velocity: Array | None = None
    ) -> None:
        """Change `data`, the values of a group of parameters, in place by one step of SGD with the gradient `grad`, weight decay
        `decay` (None for 0) and learning rate `lr`. `velocity`, v of the class, is updated in place too; None without momentum.
        """
        g = _decayed(grad, decay, data)
        if velocity is not None:
            velocity *= self.momentum
            velocity += g
            g = velocity
        data -= lr * g


class Adam(Optimizer):
    """Adam: w -= lr * m' / (sqrt(v') + eps), where m' and v' are bias-corrected running means of g and g^2.

    Parameters
    ----------
    flat : Flat
        Parameters, from `sarlite.nn.flatten`.
    lr : float above 0
        Learning rate.
    betas : pair of float in [0, 1)
        Decay rates of the running means of g and of g^2.
    eps : float
    weight_decay : float or callable
        Weight decay of all parameters, or a function from a parameter's name to its weight decay.
    decoupled : bool
        True for AdamW: each step multiplies the weights by 1 - lr * weight_decay. False to add weight_decay * w to g.

    Attributes
    ----------
    n_steps : () int64
        Number of steps so far.
    values_at_once : int
        Number of values that are stepped at a time, so that they, their gradients and moments and the intermediate
        results stay in the cache.

    Notes
    -----
    Memory: two values for each learned value.

    References
    ----------
    Kingma and Ba 2015, alg. 1; Loshchilov and Hutter 2019, alg. 2.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Tensor, nn, optim
    >>> model = nn.Linear(4, 1, rng=nn.Random(0))
    >>> flat = nn.flatten(model)
    >>> optimizer = optim.Adam(flat, lr=0.01)
    >>> model(Tensor(np.ones((3, 4), np.float32))).sum().backward()
    >>> optimizer.step()
    >>> optimizer
    Adam(lr=0.01, betas=(0.9, 0.999), step 1; Flat(5 replicated values of 2 parameters))
    """

    state_names = ("m", "v")
    values_at_once = 1 << 15

    def __init__(self, flat: Flat, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: Decay = 0.0, decoupled: bool = False) -> None:
        if len(betas) != 2:
            raise ConfigError(f"betas are {betas!r}, but must be two numbers in [0, 1)")
        self.betas = tuple(check_number("beta", b, below=1) for b in betas)
        self.eps, self.decoupled = check_number("eps", eps), decoupled
        self.n_steps = np.zeros((), np.int64)
        super().__init__(flat, lr, weight_decay)

    def _words(self):
        return f", betas={self.betas}, step {int(self.n_steps)}{', decoupled' if self.decoupled else ''}"

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Copy the arrays of `state` into the optimizer; raise a CheckpointError if an array or "n_steps" does not fit."""
        n_steps = np.asarray(state.get("n_steps", 0))
        if n_steps.dtype.kind in "iu" and not np.all((0 <= n_steps) & (n_steps <= MOST_STEPS)):
            raise CheckpointError(f"n_steps of the optimizer is {n_steps}, outside 0 <= n_steps <= {MOST_STEPS}")
        super().load_state_dict(state)

    def step(self, factor: float = 1.0) -> None:
        """Change the parameters in place by one step, with the learning rate `factor` * lr. Not collective."""
        self.n_steps += 1
        super().step(factor)

    def update(  # type: ignore[override]
        self, data: Array, grad: Array, decay: GroupDecay, lr: float, m: Array, v: Array
    ) -> None:
        """Change `data`, the values of a group of parameters, in place by one step of Adam with the gradient `grad`, weight decay
        `decay` (None for 0) and learning rate `lr`. `m` and `v`, running means of g and of g^2, are updated in place too.
        """
        n_rows = max(self.values_at_once // max(data[:1].size, 1), 1)
        for part in (slice(start, start + n_rows) for start in range(0, len(data), n_rows)):
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
        """Return {name: array of the optimizer's state, "m" and "v"}, without copies; "n_steps" is the number of steps so far."""
        return {**super().state_arrays(), "n_steps": self.n_steps}


# ---- learning-rate schedules


def constant() -> Factor:
    """Return the schedule whose factor is 1 at every epoch.

    Returns
    -------
    callable
        Function epoch -> 1.0.

    Examples
    --------
    >>> from sarlite import optim
    >>> optim.constant()(7)
    1.0
    """
    return lambda epoch: 1.0


def cosine(epochs: int) -> Factor:
    """Return the schedule that falls from 1 at epoch 0 to 0 at epoch `epochs` along half a period of a cosine.

    Parameters
    ----------
    epochs : int, at least 0
        Epoch from which on the factor is 0. For 0 epochs the factor is 1 at epoch 0.

    Returns
    -------
    callable
        Function epoch -> factor of the learning rate.

    Examples
    --------
    >>> from sarlite import optim
    >>> [round(optim.cosine(4)(epoch), 3) for epoch in range(5)]
    [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    epochs = check_int("epochs of cosine", epochs)
    return lambda epoch: 0.5 * (1 + math.cos(math.pi * min(epoch / max(epochs, 1), 1.0)))


def steps(every: int, factor: float) -> Factor:
    """Return the schedule factor ** (epoch // every), which is multiplied by `factor` after every `every` epochs.

    Parameters
    ----------
    every : int, at least 1
        Number of epochs between two changes of the learning rate.
    factor : float above 0
        Factor of each change.

    Returns
    -------
    callable
        Function epoch -> factor of the learning rate.

    Examples
    --------
    >>> from sarlite import optim
    >>> [optim.steps(2, 0.5)(epoch) for epoch in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    every, factor = check_int("every of steps", every, 1), check_number("factor of steps", factor, positive=True)
    return lambda epoch: factor ** (epoch // every)


def warmup(epochs: int, then: Factor) -> Factor:
    """Return the schedule that rises linearly for `epochs` epochs, from 1 / `epochs` to 1. Then it continues with the schedule
    `then`, from epoch 0 of that schedule on.

    Parameters
    ----------
    epochs : int, at least 1
        Number of epochs of the rise.
    then : callable
        Schedule, a function epoch -> factor, that counts its epochs from the end of the rise.

    Returns
    -------
    Warmup
        Callable epoch -> factor of the learning rate.

    Examples
    --------
    >>> from sarlite import optim
    >>> [optim.warmup(2, optim.constant())(epoch) for epoch in range(4)]
    [0.5, 1.0, 1.0, 1.0]
    """
    return Warmup(epochs, then)


class Warmup:
    """Schedule that `warmup` returns: a linear rise, and then the schedule `then` from its epoch 0 on.

    Parameters
    ----------
    epochs : int, at least 1
        Number of epochs of the rise.
    then : callable
        Schedule, a function epoch -> factor, that counts its epochs from the end of the rise.

    Examples
    --------
    >>> from sarlite import optim
    >>> factor = optim.Warmup(4, optim.cosine(2))
    >>> [round(factor(epoch), 3) for epoch in range(7)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.5, 0.0]
    """

    def __init__(self, epochs: int, then: Factor) -> None:
        self.epochs, self.then = check_int("epochs of warmup", epochs, 1), then

    def __call__(self, epoch: int) -> float:
        return (epoch + 1) / self.epochs if epoch < self.epochs else self.then(epoch - self.epochs)


class Plateau:
    """Schedule that multiplies the learning rate by `factor` when the validation metric has stopped improving.

    Parameters
    ----------
    factor : float in (0, 1)
    patience : int
        Number of epochs without improvement, counted from the best epoch or from the last reduction, after which the
        learning rate is reduced.

    Attributes
    ----------
    falls, last : int
        Number of reductions so far; epoch of the last one.

    Examples
    --------
    >>> from sarlite import optim
    >>> plateau = optim.Plateau(factor=0.1, patience=2)
    >>> plateau.evaluated(epoch=1, best_epoch=0)
    >>> plateau.evaluated(epoch=2, best_epoch=0)
    >>> plateau(3)
    0.1
    """

    def __init__(self, factor: float = 0.1, patience: int = 10) -> None:
        if not 0 < factor < 1:
            raise ConfigError(f"the factor of a plateau is {factor}, but must be in (0, 1)")
        self.factor, self.patience = factor, check_int("the patience of a plateau", patience, 1)
        self.falls = self.last = 0

    def __call__(self, epoch: int) -> float:
        return self.factor**self.falls

    def evaluated(self, epoch: int, best_epoch: int) -> None:
        """Reduce the learning rate if the validation metric has not improved for `patience` epochs: `epoch` is at least `patience`
        epochs after `best_epoch`, and after the last reduction.
        """
        if epoch - max(best_epoch, self.last) >= self.patience:
            self.falls, self.last = self.falls + 1, epoch

    def state(self) -> dict[str, int]:
        """Return {"falls": number of reductions, "last": epoch of the last reduction}, for checkpoints."""
        return {"falls": self.falls, "last": self.last}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Set `falls` and `last` from `state`, a result of `state()`; raise a CheckpointError for any other dict."""
        if not all(type(state.get(name)) is int and state[name] >= 0 for name in ("falls", "last")):
            raise CheckpointError(f"the state of a plateau is {dict(state)}, but must be falls and last, whole numbers")
        self.falls, self.last = state["falls"], state["last"]


def plateau_of(schedule: Factor) -> Plateau | None:
    """Return the `Plateau` that a schedule is, or that follows its warm-up; None if the schedule has no `Plateau`."""
    while isinstance(schedule, Warmup):
        schedule = schedule.then
    return schedule if isinstance(schedule, Plateau) else None


def schedule(spec: str, epochs: int) -> Factor:
    """Return the learning-rate schedule that the text `spec` names, such as "cosine" or "warmup:10:cosine", for a training of
    `epochs` epochs. A schedule is a function from an epoch to a factor of the learning rate.

    Parameters
    ----------
    spec : str
        "constant", "cosine", "step:EVERY:FACTOR", "plateau:FACTOR:PATIENCE" or "warmup:EPOCHS:REST", where REST is a
        schedule; such as "step:30:0.1" or "warmup:10:cosine".
    epochs : int
        Number of epochs of the training, at whose end the factor of "cosine" is 0.

    Returns
    -------
    callable
        Function epoch -> factor of the learning rate.

    Raises
    ------
    ConfigError
        The text has none of these forms, or a number is out of its range.

    Examples
    --------
    >>> from sarlite import optim
    >>> factor = optim.schedule("warmup:2:step:3:0.1", epochs=10)
    >>> [factor(epoch) for epoch in range(6)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 0.1]
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
            length = check_int("epochs of warmup", int(arguments[0]), 1)
            return warmup(length, schedule(":".join(arguments[1:]), max(epochs - length, 0)))
    except ValueError as error:  # a ConfigError is a ValueError
        raise ConfigError(f"schedule {spec!r}: {error}") from None
    close = suggestion(name, ("constant", "cosine", "step", "plateau", "warmup"))
    forms = "constant, cosine, step:EVERY:FACTOR, plateau:FACTOR:PATIENCE, warmup:EPOCHS:REST"
    raise ConfigError(f"schedule {spec!r} is not one of {forms}{close}")

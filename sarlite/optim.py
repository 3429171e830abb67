"""SGD and Adam on the flat arrays of a module, and learning-rate schedules."""

import math

import numpy as np

from sarlite.errors import ConfigError
from sarlite.nn.module import load_arrays


class Optimizer:
    """What SGD and Adam share.

    Parameters
    ----------
    flat : Flat
        From `sarlite.nn.flatten`; its `grad` holds the gradient summed over ranks when `step` is called.
    lr : float
    weight_decay : float or callable
        The decay of all parameters, or a function name -> float, such as
        `lambda name: 5e-4 if name.startswith("layers.0.") else 0.0`.
    """

    def __init__(self, flat, lr, weight_decay=0.0):
        self.flat, self.lr = flat, _checked("lr", lr)
        self.weight_decay = _decays(flat, weight_decay)

    def _gradient(self):
        """The gradient of loss + decay / 2 * |w|^2."""
        return self.flat.grad if self.weight_decay is None else self.flat.grad + self.weight_decay * self.flat.data

    def _state(self):
        raise NotImplementedError

    def state_dict(self):
        """Return copies of the arrays that later steps depend on, by name."""
        return {name: array.copy() for name, array in self._state().items()}

    def load_state_dict(self, state):
        """Copy arrays in place; CheckpointError names a field that does not fit."""
        load_arrays(self._state(), state, "the optimizer")


def _checked(name, value, below=math.inf):
    if not 0 <= value < below:
        raise ConfigError(f"{name} is {value}, but must be in [0, {below})")
    return float(value)


def _decays(flat, weight_decay):
    """One decay for each value of the flat array; None where all are 0."""
    of = weight_decay if callable(weight_decay) else lambda name: weight_decay
    decays = np.zeros_like(flat.data)
    for name, where in zip(flat.names, flat.slices):
        decays[where] = _checked("weight_decay", of(name))
    return decays if decays.any() else None


class SGD(Optimizer):
    """Step down the gradient: v = momentum * v + g, w -= lr * v, where g includes weight_decay * w.

    Parameters
    ----------
    flat, lr, weight_decay
        See `Optimizer`.
    momentum : float in [0, 1)
    """

    def __init__(self, flat, lr, momentum=0.0, weight_decay=0.0):
        super().__init__(flat, lr, weight_decay)
        self.momentum = _checked("momentum", momentum, below=1)
        self.velocity = np.zeros_like(flat.data) if self.momentum else None

    def step(self, factor=1.0):
        """Change the parameters in place, with the learning rate lr * factor."""
        g = self._gradient()
        if self.velocity is not None:
            self.velocity *= self.momentum
            self.velocity += g
            g = self.velocity
        self.flat.data -= self.lr * factor * g

    def _state(self):
        return {} if self.velocity is None else {"velocity": self.velocity}


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

    Notes
    -----
    Memory: two values a parameter. Sources: Kingma and Ba 2015, alg. 1; Loshchilov and Hutter 2019, alg. 2.
    """

    def __init__(self, flat, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, decoupled=False):
        super().__init__(flat, lr, weight_decay)
        self.betas = tuple(_checked("beta", b, below=1) for b in betas)
        self.eps, self.decoupled = _checked("eps", eps), decoupled
        self.m, self.v = np.zeros_like(flat.data), np.zeros_like(flat.data)
        self.n_steps = np.zeros((), np.int64)

    def step(self, factor=1.0):
        """Change the parameters in place, with the learning rate lr * factor."""
        lr, (beta1, beta2), w = self.lr * factor, self.betas, self.flat.data
        g = self.flat.grad if self.decoupled else self._gradient()
        if self.decoupled and self.weight_decay is not None:
            w -= lr * self.weight_decay * w
        self.n_steps += 1
        self.m += (1 - beta1) * (g - self.m)
        self.v += (1 - beta2) * (g * g - self.v)
        correction1, correction2 = (1 - beta ** int(self.n_steps) for beta in self.betas)
        w -= lr / correction1 * self.m / (np.sqrt(self.v) / math.sqrt(correction2) + self.eps)

    def _state(self):
        return {"m": self.m, "v": self.v, "n_steps": self.n_steps}


# ---- schedules: functions epoch -> factor of the learning rate


def constant():
    """Return 1 at every epoch."""
    return lambda epoch: 1.0


def cosine(epochs):
    """Return the half wave from 1 at epoch 0 to 0 at `epochs`."""
    return lambda epoch: 0.5 * (1 + math.cos(math.pi * min(epoch / max(epochs, 1), 1.0)))


def steps(every, factor):
    """Return factor ** (epoch // every)."""
    return lambda epoch: factor ** (epoch // every)


def warmup(epochs, then):
    """Rise linearly, 1/epochs at epoch 0 to 1 at epoch epochs - 1; after that, `then` from its own epoch 0."""
    return lambda epoch: (epoch + 1) / epochs if epoch < epochs else then(epoch - epochs)


def schedule(spec, epochs):
    """Read a schedule from text and return it as a function epoch -> factor.

    Parameters
    ----------
    spec : str
        "constant", "cosine", "step:EVERY:FACTOR" or "warmup:EPOCHS:REST" with a schedule as REST,
        such as "step:30:0.1" or "warmup:10:cosine".
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
            return steps(_positive(int(arguments[0])), _positive(float(arguments[1])))
        if name == "warmup" and len(arguments) >= 2:
            length = _positive(int(arguments[0]))
            return warmup(length, schedule(":".join(arguments[1:]), epochs - length))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"schedule {spec!r}: {error}") from None
    raise ConfigError(f"schedule {spec!r} is none of constant, cosine, step:EVERY:FACTOR, warmup:EPOCHS:REST")


def _positive(value):
    if not 0 < value < math.inf:
        raise ValueError(f"{value} is not positive")
    return value

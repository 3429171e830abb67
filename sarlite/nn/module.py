"""Parameters, modules that hold them, and the two flat arrays behind them."""

import itertools

import numpy as np

from sarlite.errors import CheckpointError, ConfigError
from sarlite.tape.engine import Tensor


class Parameter(Tensor):
    """A tensor that is learned."""

    __slots__ = ()

    def __init__(self, data):
        super().__init__(data, requires_grad=True)


class Module:
    """A part of a model. Its parameters and modules are its attributes, also inside lists, tuples and dicts.

    Attributes
    ----------
    training : bool
    buffers : tuple of str
        Names of the ndarray attributes that belong to the state but are not learned. Set by the class.
    """

    training = True
    buffers = ()

    def named_modules(self):
        """Yield (dotted name, module), this one first, under the name "". A shared module comes once."""
        seen, todo = set(), [("", self)]
        while todo:
            name, module = todo.pop()
            if id(module) not in seen:
                seen.add(id(module))
                yield name, module
                todo.extend([(_join(name, n), m) for n, m in module._members(Module)][::-1])

    def _members(self, kind):
        for name, value in vars(self).items():
            yield from _find(name, value, kind)

    def named_parameters(self):
        """Yield (dotted name, Parameter), in the order of the attributes. A shared parameter comes once."""
        seen = set()
        for prefix, module in self.named_modules():
            for name, parameter in module._members(Parameter):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield _join(prefix, name), parameter

    def parameters(self):
        """Return the list of parameters."""
        return [parameter for _, parameter in self.named_parameters()]

    @property
    def n_parameters(self):
        """The number of learned values."""
        return sum(p.data.size for p in self.parameters())

    def train(self, training=True):
        """Set `training` here and below, and return self."""
        for _, module in self.named_modules():
            module.training = training
        return self

    def eval(self):
        """Leave training: no dropout, running statistics in the norms."""
        return self.train(False)

    def _state(self):
        state = {name: p.data for name, p in self.named_parameters()}
        for prefix, module in self.named_modules():
            state.update({_join(prefix, name): getattr(module, name) for name in module.buffers})
        return state

    def state_dict(self):
        """Return copies of all parameters and buffers, by dotted name."""
        return {name: array.copy() for name, array in self._state().items()}

    def load_state_dict(self, state):
        """Copy arrays into the parameters and buffers, in place.

        Parameters
        ----------
        state : dict of str to ndarray
            Exactly the names, shapes and dtypes of `state_dict()`.

        Raises
        ------
        CheckpointError
            Naming the field; nothing is changed then.
        """
        load_arrays(self._state(), state, "the model")


def load_arrays(own, state, owner):
    """Copy `state` over the arrays of `own` in place, once every name, shape and dtype agrees."""
    for name in sorted(own.keys() ^ state.keys()):
        raise CheckpointError(f"{name!r} is " + (f"missing from {owner}" if name in state else "missing from the checkpoint"))
    for name, array in own.items():
        found = np.asarray(state[name])
        if found.shape != array.shape or found.dtype != array.dtype:
            raise CheckpointError(f"{name!r} is {found.dtype} {found.shape}, but in {owner} {array.dtype} {array.shape}")
    for name, array in own.items():
        array[...] = state[name]


def _join(prefix, name):
    return f"{prefix}.{name}" if prefix else name


def _find(name, value, kind):
    """Yield what is of `kind` in an attribute's value, but nothing of the modules in it."""
    if isinstance(value, kind):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _find(f"{name}.{key}", item, kind)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _find(f"{name}.{i}", item, kind)


class Flat:
    """All parameters of a module as views of one array, their gradients of another. See `flatten`.

    Attributes
    ----------
    data, grad : ndarray, (n_parameters,)
        A step changes `data` in place; one allreduce of `grad` sums the ranks' gradients.
    names : list of str
    slices : list of slice
        Where each parameter lies.
    """

    def __init__(self, module):
        self.names = [name for name, _ in module.named_parameters()]
        self._parameters = module.parameters()
        dtypes = {p.dtype for p in self._parameters}
        if len(dtypes) != 1:
            raise ConfigError(f"parameters of one dtype are needed, but the module has {sorted(map(str, dtypes))}")
        ends = np.cumsum([0] + [p.data.size for p in self._parameters]).tolist()
        self.slices = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
        self.data = np.concatenate([p.data.reshape(-1) for p in self._parameters])
        self.grad = np.zeros_like(self.data)
        for p, where in zip(self._parameters, self.slices):
            p.data = self.data[where].reshape(p.shape)
        self.zero_grad()

    def zero_grad(self):
        """Set the gradient to 0, also of a parameter whose `grad` was replaced meanwhile."""
        self.grad[...] = 0
        for p, where in zip(self._parameters, self.slices):
            p.grad = self.grad[where].reshape(p.shape)


def flatten(module):
    """Move a module's parameters into one array and return the `Flat` that holds it.

    Call it once, before an optimizer is built. Every parameter then always has a gradient, so ranks without
    training nodes take part in the same allreduce as the others.

    Raises
    ------
    ConfigError
        If the parameters differ in dtype, or there are none.

    Notes
    -----
    Memory: 2 * n_parameters values.
    """
    return Flat(module)

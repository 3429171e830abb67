"""Flat: a module's parameters in few arrays, so that one allreduce and one optimizer update serve many parameters."""

import itertools
import weakref
from collections.abc import Sequence

import numpy as np

from sarlite import numerics
from sarlite.comm import Communicator, Request
from sarlite.comm.requests import Staged
from sarlite.errors import ConfigError
from sarlite.nn.module import Module, Parameter
from sarlite.types import Array, ArrayLike


class Group:
    """Parameters that an optimizer updates together. Their values are views of one array, `data`, and their gradients views of
    another, `grad`.

    A group has all replicated parameters of a module, or a single parameter that is owned by rows.

    Parameters
    ----------
    named : list of (str, Parameter)
        Names and parameters.

    Attributes
    ----------
    names : list of str
        Names of the parameters.
    data, grad : ndarray
        Values and gradients: (n,), one parameter after the other, or the shape of the parameter that is owned by rows.
        Reading `data` or `grad` first copies in any array that a program assigned to a parameter's `data` or `grad`,
        where None counts as zeros, and makes the parameter a view again. Assigning copies the values into the array.
    slices : list of slice
        Range of each parameter in the raveled array.
    ids : (n_rows,) int64, or None
        Global ids of the rows, for a parameter that is owned by rows.

    Examples
    --------
    >>> from sarlite import nn
    >>> group = nn.flatten(nn.Linear(4, 2, rng=nn.Random(0))).replicated
    >>> group.names, group.slices
    (['weight', 'bias'], [slice(0, 8, None), slice(8, 10, None)])
    >>> group.data.shape, group.ids is None
    ((10,), True)
    """

    def __init__(self, named: Sequence[tuple[str, Parameter]]) -> None:
        self.names, self._parameters = [name for name, _ in named], [p for _, p in named]
        self.ids = named[0][1].ids if named else None
        ends = np.cumsum([0] + [p.data.size for p in self._parameters]).tolist()
        self.slices = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
        data = np.concatenate([p.data.reshape(-1) for p in self._parameters]) if named else np.empty(0, np.float32)
        self._data = data if self.ids is None else data.reshape(named[0][1].shape)
        self._grad = np.zeros_like(self._data)
        self._views = [tuple(a.reshape(-1)[where].reshape(p.shape) for a in (self._data, self._grad))
                       for p, where in zip(self._parameters, self.slices)]
        for p, (view, grad) in zip(self._parameters, self._views):
            p.data, p.grad = view, grad
            p.touched = None if self.ids is None else []

    @property
    def data(self) -> Array:
        """Values of the parameters in one array, of which each parameter's `data` is a view."""
        for name, p, (view, _) in zip(self.names, self._parameters, self._views):
            if p.data is not view:
                _copy(name, p.data, view)
                p.data = view
        return self._data

    @data.setter
    def data(self, values: ArrayLike) -> None:
        self.data[...] = values
        self.changed()

    @property
    def grad(self) -> Array:
        """Gradients of the parameters in one array. A reader may change any row, so reading it sets `touched`, the rows that have a
        gradient, to None (any row may have one).
        """
        for p in self._parameters:
            p.touched = None
        return self.gradient

    @grad.setter
    def grad(self, values: ArrayLike) -> None:
        self.grad[...] = values

    @property
    def gradient(self) -> Array:
        """Gradients of the parameters in one array. Reading it, unlike `grad`, leaves `touched` (rows that have a gradient)
        unchanged, so the reader must change no other rows.
        """
        for name, p, (_, view) in zip(self.names, self._parameters, self._views):
            if p.gradient is not view:
                _copy(name, np.zeros_like(view) if p.gradient is None else p.gradient, view)
                p.grad = view
        return self._grad

    @property
    def touched(self) -> Array | None:
        """Ascending indices of the rows that received a gradient since `zero_grad`; None if every row may have one."""
        pieces = self._parameters[0].touched if self.ids is not None else None
        if pieces is None or len(pieces) == 1:
            return None if pieces is None else pieces[0]
        return np.unique(np.concatenate([np.empty(0, np.int64), *pieces]))

    def zero_grad(self) -> None:
        """Set the gradients of the group to 0."""
        touched = self.touched
        for p, (_, view) in zip(self._parameters, self._views):
            if p.gradient is not view:
                p.grad, touched = view, None
        self._grad[slice(None) if touched is None else touched] = 0
        if touched is not None:
            self._parameters[0].touched = []

    def frozen(self) -> list[slice]:
        """Return the ranges, in the flattened array of values, of the parameters whose `requires_grad` is False."""
        return [where for p, where in zip(self._parameters, self.slices) if not p.requires_grad]

    def changed(self) -> None:
        """Tell the tape that the parameters' values were changed in place. A backward pass that needs the old values then raises an
        error.
        """
        for p in self._parameters:
            p.changed()


def _copy(name: str, array: Array, view: Array) -> None:
    """Copy `array`, which a program assigned to the parameter `name`, into `view`, the parameter's part of the flat array. Raise a
    ConfigError if shape or dtype differ.
    """
    if array.shape != view.shape or array.dtype != view.dtype:
        raise ConfigError(f"parameter {name!r} became {array.dtype} {array.shape}, but is {view.dtype} {view.shape} "
                          "in the flat array")
    view[...] = array


class Flat:
    """All parameters of a module in few arrays: one array for all replicated parameters, and one for each parameter whose rows are
    divided among ranks.

    `flatten` returns a `Flat`.

    Parameters
    ----------
    named : list of (str, Parameter)
        Names and parameters of the module.

    Attributes
    ----------
    named : list of (str, Parameter)
    replicated : Group
        Group of all replicated parameters; it may be empty.
    owned : list of Group
        One group for each parameter that is owned by rows.
    groups : list of Group
        `replicated`, and then the groups of `owned`.
    data, grad : (n,) ndarray
        Values and gradients of the replicated parameters.

    Examples
    --------
    >>> from sarlite import nn
    >>> embedding = nn.Embedding([0, 1, 2], 4, rng=nn.Random(0))
    >>> flat = nn.flatten(embedding)
    >>> [group.data.shape for group in flat.groups]
    [(0,), (3, 4)]

    Two ranks sum the gradients of their replicas of one model:

    >>> from sarlite.comm import threads
    >>> def summed_gradient(comm):
    ...     flat = nn.flatten(nn.LayerNorm(2))
    ...     flat.grad = comm.rank + 1.0
    ...     flat.start_allreduce(comm.channel("gradients")).wait()
    ...     return flat.grad.tolist()
    >>> threads.run(2, summed_gradient)
    [[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]]
    """

    def __init__(self, named: Sequence[tuple[str, Parameter]]) -> None:
        self.replicated = Group([(name, p) for name, p in named if p.ids is None])
        self.owned = [Group([(name, p)]) for name, p in named if p.ids is not None]
        self.groups = [self.replicated, *self.owned]
        self.named = named
        for _, p in named:
            p.flat = weakref.ref(self)

    def __repr__(self) -> str:
        owned = "".join(f", {name} {group.data.shape}" for group in self.owned for name in group.names)
        replicated = self.replicated
        return f"Flat({replicated._data.size:,} replicated values of {len(replicated.names)} parameters{owned})"

    @property
    def data(self) -> Array:
        """Values of the replicated parameters, (n,)."""
        return self.replicated.data

    @data.setter
    def data(self, values: ArrayLike) -> None:
        self.replicated.data = values

    @property
    def grad(self) -> Array:
        """Gradients of the replicated parameters, (n,)."""
        return self.replicated.grad

    @grad.setter
    def grad(self, values: ArrayLike) -> None:
        self.replicated.grad = values

    def zero_grad(self) -> None:
        """Set the gradients of all groups to 0."""
        for group in self.groups:
            group.zero_grad()

    def start_allreduce(self, comm: Communicator) -> Request:
        """Start to sum the gradients of the replicated parameters over the ranks of `comm`, and return a request. When the request
        has ended, `grad` has the sums. Collective.

        `grad` has the sums when the request is done. Until then no other collective may run on `comm`, so pass a
        channel of a communicator.
        """
        if not self.replicated.names or not numerics.sums_follow():
            return Staged(iter(()))
        return comm.start_allreduce(self.grad)

    def changed(self) -> None:
        """Tell the tape that the parameters' values were changed in place. A backward pass that needs the old values then raises an
        error.
        """
        for group in self.groups:
            group.changed()


def flatten(module: Module) -> Flat:
    """Move the values and gradients of a module's parameters into few arrays, and return the `Flat` that holds these arrays, for an
    optimizer.

    Every parameter then always has a gradient, so ranks without training nodes take part in the same allreduce as all
    other ranks. A second call for the same module returns the same `Flat`, so two optimizers step the same values.

    Parameters
    ----------
    module : Module

    Returns
    -------
    Flat

    Raises
    ------
    ConfigError
        The module has no parameters; its replicated parameters differ in dtype; or some parameters lie in the `Flat` of
        another module, such as an inner module or a model that shares a layer, and that `Flat` is still in use.

    Notes
    -----
    Memory: two values for each learned value.

    Examples
    --------
    >>> from sarlite import nn
    >>> flat = nn.flatten(nn.Linear(8, 4, rng=nn.Random(0)))
    >>> flat
    Flat(36 replicated values of 2 parameters)
    >>> flat.data.shape, flat.grad.shape
    ((36,), (36,))
    """
    if not isinstance(module, Module):
        raise ConfigError(f"the model is a {type(module).__name__}, but must be an nn.Module: "
                          "a class that derives from it")
    named = list(module.named_parameters())
    if not named:
        raise ConfigError(f"the model {type(module).__name__} has no parameters: "
                          "assign objects of nn.Parameter and nn.Module to its attributes")
    for name, p in named:
        other = p.flat and p.flat()
        if other is not None:
            if isinstance(other, Flat) and [(n, id(q)) for n, q in other.named] == [(n, id(q)) for n, q in named]:
                return other
            raise ConfigError(f"parameter {name!r} lies in the flat arrays of another module: flatten the whole model once, "
                              "or delete the other Flat")
    dtypes = sorted({str(p.dtype) for _, p in named if p.ids is None})
    if len(dtypes) > 1:
        raise ConfigError(f"replicated parameters of one dtype are needed, but the module has {dtypes}")
    return Flat(named)

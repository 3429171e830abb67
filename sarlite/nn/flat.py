"""The arrays that hold a module's parameters, in groups: replicated parameters, and parameters owned by rows."""

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
    """Parameters that are stepped together: views of one array, their gradients of another.

    Attributes
    ----------
    names : list of str
    data, grad : ndarray
        Replicated: (n,), one parameter after the other. Owned by rows: one parameter, in its shape. Reading them copies
        in what a program has put in the place of a parameter's `data` or `grad`, where None counts as zeros, and
        restores the parameter's view. Assigning to them copies into them.
    slices : list of slice
        Where each parameter lies in the raveled array.
    ids : (n_rows,) int64, or None where replicated
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
        for p in self._parameters:
            p.touched = None
        return self.gradient

    @grad.setter
    def grad(self, values: ArrayLike) -> None:
        self.grad[...] = values

    @property
    def gradient(self) -> Array:
        """`grad`, for who leaves rows that are not `touched` as they are."""
        for name, p, (_, view) in zip(self.names, self._parameters, self._views):
            if p.gradient is not view:
                _copy(name, np.zeros_like(view) if p.gradient is None else p.gradient, view)
                p.grad = view
        return self._grad

    @property
    def touched(self) -> Array | None:
        """Ascending numbers of the rows that received gradients; None if all rows count, as if replicated."""
        found = self._parameters[0].touched if self.ids is not None else None
        if found is None or len(found) == 1:
            return None if found is None else found[0]
        return np.unique(np.concatenate([np.empty(0, np.int64), *found]))

    def zero_grad(self) -> None:
        """Set the gradient to 0."""
        touched = self.touched
        for p, (_, view) in zip(self._parameters, self._views):
            if p.gradient is not view:
                p.grad, touched = view, None
        self._grad[slice(None) if touched is None else touched] = 0
        if touched is not None:
            self._parameters[0].touched = []

    def changed(self) -> None:
        """Tell the tape that the parameters' values have changed."""
        for p in self._parameters:
            p.changed()


def _copy(name, array, view):
    if array.shape != view.shape or array.dtype != view.dtype:
        raise ConfigError(f"parameter {name!r} became {array.dtype} {array.shape}, but is {view.dtype} {view.shape} "
                          "in the flat array")
    view[...] = array


class Flat:
    """All parameters of a module, in groups. See `flatten`.

    Attributes
    ----------
    replicated : Group
        May be empty.
    owned : list of Group
        One for each parameter that is owned by rows.
    groups : list of Group
        The replicated one, then those owned by rows.
    data, grad : (n,) ndarray
        The replicated group's.
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
        return self.replicated.data

    @data.setter
    def data(self, values: ArrayLike) -> None:
        self.replicated.data = values

    @property
    def grad(self) -> Array:
        return self.replicated.grad

    @grad.setter
    def grad(self, values: ArrayLike) -> None:
        self.replicated.grad = values

    def zero_grad(self) -> None:
        """Set all gradients to 0."""
        for group in self.groups:
            group.zero_grad()

    def start_allreduce(self, comm: Communicator) -> Request:
        """Start the sum of replicated parameters' gradients over ranks; no other code sums them. Collective.

        The gradients are the sums once the request is done. Until then nothing else collective may be called on `comm`:
        give it a channel.
        """
        if not self.replicated.names or not numerics.sums_follow():
            return Staged(iter(()))
        return comm.start_allreduce(self.grad)

    def changed(self) -> None:
        """Tell the tape that the parameters' values have changed."""
        for group in self.groups:
            group.changed()


def flatten(module: Module) -> Flat:
    """Move a module's parameters into few arrays and return the `Flat` that holds them.

    Every parameter then always has a gradient, so ranks without training nodes take part in the same allreduce as the
    others. A module that is flat already returns the same `Flat` again: two optimizers of it step the same values.

    Raises
    ------
    ConfigError
        If the replicated parameters differ in dtype, or there are no parameters; if some parameters lie in the arrays
        of another module that are still in use, such as a part of this module or a model that shares a layer.

    Notes
    -----
    Memory: 2 values a parameter.
    """
    if not isinstance(module, Module):
        raise ConfigError(f"the model is a {type(module).__name__}, but must be an nn.Module: "
                          "a class that derives from it")
    named = list(module.named_parameters())
    if not named:
        raise ConfigError(f"the model {type(module).__name__} has no parameters: "
                          "nn.Parameter and nn.Module attributes are found")
    for name, p in named:
        other = p.flat and p.flat()
        if other is not None:
            if [(n, id(q)) for n, q in other.named] == [(n, id(q)) for n, q in named]:
                return other
            raise ConfigError(f"parameter {name!r} lies in the flat arrays of another module: flatten the whole, "
                              "or let go of the other")
    dtypes = {p.dtype for _, p in named if p.ids is None}
    if len(dtypes) > 1:
        found = sorted(map(str, dtypes))
        raise ConfigError(f"replicated parameters of one dtype are needed, but the module has {found}")
    return Flat(named)

"""Parameter: a tensor that is learned; Module: a part of a model, which holds parameters and other modules."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import MemberDescriptorType
from typing import Any, Protocol, TypeVar

import numpy as np

from sarlite.errors import CheckpointError, ConfigError, ShapeError
from sarlite.tape.summands import RowGradient
from sarlite.tape.tensor import Tensor
from sarlite.types import Array, ArrayLike

K = TypeVar("K")
M = TypeVar("M", bound="Module")


class NamedParameters(Protocol):
    """Object with the attribute `named`, a list of (name, parameter), such as a `flat.Flat`."""

    named: Sequence[tuple[str, "Parameter"]]


class Parameter(Tensor):
    """Tensor that is learned: either replicated, with equal values on every rank, or with rows that ranks own.

    Parameters
    ----------
    data : array
        Initial values.
    ids : (n_rows,) array of integers, optional
        Global ids of this rank's rows, for a parameter whose rows are owned by ranks; each id is on one rank, once. No
        allreduce sums its gradient, and a checkpoint holds the rows of all ranks, by id. A rank may have no rows.
        Without ids the parameter is replicated.
    node_type : str
        Node type that the ids count, in a graph of several types.

    Attributes
    ----------
    touched : list of (k,) int, or None
        Only for a parameter owned by rows: indices of the rows that got a gradient since the last `Group.zero_grad`.
        The gradient of all other rows is 0. None if every row may have a gradient: after a gradient of all rows, and
        after a program has read `grad`, which it may then have changed.
    flat : weak reference to a `Flat`, or None
        Arrays that the parameter's values lie in.

    Raises
    ------
    ShapeError
        `ids` are not one integer for each row.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import nn
    >>> weight = nn.Parameter(np.ones((2, 3)))
    >>> (weight * 2.0).sum().backward()
    >>> weight.grad.tolist()
    [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
    """

    __slots__ = ("flat", "ids", "node_type", "touched")
    ids: Array | None
    flat: "weakref.ref[NamedParameters] | None"
    touched: list[Array] | None

    def __init__(self, data: ArrayLike, ids: ArrayLike | None = None, node_type: str = "") -> None:
        super().__init__(data, requires_grad=True, placement="replicated" if ids is None else "rows")
        self.node_type = node_type
        self.ids = None if ids is None else _checked_ids(np.asarray(ids), self.shape)
        self.flat = None

    @property
    def grad(self) -> Array | None:
        """Gradient, of the shape of `data`, or None. A reader may change any row, so reading it sets `touched`, the list of rows
        that have a gradient, to None (any row may have one).
        """
        self.touched = None
        return _grad.__get__(self)

    @grad.setter
    def grad(self, values: Array | None) -> None:
        self.touched = None
        _grad.__set__(self, values)

    @property
    def gradient(self) -> Array | None:
        """Gradient, of the shape of `data`, or None. Reading it, unlike `grad`, leaves `touched` (rows that have a gradient)
        unchanged, so the reader must change no other rows.
        """
        return _grad.__get__(self)

    def add_rows(self, gradient: RowGradient) -> None:
        """Add `gradient`, which is 0 except in the rows that it lists, to `grad`; append the indices of these rows to `touched`,
        unless that is None (any row may have a gradient).
        """
        if self.touched is None:
            super().add_rows(gradient)
        else:
            by_row = gradient.by_row()
            _grad.__get__(self)[by_row.index] += by_row.g
            self.touched.append(by_row.index)

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (self.data, self.ids, self.node_type, self.requires_grad)  # without `flat`


_grad: MemberDescriptorType = Tensor.__dict__["grad"]  # the slot of the base class, which stores the gradient


def _unpickled(data: Array, ids: Array | None, node_type: str, requires_grad: bool) -> Parameter:
    """Return a Parameter with these attributes, which `Parameter.__reduce__` pickled. `ids` are the global ids of the rows, or None
    for a replicated parameter.
    """
    parameter = Parameter(data, ids, node_type)
    parameter.requires_grad = requires_grad
    return parameter


def _checked_ids(ids, shape):
    if ids.dtype.kind not in "iu" or ids.shape != shape[:1] or not shape:
        raise ShapeError(f"ids of {ids.dtype} {ids.shape} are not one integer for each row of {shape}")
    return ids.astype(np.int64, copy=False)


class Encoder(Protocol):
    """Model of nodes inside a model of links or graphs: a call encoder(graph, x) returns one row for each node."""

    def __call__(self, *arguments: Any, **options: Any) -> Tensor: ...
    def first_layer(self) -> Sequence["Module | Parameter"]: ...


class Module:
    """Base class of layers and models. Parameters and modules that are its attributes belong to it.

    Attributes may also hold parameters and modules in lists, tuples and dicts.

    Attributes
    ----------
    training : bool
        True in training, False in evaluation.
    buffers : tuple of str
        Names of the array attributes that checkpoints store although they are not learned. Set by the class.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Tensor, nn
    >>> class TwoLayers(nn.Module):
    ...     def __init__(self, rng):
    ...         self.layers = [nn.Linear(8, 16, rng=rng), nn.Linear(16, 4, rng=rng)]
    ...
    ...     def __call__(self, x):
    ...         return self.layers[1](self.layers[0](x).relu())
    >>> model = TwoLayers(nn.Random(0))
    >>> [(name, parameter.shape) for name, parameter in model.named_parameters()]
    [('layers.0.weight', (8, 16)), ('layers.0.bias', (16,)), ('layers.1.weight', (16, 4)), ('layers.1.bias', (4,))]
    >>> model(Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    training = True
    buffers: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the names and shapes of this module's own parameters as text, for `repr`; inner modules are not included."""
        return ", ".join(f"{name} {p.shape}" for name, p in self._members(Parameter))

    def __repr__(self) -> str:
        """Return the parameters' names and shapes, of this module and of all modules in it, one module per line."""
        dtypes = sorted({f", {p.dtype}" for _, p in self._members(Parameter) if p.dtype != np.float32})
        head = f"{type(self).__name__}({self.describe()}{''.join(dtypes)}"
        inner = [f"{name}: {module!r}" for name, module in self._members(Module)]
        return head + "".join("\n  " + line.replace("\n", "\n  ") for line in inner) + ")"

    def named_modules(self) -> Iterator[tuple[str, "Module"]]:
        """Yield (dotted name, module) of this module, whose name is "", and of all inner modules, each once."""
        seen, todo = set(), [("", self)]
        while todo:
            name, module = todo.pop()
            if id(module) not in seen:
                seen.add(id(module))
                yield name, module
                todo.extend([(_join(name, n), m) for n, m in module._members(Module)][::-1])

    def _members(self, kind: type[K]) -> Iterator[tuple[str, K]]:
        """Yield (dotted name, object) for each object of class `kind` among this module's attributes, also in lists, tuples and
        dicts there. Inner modules are not searched.
        """
        for name, value in vars(self).items():
            yield from _find(name, value, kind)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield (dotted name, Parameter) of this module and of all inner modules, in the order of the attributes.

        A parameter that occurs more than once is yielded once, under its first name.

        Raises
        ------
        ConfigError
            Two parameters have the same name, which happens if keys of dicts contain dots.
        """
        seen, named = set[int](), set[str]()
        for prefix, module in self.named_modules():
            for name, parameter in module._members(Parameter):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield _once(_join(prefix, name), named), parameter

    def parameters(self) -> list[Parameter]:
        """Return the parameters of this module and of all inner modules, in the order of `named_parameters`."""
        return [parameter for _, parameter in self.named_parameters()]

    def row_ids(self) -> dict[str, Array]:
        """Return {parameter name: global ids of its rows on this rank, (n_rows,)} for the parameters whose rows are divided among ranks."""
        return {name: p.ids for name, p in self.named_parameters() if p.ids is not None}

    @property
    def n_parameters(self) -> int:
        """Number of learned values on this rank, summed over all parameters."""
        return sum(p.data.size for p in self.parameters())

    def train(self: M, training: bool = True) -> M:
        """Switch this module and all inner modules to training, or to evaluation if `training` is False, and return this module."""
        for _, module in self.named_modules():
            module.training = training
        return self

    def eval(self: M) -> M:
        """Switch to evaluation, without dropout and with running averages in batch norms, and return this module."""
        return self.train(False)

    def state_arrays(self) -> dict[str, Array]:
        """Return {dotted name: array} of all parameters and buffers; the arrays are not copies.

        The array of a parameter owned by rows has this rank's rows.

        Raises
        ------
        ConfigError
            Two parameters or buffers have the same name.
        """
        state = {name: p.data for name, p in self.named_parameters()}
        named = set(state)
        for prefix, module in self.named_modules():
            state.update({_once(_join(prefix, name), named): getattr(module, name) for name in module.buffers})
        return state

    def state_dict(self) -> dict[str, Array]:
        """Return {dotted name: copy of the array} of all parameters and buffers."""
        return {name: array.copy() for name, array in self.state_arrays().items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Copy the arrays of `state`, which have the names of `state_dict()`, into the parameters and buffers.

        Parameters
        ----------
        state : dict of str to ndarray
            Arrays with exactly the names, shapes and dtypes of `state_dict()`.

        Raises
        ------
        CheckpointError
            A name, a shape or a dtype differs; the message names the array. Then nothing is changed.
        """
        load_arrays(self.state_arrays(), state, "the model")
        for parameter in self.parameters():
            parameter.changed()


def load_arrays(targets: Mapping[str, Array], state: Mapping[str, Array], owner: str) -> None:
    """Copy each array of `state` into the array of `targets` with the same name. Raise a CheckpointError that names `owner` (such
    as "the model", whose arrays `targets` are) unless all names, shapes and dtypes agree.
    """
    for name in sorted(targets.keys() ^ state.keys()):
        raise CheckpointError(f"{name!r} is missing from {owner if name in state else 'the checkpoint'}")
    for name, target in targets.items():
        array = np.asarray(state[name])
        if array.shape != target.shape or array.dtype != target.dtype:
            target_kind = f"{target.dtype} {target.shape}"
            raise CheckpointError(f"{name!r} is {array.dtype} {array.shape}, but in {owner} {target_kind}")
    for name, target in targets.items():
        target[...] = state[name]


def _once(name: str, names: set[str]) -> str:
    """Add `name` to the set `names` and return it; raise a ConfigError if the set has the name already."""
    if name in names:
        raise ConfigError(f"two parameters or buffers of the model have one name, {name!r}")
    names.add(name)
    return name


def _join(prefix, name):
    return f"{prefix}.{name}" if prefix else name


def _find(name: str, value: object, kind: type[K]) -> Iterator[tuple[str, K]]:
    """Yield (dotted name, object) for each object of class `kind` in `value`, the value of the attribute `name`: `value` itself, or
    items of lists, tuples and dicts.
    """
    if isinstance(value, kind):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _find(f"{name}.{key}", item, kind)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _find(f"{name}.{i}", item, kind)

"""Parameters, and modules that hold them."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from sarlite.errors import CheckpointError, ConfigError, ShapeError
from sarlite.tape.summands import RowGradient
from sarlite.tape.tensor import Tensor
from sarlite.types import Array, ArrayLike

M = TypeVar("M", bound="Module")


class Parameter(Tensor):
    """A tensor that is learned. It is replicated, with equal values on every rank, or each rank owns some of its rows.

    Parameters
    ----------
    data : ndarray
    ids : (n_rows,) array of integers, optional
        Makes the parameter owned by rows: `ids[r]` is the global id of row r, and each id is on one rank, once. The
        gradient is this rank's own, in no allreduce. A checkpoint holds the rows of all ranks, by id. A rank may have
        no rows.
    node_type : str
        The node type that the ids count, of a graph of several types.

    Attributes
    ----------
    touched : list of (k,) int, or None
        Of a parameter owned by rows the rows that gradients were added to since `Group.zero_grad`: the others are 0.
        None once a gradient of all rows has come, or a program has read `grad` and so may have changed it anywhere.

    Raises
    ------
    ShapeError
        Where `ids` are not one integer for each row.
    """

    __slots__ = ("flat", "ids", "node_type", "touched")
    ids: Array | None
    flat: Any
    touched: list[Array] | None

    def __init__(self, data: ArrayLike, ids: ArrayLike | None = None, node_type: str = "") -> None:
        super().__init__(data, requires_grad=True, placement="replicated" if ids is None else "rows")
        self.node_type = node_type
        self.ids = None if ids is None else _checked_ids(np.asarray(ids), self.shape)
        self.flat = None  # a weak reference to the `Flat` in which the parameter lies

    @property
    def grad(self) -> Array | None:
        self.touched = None
        return _grad.__get__(self)

    @grad.setter
    def grad(self, values: Array | None) -> None:
        self.touched = None
        _grad.__set__(self, values)

    @property
    def gradient(self) -> Array | None:
        """`grad`, for who leaves rows that are not `touched` as they are."""
        return _grad.__get__(self)

    def add_rows(self, gradient: RowGradient) -> None:
        """Add the gradient of some rows to `grad`, and note which rows they are."""
        if self.touched is None:
            super().add_rows(gradient)
        else:
            by_row = gradient.by_row()
            _grad.__get__(self)[by_row.index] += by_row.g
            self.touched.append(by_row.index)

    def __reduce__(self) -> tuple[Any, ...]:
        return _parameter, (self.data, self.ids, self.node_type, self.requires_grad)  # a copy lies in nobody's arrays


_grad: Any = Tensor.__dict__["grad"]  # what Tensor keeps it in


def _parameter(data, ids, node_type, requires_grad):
    parameter = Parameter(data, ids, node_type)
    parameter.requires_grad = requires_grad
    return parameter


def _checked_ids(ids, shape):
    if ids.dtype.kind not in "iu" or ids.shape != shape[:1] or not shape:
        raise ShapeError(f"ids of {ids.dtype} {ids.shape} are not one integer for each row of {shape}")
    return ids.astype(np.int64, copy=False)


class Module:
    """A part of a model. Its attributes hold parameters and modules, also within lists, tuples and dicts.

    Attributes
    ----------
    training : bool
    buffers : tuple of str
        Names of the ndarray attributes that belong to the state but are not learned. Set by the class.
    """

    training = True
    buffers: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the sizes of the module's own parameters, as text for `repr`."""
        return ", ".join(f"{name} {p.shape}" for name, p in self._members(Parameter))

    def __repr__(self) -> str:
        """Return the sizes of this module and of all modules in it, one per line."""
        dtypes = sorted({f", {p.dtype}" for _, p in self._members(Parameter) if p.dtype != np.float32})
        head = f"{type(self).__name__}({self.describe()}{''.join(dtypes)}"
        inner = [f"{name}: {module!r}" for name, module in self._members(Module)]
        return head + "".join("\n  " + line.replace("\n", "\n  ") for line in inner) + ")"

    def named_modules(self) -> Iterator[tuple[str, "Module"]]:
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

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield (dotted name, Parameter), in the order of the attributes. A shared parameter comes once.

        Raises
        ------
        ConfigError
            Two parameters have one name, as where the keys of dicts have dots.
        """
        seen, named = set[int](), set[str]()
        for prefix, module in self.named_modules():
            for name, parameter in module._members(Parameter):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield _once(_join(prefix, name), named), parameter

    def parameters(self) -> list[Parameter]:
        """Return the list of parameters."""
        return [parameter for _, parameter in self.named_parameters()]

    def row_ids(self) -> dict[str, Array]:
        """Return the ids of each parameter that is owned by rows, by dotted name."""
        return {name: p.ids for name, p in self.named_parameters() if p.ids is not None}

    @property
    def n_parameters(self) -> int:
        """Number of learned values on this rank."""
        return sum(p.data.size for p in self.parameters())

    def train(self: M, training: bool = True) -> M:
        """Set `training` here and below, and return self."""
        for _, module in self.named_modules():
            module.training = training
        return self

    def eval(self: M) -> M:
        """Switch to evaluation: no dropout, running statistics in the norms."""
        return self.train(False)

    def state_arrays(self) -> dict[str, Array]:
        """Return the arrays of all parameters and buffers themselves, by dotted name.

        The array of a parameter owned by rows has this rank's rows.

        Raises
        ------
        ConfigError
            Two of them have one name.
        """
        state = {name: p.data for name, p in self.named_parameters()}
        named = set(state)
        for prefix, module in self.named_modules():
            state.update({_once(_join(prefix, name), named): getattr(module, name) for name in module.buffers})
        return state

    def state_dict(self) -> dict[str, Array]:
        """Return copies of `state_arrays`."""
        return {name: array.copy() for name, array in self.state_arrays().items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
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
        load_arrays(self.state_arrays(), state, "the model")
        for parameter in self.parameters():
            parameter.changed()


def load_arrays(own: Mapping[str, Array], state: Mapping[str, Array], owner: str) -> None:
    """Copy `state` over the arrays of `own` in place, once every name, shape and dtype agrees."""
    for name in sorted(own.keys() ^ state.keys()):
        raise CheckpointError(f"{name!r} is missing from {owner if name in state else 'the checkpoint'}")
    for name, array in own.items():
        found = np.asarray(state[name])
        if found.shape != array.shape or found.dtype != array.dtype:
            own_kind = f"{array.dtype} {array.shape}"
            raise CheckpointError(f"{name!r} is {found.dtype} {found.shape}, but in {owner} {own_kind}")
    for name, array in own.items():
        array[...] = state[name]


def _once(name, named):
    """Return a name, and note it among the names that are taken; a ConfigError where it is taken."""
    if name in named:
        raise ConfigError(f"two parameters or buffers of the model have one name, {name!r}")
    named.add(name)
    return name


def _join(prefix, name):
    return f"{prefix}.{name}" if prefix else name


def _find(name, value, kind):
    """Yield (name, value) of the objects of `kind` in an attribute's value, without looking into modules."""
    if isinstance(value, kind):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _find(f"{name}.{key}", item, kind)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _find(f"{name}.{i}", item, kind)

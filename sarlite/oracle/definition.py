"""`Definition`: the formula, inputs and attributes of an operation or layer; `REFERENCES`: all definitions by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sarlite.errors import ConfigError
from sarlite.oracle.case import AttributeDict, Attributes, State
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.expression import Expr
from sarlite.types import Array

Inputs = Mapping[str, Any]  # of a formula: an Expr for each floating array, the array itself for integers and bools
Shapes = dict[str, tuple[int, ...]]
Drawer = Callable[[np.random.Generator, tuple[int, ...], Attributes], Array]  # (rng, shape, attributes) -> array


@dataclass(frozen=True, eq=False)
class Definition:
    """Definition of an operation or layer, from which its expected results are computed: a formula with inputs, outputs and
    attributes.

    Parameters
    ----------
    name : str
        The name that `check` and `Reference` know the definition by.
    formula : (inputs, edges, attributes) -> {output: Expr}
        `inputs` holds arrays and parameters by name: an Expr for floating values, the array itself for integers and
        bools. `attributes` also holds "dialect".
    arrays : (edges, width, attributes) -> {name: shape}
        Shapes of the input arrays on a graph.
    attributes : dict of str to tuple or value
        For each attribute a tuple of its allowed values, the default first. A value that is no tuple is a default, and
        any other value is allowed, too.
    parameters : (width, attributes) -> {name: shape}
        Shapes of the parameters.
    outputs_by : dict of str to str
        Kind of the rows of each output: "dst", "src" or "edge".
    fixed : frozenset of str
        Arrays and parameters without a gradient, such as masks. Only the last word of a dotted name counts.
    draw : dict of str to (rng, shape, attributes) -> array
        Generators of arrays that are not normal random numbers, by the last word of the array's name.
    resolve : (attributes, state) -> (attributes, state)
        Fills in the attributes that follow from the dialect and from the shapes of a state. Raises an error if
        attributes and state contradict each other.
    refuses : (edges, attributes) -> str or None
        The reason why the dialect's own layer raises an error on these edges; None if the layer computes.
    has_vjp : bool
        True if gradients of the outputs are checked.
    layers : (inputs, edges, attributes) -> list of Expr, optional
        For a model: the result of each convolution, before norm and activation.
    square : dict of str to value
        Attribute values that make two sizes equal which differ by default. Every second graph uses them, unless the
        caller or a state sets the attribute.

    Examples
    --------
    A reference of one's own is a formula of `sarlite.oracle.expression`; gradients and error bounds follow from it:

    >>> import numpy as np
    >>> from sarlite import oracle
    >>> from sarlite.oracle.expression import gather, scatter_sum
    >>> def neighbour_squares(inputs, edges, attributes):
    ...     rows = gather(inputs["x"], edges.by_src)
    ...     return {"out": scatter_sum(rows * rows, edges.by_dst)}
    >>> oracle.define(oracle.Definition(
    ...     "neighbour-squares", neighbour_squares, lambda edges, width, attributes: {"x": (edges.n_src, width)}))
    >>> def kernel(case):
    ...     out = np.zeros((case.n_dst, case.x.shape[1]), case.dtype)
    ...     np.add.at(out, case.dst, case.x[case.src] ** 2)
    ...     return out
    >>> oracle.check(kernel, "neighbour-squares", level="probe", graphs="ring-*").verdict.name
    'PASS'
    >>> del oracle.REFERENCES["neighbour-squares"]
    """

    name: str
    formula: Callable[[Inputs, EdgeList, Attributes], dict[str, Expr]]
    arrays: Callable[[EdgeList, int, Attributes], Shapes]
    attributes: Attributes = field(default_factory=dict)
    parameters: Callable[[int, Attributes], Shapes] = lambda width, attributes: {}
    outputs_by: Mapping[str, str] = field(default_factory=lambda: {"out": "dst"})
    fixed: frozenset[str] = frozenset()
    draw: Mapping[str, Drawer] = field(default_factory=dict)
    resolve: Callable[[Attributes, State | None], tuple[AttributeDict, State | None]] = (
        lambda attributes, state: (dict(attributes), state))  # fmt: skip
    refuses: Callable[[EdgeList, Attributes], str | None] = lambda edges, attributes: None
    has_vjp: bool = True
    layers: Callable[[Inputs, EdgeList, Attributes], list[Expr]] | None = None
    square: Attributes = field(default_factory=dict)


REFERENCES: dict[str, Definition] = {}


def define(definition: Definition) -> None:
    """Add a definition to REFERENCES, so that `check` and `Reference` know it by its name.

    Parameters
    ----------
    definition : Definition

    Raises
    ------
    ConfigError
        REFERENCES has a definition of this name already.

    Examples
    --------
    >>> from sarlite import oracle
    >>> oracle.define(oracle.REFERENCES["spmm"])
    Traceback (most recent call last):
    sarlite.errors.ConfigError: reference: 'spmm' is defined already
    """
    if definition.name in REFERENCES:
        raise ConfigError(f"reference: {definition.name!r} is defined already")
    REFERENCES[definition.name] = definition

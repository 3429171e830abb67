"""`Definition`: the formula, inputs and attributes of an operation or a layer; and the table of all definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sarlite.errors import ConfigError
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.expression import Expr

Attributes = Mapping[str, Any]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Definition:
    """A formula with its inputs and attributes.

    Attributes
    ----------
    name : str
    formula : (inputs, edges, attributes) -> {output: Expr}
        `inputs` has the arrays and the state by name; `attributes` also "dialect".
    arrays : (edges, width, attributes) -> {name: shape}
    attributes : dict of str to tuple or value
        Of each attribute its allowed values, the first the default; or, where it is no tuple, its default.
    parameters : (width, attributes) -> {name: shape}
    outputs_by : dict of str to str
        Whether rows of an output are "dst", "src" or "edge".
    fixed : frozenset of str
        Arrays and parameters that get no gradient, as masks; the last word of a dotted name.
    draw : dict of str to (rng, shape, attributes) -> array
        How arrays are drawn that are not plain random numbers, by the last word of their names. Of integers and bools
        the formula gets the arrays themselves.
    resolve : (attributes, state) -> (attributes, state), optional
        Settles what depends on the dialect and on the state, and refuses what does not agree.
    refuses : (edges, attributes) -> str or None
        Why the dialect raises an error for these edges, where it does.
    has_vjp : bool
        Whether gradients of the outputs are asked for.
    layers : (inputs, edges, attributes) -> list of Expr, optional
        Of a model: what each convolution gives, before norm and activation.
    square : dict of str to value
        Attributes by which sizes are equal that are not so as a rule: of every second graph where neither the caller
        nor a state tells them.
    """

    name: str
    formula: Callable[[Mapping[str, Expr], EdgeList, Attributes], dict[str, Expr]]
    arrays: Callable[[EdgeList, int, Attributes], Shapes]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    parameters: Callable[[int, Attributes], Shapes] = lambda width, attributes: {}
    outputs_by: Mapping[str, str] = field(default_factory=lambda: {"out": "dst"})
    fixed: frozenset[str] = frozenset()
    draw: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    resolve: Callable[[Attributes, Any], tuple[dict[str, Any], Any]] = (
        lambda attributes, state: (dict(attributes), state))  # fmt: skip
    refuses: Callable[[EdgeList, Attributes], str | None] = lambda edges, attributes: None
    has_vjp: bool = True
    layers: Callable[[Mapping[str, Expr], EdgeList, Attributes], list[Expr]] | None = None
    square: Mapping[str, Any] = field(default_factory=dict)


REFERENCES: dict[str, Definition] = {}


def define(definition: Definition) -> None:
    """Make a definition known as a reference by its name.

    Raises
    ------
    ConfigError
        A reference of this name is there.
    """
    if definition.name in REFERENCES:
        raise ConfigError(f"reference: {definition.name!r} is there already")
    REFERENCES[definition.name] = definition

"""`Layer`: a definition whose attributes come from the caller, the shapes of a state, and the dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, DataError, whole
from sarlite.oracle import dialects
from sarlite.oracle.definition import Attributes, Definition, Shapes
from sarlite.oracle.edge_structure import EdgeList, Index
from sarlite.oracle.expression import Expr, concat, constant, gather

ARRAYS = ("x", "x_dst", "edge_weight", "relation", "labels", "mask")  # what is no parameter
YES, NO = (True, False), (False, True)  # of options, the default first
LOOPS = ("none", "missing", "replace")  # see `looped`


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer's formula and its attributes; its parameters stand in dialects.PARAMETERS."""

    name: str
    formula: Callable[[Mapping[str, Any], EdgeList, Attributes], Expr]  # arrays and, by the paper's names, parameters
    sizes: Mapping[str, int]  # attributes with their values where nothing tells them
    options: Mapping[str, tuple[Any, ...]]  # attributes with their possible values, the first where nothing tells it
    numbers: Mapping[str, float] = field(default_factory=dict)  # as `sizes`
    square: Mapping[str, int] = field(default_factory=dict)  # as of `Definition`
    arrays: Callable[[EdgeList, int, Attributes], Shapes] = lambda edges, n_in, attributes: rows_of(edges, n_in)
    # outputs beside "out"
    more: Callable[[Mapping[str, Any], Attributes], dict[str, Expr]] = lambda inputs, attributes: {}
    # (n_in, attributes): what parameters' axes and conditions say, beside attributes
    derived: Callable[[int, Attributes], dict[str, Any]] = lambda n_in, attributes: {}
    # (shapes, attributes told): what a state's shapes tell that stands in no axis and no condition
    told: Callable[[Shapes, Attributes], dict[str, Any]] = lambda shapes, told: {}

    def shapes(self, n_in: int, attributes: Attributes) -> Shapes:
        """The shapes of the parameters by the paper's names."""
        words = {**attributes, "n_in": n_in, **self.derived(n_in, attributes)}
        return {name: tuple(words[word] for word in one.axes.split())
                for name, one in dialects.PARAMETERS[self.name].items() if not one.when or words[one.when]}

    def tells(self, shapes: Shapes) -> dict[str, Any]:
        """Return the attributes that a state's shapes tell; parameters that are always there come first."""
        told: dict[str, Any] = {}
        for name, one in sorted(dialects.PARAMETERS[self.name].items(), key=lambda item: item[1].when != ""):
            if one.when in self.options:
                told[one.when] = told.get(one.when, False) or name in shapes
            for word, size in zip(one.axes.split(), shapes.get(name, ())):
                if word == "n_in" or word in self.sizes:
                    told.setdefault(word, size)
        return {**told, **self.told(shapes, told)}


def rows_of(edges: EdgeList, n_in: int) -> Shapes:
    """x of the sources, and x_dst of the destinations where they are other nodes."""
    return {"x": (edges.n_src, n_in), **({} if edges.n_src == edges.n_dst else {"x_dst": (edges.n_dst, n_in)})}


def doubled(layer: Layer, attributes: Attributes, state: Mapping[str, Any]) -> set[str]:
    """The destinations' names of weights that stand twice in a state, as torch saves shared weights.

    Raises
    ------
    DataError
        The two are not equal.
    """
    if not attributes.get("share_weights"):
        return set()
    table, names = dialects.places(layer.name, attributes["dialect"]), set()
    for word in ("weight", "bias"):
        src, dst = (table[f"linear_{side}.{word}"].name for side in ("src", "dst"))
        if src in state and dst in state:
            if not np.array_equal(state[src], state[dst]):
                raise DataError(f"share_weights: {dst!r} differs from {src!r}")
            names.add(dst)
    return names


def settle(layer: Layer, attributes: Attributes, state: Mapping[str, Any] | None) -> dict[str, Any]:
    """All attributes of a layer.

    Parameters
    ----------
    attributes : dict
        None where the caller does not tell it; with "dialect".
    state : dict of str to array, optional
        By the dialect's names.

    Raises
    ------
    ConfigError
        A value that is not allowed, or that is not the state's.
    DataError
        A parameter that is missing, unknown or of a wrong shape.
    """
    dialect = attributes["dialect"]
    given = {name: _checked(layer, dialect, name, value) for name, value in attributes.items() if value is not None}
    told: dict[str, Any] = {}
    if state is not None:
        shapes = {name: tuple(value.shape) for name, value in dialects.read(layer.name, dialect, state).items()}
        told = layer.tells(shapes)
    agree(given, told)
    first = {name: values[0] for name, values in layer.options.items()}
    settled = {"n_in": None, **layer.sizes, **layer.numbers, **first,
               **dialects.BEHAVIOUR.get((layer.name, dialect), {}), **told, **given}
    if dialect == "dgl" and settled.get("heads") == "mean":
        raise ConfigError("heads 'mean': DGL's layers keep heads as an axis, and who calls them takes the mean")
    if state is not None:
        _agree(layer, dialect, shapes, layer.shapes(settled["n_in"], settled))
    return settled


def agree(given: Attributes, told: Attributes) -> None:
    """Raise ConfigError where an attribute that is given is another than the state tells."""
    for name, value in told.items():
        if given.get(name, value) != value:
            raise ConfigError(f"{name} is {given[name]!r}, but in the state {value!r}")


def _checked(layer, dialect, name, value):
    if name in layer.options and value not in layer.options[name]:
        known = ", ".join(map(repr, layer.options[name]))
        what = f"nothing else of {dialect}'s {layer.name} has a reference"
        raise ConfigError(f"{name}: {value!r} is none of {known}; {what}")
    if name in layer.sizes or name == "n_in":
        return whole(name, value)
    if name in layer.numbers and not (isinstance(value, (int, float)) and np.isfinite(value)):
        raise ConfigError(f"{name} is {value!r}, but must be a number")
    return value


def _agree(layer, dialect, found, wanted):
    """Refuse a state whose shapes are not the wanted ones."""
    place, whose = dialects.places(layer.name, dialect, projected="root.weight" in wanted), f"{dialect}'s {layer.name}"
    for name in wanted:
        if name not in found:
            raise DataError(f"{place[name].name!r} is missing from the state of {whose}")
    for name, shape in found.items():
        theirs = place[name].name if name in place else name
        if name not in wanted:
            raise DataError(f"{theirs!r} has no place in {whose} with these attributes and shapes")
        if shape != wanted[name]:
            theirs_found, theirs_wanted = (place[name].shape(one) for one in (shape, wanted[name]))
            raise DataError(f"{theirs!r} is of shape {theirs_found}, but in {whose} {theirs_wanted}")


def definition(layer: Layer) -> Definition:
    """The entry of a layer in the table of references."""

    def formula(inputs, edges, attributes):
        state = {name: value for name, value in inputs.items() if name not in ARRAYS}
        own = {**inputs, **dialects.read(layer.name, attributes["dialect"], state)}
        return {"out": layer.formula(own, edges, attributes), **layer.more(own, attributes)}

    def arrays(edges, width, attributes):
        return layer.arrays(edges, width if attributes["n_in"] is None else attributes["n_in"], attributes)

    def parameters(width, attributes):
        n_in = width if attributes["n_in"] is None else attributes["n_in"]
        return dialects.shapes_in(layer.name, attributes["dialect"], layer.shapes(n_in, attributes))

    def resolve(attributes, state):
        if state is not None:
            state = dialects.arrays(state)
            state = {name: value for name, value in state.items() if name not in doubled(layer, attributes, state)}
        return settle(layer, attributes, state), state

    unknown = dict.fromkeys(("n_in", *layer.sizes, *layer.options, *layer.numbers))
    return Definition(layer.name, formula, arrays, unknown, parameters, fixed=FIXED, draw=DRAWN, resolve=resolve,
                      square=layer.square,
                      refuses=lambda edges, attributes: dialects.refuses(layer.name, edges, attributes))  # fmt: skip


def _relation(rng, shape, attributes):
    told = attributes if "each" not in attributes else attributes["each"][0]  # of a model's layers all have as many
    return rng.integers(0, max(told["n_relations"], 1), shape)


FIXED = frozenset(("relation", "labels", "mask", "running_mean", "running_var", *dialects.COUNTERS))
DRAWN: dict[str, Callable[..., Any]] = {"relation": _relation,
                                        "edge_weight": lambda rng, shape, attributes: rng.integers(1, 9, shape) / 4,
                                        "running_var": lambda rng, shape, attributes: rng.integers(1, 9, shape) / 2}


# ---- what formulas of layers share


def looped(edges: EdgeList, weight: Expr | None, self_loops: str) -> tuple[EdgeList, Expr | None]:
    """The edges with their self loops, and the edges' weights.

    Parameters
    ----------
    self_loops : {"none", "missing", "replace"}
        As given; one of weight 1 where a row has none; one for every row in place of those that are there, keeping the
        weight of the last.
    """
    if self_loops == "none":
        return edges, weight
    if edges.n_src != edges.n_dst:
        raise ConfigError(f"self_loops {self_loops!r}: there are {edges.n_src} source rows, "
                          f"but {edges.n_dst} destination rows")
    present = np.flatnonzero(edges.src == edges.dst)
    last = np.full(edges.n_dst, -1)
    last[edges.dst[present]] = present  # of several the last
    if self_loops == "missing":
        kept, own = np.arange(edges.n_edges), np.flatnonzero(last < 0)
    else:
        kept, own = np.flatnonzero(edges.src != edges.dst), np.arange(edges.n_dst)
    joined = edges.select(kept).with_loops(own)
    if weight is None:
        return joined, None
    places = np.concatenate([kept, np.where(last[own] < 0, edges.n_edges, last[own])])
    return joined, gather(concat([weight, constant(np.ones(1))]), Index(places, edges.n_edges + 1))


def own_rows(inputs: Mapping[str, Any]) -> Expr:
    """The destinations' rows: x, or x_dst where the sources are other nodes."""
    return inputs.get("x_dst", inputs["x"])


def plus(out: Expr, term: Expr | None) -> Expr:
    """out + term, where there is one."""
    return out if term is None else out + term

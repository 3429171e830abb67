"""`LayerFormula`: formula and attributes of a layer; attributes come from the caller, a state dict's shapes, or the library whose
layer is imitated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from sarlite.errors import ConfigError, DataError, check_int
from sarlite.oracle import dialects
from sarlite.oracle.case import AttributeDict, Attributes, State
from sarlite.oracle.definition import Definition, Drawer, Inputs, Shapes
from sarlite.oracle.edge_structure import EdgeList, Index
from sarlite.oracle.expression import Expr, concat, constant, gather

ARRAYS = ("x", "x_dst", "edge_weight", "relation", "labels", "mask")  # names of inputs that are no parameters
YES, NO = (True, False), (False, True)  # values of an option, the default first
LOOPS = ("none", "missing", "replace")  # see `with_self_loops`


@dataclass(frozen=True, eq=False)
class LayerFormula:
    """Formula of a layer such as GAT, with the layer's attributes and their defaults; `dialects.PARAMETERS` lists the layer's
    parameters.

    Attributes
    ----------
    name : str
    formula : (inputs, edges, attributes) -> Expr
        `inputs` holds arrays, and parameters by the paper's names.
    sizes : dict of str to int
        Attributes that are sizes, with their defaults.
    options : dict of str to tuple
        Attributes with their possible values, the default first.
    numbers : dict of str to float
        Other numeric attributes, with their defaults.
    square : dict of str to value
        See `Definition`.
    arrays : (edges, n_in, attributes) -> {name: shape}
    extra_outputs : (inputs, attributes) -> {output: Expr}
        Outputs besides "out".
    derived : (n_in, attributes) -> dict
        Further values for the axes and conditions of parameters.
    infer_more : (shapes, attributes) -> attributes
        Attributes that follow from the shapes of a state, but from no single axis or condition.
    """

    name: str
    formula: Callable[[Inputs, EdgeList, Attributes], Expr]
    sizes: Mapping[str, int]
    options: Mapping[str, tuple[object, ...]]
    numbers: Mapping[str, float] = field(default_factory=dict)
    square: Mapping[str, int] = field(default_factory=dict)
    arrays: Callable[[EdgeList, int, Attributes], Shapes] = lambda edges, n_in, attributes: rows_of(edges, n_in)
    extra_outputs: Callable[[Inputs, Attributes], dict[str, Expr]] = lambda inputs, attributes: {}
    derived: Callable[[int, Attributes], AttributeDict] = lambda n_in, attributes: {}
    infer_more: Callable[[Shapes, Attributes], AttributeDict] = lambda shapes, inferred: {}

    def shapes(self, n_in: int, attributes: Attributes) -> Shapes:
        """Return {the paper's name of a parameter: shape} of the layer, for inputs of `n_in` columns and the layer's attributes."""
        words = {**attributes, "n_in": n_in, **self.derived(n_in, attributes)}
        return {name: tuple(words[word] for word in one.axes.split())
                for name, one in dialects.PARAMETERS[self.name].items() if not one.condition or words[one.condition]}

    def infer(self, shapes: Shapes) -> AttributeDict:
        """Return the layer's attributes, such as "n_out", that follow from `shapes`, {the paper's name of a parameter: shape}."""
        inferred: AttributeDict = {}
        for name, one in sorted(dialects.PARAMETERS[self.name].items(), key=lambda item: item[1].condition != ""):
            if one.condition in self.options:
                inferred[one.condition] = inferred.get(one.condition, False) or name in shapes
            for word, size in zip(one.axes.split(), shapes.get(name, ())):
                if word == "n_in" or word in self.sizes:
                    inferred.setdefault(word, size)
        return {**inferred, **self.infer_more(shapes, inferred)}


def rows_of(edges: EdgeList, n_in: int) -> Shapes:
    """Return the shapes of a layer's input rows on the graph `edges`: {"x": (n_src, n_in)} and, if n_dst differs from n_src,
    "x_dst": (n_dst, n_in).
    """
    return {"x": (edges.n_src, n_in), **({} if edges.n_src == edges.n_dst else {"x_dst": (edges.n_dst, n_in)})}


def shared_weight_copies(layer: LayerFormula, attributes: Attributes, state: State) -> set[str]:
    """Return the names in the state dict `state` that hold second copies of weights: torch saves a weight that sources and
    destinations share under two names. The set is empty unless attributes["share_weights"] is True. `layer` and the dialect
    determine the names.

    Raises
    ------
    DataError
        Both copies differ.
    """
    if not attributes.get("share_weights"):
        return set()
    table, names = dialects.state_entries(layer.name, attributes["dialect"]), set()
    for word in ("weight", "bias"):
        src, dst = (table[f"linear_{side}.{word}"].name for side in ("src", "dst"))
        if src in state and dst in state:
            if not np.array_equal(state[src], state[dst]):
                raise DataError(f"share_weights: {dst!r} differs from {src!r}")
            names.add(dst)
    return names


def resolve_attributes(layer: LayerFormula, attributes: Attributes, state: State | None) -> AttributeDict:
    """Return all attributes of a layer with their values. A value comes from the caller's `attributes`, else from the shapes in
    `state`, else from the library attributes["dialect"], else from the layer's defaults.

    Parameters
    ----------
    layer : LayerFormula
    attributes : dict
        Attributes from the caller, None if not set; with "dialect".
    state : dict of str to array, optional
        Parameters by the dialect's names.

    Raises
    ------
    ConfigError
        A value that is not allowed, or that contradicts the state.
    DataError
        A parameter that is missing, unknown or of a wrong shape.
    """
    dialect = attributes["dialect"]
    requested = {name: _checked(layer, dialect, name, value) for name, value in attributes.items() if value is not None}
    inferred: AttributeDict = {}
    if state is not None:
        shapes = {name: tuple(value.shape) for name, value in dialects.read(layer.name, dialect, state).items()}
        inferred = layer.infer(shapes)
    check_consistent(requested, inferred)
    first = {name: values[0] for name, values in layer.options.items()}
    settled = {"n_in": None, **layer.sizes, **layer.numbers, **first,
               **dialects.BEHAVIOUR.get((layer.name, dialect), {}), **inferred, **requested}
    if dialect == "dgl" and settled.get("heads") == "mean":
        raise ConfigError("heads 'mean': DGL's layers keep heads as an axis, and the caller takes the mean")
    if state is not None:
        _check_shapes(layer, dialect, shapes, layer.shapes(settled["n_in"], settled))
    return settled


def check_consistent(requested: Attributes, inferred: Attributes) -> None:
    """Raise ConfigError if an attribute in `requested` has another value than in `inferred`, the attributes that follow from a
    state dict's shapes.
    """
    for name, value in inferred.items():
        if requested.get(name, value) != value:
            raise ConfigError(f"{name} is {requested[name]!r}, but in the state {value!r}")


def _checked(layer, dialect, name, value):
    if name in layer.options and value not in layer.options[name]:
        choices = ", ".join(map(repr, layer.options[name]))
        what = f"nothing else of {dialect}'s {layer.name} has a reference"
        raise ConfigError(f"{name}: {value!r} is not one of {choices}; {what}")
    if name in layer.sizes or name == "n_in":
        return check_int(name, value)
    if name in layer.numbers and not (isinstance(value, (int, float)) and np.isfinite(value)):
        raise ConfigError(f"{name} is {value!r}, but must be a number")
    return value


def _check_shapes(layer: LayerFormula, dialect: str, shapes: Shapes, wanted: Shapes) -> None:
    """Raise DataError unless `shapes` equals `wanted`, the shapes that the layer needs; both are {the paper's name of a
    parameter: shape}. `shapes` was read from a state dict of the library `dialect`, whose names appear in the error.
    """
    place, whose = dialects.state_entries(layer.name, dialect, projected="root.weight" in wanted), f"{dialect}'s {layer.name}"
    for name in wanted:
        if name not in shapes:
            raise DataError(f"{place[name].name!r} is missing from the state of {whose}")
    for name, shape in shapes.items():
        theirs = place[name].name if name in place else name
        if name not in wanted:
            raise DataError(f"{theirs!r} has no place in {whose} with these attributes and shapes")
        if shape != wanted[name]:
            theirs_found, theirs_wanted = (place[name].shape(one) for one in (shape, wanted[name]))
            raise DataError(f"{theirs!r} has shape {theirs_found}, but in {whose} {theirs_wanted}")


def definition(layer: LayerFormula) -> Definition:
    """Convert a layer's formula to the Definition that `Reference` evaluates; parameters have the names and layouts of the
    library attributes["dialect"].
    """

    def formula(inputs, edges, attributes):
        state = {name: value for name, value in inputs.items() if name not in ARRAYS}
        by_paper_name = {**inputs, **dialects.read(layer.name, attributes["dialect"], state)}
        return {"out": layer.formula(by_paper_name, edges, attributes), **layer.extra_outputs(by_paper_name, attributes)}

    def arrays(edges, width, attributes):
        return layer.arrays(edges, width if attributes["n_in"] is None else attributes["n_in"], attributes)

    def parameters(width, attributes):
        n_in = width if attributes["n_in"] is None else attributes["n_in"]
        return dialects.shapes_in(layer.name, attributes["dialect"], layer.shapes(n_in, attributes))

    def resolve(attributes, state):
        if state is not None:
            state = dialects.arrays(state)
            state = {name: value for name, value in state.items() if name not in shared_weight_copies(layer, attributes, state)}
        return resolve_attributes(layer, attributes, state), state

    unknown = dict.fromkeys(("n_in", *layer.sizes, *layer.options, *layer.numbers))
    return Definition(layer.name, formula, arrays, unknown, parameters, fixed=FIXED, draw=DRAWN, resolve=resolve,
                      square=layer.square,
                      refuses=lambda edges, attributes: dialects.refuses(layer.name, edges, attributes))  # fmt: skip


def _relation(rng, shape, attributes):
    sizes = attributes if "each" not in attributes else attributes["each"][0]  # all layers of a model have equal numbers
    return rng.integers(0, max(sizes["n_relations"], 1), shape)


FIXED = frozenset(("relation", "labels", "mask", "running_mean", "running_var", *dialects.COUNTERS))
DRAWN: dict[str, Drawer] = {"relation": _relation,
                                        "edge_weight": lambda rng, shape, attributes: rng.integers(1, 9, shape) / 4,
                                        "running_var": lambda rng, shape, attributes: rng.integers(1, 9, shape) / 2}


# ---- parts of several formulas


def with_self_loops(edges: EdgeList, weight: Expr | None, self_loops: str) -> tuple[EdgeList, Expr | None]:
    """Return (edges, weights) with self loops added as `self_loops` says: not at all ("none"), one for each row without any
    ("missing"), or one for each row in place of its own ("replace"). The weights are None if `weight` is None.

    Parameters
    ----------
    edges : EdgeList
    weight : Expr or None
        Weights by edge.
    self_loops : {"none", "missing", "replace"}
        "none" adds none. "missing" adds one of weight 1 to each row that has none. "replace" removes the self loops and
        adds one to every row, with the weight of the row's last self loop, or 1.
    """
    if self_loops == "none":
        return edges, weight
    if edges.n_src != edges.n_dst:
        raise ConfigError(f"self_loops {self_loops!r}: there are {edges.n_src} source rows, "
                          f"but {edges.n_dst} destination rows")
    present = np.flatnonzero(edges.src == edges.dst)
    last = np.full(edges.n_dst, -1)
    last[edges.dst[present]] = present  # the last assignment wins
    if self_loops == "missing":
        kept_edges, loop_rows = np.arange(edges.n_edges), np.flatnonzero(last < 0)
    else:
        kept_edges, loop_rows = np.flatnonzero(edges.src != edges.dst), np.arange(edges.n_dst)
    joined = edges.select(kept_edges).with_loops(loop_rows)
    if weight is None:
        return joined, None
    weight_index = np.concatenate([kept_edges, np.where(last[loop_rows] < 0, edges.n_edges, last[loop_rows])])
    return joined, gather(concat([weight, constant(np.ones(1))]), Index(weight_index, edges.n_edges + 1))


def destination_rows(inputs: Inputs) -> Expr:
    """Return the rows of the destinations out of a layer's `inputs`: "x_dst" if the destinations are other nodes than the
    sources, else "x".
    """
    return inputs.get("x_dst", inputs["x"])


def add_if_present(out: Expr, term: Expr | None) -> Expr:
    """Return out + term, or `out` if the term is None."""
    return out if term is None else out + term

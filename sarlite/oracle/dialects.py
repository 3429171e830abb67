"""Dialects, the conventions of DGL, PyG and the papers: names and layouts of parameters, and default behaviour of layers.

The formulas (`layer_formulas.py`) and sarlite's own layers use the names of dialect "paper". "dgl" covers GraphConv,
SAGEConv, GATConv, GATv2Conv and RelGraphConv, with torch's BatchNorm1d. "pyg" covers GCNConv, SAGEConv, GATConv,
GATv2Conv, RGCNConv and BatchNorm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from sarlite.errors import ConfigError, DataError
from sarlite.oracle.case import AttributeDict, Attributes
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.formats import as_array
from sarlite.types import Array

DIALECTS = ("paper", "dgl", "pyg")


class Shaped(Protocol):
    """Protocol for an object with a shape: an array or an Expr."""

    @property
    def shape(self) -> tuple[int, ...]: ...


S = TypeVar("S", bound=Shaped)


class StateLayout(NamedTuple):
    """Two functions that convert a parameter of a layer, an array or an Expr: `read` from a library's layout to the paper's, and
    `write` back to the library's.
    """

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


AS_IS = StateLayout(lambda a: a, lambda a: a)
TRANSPOSED = StateLayout(lambda a: a.T, lambda a: a.T)  # torch's Linear has (n_out, n_in)
BY_HEAD = StateLayout(lambda a: a.reshape(*a.shape[1:]), lambda a: a.reshape(1, *a.shape))  # (1, n_heads, n_feat)


class StateEntry(NamedTuple):
    """Name and layout of one parameter of a layer in the state dict of a library."""

    name: str
    layout: StateLayout = AS_IS

    def shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """Convert `ours`, a parameter's shape in the paper's layout, to its shape in the library's layout."""
        return tuple(self.layout.write(np.broadcast_to(0.0, ours)).shape)


class ParameterAxes(NamedTuple):
    """Shape of a layer's parameter in words: `axes` has the names of the axis lengths, such as "n_in n_out". `condition` is the
    attribute of the layer that is true if the layer has the parameter; if it is empty, the layer always has it.

    Both are names of attributes of the layer, or of values of `LayerFormula.derived`, separated by spaces.
    """

    axes: str
    condition: str = ""


# layer -> {the paper's name of a parameter: its axes}
PARAMETERS: dict[str, dict[str, ParameterAxes]] = {
    "gcn": {"linear.weight": ParameterAxes("n_in n_out"), "bias": ParameterAxes("n_out", "bias")},
    "sage": {"root.weight": ParameterAxes("n_in n_out", "root"), "root.bias": ParameterAxes("n_out", "bias"),
             "neighbour.weight": ParameterAxes("n_in n_out"), "pool.weight": ParameterAxes("n_in n_in", "pool"),
             "pool.bias": ParameterAxes("n_in", "pool")},
    "gat": {"linear.weight": ParameterAxes("n_in width"), "attn_src": ParameterAxes("n_heads n_feat"),
            "attn_dst": ParameterAxes("n_heads n_feat"), "bias": ParameterAxes("out_width", "bias"),
            "root.weight": ParameterAxes("n_in out_width", "projected")},
    "gatv2": {"linear_src.weight": ParameterAxes("n_in width"), "linear_src.bias": ParameterAxes("width", "bias"),
              "linear_dst.weight": ParameterAxes("n_in width", "separate"),
              "linear_dst.bias": ParameterAxes("width", "separate_bias"), "attn": ParameterAxes("n_heads n_feat"),
              "bias": ParameterAxes("out_width", "last_bias"), "root.weight": ParameterAxes("n_in out_width", "projected")},
    "rgcn": {"bases": ParameterAxes("n_matrices n_in n_out"), "coefficients": ParameterAxes("n_relations n_bases", "n_bases"),
             "root.weight": ParameterAxes("n_in n_out", "root"), "bias": ParameterAxes("n_out", "bias")},
    "batch_norm": {"gamma": ParameterAxes("n_in", "affine"), "beta": ParameterAxes("n_in", "affine"),
                   "running_mean": ParameterAxes("n_in", "tracked"), "running_var": ParameterAxes("n_in", "tracked")},
}  # fmt: skip


def _linear(ours, theirs):
    return {f"{ours}.weight": StateEntry(f"{theirs}.weight", TRANSPOSED), f"{ours}.bias": StateEntry(f"{theirs}.bias")}


# (layer, dialect) -> {the paper's name of a parameter: name and layout in the library}
STATE_ENTRIES: dict[tuple[str, str], dict[str, StateEntry]] = {
    ("gcn", "dgl"): {"linear.weight": StateEntry("weight"), "bias": StateEntry("bias")},
    ("gcn", "pyg"): {"linear.weight": StateEntry("lin.weight", TRANSPOSED), "bias": StateEntry("bias")},
    ("sage", "dgl"): {**_linear("root", "fc_self"), "neighbour.weight": StateEntry("fc_neigh.weight", TRANSPOSED),
                      **_linear("pool", "fc_pool")},
    ("sage", "pyg"): {"root.weight": StateEntry("lin_r.weight", TRANSPOSED), "root.bias": StateEntry("lin_l.bias"),
                      "neighbour.weight": StateEntry("lin_l.weight", TRANSPOSED), **_linear("pool", "lin")},
    ("gat", "dgl"): {"linear.weight": StateEntry("fc.weight", TRANSPOSED), "attn_src": StateEntry("attn_l", BY_HEAD),
                     "attn_dst": StateEntry("attn_r", BY_HEAD), "bias": StateEntry("bias"),
                     "root.weight": StateEntry("res_fc.weight", TRANSPOSED)},
    ("gat", "pyg"): {"linear.weight": StateEntry("lin.weight", TRANSPOSED), "attn_src": StateEntry("att_src", BY_HEAD),
                     "attn_dst": StateEntry("att_dst", BY_HEAD), "bias": StateEntry("bias"),
                     "root.weight": StateEntry("res.weight", TRANSPOSED)},
    ("gatv2", "dgl"): {**_linear("linear_src", "fc_src"), **_linear("linear_dst", "fc_dst"),
                       "attn": StateEntry("attn", BY_HEAD),
                       "root.weight": StateEntry("res_fc.weight", TRANSPOSED)},
    ("gatv2", "pyg"): {**_linear("linear_src", "lin_l"), **_linear("linear_dst", "lin_r"),
                       "attn": StateEntry("att", BY_HEAD),
                       "bias": StateEntry("bias"), "root.weight": StateEntry("res.weight", TRANSPOSED)},
    ("rgcn", "dgl"): {"bases": StateEntry("linear_r.W"), "coefficients": StateEntry("linear_r.coeff"),
                      "root.weight": StateEntry("loop_weight"),
                      "bias": StateEntry("h_bias")},
    ("rgcn", "pyg"): {"bases": StateEntry("weight"), "coefficients": StateEntry("comp"), "root.weight": StateEntry("root"),
                      "bias": StateEntry("bias")},
    ("batch_norm", "dgl"): {"gamma": StateEntry("weight"), "beta": StateEntry("bias"), "running_mean": StateEntry("running_mean"),
                            "running_var": StateEntry("running_var")},
    ("batch_norm", "pyg"): {"gamma": StateEntry("module.weight"), "beta": StateEntry("module.bias"),
                            "running_mean": StateEntry("module.running_mean"),
                            "running_var": StateEntry("module.running_var")},
}  # fmt: skip
STATE_ENTRIES |= {(layer, "paper"): {name: StateEntry(name) for name in table} for layer, table in PARAMETERS.items()}
# torch's batch norm counts batches, but uses the count only without a fixed momentum
COUNTERS = ("num_batches_tracked",)

# Defaults of a library's layer that differ from the general ones: (layer, dialect) -> {attribute: value}
BEHAVIOUR: dict[tuple[str, str], AttributeDict] = {
    ("gcn", "paper"): dict(self_loops="missing", norm="in", isolated="one"),
    ("gcn", "dgl"): dict(self_loops="none", norm="both", isolated="one", allow_zero_in_degree=False),
    ("gcn", "pyg"): dict(self_loops="replace", norm="in", isolated="zero"),
    ("sage", "paper"): dict(ties="lowest"),
    ("sage", "dgl"): dict(ties="first"),
    ("sage", "pyg"): dict(ties="all"),
    ("gat", "paper"): dict(self_loops="missing", epsilon=0.0, heads="concat"),
    ("gat", "dgl"): dict(self_loops="none", epsilon=0.0, heads="axis", allow_zero_in_degree=False),
    ("gat", "pyg"): dict(self_loops="replace", epsilon=1e-16, heads="concat"),
    ("rgcn", "paper"): dict(reduce="mean"),
    ("rgcn", "dgl"): dict(reduce="sum"),
    ("rgcn", "pyg"): dict(reduce="mean"),
}
BEHAVIOUR |= {("gatv2", dialect): BEHAVIOUR["gat", dialect] for dialect in DIALECTS}


_POOL = {"mean": "mean", "pool": "max-pool"}
_CONCAT = {True: "concat", False: "mean"}


Names = dict[str, tuple[str, Mapping[Any, object]]]  # library's name -> (oracle's name, {library's value: oracle's value})


def _library_names(names: str, **values: Mapping[Any, object]) -> Names:
    """Parse `names`, words such as "aggr=reduce" (library's name = oracle's name), to {library's attribute: (oracle's attribute,
    values)}. `values` translates the attribute's values from the library to the oracle, as a dict; an attribute whose values are
    the same in both has an empty dict.
    """
    pairs = (word.split("=") for word in names.split())
    return {theirs: (ours, values.get(theirs, {})) for theirs, ours in pairs}


# Names of attributes in a library's layers, by (layer, dialect)
LIBRARY_NAMES: dict[tuple[str, str], Names] = {
    ("gcn", "dgl"): _library_names("in_feats=n_in out_feats=n_out"),
    ("gcn", "pyg"): _library_names("in_channels=n_in out_channels=n_out normalize=norm add_self_loops=self_loops",
                         normalize={True: "in", False: "none"}, add_self_loops={True: "replace", False: "none"}),
    ("sage", "dgl"): _library_names("in_feats=n_in out_feats=n_out aggregator_type=aggregator", aggregator_type=_POOL),
    ("sage", "pyg"): _library_names("in_channels=n_in out_channels=n_out aggr=aggregator root_weight=root"),
    ("rgcn", "dgl"): _library_names("in_feat=n_in out_feat=n_out num_rels=n_relations num_bases=n_bases self_loop=root"),
    ("rgcn", "pyg"): _library_names("in_channels=n_in out_channels=n_out num_relations=n_relations num_bases=n_bases "
                          "root_weight=root aggr=reduce"),
    **{("batch_norm", dialect): _library_names("num_features=n_in in_channels=n_in track_running_stats=tracked")
       for dialect in ("dgl", "pyg")},
    **{(layer, "dgl"): _library_names("in_feats=n_in out_feats=n_feat num_heads=n_heads negative_slope=slope")
       for layer in ("gat", "gatv2")},
    **{(layer, "pyg"): _library_names("in_channels=n_in out_channels=n_feat heads=n_heads negative_slope=slope concat=heads "
                            "add_self_loops=self_loops", concat=_CONCAT,
                            add_self_loops={True: "replace", False: "none"}) for layer in ("gat", "gatv2")},
}  # fmt: skip


def oracle_attributes(name: str, dialect: str, attributes: Attributes) -> AttributeDict:
    """Translate `attributes` of the layer `name` from the names and values of the library `dialect` to the oracle's names and
    values, and return them by name. Attributes that already have the oracle's names stay unchanged.

    Raises
    ------
    ConfigError
        An attribute is set twice, or a library's value has no reference.
    """
    table, attributes_by_name = LIBRARY_NAMES.get((name.partition("-")[0], dialect), {}), {}
    for theirs, value in attributes.items():
        ours, values = table.get(theirs, (theirs, {}))
        if theirs == "heads" and not isinstance(value, int):  # the oracle's "heads" is a word, PyG's is a number
            ours = theirs
        if values and value not in values:
            allowed = ", ".join(map(repr, values))
            raise ConfigError(f"{theirs}: {value!r} of {dialect}'s {name} has no reference; there are {allowed}")
        if ours in attributes_by_name:
            raise ConfigError(f"{theirs}: {ours} is given twice")
        attributes_by_name[ours] = values.get(value, value) if values else value
    return attributes_by_name


def refuses(layer: str, edges: EdgeList, attributes: Attributes) -> str | None:
    """Return the reason why the layer `layer` of the library `attributes["dialect"]` raises an error for a graph with these
    edges; None if it raises no error.
    """
    if not attributes.get("allow_zero_in_degree", True) and not edges.in_degrees.all():
        row = int(np.argmin(edges.in_degrees))
        return f"DGL raises where a row has no in-edge, as row {row}, without allow_zero_in_degree"
    if layer == "batch_norm" and attributes["dialect"] != "paper" and attributes["training"] and edges.n_dst < 2:
        return f"torch's batch norm raises in training where there are {edges.n_dst} rows"
    return None


def state_entries(layer: str, dialect: str, names: Iterable[str] = (), *, projected: bool = False) -> dict[str, StateEntry]:
    """Return {the paper's parameter name: StateEntry, the library's name and layout} of a layer in the library `dialect`. DGL
    stores the bias under another name in a layer that multiplies its residual by a matrix. The layer does so if `projected` is
    True, or if `names`, the names in a state dict, include this matrix.

    Parameters
    ----------
    layer, dialect : str
    names : iterable of str
        Names of a state in that dialect.
    projected : bool
        True if the residual is projected; `names` can show that, too. The projection then has DGL's bias.

    Raises
    ------
    ConfigError
        Unknown layer or dialect.
    """
    if (layer, dialect) not in STATE_ENTRIES:
        choices = f"{', '.join(PARAMETERS)} in {', '.join(DIALECTS)}"
        raise ConfigError(f"no layer {layer!r} in the dialect {dialect!r}: there are {choices}")
    table = dict(STATE_ENTRIES[layer, dialect])
    if dialect == "dgl" and layer in ("gat", "gatv2") and (projected or "res_fc.weight" in names):
        table["bias"] = StateEntry("res_fc.bias")
    return table


def read(layer: str, dialect: str, state: Mapping[str, S]) -> dict[str, S]:
    """Convert `state`, parameters of the layer `layer` by the names and in the layouts of the library `dialect`, to the paper's
    names and layouts; return them by name.

    Parameters
    ----------
    layer, dialect : str
    state : dict of str to array or Expr
        Parameters by the dialect's names. A count of batches is left out.

    Raises
    ------
    DataError
        A name that the dialect's layer does not have, or a number of axes that its layout does not allow.
    """
    table = {place.name: (ours, place.layout) for ours, place in state_entries(layer, dialect, state).items()}
    parameters = {}
    for name, value in state.items():
        if name.rpartition(".")[2] in COUNTERS and layer == "batch_norm":
            continue
        if name not in table:
            raise DataError(f"{name!r} is not a parameter of {dialect}'s {layer}, which may have {', '.join(table)}")
        ours, layout = table[name]
        shape, n_axes = tuple(value.shape), len(PARAMETERS[layer][ours].axes.split())
        if len(shape) != n_axes + (layout is BY_HEAD) or layout is BY_HEAD and shape[0] != 1:
            wanted = "(1, n_heads, n_feat)" if layout is BY_HEAD else f"{n_axes} axes"
            raise DataError(f"{name!r} has shape {shape}, but in {dialect}'s {layer} it has {wanted}")
        parameters[ours] = layout.read(value)
    return parameters


def write(layer: str, dialect: str, state: Mapping[str, S]) -> dict[str, S]:
    """Convert `state`, parameters of a layer with the paper's names and layouts, to the names and layouts of the library
    `dialect`; return them by name. This is the inverse of `read`.

    Raises
    ------
    DataError
        The dialect's layer has no such parameter.
    """
    table = state_entries(layer, dialect, projected="root.weight" in state)
    for name in state:
        if name not in table:
            raise DataError(f"{name!r} has no place in {dialect}'s {layer}")
    return {table[name].name: table[name].layout.write(value) for name, value in state.items()}


def shapes_in(layer: str, dialect: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Translate `shapes`, {parameter: shape} of a layer in the paper's names and layouts, to the names and layouts of the library
    `dialect`.
    """
    table = state_entries(layer, dialect, projected="root.weight" in shapes)
    return {table[name].name: table[name].shape(shape) for name, shape in shapes.items()}


def arrays(state: Mapping[str, object]) -> dict[str, Array]:
    """Return the arrays of a state dict as NumPy copies, by name; tensors that require gradients are allowed.

    Raises
    ------
    DataError
        An entry is not an array of numbers.
    """
    copies = {}
    for name, value in state.items():
        array = np.array(as_array(value), order="C")
        if array.dtype.kind not in "fiu":
            raise DataError(f"{name!r} is not an array of numbers: {array.dtype} {array.shape}")
        keeps_dtype = array.dtype.kind == "f" or name.rpartition(".")[2] in COUNTERS
        copies[name] = array if keeps_dtype else array.astype(np.float64)
    return copies

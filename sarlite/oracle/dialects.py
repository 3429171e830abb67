"""Dialects: the names and layouts of parameters in a library's layers, and the default behaviour of these layers.

Formulas (layers.py) and sarlite's own layers use the names of dialect "paper". Of DGL these are GraphConv, SAGEConv,
GATConv, GATv2Conv and RelGraphConv, with torch's BatchNorm1d; of PyG GCNConv, SAGEConv, GATConv, GATv2Conv, RGCNConv
and BatchNorm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sarlite.errors import ConfigError, DataError
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.formats import as_array
from sarlite.types import Array

DIALECTS = ("paper", "dgl", "pyg")


class Layout(NamedTuple):
    """How a parameter (array or expression) stands in a library: `read` gives the paper's layout, `write` back."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


AS_IS = Layout(lambda a: a, lambda a: a)
TRANSPOSED = Layout(lambda a: a.T, lambda a: a.T)  # torch's Linear keeps (n_out, n_in)
BY_HEAD = Layout(lambda a: a.reshape(*a.shape[1:]), lambda a: a.reshape(1, *a.shape))  # (1, n_heads, n_feat)


class Place(NamedTuple):
    """Name and layout of a parameter in a library's layer."""

    name: str
    layout: Layout = AS_IS

    def shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """The library's shape of a parameter, from the paper's."""
        return tuple(self.layout.write(np.broadcast_to(0.0, ours)).shape)


class Parameter(NamedTuple):
    """The lengths of a parameter's axes, and the condition under which there is one.

    Both are words for attributes of the layer, or for what `Layer.derived` says.
    """

    axes: str
    when: str = ""


# layer -> {the paper's name: its axes}
PARAMETERS: dict[str, dict[str, Parameter]] = {
    "gcn": {"linear.weight": Parameter("n_in n_out"), "bias": Parameter("n_out", "bias")},
    "sage": {"root.weight": Parameter("n_in n_out", "root"), "root.bias": Parameter("n_out", "bias"),
             "neighbour.weight": Parameter("n_in n_out"), "pool.weight": Parameter("n_in n_in", "pool"),
             "pool.bias": Parameter("n_in", "pool")},
    "gat": {"linear.weight": Parameter("n_in width"), "attn_src": Parameter("n_heads n_feat"),
            "attn_dst": Parameter("n_heads n_feat"), "bias": Parameter("out_width", "bias"),
            "root.weight": Parameter("n_in out_width", "projected")},
    "gatv2": {"linear_src.weight": Parameter("n_in width"), "linear_src.bias": Parameter("width", "bias"),
              "linear_dst.weight": Parameter("n_in width", "apart"),
              "linear_dst.bias": Parameter("width", "apart_bias"), "attn": Parameter("n_heads n_feat"),
              "bias": Parameter("out_width", "last_bias"), "root.weight": Parameter("n_in out_width", "projected")},
    "rgcn": {"bases": Parameter("n_matrices n_in n_out"), "coefficients": Parameter("n_relations n_bases", "n_bases"),
             "root.weight": Parameter("n_in n_out", "root"), "bias": Parameter("n_out", "bias")},
    "batch_norm": {"gamma": Parameter("n_in", "affine"), "beta": Parameter("n_in", "affine"),
                   "running_mean": Parameter("n_in", "tracked"), "running_var": Parameter("n_in", "tracked")},
}  # fmt: skip


def _linear(ours, theirs):
    return {f"{ours}.weight": Place(f"{theirs}.weight", TRANSPOSED), f"{ours}.bias": Place(f"{theirs}.bias")}


# (layer, dialect) -> {the paper's name: place}
PLACES: dict[tuple[str, str], dict[str, Place]] = {
    ("gcn", "dgl"): {"linear.weight": Place("weight"), "bias": Place("bias")},
    ("gcn", "pyg"): {"linear.weight": Place("lin.weight", TRANSPOSED), "bias": Place("bias")},
    ("sage", "dgl"): {**_linear("root", "fc_self"), "neighbour.weight": Place("fc_neigh.weight", TRANSPOSED),
                      **_linear("pool", "fc_pool")},
    ("sage", "pyg"): {"root.weight": Place("lin_r.weight", TRANSPOSED), "root.bias": Place("lin_l.bias"),
                      "neighbour.weight": Place("lin_l.weight", TRANSPOSED), **_linear("pool", "lin")},
    ("gat", "dgl"): {"linear.weight": Place("fc.weight", TRANSPOSED), "attn_src": Place("attn_l", BY_HEAD),
                     "attn_dst": Place("attn_r", BY_HEAD), "bias": Place("bias"),
                     "root.weight": Place("res_fc.weight", TRANSPOSED)},
    ("gat", "pyg"): {"linear.weight": Place("lin.weight", TRANSPOSED), "attn_src": Place("att_src", BY_HEAD),
                     "attn_dst": Place("att_dst", BY_HEAD), "bias": Place("bias"),
                     "root.weight": Place("res.weight", TRANSPOSED)},
    ("gatv2", "dgl"): {**_linear("linear_src", "fc_src"), **_linear("linear_dst", "fc_dst"),
                       "attn": Place("attn", BY_HEAD),
                       "root.weight": Place("res_fc.weight", TRANSPOSED)},
    ("gatv2", "pyg"): {**_linear("linear_src", "lin_l"), **_linear("linear_dst", "lin_r"),
                       "attn": Place("att", BY_HEAD),
                       "bias": Place("bias"), "root.weight": Place("res.weight", TRANSPOSED)},
    ("rgcn", "dgl"): {"bases": Place("linear_r.W"), "coefficients": Place("linear_r.coeff"),
                      "root.weight": Place("loop_weight"),
                      "bias": Place("h_bias")},
    ("rgcn", "pyg"): {"bases": Place("weight"), "coefficients": Place("comp"), "root.weight": Place("root"),
                      "bias": Place("bias")},
    ("batch_norm", "dgl"): {"gamma": Place("weight"), "beta": Place("bias"), "running_mean": Place("running_mean"),
                            "running_var": Place("running_var")},
    ("batch_norm", "pyg"): {"gamma": Place("module.weight"), "beta": Place("module.bias"),
                            "running_mean": Place("module.running_mean"),
                            "running_var": Place("module.running_var")},
}  # fmt: skip
PLACES |= {(layer, "paper"): {name: Place(name) for name in table} for layer, table in PARAMETERS.items()}
# torch's batch norm counts batches; nothing is computed with it at a fixed momentum
COUNTERS = ("num_batches_tracked",)

# What a library's layer does where nothing else is asked: (layer, dialect) -> {attribute: value}
BEHAVIOUR: dict[tuple[str, str], dict[str, Any]] = {
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


def _own(names: str, **values: Mapping[Any, Any]) -> dict[str, tuple[str, Mapping[Any, Any]]]:
    """The table of "theirs=ours" words; `values` has {their value: ours} of some."""
    pairs = (word.split("=") for word in names.split())
    return {theirs: (ours, values.get(theirs, {})) for theirs, ours in pairs}


# The names that a library's layers have for attributes: (layer, dialect) -> {its name: (ours, {its value: ours})}
OWN: dict[tuple[str, str], dict[str, tuple[str, Mapping[Any, Any]]]] = {
    ("gcn", "dgl"): _own("in_feats=n_in out_feats=n_out"),
    ("gcn", "pyg"): _own("in_channels=n_in out_channels=n_out normalize=norm add_self_loops=self_loops",
                         normalize={True: "in", False: "none"}, add_self_loops={True: "replace", False: "none"}),
    ("sage", "dgl"): _own("in_feats=n_in out_feats=n_out aggregator_type=aggregator", aggregator_type=_POOL),
    ("sage", "pyg"): _own("in_channels=n_in out_channels=n_out aggr=aggregator root_weight=root"),
    ("rgcn", "dgl"): _own("in_feat=n_in out_feat=n_out num_rels=n_relations num_bases=n_bases self_loop=root"),
    ("rgcn", "pyg"): _own("in_channels=n_in out_channels=n_out num_relations=n_relations num_bases=n_bases "
                          "root_weight=root aggr=reduce"),
    **{("batch_norm", dialect): _own("num_features=n_in in_channels=n_in track_running_stats=tracked")
       for dialect in ("dgl", "pyg")},
    **{(layer, "dgl"): _own("in_feats=n_in out_feats=n_feat num_heads=n_heads negative_slope=slope")
       for layer in ("gat", "gatv2")},
    **{(layer, "pyg"): _own("in_channels=n_in out_channels=n_feat heads=n_heads negative_slope=slope concat=heads "
                            "add_self_loops=self_loops", concat=_CONCAT,
                            add_self_loops={True: "replace", False: "none"}) for layer in ("gat", "gatv2")},
}  # fmt: skip


def by_our_names(name: str, dialect: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes by the oracle's names, of those that may stand by a library's.

    Raises ConfigError where an attribute stands twice, or a library's value has no reference.
    """
    table, found = OWN.get((name.partition("-")[0], dialect), {}), {}
    for theirs, value in attributes.items():
        ours, values = table.get(theirs, (theirs, {}))
        if theirs == "heads" and not isinstance(value, int):  # ours; PyG's is a number
            ours = theirs
        if values and value not in values:
            known = ", ".join(map(repr, values))
            raise ConfigError(f"{theirs}: {value!r} of {dialect}'s {name} has no reference; there are {known}")
        if ours in found:
            raise ConfigError(f"{theirs}: {ours} is given twice")
        found[ours] = values.get(value, value) if values else value
    return found


def refuses(layer: str, edges: EdgeList, attributes: Mapping[str, Any]) -> str | None:
    """Why a dialect's layer raises an error for these edges; None where it computes."""
    if not attributes.get("allow_zero_in_degree", True) and not edges.in_degrees.all():
        row = int(np.argmin(edges.in_degrees))
        return f"DGL raises where a row has no in-edge, as row {row}, without allow_zero_in_degree"
    if layer == "batch_norm" and attributes["dialect"] != "paper" and attributes["training"] and edges.n_dst < 2:
        return f"torch's batch norm raises in training where there are {edges.n_dst} rows"
    return None


def places(layer: str, dialect: str, names: Iterable[str] = (), *, projected: bool = False) -> dict[str, Place]:
    """Return the place of each of the paper's parameters in a dialect's layer.

    Parameters
    ----------
    layer, dialect : str
    names : iterable of str
        Of a state in that dialect.
    projected : bool
        Whether the residual is projected; known from `names` where they are given. DGL's bias is then the projection's.

    Raises
    ------
    ConfigError
        No such layer or dialect.
    """
    if (layer, dialect) not in PLACES:
        known = f"{', '.join(PARAMETERS)} in {', '.join(DIALECTS)}"
        raise ConfigError(f"no layer {layer!r} in the dialect {dialect!r}: there are {known}")
    table = dict(PLACES[layer, dialect])
    if dialect == "dgl" and layer in ("gat", "gatv2") and (projected or "res_fc.weight" in names):
        table["bias"] = Place("res_fc.bias")
    return table


def read(layer: str, dialect: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a layer by the paper's names and in the paper's layouts.

    Parameters
    ----------
    state : dict of str to array or Expr
        By the dialect's names. A count of batches is left out.

    Raises
    ------
    DataError
        A name that the dialect's layer does not have, or a number of axes that its layout does not allow.
    """
    table = {place.name: (ours, place.layout) for ours, place in places(layer, dialect, state).items()}
    found = {}
    for name, value in state.items():
        if name.rpartition(".")[2] in COUNTERS and layer == "batch_norm":
            continue
        if name not in table:
            raise DataError(f"{name!r} is no parameter of {dialect}'s {layer}, which may have {', '.join(table)}")
        ours, layout = table[name]
        shape, n_axes = tuple(value.shape), len(PARAMETERS[layer][ours].axes.split())
        if len(shape) != n_axes + (layout is BY_HEAD) or layout is BY_HEAD and shape[0] != 1:
            wanted = "(1, n_heads, n_feat)" if layout is BY_HEAD else f"{n_axes} axes"
            raise DataError(f"{name!r} is of shape {shape}, but in {dialect}'s {layer} it is of {wanted}")
        found[ours] = layout.read(value)
    return found


def write(layer: str, dialect: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `read`; a DataError names a parameter that the dialect's layer has no place for."""
    table = places(layer, dialect, projected="root.weight" in state)
    for name in state:
        if name not in table:
            raise DataError(f"{name!r} has no place in {dialect}'s {layer}")
    return {table[name].name: table[name].layout.write(value) for name, value in state.items()}


def shapes_in(layer: str, dialect: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes of a dialect's parameters, from the shapes of the paper's."""
    table = places(layer, dialect, projected="root.weight" in shapes)
    return {table[name].name: table[name].shape(shape) for name, shape in shapes.items()}


def arrays(state: Mapping[str, Any]) -> dict[str, Array]:
    """Return copies of a state as arrays, from anything with `__array__` or `__dlpack__`, tensors with gradients, too.

    Raises DataError naming an entry that is no array of numbers.
    """
    found = {}
    for name, value in state.items():
        array = np.array(as_array(value), order="C")
        if array.dtype.kind not in "fiu":
            raise DataError(f"{name!r} is no array of numbers: {array.dtype} {array.shape}")
        kept = array.dtype.kind == "f" or name.rpartition(".")[2] in COUNTERS
        found[name] = array if kept else array.astype(np.float64)
    return found

"""Options of `edges:FILE,...` specs, converted into a description of tables."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sarlite.data import npyfile, textfile
from sarlite.data.graph_tables import RELATION, SPLITS
from sarlite.data.mapped import fresh
from sarlite.data.names import lines
from sarlite.data.raw import existing, masks
from sarlite.data.tables.description import Description, EdgeSource, NodeSource, features_of, node_source, reading_of
from sarlite.data.tables.memory_tables import Named, Pieces
from sarlite.data.tables.notations import EDGES_SPEC, SPEC
from sarlite.errors import ConfigError, DataError
from sarlite.types import Path as AnyPath

_OF_TABLE = ("id", "train_mask", "val_mask", "test_mask", "node_time")
_OF_FILES = ("train_ids", "val_ids", "test_ids", "names")
_NODE = "node"


def describe(path: AnyPath, options: Mapping[str, Any]) -> Description:
    """Return the Description of the spec `edges:PATH,OPTION=VALUE,...` with these `options`, which docs/data.md explains.

    Raises
    ------
    ConfigError, DataError
        If options exclude each other, or a file is missing.
    """
    nodes, features = options.get("nodes"), options.get("features")
    in_table = nodes is not None and not str(nodes).lstrip("-").isdecimal()
    if in_table:
        _refuse(options, _OF_FILES, "does not go with a table of the nodes, whose columns say it")
        of_table = {**options, "file": nodes, "time": options.get("node_time")}
        source = node_source({name: value for name, value in of_table.items() if value is not None}, Path(), "nodes", "nodes", SPEC)
    else:
        _refuse(options, _OF_TABLE, "needs nodes=FILE, a table of the nodes")
        if features is not None and not Path(features).exists() and not Path(features).suffix:
            if options.get("edge_features") is not None:
                raise ConfigError(f"features={features}: no such file, and no nodes=FILE whose columns it could name")
            options = {**options, "features": None, "edge_features": features}
        source = nodes_by_number(options)
    edges = EdgeSource(
        RELATION, _pairs(path), "edges", options.get("src"), options.get("dst"), options.get("weight"),
        features_of(options.get("edge_features")) or {}, options.get("fill"), False,
        options.get("on_unknown", "refuse"), reading_of(options, EDGES_SPEC), time=options.get("time"))
    return Description({_NODE: source}, [edges], _NODE, Path(path).name.partition(".")[0] or "tables")


def nodes_by_number(options: Mapping[str, Any], count: int | None = None, where: tuple[object, str] = ("nodes", "option")) -> NodeSource:
    """Return the NodeSource of nodes that are numbered 0, 1, ..., with data from the files that `options` name, which have row i for node
    i. `count` is the number of nodes (None: from the files), and `where` is (file, field) that states it, for messages.

    Parameters
    ----------
    options : dict
    count : int, optional
        Number of nodes.
    where : (str or path, str)
        File and field that state `count`, for messages.
    """
    ids = check_options(options)
    names, nodes = options.get("names"), options.get("nodes")
    rows = {field: existing(options[field]) for field in ("features", "labels", "split") if options.get(field) is not None}
    if names not in (None, "edges"):
        names = existing(names)
        rows["names"] = names if names.suffix == ".parquet" else Pieces(str(names), _listed(names))
    if ids:
        rows["masks"] = partial(_masks, ids)
    if names == "edges" and rows:
        raise ConfigError(f"{next(iter(rows.values()))}: rows of this file belong to no node, as only the edges name "
                          "nodes; list the names in a file, names=FILE, or give a table, nodes=FILE")
    return NodeSource(
        task=options.get("task"), classes=options.get("classes"), fill=options.get("fill"),
        count=int(nodes) if nodes is not None else count, counted_in=where, names=names == "edges", rows=rows,
        reading=reading_of({**options, "header": None}),
        **{name: options[name] for name in ("train", "val", "seed") if name in options})


def check_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Return {split: file of node ids} from the `options` of an `edges:` spec. Raise a ConfigError if an option excludes another
    one, or needs one that is missing.
    """
    ids = {name: options[f"{name}_ids"] for name in SPLITS if options.get(f"{name}_ids") is not None}
    need_labels = [name for name in ("task", "split", *(f"{name}_ids" for name in SPLITS)) if options.get(name) is not None]
    if need_labels and options.get("labels") is None:
        raise ConfigError(f"{need_labels[0]}: needs labels=FILE")
    if options.get("split") is not None and ids:
        raise ConfigError(f"split and {next(iter(ids))}_ids exclude each other: pass one of the two")
    return ids


def _refuse(options, names, why):
    odd = next((name for name in names if options.get(name) is not None), None)
    if odd:
        raise ConfigError(f"{odd}: {why}")


def _pairs(path):
    """Return the source of the edges in `path`: the path itself or, for a .npy array of pairs, a dict of two columns."""
    if Path(path).suffix != ".npy":
        return path
    pairs = npyfile.load(existing(path), "edges", "iu")
    if pairs.shape == (2, 2):
        raise DataError(f"{path}: edges: shape (2, 2) is two edges by rows or by columns, and nothing says which: write them as text")
    if pairs.size == 0:
        pairs = np.empty((0, 2), np.int64)
    if pairs.ndim != 2 or 2 not in pairs.shape:
        raise DataError(f"{path}: edges: expected two columns (in .npy: or two rows), found shape {pairs.shape}")
    src, dst = fresh(pairs) if pairs.shape[0] == 2 else fresh(pairs).T
    return Named(str(path), {"source": src, "destination": dst})


def _listed(path):
    """Yield the node names in a file with one name per line, some thousand at a time, as tables {"name": array}; at least one table."""
    any_lines = False
    for _, names in lines(path, "names"):
        any_lines = True
        yield {"name": names}
    if not any_lines:
        yield {"name": np.empty(0, object)}


def _masks(id_files, n_nodes):
    """Return {split: mask, (n_nodes,) bool} from {split: file of node ids}; a split without a file is empty."""
    ids = {name: _ids(id_files.get(name), name, n_nodes) for name in SPLITS}
    return dict(zip(SPLITS, masks(n_nodes, id_files, **ids)))


def _ids(path, split, n_nodes):
    """Return the node ids of `split` from the file `path`, which lists the ids or holds a mask of `n_nodes` nodes. No ids if `path`
    is None.
    """
    if path is None:
        return np.empty(0, np.int64)
    ids = textfile.read(path, f"{split} split", np.int64)
    if ids.dtype == bool:
        if ids.shape != (n_nodes, 1) or ids.view(np.uint8).max(initial=0) > 1:
            raise DataError(f"{path}: {split} split: a mask of shape {ids.shape}, expected ({n_nodes},), one truth "
                            "value per node")
        return np.flatnonzero(ids[:, 0])
    if ids.size and ids.shape[1] != 1:
        raise DataError(f"{path}: {split} split: expected one node id per line, found {ids.shape[1]} columns")
    return ids.ravel()

"""A plain edge list with optional features, labels and split in files of their own."""

import numpy as np

from sarlite.data import textfile
from sarlite.data.mapped import fresh
from sarlite.data.mapped import pieces as mapped_pieces
from sarlite.data.npyfile import load as load_npy
from sarlite.data.raw import RawGraph, check_nodes, existing, masks, read_labels, strata
from sarlite.errors import ConfigError, DataError
from sarlite.graph.generate import random_split

NAMES = ("none", "train", "val", "test")
_PIECE = 1 << 20  # edges read at a time
_SPARSE = 1000  # nodes an edge end above which a largest id is a typing error rather than a number of nodes


def read(path, nodes=None, classes=None, features=None, labels=None, split=None, train_ids=None, val_ids=None,
         test_ids=None, names=None, task=None, train=0.6, val=0.2, seed=0, graph=None):
    """Read edges from text (two columns) or .npy, (2, E) or (E, 2); docs/data.md tells the files' formats.

    Parameters
    ----------
    path : path
        An edge goes from the first column to the second.
    nodes, classes : int, optional
        By default as many nodes as rows in the other files, else the largest id + 1; and the largest label + 1.
    features : path, optional
        .npy or text with one row a node; by default one column of ones.
    labels : path, optional
        .npy or text with one integer a node, -1 where unlabelled, or the numbers of `task`; by default nobody has a
        label.
    split : path, optional
        none, train, val or test a node, a line each or in a .npy file of text.
    train_ids, val_ids, test_ids : path, optional
        Instead: the nodes of a split, by id in any order, .npy or text; or .npy masks of bool. Without these and
        `split`, drawn as `random_split(labels, train, val, seed)`; of a task other than classify all labelled nodes are
        one class.
    names : path
        Refused: `convert --memory` takes it.
    task : str, optional
        What the labels are, as of `raw.read_labels`.
    graph : callable, optional
        Of another format: graph(path) returns src, dst, the number of nodes and edge weights, or None instead of these.

    Returns
    -------
    RawGraph

    Raises
    ------
    DataError
        A file cannot be read, or files disagree in the number of nodes, or in .npy two edges might be read either way.
    ConfigError
        A split without `labels`, or two of them.
    """
    if names is not None:
        raise ConfigError("names: nodes known by names are numbered by `python -m sarlite.data convert` with --memory "
                          "alone")
    path = existing(path)
    where = check_options(labels, split, train_ids, val_ids, test_ids, task)
    src, dst, told, weight = graph(path) if graph else (*_edges(path), None, None)
    largest = max(int(ends.max()) if ends.size else -1 for ends in (src, dst))
    x = None if features is None else textfile.read(features, "features", np.float32)
    y, n_classes = None, classes or 0
    if labels is not None:
        y, n_classes = read_labels(textfile.read(labels, "labels", np.float64), labels, classes, task)
    codes = None if split is None else textfile.names(split, "split", NAMES)
    there = (("features", features, x), ("labels", labels, y), ("split", split, codes))
    rows = {name: (file, len(array)) for name, file, array in there if array is not None}
    if told is not None:
        rows["n"] = path, told
    n_nodes = count(path, nodes, largest, src.size, rows)
    check_nodes(n_nodes, 1 if x is None else 0, path)
    x = np.ones((n_nodes, 1), np.float32) if x is None else x
    y = np.full(n_nodes, -1) if y is None else y
    if split is not None:
        parts = tuple(codes == NAMES.index(name) for name in ("train", "val", "test"))
    elif where:
        found = {name: ids(where.get(name), name, n_nodes) for name in ("train", "val", "test")}
        parts = masks(n_nodes, where, **found)
    else:
        parts = random_split(strata(y, task), train, val, seed)
    return RawGraph(src, dst, x, y, *parts, n_classes=n_classes, name=path.stem, edges_in=path,
                    task=task or "classify", edge_weight=weight)


def check_options(labels, split, train_ids, val_ids, test_ids, task):
    """Return the files of ids, by split; raise a ConfigError for options that do not go together."""
    ids = {"train_ids": train_ids, "val_ids": val_ids, "test_ids": test_ids}
    given = [name for name, value in {"task": task, "split": split, **ids}.items() if value is not None]
    if given and labels is None:
        raise ConfigError(f"{given[0]}: needs labels=FILE")
    where = {name.removesuffix("_ids"): file for name, file in ids.items() if file is not None}
    if split is not None and where:
        raise ConfigError(f"split and {next(iter(where))}_ids: one of the two")
    return where


def count(path, nodes, largest, n_edges, rows):
    """Return the number of nodes, on which the files, {name: (file, rows)}, and the option must agree."""
    if nodes is not None:
        rows = {"option": ("nodes", nodes), **rows}
    if not rows:
        n_nodes = largest + 1
        if n_nodes > 1_000_000 + _SPARSE * 2 * n_edges:
            raise DataError(f"{path}: edges: node id {n_nodes - 1} would make {n_nodes} nodes of {n_edges} edges; "
                            f"say nodes={n_nodes} if that is so")  # fmt: skip
        return n_nodes
    fewest, *_, most = sorted(2 * [(n, f"{file}: {name}") for name, (file, n) in rows.items()])
    if fewest[0] != most[0]:
        raise DataError(f"{fewest[1]}: {fewest[0]} rows, but {most[1]}: {most[0]}; both need one a node")
    if nodes is None and fewest[0] <= largest:
        raise DataError(f"{fewest[1]}: {fewest[0]} rows, but {path} has node id {largest}")
    return fewest[0]


def _edges(path):
    found = list(pieces(path))
    return found[0] if len(found) == 1 else tuple(np.concatenate(ends) for ends in zip(*found))


def pieces(path):
    """Yield the sources and the destinations of a file's edges in pieces, at least one: integers of at least 0."""
    first = 0
    for pairs in _pairs(path):
        if pairs.shape[1] != 2:
            raise DataError(f"{path}: edges: expected two columns (in .npy: or two rows), found shape {pairs.shape}")
        yield tuple(_checked(path, name, pairs[:, end], first) for end, name in enumerate(("src", "dst")))
        first += len(pairs)


def _pairs(path):
    if path.suffix != ".npy":
        for pairs in textfile.stream(path, "edges", np.int64):
            yield pairs if pairs.size else np.empty((0, 2), np.int64)
        return
    pairs = load_npy(path, "edges", "iu")
    if pairs.shape == (2, 2):
        raise DataError(f"{path}: edges: shape (2, 2) is two edges by rows or by columns, and nothing says which: "
                        "write them as text")
    if pairs.size == 0:
        yield np.empty((0, 2), np.int64)
    elif pairs.ndim == 2 and pairs.shape[0] == 2:
        for at in range(0, pairs.shape[1], _PIECE):
            yield fresh(pairs)[:, at : at + _PIECE].T
    elif pairs.ndim != 2:
        raise DataError(f"{path}: edges: expected two columns (in .npy: or two rows), found shape {pairs.shape}")
    else:
        yield from (piece for _, piece in mapped_pieces(pairs))


def _checked(path, name, ids, first):
    if ids.dtype.kind not in "iu":
        raise DataError(f"{path}: edges: {name}: expected integers, found dtype {ids.dtype}")
    ids = np.ascontiguousarray(ids)
    if ids.size and (ids.min() < 0 or ids.max() > np.iinfo(np.int64).max):
        at = int(np.argmax((ids < 0) | (ids > np.iinfo(np.int64).max)))
        raise DataError(f"{path}: edges: {name}: node id {ids[at]} at position {first + at} is no node id")
    return ids.astype(np.int64) if ids.dtype.kind == "u" else ids


def ids(path, name, n_nodes):
    """Return a split's nodes, by id."""
    if path is None:
        return np.empty(0, np.int64)
    found = textfile.read(path, f"{name} split", np.int64)
    if found.dtype == bool:
        if found.shape != (n_nodes, 1) or found.view(np.uint8).max(initial=0) > 1:
            raise DataError(f"{path}: {name} split: a mask of shape {found.shape}, expected ({n_nodes},), one true or "
                            "false a node")
        return np.flatnonzero(found[:, 0])
    if found.size and found.shape[1] != 1:
        raise DataError(f"{path}: {name} split: expected one node id a line, found {found.shape[1]} columns")
    return found.ravel()

"""A plain edge list with optional features, labels and split in files of their own."""

import warnings
from itertools import islice
from pathlib import Path

import numpy as np

from sarlite.data.raw import RawGraph, count_classes, existing, masks, reading, whole_labels
from sarlite.errors import ConfigError, DataError
from sarlite.graph.generate import random_split

_WORDS = {"none": 0, "train": 1, "val": 2, "test": 3}


def read(path, nodes=None, features=None, labels=None, split=None, train=0.6, val=0.2, seed=0):
    """Read edges from text (two columns, comma or blanks, `#` comments, one header line at most) or .npy, (2, E) or (E, 2).

    Parameters
    ----------
    path : path
        An edge goes from the first column to the second.
    nodes : int, optional
        By default the rows of `features` or `labels`, else the largest id + 1.
    features : path, optional
        .npy or text with one row a node; by default one column of ones.
    labels : path, optional
        .npy or text with one integer a node, -1 where unlabelled; by default nobody has a label.
    split : path, optional
        Text with none, train, val or test a line, or .npy with 0, 1, 2, 3 for them; by default drawn as
        `random_split(labels, train, val, seed)`.

    Returns
    -------
    RawGraph

    Raises
    ------
    DataError
        A file cannot be read, or lengths disagree.
    ConfigError
        `split` without `labels`.
    """
    path = existing(path)
    if split is not None and labels is None:
        raise ConfigError("split: needs labels=FILE")
    src, dst = _edges(path)
    x = None if features is None else _table(existing(features), "features", np.float32)
    y = None if labels is None else whole_labels(_table(existing(labels), "labels", np.float64), labels)
    n_nodes = _count(nodes, x, y, src, dst)
    for name, array, file in (("features", x, features), ("labels", y, labels)):
        if array is not None and array.shape[0] != n_nodes:
            raise DataError(f"{file}: {name}: {array.shape[0]} rows, expected {n_nodes}, one a node")
    x = np.ones((n_nodes, 1), np.float32) if x is None else x
    y = np.full(n_nodes, -1) if y is None else y
    parts = random_split(y, train, val, seed) if split is None else _split(existing(split), n_nodes)
    return RawGraph(src, dst, x, y, *parts, n_classes=count_classes(y), name=path.stem)


def _count(nodes, x, y, src, dst):
    if nodes is not None:
        return nodes
    for rows in (x, y):
        if rows is not None:
            return rows.shape[0]
    return int(max(src.max(initial=-1), dst.max(initial=-1))) + 1


def _edges(path):
    if path.suffix == ".npy":
        with reading(path, "edges"):
            pairs = np.load(path, mmap_mode="r", allow_pickle=False)
        if pairs.dtype.kind not in "iu":
            raise DataError(f"{path}: edges: expected integers, found dtype {pairs.dtype}")
        if pairs.ndim == 2 and pairs.shape[0] == 2:
            return np.asarray(pairs[0]), np.asarray(pairs[1])
    else:
        pairs = _text(path, "edges", np.int64)
    if pairs.size == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise DataError(f"{path}: edges: expected two columns (in .npy: or two rows), found shape {pairs.shape}")
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


def _table(path, field, dtype):
    if path.suffix != ".npy":
        return _text(path, field, dtype)
    with reading(path, field):
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    if table.dtype.kind not in "iufb" or table.ndim not in (1, 2):
        raise DataError(f"{path}: {field}: expected numbers in one or two dimensions, found dtype {table.dtype}, shape {table.shape}")
    return table.reshape(table.shape[0], -1)


def _text(path, field, dtype):
    with reading(path, field, DeprecationWarning), warnings.catch_warnings():
        warnings.filterwarnings("error", "loadtxt", DeprecationWarning)  # NumPy before 2.3 reads 1.5 as the integer 1
        with Path(path).open(encoding="utf-8") as file:
            first = next((line for line in islice(file, 1000) if line.strip() and not line.lstrip().startswith("#")), "")
        if not first:
            return np.empty((0, 1), dtype)
        delimiter = "," if "," in first else None
        lines = _without_header(path, first)
        return np.loadtxt(lines, dtype, comments="#", delimiter=delimiter, ndmin=2)


def _without_header(path, first):
    """Yield a text file's lines, without its first line of content if that is no numbers."""
    header = not _is_numbers(first)
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            if header and line == first:
                header = False
                continue
            yield line


def _is_numbers(line):
    try:
        [float(word) for word in line.split("#")[0].replace(",", " ").split()]
    except ValueError:
        return False
    return True


def _split(path, n_nodes):
    if path.suffix == ".npy":
        codes = _table(path, "split", np.int8)[:, 0]
    else:
        with reading(path, "split"):
            words = path.read_text(encoding="utf-8").split()
        unknown = next((word for word in words if word not in _WORDS), None)
        if unknown is not None:
            raise DataError(f"{path}: split: {unknown!r} is none of {', '.join(_WORDS)}")
        codes = np.array([_WORDS[word] for word in words], np.int8)
    if codes.size != n_nodes:
        raise DataError(f"{path}: split: {codes.size} entries, expected {n_nodes}, one a node")
    bad = ~np.isin(codes, list(_WORDS.values()))
    if bad.any():
        raise DataError(f"{path}: split: node {int(np.argmax(bad))} has {codes[bad][0]}, expected 0, 1, 2 or 3")
    ids = {name: np.flatnonzero(codes == _WORDS[name]) for name in ("train", "val", "test")}
    return masks(n_nodes, dict.fromkeys(ids, path), **ids)

"""Sets of graphs in the layout of TU Dortmund: DS_A.txt, DS_graph_indicator.txt and what stands beside them."""

from pathlib import Path
from typing import Any

import numpy as np

from sarlite.data.graph_tables import MEMBERS, NODE, RELATION
from sarlite.data.raw import existing, narrowed, one_hot, read_labels, strata
from sarlite.data.tables.number_files import read_csv
from sarlite.errors import DataError
from sarlite.structure.generate import random_split
from sarlite.structure.relational_generator import Relational
from sarlite.structure.validation import first_true
from sarlite.structure.whole_graphs import GRAPH, check_within
from sarlite.types import Array
from sarlite.types import Path as AnyPath


def read(path: AnyPath, task: str | None = None, train: float = 0.8, val: float = 0.1, seed: int = 0) -> Relational:
    """Read a folder of the files of one data set, by the name before `_A.txt`.

    Parameters
    ----------
    path : path
    task : {"classify", "regress"}, optional
        Classes are numbered in the order of their labels, which are their names. Numbers to regress come from
        DS_graph_attributes.txt.
    train, val : int or float
        The files have no split, so one is drawn: graphs a class, or with a decimal point the share of each class.
    seed : int

    Returns
    -------
    Relational
        Types "node" and "graph", whose relations lead from nodes to nodes and from each node to its graph. Features of
        nodes are attributes, then labels, one-hot by ascending number; a 1 where there are neither. Those of edges
        likewise, none where there are neither.

    Raises
    ------
    DataError
        A file is missing or damaged, files disagree in length, an edge leads to another graph or is of no node.
    """
    path = existing(path)
    prefix = _prefix(path)
    graph_of = _column(prefix, "graph_indicator", np.int64)
    n_graphs = int(graph_of.max(initial=0))
    edges = _rows(prefix, "A", np.int64, columns=2)
    for name, array, n in (("graph_indicator", graph_of, n_graphs), ("A", edges, len(graph_of))):
        if (at := first_true((array < 1) | (array > n))) is not None:
            line = (at[0] if array.ndim > 1 else at) + 1
            raise DataError(f"{_file(prefix, name)}: line {line} has {array[at]}, outside 1 to {n}")
    _refuse_restarts(_file(prefix, "A"), edges, graph_of)
    graph_of, (src, dst) = graph_of - 1, (edges - 1).T
    check_within(graph_of, src, dst)
    labels, n_classes, names = _labels(prefix, task, n_graphs)
    x, values = _features(prefix, "node", len(graph_of)), _features(prefix, "edge", len(edges))
    return set_of_graphs(graph_of, n_graphs, src, dst, x, values, labels,
                         random_split(strata(labels, task), train, val, seed), n_classes, task, names)


def set_of_graphs(graph_of: Array, n_graphs: int, src: Array, dst: Array, x: Array | None, values: Array | None,
                  labels: Array, split: Any, n_classes: int, task: str | None,
                  names: list[str] | None = None) -> Relational:
    """Return a set of graphs as relational data; without features of nodes, x, each node has a 1."""
    x, (train, val, test) = np.ones((len(graph_of), 1), np.float32) if x is None else x, split
    return Relational({NODE: len(graph_of), GRAPH: n_graphs},
                      {RELATION: (src, dst), MEMBERS: (np.arange(len(graph_of)), graph_of)}, {NODE: x}, GRAPH, labels,
                      train, val, test, n_classes, task or "classify",
                      {} if values is None else {RELATION: values}, names)


def _refuse_restarts(file, edges, graph_of):
    """Refuse numbers of nodes that begin anew in each graph, which would all be nodes of the first graphs."""
    sizes = np.unique(graph_of, return_counts=True)[1]  # bincount writes out of bounds for the largest int64
    if len(edges) and len(sizes) > 1 and edges.max() <= sizes.max() and \
            len(np.unique(edges, axis=0)) < len(edges):
        raise DataError(f"{file}: the largest node is {edges.max()}, but there are {len(graph_of)} nodes and edges that "
                        "stand several times: nodes count on from graph to graph, and do not begin anew in each")


def _prefix(path):
    found = sorted(entry for entry in path.glob("*_A.txt"))
    if len(found) != 1:
        names = ", ".join(entry.name for entry in found) or "none"
        raise DataError(f"{path}: expected one file NAME_A.txt of edges, found {names}")
    return str(found[0]).removesuffix("_A.txt")


def _file(prefix, name):
    return Path(f"{prefix}_{name}.txt")


def _rows(prefix, name, dtype, n_rows=None, columns=None):
    """The lines of a file as numbers."""
    file = _file(prefix, name)
    found = read_csv(existing(file), name, dtype)
    if n_rows is not None and len(found) != n_rows:
        raise DataError(f"{file}: {len(found)} lines, expected {n_rows}")
    if columns is not None and not len(found):
        return np.empty((0, columns), dtype)
    if columns is not None and found.shape[1] != columns:
        raise DataError(f"{file}: {found.shape[1]} columns, expected {columns}")
    return found


def _column(prefix, name, dtype, n_rows=None):
    return _rows(prefix, name, dtype, n_rows, columns=1)[:, 0]


def _labels(prefix, task, n_graphs):
    """Labels in the task's form, the number of outputs, and the names of classes."""
    if task not in (None, "classify"):
        file = _file(prefix, "graph_attributes")
        return *read_labels(_rows(prefix, "graph_attributes", np.float64, n_graphs), file, None, task), None
    known, labels = np.unique(_column(prefix, "graph_labels", np.int64, n_graphs), return_inverse=True)
    return labels.astype(np.int64), len(known), [str(label) for label in known.tolist()]


def _features(prefix: str, what: str, n: int) -> Array | None:
    """Attributes, and labels one-hot, side by side, float32."""
    found = []
    if _file(prefix, f"{what}_attributes").exists():
        found.append(narrowed(_rows(prefix, f"{what}_attributes", np.float64, n)))
    if _file(prefix, f"{what}_labels").exists():
        labels = _rows(prefix, f"{what}_labels", np.int64, n)
        found += [one_hot(column, f"{_file(prefix, f'{what}_labels')}: labels of {what}s") for column in labels.T]
    return np.concatenate(found, 1) if found else None

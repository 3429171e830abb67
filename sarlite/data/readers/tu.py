"""Reader of sets of graphs in TU Dortmund's layout: DS_A.txt, DS_graph_indicator.txt and optional files beside them."""

from collections.abc import Iterable
from pathlib import Path

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
    """Return the set of graphs in the folder `path`, with labels for `task` (None: "classify"). `train` and `val` are sizes of the
    random split: numbers of graphs per class, or shares of each class.

    Parameters
    ----------
    path : path
        The folder. The name of the data set is the part before `_A.txt`.
    task : {"classify", "regress"}, optional
        With "classify", the default, classes are numbered in ascending order of the stored labels, which become the names of
        the classes. With "regress" the labels are the numbers in DS_graph_attributes.txt.
    train, val : int or float
        Sizes of the drawn split, as the files have none: an int is a number of graphs per class, a float the share of each
        class.
    seed : int
        Seed of the drawn split.

    Returns
    -------
    Relational
        Node types "node" and "graph", with a relation between nodes and a relation from each node to its graph. The features
        of a node are its attributes, followed by its labels, one-hot by ascending number; a node without both has the
        feature 1. Edges have features in the same form, or none.

    Raises
    ------
    DataError
        If a file is missing or damaged, files disagree in length, or an edge has an end in another graph or at no node.
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
                  labels: Array, split: Iterable[Array], n_classes: int, task: str | None,
                  names: list[str] | None = None) -> Relational:
    """Return a set of graphs as a heterogeneous graph with the node types "node" and "graph". `graph_of` has the graph of each node, and
    `x` and `values` are features of nodes and edges (None: no features). The graphs have `labels`, masks of the `split`, `n_classes`
    classes and their `names`.

    Parameters
    ----------
    graph_of : (n_nodes,) int64
        The graph of each node.
    n_graphs : int
    src, dst : (n_edges,) int64
    x : (n_nodes, n_features) float32 or None
        Features of the nodes; None gives each node the feature 1.
    values : (n_edges, n_edge_features) float32 or None
        Features of the edges.
    labels : (n_graphs, ...) array
    split : three (n_graphs,) bool arrays
        Train, val and test masks.
    n_classes : int
        Number of outputs of a model.
    task : str, optional
        By default "classify".
    names : list of str, optional
        Names of the classes.
    """
    x, (train, val, test) = np.ones((len(graph_of), 1), np.float32) if x is None else x, split
    return Relational({NODE: len(graph_of), GRAPH: n_graphs},
                      {RELATION: (src, dst), MEMBERS: (np.arange(len(graph_of)), graph_of)}, {NODE: x}, GRAPH, labels,
                      train, val, test, n_classes, task or "classify",
                      {} if values is None else {RELATION: values}, names)


def _refuse_restarts(file, edges, graph_of):
    """Raise a DataError about `file` if its `edges`, (n_edges, 2), seem to number the nodes of each graph from 1, instead of over all
    graphs. `graph_of` has the graph of each node.
    """
    sizes = np.unique(graph_of, return_counts=True)[1]  # bincount writes out of bounds for the largest int64
    if len(edges) and len(sizes) > 1 and edges.max() <= sizes.max() and \
            len(np.unique(edges, axis=0)) < len(edges):
        raise DataError(f"{file}: the largest node is {edges.max()}, but there are {len(graph_of)} nodes and edges that "
                        "are listed several times: node numbers must continue from graph to graph, not restart in each")


def _prefix(path):
    """Return the common beginning of the paths of the files in the folder `path`: each path without its ending, such as `_A.txt`."""
    edge_files = sorted(entry for entry in path.glob("*_A.txt"))
    if len(edge_files) != 1:
        names = ", ".join(entry.name for entry in edge_files) or "none"
        raise DataError(f"{path}: expected one file NAME_A.txt of edges, found {names}")
    return str(edge_files[0]).removesuffix("_A.txt")


def _file(prefix, name):
    return Path(f"{prefix}_{name}.txt")


def _rows(path_prefix, name, dtype, n_rows=None, columns=None):
    """Return the numbers in the file `path_prefix`_`name`.txt in `dtype`, (n_rows, n_columns). Raise a DataError unless there are `n_rows`
    rows and `columns` columns; None accepts any number.
    """
    file = _file(path_prefix, name)
    rows = read_csv(existing(file), name, dtype)
    if n_rows is not None and len(rows) != n_rows:
        raise DataError(f"{file}: {len(rows)} lines, expected {n_rows}")
    if columns is not None and not len(rows):
        return np.empty((0, columns), dtype)
    if columns is not None and rows.shape[1] != columns:
        raise DataError(f"{file}: {rows.shape[1]} columns, expected {columns}")
    return rows


def _column(prefix, name, dtype, n_rows=None):
    return _rows(prefix, name, dtype, n_rows, columns=1)[:, 0]


def _labels(path_prefix, task, n_graphs):
    """Return (labels of the `n_graphs` graphs, a model's number of outputs, names of the classes, or None if `task` is not "classify"),
    read from the files whose paths begin with `path_prefix`.
    """
    if task not in (None, "classify"):
        file = _file(path_prefix, "graph_attributes")
        return *read_labels(_rows(path_prefix, "graph_attributes", np.float64, n_graphs), file, None, task), None
    codes, labels = np.unique(_column(path_prefix, "graph_labels", np.int64, n_graphs), return_inverse=True)
    return labels.astype(np.int64), len(codes), [str(label) for label in codes.tolist()]


def _features(path_prefix: str, what: str, n: int) -> Array | None:
    """Return the features of the `n` nodes or edges (`what`: "node" or "edge"), float32, (n, n_columns): attributes and one-hot labels side
    by side, from the two files `path_prefix`_WHAT_attributes.txt and _labels.txt. None if both files are missing.
    """
    blocks = []
    if _file(path_prefix, f"{what}_attributes").exists():
        blocks.append(narrowed(_rows(path_prefix, f"{what}_attributes", np.float64, n)))
    if _file(path_prefix, f"{what}_labels").exists():
        labels = _rows(path_prefix, f"{what}_labels", np.int64, n)
        blocks += [one_hot(column, f"{_file(path_prefix, f'{what}_labels')}: labels of {what}s") for column in labels.T]
    return np.concatenate(blocks, 1) if blocks else None

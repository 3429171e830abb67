"""Reader of Planetoid's own files (Cora, Citeseer, PubMed): pickles of arrays, parsed without executing them."""

from pathlib import Path

import numpy as np

from sarlite.data import pickled, textfile
from sarlite.data.raw import RawGraph, check_nodes, dense, existing, masks, narrowed
from sarlite.errors import DataError, reading
from sarlite.structure.validation import first_true
from sarlite.types import Path as AnyPath

_N_VAL = 500


def read(path: AnyPath) -> RawGraph:
    """Return the data set Cora, Citeseer or PubMed from Planetoid's files `PATH/ind.NAME.*`, with Planetoid's public split.

    The first labelled nodes are the training nodes, the next 500 the validation nodes, and the nodes of test.index the test
    nodes.

    Parameters
    ----------
    path : path
        `PATH/NAME`, for example `data/planetoid/cora`.

    Returns
    -------
    RawGraph
        Undirected, with dense float32 features. Test nodes that the files leave out (Citeseer has 15) have zero features,
        the label -1 and no split.

    Raises
    ------
    DataError
        If a file is missing or damaged, holds anything but arrays and a dict of lists, or does not fit the other files.
    """
    path = Path(path)
    existing(path.parent)
    names = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
    files = {name: path.with_name(f"ind.{path.name}.{name}") for name in names}
    x, tx, allx = (_features(files[name]) for name in ("x", "tx", "allx"))
    y, ty, ally = (_one_hot(files[name]) for name in ("y", "ty", "ally"))
    for labels, rows, name, other in ((y, x, "y", "x"), (ty, tx, "ty", "tx"), (ally, allx, "ally", "allx")):
        if labels.shape[0] != rows.shape[0]:
            raise DataError(f"{files[name]}: labels: {labels.shape[0]} rows, but {files[other]} has {rows.shape[0]} of features")
    for name, rows, whole in (("x", x, allx), ("tx", tx, allx), ("y", y, ally), ("ty", ty, ally)):
        if rows.shape[1] != whole.shape[1]:
            raise DataError(f"{files[name]}: {rows.shape[1]} columns, but {files['all' + name[-1]]} has {whole.shape[1]}")
    test = _test_index(files["test.index"], tx.shape[0], allx.shape[0])
    n_nodes = max(allx.shape[0], int(test.max(initial=-1)) + 1)
    check_nodes(n_nodes, allx.shape[1] + ally.shape[1], files["test.index"])
    features = np.zeros((n_nodes, allx.shape[1]), np.float32)
    one_hot = np.zeros((n_nodes, ally.shape[1]), bool)
    features[: allx.shape[0]], one_hot[: allx.shape[0]] = allx, ally
    features[test], one_hot[test] = tx, ty
    labels = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1)
    src, dst = _edges(files["graph"], n_nodes)
    where = {"train": files["y"], "val": files["ally"], "test": files["test.index"]}
    val = np.arange(y.shape[0], y.shape[0] + _N_VAL)
    train, val, test = masks(n_nodes, where, train=np.arange(y.shape[0]), val=val, test=test)
    return RawGraph(src, dst, features, labels, train, val, test, n_classes=ally.shape[1], name=path.name,
                    undirected=True, edges_in=files["graph"])


def _features(path):
    """Return the dense or sparse feature matrix in the pickle `path` as a dense float32 array."""
    value = pickled.load(path)
    if isinstance(value, np.ndarray) and value.ndim == 2:
        return narrowed(value)
    if not isinstance(value, pickled.PickledMatrix):
        raise DataError(f"{path}: features: expected a matrix, found {_described(value)}")
    parts = [value.state.get(name) for name in ("data", "indptr", "indices")]
    shape = value.state.get("_shape", value.state.get("shape"))
    sized = isinstance(shape, tuple) and len(shape) == 2 and all(type(length) is int for length in shape)
    if not sized or not all(isinstance(array, np.ndarray) for array in parts):
        raise DataError(f"{path}: features: expected a sparse matrix's data, indptr, indices and shape")
    return dense(*parts, shape, f"{path}: features")


def _one_hot(path):
    """Return the one-hot labels in the pickle `path`, (n, n_classes) bool, with at most one True per row."""
    value = pickled.load(path)
    if not isinstance(value, np.ndarray) or value.ndim != 2:
        raise DataError(f"{path}: labels: expected a matrix with one column per class, found {_described(value)}")
    several = np.count_nonzero(value, axis=1) > 1
    if (at := first_true(((value != 0) & (value != 1)).any(axis=1) | several)) is not None:
        raise DataError(f"{path}: labels: row {at} is {value[at].tolist()}, expected a single 1 among zeros, or zeros")
    return value == 1


def _described(value):
    """Return a description of a value for error messages: the shape of an array, or the name of the value's type."""
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def _test_index(path, n_rows, n_before):
    """Return the ids of the test nodes in the file `path`, (n_rows,) int64. Raise an error unless they come after the `n_before`
    other nodes.
    """
    index = textfile.read(path, "test.index", np.int64)
    if index.shape != (n_rows, 1):
        raise DataError(f"{path}: test.index: {index.size} ids in lines of {index.shape[1]}, but {n_rows} test rows")
    if index.size and (index.min() < n_before or index.max() >= n_before + 100 * n_rows):
        raise DataError(f"{path}: test.index: ids run from {index.min()} to {index.max()}, expected {n_before}, "
                        f"after allx's rows, to about {n_before + n_rows}")
    return index[:, 0]


def _edges(path, n_nodes):
    """Return (sources, destinations) of all edges in the pickle `path`, a dict from a node to its neighbours. Ids must be below
    `n_nodes`.
    """
    graph = pickled.load(path)
    if type(graph) is not dict or not all(type(near) is list for near in graph.values()):
        raise DataError(f"{path}: graph: expected a dict from node to list of nodes, found {_described(graph)}")
    if len({id(near) for near in graph.values()}) != len(graph):  # shared lists would let a small file stand for a huge number of edges
        raise DataError(f"{path}: graph: two nodes share one list of neighbours")
    with reading(path, "graph"):
        for node in (node for nodes in (graph, *graph.values()) for node in nodes):
            if type(node) is not int or not 0 <= node < n_nodes:
                raise DataError(f"{path}: graph: node id {node!r} is outside 0 <= id < {n_nodes}")
        counts = np.fromiter((len(near) for near in graph.values()), np.int64, len(graph))
        src = np.repeat(np.fromiter(graph, np.int64, len(graph)), counts)
        return src, np.fromiter((node for near in graph.values() for node in near), np.int64, int(counts.sum()))

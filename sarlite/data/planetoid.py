"""Planetoid's own files (Cora, Citeseer, PubMed): pickles, read by an unpickler that admits arrays alone."""

import collections
import pickle
from pathlib import Path

import numpy as np

from sarlite.data.raw import RawGraph, dense, existing, masks, reading
from sarlite.errors import DataError
from sarlite.types import Path as AnyPath

_N_VAL = 500


class _SparseMatrix:
    """Stands for SciPy's csr_matrix: holds the pickled attributes and does nothing."""


def _latin1(text, encoding):
    """Stands for _codecs.encode, which is how Python 3 writes bytes into old pickles."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("it encodes something other than bytes")
    return text.encode("latin1")


_ARRAYS = {"_reconstruct": np._core.multiarray._reconstruct, "ndarray": np.ndarray, "dtype": np.dtype}  # type: ignore[attr-defined]
_ALLOWED = {
    **{(module, "_reconstruct"): _ARRAYS["_reconstruct"] for module in ("numpy.core.multiarray", "numpy._core.multiarray")},
    **{("numpy", name): _ARRAYS[name] for name in ("ndarray", "dtype")},
    **{(module, "csr_matrix"): _SparseMatrix for module in ("scipy.sparse.csr", "scipy.sparse._csr")},
    **{(module, "list"): list for module in ("__builtin__", "builtins")},
    ("collections", "defaultdict"): collections.defaultdict,
    ("_codecs", "encode"): _latin1,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}; only NumPy and SciPy arrays and a dict of lists are read")
        return _ALLOWED[module, name]


def read(path: AnyPath) -> RawGraph:
    """Read `PATH/ind.NAME.*` with the public split: the first labelled nodes train, the next 500 val, test.index test.

    Parameters
    ----------
    path : path
        `PATH/NAME`, for example `data/planetoid/cora`.

    Returns
    -------
    RawGraph
        Undirected; features dense float32. Test nodes that the files leave out (Citeseer has 15) have features 0, label -1
        and no split.

    Raises
    ------
    DataError
        A file is missing or damaged, or asks for a class other than NumPy's and SciPy's arrays.
    """
    path = Path(path)
    existing(path.parent)
    files = {name: path.with_name(f"ind.{path.name}.{name}") for name in ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")}
    x, tx, allx = (_features(files[name]) for name in ("x", "tx", "allx"))
    y, ty, ally = (_one_hot(files[name]) for name in ("y", "ty", "ally"))
    for labels, rows, name in ((y, x, "y"), (ty, tx, "ty"), (ally, allx, "ally")):
        if labels.shape[0] != rows.shape[0]:
            raise DataError(f"{files[name]}: labels: {labels.shape[0]} rows, but {rows.shape[0]} rows of features")
    test = _test_index(files["test.index"], tx.shape[0], allx.shape[0])
    n_nodes = max(allx.shape[0], int(test.max(initial=-1)) + 1)
    features = np.zeros((n_nodes, allx.shape[1]), np.float32)
    one_hot = np.zeros((n_nodes, ally.shape[1]), ally.dtype)
    features[: allx.shape[0]], one_hot[: allx.shape[0]] = allx, ally
    with reading(files["tx"], "features"):
        features[test] = tx
    with reading(files["ty"], "labels"):
        one_hot[test] = ty
    labels = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1)
    src, dst = _edges(files["graph"], n_nodes)
    where = {"train": files["y"], "val": files["ally"], "test": files["test.index"]}
    val = np.arange(y.shape[0], y.shape[0] + _N_VAL)
    train, val, test = masks(n_nodes, where, train=np.arange(y.shape[0]), val=val, test=test)
    return RawGraph(src, dst, features, labels, train, val, test, n_classes=ally.shape[1], name=path.name, undirected=True)


def _load(path):
    with reading(path, "pickle", pickle.UnpicklingError, AttributeError, ImportError, RecursionError), path.open("rb") as file:
        return _ArrayUnpickler(file, encoding="latin1").load()


def _features(path):
    value = _load(path)
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind in "iuf":
        return value.astype(np.float32)
    if not isinstance(value, _SparseMatrix):
        raise DataError(f"{path}: features: expected a matrix, found {type(value).__name__}")
    state = vars(value)
    parts = [state.get(name) for name in ("data", "indptr", "indices")]
    shape = state.get("_shape", state.get("shape"))
    if not all(isinstance(array, np.ndarray) for array in parts) or not isinstance(shape, tuple) or len(shape) != 2:
        raise DataError(f"{path}: features: expected a sparse matrix's data, indptr, indices and shape")
    return dense(*parts, shape, f"{path}: features")


def _one_hot(path):
    value = _load(path)
    if not isinstance(value, np.ndarray) or value.ndim != 2 or value.dtype.kind not in "iufb":
        raise DataError(f"{path}: labels: expected a matrix with one column a class, found {type(value).__name__}")
    return value


def _test_index(path, n_rows, n_before):
    with reading(path, "test.index"):
        index = np.loadtxt(path, dtype=np.int64, ndmin=1)
    if index.size != n_rows:
        raise DataError(f"{path}: test.index: {index.size} ids, but {n_rows} test rows")
    if index.size and (index.min() < 0 or index.max() >= n_before + 100 * n_rows):
        raise DataError(
            f"{path}: test.index: ids run from {index.min()} to {index.max()}, expected about {n_before} to {n_before + n_rows}"
        )
    return index


def _edges(path, n_nodes):
    graph = _load(path)
    if not isinstance(graph, dict) or not all(isinstance(near, list) for near in graph.values()):
        raise DataError(f"{path}: graph: expected a dict from node to list of nodes, found {type(graph).__name__}")
    with reading(path, "graph"):
        counts = np.fromiter((len(near) for near in graph.values()), np.int64, len(graph))
        src = np.repeat(np.fromiter(graph, np.int64, len(graph)), counts)
        dst = np.fromiter((node for near in graph.values() for node in near), np.int64, int(counts.sum()))
    for ids in (src, dst):
        bad = (ids < 0) | (ids >= n_nodes)
        if bad.any():
            raise DataError(f"{path}: graph: node id {ids[bad][0]} is outside 0 <= id < {n_nodes}")
    return src, dst

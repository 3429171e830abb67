"""Reader and writer of PIGO's binary CSR graphs (`graph.bin`) and of MG-GCN's directories, which contain such a graph."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from sarlite.data import binary
from sarlite.data.divide import restored
from sarlite.data.graph_tables import NODE, RELATION
from sarlite.data.mapped import pieces
from sarlite.data.raw import RawGraph, check_indptr, check_nodes, existing, narrowed, read_labels
from sarlite.data.tables.description import Description, EdgeSource
from sarlite.data.tables.edge_options import nodes_by_number
from sarlite.data.tables.memory_tables import Named
from sarlite.errors import ConfigError, DataError, reading, writing
from sarlite.structure import validation
from sarlite.structure.edges import csr_by_dst, destinations

MAGIC = b"PIGO-CSR-v2"
GRAPH, FEATURES, LABELS, SETS = (f"{name}.bin" for name in ("graph", "features", "labels", "sets"))
_NONE = 3  # set of a node in no split; MG-GCN itself uses 0 train, 1 val, 2 test
_SIZES = {4: "<u4", 8: "<u8"}


class Csr(NamedTuple):
    """A graph in CSR by source: the edges of node i lead to `indices[indptr[i] : indptr[i + 1]]`."""

    indptr: np.ndarray
    indices: np.ndarray
    weight: np.ndarray | None


def describe(path, workspace, options):
    """Return a Description of `path`, a graph of PIGO, and of the files with a row per node that `options` name, such as "features"; DuckDB
    then reads them. `workspace` is not used.

    An edge is directed from its row of the CSR to its column.

    Parameters
    ----------
    path : path
    workspace : Workspace
        Not used.
    options : dict
        The options of `edges:` for files by node number.
    """
    path = existing(path)
    graph = read_csr(path)
    columns = {"source": destinations(graph.indptr), "destination": graph.indices}
    weight = {} if graph.weight is None else {"weight": graph.weight}
    nodes = nodes_by_number(options, graph.indptr.size - 1, (path, "n"))
    edges = EdgeSource(RELATION, Named(str(path), columns | weight), src="source", dst="destination",
                       weight="weight" if weight else None, reverse=False,
                       weight_dtype=np.float64 if graph.weight is None else graph.weight.dtype)
    return Description({NODE: nodes}, [edges], NODE, path.stem)


def read_csr(path):
    """Return the graph in `path`, a file of the format PIGO-CSR-v2, as a `Csr` of memory-mapped arrays, with weights if the file has any.

    The fields of the file are: the magic; L and O, the numbers of bytes of a node id and of an offset; n, m, rows and
    columns; n + 1 offsets; m node ids; and optionally m weights.

    Returns
    -------
    Csr
        `indptr` is int64. `indices` is mapped, uint32 or uint64, and not yet compared with n.

    Raises
    ------
    DataError
        If a field of the header is impossible, the size of the file does not fit the header, offsets decrease, or a weight
        is not finite.

    Notes
    -----
    No field says whether a file has weights. A file has weights if 4 or 8 bytes per edge (float32, float64) follow the node
    ids.
    """
    first, _ = binary.header(path, ("magic", f"S{len(MAGIC)}"), ("L", "u1"), ("O", "u1"))
    if first["magic"] != MAGIC:
        raise DataError(f"{path}: magic: {first['magic']!r}, expected {MAGIC!r}")
    for name in ("L", "O"):
        if first[name] not in _SIZES:
            raise DataError(f"{path}: {name}: {first[name]} bytes, expected 4 or 8")
    label, ordinal = _SIZES[first["L"]], _SIZES[first["O"]]
    counts = (("n", label), ("m", ordinal), ("rows", label), ("columns", label))
    head, offset = binary.header(path, ("magic", f"S{len(MAGIC)}"), ("L", "u1"), ("O", "u1"), *counts)
    n, m = head["n"], head["m"]
    check_nodes(n, 0, f"{path}: n")
    for name in ("rows", "columns"):
        if head[name] > n:
            raise DataError(f"{path}: {name}: {head[name]}, expected at most n, {n}")
    fields = [("offsets", ordinal, (n + 1,)), ("node ids", label, (m,))]
    with reading(path, "graph"):
        spare = binary.file_size(path) - offset - first["O"] * (n + 1) - first["L"] * m
    if spare > 0:
        if spare not in (4 * m, 8 * m):
            raise DataError(f"{path}: weights: {spare} bytes follow the node ids, expected none, {4 * m} or {8 * m} for {m} edges")
        fields.append(("weights", f"<f{spare // m}", (m,)))
    indptr, indices, *weight = binary.arrays(path, offset, *fields)
    weight = _weights(path, weight[0], m) if weight else None
    return Csr(check_indptr(indptr, n, m, f"{path}: offsets"), indices, weight)


def _weights(path, values, n_edges):
    """Return `values` as edge weights, checked to be finite; None if all are 1. Messages name the file `path`."""
    if all((piece == 1).all() for _, piece in pieces(values)):
        return None
    return validation.weights(f"{path}: weights", values, n_edges)


def read_directory(path, classes=None):
    """Return the graph in `path`, a directory of MG-GCN, with features, labels and splits: graph.bin and three files with a row per
    node. `classes` is the number of classes (None: from the labels).

    The matrices are features.bin (float32), labels.bin (int32) and sets.bin (uint32).

    Parameters
    ----------
    path : path
    classes : int, optional
        Number of classes; by default the largest label + 1.

    Returns
    -------
    RawGraph
        Directed, from row to column. Nodes of set 3 are in no split.

    Raises
    ------
    DataError
        If a file is missing or damaged, files disagree in the number of rows, or a set is outside 0 to 3.
    """
    path = existing(path)
    graph = read_csr(path / GRAPH)
    n_nodes = graph.indptr.size - 1
    features = _matrix(path / FEATURES, "features", "<f4", n_nodes)
    labels, n_classes = read_labels(_matrix(path / LABELS, "labels", "<i4", n_nodes, 1)[:, 0], path / LABELS, classes)
    sets = _matrix(path / SETS, "sets", "<u4", n_nodes, 1)[:, 0]
    if (at := validation.first_true(sets > _NONE)) is not None:
        raise DataError(f"{path / SETS}: sets: node {at} is in set {sets[at]}, expected 0 (train), 1 (val), 2 (test) or 3 (none)")
    split = (sets == place for place in range(_NONE))
    return RawGraph(destinations(graph.indptr), graph.indices, features, labels, *split, n_classes=n_classes,
                    name=path.resolve().name, edge_weight=graph.weight, edges_in=path / GRAPH)


def _matrix(path, name_in_errors, dtype, n_rows, n_columns=None):
    """Return the memory-mapped matrix in the file `path`, which begins with its numbers of rows and columns. They must be `n_rows`
    and `n_columns` (None: any).
    """
    head, offset = binary.header(path, ("rows", "<u4"), ("columns", "<u4"))
    for name, expected in (("rows", n_rows), ("columns", n_columns)):
        if expected is not None and head[name] != expected:
            raise DataError(f"{path}: {name}: {head[name]}, expected {expected}")
    return binary.arrays(path, offset, (name_in_errors, dtype, (head["rows"], head["columns"])))[0]


def write(path, dataset, *, overwrite=False, ones=False):
    """Write the graph of `dataset` to `path` as PIGO-CSR-v2, in the order of the original ids. With `ones`, edges without weights
    get the weight 1.

    Node features, labels and splits are left out.

    Parameters
    ----------
    path : path
    dataset : Dataset
    overwrite : bool
        If True, replace an existing file.
    ones : bool
        If True, always write float32 weights, as MG-GCN expects; edges without weights get 1.

    Raises
    ------
    ConfigError
        If `path` exists and `overwrite` is False, or if edges have features, for which the format has no place.
    DataError
        If the file cannot be written.

    Notes
    -----
    A node id takes 4 bytes. An offset takes 4 bytes, or 8 bytes from 2^32 edges on. The file appears whole or not at all.
    Memory: about 20 bytes per edge, for the transpose.
    """
    binary.refuse_existing(path, overwrite)
    graph = _by_source(_without_edge_features(dataset))
    n, m = graph.indptr.size - 1, graph.indices.size
    size = 4 if m < 1 << 32 else 8
    with binary.output(path, overwrite) as put:
        put(MAGIC + bytes((4, size)))
        for number, n_bytes in ((n, 4), (m, size), (n, 4), (n, 4)):
            put(number.to_bytes(n_bytes, "little"))
        for array, dtype in ((graph.indptr, _SIZES[size]), (graph.indices, "<u4")):
            _put(put, array, dtype, path)
        if graph.weight is not None:
            _put(put, graph.weight, "<f4" if ones else graph.weight.dtype, f"{path}: weights")
        elif ones:
            for _, piece in pieces(graph.indices):
                put(np.ones(piece.size, "<f4"))


def write_directory(path, dataset, *, overwrite=False):
    """Write `dataset` as a directory of MG-GCN: graph.bin and three files with a row per node, in the order of the original ids.

    Parameters
    ----------
    path : path
        Folder; created if it does not exist.
    dataset : Dataset
        Its task is "classify". Features and weights are rounded to float32. An unlabelled node gets the label -1, a node in
        no split the set 3.
    overwrite : bool
        If True, replace existing files among the four. The old graph.bin is removed first and the new one is written last,
        so that an incomplete folder has no graph.

    Raises
    ------
    ConfigError
        If the task is not "classify", a file exists and `overwrite` is False, or edges have features.
    DataError
        If a file cannot be written.
    """
    path, dataset = Path(path), restored(_without_edge_features(dataset))
    if dataset.task != "classify":
        raise ConfigError(f"{dataset.where('labels')}: their task is {dataset.task}, but {LABELS} holds one class per node")
    for name in (GRAPH, FEATURES, LABELS, SETS):
        binary.refuse_existing(path / name, overwrite)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        (path / GRAPH).unlink(missing_ok=True)  # a folder without graph.bin is not a data set
    sets = np.full(dataset.n_nodes, _NONE, "<u4")
    for place, mask in enumerate((dataset.train, dataset.val, dataset.test)):
        sets[mask] = place
    matrices = ((FEATURES, dataset.features, "<f4"), (LABELS, dataset.labels[:, None], "<i4"), (SETS, sets[:, None], "<u4"))
    for name, array, dtype in matrices:
        with binary.output(path / name, overwrite) as put:
            put(np.array(array.shape, "<u4").tobytes())
            _put(put, array, dtype, f"{path / name}")
    write(path / GRAPH, dataset, overwrite=overwrite, ones=True)


def _put(put, array, dtype, array_name):
    """Append `array` as `dtype` to a file by the function `put(array)`. Raise a DataError that names `array_name` for a number that
    float32 cannot hold.
    """
    for start, piece in pieces(array):
        out = narrowed(piece) if np.dtype(dtype) == np.float32 else piece.astype(dtype, copy=False)
        if out.dtype == np.float32 and not np.isfinite(out).all():
            row = start + int(np.argmin(np.isfinite(out).reshape(len(out), -1).all(axis=1)))
            raise DataError(f"{array_name}: row {row} has a number that float32 cannot hold")
        put(out)


def _without_edge_features(dataset):
    """Return the data set; raise a ConfigError if its edges have features, which the format cannot store."""
    if dataset.edge_features is not None:
        raise ConfigError(f"{dataset.where('edge_features')}: the format has no place for features of edges; "
                          "drop_edge_values drops them")
    return dataset


def _by_source(dataset):
    """Return a data set's graph as CSR by source, in the order of the original ids."""
    dataset = restored(dataset)
    weight, dst = dataset.edge_weight, destinations(np.asarray(dataset.indptr))
    transposed = csr_by_dst(dst, dataset.indices, dataset.n_nodes, edge_index=weight is not None)
    return Csr(*transposed[:2], None if weight is None else np.asarray(weight)[transposed[2]])


WRITERS = {"pigo": write, "mggcn": write_directory}

"""A data set read in bounded memory: edges through an external sort, rows of nodes piece by piece, all into files that are mapped."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sarlite.data import edge_list, npz, table
from sarlite.data.dataset import Dataset
from sarlite.data.external import Sorter, csr, packed
from sarlite.data.mapped import copied
from sarlite.data.names import numbered
from sarlite.data.raw import (
    CARRY_VALUES,
    MAX_NODES,
    check_csr,
    count_classes,
    dense,
    existing,
    masks,
    narrowed,
    read_labels,
    row_normalized,
    strata,
    whole_labels,
)  # fmt: skip
from sarlite.data.spool import Spool
from sarlite.errors import ConfigError, DataError, writing
from sarlite.graph import validation
from sarlite.graph.edges import index_dtype, row_chunks
from sarlite.graph.generate import random_split

_STEP = 1 << 20  # nodes, and edges, at a time
_SPLIT_BYTES = 64  # a node, while a split is drawn


@dataclass
class _Streams:
    """What a reader of this file makes: iterators in place of arrays."""

    edges: Any  # yields (src, dst, weights or None)
    n_nodes: Callable[[int, int], int]  # of the largest id and the number of edges
    rows: Callable[[int], dict[str, Any]]  # of the number of nodes: features, labels, n_classes, train, val, test
    name: str
    where: Path
    task: str
    mapping: dict[str, Any] | None = None  # the arrays of the nodes' names
    weights: np.dtype[Any] | None = None


def read(form, path, options, folder, n_bytes, *, source, provenance, undirected=None, self_loops=False, deduplicate=False,
         normalize=False, drop_edge_values=False, tell=lambda text: None):
    """Return the Dataset that `RawGraph.assemble` makes of the same words, its arrays mapped from files in `folder`, and its nodes' names.

    Parameters
    ----------
    form : {"edges", "npz"}
    path, options
        Of the reader, as `spec` has parsed them.
    folder : path
        Private, the caller's to remove; it takes about 12 bytes an edge, twice that while edges are merged, and the rows.
    n_bytes : int
        Of memory for the sort of the edges, or for a split that is drawn.
    source, provenance
        Of the data set.
    tell : callable
        tell(text) is called as each step begins.

    Raises
    ------
    DataError, ConfigError
        As the reader; where a split that is drawn would not fit.
    """
    folder = Path(folder)
    finish = partial(_features, normalize)
    if options.get("names"):
        n_bytes //= 2  # the other half sorts the names
    streams = FORMS[form](existing(path), folder, n_bytes, finish, **options)
    changed = bool(undirected or self_loops or deduplicate)
    columns = {"edge_weight": (streams.weights, ())} if streams.weights is not None and not drop_edge_values else {}
    if columns and changed:
        raise ConfigError(f"{source}: edge_weight: {CARRY_VALUES}")
    sorter = Sorter(made(folder / "runs"), n_bytes, once=bool(undirected or deduplicate), **columns)
    tell("sort the edges")
    largest, n_edges, loops = -1, 0, np.empty(0, np.int64)
    for src, dst, weight in streams.edges:
        if src.size:
            largest = max(largest, int(src.max()), int(dst.max()))
        if largest >= MAX_NODES:
            raise DataError(f"{streams.where}: edges: node id {largest} is outside 0 <= id < {MAX_NODES}, the most nodes")
        n_edges += src.size
        sorter.add(packed(dst, src), **({"edge_weight": weight} if columns else {}))
        if undirected:
            sorter.add(packed(src, dst))
        if self_loops:
            loops = np.union1d(loops, src[src == dst])
    n_nodes = streams.n_nodes(largest, n_edges)
    if not largest < n_nodes <= MAX_NODES:
        raise DataError(f"{streams.where}: edges: node id {largest} is outside 0 <= id < {n_nodes}")
    if self_loops:
        _add_missing_loops(sorter, loops, n_nodes)
    tell("merge the edges")
    arrays = merged(sorter, n_nodes, n_nodes, folder)
    tell("read the nodes")
    dataset = Dataset(**arrays, **streams.rows(n_nodes), name=streams.name, source=source, provenance=provenance, task=streams.task)
    return dataset, streams.mapping


def _add_missing_loops(sorter, loops, n_nodes):
    for first in range(0, n_nodes, _STEP):
        missing = np.ones(min(_STEP, n_nodes - first), bool)
        missing[loops[(loops >= first) & (loops < first + _STEP)] - first] = False
        nodes = np.flatnonzero(missing) + first
        sorter.add(packed(nodes, nodes))


def merged(sorter, n_rows, n_sources, folder):
    """Return what a sorter holds, keyed by destination and source, as `Dataset` names CSR, and its columns: maps of files in `folder`."""
    dtypes = {"indptr": np.int64, "indices": index_dtype(n_sources), **{name: dtype for name, (dtype, _) in sorter.columns.items()}}
    outs = {name: Spool(folder / name, dtype) for name, dtype in dtypes.items()}
    for ends, _, src, columns in csr(sorter, n_rows, n_sources):
        for name, rows in {"indptr": ends, "indices": src, **columns}.items():
            outs[name].write(rows)
    return {name: out.array() for name, out in outs.items()}


def _edge_list(path, folder, n_bytes, finish, nodes=None, classes=None, features=None, labels=None, split=None, train_ids=None,
               val_ids=None, test_ids=None, names=None, task=None, train=0.6, val=0.2, seed=0):
    """The `_Streams` of `edge_list.read`; `names` is a file of names, or "edges"."""
    where = {name: file for name, file in (("train", train_ids), ("val", val_ids), ("test", test_ids)) if file is not None}
    edge_list.check_options(labels, split, where, task)
    x = features and Spool.of(folder / "features", map(finish, table.stream(features, "features", np.float32)))
    y, n_classes = (None, classes or 0)
    if labels is not None:
        y, n_classes = spooled_labels(table.stream(labels, "labels", np.float64), labels, folder, classes, task)
    codes = None if split is None else table.names(split, "split", edge_list.NAMES)
    found = {name: (file, len(array)) for name, file, array in (("features", features, x), ("labels", labels, y), ("split", split, codes))
             if array is not None}
    if names == "edges" and (found or where):
        raise ConfigError(f"{next(iter(found or where))}: with names=edges the nodes are in no order that other files could have; list the "
                          f"names in a file, names=FILE")  # fmt: skip
    pieces, mapping = edge_list.pieces(path), None
    if names:
        pieces, n_named, mapping = numbered(path, None if names == "edges" else existing(names), folder / "names", n_bytes)
        mapping = {f"names/{name}": array for name, array in mapping.items()}
        found["names"] = names, n_named

    def count(largest, n_edges):
        return edge_list.count(path, nodes, largest, n_edges, found)

    def rows(n_nodes):
        steps = [min(_STEP, n_nodes - at) for at in range(0, n_nodes, _STEP)] or [0]
        ready_x = Spool.of(folder / "features", (finish(np.ones((n, 1), np.float32)) for n in steps)) if x is None else x
        ready_y = Spool.of(folder / "labels", (np.full(n, -1) for n in steps)) if y is None else y
        if split is not None:
            parts = tuple(codes == edge_list.NAMES.index(name) for name in _SPLITS)
        elif where:
            parts = masks(n_nodes, where, **{name: edge_list.ids(where.get(name), name, n_nodes) for name in _SPLITS})
        elif y is None:
            parts = tuple(Spool.of(folder / name, (np.zeros(n, bool) for n in steps)) for name in _SPLITS)
        else:
            parts = _drawn(ready_y, task, train, val, seed, n_bytes, labels)
        return {"features": ready_x, "labels": ready_y, "n_classes": int(n_classes), **dict(zip(_SPLITS, parts))}

    return _Streams(((src, dst, None) for src, dst in pieces), count, rows, path.stem, path, task or "classify", mapping)


def _npz(path, folder, n_bytes, finish, classes=None, task=None, train=20, val=30, seed=0):
    """The `_Streams` of `npz.read`."""
    member = partial(npz.member, path, folder=made(folder / "members"))
    indptr, indices = member("adj_indptr"), member("adj_indices")
    n_nodes = npz.square(member("adj_shape"), f"{path}: adj_shape")
    weights = npz.weights(f"{path}: adj_data", member("adj_data", optional=True), indices.size)

    def edges():
        for first, ends, a, b in _csr_pieces(indptr, indices, n_nodes, f"{path}: adj"):
            columns = check_csr(ends, copied(indices, a, b), ends.size - 1, n_nodes, f"{path}: from row {first} on: adj")[1]
            weight = None if weights is None else validation.weights(f"{path}: adj_data", copied(weights, a, b), b - a)
            yield np.repeat(np.arange(first, first + ends.size - 1), np.diff(ends)), columns, weight

    def rows(n_nodes):
        x = Spool.of(folder / "features", map(finish, _attributes(path, member)))
        numbers = member("labels")
        y, n_classes = spooled_labels((copied(numbers, at, min(at + _STEP, len(numbers))) for at in range(0, max(len(numbers), 1), _STEP)),
                               path, folder, classes, task)  # fmt: skip
        for name, array in (("features", x), ("labels", y)):
            if array.shape[0] != n_nodes:
                raise DataError(f"{path}: {name}: {array.shape[0]} rows, but adj_shape says {n_nodes} nodes")
        parts = _drawn(y, task, train, val, seed, n_bytes, path)
        return {"features": x, "labels": y, "n_classes": int(n_classes), **dict(zip(_SPLITS, parts))}

    return _Streams(edges(), lambda largest, n_edges: n_nodes, rows, path.stem, path, task or "classify", None,
                    None if weights is None else np.dtype(weights.dtype if weights.dtype in (np.float32, np.float64) else np.float64))


def _csr_pieces(indptr, indices, n_rows, where, most=_STEP):
    """Yield (first row, indptr of a piece from 0 on, its first and last entry) of a CSR matrix whose ends are right."""
    if indptr.ndim != 1 or indptr.dtype.kind not in "iu" or indptr.size != n_rows + 1:
        raise DataError(f"{where}_indptr: shape {indptr.shape}, dtype {indptr.dtype}, expected {n_rows + 1} integers for {n_rows} rows")
    if indptr[0] != 0 or indptr[-1] != indices.size:
        raise DataError(f"{where}_indptr: runs from {indptr[0]} to {indptr[-1]}, expected 0 to {indices.size}")
    for low in range(0, n_rows, _STEP):
        ends = copied(indptr, low, min(low + _STEP, n_rows) + 1, np.int64)
        if (np.diff(ends) < 0).any() or ends[0] < 0 or ends[-1] > indices.size:
            at = int(np.argmax(np.diff(ends, append=indices.size) < 0))
            raise DataError(f"{where}_indptr: entry {low + at + 1} is less than the entry before")
        for first, last in row_chunks(ends, most):
            a, b = int(ends[first]), int(ends[last])
            yield low + first, ends[first : last + 1] - a, a, b


def _attributes(path, member):
    matrix = member("attr_matrix", optional=True)
    if matrix is not None:
        npz.check_matrix(path, matrix)
        step = max(1, (1 << 25) // max(1, matrix.dtype.itemsize * matrix.shape[1]))
        yield from (copied(matrix, at, min(at + step, len(matrix))) for at in range(0, max(len(matrix), 1), step))
        return
    data, indptr, indices, shape = (member(f"attr_{name}") for name in ("data", "indptr", "indices", "shape"))
    npz.check_attributes(path, shape)
    n_rows, width = map(int, shape)
    if data.shape != indices.shape:
        raise DataError(f"{path}: attr_data: shape {data.shape}, but attr_indices has {indices.shape}")
    step = max(1, (1 << 23) // max(1, width))
    found = None
    for first, ends, a, _ in _csr_pieces(indptr, indices, n_rows, f"{path}: attr"):
        for at in range(0, ends.size - 1, step):
            part = ends[at : at + step + 1]
            here = slice(a + int(part[0]), a + int(part[-1]))
            found = dense(copied(data, here.start, here.stop), part - part[0], copied(indices, here.start, here.stop),
                          (part.size - 1, width), f"{path}: from row {first + at} on: attr")  # fmt: skip
            yield found
    if found is None:
        yield np.empty((0, width), np.float32)


def _features(normalize, rows):
    rows = row_normalized(rows) if normalize else rows
    return rows if rows.dtype.name in ("float32", "float64") else narrowed(rows)


def spooled_labels(pieces, where, folder, classes, task):
    """Return labels as `read_labels` does, mapped."""
    spool, n_outputs = Spool(folder / "labels"), 0
    for piece in pieces:
        if task in (None, "classify"):
            found = whole_labels(piece, where, spool.n_rows)
        else:
            found, n_outputs = read_labels(piece, where, classes, task, spool.n_rows)
        spool.write(found)
    labels = spool.array()
    return labels, count_classes(labels, where, classes) if task in (None, "classify") else n_outputs


def _drawn(labels, task, train, val, seed, n_bytes, where):
    if _SPLIT_BYTES * len(labels) > n_bytes:
        raise ConfigError(f"{where}: a split drawn of {len(labels):,} nodes takes {_SPLIT_BYTES * len(labels):,} bytes of --memory, of "
                          f"which {n_bytes:,} are left: give more, or the split in a file")  # fmt: skip
    return random_split(strata(copied(labels, 0, len(labels)), task), train, val, seed)


def made(folder):
    """Make a folder; returns its path."""
    with writing(folder):
        folder.mkdir()
    return folder


_SPLITS = ("train", "val", "test")
FORMS = {"edges": _edge_list, "npz": _npz}

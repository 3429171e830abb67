"""A data set read in bounded memory into mapped files: edges through external sorts, rows of nodes piece by piece."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sarlite.data import budget, edge_list, mag, npz, textfile
from sarlite.data.dataset import Dataset
from sarlite.data.divide import counts_up
from sarlite.data.external import Sorter, csr, packed
from sarlite.data.folders import key
from sarlite.data.mapped import copied
from sarlite.data.names import listed, numbered
from sarlite.data.ogb import csv_pieces
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
from sarlite.data.tables import NODE, RELATION, SPLITS, EdgeTable, NodeTable
from sarlite.errors import ConfigError, DataError, writing
from sarlite.graph import validation
from sarlite.graph.edges import index_dtype, row_chunks
from sarlite.graph.generate import random_split

_DRAWN_BYTES = 64  # a node, while a split is drawn
_SPLIT_BYTES = 4  # a node of the target: three masks, and where two of them overlap


def read(form, path, options, folder, n_bytes, *, tell=lambda text: None, source, provenance, **changes):
    """Return the Dataset that `spec.load` makes of the same words, mapped from files in `folder`, and its nodes' names.

    Parameters
    ----------
    form : one of `FORMS`
    path, options
        Of the reader, as `spec` has parsed them.
    folder : path
        Private, the caller's to remove; it takes about 12 bytes an edge of the largest relation, twice that while edges
        are merged, and as much as the data set.
    n_bytes : int
        Of memory for the sort of the edges, or for a split.
    tell : callable
        tell(text) is called as each step begins.
    source, provenance
        Of the data set.
    **changes
        As of `RawGraph.assemble`, and drop_edge_values.

    Returns
    -------
    Dataset
    names : dict
        The mappings of the nodes' names, as `names.arrays`, made in `folder`; empty where they are not asked for.

    Raises
    ------
    DataError, ConfigError
        As the reader; where a split would not fit.
    """
    about = {"source": source, "provenance": provenance}
    return FORMS[form](path, options, Path(folder), n_bytes, tell, about, **changes)


@dataclass
class _Streams:
    """What a reader of this file makes: iterators in place of arrays."""

    edges: Any  # yields (src, dst, weights or None)
    n_nodes: Callable[[int, int], int]  # of the largest id and the number of edges
    rows: Callable[[int], dict[str, Any]]  # of the number of nodes: features, labels, n_classes, train, val, test
    name: str
    where: Path
    task: str
    mapping: dict[str, Any]  # the arrays of the nodes' names
    weights: np.dtype[Any] | None = None


def _one_relation(streams_of, path, options, folder, n_bytes, tell, about, *, undirected=None, self_loops=False,
                  deduplicate=False, normalize=False, drop_edge_values=False):
    """Read a graph of one kind, of which `streams_of` gives the `_Streams`."""
    if options.get("names"):
        n_bytes //= 2  # the other half sorts the names
    streams = streams_of(existing(path), folder, n_bytes, partial(_features, normalize), **options)
    columns = {"edge_weight": (streams.weights, ())} if streams.weights is not None and not drop_edge_values else {}
    if columns and (undirected or self_loops or deduplicate):
        raise ConfigError(f"{about['source']}: edge_weight: {CARRY_VALUES}")
    sorter = Sorter(made(folder / "runs"), n_bytes, once=bool(undirected or deduplicate), **columns)
    tell("sort the edges")
    largest, n_edges, loops = -1, 0, np.empty(0, np.int64)
    for src, dst, weight in streams.edges:
        if src.size:
            largest = max(largest, int(src.max()), int(dst.max()))
        if largest >= MAX_NODES:
            raise DataError(f"{streams.where}: edges: node id {largest} is outside 0 <= id < {MAX_NODES}, "
                            "the most nodes")
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
        _add_missing_loops(sorter, loops, n_nodes, budget.at_once(n_bytes))
    tell("merge the edges")
    edges = EdgeTable(RELATION, n_nodes, **merged(sorter, n_nodes, n_nodes, folder), source=about["source"])
    tell("read the nodes")
    nodes = NodeTable(NODE, n_nodes, **streams.rows(n_nodes), task=streams.task, source=about["source"])
    return Dataset.of_tables([nodes], [edges], name=streams.name, **about), streams.mapping


def _add_missing_loops(sorter, loops, n_nodes, at_once):
    for first in range(0, n_nodes, at_once):
        missing = np.ones(min(at_once, n_nodes - first), bool)
        missing[loops[(loops >= first) & (loops < first + at_once)] - first] = False
        nodes = np.flatnonzero(missing) + first
        sorter.add(packed(nodes, nodes))


def _relations(path, options, folder, n_bytes, tell, about, **_):
    """Read ogbn-mag, relation by relation."""
    stored, source = mag.Folder(path, options.get("reverses", True), options.get("names", False)), about["source"]
    batch, n = textfile.batch_within(n_bytes), stored.n_nodes[stored.target]
    budget.check(_SPLIT_BYTES * n, n_bytes, f"a split of {n:,} nodes")
    forward, back = [], []
    for number, (relation, reverse) in enumerate(stored.relations.items()):
        tell(".".join(relation))
        for edges in _sorted(stored, relation, reverse, made(folder / str(number)), n_bytes, source):
            (forward if edges.relation == relation else back).append(edges)
    tell("read the nodes")
    features = {}
    for number, (name, file) in enumerate(stored.features.items()):
        pieces = csv_pieces(file, "features", np.float32, n_rows=stored.n_nodes[name], batch=batch)
        features[name] = Spool.of(folder / f"features.{number}", pieces)
    pieces = csv_pieces(stored.labels, "labels", np.float64, n_rows=n, columns=1, batch=batch)
    labels, n_classes = spooled_labels(pieces, stored.labels, folder, options.get("classes"), None)
    rows = {"labels": labels, **dict(zip(SPLITS, stored.split())), "n_classes": n_classes}
    nodes = [NodeTable(name, n, features.get(name), **(rows if name == stored.target else {}), source=source)
             for name, n in stored.n_nodes.items()]
    return Dataset.of_tables(nodes, forward + back, stored.target, "mag", **about), _names_of(stored, folder, n_bytes)


def _sorted(stored, relation, reverse, folder, n_bytes, source):
    """Yield a relation's edges and, where it has a reverse, that one's: sorted side by side, each in half the memory.
    """
    directions = {relation: False} if reverse is None else {relation: False, reverse: True}
    ids, batch = index_dtype(stored.n_edges(relation)), textfile.batch_within(n_bytes)
    folders = [made(folder / str(reversed_)) for reversed_ in directions.values()]
    sorters = [Sorter(where, n_bytes // len(folders), edge_ids=(ids, ())) for where in folders]
    first = 0
    for src, dst in stored.edges(relation, batch):
        for reversed_, sorter in zip(directions.values(), sorters):
            keys = packed(src, dst) if reversed_ else packed(dst, src)
            sorter.add(keys, edge_ids=np.arange(first, first + src.size, dtype=ids))
        first += src.size
    while sorters:
        (name, _), where = directions.popitem(), folders.pop()
        n_sources, n_rows = stored.n_nodes[name[0]], stored.n_nodes[name[2]]
        arrays = merged(sorters.pop(), n_rows, n_sources, where)
        if counts_up(arrays["edge_ids"]):
            del arrays["edge_ids"]
        yield EdgeTable(name, n_sources, **arrays, source=source)


def names_in(path, options, folder, n_bytes):
    """Return the mappings of the names in ogbn-mag's folder, as `names.arrays`, made in `folder`, within `n_bytes`.

    Raises
    ------
    DataError
        There are none, or some of a type that there is not; a node has none, a name is there twice, or two have one
        hash.
    """
    return _names_of(mag.Folder(path, False, options.get("names", False)), Path(folder), n_bytes)


def _names_of(stored, folder, n_bytes):
    found = {}
    for name, file in stored.names.items():
        place = f"names/{key(name)}"
        pieces = stored.names_of(name, textfile.batch_within(n_bytes)[0])
        mapping = listed(pieces, file, folder / place, n_bytes, first_line=2)
        found |= {f"{place}/{part}": array for part, array in mapping.items()}
    return found


def merged(sorter, n_rows, n_sources, folder):
    """Return what a sorter of `packed` edges holds as the arrays of an `EdgeTable`, mapped from files in `folder`."""
    columns = {name: dtype for name, (dtype, _) in sorter.columns.items()}
    dtypes = {"indptr": np.int64, "indices": index_dtype(n_sources), **columns}
    outs = {name: Spool(folder / name, dtype) for name, dtype in dtypes.items()}
    for ends, _, src, columns in csr(sorter, n_rows, n_sources):
        for name, rows in {"indptr": ends, "indices": src, **columns}.items():
            outs[name].write(rows)
    return {name: out.array() for name, out in outs.items()}


def _edge_list(path, folder, n_bytes, finish, nodes=None, classes=None, features=None, labels=None, split=None,
               train_ids=None, val_ids=None, test_ids=None, names=None, task=None, train=0.6, val=0.2, seed=0):
    """The `_Streams` of `edge_list.read`; `names` is a file of names, or "edges"."""
    where = edge_list.check_options(labels, split, train_ids, val_ids, test_ids, task)
    batch, x, y, n_classes = textfile.batch_within(n_bytes), None, None, classes or 0
    if features is not None:
        pieces = textfile.stream(features, "features", np.float32, batch)
        x = Spool.of(folder / "features", map(finish, pieces))
    if labels is not None:
        pieces = textfile.stream(labels, "labels", np.float64, batch)
        y, n_classes = spooled_labels(pieces, labels, folder, classes, task)
    codes = None if split is None else textfile.names(split, "split", edge_list.NAMES)
    there = (("features", features, x), ("labels", labels, y), ("split", split, codes))
    found = {name: (file, len(array)) for name, file, array in there if array is not None}
    if names == "edges" and (found or where):
        raise ConfigError(f"{next(iter(found or where))}: with names=edges the nodes are in no order that other files "
                          "could have; list the names in a file, names=FILE")
    pieces, mapping = edge_list.pieces(path), {}
    if names:
        listed_in = None if names == "edges" else existing(names)
        pieces, n_named, mapping = numbered(path, listed_in, folder / "names", n_bytes)
        mapping = {f"names/{name}": array for name, array in mapping.items()}
        found["names"] = names, n_named

    def count(largest, n_edges):
        return edge_list.count(path, nodes, largest, n_edges, found)

    def rows(n_nodes):
        at_once = budget.at_once(n_bytes)
        steps = [min(at_once, n_nodes - at) for at in range(0, n_nodes, at_once)] or [0]
        ready_x, ready_y = x, y
        if x is None:
            ready_x = Spool.of(folder / "features", (finish(np.ones((n, 1), np.float32)) for n in steps))
        if y is None:
            ready_y = Spool.of(folder / "labels", (np.full(n, -1) for n in steps))
        if split is not None:
            parts = tuple(codes == edge_list.NAMES.index(name) for name in SPLITS)
        elif where:
            parts = masks(n_nodes, where, **{name: edge_list.ids(where.get(name), name, n_nodes) for name in SPLITS})
        elif y is None:
            parts = tuple(Spool.of(folder / name, (np.zeros(n, bool) for n in steps)) for name in SPLITS)
        else:
            parts = _drawn(ready_y, task, train, val, seed, n_bytes, labels)
        return {"features": ready_x, "labels": ready_y, "n_classes": int(n_classes), **dict(zip(SPLITS, parts))}

    edges = ((src, dst, None) for src, dst in pieces)
    return _Streams(edges, count, rows, path.stem, path, task or "classify", mapping)


def _npz(path, folder, n_bytes, finish, classes=None, task=None, train=20, val=30, seed=0):
    """The `_Streams` of `npz.read`."""
    member, at_once = partial(npz.member, path, folder=made(folder / "members")), budget.at_once(n_bytes)
    indptr, indices = member("adj_indptr"), member("adj_indices")
    n_nodes = npz.square(member("adj_shape"), f"{path}: adj_shape")
    weights = npz.weights(f"{path}: adj_data", member("adj_data", optional=True), indices.size)

    def edges():
        for first, ends, a, b in _csr_pieces(indptr, indices, n_nodes, f"{path}: adj", at_once):
            here = f"{path}: from row {first} on: adj"
            columns = check_csr(ends, copied(indices, a, b), ends.size - 1, n_nodes, here)[1]
            weight = None if weights is None else validation.weights(f"{path}: adj_data", copied(weights, a, b), b - a)
            yield np.repeat(np.arange(first, first + ends.size - 1), np.diff(ends)), columns, weight

    def rows(n_nodes):
        x = Spool.of(folder / "features", map(finish, _attributes(path, member, at_once)))
        numbers = member("labels")
        steps = range(0, max(len(numbers), 1), at_once)
        pieces = (copied(numbers, at, min(at + at_once, len(numbers))) for at in steps)
        y, n_classes = spooled_labels(pieces, path, folder, classes, task)
        for name, array in (("features", x), ("labels", y)):
            if array.shape[0] != n_nodes:
                raise DataError(f"{path}: {name}: {array.shape[0]} rows, but adj_shape says {n_nodes} nodes")
        parts = _drawn(y, task, train, val, seed, n_bytes, path)
        return {"features": x, "labels": y, "n_classes": int(n_classes), **dict(zip(SPLITS, parts))}

    dtype = None
    if weights is not None:
        dtype = np.dtype(weights.dtype if weights.dtype in (np.float32, np.float64) else np.float64)
    return _Streams(edges(), lambda largest, n_edges: n_nodes, rows, path.stem, path, task or "classify", {}, dtype)


def _csr_pieces(indptr, indices, n_rows, where, at_once):
    """Yield (first row, indptr of a piece from 0 on, its first and last entry) of a CSR matrix whose ends are right."""
    if indptr.ndim != 1 or indptr.dtype.kind not in "iu" or indptr.size != n_rows + 1:
        raise DataError(f"{where}_indptr: shape {indptr.shape}, dtype {indptr.dtype}, "
                        f"expected {n_rows + 1} integers for {n_rows} rows")
    if indptr[0] != 0 or indptr[-1] != indices.size:
        raise DataError(f"{where}_indptr: runs from {indptr[0]} to {indptr[-1]}, expected 0 to {indices.size}")
    for low in range(0, n_rows, at_once):
        ends = copied(indptr, low, min(low + at_once, n_rows) + 1, np.int64)
        if (np.diff(ends) < 0).any() or ends[0] < 0 or ends[-1] > indices.size:
            at = int(np.argmax(np.diff(ends, append=indices.size) < 0))
            raise DataError(f"{where}_indptr: entry {low + at + 1} is less than the entry before")
        for first, last in row_chunks(ends, at_once):
            a, b = int(ends[first]), int(ends[last])
            yield low + first, ends[first : last + 1] - a, a, b


def _attributes(path, member, at_once):
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
    for first, ends, a, _ in _csr_pieces(indptr, indices, n_rows, f"{path}: attr", at_once):
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
    needed = _DRAWN_BYTES * len(labels)
    if needed > n_bytes:
        raise ConfigError(f"{where}: a split drawn of {len(labels):,} nodes takes {needed:,} bytes of --memory, of "
                          f"which {n_bytes:,} are left: give more, or the split in a file")
    return random_split(strata(copied(labels, 0, len(labels)), task), train, val, seed)


def made(folder):
    """Make a folder; returns its path."""
    with writing(folder):
        folder.mkdir()
    return folder


FORMS = {"edges": partial(_one_relation, _edge_list), "npz": partial(_one_relation, _npz), "mag": _relations}

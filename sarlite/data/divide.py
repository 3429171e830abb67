"""Copying of a data set, table by table, with rows and edges reordered by part."""

from dataclasses import replace

import numpy as np

from sarlite.data import budget
from sarlite.data.dataset import Dataset
from sarlite.data.external_sort import Sorter, csr, packed, sampled
from sarlite.data.graph_tables import EdgeTable, NodeTable
from sarlite.data.mapped import CHUNK_BYTES, copied, gather, pieces, take
from sarlite.data.workspace import Workspace
from sarlite.structure.edges import index_dtype, row_chunks
from sarlite.structure.renumber import edges_in_order, inverse

NODE_BYTES = 16
"""Bytes per node within a memory limit: the part, the row numbers by id and by stored row, and some reserve.

An order of the nodes takes 4 or 8 bytes more."""
_IDS = ("ids", "edge_ids")


def divide(dataset, parts, n_parts, sink, *, order=None, division=None, folder=None, n_bytes=None, least_sort_bytes=budget.LEAST // 8):
    """Write the rows and edges of `dataset` to `sink` in `n_parts` parts; `parts` has the part of each node. Rows of a part follow `order`
    (None: ascending ids), and `division` is a dict to store about this division. `n_bytes` limits memory; sorts then use files in `folder`,
    and at least `least_sort_bytes` must be left for them.

    Parameters
    ----------
    dataset : Dataset
        Its rows may be in any order.
    parts : (n_nodes,) int
        The part of each node by original id, one type after the other in the order of `dataset.nodes`.
    n_parts : int
    sink : format.GraphWriter or InMemory
        Receiver of the result. `array(table, field, shape, dtype)` returns a writer of rows. `finish(dataset, offsets,
        division)` is called last.
    order : (n_nodes,) int, optional
        The original ids in the order in which the rows of a part are written, one type after the other; by default
        ascending.
    division : dict, optional
        A `record` of how `parts` and `order` were computed, to be stored.
    folder : path, optional
        Folder for sorting within `n_bytes`, which the caller removes. It needs about the size of the largest table, plus 12
        bytes per edge.
    n_bytes : int, optional
        Memory limit in bytes, for `NODE_BYTES` per node and the sorts. The result is the same, bit for bit.
    least_sort_bytes : int
        Bytes that must be left for the sorts.

    Raises
    ------
    ConfigError
        If `n_bytes` is too small for the number of nodes.

    Notes
    -----
    Memory without `n_bytes`: about 40 bytes per node, a piece of about a million edges with their values, and a piece of 32
    MiB of the features.
    """
    node_bytes = dataset.n_nodes * NODE_BYTES + (0 if order is None else order.nbytes)
    budget.check(node_bytes + least_sort_bytes, n_bytes, f"a partition of {dataset.n_nodes:,} nodes")
    space = Workspace(folder, None if n_bytes is None else n_bytes - node_bytes)
    new_row, offsets = {}, {}  # the new row number of each stored row
    for name, part, nodes in _by_type(dataset, parts, order):
        table = dataset.nodes[name]
        offsets[name] = np.concatenate(([0], np.cumsum(np.bincount(part, minlength=n_parts)))).astype(np.int64)
        by_id = _new_rows(part, offsets[name], nodes, space.at_once())
        _write_ids(table, by_id, sink, space.at_once())
        new_row[name] = _by_row(table, by_id, space.at_once())
        rows = inverse(new_row[name]) if n_bytes is None else None
        for field, array in _row_arrays(table).items():
            out = sink.array(table, field, array.shape, array.dtype)
            for piece in _rows_sorted(array, new_row[name], space) if rows is None else _rows_taken(array, rows):
                out.write(piece)
                del piece  # frees the piece before the next piece is allocated
    for (source, _, to), table in dataset.edges.items():
        origin = _positions_needed(table, new_row[source], new_row[to])
        _write_edges(table, new_row[source], new_row[to], sink, origin, space)
    sink.finish(dataset, offsets, division)  # last, as it may replace the files that were read


def copy(dataset, sink):
    """Write a data set to `sink`, such as a `format.GraphWriter`, in its stored order. If the sources within a row do not ascend,
    the edges are sorted.
    """
    for table in dataset.tables:
        if isinstance(table, EdgeTable) and not table.sources_ascend():
            _write_edges(table, np.arange(table.n_sources), np.arange(table.n_destinations), sink, True, Workspace())
            continue
        for field, array in table.arrays().items():
            sink.array(table, field, array.shape, array.dtype).write(array)
    sink.finish(dataset, {name: table.offsets for name, table in dataset.nodes.items()}, dataset.division)


def restored(dataset):
    """Return `dataset` with rows and edges in the order of the original ids.

    A data set that already has this order is returned unchanged, otherwise the result is in memory.
    """
    if not any(name in _IDS for table in dataset.tables for name in table.arrays()):
        return dataset
    return in_memory(dataset)


def in_memory(dataset, parts=None, n_parts=1, **options):
    """Return a data set in memory, divided into `n_parts` parts, where `parts` has the part of each node; None puts all nodes into
    one part. `options` are further arguments of `divide`.
    """
    sink = InMemory()
    divide(dataset, np.zeros(dataset.n_nodes, np.int8) if parts is None else parts, n_parts, sink, **options)
    return sink.dataset


class InMemory:
    """Receiver of arrays (`sink`) for `divide` that holds them in memory. After `finish`, its attribute `dataset` is the divided
    data set.
    """

    def __init__(self):
        self.dataset, self._rows = None, {}

    def array(self, table, field, shape, dtype):
        """Allocate an array of `shape` and `dtype` for a `field` of `table`, and return its writer, whose `write(rows)` fills the
        next rows.
        """
        self._rows[table.folder, field] = _FilledRows(shape, dtype)
        return self._rows[table.folder, field]

    def finish(self, dataset, offsets, division):
        """Set `self.dataset` to a data set of the written arrays with the metadata of `dataset`. `offsets` has the first row of
        each part by node type; `division` says how the parts were made.

        Ids that are 0, 1, 2, ... are stored as None.
        """
        nodes, edges = ([self._made(table, offsets) for table in tables.values()] for tables in (dataset.nodes, dataset.edges))
        self.dataset = Dataset.of_tables(nodes, edges, dataset.target, dataset.name, dataset.source, dataset.provenance, division=division)

    def _made(self, table, offsets):
        arrays = {field: rows.array for (folder, field), rows in self._rows.items() if folder == table.folder}
        arrays = {field: array for field, array in arrays.items() if field not in _IDS or not counts_up(array)}
        ends = {"offsets": offsets[table.node_type]} if isinstance(table, NodeTable) else {}
        return replace(table, **{**dict.fromkeys(table.EXPECTED), **arrays, **ends}, directory=None)


class _FilledRows:
    def __init__(self, shape, dtype):
        self.array, self._filled = np.empty(shape, dtype), 0

    def write(self, rows):
        self.array[self._filled : self._filled + rows.shape[0]] = rows
        self._filled += rows.shape[0]


def record(n_parts, method, order, seed, balance="auto"):
    """Return a dict for meta.json that describes a division: number of parts, `method`, `order` of the nodes, seed, and `balance`
    unless it is "auto".
    """
    division = {"parts": n_parts, "partition": method, "order": order, "seed": seed}
    return division if balance == "auto" else {**division, "balance": balance}


def stored_order(dataset):
    """Return the name of the stored order of the rows within each part, such as "metis"; "none" if rows were not reordered."""
    return dataset.division["order"] if dataset.division else "none"


def counts_up(ids):
    """Return True if the array `ids` is 0, 1, 2, ..."""
    return all((piece == np.arange(at, at + piece.size)).all() for at, piece in pieces(ids))


def _by_type(dataset, parts, order):
    """Yield (node type, part of each of its nodes, its node ids in the order to write) for each node type. `parts` and `order` hold the
    values of all types, one type after the other; if `order` is None, so are the ids.
    """
    first = 0
    for name, part in dataset.by_type(parts).items():
        nodes = None if order is None else order[first : first + part.size]
        yield name, part, nodes - first if order is not None and first else nodes
        first += part.size


def _row_arrays(table):
    """Return {field: array} of the arrays of a node table, except for the original ids (`ids`)."""
    return {field: array for field, array in table.arrays().items() if field != "ids"}


def _new_rows(parts, offsets, order, chunk_size):
    """Return the new row number of each node, indexed by original id, where `parts` has the part of each node. Part p gets the rows from
    `offsets[p]` on, and its nodes follow `order` (None: ascending ids). `chunk_size` nodes are processed at a time.
    """
    new_row, free = np.empty(parts.size, index_dtype(parts.size)), offsets[:-1].copy()
    for at in range(0, parts.size, chunk_size):
        nodes = np.arange(at, min(at + chunk_size, parts.size)) if order is None else order[at : at + chunk_size]
        part = parts[nodes]
        by_part, counts = np.argsort(part, kind="stable"), np.bincount(part, minlength=free.size)
        first = np.cumsum(counts) - counts
        new_row[nodes[by_part]] = np.arange(nodes.size) + (free - first)[part[by_part]]
        free += counts
    return new_row


def _write_ids(table, new_row, sink, chunk_size):
    """Write the original id of each new row to `sink`, unless the ids are 0, 1, 2, .... `new_row` has the new row number of each
    original id.
    """
    if counts_up(new_row):
        return
    ids = np.empty_like(new_row)
    for at in range(0, new_row.size, chunk_size):
        ids[new_row[at : at + chunk_size]] = np.arange(at, min(at + chunk_size, new_row.size), dtype=new_row.dtype)
    sink.array(table, "ids", ids.shape, ids.dtype).write(ids)


def _by_row(table, new_row, chunk_size):
    """Return the new row number of each row of `table`, in the order of the stored rows. `new_row` has the new row number for each original
    id, and table.ids the original id of each stored row. `chunk_size` ids are read at a time.
    """
    if table.ids is None:
        return new_row
    out = np.empty_like(new_row)
    for at in range(0, new_row.size, chunk_size):
        out[at : at + chunk_size] = new_row[copied(table.ids, at, min(at + chunk_size, new_row.size))]
    return out


def _positions_needed(table, new_src_rows, new_dst_rows):
    """Return True if the original positions of the edges in `table` must be stored, because the stored or the renumbered edges are in
    another order than the original edges. `new_src_rows` and `new_dst_rows` have the new number of each source row and destination row.
    """
    in_order = counts_up(new_dst_rows) and counts_up(new_src_rows) and table.sources_ascend()
    return table.edge_ids is not None or not in_order


def _rows_taken(array, rows):
    """Yield pieces of `array[rows]`, about `CHUNK_BYTES` each."""
    step = max(1, CHUNK_BYTES // max(1, array.nbytes // max(1, array.shape[0])))
    for at in range(0, rows.size, step):
        yield take(array, rows[at : at + step])


def _rows_sorted(array, new_row, workspace):
    """Yield pieces of the rows of `array` in ascending order of `new_row`, the new number of each row. The rows are sorted in files
    in the folder of `workspace`.
    """
    n = len(array)
    sorter = Sorter(workspace.folder, workspace.n_bytes, n, sampled([new_row], n), rows=(array.dtype, array.shape[1:]))
    step = max(1, min(workspace.at_once(), CHUNK_BYTES // max(1, array.nbytes // max(1, n))))
    for at in range(0, len(array), step):
        last = min(at + step, len(array))
        sorter.add(new_row[at:last], rows=copied(array, at, last))
    yield from (columns["rows"] for _, columns in sorter.pieces())


def _write_edges(table, new_src_rows, new_dst_rows, sink, with_positions, workspace):
    """Write the edges and edge values of a relation's `table` to `sink`, sorted by new row number. `new_src_rows` and `new_dst_rows` have
    the new number of each source row and destination row. If `with_positions`, also write each edge's original position.
    """
    values = {name: getattr(table, name) for name in table.VALUES if getattr(table, name) is not None}
    values |= {"edge_ids": table.edge_ids} if with_positions else {}  # None: the stored positions are the original ones
    n, ids = table.n_edges, index_dtype(table.n_edges)
    forms = {name: ((n,), ids) if name == "edge_ids" else (array.shape, array.dtype) for name, array in values.items()}
    whole = {"indptr": ((table.n_destinations + 1,), np.int64), "indices": ((n,), index_dtype(table.n_sources))}
    streams = {name: sink.array(table, name, *form) for name, form in {**whole, **forms}.items()}
    if workspace.n_bytes is None:
        batches = _edges_sorted_in_memory(table, new_src_rows, new_dst_rows, values)
    else:
        batches = _edges_sorted_in_files(table, new_src_rows, new_dst_rows, values, forms, workspace)
    for columns in batches:
        for name in [*columns]:
            streams[name].write(columns.pop(name))


def _edges_sorted_in_memory(table, new_src_rows, new_dst_rows, values):
    """Sort the edges of a relation's `table` in memory by new destination row, then new source row, and yield dicts: first {"indptr": all
    entries}; then {field: next entries} for "indices" and the fields of `values`, {field: array}, again and again. `new_src_rows` and
    `new_dst_rows` have the new number of each row.
    """
    indptr, rows = np.asarray(table.indptr), inverse(new_dst_rows)
    yield {"indptr": np.concatenate(([0], np.cumsum(np.diff(indptr)[rows])))}
    for _, _, at, src in edges_in_order(indptr, table.indices, rows, sort=True, read=gather, new_row=new_src_rows):
        yield {"indices": src, **{name: at if array is None else gather(array, at) for name, array in values.items()}}


def _edges_sorted_in_files(table, new_src_rows, new_dst_rows, values, forms, workspace):
    """Sort the edges of a relation's `table` in files by new destination row, then new source row, and yield dicts {field: next entries}.
    The fields are "indptr", "indices" and the fields of `values`, {field: array}. `new_src_rows` and `new_dst_rows` have the new number of
    each row, and `forms` the shape and dtype of each value.
    """
    columns = {name: (dtype, shape[1:]) for name, (shape, dtype) in forms.items()}
    keys = (packed(dst, src) for dst, src, *_ in _renumbered(table, new_src_rows, new_dst_rows, workspace.at_once()))
    sorter = Sorter(workspace.folder, workspace.n_bytes, table.n_edges, sampled(keys, table.n_edges), **columns)
    for dst, src, first, last in _renumbered(table, new_src_rows, new_dst_rows, workspace.at_once()):
        columns = {name: np.arange(first, last) if array is None else copied(array, first, last) for name, array in values.items()}
        sorter.add(packed(dst, src), **columns)
    for ends, _, src, columns in csr(sorter, table.n_destinations, table.n_sources):
        yield {"indptr": ends, "indices": src, **columns}


def _renumbered(table, new_src_rows, new_dst_rows, chunk_size):
    """Yield (new destination rows, new source rows, first edge, edge after the last) for pieces of the edges in `table`, in stored order.
    `new_src_rows` and `new_dst_rows` have the new number of each row; a piece has about `chunk_size` edges.
    """
    for row in range(0, table.n_destinations, chunk_size):
        ends = copied(table.indptr, row, min(row + chunk_size, table.n_destinations) + 1)
        for low, high in row_chunks(ends, chunk_size):
            first, last = int(ends[low]), int(ends[high])
            dst = np.repeat(new_dst_rows[row + low : row + high], np.diff(ends[low : high + 1]))
            yield dst, new_src_rows[copied(table.indices, first, last)], first, last

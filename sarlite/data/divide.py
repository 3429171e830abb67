"""A data set's rows and edges in the order in which parts own them, table by table from one data set into another."""

from dataclasses import replace

import numpy as np

from sarlite.data.dataset import Dataset
from sarlite.data.mapped import CHUNK_BYTES, gather, pieces, take
from sarlite.data.tables import EdgeTable, NodeTable
from sarlite.graph.edges import index_dtype
from sarlite.graph.renumber import edges_in_order, inverse, sequence

_IDS = ("ids", "edge_ids")


def divide(dataset, parts, n_parts, sink, *, order=None, division=None):
    """Write a data set so that its rows and edges stand by part.

    Parameters
    ----------
    dataset : Dataset
        In any order of its own.
    parts : (n_nodes,) int
        The part of each node, by original id, a type after the other as `dataset.nodes` has them.
    n_parts : int
    sink : format.GraphWriter or InMemory
        `of(table)` returns an object for a table's arrays, whose `array(field, shape, dtype)` returns a writer of rows.
        `finish(dataset, offsets, division)` ends the sink.
    order : (n_nodes,) int, optional
        The nodes, a type after the other, in the order in which the rows of a part stand; by default ids ascend.
    division : dict, optional
        How `parts` and `order` were made, to be remembered: a `record`.

    Notes
    -----
    Memory: about 40 bytes a node, a piece of the edges (about a million, with their values) and one of 32 MiB of the
    features.
    """
    rows, offsets = {}, {}
    for name, part, nodes in by_type(dataset, parts, order):
        table = dataset.nodes[name]
        ids, offsets[name] = sequence(part, n_parts, nodes)
        rows[name] = ids if table.ids is None else inverse(np.asarray(table.ids))[ids]
        out = sink.of(table)
        if not counts_up(ids):
            out.array("ids", ids.shape, ids.dtype).write(ids)
        for field, array in row_arrays(table).items():
            _write_rows(array, rows[name], out, field)
    for (source, _, to), table in dataset.edges.items():
        origin = origin_needed(table, rows[source], rows[to])
        _write_edges(table, rows[to], inverse(rows[source]), sink.of(table), origin)
    sink.finish(dataset, offsets, division)  # which may replace what was read


def copy(dataset, sink):
    """Write a data set as it stands; where the sources of a row do not ascend, sort them."""
    for table in dataset.tables:
        out = sink.of(table)
        if isinstance(table, EdgeTable) and not table.sources_ascend():
            _write_edges(table, np.arange(table.n_destinations), np.arange(table.n_sources), out, True)
            continue
        for field, array in table.arrays().items():
            out.array(field, array.shape, array.dtype).write(array)
    sink.finish(dataset, {name: table.offsets for name, table in dataset.nodes.items()}, dataset.division)


def restored(dataset):
    """Return a data set in memory whose rows and edges stand by original id; itself where they do."""
    if not any(name in _IDS for table in dataset.tables for name in table.arrays()):
        return dataset
    sink = InMemory(dataset.source)
    divide(dataset, np.zeros(dataset.n_nodes, np.int8), 1, sink)
    return sink.dataset


class InMemory:
    """A sink that makes a Dataset in memory: `dataset`, once it is finished."""

    def __init__(self, source="dataset"):
        self.source, self.dataset, self._made = source, None, []

    def of(self, table):
        """Return what takes a table's arrays."""
        self._made.append((table, _Arrays()))
        return self._made[-1][1]

    def finish(self, dataset, offsets, division):
        """Make the data set from the written arrays; ids that count up are left out."""
        made = []
        for table, out in self._made:
            arrays = {field: rows.array for field, rows in out.arrays.items()}
            arrays = {field: array for field, array in arrays.items() if field not in _IDS or not counts_up(array)}
            ends = {"offsets": offsets[table.node_type]} if isinstance(table, NodeTable) else {}
            fields = {**dict.fromkeys(table.EXPECTED), **arrays, **ends}
            made.append(replace(table, **fields, source=self.source, directory=None))
        nodes = [table for table in made if isinstance(table, NodeTable)]
        edges = [table for table in made if isinstance(table, EdgeTable)]
        self.dataset = Dataset.of_tables(nodes, edges, dataset.target, dataset.name, self.source, dataset.provenance,
                                         division=division)
        self.dataset.names = dataset.names


class _Arrays:
    """The arrays of one table, as they are written."""

    def __init__(self):
        self.arrays = {}

    def array(self, field, shape, dtype):
        self.arrays[field] = _FilledRows(shape, dtype)
        return self.arrays[field]


class _FilledRows:
    def __init__(self, shape, dtype):
        self.array, self._filled = np.empty(shape, dtype), 0

    def write(self, rows):
        self.array[self._filled : self._filled + rows.shape[0]] = rows
        self._filled += rows.shape[0]


def record(n_parts, method, order, seed, balance="auto"):
    """Return what a data set remembers of its division."""
    made = {"parts": n_parts, "partition": method, "order": order, "seed": seed}
    return made if balance == "auto" else {**made, "balance": balance}


def stored_order(dataset):
    """Return the name of the order in which a data set's rows stand in each part."""
    return dataset.division["order"] if dataset.division else "none"


def by_type(dataset, parts, order=None):
    """Yield each type, the parts of its nodes, and its nodes in their order or None; ids count from 0 in each type."""
    first = 0
    for name, part in dataset.by_type(parts).items():
        nodes = None if order is None else order[first : first + part.size]
        yield name, part, nodes - first if order is not None and first else nodes
        first += part.size


def row_arrays(table):
    """Return the arrays of a node table that have a row a node, but for the ids, by field."""
    found = table.arrays()
    found.pop("ids", None)
    return found


def origin_needed(table, sources, destinations):
    """Tell whether the original positions of edges must be remembered; sources and destinations are new row numbers."""
    kept = counts_up(destinations) and counts_up(sources) and table.sources_ascend()
    return table.edge_ids is not None or not kept


def counts_up(ids):
    """Tell whether numbers are 0, 1, 2, ..."""
    return all((piece == np.arange(at, at + piece.size)).all() for at, piece in pieces(ids))


def _write_rows(array, rows, out, field):
    row_bytes = array.nbytes // max(1, array.shape[0])
    stream, step = out.array(field, array.shape, array.dtype), max(1, CHUNK_BYTES // max(1, row_bytes))
    for at in range(0, rows.size, step):
        stream.write(take(array, rows[at : at + step]))


def _write_edges(table, rows, place, out, origin):
    """Write the edges into `rows`, each row's by ascending source, with their values and, for `origin`, positions.

    `place` has the new row number of each source row.
    """
    indptr = np.asarray(table.indptr)
    out.array("indptr", indptr.shape, np.int64).write(np.concatenate(([0], np.cumsum(np.diff(indptr)[rows]))))
    streams = {name: out.array(name, *form) for name, form in edge_arrays(table, origin).items()}
    values = {name: getattr(table, name) for name in table.VALUES if name in streams}
    for _, _, positions, sources in edges_in_order(indptr, table.indices, rows, sort=True, read=gather, place=place):
        streams["indices"].write(sources)
        if origin:
            streams["edge_ids"].write(positions if table.edge_ids is None else gather(table.edge_ids, positions))
        for name, array in values.items():
            streams[name].write(gather(array, positions))


def edge_arrays(table, origin):
    """Return the shape and the dtype of each array of a value an edge that is written, by field."""
    n = table.n_edges
    ids = {"edge_ids": ((n,), index_dtype(n))} if origin else {}
    values = {name: getattr(table, name) for name in table.VALUES}
    forms = {name: (array.shape, array.dtype) for name, array in values.items() if array is not None}
    return {"indices": ((n,), index_dtype(table.n_sources)), **ids, **forms}

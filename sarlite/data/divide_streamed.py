"""What `divide` writes, in bounded memory: rows and edges in the order in which parts own them, by external sorts."""

from pathlib import Path

import numpy as np

from sarlite.data import budget
from sarlite.data.divide import by_type, counts_up, edge_arrays, origin_needed, row_arrays
from sarlite.data.external import Sorter, csr, packed
from sarlite.data.mapped import copied
from sarlite.graph.edges import index_dtype, row_chunks

NODE_BYTES = 16
"""Memory a node: its part, its row number by id and by stored row, and some. An order takes 4 or 8 more."""


def divide_streamed(dataset, parts, n_parts, sink, folder, n_bytes, *, order=None, division=None,
                    least=budget.LEAST // 8):
    """Write what `divide` writes, bit for bit.

    Parameters
    ----------
    dataset, parts, n_parts, sink, order, division
        As for `divide`; the arrays are mapped.
    folder : path
        Private, the caller's to remove: it takes about as much as the largest table, and 12 bytes an edge more.
    n_bytes : int
        Of memory at most, for `NODE_BYTES` a node and the sorts.
    least : int
        Bytes that must be left for the sorts.

    Raises
    ------
    ConfigError
        `n_bytes` is too small for so many nodes.
    """
    own = dataset.n_nodes * NODE_BYTES + (0 if order is None else order.nbytes)
    budget.check(own + least, n_bytes, f"a partition of {dataset.n_nodes:,} nodes")
    sorts = _Sorts(folder, n_bytes - own)
    rows, offsets = {}, {}
    for name, part, nodes in by_type(dataset, parts, order):
        table, out = dataset.nodes[name], sink.of(dataset.nodes[name])
        offsets[name] = np.concatenate(([0], np.cumsum(np.bincount(part, minlength=n_parts)))).astype(np.int64)
        place = _places(part, offsets[name], nodes, sorts.at_once)
        _write_ids(place, out, sorts.at_once)
        rows[name] = _by_row(table, place, sorts.at_once)
        for field, array in row_arrays(table).items():
            _write_rows(array, rows[name], out, field, sorts)
    for (source, _, to), table in dataset.edges.items():
        origin = origin_needed(table, rows[source], rows[to])
        _write_edges(table, rows[source], rows[to], sink.of(table), sorts, origin)
    sink.finish(dataset, offsets, division)


class _Sorts:
    """Where tables are sorted, in how much memory, and how many rows are read at a time."""

    def __init__(self, folder, n_bytes):
        self.folder, self.n_bytes, self.at_once = Path(folder), n_bytes, budget.at_once(n_bytes)

    def sorter(self, **columns):
        return Sorter(self.folder, self.n_bytes, **columns)


def _places(parts, offsets, order, at_once):
    """Return the row number that each node gets, by original id."""
    place, free = np.empty(parts.size, index_dtype(parts.size)), offsets[:-1].copy()
    for at in range(0, parts.size, at_once):
        nodes = np.arange(at, min(at + at_once, parts.size)) if order is None else order[at : at + at_once]
        part = parts[nodes]
        by_part, counts = np.argsort(part, kind="stable"), np.bincount(part, minlength=free.size)
        first = np.cumsum(counts) - counts
        place[nodes[by_part]] = np.arange(nodes.size) + (free - first)[part[by_part]]
        free += counts
    return place


def _write_ids(place, out, at_once):
    """Write the original ids of rows, where they do not count up."""
    if counts_up(place):
        return
    ids = np.empty_like(place)
    for at in range(0, place.size, at_once):
        ids[place[at : at + at_once]] = np.arange(at, min(at + at_once, place.size), dtype=place.dtype)
    out.array("ids", ids.shape, ids.dtype).write(ids)


def _by_row(table, place, at_once):
    """Return the row number that each stored row gets."""
    if table.ids is None:
        return place
    out = np.empty_like(place)
    for at in range(0, place.size, at_once):
        out[at : at + at_once] = place[copied(table.ids, at, min(at + at_once, place.size))]
    return out


def _write_rows(array, place, out, field, sorts):
    """Write an array of a row a node by new row number."""
    stream, sorter = out.array(field, array.shape, array.dtype), sorts.sorter(rows=(array.dtype, array.shape[1:]))
    row_bytes = max(1, array.nbytes // max(1, len(array)))
    step = max(1, min(sorts.at_once, (1 << 25) // row_bytes))
    for at in range(0, len(array), step):
        last = min(at + step, len(array))
        sorter.add(place[at:last], rows=copied(array, at, last))
    for _, columns in sorter.pieces():
        stream.write(columns["rows"])


def _write_edges(table, sources, destinations, out, sorts, origin):
    """Write edges as `divide` does; `sources` and `destinations` have the new row number of each stored row."""
    forms = edge_arrays(table, origin)
    values = [name for name in table.VALUES if name in forms]
    sorter = sorts.sorter(**{name: (dtype, shape[1:]) for name, (shape, dtype) in forms.items() if name != "indices"})
    for dst, src, first, last in _renumbered(table, sources, destinations, sorts.at_once):
        columns = {name: copied(getattr(table, name), first, last) for name in values}
        if origin:
            ids = table.edge_ids
            columns["edge_ids"] = np.arange(first, last) if ids is None else copied(ids, first, last)
        sorter.add(packed(dst, src), **columns)
    streams = {"indptr": out.array("indptr", (table.n_destinations + 1,), np.int64)}
    streams |= {name: out.array(name, *form) for name, form in forms.items()}
    for ends, _, src, columns in csr(sorter, table.n_destinations, table.n_sources):
        for name, rows in {"indptr": ends, "indices": src, **columns}.items():
            streams[name].write(rows)


def _renumbered(table, sources, destinations, at_once):
    """Yield (destinations, sources, first, last) of the stored edges first .. last, by their new row numbers."""
    for row in range(0, table.n_destinations, at_once):
        ends = copied(table.indptr, row, min(row + at_once, table.n_destinations) + 1)
        for low, high in row_chunks(ends, at_once):
            first, last = int(ends[low]), int(ends[high])
            dst = np.repeat(destinations[row + low : row + high], np.diff(ends[low : high + 1]))
            yield dst, sources[copied(table.indices, first, last)], first, last

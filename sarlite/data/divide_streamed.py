"""Rows and edges written in the order in which parts own them, in bounded memory: as `divide`, through external sorts."""

from pathlib import Path

import numpy as np

from sarlite.data import budget
from sarlite.data.dataset import SPLITS
from sarlite.data.divide import Facts, counts_up
from sarlite.data.external import Sorter, csr, packed
from sarlite.data.mapped import copied
from sarlite.graph.edges import index_dtype, row_chunks
from sarlite.graph.partition import Tally

_STEP = 1 << 20  # rows, and edges, at a time
NODE_BYTES = 16
"""Memory a node: its part, its row number by id and by stored row, and whether a part needs it, and some. An order takes 4 or 8 more."""


def divide_streamed(dataset, parts, n_parts, sink, folder, n_bytes, *, order=None, division=None):
    """Write what `divide` writes, bit for bit.

    Parameters
    ----------
    dataset, parts, n_parts, sink, order, division
        As for `divide`; the arrays are mapped.
    folder : path
        Private, the caller's to remove: it takes about as much as the data set, and 12 bytes an edge more.
    n_bytes : int
        Of memory at most, for `NODE_BYTES` a node and the sorts.

    Returns
    -------
    dict
        As `divide`.

    Raises
    ------
    ConfigError
        `n_bytes` is too small for so many nodes.
    """
    n_nodes, folder = dataset.n_nodes, Path(folder)
    own = n_nodes * (NODE_BYTES + (0 if order is None else order.itemsize))
    budget.check(own + budget.LEAST // 8, n_bytes, f"a partition of {n_nodes:,} nodes")
    offsets = np.concatenate(([0], np.cumsum(np.bincount(parts, minlength=n_parts)))).astype(np.int64)
    place = places(parts, offsets, order)
    del parts
    write_ids(place, sink)
    place = by_row(dataset, place)
    for field in ("features", "labels", *SPLITS):
        write_rows(getattr(dataset, field), place, sink, field, folder, n_bytes - own)
    tally = Tally(offsets)
    origin = dataset.edge_ids is not None or not counts_up(place)
    write_edges(dataset, place, offsets, sink, tally.add, folder, n_bytes - own, origin=origin)
    train = sum(np.bincount(_part(offsets, place[at : at + _STEP][copied(dataset.train, at, min(at + _STEP, n_nodes))]), minlength=n_parts)
                for at in range(0, n_nodes, _STEP)) if n_nodes else np.zeros(n_parts, np.int64)  # fmt: skip
    sink.finish(Facts(dataset.name, dataset.n_classes, dataset.provenance, offsets, division, dataset.task))
    return tally.measures(train)


def places(parts, offsets, order):
    """Return the row number that each node gets, by original id."""
    place, free = np.empty(parts.size, index_dtype(parts.size)), offsets[:-1].copy()
    for at in range(0, parts.size, _STEP):
        nodes = np.arange(at, min(at + _STEP, parts.size)) if order is None else order[at : at + _STEP]
        part = parts[nodes]
        by_part, counts = np.argsort(part, kind="stable"), np.bincount(part, minlength=free.size)
        first = np.cumsum(counts) - counts
        place[nodes[by_part]] = np.arange(nodes.size) + (free - first)[part[by_part]]
        free += counts
    return place


def write_ids(place, sink):
    """Write the original ids of rows, where they do not count up."""
    if counts_up(place):
        return
    ids = np.empty_like(place)
    for at in range(0, place.size, _STEP):
        ids[place[at : at + _STEP]] = np.arange(at, min(at + _STEP, place.size), dtype=place.dtype)
    sink.array("ids", ids.shape, ids.dtype).write(ids)


def by_row(dataset, place):
    """Return the row number that each stored row gets."""
    if dataset.ids is None:
        return place
    out = np.empty_like(place)
    for at in range(0, place.size, _STEP):
        out[at : at + _STEP] = place[copied(dataset.ids, at, min(at + _STEP, place.size))]
    return out


def write_rows(array, place, sink, field, folder, n_bytes):
    """Write an array of a row a node by new row number."""
    out = sink.array(field, array.shape, array.dtype)
    sorter = Sorter(folder, n_bytes, rows=(array.dtype, array.shape[1:]))
    step = max(1, min(_STEP, (1 << 25) // max(1, array.nbytes // max(1, len(array)))))
    for at in range(0, len(array), step):
        last = min(at + step, len(array))
        sorter.add(place[at:last], rows=copied(array, at, last))
    for _, columns in sorter.pieces():
        out.write(columns["rows"])


def write_edges(dataset, place, offsets, sink, tally, folder, n_bytes, *, origin, sources=None):
    """Write edges as `divide` does; `sources` has the new row number of each source row, by default the rows' own."""
    fields = {name: name for name in ("edge_weight", "edge_features") if getattr(dataset, name) is not None}
    dtypes = {name: (getattr(dataset, name).dtype, getattr(dataset, name).shape[1:]) for name in fields}
    if origin:
        dtypes["edge_ids"] = (index_dtype(dataset.n_edges), ())
    sorter = Sorter(folder, n_bytes, **dtypes)
    for dst, src, first, last in _renumbered(dataset, place, place if sources is None else sources):
        columns = {name: copied(getattr(dataset, name), first, last) for name in fields}
        if origin:
            columns["edge_ids"] = np.arange(first, last) if dataset.edge_ids is None else copied(dataset.edge_ids, first, last)
        sorter.add(packed(dst, src), **columns)
    shapes = {"indptr": ((dataset.n_nodes + 1,), np.int64), "indices": ((dataset.n_edges,), index_dtype(dataset.n_sources)),
              **{name: ((dataset.n_edges, *shape), dtype) for name, (dtype, shape) in dtypes.items()}}
    outs = {name: sink.array(name, *facts) for name, facts in shapes.items()}
    for ends, dst, src, columns in csr(sorter, dataset.n_nodes, dataset.n_sources):
        outs["indptr"].write(ends)
        for name, values in {"indices": src, **columns}.items():
            outs[name].write(values)
        cuts = np.concatenate(([0], np.searchsorted(dst, offsets[1:-1]), [dst.size]))
        for low, high in zip(cuts, cuts[1:]):
            if low < high:
                tally(int(dst[low]), None, src[low:high])


def _renumbered(dataset, place, sources):
    """Yield (destinations, sources, first, last) of the stored edges first .. last, by their new row numbers."""
    for row in range(0, dataset.n_nodes, _STEP):
        ends = copied(dataset.indptr, row, min(row + _STEP, dataset.n_nodes) + 1)
        for low, high in row_chunks(ends, _STEP):
            first, last = int(ends[low]), int(ends[high])
            dst = np.repeat(place[row + low : row + high], np.diff(ends[low : high + 1]))
            yield dst, sources[copied(dataset.indices, first, last)], first, last


def _part(offsets, rows):
    return np.searchsorted(offsets, rows, side="right") - 1

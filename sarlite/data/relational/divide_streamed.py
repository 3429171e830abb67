"""A relational data set's rows and edges in the order in which parts own them, in bounded memory, table by table."""

import numpy as np

from sarlite.data import budget
from sarlite.data import divide_streamed as tables
from sarlite.data.dataset import SPLITS
from sarlite.data.divide import counts_up
from sarlite.data.relational.divide import Facts


def divide_streamed(dataset, parts, n_parts, sink, folder, n_bytes, *, order=None, division=None):
    """Write what `relational.divide.divide` writes, bit for bit.

    Parameters
    ----------
    dataset, parts, n_parts, sink, order, division
        As for `relational.divide.divide`; the arrays are mapped.
    folder : path
        Private, the caller's to remove: it takes about as much as the largest table, and 12 bytes an edge more.
    n_bytes : int
        Of memory at most, for `data.divide_streamed.NODE_BYTES` a node of all types and the sorts.

    Raises
    ------
    ConfigError
        `n_bytes` is too small for so many nodes.
    """
    n_nodes = sum(dataset.n_nodes.values())
    own = n_nodes * tables.NODE_BYTES + sum(nodes.nbytes for nodes in (order or {}).values())
    budget.check(own + budget.LEAST // 8, n_bytes, f"a partition of {n_nodes:,} nodes")
    offsets, rows, left = {}, {}, n_bytes - own
    for name, table in dataset.nodes.items():
        counts = np.bincount(parts[name], minlength=n_parts)
        out, offsets[name] = sink.of(table), np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        place = tables.places(parts[name], offsets[name], order and order[name])
        tables.write_ids(place, out)
        place = rows[name] = tables.by_row(table, place)
        for field in ("features", "labels", *SPLITS):
            if getattr(table, field) is not None:
                tables.write_rows(getattr(table, field), place, out, field, folder, left)
    for (source, _, to), table in dataset.edges.items():
        origin = table.edge_ids is not None or not counts_up(rows[to]) or not counts_up(rows[source]) or not table.sources_ascend()
        tables.write_edges(table, rows[to], offsets[to], sink.of(table), lambda *_: None, folder, left, origin=origin, sources=rows[source])
    sink.finish(Facts(dataset.name, dataset.target, dataset.n_classes, dataset.task, dataset.provenance, offsets, division))

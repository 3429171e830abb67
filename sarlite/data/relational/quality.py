"""What the parts of a divided relational data set cost: counted from its files, one piece of the edges after the other."""

import numpy as np

from sarlite.data.mapped import copied
from sarlite.graph.partition import measures

_STEP = 1 << 20  # edges at a time


def quality(dataset):
    """Measure the parts of a data set as it stands.

    Parameters
    ----------
    dataset : RelationalDataset
        Its parts are those of each type's `offsets`.

    Returns
    -------
    dict
        As `partition.measures`, of all types together, with "types": each one's nodes by part.

    Notes
    -----
    Memory: a byte a node of the largest type, and a piece of the edges.
    """
    offsets = {name: np.asarray(table.offsets) for name, table in dataset.nodes.items()}
    edges, cut, halo = (np.zeros(dataset.n_parts, np.int64) for _ in range(3))
    for part in range(dataset.n_parts):
        for name, n in dataset.n_nodes.items():
            (low, high), seen = offsets[name][part : part + 2], np.zeros(n, bool)
            for relation, table in dataset.edges.items():
                for sources in _sources(table, offsets[relation[2]], part) if relation[0] == name else ():
                    remote = sources[(sources < low) | (sources >= high)]
                    seen[remote] = True
                    edges[part] += sources.size
                    cut[part] += remote.size
            halo[part] += np.count_nonzero(seen)
    types = {name: np.diff(own) for name, own in offsets.items()}
    train, ends = dataset.nodes[dataset.target].train, offsets[dataset.target]
    chosen = [np.count_nonzero(copied(train, low, high)) for low, high in zip(ends, ends[1:])]
    found = measures(nodes=sum(types.values()), edges=edges, train_nodes=chosen, halo_rows=halo, cut_edges=int(cut.sum()))
    return {**found, "types": {name: counts.tolist() for name, counts in types.items()}}


def _sources(table, offsets, part):
    first, last = (int(copied(table.indptr, row, row + 1)[0]) for row in offsets[part : part + 2])
    for at in range(first, last, _STEP):
        yield copied(table.indices, at, min(at + _STEP, last))

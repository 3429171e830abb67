"""What the parts of a divided data set cost: counted from its files, one piece of the edges after the other."""

import numpy as np

from sarlite.data import budget
from sarlite.data.mapped import copied, pieces
from sarlite.graph.balance import UNEVEN
from sarlite.graph.edges import row_chunks
from sarlite.graph.partition import measures

_STEP = 1 << 20  # rows, and edges, at a time
_SHOWN = 16  # parts whose tiles are printed


def quality(dataset, n_bytes=None, step=None):
    """Measure the parts of a data set as it stands.

    Parameters
    ----------
    dataset : Dataset
        Its parts are those of `offsets`.
    n_bytes : int, optional
        Of memory at most.
    step : progress.Step, optional
        Counts edges.

    Returns
    -------
    dict
        As `partition.measures`, and "tiles": the edges from part q's rows to part p's, at [p][q]; "needs": the share of q's rows that p
        needs; "row_imbalance": the largest part's edges over the mean; "stage_imbalance": the largest tile of each column, added up,
        over the edges of a part: what rounds in lockstep, as of mode broadcast, take longer than even ones. JSON can hold it.

    Raises
    ------
    ConfigError
        `n_bytes` is too small for so many nodes.

    Notes
    -----
    Memory: a byte a node, 24 bytes a pair of parts, and a piece of the edges.
    """
    offsets, n_parts = np.asarray(dataset.offsets), dataset.n_parts
    budget.check(dataset.n_nodes + 24 * n_parts**2, n_bytes, f"a report on {dataset.n_nodes:,} nodes in {n_parts:,} parts")
    tiles, halo = np.zeros((n_parts, n_parts), np.int64), np.zeros((n_parts, n_parts), np.int64)
    seen = np.zeros(dataset.n_nodes, bool)
    for part in range(n_parts):
        for sources in _sources(dataset, int(offsets[part]), int(offsets[part + 1])):
            tiles[part] += np.bincount(np.searchsorted(offsets, sources, side="right") - 1, minlength=n_parts)
            seen[sources] = True
            if step is not None:
                step.add(sources.size)
        seen[offsets[part] : offsets[part + 1]] = False
        halo[part] = [np.count_nonzero(seen[first:last]) for first, last in zip(offsets, offsets[1:])]
        seen[:] = False
    return _measured(dataset, tiles, halo)


def _sources(dataset, first, last):
    for row in range(first, last, _STEP):
        ends = copied(dataset.indptr, row, min(row + _STEP, last) + 1)
        for low, high in row_chunks(ends, _STEP):
            for at in range(int(ends[low]), int(ends[high]), _STEP):
                yield copied(dataset.indices, at, min(at + _STEP, int(ends[high])))


def _measured(dataset, tiles, halo):
    offsets, n_parts = np.asarray(dataset.offsets), len(tiles)
    train = np.zeros(n_parts, np.int64)
    for at, piece in pieces(dataset.train):
        train += np.bincount(np.searchsorted(offsets, np.flatnonzero(piece) + at, side="right") - 1, minlength=n_parts)
    nodes, edges = np.diff(offsets), tiles.sum(axis=1)
    found = measures(nodes=nodes, edges=edges, train_nodes=train, halo_rows=halo.sum(axis=1), cut_edges=int(edges.sum() - tiles.trace()))
    share = max(edges.sum() / n_parts, 1e-300)
    return {**found, "tiles": tiles.tolist(), "needs": (halo / np.maximum(nodes, 1)).tolist(),
            "row_imbalance": found["imbalance"]["edges"],
            "stage_imbalance": float(tiles.max(axis=0).sum() / share) if edges.any() else 1.0}  # fmt: skip


def quality_lines(found):
    """Yield the lines that `quality` adds to those of `summary.report_lines`."""
    yield f"row imbalance {found['row_imbalance']:.2f}, stage imbalance {found['stage_imbalance']:.2f}"
    needs = np.array(found["needs"])
    others = needs[~np.eye(len(needs), dtype=bool)]
    if others.size:
        yield f"share of a peer's rows that a part needs: {100 * others.mean():.1f} % (largest {100 * others.max():.1f} %)"
    if found["n_parts"] <= _SHOWN:
        yield "edges by part (rows) from each part (columns); below, % of that part's rows needed"
        yield from (" ".join(f"{count:>12,}" for count in row) for row in found["tiles"])
        yield from (" ".join(f"{100 * share:>12.1f}" for share in row) for row in found["needs"])
    if found["stage_imbalance"] > UNEVEN:
        yield (f"mode broadcast would take about {found['stage_imbalance']:.1f} times as long as on even parts: --method random evens its "
               f"rounds out; mode sar does not mind")  # fmt: skip

"""Costs of the parts of a divided data set, counted from its files, one piece of the edges after the other."""

from dataclasses import replace

import numpy as np

from sarlite.data import budget
from sarlite.data.dataset import Dataset
from sarlite.data.divide import in_memory
from sarlite.data.mapped import copied, pieces
from sarlite.structure.balance import UNEVEN
from sarlite.structure.partition import Tally, measures, rows_by_part

_SHOWN = 16  # parts whose tiles are printed


def quality(dataset, n_bytes=None, step=None, tiles=True):
    """Measure the parts of a data set as it stands.

    Parameters
    ----------
    dataset : Dataset
        Its parts are given by each type's `offsets`.
    n_bytes : int, optional
        Of memory at most.
    step : progress.Step, optional
        Counts edges.
    tiles : bool
        Count the edges by pair of parts too.

    Returns
    -------
    dict
        As `partition.measures`, of all types together; of several types "types": each one's nodes by part. With `tiles`
        "tiles": the edges from part q's rows to part p's, at [p][q]; "needs": the share of q's rows that p needs;
        "row_imbalance": the largest part's edges over the mean; "stage_imbalance": the largest tile of each column,
        added up, over the edges of a part: by how much rounds in lockstep, as in mode broadcast, outlast even rounds.
        JSON can hold it.

    Raises
    ------
    ConfigError
        `n_bytes` is too small for so many nodes.

    Notes
    -----
    Memory: a byte a node of the largest type, with `tiles` 24 bytes a pair of parts, and a piece of the edges.
    """
    n_parts, largest = dataset.n_parts, max(table.n_nodes for table in dataset.nodes.values())
    needed = largest + 24 * n_parts**2 * tiles
    budget.check(needed, n_bytes, f"a report on {dataset.n_nodes:,} nodes in {n_parts:,} parts")
    counts = [_count_sources(dataset, name, tiles, budget.at_once(n_bytes), step) for name in dataset.nodes]
    return _measured(dataset, {name: sum(of_type[name] for of_type in counts) for name in counts[0]})


def measured(dataset, parts, n_parts):
    """Return what a partition that is not stored costs, as `quality` without tiles; `parts` as `divide` takes them."""
    nodes = [replace(table, features=None) for table in dataset.nodes.values()]
    edges = [replace(table, edge_weight=None, edge_features=None, edge_time=None) for table in dataset.edges.values()]
    return quality(in_memory(Dataset.of_tables(nodes, edges, dataset.target), parts, n_parts), tiles=False)


def quality_lines(found):
    """Yield the lines that `quality` adds to the lines of `summary.report_lines`."""
    yield f"row imbalance {found['row_imbalance']:.2f}, stage imbalance {found['stage_imbalance']:.2f}"
    needs = np.array(found["needs"])
    others = needs[~np.eye(len(needs), dtype=bool)]
    if others.size:
        mean, largest = 100 * others.mean(), 100 * others.max()
        yield f"share of a peer's rows that a part needs: {mean:.1f} % (largest {largest:.1f} %)"
    if found["n_parts"] <= _SHOWN:
        yield "edges by part (rows) from each part (columns); below, % of that part's rows needed"
        yield from (" ".join(f"{count:>12,}" for count in row) for row in found["tiles"])
        yield from (" ".join(f"{100 * share:>12.1f}" for share in row) for row in found["needs"])
    if found["stage_imbalance"] > UNEVEN:
        yield (f"mode broadcast would take about {found['stage_imbalance']:.1f} times as long as on even parts: "
               f"--method random evens its rounds out; mode sar does not mind")


def _count_sources(dataset, name, tiles, at_once, step):
    """The counts of a `Tally` of the edges out of one type's rows, by the part of their destination."""
    tally = Tally(np.asarray(dataset.nodes[name].offsets), tiles)
    relations = [table for relation, table in dataset.edges.items() if relation[0] == name]
    for part in range(dataset.n_parts):
        for table in relations:
            for sources in _sources(table, dataset.nodes[table.relation[2]].offsets, part, at_once):
                tally.add(part, sources)
                if step is not None:
                    step.add(sources.size)
        tally.close(part)
    names = ("edges", "cut", "halo_rows", *(("tiles", "halo_tiles") if tiles else ()))
    return {name: getattr(tally, name) for name in names}


def _sources(table, offsets, part, at_once):
    first, last = (int(copied(table.indptr, row, row + 1)[0]) for row in offsets[part : part + 2])
    for at in range(first, last, at_once):
        yield copied(table.indices, at, min(at + at_once, last))


def _measured(dataset, counts):
    types = {name: np.diff(table.offsets) for name, table in dataset.nodes.items()}
    nodes, train = sum(types.values()), np.zeros(dataset.n_parts, np.int64)
    for at, piece in pieces(dataset.train):
        train += rows_by_part(np.asarray(dataset.offsets), np.flatnonzero(piece) + at)
    found = measures(nodes=nodes, edges=counts["edges"], train_nodes=train, halo_rows=counts["halo_rows"],
                     cut_edges=int(counts["cut"].sum()))
    if len(types) > 1:
        found["types"] = {name: of_part.tolist() for name, of_part in types.items()}
    if "tiles" not in counts:
        return found
    share = counts["edges"].sum() / dataset.n_parts
    stages = float(counts["tiles"].max(axis=0).sum() / share) if share else 1.0
    return {**found, "tiles": counts["tiles"].tolist(), "needs": (counts["halo_tiles"] / np.maximum(nodes, 1)).tolist(),
            "row_imbalance": found["imbalance"]["edges"], "stage_imbalance": stages}

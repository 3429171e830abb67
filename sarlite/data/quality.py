"""Quality of a division into parts: edges, halo rows (rows of other parts that are needed) and imbalance, counted in pieces."""

from dataclasses import replace

import numpy as np

from sarlite.data import budget
from sarlite.data.dataset import Dataset
from sarlite.data.divide import in_memory
from sarlite.data.mapped import copied, pieces
from sarlite.structure.balance import UNEVEN
from sarlite.structure.partition import Tally, measures, rows_by_part

_SHOWN = 16  # largest number of parts for which the matrices are printed


def quality(dataset, n_bytes=None, step=None, tiles=True):
    """Return a dict of the numbers of nodes, edges and halo rows of each part of `dataset`, and their imbalance. With `tiles`, edges are
    also counted for each pair of parts. `n_bytes` limits memory (None: no limit), and `step`, a `progress.Step`, counts the edges that were
    read.

    Parameters
    ----------
    dataset : Dataset
        The `offsets` of each node type define the parts.
    n_bytes : int, optional
        Memory limit in bytes.
    step : progress.Step, optional
        Counts edges.
    tiles : bool
        If True, also count the edges for each pair of parts.

    Returns
    -------
    dict
        The measures of `partition.measures` over all node types, which JSON can hold. With several types, "types" has the
        number of nodes per part for each type. With `tiles`:

        - "tiles": at [p][q] the number of edges from part q's rows to part p's rows;
        - "needs": at [p][q] the share of q's rows that p needs;
        - "row_imbalance": the largest number of edges of a part over the mean;
        - "stage_imbalance": the sum of the largest tile of each column over the mean number of edges of a part. It
          estimates how much longer rounds in lockstep, as in mode broadcast, take than even rounds.

    Raises
    ------
    ConfigError
        If `n_bytes` is too small for the number of nodes.

    Notes
    -----
    Memory: a byte per node of the largest type, a piece of the edges, and with `tiles` 24 bytes per pair of parts.
    """
    n_parts, largest = dataset.n_parts, max(table.n_nodes for table in dataset.nodes.values())
    needed = largest + 24 * n_parts**2 * tiles
    budget.check(needed, n_bytes, f"a report on {dataset.n_nodes:,} nodes in {n_parts:,} parts")
    counts = [_count_sources(dataset, name, tiles, budget.at_once(n_bytes), step) for name in dataset.nodes]
    return _measured(dataset, {name: sum(of_type[name] for of_type in counts) for name in counts[0]})


def measured(dataset, parts, n_parts):
    """Return the dict of `quality` (cut edges, halo rows, imbalance) for a division of `dataset` that is not stored, without the counts for
    pairs of parts. `parts` has the part of each node.
    """
    nodes = [replace(table, features=None) for table in dataset.nodes.values()]
    edges = [replace(table, edge_weight=None, edge_features=None, edge_time=None) for table in dataset.edges.values()]
    return quality(in_memory(Dataset.of_tables(nodes, edges, dataset.target), parts, n_parts), tiles=False)


def quality_lines(costs):
    """Yield lines of text about `costs`, the result of `quality`: the imbalance, and the edges and needed rows for each pair of parts. They
    are printed below the table of `summary.report_lines`.
    """
    yield f"row imbalance {costs['row_imbalance']:.2f}, stage imbalance {costs['stage_imbalance']:.2f}"
    needs = np.array(costs["needs"])
    others = needs[~np.eye(len(needs), dtype=bool)]
    if others.size:
        mean, largest = 100 * others.mean(), 100 * others.max()
        yield f"share of a peer's rows that a part needs: {mean:.1f} % (largest {largest:.1f} %)"
    if costs["n_parts"] <= _SHOWN:
        yield "edges by part (rows) from each part (columns); below, % of that part's rows needed"
        yield from (" ".join(f"{count:>12,}" for count in row) for row in costs["tiles"])
        yield from (" ".join(f"{100 * share:>12.1f}" for share in row) for row in costs["needs"])
    if costs["stage_imbalance"] > UNEVEN:
        yield (f"mode broadcast would take about {costs['stage_imbalance']:.1f} times as long as on even parts: "
               f"--method random evens its rounds out; mode sar does not mind")


def _count_sources(dataset, source_type, tiles, chunk_size, step):
    """Count the edges whose sources have the type `source_type`. Return a dict with the entries "edges", "cut" (edges between parts) and
    "halo_rows", each with a number for each part of destinations. With `tiles`, "tiles" and "halo_tiles" count for each pair of parts.
    `chunk_size` edges are read at a time, and `step` (or None) receives progress.
    """
    tally = Tally(np.asarray(dataset.nodes[source_type].offsets), tiles)
    relations = [table for relation, table in dataset.edges.items() if relation[0] == source_type]
    for part in range(dataset.n_parts):
        for table in relations:
            for sources in _sources(table, dataset.nodes[table.relation[2]].offsets, part, chunk_size):
                tally.add(part, sources)
                if step is not None:
                    step.add(sources.size)
        tally.close(part)
    names = ("edges", "cut", "halo_rows", *(("tiles", "halo_tiles") if tiles else ()))
    return {source_type: getattr(tally, source_type) for source_type in names}


def _sources(table, offsets, part, chunk_size):
    """Yield the sources of a relation's edges into the rows of part number `part`, in pieces of about `chunk_size` edges. `offsets`
    has the first row of each part.
    """
    first, last = (int(copied(table.indptr, row, row + 1)[0]) for row in offsets[part : part + 2])
    for at in range(first, last, chunk_size):
        yield copied(table.indices, at, min(at + chunk_size, last))


def _measured(dataset, counts):
    types = {name: np.diff(table.offsets) for name, table in dataset.nodes.items()}
    nodes, train = sum(types.values()), np.zeros(dataset.n_parts, np.int64)
    for at, piece in pieces(dataset.train):
        train += rows_by_part(np.asarray(dataset.offsets), np.flatnonzero(piece) + at)
    costs = measures(nodes=nodes, edges=counts["edges"], train_nodes=train, halo_rows=counts["halo_rows"],
                     cut_edges=int(counts["cut"].sum()))
    if len(types) > 1:
        costs["types"] = {name: of_part.tolist() for name, of_part in types.items()}
    if "tiles" not in counts:
        return costs
    share = counts["edges"].sum() / dataset.n_parts
    stages = float(counts["tiles"].max(axis=0).sum() / share) if share else 1.0
    return {**costs, "tiles": counts["tiles"].tolist(), "needs": (counts["halo_tiles"] / np.maximum(nodes, 1)).tolist(),
            "row_imbalance": costs["imbalance"]["edges"], "stage_imbalance": stages}

"""Raw folders of the Open Graph Benchmark's graph data sets, ogbg-*, of csv.gz files."""

import numpy as np

from sarlite.data.ogb import MAX_GRAPHS, read_csv, split_folder, split_masks
from sarlite.data.raw import check_nodes, existing, read_labels
from sarlite.data.tu import set_of_graphs
from sarlite.errors import DataError
from sarlite.graph.relational import Relational
from sarlite.graph.validation import first_true
from sarlite.types import Path as AnyPath


def read(path: AnyPath, classes: int | None = None, task: str | None = None) -> Relational:
    """Read a folder with `raw/`, which has graph-label.csv.gz, and `split/`.

    Returns
    -------
    Relational
        As of `tu.read`, with the split of the folder. Features are the numbers of node-feat.csv.gz and
        edge-feat.csv.gz as they stand; edges lead both ways, as OGB's own loader has them. An edge whose end is no node
        of its graph is refused.
    """
    folder = existing(path)
    raw, split = folder / "raw", split_folder(folder)
    nodes, edges = (read_csv(raw / f"num-{what}-list.csv.gz", "count", np.int64, columns=1, most=MAX_GRAPHS)[:, 0]
                    for what in ("node", "edge"))
    if len(nodes) != len(edges) or min(nodes.min(initial=0), edges.min(initial=0)) < 0:
        raise DataError(f"{raw / 'num-edge-list.csv.gz'}: {len(edges)} counts, expected {len(nodes)}, of 0 or more")
    n, n_edges = sum(nodes.tolist()), sum(edges.tolist())
    check_nodes(n, 0, raw / "num-node-list.csv.gz")
    ends = read_csv(raw / "edge.csv.gz", "edges", np.int64, n_rows=n_edges, columns=2)
    of_edge = np.repeat(np.arange(len(edges)), edges)
    if (at := first_true((ends < 0) | (ends >= nodes[of_edge, None]))) is not None:
        graph = of_edge[at[0]]
        raise DataError(f"{raw / 'edge.csv.gz'}: edges: row {at[0]} has node {ends[at]}, outside 0 <= id < "
                        f"{nodes[graph]}, the nodes of graph {graph}")
    src, dst = (ends + (np.cumsum(nodes) - nodes)[of_edge, None]).T
    x, values = (read_csv(file, "features", np.float32, n_rows=rows) if file.exists() else None for file, rows in
                 ((raw / "node-feat.csv.gz", n), (raw / "edge-feat.csv.gz", n_edges)))
    file = raw / "graph-label.csv.gz"
    labels, n_outputs = read_labels(read_csv(file, "labels", np.float64, n_rows=len(nodes)), file, classes, task)
    values = None if values is None else np.concatenate([values, values])
    return set_of_graphs(np.repeat(np.arange(len(nodes)), nodes), len(nodes), np.concatenate([src, dst]),
                         np.concatenate([dst, src]), x, values, labels, split_masks(split, len(nodes)), n_outputs, task)

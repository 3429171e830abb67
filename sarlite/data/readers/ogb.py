"""Readers of raw folders of the Open Graph Benchmark (OGB).

The readers know ogbn-arxiv, ogbn-products and ogbn-proteins (csv.gz), ogbn-papers100M (npz), ogbl-* and ogbg-*.
"""

from itertools import combinations
from pathlib import Path

import numpy as np

from sarlite.data import pickled
from sarlite.data.graph_tables import SPLITS
from sarlite.data.raw import RawGraph, check_nodes, existing, mask, one_hot, read_labels
from sarlite.data.readers import npz
from sarlite.data.readers.tu import set_of_graphs
from sarlite.data.tables.number_files import read_csv
from sarlite.errors import ConfigError, DataError
from sarlite.structure.relational_generator import Relational
from sarlite.structure.validation import first_true
from sarlite.types import Path as AnyPath

MAX_GRAPHS = 1 << 20  # most lines of num-node-list.csv.gz and num-edge-list.csv.gz: a line per graph
_SPECIES = "node_species.csv.gz"
_INVERSE = ("sales_ranking",)  # the split of ogbn-products, to which OGB's own loader adds the inverse edges


def read(path, classes=None, task=None, features=None):
    """Return the graph in `path`, a folder of OGB, with labelled nodes (ogbn-*) or links (ogbl-*). `classes` is the number of classes
    (None: from the labels), `task` the meaning of the labels, and `features`, "edges", "species" or "both", selects node features of
    ogbn-proteins.

    A folder with a file `split/KIND/train.pt` is a data set of links, such as ogbl-collab. Its nodes have no labels. Without
    `node-feat.csv.gz` its nodes have a single feature, 1. `raw/` has the training edges. `pairs` reads the links of a split.

    Parameters
    ----------
    path : path
    classes : int, optional
        Number of classes; by default the largest label + 1.
    task : {"classify", "multilabel", "regress"}, optional
        By default "multilabel" for ogbn-proteins, else "classify".
    features : {"edges", "species", "both"}, optional
        Node features of ogbn-proteins, which stores none. "edges" (the default) is the mean of the features of a node's
        edges, as in OGB's examples. "species" is the node's species, one-hot by ascending number. "both" has both side by
        side.

    Returns
    -------
    RawGraph
        Directed as stored, with two exceptions that are undirected, as in OGB's own loader: ogbn-products (recognized by
        its split, sales_ranking), and links whose splits are pairs without a direction (ogbl-collab, -ppa and -ddi).
        Unlabelled nodes (NaN in papers100M) get the label -1.

    Raises
    ------
    ConfigError
        If `features` is passed for another data set than ogbn-proteins, or if an option is passed for links.
    DataError
        If a file is missing or damaged, or if files disagree.

    Notes
    -----
    The features of ogbn-papers100M stay memory-mapped if `data.npz` is not compressed. Its edges are sorted in memory, about
    40 bytes per edge.
    """
    path = existing(path)
    of_links = [*(path / "split").glob("*/train.pt")]
    if len(of_links) == 1:
        return _of_links(path, of_links[0], {"classes": classes, "task": task, "features": features})
    raw, split_kind = path / "raw", split_folder(path)
    packed, proteins, values = (raw / "data.npz").is_file(), (raw / _SPECIES).is_file(), None
    if features is not None and not proteins:
        raise ConfigError(f"features: {features!r} is of ogbn-proteins; {path} has features of its own")
    if proteins:
        src, dst, features, labels, values = _proteins(raw, features or "edges")
        task = task or "multilabel"
    else:
        src, dst, features, labels = _from_npz(raw) if packed else _from_csv(raw)
    split = split_masks(split_kind, len(labels))
    undirected = split_kind.name in _INVERSE
    labels, n_classes = read_labels(labels, raw / ("node-label.npz" if packed else "node-label.csv.gz"), classes, task)
    edges_in = raw / ("data.npz" if packed else "edge.csv.gz")
    return RawGraph(src, dst, features, labels, *split, n_classes=n_classes, name=_name(path), undirected=undirected,
                    edges_in=edges_in, task=task or "classify", edge_features=values)


def _of_links(path, train_file, options):
    """Return the graph of the training edges of `path`, a data set for link prediction (ogbl-*) with the file `train_file`, without
    labels and splits. The `options` do not apply and must all be None.
    """
    option = next((name for name, value in options.items() if value is not None), None)
    if option:
        raise ConfigError(f"{option}: {path} is a data set of links, whose nodes have no labels")
    raw = path / "raw"
    n_nodes, edges = _nodes_and_edges(raw)
    file = raw / "node-feat.csv.gz"
    has_features = file.is_file()
    features = read_csv(file, "features", np.float32, n_rows=n_nodes) if has_features else np.ones((n_nodes, 1), np.float32)
    none = np.zeros(n_nodes, bool)
    undirected = "edge" in pickled.load_saved(train_file)
    return RawGraph(edges[:, 0], edges[:, 1], features, np.full(n_nodes, -1), none, none, none, n_classes=0,
                    name=_name(path), undirected=undirected, edges_in=raw / "edge.csv.gz")


def _name(path):
    """Return the name of the data set in the folder `path`, such as "ogbn-arxiv": the folder's name with hyphens for underscores."""
    return path.resolve().name.replace("_", "-")


def read_graphs(path: AnyPath, classes: int | None = None, task: str | None = None) -> Relational:
    """Return the set of graphs in `path`, a folder of OGB (ogbg-*), as one heterogeneous graph with the node types "node" and "graph".
    `classes` is the number of classes (None: from the labels); `task` is the kind of the graphs' labels, such as "regress" (None:
    "classify").

    Parameters
    ----------
    path : path
    classes : int, optional
        Number of classes; by default the largest label + 1.
    task : {"classify", "multilabel", "regress"}, optional
        By default "classify".

    Returns
    -------
    Relational
        A set of graphs, as `tu.read` returns it, with the stored split. Features are the numbers of node-feat.csv.gz and
        edge-feat.csv.gz as stored. Each stored edge is added in both directions, as in OGB's own loader.

    Raises
    ------
    DataError
        If a file is missing or damaged, files disagree in length, or an edge has an end that is no node of its graph.
    """
    folder = existing(path)
    raw, split = folder / "raw", split_folder(folder)
    nodes, edges = (_counts(raw / f"num-{what}-list.csv.gz") for what in ("node", "edge"))
    if len(nodes) != len(edges):
        raise DataError(f"{raw / 'num-edge-list.csv.gz'}: {len(edges)} counts, expected {len(nodes)}")
    n, ends = _nodes_and_edges(raw)
    of_edge = np.repeat(np.arange(len(edges)), edges)
    if (at := first_true((ends < 0) | (ends >= nodes[of_edge, None]))) is not None:
        graph = of_edge[at[0]]
        raise DataError(f"{raw / 'edge.csv.gz'}: edges: row {at[0]} has node {ends[at]}, outside 0 <= id < "
                        f"{nodes[graph]}, the nodes of graph {graph}")
    src, dst = (ends + (np.cumsum(nodes) - nodes)[of_edge, None]).T
    x, values = (read_csv(file, "features", np.float32, n_rows=rows) if file.exists() else None for file, rows in
                 ((raw / "node-feat.csv.gz", n), (raw / "edge-feat.csv.gz", len(ends))))
    file = raw / "graph-label.csv.gz"
    labels, n_outputs = read_labels(read_csv(file, "labels", np.float64, n_rows=len(nodes)), file, classes, task)
    values = None if values is None else np.concatenate([values, values])
    return set_of_graphs(np.repeat(np.arange(len(nodes)), nodes), len(nodes), np.concatenate([src, dst]),
                         np.concatenate([dst, src]), x, values, labels, split_masks(split, len(nodes)), n_outputs, task)


def pairs(path):
    """Return (links, negative links, number of negatives per link) of one split of a data set for link prediction (ogbl-*), from
    its file `path`.

    Parameters
    ----------
    path : path
        `split/KIND/valid.pt`, or the file of another split.

    Returns
    -------
    links : (n, 2) integers
        The member `edge`, or the members `source_node` and `target_node` side by side.
    negatives : (m, 2) integers, or None
        The member `edge_neg`, which all links are ranked against. With the member `target_node_neg`, (n, k): k pairs for
        each link, link after link.
    per_link : int
        k; 0 with `edge_neg`.

    Raises
    ------
    DataError
        If the file cannot be read, or lacks these arrays.
    """
    arrays = pickled.load_saved(Path(path))
    links, negatives, per_link = _links_of(path, arrays), arrays.get("edge_neg"), 0
    if "target_node_neg" in arrays:
        tails = arrays["target_node_neg"]
        if tails.ndim != 2 or len(tails) != len(links):
            raise DataError(f"{path}: links: target_node_neg has shape {tails.shape}, expected a row for each of {len(links)} links")
        per_link = tails.shape[1]
        negatives = np.stack([np.repeat(links[:, 0], per_link), tails.reshape(-1)], 1)
    if negatives is not None:
        _check_pairs(path, "negatives", negatives)
    return links, negatives, per_link


def _links_of(path, arrays):
    """Return the links of a split, (n, 2) integers, from `arrays`, {name: array} of its file `path`."""
    if "edge" in arrays:
        links = arrays["edge"]
    elif {"source_node", "target_node"} <= arrays.keys():
        ends = arrays["source_node"], arrays["target_node"]
        if ends[0].ndim != 1 or ends[0].shape != ends[1].shape:
            raise DataError(f"{path}: links: source_node {ends[0].shape} and target_node {ends[1].shape} are not pairs")
        links = np.stack(ends, 1)
    else:
        raise DataError(f"{path}: links: expected edge, or source_node and target_node; the file has {', '.join(map(str, arrays))}")
    _check_pairs(path, "links", links)
    return links


def _check_pairs(path, name, pairs_read):
    if pairs_read.ndim != 2 or pairs_read.shape[1] != 2 or pairs_read.dtype.kind not in "iu":
        raise DataError(f"{path}: {name}: expected pairs of whole numbers, found {pairs_read.dtype} {pairs_read.shape}")


def split_folder(path, inside=""):
    """Return the folder `split/KIND/INSIDE` below `path`, where KIND is the only folder that has the file `INSIDE/train.csv.gz`."""
    split = path / "split"
    folders = sorted(entry for entry in split.glob("*") if (entry / inside / "train.csv.gz").is_file())
    if len(folders) != 1:
        names, file = ", ".join(entry.name for entry in folders) or "none", f"{inside}/train.csv.gz".lstrip("/")
        raise DataError(f"{split}: split: expected one folder with {file}, found {names}")
    return folders[0] / inside


def split_masks(folder, n):
    """Return the train, val and test masks, (n,) bool each, from three files of node ids in `folder`. The splits may not overlap."""
    where = {name: folder / f"{file}.csv.gz" for name, file in zip(SPLITS, ("train", "valid", "test"))}
    masks = []
    for name, file in where.items():
        ids = read_csv(file, f"{name} split", np.int64, columns=1, most=n)
        masks.append(mask(n, f"{file}: {name} split", [ids[:, 0]]))
    for (one, a), (other, b) in combinations(zip(where, masks), 2):
        if (node := first_true(a & b)) is not None:
            raise DataError(f"{where[other]}: node {node} is in the {one} split too")
    return masks


def _nodes_and_edges(raw):
    """Return (number of nodes, edges as (n_edges, 2) int64) from the csv.gz files in the folder `raw`."""
    n_nodes, n_edges = (total(raw / f"num-{what}-list.csv.gz") for what in ("node", "edge"))
    check_nodes(n_nodes, 0, raw / "num-node-list.csv.gz")
    return n_nodes, read_csv(raw / "edge.csv.gz", "edges", np.int64, n_rows=n_edges, columns=2)


def _from_csv(raw):
    """Return sources, destinations, features and labels from the csv.gz files in the folder `raw`."""
    n_nodes, edges = _nodes_and_edges(raw)
    features = read_csv(raw / "node-feat.csv.gz", "features", np.float32, n_rows=n_nodes)
    labels = read_csv(raw / "node-label.csv.gz", "labels", np.float64, n_rows=n_nodes)
    return edges[:, 0], edges[:, 1], features, labels


def _proteins(raw, feature_kind):
    """Return (sources, destinations, node features, labels, edge features) of ogbn-proteins in the folder `raw`, with each edge in
    both directions. `feature_kind`, such as "species", selects node features.
    """
    if feature_kind not in ("edges", "species", "both"):
        raise ConfigError(f"features: {feature_kind!r} is not one of edges, species, both")
    n_nodes, edges = _nodes_and_edges(raw)
    if (at := first_true((edges < 0) | (edges >= n_nodes))) is not None:
        raise DataError(f"{raw / 'edge.csv.gz'}: edges: row {at[0]} has node {edges[at]}, outside 0 <= id < {n_nodes}")
    values = read_csv(raw / "edge-feat.csv.gz", "edge features", np.float32, n_rows=len(edges))
    labels = read_csv(raw / "node-label.csv.gz", "labels", np.float32, n_rows=n_nodes)
    species = read_csv(raw / _SPECIES, "species", np.int64, n_rows=n_nodes, columns=1)[:, 0]
    src, dst = np.concatenate([edges[:, 0], edges[:, 1]]), np.concatenate([edges[:, 1], edges[:, 0]])
    values = np.concatenate([values, values])
    columns = [_mean_of_edges(dst, values, n_nodes)] if feature_kind != "species" else []
    columns += [one_hot(species, f"{raw / _SPECIES}: species of nodes")] if feature_kind != "edges" else []
    return src, dst, np.concatenate(columns, 1), labels, values


def _mean_of_edges(dst, values, n_nodes):
    """Return the mean of `values`, rows of edges, over the in-edges of each node, float32, summed in float64; 0 for a node without
    in-edges. `dst` has the destination of each edge.
    """
    degrees = np.maximum(np.bincount(dst, minlength=n_nodes), 1)
    return np.stack([np.bincount(dst, column, n_nodes) / degrees for column in values.T], 1).astype(np.float32)


def _from_npz(raw):
    """Return sources, destinations, features and labels from data.npz and node-label.npz in the folder `raw`."""
    file = raw / "data.npz"
    edges, features = npz.member(file, "edge_index"), npz.member(file, "node_feat")
    counts = npz.member(file, "num_nodes_list")
    if counts.dtype.kind not in "iu":
        raise DataError(f"{file}: num_nodes_list: expected whole numbers, found dtype {counts.dtype}")
    n_nodes = int(counts.sum())
    labels = npz.member(raw / "node-label.npz", "node_label")
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise DataError(f"{file}: edge_index: expected shape (2, edges), found {edges.shape}")
    if features.ndim != 2 or features.shape[0] != n_nodes:
        raise DataError(f"{file}: node_feat: expected {n_nodes} rows, found shape {features.shape}")
    if labels.ndim == 0 or len(labels) != n_nodes:
        raise DataError(f"{raw / 'node-label.npz'}: node_label: expected {n_nodes} rows, found shape {labels.shape}")
    return edges[0], edges[1], features, labels


def total(path, most=MAX_GRAPHS):
    """Return the sum of the integers in the file `path`, which has one line per graph with its number of nodes or edges. Raise a DataError
    if there are more than `most` lines.
    """
    return sum(_counts(path, most).tolist())


def _counts(path, most=MAX_GRAPHS):
    counts = read_csv(path, "count", np.int64, columns=1, most=most)[:, 0]
    if counts.min(initial=0) < 0:
        raise DataError(f"{path}: count: {counts.min()} is negative")
    return counts

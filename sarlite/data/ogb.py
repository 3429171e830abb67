"""The raw folders of the Open Graph Benchmark: ogbn-arxiv and ogbn-products (csv.gz), ogbn-papers100M (npz)."""

import gzip

import numpy as np

from sarlite.data import npz, table
from sarlite.data.raw import RawGraph, check_nodes, check_room, existing, masks, read_labels
from sarlite.errors import DataError, reading, regular

_MAX_GRAPHS = 1 << 20  # rows of a list of counts
_INVERSE = ("sales_ranking",)  # OGB's own loader adds the inverse edges for ogbn-products, whose split this is


def read(path, classes=None, task=None):
    """Read an OGB node data set from its folder, the one with `raw/` and `split/`.

    Parameters
    ----------
    path : path
    classes : int, optional
        By default the largest label + 1.
    task : str, optional
        What the labels are, as of `raw.read_labels`.

    Returns
    -------
    RawGraph
        Directed as stored, but ogbn-products (known by its split, sales_ranking) undirected, as OGB's own loader has it.
        Unlabelled nodes (NaN in papers100M) get -1.

    Raises
    ------
    DataError
        A file is missing or damaged, or files disagree in length.

    Notes
    -----
    A csv is parsed line by line, some million numbers a second. ogbn-papers100M's features stay memory-mapped where
    `data.npz` is not compressed; its edges are sorted in memory (about 40 bytes an edge).
    """
    path = existing(path)
    raw, split_kind = path / "raw", _split_directory(path)
    packed = (raw / "data.npz").is_file()
    src, dst, features, labels = _from_npz(raw) if packed else _from_csv(raw)
    where = {"train": split_kind / "train.csv.gz", "val": split_kind / "valid.csv.gz", "test": split_kind / "test.csv.gz"}
    ids = {name: _read_csv(file, f"{name} split", np.int64, columns=1, most=len(labels))[:, 0] for name, file in where.items()}
    split = masks(len(labels), where, **ids)
    name = path.resolve().name.replace("_", "-")
    undirected = split_kind.name in _INVERSE
    labels, n_classes = read_labels(labels, raw / ("node-label.npz" if packed else "node-label.csv.gz"), classes, task)
    edges_in = raw / ("data.npz" if packed else "edge.csv.gz")
    return RawGraph(src, dst, features, labels, *split, n_classes=n_classes, name=name, undirected=undirected, edges_in=edges_in,
                    task=task or "classify")


def _split_directory(path):
    found = sorted(entry for entry in (path / "split").glob("*") if (entry / "train.csv.gz").is_file())
    if len(found) != 1:
        names = ", ".join(entry.name for entry in found) or "none"
        raise DataError(f"{path / 'split'}: split: expected one folder with train.csv.gz, found {names}")
    return found[0]


def _from_csv(raw):
    n_nodes, n_edges = (_total(raw / f"num-{what}-list.csv.gz") for what in ("node", "edge"))
    check_nodes(n_nodes, 0, raw / "num-node-list.csv.gz")
    edges = _read_csv(raw / "edge.csv.gz", "edges", np.int64, n_rows=n_edges, columns=2)
    features = _read_csv(raw / "node-feat.csv.gz", "features", np.float32, n_rows=n_nodes)
    labels = _read_csv(raw / "node-label.csv.gz", "labels", np.float64, n_rows=n_nodes)
    return edges[:, 0], edges[:, 1], features, labels


def _from_npz(raw):
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


def _total(path):
    counts = _read_csv(path, "count", np.int64, columns=1, most=_MAX_GRAPHS)
    if counts.min(initial=0) < 0:
        raise DataError(f"{path}: count: {counts.min()} is negative")
    return sum(counts[:, 0].tolist())


def _read_csv(path, field, dtype, n_rows=None, columns=None, most=None):
    """Read a .csv.gz of numbers without a header, in pieces, into one array of `n_rows`, or of as many as there are up to `most`."""
    pieces, n_read, out = [], 0, None
    with reading(path, field), gzip.open(regular(path), "rt", encoding="ascii") as file:
        for piece in table.batches((line for line in table.lines(file) if line.strip()), dtype, ","):
            if columns is not None and piece.shape[1] != columns:
                raise DataError(f"{path}: {field}: {piece.shape[1]} columns, expected {columns}")
            if n_rows is not None and out is None:
                check_room(n_rows * piece.shape[1] * piece.itemsize, f"{path}: {field}")
                out = np.empty((n_rows, piece.shape[1]), dtype)
            n_read += piece.shape[0]
            if n_read > (most if n_rows is None else n_rows) or (out is not None and piece.shape[1] != out.shape[1]):
                expected = f"{most} rows that may be" if n_rows is None else f"{n_rows} rows of {out.shape[1]} expected"
                raise DataError(f"{path}: {field}: more or wider than the {expected}")
            if out is None:
                pieces.append(piece)
            else:
                out[n_read - piece.shape[0] : n_read] = piece
        if n_rows is not None and n_read != n_rows:
            raise DataError(f"{path}: {field}: {n_read} rows, expected {n_rows}")
        if out is not None:
            return out
        return np.concatenate(pieces) if pieces else np.empty((n_rows or 0, columns or 1), dtype)

"""Reader of the files of ROC (a GNN system): a graph in Lux format, features, labels and splits."""

from pathlib import Path

import numpy as np

from sarlite.data import binary, textfile
from sarlite.data.raw import RawGraph, check_indptr, check_nodes, existing, read_labels
from sarlite.errors import DataError, reading, regular
from sarlite.structure.edges import destinations

_MASKS = ("None", "Train", "Val", "Test")


def read(path, classes=None):
    """Return the graph, features, labels and splits in ROC's files `path`.add_self_edge.lux, .feats.bin or .feats.csv, .label and
    .mask. `classes` is the number of classes (None: from the labels).

    Parameters
    ----------
    path : path
        The prefix.
    classes : int, optional
        Number of classes; by default the largest label + 1.

    Returns
    -------
    RawGraph
        Directed as stored. ROC's own graphs contain both directions of each edge, and a self loop at each node.

    Raises
    ------
    DataError
        If a file is missing or damaged, or if files disagree in the number of nodes or of features.
    """
    path = Path(path)
    existing(path.parent)
    graph, label, mask = (path.with_name(path.name + end) for end in (".add_self_edge.lux", ".label", ".mask"))
    indptr, src = _lux(graph)
    n_nodes = indptr.size - 1
    features = _features(path, n_nodes)
    labels, codes = textfile.read(label, "labels", np.int64), _mask_codes(mask)
    for file, field, array in ((label, "labels", labels), (mask, "mask", codes)):
        if len(array) != n_nodes:
            raise DataError(f"{file}: {field}: {len(array)} lines, but {graph} has {n_nodes} nodes")
    labels, n_classes = read_labels(labels, label, classes)
    split = (codes == _MASKS.index(name) for name in ("Train", "Val", "Test"))
    return RawGraph(src, destinations(indptr), features, labels, *split, n_classes=n_classes, name=path.name, edges_in=graph)


def _mask_codes(path):
    """Return the code of each node's split, (n_nodes,) int8: 0 to 3 for the words None, Train, Val and Test in the lines of the
    file `path`.
    """
    with reading(path, "mask"), textfile.opened(path) as file:
        words = [line.strip() for line in textfile.lines(file) if line.strip()]
    for at, word in enumerate(words):
        if word not in _MASKS:
            raise DataError(f"{path}: mask: entry {at} is {word!r}, expected one of {', '.join(_MASKS)}")
    return np.array([_MASKS.index(word) for word in words], np.int8)


def _lux(path):
    """Return (indptr, memory-mapped sources) of the in-edges in a Lux file, which holds: numbers of nodes (uint32) and edges
    (uint64), the end of each node's in-edges (uint64), the sources (uint32).
    """
    head, offset = binary.header(path, ("nodes", "<u4"), ("edges", "<u8"))
    check_nodes(head["nodes"], 0, f"{path}: nodes")
    ends, sources = binary.arrays(path, offset, ("ends", "<u8", (head["nodes"],)), ("sources", "<u4", (head["edges"],)))
    indptr = np.concatenate((np.zeros(1, np.uint64), ends))
    return check_indptr(indptr, head["nodes"], head["edges"], f"{path}: ends"), sources


def _features(path, n_nodes):
    """Return the features, (n_nodes, n_features), from `path`.feats.bin (float32 without a header) or, if there is none, from
    `path`.feats.csv. If both exist, the first row of the csv file gives the number of columns.
    """
    packed, text = (path.with_name(path.name + end) for end in (".feats.bin", ".feats.csv"))
    if packed.exists():
        with reading(packed, "features"):
            size, row = binary.file_size(packed), 4 * max(n_nodes, 1)
            width = size // row
            csv_width = _width(text) if text.exists() else width
            if size != row * csv_width:
                expected = f"a multiple of {row}"
                if csv_width != width:
                    expected = f"{row * csv_width} for {n_nodes} nodes as wide as {text}'s"
                raise DataError(f"{packed}: features: {size} bytes, expected {expected}")
            return binary.arrays(packed, 0, ("features", "<f4", (n_nodes, width)))[0]
    features = textfile.read(text, "features", np.float32)
    if len(features) != n_nodes:
        raise DataError(f"{text}: features: {len(features)} rows, expected {n_nodes}, one per node")
    return features


def _width(path):
    """Return the number of columns in the first line of a csv file; 0 for an empty line."""
    with reading(path, "features"), regular(path).open(encoding="utf-8-sig") as file:
        line = next(textfile.lines(file), "")
        return line.count(",") + 1 if line.strip() else 0

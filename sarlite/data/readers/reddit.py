"""Reader of GraphSAGE's Reddit as DGL publishes it: an archive of node arrays, and an archive of a SciPy matrix."""


from sarlite.data.raw import RawGraph, check_nodes, existing, read_labels
from sarlite.data.readers import npz
from sarlite.errors import DataError
from sarlite.structure.validation import first_true

_GRAPHS = ("reddit_graph.npz", "reddit_self_loop_graph.npz")
_TYPES = ("none", "train", "val", "test")


def read(path, classes=None):
    """Return the Reddit graph from reddit_data.npz and reddit_graph.npz in the folder `path`. `classes` is the number of classes
    (None: from the labels).

    If reddit_graph.npz does not exist, reddit_self_loop_graph.npz is read in its place.

    Parameters
    ----------
    path : path
        The folder.
    classes : int, optional
        Number of classes; by default the largest label + 1.

    Returns
    -------
    RawGraph
        Directed, from row to column, as stored. Reddit's own graph is symmetric.

    Raises
    ------
    DataError
        If an archive or a member is missing or damaged, or if members disagree in the number of nodes.
    """
    path = existing(path)
    graph = path / next((name for name in _GRAPHS if (path / name).exists()), _GRAPHS[0])
    data = path / "reddit_data.npz"
    features, types = npz.member(data, "feature"), npz.member(data, "node_types")
    if features.ndim != 2:
        raise DataError(f"{data}: feature: expected a matrix of numbers, found shape {features.shape}")
    n_nodes = len(features)
    check_nodes(n_nodes, 0, f"{data}: feature")
    labels, ids = npz.member(data, "label"), npz.member(data, "node_ids", optional=True)
    for name, array in (("node_types", types), ("label", labels), ("node_ids", ids)):
        if array is not None and (array.ndim == 0 or len(array) != n_nodes):
            raise DataError(f"{data}: {name}: shape {array.shape}, but feature has {n_nodes} rows")
    labels, n_classes = read_labels(labels, data, classes)
    src, dst = (npz.member(graph, name) for name in ("row", "col"))
    if dst.shape != src.shape:
        raise DataError(f"{graph}: col: shape {dst.shape}, but row has {src.shape}")
    n_graph = npz.square(npz.member(graph, "shape"), f"{graph}: shape")
    if n_graph != n_nodes:
        raise DataError(f"{graph}: shape: {n_graph} nodes, but {data} has {n_nodes}")
    return RawGraph(src, dst, features, labels, *_split(types, data), n_classes=n_classes, name="reddit",
                    edges_in=graph, edge_weight=npz.edge_weight(graph, "data", src.size))


def _split(types, path):
    """Return the train, val and test masks from `types`, the array `node_types` of codes: 0 none, 1 train, 2 val, 3 test."""
    if types.ndim != 1 or types.dtype.kind not in "iu":
        raise DataError(f"{path}: node_types: expected one whole number per node, found shape {types.shape}, dtype {types.dtype}")
    if (at := first_true((types < 0) | (types >= len(_TYPES)))) is not None:
        raise DataError(f"{path}: node_types: node {at} has {types[at]}, expected 1 (train), 2 (val), 3 (test) or 0 (none)")
    return tuple(types == _TYPES.index(name) for name in ("train", "val", "test"))

"""Edges in a table or a list of pairs, and their nodes: in a table by id, or in files of their own by number."""

from pathlib import Path

import numpy as np

from sarlite.data import textfile
from sarlite.data.cells import is_number
from sarlite.data.columns import table
from sarlite.data.edge_columns import EdgeColumns
from sarlite.data.graph_tables import SPLITS
from sarlite.data.mapped import fresh
from sarlite.data.mapped import pieces as mapped_pieces
from sarlite.data.names import lines
from sarlite.data.node_columns import NodeColumns
from sarlite.data.npyfile import load as load_npy
from sarlite.data.numbering import Numbering
from sarlite.data.raw import existing, masks
from sarlite.data.streams import Streams, drawn, spooled_labels, unlabelled
from sarlite.errors import ConfigError, DataError, reading
from sarlite.structure import validation

NAMES = ("none", "train", "val", "test")
_PIECE = 1 << 20  # edges read at a time
_SPARSE = 1000  # nodes an edge end above which a largest id is a typing error rather than a number of nodes
_OF_TABLE = ("id", "train_mask", "val_mask", "test_mask")
_OF_FILES = ("train_ids", "val_ids", "test_ids", "names")


def streams(path, workspace, finish, graph=None, **options):
    """Give the `Streams` of edges in a table or a list of pairs.

    Parameters
    ----------
    path : path, or table
        As `columns.table` takes it. An edge goes from the column `src` to the column `dst`, by default from the first
        to the second.
    workspace : Workspace
    finish : callable
        Of each piece of the features.
    graph : callable, optional
        Of another format: graph(path) returns src, dst, the number of nodes and edge weights, or None instead of these.
    **options
        Those that docs/data.md and docs/tables.md tell of `edges:`, with `nodes` a number, a file or a table.
        `node_fill` and `node_header` are for the table of the nodes, if it is read in another way.

    Raises
    ------
    DataError
        A file cannot be read, or files disagree in the number of nodes, or in .npy two edges might be read either way.
    ConfigError
        A split without `labels`, or two of them; options that do not go together.
    """
    path = existing(path) if isinstance(path, str | Path) else path
    nodes, features = options.get("nodes"), options.get("features")
    if graph is None and nodes is not None and not (isinstance(nodes, str) and nodes.lstrip("-").isdecimal()):
        _refuse(options, _OF_FILES, "does not go with a table of the nodes, whose columns say it")
        return _by_id(path, workspace, finish, options)
    _refuse(options, _OF_TABLE, "needs nodes=FILE, a table of the nodes")
    if graph is None and features is not None and not Path(features).exists() and not Path(features).suffix:
        if options.get("edge_features") is not None:
            raise ConfigError(f"features={features}: no such file, and no nodes=FILE whose columns it could name")
        options = {**options, "features": None, "edge_features": features}
    return _by_number(path, workspace, finish, graph, **options)


def _refuse(options, names, why):
    odd = next((name for name in names if options.get(name) is not None), None)
    if odd:
        raise ConfigError(f"{odd}: {why}")


def _by_id(path, workspace, finish, options):
    """Nodes of a table."""
    own = {name: options.get(f"node_{name}", options.get(name)) for name in ("fill", "header")}
    listed, numbering = read_nodes(options["nodes"], {**options, **own}, workspace, finish=finish)
    edges, numbering = from_table(path, workspace, options, numbering)

    def rows(n_nodes):
        found = {} if listed.labels else unlabelled(n_nodes, workspace)
        if not listed.features:
            found["features"] = map_ones(n_nodes, workspace, finish)
        return found | listed.rows(workspace) | {"names": numbering.mapping}

    return Streams(edges.pieces(), lambda largest, n_edges: listed.n, rows, _stem(path), edges.source.where,
                   options.get("task") or "classify", edges.columns, edges.feature_names)


def _word(value):
    return None if value is None else str(value)


def _stem(path):
    return path.stem if isinstance(path, Path) else "tables"


def read_nodes(source, options, workspace, where="nodes", finish=lambda rows: rows):
    """Return the `NodeColumns` of a table of nodes, by the options of `streams`, which were read; and the `Numbering`
    of their ids.
    """
    names = ("id", "features", "labels", "split", *(f"{name}_mask" for name in SPLITS))
    id_, features, labels, split, *masks = (options.get(name) for name in names)
    features, labels = columns(features), columns(labels) or ()
    found = table(source, options.get("header"), [id_, *(features or ()), *labels, split, *masks], where)
    drawn = {name: options[name] for name in ("train", "val", "seed") if name in options}
    listed = NodeColumns(found, id_, features, labels, split, dict(zip(SPLITS, masks)), _word(options.get("fill")),
                         options.get("task"), options.get("classes"), **drawn)
    numbering = Numbering(workspace.within("names"), listed.listed_in)
    for ids_ in listed.read(workspace, finish):
        numbering.list(ids_)
    return listed, numbering


def listed_edges(source, options, header=None, where="table"):
    """Return the `EdgeColumns` of a table of edges, by the options of `streams`."""
    src, dst, weight, features = (options.get(name) for name in ("src", "dst", "weight", "edge_features"))
    features = columns(features) or ()
    found = table(source, header, [src, dst, weight, *features], where)
    return EdgeColumns(found, src, dst, weight, features, _word(options.get("fill")))


def columns(text):
    """Return the columns that a+b names; None of None."""
    return None if text is None else text.split("+") if isinstance(text, str) else text


def map_ones(n_nodes, workspace, finish):
    """Return features of one column of ones."""
    return workspace.array("ones", (finish(piece) for piece in _ones(n_nodes, workspace.at_once())))


def _ones(n, at_once):
    for at in range(0, max(n, 1), at_once):
        yield np.ones((min(at_once, n - at), 1), np.float32)


def from_table(path, workspace, options, numbering=None):
    """Return the `EdgeColumns` of a table, which it has read, and the numbering of its nodes, None of numbers."""
    names, header = options.get("names"), options.get("header")
    if names and header is None and options.get("src") is None:
        header = False
    found = listed_edges(path, options, header)
    if numbering is None and (names or any(found.words)):
        numbering = _listed(names, workspace)
    found.collect(workspace.within("pairs"), (numbering, numbering))
    if numbering is not None:
        listed = numbering.listed_in is not None and options.get("nodes") is None
        numbering.finish(path, *(("line", 1) if listed else ()))
    return found, numbering


def _listed(names, workspace):
    """The numbering of nodes that a file names, or that the edges alone do."""
    file = None if names in (None, "edges") else existing(names)
    numbering = Numbering(workspace.within("names"), file)
    if file is not None:
        for _, found in lines(file, "names", workspace.at_once(1 << 16)):
            numbering.list(found)
    return numbering


def _by_number(path, workspace, finish, graph=None, nodes=None, classes=None, features=None, labels=None, split=None,
               train_ids=None, val_ids=None, test_ids=None, names=None, task=None, train=0.6, val=0.2, seed=0,
               **of_edges):
    """Nodes in files of their own, row i of node i."""
    where = check_options(labels, split, train_ids, val_ids, test_ids, task)
    batch, x, y, n_classes = textfile.batch_within(workspace.n_bytes), None, None, classes or 0
    if features is not None:
        pieces = textfile.stream(features, "features", np.float32, batch)
        x = workspace.array("features", map(finish, pieces))
    if labels is not None:
        pieces = textfile.stream(labels, "labels", np.float64, batch)
        y, n_classes = spooled_labels(pieces, labels, workspace, classes, task)
    codes = None if split is None else textfile.names(split, "split", NAMES)
    there = (("features", features, x), ("labels", labels, y), ("split", split, codes))
    found = {name: (file, len(array)) for name, file, array in there if array is not None}
    if graph is not None:
        (edges, of_values), numbering, named = _of_graph(graph, path, found), None, None
    elif (names or any(value is not None for value in of_edges.values()) or not isinstance(path, Path)
          or has_words(path)):
        read, numbering = from_table(path, workspace, {**of_edges, "names": names})
        edges, of_values, named = read.pieces(), read.columns, read.feature_names
    else:
        edges, of_values, numbering, named = ((src, dst, {}) for src, dst in pieces_of(path)), {}, None, None
    if numbering is not None:
        if numbering.listed_in is None and (found or where):
            raise ConfigError(f"{next(iter(found or where))}: rows of this file belong to no node, as only the edges "
                              "name nodes; list the names in a file, names=FILE, or give a table, nodes=FILE")
        found["names"] = names or "edges", numbering.n_nodes

    def rows(n_nodes):
        found = {"features": map_ones(n_nodes, workspace, finish) if x is None else x,
                 "names": None if numbering is None else numbering.mapping}
        if y is None:
            return found | unlabelled(n_nodes, workspace)
        if split is not None:
            parts = tuple(codes == NAMES.index(name) for name in SPLITS)
        elif where:
            parts = masks(n_nodes, where, **{name: ids(where.get(name), name, n_nodes) for name in SPLITS})
        else:
            parts = drawn(y, task, train, val, seed, workspace, labels)
        return found | {"labels": y, "n_classes": int(n_classes), **dict(zip(SPLITS, parts))}

    return Streams(edges, lambda largest, n_edges: count(path, nodes, largest, n_edges, found), rows, _stem(path), path,
                   task or "classify", of_values, named)


def _of_graph(graph, path, found):
    """The edges of another format, and the columns of their values; its number of nodes goes into `found`."""
    src, dst, n_nodes, weight = graph(path)
    if n_nodes is not None:
        found["n"] = path, n_nodes
    values = {} if weight is None else {"edge_weight": weight}
    pieces = (slice(at, at + _PIECE) for at in range(0, max(len(src), 1), _PIECE))
    edges = ((src[piece], dst[piece], {name: array[piece] for name, array in values.items()}) for piece in pieces)
    return edges, {name: (array.dtype, ()) for name, array in values.items()}


def has_words(path):
    """Tell whether a file of edges names nodes by words: its first row, below what may be a header, has no number."""
    if path.suffix == ".npy":
        return False
    if path.suffix in (".parquet", ".arrow", ".feather", ".ipc"):
        source = table(path)
        return len(source.names) > 1 and any(isinstance(cells, list) for cells in source.first(source.names[:2]))
    with reading(path, "edges"), textfile.opened(path) as file:
        lines_ = (line.partition("#")[0].strip() for line in textfile.lines(file))
        first = [line for _, line in zip(range(2), filter(None, lines_))]
    words = first[-1].replace("\t", ",").split("," if "," in first[-1] or "\t" in first[-1] else None) if first else []
    return len(words) > 1 and not any(map(is_number, words[:2]))


def check_options(labels, split, train_ids, val_ids, test_ids, task):
    """Return the files of ids, by split; raise a ConfigError for options that do not go together."""
    ids = {"train_ids": train_ids, "val_ids": val_ids, "test_ids": test_ids}
    given = [name for name, value in {"task": task, "split": split, **ids}.items() if value is not None]
    if given and labels is None:
        raise ConfigError(f"{given[0]}: needs labels=FILE")
    where = {name.removesuffix("_ids"): file for name, file in ids.items() if file is not None}
    if split is not None and where:
        raise ConfigError(f"split and {next(iter(where))}_ids: one of the two")
    return where


def count(path, nodes, largest, n_edges, rows):
    """Return the number of nodes, on which the files, {name: (file, rows)}, and the option must agree."""
    if nodes is not None:
        rows = {"option": ("nodes", int(nodes)), **rows}
    if not rows:
        n_nodes = largest + 1
        if n_nodes > 1_000_000 + _SPARSE * 2 * n_edges:
            raise DataError(f"{path}: edges: node id {n_nodes - 1} would make {n_nodes} nodes of {n_edges} edges; "
                            f"say nodes={n_nodes} if that is so")  # fmt: skip
        return n_nodes
    fewest, *_, most = sorted(2 * [(n, f"{file}: {name}") for name, (file, n) in rows.items()])
    if fewest[0] != most[0]:
        raise DataError(f"{fewest[1]}: {fewest[0]} rows, but {most[1]}: {most[0]}; both need one a node")
    if nodes is None and fewest[0] <= largest:
        raise DataError(f"{fewest[1]}: {fewest[0]} rows, but {path} has node id {largest}")
    return fewest[0]


def pieces_of(path):
    """Yield the sources and the destinations of a file's edges in pieces, at least one: integers of at least 0."""
    first = 0
    for pairs in _pairs(path):
        if pairs.shape[1] != 2:
            raise DataError(f"{path}: edges: expected two columns (in .npy: or two rows), found shape {pairs.shape}")
        yield tuple(validation.integers(f"{path}: edges: {name}", ends, entry="node id {value} at position {at} is",
                                        first=first) for name, ends in zip(("src", "dst"), pairs.T))
        first += len(pairs)


def _pairs(path):
    if path.suffix != ".npy":
        for pairs in textfile.stream(path, "edges", np.int64):
            yield pairs if pairs.size else np.empty((0, 2), np.int64)
        return
    pairs = load_npy(path, "edges", "iu")
    if pairs.shape == (2, 2):
        raise DataError(f"{path}: edges: shape (2, 2) is two edges by rows or by columns, and nothing says which: "
                        "write them as text")
    if pairs.size == 0:
        yield np.empty((0, 2), np.int64)
    elif pairs.ndim == 2 and pairs.shape[0] == 2:
        for at in range(0, pairs.shape[1], _PIECE):
            yield fresh(pairs)[:, at : at + _PIECE].T
    elif pairs.ndim != 2:
        raise DataError(f"{path}: edges: expected two columns (in .npy: or two rows), found shape {pairs.shape}")
    else:
        yield from (piece for _, piece in mapped_pieces(pairs))


def ids(path, name, n_nodes):
    """Return a split's nodes, by id."""
    if path is None:
        return np.empty(0, np.int64)
    found = textfile.read(path, f"{name} split", np.int64)
    if found.dtype == bool:
        if found.shape != (n_nodes, 1) or found.view(np.uint8).max(initial=0) > 1:
            raise DataError(f"{path}: {name} split: a mask of shape {found.shape}, expected ({n_nodes},), one true or "
                            "false a node")
        return np.flatnonzero(found[:, 0])
    if found.size and found.shape[1] != 1:
        raise DataError(f"{path}: {name} split: expected one node id a line, found {found.shape[1]} columns")
    return found.ravel()

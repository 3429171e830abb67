"""The raw folder of a heterogeneous data set of the Open Graph Benchmark: ogbn-mag."""

import gzip
from itertools import combinations
from pathlib import Path

import numpy as np

from sarlite.data import table
from sarlite.data.ogb import _read_csv
from sarlite.data.raw import check_nodes, count_classes, existing, masks, whole_labels
from sarlite.errors import DataError, reading, regular
from sarlite.graph.relational import Relational, with_reverses
from sarlite.types import Path as AnyPath

_MOST_TYPES = 1 << 12


def read(path: AnyPath, classes: int | None = None, reverses: bool = True) -> Relational:
    """Read ogbn-mag from its folder, the one with `raw/` and `split/`.

    Parameters
    ----------
    path : path
    classes : int, optional
        By default the largest label + 1.
    reverses : bool
        Add each relation's reverse, as "rev_" and its name. Stored is one direction: without the reverses nothing reaches authors.

    Returns
    -------
    Relational
        Its `target` is the type with labels. Features are those that are stored: ogbn-mag's papers have some.

    Raises
    ------
    DataError
        Naming the file and, where there is one, the line: a relation that names an unknown type or is there twice, an edge to a node
        that is not there, files that are missing, damaged or disagree in length, other than one type with labels.

    Notes
    -----
    Files, below `raw/`: `num-node-dict.csv.gz`, types and numbers of nodes; `triplet-type-list.csv.gz`, a relation a line;
    `relations/h___r___t/edge.csv.gz` and `num-edge-list.csv.gz`; `nodetype-has-label.csv.gz`; `node-feat/TYPE/node-feat.csv.gz`,
    `node-label/TYPE/node-label.csv.gz`; below `split/KIND/TYPE/`: `train.csv.gz`, `valid.csv.gz`, `test.csv.gz`.
    A csv is parsed line by line, some million numbers a second.
    """
    folder = existing(path)
    raw = folder / "raw"
    n_nodes = _counts(raw / "num-node-dict.csv.gz")
    edges = {relation: _edges(raw / "relations" / "___".join(relation), relation, n_nodes)
             for relation in _relations(raw / "triplet-type-list.csv.gz", n_nodes)}
    target = _labelled(raw / "nodetype-has-label.csv.gz", n_nodes)
    features = {name: _read_csv(file, "features", np.float32, n_rows=n) for name, n in n_nodes.items()
                if (file := raw / "node-feat" / name / "node-feat.csv.gz").is_file()}
    where = raw / "node-label" / target / "node-label.csv.gz"
    labels = whole_labels(_read_csv(where, "labels", np.float64, n_rows=n_nodes[target], columns=1), where)
    train, val, test = _split(folder / "split", target, n_nodes[target])
    n_classes = count_classes(labels, where, classes)
    return Relational(n_nodes, with_reverses(edges) if reverses else edges, features, target, labels, train, val, test, n_classes)


def _rows(file, field):
    """Yield (number, words) of each line that is not empty."""
    with reading(file, field), gzip.open(regular(file), "rt", encoding="utf-8") as stream:
        for number, line in enumerate(table.lines(stream), 1):
            if line.strip():
                yield number, [word.strip() for word in line.split(",")]
            if number > _MOST_TYPES:
                raise DataError(f"{file}: {field}: more than {_MOST_TYPES} lines")


def _by_type(file, field):
    """The one row below a header of node types, as a dict; and the row's line."""
    rows = list(_rows(file, field))
    if len(rows) != 2 or len(rows[0][1]) != len(rows[1][1]):
        raise DataError(f"{file}: {field}: expected a line of node types and one of as many values, found {len(rows)} lines")
    (_, names), (line, values) = rows
    if len(set(names)) != len(names):
        raise DataError(f"{file}: {field}: a node type is there twice: {', '.join(names)}")
    return dict(zip(names, values)), line


def _counts(file):
    found, line = _by_type(file, "numbers of nodes")
    for name, value in found.items():
        if not value.isdigit():
            raise DataError(f"{file}: line {line}: {value!r} is no number of nodes of {name!r}")
    counts = {name: int(value) for name, value in found.items()}
    check_nodes(sum(counts.values()), 0, file)
    return counts


def _relations(file, n_nodes):
    found = []
    for line, words in _rows(file, "relations"):
        if len(words) != 3:
            raise DataError(f"{file}: line {line}: expected source type, relation, destination type, found {','.join(words)!r}")
        for name in (words[0], words[2]):
            if name not in n_nodes:
                raise DataError(f"{file}: line {line}: relation {','.join(words)!r}: node type {name!r} is none of {', '.join(n_nodes)}")
        if tuple(words) in found:
            raise DataError(f"{file}: line {line}: relation {','.join(words)!r} is there twice")
        found.append(tuple(words))
    return found


def _edges(folder, relation, n_nodes):
    counts = _read_csv(folder / "num-edge-list.csv.gz", "count", np.int64, columns=1, most=1)
    file = folder / "edge.csv.gz"
    edges = _read_csv(file, "edges", np.int64, n_rows=int(counts.sum()), columns=2)
    for column, name in zip(edges.T, (relation[0], relation[2])):
        bad = (column < 0) | (column >= n_nodes[name])
        if bad.any():
            at = int(np.argmax(bad))
            raise DataError(f"{file}: line {at + 1}: node {column[at]} of type {name!r} is outside 0 <= node < {n_nodes[name]}")
    return np.ascontiguousarray(edges[:, 0]), np.ascontiguousarray(edges[:, 1])


def _labelled(file, n_nodes):
    found, line = _by_type(file, "types with labels")
    named = [name for name, value in found.items() if value.lower() in ("true", "1")]
    if len(named) != 1 or named[0] not in n_nodes:
        raise DataError(f"{file}: line {line}: expected one type of {', '.join(n_nodes)} with labels, found {', '.join(named) or 'none'}")
    return named[0]


def _split(folder, target, n_nodes):
    found = sorted(entry for entry in Path(folder).glob("*") if (entry / target / "train.csv.gz").is_file())
    if len(found) != 1:
        names = ", ".join(entry.name for entry in found) or "none"
        raise DataError(f"{folder}: split: expected one folder with {target}/train.csv.gz, found {names}")
    where = {name: found[0] / target / f"{file}.csv.gz" for name, file in (("train", "train"), ("val", "valid"), ("test", "test"))}
    ids = {name: _read_csv(file, f"{name} split", np.int64, columns=1, most=n_nodes)[:, 0] for name, file in where.items()}
    split = masks(n_nodes, where, **ids)
    for (one, a), (other, b) in combinations(zip(where, split), 2):
        if (a & b).any():
            raise DataError(f"{where[other]}: node {int(np.argmax(a & b))} is in {one} too")
    return split

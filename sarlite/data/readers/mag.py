"""Reader of the raw folder of ogbn-mag, a heterogeneous data set of the Open Graph Benchmark."""

import csv
import gzip
from itertools import islice

import numpy as np

from sarlite.data import textfile
from sarlite.data.folders import key
from sarlite.data.graph_tables import SPLITS
from sarlite.data.raw import check_nodes, existing
from sarlite.data.readers.ogb import split_folder, split_masks, total
from sarlite.data.tables.description import Description, EdgeSource, NodeSource
from sarlite.data.tables.memory_tables import Pieces
from sarlite.data.tables.text_form import Reading
from sarlite.errors import DataError, reading, regular
from sarlite.structure.relational_generator import reverse

_MOST_TYPES = 1 << 12
_PLAIN = Reading(header=False)
_NAMES = "_entidx2name.csv.gz"


def describe(path, workspace, options):
    """Return a Description of the tables in `path`, the folder of ogbn-mag, which DuckDB then reads. `options` may have classes (the number
    of classes), reverses (True adds the reverse of each relation) and names (True reads the nodes' names). `workspace` is not used.

    Parameters
    ----------
    path : path
    workspace : Workspace
        Not used.
    options : dict
        Options of the spec: classes, reverses, and names (True to read the names of the nodes from `mapping/`). The files
        store one direction only, so by default (reverses=True) the reverse of each relation is added as "rev_NAME".

    Returns
    -------
    Description
        Its target is the node type with labels. In ogbn-mag only the papers have features.

    Raises
    ------
    DataError
        If a file is missing or damaged, a relation names an unknown type or is listed twice, or not exactly one type has
        labels. Also if a node has no name, or two nodes share a name or the hash of a name. The message names the file and,
        if possible, the line.

    Notes
    -----
    Files, below `raw/`: `num-node-dict.csv.gz` with the node types and their numbers of nodes;
    `triplet-type-list.csv.gz` with a relation per line; `relations/h___r___t/edge.csv.gz` and `num-edge-list.csv.gz`;
    `nodetype-has-label.csv.gz`; `node-feat/TYPE/node-feat.csv.gz` of the types that `nodetype-has-feat.csv.gz` (optional)
    names; `node-label/TYPE/node-label.csv.gz`. Below `split/KIND/TYPE/`: `train.csv.gz`, `valid.csv.gz`, `test.csv.gz`.
    """
    stored = MagFolder(path, options.get("reverses", True), options.get("names", False))
    nodes = {}
    for name, n in stored.n_nodes.items():
        rows = {"features": stored.features[name]} if name in stored.features else {}
        if name in stored.names:
            rows["titles"] = Pieces(str(stored.names[name]), stored.names_of(name))
        if name == stored.target:
            rows |= {"labels": stored.labels, "masks": lambda n: dict(zip(SPLITS, stored.split()))}
        nodes[name] = NodeSource(None, name, count=n, counted_in=(stored.path / "raw" / "num-node-dict.csv.gz", name), rows=rows,
                                 classes=options.get("classes") if name == stored.target else None, reading=_PLAIN)
    edges = [EdgeSource(relation, stored.edge_file(relation), src="0", dst="1", reverse=back is not None,
                        n_rows=stored.n_edges(relation), reading=_PLAIN) for relation, back in stored.relations.items()]
    return Description(nodes, edges, stored.target, "mag", relational=True)


class MagFolder:
    """Files of ogbn-mag's folder. Small files are read by the constructor, large files when a method is called.

    Attributes
    ----------
    n_nodes : dict of str to int
        Number of nodes of each type.
    relations : dict of (source type, name, destination type) to a relation or None
        The reverse of each stored relation; None without reverses.
    target : str
        The type with labels.
    features : dict of str to path
        The file of each type that has features.
    labels : path
    names : dict of str to path
        The file of each type whose nodes have names; empty unless names are asked for.
    """

    def __init__(self, path, reverses, names=False):
        self.path = existing(path)
        raw = self.path / "raw"
        self.n_nodes = _counts(raw / "num-node-dict.csv.gz")
        stored_relations = _relations(raw / "triplet-type-list.csv.gz", self.n_nodes)
        self.relations = {relation: reverse(relation) if reverses else None for relation in stored_relations}
        for name in self.n_nodes:
            key(name)  # raises for a name that cannot name a folder
        for relation, back in self.relations.items():
            key(*(back or relation))
            if back in self.relations:
                raise DataError(f"{raw / 'triplet-type-list.csv.gz'}: relation {','.join(relation)!r}: its reverse, "
                                f"{','.join(back)!r}, is stored too; reverses=false reads what is stored")
        self.target = _labelled_type(raw / "nodetype-has-label.csv.gz", self.n_nodes)
        self.features = _features(raw, self.n_nodes)
        self.labels = raw / "node-label" / self.target / "node-label.csv.gz"
        self.names = _name_files(self.path / "mapping", self.n_nodes) if names else {}

    def n_edges(self, relation):
        """Return the number of edges that `num-edge-list.csv.gz` states for a relation."""
        return total(self._of(relation) / "num-edge-list.csv.gz", most=1)

    def edge_file(self, relation):
        """Return the path of the file with a relation's edges."""
        return self._of(relation) / "edge.csv.gz"

    def names_of(self, node_type, n_lines=1 << 16):
        """Yield the names of the nodes of `node_type` as tables {"name": list of str}, each with the next `n_lines` nodes."""
        file, n = self.names[node_type], self.n_nodes[node_type]
        with reading(file, "names"), gzip.open(regular(file), "rt", encoding="utf-8", newline="") as stream:
            rows, at = csv.reader(textfile.lines(stream)), 0
            next(rows, None)  # ent idx,ent name
            while batch := list(islice(rows, n_lines)):
                for node, row in enumerate(batch, at):
                    if len(row) != 2 or row[0].strip() != str(node) or not row[1].strip():
                        raise DataError(f"{file}: names: line {node + 2}: expected {node} and a name, found {','.join(row)!r}")
                yield {"name": [row[1].strip() for row in batch]}
                at += len(batch)
        if not at:
            yield {"name": np.empty(0, object)}
        if at != n:
            raise DataError(f"{file}: names: {at} names, but there are {n} nodes of type {node_type!r}")

    def split(self):
        """Return the train, val and test masks of the target, the node type that has labels."""
        return split_masks(split_folder(self.path, self.target), self.n_nodes[self.target])

    def _of(self, relation):
        return self.path / "raw" / "relations" / "___".join(relation)


def _name_files(folder, n_nodes):
    """Return {node type: file with the names of its nodes} for the types that have a file in `folder`. A file of a type that is not
    in `n_nodes` is an error.
    """
    paths = {path.name.removesuffix(_NAMES): path for path in sorted(folder.glob(f"*{_NAMES}"))}
    for name, path in paths.items():
        if name not in n_nodes:
            raise DataError(f"{path}: names: node type {name!r} is not one of {', '.join(n_nodes)}")
    if not paths:
        raise DataError(f"{folder}: names: no file TYPE{_NAMES} of {', '.join(n_nodes)}")
    return {name: paths[name] for name in n_nodes if name in paths}


def _rows(file, name_in_errors):
    """Yield (line number, list of the comma-separated words) of each nonempty line of a gzipped file."""
    with reading(file, name_in_errors), gzip.open(regular(file), "rt", encoding="utf-8") as stream:
        for number, line in enumerate(textfile.lines(stream), 1):
            if line.strip():
                yield number, [word.strip() for word in line.split(",")]
            if number > _MOST_TYPES:
                raise DataError(f"{file}: {name_in_errors}: more than {_MOST_TYPES} lines")


def _by_type(file, name_in_errors):
    """Return ({node type: value}, number of the line with the values) from `file`, which has a line of node types and a line of values."""
    rows = list(_rows(file, name_in_errors))
    if len(rows) != 2 or len(rows[0][1]) != len(rows[1][1]):
        raise DataError(f"{file}: {name_in_errors}: expected a line of node types and a line with a value per type, found {len(rows)} "
                        "nonempty lines")
    (_, names), (line, values) = rows
    if len(set(names)) != len(names):
        raise DataError(f"{file}: {name_in_errors}: a node type appears twice: {', '.join(names)}")
    return dict(zip(names, values)), line


def _counts(file):
    """Return {node type: number of nodes} from a file."""
    values, line = _by_type(file, "numbers of nodes")
    for name, value in values.items():
        if not value.isdigit():
            raise DataError(f"{file}: line {line}: {value!r} is not a number of nodes of {name!r}")
    counts = {name: int(value) for name, value in values.items()}
    check_nodes(sum(counts.values()), 0, file)
    return counts


def _relations(file, n_nodes):
    """Return the (source type, name, destination type) in each line of `file`. Raise an error if a relation repeats, or names a
    type that is not in `n_nodes`.
    """
    relations = []
    for line, words in _rows(file, "relations"):
        if len(words) != 3:
            raise DataError(f"{file}: line {line}: expected source type, relation, destination type, found {','.join(words)!r}")
        for name in (words[0], words[2]):
            if name not in n_nodes:
                raise DataError(f"{file}: line {line}: relation {','.join(words)!r}: "
                                f"node type {name!r} is not one of {', '.join(n_nodes)}")
        if tuple(words) in relations:
            raise DataError(f"{file}: line {line}: relation {','.join(words)!r} appears twice")
        relations.append(tuple(words))
    return relations


def _features(raw, n_nodes):
    """Return {node type: file of features} for the types in `n_nodes` that have such a file in the folder `raw`. If
    nodetype-has-feat.csv.gz exists, it must list the same types.
    """
    stored_types = sorted(path.parent.name for path in (raw / "node-feat").glob("*/node-feat.csv.gz"))
    list_file = raw / "nodetype-has-feat.csv.gz"
    for name in stored_types:
        if name not in n_nodes:
            raise DataError(f"{raw / 'node-feat' / name}: node type {name!r} is not one of {', '.join(n_nodes)}")
    named, line = _marked_types(list_file, "types with features") if list_file.exists() else (stored_types, None)
    if line and sorted(named) != stored_types:
        raise DataError(f"{list_file}: line {line}: types with features: {', '.join(named) or 'none'}, but node-feat has "
                        f"{', '.join(stored_types) or 'none'}")
    return {name: raw / "node-feat" / name / "node-feat.csv.gz" for name in n_nodes if name in stored_types}


def _marked_types(file, name_in_errors):
    """Return (node types that a file marks as true, line number of the marks)."""
    values, line = _by_type(file, name_in_errors)
    return [name for name, value in values.items() if value.lower() in ("true", "1")], line


def _labelled_type(file, n_nodes):
    """Return the only node type that a file marks as having labels."""
    named, line = _marked_types(file, "types with labels")
    if len(named) != 1 or named[0] not in n_nodes:
        raise DataError(f"{file}: line {line}: expected one type of {', '.join(n_nodes)} with labels, "
                        f"found {', '.join(named) or 'none'}")
    return named[0]

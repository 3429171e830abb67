"""A data set's rows and edges in the order in which parts own them, streamed from one data set into another."""

from typing import NamedTuple

import numpy as np

from sarlite.data import budget
from sarlite.data.dataset import EDGE_ARRAYS, SPLITS, Dataset
from sarlite.data.mapped import CHUNK_BYTES, copied, gather, pieces, take
from sarlite.data.table import read_parts
from sarlite.errors import ConfigError, DataError
from sarlite.graph import balance as balancing
from sarlite.graph import metis
from sarlite.graph import order as orders
from sarlite.graph.edges import index_dtype
from sarlite.graph.fennel import BLOCK_BYTES, fennel
from sarlite.graph.partition import BALANCED, METHODS, Tally, partition
from sarlite.graph.renumber import edges_in_order, inverse, sequence


class Facts(NamedTuple):
    """What a data set has beside arrays."""

    name: str
    n_classes: int
    provenance: dict
    offsets: np.ndarray
    division: dict | None
    task: str


def divide(dataset, parts, n_parts, sink, *, order=None, division=None):
    """Write a data set so that its rows and edges stand by part.

    Parameters
    ----------
    dataset : Dataset
        In any order of its own.
    parts : (n_nodes,) int
        The part of each node, by original id.
    n_parts : int
    sink : format.GraphWriter or InMemory
        Its `array(field, shape, dtype)` returns what takes rows, its `finish(facts)` ends it.
    order : (n_nodes,) int, optional
        A permutation of the original ids, in which the rows of a part stand; by default ids ascend.
    division : dict, optional
        How `parts` and `order` were made, to be remembered.

    Returns
    -------
    dict
        What the partition costs, as `graph.partition.measures` says.

    Notes
    -----
    Memory: about 40 bytes a node, a piece of the edges (about a million, with their values) and one of 32 MiB of the features.
    """
    nodes, offsets = sequence(parts, n_parts, order)
    rows = nodes if dataset.ids is None else inverse(np.asarray(dataset.ids))[nodes]
    if not counts_up(nodes):
        sink.array("ids", nodes.shape, nodes.dtype).write(nodes)
    for field in ("features", "labels", *SPLITS):
        _write_rows(getattr(dataset, field), rows, sink, field)
    tally = Tally(offsets)
    _write_edges(dataset, rows, offsets, sink, tally.add, origin=dataset.edge_ids is not None or not counts_up(rows))
    train = np.concatenate(([0], np.cumsum(take(dataset.train, rows))))
    facts = Facts(dataset.name, dataset.n_classes, dataset.provenance, offsets, division, dataset.task)
    sink.finish(facts)  # which may replace what was read
    return tally.measures(np.diff(train[offsets]))


def copy(dataset, sink):
    """Write a data set as it stands; where the sources of a row do not ascend, sort them."""
    copy_arrays(dataset, sink)
    sink.finish(Facts(dataset.name, dataset.n_classes, dataset.provenance, dataset.offsets, dataset.division, dataset.task))


def copy_arrays(dataset, sink):
    """Write the arrays of `copy`."""
    arrays = dataset.arrays()
    edges = {field: arrays.pop(field) for field in EDGE_ARRAYS if field in arrays}
    unsorted = _unsorted(dataset)
    for field, array in {**arrays, **({} if unsorted else edges)}.items():
        sink.array(field, array.shape, array.dtype).write(array)
    if unsorted:
        place = np.arange(dataset.n_sources)
        _write_edges(dataset, np.arange(dataset.n_nodes), dataset.offsets, sink, lambda *_: None, origin=True, place=place)


class InMemory:
    """A sink that makes a Dataset in memory: `dataset`, once it is finished."""

    def __init__(self, source="dataset"):
        self.source, self.dataset, self._arrays = source, None, {}

    def array(self, field, shape, dtype):
        self._arrays[field] = _Rows(shape, dtype)
        return self._arrays[field]

    def arrays(self):
        """Return what was written, by field; ids that count up are left out."""
        arrays = {field: rows.array for field, rows in self._arrays.items()}
        return {field: array for field, array in arrays.items() if field not in ("ids", "edge_ids") or not counts_up(array)}

    def finish(self, facts):
        self.dataset = Dataset(**self.arrays(), **facts._asdict(), source=self.source)


class _Rows:
    def __init__(self, shape, dtype):
        self.array, self._filled = np.empty(shape, dtype), 0

    def write(self, rows):
        self.array[self._filled : self._filled + rows.shape[0]] = rows
        self._filled += rows.shape[0]


def restored(dataset):
    """Return a data set in memory whose rows and edges stand by original id; itself where they do."""
    if dataset.ids is None and dataset.edge_ids is None:
        return dataset
    sink = InMemory(dataset.source)
    divide(dataset, np.zeros(dataset.n_nodes, np.int8), 1, sink)
    return sink.dataset


class Graph(NamedTuple):
    """The structure of a data set by original id."""

    indptr: np.ndarray
    indices: np.ndarray
    train: np.ndarray


def structure(dataset):
    """Return a data set's `Graph`, which partitions and orders are made of; of one that is divided a copy, 4 or 8 bytes an edge."""
    indptr, indices, train = (np.asarray(array) for array in (dataset.indptr, dataset.indices, dataset.train))
    if dataset.ids is None:
        return Graph(indptr, indices, train)
    rows = inverse(np.asarray(dataset.ids))
    out = np.empty_like(indices)
    ends = np.concatenate(([0], np.cumsum(np.diff(indptr)[rows])))
    for first, last, _, sources in edges_in_order(indptr, indices, rows, sort=True, read=lambda _, at: gather(dataset.indices, at)):
        out[ends[first] : ends[last]] = sources
    return Graph(ends, out, train[rows])


class Stored:
    """The `fennel.ReadableEdges` of a data set, read from its files in pieces."""

    def __init__(self, dataset):
        self._dataset, self.n_nodes, self.n_edges = dataset, dataset.n_nodes, dataset.n_edges

    def indptr(self, first, last):
        return copied(self._dataset.indptr, first, last + 1)

    def sources(self, first, last):
        begin, end = (int(copied(self._dataset.indptr, node, node + 1)[0]) for node in (first, last))
        return copied(self._dataset.indices, begin, end)


def make_parts(dataset, n_parts, method, *, balance="auto", seed=0, n_bytes=None, tell=lambda text: None):
    """Return the part of every node, by original id: by a method of `graph.partition`, or from a file.

    Parameters
    ----------
    n_bytes : int, optional
        Of memory that it may take; by default what is free.
    tell : callable
        tell(text) is called as each step begins.

    Raises
    ------
    ConfigError, DataError
        As `partition` and `read_parts` say; a `balance` other than "auto" with a method that heeds none.
    """
    if balancing.check(balance) is not None and method not in BALANCED:
        raise ConfigError(f"balance: {balance} goes with {' and '.join(BALANCED)} alone, not with {method}")
    if method not in METHODS:
        return read_parts(method, dataset.n_nodes, n_parts)
    if method == "fennel":
        budget.check(10 * dataset.n_nodes + BLOCK_BYTES, n_bytes, f"a partition of {dataset.n_nodes:,} nodes")
    if method == "fennel" and 1 < n_parts < dataset.n_nodes and dataset.n_edges:
        found = fennel(Stored(dataset), n_parts, train=dataset.train, balance=balance, seed=seed, tell=tell)
        if dataset.ids is None:
            return found
        parts = np.empty_like(found)
        for at, ids in pieces(dataset.ids):
            parts[ids] = found[at : at + ids.size]
        return parts
    if n_parts > 1 and method == "metis":
        metis.check_room(dataset.n_nodes, dataset.n_edges, n_bytes)
        graph = structure(dataset)
        return partition(graph.indptr, graph.indices, n_parts, method, train_mask=graph.train, balance=balance, seed=seed)
    return partition(dataset.indptr, dataset.indices, n_parts, method, seed=seed)


def make_order(dataset, method, *, seed=0, n_bytes=None, tell=lambda text: None):
    """Return the original ids in the order asked for; None where they ascend.

    Parameters
    ----------
    method : str
        "stored": as the rows stand, "none": ascending, or one of `graph.order`.
    """
    if method == "none" or (method == "stored" and stored_order(dataset) == "none"):
        return None
    if method == "stored":
        return dataset.node_ids
    if method not in orders.METHODS:
        raise ConfigError(f"order: {method!r} is none of stored, none, {', '.join(orders.METHODS)}")
    if method == "cluster":
        budget.check(24 * dataset.n_nodes + BLOCK_BYTES, n_bytes, f"the order of {dataset.n_nodes:,} nodes")
        rows = orders.by_cluster(Stored(dataset), tell)
        return rows if dataset.ids is None else np.asarray(dataset.ids)[rows]
    metis.check_room(dataset.n_nodes, dataset.n_edges, n_bytes)
    graph = structure(dataset)
    return orders.order(graph.indptr, graph.indices, method, seed=seed)


def record(n_parts, method, order, seed, balance="auto"):
    """Return what a data set remembers of its division."""
    made = {"parts": n_parts, "partition": method, "order": order, "seed": seed}
    return made if balance == "auto" else {**made, "balance": balance}


def stored_order(dataset):
    """Return the name of the order in which a data set's rows stand in each part."""
    return dataset.division["order"] if dataset.division else "none"


def _write_rows(array, rows, sink, field):
    out, step = sink.array(field, array.shape, array.dtype), max(1, CHUNK_BYTES // max(1, array.nbytes // max(1, array.shape[0])))
    for at in range(0, rows.size, step):
        out.write(take(array, rows[at : at + step]))


def _write_edges(dataset, rows, offsets, sink, tally, origin, place=None):
    """Write the edges of `rows`, each row's by ascending source, with their original positions and their values.

    `place` has the new row number of each source row; by default the rows' own.
    """
    n_nodes, n_edges, indptr = dataset.n_sources, dataset.n_edges, np.asarray(dataset.indptr)
    sink.array("indptr", indptr.shape, np.int64).write(np.concatenate(([0], np.cumsum(np.diff(indptr)[rows]))))
    indices = sink.array("indices", (n_edges,), index_dtype(n_nodes))
    edge_ids = sink.array("edge_ids", (n_edges,), index_dtype(n_edges)) if origin else None
    values = {field: getattr(dataset, field) for field in ("edge_weight", "edge_features") if getattr(dataset, field) is not None}
    outs = {field: sink.array(field, array.shape, array.dtype) for field, array in values.items()}
    for first, last, positions, sources in edges_in_order(indptr, dataset.indices, rows, offsets, sort=True, read=gather, place=place):
        indices.write(sources)
        if origin:
            edge_ids.write(positions if dataset.edge_ids is None else gather(dataset.edge_ids, positions))
        for field, array in values.items():
            outs[field].write(gather(array, positions))
        tally(first, last, sources)


def _unsorted(dataset):
    """Whether edges must be sorted; those that make no sense stay as they are, for who reads them to name them."""
    try:
        dataset.check_edges()
    except DataError:
        return False
    return not dataset.sources_ascend()


def counts_up(ids):
    """Tell whether numbers are 0, 1, 2, ..."""
    return all((piece == np.arange(at, at + piece.size)).all() for at, piece in pieces(ids))

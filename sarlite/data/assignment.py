"""Assignment of a data set's nodes to parts, and the order of the rows within each part."""

import functools
import time

import numpy as np

from sarlite.data import budget
from sarlite.data.divide import record, stored_order
from sarlite.data.graph_tables import MEMBERS
from sarlite.data.mapped import copied, gather, pieces
from sarlite.data.textfile import read_parts
from sarlite.errors import ConfigError
from sarlite.progress import SILENT
from sarlite.structure import balance as balancing
from sarlite.structure import metis, typed, whole_graphs
from sarlite.structure import order as orders
from sarlite.structure.edges import destinations
from sarlite.structure.fennel import BLOCK_BYTES, fennel
from sarlite.structure.partition import BALANCED, METHODS, partition
from sarlite.structure.renumber import edges_in_order, inverse

SORT_BYTES = 32 << 20
"""Memory in bytes for sorting a block's edges of several relations by node."""


def plan(dataset, n_parts, method, order, *, balance="auto", seed=0, n_bytes=None, progress=SILENT, seconds=None):
    """Divide the nodes of `dataset` into `n_parts` parts by `method`, and arrange them by the method `order`. Return (part of each node,
    node ids in the new order (None: ascending), dict that describes both for meta.json). `balance` names the counts to balance, such as
    "nodes,edges". `n_bytes` limits memory (None: the free memory), and the dict `seconds` receives the computing time.

    Parameters
    ----------
    dataset, n_parts, method, balance, seed, n_bytes
        As for `make_parts`.
    order : str
        As for `make_order`.
    progress : Progress
    seconds : dict, optional
        The time for computing the parts is stored under "partition", in seconds.

    Returns
    -------
    parts : (n_nodes,) int
    nodes : (n_nodes,) int or None
    division : dict
    """
    begin = time.perf_counter()
    graph = functools.cache(functools.partial(_for_metis, dataset, n_bytes))
    with progress.step(f"divide into {n_parts} parts by {method}") as step:
        parts = make_parts(dataset, n_parts, method, balance=balance, seed=seed, graph=graph, n_bytes=n_bytes, tell=step.tell)
    if seconds is not None:
        seconds["partition"] = time.perf_counter() - begin
    with progress.step(f"order {order}") as step:
        nodes = make_order(dataset, order, seed=seed, graph=graph, n_bytes=n_bytes, tell=step.tell)
    return parts, nodes, record(n_parts, method, stored_order(dataset) if order == "stored" else order, seed, balance)


def make_parts(dataset, n_parts, method, *, balance="auto", seed=0, graph=None, n_bytes=None, tell=lambda text: None):
    """Divide the nodes of `dataset` into `n_parts` parts by `method`, and return the part number of each node, indexed by original id.
    `balance` names the counts to balance, such as "nodes,edges"; `n_bytes` limits memory (None: the free memory). `graph()` returns the
    result of `structure`, which METIS needs; None calls `structure` here. `tell(text)` receives progress.

    Parameters
    ----------
    dataset : Dataset
    n_parts : int
    method : str
        A method of `graph.partition`, or a file with a part for each node of all types, one type after the other in the
        order of `dataset.nodes`. A set of graphs is divided by whole graphs.
    balance : str
        As for `partition`. With "auto" the degrees decide.
    seed : int
    graph : callable, optional
        Returns a cached result of `structure`.
    n_bytes : int, optional
        Memory limit in bytes; by default the free memory.
    tell : callable
        tell(text) is called as each step begins.

    Returns
    -------
    (n_nodes,) int
        One type after the other.

    Raises
    ------
    ConfigError, DataError
        As `partition` and `read_parts`; also if a `balance` other than "auto" is passed with a method that ignores it.
    """
    if balancing.check(balance) is not None and method not in BALANCED:
        raise ConfigError(f"balance: {balance} goes only with {' and '.join(BALANCED)}, not with {method}")
    n_nodes = dataset.n_nodes
    if method not in METHODS:
        return read_parts(method, n_nodes, n_parts)
    if dataset.of_graphs:
        if balance != "auto":
            raise ConfigError(f"balance: {balance}: a set of graphs is divided by whole graphs, even in edges and nodes")
        return _by_graphs(dataset, n_parts, method, seed)
    if method == "fennel":
        budget.check(10 * n_nodes + _block_bytes(dataset), n_bytes, f"a partition of {n_nodes:,} nodes")
        if 1 < n_parts < n_nodes and dataset.n_edges:
            return _by_fennel(dataset, n_parts, balance, seed, tell)
        method, balance = "contiguous", None
    by_edges = method == "metis" and n_parts > 1
    if by_edges:
        whole = (graph or functools.partial(_for_metis, dataset, n_bytes))()
    else:
        whole = typed.join({}, dataset.n_nodes_by_type)
    return partition(whole.indptr, whole.indices, n_parts, method, train_mask=training(dataset) if by_edges else None,
                     balance=balance, seed=seed, types=whole.ends if len(dataset.nodes) > 1 else None)


def make_order(dataset, method, *, seed=0, graph=None, n_bytes=None, tell=lambda text: None):
    """Return the node ids of `dataset` in the order of `method`, grouped by node type, or None for ascending ids. `graph()` returns the
    result of `structure`; None calls `structure` here. `n_bytes` limits memory (None: the free memory), and `tell(text)` receives progress.

    Parameters
    ----------
    dataset : Dataset
    method : str
        "stored" is the order of the stored rows, "none" is ascending; otherwise a method of `graph.order`.
    seed, graph, n_bytes, tell
        As for `make_parts`.
    """
    if method == "none" or (method == "stored" and stored_order(dataset) == "none"):
        return None
    if method == "stored":
        return _ids_of_all(dataset)
    if method not in orders.METHODS:
        raise ConfigError(f"order: {method!r} is not one of stored, none, {', '.join(orders.METHODS)}")
    if method == "cluster":
        budget.check(24 * dataset.n_nodes + _block_bytes(dataset), n_bytes, f"the order of {dataset.n_nodes:,} nodes")
        rows = orders.by_cluster(StoredEdges(dataset), tell)
        return _grouped(dataset, rows if _as_numbered(dataset) else _ids_of_all(dataset)[rows])
    whole = (graph or functools.partial(_for_metis, dataset, n_bytes))()
    return _grouped(dataset, orders.order(whole.indptr, whole.indices, method, seed=seed))


def structure(dataset):
    """Return all edges of `dataset` as one CSR, a `typed.Joined`, whose nodes are numbered by original id, one node type after the other.
    METIS and the methods that order nodes take this graph.

    Memory: none for one relation whose rows are in the order of the ids. If the rows are ordered by part, the copy takes
    4 or 8 bytes per edge. Several relations take 36 bytes per edge during the call, and the result takes 4.
    """
    if len(dataset.nodes) == len(dataset.edges) == 1:
        return typed.Joined(*_by_id(dataset), dataset.n_nodes_by_type)
    ids = {name: None if table.ids is None else np.asarray(table.ids) for name, table in dataset.nodes.items()}
    edges = {}
    for (source, name, to), table in dataset.edges.items():
        sources = np.empty(table.n_edges, np.int64)
        rows = np.repeat(np.arange(table.n_destinations), np.diff(table.indptr))
        for at, piece in pieces(table.indices):
            sources[at : at + len(piece)] = piece if ids[source] is None else ids[source][piece]
        edges[source, name, to] = sources, rows if ids[to] is None else ids[to][rows]
    return typed.join(edges, dataset.n_nodes_by_type)


def training(dataset):
    """Return the mask of training nodes of `dataset`, (n_nodes,) bool, indexed by original id, one node type after the other."""
    masks = [np.zeros(n, bool) for n in dataset.n_nodes_by_type.values()]
    table, target_mask = dataset.nodes[dataset.target], masks[[*dataset.nodes].index(dataset.target)]
    target_mask[slice(None) if table.ids is None else np.asarray(table.ids)] = table.train
    return np.concatenate(masks)


class StoredEdges:
    """Edges of a data set, read from its files in pieces, in the form that the partitioner Fennel needs (protocol `fennel.ReadableEdges`).

    Rows are numbered one node type after the other.

    Attributes
    ----------
    n_nodes, n_edges : int
    types : (n_types + 1,) int64
        Type k has the rows types[k] .. types[k + 1] - 1.
    """

    def __init__(self, dataset):
        self.n_nodes, self.n_edges = dataset.n_nodes, dataset.n_edges
        self.types = np.cumsum([0, *dataset.n_nodes_by_type.values()])
        starts = dict(zip(dataset.nodes, self.types.tolist()))
        self._into = [[(starts[source], table) for (source, _, to), table in dataset.edges.items() if to == name] for name in dataset.nodes]

    def indptr(self, first, last):
        """Return the offsets of the in-edges of rows `first` to `last` - 1, counted from 0: a CSR `indptr` of shape (last - first +
        1,), int64.
        """
        degrees = np.zeros(last - first + 1, np.int64)
        for at, _, ends, _ in self._pieces(first, last):
            degrees[1 + at : at + ends.size] += np.diff(ends)
        return np.cumsum(degrees)

    def sources(self, first, last):
        """Return the source of each in-edge of rows `first` to `last` - 1, row after row, (n_edges,)."""
        parts = [(at, ends, copied(table.indices, int(ends[0]), int(ends[-1])), start)
                 for at, table, ends, start in self._pieces(first, last)]
        if len(parts) == 1 and not parts[0][3]:
            return parts[0][2]
        rows = [np.repeat(np.arange(at, at + ends.size - 1), np.diff(ends)) for at, ends, _, _ in parts]
        sources = [np.add(indices, start, dtype=np.int64) for _, _, indices, start in parts]
        none = [np.empty(0, np.int64)]
        return np.concatenate(none + sources)[np.argsort(np.concatenate(none + rows), kind="stable")]

    def _pieces(self, first, last):
        """Yield (position, table, offsets, start) for each relation with edges into the destination rows `first` to `last` - 1, a range
        that may span several node types. `position` is the index in the range of the relation's first destination row, and `table` is the
        `EdgeTable` with the edges. `offsets` is the part of the table's `indptr` for the range, and `start` is the first row of the source
        type.
        """
        for begin, end, tables in zip(self.types.tolist(), self.types[1:].tolist(), self._into):
            low, high = max(first, begin), min(last, end)
            for start, table in tables if low < high else ():
                yield low - first, table, copied(table.indptr, low - begin, high - begin + 1), start


def _for_metis(dataset, n_bytes):
    """Return all edges of `dataset` as one graph, the input of METIS. Raise an error if METIS needs more than `n_bytes` of memory."""
    metis.check_room(dataset.n_nodes, dataset.n_edges, n_bytes)
    return structure(dataset)


def _by_graphs(dataset, n_parts, method, seed):
    """Divide the graphs of `dataset`, a set of graphs, into `n_parts` parts by `method`; the nodes of a graph are in its part. Return the
    part number of each node and of each graph, concatenated in the order of the node types.
    """
    members, nodes, graphs = dataset.edges[MEMBERS], dataset.nodes[MEMBERS[0]], dataset.target_nodes
    graph_of, degrees = np.zeros(nodes.n_nodes, np.int64), np.zeros(nodes.n_nodes, np.int64)
    graph_of[nodes.node_ids[members.indices]] = graphs.node_ids[destinations(members.indptr)]
    degrees[nodes.node_ids] = np.diff(dataset.indptr)
    parts = whole_graphs.divide(graph_of, degrees, graphs.n_nodes, n_parts, method, seed)
    return np.concatenate([parts[graph_of] if name == MEMBERS[0] else parts for name in dataset.nodes])


def _by_fennel(dataset, n_parts, balance, seed, tell):
    """Divide the nodes of `dataset` into `n_parts` parts by the partitioner Fennel, which reads the stored edges. Return the part number of
    each node, indexed by original id. `balance` names the counts to balance, such as "nodes,edges"; `tell(text)` receives progress.
    """
    edges = StoredEdges(dataset)
    train = np.zeros(dataset.n_nodes, bool)
    dataset.by_type(train)[dataset.target][:] = dataset.train
    by_row = fennel(edges, n_parts, train=train, balance=balance, types=edges.types, seed=seed, tell=tell)
    if _as_numbered(dataset):
        return by_row
    parts = by_row.copy()
    for first, table in zip(edges.types.tolist(), dataset.nodes.values()):
        for at, ids in pieces(table.ids) if table.ids is not None else ():
            parts[first + ids] = by_row[first + at : first + at + ids.size]
    return parts


def _block_bytes(dataset):
    """Return the bytes of memory that one block of the edges of `dataset` takes while it is read from the files."""
    return BLOCK_BYTES + (SORT_BYTES if len(dataset.edges) > 1 else 0)


def _as_numbered(dataset):
    """Return True if the rows of all node types are stored in ascending order of their original ids."""
    return all(table.ids is None for table in dataset.nodes.values())


def _ids_of_all(dataset):
    """Return the original ids of all rows, concatenated over the node types."""
    starts = np.cumsum([0, *dataset.n_nodes_by_type.values()])
    return np.concatenate([table.node_ids + start for table, start in zip(dataset.nodes.values(), starts.tolist())])


def _grouped(dataset, nodes):
    """Return the node ids in `nodes` grouped by node type; the nodes of one type keep their order. The ids count the nodes of all types,
    one type after the other.
    """
    if len(dataset.nodes) == 1:
        return nodes
    ends = np.cumsum([*dataset.n_nodes_by_type.values()])
    return nodes[np.argsort(np.searchsorted(ends, nodes, side="right"), kind="stable")]


def _by_id(dataset):
    """Return (indptr, indices) of the only relation of `dataset`, with rows and sources numbered by original id."""
    table, ids = dataset.one_relation, dataset.ids
    indptr, indices = np.asarray(table.indptr), np.asarray(table.indices)
    if ids is None:
        return indptr, indices
    rows, out = inverse(np.asarray(ids)), np.empty_like(indices)
    ends = np.concatenate(([0], np.cumsum(np.diff(indptr)[rows])))
    read = lambda _, at: gather(table.indices, at)  # noqa: E731
    for first, last, _, sources in edges_in_order(indptr, indices, rows, sort=True, read=read):
        out[ends[first] : ends[last]] = sources
    return ends, out

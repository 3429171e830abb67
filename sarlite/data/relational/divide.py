"""A relational data set's rows and edges in the order in which parts own them, streamed table by table."""

from typing import NamedTuple

import numpy as np

from sarlite.data import budget
from sarlite.data.dataset import SPLITS
from sarlite.data.divide import (
    InMemory,
    _write_edges,
    _write_rows,
    copy_arrays,
    counts_up,
    record,
    stored_order,
)
from sarlite.data.mapped import copied, pieces
from sarlite.data.relational.dataset import Edges, Nodes, RelationalDataset
from sarlite.data.table import read_parts
from sarlite.errors import ConfigError
from sarlite.graph import balance as balancing
from sarlite.graph import order as orders
from sarlite.graph import typed
from sarlite.graph.fennel import BLOCK_BYTES, fennel
from sarlite.graph.partition import BALANCED, METHODS
from sarlite.graph.renumber import inverse, sequence

_SORT_BYTES = 32 << 20  # of a block's edges, brought into the order of the nodes


class Facts(NamedTuple):
    """What a relational data set has beside arrays; `offsets` by type."""

    name: str
    target: str
    n_classes: int
    task: str
    provenance: dict
    offsets: dict
    division: dict | None


def divide(dataset, parts, n_parts, sink, *, order=None, division=None):
    """Write a data set so that its rows and edges stand by part.

    Parameters
    ----------
    dataset : RelationalDataset
        In any order of its own.
    parts : dict of str to (n,) int
        By type the part of each node, by original id.
    n_parts : int
    sink : format.RelationalWriter or Memory
    order : dict of str to (n,) int, optional
        Permutations of the original ids, in which the rows of a part stand; by default ids ascend.
    division : dict, optional
        How `parts` and `order` were made, to be remembered.

    Notes
    -----
    Memory: as of `data.divide.divide`, of one table at a time, and 8 bytes a node.
    """
    found = {name: sequence(parts[name], n_parts, order and order[name]) for name in dataset.nodes}
    ids, offsets = ({name: pair[k] for name, pair in found.items()} for k in (0, 1))
    rows = {name: ids[name] if table.ids is None else inverse(np.asarray(table.ids))[ids[name]] for name, table in dataset.nodes.items()}
    for name, table in dataset.nodes.items():
        out = sink.of(table)
        if not counts_up(ids[name]):
            out.array("ids", ids[name].shape, ids[name].dtype).write(ids[name])
        for field in ("features", "labels", *SPLITS):
            if getattr(table, field) is not None:
                _write_rows(getattr(table, field), rows[name], out, field)
    for (source, _, to), table in dataset.edges.items():
        origin = table.edge_ids is not None or not counts_up(rows[to]) or not table.sources_ascend()
        origin = origin or not counts_up(rows[source])  # which changes the order in a row
        _write_edges(table, rows[to], offsets[to], sink.of(table), lambda *_: None, origin=origin, place=inverse(rows[source]))
    sink.finish(_facts(dataset, offsets, division))


def copy(dataset, sink):
    """Write a data set as its rows stand; sources of a row are sorted where they do not ascend."""
    for table in dataset.tables:
        copy_arrays(table, sink.of(table))
    sink.finish(_facts(dataset, {name: table.offsets for name, table in dataset.nodes.items()}, dataset.division))


def _facts(dataset, offsets, division):
    return Facts(dataset.name, dataset.target, dataset.n_classes, dataset.task, dataset.provenance, offsets, division)


class Memory:
    """A sink that makes a RelationalDataset in memory: `dataset`, once it is finished."""

    def __init__(self, source="dataset"):
        self.source, self.dataset, self._tables = source, None, []

    def of(self, table):
        self._tables.append((table, InMemory()))
        return self._tables[-1][1]

    def finish(self, facts):
        nodes, edges = {}, {}
        for table, out in self._tables:
            arrays = out.arrays()
            if isinstance(table, Nodes):
                name = table.node_type
                kind = {"n_classes": facts.n_classes, "task": facts.task} if name == facts.target else {}
                nodes[name] = Nodes(name, table.n_nodes, offsets=facts.offsets[name], source=self.source, **kind, **arrays)
            else:
                edges[table.relation] = Edges(table.relation, table.n_sources, source=self.source, **arrays)
        self.dataset = RelationalDataset(nodes, edges, facts.target, facts.name, self.source, facts.provenance, division=facts.division)


def joined(dataset):
    """Return the `graph.typed.Joined` graph of all types by original id, which partitions and orders are made of.

    Memory: 36 bytes an edge while it is made, then 4.
    """
    ids = {name: None if table.ids is None else np.asarray(table.ids) for name, table in dataset.nodes.items()}
    edges = {}
    for (source, name, to), table in dataset.edges.items():
        sources, rows = np.empty(table.n_edges, np.int64), np.repeat(np.arange(table.n_nodes), np.diff(table.indptr))
        for at, piece in pieces(table.indices):
            sources[at : at + len(piece)] = piece if ids[source] is None else ids[source][piece]
        edges[source, name, to] = sources, rows if ids[to] is None else ids[to][rows]
    return typed.join(edges, dataset.n_nodes)


def training(dataset):
    """The target's training nodes by original id, as `graph.typed.divide` takes them."""
    table = dataset.nodes[dataset.target]
    train = np.zeros(table.n_nodes, bool)
    train[table.node_ids] = np.asarray(table.train)
    return {dataset.target: train}


class Stored:
    """The `fennel.ReadableEdges` of all types, one type's rows after the other's, read from the files in pieces.

    Attributes
    ----------
    types : (n_types + 1,) int64
        Of type k are types[k] .. types[k + 1].
    """

    def __init__(self, dataset):
        self.n_nodes, self.n_edges = sum(dataset.n_nodes.values()), sum(dataset.n_edges.values())
        self.types = np.cumsum([0, *dataset.n_nodes.values()])
        starts = dict(zip(dataset.nodes, self.types.tolist()))
        self._into = [[(starts[source], table) for (source, _, to), table in dataset.edges.items() if to == name] for name in dataset.nodes]

    def indptr(self, first, last):
        degrees = np.zeros(last - first + 1, np.int64)
        for at, _, ends, _ in self._pieces(first, last):
            degrees[1 + at : at + ends.size] += np.diff(ends)
        return np.cumsum(degrees)

    def sources(self, first, last):
        rows, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for at, table, ends, start in self._pieces(first, last):
            rows.append(np.repeat(np.arange(at, at + ends.size - 1), np.diff(ends)))
            found.append(copied(table.indices, int(ends[0]), int(ends[-1]), np.int64) + start)
        return np.concatenate(found)[np.argsort(np.concatenate(rows), kind="stable")]

    def _pieces(self, first, last):
        """Of each relation into rows of first .. last: the first such row's place among them, the table, its indptr there, and where the
        rows of the source type begin."""
        for begin, end, tables in zip(self.types.tolist(), self.types[1:].tolist(), self._into):
            low, high = max(first, begin), min(last, end)
            for start, table in tables if low < high else ():
                yield low - first, table, copied(table.indptr, low - begin, high - begin + 1), start


def _by_fennel(dataset, n_parts, balance, seed, tell):
    edges, train = Stored(dataset), np.zeros(sum(dataset.n_nodes.values()), bool)
    at = edges.types[list(dataset.nodes).index(dataset.target)]
    train[at : at + dataset.n_nodes[dataset.target]] = dataset.nodes[dataset.target].train
    found = np.split(fennel(edges, n_parts, train=train, balance=balance, types=edges.types, seed=seed, tell=tell), edges.types[1:-1])
    parts = {}
    for (name, table), own in zip(dataset.nodes.items(), found):
        parts[name] = own if table.ids is None else np.empty_like(own)
        for first, ids in pieces(table.ids) if table.ids is not None else ():
            parts[name][ids] = own[first : first + ids.size]
    return parts


def make_parts(dataset, n_parts, method, *, balance="auto", seed=0, graph=None, n_bytes=None, tell=lambda text: None):
    """Return by type the part of every node, by original id: by Fennel, a method of `graph.typed`, or from a file.

    A file has a part for each node of all types, a type after the other as `dataset.nodes` has them. `graph` is the `joined` one, if it is
    there already; Fennel does without, reads the rows as they stand in at most `n_bytes`, and `tell`s of its streams.

    Raises
    ------
    ConfigError, DataError
        As `typed.divide` and `read_parts` say; a `balance` other than "auto" with a method that heeds none.
    """
    if balancing.check(balance) is not None and method not in BALANCED:
        raise ConfigError(f"balance: {balance} goes with {' and '.join(BALANCED)} alone, not with {method}")
    n_nodes = dataset.n_nodes
    if method not in METHODS:
        parts = read_parts(method, sum(n_nodes.values()), n_parts)
        return dict(zip(n_nodes, np.split(parts, np.cumsum([*n_nodes.values()])[:-1])))
    n = sum(n_nodes.values())
    if method == "fennel":
        budget.check(10 * n + BLOCK_BYTES + _SORT_BYTES, n_bytes, f"a partition of {n:,} nodes")
        if 1 < n_parts < n and any(dataset.n_edges.values()):
            return _by_fennel(dataset, n_parts, balance, seed, tell)
        method, balance = "contiguous", None
    if graph is None:
        graph = joined(dataset) if n_parts > 1 and method == "metis" else typed.join({}, n_nodes)
    return typed.divide(graph, n_parts, method, train=training(dataset), balance=balance, seed=seed)


def make_order(dataset, method, *, seed=0, graph=None):
    """Return by type the original ids in the order asked for, as `data.divide.make_order`; None where they ascend."""
    if method == "none" or (method == "stored" and stored_order(dataset) == "none"):
        return None
    if method == "stored":
        return {name: table.node_ids for name, table in dataset.nodes.items()}
    if method not in orders.METHODS:
        raise ConfigError(f"order: {method!r} is none of stored, none, {', '.join(orders.METHODS)}")
    graph = graph or joined(dataset)
    sequenced, ends = np.asarray(orders.order(graph.indptr, graph.indices, method, seed=seed)), graph.ends
    return {name: sequenced[(sequenced >= low) & (sequenced < high)] - low for name, low, high in zip(graph.n_nodes, ends, ends[1:])}


def reordered(dataset, order, seed):
    """Return a data set in memory whose rows stand in an order, as one part."""
    sink = Memory(dataset.source)
    divide(dataset, make_parts(dataset, 1, "contiguous"), 1, sink, order=make_order(dataset, order, seed=seed),
           division=record(1, "contiguous", order, seed))
    return sink.dataset

"""Nodes of several types divided together: one graph of all nodes, METIS or Fennel on it, and each type made even."""

from typing import NamedTuple

import numpy as np

from sarlite.graph import balance as balancing
from sarlite.graph import edges as edge_lists
from sarlite.graph.fennel import EdgesInMemory, fennel
from sarlite.graph.metis import Symmetric
from sarlite.graph.partition import BALANCED, partition

SLACK = 1.1
"""After METIS no part has more than so many times its share, rounded up, of a type's nodes."""


class Joined(NamedTuple):
    """One graph of the nodes of all types, a type after the other.

    Attributes
    ----------
    indptr, indices : CSR by destination, of all relations
    n_nodes : dict of str to int
    """

    indptr: np.ndarray
    indices: np.ndarray
    n_nodes: dict

    @property
    def ends(self):
        """(n_types + 1,): type k's nodes are ends[k] .. ends[k + 1]."""
        return np.cumsum([0, *self.n_nodes.values()])

    def by_type(self, values):
        """Cut an array of a value a node into one for each type."""
        return dict(zip(self.n_nodes, np.split(values, self.ends[1:-1])))


def join(edges, n_nodes):
    """Return the `Joined` graph of {(source type, name, destination type): (src, dst)}; ids count by type."""
    ends = np.cumsum([0, *n_nodes.values()])
    start = dict(zip(n_nodes, ends))
    src, dst = (np.concatenate([np.zeros(0, np.int64), *(np.asarray(pair[k]) + start[relation[2 * k]]
                                                         for relation, pair in edges.items())]) for k in (0, 1))
    return Joined(*edge_lists.csr_by_dst(src, dst, int(ends[-1])), n_nodes)


def divide(graph, n_parts, method="metis", *, train=None, balance=None, seed=0):
    """Return the part of each node, by type.

    Parameters
    ----------
    graph : Joined
    n_parts : int
    method : {"metis", "fennel", "random", "contiguous"}
        METIS and Fennel divide the nodes of all types together; the other two divide each type, evenly.
    train : dict of str to (n,) bool, optional
        For types that have training nodes. Used by METIS and Fennel alone; Fennel counts the training nodes of all
        types together.
    balance : str or sequence, optional
        As of `partition`, but nodes and training nodes of each type are to be even.
    seed : int

    Returns
    -------
    dict of str to (n,) int32

    Raises
    ------
    ConfigError
        As `partition`.

    Notes
    -----
    METIS knows one weight a node, and may leave a type or a type's training nodes uneven. Then the nodes that cut the
    fewest edges move, until no part has more than `SLACK` times its share, rounded up. """
    balancing.check(balance)
    if method in BALANCED and (n_parts == 1 or graph.indices.size == 0 or graph.indptr.size - 1 <= n_parts):
        method = "contiguous"
    if method == "fennel":
        chosen = [(train or {}).get(name, np.zeros(n, bool)) for name, n in graph.n_nodes.items()]
        return graph.by_type(fennel(EdgesInMemory(graph.indptr, graph.indices), n_parts, train=np.concatenate(chosen),
                                    balance=balance, types=graph.ends, seed=seed))
    if method != "metis":
        nothing = np.zeros(0, np.int32)
        return {name: partition(np.zeros(n + 1, np.int64), nothing, n_parts, method, seed=seed)
                for name, n in graph.n_nodes.items()}
    degrees = np.diff(graph.indptr)
    balance = balancing.chosen(balance, degrees)
    symmetric = Symmetric(graph.indptr, graph.indices)
    if symmetric.adjncy.size == 0:  # self loops alone
        return divide(graph, n_parts, "contiguous")
    parts = balancing.fill_empty(symmetric.divide(n_parts, seed, balancing.weights(degrees, balance)), n_parts)
    kinds = _kinds(graph, train or {}, balance)
    for kind in range(int(kinds.max(initial=-1)) + 1):
        _even(symmetric, parts, n_parts, np.flatnonzero(kinds == kind))
    return graph.by_type(parts.astype(np.int32))


def _kinds(graph, train, balance):
    """A number for each node: nodes of one number are to be even, nodes of -1 are not."""
    n_types, ends = len(graph.n_nodes), graph.ends
    kinds = np.repeat(np.arange(n_types), np.diff(ends)) if "nodes" in balance else np.full(ends[-1], -1)
    for at, name in enumerate(graph.n_nodes):
        if "train" in balance and name in train:
            kinds[ends[at] : ends[at + 1]][np.asarray(train[name])] = n_types + at
    return kinds


def _even(symmetric, parts, n_parts, nodes):
    """Move some of `nodes` from parts that have too many of them to parts that have the fewest."""
    most = int(np.ceil(SLACK * nodes.size / n_parts))
    for _ in range(4 * n_parts):
        counts = np.bincount(parts[nodes], minlength=n_parts)
        giver, taker = int(np.argmax(counts)), int(np.argmin(counts))
        n_moves = min(counts[giver] - most, most - counts[taker])
        if n_moves <= 0:
            return
        there = nodes[parts[nodes] == giver]
        parts[balancing.cheapest(symmetric.xadj, symmetric.adjncy, parts, there, giver, taker, n_moves)] = taker

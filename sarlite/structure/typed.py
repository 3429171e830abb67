"""Nodes of several types divided together: one graph of all nodes."""

from typing import NamedTuple

import numpy as np

from sarlite.structure import edges as edge_lists
from sarlite.structure.partition import partition


class Joined(NamedTuple):
    """One graph of the nodes of all types, numbered type by type.

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
        """First node of each type, and the number of all nodes, (n_types + 1,)."""
        return np.cumsum([0, *self.n_nodes.values()])

    def by_type(self, values):
        """Split an array with one value per node into one array for each type."""
        return dict(zip(self.n_nodes, np.split(values, self.ends[1:-1])))


def join(edges, n_nodes):
    """Return the `Joined` graph of {(source type, name, destination type): (src, dst)}; ids count by type."""
    ends = np.cumsum([0, *n_nodes.values()])
    start = dict(zip(n_nodes, ends))
    src, dst = (np.concatenate([np.zeros(0, np.int64), *(np.asarray(pair[k]) + start[relation[2 * k]]
                                                         for relation, pair in edges.items())]) for k in (0, 1))
    return Joined(*edge_lists.csr_by_dst(src, dst, int(ends[-1])), n_nodes)


def divide(graph, n_parts, method="metis", *, train=None, balance=None, seed=0):
    """Return the part of each node, by type: dict of str to (n,) int32.

    Parameters
    ----------
    graph : Joined
    n_parts, method, balance, seed
        As of `partition`, which divides the types.
    train : dict of str to (n,) bool, optional
        For types that have training nodes.
    """
    given = train or {}
    masks = np.concatenate([given.get(name, np.zeros(n, bool)) for name, n in graph.n_nodes.items()])
    return graph.by_type(partition(graph.indptr, graph.indices, n_parts, method, train_mask=masks, balance=balance,
                                   seed=seed, types=graph.ends))

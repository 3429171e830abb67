"""Partition of the nodes of several types together, as nodes of one graph."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sarlite.structure import edges as edge_lists
from sarlite.structure.partition import partition
from sarlite.types import Array


class Joined(NamedTuple):
    """One graph with the nodes of all types, numbered type after type, and the edges of all relations.

    Attributes
    ----------
    indptr, indices : int arrays
        CSR of the in-edges.
    n_nodes : dict of str to int
        Number of nodes of each type.
    """

    indptr: np.ndarray
    indices: np.ndarray
    n_nodes: Mapping[str, int]

    @property
    def ends(self):
        """First node of each type, followed by the number of all nodes, (n_types + 1,)."""
        return np.cumsum([0, *self.n_nodes.values()])

    def by_type(self, values: Array) -> dict[str, Array]:
        """Divide `values`, one for each node, into a dict {node type: values of its nodes}."""
        return dict(zip(self.n_nodes, np.split(values, self.ends[1:-1])))


def join(edges: Mapping[tuple[str, str, str], tuple[Array, Array]], n_nodes: Mapping[str, int]) -> Joined:
    """Return one graph with the nodes of all types and the edges of all relations (a Joined). Node i of a type becomes i plus the
    number of nodes of all types before it in `n_nodes`.

    Parameters
    ----------
    edges : dict of (source type, name, destination type) to (src, dst)
        Ends of the edges, as ids that count the nodes of each type from 0.
    n_nodes : dict of str to int
    """
    ends = np.cumsum([0, *n_nodes.values()])
    start = dict(zip(n_nodes, ends))
    src, dst = (np.concatenate([np.zeros(0, np.int64), *(np.asarray(pair[k]) + start[relation[2 * k]]
                                                         for relation, pair in edges.items())]) for k in (0, 1))
    indptr, indices = edge_lists.csr_by_dst(src, dst, int(ends[-1]))
    return Joined(indptr, indices, n_nodes)


def divide(graph: Joined, n_parts: int, method: str = "metis", *, train: Mapping[str, Array] | None = None,
           balance: str | Sequence[str] | None = None, seed: int = 0) -> dict[str, Array]:
    """Partition the nodes of all types as one graph; return {type: part of each node, (n,) int32}. `train` maps a type to the mask
    of its training nodes (None: no training nodes).

    Parameters
    ----------
    graph : Joined
    n_parts, method, balance, seed
        See `partition.partition`.
    train : dict of str to (n,) bool, optional
        Masks of the training nodes, of the types that have any.
    """
    masks_by_type = train or {}
    masks = np.concatenate([masks_by_type.get(name, np.zeros(n, bool)) for name, n in graph.n_nodes.items()])
    return graph.by_type(partition(graph.indptr, graph.indices, n_parts, method, train_mask=masks, balance=balance,
                                   seed=seed, types=graph.ends))

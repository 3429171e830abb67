"""Graphs for tests: a table of named graphs, and Hypothesis strategies that draw graphs."""

from typing import NamedTuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

SETTINGS = settings(derandomize=True, deadline=None, max_examples=40, database=None)
"""Under MPI all ranks must draw the same examples, so nothing is drawn by chance."""


class Edges(NamedTuple):
    """An edge list: edge e goes from src[e] to dst[e]."""

    src: np.ndarray
    dst: np.ndarray
    n_nodes: int

    @property
    def n_edges(self):
        return len(self.src)

    def relabelled(self, order):
        """Return the same graph as new `Edges`, with node i renamed to order[i]."""
        return Edges(order[self.src], order[self.dst], self.n_nodes)


def _edges(pairs, n_nodes):
    pairs = np.array(pairs, np.int64).reshape(-1, 2)
    return Edges(pairs[:, 0], pairs[:, 1], n_nodes)


def random_edges(n_nodes, n_edges, seed=0, n_dst=None):
    """Return `n_edges` random directed edges from all nodes into the first `n_dst` nodes; duplicates and self loops occur."""
    rng = np.random.default_rng(seed)
    return Edges(rng.integers(0, n_nodes, n_edges), rng.integers(0, n_dst or n_nodes, n_edges), n_nodes)


KINDS = {
    "random": random_edges(13, 60),
    "empty rows": random_edges(14, 40, seed=1, n_dst=6),
    "isolated nodes": Edges(*(2 * np.array(random_edges(6, 20, seed=2)[:2])), 13),
    "self loops": _edges([(i, i) for i in range(7)] + [(0, 3), (5, 3)], 7),
    "duplicate edges": _edges([(1, 0)] * 3 + [(2, 0)] * 2 + [(0, 2)] * 4, 4),
    "star in": _edges([(i, 0) for i in range(1, 12)], 12),
    "star out": _edges([(11, i) for i in range(11)], 12),
    "path": _edges([(i, i + 1) for i in range(9)], 10),
    "complete": _edges([(i, j) for i in range(6) for j in range(6)], 6),
    "one node": _edges([(0, 0)], 1),
    "one node, no edges": _edges([], 1),
    "no edges": _edges([], 5),
    "no nodes": _edges([], 0),
}


@st.composite
def edges(draw, max_nodes=9, max_edges=24):
    """Draw a small directed graph, by Hypothesis. Self loops, duplicate edges, nodes without in-edges and isolated nodes are common."""
    n_nodes = draw(st.integers(1, max_nodes))
    node = st.integers(0, n_nodes - 1)
    return _edges(draw(st.lists(st.tuples(node, node), max_size=max_edges)), n_nodes)


@st.composite
def parts(draw, n_nodes, max_ranks=4):
    """Draw (number of ranks, the rank that owns each node), by Hypothesis; a rank may own no node."""
    n_ranks = draw(st.integers(1, max_ranks))
    owners = draw(st.lists(st.integers(0, n_ranks - 1), min_size=n_nodes, max_size=n_nodes))
    return n_ranks, np.array(owners, np.int64)


widths = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33])
"""Rows of one vector register, and one off it."""


def values(seed, *shape):
    """Return standard normal numbers, float64, of which no two are equal."""
    return np.random.default_rng(seed).standard_normal(shape)


def tied_values(seed, *shape):
    """Return random numbers -1, 0 and 1, float64, so that many are equal."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float64)

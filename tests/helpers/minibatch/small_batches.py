"""Small graphs of one rank and loaders over them, for the tests of minibatches."""

import numpy as np

from sarlite import Graph, Solo
from sarlite.minibatch import NeighborLoader
from tests.helpers.graph.strategies import random_edges, values

N, N_IN, N_OUT = 90, 5, 3
EDGES = random_edges(N, 700, seed=3)
X, LABELS = values(1, N, N_IN), np.random.default_rng(2).integers(0, N_OUT, N)


def with_loops():
    """Return a graph with added self loops whose node ids differ from the row numbers."""
    graph = Graph.from_edges(*EDGES, self_loops=True)
    edges = graph.in_edges()
    had = np.zeros(N, bool)
    had[EDGES.src[EDGES.src == EDGES.dst]] = True
    return Graph.from_part(graph.comm, edges.indptr, edges.indices, node_ids=np.arange(N)[::-1] * 7 + 3, added_loops=~had)


def plain():
    return Graph.from_edges(*EDGES)


def in_another_order():
    """Return the test graph on one rank, sharded into one part with its rows in a random order and with global edge ids."""
    return plain().shard(Solo(), np.zeros(N, int), order=np.random.default_rng(4).permutation(N))


GRAPHS = {"plain": plain, "with loops": with_loops, "in another order": in_another_order}


def batches(graph, seeds, **options):
    """Return a NeighborLoader over `seeds` with three hops of all in-edges; `options` replace options of the loader."""
    options = {"fanouts": (-1, -1, -1), "batch_size": 16, **options}
    return NeighborLoader(graph, X, LABELS, seeds, **options)

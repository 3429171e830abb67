"""Fennel: cuts little more than METIS, balances every count, reads the graph in pieces, and serves the command and `shard`."""

import numpy as np
import pytest

from sarlite import Graph
from sarlite.cli.train_command import main
from sarlite.comm import threads
from sarlite.errors import ConfigError
from sarlite.structure import fennel as streaming
from sarlite.structure import order as orders
from sarlite.structure.cluster import clusters
from sarlite.structure.edges import csr_by_dst, destinations
from sarlite.structure.generate import power_law
from sarlite.structure.partition import partition, report


@pytest.fixture(scope="module")
def graphs():
    """Return a power-law graph with communities, and the same graph with ids at random."""
    indptr, indices = power_law(2000, 50_000, smallest=60, largest=300, seed=2)
    label = np.random.default_rng(1).permutation(2000)
    return (indptr, indices), csr_by_dst(label[indices], label[destinations(indptr)], 2000)


@pytest.mark.parametrize("shuffled", [False, True])
def test_it_cuts_little_more_than_metis(graphs, shuffled):
    graph, train = graphs[shuffled], np.arange(2000) < 200
    metis = report(*graph, partition(*graph, 4, "metis", balance="nodes"), 4)
    fennel = report(*graph, partition(*graph, 4, "fennel", balance="nodes"), 4)
    assert fennel["cut_share"] < 1.6 * metis["cut_share"] and fennel["imbalance"]["nodes"] < 1.04
    every = report(*graph, partition(*graph, 4, "fennel", balance="nodes,edges,train", train_mask=train), 4, train)
    assert every["cut_share"] < 2.5 * metis["cut_share"]
    assert every["imbalance"]["nodes"] < 1.06 and every["imbalance"]["edges"] < 1.12 and every["imbalance"]["train_nodes"] < 1.13


def test_it_reads_a_graph_in_pieces(graphs):
    """Fennel asks for pieces of the edges alone, in order; each pass over the pieces covers all edges once."""
    indptr, indices = graphs[1]
    asked = []

    class Pieces(streaming.EdgesInMemory):
        def sources(self, first, last):
            asked.append((indptr[first], indptr[last]))
            return super().sources(first, last)

    parts = streaming.fennel(Pieces(indptr, indices), 3, balance="nodes", block_edges=10_000)
    assert report(indptr, indices, parts, 3)["cut_share"] < 0.4
    assert max(last - first for first, last in asked) <= 10_000
    streams = sum(first == 0 for first, _ in asked)
    assert streams > 2 and sum(last - first for first, last in asked) == streams * indices.size


def test_a_node_that_fits_nowhere_goes_where_least_is():
    """The graph is a star: its middle has as many edges as all other nodes together."""
    ends = np.arange(1, 40)
    indptr, indices = csr_by_dst(ends, np.zeros_like(ends), 40, undirected=True)
    quality = report(indptr, indices, partition(indptr, indices, 4, "fennel", balance="nodes,edges"), 4)
    assert min(quality["nodes"]) > 0 and sum(quality["nodes"]) == 40 and sorted(quality["edges"])[2] < 20


def test_clusters_put_neighbours_together(graphs):
    graph = graphs[1]
    order, again, by_metis = (orders.order(*graph, method, cluster_nodes=100) for method in ("cluster", "cluster", "metis"))
    assert sorted(order.tolist()) == list(range(2000)) and np.array_equal(order, again)
    near = [orders.near_share(*graph, nodes, near=100) for nodes in (order, by_metis, None)]
    assert near[0] > 0.6 * near[1] > 2 * near[2], near
    assert np.bincount(clusters(streaming.EdgesInMemory(*graph), 100)).max() <= 100


def test_ranks_shard_by_it(graphs):
    whole = Graph.from_csr(*graphs[1])
    parts = partition(*graphs[1], 2, "fennel", seed=3)
    for rank, part in enumerate(threads.run(2, lambda comm: whole.shard(comm, "fennel", seed=3))):
        assert part.node_ids.tolist() == np.flatnonzero(parts == rank).tolist()
    two = Graph.from_edges([0, 1], [0, 1], n_src=2, n_dst=3)
    with pytest.raises(ConfigError, match="fennel divides no bipartite graph"):
        threads.run(2, lambda comm: two.shard(comm, "fennel"))


@pytest.mark.parametrize("mode, method, warned", [("broadcast", "fennel", True), ("broadcast", "random", False), ("sar", "fennel", False)])
def test_training_on_its_parts(tmp_path, capfd, mode, method, warned):
    words = ["--data", "sbm:nodes=200,degree=4,features=4,classes=2,seed=1", "--ranks", "2", "--mode", mode, "--partition", method]
    assert main([*words, "--epochs", "1", "--hidden", "4", "--run-dir", str(tmp_path / "run"), "--progress", "none"]) == 0
    said = capfd.readouterr().err
    assert (f"--mode broadcast takes as long as the largest block of each round, and the blocks of {method} parts" in said) == warned


@pytest.mark.parametrize("n_nodes", [20, 100, 1000])
@pytest.mark.parametrize("n_parts", [2, 3, 8])
def test_the_limit_of_one_count_holds_on_a_star(n_nodes, n_parts):
    """With several counts the limit cannot hold: the hub has half of the edges."""
    graph = star(n_nodes)
    nodes = np.bincount(partition(*graph, n_parts, "fennel", balance="nodes"), minlength=n_parts)
    assert nodes.max() <= np.ceil(streaming.SLACK["nodes"] * n_nodes / n_parts)
    train = np.arange(n_nodes) < n_nodes // 2
    parts = partition(*graph, n_parts, "fennel", balance="train", train_mask=train)
    trained = np.bincount(parts[train], minlength=n_parts)
    assert trained.max() <= np.ceil(streaming.SLACK["train"] * train.sum() / n_parts)


def test_the_imbalance_of_a_star_is_what_the_page_says():
    """The page is docs/data.md."""
    train = np.arange(1000) < 200

    def imbalance(n_parts):
        parts = partition(*star(1000), n_parts, "fennel", balance="nodes,edges,train", train_mask=train)
        counts = (np.bincount(parts, weights, n_parts) for weights in (None, np.diff(star(1000)[0]), train))
        return [round(count.max() / count.mean(), 2) for count in counts]

    assert imbalance(3) == [1.45, 1.55, 1.54] and imbalance(8)[1] == 4


def star(n_nodes):
    """Return (indptr, indices) of a star: node 0 and each other node are neighbours."""
    ends = np.arange(1, n_nodes)
    degrees = np.concatenate([[n_nodes - 1], np.ones(n_nodes - 1, int)])
    return np.concatenate([[0], np.cumsum(degrees)]), np.concatenate([ends, np.zeros(n_nodes - 1, int)]).astype(np.int32)

"""The order of a part's rows: a permutation for every graph, with clusters together; wrong orders are refused."""


import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarlite import Graph
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, DataError
from sarlite.structure import order as orders
from sarlite.structure.edges import csr_by_dst
from sarlite.structure.generate import power_law
from tests.helpers.graph.strategies import KINDS, SETTINGS, edges, random_edges


def assert_an_order(graph):
    indptr, indices = csr_by_dst(*graph)
    order, again = (orders.order(indptr, indices, seed=1, cluster_nodes=2) for _ in range(2))
    assert order.dtype == np.int32 and np.sort(order).tolist() == list(range(graph.n_nodes))
    assert order.tolist() == again.tolist()


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_graph_gets_a_permutation(name):
    assert_an_order(KINDS[name])


@SETTINGS
@given(graph=edges())
def test_any_graph_gets_a_permutation(graph):
    assert_an_order(graph)


def test_a_shuffled_graph_gets_its_communities_back():
    """In the graph relabelled at random 2 % of the edges are between near nodes; in the order most within communities are."""
    indptr, indices = power_law(4000, 80_000, smallest=40, largest=60)
    shuffle = np.random.default_rng(0).permutation(4000)
    indptr, indices = csr_by_dst(shuffle[indices], shuffle[np.repeat(np.arange(4000), np.diff(indptr))], 4000)
    new_order = orders.order(indptr, indices, cluster_nodes=50)
    before, after = (orders.near_share(indptr, indices, order, near=50) for order in (None, new_order))
    assert before < 0.05 and after > 0.5


@SETTINGS
@given(graph=edges(), near=st.integers(1, 4), data=st.data())
def test_the_share_of_near_edges_is_what_a_loop_counts(graph, near, data):
    order = np.array(data.draw(st.permutations(range(graph.n_nodes))))
    place = {int(node): i for i, node in enumerate(order)}
    expected = [abs(place[int(u)] - place[int(v)]) < near for u, v in zip(graph.src, graph.dst)]
    share = orders.near_share(*csr_by_dst(*graph), order, near=near)
    by_id = orders.near_share(*csr_by_dst(*graph), near=near)
    assert share == pytest.approx(np.mean(expected) if expected else 0)
    assert by_id == pytest.approx((np.abs(graph.src - graph.dst) < near).mean() if expected else 0)


REFUSED = {
    "a place too few": (np.arange(3), r"order: expected shape \(4,\)"),
    "not integers": (np.arange(4.0), "order: expected an integer dtype"),
    "a node too many": (np.array([0, 1, 4, 2]), "order: place 2 has node 4"),
    "a negative node": (np.array([0, -1, 1, 2]), "order: place 1 has node -1"),
    "a node twice": (np.array([0, 1, 1, 3], np.uint64), "order: node 2 is missing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_permutation_is_refused(name):
    order, word = REFUSED[name]
    with pytest.raises(DataError, match="some file: " + word):
        orders.check_order(order, 4, "some file")
    whole = Graph.from_edges(np.array([0, 1]), np.array([2, 3]), 4)
    refused = []

    def work(comm):
        with pytest.raises(DataError, match=word):
            whole.shard(comm, "random", order=order)
        refused.append(comm.rank)

    threads.run(2, work)
    assert sorted(refused) == [0, 1]


def test_an_unknown_method_is_refused_on_every_rank():
    refused = []

    def work(comm):
        with pytest.raises(ConfigError, match="order: 'best'"):
            Graph.from_edges(*KINDS["random"]).shard(comm, "random", order="best")
        refused.append(comm.rank)

    threads.run(2, work)
    assert sorted(refused) == [0, 1]


def test_by_name_on_one_rank_and_on_three():
    whole = Graph.from_edges(*random_edges(5000, 20_000))  # METIS makes five clusters of these nodes
    order = orders.order(*whole.in_edges()[:2], seed=4)
    assert not (np.diff(order) > 0).all()
    assert whole.shard(Solo(), order="metis", seed=4).node_ids.tolist() == order.tolist()
    for part in threads.run(3, lambda comm: whole.shard(comm, "contiguous", order="metis", seed=4)):
        assert part.node_ids.tolist() == [node for node in order if node in part.node_ids]


@pytest.mark.parametrize("mode", ["sar", "oneshot"])
@pytest.mark.parametrize("n_ranks", [1, 2, 4])
def test_blocks_and_messages_stand_in_the_owners_order(n_ranks, mode):
    """A rank sends ascending rows, and the receiver's columns are the nodes of these rows."""
    whole, draw = Graph.from_edges(*random_edges(60, 400)), np.random.default_rng(3)
    owner, order = draw.integers(0, n_ranks, 60), draw.permutation(60)
    ranks = threads.run(n_ranks, lambda comm: whole.shard(comm, owner, order=order, mode=mode))
    for p, part in enumerate(ranks):
        assert part.node_ids.tolist() == order[owner[order] == p].tolist()
        assert part.plan.local.src_ids[: part.n_dst].tolist() == part.node_ids.tolist()
        assert len(part.plan.halo()) == n_ranks - 1
        for at, source, place in part.plan.halo():
            (send_rows,) = (np.arange(ranks[source].n_src)[other.send_rows]
                            for other in ranks[source].plan.exchanges if other.target == p)
            assert len(send_rows) > 5 and (np.diff(send_rows) > 0).all()
            assert at.src_ids[place].tolist() == ranks[source].node_ids[send_rows].tolist()

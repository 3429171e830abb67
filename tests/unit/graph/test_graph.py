"""Graphs from users' data: edge lists, CSR, SciPy, DLPack; and refused inputs."""


import numpy as np
import pytest
import scipy.sparse
from hypothesis import given

from sarlite import Graph, HeteroGraph, Tensor, fn
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, DataError, SarliteError, ShapeError
from sarlite.graph.propagation import Propagation
from sarlite.minibatch import message_flow
from sarlite.structure.block import Block
from tests.helpers.graph.strategies import SETTINGS, edges, random_edges, values

pytestmark = pytest.mark.timeout(60)

EDGES = random_edges(9, 30, seed=2)
X = values(1, 9, 3)


def total(graph):
    return graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum").data


def dense(edges=EDGES):
    a = np.zeros((edges.n_nodes, edges.n_nodes))
    np.add.at(a, (edges.dst, edges.src), 1)
    return a


class Exported:
    """An array that offers DLPack alone."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("convert", [list, tuple, Exported, np.int32, np.uint8, Tensor])
def test_edge_lists_of_any_kind(convert):
    np.testing.assert_allclose(total(Graph.from_edges(convert(EDGES.src), convert(EDGES.dst), 9)), dense() @ X)


def test_the_number_of_nodes_by_default():
    graph = Graph.from_edges(np.array([0, 4]), np.array([2, 0]))
    assert (graph.n_nodes, graph.n_src, graph.n_dst, graph.n_edges) == (5, 5, 5, 2)
    assert graph.in_degrees.tolist() == [1, 0, 1, 0, 0] and graph.node_ids.tolist() == [0, 1, 2, 3, 4]


def test_options_change_the_edges():
    a = dense()
    both = ((a + a.T) > 0).astype(float)
    loops = a.copy()
    loops[np.diag_indices(9)] = np.maximum(np.diag(a), 1)
    for option, matrix in [("undirected", both), ("self_loops", loops), ("deduplicate", (a > 0).astype(float))]:
        np.testing.assert_allclose(total(Graph.from_edges(*EDGES, **{option: True})), matrix @ X, err_msg=option)


@pytest.mark.parametrize("options", [{}, {"undirected": True}, {"deduplicate": True}], ids=lambda options: " ".join(options) or "plain")
def test_added_self_loops_are_marked(options):
    """The test has a part, and a graph without some of the edges, one of them a loop."""
    missing = np.diag(dense()) == 0
    whole = Graph.from_edges(*EDGES, self_loops=True, **options)

    def work(comm):
        graph = whole.shard(comm, np.arange(9) % comm.size)
        np.testing.assert_array_equal(graph.added_loops, missing[graph.node_ids])
        edges, ids = graph.in_edges(), np.concatenate(comm.allgather(graph.node_ids))
        is_loop = ids[edges.indices] == np.repeat(graph.node_ids, np.diff(edges.indptr))
        mask = ~is_loop | (ids[edges.indices] % 2 == 0)
        np.testing.assert_array_equal(graph.subgraph(mask).added_loops, (missing & (np.arange(9) % 2 == 0))[graph.node_ids])

    assert missing.any() and not missing.all() and Graph.from_edges(*EDGES, **options).added_loops is None
    np.testing.assert_array_equal(whole.added_loops, missing)
    for n_ranks in (1, 2):
        threads.run(n_ranks, work)


CHANGES = {
    "no loop is missing": ([2, 0, 1, 2, 0], [0, 0, 1, 2, 2], dict(self_loops=True), [], 0),
    "a loop is missing": ([2, 0, 1, 0], [0, 0, 1, 1], dict(self_loops=True), [(2, 2)], 0),
    "both ways are there": ([2, 0, 1], [0, 2, 1], dict(undirected=True), [], 0),
    "one way is there": ([2, 1, 0], [0, 0, 2], dict(undirected=True), [(0, 1)], 0),
    "no edge is there twice": ([2, 1, 0], [1, 0, 0], dict(deduplicate=True), [], 0),
    "an edge is there twice": ([2, 1, 2], [1, 0, 1], dict(deduplicate=True), [], 1),
}


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("sharded", [False, True])
def test_edge_values_stay_in_the_order_of_the_given_edges(case, sharded):
    """Values of added edges come after the values of the given edges; values that fit the given edges belong to them."""
    src, dst, options, added, n_dropped = CHANGES[case]
    graph = Graph.from_edges(src, dst, 3, **options)
    n = len(src) - n_dropped
    graph = graph.shard(Solo(), order=[2, 0, 1]) if sharded else graph
    assert graph.n_edges == n + len(added)
    expected, weight = np.zeros((3, 3)), np.arange(1.0, graph.n_edges + 1)
    np.add.at(expected, ([*dst[:n], *(to for _, to in added)], [*src[:n], *(at for at, _ in added)]), weight)
    for sums in (graph.with_edge_values(weight).aggregate(fn.copy_src(np.eye(3)[graph.src_ids]), "sum"),
                 graph.aggregate(fn.mul_edge(np.eye(3)[graph.src_ids], weight[graph.edge_ids]), "sum")):
        np.testing.assert_array_equal(sums.data, expected[graph.dst_ids])
    if len(src) != graph.n_edges:
        with pytest.raises(ShapeError, match=f"{graph.n_edges}"):
            graph.with_edge_values(np.ones(len(src)))


def test_values_that_fit_other_edges_are_refused():
    """The numbers of dropped and added edges are equal, so the number of values cannot tell the given edges from the graph's."""
    graph = Graph.from_edges([0, 0, 1], [1, 1, 1], 2, deduplicate=True, self_loops=True)
    assert graph.n_edges == 3
    x, weight = np.ones((2, 1)), np.ones(3)
    flow = message_flow(graph, slice(None), 1, x)
    for refused in (lambda: graph.with_edge_values(weight), lambda: graph.aggregate(fn.mul_edge(x, weight), "sum"),
                    lambda: graph.shard(Solo(), "contiguous").with_edge_values(weight),
                    lambda: flow.layers(1)[0].aggregate(fn.mul_edge(x, weight), "sum"),
                    lambda: Propagation(graph, edge_weight=weight)(x)):
        with pytest.raises(ConfigError, match="dropped 1 .*added as many"):
            refused()
    np.testing.assert_array_equal(graph.aggregate(fn.copy_src(x), "sum").data, [[1], [2]])


def test_one_rank_s_edge_values_are_in_the_order_of_the_given_edges():
    """The order also holds for a rank that has every edge, and for a relation, with and without an index by `edge_ids`."""
    relation, src, dst = ("a", "r", "a"), np.array([2, 0, 1, 1]), np.array([1, 0, 2, 0])
    weight = np.array([1.0, 10, 100, 1000])

    parts, expected = np.array([0, 0, 0, 1]), np.zeros((4, 4))
    expected[dst, src] = weight

    def work(comm):
        hetero = HeteroGraph.from_edges({relation: (src, dst)}, {"a": 4}, comm=comm, parts={"a": parts % comm.size})
        graph = Graph.from_edges(src, dst, 4).shard(comm, parts % comm.size, order=[2, 0, 1, 3])
        of_relation = lambda message: hetero.aggregate({relation: message}, "sum")["a"]  # noqa: E731
        check(lambda message: graph.aggregate(message, "sum"), graph.node_ids, graph.edge_ids)
        check(of_relation, hetero.node_ids["a"], hetero.edge_ids[relation])

    def check(total_of, node_ids, edge_ids):
        for weight_given in (weight[edge_ids], weight[: len(edge_ids)]):
            sums = total_of(fn.mul_edge(np.eye(4)[node_ids], weight_given)).data
            np.testing.assert_array_equal(sums, expected[node_ids])

    for n_ranks in (1, 2):
        threads.run(n_ranks, work)


@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.coo_array, scipy.sparse.csc_matrix, scipy.sparse.csr_matrix])
def test_a_scipy_array_holds_edges_from_columns_to_rows(kind):
    a = kind((dense() > 0).astype(float))
    np.testing.assert_allclose(total(Graph.from_csr(a)), a @ X)


@SETTINGS
@given(graph=edges())
def test_from_csr_and_from_edges_agree(graph):
    one = Graph.from_edges(*graph)
    indptr, indices = one.in_edges()[:2]
    other = Graph.from_csr(indptr, indices)
    x = values(1, graph.n_nodes, 2)
    np.testing.assert_array_equal(one.aggregate(fn.copy_src(x), "sum").data, other.aggregate(fn.copy_src(x), "sum").data)
    weight = values(2, graph.n_edges)
    ordered = weight[np.lexsort((np.arange(graph.n_edges), graph.src, graph.dst))]  # from_csr numbers edges by position
    np.testing.assert_allclose(one.aggregate(fn.mul_edge(x, weight), "sum").data, other.aggregate(fn.mul_edge(x, ordered), "sum").data)


def test_edge_index_names_each_entry():
    indptr, indices, order = np.array([0, 2, 3]), np.array([0, 1, 1]), np.array([2, 0, 1])
    weight = np.array([10.0, 100.0, 1000.0])
    out = Graph.from_csr(indptr, indices, edge_index=order).aggregate(fn.mul_edge(np.array([[1.0], [2.0]]), weight), "sum")
    assert out.data.tolist() == [[1000 + 2 * 10], [2 * 100]]


REFUSED = {
    "source out of range": (lambda: Graph.from_edges(np.array([0, 9]), np.array([0, 1]), 9), "src: node id 9 at position 1"),
    "negative destination": (lambda: Graph.from_edges(np.array([0, 1]), np.array([0, -1]), 9), "dst: node id -1 at position 1"),
    "lengths": (lambda: Graph.from_edges(np.array([0, 1]), np.array([0]), 9), "2 and 1"),
    "fractions": (lambda: Graph.from_edges(np.array([0.5]), np.array([0]), 9), "integer"),
    "indices out of range": (lambda: Graph.from_csr(np.array([0, 1]), np.array([1])), "source 1"),
    "indptr falls": (lambda: Graph.from_csr(np.array([0, 2, 1, 2]), np.array([0, 0])), "indptr"),
    "indptr ends early": (lambda: Graph.from_csr(np.array([0, 1]), np.array([0, 0])), "indptr"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_graphs_are_refused(name):
    make, word = REFUSED[name]
    with pytest.raises(SarliteError, match=word) as caught:
        make()
    assert isinstance(caught.value, DataError)


def test_a_part_cannot_be_sharded_again():
    with pytest.raises(ConfigError, match="whole"):
        threads.run(2, lambda comm: Graph.from_edges(*EDGES).shard(comm, "random").shard(comm, "random"))


def test_the_parts_are_the_graph():
    parts = threads.run(3, lambda comm: Graph.from_edges(*EDGES).shard(comm, "random"))
    assert np.sort(np.concatenate([p.node_ids for p in parts])).tolist() == list(range(9))
    assert np.sort(np.concatenate([p.edge_ids for p in parts])).tolist() == list(range(30))
    for p in parts:
        assert (np.diff(p.node_ids) > 0).all() and p.n_nodes == 9
        np.testing.assert_allclose(p.in_degrees, dense().sum(1)[p.node_ids])
        assert sum(b.n_edges for b in p.plan.blocks) == p.n_edges == p.in_degrees.sum()


@SETTINGS
@given(graph=edges())
def test_the_transpose_of_a_block(graph):
    indptr, indices = Graph.from_edges(*graph).in_edges()[:2]
    one = Block(indptr, indices, np.arange(graph.n_nodes))
    t_indptr, t_indices = one.transpose
    columns = np.repeat(np.arange(graph.n_nodes), np.diff(t_indptr))
    assert (indices[one.transpose_position] == columns).all() and (one.dst[one.transpose_position] == t_indices).all()
    assert np.sort(one.transpose_position).tolist() == list(range(graph.n_edges))


@SETTINGS
@given(graph=edges())
def test_the_pieces_of_a_block_are_its_edges(graph):
    indptr, indices = Graph.from_edges(*graph).in_edges()[:2]
    one = Block(indptr, indices, np.arange(graph.n_nodes))
    pieces = one.in_pieces(1)
    assert np.concatenate([p.edge_index_array for p in pieces]).tolist() == list(range(graph.n_edges))
    assert np.concatenate([p.indices for p in pieces]).tolist() == indices.tolist()
    assert np.concatenate([p.dst for p in pieces]).tolist() == one.dst.tolist()
    rows = [np.arange(graph.n_nodes) if p is one else p.rows for p in pieces]
    assert np.concatenate(rows).tolist() == list(range(graph.n_nodes))
    assert all(len(p.indptr) == len(r) + 1 and p.n_dst == graph.n_nodes for p, r in zip(pieces, rows))


@pytest.mark.parametrize("indptr, indices, options, word", [
    ([0, 1, 2], [0, 1], {"node_ids": np.zeros(3, int)}, "node_ids: expected shape \\(2,\\), found \\(3,\\)"),
    ([0, 1, 2], [0, 1], {"node_ids": np.array([0])}, "node_ids: expected shape \\(2,\\), found \\(1,\\)"),
    ([0, 1, 2], [0, 1], {"node_ids": np.array([0.0, 1.0])}, "node_ids: expected an integer dtype, found float64"),
    ([0, 1, 2], [0, 1], {"edge_ids": np.array([0])}, "edge_ids: expected shape \\(2,\\), found \\(1,\\)"),
    ([0, 1, 2], [0, 1], {"added_loops": np.zeros(3, bool)}, "added_loops: expected 2 bools, found shape \\(3,\\)"),
    ([0, 1, 2], [0, 1], {"n_src": 2, "src_ids": np.array([0])}, "src_ids: expected shape \\(2,\\), found \\(1,\\)"),
    ([0, 2], [0, 0, 0], {}, "indptr does not ascend from 0 to 3 in 2 entries"),
    ([0, 2, 1], [0], {}, "indptr does not ascend"),
    ([0, 1, 2], [0, 2], {}, r"edge 1: source 2 is not in 0\.\.1"),
    ([0, 1, 2], [-1, 0], {}, r"edge 0: source -1 is not in 0\.\.1"),
    ([0, 1, 2], [0, 5], {"n_src": 5}, r"edge 1: source 5 is not in 0\.\.4"),
])  # fmt: skip
def test_a_wrong_part_is_refused(indptr, indices, options, word):
    with pytest.raises(DataError, match=word):
        Graph.from_part(Solo(), np.array(indptr, np.int64), np.array(indices, np.int64), **options)


# ---- ranks that disagree


def _parts(p):
    return np.arange(9) % 2 if p else np.arange(9) // 5


DISAGREEING = {
    "mode": lambda g, comm: g.shard(comm, "random", mode="sa" if comm.rank else "sar"),
    "oneshot on one": lambda g, comm: g.shard(comm, "random", mode="oneshot" if comm.rank == 1 else "sar"),
    "a mode that is none": lambda g, comm: g.shard(comm, "random", mode="none" if comm.rank == 1 else "sar"),
    "prefetch": lambda g, comm: g.shard(comm, "random", prefetch=comm.rank),
    "prefetch on one": lambda g, comm: g.shard(comm, "random", prefetch=1 if comm.rank == 1 else None),
    "parts": lambda g, comm: g.shard(comm, _parts(comm.rank == 2)),
    "order": lambda g, comm: g.shard(comm, "random", order=np.roll(np.arange(9), comm.rank)),
    "parts of the wrong length": lambda g, comm: g.shard(comm, np.zeros(9 + comm.rank, int)),
    "node_ids on some": lambda g, comm: _a_part(comm, node_ids=np.arange(2) if comm.rank else None),
    "edge_ids on some": lambda g, comm: _a_part(comm, edge_ids=np.arange(2) if comm.rank == 1 else None),
    "n_src on some": lambda g, comm: _a_part(comm, n_src=2 if comm.rank == 1 else None),
    "src_ids on some": lambda g, comm: _a_part(comm, n_src=2, src_ids=np.arange(2) if comm.rank == 2 else None),
    "node_ids too short on one": lambda g, comm: _a_part(comm, node_ids=np.arange(1 if comm.rank == 2 else 2)),
}


def _a_part(comm, **options):
    return Graph.from_part(comm, np.array([0, 1, 2]), np.array([0, 1]), **options)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", DISAGREEING)
def test_ranks_that_disagree_are_refused_on_every_rank(name):
    refused = []

    def work(comm):
        with pytest.raises((ConfigError, DataError)):
            DISAGREEING[name](Graph.from_edges(*EDGES), comm)
        refused.append(comm.rank)

    threads.run(3, work)
    assert sorted(refused) == [0, 1, 2]


@pytest.mark.parametrize("prefetch, expected", [(None, 5), (0, 0), (2, 2)])
def test_rows_are_fetched_ahead_as_the_machine_allows_unless_a_number_is_given(monkeypatch, prefetch, expected):
    monkeypatch.setattr("sarlite.schedule.schedule.default_prefetch", lambda comm, n_threads: 5)
    shards = threads.run(2, lambda comm: Graph.from_edges(*EDGES).shard(comm, "random", prefetch=prefetch))
    assert [part.schedule.transport.prefetch for part in shards] == [expected] * 2


def test_what_makes_a_part_need_not_agree():
    def work(comm):
        part = _a_part(comm, node_ids=10 * comm.rank + np.arange(2), edge_ids=np.arange(2))
        return part.node_ids.tolist(), part.n_nodes, part.aggregate(fn.copy_src(part.node_ids[:, None] * 1.0), "sum").data[:, 0].tolist()

    assert threads.run(3, work) == [([0, 1], 6, [0.0, 1.0]), ([10, 11], 6, [0.0, 1.0]), ([20, 21], 6, [0.0, 1.0])]

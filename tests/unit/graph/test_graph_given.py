"""Inputs of callers are checked where they enter, and edge weights are never left out."""

import re

import numpy as np
import pytest
import scipy.sparse

from sarlite import Graph, HeteroGraph, fn
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError, SarliteError, ShapeError
from sarlite.structure import validation

X = np.array([[1.0], [10.0], [100.0]])
ROWS, COLUMNS, VALUES = np.array([0, 2, 0, 0, 1]), np.array([1, 0, 1, 2, 1]), np.array([0.5, 2.0, 0.25, 0.0, 1.0])  # (0, 1) twice, a zero


def unsummed(kind):
    """Return a matrix of these entries, with duplicates and an explicit zero."""
    coo = scipy.sparse.coo_array((VALUES, (ROWS, COLUMNS)), shape=(3, 3))
    if kind == "coo":
        return coo
    order = np.lexsort((np.arange(5), ROWS if kind == "csr" else COLUMNS))
    lines, others = (ROWS, COLUMNS) if kind == "csr" else (COLUMNS, ROWS)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(lines, minlength=3))])
    array_class = {"csr": scipy.sparse.csr_array, "csc": scipy.sparse.csc_array}[kind]
    return array_class((VALUES[order], others[order], indptr), shape=(3, 3))


@pytest.mark.parametrize("kind", ["coo", "csr", "csc"])
def test_a_matrix_gives_a_graph_and_one_weight_an_entry(kind):
    matrix = unsummed(kind)
    graph, weights = Graph.from_scipy(matrix)
    assert graph.n_edges == 5 and graph.in_degrees.tolist() == [3, 1, 1]
    assert weights.tolist() == matrix.tocoo().data.tolist()
    np.testing.assert_allclose(graph.aggregate(fn.mul_edge(X, weights), "sum").data, matrix.toarray() @ X)
    assert graph.aggregate(fn.copy_src(X), "sum").data.tolist() == [[120.0], [10.0], [1.0]]  # the pattern: (0, 1) twice, the zero once


@pytest.mark.parametrize("kind", ["bsr", "csc", "csr", "coo", "dia", "dok", "lil"])
@pytest.mark.parametrize("shape", [(3, 3), (2, 3)])
def test_every_format_gives_its_weights(kind, shape):
    dense = np.array([[0, 2.0, 0], [3, 0, 0], [0, 0.5, 7]])[: shape[0]]
    for array_class in (scipy.sparse.coo_array, scipy.sparse.coo_matrix):
        matrix = array_class(dense).asformat(kind)
        graph, weights = Graph.from_scipy(matrix)
        assert graph.n_edges == np.count_nonzero(dense) and graph.bipartite == (shape[0] != 3)
        np.testing.assert_allclose(graph.aggregate(fn.mul_edge(X, weights), "sum").data, dense @ X)
        with pytest.raises(DataError, match=r"another value than 1, .*Graph\.from_scipy\(matrix\)"):
            Graph.from_csr(matrix)
        ones = array_class((dense > 0).astype(np.float32)).asformat(kind)
        assert Graph.from_csr(ones).n_edges == graph.n_edges


def test_duplicates_of_ones_stay_edges():
    graph = Graph.from_csr(scipy.sparse.coo_array((np.ones(3), ([0, 0, 1], [1, 1, 0])), shape=(2, 2)))
    assert graph.n_edges == 3 and graph.in_degrees.tolist() == [2, 1]


@pytest.mark.parametrize("values, word", [
    ([1.0, 0.0], "1 of 2 edges have another value than 1, the first is 0.0"),
    ([np.nan, 1.0], "the first is nan"),
    (np.array([1, 2]), "the first is 2"),
    (np.array([True, False]), "the first is False"),
])  # fmt: skip
def test_values_other_than_one_are_refused_by_name(values, word):
    with pytest.raises(DataError, match="from_csr: .*" + word):
        Graph.from_csr(scipy.sparse.csr_array((np.asarray(values), [0, 1], [0, 1, 2]), shape=(2, 2)))


def test_weights_keep_floats_and_are_finite():
    def matrix(values):
        return scipy.sparse.csr_array((values, [0, 1], [0, 1, 2]), shape=(2, 2))

    for dtype, expected in ((np.float32, np.float32), (np.float64, np.float64), (np.int16, np.float64), (bool, np.float64)):
        assert Graph.from_scipy(matrix(np.ones(2, dtype)))[1].dtype == expected
    with pytest.raises(DataError, match="from_scipy: entry 1 is inf"):
        Graph.from_scipy(matrix(np.array([1, np.inf])))
    with pytest.raises(DataError, match="complex"):
        Graph.from_scipy(matrix(np.ones(2, complex)))


class TorchTensor:
    """A stand-in with the methods of a torch.Tensor that sarlite calls."""

    def __init__(self, array):
        self.data = np.asarray(array)

    def detach(self):
        return self

    def __array__(self):
        return self.data


class TorchCSR:
    """A stand-in for a torch tensor of layout sparse_csr, which has `indices` and `__array__`, and fails in both."""

    shape = (2, 2)

    def __init__(self, *parts):
        self.crow_indices, self.col_indices, self.values = ((lambda part=part: TorchTensor(part)) for part in parts)

    def indices(self):
        raise RuntimeError("indices expected sparse coordinate tensor layout but got SparseCsr")

    __array__ = indices


def test_a_torch_csr_tensor():
    graph = Graph.from_csr(TorchCSR([0, 1, 3], [1, 0, 1], np.ones(3, np.float32)))
    assert graph.in_degrees.tolist() == [1, 2] and graph.aggregate(fn.copy_src(X[:2]), "sum").data.tolist() == [[10.0], [11.0]]
    graph, weights = Graph.from_scipy(TorchCSR([0, 1, 3], [1, 0, 1], np.array([2, 3, 4], np.float32)))
    assert graph.aggregate(fn.mul_edge(X[:2], weights.astype(float)), "sum").data.tolist() == [[20.0], [43.0]]
    with pytest.raises(DataError, match="3 of 3 edges have another value"):
        Graph.from_csr(TorchCSR([0, 1, 3], [1, 0, 1], np.array([2, 3, 4], np.float32)))


class Network:
    """A stand-in with the methods of a networkx graph that sarlite calls."""

    def __init__(self, nodes, edges, directed):
        self.nodes, self._edges, self._directed = nodes, edges, directed

    def is_directed(self):
        return self._directed

    def edges(self, data, default):
        return [(u, v, attributes.get(data, default)) for u, v, attributes in self._edges]


def both_networks(nodes, edges, directed):
    """Yield the stand-in, and networkx's own graph if networkx is installed."""
    yield Network(nodes, edges, directed)
    try:
        import networkx
    except ImportError:
        return
    network = networkx.MultiDiGraph() if directed else networkx.MultiGraph()
    network.add_nodes_from(nodes)
    network.add_edges_from(edges)
    yield network


def test_a_networkx_graph():
    edges = [("b", "a", {"weight": 2}), ("b", "a", {"weight": 0.5, "cost": 3}), ("c", "c", {}), ("a", "c", {"cost": 7})]
    for network in both_networks(["b", "a", "c"], edges, directed=True):
        graph, weights = Graph.from_networkx(network, weight="weight")
        assert graph.n_edges == 4 and graph.in_degrees.tolist() == [0, 2, 2]
        sums = graph.aggregate(fn.mul_edge(X, weights), "sum").data
        assert sums.tolist() == [[0.0], [2.5], [110.0]]  # b, a, c are nodes 0, 1, 2
        sums = Graph.from_networkx(network, weight="cost")
        assert sorted(sums[1].tolist()) == [1, 1, 3, 7]
        with pytest.raises(DataError, match=r"2 of 4 edges .*Graph.from_networkx\(graph, weight='weight'\) returns"):
            Graph.from_networkx(network)
    for network in both_networks(["b", "a", "c"], edges, directed=False):
        graph, weights = Graph.from_networkx(network, weight="weight")
        assert graph.n_edges == 7 and graph.in_degrees.tolist() == [2, 3, 2] and sum(weights) == 2 * (2.5 + 1) + 1
        np.testing.assert_allclose(graph.aggregate(fn.mul_edge(X, weights), "sum").data, [[25.0], [102.5], [110.0]])
    for network in both_networks(["b", "a"], [("b", "a", {"cost": 3})], directed=False):
        assert Graph.from_networkx(network).n_edges == 2
    with pytest.raises(DataError, match="edge attribute 'weight': "):
        Graph.from_networkx(Network([0], [(0, 0, {"weight": "heavy"})], directed=True))
    with pytest.raises(ConfigError, match="dict is not a networkx graph"):
        Graph.from_networkx({})


CSR = np.array([0, 1, 2]), np.array([1, 0])
REFUSED = {
    "edge_index out of range": (lambda: Graph.from_csr(*CSR, edge_index=np.array([0, 9])), "edge_index: entry 1 is 9, outside 0 <= id < 2"),
    "edge_index huge": (lambda: Graph.from_csr(*CSR, edge_index=np.array([10**9, 0])), "edge_index: entry 0 is 1000000000"),
    "edge_index negative": (lambda: Graph.from_csr(*CSR, edge_index=np.array([-1, 0])), "edge_index: entry 0 is -1"),
    "edge_index short": (lambda: Graph.from_csr(*CSR, edge_index=np.array([0])), r"edge_index: expected shape \(2,\), found \(1,\)"),
    "edge_index floats": (lambda: Graph.from_csr(*CSR, edge_index=np.array([0.0, 1.0])), "edge_index: expected an integer dtype"),
    "edge_index twice": (lambda: Graph.from_csr(*CSR, edge_index=np.array([1, 1])), "edge_index: id 0 is missing"),
    "edge_index of a matrix": (lambda: Graph.from_csr(scipy.sparse.coo_array(np.eye(2)), edge_index=[0, 1]), "edge_index goes only with"),
    "indptr of floats": (lambda: Graph.from_csr(np.array([0, 1.5, 2]), CSR[1]), "indptr: expected an integer dtype"),
    "indices of floats": (lambda: Graph.from_csr(CSR[0], np.array([0.5, 1])), "indices: expected an integer dtype"),
    "indices of two dimensions": (lambda: Graph.from_csr(CSR[0], [[0, 1]]), "indices: expected one dimension"),
    "no indptr": (lambda: Graph.from_csr([], []), "indptr does not ascend"),
    "uint64 past int64": (lambda: Graph.from_csr(CSR[0], np.array([0, 2**64 - 1], np.uint64)), "indices: entry 1 is 18446744073709551615"),
    "no matrix": (lambda: Graph.from_csr([[0, 1]]), "list is neither a SciPy sparse array nor a torch CSR tensor"),
    "one dimension": (lambda: Graph.from_csr(scipy.sparse.coo_array(np.ones(3))), "expected two dimensions"),
    "n_src a float": (lambda: Graph.from_csr(*CSR, n_src=2.5), "n_src: 2.5 is not a whole number"),
    "n_src huge": (lambda: Graph.from_csr(*CSR, n_src=10**12), "n_src: 1000000000000 is outside"),
    "ragged": (lambda: Graph.from_edges([[0], [1, 2]], [0, 1]), "src: not an array"),
    "objects": (lambda: Graph.from_edges([0, None], [0, 1]), "src: expected numbers, found dtype object"),
    "words": (lambda: Graph.from_edges(["a"], [0]), "src: expected an integer dtype"),
    "bools": (lambda: Graph.from_edges([True], [False]), "src: expected an integer dtype, found bool"),
    "negative without n_nodes": (lambda: Graph.from_edges([-1], [0]), "src: node id -1 at position 0"),
    "huge without n_nodes": (lambda: Graph.from_edges([10**12], [0]), "src: node id 1000000000000 at position 0"),
    "unsigned and huge": (lambda: Graph.from_edges(np.array([2**63], np.uint64), [0]), "src: node id 9223372036854775808"),
    "n_nodes a float": (lambda: Graph.from_edges([0], [0], 2.0), "n_nodes: 2.0 is not a whole number"),
    "n_nodes negative": (lambda: Graph.from_edges([], [], -5), "n_nodes: -5 is outside"),
    "bipartite floats": (lambda: Graph.from_edges([0.5], [0], n_src=1, n_dst=1), "src: expected an integer dtype"),
    "bipartite counts": (lambda: Graph.from_edges([0], [0], n_src=1, n_dst=-1), "n_dst: -1 is outside"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    make, word = REFUSED[name]
    with pytest.raises(SarliteError, match=word):
        make()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, ">i4", ">i8"])
def test_integers_of_every_dtype(dtype):
    src, dst = np.array([0, 4], dtype), np.array([2, 0], dtype)
    graph = Graph.from_edges(src, dst)
    assert graph.n_nodes == 5 and graph.in_degrees.tolist() == [1, 0, 1, 0, 0]
    graph = Graph.from_csr(np.array([0, 1, 2], dtype), np.array([1, 0], dtype), edge_index=np.array([1, 0], dtype))
    assert graph.aggregate(fn.mul_edge(X[:2], np.array([3.0, 5.0])), "sum").data.tolist() == [[50.0], [3.0]]

    def work(comm):
        return Graph.from_part(comm, np.array([0, 1], dtype), np.array([1 - comm.rank], dtype), node_ids=np.array([comm.rank], dtype))

    assert [graph.n_edges for graph in threads.run(2, work)] == [1, 1]


def test_lists_and_strides_serve_as_arrays():
    assert Graph.from_edges([], []).n_nodes == 0
    graph = Graph.from_csr([0, 1, 2], [1, 0], edge_index=[1, 0])
    assert graph.aggregate(fn.mul_edge(X[:2], np.array([3.0, 5.0])), "sum").data.tolist() == [[50.0], [3.0]]
    strided = Graph.from_csr(np.arange(6)[::2] // 2, np.array([1, 9, 0, 9])[::2])
    assert strided.aggregate(fn.copy_src(X[:2]), "sum").data.tolist() == [[10.0], [1.0]]

    def work(comm):
        whole = Graph.from_edges([0, 1, 2], [1, 2, 0], 3).shard(comm, [0, 1, 1], order=[2, 1, 0])
        part = Graph.from_part(comm, [0, 1], [1 - comm.rank], node_ids=[7 - comm.rank], edge_ids=[-1], added_loops=[False])
        return whole.node_ids.tolist(), part.edge_ids.tolist(), part.node_ids.tolist()

    assert threads.run(2, work) == [([0], [-1], [7]), ([2, 1], [-1], [6])]


@pytest.mark.parametrize("parts, word", [([0.5, 0, 1, 1], "parts: expected an integer dtype"), ([0, 0, 1], "parts: expected shape"),
                                         ([True, False, True, True], "found bool"), ([0, 0, 2, 1], "node 2 has part 2")])
def test_parts_that_name_nobody_are_refused_on_every_rank(parts, word):
    refused = []

    def work(comm):
        with pytest.raises(DataError, match=word):
            Graph.from_edges([0, 1, 2], [1, 2, 3], 4).shard(comm, parts)
        refused.append(comm.rank)

    threads.run(2, work)
    assert sorted(refused) == [0, 1]


@pytest.mark.parametrize("ids, word", [
    ([[0, 1], [2, 1]], "node_ids: id 1 has two rows, on ranks 0 and 1"),
    ([[3, 3], [2, 1]], "node_ids: id 3 has two rows, on ranks 0 and 0"),
    ([[0, 1], [-2, 1]], "node_ids: entry 0 is -2"),
    ([[0, 1], ["x", "y"]], "node_ids: expected an integer dtype"),
    ([[0, 1], [2]], "node_ids: expected shape"),
])  # fmt: skip
def test_ids_that_name_two_rows_are_refused_on_every_rank(ids, word):
    refused = []

    def work(comm):
        with pytest.raises(DataError, match=word):
            Graph.from_part(comm, [0, 1, 2], [0, 3], node_ids=ids[comm.rank])
        with pytest.raises(DataError, match=word.replace("node", "src")):
            Graph.from_part(comm, [0, 1, 2], [0, 3], n_src=2, src_ids=ids[comm.rank])
        edges = {("a", "to", "b"): ([0, 1, 2], [0, 3])}
        by_type = re.escape(word.replace("node_ids", "node_ids['b']"))
        if word != "node_ids: expected shape":  # only the ids give the number of rows of a type
            with pytest.raises(DataError, match=by_type):
                HeteroGraph.from_part(comm, edges, {"a": [2 * comm.rank, 2 * comm.rank + 1], "b": ids[comm.rank]})
        refused.append(comm.rank)

    threads.run(2, work)
    assert sorted(refused) == [0, 1]


def test_graphs_that_differ_between_ranks_are_refused():
    refused = []

    def work(comm):
        for whole in (Graph.from_edges([0, 1], [1, 2 - comm.rank], 3), Graph.from_edges([0, 1], [1, 2], 3 + comm.rank),
                      Graph.from_csr([0, 1, 2, 3], [1, 2, 0], edge_index=[0, 1, 2] if comm.rank else [1, 0, 2])):
            with pytest.raises(SarliteError, match="graph is not the same"):
                whole.shard(comm, "contiguous")
            refused.append(comm.rank)

    threads.run(2, work)
    assert sorted(refused) == [0, 0, 0, 1, 1, 1]


def test_counts_are_whole_numbers():
    assert validation.count("n", np.int32(4)) == 4 and validation.count("n", 0) == 0
    for wrong in (True, "3", None, 1.0):
        with pytest.raises(DataError, match="n: "):
            validation.count("n", wrong)


def test_rows_whose_dtype_differs_between_ranks_are_refused_with_the_cause():
    def work(comm):
        graph = Graph.from_edges([0, 1, 2, 3], [3, 2, 1, 0]).shard(comm, "contiguous")
        with pytest.raises(ShapeError, match="the dtype or the width of the rows differs between the ranks"):
            graph.aggregate(fn.copy_src(np.ones((2, 3), (np.float32, np.float64)[comm.rank])), "sum")

    threads.run(2, work)

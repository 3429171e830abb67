"""Graphs from tables of edges with ids of any kind, and tables from graphs.

Tables are dicts of arrays, and the libraries' own where these are installed.
"""

import importlib
import sys
import uuid

import numpy as np
import pytest

from sarlite import Graph, HeteroGraph, fn
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError

EDGES = {"from": ["dan", "ann", "bob", "ann"], "to": ["ann", "bob", "bob", "dan"], "w": [0.5, 2.0, 3.0, 4.0], "kind": [1, 2, 3, 4]}


def tables(columns):
    yield {name: np.array(values) for name, values in columns.items()}
    for library, make in (("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "table")):
        try:
            yield getattr(importlib.import_module(library), make)(columns)
        except ImportError:
            pass


def sums(graph, x):
    return dict(zip(graph.ids.tolist(), graph.aggregate(fn.copy_src(x), "sum").data[:, 0].tolist()))


def test_ids_stay_and_values_follow_their_edges():
    for table in tables(EDGES):
        graph = Graph.from_pandas(table, "from", "to", weight="w", features=["kind"])
        assert graph.ids.tolist() == ["ann", "bob", "dan"] and graph.edge_features.tolist() == [[1], [2], [3], [4]]
        x = np.array([[1.0], [10.0], [100.0]])
        assert sums(graph, x) == {"ann": 50.0, "bob": 32.0, "dan": 4.0}
        both = Graph.from_pandas(table, "from", "to", undirected=True)
        edges = np.array([[graph.ids.tolist().index(word) for word in EDGES[end]] for end in ("from", "to")])
        same = Graph.from_edges(*edges, undirected=True)
        assert both.in_degrees.tolist() == same.in_degrees.tolist()
        with pytest.raises(ConfigError, match="edges: rows 0 and 3 are one edge with different values"):
            Graph.from_pandas(table, "from", "to", weight="w", undirected=True)
    equal = {"from": ["a", "b", "b"], "to": ["b", "a", "c"], "w": [2.0, 2.0, 3.0]}
    graph = Graph.from_pandas(equal, "from", "to", weight="w", undirected=True)
    assert graph.to_scipy().toarray().tolist() == [[0, 2, 0], [2, 0, 3], [0, 3, 0]]


def test_nodes_have_their_order_and_need_no_edge():
    for table, nodes in zip(tables(EDGES), tables({"who": ["zoe", "dan", "bob", "ann"]})):
        graph = Graph.from_pandas(table, "from", "to", nodes=nodes, id="who")
        assert graph.ids.tolist() == ["zoe", "dan", "bob", "ann"] and graph.in_degrees.tolist() == [0, 1, 2, 1]
    numbers = Graph.from_pandas({"src": np.array([10**15, -3]), "dst": np.array([-3, -3])})
    assert numbers.ids.tolist() == [-3, 10**15] and numbers.in_degrees.tolist() == [2, 0]
    assert Graph.from_pandas({"src": [], "dst": []}).n_dst == 0


def test_a_part_keeps_its_ids():
    graph = Graph.from_pandas(EDGES, "from", "to")

    def on_rank(comm):
        part = graph.shard(comm, np.array([1, 0, 1]))
        return part.ids.tolist(), graph.shard(comm, "contiguous").with_edge_values(None).ids.tolist()

    assert threads.run(2, on_rank) == [(["bob"], ["ann", "bob"]), (["ann", "dan"], ["dan"])]


def test_tables_of_relations_become_a_graph():
    tables = {("user", "rates", "film"): {"src": ["u2", "u1"], "dst": [7, 9]}, ("user", "knows", "user"): {"src": ["u1"], "dst": ["u3"]}}
    graph = HeteroGraph.from_pandas(tables, nodes={"film": {"id": [9, 7, 8]}})
    assert {name: ids.tolist() for name, ids in graph.ids.items()} == {"film": [9, 7, 8], "user": ["u1", "u2", "u3"]}
    x = np.array([[1.0], [2.0], [3.0]])
    sums_by_type = graph.aggregate({relation: fn.copy_src(x) for relation in tables}, "sum")
    assert sums_by_type["film"].data[:, 0].tolist() == [1.0, 2.0, 0.0] and sums_by_type["user"].data[:, 0].tolist() == [0.0, 0.0, 1.0]
    with pytest.raises(ConfigError, match="'knows' is not a triple"):
        HeteroGraph.from_pandas({"knows": {"src": [], "dst": []}})
    with pytest.raises(DataError, match=r"edges\[\('a', 'b', 'a'\)\]: no column 'dst': there are src"):
        HeteroGraph.from_pandas({("a", "b", "a"): {"src": [1]}})


@pytest.mark.parametrize("edges, more, words", [
    ({"src": [1]}, {}, "edges: no column 'dst': there are src"),
    ({"src": [1], "dst": [1]}, {"nodes": {"user": [1]}}, "nodes: no column 'id': there are user"),
    ({"src": [1.5], "dst": [2]}, {}, "edges: column 'src': numbers with a point.* are not ids of nodes"),
    ({"src": np.array(["a", None]), "dst": ["a", "b"]}, {}, "edges: row 1, column 'src': no id"),
    ({"src": np.array([1, "b"], object), "dst": ["a", "b"]}, {}, "column 'src': row 1: 'b' is of str, but values before are of int"),
    ({"src": [1], "dst": ["b"]}, {}, "edges: column 'dst' has words, but edges: column 'src' has whole numbers"),
    ({"src": [1], "dst": [2]}, {"nodes": {"id": [1]}}, "edges: row 0, column 'dst': 2 is not in nodes, column 'id'; on_unknown=.drop"),
    ({"src": [1], "dst": [2]}, {"nodes": {"id": []}}, "edges: row 0, column 'src': 1 is not in nodes, column 'id'"),
    ({"src": [1], "dst": [2]}, {"nodes": {"id": ["1", "2"]}}, "nodes: column 'id' has words, but edges: column 'src' has whole numbers"),
    ({"src": [1], "dst": [2]}, {"nodes": {"id": [1, 2, 1]}}, "nodes: row 2, column 'id': 1 is the id of row 0, too"),
    ({"src": [1], "dst": [2], "w": [np.nan]}, {"weight": "w"}, "edges: row 0, column 'w': no value; fill=\"0\" or fill=\"mean\""),
    ({"src": [1], "dst": [2], "w": [np.nan]}, {"weight": "w", "fill": "mean"}, "edges: column 'w': no training row has a value"),
    ({"src": [1, 1], "dst": [2, 1], "w": ["1", "x"]}, {"weight": "w", "fill": 0}, "edges: row 1, column 'w': 'x' is not a number"),
    ({"src": [1, 1], "dst": [2, 1], "w": ["1", "x"]}, {"features": ["w"], "fill": "mean"}, "edges: row 1, column 'w': 'x' is not a number"),
    ({"src": [1], "dst": [2], "w": ["x"]}, {"features": ["w"]}, "edges: row 0, column 'w': 'x' is not a number"),
    ({"src": [1, 2], "dst": [2]}, {}, "edges: columns of different lengths: {'src': 2, 'dst': 1}"),
    ({"src": [1, 2], "dst": [2, 1], "w": [1.0]}, {"weight": "w"}, "columns of different lengths: {'src': 2, 'dst': 2, 'w': 1}"),
    ({"src": [1, 2], "dst": [2, 1], "w": [1.0, 2, 3]}, {"features": ["w"]}, "columns of different lengths: .*'w': 3}"),
    ({"src": [1, 2], "dst": [2, 1], "w": np.ma.array([1.0, 2], mask=[0, 1])}, {"weight": "w"}, "edges: row 1, column 'w': no value"),
    ({"src": np.ma.array([1, 2], mask=[1, 0]), "dst": [2, 1]}, {}, "edges: row 0, column 'src': no id"),
    ({"src": [1, 2], "dst": [2, 1], "w": np.array([1.0, None])}, {"weight": "w"}, "edges: row 1, column 'w': no value"),
    ({}, {}, "edges: no column 'src': there are none"), ({"src": 1, "dst": 2}, {}, "edges: column 'src': 1 is not an array"),
    ({"src": np.array(1), "dst": [2]}, {}, r"edges: column 'src': array\(1\) is not an array"),
    ({"src": [1, 2**70], "dst": [1, 2]}, {}, "column 'src': row 1: 1180591620717411303424 does not fit into 64 bits"),
    ({"src": [-1, 2**63], "dst": [1, 2]}, {}, "column 'src': row 1: 9223372036854775808 does not fit into 64 bits, as other rows"),
    ({"src": ["a", "b\ud800"], "dst": ["a", "b"]}, {}, "column 'src': row 1: .* has half of a surrogate pair"),
])  # fmt: skip
def test_what_is_refused(edges, more, words):
    with pytest.raises(DataError, match=words):
        Graph.from_pandas(edges, **more)


def test_columns_of_pandas_are_never_mistaken_for_each_other():
    pandas = pytest.importorskip("pandas")
    graph = Graph.from_pandas(pandas.DataFrame([[5, 6, 0.5], [6, 7, 1.5]]), 0, 1, weight=2)
    assert graph.ids.tolist() == [5, 6, 7] and graph.edge_weight.tolist() == [0.5, 1.5]
    for names in (["src", "dst", "dst"], ["src", "dst", 3, "3"]):
        with pytest.raises(DataError, match=f"edges: two columns are named '{names[-1]}'"):
            Graph.from_pandas(pandas.DataFrame([range(len(names))], columns=names), features=[names[-1]] if "3" not in names else ["none"])
    with pytest.raises(ConfigError, match="edges: Series is not a table"):
        Graph.from_pandas(pandas.Series([1, 2]))


def test_numbers_of_16_bits_sparse_numbers_periods_and_uuids_are_what_they_show():
    pandas = pytest.importorskip("pandas")
    names = [uuid.UUID(int=2), uuid.UUID(int=1)]
    frame = pandas.DataFrame({"src": names, "dst": names[::-1], "month": pandas.period_range("2020-01", periods=2, freq="M"),
                              "w": np.array([0.5, 2], np.float16), "s": pandas.arrays.SparseArray([1.0, 0.0])})  # fmt: skip
    graph = Graph.from_pandas(frame, weight="w", features=["s"])
    assert graph.ids.tolist() == [str(name) for name in names[::-1]]
    assert dict(zip(graph.edge_weight.tolist(), graph.edge_features.ravel().tolist())) == {0.5: 1, 2: 0}
    assert Graph.from_pandas(frame, "month", "month").ids.tolist() == ["2020-01", "2020-02"]


def test_without_duckdb_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigError, match=r"tables needs the package duckdb .*: pip install 'sarlite\[tables\]'"):
        Graph.from_pandas(EDGES, "from", "to")


def test_options_of_tables_hold_for_graphs():
    """A missing weight is filled, an edge to no node is dropped, and columns without a role may hold anything."""
    edges = {"src": ["a", "b", "c"], "dst": ["b", "a", "z"], "w": [1.0, None, 4.0], "odd": [1, "x", object()]}
    graph = Graph.from_pandas(edges, weight="w", nodes={"id": ["c", "b", "a"]}, fill="0", on_unknown="drop")
    assert graph.ids.tolist() == ["c", "b", "a"] and graph.to_scipy().toarray().tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]
    both = HeteroGraph.from_pandas({("u", "e", "u"): edges}, nodes={"u": {"id": ["c", "b", "a"]}}, on_unknown="drop")
    assert both.n_edges == {("u", "e", "u"): 2}
    assert Graph.from_pandas(edges, weight="w", fill="mean").edge_weight.tolist() == [1.0, 2.5, 4.0]
    with pytest.raises(ConfigError, match="on_unknown: 'skip' is not one of refuse, drop"):
        Graph.from_pandas(edges, on_unknown="skip")


@pytest.mark.parametrize("ids, kind", [([2**63, 1], "u"), ([2**63, -1], "O"), ([7, -1], "i"), (["b", "a"], "U")])
def test_ids_have_the_type_that_holds_them(ids, kind):
    graph = Graph.from_pandas({"src": ids[:1], "dst": ids[1:]} if kind != "O" else
                              {"src": np.array(ids[:1], np.uint64), "dst": np.array(ids[1:], np.int64)})
    assert graph.ids.dtype.kind == kind and graph.ids.tolist() == sorted(ids)


def test_to_scipy_gives_the_matrix_again():
    graph = Graph.from_pandas(EDGES, "from", "to", weight="w")
    assert graph.to_scipy().toarray().tolist() == [[0, 0, 0.5], [2, 3, 0], [4, 0, 0]]
    again, weights = Graph.from_scipy(graph.to_scipy())
    assert again.to_scipy().toarray().tolist() == (graph.with_edge_values(None).to_scipy().toarray() != 0).astype(float).tolist()
    assert sorted(weights.tolist()) == [0.5, 2, 3, 4]

    def on_rank(comm):
        part = graph.shard(comm, np.array([1, 0, 1]))
        return part.to_scipy().toarray().tolist()

    assert threads.run(2, on_rank) == [[[3, 2, 0]], [[0, 0, 0.5], [0, 4, 0]]]


def test_to_pandas_gives_the_table_again():
    pandas = pytest.importorskip("pandas")
    graph = Graph.from_pandas(EDGES, "from", "to", weight="w", features=["kind"])
    table = graph.to_pandas("from", "to", "w")
    pandas.testing.assert_frame_equal(table, pandas.DataFrame(EDGES).astype({"kind": "float32"}).rename(columns={"kind": "edge_0"}))


def test_networkx_and_back():
    networkx = pytest.importorskip("networkx")
    network = networkx.MultiDiGraph([(("a", 1), "b", {"weight": 2.0}), ("b", ("a", 1), {"weight": 0.5}), ("b", "c", {"weight": 1.0})])
    graph, weights = Graph.from_networkx(network, weight="weight")
    assert graph.ids.tolist() == [("a", 1), "b", "c"]
    assert networkx.utils.graphs_equal(graph.with_edge_values(weights).to_networkx(), network)


@pytest.mark.parametrize("name", ["to_pandas", "to_networkx"])
def test_parts_and_bipartite_graphs_are_refused(name):
    pytest.importorskip(name[3:])
    with pytest.raises(ConfigError, match=f"{name}: the graph must be whole"):
        getattr(Graph.from_edges([0], [1], n_src=2, n_dst=3), name)()

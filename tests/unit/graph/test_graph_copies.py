"""Copies and pickles of graphs: a deep copy is the graph itself; a pickled whole graph computes what the graph computes."""

import copy
import pickle

import numpy as np
import pytest

from sarlite import Graph, GraphSet, HeteroGraph, Tensor, Trainer, fn, nn, optim
from sarlite.comm import Solo, threads
from sarlite.models import GCN, RGCN
from sarlite.tasks.link_data import split_links
from tests.helpers.graph.graph_sets import graphs
from tests.helpers.graph.relational_graphs import CITES, N_NODES, WRITES, X, make
from tests.helpers.graph.strategies import random_edges, values

pytestmark = pytest.mark.timeout(60)
EDGES = random_edges(9, 30, seed=2)
ROWS, WEIGHT = values(1, 9, 3), np.random.default_rng(0).random(30)
WHOLE = Graph.from_edges(*EDGES)
GRAPHS = {
    "plain": lambda: WHOLE,
    "weighted": lambda: WHOLE.with_edge_values(WEIGHT, WEIGHT[:, None]),
    "loops": lambda: Graph.from_edges(*EDGES, self_loops=True, deduplicate=True),
    "bipartite": lambda: Graph.from_edges(EDGES.src, EDGES.dst % 4, n_src=9, n_dst=4).with_edge_values(WEIGHT),
    "ids": lambda: Graph.from_part(Solo(), WHOLE.in_edges().indptr, WHOLE.in_edges().indices, node_ids=np.arange(9)[::-1] * 3,
                                   edge_ids=np.arange(30)[::-1] + 5, mode="oneshot").with_edge_values(WEIGHT),
    "named": lambda: Graph.from_pandas({"a": ["x", "y", "z"], "b": ["y", "z", "w"]}, "a", "b"),
    "ordered": lambda: WHOLE.with_edge_values(WEIGHT).shard(Solo(), order=[2, 0, 1, 4, 3, 8, 7, 5, 6]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_pickled_graph_is_the_graph(name):
    graph = GRAPHS[name]()
    other = pickle.loads(pickle.dumps(graph))
    for attribute in ("dst_ids", "src_ids", "edge_ids", "in_degrees", "ids", "edge_weight", "edge_features", "added_loops"):
        np.testing.assert_array_equal(getattr(other, attribute), getattr(graph, attribute), err_msg=attribute)
    assert (other.options, other.bipartite, repr(other)) == (graph.options, graph.bipartite, repr(graph))
    x = ROWS[: graph.n_src]
    for reducer in ("sum", "mean", "sym", "max"):
        np.testing.assert_array_equal(other.aggregate(fn.copy_src(x), reducer).data, graph.aggregate(fn.copy_src(x), reducer).data)
    np.testing.assert_array_equal(other.aggregate(fn.mul_edge(x, np.arange(1.0, graph.n_edges + 1)), "sum").data,
                                  graph.aggregate(fn.mul_edge(x, np.arange(1.0, graph.n_edges + 1)), "sum").data)


def test_pickled_relations_are_the_relations():
    graph = make().with_edge_values({WRITES: np.arange(60.0)})
    nodes = pickle.loads(pickle.dumps(graph.of("paper")))
    other = nodes.graph
    assert isinstance(other, HeteroGraph) and other.n_nodes == N_NODES and repr(nodes) == repr(graph.of("paper"))
    np.testing.assert_array_equal(other.edge_values[WRITES].weight, np.arange(60.0))
    models = [RGCN({"paper": 5}, 3, of, rng=nn.Random(0), dtype=np.float64).eval() for of in (graph.of("paper"), nodes)]
    outputs = [model(of, {"paper": Tensor(X["paper"])}).data for model, of in zip(models, (graph.of("paper"), nodes))]
    np.testing.assert_array_equal(*outputs)
    np.testing.assert_array_equal(*(of.aggregate({CITES: fn.copy_src(X["paper"])}, "mean")["paper"].data for of in (graph, other)))


def test_a_pickled_set_is_the_set():
    graph_set = graphs(Solo())
    other = pickle.loads(pickle.dumps(graph_set))
    assert repr(other) == repr(graph_set)
    x = values(3, graph_set.n_src, 2)
    np.testing.assert_array_equal(*(of.members.aggregate(fn.copy_src(x), "mean").data for of in (graph_set, other)))


def test_a_deep_copy_is_the_graph_itself_and_a_copy_has_no_stored_results():
    def work(comm):
        graph = WHOLE.shard(comm, np.arange(9) % comm.size)
        hetero = make(comm, "random") if comm.size > 1 else make()
        copied = [graph, hetero, hetero.of("paper"), split_links(graph, 0.1, 0.1).graph, graphs(comm)]
        assert all(copy.deepcopy(each) is each for each in copied)
        x = Tensor(ROWS[graph.node_ids], constant=True)
        expected = graph.aggregate(fn.copy_src(x), "sum").data
        other = copy.copy(graph)
        assert other is not graph and not other.memo.get("sums", dict)
        np.testing.assert_array_equal(other.aggregate(fn.copy_src(x), "sum").data, expected)

    for n_ranks in (1, 2):
        threads.run(n_ranks, work)


def test_what_is_not_pickled_says_what_to_do():
    def work(comm):
        graph = WHOLE.shard(comm, np.arange(9) % 2)
        for part in (graph, make(comm, "random"), graphs(comm)):
            with pytest.raises(TypeError, match=f"a part of a {type(part).__name__} on 2 ranks is not pickled.*pickle the whole graph"):
                pickle.dumps(part)

    threads.run(2, work)
    rng = nn.Random(0)
    trainer = Trainer(WHOLE, GCN(3, 2, rng=rng, dtype=np.float64), ROWS, np.arange(9) % 2, slice(5), rng=rng,
                      optimizer=lambda flat: optim.Adam(flat, 0.1))
    for attempt in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(TypeError, match="Trainer .*checkpoint.write.*restore_state"):
            attempt(trainer)
    model = copy.deepcopy(trainer.model)
    state = model.state_dict()
    trainer.step()
    assert all((model.state_dict()[name] == array).all() for name, array in state.items())
    assert isinstance(copy.deepcopy({"graph": WHOLE, "set": GraphSet.of(WHOLE, np.zeros(9, int))})["graph"], Graph)

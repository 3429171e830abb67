"""Sets of graphs: readouts are sums over each graph's nodes; training is the same on any number of ranks and modes."""

import numpy as np
import pytest

from sarlite import Graph, GraphSet, Tensor, Trainer, nn, optim
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.minibatch import GraphLoader
from sarlite.models import GAT, GCN, GIN
from sarlite.structure.whole_graphs import divide
from sarlite.tape.gradcheck import gradcheck
from sarlite.tasks.graph_task import GraphTask
from tests.helpers.graph.graph_sets import FEATURES, GRAPH_OF, LABELS, PAIRS, SIZES, N, graphs, trainer, whole

RUNS = [
    {}, {"readout": "mean", "mode": "oneshot", "batch": 3}, {"readout": "max", "mode": "sa"}, {"readout": "attention", "batch": 4},
    {"readout": "attention", "mode": "broadcast", "task": "regress", "lr": 0.001, "batch_norm": False},
    {"model": GCN, "values": True, "batch": 3}, {"model": GAT, "values": True, "batch": 5, "edge_features": 2, "heads": 2},
]  # fmt: skip


def states(comm, **options):
    """Return losses, metrics, outputs by graph, and parameters after three epochs."""
    trainer_of_set = trainer(comm, **options)
    losses = [trainer_of_set.epoch(epoch) for epoch in range(3)]
    output = np.zeros((len(SIZES), trainer_of_set.predict().shape[1]))
    output[trainer_of_set.graph.dst_ids] = trainer_of_set.predict()
    scores = [value for value in trainer_of_set.evaluate().values() if value is not None]
    return np.concatenate([losses, scores, comm.allreduce(output).ravel(), trainer_of_set.flat.data])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", RUNS)
def test_training_is_the_same_on_any_number_of_ranks(options):
    expected = states(Solo(), **options)
    assert np.isfinite(expected).all()
    for n in (2, 3):
        for actual in threads.run(n, states, **options):
            np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options, dtype", list(zip(RUNS, [np.float32, np.float64] * 4)))
def test_exact_numerics_have_the_same_bits_on_any_number_of_ranks(options, dtype):
    exact_options = {**options, "dtype": dtype, "numerics": "exact"}
    expected = states(Solo(), **exact_options)
    for n in (2, 3):
        for actual in threads.run(n, states, **exact_options):
            assert actual.tobytes() == expected.tobytes()
    np.testing.assert_allclose(expected, states(Solo(), **{**exact_options, "numerics": "fast"}), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("values", [False, True])
def test_a_batch_of_all_graphs_is_the_set(values):
    graph_set = graphs(Solo(), values=values)
    model = GAT(4, 3, rng=nn.Random(0), dtype=np.float64, **({"edge_features": 2} if values else {})).eval()
    every = np.random.default_rng(1).permutation(len(SIZES))
    other, rows = graph_set.take(every)
    assert other.dst_ids.tolist() == every.tolist() and other.src_ids.tolist() == rows.tolist()
    logits = model(other.nodes, Tensor(FEATURES[rows])).data
    np.testing.assert_allclose(logits, model(graph_set.nodes, Tensor(FEATURES)).data[rows], rtol=1e-12)


def test_graphs_that_are_taken_keep_the_names_of_their_nodes():
    nodes = np.array(["e", "a", "d", "b", "c"])
    graph = Graph.from_pandas({"src": ["a", "c", "d"], "dst": ["b", "d", "e"]}, nodes={"id": nodes}, id="id")
    taken, rows = GraphSet.of(graph, [1, 0, 1, 0, 1]).take(np.array([1, 0]))
    assert taken.nodes.ids.tolist() == nodes[rows].tolist() == ["e", "d", "c", "a", "b"]


def test_an_epoch_has_each_graph_once_and_the_same_graphs_on_any_number_of_ranks():
    def steps(comm):
        graph_set = graphs(comm)
        rows = FEATURES[graph_set.src_ids], LABELS[graph_set.dst_ids], graph_set.dst_ids != 4
        loader = GraphLoader(graph_set, *rows, batch_size=4, seed=3)
        batches = [(batch.graph.dst_ids, batch.x.data, batch.graph.src_ids, batch.labels, batch.n_global) for batch in loader]
        for ids, x, nodes, labels, _ in batches:
            assert (x == FEATURES[nodes]).all() and (labels == LABELS[ids]).all() and len(nodes) == SIZES[ids].sum()
        return [sorted(np.concatenate(comm.allgather(step[0])).tolist()) for step in batches], [step[-1] for step in batches]

    expected = steps(Solo())
    assert sorted(sum(expected[0], [])) == [k for k in range(12) if k != 4] and expected[1] == [4, 4, 3]
    assert threads.run(3, steps) == [expected] * 3


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "attention"])
def test_readouts_are_what_numpy_makes_of_each_graph(kind):
    readout = nn.Readout(kind, 4, rng=nn.Random(2), dtype=np.float64)
    graph_set, expected = graphs(Solo()), np.zeros((len(SIZES), 4))
    for graph in np.flatnonzero(SIZES):
        x = FEATURES[graph == GRAPH_OF]
        if kind == "attention":
            scores = np.exp(x @ readout.scores.data)
            expected[graph] = (scores / scores.sum() * x).sum(0)
        else:
            expected[graph] = getattr(x, kind)(0)
    np.testing.assert_allclose(readout(graph_set, Tensor(FEATURES)).data, expected, rtol=1e-12)
    gradcheck(lambda h: readout(graph_set, h), [FEATURES])


def test_whole_graphs_are_divided_evenly():
    one_large = np.repeat(np.arange(9), [8, *[1] * 8])
    assert divide(one_large, np.zeros(16), 9, 2).tolist() == [0, *[1] * 8]
    assert divide(np.arange(9), np.array([8, *[0] * 8]), 9, 2).tolist() == [0, *[1] * 8]  # of edges
    for parts, most in (("metis", 1.2), ("random", 3), ("contiguous", 3)):
        def sizes(comm, parts=parts):
            graph_set = GraphSet.of(whole(), GRAPH_OF, comm=comm, parts=parts)
            graph_set.check_whole()
            assert graph_set.nodes.plan.n_halo == graph_set.members.plan.n_halo == 0
            return graph_set.n_dst, graph_set.n_src + graph_set.nodes.n_edges

        sizes_of_ranks = np.array(threads.run(3, sizes))
        assert sizes_of_ranks[:, 0].sum() == len(SIZES) and sizes_of_ranks[:, 1].sum() == N + len(PAIRS)
        assert sizes_of_ranks[:, 1].max() <= most * sizes_of_ranks[:, 1].mean(), parts


def test_a_set_whose_graphs_are_cut_trains_alike_and_makes_no_batches():
    def outputs(comm):
        nodes = whole() if comm.size == 1 else whole().shard(comm, "random")
        graph_ids = np.array_split(np.arange(len(SIZES)), comm.size)[comm.rank]
        rows = np.concatenate(comm.allgather(nodes.dst_ids))  # ids of all ranks' nodes by row number
        members = [np.flatnonzero(GRAPH_OF[rows] == graph) for graph in graph_ids]
        graph_set = GraphSet(nodes, np.cumsum([0, *map(len, members)]), np.concatenate(members), graph_ids)
        model = nn.GraphPredictor(GIN(4, 6, rng=nn.Random(1), dtype=np.float64), 6, 2, "attention", rng=nn.Random(4), dtype=np.float64)
        logits = model.eval()(graph_set, Tensor(FEATURES[nodes.dst_ids])).data
        if comm.size > 1:
            with pytest.raises(ConfigError, match="graph_ids: each node must be in exactly one graph"):
                GraphLoader(graph_set, FEATURES[nodes.dst_ids], None, slice(None), batch_size=2)
        return np.concatenate(comm.allgather(logits))

    np.testing.assert_allclose(threads.run(3, outputs)[0], outputs(Solo()), rtol=1e-11)


def cycles(parts):
    """Return a trainer of a set of graphs, with labels 0, 1, 0, 1 ...; each graph is cycles of the sizes in `parts`."""
    sizes = [size for graph in parts for size in graph]
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    src = np.arange(sum(sizes))
    graph = Graph.from_edges(src, first + (src - first + 1) % np.repeat(sizes, sizes), undirected=True)
    graph_set = GraphSet.of(graph, np.repeat(np.arange(len(parts)), [sum(graph) for graph in parts]))
    rng, x, labels = nn.Random(0), np.ones((graph_set.n_src, 1)), np.arange(len(parts)) % 2
    encoder = GIN(1, 8, hidden=8, layers=2, dropout=0.0, batch_norm=False, rng=rng, dtype=np.float64)
    model = nn.GraphPredictor(encoder, 8, 2, rng=rng, dtype=np.float64)
    train = np.arange(len(parts)) % 4 < 2
    return Trainer(graph_set, model, x, labels, train, ~train, rng=rng, task=GraphTask(), optimizer=lambda flat: optim.Adam(flat, 0.02))


def test_gin_tells_what_weisfeiler_and_leman_tell_and_no_more():
    """GIN tells apart exactly the graphs that the 1-WL test tells apart.

    One cycle of 2k nodes and two cycles of k nodes look alike to 1-WL, so the model cannot tell whether a graph has a triangle. One cycle
    of 2k + 1 nodes differs by the number of nodes.
    """
    halves = [graph for k in range(3, 11) for graph in ([2 * k], [k, k])]
    triangles = [graph for k in range(4, 12) for graph in ([3 + k], [3, k])]
    for alike in map(cycles, (halves, triangles)):
        alike.fit(40)
        outputs = alike.predict().reshape(-1, 2, 2)
        np.testing.assert_allclose(outputs[:, 0], outputs[:, 1], rtol=1e-12)
        assert alike.evaluate()["train_accuracy"] == 0.5
    other = cycles([graph for k in range(8) for graph in ([3 + k % 3], [8 + k % 3, 3])])
    other.fit(40)
    assert other.evaluate()["val_accuracy"] == 1.0


def test_what_does_not_fit_is_refused():
    graph_set, x = graphs(Solo()), Tensor(FEATURES)
    model = GIN(4, 6, rng=nn.Random(1), dtype=np.float64)
    predictor = nn.GraphPredictor(model, 6, 2, rng=nn.Random(1), dtype=np.float64)
    bipartite = Graph.from_edges([0], [1], n_src=1, n_dst=2)
    odd = np.where(np.arange(N) == PAIRS[0, 0], (GRAPH_OF + 1) % 12, GRAPH_OF)
    for kind, words, call in (
        (DataError, "edge .* leads from graph .* to graph", lambda: GraphSet.of(whole(), odd)),
        (DataError, "graph_ids", lambda: GraphSet.of(whole(), GRAPH_OF[:-1])),
        (DataError, "graph_ids", lambda: GraphSet.of(whole(), GRAPH_OF, 11)),
        (DataError, "graph_ids", lambda: GraphSet.of(whole(), GRAPH_OF - 1)),
        (DataError, "parts", lambda: threads.run(2, lambda comm: GraphSet.of(whole(), GRAPH_OF, comm=comm, parts=[2] * 12))),
        (ConfigError, "method: 'even'", lambda: GraphSet.of(whole(), GRAPH_OF, parts="even")),
        (DataError, "graph_ids", lambda: GraphSet(whole(), [0, 1], [0], [0.5])),
        (DataError, "indptr", lambda: GraphSet(whole(), [0, 1], [0], [0, 1])),
        (DataError, "source 50 is not in 0..49", lambda: GraphSet(whole(), [0, 1], [N], [0])),
        (ConfigError, "nodes is a GraphSet", lambda: GraphSet(graph_set, [0], [], [])),
        (ConfigError, "bipartite", lambda: GraphSet.of(bipartite, [0, 0])),
        (ConfigError, "give the model of nodes a readout", lambda: model(graph_set, x)),
        (ConfigError, "graph is a Graph", lambda: predictor(whole(), x)),
        (ConfigError, "readout 'median'", lambda: nn.Readout("median")),
        (ConfigError, "readout attention learns", lambda: nn.Readout("attention")),
        (ShapeError, "one row for each of 50 nodes", lambda: nn.Readout()(graph_set, Tensor(FEATURES[:3]))),
        (ConfigError, "of a GraphSet, but graph is a Graph", lambda: GraphLoader(whole(), x, None, slice(None), batch_size=2)),
    ):
        with pytest.raises(kind, match=words):
            call()


@pytest.mark.parametrize("rows, message", [([-1], r"rows\[0\] is -1"), ([2], r"rows\[0\] is 2"), ([0.5], "rows")])
def test_rows_that_are_no_graphs_are_refused(rows, message):
    graphs = GraphSet.of(Graph.from_edges([0, 1, 3], [1, 2, 4]), [0, 0, 0, 1, 1])
    with pytest.raises((DataError, ShapeError), match=message):
        graphs.take(np.array(rows))
    assert graphs.take([False, True])[1].tolist() == [3, 4]


def test_numbers_of_graphs_that_are_names_are_refused():
    with pytest.raises(DataError, match="graph_ids: entry 3 is 1099511627776, outside 0 <= id < 3000000000"):
        GraphSet.of(Graph.from_edges([0, 1, 3], [1, 2, 4]), [0, 0, 0, 1 << 40, 1 << 40])

"""Sampling in time: no edge and no row later than its seed, picks as a plain rule has them, and one rank's on 1 to 3 ranks."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite import Graph, HeteroGraph, Tensor, fn, nn
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.minibatch import HEC, NeighborLoader, Temporal
from sarlite.minibatch.temporal import TimedEdges
from tests.helpers.graph.relational_graphs import EDGES as TYPED_EDGES
from tests.helpers.graph.relational_graphs import LABELS, MODELS, TRAIN, X, close, gradients, make
from tests.helpers.graph.relational_graphs import N_NODES as N_TYPED

pytestmark = pytest.mark.timeout(120)
RNG = np.random.default_rng(7)
EDGE_TIMES = {relation: RNG.integers(0, 40, len(src)) for relation, (src, _) in TYPED_EDGES.items() if relation[1] != "topic"}
NODE_TIMES = {"paper": RNG.integers(5, 45, N_TYPED["paper"]), "author": RNG.integers(0, 30, N_TYPED["author"])}


class World:
    """A random graph of one kind whose edges and nodes have times."""

    def __init__(self, seed, n=12, n_edges=60, latest_time=8):
        rng = np.random.default_rng(seed)
        self.n, self.src, self.dst = n, rng.integers(0, n, n_edges), rng.integers(0, n, n_edges)
        self.edge_times, self.node_times = rng.integers(0, latest_time, n_edges), rng.integers(0, latest_time, n)
        self.x = rng.standard_normal((n, 3))

    def graph(self, comm=None, parts="random"):
        whole = Graph.from_edges(self.src, self.dst, self.n)
        whole = whole.with_edge_values(time=self.edge_times[whole.edge_ids])
        return whole if comm is None else whole.shard(comm, parts)

    def loader(self, graph, pick="uniform", fanouts=(2, 2), batch_size=5, **options):
        ids = graph.dst_ids
        return NeighborLoader(graph, self.x[ids], None, np.ones(len(ids), bool), fanouts=fanouts, batch_size=batch_size,
                              temporal=Temporal(pick, self.node_times[ids]), **options)

    def known_from(self):
        """Return the first time at which each edge may be picked."""
        return np.maximum(self.edge_times, self.node_times[self.src])

    def allowed(self, node, time):
        """Return the edges into a node that a seed with a time may see, sorted by time and source."""
        edges = np.flatnonzero((self.dst == node) & (self.known_from() <= time))
        return edges[np.lexsort((edges, self.src[edges], self.known_from()[edges]))]


def picks(graph):
    """Yield (destination's id, its time, ids of the picked edges, the number that they stand for) of a layer."""
    picked = graph.picked
    for at, (first, last) in enumerate(zip(picked.indptr, picked.indptr[1:])):
        yield int(graph.dst_ids[at]), int(picked.times[at]), graph.edge_ids[first:last].tolist(), int(picked.degrees[at])


def leaks(world, batch, seed_times):
    """Return the edges and rows of a batch that are later than their seed, and rows whose time is not the time of a seed."""
    collected = []
    for graph in batch.graphs:
        for node, time, edges, _ in picks(graph):
            late = [e for e in edges if world.edge_times[e] > time or world.node_times[world.src[e]] > time]
            collected += [(node, time, late)] if late or time not in seed_times else []
    return collected


# ---- the rule


@pytest.mark.parametrize("pick", ["uniform", "latest"])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.sampled_from([1, 2, 5, 40, -1]))
def test_picks_are_those_of_a_plain_rule(pick, seed, k):
    world = World(seed)
    loader = world.loader(world.graph(), pick, (k, k))
    for batch in loader:
        inputs = {int(node) for node in batch.dst_ids}
        for graph in reversed(batch.graphs):
            here = [(node, time) for node, time, _, _ in picks(graph)]
            assert len(set(here)) == len(here) and {node for node, _ in here} == inputs
            for node, time, edges, degree in picks(graph):
                allowed = world.allowed(node, time)
                n = len(allowed) if k < 0 else min(k, len(allowed))
                assert len(set(edges)) == len(edges) == n and set(edges) <= set(allowed.tolist())
                assert degree == (n if pick == "latest" else len(allowed))
                if pick == "latest":
                    assert set(edges) == set(allowed[len(allowed) - n :].tolist())
            inputs = {int(node) for node in graph.src_ids}


def test_each_allowed_edge_is_equally_likely():
    world = World(3, n=2, n_edges=30, latest_time=5)
    loader, counts = world.loader(world.graph(), fanouts=(3,), batch_size=2), np.zeros(30)
    for step in range(2000):
        (graph,) = loader.batch(np.array([0]), step, np.array([3])).graphs
        counts[graph.edge_ids] += 1
    allowed = world.allowed(0, 3)
    assert counts.sum() == counts[allowed].sum() == 6000
    expected = 6000 / len(allowed)
    assert (abs(counts[allowed] - expected) < 5 * np.sqrt(expected)).all()


def test_a_node_of_two_seeds_is_two_rows_that_do_not_see_each_other():
    graph = Graph.from_edges([0, 1, 1, 2], [1, 2, 2, 1], 3)
    graph = graph.with_edge_values(time=np.array([0, 1, 5, 9])[graph.edge_ids])
    loader = NeighborLoader(graph, np.eye(3), None, slice(None), fanouts=(-1, -1), batch_size=3, temporal=Temporal(seeds=[1, 1, 1]))
    batch = loader.batch(np.array([2, 2]), times=np.array([1, 9]))
    assert batch.rows.tolist() == [0, 1] and batch.dst_ids.tolist() == [2, 2]
    assert [edges for _, _, edges, _ in picks(batch.graphs[1])] == [[1], [1, 2]]
    first = {(node, time): edges for node, time, edges, _ in picks(batch.graphs[0])}
    assert first == {(2, 1): [1], (2, 9): [1, 2], (1, 1): [0], (1, 9): [0, 3]}


@pytest.mark.parametrize("reducer", ["mean", "sum", "max"])
def test_all_in_edges_of_a_seed_are_the_graph_at_its_time(reducer):
    """Each seed's output, over two layers, is the output over the graph without later edges and nodes."""
    world = World(11)

    def two_layers(batch, x):
        for graph in batch.layers(2):
            g, h = graph.enter(x)
            x = g.aggregate(fn.copy_src(h), reducer) + g.dst(h)
        return x

    batch = world.loader(world.graph(), fanouts=(-1, -1), batch_size=12).batch(np.arange(12))
    result = two_layers(batch, batch.x).data[batch.rows]
    for node, time in enumerate(world.node_times):
        saved = world.known_from() <= time
        snapshot = Graph.from_edges(world.src[saved], world.dst[saved], world.n)
        np.testing.assert_allclose(result[node], two_layers(snapshot, Tensor(world.x)).data[node], rtol=1e-12, atol=1e-12)


def test_an_added_self_loop_is_always_there_and_weights_are_those_of_the_picks():
    graph = Graph.from_part(Solo(), [0, 3, 4], [0, 1, 1, 1], added_loops=[True, True])
    graph = graph.with_edge_values(np.array([1.0, 2.0, 6.0, 1.0]), time=np.array([0, 1, 5, 0]))
    loader = NeighborLoader(graph, np.array([[1.0], [10.0]]), None, slice(None), fanouts=(-1,), batch_size=2,
                            temporal=Temporal(seeds=[0, 0]))
    for time, expected in ((0, 1.0), (1, (1 + 20) / 3), (5, (1 + 20 + 60) / 9)):
        batch = loader.batch(np.array([0]), times=np.array([time]))
        (g,) = batch.layers(1)
        assert g.aggregate(fn.copy_src(batch.x), "mean").data.tolist() == [[pytest.approx(expected)]]


# ---- no leak


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("pick", ["uniform", "latest"])
def test_nothing_is_later_than_its_seed_on_any_number_of_ranks(n_ranks, pick):
    for seed in range(4):
        world = World(seed, n=30, n_edges=200)

        def work(comm, world=world):
            graph = world.graph(comm)
            return [leak for batch in world.loader(graph, pick) for leak in leaks(world, batch, {*world.node_times})]

        assert sum(threads.run(n_ranks, work), []) == []


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_planted_leak_is_found(monkeypatch, n_ranks):
    world = World(5, n=30, n_edges=200)
    monkeypatch.setattr(TimedEdges, "_first_later", lambda self, low, high, times: high)
    by_rank = threads.run(n_ranks, lambda comm: [leak for batch in world.loader(world.graph(comm))
                                               for leak in leaks(world, batch, {*world.node_times})])
    assert sum(by_rank, [])


@pytest.mark.parametrize("remote", ["exact", "local"])
def test_a_rows_time_is_its_seeds_in_all_layers(remote):
    """With one seed a batch has one time, also in rows that another rank computes."""
    world = World(6, n=20, n_edges=150)

    def work(comm):
        loader = world.loader(world.graph(comm), batch_size=1, fanouts=(3, 3, 3), remote=remote, batches="global")
        return [(batch.dst_ids.tolist(), {time for graph in batch.graphs for _, time, _, _ in picks(graph)}) for batch in loader]

    for by_rank in zip(*threads.run(2, work)):
        (seed,) = sum((ids for ids, _ in by_rank), [])
        assert set().union(*(times for _, times in by_rank)) == {int(world.node_times[seed])}


# ---- one rank's batches on any number of ranks


def typed(comm=None, parts="metis"):
    graph = make(comm, parts)
    return graph.with_edge_values(times={relation: times[graph.edge_ids[relation]] for relation, times in EDGE_TIMES.items()})


def passes(graph, case, pick):
    rng, nodes = nn.Random(5), graph.of("paper")
    model, collected, ids = MODELS[case](nodes, rng), [], nodes.dst_ids
    x = {"paper": X["paper"][graph.node_ids["paper"]]}
    temporal = Temporal(pick, {name: times[graph.node_ids[name]] for name, times in NODE_TIMES.items()})
    loader = NeighborLoader(nodes, x, LABELS[ids], TRAIN[ids], fanouts=(2, 3), batch_size=5, seed=3, temporal=temporal)
    for batch in loader:
        rng.step = batch.step
        *sums, logits = gradients(model, batch, batch.x, batch.labels, batch.rows, batch.n_global)
        late = [collected for layer in batch.graphs for graphs in layer.by_source(layer.relations)
                for relation, graph in graphs.items() for collected in late_picks(graph, relation)]
        assert not late, late
        collected.append((*sums, dict(zip(batch.dst_ids.tolist(), logits))))
    return collected


def late_picks(graph, relation):
    times = np.repeat(graph.picked.times, np.diff(graph.picked.indptr))
    edges, sources = graph.edge_ids, NODE_TIMES.get(relation[0])
    if relation in EDGE_TIMES and (EDGE_TIMES[relation][edges] > times).any():
        yield relation
    if sources is not None and (sources[np.asarray(TYPED_EDGES[relation][0], int)[edges]] > times).any():
        yield relation


@cache
def one_rank(case, pick):
    return passes(typed(), case, pick)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("n_ranks, parts", [(2, "random"), (3, "uneven")])
@pytest.mark.parametrize("pick", ["uniform", "latest"])
@pytest.mark.parametrize("case", [*MODELS])
def test_n_ranks_make_one_ranks_batches_of_relations(case, pick, n_ranks, parts):
    """Losses, gradients, of learned rows too, and logits; nothing is later than its seed in any relation."""
    by_rank, expected = threads.run(n_ranks, lambda comm: passes(typed(comm, parts), case, pick)), one_rank(case, pick)
    for each, (loss, grad, owned, logits) in zip(zip(*by_rank, strict=True), expected, strict=True):
        np.testing.assert_allclose(sum(part[0] for part in each), loss, rtol=1e-12)
        close(sum(part[1] for part in each), grad, "gradient")
        for name, rows in owned.items():
            together = {node: row for part in each for node, row in part[2][name].items()}
            close(np.array([together[node] for node in rows]), np.array([*rows.values()]), f"gradient of {name}")
        together = {node: row for part in each for node, row in part[3].items()}
        close(np.array([together[node] for node in logits]), np.array([*logits.values()]), "logits")


# ---- what is refused


@pytest.mark.parametrize("options, error, message", [
    ({"sampler": "labor"}, ConfigError, "temporal uniform .*sampler labor"),
    ({"sampler": "replace", "pick": "latest"}, ConfigError, "temporal latest .*sampler replace"),
    ({"pick": "soonest"}, ConfigError, "temporal 'soonest' .*uniform, latest"),
    ({"nodes": None}, ConfigError, "temporal: no times of the seeds"),
    ({"nodes": [1, 2]}, ShapeError, r"times of nodes: int64 of shape \(2,\)"),
    ({"nodes": np.array(["2026-03-01", "NaT", "2026-03-01"], "M8[D]")}, DataError, "times of nodes: entry 1 is NaT"),
    ({"remote": HEC()}, ConfigError, "does not go with temporal: a cache keeps rows"),
])  # fmt: skip
def test_what_cannot_be_right_is_refused(options, error, message):
    graph = Graph.from_edges([0, 1], [1, 2], 3).with_edge_values(time=[1, 2])
    temporal = Temporal(options.pop("pick", "uniform"), options.pop("nodes", [1, 2, 3]))
    with pytest.raises(error, match=message):
        NeighborLoader(graph, np.eye(3), None, slice(None), fanouts=(2,), batch_size=3, temporal=temporal, **options)


def test_sym_is_refused_as_its_degrees_count_later_edges():
    world = World(1)
    batch = world.loader(world.graph(), fanouts=(2,)).batch(np.arange(4))
    with pytest.raises(ConfigError, match="reducer 'sym' .*degrees .*later edges"):
        batch.aggregate(fn.copy_src(batch.x), "sym")


def test_times_of_types_and_relations_are_checked():
    graph = HeteroGraph.from_edges({("a", "to", "b"): ([0], [0])}, {"a": 1, "b": 1})
    with pytest.raises(ShapeError, match="edge_time of .*: float64"):
        graph.with_edge_values(times={("a", "to", "b"): [0.5]})
    with pytest.raises(ConfigError, match="temporal: 'c' .*node types a, b"):
        NeighborLoader(graph.of("b"), {}, None, slice(None), fanouts=(1,), batch_size=1, temporal=Temporal(nodes={"b": [1], "c": [1]}))


@pytest.mark.parametrize("times, message", [([5, 6], r"times: int64 of shape \(2,\)"), ([], "times: float64"), ([np.nan], "times: float64"),
                                            ([2**63], "times: entry 0 is 9223372036854775808"), (np.array(["NaT"], "M8[ns]"), "NaT")])
def test_times_of_a_batch_are_checked(times, message):
    """NaN and 2^63 would be later than all edges."""
    world = World(2)
    graph = world.graph()
    loader = world.loader(graph)
    with pytest.raises((ShapeError, DataError), match=message):
        loader.batch([3], times=times)
    day = np.array(["1970-01-01T00:00:00.000000005"], "M8[ns]")
    assert loader.batch([3], times=day).graphs[0].edge_ids.tolist() == loader.batch([3], times=[5]).graphs[0].edge_ids.tolist()
    with pytest.raises(ConfigError, match="times: the loader does not sample in time"):
        NeighborLoader(graph, world.x, None, slice(None), fanouts=(2,), batch_size=3).batch([3], times=[5])


@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("what", ["edges", "nodes"])
def test_dates_beside_plain_numbers_are_refused(what, n_ranks):
    """Numbers would all be earlier than dates, so that a seed would see later edges."""
    dates, numbers = np.array(["1950-03-01", "2020-03-01", "2020-05-01"], "M8[D]"), np.array([10, 20, 30])
    whole = Graph.from_edges([0, 1, 2], [1, 2, 1], 3)

    def loader(graph, times, seeds, nodes):
        graph = graph.with_edge_values(time=times[graph.edge_ids])
        more = {"nodes": nodes[graph.node_ids]} if what == "nodes" else {}
        return NeighborLoader(graph, np.eye(3)[graph.node_ids], None, slice(None), fanouts=(2,), batch_size=3,
                              temporal=Temporal(seeds=seeds[graph.node_ids], **more))

    def work(comm):
        graph = whole.shard(comm, [0, 1, 0] if comm.size == 2 else [0, 0, 0])
        edges = dates if what == "nodes" else numbers
        with pytest.raises(DataError, match=f"times of seeds: .*times of {what} are [12]0 to "):
            loader(graph, edges, dates[[1, 2, 2]], numbers)
        rows = np.arange(graph.n_dst)
        with pytest.raises(DataError, match="times of seeds: .*times of edges are [12]0 to "):
            loader(graph, numbers, numbers, numbers).batch(rows, times=dates[[1, 2, 2]][rows])
        assert loader(graph, dates, dates[[1, 2, 2]], dates).batch(rows, times=dates[rows]).n_global == 3

    threads.run(n_ranks, work)

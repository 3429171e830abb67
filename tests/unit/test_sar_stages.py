"""Mode broadcast whose stages come in pieces: the same results, bytes, and less of peers' rows at once (threads as ranks)."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sarlite import Graph, Tensor, fn
from sarlite.comm import threads
from sarlite.errors import PeerError, ShapeError
from sarlite.minibatch import NeighborLoader
from sarlite.minibatch.part_edges import PartEdges
from sarlite.sar import plan, stages
from sarlite.sar.cost import counts_of, expected, schedule_of
from sarlite.sar.other_counts import with_others
from sarlite.train.rates import in_step
from tests.helpers.costing import FEW, MODELS, RELATIONAL, check_bytes, plan_facts
from tests.helpers.exchanges import COMPLETE, EDGES, HOLDERS, X, attend, fails_at, shard, slowly
from tests.helpers.pieces import BUILT_IN, problem, run, run_built_in
from tests.helpers.strategies import edges, parts

pytestmark = pytest.mark.timeout(60)
N_PIECES = 3


@pytest.fixture
def pieces(monkeypatch):
    """However small a graph is."""
    for name, value in (("MOST_PIECES", N_PIECES), ("PIECE_EDGES", 1e-6), ("PIECE_ROWS", 1e-6)):
        monkeypatch.setattr(plan, name, value)


def test_how_many_pieces():
    rows = np.array([0, 11_000, 23_000])
    assert plan.n_pieces(rows, 478.0) == 7 and plan.n_pieces(rows, 10_000.0) == plan.MOST_PIECES  # which 11,500 rows of 1,024 allow
    assert plan.n_pieces(rows, 50.0) == plan.n_pieces(rows, 0.0) == plan.n_pieces(rows // 20, 10_000.0) == 1
    assert plan.n_pieces(np.arange(9) * 11_500, 478.0) == 1  # so many ranks have few edges a row and tile


@pytest.mark.parametrize("n_ranks", [2, 4])
@pytest.mark.parametrize("name", [*BUILT_IN, "message sum", "message max", "message softmax"])
def test_pieces_change_nothing(name, n_ranks, pieces):
    function, what = (run, name.split()[1]) if name.startswith("message") else (run_built_in, name)
    graph, *arrays = problem()
    alone = function(graph, *arrays, what)

    def on_rank(comm, prefetch):
        part = problem()[0].shard(comm, "random", mode="broadcast", prefetch=prefetch)
        assert len(part.plan.stages) == n_ranks * (N_PIECES if prefetch else 1)
        return part, function(part, *arrays, what)

    for prefetch in (0, 1, 2):
        ranks, again = (threads.run(n_ranks, on_rank, prefetch) for _ in range(2))
        for (part, (out, dx, de, dw)), (_, repeated) in zip(ranks, again):
            nodes, at = part.node_ids, part.edge_ids
            for found, whole, ids in ((out, alone[0], nodes), (dx, alone[1], nodes), (de, alone[2], at)):
                np.testing.assert_allclose(found, whole[ids], rtol=1e-11, atol=1e-12)
            assert all(np.array_equal(a, b) for a, b in zip((out, dx, de, dw), repeated))
        np.testing.assert_allclose(sum(grads[3] for _, grads in ranks), alone[3], rtol=1e-11)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=edges(), data=st.data())
def test_pieces_of_any_graph_and_division(graph, data, pieces):
    """Empty parts, and more ranks than nodes, too: then some pieces have no rows."""
    n_ranks, owner = data.draw(parts(graph.n_nodes))
    x, whole = np.arange(3.0 * graph.n_nodes).reshape(-1, 3), Graph.from_edges(*graph)

    def results(g):
        leaf = Tensor(x[g.node_ids], requires_grad=True)
        out = g.aggregate(fn.copy_src(leaf), "mean") + g.aggregate(fn.copy_src(leaf), "max")
        out.backward(out.data + 1)
        return out.data, leaf.grad

    alone = results(whole)
    for own, found in threads.run(n_ranks, lambda comm: (part := whole.shard(comm, owner, mode="broadcast"), results(part))):
        for a, b in zip(found, alone):
            np.testing.assert_allclose(a, b[own.node_ids], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_grid_of_ranks(weighted, pieces):
    whole = Graph.from_edges(*EDGES)
    if weighted:
        whole = whole.with_edge_values(np.random.default_rng(0).random(whole.n_edges))

    def results(g):
        x = Tensor(X[g.node_ids], requires_grad=True)
        out = g.aggregate(fn.copy_src(x), "sym")
        (out * out).sum().backward()
        return out.data, x.grad

    alone = results(whole)
    for own, found in threads.run(4, lambda comm: (part := whole.shard(comm, "random", mode="broadcast", columns=2), results(part))):
        assert len(own.grid.graph.plan.stages) == 2 * N_PIECES
        for a, b in zip(found, alone):
            np.testing.assert_allclose(a, b[own.node_ids], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("graph_edges", [EDGES, COMPLETE])
def test_pieces_are_ranges_cut_at_the_same_places_on_all_ranks(graph_edges, pieces):
    def work(comm):
        graph = shard(comm, graph_edges, mode="broadcast")
        x = Tensor(X[graph.node_ids], requires_grad=True)
        out = graph.aggregate(fn.copy_src(x), "sum")
        out.backward(np.ones_like(out.data))
        sources = []
        graph.schedule.run((x.data,), lambda block, rows: sources.append((block.source, block.src_ids.tolist())))
        return graph, sources, graph.profile.received_bytes

    ranks = threads.run(3, work)
    for rank, (graph, sources, received) in enumerate(ranks):
        others = 50 - graph.n_dst
        assert received["backward_fetch"] == others * 4 * 8 and received["backward_push"] == 0
        own, *rest = sources
        assert own[0] == rank and [source for source, _ in rest] == np.repeat([q for q in range(3) if q != rank], N_PIECES).tolist()
        for source in {source for source, _ in rest}:
            peer = ranks[source][0]
            needed = [node for at, ids in rest if at == source for node in ids]
            assert needed == sorted(needed, key=peer.node_ids.tolist().index)  # the pieces follow each other
            sent = [step.send_rows for step in peer.plan.steps if step.target == rank]
            sent = [peer.node_ids[rows].tolist() for rows in sent]
            assert sent == [ids for at, ids in rest if at == source]
        for stage in graph.plan.stages:
            n = ranks[stage.root][0].n_dst
            assert stage.share == Fraction(1, N_PIECES) and stage.rows.start in [n * k // N_PIECES for k in range(N_PIECES)]
        assert graph.plan.n_halo == sum(graph.plan.needed(3)) and len(graph.plan.asked(3)[rank]) == 0


def test_what_is_pushed_backward_goes_in_parts_of_pieces(pieces, monkeypatch):
    monkeypatch.setattr(plan, "STEP_ROWS", 1)

    def results(g):
        x = Tensor(X[g.node_ids], requires_grad=True)
        out = attend(g, x)
        (out * out).sum().backward()
        return x.grad

    alone = results(Graph.from_edges(*EDGES))
    for own, found in threads.run(2, lambda comm: (part := shard(comm, mode="broadcast"), results(part))):
        steps = own.plan.backward_steps
        assert [step.share for step in steps] == [Fraction(1, 9)] * 9 and sum(step.n_rows for step in steps) == own.plan.n_halo
        np.testing.assert_allclose(found, alone[own.node_ids], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("prefetch", [1, 2])
@pytest.mark.parametrize("name", ["copy_src", "case 2"])
def test_live_remote_buffers(name, prefetch, pieces):
    bound = prefetch + Fraction(1, N_PIECES)

    def work(comm):
        graph = shard(comm, mode="broadcast", prefetch=prefetch)
        out = HOLDERS[name](graph, Tensor(X[graph.node_ids], requires_grad=True), slowly(bound))
        forward = graph.profile.peak_remote_buffers
        out.backward(np.ones_like(out.data))
        return forward, graph.profile.peak_remote_buffers, graph.profile.live_remote_buffers

    found = threads.run(4, work)
    assert all(0 < forward <= bound and peak <= bound and live == 0 for forward, peak, live in found)
    assert name == "copy_src" or max(forward for forward, *_ in found) == bound


def test_after_a_failure_at_any_piece(pieces):
    alone = Graph.from_edges(*EDGES).aggregate(fn.copy_src(X), "sum").data

    def work(comm):
        graph = shard(comm, mode="broadcast", prefetch=1)
        for failing in range(1, 6):  # the ranks have come to different pieces
            with pytest.raises(KeyError, match="the cause"):
                graph.aggregate(fails_at(failing + comm.rank), "sum", src={"x": X[graph.node_ids]})
            graph.recover()
            found = graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum").data
            np.testing.assert_allclose(found, alone[graph.node_ids], rtol=1e-12)

    threads.run(3, work)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_rows_of_other_widths_are_refused_on_every_rank(prefetch, pieces):
    def work(comm):
        graph = shard(comm, mode="broadcast", prefetch=prefetch)
        with pytest.raises(ShapeError, match="rows of shape"):
            graph.aggregate(fn.copy_src(X[graph.node_ids][:, : 4 - (comm.rank == 1)]), "sum")
        with pytest.raises(PeerError, match="recover"):
            graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum")
        graph.recover()
        graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum")

    threads.run(3, work)


def test_rows_of_a_batch_that_do_not_ascend(monkeypatch):
    """Numbers of a batch's rows are in the order in which they were found; brought to the front piece by piece some were written over."""
    monkeypatch.setattr(stages, "PIECE", 16)  # of ids as floats two
    graph = Graph.from_edges(*EDGES)

    def work(comm):
        part = graph.shard(comm, "random", mode="broadcast")
        (batch,) = NeighborLoader(part, X[part.src_ids], None, np.arange(0, part.n_dst, 3), fanouts=(4, 4), batch_size=20)
        for layer in batch.layers(2):
            found = layer.schedule.run((layer.src_ids.astype(float),), lambda block, rows: (rows[0].copy(), block.src_ids), keep=True)
            assert all(np.array_equal(rows, ids) for rows, ids in found)
        return any((np.diff(stage.needed) < 0).any() for layer in batch.layers(2) for stage in layer.plan.stages
                   if not isinstance(stage.needed, slice))

    assert any(threads.run(3, work))


def test_columns_of_minibatches(pieces):
    def work(comm):
        found, told = (PartEdges(shard(comm, mode=mode)) for mode in ("broadcast", "sar"))
        for name in ("ids", "halo_starts", "degrees"):
            assert np.array_equal(getattr(found, name), getattr(told, name))
        assert all(np.array_equal(a, b) for a, b in zip((*found.asked, *found.edges[:2]), (*told.asked, *told.edges[:2]), strict=True))

    threads.run(3, work)


# ---- what is told


@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("options", [MODELS["gcn"], MODELS["max"], MODELS["gat"], {**MODELS["gat"], "backward": "fetch"},
                                     {**MODELS["sage"], "data": FEW}, RELATIONAL["rgcn"], RELATIONAL["rgat"]])
def test_bytes_are_those_of_the_run(options, n_ranks, pieces, tmp_path, monkeypatch):
    check_bytes(tmp_path, monkeypatch, n_ranks, "broadcast", prefetch=1, **{**options, "epochs": 2})


def test_a_plan_of_counts_is_laid_out_as_the_graphs(pieces):
    """Counted in any mode, of the reversed edges too: rows of each piece that are needed, and whether they follow each other."""
    def work(comm):
        graph = shard(comm, mode="broadcast", backward="fetch")
        schedules = graph.schedule, graph.schedule.reverse
        for counted in (graph, shard(comm, mode="sar"), shard(comm, mode="oneshot")):
            told = schedule_of(with_others(counted, counts_of(counted)), "broadcast", 1)
            assert [plan_facts(each.plan) for each in schedules] == [plan_facts(each.plan) for each in (told, told.reverse)]
        return len({step.contiguous for step in graph.plan.steps})

    assert 2 in threads.run(4, work)


def test_pieces_that_are_expected_are_even(pieces):
    steps = schedule_of(expected(400, 1200, 4, halo=0.5), "broadcast", 1).plan.steps
    assert [(step.n_rows, step.contiguous) for step in steps] == [(16, False), (17, False), (17, False)] * 3
    assert len(schedule_of(expected(400, 1200, 4, halo=0.5), "broadcast", 0).plan.steps) == 3


def test_ranks_that_go_in_step_are_fewer_rows_apart_where_stages_come_in_pieces():
    tiles = np.array([[5.0, 9, 8, 5], [2, 0, 0, 3], [5, 8, 9, 0], [4, 9, 7, 6]])
    assert [in_step(tiles, 1, n) for n in (1, 2)] == [27, 29] and in_step(np.ones((3, 3)), 1, 4) == in_step(np.ones((3, 3)), 1) == 3

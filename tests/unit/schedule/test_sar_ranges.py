"""Mode broadcast with stages in ranges of rows: the same results and bytes, and fewer peers' rows at once.

Ranks are threads.
"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite import Graph, Tensor, fn
from sarlite.comm import threads
from sarlite.errors import PeerError, ShapeError
from sarlite.minibatch import NeighborLoader
from sarlite.minibatch.part_edges import PartEdges
from sarlite.schedule.modes import MODES
from sarlite.schedule.needs import Needs
from tests.helpers.comm.exchanges import (
    COMPLETE,
    EDGES,
    HOLDERS,
    N_RANGES,
    X,
    attend,
    fails_at,
    in_ranges,
    shard,
    slowly,
)
from tests.helpers.graph.piece_cases import BUILT_IN, problem, run, run_built_in
from tests.helpers.graph.strategies import edges, parts

pytestmark = pytest.mark.timeout(60)


def needs(n_rows, degree, n_ranks=2):
    """Return a stand-in for the needs that a mode reads to choose a number of ranges."""
    return Needs(0, np.arange(n_ranks + 1) * n_rows, [], [], [], [], degree)


def test_how_many_ranges():
    mode = MODES["broadcast"]
    assert mode.n_ranges(needs(11_500, 478.0)) == 7
    assert mode.n_ranges(needs(11_500, 10_000.0)) == mode.most_ranges  # 11,500 rows of 1,024 allow so many ranges
    assert mode.n_ranges(needs(11_500, 50.0)) == mode.n_ranges(needs(11_500, 0.0)) == mode.n_ranges(needs(575, 10_000.0)) == 1
    assert mode.n_ranges(needs(11_500, 478.0, n_ranks=8)) == 1  # with many ranks a row has few edges in each tile


@pytest.mark.sampled(6)
@pytest.mark.parametrize("n_ranks", [2, 4])
@pytest.mark.parametrize("name", [*BUILT_IN, "message sum", "message max", "message softmax"])
def test_ranges_change_nothing(name, n_ranks):
    function, what = (run, name.split()[1]) if name.startswith("message") else (run_built_in, name)
    graph, *arrays = problem()
    one_rank = function(graph, *arrays, what)

    def on_rank(comm, prefetch):
        part = problem()[0].shard(comm, "random", mode=in_ranges(), prefetch=prefetch)
        assert len(part.plan.forward) == (1 + n_ranks * N_RANGES if prefetch else n_ranks)
        return part, function(part, *arrays, what)

    for prefetch in (0, 1, 2):
        ranks, again = (threads.run(n_ranks, on_rank, prefetch) for _ in range(2))
        for (part, (out, dx, de, dw)), (_, repeated) in zip(ranks, again):
            nodes, at = part.node_ids, part.edge_ids
            for actual, whole, ids in ((out, one_rank[0], nodes), (dx, one_rank[1], nodes), (de, one_rank[2], at)):
                np.testing.assert_allclose(actual, whole[ids], rtol=1e-11, atol=1e-12)
            assert all(np.array_equal(a, b) for a, b in zip((out, dx, de, dw), repeated))
        np.testing.assert_allclose(sum(grads[3] for _, grads in ranks), one_rank[3], rtol=1e-11)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(graph=edges(), data=st.data())
def test_ranges_of_any_graph_and_division(graph, data):
    """Parts may be empty, and ranks may be more than nodes; then some pieces have no rows."""
    n_ranks, owner = data.draw(parts(graph.n_nodes))
    x, whole = np.arange(3.0 * graph.n_nodes).reshape(-1, 3), Graph.from_edges(*graph)

    def results(g):
        leaf = Tensor(x[g.node_ids], requires_grad=True)
        out = g.aggregate(fn.copy_src(leaf), "mean") + g.aggregate(fn.copy_src(leaf), "max")
        out.backward(out.data + 1)
        return out.data, leaf.grad

    one_rank = results(whole)
    for local, actual in threads.run(n_ranks, lambda comm: (part := whole.shard(comm, owner, mode=in_ranges()), results(part))):
        for a, b in zip(actual, one_rank):
            np.testing.assert_allclose(a, b[local.node_ids], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("graph_edges", [EDGES, COMPLETE])
def test_ranges_are_ranges_cut_at_the_same_places_on_all_ranks(graph_edges):
    def work(comm):
        graph = shard(comm, graph_edges, mode=in_ranges())
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
        local_range, *rest = sources
        assert local_range[0] == rank and [source for source, _ in rest] == np.repeat([q for q in range(3) if q != rank], N_RANGES).tolist()
        for source in {source for source, _ in rest}:
            peer = ranks[source][0]
            needed = [node for at, ids in rest if at == source for node in ids]
            assert needed == sorted(needed, key=peer.node_ids.tolist().index)  # the pieces follow each other
            sent = [arrival.send_rows for arrival in peer.plan.exchanges if arrival.target == rank]
            sent = [peer.node_ids[rows].tolist() for rows in sent]
            assert sent == [ids for at, ids in rest if at == source]
        n, sent = graph.n_dst, [piece.arrivals[0].send_rows for piece in graph.plan.forward if piece.own and piece.arrivals]
        assert [rows.start for rows in sent] == [n * k // N_RANGES for k in range(N_RANGES)]
        assert {piece.share for piece in graph.plan.forward if not piece.own} == {Fraction(1, N_RANGES)}
        assert graph.plan.n_halo == sum(graph.plan.needed(3)) and len(graph.plan.asked(3)[rank]) == 0


def test_what_is_pushed_backward_goes_in_parts_of_pieces():

    def results(g):
        x = Tensor(X[g.node_ids], requires_grad=True)
        out = attend(g, x)
        (out * out).sum().backward()
        return x.grad

    one_rank = results(Graph.from_edges(*EDGES))
    for local, actual in threads.run(2, lambda comm: (part := shard(comm, mode=in_ranges(backward_rows=1)), results(part))):
        *peers, _ = local.plan.backward
        assert [piece.share for piece in peers] == [Fraction(1, 9)] * 9
        assert sum(piece.n_rows for piece in peers) == local.plan.n_halo
        np.testing.assert_allclose(actual, one_rank[local.node_ids], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("prefetch", [1, 2])
@pytest.mark.parametrize("name", ["copy_src", "case 2"])
def test_live_remote_buffers(name, prefetch):
    bound = prefetch + Fraction(1, N_RANGES)

    def work(comm):
        graph = shard(comm, mode=in_ranges(), prefetch=prefetch)
        out = HOLDERS[name](graph, Tensor(X[graph.node_ids], requires_grad=True), slowly(bound))
        forward = graph.profile.peak_remote_buffers
        out.backward(np.ones_like(out.data))
        return forward, graph.profile.peak_remote_buffers, graph.profile.live_remote_buffers

    ranks = threads.run(4, work)
    assert all(0 < forward <= bound and peak <= bound and live == 0 for forward, peak, live in ranks)
    assert name == "copy_src" or max(forward for forward, *_ in ranks) == bound


def test_after_a_failure_at_any_range():
    one_rank = Graph.from_edges(*EDGES).aggregate(fn.copy_src(X), "sum").data

    def work(comm):
        graph = shard(comm, mode=in_ranges(), prefetch=1)
        for failing in range(1, 6):  # the ranks have reached different pieces
            with pytest.raises(KeyError, match="the cause"):
                graph.aggregate(fails_at(failing + comm.rank), "sum", src={"x": X[graph.node_ids]})
            graph.recover()
            sums = graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum").data
            np.testing.assert_allclose(sums, one_rank[graph.node_ids], rtol=1e-12)

    threads.run(3, work)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_rows_of_other_widths_are_refused_on_every_rank(prefetch):
    def work(comm):
        graph = shard(comm, mode=in_ranges(), prefetch=prefetch)
        with pytest.raises(ShapeError, match="rows of shape"):
            graph.aggregate(fn.copy_src(X[graph.node_ids][:, : 4 - (comm.rank == 1)]), "sum")
        with pytest.raises(PeerError, match="recover"):
            graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum")
        graph.recover()
        graph.aggregate(fn.copy_src(X[graph.node_ids]), "sum")

    threads.run(3, work)


def test_rows_of_a_batch_that_do_not_ascend():
    """A batch numbers its rows in the order of sampling."""
    graph = Graph.from_edges(*EDGES)

    def work(comm):
        part = graph.shard(comm, "random", mode="broadcast")
        (batch,) = NeighborLoader(part, X[part.src_ids], None, np.arange(0, part.n_dst, 3), fanouts=(4, 4), batch_size=20)
        for layer in batch.layers(2):
            pieces = []
            note = lambda block, rows, pieces=pieces: pieces.append((rows[0].copy(), block.src_ids))  # noqa: E731
            layer.schedule.run((layer.src_ids.astype(float),), note)
            assert pieces and all(np.array_equal(rows, ids) for rows, ids in pieces)
        arrivals = [arrival for layer in batch.layers(2) for piece in layer.plan.forward for arrival in piece.arrivals]
        return any((np.diff(arrival.needed) < 0).any() for arrival in arrivals if isinstance(arrival.needed, np.ndarray))

    assert any(threads.run(3, work))


def test_columns_of_minibatches():
    def work(comm):
        in_pieces, whole = (PartEdges(shard(comm, mode=mode)) for mode in (in_ranges(), "sar"))
        for name in ("ids", "halo_starts"):
            assert np.array_equal(getattr(in_pieces, name), getattr(whole, name))
        in_pieces, whole = ((*part.asked, *part.edges.edges[:2], part.edges.degrees) for part in (in_pieces, whole))
        assert all(np.array_equal(a, b) for a, b in zip(in_pieces, whole, strict=True))

    threads.run(3, work)

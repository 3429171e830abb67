"""A custom message runs over a block in pieces, and backward over parts of a peer's columns, with the same results."""

import numpy as np
import pytest

from sarlite.comm import threads
from sarlite.structure.block import Block
from tests.helpers.comm.exchanges import in_parts
from tests.helpers.graph.piece_cases import BUILT_IN, N_NODES, in_small_pieces, problem, run, run_built_in


@pytest.mark.sampled(8)
@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
@pytest.mark.parametrize("reducer", ["sum", "mean", "max", "min", "softmax"])
def test_pieces_change_nothing(reducer, mode):
    graph, *arrays = problem()
    assert len(graph.plan.local.pieces) == 1
    expected = run(graph, *arrays, reducer)

    def on_rank(comm):
        part = in_small_pieces(problem()[0].shard(comm, "contiguous", mode=mode))
        return part, run(part, *arrays, reducer)

    for n_ranks in (1, 2):
        parts = threads.run(n_ranks, on_rank)
        assert len(parts[0][0].plan.local.pieces) > 3
        for part, (out, dx, de, _) in parts:
            nodes, edges = part.node_ids, part.edge_ids
            for actual, whole, ids in ((out, expected[0], nodes), (dx, expected[1], nodes), (de, expected[2], edges)):
                np.testing.assert_allclose(actual, whole[ids], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(sum(grads[3] for _, grads in parts), expected[3], rtol=1e-12)


def test_halves_are_rows_of_the_block_with_pieces_of_their_own():
    whole = in_small_pieces(problem()[0]).plan.local
    halves = whole.halves
    assert abs(halves[0].n_edges - halves[1].n_edges) <= np.diff(whole.indptr).max()
    for parts in (halves, [piece for half in halves for piece in half.pieces]):
        assert len(parts) == 2 or len(parts) > 6
        assert np.array_equal(np.concatenate([part.edge_index_array for part in parts]), whole.edge_index_array)
        assert np.array_equal(np.concatenate([part.indices for part in parts]), whole.indices)
        assert np.array_equal(np.concatenate([part.rows for part in parts]), np.arange(N_NODES))
        assert np.array_equal(np.concatenate([part.dst for part in parts]), whole.dst)


def test_pieces_cover_every_edge_once():
    whole = in_small_pieces(problem()[0]).plan.local
    pieces = whole.pieces
    assert max(piece.n_edges for piece in pieces) <= N_NODES + np.diff(whole.indptr).max()
    assert np.array_equal(np.concatenate([piece.edge_index_array for piece in pieces]), whole.edge_index_array)
    assert np.array_equal(np.concatenate([piece.indices for piece in pieces]), whole.indices)
    assert np.array_equal(np.concatenate([piece.rows for piece in pieces]), np.arange(N_NODES))
    assert np.array_equal(np.concatenate([piece.dst for piece in pieces]), whole.dst)


# ---- backward pieces for parts of a peer's columns

@pytest.mark.sampled(7)
@pytest.mark.parametrize("mode", ["sar", "sa"])
@pytest.mark.parametrize("name", [*BUILT_IN, "message sum", "message max", "message softmax"])
def test_backward_parts_change_nothing(name, mode):
    function, what = (run, name.split()[1]) if name.startswith("message") else (run_built_in, name)
    graph, *arrays = problem()
    expected = function(graph, *arrays, what)

    def on_rank(comm, prefetch):
        part = problem()[0].shard(comm, "random", mode=in_parts(mode, backward_pieces=7), prefetch=prefetch)
        return part, function(part, *arrays, what)

    for parts in (depths := [threads.run(3, on_rank, prefetch) for prefetch in (0, 1, 2)]):
        for part, (out, dx, de, _) in parts:
            assert len(part.plan.forward) == 1 + 2 and len(part.plan.backward) == (8 if mode == "sar" else 2) + 1
            nodes, edges = part.node_ids, part.edge_ids
            for actual, whole, ids in ((out, expected[0], nodes), (dx, expected[1], nodes), (de, expected[2], edges)):
                np.testing.assert_allclose(actual, whole[ids], rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(sum(grads[3] for _, grads in parts), expected[3], rtol=1e-11)
    if mode == "sar":
        back = {part.profile.sent_bytes["backward_fetch"] for parts in depths for part, _ in parts if part.comm.rank == 0}
        assert (back == {0}) == (name in ("sum", "max", "case 1"))
    for (_, one), (_, two) in zip(*depths[1:]):
        assert all(np.array_equal(a, b) for a, b in zip(one, two))


def test_columns_of_a_block_are_a_block():
    whole = problem()[0].plan.local
    for first, last in ((0, 7), (7, 7), (7, N_NODES)):
        part = whole.columns(first, last)
        edges = np.flatnonzero((first <= whole.indices) & (whole.indices < last))
        assert part.n_edges == len(edges) == len(part.indices) and np.array_equal(part.src_ids, whole.src_ids[first:last])
        assert np.array_equal(part.dst, whole.dst[edges]) and np.array_equal(part.indices + first, whole.indices[edges])
        assert np.array_equal(part.edge_index_array, whole.edge_index_array[edges])
        cut_block = Block(part.indptr, part.indices, part.src_ids)
        assert all(np.array_equal(a, b) for a, b in zip(part.transpose, cut_block.transpose))
        assert np.array_equal(part.transpose_edge_index, whole.edge_index_array[edges][cut_block.transpose_position])

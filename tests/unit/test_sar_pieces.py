"""A custom message runs over a block in pieces; the pieces change nothing."""

import numpy as np
import pytest

from sarlite import Graph, Tensor, nn
from sarlite.comm import threads
from sarlite.graph import block

N_NODES, N_EDGES = 20, 400


def problem():
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, N_NODES, N_EDGES), rng.integers(0, N_NODES - 2, N_EDGES)
    return Graph.from_edges(src, dst, N_NODES), rng.standard_normal((N_NODES, 3)), rng.random((N_EDGES, 1)), rng.standard_normal((3, 4))


def run(graph, x, e, w, reducer):
    """Return the output and the gradients of x, the edge values and the captured weight."""
    x, e, w = (Tensor(a, requires_grad=True) for a in (x[graph.node_ids], e[graph.edge_ids], w))
    dropout = nn.Dropout(0.3, nn.Random(0))

    def message(src, dst, edge):
        value = dropout(((src["x"] + dst["x"]) @ w).tanh() * edge["e"], edge.ids)
        return (value.sum(-1), value) if reducer == "softmax" else value

    out = graph.aggregate(message, reducer, src={"x": x}, dst={"x": x}, edge={"e": e})
    (out * out).sum().backward()
    return out.data, x.grad, e.grad, w.grad


@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot"])
@pytest.mark.parametrize("reducer", ["sum", "mean", "max", "min", "softmax"])
def test_pieces_change_nothing(reducer, mode, monkeypatch):
    graph, *arrays = problem()
    assert len(graph.plan.local.pieces) == 1
    expected = run(graph, *arrays, reducer)
    monkeypatch.setattr(block, "PIECE_EDGES", 1)

    def on_rank(comm):
        part = problem()[0].shard(comm, "contiguous", mode=mode)
        return part, run(part, *arrays, reducer)

    for n_ranks in (1, 2):
        parts = threads.run(n_ranks, on_rank)
        assert len(parts[0][0].plan.local.pieces) > 3
        for part, (out, dx, de, _) in parts:
            nodes, edges = part.node_ids, part.edge_ids
            for found, whole, ids in ((out, expected[0], nodes), (dx, expected[1], nodes), (de, expected[2], edges)):
                np.testing.assert_allclose(found, whole[ids], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(sum(grads[3] for _, grads in parts), expected[3], rtol=1e-12)


def test_halves_are_rows_of_the_block_with_pieces_of_their_own(monkeypatch):
    monkeypatch.setattr(block, "PIECE_EDGES", 1)
    whole = problem()[0].plan.local
    halves = whole.halves
    assert abs(halves[0].n_edges - halves[1].n_edges) <= np.diff(whole.indptr).max()
    for parts in (halves, [piece for half in halves for piece in half.pieces]):
        assert len(parts) == 2 or len(parts) > 6
        assert np.array_equal(np.concatenate([part.labels for part in parts]), whole.labels)
        assert np.array_equal(np.concatenate([part.indices for part in parts]), whole.indices)
        assert np.array_equal(np.concatenate([np.arange(N_NODES)[part.place] for part in parts]), np.arange(N_NODES))
        assert np.array_equal(np.concatenate([part.rows + part.place.start for part in parts]), whole.rows)


def test_pieces_cover_every_edge_once(monkeypatch):
    monkeypatch.setattr(block, "PIECE_EDGES", 1)
    whole = problem()[0].plan.local
    pieces = whole.pieces
    assert max(piece.n_edges for piece in pieces) <= N_NODES + np.diff(whole.indptr).max()
    assert np.array_equal(np.concatenate([piece.labels for piece in pieces]), whole.labels)
    assert np.array_equal(np.concatenate([piece.indices for piece in pieces]), whole.indices)
    places = [np.arange(N_NODES)[piece.place] for piece in pieces]
    assert np.array_equal(np.concatenate(places), np.arange(N_NODES))
    assert np.array_equal(np.concatenate([piece.rows + place[0] for piece, place in zip(pieces, places)]), whole.rows)

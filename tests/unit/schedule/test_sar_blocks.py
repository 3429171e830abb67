"""Blocks hold every edge of a part once and only rows with edges; the in-edges and out-edges come back from the blocks."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarlite import Graph
from sarlite.comm import threads
from tests.helpers.comm.exchanges import MODES
from tests.helpers.graph.strategies import SETTINGS, edges, parts

pytestmark = pytest.mark.timeout(60)


class Divided(NamedTuple):
    """A graph and its division: the ids of each edge's ends, and each rank's nodes in the order of their rows."""

    src: np.ndarray
    dst: np.ndarray
    sources: list
    destinations: list
    make: object
    options: dict

    def row_numbers(self, owned):
        """Return an array from id to row number in the whole graph."""
        rows = np.concatenate(owned)
        numbers = np.empty(len(rows), np.int64)
        numbers[rows] = np.arange(len(rows))
        return numbers

    def in_edges(self, rank):
        """Return the edges of each of the rank's rows by a loop, by the row number of their sources, then by id."""
        numbers = self.row_numbers(self.sources)
        return [sorted(np.flatnonzero(self.dst == i).tolist(), key=lambda e: (numbers[self.src[e]], e)) for i in self.destinations[rank]]

    def out_edges(self, rank):
        """Return the row numbers of the destinations of each of the rank's sources."""
        numbers = self.row_numbers(self.destinations)
        return [sorted(numbers[self.dst[self.src == j]].tolist()) for j in self.sources[rank]]

    def run(self, work):
        return threads.run(len(self.sources), lambda comm: work(self.make().shard(comm, **self.options)))


@st.composite
def divided(draw):
    """Draw a graph over one set of nodes, from an edge list or from a CSR whose entries have ids."""
    graph = draw(edges())
    n_ranks, owner = draw(parts(graph.n_nodes))
    order = draw(st.none() | st.permutations(range(graph.n_nodes)).map(np.array))
    rows = np.arange(graph.n_nodes) if order is None else order
    owned = [rows[owner[rows] == rank] for rank in range(n_ranks)]
    options = dict(parts=owner, order=order, mode=draw(st.sampled_from(MODES)), prefetch=draw(st.integers(0, 1)))
    if draw(st.booleans()):
        return Divided(graph.src, graph.dst, owned, owned, lambda: Graph.from_edges(*graph), options)
    by_dst = np.lexsort((np.arange(graph.n_edges), graph.src, graph.dst))
    indptr = np.searchsorted(graph.dst[by_dst], np.arange(graph.n_nodes + 1))
    return Divided(graph.src, graph.dst, owned, owned, lambda: Graph.from_csr(indptr, graph.src[by_dst], edge_index=by_dst), options)


@st.composite
def divided_bipartite(draw):
    n_src, n_dst = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    pairs = draw(st.lists(st.tuples(st.integers(0, n_src - 1), st.integers(0, n_dst - 1)), max_size=24))
    src, dst = np.array(pairs, np.int64).reshape(-1, 2).T
    n_ranks, owner = draw(parts(n_dst))
    src_owner = np.array(draw(st.lists(st.integers(0, n_ranks - 1), min_size=n_src, max_size=n_src)))
    options = dict(parts=owner, src_parts=src_owner, mode=draw(st.sampled_from(MODES)))
    sources, destinations = ([np.flatnonzero(side == rank) for rank in range(n_ranks)] for side in (src_owner, owner))
    return Divided(src, dst, sources, destinations, lambda: Graph.from_edges(src, dst, n_src=n_src, n_dst=n_dst), options)


any_graph = given(graph=divided() | divided_bipartite())


@SETTINGS
@any_graph
def test_the_blocks_are_the_parts_edges(graph):
    for rank, part in enumerate(graph.run(lambda part: part)):
        in_order, places = np.array(sum(graph.in_edges(rank), []), np.int64), []
        assert part.src_ids.tolist() == graph.sources[rank].tolist() and part.dst_ids.tolist() == graph.destinations[rank].tolist()
        for block in part.plan.blocks:
            place = np.arange(part.n_edges) if block.positions is None else block.positions
            edge_ids = part.edge_ids[block.edge_index_array]
            assert edge_ids.tolist() == in_order[place].tolist()
            assert block.edge_index is None or block.edge_index.tolist() == block.edge_index_array.tolist()
            assert block.src_ids[block.indices].tolist() == graph.src[edge_ids].tolist()
            assert part.dst_ids[block.dst].tolist() == graph.dst[edge_ids].tolist()
            assert block.rows is None or ((np.diff(block.indptr) > 0).all() and (np.diff(block.rows) > 0).all())
            assert np.unique(block.indices).tolist() == list(range(block.n_src)) or block is part.plan.local
            places.append(place)
        assert np.sort(np.concatenate(places)).tolist() == list(range(part.n_edges))


@SETTINGS
@any_graph
def test_in_edges_are_the_graphs(graph):
    numbers = graph.row_numbers(graph.sources)
    for rank, (part, in_edges) in enumerate(graph.run(lambda part: (part, part.in_edges()))):
        expected = graph.in_edges(rank)
        ids = np.array(sum(expected, []), np.int64)
        assert np.diff(in_edges.indptr).tolist() == [len(row) for row in expected] == part.in_degrees.tolist()
        assert in_edges.indices.tolist() == numbers[graph.src[ids]].tolist()
        assert part.edge_ids[slice(None) if in_edges.numbers is None else in_edges.numbers].tolist() == ids.tolist()


@SETTINGS
@any_graph
def test_out_edges_are_the_graphs(graph):
    for rank, (indptr, indices) in enumerate(graph.run(lambda part: part.out_edges())):
        assert [indices[a:b].tolist() for a, b in zip(indptr, indptr[1:])] == graph.out_edges(rank)
        assert indptr[0] == 0 and indptr[-1] == len(indices)


def test_a_part_in_any_order_of_its_rows_edges():
    """The edges of each row are sorted by source, with their ids and the marks of loops."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 20, 150), np.sort(rng.integers(0, 20, 150))
    loops = [np.arange(8) % 3 == 0, np.arange(12) % 2 == 0]

    def work(comm):
        first, last = ((0, 8), (8, 20))[comm.rank]
        owned = np.flatnonzero((first <= dst) & (dst < last))
        indptr = np.searchsorted(dst[owned], np.arange(first, last + 1))
        graph = Graph.from_part(comm, indptr, src[owned], node_ids=100 + np.arange(first, last), edge_ids=owned,
                                added_loops=loops[comm.rank])
        assert graph.node_ids.tolist() == list(range(100 + first, 100 + last)) and graph.n_nodes == 20
        assert graph.added_loops.tolist() == graph.in_edges().added_loops.tolist() == loops[comm.rank].tolist()
        in_edges = graph.in_edges()
        expected = owned[np.lexsort((owned, src[owned], dst[owned]))]
        assert graph.edge_ids.tolist() == expected.tolist()
        assert in_edges.indices.tolist() == src[expected].tolist() and in_edges.indptr.tolist() == indptr.tolist()

    threads.run(2, work)


@pytest.mark.parametrize("mode", ["sar", "sa"])
def test_blocks_of_a_ring_take_an_eighth_on_each_of_eight_ranks(mode):
    """Most pairs of parts share no edge, and their blocks keep no rows."""
    ring = np.arange(4000)
    edges = np.concatenate([ring, ring]), np.concatenate([np.roll(ring, 1), np.roll(ring, -1)])
    whole = n_bytes(Graph.from_edges(*edges))
    for n_bytes_of_rank in threads.run(8, lambda comm: n_bytes(Graph.from_edges(*edges).shard(comm, "contiguous", mode=mode))):
        assert n_bytes_of_rank == pytest.approx(whole / 8, rel=0.03)


def n_bytes(graph):
    return sum(a.nbytes for block in graph.plan.blocks for a in (block.indptr, block.indices, block.rows) if a is not None)

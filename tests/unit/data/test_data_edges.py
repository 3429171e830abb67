"""Edge lists to CSR, against a naive dictionary."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite.errors import DataError
from sarlite.structure.edges import ascending, csr_by_dst, destinations, is_symmetric, row_chunks
from sarlite.structure.part_edges_csr import is_sorted


@st.composite
def edge_lists(draw):
    n_nodes = draw(st.integers(1, 7))
    ids = st.integers(0, n_nodes - 1)
    pairs = draw(st.lists(st.tuples(ids, ids), max_size=25))
    dtype = draw(st.sampled_from([np.int32, np.int64, np.uint32, np.uint64, np.int8]))
    src, dst = (np.array([pair[end] for pair in pairs], dtype) for end in (0, 1))
    return src, dst, n_nodes


def naive(src, dst, n_nodes, undirected, self_loops, deduplicate):
    """Return [(dst, src, position)] in CSR order, by plain Python."""
    rows = {node: [] for node in range(n_nodes)}
    for at, (u, v) in enumerate(zip(src.tolist(), dst.tolist())):
        rows[v].append((u, at))
    if undirected:
        for u, v in zip(src.tolist(), dst.tolist()):
            rows[u].append((v, -1))
    if self_loops:
        for node, sources in rows.items():
            if node not in [u for u, _ in sources]:
                sources.append((node, -1))
    result = []
    for node, sources in rows.items():
        seen = set()
        for u, at in sorted(sources, key=lambda edge: edge[0]):
            if u not in seen or not (undirected or deduplicate):
                result.append((node, u, at))
            seen.add(u)
    return result


@settings(max_examples=100, deadline=None)
@given(edge_lists(), st.booleans(), st.booleans(), st.booleans())
def test_csr_is_what_a_dictionary_gives(edges, undirected, self_loops, deduplicate):
    options = {"undirected": undirected, "self_loops": self_loops, "deduplicate": deduplicate}
    indptr, indices, origin = csr_by_dst(*edges, **options, edge_index=True)
    expected = naive(*edges, **options)
    assert list(zip(destinations(indptr).tolist(), indices.tolist(), origin.tolist())) == expected
    assert indptr.dtype == np.int64 and indices.dtype == np.int32 and indptr.size == edges[2] + 1
    plain = csr_by_dst(*edges, **options)
    assert np.array_equal(plain[0], indptr) and np.array_equal(plain[1], indices)


@settings(max_examples=100, deadline=None)
@given(edge_lists())
def test_is_symmetric_compares_counts_of_edges_in_both_directions(edges):
    indptr, indices = csr_by_dst(*edges)
    counts = np.zeros((edges[2], edges[2]), int)
    np.add.at(counts, (edges[1], edges[0]), 1)
    assert is_symmetric(indptr, indices) == bool((counts == counts.T).all())
    assert is_symmetric(*csr_by_dst(*edges, undirected=True))


def test_numbers_of_nodes_that_would_overflow_are_refused():
    none = np.empty(0, np.int64)
    for n_nodes in (-1, 3_000_000_001):
        with pytest.raises(DataError, match=f"n_nodes: {n_nodes} is outside"):
            csr_by_dst(none, none, n_nodes)


@pytest.mark.parametrize(
    "src, dst, message",
    [
        ([0, 1], [0], "src and dst: lengths disagree, 2 and 1"),
        ([0.0], [1], "src: expected an integer dtype, found float64"),
        ([0], [True], "dst: expected an integer dtype, found bool"),
        ([0, 7, 8], [0, 0, 0], "src: node id 7 at position 1 .*0 <= id < 3"),
        ([0, 0], [2, -1], "dst: node id -1 at position 1 .*0 <= id < 3"),
        ([[0]], [[0]], r"src: .*one dimension.*shape \(1, 1\)"),
    ],
)
def test_bad_edges_are_named(src, dst, message):
    with pytest.raises(DataError, match=message):
        csr_by_dst(np.array(src), np.array(dst), 3)


def test_no_edges_and_no_nodes():
    none = np.empty(0, np.int64)
    assert csr_by_dst(none, none, 0)[0].tolist() == [0]
    indptr, indices = csr_by_dst(none, none, 3, self_loops=True)
    assert indptr.tolist() == [0, 1, 2, 3] and indices.tolist() == [0, 1, 2]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 12), st.lists(st.integers(0, 20), max_size=3))
def test_pieces_of_rows(lengths, most, cuts):
    indptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    cuts = sorted(cut for cut in cuts if cut <= len(lengths))
    chunks = list(row_chunks(indptr, most, cuts))
    assert [row for first, last in chunks for row in range(first, last)] == list(range(len(lengths)))
    for first, last in chunks:
        assert first < last <= first + most and (indptr[last] - indptr[first] <= most or last == first + 1)
        assert not any(first < cut < last for cut in cuts)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), max_size=6), max_size=8), st.sampled_from([7, 3_000_000_000]))
def test_the_order_in_which_rows_ascend_is_stable(rows, n_nodes):
    """The order is also stable if row, column and position do not fit into 64 bits together."""
    columns, lengths = np.array([u for row in rows for u in row], np.int32), np.array([len(row) for row in rows], np.int64)
    expected = np.lexsort((columns, np.repeat(np.arange(len(rows)), lengths)))
    assert ascending(lengths, columns, n_nodes).tolist() == expected.tolist()
    assert ascending(lengths, columns, 2**60).tolist() == expected.tolist()
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    assert is_sorted(indptr, columns[expected]) and is_sorted(indptr, columns) == all(row == sorted(row) for row in rows)


@settings(max_examples=50, deadline=None)
@given(edge_lists(), st.booleans())
def test_edges_sorted_in_small_chunks_are_those_sorted_at_once(edges, undirected):
    expected = csr_by_dst(*edges, undirected=undirected, edge_index=True)
    assert np.array_equal(csr_by_dst(*edges, undirected=undirected, chunk=3)[1], expected[1])

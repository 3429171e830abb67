"""Partitions: valid for every size, balanced, reproducible; and the report of their cost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite.errors import ConfigError
from sarlite.structure import balance as balancing
from sarlite.structure import metis
from sarlite.structure.balance import swap_training
from sarlite.structure.edges import csr_by_dst, destinations
from sarlite.structure.generate import sbm
from sarlite.structure.partition import METHODS, partition, report


@st.composite
def graphs(draw):
    n_nodes = draw(st.integers(0, 12))
    ids = st.integers(0, max(n_nodes - 1, 0))
    pairs = draw(st.lists(st.tuples(ids, ids), max_size=30 if n_nodes else 0))
    src, dst = (np.array([pair[end] for pair in pairs], np.int64) for end in (0, 1))
    return *csr_by_dst(src, dst, n_nodes), draw(st.lists(st.booleans(), min_size=n_nodes, max_size=n_nodes))


@settings(max_examples=100, deadline=None)
@given(graphs(), st.integers(1, 16), st.sampled_from(METHODS), st.booleans())
def test_every_graph_gets_valid_parts(graph, n_parts, method, with_train):
    indptr, indices, train = graph
    n_nodes = indptr.size - 1
    mask = np.array(train, bool) if with_train else None
    parts = partition(indptr, indices, n_parts, method, train_mask=mask, seed=1)
    assert parts.shape == (n_nodes,) and parts.dtype == np.int32
    assert ((parts >= 0) & (parts < n_parts)).all()
    assert np.unique(parts).size == min(n_nodes, n_parts)  # a part is empty only if there are fewer nodes than parts
    if method in ("random", "contiguous"):
        sizes = np.bincount(parts, minlength=n_parts)
        assert sizes.max() - sizes.min() <= 1
    assert np.array_equal(parts, partition(indptr, indices, n_parts, method, train_mask=mask, seed=1))


@settings(max_examples=100, deadline=None)
@given(graphs(), st.integers(1, 5))
def test_report_counts_what_a_loop_counts(graph, n_parts):
    indptr, indices, train = graph
    parts = partition(indptr, indices, n_parts, "random", seed=3)
    quality = report(indptr, indices, parts, n_parts, np.array(train, bool))
    edges, halos, cut = [0] * n_parts, [set() for _ in range(n_parts)], 0
    for u, v in zip(indices.tolist(), destinations(indptr).tolist()):
        edges[parts[v]] += 1
        if parts[u] != parts[v]:
            cut += 1
            halos[parts[v]].add(u)
    assert quality["edges"] == edges and quality["halo_rows"] == [len(halo) for halo in halos] and quality["cut_edges"] == cut
    assert quality["nodes"] == [int((parts == part).sum()) for part in range(n_parts)]
    assert quality["train_nodes"] == [int((parts == part)[np.array(train, bool)].sum()) for part in range(n_parts)]
    assert quality["cut_share"] == cut / max(len(indices), 1)
    if any(edges):
        assert quality["imbalance"]["edges"] == pytest.approx(max(edges) * n_parts / sum(edges))


@pytest.fixture(scope="module")
def graph():
    return sbm(nodes=4000, seed=0)


@pytest.mark.parametrize("n_parts", [2, 5, 16])
@pytest.mark.parametrize("train", ["random", "one class"])
def test_metis_balances_and_cuts_less(graph, n_parts, train):
    mask = graph.train if train == "random" else graph.labels == 0
    arguments = graph.indptr, graph.indices
    metis = report(*arguments, partition(*arguments, n_parts, "metis", train_mask=mask), n_parts, mask)
    rand = report(*arguments, partition(*arguments, n_parts, "random"), n_parts, mask)
    assert metis["imbalance"]["nodes"] < 1.06
    assert max(metis["train_nodes"]) <= np.ceil(1.1 * mask.sum() / n_parts)
    assert metis["cut_share"] < 0.85 * rand["cut_share"]


@settings(max_examples=80, deadline=None)
@given(graphs(), st.sampled_from([2, 1 << 20]), st.booleans())
def test_metis_gets_a_symmetric_graph(graph, chunk, both_ways):
    """Two neighbours have one edge each way, without self loops, ascending; rows of the input may be in any order."""
    indptr, indices, _ = graph
    if both_ways:
        indptr, indices = csr_by_dst(indices, destinations(indptr), indptr.size - 1, undirected=True)
    shuffled = np.concatenate([np.empty(0, np.int32), *(indices[low:high][::-1] for low, high in zip(indptr, indptr[1:]))])
    expected = [set() for _ in range(indptr.size - 1)]
    for u, v in zip(indices.tolist(), destinations(indptr).tolist()):
        if u != v:
            expected[u].add(v)
            expected[v].add(u)
    for sources in (indices, shuffled.astype(np.int64)):
        symmetric = metis.Symmetric(indptr, sources, chunk=chunk)
        xadj, adjncy = symmetric.xadj, symmetric.adjncy
        assert [adjncy[low:high].tolist() for low, high in zip(xadj, xadj[1:])] == [sorted(near) for near in expected]


def test_metis_leaves_no_part_empty():
    """METIS by itself leaves parts of this path empty."""
    ids = np.arange(19)
    indptr, indices = csr_by_dst(ids, ids + 1, 20, undirected=True)
    assert np.unique(metis.Symmetric(indptr, indices).divide(16, 0)).size < 16
    assert np.unique(partition(indptr, indices, 16, "metis")).size == 16


def test_balancing_swaps_the_nodes_that_cost_least():
    """The path 0 - 1 - ... - 7 is cut in the middle, with all training nodes on the left; the nodes at the cut move first."""
    ids = np.arange(7)
    indptr, indices = csr_by_dst(ids, ids + 1, 8, undirected=True)
    parts = swap_training(indptr, indices, np.repeat([0, 1], 4).astype(np.int32), 2, np.arange(8) < 4)
    assert np.bincount(parts[:4]).max() <= 3 and np.bincount(parts).tolist() == [4, 4]
    assert parts[3] == 1 and parts[:3].tolist() == [0, 0, 0]
    assert parts[4] == 0


def test_metis_finds_two_cliques():
    ids = np.arange(20)
    u, v = (end.ravel() for end in np.meshgrid(ids, ids))
    keep = (u < 10) == (v < 10)
    indptr, indices = csr_by_dst(np.append(u[keep], 0), np.append(v[keep], 19), 20, deduplicate=True)
    parts = partition(indptr, indices, 2, "metis")
    assert (parts[:10] == parts[0]).all() and (parts[10:] == 1 - parts[0]).all()


def test_the_seed_decides(graph):
    for method in ("metis", "random"):
        one, two = (partition(graph.indptr, graph.indices, 4, method, seed=seed) for seed in (1, 2))
        assert not np.array_equal(one, two)


@pytest.mark.parametrize(
    "options, message",
    [({"n_parts": 0}, "n_parts: 0"), ({"n_parts": 2, "method": "best"}, "method: 'best'"), ({"n_parts": 2, "seed": -1}, "seed is -1"),
     ({"n_parts": 2, "seed": 1.5}, "seed is 1.5")],
)
def test_impossible_options_are_named(graph, options, message):
    with pytest.raises(ConfigError, match=message):
        partition(graph.indptr, graph.indices, **options)


@pytest.mark.parametrize("method, balance, uneven, helps", [
    ("random", None, "nodes", True), ("fennel", "nodes,edges,train", "edges", True), ("metis", None, "edges", True),
    ("metis", "nodes", "train_nodes", True), ("metis", None, "train_nodes", False), ("metis", "nodes,edges,train", "edges", False),
])  # fmt: skip
def test_metis_is_advised_where_it_can_help(method, balance, uneven, helps):
    imbalance = {"nodes": 1.0, "edges": 1.0, "train_nodes": 1.0}
    assert balancing.warning({"imbalance": imbalance}, method, balance) is None
    message = balancing.warning({"imbalance": {**imbalance, uneven: 2.5}}, method, balance)
    assert " 2.50; " in message and ("METIS with --balance nodes,edges,train" in message) == helps
    assert helps or "METIS could not make them even" in message

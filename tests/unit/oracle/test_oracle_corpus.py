"""The corpus: its graphs are the published ones, and each promised difficulty occurs."""

import numpy as np
import pytest

from sarlite.errors import ConfigError
from sarlite.oracle import corpus
from sarlite.oracle.corpus import SplitMixStream

SMALL = corpus.corpus()
ENTRIES = SMALL + corpus.corpus("large")


@pytest.fixture(scope="module")
def graphs():
    return {entry.name: entry.edges for entry in SMALL}


def test_graphs_are_those_that_were_published(graphs):
    assert {name: corpus.graph_summary(edges) for name, edges in graphs.items()} == {e.name: e.published for e in SMALL}
    assert {e.name for e in ENTRIES} == set(corpus.published()) and len(ENTRIES) == len(corpus.published()) >= 300


def test_a_hash_depends_on_every_number(graphs):
    edges = graphs["uniform-17-100"]
    order = np.arange(edges.n_edges)[::-1]
    others = [edges.select(order), edges.reversed(), type(edges)(edges.src, edges.dst, 17, 18)]
    assert len({corpus.digest(e) for e in [edges, *others]}) == 4


def test_random_streams_are_fixed():
    draw = SplitMixStream("name")
    assert draw.below(1000, 5).tolist() == [int(v) * 1000 >> 32 for v in SplitMixStream("name").raw(5) >> np.uint64(32)]
    assert sorted(draw.permutation(9)) == list(range(9)) and draw.count == 14
    assert SplitMixStream("name").raw(2).tolist() == [9027245507853192657, 10958716944528631523]


def test_each_promised_difficulty_occurs(graphs):
    degrees = {name: (e.in_degrees, e.out_degrees) for name, e in graphs.items()}
    assert any(e.n_src == 0 for e in graphs.values()) and any(e.n_edges == 0 < e.n_dst for e in graphs.values())
    assert max(d.max(initial=0) for d, _ in degrees.values()) >= 100_000 <= max(d.max(initial=0) for _, d in degrees.values())
    assert any((e.src == e.dst).any() for e in graphs.values()) and any(e.n_src != e.n_dst for e in graphs.values())
    for tag, allowed in (("powers of two", 2.0 ** np.arange(17)), ("powers of four", [0.0, *4.0 ** np.arange(9)])):
        assert all(np.isin(degrees[e.name][0], allowed).all() for e in SMALL if tag in e.tags), tag
    with_loops = [degrees[e.name] for e in SMALL if "powers of four with loops" in e.tags]
    assert len(with_loops) > 5 and all(np.isin(d + 1, 4 ** np.arange(9)).all() for pair in with_loops for d in pair)
    assert {e.values for e in ENTRIES} == set(corpus.VALUES)
    rows = [max(e.published["n_src"], e.published["n_dst"]) * e.width for e in corpus.corpus("ci") if e.fits("int16")]
    assert max(rows) > 1 << 16, "offsets of rows that overflow in int16"
    assert max(e.published["n_edges"] * e.width for e in ENTRIES) > 2**31


def test_the_smaller_half_has_every_difficulty():
    half = corpus.corpus("ci")
    assert len(half) <= len(SMALL) * 0.55
    assert {t for e in half for t in e.tags} == {t for e in ENTRIES for t in e.tags} - {"large", "edge-columns above 2^31"}
    assert all(e.fits("int16") for e in half if "edge-columns above 2^15" in e.tags) and not corpus.entry("uniform-50-20000").fits("int16")
    assert sum(e.size for e in half) < sum(e.size for e in SMALL) / 20


def test_every_width_is_there_at_ci_on_a_graph_that_tells():
    """Tails of all lengths and whole vectors occur, on graphs whose degrees fit 16-bit counters."""
    half = corpus.corpus("ci")
    edges = {width: max(e.published["n_edges"] for e in half if e.width == width) for width in corpus.WIDTHS}
    assert set(edges) >= {*range(1, 10), 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 256, 257}
    assert {width % 16 for width in edges if width > 16} == set(range(16))
    assert min(edges.values()) >= 30
    assert max(e.edges.in_degrees.max(initial=0) for e in half if "in-star above 2^16" in e.tags) > 65_535


def test_graphs_and_widths_of_ones_own_are_selected():
    graphs = {"mine": corpus.entry("ring-3").edges, "other": corpus.entry("in-star-3").edges}
    first, second = corpus.WIDTHS[:2]
    entries = [(e.label, e.width, e.published["n_edges"]) for e in corpus.select_entries("ci", graphs, [5, 6, 7])]
    assert entries == [("mine", first, 3), ("other", second, 3), ("mine/width 5", 5, 3), ("mine/width 7", 7, 3), ("other/width 6", 6, 3)]
    rings = corpus.matching(corpus.corpus("ci"), "ring-*")
    assert [e.width for e in corpus.select_entries("ci", "ring-*", [2])] == [e.width for e in rings] + [2] * len(rings)
    for graphs, widths in (("*", [0]), ("*", []), ({"mine": 3}, None), ({}, None), ("nowhere", None)):
        with pytest.raises(ConfigError, match="widths|EdgeList|no graph"):
            corpus.select_entries("ci", graphs, widths)


def test_unknown_names_are_refused():
    for wrong in (lambda: corpus.corpus("most"), lambda: corpus.entry("in-star-5000")):
        with pytest.raises(ConfigError, match="most|in-star-5000"):
            wrong()
    assert corpus.entry("in-star-3").edges.n_edges == 3

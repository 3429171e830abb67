"""Fennel on nodes of several types: even by type, with the edges of all types counted, in files and in memory."""


import numpy as np
import pytest

from sarlite.cli.data_command import main
from sarlite.data import Part, assignment, format
from sarlite.data.quality import measured, quality
from sarlite.data.spec import load_relational
from sarlite.errors import ConfigError
from sarlite.structure import fennel, typed
from sarlite.structure.partition import report

SPEC = "relational:nodes=300,edges=2000,classes=3,features=4,noise=2,seed=1"
LARGER = "relational:nodes=4000,edges=60000,classes=8,features=4,train=0.3"


def test_fennel_divides_each_type_evenly(tmp_path):
    """The rows are read as they stand, in files and in memory, from a graph of which METIS cuts about as much."""
    data = load_relational(LARGER)
    parts, train, graph = assignment.make_parts(data, 4, "fennel"), assignment.training(data), assignment.structure(data)
    metis, own_train = assignment.make_parts(data, 4, "metis"), {"paper": data.by_type(train)["paper"]}
    cut, other = (report(graph.indptr, graph.indices, each, 4, train)["cut_share"] for each in (parts, metis))
    assert cut < 0.6 and cut < 1.5 * other  # a random division cuts three quarters
    by_type = data.by_type(parts)
    for type_parts in by_type.values():
        assert np.bincount(type_parts, minlength=4).max() <= np.ceil(1.03 * type_parts.size / 4)
    chosen = by_type["paper"][own_train["paper"]]
    assert np.bincount(chosen, minlength=4).max() <= np.ceil(fennel.SLACK["train"] * chosen.size / 4)
    held = typed.divide(graph, 4, "fennel", train=own_train, balance="auto")
    assert all(np.array_equal(type_parts, by_type[name]) for name, type_parts in held.items())
    uneven = data.by_type(assignment.make_parts(data, 4, "fennel", balance="edges"))
    assert any(np.bincount(type_parts, minlength=4).max() > np.ceil(1.03 * type_parts.size / 4) for type_parts in uneven.values())
    for memory in ([], ["--memory", "4GiB"]):
        out = tmp_path / f"out{len(memory)}"
        format.write(out, data)
        assert main(["partition", str(out), "--parts", "4", "--method", "fennel", "--progress", "none", *memory]) == 0
        stored = format.open(out)
        of_rank = Part(stored, 1, 4).nodes
        assert all(np.array_equal(rows.ids(), np.flatnonzero(by_type[name] == 1)) for name, rows in of_rank.items())
        assert stored.division["partition"] == "fennel" and quality(stored)["cut_share"] == pytest.approx(cut)
    again = assignment.make_parts(stored, 4, "fennel")  # rows by part now: ids are the original ones still
    assert measured(data, again, 4)["cut_share"] <= 1.05 * cut
    with pytest.raises(ConfigError, match="--memory: a partition of 4,000 nodes takes"):
        assignment.make_parts(data, 4, "fennel", n_bytes=fennel.BLOCK_BYTES + assignment.SORT_BYTES)
    for n_parts in (1, 5000):
        assert assignment.make_parts(data, n_parts, "fennel").size == data.n_nodes


def test_fennel_sees_the_edges_of_all_types():
    """The edges into any nodes equal the edges of one graph of all types."""
    data = load_relational(SPEC)
    seen, graph = assignment.StoredEdges(data), assignment.structure(data)
    assert (seen.n_nodes, seen.n_edges) == (graph.indptr.size - 1, graph.indices.size)
    for first, last in ((0, seen.n_nodes), (100, 130), (113, 115), (288, 302), (7, 7)):
        ends, sources = seen.indptr(first, last), seen.sources(first, last)
        assert np.array_equal(np.diff(ends), np.diff(graph.indptr[first : last + 1])) and sources.size == ends[-1] - ends[0]
        for node, a, b in zip(range(first, last), ends, ends[1:]):
            assert sorted(sources[a:b]) == sorted(graph.indices[graph.indptr[node] : graph.indptr[node + 1]])

"""Sets of graphs in TU Dortmund's layout that are unusual or wrong."""

import numpy as np
import pytest

from sarlite.data import load
from sarlite.errors import DataError


def write(folder, edges, graph_of, labels):
    for name, rows in (("A", edges), ("graph_indicator", graph_of), ("graph_labels", labels)):
        (folder / f"S_{name}.txt").write_text("".join(", ".join(map(str, np.atleast_1d(row))) + "\n" for row in rows))
    return f"tu:{folder}"


def test_a_set_without_an_edge(tmp_path):
    spec = write(tmp_path, [], [1, 1, 2, 3], [0, 1, 0])
    data = load(spec, relational=True, allow_empty=("train", "val", "test"))
    assert data.n_nodes_by_type == {"node": 4, "graph": 3} and data.edges["node", "edge", "node"].n_edges == 0


def test_numbers_that_begin_anew_in_each_graph_are_refused(tmp_path):
    """All edges would be in the first graph."""
    edges = [(1, 2), (2, 1), (2, 3)]
    spec = write(tmp_path, edges * 3, [1, 1, 1, 2, 2, 2, 3, 3, 3], [0, 1, 0])
    with pytest.raises(DataError, match="S_A.txt: the largest node is 3, .*9 nodes .*continue"):
        load(spec, relational=True)
    right = [(a + shift, b + shift) for shift in (0, 3, 6) for a, b in edges]
    assert load(write(tmp_path, right, [1, 1, 1, 2, 2, 2, 3, 3, 3], [0, 1, 0]), relational=True,
                allow_empty=("train", "val", "test")).n_edges == 9 + 9


def test_an_odd_word_is_named_by_its_line(tmp_path):
    spec = write(tmp_path, [(1, 2), (2, "x")], [1, 1], [0])
    with pytest.raises(DataError, match="S_A.txt: A: line 2: ' x' .*number"):
        load(spec, relational=True)


def test_the_largest_number_of_a_graph_is_refused(tmp_path, monkeypatch):
    """For this number, NumPy's bincount writes out of bounds, which corrupts memory and often shows much later."""
    def refuse(*_, **__):
        raise AssertionError("bincount of numbers that are not checked yet")

    monkeypatch.setattr(np, "bincount", refuse)
    spec = write(tmp_path, [(1, 2)], [1, 2**63 - 1], [0, 1])
    with pytest.raises(DataError, match="leads from graph 0 to graph 9223372036854775806"):
        load(spec, relational=True)

"""Random tables against a plain pandas reference."""

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite import Graph, HeteroGraph
from sarlite.data import from_tables, load
from sarlite.data.tables import numbering

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0", exclude_categories=("Cs", "Cc")), min_size=1, max_size=4)
NUMBERS = st.integers(-(2**63), 2**63 - 1)


@st.composite
def graphs(draw):
    ids = draw(st.lists(draw(st.sampled_from([WORDS, NUMBERS])), min_size=1, max_size=8, unique=True))
    pairs = draw(st.lists(st.tuples(st.sampled_from(ids), st.sampled_from(ids)), max_size=20))
    n = len(pairs)
    weights = draw(st.lists(st.floats(-1e6, 1e6), min_size=n, max_size=n))
    features = draw(st.lists(st.one_of(st.none(), st.floats(-1e3, 1e3, width=32)), min_size=len(ids), max_size=len(ids)))
    labels = draw(st.lists(st.sampled_from([None, "x", "y", "z"]), min_size=len(ids), max_size=len(ids)))
    return ids, pairs, weights, features, labels


def reference(ids, pairs, weights):
    """Return the edges sorted by destination, then source, then row."""
    number = {word: at for at, word in enumerate(ids)}
    edges = pandas.DataFrame({"src": [number[a] for a, _ in pairs], "dst": [number[b] for _, b in pairs], "w": weights})
    return edges.astype({"src": int, "dst": int, "w": float}).sort_values(["dst", "src"], kind="stable")


@given(graphs(), st.sampled_from(["dict", "pandas", "csv"]))
@settings(max_examples=40, deadline=None)
def test_tables_are_numbered_and_sorted(tmp_path_factory, given_, kind):
    ids, pairs, weights, features, labels = given_
    nodes = {"id": ids, "x": features, "y": labels}
    edges = {"src": [a for a, _ in pairs], "dst": [b for _, b in pairs], "w": weights}
    if kind != "dict":
        nodes, edges = pandas.DataFrame(nodes), pandas.DataFrame(edges)
    if kind == "csv":
        if not pairs or any(isinstance(word, str) and word.lower() in ("nan", "null", "") for word in ids):
            return
        folder = tmp_path_factory.mktemp("random")
        for name, frame in (("n", nodes), ("e", edges)):
            frame.to_csv(folder / f"{name}.csv", index=False)
        nodes, edges = str(folder / "n.csv"), str(folder / "e.csv")
    of_nodes = {"file": nodes, "id": "id", "features": ["x"], "fill": "0", "labels": "y"}
    data = from_tables({"nodes": {"u": of_nodes}, "edges": [{"file": edges, "relation": ["u", "e", "u"], "src": "src", "dst": "dst",
                                                             "weight": "w"}]})
    expected = reference(ids, pairs, weights)
    assert data.indices.tolist() == expected.src.tolist() and data.edge_weight.tolist() == expected.w.tolist()
    assert np.repeat(np.arange(len(ids)), np.diff(data.indptr)).tolist() == expected.dst.tolist()
    assert data.features.ravel().tolist() == np.float32([0 if x is None else x for x in features]).tolist()
    names = sorted({label for label in labels if label})
    assert data.labels.tolist() == [-1 if label is None else names.index(label) for label in labels]


def edges_of_data(data):
    """Return the ids of the nodes, and CSR, positions, weights and features of the edges."""
    names = data.target_nodes.names
    text, ends = bytes(names["bytes"]), names["ends"].tolist()
    ids = [text[begin:end].decode() for begin, end in zip(ends, ends[1:])]
    table = next(iter(data.edges.values()))
    return ids, [np.asarray(array).tolist() for array in (table.indptr, table.indices, table.edge_weight, table.edge_features)]


def edges_of_graph(graph, weight, features):
    edges = graph.in_edges()
    index = slice(None) if edges.numbers is None else edges.numbers
    arrays = edges.indptr, edges.indices, weight[index], features[index]
    return [str(one) for one in graph.ids.tolist()], [array.tolist() for array in arrays]


@given(graphs(), st.booleans(), st.booleans())
@settings(max_examples=15, deadline=None)
def test_one_table_gives_one_graph_through_all_doors(tmp_path_factory, given_, undirected, listed):
    """`Graph.from_pandas`, `HeteroGraph.from_pandas`, `data.from_tables` and the spec edges: read the same edges, bit for bit."""
    ids, pairs, weights, _, _ = given_
    if not pairs or any(isinstance(word, str) and (word != word.strip() or not word) for word in ids):
        return
    weights = [float(abs(hash(frozenset(pair))) % 97) / 7 for pair in pairs] if undirected else weights  # equal edges have equal values
    edges = {"src": [a for a, _ in pairs], "dst": [b for _, b in pairs], "w": weights, "x": [2 * w for w in weights]}
    nodes = {"id": ids} if listed else None
    graph = Graph.from_pandas(edges, weight="w", features=["x"], nodes=nodes, undirected=undirected)
    from_frame = edges_of_graph(graph, graph.edge_weight, graph.edge_features)
    of_nodes = {"file": nodes, "id": "id"} if listed else {"names": "edges"}
    of_edges = {"file": edges, "relation": ["u", "e", "u"], "src": "src", "dst": "dst", "weight": "w", "features": ["x"]}
    assert from_frame == edges_of_data(from_tables({"nodes": {"u": of_nodes}, "edges": [of_edges]}, undirected=undirected))
    folder = tmp_path_factory.mktemp("doors")
    pandas.DataFrame(edges).to_csv(folder / "e.csv", index=False)
    pandas.DataFrame({"id": ids}).to_csv(folder / "n.csv", index=False)
    spec = f"edges:{folder}/e.csv,src=src,dst=dst,weight=w,edge_features=x,header=true"
    spec += f",nodes={folder}/n.csv,id=id" if listed else ",names=edges"
    # numbers in text are words, which only edges name in the order of words: 10 before 2
    if isinstance(ids[0], str) != listed and not any(str(word).lower() in ("nan", "null") for word in ids):
        assert from_frame == edges_of_data(load(spec, undirected=undirected, allow_empty=("train", "val", "test")))
    if not undirected:
        hetero = HeteroGraph.from_pandas({("u", "e", "u"): edges}, nodes={"u": nodes} if listed else None)
        edges_of = hetero._parts.in_edges["u", "e", "u"]
        assert hetero.ids["u"].tolist() == graph.ids.tolist() and edges_of.indices.tolist() == graph.in_edges().indices.tolist()
        assert edges_of.indptr.tolist() == graph.in_edges().indptr.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_nodes_that_only_edges_name_ascend(seed):
    draw = np.random.default_rng(seed)
    words = [f"{chr(int(at))}{at}" for at in draw.integers(65, 900, 50)]
    edges = {"src": words[:25], "dst": words[25:]}
    data = from_tables({"nodes": {"u": {}}, "edges": [{"file": edges, "relation": ["u", "e", "u"]}]})
    graph = Graph.from_pandas(edges)
    ends, names = data.target_nodes.names["ends"], data.target_nodes.names["bytes"]
    words_in_order = [bytes(names[ends[at] : ends[at + 1]]).decode() for at in range(data.n_nodes)]
    assert words_in_order == sorted(set(words)) == graph.ids.tolist()


@pytest.mark.parametrize("form", ["hash({})", "length({})"])
def test_ids_with_equal_hashes_stay_two_nodes(monkeypatch, form):
    """Words are joined by their hashes only if no two words have one hash."""
    monkeypatch.setattr(numbering, "_HASH", form)
    edges = {"src": ["a", "b", "ccc"], "dst": ["b", "ccc", "a"]}
    data = from_tables({"nodes": {"u": {}}, "edges": [{"file": edges, "relation": ["u", "e", "u"]}]})
    assert data.indices.tolist() == [2, 0, 1] and data.indptr.tolist() == [0, 1, 2, 3]

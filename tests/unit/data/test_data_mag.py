"""ogbn-mag's raw folder, written here and read; faults are refused by file and line. Also the generated graph of its shape."""

import gzip
import re

import numpy as np
import pytest

from sarlite.data.spec import load_relational
from sarlite.errors import ConfigError, DataError
from sarlite.structure import relational_generator

FILES = {
    "raw/num-node-dict.csv.gz": "author,place,paper\n3,2,4\n",
    "raw/triplet-type-list.csv.gz": "author,writes,paper\npaper,cites,paper\nauthor,at,place\n",
    "raw/nodetype-has-label.csv.gz": "author,place,paper\nFalse,False,True\n",
    "raw/relations/author___writes___paper/edge.csv.gz": "0,1\n2,3\n2,0\n",
    "raw/relations/author___writes___paper/num-edge-list.csv.gz": "3\n",
    "raw/relations/paper___cites___paper/edge.csv.gz": "0,1\n3,2\n",
    "raw/relations/paper___cites___paper/num-edge-list.csv.gz": "2\n",
    "raw/relations/author___at___place/edge.csv.gz": "1,1\n",
    "raw/relations/author___at___place/num-edge-list.csv.gz": "1\n",
    "raw/node-feat/paper/node-feat.csv.gz": "0.5,1\n2,3\n4,5\n6,7.25\n",
    "raw/node-label/paper/node-label.csv.gz": "2\n0\n1\n2\n",
    "split/time/paper/train.csv.gz": "0\n2\n",
    "split/time/paper/valid.csv.gz": "3\n",
    "split/time/paper/test.csv.gz": "1\n",
}


def write(folder, **changed):
    for name, text in {**FILES, **changed}.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(gzip.compress(text.encode()))
    return folder


def read(folder, options=""):
    return load_relational(f"mag:{folder}{options}")


def test_a_folder_is_read(tmp_path):
    data = read(write(tmp_path))
    assert data.n_nodes_by_type == {"author": 3, "place": 2, "paper": 4} and data.target == "paper" and data.n_classes == 3
    names = [("author", "writes", "paper"), ("paper", "cites", "paper"), ("author", "at", "place")]
    assert list(data.edges) == [*names, *((to, f"rev_{name}", source) for source, name, to in names)]
    writes, at = data.edges[names[0]], data.edges["place", "rev_at", "author"]
    assert writes.indptr.tolist() == [0, 1, 2, 2, 3] and writes.indices.tolist() == [2, 0, 2] and writes.edge_ids.tolist() == [2, 0, 1]
    assert at.indptr.tolist() == [0, 0, 1, 1] and at.indices.tolist() == [1]
    assert [name for name, table in data.nodes.items() if table.features is not None] == ["paper"]
    assert data.features.tolist() == [[0.5, 1], [2, 3], [4, 5], [6, 7.25]] and data.labels.tolist() == [2, 0, 1, 2]
    assert [np.flatnonzero(mask).tolist() for mask in (data.train, data.val, data.test)] == [[0, 2], [3], [1]]
    assert list(read(tmp_path, ",reverses=false").edges) == names


@pytest.mark.parametrize("file, text, words", [
    ("raw/triplet-type-list.csv.gz", "author,writes,paper\nvenue,of,paper\n",
     "line 2: relation 'venue,of,paper': node type 'venue' is not one of"),
    ("raw/triplet-type-list.csv.gz", "author,writes\n", "line 1: expected source type, relation, destination type"),
    ("raw/triplet-type-list.csv.gz", "paper,cites,paper\npaper,cites,paper\n", "line 2: relation 'paper,cites,paper'"),
    ("raw/relations/paper___cites___paper/edge.csv.gz", "0,1\n3,4\n", "column '1': node '4' of type 'paper' is outside 0 <= node < 4"),
    ("raw/relations/paper___cites___paper/edge.csv.gz", "0,1\n", "1 rows, expected 2"),
    ("raw/relations/author___at___place/edge.csv.gz", None, "no such file"),
    ("raw/num-node-dict.csv.gz", "author,place,paper\n3,x,4\n", "line 2: 'x' is not a number of nodes of 'place'"),
    ("raw/num-node-dict.csv.gz", "author,place,paper\n3,2\n", "expected a line of node types and a line with a value per type"),
    ("raw/nodetype-has-label.csv.gz", "author,place,paper\nFalse,False,False\n", "with labels, found none"),
    ("split/time/paper/valid.csv.gz", "2\n", "node 2 is in the train split"),
    ("raw/nodetype-has-feat.csv.gz", "author,place,paper\nTrue,False,True\n",
     "line 2: types with features: author, paper, but node-feat has paper"),
    ("raw/node-feat/papers/node-feat.csv.gz", "1\n", "node type 'papers' is not one of author, place, paper"),
])  # fmt: skip
def test_a_bad_folder_is_refused(tmp_path, file, text, words):
    with pytest.raises(DataError, match=re.escape(words)) as caught:
        read(write(tmp_path, **{file: text}))
    assert file.removesuffix("/node-feat.csv.gz") in str(caught.value)


def test_the_generated_graph_follows_its_options_and_refuses_bad_options():
    one, same, other = (relational_generator.mag(nodes=3000, edges=40000, seed=seed, homophily=0.8) for seed in (1, 1, 2))
    assert list(one.n_nodes) == ["paper", "author", "institution", "field_of_study"] and len(one.edges) == 8
    for (source, name, to), (src, dst) in one.edges.items():
        assert len(np.unique(src * one.n_nodes[to] + dst)) == len(src) and src.max() < one.n_nodes[source]
        if name.startswith("rev_"):
            np.testing.assert_array_equal(one.edges[to, name[4:], source], (dst, src))
        np.testing.assert_array_equal(same.edges[source, name, to], (src, dst))
    assert sum(len(src) for src, _ in one.edges.values()) == 40000
    assert not np.array_equal(one.labels, other.labels) and (one.labels == same.labels).all()
    src, dst = one.edges["paper", "cites", "paper"]
    assert 0.75 < (one.labels[src] == one.labels[dst]).mean() < 0.9
    assert (one.train | one.val | one.test).all() and list(one.features) == ["paper"]
    for options, words in ((dict(nodes=10), "nodes: 10"), (dict(edges=7), "an even number"), (dict(homophily=2), "homophily: 2"),
                           (dict(nodes=40, edges=100000), "edges of writes")):
        with pytest.raises(ConfigError, match=words):
            relational_generator.mag(**options)

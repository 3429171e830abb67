"""Keys of learned rows: of nodes with names alone, the same on any number of ranks."""

import hashlib

import numpy as np

from sarlite import Graph, nn
from sarlite.comm import threads
from sarlite.data import from_tables
from sarlite.data.names import Names
from sarlite.train.row_keys import row_keys

USERS = [f"u{at}" for at in range(6)]
EDGES = {"file": {"a": USERS, "b": USERS[1:] + USERS[:1]}, "relation": ["user", "knows", "user"], "src": "a", "dst": "b"}
DATA = from_tables({"nodes": {"user": {"file": {"user": USERS, "x": np.ones(6)}, "id": "user"}}, "edges": [EDGES]})


class Model(nn.Module):
    """Rows of nodes, and on the last rank rows of something else, whose ids are more than there are nodes."""

    def __init__(self, ids, more):
        self.table = nn.Embedding(ids, 2, rng=nn.Random(0), node_type="low")
        self.others = nn.Parameter(np.ones((len(more), 2)), more)


def work(comm):
    graph = Graph.from_csr(DATA.indptr, DATA.indices)
    graph = graph if comm.size == 1 else graph.shard(comm, np.arange(6) % comm.size)
    more = np.array([6]) if comm.rank == comm.size - 1 else np.array([comm.rank])
    return graph.node_ids, row_keys(Model(graph.node_ids, more), graph, Names.of_dataset(DATA))


def test_keys_are_hashes_of_names():
    for n in (1, 3):
        for ids, keys in threads.run(n, work):
            assert [*keys] == ["table.weight"]
            expected = [np.frombuffer(hashlib.blake2b(USERS[at].encode(), digest_size=16).digest(), "<u8") for at in ids]
            np.testing.assert_array_equal(keys["table.weight"], expected)


def test_nodes_without_names_have_no_keys():
    graph = Graph.from_csr(DATA.indptr, DATA.indices)
    assert row_keys(Model(graph.node_ids, np.array([1])), graph, {}) == {}

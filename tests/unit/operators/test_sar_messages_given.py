"""Inputs of messages on one rank: edge values in the order of edge_ids, ids, and refused inputs."""



import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, no_grad
from sarlite.comm import threads
from sarlite.errors import ConfigError, ShapeError
from tests.helpers.graph.strategies import KINDS, random_edges, values

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("options", [{}, {"self_loops": True}, {"undirected": True}, {"deduplicate": True}])
def test_edge_values_follow_edge_ids(options):
    edges = random_edges(9, 40, seed=4)
    whole = Graph.from_edges(*edges, **options)
    # with src + 100 dst as the edge's value, every message tells whether it met its own edge
    indptr, indices, numbers, _ = whole.in_edges()
    src, dst = np.empty((2, whole.n_edges), int)
    numbers = np.arange(whole.n_edges) if numbers is None else numbers
    src[numbers], dst[numbers] = indices, np.repeat(np.arange(9), whole.in_degrees)
    first_ids = np.sort(np.unique(np.stack(edges[:2]), axis=1, return_index=True)[1])  # the first of equal edges
    n = edges.n_edges if options.keys() <= {"self_loops"} else len(first_ids)
    assert (np.stack([src, dst])[:, :n] == np.stack(edges[:2])[:, np.arange(n) if n == edges.n_edges else first_ids]).all()
    label = (src + 100 * dst).astype(np.float64)
    number = np.arange(9.0)[:, None]

    def check(graph):
        ids = graph.node_ids
        off = graph.aggregate(lambda s, d, e: (s["n"] + 100 * d["n"] - e["label"]).tanh() ** 2, "sum",
                              src={"n": number[ids]}, dst={"n": number[ids]}, edge={"label": label[graph.edge_ids][:, None]})
        assert (off.data == 0).all()
        total = graph.aggregate(fn.mul_edge(np.ones((len(ids), 1)), label[graph.edge_ids]), "sum").data[:, 0]
        np.testing.assert_array_equal(total, np.bincount(dst, label, 9)[ids])
        assert graph.n_edges == len(graph.edge_ids) and (graph.in_degrees == np.bincount(dst, minlength=9)[ids]).all()

    check(whole)
    assert (whole.edge_ids == np.arange(len(src))).all()
    for layout in ({"mode": "sar"}, {"mode": "oneshot"}, {"order": np.arange(9)[::-1]}):
        edge_ids = threads.run(3, lambda comm: (lambda g: (check(g), g.edge_ids))(whole.shard(comm, "random", **layout))[1])  # noqa: B023
        assert (np.sort(np.concatenate(edge_ids)) == np.arange(len(src))).all()


def test_ids_inside_a_message():
    edges = random_edges(9, 40, seed=4)
    seen = {}

    def work(comm):
        graph = Graph.from_edges(*edges).shard(comm, "random", order=np.arange(9)[::-1])

        def message(src, dst, edge):
            assert (src["n"].data[:, 0] == src.ids).all() and (dst["n"].data[:, 0] == dst.ids).all()
            assert (edge.ids == src.ids * 9 + dst.ids).all()
            seen[comm.rank] = seen.get(comm.rank, 0) + len(edge.ids)
            return src["n"] * 1.0

        n = np.arange(9.0)[graph.node_ids][:, None]
        graph.aggregate(message, "sum", src={"n": n}, dst={"n": n})

    threads.run(3, work)
    assert sum(seen.values()) == 40 + 2 * 3  # each edge once, and two probes a rank


# ---- what cannot work is refused


def _x(*row):
    return Tensor(np.ones((13, *row)))


REFUSED = {
    "unknown reducer": (lambda g: g.aggregate(fn.copy_src(_x(2)), "median"), ConfigError, "median"),
    "attend with mean": (lambda g: g.aggregate(fn.attend(_x(1, 2), _x(1), _x(1)), "mean"), ConfigError, "Attend"),
    "copy_src with softmax": (lambda g: g.aggregate(fn.copy_src(_x(2)), "softmax"), ConfigError, "CopySrc"),
    "no message": (lambda g: g.aggregate(_x(2), "sum"), ConfigError, "Tensor"),
    "too few rows": (lambda g: g.aggregate(fn.copy_src(Tensor(np.ones((12, 2)))), "sum"), ShapeError, "13"),
    "too few weights": (lambda g: g.aggregate(fn.mul_edge(_x(2), np.ones(59)), "sum"), ShapeError, "60"),
    "one row for all": (lambda g: g.aggregate(lambda s, d, e: s["x"].sum(0), "sum", src={"x": _x(2)}), ShapeError, "one row an edge"),
    "an array": (lambda g: g.aggregate(lambda s, d, e: s["x"].data, "sum", src={"x": _x(2)}), ShapeError, "one row an edge"),
    "softmax without score": (lambda g: g.aggregate(lambda s, d, e: s["x"] * 1.0, "softmax", src={"x": _x(2)}), ShapeError, "score"),
    "softmax of other heads": (lambda g: g.aggregate(lambda s, d, e: (s["x"], s["y"]), "softmax", src={"x": _x(2), "y": _x(3)}),
                               ShapeError, "score"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_inputs_are_refused(name):
    aggregate, error, word = REFUSED[name]
    with pytest.raises(error, match=word):
        aggregate(Graph.from_edges(*KINDS["random"]))


def test_nothing_is_recorded_without_grad():
    graph, x = Graph.from_edges(*KINDS["random"]), Tensor(values(1, 13, 2), requires_grad=True)
    w = Tensor(values(2, 2, 2), requires_grad=True)
    with no_grad():
        assert not graph.aggregate(fn.copy_src(x), "sum").requires_grad
        assert not graph.aggregate(lambda s, d, e: s["x"] @ w, "sum", src={"x": x}).requires_grad
    assert graph.aggregate(lambda s, d, e: s["x"].detach() @ w, "sum", src={"x": x}).requires_grad

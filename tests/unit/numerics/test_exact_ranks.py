"""Exact numerics where ranks differ, in errors, repeated rows and relations; and beside fast numerics."""

import warnings

import numpy as np
import pytest

from sarlite import Graph, HeteroGraph, Tensor, Trainer, fn, nn, numerics, optim
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, PeerError
from sarlite.minibatch import NeighborLoader
from sarlite.models import GCN
from sarlite.numerics.exact_sum import Exact
from sarlite.tape import ops

pytestmark = pytest.mark.timeout(120)
N_NODES = 40
EDGES = np.random.default_rng(0).integers(0, N_NODES, (2, 200))
X, LABELS = np.random.default_rng(1).standard_normal((N_NODES, 5)).astype(np.float32), np.arange(N_NODES) % 3


def trainer(comm, numerics="exact", model=None, **options):
    graph, rng = Graph.from_edges(*EDGES, N_NODES, self_loops=True), nn.Random(0)
    graph = graph.shard(comm, "contiguous") if comm.size > 1 else graph
    ids = graph.node_ids
    model = GCN(5, 3, hidden=4, rng=rng) if model is None else model(graph, rng)
    return Trainer(graph, model, X[ids], LABELS[ids], slice(None), rng=rng, numerics=numerics,
                   optimizer=lambda flat: optim.SGD(flat, 0.1), **options)


@pytest.mark.parametrize("name", ["fast", "exact"])
@pytest.mark.parametrize("failing", [{0}, {1}, {0, 1}], ids=["rank 0", "rank 1", "all"])
def test_a_loss_that_raises_is_told_to_every_rank_and_the_next_step_is_right(name, failing):
    def work(comm):
        local_trainer = trainer(comm, name)

        def loss(output, targets, rows, count):
            if comm.rank in failing:
                raise ValueError("no loss today")
            return ops.cross_entropy(output, targets, rows, count)

        local_trainer.loss, right = loss, local_trainer.loss
        expected = ValueError if comm.rank in failing else PeerError
        with pytest.raises(expected, match="no loss today"):
            local_trainer.step()
        local_trainer.loss = right
        return local_trainer.step(), local_trainer.flat.data.tobytes()

    one_rank = trainer(Solo(), name)
    assert threads.run(2, work)[0][0] == pytest.approx(one_rank.step(), rel=1e-6)


def test_numerics_of_other_ranks_are_refused():
    def work(comm):
        with pytest.raises(ConfigError, match="Exact .*1 ranks, .*2 ranks"):
            trainer(comm, Exact(Solo()))
        local_trainer = trainer(comm, Exact(comm))
        local_trainer.step()
        with numerics.using(Exact(Solo())), pytest.raises(ConfigError, match=r"give Exact\(graph.comm\)"):
            local_trainer.graph.aggregate(fn.copy_src(X[local_trainer.graph.node_ids]), "sum")
        return local_trainer.flat.data.tobytes()

    first, second = threads.run(2, work)
    assert first == second


class Table(nn.Module):
    """A model with a learned row for each node, of which some are picked."""

    def __init__(self, graph, rng, picks):
        self.rows, self.linear, self.picks = nn.Embedding(graph.node_ids, 5, rng=rng), nn.Linear(5, 3, rng=rng), picks

    def __call__(self, graph, h):
        return self.linear(ops.take(self.rows.weight, self.picks) + h)


def test_rows_that_one_rank_alone_picks_twice_are_refused_on_every_rank():
    def work(comm):
        twice = np.arange(N_NODES // comm.size)
        once = trainer(comm, model=lambda graph, rng: Table(graph, rng, twice))
        once.step()
        if comm.rank == comm.size - 1:
            twice = np.maximum(twice, 1)
        local_trainer = trainer(comm, model=lambda graph, rng: Table(graph, rng, twice))
        with pytest.raises(ConfigError, match="picked more than once .*exact"):
            local_trainer.step()

    for n_ranks in (1, 2, 4):
        threads.run(n_ranks, work)


# ---- relations

RELATIONS = [("a", "first", "c"), ("b", "second", "c"), ("a", "third", "c")]


def relational(comm, messages, options, name="exact"):
    """Return sums over relations into one type, and the gradients that exist."""
    rng = np.random.default_rng(0)
    edges = {relation: rng.integers(0, 30, (2, 200)) for relation in RELATIONS}
    x = {kind: rng.standard_normal((30, 4)).astype(np.float32) for kind in "abc"}
    graph = HeteroGraph.from_edges(edges, dict.fromkeys("abc", 30), comm=comm, parts="contiguous", **options)
    learned = {kind: Tensor(rows[graph.node_ids[kind]], True, placement="rows") for kind, rows in x.items()}
    with numerics.using(Exact(comm) if name == "exact" else None):
        by_relation, self_terms = messages({kind: (Tensor(t.data, placement="rows"), t) for kind, t in learned.items()})
        out = graph.aggregate(by_relation, "sum", self_terms=self_terms)["c"]
        g = np.cos(np.add.outer(graph.node_ids["c"], np.arange(4))).astype(np.float32)
        out.backward(g.reshape(out.shape))
    return [out.data, *(t.grad for t in learned.values() if t.grad is not None)]


def _double(s, d, e):
    return s["h"] * 2


def _heads(x):
    return x.reshape(-1, 1, 4)


WITHOUT_GRADIENT = {  # edges of the first relation; the third has one edge
    "functions": lambda x: {RELATIONS[0]: fn.message(_double, {"h": x["a"][0]}), RELATIONS[2]: fn.message(_double, {"h": x["a"][1]})},
    "a function": lambda x: {RELATIONS[0]: fn.message(_double, {"h": x["a"][0]}), RELATIONS[2]: fn.copy_src(x["a"][1])},
    "another type": lambda x: {RELATIONS[1]: fn.message(_double, {"h": x["b"][0]}), RELATIONS[2]: fn.copy_src(x["a"][1])},
    "a sum": lambda x: {RELATIONS[0]: fn.copy_src(x["a"][0]), RELATIONS[2]: fn.copy_src(x["a"][1])},
    "attention": lambda x: {RELATIONS[0]: fn.attend(_heads(x["a"][0]), x["a"][0][:, :1], x["c"][0][:, :1]),
                            RELATIONS[2]: fn.copy_src(_heads(x["a"][1]))},
    "attention of another type": lambda x: {RELATIONS[1]: fn.attend(_heads(x["b"][0]), x["b"][0][:, :1], x["c"][0][:, :1]),
                                            RELATIONS[2]: fn.copy_src(_heads(x["a"][1]))},
}  # fmt: skip


@pytest.mark.sampled(10)
@pytest.mark.parametrize("options", [{}, {"backward": "fetch"}], ids=["together", "separate"])
@pytest.mark.parametrize("name", ["fast", "exact"])
@pytest.mark.parametrize("case", WITHOUT_GRADIENT)
def test_a_message_without_gradient_beside_one_with(case, name, options):
    messages = lambda x: (WITHOUT_GRADIENT[case](x), None)  # noqa: E731
    both = lambda x: (WITHOUT_GRADIENT[case]({kind: (term, term) for kind, (_, term) in x.items()}), None)  # noqa: E731
    expected = relational(Solo(), messages, options, name)
    assert len(expected) == 2  # the result, and the gradient of one type
    for n_ranks in (2, 3):
        actual = [np.concatenate(of_ranks) for of_ranks in zip(*threads.run(n_ranks, relational, messages, options, name))]
        for a, b in zip(actual, expected):
            np.testing.assert_allclose(a, b, atol=1e-5)
            assert name == "fast" or np.array_equal(a, b)
    np.testing.assert_allclose(relational(Solo(), both, options, name)[0], expected[0], atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"backward": "fetch"}], ids=["together", "separate"])
def test_products_of_own_rows_are_added_in_one_order_on_any_number_of_ranks(options):
    def messages(x):
        weight = nn.Parameter(np.cos(np.arange(16.0)).reshape(4, 4).astype(np.float32))
        return {relation: fn.copy_src(x[relation[0]][1]) for relation in RELATIONS}, {"c": (x["c"][1], weight)}

    expected = relational(Solo(), messages, options)
    for n_ranks in (2, 3):
        actual = [np.concatenate(of_ranks) for of_ranks in zip(*threads.run(n_ranks, relational, messages, options))]
        assert all(np.array_equal(a, b) for a, b in zip(actual, expected, strict=True))


# ---- after fast numerics


def after(numerics_first, aggregate):
    """Return the last result of `aggregate`, called under each of these numerics."""
    for exact in numerics_first:
        with numerics.using(exact):
            result = aggregate()
    return result.data


def weighted_picks(comm, fast_first):
    """Return the symmetric norm of a weighted relation of a sampled batch, whose degrees the graph keeps."""
    rng = np.random.default_rng(0)
    relation, weight = ("a", "to", "a"), 10.0 ** rng.uniform(-6, 6, 200)
    graph = HeteroGraph.from_edges({relation: EDGES}, {"a": N_NODES}, comm=comm, parts="contiguous")
    graph = graph.with_edge_values({relation: weight[graph.edge_ids[relation]]})
    nodes, ids = graph.of("a"), graph.node_ids["a"]
    rows = {"a": X[ids].astype(np.float64)}, LABELS[ids], slice(None)
    batch = next(iter(NeighborLoader(nodes, *rows, fanouts=(-1,), batch_size=N_NODES, remote="exact")))
    (layer,) = batch.graph.layers(1)
    return after([None] * fast_first + [Exact(comm)], lambda: layer.aggregate({relation: fn.copy_src(batch.x["a"])}, "sym")["a"])


def picks_with_loops(comm, fast_first):
    """Return the mean over picks of all in-edges and added loops, which one rank need not count by edge."""
    whole = Graph.from_edges(*EDGES, N_NODES, self_loops=True)
    low, high = (N_NODES * part // comm.size for part in (comm.rank, comm.rank + 1))
    edges = whole.in_edges()
    indices = edges.indices[edges.indptr[low] : edges.indptr[high]]
    loops = np.ones(high - low, bool)
    graph = Graph.from_part(comm, edges.indptr[low : high + 1] - edges.indptr[low], indices, added_loops=loops)
    rows = X[graph.node_ids], LABELS[graph.node_ids], slice(None)
    batch = next(iter(NeighborLoader(graph, *rows, fanouts=(100,), batch_size=N_NODES, remote="exact")))
    (layer,) = batch.graph.layers(1)
    return after([None] * fast_first + [Exact(comm)], lambda: layer.aggregate(fn.copy_src(batch.x), "mean"))


@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("aggregate", [weighted_picks, picks_with_loops])
def test_bits_do_not_depend_on_what_ran_before(aggregate, n_ranks):
    by_itself, after_fast = (threads.run(n_ranks, aggregate, fast_first) for fast_first in (False, True))
    assert [rows.tobytes() for rows in by_itself] == [rows.tobytes() for rows in after_fast]


# ---- infinities, and other values at the edge


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_infinities_come_through_forward_and_backward(dtype):
    x, g = np.array([[1, 2, 3], [np.inf, 3, 4], [2, -np.inf, np.nan]], dtype), np.array([[1, 2, 1], [np.inf, 3, 2], [-np.inf, 1, 3]], dtype)

    def work(comm, name):
        graph = Graph.from_edges([0, 1, 2, 0, 1], [1, 1, 2, 2, 0], 3)
        graph = graph.shard(comm, "contiguous") if comm.size > 1 else graph
        rows, ids = Tensor(x[graph.node_ids], True, placement="rows"), graph.node_ids
        with numerics.using(Exact(comm) if name == "exact" else None), warnings.catch_warnings():
            warnings.simplefilter("error")
            results = [graph.aggregate(fn.copy_src(rows), "sum"), graph.aggregate(fn.mul_edge(rows, np.ones(graph.n_edges, dtype)), "mean"),
                       graph.aggregate(lambda s, d, e: s["x"] * 1, "sum", {"x": rows}), graph.aggregate(fn.copy_src(rows), "max")]
            gradients = []
            for result in results:
                result.backward(g[ids])
                gradients, rows.grad = [*gradients, rows.grad], None
        return [result.data for result in results] + gradients

    expected = work(Solo(), "fast")
    for n_ranks in (1, 2):
        actual = [np.concatenate(of_ranks) for of_ranks in zip(*threads.run(n_ranks, work, "exact"))]
        for a, b in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(a, b)
    exact = Exact(Solo())
    np.testing.assert_array_equal(exact.column_sums(x), [np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(exact.product_over_rows(x, np.ones((3, 1), dtype)), [[np.inf], [-np.inf], [np.nan]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_attention_with_a_slope_of_0_does_not_warn(dtype):
    def work(comm, name):
        rng, graph = np.random.default_rng(0), Graph.from_edges([0, 1, 2, 0], [1, 1, 2, 2], 4)
        z, src, dst = (rng.standard_normal(shape).astype(dtype) for shape in ((4, 2, 3), (4, 2), (4, 2)))
        src[[0, 2]] = -np.inf
        with numerics.using(Exact(comm) if name == "exact" else None), warnings.catch_warnings():
            warnings.simplefilter("error")
            return graph.aggregate(fn.attend(z, src, dst, 0.0), "sum").data

    np.testing.assert_allclose(work(Solo(), "exact"), work(Solo(), "fast"), rtol=1e-5)


def test_bfloat16_rows_are_refused():
    def work(comm):
        graph = Graph.from_edges(*EDGES, N_NODES).shard(comm, "contiguous", row_dtype="bfloat16")
        with numerics.using(Exact(comm)), pytest.raises(ConfigError, match="sums of bfloat16 .*exact"):
            graph.aggregate(fn.copy_src(X[graph.node_ids]), "max")

    threads.run(2, work)


def test_ranks_find_the_largest_weight_once():
    """A weighted sum takes two allreduces forward and one backward."""
    def work(comm):
        graph = Graph.from_edges(*EDGES, N_NODES).shard(comm, "contiguous")
        weight = np.ones((graph.n_edges, 2), np.float32)
        exact = Exact(comm)
        with numerics.using(exact):
            graph.most_edges()
            counts, allreduce = [], exact.comm.allreduce
            exact.comm.allreduce = lambda *arguments: counts.append(arguments[0].shape) or allreduce(*arguments)
            x = Tensor(X[graph.node_ids][:, :4].reshape(-1, 2, 2), True, placement="rows")
            out = graph.aggregate(fn.mul_edge(x, weight), "sum")
            forward, counts[:] = list(counts), []
            out.backward(np.ones(out.shape, np.float32))
        return forward, counts

    for forward, backward in threads.run(2, work):
        assert forward == [(2,), (4,)] and backward == [(4,)]

"""Weights and features on a graph's edges: against plain references, over ranks, in batches and message flow, and errors."""


import numpy as np
import pytest

from sarlite import Graph, Solo, Tensor, fn, gradcheck, nn
from sarlite.comm import threads
from sarlite.data.part import OwnedRows
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.graph.correct_and_smooth import CorrectAndSmooth
from sarlite.graph.propagation import Propagation
from sarlite.minibatch import message_flow
from sarlite.models import APPNP, GAT, GCN, SAGE, EdgeGATConv, GATv2Conv, SAGEConv
from sarlite.oracle.arithmetic import FloatArithmetic
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.reference import Reference
from sarlite.tape import no_grad, ops
from sarlite.train.identity import identity
from tests.helpers.graph import references
from tests.helpers.graph.references import EDGES, FEATURES, LABELS, N_IN, N_OUT, TRAIN
from tests.helpers.graph.strategies import values
from tests.helpers.minibatch.batching import REMOTES, loader_of, parts, whole

pytestmark = pytest.mark.timeout(60)
F64 = dict(dtype=np.float64)
W, E = np.random.default_rng(1).random(EDGES.n_edges) * 2, values(2, EDGES.n_edges, 3)
W[EDGES.dst == 4] = 0  # a node whose weighted degree is 0
DENSE = np.zeros((EDGES.n_nodes, EDGES.n_nodes))
np.add.at(DENSE, (EDGES.dst, EDGES.src), W)
DEGREES = np.where(DENSE.sum(1) == 0, 1, DENSE.sum(1))
MATRICES = {"sum": DENSE, "mean": DENSE / DEGREES[:, None], "sym": DENSE / np.sqrt(DEGREES[:, None] * DEGREES)}


def weighted(weight=W, features=E):
    return Graph.from_edges(*EDGES).with_edge_values(weight, features)


# ---- against plain references


@pytest.mark.parametrize("reducer", MATRICES)
def test_sums_and_their_gradients_are_those_of_the_dense_matrix(reducer):
    graph, g = weighted(), values(4, 61, N_OUT)
    x, w = Tensor(FEATURES, requires_grad=True), Tensor(values(3, N_IN, N_OUT), requires_grad=True)
    out = graph.aggregate(fn.linear(x, w), reducer)
    (out * g).sum().backward()
    a = MATRICES[reducer]
    for actual, expected in ((out.data, a @ FEATURES @ w.data), (x.grad, a.T @ g @ w.data.T), (w.grad, (a @ FEATURES).T @ g),
                            (graph.aggregate(fn.copy_src(Tensor(FEATURES)), reducer).data, a @ FEATURES)):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13)
    bipartite = Graph.from_edges(EDGES.src, EDGES.dst, n_src=61, n_dst=57).with_edge_values(W)
    out_degrees = np.where(DENSE.sum(0) == 0, 1, DENSE.sum(0))
    expected = DENSE / np.sqrt(DEGREES[:, None] * out_degrees) if reducer == "sym" else a
    actual = bipartite.aggregate(fn.copy_src(Tensor(FEATURES)), reducer).data
    np.testing.assert_allclose(actual, (expected @ FEATURES)[:57], rtol=1e-12, atol=1e-13)


def test_weighted_gcn_is_the_oracles_with_its_gradients():
    reference = Reference("gcn", weighted=True, self_loops="none")
    case = reference.case(EdgeList(EDGES.src, EDGES.dst, 61, 61), dtype="float64", width=N_IN)
    case.arrays["edge_weight"] = W + 0.1
    g, conv = reference.cotangents(case), GCN(N_IN, 4, layers=1, dropout=0, rng=nn.Random(0), **F64)
    for name, p in conv.convs[0].named_parameters():
        p.data[...] = case.state[name]
    x = Tensor(case.arrays["x"], requires_grad=True)
    out = conv(weighted(W + 0.1), x)
    (expected,), (cotangent,) = reference.outputs(case, FloatArithmetic()).values(), g.values()
    np.testing.assert_allclose(out.data, expected.value, rtol=1e-12, atol=1e-13)
    (out * cotangent).sum().backward()
    result = {"x": x.grad, **{name: p.grad for name, p in conv.convs[0].named_parameters()}}
    gradients = reference.gradients(case, g, FloatArithmetic())
    assert result.keys() <= gradients.keys()
    for name, array in result.items():
        np.testing.assert_allclose(array, gradients[name].value, rtol=1e-11, atol=1e-12, err_msg=name)


def test_attention_times_weight_and_its_gradients():
    z, src, dst = (Tensor(values(k, 61, *shape), requires_grad=True) for k, shape in ((5, (2, 3)), (6, (2,)), (7, (2,))))
    out, g = weighted().aggregate(fn.attend(z, src, dst), "sum"), values(8, 61, 2, 3)
    arrays = EDGES, z.data, src.data, dst.data, 0.2
    np.testing.assert_allclose(out.data, references.attend(*arrays, mask=W[:, None]), rtol=1e-12, atol=1e-13)
    (out * g).sum().backward()
    for actual, expected in zip((z, src, dst), references.attend_gradient(*arrays, g, mask=W[:, None])):
        np.testing.assert_allclose(actual.grad, expected, rtol=1e-11, atol=1e-12)


def test_weights_of_one_change_nothing_and_dropout_has_the_same_coins():
    v2 = GATv2Conv(N_IN, 3, 2, bias=False, rng=nn.Random(0), **F64)
    one, three = (v2(weighted(factor * W), Tensor(FEATURES)).data for factor in (1, 3))
    np.testing.assert_allclose(three, 3 * one, rtol=1e-12, atol=1e-13)
    for model in (v2, GAT(N_IN, N_OUT, hidden=3, heads=2, rng=nn.Random(0), **F64), SAGE(N_IN, N_OUT, hidden=4, rng=nn.Random(0), **F64),
                  APPNP(N_IN, N_OUT, rng=nn.Random(0), **F64)):
        one, other = (model(graph, Tensor(FEATURES)).data for graph in (Graph.from_edges(*EDGES), weighted(np.ones(420, int))))
        np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-13)


def test_edge_features_join_the_scores():
    conv = EdgeGATConv(N_IN, 3, 2, edge_features=3, rng=nn.Random(0), **F64)
    assert {name: p.shape for name, p in conv.named_parameters()}["attn_edge"] == (3, 2)
    p = {name: p.data for name, p in conv.named_parameters()}
    z = (FEATURES @ p["linear.weight"]).reshape(61, 2, 3)
    score = (z * p["attn_src"]).sum(2)[EDGES.src] + (z * p["attn_dst"]).sum(2)[EDGES.dst] + E @ p["attn_edge"]
    a = np.exp(np.where(score > 0, score, 0.2 * score))
    a /= references.at_nodes(EDGES.dst, a, 61)[EDGES.dst]
    expected = references.at_nodes(EDGES.dst, (a * W[:, None])[:, :, None] * z[EDGES.src], 61).reshape(61, 6)
    np.testing.assert_allclose(conv(weighted(), Tensor(FEATURES)).data, expected, rtol=1e-12, atol=1e-13)
    few = Graph.from_edges([0, 1, 2, 0, 1], [1, 2, 0, 0, 0], 3).with_edge_values(W[:5], E[:5])
    gradcheck(lambda matrix, h: few.aggregate(fn.attend(h.reshape(3, 2, 3), h[:, :2], h[:, 2:4], edge=few.edge_features,
                                                        attn_edge=matrix), "sum"), [values(9, 3, 2), values(10, 3, 6)])


def test_propagation_and_smoothing_take_the_graphs_weights():
    graph = weighted()
    np.testing.assert_allclose(Propagation(graph)(FEATURES), MATRICES["sym"] @ FEATURES, rtol=1e-12, atol=1e-13)
    z = np.full((61, N_OUT), 1 / N_OUT)
    one, other = (CorrectAndSmooth()(g, z, LABELS, TRAIN, weight) for g, weight in ((graph, None), (Graph.from_edges(*EDGES), W)))
    np.testing.assert_array_equal(one, other)


def test_weights_are_of_one_graph_and_not_of_the_one_that_it_was_made_of():
    graph, x = Graph.from_edges(*EDGES), Tensor(FEATURES, constant=True)
    for reducer, matrix in MATRICES.items():
        plain = graph.aggregate(fn.copy_src(x), reducer).data
        for weight, expected in ((np.ones(420), plain), (W, matrix @ FEATURES)):
            result = graph.with_edge_values(weight).aggregate(fn.copy_src(x), reducer).data
            np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-13)
        np.testing.assert_array_equal(graph.with_edge_values(W).with_edge_values().aggregate(fn.copy_src(x), reducer).data, plain)


# ---- over ranks


MODELS = {
    "gcn": lambda rng: GCN(N_IN, N_OUT, hidden=8, rng=rng, **F64),
    "sage": lambda rng: SAGE(N_IN, N_OUT, hidden=8, rng=rng, **F64),
    "gat": lambda rng: GAT(N_IN, N_OUT, hidden=3, heads=2, edge_features=3, residual=True, rng=rng, **F64),
    "appnp": lambda rng: APPNP(N_IN, N_OUT, hops=2, hidden=4, rng=rng, **F64),
    "gatv2": lambda rng: GATv2Conv(N_IN, 2, 2, rng=rng, **F64),
}


def step(graph, name):
    """Logits, the gradients of all parameters and of x, and what tells the data from others."""
    rng = nn.Random(3)
    model, ids = MODELS[name](rng), graph.node_ids
    flat, x = nn.flatten(model), Tensor(FEATURES[ids], requires_grad=True)
    logits = model(graph, x)
    (logits * values(5, 61, logits.shape[1])[ids]).sum().backward()
    graph.comm.allreduce(flat.grad)
    return ids, logits.data, x.grad, flat.grad.copy(), told_of(graph)


def told_of(graph):
    ids = graph.node_ids
    return identity(graph, OwnedRows(FEATURES[ids], LABELS[ids], TRAIN[ids], ~TRAIN[ids], ~TRAIN[ids]), N_OUT)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("n, mode", [(2, "sa"), (3, "sar"), (3, "oneshot"), (3, "broadcast")])
@pytest.mark.parametrize("name", MODELS)
def test_models_with_edge_values_agree_on_any_number_of_ranks(name, n, mode):
    _, logits, d_x, gradient, reported = step(weighted(), name)
    division = np.random.default_rng(n).integers(0, n, 61)
    for ids, part, d_own, whole_gradient, here in threads.run(n, lambda comm: step(weighted().shard(comm, division, mode=mode), name)):
        for actual, expected in ((part, logits[ids]), (d_own, d_x[ids]), (whole_gradient, gradient)):
            assert np.abs(actual - expected).max() <= 1e-12 * np.abs(expected).max()
        assert here == reported
    changed = W.copy()
    changed[7] += 1e-9
    assert len({str(told_of(graph)) for graph in (weighted(), weighted(changed), weighted(features=E + 1), weighted(features=None))}) == 4


@pytest.mark.parametrize("reducer", MATRICES)
def test_a_constant_is_aggregated_once_and_fixed_weights_fetch_nothing_backward(reducer):
    def traffic(comm):
        graph = weighted().shard(comm, "random")
        ids, w = graph.node_ids, Tensor(values(3, N_IN, N_OUT), requires_grad=True)
        x, h = Tensor(FEATURES[ids], constant=True), Tensor(FEATURES[ids], requires_grad=True)
        actual = [graph.aggregate(fn.linear(x, w), reducer) for _ in range(2)]
        once = graph.profile.received_bytes["forward_fetch"]
        (graph.aggregate(fn.linear(h, w), reducer).sum() + actual[1].sum()).backward()
        return actual[1].data, MATRICES[reducer][ids] @ FEATURES @ w.data, once, graph.plan.n_halo, graph.profile.received_bytes

    for actual, expected, once, n_halo, received in threads.run(2, traffic):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13)
        assert once == n_halo * N_IN * 8 and received["backward_fetch"] == 0 and received["backward_push"] > 0


# ---- batches and message-flow graphs


def batch_weights(graph):
    """Return the graph of the batch tests with weights and features by edge id; added loops have the weight 1."""
    ids = np.asarray(graph.edge_ids)
    return graph.with_edge_values(1 + ids % 7 / 3, np.stack([np.sin(ids), np.cos(ids)], 1))


class Both(nn.Module):
    """Weighted sums, attention with weights and features, and a message of its own."""

    def __init__(self, rng):
        self.sage, self.gat = SAGEConv(5, 4, rng=rng, **F64), EdgeGATConv(4, 2, 2, edge_features=2, rng=rng, **F64)
        self.gcn = nn.Linear(4, 3, rng=rng, **F64)

    def __call__(self, graph, h):
        one, two, three = graph.layers(3)
        one, h = one.enter(h)
        h = self.sage(one, h).tanh()
        two, h = two.enter(h)
        h = self.gat(two, h).tanh()
        three, h = three.enter(h)
        z = self.gcn(h)
        return three.aggregate(fn.copy_src(z), "sym") + three.aggregate(
            lambda s, d, e: s["z"] * e["f"][:, :1] * e["w"], "mean", src={"z": z},
            edge={"f": three.edge_features, "w": three.edge_weight.reshape(-1, 1)})


@pytest.mark.parametrize("n, loops", [(1, False), (1, True), (3, False), (3, True)])
def test_with_all_in_edges_batches_and_message_flow_are_the_graphs(n, loops):
    from tests.helpers.minibatch.batching import SEEDS, X

    full = batch_weights(whole(loops))
    with no_grad():
        expected = Both(nn.Random(0))(full, Tensor(X)).data

    def own(comm):
        graph = full.shard(comm, parts(comm.size)) if comm.size > 1 else full
        model, train = Both(nn.Random(0)), np.isin(graph.dst_ids, SEEDS)
        batch = loader_of(graph, fanouts=(-1, -1, -1), sampler="full").batch(np.flatnonzero(train))
        flow = message_flow(graph, train, 3, X[graph.src_ids])
        with no_grad():
            return [(g.dst_ids, model(g, g.x).data) for g in (batch, flow, flow)]

    for ids, of_rank in (item for rank in (threads.run(n, own) if n > 1 else [own(Solo())]) for item in rank):
        np.testing.assert_allclose(of_rank, expected[ids], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("values_on_edges", [True, False])
def test_message_flow_keeps_the_aggregation_of_its_inputs_beside_added_loops(values_on_edges):
    from tests.helpers.minibatch.batching import X

    def own(comm):
        graph = (batch_weights(whole(True)) if values_on_edges else whole(True)).shard(comm, parts(2))
        flow = message_flow(graph, graph.dst_ids % 4 == 0, 1, X[graph.src_ids])
        (layer,), received = flow.layers(1), []
        for _ in range(2):
            layer.aggregate(fn.copy_src(flow.x), "sym")
            received.append(graph.profile.received_bytes["forward_fetch"])
        return received

    for first, second in threads.run(2, own):
        assert first == second > 0


def test_a_picks_message_counts_its_weight_and_a_share_of_the_weighted_degree():
    from tests.helpers.minibatch.batching import X

    for loops in (False, True):
        full = batch_weights(whole(loops))
        (graph,) = loader_of(full, fanouts=(2,)).batch(np.arange(0, 90, 4)).layers(1)
        w, weighted_degrees = full.edge_weight[graph.edge_ids], full.weighted_in_degrees(full.edge_weight)
        degrees = weighted_degrees[graph.dst_ids]
        picks, n_in = graph.in_degrees, full.in_degrees[graph.dst_ids]
        dst, added = np.repeat(np.arange(graph.n_dst), picks), np.zeros(graph.n_dst, int)
        if loops:
            added = full.added_loops[graph.dst_ids].astype(int)
        share = ((n_in - added) / np.maximum(picks - added, 1))[dst]
        src = graph.plan.local.indices
        share[(src == dst) & (added[dst] == 1)] = 1
        for reducer, scale in (("sum", 1), ("mean", 1 / degrees[dst]),
                               ("sym", 1 / np.sqrt(degrees[dst] * weighted_degrees[graph.src_ids[src]]))):
            expected = references.at_nodes(dst, (w * share * scale)[:, None] * X[graph.src_ids][src], graph.n_dst)
            result = graph.aggregate(fn.copy_src(Tensor(X[graph.src_ids])), reducer).data
            np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("remote", ["hec", "local", "stand-ins"])
def test_other_ways_to_meet_a_remote_neighbour_have_their_edges_values(remote):
    def own(comm):
        graph = batch_weights(whole(True)).shard(comm, parts(2))
        for batch in loader_of(graph, remote=REMOTES[remote], fanouts=(3, 3, 3)):
            layers = batch.layers(3)
            g, _ = layers[0].enter(batch.x)
            order = np.argsort(graph.edge_ids)
            places = order[np.searchsorted(graph.edge_ids[order], g.edge_ids)]
            np.testing.assert_array_equal(g.edge_weight, graph.edge_weight[places])
            np.testing.assert_array_equal(g.edge_features, graph.edge_features[places])
            assert np.isfinite(Both(nn.Random(0))(batch, batch.x).data).all()
        return True

    assert threads.run(2, own) == [True, True]


# ---- what is refused


def test_what_is_no_edge_value_is_refused():
    graph = Graph.from_edges(*EDGES)
    for weight, features, error, words in [
        (W[1:], None, ShapeError, r"edge_weight: float64 of shape \(419,\), but \(420,\) numbers"),
        (np.array(list("ab") * 210), None, ShapeError, "edge_weight: <U1"),
        (W, E[:, 0], ShapeError, r"edge_features: .* but \(420, n\)"),
        (np.where(np.arange(420) == 5, np.nan, W), None, DataError, "edge_weight: entry 5 is nan"),
        (np.where(np.arange(420) == 6, np.inf, W), None, DataError, "edge_weight: entry 6 is inf"),
        (None, np.where(E == E[0, 1], np.inf, E), DataError, "edge_features: entry 1 is inf"),
    ]:
        with pytest.raises(error, match=words):
            graph.with_edge_values(weight, features)
    with pytest.raises(ConfigError, match="max-pool takes no edge weights"):
        SAGEConv(N_IN, 2, aggregator="max-pool", rng=nn.Random(0), **F64)(weighted(), Tensor(FEATURES))
    with pytest.raises(ConfigError, match="3 edge features, .*none"):
        EdgeGATConv(N_IN, 2, 2, edge_features=3, rng=nn.Random(0), **F64)(graph, Tensor(FEATURES))
    with pytest.raises(DataError, match="1e.300 is not a finite float32"):
        weighted(np.full(420, 1e300)).aggregate(fn.copy_src(Tensor(FEATURES.astype(np.float32))), "sum")
    z = Tensor(values(0, 61, 2, 3))
    with pytest.raises(ShapeError, match=r"attn_edge \(2, 2\) is not \(3, 2\)"):
        graph.aggregate(fn.attend(z, z[:, :, 0], z[:, :, 0], edge=E, attn_edge=Tensor(values(1, 2, 2))), "sum")


def test_negative_weights_are_refused_by_every_rank_where_a_degree_is_taken():
    signed = np.where(np.arange(420) == 300, -0.5, W)

    def own(comm):
        graph = weighted(signed).shard(comm, "contiguous") if comm.size > 1 else weighted(signed)
        x, said = Tensor(FEATURES[graph.node_ids]), []
        for reducer in ("mean", "sym"):
            try:
                graph.aggregate(fn.copy_src(x), reducer)
            except DataError as error:
                said.append("edge 300 is -0.5" in str(error))
        (layer,) = loader_of(Graph.from_edges([0], [1], 90).with_edge_values([-1.0])).batch(np.arange(2)).layers(2)[:1]
        with pytest.raises(DataError, match="edge 0 is -1.0"):
            layer.aggregate(fn.copy_src(Tensor(np.ones((layer.n_src, 1)))), "mean")
        return said, graph.aggregate(fn.copy_src(x), "sum").data, graph.node_ids

    matrix = np.zeros((61, 61))
    np.add.at(matrix, (EDGES.dst, EDGES.src), signed)
    for said, of_rank, ids in [own(Solo()), *threads.run(3, own)]:
        assert said == [True, True]
        np.testing.assert_allclose(of_rank, (matrix @ FEATURES)[ids], rtol=1e-12, atol=1e-13)


def test_values_of_other_forms_on_other_ranks_are_refused_by_all():
    def own(comm):
        graph = Graph.from_edges(*EDGES).shard(comm, "contiguous")
        with pytest.raises(DataError, match="edge values is not the same"):
            graph.with_edge_values(np.ones(graph.n_edges) if comm.rank else None)
        return True

    assert threads.run(2, own) == [True, True]


def test_scipys_weights_train_the_models():
    from scipy import sparse

    graph, weights = Graph.from_scipy(sparse.csr_array(DENSE))
    x, model = Tensor(FEATURES), GCN(N_IN, N_OUT, dropout=0, rng=nn.Random(0), **F64)
    np.testing.assert_allclose(model(graph.with_edge_values(weights), x).data, model(weighted(), x).data, rtol=1e-12, atol=1e-13)
    loss = ops.cross_entropy(model(graph.with_edge_values(weights), x), LABELS, np.flatnonzero(TRAIN))
    loss.backward()
    assert all(np.abs(p.grad).max() > 0 for p in model.parameters())


@pytest.mark.parametrize("owner", [np.array([1, 1, 1]), np.array([0, 1, 1])])
def test_a_rank_without_rows_or_edges_has_weights_too(owner):
    """Rank 0 has no node, or node 0 alone, which has no in-edges."""
    graph, x, w = Graph.from_edges([0, 1, 2], [1, 2, 1], 3).with_edge_values([0.5, 2.0, 1.0]), values(1, 3, 4), values(2, 4, 6)
    src_w, q = values(3, 4, 2), values(4, 3, 2)

    def on_rank(comm):
        part = graph.shard(comm, owner) if comm.size > 1 else graph
        rows = OwnedRows(x[part.dst_ids], np.zeros(part.n_dst, int), *[np.ones(part.n_dst, bool)] * 3)
        out = part.aggregate(fn.attend_linear(Tensor(x[part.src_ids]), Tensor(w), Tensor(src_w), Tensor(q[part.dst_ids])), "sum")
        return part.dst_ids, out.data, identity(part, rows, 2)

    (_, expected, whole_identity), = threads.run(1, on_rank)
    for ids, out, of_rank in threads.run(2, on_rank):
        np.testing.assert_allclose(out, expected[ids], rtol=1e-12)
        assert of_rank == whole_identity

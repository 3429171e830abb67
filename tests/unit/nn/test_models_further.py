"""GIN, GCNII, PNA and GATv2 against their papers' equations in dense NumPy, on ranks, in batches, with edge weights."""

import numpy as np
import pytest

from sarlite import Graph, Tensor, nn
from sarlite.comm import threads
from sarlite.errors import ConfigError
from sarlite.minibatch import NeighborLoader
from sarlite.models import GCNII, GIN, PNA, GATv2
from tests.helpers.graph import references
from tests.helpers.graph.references import EDGES, FEATURES, LABELS, N_IN, N_OUT, WEIGHTS, check_equality
from tests.helpers.graph.strategies import values

pytestmark = pytest.mark.timeout(60)

F64 = dict(dtype=np.float64)
GRAPH = Graph.from_edges(*EDGES)
A = np.zeros((EDGES.n_nodes, EDGES.n_nodes))
np.add.at(A, (EDGES.dst, EDGES.src), 1)
MODELS = {
    "gatv2": lambda **o: GATv2(N_IN, N_OUT, hidden=3, heads=2, residual=True, dropout=0.3, attention_dropout=0.3, **o),
    "gin": lambda **o: GIN(N_IN, N_OUT, hidden=5, layers=2, **o),
    "gcnii": lambda **o: GCNII(N_IN, N_OUT, hidden=5, layers=3, dropout=0.3, **o),
    "pna": lambda **o: PNA(N_IN, N_OUT, hidden=3, layers=2, **o),
}


def model_and_parameters(name, **options):
    """Return a model in evaluation with random parameters, also those that start at 0, and the parameters by name."""
    model = MODELS[name](rng=nn.Random(0), **F64, **options).eval()
    for k, p in enumerate(model.parameters()):
        p.data[...] = values(30 + k, *p.shape)
    return model, {name: p.data for name, p in model.named_parameters()}


def relu(x):
    return np.maximum(x, 0)


def norm(x, p, name):
    """Return batch norm in evaluation before any training: running mean 0 and variance 1."""
    return x / np.sqrt(1 + 1e-5) * p[f"{name}.gamma"] + p[f"{name}.beta"]


def gin(p):
    h = FEATURES
    for k in range(2):
        h = ((1 + p[f"convs.{k}.eps"]) * h + A @ h) @ p[f"convs.{k}.inner.weight"]
        h = relu(norm(h, p, f"convs.{k}.between.norm")) @ p[f"convs.{k}.outer.weight"] + p.get(f"convs.{k}.outer.bias", 0)
        h = h if k else relu(norm(h, p, "activations.0.norm"))
    return h


def gcnii(p):
    d = np.maximum(A.sum(1), 1) ** -0.5
    h = first = relu(FEATURES @ p["first.weight"] + p["first.bias"])
    for k in range(3):
        share, mixed = np.log(0.5 / (k + 1) + 1), 0.9 * d[:, None] * A @ (d[:, None] * h) + 0.1 * first
        h = relu(mixed @ ((1 - share) * np.eye(5) + share * p[f"linears.{k}.weight"]))
    return h @ p["last.weight"] + p["last.bias"]


def pna(p):
    h, degree = FEATURES, A.sum(1)
    scale = np.log(degree + 1) / np.log(degree + 1).mean()
    for k in range(2):
        z = h @ p[f"convs.{k}.message.weight"] + p[f"convs.{k}.message.bias"]
        statistics = np.zeros((len(h), 4, z.shape[1]))
        for i in range(len(h)):
            rows = z[EDGES.src[EDGES.dst == i]]
            if len(rows):
                statistics[i] = rows.mean(0), rows.max(0), rows.min(0), np.sqrt(rows.var(0) + 1e-5)
        statistics = statistics.reshape(len(h), -1)
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
        h = np.hstack([h, statistics, statistics * scale[:, None], statistics * inverse[:, None]])
        h = h @ p[f"convs.{k}.update.weight"] + p.get(f"convs.{k}.update.bias", 0)
        h = h if k else relu(norm(h, p, "activations.0.norm"))
    return h


def gatv2(p):
    h = FEATURES
    for k, heads in ((0, 2), (1, 1)):
        z = (h @ p[f"convs.{k}.linear_src.weight"] + p[f"convs.{k}.linear_src.bias"]).reshape(len(h), heads, -1)
        q = (h @ p[f"convs.{k}.linear_dst.weight"] + p[f"convs.{k}.linear_dst.bias"]).reshape(len(h), heads, -1)
        out = np.zeros_like(z)
        for i in range(len(h)):
            rows = z[EDGES.src[EDGES.dst == i]]
            if len(rows):
                score = rows + q[i]
                score = (np.where(score > 0, score, 0.2 * score) * p[f"convs.{k}.attn"]).sum(2)
                share = np.exp(score - score.max(0))
                out[i] = ((share / share.sum(0))[:, :, None] * rows).sum(0)
        h = out.reshape(len(h), -1) + p[f"convs.{k}.bias"] + h @ p[f"convs.{k}.root.weight"]
        h = h if k else np.where(h > 0, h, np.expm1(h))
    return h


@pytest.mark.parametrize("formula", [gin, gcnii, pna, gatv2])
def test_a_model_is_the_papers_formula(formula):
    model, p = model_and_parameters(formula.__name__)
    np.testing.assert_allclose(model(GRAPH, Tensor(FEATURES)).data, formula(p), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("n, mode", [(2, "sar"), (3, "oneshot"), (2, "sa"), (3, "broadcast")])
@pytest.mark.parametrize("name", MODELS)
def test_several_ranks_equal_one_rank(name, n, mode, monkeypatch):
    monkeypatch.setitem(references.CASES, name, lambda rng, dtype: MODELS[name](rng=rng, dtype=dtype))
    threads.run(n, check_equality, name, np.float64, np.arange(EDGES.n_nodes) % n, mode=mode)


@pytest.mark.parametrize("name", ["gatv2", "gin", "gcnii"])
def test_a_batch_of_all_in_edges_is_the_whole_graph(name):
    model, seeds = model_and_parameters(name)[0], np.arange(20, 30)
    loader = NeighborLoader(GRAPH, FEATURES, LABELS, seeds, fanouts=[-1] * (3 if name == "gcnii" else 2), sampler="full", batch_size=10)
    batch = loader.batch(seeds)
    whole = model(GRAPH, Tensor(FEATURES)).data[batch.dst_ids[: len(seeds)]]
    np.testing.assert_allclose(model(batch, batch.x).data[: len(seeds)], whole, rtol=1e-11, atol=1e-12)


def test_edge_weights_count_or_are_refused():
    """Weights of 2 count an edge twice in GIN's sum, and change nothing in a weighted mean; PNA refuses weights."""
    twice = Graph.from_edges(np.tile(EDGES.src, 2), np.tile(EDGES.dst, 2), EDGES.n_nodes)
    model, weighted = model_and_parameters("gin")[0], GRAPH.with_edge_values(np.full(EDGES.n_edges, 2.0))
    np.testing.assert_allclose(model(weighted, Tensor(FEATURES)).data, model(twice, Tensor(FEATURES)).data, rtol=1e-11)
    with pytest.raises(ConfigError, match="pna takes no edge weights"):
        model_and_parameters("pna")[0](GRAPH.with_edge_values(WEIGHTS), Tensor(FEATURES))


def test_coefficients_are_dropped_by_edge_and_head():
    """All values of an edge and a head are dropped together, and the mean over many masks is the result without dropout."""
    rng = nn.Random(1)
    model = GATv2(N_IN, N_OUT, layers=1, out_heads=2, dropout=0.0, attention_dropout=0.5, rng=rng, **F64)
    samples = []
    for rng.step in range(400):
        samples.append(model(GRAPH, Tensor(FEATURES)).data)
    whole = model.eval()(GRAPH, Tensor(FEATURES)).data
    error = np.std(samples, 0) / np.sqrt(len(samples))
    assert (np.abs(np.mean(samples, 0) - whole) <= 5 * error + 1e-12).all() and error.max() > 0


@pytest.mark.parametrize("options, words", [
    ({"teleport": 1.0}, "teleport is 1.0, but must be in [0, 1)"), ({"identity_decay": 0.0}, "identity_decay is 0.0, but must be"),
    ({"activation": "tanh"}, "activation 'tanh' is not one of relu, elu"), ({"layers": 0}, "layers is 0, but must be 1 or more"),
])  # fmt: skip
def test_what_gcnii_refuses(options, words):
    with pytest.raises(ConfigError) as caught:
        GCNII(N_IN, N_OUT, rng=nn.Random(0), **options)
    assert words in str(caught.value)

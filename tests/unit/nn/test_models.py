"""The models against their papers' equations in dense NumPy, and their gradients."""


import numpy as np
import pytest

from sarlite import Graph, Tensor, gradcheck, nn
from sarlite.errors import ConfigError
from sarlite.models import (
    APPNP,
    GAT,
    GCN,
    GCNII,
    GIN,
    MODELS,
    PNA,
    SAGE,
    SGC,
    SIGN,
    GATConv,
    GATv2,
    GCNConv,
    PaperGATConv,
    SAGEConv,
)
from tests.helpers.graph import references
from tests.helpers.graph.strategies import random_edges, values

pytestmark = pytest.mark.timeout(60)

EDGES = random_edges(12, 50, seed=1, n_dst=10)
X = values(1, 12, 5)
A = np.zeros((12, 12))
np.add.at(A, (EDGES.dst, EDGES.src), 1)
GRAPH = Graph.from_edges(*EDGES)
F64 = dict(dtype=np.float64)


def parameters(module):
    """Return the parameters by name, with random values: biases start at 0, which would hide them."""
    for k, p in enumerate(module.parameters()):
        p.data[...] = values(20 + k, *p.shape)
    return {name: p.data for name, p in module.named_parameters()}


def test_gcn_is_the_symmetric_normalisation():
    conv = GCNConv(5, 3, rng=nn.Random(0), **F64)
    p = parameters(conv)
    d = np.maximum(A.sum(1), 1) ** -0.5
    np.testing.assert_allclose(conv(GRAPH, Tensor(X)).data, d[:, None] * A @ (d[:, None] * X) @ p["linear.weight"] + p["bias"], rtol=1e-12)


def test_gcn_with_self_loops_is_the_paper():
    """The paper has D^-1/2 (A + I) D^-1/2 X W for a symmetric graph without self loops."""
    graph = Graph.from_edges(*EDGES, undirected=True, self_loops=True)
    dense = ((A + A.T) > 0).astype(float)
    np.fill_diagonal(dense, 1)
    conv = GCNConv(5, 3, bias=False, rng=nn.Random(0), **F64)
    d = np.diag(dense.sum(1) ** -0.5)
    np.testing.assert_allclose(conv(graph, Tensor(X)).data, d @ dense @ d @ X @ conv.linear.weight.data, rtol=1e-12)


def test_sage_with_means_is_the_papers():
    conv = SAGEConv(5, 3, rng=nn.Random(0), **F64)
    p = parameters(conv)
    mean = A @ X / np.maximum(A.sum(1), 1)[:, None]
    expected = X @ p["root.weight"] + p["root.bias"] + mean @ p["neighbour.weight"]
    np.testing.assert_allclose(conv(GRAPH, Tensor(X)).data, expected, rtol=1e-12)


def test_sage_max_pool():
    conv = SAGEConv(5, 3, aggregator="max-pool", rng=nn.Random(0), **F64)
    p = parameters(conv)
    pooled = np.maximum(X @ p["pool.weight"] + p["pool.bias"], 0)
    top = np.array([pooled[A[i] > 0].max(0) if A[i].any() else np.zeros(5) for i in range(12)])
    expected = X @ p["root.weight"] + p["root.bias"] + top @ p["neighbour.weight"]
    np.testing.assert_allclose(conv(GRAPH, Tensor(X)).data, expected, rtol=1e-12)


@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_gat_is_the_papers(residual, concat):
    conv = GATConv(5, 3, 2, concat=concat, residual=residual, rng=nn.Random(0), **F64)
    p = parameters(conv)
    z = (X @ p["linear.weight"]).reshape(-1, 2, 3)
    out = references.attend(EDGES, z, (z * p["attn_src"]).sum(2), (z * p["attn_dst"]).sum(2), 0.2)
    out = out.reshape(-1, 6) if concat else out.mean(1)
    expected = out + p["bias"] + (X @ p["root.weight"] if residual else 0)
    np.testing.assert_allclose(conv(GRAPH, Tensor(X)).data, expected, rtol=1e-11)


@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_gat_in_the_papers_form(residual, concat):
    """The form is DistGNN-MB Eq. 2: separate weights for destinations, one bias, relu before the scores."""
    conv = PaperGATConv(5, 3, 2, concat=concat, residual=residual, rng=nn.Random(0), **F64)
    p = parameters(conv)
    names = {"linear.weight", "linear_dst.weight", "update.bias", "attn_src", "attn_dst"}
    assert set(p) == names | ({"root.weight"} if residual else set())
    z, z_dst = (np.maximum(X @ p[f"{name}.weight"] + p["update.bias"], 0).reshape(-1, 2, 3) for name in ("linear", "linear_dst"))
    out = references.attend(EDGES, z, (z * p["attn_src"]).sum(2), (z_dst * p["attn_dst"]).sum(2), 0.2)
    out = out.reshape(-1, 6) if concat else out.mean(1)
    expected = out + (X @ p["root.weight"] if residual else 0)
    np.testing.assert_allclose(conv(GRAPH, Tensor(X)).data, expected, rtol=1e-11, atol=1e-13)


def test_layers_of_the_papers_form_follow_each_other_without_more():
    """Without batch norm and residual, the module between two layers changes nothing in evaluation."""
    model = GAT(5, 3, form="paper", layers=3, hidden=2, heads=2, rng=nn.Random(0), **F64).eval()
    parameters(model)
    h = Tensor(X)
    for conv in model.convs:
        h = conv(GRAPH, h)
    np.testing.assert_array_equal(model(GRAPH, Tensor(X)).data, h.data)
    with pytest.raises(ConfigError, match="form 'own' .*standard, paper"):
        GAT(5, 3, form="own", rng=nn.Random(0))


def test_a_residual_of_the_same_width_is_not_projected():
    conv = GATConv(6, 3, 2, residual=True, rng=nn.Random(0), **F64)
    assert conv.root is None
    plain = GATConv(6, 3, 2, rng=nn.Random(0), **F64)
    h = Tensor(values(3, 12, 6))
    np.testing.assert_allclose(conv(GRAPH, h).data, plain(GRAPH, h).data + h.data, rtol=1e-12)


MAKE = {
    "gcn": lambda **o: GCN(5, 3, hidden=4, **o),
    "gcn, batch norm": lambda **o: GCN(5, 3, hidden=4, layers=3, batch_norm=True, **o),
    "sage": lambda **o: SAGE(5, 3, hidden=4, **o),
    "sage, no batch norm": lambda **o: SAGE(5, 3, hidden=4, batch_norm=False, **o),
    "sage, max-pool": lambda **o: SAGE(5, 3, hidden=4, layers=2, aggregator="max-pool", **o),
    "gat": lambda **o: GAT(5, 3, hidden=2, heads=2, **o),
    "gat, all": lambda **o: GAT(5, 3, hidden=2, heads=2, out_heads=2, layers=3, residual=True, batch_norm=True, **o),
    "gat, paper": lambda **o: GAT(5, 3, form="paper", hidden=2, heads=2, out_heads=2, **o),
    "gat, paper, all": lambda **o: GAT(5, 3, form="paper", hidden=2, heads=2, layers=3, residual=True, batch_norm=True, **o),
    "gatv2": lambda **o: GATv2(5, 3, hidden=2, heads=2, **o),
    "gatv2, all": lambda **o: GATv2(5, 3, hidden=2, heads=2, out_heads=2, layers=3, residual=True, batch_norm=True, **o),
    "gin": lambda **o: GIN(5, 3, hidden=4, layers=2, **o),
    "gcnii": lambda **o: GCNII(5, 3, hidden=4, layers=3, **o),
    "pna": lambda **o: PNA(5, 3, hidden=3, layers=2, batch_norm=False, **o),
    "one layer": lambda **o: GCN(5, 3, layers=1, **o),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", MAKE)
def test_gradcheck_of_models(name):
    """The model is in training, with dropout: the masks are the same in every call."""
    model = MAKE[name](rng=nn.Random(0), **F64)
    parameters(model)  # with biases of 0, isolated nodes would lie on the kink of the ReLU
    for _, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.2
    x = Tensor(X, requires_grad=True)
    gradcheck(lambda *_: model(GRAPH, x), [x, *model.parameters()], rtol=1e-5, atol=1e-6, entries=0)


@pytest.mark.parametrize("name", MAKE)
def test_dropout_is_for_training_and_changes_with_the_step(name):
    rng = nn.Random(0)
    model = MAKE[name](rng=rng, **F64)
    rng.step = 1
    one, again = model(GRAPH, Tensor(X)).data, model(GRAPH, Tensor(X)).data
    rng.step = 2
    other = model(GRAPH, Tensor(X)).data
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    model.eval()
    still = model(GRAPH, Tensor(X)).data
    rng.step = 3
    np.testing.assert_array_equal(model(GRAPH, Tensor(X)).data, still)


def test_float32_is_near_float64():
    for name, make in MAKE.items():
        wide, narrow = make(rng=nn.Random(0), dtype=np.float64), make(rng=nn.Random(0), dtype=np.float32)
        logits = narrow(GRAPH, Tensor(X.astype(np.float32)))
        assert logits.dtype == np.float32
        np.testing.assert_allclose(logits.data, wide(GRAPH, Tensor(X)).data, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("cls", [GCN, SAGE, GAT])
def test_each_layer_has_one_bias(cls, batch_norm):
    """Between layers the bias is the activation's, or batch norm's beta."""
    model = cls(5, 3, layers=3, batch_norm=batch_norm, rng=nn.Random(0))
    shifts = [name for name, _ in model.named_parameters() if name.endswith(("bias", "beta"))]
    last = "convs.2.root.bias" if cls is SAGE else "convs.2.bias"
    assert shifts == [last, *(f"activations.{i}." + ("norm.beta" if batch_norm else "bias") for i in range(2))]


def test_each_layer_of_the_papers_form_has_one_bias():
    model = GAT(5, 3, form="paper", layers=3, rng=nn.Random(0))
    assert [name for name, _ in model.named_parameters() if name.endswith("bias")] == [f"convs.{i}.update.bias" for i in range(3)]


@pytest.mark.parametrize("cls", [GCN, SAGE, GAT])
def test_the_activation_is_an_option(cls):
    x, default = Tensor(X), "elu" if cls is GAT else "relu"
    formulas = {"relu": lambda h: np.maximum(h, 0), "elu": lambda h: np.where(h > 0, h, np.expm1(h))}
    for options in ({"activation": "relu"}, {"activation": "elu"}, {}):
        model = cls(5, 3, layers=2, hidden=4, batch_norm=False, rng=nn.Random(0), **options, **F64).eval()
        parameters(model)
        between = model.convs[0](GRAPH, x).data + model.activations[0].bias.data
        between = Tensor(formulas[options.get("activation", default)](between))
        np.testing.assert_allclose(model(GRAPH, x).data, model.convs[1](GRAPH, between).data, rtol=1e-12)
    with pytest.raises(ConfigError, match="'tanh'"):
        cls(5, 3, activation="tanh", rng=nn.Random(0))


@pytest.mark.parametrize("cls", [GCN, GAT])
def test_input_dropout_is_dropout_unless_given(cls):
    ps = [[module.p for name, module in model.named_modules() if "attention" not in name and isinstance(module, nn.Dropout)]
          for model in (cls(5, 3, dropout=0.3, rng=nn.Random(0)), cls(5, 3, dropout=0.3, input_dropout=0.0, rng=nn.Random(0)))]
    assert ps == [[0.3, 0.3], [0.0, 0.3]]


def test_the_table_of_models():
    assert MODELS == {"gcn": GCN, "sage": SAGE, "gat": GAT, "gatv2": GATv2, "gin": GIN, "gcnii": GCNII, "pna": PNA, "appnp": APPNP,
                      "sgc": SGC, "sign": SIGN}
    assert [name for name, model in MODELS.items() if not model.self_loops] == ["sage", "gin", "pna", "sign"]
    with pytest.raises(ConfigError, match="median"):
        SAGE(5, 3, aggregator="median", rng=nn.Random(0))


def test_gat_puts_the_last_heads_side_by_side_or_averages_them():
    side, mean = (GAT(5, 6, out_heads=3, out_concat=concat, rng=nn.Random(0)) for concat in (True, False))
    assert side(GRAPH, Tensor(X.astype(np.float32))).shape == mean(GRAPH, Tensor(X.astype(np.float32))).shape == (len(X), 6)
    assert side.convs[-1].n_feat == 2 and mean.convs[-1].n_feat == 6
    with pytest.raises(ConfigError, match="6 outputs .*4 heads"):
        GAT(5, 6, out_heads=4, out_concat=True, rng=nn.Random(0))

"""State dicts of PyG's and DGL's layers in sarlite's own layers and models: read, written, refused; and equal logits."""

import warnings

import numpy as np
import pytest

from sarlite import Graph, Tensor, nn
from sarlite.errors import ConfigError, DataError
from sarlite.models import GAT, GCN, SAGE, GATConv, GATv2Conv, GCNConv, PaperGATConv, SAGEConv
from sarlite.oracle.arithmetic import FloatArithmetic
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.layer_state import load_state, state_of
from sarlite.oracle.reference import Reference

pytestmark = pytest.mark.timeout(120)

N, N_IN = 12, 5
RNG = np.random.default_rng(3)
PAIRS = np.unique(RNG.integers(0, N, (40, 2)), axis=0)
PAIRS = PAIRS[PAIRS[:, 0] != PAIRS[:, 1]]
LOOPED = np.concatenate([PAIRS, np.repeat(np.arange(N), 2).reshape(N, 2)])  # every row has one loop: the libraries' ideas of loops agree
PLAIN, WITH_LOOPS = (EdgeList(pairs[:, 0], pairs[:, 1], N, N) for pairs in (PAIRS, LOOPED))
X = RNG.standard_normal((N, N_IN)).astype(np.float32)


def random_module(make, seed=0, **options):
    """Return a sarlite module with random parameters and running moments."""
    module = make(rng=nn.Random(0), **options)
    rng = np.random.default_rng(seed)
    state = {name: (np.abs(a) if name.endswith("running_var") else 0) + rng.uniform(-0.5, 0.5, a.shape).astype(a.dtype)
             for name, a in module.state_dict().items()}  # fmt: skip
    module.load_state_dict({name: value.astype(module.state_dict()[name].dtype) for name, value in state.items()})
    return module.eval()


def logits(module, edges):
    return module(Graph.from_edges(edges.src, edges.dst, N), Tensor(X)).data


LAYERS = {
    "gcn": ("gcn", GCNConv, (N_IN, 4), {}), "sage": ("sage", SAGEConv, (N_IN, 4), {}),
    "sage max-pool": ("sage", SAGEConv, (N_IN, 4), {"aggregator": "max-pool"}), "gat": ("gat", GATConv, (N_IN, 3, 2), {}),
    "gat residual": ("gat", GATConv, (N_IN, 3, 2), {"residual": True}),
    "gat mean": ("gat", GATConv, (N_IN, 3, 2), {"concat": False, "residual": True}),
    "gatv2": ("gatv2", GATv2Conv, (N_IN, 3, 2), {"bias": False}), "gatv2 residual": ("gatv2", GATv2Conv, (N_IN, 3, 2), {"residual": True}),
}  # fmt: skip


@pytest.mark.parametrize("dialect", ["paper", "pyg", "dgl"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_written_and_read(name, dialect):
    """A second layer that reads the state of the first gives the same bits.

    The reference with that state gives its result.
    """
    kind, make, sizes, options = LAYERS[name]
    if dialect == "dgl" and name == "gat mean":
        pytest.skip("DGL's layers take no mean over heads")
    layer, other = (random_module(lambda **o: make(*sizes, **o), seed, **options) for seed in (1, 2))
    state = state_of(layer, dialect)
    assert np.any(logits(layer, WITH_LOOPS) != logits(other, WITH_LOOPS))
    load_state(other, state, dialect)
    np.testing.assert_array_equal(logits(layer, WITH_LOOPS), logits(other, WITH_LOOPS))
    norm = {"norm": "in"} if kind == "gcn" else {}  # as sarlite's graph has it
    reference = Reference(kind, dialect=dialect, state=state, **norm)
    case = reference.case(WITH_LOOPS, width=N_IN)
    case.arrays["x"] = X
    expected = reference.outputs(case, FloatArithmetic())["out"].value
    np.testing.assert_allclose(logits(layer, WITH_LOOPS), expected.reshape(N, -1), rtol=1e-5, atol=1e-5)


MODELS = {
    "gcn": (GCN, {"layers": 3, "hidden": 6}, {}),
    "gcn norm": (GCN, {"hidden": 6, "batch_norm": True, "activation": "elu"}, {"activation": "elu"}),
    "sage": (SAGE, {"layers": 2, "hidden": 6, "batch_norm": False}, {}), "gat": (GAT, {"hidden": 3, "heads": 2}, {"activation": "elu"}),
}  # fmt: skip


@pytest.mark.parametrize("dialect", ["paper", "pyg", "dgl"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_written_and_read(name, dialect):
    make, options, attributes = MODELS[name]
    kind = name.partition(" ")[0]
    model, other = (random_module(lambda **o: make(N_IN, 4, **o), seed, **options) for seed in (1, 2))
    state = state_of(model, dialect)
    load_state(other, state, dialect)
    np.testing.assert_array_equal(logits(model, WITH_LOOPS), logits(other, WITH_LOOPS))
    norm = {"norm": "in"} if kind == "gcn" else {}
    for source in (state, model.state_dict() if dialect == "paper" else state):  # the paper's names: sarlite's own too
        reference = Reference(f"{kind}-model", dialect=dialect, state=source, training=False, **norm, **attributes)
        case = reference.case(WITH_LOOPS)
        case.arrays["x"] = X
        expected = reference.outputs(case, FloatArithmetic())["out"].value
        np.testing.assert_allclose(logits(model, WITH_LOOPS), expected, rtol=1e-5, atol=1e-5)


def test_states_that_do_not_fit_are_refused_by_name():
    layer = random_module(lambda **o: GATConv(N_IN, 3, 2, **o))
    before, state = layer.state_dict(), state_of(layer, "pyg")
    for change, words in [
        ({"att_src": None}, "'att_src' is missing"), ({"res.weight": np.zeros((6, 5))}, "'res.weight' has no place"),
        ({"lin_edge.weight": np.zeros((6, 2))}, "'lin_edge.weight' is not a parameter of pyg's gat"),
        ({"lin.weight": np.zeros((6, 4), "f4")}, "'linear.weight' is (4, 6)"), ({"bias": np.zeros(6)}, "'bias' is float64"),
        ({"att_src": np.zeros((2, 3))}, "'att_src' has shape (2, 3)"),
        ({"bias": np.array(["a"])}, "'bias' is not an array of numbers"),
    ]:  # fmt: skip
        changed = {name: value for name, value in {**state, **change}.items() if value is not None}
        with pytest.raises(DataError) as error:
            load_state(layer, changed, "pyg")
        assert words in str(error.value)
    for name, value in before.items():
        np.testing.assert_array_equal(layer.state_dict()[name], value)
    with pytest.raises(ConfigError, match="dialect 'jax'"):
        state_of(layer, "jax")
    with pytest.raises(DataError, match=r"'linear_dst.weight' has no place|'update.bias' has no place"):
        state_of(random_module(lambda **o: PaperGATConv(N_IN, 3, 2, **o)), "pyg")
    with pytest.raises(DataError, match="'bias' has no place in dgl's gatv2"):
        state_of(random_module(lambda **o: GATv2Conv(N_IN, 3, 2, **o)), "dgl")
    deeper = state_of(random_module(lambda **o: GCN(N_IN, 4, layers=3, **o)), "pyg")
    with pytest.raises(DataError, match="3 layers and 0 norms, .*2 and 0"):
        load_state(random_module(lambda **o: GCN(N_IN, 4, **o)), deeper, "pyg")


PEERS = [
    ("pyg", "GCNConv", "gcn", {}, {}), ("pyg", "SAGEConv", "sage", {}, {}),
    ("pyg", "SAGEConv", "sage max-pool", {"aggr": "max", "project": True}, {}), ("pyg", "GATConv", "gat", {"heads": 2}, {}),
    ("pyg", "GATConv", "gat mean", {"heads": 2, "concat": False, "residual": True}, {}),
    ("pyg", "GATv2Conv", "gatv2 residual", {"heads": 2, "residual": True}, {}), ("dgl", "GraphConv", "gcn", {"norm": "both"}, {}),
    ("dgl", "SAGEConv", "sage", {"aggregator_type": "mean"}, {}), ("dgl", "SAGEConv", "sage max-pool", {"aggregator_type": "pool"}, {}),
    ("dgl", "GATConv", "gat", {"num_heads": 2}, {}), ("dgl", "GATConv", "gat residual", {"num_heads": 2, "residual": True}, {}),
    ("dgl", "GATv2Conv", "gatv2", {"num_heads": 2}, {"bias": True}),
    ("dgl", "GATv2Conv", "gatv2 residual", {"num_heads": 2, "residual": True}, {}),
]  # fmt: skip


@pytest.mark.parametrize("dialect, layer, name, options, more", PEERS)
def test_logits_equal_those_of_the_real_layer(dialect, layer, name, options, more):
    """The library's state gives the library's result in sarlite, and the reverse.

    DGL's GCN needs a graph with all reverse edges.
    """
    torch = pytest.importorskip("torch", reason="torch is not installed: states are not compared with real layers")
    if dialect == "pyg":
        library = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed: its layers' states are not read")
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dgl = pytest.importorskip("dgl", reason="dgl is not installed: its layers' states are not read")
            import dgl.nn.pytorch as library
    _, make, sizes, sarlite_options = LAYERS[name]
    both = np.concatenate([LOOPED, PAIRS[:, ::-1]])
    edges = EdgeList(both[:, 0], both[:, 1], N, N) if layer == "GraphConv" else WITH_LOOPS
    x, index = torch.from_numpy(X), torch.from_numpy(np.stack([edges.src, edges.dst]))
    theirs = getattr(library, layer)(N_IN, sizes[1], **options).eval()

    def real():
        with torch.no_grad():
            args = (x, index) if dialect == "pyg" else (dgl.graph((index[0], index[1]), num_nodes=N), x)
            return theirs(*args).numpy().reshape(N, -1)

    with torch.no_grad():
        for p in theirs.parameters():
            p.uniform_(-0.5, 0.5)
    ours = make(*sizes, rng=nn.Random(0), **{**sarlite_options, **more}).eval()
    load_state(ours, theirs.state_dict(), dialect)
    np.testing.assert_allclose(logits(ours, edges), real(), rtol=1e-5, atol=1e-5)
    other = random_module(lambda **o: make(*sizes, **o), 7, **{**sarlite_options, **more})
    if (dialect, name) == ("dgl", "gatv2"):
        other.bias.data[:] = 0  # DGL's has no place for it
    theirs.load_state_dict({key: torch.from_numpy(value) for key, value in state_of(other, dialect).items()})
    np.testing.assert_allclose(logits(other, edges), real(), rtol=1e-5, atol=1e-5)


def test_logits_equal_those_of_a_real_model():
    """PyG's own GCN of three layers with batch norms in evaluation, and sarlite's."""
    torch = pytest.importorskip("torch", reason="torch is not installed: PyG's models are not read")
    library = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed: its models are not read")
    theirs = library.GCN(N_IN, 6, 3, 4, norm="BatchNorm", bias=False).eval()
    with torch.no_grad():
        for name, p in [*theirs.named_parameters(), *theirs.named_buffers()]:
            if p.dtype.is_floating_point:
                p.uniform_(0.5 if name.endswith("running_var") else -0.5, 1)
        expected = theirs(torch.from_numpy(X), torch.from_numpy(np.stack([WITH_LOOPS.src, WITH_LOOPS.dst]))).numpy()
    state = {**theirs.state_dict(), "convs.2.bias": torch.zeros(4)}  # PyG has all biases or none, sarlite the last layer's
    ours = GCN(N_IN, 4, layers=3, hidden=6, batch_norm=True, rng=nn.Random(0)).eval()
    load_state(ours, state, "pyg")
    np.testing.assert_allclose(logits(ours, WITH_LOOPS), expected, rtol=1e-5, atol=1e-5)

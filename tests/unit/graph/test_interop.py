"""Graphs of PyG and DGL, and modules of torch and sarlite inside each other; stand-ins replace missing libraries."""

from types import SimpleNamespace

import numpy as np
import pytest

from sarlite import Graph, HeteroGraph, Tensor, fn, interop, nn, optim
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.models import GAT, GCN

SRC, DST = np.array([0, 1, 2, 2, 3, 0]), np.array([1, 2, 0, 1, 1, 3])
GRAPH = Graph.from_edges(SRC, DST, 5)
X = np.random.default_rng(0).standard_normal((5, 3))


def test_a_pyg_graph():
    data = SimpleNamespace(edge_index=np.stack([SRC, DST]), num_nodes=5, edge_weight=np.arange(6.0), edge_attr=np.arange(6.0) + 10)
    graph = interop.from_pyg(data)
    assert (graph.n_dst, graph.n_edges) == (5, 6) and graph.edge_features.tolist() == [[10], [11], [12], [13], [14], [15]]
    expected = np.zeros((5, 3))
    np.add.at(expected, DST, X[SRC] * np.arange(6.0)[:, None])
    np.testing.assert_allclose(graph.aggregate(fn.copy_src(X), "sum").data, expected)
    assert interop.from_pyg(SimpleNamespace(edge_index=np.stack([SRC, DST]), num_nodes=5)).edge_weight is None
    with pytest.raises(ConfigError, match="from_pyg: SimpleNamespace has no edge_index"):
        interop.from_pyg(SimpleNamespace(num_nodes=5))


class Stores(dict):
    """A stand-in for PyG's HeteroData: a store of attributes for each node type and relation."""

    def __init__(self, n_nodes, **relations):
        super().__init__({name: SimpleNamespace(num_nodes=n) for name, n in n_nodes.items()})
        self.node_types = [*n_nodes]
        self.edge_types = [tuple(name.split("__")) for name in relations]
        self.update(zip(self.edge_types, relations.values()))


def test_a_pyg_graph_of_relations_brings_weights_and_features():
    to, back = ("a", "to", "b"), ("b", "back", "a")
    data = Stores({"a": 3, "b": 4}, a__to__b=SimpleNamespace(edge_index=np.array([[2, 0, 1], [3, 0, 3]]), edge_weight=2.0 ** np.arange(3)),
                  b__back__a=SimpleNamespace(edge_index=np.array([[1], [2]]), edge_attr=np.array([7.0])))
    graph = interop.from_pyg(data)
    x = np.eye(3)
    expected = np.zeros((4, 3))
    expected[[3, 0, 3], [2, 0, 1]] = [1, 2, 4]
    np.testing.assert_array_equal(graph.aggregate({to: fn.copy_src(x)}, "sum")["b"].data, expected)
    assert graph.edge_values[back].features.tolist() == [[7]] and graph.edge_values[back].weight is None
    data[to].edge_weight = np.ones(2)
    with pytest.raises(ShapeError, match=r"edge_weight of \('a', 'to', 'b'\): .*\(2,\)"):
        interop.from_pyg(data)
    data[to].edge_index = np.ones((3, 2), int)
    with pytest.raises(DataError, match=r"from_pyg: edge_index of \('a', 'to', 'b'\) .*\(3, 2\), .*shape \(2"):
        interop.from_pyg(data)


@pytest.mark.parametrize("index", [np.zeros((6, 2), int), np.zeros(6, int), np.zeros((2, 2, 2), int), np.zeros((2, 6)), [[0, 1], [2]], 3])
def test_an_edge_index_of_a_wrong_shape_is_refused_by_name(index):
    with pytest.raises(DataError, match="edge_index"):
        interop.from_pyg(SimpleNamespace(edge_index=index, num_nodes=5))


def test_a_graph_of_pyg_itself_is_read():
    torch = pytest.importorskip("torch")
    pyg = pytest.importorskip("torch_geometric.data")
    data = pyg.Data(edge_index=torch.tensor(np.stack([SRC, DST])), edge_attr=torch.ones(6, 2), num_nodes=5)
    assert interop.from_pyg(data).edge_features.shape == (6, 2)
    hetero = pyg.HeteroData()
    hetero["paper"].num_nodes, hetero["author"].num_nodes = 4, 3
    hetero["author", "writes", "paper"].edge_index = torch.tensor([[0, 2], [3, 1]])
    hetero["author", "writes", "paper"].edge_attr = torch.ones(2, 3)
    graph = interop.from_pyg(hetero)
    assert graph.edge_values["author", "writes", "paper"].features.shape == (2, 3)
    assert isinstance(graph, HeteroGraph) and graph.n_nodes == {"paper": 4, "author": 3}
    sums = graph.aggregate({("author", "writes", "paper"): fn.copy_src(X[:3])}, "sum")["paper"].data
    np.testing.assert_array_equal(sums[[3, 1]], X[[0, 2]])


class Dgl:
    """A stand-in with the methods of a DGL graph that sarlite calls; `edata` are edge data by relation."""

    def __init__(self, relations, nodes, edata=None):
        self.canonical_etypes, self.ntypes, self._nodes = [*relations], [*nodes], nodes
        self.edges = DglEdges(relations, edata or {})

    def num_nodes(self, name=None):
        return self._nodes[name or self.ntypes[0]]


class DglEdges:
    def __init__(self, relations, edata):
        self._relations, self._edata = relations, edata

    def __call__(self, etype, form, order):
        """Return sources, destinations and ids of edges by destination, as DGL does for a graph that is stored as CSC."""
        assert form == "all" and order is None
        src, dst = map(np.asarray, self._relations[etype])
        order = np.argsort(dst, kind="stable")
        return src[order], dst[order], order

    def __getitem__(self, etype):
        return SimpleNamespace(data=self._edata.get(etype, {}))


@pytest.mark.parametrize("storage", ["coo", "csr", "csc"])
def test_a_graph_of_dgl_itself_is_read_from_each_storage(storage):
    torch, dgl = pytest.importorskip("torch"), pytest.importorskip("dgl")
    dgl_graph = dgl.graph((SRC, DST), num_nodes=5)
    dgl_graph.edata["w"] = torch.arange(6.0)
    graph = interop.from_dgl(dgl_graph.formats(storage), weight="w")
    expected = GRAPH.with_edge_values(np.arange(6.0))
    np.testing.assert_array_equal(graph.to_scipy().toarray(), expected.to_scipy().toarray())


def test_a_dgl_graph():
    graph = interop.from_dgl(Dgl({("n", "e", "n"): (SRC, DST)}, {"n": 5}))
    assert isinstance(graph, Graph) and graph.in_degrees.tolist() == np.bincount(DST, minlength=5).tolist()
    graph = interop.from_dgl(Dgl({("a", "to", "b"): ([0, 1], [2, 2]), ("b", "to", "a"): ([1], [0])}, {"a": 2, "b": 3}))
    assert graph.n_nodes == {"a": 2, "b": 3} and graph.in_degrees["a", "to", "b"].tolist() == [0, 0, 2]
    with pytest.raises(ConfigError, match="from_dgl: int is not a DGL graph"):
        interop.from_dgl(3)


def test_edge_data_of_a_dgl_graph_become_weights_and_features_by_name():
    relation, weight, features = ("n", "e", "n"), np.arange(6.0), np.arange(12.0).reshape(6, 2)
    dgl_graph = Dgl({relation: (SRC, DST)}, {"n": 5}, {relation: {"w": weight, "feat": features, "_ID": np.arange(6)}})
    graph = interop.from_dgl(dgl_graph, weight="w", features="feat")
    expected = np.zeros((5, 3))
    np.add.at(expected, DST, X[SRC] * weight[:, None])
    np.testing.assert_allclose(graph.aggregate(fn.copy_src(X), "sum").data, expected)
    np.testing.assert_array_equal(graph.edge_features, features)
    with pytest.warns(RuntimeWarning, match="from_dgl: .*feat, w .*weight= and features="):
        assert interop.from_dgl(dgl_graph).edge_weight is None
    with pytest.raises(ConfigError, match="from_dgl: weight 'weight' .* feat, w"):
        interop.from_dgl(dgl_graph, weight="weight")
    to, back = ("a", "to", "b"), ("b", "to", "a")
    several = Dgl({to: ([0, 1], [2, 2]), back: ([1], [0])}, {"a": 2, "b": 3}, {to: {"w": np.array([2.0, 8])}})
    graph = interop.from_dgl(several, weight="w")
    assert graph.aggregate({to: fn.copy_src(np.ones((2, 1)))}, "sum")["b"].data.tolist() == [[0], [0], [10]]
    assert back not in graph.edge_values or graph.edge_values[back].weight is None


@pytest.fixture
def torch():
    module = pytest.importorskip("torch")
    pytest.importorskip("sarlite.interop.torch")
    return module


def test_a_sarlite_model_trains_in_torch_as_it_does_here(torch):
    from sarlite.interop.torch import TorchModule

    def model():
        rng = nn.Random(0)
        return GCN(3, 2, hidden=4, dropout=0.5, rng=rng, dtype=np.float64), rng

    sarlite_model, rng = model()
    flat = nn.flatten(sarlite_model)
    optimizer = optim.SGD(flat, 0.1)
    (other, other_rng) = model()
    module = TorchModule(other, GRAPH, other_rng)
    theirs = torch.optim.SGD(module.parameters(), 0.1)
    assert set(module.state_dict()) == {name for name, _ in sarlite_model.named_parameters()}
    for step in range(3):
        rng.step = step + 1
        sarlite_model.train()
        flat.zero_grad()
        (sarlite_model(GRAPH, Tensor(X)) ** 2).sum().backward()
        optimizer.step()
        theirs.zero_grad()
        (module(torch.from_numpy(X)) ** 2).sum().backward()
        theirs.step()
    for name, parameter in sarlite_model.named_parameters():
        np.testing.assert_allclose(module.state_dict()[name].numpy(), parameter.data, rtol=1e-12)
    module.eval()
    expected = sarlite_model.eval()(GRAPH, Tensor(X)).data
    np.testing.assert_allclose(module(torch.from_numpy(X)).detach().numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(other(GRAPH, Tensor(X)).data, expected, rtol=1e-12)  # the parameters are one memory


def test_gradcheck_of_torch(torch):
    from sarlite.interop.torch import TorchModule

    module = TorchModule(GAT(3, 2, hidden=2, heads=2, rng=nn.Random(0), dtype=np.float64), GRAPH)
    x = torch.from_numpy(X.copy()).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *parameters: module(x), (x, *module.parameters()))
    out = module(x)
    with torch.no_grad():
        next(module.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    assert not module(torch.from_numpy(X)).detach().requires_grad
    with torch.no_grad():
        assert not module(x).requires_grad


def test_a_torch_module_in_a_sarlite_model(torch):
    from sarlite import gradcheck
    from sarlite.interop.torch import FromTorch

    class Model(nn.Module):
        def __init__(self):
            torch.manual_seed(0)
            self.inner = FromTorch(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double())

        def __call__(self, graph, h):
            return graph.aggregate(fn.copy_src(self.inner(h)), "mean")

    model, x = Model(), Tensor(X, requires_grad=True)
    assert model.n_parameters == 3 * 4 + 4 + 4 * 2 + 2
    gradcheck(lambda *_: model(GRAPH, x), [x, *model.parameters()])
    flat = nn.flatten(model)  # which moves the parameters
    optimizer, losses = optim.Adam(flat, 0.05), []
    for _ in range(20):
        flat.zero_grad()
        loss = ((model(GRAPH, Tensor(X, constant=True)) - 1.0) ** 2).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    with pytest.raises(ConfigError, match="BatchNorm1d keeps buffers, running_mean, running_var, num_batches_tracked"):
        FromTorch(torch.nn.BatchNorm1d(3))
    with pytest.raises(ConfigError, match="LSTM returned a tuple, .*tensor"):
        FromTorch(torch.nn.LSTM(3, 3).double())(Tensor(X))

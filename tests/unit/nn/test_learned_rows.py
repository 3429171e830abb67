"""Learned rows beside features equal a model whose features are both side by side, on any number of ranks."""

import numpy as np
import pytest

from sarlite import HeteroGraph, Tensor, nn
from sarlite.errors import ConfigError
from sarlite.models import RGAT, RGCN
from tests.helpers.graph.relational_runs import relational_run

pytestmark = pytest.mark.timeout(120)
RNG = np.random.default_rng(0)
N = {"user": 7, "shop": 4}
EDGES = {("user", "buys", "shop"): (RNG.integers(0, 7, 20), RNG.integers(0, 4, 20)),
         ("shop", "sells", "user"): (RNG.integers(0, 4, 20), RNG.integers(0, 7, 20))}  # fmt: skip
X = {"user": RNG.normal(size=(7, 3)), "shop": RNG.normal(size=(4, 2))}
OPTIONS = {"dropout": 0.0, "hidden": 6, "embedding": 5, "dtype": np.float64}


@pytest.mark.parametrize("cls, more", [(RGCN, {}), (RGAT, {"heads": 2}), (RGCN, {"n_bases": 2})])
@pytest.mark.parametrize("types", [("user",), ("all",)])
def test_learned_rows_stand_beside_the_features(cls, more, types):
    graph = HeteroGraph.from_edges(EDGES, N)
    nodes, learned = graph.of("user"), tuple(N) if types == ("all",) else types
    model = cls({"user": 3, "shop": 2}, 4, nodes, learned_rows=types, rng=nn.Random(1), **OPTIONS, **more)
    assert {name for name, p in model.named_parameters() if p.ids is not None} == {f"inputs.embeddings.{name}.weight" for name in learned}
    tables = {name: dict(model.named_parameters())[f"inputs.embeddings.{name}.weight"] for name in learned}
    wide = {name: np.concatenate([X[name], tables[name].data], 1) if name in learned else X[name] for name in N}
    plain = cls({name: x.shape[1] for name, x in wide.items()}, 4, nodes, rng=nn.Random(2), **OPTIONS, **more)
    state = model.state_dict()
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    inputs = {name: Tensor(x, requires_grad=True) for name, x in wide.items()}
    weights = RNG.normal(size=(7, 4))
    actual, expected = model(nodes, {name: Tensor(x, constant=True) for name, x in X.items()}), plain(nodes, inputs)
    np.testing.assert_allclose(actual.data, expected.data, rtol=1e-12, atol=1e-12)
    (actual * weights).sum().backward(), (expected * weights).sum().backward()
    for name, table in tables.items():
        np.testing.assert_allclose(table.grad, inputs[name].grad[:, X[name].shape[1]:], rtol=1e-10, atol=1e-12)
        assert abs(table.grad).max() > 1e-3


def test_a_type_that_is_none_is_refused():
    graph = HeteroGraph.from_edges(EDGES, N)
    with pytest.raises(ConfigError, match="learned_rows: 'item' .*user, shop"):
        RGCN({"user": 3, "shop": 2}, 4, graph.of("user"), learned_rows=("item",), rng=nn.Random(1))


@pytest.mark.parametrize("more", [[], ["--batch-size", 40, "--fanouts", "3,3"]])
def test_runs_with_learned_rows_are_equal_on_any_number_of_ranks(more, tmp_path):
    flags = ["--model", "rgcn", "--hidden", 6, "--embedding", 4, "--learned-rows", "paper", "--epochs", 3, *more]
    one = relational_run(tmp_path / "1", *flags)
    three = relational_run(tmp_path / "3", *flags, "--ranks", 3)
    without = relational_run(tmp_path / "0", *[flag for flag in flags if flag not in ("--learned-rows", "paper")])
    np.testing.assert_allclose([epoch["loss"] for epoch in three], [epoch["loss"] for epoch in one], rtol=1e-9)
    assert abs(one[-1]["loss"] - without[-1]["loss"]) > 1e-6

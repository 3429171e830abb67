"""Modules, flat parameters, randomness and the layers."""

import numpy as np
import pytest

from sarlite.errors import CheckpointError, ConfigError
from sarlite.nn import BatchNorm, Dropout, LayerNorm, Linear, Module, Parameter, Random, flatten
from sarlite.nn.random import splitmix64
from sarlite.tape import Tensor, gradcheck


class Model(Module):
    def __init__(self, seed=0, dtype=np.float32):
        rng = Random(seed)
        self.layers = [Linear(3, 4, rng=rng, dtype=dtype), Linear(4, 2, bias=False, rng=rng, dtype=dtype)]
        self.norms = {"first": BatchNorm(4, dtype=dtype)}
        self.scale = Parameter(np.ones((2, 2), dtype))
        self.extra = (Parameter(np.zeros(0, dtype)), "not a parameter", np.zeros(3))
        self.dropout = Dropout(0.5, rng)
        self.again = self.layers[0]
        self.tied = [self.scale]


NAMES = {
    "scale": (2, 2),
    "extra.0": (0,),
    "layers.0.weight": (3, 4),
    "layers.0.bias": (4,),
    "layers.1.weight": (4, 2),
    "norms.first.gamma": (4,),
    "norms.first.beta": (4,),
}


def test_names_and_shapes():
    model = Model()
    assert {name: p.shape for name, p in model.named_parameters()} == NAMES
    assert model.n_parameters == 4 + 12 + 4 + 8 + 4 + 4
    assert all(p.requires_grad and p.dtype == np.float32 for p in model.parameters())
    assert {p.dtype for p in Model(dtype=np.float64).parameters()} == {np.dtype(np.float64)}


def test_train_and_eval_reach_every_module():
    model = Model()
    assert model.training and model.dropout.training
    assert model.eval() is model
    assert not (model.training or model.dropout.training or model.norms["first"].training or model.layers[1].training)
    assert model.train().norms["first"].training
    assert Module.training


# ---- state


def test_state_round_trip():
    old, new = Model(seed=1), Model(seed=2)
    old.norms["first"].running_mean += 3
    state = old.state_dict()
    assert set(state) == {*NAMES, "norms.first.running_mean", "norms.first.running_var"}
    flat, weight = flatten(new), new.layers[0].weight.data
    assert (weight != state["layers.0.weight"]).any()
    new.load_state_dict(state)
    for name, array in new.state_dict().items():
        np.testing.assert_array_equal(array, state[name])
    assert new.layers[0].weight.data is weight and np.shares_memory(weight, flat.data)
    state["scale"][...] = 9
    assert (new.scale.data == 1).all() and (old.scale.data == 1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("layers.1.weight"), "'layers.1.weight' is missing from the checkpoint"),
        (lambda state: state.update(other=np.zeros(1)), "'other' is missing from the model"),
        (lambda state: state.update(scale=np.zeros((2, 3), np.float32)), r"'scale' is float32 \(2, 3\), .* float32 \(2, 2\)"),
        (lambda state: state.update(scale=np.zeros((2, 2))), r"'scale' is float64"),
        (lambda state: state.update(scale=np.zeros((1, 2), np.float32)), r"'scale'"),
        (lambda state: state.pop("norms.first.running_var"), "running_var"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, message):
    model, state = Model(seed=1), Model(seed=2).state_dict()
    before = model.state_dict()
    change(state)
    with pytest.raises(CheckpointError, match=message):
        model.load_state_dict(state)
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


# ---- flat


def test_flat_holds_data_and_gradients():
    model = Model()
    before = model.state_dict()
    flat = flatten(model)
    assert flat.data.shape == flat.grad.shape == (model.n_parameters,) and flat.data.dtype == np.float32
    for (name, p), flat_name, where in zip(model.named_parameters(), flat.names, flat.slices):
        assert name == flat_name
        np.testing.assert_array_equal(p.data, before[name])
        flat.data[where] = 5
        assert (p.data == 5).all() and p.grad.shape == p.shape
    (model.scale * 2).sum().backward()
    (model.scale * 2).sum().backward()
    where = flat.slices[flat.names.index("scale")]
    assert (flat.grad[where] == 4).all() and flat.grad.sum() == 16
    model.scale.grad = None
    flat.zero_grad()
    assert not flat.grad.any()
    model.scale.sum().backward()
    assert flat.grad.sum() == 4


def test_flat_refuses_mixed_dtypes():
    model = Model()
    model.other = Parameter(np.zeros(2))
    with pytest.raises(ConfigError, match="float32.*float64"):
        flatten(model)
    with pytest.raises(ConfigError):
        flatten(Module())


# ---- randomness


def test_splitmix64_known_answers():
    """The first outputs of the reference generator from seed 0, and from 1234567."""
    gamma, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    assert [splitmix64(k * gamma & mask) for k in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [splitmix64(1234567 + k * gamma & mask) for k in range(2)] == [6457827717110365317, 3203168211198807973]


def test_keys_depend_on_seed_epoch_and_layer():
    keys = set()
    for seed in range(-3, 8):
        rng = Random(seed)
        for rng.epoch in range(10):
            keys |= {rng.key(layer) for layer in range(10)}
    assert len(keys) == 1100
    assert all(0 <= key < 2**64 for key in keys)
    assert Random(3).key(2) == Random(3).key(2) != Random(3).key(1)
    rng = Random(7)
    rng.epoch = 5
    assert rng.key(3) == splitmix64(splitmix64(splitmix64(7) ^ 5) ^ 3)


def test_generators_follow_the_number_of_draws():
    one, two = Random(5), Random(5)
    first, second = one.generator().random(4), one.generator().random(4)
    assert (first != second).all()
    np.testing.assert_array_equal(first, two.generator().random(4))
    two.layer()
    np.testing.assert_array_equal(second, two.generator().random(4))
    np.testing.assert_array_equal(second, Random(5).generator(1).random(4))
    assert (first != Random(6).generator().random(4)).all()
    assert [one.layer(), one.layer(), two.layer()] == [0, 1, 1]


# ---- layers


def test_linear():
    x = np.random.default_rng(0).standard_normal((5, 3))
    linear = Linear(3, 4, rng=Random(1), dtype=np.float64)
    linear.bias.data[...] = [1, 2, 3, 4]
    np.testing.assert_allclose(linear(Tensor(x)).data, x @ linear.weight.data + [1, 2, 3, 4], rtol=1e-14)
    gradcheck(lambda x, *_: linear(x), [x, *linear.parameters()])
    gradcheck(lambda x: linear(x), [x.reshape(1, 5, 3)])
    assert Linear(3, 4, bias=False, rng=Random(1)).n_parameters == 12


def test_glorot_bound_and_rounding():
    weight = Linear(200, 100, rng=Random(1), dtype=np.float64).weight.data
    bound = np.sqrt(6 / 300)
    assert 0.999 * bound < abs(weight).max() <= bound
    assert abs(weight.std() - bound / np.sqrt(3)) < 0.01 * bound
    np.testing.assert_array_equal(Linear(200, 100, rng=Random(1)).weight.data, weight.astype(np.float32))


def test_dropout_layers():
    rng = Random(4)
    first, second = Dropout(0.5, rng), Dropout(0.5, rng)
    x, ids = Tensor(np.ones((50, 8))), np.arange(50)
    a = first(x, ids).data
    np.testing.assert_array_equal(first(x, ids).data, a)
    np.testing.assert_array_equal(first(Tensor(x.data[10:]), ids[10:]).data, a[10:])
    assert (second(x, ids).data != a).any()
    rng.epoch = 1
    assert (first(x, ids).data != a).any()
    rng.epoch = 0
    np.testing.assert_array_equal(first(x, ids).data, a)
    assert first.coin() == (0.5, rng.key(0)) and second.coin() == (0.5, rng.key(1))
    assert first.eval()(x, ids) is x
    assert first.coin()[0] == 0
    assert Dropout(0.0, rng)(x, ids) is x
    for p in (1.0, -0.5, float("nan")):
        with pytest.raises(ConfigError, match="p is"):
            Dropout(p, rng)


def test_layer_norm():
    x = np.random.default_rng(0).standard_normal((5, 3))
    norm = LayerNorm(3, dtype=np.float64)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(norm(Tensor(x)).data, expected, rtol=1e-10)
    gradcheck(lambda x, *_: norm(x), [x, *norm.parameters()])

"""Modules, flat parameters, random numbers and the layers."""

import copy
import gc
import pickle

import numpy as np
import pytest

from sarlite.errors import CheckpointError, ConfigError, ShapeError
from sarlite.models import RGCNConv
from sarlite.nn import BatchNorm, Dropout, Embedding, LayerNorm, Linear, Module, Parameter, Random, flatten
from sarlite.nn.random import splitmix64, word
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
    for (name, p), flat_name, where in zip(model.named_parameters(), flat.replicated.names, flat.replicated.slices):
        assert name == flat_name
        np.testing.assert_array_equal(p.data, before[name])
        flat.data[where] = 5
        assert (p.data == 5).all() and p.grad.shape == p.shape
    (model.scale * 2).sum().backward()
    (model.scale * 2).sum().backward()
    where = flat.replicated.slices[flat.replicated.names.index("scale")]
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
    with pytest.raises(ConfigError, match="no parameters"):
        flatten(Module())


def test_a_gradient_taken_away_leaves_nothing_behind():
    model = Model()
    flat = flatten(model)
    (model.scale * 3).sum().backward()
    model.scale.grad = None
    assert not flat.grad.any() and model.scale.grad is not None
    model.scale.grad = None
    (model.scale * 2).sum().backward()  # into an array of its own
    assert flat.grad.sum() == 8
    model.scale.sum().backward()
    assert flat.grad.sum() == 12
    flat.grad += 1
    flat.grad = flat.grad * 2
    assert (model.scale.grad == 8).all() and np.shares_memory(model.scale.grad, flat.grad)


def test_values_put_in_place_are_kept():
    model = Model()
    flat = flatten(model)
    model.scale.data = np.full((2, 2), 7, np.float32)
    where = flat.replicated.slices[flat.replicated.names.index("scale")]
    assert (flat.data[where] == 7).all() and np.shares_memory(model.scale.data, flat.data)
    flat.data = np.arange(flat.data.size)
    assert model.scale.data.ravel().tolist() == list(range(where.start, where.stop))
    with pytest.raises((ConfigError, ShapeError), match=r"float32 \(2,\).*\(2, 2\)"):  # the tensor itself, or the group
        model.scale.data = np.zeros(2, np.float32)
        flat.data  # noqa: B018


def test_a_gradient_of_another_shape_is_refused():
    model = Model()
    flat = flatten(model)
    model.scale.grad = np.zeros(2, np.float32)
    with pytest.raises(ConfigError, match=r"'scale' became float32 \(2,\).*\(2, 2\)"):
        flat.grad  # noqa: B018


def test_flat_again_is_the_same_flat():
    model = Model()
    flat = flatten(model)
    assert flatten(model) is flat
    for other in (model.layers[0], type("Sharing", (Module,), {"__init__": lambda self: setattr(self, "first", model.layers[0])})()):
        with pytest.raises(ConfigError, match="'(first.)?weight' .*flat arrays"):
            flatten(other)
    del flat
    gc.collect()
    assert flatten(model.layers[0]).data.size == 16
    gc.collect()
    assert flatten(model).data.size == model.n_parameters  # no reference to the part is left


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_flat_model_is_a_model_of_its_own(duplicate):
    model = Model()
    model.table = Embedding(np.arange(3), 2, rng=Random(0))
    model.layers[1].weight.requires_grad = False
    flat = flatten(model)
    other = duplicate(model)
    assert [n for n, _ in other.named_parameters()] == [n for n, _ in model.named_parameters()] and other.again is other.layers[0]
    assert not other.layers[1].weight.requires_grad and other.row_ids()["table.weight"].tolist() == [0, 1, 2]
    assert flatten(other) is not flat
    before = other.state_dict()
    flat.data += 1
    assert all((before[name] == value).all() for name, value in other.state_dict().items())


# ---- owned by rows


def test_parameters_lie_in_groups_by_placement_and_dtype():
    """Replicated parameters share one array; each parameter owned by rows has its own, of any dtype and number of rows."""
    model = Model()
    model.tables = [Embedding(np.array([4, 2, 9]), 2, rng=Random(0), dtype=np.float64), Embedding(np.zeros(0, int), 3, rng=Random(0))]
    flat, replicated = flatten(model), Model().n_parameters
    assert flat.data.shape == flat.grad.shape == (replicated,) and flat.data.dtype == np.float32
    assert [group.names for group in flat.groups[1:]] == [["tables.0.weight"], ["tables.1.weight"]]
    assert [(g.data.shape, g.data.dtype, g.ids.tolist()) for g in flat.owned] == [((3, 2), np.float64, [4, 2, 9]), ((0, 3), np.float32, [])]
    assert list(model.row_ids()) == ["tables.0.weight", "tables.1.weight"]
    (model.tables[0](np.array([2, 2])) * 2.0).sum().backward()
    model.tables[1]().sum().backward()
    assert flat.owned[0].grad.tolist() == [[0, 0], [0, 0], [4, 4]] and not flat.grad.any()
    flat.owned[0].data[...] = 5
    assert (model.tables[0]().data == 5).all()
    flat.zero_grad()
    assert not flat.owned[0].grad.any() and model.tables[0].weight.grad is not None


def test_only_replicated_gradients_are_summed_over_ranks():
    class Summed:
        arrays = []

        def start_allreduce(self, array):
            self.arrays.append(array.shape)

    model = Model()
    model.table = Embedding(np.arange(3), 2, rng=Random(0))
    flatten(model).start_allreduce(Summed())
    owned_only = flatten(Embedding(np.arange(3), 2, rng=Random(0)))
    owned_only.start_allreduce(Summed()).wait()
    assert Summed.arrays == [(Model().n_parameters,)] and owned_only.data.size == 0 and len(owned_only.owned) == 1


def test_rows_of_an_embedding_follow_their_ids():
    ids = np.random.default_rng(0).permutation(100_000)[:5000]
    make = lambda ids, seed=3, **options: Embedding(ids, 6, rng=Random(seed), dtype=np.float64, **options)().data  # noqa: E731
    whole = make(ids)
    np.testing.assert_array_equal(make(ids[4000:]), whole[4000:])
    np.testing.assert_array_equal(make(ids[::-1].astype(np.int32)), whole[::-1])
    assert (make(ids, seed=4) != whole).any() and (make(ids, node_type="paper") != whole).any()
    assert abs((whole**2).sum(1).mean() - 1) < 0.02 and abs(whole.mean()) < 0.01 and abs(whole).max() <= np.sqrt(0.5)
    assert np.unique(whole).size == whole.size
    assert abs(np.corrcoef(make(np.arange(5000)).T) - np.eye(6)).max() < 0.06
    rng = Random(3)
    one, two = (Embedding(ids, 6, rng=rng)().data for _ in range(2))
    assert (one != two).any() and one.dtype == np.float32
    rng.step = 9
    np.testing.assert_array_equal(Random(3).uniform([1], 2, 0), rng.uniform([1], 2, 0))
    np.testing.assert_array_equal(rng.uniform([5, 6], 200_000, 0)[1:], rng.uniform([6], 200_000, 0))  # in pieces


def test_entries_of_a_row_are_the_reference_generator():
    key, gamma, mask = splitmix64(7), 0x9E3779B97F4A7C15, 2**64 - 1
    for part in (word("rows"), word("paper"), 0, 2):
        key = splitmix64(key ^ part)
    state = splitmix64(key ^ 11)
    expected = [(splitmix64(state + c * gamma & mask) >> 11) * 2.0**-52 - 1 for c in range(4)]
    assert Random(7).uniform(np.array([11]), 4, 2, "paper")[0].tolist() == expected


@pytest.mark.parametrize("ids", [np.zeros(2, int), np.zeros((3, 1), int), np.zeros(3)])
def test_ids_that_do_not_fit_are_refused(ids):
    with pytest.raises(ShapeError, match=r"ids of .*integer .*\(3, 2\)"):
        Parameter(np.zeros((3, 2)), ids=ids)


# ---- randomness


def test_splitmix64_known_answers():
    """The answers are the first outputs of the reference generator from seed 0, and from 1234567."""
    gamma, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    assert [splitmix64(k * gamma & mask) for k in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [splitmix64(1234567 + k * gamma & mask) for k in range(2)] == [6457827717110365317, 3203168211198807973]


def test_words_are_the_same_everywhere():
    """BLAKE2b-64 of the empty string is e4a6a0577479b2b4."""
    assert word("") == 0xB4B2797457A0A6E4 and word("dropout") != word("Dropout")


def test_keys_depend_on_seed_purpose_node_type_step_and_layer():
    keys = set()
    for seed in range(-3, 4):
        rng = Random(seed)
        for rng.step in range(6):
            keys |= {rng.key(layer, node_type, purpose)
                     for layer in range(6) for node_type in ("", "paper", "author") for purpose in ("dropout", "labels")}
    assert len(keys) == 7 * 6 * 6 * 3 * 2
    assert all(0 <= key < 2**64 for key in keys)
    assert Random(3).key(2) == Random(3).key(2, "") == Random(3).key(2, purpose="dropout") != Random(3).key(1)
    rng = Random(7)
    rng.step = 5
    expected = splitmix64(7)
    for part in (word("labels"), word("paper"), 5, 3):
        expected = splitmix64(expected ^ part)
    assert rng.key(3, "paper", "labels") == expected


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


def test_linear_is_a_product_and_a_bias():
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


def test_dropout_layers_draw_masks_of_their_own():
    rng = Random(4)
    first, second = Dropout(0.5, rng), Dropout(0.5, rng)
    x, ids = Tensor(np.ones((50, 8))), np.arange(50)
    a = first(x, ids).data
    np.testing.assert_array_equal(first(x, ids).data, a)
    np.testing.assert_array_equal(first(Tensor(x.data[10:]), ids[10:]).data, a[10:])
    assert (second(x, ids).data != a).any()
    assert (first(x, ids, "paper").data != a).any()
    rng.step = 1
    assert (first(x, ids).data != a).any()
    rng.step = 0
    np.testing.assert_array_equal(first(x, ids).data, a)
    assert first.mask_key() == (0.5, rng.key(0)) and second.mask_key("paper") == (0.5, rng.key(1, "paper"))
    assert first.eval()(x, ids) is x
    assert first.mask_key()[0] == 0
    assert Dropout(0.0, rng)(x, ids) is x
    for p in (1.0, -0.5, float("nan")):
        with pytest.raises(ConfigError, match="p is"):
            Dropout(p, rng)


def test_layer_norm_is_the_formula():
    x = np.random.default_rng(0).standard_normal((5, 3))
    norm = LayerNorm(3, dtype=np.float64)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(norm(Tensor(x)).data, expected, rtol=1e-10)
    gradcheck(lambda x, *_: norm(x), [x, *norm.parameters()])


class Holds(Module):
    def __init__(self, held):
        self.w = held


class Buffered(Module):
    buffers = ("b",)

    def __init__(self):
        self.b = np.zeros(2)


def test_two_parameters_of_one_name_are_refused():
    """Keys of dicts with dots, or of other types, may give two parameters one name; a state dict would have only one of them."""
    one, other = Parameter(np.zeros(2)), Parameter(np.ones(2))
    for held in ({"a.b": one, "a": {"b": other}}, {1: one, "1": other}):
        for use in (Module.state_dict, flatten, lambda model: model.load_state_dict({})):
            with pytest.raises(ConfigError, match="two parameters or buffers .*one name"):
                use(Holds(held))
    with pytest.raises(ConfigError, match="one name, 'w.x.b'"):
        Holds({"x": Buffered(), "x.b": other}).state_dict()
    assert len(Holds({"a.b": one, "a": {"b": one}}).state_dict()) == 1  # a shared parameter has one name


def test_relations_whose_words_join_alike_have_a_weight_each():
    relations = ("a", "b__c", "a"), ("a__b", "c", "a"), ("a", "b", "a")
    conv = RGCNConv({"a": 3, "a__b": 3}, 2, relations, rng=Random(0))
    assert len({id(conv.weight(relation)) for relation in relations}) == 3 == len(conv.weights)
    assert "weights.a__b__a" in conv.state_dict()  # as ever, where no other is called so

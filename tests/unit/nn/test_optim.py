"""Optimizers against their formulas, and schedules."""

import math

import numpy as np
import pytest

from sarlite.errors import CheckpointError, ConfigError
from sarlite.nn import Module, Parameter, flatten
from sarlite.optim import SGD, Adam, schedule

RNG = np.random.default_rng(11)
GRADIENTS = RNG.standard_normal((6, 5))


class Two(Module):
    def __init__(self, dtype=np.float64):
        self.first, self.second = Parameter(np.array([1.0, -2.0], dtype)), Parameter(np.array([[0.5], [3.0], [0.0]], dtype))


def first_only(name):
    return 0.1 if name == "first" else 0.0


def train(optimizer, gradients=GRADIENTS, factors=None):
    """Take one step for each gradient; return the parameters after each step."""
    trace = []
    for k, g in enumerate(gradients):
        optimizer.flat.zero_grad()
        optimizer.flat.grad += g.astype(optimizer.flat.grad.dtype)
        optimizer.step(*([factors[k]] if factors else []))
        trace.append(optimizer.flat.data.copy())
    return np.array(trace)


START = np.array([1.0, -2.0, 0.5, 3.0, 0.0])
DECAYS = {0.0: np.zeros(5), 0.1: np.full(5, 0.1), first_only: np.array([0.1, 0.1, 0, 0, 0])}


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_its_formula(momentum, decay):
    steps = train(SGD(flatten(Two()), lr=0.2, momentum=momentum, weight_decay=decay))
    w, v = START.copy(), np.zeros(5)
    for g, step in zip(GRADIENTS, steps):
        v = momentum * v + g + DECAYS[decay] * w
        w = w - 0.2 * v
        np.testing.assert_allclose(step, w, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_is_its_formula(decoupled, decay):
    steps = train(Adam(flatten(Two()), lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=decay, decoupled=decoupled))
    w, m, v = START.copy(), np.zeros(5), np.zeros(5)
    for t, (g, step) in enumerate(zip(GRADIENTS, steps), 1):
        if decoupled:
            w = w * (1 - 0.05 * DECAYS[decay])
        else:
            g = g + DECAYS[decay] * w
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
        w = w - 0.05 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-3)
        np.testing.assert_allclose(step, w, rtol=1e-12, atol=1e-14)


MAKE = {
    "plain": lambda flat: SGD(flat, 0.1, weight_decay=0.05),
    "momentum": lambda flat: SGD(flat, 0.1, 0.9, first_only),
    "adam": lambda flat: Adam(flat, 0.1, weight_decay=first_only),
    "adamw": lambda flat: Adam(flat, 0.1, weight_decay=lambda name: 0.1 if name == "second" else 0.02, decoupled=True),
}


class Mixed(Module):
    """A module with the values of `Two`, whose second parameter is owned by rows."""

    def __init__(self):
        two = Two()
        self.first, self.second = two.first, Parameter(two.second.data, ids=np.array([8, 3, 5]))


@pytest.mark.parametrize("make", MAKE)
def test_every_group_takes_the_same_step(make):
    expected, mixed = train(MAKE[make](flatten(Two()))), Mixed()
    optimizer = MAKE[make](flatten(mixed))
    for g, want in zip(GRADIENTS, expected):
        optimizer.flat.zero_grad()
        mixed.first.grad += g[:2]
        mixed.second.grad += g[2:, None]
        optimizer.step()
        np.testing.assert_allclose(np.concatenate([mixed.first.data, mixed.second.data[:, 0]]), want, rtol=1e-14, atol=1e-15)
    state = optimizer.state_dict()
    names = {"plain": (), "momentum": ("velocity",)}.get(make, ("m", "v"))
    assert set(state) == {*names, *(name + ".second" for name in names), *(["n_steps"] if "adam" in make else [])}
    assert optimizer.rows_of() == {name + ".second": "second" for name in names}
    assert all(state[name].shape == (2,) and state[name + ".second"].shape == (3, 1) for name in names)
    again = MAKE[make](flatten(mixed))
    again.load_state_dict(state)
    assert all((value == state[name]).all() for name, value in again.state_dict().items())


def test_a_step_tells_the_tape(monkeypatch):
    seen, model = [], Mixed()
    monkeypatch.setattr(Parameter, "changed", lambda self: seen.append(self))
    optimizer = SGD(flatten(model), 0.1)
    seen.clear()
    optimizer.step()
    assert [id(p) for p in seen] == [id(p) for p in model.parameters()]
    model.load_state_dict(model.state_dict())
    assert len(seen) == 4


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("owned", [False, True])
def test_adam_in_parts_makes_the_same_bits(owned, decoupled, decay):
    """The test includes a parameter owned by rows, whose parts are rows."""
    models = [Two() for _ in range(2)]
    for model in models:
        model.second.ids = np.arange(3) if owned else None
    whole, parts = (Adam(flatten(model), lr=0.05, weight_decay=decay, decoupled=decoupled) for model in models)
    parts.values_at_once = 1
    for g in GRADIENTS:
        for optimizer in (whole, parts):
            for group in optimizer.flat.groups:
                group.grad[...] = g[: group.data.size].reshape(group.data.shape)
            optimizer.step()
    for one, other in zip(whole.flat.groups, parts.flat.groups, strict=True):
        np.testing.assert_array_equal(one.data, other.data)
    assert len(whole.flat.groups) == 1 + owned
    assert not np.array_equal(models[0].first.data, START[:2])


def test_adams_first_step_by_hand():
    """Bias correction makes the first step lr * sign(g), whatever the size of g."""
    steps = train(Adam(flatten(Two()), lr=0.01, eps=0.0), [np.array([1e-3, -1e3, 1.0, -1.0, 5.0])])
    np.testing.assert_allclose(steps[0], START - 0.01 * np.array([1, -1, 1, -1, 1]), rtol=1e-12)


def test_factor_scales_the_learning_rate():
    for make in (SGD, Adam):
        halved = train(make(flatten(Two()), lr=0.2), factors=[0.5] * 6)
        np.testing.assert_allclose(halved, train(make(flatten(Two()), lr=0.1)), rtol=1e-12)
    assert (train(SGD(flatten(Two()), lr=0.2), factors=[0.0] * 6) == START).all()


@pytest.mark.parametrize("make", [lambda f: SGD(f, 0.1, 0.9, first_only), lambda f: Adam(f, 0.1, weight_decay=first_only)])
def test_float32_and_views(make):
    model = Two(np.float32)
    low = make(flatten(model))
    views = [p.data for p in model.parameters()]
    trace = train(low)
    assert trace.dtype == np.float32 and all(a.dtype == np.float32 for a in low.state_dict().values() if a.ndim)
    np.testing.assert_allclose(trace, train(make(flatten(Two()))), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(np.concatenate([v.ravel() for v in views]), trace[-1])


@pytest.mark.parametrize("make", [lambda f: SGD(f, 0.1), lambda f: SGD(f, 0.1, 0.9), lambda f: Adam(f, 0.1)])
def test_state_continues_a_run(make):
    whole = train(make(flatten(Two())))
    model = Two()
    first = make(flatten(model))
    train(first, GRADIENTS[:3])
    state = first.state_dict()
    assert all(isinstance(a, np.ndarray) for a in state.values())
    second = make(flatten(model))
    second.load_state_dict(state)
    train(first, GRADIENTS[:0])
    np.testing.assert_array_equal(train(second, GRADIENTS[3:]), whole[3:])


def test_a_foreign_state_is_refused():
    adam = Adam(flatten(Two()))
    for change in ({"m": np.zeros(4)}, {"v": np.zeros(5, np.float32)}, {"other": np.zeros(5)}):
        with pytest.raises(CheckpointError, match=next(iter(change))):
            adam.load_state_dict({**adam.state_dict(), **change})
    with pytest.raises(CheckpointError, match="velocity"):
        SGD(flatten(Two()), 0.1, 0.9).load_state_dict({})


def test_bad_options_are_refused():
    flat = flatten(Two())
    for call in (
        lambda: SGD(flat, -1),
        lambda: SGD(flat, math.nan),
        lambda: SGD(flat, 0.1, momentum=1.0),
        lambda: SGD(flat, 0.1, weight_decay=-1),
        lambda: Adam(flat, betas=(0.9, 1.0)),
        lambda: Adam(flat, eps=-1),
    ):
        with pytest.raises(ConfigError, match="must be in"):
            call()


# ---- schedules


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("constant", [1, 1, 1, 1, 1]),
        ("cosine", [1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0]),
        ("step:2:0.1", [1, 1, 0.1, 0.1, 0.01]),
        ("warmup:2:constant", [0.5, 1, 1, 1, 1]),
        ("warmup:2:step:1:0.5", [0.5, 1, 1, 0.5, 0.25]),
        ("warmup:2:cosine", [0.5, 1, 1, 0.5, 0]),
        ("warmup:1:warmup:2:constant", [1, 0.5, 1, 1, 1]),
    ],
)
def test_a_schedule_scales_the_learning_rate(spec, expected):
    factor = schedule(spec, 4)
    np.testing.assert_allclose([factor(epoch) for epoch in range(5)], expected, atol=1e-15)


@pytest.mark.parametrize(
    "spec",
    ["", "linear", "cosine:3", "constant:1", "step", "step:3", "step:0:0.1", "step:a:0.1", "step:3:-1", "step:3:nan"]
    + ["warmup:3", "warmup:0:cosine", "warmup:3:linear", "warmup:x:cosine", "Cosine"],
)
def test_bad_schedules_are_refused(spec):
    with pytest.raises(ConfigError, match="schedule"):
        schedule(spec, 10)


def test_schedule_longer_than_training():
    assert schedule("warmup:10:cosine", 5)(4) == 0.5
    assert schedule("cosine", 0)(0) == 1


@pytest.mark.parametrize("make", [lambda flat: Adam(flat, 0.1, weight_decay=0.1),
                                  lambda flat: SGD(flat, 0.1, momentum=0.9, weight_decay=0.1)])
def test_a_parameter_without_gradient_stays_as_it_is(make):
    """Weight decay and the momentum of earlier steps do not change it."""
    model, free = Two(), Two()
    optimizer, other = make(flatten(model)), make(flatten(free))
    train(optimizer), train(other)
    model.first.requires_grad = False
    before = [model.first.data.copy(), *(array[:2].copy() for array in optimizer.states[0].values())]
    train(optimizer), train(other)
    for old, new in zip(before, [model.first.data, *(array[:2] for array in optimizer.states[0].values())]):
        np.testing.assert_array_equal(old, new)
    np.testing.assert_array_equal(model.second.data, free.second.data)
    assert not np.array_equal(model.first.data, free.first.data)

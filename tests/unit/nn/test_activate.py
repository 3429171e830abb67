"""Norm or bias, activation and dropout in one pass, against NumPy's formulas, finite differences, and single steps."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from sarlite import kernels, nn
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, ShapeError
from sarlite.tape import Tensor, gradcheck, no_grad, ops
from tests.helpers.graph.strategies import values

FLOATS = [np.float32, np.float64]
WIDTHS = [1, 3, 16, 17, 100, 300]
WAYS = list(itertools.product(kernels.ACTIVATIONS, ("plain", "bias", "norm"), (0.0, 0.4)))
KEY = 2**63 + 11
every_way = pytest.mark.parametrize(("kind", "shift", "p"), WAYS)

F = {
    "identity": lambda y, alpha: (y, np.ones_like(y)),
    "relu": lambda y, alpha: (np.maximum(y, 0), (y > 0) * 1.0),
    "elu": lambda y, alpha: (np.where(y > 0, y, alpha * np.expm1(np.minimum(y, 0))), np.where(y > 0, 1, alpha * np.exp(np.minimum(y, 0)))),
}


def arrays(n, width, dtype, shift, seed=1):
    """Return x, g, mean, inv_std, gamma and beta (or None); moments are float64, the other arrays `dtype`."""
    x, g = (values(seed + k, n, width).astype(dtype) for k in range(2))
    mean, inv_std = (values(seed + 2, width), np.abs(values(seed + 3, width)) + 0.5) if shift == "norm" else (None, None)
    gamma = values(seed + 4, width).astype(dtype) if shift == "norm" else None
    beta = values(seed + 5, width).astype(dtype) if shift != "plain" else None
    return x, g, mean, inv_std, gamma, beta


def factors(ids, width, p):
    """Return dropout's factors, from the kernel that has tests of its own."""
    out = np.ones((len(ids), width))
    kernels.dropout(out.copy(), ids, KEY, p, out)
    return out


def reference(kind, alpha, x, g, mean, inv_std, gamma, beta, factor, means):
    """Return out, dx and the sums, in float64."""
    x, g = x.astype(np.float64), g.astype(np.float64)
    normal = x if mean is None else (x - mean) * inv_std
    y = normal * (1 if gamma is None else gamma) + (0 if beta is None else beta)
    out, slope = F[kind](y, alpha)
    dy = g * factor * slope
    dx = dy if mean is None else gamma * inv_std * (dy - means[0] - normal * means[1])
    return out * factor, dx, np.stack([dy.sum(0), (dy * normal).sum(0) * (mean is not None)])


def run(kind, alpha, x, g, mean, inv_std, gamma, beta, mask, means):
    """Return out, dx and the sums from the kernels; batch norm runs in two calls, as in use, and in one."""
    normal = None if mean is None else kernels.Normal(mean, inv_std, gamma)
    out, dx, sums = np.full_like(x, np.nan), np.full_like(x, np.nan), np.full((2, x.shape[1]), np.nan)
    kernels.activate(x, out, kind=kind, alpha=alpha, normal=normal, beta=beta, mask=mask)
    reads_x = normal is not None or kind == "elu"
    back = dict(kind=kind, alpha=alpha, normal=normal, beta=beta, mask=mask, x=x if reads_x else None, out=out if kind == "relu" else None)
    kernels.activate_backward(g, dx=dx, sums=sums, means=means, **back)
    for name, one in (("dx", dx), ("sums", sums)):
        means_only = np.full_like(one, np.nan)
        kernels.activate_backward(g, means=means, **{name: means_only}, **back)
        np.testing.assert_array_equal(means_only, one)
    over = g.copy()
    kernels.activate_backward(over, dx=over, means=means, **back)
    np.testing.assert_array_equal(over, dx)
    return out, dx, sums


@every_way
@pytest.mark.parametrize("dtype", FLOATS)
def test_kernels_are_numpys_formulas(kind, shift, p, dtype):
    tolerance = 1e-13 if dtype == np.float64 else 2e-5
    for width, n in itertools.product(WIDTHS, (0, 1, 50)):
        ids = np.arange(n) * 2**33 - 5
        x, g, *affine = arrays(n, width, dtype, shift)
        means = values(9, 2, width)
        expected = reference(kind, 0.7, x, g, *affine, factors(ids, width, p), means)
        actual = run(kind, 0.7, x, g, *affine, kernels.Mask(ids, KEY, p) if p else None, means)
        for a, b in zip(actual, expected):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1, np.abs(b).max(initial=0)), err_msg=f"{n} x {width}")
        assert actual[0].dtype == actual[1].dtype == dtype


@every_way
@pytest.mark.parametrize("dtype", FLOATS)
def test_bits_do_not_depend_on_threads(kind, shift, p, dtype):
    """The bits of out and dx are the same for any number of threads; the sums have the same bits for the same number."""
    x, g, *affine = arrays(2000, 33, dtype, shift)
    mask = kernels.Mask(np.arange(2000), KEY, p) if p else None
    before, results = kernels.threads(), {}
    try:
        for n in (1, 2, 2):
            kernels.set_threads(n)
            results_of_isa = run(kind, 1.0, x, g, *affine, mask, np.zeros((2, 33)))
            results.setdefault(n, []).append(results_of_isa)
    finally:
        kernels.set_threads(before)
    (one,), (two, again) = results[1], results[2]
    for k in range(3):
        np.testing.assert_array_equal(two[k], again[k])
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1], two[1])
    np.testing.assert_allclose(one[2], two[2], rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("dtype", FLOATS)
def test_elu_is_expm1_to_the_last_places(dtype):
    tiny = np.finfo(dtype).tiny
    far = [0.0, 100, 1e4, np.finfo(dtype).max, np.inf]
    x = -np.concatenate([np.geomspace(tiny, 1, 50000), np.linspace(0, 45, 50001), far]).astype(dtype)
    out = np.empty((len(x), 1), dtype)
    kernels.activate(x[:, None], out, kind="elu")
    exact = np.expm1(x.astype(np.longdouble))
    assert (np.abs(out[:, 0] - exact) / np.spacing(np.abs(exact.astype(dtype)))).max() < 2
    assert out[-1] == -1 and out[-5] == 0


@pytest.mark.parametrize("kind", kernels.ACTIVATIONS)
def test_what_is_not_a_number_stays_so(kind):
    x = np.array([[np.nan, np.inf, 1.0]], np.float32)
    out = np.empty_like(x)
    kernels.activate(x, out, kind=kind)
    np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("dtype", FLOATS)
def test_infinite_gradients_stop_where_relu_does(dtype, p):
    x = np.array([[-1.0, 0.0, 2.0, np.inf] * 9, [1.0] * 36], dtype)
    g, out = np.tile(np.array([np.inf, -np.inf, np.inf, -np.inf], dtype), (2, 9)), np.empty_like(x)
    mask = kernels.Mask(np.arange(2), KEY, p) if p else None
    kernels.activate(x, out, kind="relu", mask=mask)
    dx = np.empty_like(x)
    kernels.activate_backward(g, kind="relu", mask=mask, out=out, dx=dx)
    np.testing.assert_array_equal(dx, np.where(out > 0, g, 0))


@pytest.mark.parametrize("dtype", FLOATS)
def test_relu_has_no_negative_zero(dtype):
    """The tape's relu, of any number of axes, and the fused relu agree with NumPy's maximum in the sign of zero."""
    x = np.array([[-0.0, 0.0, -1.0, 3.0, np.nan] * 11], dtype)
    expected = np.maximum(x, 0)
    fused = nn.Activation(55, "relu", bias=False, rng=nn.Random(0), dtype=dtype)(Tensor(x), GRAPH).data
    for out in (fused, ops.relu(Tensor(x)).data, ops.relu(Tensor(x.T)).data.T, [[float(ops.relu(Tensor(v)).data) for v in x[0]]]):
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(np.signbit(out)[~np.isnan(x)], np.signbit(expected)[~np.isnan(x)])


# ---- the module

GRAPH = SimpleNamespace(dst_ids=np.arange(40) * 7, comm=Solo())


def make(kind, shift, p, dtype, width=5):
    act = nn.Activation(width, kind, batch_norm=shift == "norm", bias=shift == "bias", dropout=p, rng=nn.Random(3), dtype=dtype)
    for k, parameter in enumerate(act.parameters()):
        parameter.data[...] = values(30 + k, *parameter.shape)
    return act


def unfused(act, h, graph):
    """Run the same steps, each as a node of the tape."""
    if act.norm is not None:
        h = act.norm(h, graph.comm)
    elif act.bias is not None:
        h = h + act.bias
    h = {"identity": lambda x: x, "relu": ops.relu, "elu": ops.elu}[act.kind](h)
    return act.dropout(h, graph.dst_ids)


@every_way
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("training", [True, False])
def test_module_equals_the_steps_one_by_one(kind, shift, p, dtype, training):
    g = values(8, 40, 5).astype(dtype)
    runs = []
    for apply in (lambda act, h: act(h, GRAPH), lambda act, h: unfused(act, h, GRAPH)):
        act = make(kind, shift, p, dtype).train(training)
        h = Tensor(values(1, 40, 5).astype(dtype), requires_grad=True)
        out = apply(act, h)
        out.backward(g)
        runs.append([out.data, h.grad, *(parameter.grad for parameter in act.parameters())])
    tolerance = 1e-13 if dtype == np.float64 else 1e-5
    for a, b in zip(*runs):
        assert a.dtype == dtype
        if kind == "elu" or b.ndim == 1:
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(a, b)


@every_way
def test_gradients_agree_with_finite_differences(kind, shift, p):
    act = make(kind, shift, p, np.float64)
    for _ in range(2):
        gradcheck(lambda x, *_: act(x, GRAPH), [values(1, 40, 5), *act.parameters()])
        act.eval()


@every_way
def test_only_what_someone_needs_is_computed(kind, shift, p):
    """Each parameter by itself, and x by itself, have the gradient that they have together."""
    act = make(kind, shift, p, np.float64)
    x, g = Tensor(values(1, 40, 5), requires_grad=True), values(8, 40, 5)
    leaves = [x, *act.parameters()]
    act(x, GRAPH).backward(g)
    expected = [leaf.grad for leaf in leaves]
    for leaf, together in zip(leaves, expected):
        for other in leaves:
            other.requires_grad, other.grad = other is leaf, None
        act(x, GRAPH).backward(g)
        np.testing.assert_array_equal(leaf.grad, together)
        assert all(other.grad is None for other in leaves if other is not leaf)


KEPT = {("identity", "plain"): "", ("identity", "norm"): "x", ("relu", "plain"): "out", ("relu", "bias"): "out", ("relu", "norm"): "x out",
        ("elu", "bias"): "x", ("elu", "norm"): "x"}  # fmt: skip


@pytest.mark.parametrize(("kind", "shift"), KEPT)
def test_what_is_kept(kind, shift):
    act, x = make(kind, shift, 0.4, np.float64), Tensor(values(1, 40, 5), requires_grad=True)
    out = act(x, GRAPH)
    large = [r for r in out.node.residuals if isinstance(r, np.ndarray) and r.size > 40]
    assert {id(r) for r in large} == {id({"x": x, "out": out}[name].data) for name in KEPT[kind, shift].split()}
    with no_grad():
        assert act(x, GRAPH).node is None


@pytest.mark.parametrize("shift", ["plain", "norm"])
def test_a_gradient_is_overwritten_where_nobody_else_has_it(shift, monkeypatch):
    seen, backward = [], kernels.activate_backward

    def recorded(g, dx=None, **options):
        if dx is not None:
            seen.append(dx is g)
        return backward(g, dx=dx, **options)

    monkeypatch.setattr(kernels, "activate_backward", recorded)
    act, g, w = make("relu", shift, 0.4, np.float64), values(8, 40, 5), values(9, 5, 5)

    def gradients(use):
        x = Tensor(values(1, 40, 5), requires_grad=True)
        out = use(act(x, GRAPH))
        seed = g.copy()
        out.backward(seed)
        assert np.array_equal(seed, g)  # the caller's gradient
        return x.grad

    unshared = gradients(lambda h: h @ w)
    assert seen == [True]
    other = Tensor(np.zeros((40, 5)), requires_grad=True)
    shared = gradients(lambda h: (h + other) @ w)  # the sum's gradient is h's and other's
    assert seen == [True, False]
    np.testing.assert_array_equal(unshared, shared)
    np.testing.assert_allclose(other.grad, g @ w.T, rtol=1e-12)
    np.testing.assert_array_equal(gradients(lambda h: h * 1.0), gradients(lambda h: h))
    assert seen[-1] is False


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_ranks_agree_with_one(n_ranks):
    x, g = values(1, 40, 5), values(8, 40, 5)

    def work(comm):
        is_local = np.arange(40) % comm.size == comm.rank
        act, h = make("relu", "norm", 0.4, np.float64), Tensor(x[is_local], requires_grad=True)
        out = act(h, SimpleNamespace(dst_ids=np.flatnonzero(is_local), comm=comm))
        out.backward(g[is_local])
        whole = np.zeros((2, 40, 5))
        whole[:, is_local] = out.data, h.grad
        return comm.allreduce(whole), comm.allreduce(np.stack([p.grad for p in act.parameters()])), act.norm.running_var

    expected = threads.run(1, work)[0]
    for actual in threads.run(n_ranks, work):
        for a, b in zip(actual, expected):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_its_parts_are_modules():
    act = nn.Activation(5, batch_norm=True, dropout=0.5, rng=nn.Random(0))
    assert act.bias is None and list(act.state_dict()) == ["norm.gamma", "norm.beta", "norm.running_mean", "norm.running_var"]
    assert list(nn.Activation(5, rng=nn.Random(0)).state_dict()) == ["bias"]
    x = np.abs(values(1, 40, 5)).astype(np.float32) + 9
    act = nn.Activation(5, dropout=0.5, rng=nn.Random(0))
    assert 0.3 < (act(Tensor(x), GRAPH).data == 0).mean() < 0.7
    np.testing.assert_array_equal(act.eval()(Tensor(x), GRAPH).data, x)


def test_nodes_of_another_type_drop_otherwise():
    act = nn.Activation(5, dropout=0.5, rng=nn.Random(0))
    x = Tensor(np.ones((40, 5), np.float32))
    paper = SimpleNamespace(**vars(GRAPH), node_type="paper")
    assert (act(x, paper).data != act(x, GRAPH).data).any()
    np.testing.assert_array_equal(act(x, paper).data, act.dropout(x, GRAPH.dst_ids, "paper").data)


def test_bad_use_is_refused():
    with pytest.raises(ConfigError, match="'tanh' .*identity, relu, elu"):
        nn.Activation(5, "tanh", rng=nn.Random(0))
    with pytest.raises(ConfigError, match="1.5"):
        nn.Activation(5, dropout=1.5, rng=nn.Random(0))
    for batch_norm in (True, False):
        act = nn.Activation(5, batch_norm=batch_norm, rng=nn.Random(0))
        with pytest.raises(ShapeError, match=r"\(40, 4\)"):
            act(Tensor(values(1, 40, 4).astype(np.float32)), GRAPH)
        with pytest.raises(ShapeError, match="float32"):
            act(Tensor(values(1, 40, 5)), GRAPH)

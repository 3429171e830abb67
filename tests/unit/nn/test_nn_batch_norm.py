"""Batch norm: the plain formula, finite differences, and the same result for any number of ranks."""

import numpy as np
import pytest

from sarlite import Graph, Trainer, nn, optim
from sarlite.comm import Solo
from sarlite.comm.threads import run
from sarlite.errors import ConfigError, ShapeError
from sarlite.models import GIN
from sarlite.nn import BatchNorm, Module, exact_moments
from sarlite.nn.norm import merge_moments
from sarlite.tape import Tensor, gradcheck, no_grad, ops
from sarlite.tasks.node_task import NodeTask

RNG = np.random.default_rng(3)
X, G = RNG.normal(2.0, 3.0, (12, 5)), RNG.standard_normal((12, 5))
GAMMA, BETA = RNG.uniform(0.5, 2, 5), RNG.standard_normal(5)

# where each rank's rows end; equal neighbours make ranks without rows
SPLITS = {1: [], 2: [7], 3: [1, 1], 4: [0, 5, 5], 5: [2, 3, 12, 12]}


def make(dtype=np.float64, **options):
    norm = BatchNorm(5, dtype=dtype, **options)
    norm.gamma.data[...], norm.beta.data[...] = GAMMA, BETA
    return norm


def plain(x, eps=1e-5):
    return (x - x.mean(0)) / np.sqrt(x.var(0) + eps) * GAMMA + BETA


def on_ranks(n, x=X, g=G, dtype=np.float64, steps=1):
    """Run batch norm with the rows of x spread over n ranks; return the gathered results of all ranks."""
    bounds = [0, *SPLITS[n], len(x)]

    def one(comm):
        part = slice(bounds[comm.rank], bounds[comm.rank + 1])
        norm = make(dtype)
        for _ in range(steps):
            h = Tensor(x[part].astype(dtype), requires_grad=True)
            out = norm(h, comm)
        out.backward(g[part].astype(dtype))
        return out.data, h.grad, norm.gamma.grad, norm.beta.grad, norm.running_mean, norm.running_var

    out, dx, dgamma, dbeta, running_mean, running_var = zip(*run(n, one))
    assert all(a.dtype == dtype for a in (*out, *dx, *dgamma, *dbeta))
    for stats in (running_mean, running_var):
        assert all((s == stats[0]).all() for s in stats)  # the same bits on every rank
    return np.concatenate(out), np.concatenate(dx), sum(dgamma), sum(dbeta), running_mean[0], running_var[0]


def test_batch_norm_is_the_plain_formula():
    np.testing.assert_allclose(make()(Tensor(X), Solo()).data, plain(X), rtol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_nothing_is_left_of_constant_columns(n):
    """Else a relu of their rounding errors would differ with the number of ranks."""
    out = on_ranks(n, x=np.tile(X[0], (12, 1)))[0]
    np.testing.assert_array_equal(out, np.tile(BETA, (12, 1)))


def test_gradients_agree_with_finite_differences():
    norm = make()
    gradcheck(lambda x, *_: norm(x, Solo()), [X, *norm.parameters()])
    norm.eval()
    gradcheck(lambda x, *_: norm(x, Solo()), [X, *norm.parameters()])


@pytest.mark.parametrize("n", SPLITS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_ranks_agree_with_one(n, dtype, tolerance):
    for actual, expected in zip(on_ranks(n, dtype=dtype, steps=3), on_ranks(1, steps=3)):
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def test_running_statistics_follow_the_steps():
    norm = make(momentum=0.25)
    for k in range(2):
        norm(Tensor(X + k), Solo())
    mean, var = X.mean(0), X.var(0, ddof=1)
    np.testing.assert_allclose(norm.running_mean, 0.75 * 0.25 * mean + 0.25 * (mean + 1), rtol=1e-12)
    np.testing.assert_allclose(norm.running_var, 0.75 * (0.75 + 0.25 * var) + 0.25 * var, rtol=1e-12)
    before = norm.state_dict()
    out = norm.eval()(Tensor(X), None).data  # no communicator: nothing may be communicated
    np.testing.assert_allclose(out, (X - norm.running_mean) / np.sqrt(norm.running_var + 1e-5) * GAMMA + BETA, rtol=1e-12)
    assert all((before[name] == array).all() for name, array in norm.state_dict().items())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_column_without_variance_keeps_its_running_variance(dtype):
    """In `eval` the column stays near beta while its mean moves; 1 / sqrt(eps) would enlarge the move.

    The same holds with exact moments.
    """
    norm, rows = make(dtype), X.astype(dtype)
    for k in range(60):
        rows[:, 1], rows[:, 3] = 1 + 0.01 * k, 0
        rows[::2, 1] = np.nextafter(rows[::2, 1], dtype(9))
        norm(Tensor(rows), Solo())
    np.testing.assert_array_equal(norm.running_var[[1, 3]], 1)
    np.testing.assert_allclose(norm.running_var[[0, 2, 4]], X.var(0, ddof=1)[[0, 2, 4]], rtol=1e-2)
    out = norm.eval()(Tensor(rows), Solo()).data
    np.testing.assert_allclose(out[:, [1, 3]], np.broadcast_to(BETA[[1, 3]], (len(X), 2)), atol=0.1 * np.abs(GAMMA).max())
    exact_moments(norm, lambda: norm(Tensor(rows), Solo()))
    np.testing.assert_array_equal(norm.running_var[[1, 3]], 1)


def test_gin_evaluates_as_it_trains_where_all_nodes_are_alike():
    """The graph is a ring of equal nodes, whose columns have no variance: training and evaluation give similar outputs."""
    n, rng = 60, nn.Random(0)
    labels = np.random.default_rng(2).standard_normal((n, 1)).astype(np.float32) * 15 + 20
    trainer = Trainer(Graph.from_edges(np.arange(n), (np.arange(n) + 1) % n, undirected=True), GIN(3, 1, dropout=0.0, rng=rng),
                      np.ones((n, 3), np.float32), labels, slice(None), rng=rng, task=NodeTask("regress"),
                      optimizer=lambda flat: optim.Adam(flat, 0.01))
    for _ in range(100):
        loss = trainer.step()
    np.testing.assert_allclose(trainer.evaluate()["train_rmse"], loss**0.5, rtol=0.01)


def test_large_mean_does_not_cancel():
    """In float32, E[x^2] - mean^2 would lose every digit of a variance of 1 beside a mean of 1e4."""
    x = (RNG.standard_normal((12, 5)) + 1e4).astype(np.float32)
    exact = x.astype(np.float64)
    for n in SPLITS:
        out, *_, var = on_ranks(n, x, dtype=np.float32)
        np.testing.assert_allclose(var, 0.9 + 0.1 * exact.var(0, ddof=1), rtol=1e-9)
        np.testing.assert_allclose(out, plain(exact), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 1])
def test_one_row_or_none(rows):
    norm = make()
    x = Tensor(X[:rows], requires_grad=True)
    out = norm(x, Solo())
    out.backward(G[:rows])
    np.testing.assert_allclose(out.data, np.broadcast_to(BETA, (rows, 5)), rtol=1e-12)
    np.testing.assert_allclose(x.grad, np.zeros((rows, 5)), atol=1e-9)
    assert np.isfinite(norm.running_var).all()


def test_constant_x_needs_no_allreduce():
    """If x has no gradient, batch norm communicates only in the forward pass, on every rank."""

    def one(comm):
        norm = make()
        norm(Tensor(X[comm.rank * 5 : comm.rank * 5 + 5]), comm).backward(np.ones((5, 5)))
        return norm.beta.grad

    assert all((grad == 5).all() for grad in run(2, one))


def test_only_x_and_moments_are_kept():
    norm = make()
    h = Tensor(X, requires_grad=True)
    residual_arrays = [r for r in norm(h, Solo()).node.residuals if isinstance(r, np.ndarray)]
    assert any(r is h.data for r in residual_arrays) and any(r is norm.gamma.data for r in residual_arrays)
    assert all(r is h.data or r.size == 5 for r in residual_arrays)
    with no_grad():
        assert norm(h, Solo()).node is None


class Layers(Module):
    """Two norms in a row, or one norm that is called twice."""

    def __init__(self, shared=False):
        self.one = make()
        self.two = self.one if shared else make()

    def __call__(self, x, comm):
        return self.two(self.one(x, comm).tanh(), comm)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("n", SPLITS)
def test_exact_moments_are_those_of_all_rows(n, shared):
    bounds, expected = [0, *SPLITS[n], len(X)], []

    def one(comm):
        part, model, passes = Tensor(X[bounds[comm.rank] : bounds[comm.rank + 1]]), Layers(shared), []
        model(part, comm)  # the averages follow a step, and are forgotten
        logits = exact_moments(model.eval(), lambda: passes.append(model(part, comm)) or passes[-1])
        again = model(part, None)  # with the averages, and no communicator
        assert (again.data == logits.data).all() and len(passes) == 1 + shared
        return logits.data, [model.one.running_mean, model.one.running_var, model.two.running_mean, model.two.running_var]

    logits, moments = zip(*run(n, one))
    assert all((a == b).all() for rank_moments in moments for a, b in zip(rank_moments, moments[0]))
    h = X
    for k in range(2):
        mean, var = h.mean(0), h.var(0, ddof=1)
        if not shared:
            np.testing.assert_allclose(moments[0][2 * k : 2 * k + 2], [mean, var], rtol=1e-12)
        h = (h - mean) / np.sqrt(var + 1e-5) * GAMMA + BETA
        expected.append(h)
        h = np.tanh(h)
    if not shared:
        np.testing.assert_allclose(np.concatenate(logits), expected[1], rtol=1e-11, atol=1e-12)
    else:
        both = np.concatenate([X, np.tanh(expected[0])])
        np.testing.assert_allclose(moments[0][:2], [both.mean(0), both.var(0, ddof=1)], rtol=1e-12)


def test_exact_moments_end_with_the_pass():
    model = Layers().eval()
    with pytest.raises(ZeroDivisionError):
        exact_moments(model, lambda: [model(Tensor(X), Solo()), 1 / 0])
    before = model.state_dict()
    model(Tensor(X + 1), None)
    assert all((before[name] == array).all() for name, array in model.state_dict().items())
    exact_moments(model, lambda: model(Tensor(X[:0]), Solo()))
    assert all((before[name] == array).all() for name, array in model.state_dict().items())  # no rows leave the averages as they are
    with pytest.raises(ConfigError, match="must be a communicator"):
        exact_moments(model, lambda: model(Tensor(X), None))


def test_merge_is_chans():
    parts = np.split(X, [1, 1, 8])
    moments = [(len(p), p.mean(0) if len(p) else np.zeros(5), ((p - p.mean(0)) ** 2).sum(0) if len(p) else np.zeros(5)) for p in parts]
    count, mean, m2 = merge_moments(moments)
    assert count == 12
    np.testing.assert_allclose(mean, X.mean(0), rtol=1e-13)
    np.testing.assert_allclose(m2 / 12, X.var(0), rtol=1e-13)


def test_bad_use_is_refused():
    with pytest.raises(ShapeError, match=r"\(12, 4\).*\(n, 5\)"):
        make()(Tensor(X[:, :4]), Solo())
    with pytest.raises(ShapeError, match="float32"):
        make()(Tensor(X.astype(np.float32)), Solo())
    message = Tensor(X)
    message.volatile = True
    with pytest.raises(RuntimeError, match="message"):
        make()(message, Solo())


@pytest.mark.parametrize("options, message", [
    ({"momentum": 1.5}, r"momentum is 1\.5, but must be in \[0, 1\]"), ({"momentum": -0.1}, r"momentum is -0\.1"),
    ({"momentum": np.nan}, "momentum is nan"), ({"eps": -1e-5}, "eps is -1e-05"), ({"eps": np.inf}, "eps is inf"),
])  # fmt: skip
def test_constants_of_norms_are_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        BatchNorm(3, **options)
    if "eps" in options:
        with pytest.raises(ConfigError, match=message):
            nn.LayerNorm(3, **options)
        with pytest.raises(ConfigError, match=message):
            ops.layer_norm(np.ones((2, 3)), np.ones(3), np.zeros(3), **options)


def test_momentum_of_one_keeps_the_last_batch():
    norm = BatchNorm(1, momentum=1.0, dtype=np.float64)
    norm(Tensor(np.array([[1.0], [5.0]]), placement="rows"), Solo())
    assert norm.running_mean.tolist() == [3.0] and norm.running_var.tolist() == [8.0]

"""Transposes that the sampling thread makes ahead for the backward pass, and the gradient of a layer's destinations."""

import threading
from collections import Counter

import numpy as np
import pytest

from sarlite import Tensor, kernels, nn, optim
from sarlite.comm import threads
from sarlite.models import GAT, SAGE
from sarlite.tape import ops
from sarlite.tape.primitives import PRIMITIVES
from sarlite.train.step import TrainingStep
from tests.helpers.minibatch import batching as b

pytestmark = pytest.mark.timeout(60)
LAYERS, AHEAD = 3, "sarlite-sample"
MODELS = {"gat": lambda rng: GAT(b.N_IN, b.N_OUT, layers=LAYERS, hidden=2, heads=2, rng=rng),
          "sage": lambda rng: SAGE(b.N_IN, b.N_OUT, layers=LAYERS, hidden=4, rng=rng)}


@pytest.fixture
def makers(monkeypatch):
    """Names of the threads that made transposes, in order."""
    collected, transpose = [], kernels.transpose

    def noted(*args, **options):
        collected.append(threading.current_thread().name)
        return transpose(*args, **options)

    monkeypatch.setattr(kernels, "transpose", noted)
    return collected


def epoch(loader, step):
    for batch in loader:
        step(batch.with_input(batch.x.astype(np.float32), batch.rows, batch.n_global))


def made(graph, name, sample_ahead=1):
    """Return a function that trains an epoch, and the loader."""
    rng = nn.Random(0)
    model = MODELS[name](rng)
    loader = b.loader_of(graph, fanouts=(3, 4, 5), sample_ahead=sample_ahead)
    step = TrainingStep(model, optim.Adam(nn.flatten(model), 0.01), rng, graph.comm)
    return lambda: epoch(loader, step), loader


@pytest.mark.parametrize("name, n_asked", [("gat", LAYERS), ("sage", LAYERS - 1)])
def test_transposes_that_backward_asked_for_are_made_ahead(name, n_asked, makers):
    """Batch 0 is made before one was used, and batch 1 may be. GraphSAGE wants no gradient of features, so none of its first layer."""
    train, loader = made(b.whole(), name)
    makers.clear()  # the graph was sorted by transposes, too
    train()
    result = Counter(makers)
    local = result.pop(threading.current_thread().name)
    assert local in (n_asked, 2 * n_asked) and result == {AHEAD: len(loader) * n_asked - local} and len(loader) > 3
    makers.clear()
    train()
    assert makers == [AHEAD] * n_asked * len(loader)


def test_without_a_backward_pass_no_transpose_is_made(makers):
    loader = b.loader_of(b.whole())
    makers.clear()
    for _ in range(2):
        for batch in loader:
            assert batch.layers(2)[0].n_edges
    assert makers == []


@pytest.mark.parametrize("mode, prefetch", [("sar", 1), ("oneshot", 0)])
def test_of_several_ranks_every_block_and_its_halves(mode, prefetch, makers):
    """With prefetch, attention's backward takes the local block by halves."""
    whole = b.whole()

    def work(comm):
        train, _ = made(whole.shard(comm, b.parts(2), mode=mode, prefetch=prefetch), "gat")
        train()
        comm.allgather(None)
        if comm.rank == 0:
            assert set(makers) > {AHEAD}
            makers.clear()
        comm.allgather(None)
        train()

    threads.run(2, work)
    assert set(makers) == {AHEAD}


@pytest.mark.parametrize("first", [True, False])
def test_the_gradient_of_destinations_is_that_of_the_first_rows(first):
    """In whichever order it meets the gradient of all rows."""
    graph = next(iter(b.loader_of(b.whole()))).layers(2)[0]
    x, v, w = np.random.default_rng(0).standard_normal((3, graph.n_src, 4))

    def found(rows):
        h = Tensor(x, requires_grad=True)
        y = h * 1.0
        terms = [lambda: ops.sum(rows(y) * v[: graph.n_dst]), lambda: ops.sum(y * w)]
        a, c = (term() for term in (terms if first else terms[::-1]))
        (a + c).backward()
        return h.grad.tobytes()

    assert graph.n_dst < graph.n_src and found(graph.dst) == found(lambda y: y[: graph.n_dst])
    assert np.array_equal(graph.dst(x), x[: graph.n_dst]) and graph.dst(Tensor(x)).shape == (graph.n_dst, 4)


def test_the_gradient_of_destinations_takes_no_array_of_all_rows():
    total, g = np.ones((5, 2), np.float32), np.full((3, 2), 2, np.float32)
    (d,) = PRIMITIVES["getitem"].vjp(g, (True,), ((5, 2),), slice(0, 3))
    d.add_to(total)
    assert total.tolist() == [[3, 3]] * 3 + [[1, 1]] * 2 and d.array().tolist() == [[2, 2]] * 3 + [[0, 0]] * 2

"""Minibatches with row_dtype="bfloat16": exact ones are one rank's, caches store and push half the bytes (threads as ranks)."""

import numpy as np
import pytest

from sarlite import Graph, Tensor, kernels, nn
from sarlite.comm import Solo, threads
from sarlite.errors import ShapeError
from sarlite.minibatch import HEC, NeighborLoader, message_flow
from sarlite.models import GAT, GCN, SAGE
from sarlite.tape import ops
from tests.helpers.graph.strategies import random_edges, values

pytestmark = pytest.mark.timeout(60)

N, N_IN, N_OUT = 90, 8, 4
EDGES = random_edges(N, 700, seed=3)
X, LABELS = values(1, N, N_IN).astype(np.float32), np.random.default_rng(2).integers(0, N_OUT, N)
WHOLE = Graph.from_edges(*EDGES, self_loops=True)
MODELS = {"gcn": (GCN, {}), "sage": (SAGE, {"batch_norm": True}), "gat": (GAT, {"heads": 2, "attention_dropout": 0.3, "residual": True})}
UNLIMITED = {"lines": 10**6, "limit": 10**6, "life": 10**6}


def sharded(comm, rows="bfloat16", **options):
    return WHOLE.shard(comm, np.random.default_rng(comm.size).integers(0, comm.size, N), row_dtype=rows, **options)


def loader_of(graph, **options):
    options = {"fanouts": (3, 4), "batch_size": 20, "seed": 3, **options}
    return NeighborLoader(graph, X[graph.src_ids], LABELS[graph.dst_ids], slice(None), **options)


def model_of(name, **options):
    cls, more = MODELS[name]
    rng = nn.Random(5)
    rng.step = 3
    return cls(N_IN, N_OUT, layers=2, hidden=8, rng=rng, dtype=np.float32, **{"dropout": 0.4, **more, **options})


def passes(graph, name, batches):
    """By batch the gradients of all ranks, and the logits, of rows that no rank has twice, by node."""
    collected = []
    for batch in batches:
        model = model_of(name)
        flat = nn.flatten(model)
        logits = model(batch, batch.x)
        ops.cross_entropy(logits, batch.labels, batch.rows, batch.n_global).backward()
        graph.comm.allreduce(flat.grad)
        rows = np.zeros((N, N_OUT), np.float32)
        rows[batch.dst_ids] = logits.data
        collected.append((flat.grad.copy(), graph.comm.allreduce(rows)))
    return collected


def distance(actual, expected):
    return max(np.linalg.norm(a - b) / np.linalg.norm(b) for pair in zip(actual, expected, strict=True) for a, b in zip(*pair))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("n_ranks, mode, prefetch", [(2, "sar", 1), (3, "sa", 0), (3, "oneshot", 0), (2, "broadcast", 1)])
@pytest.mark.parametrize("name", MODELS)
def test_exact_batches_are_one_ranks(name, n_ranks, mode, prefetch):
    def work(comm, rows="bfloat16"):
        graph = sharded(comm, rows, mode=mode, prefetch=prefetch)
        return passes(graph, name, loader_of(graph))

    one, wide = work(Solo()), work(Solo(), "float32")
    for of_rank in threads.run(n_ranks, work):
        assert distance(of_rank, one) < 1e-5
    assert 1e-4 < distance(one, wide) < 0.05


@pytest.mark.parametrize("name", MODELS)
def test_message_flow_is_one_ranks(name):
    def work(comm, rows="bfloat16"):
        graph = sharded(comm, rows)
        rows = np.flatnonzero(graph.dst_ids % 3 == 0)
        return passes(graph, name, [message_flow(graph, rows, 2, X[graph.src_ids], LABELS[graph.dst_ids])])

    one = work(Solo())
    assert distance(threads.run(3, work)[0], one) < 1e-5
    assert distance(work(Solo(), "float32"), one) > 1e-4


@pytest.mark.parametrize("push", ["paper", "demand"])
def test_caches_store_and_push_half_the_bytes(push):
    def work(comm, rows):
        graph = sharded(comm, rows)
        loader = loader_of(graph, remote=HEC(push=push, delay=1, features="cache", **UNLIMITED))
        passes(graph, "sage", loader)
        return loader.counts, loader.state()

    for (narrow, state), (wide, before) in zip(threads.run(2, work, "bfloat16"), threads.run(2, work, "float32"), strict=True):
        assert narrow["rows_pushed"] == wide["rows_pushed"] and min(narrow["rows_pushed"]) > 0
        assert wide["bytes_pushed"] - narrow["bytes_pushed"] == sum(narrow["rows_pushed"]) * 8 * 2  # width, bytes less
        tables = [name for name in state if name.endswith("rows")]
        assert tables and all(state[name].dtype == np.uint16 for name in tables)
        assert all(2 * state[name].nbytes == before[name].nbytes > 0 for name in tables)


@pytest.mark.parametrize("push", ["paper", "demand"])
@pytest.mark.parametrize("features", ["cache", "keep"])
def test_rows_of_a_cache_are_those_of_their_owner_rounded(features, push):
    """Cached rows of hidden layers are rounded; cached rows of features are not."""
    def work(comm):
        delay = 1 if push == "demand" else 0
        loader = loader_of(sharded(comm), fanouts=(-1,), batch_size=N, remote=HEC(push=push, features=features, delay=delay, **UNLIMITED))
        n = 0
        for _ in range(3):
            for batch in loader:
                g, h = batch.layers(1)[0].enter(batch.x)
                behind = X[g.src_ids[batch.n_src:]]
                if features == "cache":
                    behind = kernels.widen(kernels.narrow(behind))
                np.testing.assert_array_equal(h.data[batch.n_src:], behind)
                n += len(behind)
        return n

    assert min(threads.run(3, work)) > 0


@pytest.mark.parametrize("name", MODELS)
def test_a_cache_without_delay_and_limits_is_near_the_full_batch(name):
    """The tolerance exceeds 1e-5, because a cached product with W is rounded before the sum."""
    def work(comm):
        graph = sharded(comm)
        loader = loader_of(graph, fanouts=(-1, -1), batch_size=N, remote=HEC(delay=0, **UNLIMITED))
        (batch,), model = loader, model_of(name, dropout=0)
        logits, full = model.eval()(batch, batch.x).data, model(graph, Tensor(X[graph.src_ids])).data
        ours = np.array([np.flatnonzero(graph.dst_ids == node)[0] for node in batch.dst_ids])
        return np.linalg.norm(logits - full[ours]) / np.linalg.norm(full)

    assert max(threads.run(3, work)) < 0.01


@pytest.mark.parametrize("width", [3, 4])
def test_a_miss_among_lines_is_refused(width):
    x = np.zeros((5, width), np.uint16)
    for index in ([0, -1], [5]):
        with pytest.raises(ShapeError, match="index"):
            kernels.gather_rows(x, np.array(index, np.int32), np.empty((len(index), width), np.uint16))


def test_the_command_trains_in_batches_on_any_number_of_ranks(tmp_path, here):
    def losses(name, *flags):
        flags = ("--rows", "bfloat16", "--batch-size", 16, "--fanouts", "3,3", "--layers", 2, "--epochs", 3, *flags)
        return [epoch["loss"] for epoch in here(tmp_path / name, *flags)]

    two = losses("two", "--ranks", 2, "--partition", "random")
    np.testing.assert_allclose(two, losses("one"), rtol=1e-4)


def test_a_run_with_a_cache_goes_on_with_its_rows(tmp_path, here):
    flags = ("--rows", "bfloat16", "--batch-size", 16, "--fanouts", "3,3", "--layers", 2, "--remote", "hec", "--ranks", 2)
    whole = here(tmp_path / "whole", *flags, "--epochs", 3)
    here(tmp_path / "half", *flags, "--epochs", 2)
    result = here(tmp_path / "rest", *flags, "--resume", tmp_path / "half" / "checkpoint.safetensors", "--epochs", 3)
    assert result[-1]["loss"] == whole[-1]["loss"]

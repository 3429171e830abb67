"""Relations with row_dtype="bfloat16": N ranks give the result of one, in half the bytes (threads as ranks)."""

import numpy as np
import pytest

from sarlite import HeteroGraph, Tensor, fn, kernels, nn
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError
from sarlite.models import RGAT, RGCN
from sarlite.tape import ops
from tests.helpers.graph.relational_graphs import LABELS, N_CLASSES, N_IN, TRAIN, X, make
from tests.helpers.graph.relational_runs import SPEC, relational_run

pytestmark = pytest.mark.timeout(60)

MODELS = {"first": (RGCN, {"hidden": 6}), "inside": (RGCN, {"hidden": 6, "evaluation": "inside"}),
          "rgat": (RGAT, {"hidden": 3, "heads": 2, "out_heads": 2, "attention_dropout": 0.3})}
NARROW = {"row_dtype": "bfloat16"}


def step(graph, name):
    """Return logits of all ranks by node, gradients of replicated parameters, and gradients of each type's learned rows."""
    rng, nodes = nn.Random(5), graph.of("paper")
    rng.step = 1
    cls, options = MODELS[name]
    model = cls({"paper": N_IN}, N_CLASSES, nodes, dropout=0.4, rng=rng, dtype=np.float32, **options)
    flat, ids, comm = nn.flatten(model), nodes.node_ids, graph.comm
    logits = model(nodes, {"paper": Tensor(X["paper"][ids].astype(np.float32))})
    ops.cross_entropy(logits, LABELS[ids], np.flatnonzero(TRAIN[ids]), TRAIN.sum()).backward()
    rows = np.zeros((len(LABELS), N_CLASSES), np.float32)
    rows[ids] = logits.data
    results = {"logits": comm.allreduce(rows), "gradient": comm.allreduce(flat.grad)}
    for kind, p in model.named_parameters():
        if p.ids is not None:
            rows = np.zeros((100, *p.shape[1:]), np.float32)
            rows[p.ids] = p.grad
            results[kind] = comm.allreduce(rows)
    return {kind: array.copy() for kind, array in results.items()}


def distance(actual, expected):
    return max(np.linalg.norm(actual[kind] - array) / max(np.linalg.norm(array), 1e-9) for kind, array in expected.items())


@pytest.mark.parametrize("n_ranks, mode, prefetch, parts", [(2, "sar", 1, "metis"), (3, "sa", 0, "uneven"), (3, "oneshot", 0, "random"),
                                                            (2, "broadcast", 0, "random")])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_one_ranks(name, n_ranks, mode, prefetch, parts):
    one, wide = step(make(**NARROW), name), step(make(), name)
    ranks = threads.run(n_ranks, lambda comm: step(make(comm, parts, mode=mode, prefetch=prefetch, **NARROW), name))
    assert max(distance(each, one) for each in ranks) < 1e-5
    assert 1e-4 < distance(one, wide) < 0.05


def whole(comm, rows):
    src = np.arange(40) % 20
    return HeteroGraph.from_edges({("a", "r", "b"): (src, src[::-1]), ("a", "s", "b"): (src, (src * 7) % 20)}, {"a": 20, "b": 20},
                                  comm=comm, parts="random", row_dtype=rows)


@pytest.mark.parametrize("evaluation", ["inside", "first"])
def test_half_the_bytes_travel(evaluation):
    def sent(comm, rows):
        graph = whole(comm, rows)
        ids = graph.node_ids["a"]
        x, w = Tensor(np.ones((len(ids), 8), np.float32), requires_grad=True), Tensor(np.ones((8, 4), np.float32), requires_grad=True)
        graph.aggregate({relation: fn.linear(x, w) for relation in graph.relations}, "mean", evaluation=evaluation)["b"].sum().backward()
        return graph.profile.sent_bytes["forward_fetch"], graph.profile.sent_bytes["backward_fetch"]

    for narrow, wide in zip(threads.run(2, sent, "bfloat16"), threads.run(2, sent, "float32"), strict=True):
        assert wide[0] > 0 and [2 * n for n in narrow] == [*wide]


@pytest.mark.parametrize("reducer", ["sum", "max"])
def test_a_tensor_is_rounded_once_for_all_relations(reducer):
    x = np.random.default_rng(0).standard_normal((20, 5), np.float32)
    rounded = kernels.widen(kernels.narrow(x))

    def sums(rows, x):
        graph = whole(Solo(), rows)
        return graph.aggregate(dict.fromkeys(graph.relations, fn.copy_src(Tensor(x))), reducer)["b"].data

    np.testing.assert_array_equal(sums("bfloat16", x), sums("float32", rounded))


def test_what_has_no_narrow_rows_is_refused_by_name():
    graph, x = whole(Solo(), "bfloat16"), Tensor(np.ones((20, 2), np.float32))
    first, second = graph.relations
    with pytest.raises(ConfigError, match="rows bfloat16: .*Custom .*narrow rows"):
        graph.aggregate(dict.fromkeys(graph.relations, fn.message(lambda src, dst, edge: src["x"], {"x": x}, {}, {})), "sum")
    with pytest.raises(ConfigError, match="rows bfloat16: .*float64, but must be float32"):
        graph.aggregate(dict.fromkeys(graph.relations, fn.copy_src(Tensor(np.ones((20, 2))))), "sum")
    with pytest.raises(ConfigError, match="tensor .*both as rows .*as scores"):
        z = x.reshape(20, 2, 1)
        graph.aggregate({first: fn.attend(z, x, x), second: fn.mul_edge(x, Tensor(np.ones(40, np.float32)))}, "sum")


@pytest.mark.parametrize("model", ["rgcn", "rgat"])
def test_the_command_trains_on_any_number_of_ranks(model, tmp_path):
    def losses(name, *flags):
        return [epoch["loss"] for epoch in relational_run(tmp_path / name, "--model", model, "--dtype", "float32", "--data", SPEC, *flags)]

    one = losses("one", "--rows", "bfloat16")
    np.testing.assert_allclose(losses("two", "--rows", "bfloat16", "--ranks", 2, "--partition", "random"), one, rtol=1e-4)
    assert 0 < np.abs(np.subtract(one, losses("wide"))).max() < 0.05

"""Messages that backward calls again: the values they close over are the same as in forward, or are refused by name."""

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, nn
from sarlite.comm import threads
from sarlite.minibatch import message_flow
from sarlite.tape import ops
from tests.helpers.graph.piece_cases import in_small_pieces
from tests.helpers.graph.relational_graphs import CITES, EDGES, N_NODES, REVIEWS, make
from tests.helpers.graph.strategies import random_edges, values

pytestmark = pytest.mark.timeout(60)

N, GRAPH = 13, random_edges(13, 60)
LAYOUTS = [(1, "sar"), (2, "sar"), (2, "oneshot"), (3, "broadcast")]
REFUSED = "message .* does something else in backward, which calls it again, than it did in forward: "


def parts(comm, mode, **options):
    return Graph.from_edges(*GRAPH).shard(comm, np.arange(N) * comm.size // N, mode=mode, prefetch=1, **options)


class Weights:
    """Weights that messages close over."""

    def __init__(self):
        self.w = [Tensor(values(k, 4, 4), requires_grad=True) for k in range(3)]
        self.constants = [Tensor(values(9 + k, 4)) for k in range(2)]
        self.array, self.large = values(20, 4), values(21, 4, 33_000)
        self.random = nn.Random(3)
        self.dropout = nn.Dropout(0.4, self.random)
        self.k, self.cached, self.lazy, self.scale = 0, None, None, 1.5


def cached(here):
    if here.cached is None:
        here.cached = (here.w[0] * 0.5).tanh()
    return here.cached


def cached_constant(here):
    if here.cached is None:
        here.cached = (here.constants[0] * 0.5).tanh()
    return here.cached


def lazy(here):
    if here.lazy is None:
        here.lazy = nn.Parameter(values(30, 4, 4))
    return here.lazy


def change_data(here):
    here.constants[0].data = values(40, 4)


def change_in_place(here):
    here.constants[0].numpy()[:] = 3
    here.constants[0].changed()


def step(here):
    here.random.step += 1


def set_(**changes):
    def change(here):
        for name, value in changes.items():
            setattr(here, name, value)

    return change


# name: (message of the weights; what changes before backward; what is told, or None where the answer is right in every mode)
FORMS = {
    "another learnable weight": (lambda h: lambda s, d, e: (s["x"] @ h.w[h.k]).tanh(),
        set_(k=2), r"input 2 of operation 1 \(matmul\)"),
    "linear in rows": (lambda h: lambda s, d, e: s["x"] @ h.w[h.k], set_(k=1), r"input 2 of operation 1 \(matmul\)"),
    "two weights exchanged": (lambda h: lambda s, d, e: (s["x"] @ h.w[h.k]) * (d["x"] @ h.w[1 - h.k]),
        set_(k=1), "input 2 of operation 1"),
    "another constant tensor": (lambda h: lambda s, d, e: (s["x"] * h.constants[h.k]).tanh(),
        set_(k=1), r"was a tensor of shape \(4,\)"),
    "a constant where zeros hide it": (lambda h: lambda s, d, e: (d["x"] * h.constants[h.k]) * s["x"],
        set_(k=1), r"\(mul\)"),
    "another number": (lambda h: lambda s, d, e: (s["x"] * h.scale).tanh(), set_(scale=2.5), "was 1.5 and is 2.5"),
    "another array": (lambda h: lambda s, d, e: s["x"].tanh() * h.array,
        set_(array=values(5, 4)), r"was an array of shape \(4,\)"),
    "an array in place": (lambda h: lambda s, d, e: s["x"].tanh() * h.array,
        lambda h: h.array.fill(2), r"an array of shape \(4,\), for mul, was changed"),
    "another large array": (lambda h: lambda s, d, e: (s["x"] @ h.large)[:, :4].tanh(),
        set_(large=values(6, 4, 33_000)), "was an array"),
    "dropout is off": (lambda h: lambda s, d, e: h.dropout(s["x"] * 2.0, e.ids),
        lambda h: h.dropout.eval(), "operation 2 was dropout"),
    "the random step": (lambda h: lambda s, d, e: h.dropout(s["x"] * 2.0, e.ids),
        step, r"key of operation 2 \(dropout\) was \d+ and is"),
    "another operation": (lambda h: lambda s, d, e: s["x"].tanh() if h.k else s["x"].relu(),
        set_(k=1), "operation 1 was relu and is tanh"),
    "one operation more": (lambda h: lambda s, d, e: s["x"].tanh().relu() if h.k else s["x"].tanh(),
        set_(k=1), "is relu"),
    "another parameter": (lambda h: lambda s, d, e: s["x"].elu(h.scale),
        set_(scale=0.5), r"alpha of operation 1 \(elu\) was 1.5 and is 0.5"),
    "another result": (lambda h: lambda s, d, e: (s["x"].tanh(), s["x"].relu())[h.k],
        set_(k=1), "operation 2 was relu|its result"),
    "a weight cached at first use": (lambda h: lambda s, d, e: (s["x"] @ cached(h)).tanh(), set_(), None),
    "a constant cached at first use": (lambda h: lambda s, d, e: (s["x"] * cached_constant(h)).tanh(), set_(), None),
    "a parameter made at first use": (lambda h: lambda s, d, e: (s["x"] @ lazy(h)).tanh(), set_(), None),
    "a cache that is emptied": (lambda h: lambda s, d, e: (s["x"] @ cached(h)).tanh(),
        set_(cached=None), "operation 1 was matmul and is mul"),
    "a tensor made anew at each call": (lambda h: lambda s, d, e: s["x"].tanh() * Tensor(h.array), set_(), None),
}  # fmt: skip


def gradients(comm, here, x):
    """Return the gradient of x on this rank, and the gradients of the weights, summed over ranks."""
    weights = [w for w in (*here.w, here.lazy) if w is not None]
    return [x.grad, *(comm.allreduce(np.zeros(w.shape) if w.grad is None else w.grad) for w in weights)]


def run(comm, mode, form, change, reducer="sum"):
    """Return the gradients of x and of all weights; `change` is called between forward and backward."""
    here, graph = Weights(), in_small_pieces(parts(comm, mode))
    message, x = form(here), Tensor(values(8, N, 4)[graph.node_ids], requires_grad=True)
    out = graph.aggregate(message, reducer, src={"x": x}, dst={"x": x})
    change(here)
    (out * out).sum().backward()
    return gradients(comm, here, x)


@pytest.mark.sampled(31)
@pytest.mark.parametrize("n_ranks, mode", LAYOUTS)
@pytest.mark.parametrize("name", FORMS)
def test_what_changed_is_refused_or_does_not_matter(name, n_ranks, mode):
    form, change, reason = FORMS[name]
    if reason is None:
        right = threads.run(n_ranks, run, mode, form, lambda here: None)
        assert any(np.abs(d).max() > 0.01 for d in right[0][1:]) or "weight" not in name
        for grads, expected in zip(threads.run(n_ranks, run, mode, form, change), right):
            for d, wanted in zip(grads, expected, strict=True):
                np.testing.assert_array_equal(d, wanted)
    else:
        with pytest.raises(RuntimeError, match=f"(?s){REFUSED}.*{reason}"):
            threads.run(n_ranks, run, mode, form, change)


@pytest.mark.parametrize("change", [change_data, change_in_place])
@pytest.mark.parametrize("n_ranks, mode", LAYOUTS)
def test_a_captured_tensor_without_gradient_must_not_change(n_ranks, mode, change):
    for form in (lambda h: lambda s, d, e: (s["x"] * h.constants[0]).tanh(),
                 lambda h: lambda s, d, e: (s["x"] * h.constants[0].detach()[::-1]).tanh()):
        with pytest.raises(RuntimeError, match=r"'aggregate' .*changed since: .*\(4,\)"):
            threads.run(n_ranks, run, mode, form, change)


@pytest.mark.parametrize("mode", ["sar", "sa"])
def test_a_loops_variable_is_bound_by_a_default(mode):
    """The docs bind a loop's variable by a default argument; a variable that is bound late is refused."""
    def layers(comm, bound):
        here, graph = Weights(), parts(comm, mode)
        x = h = Tensor(values(8, N, 4)[graph.node_ids], requires_grad=True)
        for k in range(3):
            if bound:
                h = graph.aggregate(lambda s, d, e, w=here.w[k]: (s["h"] @ w).tanh(), "mean", src={"h": h})
            else:
                h = graph.aggregate(lambda s, d, e: (s["h"] @ here.w[k]).tanh(), "mean", src={"h": h})  # noqa: B023
        (h * h).sum().backward()
        return gradients(comm, here, x)

    def by_hand(comm):
        here, graph = Weights(), parts(comm, mode)
        x = h = Tensor(values(8, N, 4)[graph.node_ids], requires_grad=True)
        for k in range(3):
            h = graph.aggregate(fn.copy_src((h @ here.w[k]).tanh()), "mean")
        (h * h).sum().backward()
        return gradients(comm, here, x)

    for grads, expected in zip(threads.run(2, layers, True), threads.run(2, by_hand)):
        for d, wanted in zip(grads, expected, strict=True):
            np.testing.assert_allclose(d, wanted, rtol=1e-12, atol=1e-14)
    with pytest.raises(RuntimeError, match=REFUSED + r".*lambda src, dst, edge, w=w"):
        threads.run(2, layers, False)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_changed_variable_of_a_relations_message_is_refused(n_ranks):
    def work(comm, change):
        graph = make(comm, "random") if comm.size > 1 else make()
        x = {kind: Tensor(values(7, n, 5)[graph.node_ids[kind]], requires_grad=True) for kind, n in N_NODES.items()}
        weights, k = [Tensor(values(50 + i, 5, 5), requires_grad=True) for i in range(2)], 0
        messages = {relation: fn.message(lambda s, d, e: (s["x"] @ weights[k]).tanh(), {"x": x[relation[0]]})
                    for relation in (CITES, REVIEWS)}
        out = graph.aggregate(messages, "sum")["paper"]
        k = int(change)
        out.sum().backward()
        return weights[0].grad

    assert all(np.abs(d).max() > 0 for d in threads.run(n_ranks, work, False))
    with pytest.raises(RuntimeError, match=REFUSED):
        threads.run(n_ranks, work, True)


@pytest.mark.parametrize("reducer", ["sum", "mean", "max", "softmax"])
def test_layers_of_a_batch(reducer):
    graph, here = Graph.from_edges(*GRAPH), Weights()
    x = Tensor(values(8, N, 4), requires_grad=True)
    (layer,) = message_flow(graph, np.arange(0, N, 2), 1, x.data).layers(1)

    def message(s, d, e):
        value = (s["x"] @ here.w[here.k]).tanh()
        return (value.sum(-1), value) if reducer == "softmax" else value

    out = layer.aggregate(message, reducer, src={"x": x[layer.src_ids]})
    here.k = 1
    with pytest.raises(RuntimeError, match=REFUSED):
        out.sum().backward()
    assert x.grad is None


def test_a_learnable_value_of_some_rows_alone_is_refused():
    """The gradient of the value would be lost, as the probe's rows do not use it."""
    def form(here):
        def message(s, d, e):
            return s["x"] @ here.w[0] if len(s["x"]) == 1 else s["x"] @ here.w[1]

        return message

    for n_ranks, mode in LAYOUTS:
        with pytest.raises(RuntimeError, match="learnable value of shape .*some rows"):
            threads.run(n_ranks, lambda comm, mode=mode: run_whole(comm, mode, form))


def run_whole(comm, mode, form):
    here, graph = Weights(), parts(comm, mode)
    x = Tensor(values(8, N, 4)[graph.node_ids], requires_grad=True)
    graph.aggregate(form(here), "sum", src={"x": x}).sum().backward()


def test_a_learnable_value_of_other_rows_has_its_gradient():
    """Rows of zeros do not use the value, the probe's other rows do."""
    here, graph = Weights(), Graph.from_edges(*GRAPH)
    x = Tensor(np.abs(values(8, N, 4)) + 1, requires_grad=True)
    message = lambda s, d, e: s["x"] @ here.w[1] if s["x"].data.any() else s["x"] @ here.w[0]  # noqa: E731
    graph.aggregate(message, "sum", src={"x": x}).sum().backward()
    degree = np.bincount(GRAPH.src, minlength=N)
    np.testing.assert_allclose(here.w[1].grad, np.outer(degree @ x.data, np.ones(4)), rtol=1e-12)


def test_a_second_backward_checks_again():
    here, graph = Weights(), Graph.from_edges(*GRAPH)
    x = Tensor(values(8, N, 4), requires_grad=True)
    out = graph.aggregate(lambda s, d, e: (s["x"] @ here.w[here.k]).tanh(), "sum", src={"x": x}).sum()
    out.backward(retain_graph=True)
    here.k = 1
    with pytest.raises(RuntimeError, match=REFUSED):
        out.backward()


def test_rows_of_a_table_are_told_by_the_row():
    """A message captures a table and takes rows of it by number: no row is copied if the table is a tensor."""
    here, graph = Weights(), Graph.from_edges(*GRAPH)
    table, kinds = Tensor(values(3, 5, 4), requires_grad=True), np.arange(N) % 5
    out = graph.aggregate(lambda s, d, e: ops.take(table, s["kind"]) * here.scale, "sum", src={"kind": kinds})
    out.sum().backward()
    np.testing.assert_allclose(table.grad[:, 0], 1.5 * np.bincount(kinds[GRAPH.src], minlength=5))


def test_edges_have_features():
    """Edge features of `fn.attend` are a message on one graph, too, and are checked alike."""
    graph, w = make(), Tensor(values(52, 1, 2), requires_grad=True)
    n = len(EDGES[CITES][0])
    x = Tensor(values(7, N_NODES["paper"], 4), requires_grad=True)
    z = x.reshape(-1, 2, 2)
    out = graph.aggregate({CITES: fn.attend(z, x[:, :2], x[:, 2:], edge=values(1, n, 1), attn_edge=w)}, "sum")["paper"]
    w.data = values(53, 1, 2)
    with pytest.raises(RuntimeError, match="needs values that have changed since"):
        out.sum().backward()

"""Gates on edges for each message: a gate of 1 changes nothing, and gradients agree with finite differences."""

import numpy as np
import pytest

from sarlite import Graph, HeteroGraph, Tensor, fn
from sarlite.graph.gated_edges import gated
from sarlite.tape import no_grad

RNG = np.random.default_rng(3)
SRC, DST = RNG.integers(0, 6, 14), RNG.integers(0, 6, 14)
X, W = RNG.normal(size=(6, 4)), RNG.normal(size=(4, 4))
HEADS, SCORES = RNG.normal(size=(4, 2)), RNG.normal(size=(6, 2))


def rows(array):
    return Tensor(array, placement="rows")


def attend():
    return fn.attend(rows(X.reshape(6, 2, 2)), rows(SCORES), rows(SCORES[::-1].copy()))


def shared_rows():
    return fn.attend(rows(X.reshape(6, 1, 4)), rows(SCORES), rows(SCORES[::-1].copy()))


def linear_attention():
    return fn.attend_linear(rows(X), Tensor(W), Tensor(HEADS), rows(X), dst_weight=Tensor(HEADS))


def scored(src, dst, edge):
    return (src["x"] + dst["x"]).sum(1), src["x"]


MESSAGES = {
    **{f"copy {reducer}": (lambda: fn.copy_src(rows(X)), reducer) for reducer in ("sum", "mean", "sym", "max", "min")},
    **{f"linear {reducer}": (lambda: fn.linear(rows(X), Tensor(W)), reducer) for reducer in ("sum", "mean", "sym")},
    "by edge": (lambda: fn.mul_edge(rows(X), np.linspace(1, 2, 14)), "mean"),
    "by head": (lambda: fn.mul_edge(rows(X.reshape(6, 2, 2)), np.linspace(1, 2, 28).reshape(14, 2)), "max"),
    "attend": (attend, "sum"), "attend, shared rows": (shared_rows, "sum"), "attend linear": (linear_attention, "sum"),
    "softmax": (lambda: fn.message(scored, {"x": rows(X)}, {"x": rows(X)}), "softmax"),
    "function": (lambda: fn.message(lambda s, d, e: s["x"] * d["x"], {"x": rows(X)}, {"x": rows(X)}), "mean"),
}  # fmt: skip


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("case", MESSAGES)
def test_gates_of_one_change_nothing_and_have_gradients(case, weighted):
    make, reducer = MESSAGES[case]
    graph = Graph.from_edges(SRC, DST, 6)
    if weighted:
        graph = graph.with_edge_values(np.linspace(0.5, 1.5, 14))
    if weighted and case.startswith("copy m") and reducer != "mean":
        pytest.skip("max and min ignore weights")
    out = graph.aggregate(make(), reducer)
    gate = Tensor(np.ones(14), requires_grad=True, placement="rows")
    same = gated(graph, {None: gate}).aggregate(make(), reducer)
    np.testing.assert_allclose(same.data, out.data, rtol=1e-12, atol=1e-12)
    weights = np.random.default_rng(0).normal(size=out.shape)
    start = np.linspace(0.3, 0.9, 14)

    def value(gates):
        with no_grad():
            return float((gated(graph, {None: rows(gates)}).aggregate(make(), reducer).data * weights).sum())

    gate = Tensor(start, requires_grad=True, placement="rows")
    (gated(graph, {None: gate}).aggregate(make(), reducer) * weights).sum().backward()
    step = 1e-6 * np.eye(14)
    expected = [(value(start + delta) - value(start - delta)) / 2e-6 for delta in step]
    np.testing.assert_allclose(gate.grad, expected, rtol=1e-6, atol=1e-7)


def test_a_gate_of_zero_leaves_out_a_message_but_not_its_degree():
    graph = Graph.from_edges([0, 1, 2], [2, 2, 0], 3)
    out = gated(graph, {None: rows(np.array([1.0, 0.0, 1.0]))}).aggregate(fn.copy_src(rows(np.array([[2.0], [6.0], [0.0]]))), "mean")
    assert out.data.tolist() == [[0.0], [0.0], [1.0]]


@pytest.mark.parametrize("reducer", ["mean", "max", "sym"])
def test_a_gate_of_1_changes_nothing_over_relations(reducer):
    """Two of three relations have gates."""
    relations = {("a", "to", "b"): (SRC, DST), ("b", "to", "a"): (DST, SRC), ("a", "of", "b"): (DST, SRC)}
    graph = HeteroGraph.from_edges(relations, {"a": 6, "b": 6})
    messages = {relation: fn.copy_src(rows(X)) for relation in relations}
    self_terms = {"b": (rows(X), Tensor(W))}
    out = graph.aggregate(messages, reducer, self_terms=self_terms)
    gates = {relation: rows(np.ones(14)) for relation in [*relations][:2]}
    actual = gated(graph.of("b"), gates).layers(1)[0].aggregate(messages, reducer, self_terms=self_terms)
    for name, expected in out.items():
        np.testing.assert_allclose(actual[name].data, expected.data, rtol=1e-12, atol=1e-12)
    gates[("a", "to", "b")] = rows(np.zeros(14))
    less = gated(graph.of("b"), gates).layers(1)[0].aggregate(messages, "mean", self_terms=self_terms)["b"]
    plain = graph.aggregate({relation: messages[relation] for relation in [*relations][2:]}, "mean", self_terms=self_terms)["b"]
    np.testing.assert_allclose(less.data, plain.data, rtol=1e-12, atol=1e-12)

"""Placement of values: the rule for results, and the refusals of exact numerics that follow from it."""

import numpy as np
import pytest

from sarlite import Graph, HeteroGraph, Tensor, fn, kernels, nn, numerics
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError
from sarlite.numerics.exact_sum import Exact
from sarlite.numerics.placement import PLACEMENTS, joined
from sarlite.tape import no_grad, ops
from sarlite.tape.table_rows import TableRows
from tests.helpers.graph.exact_programs import RIGHT, WRONG, Program

pytestmark = pytest.mark.timeout(120)
X = np.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize("placements, expected", [
    (["rows", "replicated"], "rows"), (["unknown", "rows"], "rows"), (["replicated", "replicated"], "replicated"),
    (["replicated", "unknown"], "unknown"), (["unknown"], "unknown"), ([], "unknown"),
])  # fmt: skip
def test_the_placement_of_a_result_follows_from_its_inputs(placements, expected):
    assert joined(placements) == expected


def test_a_result_has_the_placement_that_its_inputs_give():
    rows, alike, unknown = (Tensor(X, placement=placement) for placement in ("rows", "replicated", "unknown"))
    cases = [(rows * 2, "rows"), (2.0 - alike, "replicated"), (alike * np.float64(3), "replicated"), (alike @ alike.T, "replicated"),
             (alike + X, "unknown"), (X + unknown, "unknown"), (rows + X, "rows"), (rows @ alike.T, "rows"), (rows.sum(), "rows"),
             (alike[0], "replicated"), (ops.take(alike, np.arange(2)), "unknown"), (ops.concat([alike, alike]), "replicated"),
             (ops.where(X > 0, rows, 0.0), "rows"), (ops.exp(rows).detach(), "rows"), (alike.astype(np.float32), "replicated")]
    for result, expected in cases:
        assert result.placement == expected
    assert Tensor(X).placement == "unknown"
    assert nn.Parameter(X).placement == "replicated" and nn.Parameter(X, ids=np.arange(4)).placement == "rows"
    table = TableRows(kernels.Rows(X, np.arange(2)), lambda: X[:2])
    assert table.placement == table.first(1).placement == (table @ nn.Parameter(X.T)).placement == "rows"
    graph = Graph.from_edges([0, 1], [1, 2], 4)
    assert graph.aggregate(fn.copy_src(X), "sum").placement == graph.aggregate(fn.copy_src(unknown), "max").placement == "rows"
    with pytest.raises(ValueError, match="placement 'local' .*rows, replicated, unknown"):
        Tensor(X, placement="local")


def test_values_of_unknown_placement_are_refused_only_where_a_gradient_depends_on_it():
    weight, unknown = nn.Parameter(X), Tensor(X)
    message = r"mul takes an array of shape \(4, 3\) that may be rows of this rank or the same on every rank.*placement='rows'"
    with numerics.using(Exact(Solo())):
        with pytest.raises(ConfigError, match=message):
            weight * X
        with pytest.raises(ConfigError, match="add takes a tensor of shape"):
            ops.add(Tensor(X, requires_grad=True), Tensor(X, placement="rows"))
        assert (unknown * X).placement == "unknown"
        with no_grad():
            assert (weight * X).placement == "unknown"
    assert (weight * X).placement == "unknown"  # fast numerics adds gradients up at the end


def test_a_learned_tensor_that_all_ranks_hold_is_no_rows_of_a_graph_on_several_ranks():
    edges = [0, 1, 2, 3], [1, 2, 3, 0]

    def work(comm, name):
        graph = Graph.from_edges(*edges)
        graph = graph.shard(comm, "contiguous") if comm.size > 1 else graph
        table, weight = nn.Parameter(np.ones((graph.n_src, 2))), nn.Parameter(np.ones(graph.n_edges))
        messages = [fn.copy_src(table), fn.mul_edge(table.data, weight), fn.attend(np.ones((graph.n_src, 1, 2)), table, table)]
        with numerics.using(Exact(comm) if name == "exact" else None):
            if comm.size == 1 and name == "fast":
                assert graph.aggregate(messages[0], "sum").requires_grad
                return
            for message in messages:
                with pytest.raises(ConfigError, match="same on every rank, .*its own"):
                    graph.aggregate(message, "sum")
            hetero = HeteroGraph.from_edges({("a", "to", "a"): edges}, {"a": 4}, comm=comm, parts="contiguous")
            with pytest.raises(ConfigError, match=r"self_terms\['a'\]: x .*same on every rank"):
                hetero.aggregate({}, "sum", self_terms={"a": (nn.Parameter(np.ones((hetero.of("a").n_dst, 2))), nn.Parameter(np.eye(2)))})

    for n_ranks, name in ((1, "fast"), (1, "exact"), (2, "fast"), (2, "exact")):
        threads.run(n_ranks, work, name)


def refusal(operation, *arguments):
    with numerics.using(Exact(Solo())), pytest.raises(ConfigError, match="numerics exact: ") as caught:
        operation(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("operation", [
    lambda h: h.T, lambda h: h.transpose(1, 0), lambda h: h.reshape(1, -1, 3), lambda h: h.reshape(1, 4, 3), lambda h: h.reshape(2, 6),
    lambda h: h[None], lambda h: h[0], lambda h: h[..., 0, 0], lambda h: ops.expand_dims(h, 0), lambda h: ops.stack([h, h]),
])  # fmt: skip
@pytest.mark.parametrize("placement", ["rows", "unknown"])
def test_rows_stay_on_axis_0(operation, placement):
    assert "moves or merges the rows of a tensor of shape (4, 3)" in refusal(operation, Tensor(X, placement=placement))
    with numerics.using(Exact(Solo())):
        assert operation(Tensor(X, placement="replicated")).placement == "replicated"


def test_what_leaves_rows_on_axis_0_is_not_refused():
    h = Tensor(X, placement="rows")
    with numerics.using(Exact(Solo())):
        for result in (h.reshape(-1, 1, 3), h.reshape(4, 3, 1), h.reshape(-1, 3), h.reshape(4, -1), h.reshape(12), h[1:], h[:, 0], h[...],
                       h[..., 0], h[:, None], h.reshape(-1, 3, 1).transpose(0, 2, 1), h.sum(1), h.sum(-1).reshape(-1, 1)):
            assert result.placement == "rows"


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_sums_over_rows_are_refused(placement):
    h, sums = Tensor(X, placement=placement), (lambda h: h.sum(0), lambda h: h.mean(), lambda h: ops.softmax(h, 0), lambda h: h.max(0),
                                               lambda h: ops.layer_norm(h[:, 0], nn.Parameter(X[:, 0]), nn.Parameter(X[:, 0])))
    for operation in sums:
        if placement == "replicated":
            with numerics.using(Exact(Solo())):
                operation(h[:, :])
        else:
            assert "over axis 0 is of one rank's rows" in refusal(operation, h)
    rows = Tensor(np.ones((3, 3)), placement="rows")
    for operation in (lambda: h @ rows, lambda: ops.matmul_by_head(h.reshape(-1, 1, 3), rows.reshape(-1, 3, 1)[:1])):
        assert "where all ranks need the same values" in refusal(operation)


def test_gradients_that_are_not_summed_over_ranks_are_refused():
    h, weight, row = Tensor(X, placement="rows"), nn.Parameter(X), nn.Parameter(X[:1])
    assert "its first axis must go" in refusal(ops.mul, h, row)
    assert "its first axis must go" in refusal(ops.add, h[:, :1].sum(1), nn.Parameter(np.ones(1)))
    assert "rows of 1 axes and values of 2 axes" in refusal(ops.mul, h[:, 0], X)
    assert "is given ids, as by nn.Embedding" in refusal(ops.take, weight, np.arange(2))
    assert "is not summed over ranks here" in refusal(ops.concat, [h, weight])
    assert "is not summed over ranks here" in refusal(ops.mse, weight, Tensor(X, placement="replicated"))


def test_each_kind_of_step_of_random_models():
    """Each right step by itself has the same bits on 1 and 3 ranks; each wrong step is refused."""
    for number, name in enumerate([*RIGHT, *WRONG]):
        program = Program(np.random.default_rng(number))
        program.names, program.wrong = [name], name if name in WRONG else None
        program.n_ranks, program.options["parts"] = 3, np.arange(program.n_nodes) % 3
        assert program.check() == ("refused" if name in WRONG else "3 ranks")

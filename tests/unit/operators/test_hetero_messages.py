"""Messages over relations equal a bipartite `Graph` of each relation, values and gradients, on any number of ranks."""


import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, numerics
from sarlite.comm import threads
from sarlite.errors import ConfigError, ShapeError
from sarlite.numerics.exact_sum import Exact
from sarlite.tape import ops
from tests.helpers.graph.relational_graphs import ABOUT, CITES, EDGES, N_NODES, REVIEWS, WRITES, X, make
from tests.helpers.graph.strategies import tied_values, values

pytestmark = pytest.mark.timeout(120)
CHOSEN = (CITES, WRITES, REVIEWS)  # two out of one type, all into papers
WEIGHTS = {relation: values(30 + k, len(EDGES[relation][0])) for k, relation in enumerate(CHOSEN)}


def case_of(name, x, dst, edge, weight):
    """Return the message and the reducer of a relation; `weight` is learnable and shared by all relations."""
    def function(s, d, e):
        return (s["x"] @ weight) * d["y"] * e["w"]

    def scored(s, d, e):
        return (s["x"] @ weight).sum(1) + d["y"].sum(1), s["x"] * e["w"]

    def attend():
        features = {"edge": edge.reshape(-1, 1), "attn_edge": weight[:1, :1]}
        return fn.attend((x @ weight).reshape(-1, 1, 5), x[:, :1], dst[:, :1], 0.2, 0.3, 7, **features)

    inputs = {"x": x}, {"y": dst}, {"w": edge.reshape(-1, 1)}
    return {"mul": lambda: fn.mul_edge(x, edge), "copy": lambda: fn.copy_src(x), "linear": lambda: fn.linear(x, weight),
            "attend": attend, "function": lambda: (function, *inputs), "scored": lambda: (scored, *inputs)}[name]()


CASES = [("attend", "sum", None), ("mul", "mean", None), ("mul", "max", None), ("copy", "sym", None),
         ("linear", "sym", "inside"), ("linear", "sym", "first"),
         ("function", "mean", None), ("function", "min", None), ("scored", "softmax", None)]


def expected(name, reducer):
    """Return sums over bipartite graphs of one part, one for each relation, and the gradients of all inputs."""
    x = {kind: Tensor(tied_values(7, n, 5), requires_grad=True) for kind, n in N_NODES.items()}
    weight, edges, total = Tensor(values(50, 5, 5), requires_grad=True), {}, 0
    for relation in CHOSEN:
        (source, _, to), (src, dst) = relation, EDGES[relation]
        graph = Graph.from_edges(src, dst, n_src=N_NODES[source], n_dst=N_NODES[to])
        edges[relation] = Tensor(WEIGHTS[relation][graph.edge_ids], requires_grad=True)
        message = case_of(name, x[source], x[to], edges[relation], weight)
        function, *rest = message if type(message) is tuple else (message,)
        total = total + graph.aggregate(function, reducer, *rest)
        edges[relation] = edges[relation], graph.edge_ids
    (total * values(51, *total.shape)).sum().backward()
    d_edges = {relation: spread(len(ids), ids, w.grad) for relation, (w, ids) in edges.items()}
    return total.data, {kind: t.grad for kind, t in x.items()}, weight.grad, d_edges


def spread(n, ids, rows):
    if rows is None:
        return None
    out = np.zeros((n, *rows.shape[1:]))
    out[ids] = rows
    return out


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name, reducer, evaluation", CASES)
def test_a_message_is_that_of_each_relations_graph(name, reducer, evaluation):
    out, d_x, d_weight, d_edges = expected(name, reducer)

    def work(comm, mode):
        graph = make(comm, "random", mode=mode) if comm.size > 1 else make()
        x = {kind: Tensor(tied_values(7, n, 5)[graph.node_ids[kind]], requires_grad=True) for kind, n in N_NODES.items()}
        weight, edges, messages = Tensor(values(50, 5, 5), requires_grad=True), {}, {}
        for relation in CHOSEN:
            source, _, to = relation
            edges[relation] = Tensor(WEIGHTS[relation][graph.edge_ids[relation]], requires_grad=True)
            message = case_of(name, x[source], x[to], edges[relation], weight)
            messages[relation] = fn.message(*message) if type(message) is tuple else message
        for _ in range(2):  # the second call reads the sums that the first one kept
            aggregated = graph.aggregate(messages, reducer, evaluation=evaluation)["paper"]
        ids = graph.node_ids
        (aggregated * values(51, *out.shape)[ids["paper"]]).sum().backward()
        close(aggregated.data, out[ids["paper"]])
        for kind in ("paper", "author"):
            close(x[kind].grad, d_x[kind][ids[kind]])
        if d_weight is not None:
            close(comm.allreduce(weight.grad), d_weight)
        for relation, d in d_edges.items():
            if d is not None:
                close(edges[relation].grad, d[graph.edge_ids[relation]])

    threads.run(1, work, "sar")
    threads.run(3, work, "sar" if name != "mul" else "oneshot")


@pytest.mark.parametrize("n_ranks, options", [(1, {}), (2, {}), (3, {"backward": "fetch"})])
@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
def test_the_first_call_has_the_bits_of_later_calls(exact, n_ranks, options):
    """Constant rows stand beside other rows of one type.

    A resumed run, whose first call is a later call of a straight run, must have the same bits.
    """
    def work(comm):
        graph, runs = make(comm, "random", **options), []
        with numerics.using(Exact(comm) if exact else None):
            constant, h = ({kind: Tensor(tied_values(7, n, 5)[graph.node_ids[kind]] / 3, **of) for kind, n in N_NODES.items()}
                           for of in ({"constant": True}, {"requires_grad": True}))
            weight = Tensor(values(50, 5, 5), requires_grad=True)
            messages = {WRITES: fn.copy_src(constant["author"]), REVIEWS: fn.copy_src(h["author"]), CITES: fn.copy_src(h["paper"]),
                        ABOUT: fn.copy_src(constant["field"])}
            for _ in range(3):
                out = graph.aggregate(messages, "mean", self_terms={"paper": (h["paper"], weight)})["paper"]
                ops.cross_entropy(out, np.arange(len(out.data)) % 5, np.arange(len(out.data)), N_NODES["paper"]).backward()
                runs.append([array.copy() for array in (out.data, weight.grad, h["author"].grad, h["paper"].grad)])
                weight.grad = h["author"].grad = h["paper"].grad = None
        first, *later = runs
        for other in later:
            for array, expected in zip(first, other, strict=True):
                np.testing.assert_array_equal(array, expected)

    threads.run(n_ranks, work)


def test_edge_features_are_seen_by_the_scores_of_a_relation():
    """`fn.attend` with edge features is a softmax of scores that include them.

    All gradients include them, too, among them the gradient of `attn_edge`.
    """
    def work(comm, fused):
        graph = make(comm, "random") if comm.size > 1 else make()
        x = {kind: Tensor(values(7, n, 4)[graph.node_ids[kind]], requires_grad=True) for kind, n in N_NODES.items()}
        attn_edge, messages = Tensor(values(52, 1, 2), requires_grad=True), {}
        for relation in CHOSEN:
            source, _, to = relation
            edge, z = WEIGHTS[relation][graph.edge_ids[relation]].reshape(-1, 1), x[source].reshape(-1, 2, 2)
            if fused:
                messages[relation] = fn.attend(z, x[source][:, :2], x[to][:, 2:], 0.2, edge=edge, attn_edge=attn_edge)
            else:
                def scored(s, d, e):
                    return (s["x"] + d["y"] + e["w"] @ attn_edge).leaky_relu(0.2), s["z"]

                inputs = {"z": z, "x": x[source][:, :2]}, {"y": x[to][:, 2:]}, {"w": edge}
                messages[relation] = fn.message(scored, *inputs)
        out = graph.aggregate(messages, "sum" if fused else "softmax")["paper"]
        (out * out).sum().backward()
        return out.data, comm.allreduce(attn_edge.grad), {kind: x[kind].grad for kind in ("paper", "author")}

    for n_ranks in (1, 3):
        for (out, d_edge, d_x), (right, d_edge_right, d_x_right) in zip(*(threads.run(n_ranks, work, way) for way in (True, False))):
            close(out, right)
            close(d_edge, d_edge_right)
            assert np.abs(d_edge).min() > 1e-3
            for kind, d in d_x.items():
                close(d, d_x_right[kind])


def close(actual, wanted):
    np.testing.assert_allclose(actual, wanted, rtol=1e-12, atol=1e-12)


def test_what_is_no_message_is_refused():
    graph, x = make(), Tensor(X["paper"])
    n = len(EDGES[CITES][0])
    for message, reducer, error, text in (
            (fn.mul_edge(x, values(1, n)), "sym", ConfigError, "MulEdge does not go with reducer 'sym'"),
            (fn.mul_edge(x, values(1, n - 1)), "sum", ShapeError, "needs 80 rows, one each edge"),
            (fn.message(lambda s, d, e: s["x"], {"x": x}), "sym", ConfigError, "Message does not go with reducer 'sym'"),
            (fn.message(lambda s, d, e: s["x"], {"x": Tensor(X["field"])}), "sum", ShapeError, "needs 23 rows, one each source row"),
            (lambda s, d, e: s["x"], "sym", ConfigError, r"relation \(.*\): message function does not go with reducer 'sym'"),
            (fn.linear(x, Tensor(values(1, 5, 2))), "max", ConfigError, "Linear does not go with reducer 'max'")):
        with pytest.raises(error, match=text):
            graph.aggregate({CITES: message}, reducer)


@pytest.mark.parametrize("mode", ["sar", "broadcast", "sa"])
@pytest.mark.parametrize("reducer", ["max", "min"])
def test_the_largest_row_beside_a_message_that_fetches_again(reducer, mode):
    """Backward takes the own edges in two halves; each half once had the gradients of all of the rows."""
    x = values(41, N_NODES["author"], 5)

    def on_rank(comm):
        graph = make(comm, "uneven", mode=mode, prefetch=1)
        h = Tensor(x[graph.node_ids["author"]], requires_grad=True)
        messages = {WRITES: fn.copy_src(h), REVIEWS: fn.message(lambda s, d, e: (s["x"] * s["x"]).tanh(), {"x": h})}
        graph.aggregate(messages, reducer)["paper"].sum().backward()
        return graph.node_ids["author"], h.grad

    (_, expected), = threads.run(1, on_rank)
    for ids, grad in threads.run(3, on_rank):
        np.testing.assert_allclose(grad, expected[ids], rtol=1e-11, atol=1e-12)

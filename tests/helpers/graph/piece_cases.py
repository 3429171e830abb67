"""A test graph whose blocks of edges are computed in pieces of few edges, and messages on this graph."""

import numpy as np

from sarlite import Graph, Tensor, fn, nn

N_NODES, N_EDGES = 20, 400


def problem():
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, N_NODES, N_EDGES), rng.integers(0, N_NODES - 2, N_EDGES)
    return Graph.from_edges(src, dst, N_NODES), rng.standard_normal((N_NODES, 3)), rng.random((N_EDGES, 1)), rng.standard_normal((3, 4))


def in_small_pieces(graph, n_edges=1):
    """Let `graph` compute its blocks in pieces of at least `n_edges` edges and as many as the block has columns; return the graph."""
    for block in graph.plan.blocks:
        block.pieces = block.in_pieces(n_edges)
    return graph


def run(graph, x, edge_values, weight, reducer):
    """Aggregate a message function of rows x by `reducer`; return (output, gradients of x, of `edge_values` and of `weight`)."""
    x, edge_values, weight = (Tensor(a, requires_grad=True) for a in (x[graph.node_ids], edge_values[graph.edge_ids], weight))
    dropout = nn.Dropout(0.3, nn.Random(0))

    def message(src, dst, edge):
        value = dropout(((src["x"] + dst["x"]) @ weight).tanh() * edge["e"], edge.ids)
        return (value.sum(-1), value) if reducer == "softmax" else value

    out = graph.aggregate(message, reducer, src={"x": x}, dst={"x": x}, edge={"e": edge_values})
    (out * out).sum().backward()
    return out.data, x.grad, edge_values.grad, weight.grad


BUILT_IN = {
    "sum": lambda g, x, e: g.aggregate(fn.copy_src(x), "sum"),
    "mean, edges": lambda g, x, e: g.aggregate(fn.mul_edge(x, e.reshape(-1)), "mean"),
    "max": lambda g, x, e: g.aggregate(fn.copy_src(x), "max"),
    "attend": lambda g, x, e: g.aggregate(fn.attend(x.reshape(-1, 3, 1), x, x, 0.2, 0.3, 5), "sum").reshape(-1, 3),
    "case 1": lambda g, x, e: g.aggregate(lambda s, d, v: s["x"] * v["fixed"], "sum", src={"x": x}, edge={"fixed": e.data}),
}


def run_built_in(graph, x, e, w, name):
    x, e = (Tensor(a, requires_grad=True) for a in (x[graph.node_ids], e[graph.edge_ids]))
    out = BUILT_IN[name](graph, x, e)
    (out * out).sum().backward()
    return out.data, x.grad, np.zeros_like(e.data) if e.grad is None else e.grad, w * 0

"""References for the tests: aggregations in plain NumPy loops, and models on the whole graph on one rank."""

from functools import cache

import numpy as np

from sarlite import Graph, fn, nn
from sarlite.comm import Solo
from sarlite.models import GAT, GCN, SAGE
from sarlite.tape import Tensor, no_grad, ops
from tests.helpers.graph.strategies import random_edges

# ---- aggregations, float64, one edge at a time


def in_edges(edges, i):
    """Return the indices of the edges that end in node `i`, by ascending source; edges of equal source keep their order."""
    return sorted(np.flatnonzero(edges.dst == i), key=lambda e: edges.src[e])


def reduce_messages(edges, messages, reducer):
    """Return (out, chosen edges): out[i] is messages[e] reduced ("sum", "mean", "max", "min") over the in-edges e of node i, 0 without.

    The chosen edge gave the max or min; it is -1 without edges.
    """
    out = np.zeros((edges.n_nodes, *messages.shape[1:]))
    winner = np.full(out.shape, -1)
    for i in range(edges.n_nodes):
        for k, e in enumerate(in_edges(edges, i)):
            if reducer in ("sum", "mean"):
                out[i] += messages[e]
            else:
                better = np.full(out.shape[1:], k == 0) | (messages[e] > out[i] if reducer == "max" else messages[e] < out[i])
                out[i] = np.where(better, messages[e], out[i])
                winner[i] = np.where(better, e, winner[i])
        if reducer == "mean":
            out[i] /= max(len(in_edges(edges, i)), 1)
    return out, winner


def reduce_gradient(edges, messages, reducer, g):
    """Return the gradient of `messages`, given `g`, the gradient of the output of `reduce_messages` with the same `reducer`."""
    degree = np.maximum(np.bincount(edges.dst, minlength=edges.n_nodes), 1)
    if reducer == "sum":
        return g[edges.dst]
    if reducer == "mean":
        return (g / degree.reshape(-1, *[1] * (g.ndim - 1)))[edges.dst]
    _, winner = reduce_messages(edges, messages, reducer)
    number = np.arange(edges.n_edges).reshape(-1, *[1] * (g.ndim - 1))
    return np.where(winner[edges.dst] == number, g[edges.dst], 0.0)


def at_nodes(nodes, rows, n_nodes):
    """Return out, (n_nodes, ...), where out[i] is the sum of the rows[k] with nodes[k] == i."""
    out = np.zeros((n_nodes, *rows.shape[1:]))
    np.add.at(out, nodes, rows)
    return out


def attention(edges, src, dst, slope):
    """Return attention coefficients, (n_edges, n_heads): a softmax over each node's in-edges of leaky_relu(src_j + dst_i, slope)."""
    score = src[edges.src] + dst[edges.dst]
    score = np.where(score > 0, score, slope * score)
    a = np.zeros_like(score)
    for i in range(edges.n_nodes):
        into = in_edges(edges, i)
        if into:
            e = np.exp(score[into] - score[into].max(0))
            a[into] = e / e.sum(0)
    return a


def attend(edges, z, src, dst, slope, mask=1.0):
    """Return attention's output, out_i = sum over j of mask_ij a_ij z_j, with the coefficients a_ij of `attention` and a dropout mask."""
    a = attention(edges, src, dst, slope) * mask
    return at_nodes(edges.dst, a[:, :, None] * z[edges.src], edges.n_nodes)


def attend_gradient(edges, z, src, dst, slope, g, mask=1.0):
    """Return the gradients of z, src and dst in `attend`, which documents the arguments, for the gradient `g` of its output."""
    a = attention(edges, src, dst, slope)
    d_z = at_nodes(edges.src, (a * mask)[:, :, None] * g[edges.dst], edges.n_nodes)
    d_a = mask * (g[edges.dst] * z[edges.src]).sum(2)
    mean = at_nodes(edges.dst, a * d_a, edges.n_nodes)
    d_score = a * (d_a - mean[edges.dst])
    d_score *= np.where(src[edges.src] + dst[edges.dst] > 0, 1, slope)
    return d_z, at_nodes(edges.src, d_score, edges.n_nodes), at_nodes(edges.dst, d_score, edges.n_nodes)


# ---- models on one rank

EDGES = random_edges(61, 420, seed=5, n_dst=57)  # directed; the last nodes have no in-edges
N_IN, N_OUT = 7, 4
_rng = np.random.default_rng(6)
FEATURES = _rng.standard_normal((EDGES.n_nodes, N_IN))
LABELS = _rng.integers(0, N_OUT, EDGES.n_nodes)
TRAIN = _rng.random(EDGES.n_nodes) < 0.5
WEIGHTS = _rng.random(EDGES.n_edges) + 0.5


class EdgeModel(nn.Module):
    """Model with a maximum over a message function that uses learned weights, edge inputs and dropout by edge."""

    def __init__(self, rng, dtype, reducer="max"):
        self.z, self.q = nn.Linear(N_IN, 5, rng=rng, dtype=dtype), nn.Linear(N_IN, 5, rng=rng, dtype=dtype)
        self.w = nn.glorot(rng, (5, N_OUT), 5, N_OUT, dtype)
        self.drop, self.reducer = nn.Dropout(0.3, rng), reducer

    def __call__(self, graph, h):
        weight = Tensor(WEIGHTS.astype(h.dtype)[graph.edge_ids][:, None])

        def message(src, dst, edge):
            return self.drop(((src["z"] + dst["q"]).tanh() @ self.w) * edge["weight"], edge.ids)

        return graph.aggregate(message, self.reducer, src={"z": self.z(h)}, dst={"q": self.q(h)}, edge={"weight": weight})


class SoftmaxModel(nn.Module):
    """Model with attention written as a message function, with a learnable temperature and dropout of the values by source."""

    def __init__(self, rng, dtype):
        self.z, self.score = nn.Linear(N_IN, 2 * N_OUT, rng=rng, dtype=dtype), nn.Linear(N_IN, 2, rng=rng, dtype=dtype)
        self.scale = nn.Parameter(np.array([1.3, 0.7], dtype))
        self.drop = nn.Dropout(0.2, rng)

    def __call__(self, graph, h):
        def message(src, dst, edge):
            score = (src["s"] + dst["s"]).leaky_relu(0.2) * self.scale
            return score, self.drop(src["z"], src.ids).reshape(-1, 2, N_OUT)

        s = self.score(h)
        return graph.aggregate(message, "softmax", src={"s": s, "z": self.z(h)}, dst={"s": s}).sum(1)


class WeightedModel(nn.Module):
    """Model that computes edge weights, with gradients: first one weight for each head, then one for each edge."""

    def __init__(self, rng, dtype):
        self.z, self.edge = nn.Linear(N_IN, 6, rng=rng, dtype=dtype), nn.Linear(1, 2, rng=rng, dtype=dtype)
        self.out = nn.Linear(6, N_OUT, rng=rng, dtype=dtype)

    def __call__(self, graph, h):
        weight = self.edge(Tensor(WEIGHTS.astype(h.dtype)[graph.edge_ids][:, None])).sigmoid()
        h = graph.aggregate(fn.mul_edge(self.z(h).reshape(-1, 2, 3), weight), "mean").reshape(-1, 6).tanh()
        return graph.aggregate(fn.mul_edge(self.out(h), weight.sum(1)), "sum")


CASES = {
    "gcn": lambda rng, dtype: GCN(N_IN, N_OUT, hidden=8, rng=rng, dtype=dtype),
    "sage": lambda rng, dtype: SAGE(N_IN, N_OUT, hidden=8, rng=rng, dtype=dtype),
    "sage pool": lambda rng, dtype: SAGE(N_IN, N_OUT, layers=2, hidden=8, aggregator="max-pool", rng=rng, dtype=dtype),
    "gat": lambda rng, dtype: GAT(N_IN, N_OUT, hidden=3, heads=2, out_heads=3, residual=True, batch_norm=True,
                                  dropout=0.3, attention_dropout=0.3, rng=rng, dtype=dtype),
    "gat, paper": lambda rng, dtype: GAT(N_IN, N_OUT, form="paper", hidden=3, heads=2, out_heads=3, dropout=0.3, attention_dropout=0.3,
                                         rng=rng, dtype=dtype),
    "edges": lambda rng, dtype: EdgeModel(rng, dtype),
    "edges mean": lambda rng, dtype: EdgeModel(rng, dtype, "mean"),
    "softmax": lambda rng, dtype: SoftmaxModel(rng, dtype),
    "weighted": lambda rng, dtype: WeightedModel(rng, dtype),
}
TOLERANCE = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-5}


class Step:
    """Results of one training pass with dropout and of one evaluation, which must be equal for N ranks and one rank.

    `rows` holds local rows by name; `whole` holds arrays that are the same on every rank.
    """

    def __init__(self, graph, case, dtype):
        rng = nn.Random(3)
        model = CASES[case](rng, dtype)
        flat = nn.flatten(model)
        rng.step, ids = 2, graph.node_ids
        x = Tensor(FEATURES[ids].astype(dtype), requires_grad=True)
        logits = model(graph, x)
        ops.cross_entropy(logits, LABELS[ids], np.flatnonzero(TRAIN[ids]), TRAIN.sum()).backward()
        graph.comm.allreduce(flat.grad)
        with no_grad():
            evaluated = model.eval()(graph, x)
        self.ids = ids
        self.rows = {"logits": logits.data, "gradient of x": x.grad, "logits in evaluation": evaluated.data}
        self.whole = {f"gradient of {name}": p.grad.copy() for name, p in model.named_parameters()}
        for name, module in model.named_modules():
            self.whole |= {f"{name}.{buffer}": getattr(module, buffer).copy() for buffer in module.buffers}


@cache
def one_rank(case, dtype, row_dtype="float32"):
    """Return the results, a `Step`, of the model CASES[case] on the whole graph on one rank, with source rows stored as `row_dtype`."""
    return Step(Graph.from_edges(*EDGES).shard(Solo(), row_dtype=row_dtype), case, dtype)


def check_equality(comm, case, dtype, parts, change_part=lambda graph: graph, **options):
    """Check that the model CASES[case] on `change_part(this rank's part)` gives one rank's results within the tolerance. Collective."""
    part = change_part(Graph.from_edges(*EDGES).shard(comm, parts, **options))
    expected, actual = one_rank(case, dtype, options.get("row_dtype", "float32")), Step(part, case, dtype)
    squares = {}
    for name, rows in actual.rows.items():
        difference = (rows - expected.rows[name][actual.ids]).astype(np.float64)
        squares[name] = comm.allreduce(np.array([(difference**2).sum()]))[0], (expected.rows[name].astype(np.float64) ** 2).sum()
    for name, array in actual.whole.items():
        difference = (array - expected.whole[name]).astype(np.float64)
        squares[name] = (difference**2).sum(), (expected.whole[name].astype(np.float64) ** 2).sum()
    for name, (difference, size) in squares.items():
        assert size > 0, f"{case}: {name} is all 0, which tests nothing"
        error = np.sqrt(difference / size)
        assert error <= TOLERANCE[np.dtype(dtype)], f"{case}, {np.dtype(dtype)}, {comm.size} ranks, {options}: {name} is off by {error:.3g}"

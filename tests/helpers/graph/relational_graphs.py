"""A small graph of several node types, and relational layers as NumPy loops, for tests on threads as ranks and on MPI ranks."""

from functools import cache

import numpy as np

from sarlite import HeteroGraph, Tensor, nn
from sarlite.minibatch import NeighborLoader, message_flow
from sarlite.models import RGAT, RGCN, RGATConv, RGCNConv
from sarlite.tape import ops
from tests.helpers.graph import references
from tests.helpers.graph.strategies import Edges, values

N_NODES = {"paper": 23, "author": 17, "field": 7, "place": 3, "none": 0}
WRITES, WRITTEN, CITES = ("author", "writes", "paper"), ("paper", "written", "author"), ("paper", "cites", "paper")
TOPIC, ABOUT = ("paper", "topic", "field"), ("field", "about", "paper")
REVIEWS = ("author", "reviews", "paper")
EMPTY, LONELY = ("author", "likes", "paper"), ("none", "is", "author")
N_IN, N_OUT, N_CLASSES = 5, 3, 4


def _pairs(seed, n_edges, n_src, n_dst):
    rng = np.random.default_rng(seed)
    return rng.integers(0, n_src, n_edges), rng.integers(0, n_dst, n_edges)


EDGES = {WRITES: _pairs(1, 60, 17, 20), CITES: _pairs(2, 80, 23, 20), TOPIC: _pairs(3, 40, 23, 6), ABOUT: _pairs(4, 30, 7, 20),
         REVIEWS: _pairs(6, 40, 17, 20), EMPTY: ([], []), LONELY: ([], []),
         WRITTEN: _pairs(5, 50, 23, 15)}  # the last nodes of each type are isolated
RNG = np.random.default_rng(9)
LABELS, TRAIN = RNG.integers(0, N_CLASSES, 23), RNG.random(23) < 0.6
X = {name: values(k, n, N_IN) for k, (name, n) in enumerate(N_NODES.items())}
UNEVEN = {"paper": lambda n: np.arange(23) % n, "author": lambda n: np.full(17, n - 1), "field": lambda n: np.arange(7)[::-1] * n // 7,
          "place": lambda n: np.zeros(3, int), "none": lambda n: np.zeros(0, int)}


def make(comm=None, parts="metis", **options):
    if parts == "uneven":
        parts = {name: division(1 if comm is None else comm.size) for name, division in UNEVEN.items()}
    return HeteroGraph.from_edges(EDGES, N_NODES, comm=comm, parts=parts, **options)


# ---- one layer, dense, with all its gradients


def matrix(relation):
    """Return the (n_dst, n_src) matrix whose product with source rows is the mean over the in-edges of each destination of `relation`."""
    source, _, to = relation
    a = np.zeros((N_NODES[to], N_NODES[source]))
    for j, i in zip(*EDGES[relation]):
        a[i, j] += 1
    return a / np.maximum(a.sum(1, keepdims=True), 1)


def rgcn_reference(conv, g):
    """Return (outputs, input gradients, weight gradients) of the RGCNConv `conv` by loops, dicts by name; `g`: outputs' gradients."""
    out, d_x = {name: X[name] @ root.data + conv.biases[name].data for name, root in conv.roots.items()}, {}
    grads = {}
    for name, root in conv.roots.items():
        d_x[name] = g[name] @ root.data.T
        grads |= {f"roots.{name}": X[name].T @ g[name], f"biases.{name}": g[name].sum(0)}
    for row, relation in enumerate(conv.relations):
        (source, _, to), a = relation, matrix(relation)
        if conv.bases is None:
            w = conv.weights["__".join(relation)].data
        else:
            w = sum(conv.coefficients.data[row, b] * v for b, v in enumerate(conv.bases.data))
        out[to] = out[to] + a @ (X[source] @ w)
        d_w = X[source].T @ (a.T @ g[to])
        d_x[source] = d_x.get(source, 0) + (a.T @ g[to]) @ w.T
        if conv.bases is None:
            grads["weights." + "__".join(relation)] = d_w
            continue
        d_a = grads.setdefault("coefficients", np.zeros(conv.coefficients.shape))
        d_v = grads.setdefault("bases", np.zeros(conv.bases.shape))
        for b, v in enumerate(conv.bases.data):
            d_a[row, b], d_v[b] = (v * d_w).sum(), d_v[b] + conv.coefficients.data[row, b] * d_w
    return out, d_x, grads


def rgat_reference(conv, g):
    """Return (outputs, input gradients, weight gradients) of the RGATConv `conv` by loops, dicts by name; `g`: outputs' gradients."""
    out, d_x, grads = {}, {}, {}
    for name, root in conv.roots.items():
        out[name], d_x[name] = X[name] @ root.weight.data + root.bias.data, g[name] @ root.weight.data.T
        grads |= {f"roots.{name}.weight": X[name].T @ g[name], f"roots.{name}.bias": g[name].sum(0)}
    for k, (source, _, to) in enumerate(conv.relations):
        n_src, n_dst, heads = N_NODES[source], N_NODES[to], (conv.n_heads, conv.n_feat)
        src, dst = (np.array(ids, int) for ids in EDGES[conv.relations[k]])
        edges = Edges(src, dst + n_src, n_src + n_dst)  # sources, then destinations
        w, a, c = conv.weights[k].data, conv.attn_src[k].data, conv.attn_dst[k].data
        z, pad = (X[source] @ w).reshape(n_src, *heads), lambda x, y: np.concatenate([x, y])
        full = (pad(z, np.zeros((n_dst, *heads))), pad((z * a).sum(-1), np.zeros((n_dst, heads[0]))),
                pad(np.zeros((n_src, heads[0])), X[to] @ c))
        out[to] = out[to] + references.attend(edges, *full, conv.slope)[n_src:].reshape(n_dst, w.shape[1])
        g_full = pad(np.zeros((n_src, *heads)), g[to].reshape(n_dst, *heads))
        d_z, d_src, d_dst = references.attend_gradient(edges, *full, conv.slope, g_full)
        d_z = (d_z[:n_src] + d_src[:n_src, :, None] * a).reshape(n_src, w.shape[1])
        grads[f"weights.{k}"], grads[f"attn_dst.{k}"] = X[source].T @ d_z, X[to].T @ d_dst[n_src:]
        grads[f"attn_src.{k}"] = (d_src[:n_src, :, None] * z).sum(0)
        d_x[source] = d_x.get(source, 0) + d_z @ w.T
        d_x[to] = d_x[to] + d_dst[n_src:] @ c.T
    return out, d_x, grads


def _rgcn(n_bases=None, evaluation=None):
    def make_conv(graph):
        conv = RGCNConv(dict.fromkeys(N_NODES, N_IN), N_OUT, graph.relations, n_bases=n_bases, evaluation=evaluation, rng=nn.Random(3),
                        dtype=np.float64)
        for k, bias in enumerate(conv.biases.values()):
            bias.data = values(k, N_OUT)
        return conv, rgcn_reference
    return make_conv


LAYERS = {f"{bases} bases, {evaluation}": _rgcn(bases, evaluation) for bases in (None, 3, 1) for evaluation in ("inside", "first")}
LAYERS["rgat"] = lambda graph: (RGATConv(dict.fromkeys(N_NODES, N_IN), 2, 2, graph.relations, rng=nn.Random(3), dtype=np.float64),
                                rgat_reference)


def close(actual, expected, what):
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12 * max(np.abs(expected).max(initial=0), 1), err_msg=what)


@cache
def expected_layer(case):
    """Return (outputs' gradients, outputs, input gradients, weight gradients) of the layer LAYERS[case] by loops, dicts by name."""
    conv, reference = LAYERS[case](make())
    g = {name: values(20 + k, N_NODES[name], N_OUT if case != "rgat" else 4) for k, name in enumerate(conv.roots)}
    return g, *reference(conv, g)


def check_layer(comm, case, parts, **options):
    """Check the layer LAYERS[case], divided as `parts` says, against loops on the whole graph: outputs and all gradients. Collective."""
    graph = make(comm, parts, **options)
    conv, _ = LAYERS[case](graph)
    h = {name: Tensor(X[name][ids], requires_grad=True) for name, ids in graph.node_ids.items()}
    g, expected, d_x, d_weights = expected_layer(case)
    out = conv(graph, h)
    sum((out[name] * g[name][graph.node_ids[name]]).sum() for name in out).backward()
    assert out.keys() == expected.keys()
    for name, ids in graph.node_ids.items():
        if name in out:
            close(out[name].data, expected[name][ids], f"{case}: {name}")
        if name in d_x and h[name].grad is not None:
            close(h[name].grad, d_x[name][ids], f"{case}: gradient of {name}")
        else:
            assert name not in d_x or not np.abs(d_x[name]).any()
    for name, p in conv.named_parameters():
        if name in d_weights:
            close(graph.comm.allreduce(np.zeros(p.shape) if p.grad is None else p.grad), d_weights[name], f"{case}: gradient of {name}")
    return graph


# ---- whole models with dropout, on any number of ranks as on one

MODELS = {
    "rgcn": lambda nodes, rng: RGCN({"paper": N_IN}, N_CLASSES, nodes, hidden=6, dropout=0.4, rng=rng, dtype=np.float64),
    "rgat": lambda nodes, rng: RGAT({"paper": N_IN}, N_CLASSES, nodes, hidden=3, heads=2, out_heads=2, dropout=0.4, attention_dropout=0.3,
                                    rng=rng, dtype=np.float64),
}


def step(graph, case, constant_features=True):
    """Run two training passes of MODELS[case]; return (node ids, logits, flat gradient, {table: (ids, gradients)}) of the second.

    The flat gradient is of the replicated parameters; the tables are learned rows of nodes.
    """
    rng, nodes = nn.Random(5), graph.of("paper")
    model = MODELS[case](nodes, rng)
    flat, ids = nn.flatten(model), nodes.node_ids
    x = {"paper": Tensor(X["paper"][ids], constant=constant_features)}
    for rng.step in (1, 2):
        flat.zero_grad()
        logits = model(nodes, x)
        ops.cross_entropy(logits, LABELS[ids], np.flatnonzero(TRAIN[ids]), TRAIN.sum()).backward()
    graph.comm.allreduce(flat.grad)
    return ids, logits.data, flat.grad, {name: (p.ids, p.grad) for name, p in model.named_parameters() if p.ids is not None}


@cache
def one_rank(case):
    return step(make(), case)


def check_model(comm, case, parts, **options):
    """Check that the logits and gradients of MODELS[case] on the division `parts`, with dropout, equal one rank's. Collective."""
    _, logits, grad, rows = one_rank(case)
    graph = make(comm, parts, **options)
    for constant in (True, False):  # sums of features that may change are not kept
        ids, local_logits, own_grad, own_rows = step(graph, case, constant)
        close(local_logits, logits[ids], f"{case}: logits")
        close(own_grad, grad, f"{case}: gradient")
        assert own_rows.keys() == rows.keys() and rows
        for name, (row_ids, gradient) in own_rows.items():
            close(gradient, rows[name][1][row_ids], f"{case}: gradient of {name}")


# ---- batches


def gradients(model, graph, x, labels, training_rows, n_training_rows):
    """Run a training pass of `model`; return (loss, flat gradient of replicated parameters, {learned table: {id: gradient}}, logits)."""
    flat = nn.flatten(model)
    flat.zero_grad()
    logits = model(graph, x)
    loss = ops.cross_entropy(logits, labels, training_rows, n_training_rows)
    loss.backward()
    owned = {name: dict(zip(p.ids.tolist(), p.grad.copy())) for name, p in model.named_parameters() if p.ids is not None}
    return loss.item(), flat.grad.copy(), owned, logits.data.copy()


def check_batches(comm, case, parts, **options):
    """Check that MODELS[case], on the division `parts`, gives a batch of all training rows and in-edges the results of the graph.

    Collective.
    """
    graph, results = make(comm, parts, **options), []
    nodes = graph.of("paper")
    ids, x = nodes.dst_ids, {"paper": X["paper"][graph.node_ids["paper"]]}
    labels, rows = LABELS[ids], np.flatnonzero(TRAIN[ids])
    for batch in (None, *NeighborLoader(nodes, x, labels, rows, fanouts=(-1, -1), batch_size=100),
                  message_flow(nodes, rows, 2, x, labels)):
        rng = nn.Random(5)
        model = MODELS[case](nodes, rng)
        if batch is None:
            tensors = {name: Tensor(features, constant=True) for name, features in x.items()}
            *sums, logits = gradients(model, nodes, tensors, labels, rows, TRAIN.sum())
            results.append((*sums, logits[rows]))
        else:
            assert batch.n_global == TRAIN.sum()
            *sums, logits = gradients(model, batch, batch.x, batch.labels, batch.rows, batch.n_global)
            results.append((*sums, logits[batch.rows] if len(rows) else logits))
            order = np.argsort(batch.outputs[batch.rows])  # seeds are in the order of a random variate
            results[-1] = (*results[-1][:-1], results[-1][-1][order])
    (loss, grad, owned, logits), *others = results
    for other in others:
        np.testing.assert_allclose(other[0], loss, rtol=1e-12)
        close(other[1], grad, "gradient")
        close(other[3], logits, "logits")
        for name, rows_of_type in owned.items():
            close(np.array([*other[2][name].values()]), np.array([*rows_of_type.values()]), f"gradient of {name}")

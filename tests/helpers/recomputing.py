"""What tests of halo rows that are computed again share: networks, and a run of one that N ranks must agree on."""

import numpy as np

from sarlite import Graph, Tensor, fn, nn
from sarlite.models import GCN, SAGE
from sarlite.tape import no_grad, ops
from tests.helpers.references import EDGES, FEATURES, LABELS, N_IN, N_OUT, TRAIN, WEIGHTS

RECOMPUTED = {"halo": "recompute"}
WHOLE = Graph.from_edges(*EDGES)
MODELS = {"gcn": (GCN, {"input_dropout": 0.0}), "gcn, batch norm": (GCN, {"input_dropout": 0.0, "batch_norm": True, "activation": "elu"}),
          "sage": (SAGE, {}), "sage, no batch norm": (SAGE, {"batch_norm": False, "dropout": 0.3})}


class Layers(nn.Module):
    """A kept sum; batch norm of one's own; and in the second layer any message."""

    def __init__(self, n_in, n_out, *, layers, hidden, second, n_own=True, rng, dtype):
        self.one, self.two = nn.Linear(n_in, hidden, rng=rng, dtype=dtype), nn.Linear(hidden, n_out, rng=rng, dtype=dtype)
        self.norm, self.second, self.n_own = nn.BatchNorm(hidden, dtype=dtype), second, n_own

    def __call__(self, graph, x):
        first, second = graph.layers(2)
        h = self.one(first.aggregate(fn.copy_src(x), "sum") * (1 / (1 + first.in_degrees))[:, None])
        h = self.norm(h, first.comm, first.n_own) if self.n_own else self.norm(h, first.comm)
        return self.two(SECOND[self.second](second, h)) + second.dst(h).sum(1, keepdims=True)


def _attend(g, h):
    z = h.reshape(-1, 2, 4)
    return g.aggregate(fn.attend(z, z.sum(-1), g.dst(h).reshape(-1, 2, 4).sum(-1), 0.2, 0.3, 5), "sum").reshape(-1, 8)


SECOND = {
    "max": lambda g, h: g.aggregate(fn.copy_src(h), "max"),
    "attend": _attend,
    "mul_edge": lambda g, h: g.aggregate(fn.mul_edge(h, WEIGHTS[g.edge_ids]), "mean"),
    "function": lambda g, h: g.aggregate(lambda s, d, e: (s["h"] * d["h"]).tanh() * e["w"].reshape(-1, 1), "sum", src={"h": h},
                                         dst={"h": g.dst(h)}, edge={"w": WEIGHTS[g.edge_ids]}),
}
MODELS |= {f"second: {name}": (Layers, {"second": name}) for name in SECOND}


class Run:
    """Two steps with dropout, and an evaluation, over a graph: what N ranks must agree on, and each step's bytes received."""

    def __init__(self, graph, name, layers, x=FEATURES, labels=LABELS, train=TRAIN):
        (cls, options), rng = MODELS[name], nn.Random(3)
        model, ids = cls(N_IN, N_OUT, layers=layers, hidden=8, rng=rng, dtype=np.float64, **options), graph.node_ids
        flat, x = nn.flatten(model), Tensor(x[ids], constant=True)
        self.ids, self.rows, self.whole, self.bytes = ids, [], [], []
        for rng.step in range(2):
            graph.profile.reset()
            flat.zero_grad()
            logits = model(graph, x)
            ops.cross_entropy(logits, labels[ids], np.flatnonzero(train[ids]), max(train.sum(), 1)).backward()
            graph.comm.allreduce(flat.grad)
            flat.data -= 0.1 * flat.grad
            self.rows.append(logits.data)
            self.whole.append(flat.grad.copy())
            self.bytes.append({phase: n for phase, n in graph.profile.received_bytes.items() if n})
        with no_grad():
            self.rows.append(model.eval()(graph, x).data)
        for _, module in model.named_modules():
            self.whole += [getattr(module, buffer).copy() for buffer in module.buffers]

    def check(self, expected):
        for found, rows in zip(self.rows, expected.rows):
            np.testing.assert_allclose(found, rows[self.ids], rtol=1e-12, atol=1e-12)
        for found, array in zip(self.whole, expected.whole, strict=True):
            np.testing.assert_allclose(found, array, rtol=1e-12, atol=1e-12)

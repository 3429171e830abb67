"""Random programs of minibatches and message-flow graphs: N ranks must equal one rank, and with all in-edges plain NumPy."""

import numpy as np

from sarlite import Graph, Tensor, fn
from sarlite.comm import threads
from sarlite.minibatch import NeighborLoader, message_flow
from sarlite.tape import ops
from tests.helpers.graph.dense_graphs import Dense, Edges, in_rows
from tests.helpers.graph.graph_programs import MODES
from tests.helpers.tape import slopes
from tests.helpers.tape.slopes import LONG, Frozen, Unclear

WIDTH = 4
KINDS = (
    "copy_src mean",
    "linear sum",
    "linear sym",
    "copy_src max",
    "attend",
    "function sum",
    "function max",
    "function softmax",
)


class Program:
    """Random program of minibatches: a graph, its division among ranks, layers, and the minibatches' settings.

    The batches are of kind "sampled" (neighbours), "all" (in-edges) or "flow" (a message-flow graph, the same each time).
    """

    def __init__(self, dice):
        self.dice = dice
        n = int(dice.integers(2, 20))
        n_edges, into = int(dice.integers(1, 4 * n)), max(1, n - int(dice.integers(3)))
        weight = dice.random(n_edges) + 0.1 if dice.random() < 0.3 else None
        self.edges = Edges(dice.integers(0, n, n_edges), dice.integers(0, into, n_edges), n, n, False, weight)
        self.n_ranks = int(dice.integers(2, 5))
        self.options = {
            "mode": self.one(MODES),
            "prefetch": int(dice.integers(3)),
            "parts": dice.integers(0, self.n_ranks, n),
        }
        if dice.random() < 0.3:
            self.options["order"] = dice.permutation(n)
        self.kind = self.one(("sampled", "sampled", "all", "flow"))
        self.x = dice.standard_normal((n, WIDTH)) * 0.7
        self.layers = [self.one(KINDS) for _ in range(int(dice.integers(1, 4)))]
        self.params = [dice.standard_normal((WIDTH, WIDTH)) * 0.6 for _ in self.layers]
        self.seeds = np.flatnonzero(dice.random(n) < 0.6)
        if not len(self.seeds):
            raise Unclear
        self.weights = dice.standard_normal((n, WIDTH))
        self.loading = {
            "batch_size": int(dice.integers(1, n + 1)),
            "seed": int(dice.integers(5)),
            "sample_ahead": int(dice.integers(3)),
            "fanouts": tuple(int(k) for k in dice.choice([1, 2, 3, -1], len(self.layers))),
        }
        if self.kind == "all":
            self.loading["fanouts"] = (-1,) * len(self.layers)
        elif weight is None and dice.random() < 0.6:
            self.loading["sampler"] = self.one(("uniform", "replace", "labor"))
            if self.loading["sampler"] == "replace":
                self.loading["fanouts"] = tuple(max(k, 1) for k in self.loading["fanouts"])

    def one(self, values):
        values = list(values)
        return values[int(self.dice.integers(len(values)))]

    def __str__(self):
        e = self.edges
        return "\n".join(
            [
                f"ranks {self.n_ranks}, {self.options}",
                f"{e.n_src} nodes, {e.src.tolist()} -> {e.dst.tolist()}, weight {e.weight}",
                f"{self.kind}, {self.layers}, seeds {self.seeds.tolist()}, {self.loading}",
            ]
        )

    # ---- the program

    def on_rank(self, comm):
        """Run the program on this rank; return for each batch (seeds' ids, seeds' output rows, this rank's gradients of parameters)."""
        graph = Graph.from_edges(self.edges.src, self.edges.dst, self.edges.n_dst)
        graph = graph if self.edges.weight is None else graph.with_edge_values(self.edges.weight)
        if comm.size > 1:
            graph = graph.shard(comm, **self.options)
        seeds, x = np.isin(graph.dst_ids, self.seeds), self.x[graph.src_ids]
        if self.kind == "flow":
            return [self._step(message_flow(graph, seeds, len(self.layers), x)) for _ in range(1)]
        loader = NeighborLoader(graph, x, None, seeds, remote="exact", **self.loading)
        return [self._step(batch) for _ in range(2) for batch in loader]

    def _step(self, batch):
        params, h = [Tensor(w.copy(), requires_grad=True) for w in self.params], batch.x
        for g, kind, w in zip(batch.layers(len(self.layers)), self.layers, params):
            g, h = g.enter(h)
            h = np.tanh(layer(Sampled(g), kind, h, g.dst(h), w) + g.dst(h))
        out, ids = h[batch.rows], batch.dst_ids[batch.rows]
        ((out * self.weights[ids]).sum() / batch.n_global).backward()
        return ids, out.data.copy(), [np.zeros(w.shape) if w.grad is None else w.grad for w in params]

    def dense(self, frozen, params):
        h = self.x.astype(LONG)
        for kind, w in zip(self.layers, params):
            h = np.tanh(layer(Dense(self.edges, frozen), kind, h, h, w) + h)
        return h

    # ---- the checks

    def check(self):
        ranks = threads.run(self.n_ranks, self.on_rank)
        (expected,) = threads.run(1, self.on_rank)
        assert {len(steps) for steps in ranks} == {len(expected)}, "numbers of steps differ"
        for k, (ids, rows, grads) in enumerate(expected):
            order = np.argsort(ids, kind="stable")
            own_ids, own_rows = (np.concatenate([steps[k][j] for steps in ranks]) for j in (0, 1))
            by_seed = np.argsort(own_ids, kind="stable")
            np.testing.assert_array_equal(own_ids[by_seed], ids[order], err_msg=f"seeds of step {k}")
            slopes.close(own_rows[by_seed], rows[order], 1e-11, f"rows of step {k}")
            for j, grad in enumerate(grads):
                slopes.close(sum(steps[k][2][j] for steps in ranks), grad, 1e-10, f"gradient {j} of step {k}")
        if self.kind != "sampled":
            self._check_dense(expected)
        return f"{self.kind}, {self.options['mode']}"

    def _check_dense(self, steps):
        frozen, params = Frozen(1e-9), [w.astype(LONG) for w in self.params]
        out = self.dense(frozen, params)
        for ids, rows, grads in steps:
            slopes.close(rows, out[ids], 1e-11, "rows")
            weights = np.zeros(out.shape)
            np.add.at(weights, ids, self.weights[ids] / len(ids))
            slopes.check(lambda fr, some: [self.dense(fr, some)], frozen, params, grads, [weights], self.dice, 1e-8)


def layer(world, kind, h, dst_rows, w):
    message, _, reducer = kind.partition(" ")
    if message == "copy_src":
        return world.copy_src(h, reducer) @ w
    if message == "linear":
        return world.linear(h, w, reducer, None)
    if message == "attend":
        z = h @ w
        return world.attend(z.reshape(len(h), 2, WIDTH // 2), z[:, :2], dst_rows[:, 1:3], 0.2).reshape(len(dst_rows), WIDTH)
    value = lambda world, s, d, e: np.tanh(s["x"] @ w) * d["q"] + s["x"]  # noqa: E731
    if reducer == "softmax":
        value = lambda world, s, d, e: (s["x"][:, :1] + d["q"][:, :1], in_rows(s["x"], (1, WIDTH)) + 0.0)  # noqa: E731
    out = world.message(value, reducer, {"x": h}, {"q": dst_rows}, {})
    return out.reshape(len(dst_rows), WIDTH) @ w if reducer == "softmax" else out


class Sampled:
    """A layer's graph in a minibatch, with the methods of `dense_graphs.Dense` computed by the library: the tested values."""

    def __init__(self, graph):
        self.graph = graph

    def copy_src(self, x, reducer):
        return self.graph.aggregate(fn.copy_src(x), reducer)

    def linear(self, x, w, reducer, evaluation):
        return self.graph.aggregate(fn.linear(x, w), reducer)

    def attend(self, z, src, dst, slope):
        return self.graph.aggregate(fn.attend(z, src, dst, slope), "sum")

    def message(self, function, reducer, src, dst, edge):
        return self.graph.aggregate(lambda s, d, e: function(ops, s, d, e), reducer, src=src, dst=dst)

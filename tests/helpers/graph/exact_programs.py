"""Random models whose results in exact numerics on N ranks must equal one rank's bit by bit, for property tests.

A step of a model is either right, or it would let the result depend on the division of rows. A model of right steps has
the same bits on any number of ranks and the values of fast numerics. Any other model is refused, at the first wrong step,
on every rank.
"""

import itertools

import numpy as np

from sarlite import Graph, Tensor, fn, nn, numerics
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError
from sarlite.numerics.exact_sum import Exact
from sarlite.tape import ops
from tests.helpers.tape.slopes import Unclear

WIDTH, LARGEST = 6, 1e4
RTOL = {np.dtype(np.float32): 2e-3, np.dtype(np.float64): 1e-10}


class Rank:
    """One rank's part of the graph, with methods that draw parameters and arrays from the same random numbers on all ranks."""

    def __init__(self, graph, n_nodes, n_edges, seed, dtype):
        self.graph, self.n_nodes, self.n_edges, self.seed, self.dtype = graph, n_nodes, n_edges, seed, dtype
        self.parameters, self.owned, self._next = [], [], itertools.count()

    def values(self, *shape):
        """Return an array of random numbers that is the same on every rank."""
        return np.random.default_rng([self.seed, next(self._next)]).standard_normal(shape).astype(self.dtype)

    def rows(self, *shape):
        return self.values(self.n_nodes, *shape)[self.graph.node_ids]

    def edges(self, *shape):
        return self.values(self.n_edges, *shape)[self.graph.edge_ids]

    def learned(self, *shape):
        self.parameters.append(nn.Parameter(self.values(*shape)))
        return self.parameters[-1]

    def table(self):
        """Return this rank's rows of a new learned table, (n_local, width): each node's row belongs to the rank that owns the node."""
        self.owned.append(nn.Parameter(self.rows(WIDTH), ids=self.graph.node_ids))
        return ops.take(self.owned[-1], np.arange(self.graph.n_dst))

    def sum(self, x, reducer="sum"):
        return self.graph.aggregate(fn.copy_src(x), reducer)


def _own(array):
    return Tensor(array, placement="rows")


def _alike(array):
    return Tensor(array, placement="replicated")


def _function(r, h):
    inside, scale, shift = r.learned(WIDTH, WIDTH), r.learned(WIDTH), r.values(WIDTH)
    return r.graph.aggregate(lambda s, d, e: (s["h"] * shift) @ inside - d["h"] * scale, "mean", {"h": h}, {"h": h})


def _attention(r, h):
    z, ends = (h @ r.learned(WIDTH, WIDTH)).reshape(-1, 2, 3), h @ r.learned(WIDTH, 4)
    return r.graph.aggregate(fn.attend(z, ends[:, :2], ends[:, 2:]), "sum").reshape(-1, WIDTH)


def _made_weight(rank, h):
    """Return h times a weight matrix that is itself computed from learned parameters of the Rank `rank`."""
    activation = nn.Activation(WIDTH, "elu", rng=nn.Random(0), dtype=rank.dtype)
    rank.parameters.append(activation.bias)
    return h @ activation(rank.learned(WIDTH, 3) @ rank.learned(3, WIDTH), rank.graph)


def _weighted(r, h, edges, reducer):
    return r.graph.aggregate(fn.mul_edge(h, (edges @ r.learned(3, 1))[:, 0]), reducer)


RIGHT = {
    "product": lambda r, h: h @ r.learned(WIDTH, WIDTH),
    "scale and bias": lambda r, h: h * r.learned(WIDTH) + r.learned(WIDTH),
    "array of rows": lambda r, h: h * r.rows(WIDTH),
    "column of an array": lambda r, h: h + r.rows(1),
    "array alike": lambda r, h: h * r.values(WIDTH) - r.values(1, WIDTH),
    "product with an array": lambda r, h: h @ r.values(WIDTH, WIDTH),
    "stated basis": lambda r, h: h @ (_alike(r.values(WIDTH, WIDTH)) @ r.learned(WIDTH, WIDTH)),
    "stated mask": lambda r, h: h @ (r.learned(WIDTH, WIDTH) * _alike(r.values(WIDTH, WIDTH) > 0)),
    "stated rows": lambda r, h: h + r.sum(_own(r.rows(WIDTH)) * r.learned(WIDTH)),
    "stated edges": lambda r, h: _weighted(r, h, _own(r.edges(3)), "sum"),
    "weights of edges": lambda r, h: r.graph.aggregate(fn.mul_edge(h, r.edges()), "mean"),
    "owned table": lambda r, h: h * r.table(),
    "sum of an owned table": lambda r, h: h + r.sum(r.table(), "mean"),
    "largest": lambda r, h: r.sum(h, "max") + h,
    "symmetric": lambda r, h: r.sum(h, "sym") - h,
    "linear": lambda r, h: r.graph.aggregate(fn.linear(h, r.learned(WIDTH, WIDTH)), "mean"),
    "function": _function,
    "attention": _attention,
    "heads": lambda r, h: ops.softmax(h.reshape(-1, 2, 3), -1).reshape(-1, WIDTH),
    "heads' sums": lambda r, h: h * h.reshape(len(h), 3, 2).sum(2).sum(1, keepdims=True),
    "products by head": lambda r, h: h.reshape(-1, 2, 3).matmul_by_head(r.learned(2, 3, 3)).reshape(-1, WIDTH),
    "layer norm": lambda r, h: ops.layer_norm(h, r.learned(WIDTH), r.learned(WIDTH)),
    "batch norm": lambda r, h: nn.BatchNorm(WIDTH, dtype=r.dtype)(h, r.graph.comm),
    "columns": lambda r, h: ops.concat([h[:, 2:], h[:, :2] * 2], 1),
    "where": lambda r, h: ops.where(r.rows(WIDTH) > 0, h, h * r.learned(WIDTH)),
    "scalar": lambda r, h: h * (ops.sum(r.learned(WIDTH)) * 0.3 + 1),
    "smooth": lambda r, h: ops.elu(h) + ops.sigmoid(h) * 0.5,
    "made weight": _made_weight,
    "turned weight": lambda r, h: h @ r.learned(WIDTH, WIDTH).T,
}
WRONG = {
    "basis": lambda r, h: h @ (Tensor(r.values(WIDTH, WIDTH)) @ r.learned(WIDTH, WIDTH)),
    "basis of an array": lambda r, h: h @ (r.values(WIDTH, WIDTH) @ r.learned(WIDTH, WIDTH)),
    "mask": lambda r, h: h @ (r.learned(WIDTH, WIDTH) * (r.values(WIDTH, WIDTH) > 0)),
    "array of edges": lambda r, h: _weighted(r, h, Tensor(r.edges(3)), "sum"),
    "scaled array": lambda r, h: h + r.sum(r.learned(WIDTH) * r.rows(WIDTH)),
    "learned leaf": lambda r, h: h * Tensor(r.values(WIDTH), requires_grad=True),
    "table of all nodes": lambda r, h: h + r.sum(ops.take(r.learned(r.n_nodes, WIDTH), r.graph.src_ids)),
    "table by stated rows": lambda r, h: h + ops.take(r.learned(r.n_nodes, WIDTH), _own(r.graph.src_ids)),
    "learned first axis": lambda r, h: h * r.learned(1, WIDTH),
    "sum of rows": lambda r, h: h - h.mean(0),
    "sum of turned rows": lambda r, h: h * h.T.sum(1),
    "products of rows": lambda r, h: h @ ops.matmul(h.T, h),
    "softmax of rows": lambda r, h: ops.softmax(h.T, 1).T,
    "rows as axis 1": lambda r, h: h * h.reshape(1, -1, WIDTH).sum(1),
    "new axis": lambda r, h: h - h[None].sum(1),
    "pairs of rows": lambda r, h: h + h.reshape(-1, 2, WIDTH).sum(1).sum(),
    "first row": lambda r, h: h - h[0],
    "largest row": lambda r, h: h - h.max(0),
    "batch norm of a weight": lambda r, h: h @ nn.BatchNorm(WIDTH, dtype=r.dtype)(r.learned(WIDTH, WIDTH), r.graph.comm),
}


class Program:
    """Random program for exact numerics: a graph, its division among ranks, and steps, at most one of which must be refused."""

    def __init__(self, dice):
        self.dtype = np.dtype(np.float32 if dice.random() < 0.5 else np.float64)
        self.n_nodes, self.seed = int(dice.integers(8, 16)), int(dice.integers(2**31))
        self.edges = dice.integers(0, self.n_nodes - 1, (2, int(dice.integers(1, 40))))  # the last node is isolated
        self.names = [str(name) for name in dice.choice(list(RIGHT), int(dice.integers(1, 5)))]
        self.wrong = str(dice.choice(list(WRONG))) if dice.random() < 0.35 else None
        if self.wrong:
            self.names.insert(int(dice.integers(len(self.names) + 1)), self.wrong)
        self.n_ranks = int(dice.integers(2, 5))
        parts = dice.integers(0, self.n_ranks, self.n_nodes)
        if self.wrong:  # a single row may stand on any axis
            parts[: 2 * self.n_ranks] = np.resize(np.arange(self.n_ranks), 2 * self.n_ranks)
        self.options = {"mode": str(dice.choice(["sar", "sa", "oneshot", "broadcast"])), "prefetch": int(dice.integers(3)),
                        "backward": str(dice.choice(["push", "fetch"])), "parts": parts}

    def __str__(self):
        return (f"{self.dtype}, {self.n_nodes} nodes, edges {self.edges.tolist()}, {self.n_ranks} ranks, {self.options}\n"
                f"steps {self.names}, wrong {self.wrong}")

    def on_rank(self, comm, numerics_name):
        """Run the program in "exact" or "fast" numerics; return (node ids, output and input's gradient by node, parameters' gradients).

        If a step is refused, return its name and the error.
        """
        graph = Graph.from_edges(*self.edges, self.n_nodes)
        graph = graph.shard(comm, **self.options) if comm.size > 1 else graph
        rank = Rank(graph, self.n_nodes, self.edges.shape[1], self.seed, self.dtype)
        h = x = Tensor(rank.rows(WIDTH), requires_grad=True, placement="rows")
        with numerics.using(Exact(comm) if numerics_name == "exact" else None):
            for step in self.names:
                try:
                    h = (RIGHT | WRONG)[step](rank, h)
                except ConfigError as error:
                    return step, str(error)
            if h.requires_grad:
                h.backward(rank.rows(WIDTH))
        by_id = [h.data, x.grad, *(p.grad for p in rank.owned)]
        return graph.node_ids, [np.zeros((len(h), WIDTH)) if a is None else a for a in by_id], [p.grad for p in rank.parameters]

    def check(self):
        with np.errstate(all="ignore"):
            one_rank = self.on_rank(Solo(), "exact")
            results = threads.run(self.n_ranks, self.on_rank, "exact")
            if self.wrong:
                for step, error in (one_rank, *results):
                    assert step == self.wrong and error.startswith("numerics exact: "), f"{self}\n{step}: {error}"
                return "refused"
            fast = self.on_rank(Solo(), "fast")
        assert not isinstance(one_rank[0], str), f"{self}\nrefused: {one_rank}"
        if max(np.abs(a).max(initial=0) for a in (*fast[1], *fast[2])) > LARGEST:
            raise Unclear
        for a, b in zip((*one_rank[1], *one_rank[2]), (*fast[1], *fast[2])):
            np.testing.assert_allclose(a, b, rtol=0, atol=RTOL[self.dtype] * max(np.abs(b).max(initial=0), 1), err_msg=str(self))
        ids = np.concatenate([rank_ids for rank_ids, _, _ in results])
        for expected, *of_ranks in zip(one_rank[1], *(rows for _, rows, _ in results)):
            assert np.array_equal(np.concatenate(of_ranks)[np.argsort(ids)], expected), str(self)
        for _, _, gradients in results:
            assert all(np.array_equal(a, b) for a, b in zip(gradients, one_rank[2], strict=True)), str(self)
        return f"{self.n_ranks} ranks"

"""Random programs of aggregations over several relations, on the parts of a graph, compared with NumPy on the whole graph."""

import numpy as np

from sarlite import HeteroGraph, Tensor, fn
from sarlite.comm import threads
from tests.helpers.graph.dense_graphs import Dense, Edges, in_rows
from tests.helpers.graph.graph_programs import MODES, RTOL
from tests.helpers.tape import slopes
from tests.helpers.tape.slopes import LONG, Frozen, Unclear
from tests.helpers.tape.tape_programs import LARGEST

REDUCERS = {
    "sum": ("copy", "linear", "mul_edge", "attend", "attend_linear", "function"),
    "sym": ("copy", "linear"),
    "mean": ("copy", "linear", "mul_edge", "function"),
    "max": ("copy", "mul_edge", "function"),
    "min": ("copy", "mul_edge", "function"),
    "softmax": ("function",),
}
HEADS, FEAT = 2, 2
WIDTH = HEADS * FEAT


class Program:
    """Random program of relational aggregations: node types, relations, their division, and calls of `aggregate`.

    A call is (reducer, True if rows are by head, {relation: message}, {type: weight of its own rows}, evaluation).
    """

    def __init__(self, dice):
        self.dice = dice
        self.dtype = np.dtype(np.float32 if dice.random() < 0.25 else np.float64)
        self.near = 1e-3 if self.dtype == np.float32 else 1e-9
        self.sizes = {
            name: int(dice.choice([0, 1, 3, 5, 8], p=[0.05, 0.15, 0.3, 0.3, 0.2]))
            for name in "abc"[: dice.integers(1, 4)]
        }
        self.edges = {}
        for k in range(int(dice.integers(1, 5))):
            source, to = self.one(self.sizes), self.one(self.sizes)
            n = int(dice.integers(0, 12)) if self.sizes[source] and self.sizes[to] else 0
            self.edges[source, f"r{k}", to] = Edges(
                dice.integers(0, max(self.sizes[source], 1), n),
                dice.integers(0, max(self.sizes[to], 1), n),
                self.sizes[source],
                self.sizes[to],
                True,
            )
        self.n_ranks = int(dice.integers(1, 5))
        self.options = {
            "mode": self.one(MODES),
            "prefetch": int(dice.integers(4)),
            "parts": {name: dice.integers(0, self.n_ranks, n) for name, n in self.sizes.items()},
        }
        self.change, self.times = self.one((None, None, "mode", "forget", "recover")), 1 + (dice.random() < 0.25)
        self.leaves = []  # (node type, relation or None, array, needs, constant)
        for name in self.sizes:
            self.leaf(name, (self.sizes[name], WIDTH), constant=0.4)
        self.calls = [self._call() for _ in range(int(dice.integers(1, 4)))]
        self.weights = dice.standard_normal(1000).astype(self.dtype)
        with np.errstate(all="ignore"):
            for value in self.values(Whole(self, Frozen(self.near)), [leaf[1].astype(LONG) for leaf in self.leaves]):
                if np.abs(value).max(initial=0) > LARGEST or not np.isfinite(value).all():
                    raise Unclear

    def one(self, values):
        values = list(values)
        return values[int(self.dice.integers(len(values)))]

    def leaf(self, place, shape, constant=0.0):
        array = (self.dice.standard_normal(shape) * 0.7).astype(self.dtype)
        needs = self.dice.random() < 0.85
        self.leaves.append((place, array, needs, not needs and self.dice.random() < constant))
        return len(self.leaves) - 1

    def _call(self):
        reducer = self.one(REDUCERS)
        by_head = reducer == "softmax" or (reducer != "sym" and self.dice.random() < 0.4)
        kinds = [
            kind for kind in REDUCERS[reducer] if kind not in (("linear",) if by_head else ("attend", "attend_linear"))
        ]
        chosen = [relation for relation in self.edges if self.dice.random() < 0.8] or [next(iter(self.edges))]
        shared = self.leaf(None, (WIDTH, WIDTH))  # several relations may share a weight
        messages = {relation: self._message(relation, self.one(kinds), shared) for relation in chosen}
        self_weights = {}
        if not by_head and self.dice.random() < 0.3:
            self_weights = {to: self.leaf(None, (WIDTH, WIDTH)) for _, _, to in chosen[:1]}
        return reducer, by_head, messages, self_weights, self.one((None, "inside", "first"))

    def _message(self, relation, kind, shared):
        w = shared if self.dice.random() < 0.5 else self.leaf(None, (WIDTH, WIDTH))
        return (
            kind,
            w,
            self.leaf(relation, (self.edges[relation].n_edges,)),
            self.leaf(None, (WIDTH, HEADS)),
            self.leaf(None, (WIDTH, HEADS)),
        )

    def __str__(self):
        lines = [
            f"{self.dtype}, ranks {self.n_ranks}, {self.options}, sizes {self.sizes}, "
            f"change {self.change}, times {self.times}"
        ]
        lines += [f"{relation}: {e.src.tolist()} -> {e.dst.tolist()}" for relation, e in self.edges.items()]
        lines += [
            f"leaf {k}: {place} {array.shape}, needs {needs}, constant {constant}"
            for k, (place, array, needs, constant) in enumerate(self.leaves)
        ]
        return "\n".join([*lines, *map(str, self.calls)])

    # ---- the program

    def values(self, world, leaves):
        """Return the nodes' values after all calls of `aggregate`, an array for each node type; `world` is a `Parts` or a `Whole`."""
        h = dict(zip(self.sizes, leaves))
        for call in self.calls:
            for to, out in world.aggregate(call, h, leaves).items():
                h[to] = np.tanh(out) + h[to]
        return list(h.values())

    def on_rank(self, comm):
        def make(**options):
            edges = {r: (e.src, e.dst) for r, e in self.edges.items()}
            return HeteroGraph.from_edges(edges, self.sizes, comm=comm, **{**self.options, **options})

        graph = make()
        constants = {}
        if self.change is not None:
            self._once(graph, constants)
        if self.change == "mode":
            graph = make(mode=MODES[len(self.edges) % 4])
        elif self.change is not None:
            getattr(graph, self.change)()
        return graph.node_ids, graph.edge_ids, [self._once(graph, constants) for _ in range(self.times)]

    def _once(self, graph, constants):
        leaves = []
        for k, (place, array, needs, constant) in enumerate(self.leaves):
            local_rows = (
                array.copy()
                if place is None
                else array[graph.node_ids[place] if isinstance(place, str) else graph.edge_ids[place]]
            )
            make = lambda: Tensor(local_rows, requires_grad=needs, constant=constant)  # noqa: B023, E731
            leaves.append(constants.setdefault(k, make()) if constant else make())
        outputs = self.values(Parts(graph), leaves)
        total = sum((out * self._weight(name)[graph.node_ids[name]]).sum() for name, out in zip(self.sizes, outputs))
        total.backward()
        return [out.data.copy() for out in outputs], [leaf.grad for leaf in leaves]

    def _weight(self, name):
        return self.weights[: self.sizes[name] * WIDTH].reshape(-1, WIDTH)

    # ---- the checks

    def check(self):
        frozen, whole = Frozen(self.near), [leaf[1].astype(LONG) for leaf in self.leaves]
        with np.errstate(all="ignore"):
            expected = self.values(Whole(self, frozen), whole)
            ranks = threads.run(self.n_ranks, self.on_rank)
        rtol, grad_rtol = RTOL[self.dtype]
        wanted = [k for k, leaf in enumerate(self.leaves) if leaf[2]]
        for time in range(self.times):
            for name, out, j in zip(self.sizes, expected, range(9)):
                rows = np.full(out.shape, np.nan)
                for node_ids, _, runs in ranks:
                    rows[node_ids[name]] = runs[time][0][j]
                slopes.close(rows, out, rtol, f"rows of {name}, time {time}")
            grads = [self._gathered(k, time, ranks) for k in wanted]

            def moved(fr, some):
                leaves = list(whole)
                for k, x in zip(wanted, some):
                    leaves[k] = x
                return self.values(Whole(self, fr), leaves)

            slopes.check(
                moved,
                frozen,
                [whole[k] for k in wanted],
                grads,
                [self._weight(name) for name in self.sizes],
                self.dice,
                grad_rtol,
                wanted,
            )
        return (
            f"{self.options['mode']}{'' if self.change is None else ' ' + self.change}"
            if self.n_ranks > 1
            else "one rank"
        )

    def _gathered(self, k, time, ranks):
        place, array = self.leaves[k][:2]
        out = np.zeros(array.shape)
        for node_ids, edge_ids, runs in ranks:
            if runs[time][1][k] is not None:
                out[... if place is None else node_ids[place] if isinstance(place, str) else edge_ids[place]] += runs[
                    time
                ][1][k]
        return out


def function(reducer, shape, s, d, e, w, a):
    value = in_rows(np.tanh(s["x"] @ w) * e["w"].reshape(-1, 1) + d["q"], shape)
    return (s["x"] @ a, value) if reducer == "softmax" else value


class Parts:
    """A rank's part of the graph with the method `aggregate` computed by a `HeteroGraph`: the tested values."""

    def __init__(self, graph):
        self.graph = graph

    def aggregate(self, call, h, leaves):
        reducer, by_head, messages, self_weights, evaluation = call
        by_relation = {
            relation: self._message(reducer, by_head, relation, message, h, leaves)
            for relation, message in messages.items()
        }
        outputs = self.graph.aggregate(
            by_relation, reducer, self_terms={to: (h[to], leaves[w]) for to, w in self_weights.items()}, evaluation=evaluation
        )
        return {to: in_rows(out, (-1,)) for to, out in outputs.items()}

    def _message(self, reducer, by_head, relation, message, h, leaves):
        (kind, *numbers), x, q = message, h[relation[0]], h[relation[2]]
        w, edge, a, b = (leaves[k] for k in numbers)
        shape = (HEADS, FEAT) if by_head else (WIDTH,)
        if kind == "copy":
            return fn.copy_src(in_rows(x, shape))
        if kind == "linear":
            return fn.linear(x, w)
        if kind == "mul_edge":
            return fn.mul_edge(in_rows(x, shape), edge)
        if kind == "attend":
            return fn.attend(in_rows(x @ w, (HEADS, FEAT)), x @ a, q @ b)
        if kind == "attend_linear":
            return fn.attend_linear(x, w, a, q @ b)
        call = lambda s, d, e: function(reducer, shape, s, d, e, w, a)  # noqa: E731
        return fn.message(call, {"x": x}, {"q": q}, {"w": edge})


class Whole:
    """The whole graph with the method `aggregate` computed by NumPy formulas: the expected values."""

    def __init__(self, program, frozen):
        self.program, self.frozen = program, frozen

    def aggregate(self, call, h, leaves):
        reducer, by_head, messages, self_weights, _ = call
        outputs = {to: h[to] @ leaves[w] for to, w in self_weights.items()}
        for relation, message in messages.items():
            out = self._sum(reducer, by_head, relation, message, h, leaves)
            outputs[relation[2]] = outputs.get(relation[2], 0) + in_rows(out, (-1,))
        return outputs

    def _sum(self, reducer, by_head, relation, message, h, leaves):
        (kind, *numbers), x, q = message, h[relation[0]], h[relation[2]]
        dense, (w, edge, a, b) = Dense(self.program.edges[relation], self.frozen), (leaves[k] for k in numbers)
        shape = (HEADS, FEAT) if by_head else (WIDTH,)
        if kind == "copy":
            return dense.copy_src(in_rows(x, shape), reducer)
        if kind == "linear":
            return dense.linear(x, w, reducer, None)
        if kind == "mul_edge":
            return dense.mul_edge(in_rows(x, shape), edge, reducer)
        if kind == "attend":
            return dense.attend(in_rows(x @ w, (HEADS, FEAT)), x @ a, q @ b, 0.2)
        if kind == "attend_linear":
            return dense.attend_linear(x, w, a, q @ b, 0.2)
        call = lambda world, s, d, e: function(reducer, shape, s, d, e, w, a)  # noqa: E731
        return dense.message(call, reducer, {"x": x}, {"q": q}, {"w": edge})

"""Steps of random graph programs: run on a `Dense`, a step gives the expected value, and on a `Ranked` the tested value.

The Dense or Ranked is called the step's world. Steps ask the world for aggregations, choices and constants. All else
are operators and NumPy's functions.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Leaf(NamedTuple):
    """Input of a random program; `place` tells its rows: "src", "dst" or "edge", or "param" for a parameter."""

    place: str
    array: np.ndarray
    needs: bool
    constant: bool


class Step(NamedTuple):
    name: str
    run: Callable  # (world, leaves, src values, dst values) -> value of the destinations
    onto: str = "dst"


class Drawn:
    """Generator of random steps, which also makes the leaves (inputs) that the steps read."""

    def __init__(self, dice, dtype, sizes, heads, feat, square):
        self.dice, self.dtype, self.sizes, self.heads, self.feat, self.square = dice, dtype, sizes, heads, feat, square
        self.width, self.leaves = heads * feat, []

    def one(self, values):
        values = list(values)
        return values[int(self.dice.integers(len(values)))]

    def leaf(self, place, *shape, tied=0.0, constant=0.0):
        n = () if place == "param" else (self.sizes[place],)
        array = (
            self.dice.integers(-2, 3, (*n, *shape)) / 2
            if self.dice.random() < tied
            else self.dice.standard_normal((*n, *shape)) * 0.7
        )
        needs = self.dice.random() < 0.85
        self.leaves.append(Leaf(place, array.astype(self.dtype), needs, not needs and self.dice.random() < constant))
        return len(self.leaves) - 1

    def param(self, *shape):
        return self.leaf("param", *shape)

    # ---- steps

    def step(self, n_src, n_dst, n_leaves, edge_weights, n_edge_features):
        """Return a random step on one of `n_src` source values and one of `n_dst` destination values; `n_leaves` of these are leaves.

        The first `n_leaves` values are leaves.

        `edge_weights` tells if edges have weights, "negative" if some are below 0; `n_edge_features` is the number of edge
        features.
        """
        return getattr(self, self.one(KINDS))(
            int(self.dice.integers(n_src)), int(self.dice.integers(n_dst)), n_leaves, edge_weights, n_edge_features
        )

    def _sums(self, weighted):
        return self.one(("sum",) if weighted == "negative" else ("sum", "mean", "sym"))

    def copy_src(self, x, q, n_leaves, weighted, features):
        reducer = self.one((self._sums(weighted), "max", "min"))
        shape = self.one([(self.width,), (self.heads, self.feat)])
        exact = x < n_leaves

        def run(world, leaves, src, dst):
            return world.reshape(world.copy_src(world.reshape(src[x], *shape), reducer, exact), self.width)

        return Step(f"copy_src {x} {shape} {reducer}", run)

    def linear(self, x, q, n_leaves, weighted, features):
        reducer, n_out = self._sums(weighted), self.one((self.width, 1, self.width + 2))
        w, after, way = (
            self.param(self.width, n_out),
            self.param(n_out, self.width),
            self.one((None, "product", "first", "inside")),
        )
        return Step(
            f"linear {x} {n_out} {reducer} {way}",
            lambda world, leaves, src, dst: world.linear(src[x], leaves[w], reducer, way) @ leaves[after],
        )

    def mul_edge(self, x, q, n_leaves, weighted, features):
        reducer, by_head, computed = (
            self.one(("sum", "mean", "max", "min")),
            bool(self.dice.integers(2)),
            bool(self.dice.integers(2)),
        )
        w = self.leaf("edge", *((self.heads,) if by_head else ()), tied=0.4)
        shape = (self.heads, self.feat) if by_head else self.one([(self.width,), (self.heads, self.feat)])

        def run(world, leaves, src, dst):
            weight = np.tanh(leaves[w] * 1.5) if computed else leaves[w]
            return world.reshape(world.mul_edge(world.reshape(src[x], *shape), weight, reducer), self.width)

        return Step(f"mul_edge {x} {shape} {reducer}, computed {computed}", run)

    def attend(self, x, q, n_leaves, weighted, features):
        slope, shared, edge = (
            self.one((0.2, 0.0, 1.0)),
            bool(self.dice.random() < 0.25),
            features and self.dice.random() < 0.5,
        )
        a, b, attn = (
            self.param(self.width, self.heads),
            self.param(self.width, self.heads),
            self.param(features or 1, self.heads),
        )
        shape = (1, self.width) if shared else (self.heads, self.feat)

        def run(world, leaves, src, dst):
            more = (world.edges.features, leaves[attn]) if edge else ()
            out = world.attend(world.reshape(src[x], *shape), src[x] @ leaves[a], dst[q] @ leaves[b], slope, *more)
            return out.sum(1) if shared else world.reshape(out, self.width)

        return Step(f"attend {x} {q} {shape}, slope {slope}, edge {bool(edge)}", run)

    def attend_linear(self, x, q, n_leaves, weighted, features):
        w, a, b = (
            self.param(self.width, self.width),
            self.param(self.width, self.heads),
            self.param(self.width, self.heads),
        )
        return Step(
            f"attend_linear {x} {q}",
            lambda world, leaves, src, dst: world.reshape(
                world.attend_linear(src[x], leaves[w], leaves[a], dst[q] @ leaves[b], 0.2), self.width
            ),
        )

    def function(self, src_value, dst_value, n_leaves, edge_weights, n_edge_features):
        """Return a step whose message is a random function of source value `src_value`, destination value `dst_value` and edges.

        The values are given by their numbers.
        """
        reducer = self.one(("sum", "mean", "max", "min", "softmax"))
        places = self.one([("src",), ("src", "dst"), ("src", "edge"), ("src", "dst", "edge"), ("edge",), ("dst",)])
        e, table, w = (
            self.leaf("edge", *self.one([(), (1,), (self.width,)])),
            self.param(4, self.width),
            self.param(self.width, self.width),
        )
        score, kinds = self.param(self.width, self.heads), self.dice.integers(0, 4, self.sizes["src"])
        text, value = self._expression(places, int(self.dice.integers(1, 4)))
        by_head = bool(self.dice.integers(2))

        def run(world, leaves, src, dst):
            def message(world, s, d, e):
                out = value(world, s, d, e, leaves[table], leaves[w])
                if reducer == "softmax":
                    return out @ leaves[score], world.reshape(out, self.heads, self.feat)
                return world.reshape(out, self.heads, self.feat) if by_head else out

            arguments = {
                "src": {"x": src[src_value], "kind": world.rows("src", kinds)},
                "dst": {"q": dst[dst_value]},
                "edge": {"w": leaves[e]},
            }
            out = world.message(
                message, reducer, *(arguments[place] if place in places else {} for place in ("src", "dst", "edge"))
            )
            return world.reshape(out, self.width)

        return Step(f"function {src_value} {dst_value} {reducer}: {text}", run)

    def _expression(self, places, depth):
        if depth == 0:
            return self._atom(self.one(places))
        name, other = self.one(UNARY), self.one(BINARY)
        left, f = self._expression(places, depth - 1)
        if self.dice.random() < 0.4:
            unary = UNARY[name]
            return f"{name}({left})", lambda world, s, d, e, t, w: unary(world, f(world, s, d, e, t, w), w)
        right, g = self._expression(places, int(self.dice.integers(depth)))
        pair = BINARY[other]
        return f"{other}({left}, {right})", lambda world, s, d, e, t, w: pair(
            world, f(world, s, d, e, t, w), g(world, s, d, e, t, w)
        )

    def _atom(self, place):
        width = self.width
        if place == "edge":
            return "edge", lambda world, s, d, e, t, w: world.reshape(e["w"], -1) * t[0]
        if place == "dst":
            return "dst", lambda world, s, d, e, t, w: d["q"]
        if self.dice.random() < 0.25:
            return "table", lambda world, s, d, e, t, w: world.take(t, s["kind"])
        if self.dice.random() < 0.2:
            return "a column", lambda world, s, d, e, t, w: s["x"][:, :1] * np.ones((1, width), self.dtype)
        return "src", lambda world, s, d, e, t, w: s["x"]

    # ---- what needs no edges

    def dense(self, x, q, n_leaves, weighted, features):
        w, b, f = self.param(self.width, self.width), self.param(self.width), UNARY[self.one(UNARY)]
        onto = "dst" if self.square else self.one(("src", "dst"))
        return Step(
            f"dense {onto}",
            lambda world, leaves, src, dst: f(
                world, (src[x] if onto == "src" else dst[q]) @ leaves[w] + leaves[b], leaves[w]
            ),
            onto,
        )

    def no_grad(self, src_value, dst_value, n_leaves, edge_weights, n_edge_features):
        """Return the step sum(x) * q + sum(x) of values `src_value` (x) and `dst_value` (q), where the first sum passes no gradient.

        The values are given by their numbers.
        """
        reducer = self._sums(edge_weights)
        return Step(
            f"no_grad {src_value} {reducer}",
            lambda world, leaves, src, dst: (
                world.constant(lambda: world.copy_src(src[src_value], reducer)) * dst[dst_value] + world.copy_src(src[src_value], reducer)
            ),
        )


UNARY = {
    "tanh": lambda world, x, w: np.tanh(x), "exp": lambda world, x, w: np.exp(x * 0.25),
    "square": lambda world, x, w: x * x,
    "relu": lambda world, x, w: world.relu(x), "abs": lambda world, x, w: world.abs(x),
    "product": lambda world, x, w: x @ w,
    "sqrt": lambda world, x, w: np.sqrt(x * x + 0.5), "sum": lambda world, x, w: x.sum(1, keepdims=True) * w[0],
    "double": lambda world, x, w: x * 2.0, "reversed": lambda world, x, w: x[:, ::-1],
}  # fmt: skip
BINARY = {
    "add": lambda world, a, b: a + b, "sub": lambda world, a, b: a - b, "mul": lambda world, a, b: a * b,
    "div": lambda world, a, b: a / (b * b + 1.0), "maximum": lambda world, a, b: world.maximum(a, b),
}  # fmt: skip
KINDS = (
    "copy_src",
    "copy_src",
    "linear",
    "linear",
    "mul_edge",
    "mul_edge",
    "attend",
    "attend",
    "attend_linear",
    "function",
    "function",
    "function",
    "function",
    "dense",
    "no_grad",
)

"""Random programs of aggregations on the parts of a random graph, compared with plain NumPy on the whole graph."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

from sarlite import Graph, Tensor, fn
from sarlite.comm import threads
from sarlite.errors import PeerError
from sarlite.tape import no_grad, ops
from tests.helpers.comm.failing_communicators import Fault, Faulty
from tests.helpers.graph.dense_graphs import Dense, Edges, in_rows
from tests.helpers.graph.graph_steps import Drawn
from tests.helpers.tape import slopes
from tests.helpers.tape.slopes import LONG, Frozen, Unclear
from tests.helpers.tape.tape_programs import LARGEST

MODES = ("sar", "sa", "oneshot", "broadcast")
RTOL = {np.dtype(np.float64): (1e-10, 1e-8), np.dtype(np.float32): (3e-4, 4e-3)}  # tolerances of values and of gradients


class Ranked:
    """A rank's part of a graph, with the methods of `dense_graphs.Dense` computed by the library, the tested values."""

    def __init__(self, graph, dtype):
        self.graph, self.dtype = graph, dtype
        self.edges = SimpleNamespace(
            features=None if graph.edge_features is None else graph.edge_features.astype(dtype)
        )
        self.ids = {"src": graph.src_ids, "dst": graph.dst_ids, "edge": graph.edge_ids}

    def rows(self, place, values):
        return values[self.ids[place]]

    def copy_src(self, x, reducer, exact=False):
        return self.graph.aggregate(fn.copy_src(x), reducer)

    def linear(self, x, w, reducer, evaluation):
        return self.graph.aggregate(fn.linear(x, w, evaluation), reducer)

    def mul_edge(self, x, w, reducer):
        return self.graph.aggregate(fn.mul_edge(x, w), reducer)

    def attend(self, z, src, dst, slope, features=None, attn_edge=None):
        return self.graph.aggregate(fn.attend(z, src, dst, slope, edge=features, attn_edge=attn_edge), "sum")

    def attend_linear(self, x, w, src_w, dst, slope):
        return self.graph.aggregate(fn.attend_linear(x, w, src_w, dst, slope), "sum")

    def message(self, function, reducer, src, dst, edge):
        return self.graph.aggregate(lambda s, d, e: function(self, s, d, e), reducer, src=src, dst=dst, edge=edge)

    def constant(self, make):
        with no_grad():
            return make()

    relu, abs, maximum, take = (
        staticmethod(ops.relu),
        staticmethod(abs),
        staticmethod(np.maximum),
        staticmethod(ops.take),
    )

    def reshape(self, x, *shape):
        return in_rows(x, shape)


class Whole(Dense):
    def rows(self, place, values):
        return values


class Program:
    """Random program of aggregations: a graph, its division among ranks, leaves (inputs), steps, and the outputs' gradients."""

    def __init__(self, dice):
        self.dice = dice
        self.dtype = np.dtype(np.float32 if dice.random() < 0.25 else np.float64)
        self.near = 1e-3 if self.dtype == np.float32 else 1e-9
        self._draw_edges()
        self._draw_parts()
        edges = self.edges
        self.drawn = drawn = Drawn(
            dice,
            self.dtype,
            {"src": edges.n_src, "dst": edges.n_dst, "edge": edges.n_edges},
            int(dice.integers(1, 4)),
            int(dice.integers(1, 5)),
            not edges.bipartite,
        )
        self.n_src_leaves = int(dice.integers(1, 4))
        for _ in range(self.n_src_leaves):
            drawn.leaf("src", drawn.width, tied=0.3, constant=0.6)
        if edges.bipartite:
            drawn.leaf("dst", drawn.width)
        self.first = len(drawn.leaves)
        self._draw_steps(int(dice.integers(1, 5)))
        self.weights = [dice.standard_normal((edges.n_dst, drawn.width)).astype(self.dtype) for _ in self.outputs]

    def _draw_edges(self):
        dice, bipartite = self.dice, self.dice.random() < 0.3
        n_src = int(dice.choice([0, 1, 2, 3, 5, 8, 12], p=[0.03, 0.07, 0.1, 0.2, 0.25, 0.25, 0.1]))
        n_dst = int(dice.choice([0, 1, 3, 6, 9])) if bipartite else n_src
        n_edges = int(dice.integers(0, 3 * max(n_src, n_dst) + 1)) if n_src and n_dst else 0
        into = max(1, n_dst - int(dice.integers(3)))  # the last nodes are isolated
        src, dst = dice.integers(0, max(n_src, 1), n_edges), dice.integers(0, into, n_edges)
        self.loops = not bipartite and dice.random() < 0.15
        self.given = src, dst
        if self.loops:
            missing = np.setdiff1d(np.arange(n_dst), src[src == dst])
            src, dst = np.concatenate([src, missing]), np.concatenate([dst, missing])
        n, kind = len(src), int(dice.integers(6))
        weight = {
            0: lambda: dice.random(n),
            1: lambda: dice.integers(0, 3, n) * 0.5,
            2: lambda: dice.standard_normal(n),
        }.get(kind)
        self.weighted = "negative" if kind == 2 else kind < 2
        weight = None if weight is None else np.asarray(weight(), self.dtype if dice.random() < 0.5 else np.float64)
        features = dice.standard_normal((n, 2)).astype(self.dtype) if dice.random() < 0.3 else None
        self.edges = Edges(src, dst, n_src, n_dst, bipartite, weight, features)

    def _draw_parts(self):
        dice, edges = self.dice, self.edges
        self.n_ranks = int(dice.integers(1, 5))
        some = dice.integers(0, self.n_ranks, max(1, int(dice.integers(1, self.n_ranks + 1))))  # the other ranks have no nodes
        self.options = {
            "mode": MODES[int(dice.integers(4))],
            "prefetch": int(dice.integers(4)),
            "backward": (None, None, "push", "fetch")[int(dice.integers(4))],
        }
        self.options["parts"] = some[dice.integers(0, len(some), edges.n_dst)]
        if edges.bipartite:
            self.options["src_parts"] = dice.integers(0, self.n_ranks, edges.n_src)
        elif dice.random() < 0.3:
            self.options["order"] = dice.permutation(edges.n_dst)
        self.sharded_first, self.whole = dice.random() < 0.5, self.n_ranks == 1 and dice.random() < 0.5
        self.rehearsed, self.times = dice.random() < 0.2, 1 + (dice.random() < 0.25)
        self.fault = (
            (int(dice.integers(self.n_ranks)), dice.random()) if self.n_ranks > 1 and dice.random() < 0.08 else None
        )

    def _draw_steps(self, n_steps):
        self.steps, feats = [], 0 if self.edges.features is None else self.edges.features.shape[1]
        self.outputs = []
        n_src, n_dst = self.n_src_leaves, 1 if self.edges.bipartite else self.n_src_leaves
        for _ in range(n_steps):
            self.steps.append(self.drawn.step(n_src, n_dst, self.n_src_leaves, self.weighted, feats))
            onto_src = self.steps[-1].onto == "src" or not self.edges.bipartite
            n_src, n_dst = n_src + onto_src, n_dst + (self.steps[-1].onto == "dst" or not self.edges.bipartite)
        onto_dst = [k for k, step in enumerate(self.steps) if step.onto == "dst"]
        self.outputs = onto_dst if self.dice.random() < 0.5 else onto_dst[-1:]
        if not onto_dst:
            raise Unclear
        with np.errstate(all="ignore"):
            for value in self.values(
                Whole(self.edges, Frozen(self.near)),
                [leaf.array.astype(LONG) for leaf in self.drawn.leaves],
                all_steps=True,
            ):
                if np.abs(value).max(initial=0) > LARGEST or not np.isfinite(value).all():
                    raise Unclear

    def __str__(self):
        e, lines = self.edges, [f"{self.dtype}, ranks {self.n_ranks}, whole {self.whole}, {self.options}"]
        lines += [f"edges {e.n_src} -> {e.n_dst}, bipartite {e.bipartite}: {e.src.tolist()} -> {e.dst.tolist()}"]
        lines += [
            f"loops {self.loops}, weight {e.weight}, features {e.features is not None}, "
            f"heads {self.drawn.heads}, feat {self.drawn.feat}"
        ]
        lines += [f"rehearsed {self.rehearsed}, times {self.times}, fault {self.fault}"]
        lines += [
            f"leaf {k}: {leaf.place} {leaf.array.shape}, needs {leaf.needs}, constant {leaf.constant}"
            for k, leaf in enumerate(self.drawn.leaves)
        ]
        return "\n".join([*lines, *(step.name for step in self.steps), f"outputs {self.outputs}"])

    # ---- the program

    def values(self, world, leaves, all_steps=False):
        src = list(leaves[: self.n_src_leaves])
        dst = [leaves[self.n_src_leaves]] if self.edges.bipartite else src
        outputs = []
        for step in self.steps:
            outputs.append(step.run(world, leaves, src, dst))
            (src if step.onto == "src" else dst).append(outputs[-1])
        return outputs if all_steps else [outputs[k] for k in self.outputs]

    def make(self, comm):
        e = self.edges
        sizes = {"n_src": e.n_src, "n_dst": e.n_dst} if e.bipartite else {"n_nodes": e.n_dst, "self_loops": self.loops}
        graph = Graph.from_edges(*self.given, **sizes)
        assert graph.n_edges == e.n_edges
        values = {"weight": e.weight, "features": e.features}
        if any(value is not None for value in values.values()) and not (self.sharded_first and not self.whole):
            graph = graph.with_edge_values(**values)
        if self.whole:
            return graph
        graph = graph.shard(comm, **self.options)
        if graph.edge_weight is None and graph.edge_features is None:
            local_values = {name: None if value is None else value[graph.edge_ids] for name, value in values.items()}
            graph = graph.with_edge_values(**local_values) if any(value is not None for value in local_values.values()) else graph
        return graph

    def on_rank(self, comm, alarm):
        """Run the program on this rank; return (its rows' global ids, [(outputs, gradients) of each run]). `alarm` is for `Faulty`."""
        comm = comm if self.fault is None else Faulty(comm, alarm)
        graph = self.make(comm)
        if self.fault is not None:
            graph = self._fail(comm, graph)
        if self.rehearsed:
            with no_grad():
                self._once(graph, backward=False)
        constants = {}
        return Ranked(graph, self.dtype).ids, [self._once(graph, constants=constants) for _ in range(self.times)]

    def _fail(self, comm, graph):
        """Run the program on a new graph, let one rank fail at a random message and all ranks recover; return the new graph."""
        who, share = self.fault
        comm.arm()
        self._once(graph)
        n_points = comm.bcast(comm.points, who)
        graph = self.make(comm)  # a new graph has no kept sum that would save a message
        comm.barrier()
        comm.arm(1 + int(share * n_points) if comm.rank == who and n_points else None)
        with _ignored(Fault, PeerError):
            self._once(graph)
        comm.settle()
        graph.recover()
        return graph

    def _once(self, graph, backward=True, constants=None):
        world = Ranked(graph, self.dtype)
        leaves = []
        for k, leaf in enumerate(self.drawn.leaves):
            array = leaf.array.copy() if leaf.place == "param" else leaf.array[world.ids[leaf.place]]
            if leaf.constant and constants is not None:
                leaves.append(constants.setdefault(k, Tensor(array, constant=True)))
            else:
                leaves.append(Tensor(array, requires_grad=leaf.needs, constant=leaf.constant))
        outputs = self.values(world, leaves)
        if backward:
            total = sum((out * w[graph.dst_ids]).sum() for out, w in zip(outputs, self.weights))
            total.backward()
        return [out.data.copy() for out in outputs], [leaf.grad for leaf in leaves]

    # ---- the checks

    def check(self):
        frozen, whole = Frozen(self.near), [leaf.array.astype(LONG) for leaf in self.drawn.leaves]
        with np.errstate(all="ignore"):
            expected = self.values(Whole(self.edges, frozen), whole)
            alarm = threading.Event()
            ranks = threads.run(self.n_ranks, self.on_rank, alarm)
        rtol, grad_rtol = RTOL[self.dtype]
        wanted = [k for k, leaf in enumerate(self.drawn.leaves) if leaf.needs]
        for time in range(self.times):
            for j, out in enumerate(expected):
                rows = np.full(out.shape, np.nan)
                for ids, runs in ranks:
                    rows[ids["dst"]] = runs[time][0][j]
                    assert runs[time][0][j].dtype == self.dtype
                slopes.close(rows, out, rtol, f"output {self.outputs[j]}, time {time}")
            grads = [
                self._gathered([(ids, runs[time][1][k]) for ids, runs in ranks], self.drawn.leaves[k]) for k in wanted
            ]

            def moved(fr, some):
                leaves = list(whole)
                for k, x in zip(wanted, some):
                    leaves[k] = x
                return self.values(Whole(self.edges, fr), leaves)

            slopes.check(moved, frozen, [whole[k] for k in wanted], grads, self.weights, self.dice, grad_rtol, wanted)
        return self.kind()

    def _gathered(self, by_rank, leaf):
        out = np.zeros(leaf.array.shape)
        for ids, grad in by_rank:
            if grad is not None:
                assert grad.dtype == self.dtype
                out[ids[leaf.place] if leaf.place != "param" else ...] += grad
        return out

    def kind(self):
        options = self.options
        if self.n_ranks == 1:
            return "one rank"
        return f"{options['mode']}{' recovered' if self.fault else ''}"


@contextmanager
def _ignored(*errors):
    try:
        yield
    except errors:
        pass

"""Halo rows computed again: what the first two layers compute on where `halo` is "recompute" (NeutronStar's hybrid dependencies).

The first layer's sums A X of a constant X are kept for the halo rows too. So this rank makes their hidden rows itself, with the parameters
that every rank has, and the second layer finds all its source rows here: it fetches nothing, and pushes nothing backward. A copy's gradient
goes into this rank's share of the parameters' gradients, which are added up over the ranks anyway.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from sarlite.errors import ConfigError
from sarlite.sar import fn
from sarlite.sar.aggregate import Operator
from sarlite.sar.graph import Graph
from sarlite.sar.operators import SUMS
from sarlite.sar.schedule import Schedule
from sarlite.tape import Tensor
from sarlite.types import Array


class AtHand:
    """In place of a mode: the rows of all blocks are here, in one array in the order of their columns. Nothing travels, nothing is kept."""

    name, keeps, turns, covers = "at hand", False, False, False

    def __repr__(self) -> str:
        return self.name

    def run(self, schedule: Schedule, arrays: Any, visit: Callable[..., Any], phase: str = "forward") -> list[Any]:
        return [visit(block, _columns(block, arrays)) for block in schedule.plan.blocks]

    def run_backward(self, schedule: Schedule, arrays: Any, kept: Any, visit: Callable[..., Any], d_arrays: Any,
                     phase: str = "backward") -> None:
        for block in schedule.plan.blocks:
            visit(block, None if arrays is None else _columns(block, arrays), None, _columns(block, d_arrays))


def _columns(block, arrays):
    """The rows of a block's columns."""
    return tuple(None if array is None else array[block.offset : block.offset + block.n_src] for array in arrays)


def with_halo(graph: Graph, rows: Array) -> Array:
    """Return this rank's rows, then the halo rows, fetched from their owners, in the order of the blocks' columns. Collective."""
    blocks = graph.plan.blocks
    out = np.zeros((blocks[-1].offset + blocks[-1].n_src, *rows.shape[1:]), rows.dtype)  # in a recorded step nobody sends rows

    def fill(block, found):
        out[block.offset : block.offset + block.n_src] = found[0]

    graph.schedule.run((np.ascontiguousarray(rows),), fill)
    return out


class _OfLayer(Graph):
    """The graph of one of the two layers; its edges are those of the graph that it is made of."""

    def __init__(self, whole: Graph, schedule: Schedule, **rows: Any) -> None:
        super().__init__(whole.comm, schedule, whole.profile, n_nodes=whole.n_nodes, edge_ids=whole._edge_ids, **rows)
        self.comm, self.whole, self.n_edges = whole.comm, whole, whole.n_edges  # which counts already
        self.edge_weight, self.edge_features, self._negative = whole.edge_weight, whole.edge_features, whole._negative
        self._normalised = whole.__dict__.setdefault("_normalised", {})

    def layers(self, n: int) -> list[Graph]:
        """Return the graphs of `n` layers: of one, this."""
        if n != 1:
            raise ConfigError(f"{n} layers over one layer's graph: ask the whole graph for its layers")
        return [self]

    def edge_factors(self, reducer: str) -> Array:
        return self.whole.edge_factors(reducer)

    def recover(self) -> None:
        self.whole.recover()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigError("the graph of one layer is no graph to be divided, changed, or asked for all its edges")

    shard = in_edges = out_edges = with_edge_values = _refuse


class First(_OfLayer):
    """What the first layer computes on: its destinations are this rank's rows, of which there are `n_own`, and the halo rows.

    It takes sums of constant rows alone, and keeps those of the halo rows as it keeps its own. Construction is collective: a number a halo
    row is fetched, counted under "setup".
    """

    def __init__(self, whole: Graph) -> None:
        with whole.profile.phase("setup"):
            degrees = with_halo(whole, whole.in_degrees)
        ids = np.concatenate([block.src_ids for block in whole.plan.blocks])
        super().__init__(whole, whole.schedule, dst_ids=ids, src_ids=whole.src_ids, in_degrees=degrees)
        self.n_own = whole.n_dst

    def dst(self, h: Any) -> Tensor:
        """Return the rows of h, which must be constant, and the halo rows' of it, fetched once and kept."""
        _check_constant(h)
        kept = self.kept_of(h)
        if "rows" not in kept:
            kept["rows"] = Tensor(with_halo(self.whole, h.data), constant=True)
        return kept["rows"]

    def aggregate(self, message: Any, reducer: str, src: Any = None, dst: Any = None, edge: Any = None) -> Tensor:
        """Return the sums of own and halo rows; see `Graph.aggregate`. Other messages, and rows that are not constant, are refused."""
        if not isinstance(message, (fn.CopySrc, fn.Linear)) or reducer not in SUMS:
            name = type(message).__name__ if isinstance(message, tuple) else "a function"
            raise ConfigError(f'halo "recompute": the first layer aggregates {name} by {reducer!r}, but only sums (sum, mean, sym) of '
                              f'fn.copy_src and fn.linear are kept; halo "fetch" takes all messages')
        _check_constant(message.x)
        return super().aggregate(message, reducer)

    def apply(self, make: Callable[[Graph], Operator], inputs: list[Tensor], places: tuple[str, ...] = ("src",),
              whole_heads: bool = False) -> Tensor:
        return Tensor(with_halo(self.whole, self.whole.apply(make, inputs, places, whole_heads).data))

    @property
    def weighted_degrees(self) -> Array:
        """(n_dst,) float64. Collective: the halo rows' are fetched at each call."""
        return with_halo(self.whole, self.whole.weighted_degrees)


def _check_constant(x):
    if not isinstance(x, Tensor) or not x.constant:
        raise ConfigError('halo "recompute": the first layer\'s input changes from step to step, as after dropout, or is learned, but sums '
                          'of constant rows alone are kept: a model without dropout of its input (--input-dropout 0), or halo "fetch"')


class Second(_OfLayer):
    """What the second layer computes on: its sources are the first one's destinations, of which its own destinations come first."""

    def __init__(self, whole: Graph, first: First) -> None:
        plan = whole.plan._replace(n_src=first.n_dst)
        super().__init__(whole, Schedule(plan, whole.schedule.transport, AtHand()), dst_ids=whole.dst_ids, src_ids=first.dst_ids,
                         in_degrees=whole.in_degrees, added_loops=whole.added_loops)
        self._first, self.n_own = first, self.n_dst

    def scales(self, reducer: str) -> tuple[Array | None, Array | None]:
        if reducer != "sym":
            return super().scales(reducer)
        if self._sym is None:
            root = np.sqrt(self._first.inverse_degrees)
            self._sym = root[: self.n_dst], root
        return self._sym

"""How a case is divided among ranks: `Part` is what one rank gets, `Division` the whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.random import Generator, Philox

from sarlite.oracle.case import Case
from sarlite.oracle.choices import PARTS
from sarlite.oracle.plain import Number
from sarlite.oracle.reference import Reference
from sarlite.types import Array

__all__ = ["PARTS", "Division", "Part", "owners"]


@dataclass(frozen=True, eq=False)
class Part:
    """The input of one rank: its nodes, the edges into its nodes, and the inputs' rows of both.

    Attributes
    ----------
    rank, size, n_nodes : int
        n_nodes of the whole graph.
    ids : (n_local,) int64
        Global ids of its nodes, ascending: the order of its rows.
    owner : (n_nodes,) int64
        The rank of each node.
    src, dst, eids : (n_local_edges,) int64
        Global ids of the ends of the edges into its nodes, and the edges' global numbers, ascending.
    arrays : dict of str to array
        Inputs: rows of its nodes, rows of its edges.
    state : dict of str to array
        Parameters, the same on every rank.
    cotangents : dict of str to array
        The rows of the gradient of each output, by which gradients are asked.
    attributes : dict
    name, op, dtype : str
        Of the case, as in `Case`.
    results : dict of str to shape
        What may be given back, as `read_results` has it: outputs by name, "layers.0" and so on of a model, gradients as
        "d<name>".
    """

    rank: int
    size: int
    n_nodes: int
    ids: Array
    owner: Array
    src: Array
    dst: Array
    eids: Array
    arrays: Mapping[str, Array]
    state: Mapping[str, Array]
    cotangents: Mapping[str, Array]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    op: str = ""
    dtype: str = "float32"
    results: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def owners(kind: str, n_nodes: int, size: int, seed: int = 0) -> Array:
    """Return the (n_nodes,) rank of each node, divided in the way `kind` of PARTS.

    Equal ranges; at random; half of the rest to each rank; equal ranges on all ranks but one.
    """
    rng = Generator(Philox([seed, n_nodes, size]))
    place = np.arange(n_nodes)
    if kind == "contiguous":
        return place * size // max(n_nodes, 1)
    if kind == "random":
        return rng.integers(0, size, n_nodes)
    if kind == "skewed":
        ends = n_nodes - (n_nodes / 2.0 ** np.arange(1, size)).astype(np.int64)
        return np.searchsorted(ends, place, side="right")
    if size == 1:
        return np.zeros(n_nodes, np.int64)
    empty = int(rng.integers(size))
    rank = place * (size - 1) // max(n_nodes, 1)
    return rank + (rank >= empty)


@dataclass(frozen=True, eq=False)
class Division:
    """A case, the cotangents that gradients are asked by, and the rank that each node belongs to."""

    reference: Reference
    case: Case
    cotangents: Mapping[str, Array]  # empty where no gradients are asked
    owner: Array  # (n_nodes,) integers
    size: int  # the number of ranks

    def rows(self, rank: int, kind: str) -> Array:
        """The global numbers of a rank's rows: of its edges where `kind` is "edge", else of its nodes."""
        return np.flatnonzero(self.owner[self.case.edges.dst] == rank if kind == "edge" else self.owner == rank)

    def of_rank(self, value: Array, rank: int, kind: str) -> Array:
        """A copy of the rank's rows; all of a "whole" array."""
        return np.array(value) if kind == "whole" else value[self.rows(rank, kind)]

    def part(self, number: Number, rank: int, kind: str) -> Number:
        """A rank's rows of a number, or all of a "whole" one, with their bounds."""
        error = np.broadcast_to(number.error, number.value.shape)
        return Number(self.of_rank(number.value, rank, kind), self.of_rank(error, rank, kind))

    def together(self, arrays: Sequence[Array], kind: str, shape: tuple[int, ...]) -> Array:
        """The rows of all ranks in their places."""
        out = np.zeros(shape, arrays[0].dtype)
        for rank, array in enumerate(arrays):
            out[self.rows(rank, kind)] = array
        return out

    def parts(self) -> list[Part]:
        """Return the part of each rank: copies."""
        return [self._part(rank) for rank in range(self.size)]

    def _part(self, rank):
        case, edges, reference = self.case, self.case.edges, self.reference
        own = {kind: self.rows(rank, kind) for kind in ("node", "edge")}

        def rows(values, kinds):
            return {name: self.of_rank(value, rank, kinds.get(name, "whole")) for name, value in values.items()}

        results = {name: shape if kind == "whole" else (len(own["edge" if kind == "edge" else "node"]), *shape[1:])
                   for name, (shape, kind) in self.wanted.items()}
        return Part(rank, self.size, edges.n_dst, own["node"], self.owner.copy(), edges.src[own["edge"]],
                    edges.dst[own["edge"]], own["edge"], rows(case.arrays, reference.arrays_by), rows(case.state, {}),
                    rows(self.cotangents, reference.outputs_by), dict(case.attributes), case.name, case.op, case.format,
                    results)

    @cached_property
    def wanted(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """The shape and the kind of rows of each result on the whole graph, by the names of `Part.results`."""
        case, reference = self.case, self.reference
        by, given = reference.outputs_by, {**case.arrays, **case.state}
        wanted = {name: (expr.shape, by.get(name, "whole")) for name, expr in reference.expressions(case)[1].items()}
        wanted |= {name: (expr.shape, "dst") for name, expr in reference.layer_expressions(case).items()}
        names = reference.differentiable(case) if self.cotangents else ()
        return wanted | {f"d{name}": (np.shape(given[name]), reference.arrays_by.get(name, "whole")) for name in names}

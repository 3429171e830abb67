"""Division of a case among ranks: `RankPart` is the input of one rank, `Division` holds the whole case and each node's rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.random import Generator, Philox

from sarlite.oracle.case import Attributes, Case, State
from sarlite.oracle.choices import PARTS
from sarlite.oracle.plain import BoundedArray
from sarlite.oracle.reference import Reference
from sarlite.types import Array

__all__ = ["PARTS", "Division", "RankPart", "owners"]


@dataclass(frozen=True, eq=False)
class RankPart:
    """Input of one rank in a distributed run: its nodes, the edges into its nodes, and the rows of these nodes and edges in the
    input arrays.

    Parameters
    ----------
    rank, size, n_nodes : int
        This rank, the number of ranks, and the number of nodes of the whole graph.
    ids : (n_local,) int64
        Global numbers of its nodes, ascending; the rows of its arrays are in this order.
    owner : (n_nodes,) int64
        Rank of each node.
    src, dst, eids : (n_local_edges,) int64
        Global numbers of the ends of the edges into its nodes, and the edges' global numbers, ascending.
    arrays : dict of str to array
        Inputs: the rows of its nodes, or of its edges.
    state : dict of str to array
        Parameters, the same on every rank.
    cotangents : dict of str to array
        This rank's rows of the gradient of each output; empty if gradients are not checked.
    attributes : dict
    name, op, dtype : str
        See `Case`; `dtype` is the case's `format`.
    results : dict of str to shape
        Shapes of the arrays that the rank may return, as `read_results` reads them: outputs by name, "layers.0" and so
        on for a model, gradients as "d<name>".

    Examples
    --------
    >>> from sarlite import oracle
    >>> def run(parts):
    ...     print([(part.ids.tolist(), part.src.tolist(), part.results) for part in parts])
    ...     raise oracle.Unsupported("shown only")
    >>> report = oracle.check_ranks(run, "gather", ranks=[2], parts=["contiguous"], graphs="ring-3", gradients=False)
    [([0, 1], [0, 2], {'out': (2, 5)}), ([2], [1], {'out': (1, 5)})]
    [([0, 1], [0, 2], {'out': (2, 5)}), ([2], [1], {'out': (1, 5)})]
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
    state: State
    cotangents: Mapping[str, Array]
    attributes: Attributes = field(default_factory=dict)
    name: str = ""
    op: str = ""
    dtype: str = "float32"
    results: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def owners(kind: str, n_nodes: int, size: int, seed: int = 0) -> Array:
    """Return the rank, from 0 to size - 1, that owns each node, shape (n_nodes,). `kind` names the way to divide the nodes:
    "contiguous", "random", "skewed" or "one empty".

    Parameters
    ----------
    kind : str
        "contiguous" gives equal ranges, "random" a random rank for each node, "skewed" half of the remaining nodes to
        each rank, and "one empty" equal ranges on all ranks but one.
    n_nodes, size, seed : int
        `size` is the number of ranks.
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
    """A case that is divided among ranks: the case, the gradients of its outputs, and the rank of each node.

    Attributes
    ----------
    reference : Reference
    case : Case
    cotangents : dict of str to array
        Gradient of each output; empty if gradients are not checked.
    owner : (n_nodes,) integer
        Rank of each node.
    size : int
        Number of ranks.
    """

    reference: Reference
    case: Case
    cotangents: Mapping[str, Array]
    owner: Array
    size: int

    def rows(self, rank: int, kind: str) -> Array:
        """Return the global row numbers that `rank` owns: the numbers of the edges into its nodes if `kind` is "edge", else of its
        nodes.
        """
        return np.flatnonzero(self.owner[self.case.edges.dst] == rank if kind == "edge" else self.owner == rank)

    def of_rank(self, value: Array, rank: int, kind: str) -> Array:
        """Return a copy of the rows of `value` that `rank` owns: for `kind` "edge" the rows of the edges into the rank's nodes, for
        "whole" all rows, for "src", "dst" or "node" the rows of the rank's nodes.
        """
        return np.array(value) if kind == "whole" else value[self.rows(rank, kind)]

    def part(self, number: BoundedArray, rank: int, kind: str) -> BoundedArray:
        """Return the rows of `number`, values with error bounds, that `rank` owns: for `kind` "edge" the rows of the edges into the
        rank's nodes, for "whole" all rows, for "src", "dst" or "node" the rows of the rank's nodes.
        """
        return BoundedArray(self.of_rank(number.value, rank, kind), self.of_rank(number.bound, rank, kind))

    def assemble(self, arrays: Sequence[Array], kind: str, shape: tuple[int, ...]) -> Array:
        """Join `arrays`, the rows that each rank returned, to an array of this shape on the whole graph; rows are by edge if
        `kind` is "edge", else by node.
        """
        out = np.zeros(shape, arrays[0].dtype)
        for rank, array in enumerate(arrays):
            out[self.rows(rank, kind)] = array
        return out

    def parts(self) -> list[RankPart]:
        """Return the RankPart of each rank, in rank order; its arrays are copies."""
        return [self._part(rank) for rank in range(self.size)]

    def _part(self, rank):
        case, edges, reference = self.case, self.case.edges, self.reference
        rows_of_kind = {kind: self.rows(rank, kind) for kind in ("node", "edge")}

        def rows(values, kinds):
            return {name: self.of_rank(value, rank, kinds.get(name, "whole")) for name, value in values.items()}

        results = {name: shape if kind == "whole" else (len(rows_of_kind["edge" if kind == "edge" else "node"]), *shape[1:])
                   for name, (shape, kind) in self.wanted.items()}
        return RankPart(rank, self.size, edges.n_dst, rows_of_kind["node"], self.owner.copy(), edges.src[rows_of_kind["edge"]],
                    edges.dst[rows_of_kind["edge"]], rows_of_kind["edge"], rows(case.arrays, reference.arrays_by), rows(case.state, {}),
                    rows(self.cotangents, reference.outputs_by), dict(case.attributes), case.name, case.op, case.format,
                    results)

    @cached_property
    def wanted(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Arrays that each rank may return, as {name: (shape on the whole graph, kind of rows)}. The kind is "edge", "whole" (not
        divided), or "dst", "src" or "node" for rows by node.
        """
        case, reference = self.case, self.reference
        by, inputs = reference.outputs_by, {**case.arrays, **case.state}
        wanted = {name: (expr.shape, by.get(name, "whole")) for name, expr in reference.expressions(case)[1].items()}
        wanted |= {name: (expr.shape, "dst") for name, expr in reference.layer_expressions(case).items()}
        names = reference.differentiable(case) if self.cotangents else ()
        return wanted | {f"d{name}": (np.shape(inputs[name]), reference.arrays_by.get(name, "whole")) for name in names}

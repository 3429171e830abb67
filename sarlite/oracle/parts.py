"""How a case is cut among ranks: `Part` is what one of them gets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import Generator, Philox

from sarlite.oracle.case import Case
from sarlite.oracle.invariants import row_kinds
from sarlite.oracle.reference import Reference
from sarlite.types import Array

PARTS = ("contiguous", "random", "skewed", "one empty")


@dataclass(frozen=True, eq=False)
class Part:
    """What one rank gets: its nodes, the edges into them, and the rows of the inputs that belong to these.

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
        What may be given back, as `read_results` has it: outputs by name, "layers.0" and so on of a model, gradients as "d<name>".
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
    """Return the (n_nodes,) rank of each node: equal ranges; at random; half of the rest to each; equal ranges on all ranks but one."""
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


def cut(reference: Reference, case: Case, cotangents: Mapping[str, Array], owner: Array, size: int) -> list[Part]:
    """Return the parts of a case: copies."""
    edges, kinds, by = case.edges, row_kinds(reference), reference.outputs_by
    wanted = _wanted(reference, case, bool(cotangents))
    parts = []
    for rank in range(size):
        ids, eids = np.flatnonzero(owner == rank), np.flatnonzero(owner[edges.dst] == rank)

        def rows(value, kind, ids=ids, eids=eids):
            return np.array(value) if kind == "whole" else value[eids if kind == "edge" else ids]

        results = {name: shape if kind == "whole" else (len(eids if kind == "edge" else ids), *shape[1:])
                   for name, (shape, kind) in wanted.items()}
        parts.append(Part(rank, size, edges.n_dst, ids, owner.copy(), edges.src[eids], edges.dst[eids], eids,
                          {name: rows(value, kinds[name]) for name, value in case.arrays.items()},
                          {name: np.array(value) for name, value in case.state.items()},
                          {name: rows(value, by.get(name, "whole")) for name, value in cotangents.items()}, dict(case.attributes),
                          case.name, case.op, case.dtype, results))
    return parts


def _wanted(reference, case, gradients):
    """(shape, kind of rows) of each result on the whole graph, by name."""
    kinds, by, given = row_kinds(reference), reference.outputs_by, {**case.arrays, **case.state}
    wanted = {name: (expr.shape, by.get(name, "whole")) for name, expr in reference.expressions(case)[1].items()}
    wanted |= {name: (expr.shape, "dst") for name, expr in reference.layer_expressions(case).items()}
    names = reference.differentiable(case) if gradients else ()
    return wanted | {f"d{name}": (np.shape(given[name]), kinds.get(name, "whole")) for name in names}

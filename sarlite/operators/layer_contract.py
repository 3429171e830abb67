"""The contract between operators and the graph of a layer: every member of the graph that an operator uses."""

from collections.abc import Hashable, Mapping, MutableMapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from sarlite.numerics.edge_sums import EdgeSums
from sarlite.schedule.schedule import Schedule
from sarlite.structure.block import Bundle, Edges
from sarlite.tape import Tensor
from sarlite.types import Array, DType

Inputs = Mapping[str, Tensor | Array]
"""Inputs of a Python message by name, with one row a source, a destination or an edge."""


class Evaluation(NamedTuple):
    """Chosen evaluation of a relation's weight, and the cost of both ways for one training step, over all ranks.

    Attributes
    ----------
    relation : (str, str, str)
    n_in, n_out : int
    constant : bool
        True if the sources' rows never change, so that their sums are kept.
    name : {"inside", "first"}
        The weight inside the message (case 2), or aggregated first and transformed after (case 1).
    inside_bytes, first_bytes : int
        Cost in bytes: values fetched, kept for backward and read by edges, and products at an equivalent cost.
    """

    relation: tuple[str, str, str]
    n_in: int
    n_out: int
    constant: bool
    name: str
    inside_bytes: int
    first_bytes: int


EvaluationLog = dict[Hashable, Evaluation]
"""Chosen evaluations, keyed by relation, widths, constancy of the rows, the forced way and the numerics."""


class LayerContract(Protocol):
    """The graph of a layer as operators see it. `graph.LayerGraph` implements and documents each member."""

    n_dst: int
    n_nodes: int
    relation: tuple[str, str, str] | None
    evaluation_log: EvaluationLog | None
    schedule: Schedule

    @property
    def src_ids(self) -> Array: ...
    @property
    def dst_ids(self) -> Array: ...
    @property
    def column_ids(self) -> Array | None: ...
    @property
    def edge_src_ids(self) -> Array: ...
    @property
    def edge_weight(self) -> Array | None: ...
    @property
    def itype(self) -> np.dtype[Any]: ...
    @property
    def has_own_exchange(self) -> bool: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...

    def check(self, message: str, src: Inputs | None = None, dst: Inputs | None = None,
              edge: Inputs | None = None) -> list[Tensor]: ...
    def scales(self, reducer: str) -> tuple[Array | None, Array | None]: ...
    def edge_counts(self, reducer: str, dtype: DType) -> Tensor | None: ...
    def pick_counts(self, reducer: str) -> Array | None: ...
    def edges_of(self, block: Edges | Bundle) -> Edges: ...
    def edge_sums(self) -> EdgeSums: ...
    def weight_as(self, dtype: DType) -> Array: ...
    def kept_sums(self, x: Tensor) -> MutableMapping[str, Tensor]: ...

"""The interface of a layer's graph: every member of the graph that an operator uses."""

from collections.abc import Hashable, Mapping, MutableMapping
from typing import NamedTuple, Protocol

from sarlite.numerics.edge_sums import EdgeSums
from sarlite.schedule.schedule import Schedule
from sarlite.structure.block import Bundle, Edges
from sarlite.tape import Tensor
from sarlite.types import Array, ArrayDType, DType

Inputs = Mapping[str, Tensor | Array]
"""Inputs of a Python message by name. Each has one row for each source, or each destination, or each edge."""


class Evaluation(NamedTuple):
    """Evaluation order that was chosen for a relation's weight matrix, with the costs of both orders, "inside" and "first".

    Attributes
    ----------
    relation : (str, str, str)
        Source type, name and destination type.
    n_in, n_out : int
        Shape of the weight.
    constant : bool
        True if the sources' rows never change, so that their sums are kept.
    name : {"inside", "first"}
        The chosen order. "inside" applies the weight inside the message (case 2); "first" aggregates the rows and then
        applies the weight (case 1).
    inside_bytes, first_bytes : int
        Cost of each order for one training step over all ranks, in bytes: values that are fetched, kept for backward or
        read by edges, and products counted as bytes of equal cost.
    """

    relation: tuple[str, str, str]
    n_in: int
    n_out: int
    constant: bool
    name: str
    inside_bytes: int
    first_bytes: int


EvaluationLog = dict[Hashable, Evaluation]
"""Chosen evaluation orders, keyed by (relation, n_in, n_out, constant, forced order, numerics)."""


class LayerContract(Protocol):
    """Protocol of the graph of a layer: the members that operators use, which `graph.LayerGraph` implements and documents."""

    n_dst: int
    n_nodes: int
    relation: tuple[str, str, str] | None
    relation_index: int
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
    def itype(self) -> ArrayDType: ...
    @property
    def has_own_exchange(self) -> bool: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...

    def check(self, message: str, src: Inputs | None = None, dst: Inputs | None = None,
              edge: Inputs | None = None) -> list[Tensor]: ...
    def scales(self, reducer: str) -> tuple[Array | None, Array | None]: ...
    def edge_factors(self, reducer: str, dtype: DType) -> Tensor | None: ...
    def pick_factors(self, reducer: str) -> Array | None: ...
    def edges_of(self, block: Edges | Bundle) -> Edges: ...
    def edge_sums(self) -> EdgeSums: ...
    def weight_as(self, dtype: DType) -> Array: ...
    def kept_sums(self, x: Tensor) -> MutableMapping[str, Tensor]: ...

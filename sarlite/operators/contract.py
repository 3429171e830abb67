"""The contract of operators: what an aggregation over edges computes, one block of edges at a time."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from sarlite.numerics.edge_sums import EdgeSums, FloatSum
from sarlite.schedule.row_format import RowFormat
from sarlite.structure.block import Bundle, Edges
from sarlite.tape import Tensor
from sarlite.tape.primitives import Node
from sarlite.types import Array

ROWS, SCORES = "rows", "scores"
"""Kinds of inputs that peers fetch: rows, which the schedule may store as bfloat16, and scores, which it may not."""


class Context(NamedTuple):
    """How one aggregation is computed.

    Attributes
    ----------
    wants_grad : tuple of bool
        True for each input, and then for each of the operator's `captured` values, whose gradient is wanted.
    sums : EdgeSums
        Makes the accumulators: it is where numerics "fast" and "exact" differ.
    row_format : RowFormat
        How rows that edges gather are stored.
    single_block : bool
        True if one block has all edges, and no peer's rows arrive.
    keeps_rows : bool
        True if the rows of each block are kept for backward.
    out : array, or None
        Array that the output is added to; None for a new array.
    """

    wants_grad: Sequence[bool]
    sums: EdgeSums
    row_format: RowFormat
    single_block: bool = False
    keeps_rows: bool = False
    out: Array | None = None


class ForwardPass(Protocol):
    """One forward pass of an operator (SAR algorithm 1)."""

    def sweeps(self, rows: tuple[Array, ...]) -> Iterator[tuple[Array, ...]]:
        """Yield the local rows for each sweep over all blocks. Most operators make one sweep with all rows."""

    def add(self, block: Edges | Bundle, rows: tuple[Array, ...]) -> None:
        """Add the messages of a block's edges.

        Parameters
        ----------
        block : Edges or Bundle
        rows : tuple of (n_columns, ...) array
            Source rows of the block's columns. The caller frees the arrays after the call.
        """

    def finish(self) -> tuple[Array, Any]:
        """Return the output, (n_dst, ...), and the residuals that `Operator.backward` takes."""


class BackwardPass(Protocol):
    """One backward pass of an operator (SAR algorithm 2).

    Attributes
    ----------
    sinks : list of FloatSum or GridSum, or None
        Accumulators of the gradients of the fetched inputs, not started yet; None where no gradient is made.
    """

    sinks: Sequence[FloatSum | None]

    def add(self, block: Edges | Bundle, rows: tuple[Array, ...] | None, sinks: Sequence[FloatSum | None]) -> None:
        """Add the gradients of a block's columns to `sinks`.

        Parameters
        ----------
        block : Edges
            Some rows or columns of a block that the forward pass saw.
        rows : tuple of (n_columns, ...) array, or None
            Rows of the block's columns in case 2; None in case 1.
        sinks : list of accumulators of the columns' gradients; None where nobody wants the gradient
        """

    def finish(self) -> list[Array | None]:
        """Return the gradients of the inputs that are not fetched, and then of the captured values."""


class Operator(Protocol):
    """One way to aggregate over edges. An operator is immutable, so one object serves any number of calls.

    Attributes
    ----------
    fetched : tuple of {"rows", "scores"}
        Kinds of the first inputs, which are rows of sources and which peers fetch.
    captured : sequence
        Tape values that a Python message uses beside its inputs.
    """

    @property
    def fetched(self) -> tuple[str, ...]: ...

    @property
    def captured(self) -> Sequence[Node | Tensor]: ...

    def output(self, arrays: Sequence[Array | Tensor]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return the shape and the dtype of the output for inputs with the shapes and dtypes of `arrays`."""

    def needs_rows(self, context: Context) -> bool:
        """Return True in case 2: the backward pass needs the source rows (SAR 3.2)."""

    def forward(self, inputs: Sequence[Array], context: Context) -> ForwardPass:
        """Start a forward pass; collective in numerics "exact"."""

    def backward(self, residuals: Any, g: Array, context: Context) -> BackwardPass:
        """Start a backward pass from the gradient of the output; collective in numerics "exact"."""

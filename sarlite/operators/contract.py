"""The interface of operators, which aggregate messages over edges, one block of edges at a time."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from sarlite.numerics.edge_sums import EdgeSums, FloatSum
from sarlite.schedule.row_format import ROWS as ROWS
from sarlite.schedule.row_format import RowFormat
from sarlite.structure.block import Bundle, Edges
from sarlite.tape import Tensor
from sarlite.tape.primitives import Node
from sarlite.types import Array, ArrayDType

SCORES = "scores"
"""Kinds of inputs that peers fetch. The schedule may round rows, but never scores."""


class Context(NamedTuple):
    """Settings of one aggregation, passed to an operator: which gradients are wanted, which class adds up sums over edges, how rows
    are rounded for storage, and which array the output is added to.

    Attributes
    ----------
    wants_grad : sequence of bool
        One item for each input, then one for each of the operator's `captured` values. True if a gradient is wanted.
    sums : EdgeSums
        Factory of the accumulators. Numerics "fast" and "exact" have different factories.
    row_format : RowFormat
        Storage format of the rows that edges gather.
    single_block : bool
        True if one block holds all edges, so that no peer's rows arrive.
    keeps_rows : bool
        True if the schedule keeps the rows of each block for the backward pass (modes `sa`, `oneshot`).
    out : array, or None
        Array that the output is added to. With None the operator allocates an array.
    """

    wants_grad: Sequence[bool]
    sums: EdgeSums
    row_format: RowFormat
    single_block: bool = False
    keeps_rows: bool = False
    out: Array | None = None


class ForwardPass(Protocol):
    """One forward pass of an operator: `add` for each block of edges, then `finish` (SAR algorithm 1)."""

    def sweeps(self, rows: tuple[Array, ...]) -> Iterator[tuple[Array, ...]]:
        """Yield, for each pass over all blocks (a sweep), the arrays of source rows that this rank sends to peers during the pass.
        They are `rows`, or a range of the feature columns of `rows`. The caller passes each block to `add` in each sweep.
        """

    def add(self, block: Edges | Bundle, rows: tuple[Array, ...]) -> None:
        """Add the messages of a block's edges, computed from its source rows `rows`, to the output.

        Parameters
        ----------
        block : Edges or Bundle
            Edges of one block; a `Bundle` holds one set of edges for each relation.
        rows : tuple of (n_columns, ...) array
            Source rows of the block's columns. The caller frees the arrays after the call.
        """

    def finish(self) -> tuple[Array, object]:
        """Return the output, (n_dst, ...), and the residuals for `Operator.backward`."""


class BackwardPass(Protocol):
    """One backward pass of an operator: `add` for each block of edges, then `finish` (SAR algorithm 2).

    Attributes
    ----------
    accumulators : sequence of FloatSum or None
        One accumulator, not started yet, for the gradient of each fetched input; None if the input has no gradient.
    """

    accumulators: Sequence[FloatSum | None]

    def add(self, block: Edges | Bundle, rows: tuple[Array, ...] | None, accumulators: Sequence[FloatSum | None]) -> None:
        """Add the gradients of a block's source rows to `accumulators`; `rows` are these source rows, or None if they are not needed.

        Parameters
        ----------
        block : Edges or Bundle
            A block of the forward pass, or some rows or columns of such a block.
        rows : tuple of (n_columns, ...) array, or None
            Source rows of the block's columns in case 2; None in case 1.
        accumulators : sequence of FloatSum or None
            Started accumulators, one for each fetched input, for the (n_columns, ...) gradient of the block's columns;
            None if the gradient is not wanted.
        """

    def finish(self) -> list[Array | None]:
        """Return the other gradients: first of each input that peers do not fetch; then of each tensor that the operator captured,
        such as one from outside that a message function reads.

        An entry is None if the gradient is not wanted.
        """


class Operator(Protocol):
    """Function that aggregates over edges, such as a sum or attention. It is immutable, so one object serves any number of calls.

    The first inputs have one row for each source, and peers fetch those rows. Further inputs stay on this rank.

    Attributes
    ----------
    fetched : tuple of {"rows", "scores"}
        Kind of each input that peers fetch. Its length is the number of fetched inputs.
    captured : sequence of Node or Tensor
        Learnable values that a Python message uses without listing them as inputs.
    """

    @property
    def fetched(self) -> tuple[str, ...]: ...

    @property
    def captured(self) -> Sequence[Node | Tensor]: ...

    def output(self, arrays: Sequence[Array | Tensor]) -> tuple[tuple[int, ...], ArrayDType]:
        """Return the shape and the dtype of the output for inputs with the shapes and dtypes of `arrays`."""

    def needs_rows(self, context: Context) -> bool:
        """Return True if the backward pass needs the source rows again, by the settings in `context`. The SAR paper, section 3.2, calls
        this case 2.
        """

    def forward(self, inputs: Sequence[Array], context: Context) -> ForwardPass:
        """Return a new forward pass over the arrays `inputs`, with the settings `context`. Collective in numerics "exact"."""

    def backward(self, residuals: object, g: Array, context: Context) -> BackwardPass:
        """Return a new backward pass from `g`, the (n_dst, ...) gradient of the output, and the `residuals` that the forward pass
        saved. Collective in numerics "exact".
        """

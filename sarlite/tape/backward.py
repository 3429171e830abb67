"""The backward pass, which carries gradients from tensors back to the leaves of the tape.

Each sink has one sum of gradients, held in a *cell*: a list whose only item is the sum. The invariant: *an array is
written to only if the backward pass holds the only reference to its memory* (`ownership`). It follows that
- a vjp receives a writable g if nothing else refers to g, and may overwrite it; else g is a read-only view;
- a further gradient is added in place to a sum that nothing else refers to; else the sum becomes a new array;
- a leaf's `grad` becomes the sum itself if nothing else refers to the sum, else a copy.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from sarlite.tape.ownership import writable
from sarlite.tape.primitives import Gradient, Leaf, Node, Sink
from sarlite.tape.summands import RowGradient, Summand, added
from sarlite.types import Array

Cell = list[Gradient]
"""A list of one item, a gradient. A function that takes a cell may take the gradient out and become its only owner."""


class HasSink(Protocol):
    """Object with a `sink`, the tape node or leaf that receives its gradient, such as a `Tensor`."""

    @property
    def sink(self) -> Sink | None: ...


def reachable(sinks: Iterable[Sink | None], since: int = -1) -> list[Node]:
    """Return the tape nodes (recorded calls) in `sinks` and all nodes that they depend on, the newest first. Nodes recorded at or
    before time `since` are left out; -1 keeps all.
    """
    nodes: dict[int, Node] = {}
    todo = [s for s in sinks if isinstance(s, Node)]
    while todo:
        node = todo.pop()
        if node.time > since and id(node) not in nodes:
            nodes[id(node)] = node
            todo.extend(s for s in node.sinks if isinstance(s, Node))
    return sorted(nodes.values(), key=lambda node: -node.time)


class Arrivals:
    """Sums of the gradients that have arrived so far in a backward pass at its nodes, whose vjps have not run yet, and at its ends,
    where the pass stops. An end is a leaf, or a node recorded at or before the time `since`.

    Attributes
    ----------
    since : int
    ends : dict of int to Node or Tensor
        The ends that a gradient has reached, keyed by `id(end)`.
    """

    def __init__(self, since: int) -> None:
        self.since = since
        self.ends: dict[int, Sink] = {}
        self._cells: dict[int, Cell] = {}

    def add(self, sink: Sink, cell: Cell) -> None:
        """Add a gradient to the sum at `sink`, a tape node or a leaf. `cell` is a list whose only item is the gradient; the caller
        must not use the list afterwards.
        """
        key, end = id(sink), not isinstance(sink, Node) or sink.time <= self.since
        if key not in self._cells:
            if not (end and isinstance(cell[0], RowGradient)):
                _to_array(cell)
            self._cells[key] = cell
        else:
            _to_array(before := self._cells[key])
            _add_to(before, cell)
        if end:
            self.ends[key] = sink

    def __contains__(self, node: Node) -> bool:
        return id(node) in self._cells

    def take(self, node: Node) -> Cell:
        """Return [sum of the gradients that have arrived at `node`], a list of one array, and remove the sum from this object."""
        return self._cells.pop(id(node))

    def arrays(self) -> dict[int, Array]:
        """Return {id(end): gradient} of the ends that a gradient has reached. The ends, where this pass stops, are the leaves and
        the nodes recorded at or before the time `since`.
        """
        return {key: _to_array(self._cells[key]) for key in self.ends}

    def leaves(self) -> Iterator[tuple[Leaf, Cell]]:
        """Yield (leaf, [its gradient]) for each leaf that a gradient has reached, and remove the gradient from this object."""
        for key, end in self.ends.items():
            if not isinstance(end, Node):
                yield end, self._cells.pop(key)


def _to_array(cell: Cell) -> Any:
    """Convert the gradient in `cell`, a list of one item, to an array if it has another form; store the array in `cell` and return
    it.
    """
    if isinstance(cell[0], Summand):
        cell[0] = cell[0].array()
    elif not isinstance(cell[0], np.ndarray):
        cell[0] = np.asarray(cell[0])  # operations on 0-d arrays return NumPy scalars, which cannot be added to
    return cell[0]


def _add_to(before: list[Any], cell: list[Any]) -> None:
    """Add the gradient in `cell` to the array in `before`, both lists of one item, and store the sum in `before`. The sum is
    written into the memory of one of the two arrays if nothing else refers to that array.
    """
    total = writable(before)
    if total is not None and isinstance(cell[0], Summand):
        cell[0].add_to(total)
        return
    _to_array(cell)
    if total is not None:
        added(total, cell[0], total)
    elif (other := writable(cell)) is not None and other.shape == before[0].shape and other.dtype == before[0].dtype:
        before[0] = added(before[0], other, other)
    else:
        before[0] = added(before[0], cell[0])


def carry(seeds: Sequence[tuple[HasSink, Array]], since: int = -1, release: bool = False) -> Arrivals:
    """Run the vjps backward from `seeds`, pairs (tensor, gradient of the loss). Return the gradients at the leaves and at the nodes
    recorded at or before time `since` (-1: at leaves only). `release` frees the values that the nodes kept for their vjps.

    Parameters
    ----------
    seeds : sequence of (Tensor, ndarray)
        Tensors, each with the gradient of the loss with respect to the tensor.
    since : int
        Nodes recorded at or before this time are ends.
    release : bool
        True to free each node's residuals once its vjp has run; then the tape cannot be used again.

    Returns
    -------
    Arrivals
        The gradients at the ends.
    """
    arrivals = Arrivals(since)
    for tensor, g in seeds:
        if tensor.sink is not None:
            arrivals.add(tensor.sink, [g])
    for node in reachable([t.sink for t, _ in seeds], since):
        if node in arrivals:
            _pass(node, arrivals, release)
    return arrivals


def _pass(node: Node, arrivals: Arrivals, release: bool) -> None:
    """Run the vjp of one node on the gradient that has arrived there, and add the results to the sums in `arrivals`. `release` then
    frees the values that the node kept for the vjp.
    """
    cell: list[Any] = arrivals.take(node)
    if writable(cell) is None:
        cell[0] = cell[0].view()
        cell[0].flags.writeable = False
    with node.backward_context():
        cells: list[Any] = [[d] for d in node.vjp(cell)]
        if release:
            node.release()
        for sink in node.sinks:
            cell = cells.pop(0)  # drops the summand of the sink before, which may refer to g
            if sink is not None and cell[0] is not None:
                arrivals.add(sink, cell)


def pull(seeds: Sequence[tuple[HasSink, Array]], since: int = -1) -> dict[int, Array]:
    """Run the vjps backward from `seeds`, pairs (tensor, gradient of the loss); return {id(end): gradient}. The ends, where the
    pass stops, are the leaves and the nodes recorded at or before time `since` (-1: leaves only).
    """
    return carry(seeds, since).arrays()


def accumulate(leaf: Leaf, cell: Cell) -> None:
    """Add the gradient in `cell`, a list of one item, to `leaf.grad`. The array may become `leaf.grad` itself, so the caller must
    not use it afterwards.
    """
    if isinstance(cell[0], RowGradient):
        leaf.add_rows(cell[0])
        return
    gradient = writable(cell)
    if leaf.grad is None:
        leaf.grad = np.array(_to_array(cell)) if gradient is None else gradient
    else:
        leaf.grad += _to_array(cell)

"""The backward pass, which carries gradients from seeds to leaves.

Each sink has one sum of gradients, held in its own cell (a list of one item). The invariant: *an array is written to
only if the backward pass holds the only reference to its memory* (`ownership`). It follows that
- a vjp receives a writable g if nothing else refers to g, and may overwrite it; else g is a read-only view;
- a further gradient is added in place to a sum that nothing else refers to; else the sum becomes a new array;
- a leaf's `grad` becomes the sum itself if nothing else refers to it, else a copy.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from sarlite.tape.ownership import writable
from sarlite.tape.primitives import Node
from sarlite.tape.summands import RowGradient, Summand, added


def reachable(sinks: Iterable[Any], since: int = -1) -> list[Node]:
    """Return the nodes behind `sinks` that were recorded after time `since`, newest first."""
    nodes: dict[int, Node] = {}
    todo = [s for s in sinks if isinstance(s, Node)]
    while todo:
        node = todo.pop()
        if node.time > since and id(node) not in nodes:
            nodes[id(node)] = node
            todo.extend(s for s in node.sinks if isinstance(s, Node))
    return sorted(nodes.values(), key=lambda node: -node.time)


class Arrivals:
    """Sums of the gradients that have not been passed on yet, keyed by `id` of the sink.

    Attributes
    ----------
    since : int
        Nodes recorded at or before this time are ends, as leaves are.
    ends : dict of int to Node or Tensor
        The ends that a gradient has reached.
    """

    def __init__(self, since: int) -> None:
        self.since = since
        self.ends: dict[int, Any] = {}
        self._cells: dict[int, list[Any]] = {}

    def add(self, sink: Any, cell: list[Any]) -> None:
        """Add the gradient `cell[0]`, an array or a `Summand`, at a sink. The caller must not use the cell again."""
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

    def take(self, node: Node) -> list[Any]:
        """Remove and return the cell that holds the sum of a node's gradients."""
        return self._cells.pop(id(node))

    def arrays(self) -> dict[int, np.ndarray]:
        """Return the gradient of each end as an array, by `id` of the end."""
        for key in self.ends:
            _to_array(self._cells[key])
        return {key: self._cells[key][0] for key in self.ends}

    def leaves(self) -> Iterator[tuple[Any, list[Any]]]:
        """Yield each end and the cell of its gradient."""
        for key, end in self.ends.items():
            yield end, self._cells.pop(key)


def _to_array(cell):
    """Convert the gradient in a cell to an array."""
    if isinstance(cell[0], Summand):
        cell[0] = cell[0].array()
    elif not isinstance(cell[0], np.ndarray):
        cell[0] = np.asarray(cell[0])  # NumPy gives scalars for 0-d arrays, which cannot be added to


def _add_to(before, cell):
    """Add the gradient in `cell` to the array in the cell `before`, in place if nobody else holds the array."""
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


def carry(seeds: list[tuple[Any, np.ndarray]], since: int = -1, release: bool = False) -> Arrivals:
    """Carry gradients back from tensors and return the `Arrivals` at the ends.

    Parameters
    ----------
    seeds : list of (Tensor, ndarray)
    since : int
        Nodes recorded at or before this time are ends.
    release : bool
        True to free each node's residuals once its vjp has run; then the tape cannot be used again.
    """
    arrivals = Arrivals(since)
    for tensor, g in seeds:
        if tensor.sink is not None:
            arrivals.add(tensor.sink, [g])
    for node in reachable([t.sink for t, _ in seeds], since):
        if node in arrivals:
            _pass(node, arrivals, release)
    return arrivals


def _pass(node, arrivals, release):
    """Run one node's vjp and add the results at the node's sinks."""
    cell = arrivals.take(node)
    if writable(cell) is None:
        cell[0] = cell[0].view()
        cell[0].flags.writeable = False
    with node.backward_context():
        cells = [[d] for d in node.vjp(cell)]
        if release:
            node.release()
        for sink in node.sinks:
            cell = cells.pop(0)  # a summand that was added must not hold g any longer
            if sink is not None and cell[0] is not None:
                arrivals.add(sink, cell)


def pull(seeds: list[tuple[Any, np.ndarray]], since: int = -1) -> dict[int, np.ndarray]:
    """Carry gradients back from `seeds` and return the gradient by `id` of each end. The tape can be used again."""
    return carry(seeds, since).arrays()


def accumulate(leaf: Any, cell: list[Any]) -> None:
    """Add the gradient in a cell to a leaf's `grad`."""
    if isinstance(cell[0], RowGradient):
        leaf.add_rows(cell[0])
    elif leaf.grad is None:
        leaf.grad = np.array(cell[0]) if writable(cell) is None else cell[0]
    else:
        leaf.grad += cell[0]

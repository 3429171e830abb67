"""Propagation: the normalised adjacency matrix of a graph, as a linear operator on rows."""

import math

import numpy as np

from sarlite.comm import together
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.graph.graph import Graph
from sarlite.graph.weights import check_range, positive
from sarlite.operators import fn
from sarlite.tape import Tensor, no_grad
from sarlite.tape.tensor import as_array
from sarlite.types import Array, ArrayLike, DType


def _inverse(degrees):
    return 1.0 / degrees


def _inverse_root(degrees):
    return 1.0 / np.sqrt(degrees)  # the bits of np.power differ between processors


_SCALES = {"sym": (_inverse_root, _inverse_root), "row": (_inverse, None), "column": (None, _inverse)}
"""Functions of D whose results multiply A from the left and from the right, by normalization."""
NORMALIZATIONS = tuple(_SCALES)


class Propagation:
    """Normalized adjacency matrix S of a graph, as a linear operator without gradients: `propagation(x)` returns S x.

    S is D^-1/2 A D^-1/2 ("sym"), D^-1 A ("row") or A D^-1 ("column"). A_ij is the weight of the edge from j to i,
    summed over equal edges. D is the diagonal matrix of A's row sums, the weighted in-degrees; a degree of 0 counts as
    1. If every edge has a reverse edge of the same weight, the columns of A D^-1 sum to 1. Construction is collective.

    Parameters
    ----------
    graph : Graph
        Graph that is not bipartite. Self loops of the graph count; no self loops are added.
    normalization : {"sym", "row", "column"}
    edge_weight : (n_edges,) float array, optional
        Non-negative weight of each local in-edge; by default the graph's `edge_weight`, or 1. The array is not copied.

    Raises
    ------
    ConfigError, ShapeError, DataError
        On every rank together: the graph is bipartite, the normalization is unknown, there is not one weight for each
        edge, or a weight is negative or not finite.

    Notes
    -----
    Memory: 8 or 16 bytes for each node.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph
    >>> from sarlite.comm import threads
    >>> from sarlite.graph.propagation import Propagation
    >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 1])
    >>> Propagation(graph, "row")(np.array([[2.0], [4.0], [6.0]])).tolist()
    [[4.0], [4.0], [0.0]]

    Two ranks as threads; each passes and gets the rows of its own nodes:

    >>> x = np.array([[2.0], [4.0], [6.0]])
    >>> def propagate(comm):
    ...     part = graph.shard(comm, [0, 0, 1])
    ...     return Propagation(part, "row")(x[part.node_ids]).tolist()
    >>> threads.run(2, propagate)
    [[[4.0], [4.0]], [[0.0]]]
    """

    def __init__(self, graph: Graph, normalization: str = "sym", edge_weight: ArrayLike | None = None) -> None:
        weight = together(graph.comm, lambda: _checked(graph, normalization, edge_weight))
        self.graph, self.weight = graph, weight
        self._fits: set[DType] = set()  # dtypes in which every rank's weights are finite
        degrees = positive(graph.in_degrees if weight is None else graph.weighted_in_degrees(weight))
        self.left, self.right = (scale and scale(degrees[:, None]) for scale in _SCALES[normalization])

    def __call__(self, x: Array) -> Array:
        """Return S x, (n_dst, ...), where S is the normalized adjacency matrix and `x` has a row for each local source. Collective.

        Parameters
        ----------
        x : (n_src,) or (n_src, ...) float array

        Returns
        -------
        (n_dst, ...) array
            New array of x's dtype.

        Raises
        ------
        ShapeError
            x has another number of rows, or is not float. Raised on this rank alone, before anything is sent.

        Notes
        -----
        Sends the bytes of one aggregation of rows as wide as x's. Nothing is recorded on the tape.
        """
        x = as_array(x)
        if x.shape[:1] != (self.graph.n_src,) or x.dtype.kind != "f":
            raise ShapeError(f"propagation: x is {x.dtype} of shape {x.shape}, but {self.graph.n_src} rows of floats "
                             "are needed, one for each node")
        rows = x.reshape(len(x), math.prod(x.shape[1:]))
        out = self._sum(rows if self.right is None else rows * self.right.astype(x.dtype))
        if self.left is not None:
            out *= self.left.astype(x.dtype)
        return out.reshape(len(out), *x.shape[1:])

    def _sum(self, x):
        with no_grad():
            rows = Tensor(np.ascontiguousarray(x), placement="rows")
            message = fn.copy_src(rows) if self.weight is None else fn.mul_edge(rows, self._weight_as(x.dtype))
            return self.graph.aggregate(message, "sum").data

    def _weight_as(self, dtype):
        if dtype not in self._fits:
            together(self.graph.comm, lambda: check_range(self.weight, dtype))
            self._fits.add(dtype)
        return self.weight.astype(dtype)


def _checked(graph: Graph, normalization: str, edge_weight: ArrayLike | None) -> Array | None:
    """Check the arguments of a Propagation; return the edge weights, (n_edges,): `edge_weight`, or if it is None, the graph's own;
    None if both are missing.
    """
    if graph.bipartite:
        raise ConfigError("propagation needs one set of nodes, but the graph is bipartite")
    if normalization not in NORMALIZATIONS:
        raise ConfigError(f"normalization {normalization!r} is not one of {', '.join(NORMALIZATIONS)}")
    if edge_weight is None and graph.edge_weight is None:
        return None
    weight = as_array(graph.edge_weight if edge_weight is None else edge_weight)
    if weight.shape != (graph.n_edges,) or weight.dtype.kind not in "fiub":
        raise ShapeError(f"edge_weight: {weight.dtype} of shape {weight.shape}, but ({graph.n_edges},) numbers are "
                         "needed, one for each edge")
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
    if len(bad):
        raise DataError(f"edge_weight[{bad[0]}] is {weight[bad[0]]}: weights whose sums are degrees must be 0 or more, "
                        "and finite")
    return weight

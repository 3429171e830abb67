"""`EdgeList`: the graph that an operation works on. Edges go from source rows to destination rows, and may repeat."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sarlite.errors import ShapeError
from sarlite.types import Array


@dataclass(frozen=True, eq=False)
class Index:
    """Assignment of k entries, such as edges, to n rows: `rows` has the row number of each entry. A gather reads these rows,
    and a scatter adds to them.

    Attributes
    ----------
    rows : (k,) integer
        Row of each entry, from 0 to n - 1.
    n : int
        Number of rows.
    """

    rows: Array
    n: int

    @cached_property
    def order(self) -> Array:
        """Numbers of the entries, sorted by row (stable), shape (k,)."""
        return np.argsort(self.rows, kind="stable")

    @cached_property
    def counts(self) -> Array:
        """Number of entries of each row, shape (n,)."""
        return np.bincount(self.rows, minlength=self.n)

    @cached_property
    def indptr(self) -> Array:
        """Start of each row's entries in `order`, shape (n + 1,)."""
        return np.concatenate([[0], np.cumsum(self.counts)])


@dataclass(frozen=True, eq=False)
class EdgeList:
    """A directed graph: edge e goes from source row src[e] to destination row dst[e].

    Parameters
    ----------
    src, dst : (n_edges,) integer
        Ends of the edges; stored as read-only int64.
    n_src, n_dst : int
        Numbers of source and destination rows. In a homogeneous graph both number the same nodes.

    Raises
    ------
    ShapeError
        `src` and `dst` differ in length, or a row number is out of range.

    Examples
    --------
    >>> from sarlite import oracle
    >>> edges = oracle.EdgeList([0, 1, 0], [1, 1, 0], n_src=2, n_dst=2)
    >>> edges.in_degrees.tolist(), edges.out_degrees.tolist()
    ([1, 2], [2, 1])
    >>> edges.reversed().src.tolist()
    [1, 1, 0]
    """

    src: Array
    dst: Array
    n_src: int
    n_dst: int

    def __init__(self, src: npt.ArrayLike, dst: npt.ArrayLike, n_src: int, n_dst: int) -> None:
        for name, rows, n in (("src", src, n_src), ("dst", dst, n_dst)):
            index = np.array(rows, np.int64)
            if index.ndim != 1 or len(index) and (index.min() < 0 or index.max() >= n):
                raise ShapeError(f"{name}: row numbers of edges must be (n_edges,) integers from 0 to {n - 1}")
            index.flags.writeable = False
            object.__setattr__(self, name, index)
            object.__setattr__(self, f"n_{name}", n)
        if len(self.src) != len(self.dst):
            raise ShapeError(f"src has {len(self.src)} edges, dst has {len(self.dst)}")

    @cached_property
    def by_src(self) -> Index:
        """Source row of each edge, as an Index of n_src rows."""
        return Index(self.src, self.n_src)

    @cached_property
    def by_dst(self) -> Index:
        """Destination row of each edge, as an Index of n_dst rows."""
        return Index(self.dst, self.n_dst)

    @property
    def n_edges(self) -> int:
        """Number of edges; an edge that is repeated counts each time."""
        return len(self.src)

    @cached_property
    def eid(self) -> Array:
        """Edge numbers in CSR order, shape (n_edges,): sorted by (dst, src), repeated edges by edge number."""
        return np.lexsort((self.src, self.dst))

    @property
    def indptr(self) -> Array:
        """Row pointers of CSR by destination, shape (n_dst + 1,)."""
        return self.by_dst.indptr

    @property
    def indices(self) -> Array:
        """Sources of the edges in CSR order, shape (n_edges,)."""
        return self.src[self.eid]

    @property
    def in_degrees(self) -> Array:
        """Number of edges into each destination row, shape (n_dst,)."""
        return self.by_dst.counts

    @property
    def out_degrees(self) -> Array:
        """Number of edges out of each source row, shape (n_src,)."""
        return self.by_src.counts

    def reversed(self) -> "EdgeList":
        """Return the transposed graph; edges keep their numbers."""
        return EdgeList(self.dst, self.src, self.n_dst, self.n_src)

    def with_loops(self, rows: Array) -> "EdgeList":
        """Return the graph with a self loop at each of `rows`, appended after the edges of this graph."""
        return EdgeList(np.concatenate([self.src, rows]), np.concatenate([self.dst, rows]), self.n_src, self.n_dst)

    def select(self, edge_index: Array) -> "EdgeList":
        """Return the graph with the selected edges and all rows; `edge_index` holds edge numbers or a bool mask."""
        return EdgeList(self.src[edge_index], self.dst[edge_index], self.n_src, self.n_dst)

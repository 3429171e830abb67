"""The structure that an operation works on: edges from source rows to destination rows, duplicates counted."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sarlite.errors import ShapeError
from sarlite.types import Array


@dataclass(frozen=True, eq=False)
class Index:
    """The row, of n, that each of k entries belongs to: what a gather reads and a scatter writes."""

    rows: Array
    n: int

    @cached_property
    def order(self) -> Array:
        """(k,) the entries by row; the entries of one row keep their order."""
        return np.argsort(self.rows, kind="stable")

    @cached_property
    def counts(self) -> Array:
        """(n,) the number of entries of each row."""
        return np.bincount(self.rows, minlength=self.n)

    @cached_property
    def indptr(self) -> Array:
        """(n + 1,) where each row's entries start in `order`."""
        return np.concatenate([[0], np.cumsum(self.counts)])


@dataclass(frozen=True, eq=False)
class EdgeList:
    """Edges e from source row src[e] to destination row dst[e].

    Parameters
    ----------
    src, dst : (n_edges,) integer
        Kept as read-only int64.
    n_src, n_dst : int
        Numbers of rows; on a homogeneous graph they are the same nodes.

    Raises
    ------
    ShapeError
        Where src and dst differ in length, or name rows that are not there.
    """

    src: Array
    dst: Array
    n_src: int
    n_dst: int

    def __post_init__(self) -> None:
        for name, n in (("src", self.n_src), ("dst", self.n_dst)):
            index = np.array(getattr(self, name), np.int64)
            if index.ndim != 1 or len(index) and (index.min() < 0 or index.max() >= n):
                raise ShapeError(f"{name}: row numbers of edges are (n_edges,) from 0 to {n - 1}")
            index.flags.writeable = False
            object.__setattr__(self, name, index)
        if len(self.src) != len(self.dst):
            raise ShapeError(f"src has {len(self.src)} edges, dst has {len(self.dst)}")

    @cached_property
    def by_src(self) -> Index:
        return Index(self.src, self.n_src)

    @cached_property
    def by_dst(self) -> Index:
        return Index(self.dst, self.n_dst)

    @property
    def n_edges(self) -> int:
        return len(self.src)

    @cached_property
    def eid(self) -> Array:
        """(n_edges,) the edges in the order of CSR by destination: by (dst, src), duplicates in the order given."""
        return np.lexsort((self.src, self.dst))

    @property
    def indptr(self) -> Array:
        """(n_dst + 1,) of CSR by destination."""
        return self.by_dst.indptr

    @property
    def indices(self) -> Array:
        """(n_edges,) the sources of CSR by destination."""
        return self.src[self.eid]

    @property
    def in_degrees(self) -> Array:
        return self.by_dst.counts

    @property
    def out_degrees(self) -> Array:
        return self.by_src.counts

    def reversed(self) -> "EdgeList":
        return EdgeList(self.dst, self.src, self.n_dst, self.n_src)

    def with_loops(self, rows: Array) -> "EdgeList":
        """The same edges, and after them one from each of some rows to itself."""
        return EdgeList(np.concatenate([self.src, rows]), np.concatenate([self.dst, rows]), self.n_src, self.n_dst)

    def select(self, kept: Array) -> "EdgeList":
        """The graph of the edges that `kept` names, by position or by bool, all rows staying."""
        return EdgeList(self.src[kept], self.dst[kept], self.n_src, self.n_dst)

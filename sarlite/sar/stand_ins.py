"""What stands in for arrays and blocks where costs are counted: sizes, and no values."""

import math

import numpy as np


class Rows:
    """Stands in for an array of rows, or a view of one. `held` is what it is a view of, None where its memory is counted elsewhere."""

    __slots__ = ("shape", "dtype", "held", "__weakref__")

    def __init__(self, shape, dtype, held=None):
        self.shape, self.dtype, self.held = shape, np.dtype(dtype), held

    @property
    def nbytes(self):
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, rows):
        n = len(range(*rows.indices(len(self)))) if isinstance(rows, slice) else len(rows)
        return Rows((n, *self.shape[1:]), self.dtype, self.held)

    def __setitem__(self, rows, values):
        pass

    def __iadd__(self, other):
        return self

    def reshape(self, *shape):
        """As it is: the bytes stay the same."""
        return self

    view = reshape


class Message(Rows):
    """Stands in for a buffer of bytes: placed as it is made, free as neither it nor a view of it is held."""

    __slots__ = ("places",)

    def __init__(self, n_bytes, places):
        super().__init__((n_bytes,), np.uint8)
        self.places = places
        if places is not None:
            places.new(id(self), n_bytes)

    def __del__(self):
        if self.places is not None:
            self.places.free(id(self))


class RowNumbers:
    """Stands in for an ascending array of `n` row numbers; `contiguous` tells whether each follows the one before.

    `ranges` are (n, contiguous) of each range of their owner's rows, where they are divided by these; by default even ones.
    """

    def __init__(self, n, contiguous=False, ranges=None):
        self.n, self.contiguous, self.ranges = int(n), contiguous, ranges

    def __len__(self):
        return self.n

    def __getitem__(self, key):
        if isinstance(key, slice):
            return RowNumbers(len(range(*key.indices(self.n))), self.contiguous)
        return key % self.n * (1 if self.contiguous else 2)  # no end and begin that differ by their number

    def __array_function__(self, function, types, args, kwargs):
        if function is np.concatenate:
            return RowNumbers(sum(map(len, args[0])))
        if function is np.diff:
            return np.ones(1)
        if function is np.searchsorted:  # of where ranges begin
            ends = np.cumsum([n for n, _ in self.ranges]) if self.ranges else np.arange(1, len(args[1]) + 2) * self.n // (len(args[1]) + 1)
            return ends[:-1]
        if function is np.split:
            ends = [0, *args[1], self.n]
            contiguous = [flag for _, flag in self.ranges] if self.ranges else [self.contiguous] * len(ends)
            return [RowNumbers(b - a, flag) for a, b, flag in zip(ends, ends[1:], contiguous)]
        return NotImplemented

    def __sub__(self, first):
        return self

    def max(self):
        return self.n

    def astype(self, dtype, copy=True):
        return self


class CountedEdges:
    """Stands in for a block: its sizes."""

    def __init__(self, n_dst, n_src, n_edges, source):
        self.n_dst, self.n_src, self.n_edges, self.source = n_dst, n_src, n_edges, source

    @property
    def src_ids(self):
        return RowNumbers(self.n_src)

    def columns(self, a, b):
        return CountedEdges(self.n_dst, b - a, self.n_edges * (b - a) // max(self.n_src, 1), self.source)

    @property
    def halves(self):
        return tuple(CountedEdges(self.n_dst, self.n_src, n, self.source) for n in (self.n_edges // 2, self.n_edges - self.n_edges // 2))


class CountedCut:
    """Stands in for a `Cut`: how many edges come from each part."""

    def __init__(self, n_dst, n_edges):
        self.n_dst, self.n_edges = n_dst, n_edges
        self.edges = self  # of which `Exchange.dtype` asks how many indices there are
        self.indices = range(sum(n_edges))

    def blocks(self, rank, ends, src_ids, offsets, dtype):
        """A part's edges are divided as its columns are."""
        found = []
        for q, (n, at) in enumerate(zip(self.n_edges, ends)):
            edges = [n * end // max(at[-1], 1) for end in at[:-1]] + [n]
            found += [CountedEdges(self.n_dst, b - a, d - c, q) for a, b, c, d in zip([0, *at], at, [0, *edges], edges)]
        return found

    def merged(self, src_ids, offsets, dtype):
        return CountedEdges(self.n_dst, len(src_ids), sum(self.n_edges), "all")

"""Sampling of in-edges, and the numbering of a batch's rows."""

from functools import cached_property

import numpy as np

from sarlite.errors import ShapeError
from sarlite.kernels.native import INDEXES, call, check, check_csr, check_range, key64, lib, struct, threads
from sarlite.types import Array

SAMPLERS = {"uniform": lib.SAR_UNIFORM, "replace": lib.SAR_REPLACE, "labor": lib.SAR_LABOR}
_FEW = 32  # with at most this many picks for each row, the kernel needs no workspace
_PARTS = 32  # number of ranges of columns, in each of which new rows are counted


class Numbering:
    """Map from the CSR columns of a rank's part of the graph (own rows, then halo rows, which other ranks own) to row numbers of a
    sampled batch. The batch has the seeds first, then each layer's new rows, ascending.

    Sampling a batch::

        numbering = Numbering(n_columns, dtype)
        rows, numbers = numbering.begin(seeds)
        indptr, sources, positions = sample(..., numbering=numbering)      # marks the sources that are new
        rows = numbering.join(rows, sources)                               # replaces sources by numbers in the batch
        ...                                                                # further layers
        numbering.finish(rows)

    Parameters
    ----------
    n_columns : int
        Number of columns that a source may have: the part's rows and its halo rows.
    dtype : int32 or int64
        Dtype of rows and sources.

    Notes
    -----
    Memory: n_columns ((1 + threads) / 8 + bytes of an index) bytes, and 8 n_columns more once sampler "labor" picks for
    rows that together have n_columns edges or more. A batch costs O(its rows and edges), and a scan of n_columns / 4096
    words for each layer. Only one batch may use the object at a time. After a batch that failed, call `clear`.
    """

    def __init__(self, n_columns, dtype):
        self.n_columns, self.dtype = n_columns, np.dtype(dtype)
        self.n_words, self.n_threads = -(-n_columns // 4096) * 64, threads()
        self.members, self.place = np.zeros(self.n_words, np.uint64), np.empty(n_columns, self.dtype)
        self.seen = np.zeros((self.n_threads, self.n_words), np.uint64)
        self.summary = np.zeros((self.n_threads, self.n_words // 64), np.uint64)
        fields = ("members", "place", "seen", "summary", "n_words", "n_threads")
        self.struct = struct({name: getattr(self, name) for name in fields})

    @cached_property
    def variates(self) -> Array:
        """Buffer for the random number of each source in sampler "labor", (n_columns,) uint64."""
        return np.empty(self.n_columns, np.uint64)

    def begin(self, seeds: Array) -> tuple[Array, Array]:
        """Start a batch with the rows `seeds`; return (distinct seeds, position of each seed among the distinct seeds)."""
        return self.add(np.empty(0, self.dtype), seeds)

    def add(self, rows: Array, seeds: Array) -> tuple[Array, Array]:
        """Append the new rows among `seeds` to `rows`, the batch's rows so far; return (all rows, position of each seed in them).

        Parameters
        ----------
        rows : (n_rows,) array of `dtype`
            Columns of the batch's rows so far.
        seeds : (n,) array of `dtype`
            Columns of the seeds. A seed may repeat, or be a row of the batch already.

        Returns
        -------
        rows : (n_rows + k,) array of `dtype`
            The batch's rows, followed by the distinct new seeds in the order of their first occurrence.
        numbers : (n,) int64
            Position of each seed among the rows.
        """
        check("rows", rows, dtype=self.dtype, shape=(None,))
        check("seeds", seeds, dtype=self.dtype, shape=(None,))
        numbers, n_rows = np.empty(len(seeds), np.int64), np.array([len(rows)])
        check_range("seeds", seeds, self.n_columns)
        rows = np.concatenate([rows, np.empty(len(seeds), self.dtype)])
        self._call("seeds", rows, numbers, n_rows, self.struct, seeds, len(seeds))
        return rows[: int(n_rows[0])].copy(), numbers

    def join(self, rows: Array, sources: Array) -> Array:
        """Append the new rows among `sources` to `rows`, the batch's rows so far, and return all rows. Each source in `sources` is
        overwritten by its position in the returned rows.

        Parameters
        ----------
        rows : (n,) array of `dtype`
            Columns of the batch's rows so far.
        sources : (n_picks,) array of `dtype`
            Sources from `sample` with this numbering; updated.

        Returns
        -------
        (n + n_new,) array of `dtype`
            The batch's rows, followed by the new rows in ascending order.
        """
        check("rows", rows, dtype=self.dtype, shape=(None,))
        check("sources", sources, dtype=self.dtype, shape=(None,), out=True)
        counts, starts = np.empty(_PARTS, np.int64), np.zeros(_PARTS + 1, np.int64)
        self._call("count", counts, self.struct, _PARTS)
        np.cumsum(counts, out=starts[1:])
        joined = np.empty(len(rows) + int(starts[-1]), self.dtype)
        joined[: len(rows)] = rows
        self._call("join", joined[len(rows) :], self.struct, starts, len(rows), _PARTS)
        self._call("columns", sources, self.place, len(sources))
        return joined

    def end(self, rows: Array) -> None:
        """Remove `rows` from the batch, so that they count as new again."""
        self._call("end", self.members, check("rows", rows, dtype=self.dtype, shape=(None,)), len(rows))

    def finish(self, rows: Array) -> None:
        """End a batch whose rows are `rows`, so that the next batch can begin."""
        if len(rows) < self.n_words:
            self.end(rows)
        else:
            self.members[...] = 0

    def clear(self) -> None:
        """Remove all rows from the batch when the list of them is lost, for example after an error; takes O(n_columns) time."""
        for bits in (self.members, self.seen, self.summary):
            bits[...] = 0

    def _call(self, name, *args):
        call(f"sar_number_{name}_{INDEXES[self.dtype]}", *args)


def sample(indptr: Array, indices: Array, rows: Array, k: int, *, kind: str = "uniform", key: int = 0,
           loops: Array | None = None, dst_ids: Array | None = None, src_ids: Array | None = None,
           numbering: Numbering | None = None) -> tuple[Array, Array, Array]:
    """Sample up to k in-edges of each of `rows` by the method `kind` ("uniform", "replace" or "labor"), and add a self loop where
    the mask `loops` is True. Return (indptr, sources, positions): a CSR over `rows`, and the position of each edge in `indices`.
    The draw depends only on the random `key` and the global ids `dst_ids` and `src_ids`. With a `numbering` (map from nodes to rows
    of a batch), sources that are new in the batch get the next row numbers.

    Parameters
    ----------
    indptr : (n + 1,) int64
    indices : (n_edges,) int32 or int64
        Sources, in ascending order of their global ids in each row.
    rows : (n_rows,), indices' dtype
        Rows to sample for, in any order. Neither `rows` nor `indices` are checked.
    k : int
        Number of picks for each row, at least 0.
    kind : {"uniform", "replace", "labor"}
        "uniform": min(k, degree) distinct edges, each with the same probability. "replace": k edges with replacement,
        or none for a row without edges. "labor": the k edges whose sources have the smallest random numbers; a source
        has one random number for all rows, or several if it has parallel edges.
    key : int
        Key of the random numbers, taken modulo 2^64.
    loops : (n,) bool, optional
        True for a row with an added self loop, an edge from the row's own number. The self loop is always picked, and
        does not count as one of the k picks.
    dst_ids : (n,) int64, optional
        Global id of each row, on which its picks depend; by default the row's number.
    src_ids : (n_columns,) int64, optional
        Global id of each source, on which its random number in "labor" depends; by default the source's number.
    numbering : Numbering, optional
        Numbering whose batch the sources join; see `Numbering`.

    Returns
    -------
    out_indptr : (n_rows + 1,) int64
        The picks of rows[i] are out_indptr[i] .. out_indptr[i + 1].
    sources : (n_picks,), indices' dtype
        Source of each pick.
    positions : (n_picks,), indices' dtype
        Position of each pick in `indices`, ascending in each row.

    Raises
    ------
    ShapeError
        An argument is wrong, or a row has 2^32 - 1 edges or more.

    Notes
    -----
    O(n_picks) time, times log k if k > 32; for "labor" O(edges of the rows). The picks do not depend on the number of
    threads. Draw t of a row is word t % 4 of Philox4x32-10 with the key and the counter (id_low, id_high, t // 4,
    attempt). Lemire's method turns the word into an unbiased integer below n, with further attempts if needed. Floyd's
    algorithm makes draws distinct. A random number of "labor" is words 0 and 1 of the counter (id_low, id_high, number
    among parallel edges, 0).

    References
    ----------
    Bentley and Floyd 1987; Lemire 2019; Salmon et al. 2011; Balin and Catalyurek 2023 (LABOR-0).

    Examples
    --------
    >>> indptr, sources, positions = sample(np.array([0, 2]), np.array([5, 7]), np.array([0]), k=2)
    >>> indptr.tolist(), sources.tolist(), positions.tolist()
    ([0, 2], [5, 7], [0, 1])
    """
    n, n_edges = check_csr(indptr, check("indices", indices, dtype=INDEXES))
    index = indices.dtype
    if n_edges > np.iinfo(index).max:
        raise ShapeError(f"indices must have dtype int64 for {n_edges} edges; got dtype {index}")
    check("rows", rows, dtype=index, shape=(None,))
    if kind not in SAMPLERS:
        raise ShapeError(f"kind must be one of {', '.join(SAMPLERS)}, got {kind!r}")
    if k < 0:
        raise ShapeError(f"k must be at least 0, got {k}")
    if loops is not None:
        loops = check("loops", loops, dtype=np.bool_, shape=(n,)).view(np.uint8)
    check("dst_ids", dst_ids, dtype=np.int64, shape=(n,), optional=True)
    check("src_ids", src_ids, dtype=np.int64, shape=(None,), optional=True)
    fields = {"indptr": indptr, "indices": indices, "loops": loops, "dst_ids": dst_ids, "src_ids": src_ids,
              "rows": rows, "n_rows": len(rows), "k": int(k), "kind": SAMPLERS[kind], "key": key64(key)}
    suffix, out_indptr = INDEXES[index], np.empty(len(rows) + 1, np.int64)
    if kind == "labor" and numbering is not None and int((indptr[rows + 1] - indptr[rows]).sum()) >= numbering.n_columns:
        fields["variates"] = numbering.variates
        call(f"sar_sample_variates_{suffix}", numbering.variates, fields, numbering.n_columns)
    sampling = struct(fields)
    call(f"sar_sample_counts_{suffix}", out_indptr, sampling)
    sources, positions = np.empty(int(out_indptr[-1]), index), np.empty(int(out_indptr[-1]), index)
    team = threads() if numbering is None else min(threads(), numbering.n_threads)
    n_set = 2 << int(2 * k).bit_length() if k > _FEW and int(np.diff(out_indptr).max(initial=0)) >= k else 0
    workspace = np.empty((team, 2 * k + n_set), np.uint64) if n_set else None
    call(f"sar_sample_{suffix}", sources, positions, None if numbering is None else numbering.struct, workspace,
         out_indptr, sampling, 0 if workspace is None else workspace.shape[1], team)
    return out_indptr, sources, positions

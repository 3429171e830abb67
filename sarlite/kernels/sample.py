"""Sampling of in-edges, and the numbers of a batch's rows."""

from functools import cached_property

import numpy as np

from sarlite.errors import ShapeError
from sarlite.kernels.native import INDEXES, call, check, check_csr, check_range, key64, lib, struct, threads

SAMPLERS = {"uniform": lib.SAR_UNIFORM, "replace": lib.SAR_REPLACE, "labor": lib.SAR_LABOR}
_FEW = 32  # so many picks a row, or fewer, are drawn without a workspace
_PARTS = 32  # ranges of columns that new rows are counted in


class Numbering:
    """The rows of a batch, and the number of each in it: the seeds first, then each layer's new rows, ascending.

        numbering = Numbering(n_columns, dtype)
        rows, numbers = numbering.begin(seeds)
        indptr, sources, positions = sample(..., numbering=numbering)      # notes the sources that are new
        rows = numbering.join(rows, sources)                               # sources are numbers from here on
        ...                                                                # further layers
        numbering.finish(rows)

    Parameters
    ----------
    n_columns : int
        The rows that a source may be: the part's rows and its halo rows.
    dtype : int32 or int64
        Of rows and sources.

    Notes
    -----
    Memory: n_columns ((1 + threads) / 8 + the bytes of an index), and 8 n_columns once "labor" picks for rows that have
    n_columns edges or more together. A batch costs O(its rows and edges) and a look at n_columns / 4096 words a layer.
    One batch at a time. Between batches no bit is set; `clear` unsets all bits after a batch that failed.
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
    def variates(self):
        """Buffer for the variates of "labor", (n_columns,) uint64, used if the rows have many edges."""
        return np.empty(self.n_columns, np.uint64)

    def begin(self, seeds):
        """Start a batch: `add` to no rows."""
        return self.add(np.empty(0, self.dtype), seeds)

    def add(self, rows, seeds):
        """Append seeds to the batch's rows.

        Parameters
        ----------
        rows : (n_rows,) of the dtype
            The batch's rows so far.
        seeds : (n,) of the dtype
            Columns. A seed may be there more than once, or be a row of the batch already.

        Returns
        -------
        rows : (n_rows + k,) of the dtype
            The batch's rows, and behind them the distinct new seeds in the order of their first places.
        numbers : (n,) int64
            The place of each seed among the rows.
        """
        check("rows", rows, dtype=self.dtype, shape=(None,))
        check("seeds", seeds, dtype=self.dtype, shape=(None,))
        numbers, n_rows = np.empty(len(seeds), np.int64), np.array([len(rows)])
        check_range("seeds", seeds, self.n_columns)
        rows = np.concatenate([rows, np.empty(len(seeds), self.dtype)])
        self._call("seeds", rows, numbers, n_rows, self.struct, seeds, len(seeds))
        return rows[: int(n_rows[0])].copy(), numbers

    def join(self, rows, sources):
        """Add the new sources to the batch, and overwrite each source with its number in the batch.

        Parameters
        ----------
        rows : (n,) of the dtype
            The batch's rows so far.
        sources : (n_picks,) of the dtype
            From `sample` with this numbering. Updated.

        Returns
        -------
        (n + new,) of the dtype
            The batch's rows, the new ones ascending.
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

    def end(self, rows):
        """Remove these rows from the batch; they may be added again."""
        self._call("end", self.members, check("rows", rows, dtype=self.dtype, shape=(None,)), len(rows))

    def finish(self, rows):
        """Clear the numbering of a batch, given all rows of the batch."""
        if len(rows) < self.n_words:
            self.end(rows)
        else:
            self.members[...] = 0

    def clear(self):
        """Clear the numbering of a batch whose rows are unknown. O(n_columns)."""
        for bits in (self.members, self.seen, self.summary):
            bits[...] = 0

    def _call(self, name, *args):
        call(f"sar_number_{name}_{INDEXES[self.dtype]}", *args)


def sample(indptr, indices, rows, k, *, kind="uniform", key=0, loops=None, dst_ids=None, src_ids=None, numbering=None):
    """Pick in-edges of some rows.

    Parameters
    ----------
    indptr : (n + 1,) int64
    indices : (n_edges,) int32 or int64
        Sources, in each row in ascending order of their ids.
    rows : (n_rows,), indices' dtype
        The rows to pick for, in any order. Trusted, as `indices` are.
    k : int
        Picks a row, at least 0.
    kind : {"uniform", "replace", "labor"}
        "uniform": min(k, degree) distinct edges, each as likely. "replace": k draws, none from a row without edges.
        "labor": the edges with the k smallest variates of their sources; parallel edges have a variate each.
    key : int
        Taken modulo 2^64.
    loops : (n,) bool, optional
        Rows with an added self loop, an edge from the row of the same number: it is always picked and does not count.
    dst_ids : (n,) int64, optional
        Global id of each row, which decides its picks; by default the row's number.
    src_ids : (n_columns,) int64, optional
        Global id of each source, which decides its variate of "labor"; by default the source's number.
    numbering : Numbering, optional
        Notes the sources that its batch does not have yet.

    Returns
    -------
    out_indptr : (n_rows + 1,) int64
    sources : (n_picks,), indices' dtype
    positions : (n_picks,), indices' dtype
        Where each pick stands in `indices`, ascending in a row.

    Raises
    ------
    ShapeError
        Naming the argument; also for a row of 2^32 - 1 edges or more.

    Notes
    -----
    O(n_picks) time, times log k where k > 32; for "labor" O(edges of the rows). Draw t of a row is word t % 4 of
    Philox4x32-10 with the key and the counter (id_low, id_high, t // 4, attempt). Lemire's method makes the word an
    integer below n, attempt by attempt, so that all integers are as likely. Distinct draws are Floyd's. A variate is
    words 0 and 1 of the counter (id_low, id_high, number among parallel edges, 0). The picks are the same for any
    number of threads. Source: Bentley and Floyd 1987; Lemire 2019; Salmon et al. 2011; Balin and Catalyurek 2023
    (LABOR-0).
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
    labor = kind == "labor" and numbering is not None
    if labor and int((indptr[rows + 1] - indptr[rows]).sum()) >= numbering.n_columns:
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

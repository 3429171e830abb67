"""Past bugs of sums over edges, such as lost columns, edges or rows and state kept between calls, for `oracle_histories`."""

import numpy as np

from tests.helpers.oracle import oracle_kernels as right
from tests.helpers.oracle.oracle_kernels import Sparse
from tests.helpers.oracle.oracle_planting import DGL, Mutant, planting, summed

DRAWN: list[Mutant] = []
drawn = planting(DRAWN)
GITHUB = "https://github.com"


def places(case):
    """Return the position of each edge of the oracle case among its destination's in-edges, from 0: (n_edges,) int64."""
    place = np.empty(case.n_edges, np.int64)
    place[case.eid] = np.arange(case.n_edges) - case.indptr.astype(np.int64)[case.dst[case.eid]]
    return place


def positions(case):
    """Return the position of each edge of the oracle case in the CSR by destination, (n_edges,) int64."""
    position = np.empty(case.n_edges, np.int64)
    position[case.eid] = np.arange(case.n_edges)
    return position


def of_row(case):
    """Return the in-degree of the destination of each edge of the oracle case, (n_edges,)."""
    return np.bincount(case.dst, minlength=case.n_dst)[case.dst]


# ---- columns that are not computed: where(width) gives the bad ones

COLUMNS = {
    "vectors of 4, and no tail": lambda w: np.arange(w) >= w // 4 * 4,
    "vectors of 8, and no tail": lambda w: np.arange(w) >= w // 8 * 8,
    "vectors of 16, and no tail": lambda w: np.arange(w) >= w // 16 * 16,
    "the last vector of 8 is taken for a tail": lambda w: (np.arange(w) >= w - 8) & (w % 8 == 0),
    "the last vector of 4 is taken for a tail": lambda w: (np.arange(w) >= w - 4) & (w % 4 == 0),
    "a tail of one column": lambda w: (np.arange(w) == w - 1) & (w % 4 == 1),
    "a tail of three columns loses its last": lambda w: (np.arange(w) == w - 1) & (w % 4 == 3),
    "a tail of 5 to 7 of 8 loses what is beyond 4": lambda w: (np.arange(w) >= w // 8 * 8 + 4) & (w % 8 > 4),
    "columns beyond a warp of 32": lambda w: (np.arange(w) >= 32) & (w % 32 != 0),
    "the second half of a block of 64 that is not full": lambda w: (np.arange(w) >= w // 64 * 64 + 32) & (w % 64 > 32),
    "columns beyond a block of 128": lambda w: np.arange(w) >= 128,
    "columns beyond a block of 256": lambda w: np.arange(w) >= 256,
    "odd widths above 1 lose a column, taken in pairs": lambda w: (np.arange(w) == w - 1) & (w % 2 == 1) & (w > 1),
    **{f"the instance of width {one} alone": lambda w, one=one: np.full(w, w == one)
       for one in (1, 2, 4, 5, 8, 16, 32, 64, 127, 128, 256)},
}
LINKS = {"vectors of 4, and no tail": f"{GITHUB}/Zaneham/Booth/issues/76",
         "columns beyond a warp of 32": f"{GITHUB}/marsupialtail/sparsednn/issues/4"}


def _blank(out, where):
    out = out.copy()
    out[..., where(out.shape[-1])] = 0
    return out


for _name, _where in COLUMNS.items():
    drawn("spmm", name=f"columns: {_name}", link=LINKS.get(_name, ""))(
        lambda case, where=_where: _blank(right.spmm(case), where))
for _name in ("vectors of 4, and no tail", "the last vector of 8 is taken for a tail", "columns beyond a warp of 32"):
    drawn("spmm", name=f"columns, in the gradient: {_name}", backward=True)(
        lambda case, g, where=COLUMNS[_name]: {"x": _blank(right.spmm_vjp(case, g)["x"], where)})
    drawn("attention", name=f"columns of attention: {_name}")(
        lambda case, where=COLUMNS[_name]: _blank(right.gat(case), where))
    drawn("sddmm", name=f"columns of dot products: {_name}")(
        lambda case, where=COLUMNS[_name]: (
            case.x[case.src] * case.y[case.dst] * ~where(case.x.shape[1])).sum(1, dtype=case.dtype))
    drawn("spmm", name=f"columns, of weights' gradient: {_name}", backward=True, weighted=True)(
        lambda case, g, where=COLUMNS[_name]: {
            **right.spmm_vjp(case, g),
            "weight": (g[case.dst] * case.x[case.src] * ~where(g.shape[1])).sum(1, dtype=g.dtype)})


@drawn("spmm", name="the backward instance of width 256 alone", backward=True,
       link=f"{GITHUB}/NVIDIA/TransformerEngine/issues/3216")
def backward_256(case, g):
    gradients = right.spmm_vjp(case, g)
    return {"x": gradients["x"] * 5} if g.shape[1] == 256 else gradients


@drawn("spmm", name="a masked load reads on into the next row", link=f"{GITHUB}/triton-lang/triton/issues/435")
def reads_on(case):
    out = right.spmm(case)
    n, width = out.shape
    if n > 1 and width % 4:
        out[:-1, -1] += out[1:, 0]
    return out


@drawn("spmm", name="rows are addressed by the number of columns rounded up to 4",
       link=f"{GITHUB}/ROCm/rocSPARSE/issues/247")
def strides(case):
    out = right.spmm(case)
    n, width = out.shape
    wider = -(-width // 4) * 4
    flat = np.zeros(n * wider, out.dtype)
    flat[: out.size] = out.ravel()
    return np.ascontiguousarray(flat.reshape(n, wider)[:, :width])


# ---- edges that are lost, and rows that are not written: selected(case) gives those that count

EDGES = {
    "a warp takes the first 32 edges of a row": lambda c: places(c) < 32,
    "rows of a multiple of 32 edges lose the last": lambda c: (places(c) < of_row(c) - 1) | (of_row(c) % 32 != 0),
    "rows of more than 1,024 edges are cut": lambda c: places(c) < 1024,
    "degrees in uint8": lambda c: places(c) < of_row(c) % 256,
    "degrees in uint16": lambda c: places(c) < of_row(c) % 65536,
    "rows of one edge are skipped": lambda c: of_row(c) != 1,
    "unrolled by two, and no odd edge": lambda c: (of_row(c) % 2 == 0) | (places(c) < of_row(c) - 1) | (of_row(c) < 3),
    "the last chunk of 64 edges is not full": lambda c: positions(c) < c.n_edges // 64 * 64 if c.n_edges > 64 else
    np.ones(c.n_edges, bool),
    "what a row has in an earlier chunk of 128 edges": lambda c:
    positions(c) // 128 == (c.indptr.astype(np.int64)[1:][c.dst] - 1) // 128,
    "what a row has beyond its first chunk of 128": lambda c:
    positions(c) // 128 == c.indptr.astype(np.int64)[:-1][c.dst] // 128,
    "edge numbers in int16": lambda c: np.arange(c.n_edges) < 1 << 15,
    "element offsets of x in 15 bits": lambda c: c.src.astype(np.int64) * c.x.shape[1] < 1 << 15,
    "element offsets of x in 16 bits": lambda c: c.src.astype(np.int64) * c.x.shape[1] < 1 << 16,
    "sources from 2^15 on": lambda c: c.src < 1 << 15,
    "sources from 2^16 on": lambda c: c.src.astype(np.int64) < 1 << 16,
    "rows in blocks of 4, and no rest": lambda c: c.dst < c.n_dst // 4 * 4,
    "rows in blocks of 32, and no rest": lambda c: (c.dst < c.n_dst // 32 * 32) | (c.n_dst < 32),
    "a grid of 65,535 rows": lambda c: c.dst.astype(np.int64) < 65535,
    "row 0 is taken for padding": lambda c: c.dst != 0,
    "source 0 is taken for padding": lambda c: c.src != 0,
    "rows of one edge, a self loop": lambda c: (of_row(c) != 1) | (c.src != c.dst),
    "edges into rows without out-edges": lambda c: (
        np.bincount(c.src, minlength=max(c.n_src, c.n_dst))[c.dst] > 0) | (c.n_src != c.n_dst),
}
EDGE_LINKS = {"a grid of 65,535 rows": f"{GITHUB}/PaddlePaddle/Paddle/pull/43722",
              "what a row has beyond its first chunk of 128": f"{GITHUB}/pytorch/FBGEMM/pull/6259",
              "element offsets of x in 15 bits": f"{GITHUB}/rusty1s/pytorch_scatter/pull/303"}
for _name, _selected in EDGES.items():
    drawn("spmm", name=f"edges: {_name}", link=EDGE_LINKS.get(_name, ""))(
        lambda case, selected=_selected: summed(case, Sparse(case), case.x[case.src], selected(case)))


@drawn("spmm", name="the edge at the border of two chunks of 64 counts twice")
def carried_twice(case):
    carried = np.flatnonzero((positions(case) % 64 == 63) & (positions(case) < case.n_edges - 1))
    return summed(case, Sparse(case), case.x[case.src]) + summed(case, Sparse(case), case.x[case.src], carried)


@drawn("spmm", name="the accumulator is not cleared after a row that is empty",
       link=f"{GITHUB}/flashinfer-ai/flashinfer/pull/5029")
def leaking_accumulator(case):
    out = right.spmm(case)
    empty = np.flatnonzero(np.bincount(case.dst, minlength=case.n_dst) == 0)
    empty = empty[empty > 0]
    out[empty] = out[empty - 1]
    return out


@drawn("spmm", name="rows behind the last edge are not written", link=f"{GITHUB}/NVIDIA/cudf/issues/23111")
def not_written(case):
    out = right.spmm(case)
    out[case.dst.max(initial=-1) + 1 :] = 7
    return out


@drawn("spmm", name="additions that overlap: of equal destinations the last counts")
def last_wins(case):
    out = np.zeros((case.n_dst, case.x.shape[1]), case.dtype)
    out[case.dst] += case.x[case.src]
    return out


@drawn("spmm", name="destinations are taken to be sorted")
def taken_sorted(case):
    x, starts = case.x[case.src], np.flatnonzero(np.diff(case.dst, prepend=-1))
    out = np.zeros((case.n_dst, case.x.shape[1]), case.dtype)
    if case.n_edges:
        out[case.dst[starts]] = np.add.reduceat(x, starts, axis=0)
    return out


@drawn("spmm", name="edges from a node to itself count twice, as undirected ones")
def loops_twice(case):
    is_loop = case.src == case.dst
    return summed(case, Sparse(case), case.x[case.src]) + summed(case, Sparse(case), case.x[case.src], is_loop)


@drawn("spmm", name="sums in fixed point of 16 bits", link=f"{GITHUB}/openvinotoolkit/openvino/pull/36499")
def fixed_point(case):
    out = right.spmm(case)
    return np.where(np.abs(out) > 32767, 0, out).astype(out.dtype)


# ---- state between calls

_plans: dict = {}


@drawn("spmm", name="the plan of the graph before, which has as many rows and edges")
def cached_plan(case):
    src, dst = _plans.setdefault((case.n_src, case.n_dst, case.n_edges), (case.src, case.dst))
    return Sparse(case).into(dst, case.n_dst, case.x[src])


_workspace = np.zeros(0)


@drawn("spmm", name="a workspace is reused, and its second half is not cleared")
def workspace(case):
    global _workspace
    out = right.spmm(case)
    left = np.zeros(out.size, out.dtype)
    half = slice(out.size // 2, None)
    left[half][: max(len(_workspace) - out.size // 2, 0)] = _workspace[out.size // 2 : out.size]
    _workspace = out.ravel().copy()
    return out + left.reshape(out.shape)


_returned: dict = {}


@drawn("spmm", "repeat", name="one buffer is returned by every call, and changes under who holds it")
def one_buffer(case):
    out = right.spmm(case)
    held = _returned.setdefault(out.shape, out)
    held += out if held is not out else 0
    return held


@drawn("spmm", "repeat", name="a race that loses an edge in every fifth call")
def fifth(case, calls=[0]):  # noqa: B006 (the state of the race)
    calls[0] += 1
    selected = slice(0, case.n_edges - (calls[0] % 5 == 0)) if case.n_edges else slice(None)
    return summed(case, Sparse(case), case.x[case.src], selected)


@drawn("spmm", "repeat", name="a race that loses an edge in one call of 500")
def seldom(case, calls=[0]):  # noqa: B006 (the state of the race)
    calls[0] += 1
    selected = slice(0, case.n_edges - (calls[0] % 500 == 250)) if case.n_edges else slice(None)
    return summed(case, Sparse(case), case.x[case.src], selected)


@drawn("spmm", backward=True, name="the incoming gradient is written to", link=f"{GITHUB}/NVIDIA/apex/issues/1430")
def writes_cotangent(case, g):
    gradients = right.spmm_vjp(case, g)
    g *= 2
    return gradients


@drawn("spmm", name="arrays that are not contiguous are read as if they were", link=f"{DGL}/issues/6049")
def ignores_strides(case):
    x = case.arrays["x"]
    if not x.flags.c_contiguous:
        x = np.lib.stride_tricks.as_strided(x, x.shape, (x.shape[1] * x.itemsize, x.itemsize))
    return Sparse(case).into(case.dst, case.n_dst, x[case.src])

"""Bugs reported for sum, mean, max and min kernels of other libraries, chosen before the oracle's graphs were looked at."""

import os

import numpy as np
from threadpoolctl import threadpool_info

from tests.helpers.oracle import oracle_kernels as right
from tests.helpers.oracle.oracle_kernels import Sparse
from tests.helpers.oracle.oracle_planting import DGL, PYG, Mutant, planting, summed

REPORTED: list[Mutant] = []
reported = planting(REPORTED)
GITHUB = "https://github.com"
RACES = np.random.default_rng(0)


# ---- memory: the layout of a gradient, and buffers that live on


def memory(array):
    """Return (flat memory of which `array` is a view, offset of `array` in this memory, in elements)."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    offset = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return root.ravel(order="K"), offset // array.itemsize


def read(array, row_stride):
    """Return what a kernel reads from `array` if it assumes contiguous columns and rows `row_stride` elements apart; 0 beyond memory."""
    flat, offset = memory(array)
    inner = int(np.prod(array.shape[1:]))
    at = offset + np.arange(len(array))[:, None] * row_stride + np.arange(inner)
    at = at.reshape(array.shape)
    inside = (at >= 0) & (at < len(flat))
    return np.where(inside, flat[np.where(inside, at, 0)], 0).astype(array.dtype) if len(flat) else np.zeros_like(array)


def in_storage_order(g):
    return read(g, int(np.prod(g.shape[1:])))


@reported("attention", name="the gradient is read in storage order", backward=True, link=f"{GITHUB}/Dao-AILab/flash-attention/issues/355")
def gat_storage(case, g):
    return right.gat_vjp(case, in_storage_order(g))


@reported("spmm", name="columns of the gradient are taken to be one number apart", backward=True,
          link=f"{GITHUB}/ROCm/TransformerEngine/pull/623")
def unit_columns(case, g):
    return right.spmm_vjp(case, read(g, g.strides[0] // g.itemsize))


@reported("spmm", name="a mean's gradient is read in storage order", backward=True, reduce="mean", link=f"{GITHUB}/torch/nn/pull/345")
def mean_storage(case, g):
    return right.spmm_vjp(case, in_storage_order(g))


def gather_vjp(case, g):
    return {"x": Sparse(case).into(case.src, case.n_src, in_storage_order(g))}


REPORTED.append(Mutant("a gather's gradient is read in storage order", "gather", "probe", lambda case: case.x[case.src], gather_vjp,
                       link=f"{GITHUB}/pytorch/FBGEMM/pull/3006"))

OUTPUTS: dict = {}
WORKSPACE = np.zeros(0)


@reported("spmm", "repeat", name="outputs are cached by shape", link=f"{GITHUB}/flashinfer-ai/flashinfer/pull/4627")
def cached_output(case):
    out = right.spmm(case)
    cached = OUTPUTS.setdefault((out.shape, out.dtype), np.empty_like(out))
    cached[...] = out
    return cached


def shared(rows):
    """Copy `rows` into a global workspace, which the backward pass overwrites (a bug); return the view of the workspace."""
    global WORKSPACE
    if WORKSPACE.size < rows.size or WORKSPACE.dtype != rows.dtype:
        WORKSPACE = np.zeros(max(rows.size, 1 << 16), rows.dtype)
    view = WORKSPACE[: rows.size].reshape(rows.shape)
    view[...] = rows
    return view


REPORTED.append(Mutant("the output is the workspace of the backward pass", "spmm", "repeat", lambda case: shared(right.spmm(case)),
                       lambda case, g: {"x": shared(right.spmm_vjp(case, g)["x"]).copy()}, link=f"{GITHUB}/vllm-project/vllm/pull/29219"))


# ---- threads and races


def team():
    """Return the number of threads of the largest thread pool of this process."""
    return max([pool["num_threads"] for pool in threadpool_info()], default=1)


@reported("spmm", "repeat", name="rows are cut for more threads than there are", link=f"{GITHUB}/invergent-ai/surogate/issues/120")
def smaller_team(case):
    out = right.spmm(case)
    out[team() * -(-case.n_dst // (os.cpu_count() or 1)) :] = 0
    return out


@reported("spmm", "repeat", name="rows that the threads do not divide are left out", link=f"{GITHUB}/OpenMathLib/OpenBLAS/pull/1389")
def undivided(case):
    out = right.spmm(case)
    out[case.n_dst // team() * team() :] = 0
    return out


@reported("spmm", "repeat", name="the row at the border of two threads counts twice", link=f"{GITHUB}/brian-team/brian2/issues/358")
def twice_at_border(case):
    out = right.spmm(case)
    border = -(-case.n_dst // team())
    if case.n_dst % team() and border < case.n_dst:
        out[border] *= 2
    return out


@reported("spmm", "repeat", name="threads share a temporary, in one call of 100", link=f"{GITHUB}/ParRes/Kernels/issues/405")
def shared_temporary(case):
    out = right.spmm(case)
    if len(out) > 1 and RACES.random() < 0.01:
        out[1] = out[0]
    return out


@reported("spmm", "repeat", name="sums of long rows are cleared late, in one call of 50", link=f"{GITHUB}/karpathy/llm.c/pull/847")
def cleared_late(case):
    place = places(case)
    late = RACES.random() < 0.02
    return summed(case, Sparse(case), case.x[case.src], (degree_of(case) <= 32) | (place >= 32) | (not late))


# ---- precision and counters


def places(case):
    """Return the position of each edge of the oracle case among its destination's in-edges, from 0: (n_edges,) int64."""
    place = np.empty(case.n_edges, np.int64)
    place[case.eid] = np.arange(case.n_edges) - case.indptr.astype(np.int64)[case.dst[case.eid]]
    return place


def degree_of(case):
    """Return the in-degree of the destination of each edge of the oracle case, (n_edges,)."""
    return np.bincount(case.dst, minlength=case.n_dst)[case.dst]


def one_after_the_other(case, rows, round_sum):
    """Return sums of `rows` over each destination's edges in the case, with `round_sum(sum)` after each of the first 512 additions.

    The remaining terms of a row are added together at the end.
    """
    place = np.minimum(places(case), 512)
    order = np.argsort(place, kind="stable")
    cuts = np.searchsorted(place[order], np.arange(place.max(initial=-1) + 2))
    out = np.zeros((case.n_dst, *rows.shape[1:]), rows.dtype)
    for first, last in zip(cuts[:-1], cuts[1:]):
        edges = order[first:last]
        np.add.at(out, case.dst[edges], rows[edges])
        out[case.dst[edges]] = round_sum(out[case.dst[edges]])
    return out


HALF = {"dtype": "float16", "accumulate": "float32"}


def half_sums(case):
    """Return the case's sums of x by destination, (n_dst, width): each 1,024 edges are summed in float32, these sums in float16."""
    chunk = places(case) // 1024
    names, group = np.unique(np.stack([case.dst, chunk]), axis=1, return_inverse=True)
    partial = np.zeros((names.shape[1], case.x.shape[1]), np.float32)
    np.add.at(partial, group.ravel(), case.x[case.src].astype(np.float32))
    out = np.zeros((case.n_dst, case.x.shape[1]), np.float16)
    np.add.at(out, names[0], partial.astype(np.float16))
    return out


def half_counts(case):
    total = Sparse(case).into(case.dst, case.n_dst, case.x[case.src].astype(np.float32))
    count = np.clip(np.bincount(case.dst, minlength=case.n_dst), 1, 2048)
    return (total / count[:, None]).astype(case.dtype)


REPORTED.append(Mutant("sums of float16 in float16", "spmm", "certified", half_sums, None, HALF, f"{DGL}/pull/4842"))
REPORTED.append(Mutant("a mean of float16 counts in float16", "spmm", "certified", half_counts, None, {"reduce": "mean", **HALF},
                       f"{GITHUB}/rusty1s/pytorch_scatter/issues/269"))


@reported("spmm", name="counts of a mean stop at 2^24", reduce="mean", link=f"{GITHUB}/pytorch/pytorch/issues/124783")
def float_counts(case):
    degree = np.bincount(case.dst, minlength=case.n_dst)[:, None]
    return (right.spmm(case) * (np.maximum(degree, 1) / np.clip(degree, 1, 1 << 24))).astype(case.dtype)


@reported("spmm", name="byte offsets of x in 32 bits", link=f"{GITHUB}/NVIDIA/cccl/issues/8800")
def byte_offsets(case):
    bytes_a_row = max(case.x.shape[1] * case.x.itemsize, 1)
    return summed(case, Sparse(case), case.x[case.src.astype(np.int64) * bytes_a_row % (1 << 32) // bytes_a_row])


# ---- extrema


LOWEST = np.finfo(np.float32).min


@reported("spmm", name="the maximum of no edges is the lowest number", reduce="max", link=f"{GITHUB}/tensorflow/tensorflow/issues/58123")
def lowest_of_none(case):
    empty = np.bincount(case.dst, minlength=case.n_dst) == 0
    return np.where(empty[:, None], case.dtype.type(LOWEST), right.spmm(case))


@reported("spmm", name="a maximum of 0 over more than 8,192 edges is -Inf", reduce="max", link=f"{GITHUB}/openxla/xla/issues/5544")
def second_pass(case):
    out = right.spmm(case)
    long = np.bincount(case.dst, minlength=case.n_dst) > 8192
    return np.where(long[:, None] & (out == 0), case.dtype.type(-np.inf), out)


@reported("spmm", name="a maximum has the gradient of a mean", reduce="max", backward=True,
          link=f"{GITHUB}/flagos-ai/FlagGems/issues/5220")
def as_mean(case, g):
    degree = right.degrees(case, case.dst, case.n_dst)
    return {"x": Sparse(case).into(case.src, case.n_src, (g / degree[:, None])[case.dst])}


@reported("spmm", name="the maximum over a graph of one edge is the lowest number", reduce="max",
          link=f"{GITHUB}/rusty1s/pytorch_scatter/issues/78")
def single_edge(case):
    out = right.spmm(case)
    return np.full_like(out, LOWEST) if case.n_edges == 1 else out


@reported("spmm", name="a source that wins by two edges gets the gradient twice", reduce="max", backward=True,
          link=f"{GITHUB}/HIPS/autograd/pull/141")
def wins_twice(case, g):
    edges = Sparse(case)
    won = right.winners(case, edges, case.x)
    pairs = np.unique(np.stack([case.src, case.dst]), axis=1, return_inverse=True)[1].ravel()
    by_pair = np.zeros((pairs.max(initial=-1) + 1, won.shape[1]), won.dtype)
    np.add.at(by_pair, pairs, won)
    return {"x": edges.into(case.src, case.n_src, g[case.dst] * by_pair[pairs])}


@reported("spmm", name="the gradient of a maximum of one column fails", reduce="max", backward=True, link=f"{DGL}/pull/2250")
def one_column(case, g):
    assert g.shape[1] > 1
    return right.spmm_vjp(case, g)


# ---- degrees


@reported("spmm", name="factors are taken by edge number", reduce="sym", link=f"{GITHUB}/alexOarga/haiku-geometric/issues/6")
def by_edge_number(case):
    if case.n_src != case.n_dst:
        raise NotImplementedError("n_src = n_dst")
    factor = (1 / np.sqrt(right.degrees(case, case.src, case.n_src) * right.degrees(case, case.dst, case.n_dst))).astype(case.dtype)
    return summed(case, Sparse(case), case.x[case.src] * factor[np.arange(case.n_edges) % max(case.n_src, 1)][:, None])


@reported("spmm", name="a mean counts one edge more", reduce="mean", link=f"{PYG}/issues/238")
def one_more(case):
    degree = np.bincount(case.dst, minlength=case.n_dst).astype(case.dtype)
    return summed(case, Sparse(case), case.x[case.src]) / (degree + 1)[:, None]


# ---- rows, columns and edges


@reported("spmm", name="the last row must not be empty", reduce="mean", link=f"{GITHUB}/pytorch/pytorch/issues/4169")
def last_row(case):
    case.indices[case.indptr[:-1]]
    return right.spmm(case)


GRADIENTS = [np.ones(1 << 20, np.float32)]


@reported("spmm", name="the gradient of no edges is not cleared", backward=True, link=f"{GITHUB}/tensorflow/tensorflow/issues/72785")
def not_cleared(case, g):
    dx = right.spmm_vjp(case, g)["x"]
    return {"x": dx if case.n_edges else np.resize(GRADIENTS[0], dx.shape).astype(dx.dtype)}


def without(out, columns):
    out = out.copy()
    out[..., columns] = 0
    return out


@reported("spmm", name="double vectors of 32 columns are half computed", link=f"{GITHUB}/libxsmm/libxsmm/pull/511")
def double_wide(case):
    width = case.x.shape[1]
    column = np.arange(width)
    return without(right.spmm(case), (width > 32) & (width % 32 > 16) & (column >= width // 32 * 32 + 16))


@reported("spmm", name="the accumulator of a tail of 256 columns is not cleared", link=f"{GITHUB}/frovedis/frovedis/pull/4")
def vlen_tail(case):
    out, first = right.spmm(case), case.x.shape[1] // 256 * 256
    if first:
        out[:, first:] = np.cumsum(out[:, first:], 0, dtype=out.dtype)
    return out


@reported("sddmm", name="a tail is lost behind a multiple of the stages", link=f"{GITHUB}/NVIDIA/cutlass/issues/3536")
def stages(case):
    width = case.x.shape[1]
    n_columns = width // 16 * 16 if width > 16 and width // 16 % 3 == 0 else width
    return (case.x[case.src] * case.y[case.dst])[:, :n_columns].sum(1, dtype=case.dtype)


@reported("sddmm", name="dot products of more than 32 columns lose their tail", link=f"{GITHUB}/tile-ai/tilelang/issues/2605")
def atoms(case):
    width = case.x.shape[1]
    return (case.x[case.src] * case.y[case.dst])[:, : width // 32 * 32 or width].sum(1, dtype=case.dtype)


@reported("spmm", name="rows that are not aligned lose their first columns", link=f"{GITHUB}/intel/torch-xpu-ops/pull/1285")
def unaligned(case):
    out, width = right.spmm(case), case.x.shape[1]
    if width > 16 and width % 8 in (2, 6):
        out[np.arange(len(out)) * width % 4 != 0, :2] = 0
    return out


@reported("spmm", name="of more than 64 edges a row on average 64 count", link=f"{GITHUB}/ROCm/rocSPARSE/pull/32")
def crowded(case):
    return summed(case, Sparse(case), case.x[case.src], (case.n_edges <= 64 * case.n_dst) | (places(case) < 64))


@reported("spmm", name="a row of 16 times the average loses an edge", link=f"{GITHUB}/ginkgo-project/ginkgo/issues/1212")
def unbalanced(case):
    degree = degree_of(case)
    return summed(case, Sparse(case), case.x[case.src],
                  (degree * case.n_dst <= 16 * case.n_edges) | (places(case) < degree - 1))


@reported("spmm", name="self loops are left out, but for the first edge", link=f"{GITHUB}/owensgroup/merge-spmm/issues/5")
def no_loops(case):
    return summed(case, Sparse(case), case.x[case.src], (case.src != case.dst) | (np.arange(case.n_edges) == 0))


@reported("spmm", name="as many gradients as destinations are computed", backward=True, link=f"{GITHUB}/kokkos/kokkos-kernels/issues/402")
def square_only(case, g):
    dx = right.spmm_vjp(case, g)["x"]
    dx[case.n_dst :] = 0
    return {"x": dx}


@reported("spmm", name="no nodes are refused by a crash", link=f"{PYG}/pull/4222")
def no_nodes(case):
    case.x[0]
    return right.spmm(case)


@reported("sddmm", name="no edges are refused by a crash", link=f"{GITHUB}/facebookresearch/xformers/pull/300")
def no_edges(case):
    case.src[0]
    return right.sddmm(case)

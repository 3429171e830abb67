"""Past bugs of edge weights, means, symmetric sums and maxima, for `oracle_histories`."""

import numpy as np

from tests.helpers.oracle import oracle_kernels as right
from tests.helpers.oracle.oracle_histories_sums import of_row
from tests.helpers.oracle.oracle_kernels import Sparse, degrees, wide
from tests.helpers.oracle.oracle_planting import Mutant, planting, summed

DRAWN: list[Mutant] = []
drawn = planting(DRAWN)
GITHUB = "https://github.com"


# ---- weights


@drawn("spmm", weighted=True, name="edges of weight 0 are skipped, NaN of their sources too",
       link=f"{GITHUB}/scipy/scipy/issues/7532")
def skips_zero(case):
    rows = right.messages(case, Sparse(case), case.x)
    return summed(case, Sparse(case), rows, case.weight != 0)


@drawn("spmm", weighted=True, backward=True, name="the gradient of a weight that is 0 is 0")
def pruned_gradient(case, g):
    gradients = right.spmm_vjp(case, g)
    return {**gradients, "weight": np.where(case.weight == 0, 0, gradients["weight"]).astype(g.dtype)}


@drawn("spmm", weighted=True, reduce="max", name="edges of weight 0 take no part in a maximum")
def maxima_skip_zero(case):
    top = np.full((case.n_dst, case.x.shape[1]), -np.inf, case.dtype)
    nonzero = case.weight != 0
    np.maximum.at(top, case.dst[nonzero], (case.x[case.src] * case.weight[:, None])[nonzero])
    return np.where(np.isneginf(top), 0, top).astype(case.dtype)


@drawn("spmm", weighted=True, name="weights that are not finite become 0")
def cleaned_weights(case):
    weight = np.where(np.isfinite(case.weight), case.weight, 0).astype(case.dtype)
    return summed(case, Sparse(case), case.x[case.src] * weight[:, None])


@drawn("spmm", weighted=True, name="negative weights count by their size")
def absolute_weights(case):
    return summed(case, Sparse(case), case.x[case.src] * np.abs(case.weight)[:, None])


@drawn("spmm", weighted=True, name="weights are applied twice")
def squared_weights(case):
    return summed(case, Sparse(case), case.x[case.src] * (case.weight * case.weight)[:, None])


@drawn("spmm", weighted=True, name="rows of one edge are copied without the weight")
def copied_rows(case):
    weight = np.where(of_row(case) == 1, 1, case.weight).astype(case.dtype)
    return summed(case, Sparse(case), case.x[case.src] * weight[:, None])


@drawn("spmm", weighted=True, name="edges that are there twice carry their last weight",
       link=f"{GITHUB}/jax-ml/jax/pull/8897")
def last_weight(case):
    _, first, back = np.unique(np.stack([case.dst, case.src]), axis=1, return_index=True, return_inverse=True)
    last = np.zeros(len(first), np.int64)
    np.maximum.at(last, back.ravel(), np.arange(case.n_edges))
    return summed(case, Sparse(case), case.x[case.src] * case.weight[last[back.ravel()]][:, None])


@drawn("spmm", weighted=True, backward=True, name="in the transpose weights stand by place")
def transposed_weights(case, g):
    order = np.argsort(case.src, kind="stable")
    rows = g[case.dst[order]] * case.weight[:, None]
    return {**right.spmm_vjp(case, g), "x": Sparse(case).into(case.src[order], case.n_src, rows)}


@drawn("spmm", weighted=True, backward=True, name="edges that are there twice share one gradient of weights",
       link=f"{GITHUB}/pytorch/pytorch/pull/92979")
def shared_gradient(case, g):
    gradients = right.spmm_vjp(case, g)
    _, back = np.unique(np.stack([case.dst, case.src]), axis=1, return_inverse=True)
    total = np.bincount(back.ravel(), gradients["weight"].astype(np.float64), case.n_edges) if case.n_edges else back
    return {**gradients, "weight": total[back.ravel()].astype(g.dtype)}


@drawn("spmm", weighted=True, backward=True, name="the gradient of weights is of the first column")
def first_column(case, g):
    return {**right.spmm_vjp(case, g), "weight": g[case.dst][:, 0] * case.x[case.src][:, 0]}


@drawn("spmm", weighted=True, reduce="mean", name="a mean divides by the sum of the weights")
def mean_of_weights(case):
    total = np.bincount(case.dst, case.weight.astype(np.float64), case.n_dst)
    rows = summed(case, Sparse(case), case.x[case.src] * case.weight[:, None])
    return (rows / np.where(total == 0, 1, total)[:, None]).astype(case.dtype)


@drawn("spmm", weighted=True, reduce="mean", backward=True, name="a mean's gradient of weights is not divided")
def undivided(case, g):
    return {**right.spmm_vjp(case, g), "weight": (g[case.dst] * case.x[case.src]).sum(1, dtype=g.dtype)}


# ---- means and symmetric sums


@drawn("spmm", reduce="mean", name="a mean divides by neighbours that differ")
def distinct(case):
    pairs = np.unique(np.stack([case.dst, case.src]), axis=1)
    count = np.maximum(np.bincount(pairs[0], minlength=case.n_dst), 1).astype(case.dtype)
    return summed(case, Sparse(case), case.x[case.src]) / wide(count, case.x)


@drawn("spmm", reduce="mean", backward=True, name="a mean's gradient is divided by out-degrees")
def mean_gradient_out(case, g):
    count = degrees(case, case.src, case.n_src)
    return {"x": Sparse(case).into(case.src, case.n_src, g[case.dst]) / wide(count, g)}


@drawn("spmm", reduce="mean", name="counts of a mean stop at 255")
def saturated_mean(case):
    count = np.minimum(degrees(case, case.dst, case.n_dst), 255).astype(case.dtype)
    return summed(case, Sparse(case), case.x[case.src]) / wide(count, case.x)


@drawn("spmm", reduce="sym", name="in-degrees at both ends")
def in_degrees_twice(case):
    if case.n_src != case.n_dst:
        raise NotImplementedError("bipartite")
    root = 1 / np.sqrt(degrees(case, case.dst, case.n_dst))
    return summed(case, Sparse(case), case.x[case.src] * (root[case.src] * root[case.dst])[:, None].astype(case.dtype))


@drawn("spmm", reduce="sym", name="a source of no in-edges is divided by 0")
def infinite_root(case):
    with np.errstate(divide="ignore", invalid="ignore"):
        roots = [1 / np.sqrt(np.bincount(i, minlength=n)) for i, n in ((case.src, case.n_src), (case.dst, case.n_dst))]
        return (summed(case, Sparse(case), (case.x[case.src] * roots[0][case.src][:, None]).astype(case.dtype))
                * roots[1][:, None]).astype(case.dtype)


# ---- maxima


def maxima(case, start=-np.inf, rows=None, selected=slice(None)):
    rows = case.x[case.src] if rows is None else rows
    top = np.full((case.n_dst, case.x.shape[1]), start, case.dtype)
    np.maximum.at(top, case.dst[selected], rows[selected])
    return np.where(wide(np.bincount(case.dst, minlength=case.n_dst) == 0, top), 0, top).astype(case.dtype)


@drawn("spmm", reduce="max", name="maxima start at the smallest positive number")
def from_tiny(case):
    return maxima(case, np.finfo(case.dtype).tiny)


@drawn("spmm", reduce="max", name="maxima start at the least finite number, above -Inf")
def from_least(case):
    return maxima(case, np.finfo(case.dtype).min)


@drawn("spmm", reduce="max", name="maxima leave NaN out", link=f"{GITHUB}/tensorflow/tensorflow/issues/13046")
def without_nan(case):
    top = np.full((case.n_dst, case.x.shape[1]), -np.inf, case.dtype)
    np.fmax.at(top, case.dst, case.x[case.src])
    return np.where(np.isneginf(top) & wide(np.bincount(case.dst, minlength=case.n_dst) == 0, top), 0, top
                    ).astype(case.dtype)


@drawn("spmm", reduce="min", name="minima leave NaN out, maxima do not", link=f"{GITHUB}/ROCm/FlyDSL/issues/939")
def minimum_without_nan(case):
    top = np.full((case.n_dst, case.x.shape[1]), np.inf, case.dtype)
    np.fmin.at(top, case.dst, case.x[case.src])
    return np.where(wide(np.bincount(case.dst, minlength=case.n_dst) == 0, top), 0, top).astype(case.dtype)


@drawn("spmm", reduce="max", name="a NaN restarts the maximum", link=f"{GITHUB}/arrayfire/arrayfire/issues/860")
def restarted(case):
    x, nan = case.x, np.isnan(case.x[case.src])
    if not nan.any():
        return maxima(case)
    top, out = np.full((case.n_dst, x.shape[1]), -np.inf, case.dtype), x[case.src]
    for e in range(case.n_edges):
        row = top[case.dst[e]]
        top[case.dst[e]] = np.where(~(row > out[e]), out[e], row)
    return np.where(wide(np.bincount(case.dst, minlength=case.n_dst) == 0, top), 0, top).astype(case.dtype)


@drawn("spmm", reduce="max", name="maxima by the bits of floats, as of integers")
def by_bits(case):
    kind = f"i{np.dtype(case.x.dtype).itemsize}"
    bits = np.ascontiguousarray(case.x).view(kind)[case.src]
    top = np.full((case.n_dst, case.x.shape[1]), np.iinfo(kind).min, kind)
    np.maximum.at(top, case.dst, bits)
    out = top.view(case.x.dtype)
    return np.where(wide(np.bincount(case.dst, minlength=case.n_dst) == 0, out), 0, out).astype(case.dtype)


@drawn("spmm", reduce="max", weighted=True, name="the maximum is taken before the weight")
def weight_after(case):
    rows, edges = case.x[case.src], Sparse(case)
    top = edges.greatest(rows)
    return maxima(case, rows=np.where(rows == top[case.dst], rows * case.weight[:, None], -np.inf).astype(case.dtype))


@drawn("spmm", reduce="max", backward=True, name="the winner of the first column wins all columns")
def one_winner(case, g):
    edges = Sparse(case)
    first_column = right.winners(case, edges, case.x)[:, :1]
    return {"x": edges.into(edges.src, edges.n_src, g[edges.dst] * first_column)}


@drawn("spmm", reduce="max", backward=True, name="the gradient of a row without edges goes to the last source")
def minus_one(case, g):
    dx = right.spmm_vjp(case, g)["x"]
    empty = np.bincount(case.dst, minlength=case.n_dst) == 0
    if len(dx):
        dx[-1] += g[empty].sum(0, dtype=g.dtype)
    return {"x": dx}


@drawn("spmm", reduce="max", backward=True, name="of a source that wins in two rows one gradient is kept")
def overwritten(case, g):
    edges = Sparse(case)
    winner, out = right.winners(case, edges, case.x), np.zeros_like(case.x)
    for e in np.flatnonzero(winner.any(1)):
        out[edges.src[e]] = np.where(winner[e] > 0, g[edges.dst[e]], out[edges.src[e]])
    return {"x": out}


@drawn("spmm", reduce="max", backward=True, name="of a tie the last edge wins",
       link=f"{GITHUB}/rusty1s/pytorch_scatter/pull/59")
def last_winner(case, g):
    edges = Sparse(case)
    ties = right.winners(case, edges, case.x, marks_ties=True)
    place = np.where(ties > 0, np.arange(case.n_edges)[:, None], -1)
    last = np.full((case.n_dst, case.x.shape[1]), -1)
    np.maximum.at(last, edges.dst, place)
    return {"x": edges.into(edges.src, edges.n_src, g[edges.dst] * (place == last[edges.dst]) * ties)}


@drawn("spmm", reduce="max", backward=True, name="ties share the gradient",
       link=f"{GITHUB}/pytorch/pytorch/pull/76523")
def shared_ties(case, g):
    edges = Sparse(case)
    ties = right.winners(case, edges, case.x, marks_ties=True)
    count = np.maximum(edges.into(edges.dst, edges.n_dst, ties), 1)
    return {"x": edges.into(edges.src, edges.n_src, g[edges.dst] * ties / count[edges.dst])}


@drawn("spmm", reduce="max", backward=True, name="the winner's number is kept in int8")
def short_winner(case, g):
    edges = Sparse(case)
    winner = right.winners(case, edges, case.x) * (edges.src < 128)[:, None]
    return {"x": edges.into(edges.src, edges.n_src, g[edges.dst] * winner.astype(g.dtype))}


@drawn("spmm", reduce="max", backward=True, name="a gradient of 0 / 0 where nothing won",
       link=f"{GITHUB}/pytorch/pytorch/pull/169263")
def nan_gradient(case, g):
    dx = right.spmm_vjp(case, g)["x"]
    dx[np.bincount(case.src, minlength=case.n_src) == 0] = np.nan
    return {"x": dx}

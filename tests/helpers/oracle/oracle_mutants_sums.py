"""Planted and real bugs of sums, means, maxima and minima; see `planted_mutants`."""

import numpy as np

from tests.helpers.oracle import oracle_kernels as right
from tests.helpers.oracle.oracle_kernels import Sparse, degrees, wide
from tests.helpers.oracle.oracle_planting import DGL, PYG, Mutant, planting, summed

SUMS: list[Mutant] = []
planted = planting(SUMS)


# ---- sums


@planted("spmm")
def the_last_edge_is_lost(case):
    return summed(case, Sparse(case), case.x[case.src], slice(0, max(case.n_edges - 1, 0)))


@planted("spmm")
def the_first_edge_is_doubled(case):
    edges, rows = Sparse(case), case.x[case.src]
    return summed(case, edges, rows) + summed(case, edges, rows, slice(0, 1))


@planted("spmm")
def an_edge_goes_to_the_next_row(case):
    edges = Sparse(case)
    if len(edges.dst) > 2:
        edges.dst[1] = (edges.dst[1] + 1) % case.n_dst
    return summed(case, edges, case.x[case.src])


@planted("spmm")
def rows_are_off_by_one(case):
    return np.roll(right.spmm(case), 1, axis=0)


@planted("spmm")
def sources_and_destinations_are_swapped(case):
    edges = Sparse(case)
    if case.n_src != case.n_dst:
        raise NotImplementedError("bipartite")
    return edges.into(edges.src, case.n_dst, case.x[edges.dst])


@planted("spmm", name="wrong unless the width is a power of two: the tile's rest is not computed",
         link="https://github.com/dgSPARSE/dgSPARSE-Lib/issues/14")
def width_of_tiles(case):
    out = right.spmm(case)
    out[:, 1 << (out.shape[1].bit_length() - 1):] = 0
    return out


@planted("spmm")
def a_padding_column_leaks(case):
    out = right.spmm(case)
    if out.shape[1] % 4:
        out[:, -1] += 1
    return out


@planted("spmm", name="int32 overflow of edge times width (as int8)")
def overflow(case):
    edges, rows = Sparse(case), case.x[case.src]
    selected = np.arange(len(rows)) * rows.shape[1] < 128
    return summed(case, edges, rows, selected)


@planted("spmm", link=f"{DGL}/issues/3766", name="edges above int: the kernel does nothing (edges above 100)")
def grid_too_large(case):
    return np.zeros((case.n_dst, case.x.shape[1]), case.dtype) if case.n_edges > 100 else right.spmm(case)


_stale: dict = {}


@planted("spmm")
def the_buffer_is_not_cleared(case):
    out = right.spmm(case)
    before = _stale.get(out.shape)
    _stale[out.shape] = out.copy()
    return out if before is None else out + before


@planted("spmm", "certified")
def sums_are_made_in_float16(case):
    with np.errstate(over="ignore"):
        return Sparse(case).into(case.dst, case.n_dst, case.x[case.src].astype(np.float16)).astype(case.dtype)


@planted("spmm")
def duplicate_edges_count_once(case):
    pairs = np.unique(np.stack([case.dst, case.src]), axis=1)
    out = np.zeros((case.n_dst, case.x.shape[1]), case.dtype)
    np.add.at(out, pairs[0], case.x[pairs[1]])
    return out


@planted("spmm")
def self_loops_are_dropped(case):
    return summed(case, Sparse(case), case.x[case.src], case.src != case.dst)


@planted("spmm")
def the_number_of_rows_is_the_highest_destination(case):
    return right.spmm(case)[: case.dst.max(initial=-1) + 1]


@planted("spmm")
def inputs_are_written_to(case):
    x = case.x
    out = np.zeros((case.n_dst, x.shape[1]), x.dtype)
    np.add.at(out, case.dst, x[case.src])
    x *= 2
    return out


@planted("spmm")
def no_edges_raise(case):
    return right.spmm(case) if case.n_edges else case.src[0]


@planted("spmm")
def rows_of_more_than_eight_edges_are_cut(case):
    place = np.empty(case.n_edges, np.int64)
    place[case.eid] = np.arange(case.n_edges) - case.indptr[case.dst[case.eid]]
    return summed(case, Sparse(case), case.x[case.src], place < 8)


@planted("spmm", "repeat")
def threads_race(case, calls=[0]):  # noqa: B006 (the state of the race)
    calls[0] += 1
    out = right.spmm(case)
    return out * (1 + 2 * np.finfo(out.dtype).eps * (calls[0] % 2)).astype(out.dtype)


@planted("spmm", weighted=True)
def weights_are_ignored(case):
    return summed(case, Sparse(case), case.x[case.src])


@planted("spmm", weighted=True, name="weights stand in another order than edges", link=f"{DGL}/issues/3421")
def order_of_edges_lost(case):
    return summed(case, Sparse(case), case.x[case.src] * case.weight[case.eid][:, None])


@planted("spmm", weighted=True, backward=True, name="gradient of weights ignores the sum's gradient", link=f"{PYG}/pull/7428")
def weight_gradient(case, g):
    return {**right.spmm_vjp(case, g), "weight": np.zeros_like(case.weight)}


@planted("spmm", weighted=True, backward=True)
def the_gradient_of_weights_is_by_source(case, g):
    swap = np.minimum(case.src, case.n_dst - 1)
    return {**right.spmm_vjp(case, g), "weight": (g[swap] * case.x[case.src]).sum(1, dtype=g.dtype)}


@planted("spmm", backward=True)
def gradients_are_zero(case, g):
    return {"x": np.zeros_like(case.x)}


@planted("spmm", backward=True)
def the_gradient_uses_the_matrix_not_its_transpose(case, g):
    if case.n_src != case.n_dst:
        raise NotImplementedError("bipartite")
    return {"x": Sparse(case).into(case.dst, case.n_src, g[case.src])}


# ---- means and symmetric sums


@planted("spmm", reduce="mean")
def a_sum_where_a_mean_is_asked(case):
    return summed(case, Sparse(case), case.x[case.src])


@planted("spmm", reduce="mean")
def the_mean_is_of_out_degrees(case):
    rows = case.x[case.src] / wide(degrees(case, case.src, case.n_src)[case.src], case.x)
    return summed(case, Sparse(case), rows)


@planted("spmm", reduce="mean")
def the_mean_counts_the_row_itself(case):
    return summed(case, Sparse(case), case.x[case.src]) / wide(degrees(case, case.dst, case.n_dst) + 1, case.x)


@planted("spmm", reduce="mean")
def the_mean_of_nothing_is_nan(case):
    counts = np.bincount(case.dst, minlength=case.n_dst).astype(case.dtype)
    with np.errstate(invalid="ignore"):
        return summed(case, Sparse(case), case.x[case.src]) / wide(counts, case.x)


@planted("spmm", reduce="mean", backward=True)
def the_gradient_of_a_mean_is_not_scaled(case, g):
    return {"x": Sparse(case).into(case.src, case.n_src, g[case.dst])}


@planted("spmm", reduce="sym", name="normalised with self loops that the formula does not have", link=f"{PYG}/issues/1104")
def normalised_with_loops(case):
    roots = [1 / np.sqrt(np.bincount(index, minlength=n) + 1) for index, n in ((case.src, case.n_src), (case.dst, case.n_dst))]
    return summed(case, Sparse(case), case.x[case.src] * wide((roots[0][case.src] * roots[1][case.dst]).astype(case.dtype), case.x))


@planted("spmm", reduce="sym")
def only_destinations_are_normalised(case):
    return summed(case, Sparse(case), case.x[case.src]) / wide(degrees(case, case.dst, case.n_dst), case.x)


# ---- maxima


@planted("spmm", reduce="max")
def maxima_start_at_zero(case):
    return np.maximum(right.spmm(case), 0)


@planted("spmm", reduce="max", name="rows without edges stay at -inf", link=f"{DGL}/issues/761")
def infinite(case):
    return Sparse(case).greatest(case.x[case.src])


@planted("spmm", reduce="max", name="each relation's -inf becomes 0 before the maximum over relations", link=f"{DGL}/issues/3564")
def relations(case):
    half = np.arange(case.n_edges) < case.n_edges // 2
    parts = []
    for selected in (half, ~half):
        top = np.full((case.n_dst, case.x.shape[1]), -np.inf, case.dtype)
        np.maximum.at(top, case.dst[selected], case.x[case.src][selected])
        parts.append(np.where(np.isinf(top), 0, top).astype(case.dtype))
    return np.maximum(*parts)


@planted("spmm", reduce="min")
def the_minimum_is_a_maximum_of_absolute_values(case):
    return -extremum_of(case, -np.abs(case.x))


def extremum_of(case, x):
    top = Sparse(case).greatest(x[case.src])
    return np.where(np.isinf(top), 0, top).astype(case.dtype)


@planted("spmm", reduce="max", backward=True)
def ties_are_counted_twice(case, g):
    edges, x = Sparse(case), case.x
    return {"x": edges.into(edges.src, edges.n_src, g[edges.dst] * right.winners(case, edges, x, marks_ties=True))}


@planted("spmm", reduce="max", backward=True, name="backward pays every part whose maximum ties",
         link="https://github.com/IntelLabs/SAR")
def parts_that_tie(case, g):
    edges, x = Sparse(case), case.x
    ties, dx = right.winners(case, edges, x, marks_ties=True), np.zeros_like(case.x)
    for part in (case.src % 2 == 0, case.src % 2 == 1):  # the first row of each part
        first = np.zeros_like(ties)
        seen: set = set()
        for e in np.flatnonzero(part):
            for c in np.flatnonzero(ties[e]):
                first[e, c] = (edges.dst[e], c) not in seen
                seen.add((edges.dst[e], c))
        dx += edges.into(edges.src, edges.n_src, g[edges.dst] * first)
    return {"x": dx}


@planted("spmm", reduce="max", backward=True)
def the_gradient_of_a_maximum_goes_to_all_edges(case, g):
    return {"x": Sparse(case).into(case.src, case.n_src, g[case.dst])}

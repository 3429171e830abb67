"""Planted bugs and real ones: correct kernels with one defect each, and the level that must catch it.

A real bug is reproduced by its mechanism; `link` leads to the thread. All were in merged code, so the tests of that day let them through;
`upstream` says why where the thread tells.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.helpers import oracle_kernels as right
from tests.helpers.oracle_kernels import Sparse, degrees, wide


@dataclass(frozen=True)
class Mutant:
    """A kernel with a defect.

    Attributes
    ----------
    op, attributes : as of `check`; with op "ranks" `run` is for `check_ranks`
    level : str
        "probe", "certified" or "repeat": the lowest level that must catch it; "ranks" of `check_ranks`; "sampling" of a sampler.
    link, upstream : str
        Of a real bug: where it was told, and what is known of the tests that were there.
    """

    name: str
    op: str
    level: str
    run: Callable[..., Any]
    vjp: Callable[..., Any] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    link: str = ""
    upstream: str = "not tried"


MUTANTS: list[Mutant] = []


def planting(mutants):
    """What registers functions in a list."""

    def planted(of, level="probe", /, name=None, backward=False, link="", upstream="", **attributes):
        """Register a function as the defective `run`, or `vjp` where `backward`, the other being right."""

        def register(function):
            run, vjp = right.KERNELS.get(of, (None, None))
            pair = (run, function) if backward else (function, vjp)
            told = name or function.__name__.replace("_", " ")
            mutants.append(Mutant(told, of, level, *pair, attributes, link, upstream or "not tried"))
            return function

        return register

    return planted


planted = planting(MUTANTS)


PYG, DGL = "https://github.com/pyg-team/pytorch_geometric", "https://github.com/dmlc/dgl"


def summed(case, edges, rows, kept=slice(None)):
    """Sums over the edges that are kept."""
    out = np.zeros((edges.n_dst, *rows.shape[1:]), rows.dtype)
    np.add.at(out, edges.dst[kept], rows[kept])
    return out


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
    kept = np.arange(len(rows)) * rows.shape[1] < 128
    return summed(case, edges, rows, kept)


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
    for kept in (half, ~half):
        top = np.full((case.n_dst, case.x.shape[1]), -np.inf, case.dtype)
        np.maximum.at(top, case.dst[kept], case.x[case.src][kept])
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
    return {"x": edges.into(edges.src, edges.n_src, g[edges.dst] * right.winners(case, edges, x, all_of=True))}


@planted("spmm", reduce="max", backward=True, name="backward pays every part whose maximum ties",
         link="https://github.com/IntelLabs/SAR")
def parts_that_tie(case, g):
    edges, x = Sparse(case), case.x
    ties, found = right.winners(case, edges, x, all_of=True), np.zeros_like(case.x)
    for part in (case.src % 2 == 0, case.src % 2 == 1):  # the first of each part
        first = np.zeros_like(ties)
        seen: set = set()
        for e in np.flatnonzero(part):
            for c in np.flatnonzero(ties[e]):
                first[e, c] = (edges.dst[e], c) not in seen
                seen.add((edges.dst[e], c))
        found += edges.into(edges.src, edges.n_src, g[edges.dst] * first)
    return {"x": found}


@planted("spmm", reduce="max", backward=True)
def the_gradient_of_a_maximum_goes_to_all_edges(case, g):
    return {"x": Sparse(case).into(case.src, case.n_src, g[case.dst])}


# ---- softmax


@planted("softmax", name="the scores are replaced by the maximum: uniform", link=f"{PYG}/issues/1354",
         upstream="missed: its test has equal scores")
def uniform(case):
    edges = Sparse(case)
    return right.softmax_of(edges, np.zeros_like(case.scores))


@planted("softmax", name="one maximum for all groups, and an epsilon: groups contaminate each other", link=f"{PYG}/issues/2274")
def contaminated(case):
    edges, scores = Sparse(case), case.scores
    finite = scores[np.isfinite(scores)]
    weights = np.exp(scores - (finite.max() if finite.size else scores.dtype.type(0)))
    return weights / (edges.into(edges.dst, edges.n_dst, weights) + scores.dtype.type(1e-16))[edges.dst]


@planted("softmax")
def no_maximum_is_subtracted(case):
    with np.errstate(all="ignore"):
        weights = np.exp(case.scores)
        return weights / Sparse(case).into(case.dst, case.n_dst, weights)[case.dst]


@planted("softmax", name="online softmax without rescaling the sum at a new maximum")
def online(case):
    top, total = np.full((case.n_dst, case.scores.shape[1]), -np.inf), np.zeros((case.n_dst, case.scores.shape[1]))
    with np.errstate(all="ignore"):
        for e in range(case.n_edges):
            top[case.dst[e]] = np.maximum(top[case.dst[e]], case.scores[e])
            total[case.dst[e]] += np.exp(case.scores[e] - np.where(np.isfinite(top[case.dst[e]]), top[case.dst[e]], 0))
        shift = np.where(np.isfinite(top), top, 0)
        return (np.exp(case.scores - shift[case.dst]) / np.where(total > 0, total, 1)[case.dst]).astype(case.dtype)


@planted("softmax")
def normalised_by_source(case):
    edges = Sparse(case)
    edges.dst, edges.n_dst = edges.src, edges.n_src
    return right.softmax_of(edges, case.scores)


@planted("softmax", "certified")
def an_epsilon_in_the_denominator(case):
    return right.softmax(case) * case.scores.dtype.type(1 / (1 + 1e-4))


@planted("softmax")
def rows_that_are_masked_give_nan(case):
    edges = Sparse(case)
    top = edges.greatest(case.scores)
    with np.errstate(invalid="ignore"):
        weights = np.exp(case.scores - top[edges.dst])
        return weights / edges.into(edges.dst, edges.n_dst, weights)[edges.dst]


@planted("softmax", backward=True, name="a gradient of zeros, which a constant cotangent cannot tell", link=f"{PYG}/pull/10809",
         upstream="missed: its test differentiates a constant")
def zero_gradient(case, g):
    return {"scores": np.zeros_like(g)}


@planted("softmax", backward=True)
def the_gradient_lacks_the_sum(case, g):
    return {"scores": right.softmax(case) * g}


# ---- dot products of edges


@planted("sddmm")
def the_last_column_is_left_out(case):
    x, y = case.x, case.y
    return (x[case.src] * y[case.dst])[:, : x.shape[1] // 2 * 2].sum(1, dtype=x.dtype)


@planted("sddmm")
def both_ends_are_sources(case):
    return (case.x[case.src] * case.y[np.minimum(case.src, case.n_dst - 1)]).sum(1, dtype=case.dtype)


@planted("sddmm", backward=True)
def the_gradients_are_swapped(case, g):
    found = right.sddmm_vjp(case, g)
    return {"x": found["y"], "y": found["x"]} if case.n_src == case.n_dst else found


# ---- attention


@planted("attention", "certified", name="one attention vector for both ends", link=f"{PYG}/issues/1642")
def one_vector(case):
    if case.n_src != case.n_dst:
        raise NotImplementedError("bipartite")
    return attended(case, case.el[case.src] + case.el[case.dst])


@planted("attention", "certified")
def the_slope_is_torchs_default(case):
    return attended(case, case.el[case.src] + case.er[case.dst], 0.01)


@planted("attention")
def heads_are_mixed(case):
    return right.gat(case)[:, ::-1].copy()


@planted("attention", masked=True)
def the_mask_is_left_out(case):
    return attended(case, case.el[case.src] + case.er[case.dst], masked=False)


@planted("attention", masked=True, backward=True)
def the_mask_is_not_replayed(case, g):
    edges, z = Sparse(case), case.z
    p = right.softmax_of(edges, right.gat_scores(case, edges))
    return {**right.gat_vjp(case, g), "z": edges.into(edges.src, edges.n_src, g[edges.dst] * p[..., None]).astype(z.dtype)}


def attended(case, raw, slope=None, masked=True):
    edges = Sparse(case)
    p = right.softmax_of(edges, np.where(raw > 0, raw, raw.dtype.type(case.slope if slope is None else slope) * raw))
    p = p * case.mask if masked and "mask" in case.arrays else p
    return edges.into(edges.dst, edges.n_dst, case.z[edges.src] * p[..., None])


# ---- batch norm


def batch_norm(case, variance):
    x, state = case.x, case.parameters
    mean = x.mean(0, dtype=x.dtype)
    return ((x - mean) / np.sqrt(variance(x, mean) + x.dtype.type(case.eps)) * state["gamma"] + state["beta"]).astype(x.dtype)


@planted("batch_norm", "certified")
def the_variance_is_unbiased(case):
    return batch_norm(case, lambda x, mean: x.var(0, dtype=x.dtype) * x.dtype.type(len(x) / max(len(x) - 1, 1)))


@planted("batch_norm", "certified", name="variance as E[x^2] - mean^2", link="https://github.com/IntelLabs/SAR")
def cancelling(case):
    return batch_norm(case, lambda x, mean: np.maximum((x * x).mean(0, dtype=x.dtype) - mean * mean, 0))


# ---- a sampler


@planted("sample", "sampling")
def the_first_edges_are_always_picked(case):
    return np.concatenate([case.eid[a : min(a + case.k, b)] for a, b in zip(case.indptr[:-1], case.indptr[1:])]).astype(np.int64)


@planted("sample", "sampling")
def picks_repeat_without_replacement(case):
    rng = np.random.default_rng(case.seed)
    rows = [rng.choice(case.eid[a:b], min(case.k, b - a)) for a, b in zip(case.indptr[:-1], case.indptr[1:]) if b > a]
    return np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int64)


# ---- ranks: out = A x W


_GCN = {"norm": "none", "self_loops": "none", "bias": False}


def on_ranks(parts, features=None, kept=None, reduced=lambda grads, rank: sum(grads)):
    """Right, but for what is replaced: the features that ranks see, the edges that they keep, how the parameter's gradient is reduced."""
    weight, n = parts[0].state["linear.weight"], parts[0].n_nodes
    x = whole(parts) if features is None else features(parts)
    dx, grads, outs = np.zeros((n, weight.shape[0]), weight.dtype), [], []
    for part in parts:
        keep = slice(None) if kept is None else kept(part)
        local = np.searchsorted(part.ids, part.dst[keep])
        total = np.zeros((len(part.ids), weight.shape[0]), weight.dtype)
        np.add.at(total, local, x[part.src[keep]])
        outs.append(total @ weight)
        if "out" in part.cotangents:
            grads.append(total.T @ part.cotangents["out"])
            np.add.at(dx, part.src[keep], (part.cotangents["out"] @ weight.T)[local])
    return [{"out": out, **({"gradients": {"linear.weight": reduced(grads, rank), "x": dx[part.ids]}} if grads else {})}
            for rank, (out, part) in enumerate(zip(outs, parts))]


def whole(parts):
    x = np.zeros((parts[0].n_nodes, *parts[0].arrays["x"].shape[1:]), parts[0].arrays["x"].dtype)
    for part in parts:
        x[part.ids] = part.arrays["x"]
    return x


def ranks(name, link=""):
    def register(run):
        MUTANTS.append(Mutant(name, "gcn", "ranks", run, None, _GCN, link))
        return run

    return register


@ranks("the gradient is not reduced over ranks")
def own_gradient(parts):
    return on_ranks(parts, reduced=lambda grads, rank: grads[rank])


@ranks("the gradient is a mean over ranks", "https://github.com/IntelLabs/SAR")
def mean_gradient(parts):
    return on_ranks(parts, reduced=lambda grads, rank: sum(grads) / grads[0].dtype.type(len(grads)))


_before: dict = {}


@ranks("rows of other ranks are those of the call before", f"{DGL}/issues/7028")
def stale(parts):
    now = whole(parts)
    old = _before.get((now.shape, len(parts)), np.zeros_like(now))
    _before[now.shape, len(parts)] = now
    return on_ranks(parts, lambda parts: np.where(parts[0].owner[:, None] == 0, now, old))


@ranks("ids were shuffled, features not", f"{DGL}/pull/1659")
def unshuffled(parts):
    def features(parts):
        x = whole(parts)
        return x[np.argsort(np.concatenate([part.ids for part in parts]))] if len(parts) > 1 else x

    return on_ranks(parts, features)


@ranks("nodes and edges are dropped when parts are made", f"{DGL}/issues/3165")
def dropped(parts):
    return on_ranks(parts, kept=lambda part: np.arange(len(part.src) - (part.rank > 0 and len(part.src) > 0)))


@ranks("edges from other ranks are lost")
def cut_edges(parts):
    return on_ranks(parts, kept=lambda part: np.flatnonzero(part.owner[part.src] == part.rank))


@ranks("rows stand in another order")
def permuted(parts):
    found = on_ranks(parts)
    return [{**result, "out": result["out"][::-1]} for result in found]


@ranks("a sum where the ranks' results are averaged")
def averaged(parts):
    return [{**result, "out": result["out"] / result["out"].dtype.type(len(parts))} for result in on_ranks(parts)]

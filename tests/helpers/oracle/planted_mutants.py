"""Planted and real bugs for the oracle's tests: correct kernels with one defect each, and the level that must catch it.

A real bug reproduces the mechanism of its report, which `link` leads to. All of them were in merged code, so the tests
of that day missed them; `upstream` has the reason if the report names one.
"""

import numpy as np

from tests.helpers.oracle import oracle_kernels as right
from tests.helpers.oracle.oracle_kernels import Sparse
from tests.helpers.oracle.oracle_mutants_sums import SUMS
from tests.helpers.oracle.oracle_narrow import MUTANTS as NARROW
from tests.helpers.oracle.oracle_planting import DGL, PYG, Mutant, planting

MUTANTS: list[Mutant] = [*SUMS, *NARROW]
planted = planting(MUTANTS)


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
    gradients = right.sddmm_vjp(case, g)
    return {"x": gradients["y"], "y": gradients["x"]} if case.n_src == case.n_dst else gradients


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


def on_ranks(parts, features_read=None, edges_kept=None, gradient_sum=lambda grads, rank: sum(grads)):
    """Return each rank's GCN results from its `parts`; bugs replace the features read, the edges kept, or the sum of gradients.

    `features_read(parts)` are the rows that edges gather, `edges_kept(part)` a rank's edges, and `gradient_sum(grads,
    rank)` the sum over ranks.
    """
    weight, n = parts[0].state["linear.weight"], parts[0].n_nodes
    x = whole(parts) if features_read is None else features_read(parts)
    dx, grads, outs = np.zeros((n, weight.shape[0]), weight.dtype), [], []
    for part in parts:
        keep = slice(None) if edges_kept is None else edges_kept(part)
        local = np.searchsorted(part.ids, part.dst[keep])
        total = np.zeros((len(part.ids), weight.shape[0]), weight.dtype)
        np.add.at(total, local, x[part.src[keep]])
        outs.append(total @ weight)
        if "out" in part.cotangents:
            grads.append(total.T @ part.cotangents["out"])
            np.add.at(dx, part.src[keep], (part.cotangents["out"] @ weight.T)[local])
    return [{"out": out, **({"gradients": {"linear.weight": gradient_sum(grads, rank), "x": dx[part.ids]}} if grads else {})}
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
    return on_ranks(parts, gradient_sum=lambda grads, rank: grads[rank])


@ranks("the gradient is a mean over ranks", "https://github.com/IntelLabs/SAR")
def mean_gradient(parts):
    return on_ranks(parts, gradient_sum=lambda grads, rank: sum(grads) / grads[0].dtype.type(len(grads)))


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
    return on_ranks(parts, edges_kept=lambda part: np.arange(len(part.src) - (part.rank > 0 and len(part.src) > 0)))


@ranks("edges from other ranks are lost")
def cut_edges(parts):
    return on_ranks(parts, edges_kept=lambda part: np.flatnonzero(part.owner[part.src] == part.rank))


@ranks("rows stand in another order")
def permuted(parts):
    results = on_ranks(parts)
    return [{**result, "out": result["out"][::-1]} for result in results]


@ranks("a sum where the ranks' results are averaged")
def averaged(parts):
    return [{**result, "out": result["out"] / result["out"].dtype.type(len(parts))} for result in on_ranks(parts)]

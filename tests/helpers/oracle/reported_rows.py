"""Bugs reported for softmax, attention, layers and samplers of other libraries, chosen before the oracle's graphs were looked at."""

import numpy as np

from tests.helpers.oracle import oracle_kernels as right
from tests.helpers.oracle.oracle_histories_layers import sage
from tests.helpers.oracle.oracle_kernels import Sparse
from tests.helpers.oracle.oracle_planting import DGL, PYG, Mutant, planting
from tests.helpers.oracle.reported_sums import one_after_the_other, places

REPORTED: list[Mutant] = []
reported = planting(REPORTED)
GITHUB = "https://github.com"


# ---- softmax


def exponentials(edges, scores, top):
    with np.errstate(all="ignore"):
        return np.exp(scores - top)


def normalised(edges, weights):
    total = edges.into(edges.dst, edges.n_dst, weights)
    with np.errstate(all="ignore"):
        return weights / np.where(total > 0, total, 1).astype(weights.dtype)[edges.dst]


def finite(top):
    return np.where(np.isfinite(top), top, 0).astype(top.dtype)


def bfloat16(array):
    mantissa, exponent = np.frexp(array)
    return np.ldexp(np.round(mantissa * 256) / 256, exponent).astype(array.dtype)


@reported("softmax", "certified", name="sums of bfloat16 in bfloat16", dtype="bfloat16", accumulate="float32",
          link=f"{GITHUB}/pytorch/executorch/pull/20089")
def bfloat_sums(case):
    edges = Sparse(case)
    weights = exponentials(edges, case.scores, finite(edges.greatest(case.scores))[case.dst])
    total = one_after_the_other(case, weights, bfloat16)
    return bfloat16(weights / np.where(total > 0, total, 1)[case.dst])


@reported("softmax", name="weights are normalised by source", link=f"{PYG}/issues/224")
def by_source(case):
    edges = Sparse(case)
    weights = exponentials(edges, case.scores, finite(edges.greatest(case.scores))[case.dst])
    total = edges.into(case.src, case.n_src, weights)
    return (weights / np.where(total > 0, total, 1)[case.src]).astype(case.dtype)


@reported("softmax", "certified", name="no maximum is subtracted", link=f"{PYG}/issues/53")
def no_maximum(case):
    return normalised(Sparse(case), exponentials(None, case.scores, 0))


@reported("softmax", name="each 32 edges subtract a maximum of their own", link=f"{GITHUB}/Infatoshi/cuda-course/issues/10")
def maximum_by_chunk(case):
    chunk = places(case) // 32
    group = case.dst.astype(np.int64) * (chunk.max(initial=0) + 1) + chunk
    names, group = np.unique(group, return_inverse=True)
    top = np.full((len(names), *case.scores.shape[1:]), -np.inf, case.dtype)
    np.maximum.at(top, group.ravel(), case.scores)
    return normalised(Sparse(case), exponentials(None, case.scores, finite(top)[group.ravel()]))


@reported("softmax", name="NaN where the first 16 scores of a longer row are -Inf", link=f"{GITHUB}/vllm-project/vllm/issues/48364")
def masked_chunk(case):
    out, first = right.softmax(case), places(case) < 16
    seen = np.full((case.n_dst, *out.shape[1:]), -np.inf, case.dtype)
    np.maximum.at(seen, case.dst[first], case.scores[first])
    poisoned = (seen == -np.inf) & (np.bincount(case.dst, minlength=case.n_dst) > 16)[:, None]
    return np.where(poisoned[case.dst], case.dtype.type(np.nan), out)


@reported("softmax", name="a row that is masked whole is NaN", link=f"{GITHUB}/iree-org/iree/pull/24178")
def all_masked(case):
    edges = Sparse(case)
    weights = exponentials(edges, case.scores, finite(edges.greatest(case.scores))[case.dst])
    with np.errstate(all="ignore"):
        return weights / edges.into(case.dst, case.n_dst, weights)[case.dst]


def softmax_back(delta):
    """Return a vjp of softmax that subtracts `delta(edges, p, g)` from g; the correct delta is the sum of p * g over the row."""

    def vjp(case, g):
        edges = Sparse(case)
        p = right.softmax(case)
        return {"scores": (p * (g - delta(edges, p, g))).astype(case.dtype)}

    return vjp


reported("softmax", name="the sum in the gradient is not weighted", backward=True, link=f"{GITHUB}/ROCm/MIOpen/issues/112")(
    softmax_back(lambda edges, p, g: edges.into(edges.dst, edges.n_dst, g)[edges.dst]))
reported("softmax", name="the gradient is the diagonal of the Jacobian", backward=True, link=f"{GITHUB}/pocketpy/cTensor/pull/31")(
    softmax_back(lambda edges, p, g: p * g))


@reported("softmax", name="the gradient of the last rows, behind blocks of 32, is 0", backward=True,
          link=f"{GITHUB}/tenstorrent/tt-metal/issues/53208")
def whole_blocks(case, g):
    d_scores = right.softmax_vjp(case, g)["scores"]
    behind = (case.n_dst >= 32) & (case.dst >= case.n_dst // 32 * 32)
    return {"scores": np.where(behind[:, None], 0, d_scores).astype(case.dtype)}


# ---- attention


@reported("attention", "certified", name="the maximum is that of edges that are not masked", masked=True,
          link=f"{GITHUB}/deepmodeling/deepmd-kit/pull/5717")
def unmasked_maximum(case):
    edges = Sparse(case)
    scores = right.gat_scores(case, edges)
    top = finite(edges.greatest(np.where(case.mask != 0, scores, -np.inf).astype(case.dtype)))[case.dst]
    with np.errstate(all="ignore"):
        p = normalised(edges, exponentials(edges, scores, top)) * case.mask
    return edges.into(case.dst, case.n_dst, case.z[case.src] * p[..., None])


def gat_back(is_positive):
    """Return a vjp of GAT that takes the leaky ReLU's slope as 1 where `is_positive(score before it, score after it)` is True."""

    def vjp(case, g):
        edges, z = Sparse(case), case.z
        raw, scores = case.el[edges.src] + case.er[edges.dst], right.gat_scores(case, edges)
        p = right.softmax_of(edges, scores)
        dp = (g[edges.dst] * z[edges.src]).sum(2, dtype=z.dtype)
        ds = right.softmax_back(edges, p, dp) * np.where(is_positive(raw, scores), 1, case.slope).astype(z.dtype)
        return {"z": edges.into(edges.src, edges.n_src, g[edges.dst] * p[..., None]), "el": edges.into(edges.src, edges.n_src, ds),
                "er": edges.into(edges.dst, edges.n_dst, ds)}

    return vjp


reported("attention", name="a slope of 0 has the slope 1 in the gradient", backward=True, slope=0.0,
         link=f"{GITHUB}/chainer/chainer/pull/5922")(gat_back(lambda raw, score: score >= 0))
reported("attention", name="the sign of what a negative slope gave decides", backward=True, slope=-0.5,
         link=f"{GITHUB}/pytorch/pytorch/issues/31938")(gat_back(lambda raw, score: score > 0))


@reported("attention", name="the destination's score is the source's", link=f"{PYG}/issues/1642")
def source_twice(case):
    edges = Sparse(case)
    raw = case.el[case.src] + case.er[np.minimum(case.src, max(case.n_dst - 1, 0))]
    p = right.softmax_of(edges, np.where(raw > 0, raw, raw.dtype.type(case.slope) * raw))
    return edges.into(case.dst, case.n_dst, case.z[case.src] * p[..., None])


@reported("attention", name="the last row is not normalised", link=f"{GITHUB}/facebookresearch/xformers/issues/1124")
def last_row(case):
    edges = Sparse(case)
    scores = right.gat_scores(case, edges)
    p = right.softmax_of(edges, scores)
    weights = exponentials(edges, scores, finite(edges.greatest(scores))[case.dst])
    p = np.where((case.dst == case.n_dst - 1)[:, None], weights, p)
    return edges.into(case.dst, case.n_dst, case.z[case.src] * p[..., None])


@reported("attention", name="every head sums the first head's rows", link=f"{GITHUB}/ROCm/hipSPARSE/issues/398")
def first_batch(case):
    edges = Sparse(case)
    p = right.softmax_of(edges, right.gat_scores(case, edges))
    return edges.into(case.dst, case.n_dst, case.z[case.src][:, :1] * p[..., None])


def late_root(case):
    edges = Sparse(case)
    scores = (case.q[case.dst] * case.k[case.src]).sum(2, dtype=case.dtype)
    p = right.softmax_of(edges, scores) / np.sqrt(case.q.shape[2], dtype=case.dtype)
    return edges.into(case.dst, case.n_dst, case.v[case.src] * p[..., None])


REPORTED.append(Mutant("weights, not products, are divided by the root of the width", "attention", "probe", late_root,
                       attributes={"kind": "dot"}, link=f"{DGL}/pull/3272"))


# ---- layers


def batch_norm(case, variance):
    x, state = case.x.astype(np.float64), case.parameters
    if not len(x):
        return case.x + 0 * state["beta"]
    with np.errstate(all="ignore"):
        return ((x - x.mean(0)) / np.sqrt(variance(x) + case.eps) * state["gamma"] + state["beta"]).astype(case.dtype)


def bessel(x):
    return x.var(0, ddof=1) if len(x) > 1 else x.var(0)


REPORTED.append(Mutant("batch norm divides by n - 1", "batch_norm", "certified", lambda case: batch_norm(case, bessel),
                       link=f"{GITHUB}/apache/mxnet/issues/21111"))
REPORTED.append(Mutant("batch norm of one row is NaN", "batch_norm", "certified",
                       lambda case: batch_norm(case, lambda x: x.var(0) * (len(x) / (len(x) - 1) if len(x) > 1 else np.nan)
                                               * ((len(x) - 1) / len(x))), link=f"{GITHUB}/pytorch/pytorch/issues/1381"))


def sage_of_edges(case):
    out = sage(case)
    out[np.bincount(case.dst, minlength=case.n_dst) == 0] = 0
    return out


REPORTED.append(Mutant("sage: rows without edges lose their own term", "sage", "certified", sage_of_edges, link=f"{DGL}/issues/3395"))


# ---- samplers


def sampled(case, pick):
    rng = np.random.default_rng(case.seed)
    rows = [case.eid[a:b] for a, b in zip(case.indptr[:-1], case.indptr[1:])]
    picks = [row if len(row) <= case.k else row[pick(rng, len(row), case.k)] for row in rows]
    return np.concatenate([*picks, np.empty(0, np.int64)]).astype(np.int64)


def floyd(rng, n, k):
    """Return a list of `k` random numbers below `n` by Floyd's sampling, with a planted bug: a bound that is one too low."""
    picked: list[int] = []
    for last in range(n - k, n):
        number = int(rng.integers(0, max(last, 1)))
        picked.append(last if number in picked else number)
    return picked


for _name, _pick, _link in (
    ("the first neighbour is never picked", lambda rng, n, k: 1 + rng.permutation(n - 1)[:k], f"{DGL}/pull/1928"),
    ("the last combination is never picked", floyd, f"{GITHUB}/rusty1s/pytorch_sparse/issues/385"),
    ("one edge too many is picked", lambda rng, n, k: rng.permutation(n)[: k + 1], f"{GITHUB}/rapidsai/cugraph/issues/2760"),
):
    REPORTED.append(Mutant(_name, "sample", "sampling", lambda case, pick=_pick: sampled(case, pick), link=_link))

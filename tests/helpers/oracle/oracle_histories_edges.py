"""Past bugs of softmax, attention, dot products by edge, gathers and scatters, for `oracle_histories`."""

import numpy as np

from tests.helpers.oracle import oracle_kernels as right
from tests.helpers.oracle.oracle_histories_sums import places
from tests.helpers.oracle.oracle_kernels import Sparse, degrees, wide
from tests.helpers.oracle.oracle_planting import Mutant, planting, summed

DRAWN: list[Mutant] = []
drawn = planting(DRAWN)
GITHUB = "https://github.com"


# ---- softmax


def softmax_by(case, top, scores=None):
    scores, edges = case.scores if scores is None else scores, Sparse(case)
    with np.errstate(all="ignore"):
        weights = np.exp(scores - top.astype(case.dtype)[edges.dst])
        total = edges.into(edges.dst, edges.n_dst, weights)
        return (weights / np.where(total > 0, total, 1)[edges.dst]).astype(case.dtype)


def tops(case):
    top = Sparse(case).greatest(case.scores)
    return np.where(np.isfinite(top), top, 0).astype(case.dtype)


@drawn("softmax", name="maxima of scores start at 0")
def from_zero(case):
    return softmax_by(case, np.maximum(tops(case), 0))


@drawn("softmax", name="the first head's maximum serves all heads",
       link=f"{GITHUB}/sgl-project/sgl-kernel-npu/issues/709")
def head_zero(case):
    return softmax_by(case, np.broadcast_to(tops(case)[:, :1], (case.n_dst, case.scores.shape[1])))


@drawn("softmax", name="rows of more than 32 edges are normalised by their first 32")
def first_tile(case):
    edges, weights = Sparse(case), np.exp(case.scores - tops(case)[case.dst])
    total = summed(case, edges, weights, places(case) < 32)
    return (weights / np.where(total > 0, total, 1)[edges.dst]).astype(case.dtype)


@drawn("softmax", name="weights come by place in CSR")
def by_place(case):
    return right.softmax(case)[case.eid]


@drawn("softmax", name="heads stand first in memory", link=f"{GITHUB}/fla-org/flash-linear-attention/pull/1137")
def heads_first(case):
    out = right.softmax(case)
    return out.T.reshape(out.shape)


@drawn("softmax", "certified", name="exp in float16")
def half_exp(case):
    out = right.softmax(case)
    return out.astype(np.float16).astype(out.dtype)


@drawn("softmax", name="rows that are masked whole are uniform", link=f"{GITHUB}/NVIDIA/apex/pull/1444")
def uniform_rows(case):
    out, edges = right.softmax(case), Sparse(case)
    masked = ~(edges.into(edges.dst, edges.n_dst, out) > 0)[edges.dst]
    return np.where(masked, 1 / wide(degrees(case, case.dst, case.n_dst), out)[edges.dst], out).astype(case.dtype)


@drawn("softmax", backward=True, name="the sum in the gradient runs over all heads")
def sum_over_heads(case, g):
    edges, p = Sparse(case), right.softmax(case)
    total = edges.into(edges.dst, edges.n_dst, (p * g).sum(1, keepdims=True, dtype=g.dtype))
    return {"scores": p * (g - total[edges.dst])}


@drawn("softmax", backward=True, name="the gradient's weight is applied twice")
def squared_softmax(case, g):
    return {"scores": right.softmax_vjp(case, g)["scores"] * right.softmax(case)}


# ---- attention


def attended(case, scores, z=None, source=None, slope=True):
    edges = Sparse(case)
    scores = np.where(scores > 0, scores, scores.dtype.type(case.slope) * scores) if slope else scores
    p = right.softmax_of(edges, scores)
    p = p * case.mask if "mask" in case.arrays else p
    z = case.z if z is None else z
    return edges.into(edges.dst, edges.n_dst, z[edges.src if source is None else source] * p[..., None])


@drawn("attention", name="heads and features change places")
def swapped_axes(case):
    out = right.gat(case)
    return np.ascontiguousarray(out.reshape(len(out), out.shape[2], out.shape[1]).transpose(0, 2, 1))


@drawn("attention", name="of as many features as heads the two change places", heads=3)
def swapped_square(case):
    out = right.gat(case)
    return np.ascontiguousarray(out.transpose(0, 2, 1)) if out.shape[1] == out.shape[2] else out


@drawn("attention", name="every head has the first head's weights")
def first_head(case):
    scores = right.gat_scores(case, Sparse(case))
    edges = Sparse(case)
    p = right.softmax_of(edges, scores)[:, :1]
    return edges.into(edges.dst, edges.n_dst, case.z[edges.src] * p[..., None])


@drawn("attention", "certified", name="the leaky slope is left out")
def no_slope(case):
    return attended(case, case.el[case.src] + case.er[case.dst], slope=False)


@drawn("attention", "certified", name="the slope is applied to each half of a score")
def slope_of_halves(case):
    def leaky(v):
        return np.where(v > 0, v, v.dtype.type(case.slope) * v)

    return attended(case, leaky(case.el[case.src]) + leaky(case.er[case.dst]), slope=False)


@drawn("attention", "certified", backward=True, name="the gradient leaves the slope out")
def gradient_without_slope(case, g):
    edges, z = Sparse(case), case.z
    p = right.softmax_of(edges, right.gat_scores(case, edges))
    ds = right.softmax_back(edges, p, (g[edges.dst] * z[edges.src]).sum(2, dtype=z.dtype))
    return {**right.gat_vjp(case, g), "el": edges.into(edges.src, edges.n_src, ds),
            "er": edges.into(edges.dst, edges.n_dst, ds)}


@drawn("attention", "certified", backward=True, name="the destination's half gets no gradient")
def no_destination(case, g):
    gradients = right.gat_vjp(case, g)
    return {**gradients, "er": np.zeros_like(gradients["er"])}


@drawn("attention", "certified", backward=True, name="the gradient does not pass the scores")
def detached_scores(case, g):
    gradients = right.gat_vjp(case, g)
    return {"z": gradients["z"], "el": np.zeros_like(gradients["el"]), "er": np.zeros_like(gradients["er"])}


@drawn("attention", "certified", masked=True, name="weights are not 0 but renormalised behind the mask")
def renormalised(case):
    edges = Sparse(case)
    p = right.softmax_of(edges, right.gat_scores(case, edges)) * case.mask
    total = edges.into(edges.dst, edges.n_dst, p)
    p = (p / np.where(total > 0, total, 1)[edges.dst]).astype(case.dtype)
    return edges.into(edges.dst, edges.n_dst, case.z[edges.src] * p[..., None])


@drawn("attention", "certified", masked=True, backward=True, name="the mask is left out of the gradient of scores",
       link=f"{GITHUB}/triton-lang/triton/issues/7216")
def unmasked_scores(case, g):
    edges, z = Sparse(case), case.z
    p = right.softmax_of(edges, right.gat_scores(case, edges))
    slope = np.where(case.el[case.src] + case.er[case.dst] > 0, 1, case.slope).astype(z.dtype)
    ds = right.softmax_back(edges, p, (g[edges.dst] * z[edges.src]).sum(2, dtype=z.dtype)) * slope
    return {**right.gat_vjp(case, g), "el": edges.into(edges.src, edges.n_src, ds),
            "er": edges.into(edges.dst, edges.n_dst, ds)}


def dot_scores(case, scale, n_heads=None):
    q, k = case.q[case.dst], case.k[case.src]
    return ((q * k).sum(2, dtype=q.dtype) * q.dtype.type(scale)).astype(q.dtype)


def dot(case, scores):
    return attended(case, scores, z=case.v, slope=False)


@drawn("attention", "certified", kind="dot", name="products are not divided by the root of the width")
def unscaled(case):
    return dot(case, dot_scores(case, 1.0))


@drawn("attention", "certified", kind="dot", name="products are divided by the root of all heads' width")
def scaled_by_all(case):
    return dot(case, dot_scores(case, 1 / np.sqrt(case.q.shape[1] * case.q.shape[2])))


@drawn("attention", "certified", kind="dot", name="the query is the source's, the key the destination's")
def swapped_query(case):
    if case.n_src != case.n_dst:
        raise NotImplementedError("bipartite")
    q, k = case.q[case.src], case.k[case.dst]
    return dot(case, ((q * k).sum(2, dtype=q.dtype) / np.sqrt(q.shape[2])).astype(q.dtype))


@drawn("attention", "certified", kind="gatv2", name="the slope comes behind the product, as GAT's")
def slope_behind(case):
    hidden = case.z_src[case.src] + case.z_dst[case.dst]
    return attended(case, (hidden * case.attn).sum(2, dtype=hidden.dtype), z=case.z_src)


# ---- dot products of edges, gathers, scatters


@drawn("sddmm", name="products come by place in CSR")
def products_by_place(case):
    return right.sddmm(case)[case.eid]


@drawn("sddmm", backward=True, name="the gradient of y is overwritten, not added to")
def overwritten_y(case, g):
    out = np.zeros_like(case.y)
    out[case.dst] = g[:, None] * case.x[case.src]
    return {**right.sddmm_vjp(case, g), "y": out}


@drawn("sddmm", op="sub", name="differences have the wrong sign")
def wrong_sign(case):
    return case.y[case.dst] - case.x[case.src]


@drawn("sddmm", op="sub", backward=True, name="the gradient of what is subtracted has the wrong sign")
def wrong_sign_back(case, g):
    edges = Sparse(case)
    return {"x": edges.into(edges.src, edges.n_src, g), "y": edges.into(edges.dst, edges.n_dst, g)}


@drawn("scatter", name="of equal destinations the last message counts")
def scatter_overwrites(case):
    out = np.zeros((case.n_dst, case.messages.shape[1]), case.dtype)
    out[case.dst] = case.messages
    return out


@drawn("scatter", name="messages are taken to stand in CSR order")
def scatter_sorted(case):
    return Sparse(case).into(case.dst[case.eid], case.n_dst, case.messages)


@drawn("scatter", reduce="max", name="scattered maxima start at 0")
def scatter_zero(case):
    out = np.zeros((case.n_dst, case.messages.shape[1]), case.dtype)
    np.maximum.at(out, case.dst, case.messages)
    return out


@drawn("gather", name="the last row is gathered for those beyond half")
def clamped(case):
    return case.x[np.minimum(case.src, max(case.n_src // 2, 0))]


def _gather_back(case, g):
    out = np.zeros_like(case.x)
    out[case.src] = g
    return {"x": out}


DRAWN.append(Mutant("the gradient of a gather is not added up", "gather", "probe", lambda case: case.x[case.src],
                        _gather_back))

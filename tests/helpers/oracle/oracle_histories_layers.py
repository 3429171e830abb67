"""Past bugs of arithmetic, layers and samplers, for `oracle_histories`."""

import numpy as np

from tests.helpers.oracle import oracle_kernels as right
from tests.helpers.oracle.oracle_histories_edges import tops
from tests.helpers.oracle.oracle_kernels import Sparse
from tests.helpers.oracle.oracle_planting import Mutant, planting, summed

DRAWN: list[Mutant] = []
drawn = planting(DRAWN)
GITHUB = "https://github.com"


# ---- arithmetic


@drawn("spmm", "certified", name="sums in bfloat16")
def bfloat_sums(case):
    return truncated(right.spmm(case), 8)


@drawn("spmm", "certified", weighted=True, name="products of 10 bits, as TF32's")
def tf32(case):
    return summed(case, Sparse(case), truncated(case.x, 11)[case.src] * truncated(case.weight, 11)[:, None])


def truncated(array, bits):
    mantissa, exponent = np.frexp(array)
    return np.ldexp(np.round(mantissa * 2.0**bits) / 2.0**bits, exponent).astype(array.dtype)


@drawn("softmax", "certified", name="a fast exp of 12 bits")
def fast_exp(case):
    scores, edges = case.scores, Sparse(case)
    top = tops(case)[case.dst]
    weights = truncated(np.exp(scores - top), 12)
    total = edges.into(edges.dst, edges.n_dst, weights)
    return (weights / np.where(total > 0, total, 1)[edges.dst]).astype(case.dtype)


# ---- layers: forward, by the paper's names of parameters


def gcn(case, change_weight=None, root=np.sqrt, adds_loops=True):
    """Return a GCN layer's output for an oracle case; bugs pass another `change_weight(weight)` or degree `root`, or no added loops."""
    if case.n_src != case.n_dst:
        raise NotImplementedError("bipartite")
    state, src, dst = case.parameters, case.src, case.dst
    without_loop = np.flatnonzero(np.bincount(src[src == dst], minlength=case.n_dst) == 0) if adds_loops else src[:0]
    src, dst = np.concatenate([src, without_loop]), np.concatenate([dst, without_loop])
    degree = np.maximum(np.bincount(dst, minlength=case.n_dst), 1).astype(np.float64)
    scale = (1 / root(degree))[src] * (1 / root(degree))[dst]
    total = np.zeros(case.x.shape)
    np.add.at(total, dst, case.x[src] * scale[:, None])
    change_weight = state["linear.weight"] if change_weight is None else change_weight(state["linear.weight"])
    return (total @ change_weight + state["bias"]).astype(case.dtype)


def as_square(change):
    return lambda w: change(w) if w.shape[0] == w.shape[1] else w


LAYERS = {
    "a square weight is transposed": ("gcn", lambda case: gcn(case, as_square(np.transpose))),
    "self loops are not added": ("gcn", lambda case: gcn(case, adds_loops=False)),
    "degrees stand without their root": ("gcn", lambda case: gcn(case, root=lambda d: d)),
    "the bias is left out": ("gcn", lambda case: (gcn(case) - case.parameters["bias"]).astype(case.x.dtype)),
}
for _name, (_op, _run) in LAYERS.items():
    DRAWN.append(Mutant(f"{_op}: {_name}", _op, "certified", _run))


def sage(case, root="root.weight", near="neighbour.weight", itself=False, transposed=False):
    state, edges = case.parameters, Sparse(case)
    own_x = case.x_dst if "x_dst" in case.arrays else case.x
    total = edges.into(edges.dst, edges.n_dst, case.x[edges.src].astype(np.float64))
    count = np.maximum(np.bincount(case.dst, minlength=case.n_dst), 1)
    if itself:
        total, count = total + own_x, np.bincount(case.dst, minlength=case.n_dst) + 1
    w_own, w_near = state[root], state[near]
    if transposed and w_near.shape[0] == w_near.shape[1]:
        w_near = w_near.T
    return (own_x @ w_own + state["root.bias"] + (total / count[:, None]) @ w_near).astype(case.dtype)


for _name, _options in {"the two weights change places": {"own": "neighbour.weight", "near": "root.weight"},
                        "a mean counts the row itself": {"itself": True},
                        "a square weight is transposed": {"transposed": True}}.items():
    DRAWN.append(Mutant(f"sage: {_name}", "sage", "certified", lambda case, o=_options: sage(case, **o)))


def rgcn(case, relation=lambda r, n: r, transposed=False, over_all=False):
    state, edges = case.parameters, Sparse(case)
    bases, c = state["bases"], state["coefficients"]
    c = c.T if transposed and c.shape[0] == c.shape[1] else c
    r = relation(case.relation, c.shape[0])
    own_x = case.x_dst if "x_dst" in case.arrays else case.x
    out = own_x.astype(np.float64) @ state["root.weight"] + state["bias"]
    for k in range(c.shape[0]):
        selected = r == k
        total = summed(case, edges, case.x[edges.src].astype(np.float64), selected)
        count = np.bincount(case.dst if over_all else case.dst[selected], minlength=case.n_dst)
        out = out + total / np.maximum(count, 1)[:, None] @ np.tensordot(c[k], bases, 1)
    return out.astype(case.dtype)


for _name, _options in {"relations are off by one": {"relation": lambda r, n: (r + 1) % n},
                        "the last relation is lost": {"relation": lambda r, n: np.where(r == n - 1, n, r)},
                        "a mean over all relations": {"over_all": True}}.items():
    DRAWN.append(Mutant(f"rgcn: {_name}", "rgcn", "certified", lambda case, o=_options: rgcn(case, **o)))
DRAWN.append(Mutant("rgcn: square coefficients are transposed", "rgcn", "certified",
                        lambda case: rgcn(case, transposed=True), attributes={"n_relations": 3, "n_bases": 3}))


def batch_norm(case, eps=lambda var, eps: np.sqrt(var + eps), axis=0):
    x, state = case.x.astype(np.float64), case.parameters
    mean, var = x.mean(0) if len(x) else 0 * x.sum(0), x.var(0) if len(x) else 0 * x.sum(0)
    return ((x - mean) / eps(var, case.eps) * state["gamma"] + state["beta"]).astype(case.dtype)


DRAWN.append(Mutant("batch norm: epsilon stands outside the root", "batch_norm", "certified",
                        lambda case: batch_norm(case, lambda var, eps: np.sqrt(var) + eps)))


# ---- a sampler


def _rows(case):
    return [case.eid[a:b] for a, b in zip(case.indptr[:-1], case.indptr[1:])]


def _joined(rows):
    return np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int64)


@drawn("sample", "sampling", name="the last edge of a row is never picked")
def never_last(case):
    rng = np.random.default_rng(case.seed)
    return _joined([rng.permutation(row[: -1] if len(row) > case.k else row)[: case.k] for row in _rows(case)])


@drawn("sample", "sampling", name="all rows pick by the same random numbers")
def same_numbers(case):
    return _joined([np.random.default_rng(case.seed).permutation(row)[: case.k] for row in _rows(case)])


@drawn("sample", "sampling", name="numbers modulo the degree of 3 bits")
def modulo_bias(case):
    rng = np.random.default_rng(case.seed)

    def picked(row):
        if len(row) <= case.k:
            return row
        chosen: list = []
        while len(chosen) < case.k:
            place = int(rng.integers(0, 8)) % len(row)
            chosen += [place] if place not in chosen else []
        return row[chosen]

    return _joined([picked(row) for row in _rows(case)])


@drawn("sample", "sampling", name="rows of k edges pick with repetition")
def repeats_at_k(case):
    rng = np.random.default_rng(case.seed)
    return _joined([rng.choice(row, case.k) if len(row) == case.k else rng.permutation(row)[: case.k]
                    for row in _rows(case)])

"""Every kernel, in both value types and both index types, against naive float64 NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite import kernels
from sarlite.errors import ShapeError
from sarlite.kernels import Dropout

FLOATS = [np.float32, np.float64]
INDEXES = [np.int32, np.int64]
WIDTHS = [1, 3, 7, 17, 33, 100, 257]
KINDS = ["random", "no edges", "one node", "star", "self loops", "duplicates", "empty rows"]
EPSILON = {np.float32: 2e-6, np.float64: 4e-15}

every_type = pytest.mark.parametrize(("dtype", "itype"), [(t, i) for t in FLOATS for i in INDEXES])
every_float = pytest.mark.parametrize("dtype", FLOATS)
every_kind = pytest.mark.parametrize("kind", KINDS)


class Csr:
    """A small graph and its edges as plain lists."""

    def __init__(self, dst, src, n_dst, n_src, itype=np.int64):
        order = np.argsort(dst, kind="stable")
        self.dst, self.src = np.asarray(dst, dtype=np.int64)[order], np.asarray(src, dtype=np.int64)[order]
        self.n_dst, self.n_src, self.n_edges = n_dst, n_src, len(dst)
        self.indptr = np.concatenate([[0], np.cumsum(np.bincount(self.dst, minlength=n_dst))]).astype(np.int64)
        self.indices = self.src.astype(itype)


def make_graph(kind, itype=np.int64, seed=0):
    rng = np.random.default_rng(seed)
    if kind == "no edges":
        return Csr([], [], 5, 4, itype)
    if kind == "one node":
        return Csr([0], [0], 1, 1, itype)
    if kind == "star":
        return Csr([0] * 700 + list(range(1, 701)), [*range(1, 701), *[0] * 700], 701, 701, itype)
    if kind == "self loops":
        return Csr(range(9), range(9), 9, 9, itype)
    if kind == "duplicates":
        return Csr([1, 1, 1, 0, 1], [2, 2, 0, 1, 2], 2, 3, itype)
    if kind == "empty rows":
        return Csr(rng.integers(40, 60, 300), rng.integers(0, 50, 300), 100, 50, itype)
    return Csr(rng.integers(0, 31, 400), rng.integers(0, 37, 400), 31, 37, itype)


def close(actual, expected, scale=None, factor=30):
    """Compare relative to the largest value that entered (`scale`), by the dtype's precision."""
    tolerance = factor * EPSILON[actual.dtype.type]
    scale = np.abs(expected).max(initial=0) if scale is None else scale
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * max(scale, 1e-30))


def normal(rng, dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


@pytest.fixture
def one_and_two_threads():
    before = kernels.threads()

    def results(run):
        values = []
        for n in (1, 2, 3):
            kernels.set_threads(n)
            values.append(run())
        return values

    yield results
    kernels.set_threads(before)


# ---------------------------------------------------------------- spmm and edge_dot

def spmm_reference(graph, x, *, eid=None, weight=None, src_scale=None, dst_scale=None, segment=False):
    x = x.astype(np.float64)
    rows = x[np.arange(graph.n_edges) if segment else graph.src]
    if src_scale is not None:
        rows = rows * src_scale[graph.src].astype(np.float64).reshape(-1, *[1] * (x.ndim - 1))
    if weight is not None:
        w = (weight if eid is None else weight[eid])[: graph.n_edges].astype(np.float64)
        rows = rows * w.reshape(w.shape + (1,) * (x.ndim - w.ndim))
    if dst_scale is not None:
        rows = rows * dst_scale[graph.dst].astype(np.float64).reshape(-1, *[1] * (x.ndim - 1))
    out = np.zeros((graph.n_dst, *x.shape[1:]))
    np.add.at(out, graph.dst, rows)
    return out


@every_type
@every_kind
@pytest.mark.parametrize("width", WIDTHS)
def test_spmm_plain(dtype, itype, kind, width):
    graph, rng = make_graph(kind, itype), np.random.default_rng(1)
    x, out = normal(rng, dtype, graph.n_src, width), normal(rng, dtype, graph.n_dst, width)
    expected = out + spmm_reference(graph, x)
    kernels.spmm(graph.indptr, graph.indices, x, out)
    close(out, expected)


@every_type
@every_kind
@pytest.mark.parametrize("shape", [(1, 5), (4, 8), (3, 33)])
@pytest.mark.parametrize("options", [("weight",), ("weight", "eid"), ("heads",), ("heads", "eid"), ("src_scale",), ("dst_scale",),
                                     ("heads", "eid", "src_scale", "dst_scale")])
def test_spmm_weights_and_scales(dtype, itype, kind, shape, options):
    graph, rng = make_graph(kind, itype), np.random.default_rng(2)
    x = normal(rng, dtype, graph.n_src, *shape)
    given = {"src_scale": normal(rng, dtype, graph.n_src), "dst_scale": normal(rng, dtype, graph.n_dst),
             "eid": rng.permutation(graph.n_edges + 3)[: graph.n_edges].astype(itype)}
    given = {name: a for name, a in given.items() if name in options}
    if "weight" in options or "heads" in options:
        given["weight"] = normal(rng, dtype, graph.n_edges + 3, *([shape[0]] if "heads" in options else []))
    out = np.zeros((graph.n_dst, *shape), dtype)
    kernels.spmm(graph.indptr, graph.indices, x, out, **given)
    close(out, spmm_reference(graph, x, **given))


@every_float
@every_kind
def test_spmm_segment_sum(dtype, kind):
    graph, rng = make_graph(kind), np.random.default_rng(3)
    x, out = normal(rng, dtype, graph.n_edges, 6), np.zeros((graph.n_dst, 6), dtype)
    weight = normal(rng, dtype, graph.n_edges)
    kernels.spmm(graph.indptr, None, x, out, weight=weight)
    close(out, spmm_reference(graph, x, weight=weight, segment=True))


@every_type
def test_spmm_trailing_shapes(dtype, itype):
    graph, rng = make_graph("random", itype), np.random.default_rng(4)
    for shape in [(), (2, 3, 4), (0,)]:
        x, out = normal(rng, dtype, graph.n_src, *shape), np.zeros((graph.n_dst, *shape), dtype)
        kernels.spmm(graph.indptr, graph.indices, x, out)
        close(out, spmm_reference(graph, x))


@every_type
def test_long_row(dtype, itype):
    rng = np.random.default_rng(5)
    graph = Csr([1] * 100_000, rng.integers(0, 50, 100_000), 3, 50, itype)
    x, out = normal(rng, dtype, 50, 19), np.zeros((3, 19), dtype)
    kernels.spmm(graph.indptr, graph.indices, x, out)
    times = np.bincount(graph.src, minlength=50)
    close(out[1], times @ x.astype(np.float64), scale=np.abs(times @ x).max() + 300)
    assert not out[[0, 2]].any()


def test_spmm_is_independent_of_threads_and_row_slices(one_and_two_threads):
    rng = np.random.default_rng(6)
    graph = Csr(rng.zipf(1.5, 60_000) % 500, rng.integers(0, 500, 60_000), 500, 500, np.int32)
    x = normal(rng, np.float32, 500, 48)

    def run(rows=slice(0, 500)):
        out = np.zeros((rows.stop - rows.start, 48), np.float32)
        kernels.spmm(graph.indptr[rows.start : rows.stop + 1], graph.indices, x, out)
        return out

    one, *others = one_and_two_threads(run)
    for other in others:
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one, np.concatenate([run(slice(0, 3)), run(slice(3, 200)), run(slice(200, 500))]))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 20), st.integers(1, 20), st.integers(0, 80), st.sampled_from(WIDTHS))
def test_adjoint(seed, n_dst, n_src, n_edges, width):
    """<A x, y> = <x, A' y>, also through the transpose's permutation of the weights."""
    rng = np.random.default_rng(seed)
    graph = Csr(rng.integers(0, n_dst, n_edges), rng.integers(0, n_src, n_edges), n_dst, n_src, np.int32)
    x, y, weight = rng.standard_normal((n_src, width)), rng.standard_normal((n_dst, width)), rng.standard_normal(n_edges)
    t_indptr, t_indices, perm = kernels.transpose(graph.indptr, graph.indices, n_src)
    ax, aty, dots = np.zeros_like(y), np.zeros_like(x), np.zeros(n_edges)
    kernels.spmm(graph.indptr, graph.indices, x, ax, weight=weight)
    kernels.spmm(t_indptr, t_indices, y, aty, weight=weight, eid=perm)
    kernels.edge_dot(graph.indptr, graph.indices, y, x, dots)
    assert np.vdot(ax, y) == pytest.approx(np.vdot(x, aty), rel=1e-10, abs=1e-10)
    assert np.vdot(ax, y) == pytest.approx(weight @ dots, rel=1e-10, abs=1e-10)


@every_type
@every_kind
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("heads", [None, 3])
def test_edge_dot(dtype, itype, kind, width, heads):
    graph, rng = make_graph(kind, itype), np.random.default_rng(7)
    shape = (width,) if heads is None else (heads, width)
    g, x = normal(rng, dtype, graph.n_dst, *shape), normal(rng, dtype, graph.n_src, *shape)
    eid, scale = rng.permutation(graph.n_edges).astype(itype), normal(rng, dtype, graph.n_dst)
    out = normal(rng, dtype, graph.n_edges, *shape[:-1])
    expected = out.astype(np.float64)
    products = scale[graph.dst].astype(np.float64).reshape(-1, *[1] * len(shape)) * g[graph.dst] * x[graph.src]
    expected[eid] += products.sum(-1)
    kernels.edge_dot(graph.indptr, graph.indices, g, x, out, eid=eid, dst_scale=scale)
    close(out, expected, scale=np.abs(products).sum(-1).max(initial=1))


@every_type
def test_transpose(dtype, itype):
    for kind in KINDS:
        graph = make_graph(kind, itype)
        t_indptr, t_indices, perm = kernels.transpose(graph.indptr, graph.indices, graph.n_src)
        assert (t_indptr.dtype, t_indices.dtype, perm.dtype) == (np.int64, itype, itype)
        order = np.lexsort((np.arange(graph.n_edges), graph.dst, graph.src))
        np.testing.assert_array_equal(perm, order)
        np.testing.assert_array_equal(t_indices, graph.dst[order])
        np.testing.assert_array_equal(t_indptr, np.searchsorted(graph.src[order], np.arange(graph.n_src + 1)))


# ---------------------------------------------------------------- extremum

def extremum_reference(graph, x, sign, label, rank):
    out, arg = np.zeros((graph.n_dst, x.shape[1])), np.full((graph.n_dst, x.shape[1]), -1)
    for e, (i, r) in enumerate(zip(graph.dst, graph.src, strict=True)):
        for f in range(x.shape[1]):
            new, old = x[r, f], out[i, f]
            if arg[i, f] < 0 or sign * new > sign * old or (new == old and rank[label[e]] < rank[arg[i, f]]):
                out[i, f], arg[i, f] = new, label[e]
    return out, arg


@every_type
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "star"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("labelled", "ordered"), [(False, False), (False, True), (True, False), (True, True)])
def test_extremum(dtype, itype, kind, sign, labelled, ordered):
    graph, rng = make_graph(kind, itype), np.random.default_rng(8)
    for width in (1, 17, 65):
        x = rng.integers(-2, 3, (graph.n_src, width)).astype(dtype)      # few values: many ties
        label = rng.integers(0, 50, graph.n_edges) if labelled else graph.src + 5
        rank = rng.permutation(60) if ordered else np.arange(60)
        out, arg = np.full((graph.n_dst, width), 0, dtype), np.full((graph.n_dst, width), -1, itype)
        kernels.extremum(graph.indptr, graph.indices, x, out, arg, sign=sign, offset=5,
                         label=label.astype(itype) if labelled else None, order=rank if ordered else None)
        expected_out, expected_arg = extremum_reference(graph, x, sign, label, rank)
        np.testing.assert_array_equal(out, expected_out)
        np.testing.assert_array_equal(arg, expected_arg)


@every_type
@pytest.mark.parametrize("sign", [1, -1])
def test_extremum_does_not_depend_on_blocks(dtype, itype, sign):
    """One call, or one for each range of sources in any sequence, with ties broken by `order`."""
    rng = np.random.default_rng(9)
    graph = Csr(rng.integers(0, 20, 500), rng.integers(0, 60, 500), 20, 60, itype)
    x, rank = rng.integers(-1, 2, (60, 21)).astype(dtype), rng.permutation(60)

    def run(ranges):
        out, arg = np.zeros((20, 21), dtype), np.full((20, 21), -1, itype)
        for low, high in ranges:
            mine = (graph.src >= low) & (graph.src < high)
            block = Csr(graph.dst[mine], graph.src[mine] - low, 20, high - low, itype)
            kernels.extremum(block.indptr, block.indices, x[low:high], out, arg, sign=sign, offset=low, order=rank)
        return out, arg

    whole = run([(0, 60)])
    for ranges in ([(0, 20), (20, 60)], [(50, 60), (0, 10), (10, 50)]):
        for a, b in zip(whole, run(ranges), strict=True):
            np.testing.assert_array_equal(a, b)


def test_extremum_is_independent_of_threads(one_and_two_threads):
    rng = np.random.default_rng(22)
    graph = Csr(rng.zipf(1.5, 9000) % 400, rng.integers(0, 300, 9000), 400, 300, np.int32)
    x = rng.integers(-4, 5, (300, 11)).astype(np.float32)

    def run():
        out, arg = np.zeros((400, 11), np.float32), np.full((400, 11), -1, np.int32)
        kernels.extremum(graph.indptr, graph.indices, x, out, arg, sign=1)
        return np.stack([out, arg])

    expected = np.stack(extremum_reference(graph, x, 1, graph.src, np.arange(300)))
    for result in one_and_two_threads(run):
        np.testing.assert_array_equal(result, expected)


@every_float
@pytest.mark.parametrize("sign", [1, -1])
def test_extremum_keeps_nan(dtype, sign):
    x = np.array([[1, 9], [np.nan, 2], [np.inf, 3], [-np.inf, 4]], dtype)
    for permutation in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        out, arg = np.zeros((1, 2), dtype), np.full((1, 2), -1, np.int32)
        kernels.extremum(np.array([0, 4]), np.array(permutation, np.int32), x, out, arg, sign=sign)
        assert np.isnan(out[0, 0]) and arg[0, 0] == 1
        assert out[0, 1] == (9 if sign == 1 else 2)


@every_float
def test_extremum_over_edges(dtype):
    graph, rng = make_graph("random"), np.random.default_rng(10)
    x = normal(rng, dtype, graph.n_edges, 4)
    out, arg = np.zeros((graph.n_dst, 4), dtype), np.full((graph.n_dst, 4), -1, np.int64)
    kernels.extremum(graph.indptr, None, x, out, arg, sign=1)
    for i in range(graph.n_dst):
        rows = slice(graph.indptr[i], graph.indptr[i + 1])
        np.testing.assert_array_equal(out[i], x[rows].max(0))
        np.testing.assert_array_equal(arg[i], graph.indptr[i] + x[rows].argmax(0))


@every_type
@pytest.mark.parametrize("width", WIDTHS)
def test_extremum_backward(dtype, itype, width, one_and_two_threads):
    rng = np.random.default_rng(11)
    g, arg = normal(rng, dtype, 300, width), rng.integers(-1, 40, (300, width)).astype(itype)
    start = normal(rng, dtype, 20, width)
    expected = start.astype(np.float64)
    i, f = np.nonzero((arg >= 10) & (arg < 30))
    np.add.at(expected, (arg[i, f] - 10, f), g[i, f])

    def run():
        dx = start.copy()
        kernels.extremum_backward(g, arg, dx, offset=10)
        return dx

    first, *others = one_and_two_threads(run)
    close(first, expected)
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_extremum_rejects_labels_outside_order():
    out, arg, x = np.zeros((1, 2)), np.full((1, 2), -1, np.int32), np.zeros((4, 2))
    with pytest.raises(ShapeError, match="label"):
        kernels.extremum(np.array([0, 1]), np.array([3], np.int32), x, out, arg, sign=1, order=np.arange(3))
    with pytest.raises(ShapeError, match="label"):
        kernels.extremum(np.array([0, 1]), np.array([0], np.int32), x, out, arg, sign=1, label=np.array([-4], np.int32))
    with pytest.raises(ShapeError, match="offset"):
        kernels.extremum(np.array([0, 1]), np.array([0], np.int32), x, out, arg, sign=1, offset=2**31 - 2)


# ---------------------------------------------------------------- attention

def philox_reference(counter, key):
    """Philox4x32-10 on Python integers, from the paper."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def keep_reference(identity, column, key, p):
    """1 / (1-p) or 0 for one element."""
    identity, key = int(identity) & (2**64 - 1), key & (2**64 - 1)
    words = philox_reference([identity & 0xFFFFFFFF, identity >> 32, column // 4, 0], [key & 0xFFFFFFFF, key >> 32])
    return 0.0 if words[column % 4] < int(p * 2**32) else 1 / (1 - p)


def edge_factors(graph, n_heads, dropout):
    if dropout is None:
        return np.ones((graph.n_edges, n_heads))
    ids = [int(dropout.src_ids[j]) * dropout.n_nodes + int(dropout.dst_ids[i]) for i, j in zip(graph.dst, graph.src, strict=True)]
    return np.array([[keep_reference(e, h, dropout.key, dropout.p) for h in range(n_heads)] for e in ids]).reshape(-1, n_heads)


def attend_reference(graph, z, src, dst, slope, dropout=None):
    """Return out, log-sum-exp in float64, by an explicit softmax over each row's edges."""
    z, src, dst = (a.astype(np.float64) for a in (z, src, dst))
    n_heads = z.shape[1]
    pre = src[graph.src] + dst[graph.dst]
    s = np.where(pre > 0, pre, slope * pre)
    factor = edge_factors(graph, n_heads, dropout)
    out, lse = np.zeros((graph.n_dst, n_heads, z.shape[2])), np.zeros((graph.n_dst, n_heads))
    for i in range(graph.n_dst):
        rows = slice(graph.indptr[i], graph.indptr[i + 1])
        if rows.start < rows.stop:
            top = s[rows].max(0)
            weight = np.exp(s[rows] - top)
            lse[i] = top + np.log(weight.sum(0))
            alpha = weight / weight.sum(0)
            out[i] = ((alpha * factor[rows])[:, :, None] * z[graph.src[rows]]).sum(0)
    return out, lse


def attend(blocks, z, src, dst, slope, dropout=None):
    """Run the kernel over blocks (csr, first source, last source); return out, lse."""
    n_dst, n_heads, n_feat = len(dst), z.shape[1], z.shape[2]
    m, total = np.full((n_dst, n_heads), -np.inf, z.dtype), np.zeros((n_dst, n_heads), z.dtype)
    acc = np.zeros((n_dst, n_heads, n_feat), z.dtype)
    for block, low, high in blocks:
        part = None if dropout is None else dropout._replace(src_ids=dropout.src_ids[low:high])
        kernels.attend(block.indptr, block.indices, z[low:high], src[low:high], dst, m, total, acc, slope=slope, dropout=part)
    kernels.attend_finish(m, total, acc)
    return acc, m


def attend_operands(graph, dtype, n_heads, n_feat, seed=0, spread=3):
    rng = np.random.default_rng(seed)
    scores = [(spread * rng.standard_normal((n, n_heads))).astype(dtype) for n in (graph.n_src, graph.n_dst)]
    return normal(rng, dtype, graph.n_src, n_heads, n_feat), *scores


def make_dropout(graph, p=0.4):
    rng = np.random.default_rng(99)
    return Dropout(2**63 + 5, p, rng.permutation(10**6)[: graph.n_src], rng.permutation(10**6)[: graph.n_dst], 10**6)


@every_type
@every_kind
@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (4, 32), (5, 33), (1, 257)])
@pytest.mark.parametrize("dropped", [False, True])
def test_attend(dtype, itype, kind, shape, dropped):
    graph = make_graph(kind, itype)
    z, src, dst = attend_operands(graph, dtype, *shape)
    dropout = make_dropout(graph) if dropped else None
    out, lse = attend([(graph, 0, graph.n_src)], z, src, dst, 0.2, dropout)
    expected_out, expected_lse = attend_reference(graph, z, src, dst, 0.2, dropout)
    close(out, expected_out, scale=np.abs(z).max())
    close(lse, expected_lse, scale=10)


@every_float
def test_attend_does_not_depend_on_blocks(dtype):
    rng = np.random.default_rng(12)
    graph = Csr(rng.integers(0, 15, 900), rng.integers(0, 60, 900), 15, 60, np.int32)
    z, src, dst = attend_operands(graph, dtype, 3, 20, spread=20)
    dropout = make_dropout(graph)
    whole = attend([(graph, 0, 60)], z, src, dst, 0.2, dropout)
    for cuts in ([0, 13, 60], [0, 1, 2, 30, 59, 60]):
        blocks = []
        for low, high in zip(cuts, cuts[1:], strict=False):
            mine = (graph.src >= low) & (graph.src < high)
            blocks.append((Csr(graph.dst[mine], graph.src[mine] - low, 15, high - low, np.int32), low, high))
        for sequence in (blocks, blocks[::-1]):
            for a, b in zip(whole, attend(sequence, z, src, dst, 0.2, dropout), strict=True):
                close(b, a, scale=30)


@every_float
def test_attend_long_row_and_extreme_scores(dtype):
    rng = np.random.default_rng(13)
    graph = Csr([0] * 100_000, rng.integers(0, 40, 100_000), 2, 40, np.int32)
    z, src, dst = attend_operands(graph, dtype, 2, 9)
    out, lse = attend([(graph, 0, 40)], z, src, dst, 0.2)
    expected_out, expected_lse = attend_reference(graph, z, src, dst, 0.2)
    close(out, expected_out, scale=10, factor=100)
    close(lse, expected_lse, scale=10, factor=100)

    src[:] = rng.choice([-800, 0, 700], (40, 2))       # exp() of any of these is 0 or infinite
    out, lse = attend([(graph, 0, 40)], z, src, dst, 1.0)
    expected_out, expected_lse = attend_reference(graph, z, src, dst, 1.0)
    close(out, expected_out, scale=10, factor=100)
    close(lse, expected_lse, scale=1000)


@every_float
def test_attend_without_weight(dtype):
    """Scores of -inf weigh nothing; a row of only such scores is 0, not NaN. A NaN score is visible."""
    graph = Csr([0, 0, 1, 2], [0, 1, 1, 2], 3, 3, np.int32)
    z, dst = np.ones((3, 1, 2), dtype), np.zeros((3, 1), dtype)
    src = np.array([[1], [-np.inf], [np.nan]], dtype)
    out, lse = attend([(graph, 0, 3)], z, src, dst, 0.2)
    np.testing.assert_array_equal(out[:2, 0], [[1, 1], [0, 0]])
    np.testing.assert_array_equal(lse[:2, 0], [1, 0])
    assert np.isnan(out[2]).all()


@every_float
@pytest.mark.parametrize("low", [-800.0, -110.0, -80.0, -1.0])
def test_exponential(dtype, low):
    """The kernels' exp, seen through the backward pass: one edge a source, lse = 0 and g = 1 make dz = exp(score)."""
    s = np.concatenate([np.linspace(low, 0, 20_001), [0, -np.inf]]).astype(dtype)[:, None]
    n, one, zero = len(s), np.ones((1, 1, 1), dtype), np.zeros((1, 1), dtype)
    dz, dsrc, ddst = np.zeros((n, 1, 1), dtype), np.zeros_like(s), zero.copy()
    kernels.attend_backward(np.arange(n + 1), np.zeros(n, np.int32), np.zeros_like(dz), s, zero, zero, zero, one, dz, dsrc, ddst, slope=1.0)
    exact = np.exp(s[:, 0].astype(np.longdouble))
    unit = np.maximum(np.spacing(exact.astype(dtype)), np.finfo(dtype).smallest_subnormal)
    error = np.abs(dz[:, 0, 0] - exact) / unit
    assert error.max() < 1.1
    assert dz[-1, 0, 0] == 0


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(0, 60), st.floats(-50, 50))
def test_shifting_scores_changes_no_softmax(seed, n, n_edges, shift):
    rng = np.random.default_rng(seed)
    graph = Csr(rng.integers(0, n, n_edges), rng.integers(0, n, n_edges), n, n, np.int32)
    z, src, dst = attend_operands(graph, np.float64, 2, 5, seed)
    plain, shifted = (attend([(graph, 0, n)], z, src, dst + c, 1.0)[0] for c in (0, shift))
    close(shifted, plain, scale=10, factor=100)


def attend_gradients(graph, z, src, dst, g, slope, dropout):
    out, lse = attend([(graph, 0, graph.n_src)], z, src, dst, slope, dropout)
    delta = np.zeros_like(lse)
    kernels.row_dot(g, out, delta)
    t_indptr, t_indices, _ = kernels.transpose(graph.indptr, graph.indices, graph.n_src)
    grads = [np.zeros_like(a) for a in (z, src, dst)]
    kernels.attend_backward(t_indptr, t_indices, z, src, dst, lse, delta, g, *grads, slope=slope, dropout=dropout)
    return grads


@every_kind
@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (5, 33)])
@pytest.mark.parametrize("dropped", [False, True])
def test_attend_backward_against_finite_differences(kind, shape, dropped):
    graph, rng = make_graph(kind, np.int32), np.random.default_rng(14)
    operands = attend_operands(graph, np.float64, *shape, spread=1)
    dropout = make_dropout(graph) if dropped else None
    g = rng.standard_normal((graph.n_dst, *shape))
    grads = attend_gradients(graph, *operands, g, 0.2, dropout)
    for which in range(3):
        for _ in range(3):
            step = 1e-6 * rng.standard_normal(operands[which].shape)
            values = []
            for sign in (1, -1):
                moved = [a + sign * step if k == which else a for k, a in enumerate(operands)]
                values.append(np.vdot(attend_reference(graph, *moved, 0.2, dropout)[0], g))
            assert (values[0] - values[1]) / 2e-6 == pytest.approx(np.vdot(grads[which], step) / 1e-6, rel=1e-4, abs=2e-5)


@every_type
@every_kind
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3, 8), (4, 32), (2, 100)])
def test_attend_backward(dtype, itype, kind, dropped, shape):
    graph, rng = make_graph(kind, itype), np.random.default_rng(15)
    z, src, dst = (a.astype(np.float64) for a in attend_operands(graph, dtype, *shape))
    dropout = make_dropout(graph) if dropped else None
    g = normal(rng, dtype, graph.n_dst, *shape).astype(np.float64)
    out, lse = attend_reference(graph, z, src, dst, 0.3, dropout)
    pre = src[graph.src] + dst[graph.dst]
    alpha = np.exp(np.where(pre > 0, pre, 0.3 * pre) - lse[graph.dst])
    factor, t = edge_factors(graph, shape[0], dropout), (g[graph.dst] * z[graph.src]).sum(-1)
    de = alpha * (factor * t - (g * out).sum(-1)[graph.dst]) * np.where(pre > 0, 1, 0.3)
    expected = [np.zeros_like(a) for a in (z, src, dst)]
    np.add.at(expected[0], graph.src, (alpha * factor)[:, :, None] * g[graph.dst])
    np.add.at(expected[1], graph.src, de)
    np.add.at(expected[2], graph.dst, de)
    grads = attend_gradients(graph, *(a.astype(dtype) for a in (z, src, dst, g)), 0.3, dropout)
    for actual, wanted in zip(grads, expected, strict=True):
        close(actual, wanted, scale=np.abs(t).max(initial=1) * 10, factor=60)


def test_attend_is_deterministic_and_close_across_threads(one_and_two_threads):
    rng = np.random.default_rng(16)
    graph = Csr(rng.zipf(1.5, 20_000) % 300, rng.integers(0, 300, 20_000), 300, 300, np.int32)
    operands = attend_operands(graph, np.float32, 4, 16)
    g, dropout = normal(rng, np.float32, 300, 4, 16), make_dropout(graph)
    forward = one_and_two_threads(lambda: attend([(graph, 0, 300)], *operands, 0.2, dropout)[0])
    backward = one_and_two_threads(lambda: attend_gradients(graph, *operands, g, 0.2, dropout))
    again = one_and_two_threads(lambda: attend_gradients(graph, *operands, g, 0.2, dropout))
    for n in range(3):
        np.testing.assert_array_equal(forward[0], forward[n])
        np.testing.assert_array_equal(backward[0][0], backward[n][0])
        np.testing.assert_array_equal(backward[0][1], backward[n][1])
        close(backward[n][2], backward[0][2].astype(np.float64))
        for a, b in zip(backward[n], again[n], strict=True):
            np.testing.assert_array_equal(a, b)


def test_backward_accumulates():
    graph = make_graph("random", np.int32)
    operands = attend_operands(graph, np.float64, 2, 3)
    out, lse = attend([(graph, 0, graph.n_src)], *operands, 0.2)
    t = kernels.transpose(graph.indptr, graph.indices, graph.n_src)[:2]
    grads = [np.zeros_like(a) for a in operands]
    for repeat in range(2):
        kernels.attend_backward(*t, *operands, lse, np.zeros_like(lse), out, *grads, slope=0.2)
        if repeat == 0:
            once = [a.copy() for a in grads]
    for a, b in zip(grads, once, strict=True):
        close(a, 2 * b)


# ---------------------------------------------------------------- rows

@every_type
@pytest.mark.parametrize("shape", [(), (1,), (7,), (33,), (2, 5), (257,)])
def test_gather_and_scatter(dtype, itype, shape):
    rng = np.random.default_rng(17)
    x, index = normal(rng, dtype, 300, *shape), rng.permutation(300)[:200].astype(itype)
    out = normal(rng, dtype, 200, *shape)
    kernels.gather_rows(x, index, out)
    np.testing.assert_array_equal(out, x[index])
    expected, target = x.copy(), x.copy()
    expected[index] += out
    kernels.scatter_add_rows(out, index, target)
    np.testing.assert_array_equal(target, expected)
    kernels.gather_rows(x, index[:0], out[:0])


@every_type
@pytest.mark.parametrize("bad", [-1, 10, 2**31 - 1])
def test_rows_check_their_index(dtype, itype, bad):
    x, index, out = np.zeros((10, 3), dtype), np.array([0, bad], itype), np.zeros((2, 3), dtype)
    with pytest.raises(ShapeError, match="index"):
        kernels.gather_rows(x, index, out)
    with pytest.raises(ShapeError, match="index"):
        kernels.scatter_add_rows(out, index, x)


@every_float
@pytest.mark.parametrize("width", WIDTHS)
def test_row_dot(dtype, width):
    rng = np.random.default_rng(18)
    a, b, out = normal(rng, dtype, 50, 3, width), normal(rng, dtype, 50, 3, width), normal(rng, dtype, 50, 3)
    kernels.row_dot(a, b, out)
    close(out, (a.astype(np.float64) * b).sum(-1), scale=width)


# ---------------------------------------------------------------- dropout

@pytest.mark.parametrize(("counter", "key", "expected"), [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0], [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
])
def test_philox_known_answers(counter, key, expected):
    """Random123's kat_vectors."""
    assert philox_reference(counter, key) == expected
    assert kernels.philox4x32(counter, key).tolist() == expected


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6))
def test_philox(words):
    assert kernels.philox4x32(words[:4], words[4:]).tolist() == philox_reference(words[:4], words[4:])


@every_float
@pytest.mark.parametrize("width", [1, 3, 7, 17, 66])
def test_dropout(dtype, width):
    rng = np.random.default_rng(19)
    x, ids = normal(rng, dtype, 6, width), np.array([0, 5, 2**33 + 1, 2**62, -1, 5])
    key, out = 2**64 - 3, normal(rng, dtype, 6, width)
    kernels.dropout(x, ids, key, 0.3, out)
    factor = np.array([[keep_reference(r, c, key, 0.3) for c in range(width)] for r in ids])
    close(out, x * factor)
    kernels.dropout(x, ids, key, 0.0, out)
    np.testing.assert_array_equal(out, x)


@every_float
def test_dropout_rate_and_replay(dtype, one_and_two_threads):
    x, ids = np.ones((2000, 50), dtype), np.arange(2000)
    for p in (0.1, 0.5, 0.9):
        def run(rows=slice(None), key=7, p=p):
            out = np.empty_like(x[rows])
            kernels.dropout(x[rows], ids[rows], key, p, out)
            return out

        first, *others = one_and_two_threads(run)
        for other in [*others, np.concatenate([run(slice(0, 7)), run(slice(7, 1500)), run(slice(1500, 2000))])]:
            np.testing.assert_array_equal(first, other)
        sigma = np.sqrt(p * (1 - p) / x.size)
        assert abs((first == 0).mean() - p) < 5 * sigma
        assert (np.abs((first == 0).mean(0) - p) < 6 * sigma * np.sqrt(50)).all()
        assert ((run(key=8) == 0) != (first == 0)).mean() == pytest.approx(2 * p * (1 - p), abs=0.02)


# ---------------------------------------------------------------- column moments

@every_float
@pytest.mark.parametrize("n", [0, 1, 2, 1000, 5000])
@pytest.mark.parametrize("width", [1, 7, 33])
def test_column_moments(dtype, n, width, one_and_two_threads):
    rng = np.random.default_rng(20)
    x = (1e4 + rng.standard_normal((n, width))).astype(dtype)            # E[x^2] - mean^2 would cancel

    def run():
        mean, m2 = rng.standard_normal(width), rng.standard_normal(width)
        kernels.column_moments(x, mean, m2)
        return mean, m2

    wide = x.astype(np.float64)
    expected = wide.mean(0) if n else np.zeros(width)
    for mean, m2 in one_and_two_threads(run):
        np.testing.assert_allclose(mean, expected, rtol=1e-14)
        np.testing.assert_allclose(m2, ((wide - expected) ** 2).sum(0), rtol=1e-9)


# ---------------------------------------------------------------- arguments

def wrong_arguments():
    """Each case: the name in the message, and a call."""
    f32, f64, i32 = np.float32, np.float64, np.int32
    indptr, indices = np.array([0, 1, 3]), np.array([0, 1, 2], i32)
    x, out, read_only = np.ones((3, 4), f32), np.zeros((2, 4), f32), np.zeros((2, 4), f32)
    read_only.flags.writeable = False
    z, s, d = np.ones((3, 2, 4), f32), np.ones((3, 2), f32), np.ones((2, 2), f32)
    acc, ids = np.zeros((2, 2, 4), f32), np.arange(3)
    arg = np.full((2, 4), -1, i32)
    k = kernels

    def attend_with(slope=0.2, **new):
        a = {"indices": indices, "z": z, "src": s, "dst": d, "m": d.copy(), "l": d.copy(), "acc": acc, "dropout": None, **new}
        return lambda: k.attend(indptr, *list(a.values())[:-1], slope=slope, dropout=a["dropout"])

    def backward_with(**new):
        a = {"t_indices": np.array([0, 1, 1], i32), "z": z, "src": s, "dst": d, "lse": d, "delta": d, "g": acc, "dz": z.copy(),
             "dsrc": s.copy(), "ddst": d.copy(), **new}
        return lambda: k.attend_backward(np.array([0, 1, 2, 3]), *a.values(), slope=0.2)

    yield "indptr", lambda: k.spmm(indptr.astype(i32), indices, x, out)
    yield "indptr", lambda: k.spmm(indptr[:0], indices, x, out)
    yield "indptr", lambda: k.spmm(np.array([3, 1, 0]), indices, x, out)
    yield "indices", lambda: k.spmm(indptr, indices.astype(np.int16), x, out)
    yield "indices", lambda: k.spmm(indptr, indices[:2], x, out)
    yield "indices", lambda: k.spmm(indptr, list(indices), x, out)
    yield "x", lambda: k.spmm(indptr, indices, x.astype(np.float16), out)
    yield "x", lambda: k.spmm(indptr, indices, x[:, ::2], out[:, :2].copy())
    yield "x", lambda: k.spmm(indptr, None, x[:2], out)
    yield "x", lambda: k.spmm(indptr, indices, out, out)
    yield "out", lambda: k.spmm(indptr, indices, x, out.astype(f64))
    yield "out", lambda: k.spmm(indptr, indices, x, np.zeros((3, 4), f32))
    yield "out", lambda: k.spmm(indptr, indices, x, read_only)
    yield "out", lambda: k.spmm(indptr, indices, x, np.zeros((2, 8), f32)[:, ::2])
    yield "eid", lambda: k.spmm(indptr, indices, x, out, eid=np.arange(3), weight=np.ones(3, f32))
    yield "eid", lambda: k.spmm(indptr, indices, x, out, eid=indices[:2], weight=np.ones(3, f32))
    yield "weight", lambda: k.spmm(indptr, indices, x, out, weight=np.ones(3))
    yield "weight", lambda: k.spmm(indptr, indices, x, out, weight=np.ones(2, f32))
    yield "weight", lambda: k.spmm(indptr, indices, z, acc, weight=np.ones((3, 3), f32))
    yield "src_scale", lambda: k.spmm(indptr, indices, x, out, src_scale=np.ones(2, f32))
    yield "dst_scale", lambda: k.spmm(indptr, indices, x, out, dst_scale=np.ones(2))
    yield "g", lambda: k.edge_dot(indptr, indices, x, x, np.zeros(3, f32))
    yield "out", lambda: k.edge_dot(indptr, indices, out, x, np.zeros(3))
    yield "out", lambda: k.edge_dot(indptr, indices, out, x, None)
    yield "dst_scale", lambda: k.edge_dot(indptr, indices, out, x, np.zeros(3, f32), dst_scale=np.ones(3, f32))
    yield "arg", lambda: k.extremum(indptr, indices, x, out, arg.astype(np.int64), sign=1)
    yield "arg", lambda: k.extremum(indptr, indices, x, out, arg[:1], sign=1)
    yield "sign", lambda: k.extremum(indptr, indices, x, out, arg, sign=0)
    yield "label", lambda: k.extremum(indptr, indices, x, out, arg, sign=1, label=indices[:1])
    yield "order", lambda: k.extremum(indptr, indices, x, out, arg, sign=1, order=indices)
    yield "dx", lambda: k.extremum_backward(out, arg, x.astype(f64))
    yield "arg", lambda: k.extremum_backward(out, arg.astype(f32), x)
    yield "indices", attend_with(indices=None)
    yield "z", attend_with(z=x)
    yield "src", attend_with(src=s[:2])
    yield "dst", attend_with(dst=d.astype(f64))
    yield "m", attend_with(m=s)
    yield "l", attend_with(l=d.T)
    yield "acc", attend_with(acc=z)
    yield "dropout.src_ids", attend_with(dropout=Dropout(1, 0.5, ids[:2], ids[:2], 3))
    yield "dropout.dst_ids", attend_with(dropout=Dropout(1, 0.5, ids, ids[:2].astype(i32), 3))
    yield "p", attend_with(dropout=Dropout(1, 1.0, ids, ids[:2], 3))
    yield "l", lambda: k.attend_finish(d.copy(), s, acc)
    for name in ("t_indices", "z", "src", "lse", "delta", "g", "dz", "dsrc", "ddst"):
        yield name, backward_with(**{name: np.ones((1, 1), np.float16)})
    yield "b", lambda: k.row_dot(x, x[:1], np.zeros(3, f32))
    yield "out", lambda: k.row_dot(x, x, np.zeros(4, f32))
    yield "out", lambda: k.gather_rows(x, indices, out)
    yield "index", lambda: k.gather_rows(x, indices.astype(f32), x.copy())
    yield "index", lambda: k.scatter_add_rows(x, indices[:1], out)
    yield "ids", lambda: k.dropout(x, indices, 1, 0.5, x.copy())
    yield "p", lambda: k.dropout(x, ids, 1, -0.1, x.copy())
    yield "out", lambda: k.dropout(x, ids, 1, 0.5, out)
    yield "mean", lambda: k.column_moments(x, np.zeros(4, f32), np.zeros(4))
    yield "m2", lambda: k.column_moments(x, np.zeros(4), np.zeros(3))
    normal = k.Normal(np.zeros(4), np.zeros(4), np.ones(4, f32))
    yield "kind", lambda: k.activate(x, x.copy(), kind="tanh")
    yield "out", lambda: k.activate(x, out, kind="relu")
    yield "x", lambda: k.activate(x, x, kind="relu")
    yield "gamma", lambda: k.activate(x, x.copy(), kind="relu", normal=normal._replace(gamma=np.ones(4)), beta=np.ones(4, f32))
    yield "mean", lambda: k.activate(x, x.copy(), kind="relu", normal=normal._replace(mean=np.ones(4, f32)), beta=np.ones(4, f32))
    yield "beta", lambda: k.activate(x, x.copy(), kind="relu", normal=normal)
    yield "beta", lambda: k.activate(x, x.copy(), kind="relu", beta=np.ones(3, f32))
    yield "ids", lambda: k.activate(x, x.copy(), kind="relu", mask=k.Mask(ids[:2], 1, 0.5))
    yield "p", lambda: k.activate(x, x.copy(), kind="relu", mask=k.Mask(ids, 1, 1.0))
    yield "x", lambda: k.activate_backward(x, kind="elu", dx=x.copy())
    yield "x", lambda: k.activate_backward(x, kind="identity", normal=normal, sums=np.zeros((2, 4)))
    yield "beta", lambda: k.activate_backward(x, kind="elu", normal=normal, x=x, sums=np.zeros((2, 4)))
    yield "out", lambda: k.activate_backward(x, kind="relu", dx=x.copy())
    yield "means", lambda: k.activate_backward(x, kind="identity", normal=normal, x=x, dx=x.copy())
    yield "dx", lambda: k.activate_backward(x, kind="identity", dx=out)
    yield "g", lambda: k.activate_backward(x, kind="identity", dx=x)
    yield "sums", lambda: k.activate_backward(x, kind="identity", sums=np.zeros(4))
    yield "n", lambda: k.set_threads(0)
    yield "indices", lambda: k.transpose(indptr, indices, 2)
    yield "indices", lambda: k.transpose(indptr, np.append(indices, indices[:1]), 3)
    yield "key", lambda: k.philox4x32([0] * 4, [0] * 3)


@pytest.mark.parametrize(("name", "call"), [pytest.param(*case, id=f"{n}-{case[0]}") for n, case in enumerate(wrong_arguments())])
def test_wrong_arguments_are_named(name, call):
    with pytest.raises(ShapeError, match=rf"^{name} must"):
        call()


def test_messages_hold_shape_and_dtype():
    with pytest.raises(ShapeError, match=r"out must have dtype float32; got shape \(2, 4\), dtype float64"):
        kernels.spmm(np.array([0, 1, 1]), np.zeros(1, np.int32), np.zeros((1, 4), np.float32), np.zeros((2, 4)))

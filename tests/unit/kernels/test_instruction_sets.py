"""Kernels give the same bits on every instruction set, with any index type, alignment and threads; products do not."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from sarlite import kernels
from sarlite.errors import ConfigError
from sarlite.kernels import native
from tests.helpers.kernels.instruction_sets import Arrays, Setting, check, graph, random
from tests.helpers.kernels.kernel_references import every_float

WIDTHS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 64, 100, 127, 128, 129, 200, 256, 300]
HEADS = [1, 2, 3, 4, 5, 8]
NARROW = [(1, 1), (3, 1), (1, 2), (3, 5), (1, 17)]      # few columns of a graph with enough edges for a team of threads
KEY, P = 2**63 + 11, 0.4


@pytest.fixture(autouse=True)
def put_back():
    before = kernels.instruction_set(), kernels.threads()
    yield
    kernels.set_instruction_set(before[0])
    kernels.set_threads(before[1])


SIZES = [("hard", (heads, width)) for heads in HEADS for width in WIDTHS]
SIZES += [("long", shape) for shape in NARROW]
SIZES += [(kind, shape) for kind in ("one node", "no edges") for shape in (*NARROW, (5, 33), (1, 300))]
if "SARLITE_TESTED" in os.environ:  # under the sanitizers a case takes twenty times as long
    SIZES = SIZES[::6]


# ---- spmm, edge_dot

SPMM = ["", "weight", "weight eid", "heads", "heads eid", "src_scale", "dst_scale", "weight src_scale", "heads eid src_scale dst_scale",
        "overwrite", "overwrite heads dst_scale", "rows", "rows overwrite heads dst_scale", "segment", "segment heads eid",
        "segment overwrite weight dst_scale"]  # fmt: skip


def out_rows(arrays, csr, numbered):
    """Return the number of output rows, and keyword arguments that name the output rows.

    Without `numbered` the output rows are those of the CSR; with it they are more rows, in another order.
    """
    n = csr.n_dst + 3 * bool(numbered)
    return n, {"rows": arrays.index(np.random.default_rng(12).permutation(n)[: csr.n_dst])} if numbered else {}


def spmm(arrays, kind, shape, words):
    csr, words = graph(kind), words.split()
    n_out, more = out_rows(arrays, csr, "rows" in words)
    n = csr.n_edges
    if "weight" in words or "heads" in words:
        more["weight"] = arrays.values(1, n + 3, *shape[:1] if "heads" in words else ())
    if "eid" in words:
        more["eid"] = arrays.index(np.random.default_rng(2).permutation(n + 3)[:n])
    for name, n_scales in (("src_scale", csr.n_src), ("dst_scale", n_out)):
        if name in words:
            more[name] = arrays.values(3, n_scales)
    x, out = arrays.values(4, n if "segment" in words else csr.n_src, *shape), arrays.values(5, n_out, *shape)
    indices = None if "segment" in words else arrays.index(csr.indices)
    kernels.spmm(arrays.place(csr.indptr), indices, x, out, accumulate="overwrite" not in words, **more)
    return {"out": out}


@pytest.mark.sampled(12)
@every_float
@pytest.mark.parametrize("words", SPMM)
def test_spmm_has_the_same_bits(dtype, words):
    for kind, shape in SIZES[:: 1 if words in ("", SPMM[8]) else 5]:
        check(spmm, dtype, kind, shape, words)


@every_float
@pytest.mark.parametrize("words", ["", "rows heads eid src_scale dst_scale", "overwrite"])
def test_spmm_in_ranges(dtype, words):
    check(spmm, dtype, "ranges", (2, 128), words)


def edge_dot(arrays, kind, shape, words):
    csr = graph(kind)
    n_out, more = out_rows(arrays, csr, "rows" in words)
    if "eid" in words:
        more |= {"eid": arrays.index(np.random.default_rng(2).permutation(csr.n_edges)), "dst_scale": arrays.values(3, n_out)}
    shape = shape if "heads" in words else shape[1:]
    x, g = arrays.values(4, csr.n_edges if "segment" in words else csr.n_src, *shape), arrays.values(5, n_out, *shape)
    out = arrays.values(6, csr.n_edges, *shape[:-1])
    kernels.edge_dot(arrays.place(csr.indptr), None if "segment" in words else arrays.index(csr.indices), g, x, out, **more)
    return {"out": out}


@pytest.mark.sampled(5)
@every_float
@pytest.mark.parametrize("words", ["", "heads eid", "rows heads eid", "segment heads"])
def test_edge_dot_has_the_same_bits(dtype, words):
    for kind, shape in SIZES if "eid" in words else SIZES[::4]:
        check(edge_dot, dtype, kind, shape, words)


# ---- extremum

def extremum(arrays, kind, width, sign, words):
    csr = graph(kind)
    n_out, more = out_rows(arrays, csr, "rows" in words)
    more["offset"] = 5
    x = arrays.place(np.round(random(7, (csr.n_edges if "segment" in words else csr.n_src, width)), 1), arrays.dtype)     # many ties
    x[len(x) // 2 :: 9, ::5] = np.nan
    labels = max(csr.n_src, csr.n_edges) + 5
    if "label" in words:
        more["label"] = arrays.index(np.random.default_rng(8).integers(0, labels, csr.n_edges))
    if "order" in words:
        more["order"] = arrays.place(np.random.default_rng(9).permutation(labels))
    out, arg = arrays.values(10, n_out, width), arrays.index(np.full((n_out, width), -1))
    indices = None if "segment" in words else arrays.index(csr.indices)
    for _ in range(2):
        kernels.extremum(arrays.place(csr.indptr), indices, x, out, arg, sign=sign, **more)
    dx = arrays.values(11, len(x), width)
    kernels.extremum_backward(out, arg, dx, offset=5)
    return {"out": out, "arg": arg.astype(np.int64), "dx": dx}


@pytest.mark.sampled(6)
@every_float
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("words", ["", "order", "rows label order", "segment"])
def test_extremum_has_the_same_bits(dtype, sign, words):
    for kind, width in [("hard", width) for width in WIDTHS] + [("long", 1), ("long", 3), ("one node", 5), ("no edges", 5)]:
        check(extremum, dtype, kind, width, sign, words)


# ---- attention

def attend(arrays, kind, shape, slope, dropped, numbered=False):
    """Run two blocks of edges, the end of the softmax, and the gradients."""
    csr, heads = graph(kind), shape[0]
    n_out, more = out_rows(arrays, csr, numbered)
    z, g = arrays.values(1, csr.n_src, *shape), arrays.values(2, n_out, *shape)
    src, dst = (arrays.place(3 * random(3, (n, heads)), arrays.dtype) for n in (csr.n_src, n_out))
    dropout = None
    if dropped:
        ids = (arrays.place(np.random.default_rng(4).integers(0, 10**6, n)) for n in (csr.n_src, n_out))
        dropout = kernels.EdgeDropout(KEY, P, *ids, 10**6)
    m, total, acc = (arrays.place(np.full(s, v), arrays.dtype) for s, v in ((dst.shape, -np.inf), (dst.shape, 0), (g.shape, 0)))
    indptr, indices = arrays.place(csr.indptr), arrays.index(csr.indices)
    for _ in range(2):
        kernels.attend(indptr, indices, z, src, dst, m, total, acc, slope=slope, dropout=dropout, **more)
    arrays_before = {"m": m.copy(), "l": total.copy(), "acc": acc.copy()}
    kernels.attend_finish(m, total, acc)
    dz, dsrc, ddst = (arrays.values(5, *a.shape) for a in (z, src, dst))
    ends = arrays.place(kernels.attend_ends(dst, m, total, g, acc))
    t_indptr, t_indices, _ = kernels.transpose(csr.indptr, arrays.index(csr.indices), csr.n_src, **more)
    sums = np.zeros((kernels.threads(), *dst.shape))
    for _ in range(2):
        kernels.attend_backward(arrays.place(t_indptr), t_indices, z, src, ends, g, dz, dsrc, None, slope=slope,
                                dropout=dropout, sums=sums)
    kernels.attend_backward_finish(sums, ddst)
    return {**arrays_before, "m at the end": m, "scale": total, "out": acc, "ends": ends, "dz": dz, "dsrc": dsrc, "ddst": ddst}


@every_float
@pytest.mark.sampled(6)
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("heads", [*HEADS, "other graphs"])
def test_attend_has_the_same_bits(dtype, heads, dropped):
    for kind, shape in SIZES:
        if (kind == "hard" and shape[0] == heads) or (kind != "hard" and heads == "other graphs"):
            check(attend, dtype, kind, shape, 0.2, dropped)


@every_float
def test_attend_with_rows(dtype):
    for shape in [(1, 5), (2, 100), (5, 33)]:
        for dropped in (False, True):
            check(attend, dtype, "hard", shape, 0.2, dropped, True)


@every_float
def test_attend_without_slope(dtype):
    """The scores include zeros of both signs."""
    for shape in [(1, 5), (4, 32)]:
        check(attend, dtype, "hard", shape, 0.0, False)


# ---- rows

def rows(arrays, width):
    n = 33_000 // width + 9       # enough for a team
    x, index = arrays.values(1, n, width), arrays.index(np.random.default_rng(2).permutation(n)[: n - 5])
    some, dot, dropped, out = (arrays.values(3, *s) for s in ((n - 5, width), (n,), (n, width), (n, width)))
    kernels.gather_rows(x, index, some)
    kernels.scatter_add_rows(some, index, out)
    kernels.row_dot(x, out, dot)
    kernels.dropout(x, arrays.place(np.arange(n) * 2**33 - 5), KEY, P, dropped)
    mean, m2 = arrays.values(4, width, dtype=np.float64), arrays.values(5, width, dtype=np.float64)
    kernels.column_moments(x, mean, m2)
    total = arrays.values(6, n, width)
    kernels.add(x, out, total)
    return {"some": some, "out": out, "dot": dot, "dropped": dropped, "mean": mean, "m2": m2, "total": total}


@every_float
def test_kernels_of_rows_have_the_same_bits(dtype):
    for width in WIDTHS:
        check(rows, dtype, width)


def activate(arrays, width, kind, shift, p):
    n = 33_000 // width + 9
    x, g, out, dx = (arrays.values(seed, n, width) for seed in range(4))
    mean, means, sums = (arrays.values(seed, *s, dtype=np.float64) for seed, s in ((4, (width,)), (5, (2, width)), (6, (2, width))))
    beta = None if shift == "plain" else arrays.values(7, width)
    normal = kernels.Normal(mean, arrays.place(np.abs(mean) + 0.5), arrays.values(8, width)) if shift == "norm" else None
    mask = kernels.Mask(arrays.place(np.arange(n) * 2**33 - 5), KEY, p) if p else None
    kernels.activate(x, out, kind=kind, alpha=0.7, normal=normal, beta=beta, mask=mask)
    kernels.activate_backward(g, kind=kind, alpha=0.7, normal=normal, beta=beta, mask=mask, x=x, out=out, means=means, dx=dx, sums=sums)
    return {"out": out, "dx": dx, "sums": sums}


@every_float
@pytest.mark.sampled(13)
@pytest.mark.parametrize("kind", kernels.ACTIVATIONS)
@pytest.mark.parametrize("shift", ["plain", "bias", "norm"])
@pytest.mark.parametrize("p", [0.0, P])
def test_activate_has_the_same_bits(dtype, kind, shift, p):
    for width in (1, 3, 8, 17, 33, 100, 129, 300):
        check(activate, dtype, width, kind, shift, p)


def product(arrays, width):
    a, b, g = arrays.values(1, 3000, width), arrays.values(2, width, 40), arrays.values(3, 3000, 40)
    out, db = arrays.values(4, 3000, 40), arrays.values(5, width, 40)
    kernels.gemm(a, b, out, accumulate=True)
    kernels.gemm_backward(a, g, db)
    return {"product": out, "db": db}


@every_float
def test_products_agree_within_rounding(dtype):
    """The portable kernels may lack an instruction that multiplies and adds in one rounding, so they have other bits."""
    portable, *others = kernels.instruction_sets()
    for width in (1, 3, 17, 64, 300):
        for sets in filter(None, ([portable], others)):
            check(product, dtype, width, instruction_sets=sets)
        products = []
        for isa in (portable, *others[-1:]):
            Setting(isa).put()
            products.append(product(Arrays(dtype, np.int64, None), width))
        for name in products[0]:
            rough, fine = products[0][name], products[-1][name]
            np.testing.assert_allclose(rough, fine, rtol=0, atol=100 * np.finfo(dtype).eps * np.abs(fine).max())


def exact(arrays, kind, shape):
    """Run sums on grids over edges, over rows and over attention's edges, and elementwise functions."""
    csr, levels = graph(kind), kernels.levels(arrays.dtype)
    z, g, src = (arrays.values(seed, n, *s) for seed, n, s in ((1, csr.n_src, shape), (2, csr.n_dst, shape), (3, csr.n_src, shape[:1])))
    dst, flat = arrays.values(4, csr.n_dst, shape[0]), z.reshape(len(z), -1)
    grid = np.full((levels, *shape), 1.5 * 2.0**24) * (2.0**-30) ** np.arange(levels).reshape(-1, 1, 1)
    sums, acc, dz = (np.zeros((n, levels, *shape)) for n in (csr.n_dst, csr.n_dst, csr.n_src))
    total, d_src, parts = (np.zeros((*n, levels, shape[0])) for n in ((csr.n_dst,), (csr.n_src,), (4, csr.n_dst)))
    indptr, indices = arrays.place(csr.indptr), arrays.index(csr.indices)
    weight, m = arrays.values(6, len(indices), shape[0]), arrays.place(np.full(dst.shape, 9), arrays.dtype)
    kernels.exact_spmm(indptr, indices, z, sums, grid, src_scale=arrays.values(5, csr.n_src), weight=weight)
    one = np.ascontiguousarray(grid[:, :, 0])
    inverse, out_of_all, dz_of_all, d_src_of_all = (arrays.values(11, n, *of) for n, of in (
        (csr.n_dst, shape[:1]), (csr.n_dst, shape), (csr.n_src, shape), (csr.n_src, shape[:1])))
    kernels.exact_attend(indptr, indices, z, src, dst, m, total, acc, one, grid, slope=0.2)
    kernels.exact_attend(indptr, indices, z, src, dst, m, inverse, out_of_all, one, grid, slope=0.2)
    ends = np.stack([dst, m, np.abs(dst), dst], -1)
    t_indptr, t_indices, _ = kernels.transpose(indptr, indices, csr.n_src)
    kernels.exact_attend_backward(t_indptr, t_indices, z, src, ends, g, dz, d_src, parts, grid, one, slope=0.2)
    kernels.exact_attend_backward(t_indptr, t_indices, z, src, ends, g, dz_of_all, d_src_of_all, parts.copy(), grid, one, slope=0.2)
    for of_all, sums_of in ((dz_of_all, dz), (d_src_of_all, d_src)):
        in_blocks = np.empty_like(of_all)
        kernels.exact_whole(sums_of, in_blocks)
        np.testing.assert_array_equal(of_all, in_blocks)
    of = np.full(flat.shape[1], 2.0**10), np.full(3, 1.5 * 2.0**10)
    product, out = kernels.exact_gemm_backward(flat, arrays.values(8, len(flat), 3), *of, 2.0**-30), arrays.values(9, len(flat), 3)
    kernels.gemm(flat, arrays.values(7, flat.shape[1], 3), out, fused=True)
    largest, size = kernels.exact_largest(flat), np.abs(flat)
    whole = arrays.values(10, *sums.shape[:1], *sums.shape[2:])
    kernels.exact_whole(sums, whole, np.linspace(0.5, 2, len(sums)))
    by = {"largest": None, "squares": 1 / largest**2, "sum": np.ldexp(1.5, [[30], [-15]]) * np.ones(flat.shape[1])}
    centred = {f"centred {name}": kernels.exact_centred(flat, largest / 3, 1 / largest, flat[::-1].copy(), name, by[name]) for name in by}
    functions = {name: kernels.exact_function(name, -size if name == "expm1_negative" else size)
                 for name in ("exp", "log", "expm1_negative")}
    return {"sums of edges": sums, "acc": acc, "total": total, "dz": dz, "d_src": d_src, "parts": parts.sum(0), "inverse": inverse,
            "attention": out_of_all, "product": product,
            "out": out, "largest": largest, "squares": kernels.exact_squares(flat, 1 / largest),
            **centred, "whole": whole, **functions}


@every_float
def test_exact_kernels_have_the_same_bits(dtype):
    for shape in ((1, 1), (3, 5), (2, 33)):
        check(exact, dtype, "hard", shape)


# ---- that nothing is left out

def test_every_compiled_kernel_has_a_case():
    """Once a setting is applied, the table of functions records calls, which are the kernels of that instruction set."""
    compiled = {name for name in dir(native.lib) if re.search(r"_(f32|f64)", name)}
    called = set()
    for isa in kernels.instruction_sets():
        for dtype in (np.float32, np.float64):
            for itype in (np.int32, np.int64):
                Setting(isa).put()
                arrays = Arrays(dtype, itype, None)
                spmm(arrays, "hard", (2, 3), "weight")
                edge_dot(arrays, "hard", (2, 3), "heads eid")
                extremum(arrays, "hard", 3, 1, "")
                attend(arrays, "hard", (2, 3), 0.2, True)
                rows(arrays, 3)
                activate(arrays, 3, "relu", "norm", P)
                product(arrays, 3)
                exact(arrays, "hard", (2, 3))
                used = {name: f for name, f in native._functions.items() if name != "name" and re.search(r"_(f32|f64)", name)}
                assert all(function is getattr(native.lib, f"{name}_{isa}") for name, function in used.items())
                called |= {f"{name}_{isa}" for name in used}
    runs = {name for name in compiled if name.rsplit("_", 1)[1] in kernels.instruction_sets()}
    assert called == runs and len(runs) == len(kernels.instruction_sets()) * (4 * 11 + 2 * 16)


def test_an_instruction_set_that_is_missing_is_refused():
    before = kernels.instruction_set()
    with pytest.raises(ConfigError, match=rf"'sse9' .*SARLITE_ISA.* {kernels.instruction_sets()[-1]}"):
        kernels.set_instruction_set("sse9")
    assert kernels.instruction_set() == before
    env = {**os.environ, "SARLITE_ISA": "sse9"}
    commands = ["train", "--data", "sbm:nodes=20"], ["info"]
    for module, *words in commands:
        done = subprocess.run([sys.executable, "-m", f"sarlite.{module}", *words], env=env, capture_output=True, text=True)
        said = "error: instruction set 'sse9' (SARLITE_ISA) is not one of portable"
        assert done.returncode == 2 and done.stderr.startswith(said) and done.stderr.count("\n") == 1, done.stderr

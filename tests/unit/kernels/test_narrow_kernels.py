"""Rows of bfloat16: how a value is rounded; kernels give the bits of the same values in float32 rows."""

import numpy as np
import pytest

from sarlite import kernels
from sarlite.errors import ShapeError
from tests.helpers.kernels.kernel_references import attend_operands, make_dropout, make_graph, normal

WIDTHS = [1, 2, 3, 5, 7, 8, 9, 16, 17, 33, 100, 128, 256, 300]
ISAS = kernels.instruction_sets()


@pytest.fixture(autouse=True)
def put_back():
    before = kernels.instruction_set()
    yield
    kernels.set_instruction_set(before)


def nearest_even(x):
    """Round to bfloat16 by its definition: to the nearer neighbour, in a tie to the one whose last bit is 0."""
    low = x.view(np.uint32) & np.uint32(0xFFFF0000)  # towards 0
    high = (low + np.uint32(0x10000)).view(np.float32).astype(np.float64)
    high = np.where(np.isinf(high), np.copysign(2.0**128, x.astype(np.float64)), high)  # the value after the largest finite one
    below, above = np.abs(x - low.view(np.float32).astype(np.float64)), np.abs(high - x)
    up = (above < below) | ((above == below) & (low >> 16 & 1 == 1))
    return np.where(up, (low >> 16) + 1, low >> 16).astype(np.uint16)


def test_a_value_is_rounded_to_nearest_even():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32)
    ties = (rng.integers(0, 1 << 16, 2000, dtype=np.uint64).astype(np.uint32) << 16) | np.uint32(0x8000)
    edge = np.array([0x00000001, 0x00007FFF, 0x00008000, 0x00008001, 0x007FFFFF, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF], np.uint32)
    x = np.concatenate([bits, ties, edge, edge | np.uint32(1 << 31)]).view(np.float32)
    x = x[np.isfinite(x)].reshape(-1, 1)
    np.testing.assert_array_equal(kernels.narrow(x), nearest_even(x))
    assert kernels.widen(kernels.narrow(np.full((1, 1), 3.4e38, np.float32)))[0, 0] == np.inf
    assert kernels.widen(kernels.narrow(np.full((1, 1), -np.inf, np.float32)))[0, 0] == -np.inf


def test_a_nan_stays_one_whatever_its_bits_are():
    x = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000], np.uint32).view(np.float32).reshape(-1, 1)
    assert np.isnan(kernels.widen(kernels.narrow(x))).all()


def test_rows_are_scaled_before_they_are_rounded():
    rng = np.random.default_rng(1)
    x, scale = normal(rng, np.float32, 9, 2, 7), normal(rng, np.float32, 9)
    np.testing.assert_array_equal(kernels.narrow(x, scale), nearest_even(x * scale[:, None, None]))


@pytest.mark.parametrize("n", [0, 1, 5, 4096, 4097, 9001])
@pytest.mark.parametrize("scaled", [False, True])
def test_rows_are_narrowed_in_their_own_memory(n, scaled):
    rng = np.random.default_rng(1)
    x, scale = normal(rng, np.float32, n, 3, 2), normal(rng, np.float32, n) if scaled else None
    expected = kernels.narrow(x, scale)
    narrowed = kernels.narrow(x, scale, overwrite=True)
    np.testing.assert_array_equal(narrowed, expected)
    assert not n or np.shares_memory(narrowed, x)


def test_rows_that_cannot_be_written_are_not_narrowed_in_place():
    x = np.zeros((3, 2), np.float32)
    x.flags.writeable = False
    with pytest.raises(ShapeError, match="x must be writeable"):
        kernels.narrow(x, overwrite=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["random", "star"])
def test_sums_have_the_bits_of_widened_rows(isa, kind):
    kernels.set_instruction_set(isa)
    graph, rng = make_graph(kind, np.int32), np.random.default_rng(2)
    for width in WIDTHS:
        for weighted in (False, True):
            x = kernels.narrow(normal(rng, np.float32, graph.n_src, width))
            options = {"weight": normal(rng, np.float32, graph.n_edges)} if weighted else {}
            actual, expected = (normal(np.random.default_rng(3), np.float32, graph.n_dst, width) for _ in range(2))
            kernels.spmm(graph.indptr, graph.indices, x, actual, **options)
            kernels.spmm(graph.indptr, graph.indices, kernels.widen(x), expected, **options)
            np.testing.assert_array_equal(actual, expected, err_msg=str(width))


@pytest.mark.parametrize("isa", ISAS)
def test_dot_products_have_the_bits_of_widened_rows(isa):
    kernels.set_instruction_set(isa)
    graph, rng = make_graph("random", np.int32), np.random.default_rng(4)
    for width in WIDTHS:
        g, x = (kernels.narrow(normal(rng, np.float32, n, width)) for n in (graph.n_dst, graph.n_src))
        actual, expected = np.zeros((2, graph.n_edges), np.float32)
        kernels.edge_dot(graph.indptr, graph.indices, g, x, actual)
        kernels.edge_dot(graph.indptr, graph.indices, kernels.widen(g), kernels.widen(x), expected)
        np.testing.assert_array_equal(actual, expected, err_msg=str(width))


def attention(graph, z, src, dst, g, dropout):
    """Return the state of the softmax, and the gradients."""
    acc, m, scale = (np.empty(shape, np.float32) for shape in ((*dst.shape, z.shape[2]), dst.shape, dst.shape))
    kernels.attend(graph.indptr, graph.indices, z, src, dst, m, scale, acc, slope=0.2, dropout=dropout, accumulate=False)
    kernels.attend_finish(m, scale, acc)
    ends = kernels.attend_ends(dst, m, scale, kernels.widen(g) if g.dtype == np.uint16 else g, acc)
    grads = [np.zeros(z.shape, np.float32), np.zeros_like(src), np.zeros_like(dst)]
    transpose = kernels.transpose(graph.indptr, graph.indices, graph.n_src)[:2]
    kernels.attend_backward(*transpose, z, src, ends, g, *grads, slope=0.2, dropout=dropout)
    return acc, *grads


@pytest.mark.sampled(17)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (8, 8), (4, 16), (2, 33), (2, 64), (1, 150)])
@pytest.mark.parametrize("dropped", [False, True])
def test_attention_has_the_bits_of_widened_rows(isa, shape, dropped):
    kernels.set_instruction_set(isa)
    graph = make_graph("random", np.int32)
    z, src, dst = attend_operands(graph, np.float32, *shape)
    z, g = kernels.narrow(z), kernels.narrow(normal(np.random.default_rng(5), np.float32, graph.n_dst, *shape))
    dropout = make_dropout(graph) if dropped else None
    narrow = attention(graph, z, src, dst, g, dropout)
    for actual, expected in zip(narrow, attention(graph, kernels.widen(z), src, dst, kernels.widen(g), dropout), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_infinite_values_are_found_beside_padding():
    """A product of 0 and infinity in an overlapping vector must not turn an infinite product into NaN."""
    graph = make_graph("random", np.int32)
    g, x = (kernels.narrow(np.full((n, 17), np.float32(v))) for n, v in ((graph.n_dst, np.inf), (graph.n_src, 2)))
    products = np.zeros(graph.n_edges, np.float32)
    kernels.edge_dot(graph.indptr, graph.indices, g, x, products)
    assert (products == np.inf).all()


def test_wrong_arguments_are_named():
    graph = make_graph("random", np.int64)
    x = np.zeros((graph.n_src, 3), np.uint16)
    with pytest.raises(ShapeError, match="indices .*int32 .*bfloat16; .*int64"):
        kernels.spmm(graph.indptr, graph.indices, x, np.zeros((graph.n_dst, 3), np.float32))
    graph = make_graph("random", np.int32)
    with pytest.raises(ShapeError, match="out must have dtype float32"):
        kernels.spmm(graph.indptr, graph.indices, x, np.zeros((graph.n_dst, 3), np.uint16))
    with pytest.raises(ShapeError, match="x must have dtype float32"):
        kernels.narrow(np.zeros((2, 2)))


@pytest.mark.parametrize("width", [1, 2, 3, 6])
def test_rows_are_copied(width):
    x = np.random.default_rng(6).integers(0, 1 << 16, (20, width)).astype(np.uint16)
    for rows in (np.array([3, 3, 0, 19]), slice(2, 9), np.empty(0, np.int64)):
        out = np.empty((len(x[rows]), width), np.uint16)
        kernels.copy_rows(x, rows, out)
        np.testing.assert_array_equal(out, x[rows])

"""Error bounds hold for every right evaluation in any order, and they are not so wide that nothing exceeds them."""

import numpy as np
import pytest

from sarlite.oracle.arithmetic import BoundArithmetic, FloatArithmetic
from sarlite.oracle.edge_structure import EdgeList, Index
from sarlite.oracle.expression import (
    constant,
    evaluate,
    exp,
    log,
    propagate,
    relu,
    scatter_max,
    sqrt,
    tanh,
    variable,
)
from sarlite.oracle.formats import format_of, rounded
from sarlite.oracle.gradient import gradient
from sarlite.oracle.reference import Reference

F = np.float32
EVALUATIONS = 50  # of each computation, in each order


def edges_of(n=60, n_edges=700, seed=0):
    """Return a random graph whose rows have 0 to about 40 in-edges."""
    rng = np.random.default_rng(seed)
    return EdgeList(rng.integers(0, n, n_edges), np.minimum(rng.geometric(0.06, n_edges), n) - 1, n, n)


# ---- correct evaluations: sums of messages by row, in an order drawn anew


def places(index, rng):
    """Return a random position of each entry in its row."""
    order = rng.permutation(len(index.rows))
    order = order[np.argsort(index.rows[order], kind="stable")]
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - index.indptr[:-1][index.rows[order]]
    return place


def sequential(messages, index, place):
    out = np.zeros((index.n, *messages.shape[1:]), messages.dtype)
    for p in range(place.max(initial=-1) + 1):
        now = place == p
        out[index.rows[now]] += messages[now]
    return out


def blocked(messages, index, place, block=4):
    n_blocks = place.max(initial=0) // block + 1
    parts = Index(index.rows * n_blocks + place // block, index.n * n_blocks)
    sums = sequential(messages, parts, place % block)
    return sequential(sums, Index(np.repeat(np.arange(index.n), n_blocks), index.n), np.tile(np.arange(n_blocks), index.n))


def pairwise(messages, index, place):
    while place.max(initial=0) > 0:
        first = place % 2 == 0
        width = place.max() + 1
        slot = np.full(index.n * (width + 1), -1)
        slot[index.rows * (width + 1) + place] = np.arange(len(place))
        partner = slot[index.rows[first] * (width + 1) + place[first] + 1]
        added = np.where((partner >= 0).reshape(-1, *[1] * (messages.ndim - 1)), messages[partner], messages.dtype.type(0))
        messages, place, index = messages[first] + added, place[first] // 2, Index(index.rows[first], index.n)
    return sequential(messages, index, place)


ORDERS = (sequential, pairwise, blocked)


def every_order(index, seed=1):
    """Yield a function (messages -> sums by row) for each order, EVALUATIONS times."""
    rng = np.random.default_rng(seed)
    for _ in range(EVALUATIONS):
        place = places(index, rng)
        for order in ORDERS:
            yield lambda messages, order=order, place=place: order(messages, index, place)


def online_attention(scores, values, index, rng):
    """Return (sum of exp(s - m) v, sum of exp(s - m), m), computed with a running maximum.

    Two parts of the entries are summed separately and joined at the end.
    """
    place, half = places(index, rng), rng.integers(0, 2, len(scores))
    states = []
    for part in (0, 1):
        m = np.full((index.n, scores.shape[1]), -np.inf, F)
        total, acc = np.zeros_like(m), np.zeros((index.n, *values.shape[1:]), F)
        for p in range(place.max() + 1):
            now = (place == p) & (half == part)
            i, s = index.rows[now], scores[now]
            top = np.maximum(m[i], s)
            old, new = np.exp(m[i] - top), np.exp(s - top)
            total[i], acc[i], m[i] = total[i] * old + new, acc[i] * old[..., None] + new[..., None] * values[now], top
        states.append((m, total, acc))
    top = np.maximum(states[0][0], states[1][0])
    scale = [np.where(m == -np.inf, F(0), np.exp(m - np.where(top == -np.inf, F(0), top))) for m, _, _ in states]
    total = sum(f * t for f, (_, t, _) in zip(scale, states))
    acc = sum(f[..., None] * a for f, (_, _, a) in zip(scale, states))
    return acc, total, top


def ratio(got, number):
    with np.errstate(all="ignore"):
        difference = np.abs(got - number.value)
        return np.where(difference == 0, 0.0, difference / number.error)


def spmm(reduce):
    edges = edges_of()
    reference = Reference("spmm", reduce=reduce, weighted=True)
    case = reference.case(edges, width=4)
    x, w, src, dst = case.arrays["x"], case.arrays["weight"][:, None], edges.src, edges.dst
    d_in, d_out = (np.maximum(d, 1).astype(F)[:, None] for d in (edges.in_degrees, edges.out_degrees))
    norm = F(1) / np.sqrt(d_out[src] * d_in[dst])
    number = reference.outputs(case, BoundArithmetic())["out"]
    scattered = Reference("scatter").case(edges, width=4)
    messages, of_scatter = scattered.arrays["messages"], Reference("scatter").outputs(scattered, BoundArithmetic())["out"]
    for add in every_order(edges.by_dst):
        if reduce == "sum":
            yield add(w * x[src]), number
            yield add(messages), of_scatter
        elif reduce == "mean":
            yield add(w * x[src]) / d_in, number
            yield add(w * (x[src] * (F(1) / d_in)[dst])), number
        else:
            yield add(norm * w * x[src]), number
            yield add(w * (x / np.sqrt(d_out))[src]) * (F(1) / np.sqrt(d_in)), number


def product():
    """Return A (X W) + b and (A X) W + b."""
    edges, rng = edges_of(), np.random.default_rng(3)
    arrays = {name: rng.standard_normal(shape).astype(F) for name, shape in (("x", (60, 9)), ("w", (9, 5)), ("b", (5,)))}
    v = {name: variable(name, array.shape) for name, array in arrays.items()}
    number = evaluate({"out": propagate(v["x"], edges.by_src, edges.by_dst) @ v["w"] + v["b"]}, arrays, BoundArithmetic())["out"]
    x, w, b = arrays.values()
    columns = Index(np.repeat(np.arange(60), 9), 60)
    for add in every_order(edges.by_dst):
        place = places(columns, rng)

        def dot(a, place=place):
            return sequential((a[:, :, None] * w).reshape(-1, 5), columns, place)

        yield add(dot(x)[edges.src]) + b, number
        yield dot(add(x[edges.src])) + b, number


def softmax():
    edges, rng = edges_of(), np.random.default_rng(4)
    reference = Reference("softmax")
    case = reference.case(edges, width=2)
    s = case.arrays["scores"] * F(10)
    case.arrays["scores"][:] = s
    number, dst = reference.outputs(case, BoundArithmetic())["out"], edges.dst
    for add in every_order(edges.by_dst):
        for shift in (s.max(), F(0)):
            e = np.exp(s - shift)
            total = add(e)
            yield e / total[dst], number
        yield np.exp(s - np.log(total + (total == 0))[dst]), number
    for _ in range(EVALUATIONS):
        _, total, top = online_attention(s, s[..., None], edges.by_dst, rng)
        yield np.exp(s - top[dst]) / total[dst], number
        yield np.exp(s - top[dst]) * (F(1) / (total + (total == 0)))[dst], number


def attention(what):
    """Return outputs and gradients of GAT's attention, with z summed online.

    Gradients are computed with both forms of the gradient of softmax.
    """
    edges, rng = edges_of(), np.random.default_rng(5)
    reference = Reference("attention", kind="gat", heads=2)
    case = reference.case(edges, width=3)
    z, el, er = (case.arrays[name] for name in ("z", "el", "er"))
    cotangents = reference.cotangents(case)
    number, src, dst, g = reference.outputs(case, BoundArithmetic())["out"], edges.src, edges.dst, cotangents["out"]
    numbers = reference.gradients(case, cotangents, BoundArithmetic())
    raw = el[src] + er[dst]
    s = np.where(raw > 0, raw, F(0.2) * raw)
    out_of = edges.by_src
    for _ in range(EVALUATIONS):
        with np.errstate(invalid="ignore"):
            acc, total, top = online_attention(s, z[src], edges.by_dst, rng)
            out = np.where(total[..., None] > 0, acc / np.where(total > 0, total, F(1))[..., None], F(0))
        if what == "out":
            yield out, number
            continue
        p = np.exp(s - top[dst]) / total[dst]
        dp = (g[dst] * z[src]).sum(2)
        into, from_ = places(edges.by_dst, rng), places(out_of, rng)
        for delta in (sequential(p * dp, edges.by_dst, into), (g * out).sum(2)):
            ds = p * (dp - delta[dst]) * np.where(raw > 0, F(1), F(0.2))
            yield sequential(p[..., None] * g[dst], out_of, from_), numbers["z"]
            yield pairwise(ds, out_of, from_), numbers["el"]
            yield blocked(ds, edges.by_dst, into), numbers["er"]


# Of each: its results, and the least that the median of error over bound may be, over all elements with an error.
COMPUTATIONS = {
    "sum": (lambda: spmm("sum"), 0.02), "mean": (lambda: spmm("mean"), 0.02), "sym": (lambda: spmm("sym"), 0.02),
    "product": (product, 0.006), "softmax": (softmax, 0.01),
    "attention": (lambda: attention("out"), 0.003), "attention gradient": (lambda: attention("vjp"), 0.002),
}


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_correct_evaluations_stay_within_the_bound(name):
    results, least = COMPUTATIONS[name]
    ratios = np.concatenate([ratio(got, number).ravel() for got, number in results()])
    median = np.median(ratios[ratios > 0])
    print(f"{name}: {len(ratios)} elements, error over bound at most {ratios.max():.2f}, median {median:.4f}")
    assert np.isfinite(ratios).all() and ratios.max() <= 1
    assert median > least


def sums_in(dtype):
    """Return sums of 64 to 300 terms whose partial sums are rounded to a dtype."""
    rng = np.random.default_rng(6)
    edges = EdgeList(np.arange(2000), np.sort(rng.integers(0, 10, 2000)), 2000, 10)
    case = Reference("spmm").case(edges, width=8)
    out = np.zeros((10, 8), F)
    for e in range(2000):
        out[edges.dst[e]] = rounded(out[edges.dst[e]] + case.arrays["x"][e], dtype)
    return case, out


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_in_a_lower_precision_exceed_the_bound_of_float32_and_not_their_own(dtype):
    case, out = sums_in(dtype)
    reference = Reference("spmm")
    assert np.median(ratio(out, reference.outputs(case, BoundArithmetic("float32"))["out"])) > 3
    within = ratio(out, reference.outputs(case, BoundArithmetic("float32", dtype))["out"])
    assert within.max() <= 1 and np.median(within) > 3e-4
    soft = Reference("softmax").case(case.edges, width=8)
    index, scores = case.edges.by_dst, soft.arrays["scores"]
    e = np.exp(scores)
    total = np.zeros((10, 8), F)
    for k in range(2000):
        total[index.rows[k]] = rounded(total[index.rows[k]] + e[k], dtype)
    for accumulate in ("float32", dtype):
        exceeds = ratio(e / total[index.rows], Reference("softmax").outputs(soft, BoundArithmetic("float32", accumulate))["out"]).max() > 1
        assert exceeds == (accumulate == "float32")
    stored = rounded(case.arrays["x"], dtype)
    case.arrays["x"][:] = stored
    number = reference.outputs(case, BoundArithmetic(dtype, "float32"))["out"]
    assert ratio(rounded(number.value, dtype), number).max() <= 1
    assert ratio(number.value + 3 * format_of(dtype).unit * number.magnitude, number).min() > 1


def test_sums_in_float32_exceed_the_bound_of_float64_and_those_in_float64_do_not():
    edges, reference = edges_of(), Reference("spmm", weighted=True)
    case = reference.case(edges, dtype="float64", width=4)
    number = reference.outputs(case, BoundArithmetic("float64"))["out"]
    messages = case.arrays["weight"][:, None] * case.arrays["x"][edges.src]
    place = places(edges.by_dst, np.random.default_rng(0))
    assert 0 < ratio(sequential(messages, edges.by_dst, place), number).max() <= 1
    assert ratio(sequential(messages.astype(F), edges.by_dst, place), number).max() > 1e6


def test_functions_have_bounds_that_perturbed_arguments_stay_within():
    """The argument is a rounded sum; each function is evaluated at both ends of the argument's bound."""
    rng = np.random.default_rng(7)
    a = (rng.standard_normal(500) * 3).astype(F)
    for name, f in {"exp": exp, "tanh": tanh, "relu": relu, "log": lambda x: log(x * x), "sqrt": lambda x: sqrt(x * x),
                    "divide": lambda x: 1.0 / x}.items():
        x = variable("x", a.shape)
        arrays = {"x": a}
        total = evaluate({"s": x + 1.0}, arrays, BoundArithmetic())["s"]
        number = evaluate({"f": f(x + 1.0)}, arrays, BoundArithmetic())["f"]
        z = variable("z", a.shape)
        for end in (-1, 0, 1):
            moved = total.value + end * 0.999 * total.error
            got = evaluate({"f": f(z)}, {"z": moved}, FloatArithmetic())["f"].value
            assert ratio(got, number).max() <= 1, name
        assert (number.error <= 1e-5 * np.maximum(np.abs(number.value), 1)).mean() > 0.9, name


def test_a_derivative_at_a_kink_that_rounding_decides_has_both_sides_in_its_bound():
    x, g = variable("x", (4,)), constant(np.full(4, 2.0))
    y = relu(x + np.array([1.0, 1.0, 1.0, -1e-9]))
    d = gradient({"y": y}, {"y": g}, {"x": x})
    number = evaluate(d, {"x": np.array([1, -1, -1 + 2**-24, 0], F)}, BoundArithmetic())["x"]
    np.testing.assert_array_equal(number.value, [2, 0, 2, 0])
    assert (number.error[[0, 3]] < 1e-5).all() and (number.error[[1, 2]] >= 2).all()


def test_a_winner_that_rounding_decides_has_every_choice_in_its_bound_and_an_exact_tie_goes_by_the_policy():
    index = Index(np.array([0, 0, 1, 1, 2, 2]), 3)
    x, w = variable("x", (6,)), variable("w", (6,))
    out = scatter_max(x * w, index)
    d = gradient({"out": out}, {"out": constant(np.ones(3))}, {"x": x})
    near = {"x": np.array([1, 1 + 2**-23, 5, 1, 3, 3], F), "w": np.ones(6, F)}
    number = evaluate(d, near, BoundArithmetic())["x"]
    np.testing.assert_array_equal(number.value, [0, 1, 1, 0, 1, 0])
    assert (number.error[[0, 1, 4, 5]] >= 1).all() and (number.error[[2, 3]] < 1e-6).all()
    exact = gradient({"out": scatter_max(x, index)}, {"out": constant(np.ones(3))}, {"x": x})
    number = evaluate(exact, near, BoundArithmetic())["x"]
    np.testing.assert_array_equal(number.value, [0, 1, 1, 0, 1, 0])
    assert number.error.max() < 1e-6


def test_possible_overflow_is_undecided_and_a_flushed_result_is_accepted():
    edges = EdgeList([0, 1, 2, 3, 4], [0, 0, 1, 2, 2], 5, 4)
    reference = Reference("spmm")
    case = reference.case(edges, width=1)
    case.arrays["x"][:, 0] = [3e38, 3e38, 1e-40, 1e-39, -1e-39]
    error = reference.outputs(case, BoundArithmetic())["out"].error[:, 0]
    assert error[0] == np.inf and error[3] == 0  # a row without edges is 0, exactly
    assert error[2] >= 1e-38
    x = variable("x", (2,))
    through = evaluate({"out": x * x * (1 / x)}, {"x": np.array([1e30, 1.0], F)}, BoundArithmetic())["out"]  # 1e30, but for 1e60 on the way
    assert through.error[0] == np.inf and through.error[1] < 1e-6
    case.arrays["x"][:, 0] = [np.nan, 1, np.inf, 0, 0]
    error = reference.outputs(case, BoundArithmetic())["out"].error[:, 0]
    np.testing.assert_array_equal(error, [np.inf, np.inf, 0, 0])

"""References against a second implementation in plain loops.

Gradients are compared with finite differences, and leaks of NaN and Inf are tested.
"""

import warnings

import numpy as np
import pytest

from sarlite.errors import ConfigError, ShapeError
from sarlite.oracle import loops
from sarlite.oracle.arithmetic import BoundArithmetic, FloatArithmetic
from sarlite.oracle.edge_structure import EdgeList, Index
from sarlite.oracle.exact_arithmetic import ExactArithmetic
from sarlite.oracle.expression import (
    barrier,
    concat,
    constant,
    edge_dot,
    elu,
    evaluate,
    exp,
    gather,
    leaky,
    log,
    propagate,
    scatter_max,
    scatter_min,
    scatter_sum,
    softmax,
    sqrt,
    stop_gradient,
    tanh,
    topological,
    undecided_if_masked,
    variable,
    where,
)
from sarlite.oracle.formats import rounded
from sarlite.oracle.gradient import VJPS, gradient
from sarlite.oracle.reference import Reference

LONG = FloatArithmetic(np.longdouble)
EDGES = EdgeList([0, 0, 1, 3, 3, 3, 4, 2, 5, 5], [0, 0, 1, 0, 1, 5, 5, 5, 3, 3], 6, 6)  # rows 2, 4: no in-edges
NONE = EdgeList([], [], 3, 3)
NO_ROWS = EdgeList([], [], 0, 0)
GAT, V2, DOT = ({"kind": kind, "masked": True, "coefficients": True, "heads": n} for kind, n in (("gat", 2), ("gatv2", 1), ("dot", 2)))
OPERATIONS = [
    *(("spmm", {"reduce": r, "weighted": w, "loops": r in ("sum", "sym", "max")}) for r in ("sum", "mean", "max", "min", "sym")
      for w in (False, True)),
    ("spmm", {"reduce": "sym", "degrees": "in"}),
    *(("spmm", {"reduce": r, "ties": t}) for r in ("max", "min") for t in ("lowest", "first", "all")),
    *(("scatter", {"reduce": r}) for r in ("sum", "mean", "max", "min")),
    ("scatter", {"reduce": "max", "ties": "all"}),
    ("gather", {}),
    *(("sddmm", {"op": op}) for op in ("dot", "add", "sub", "mul")),
    ("softmax", {}),
    ("softmax", {"dialect": "pyg"}),
    *(("attention", attributes) for attributes in (GAT, V2, DOT, {"kind": "gat"})),
]


def case_of(name, attributes, edges=EDGES, **options):
    reference = Reference(name, **attributes)
    case = reference.case(edges, **{"dtype": "float64", "width": 3, **options})
    return reference, case, reference.cotangents(case)


def near(got, expected):
    return np.all(np.abs(got - expected) <= 1e-17 * max(1, np.abs(expected).max(initial=0)))


@pytest.mark.parametrize("values", ["random", "integers"])
def test_the_loops_agree_in_values_and_gradients(values):
    """Integers from -3 to 3 have ties everywhere."""
    for name, attributes in OPERATIONS:
        for edges in (EDGES, NONE, NO_ROWS):
            reference, case, g = case_of(name, attributes, edges, values=values)
            for first, second in ((reference.outputs(case, LONG), loops.outputs(case)),
                                  (reference.gradients(case, g, LONG), loops.gradients(case, g))):
                assert first.keys() == second.keys()
                for key in first:
                    assert first[key].value.shape == second[key].shape and near(first[key].value, second[key]), (name, attributes, key)


def test_float64_and_bounded_values_are_those_of_longdouble_rounded():
    for name, attributes in OPERATIONS:
        reference, case, g = case_of(name, attributes)
        for f in (reference.outputs, lambda case, arithmetic, reference=reference, g=g: reference.gradients(case, g, arithmetic)):
            for arithmetic in (FloatArithmetic(), BoundArithmetic("float32"), BoundArithmetic("float64")):
                for key, exact in f(case, LONG).items():
                    got = f(case, arithmetic)[key]
                    assert np.abs(got.value - exact.value).max() <= 1e-15 * max(1, np.abs(exact.value).max()), (name, attributes, key)
                    assert got.value.shape == exact.value.shape == np.shape(got.error + got.value)


def differences_agree(out, inputs, values, bound=1e-9):
    """Assert that gradients equal central differences along one random direction for each input."""
    rng = np.random.default_rng(8)
    g = rng.standard_normal(out.shape)
    products = evaluate(gradient({"out": out}, {"out": constant(g)}, inputs), values, LONG)
    for name, product in products.items():
        direction, step = rng.standard_normal(inputs[name].shape), np.longdouble(1e-6)

        def along(t, name=name, direction=direction):
            return (evaluate({"out": out}, {**values, name: values[name] + t * direction}, LONG)["out"].value * g).sum()

        expected = (along(step) - along(-step)) / (2 * step)
        assert abs((product.value * direction).sum() - expected) <= bound * max(1, abs(expected)), name


def everything(v):
    """Return an expression with every primitive that has a gradient."""
    j, i = Index(np.array([0, 1, 2, 3, 3, 0]), 4), Index(np.array([0, 0, 1, 1, 1, 3]), 4)
    x, w, a = v["x"], v["w"], v["a"]  # (4, 3), (3, 2), (6, 2)
    z = leaky(tanh(x) @ w, 0.2) / (1.0 + exp(-x).sum(1, keepdims=True))
    scores = gather(z, j) * a
    p = undecided_if_masked(softmax(scores, i), scores, i)
    y = concat([z, elu(z - 0.1)], axis=1).reshape(4, 2, 2)
    mixed = propagate(y, j, i, p) - propagate(y, j, i)
    s = edge_dot(y, mixed, j, i, heads=1) + scatter_max(s_of(y, j), i).sum(0) * where(np.arange(12).reshape(6, 2) % 3 > 0, barrier(a))
    rest = scatter_min(s, i, rank=j.rows) + scatter_max(s, i, "all") + scatter_sum(s, i)
    rest = rest * 2.0 - x.T.T.slice(1, 3, axis=1).mean(0)
    return rest / sqrt(1.0 + z * z) + log(2.0 + (a * a).sum(0)) + stop_gradient(z) * 0.0


def s_of(y, index):
    return gather(y.sum(2), index)


def test_gradients_of_every_primitive_are_those_of_finite_differences():
    rng = np.random.default_rng(9)
    values = {name: rng.standard_normal(shape) for name, shape in (("x", (4, 3)), ("w", (3, 2)), ("a", (6, 2)))}
    inputs = {name: variable(name, value.shape) for name, value in values.items()}
    out = everything(inputs)
    used = {expr.op for expr in topological([out])}
    assert used >= VJPS.keys() - {"broadcast"} and used - VJPS.keys() == {"input", "constant", "stop_gradient"}
    differences_agree(out, inputs, values)
    bounds = evaluate(gradient({"out": out}, {"out": constant(np.ones(out.shape))}, inputs), values, BoundArithmetic("float64"))
    assert all((number.error <= 1e-9).all() for number in bounds.values())


def test_gradients_of_products_by_edges_have_gradients():
    j, i = Index(np.array([0, 1, 2, 2]), 3), Index(np.array([1, 1, 0, 1]), 2)
    values = {"x": np.arange(12.0).reshape(3, 2, 2) - 5.5, "w": np.arange(8.0).reshape(4, 2) - 3.3}
    inputs = {name: variable(name, value.shape) for name, value in values.items()}
    out = propagate(inputs["x"], j, i, inputs["w"])
    first = gradient({"out": out}, {"out": out * out}, inputs)
    for expr in first.values():
        differences_agree(expr, inputs, values, 1e-7)


def test_unused_inputs_and_stopped_gradients_have_gradient_0():
    x, y = variable("x", (2,)), variable("y", (3,))
    d = evaluate(gradient({"out": stop_gradient(x) * 3.0}, {"out": constant(np.ones(2))}, {"x": x, "y": y}), {}, FloatArithmetic())
    assert {name: number.value.tolist() for name, number in d.items()} == {"x": [0, 0], "y": [0, 0, 0]}


def test_repeated_values_are_summed_over_where_shapes_were_broadcast():
    values = {"a": np.array([1.0, 2.0]), "b": np.array([[3.0], [4.0], [5.0]]), "c": np.float64(2.0)}
    inputs = {name: variable(name, value.shape) for name, value in values.items()}
    out = inputs["a"] * inputs["b"] / inputs["c"] - inputs["c"]
    assert out.shape == (3, 2)
    differences_agree(out, inputs, values)


TIED = EdgeList([2, 0, 1, 0], [0, 0, 0, 1], 3, 2)  # row 0 has all sources, lowest not first


def test_ties_go_to_the_lowest_source_or_the_first_edge_or_are_shared():
    expected = {"lowest": [1, 0, 0], "first": [0, 0, 1], "all": [1 / 3, 1 / 3, 1 / 3]}
    for reduce in ("max", "min"):
        for ties, shares in expected.items():
            reference, case, _ = case_of("spmm", {"reduce": reduce, "ties": ties}, TIED, width=1)
            case.arrays["x"][:] = 7.0
            g = {"out": np.array([[1.0], [10.0]])}
            d = reference.gradients(case, g, LONG)["x"].value[:, 0]
            np.testing.assert_allclose(d.astype(float), np.array(shares) + [10, 0, 0], rtol=1e-15)


BAD = pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])


@BAD
def test_only_rows_that_edges_read_spread_nan_and_inf(bad):
    edges = EdgeList([0, 1, 1], [0, 0, 1], 3, 3)  # source 2 is read by none, row 2 reads none
    arithmetics = (FloatArithmetic(), LONG, BoundArithmetic("float32"))
    for name, attributes in OPERATIONS:
        if attributes.get("loops") or name in ("scatter", "softmax"):
            continue
        reference, case, g = case_of(name, attributes, edges)
        by_rows = {"x": 2, "y": 2, "z": 2, "el": 2, "er": 2, "z_src": 2, "z_dst": 2, "q": 2, "k": 2, "v": 2}
        clean = reference.outputs(case, LONG), reference.gradients(case, g, LONG)
        for key in case.arrays.keys() & by_rows.keys():
            case.arrays[key][2] = bad
        if "out" in g and reference.outputs_by["out"] == "dst":
            g["out"][2] = bad
        for arithmetic in arithmetics:
            for got, exact in zip((reference.outputs(case, arithmetic), reference.gradients(case, g, arithmetic)), clean):
                for key, number in got.items():
                    assert np.allclose(number.value.astype(float), exact[key].value.astype(float), rtol=1e-14), (name, attributes, key)
                    assert np.isfinite(number.error).all(), (name, attributes, key)
    reference, case, _ = case_of("spmm", {}, edges)
    case.arrays["x"][1, 0] = bad
    np.testing.assert_array_equal(reference.outputs(case, FloatArithmetic())["out"].value[:, 0] == 0, [False, False, True])
    assert not np.isfinite(reference.outputs(case, FloatArithmetic())["out"].value[:2, 0]).any()


def test_masked_elements_are_0_even_for_infinite_numbers():
    x, g, index = variable("x", (4,)), variable("g", (4,)), Index(np.array([0, 0, 1, 1]), 2)
    values = {"x": np.array([-1.0, 2.0, 3.0, -4.0]), "g": np.array([np.inf, 1.0, np.inf, np.nan])}
    masked = where([False, True, True, False], g)
    result = gradient({"y": leaky(x, 0.0)}, {"y": g}, {"x": x})["x"]
    won = gradient({"y": scatter_max(x, index)}, {"y": constant(np.array([np.inf, 1.0]))}, {"x": x})["x"]
    for arithmetic in (FloatArithmetic(), BoundArithmetic("float32")):
        got = evaluate({"masked": masked, "kept": result, "won": won}, values, arithmetic)
        expected = {"masked": [0, 1, np.inf, 0], "kept": [0, 1, np.inf, 0], "won": [0, np.inf, 1, 0]}
        for key, number in got.items():
            np.testing.assert_array_equal(number.value, expected[key])
            assert (np.broadcast_to(number.error, 4)[number.value == 0] == 0).all()


def test_a_softmax_of_minus_infinity_alone_is_0():
    edges = EdgeList(np.zeros(6), [0, 0, 0, 1, 1, 2], 1, 4)
    reference, case, _ = case_of("softmax", {}, edges, width=1)
    case.arrays["scores"][:, 0] = [1e4, -np.inf, -1e4, -np.inf, -np.inf, 1e4]
    for arithmetic in (LONG, BoundArithmetic("float32")):
        out = reference.outputs(case, arithmetic)["out"]
        np.testing.assert_array_equal(out.value[:, 0].astype(float), [1, 0, 0, 0, 0, 1])
        d = reference.gradients(case, {"out": np.arange(6.0)[:, None]}, arithmetic)["scores"]
        np.testing.assert_array_equal(d.value[:, 0].astype(float), np.zeros(6))
    assert (out.error[[1, 3, 4]] == 0).all() and (out.error < 3e-3).all()
    np.testing.assert_array_equal(loops.outputs(case)["out"][:, 0].astype(float), [1, 0, 0, 0, 0, 1])


def test_cases_have_their_dtype_and_are_reproducible():
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        reference, case, g = case_of("attention", GAT, dtype=dtype, seed=5)
        again = reference.case(EDGES, dtype=dtype, width=3, seed=5)
        for key, value in {**case.arrays, **g}.items():
            assert value.dtype == {"bfloat16": "float32"}.get(dtype, dtype)
            np.testing.assert_array_equal(rounded(value.astype(np.float64), dtype), value)
            assert key in g or np.array_equal(value, again.arrays[key])
        assert set(np.unique(case.arrays["mask"])) == {0, 2}
        assert reference.differentiable(case) == ["z", "el", "er"]
    assert np.array_equal(rounded(np.array([1 + 2**-8, 1 + 3 * 2**-8, np.inf]), "bfloat16"), [1, 1 + 2**-6, np.inf])  # ties to even


def test_unknown_arguments_are_refused_by_name():
    for make, message in ((lambda: Reference("spmn"), "reference: 'spmn' is not one of"),
                       (lambda: Reference("spmm", reduce="prod"), "reduce: 'prod'"),
                       (lambda: Reference("spmm", slope=1), r"spmm has no attribute 'slope', but reduce \(sum, mean"),
                       (lambda: Reference("spmm", dialect="jax"), "dialect: 'jax'"),
                       (lambda: BoundArithmetic("float8"), "dtype: 'float8'")):
        with pytest.raises(ConfigError, match=message):
            make()
    with pytest.raises(ConfigError, match="3 source rows, and 2 destination rows"):
        case_of("spmm", {"loops": True}, TIED)
    with pytest.raises(ShapeError, match=r"\(2, 3\) and \(2, 3\)"):
        variable("x", (2, 3)) @ variable("y", (2, 3))
    with pytest.raises(ShapeError, match="weight of shape"):
        propagate(variable("x", (3, 2)), EDGES.by_src, EDGES.by_dst, variable("w", (10, 5)))


@pytest.mark.parametrize("name, attributes", [("spmm", {"reduce": "mean", "weighted": True}), ("spmm", {"reduce": "max"}),
                                              ("attention", GAT), ("gcn", {}), ("sage-training", {})], ids=str)
def test_nan_and_inf_appear_in_results_without_warnings(name, attributes):
    reference = Reference(name, **attributes)
    case = reference.case(EDGES, dtype="float32", width=3)
    for array in case.arrays.values():
        if array.dtype.kind == "f" and array.size > 2:
            array.flat[:3] = np.nan, np.inf, np.finfo(array.dtype).max
    g = reference.cotangents(case) if reference.definition.has_vjp else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for arithmetic in (FloatArithmetic(), BoundArithmetic("float32"), ExactArithmetic("float32")):
            assert any(not np.isfinite(number.value).all() for number in reference.outputs(case, arithmetic).values())
            if g is not None:
                reference.gradients(case, g, arithmetic)

"""Probes: results proved exact are exact in every order.

Differences name rows and edges, and failing cases are made small.
"""

from dataclasses import replace

import numpy as np
import pytest

from sarlite.oracle import corpus, cut, locate, probe, shrink, values
from sarlite.oracle.diagnose import cause_of
from sarlite.oracle.difference import Difference
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.exact_arithmetic import ExactArithmetic
from sarlite.oracle.plain import BoundedArray, FloatArithmetic
from sarlite.oracle.reference import Reference

GRAPHS = {name: corpus.entry(name).edges for name in ("powers-100-2-32", "matched-85-1-4-16-64", "uniform-100-1000", "isolated-33-odd")}


def spmm(case, order=None, src=None, dst=None, x=None, degrees=None, weight=None, dtype=None):
    """Return an spmm that adds edges one at a time in a given order, in the case's dtype."""
    order = np.arange(case.n_edges) if order is None else order
    src, dst = case.edges.src if src is None else src, case.edges.dst if dst is None else dst
    x = case.arrays["x"] if x is None else x
    weight = case.arrays.get("weight") if weight is None else weight
    messages = x[src[order]] if weight is None else x[src[order]] * weight[order, None]
    reduce, scale = case.reduce, 1
    out = np.zeros((case.n_dst, x.shape[1]), x.dtype)
    if reduce in ("max", "min"):
        out[:] = -np.inf if reduce == "max" else np.inf
        (np.maximum if reduce == "max" else np.minimum).at(out, dst[order], messages)
        return np.where((case.edges.in_degrees == 0)[:, None], 0, out)
    if reduce == "sym":
        messages = messages / np.sqrt(np.maximum(case.edges.out_degrees, 1).astype(x.dtype))[src[order], None]
        scale = np.sqrt(np.maximum(case.edges.in_degrees, 1).astype(x.dtype))[:, None]
    elif reduce == "mean":
        scale = np.maximum(case.edges.in_degrees if degrees is None else degrees, 1).astype(x.dtype)[:, None]
    np.add.at(out, dst[order], messages)
    return out / scale


def vjp(case, g, reverse=True):
    """Return the gradient of x of an unweighted sum."""
    out = np.zeros_like(case.arrays["x"])
    np.add.at(out, case.edges.src if reverse else case.edges.dst, g[case.edges.dst if reverse else case.edges.src])
    return out


def probed(graph="powers-100-2-32", width=17, dtype="float32", **attributes):
    reference = Reference("spmm", **attributes)
    return reference, probe.cases(reference, GRAPHS[graph], dtype=dtype, width=width)


def explained(got, reference, case, output="out", g=None):
    expected = probe.numbers(reference, case)["out"].value if g is None else probe.gradient_numbers(reference, case, {"out": g})["x"].value
    return cause_of(Difference(reference, case, output, BoundedArray(expected), got, None if g is None else {"out": g}))


# ---- exact, whatever the order


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("attributes", [{"reduce": "sum"}, {"reduce": "mean"}, {"reduce": "sym"}, {"reduce": "max"},
                                        {"reduce": "sum", "weighted": True}], ids=lambda a: "-".join(map(str, a.values())))
def test_correct_sums_in_any_order_are_equal(attributes, dtype):
    reference, compared = Reference("spmm", **attributes), 0
    for entry in corpus.corpus("ci")[::3]:
        try:
            cases = probe.cases(reference, entry, dtype=dtype)
        except probe.NotExact:
            continue
        for case in cases:
            order = np.random.default_rng(entry.seed).permutation(case.n_edges)
            expected = probe.numbers(reference, case)["out"].value
            with np.errstate(invalid="ignore"):
                np.testing.assert_array_equal(spmm(case, order), expected, str(case.name))
            compared += 1
    assert compared >= {"mean": 30, "sym": 20}.get(attributes["reduce"], 50)


def attention(case, dtype):
    """Return GAT's attention in a dtype: exp after subtraction of the maximum, sums in a random order, division last."""
    z, el, er = (case.arrays[name].astype(dtype) for name in ("z", "el", "er"))
    e, scores = case.edges, el[case.edges.src] + er[case.edges.dst]
    scores = np.where(scores > 0, scores, dtype(case.slope) * scores)
    top = np.full((e.n_dst, el.shape[1]), -np.inf, dtype)
    np.maximum.at(top, e.dst, scores)
    p = np.exp(scores - top[e.dst])
    total, out = np.zeros_like(top), np.zeros((e.n_dst, *z.shape[1:]), dtype)
    order = np.random.default_rng(0).permutation(e.n_edges)
    np.add.at(total, e.dst[order], p[order])
    np.add.at(out, e.dst[order], p[order, :, None] * z[e.src[order]])
    return out / np.where(total == 0, 1, total)[..., None]


def test_correct_attention_is_equal():
    reference = Reference("attention", kind="gat")
    names = ("powers-100-2-32", "isolated-33-odd", "uniform-100-1000")
    cases = [case for name in names for case in probe.cases(reference, GRAPHS[name], width=3)]
    assert {case.name.split("/")[1] for case in cases} == {"equal", "saturated"}
    for case in cases:
        np.testing.assert_array_equal(attention(case, np.float32), probe.numbers(reference, case)["out"].value)


def test_gradients_are_exact_and_those_that_are_not_are_left_out():
    reference, (case,) = probed(weighted=True)
    g = probe.cotangents(reference, case)
    gradients = {name: number.value for name, number in probe.gradient_numbers(reference, case, g).items()}
    x, w, e = (a.astype(np.float64) for a in (case.arrays["x"], case.arrays["weight"], g["out"]))
    np.testing.assert_array_equal(gradients["weight"], (e[case.edges.dst] * x[case.edges.src]).sum(1))
    dx = np.zeros_like(x)
    np.add.at(dx, case.edges.src, w[:, None] * e[case.edges.dst])
    np.testing.assert_array_equal(gradients["x"], dx)
    sums = [np.abs(e[case.edges.dst] * x[case.edges.src]).sum(1).max(), np.abs(dx).max()]
    assert max(sums) < 2**24
    reference = Reference("attention", kind="gat", slope=0.2)
    case = next(c for c in probe.cases(reference, GRAPHS["uniform-100-1000"], width=3) if "saturated" in c.name)
    assert set(probe.gradient_numbers(reference, case, probe.cotangents(reference, case))) == {"z", "el", "er"}


def test_graphs_without_exact_inputs_are_refused():
    for reduce in ("mean", "sym"):
        with pytest.raises(probe.NotExact, match="graph/codes/0: out .*float32 .*row 0, .*7 in-edges"):
            probed("uniform-100-1000", reduce=reduce)
    with pytest.raises(probe.NotExact, match="bfloat16"):
        probe.cases(Reference("spmm"), corpus.entry("in-star-1024"), dtype="bfloat16")
    assert probed("uniform-100-1000", dtype="bfloat16")[1]
    skipped = []
    cases = probe.cases(Reference("softmax"), corpus.entry("in-star-3").edges, width=2, skipped=skipped)
    assert [case.name for case in cases] == ["graph/saturated/0"] and "row 0" in skipped[0] and len(skipped) == 1


def test_columns_carry_the_digits_of_row_numbers():
    code = values.codes((5000, 9), 4, seed=0)
    assert values.code_columns(5000, 4) == 5 and (code[:, 0] == 1).all()
    np.testing.assert_array_equal(code[:, 1:5] @ 16 ** np.arange(4), np.arange(5000))
    np.testing.assert_array_equal(code[:, 1:5] + code[:, 5:9], 15)
    np.testing.assert_array_equal(np.hstack([values.codes((5000, 3), 4, 0, start) for start in (0, 3, 6)]), code)


def test_the_proof_fails_where_a_sum_grows_too_long():
    edges = EdgeList(np.arange(2), np.zeros(2), 2, 1)
    reference = Reference("spmm")
    for size, proved in ((2.0**23, True), (2.0**23 + 1, False)):
        case = reference.case(edges, values="integers", width=2)
        case.arrays["x"][:] = np.float32([[size, 1], [-size, 1]])
        error = reference.outputs(case, ExactArithmetic("float32"))["out"].error
        assert error.tolist() == [[0.0 if proved else np.inf, 0.0]]


def test_an_index_of_the_type_of_rows_overflows_on_a_small_graph():
    def through_messages(case):
        """Return messages by edge and column, addressed by a flat index of the row numbers' dtype."""
        width, messages = case.x.shape[1], case.x[case.src.astype(int)].ravel()
        with np.errstate(over="ignore"):
            flat = np.arange(case.n_edges, dtype=case.dst.dtype)[:, None] * case.dst.dtype.type(width)
            flat = flat + np.arange(width, dtype=case.dst.dtype)
        out = np.zeros((case.n_dst, width), np.float32)
        np.add.at(out, case.dst.astype(int), messages[flat])
        return out

    entry = corpus.entry("uniform-100-130")
    for index_dtype, right in (("int64", True), ("int16", False)):
        (case,) = probe.cases(Reference("spmm"), entry, index_dtype=index_dtype)
        assert entry.fits(index_dtype)
        assert np.array_equal(through_messages(case), probe.numbers(Reference("spmm"), case)["out"].value) is right


@pytest.mark.parametrize("name, attributes", [("spmm", {"reduce": "mean", "weighted": True}), ("attention", {"kind": "gat"}),
                                              ("attention", {"kind": "gatv2", "coefficients": True}), ("attention", {"kind": "dot"}),
                                              ("gat", {}), ("sage-model", {})], ids=str)
def test_float32_gives_proved_elements_exactly_in_any_order(name, attributes):
    """The formula is evaluated in float32 on permuted edges and compared by element.

    Graphs without an exact probe are covered, too.
    """
    reference, decided = Reference(name, **attributes), 0
    for graph in ("isolated-6-odd", "doubled-17-64", "matched-8-0-3", "powers-16-2-4"):
        edges = corpus.entry(graph).edges
        cases = [reference.case(edges, values="integers", width=3)]
        try:
            cases += probe.cases(reference, edges, width=3)
        except probe.NotExact:
            pass
        for case in cases:
            order = np.random.default_rng(0).permutation(case.n_edges)
            other, g = cut.on_edges(reference, case, order), reference.cotangents(case, "integers")
            by_edge = {key for key, rows in reference.outputs_by.items() if rows == "edge"}
            other_g = {key: value[order] if key in by_edge else value for key, value in g.items()}
            pairs = [(reference.outputs(case, ExactArithmetic("float32")), reference.outputs(other, FloatArithmetic(np.float32))),
                     (reference.gradients(case, g, ExactArithmetic("float32")),
                      reference.gradients(other, other_g, FloatArithmetic(np.float32)))]
            by_edge |= {key for key, rows in reference.arrays_by.items() if rows == "edge"}
            for proved, computed in pairs:
                for key, number in proved.items():
                    got = computed[key].value[np.argsort(order)] if key in by_edge else computed[key].value
                    exact = np.broadcast_to(number.error == 0, got.shape)
                    np.testing.assert_array_equal(got[exact], number.value[exact], f"{graph}, {key}")
                    decided += exact.sum()
    assert decided >= 24


# ---- what a difference says


def one_edge(case, kind):
    """Return a sum with one wrong edge, number 40: lost, doubled, sent to another row, or reading another row."""
    order, src, dst = np.arange(case.n_edges), case.edges.src.copy(), case.edges.dst.copy()
    if kind == "lost":
        return spmm(case, np.delete(order, 40))
    if kind == "doubled":
        return spmm(case, np.append(order, 40))
    if kind == "misrouted":
        dst[40] = (dst[40] + 7) % case.n_dst
    else:
        src[40] = (src[40] + 1) % case.n_src
    return spmm(case, order, src, dst)


TOLD = {"lost": "edge {e} ({u} -> {v}) is lost", "doubled": "edge {e} ({u} -> {v}) is counted twice",
        "misrouted": "edge {e} ({u} -> {v}) is misrouted: counted for row {w}",
        "misread": "edge {e} ({u} -> {v}) reads row {r} in place of {u}"}


@pytest.mark.parametrize("kind", TOLD)
@pytest.mark.parametrize("attributes", [{"reduce": "sum"}, {"reduce": "mean"}, {"reduce": "sum", "weighted": True}],
                         ids=lambda a: "-".join(map(str, a.values())))
def test_the_difference_names_one_wrong_edge(attributes, kind):
    reference, (case,) = probed(**attributes)
    cause, edges = explained(one_edge(case, kind), reference, case)
    u, v = int(case.edges.src[40]), int(case.edges.dst[40])
    assert cause == TOLD[kind].format(e=40, u=u, v=v, w=(v + 7) % case.n_dst, r=(u + 1) % case.n_src)
    assert edges == ((u, v),)


def test_few_columns_tell_rows_apart_together():
    reference, cases = probed(width=1)
    assert len(cases) > 1
    wrong = [Difference(reference, case, "out", probe.numbers(reference, case)["out"], one_edge(case, "lost")) for case in cases]
    u, v = int(cases[0].edges.src[40]), int(cases[0].edges.dst[40])
    for k, one in enumerate(wrong):
        if one.differs.any():
            others = wrong[:k] + wrong[k + 1 :]
            cause, _ = cause_of(replace(one, siblings=lambda others=others: others))
            assert cause == f"edge 40 ({u} -> {v}) is lost"


def test_a_lost_edge_that_the_mean_no_longer_counts():
    reference, (case,) = probed(reduce="mean")
    v = int(np.flatnonzero(case.edges.in_degrees == 8)[0])
    e = int(np.flatnonzero(case.edges.dst == v)[3])
    edge_index = np.delete(np.arange(case.n_edges), e)
    got = spmm(case, edge_index, degrees=case.edges.select(edge_index).in_degrees)
    assert explained(got, reference, case)[0] == f"edge {e} ({case.edges.src[e]} -> {v}) is lost"
    edge_sum, expected = locate.edge_sum_of(case, "out", [case.arrays["x"]]), probe.numbers(reference, case)["out"].value
    (change,) = locate.find_changes(edge_sum, expected, got.astype(np.float64))
    assert (change.row, change.edge, change.times) == (v, e, -1)


def test_a_maximum_that_misses_an_edge_or_has_one_more():
    reference, (case,) = probed("uniform-100-1000", reduce="max")
    expected = probe.numbers(reference, case)["out"].value
    e = next(e for e in range(case.n_edges) if (spmm(case, np.delete(np.arange(case.n_edges), e)) != expected).any())
    u, v = int(case.edges.src[e]), int(case.edges.dst[e])
    assert explained(spmm(case, np.delete(np.arange(case.n_edges), e)), reference, case) == (f"edge {e} ({u} -> {v}) is lost", ((u, v),))
    more = expected.copy()
    more[5] = np.maximum(more[5], case.arrays["x"][99])
    assert explained(more, reference, case) == ("row 5 counts row 99, from which it has no edge", ((99, 5),))


def _isolated(case, value):
    got = spmm(case)
    got[case.edges.in_degrees == 0] = value
    return got


WHOLE = {
    "sum where mean": ({"reduce": "mean"}, lambda c: spmm(c, degrees=np.ones(c.n_dst)), "reduce is 'sum', not 'mean'"),
    "transpose": ({}, lambda c: spmm(c, src=c.edges.dst, dst=c.edges.src), "edges go the wrong way"),
    "weights ignored": ({"weighted": True}, lambda c: spmm(c, weight=np.ones(c.n_edges, "f4")), "weight is ignored"),
    "weights by place": ({"weighted": True}, lambda c: spmm(c, weight=c.arrays["weight"][c.edges.eid]), "weight is taken by place in CSR"),
    "zero": ({}, lambda c: 0 * spmm(c), "all are 0"),
    "twice": ({}, lambda c: 2 * spmm(c), "all are 2 times"),
    "off by one": ({}, lambda c: np.roll(spmm(c), 1, 0), "rows are off by one"),
    "shuffled": ({}, lambda c: spmm(c)[np.random.default_rng(0).permutation(c.n_dst)], "rows are permuted"),
    "stale row": ({}, lambda c: np.concatenate([spmm(c)[:50] * 0, spmm(c)[50:]]), "rows are 0: 50 rows, the first is 0, the last 49"),
    "row of another": ({}, lambda c: spmm(c)[[*range(60), 3, *range(61, 100)]], "1 rows, as row 60 what row 3 should"),
    "padding": ({}, lambda c: np.hstack([spmm(c)[:, :16], spmm(c)[:, :1]]), "column 16 of 17 is wrong"),
    "overflow": ({}, lambda c: np.where(np.arange(1700).reshape(100, 17) < 256, spmm(c), 7), "elements from number 2^8 on are wrong"),
    "right": ({}, spmm, None),
}


def test_a_mean_that_divides_by_one_too_many_is_no_wrong_edge():
    reference = Reference("spmm", reduce="mean")
    (case,) = probe.cases(reference, corpus.entry("loops-17").edges, width=17)
    assert explained(spmm(case, degrees=case.edges.in_degrees + 1), reference, case)[0] == "a mean is divided by the in-degree and one"


@pytest.mark.parametrize("name", WHOLE)
def test_different_bugs_get_different_causes(name):
    attributes, wrong, cause = WHOLE[name]
    reference, (case,) = probed(**attributes)
    text, _ = explained(wrong(case), reference, case)
    assert text == "nothing is wrong" if cause is None else cause in text, text


@pytest.mark.parametrize("kind, cause", [("isolated", "-inf in 16 rows, the first is 1: none of them has an in-edge"),
                                           ("unreachable", "leak from rows that no edge leaves")])
def test_nan_and_inf_are_explained(kind, cause):
    reference = Reference("spmm", reduce="max" if kind == "isolated" else "sum")
    (case,) = probe.cases(reference, GRAPHS["isolated-33-odd"])
    if kind == "isolated":
        got = _isolated(case, -np.inf)
    else:
        case = values.special(reference, case, "unreachable")
        dense = np.zeros((33, 33), np.float32)
        np.add.at(dense, (case.edges.dst, case.edges.src), 1)
        with np.errstate(invalid="ignore"):
            got = dense @ case.arrays["x"]
    assert cause in explained(got, reference, case)[0]


def test_different_bugs_of_gradients_get_different_causes():
    reference, (case,) = probed("uniform-100-1000")
    g = probe.cotangents(reference, case)
    probe.gradient_numbers(reference, case, g)

    def cause(got):
        expected = probe.gradient_numbers(reference, case, g)["x"].value
        return cause_of(Difference(reference, case, "dx", BoundedArray(expected), got, g))

    u, v = int(case.edges.src[40]), int(case.edges.dst[40])
    lost = vjp(case, g["out"])
    lost[u] -= g["out"][v]
    assert cause(lost) == (f"edge 40 ({u} -> {v}) is lost, in the gradient", ((u, v),))
    assert cause(vjp(case, np.ones_like(g["out"])))[0] == "the gradient that comes in is taken to be ones"
    assert cause(vjp(case, g["out"], reverse=False))[0].startswith("edges go the wrong way")
    assert cause(0 * lost)[0] == "all are 0"


def test_tied_gradients_that_are_paid_twice_are_explained():
    reference, (case,) = probed("uniform-100-1000", reduce="max")
    g = probe.cotangents(reference, case)
    e, x = case.edges, case.arrays["x"]
    got = np.zeros_like(x)
    np.add.at(got, e.src, np.where(x[e.src] == spmm(case)[e.dst], g["out"][e.dst], 0))
    expected = probe.gradient_numbers(reference, case, g)["x"].value
    cause, _ = cause_of(Difference(reference, case, "dx", BoundedArray(expected), got, g))
    assert cause == "entries that tie for the extremum get the whole gradient each"


def test_an_edge_that_a_layer_misses_is_named():
    reference = Reference("sage")
    (case,) = probe.cases(reference, GRAPHS["powers-100-2-32"], width=17)
    lost = replace(case, edges=case.edges.select(np.delete(np.arange(case.n_edges), 40)))
    got = np.asarray(reference.outputs(lost, FloatArithmetic())["out"].value, np.float32)
    u, v = int(case.edges.src[40]), int(case.edges.dst[40])
    assert explained(got, reference, case) == (f"edge 40 ({u} -> {v}) is lost", ((u, v),))


def test_uniform_attention_is_explained():
    reference = Reference("attention", kind="gat")
    case = next(c for c in probe.cases(reference, GRAPHS["uniform-100-1000"], width=3) if "saturated" in c.name)
    flat = replace(case, arrays={**case.arrays, "el": 0 * case.arrays["el"], "er": 0 * case.arrays["er"]})
    got = np.asarray(reference.outputs(flat, FloatArithmetic())["out"].value, np.float32)
    assert explained(got, reference, case)[0] == "the scores are ignored: all edges of a row weigh the same"


# ---- made small


@pytest.mark.parametrize("attributes, most", [({"reduce": "sum"}, 1), ({"reduce": "mean", "weighted": True}, 2), ({"reduce": "max"}, 2)],
                         ids=lambda a: str(a))
def test_a_failing_case_is_made_small(attributes, most):
    """The function loses the edges from every eleventh source."""
    reference = Reference("spmm", **attributes)
    case = reference.case(GRAPHS["uniform-100-1000"], values="integers", width=17)
    case.arrays["x"][...] += np.arange(100)[:, None]

    def fails(case):
        expected = reference.outputs(case, FloatArithmetic())["out"].value
        weight = case.arrays.get("weight", np.ones(case.n_edges)) * (case.arrays["x"][case.edges.src, 0].astype(int) % 11 != 3)
        lossy = replace(case, arrays={**case.arrays, "weight": weight}, attributes={**case.attributes, "weighted": True})
        return bool(np.any(reference.outputs(lossy, FloatArithmetic())["out"].value != expected))

    assert fails(case)
    small = shrink.shrink(reference, case, fails)
    assert fails(small) and small.n_edges <= most and small.arrays["x"].shape[1] <= 2 and small.n_src <= 2 * most
    assert small.name == "case/small"

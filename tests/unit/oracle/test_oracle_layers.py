"""Layers, models and a training step against plain loops; their gradients against the complex step; float64, to 1e-12."""


import numpy as np
import pytest

from sarlite.errors import ConfigError, DataError
from sarlite.oracle import dialects
from sarlite.oracle.arithmetic import BoundArithmetic, FloatArithmetic
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.expression import constant, elu, evaluate, variable
from sarlite.oracle.gradient import gradient
from sarlite.oracle.reference import Reference
from tests.helpers.oracle import oracle_loops as loops

pytestmark = pytest.mark.timeout(60)

DIALECTS = ("paper", "dgl", "pyg")
N, N_IN = 7, 3
# Node 1 has two loops and node 4 one, 0 -> 2 is there twice, node 6 has no in-edges and node 5 no out-edges.
SRC = np.array([0, 0, 0, 1, 1, 4, 2, 3, 6, 6, 3, 2, 1, 4, 6])
DST = np.array([2, 2, 1, 1, 1, 4, 0, 0, 0, 3, 5, 4, 3, 3, 5])
EDGES = EdgeList(SRC, DST, N, N)

# name -> (reference, attributes, the loops' result of (state, arrays, dialect))
LAYERS = {
    "gcn": ("gcn", {}, lambda s, a, d: loops.gcn(s, a["x"], EDGES, d)),
    "gcn weighted": ("gcn", {"weighted": True}, lambda s, a, d: loops.gcn(s, a["x"], EDGES, d, a["edge_weight"])),
    "gcn bare": ("gcn", {"self_loops": "none"}, lambda s, a, d: loops.gcn(s, a["x"], EDGES, d, added_loops="none")),
    "sage mean": ("sage", {}, lambda s, a, d: loops.sage(s, a["x"], EDGES, d, False)),
    "sage max-pool": ("sage", {"aggregator": "max-pool"}, lambda s, a, d: loops.sage(s, a["x"], EDGES, d, True)),
    "gat": ("gat", {}, lambda s, a, d: loops.gat(s, a["x"], EDGES, d)),
    "gat residual": ("gat", {"residual": True, "slope": 0.1}, lambda s, a, d: loops.gat(s, a["x"], EDGES, d, 0.1, True)),
    "gatv2": ("gatv2", {}, lambda s, a, d: loops.gatv2(s, a["x"], EDGES, d)),
    "gatv2 residual": ("gatv2", {"residual": True}, lambda s, a, d: loops.gatv2(s, a["x"], EDGES, d, 0.2, True)),
    "rgcn": ("rgcn", {}, lambda s, a, d: loops.rgcn(s, a["x"], EDGES, d, a["relation"])),
    "batch norm": ("batch_norm", {}, lambda s, a, d: loops.batch_norm(s, a["x"], d)),
}  # fmt: skip


def reference_of(name, dialect):
    kind, attributes, by_loops = LAYERS[name]
    heads = {"heads": "mean"} if name == "gat residual" and dialect != "dgl" else {}
    return Reference(kind, dialect=dialect, **attributes, **heads), by_loops


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_their_gradients_agree_with_loops(name, dialect):
    reference, by_loops = reference_of(name, dialect)
    case = reference.case(EDGES, dtype="float64", width=N_IN, seed=3)
    expected = by_loops(case.state, case.arrays, dialect)
    np.testing.assert_allclose(reference.outputs(case, FloatArithmetic())["out"].value, expected, rtol=1e-12, atol=1e-13)
    g = reference.cotangents(case)
    gradients = reference.gradients(case, g, FloatArithmetic())
    assert set(gradients) == {key for key in (*case.arrays, *case.state) if key != "relation" and "running" not in key}
    rng = np.random.default_rng(4)
    for key, value in gradients.items():
        v = rng.standard_normal(value.value.shape)
        moved = {k: a + 1e-30j * v if k == key else a for k, a in {**case.arrays, **case.state}.items()}
        if key != "x":
            moved["x"] = moved["x"].astype(complex)
        slope = np.imag((by_loops(moved, moved, dialect) * g["out"]).sum()) / 1e-30
        np.testing.assert_allclose((value.value * v).sum(), slope, rtol=1e-11, atol=1e-12, err_msg=key)


LAYER_NAMES = ["gcn", "sage", "gat", "gatv2", "rgcn", "batch_norm"]
DIFFER = [("gcn", []), ("gcn bare", []), ("gcn weighted", []), ("gat", []), ("gatv2", []), ("rgcn", [{"paper", "pyg"}])]


@pytest.mark.parametrize("name, alike", DIFFER)
def test_each_dialect_gives_its_own_result(name, alike):
    """With the same parameters each dialect gives another result on this graph, so no dialect passes for another."""
    kind, attributes, _ = LAYERS[name]
    paper = Reference(kind, **attributes).case(EDGES, dtype="float64", width=N_IN, seed=3)
    results = {}
    for dialect in DIALECTS:
        state = {key: value for key, value in paper.state.items() if (kind, key) != ("gatv2", "bias")}  # DGL's has none
        state |= {"bias": np.zeros(6)} if kind == "gatv2" and dialect != "dgl" else {}
        reference = Reference(kind, dialect=dialect, state=dialects.write(kind, dialect, state), **attributes)
        case = reference.case(EDGES, dtype="float64")
        case.arrays.update(paper.arrays)
        results[dialect] = reference.outputs(case, FloatArithmetic())["out"].value.reshape(N, -1)
    for a, b in [("paper", "dgl"), ("paper", "pyg"), ("dgl", "pyg")]:
        assert np.allclose(results[a], results[b], rtol=1e-9) is ({a, b} in alike), (a, b)


@pytest.mark.parametrize("dialect, shares", [("paper", [1, 0, 0, 0]), ("dgl", [0, 1, 0, 0]), ("pyg", [1 / 3, 1 / 3, 1 / 3, 0])])
def test_ties_of_a_maximum_follow_the_dialect(dialect, shares):
    """Edges 1 -> 3, 2 -> 3, 0 -> 3, 3 -> 3 carry 5, 5, 5, 4.

    The gradient goes to the lowest source, to the first edge, or in shares.
    """
    edges = EdgeList(np.array([1, 2, 0, 3]), np.array([3, 3, 3, 3]), 4, 4)
    name = {"paper": "neighbour.weight", "dgl": "fc_neigh.weight", "pyg": "lin_l.weight"}[dialect]
    reference = Reference("sage", dialect=dialect, state={name: np.ones((1, 1))}, aggregator="max")
    case = reference.case(edges, dtype="float64")
    case.arrays["x"] = np.array([[5.0], [5.0], [5.0], [4.0]])
    np.testing.assert_allclose(reference.gradients(case, {"out": np.ones((4, 1))}, FloatArithmetic())["x"].value[:, 0], shares, rtol=1e-15)


def test_only_pyg_adds_epsilon_to_the_softmax():
    """With one edge a row, the coefficient is 1, or 1 / (1 + 1e-16) with PyG's epsilon, which a longdouble shows."""
    edges = EdgeList(np.arange(3), np.arange(3), 3, 3)
    for dialect, lost in [("paper", 0), ("dgl", 0), ("pyg", 1e-16)]:
        reference = Reference("gat", dialect=dialect, bias=False)
        case = reference.case(edges, dtype="float64", width=2)
        name = {"paper": "linear.weight", "dgl": "fc.weight", "pyg": "lin.weight"}[dialect]
        case.arrays["x"], case.state[name] = np.ones((3, 2)), np.ones_like(case.state[name])
        out = reference.outputs(case, FloatArithmetic(np.longdouble))["out"].value
        np.testing.assert_allclose(np.float64(1 - out / 2), lost, rtol=1e-3, atol=1e-19)


@pytest.mark.parametrize("name", ["gcn", "sage", "gat", "gatv2"])
@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_a_model_is_its_layers(name, activation):
    reference = Reference(f"{name}-model", activation=activation, layers=3, hidden=4)
    case = reference.case(EDGES, dtype="float64", width=N_IN, seed=3)
    expected = model(name, activation, case.state, case.arrays["x"])
    np.testing.assert_allclose(reference.outputs(case, FloatArithmetic())["out"].value, expected, rtol=1e-12)


def model(name, activation, state, x):
    for k in range(3):
        s = {key.removeprefix(f"convs.{k}."): value for key, value in state.items() if key.startswith(f"convs.{k}.")}
        more = (False,) if name == "sage" else ()
        x = getattr(loops, name)(s, x, EDGES, "paper", *more)
        if k < 2:
            x = np.where(loops.positive(x), x, np.exp(x) - 1 if activation == "elu" else 0)
    return x


def test_the_derivative_of_elu_at_0_is_1():
    """The derivative from both sides is 1."""
    x = variable("x", (3,))
    gradients = gradient({"out": elu(x)}, {"out": constant(np.ones(3))}, {"x": x})
    np.testing.assert_allclose(evaluate(gradients, {"x": np.array([0.0, 2.0, -1.0])}, FloatArithmetic())["x"].value, [1, 1, np.exp(-1)])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_training_steps_agree_with_loops(dialect):
    """The loss, each gradient entry by a complex step, and two steps of Adam with weight decay, written out."""
    numbers = dict(lr=0.05, beta1=0.8, beta2=0.99, weight_decay=0.1)
    reference = Reference("gcn-training", dialect=dialect, layers=1, n_classes=3, steps=2, **numbers)
    case = reference.case(EDGES, dtype="float64", width=N_IN, seed=3)
    assert reference.differentiable(case) == [] and 0 < case.arrays["mask"].sum() < N

    def loss(state):
        inner = {key.removeprefix("convs.0."): value for key, value in state.items()}
        return loops.cross_entropy(loops.gcn(inner, x, EDGES, dialect), case.arrays["labels"], case.arrays["mask"])

    x, now = case.arrays["x"].astype(complex), dict(case.state)
    m, v = ({key: 0.0 for key in now} for _ in range(2))
    for t in (1, 2):
        g = {key: np.zeros(a.shape) for key, a in now.items()}
        value = loss(now).real
        for key, a in now.items():
            for place in np.ndindex(a.shape):
                step = np.zeros(a.shape)
                step[place] = 1
                g[key][place] = loss({**now, key: a + 1e-30j * step}).imag / 1e-30
        for key in now:
            decayed = g[key] + 0.1 * now[key]
            m[key], v[key] = 0.8 * m[key] + 0.2 * decayed, 0.99 * v[key] + 0.01 * decayed**2
            now[key] = now[key] - 0.05 * (m[key] / (1 - 0.8**t)) / (np.sqrt(v[key] / (1 - 0.99**t)) + 1e-8)
    outputs = reference.outputs(case, FloatArithmetic())
    assert set(outputs) == {"loss", *now, *(f"d{key}" for key in now)}
    np.testing.assert_allclose(outputs["loss"].value, value, rtol=1e-12)
    for key in now:
        np.testing.assert_allclose(outputs[f"d{key}"].value, g[key], rtol=1e-11, atol=1e-13, err_msg=key)
        np.testing.assert_allclose(outputs[key].value, now[key], rtol=1e-11, err_msg=key)


@pytest.mark.parametrize("name", ["gcn", "gatv2", "rgcn", "batch_norm", "gcn-model", "sage-training"])
def test_float32_is_within_the_bounds(name):
    """The formula is evaluated in float32 and float16: no error exceeds its bound, and the bounds are small."""
    for dtype, most in (("float32", 1e-2), ("float16", 50)):
        reference = Reference(name, **({"reduce": "sum"} if name == "rgcn" else {}))
        case = reference.case(EDGES, dtype=dtype, width=N_IN, seed=5)
        bounds, outputs = reference.outputs(case, BoundArithmetic(dtype)), reference.outputs(case, FloatArithmetic(dtype))
        for key, bound in bounds.items():
            decided = np.isfinite(bound.error)
            assert np.all((np.abs(outputs[key].value - bound.value) <= bound.error) | ~decided), key
            assert key in case.state or np.median(bound.error) < most, (key, np.median(bound.error))


def test_batch_norm_updates_and_uses_running_moments():
    """The new moments are 0.9 of the old moments plus 0.1 of the batch's moments.

    In evaluation, x is normalised with the running moments.
    """
    reference = Reference("batch_norm", running=True)
    case = reference.case(EDGES, dtype="float64", width=N_IN, seed=5)
    x, s = case.arrays["x"], case.state
    outputs = {key: number.value for key, number in reference.outputs(case, FloatArithmetic()).items()}
    np.testing.assert_allclose(outputs["running_mean"], 0.9 * s["running_mean"] + 0.1 * x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(outputs["running_var"], 0.9 * s["running_var"] + 0.1 * x.var(0, ddof=1), rtol=1e-12)
    ended = Reference("batch_norm", training=False, eps=0.5)
    case = ended.case(EDGES, dtype="float64", width=N_IN, seed=5)
    expected = (x - s["running_mean"]) / np.sqrt(s["running_var"] + 0.5) * s["gamma"] + s["beta"]
    np.testing.assert_allclose(ended.outputs(case, FloatArithmetic())["out"].value, expected, rtol=1e-12)


def test_shared_weights_are_one_parameter():
    """The gradient has both terms; a state that holds the weight twice with equal values, as torch's, is read."""
    state = dict(Reference("gatv2", dialect="pyg").case(EDGES, dtype="float64", width=N_IN).state)
    state |= {"lin_r.weight": state["lin_l.weight"], "lin_r.bias": state["lin_l.bias"]}
    separate, shared = Reference("gatv2", dialect="pyg", state=state), Reference("gatv2", dialect="pyg", state=state, share_weights=True)
    case, one = separate.case(EDGES, dtype="float64"), shared.case(EDGES, dtype="float64")
    assert "lin_r.weight" not in one.state
    g = separate.cotangents(case)
    two, both = separate.gradients(case, g, FloatArithmetic()), shared.gradients(one, g, FloatArithmetic())
    for word in ("weight", "bias"):
        np.testing.assert_allclose(both[f"lin_l.{word}"].value, two[f"lin_l.{word}"].value + two[f"lin_r.{word}"].value, rtol=1e-12)
    with pytest.raises(DataError, match="share_weights: 'lin_r.bias' differs from 'lin_l.bias'"):
        Reference("gatv2", dialect="pyg", state={**state, "lin_r.bias": state["lin_l.bias"] + 1}, share_weights=True)


@pytest.mark.parametrize("name", ["gcn", "gat", "gatv2"])
def test_cases_that_a_library_refuses_are_refused(name):
    """DGL's layers raise for a row without in-edges unless allowed; torch's batch norm raises in training on one row."""
    looped = EdgeList(np.arange(3), np.arange(3), 3, 3)
    for reference, refused in [(Reference(name, dialect="dgl"), "row 6"), (Reference(name, dialect="dgl", allow_zero_in_degree=True), None),
                               (Reference(name), None), (Reference(name, dialect="pyg"), None)]:  # fmt: skip
        why = reference.refuses(reference.case(EDGES))
        assert why is None if refused is None else refused in why
        assert reference.refuses(reference.case(looped)) is None
    model = Reference(f"{name}-model", dialect="dgl", batch_norm=True)
    assert "row 6" in model.refuses(model.case(EDGES))
    single_row = EdgeList(np.zeros(1), np.zeros(1), 1, 1)
    assert "1 rows" in model.refuses(model.case(single_row)) and model.refuses(model.case(looped)) is None


def test_a_state_tells_its_sizes():
    state = Reference("gat", dialect="pyg", n_heads=4, n_feat=5, heads="mean", residual=True).case(EDGES, width=N_IN).state
    attributes = Reference("gat", state=state, dialect="pyg").attributes
    names = ("n_in", "n_heads", "n_feat", "heads", "residual")
    assert [attributes[name] for name in names] == [N_IN, 4, 5, "mean", True]
    reference = Reference("gat", state=state, dialect="pyg")
    state["bias"][:] = 7  # as an optimizer changes a module's own
    assert not np.any(reference.state["bias"] == 7)
    sizes = dict(batch_norm=True, layers=3, hidden=6, n_classes=2, aggregator="max-pool")
    state = Reference("sage-model", dialect="pyg", **sizes).case(EDGES, width=4).state
    state = {key.replace("convs.", "conv"): value for key, value in state.items()}
    attributes = Reference("sage-model", dialect="pyg", state=state).attributes
    assert [attributes[name] for name in ("n_in", "layers", "n_classes", "batch_norm")] == [4, 3, 2, True]
    assert attributes["each"][1]["aggregator"] == "max-pool"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", [*LAYER_NAMES, *(f"{name}-model" for name in LAYER_NAMES[:5]), "gat-training", "rgcn-training"])
def test_a_saved_case_makes_the_same_reference(name, dialect):
    """A case's attributes and state give the same reference.

    This holds for sizes other than the defaults, too, and with a state that the caller passes.
    """
    more = {"n_heads": 3} if name.startswith("gat") else {}
    reference = Reference(name, dialect=dialect, **more)
    for _ in range(2):
        case = reference.case(EDGES, dtype="float64", width=N_IN)
        again = Reference(case.op, state=case.state, **case.attributes)
        assert {key: value for key, value in again.attributes.items() if key not in ("n_in", "each", "hidden")} == {
            key: value for key, value in case.attributes.items() if key not in ("n_in", "each", "hidden")}  # fmt: skip
        for key, value in reference.outputs(case, FloatArithmetic()).items():
            np.testing.assert_array_equal(again.outputs(case, FloatArithmetic())[key].value, value.value)
        reference = again


GAT = Reference("gat", dialect="pyg").case(EDGES, width=N_IN).state
MODEL = Reference("gcn-model").case(EDGES, width=N_IN).state
REFUSED = [
    ("gat", {"state": {**GAT, "att": 1.0}}, DataError, "'att' is not a parameter of pyg's gat"),
    ("gat", {"state": {key: value for key, value in GAT.items() if key != "att_dst"}}, DataError, "'att_dst' is missing"),
    ("gat", {"state": {**GAT, "att_dst": np.ones((1, 3, 3))}}, DataError, r"'att_dst' has shape \(1, 3, 3\), but .* \(1, 2, 3\)"),
    ("gat", {"state": {**GAT, "bias": np.ones((6, 1))}}, DataError, "'bias' has shape"),
    ("gat", {"state": {**GAT, "bias": "text"}}, DataError, "'bias' is not an array of numbers"),
    ("gat", {"state": GAT, "n_heads": 3}, ConfigError, "n_heads is 3, but in the state 2"),
    ("gat", {"n_heads": 2.5}, ConfigError, "n_heads is 2.5"), ("gat", {"slope": float("nan")}, ConfigError, "slope"),
    ("gat", {"self_loops": "some"}, ConfigError, "self_loops: 'some' is not one of"), ("gat", {"n_head": 2}, ConfigError, "n_head"),
    ("gat", {"dialect": "dgl", "heads": "mean"}, ConfigError, "heads"), ("gat", {"dialect": "jax"}, ConfigError, "dialect"),
    ("gcn-model", {"dialect": "paper", "state": {**MODEL, "head": np.ones(2)}}, DataError, "'head' belongs to no layer"),
    ("gcn-model", {"dialect": "paper", "state": {**MODEL, "other.0.bias": np.ones(2)}}, DataError, "one word"),
    ("gcn-model", {"dialect": "paper", "state": {**MODEL, "convs.1.linear.weight": np.ones((9, 4))}}, DataError, "gives 8 col.* 9"),
    ("gcn-model", {"dialect": "paper", "state": MODEL, "layers": 3}, ConfigError, "layers is 3, but in the state 2"),
    ("gcn-training", {"activation": "gelu"}, ConfigError, "activation"), ("gcn-training", {"steps": 0}, ConfigError, "steps"),
]  # fmt: skip


@pytest.mark.parametrize("name, options, error, words", REFUSED)
def test_wrong_arguments_are_refused_by_name(name, options, error, words):
    with pytest.raises(error, match=words):
        Reference(name, **{"dialect": "pyg", **options})


def test_arguments_that_do_not_suit_the_graph_are_refused():
    with pytest.raises(ConfigError, match="4 source rows"):
        Reference("gcn").outputs(Reference("gcn").case(EdgeList(np.zeros(1), np.zeros(1), 4, 2)), FloatArithmetic())
    rgcn = Reference("rgcn", n_relations=2)
    case = rgcn.case(EDGES, width=N_IN)
    case.arrays["relation"][3] = 2
    with pytest.raises(DataError, match="relation: .*0 to 1, found 2"):
        rgcn.outputs(case, FloatArithmetic())


@pytest.mark.parametrize("name", ["sage", "gat", "gatv2"])
def test_destinations_may_be_other_nodes_than_sources(name):
    """A graph from one set of nodes to another is compared with the graph on both sets, sources first."""
    src, dst = np.array([0, 1, 1, 2]), np.array([0, 0, 1, 1])
    loops_off = {} if name == "sage" else {"self_loops": "none"}
    separate = Reference(name, **loops_off)
    case = separate.case(EdgeList(src, dst, 3, 2), dtype="float64", width=N_IN)
    joint = Reference(name, state=case.state, **loops_off)
    one = joint.case(EdgeList(src, dst + 3, 5, 5), dtype="float64")
    one.arrays["x"] = np.concatenate([case.arrays["x"], case.arrays["x_dst"]])
    separate_rows, joint_rows = (reference.outputs(each, FloatArithmetic())["out"].value
                                 for reference, each in ((separate, case), (joint, one)))
    np.testing.assert_allclose(separate_rows, joint_rows[3:], rtol=1e-12)

"""`oracle.check`: right functions pass, and each verdict has a function that gets it."""

import threading
from contextlib import contextmanager

import numpy as np
import pytest

from sarlite.errors import ConfigError
from sarlite.oracle import OracleError, Reference, Report, Unsupported, Verdict, call, check, inputs, invariants, levels
from sarlite.oracle.case import Case
from sarlite.oracle.corpus import corpus, entry, matching
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.trial import Trial, trying
from tests.helpers.oracle.oracle_candidates import (
    graph_run,
    graph_vjp,
    kernel_sample,
    kernel_spmm,
    kernel_spmm_vjp,
    plain,
    spmm,
)

FEW = ("empty-0-0", "ring-2", "doubled-17-64", "uniform-100-130", "in-star-64", "isolated-12-odd-ties", "clique-4-loops")


def check_few(run, reference, **options):
    """Check on seven graphs of the corpus."""
    return check(run, reference, graphs=FEW, **options)


def trial_of(run, reference="spmm"):
    return trying(Report(""), run, None, Reference(reference), 60.0)


def test_the_patterns_of_check_few_match_seven_graphs():
    names = [graph.name for graph in matching(corpus("ci"), FEW)]
    assert len(names) >= 5 and names == [graph.name for graph in matching(corpus("all"), FEW)]


def test_a_check_that_decides_no_element_is_no_check():
    report = check(lambda case: np.full((case.n_dst, 4), 7, case.dtype), "gcn", level="probe", graphs=["loops-5-2"])
    assert report.verdict is Verdict.UNSUPPORTED and not report.checked
    assert "elements that no probe decides (20 times" in str(report) and "compared: nothing" in str(report)


# ---- right functions


@pytest.mark.parametrize("options", [{"reduce": "mean"}, {"reduce": "sum", "weighted": True, "dtype": "float64", "index_dtype": "int32"}])
def test_sarlite_kernels_pass(options):
    report = check_few(kernel_spmm, "spmm", vjp=kernel_spmm_vjp, **options).require()
    assert min(report.checked[level] for level in ("probe", "certified", "repeat", "invariant")) > 0
    assert 0 < report.ratio <= 1


@pytest.mark.parametrize("name, options", [("spmm", {"reduce": "sum"}), ("spmm", {"reduce": "mean"}), ("spmm", {"reduce": "max"}),
                                           ("attention", {"kind": "gat"})])
def test_sarlite_graphs_pass(name, options):
    check_few(graph_run, name, vjp=graph_vjp, level="ci", **options).require()


def test_a_right_function_passes_on_the_smaller_half_of_the_corpus():
    report = check(plain, "spmm", reduce="sum").require()
    assert min(report.checked[level] for level in ("probe", "certified", "repeat", "invariant")) > 100
    assert "not covered: gradients: no vjp was given" in report.coverage


# ---- verdicts


def lost_edge(case):
    edge_index = np.arange(case.n_edges) != 7
    return spmm(case.src[edge_index], case.dst[edge_index], case.x, case.n_dst)


def half_precision(case):
    """Return sums whose partial sums are rounded to 11 bits."""
    out = np.zeros((case.n_dst, *case.x.shape[1:]), np.float32)
    for j, i in zip(case.src, case.dst):
        mantissa, exponent = np.frexp(out[i] + case.x[j])
        out[i] = np.ldexp(np.rint(mantissa * 2048) / 2048, exponent)
    return out


class Alternating:
    """Sums in alternating orders, as atomic additions give them."""

    def __init__(self):
        self.calls = 0

    def __call__(self, case):
        self.calls += 1
        order = slice(None, None, -1 if self.calls % 2 else 1)
        return spmm(case.src[order], case.dst[order], case.x, case.n_dst)


def refuses(case):
    raise Unsupported("graphs")


def test_a_lost_edge_is_named():
    report = check_few(lost_edge, "spmm", level="probe", shrink=False)
    bad = report.first_bad
    assert report.verdict is Verdict.WRONG and bad.level == "probe"
    edges = bad.case.edges
    assert bad.edges == ((edges.src[7], edges.dst[7]),) and bad.node == edges.dst[7]
    assert bad.cause in str(report)
    with pytest.raises(OracleError, match="^WRONG"):
        report.require()


def test_the_first_case_is_made_small():
    def last_edge(case):
        return spmm(case.src[:-1], case.dst[:-1], case.x, case.n_dst)

    bad = check_few(last_edge, "spmm", level="probe").first_bad
    assert bad.case.n_edges <= 2 and bad.verdict is Verdict.WRONG and "is lost" in bad.cause


@pytest.mark.parametrize("run, level, verdict", [
    (half_precision, "certified", Verdict.IMPRECISE), (half_precision, "probe", Verdict.IMPRECISE),
    (Alternating(), "repeat", Verdict.NONDETERMINISTIC), (refuses, "ci", Verdict.UNSUPPORTED), (plain, "ci", Verdict.PASS),
])  # fmt: skip
def test_each_verdict_has_a_function_that_gets_it(run, level, verdict):
    report = check_few(run, "spmm", level=level, shrink=False)
    assert report.verdict is verdict, str(report)
    assert (report.first_bad is None) is (verdict is Verdict.PASS)
    if run is refuses:
        assert report.uncovered["cases that the function refuses"] == len(report.findings) > 0


def test_the_number_of_threads_must_not_matter():
    limit = []

    @contextmanager
    def limited(n):
        limit.append(n)
        yield
        limit.clear()

    def run(case):
        return plain(case) + np.float32(len(limit))

    reference = Reference("spmm")
    trial = Trial(run, None, reference, Report(""), call.Worker(60.0, limited))
    levels.repeat(trial, reference.case(entry("ring-2").edges), n_threads=2)
    trial.worker.close()
    bad = trial.report.first_bad
    assert bad.verdict is Verdict.THREADS and bad.cause.startswith("one thread in place of 2")


@pytest.mark.parametrize("vjp, cause", [
    (lambda case, g: {"x": np.zeros_like(case.x)}, "all are 0"), (lambda case, g: {"y": case.x}, "'y', which is not one of x"),
    (lambda case, g: {"x": case.x[:, :0]}, "dx has shape"), (lambda case, g: [case.x], "a list of 1"),
])  # fmt: skip
def test_wrong_gradients_are_named(vjp, cause):
    report = check_few(plain, "spmm", vjp=vjp, level="probe", shrink=False)
    assert report.verdict is Verdict.WRONG and any(cause in finding.cause for finding in report.findings), str(report)


def test_a_gradient_that_is_left_out_is_not_covered():
    report = check_few(plain, "spmm", vjp=lambda case, g: {}, level="probe").require()
    assert report.uncovered["the gradient of x, which vjp does not return"] > 0


# ---- calls


def writes(case):
    x = case.x
    x[...] = 0
    return plain(case)


@pytest.mark.parametrize("run, cause", [
    (lambda case: 1 / 0, "raised ZeroDivisionError: division by zero"),
    (lambda case: case.weight, "raised AttributeError: spmm has no 'weight'"),
    (lambda case: [1.0], "a list of 1, not an array"), (lambda case: None, "a NoneType"), (lambda case: {"y": case.x}, "returned no out"),
    (lambda case: plain(case)[:, :0], "out has shape"), (lambda case: plain(case).astype(np.float64), "out is float64, not float32"),
    (writes, "changed its input x"), (lambda case: exit(3), "raised SystemExit: 3"),
])  # fmt: skip
def test_calls_without_an_answer_are_findings(run, cause):
    report = check_few(run, "spmm", level="certified", shrink=False)
    assert report.verdict is Verdict.WRONG and cause in report.first_bad.cause, str(report)
    assert report.first_bad.level == "call"


def test_a_call_that_hangs_ends_the_check():
    free = threading.Event()
    try:
        report = check_few(lambda case: free.wait(60), "spmm", time_limit=0.1)
    finally:
        free.set()
    assert report.verdict is Verdict.LIMIT and len(report.findings) == 1
    assert report.first_bad.cause == "did not return within 0.1 s" and report.uncovered["what comes after a call that did not return"] == 1


class OnlyDLPack:
    """An array of another library, which requires a gradient and has only `__dlpack__`."""

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_arrays_of_other_libraries_are_accepted():
    def run(case):
        assert isinstance(case.x, OnlyDLPack)
        return OnlyDLPack(spmm(case.src.array, case.dst.array, case.x.array, case.n_dst))

    check_few(run, "spmm", vjp=lambda case, g: {"x": OnlyDLPack(spmm(case.dst.array, case.src.array, g.array, case.n_src))}, level="probe",
          convert=OnlyDLPack).require()


@pytest.mark.parametrize("bug, cause", [("strided", "strided arrays: raised ValueError: contiguous"),
                                        ("read-only", "read-only arrays: raised")])
def test_refused_layouts_are_reported(bug, cause):
    def run(case):
        x = case.x
        if bug == "strided" and not x.flags.c_contiguous:
            raise ValueError("contiguous")
        if bug == "read-only":
            x += 0
        return plain(case)

    report = check_few(run, "spmm", level="probe").require()
    assert [finding.cause.startswith(cause) for finding in report.findings] == [True, True]
    assert report.uncovered["cases that the function refuses"] == 2


def test_a_layout_that_is_misread_is_wrong():
    def run(case):
        x = case.x
        flat = np.lib.stride_tricks.as_strided(x, (x.size,), (x.itemsize,)) if x.size else x  # as a kernel that is given a pointer
        return spmm(case.src, case.dst, flat.reshape(x.shape), case.n_dst)

    bad = check_few(run, "spmm", level="probe", shrink=False).first_bad
    assert bad.verdict is Verdict.WRONG and bad.case.name.endswith("/strided")


# ---- invariants


def takes_rows(case):
    return plain(case) + np.float32(case.n_dst > 40) * (np.arange(case.n_dst, dtype=np.float32) % 7)[:, None]


def without_duplicates(case):
    first = np.unique(case.src * max(case.n_dst, 1) + case.dst, return_index=True)[1]
    return spmm(case.src[first], case.dst[first], case.x, case.n_dst)


@pytest.mark.parametrize("kind, bug", [
    ("relabelled", takes_rows), ("doubled", without_duplicates), ("split", lambda case: plain(case) + np.float32(1)),
    ("linear", lambda case: np.maximum(plain(case), 0)), ("isolated", lambda case: plain(case) / np.float32(case.n_dst)),
])  # fmt: skip
def test_each_invariant_finds_a_bug(kind, bug):
    def report_of(run):
        with trial_of(run) as trial:
            for graph in matching(corpus("ci"), FEW):
                _, (case,) = inputs.cases(trial.reference, graph, ["invariants"], trial.report)
                invariants.check_case(trial, case, [getattr(invariants, kind)])
        return trial.report

    report_of(plain).require()
    bad = report_of(bug).first_bad
    assert bad.verdict is Verdict.WRONG and bad.level == "invariant" and "changes what must stay" in bad.cause


# ---- sampling


def sampler(pick):
    def run(case):
        rng = np.random.default_rng(case.seed)
        rows = [case.eid[a:b] for a, b in zip(case.indptr, case.indptr[1:])]
        return np.concatenate([np.zeros(0, np.int64), *(pick(rng, row, case.k) for row in rows)])

    return run


def choice(rng, row, k):
    return row if len(row) <= k else rng.permutation(row)[:k]


def test_a_right_sampler_passes():
    for k, replaced in ((3, False), (2, True)):
        assert check_few(kernel_sample, "sample", k=k, replace=replaced).require().checked["sampling"] > 500
    assert check_few(sampler(choice), "sample", k=2, replace=True).verdict is Verdict.WRONG


def last_more_often(rng, row, k):
    late = rng.standard_exponential(len(row))
    late[-1:] /= 1.6
    return row[np.argsort(late)[:k]]


@pytest.mark.parametrize("run, cause", [
    (sampler(last_more_often), "picks of in-edge"),
    (sampler(lambda rng, row, k: row[(np.arange(min(k, len(row))) + rng.integers(len(row) or 1)) % max(len(row), 1)]), "together, of rows"),
    (lambda case: sampler(lambda rng, row, k: choice(np.random.default_rng(case.seed), row, k))(case), "two rows of"),
    (lambda case: sampler(lambda rng, row, k: choice(rng, row, k))(every_second_seed(case)), "two calls with"),
    (sampler(lambda rng, row, k: rng.choice(row, k) if len(row) > k else row), "without replacement"),
    (sampler(lambda rng, row, k: choice(rng, row, k - 1)), "picks of a row of"), (lambda case: case.eid + 1, "is no edge"),
    (lambda case: case.eid / 2, "is not an (n_picks,) array"), (sampler(lambda rng, row, k: 1 / 0), "raised ZeroDivisionError"),
])  # fmt: skip
def test_wrong_samplers_are_named(run, cause):
    report = check_few(run, "sample", k=2)
    assert report.verdict is Verdict.WRONG and any(cause in finding.cause for finding in report.findings), str(report)


def every_second_seed(case):
    """Return the case with a seed that it shares with the case before or after it."""
    from sarlite.oracle.sampler_checks import with_seed

    return with_seed(case, case.seed // 2)


# ---- arguments


def test_expected_failures_do_not_count():
    report = check_few(lost_edge, "spmm", level="probe", expected_failures=["*"], shrink=False).require()
    assert report.expected and not report.findings and "expected failure" in str(report)
    assert check_few(lost_edge, "spmm", level="probe", expected_failures=["ring-2*"], shrink=False).verdict is Verdict.WRONG


@pytest.mark.parametrize("options, text", [({"level": "none"}, "level is 'none'"), ({"dtype": "int8"}, "dtype is 'int8'"),
                                           ({"accumulate": "x"}, "accumulate"), ({"graphs": "nowhere"}, "no graph of the corpus"),
                                           ({"reduce": "product"}, "reduce: 'product'")])
def test_arguments_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        check(plain, "spmm", **options)
    with pytest.raises(ConfigError, match="attributes reduce"):
        check(plain, Reference("spmm"), reduce="sum")


def test_a_case_hands_out_copies():
    case = Case("one", "spmm", EdgeList([0], [0], 1, 1), {"x": np.ones((1, 2), np.float32)}, {}, {"w": np.ones(3)})
    for layout in call.LAYOUTS:
        handed = call.GuardedCase(case, layout)
        copied = handed.case
        assert copied.x.flags.writeable is (layout != "read-only") and copied.x.flags.c_contiguous is (layout != "strided")
        assert np.array_equal(copied.x, case.x) and handed.changed() is None
        if layout != "read-only":
            copied.arrays["x"][0, 0] = 5
            assert handed.changed() == "x" and case.x[0, 0] == 1
    handed = call.GuardedCase(case)
    handed.case.parameters["w"][0] = 2
    assert handed.changed() == "w"

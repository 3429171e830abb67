"""Causes of findings: common mistakes are named if a second case confirms them.

No mistake is named that a bug only resembles.
"""

import numpy as np
import pytest

from sarlite.oracle import Verdict, check
from sarlite.oracle.finding import Finding
from tests.helpers.oracle import oracle_kernels as right
from tests.helpers.oracle.oracle_candidates import plain, plain_vjp, spmm
from tests.helpers.oracle.oracle_kernels import Sparse
from tests.helpers.oracle.oracle_planting import summed
from tests.helpers.oracle.reported_rows import batch_norm, bessel, first_batch, no_maximum
from tests.helpers.oracle.reported_sums import double_wide, one_more

FEW = ("uniform-17-100", "uniform-100-250", "uniform-100-300-negative", "isolated-33-odd", "in-star-16", "empty-3-3*", "uniform-10-30")


def report_of(run, op="spmm", vjp=None, graphs=FEW, **options):
    return check(run, op, vjp=vjp, graphs=graphs, shrink=False, shown=lambda text: None, **options)


def over(degrees):
    """Return a mean that is divided by other degrees."""

    def run(case):
        if case.n_src != case.n_dst:
            raise NotImplementedError("bipartite")
        total = summed(case, Sparse(case), case.x[case.src])
        return (total / np.maximum(degrees(case), 1)[:, None]).astype(case.dtype)

    return run


def out_degrees(case):
    return np.bincount(case.src, minlength=case.n_src)


def different(case):
    pairs = np.unique(np.stack([case.dst, case.src]), axis=1)
    return np.bincount(pairs[0], minlength=case.n_dst)


def stray(case, g):
    """Return the gradient of a maximum with a bug: rows without edges point to source 0."""
    dx = right.spmm_vjp(case, g)["x"]
    if case.n_src:
        dx[0] += g[np.bincount(case.dst, minlength=case.n_dst) == 0].sum(0, dtype=g.dtype)
    return {"x": dx}


def without_loops(case):
    return summed(case, Sparse(case), case.x[case.src], case.src != case.dst)


def shares(case, g):
    """Return the gradient of a maximum in equal shares, as torch.amax computes it."""
    edges = Sparse(case)
    won = right.winners(case, edges, case.x, marks_ties=True)
    count = edges.into(edges.dst, edges.n_dst, won)
    return {"x": edges.into(edges.src, edges.n_src, g[edges.dst] * won / np.maximum(count, 1)[edges.dst])}


TIES = ("uniform-100-300-ties", "isolated-40-first-ties", "powers-60-2-16-ties", "uniform-17-100")
CAUSES = {
    "out-degree": (over(out_degrees), "spmm", None, {"reduce": "mean"}, "a mean is divided by the out-degree of the destination"),
    "one edge more": (one_more, "spmm", None, {"reduce": "mean"}, "a mean is divided by the in-degree and one"),
    "sources that differ": (over(different), "spmm", None, {"reduce": "mean"}, "a mean is divided by the number of sources that differ"),
    "isolated rows": (right.spmm, "spmm", stray, {"reduce": "max"}, "gradients of rows without edges go to the first source"),
    "n - 1": (lambda case: batch_norm(case, bessel), "batch_norm", None, {}, "the variance is divided by n - 1"),
    "no maximum": (no_maximum, "softmax", None, {"graphs": "*-scores"}, "softmax subtracts no maximum: exp overflows or vanishes"),
    "self loops": (without_loops, "spmm", None, {"graphs": ("uniform-*", "clique-*-loops")}, "self loops are lost"),
    "ties": (right.spmm, "spmm", shares, {"reduce": "max", "graphs": TIES}, "ties is 'all', not 'lowest'"),
    "weights": (lambda case: plain(case), "spmm", None, {"weighted": True}, "weight is ignored"),
    "tail": (double_wide, "spmm", None, {"graphs": "*", "level": "probe"}, "the tail of a width that is no multiple of a block is lost"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CAUSES)
def test_common_causes_are_reported_first(name):
    run, op, vjp, options, cause = CAUSES[name]
    report = report_of(run, op, vjp, **options)
    bad = report.first_bad
    assert report.verdict is Verdict.WRONG and cause in bad.cause and bad.support == 2, str(report)
    assert cause in str(report).splitlines()[1] and cause in report.causes[0][0]


def test_cancellation_of_a_variance_is_named():
    def cancels(case):
        x, state = case.x, case.parameters
        if not len(x):
            return x + 0 * state["beta"]
        mean = x.mean(0, dtype=np.float32)
        variance = (x * x).mean(0, dtype=np.float32) - mean * mean
        return ((x - mean) / np.sqrt(np.maximum(variance, 0) + np.float32(case.eps)) * state["gamma"] + state["beta"]).astype(np.float32)

    report = report_of(cancels, "batch_norm", graphs=("uniform-10-30", "clique-*", "ring-*", "matched-8-*", "repeated-5-16"))
    assert "the variance may be E[x^2] - E[x]^2" in report.first_bad.cause and report.first_bad.support == 2


# ---- causes that would be wrong


def causes_of(report):
    return " ".join(cause for cause, _, _ in report.causes)


def wrong_rows_are_zero(case):
    out = plain(case)
    out[: len(out) // 2] = 0
    return out


def lowest(case):
    out = right.spmm(case)
    return np.where(np.isneginf(out), np.finfo(np.float32).min, out).astype(np.float32)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("run, op, options, never", [
    (wrong_rows_are_zero, "spmm", {"graphs": ("in-star-*", "isolated-*", "chain-*")}, "off by one"),
    (first_batch, "attention", {}, "multiple of a block"),
    (lambda case: plain(case), "spmm", {"weighted": True}, "what row"),
    (lowest, "spmm", {"reduce": "max", "graphs": ("*-nan", "*-unreachable", "uniform-17-100")}, "leak"),
    (over(out_degrees), "spmm", {"reduce": "mean"}, "overflows"),
])  # fmt: skip
def test_causes_that_a_bug_only_resembles_are_not_reported(run, op, options, never):
    report = report_of(run, op, **options)
    assert report.verdict is Verdict.WRONG and never not in causes_of(report), str(report)


def test_heads_that_are_wrong_are_named():
    assert "heads 1 of 2 are wrong, the others right" in causes_of(report_of(first_batch, "attention", level="probe"))


def test_an_extremum_that_starts_at_a_finite_number_is_named():
    report = report_of(lowest, "spmm", reduce="max", graphs=("uniform-100-300-nan", "in-star-*-nan", "powers-*-nan"))
    assert "where -inf is right: an extremum starts at a finite number" in causes_of(report)


# ---- one line a cause


def test_a_crash_without_edges_hides_no_number():
    def run(case):
        case.src[0]
        return without_loops(case)

    report = report_of(run, graphs=("empty-*", "uniform-17-100", "uniform-100-250", "clique-*-loops"))
    first, *lines = str(report).splitlines()[1:]
    assert "self loops are lost" in first and report.first_bad.level != "call"
    assert any("times: out: self loops are lost (as " in line for line in lines)
    assert any("times: raised IndexError" in line for line in lines)
    assert sum(n for _, n, _ in report.causes) == len(report.findings)


def test_causes_are_written_as_json():
    causes = report_of(over(out_degrees), reduce="mean").to_dict()["causes"]
    assert causes[0]["cause"] == "out: a mean is divided by the out-degree of the destination" and causes[0]["findings"] > 1


def test_a_finding_that_two_cases_support_stays_one_when_it_is_made_small():
    bad = check(without_loops, "spmm", graphs=("uniform-17-100", "clique-8-loops"), level="probe").first_bad
    assert bad.case.n_edges <= 2 and bad.support == 2 and "self loops are lost" in bad.cause


def test_findings_keep_the_gradient_that_they_are_of():
    report = report_of(plain, vjp=lambda case, g: {"x": 2 * plain_vjp(case, g)["x"]})
    assert {finding.output for finding in report.findings} == {"dx"} and all(isinstance(f, Finding) for f in report.findings)
    assert "all are 2 times what they should be" in causes_of(report)


def test_a_lost_edge_is_named_if_no_assumption_is_confirmed():
    def run(case):
        edge_index = np.arange(case.n_edges) != 40
        return spmm(case.src[edge_index], case.dst[edge_index], case.x, case.n_dst)

    bad = report_of(run, graphs="uniform-17-100", level="probe").first_bad
    edges = bad.case.edges
    assert bad.edges == ((edges.src[40], edges.dst[40]),) and bad.cause.endswith("is lost") and bad.support == 1

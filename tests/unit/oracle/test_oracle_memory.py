"""Layouts of gradients, results in reused memory, numbers of threads, limits of time and memory, formats of sums."""

import threading
from contextlib import contextmanager

import numpy as np
import pytest

from sarlite.errors import ConfigError
from sarlite.oracle import Reference, Report, Verdict, call, check, levels, replay
from sarlite.oracle.corpus import entry
from sarlite.oracle.trial import Trial
from tests.helpers.oracle import oracle_kernels as right
from tests.helpers.oracle.oracle_candidates import plain, plain_vjp
from tests.helpers.oracle.reported_sums import cached_output, half_sums, in_storage_order

FEW = ("uniform-10-30", "clique-4-loops", "in-star-3", "uniform-17-100", "ring-3")


STRIDES = "the strides of the incoming gradient are ignored"


def silent(text):
    pass


# ---- layouts of gradients


def kind_of(g):
    if g.ndim > 1 and not any(g.strides):
        return "broadcast"
    return "plain" if g.flags.c_contiguous else "transposed" if g.flags.f_contiguous else "strided"


def test_gradients_come_in_every_layout():
    seen = set()

    def vjp(case, g):
        if min(g.shape, default=0) > 1:
            seen.add(kind_of(g))
        return plain_vjp(case, g)

    check(plain, "spmm", vjp=vjp, graphs=FEW).require()
    assert seen == {*call.GRADIENT_LAYOUTS, call.BROADCAST}


@pytest.mark.parametrize("level", ["probe", "certified"])
def test_a_gradient_that_is_read_in_storage_order_is_wrong(level, tmp_path):
    def vjp(case, g):
        return plain_vjp(case, in_storage_order(g))

    report = check(plain, "spmm", vjp=vjp, level=level, graphs=FEW, shrink=False)
    bad = report.first_bad
    assert report.verdict is Verdict.WRONG and bad.output == "dx" and bad.cause.startswith(STRIDES)
    again = replay(report.save(tmp_path / "case"), plain, vjp=vjp).first_bad
    assert again.cause.startswith(STRIDES)
    small = check(plain, "spmm", vjp=vjp, level=level, graphs=FEW).first_bad
    assert small.case.n_edges <= 2 and "strides" in small.cause


def test_a_sum_is_differentiated_by_a_gradient_of_strides_0():
    def vjp(case, g):
        return plain_vjp(case, in_storage_order(g) if g.size and not any(g.strides) else g)

    assert "strides of 0, as of out.sum()" in check(plain, "spmm", vjp=vjp, level="certified", graphs=FEW).first_bad.cause


def test_layouts_of_gradients_may_be_refused_but_hide_nothing():
    def vjp(case, g, factor=1):
        if not g.flags.c_contiguous:
            raise ValueError("contiguous")
        return {"x": factor * plain_vjp(case, g)["x"]}

    report = check(plain, "spmm", vjp=vjp, level="probe", graphs=FEW).require()
    causes = {finding.cause for finding in report.findings}
    assert causes == {f"{layout} gradients: raised ValueError: contiguous" for layout in ("broadcast", "strided", "transposed")}
    assert len(report.findings) <= 4
    wrong = check(plain, "spmm", vjp=lambda case, g: vjp(case, g, np.float32(2)), level="probe", graphs=FEW)
    assert wrong.verdict is Verdict.WRONG


# ---- results in memory that is used again


def test_a_result_that_the_next_call_overwrites_is_wrong():
    report = check(cached_output, "spmm", graphs=FEW, shrink=False)
    assert report.verdict is Verdict.WRONG and "memory that the function uses again" in report.first_bad.cause
    assert sum("uses again" in finding.cause for finding in report.findings) == 1


def test_the_backward_pass_may_not_overwrite_an_output():
    memory = np.zeros(1 << 16, np.float32)

    def run(case):
        out = memory[: case.n_dst * case.x.shape[1]].reshape(case.n_dst, -1)
        out[...] = plain(case)
        return out

    def vjp(case, g):
        memory[:] = 0
        return plain_vjp(case, g)

    bad = check(run, "spmm", vjp=vjp, level="probe", graphs="ring-3", shrink=False).first_bad
    assert "memory that the function uses again" in bad.cause
    check(lambda case: run(case).copy(), "spmm", vjp=vjp, level="probe", graphs="ring-3").require()


# ---- threads


def repeated(run, n_threads=2, **options):
    """Return the report of level "repeat" for one case; `run(case, threads)` gets the number of threads."""
    threads = [n_threads]

    @contextmanager
    def limited(n):
        threads.append(n)
        yield
        threads.pop()

    report = Report("")
    trial = Trial(lambda case: run(case, threads[-1]), None, Reference("spmm"), report, call.Worker(60.0, limited), **options)
    levels.repeat(trial, trial.reference.case(entry("ring-2").edges), n_threads=n_threads)
    trial.worker.close()
    return report


def test_another_result_on_one_thread_is_a_verdict_of_its_own():
    def by_threads(case, threads):
        return plain(case) + np.float32(threads)

    assert repeated(by_threads).verdict is Verdict.THREADS
    report = repeated(by_threads, allow=("THREADS",))
    assert report.verdict is Verdict.PASS and len(report.expected) == 1


def test_a_race_is_not_taken_for_a_matter_of_threads():
    calls = []

    def race(case, threads):
        calls.append(threads)
        return plain(case) + np.float32(len(calls) > 2) * len(calls)

    assert repeated(race).verdict is Verdict.NONDETERMINISTIC


def test_a_single_thread_is_reported():
    report = repeated(lambda case, threads: plain(case), n_threads=1)
    assert any(reason.startswith("other numbers of threads: no pool") for reason in report.uncovered)
    assert call.threads_of_pools() >= 1


# ---- limits


@pytest.mark.parametrize("error", [MemoryError(), TimeoutError("slow"), RuntimeError("DefaultCPUAllocator: not enough memory"),
                                   type("OutOfMemoryError", (RuntimeError,), {})("CUDA")])
def test_a_lack_of_time_or_memory_is_not_wrong(error):
    def run(case):
        if case.n_edges > 70:
            raise error
        return plain(case)

    report = check(run, "spmm", graphs=FEW)
    assert report.verdict is Verdict.LIMIT and {f.case_name.split("/")[0] for f in report.findings} == {"uniform-17-100"}
    assert report.checked["probe"] >= 4
    assert len(check(run, "spmm", graphs=FEW, allow=["LIMIT"]).require().expected) == len(report.findings)


def test_verdicts_that_may_be_allowed():
    with pytest.raises(ConfigError, match="allow: 'WRONG' .*'NONDETERMINISTIC', 'THREADS', 'LIMIT'"):
        check(plain, "spmm", graphs=FEW, allow=["WRONG"])


def test_large_graphs_come_last_and_are_announced():
    order = []

    def run(case):
        order.append(max(case.n_src, case.n_dst))
        return plain(case)

    check(run, "spmm", level="probe", graphs=("in-star-65536", "ring-3", "sparse-ids-70000-20"), shown=order.append)
    rows = [each for each in order if isinstance(each, int)]
    assert rows == sorted(rows)
    assert "sparse-ids-70000-20" in str(order[order.index(70_000) - 1]) and sum(isinstance(each, str) for each in order) == 2


def test_a_call_that_hangs_leaves_the_findings_of_smaller_graphs():
    free = threading.Event()

    def run(case):
        if case.n_edges > 50:
            free.wait(60)
        return plain(case) + np.float32(1)

    try:
        report = check(run, "spmm", graphs=FEW, time_limit=0.5)
    finally:
        free.set()
    assert report.verdict is Verdict.WRONG and any(f.verdict is Verdict.LIMIT for f in report.findings)


# ---- formats of sums


def test_partial_sums_of_float16_are_seen_where_float32_is_promised():
    options = {"dtype": "float16", "accumulate": "float32", "graphs": ("in-star-65536", "uniform-17-100"), "shown": silent}

    def single(case):
        out = np.zeros((case.n_dst, case.x.shape[1]), np.float32)
        np.add.at(out, case.dst, case.x[case.src].astype(np.float32))
        return out.astype(np.float16)

    report = check(single, "spmm", level="probe", **options).require()
    assert report.checked["probe"] >= 3
    assert check(half_sums, "spmm", level="probe", **options).verdict in (Verdict.WRONG, Verdict.IMPRECISE)


def test_sums_that_are_promised_in_less_than_the_dtype_are_not_asked_to_be_exact():
    def rounded_sums(case):
        out = np.zeros((case.n_dst, case.x.shape[1]), np.float16)
        np.add.at(out, case.dst, case.x[case.src].astype(np.float16))
        return out.astype(np.float32)

    check(rounded_sums, "spmm", level="probe", accumulate="float16", graphs=FEW).require()


def test_a_batch_norm_of_one_product_and_one_sum_is_right():
    """Libraries compute x scale + (beta - mean scale), which gives beta for equal rows only up to rounding."""
    def run(case):
        x, state = case.x, case.parameters
        if not len(x):
            return x + 0 * state["beta"]
        mean = x.mean(0, dtype=np.float32)
        scale = state["gamma"] / np.sqrt(((x - mean) ** 2).mean(0, dtype=np.float32) + np.float32(case.eps))
        return (x.astype(np.float64) * scale + (state["beta"] - mean * scale)).astype(np.float32)  # by FMA

    report = check(run, "batch_norm", graphs=("repeated-*", "empty-*", "uniform-1*", "ring-3")).require()
    assert report.checked["certified"] > 20 and 0 < report.ratio < 1


def test_negative_slopes_have_bounds():
    check(right.gat, "attention", vjp=right.gat_vjp, slope=-0.5, graphs=FEW, level="certified").require()

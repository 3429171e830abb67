"""Reports: coverage, places, confirmed causes, tracebacks, refusals, JSON, and saved cases."""

import json
import sys

import numpy as np
import pytest

from sarlite.errors import ConfigError, DataError
from sarlite.oracle import RankPart, Reference, Report, Verdict, check, inputs, load, replay, sarcase
from sarlite.oracle.corpus import VALUES, entry
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.oracle_command import main
from sarlite.oracle.scope import spans
from tests.helpers.oracle.oracle_candidates import plain, plain_vjp, spmm

FEW = ("ring-3", "clique-4-loops", "uniform-10-30")


def beyond(report):
    return next(reason for reason in report.uncovered if "widths other than" in reason)


def test_a_report_names_the_inputs_that_no_case_had():
    text, edges = beyond(check(plain, "spmm", graphs=FEW, widths=[4, 5, 9], vjp=plain_vjp)), entry("uniform-10-30").edges
    for phrase in (
        f"widths other than {spans({4, 5, 9} | {entry(name).width for name in FEW})};",
        f"rows of more than {max(edges.in_degrees)} edges in or {max(edges.out_degrees)} out",
        "more than 10 rows",
        VALUES["nan"],
        "float64, float16",
        "indices of int32, int16",
        "races that show in fewer than one of 2 calls",
    ):
        assert phrase in text
    assert VALUES["weights"] not in text and VALUES["scores"] not in text  # no array of an spmm has them
    assert "whether the same input gives the same bits" in beyond(check(plain, "spmm", graphs=FEW, level="probe"))
    whole = beyond(check(plain, "spmm", level="probe", graphs=["*-nan", "ring-3"]))
    assert VALUES["nan"] not in whole and VALUES["ties"] in whole
    assert spans([1, 2, 3, 5, 8, 9]) == "1 to 3, 5, 8 to 9" and spans([]) == ""


def test_graphs_that_do_not_suit_count_once_and_are_not_exported(tmp_path):
    """The paper's GCN adds self loops, which a graph between two sets of nodes cannot have."""
    report = check(lambda case: case.x, "gcn", graphs=["bipartite-3-7-2", "ring-3"], shrink=False)
    assert report.uncovered["graphs that do not suit"] == 1 and "bipartite-3-7-2" in report.examples["graphs that do not suit"]
    assert main(["export", str(tmp_path), "gcn", "--graphs", "bipartite-3-7-2"]) == 0
    assert main(["export", str(tmp_path), "gcn", "--graphs", "ring-3"]) == 0
    assert all("ring-3" in path for path in (tmp_path / "cases.txt").read_text().split())


def test_random_cases_have_the_graphs_special_values():
    exact, random = inputs.cases(Reference("spmm"), entry("isolated-12-odd-nan"), ["probe", "certified"], Report(""))
    assert [case.name.split("/")[1] for case in [*exact, *random]] == ["codes", "random"]
    assert all(not np.isfinite(case.arrays["x"]).all() for case in [*exact, *random])
    assert inputs.cases(Reference("spmm"), entry("ring-3"), ["probe"], Report(""))[1] == []


def test_more_calls_find_a_rarer_race():
    calls = []

    def race(case):
        calls.append(1)
        return plain(case) + np.float32(len(calls) % 40 == 0)

    assert check(race, "spmm", level="repeat", graphs="ring-3").verdict is Verdict.PASS
    calls.clear()
    assert check(race, "spmm", level="repeat", graphs="ring-3", repeats=60).verdict is Verdict.NONDETERMINISTIC
    with pytest.raises(ConfigError, match="repeats"):
        check(plain, "spmm", repeats=0)


def test_values_by_edge_have_an_edge_and_those_of_parameters_a_row():
    bad = check(
        lambda case: case.x[case.src] + np.float32(1), "gather", level="probe", graphs="ring-3", shrink=False
    ).first_bad
    assert (bad.edge, bad.node, bad.row) == (0, None, None) and ", edge 0, column 0" in str(bad)

    def gradient(case, g):
        return {"x": plain_vjp(case, g)["x"] + np.float32(1)}

    bad = check(plain, "spmm", vjp=gradient, level="probe", graphs="ring-3", shrink=False).first_bad
    assert bad.node == 0 and bad.edge is None

    def layer(case, g):
        return {
            name: np.full_like(value, 7)
            for name, value in {**case.arrays, **case.state}.items()
            if name == "linear.weight"
        }

    report = check(
        lambda case: np.zeros((case.n_dst, 4), case.dtype),
        "gcn",
        vjp=layer,
        level="certified",
        graphs="ring-3",
        shrink=False,
    )
    assert next(f for f in report.findings if f.output == "dlinear.weight").row == 0


# ---- causes


def transposed(case):
    if case.n_src != case.n_dst:
        raise NotImplementedError("bipartite")
    return spmm(case.dst, case.src, case.x, case.n_dst)


def test_an_assumption_is_reported_if_a_second_case_confirms_it():
    few = ("chain-2-up", "in-star-3", "uniform-17-100", "uniform-100-250")
    assert "the transpose is taken" in check(transposed, "spmm", level="probe", graphs=few).first_bad.cause
    one_graph = check(transposed, "spmm", level="probe", graphs="in-star-3", shrink=False).first_bad
    assert one_graph.cause.endswith("elements differ; no single cause found that a second case confirms")


def test_an_assumption_that_fits_only_a_small_case_is_not_reported():
    """On a graph with one edge, a lost block of rows resembles many other bugs."""

    def high_rows(case):
        return spmm(*(end[case.dst < 5] for end in (case.src, case.dst)), case.x, case.n_dst)

    bad = check(
        high_rows,
        "spmm",
        level="probe",
        graphs=("single-17-*", "chain-17-*", "ring-17", "uniform-10-30", "uniform-17-100"),
    ).first_bad
    assert not any(word in bad.cause for word in ("transpose", "loops", "reduce is", "dialect"))


def test_the_cause_of_a_shrunk_case_is_that_of_the_case_it_came_from():
    def last_edge(case):
        return spmm(case.src[:-1], case.dst[:-1], case.x, case.n_dst)

    bad = check(last_edge, "spmm", level="probe", graphs="uniform-10-30").first_bad
    assert bad.case.n_edges <= 2 and bad.cause.startswith("in uniform-10-30/codes/0: edge 29 (")


def test_one_lost_edge_of_many_is_wrong_in_check_and_in_replay(tmp_path):
    def lossy(case):
        edge_index = np.arange(case.n_edges) != 7
        return spmm(case.src[edge_index], case.dst[edge_index], case.x, case.n_dst)

    report = check(lossy, "spmm", level="probe", graphs="in-star-65536", shrink=False)
    again = replay(report.save(tmp_path / "case"), lossy)
    assert report.verdict is again.verdict is Verdict.WRONG and "edge 7 (8 -> 0) is lost" in again.first_bad.cause


# ---- exceptions, refusals, expected failures


def raises(case):
    return case.x[case.n_src + 3]


def test_an_exception_is_reported_with_its_traceback():
    text = str(check(raises, "spmm", level="probe", graphs="ring-3"))
    assert "raised IndexError" in text and "return case.x[case.n_src + 3]" in text and "sarlite/oracle/" not in text


def test_refused_cases_are_no_findings():
    def bipartite(case):
        if case.n_src != case.n_dst:
            raise NotImplementedError("bipartite")
        return plain(case)

    report = check(bipartite, "spmm", level="probe", graphs=["bipartite-3-7-2", "ring-3"]).require()
    assert "0 findings in 0 cases" in str(report) and report.uncovered["cases that the function refuses"] == 1


def test_a_report_lists_few_expected_failures():
    text = str(
        check(lambda case: plain(case) + np.float32(1), "spmm", level="probe", graphs="ring-*", expected_failures=["*"])
    )
    assert text.count("  expected failure:") == 5 and "expected failures more" in text


def test_an_exit_status_of_77_stays_one(tmp_path, capsys):
    path = check(lambda case: plain(case) + np.float32(1), "spmm", level="probe", graphs="ring-3").save(
        tmp_path / "case"
    )
    refuses = f"{sys.executable} -c 'raise SystemExit(77)' {{inputs}} {{outputs}}"
    assert main(["replay", str(path), "--command", refuses]) == 77
    assert main(["check", "spmm", "--graphs", "ring-3", "--level", "probe", "--command", refuses]) == 77
    assert "UNSUPPORTED" in capsys.readouterr().out


def test_no_shrink_goes_with_ranks(capsys):
    refuses = f"{sys.executable} -c 'raise SystemExit(77)' {{inputs}} {{outputs}}"
    assert main(["check", "gcn", "--ranks", "1", "--no-shrink", "--graphs", "ring-3", "--command", refuses]) == 77


def test_reports_are_written_as_json(capsys, tmp_path):
    path = check(lambda case: plain(case) + np.float32(1), "spmm", level="probe", graphs="ring-3").save(
        tmp_path / "case"
    )
    program = f"{sys.executable} -c 'raise SystemExit(77)' {{inputs}} {{outputs}}"
    assert main(["replay", str(path), "--json", "--command", program]) == 77
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "UNSUPPORTED" and document["findings"][0]["level"] == "call"
    report = check(lambda case: plain(case) * np.float32(np.nan), "spmm", level="probe", graphs="ring-3")
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert document["findings"][0]["got"] == "nan" and document["findings"][0]["case"].startswith("ring-3")


# ---- saved cases


def test_overwrite_replaces_a_saved_case(tmp_path):
    report = check(lambda case: plain(case) + np.float32(1), "spmm", level="probe", graphs="ring-3")
    path = report.save(tmp_path / "case")
    with pytest.raises(DataError, match="exists already; overwrite"):
        report.save(path)
    report.save(path, overwrite=True)
    (path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="exists already and is not a case"):
        report.save(path, overwrite=True)
    assert (path / "notes.txt").read_text() == "mine"
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "case.json").write_text("{}")
    with pytest.raises(DataError, match="exists already and is not a case"):
        report.save(tmp_path / "foreign", overwrite=True)


def test_a_finding_of_an_older_file_opens(tmp_path):
    path = check(lambda case: plain(case) + np.float32(1), "spmm", level="probe", graphs="ring-3").save(
        tmp_path / "case"
    )
    document = json.loads((path / "case.json").read_text())
    for name in ("edge", "row"):
        del document["finding"][name]
    (path / "case.json").write_text(json.dumps(document))
    assert load(path).finding.node == 0


def test_a_case_has_numpys_dtype():
    seen = set()

    def run(case):
        seen.add(case.dtype)
        return spmm(case.src, case.dst, case.x, case.n_dst).astype(case.dtype)

    for dtype in ("float64", "bfloat16"):
        check(run, "spmm", dtype=dtype, level="probe", graphs="ring-3").require()
    assert seen == {np.dtype("float64"), np.dtype("float32")}


def test_a_graph_of_ones_own_is_checked():
    mine = EdgeList([0, 1, 1], [1, 0, 0], 2, 2)
    report = check(plain, "spmm", graphs={"mine": mine}, widths=[3]).require()
    assert report.checked["probe"] == 2 and entry("ring-3").edges.n_edges == 3
    assert sarcase.SCHEMA == 1


def test_former_names_still_work_and_warn_with_the_new_name():
    from sarlite.oracle import expression, renamed

    with pytest.warns(FutureWarning, match="Part is now RankPart"):
        assert renamed.Part is RankPart
    with pytest.warns(FutureWarning, match="settled is now barrier"):
        assert expression.settled is expression.barrier
    report = check(plain, "spmm", graphs=["ring-3"], level="probe")
    with pytest.warns(FutureWarning, match="Report.told is now to_dict"):
        assert report.told() == report.to_dict()
    with pytest.raises(AttributeError, match="has no attribute 'unknown'"):
        _ = expression.unknown

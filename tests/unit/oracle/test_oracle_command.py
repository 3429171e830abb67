"""The command line of the oracle.

Tests cover cases exported for other languages, programs that are run for each case, replay, and one-line errors.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sarlite.errors import ConfigError
from sarlite.oracle import Reference, Verdict, load, sarcase, save
from sarlite.oracle.case import Case
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.external_program import ExternalProgram
from sarlite.oracle.oracle_command import main
from sarlite.oracle.selfcheck import selfcheck

pytestmark = pytest.mark.timeout(120)

# A program that knows the files alone: a mean over in-edges, and its gradient. "lose" loses an edge.
MEAN = """
import json, sys
from pathlib import Path
import numpy as np

def mean(inputs, outputs, lose=False):
    told, (src, dst) = json.loads((inputs / "case.json").read_text()), (np.load(inputs / f"{end}.npy") for end in ("src", "dst"))
    assert told["op"] == "spmm" and told["attributes"]["reduce"] == "mean"
    x = np.load(inputs / "arrays.x.npy")
    kept = slice(0, len(src) - lose)
    scale = (1 / np.maximum(np.bincount(dst, minlength=told["n_dst"]), 1)).astype(x.dtype)[:, None]
    out = np.zeros((told["n_dst"], x.shape[1]), x.dtype)
    np.add.at(out, dst[kept], x[src[kept]])
    np.save(outputs / "out.npy", out * scale)
    if (inputs / "cotangents.out.npy").exists():
        dx = np.zeros_like(x)
        np.add.at(dx, src, (np.load(inputs / "cotangents.out.npy") * scale)[dst])
        np.save(outputs / "dx.npy", dx)

if __name__ == "__main__":
    mean(Path(sys.argv[1]), Path(sys.argv[2]), "lose" in sys.argv)
"""


@pytest.fixture
def program(tmp_path):
    """Return the words of a command that runs lines of Python."""

    def make(lines, *words):
        path = tmp_path / "program.py"
        path.write_text(lines)
        return " ".join([sys.executable, str(path), "{inputs}", "{outputs}", *words])

    return make


def test_results_for_exported_cases_are_compared(tmp_path, capsys):
    """Another program computes the exported cases.

    A lost edge is named, a missing file is not covered, and a hostile file is refused.
    """
    space = {"__name__": "program"}
    exec(MEAN, space)
    assert main(["export", str(tmp_path), "spmm", "reduce=mean", "--graphs", "components-2-[345]"]) == 0
    paths = (tmp_path / "cases.txt").read_text().split()
    assert len(paths) >= 2 and all(path.startswith("spmm-") for path in paths)
    for path in paths:
        (tmp_path / "results" / path).mkdir(parents=True)
        space["mean"](tmp_path / path, tmp_path / "results" / path)
    assert main(["verify", str(tmp_path)]) == 0
    assert "PASS: results in" in capsys.readouterr().out
    probe = next(path for path in paths if "random" not in path)
    space["mean"](tmp_path / probe, tmp_path / "results" / probe, lose=True)
    assert main(["verify", str(tmp_path)]) == 1
    assert "WRONG" in (said := capsys.readouterr().out) and "lost" in said
    (tmp_path / "results" / probe / "out.npy").unlink()
    assert main(["verify", str(tmp_path)]) == 0 and "out of spmm: there is no result (as" in capsys.readouterr().out
    np.save(tmp_path / "results" / probe / "out.npy", np.array([{}]), allow_pickle=True)
    assert main(["verify", str(tmp_path)]) == 2 and "out: dtype |O" in capsys.readouterr().err
    saved = load(tmp_path / probe)
    for bounds, message in (({"out": np.zeros(7)}, "bounds.out has shape (7,), but expected.out is shape ("),
                         ({"other": np.zeros(1)}, "bounds.other has shape (1,), but expected.other is not an array"),
                         ({}, " has none")):  # fmt: skip
        save(replace(saved, bounds=bounds), tmp_path / probe, overwrite=True)
        assert main(["verify", str(tmp_path)]) == 2
        assert message in (said := capsys.readouterr().err) and said.count("\n") == 1
    (tmp_path / "cases.txt").write_text("../spmm/x.sarcase\n")
    assert main(["verify", str(tmp_path)]) == 2 and "is not the path of a case" in capsys.readouterr().err
    (tmp_path / "cases.txt").unlink()
    assert main(["export", str(tmp_path)]) == 2 and "exists already" in capsys.readouterr().err


def test_operations_that_differ_in_one_attribute_are_exported_apart(tmp_path):
    words = ["spmm reduce=sum", "spmm reduce=sum weighted=true", "attention kind=gat heads=3", "attention kind=gat masked=true",
             "attention kind=gat"]  # fmt: skip
    chosen = [word for operation in words for word in operation.split()]
    assert main(["export", str(tmp_path), *chosen, "--graphs", "components-2-3", "--level", "certified"]) == 0
    paths = (tmp_path / "cases.txt").read_text().split()
    assert len(set(paths)) == len(paths) == len(words)
    cases = [sarcase.load(tmp_path / path).case for path in paths]
    assert [(len(case.arrays), case.attributes.get("heads")) for case in cases] == [(1, None), (2, None), (3, 3), (4, 2), (3, 2)]


def test_a_program_is_checked_and_its_failure_replayed(tmp_path, program, capsys):
    check = ["check", "spmm", "reduce=mean", "--level", "probe", "--graphs", "clique-2-loops", "--command"]
    saved = tmp_path / "failure.sarcase"
    assert main([*check, program(MEAN, "lose"), "--no-shrink", "--save", str(saved)]) == 1
    assert "lost" in capsys.readouterr().out and sarcase.load(saved).finding.level == "probe"
    assert main(["replay", str(saved)]) == 1
    assert "found: probe" in (said := capsys.readouterr().out) and "edges " in said
    assert main(["replay", str(saved), "--command", program(MEAN, "lose")]) == 1
    assert main(["replay", str(saved), "--gradients", "--command", program(MEAN)]) == 0
    assert capsys.readouterr().out.count("PASS: spmm") == 1


def a_case():
    return Case("some", "spmm", EdgeList([0, 1], [1, 1], 2, 2), {"x": np.ones((2, 1), np.float32)}, {"reduce": "sum"})


@pytest.mark.parametrize("lines, message", [
    ("import sys; sys.exit('no\\nmemory')", "exit status 1: no memory"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal SIGSEGV"),
    ("import sys; print('bipartite', file=sys.stderr); sys.exit(77)", "^bipartite$"),
    ("pass", "wrote no out.npy: nothing is there"),
    ("import sys; open(sys.argv[2] + '/output.npy', 'wb').write(b'x')", "output: cannot be read"),
    ("import sys; open(sys.argv[2] + '/out.npy', 'wb').write(b'\\x93NUMPY\\x01\\x00\\xff\\xff')", "out: cannot be read"),
])  # fmt: skip
def test_failing_programs_are_reported(program, lines, message):
    with pytest.raises(Exception, match=message) as raised:
        ExternalProgram(program(lines), ("out",)).run(a_case())
    assert "\n" not in str(raised.value)


def test_a_program_that_hangs_is_killed_with_all_that_it_started(tmp_path, program):
    child = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); open(sys.argv[3], 'w').write(str(p.pid)); p.wait()"
    with pytest.raises(Exception, match="did not end within 5 s"):
        ExternalProgram(program(child, str(tmp_path / "pid")), ("out",), 5.0).run(a_case())
    assert _ends(int((tmp_path / "pid").read_text()))


def _ends(process_id):
    """Return True once a killed process is gone or a zombie, and False after a minute: a busy machine ends it later than the kill."""
    for _ in range(600):
        try:
            state = Path(f"/proc/{process_id}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state.split()[2] in "ZX":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("words, message", [
    (["check", "spmm", "--command", "./p {inputs}"], "has no {outputs}"),
    (["check", "spmm", "--command", "./no-such-program {inputs} {outputs}"], "'./no-such-program' is not an executable"),
    (["check", "spmn", "--command", "true {inputs} {outputs}"], "'spmn' is not an operation"),
    (["check", "spmm", "reduce=average", "--command", "true {inputs} {outputs}"], "reduce: 'average' is not one of"),
    (["check", "spmm", "mean", "--command", "true {inputs} {outputs}"], "'mean' is not an operation, and no NAME=VALUE"),
    (["check", "spmm", "--command", "true '{inputs} {outputs}"], "No closing quotation"),
    (["check", "spmm", "--time-limit", "0", "--command", "true {inputs} {outputs}"], "--time-limit is 0"),
    (["check", "spmm", "--levl", "ci", "--command", "true"], "--level"),
    (["replay", "nothing.sarcase"], "no such file"),
    (["verify", "nothing"], "no such file"),
    ([], "COMMAND"),
])  # fmt: skip
def test_usage_errors_are_one_line(words, message, capsys):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert message in said and said.startswith("error: ") and said.count("\n") == 1


def test_a_saved_case_of_an_unknown_operation_is_refused(tmp_path, capsys):
    path = sarcase.save(a_case(), tmp_path / "case")
    document = json.loads((path / "case.json").read_text())
    (path / "case.json").write_text(json.dumps({**document, "op": "spmn"}))
    assert main(["replay", str(path)]) == 2 and "'spmn'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="has no {inputs}"):
        ExternalProgram("true", ("out",))


def test_the_selfcheck_passes(capsys):
    assert main(["selfcheck", "--graphs", "single-[12]-*"]) == 0
    assert capsys.readouterr().out.startswith("PASS: the oracle itself")


@pytest.mark.parametrize("wrong, level", [
    ({"outputs": lambda case: {"out": np.full((case.n_dst, *case.x.shape[1:]), 0.5, case.dtype)}}, "certified"),
    ({"digest": lambda edges: ""}, "corpus"),
])  # fmt: skip
def test_the_selfcheck_finds_a_disagreement(wrong, level):
    report = selfcheck([Reference("spmm")], graphs="single-[12]-*", **wrong)
    assert report.verdict is Verdict.WRONG and {finding.level for finding in report.findings} == {level}

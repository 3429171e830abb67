"""Distributed programs that communicate by files.

Tests cover the verdict, the cause and the rank, and programs that hang, die or leave invalid results.
"""

import json
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from sarlite.errors import DataError
from sarlite.oracle import Reference, Verdict, read_results, write_parts
from sarlite.oracle.external_program import ExternalProgram
from sarlite.oracle.oracle_command import main
from sarlite.oracle.parts import Division
from sarlite.oracle.rank_checks import check_ranks, division_graphs

pytestmark = pytest.mark.timeout(120)

# A mean over in-edges and its gradient, one rank after another. "cut" loses the edges between ranks, "own" does not reduce the gradient.
MEAN = """
import json, sys
from pathlib import Path
import numpy as np

def mean(inputs, outputs, bug=""):
    told = json.loads((inputs / "case.json").read_text())
    ranks, n = told["ranks"], told["n_nodes"]
    assert told["n_ranks"] == len(ranks) and told["attributes"]["reduce"] == "mean" and told["op"] == "spmm"
    owner = np.load(inputs / told["owner"]["file"])

    def array(rank, record):
        return np.load(inputs / rank["folder"] / record["file"])

    x, g = (np.zeros((n, ranks[0]["results"]["out"][1]), "float32") for _ in range(2))
    for rank in ranks:
        ids = array(rank, rank["ids"])
        x[ids] = array(rank, rank["arrays"]["x"])
        if rank["cotangents"]:
            g[ids] = array(rank, rank["cotangents"]["out"])
    dx, own = np.zeros_like(x), {}
    for k, rank in enumerate(ranks):
        ids, src, dst = (array(rank, rank[name]) for name in ("ids", "src", "dst"))
        if bug == "cut":
            src, dst = (ends[owner[src] == k] for ends in (src, dst))
        scale = (1 / np.maximum(np.bincount(dst, minlength=n), 1)).astype("float32")[:, None]
        out = np.zeros_like(x)
        np.add.at(out, dst, x[src])
        own[k] = np.zeros_like(x)
        np.add.at(own[k], src, (g * scale)[dst])
        dx += own[k]
        np.save(outputs / rank["folder"] / "out.npy", (out * scale)[ids])
        if bug == "few":
            break
    for k, rank in enumerate(ranks):
        if rank["cotangents"]:
            np.save(outputs / rank["folder"] / "dx.npy", (own[k] if bug == "own" else dx)[array(rank, rank["ids"])])

if __name__ == "__main__":
    mean(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[4:])
"""


@pytest.fixture
def program(tmp_path):
    """Return the words of a command that runs lines of Python."""

    def make(lines, *words):
        path = tmp_path / "program.py"
        path.write_text(lines)
        return " ".join([sys.executable, str(path), "{inputs}", "{outputs}", "{ranks}", *words])

    return make


GRAPH, EDGES = division_graphs()[0]  # the graph that tells the most


@pytest.fixture
def parts():
    reference = Reference("sage-model")
    case = reference.case(EDGES, name="some", width=3)
    return Division(reference, case, reference.cotangents(case), np.arange(EDGES.n_dst) % 2, 2).parts()


class Inside:
    """A program within this process, which reads and writes files like any other."""

    def __init__(self, tmp_path, bug=""):
        self.space, self.folder, self.bug, self.count = {"__name__": "program"}, tmp_path, bug, 0
        exec(MEAN, self.space)

    def __call__(self, parts):
        self.count += 1
        inputs, outputs = (self.folder / f"{self.count}-{name}" for name in ("in", "out"))
        write_parts(parts, inputs)
        for part in parts:
            (outputs / f"rank-{part.rank}").mkdir(parents=True)
        self.space["mean"](inputs, outputs, self.bug)
        return read_results(outputs, parts)


def test_results_that_ranks_wrote_are_judged(tmp_path):
    report = check_ranks(Inside(tmp_path / "right"), "spmm", graphs=GRAPH, reduce="mean", ranks=[1, 3], parts=["random"]).require()
    assert report.checked["ranks"] == 8
    bad = check_ranks(Inside(tmp_path / "cut", "cut"), "spmm", graphs=GRAPH, reduce="mean", ranks=[2], parts=["random"]).first_bad
    assert (bad.output, bad.rank) == ("out", 0) and "edges from other ranks into rank 0 are lost" in bad.cause, str(bad)
    bad = check_ranks(Inside(tmp_path / "own", "own"), "spmm", graphs=GRAPH, reduce="mean", ranks=[2], parts=["random"]).first_bad
    assert (bad.output, bad.rank) == ("dx", 0) and bad.cause.startswith("not reduced: the gradients that other ranks have"), str(bad)
    bad = check_ranks(Inside(tmp_path / "few", "few"), "spmm", graphs=GRAPH, reduce="mean", ranks=[3], gradients=False).first_bad
    assert (bad.output, bad.rank, bad.cause) == ("out", 1, "rank 1 returned no out"), str(bad)


def test_every_process_of_a_launcher_comes_to_the_same_verdict():
    """Threads stand for processes: each calls the check, computes its own part, and returns the gathered results."""
    board, barrier, verdicts = [None, None], threading.Barrier(2), [None, None]

    def allgather(rank, mine):
        board[rank] = mine
        barrier.wait(60)
        gathered = list(board)
        barrier.wait(60)  # nobody writes before all have read
        return gathered

    def mean(part, x):
        out, degree = np.zeros_like(x), np.maximum(np.bincount(part.dst, minlength=part.n_nodes), 1).astype(np.float32)
        np.add.at(out, part.dst, x[part.src])
        return (out / degree[:, None])[part.ids]

    def process(rank, bug):
        def run(parts):
            x = np.zeros((parts[0].n_nodes, parts[0].arrays["x"].shape[1]), np.float32)
            for part in parts[: 1 if bug else 2]:
                x[part.ids] = part.arrays["x"]
            return allgather(rank, mean(parts[rank], x))

        verdicts[rank] = check_ranks(run, "spmm", graphs=GRAPH, reduce="mean", ranks=[2], parts=["random"], gradients=False)

    for bug, verdict in ((False, Verdict.PASS), (True, Verdict.WRONG)):
        threads = [threading.Thread(target=process, args=(rank, bug)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [report.verdict for report in verdicts] == [verdict, verdict] and str(verdicts[0]) == str(verdicts[1])
    assert verdicts[0].first_bad.rank == 0 and verdicts[0].first_bad.cause == "rows from other ranks are zeros", str(verdicts[0])


def test_the_command_line_runs_a_program_once_for_each_division(tmp_path, program, capsys):
    words = ["check", "spmm", "reduce=mean", "--ranks", "2", "--parts", "contiguous", "--graphs", GRAPH, "--command"]
    assert main([*words, program(MEAN), "--gradients"]) == 0
    assert "PASS: spmm(reduce='mean') on 2 ranks" in (said := capsys.readouterr().out) and "compared: 4 ranks" in said
    assert main([*words, program(MEAN, "cut"), "--save", str(tmp_path / "failure.sarcase")]) == 1
    assert "edges from other ranks into rank 0 are lost" in (said := capsys.readouterr().out) and "saved" in said
    assert json.loads((tmp_path / "failure.sarcase" / "case.json").read_text())["finding"]["rank"] == 0


@pytest.mark.parametrize("lines, verdict, text", [
    ("import sys; sys.exit('no\\nnetwork')", Verdict.WRONG, "exit status 1: no network"),
    ("import sys; print('no such layer', file=sys.stderr); sys.exit(77)", Verdict.UNSUPPORTED, "no such layer"),
    ("import time; time.sleep(600)", Verdict.LIMIT, "did not end within 1 s"),
    ("import os, shutil, sys; shutil.rmtree(sys.argv[2] + '/rank-1')", Verdict.WRONG, "there are no results of rank 1 of 2"),
])  # fmt: skip
def test_failing_programs_are_reported(program, lines, verdict, text):
    run = ExternalProgram(program(lines), ("out",), 1.0 if "sleep" in lines else 60.0).run_ranks
    report = check_ranks(run, "spmm", graphs=GRAPH, ranks=[2], parts=["random"])
    assert report.verdict is verdict and text in report.findings[0].cause, str(report)
    assert len(report.findings) == (1 if "sleep" in lines else 2)


@pytest.mark.parametrize("words, text", [
    (["--parts", "random"], "--parts: needs --ranks"), (["--ranks", "1;2"], "'1;2' is not a list"), (["--ranks", "0"], "ranks is 0"),
    (["--ranks", "2", "--level", "ci"], "--level: cannot be combined with --ranks"),
    (["--ranks", "2", "--parts", "metis"], "'metis' is not one of"),
    (["--ranks", "2", "--graphs", "nothing"], "has a name like 'nothing'"),
])  # fmt: skip
def test_wrong_options_are_refused(capsys, words, text):
    assert main(["check", "spmm", "--command", "true {inputs} {outputs}", *words]) == 2
    assert text in capsys.readouterr().err


def save(folder, parts):
    """Write results of the right shapes for every rank."""
    for part in parts:
        (folder / f"rank-{part.rank}").mkdir()
        for name, shape in part.results.items():
            np.save(folder / f"rank-{part.rank}" / f"{name}.npy", np.zeros(shape, np.float32))


def test_results_of_a_model_are_read(tmp_path, parts):
    save(tmp_path, parts)
    for part, result in zip(parts, read_results(tmp_path, parts)):
        assert result["out"].shape[0] == len(part.ids) and [len(layer) for layer in result["layers"]] == 2 * [len(part.ids)]
        assert result["gradients"].keys() == {"x", *part.state} and result["gradients"]["x"].shape == part.arrays["x"].shape
    (tmp_path / "rank-1" / "layers.1.npy").unlink()
    (tmp_path / "rank-1" / "dx.npy").unlink()
    result = read_results(tmp_path, parts)[1]
    assert "layers" not in result and "x" not in result["gradients"]


def hostile(path):
    """Write a sparse file of 1 GiB whose header has another shape than promised."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 28,)})
        file.truncate(file.tell() + (1 << 30))


@pytest.mark.parametrize("spoil, text", [
    (lambda folder: np.save(folder / "out.npy", np.zeros((1, 1), np.float32)), r"rank-1/out.npy: out: shape \(1, 1\), not \("),
    (lambda folder: hostile(folder / "out.npy"), r"rank-1/out.npy: out: shape \(268435456,\), not \("),
    (lambda folder: np.save(folder / "dX.npy", np.zeros(1)), "rank-1/dX.npy: it is not one of out.npy, layers.0.npy"),
    (lambda folder: np.save(folder / "out.npy", np.array([{}]), allow_pickle=True), r"rank-1/out.npy: out: dtype \|O"),
])  # fmt: skip
def test_hostile_results_are_refused(tmp_path, parts, spoil, text):
    save(tmp_path, parts)
    spoil(tmp_path / "rank-1")
    with pytest.raises(DataError, match=text):
        read_results(tmp_path, parts)


def test_parts_are_written_to_a_new_folder(tmp_path, parts):
    write_parts(parts, tmp_path / "new")
    with pytest.raises(DataError, match="exists already"):
        write_parts(parts, tmp_path / "new")
    with pytest.raises(DataError, match="attributes cannot be written as JSON"):
        write_parts([replace(part, attributes={"f": len}) for part in parts], tmp_path / "odd")

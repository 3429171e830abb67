"""What ends the real training command when something goes wrong: every process is gone in seconds, with the cause on stderr."""

import json
import os
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_failures import MPIEXEC, SECONDS, Job

from sarlite.data import format, load

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec beside python or on PATH"),
    pytest.mark.skipif("PMI_SIZE" in os.environ, reason="starts MPI jobs of its own, which cannot run inside one"),
]

DATA = "sbm:nodes=120,classes=3,features=8,degree=6"
MODEL = """
    import os, signal, sys, threading, time
    from pathlib import Path
    from sarlite import fn, nn

    PIDS = Path({pids!r})
    (PIDS / str(os.getpid())).touch()

    def raises(error):
        raise error

    def failure(graph, training, epoch, when):
        "Fail on rank 1 in the second epoch's training pass."
        if training and epoch == 1 and graph.comm.rank == 1:
            Path({moment!r}).touch()
            when()

    class Model(nn.Module):
        def __init__(self, n_in, n_out, *, rng, dtype):
            self.linear, self.rng = nn.Linear(n_in, n_out, rng=rng, dtype=dtype), rng

        def __call__(self, graph, h):
            training, epoch, calls = self.training, self.rng.step, []

            def message(src, dst, edge):
                calls.append(0)
                {in_message}
                return src["h"].tanh()

            {in_forward}
            return graph.aggregate(message, "sum", src={{"h": self.linear(h)}})
"""


class Failed(Job):
    """A training job; `after` is how many seconds after the failure all its processes were gone."""

    def __init__(self, folder, n_ranks, flags, environ=None, moment=None):
        launcher = [MPIEXEC, "-n", str(n_ranks)] if n_ranks else []
        command = [*launcher, sys.executable, "-m", "sarlite.train", "--threads", "1", "--progress", "none", *map(str, flags)]
        super().__init__(folder, command, environ, seconds=40)
        assert not self.running()
        self.after = time.time() - moment.stat().st_mtime if moment and moment.exists() else None


@pytest.fixture
def fail(tmp_path):
    """Train a model of the reader's own that fails as told, on n ranks of MPI (0: threads as ranks)."""
    pids, moment, path = tmp_path / "pids", tmp_path / "moment", tmp_path / "model.py"
    pids.mkdir()

    def start(in_forward="pass", in_message="pass", n_ranks=2, flags=(), **options):
        said = {"pids": str(pids), "moment": str(moment), "in_forward": in_forward, "in_message": in_message}
        path.write_text(textwrap.dedent(MODEL).format(**said))
        flags = ["--data", DATA, "--model", f"{path}:Model", "--run-dir", tmp_path / "run", "--epochs", 4, *flags]
        job = Failed(pids, n_ranks, flags, moment=moment, **options)
        assert len(list(pids.iterdir())) == (n_ranks or 1), job.err
        return job

    return start


def in_epoch_2(when):
    return f"failure(graph, training, epoch, lambda: {when})"


def assert_ended(job, *words):
    assert job.status not in (0, None)
    assert job.after is not None and job.after < SECONDS, "the failure did not happen, or not all processes ended in time"
    for word in words:
        assert word in job.err, job.err


def test_without_failure(fail):
    job = fail()
    assert job.status == 0 and job.err == "", job.err


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_a_model_that_raises(fail, n_ranks):
    job = fail(in_epoch_2("raises(KeyError('the cause'))"), n_ranks=n_ranks)
    assert_ended(job, "[rank 1] Traceback", "[rank 1] KeyError: 'the cause'", "model.py")
    assert "[rank 0]" not in job.err


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("call", [3, 5])
def test_a_message_that_raises(fail, call, prefetch):
    """Calls of the message on 2 ranks: the probe, two blocks forward, two blocks backward."""
    in_message = f"len(calls) == {call} and " + in_epoch_2("raises(KeyError('the cause'))")
    assert_ended(fail(in_message=in_message, flags=["--prefetch", prefetch]), "[rank 1] KeyError: 'the cause'", "model.py")


@pytest.mark.parametrize("code", ["0", "3"])
def test_a_model_that_exits(fail, code):
    assert_ended(fail(in_epoch_2(f"sys.exit({code})")), "[rank 1] SystemExit", "model.py")


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSEGV"])
def test_a_killed_rank(fail, number):
    job = fail(in_epoch_2(f"os.kill(os.getpid(), signal.{number})"), n_ranks=3)
    assert_ended(job)
    assert job.out + job.err != ""  # mpiexec says which rank was killed


def test_a_stall(fail):
    job = fail(in_epoch_2("time.sleep(999)"), flags=["--stall-timeout", 2])
    assert_ended(job, "[rank 0] no progress for 2 s", "[rank 1] no progress for 2 s")
    assert job.after > 2
    assert any(line.startswith("[rank 1]") and "model.py" in line for line in job.err.splitlines()), "no stack of the rank that sleeps"
    assert any(line.startswith("[rank 0]") and "transport.py" in line for line in job.err.splitlines()), "no stack of the rank that waits"


def test_a_stall_inside_a_message(fail):
    in_message = "len(calls) == 3 and " + in_epoch_2("time.sleep(999)")
    assert_ended(fail(in_message=in_message, flags=["--stall-timeout", 2]), "[rank 1] no progress for 2 s", "in message")


def test_a_slow_epoch_is_no_stall(fail):
    job = fail("time.sleep(0.8)", flags=["--stall-timeout", 4, "--epochs", 3])
    assert job.status == 0 and job.err == "", job.err


def test_a_thread_that_dies(fail):
    starts = "(threading.Thread(target=raises, args=(KeyError('the cause'),), name='loader').start(), time.sleep(999))"
    assert_ended(fail(in_epoch_2(starts)), "[rank 1] thread loader failed", "KeyError: 'the cause'")


def test_a_prefetch_thread_that_dies(fail):
    """The network breaks under the prefetch thread of one rank."""
    breaks = "setattr(type(graph.schedule.transport.fetch_comm), 'start_recv', lambda *a, **k: raises(KeyError('the cause')))"
    assert_ended(fail(in_epoch_2(breaks), flags=["--prefetch", 1]), "[rank 1] KeyError: 'the cause'", "sarlite/sar/transport.py")


@pytest.mark.parametrize("when", ["raises(KeyError('the cause'))", "sys.exit(3)", "sys.exit(0)"])
def test_threads_as_ranks(fail, when):
    job = fail(in_epoch_2(when), n_ranks=0, flags=["--ranks", 3])
    assert_ended(job)
    assert "the cause" in job.err or job.status == (3 if "3" in when else 1)


def test_a_stall_of_threads_as_ranks(fail):
    job = fail(in_epoch_2("time.sleep(999)"), n_ranks=0, flags=["--ranks", 2, "--stall-timeout", 2])
    assert_ended(job, "[rank 0] no progress for 2 s", "model.py")


# ---- bad data, on two ranks: refused on all before training, told once


def _nan(d):
    d.features[17, 3] = np.nan
    return "nodes/node/features.npy: features: row 17, column 3 is nan"


def _label(d):
    d.labels[np.flatnonzero(d.train)[0]] = 3
    return f"nodes/node/labels.npy: labels: node {np.flatnonzero(d.train)[0]} has label 3"


def _index(d):
    d.indices[5] = 120
    return "edges/node.edge.node/indices.npy: indices: edge 5 comes from node 120"


def _indptr(d):
    d.indptr[40] = d.indptr[39] - 1
    return "edges/node.edge.node/indptr.npy: indptr: entry 40"


def _overlap(d):
    d.val[np.flatnonzero(d.train)[0]] = True
    return f"nodes/node/train.npy: train: node {np.flatnonzero(d.train)[0]} is in train and in val"


def _empty(d):
    d.train[:] = False
    return "nodes/node/train.npy: train: the train split is empty"


def _empty_val(d):
    d.val[:] = False
    return "nodes/node/val.npy: val: the val split is empty"


@pytest.fixture
def refuse(tmp_path):
    """Train on two ranks and check that the command refuses: status 2, the message once, no training."""

    def start(word, *flags):
        (tmp_path / "pids").mkdir()
        job = Failed(tmp_path / "pids", 2, ["--model", "gcn", "--hidden", 4, "--run-dir", tmp_path / "run", "--epochs", 2, *flags])
        assert job.status == 2, job.err
        assert job.err.startswith("error: ") and job.err.count("error: ") == 1 and "Traceback" not in job.err, job.err
        assert word in job.err, job.err
        assert not (tmp_path / "run" / "metrics.jsonl").exists() and job.out == ""

    return start


@pytest.mark.parametrize("damage", [_nan, _label, _index, _indptr, _overlap, _empty, _empty_val])
def test_bad_data(refuse, damage, tmp_path):
    dataset = load(DATA)
    word = damage(dataset)
    format.write(tmp_path / "data", dataset)
    refuse(f"{tmp_path / 'data'}/{word}", "--data", tmp_path / "data")


def test_a_file_that_was_changed(refuse, tmp_path):
    format.write(tmp_path / "data", load(DATA))
    path = tmp_path / "data" / "nodes" / "node" / "features.npy"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    refuse(f"{path}: features: ", "--data", tmp_path / "data")


def test_a_file_that_is_missing(refuse, tmp_path):
    format.write(tmp_path / "data", load(DATA))
    (tmp_path / "data" / "nodes" / "node" / "labels.npy").unlink()
    refuse(f"{tmp_path / 'data'}/nodes/node/labels.npy", "--data", tmp_path / "data")


@pytest.mark.parametrize("flags, word", [
    (["--data", "sbm:knots=3"], "knots"), (["--data", "/no/such/data"], "/no/such/data"), (["--partition", "halves"], "halves"),
    (["--model", "/no/file.py:Model"], "/no/file.py"), (["--heads", 2], "takes no heads"),
    (["--resume", "/no/checkpoint"], "/no/checkpoint"),
])  # fmt: skip
def test_other_bad_input(refuse, flags, word):
    refuse(word, *([] if flags[0] == "--data" else ["--data", DATA]), *flags)


def test_parts_outside_the_ranks(refuse, tmp_path):
    np.savetxt(tmp_path / "parts.txt", np.arange(120) % 3, fmt="%d")
    refuse(f"{tmp_path / 'parts.txt'}: parts: node 2 has part 2", "--data", DATA, "--partition", tmp_path / "parts.txt")


def test_a_checkpoint_of_another_model_is_told_once(tmp_path):
    (tmp_path / "pids").mkdir()
    flags = ["--data", DATA, "--model", "gcn", "--epochs", 1]
    assert Failed(tmp_path / "pids", 2, [*flags, "--hidden", 4, "--run-dir", tmp_path / "one"]).status == 0
    path = tmp_path / "one" / "checkpoint.safetensors"
    again = [*flags, "--hidden", 4, "--layers", 6, "--batch-norm", "--resume", path, "--run-dir", tmp_path / "two"]
    job = Failed(tmp_path / "pids", 2, again, environ={"PYTHONHASHSEED": "random"})
    assert job.status == 2 and job.err.startswith(f"error: checkpoint {path}: '") and job.err.count("\n") == 1, job.err


def test_the_same_run_on_mpi_and_on_threads(tmp_path):
    (tmp_path / "pids").mkdir()
    flags = ["--data", DATA, "--model", "gat", "--hidden", 4, "--heads", 2, "--epochs", 3, "--json"]
    job = Failed(tmp_path / "pids", 3, [*flags, "--run-dir", tmp_path / "mpi"])
    assert job.status == 0, job.err
    threads = Failed(tmp_path / "pids", 0, [*flags, "--ranks", 3, "--run-dir", tmp_path / "threads"])
    assert threads.status == 0, threads.err
    one, other = ([json.loads(line) for line in (tmp_path / name / "metrics.jsonl").open()] for name in ("mpi", "threads"))
    np.testing.assert_allclose([m["loss"] for m in one], [m["loss"] for m in other], rtol=1e-5)
    found = json.loads(job.out.splitlines()[-1])
    assert found["ranks"] == 3 and len(found["peak_bytes"]) == 3 and 1 <= found["live_remote_buffers"] <= 2
    assert found["sent_bytes"] == json.loads(threads.out.splitlines()[-1])["sent_bytes"]

"""Failures of the real training command: every process is gone in seconds, and the cause is on stderr."""

import json
import os
import shlex
import signal
import textwrap

import numpy as np
import pytest

from sarlite.train import checkpoint
from tests.helpers.train.jobs import MPIEXEC, SECONDS, STALL_SECONDS, Failed, assert_ended

pytestmark = [
    pytest.mark.timeout(90 + 10 * SECONDS),
    pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec beside python or on PATH"),
    pytest.mark.skipif("PMI_SIZE" in os.environ, reason="starts MPI jobs of its own, which cannot run inside one"),
]

STALLED = f"no progress for {STALL_SECONDS:g} s"
DATA = "sbm:nodes=120,classes=3,features=8,degree=6"
MODEL = """
    import os, signal, sys, threading, time
    from pathlib import Path
    from sarlite import fn, nn

    PIDS = Path({pids!r})
    (PIDS / str(os.getpid())).touch()
    {at_import}

    def launcher():
        "The mpiexec that started this rank's proxy; this process where there is none."
        if "PMI_SIZE" not in os.environ:
            return os.getpid()
        return int(Path(f"/proc/{{os.getppid()}}/stat").read_text().rsplit(")", 1)[1].split()[1])

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


@pytest.fixture
def fail(tmp_path):
    """Return a function that trains a user's model with a fault, on n ranks of MPI (0: threads as ranks)."""
    pids, moment, path = tmp_path / "pids", tmp_path / "moment", tmp_path / "model.py"
    pids.mkdir()

    def start(in_forward="pass", in_message="pass", n_ranks=2, flags=(), at_import="pass", **options):
        said = {"at_import": at_import, "pids": str(pids), "moment": str(moment), "in_forward": in_forward, "in_message": in_message}
        path.write_text(textwrap.dedent(MODEL).format(**said))
        flags = ["--data", DATA, "--model", f"{path}:Model", "--run-dir", tmp_path / "run", "--epochs", 4, *flags]
        job = Failed(pids, n_ranks, flags, moment=moment, **options)
        assert len(list(pids.iterdir())) == (n_ranks or 1), job.err
        return job

    return start


def in_epoch_2(when):
    return f"failure(graph, training, epoch, lambda: {when})"


def test_a_run_without_failure_ends_silently(fail):
    job = fail()
    assert job.status == 0 and job.err == "", job.err


def test_a_model_that_raises(fail):
    job = fail(in_epoch_2("raises(KeyError('the cause'))"), n_ranks=3)
    assert_ended(job, "[rank 1] Traceback", "[rank 1] KeyError: 'the cause'", "model.py")
    assert "[rank 0]" not in job.err


@pytest.mark.sampled(1)
@pytest.mark.parametrize("call, prefetch", [(3, 1), (5, 0)])
def test_a_message_that_raises(fail, call, prefetch):
    """The message is called on 2 ranks for the probe, for two blocks forward and for two blocks backward."""
    in_message = f"len(calls) == {call} and " + in_epoch_2("raises(KeyError('the cause'))")
    assert_ended(fail(in_message=in_message, flags=["--prefetch", prefetch]), "[rank 1] KeyError: 'the cause'", "model.py")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("code", ["0", "3"])
def test_a_model_that_exits(fail, code):
    assert_ended(fail(in_epoch_2(f"sys.exit({code})")), "[rank 1] SystemExit", "model.py")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", ["SIGKILL", "SIGSEGV"])
def test_a_killed_rank(fail, number):
    job = fail(in_epoch_2(f"os.kill(os.getpid(), signal.{number})"), n_ranks=3)
    assert_ended(job)
    assert job.out + job.err != ""  # mpiexec says which rank was killed


@pytest.mark.sampled(2)
@pytest.mark.parametrize("when, words", [("raises(KeyError('the cause'))", ["[rank 1] KeyError: 'the cause'", "model.py"]),
                                         ("os.kill(os.getpid(), signal.SIGKILL)", [])])  # fmt: skip
@pytest.mark.parametrize("remote", ["exact", "hec", "local"])
def test_a_failure_on_minibatches_ends_all_ranks(fail, remote, when, words):
    """The failure is in the second step, while threads sample the next batch and push rows."""
    flags = ["--batch-size", 4, "--fanouts", 5, "--remote", remote, *(["--halo-features", "cache"] if remote == "hec" else [])]
    entered = "graph, h = graph.layers(1)[0].enter(h); " + in_epoch_2(when)
    assert_ended(fail(entered, flags=flags), *words)


def test_a_stall_ends_the_run_with_the_stacks_of_all_ranks(fail):
    job = fail(in_epoch_2("time.sleep(999)"), flags=["--stall-timeout", STALL_SECONDS])
    assert_ended(job, f"[rank 0] {STALLED}", f"[rank 1] {STALLED}")
    assert any(line.startswith("[rank 1]") and "model.py" in line for line in job.err.splitlines()), "no stack of the rank that sleeps"
    assert any(line.startswith("[rank 0]") and "transport.py" in line for line in job.err.splitlines()), "no stack of the rank that waits"


def test_a_stall_inside_a_message(fail):
    in_message = "len(calls) == 3 and " + in_epoch_2("time.sleep(999)")
    assert_ended(fail(in_message=in_message, flags=["--stall-timeout", STALL_SECONDS]), f"[rank 1] {STALLED}", "in message")


def test_a_slow_epoch_is_no_stall(fail):
    job = fail(f"time.sleep({STALL_SECONDS / 2})", flags=["--stall-timeout", 2 * STALL_SECONDS, "--epochs", 3])
    assert job.status == 0 and job.err == "", job.err


def test_a_thread_that_dies(fail):
    starts = "(threading.Thread(target=raises, args=(KeyError('the cause'),), name='loader').start(), time.sleep(999))"
    assert_ended(fail(in_epoch_2(starts)), "[rank 1] thread loader failed", "KeyError: 'the cause'")


def test_a_prefetch_thread_that_dies(fail):
    """The network breaks under the prefetch thread of one rank."""
    breaks = "setattr(type(graph.schedule.transport.fetch_comm), 'start_recv', lambda *a, **k: raises(KeyError('the cause')))"
    assert_ended(fail(in_epoch_2(breaks), flags=["--prefetch", 1]), "[rank 1] KeyError: 'the cause'")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("when", ["raises(KeyError('the cause'))", "sys.exit(3)", "sys.exit(0)"])
def test_threads_as_ranks(fail, when):
    job = fail(in_epoch_2(when), n_ranks=0, flags=["--ranks", 3])
    assert_ended(job)
    assert "the cause" in job.err or job.status == (3 if "3" in when else 1)


def test_a_stall_of_threads_as_ranks(fail):
    job = fail(in_epoch_2("time.sleep(999)"), n_ranks=0, flags=["--ranks", 2, "--stall-timeout", STALL_SECONDS])
    assert_ended(job, f"[rank 0] {STALLED}", "model.py")


# ---- signals


def interrupted(job, name, tmp_path):
    """Check that the job told in one line how to resume, and that its checkpoint is good; return its epoch and the command."""
    assert job.status == 128 + signal.Signals[name], job.err
    path = tmp_path / "run" / "checkpoint.safetensors"
    assert job.err.startswith(f"interrupted by {name} after epoch ") and job.err.count("\n") == 1, job.err
    assert sorted(os.listdir(tmp_path / "run")) == ["checkpoint.safetensors", "config.toml", "metrics.jsonl"]
    command = job.err.partition("to continue: ")[2].split()
    assert command[-6:-1] == ["-m", "sarlite.train", "--resume", shlex.quote(str(path)), "--model"]
    assert command[-1].startswith(shlex.quote(str(tmp_path / "model.py")))
    return checkpoint.load(path)[1]["epoch"], command


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("n_ranks, flags", [(1, []), (2, []), (3, ["--prefetch", 1]), (0, []), (0, ["--ranks", 3])])
def test_a_signal_ends_the_run_with_a_checkpoint(fail, tmp_path, name, n_ranks, flags):
    """The signal goes to the launcher, which passes it on to its ranks; they receive it at different moments."""
    job = fail(f"training and epoch == 1 and graph.comm.rank == 0 and os.kill(launcher(), signal.{name})", n_ranks=n_ranks,
               flags=[*flags, "--epochs", 50])  # fmt: skip
    epoch, command = interrupted(job, name, tmp_path)
    assert 2 <= epoch < 50
    assert command[:2] == (["mpiexec", "-n"] if n_ranks > 1 else ["python", "-m"])


def test_the_command_that_goes_on(fail, tmp_path):
    job = fail("training and epoch == 1 and graph.comm.rank == 0 and os.kill(launcher(), signal.SIGTERM)", flags=["--epochs", 5])
    epoch, command = interrupted(job, "SIGTERM", tmp_path)
    (tmp_path / "model.py").write_text((tmp_path / "model.py").read_text().replace("os.kill", "print"))
    again = Failed(tmp_path / "pids", int(command[2]), command[6:])
    assert again.status == 0, again.err
    assert [json.loads(line)["epoch"] for line in (tmp_path / "run" / "metrics.jsonl").open()] == [1, 2, 3, 4, 5]
    assert checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")[1]["epoch"] == 5


@pytest.mark.sampled(1)
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_a_signal_to_one_rank_is_every_ranks(fail, tmp_path, n_ranks):
    job = fail(in_epoch_2("os.kill(os.getpid(), signal.SIGTERM)"), n_ranks=n_ranks, flags=["--epochs", 50])
    assert interrupted(job, "SIGTERM", tmp_path)[0] == 2


@pytest.mark.parametrize("n_ranks, moment", [(2, "training and epoch == 1"), (0, "not training and epoch == 1")])
def test_a_signal_in_the_last_epoch_is_told_once_the_run_is_complete(fail, tmp_path, n_ranks, moment):
    """One signal comes while the last epoch is evaluated, after the ranks' votes."""
    condition = f"{moment} and graph.comm.rank == graph.comm.size - 1 and "
    job = fail(condition + "os.kill(os.getpid(), signal.SIGTERM)", n_ranks=n_ranks, flags=["--epochs", 2])
    assert job.status == 128 + signal.SIGTERM and "accuracy" in job.out
    assert job.err == "interrupted by SIGTERM in epoch 2, the last one: the run is complete\n"
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_signal_in_the_last_epoch_leaves_what_comes_after_it(fail, tmp_path):
    job = fail(in_epoch_2("os.kill(os.getpid(), signal.SIGTERM)"), flags=["--epochs", 2, "--correct-and-smooth"])
    assert interrupted(job, "SIGTERM", tmp_path)[0] == 2 and "smoothed" not in job.out


@pytest.mark.sampled(1)
@pytest.mark.parametrize("n_ranks, flags", [(2, []), (0, ["--ranks", 2])])
@pytest.mark.parametrize("block", ["time.sleep(999)", "graph.comm.start_recv(__import__('numpy').empty(1), 0, 9).wait()"])
def test_a_second_signal_ends_it_at_once(fail, tmp_path, n_ranks, flags, block):
    """The epoch never ends, and MPI's wait is in C, where Python's handlers do not run."""
    twice = "[threading.Timer(s, os.kill, (launcher(), signal.SIGTERM)).start() for s in (0.1, 2)]"
    job = fail(in_epoch_2(f"({twice}, {block})"), n_ranks=n_ranks, flags=[*flags, "--epochs", 50, "--checkpoint-every", 1])
    assert job.status != 0 and job.failed
    assert "interrupted by SIGTERM" in job.err and "Traceback" not in job.err and "File" not in job.err, job.err
    assert checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")[1]["epoch"] == 1


LOADING = "import sarlite.data.divided_data as ranks, sarlite.data.spec as spec; ranks.load = lambda *a, **k: {}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n_ranks, flags", [(0, []), (2, []), (3, []), (0, ["--ranks", 2])])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_data_load(fail, tmp_path, n_ranks, flags, name):
    at_import = LOADING.format(f"(os.kill(launcher(), signal.{name}), time.sleep(999))")
    job = fail(n_ranks=n_ranks, flags=flags, at_import=at_import)
    assert job.status != 0 and "Traceback" not in job.err
    messages = [line.partition("] ")[2] or line for line in job.err.splitlines() if not line.startswith("Abort(")]  # MPICH prints this line
    assert set(messages) == {f"interrupted by {name}"}, job.err
    assert not (tmp_path / "run").exists() or not os.listdir(tmp_path / "run")


# ---- while data load


def test_a_load_that_is_blocked_is_a_stall(fail):
    job = fail(flags=["--stall-timeout", STALL_SECONDS], at_import=LOADING.format("time.sleep(999)"))
    assert job.status not in (0, None) and f"[rank 0] {STALLED}" in job.err and f"[rank 1] {STALLED}" in job.err


@pytest.mark.sampled(1)
@pytest.mark.parametrize("n_ranks, flags", [(2, []), (0, ["--ranks", 2])])
def test_a_long_load_is_no_stall(fail, n_ranks, flags):
    over = f"lambda end=time.monotonic() + {1.3 * STALL_SECONDS}: time.monotonic() > end"
    work = f"(any(0 for _ in iter({over}, True)), spec.load(*a, **k))[1]"
    job = fail(n_ranks=n_ranks, flags=["--stall-timeout", STALL_SECONDS, *flags], at_import=LOADING.format(work), seconds=100)
    assert job.status == 0 and job.err == "", job.err


def test_a_long_child_is_no_stall(fail):
    """Parts, for example, are computed by a child process."""
    code = f"import time\\nend = time.monotonic() + {1.3 * STALL_SECONDS}\\nwhile time.monotonic() < end: pass"
    work = f"(subprocess.run([sys.executable, '-c', '{code}']), spec.load(*a, **k))[1]"
    job = fail(flags=["--stall-timeout", STALL_SECONDS], at_import="import subprocess; " + LOADING.format(work), seconds=100)
    assert job.status == 0 and job.err == "", job.err


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n_ranks, flags", [(2, []), (0, ["--ranks", 2])])
@pytest.mark.parametrize("error", ["KeyError('the cause')", "MemoryError('the cause')"])
def test_any_error_while_data_load(fail, n_ranks, flags, error):
    job = fail(n_ranks=n_ranks, flags=flags, at_import=LOADING.format(f"raises({error})"))
    assert job.status not in (0, None) and "the cause" in job.err


# ---- what is refused


@pytest.mark.parametrize("flags, word", [
    (["--data", "/no/such/data"], "/no/such/data"), (["--data", DATA, "--heads", 2], "takes no heads"),
])  # fmt: skip
def test_a_refusal_of_two_ranks_is_told_once(tmp_path, flags, word):
    (tmp_path / "pids").mkdir()
    job = Failed(tmp_path / "pids", 2, ["--model", "gcn", "--hidden", 4, "--epochs", 2, "--run-dir", tmp_path / "run", *flags])
    assert job.status == 2 and word in job.err and job.out == "", job.err
    assert job.err.startswith("error: ") and job.err.count("error: ") == 1 and "Traceback" not in job.err, job.err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_checkpoint_of_another_model_is_told_once(tmp_path):
    (tmp_path / "pids").mkdir()
    flags = ["--data", DATA, "--model", "gcn", "--epochs", 1]
    assert Failed(tmp_path / "pids", 2, [*flags, "--hidden", 4, "--run-dir", tmp_path / "one"]).status == 0
    path = tmp_path / "one" / "checkpoint.safetensors"
    again = [*flags, "--hidden", 4, "--layers", 6, "--batch-norm", "--resume", path, "--run-dir", tmp_path / "two"]
    job = Failed(tmp_path / "pids", 2, again, environ={"PYTHONHASHSEED": "random"})
    assert job.status == 2 and job.err.startswith("error: --layers 6: cannot change") and job.err.count("\n") == 1, job.err


def test_the_same_run_on_mpi_and_on_threads(tmp_path):
    (tmp_path / "pids").mkdir()
    flags = ["--data", DATA, "--model", "gat", "--hidden", 4, "--heads", 2, "--epochs", 3, "--json"]
    job = Failed(tmp_path / "pids", 3, [*flags, "--run-dir", tmp_path / "mpi"])
    assert job.status == 0, job.err
    here = Failed(tmp_path / "pids", 0, [*flags, "--ranks", 3, "--run-dir", tmp_path / "threads"])
    assert here.status == 0, here.err
    one, other = ([json.loads(line) for line in (tmp_path / name / "metrics.jsonl").open()] for name in ("mpi", "threads"))
    np.testing.assert_allclose([m["loss"] for m in one], [m["loss"] for m in other], rtol=1e-5)
    report = json.loads(job.out.splitlines()[-1])
    assert report["ranks"] == 3 and len(report["peak_bytes"]) == 3 and 1 <= report["live_remote_buffers"] <= 2
    assert report["sent_bytes"] == json.loads(here.out.splitlines()[-1])["sent_bytes"]

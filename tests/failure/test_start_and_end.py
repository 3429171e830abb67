"""Failures before the guard and after it.

Ranks never come, leave, or hang in Python's end; launchers are killed; memory or threads are missing.
"""

import os
import sys

import pytest

from tests.failure import faults
from tests.helpers.train.jobs import MPIEXEC, STARTS_JOBS, Job

pytestmark = STARTS_JOBS

TRAIN = [sys.executable, "-m", "sarlite.train", "--data", "sbm:nodes=60,classes=2,features=4,degree=4", "--model", "gcn", "--hidden", "4",
         "--epochs", "1", "--threads", "1", "--progress", "none"]  # fmt: skip


@pytest.fixture
def ranks(tmp_path):
    """Return a function that starts another command on each of two ranks."""
    (tmp_path / "pids").mkdir()

    def start(first, second, seconds=40):
        return Job(tmp_path / "pids", [MPIEXEC, "-n", "1", *first, ":", "-n", "1", *second], seconds=seconds)

    return start


@pytest.mark.parametrize("bad", [0, 1])
def test_a_bad_flag_on_one_rank(ranks, bad, tmp_path):
    commands = [[*TRAIN, "--run-dir", str(tmp_path / "run")] for _ in range(2)]
    commands[bad] += ["--epochs", "-3"]
    refused = ranks(*commands)
    assert (refused.status, refused.err) == (2, f"error: {'rank 1: ' if bad else ''}--epochs -3 is less than 1\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("flag, values", [("mode", "sar sa"), ("epochs", "1 2"), ("dtype", "float32 float64"), ("prefetch", "0 1")])
def test_options_that_differ(ranks, flag, values, tmp_path):
    refused = ranks(*([*TRAIN, "--run-dir", str(tmp_path / "run"), f"--{flag}", value] for value in values.split()))
    first, second = values.split()
    assert refused.status == 2 and refused.err.startswith(f"error: --{flag} is ") and refused.err.count("\n") == 1
    assert first in refused.err and second in refused.err and "rank 1" in refused.err


def test_a_rank_that_never_starts(ranks):
    failed = ranks([*TRAIN, "--stall-timeout", "2"], ["sleep", "99"])
    assert failed.status != 0 and "Timeout (0:00:02)!" in failed.err and "in connect" in failed.err


@pytest.mark.parametrize("leaves", ["sys.exit(0)", "sys.exit(3)", "raise KeyError('the cause')"])
def test_a_rank_that_leaves_before_it_connects(ranks, leaves, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nfrom sarlite.comm import launch\nlaunch.begin()\n"
                      f"if os.environ['PMI_RANK'] == '1': {leaves}\nlaunch.connect()")
    failed = ranks(*[[sys.executable, str(script)]] * 2)
    assert failed.status != 0 and ("Error" in failed.err) == ("Error" in leaves)


@pytest.mark.parametrize("victim", ["proxy", "launcher"])
def test_a_killed_launcher_leaves_no_process(job, victim):
    pid = "os.getppid()" if victim == "proxy" else "int(Path(f'/proc/{os.getppid()}/stat').read_text().rsplit(')', 1)[1].split()[1])"
    failed = job(2, f"""
        launch.begin()
        with guard(comm):
            comm.barrier()
            if rank == 1:
                os.kill({pid}, signal.SIGKILL)
            for _ in range(200):
                time.sleep(0.1)  # and not in MPI, which would notice
    """, slow_end=True)
    assert failed.status != 0


def test_python_that_does_not_end(job):
    failed = job(2, """
        import atexit
        launch.begin(2)
        with guard(comm):
            comm.barrier()
        if rank == 1:
            atexit.register(time.sleep, 9)  # once in a hundred runs the launcher did not end it
    """)
    assert failed.status != 0 and "Timeout (0:00:02)!" in failed.err


def test_a_crash_tells_its_place(job):
    failed = job(2, """
        launch.begin()
        with guard(comm):
            comm.barrier()
            if rank == 1:
                os.abort()
            receive()
    """)
    assert failed.status != 0 and "Fatal Python error: Aborted" in failed.err and "script.py" in failed.err


@pytest.mark.parametrize("cause, words", [
    ("raise KeyError('the cause')", "KeyError: 'the cause'"), ("bytearray(1 << 30)", "MemoryError"),
    ("threading.Thread(target=receive).start()", "can't start new thread"), ("receive()", "thread fails failed"),
])  # fmt: skip
def test_short_of_memory_and_threads(job, cause, words):
    """No thread starts, as no address space is left for its stack."""
    failed = job(2, f"""
        import resource
        def fail():
            time.sleep(1)
            bytearray(1 << 30)
        launch.begin()
        with guard(comm):
            comm.barrier()
            if rank == 1:
                if "{words}" == "thread fails failed":
                    threading.Thread(target=fail, name="fails").start()
                in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (in_use + (1 << 25),) * 2)  # MPI needs some, and aborts
                threading.stack_size(1 << 28)
                {cause}
            receive()
    """)
    assert failed.status != 0 and words in failed.err, failed.err


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_no_threads_left(job):
    failed = job(2, """
        import resource
        launch.begin()
        with guard(comm):
            comm.barrier()
            if rank == 1:
                resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
                os.setresuid(65534, 65534, 65534)
                threading.Thread(target=receive).start()
            receive()
    """)
    assert failed.status != 0 and "[rank 1] RuntimeError: can't start new thread" in failed.err


SEND = """
    def send():
        comm.channel("a").start_send(np.zeros(1 << 20), (rank + 1) % comm.size).wait()

    comm.channel("a")
    threading.Thread(target=send, daemon=True, name="sends").start()
    time.sleep(0.2)
"""


def test_a_refusal_while_a_thread_waits_for_a_send(job):
    ended = job(3, SEND + """
    with guard(comm):
        raise errors.DataError("file x")
    """)
    assert (ended.status, ended.err) == (2, "error: file x\n")


@pytest.mark.parametrize("wait", ["comm.channel('a').start_send(np.zeros(1 << 20), (rank + 1) % comm.size).wait()",
                                  "comm.channel('a').broadcast(np.zeros(1 << 20), 0) if rank else time.sleep(99)"])
def test_python_ends_while_a_thread_cannot_be_woken(job, wait):
    ended = job(3, f"""
        def waits():
            {wait}

        comm.channel("a")
        threading.Thread(target=waits, daemon=True, name="waits").start()
        time.sleep(0.3)
    """, slow_end=True)
    assert ended.status != 0 and "waits in MPI: waits" in ended.err and "Segmentation" not in ended.err


def test_the_name_of_shared_memory_is_gone_once_connected(job):
    done = job(2, """
        print([line.rstrip() for line in open("/proc/self/maps") if " /dev/shm/" in line and not line.endswith("(deleted)\\n")])
    """)
    assert (done.status, sorted(done.out.replace("\n", ""))) == (0, ["[", "[", "]", "]"])


@pytest.mark.timeout(900)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", [0, 7])
def test_the_faults_in_short(first):
    """Some kinds of faults; `python -m tests.failure.faults` runs all kinds, many times."""
    done = faults.campaign(first + 2, seed=1, first=first)
    assert not [(run.case, findings, run.told) for run, findings in done if findings]


def test_a_command_that_a_rank_starts(job, tmp_path):
    """The child is told which variables of the launcher it must not have, and runs without them."""
    done = job(2, f"""
        import subprocess
        words = [*{TRAIN!r}, "--run-dir", r"{tmp_path}/run" + str(rank)]
        without = {{name: value for name, value in os.environ.items() if not name.startswith(("PMI", "MPI", "HYD"))}}
        for environ in (None, without):
            found = subprocess.run(words, capture_output=True, text=True, env=environ)
            sys.stdout.write(f"{{found.returncode}} {{found.stderr}}\\n")
    """, seconds=60)
    assert done.status == 0, done.err
    lines = sorted(filter(str.strip, done.out.splitlines()))
    assert [line[:1] for line in lines] == ["0", "0", "2", "2"]
    assert all("PMI_RANK" in line and "is not a rank: start it as `env -u" in line for line in lines[2:])


@pytest.mark.timeout(300)
def test_a_fault_that_never_strikes_is_a_finding(monkeypatch, tmp_path):
    """Without prefetch, no thread exists whose wait could fail."""
    monkeypatch.setattr(faults, "OPTIONS", [*faults.OPTIONS, "--prefetch", "0"])
    run = faults.Run(tmp_path, faults.Case("prefetch", "threads", 2, 0, 0.5), 5.0)
    assert list(run.findings()) == ["the fault never struck"]

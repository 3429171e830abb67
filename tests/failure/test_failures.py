"""Failures of a real MPI job: every process is gone in seconds, and the cause is on stderr."""

import os
import signal

import pytest

from tests.helpers.train.jobs import ROOT, STALL_SECONDS, STARTS_JOBS

pytestmark = STARTS_JOBS


def test_a_job_without_failure(job):
    done = job(3, """
        with guard(comm, stall_seconds=5) as watch:
            for epoch in range(3):
                watch.tick()
                time.sleep(0.1 * rank)
                comm.barrier()
        sys.stdout.write(f"after {rank}\\n")  # one write: the launcher joins what ranks print in pieces
    """)
    assert (done.status, done.err) == (0, "")
    assert sorted(done.out.split("\n")) == ["", "after 0", "after 1", "after 2"]


@pytest.mark.parametrize("n_ranks, others", [(2, "receive()"), *((3, others) for others in (
    "receive()", "comm.barrier()", "time.sleep(99)", "pass"))])
def test_exception_on_one_rank(job, n_ranks, others):
    failed = job(n_ranks, f"""
        with guard(comm):
            comm.barrier()
            if rank == last:
                raise KeyError("the cause")
            {others}
    """)
    assert failed.status != 0
    assert f"[rank {n_ranks - 1}] KeyError: 'the cause'" in failed.err
    assert f"[rank {n_ranks - 1}] Traceback" in failed.err and 'raise KeyError("the cause")' in failed.err
    assert "[rank 0]" not in failed.err


def test_exceptions_on_all_ranks_at_once(job):
    failed = job(3, """
        with guard(comm):
            comm.barrier()
            raise KeyError(f"from {rank}")
    """)
    assert failed.status != 0 and "KeyError: 'from" in failed.err


@pytest.mark.sampled(2)
@pytest.mark.parametrize("code", ["0", "1", "'a reason'", ""])
def test_sys_exit_on_one_rank(job, code):
    failed = job(2, f"""
        with guard(comm):
            if rank == 1:
                sys.exit({code})
            receive()
    """)
    assert failed.status != 0
    assert "[rank 1] SystemExit" in failed.err and f"sys.exit({code})" in failed.err


@pytest.mark.parametrize("where", ["", "threading.Thread(target=lambda: "])
def test_os_exit_with_status_0_is_not_taken_for_an_end(job, where):
    """Without the guard's message, MPICH's launcher would end the job with status 0."""
    failed = job(2, f"""
        with guard(comm):
            comm.barrier()
            if rank == 1:
                child = os.fork()
                if not child:
                    os._exit(0)  # as multiprocessing's children do, which are no ranks
                os.waitpid(child, 0)
                print("goes on", flush=True)
                {where}os._exit(0){").start()" if where else ""}
            receive()
    """)
    assert failed.status != 0 and failed.err.count("[rank 1] os._exit(0) was called here:") == 1
    assert "os._exit(0)" in failed.err.partition("here:")[2] and "[rank 0]" not in failed.err and "goes on" in failed.out


def test_sys_exit_where_others_are_done(job):
    failed = job(2, """
        with guard(comm):
            if rank == 1:
                sys.exit(0)
    """)
    assert failed.status != 0 and "[rank 1] SystemExit" in failed.err


@pytest.mark.parametrize("code", [0, 3])
def test_sys_exit_on_all_ranks(job, code):
    ended = job(2, f"""
        with guard(comm):
            sys.exit({code})
    """)
    assert (ended.status, ended.err) == (code, "")


@pytest.mark.parametrize("end", ["raise KeyError('the cause')", "sys.exit()"])
def test_a_thread_that_dies(job, end):
    failed = job(2, f"""
        def prefetch():
            {end}
        with guard(comm):
            comm.barrier()
            if rank == 1:
                threading.Thread(target=prefetch, name="prefetch").start()
            receive()
    """)
    assert failed.status != 0
    assert "[rank 1] thread prefetch failed:" in failed.err and end in failed.err


def test_a_dead_thread_ends_one_rank_alone(job):
    failed = job(0, """
        def load():
            raise KeyError("the cause")
        with guard(comm):
            threading.Thread(target=load, name="loader").start()
            time.sleep(99)
    """)
    assert failed.status != 0 and "KeyError: 'the cause'" in failed.err


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSEGV"])
def test_a_killed_rank(job, number):
    failed = job(3, f"""
        with guard(comm):
            comm.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.{number})
            receive()
    """)
    assert failed.status != 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("main", ["receive()", "time.sleep(99)"])
def test_a_signal_to_one_rank(job, number, main):
    failed = job(2, f"""
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what starts in the background ignores it
        with guard(comm):
            comm.barrier()
            if rank == 1:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.{number})).start()
            {main}
    """)
    assert failed.status != 0  # `receive` waits in C, so Python's handler does not run
    assert f"[rank 1] interrupted by {number}" in failed.err and "Traceback" not in failed.err and "File" not in failed.err


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_signal_to_all_ranks_is_told_once(job, number):
    failed = job(3, f"""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with guard(comm):
            comm.barrier()
            threading.Timer(0.2, os.kill, (os.getpid(), signal.{number})).start()
            time.sleep(99)
    """)
    assert failed.status == 128 + signal.Signals[number] and failed.err == f"interrupted by {number}\n"


def test_a_postponed_signal(job):
    done = job(2, """
        with guard(comm) as watch:
            with watch.interrupts.postponed():
                comm.barrier()
                if rank == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(0.1)
                    assert watch.interrupts.pending == signal.SIGTERM
                comm.barrier()
    """)
    assert (done.status, done.err) == (0, "")


def test_a_stall_ends_the_job_with_the_stacks_of_all_ranks(job):
    failed = job(3, """
        with guard(comm, stall_seconds=2) as watch:
            watch.tick()
            if rank == 1:
                while True:
                    time.sleep(1)  # never sends
            receive()
    """)
    assert failed.status != 0
    for rank in range(3):
        assert f"[rank {rank}] no progress for 2 s" in failed.err
        line = "while True" if rank == 1 else "in receive"
        frames = [text for text in failed.err.splitlines() if text.startswith(f"[rank {rank}]   File") and "script.py" in text]
        assert frames, (line, failed.err)
    assert failed.err.count("in receive") == 2


def test_a_stall_after_some_ranks_are_done(job):
    failed = job(2, """
        with guard(comm, stall_seconds=1):
            if rank == 1:
                receive()
    """)
    assert failed.status != 0
    assert "[rank 0] no progress" in failed.err and "[rank 1] no progress" in failed.err


def test_a_slow_rank_is_no_stall(job):
    done = job(3, f"""
        with guard(comm, stall_seconds={STALL_SECONDS / 2}) as watch:
            for _ in range(20 if rank == 1 else 0):
                time.sleep({STALL_SECONDS / 16})
                watch.tick()
            comm.barrier()
    """)
    assert (done.status, done.err) == (0, "")


def test_a_stopped_rank(job):
    failed = job(2, """
        with guard(comm, stall_seconds=1) as watch:
            comm.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            receive()
    """)
    assert failed.status != 0 and "[rank 0] another rank's watchdog does not answer" in failed.err


def test_a_stall_without_thread_support(job):
    failed = job(2, """
        assert not comm.threaded
        with guard(comm, stall_seconds=1):
            receive()
    """, environ={"MPI4PY_RC_THREAD_LEVEL": "funneled"})
    assert failed.status != 0 and "no progress for 1 s" in failed.err


def test_sys_exit_on_one_rank_without_thread_support(job):
    failed = job(2, """
        with guard(comm):
            if rank == 1:
                sys.exit(0)
            receive()
    """, environ={"MPI4PY_RC_THREAD_LEVEL": "funneled"})
    assert failed.status != 0 and "[rank 1] SystemExit" in failed.err


def test_success_and_refusal_without_thread_support(job):
    done = job(2, """
        assert not comm.threaded
        with guard(comm):
            comm.barrier()
        with guard(comm):
            errors.raise_together(comm, errors.DataError("file x") if rank == 1 else None)
    """, environ={"MPI4PY_RC_THREAD_LEVEL": "funneled"})
    assert done.status == 2 and done.err == "error: rank 1: file x\n"


@pytest.mark.parametrize("guarded", [True, False])
def test_python_ends_while_a_thread_waits_in_mpi(job, guarded):
    ended = job(3, f"""
        def wait():
            try:
                receive()
            except errors.PeerError:
                pass

        threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.2)
        if {guarded}:
            with guard(comm):
                raise errors.DataError("file x")
    """)
    assert (ended.status, ended.err) == ((2, "error: file x\n") if guarded else (0, ""))


def test_a_stall_alone_is_printed_and_goes_on(job):
    done = job(0, """
        with guard(comm, stall_seconds=0.3):
            time.sleep(0.5)
        print("after")
    """)
    assert (done.status, done.out) == (0, "after\n") and "[rank 0] no progress for 0.3 s" in done.err


@pytest.mark.sampled(4)
@pytest.mark.parametrize("n_ranks", [0, 2, 3])
@pytest.mark.parametrize("finder", [0, -1])
def test_an_error_of_all_ranks_is_told_once(job, n_ranks, finder):
    ended = job(n_ranks, f"""
        finder = {finder} % comm.size
        with guard(comm):
            errors.raise_together(comm, errors.DataError("file x, field y: 7") if rank == finder else None)
    """)
    prefix = f"rank {n_ranks - 1}: " if n_ranks and finder else ""
    assert (ended.status, ended.err) == (2, f"error: {prefix}file x, field y: 7\n")


def test_different_errors_of_all_ranks_are_all_told(job):
    ended = job(3, """
        with guard(comm):
            errors.raise_together(comm, errors.DataError(f"file {rank % 2}"))
    """)
    assert ended.status == 2
    assert sorted(ended.err.splitlines()) == ["error: file 0", "error: file 1"]


def test_an_error_of_all_ranks_beside_a_waiting_thread(job):
    ended = job(2, """
        with guard(comm):
            comm.barrier()
            threading.Thread(target=receive).start()  # keeps Python from ending
            errors.raise_together(comm, errors.DataError("file x"))
    """)
    assert ended.status != 0 and "error: file x" in ended.err


def test_a_sarlite_error_on_one_rank(job):
    failed = job(2, """
        with guard(comm):
            if rank == 1:
                raise errors.DataError("file x, field y: 7")
            receive()
    """)
    assert failed.status != 0 and "[rank 1] sarlite.errors.DataError: file x, field y: 7" in failed.err


def test_singletons_of_another_mpi(job):
    failed = job(0, "", environ={"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"})
    assert failed.status != 0
    assert "ConfigError: the launcher started 4 ranks (OMPI_COMM_WORLD_SIZE=4), but MPI sees 1" in failed.err


def test_singletons_whose_launcher_is_not_understood(job):
    hide = ["env", "-u", "PMI_SIZE", "-u", "PMI_RANK", "-u", "PMI_FD"]
    failed = job(2, "", command=hide)
    assert failed.status != 0
    assert "ConfigError: the launcher started 2 ranks (MPI_LOCALNRANKS=2), but MPI sees 1" in failed.err


def test_ranks_without_mpi4py_name_the_extra(job, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['mpi4py'] = None")
    failed = job(2, "", environ={"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"})
    assert failed.status != 0 and "pip install 'sarlite[mpi]'" in failed.err


@pytest.mark.parametrize("how", ["mpi4py", "guard"])
def test_a_message_that_is_wrong_on_one_rank_ends_a_program_of_ones_own(job, how):
    """The wrong rank raises between two exchanges, while its peer waits for rows."""
    lines = f"""
        from contextlib import nullcontext
        from sarlite import Graph, Tensor

        with guard(comm) if {how == "guard"} else nullcontext():
            graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0]).shard(comm, "contiguous")
            h, weight = Tensor(np.ones((2, 3)), True), Tensor(np.ones((3, 2)), True)
            message = lambda src, dst, edge: src["h"] @ weight[rank:]
            graph.aggregate(message, "sum", {{"h": h}}).backward(np.ones((2, 2)))
            comm.barrier()
    """
    failed = job(2, lines, module="mpi4py" if how == "mpi4py" else None, slow_end=True)
    assert failed.status != 0 and "Error" in failed.err

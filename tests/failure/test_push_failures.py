"""Ranks that fail while rows are pushed: every process is gone in seconds."""


import pytest

from tests.helpers.train.jobs import STARTS_JOBS

pytestmark = STARTS_JOBS

BODY = """
    from sarlite.minibatch.hec.push import Pusher
    from sarlite.profile import Profile

    channel = comm.channel("embeddings")
    rows = np.ones((300, 16), np.float32)
    given = [(np.arange(300), None, rows)] * comm.size

    def steps(pusher, n):
        for step in range(n):
            pusher.submit(step, 0, given)
            if step:
                pusher.take(step - 1, 0)
"""


def test_a_rank_killed_while_the_others_drain(job):
    failed = job(3, BODY + """
    with guard(comm):
        pusher = Pusher(channel, Profile())
        steps(pusher, 5)
        if rank == 1:
            time.sleep(0.3)  # the others are in `drain`, which waits for this rank's last job
            os.kill(os.getpid(), signal.SIGKILL)
        pusher.submit(5, 0, given)
        pusher.drain()
        sys.stdout.write("drained")
    """)
    assert failed.status != 0 and "drained" not in failed.out


@pytest.mark.parametrize("others", ["take", "drain", "close", "barrier"])
def test_a_push_thread_that_fails_on_one_rank(job, others):
    failed = job(3, BODY + f"""
    class Failing:
        def __getattr__(self, name):
            return getattr(channel, name)

        def start_send(self, array, peer):
            if rank == 1 and threading.current_thread().name == "sarlite-push-rows":
                raise KeyError("the cause")
            return channel.start_send(array, peer)

    with guard(comm):
        pusher = Pusher(Failing(), Profile())
        pusher.submit(0, 0, given)
        if "{others}" == "barrier":
            comm.barrier()  # which the rank passes before it learns of its thread's failure
            pusher.take(0, 0)
        elif "{others}" == "take" or rank == 1:
            pusher.take(0, 0)
        else:
            pusher.{others}()
        sys.stdout.write("went on")
    """)
    assert failed.status != 0 and "went on" not in failed.out
    assert "[rank 1] KeyError: 'the cause'" in failed.err and "[rank 0]" not in failed.err


def test_a_rank_that_ends_with_jobs_under_way(job):
    """The exception ends all threads, including those that wait in MPI."""
    failed = job(3, BODY + """
    with guard(comm):
        pusher = Pusher(channel, Profile())
        steps(pusher, 3)
        if rank == 1:
            raise KeyError("the cause")
        steps(pusher, 10**6)
    """)
    assert failed.status != 0 and "[rank 1] KeyError: 'the cause'" in failed.err


def test_a_program_that_ends_with_a_job_under_way(job):
    """The thread polls for its job now and then, and waits in no call of MPI."""
    done = job(2, BODY + """
    pusher = Pusher(channel, Profile())
    if rank == 0:
        pusher.submit(0, 0, given)  # which rank 1 never does
    """)
    assert (done.status, done.err) == (0, "")


def test_jobs_that_differ_are_told_once(job):
    failed = job(2, BODY + """
    with guard(comm):
        pusher = Pusher(channel, Profile())
        pusher.submit(rank, 0, given)
        pusher.drain()
    """)
    assert (failed.status, failed.err) == (2, "error: ranks push different jobs: rank 0 step 0, layer 0; rank 1 step 1, layer 0\n")


def test_without_thread_support(job):
    done = job(2, BODY + """
    with guard(comm):
        assert not comm.threaded
        pusher = Pusher(channel, Profile())
        steps(pusher, 20)
        assert len(pusher.drain()) == 1
        pusher.close()
    """, environ={"MPI4PY_RC_THREAD_LEVEL": "funneled"})
    assert done.status == 0 and done.err.count("MPI_THREAD_MULTIPLE, so rows are pushed") == 1

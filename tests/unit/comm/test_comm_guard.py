"""The guard around one rank; tests/failure has real jobs."""

import faulthandler
import signal
import threading
import time

import pytest

from sarlite.comm import Solo, ending, watchdog
from sarlite.comm.guard import guard
from sarlite.errors import DataError

pytestmark = pytest.mark.timeout(20)


@pytest.fixture(autouse=True)
def nothing_is_left_installed():
    before, running = (threading.excepthook, signal.getsignal(signal.SIGTERM)), set(threading.enumerate())
    yield
    faulthandler.cancel_dump_traceback_later()
    assert (threading.excepthook, signal.getsignal(signal.SIGTERM)) == before
    assert set(threading.enumerate()) <= running
    assert signal.set_wakeup_fd(-1) == -1


def test_work_that_ends_well(capfd):
    running = set(threading.enumerate())
    with guard(Solo()) as watch:
        watch.tick()
        assert [thread.name for thread in threading.enumerate() if thread not in running] == ["watchdog"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(0), SystemExit(3), KeyboardInterrupt()])
def test_python_sees_other_exceptions(error, capfd):
    with pytest.raises(type(error)) as caught, guard(Solo()):
        raise error
    assert caught.value is error and capfd.readouterr().err == ""


def test_a_refusal_is_one_line_and_status_2(capfd):
    with pytest.raises(SystemExit) as caught, guard(Solo()):
        raise DataError("file x, field y: 7")
    assert caught.value.code == 2 and capfd.readouterr().err == "error: file x, field y: 7\n"


def test_a_stall_is_printed_again_after_each_period(capfd):
    err, end = "", time.monotonic() + 60
    with guard(Solo(), stall_seconds=0.2):
        while err.count("no progress for 0.2 s") < 2 and time.monotonic() < end:
            time.sleep(0.05)
            err += capfd.readouterr().err
    assert err.count("no progress for 0.2 s") >= 2 and "test_a_stall_is_printed" in err


def test_ticks_put_it_off(capfd):
    with guard(Solo(), stall_seconds=2) as watch:
        for _ in range(25):
            time.sleep(0.1)
            watch.tick()
    assert capfd.readouterr().err == ""


def test_last_words_name_the_rank_and_stacks_name_the_function(capfd):
    end = ending.Ending(Solo())
    end.say("one\n\ntwo\n")
    assert capfd.readouterr().err == "[rank 0] one\n[rank 0] \n[rank 0] two\n"
    assert "test_last_words_name_the_rank_and_stacks_name_the_function" in end.stacks()
    assert end.stacks().count("most recent call first") >= 1
    end.close()


def test_naps_end_early():
    alarm = watchdog.Alarm()
    threading.Timer(0.05, alarm.ring).start()
    assert alarm.nap(10_000) == set()  # must end before the test's timeout
    assert alarm.nap(0.01) == set()
    alarm.close()

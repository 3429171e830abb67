"""Run sarlite.train with the fault that FAULT names, in one rank: `python faulty.py ARGS`.

FAULT is KIND:RANK:SECONDS, with the seconds after Python's start. FAULT_DIR is the folder in which each process leaves its id. The
process that is to fail leaves the file `armed` once the fault must come, and the file `moment` when the fault comes.
"""

import ctypes
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

LATEST_WAIT = 5
"""The wait of a thread that fails at the latest: a run has more, so that a fault that comes late strikes, too."""
FOLDER = Path(os.environ["FAULT_DIR"])
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "hup": signal.SIGHUP, "int": signal.SIGINT, "stop": signal.SIGSTOP}


class Fault(Exception):
    """The cause that the job must tell."""


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def phase():
    """Return the phase of the command: "start", "connected" or "guarded".

    The phase is "start" before the rank has connected, "guarded" while the watchdog runs, and else "connected".
    """
    if any(thread.name == "watchdog" for thread in threading.enumerate()):
        return "guarded"
    launch = sys.modules.get("sarlite.comm.launch")
    return "connected" if launch and getattr(launch, "_Start", None) and launch._Start.connected else "start"


def shared_memory():
    """Return the files of shared memory that this process has mapped and that still have their name."""
    return [line.split()[5] for line in open("/proc/self/maps") if " /dev/shm/" in line and not line.endswith("(deleted)\n")]


def note():
    (FOLDER / "moment").write_text("\n".join([phase(), *shared_memory()]))


def raise_(error):
    raise error


def raise_in(thread, kind):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(kind))


def computing_thread(rank):
    """Return the thread that computes: the main thread, or the thread that is rank `rank`."""
    return next((thread for thread in threading.enumerate() if thread.name == f"rank {rank}"), threading.main_thread())


def break_wait(name, how, seconds):
    """Let a wait of a thread of this name fail or last: the first after `seconds`, or the `LATEST_WAIT`-th."""
    from sarlite.schedule import transport  # imported late, so that a fault at the start can meet the command's imports

    wait, waits, start = transport.wait_all, [], time.monotonic()

    def failing(requests):
        if threading.current_thread().name == name:
            waits.append(name)
            if time.monotonic() - start > seconds or len(waits) >= LATEST_WAIT:
                note()
                how()
        wait(requests)

    transport.wait_all = failing
    (FOLDER / "armed").touch()


def fail(kind, rank, seconds):
    time.sleep(seconds)
    (FOLDER / "armed").touch()
    note()
    if kind in SIGNALS:
        os.kill(os.getpid(), SIGNALS[kind])
    elif kind == "exception":
        raise_in(computing_thread(rank), Fault)
    elif kind == "exit":
        raise_in(computing_thread(rank), SystemExit)
    elif kind in ("_exit", "_exit0"):
        os._exit(3 if kind == "_exit" else 0)
    elif kind == "abort":
        os.abort()
    elif kind == "proxy":
        os.kill(os.getppid(), signal.SIGKILL)
    elif kind == "launcher":
        os.kill(parent(os.getppid()), signal.SIGKILL)


def main():
    (FOLDER / f"pid{os.getpid()}").touch()
    kind, rank, seconds = os.environ["FAULT"].split(":")
    if kind != "none" and os.environ.get("PMI_RANK", rank) == rank:
        if kind in ("prefetch", "push"):
            break_wait(f"sarlite-{kind}", lambda: raise_(Fault("the cause")), float(seconds))
        elif kind == "stop" and "PMI_RANK" not in os.environ:  # a thread as a rank
            break_wait("sarlite-prefetch", lambda: time.sleep(9999), float(seconds))
        else:
            threading.Thread(target=fail, args=(kind, int(rank), float(seconds)), daemon=True, name="fault").start()
    runpy.run_module("sarlite.train", run_name="__main__", alter_sys=True)


main()

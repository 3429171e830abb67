"""`python faulty.py ARGS`: sarlite.train with a fault that FAULT names, in one rank, so many seconds after Python's start.

FAULT is KIND:RANK:SECONDS, FAULT_DIR the folder in which each process leaves its id, and the one that fails its moment.
"""

import ctypes
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

FOLDER = Path(os.environ["FAULT_DIR"])
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "hup": signal.SIGHUP, "int": signal.SIGINT, "stop": signal.SIGSTOP}


class Fault(Exception):
    """The cause."""


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def phase():
    """How far the command is: "start" before it has connected, "guarded" while the watchdog watches, "connected" in between and after."""
    if any(thread.name == "watchdog" for thread in threading.enumerate()):
        return "guarded"
    launch = sys.modules.get("sarlite.comm.launch")
    return "connected" if launch and getattr(launch, "_Start", None) and launch._Start.connected else "start"


def shared_memory():
    """The files of shared memory that this process has mapped and that still have their name."""
    return [line.split()[5] for line in open("/proc/self/maps") if " /dev/shm/" in line and not line.endswith("(deleted)\n")]


def note():
    (FOLDER / "moment").write_text("\n".join([phase(), *shared_memory()]))


def raise_(error):
    raise error


def raise_in(thread, kind):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(kind))


def computing_thread(rank):
    """The main one, or that of a thread as a rank."""
    return next((thread for thread in threading.enumerate() if thread.name == f"rank {rank}"), threading.main_thread())


def break_wait(name, how):
    """Let the next wait of a thread of this name fail, or last."""
    while "_in_thread" not in vars(sys.modules.get("sarlite.schedule.transport", Fault)):  # the end of the module
        time.sleep(0.005)
    transport = sys.modules["sarlite.schedule.transport"]
    wait = transport.wait_all

    def failing(requests):
        if threading.current_thread().name == name:
            note()
            how()
        wait(requests)

    transport.wait_all = failing


def fail(kind, rank):
    if kind in ("prefetch", "push"):
        break_wait(f"sarlite-{kind}", lambda: raise_(Fault("the cause")))
        return
    if kind == "stop" and "PMI_RANK" not in os.environ:  # a process alone that is stopped can tell nothing
        break_wait("sarlite-prefetch", lambda: time.sleep(9999))
        return
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

        def wait_and_fail():
            time.sleep(float(seconds))
            fail(kind, int(rank))

        threading.Thread(target=wait_and_fail, daemon=True, name="fault").start()
    runpy.run_module("sarlite.train", run_name="__main__", alter_sys=True)


main()

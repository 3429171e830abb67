"""The training command as a process of its own, for commands that start runs."""

import subprocess
import sys
from collections.abc import Sequence


def start_training(flags: Sequence[str]) -> "subprocess.Popen[str]":
    """Start the training command with `flags` as a new process that prints nothing, and return the process.

    The process has a session of its own, so that Ctrl-C in the terminal reaches only the command that started it.
    """
    return subprocess.Popen([sys.executable, "-m", "sarlite.train", "--progress", "none", *flags], stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)


def wait_for_error(process: "subprocess.Popen[str]") -> str:
    """Wait until the training command in `process` ends. Return the last line of its error output, or "" if it succeeded.

    If an exception interrupts the waiting, such as a signal in the main thread, the process is killed.
    """
    try:
        _, errors = process.communicate()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if not process.returncode:
        return ""
    lines = [line for line in errors.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit status {process.returncode}"

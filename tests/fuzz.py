"""Read damaged inputs of every format as a user would: `python -m tests.fuzz --inputs 24000 --seed 0`.

An input is a valid one with a few changes: bytes flipped, cut, doubled or inserted, numbers and header fields replaced, whole files
swapped or removed. The changes also go inside archives and behind checksums, which are then corrected. A child process reads the input,
with a limit on addresses and on processor time. The reader may succeed with a data set that passes its check, or raise a SarliteError
whose text is one line of less than 2,000 characters, or a DataErrors with such lines. Anything else is a finding: another exception,
a crash, a hang.

Input number i depends on the seed and i alone: `--only i` runs it again, in this process, with its traceback.
"""

import argparse
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

from sarlite.errors import DataErrors, SarliteError
from tests.helpers.fuzz.fuzz_changes import changed
from tests.helpers.fuzz.fuzz_inputs import formats

ROOM = 1 << 30  # bytes of addresses that reading may take
CPU_SECONDS, WALL_SECONDS = 20, 120  # seconds for one input of some kilobytes


def put(folder, files):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / name
        if content == "gone":
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if content == "fifo":
            os.mkfifo(path)
        elif content is None:
            path.mkdir()
        else:
            path.write_bytes(content)


def attempt(read, folder, dice):
    """Read the input; return "read" or "refused", and a description of the fault, or None if there is none."""
    try:
        read(folder, dice)
    except SarliteError as error:
        text = str(error)
        lines = text.splitlines() if isinstance(error, DataErrors) else [text]  # several faults of tables have a line each
        fits = all(len(line) < 2000 and line.isprintable() for line in lines)
        wrong = None if fits else f"{type(error).__name__} of {len(text)} characters: {text[:300]!r}"
        return "refused", wrong
    except BaseException as error:  # noqa: BLE001
        last = traceback.extract_tb(error.__traceback__)[-1]
        return "raised", f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {str(error)[:200]!r}"
    return "read", None


def make(readable, folder, seed, number):
    """Write input `number`; return its format's name, its reader and the rest of its random choices."""
    name = sorted(readable)[number % len(readable)]
    dice = random.Random(f"{seed} {number}")
    put(folder, changed(readable[name].files, dice))
    return name, readable[name].read, dice


def _work(readable, folder, seed, numbers, pipe):
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in numbers:
        pipe.send((number, sorted(readable)[number % len(readable)], "starts", None))
        name, read, dice = make(readable, folder, seed, number)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        outcome = attempt(read, folder, dice)
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send((number, name, *outcome))
    pipe.close()


def campaign(readable, numbers, seed, deadline=float("inf")):
    """Read inputs until `numbers` or the time ends.

    Return (Counter of (format, outcome), [(number, format, fault)]).
    """
    counts, findings, numbers = Counter(), [], list(numbers)
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="sarlite-fuzz-") as folder:
        while numbers and time.monotonic() < deadline:
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(target=_work, args=(readable, Path(folder) / "input", seed, numbers, theirs))
            child.start()
            theirs.close()
            under_way = None
            while time.monotonic() < deadline:
                try:
                    if not ours.poll(min(WALL_SECONDS, max(0, deadline - time.monotonic()))):
                        break
                    number, name, outcome, wrong = ours.recv()
                except EOFError:
                    break
                under_way = (number, name) if outcome == "starts" else None
                if under_way is None:
                    counts[name, outcome] += 1
                    if wrong:
                        _find(findings, number, name, wrong)
            late = time.monotonic() >= deadline
            if child.is_alive() and (late or under_way):
                child.kill()
            child.join()
            if late:
                break
            if under_way is None and child.exitcode == 0:
                break
            number, name = under_way or (numbers[0], "?")
            ended = {-signal.SIGPROF: f"more than {CPU_SECONDS} s", -signal.SIGKILL: f"waits, {WALL_SECONDS} s"}.get(child.exitcode)
            _find(findings, number, name, ended or f"the process ended with {child.exitcode}")
            counts[name, "ended"] += 1
            numbers = numbers[numbers.index(number) + 1 :]
    return counts, findings


def _find(findings, number, name, wrong):
    findings.append((number, name, wrong))
    print(f"finding: --only {number} ({name}): {wrong}", flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=24000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="begin with this input")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop there")
    parser.add_argument("--only", type=int, help="one input, in this process")
    parser.add_argument("--format", action="append", help="by default all; inputs are then numbered anew")
    options = parser.parse_args(arguments)
    readable = formats(options.format)
    if options.only is not None:
        folder = Path(tempfile.mkdtemp(prefix="sarlite-fuzz-"))
        name, read, dice = make(readable, folder / "input", options.seed, options.only)
        print(f"{name}: {folder / 'input'}", flush=True)
        print(read(folder / "input", dice))
        return 0
    numbers = range(options.first, options.first + options.inputs)
    counts, findings = campaign(readable, numbers, options.seed, time.monotonic() + options.seconds)
    for name in sorted(readable):
        print(f"{name:<12} " + ", ".join(f"{counts[name, what]} {what}" for what in ("read", "refused", "raised", "ended")))
    print(f"{sum(counts.values())} inputs, {len(findings)} findings, seed {options.seed}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

"""Test some damaged inputs of `fuzz.py`, and that `fuzz.py` detects each kind of failure."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def run(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=ENVIRONMENT, timeout=110, check=False)


def test_damaged_inputs_are_refused_or_read():
    done = run("-m", "tests.fuzz", "--inputs", "60", "--seed", "1")
    print(done.stdout, done.stderr)
    assert done.returncode == 0 and "60 inputs, 0 findings" in done.stdout


def test_what_the_campaign_finds():
    code = """
        import os, time
        from tests import fuzz
        from tests.helpers.fuzz.fuzz_inputs import Format
        from sarlite.errors import ConfigError, DataError

        def refuse(folder, dice): raise DataError("no")
        def raise_(folder, dice): raise KeyError("method")
        def shout(folder, dice): raise ConfigError("x " * 1500)
        def two_lines(folder, dice): raise ConfigError("a\\nb")
        def die(folder, dice): os.abort()
        def leave(folder, dice): os._exit(0)
        def spin(folder, dice):
            while True: pass
        def wait(folder, dice): time.sleep(60)
        def grow(folder, dice): bytearray(4 << 30)
        readers = (refuse, raise_, shout, two_lines, die, leave, spin, wait, grow)
        fuzz.CPU_SECONDS, fuzz.WALL_SECONDS = 0.2, 6
        known = {reader.__name__: Format({"f": b"x"}, reader) for reader in readers}
        counts, findings = fuzz.campaign(known, range(len(known)), 0)
        assert counts["refuse", "refused"] == 1 and sum(counts.values()) == len(known), counts
    """
    done = run("-c", textwrap.dedent(code))
    findings = dict(re.findall(r"finding: --only \d+ \((\w+)\): (.*)", done.stdout))
    assert set(findings) == {"raise_", "shout", "two_lines", "die", "leave", "spin", "wait", "grow"}, done.stdout + done.stderr
    assert "KeyError" in findings["raise_"] and "3000 characters" in findings["shout"] and "ended with -6" in findings["die"]
    assert findings["spin"] == "more than 0.2 s" and findings["wait"] == "waits, 6 s" and "MemoryError" in findings["grow"]

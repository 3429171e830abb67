"""Check a program in another language: program.c is compiled and run for each case, then once more with a defect."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
if compiler is None:
    sys.exit(print("skipped, so not covered: there is no C compiler"))

with tempfile.TemporaryDirectory() as folder:
    for name, flags in (("right", ()), ("lossy", ("-DLOSE_AN_EDGE",))):
        program = Path(folder) / name
        subprocess.run([compiler, "-O2", *flags, "-o", program, Path(__file__).with_name("program.c")], check=True)
        words = ["check", "spmm", "reduce=sum", "--level", "probe", "--gradients", "--graphs", "[cm]*-[1-9]", "--no-shrink"]
        done = subprocess.run([sys.executable, "-m", "sarlite.oracle", *words, "--command", f"{program} {{inputs}} {{outputs}}"])
        assert done.returncode == (name == "lossy")

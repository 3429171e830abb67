"""Try a wheel without a compiler: `check_wheel.py FILE.whl [--python PYTHON ...]`, a new environment for each Python.

The program checks the contents of the wheel. It installs the wheel without extras and aggregates, then installs [train] and runs the
commands. PATH is an empty folder. Without a Python after --python nothing is installed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

COMPILERS = ("cc", "gcc", "g++", "clang", "c++", "x86_64-linux-gnu-gcc", "make", "ld", "as")
HOLDS = ("sarlite/py.typed", "sarlite/models/gat.py", "sarlite/_native.abi3.so", "sarlite/kernels/native.py", "sarlite/oracle/corpus.json")
MAY_HOLD = r"sarlite/.*\.(py|typed)|.*/corpus\.json|sarlite/_native\.abi3\.so|sarlite\.libs/.*\.so.*|sarlite-[\d.]+\.dist-info/.*"
SCRATCH = Path(__file__).parents[1] / "build"
LIBRARY = """
import importlib.util, numpy as np, sarlite, sarlite.models
from sarlite import Graph, kernels
assert not any(importlib.util.find_spec(name) for name in ("pymetis", "tqdm", "safetensors", "mpi4py")), "more than four packages"
rng = np.random.default_rng(0)
src, dst, x = rng.integers(0, 300, 5000), rng.integers(0, 300, 5000), rng.random((300, 64))
found = Graph.from_edges(src, dst, 300).aggregate(sarlite.fn.copy_src(sarlite.Tensor(x)), "sum")
expected = np.zeros_like(x)
np.add.at(expected, dst, x[src])
np.testing.assert_allclose(found.data, expected, rtol=1e-12)
print(kernels.instruction_set(), kernels.threads(), "threads")
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", nargs="*", default=[sys.executable])
    options = parser.parse_args()
    check_contents(options.wheel)
    SCRATCH.mkdir(exist_ok=True)
    for python in options.python:
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            check_install(options.wheel.resolve(), python, Path(folder))


def check_contents(wheel):
    """Check the tag and the files of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    platform = r"manylinux_2_\d+" if sys.platform == "linux" else ""
    assert re.search(rf"-cp310-abi3-{platform}", wheel.name), f"{wheel.name}: not an abi3 wheel for many machines"
    assert not set(HOLDS) - set(names), f"missing: {set(HOLDS) - set(names)}"
    foreign = [name for name in names if not re.fullmatch(MAY_HOLD, name) and not name.endswith("/")]
    assert not foreign, f"does not belong into a wheel: {foreign}"
    print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB, {len(names)} files")


def check_install(wheel, python, folder):
    """Install the wheel into a new environment and run the library and the commands."""
    (folder / "path").mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PMI_", "CC", "CFLAGS", "VIRTUAL_ENV"))}
    env |= {"PATH": str(folder / "path"), "HOME": str(folder)}
    assert not [name for name in COMPILERS if shutil.which(name, path=env["PATH"])]
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    bin = folder / "venv" / "bin"

    def run(*words, status=0):
        done = subprocess.run([str(bin / words[0]), *map(str, words[1:])], cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == status, f"{words}: status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stderr if status else done.stdout

    install = ("python", "-m", "pip", "install", "-q", "--only-binary", ":all:")
    run(*install, wheel)
    print(run("python", "--version").strip(), run("python", "-c", LIBRARY).strip(), sep=", ")
    assert "pip install 'sarlite[train]'" in run("sarlite-train", status=2)
    run(*install, f"{wheel}[train]")
    train = ("--data", "sbm:", "--epochs", "2", "--ranks", "2", "--json")
    reports = [json.loads(run(*command, *train, "--run-dir", command[-1]).splitlines()[-1])
               for command in (("sarlite-train",), ("python", "-m", "sarlite.train"))]
    assert reports[0]["test_accuracy"] == reports[1]["test_accuracy"] and reports[0]["ranks"] == 2
    run("sarlite-data", "convert", "sbm:", "data")
    run("sarlite-data", "partition", "data", "--parts", "2")
    run("python", "-c", "import pymetis, safetensors, tqdm, sarlite.models")
    extras = json.loads(run("python", "-m", "sarlite.info", "--json").splitlines()[-1])["extras"]
    assert extras["train"] == [] and extras["mpi"] == ["mpi4py"], extras
    print("  trained by sarlite-train and python -m sarlite.train, divided data by sarlite-data")


if __name__ == "__main__":
    main()

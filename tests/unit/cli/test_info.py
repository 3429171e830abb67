"""Test that `python -m sarlite.info` prints the same facts as text and as JSON."""

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sarlite import __version__, kernels
from sarlite.cli import info_command
from sarlite.errors import EXTRAS

ROOT = Path(__file__).parents[3]


def command(*flags, path=(), **environ):
    """Run the command outside of any MPI job and return its standard output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PMI_")}
    env |= {"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])), **environ}
    words = [sys.executable, "-m", "sarlite.info", *flags]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def facts():
    return json.loads(command("--json", OMP_NUM_THREADS="1"))


def test_the_json_object_has_versions_extras_kernels_and_machine(facts):
    assert list(facts) == ["versions", "extras", "mpi", "kernels", "blas", "cpu", "memory"]
    versions = {"sarlite": __version__, "python": platform.python_version(), "numpy": np.__version__,
                "pymetis": importlib.metadata.version("pymetis")}
    assert versions.items() <= facts["versions"].items() and {"scipy", "cffi", "mpi4py"} < facts["versions"].keys()
    assert list(facts["extras"]) == list(EXTRAS) and facts["extras"]["train"] == []
    assert facts["kernels"]["threads"] == 1 and facts["kernels"]["instruction_set"] in facts["kernels"]["instruction_sets"]
    assert facts["cpu"]["cores"] == len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else True


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and /sys")
def test_model_features_and_memory_are_those_that_linux_reports(facts):
    import threadpoolctl

    cpuinfo = Path("/proc/cpuinfo").read_text()
    words = cpuinfo.split()
    assert facts["cpu"]["model"] in cpuinfo or "model name" not in cpuinfo
    assert [name for name in info_command.CPU_FEATURES if name in words] == facts["cpu"]["features"]
    total = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]) * 1024
    assert facts["memory"]["bytes"] == pytest.approx(total, rel=0.05)
    assert facts["memory"]["page_bytes"] == os.sysconf("SC_PAGE_SIZE")
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    assert not setting.exists() or f"[{facts['memory']['huge_pages']}]" in setting.read_text()
    blas = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    assert {(pool["internal_api"], pool["version"], pool["architecture"]) for pool in facts["blas"]} <= \
        {(pool["internal_api"], pool["version"], pool.get("architecture")) for pool in blas} and facts["blas"]
    assert "GNU" in facts["kernels"]["compiler"] or "GCC" in facts["kernels"]["compiler"] or "clang" in facts["kernels"]["compiler"]


def test_the_text_has_a_row_for_each_fact_of_the_json_object(facts):
    rows = dict(line.split("  ", 1) for line in command(OMP_NUM_THREADS="1").splitlines())
    rows = {name: value.strip() for name, value in rows.items()}
    headings = ["extras", "MPI", "kernels", "compiler", "BLAS", "CPU", "CPU features", "memory", "pages"]
    assert list(rows) == ["sarlite", "python", *dict.fromkeys([*info_command.ALWAYS, *sum(EXTRAS.values(), ())]), *headings]
    assert {name: rows[name] for name in facts["versions"]} == {k: v or "not installed" for k, v in facts["versions"].items()}
    assert rows["kernels"].startswith(f"{facts['kernels']['instruction_set']} of ") and rows["kernels"].endswith("1 threads")
    assert rows["CPU features"].split() == facts["cpu"]["features"] and facts["cpu"]["model"] in rows["CPU"]


@pytest.mark.parametrize("name", kernels.instruction_sets())
def test_the_forced_instruction_set_is_shown(name):
    facts = json.loads(command("--json", SARLITE_ISA=name))["kernels"]
    assert facts["instruction_set"] == name and tuple(facts["instruction_sets"]) == kernels.instruction_sets()
    assert f"\nkernels {name} of {', '.join(kernels.instruction_sets())}; " in re.sub(" +", " ", command(SARLITE_ISA=name))


def test_the_mpi_library_and_its_thread_level_are_shown(facts):
    pytest.importorskip("mpi4py")
    assert facts["mpi"]["library"].split()[0] in ("MPICH", "Open", "Intel(R)", "MVAPICH", "MVAPICH2")
    assert facts["mpi"]["thread_level"].startswith("THREAD_") and "\n" not in facts["mpi"]["library"]
    assert f"\nMPI {facts['mpi']['library']}, {facts['mpi']['thread_level']}\n" in re.sub(" +", " ", command())


@pytest.mark.parametrize("block, shown", [
    ("import sys; sys.modules['mpi4py'] = None", "none: mpi4py is not installed"),
    ("import sys, mpi4py; sys.modules['mpi4py.MPI'] = None", "import of mpi4py.MPI halted"),
])  # fmt: skip
def test_a_missing_or_broken_mpi_is_shown_with_its_reason(block, shown, tmp_path):
    pytest.importorskip("mpi4py")
    (tmp_path / "sitecustomize.py").write_text(block)
    facts = json.loads(command("--json", path=[tmp_path]))["mpi"]
    assert facts is None if "none" in shown else (facts["library"] is None and shown in facts["error"])
    assert any(line.startswith("MPI ") and shown in line for line in command(path=[tmp_path]).splitlines())


def test_a_machine_that_tells_nothing(monkeypatch):
    """Facts are None on systems without /proc, /sys and the names of sysconf."""
    monkeypatch.setattr(info_command, "_read", lambda path: "")
    monkeypatch.setattr(os, "sysconf_names", {})
    monkeypatch.setattr(info_command, "_compiler", lambda: None)
    monkeypatch.setattr(info_command, "_mpi", lambda: None)
    facts = info_command.collect()
    assert facts["memory"] == {"bytes": None, "page_bytes": None, "huge_pages": None} and facts["cpu"]["features"] == []
    shown = info_command.text(json.loads(json.dumps(facts)))
    assert "None" not in shown and [line.split()[-1] for line in shown.splitlines()].count("unknown") >= 3


def test_packages_that_are_missing(monkeypatch):
    monkeypatch.setattr(info_command, "_mpi", lambda: None)
    facts = info_command.collect({"some": ("numpy", "no-such-package"), "every": ("numpy",)})
    assert facts["extras"] == {"some": ["no-such-package"], "every": []}
    assert "\nextras           some lacks no-such-package; every\n" in info_command.text(facts)
    assert facts["versions"]["no-such-package"] is None and "no-such-package  not installed" in info_command.text(facts)

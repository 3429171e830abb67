"""How OpenMP's threads wait: libgomp reads it from the environment at its load, and prints it for OMP_DISPLAY_ENV."""

import os
import subprocess
import sys

import pytest

from sarlite.kernels.native import SPIN_COUNT, spin_count

CODE = """
import os, subprocess, sys
import sarlite.kernels
environ = dict(os.environ)
child = subprocess.run([sys.executable, "-c", "import os; print(os.environ.get('GOMP_SPINCOUNT'))"], capture_output=True, text=True)
print(environ.get("GOMP_SPINCOUNT"), child.stdout.strip())
"""


@pytest.mark.parametrize("running, n_cores, expected", [(1, 2, SPIN_COUNT), (2, 2, SPIN_COUNT), (3, 2, 0), (None, 2, 0)])
def test_threads_sleep_at_once_where_all_cores_are_taken(running, n_cores, expected):
    assert spin_count(running, n_cores) == expected


@pytest.mark.parametrize("chosen, spins, inherited", [
    ({}, ("0", str(SPIN_COUNT)), "None"),
    ({"GOMP_SPINCOUNT": "77"}, ("77",), "77"),
    ({"OMP_WAIT_POLICY": "active"}, ("30000000000",), "None"),
], ids=["default", "spin count", "active"])  # fmt: skip
def test_threads_spin_shortly_unless_the_user_says_otherwise(chosen, spins, inherited):
    environ = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    environ |= {"OMP_DISPLAY_ENV": "verbose", **chosen}
    done = subprocess.run([sys.executable, "-c", CODE], env=environ, capture_output=True, text=True, check=True)
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("the kernels' OpenMP is not libgomp, or they have none")
    assert any(f"GOMP_SPINCOUNT = '{count}'" in done.stderr for count in spins)
    assert done.stdout.split() == [inherited, inherited]  # neither this process nor its children keep the default

"""Before anything loads OpenMP."""

import os

# The tests start teams of threads by the ten thousand, often beside other processes: a thread that waits by spinning takes their cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

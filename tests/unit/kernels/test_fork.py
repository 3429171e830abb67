"""A forked child's kernels: OpenMP's threads do not survive a fork."""

import os
import subprocess
import sys

import pytest

CHILD = """
import os, sys, threading
import numpy as np
from sarlite import Graph, Tensor, fn, kernels
from sarlite.errors import ConfigError

def work():
    graph = Graph.from_edges(np.arange(20000) % 500, np.arange(20000) * 7 % 500, 500)
    return graph.aggregate(fn.copy_src(Tensor(np.arange(500 * 8.0).reshape(500, 8))), "sum").data

kernels.set_threads(2)
{before}
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
{after}
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("before, after", [
    ("expected = work()", "assert kernels.threads() == 1 and np.array_equal(work(), expected)"),
    ("expected = work()", """
try:
    kernels.set_threads(2)
    os._exit(5)
except ConfigError as error:
    assert "fork" in str(error)"""),
    ("expected = work()", """
def other():
    kernels.set_threads(2)
    assert np.array_equal(work(), expected)
    os._exit(0)
thread = threading.Thread(target=other)
thread.start()
thread.join()
os._exit(5)"""),
    ("", "assert kernels.threads() == 2; work()"),
    ("expected = work()", """
import tempfile
from sarlite.cli.train_command import main
words = ["--data", "sbm:nodes=60", "--epochs", "1", "--progress", "none", "--run-dir", tempfile.mkdtemp()]
os._exit(main(words) or kernels.threads() - 1)"""),
], ids=["computes", "refuses more threads", "another thread has its own", "before any kernel", "a command"])  # fmt: skip
@pytest.mark.timeout(60)
def test_a_forked_child(before, after):
    environ = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", CHILD.format(before=before, after=after)], check=True, timeout=50, env=environ)

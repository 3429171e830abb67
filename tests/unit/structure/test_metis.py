"""METIS in a process of its own: the same parts, and an end in every case."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from sarlite.errors import ConfigError
from sarlite.structure import metis
from sarlite.structure.edges import csr_by_dst
from sarlite.structure.generate import rmat
from sarlite.structure.partition import partition, report

CHILD = Path(metis.__file__).with_name("metis_child.py")


@pytest.fixture(scope="module")
def graph():
    generated = rmat(nodes=1500, edges=12_000, features=1, seed=0)
    return generated.indptr, generated.indices


def in_child(graph):
    return metis.Symmetric(*graph, small=0)


def test_a_process_of_its_own_gives_the_same_parts(graph, monkeypatch):
    here = metis.Symmetric(*graph)
    weights = np.diff(graph[0]) + 1
    expected = [here.divide(4, 7), here.divide(4, 7, weights)]
    child = in_child(graph)
    assert here.small and not child.small
    for parts, child_parts in zip(expected, (child.divide(4, 7), child.divide(4, 7, weights))):
        assert child_parts.dtype == np.int32 and np.array_equal(parts, child_parts)
    assert not np.array_equal(*expected)
    monkeypatch.setattr(metis.os, "memfd_create", None, raising=False)
    monkeypatch.delattr(metis.os, "memfd_create")
    assert np.array_equal(in_child(graph).divide(4, 7), expected[0])  # the arrays are in a file without a name


def test_nothing_of_an_mpi_launcher_reaches_it(graph, monkeypatch, tmp_path):
    seen = tmp_path / "environment"
    fake = tmp_path / "child.py"
    fake.write_text(f"import os; open({str(seen)!r}, 'w').write('\\n'.join(os.environ)); print('word'); raise SystemExit(3)")
    monkeypatch.setattr(metis.metis_child, "__file__", str(fake))
    for name in ("PMI_RANK", "PMI_FD", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "HYDRA_X", "SLURM_PROCID", "MPI_LOCALNRANKS", "PYTHONPATH"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match="METIS failed for 1500 nodes and 2 parts: word"):
        in_child(graph).divide(2, 0)
    names = seen.read_text().split()
    assert "PATH" in names and not [name for name in names if name.startswith(("PMI", "OMPI", "HYDRA", "SLURM", "MPI", "PYTHON"))]


@pytest.mark.parametrize("number, word", [(9, "SIGKILL, perhaps for want of memory"), (11, "SIGSEGV"), (40, "signal 40")])
def test_its_death_is_named_with_its_signal(graph, monkeypatch, tmp_path, number, word):
    fake = tmp_path / "child.py"
    fake.write_text(f"import os; os.kill(os.getpid(), {int(number)})")
    monkeypatch.setattr(metis.metis_child, "__file__", str(fake))
    with pytest.raises(ConfigError, match="METIS's process for 1500 nodes and 2 parts was ended by " + word):
        in_child(graph).divide(2, 0)


def test_ctrl_c_in_the_child_is_ctrl_c_here(graph, monkeypatch, tmp_path):
    fake = tmp_path / "child.py"
    fake.write_text("import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)")
    monkeypatch.setattr(metis.metis_child, "__file__", str(fake))
    with pytest.raises(KeyboardInterrupt):
        in_child(graph).divide(2, 0)


def test_an_error_of_metis_is_told(graph, monkeypatch, tmp_path):
    pytest.importorskip("pymetis")
    (tmp_path / "pymetis.py").write_text(textwrap.dedent("""
        Options = dict
        def part_graph(*args, **kwargs):
            raise RuntimeError("no memory")
    """))
    child = in_child(graph)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="METIS failed for 1500 nodes and 2 parts: no memory"):
        child.divide(2, 0)


ENDS = {
    "SIGINT": "KeyboardInterrupt",
    "SIGTERM": "",
    "SIGKILL": "",
}
PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np
from sarlite.structure import metis
real, n = metis.subprocess.Popen, 1500
def popen(*args, **options):
    child = real(*args, **options)
    print(child.pid, flush=True)
    return child
metis.subprocess.Popen = popen
rng = np.random.default_rng(0)
metis.Symmetric(np.arange(n + 1) * n, np.tile(np.arange(n), n)).divide(600, 0)  # takes METIS many seconds
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends children with their parent on Linux")
@pytest.mark.parametrize("name", ENDS)
def test_a_signal_ends_parent_and_child_at_once(name):
    run = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child = int(run.stdout.readline())
    until(lambda: "metis_child" in command(child))
    until(lambda: seconds(child) > 0.4)  # the child is inside METIS
    assert run.poll() is None
    run.send_signal(getattr(signal, name))
    said = run.communicate(timeout=60)[1]
    assert run.returncode == -getattr(signal, name) and ENDS[name] in said
    until(lambda: not alive(child))


def until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def command(pid):
    return Path(f"/proc/{pid}/cmdline").read_text() if alive(pid) else ""


def seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_interpreter_is_free_meanwhile(graph, monkeypatch, tmp_path):
    """Another thread runs while METIS does; in this process METIS would hold the interpreter."""
    fake = tmp_path / "child.py"
    go = tmp_path / "go"
    fake.write_text(f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nraise SystemExit('done')")
    monkeypatch.setattr(metis.metis_child, "__file__", str(fake))
    thread = threading.Timer(0.05, go.touch)
    thread.start()
    with pytest.raises(ConfigError, match="done"):
        in_child(graph).divide(2, 0)
    thread.join()


def test_one_weight_a_node_is_all_that_pymetis_takes(graph):
    """METIS could balance two weights a node, but pymetis uses only the first n numbers; therefore weights are mixed."""
    pymetis = pytest.importorskip("pymetis")
    symmetric = metis.Symmetric(*graph)
    two = np.ones((1500, 2), symmetric.index)
    two[:, 1] += np.diff(graph[0]).astype(symmetric.index)
    parts = [metis.metis_child.part_graph(pymetis, symmetric.xadj, symmetric.adjncy, w, 4, 0)
             for w in (two.ravel(), two.ravel()[:1500].copy())]
    assert parts[0] == parts[1]


def test_edges_are_balanced_where_the_degrees_are_skewed(graph):
    train = np.arange(1500) % 10 == 0

    def balanced(balance):
        parts = partition(*graph, 4, "metis", train_mask=train, balance=balance, seed=0)
        return report(*graph, parts, 4, train)["imbalance"]

    before, after = balanced("nodes,train"), balanced(None)
    assert before["edges"] > 1.5 and before["nodes"] < 1.05
    assert after["edges"] < 1.15 and after["nodes"] < 1.051 and after["train_nodes"] < 1.12
    assert balanced("nodes,edges,train") == after
    assert balanced("edges")["edges"] < 1.1


def test_even_degrees_are_balanced_as_nodes():
    ring = np.arange(600)
    graph = csr_by_dst(ring, (ring + 1) % 600, 600, undirected=True)
    one, two = (partition(*graph, 3, "metis", balance=balance, seed=0) for balance in (None, ("nodes", "train")))
    assert np.array_equal(one, two)


@pytest.mark.parametrize("n_parts", [0, -1, 10**12, 2**70])
def test_a_number_of_parts_that_cannot_be(graph, n_parts):
    with pytest.raises(ConfigError, match=f"n_parts: {n_parts} is outside"):
        partition(*graph, n_parts, "contiguous")


@pytest.mark.parametrize("balance", ["node", "nodes,nodes", "", "nodes, edges", ()])
def test_an_unknown_balance_is_refused(graph, balance):
    with pytest.raises(ConfigError, match="balance: .*auto .*nodes,edges,train"):
        partition(*graph, 2, "random", balance=balance)

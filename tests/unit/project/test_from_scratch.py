"""`examples/sar_from_scratch.py` equals the library on ranks as threads, and holds the rows of one peer at a time."""

import ast
import re
import tracemalloc
import weakref

import numpy as np
import pytest

from sarlite.comm import threads
from tests.helpers.graph import from_scratch
from tests.helpers.graph.from_scratch import BufferMethods
from tests.helpers.graph.references import EDGES
from tests.helpers.graph.strategies import KINDS, random_edges

RANKS = [1, 2, 3]
METHODS = ["random", "last"]


def on_ranks(n_ranks, check, *args):
    threads.run(n_ranks, lambda comm: check(BufferMethods(comm), *args))


@pytest.mark.parametrize("n_ranks", RANKS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", [from_scratch.check_sum, from_scratch.check_attention])
def test_sum_and_attention_equal_the_library(check, kind, n_ranks):
    on_ranks(n_ranks, check, KINDS[kind], "random")


@pytest.mark.parametrize("check", [from_scratch.check_sum, from_scratch.check_attention])
def test_empty_ranks_change_nothing(check):
    on_ranks(3, check, EDGES, "last")


def test_attention_with_scores_that_overflow_without_the_running_maximum():
    on_ranks(3, from_scratch.check_attention, EDGES, "random", 1000.0)


@pytest.mark.parametrize("n_ranks", RANKS)
@pytest.mark.parametrize("method", METHODS)
def test_gat_equals_the_library(method, n_ranks):
    on_ranks(n_ranks, from_scratch.check_gat, method)


@pytest.mark.parametrize("n_ranks", RANKS)
def test_training_does_not_depend_on_the_division(n_ranks):
    on_ranks(n_ranks, from_scratch.check_training)


def one_peer_at_a_time(comm):
    """Check that each fetch starts when all remote rows and gradients before it are freed; return the peak of both."""
    sar, remote = from_scratch.example(), []
    fetch, push, peaks = sar.fetch, sar.push, []

    def note(array):
        remote.append(weakref.ref(array))
        peaks.append(sum(reference() is not None for reference in remote))
        return array

    def watched_fetch(*args):
        assert not any(reference() is not None for reference in remote), "rows of an earlier peer are alive"
        return note(fetch(*args))

    def watched_push(part, d_halo, *args):
        push(part, note(d_halo), *args)

    sar.names.update(fetch=watched_fetch, push=watched_push)
    part = sar.make_part(comm, EDGES.src, EDGES.dst, from_scratch.owners("random", EDGES.n_nodes, comm.size))
    z = np.ones((len(part.node_ids), 2, 3))
    sar.sum_backward(part, sar.sum_forward(part, z))
    out, residuals = sar.attend_forward(part, z, np.ones((2, 3)), np.ones((2, 3)))
    sar.attend_backward(part, residuals, out, np.ones((2, 3)), np.ones((2, 3)))
    assert len(peaks) == 5 * comm.size  # the sum fetches once and pushes once, attention fetches twice and pushes once
    return max(peaks)


def test_remote_rows_of_one_peer_are_alive_at_a_time():
    assert threads.run(3, lambda comm: one_peer_at_a_time(BufferMethods(comm))) == [1, 1, 1]


def bytes_kept(comm, edges):
    """Return the bytes that the forward pass of attention keeps, output and residuals, and the bytes of the output."""
    sar = from_scratch.example()
    part = sar.make_part(comm, edges.src, edges.dst, np.zeros(edges.n_nodes, int))
    z, a = np.ones((edges.n_nodes, 2, 8)), np.ones((2, 8))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        out, residuals = sar.attend_forward(part, z, a, a)
        n_kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    return n_kept, out.nbytes


def test_nothing_per_edge_is_kept():
    edges = random_edges(50, 20000, seed=8)
    ((n_kept, output),) = threads.run(1, lambda comm: bytes_kept(BufferMethods(comm), edges))
    assert output <= n_kept < 3 * output < edges.n_edges * 8  # less than one number for each edge


def test_the_file_is_short_and_imports_numpy_and_mpi4py_alone():
    text = from_scratch.PATH.read_text()
    assert len(text.splitlines()) <= 300
    nodes = list(ast.walk(ast.parse(text)))
    modules = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert modules == {"dataclasses", "numpy", "mpi4py"}


def test_the_page_quotes_the_file():
    page = (from_scratch.ROOT / "docs" / "sar-from-scratch.md").read_text()
    quotes, text = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S), from_scratch.PATH.read_text()
    assert len(quotes) >= 8
    for quote in quotes:
        assert quote in text, quote

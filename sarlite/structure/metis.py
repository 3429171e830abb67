"""The call of METIS, and the symmetric graph that METIS needs.

A large graph is divided in a child process, so that signals can end METIS, and no thread waits inside METIS.
"""

import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError, import_optional
from sarlite.profile import free_memory
from sarlite.structure import metis_child
from sarlite.structure.edges import chunk_edges, id_bits, row_chunks
from sarlite.types import Array, DType

SMALL = 1 << 14
"""Number of entries below which a graph is divided in this process, because METIS is faster than a process starts."""
EDGE_BYTES = 50
"""Approximate memory of METIS and its graph for each edge, in bytes."""
_INSTEAD = "method 'fennel' takes 4 bytes a node, or bring parts in a file"
# environment of the child process: without the variables of an MPI launcher, which would make the child a rank
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR", "HOME", "LANG")


def check_room(n_nodes: int, n_edges: int, n_bytes: int | None = None) -> None:
    """Raise a ConfigError if METIS cannot divide a graph of this size: its integers are too small, or it needs more than `n_bytes`
    of memory (None: the memory that is free now).

    Parameters
    ----------
    n_nodes, n_edges : int
        Numbers of nodes and of directed edges.
    n_bytes : int, optional
        Free memory in bytes; by default the memory that this process can still allocate.
    """
    index = _index()
    if max(n_nodes, n_edges) > np.iinfo(index).max:
        raise ConfigError(f"method: this pymetis has {index} indices, too small for {n_edges} edges; {_INSTEAD}")
    free = free_memory() if n_bytes is None else n_bytes
    if n_edges * EDGE_BYTES > free:
        needed = f"about {n_edges * EDGE_BYTES >> 20:,} MiB for {n_edges:,} edges"
        raise ConfigError(f"method: METIS takes {needed}, but {int(free) >> 20:,} MiB are free; {_INSTEAD}")


class MetisMemory:
    """Arrays in memory that this process shares with a child process, by mapping an unnamed file.

    Parameters
    ----------
    n_bytes : int
        Upper bound of the size in bytes; pages that are not written to take no memory.

    Attributes
    ----------
    fd : int
        File descriptor.
    arrays : dict of str to (int, int, str)
        (first byte, number of entries, dtype) of each array, by name.
    """

    def __init__(self, n_bytes):
        if hasattr(os, "memfd_create"):
            self._file = os.fdopen(os.memfd_create("sarlite-metis"), "w+b")
        else:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115, closed with this object
        self.fd, self.arrays, self._end = self._file.fileno(), {}, 0
        os.ftruncate(self.fd, n_bytes)
        self._map = mmap.mmap(self.fd, n_bytes)

    def array(self, name: str, n: int, dtype: DType) -> Array:
        """Return the shared array called `name`, (n,) of `dtype`, n >= 1; the first call allocates the array, filled with zeros."""
        if name not in self.arrays:
            start = -(-self._end // 64) * 64
            self.arrays[name] = start, n, np.dtype(dtype).str
            self._end = start + n * np.dtype(dtype).itemsize
        return np.frombuffer(self._map, dtype, n, self.arrays[name][0])


class Symmetric:
    """Symmetric graph that METIS divides: the union of a graph's edges and their reverses, as a CSR without self loops and
    duplicates whose rows are sorted.

    Parameters
    ----------
    indptr, indices : (n_nodes + 1,) and (n_edges,) int
        CSR of the in-edges, with at least one edge.
    small : int
        Number of entries below which the graph is divided in this process.
    chunk : int
        Number of edges that are processed at a time; the graph does not depend on it.

    Attributes
    ----------
    xadj, adjncy : (n_nodes + 1,) and (n_entries,) arrays
        CSR of the symmetric graph, in METIS's integer dtype.

    Raises
    ------
    ConfigError
        pymetis is not installed, or its integers are too small.

    Notes
    -----
    Most graphs are symmetric already, as a comparison with the transpose shows; then no union is computed. Memory is
    reserved for the edges of both graphs, but pages that the union does not need are never written.
    """

    def __init__(self, indptr, indices, *, small=SMALL, chunk=1 << 20):
        n_nodes, index = indptr.size - 1, _index()
        indptr, indices = np.ascontiguousarray(indptr, np.int64), np.ascontiguousarray(indices)
        if indices.dtype.name not in ("int32", "int64"):
            indices = indices.astype(np.int64)
        reverse = kernels.transpose(indptr, indices, n_nodes, position=False)[:2]
        same = np.array_equal(indptr, reverse[0]) and np.array_equal(indices, reverse[1])
        both = ((indptr, indices),) if same else ((indptr, indices), reverse)
        most = indices.size * len(both)
        self.small = most + n_nodes < small
        n_bytes = (most + 2 * n_nodes + 1) * index.itemsize + 4 * n_nodes + 4 * 64
        self.memory = None if self.small else MetisMemory(n_bytes)
        self.index = index
        self.xadj, self.adjncy = self._array("xadj", n_nodes + 1), self._array("adjncy", most)
        self._fill(both, n_nodes, min(chunk, chunk_edges(n_nodes)))

    def _array(self, name: str, n: int) -> Array:
        """Return an array of `n` zeros for METIS; in shared memory, under `name`, if a child process will call METIS."""
        return np.zeros(n, self.index) if self.small else self.memory.array(name, n, self.index)

    def _fill(self, graphs: Sequence[tuple[Array, Array]], n_nodes: int, chunk: int) -> None:
        """Write the union of `graphs`, one or two CSRs (indptr, indices) of the same nodes, to `xadj` and `adjncy`, without self
        loops and duplicates; `chunk` edges are processed at a time.
        """
        bits, filled = np.uint64(id_bits(n_nodes)), 0
        for low, high in row_chunks(graphs[0][0], chunk):
            keys = np.concatenate([_keys(*graph, low, high, bits) for graph in graphs])
            if len(graphs) > 1:
                keys.sort()
            rows = (keys >> bits).view(np.int64)
            columns = (keys & ((np.uint64(1) << bits) - np.uint64(1))).view(np.int64)
            keep = columns != rows + low
            keep[1:] &= keys[1:] != keys[:-1]
            columns = columns[keep]
            self.xadj[low + 1 : high + 1] = np.bincount(rows[keep], minlength=high - low)
            self.adjncy[filled : filled + columns.size] = columns
            filled += columns.size
        if filled > np.iinfo(self.index).max:
            small = f"this pymetis has {self.index} indices, too small for {filled} edges"
            raise ConfigError(f"method: {small}; {_INSTEAD}")
        np.cumsum(self.xadj, out=self.xadj)
        self.adjncy = self.adjncy[:filled]

    def divide(self, n_parts: int, seed: int, weights: Array | None = None) -> Array:
        """Return the part of each node, (n_nodes,) int32, that METIS chooses so that few edges are cut and the sums of the node
        `weights` (None: all 1) are even.

        Parameters
        ----------
        n_parts, seed : int
        weights : (n_nodes,) int, optional
            Weights of the nodes, whose sums METIS balances; by default 1. The sum of all weights must fit METIS's
            integers.

        Raises
        ------
        ConfigError
            METIS fails, or a signal ends the child process; the message names the signal.
        KeyboardInterrupt
            Ctrl-C ended the child process.

        Notes
        -----
        METIS handles SIGTERM as an internal error, and does not return to the interpreter while it runs. So a child
        process divides a large graph, in shared memory and without the environment of an MPI launcher. The child ends
        when this call ends, and on Linux also when this process ends in any way.
        """
        n_nodes = self.xadj.size - 1
        if weights is not None:
            vweights = self._array("weights", n_nodes)
            vweights[:] = weights
            weights = vweights
        where = f"{n_nodes} nodes and {n_parts} parts"
        if self.small:
            try:
                pymetis = import_optional("pymetis", "method 'metis'")
                parts = metis_child.part_graph(pymetis, self.xadj, self.adjncy, weights, n_parts, seed)
            except RuntimeError as error:
                raise ConfigError(f"method: METIS failed for {where}: {error}") from error
            return np.array(parts, np.int32)
        parts = self.memory.array("parts", n_nodes, np.int32)
        job = {"arrays": self.memory.arrays, "n_entries": self.adjncy.size, "n_parts": n_parts, "seed": seed}
        _run_child(job, self.memory.fd, where)
        return parts.copy()


def _run_child(job: dict[str, Any], fd: int, size_text: str) -> None:
    """Run METIS in a child process on a graph whose arrays are in the shared memory with the file descriptor `fd`. `job` says where
    each array lies, n_parts and the seed; `size_text` describes the graph in errors.
    """
    if not sys.executable:
        raise ConfigError("method: METIS runs in a process of its own, but sys.executable names no Python; "
                          "give the parts in a file")
    job = {**job, "fd": fd, "parent": os.getpid(), "path": [os.path.abspath(path) for path in sys.path]}
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    try:
        child = subprocess.Popen([sys.executable, "-I", metis_child.__file__, json.dumps(job)], pass_fds=(fd,),
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 env=environment | threads)
    except OSError as error:
        raise ConfigError(f"method: METIS's process cannot be started: {error}") from error
    try:
        said = child.communicate()[0].decode(errors="replace").strip().splitlines()
    finally:
        child.kill()
        child.wait()
    if child.returncode == -signal.SIGINT:
        raise KeyboardInterrupt
    if child.returncode < 0:
        raise ConfigError(f"method: METIS's process for {size_text} was ended by {_signal_name(-child.returncode)}")
    if child.returncode:
        reason = said[-1] if said else f"exit status {child.returncode}"
        raise ConfigError(f"method: METIS failed for {size_text}: {reason}")


def _signal_name(number: int) -> str:
    """Return the name of a signal for an error message; for SIGKILL add the likely cause."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return name + (", perhaps for want of memory" if number == signal.SIGKILL else "")


def _index() -> np.dtype[Any]:
    """Return the integer dtype of the installed METIS; arrays of this dtype are passed to METIS without a copy."""
    pymetis = import_optional("pymetis", "method 'metis'")
    return np.dtype(pymetis.zero_copy_dtype() if hasattr(pymetis, "zero_copy_dtype") else np.int32)


def _keys(indptr: Array, indices: Array, low: int, high: int, bits: Any) -> Array:
    """Return a sort key, (row - low) * 2^bits + column, for each edge in the CSR rows low .. high - 1."""
    keys = np.repeat(np.arange(high - low, dtype=np.uint64) << bits, np.diff(indptr[low : high + 1]))
    keys |= indices[indptr[low] : indptr[high]].astype(np.uint64)
    return keys

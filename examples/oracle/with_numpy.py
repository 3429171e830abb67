"""Check a kernel in NumPy and SciPy, then one with a defect: the report, and the smallest failing case as files."""

import tempfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from sarlite import oracle


def matrix(case):
    """Return the sparse matrix, shape (n_dst, n_src), that takes the mean over the in-edges of the case's graph."""
    degrees = np.bincount(case.dst, minlength=case.n_dst)
    values = (1 / np.maximum(degrees, 1)).astype(case.dtype)[case.dst]
    return sp.csr_array((values, (case.dst, case.src)), shape=(case.n_dst, case.n_src))


def mean(case):
    return matrix(case) @ case.x


def mean_vjp(case, g):
    return {"x": matrix(case).T @ g}


def transposed(case):
    """Return a wrong matrix for the gradient: its columns, not its rows, are divided by their number of entries."""
    degrees = np.bincount(case.src, minlength=case.n_src)
    values = (1 / np.maximum(degrees, 1)).astype(case.dtype)[case.src]
    return sp.csr_array((values, (case.dst, case.src)), shape=(case.n_dst, case.n_src))


report = oracle.check(mean, "spmm", reduce="mean", vjp=mean_vjp, graphs="[cdm]*-[1-9]")
print(report.require())

report = oracle.check(mean, "spmm", reduce="mean", vjp=lambda case, g: {"x": transposed(case).T @ g}, graphs="[cdm]*-[1-9]")
print(report)
assert report.verdict is oracle.Verdict.WRONG and report.first_bad.output == "dx"
with tempfile.TemporaryDirectory() as folder:
    path = report.save(Path(folder) / "failure.sarcase")
    print(*sorted(file.name for file in path.iterdir()))
    again = oracle.replay(path, mean, vjp=mean_vjp)
    print(again.require())

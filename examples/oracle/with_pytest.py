"""Use the pytest plugin: `pytest with_pytest.py --oracle-level ci --oracle-save failures`, or run this file."""

import sys

import numpy as np
import pytest


def extremum(case):
    """Return the maximum of case.x over each node's in-edges, or 0 for a node without in-edges."""
    top = np.full((case.n_dst, *case.x.shape[1:]), -np.inf, case.x.dtype)
    np.maximum.at(top, case.dst, case.x[case.src])
    return np.where(np.bincount(case.dst, minlength=case.n_dst)[:, None] == 0, case.x.dtype.type(0), top)


def test_maximum(sarlite_oracle):
    sarlite_oracle.check(extremum, "spmm", reduce="max", graphs="[cm]*-[1-9]")


@pytest.mark.oracle_expected_failures("*-negative/*")  # known: this kernel starts from 0
def test_maximum_of_positive_features(sarlite_oracle):
    sarlite_oracle.check(lambda case: np.maximum(extremum(case), 0), "spmm", reduce="max", level="certified", graphs="in-star-3-negative")


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider"]))

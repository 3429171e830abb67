"""Correctly rounded results pass for every operation and dtype.

Rational operations are computed in fractions and rounded once.
"""

from fractions import Fraction

import numpy as np
import pytest

from sarlite.oracle import Reference, Verdict, loops, oracle_command
from sarlite.oracle.choices import SUMS
from sarlite.oracle.corpus import entry
from sarlite.oracle.selfcheck import selfcheck

pytestmark = pytest.mark.timeout(120)
SPECIAL = ("in-star-3-*", "repeated-3-4-*")  # one graph of each kind of special values


@pytest.mark.parametrize("dtype", SUMS)
def test_correctly_rounded_results_pass(dtype):
    references = oracle_command.references()
    report = selfcheck(references, graphs=SPECIAL, dtypes=[dtype])
    assert report.verdict is Verdict.PASS, str(report)
    assert report.checked["certified"] > 200 and report.ratio <= 1


def test_denormal_products_of_float64_have_bounds():
    """A product that underflows need not be exactly 0: the bounds of float64 do not underflow."""
    references = [Reference("spmm", weighted=True), Reference("attention", kind="gat"), Reference("sddmm")]
    report = selfcheck(references, most_edges=30, graphs="*-denormal", dtypes=["float64"])
    assert report.verdict is Verdict.PASS and report.checked["certified"] > 50, str(report)


@pytest.mark.parametrize("dtype, value, nearest", [
    ("float32", Fraction(1) + Fraction(1, 2**24), 1.0), ("float32", Fraction(1) + Fraction(3, 2**24), 1 + 2.0**-22),
    ("float32", Fraction(1) + Fraction(1, 2**24) + Fraction(1, 2**80), 1 + 2.0**-23),  # twice rounded it would be 1
    ("float64", Fraction(3, 2**1075), 2.0**-1073), ("float64", Fraction(1, 2**1075), 0.0),
    ("float16", Fraction(1, 2**25), 0.0), ("float16", Fraction(3, 2**25), 2.0**-23),
    ("bfloat16", Fraction(257, 256), 1.0),
    ("float32", 0, 0.0), ("float64", Fraction(-1, 3), -1 / 3),
])  # fmt: skip
def test_fractions_are_rounded_once(dtype, value, nearest):
    assert loops.nearest(np.array([value], object), dtype)[0] == nearest


def test_the_references_own_values_are_within_their_bounds_on_larger_graphs():
    report = selfcheck([Reference("spmm", weighted=True)], most_edges=0, graphs=["isolated-12-odd-*", "powers-60-*"])
    assert report.verdict is Verdict.PASS and report.checked["certified"] > 40
    assert entry("isolated-12-odd-nan").values == "nan"

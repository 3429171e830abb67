"""How values are reduced: the fast sums of NumPy and the kernels, or exact sums that have the same bits on any ranks."""

from sarlite.numerics.elementary import exp, expm1, log, log1p, power
from sarlite.numerics.selection import NUMERICS, Numerics, by_numerics, current, name, rank_invariant, sums_follow, using

__all__ = ["NUMERICS", "Numerics", "by_numerics", "current", "exp", "expm1", "log", "log1p", "name", "power",
           "rank_invariant", "sums_follow", "using"]  # fmt: skip

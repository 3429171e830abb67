"""Numerics: how values are summed, "fast", or "exact" with the same bits on any number of ranks."""

from sarlite.numerics.selection import (
    NUMERICS,
    Numerics,
    by_numerics,
    current,
    exp,
    expm1,
    log,
    log1p,
    name,
    power,
    rank_invariant,
    sums_follow,
    using,
)

__all__ = ["NUMERICS", "Numerics", "by_numerics", "current", "exp", "expm1", "log", "log1p", "name", "power",
           "rank_invariant", "sums_follow", "using"]  # fmt: skip

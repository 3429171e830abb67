"""The choices that a check has.

The command line and the pytest plugin read this module, too, so that it imports nothing heavy.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sarlite.errors import ConfigError

# Each level and what it asks; `levels.JUDGES` has what asks it.
LEVELS = {
    "probe": ("probe",),
    "certified": ("certified",),
    "repeat": ("repeat",),
    "invariants": ("invariants",),
    "ci": ("probe", "certified", "repeat", "invariants"),
    "all": ("probe", "certified", "repeat", "invariants"),
    "large": ("probe",),
}
USUAL = tuple(level for level in LEVELS if level != "large")
SUMS = ("float64", "float32", "float16", "bfloat16")
DTYPES = (*SUMS, "bfloat16-rows")  # float32, but the rows that edges gather are rounded to bfloat16 first
INDEX_DTYPES = ("int64", "int32", "int16")
ALLOWED = ("NONDETERMINISTIC", "THREADS", "LIMIT")  # verdicts that a caller may allow
PARTS = ("contiguous", "random", "skewed", "one empty")  # how nodes are divided among ranks


def among(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raise ConfigError unless a value is one of the allowed values."""
    allowed = tuple(allowed)
    if value not in allowed:
        raise ConfigError(f"{name}: {value!r} is none of {', '.join(map(repr, allowed))}")


def allowed(verdicts: Sequence[str]) -> tuple[str, ...]:
    """Return the names of verdicts that do not count; raise ConfigError unless each is one of ALLOWED."""
    for verdict in verdicts:
        among("allow", verdict, ALLOWED)
    return tuple(verdicts)

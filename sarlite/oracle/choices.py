"""The allowed values of a check's options: levels, dtypes, verdicts, and divisions of nodes among ranks.

The command line and the pytest plugin import this module at their start, so it imports nothing heavy.
"""

from collections.abc import Iterable, Sequence

from sarlite.errors import ConfigError

# Each level of `check`, and the entries of `levels.LEVEL_CHECKS` that it runs.
LEVELS = {
    "probe": ("probe",),
    "certified": ("certified",),
    "repeat": ("repeat",),
    "invariants": ("invariants",),
    "ci": ("probe", "certified", "repeat", "invariants"),
    "all": ("probe", "certified", "repeat", "invariants"),
    "large": ("probe",),
}
COMMAND_LEVELS = tuple(level for level in LEVELS if level != "large")  # levels that the command and the plugin offer
SUMS = ("float64", "float32", "float16", "bfloat16")  # dtypes in which sums may be promised
DTYPES = (*SUMS, "bfloat16-rows")  # bfloat16-rows: float32, with the rows that edges gather rounded to bfloat16 first
INDEX_DTYPES = ("int64", "int32", "int16")
ALLOWED = ("NONDETERMINISTIC", "THREADS", "LIMIT")  # verdicts that a caller may allow
PARTS = ("contiguous", "random", "skewed", "one empty")  # ways to divide nodes among ranks


def check_choice(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raise ConfigError unless `value` is one of the allowed values; the message starts with `name`."""
    allowed = tuple(allowed)
    if value not in allowed:
        raise ConfigError(f"{name}: {value!r} is not one of {', '.join(map(repr, allowed))}")


def allowed_verdicts(verdicts: Sequence[str]) -> tuple[str, ...]:
    """Return `verdicts` as a tuple; raise ConfigError unless each verdict is one of ALLOWED."""
    for verdict in verdicts:
        check_choice("allow", verdict, ALLOWED)
    return tuple(verdicts)

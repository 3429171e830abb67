"""What one check found, and what it did not cover."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sarlite.errors import ConfigError, SarliteError
from sarlite.oracle import sarcase
from sarlite.oracle.finding import Finding, Verdict

_MOST_EXPECTED = 5  # expected failures that are told one by one

__all__ = ["Finding", "OracleError", "Report", "Verdict"]


@dataclass
class Report:
    """What one check found.

    Attributes
    ----------
    what : str
        The reference, the dtype, the level and the seed.
    findings : list of Finding
    expected : list of Finding
        Of cases that were named as expected failures; they do not count in the verdict.
    checked : Counter
        Comparisons made, by level.
    uncovered : Counter
        What was not checked: reason -> how many times.
    examples : dict of str to str
        Of each reason the first case, with what was said about the case.
    ratio : float
        The largest error over its bound that was seen; above 1 it is a proof of excess error.
    """

    what: str
    findings: list[Finding] = field(default_factory=list)
    expected: list[Finding] = field(default_factory=list)
    checked: Counter = field(default_factory=Counter)
    uncovered: Counter = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    ratio: float = 0.0

    def skip(self, reason: str, example: str = "", times: int = 1) -> None:
        """Count what is not covered."""
        if times:
            self.uncovered[reason] += times
            if example:
                self.examples.setdefault(reason, example)

    @property
    def verdict(self) -> Verdict:
        """The worst of the findings.

        UNSUPPORTED alone does not count where something was checked. Where nothing was, UNSUPPORTED.
        """
        found = {finding.verdict for finding in self.findings} - {Verdict.UNSUPPORTED}
        if not found and not self.checked.total():
            return Verdict.UNSUPPORTED
        return next(verdict for verdict in Verdict if verdict in found or verdict is Verdict.PASS)

    @property
    def first_bad(self) -> Finding | None:
        """The first finding of the verdict; None of PASS."""
        return next((finding for finding in self.findings if finding.verdict is self.verdict), None)

    @property
    def coverage(self) -> dict[str, int]:
        """Comparisons made by level, and what was not covered, by reason: "not covered: REASON" -> count."""
        return {**self.checked, **{f"not covered: {reason}": n for reason, n in sorted(self.uncovered.items())}}

    def require(self) -> "Report":
        """Return the report where it is PASS; raises OracleError with its text otherwise."""
        if self.verdict is not Verdict.PASS:
            raise OracleError(str(self))
        return self

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write the case of `first_bad`, shrunk, as a .sarcase directory, with what was expected, what came, and the
        cotangents.

        Raises ConfigError where there is none, DataError as `sarcase.save`.
        """
        bad = self.first_bad
        if bad is None or bad.case is None:
            raise ConfigError(f"{path}: nothing to save, the verdict is {self.verdict.name}")
        return sarcase.save(bad, path, overwrite)

    def told(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        return {"verdict": self.verdict.name, "what": self.what, "ratio": self.ratio, "checked": dict(self.checked),
                "not_covered": {reason: {"times": n, "example": self.examples.get(reason, "")}
                                for reason, n in sorted(self.uncovered.items())},
                **{name: [{"case": f.case_name, **f.told(), "trace": f.trace} for f in found]
                   for name, found in (("findings", self.findings), ("expected_failures", self.expected))}}

    def __str__(self) -> str:
        lines = [f"{self.verdict.name}: {self.what}"]
        if (bad := self.first_bad) is not None:
            lines += [f"  {bad}", *(f"  {line}" for line in bad.trace.splitlines())]
        counts = ", ".join(f"{n} {level}" for level, n in self.checked.items())
        found = [finding for finding in self.findings if finding.verdict is not Verdict.UNSUPPORTED]
        cases = len({finding.case_name for finding in found})
        lines.append(f"  {len(found)} findings in {cases} cases; compared: {counts or 'nothing'}")
        lines.append(f"  largest error / bound: {self.ratio:.4g}")
        for reason, n in sorted(self.uncovered.items()):
            example = self.examples.get(reason)
            times = [f"{n} times"] * (n > 1) + [f"as {example}"] * bool(example)
            lines.append(f"  not covered: {reason}" + (f" ({'; '.join(times)})" if times else ""))
        lines += [f"  expected failure: {finding}" for finding in self.expected[:_MOST_EXPECTED]]
        if (more := len(self.expected) - _MOST_EXPECTED) > 0:
            lines.append(f"  and {more} expected failures more")
        return "\n".join(lines)


class OracleError(SarliteError, AssertionError):
    """Raised by `Report.require`: a check found something."""

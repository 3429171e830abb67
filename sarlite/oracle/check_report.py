"""`Report`: the findings of one check, and the cases that the check did not cover."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sarlite.errors import ConfigError, SarliteError
from sarlite.oracle import sarcase
from sarlite.oracle.finding import Finding, Verdict

_MOST_EXPECTED = 5  # expected failures that are told one by one
_MOST_CAUSES = 8

_NUMBER = re.compile(r"\d[\d.,]*(e[+-]?\d+)?")

__all__ = ["Finding", "OracleError", "Report", "Verdict"]


@dataclass
class Report:
    """Findings and coverage of one check.

    Attributes
    ----------
    what : str
        The reference, the dtype, the level and the seed.
    findings : list of Finding
    expected : list of Finding
        Findings of expected failures and of verdicts that are allowed; they do not count in the verdict.
    checked : Counter
        Comparisons made, by level.
    uncovered : Counter
        Number of comparisons that were not made, by reason.
    examples : dict of str to str
        The first case of each reason, and the reason's details.
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
        """Count `times` comparisons that are not covered, for a reason."""
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
        """The finding of the verdict whose cause the most cases confirm, a wrong number before an exception; None of PASS.
        """
        bad = [finding for finding in self.findings if finding.verdict is self.verdict]
        return min(bad, key=lambda f: (-f.support, f.level == "call", isinstance(f.case, str)), default=None)

    @property
    def causes(self) -> list[tuple[str, int, str]]:
        """(cause, number of findings, a case) of each verdict but UNSUPPORTED, the most frequent first.

        Causes that differ in numbers alone count as one.
        """
        alike: dict[tuple, list[Finding]] = defaultdict(list)
        for finding in self.findings:
            if finding.verdict is not Verdict.UNSUPPORTED:
                searched = finding.support or not isinstance(finding.case, str)
                if finding.level in ("probe", "certified", "ranks") and not searched:
                    finding = replace(finding, cause="no cause was looked for")
                alike[finding.output, _NUMBER.sub("#", finding.cause)].append(finding)
        groups = sorted(alike.values(), key=lambda group: (-max(f.support for f in group), -len(group)))
        return [(f"{f.output}: {f.cause}" if f.output else f.cause, len(group), f.case_name)
                for group in groups for f in (max(group, key=lambda each: each.support),)]

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
        """Write the case of `first_bad`, shrunk, as a .sarcase directory, with expected and returned arrays and cotangents.

        Raises ConfigError if there is no such case, DataError as `sarcase.save`.
        """
        bad = self.first_bad
        if bad is None or isinstance(bad.case, str):
            raise ConfigError(f"{path}: nothing to save, the verdict is {self.verdict.name}")
        return sarcase.save(bad, path, overwrite)

    def told(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        return {"verdict": self.verdict.name, "what": self.what, "ratio": self.ratio, "checked": dict(self.checked),
                "causes": [{"cause": cause, "findings": n, "case": case} for cause, n, case in self.causes],
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
        told = self.causes if len(found) > 1 else []
        lines += [f"  {n} times: {cause} (as {case})" for cause, n, case in told[:_MOST_CAUSES]]
        if (more := len(told) - _MOST_CAUSES) > 0:
            lines.append(f"  and {more} causes more")
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

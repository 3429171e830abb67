"""`Report`: the result of one check, that is its findings (wrong results) and the comparisons that it did not make."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from sarlite.errors import ConfigError, SarliteError
from sarlite.oracle import sarcase
from sarlite.oracle.finding import Finding, Verdict
from sarlite.oracle.renamed import warn_renamed

_MOST_EXPECTED = 5  # expected failures and causes that the report's text lists, at most
_MOST_CAUSES = 8
_NUMBER = re.compile(r"\d[\d.,]*(e[+-]?\d+)?")

__all__ = ["Finding", "OracleError", "Report", "Verdict"]


@dataclass
class Report:
    """Result of one check: the findings, which are wrong results, and how many comparisons were made or left out.

    Parameters
    ----------
    what : str
        The reference, the dtype, the level and the seed, as text.
    findings : list of Finding
    expected : list of Finding
        Findings of expected failures and of allowed verdicts, which do not count in the verdict.
    checked : Counter
        Number of comparisons by level.
    uncovered : Counter
        Number of comparisons that were not made, by reason.
    examples : dict of str to str
        The first case of each reason, with details.
    ratio : float
        Largest error over its bound at level "certified"; above 1, the error is proved to be too large.

    Examples
    --------
    >>> from sarlite import oracle
    >>> report = oracle.check(lambda case: case.x[case.src], "gather", level="probe", graphs="ring-*", shrink=False)
    >>> report.verdict.name, report.checked["probe"] > 0
    ('PASS', True)
    >>> report.require() is report
    True
    >>> print(str(report).splitlines()[0])
    PASS: gather, float32, level probe, seed 0
    """

    what: str
    findings: list[Finding] = field(default_factory=list)
    expected: list[Finding] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)
    uncovered: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    ratio: float = 0.0

    def skip(self, reason: str, example: str = "", times: int = 1) -> None:
        """Count `times` comparisons as not covered for `reason`; `example` names a case, and the first example of a reason is kept."""
        if times:
            self.uncovered[reason] += times
            if example:
                self.examples.setdefault(reason, example)

    @property
    def verdict(self) -> Verdict:
        """Worst verdict of the findings; without findings PASS, or UNSUPPORTED if nothing was compared."""
        verdicts = {finding.verdict for finding in self.findings} - {Verdict.UNSUPPORTED}
        if not verdicts and not self.checked.total():
            return Verdict.UNSUPPORTED
        return next(verdict for verdict in Verdict if verdict in verdicts or verdict is Verdict.PASS)

    @property
    def first_bad(self) -> Finding | None:
        """Most telling finding: among the findings whose verdict is the report's, the one whose cause the most cases confirm. None
        if the verdict is PASS.

        Findings whose cause more cases confirm come first, and a wrong number comes before an exception.
        """
        bad = [finding for finding in self.findings if finding.verdict is self.verdict]
        return min(bad, key=lambda f: (-f.support, f.level == "call", isinstance(f.case, str)), default=None)

    @property
    def causes(self) -> list[tuple[str, int, str]]:
        """List of (cause, number of findings with this cause, name of a case with this cause). The causes that most cases confirm
        come first, and among these the most frequent.
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
        """Numbers of comparisons, as a dict: first of the comparisons made, with the level of the check as key; then of the
        comparisons not made, with keys "not covered: REASON".
        """
        return {**self.checked, **{f"not covered: {reason}": n for reason, n in sorted(self.uncovered.items())}}

    def require(self) -> "Report":
        """Return the report if its verdict is PASS; raise OracleError with its text otherwise."""
        if self.verdict is not Verdict.PASS:
            raise OracleError(str(self))
        return self

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write the case of `first_bad` with its arrays to a .sarcase directory, and return `path`; `overwrite` replaces an older case.

        Parameters
        ----------
        path : path
        overwrite : bool
            True if a directory that holds a case, and nothing else, is replaced.

        Raises
        ------
        ConfigError
            There is no finding.
        DataError
            See `sarcase.save`.
        """
        bad = self.first_bad
        if bad is None or isinstance(bad.case, str):
            raise ConfigError(f"{path}: there is nothing to save: the verdict is {self.verdict.name}")
        return sarcase.save(bad, path, overwrite)

    def to_dict(self) -> dict[str, object]:
        """Return the report as a dict for JSON."""
        return {"verdict": self.verdict.name, "what": self.what, "ratio": self.ratio, "checked": dict(self.checked),
                "causes": [{"cause": cause, "findings": n, "case": case} for cause, n, case in self.causes],
                "not_covered": {reason: {"times": n, "example": self.examples.get(reason, "")}
                                for reason, n in sorted(self.uncovered.items())},
                **{name: [{"case": f.case_name, **f.to_dict(), "trace": f.trace} for f in findings]
                   for name, findings in (("findings", self.findings), ("expected_failures", self.expected))}}

    def told(self) -> dict[str, object]:
        """Return `to_dict()`, and warn that `told` is the former name of `to_dict`."""
        warn_renamed("Report.told", "to_dict")
        return self.to_dict()

    def __str__(self) -> str:
        lines = [f"{self.verdict.name}: {self.what}"]
        if (bad := self.first_bad) is not None:
            lines += [f"  {bad}", *(f"  {line}" for line in bad.trace.splitlines())]
        counts = ", ".join(f"{n} {level}" for level, n in self.checked.items())
        findings = [finding for finding in self.findings if finding.verdict is not Verdict.UNSUPPORTED]
        cases = len({finding.case_name for finding in findings})
        causes = self.causes if len(findings) > 1 else []
        lines += [f"  {n} times: {cause} (as {case})" for cause, n, case in causes[:_MOST_CAUSES]]
        if (more := len(causes) - _MOST_CAUSES) > 0:
            lines.append(f"  and {more} causes more")
        lines.append(f"  {len(findings)} findings in {cases} cases; compared: {counts or 'nothing'}")
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
    """Error that `Report.require` raises if a check found something wrong; its text is the report.

    Examples
    --------
    >>> from sarlite import oracle
    >>> report = oracle.check(lambda case: 2 * case.x[case.src], "gather", level="probe", graphs="ring-3", shrink=False)
    >>> try:
    ...     report.require()
    ... except oracle.OracleError as error:
    ...     print(str(error).splitlines()[0])
    WRONG: gather, float32, level probe, seed 0
    """

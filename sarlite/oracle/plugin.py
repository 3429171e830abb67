"""The pytest plugin: the fixture `sarlite_oracle`, its options, and coverage in the terminal's summary.

pytest imports this module at its start in every project that has sarlite installed, so it imports nothing heavy.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sarlite import oracle
from sarlite.oracle.choices import COMMAND_LEVELS

_KEY = "sarlite_oracle"  # name of the fixture, and key of the property in which a test's report carries its checks


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the oracle's command-line options and ini settings to pytest."""
    group = parser.getgroup("sarlite", "sarlite.oracle")
    group.addoption("--oracle-level", choices=COMMAND_LEVELS,
                    help="level of checks that set none themselves (default: ini oracle_level, or ci)")
    group.addoption("--oracle-seed", type=int, default=0, metavar="N", help="seed of random values (default: 0)")
    group.addoption("--oracle-save", metavar="DIR",
                    help="folder for the shrunk case of each failing check, DIR/TEST.sarcase")
    parser.addini("oracle_level", "level of checks that set none themselves", default="ci")
    parser.addini("oracle_expected_failures", "patterns (fnmatch) of case names whose findings do not count",
                  type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker `oracle_expected_failures`."""
    marker = "oracle_expected_failures(*patterns): patterns (fnmatch) of case names whose findings do not count"
    config.addinivalue_line("markers", marker)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test that uses the fixture `sarlite_oracle`, so that the summary counts it."""
    if _KEY in getattr(item, "fixturenames", ()):
        item.user_properties.append((_KEY, ""))  # a test that is skipped has only this entry


class Oracle:
    """Value of the fixture `sarlite_oracle`: `check` and `check_ranks` with the options of this pytest run.

    If a check finds something wrong, the test fails, and the case is saved to the folder of --oracle-save. If a check
    covers nothing, the test is skipped.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        config, self._node = request.config, request.node
        marked = [pattern for mark in self._node.iter_markers("oracle_expected_failures") for pattern in mark.args]
        self.level = config.getoption("--oracle-level") or config.getini("oracle_level")
        self.seed = config.getoption("--oracle-seed")
        self.save = config.getoption("--oracle-save")
        self.expected_failures = (*config.getini("oracle_expected_failures"), *marked)

    def check(self, run: Callable[..., object], reference: "str | oracle.Reference", **options: Any) -> "oracle.Report":
        """Call `sarlite.oracle.check`, and return its report if the verdict is PASS; raise OracleError otherwise."""
        __tracebackhide__ = True
        return self._judged(oracle.check(run, reference, **{"level": self.level, **self._options(options)}))

    def check_ranks(self, run: Callable[..., Sequence[object]], reference: "str | oracle.Reference", **options: Any) -> "oracle.Report":
        """Call `sarlite.oracle.check_ranks`, and return its report if the verdict is PASS; raise OracleError otherwise."""
        __tracebackhide__ = True
        return self._judged(oracle.check_ranks(run, reference, **self._options(options)))

    def _options(self, options):
        expected = (*self.expected_failures, *options.get("expected_failures", ()))
        return {"seed": self.seed, **options, "expected_failures": expected}

    def _judged(self, report):
        __tracebackhide__ = True
        record = {"what": report.what, "verdict": report.verdict.name, "compared": report.checked.total(),
                "uncovered": dict(report.uncovered), "expected": [str(finding) for finding in report.expected]}
        self._node.user_properties.append((_KEY, json.dumps(record)))
        if report.verdict.name == "UNSUPPORTED":
            pytest.skip(f"nothing was checked: {report}")
        if self.save and report.first_bad is not None:
            name = re.sub(r"[^A-Za-z0-9_.-]+", "-", self._node.nodeid).strip("-.")
            report.save(Path(self.save) / f"{name}.sarcase", overwrite=True)
        return report.require()


@pytest.fixture
def sarlite_oracle(request: pytest.FixtureRequest) -> Oracle:
    """Return an `Oracle`, whose methods `check` and `check_ranks` fail the test if a result is wrong.

    Both use this run's level, seed, expected failures and folder of saved cases.

    Examples
    --------
    In a test module:

    >>> def test_gather(sarlite_oracle):
    ...     sarlite_oracle.check(lambda case: case.x[case.src], "gather")
    """
    return Oracle(request)


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """Print what the oracle's checks covered, if any test used the fixture."""
    lines = list(_summary(terminalreporter))
    if lines:
        terminalreporter.section("sarlite.oracle: what was covered")
        for line in lines:
            terminalreporter.line(line)


def _summary(terminalreporter: "pytest.TerminalReporter") -> Iterator[str]:
    for report in _last_reports(terminalreporter):
        records = [json.loads(value) for key, value in report.user_properties if key == _KEY and value]
        for record in records:
            yield f"{report.nodeid}: {record['verdict']}, {record['compared']} comparisons, {record['what']}"
            yield from (f"  not covered: {reason}" + f" ({n} times)" * (n > 1)
                        for reason, n in record["uncovered"].items())
            yield from (f"  expected failure: {text}" for text in record["expected"])
        if report.skipped and not any(record["compared"] for record in records):
            yield f"{report.nodeid}: not covered, skipped: {_reason(report)}"
        elif not records:
            yield f"{report.nodeid}: not covered, {report.outcome} before a check was made"


def _last_reports(terminalreporter: "pytest.TerminalReporter") -> list[Any]:
    """Return one pytest report for each test that uses the fixture `sarlite_oracle`. The report is the call's, or an earlier
    phase's if the test ended there.
    """
    last = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) in ("setup", "call") and any(key == _KEY
                                                                          for key, _ in report.user_properties):
                if report.when == "call" or not report.passed:
                    last[report.nodeid] = report
    return [last[nodeid] for nodeid in sorted(last)]


def _reason(report):
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return next(iter(reason.removeprefix("Skipped: ").splitlines()), "no reason given")

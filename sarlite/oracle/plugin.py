"""The pytest plugin: the fixture `sarlite_oracle`, its options, and what was not covered in the terminal's summary.

pytest imports this file at its start in everybody's tests, so it imports nothing that is heavy.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sarlite import oracle
from sarlite.oracle.choices import USUAL

_KEY = "sarlite_oracle"  # of the fixture, and of what reports carry, from xdist's workers too


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sarlite", "sarlite.oracle")
    group.addoption("--oracle-level", choices=USUAL,
                    help="level of checks that name none themselves (default: ini oracle_level, or ci)")
    group.addoption("--oracle-seed", type=int, default=0, metavar="N", help="seed of random values (default: 0)")
    group.addoption("--oracle-save", metavar="DIR",
                    help="where the shrunk case of a failing check is saved, as DIR/TEST.sarcase")
    parser.addini("oracle_level", "level of checks that name none themselves", default="ci")
    parser.addini("oracle_expected_failures", "patterns (fnmatch) of cases whose findings do not count",
                  type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    marker = "oracle_expected_failures(*patterns): patterns (fnmatch) of cases whose findings do not count here"
    config.addinivalue_line("markers", marker)


def pytest_itemcollected(item: pytest.Item) -> None:
    if _KEY in getattr(item, "fixturenames", ()):
        item.user_properties.append((_KEY, ""))  # of a test that is skipped this is all there is


class Oracle:
    """Value of the fixture: `check` and `check_ranks` of sarlite.oracle with the options of this pytest run.

    A check that finds something fails the test and saves the case where --oracle-save says; one that covers nothing
    skips it.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        config, self._node = request.config, request.node
        marked = [pattern for mark in self._node.iter_markers("oracle_expected_failures") for pattern in mark.args]
        self.level = config.getoption("--oracle-level") or config.getini("oracle_level")
        self.seed = config.getoption("--oracle-seed")
        self.save = config.getoption("--oracle-save")
        self.expected_failures = (*config.getini("oracle_expected_failures"), *marked)

    def check(self, run: Any, reference: "str | oracle.Reference", **options: Any) -> "oracle.Report":
        """Call `sarlite.oracle.check`; return the report if it is PASS, else raise an OracleError."""
        __tracebackhide__ = True
        return self._judged(oracle.check(run, reference, **{"level": self.level, **self._options(options)}))

    def check_ranks(self, run: Any, reference: "str | oracle.Reference", **options: Any) -> "oracle.Report":
        """Call `sarlite.oracle.check_ranks`; return the report if it is PASS, else raise an OracleError."""
        __tracebackhide__ = True
        return self._judged(oracle.check_ranks(run, reference, **self._options(options)))

    def _options(self, options):
        expected = (*self.expected_failures, *options.get("expected_failures", ()))
        return {"seed": self.seed, **options, "expected_failures": expected}

    def _judged(self, report):
        __tracebackhide__ = True
        told = {"what": report.what, "verdict": report.verdict.name, "compared": report.checked.total(),
                "uncovered": dict(report.uncovered), "expected": [str(finding) for finding in report.expected]}
        self._node.user_properties.append((_KEY, json.dumps(told)))
        if report.verdict.name == "UNSUPPORTED":
            pytest.skip(f"nothing was checked: {report}")
        if self.save and report.first_bad is not None:
            name = re.sub(r"[^A-Za-z0-9_.-]+", "-", self._node.nodeid).strip("-.")
            report.save(Path(self.save) / f"{name}.sarcase", overwrite=True)
        return report.require()


@pytest.fixture
def sarlite_oracle(request: pytest.FixtureRequest) -> Oracle:
    """`check` and `check_ranks` with this run's level, seed, expected failures and folder for failures."""
    return Oracle(request)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    lines = list(_summary(terminalreporter))
    if lines:
        terminalreporter.section("sarlite.oracle: what was covered")
        for line in lines:
            terminalreporter.line(line)


def _summary(terminalreporter: Any) -> Iterator[str]:
    for report in _last_reports(terminalreporter):
        told = [json.loads(value) for key, value in report.user_properties if key == _KEY and value]
        for one in told:
            yield f"{report.nodeid}: {one['verdict']}, {one['compared']} comparisons, {one['what']}"
            yield from (f"  not covered: {reason}" + f" ({n} times)" * (n > 1)
                        for reason, n in one["uncovered"].items())
            yield from (f"  expected failure: {text}" for text in one["expected"])
        if report.skipped and not any(one["compared"] for one in told):
            yield f"{report.nodeid}: not covered, skipped: {_reason(report)}"
        elif not told:
            yield f"{report.nodeid}: not covered, {report.outcome} before a check was made"


def _last_reports(terminalreporter):
    """One report a test that has the fixture: of its call, or of the phase that it did not come beyond."""
    found = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) in ("setup", "call") and any(key == _KEY
                                                                          for key, _ in report.user_properties):
                if report.when == "call" or not report.passed:
                    found[report.nodeid] = report
    return [found[nodeid] for nodeid in sorted(found)]


def _reason(report):
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return next(iter(reason.removeprefix("Skipped: ").splitlines()), "no reason given")

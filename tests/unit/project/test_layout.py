"""The tests are a package: shared code is in tests/helpers, and no file changes Python's path."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


def faults(text):
    """Return the lines of a test's source that call sys.path.insert or import a test module."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            lines += [node.lineno] * (ast.unparse(node.func) == "sys.path.insert")
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            lines += [node.lineno] * any(word.startswith("test_") for module in modules for word in module.split("."))
    return sorted(lines)


def test_helpers_are_imported_from_the_package():
    files = sorted(TESTS.rglob("*.py"))
    assert len(files) > 150
    places = [f"{file.relative_to(TESTS)}:{line}" for file in files for line in faults(file.read_text())]
    assert not places, places


@pytest.mark.parametrize("text, is_fault", [
    ("import sys\nsys.path.insert(0, 'x')", True), ("from test_tasks import FLAGS", True),
    ("import tests.unit.tasks.test_tasks as tasks", True),
    ("from tests.unit.tasks import test_tasks", True), ("from .test_tasks import FLAGS", True),
    ("from tests.helpers.train.task_data import dataset", False), ("words.insert(0, 'x')", False),
])  # fmt: skip
def test_the_rule_itself(text, is_fault):
    assert bool(faults(text)) is is_fault

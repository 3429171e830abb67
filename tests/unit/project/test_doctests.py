"""The examples in docstrings run and give the output that they show."""

import doctest
import importlib
from pathlib import Path

import pytest

import sarlite

ROOT = Path(sarlite.__file__).parent
NOT_INSTALLED = {"sarlite.interop.torch": "PyTorch"}
"""Modules whose examples need a package that the tests do without."""


def modules_with_examples():
    """Return the names of all modules of sarlite and of the models whose source has an example."""
    files = [(path.relative_to(ROOT.parent), path) for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] != "models"]
    files += [(Path("sarlite/models") / path.name, path) for path in (ROOT.parent / "models").glob("*.py")]
    names = {".".join(name.with_suffix("").parts).removesuffix(".__init__") for name, path in files if ">>> " in path.read_text()}
    return sorted(names - NOT_INSTALLED.keys())


MODULES = modules_with_examples()


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_examples_are_found():
    finder = doctest.DocTestFinder()
    tests = [test for name in MODULES for test in finder.find(importlib.import_module(name), name)]
    assert sum(len(test.examples) for test in tests) > 1000

"""The examples in docstrings run and give the output that they show."""

import doctest
import importlib

import pytest

from tests.helpers.documented_modules import modules_with_examples

MODULES = modules_with_examples()


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_examples_are_found():
    finder = doctest.DocTestFinder()
    tests = [test for name in MODULES for test in finder.find(importlib.import_module(name), name)]
    assert sum(len(test.examples) for test in tests) > 1000

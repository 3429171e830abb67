"""The examples in the docstrings of graphs run and print what they say."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name, n_examples", [("graph", 17), ("hetero", 2)])
def test_examples_of_graphs(name, n_examples):
    found = doctest.testmod(importlib.import_module(f"sarlite.graph.{name}"))
    assert found.failed == 0 and found.attempted >= n_examples

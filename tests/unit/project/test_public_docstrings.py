"""Docstrings of the public names, the names that the site's reference lists, are complete, and their examples run."""

import doctest
import inspect
import pkgutil
import runpy
from enum import Enum
from pathlib import Path

import pytest
from numpydoc.validate import validate

from sarlite.comm import Communicator, Request, Solo
from sarlite.errors import SarliteError
from tests.helpers.documented_modules import modules_with_examples

ROOT = Path(__file__).parents[3]
PAGES = runpy.run_path(str(ROOT / "packaging/site/pages.py"))
CODES = {
    "GL08": "a docstring", "SS01": "a summary", "SS03": "a period at the end of the summary",
    "PR01": "all parameters", "PR02": "no other parameters", "PR03": "parameters in the order of the signature",
    "RT01": "Returns", "YD01": "Yields", "EX01": "Examples",
}  # fmt: skip
"""Codes of numpydoc's validation that must not occur, with the part of the docstring that a code misses."""
OTHER_CODES = {
    "SA01": "See Also: the pages of the reference list related names side by side",
    "SS06": "one line for the summary: up to three sentences say what the arguments, defaults and the result are",
    "ES01": "extended summary: one line is enough where the parameters say the rest",
    "PR04": "type of each parameter: parameters that share one entry, such as `src, dst`, may refer to another docstring",
    "PR07": "description of each parameter: a name and a type may say everything, as `comm : Communicator` does",
    "PR06": "spelling of types: shapes and ranges stand beside them",
    "PR08": "capital at the start: a description may start with a name of the code",
    "RT03": "description of the result: the summary has described it",
    "GL07": "order of the sections: ruff's rules check the sections' form",
}
"""Codes that may occur, with the reason."""
METHODS = (
    *(f"sarlite.graph.graph.Graph.{name}" for name in (
        "from_edges", "from_csr", "from_scipy", "from_networkx", "from_pandas", "from_part", "shard", "subgraph", "aggregate",
        "with_edge_values", "in_edges", "out_edges", "to_scipy", "to_pandas", "to_networkx")),
    *(f"sarlite.graph.hetero.HeteroGraph.{name}" for name in (
        "from_edges", "from_pandas", "from_part", "of", "subgraph", "aggregate", "with_edge_values")),
    *(f"sarlite.graph.graph_set.GraphSet.{name}" for name in ("of", "take")),
    *(f"sarlite.train.loop.Trainer.{name}" for name in ("fit", "step", "epoch", "evaluate", "predict")),
)  # fmt: skip
"""Constructors of graphs, and the methods that programs call most. They are checked as the public names are."""


def public_names():
    """Return the public classes and functions as {"module.name": object}."""
    names = {}
    for _, entries in PAGES["REFERENCE"].values():
        for entry in entries:
            item, is_module = PAGES["resolved"](entry)
            for value in PAGES["public"](item).values() if is_module else [item]:
                if inspect.isclass(value) or inspect.isfunction(value):
                    names[f"{value.__module__}.{value.__qualname__}"] = value
    return names | {name: pkgutil.resolve_name(name) for name in METHODS}


PUBLIC = public_names()


def is_kind(value, kind):
    """Return True if `value` is a class that derives from `kind`."""
    return inspect.isclass(value) and issubclass(value, kind)


def exempt(value):
    """Return the codes that may occur in the docstring of `value`."""
    if is_kind(value, BaseException) and value is not SarliteError:
        return {"PR01", "EX01"}  # sarlite constructs errors, with the arguments of SarliteError; a program catches them by class
    if is_kind(value, Enum) or value in (Communicator, Request, Solo):
        return {"PR01"}  # numpydoc reads the constructor of Enum, or *args and **kwargs of Protocol, which no program calls
    return set()


def examples(value):
    """Return the source of each example in the docstring of `value`."""
    return [example.source for example in doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")]


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_of_public_name_is_complete(name):
    wrong = {code: message for code, message in validate(name)["errors"] if code in CODES}
    assert not wrong.keys() - exempt(PUBLIC[name]), f"{name}: {wrong}"


def test_each_code_that_occurs_is_wanted_or_has_a_reason():
    occurring = {code for name in PUBLIC for code, _ in validate(name)["errors"]}
    assert occurring <= CODES.keys() | OTHER_CODES.keys()
    assert not CODES.keys() & OTHER_CODES.keys()


def test_examples_of_public_names_are_among_the_doctests():
    classes_and_functions = [value for value in PUBLIC.values() if "EX01" not in exempt(value)]
    assert [value.__qualname__ for value in classes_and_functions if not examples(value)] == []
    assert {value.__module__ for value in classes_and_functions} <= {*modules_with_examples()}


def test_public_names_have_examples_on_two_ranks():
    on_two_ranks = [name for name, value in PUBLIC.items() if "threads.run(2, " in "".join(examples(value))]
    assert len(on_two_ranks) >= 10

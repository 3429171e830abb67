"""The examples in docstrings run and give the output that they show."""

import doctest
import importlib
from pathlib import Path

import pytest

import sarlite

ROOT = Path(sarlite.__file__).parent
PACKAGES = ("kernels", "numerics", "comm", "tape", "schedule", "operators", "graph", "nn", "structure", "minibatch", "minibatch.hec",
            "oracle", "tasks", "train")
WITHOUT_EXAMPLES = ("__init__", "__main__", "mpi", "mpi_transfers")
MODULES = [f"sarlite.{name}" for name in ("errors", "files", "interop", "keys", "loading", "optim", "profile")] + sorted(
    f"sarlite.{package}.{path.stem}" for package in PACKAGES
    for path in (ROOT / package.replace(".", "/")).glob("*.py") if path.stem not in WITHOUT_EXAMPLES
)  # fmt: skip
MODULES += [f"sarlite.models.{path.stem}" for path in sorted((ROOT.parent / "models").glob("*.py")) if path.stem != "__init__"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_examples_are_found():
    assert sum(doctest.testmod(importlib.import_module(name)).attempted for name in MODULES) > 500

"""The hashes of exact numerics that docs/numerics.md publishes are the hashes of this tree."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from sarlite import kernels
from sarlite.comm import Solo

ROOT = Path(__file__).parents[3]
MODELS = ("gcn", "sage", "gat", "rgcn", "minibatch sage")

pytestmark = pytest.mark.timeout(300)


def published(dtype):
    """Return the hashes of the graph of mixed scale by model, from the two rows of the table that begin with its name."""
    text = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
    rows = text[text.index("| mixed scale") :].splitlines()[:2]
    (row,) = [row for row in rows if dtype in row]
    return dict(zip(MODELS, re.findall(r"[0-9a-f]{16}", row), strict=True))


@pytest.mark.parametrize(("model", "dtype"), [*((model, "float32") for model in MODELS), ("gat", "float64")])
def test_a_training_on_the_graph_of_mixed_scale_has_the_published_hash(model, dtype, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    product = importlib.import_module("exact_product")
    n_threads = kernels.threads()
    try:
        assert product.train(Solo(), model, product.mixed(), np.dtype(dtype).type, epochs=5) == published(dtype)[model]
    finally:
        kernels.set_threads(n_threads)

"""A few of the programs of `python -m tests.program_campaign`, which tries any number; a wrong gradient is detected."""

import sys

import numpy as np
import pytest

from sarlite import Tensor
from sarlite.numerics.placement import joined
from sarlite.tape import PRIMITIVES, ops
from sarlite.tape.summands import Summand
from tests.helpers.tape import slopes
from tests.program_campaign import campaign


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind, n", [("tape", 20), ("graph", 6), ("relations", 3), ("batches", 2), ("exact", 15)])
def test_some_programs_are_right(kind, n):
    assert campaign(kind, n, seed=0).total() == n


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind, name", [("tape", "tanh"), ("graph", "matmul"), ("relations", "matmul")])
def test_a_wrong_gradient_is_seen(kind, name, monkeypatch):
    right = PRIMITIVES[name]

    def wrong(g, wants_grad, residuals, **options):
        grads = [d.array() if isinstance(d, Summand) else d for d in right.vjp(g, wants_grad, residuals, **options)]
        return [None if d is None else d * 1.001 for d in grads]

    monkeypatch.setitem(PRIMITIVES, name, right._replace(vjp=wrong))
    with pytest.raises(AssertionError, match=f"program [0-9]+: .*--kind {kind} --seed 0 --first"):
        campaign(kind, 60, seed=0)


@pytest.mark.timeout(120)
def test_a_wrong_placement_is_seen(monkeypatch):
    """Arrays are left out, as if they were the same on every rank; results then depend on the number of ranks."""
    joined_if_known = lambda placements: joined([placement for placement in placements if placement != "unknown"])  # noqa: E731
    monkeypatch.setattr(sys.modules["sarlite.tape.apply"], "joined", joined_if_known)
    with pytest.raises(AssertionError, match="program [0-9]+: .*--kind exact --seed 0 --first"):
        campaign("exact", 60, seed=0)


def test_differences_are_those_of_long_doubles():
    x, w = np.array([0.3, -1.2]), [np.ones(2)]
    formula = lambda frozen, leaves: [np.exp(leaves[0])]  # noqa: E731
    t = Tensor(x, requires_grad=True)
    ops.exp(t).sum().backward()
    slopes.check(formula, slopes.Frozen(0), [x.astype(slopes.LONG)], [t.grad], w, np.random.default_rng(0), 1e-13)
    with pytest.raises(AssertionError, match="gradient of leaf 0"):
        slopes.check(
            formula, slopes.Frozen(0), [x.astype(slopes.LONG)], [t.grad * (1 + 1e-7)], w, np.random.default_rng(0), 1e-9
        )

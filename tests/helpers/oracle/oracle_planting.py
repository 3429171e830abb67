"""`Mutant`, a kernel with a planted bug, and the decorator that registers mutants for the oracle's tests."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.helpers.oracle import oracle_kernels as right


@dataclass(frozen=True)
class Mutant:
    """A kernel with one planted bug, and the level of check that must catch the bug.

    Attributes
    ----------
    op, attributes
        As of `check`. If `op` is "ranks", `run` is for `check_ranks`.
    level : str
        Lowest level that must catch the bug: "probe", "certified" or "repeat"; "ranks" for `check_ranks`, "sampling"
        for a sampler.
    link, upstream : str
        For a real bug: its report, and what is known about the tests that missed it.
    """

    name: str
    op: str
    level: str
    run: Callable[..., Any]
    vjp: Callable[..., Any] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    link: str = ""
    upstream: str = "not tried"


def planting(mutants):
    """Return the function `planted`, whose decorators add a `Mutant` to the list `mutants`."""

    def planted(op, level="probe", /, name=None, backward=False, link="", upstream="", **attributes):
        """Return a decorator that registers a function as a defective `run` of `op`, or its `vjp` if `backward`, for `level` to catch.

        The other function is right. The check `level` must catch the defect.
        """

        def register(function):
            run, vjp = right.KERNELS.get(op, (None, None))
            pair = (run, function) if backward else (function, vjp)
            label = name or function.__name__.replace("_", " ")
            mutants.append(Mutant(label, op, level, *pair, attributes, link, upstream or "not tried"))
            return function

        return register

    return planted


PYG, DGL = "https://github.com/pyg-team/pytorch_geometric", "https://github.com/dmlc/dgl"


def summed(case, edges, rows, selected=slice(None)):
    """Return for each destination the sum of the `rows` of its edges, (n_dst, ...); only the edges `selected` are summed."""
    out = np.zeros((edges.n_dst, *rows.shape[1:]), rows.dtype)
    np.add.at(out, edges.dst[selected], rows[selected])
    return out

"""What a planted bug is, and how one is registered."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.helpers.oracle import oracle_kernels as right


@dataclass(frozen=True)
class Mutant:
    """A kernel with a defect.

    Attributes
    ----------
    op, attributes : as of `check`; with op "ranks" `run` is for `check_ranks`
    level : str
        "probe", "certified" or "repeat": the lowest level that must catch it; "ranks" of `check_ranks`; "sampling" of a sampler.
    link, upstream : str
        Of a real bug: where it was told, and what is known of the tests that were there.
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
    """What registers functions in a list."""

    def planted(of, level="probe", /, name=None, backward=False, link="", upstream="", **attributes):
        """Register a function as the defective `run`, or `vjp` where `backward`, the other being right."""

        def register(function):
            run, vjp = right.KERNELS.get(of, (None, None))
            pair = (run, function) if backward else (function, vjp)
            told = name or function.__name__.replace("_", " ")
            mutants.append(Mutant(told, of, level, *pair, attributes, link, upstream or "not tried"))
            return function

        return register

    return planted


PYG, DGL = "https://github.com/pyg-team/pytorch_geometric", "https://github.com/dmlc/dgl"


def summed(case, edges, rows, kept=slice(None)):
    """Sums over the edges that are kept."""
    out = np.zeros((edges.n_dst, *rows.shape[1:]), rows.dtype)
    np.add.at(out, edges.dst[kept], rows[kept])
    return out

"""Decoders score links from the rows of their two ends; a LinkPredictor is a model of nodes and a decoder."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, ShapeError, whole
from sarlite.nn.layers import glorot
from sarlite.nn.module import Module, Parameter
from sarlite.nn.random import Random
from sarlite.sar.graph.link_graph import LinkGraph
from sarlite.tape import Tensor
from sarlite.types import DType

__all__ = ["DECODERS", "ComplEx", "DistMult", "Dot", "LinkPredictor", "RotatE", "TransE"]

GAMMA = 12.0
"""What distances are subtracted from, so that near ends have a score above 0 (Sun et al. 2019)."""
_LEAST = 1e-12


class Dot(Module):
    """Score sum_k h_k t_k, of tensors that broadcast: heads (n, 1, width), tails (n, c, width) to (n, c)."""

    def __init__(self, width: int = 0, *, rng: Random | None = None, dtype: DType = np.float32) -> None:
        """Take what other decoders are made with; there is no parameter."""

    def __call__(self, head: Tensor, tail: Tensor) -> Tensor:
        return (head * tail).sum(-1)


class _Relation(Module):
    """A decoder with one learned row, the relation's, of `width` numbers; pairs (real, imaginary) where `paired`."""

    paired = False

    def __init__(self, width: int, *, rng: Random, dtype: DType = np.float32) -> None:
        if whole("width", width, 1) % 2 and self.paired:
            raise ConfigError(f"width {width}: {type(self).__name__} takes complex numbers, so an even width")
        self.relation = glorot(rng, (width,), 1, width, dtype)

    def _halves(self, x: Any) -> tuple[Tensor, Tensor]:
        half = x.shape[-1] // 2
        return x[..., :half], x[..., half:]

    def _check(self, head: Tensor) -> None:
        if head.shape[-1:] != self.relation.shape:
            raise ShapeError(f"{type(self).__name__}: rows of {head.shape[-1]} numbers, but {len(self.relation)} are taken")


class DistMult(_Relation):
    """Score sum_k h_k r_k t_k (Yang et al. 2015); r begins at 1, as `Dot`."""

    def __init__(self, width: int, *, rng: Random | None = None, dtype: DType = np.float32) -> None:
        self.relation = Parameter(np.ones(whole("width", width, 1), dtype))

    def __call__(self, head: Tensor, tail: Tensor) -> Tensor:
        self._check(head)
        return (self.relation * (head * tail)).sum(-1)  # the same bits where both ends are exchanged


class ComplEx(_Relation):
    """Score Re(sum_k h_k r_k conj(t_k)) of complex numbers, the real parts standing first (Trouillon et al. 2016)."""

    paired = True

    def __call__(self, head: Tensor, tail: Tensor) -> Tensor:
        self._check(head)
        (a, b), (c, d), (real, imaginary) = map(self._halves, (head, self.relation, tail))
        return ((a * c - b * d) * real + (a * d + b * c) * imaginary).sum(-1)


class TransE(_Relation):
    """Score gamma - sum_k |h_k + r_k - t_k|, gamma = 12 (Bordes et al. 2013)."""

    def __call__(self, head: Tensor, tail: Tensor) -> Tensor:
        self._check(head)
        return GAMMA - abs(head + self.relation - tail).sum(-1)


class RotatE(_Relation):
    """Score gamma - sum_k |h_k r_k - t_k| of complex numbers, |r_k| = 1, gamma = 12 (Sun et al. 2019).

    The learned numbers are divided by their moduli, in place of phases. Where a difference is 0, so is its gradient.
    """

    paired = True

    def __call__(self, head: Tensor, tail: Tensor) -> Tensor:
        self._check(head)
        (a, b), (c, d), (real, imaginary) = map(self._halves, (head, self.relation, tail))
        size = (c * c + d * d + _LEAST).sqrt()
        c, d = c / size, d / size
        one, other = a * c - b * d - real, a * d + b * c - imaginary
        return GAMMA - (one * one + other * other + _LEAST).sqrt().sum(-1)


DECODERS: dict[str, Callable[..., Module]] = {
    "dot": Dot, "distmult": DistMult, "complex": ComplEx, "transe": TransE, "rotate": RotatE,
}  # fmt: skip
"""By name, each made as Decoder(width, rng=rng, dtype=dtype)."""


class LinkPredictor(Module):
    """Scores the candidates of a `LinkGraph`: a model makes a row of each node, a decoder a number of each pair of rows.

    Parameters
    ----------
    encoder : callable Module
        encoder(graph, x) -> (n_dst, width), such as any of `sarlite.models`.
    decoder : callable Module
        decoder(heads (n, 1, width), tails (n, c, width)) -> (n, c).

    Raises
    ------
    ConfigError
        The encoder takes propagated features; in a call: the graph is no LinkGraph.
    """

    def __init__(self, encoder: Any, decoder: Any) -> None:
        if hasattr(encoder, "powers"):
            raise ConfigError(f"links: {type(encoder).__name__} trains on features that were propagated before")
        self.encoder, self.decoder = encoder, decoder
        self.takes = getattr(encoder, "takes", None)

    def first_layer(self) -> Any:
        """Return what the encoder says of its first layer."""
        return self.encoder.first_layer()

    def __call__(self, graph: Any, h: Any) -> Tensor:
        """Return the scores of the candidates, (graph.n_dst, graph.n_candidates). Collective."""
        if not isinstance(graph, LinkGraph):
            raise ConfigError(f"a LinkPredictor scores the links of a LinkGraph, but graph is a {type(graph).__name__}")
        return graph.score(self.decoder, self.encoder(graph.nodes, h))

"""Decoders score links from the rows of their two ends; a LinkPredictor is a model of nodes and a decoder.

With `n_out` a decoder makes `n_out` numbers for a link, scores of classes or values, and has a learned row for each.
Called with numbers of relations, (n,), a decoder scores each row of candidates with the learned row of the row's
relation.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, ShapeError, whole
from sarlite.graph.link_graph import LinkGraph
from sarlite.nn.layers import Linear, glorot
from sarlite.nn.module import Module, Parameter
from sarlite.nn.random import Random
from sarlite.tape import Tensor, apply
from sarlite.types import Array, DType

__all__ = ["DECODERS", "MLP", "ComplEx", "DistMult", "Dot", "LinkPredictor", "RotatE", "TransE"]

GAMMA = 12.0
"""Distances are subtracted from this number, so that near ends have a score above 0 (Sun et al. 2019)."""
_LEAST = 1e-12


class Dot(Module):
    """Score sum_k h_k t_k, of tensors that broadcast: heads (n, 1, width), tails (n, c, width) to (n, c)."""

    def __init__(self, width: int = 0, n_out: int | None = None, *, rng: Random | None = None,
                 dtype: DType = np.float32) -> None:
        """Take the arguments of other decoders. There is no parameter, and so no number of outputs."""
        if n_out is not None:
            raise ConfigError(f"decoder dot makes one score of a link, but {n_out} outputs are wanted: mlp, distmult, "
                              "complex, transe and rotate have a learned row for each", "decoder")

    def __call__(self, head: Tensor, tail: Tensor, relation: Array | None = None) -> Tensor:
        return (head * tail).sum(-1)  # of any relation


class _Relation(Module):
    """A decoder with one learned row of `width` numbers, or `n_out` rows; (real, imaginary) pairs where `paired`."""

    paired = False

    def __init__(self, width: int, n_out: int | None = None, *, rng: Random, dtype: DType = np.float32) -> None:
        if whole("width", width, 1) % 2 and self.paired:
            raise ConfigError(f"width {width}: {type(self).__name__} takes complex numbers, so an even width")
        self.relation = glorot(rng, _shape(width, n_out), 1, width, dtype)

    def _halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        half = x.shape[-1] // 2
        return x[..., :half], x[..., half:]

    def _row(self, head: Tensor, tail: Tensor, relation: Array | None) -> Tensor:
        """The relation's row, or all rows; of rows of candidates with a relation each (n, 1, width)."""
        _check(self, head, tail, self.relation.shape[-1], relation, self.relation.ndim == 2)
        return self.relation if relation is None else self.relation[relation][:, None]


def _shape(width, n_out):
    return (width,) if n_out is None else (whole("n_out", n_out, 1), width)


def _check(decoder, head, tail, width, relation, several):
    if relation is not None and not several:
        raise ConfigError(f"decoder {type(decoder).__name__}: made for one relation; of several n_out says of how many",
                          "decoder")
    if several and relation is None and tail.shape[1] > 1:
        raise ConfigError(f"decoder {type(decoder).__name__}: n_out is for labels of links, or links of several "
                          f"relations, but {tail.shape[1]} candidates of one relation are scored", "decoder")
    if head.shape[-1] != width:
        raise ShapeError(f"{type(decoder).__name__}: rows of {head.shape[-1]} numbers, but {width} are taken")


class DistMult(_Relation):
    """Score sum_k h_k r_k t_k (Yang et al. 2015); r begins at 1, as `Dot`."""

    def __init__(self, width: int, n_out: int | None = None, *, rng: Random | None = None,
                 dtype: DType = np.float32) -> None:
        self.relation = Parameter(np.ones(_shape(whole("width", width, 1), n_out), dtype))

    def __call__(self, head: Tensor, tail: Tensor, relation: Array | None = None) -> Tensor:
        return (self._row(head, tail, relation) * (head * tail)).sum(-1)  # the same bits where both ends are exchanged


class ComplEx(_Relation):
    """Score Re(sum_k h_k r_k conj(t_k)) of complex numbers, the real parts standing first (Trouillon et al. 2016)."""

    paired = True

    def __call__(self, head: Tensor, tail: Tensor, relation: Array | None = None) -> Tensor:
        (a, b), (c, d), (real, imaginary) = map(self._halves, (head, self._row(head, tail, relation), tail))
        return ((a * c - b * d) * real + (a * d + b * c) * imaginary).sum(-1)


class TransE(_Relation):
    """Score gamma - sum_k |h_k + r_k - t_k|, gamma = 12 (Bordes et al. 2013)."""

    def __call__(self, head: Tensor, tail: Tensor, relation: Array | None = None) -> Tensor:
        return GAMMA - abs(head + self._row(head, tail, relation) - tail).sum(-1)


class RotatE(_Relation):
    """Score gamma - sum_k |h_k r_k - t_k| of complex numbers, |r_k| = 1, gamma = 12 (Sun et al. 2019).

    The learned numbers are divided by their moduli, in place of phases. Where a difference is 0, so is its gradient.
    """

    paired = True

    def __call__(self, head: Tensor, tail: Tensor, relation: Array | None = None) -> Tensor:
        (a, b), (c, d), (real, imaginary) = map(self._halves, (head, self._row(head, tail, relation), tail))
        size = (c * c + d * d + _LEAST).sqrt()
        c, d = c / size, d / size
        one, other = a * c - b * d - real, a * d + b * c - imaginary
        return GAMMA - (one * one + other * other + _LEAST).sqrt().sum(-1)


class MLP(Module):
    """Numbers relu(h W_h + t W_t + b) V + c: a hidden layer of `width` over both ends' rows, and a layer of outputs.

    The score of a link among candidates has no c. All candidates of a link would share c, so a loss that compares
    candidates has no gradient for c but rounding errors, which Adam would enlarge.
    """

    def __init__(self, width: int, n_out: int | None = None, *, rng: Random, dtype: DType = np.float32) -> None:
        self.n_out = n_out
        self.head, self.tail = (Linear(width, width, bias, rng=rng, dtype=dtype) for bias in (True, False))
        n = 1 if n_out is None else whole("n_out", n_out, 1)
        self.out = Linear(width, n, n_out is not None, rng=rng, dtype=dtype)

    def __call__(self, head: Tensor, tail: Tensor, relation: Array | None = None) -> Tensor:
        _check(self, head, tail, len(self.head.weight), relation, self.n_out is not None)
        hidden = (_by_row(self.head, head) + _by_row(self.tail, tail)).relu()
        if relation is not None:
            return (self.out.weight.T[relation][:, None] * hidden).sum(-1)
        found = _by_row(self.out, hidden)
        return found.reshape(found.shape[:2] if self.n_out is None else (len(found), self.n_out))


def _by_row(layer, x):
    """Apply a layer to the last axis of an (n, c, width) tensor, as a single product."""
    found = layer(x.reshape(x.shape[0] * x.shape[1], x.shape[2]))
    return apply("reshape", found, placement=x.placement, shape=(*x.shape[:2], found.shape[1]))


DECODERS: dict[str, Callable[..., Module]] = {
    "dot": Dot, "mlp": MLP, "distmult": DistMult, "complex": ComplEx, "transe": TransE, "rotate": RotatE,
}  # fmt: skip
"""By name, each made as Decoder(width, n_out, rng=rng, dtype=dtype)."""


class LinkPredictor(Module):
    """Scores the candidates of a `LinkGraph`: a model makes a row for each node, a decoder a number for each pair.

    Parameters
    ----------
    encoder : callable Module
        encoder(graph, x) -> (n_dst, width), such as any of `sarlite.models`.
    decoder : callable Module
        decoder(heads (n, 1, width), tails (n, c, width)) -> (n, c); or, for one candidate, c = 1, n_out numbers a
        link, (n, n_out). With links of several relations the decoder gets the relations' numbers, (n,) int64, too.

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

    def __call__(self, graph: object, h: Tensor | dict[str, Tensor]) -> Tensor:
        """Return the candidates' scores, (graph.n_dst, graph.n_candidates), or (graph.n_dst, n_out). Collective."""
        if not isinstance(graph, LinkGraph):
            raise ConfigError(f"a LinkPredictor scores the links of a LinkGraph, but graph is a {type(graph).__name__}")
        return graph.score(self.decoder, self.encoder(graph.nodes, h))

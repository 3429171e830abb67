"""Decoders, which score links from the rows of their two ends, and LinkPredictor: a model of nodes with a decoder.

A decoder is called with the rows h of heads, (n, 1, width) or (n, c, width), and the rows t of tails, (n, c, width). It
returns scores (n, c), by three forms of its learned rows r:

- without `n_out` there is one learned row, for links of one relation;
- with `n_out` and a call without `relation`, c is 1, and the decoder returns one number for each learned row,
  (n, n_out): scores of classes, or values;
- with `n_out` and a call with `relation`, (n,) int64, link i is scored with learned row relation[i].
"""

from collections.abc import Callable, Sequence

import numpy as np

from sarlite.errors import ConfigError, ShapeError, check_int
from sarlite.graph.link_graph import LinkGraph
from sarlite.nn.layers import Linear, glorot
from sarlite.nn.module import Encoder, Module, Parameter
from sarlite.nn.random import Random
from sarlite.tape import Tensor, apply
from sarlite.types import Array, DType

__all__ = ["DECODERS", "MLP", "ComplEx", "DistMult", "Dot", "LinkPredictor", "RotatE", "TransE"]

GAMMA = 12.0
"""Number that distances are subtracted from, so that ends close to each other have a score above 0 (Sun et al. 2019)."""
_LEAST = 1e-12


class Dot(Module):
    """Decoder whose score is the dot product of head and tail, sum_k h_k t_k. It has no parameters.

    Parameters
    ----------
    width, n_out, rng, dtype
        Arguments of other decoders; they have no effect, but `n_out` is refused.

    Raises
    ------
    ConfigError
        `n_out` is not None.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Tensor, nn
    >>> heads, tails = Tensor(np.ones((3, 1, 8))), Tensor(np.ones((3, 5, 8)))
    >>> nn.Dot()(heads, tails).shape
    (3, 5)
    """

    def __init__(self, width: int = 0, n_out: int | None = None, *, rng: Random | None = None,
                 dtype: DType = np.float32) -> None:
        if n_out is not None:
            raise ConfigError(f"decoder dot makes one score of a link, but {n_out} outputs are needed: mlp, distmult, "
                              "complex, transe and rotate have a learned row for each", "decoder")

    def __call__(self, head: Tensor, tail: Tensor, relation: Array | None = None) -> Tensor:
        """Return the scores (n, c) of n heads, (n, 1, width), with c candidate tails each, (n, c, width). `relation` has no effect."""
        return (head * tail).sum(-1)

    def cross(self, heads: Tensor, tails: Tensor) -> Tensor:
        """Return the scores (n, c) of each of n heads, (n, width), with each of c tails, (c, width), computed as one matrix product."""
        return heads @ tails.T


class _Relation(Module):
    """Base class of decoders with learned rows r of `width` numbers: one row, or with `n_out` one row for each relation or label.

    Parameters
    ----------
    width : int
        Width of the rows of heads and tails; even if `complex_rows`.
    n_out : int, optional
        Number of learned rows; by default one. See the module's description.
    rng : Random
    dtype : float32 or float64

    Attributes
    ----------
    relation : Parameter (width,) or (n_out, width)
        Learned rows.
    complex_rows : bool
        True if the first half of a row has real parts and the second half has imaginary parts of complex numbers.
    """

    complex_rows = False

    def __init__(self, width: int, n_out: int | None = None, *, rng: Random, dtype: DType = np.float32) -> None:
        if check_int("width", width, 1) % 2 and self.complex_rows:
            raise ConfigError(f"width {width}: {type(self).__name__} takes complex numbers, so an even width")
        self.relation = glorot(rng, _shape(width, n_out), 1, width, dtype)

    def _halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (real parts, imaginary parts) of complex rows, the two halves of x's last axis."""
        half = x.shape[-1] // 2
        return x[..., :half], x[..., half:]

    def _row(self, head: Tensor, tail: Tensor, relation: Array | None) -> Tensor:
        """Return the learned row of each link, (n, 1, width), where relation[i] is the number of link i's row. If `relation` is
        None, return all learned rows, (n_out, width) or (width,); they broadcast with the rows of heads and tails.
        """
        _check(self, head, tail, self.relation.shape[-1], relation, self.relation.ndim == 2)
        return self.relation if relation is None else self.relation[relation][:, None]


def _shape(width, n_out):
    return (width,) if n_out is None else (check_int("n_out", n_out, 1), width)


def _check(decoder: object, head: Tensor, tail: Tensor, width: int, relation: Array | None, several_outputs: bool) -> None:
    """Raise an error unless the rows of `head` have `width` numbers and `relation` suits the decoder. A decoder with
    `several_outputs` (a learned row for each relation or label) accepts None only if each link has a single candidate in `tail`. A
    decoder with one output accepts only None.
    """
    if relation is not None and not several_outputs:
        raise ConfigError(f"decoder {type(decoder).__name__}: made for one relation; n_out=N makes a decoder of N relations",
                          "decoder")
    if several_outputs and relation is None and tail.shape[1] > 1:
        raise ConfigError(f"decoder {type(decoder).__name__}: n_out is for labels of links, or links of several "
                          f"relations, but {tail.shape[1]} candidates of one relation are scored", "decoder")
    if head.shape[-1] != width:
        raise ShapeError(f"{type(decoder).__name__}: rows have {head.shape[-1]} numbers, but the decoder takes {width}")


class DistMult(_Relation):
    """Decoder whose score is sum_k h_k r_k t_k for a head's row h, a tail's row t and a learned row r (Yang et al. 2015). r starts
    at 1, which gives the scores of `Dot`.

    Parameters
    ----------
    width : int
        Width of the rows of heads and tails.
    n_out : int, optional
        Number of learned rows; by default one. See the module's description.
    rng : Random, optional
        Has no effect, because no value is drawn.
    dtype : float32 or float64

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Tensor, nn
    >>> heads, tails = Tensor(np.ones((3, 1, 8), np.float32)), Tensor(np.ones((3, 5, 8), np.float32))
    >>> nn.DistMult(8)(heads, tails).shape
    (3, 5)
    >>> nn.DistMult(8, n_out=2)(heads, tails, np.array([0, 1, 1])).shape
    (3, 5)
    """

    def __init__(self, width: int, n_out: int | None = None, *, rng: Random | None = None,
                 dtype: DType = np.float32) -> None:
        self.relation = Parameter(np.ones(_shape(check_int("width", width, 1), n_out), dtype))

    def __call__(self, head: Tensor, tail: Tensor, relation: Array | None = None) -> Tensor:
        """Return the scores (n, c) of n heads, (n, 1, width), with c candidate tails each, (n, c, width). relation[i] is the number
        of the learned row that scores link i. With `relation` None, the only learned row scores all links; several rows score every
        link, and the result is (n, n_out).

        A score is bit by bit the same if head and tail are exchanged.
        """
        return (self._row(head, tail, relation) * (head * tail)).sum(-1)

    def cross(self, heads: Tensor, tails: Tensor) -> Tensor:
        """Return the scores (n, c) of each of n heads, (n, width), with each of c tails, (c, width), computed as one matrix product."""
        _check(self, heads, tails, self.relation.shape[-1], None, self.relation.ndim == 2)
        return (heads * self.relation) @ tails.T


class ComplEx(_Relation):
    """Decoder whose score is Re(sum_k h_k r_k conj(t_k)) for complex numbers: a head's row h, a tail's row t and a learned row r
    (Trouillon et al. 2016).

    The first half of each row has the real parts, and the second half the imaginary parts.

    Parameters
    ----------
    width : int
        Width of the rows of heads and tails; even.
    n_out : int, optional
        Number of learned rows; by default one. See the module's description.
    rng : Random
    dtype : float32 or float64

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Tensor, nn
    >>> heads, tails = Tensor(np.ones((3, 1, 8), np.float32)), Tensor(np.ones((3, 5, 8), np.float32))
    >>> nn.ComplEx(8, rng=nn.Random(0))(heads, tails).shape
    (3, 5)
    """

    complex_rows = True

    def __call__(self, head: Tensor, tail: Tensor, relation: Array | None = None) -> Tensor:
        """Return the scores (n, c) of n heads, (n, 1, width), with c candidate tails each, (n, c, width). relation[i] is the number
        of the learned row that scores link i. With `relation` None, the only learned row scores all links; several rows score every
        link, and the result is (n, n_out).
        """
        (a, b), (c, d), (real, imaginary) = map(self._halves, (head, self._row(head, tail, relation), tail))
        return ((a * c - b * d) * real + (a * d + b * c) * imaginary).sum(-1)


class TransE(_Relation):
    """Decoder whose score is gamma - sum_k |h_k + r_k - t_k| for a head's row h, a tail's row t and a learned row r, with gamma =
    12 (Bordes et al. 2013).

    Parameters
    ----------
    width : int
        Width of the rows of heads and tails.
    n_out : int, optional
        Number of learned rows; by default one. See the module's description.
    rng : Random
    dtype : float32 or float64

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Tensor, nn
    >>> heads, tails = Tensor(np.ones((3, 1, 8), np.float32)), Tensor(np.ones((3, 5, 8), np.float32))
    >>> nn.TransE(8, rng=nn.Random(0))(heads, tails).shape
    (3, 5)
    """

    def __call__(self, head: Tensor, tail: Tensor, relation: Array | None = None) -> Tensor:
        """Return the scores (n, c) of n heads, (n, 1, width), with c candidate tails each, (n, c, width). relation[i] is the number
        of the learned row that scores link i. With `relation` None, the only learned row scores all links; several rows score every
        link, and the result is (n, n_out).
        """
        return GAMMA - abs(head + self._row(head, tail, relation) - tail).sum(-1)


class RotatE(_Relation):
    """Decoder whose score is gamma - sum_k |h_k r_k - t_k| for complex numbers: a head's row h, a tail's row t and a learned row r
    with |r_k| = 1; gamma = 12.

    The learned numbers are complex numbers of any modulus, which a call divides by their moduli; the paper learns
    phases. The gradient of a difference that is 0 is 0. The first half of each row has the real parts, and the second
    half the imaginary parts.

    Parameters
    ----------
    width : int
        Width of the rows of heads and tails; even.
    n_out : int, optional
        Number of learned rows; by default one. See the module's description.
    rng : Random
    dtype : float32 or float64

    References
    ----------
    Sun et al. 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Tensor, nn
    >>> heads, tails = Tensor(np.ones((3, 1, 8), np.float32)), Tensor(np.ones((3, 5, 8), np.float32))
    >>> nn.RotatE(8, rng=nn.Random(0))(heads, tails).shape
    (3, 5)
    """

    complex_rows = True

    def __call__(self, head: Tensor, tail: Tensor, relation: Array | None = None) -> Tensor:
        """Return the scores (n, c) of n heads, (n, 1, width), with c candidate tails each, (n, c, width). relation[i] is the number
        of the learned row that scores link i. With `relation` None, the only learned row scores all links; several rows score every
        link, and the result is (n, n_out).
        """
        (a, b), (c, d), (real, imaginary) = map(self._halves, (head, self._row(head, tail, relation), tail))
        size = (c * c + d * d + _LEAST).sqrt()
        c, d = c / size, d / size
        real, imaginary = a * c - b * d - real, a * d + b * c - imaginary
        return GAMMA - (real * real + imaginary * imaginary + _LEAST).sqrt().sum(-1)


class MLP(Module):
    """Decoder with one hidden layer: relu(h W_h + t W_t + b) V + c for a head's row h and a tail's row t, with learned W_h, W_t, b,
    V and c.

    Without `n_out` there is no c, because all candidates of a link would share it. A loss that compares candidates
    gives such a c a gradient of rounding errors alone, which Adam would enlarge.

    Parameters
    ----------
    width : int
        Width of the rows of heads and tails, and of the hidden layer.
    n_out : int, optional
        Number of outputs, or of relations; by default one score. See the module's description.
    rng : Random
    dtype : float32 or float64

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Tensor, nn
    >>> heads, tails = Tensor(np.ones((3, 1, 8), np.float32)), Tensor(np.ones((3, 5, 8), np.float32))
    >>> nn.MLP(8, rng=nn.Random(0))(heads, tails).shape
    (3, 5)
    >>> nn.MLP(8, n_out=4, rng=nn.Random(0))(heads, heads).shape
    (3, 4)
    """

    def __init__(self, width: int, n_out: int | None = None, *, rng: Random, dtype: DType = np.float32) -> None:
        self.n_out = n_out
        self.head, self.tail = (Linear(width, width, bias, rng=rng, dtype=dtype) for bias in (True, False))
        n = 1 if n_out is None else check_int("n_out", n_out, 1)
        self.out = Linear(width, n, n_out is not None, rng=rng, dtype=dtype)

    def __call__(self, head: Tensor, tail: Tensor, relation: Array | None = None) -> Tensor:
        """Return the scores (n, c) of n heads, (n, 1, width), with c candidate tails each, (n, c, width). relation[i] is the number
        of the output that scores link i. With `relation` None, the only output scores all links; several outputs score every link,
        and the result is (n, n_out).
        """
        _check(self, head, tail, len(self.head.weight), relation, self.n_out is not None)
        hidden = (_by_row(self.head, head) + _by_row(self.tail, tail)).relu()
        if relation is not None:
            return (self.out.weight.T[relation][:, None] * hidden).sum(-1)
        scores = _by_row(self.out, hidden)
        return scores.reshape(scores.shape[:2] if self.n_out is None else (len(scores), self.n_out))


def _by_row(layer: Linear, x: Tensor) -> Tensor:
    """Return the linear `layer` applied to the last axis of x, (n, c, width), as a single matrix product."""
    out = layer(x.reshape(x.shape[0] * x.shape[1], x.shape[2]))
    return apply("reshape", out, placement=x.placement, shape=(*x.shape[:2], out.shape[1]))


DECODERS: dict[str, Callable[..., Callable[..., Tensor]]] = {
    "dot": Dot, "mlp": MLP, "distmult": DistMult, "complex": ComplEx, "transe": TransE, "rotate": RotatE,
}  # fmt: skip
"""Classes of decoders by the name of an option; each takes (width, n_out, rng=rng, dtype=dtype)."""


class LinkPredictor(Module):
    """Model of links: an encoder computes rows of nodes, and a decoder computes from these rows the scores of the candidate links
    of a `LinkGraph`.

    Parameters
    ----------
    encoder : callable Module
        Model of nodes, such as those of `sarlite.models`: encoder(graph, x) -> (n_dst, width).
    decoder : callable Module
        Decoder of this module, or a function (heads (n, 1, width), tails (n, c, width)) -> (n, c); for labels of links
        c is 1 and the result is (n, n_out). With links of several relations the third argument is the relation of each
        link, (n,) int64.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.graph.link_graph import LinkGraph
    >>> from sarlite.models import SAGE
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> links = LinkGraph(graph, np.array([[0], [1]]), np.array([[1, 2], [2, 0]]))
    >>> model = nn.LinkPredictor(SAGE(8, 16, rng=nn.Random(0)), nn.Dot())
    >>> model(links, Tensor(np.ones((3, 8), np.float32))).shape
    (2, 2)

    Raises
    ------
    ConfigError
        The encoder takes propagated features; in a call: the graph is no LinkGraph.
    """

    def __init__(self, encoder: Encoder, decoder: Callable[..., Tensor]) -> None:
        if hasattr(encoder, "powers"):
            raise ConfigError(f"links: {type(encoder).__name__} trains on features that were propagated before")
        self.encoder, self.decoder = encoder, decoder
        self.takes = getattr(encoder, "takes", None)

    def first_layer(self) -> Sequence[Module | Parameter]:
        """Return the modules and parameters of the encoder's first layer."""
        return self.encoder.first_layer()

    def __call__(self, graph: object, h: Tensor | dict[str, Tensor]) -> Tensor:
        """Return the scores of the candidate links of `graph`, a LinkGraph, (n_dst, n_candidates), computed from the node features
        `h` (by node type, if a dict). Collective.

        With a decoder of `n_out` outputs the shape is (graph.n_dst, n_out).

        Parameters
        ----------
        graph : LinkGraph
        h : Tensor, or dict of Tensor by node type
            Input rows of the encoder.
        """
        if not isinstance(graph, LinkGraph):
            raise ConfigError(f"a LinkPredictor scores the links of a LinkGraph, but graph is a {type(graph).__name__}")
        return graph.score(self.decoder, self.encoder(graph.nodes, h))

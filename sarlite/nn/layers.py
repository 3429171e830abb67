"""Modules Linear, Embedding and Dropout, and Activation, which follows a layer.

Activation functions alone are in `sarlite.tape.ops`.
"""

import math

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError, ShapeError, whole
from sarlite.graph.shared_state import OutputRows
from sarlite.nn.activate import activate
from sarlite.nn.arguments import floating, rows_of, share, source
from sarlite.nn.module import Module, Parameter
from sarlite.nn.norm import BatchNorm
from sarlite.nn.random import Random
from sarlite.tape import Tensor, ops
from sarlite.tape.pairwise import operands
from sarlite.tape.row_index import row_numbers
from sarlite.tape.tensor import as_array
from sarlite.types import Array, ArrayLike, DType


def glorot(rng: Random, shape: tuple[int, ...], n_in: int, n_out: int, dtype: DType = np.float32) -> Parameter:
    """Draw a Parameter uniformly from [-a, a], a = sqrt(6 / (n_in + n_out)) (Glorot and Bengio 2010, eq. 16).

    Parameters
    ----------
    rng : Random
        Its next generator is used. Values are drawn in float64, so float32 models start at the rounded float64 ones.
    shape : tuple of int
    n_in, n_out : int
        The widths that set the scale.
    """
    bound = math.sqrt(6 / max(n_in + n_out, 1))
    return Parameter(source(rng).generator().uniform(-bound, bound, shape).astype(floating(dtype)))


class Linear(Module):
    """Return x W + b, (n, n_in) to (n, n_out).

    With `add_to`, (n, n_out), the product is added to that tensor, whose array is written over (`ops.matmul`).

    Parameters
    ----------
    n_in, n_out : int
        W is `weight`, (n_in, n_out), initialised by `glorot`; b is `bias`, (n_out,), from 0.
    bias : bool
    rng : Random
    dtype : float32 or float64

    Raises
    ------
    ConfigError
        A width is no whole number of 0 or more, rng is no `Random`, or the dtype is another.
    ShapeError
        In a call: x has not n_in columns, or is floats of another dtype.
    """

    def __init__(self, n_in: int, n_out: int, bias: bool = True, *, rng: Random, dtype: DType = np.float32) -> None:
        n_in, n_out = whole("n_in", n_in), whole("n_out", n_out)
        self.weight = glorot(rng, (n_in, n_out), n_in, n_out, dtype)
        self.bias = Parameter(np.zeros(n_out, dtype)) if bias else None

    def __call__(self, x: Tensor, add_to: Tensor | None = None) -> Tensor:
        rows_of("Linear", x, len(self.weight), self.weight.dtype, ndim=None)
        out = ops.matmul(x, self.weight, add_to)
        return out if self.bias is None else out + self.bias

    def describe(self) -> str:
        return f"{len(self.weight)}, {self.weight.shape[1]}{'' if self.bias is not None else ', bias=False'}"


class Embedding(Module):
    """One learned row for each id, owned by the rank that has the id: the input of nodes without features.

    Parameters
    ----------
    ids : (n,) array of integers
        Global ids of this rank's rows, as `graph.src_ids`. Each id is on one rank, once.
    n_feat : int
        `weight` is (n, n_feat), a Parameter owned by rows. Entries are drawn uniformly from [-a, a), a = sqrt(3 /
        n_feat), so that rows have length 1 in the mean square. They depend on the seed, the id, the layer and
        `node_type` alone, not on the number of ranks.
    rng : Random
    node_type : str
    dtype : float32 or float64

    Notes
    -----
    Memory: with Adam four values an entry, for this rank's rows alone. Nothing is communicated in training.
    """

    def __init__(self, ids: ArrayLike, n_feat: int, *, rng: Random, node_type: str = "", dtype: DType = np.float32) -> None:
        bound = math.sqrt(3 / max(whole("n_feat", n_feat), 1))
        ids = _integers("ids", ids)
        values = source(rng).uniform(ids, n_feat, rng.layer(), node_type, "embedding", bound=bound,
                                     dtype=floating(dtype))
        self.weight = Parameter(values, ids, node_type)

    def __call__(self, rows: ArrayLike | slice | None = None) -> Tensor:
        """Return the rows (k, n_feat) that a mask, a slice or local numbers name; by default all, in `ids`' order."""
        return self.weight if rows is None else ops.take(self.weight, row_numbers("rows", rows, len(self.weight)))

    def describe(self) -> str:
        return f"{len(self.weight)} rows of {self.weight.shape[1]}"


def _integers(name, ids):
    array = as_array(ids)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ShapeError(f"{name} are {array.dtype} {array.shape}, but one integer for each row")
    return array


class Dropout(Module):
    """In training, return x * mask / (1 - p), where each entry of mask is 0 with probability p; else x.

    Parameters
    ----------
    p : float in [0, 1)
    rng : Random
        Gives this layer its number when built, and its key in each step.
    """

    def __init__(self, p: float, rng: Random) -> None:
        self.p, self.rng = share("dropout's p", p), source(rng)
        self.layer = rng.layer()

    def __call__(self, x: Tensor, ids: Tensor | Array, node_type: str = "") -> Tensor:
        """Apply dropout.

        Parameters
        ----------
        x : Tensor, (n, ...)
        ids : (n,) int64
            Global numbers of the rows, `graph.src_ids` before a layer and `graph.dst_ids` after it. A row of one number
            has the same mask on any rank.
        node_type : str
            The rows' type, where several types count from 0.
        """
        p, key = self.coin(node_type)
        return ops.dropout(x, ids, key, p) if p else x

    def describe(self) -> str:
        return f"p={self.p:g}"

    def coin(self, node_type: str = "") -> tuple[float, int]:
        """Return (p, key) for a kernel that applies dropout itself, such as `fn.attend`; (0.0, 0) outside training."""
        return (self.p, self.rng.key(self.layer, node_type)) if self.training and self.p else (0.0, 0)


class Activation(Module):
    """Return dropout(f(x + b)) or dropout(f(batch norm of x)), between two layers, in one pass over memory.

    Parameters
    ----------
    n_feat : int
    kind : {"relu", "elu", "identity"}
        f.
    batch_norm : bool
        `norm` is then a `BatchNorm`, with its running statistics. There is no bias: the mean would take it away.
    bias : bool
        b is `bias`, (n_feat,), from 0.
    dropout : float in [0, 1)
    rng : Random
    dtype : float32 or float64

    Raises
    ------
    ConfigError
        Another kind, or a dropout outside [0, 1).

    Notes
    -----
    The values equal `BatchNorm`, `ops.relu` and `Dropout` one after the other, to rounding; nothing is stored
    in between. Kept for backward: the result for relu; x for elu and with batch norm. Collective with batch norm, as
    `BatchNorm`. Source: DistGNN-MB 3.3. """

    def __init__(self, n_feat: int, kind: str = "relu", *, batch_norm: bool = False, bias: bool = True,
                 dropout: float = 0.0, rng: Random, dtype: DType = np.float32) -> None:
        if kind not in kernels.ACTIVATIONS:
            raise ConfigError(f"activation {kind!r} is not one of {', '.join(kernels.ACTIVATIONS)}")
        self.n_feat, self.kind, self.dtype = whole("n_feat", n_feat), kind, floating(dtype)
        self.norm = BatchNorm(n_feat, dtype=dtype) if batch_norm else None
        self.bias = Parameter(np.zeros(n_feat, dtype)) if bias and not batch_norm else None
        self.dropout = Dropout(dropout, rng)

    def __call__(self, x: Tensor, graph: OutputRows, overwrite: bool = False) -> Tensor:
        """Activate this rank's rows.

        Parameters
        ----------
        x : Tensor, (n_dst, n_feat)
        graph : LayerGraph, or NodeType
            Its `dst_ids`, and its `node_type` where it has one, number the rows for dropout. Batch norm's moments
            are over the own rows of all the graph's ranks.
        overwrite : bool
            The result is written over x's values, where these are not kept for backward.

        Raises
        ------
        RuntimeError
            In the backward pass, where x was written over and another operation needs its values.
        """
        rows_of("Activation", x, self.n_feat, x.dtype if self.norm is None and self.bias is None else self.dtype)
        p, key = self.dropout.coin(getattr(graph, "node_type", ""))
        mask = kernels.Mask(graph.dst_ids, key, p) if p else None
        if self.norm is not None:
            return self.norm.then(x, graph.comm, kind=self.kind, mask=mask, overwrite=overwrite)
        x, bias = (x, None) if self.bias is None else operands(x, self.bias)
        return activate(x, kind=self.kind, beta=bias, mask=mask, overwrite=overwrite)

    def describe(self) -> str:
        words = [str(self.n_feat), self.kind]
        words += ["batch norm"] if self.norm is not None else ["bias"] if self.bias is not None else []
        return ", ".join(words + ([f"dropout {self.dropout.p:g}"] if self.dropout.p else []))

    def __repr__(self) -> str:
        return f"Activation({self.describe()})"

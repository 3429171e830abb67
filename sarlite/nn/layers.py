"""Modules Linear, Embedding and Dropout, and Activation: bias or batch norm, activation function and dropout.

Activation functions without these are in `sarlite.tape.ops`.
"""

import math
import warnings

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError, ShapeError, check_int
from sarlite.graph.shared_state import OutputRows
from sarlite.nn.activate import activate
from sarlite.nn.arguments import check_dtype, check_input, check_probability, check_random
from sarlite.nn.module import Module, Parameter
from sarlite.nn.norm import BatchNorm
from sarlite.nn.random import Random
from sarlite.tape import Tensor, ops
from sarlite.tape.pairwise import operands
from sarlite.tape.row_index import row_numbers
from sarlite.tape.tensor import as_array
from sarlite.types import Array, ArrayLike, DType


def glorot(rng: Random, shape: tuple[int, ...], n_in: int, n_out: int, dtype: DType = np.float32) -> Parameter:
    """Return a new Parameter of `shape` with values drawn uniformly from [-a, a], a = sqrt(6 / (n_in + n_out)), where n_in and
    n_out are the widths of a layer's input and output.

    Parameters
    ----------
    rng : Random
        Source of the values. They are drawn in float64 and rounded, so a float32 model starts at the rounded values of
        the float64 model.
    shape : tuple of int
    n_in, n_out : int
        Widths that determine the bound a.
    dtype : float32 or float64

    Returns
    -------
    Parameter
        New parameter of the shape `shape`.

    References
    ----------
    Glorot and Bengio 2010, Eq. 16.

    Examples
    --------
    >>> from sarlite import nn
    >>> nn.glorot(nn.Random(0), (8, 4), 8, 4).shape
    (8, 4)
    """
    bound = math.sqrt(6 / max(n_in + n_out, 1))
    return Parameter(check_random(rng).generator().uniform(-bound, bound, shape).astype(check_dtype(dtype)))


class Linear(Module):
    """Linear layer x W + b, from rows (n, n_in) to rows (n, n_out).

    Parameters
    ----------
    n_in, n_out : int
        Width of the input rows; width of the output rows.
    bias : bool
        True for a bias b.
    rng : Random
        Source of the initial values.
    dtype : float32 or float64

    Attributes
    ----------
    weight : Parameter (n_in, n_out)
        W, initialised by `glorot`.
    bias : Parameter (n_out,), or None
        b, initialised with 0.

    Raises
    ------
    ConfigError
        A width is not an integer of 0 or more, rng is no `Random`, or the dtype is neither float32 nor float64.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Tensor, nn
    >>> layer = nn.Linear(8, 4, rng=nn.Random(0))
    >>> layer
    Linear(8, 4)
    >>> layer(Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    def __init__(self, n_in: int, n_out: int, bias: bool = True, *, rng: Random, dtype: DType = np.float32) -> None:
        n_in, n_out = check_int("n_in", n_in), check_int("n_out", n_out)
        self.weight = glorot(rng, (n_in, n_out), n_in, n_out, dtype)
        self.bias = Parameter(np.zeros(n_out, dtype)) if bias else None

    def __call__(self, x: Tensor, add_to: Tensor | None = None) -> Tensor:
        """Return x W + b, or add_to + x W + b if `add_to` is not None. The sum is then written over the values of `add_to` where
        that is possible.

        Parameters
        ----------
        x : Tensor (..., n_in)
        add_to : Tensor (n, n_out), optional
            Tensor that the product is added to; its array is overwritten with the result (`ops.matmul`).

        Raises
        ------
        ShapeError
            The last axis of x is not n_in long, or x has another float dtype than the weight.
        """
        check_input("Linear", x, len(self.weight), self.weight.dtype, ndim=None)
        out = ops.matmul(x, self.weight, add_to)
        return out if self.bias is None else out + self.bias

    def describe(self) -> str:
        return f"{len(self.weight)}, {self.weight.shape[1]}{'' if self.bias is not None else ', bias=False'}"


class Embedding(Module):
    """Learned rows, one for each node: the input of nodes without features. Each rank has the rows of its own nodes.

    Parameters
    ----------
    ids : (n,) array of integers
        Global ids of this rank's rows, such as `graph.src_ids`. Each id is on one rank, once.
    n_feat : int
        Width of the rows.
    rng : Random
        Source of the initial values.
    node_type : str
        Node type that the ids count, in a graph of several types.
    dtype : float32 or float64

    Attributes
    ----------
    weight : Parameter (n, n_feat)
        Rows, drawn uniformly from [-a, a) with a = sqrt(3 / n_feat), so that the mean square of a row's length is 1.
        They depend on the seed, the id, the layer and `node_type`, not on the number of ranks.

    Notes
    -----
    Memory with Adam: four values for each entry of `weight`. Nothing is communicated in training.

    Examples
    --------
    >>> from sarlite import Graph, nn
    >>> from sarlite.comm import threads
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> nn.Embedding(graph.src_ids, 16, rng=nn.Random(0))().shape
    (3, 16)
    >>> threads.run(2, lambda comm: nn.Embedding(graph.shard(comm, [0, 0, 1]).src_ids, 16, rng=nn.Random(0))().shape)
    [(2, 16), (1, 16)]
    """

    def __init__(self, ids: ArrayLike, n_feat: int, *, rng: Random, node_type: str = "", dtype: DType = np.float32) -> None:
        bound = math.sqrt(3 / max(check_int("n_feat", n_feat), 1))
        ids = _integers("ids", ids)
        values = check_random(rng).uniform(ids, n_feat, rng.layer(), node_type, "embedding", bound=bound,
                                           dtype=check_dtype(dtype))
        self.weight = Parameter(values, ids, node_type)

    def __call__(self, rows: ArrayLike | slice | None = None) -> Tensor:
        """Return the learned rows at the positions `rows` (bool mask, slice or integers), (k, n_feat); None for all rows.

        Parameters
        ----------
        rows : (n,) bools, slice, or (k,) integers, optional
            Rows to return, by position in `ids`; by default all rows.
        """
        return self.weight if rows is None else ops.take(self.weight, row_numbers("rows", rows, len(self.weight)))

    def describe(self) -> str:
        return f"{len(self.weight)} rows of {self.weight.shape[1]}"


def _integers(name, ids):
    array = as_array(ids)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ShapeError(f"{name} are {array.dtype} {array.shape}, but must be one integer for each row")
    return array


class Dropout(Module):
    """Dropout: x * mask / (1 - p) in training, where each entry of mask is 0 with probability p, else 1; x in evaluation.

    Parameters
    ----------
    p : float in [0, 1)
        Probability of dropping an entry.
    rng : Random
        Source of the masks.

    Notes
    -----
    The mask of a row depends on the seed, the step, the layer and the row's id. It is the same on any number of ranks.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Tensor, nn
    >>> dropout = nn.Dropout(0.5, nn.Random(0))
    >>> x = Tensor(np.ones((3, 4), np.float32))
    >>> sorted(set(dropout(x, np.arange(3)).data.reshape(-1).tolist()))
    [0.0, 2.0]
    >>> dropout.eval()(x, np.arange(3)) is x
    True
    """

    def __init__(self, p: float, rng: Random) -> None:
        self.p, self.rng = check_probability("dropout's p", p), check_random(rng)
        self.layer = rng.layer()

    def __call__(self, x: Tensor, ids: Tensor | Array, node_type: str = "") -> Tensor:
        """In training return x * mask / (1 - p), where the mask depends on the global ids `ids` of the rows and on their node type;
        in evaluation return x.

        Parameters
        ----------
        x : Tensor (n, ...)
        ids : (n,) int64
            Global ids of the rows: `graph.src_ids` for the input of a layer, and `graph.dst_ids` for the output.
        node_type : str
            Node type that the ids count, in a graph of several types.
        """
        p, key = self.mask_key(node_type)
        return ops.dropout(x, ids, key, p) if p else x

    def describe(self) -> str:
        return f"p={self.p:g}"

    def mask_key(self, node_type: str = "") -> tuple[float, int]:
        """Return (dropout probability, 64-bit key of the dropout mask for rows of `node_type`), the arguments of `fn.attend`; in
        evaluation return (0.0, 0), for no dropout.
        """
        return (self.p, self.rng.key(self.layer, node_type)) if self.training and self.p else (0.0, 0)

    def coin(self, node_type: str = "") -> tuple[float, int]:
        """Return `mask_key(node_type)`; a deprecated name."""
        warnings.warn("Dropout.coin is now called mask_key", DeprecationWarning, stacklevel=2)
        return self.mask_key(node_type)


class Activation(Module):
    """Step between two layers: batch norm or a bias, then an activation function, then dropout, in one pass over memory.

    Parameters
    ----------
    n_feat : int
        Width of the rows.
    kind : {"relu", "elu", "identity"}
        Activation function.
    batch_norm : bool
        True for batch norm. A layer with batch norm has no bias, because the mean would remove a bias.
    bias : bool
        True for a bias, if there is no batch norm.
    dropout : float in [0, 1)
        Dropout probability of the output.
    rng : Random
        Source of the dropout masks.
    dtype : float32 or float64

    Attributes
    ----------
    norm : BatchNorm, or None
    bias : Parameter (n_feat,), or None
        Initialised with 0.
    dropout : Dropout

    Raises
    ------
    ConfigError
        The kind is unknown, or the dropout is outside [0, 1).

    Notes
    -----
    The values equal `BatchNorm`, `ops.relu` and `Dropout` applied in turn, up to rounding, without their intermediate
    arrays. Residuals of x's size: the result for relu; x for elu and with batch norm. Collective with batch norm.

    References
    ----------
    DistGNN-MB, section 3.3.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> activation = nn.Activation(4, "relu", batch_norm=True, dropout=0.5, rng=nn.Random(0))
    >>> activation
    Activation(4, relu, batch norm, dropout 0.5)
    >>> activation(Tensor(np.ones((3, 4), np.float32)), graph).shape
    (3, 4)
    """

    def __init__(self, n_feat: int, kind: str = "relu", *, batch_norm: bool = False, bias: bool = True,
                 dropout: float = 0.0, rng: Random, dtype: DType = np.float32) -> None:
        if kind not in kernels.ACTIVATIONS:
            raise ConfigError(f"activation {kind!r} is not one of {', '.join(kernels.ACTIVATIONS)}")
        self.n_feat, self.kind, self.dtype = check_int("n_feat", n_feat), kind, check_dtype(dtype)
        self.norm = BatchNorm(n_feat, dtype=dtype) if batch_norm else None
        self.bias = Parameter(np.zeros(n_feat, dtype)) if bias and not batch_norm else None
        self.dropout = Dropout(dropout, rng)

    def __call__(self, x: Tensor, graph: OutputRows, overwrite: bool = False) -> Tensor:
        """Return x after batch norm or bias, activation function and dropout, (n_dst, n_feat). Row i of x belongs to destination i
        of `graph`, whose ids determine the dropout mask; `overwrite` writes the result over x. Collective with batch norm.

        Parameters
        ----------
        x : Tensor (n_dst, n_feat)
        graph : LayerGraph, NodeType, GraphSet or Batch
            Graph whose destination rows x are. Its `dst_ids`, and its `node_type` if it has one, determine the dropout
            masks. Batch norm uses the rows of all ranks of `graph.comm`.
        overwrite : bool
            True to write the result over x's values, unless backward needs them.

        Raises
        ------
        RuntimeError
            In the backward pass: x was overwritten, and another operation needs its values.
        """
        check_input("Activation", x, self.n_feat, x.dtype if self.norm is None and self.bias is None else self.dtype)
        p, key = self.dropout.mask_key(getattr(graph, "node_type", ""))
        mask = kernels.Mask(graph.dst_ids, key, p) if p else None
        if self.norm is not None:
            return self.norm.activated(x, graph.comm, kind=self.kind, mask=mask, overwrite=overwrite)
        x, bias = (x, None) if self.bias is None else operands(x, self.bias)
        return activate(x, kind=self.kind, beta=bias, mask=mask, overwrite=overwrite)

    def describe(self) -> str:
        words = [str(self.n_feat), self.kind]
        words += ["batch norm"] if self.norm is not None else ["bias"] if self.bias is not None else []
        return ", ".join(words + ([f"dropout {self.dropout.p:g}"] if self.dropout.p else []))

    def __repr__(self) -> str:
        return f"Activation({self.describe()})"

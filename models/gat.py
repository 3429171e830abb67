"""GAT: graph attention network (Velickovic et al., 2018; SAR Eq. 3)."""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from sarlite import LayerGraph, Tensor, fn, nn
from sarlite.errors import ConfigError
from sarlite.models.gat_forms import EdgeGATConv, PaperGATConv
from sarlite.models.heads import AttentionConv, join_heads
from sarlite.models.layered import Conv, Layered
from sarlite.nn import Dropout


class GATConv(AttentionConv):
    """Graph attention layer. For each head h'_i = sum_j a_ij z_j with z = W h, where a_ij is a softmax over the in-neighbours j of i.

    a_ij = softmax_j(leaky_relu(a_src . z_j + a_dst . z_i)). With edge weights h'_i = sum_j w_ij a_ij z_j.

    Parameters
    ----------
    n_in, n_feat, n_heads : int
        Width of the input rows; width of each head's output; number of heads.
    concat : bool
        True to put the heads side by side, (n_dst, n_heads * n_feat); False to average them, (n_dst, n_feat).
    residual : bool
        True to add the destination's input row h_i, multiplied by a learned matrix if the widths differ.
    attention_dropout : float in [0, 1)
        Probability of dropping a coefficient a_ij in training.
    slope : float
        Slope of the leaky ReLU below zero.
    bias : bool
        True to add a bias to the output.
    rng : nn.Random
        Source of the initial values and of the dropout masks.
    dtype : float32 or float64
        Dtype of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.models import GATConv
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], self_loops=True)
    >>> model = GATConv(8, n_feat=2, n_heads=2, rng=nn.Random(0))
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    def __init__(self, n_in: int, n_feat: int, n_heads: int, *, concat: bool = True, residual: bool = False,
                 attention_dropout: float = 0.0, slope: float = 0.2, bias: bool = True, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        super().__init__(n_in, n_feat, n_heads, concat=concat, residual=residual, slope=slope, bias=bias, rng=rng,
                         dtype=dtype)
        self.attention_dropout = Dropout(attention_dropout, rng)

    def __call__(self, graph: LayerGraph, h: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        x, h_dst = graph.src(h), graph.dst(h)
        src_weight, dst_weight = self.score_weights()
        message = fn.attend_linear(x, self.linear.weight, src_weight, h_dst, self.slope, *self.attention_dropout.mask_key(),
                                   dst_weight)
        return join_heads(self, graph.aggregate(message, "sum"), h_dst)


FORMS: dict[str, Callable[..., Conv]] = {"standard": GATConv, "paper": PaperGATConv}
"""Classes of the layer, by the name of the form."""


class GAT(Layered):
    """Graph attention network: a sequence of `GATConv` layers with activations between them.

    Parameters
    ----------
    n_in, n_out : int
        Width of the input rows; width of the output rows, such as the number of classes.
    form : {"standard", "paper"}
        "standard" is `GATConv`. "paper" is the form of DistGNN-MB Eq. 2, `PaperGATConv`, which has bias and relu inside
        each layer, also the last one.
    layers : int
        Number of layers.
    hidden : int
        Width of each head's output in every layer but the last.
    heads, out_heads : int
        Number of heads of every layer but the last, which stand side by side; number of heads of the last layer.
    out_concat : bool
        True to put the last layer's heads side by side, n_out / out_heads values each; False to average heads of n_out
        values.
    dropout : float in [0, 1)
        Dropout probability of the input of every layer.
    input_dropout : float in [0, 1), optional
        Dropout probability of the features; by default `dropout`. With 0 the aggregation of constant features is
        computed only once.
    attention_dropout : float in [0, 1)
        Probability of dropping a coefficient a_ij in training.
    residual : bool
        True to add the destination's input row to the output of each layer; see `GATConv`.
    batch_norm : bool
        True for batch norm before each activation, in place of a bias.
    activation : {"relu", "elu"}
    edge_features : int
        Number of features of each edge that the scores depend on; see `EdgeGATConv`.
    rng : nn.Random
        Source of the initial values and of the dropout masks.
    dtype : float32 or float64
        Dtype of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.comm import threads
    >>> from sarlite.models import GAT
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], self_loops=True)
    >>> model = GAT(8, 4, rng=nn.Random(0)).eval()
    >>> model(graph, Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)

    Two ranks as threads; each passes the rows of its own nodes, and gets their scores:

    >>> def scores(comm):
    ...     part = graph.shard(comm, [0, 0, 1])
    ...     model = GAT(8, 4, rng=nn.Random(0)).eval()
    ...     return model(part, Tensor(np.ones((part.n_src, 8), np.float32), placement="rows")).shape
    >>> threads.run(2, scores)
    [(2, 4), (1, 4)]
    """

    self_loops = True
    overwrites = False  # the gradient of attention reads the output
    hidden_options = ("hidden", "heads", "batch_norm", "activation")

    def __init__(self, n_in: int, n_out: int, *, form: str = "standard", layers: int = 2, hidden: int = 8,
                 heads: int = 8, out_heads: int = 1, out_concat: bool = False, dropout: float = 0.6,
                 input_dropout: float | None = None, attention_dropout: float = 0.6, residual: bool = False,
                 batch_norm: bool = False, activation: str = "elu", edge_features: int = 0, rng: nn.Random,
                 dtype: npt.DTypeLike = np.float32) -> None:
        if form not in FORMS:
            raise ConfigError(f"form {form!r} is not one of {', '.join(FORMS)}")
        conv = FORMS[form]
        if edge_features:
            conv = partial(EdgeGATConv if conv is GATConv else conv, edge_features=edge_features)
        conv = partial(conv, attention_dropout=attention_dropout, residual=residual, rng=rng, dtype=dtype)
        self._make(conv, n_in, n_out, layers, hidden, heads, out_heads, out_concat, hidden_bias=form == "paper")
        self.input_dropout = Dropout(dropout if input_dropout is None else input_dropout, rng)
        self.make_activations(hidden * heads, activation, batch_norm=batch_norm, bias=form == "standard",
                              dropout=dropout, rng=rng, dtype=dtype)

    def _make(self, conv: Callable[..., Conv], n_in: int, n_out: int, layers: int, hidden: int, heads: int, out_heads: int,
              out_concat: bool, hidden_bias: bool) -> None:
        """Assign `self.convs`, a list of `layers` layers made by conv(n_in, n_feat, n_heads, bias=...). All but the last have
        `heads` heads of width `hidden`, and a bias if `hidden_bias`. The last has `n_out` output columns, from `out_heads` heads
        that are concatenated if `out_concat`, else averaged.
        """
        self.takes, layers, hidden = n_in, nn.check_int("layers", layers, 1), nn.check_int("hidden", hidden, 1)
        heads, out_heads = nn.check_int("heads", heads, 1), nn.check_int("out_heads", out_heads, 1)
        if out_concat and n_out % out_heads:
            raise ConfigError(f"out_concat: {n_out} outputs cannot be divided among {out_heads} heads")
        last, width = layers - 1, hidden * heads
        self.convs = [conv(width if i else n_in, hidden, heads, bias=hidden_bias) for i in range(last)]
        n_feat = n_out // out_heads if out_concat else n_out
        self.convs.append(conv(width if last else n_in, n_feat, out_heads, concat=out_concat))

"""R-GAT: graph attention within each relation (SAR Eq. 3), summed over relations."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sarlite import HeteroGraph, NodeType, Tensor, fn, nn
from sarlite.models.rgcn import RGCN, Relation
from sarlite.nn import Dropout, Linear, glorot


class RGATConv(nn.Module):
    """Relational graph attention layer: for each head h'_i = W_t h_i + b_t + sum_r sum_{j in N_r(i)} a_ij W_r h_j.

    a_ij = softmax_j(leaky_relu(a_r . W_r h_j + c_r . h_i)) over the in-edges of relation r; t is the type of i.

    Parameters
    ----------
    n_in : dict of str to int
        Width of the input rows by node type.
    n_feat, n_heads : int
        Width of each head's output; number of heads.
    relations : sequence of (source type, name, destination type)
        Relations that the layer sums over.
    types : sequence of str, optional
        Node types of the output; by default the destination types of the relations.
    concat : bool
        True to put the heads side by side, (n_dst, n_heads * n_feat); False to average them, (n_dst, n_feat).
    attention_dropout : float in [0, 1)
        Probability of dropping a coefficient a_ij in training.
    slope : float
        Slope of the leaky ReLU below zero.
    bias : bool
        True for the biases b_t.
    rng : nn.Random
        Source of the initial values and of the dropout masks.
    dtype : float32 or float64
        Dtype of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import HeteroGraph, Tensor, nn
    >>> from sarlite.models import RGATConv
    >>> writes = ("author", "writes", "paper")
    >>> graph = HeteroGraph.from_edges({writes: ([0, 1], [0, 0])}, {"author": 2, "paper": 3})
    >>> layer = RGATConv({"author": 8, "paper": 6}, 2, 2, [writes], rng=nn.Random(0))
    >>> h = {"author": Tensor(np.ones((2, 8), np.float32)), "paper": Tensor(np.ones((3, 6), np.float32))}
    >>> {name: rows.shape for name, rows in layer(graph, h).items()}
    {'paper': (3, 4)}
    """

    def __init__(self, n_in: Mapping[str, int], n_feat: int, n_heads: int, relations: Iterable[Relation],
                 types: Collection[str] | None = None, *, concat: bool = True, attention_dropout: float = 0.0, slope: float = 0.2,
                 bias: bool = True, rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        n_feat, n_heads = nn.check_int("n_feat", n_feat, 1), nn.check_int("n_heads", n_heads, 1)
        self.relations, self.n_heads, self.n_feat = tuple(relations), n_heads, n_feat
        self.concat, self.slope, width = concat, slope, n_heads * n_feat
        self.roots = {name: Linear(n_in[name], width if concat else n_feat, bias=bias, rng=rng, dtype=dtype)
                      for name in (sorted({relation[2] for relation in self.relations}) if types is None else types)}
        self.weights = [glorot(rng, (n_in[source], width), n_in[source], width, dtype)
                        for source, _, _ in self.relations]
        self.attn_src = [glorot(rng, (n_heads, n_feat), 2 * n_feat, 1, dtype) for _ in self.relations]
        self.attn_dst = [glorot(rng, (n_in[to], n_heads), n_in[to], n_heads, dtype) for _, _, to in self.relations]
        self.attention_dropout = [Dropout(attention_dropout, rng) for _ in self.relations]

    def __call__(self, graph: HeteroGraph, h: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return {node type: output rows} from h = {node type: input rows, (n_src, n_in)}. Collective."""
        dst = graph.dst(h)
        sums = graph.aggregate({relation: self._message(k, h, dst) for k, relation in enumerate(self.relations)}, "sum")
        return {name: root(dst[name]) + self._join_heads(sums[name]) if name in sums else root(dst[name])
                for name, root in self.roots.items()}

    def _message(self, k: int, h: Mapping[str, Tensor], dst: Mapping[str, Tensor]) -> fn.AttendLinear:
        """Return the attention message of self.relations[k], from source rows `h` and destination rows `dst`, both by node type."""
        source, _, to = self.relations[k]
        weight = self.weights[k]
        src_weight = (weight.reshape(-1, self.n_heads, self.n_feat) * self.attn_src[k]).sum(-1)  # a . W h = (W a) . h
        return fn.attend_linear(h[source], weight, src_weight, dst[to] @ self.attn_dst[k], self.slope,
                                *self.attention_dropout[k].mask_key(to))

    def _join_heads(self, out):
        return out.reshape(-1, self.n_heads * self.n_feat) if self.concat else out.mean(1)


class RGAT(RGCN):
    """Relational graph attention network: a sequence of `RGATConv` layers with activations between them.

    The output are the rows of one node type or of several; see `RGCN`.

    Parameters
    ----------
    n_in : dict of str to int
        Number of features by node type. A type without an entry has learned input rows of `embedding` values.
    n_out : int
        Width of the output rows, such as the number of classes.
    nodes : NodeType
        Node types of the output, from `graph.of(...)`.
    layers : int
        Number of layers.
    hidden : int
        Width of each head's output in every layer but the last.
    heads, out_heads : int
        Number of heads of every layer but the last, which stand side by side; number of heads of the last layer, which
        are averaged.
    embedding : int, optional
        Width of the learned rows; by default the largest number of features, or `hidden * heads` if no type has
        features.
    learned_rows : sequence of str
        Node types that have learned rows of `embedding` values beside their features; ("all",) for all types.
    dropout : float in [0, 1)
        Dropout probability of the input of every layer but the first.
    attention_dropout : float in [0, 1)
        Probability of dropping a coefficient a_ij in training.
    activation : {"relu", "elu"}
    rng : nn.Random
        Source of the initial values and of the dropout masks.
    dtype : float32 or float64
        Dtype of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import HeteroGraph, Tensor, nn
    >>> from sarlite.models import RGAT
    >>> writes = ("author", "writes", "paper")
    >>> graph = HeteroGraph.from_edges({writes: ([0, 1], [0, 0])}, {"author": 2, "paper": 3})
    >>> model = RGAT({"paper": 6}, 4, graph.of("paper"), hidden=8, rng=nn.Random(0))
    >>> model(graph.of("paper"), {"paper": Tensor(np.ones((3, 6), np.float32))}).shape
    (3, 4)
    """

    def __init__(self, n_in: Mapping[str, int], n_out: int, nodes: NodeType, *, layers: int = 2, hidden: int = 32,
                 heads: int = 4, out_heads: int = 1, embedding: int | None = None,
                 learned_rows: Sequence[str] = (), dropout: float = 0.5, attention_dropout: float = 0.0,
                 activation: str = "elu", rng: nn.Random, dtype: npt.DTypeLike = np.float32) -> None:
        hidden, self.heads = nn.check_int("hidden", hidden, 1), nn.check_int("heads", heads, 1)
        self.out_heads, self.attention_dropout = nn.check_int("out_heads", out_heads, 1), attention_dropout
        super().__init__(n_in, n_out, nodes, layers=layers, hidden=hidden * self.heads, embedding=embedding,
                         learned_rows=learned_rows, dropout=dropout, activation=activation, rng=rng, dtype=dtype)

    def _conv(self, widths, n_out, graph, types, last, *, rng, dtype, **_):
        heads = self.out_heads if last else self.heads
        return RGATConv(widths, n_out if last else n_out // heads, heads, graph.into(types), types, concat=not last,
                        bias=last, attention_dropout=self.attention_dropout, rng=rng, dtype=dtype)

"""sarlite: exact full-batch training of graph neural networks on N ranks.

The names are imported when they are first asked for, so that a program pays for what it uses:
`sarlite.oracle` needs no tape and no layers.
"""
# ruff: noqa: E402 (the path comes before the imports)

from pkgutil import extend_path
from typing import TYPE_CHECKING

__path__ = extend_path(__path__, __name__)  # in a checkout the compiled module and the models are the installed ones

from sarlite import lazy

if TYPE_CHECKING:
    from sarlite import nn, optim, oracle
    from sarlite.comm import Solo
    from sarlite.graph.graph import Graph
    from sarlite.graph.graph_set import GraphSet
    from sarlite.graph.hetero import HeteroGraph, NodeType
    from sarlite.graph.layer_graph import LayerGraph
    from sarlite.operators import fn
    from sarlite.tape import Tensor, no_grad
    from sarlite.tape.gradcheck import gradcheck
    from sarlite.train.loop import Trainer

__version__ = "0.1.0"

__all__ = ["Graph", "GraphSet", "HeteroGraph", "LayerGraph", "NodeType", "Solo", "Tensor", "Trainer", "fn", "gradcheck", "nn",
           "no_grad", "optim", "oracle"]  # fmt: skip

lazy.names(__name__, {
    "Graph": "sarlite.graph.graph", "GraphSet": "sarlite.graph.graph_set",
    "HeteroGraph": "sarlite.graph.hetero", "NodeType": "sarlite.graph.hetero",
    "LayerGraph": "sarlite.graph.layer_graph",
    "Solo": "sarlite.comm", "Tensor": "sarlite.tape", "Trainer": "sarlite.train.loop", "fn": "sarlite.operators",
    "gradcheck": "sarlite.tape", "no_grad": "sarlite.tape",
})  # fmt: skip

"""sarlite: exact full-batch training of graph neural networks on N ranks."""
# ruff: noqa: E402 (the path comes before the imports)

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)  # in a checkout the compiled module and the models are the installed ones

from sarlite import nn, optim
from sarlite.comm import Solo
from sarlite.sar import fn
from sarlite.sar.graph import Graph
from sarlite.sar.hetero import HeteroGraph, NodeType
from sarlite.tape import Tensor, gradcheck, no_grad
from sarlite.train.loop import Trainer

__version__ = "0.1.0"

__all__ = ["Graph", "HeteroGraph", "NodeType", "Solo", "Tensor", "Trainer", "fn", "gradcheck", "nn", "no_grad", "optim"]

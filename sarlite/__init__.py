"""sarlite: exact full-batch training of graph neural networks on N ranks."""

import os

if not os.path.isdir(os.path.join(__path__[0], "models")):  # a checkout, where models/ lies beside this folder
    __path__.append(os.path.dirname(__path__[0]))

from sarlite import nn, optim
from sarlite.comm import Solo
from sarlite.sar import fn
from sarlite.sar.graph import Graph
from sarlite.tape import Tensor, gradcheck, no_grad
from sarlite.train.loop import Trainer

__version__ = "0.1.0"

__all__ = ["Graph", "Solo", "Tensor", "Trainer", "fn", "gradcheck", "nn", "no_grad", "optim"]

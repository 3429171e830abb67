"""Parameters, modules, layers, norms, decoders that score links, and readouts from nodes to graphs."""

import warnings

from sarlite.errors import check_int
from sarlite.nn.decoders import MLP, ComplEx, DistMult, Dot, LinkPredictor, RotatE, TransE
from sarlite.nn.flat import Flat, Group, flatten
from sarlite.nn.layers import Activation, Dropout, Embedding, Linear, glorot
from sarlite.nn.module import Module, Parameter
from sarlite.nn.norm import BatchNorm, LayerNorm, exact_moments
from sarlite.nn.random import Random
from sarlite.nn.readout import GraphPredictor, Readout

__all__ = ["MLP", "Activation", "BatchNorm", "ComplEx", "DistMult", "Dot", "Dropout", "Embedding", "Flat",
           "GraphPredictor", "Group", "LayerNorm", "Linear", "LinkPredictor", "Module", "Parameter", "Random",
           "Readout", "RotatE", "TransE", "check_int", "exact_moments", "flatten", "glorot"]  # fmt: skip


def __getattr__(name):
    """Return `check_int` for its old name `whole`, with a warning."""
    if name == "whole":
        warnings.warn("nn.whole is now called nn.check_int", DeprecationWarning, stacklevel=2)
        return check_int
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Parameters, modules, layers, norms, decoders of links and readouts of graphs."""

from sarlite.errors import whole
from sarlite.nn.decoders import MLP, ComplEx, DistMult, Dot, LinkPredictor, RotatE, TransE
from sarlite.nn.flat import Flat, Group, flatten
from sarlite.nn.layers import Activation, Dropout, Embedding, Linear, glorot
from sarlite.nn.module import Module, Parameter
from sarlite.nn.norm import BatchNorm, LayerNorm, exact_moments
from sarlite.nn.random import Random
from sarlite.nn.readout import GraphPredictor, Readout

__all__ = ["MLP", "Activation", "BatchNorm", "ComplEx", "DistMult", "Dot", "Dropout", "Embedding", "Flat",
           "GraphPredictor", "Group", "LayerNorm", "Linear", "LinkPredictor", "Module", "Parameter", "Random",
           "Readout", "RotatE", "TransE", "exact_moments", "flatten", "glorot", "whole"]  # fmt: skip

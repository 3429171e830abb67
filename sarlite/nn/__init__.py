"""Parameters, modules, layers and norms."""

from sarlite.nn.layers import Activation, Dropout, Linear, glorot
from sarlite.nn.module import Flat, Module, Parameter, flatten
from sarlite.nn.norm import BatchNorm, LayerNorm
from sarlite.nn.random import Random

__all__ = ["Activation", "BatchNorm", "Dropout", "Flat", "LayerNorm", "Linear", "Module", "Parameter", "Random", "flatten", "glorot"]

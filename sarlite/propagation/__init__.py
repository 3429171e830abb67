"""Propagation without learning: a normalised adjacency applied to rows, on the graph's own operators, with no tape."""

from sarlite.propagation.operator import NORMALIZATIONS, Propagation
from sarlite.propagation.smoothing import CorrectAndSmooth

__all__ = ["NORMALIZATIONS", "CorrectAndSmooth", "Propagation"]

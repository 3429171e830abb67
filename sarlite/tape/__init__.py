"""Reverse-mode automatic differentiation over NumPy arrays: a table of primitives with their vjps, and a tape of their calls."""

from sarlite.tape import ops
from sarlite.tape.apply import apply
from sarlite.tape.gradcheck import gradcheck
from sarlite.tape.primitives import PRIMITIVES, primitive
from sarlite.tape.recording import no_grad
from sarlite.tape.tensor import Tensor

__all__ = ["PRIMITIVES", "Tensor", "apply", "gradcheck", "no_grad", "ops", "primitive"]

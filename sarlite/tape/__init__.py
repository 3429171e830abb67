"""A small reverse-mode tape over NumPy arrays: a table primitive -> vjp, and a backward pass that knows no operator."""

from sarlite.tape import ops
from sarlite.tape.apply import apply
from sarlite.tape.gradcheck import gradcheck
from sarlite.tape.primitives import PRIMITIVES, primitive
from sarlite.tape.recording import no_grad
from sarlite.tape.tensor import Tensor

__all__ = ["PRIMITIVES", "Tensor", "apply", "gradcheck", "no_grad", "ops", "primitive"]

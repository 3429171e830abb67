"""A small reverse-mode tape over NumPy arrays."""

from sarlite.tape import ops
from sarlite.tape.engine import PRIMITIVES, Tensor, apply, no_grad, primitive
from sarlite.tape.gradcheck import gradcheck

__all__ = ["PRIMITIVES", "Tensor", "apply", "gradcheck", "no_grad", "ops", "primitive"]

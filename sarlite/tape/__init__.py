"""A small reverse-mode tape over NumPy arrays."""

from sarlite.tape import ops
from sarlite.tape.engine import PRIMITIVES, Owned, Tensor, apply, no_grad, primitive
from sarlite.tape.gradcheck import gradcheck

__all__ = ["PRIMITIVES", "Owned", "Tensor", "apply", "gradcheck", "no_grad", "ops", "primitive"]

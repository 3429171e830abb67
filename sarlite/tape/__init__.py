"""A small reverse-mode tape over NumPy arrays."""

from sarlite.tape import ops
from sarlite.tape.tensor import Tensor, apply
from sarlite.tape.gradcheck import gradcheck
from sarlite.tape.primitives import PRIMITIVES, Owned, primitive
from sarlite.tape.recording import no_grad

__all__ = ["PRIMITIVES", "Owned", "Tensor", "apply", "gradcheck", "no_grad", "ops", "primitive"]

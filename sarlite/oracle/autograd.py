"""Functions under test in PyTorch: `run` and `vjp` of a kernel or a layer by autograd. torch is imported when they are
made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sarlite.oracle.case import Case
from sarlite.types import Array


class TorchKernel:
    """A function of a case in PyTorch, as `check` takes it: it has a `vjp` by autograd, and a `convert`.

    oracle.check(oracle.torch_kernel(lambda case: my_spmm(case.src, case.dst, case.x)), "spmm")

    Parameters
    ----------
    function : (case) -> tensor, or {output: tensor}
        `case.x`, `case.src` and so on are tensors; arrays and parameters of a floating type require a gradient.
    parameters : dict of str to tensor, optional
        Further leaves, by the names that their gradients have in the reference's state.

    Raises
    ------
    ImportError
        There is no PyTorch.
    """

    def __init__(self, function: Callable[[Case], Any], parameters: Mapping[str, Any] | None = None) -> None:
        import torch

        self.torch, self.function, self.parameters = torch, function, dict(parameters or {})

    def convert(self, array: Array) -> Any:
        return self.torch.from_numpy(array if array.flags.writeable else array.copy())

    def __call__(self, case: Case) -> Any:
        with self.torch.no_grad():
            return self.function(case)

    def vjp(self, case: Case, g: Any) -> dict[str, Any]:
        """Return the gradients by name; inputs that the outputs do not depend on get 0."""
        convert = case.convert or self.convert
        given = {name: array for name, array in {**case.arrays, **case.state}.items() if array.dtype.kind == "f"}
        leaves = {name: convert(array).requires_grad_() for name, array in given.items()}
        by_place = {id(array): leaves[name] for name, array in given.items()}

        def handed(array):
            return by_place[id(array)] if id(array) in by_place else convert(array)

        leaves |= self.parameters
        with self.torch.enable_grad():
            found = self.function(replace(case, convert=handed))
        outputs, cotangents = (value if isinstance(value, Mapping) else {"": value} for value in (found, g))
        if len(outputs) == 1:
            cotangents = dict(zip(outputs, cotangents.values()))
        names = [name for name in outputs if outputs[name].requires_grad]
        grads = self.torch.autograd.grad([outputs[name] for name in names], list(leaves.values()),
                                         [cotangents[name] for name in names], allow_unused=True) if names else ()
        grads = grads or (None,) * len(leaves)
        return {name: self.torch.zeros_like(leaf) if grad is None else grad
                for (name, leaf), grad in zip(leaves.items(), grads)}


torch_kernel = TorchKernel


def torch_layer(module: Any, call: Callable[[Any, Case], Any] | None = None) -> TorchKernel:
    """Return a layer with its weights as `check` takes it, with gradients of inputs and weights by autograd.

    oracle.check(oracle.torch_layer(layer), oracle.Reference("sage", dialect="pyg", state=layer.state_dict()))

    Parameters
    ----------
    module : torch.nn.Module
    call : (module, case) -> tensor, optional
        How the module is called; without, as PyG's layers: module(x, edges of shape (2, n_edges)).

    Raises
    ------
    ImportError
        There is no PyTorch.
    """
    def edges(module, case):
        import torch

        return module(case.x, torch.stack([case.src, case.dst]))

    how = edges if call is None else call
    return TorchKernel(lambda case: how(module, case), dict(module.named_parameters()))

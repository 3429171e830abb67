"""Wrappers with which `check` tests PyTorch functions and modules, with gradients by autograd; torch is imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sarlite.oracle.case import Case
from sarlite.types import Array

Tensor = Any  # torch.Tensor; torch is optional


class TorchKernel:
    """PyTorch function in the form that `check` tests: an object that calls the function on tensors, and computes gradients by autograd.

    Parameters
    ----------
    function : (case) -> tensor, or {output: tensor}
        `case.x`, `case.src` and so on are tensors; arrays and parameters of a floating type require a gradient.
    parameters : dict of str to tensor, optional
        Further tensors that require a gradient, by the names that they have in the reference's state.

    Raises
    ------
    ImportError
        PyTorch is not installed.

    Examples
    --------
    The tests run on a machine without PyTorch, so they skip this example. A sum over in-edges by `index_add_`:

    >>> import torch  # doctest: +SKIP
    >>> from sarlite import oracle
    >>> def spmm(case):
    ...     return torch.zeros(case.n_dst, case.x.shape[1], dtype=case.x.dtype).index_add_(0, case.dst, case.x[case.src])
    >>> oracle.check(oracle.torch_kernel(spmm), "spmm", level="probe", shrink=False).verdict.name  # doctest: +SKIP
    'PASS'
    """

    def __init__(self, function: Callable[[Case], Tensor], parameters: Mapping[str, Tensor] | None = None) -> None:
        import torch

        self.torch, self.function, self.parameters = torch, function, dict(parameters or {})

    def convert(self, array: Array) -> Tensor:
        """Return the NumPy array `array` as a tensor that shares its memory; a read-only array is copied."""
        return self.torch.from_numpy(array if array.flags.writeable else array.copy())

    def __call__(self, case: Case) -> Tensor:
        with self.torch.no_grad():
            return self.function(case)

    def vjp(self, case: Case, g: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return {name: gradient tensor} of the floating arrays of `case` and of all parameters. `g` is the gradient of the output,
        or a dict of gradients if there are several outputs. An unused input has the gradient 0.
        """
        convert = case.convert or self.convert
        differentiable = {name: array for name, array in {**case.arrays, **case.state}.items() if array.dtype.kind == "f"}
        leaves: dict[str, Tensor] = {name: convert(array) for name, array in differentiable.items()}
        for leaf in leaves.values():
            leaf.requires_grad_()
        by_place = {id(array): leaves[name] for name, array in differentiable.items()}

        def handed(array):
            return by_place[id(array)] if id(array) in by_place else convert(array)

        leaves |= self.parameters
        with self.torch.enable_grad():
            returned = self.function(replace(case, convert=handed))
        outputs, cotangents = (value if isinstance(value, Mapping) else {"": value} for value in (returned, g))
        if len(outputs) == 1:
            cotangents = dict(zip(outputs, cotangents.values()))
        names = [name for name in outputs if outputs[name].requires_grad]
        grads = self.torch.autograd.grad([outputs[name] for name in names], list(leaves.values()),
                                         [cotangents[name] for name in names], allow_unused=True) if names else ()
        grads = grads or (None,) * len(leaves)
        return {name: self.torch.zeros_like(leaf) if grad is None else grad
                for (name, leaf), grad in zip(leaves.items(), grads)}


torch_kernel = TorchKernel


def torch_layer(module: Any, call: Callable[[Any, Case], Tensor] | None = None) -> TorchKernel:
    """Wrap a torch module for `check`, which then gets its gradients by autograd. `call(module, case)` runs the module; None
    runs module(x, edges), with edges of shape (2, n_edges), as in PyG.

    Parameters
    ----------
    module : torch.nn.Module
    call : (module, case) -> tensor, optional
        Calls the module. The default is PyG's convention: module(x, edges), with edges of shape (2, n_edges).

    Returns
    -------
    TorchKernel
        The function under test, with the attributes `vjp` and `convert`.

    Raises
    ------
    ImportError
        PyTorch is not installed.

    Examples
    --------
    A layer of PyG; the tests run on a machine without PyG, so they skip this example:

    >>> from sarlite import oracle
    >>> from torch_geometric.nn import SAGEConv  # doctest: +SKIP
    >>> layer = SAGEConv(16, 8)  # doctest: +SKIP
    >>> reference = oracle.Reference("sage", dialect="pyg", state=layer.state_dict())  # doctest: +SKIP
    >>> report = oracle.check(oracle.torch_layer(layer), reference)  # doctest: +SKIP
    """
    def edges(module, case):
        import torch

        return module(case.x, torch.stack([case.src, case.dst]))

    how = edges if call is None else call
    return TorchKernel(lambda case: how(module, case), dict(module.named_parameters()))

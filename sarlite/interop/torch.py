"""Interoperation with PyTorch: sarlite modules as torch modules, and torch modules in sarlite. Memory is shared."""

from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from sarlite import nn
from sarlite.errors import ConfigError
from sarlite.tape import Tensor, no_grad
from sarlite.tape.apply import apply
from sarlite.tape.primitives import primitive


class TorchModule(torch.nn.Module):
    """A sarlite module on one graph as a torch module: TorchModule(GAT(16, 4, rng=rng), graph)(x).

    Parameters
    ----------
    module : sarlite.nn.Module
        Its parameters become torch parameters of the same names and memory: a torch optimizer's step changes both.
    graph : Graph, or what else the module takes first
    rng : nn.Random, optional
        The one that the module was made with. Each forward pass in training then goes a step on, so that dropout draws
        anew.

    Notes
    -----
    Inputs and outputs share memory with sarlite's. They are on the CPU; the gradient is not differentiable again. On
    ranks every call is collective, and so is the backward pass; gradients of parameters are this rank's share, which
    the ranks must add up.
    """

    def __init__(self, module: nn.Module, graph: Any, rng: nn.Random | None = None) -> None:
        super().__init__()
        self.graph, self.rng = graph, rng
        self._module = [module]  # in a list, as torch must not take it for a torch module
        self._own = [parameter for _, parameter in module.named_parameters()]
        self._theirs, self._versions = [], [0] * len(self._own)
        for name, parameter in module.named_parameters():
            *folders, last = name.split(".")
            place: torch.nn.Module = self
            for folder in folders:
                if folder not in place._modules:
                    place.add_module(folder, torch.nn.Module())
                place = getattr(place, folder)
            place.register_parameter(last, torch.nn.Parameter(torch.from_numpy(parameter.data)))
            self._theirs.append((place, last))

    def train(self, mode: bool = True) -> "TorchModule":
        """Set both modules to training or evaluation."""
        self._module[0].train(mode)
        return super().train(mode)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return module(graph, *inputs)."""
        parameters = [getattr(place, name) for place, name in self._theirs]
        for at, (own, given) in enumerate(zip(self._own, parameters)):
            if given.data_ptr() != own.data.ctypes.data:  # as after .to(), or nn.flatten of the module
                own.data = given.detach().numpy()
            if given._version != self._versions[at]:  # as after an optimizer's step
                self._versions[at] = given._version
                own.changed()
        if self.rng is not None and self.training:
            self.rng.step += 1
        return _Call.apply(self._module[0], self.graph, self._own, len(inputs), *inputs, *parameters)


class _Call(torch.autograd.Function):
    """One call of a sarlite module. Its tape stands in the context."""

    @staticmethod
    def forward(ctx, module, graph, own, n_inputs, *tensors):
        inputs = [Tensor(t.detach().numpy(), requires_grad=t.requires_grad, placement="rows")
                  for t in tensors[:n_inputs]]
        if any(ctx.needs_input_grad[4:]):
            out = module(graph, *inputs)
        else:
            with no_grad():
                out = module(graph, *inputs)
        found = torch.from_numpy(out.data)
        ctx.out, ctx.leaves = out, [*inputs, *own]
        ctx.save_for_backward(*tensors, found)  # torch then refuses where one of them has changed
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        _ = ctx.saved_tensors
        before = [leaf.grad for leaf in ctx.leaves]
        for leaf in ctx.leaves:
            leaf.grad = None
        try:
            if ctx.out.requires_grad:
                ctx.out.backward(g.contiguous().numpy(), retain_graph=True)  # torch may ask again; it frees the context
            grads = [None if leaf.grad is None else torch.from_numpy(leaf.grad) for leaf in ctx.leaves]
        finally:
            for leaf, grad in zip(ctx.leaves, before):
                leaf.grad = grad
        needs = ctx.needs_input_grad[4:]
        return None, None, None, None, *(grad if needed else None for grad, needed in zip(grads, needs))


class FromTorch(nn.Module):
    """A torch module inside a sarlite model, as one operation of the tape: FromTorch(torch.nn.LSTMCell(8, 8)).

    Parameters
    ----------
    module : torch.nn.Module
        On the CPU, of tensors to one tensor. Its parameters become sarlite's: optimizers and checkpoints have them.

    Raises
    ------
    ConfigError
        The module keeps buffers, as batch norm does, which checkpoints of sarlite would lose and ranks would not share;
        or it returns something else than one tensor.

    Notes
    -----
    The module computes a rank's rows alone. Random numbers of the module, such as torch's dropout, differ with the
    number of ranks.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        buffers = [name for name, _ in module.named_buffers()]
        if buffers:
            raise ConfigError(f"FromTorch: {type(module).__name__} keeps buffers, {', '.join(buffers)}, which "
                              "checkpoints would lose")
        self.torch = _Holder(module)
        self.parameters_ = [nn.Parameter(p.detach().numpy()) for p in self.torch.parameters]

    def __call__(self, *inputs: Any) -> Tensor:
        self.torch.module.train(self.training)
        for own, theirs in zip(self.parameters_, self.torch.parameters):
            if theirs.data_ptr() != own.data.ctypes.data:
                theirs.data = torch.from_numpy(own.data)
        return apply("torch", *inputs, *self.parameters_, holder=self.torch)


class _Holder:
    """Holder of a torch module and its parameters that sarlite does not treat as a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module, self.parameters = module, [*module.parameters()]


def _forward(needs, *arrays, holder):
    n_inputs = len(arrays) - len(holder.parameters)
    inputs = [torch.from_numpy(a if a.flags.writeable else np.array(a)) for a in map(np.asarray, arrays[:n_inputs])]
    for x, needed in zip(inputs, needs):
        x.requires_grad_(needed)
    for p, needed in zip(holder.parameters, needs[n_inputs:]):
        p.requires_grad_(needed)
    with torch.set_grad_enabled(any(needs)):
        out = holder.module(*inputs)
    if not isinstance(out, torch.Tensor):
        raise ConfigError(f"FromTorch: {type(holder.module).__name__} returned a {type(out).__name__}, but must return "
                          "one tensor")
    return out.detach().numpy(), (out, [*inputs, *holder.parameters])


def _vjp(g, needs, residuals, holder):
    out, leaves = residuals
    wanted = [leaf for leaf, needed in zip(leaves, needs) if needed]
    found = iter(torch.autograd.grad(out, wanted, torch.from_numpy(np.array(g)), retain_graph=True, allow_unused=True))
    grads = [next(found) if needed else None for needed in needs]
    return tuple(None if not needed else np.zeros(leaf.shape, g.dtype) if grad is None else grad.numpy()
                 for leaf, needed, grad in zip(leaves, needs, grads))


primitive("torch", _forward, _vjp)

"""sarlite modules as PyTorch modules, and PyTorch modules inside sarlite models. Arrays are shared, not copied."""

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from sarlite import nn
from sarlite.errors import ConfigError
from sarlite.tape import Tensor, no_grad
from sarlite.tape.apply import apply
from sarlite.tape.primitives import primitive
from sarlite.types import Array


class TorchModule(torch.nn.Module):
    """torch module that wraps a sarlite module and its graph: TorchModule(GAT(16, 4, rng=rng), graph)(x) returns a torch tensor.

    Parameters
    ----------
    module : sarlite.nn.Module
        Module whose parameters become torch parameters of the same names, in the same memory: a step of a torch
        optimizer changes both.
    graph : Graph, NodeType, GraphSet or LinkGraph
        First argument of the module's calls.
    rng : nn.Random, optional
        Random of the module. If it is passed, each forward pass in training is a new step, with new dropout masks.

    Notes
    -----
    Inputs and outputs are CPU tensors that share memory with sarlite's. Gradients cannot be differentiated again. On
    several ranks every call and its backward pass are collective. The gradient of a replicated parameter is this rank's
    part of the sum over ranks, which the caller must compute.

    Examples
    --------
    >>> import torch
    >>> from sarlite import Graph, nn
    >>> from sarlite.interop.torch import TorchModule
    >>> from sarlite.models import GCN
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], self_loops=True)
    >>> model = TorchModule(GCN(8, 4, rng=nn.Random(0)), graph)
    >>> tuple(model(torch.ones(3, 8)).shape)
    (3, 4)
    """

    def __init__(self, module: nn.Module, graph: object, rng: nn.Random | None = None) -> None:
        super().__init__()
        self.graph, self.rng = graph, rng
        self._module = [module]  # in a list, so that torch does not register the attribute as a torch module
        self._parameters_of_module = [parameter for _, parameter in module.named_parameters()]
        self._torch_names, self._versions = [], [0] * len(self._parameters_of_module)
        for name, parameter in module.named_parameters():
            *folders, last = name.split(".")
            place: torch.nn.Module = self
            for folder in folders:
                if folder not in place._modules:
                    place.add_module(folder, torch.nn.Module())
                place = getattr(place, folder)
            place.register_parameter(last, torch.nn.Parameter(torch.from_numpy(parameter.data)))
            self._torch_names.append((place, last))

    def train(self, mode: bool = True) -> "TorchModule":
        """Set the torch module and the sarlite module to training if `mode` is True, else to evaluation."""
        self._module[0].train(mode)
        return super().train(mode)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return module(graph, *inputs) of the sarlite module as a torch tensor."""
        torch_parameters = [getattr(place, name) for place, name in self._torch_names]
        for at, (parameter, torch_parameter) in enumerate(zip(self._parameters_of_module, torch_parameters)):
            if torch_parameter.data_ptr() != parameter.data.ctypes.data:  # after .to(), or nn.flatten of the module
                parameter.data = torch_parameter.detach().numpy()
            if torch_parameter._version != self._versions[at]:  # after a step of an optimizer
                self._versions[at] = torch_parameter._version
                parameter.changed()
        if self.rng is not None and self.training:
            self.rng.step += 1
        return _Call.apply(self._module[0], self.graph, self._parameters_of_module, len(inputs), *inputs, *torch_parameters)


class _Call(torch.autograd.Function):
    """`torch.autograd.Function` for one call of a sarlite module. `forward` stores the sarlite output in the context, and
    `backward` runs sarlite's backward pass from this output.
    """

    @staticmethod
    def forward(ctx, module, graph, parameters, n_inputs, *tensors):
        inputs = [Tensor(t.detach().numpy(), requires_grad=t.requires_grad, placement="rows")
                  for t in tensors[:n_inputs]]
        if any(ctx.needs_input_grad[4:]):
            out = module(graph, *inputs)
        else:
            with no_grad():
                out = module(graph, *inputs)
        result = torch.from_numpy(out.data)
        ctx.out, ctx.leaves = out, [*inputs, *parameters]
        ctx.save_for_backward(*tensors, result)  # torch then raises in backward if one of them was changed
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        _ = ctx.saved_tensors
        before = [leaf.grad for leaf in ctx.leaves]
        for leaf in ctx.leaves:
            leaf.grad = None
        try:
            if ctx.out.requires_grad:
                ctx.out.backward(g.contiguous().numpy(), retain_graph=True)  # torch may call backward twice
            grads = [None if leaf.grad is None else torch.from_numpy(leaf.grad) for leaf in ctx.leaves]
        finally:
            for leaf, grad in zip(ctx.leaves, before):
                leaf.grad = grad
        needs = ctx.needs_input_grad[4:]
        return None, None, None, None, *(grad if needed else None for grad, needed in zip(grads, needs))


class FromTorch(nn.Module):
    """sarlite module that wraps a torch module, and calls it as one operation of sarlite's tape.

    Parameters
    ----------
    module : torch.nn.Module
        Module on the CPU, a function of tensors to one tensor. Its parameters become sarlite parameters, so sarlite's
        optimizers and checkpoints include them.

    Raises
    ------
    ConfigError
        The module has buffers, as batch norm does, which sarlite's checkpoints would lose and ranks would not share. In
        a call: the module returns something other than one tensor.

    Notes
    -----
    The module sees the rows of one rank only. Random numbers of the module, such as torch's dropout, depend on the
    number of ranks.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from sarlite import Tensor
    >>> from sarlite.interop.torch import FromTorch
    >>> layer = FromTorch(torch.nn.Linear(8, 4))
    >>> layer(Tensor(np.ones((3, 8), np.float32))).shape
    (3, 4)
    """

    def __init__(self, module: torch.nn.Module) -> None:
        buffers = [name for name, _ in module.named_buffers()]
        if buffers:
            raise ConfigError(f"FromTorch: {type(module).__name__} keeps buffers, {', '.join(buffers)}, which "
                              "checkpoints would lose")
        self.torch = _Holder(module)
        self.parameters_ = [nn.Parameter(p.detach().numpy()) for p in self.torch.parameters]

    def __call__(self, *inputs: Tensor | Array) -> Tensor:
        """Return module(*inputs) of the torch module as a sarlite Tensor, recorded as one primitive of the tape."""
        self.torch.module.train(self.training)
        for parameter, torch_parameter in zip(self.parameters_, self.torch.parameters):
            if torch_parameter.data_ptr() != parameter.data.ctypes.data:
                torch_parameter.data = torch.from_numpy(parameter.data)
        return apply("torch", *inputs, *self.parameters_, holder=self.torch)


class _Holder:
    """Holder of a torch module and its parameters. A FromTorch stores its torch module in a holder, as sarlite's search of
    attributes for parameters does not look into it.
    """

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
    results = iter(torch.autograd.grad(out, wanted, torch.from_numpy(np.array(g)), retain_graph=True, allow_unused=True))
    grads = [next(results) if needed else None for needed in needs]
    return tuple(None if not needed else np.zeros(leaf.shape, g.dtype) if grad is None else grad.numpy()
                 for leaf, needed, grad in zip(leaves, needs, grads))


primitive("torch", _forward, _vjp)

"""Check PyG's softmax over edges and a PyG layer with its weights, in dialect "pyg"."""

import sys
import warnings

from sarlite import oracle

warnings.simplefilter("ignore")
try:
    import torch
    from torch_geometric.nn import SAGEConv
    from torch_geometric.utils import softmax
except ImportError as error:
    sys.exit(print(f"skipped, so not covered: {error}"))


def of_edges(case, scores):
    return softmax(scores, case.dst, num_nodes=case.n_dst)


def of_edges_vjp(case, g):
    scores = case.scores.requires_grad_()
    return {"scores": torch.autograd.grad(of_edges(case, scores), scores, g)[0]}


softmax_of_pyg = oracle.Reference("softmax", dialect="pyg")
print(oracle.check(lambda case: of_edges(case, case.scores), softmax_of_pyg, vjp=of_edges_vjp, convert=torch.from_numpy,
                   graphs="[cm]*-[1-9]").require())

layer = SAGEConv(17, 5)


def mean(case, x=None):
    if case.n_src != case.n_dst:
        raise NotImplementedError("this test of the layer is of homogeneous graphs")
    return layer(case.x if x is None else x, torch.stack([case.src, case.dst]))


def mean_vjp(case, g):
    x = case.x.requires_grad_()
    layer.zero_grad()
    mean(case, x).backward(g)
    return {"x": x.grad, **{name: p.grad for name, p in layer.named_parameters()}}


reference = oracle.Reference("sage", dialect="pyg", state=layer.state_dict())
print(oracle.check(mean, reference, vjp=mean_vjp, convert=torch.from_numpy, level="certified", graphs="[cm]*-[1-9]").require())

"""Check DGL's kernels and a DGL layer with its weights, in dialect "dgl": DGL's names, layouts and behaviour."""

import os
import sys
import warnings

from sarlite import oracle

os.environ.setdefault("DGLBACKEND", "pytorch")
warnings.simplefilter("ignore")
try:
    import dgl
    import torch
    from dgl.nn.pytorch import GATConv
except ImportError as error:
    sys.exit(print(f"skipped, so not covered: {error}"))


def graph(case):
    if case.n_src != case.n_dst:
        raise NotImplementedError("this test of the layer is of homogeneous graphs")
    return dgl.graph((case.src, case.dst), num_nodes=case.n_dst)


def sums(case, x):
    return dgl.ops.copy_u_sum(dgl.create_block((case.src, case.dst), num_src_nodes=case.n_src, num_dst_nodes=case.n_dst), x)


def sums_vjp(case, g):
    x = case.x.requires_grad_()
    return {"x": torch.autograd.grad(sums(case, x), x, g)[0]}


report = oracle.check(lambda case: sums(case, case.x), "spmm", reduce="sum", vjp=sums_vjp, convert=torch.from_numpy, graphs="[cm]*-[1-9]")
print(report.require())

layer = GATConv(17, 5, num_heads=2, allow_zero_in_degree=True)
reference = oracle.Reference("gat", dialect="dgl", state=layer.state_dict(), allow_zero_in_degree=True)


def attention(case):
    return layer(graph(case), case.x)


def attention_vjp(case, g):
    x = case.x.requires_grad_()
    layer.zero_grad()
    layer(graph(case), x).backward(g)
    return {"x": x.grad, **{name: p.grad for name, p in layer.named_parameters()}}


print(oracle.check(attention, reference, vjp=attention_vjp, convert=torch.from_numpy, level="certified", graphs="[cm]*-[1-9]").require())

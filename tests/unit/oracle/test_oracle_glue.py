"""Conveniences of the oracle.

Tests cover functions with their own vjp, PyTorch's autograd, references of one's own and libraries' names of
attributes. They also cover the table of operations and the distribution without kernels.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sarlite import oracle
from sarlite.errors import ConfigError
from sarlite.oracle import Definition, Reference, Verdict, check, define
from sarlite.oracle.catalogue import entry
from sarlite.oracle.definition import REFERENCES
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.expression import propagate
from sarlite.oracle.oracle_command import main

ROOT = Path(__file__).parents[3]
FEW = ("ring-3", "clique-4-loops", "uniform-10-30", "bipartite-3-7-2", "in-star-3-denormal")


def spmm(src, dst, x, n_dst):
    out = np.zeros((n_dst, *x.shape[1:]), x.dtype)
    np.add.at(out, dst, x[src])
    return out


class Sum:
    """A kernel that has its gradient as the method `vjp`."""

    def __init__(self, factor=1):
        self.factor = np.float32(factor)

    def __call__(self, case):
        return spmm(case.src, case.dst, case.x, case.n_dst)

    def vjp(self, case, g):
        return {"x": self.factor * spmm(case.dst, case.src, g, case.n_src)}


def test_a_function_may_have_its_vjp_as_attribute():
    report = check(Sum(), "spmm", level="probe", graphs=FEW).require()
    assert not any("gradients" in reason for reason in report.uncovered)
    assert check(Sum(2), "spmm", level="probe", graphs=FEW).first_bad.output == "dx"


# ---- PyTorch


def weighted(case):
    torch = pytest.importorskip("torch")
    return torch.zeros(case.n_dst, case.x.shape[1], dtype=case.x.dtype).index_add(
        0, case.dst, case.x[case.src] * case.weight[:, None]
    )


def test_a_torch_kernel_is_differentiated_by_autograd():
    pytest.importorskip("torch", reason="PyTorch is not installed: its glue is not tried")
    report = check(oracle.torch_kernel(weighted), "spmm", weighted=True, graphs=FEW).require()
    assert not any("gradient" in reason for reason in report.uncovered)
    detached = oracle.torch_kernel(
        lambda case: weighted(case) + 0 * case.x.sum() if case.n_src < 0 else weighted(case).detach()
    )
    bad = check(detached, "spmm", weighted=True, graphs=FEW, level="probe")
    assert {finding.output for finding in bad.findings} == {"dx", "dweight"}


def test_a_torch_layer_is_differentiated_by_autograd():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: its glue is not tried")

    class SAGEConv(torch.nn.Module):
        """A layer like PyG's SAGEConv: a mean over the neighbours plus the row itself."""

        def __init__(self):
            super().__init__()
            self.lin_l, self.lin_r = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3, bias=False)

        def forward(self, x, edges):
            out = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
            return self.lin_l(out / torch.bincount(edges[1], minlength=len(x)).clamp(min=1)[:, None]) + self.lin_r(x)

    layer = SAGEConv()
    reference = Reference("sage", dialect="pyg", state=layer.state_dict())
    graphs = ("ring-3", "clique-4-loops", "uniform-10-30")
    report = check(oracle.torch_layer(layer), reference, graphs=graphs, level="certified").require()
    assert report.checked["certified"] == 3 * 5 + 2 * 4  # on two graphs the four gradients also come from strides of 0
    check(
        oracle.torch_layer(layer, lambda module, case: module(case.x, torch.stack([case.src, case.dst]))),
        reference,
        graphs=graphs,
        level="certified",
    ).require()
    wrong = oracle.torch_layer(layer, lambda module, case: module(case.x, torch.stack([case.dst, case.src])))
    assert check(wrong, reference, graphs=graphs, level="certified").verdict is Verdict.WRONG


def test_nothing_of_torch_is_imported_unasked():
    code = (
        "import sys, sarlite.oracle as o; o.check(lambda c: c.x[c.src], 'gather', graphs='ring-3'); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# ---- references of one's own


def test_a_reference_of_ones_own_is_checked():
    """Two hops of a sum: values, gradients, bounds and probes follow from the formula."""

    def formula(inputs, edges, attributes):
        return {"out": propagate(propagate(inputs["x"], edges.by_src, edges.by_dst), edges.by_src, edges.by_dst)}

    def arrays(edges, width, attributes):
        if edges.n_src != edges.n_dst:
            raise ConfigError("two hops take one set of rows")
        return {"x": (edges.n_src, width)}

    define(Definition("two-hops", formula, arrays))
    try:
        hop = Sum()

        def run(case):
            return spmm(case.src, case.dst, hop(case), case.n_dst)

        def vjp(case, g):
            return {"x": spmm(case.dst, case.src, spmm(case.dst, case.src, g, case.n_src), case.n_src)}

        report = check(run, "two-hops", vjp=vjp, graphs=FEW).require()
        assert report.checked["probe"] > 3 and any("do not suit" in reason for reason in report.uncovered)
        assert check(hop, "two-hops", graphs=FEW, level="probe").verdict is Verdict.WRONG
        with pytest.raises(ConfigError, match="'two-hops' is defined already"):
            define(Definition("two-hops", formula, arrays))
    finally:
        del REFERENCES["two-hops"]


# ---- names, and the table


@pytest.mark.parametrize("name, dialect, theirs, ours", [
    ("gat", "dgl", {"in_feats": 7, "num_heads": 3, "out_feats": 4, "negative_slope": 0.1},
     {"n_in": 7, "n_heads": 3, "n_feat": 4, "slope": 0.1}),
    ("gatv2", "pyg", {"heads": 3, "out_channels": 4, "concat": False}, {"n_heads": 3, "n_feat": 4, "heads": "mean"}),
    ("sage", "dgl", {"aggregator_type": "pool"}, {"aggregator": "max-pool"}),
    ("gcn", "pyg", {"add_self_loops": False, "normalize": True}, {"self_loops": "none", "norm": "in"}),
    ("rgcn", "dgl", {"num_rels": 5, "num_bases": 2, "self_loop": False},
     {"n_relations": 5, "n_bases": 2, "root": False}),
])  # fmt: skip
def test_names_of_the_libraries_are_accepted(name, dialect, theirs, ours):
    assert Reference(name, dialect=dialect, **theirs).attributes == Reference(name, dialect=dialect, **ours).attributes


def test_values_without_a_reference_are_refused_by_name():
    with pytest.raises(ConfigError, match="'gcn' of dgl's sage .*'mean', 'pool'"):
        Reference("sage", dialect="dgl", aggregator_type="gcn")
    with pytest.raises(ConfigError, match="'gcn' .*'mean', 'max-pool', 'max'; .*dgl's sage"):
        Reference("sage", dialect="dgl", aggregator="gcn")
    with pytest.raises(ConfigError, match="n_heads is given twice"):
        Reference("gat", dialect="dgl", num_heads=2, n_heads=2)
    with pytest.raises(ConfigError, match="in_feats"):
        Reference("gat", in_feats=2)


def test_norm_in_is_refused_between_two_sets_of_rows():
    reference = Reference("gcn", dialect="dgl", norm="in", allow_zero_in_degree=True)
    with pytest.raises(ConfigError, match="norm 'in' .*3 source rows, and 2"):
        reference.expressions(reference.case(EdgeList([0, 2], [1, 0], 3, 2)))
    report = check(lambda case: case.x, reference, graphs="bipartite-3-7-2", level="certified")
    assert report.uncovered["graphs that do not suit"] == 1 and not report.findings


def test_the_list_describes_every_operation(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert all(f"{name}\n" in text for name in REFERENCES) and "with weighted=True: weight (n_edges,)" in text
    assert main(["list", "gat", "--json"]) == 0
    description = json.loads(capsys.readouterr().out)
    assert description["arrays"]["x_dst"] == ["n_dst", "width"] and description["own_names"]["dgl"]["num_heads"] == "n_heads"
    assert main(["list", "spmn"]) == 2 and "'spmn' is not one of" in capsys.readouterr().err
    assert entry("attention")["with"]["kind='dot'"]["q"] == ["n_dst", 2, "width"]
    assert entry("sage-model")["arrays"]["x"] == ["n", "width"] and entry("gcn")["parameters"]["linear.weight"] == ["width", 4]


def test_sizes_are_equal_on_some_graphs():
    """Heads and features, or relations and bases: a bug that swaps two axes of equal length shows only there."""
    seen = set()

    def run(case):
        seen.add((case.n_heads, case.n_feat))
        raise NotImplementedError

    check(run, "gat", level="certified", graphs="in-star-[1-9]")
    assert seen == {(2, 3), (2, 2)}
    seen.clear()
    check(run, Reference("gat", n_feat=4), level="certified", graphs="in-star-[1-9]")
    assert seen == {(2, 4)}


# ---- the distribution


def test_the_distribution_without_kernels_has_what_the_oracle_imports():
    setup = ast.parse((ROOT / "packaging" / "oracle" / "setup.py").read_text())
    (modules,) = (
        ast.literal_eval(node.value)
        for node in setup.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "MODULES"
    )
    code = (
        "import sys, pkgutil, importlib, sarlite.oracle as o\n"
        "for m in pkgutil.iter_modules(o.__path__):\n"
        "    m.name == '__main__' or importlib.import_module('sarlite.oracle.' + m.name)\n"
        "print(*(m for m in sys.modules if m.startswith('sarlite.') and not m.startswith('sarlite.oracle')))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True)
    assert {f"sarlite.{name}" for name in modules} - {"sarlite.__init__"} == set(done.stdout.split())

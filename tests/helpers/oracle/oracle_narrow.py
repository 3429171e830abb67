"""Correct kernels that round rows to bfloat16 when edges gather them, and bugs of such kernels, to test the oracle."""

from dataclasses import replace
from functools import partial

import numpy as np

from sarlite.oracle.formats import rounded
from tests.helpers.oracle import oracle_kernels as right
from tests.helpers.oracle.oracle_kernels import Sparse
from tests.helpers.oracle.oracle_planting import Mutant

DTYPE = {"dtype": "bfloat16-rows"}


def nearest(rows):
    return rounded(rows, "bfloat16")


def narrow_inputs(case, names, round_row):
    return replace(case, arrays=case.arrays | {name: round_row(case.arrays[name]) for name in {*names} & {*case.arrays}})


def spmm(case, order=None, round_row=nearest):
    return right.spmm(narrow_inputs(case, "x", round_row), order)


def spmm_vjp(case, g, order=None, round_row=nearest, scale_g=None):
    """Return gradients of an oracle case's sums for `g`; edges are summed in `order`, and `round_row` rounds the rows they gather.

    `scale_g(g, scale)` replaces the rounding of g times the destination's scale. For a maximum, the winning edge
    takes g unrounded.
    """
    if case.reduce in ("max", "min"):
        return right.spmm_vjp(narrow_inputs(case, "x", round_row), g, order)
    scale = 1 / right.degrees(case, case.dst, case.n_dst)[:, None] if case.reduce == "mean" else case.dtype.type(1)
    total = replace(case, attributes={**case.attributes, "reduce": "sum"})
    return right.spmm_vjp(narrow_inputs(total, "x", round_row), round_row(g * scale) if scale_g is None else scale_g(g, scale), order)


def gat(case, order=None, round_row=nearest):
    return right.gat(narrow_inputs(case, "z", round_row), order)


def gat_vjp(case, g, order=None, round_row=nearest):
    return right.gat_vjp(narrow_inputs(case, "z", round_row), round_row(g), order)


KERNELS = {"spmm": (spmm, spmm_vjp), "attention": (gat, gat_vjp)}
CORRECT = (("spmm", {"reduce": "sum"}), ("spmm", {"reduce": "mean"}), ("spmm", {"reduce": "sum", "weighted": True}),
           ("spmm", {"reduce": "max"}), ("attention", {}), ("attention", {"masked": True}))  # fmt: skip


# ---- bugs


def truncated(rows):
    return (rows.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def halves_up(rows):
    return truncated((rows.view(np.uint32) + np.uint32(0x8000)).view(np.float32))


def as_given(rows):
    return rows


def narrow_sums(case):
    """Return sums over each destination's edges of an oracle case, with each partial sum rounded to bfloat16 (a bug)."""
    out = np.zeros((case.n_dst, *case.x.shape[1:]), np.float32)
    for j, i in zip(case.src, case.dst):
        out[i] = nearest(out[i] + nearest(case.x[j]))
    return out


def narrow_messages(case):
    edges = Sparse(case)
    return edges.into(edges.dst, edges.n_dst, nearest(right.messages(case, edges, nearest(case.x))))


def narrow_coefficients(case):
    edges = Sparse(case)
    p = nearest(right.softmax_of(edges, right.gat_scores(case, edges)))
    return edges.into(edges.dst, edges.n_dst, nearest(case.z)[edges.src] * p[..., None])


def narrow_parts(case, g):
    """Return {"x": gradient} of an oracle case for `g`, summed over two halves of the edges, each rounded to bfloat16 (a bug)."""
    parts = [narrow_inputs(case, "x", nearest).edges.select(np.arange(k, case.n_edges, 2)) for k in range(2)]
    gradients = [spmm_vjp(replace(case, edges=part), g)["x"] for part in parts]
    return {"x": nearest(gradients[0]) + nearest(gradients[1])}


def other_delta(case, g):
    """Return an oracle case's GAT gradients for `g` with a bug: delta, the product g . out of each row, uses g before its rounding."""
    edges, gradients = Sparse(case), gat_vjp(case, g)
    lost = ((g - nearest(g)) * gat(case)).sum(2)
    p = right.softmax_of(edges, right.gat_scores(case, edges))
    raw = case.el[edges.src] + case.er[edges.dst]
    off = p * lost[edges.dst] * np.where(raw > 0, 1, case.slope).astype(np.float32)
    return gradients | {"er": gradients["er"] - edges.into(edges.dst, edges.n_dst, off)}


def _mutants():
    def mutant(name, op="spmm", level="certified", run=None, vjp=None, **attributes):
        usual = KERNELS[op]
        label = f"rows of bfloat16: {name}"
        return Mutant(label, op, level, run or usual[0], vjp or usual[1], {**attributes, **DTYPE})

    yield from (mutant(f"{how.__name__} in {op}", op, run=partial(KERNELS[op][0], round_row=how))
                for how in (truncated, halves_up, as_given) for op in KERNELS)
    yield from (mutant(f"{how.__name__} in the gradient of {op}", op, vjp=partial(KERNELS[op][1], round_row=how))
                for how in (truncated, halves_up, as_given) for op in KERNELS)
    yield mutant("sums are", run=narrow_sums)
    yield mutant("the result is too", run=lambda case: nearest(spmm(case)))
    yield mutant("messages are too", run=narrow_messages, weighted=True)
    yield mutant("a maximum is of rows that are not", run=right.spmm, reduce="max")
    yield mutant("scores are too", "attention", run=lambda case: gat(narrow_inputs(case, ("el", "er"), nearest)))
    yield mutant("coefficients are too", "attention", run=narrow_coefficients)
    yield mutant("twice, before and after the scale", reduce="mean",
                 vjp=partial(spmm_vjp, scale_g=lambda g, scale: nearest(nearest(g) * scale)))
    yield mutant("before the scale", reduce="mean", vjp=partial(spmm_vjp, scale_g=lambda g, scale: nearest(g) * scale))
    yield mutant("sums of parts are too", vjp=narrow_parts)
    yield mutant("delta is of another gradient", "attention", vjp=other_delta)
    yield mutant("the gradient's rows are, z's are not", "attention",
                 vjp=lambda case, g: right.gat_vjp(case, nearest(g)))


MUTANTS = list(_mutants())

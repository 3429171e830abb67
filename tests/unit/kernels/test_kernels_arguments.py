"""Wrong arguments are refused by name, before any of them is read."""

import numpy as np
import pytest

from sarlite import kernels
from sarlite.errors import ShapeError
from sarlite.kernels import EdgeDropout, native


def wrong_arguments():
    """Yield cases: the name that the message must have, and a call."""
    f32, f64, i32 = np.float32, np.float64, np.int32
    indptr, indices = np.array([0, 1, 3]), np.array([0, 1, 2], i32)
    x, out, read_only = np.ones((3, 4), f32), np.zeros((2, 4), f32), np.zeros((2, 4), f32)
    read_only.flags.writeable, twice = False, np.ones((6, 4), f32)
    z, s, d = np.ones((3, 2, 4), f32), np.ones((3, 2), f32), np.ones((2, 2), f32)
    acc, ids = np.zeros((2, 2, 4), f32), np.arange(3)
    arg = np.full((2, 4), -1, i32)
    k = kernels

    def attend_with(slope=0.2, **new):
        a = {"indices": indices, "z": z, "src": s, "dst": d, "m": d.copy(), "l": d.copy(), "acc": acc, **new}
        more = {name: a.pop(name) for name in ("dropout", "rows") if name in a}
        return lambda: k.attend(indptr, *a.values(), slope=slope, **more)

    def backward_with(**new):
        a = {"t_indices": np.array([0, 1, 1], i32), "z": z, "src": s, "ends": np.ones((2, 2, 4), f32), "g": acc, "dz": z.copy(),
             "dsrc": s.copy(), "ddst": d.copy(), **new}
        more = {"sums": a.pop("sums")} if "sums" in a else {}
        return lambda: k.attend_backward(np.array([0, 1, 2, 3]), *a.values(), slope=0.2, **more)

    yield "indptr", lambda: k.spmm(indptr.astype(i32), indices, x, out)
    yield "indptr", lambda: k.spmm(indptr[:0], indices, x, out)
    yield "indptr", lambda: k.spmm(np.array([3, 1, 0]), indices, x, out)
    yield "indices", lambda: k.spmm(indptr, indices.astype(np.int16), x, out)
    yield "indices", lambda: k.spmm(indptr, indices[:2], x, out)
    yield "indices", lambda: k.spmm(indptr, list(indices), x, out)
    yield "x", lambda: k.spmm(indptr, indices, x.astype(np.float16), out)
    yield "x", lambda: k.spmm(indptr, indices, x[:, ::2], out[:, :2].copy())
    yield "x", lambda: k.spmm(indptr, None, x[:2], out)
    yield "x", lambda: k.spmm(indptr, indices, out, out)
    yield "out", lambda: k.spmm(indptr, indices, x, out.astype(f64))
    yield "out", lambda: k.spmm(indptr, indices, x, np.zeros((3, 4), f32))
    yield "out", lambda: k.spmm(indptr, indices, x, read_only)
    yield "out", lambda: k.spmm(indptr, indices, x, np.zeros((2, 8), f32)[:, ::2])
    yield "eid", lambda: k.spmm(indptr, indices, x, out, eid=np.arange(3), weight=np.ones(3, f32))
    yield "eid", lambda: k.spmm(indptr, indices, x, out, eid=indices[:2], weight=np.ones(3, f32))
    yield "weight", lambda: k.spmm(indptr, indices, x, out, weight=np.ones(3))
    yield "weight", lambda: k.spmm(indptr, indices, x, out, weight=np.ones(2, f32))
    yield "weight", lambda: k.spmm(indptr, indices, z, acc, weight=np.ones((3, 3), f32))
    yield "src_scale", lambda: k.spmm(indptr, indices, x, out, src_scale=np.ones(2, f32))
    yield "dst_scale", lambda: k.spmm(indptr, indices, x, out, dst_scale=np.ones(2))
    yield "rows", lambda: k.spmm(indptr, indices, x, out, rows=np.arange(2))
    yield "rows", lambda: k.spmm(indptr, indices, x, out, rows=np.zeros(3, i32))
    yield "dst_scale", lambda: k.spmm(indptr, indices, x, np.zeros((5, 4), f32), rows=indices[:2], dst_scale=np.ones(2, f32))
    yield "rows", lambda: k.edge_dot(indptr, indices, x, x, np.zeros(3, f32), rows=indices)
    yield "rows", lambda: k.extremum(indptr, indices, x, out, arg, sign=1, rows=indices)
    yield "rows", lambda: k.transpose(indptr, indices, 3, rows=indices)
    yield "rows", lambda: k.transpose(indptr, indices, 3, rows=np.arange(2))
    yield "g", lambda: k.edge_dot(indptr, indices, x, x, np.zeros(3, f32))
    yield "out", lambda: k.edge_dot(indptr, indices, out, x, np.zeros(3))
    yield "out", lambda: k.edge_dot(indptr, indices, out, x, None)
    yield "dst_scale", lambda: k.edge_dot(indptr, indices, out, x, np.zeros(3, f32), dst_scale=np.ones(3, f32))
    yield "arg", lambda: k.extremum(indptr, indices, x, out, arg.astype(np.int64), sign=1)
    yield "arg", lambda: k.extremum(indptr, indices, x, out, arg[:1], sign=1)
    yield "sign", lambda: k.extremum(indptr, indices, x, out, arg, sign=0)
    yield "label", lambda: k.extremum(indptr, indices, x, out, arg, sign=1, label=indices[:1])
    yield "order", lambda: k.extremum(indptr, indices, x, out, arg, sign=1, order=indices)
    yield "dx", lambda: k.extremum_backward(out, arg, x.astype(f64))
    yield "arg", lambda: k.extremum_backward(out, arg.astype(f32), x)
    yield "indices", attend_with(indices=None)
    yield "z", attend_with(z=x)
    yield "src", attend_with(src=s[:2])
    yield "dst", attend_with(dst=d.astype(f64))
    yield "m", attend_with(m=s)
    yield "l", attend_with(l=d.T)
    yield "acc", attend_with(acc=z)
    yield "dropout.src_ids", attend_with(dropout=EdgeDropout(1, 0.5, ids[:2], ids[:2], 3))
    yield "dropout.dst_ids", attend_with(dropout=EdgeDropout(1, 0.5, ids, ids[:2].astype(i32), 3))
    yield "p", attend_with(dropout=EdgeDropout(1, 1.0, ids, ids[:2], 3))
    yield "dst", attend_with(dst=s, m=s.copy(), l=s.copy(), acc=z.copy())
    yield "rows", attend_with(rows=indices)
    yield "sums", backward_with(sums=np.zeros((2, 2, 2)))
    yield "sums", backward_with(sums=np.zeros((0, 2, 2)), ddst=None)
    yield "sums", backward_with(sums=np.zeros((2, 3, 2)), ddst=None)
    yield "sums", backward_with(sums=np.zeros((2, 2, 2), f32), ddst=None)
    sums, grid = np.zeros((2, 1, 4)), np.ones((1, 4))
    yield "eid", lambda: k.exact_spmm(indptr, indices, x, sums, grid, eid=indices[:2], weight=np.ones(3, f32))
    yield "weight", lambda: k.exact_spmm(indptr, indices, x, sums, grid, weight=np.ones(2, f32))
    yield "src_scale", lambda: k.exact_spmm(indptr, indices, x, sums, grid, src_scale=np.ones(2, f32))
    yield "scale", lambda: k.exact_spmm(indptr, indices, x, sums, grid, scale=np.ones(3))
    yield "z", lambda: k.exact_attend(indptr, indices, z.view(np.uint16)[..., ::2].copy(), s, d, d, d, acc, d, d, slope=0.2)
    yield "ddst", lambda: k.attend_backward_finish(np.zeros((2, 2, 2)), s.copy())
    yield "l", lambda: k.attend_finish(d.copy(), s, acc)
    for name in ("t_indices", "z", "src", "ends", "g", "dz", "dsrc", "ddst"):
        yield name, backward_with(**{name: np.ones((1, 1), np.float16)})
    for name in ("dst", "m", "scale", "g", "out"):
        arrays = {"dst": d, "m": d, "scale": d, "g": acc, "out": acc, name: np.ones((1, 1), np.float16)}
        yield name, lambda arrays=arrays: k.attend_ends(*arrays.values())
    yield "b", lambda: k.row_dot(x, x[:1], np.zeros(3, f32))
    yield "out", lambda: k.row_dot(x, x, np.zeros(4, f32))
    yield "out", lambda: k.gather_rows(x, indices, out)
    yield "index", lambda: k.gather_rows(x, indices.astype(f32), x.copy())
    yield "index", lambda: k.scatter_add_rows(x, indices[:1], out)
    yield "ids", lambda: k.dropout(x, indices, 1, 0.5, x.copy())
    yield "p", lambda: k.dropout(x, ids, 1, -0.1, x.copy())
    yield "out", lambda: k.dropout(x, ids, 1, 0.5, out)
    yield "mean", lambda: k.column_moments(x, np.zeros(4, f32), np.zeros(4))
    yield "m2", lambda: k.column_moments(x, np.zeros(4), np.zeros(3))
    normal = k.Normal(np.zeros(4), np.zeros(4), np.ones(4, f32))
    yield "kind", lambda: k.activate(x, x.copy(), kind="tanh")
    yield "out", lambda: k.activate(x, out, kind="relu")
    yield "x", lambda: k.activate(x, x.view(), kind="relu")
    yield "gamma", lambda: k.activate(x, x.copy(), kind="relu", normal=normal._replace(gamma=np.ones(4)), beta=np.ones(4, f32))
    yield "mean", lambda: k.activate(x, x.copy(), kind="relu", normal=normal._replace(mean=np.ones(4, f32)), beta=np.ones(4, f32))
    yield "beta", lambda: k.activate(x, x.copy(), kind="relu", normal=normal)
    yield "beta", lambda: k.activate(x, x.copy(), kind="relu", beta=np.ones(3, f32))
    yield "ids", lambda: k.activate(x, x.copy(), kind="relu", mask=k.Mask(ids[:2], 1, 0.5))
    yield "p", lambda: k.activate(x, x.copy(), kind="relu", mask=k.Mask(ids, 1, 1.0))
    yield "x", lambda: k.activate_backward(x, kind="elu", dx=x.copy())
    yield "x", lambda: k.activate_backward(x, kind="identity", normal=normal, sums=np.zeros((2, 4)))
    yield "beta", lambda: k.activate_backward(x, kind="elu", normal=normal, x=x, sums=np.zeros((2, 4)))
    yield "out", lambda: k.activate_backward(x, kind="relu", dx=x.copy())
    yield "means", lambda: k.activate_backward(x, kind="identity", normal=normal, x=x, means=x[:2], dx=x.copy())
    yield "dx", lambda: k.activate_backward(x, kind="identity", dx=out)
    yield "g", lambda: k.activate_backward(twice[: len(x)], kind="identity", dx=twice[1 : len(x) + 1])  # partial overlap
    yield "sums", lambda: k.activate_backward(x, kind="identity", sums=np.zeros(4))
    yield "n", lambda: k.set_threads(0)
    yield "indices", lambda: k.transpose(indptr, indices, 2)
    yield "indices", lambda: k.transpose(indptr, np.append(indices, indices[:1]), 3)


@pytest.mark.parametrize(("name", "call"), [pytest.param(*case, id=f"{n}-{case[0]}") for n, case in enumerate(wrong_arguments())])
def test_wrong_arguments_are_named(name, call):
    with pytest.raises(ShapeError, match=rf"^{name} must"):
        call()


def test_messages_hold_shape_and_dtype():
    with pytest.raises(ShapeError, match=r"out .*float32; .*\(2, 4\), .*float64"):
        kernels.spmm(np.array([0, 1, 1]), np.zeros(1, np.int32), np.zeros((1, 4), np.float32), np.zeros((2, 4)))


def test_a_struct_is_filled_by_the_names_of_its_fields():
    """The order of fields is free, and a missing field is NULL or 0. An unknown name or an array of another type is refused."""
    x, out, indices = np.arange(12, dtype=np.float32).reshape(3, 4), np.empty((2, 4), np.float32), np.array([0, 2, 1], np.int32)
    csr = {"n_rows": 2, "indices": indices, "indptr": np.array([0, 2, 3])}

    def spmm(**fields):
        native.call("sar_spmm_forward_f32_i32", out, {"n_feat": 4, "n_heads": 1, "n_src": 3, "x": x, "csr": csr, **fields}, False)
        return out.tolist()

    assert spmm() == spmm(weight=None) == [(x[0] + x[2]).tolist(), x[1].tolist()]
    assert spmm(weight=np.array([1, 3, 2], np.float32)) == [(x[0] + 3 * x[2]).tolist(), (2 * x[1]).tolist()]
    for wrong, error in (({"weights": x}, KeyError), ({"weight": x.astype(np.float64)}, TypeError), ({"n_heads": x}, TypeError),
                         ({"csr": {**csr, "row": indices}}, KeyError), ({"csr": {**csr, "indices": indices.astype(np.int64)}}, TypeError),
                         ({"csr": indices}, TypeError)):  # fmt: skip
        with pytest.raises(error):
            spmm(**wrong)


@pytest.mark.parametrize("n", [0, 1025])
def test_threads_that_cannot_be(n):
    before = kernels.threads()
    with pytest.raises(ShapeError, match=f"n must be from 1 to 1024, got {n}"):
        kernels.set_threads(n)
    assert kernels.threads() == before

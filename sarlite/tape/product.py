"""The matrix product and Einstein's notation."""

from typing import Any

import numpy as np

from sarlite.errors import ConfigError, ShapeError
from sarlite.numerics import reductions
from sarlite.tape.apply import apply, written_over
from sarlite.tape.pairwise import operands
from sarlite.tape.primitives import primitive
from sarlite.tape.shaping import reshape
from sarlite.tape.summands import ProductGradient
from sarlite.tape.table_rows import in_table
from sarlite.tape.tensor import Operand, Tensor

# ---- a @ b, and c + a @ b


def _matmul(wants_grad, a, b, *added, factors=2):
    c = added[0] if added else None
    into = c if c is None or (c.base is None and c.flags.writeable and c.flags.c_contiguous) else c.copy()
    kept = a if wants_grad[1] else None, b if wants_grad[0] else None
    return reductions.product(a, b, into=into), (*kept, a.shape, b.shape)


def _matmul_vjp(g, wants_grad, residuals, factors=2):
    a, b, shape_a, shape_b = residuals
    passed = [g] * len(wants_grad[2:])
    g = np.ascontiguousarray(g)
    if len(shape_b) == 2:
        da = ProductGradient(g, b) if wants_grad[0] else None
        return da, reductions.product_over_rows(a, g) if wants_grad[1] else None, *passed
    da = reductions.unbroadcast(reductions.product(g, b, trans_b=True), shape_a) if wants_grad[0] else None
    db = reductions.unbroadcast(reductions.product(a.swapaxes(-1, -2), g), shape_b) if wants_grad[1] else None
    return da, db, *passed


primitive("matmul", _matmul, _matmul_vjp)


def matmul(a: Any, b: Any, add_to: Tensor | None = None) -> Tensor:
    """Return a @ b over the last two axes.

    Leading axes broadcast. A 1-D operand is a row on the left, a column on the right.

    Parameters
    ----------
    a, b : Tensor or array
    add_to : Tensor, optional
        The product is added to this tensor, of the product's shape and dtype; b is then a matrix. The sum is written
        over the tensor's values. A backward pass that needs these values for another operation raises, as after
        `Tensor.changed`.

    Raises
    ------
    ShapeError
        If the operands' dtypes differ, or shapes do not fit.
    """
    a, b = operands(a, b)
    if not np.ndim(a) or not np.ndim(b):
        raise ShapeError(f"cannot multiply shapes {np.shape(a)} and {np.shape(b)} as matrices; use *")
    if add_to is not None:
        return _add_product(add_to, a, b)
    if a.ndim == 1:
        row = matmul(reshape(a, 1, len(a)), b)
        return reshape(row, (*row.shape[:-2], row.shape[-1]) if b.ndim > 1 else ())
    if b.ndim == 1:
        column = matmul(a, reshape(b, len(b), 1))
        return reshape(column, column.shape[:-1])
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"cannot multiply shapes {a.shape} and {b.shape}")
    return apply("matmul", _in_table(a, b), b)


def _in_table(a, b):
    """Return `a` as `kernels.Rows` if it is rows of a table and the product can read them in place."""
    return in_table(a) if b.ndim == 2 and a.dtype == b.dtype else a


def _add_product(c, a, b):
    found = [(x.shape, x.dtype) for x in (c, a, b)]
    fits = a.ndim >= 2 and b.ndim == 2 and a.shape[-1] == len(b) and c.shape == (*a.shape[:-1], b.shape[1])
    if not fits or not a.dtype == b.dtype == c.dtype:
        raise ShapeError(f"cannot add to (shape, dtype) {found[0]} the product of {found[1]} and {found[2]}")
    out = apply("matmul", _in_table(a, b), b, c, factors=2)
    return written_over(c, out) if out._data is c._data else out


# ---- a matrix for each head


def _by_head(wants_grad, x, w):
    x, w = np.ascontiguousarray(x), np.ascontiguousarray(w)
    return reductions.product_by_head(x, w), (x if wants_grad[1] else None, w if wants_grad[0] else None)


def _by_head_vjp(g, wants_grad, residuals):
    x, w = residuals
    g = np.ascontiguousarray(g)
    dx = reductions.product_by_head(g, w, trans_b=True) if wants_grad[0] else None
    return dx, reductions.product_by_head_over_rows(x, g) if wants_grad[1] else None


primitive("matmul_by_head", _by_head, _by_head_vjp)


def matmul_by_head(x: Any, w: Any) -> Tensor:
    """Return out[i,h] = x[i,h] @ w[h].

    Parameters
    ----------
    x : Tensor or array, (n, n_heads, n_in)
    w : Tensor or array, (n_heads, n_in, n_out)

    Returns
    -------
    Tensor (n, n_heads, n_out)

    Raises
    ------
    ShapeError
        If the shapes are others, or x and w are not of one float dtype.
    """
    x, w = operands(x, w)
    if x.ndim != 3 or w.ndim != 3 or x.shape[1:] != w.shape[:2] or x.dtype != w.dtype or x.dtype.kind != "f":
        found = f"x {x.dtype} {x.shape} and w {w.dtype} {w.shape}"
        raise ShapeError(f"{found} are not (n, n_heads, n_in) and (n_heads, n_in, n_out) of one float dtype")
    return apply("matmul_by_head", x, w)


# ---- Einstein's notation


def _einsum(wants_grad, *arrays, terms, out):
    kept = [a if any(wants_grad[:i] + wants_grad[i + 1 :]) else None for i, a in enumerate(arrays)]
    return reductions.contract(f"{','.join(terms)}->{out}", *arrays), (kept, [np.shape(a) for a in arrays])


def _einsum_vjp(g, wants_grad, residuals, terms, out):
    arrays, shapes = residuals
    return [_einsum_gradient(g, i, arrays, shapes[i], terms, out) if wanted else None
            for i, wanted in enumerate(wants_grad)]


def _einsum_gradient(g, i, arrays, shape, terms, out):
    """Return the gradient of input i: the contraction with term i and the output exchanged.

    Axes that only term i has were summed in the forward pass, so the gradient is broadcast over them.
    """
    others = [k for k in range(len(terms)) if k != i]
    known = set(out).union(*(terms[k] for k in others))
    found = "".join(letter for letter in terms[i] if letter in known)
    subscripts = ",".join([out, *(terms[k] for k in others)])
    d = reductions.contract(f"{subscripts}->{found}", g, *(arrays[k] for k in others))
    summed = tuple(k for k, letter in enumerate(terms[i]) if letter not in known)
    return np.broadcast_to(np.expand_dims(d, summed), shape)


primitive("einsum", _einsum, _einsum_vjp)


def einsum(subscripts: str, *tensors: Operand) -> Tensor:
    """Return the sum of products given by `subscripts`, as `numpy.einsum` does; for example "ij,jk->ik".

    Parameters
    ----------
    subscripts : str
        Without "->" the output has the letters that occur once, in alphabetical order.
    tensors : Tensor or array, of one float dtype

    Raises
    ------
    ConfigError
        For "...", for a letter twice in one term (a diagonal), or in the output twice or alone.
    ShapeError
        If the terms do not fit the shapes; a letter has one size, which is not stretched from 1.
    """
    tensors = operands(*tensors)
    terms, out = _terms(subscripts)
    shapes = [np.shape(t) for t in tensors]
    if [len(term) for term in terms] != [len(shape) for shape in shapes]:
        raise ShapeError(f"einsum {subscripts!r} does not fit the shapes {shapes}")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes):
        for letter, n in zip(term, shape):
            if sizes.setdefault(letter, n) != n:
                raise ShapeError(f"einsum {subscripts!r}: {letter!r} is {sizes[letter]} and {n} in the shapes {shapes}")
    return apply("einsum", *tensors, terms=terms, out=out)


def _terms(subscripts):
    left, arrow, out = subscripts.replace(" ", "").partition("->")
    terms = tuple(left.split(","))
    if not arrow:
        out = "".join(sorted(letter for letter in set(left) - {","} if left.count(letter) == 1))
    for term in (*terms, out):
        if not (term.isalpha() or not term):
            raise ConfigError(f"einsum {subscripts!r}: {term!r} is not of letters alone; '...' is not supported")
        for letter in term:
            if term.count(letter) > 1:
                raise ConfigError(f"einsum {subscripts!r}: {letter!r} stands twice in {term!r}; "
                                  "diagonals are not supported")
    for letter in out:
        if letter not in left:
            raise ConfigError(f"einsum {subscripts!r}: {letter!r} of the output is in no term")
    return terms, out

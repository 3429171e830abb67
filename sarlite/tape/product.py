"""Matrix products and Einstein summation."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, ShapeError
from sarlite.numerics import reductions
from sarlite.numerics.reductions import is_float
from sarlite.tape.apply import apply, written_over
from sarlite.tape.pairwise import operands
from sarlite.tape.primitives import primitive
from sarlite.tape.shaping import reshape
from sarlite.tape.summands import ProductGradient
from sarlite.tape.table_rows import in_table
from sarlite.tape.tensor import Operand, Tensor
from sarlite.types import Array

# ---- a @ b, and c + a @ b


def _matmul(wants_grad, a, b, *added, factors=2):
    c = added[0] if added else None
    into = c if c is None or (c.base is None and c.flags.writeable and c.flags.c_contiguous) else c.copy()
    residuals = a if wants_grad[1] else None, b if wants_grad[0] else None
    return reductions.product(a, b, into=into), (*residuals, a.shape, b.shape)


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


def matmul(a: Tensor | Array, b: Tensor | Array, add_to: Tensor | None = None) -> Tensor:
    """Return a @ b over the last two axes, as `numpy.matmul` does, or add_to + a @ b if `add_to` is not None.

    Parameters
    ----------
    a : Tensor or array, (..., n, k) or (k,)
    b : Tensor or array, (..., k, m) or (k,)
        Leading axes are broadcast against those of a.
    add_to : Tensor, optional
        Tensor of the product's shape and dtype, which the product is added to; b must then be a matrix. Unless the
        tensor's array is a view, read-only or not contiguous, the sum is written over the tensor's values. These are
        then lost: reading them raises a RuntimeError, and so does the backward pass of an operation that needs them.

    Raises
    ------
    ShapeError
        The operands have several dtypes, or their shapes do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.matmul(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]])).data.tolist()
    [[11.0]]
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


def _in_table(a: Any, b: Tensor | Array) -> Any:
    """Return `a`, the left factor of a @ b. If b is a matrix of equal dtype, a `TableRows` (rows selected from a table) becomes a
    tensor that the kernel reads in the table, without a copy.
    """
    return in_table(a) if b.ndim == 2 and a.dtype == b.dtype else a


def _add_product(c: Tensor, a: Tensor | Array, b: Tensor | Array) -> Tensor:
    """Return c + a @ b, written into c's memory unless this is a view, read-only or not contiguous; see `matmul`."""
    operand_kinds = [(x.shape, x.dtype) for x in (c, a, b)]
    fits = a.ndim >= 2 and b.ndim == 2 and a.shape[-1] == len(b) and c.shape == (*a.shape[:-1], b.shape[1])
    if not fits or not a.dtype == b.dtype == c.dtype:
        raise ShapeError(f"cannot add to (shape, dtype) {operand_kinds[0]} the product of {operand_kinds[1]} and "
                         f"{operand_kinds[2]}")
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


def matmul_by_head(x: Tensor | Array, w: Tensor | Array) -> Tensor:
    """Return out[i,h] = x[i,h] @ w[h]: each head h is multiplied by a matrix of its own.

    Parameters
    ----------
    x : Tensor or array, (n, n_heads, n_in)
        float32 or float64.
    w : Tensor or array, (n_heads, n_in, n_out)
        A matrix for each head, of x's dtype.

    Returns
    -------
    Tensor (n, n_heads, n_out)

    Raises
    ------
    ShapeError
        The shapes do not fit, or x and w do not have the same float dtype.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.matmul_by_head(np.ones((1, 2, 1)), np.array([[[2.0]], [[3.0]]])).data.tolist()
    [[[2.0], [3.0]]]
    """
    x, w = operands(x, w)
    if x.ndim != 3 or w.ndim != 3 or x.shape[1:] != w.shape[:2] or x.dtype != w.dtype or x.dtype.kind != "f":
        arrays = f"x {x.dtype} {x.shape} and w {w.dtype} {w.shape}"
        raise ShapeError(f"{arrays} are not (n, n_heads, n_in) and (n_heads, n_in, n_out) of one float dtype")
    return apply("matmul_by_head", x, w)


# ---- Einstein summation


def _einsum(wants_grad, *arrays, terms, out):
    residuals = [a if any(wants_grad[:i] + wants_grad[i + 1 :]) else None for i, a in enumerate(arrays)]
    return reductions.contract(f"{','.join(terms)}->{out}", *arrays), (residuals, [np.shape(a) for a in arrays])


def _einsum_vjp(g, wants_grad, residuals, terms, out):
    arrays, shapes = residuals
    return [_einsum_gradient(g, i, arrays, shapes[i], terms, out) if wanted else None
            for i, wanted in enumerate(wants_grad)]


def _einsum_gradient(g: Array, i: int, arrays: Sequence[Array], shape: tuple[int, ...], input_subscripts: Sequence[str],
                     output_subscripts: str) -> Array:
    """Return the gradient of `arrays[i]`, (*shape), an input of an einsum, from g, the gradient of the einsum's output. The
    gradient is the einsum with `output_subscripts` and input_subscripts[i] exchanged. Axes that only input i has were summed in
    the forward pass, so the gradient is broadcast over them.
    """
    others = [k for k in range(len(input_subscripts)) if k != i]
    shared = set(output_subscripts).union(*(input_subscripts[k] for k in others))
    letters = "".join(letter for letter in input_subscripts[i] if letter in shared)
    subscripts = ",".join([output_subscripts, *(input_subscripts[k] for k in others)])
    d = reductions.contract(f"{subscripts}->{letters}", g, *(arrays[k] for k in others))
    summed = tuple(k for k, letter in enumerate(input_subscripts[i]) if letter not in shared)
    return np.broadcast_to(np.expand_dims(d, summed), shape)


primitive("einsum", _einsum, _einsum_vjp)


def einsum(subscripts: str, *tensors: Operand) -> Tensor:
    """Return the sum of products that `subscripts` describe, as `numpy.einsum` does.

    Parameters
    ----------
    subscripts : str
        For example "ij,jk->ik". Without "->" the output has the letters that occur once, in alphabetical order.
    tensors : Tensor or array
        Operands of one float dtype.

    Raises
    ------
    ConfigError
        `subscripts` have "...", a letter twice in one term (a diagonal) or in the output, or an output letter that is
        in no term.
    ShapeError
        The terms do not fit the shapes, or one letter stands for axes of several lengths. Axes of length 1 are not
        broadcast.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import ops
    >>> ops.einsum("ij,j->i", np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 10.0])).data.tolist()
    [21.0, 43.0]
    """
    values = operands(*tensors)
    dtypes = [value.dtype for value in values if is_float(value)]
    arrays = [value if hasattr(value, "dtype") else np.asarray(value, *dtypes[:1]) for value in values]  # numbers do not widen
    terms, out = _terms(subscripts)
    shapes = [np.shape(a) for a in arrays]
    if [len(term) for term in terms] != [len(shape) for shape in shapes]:
        raise ShapeError(f"einsum {subscripts!r} does not fit the shapes {shapes}")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes):
        for letter, n in zip(term, shape):
            if sizes.setdefault(letter, n) != n:
                raise ShapeError(f"einsum {subscripts!r}: {letter!r} is {sizes[letter]} and {n} in the shapes {shapes}")
    return apply("einsum", *arrays, terms=terms, out=out)


def _terms(subscripts: str) -> tuple[tuple[str, ...], str]:
    """Return (letters of each input, letters of the output) of the argument `subscripts` of einsum; raise a ConfigError for forms
    that are not supported, such as "...".
    """
    left, arrow, out = subscripts.replace(" ", "").partition("->")
    terms = tuple(left.split(","))
    if not arrow:
        out = "".join(sorted(letter for letter in set(left) - {","} if left.count(letter) == 1))
    for term in (*terms, out):
        if not (term.isalpha() or not term):
            raise ConfigError(f"einsum {subscripts!r}: {term!r} is not of letters alone; '...' is not supported")
        for letter in term:
            if term.count(letter) > 1:
                raise ConfigError(f"einsum {subscripts!r}: {letter!r} occurs twice in {term!r}; "
                                  "diagonals are not supported")
    for letter in out:
        if letter not in left:
            raise ConfigError(f"einsum {subscripts!r}: {letter!r} of the output is in no term")
    return terms, out

"""Values of inputs: rows that encode their row numbers, weights that tell edges apart, attention scores, and special values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sarlite.keys import GAMMA, splitmix64
from sarlite.oracle.case import Case
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.formats import rounded
from sarlite.oracle.plain import column
from sarlite.oracle.reference import Reference
from sarlite.types import Array

# Differences of scores: exp(-_FAR) and exp(-_FARTHER / 5) are 0.
_FAR, _FARTHER = 1024.0, 8192.0
_EQUAL = 0.5  # for scores up to this, exp(s - s) is 1 even if a kernel computes it as exp2 of two rounded products


def hashed(numbers: Array, seed: int) -> Array:
    """Return pseudo-random int64 numbers from 0 to 2^31 - 1, shape (n,): a hash of each of `numbers` and the seed."""
    key = np.uint64(splitmix64(seed % 2**64))
    counter = np.asarray(numbers).astype(np.uint64) * np.uint64(GAMMA)
    return (splitmix64(counter ^ key) >> np.uint64(33)).astype(np.int64)


def code_columns(n: int, bits: int) -> int:
    """Return how many columns are needed to give each of n rows a code of its own: a column of ones, and a column for each digit of
    the row number in base 2^bits.
    """
    return 1 + max(1, -(-max(n - 1, 1).bit_length() // bits))


def codes(shape: tuple[int, ...], bits: int, seed: int, start: int = 0) -> Array:
    """Return an array of `shape` whose rows encode their row numbers, so that a misplaced row can be recognized. Its columns are
    columns `start` and following of the code: a one, the digits of the row number in base 2^bits, the digits' complements, and
    digits of a hash with `seed`.
    """
    if not shape:
        return np.ones(())
    n, width, ids = shape[0], int(np.prod(shape[1:])), np.arange(shape[0])
    digits, top = code_columns(n, bits) - 1, (1 << bits) - 1
    out = np.empty((n, width))
    for c in range(width):
        k = c + start
        if k == 0:
            out[:, c] = 1
        elif k <= 2 * digits:
            digit = ids >> (bits * ((k - 1) % digits)) & top
            out[:, c] = digit if k <= digits else top - digit
        else:
            out[:, c] = hashed(ids + n * k, seed) & top
    return out.reshape(shape)


def positions_in_row(edges: EdgeList) -> Array:
    """Return the position of each edge within its row of CSR by destination, from 0, shape (n_edges,)."""
    out = np.empty(edges.n_edges, np.int64)
    out[edges.eid] = np.arange(edges.n_edges) - edges.indptr[edges.dst[edges.eid]]
    return out


def weights(edges: EdgeList, shape: tuple[int, ...], bits: int, seed: int) -> Array:
    """Return integer edge weights of this shape that tell the edges of a short row apart: the magnitudes 1 to 7 follow the
    position in the row, and `seed` sets the signs. If `bits` is below 6, the largest magnitude is smaller.
    """
    place, top = column(positions_in_row(edges), len(shape)), min(7, 1 << bits // 2)
    shift = np.arange(int(np.prod(shape[1:]))).reshape(shape[1:])
    sign = 1 - 2 * column(hashed(np.arange(edges.n_edges), seed) % 2, len(shape))
    return (1 + (place + shift) % top) * sign * np.ones(shape)


def probe_kinds(reference: Reference, width: int, values: str, wide_sums: bool = False) -> tuple[str, ...]:
    """Return the kinds of probes (inputs with exact results) for an operation: ("codes",), or ("codes", "signed") if `wide_sums` is
    True, for sums in a wider format than the inputs. Softmax and attention instead have "equal" scores, "saturated" scores (one
    winner in each row), or both. `width` is the inputs' number of columns, `values` their kind of special values (a key of
    `corpus.VALUES`).
    """
    attributes = reference.attributes
    if reference.name not in ("softmax", "attention"):
        sums = reference.name in ("spmm", "scatter") and attributes["reduce"] in ("sum", "mean")
        return ("codes", "signed") if wide_sums and sums and values == "codes" else ("codes",)
    if attributes.get("kind") == "dot" and width < 2:
        return ("equal",)
    if values == "nan":  # an edge of weight 0 may be left out, although 0 times NaN is NaN
        return ("equal",)
    return ("saturated",) if values in ("scores", "masked") else ("equal", "saturated")


class ProbeScores:
    """Builder of attention scores whose softmax is exact: all scores of a row equal, or all but one far below the largest.

    With kind "equal", all scores of a row are equal. With "saturated", one score of a row is 0, and the other
    scores are so low that their exp is 0.
    """

    def __init__(self, reference: Reference, edges: EdgeList, kind: str, seed: int) -> None:
        self.edges, self.kind, self.seed = edges, kind, seed
        self.form = reference.attributes.get("kind", "") if reference.name == "attention" else ""
        by_form = {"gat": ("el", "er"), "gatv2": ("attn",), "dot": ("q", "k")}
        self.names = ("scores",) if reference.name == "softmax" else by_form.get(self.form, ())

    def array(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return the values of the input `name`, in this shape, that make all attention scores of a row equal, or one far above
        the rest (`self.kind`).
        """
        out = np.zeros(shape)
        if name == "scores":
            return self._by_edge(shape)
        if self.kind == "equal":
            return out + (_EQUAL / 2 if self.form == "gat" else 0)
        sources, least = self._source_keys()
        if name == "el":
            out -= _FARTHER * column(sources, len(shape))
        elif name == "er":
            out += _FARTHER * column(least, len(shape))
        elif name == "attn":
            out[:, -1:] = -_FAR
        elif name == "q":
            out[..., 0], out[..., 1] = -_FAR * shape[-1], _FAR * shape[-1] * column(least, len(shape) - 1)
        else:
            out[..., 0], out[..., 1] = column(sources, len(shape) - 1), 1
        return out

    def coded(self, name: str, array: Array) -> Array:
        """Return `array`, the input `name`. For saturated scores of GATv2 its last column is overwritten with values that put one
        score of each row far above the rest.
        """
        if self.form == "gatv2" and self.kind == "saturated" and array.shape[-1]:
            sources, least = self._source_keys()
            array[..., -1] = column(sources if name == "z_src" else -least, array.ndim - 1)
        return array

    def _source_keys(self) -> tuple[Array, Array]:
        """Return (one distinct pseudo-random integer for each source; the smallest integer among each destination's sources, 0
        without sources).
        """
        sources = np.argsort(np.argsort(hashed(np.arange(self.edges.n_src), self.seed), kind="stable"))
        least = np.full(self.edges.n_dst, self.edges.n_src)
        np.minimum.at(least, self.edges.dst, sources[self.edges.src])
        return sources, np.where(self.edges.in_degrees > 0, least, 0)

    def _by_edge(self, shape):
        dst, ndim, heads = self.edges.dst, len(shape), np.arange(int(np.prod(shape[1:]))).reshape(shape[1:])
        if self.kind == "equal":
            return np.choose(column(dst, ndim) % 3, (0.0, _EQUAL, -_EQUAL)) * np.ones(shape)
        winner = (column(hashed(dst, self.seed), ndim) + heads) % column(self.edges.in_degrees[dst], ndim)
        return np.where(column(positions_in_row(self.edges), ndim) == winner, 0.0, -1e4)


def special(reference: Reference, case: Case, values: str) -> Case:
    """Return a copy of `case` whose inputs have special values of the kind `values`: "negative", "ties", "unreachable", "nan",
    "weights", "denormal", "scores" or "masked". Inputs that the kind does not concern, such as weights for most kinds, are
    unchanged.

    Parameters
    ----------
    reference : Reference
    case : Case
    values : str
        A key of corpus.VALUES:

        - "negative": all values are below 0, and so are all maxima;
        - "ties": few different integers after a ReLU; every second column is not positive, so that maxima are 0;
        - "unreachable": NaN and Inf in rows that no edge leaves;
        - "nan": NaN and Inf in one column of every fourth row, -Inf in the first column of the others, and a fourth
          of the weights are 0;
        - "weights": of eight weights two are 0, one is Inf, one -Inf, one NaN;
        - "denormal": values below the smallest normal number;
        - "scores": scores of +-1e4;
        - "masked": scores of -Inf at all edges of every second row, and at half of the edges of every fourth.
    """
    return replace(case, arrays={name: _special(reference, case, name, array, values)
                                 for name, array in case.arrays.items()})


def _special(reference, case, name, array, values):
    edges, wide = case.edges, np.asarray(array, np.float64)
    if name == "weight" and values in ("nan", "weights"):
        odd = hashed(np.arange(len(array)), len(array)) % 8
        odd = np.where((odd >= 2) & (values == "nan"), 8, odd)
        return np.select([odd < 2, odd == 2, odd == 3, odd == 4], [0.0, np.inf, -np.inf, np.nan], array
                         ).astype(array.dtype)
    if name in reference.definition.fixed or name in ("weight", "edge_weight", "attn", "k", "q"):
        return array
    if name in ("scores", "el", "er"):
        if values == "scores":
            return rounded(np.where(wide >= 0, 1e4, -1e4), case.format)
        if values == "masked" and name != "el":
            rows = np.arange(len(array)) if name == "er" else edges.dst
            masked = rows % 2 == 0
            if name == "scores":
                masked = masked | (rows % 4 == 1) & (2 * positions_in_row(edges) < edges.in_degrees[rows] - 1)
            return np.where(column(masked, array.ndim), -np.inf, array).astype(array.dtype)
        return array
    if values == "negative":
        return rounded(-1.0 - np.abs(wide), case.format)
    if values == "ties":
        few = np.maximum(np.floor(np.abs(wide)) % 4 - 1, 0)
        return rounded(np.where(np.arange(array.shape[-1]) % 2 == 0, few, 0.0 - few) if array.ndim > 1 else few, case.format)
    if values == "denormal":
        return rounded(wide * {"float16": 2.0**-22, "float64": 2.0**-1070}.get(case.format, 2.0**-130), case.format)
    if case.state or name not in ("x", "y", "z", "z_src", "v", "messages"):
        return array
    rows = np.arange(len(array))
    spoilt = np.choose(column(rows % 3, array.ndim), (np.nan, np.inf, -np.inf))
    if values == "unreachable" and name not in ("y", "messages") and not case.attributes.get("loops"):
        return np.where(column(edges.out_degrees == 0, array.ndim), spoilt, array).astype(array.dtype)
    if values == "nan" and array.size:
        width, columns = array[0].size, np.arange(array[0].size).reshape(array.shape[1:])
        here = column(hashed(rows, len(rows)) % 4 == 0, array.ndim) & (columns == column(rows, array.ndim) % width)
        least = np.where((columns == 0) & (width > 2), -np.inf, array)
        return np.where(here, spoilt, least).astype(array.dtype)
    return array
